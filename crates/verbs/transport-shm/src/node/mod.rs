//! What a process is to its peers: its directory, its numbers, and its links.
#![allow(unsafe_code)]

mod keys;
mod links;
mod parts;
mod timers;

pub use links::{LinkTable, Links};
pub use timers::Due;

use core::sync::atomic::{AtomicU32, AtomicU64};
use std::path::Path;
use std::sync::{Arc, Mutex, RwLock, Weak};

use sluice_rendezvous::{BLOCK_NUMBERS, Names, Rendezvous};
use sluice_shmem::verbs::directory::{
    BLOCK_QPS, BLOCKS_MAX, DIRECTORY_BYTES, Directory, ENGINE_ASLEEP,
};
use sluice_sys::at_exit::{self, AtExit};
use sluice_sys::errno::Errno;
use sluice_transport::fault::{Faults, Senders};
use sluice_transport::timers::Timers;
use sluice_transport::worker::Control;

use crate::area::{File, OwnArea, file_of};
use crate::hello::Identity;
use crate::multicast::Groups;
use crate::os::{self, Epoll, LocalFd};
use crate::watched::Watched;
use keys::Keys;
use parts::Parts;
use timers::Looks;

// A place in the directory is a block's place and the number's in it.
const _: () = assert!(BLOCK_QPS == BLOCK_NUMBERS);

/// Sides of the work: what peers have answered, and what they ask.
pub const ANSWERS: usize = 0;
pub const REQUESTS: usize = 1;

/// How long an unreliable message waits for a receive, if nothing else is said. The program that is to
/// post it may have lost its processor to others, several times in a row.
const HOLD_NS: u64 = 250_000_000;

/// One transport's share of the process.
pub struct Node {
    pub names: Names,
    /// In a place that does not move: peers read it there to see that they reach us.
    pub nonce: Box<[u64; 2]>,
    pub directory: Directory,
    pub area: OwnArea,
    /// Which memory `area` is.
    pub file: File,
    pub parts: Parts,
    keys: Mutex<Keys>,
    pub table: Mutex<LinkTable>,
    links: RwLock<Arc<Links>>,
    /// Counts changes of the links.
    pub generation: AtomicU64,
    pub epoll: Epoll,
    pub kick: LocalFd,
    /// Nothing but a descriptor to be given up where none is left.
    pub spare: Mutex<Option<LocalFd>>,
    pub control: Control,
    pub engine_sleeps: AtomicU32,
    pub timers: Timers<Due>,
    pub looks: Looks,
    /// How long an unreliable message waits for a receive.
    pub hold_ns: AtomicU64,
    /// Counts of polls that found work, by side; the engine thread watches them.
    pub polled: [AtomicU64; 2],
    pub groups: Groups,
    pub faults: Senders,
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
            names: Names::new(rendezvous, BLOCKS_MAX),
            nonce: Box::new(os::random()?),
            directory,
            file: file_of(&area.fd)?,
            area,
            parts: Parts::new(),
            keys: Mutex::default(),
            table: Mutex::default(),
            links: RwLock::default(),
            generation: AtomicU64::new(0),
            epoll,
            kick,
            spare: Mutex::new(os::eventfd().ok().map(LocalFd::own)),
            control: Control::default(),
            engine_sleeps: AtomicU32::new(0),
            timers: Timers::default(),
            looks: Looks::default(),
            hold_ns: AtomicU64::new(HOLD_NS),
            polled: Default::default(),
            groups: Groups::default(),
            faults: Senders::new(faults),
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
        self.names.take(|index, block| {
            let token = Watched::Listener(block.number).token();
            self.epoll.add(block.listener.raw(), token)?;
            self.directory.set_block(index, block.number);
            self.parts.add_block(index);
            Ok(())
        })
    }

    /// Calls the queue pair at `slot` at `when_ns` or later.
    pub fn set_timer(&self, when_ns: u64, slot: u32) {
        if self.timers.set(when_ns, Due::Part(slot)) {
            self.wake_engine();
        }
    }

    /// A request is held until `when_ns`.
    pub fn held_until(&self, when_ns: u64) {
        if self.looks.set(&self.timers, when_ns) {
            self.wake_engine();
        }
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
}

impl AtExit for Node {
    /// Takes the names of this process away.
    fn leave(&self) {
        self.names.leave();
    }
}
