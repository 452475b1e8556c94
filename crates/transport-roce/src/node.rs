//! One transport's share of the process: its numbers, queue pairs and lanes.

use core::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};

use sluice_packet::Path;
use sluice_rendezvous::{Numbers, Rendezvous};
use sluice_sys::errno::Errno;
use sluice_sys::local_fd::{ClosedInChildren, LocalFd};
use sluice_sys::process::now_ns;
use sluice_sys::wake::{Epoll, eventfd, ring};
use sluice_verbs::{Result, SendDone};
use sluice_wire::Mtu;

use crate::engine;
use crate::forward::Forward;
use crate::gsi::Gsi;
use crate::lane::{Lane, Posting, Worker};
use crate::multicast::Groups;
use crate::network::Network;
use crate::part::Part;
use crate::path::Way;
use crate::tap::Below;

/// Blocks of queue pair numbers of one process.
const BLOCKS_MAX: usize = 256;
/// An engine thread that sleeps no longer than this is not woken for a deadline.
const NAP_NS: u64 = 1_000_000;

pub fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    unpoisoned(mutex.lock())
}

/// What a lock guards is whole whatever its holder did: every call leaves it so.
pub fn unpoisoned<T>(result: core::result::Result<T, PoisonError<T>>) -> T {
    result.unwrap_or_else(PoisonError::into_inner)
}

/// The queue pairs at one moment.
#[derive(Default)]
pub struct Table {
    pub by_qpn: HashMap<u32, Arc<Part>>,
    pub by_index: Vec<Option<Arc<Part>>>,
}

/// Small numbers for queue pairs.
#[derive(Default)]
struct Indices {
    next: usize,
    free: Vec<usize>,
}

/// One transport's share of the process.
pub struct Node {
    /// Descriptors of ports, which would keep the address taken in a child of fork. In front of
    /// the lane, which closes them.
    private: Mutex<Vec<ClosedInChildren>>,
    pub rendezvous: Rendezvous,
    numbers: Mutex<Numbers>,
    indices: Mutex<Indices>,
    table: RwLock<Arc<Table>>,
    /// Counts changes of the table.
    pub generation: AtomicU64,
    pub lane: Lane,
    pub network: Network,
    pub gsi: Gsi,
    pub groups: Groups,
    pub forward: Forward,
    /// What a sleeping engine thread waits for: everything, and what is left while others poll
    /// the ports.
    pub sleeping: Epoll,
    pub watching: Epoll,
    pub kick: LocalFd,
    /// Completion queues that wait for an event.
    pub armed: AtomicU32,
    /// Until when the engine thread sleeps, nanoseconds; 0: it is awake.
    pub engine_until: AtomicU64,
    pub stop: AtomicBool,
}

impl Node {
    pub fn table(&self) -> Arc<Table> {
        unpoisoned(self.table.read()).clone()
    }

    fn change_table(&self, change: impl FnOnce(&mut Table)) {
        let mut table = unpoisoned(self.table.write());
        let mut new = Table {
            by_qpn: table.by_qpn.clone(),
            by_index: table.by_index.clone(),
        };
        change(&mut new);
        *table = Arc::new(new);
        self.generation.fetch_add(1, Ordering::Release);
    }

    pub fn numbers(&self) -> MutexGuard<'_, Numbers> {
        lock(&self.numbers)
    }

    /// The same, unless a thread has them.
    pub fn try_numbers(&self) -> Option<MutexGuard<'_, Numbers>> {
        self.numbers.try_lock().ok()
    }

    /// A number for a queue pair or a shared receive queue.
    pub fn take_number(&self) -> core::result::Result<u32, Errno> {
        self.numbers().take(&self.rendezvous, |_, block| {
            self.forward.listen(self, block)?;
            self.network.add_block(block.number as u16);
            Ok(())
        })
    }

    /// A small number for a queue pair, its own until [`Node::remove_part`].
    pub fn take_index(&self) -> usize {
        let mut indices = lock(&self.indices);
        indices.free.pop().unwrap_or_else(|| {
            indices.next += 1;
            indices.next - 1
        })
    }

    /// The number by which other processes know this one.
    pub fn tag(&self) -> core::result::Result<u16, Errno> {
        if let Some(block) = self.numbers().first_block() {
            return Ok(block as u16);
        }
        let number = self.take_number()?;
        self.numbers().give(number);
        Ok((number >> 8) as u16)
    }

    pub fn add_part(&self, part: &Arc<Part>) {
        self.change_table(|table| {
            table.by_qpn.insert(part.qpn, part.clone());
            if table.by_index.len() <= part.index {
                table.by_index.resize(part.index + 1, None);
            }
            table.by_index[part.index] = Some(part.clone());
        });
    }

    pub fn remove_part(&self, part: &Part) {
        self.groups.forget(part);
        self.change_table(|table| {
            table.by_qpn.remove(&part.qpn);
            if let Some(place) = table.by_index.get_mut(part.index) {
                *place = None;
            }
        });
        lock(&self.indices).free.push(part.index);
    }

    /// The way to a peer. `mtu`: the path MTU's code, or 0.
    pub fn way(&self, path: &Path, mtu: u32) -> Result<Way> {
        self.network.way(path, mtu)
    }

    /// The same, and the interface of the path is served by AF_XDP from now on if that is
    /// possible. Without any lock: the lane gets more ports.
    pub fn serve_and_way(&self, path: &Path, mtu: u32) -> Result<Way> {
        if let Some(interface) = self.network.untried(path) {
            // Where it is not, UDP does it; `sluice doctor` says why.
            let _ = self.serve(interface);
        }
        self.network.way(path, mtu)
    }

    fn serve(&self, index: u32) -> core::result::Result<(), sluice_xdp::OpenError> {
        let interface = sluice_xdp::Interface::by_index(index)?;
        let (steering, ports) = interface.open(&sluice_xdp::Options::default())?;
        let ports: Vec<_> = ports
            .into_iter()
            .map(|port| crate::ports::dressed(port, Below::Port))
            .collect();
        let descriptors: Vec<i32> = ports.iter().flat_map(|port| port.descriptors()).collect();
        let first = self.lane.with_ports(|all| {
            let first = all.len();
            all.extend(ports);
            first
        });
        let mut private = lock(&self.private);
        let all = descriptors.iter().copied().chain(steering.descriptors());
        private.extend(all.map(ClosedInChildren::new));
        drop(private);
        for descriptor in descriptors {
            // A port that is not watched is found by the watching thread's rounds.
            let _ = self
                .sleeping
                .add(descriptor, engine::token(engine::PORT, engine::XDP));
        }
        self.network.serve(steering, first);
        // Whoever posted while the lane was held left a note.
        self.wake_engine();
        Ok(())
    }

    /// The port's MTU, the longest datagram.
    pub fn mtu(&self) -> Mtu {
        self.network.mtu()
    }

    /// A queue pair was given a request. Its end, if that is all there is to tell.
    pub fn posted(&self, part: &Part, seq: u64) -> Option<SendDone> {
        self.lane.note(part.index);
        let posting = Posting {
            index: part.index,
            seq,
        };
        let done = self.lane.send_noted(self, &posting);
        self.wake_for_deadline();
        done
    }

    /// Sends what was put into queues that belong to no queue pair.
    pub fn send_waiting(&self) {
        let nobody = Posting {
            index: usize::MAX,
            seq: 0,
        };
        self.lane.send_noted(self, &nobody);
        self.wake_for_deadline();
    }

    /// Routes, neighbours or addresses have changed.
    pub fn network_changed(&self) {
        if !self.network.process() {
            return;
        }
        for part in self.table().by_index.iter().flatten() {
            part.lock().reroute(|way| self.network.way_again(way));
        }
    }

    /// A poll found nothing: looks at the ports. How many packets came.
    pub fn poll(&self) -> usize {
        let came = self.lane.progress(self, Worker::Poller).unwrap_or(0);
        if came > 0 {
            self.wake_for_deadline();
        }
        came
    }

    /// Sees to it that the engine thread does not sleep for long while something is due.
    fn wake_for_deadline(&self) {
        let deadline = self.lane.deadline.load(Ordering::SeqCst);
        if deadline == u64::MAX {
            return;
        }
        let until = self.engine_until.load(Ordering::SeqCst);
        if until > deadline && until > now_ns() + NAP_NS {
            self.wake_engine();
        }
    }

    pub fn wake_engine(&self) {
        ring(self.kick.raw());
    }
}

/// What a node is made of, besides what every node has.
pub struct Parts {
    pub rendezvous: Rendezvous,
    pub network: Network,
    pub lane: Lane,
}

impl Node {
    pub fn new(parts: Parts) -> core::result::Result<Arc<Self>, Errno> {
        let (sleeping, watching) = (Epoll::new()?, Epoll::new()?);
        let kick = LocalFd::own(eventfd()?);
        watching.add(kick.raw(), engine::token(engine::KICK, 0))?;
        sleeping.add(watching.raw(), engine::token(engine::WATCHED, 0))?;
        let descriptors: Vec<i32> = parts.lane.with_ports(|ports| {
            let each = ports.iter().flat_map(|port| port.descriptors());
            each.collect()
        });
        let private = descriptors
            .iter()
            .copied()
            .chain(parts.network.descriptor());
        let private = private.map(ClosedInChildren::new).collect();
        for descriptor in descriptors {
            sleeping.add(descriptor, engine::token(engine::PORT, engine::UDP))?;
        }
        if let Some(network) = parts.network.descriptor() {
            watching.add(network, engine::token(engine::NETWORK, 0))?;
        }
        Ok(Arc::new(Self {
            private: Mutex::new(private),
            rendezvous: parts.rendezvous,
            numbers: Mutex::new(Numbers::new(BLOCKS_MAX)),
            indices: Mutex::default(),
            table: RwLock::default(),
            generation: AtomicU64::new(1),
            lane: parts.lane,
            network: parts.network,
            gsi: Gsi::default(),
            groups: Groups::default(),
            forward: Forward::default(),
            sleeping,
            watching,
            kick,
            armed: AtomicU32::new(0),
            engine_until: AtomicU64::new(0),
            stop: AtomicBool::new(false),
        }))
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        unpoisoned(self.numbers.get_mut()).release(&self.rendezvous);
    }
}
