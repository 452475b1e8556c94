//! The instances of the process.

use super::state::State;
use super::unlocked::Unlocked;
use crate::fds::{self, Entry};
use crate::lock::{SpinGuard, SpinLock};
use core::ffi::c_int;
use core::sync::atomic::{AtomicBool, AtomicI32, AtomicU32, AtomicU64, Ordering};
use sluice_lane::spin::Gaps;

/// Instances that a process can have under our eyes; connections in others stay on TCP.
const INSTANCES_MAX: usize = 1024;
/// One epoll instance.
pub(crate) struct Instance {
    state: SpinLock<State>,
    pub unlocked: Unlocked,
    /// Descriptors that name it; 0: unused.
    refs: AtomicU32,
    /// One of them.
    epfd: AtomicI32,
    /// It came from the process that forked this one: its kernel side is shared.
    is_inherited: AtomicBool,
    pub gaps: Gaps,
    pub turn: AtomicU32,
    /// When the kernel was last asked, on the monotonic clock.
    pub asked_ns: AtomicU64,
    /// The same in ticks, once it is through.
    pub asked_ticks: AtomicU64,
}

impl Instance {
    pub(super) const fn new() -> Self {
        Self {
            state: SpinLock::new(State::new()),
            unlocked: Unlocked::new(),
            refs: AtomicU32::new(0),
            epfd: AtomicI32::new(-1),
            is_inherited: AtomicBool::new(false),
            gaps: Gaps::new(),
            turn: AtomicU32::new(0),
            asked_ns: AtomicU64::new(0),
            asked_ticks: AtomicU64::new(0),
        }
    }

    /// A descriptor that names the instance.
    pub(super) fn epfd(&self) -> c_int {
        self.epfd.load(Ordering::Relaxed)
    }

    /// Whether its kernel side is shared with the process that forked this one.
    pub(super) fn is_inherited(&self) -> bool {
        self.is_inherited.load(Ordering::Relaxed)
    }

    /// For this process to use the instance. `None` only in a signal handler that interrupted a holder of such a
    /// lock.
    pub(crate) fn lock(&self) -> Option<SpinGuard<'_, State>> {
        let mut state = self.lock_to_leave()?;
        if state.is_foreign() {
            state.take_slots();
        }
        Some(state)
    }

    /// The same where the instance or something in it is closed: what belongs to the process that forked this one
    /// stays as it is.
    pub(super) fn lock_to_leave(&self) -> Option<SpinGuard<'_, State>> {
        let mut state = self.state.lock()?;
        state.count_plain_sleepers(&self.unlocked);
        Some(state)
    }
}

static INSTANCES: [Instance; INSTANCES_MAX] = [const { Instance::new() }; INSTANCES_MAX];
/// No instance at or behind this number was ever used.
static USED: AtomicU32 = AtomicU32::new(0);

pub(crate) fn instance(index: u32) -> &'static Instance {
    &INSTANCES[index as usize % INSTANCES_MAX]
}

/// Those that were ever used.
fn places() -> &'static [Instance] {
    &INSTANCES[..(USED.load(Ordering::Acquire) as usize).min(INSTANCES_MAX)]
}

pub(super) fn instances() -> impl Iterator<Item = (u32, &'static Instance)> {
    places()
        .iter()
        .enumerate()
        .filter(|(_, instance)| instance.refs.load(Ordering::Acquire) != 0)
        .map(|(index, instance)| (index as u32, instance))
}

/// An instance was created.
pub fn created(epfd: c_int) {
    for (index, instance) in INSTANCES.iter().enumerate() {
        if instance
            .refs
            .compare_exchange(0, 1, Ordering::AcqRel, Ordering::Relaxed)
            .is_err()
        {
            continue;
        }
        USED.fetch_max(index as u32 + 1, Ordering::AcqRel);
        instance.epfd.store(epfd, Ordering::Relaxed);
        instance.is_inherited.store(false, Ordering::Relaxed);
        instance.gaps.reset();
        instance.turn.store(0, Ordering::Relaxed);
        instance.asked_ns.store(0, Ordering::Relaxed);
        instance.asked_ticks.store(0, Ordering::Relaxed);
        let index = index as u32;
        if !fds::set(epfd, Entry::Epoll { index }) {
            instance.refs.store(0, Ordering::Release);
        }
        return;
    }
}

/// Another descriptor names the instance.
pub fn add_descriptor(index: u32, fd: i32) {
    instance(index).refs.fetch_add(1, Ordering::AcqRel);
    fds::set(fd, Entry::Epoll { index });
}

/// A descriptor of the instance is being closed.
pub fn close_descriptor(index: u32, fd: i32) {
    let this = instance(index);
    let is_another_left = this
        .refs
        .fetch_update(Ordering::AcqRel, Ordering::Acquire, |refs| {
            (refs > 1).then(|| refs - 1)
        });
    if is_another_left.is_ok() {
        if this.epfd.load(Ordering::Relaxed) == fd {
            fds::for_each(0, i32::MAX, |other, entry| {
                if other != fd && entry == (Entry::Epoll { index }) {
                    this.epfd.store(other, Ordering::Relaxed);
                }
            });
        }
        return;
    }
    if let Some(mut state) = this.lock_to_leave() {
        state.close();
        this.unlocked.close();
    }
    this.refs.store(0, Ordering::Release);
}

/// Locks all instances across a fork, so that the child finds them whole.
pub fn before_fork() {
    for instance in places() {
        instance.state.hold_across_fork();
    }
}

/// Undoes [`before_fork`] in the parent. An instance may have been closed meanwhile.
pub fn release_after_fork() {
    for instance in places() {
        instance.state.release_after_fork();
    }
}

/// In a forked child: no thread sleeps, no lock is held, and the kernel's side is shared with
/// the parent.
pub fn after_fork() {
    for instance in places() {
        instance.state.force_open();
    }
    for (_, this) in instances() {
        this.unlocked.forget_plain_sleepers();
        this.is_inherited.store(true, Ordering::Relaxed);
        if let Some(mut state) = this.lock_to_leave() {
            state.become_foreign();
        }
    }
}

/// A forked child ends: the slots that it took on its parent's tables go back.
pub fn leave() {
    for (_, this) in instances() {
        if this.is_inherited()
            && let Some(mut state) = this.lock_to_leave()
        {
            state.give_slots_back();
        }
    }
}
