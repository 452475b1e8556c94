//! A port whose packets are written to a trace (`SLUICE_VERBS_TRACE_FILE`, decision 0009).
//!
//! Transport packets are in it as they left and came. The headers below are those of an AF_XDP
//! port as far as it says them; where the kernel makes them, they are what it makes as far as
//! that is known: IPv4 packets have identification 0, IPv6 packets no flow label, and Ethernet
//! addresses that are not known are made from the IP addresses. The ICRC is right for the headers
//! that are written.

use std::collections::HashMap;
use std::net::IpAddr;
use std::os::fd::RawFd;
use std::sync::Arc;

use sluice_packet::{Ethernet, Path, Port, PortCounters, Received, SendError};
use sluice_sys::errno::Errno;
use sluice_trace::{Direction, Recorder, mac};
use sluice_wire::ethernet::{self, EtherType, Mac};
use sluice_wire::frame::{OVERHEAD_MAX, Outer};
use sluice_wire::udp::ROCE_PORT;
use sluice_wire::{Ecn, Ip, icrc};

/// Peers whose Ethernet addresses are remembered.
const NEIGHBOURS_MAX: usize = 4096;

/// Who makes the headers around a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Below {
    /// The kernel, for a UDP socket of ours.
    Socket,
    /// The port, from its path.
    Port,
}

/// A port with a trace.
pub struct Tapped {
    port: Box<dyn Port>,
    recorder: Arc<Recorder>,
    below: Below,
    /// Of packets that went there, as seen from here.
    neighbours: HashMap<IpAddr, Ethernet>,
}

impl Tapped {
    /// Has the recorder told of everything that goes through a port.
    pub fn new(port: Box<dyn Port>, recorder: Arc<Recorder>, below: Below) -> Self {
        Self {
            port,
            recorder,
            below,
            neighbours: HashMap::new(),
        }
    }
}

/// What is around a transport packet.
struct Around {
    source: IpAddr,
    destination: IpAddr,
    /// All eight bits.
    traffic_class: u8,
    hop_limit: u8,
    flow_label: u32,
    source_port: u16,
    /// As the sender of the packet has them.
    ethernet: Option<Ethernet>,
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
        let (from, to) = match self.ethernet {
            Some(known) => (Mac(known.source), Mac(known.destination)),
            None => (mac(self.source), mac(self.destination)),
        };
        Outer {
            ethernet: ethernet::Header {
                destination: to,
                source: from,
                vlan: None,
                ethertype: EtherType::Ipv4,
            },
            ip,
            source_port: self.source_port,
        }
    }

    /// The whole frame of a transport packet. Empty if it is none.
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

impl Port for Tapped {
    fn fetch(&mut self) {
        self.port.fetch();
    }

    fn receive(&mut self, each: &mut dyn FnMut(&Received<'_>)) -> usize {
        let Self {
            port,
            recorder,
            neighbours,
            ..
        } = self;
        port.receive(&mut |received| {
            let there = neighbours.get(&received.source);
            let around = Around {
                source: received.source,
                destination: received.destination,
                traffic_class: received.traffic_class,
                hop_limit: received.hop_limit,
                flow_label: 0,
                source_port: received.source_port,
                ethernet: there.map(|seen| Ethernet {
                    source: seen.destination,
                    destination: seen.source,
                }),
            };
            let len = received.packet.len() + OVERHEAD_MAX;
            recorder.record_frame(Direction::Inbound, len, || around.frame(received.packet));
            each(received);
        })
    }

    fn left_to_sockets(&self) -> Option<u64> {
        self.port.left_to_sockets()
    }

    fn send(
        &mut self,
        path: &Path,
        ecn: Ecn,
        length: usize,
        fill: &mut dyn FnMut(&mut [u8]) -> bool,
    ) -> Result<(), SendError> {
        let around = Around {
            source: path.source,
            destination: path.destination,
            traffic_class: path.dscp | ecn as u8,
            hop_limit: path.hop_limit,
            flow_label: path.flow_label,
            source_port: match self.below {
                Below::Socket => ROCE_PORT,
                Below::Port => path.source_port,
            },
            ethernet: path.ethernet,
        };
        let mut packet = Vec::new();
        self.port.send(path, ecn, length, &mut |into| {
            let filled = fill(into);
            packet.extend_from_slice(into);
            filled
        })?;
        if let Some(ethernet) = path.ethernet {
            if self.neighbours.len() >= NEIGHBOURS_MAX {
                self.neighbours.clear();
            }
            self.neighbours.insert(path.destination, ethernet);
        }
        let len = packet.len() + OVERHEAD_MAX;
        self.recorder
            .record_frame(Direction::Outbound, len, || around.frame(&packet));
        Ok(())
    }

    fn flush(&mut self) -> bool {
        self.port.flush()
    }

    fn hand_on(&mut self) -> bool {
        self.port.hand_on()
    }

    fn room(&self) -> usize {
        self.port.room()
    }

    fn descriptors(&self) -> Vec<RawFd> {
        self.port.descriptors()
    }

    fn join(&self, group: IpAddr, interface: u32, join: bool) -> Result<(), Errno> {
        self.port.join(group, interface, join)
    }

    fn counters(&self) -> PortCounters {
        self.port.counters()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use sluice_wire::frame::Frame;
    use sluice_wire::opcode::{Operation, Service};
    use sluice_wire::{Headers, Opcode, Psn, Qpn, bth::Bth};

    fn around(source: &str, destination: &str, ethernet: Option<Ethernet>) -> Around {
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
        let known = Ethernet {
            source: [2, 0, 0, 0, 0, 1],
            destination: [2, 0, 0, 0, 0, 2],
        };
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
                    (Some(known), _) => known.destination,
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
