//! A port whose packets are written to a trace (`SLUICE_VERBS_TRACE_FILE`, decision 0009).
//!
//! Transport packets are in it as they left and came. The headers below are those of an AF_XDP
//! port as far as it says them; where the kernel makes them, they are what it makes as far as
//! that is known: IPv4 packets have identification 0, IPv6 packets no flow label, and Ethernet
//! addresses that are not known are made from the IP addresses.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::Arc;

use sluice_packet::{Ethernet, Facts, Leaving, Port, Received, SendError};
use sluice_trace::{Around, Direction, Recorder};
use sluice_wire::udp::ROCE_PORT;

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

impl Tapped {
    /// A packet has left.
    fn left(&mut self, packet: &Leaving<'_>, bytes: &[u8]) {
        let path = packet.path;
        let around = Around {
            source: path.source,
            destination: path.destination,
            traffic_class: path.dscp | packet.ecn as u8,
            hop_limit: path.hop_limit,
            flow_label: path.flow_label,
            source_port: match self.below {
                Below::Socket => ROCE_PORT,
                Below::Port => path.source_port,
            },
            ethernet: path.ethernet.map(|known| [known.source, known.destination]),
        };
        if let Some(ethernet) = path.ethernet {
            if self.neighbours.len() >= NEIGHBOURS_MAX {
                self.neighbours.clear();
            }
            self.neighbours.insert(path.destination, ethernet);
        }
        self.recorder
            .record_packet(Direction::Outbound, &around, bytes);
    }
}

impl Port for Tapped {
    fn receive(&mut self, each: &mut dyn FnMut(&Received<'_>)) -> usize {
        let (recorder, neighbours) = (&self.recorder, &self.neighbours);
        self.port.receive(&mut |received| {
            let there = neighbours.get(&received.source);
            let around = Around {
                source: received.source,
                destination: received.destination,
                traffic_class: received.traffic_class,
                hop_limit: received.hop_limit,
                flow_label: 0,
                source_port: received.source_port,
                ethernet: there.map(|seen| [seen.destination, seen.source]),
            };
            recorder.record_packet(Direction::Inbound, &around, received.packet);
            each(received);
        })
    }

    fn put(
        &mut self,
        packet: &Leaving<'_>,
        fill: &mut dyn FnMut(&mut [u8]) -> bool,
    ) -> Result<(), SendError> {
        let mut bytes = Vec::new();
        let put = self.port.put(packet, &mut |into| {
            let filled = fill(into);
            bytes.extend_from_slice(into);
            filled
        });
        // It leaves whatever becomes of the packet, and in front of it or with it.
        if let Some(kept) = packet.beside
            && put != Err(SendError::NoRoom)
        {
            self.left(&kept.leaving(), kept.packet());
        }
        put?;
        self.left(packet, &bytes);
        Ok(())
    }

    fn flush(&mut self) -> bool {
        self.port.flush()
    }

    fn room(&self) -> usize {
        self.port.room()
    }

    fn facts(&self) -> Facts {
        self.port.facts()
    }
}
