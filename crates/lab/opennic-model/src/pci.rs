//! The configuration space of a function (PCI Express base specification 7.5): who it is, and its
//! capabilities.

use crate::qdma;

pub const LEN: usize = 4096;
const VENDOR_XILINX: u16 = 0x10EE;
/// Interrupts of a function: one for errors of the card, the rest for its queues.
pub const VECTORS: u16 = 32;
/// The tables of MSI-X in BAR 0 (PG302, "MSI-X Table").
pub const MSIX_TABLE: u32 = 0x3_0000;
const MSIX_PENDING: u32 = 0x3_4000;
const POWER: usize = 0x40;
const MSIX: usize = 0x60;
const EXPRESS: usize = 0x70;
/// `Device Control`: function-level reset.
const DEVICE_CONTROL: usize = EXPRESS + 8;
const FUNCTION_RESET: u8 = 0x80;

pub struct Config {
    bytes: [u8; LEN],
    writable: [u8; LEN],
}

impl Config {
    pub fn new(function: usize) -> Self {
        let mut config = Self {
            bytes: [0; LEN],
            writable: [0; LEN],
        };
        let device = 0x903F + 0x100 * function as u16;
        config.put(0x00, &VENDOR_XILINX.to_le_bytes());
        config.put(0x02, &device.to_le_bytes());
        // It has capabilities.
        config.put(0x06, &[0x10]);
        // An Ethernet controller.
        config.put(0x09, &[0, 0, 2]);
        config.put(0x0E, &[if function == 0 { 0x80 } else { 0 }]);
        // Two BARs of 64 bits. QEMU answers what is asked about their size.
        config.put(0x10, &[0x04]);
        config.put(0x18, &[0x04]);
        config.put(0x2C, &VENDOR_XILINX.to_le_bytes());
        config.put(0x2E, &7_u16.to_le_bytes());
        config.put(0x34, &[POWER as u8]);
        config.put(0x3D, &[0]);

        config.put(POWER, &[0x01, MSIX as u8, 0x03, 0x00]);
        config.put(MSIX, &[0x11, EXPRESS as u8]);
        config.put(MSIX + 2, &(VECTORS - 1).to_le_bytes());
        config.put(MSIX + 4, &MSIX_TABLE.to_le_bytes());
        config.put(MSIX + 8, &MSIX_PENDING.to_le_bytes());
        // An endpoint, version 2, that can be reset by itself; 8 GT/s, 16 lanes.
        config.put(EXPRESS, &[0x10, 0, 0x02, 0x00]);
        config.put(EXPRESS + 4, &0x1000_0000_u32.to_le_bytes());
        config.put(EXPRESS + 12, &0x0000_0103_u32.to_le_bytes());
        config.put(EXPRESS + 18, &0x1103_u16.to_le_bytes());

        config.let_write(0x04, &[0x07, 0x04]);
        config.let_write(0x0C, &[0xFF]);
        config.let_write(0x3C, &[0xFF]);
        config.let_write(POWER + 4, &[0x03, 0x00]);
        config.let_write(MSIX + 2, &[0x00, 0xC0]);
        config.let_write(DEVICE_CONTROL, &[0xFF, 0x7F]);
        for bar in [0x10, 0x18] {
            config.let_write(bar, &[0xF0, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF]);
        }
        config
    }

    fn put(&mut self, at: usize, bytes: &[u8]) {
        self.bytes[at..at + bytes.len()].copy_from_slice(bytes);
    }

    fn let_write(&mut self, at: usize, mask: &[u8]) {
        self.writable[at..at + mask.len()].copy_from_slice(mask);
    }

    /// Zeros outside.
    pub fn read(&self, at: u64, bytes: &mut [u8]) {
        for (offset, byte) in bytes.iter_mut().enumerate() {
            let at = usize::try_from(at).unwrap_or(LEN).saturating_add(offset);
            *byte = self.bytes.get(at).copied().unwrap_or(0);
        }
    }

    /// Whether that asks for a function-level reset.
    pub fn write(&mut self, at: u64, bytes: &[u8]) -> bool {
        let mut reset = false;
        for (offset, byte) in bytes.iter().enumerate() {
            let at = usize::try_from(at).unwrap_or(LEN).saturating_add(offset);
            let Some(mask) = self.writable.get(at) else {
                return reset;
            };
            self.bytes[at] = self.bytes[at] & !mask | byte & mask;
            reset |= at == DEVICE_CONTROL + 1 && byte & FUNCTION_RESET != 0;
        }
        reset
    }
}

const _: () = assert!((MSIX_TABLE as u64) < qdma::BAR_LEN);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_capabilities_are_a_list_that_ends() {
        let config = Config::new(1);
        let mut at = config.bytes[0x34];
        let mut kinds = Vec::new();
        while at != 0 {
            kinds.push(config.bytes[usize::from(at)]);
            at = config.bytes[usize::from(at) + 1];
        }
        assert_eq!(kinds, [0x01, 0x11, 0x10]);
        assert_eq!(&config.bytes[..4], [0xEE, 0x10, 0x3F, 0x91]);
    }

    #[test]
    fn only_what_is_writable_changes() {
        let mut config = Config::new(0);
        assert!(!config.write(0, &[0xFF; 8]));
        assert_eq!(&config.bytes[..6], [0xEE, 0x10, 0x3F, 0x90, 0x07, 0x04]);
        assert!(config.write(DEVICE_CONTROL as u64, &[0, 0x80]));
        let mut bytes = [0; 8];
        config.read(LEN as u64 - 4, &mut bytes);
        assert!(!config.write(u64::MAX, &[1; 8]));
        config.read(u64::MAX, &mut bytes);
        assert_eq!(bytes, [0; 8]);
    }
}
