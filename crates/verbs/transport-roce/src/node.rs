//! One transport's share of the process: its numbers, queue pairs and lanes.

use core::hash::{BuildHasherDefault, Hasher};
use core::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, RwLock};

use sluice_packet::{Path, Port};
use sluice_rendezvous::{Numbers, Rendezvous};
use sluice_sys::errno::Errno;
use sluice_sys::local_fd::ClosedInChildren;
use sluice_verbs::{Result, SendDone};
use sluice_wire::Mtu;

use crate::counters::Seen;
use crate::forward::Forward;
use crate::gsi::Gsi;
use crate::lane::{BROUGHT_FEW, Lane, Posting, SMALL_BYTES};
use crate::lanes::{Completions, LANES_MAX, Set, Sources};
use crate::locks::{lock, try_lock, unpoisoned};
use crate::multicast::Groups;
use crate::network::Network;
use crate::notice::Notices;
use crate::part::Part;
use crate::path::{UDP_PORT, Way};
use crate::sleeper;
use crate::tap::Below;

/// Blocks of queue pair numbers of one process.
const BLOCKS_MAX: usize = 256;

/// Numbers that this process has chosen need no keyed hash: nobody can choose them so that they
/// fall together.
#[derive(Default)]
pub struct OwnNumber(u64);

impl Hasher for OwnNumber {
    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.write_u32(u32::from(*byte));
        }
    }

    fn write_u32(&mut self, number: u32) {
        // 2⁶⁴ divided by the golden ratio (Knuth, The Art of Computer Programming, 6.4).
        self.0 = (self.0 ^ u64::from(number)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    }

    fn finish(&self) -> u64 {
        self.0
    }
}

/// The queue pairs at one moment.
#[derive(Default)]
pub struct Table {
    pub by_qpn: HashMap<u32, Arc<Part>, BuildHasherDefault<OwnNumber>>,
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
    /// the lanes, which close them.
    private: Mutex<Vec<ClosedInChildren>>,
    pub rendezvous: Rendezvous,
    numbers: Mutex<Numbers>,
    indices: Mutex<Indices>,
    table: RwLock<Arc<Table>>,
    /// Counts changes of the table.
    pub generation: AtomicU64,
    /// At least one. The first has what is the whole node's: queue pair 1, groups, neighbours.
    pub lanes: Box<[Lane]>,
    pub completions: Completions,
    /// Held by whoever gives the lanes more ports, so that all have them in one order. In front
    /// of the lanes' locks.
    serving: Mutex<()>,
    /// Interfaces that datagrams were sent by, to be served.
    wanted: Mutex<Vec<u32>>,
    pub network: Network,
    pub gsi: Gsi,
    pub groups: Groups,
    pub forward: Forward,
    /// What queue pairs have seen that are gone.
    pub gone: Mutex<Seen>,
    /// Completion queues that wait for an event.
    pub armed: AtomicU32,
    pub stop: AtomicBool,
    notices: Notices,
}

impl Node {
    /// The number of the lane that a queue pair is on.
    pub fn lane_number(&self, qpn: u32) -> usize {
        qpn as usize % self.lanes.len()
    }

    /// The lane that a queue pair is on.
    pub fn lane_of(&self, qpn: u32) -> &Lane {
        &self.lanes[self.lane_number(qpn)]
    }

    /// The lane that has what is the whole node's.
    pub fn first_lane(&self) -> &Lane {
        &self.lanes[0]
    }

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
        try_lock(&self.numbers)
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
            self.serve_or_say_why(interface);
        }
        let way = self.network.way(path, mtu)?;
        self.network.expect_packets();
        self.first_lane().sleeper.wake();
        Ok(way)
    }

    /// As [`Node::way`], for a datagram that is being posted: with a lock behind the lanes', so that
    /// the engine thread gives them their ports. The first datagrams go by UDP.
    pub fn way_and_serve_soon(&self, path: &Path) -> Result<Way> {
        let way = self.network.way(path, 0)?;
        if way.port == UDP_PORT
            && let Some(interface) = self.network.untried(path)
        {
            lock(&self.wanted).push(interface);
            self.first_lane().sleeper.wake();
        }
        Ok(way)
    }

    /// Serves the interfaces that datagrams were sent by. By the engine thread.
    pub fn serve_wanted(&self) {
        let wanted = core::mem::take(&mut *lock(&self.wanted));
        for interface in wanted {
            self.serve_or_say_why(interface);
        }
    }

    /// Where AF_XDP is not to be had, UDP does it.
    fn serve_or_say_why(&self, index: u32) {
        let Err(error) = self.serve(index) else {
            return;
        };
        let interface = sluice_xdp::Interface::by_index(index);
        let name = interface.map_or_else(
            |_| format!("interface {index}"),
            |found| found.name().to_owned(),
        );
        self.notices.say(&format!(
            "no AF_XDP on {name}, packets go through UDP sockets: {error}"
        ));
    }

    fn serve(&self, index: u32) -> core::result::Result<(), sluice_xdp::OpenError> {
        let interface = sluice_xdp::Interface::by_index(index)?;
        let (steering, ports) = interface.open(&sluice_xdp::Options::default())?;
        let ports = ports
            .into_iter()
            .map(|port| crate::ports::dressed(port, Below::Port))
            .collect();
        let shares = crate::share::deal(ports, self.lanes.len());
        let mut descriptors = Vec::new();
        let serving = lock(&self.serving);
        let mut first = 0;
        for (lane, port) in self.lanes.iter().zip(shares) {
            let own = port.descriptors();
            first = lane.with_ports(|all| {
                all.push(port);
                all.len() - 1
            });
            for descriptor in &own {
                // A port that is not watched is found by the watching thread's rounds.
                let _ = lane.sleeper.add_port(*descriptor, sleeper::XDP);
            }
            descriptors.extend(own);
        }
        drop(serving);
        let all = descriptors.into_iter().chain(steering.descriptors());
        lock(&self.private).extend(all.map(ClosedInChildren::new));
        self.network.serve(steering, first);
        // Whoever posted while a lane was held left a note.
        for lane in &self.lanes {
            lane.sleeper.wake();
        }
        Ok(())
    }

    /// The port's MTU, the longest datagram.
    pub fn mtu(&self) -> Mtu {
        self.network.mtu()
    }

    /// A queue pair was given a request of so many bytes. Its end, if that is all there is to tell.
    pub fn posted(&self, part: &Part, seq: u64, bytes: u64) -> Option<SendDone> {
        let lane = part.lane();
        let posting = Posting {
            index: part.index,
            seq,
            small: bytes <= SMALL_BYTES,
        };
        lane.send_posted(self, &posting)
    }

    /// Sends what was put into queues that belong to no queue pair.
    pub fn send_waiting(&self) {
        let nobody = Posting {
            index: usize::MAX,
            seq: 0,
            small: false,
        };
        self.first_lane().send_noted(self, &nobody);
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

    /// A poll of a completion queue found nothing: looks at the ports of the lanes that its
    /// completions come from. How many packets came.
    pub fn poll(&self, queue: &Sources) -> usize {
        let mut handed = Set::default();
        if let [only] = &*self.lanes {
            return only.poll(self, &mut handed);
        }
        let mut came = 0;
        let polled = self.lanes_of(queue);
        for lane in polled {
            came += self.lanes[lane].poll(self, &mut handed);
            // What the ones before had for it has been taken in.
            handed.remove(lane);
        }
        for lane in handed {
            // To one that was polled already this thread comes back: none has to be woken.
            let few = came <= BROUGHT_FEW || polled.contains(lane);
            self.lanes[lane].expect_brought(self, few);
        }
        came
    }

    /// The lanes where packets may be that end in a completion in this queue.
    fn lanes_of(&self, queue: &Sources) -> Set {
        let all = Set::first(self.lanes.len());
        let own = self.completions.sources(queue);
        if own.is_empty() {
            // Somebody polls, for whatever reason: it is everybody's gain.
            return all;
        }
        let fed = own.map(|lane| self.lanes[lane].fed_by().0);
        Set(fed.fold(own.0, |set, by| set | by) & all.0)
    }

    /// Somebody waits for a completion in this queue without polling.
    pub fn arm(&self, queue: &Sources) {
        self.armed.fetch_add(1, Ordering::SeqCst);
        // From now on the threads must hear of every packet.
        for lane in self.lanes_of(queue) {
            self.lanes[lane].sleeper.wake_to_hear();
        }
    }

    /// No longer.
    pub fn disarm(&self) {
        self.armed.fetch_sub(1, Ordering::SeqCst);
    }

    /// Sends what is due on every lane, see [`Lane::settle`].
    pub fn settle(&self) {
        for lane in &self.lanes {
            lane.settle(self);
        }
    }

    /// Takes in what waits at every lane's ports. What is another process's is handed on, and would
    /// be lost when the sockets are closed.
    pub fn drain(&self) {
        for lane in &self.lanes {
            lane.drain(self);
        }
    }

    /// The engine threads are to end.
    pub fn stop(&self) {
        self.stop.store(true, Ordering::Release);
        for lane in &self.lanes {
            lane.sleeper.wake();
        }
    }
}

/// What a node is made of, besides what every node has.
pub struct Parts {
    pub rendezvous: Rendezvous,
    pub network: Network,
    /// The ports of each lane, at least of one.
    pub lanes: Vec<Vec<Box<dyn Port>>>,
}

impl Node {
    pub fn new(parts: Parts) -> core::result::Result<Arc<Self>, Errno> {
        if !(1..=LANES_MAX).contains(&parts.lanes.len()) {
            return Err(Errno::INVAL);
        }
        let mut private: Vec<_> = parts.network.descriptor().into_iter().collect();
        let mut lanes = Vec::new();
        for (number, ports) in parts.lanes.into_iter().enumerate() {
            let descriptors: Vec<_> = ports.iter().flat_map(|port| port.descriptors()).collect();
            let lane = Lane::new(number, ports)?;
            for descriptor in &descriptors {
                lane.sleeper.add_port(*descriptor, sleeper::UDP)?;
            }
            private.extend(descriptors);
            lanes.push(lane);
        }
        if let (Some(network), Some(lane)) = (parts.network.descriptor(), lanes.first()) {
            lane.sleeper
                .watch(network, sleeper::token(sleeper::NETWORK, 0))?;
        }
        Ok(Arc::new(Self {
            private: Mutex::new(private.into_iter().map(ClosedInChildren::new).collect()),
            rendezvous: parts.rendezvous,
            numbers: Mutex::new(Numbers::new(BLOCKS_MAX)),
            indices: Mutex::default(),
            table: RwLock::default(),
            generation: AtomicU64::new(1),
            lanes: lanes.into(),
            completions: Completions::default(),
            serving: Mutex::default(),
            wanted: Mutex::default(),
            network: parts.network,
            gsi: Gsi::default(),
            groups: Groups::default(),
            forward: Forward::default(),
            gone: Mutex::default(),
            armed: AtomicU32::new(0),
            stop: AtomicBool::new(false),
            notices: Notices::new(),
        }))
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        unpoisoned(self.numbers.get_mut()).release(&self.rendezvous);
    }
}
