//! What is around a transport packet that somebody else wraps, or has unwrapped.

use std::net::IpAddr;

use sluice_wire::capture::Direction;
use sluice_wire::ethernet::{self, EtherType, Mac};
use sluice_wire::frame::{OVERHEAD_MAX, Outer};
use sluice_wire::{Ecn, Ip, icrc};

use crate::flow::mac;
use crate::recorder::Recorder;

/// Around a transport packet, as far as it is known.
#[derive(Clone, Copy, Debug)]
pub struct Around {
    /// Of IP.
    pub source: IpAddr,
    /// Of IP.
    pub destination: IpAddr,
    /// All eight bits, those of congestion among them.
    pub traffic_class: u8,
    /// Of IP.
    pub hop_limit: u8,
    /// Of IPv6.
    pub flow_label: u32,
    /// Of UDP.
    pub source_port: u16,
    /// Source and destination; None where they are not known: then they are made from the IP addresses
    /// ([`mac`]).
    pub ethernet: Option<[[u8; 6]; 2]>,
}

impl Around {
    fn outer(&self) -> Outer {
        let ip = Ip::new(
            self.source,
            self.destination,
            self.traffic_class,
            Ecn::from_bits(self.traffic_class),
            self.hop_limit,
            self.flow_label,
        );
        let [source, destination] = match self.ethernet {
            Some(known) => known.map(Mac),
            None => [mac(self.source), mac(self.destination)],
        };
        Outer {
            ethernet: ethernet::Header {
                destination,
                source,
                vlan: None,
                ethertype: EtherType::Ipv4,
            },
            ip,
            source_port: self.source_port,
        }
    }

    /// The whole frame of a transport packet, with the ICRC that belongs to these headers. Empty if it
    /// is none.
    fn frame(&self, packet: &[u8]) -> Vec<u8> {
        let outer = self.outer();
        let mut frame = vec![0; outer.bytes() + packet.len() + icrc::BYTES];
        let place = outer.bytes()..outer.bytes() + packet.len();
        if let Some(place) = frame.get_mut(place) {
            place.copy_from_slice(packet);
        }
        match outer.wrap(packet.len(), &mut frame) {
            Ok(used) => frame.truncate(used),
            Err(_) => frame.clear(),
        }
        frame
    }
}

impl Recorder {
    /// Takes a transport packet that is there already, from its base header on without the ICRC. As
    /// [`Recorder::record_frame`].
    pub fn record_packet(&self, direction: Direction, around: &Around, packet: &[u8]) {
        let len = packet.len() + OVERHEAD_MAX;
        self.record_frame(direction, len, || around.frame(packet));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use sluice_wire::frame::Frame;
    use sluice_wire::opcode::{Operation, Service};
    use sluice_wire::{Headers, Opcode, Psn, Qpn, bth::Bth};

    fn around(source: &str, destination: &str, ethernet: Option<[[u8; 6]; 2]>) -> Around {
        Around {
            source: source.parse().unwrap(),
            destination: destination.parse().unwrap(),
            traffic_class: 0x63,
            hop_limit: 9,
            flow_label: 0x12345,
            source_port: 0xc123,
            ethernet,
        }
    }

    #[test]
    fn frames_are_whole_and_right() {
        let opcode = Opcode::new(Service::Rc, Operation::SendOnly).unwrap();
        let headers = Headers::new(Bth::new(opcode, Qpn::new(7), Psn::new(8)));
        let mut packet = [0; 64];
        let used = headers.emit(b"abc", &mut packet).unwrap();
        let known = [[2, 0, 0, 0, 0, 1], [2, 0, 0, 0, 0, 2]];
        for (source, destination) in [("192.0.2.1", "192.0.2.2"), ("fd00::1", "ff02::7")] {
            for ethernet in [None, Some(known)] {
                let around = around(source, destination, ethernet);
                let bytes = around.frame(&packet[..used]);
                // Which checks the ICRC and all lengths.
                let frame = Frame::parse(&bytes).unwrap();
                assert_eq!(frame.transport(), &packet[..used]);
                assert_eq!(frame.ip().source().to_string(), source);
                assert_eq!(frame.ip().destination().to_string(), destination);
                assert_eq!(frame.ip().ecn(), Ecn::Congestion);
                assert_eq!(frame.udp().source_port, 0xc123);
                let group = destination.starts_with("ff");
                let to = match (ethernet, group) {
                    (Some([_, known]), _) => known,
                    (None, false) => [2, 0, 192, 0, 2, 2],
                    (None, true) => [0x33, 0x33, 0, 0, 0, 7],
                };
                assert_eq!(frame.ethernet().destination, Mac(to));
            }
        }
        // Nothing that is written can be less than a header.
        assert!(around("192.0.2.1", "192.0.2.2", None).frame(&[]).is_empty());
    }
}
