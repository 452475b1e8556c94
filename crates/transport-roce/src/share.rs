//! How the queues of an interface are dealt to the lanes: each lane gets one port, so that the
//! ports of all lanes have the same numbers ([`crate::path::Way::port`]).
//!
//! With at least as many queues as lanes each lane has queues of its own, shares nothing with
//! others, and sends by the first. With fewer some lanes share a queue: the first of them receives,
//! all send, one at a time.

use std::net::IpAddr;
use std::os::fd::RawFd;
use std::sync::{Arc, Mutex};

use sluice_packet::{Path, Port, PortCounters, Received, SendError};
use sluice_sys::errno::Errno;
use sluice_wire::Ecn;

use crate::node::lock;

type Boxed = Box<dyn Port>;

/// One port for each of so many lanes, from those of an interface's queues, at least one.
pub fn deal(ports: Vec<Boxed>, lanes: usize) -> Vec<Boxed> {
    let queues = ports.len();
    if queues >= lanes {
        let mut hands: Vec<Vec<Boxed>> = (0..lanes).map(|_| Vec::new()).collect();
        for (port, lane) in ports.into_iter().zip((0..lanes).cycle()) {
            hands[lane].push(port);
        }
        return hands.into_iter().filter_map(bundle).collect();
    }
    let ports: Vec<_> = ports
        .into_iter()
        .map(|port| Arc::new(Mutex::new(port)))
        .collect();
    (0..lanes)
        .zip(ports.iter().cycle())
        .map(|(lane, port)| -> Boxed {
            Box::new(Shared {
                port: port.clone(),
                receives: lane < queues,
            })
        })
        .collect()
}

fn bundle(mut ports: Vec<Boxed>) -> Option<Boxed> {
    match ports.len() {
        0 | 1 => ports.pop(),
        _ => Some(Box::new(Bundle { ports })),
    }
}

/// Several queues as one port.
struct Bundle {
    /// At least one, which sends.
    ports: Vec<Boxed>,
}

impl Port for Bundle {
    fn receive(&mut self, each: &mut dyn FnMut(&Received<'_>)) -> usize {
        self.ports.iter_mut().map(|port| port.receive(each)).sum()
    }

    fn send(
        &mut self,
        path: &Path,
        ecn: Ecn,
        length: usize,
        fill: &mut dyn FnMut(&mut [u8]) -> bool,
    ) -> Result<(), SendError> {
        self.ports[0].send(path, ecn, length, fill)
    }

    fn flush(&mut self) -> bool {
        self.ports[0].flush()
    }

    fn room(&self) -> usize {
        self.ports[0].room()
    }

    fn descriptors(&self) -> Vec<RawFd> {
        let each = self.ports.iter().flat_map(|port| port.descriptors());
        each.collect()
    }

    fn join(&self, group: IpAddr, interface: u32, join: bool) -> Result<(), Errno> {
        self.ports[0].join(group, interface, join)
    }

    fn counters(&self) -> PortCounters {
        let mut sum = PortCounters::default();
        for port in &self.ports {
            sum += port.counters();
        }
        sum
    }
}

/// A queue that several lanes send by. Its lock is behind theirs and is held for one packet, or
/// for one flush.
struct Shared {
    port: Arc<Mutex<Boxed>>,
    /// What comes is this lane's to take.
    receives: bool,
}

impl Port for Shared {
    fn receive(&mut self, each: &mut dyn FnMut(&Received<'_>)) -> usize {
        match self.receives {
            true => lock(&self.port).receive(each),
            false => 0,
        }
    }

    fn send(
        &mut self,
        path: &Path,
        ecn: Ecn,
        length: usize,
        fill: &mut dyn FnMut(&mut [u8]) -> bool,
    ) -> Result<(), SendError> {
        lock(&self.port).send(path, ecn, length, fill)
    }

    fn flush(&mut self) -> bool {
        lock(&self.port).flush()
    }

    fn room(&self) -> usize {
        lock(&self.port).room()
    }

    fn descriptors(&self) -> Vec<RawFd> {
        match self.receives {
            true => lock(&self.port).descriptors(),
            false => Vec::new(),
        }
    }

    fn join(&self, group: IpAddr, interface: u32, join: bool) -> Result<(), Errno> {
        lock(&self.port).join(group, interface, join)
    }

    fn counters(&self) -> PortCounters {
        match self.receives {
            true => lock(&self.port).counters(),
            // Counted once.
            false => PortCounters::default(),
        }
    }
}
