//! A connection of TCP whose segments nobody here sees: the kernel makes them. What a program gave to
//! it, and got of it, is written down as segments that carry the same bytes.
//!
//! Sequence numbers begin at 0 and count exactly those bytes, so that readers put streams together again.
//! Where the kernel cut them, what it repeated and when it acknowledged is not known, and not said.

use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::sync::Arc;

use sluice_wire::capture::Direction;
use sluice_wire::ethernet::{self, EtherType};
use sluice_wire::tcp::{self, Flags, TCP};
use sluice_wire::{Ecn, ipv4, ipv6};

use crate::flow::mac;
use crate::recorder::Recorder;

const HOPS: u8 = 64;
/// Bytes of a segment: as many as a packet of IPv4 has room for, in whole pages.
const SEGMENT_BYTES: usize = 60 << 10;
const OVERHEAD_BYTES: usize = 14 + ipv6::Header::BYTES + tcp::Header::BYTES;
/// The window that everybody offers; nobody here knows the right one.
const WINDOW: u16 = u16::MAX;

/// A connection that is traced, in the order in which the program has its bytes.
#[derive(Debug)]
pub struct Conversation {
    recorder: Arc<Recorder>,
    /// Ours, the peer's.
    ends: [SocketAddr; 2],
    /// The next sequence numbers, of what is sent and of what comes.
    next: [u32; 2],
    finished: [bool; 2],
    over: bool,
}

impl std::fmt::Debug for Recorder {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Recorder")
    }
}

const fn side(direction: Direction) -> usize {
    match direction {
        Direction::Outbound => 0,
        Direction::Inbound => 1,
    }
}

const fn other(direction: Direction) -> Direction {
    match direction {
        Direction::Outbound => Direction::Inbound,
        Direction::Inbound => Direction::Outbound,
    }
}

impl Conversation {
    /// One that has just been made. `asked`: by our end.
    pub fn begin(
        recorder: Arc<Recorder>,
        local: SocketAddr,
        remote: SocketAddr,
        asked: bool,
    ) -> Self {
        let plain =
            |address: SocketAddr| SocketAddr::new(address.ip().to_canonical(), address.port());
        let mut conversation = Self {
            recorder,
            ends: [plain(local), plain(remote)],
            next: [0; 2],
            finished: [false; 2],
            over: false,
        };
        let asker = match asked {
            true => Direction::Outbound,
            false => Direction::Inbound,
        };
        conversation.segment(asker, Flags::SYN, &[]);
        conversation.segment(other(asker), Flags::SYN.with(Flags::ACK), &[]);
        conversation.segment(asker, Flags::ACK, &[]);
        conversation
    }

    /// `len` bytes have gone that way. `fill` is asked for the bytes at an offset of them, piece by
    /// piece.
    pub fn data(
        &mut self,
        direction: Direction,
        len: usize,
        mut fill: impl FnMut(usize, &mut [u8]),
    ) {
        let mut bytes = vec![0; len.min(SEGMENT_BYTES)];
        let mut done = 0;
        while done < len {
            let piece = bytes.len().min(len - done);
            let Some(place) = bytes.get_mut(..piece) else {
                return;
            };
            fill(done, place);
            self.segment(direction, Flags::PSH.with(Flags::ACK), place);
            done += piece;
        }
    }

    /// Nothing more comes that way.
    pub fn finish(&mut self, direction: Direction) {
        if let Some(finished) = self.finished.get_mut(side(direction))
            && !core::mem::replace(finished, true)
            && !self.over
        {
            self.segment(direction, Flags::FIN.with(Flags::ACK), &[]);
        }
    }

    /// Nor does anything either way: that end has reset the connection.
    pub fn reset(&mut self, direction: Direction) {
        if !core::mem::replace(&mut self.over, true) {
            self.segment(direction, Flags::RST.with(Flags::ACK), &[]);
        }
    }

    fn segment(&mut self, direction: Direction, flags: Flags, payload: &[u8]) {
        let from = side(direction);
        let [ours, theirs] = self.ends;
        let [sent, came] = self.next;
        let (ends, numbers) = match direction {
            Direction::Outbound => ([ours, theirs], [sent, came]),
            Direction::Inbound => ([theirs, ours], [came, sent]),
        };
        let len = OVERHEAD_BYTES + payload.len();
        self.recorder.record_frame(direction, len, || {
            frame(ends, numbers, flags, payload).unwrap_or_default()
        });
        let counts = flags.has(Flags::SYN) || flags.has(Flags::FIN);
        let counted = payload.len() as u32 + u32::from(counts);
        if let Some(next) = self.next.get_mut(from) {
            *next = next.wrapping_add(counted);
        }
    }
}

/// A frame of Ethernet with one segment, which is no longer than [`SEGMENT_BYTES`] allows. `numbers`: its own,
/// and the next that it expects.
fn frame(
    ends: [SocketAddr; 2],
    numbers: [u32; 2],
    flags: Flags,
    payload: &[u8],
) -> sluice_wire::Result<Vec<u8>> {
    let [source, destination] = ends.map(|end| end.ip());
    let [source_port, destination_port] = ends.map(|end| end.port());
    let [sequence, expected] = numbers;
    let header = tcp::Header {
        source_port,
        destination_port,
        sequence,
        acknowledgement: if flags.has(Flags::ACK) { expected } else { 0 },
        flags,
        window: WINDOW,
        ..tcp::Header::default()
    };
    let (mut bytes, len) = header.emit()?;
    let (tcp, _) = bytes.split_at_mut(len);
    let payload_bytes = (len + payload.len()) as u16;
    let (ethertype, ip, sum) = match (source, destination) {
        (IpAddr::V4(source), IpAddr::V4(destination)) => {
            let header = ipv4::Header {
                dscp: 0,
                ecn: Ecn::NotCapable,
                identification: 0,
                dont_fragment: true,
                ttl: HOPS,
                protocol: TCP,
                source,
                destination,
                payload_bytes,
            };
            let sum = tcp::checksum(&source.octets(), &destination.octets(), tcp, payload);
            (EtherType::Ipv4, header.emit()?.to_vec(), sum)
        }
        (source, destination) => {
            let v6 = |address: IpAddr| match address {
                IpAddr::V4(address) => address.to_ipv6_mapped(),
                IpAddr::V6(address) => address,
            };
            let (source, destination): (Ipv6Addr, Ipv6Addr) = (v6(source), v6(destination));
            let header = ipv6::Header {
                dscp: 0,
                ecn: Ecn::NotCapable,
                flow_label: 0,
                payload_bytes,
                next_header: TCP,
                hop_limit: HOPS,
                source,
                destination,
            };
            let sum = tcp::checksum(&source.octets(), &destination.octets(), tcp, payload);
            (EtherType::Ipv6, header.emit().to_vec(), sum)
        }
    };
    if let Some(place) = tcp.get_mut(16..18) {
        place.copy_from_slice(&sum.to_be_bytes());
    }
    let header = ethernet::Header {
        destination: mac(destination),
        source: mac(source),
        vlan: None,
        ethertype,
    };
    let mut frame = vec![0; header.len()];
    header.emit(&mut frame)?;
    frame.extend(ip);
    frame.extend_from_slice(tcp);
    frame.extend(payload);
    Ok(frame)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(frame: &[u8]) -> (IpAddr, &[u8], u16) {
        let (header, packet) = ethernet::Header::parse(frame).unwrap();
        match header.ethertype {
            EtherType::Ipv4 => {
                let (ip, tcp) = ipv4::Header::parse(packet).unwrap();
                (ip.source.into(), tcp, ipv4::sum(0, &packet[12..20]))
            }
            EtherType::Ipv6 => {
                let (ip, tcp) = ipv6::Header::parse(packet).unwrap();
                (ip.source.into(), tcp, ipv4::sum(0, &packet[8..40]))
            }
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn segments_have_their_checksums_and_numbers() {
        for (from, to) in [
            ("192.0.2.1:7", "192.0.2.2:9"),
            ("[fd00::1]:7", "[fd00::2]:9"),
        ] {
            for payload in [&b""[..], b"odd", b"even"] {
                let ends = [from.parse().unwrap(), to.parse().unwrap()];
                let bytes = frame(ends, [0x0102_0304, 5], Flags::ACK, payload).unwrap();
                let (source, tcp, pseudo) = of(&bytes);
                assert_eq!(source, ends[0].ip());
                assert_eq!(&tcp[..4], &[0, 7, 0, 9]);
                assert_eq!(&tcp[4..12], &[1, 2, 3, 4, 0, 0, 0, 5]);
                assert_eq!(&tcp[20..], payload);
                // With the right checksum everything adds up to all ones.
                let length = (tcp.len() as u16).to_be_bytes();
                let sum = ipv4::sum(ipv4::sum(pseudo, &[0, TCP]), &length);
                assert_eq!(ipv4::sum(sum, tcp), 0xffff);
            }
        }
    }
}
