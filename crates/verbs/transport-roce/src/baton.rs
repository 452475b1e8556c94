//! A lock whose holder sees what was left for him.
//!
//! Who finds it taken does not wait: he has put down what he wants done before he tried, and goes.
//! The holder looks at what was put down once more when he has let go. One of the two finds it:
//! both put down, let go, try and look with sequential consistency, so that there is one order of all
//! four. Where the holder's look is in front of the putting down, his letting go is in front of the
//! trying, which so finds the lock free, or in the hands of somebody who has yet to let go and to look.
//!
//! With the standard library's lock that order needs a fence behind letting go, since it promises
//! only that what the holder did is seen by the next one. Here letting go is the exchange itself,
//! which on x86-64 costs what that lock's does, and elsewhere less than a fence.
#![allow(unsafe_code)]

use core::cell::UnsafeCell;
use core::ops::{Deref, DerefMut};
use core::sync::atomic::{AtomicU32, Ordering};

use sluice_sys::raw::{int, syscall4};

use crate::locks::{Held, Rank, Ranked, taken};

const FREE: u32 = 0;
const TAKEN: u32 = 1;
/// Taken, and somebody sleeps until it is not.
const AWAITED: u32 = 2;

/// What one thread at a time has in hand.
pub struct Baton<T> {
    rank: Rank,
    state: AtomicU32,
    value: UnsafeCell<T>,
}

// SAFETY: a `&Baton` gives out the value by `&mut` to one thread at a time, which is to hand it
// from one to the next.
unsafe impl<T: Send> Sync for Baton<T> {}

impl<T> Baton<T> {
    pub fn new(rank: Rank, value: T) -> Self {
        Self {
            rank,
            state: AtomicU32::new(FREE),
            value: UnsafeCell::new(value),
        }
    }

    /// Takes it, unless somebody has it. Then that one sees, when he has let go, what this thread has
    /// put down in front of this with sequential consistency.
    #[inline]
    pub fn try_take(&self) -> Option<Hold<'_, T>> {
        let state = &self.state;
        let exchanged = state.compare_exchange(FREE, TAKEN, Ordering::SeqCst, Ordering::SeqCst);
        // Made by nobody else: dropping a hold lets go.
        exchanged.is_ok().then(|| Hold {
            baton: self,
            _rank: self.rank.got(),
            _held: taken(),
        })
    }

    /// Waits for it.
    pub fn take(&self) -> Hold<'_, T> {
        if let Some(hold) = self.try_take() {
            return hold;
        }
        let rank = self.rank.wait();
        // Who has slept cannot know whether others still do, and leaves the mark for them.
        while self.state.swap(AWAITED, Ordering::SeqCst) != FREE {
            // It returns at once if the state is another by now.
            futex(&self.state, libc::FUTEX_WAIT, AWAITED);
        }
        Hold {
            baton: self,
            _rank: rank,
            _held: taken(),
        }
    }

    #[cold]
    fn wake_one(&self) {
        futex(&self.state, libc::FUTEX_WAKE, 1);
    }
}

/// Of futex(2) whatever has no timeout. Whether and why it failed says nothing: who waits looks again.
fn futex(word: &AtomicU32, operation: i32, value: u32) {
    // SAFETY: the kernel reads the word, which lives as long as the call, and writes nothing; a null
    // timeout is none.
    let _ = unsafe {
        syscall4(
            libc::SYS_futex,
            word.as_ptr() as usize,
            int(operation | libc::FUTEX_PRIVATE_FLAG),
            value as usize,
            0,
        )
    };
}

/// What is in hand. Dropped, it is let go, and what was put down in the meantime may be looked at.
pub struct Hold<'a, T> {
    baton: &'a Baton<T>,
    _rank: Ranked,
    _held: Held,
}

// SAFETY: a `&Hold` gives out `&T`.
unsafe impl<T: Sync> Sync for Hold<'_, T> {}

impl<T> Deref for Hold<'_, T> {
    type Target = T;

    #[inline]
    fn deref(&self) -> &T {
        // SAFETY: the state is not FREE from when this was made until it is dropped, and nobody
        // makes another in that time: the value is this thread's.
        unsafe { &*self.baton.value.get() }
    }
}

impl<T> DerefMut for Hold<'_, T> {
    #[inline]
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: the state is not FREE until this is dropped, and nobody makes another in that time: the
        // value is this thread's, and by `&mut self` nothing else of it is given out.
        unsafe { &mut *self.baton.value.get() }
    }
}

impl<T> Drop for Hold<'_, T> {
    #[inline]
    fn drop(&mut self) {
        if self.baton.state.swap(FREE, Ordering::SeqCst) == AWAITED {
            self.baton.wake_one();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use core::sync::atomic::AtomicUsize;

    #[test]
    fn one_at_a_time_has_it() {
        let baton = Baton::new(Rank::Queue, 1);
        let mut hold = baton.try_take().unwrap();
        // Who has tried in vain has not let it go.
        assert!(baton.try_take().is_none() && baton.try_take().is_none());
        *hold += 1;
        drop(hold);
        assert_eq!(*baton.take(), 2);
    }

    #[test]
    fn who_waits_gets_it() {
        const THREADS: u32 = 4;
        const TURNS: u32 = 2000;
        let baton = Baton::new(Rank::Queue, 0);
        std::thread::scope(|scope| {
            for _ in 0..THREADS {
                scope.spawn(|| {
                    for turn in 0..TURNS {
                        let mut hold = baton.take();
                        let was = *hold;
                        if turn % 64 == 0 {
                            std::thread::yield_now();
                        }
                        *hold = was + 1;
                    }
                });
            }
        });
        assert_eq!(*baton.take(), THREADS * TURNS);
    }

    #[test]
    fn who_dies_with_it_lets_it_go() {
        let baton = Baton::new(Rank::Queue, 0);
        let died = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            let _hold = baton.take();
            panic!("on purpose");
        }));
        assert!(died.is_err() && baton.try_take().is_some());
    }

    /// Catches: a note that is left to a holder who has looked already.
    #[test]
    fn what_is_left_to_the_holder_is_found() {
        const THREADS: usize = 3;
        const NOTES: usize = 20_000;
        let baton = Baton::new(Rank::Queue, 0_usize);
        let notes = AtomicUsize::new(0);
        std::thread::scope(|scope| {
            for _ in 0..THREADS {
                scope.spawn(|| {
                    for _ in 0..NOTES {
                        notes.fetch_add(1, Ordering::SeqCst);
                        while let Some(mut done) = baton.try_take() {
                            *done += notes.swap(0, Ordering::SeqCst);
                            drop(done);
                            if notes.load(Ordering::SeqCst) == 0 {
                                break;
                            }
                        }
                    }
                });
            }
        });
        // Nobody has come behind the last one.
        assert_eq!(*baton.take(), THREADS * NOTES);
    }
}
