//! This process as a host of the window: its slot, its memory there, and what wakes it.

use core::cell::Cell;
use core::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::time::Duration;

use sluice_sys::clock::now_ns;
use sluice_sys::local_fd::LocalFd;
use sluice_sys::mapping::Mapping;
use sluice_sys::wake::{Epoll, eventfd, ring};
use sluice_transport::notice::Notices;
use sluice_transport::timers::Timers;
use sluice_transport::worker::Control;
use sluice_verbs::locks::lock;
use sluice_window::Kind;
use sluice_window::claim::{Claim, Claimed, Hold, Table as _, Watch, Word};
use sluice_window::heap::Heap;
use sluice_window::layout::HEAP_BYTES_MIN;
use sluice_window::link::{ALL_ONES, generation};
use sluice_window::region::Region;

use crate::OpenError;
use crate::bell::Bell;
use crate::channel::{CONTROL_BYTES, RING_BYTES_MIN};
use crate::management::Management;

/// Bytes of a ring at most: what is under way stays in the caches.
const RING_BYTES: u64 = 1024 * 1024;
/// Bytes of the ring to itself.
pub const INNER_BYTES: u64 = 256 * 1024;
/// The token of what wakes the transport's thread for other reasons than frames.
pub const KICK: u64 = 0;
/// A slot is looked for so much longer than it takes to see that its holder is dead.
const CLAIM_MORE_NS: u64 = 500_000_000;

thread_local! {
    /// This is the transport's own thread, which looks at everything once more before it sleeps.
    pub static IS_WORKER: Cell<bool> = const { Cell::new(false) };
}

pub struct Host {
    pub region: Region,
    /// A window of this process alone, for what goes to itself.
    pub inner: Region,
    pub path: PathBuf,
    pub slot: u32,
    pub hold: Mutex<Option<Hold>>,
    pub heap: Mutex<Heap>,
    pub ring_bytes: u64,
    pub notices: Notices,
    pub management: Management,
    /// When to look at the other hosts, nanoseconds.
    pub contacts_due: AtomicU64,
    pub bell: Option<Bell>,
    pub kick: LocalFd,
    pub epoll: Epoll,
    pub timers: Timers<u32>,
    pub control: Control,
    /// Polls of programs that have found something.
    pub polled: AtomicU64,
    /// The thread sleeps, or is about to.
    pub asleep: AtomicBool,
}

impl Host {
    pub fn open(path: &Path, silence_ns: u64) -> Result<Host, OpenError> {
        let mut region = Region::open(path).map_err(OpenError::Region)?;
        region.set_silence(silence_ns);
        let hold = claim(&region, path)?;
        let slot = hold.slot();
        let geometry = region.header().geometry;
        let (start, bytes) = geometry.heap();
        // Each of the others may have an equal part.
        let share = bytes / u64::from(geometry.hosts() - 1);
        let ring_bytes = share.saturating_sub(CONTROL_BYTES).min(RING_BYTES);
        let ring_bytes = (ring_bytes / 2 + 1).next_power_of_two();
        let fits = ring_bytes >= RING_BYTES_MIN && ring_bytes + CONTROL_BYTES <= share;
        if !fits {
            hold.release(&region);
            return Err(OpenError::TooSmall(path.to_owned()));
        }
        let inner_bytes = (INNER_BYTES + CONTROL_BYTES + HEAP_BYTES_MIN) * 2 + 4 * RING_BYTES_MIN;
        let inner = Mapping::anonymous(inner_bytes as usize).map_err(OpenError::System)?;
        let inner = Region::format(inner, 2, Kind::Coherent, true).map_err(OpenError::Region)?;
        let epoll = Epoll::new().map_err(OpenError::System)?;
        let kick = LocalFd::own(eventfd().map_err(OpenError::System)?);
        epoll.add(kick.raw(), KICK).map_err(OpenError::System)?;
        let management = Management::new(slot, geometry.hosts()).map_err(OpenError::System)?;
        let bell = Bell::own(path, slot);
        if let Some(bell) = &bell {
            epoll.add(bell.raw(), 1).map_err(OpenError::System)?;
        }
        Ok(Host {
            region,
            inner,
            path: path.to_owned(),
            slot,
            hold: Mutex::new(Some(hold)),
            heap: Mutex::new(Heap::new(start, bytes)),
            ring_bytes,
            notices: Notices::to_standard_error(),
            management,
            contacts_due: AtomicU64::new(0),
            bell,
            kick,
            epoll,
            timers: Timers::default(),
            control: Control::default(),
            polled: AtomicU64::new(0),
            asleep: AtomicBool::new(false),
        })
    }

    /// The thread looks at the other hosts.
    pub fn wake(&self) {
        self.contacts_due.store(0, Ordering::SeqCst);
        ring(self.kick.raw());
    }

    /// A queue pair waits for its turn: whoever polls sees that, a thread that sleeps does not.
    pub fn called(&self) {
        if self.asleep.load(Ordering::SeqCst) && !IS_WORKER.get() {
            ring(self.kick.raw());
        }
    }

    pub fn set_timer(&self, when_ns: u64, qpn: u32) {
        if self.timers.set(when_ns, qpn) {
            ring(self.kick.raw());
        }
    }

    /// Whether somebody holds the slot.
    pub fn is_held(&self, slot: u32) -> bool {
        if lock(&self.hold).is_none() || slot >= self.region.hosts() {
            return slot == self.slot;
        }
        !matches!(self.region.look(slot, Word::Generation), 0 | ALL_ONES)
    }
}

/// Takes a slot, or says why there is none.
fn claim(region: &Region, path: &Path) -> Result<Hold, OpenError> {
    let generation = generation().map_err(OpenError::System)?;
    let name = std::fs::read_to_string("/proc/self/comm").unwrap_or_default();
    let mut claim = Claim::new(generation, name.trim(), None);
    let claim_ns = region.silence_ns().saturating_add(CLAIM_MORE_NS);
    let mut watch = Watch::new(now_ns());
    loop {
        let now = now_ns();
        match claim.poll(region, now) {
            Claimed::Held(hold) => return Ok(hold),
            Claimed::Wait { until_ns } if watch.look(now) < claim_ns => {
                std::thread::sleep(Duration::from_nanos(until_ns.saturating_sub(now)));
            }
            Claimed::Wait { .. } => {
                let hosts = region.header().geometry.hosts();
                return Err(OpenError::NoSlot(path.to_owned(), hosts));
            }
        }
    }
}
