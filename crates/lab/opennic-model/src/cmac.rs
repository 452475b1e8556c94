//! One 100 Gb/s port of the card (PG203, CMAC registers, and the shell's packet adapter): whether
//! it is up, and what it counted.

/// Of a port's 16 KiB: the MAC, then at 0x3000 the adapter.
pub const ADAPTER: u32 = 0x3000;
const CONF_TX: u32 = 0x000C;
const CONF_RX: u32 = 0x0014;
const CORE_VERSION: u32 = 0x0024;
const LOOPBACK: u32 = 0x0090;
const STAT_TX_STATUS: u32 = 0x0200;
const STAT_RX_STATUS: u32 = 0x0204;
const TICK: u32 = 0x02B0;
const STATISTICS: std::ops::Range<u32> = 0x0500..0x0760;

/// Version 3.1 of the CMAC.
const VERSION: u32 = 0x0000_0301;
/// `STAT_RX_STATUS`: receiving, and aligned.
const UP: u32 = 0b11;

/// Offsets of the counters that move (PG203, "Statistics Counters").
mod offset {
    pub const TX_PACKETS: u32 = 0x0500;
    pub const TX_GOOD_PACKETS: u32 = 0x0508;
    pub const TX_BYTES: u32 = 0x0510;
    pub const TX_GOOD_BYTES: u32 = 0x0518;
    pub const TX_SIZES: u32 = 0x0520;
    pub const RX_PACKETS: u32 = 0x0608;
    pub const RX_GOOD_PACKETS: u32 = 0x0610;
    pub const RX_BYTES: u32 = 0x0618;
    pub const RX_GOOD_BYTES: u32 = 0x0620;
    pub const RX_SIZES: u32 = 0x0628;
}

/// Largest frames of the size classes, with the checksum; what is longer is "large".
const SIZES: [usize; 12] = [
    64, 127, 255, 511, 1023, 1518, 1522, 1548, 2047, 4095, 8191, 9215,
];
/// The checksum of a frame on the wire.
const FCS_LEN: usize = 4;

/// Of one direction since the last tick.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Counts {
    packets: u64,
    bytes: u64,
    sizes: [u64; SIZES.len() + 1],
}

impl Counts {
    fn add(&mut self, frame_len: usize) {
        let len = frame_len + FCS_LEN;
        self.packets += 1;
        self.bytes += len as u64;
        let class = SIZES
            .iter()
            .position(|max| len <= *max)
            .unwrap_or(SIZES.len());
        self.sizes[class] += 1;
    }

    fn size_class(&self, offset: u32) -> u64 {
        self.sizes.get(offset as usize / 8).copied().unwrap_or(0)
    }
}

/// What the packet adapter counts, ever (`packet_adapter_register.v`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Adapter {
    pub tx_sent: (u64, u64),
    pub tx_dropped: (u64, u64),
    pub rx_received: (u64, u64),
    pub rx_dropped: (u64, u64),
    pub rx_errors: (u64, u64),
}

/// Adds a packet to packets and bytes.
pub fn count(pair: &mut (u64, u64), len: usize) {
    pair.0 += 1;
    pair.1 += len as u64;
}

/// A port.
#[derive(Clone, Debug, Default)]
pub struct Cmac {
    tx_enabled: bool,
    rx_enabled: bool,
    loopback: bool,
    /// Whether a cable with light in it is there.
    carrier: bool,
    /// The status since it was read: what was down meanwhile is down ("latching low").
    latched: u32,
    now: (Counts, Counts),
    ticked: (Counts, Counts),
    pub adapter: Adapter,
    other: std::collections::BTreeMap<u32, u32>,
}

impl Cmac {
    pub fn new() -> Self {
        Self {
            carrier: true,
            ..Self::default()
        }
    }

    /// Plugs the cable in or pulls it out.
    pub fn set_carrier(&mut self, carrier: bool) {
        self.carrier = carrier;
        self.latched &= self.status();
    }

    pub fn carrier(&self) -> bool {
        self.carrier
    }

    /// What it sends, it receives.
    pub fn loopback(&self) -> bool {
        self.loopback
    }

    fn status(&self) -> u32 {
        if self.rx_enabled && (self.carrier || self.loopback) {
            UP
        } else {
            0
        }
    }

    /// Whether a frame can leave; counts it.
    pub fn send(&mut self, len: usize) -> bool {
        if !self.tx_enabled || !(self.carrier || self.loopback) {
            count(&mut self.adapter.tx_dropped, len);
            return false;
        }
        count(&mut self.adapter.tx_sent, len);
        self.now.0.add(len);
        true
    }

    /// Whether frames can come in.
    pub fn receives(&self) -> bool {
        self.status() == UP
    }

    /// Counts a frame that came in.
    pub fn received(&mut self, len: usize) {
        self.now.1.add(len);
        count(&mut self.adapter.rx_received, len);
    }

    /// `SHELL_RST` for this port.
    pub fn reset(&mut self) {
        *self = Self {
            carrier: self.carrier,
            adapter: Adapter::default(),
            ..Self::default()
        };
    }

    pub fn read(&mut self, offset: u32) -> u32 {
        match offset {
            CORE_VERSION => VERSION,
            CONF_TX => self.tx_enabled.into(),
            CONF_RX => self.rx_enabled.into(),
            LOOPBACK => self.loopback.into(),
            STAT_TX_STATUS => 0,
            STAT_RX_STATUS => {
                let status = self.status();
                std::mem::replace(&mut self.latched, status)
            }
            ADAPTER.. => self.read_adapter(offset - ADAPTER),
            _ if STATISTICS.contains(&offset) => {
                let value = self.statistic(offset & !7);
                if offset & 4 == 0 {
                    value as u32
                } else {
                    (value >> 32) as u32
                }
            }
            _ => self.other.get(&offset).copied().unwrap_or(0),
        }
    }

    fn statistic(&self, at: u32) -> u64 {
        use offset::*;
        let (tx, rx) = &self.ticked;
        match at {
            TX_PACKETS | TX_GOOD_PACKETS => tx.packets,
            TX_BYTES | TX_GOOD_BYTES => tx.bytes,
            RX_PACKETS | RX_GOOD_PACKETS => rx.packets,
            RX_BYTES | RX_GOOD_BYTES => rx.bytes,
            TX_SIZES..0x0588 => tx.size_class(at - TX_SIZES),
            RX_SIZES..0x0690 => rx.size_class(at - RX_SIZES),
            _ => 0,
        }
    }

    fn read_adapter(&self, offset: u32) -> u32 {
        let adapter = &self.adapter;
        let pair = match offset & !0xF {
            0x00 => adapter.tx_sent,
            0x10 => adapter.tx_dropped,
            0x20 => adapter.rx_received,
            0x30 => adapter.rx_dropped,
            0x40 => adapter.rx_errors,
            _ => return 0,
        };
        match offset & 0xC {
            0x0 => pair.0 as u32,
            0x4 => (pair.0 >> 32) as u32,
            0x8 => pair.1 as u32,
            _ => (pair.1 >> 32) as u32,
        }
    }

    pub fn write(&mut self, offset: u32, value: u32) {
        match offset {
            CONF_TX => self.tx_enabled = value & 1 == 1,
            CONF_RX => {
                self.rx_enabled = value & 1 == 1;
                self.latched &= self.status();
            }
            LOOPBACK => self.loopback = value & 1 == 1,
            // Shows what was counted and starts anew.
            TICK if value & 1 == 1 => self.ticked = std::mem::take(&mut self.now),
            // Flow control, error correction and the like are kept and do nothing.
            0..0x0200 | 0x1000..0x1100 => {
                self.other.insert(offset & !3, value);
            }
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn up() -> Cmac {
        let mut cmac = Cmac::new();
        cmac.write(CONF_RX, 1);
        cmac.write(CONF_TX, 1);
        cmac
    }

    #[test]
    fn counters_show_what_came_before_the_tick_and_start_anew() {
        let mut cmac = up();
        assert!(cmac.send(60));
        cmac.received(1000);
        assert_eq!(cmac.read(offset::TX_PACKETS), 0);
        cmac.write(TICK, 1);
        assert_eq!(cmac.read(offset::TX_PACKETS), 1);
        assert_eq!(cmac.read(offset::TX_BYTES), 64);
        assert_eq!(
            cmac.read(offset::TX_SIZES),
            1,
            "of 64 bytes with the checksum"
        );
        assert_eq!(cmac.read(offset::RX_SIZES + 8 * 4), 1, "512 to 1023");
        cmac.write(TICK, 1);
        assert_eq!(cmac.read(offset::TX_PACKETS), 0);
    }

    #[test]
    fn a_flap_between_two_looks_is_seen_once() {
        let mut cmac = up();
        cmac.read(STAT_RX_STATUS);
        assert_eq!(cmac.read(STAT_RX_STATUS), UP);
        cmac.set_carrier(false);
        cmac.set_carrier(true);
        assert_eq!(cmac.read(STAT_RX_STATUS), 0);
        assert_eq!(cmac.read(STAT_RX_STATUS), UP);
    }

    #[test]
    fn without_a_cable_frames_are_dropped_and_counted() {
        let mut cmac = up();
        cmac.set_carrier(false);
        assert!(!cmac.send(60) && !cmac.receives());
        assert_eq!(cmac.read(ADAPTER + 0x10), 1);
        assert_eq!(cmac.read(ADAPTER + 0x18), 60);
        cmac.write(LOOPBACK, 1);
        assert!(cmac.send(60) && cmac.receives());
    }

    #[test]
    fn disabled_it_neither_sends_nor_receives() {
        let mut cmac = Cmac::new();
        assert!(!cmac.send(60) && !cmac.receives());
    }
}
