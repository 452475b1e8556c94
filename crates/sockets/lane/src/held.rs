//! How many locks a thread holds. A signal handler may run on top of the holder: what it calls waits for none of them,
//! and where it jumps out of the interrupted call (`siglongjmp`), the jump waits until all are let go of, which is soon.
#![allow(unsafe_code)]

use crate::spin::yield_processor;
use crate::thread::{Own, own};
use core::cell::UnsafeCell;
use core::sync::atomic::{AtomicUsize, Ordering, compiler_fence};

/// Whose locks. Of each kind a thread counts how many it holds, in one word.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Kind {
    /// Of private memory, which are not taken over from anybody.
    Spin = 1,
    /// Of a half of a connection.
    Ring = 1 << 12,
}

/// A jump out of a signal handler, postponed.
#[derive(Clone, Copy)]
pub struct Jump {
    /// Does it.
    pub function: usize,
    /// What it gets.
    pub target: usize,
    /// The same.
    pub value: i32,
    /// The signals that are blocked when it jumps.
    pub blocked: u64,
}

/// A place for the jump of a thread, which is known by the address of what is its own; 0 for none.
struct Place {
    thread: AtomicUsize,
    jump: UnsafeCell<Jump>,
}

// SAFETY: `jump` is reached only by the thread that has the place.
unsafe impl Sync for Place {}

/// Threads that jump at the same time, each for as long as it holds locks. More of them wait.
static PLACES: [Place; 16] = [const {
    Place {
        thread: AtomicUsize::new(0),
        jump: UnsafeCell::new(Jump {
            function: 0,
            target: 0,
            value: 0,
            blocked: 0,
        }),
    }
}; 16];

fn place_of(thread: usize) -> Option<&'static Place> {
    PLACES
        .iter()
        .find(|place| place.thread.load(Ordering::Acquire) == thread)
}

impl Kind {
    /// The bits that count locks of this kind.
    const fn mask(self) -> u32 {
        match self {
            Self::Spin => Self::Ring as u32 - 1,
            Self::Ring => !Self::Spin.mask(),
        }
    }
}

/// The calling thread is about to take a lock. Before it does: a signal handler must not find a lock held that is not
/// counted.
#[inline]
pub fn hold(kind: Kind) {
    own(|own| {
        let held = own.held.get();
        if held == 0 {
            own.held_at.set(stack());
        }
        own.held.set(held + kind as u32);
    });
    compiler_fence(Ordering::SeqCst);
}

/// The calling thread has let go of a lock, or did not get it.
#[inline]
pub fn let_go(kind: Kind) {
    compiler_fence(Ordering::SeqCst);
    own(|own| {
        let held = own.held.get();
        // They may have been forgotten meanwhile.
        if held & kind.mask() != 0 {
            let left = held - kind as u32;
            own.held.set(left);
            // From here on handlers jump by themselves. One that came before has said so.
            compiler_fence(Ordering::SeqCst);
            if left == 0 && own.jumps.get() {
                jump(own);
            }
        }
    });
}

/// Whether the calling thread holds a lock of this kind.
#[inline]
pub fn is_held(kind: Kind) -> bool {
    own(|own| own.held.get()) & kind.mask() != 0
}

/// Whether the calling thread holds any lock.
#[inline]
pub fn is_any_held() -> bool {
    own(|own| own.held.get()) != 0
}

/// Whether a jump waits for the calling thread's locks.
#[inline]
pub fn jumps() -> bool {
    own(|own| own.jumps.get())
}

/// Nothing counts as held any more, and no jump waits.
pub fn forget() {
    own(|own| {
        own.held.set(0);
        if own.jumps.get() {
            take_jump(own);
        }
    });
}

/// The jump is made as soon as the calling thread holds no lock. One that holds one calls this.
pub fn postpone(jump: Jump) {
    own(|own| {
        let thread = core::ptr::from_ref(own) as usize;
        // A later jump replaces an earlier one.
        let place = place_of(thread).unwrap_or_else(|| take_place(thread));
        // SAFETY: the place is this thread's.
        unsafe { *place.jump.get() = jump };
        own.jumps.set(true);
    });
}

fn take_place(thread: usize) -> &'static Place {
    let (nobody, order) = (0, Ordering::Acquire);
    let is_taken = |place: &&Place| {
        let taken = place
            .thread
            .compare_exchange(nobody, thread, order, Ordering::Relaxed);
        taken.is_ok()
    };
    loop {
        if let Some(place) = PLACES.iter().find(is_taken) {
            return place;
        }
        yield_processor();
    }
}

/// The thread's jump, which it has no longer.
fn take_jump(own: &Own) -> Option<Jump> {
    own.jumps.set(false);
    let place = place_of(core::ptr::from_ref(own) as usize)?;
    // SAFETY: the place is this thread's.
    let jump = unsafe { *place.jump.get() };
    place.thread.store(0, Ordering::Release);
    Some(jump)
}

#[cold]
fn jump(own: &Own) {
    let Some(jump) = take_jump(own) else {
        return;
    };
    // SAFETY: who postponed the jump gave a function of this kind, and what it takes.
    unsafe {
        let blocked = &raw const jump.blocked as usize;
        let bytes = size_of_val(&jump.blocked);
        let call = libc::SYS_rt_sigprocmask;
        sluice_sys::raw::syscall4(call, libc::SIG_SETMASK as usize, blocked, 0, bytes);
        let function: unsafe extern "C" fn(usize, i32) = core::mem::transmute(jump.function);
        function(jump.target, jump.value);
    }
}

/// About where the caller's stack is.
#[inline(always)]
fn stack() -> usize {
    let here: usize;
    #[cfg(target_arch = "x86_64")]
    // SAFETY: reads a register.
    unsafe {
        core::arch::asm!("mov {}, rsp", out(reg) here, options(nomem, nostack, preserves_flags));
    }
    #[cfg(not(target_arch = "x86_64"))]
    {
        here = 0;
    }
    here
}

#[cfg(test)]
mod tests {
    use super::*;
    use core::sync::atomic::AtomicUsize;

    static JUMPED: AtomicUsize = AtomicUsize::new(0);

    unsafe extern "C" fn note(target: usize, value: i32) {
        assert!(!is_any_held());
        JUMPED.fetch_add(target + value as usize, Ordering::SeqCst);
    }

    #[test]
    fn kinds_are_counted_apart() {
        assert!(!is_any_held());
        hold(Kind::Ring);
        hold(Kind::Ring);
        assert!(is_held(Kind::Ring) && !is_held(Kind::Spin));
        hold(Kind::Spin);
        let_go(Kind::Ring);
        let_go(Kind::Ring);
        assert!(!is_held(Kind::Ring) && is_held(Kind::Spin));
        let_go(Kind::Spin);
        assert!(!is_any_held());
        // Forgotten ones are let go of without harm.
        hold(Kind::Spin);
        hold(Kind::Ring);
        forget();
        let_go(Kind::Ring);
        let_go(Kind::Spin);
        assert!(!is_any_held());
    }

    #[test]
    fn a_jump_waits_for_the_last_lock() {
        hold(Kind::Ring);
        hold(Kind::Spin);
        postpone(Jump {
            function: note as *const () as usize,
            target: 40,
            value: 2,
            blocked: 0,
        });
        let_go(Kind::Ring);
        assert_eq!(JUMPED.load(Ordering::SeqCst), 0);
        hold(Kind::Ring);
        let_go(Kind::Spin);
        assert_eq!(JUMPED.load(Ordering::SeqCst), 0);
        let_go(Kind::Ring);
        assert_eq!(JUMPED.load(Ordering::SeqCst), 42);
        hold(Kind::Ring);
        let_go(Kind::Ring);
        assert_eq!(JUMPED.load(Ordering::SeqCst), 42, "once");
    }
}
