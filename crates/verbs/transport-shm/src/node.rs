//! What a process is to its peers: its directory, its numbers, and its links.
#![allow(unsafe_code)]

use core::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering, fence};
use std::cmp::Reverse;
use std::collections::{BTreeSet, BinaryHeap, HashMap};
use std::path::Path;
use std::sync::{Arc, Mutex, OnceLock, PoisonError, RwLock, Weak};

use sluice_shmem::verbs::directory::{
    BLOCK_QPS, BLOCKS_MAX, DIRECTORY_BYTES, Directory, ENGINE_ASLEEP, KeyEntry,
};
use sluice_sys::at_exit::{self, AtExit};
use sluice_sys::errno::Errno;
use sluice_verbs::QpType;
use sluice_verbs::fault::Faults;
use sluice_verbs::keys::KeyInfo;

use crate::area::{File, OwnArea, file_of};
use crate::hello::Identity;
use crate::impair::Impair;
use crate::link::Incoming;
use crate::lock::lock;
use crate::os::{self, Epoll, LocalFd};
use crate::part::Part;
use crate::route::Route;
use crate::watched::Watched;
use crate::work::Work;
use crate::{requester, responder};
use sluice_rendezvous::{BLOCK_NUMBERS, Numbers, Rendezvous, check_peer};

/// How long the withdrawal of a key waits for one initiator's copy before that link is ended.
const HAZARD_PATIENCE_NS: u64 = 5_000_000_000;

/// In place of a queue pair's slot, a timer's: a request in some ring has waited its time.
const LOOK_AT_RINGS: u32 = u32::MAX;

/// When a ring that somebody else works on is looked at again.
const LOOK_AGAIN_NS: u64 = 1_000_000;

/// How often one call looks at a link that does not become empty.
pub const LOOKS: usize = 4;

// A place in the directory is a block's place and the number's in it.
const _: () = assert!(BLOCK_QPS == BLOCK_NUMBERS);

type Slots = Box<[RwLock<Option<Arc<Part>>>]>;

/// The links at one moment.
#[derive(Default)]
pub struct Links {
    pub routes: Vec<Arc<Route>>,
    pub incoming: Vec<Arc<Incoming>>,
}

/// The table behind [`Links`].
#[derive(Default)]
pub struct LinkTable {
    pub next_id: u64,
    pub by_block: HashMap<u32, Arc<Route>>,
    pub routes: HashMap<u64, Arc<Route>>,
    pub incoming: HashMap<u64, Arc<Incoming>>,
    /// Accepted sockets that have not said who they are.
    pub greeting: HashMap<u64, (LocalFd, i32)>,
}

#[derive(Default)]
struct Keys {
    slots: HashMap<u32, u32>,
    by_key: HashMap<u32, u32>,
    regions: Vec<u32>,
}

/// One transport's share of the process.
pub struct Node {
    pub rendezvous: Rendezvous,
    /// In a place that does not move: peers read it there to see that they reach us.
    pub nonce: Box<[u64; 2]>,
    pub directory: Directory,
    pub area: OwnArea,
    /// Which memory `area` is.
    pub file: File,
    numbers: Mutex<Numbers>,
    parts: [OnceLock<Slots>; BLOCKS_MAX],
    keys: Mutex<Keys>,
    pub table: Mutex<LinkTable>,
    links: RwLock<Arc<Links>>,
    /// Counts changes of the links.
    pub generation: AtomicU64,
    pub epoll: Epoll,
    pub kick: LocalFd,
    /// Nothing but a descriptor to be given up where none is left.
    pub spare: Mutex<Option<LocalFd>>,
    pub armed: AtomicU32,
    pub engine_turn: AtomicU32,
    pub stop: AtomicBool,
    timers: Mutex<BinaryHeap<Reverse<(u64, u32)>>>,
    /// When the first timer is due; [`u64::MAX`] for none.
    pub next_timer: AtomicU64,
    /// When the first held request is looked at again; 0: none is held.
    next_look: AtomicU64,
    /// Until when the engine thread sleeps.
    pub engine_until: AtomicU64,
    /// Counts of polls that found work, on either side; the engine thread watches them.
    pub polled_incoming: AtomicU64,
    pub polled_outgoing: AtomicU64,
    pub groups: crate::multicast::Groups,
    faults: Option<Faults>,
    /// Queue pairs that were given faults.
    impaired: AtomicU64,
}

impl Node {
    pub fn new(path: &Path, faults: Option<Faults>) -> Result<Arc<Self>, Errno> {
        let rendezvous = Rendezvous::open(path)
            .map_err(|error| Errno(error.raw_os_error().unwrap_or(libc::EPERM)))?;
        let area = OwnArea::new(c"sluice-verbs-directory", DIRECTORY_BYTES)?;
        // SAFETY: the area is kept in the same struct.
        let directory = unsafe { Directory::from_raw(area.mapping.base()) };
        directory.set_engine_state(ENGINE_ASLEEP);
        let epoll = Epoll::new()?;
        let kick = LocalFd::own(os::eventfd()?);
        epoll.add(kick.raw(), Watched::Kick.token())?;
        let node = Arc::new(Self {
            rendezvous,
            nonce: Box::new(os::random()?),
            directory,
            file: file_of(&area.fd)?,
            area,
            numbers: Mutex::new(Numbers::new(BLOCKS_MAX)),
            parts: [const { OnceLock::new() }; BLOCKS_MAX],
            keys: Mutex::default(),
            table: Mutex::default(),
            links: RwLock::default(),
            generation: AtomicU64::new(0),
            epoll,
            kick,
            spare: Mutex::new(os::eventfd().ok().map(LocalFd::own)),
            armed: AtomicU32::new(0),
            engine_turn: AtomicU32::new(0),
            stop: AtomicBool::new(false),
            timers: Mutex::default(),
            next_timer: AtomicU64::new(u64::MAX),
            next_look: AtomicU64::new(0),
            engine_until: AtomicU64::new(0),
            polled_incoming: AtomicU64::new(0),
            polled_outgoing: AtomicU64::new(0),
            groups: Default::default(),
            faults,
            impaired: AtomicU64::new(0),
        });
        let duty: Weak<Self> = Arc::downgrade(&node);
        at_exit::remember(duty);
        Ok(node)
    }

    /// What this process says of itself to a peer, whose memory it can read or not.
    pub fn identity(&self, can_read: bool) -> Identity {
        Identity {
            nonce: *self.nonce,
            probe: self.nonce.as_ptr() as u64,
            can_read,
        }
    }

    /// A number for a queue pair or shared receive queue, claiming a block if necessary.
    pub fn take_number(&self) -> Result<u32, Errno> {
        lock(&self.numbers).take(&self.rendezvous, |index, block| {
            let token = Watched::Listener(block.number).token();
            self.epoll.add(block.listener.raw(), token)?;
            self.directory.set_block(index, block.number);
            if let Some(parts) = self.parts.get(index) {
                parts.get_or_init(|| (0..BLOCK_QPS).map(|_| RwLock::new(None)).collect());
            }
            Ok(())
        })
    }

    /// The faults of one more queue pair. They are numbered, so that each run of a program that
    /// makes its queue pairs in the same order has the same faults.
    pub fn impair(&self, kind: QpType) -> Option<Box<Impair>> {
        let number = self.impaired.load(Ordering::Relaxed);
        let impair = Impair::new(self.faults.as_ref(), kind, number)?;
        self.impaired.fetch_add(1, Ordering::Relaxed);
        Some(impair)
    }

    pub fn give_number(&self, number: u32) {
        lock(&self.numbers).give(number);
    }

    /// The listener of one of our blocks.
    pub fn listener(&self, block: u32) -> Option<i32> {
        lock(&self.numbers).listener(block)
    }

    /// The queue pair at a place of the directory.
    pub fn part(&self, slot: u32) -> Option<Arc<Part>> {
        let slots = self.parts.get(slot as usize / BLOCK_QPS)?.get()?;
        slots[slot as usize % BLOCK_QPS]
            .read()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }

    pub fn set_part(&self, slot: u32, part: Option<Arc<Part>>) {
        if let Some(slots) = self
            .parts
            .get(slot as usize / BLOCK_QPS)
            .and_then(OnceLock::get)
        {
            *slots[slot as usize % BLOCK_QPS]
                .write()
                .unwrap_or_else(PoisonError::into_inner) = part;
        }
    }

    /// All queue pairs.
    pub fn all_parts(&self) -> Vec<Arc<Part>> {
        self.parts
            .iter()
            .filter_map(OnceLock::get)
            .flat_map(|slots| slots.iter())
            .filter_map(|slot| slot.read().unwrap_or_else(PoisonError::into_inner).clone())
            .collect()
    }

    /// The links now.
    pub fn links(&self) -> Arc<Links> {
        self.links
            .read()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }

    /// The processes that there are links with, this one among them if it has one with itself.
    pub fn peers(&self) -> Vec<u32> {
        let links = self.links();
        let routes = links.routes.iter().map(|route| route.socket.raw());
        let incoming = links.incoming.iter().map(|link| link.socket.raw());
        let pid = |socket| check_peer(socket).ok().and_then(|pid| pid.try_into().ok());
        // Twice for those that both have connected to.
        let peers: BTreeSet<u32> = routes.chain(incoming).filter_map(pid).collect();
        peers.into_iter().collect()
    }

    /// Takes over a change of the table.
    pub fn links_changed(&self, table: &LinkTable) {
        let links = Links {
            routes: table
                .routes
                .values()
                .filter(|route| route.up.get().is_some())
                .cloned()
                .collect(),
            incoming: table.incoming.values().cloned().collect(),
        };
        *self.links.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(links);
        self.generation.fetch_add(1, Ordering::Release);
    }

    /// Carries out what peers have asked. How much was done.
    pub fn progress_incoming(&self, links: &Links) -> usize {
        let each = links.incoming.iter();
        each.map(|incoming| responder::progress(self, incoming))
            .sum()
    }

    /// Takes what peers have answered. How much was done.
    pub fn progress_answers(&self, links: &Links) -> usize {
        let each = links.routes.iter();
        each.map(|route| requester::progress(self, route)).sum()
    }

    /// Takes what peers have answered, and runs due timers. How much was done. Not from inside
    /// of a request: timers look at rings.
    pub fn progress_outgoing(&self, links: &Links) -> usize {
        let done = self.progress_answers(links);
        if self.next_timer.load(Ordering::Relaxed) != u64::MAX {
            return done + self.run_timers();
        }
        done
    }

    /// Calls the queue pair at `slot` at `when_ns` or later.
    pub fn set_timer(&self, when_ns: u64, slot: u32) {
        {
            let mut timers = lock(&self.timers);
            timers.push(Reverse((when_ns, slot)));
            if let Some(Reverse((first, _))) = timers.peek() {
                self.next_timer.store(*first, Ordering::SeqCst);
            }
        }
        if when_ns < self.engine_until.load(Ordering::SeqCst) {
            self.wake_engine();
        }
    }

    /// A request is held until `when_ns`. One timer serves all that are held, however often
    /// that happens.
    pub fn held_until(&self, when_ns: u64) {
        let before = self.next_look.load(Ordering::SeqCst);
        if before == 0 || when_ns < before {
            self.next_look.store(when_ns, Ordering::SeqCst);
            self.set_timer(when_ns, LOOK_AT_RINGS);
        }
    }

    fn look_at_rings(&self) {
        // Who holds a request from now on sets a timer, or is seen below.
        self.next_look.store(0, Ordering::SeqCst);
        let links = self.links();
        self.progress_incoming(&links);
        let held = links.incoming.iter();
        if let Some(next) = held.filter_map(|link| link.holds_until()).min() {
            // One that is due is in the hands of another thread, or of this one further up.
            self.held_until(next.max(os::now_ns() + LOOK_AGAIN_NS));
        }
    }

    fn run_timers(&self) -> usize {
        let _work = Work::begin();
        let now = os::now_ns();
        let mut done = 0;
        while self.next_timer.load(Ordering::Relaxed) <= now {
            let due = {
                let mut timers = lock(&self.timers);
                let due = match timers.peek() {
                    Some(Reverse((when, slot))) if *when <= now => Some(*slot),
                    _ => None,
                };
                if due.is_some() {
                    timers.pop();
                }
                let next = timers.peek().map_or(u64::MAX, |Reverse((when, _))| *when);
                self.next_timer.store(next, Ordering::SeqCst);
                due
            };
            let Some(slot) = due else { break };
            if slot == LOOK_AT_RINGS {
                self.look_at_rings();
            } else if let Some(part) = self.part(slot) {
                requester::timer(self, &part, now);
            }
            done += 1;
        }
        done
    }

    /// There is more than one call is to do: the engine thread, if it sleeps, goes on.
    pub fn hand_over(&self) {
        if self.directory.engine_state() & 3 == ENGINE_ASLEEP {
            self.wake_engine();
        }
    }

    /// Makes the engine thread look around.
    pub fn wake_engine(&self) {
        os::ring(self.kick.raw());
    }

    /// Publishes a key. One that finds no place is not published; its requests go to the owner.
    pub fn publish_key(&self, info: &KeyInfo) {
        let located = crate::arena::locate(info.host, info.len);
        let mut keys = lock(&self.keys);
        let Some(slot) =
            Directory::choose_key_slot(info.key, |slot| !keys.slots.contains_key(slot))
        else {
            return;
        };
        let (region, region_offset) = located.unwrap_or((0, 0));
        if region != 0 {
            if !keys.regions.contains(&region) {
                keys.regions.push(region);
            }
            for incoming in &self.links().incoming {
                incoming.exported.pass(incoming.socket.raw(), region);
            }
        }
        keys.slots.insert(slot, info.key);
        keys.by_key.insert(info.key, slot);
        self.directory.set_key(
            slot,
            &KeyEntry {
                key: info.key,
                iova: info.iova,
                len: info.len,
                access: info.access,
                pd: info.pd,
                address: info.host,
                region,
                region_offset,
                qpn: info.qpn,
            },
        );
    }

    /// Passes all regions with keys to a new initiator.
    pub fn pass_regions(&self, incoming: &Incoming) {
        let keys = lock(&self.keys);
        for region in &keys.regions {
            incoming.exported.pass(incoming.socket.raw(), *region);
        }
    }

    /// Withdraws a key and waits until no initiator uses it. A link whose announcement stands
    /// still is ended after some seconds: its process is stopped, or lies.
    pub fn withdraw_key(&self, info: &KeyInfo) {
        let slot = {
            let mut keys = lock(&self.keys);
            let Some(slot) = keys.by_key.remove(&info.key) else {
                return;
            };
            // The place stays taken until its users are gone.
            slot
        };
        self.directory.clear_key(slot);
        wait_for_users(&self.links().incoming, slot);
        lock(&self.keys).slots.remove(&slot);
    }

    /// Waits for the operations that the process of the queue pair `peer_qpn` is carrying out in
    /// this process's memory by itself. What was made invisible before is used by none of them
    /// any more.
    pub fn wait_for_initiator(&self, peer_qpn: u32) {
        // Who announces from now on finds it invisible; who did before is found below.
        fence(Ordering::SeqCst);
        let links = self.links();
        let is_peer = |link: &&Arc<Incoming>| link.peer.directory.qp_slot(peer_qpn).is_some();
        let peers: Vec<Arc<Incoming>> = links.incoming.iter().filter(is_peer).cloned().collect();
        if peers.is_empty() {
            return;
        }
        let slots: Vec<u32> = lock(&self.keys).slots.keys().copied().collect();
        for slot in slots {
            wait_for_users(&peers, slot);
        }
    }

    /// Whether the engine thread is responsible for events.
    pub fn is_armed(&self) -> bool {
        self.armed.load(Ordering::SeqCst) != 0
    }
}

/// Waits for whoever uses the key at `slot` now.
fn wait_for_users(links: &[Arc<Incoming>], slot: u32) {
    for incoming in links {
        for (index, value) in incoming.hazards.users(slot) {
            let start = os::now_ns();
            while incoming
                .hazards
                .users(slot)
                .any(|user| user == (index, value))
                && !incoming.broken.load(Ordering::Relaxed)
                && !incoming.ended.load(Ordering::Relaxed)
            {
                if os::now_ns() - start > HAZARD_PATIENCE_NS {
                    incoming.broken.store(true, Ordering::Relaxed);
                    os::shutdown(incoming.socket.raw());
                }
                std::thread::yield_now();
            }
        }
    }
}

impl AtExit for Node {
    /// Takes the names of this process away; those of one that is killed are left to whoever
    /// claims numbers next ([`sluice_rendezvous`]).
    fn leave(&self) {
        // A thread that holds this is about to claim one more; who comes later sweeps it up.
        if let Ok(numbers) = self.numbers.try_lock() {
            numbers.take_names_away(&self.rendezvous);
        }
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        lock(&self.numbers).release(&self.rendezvous);
    }
}
