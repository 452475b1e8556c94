//! How the verbs crates take a lock, and which ones they take.
//!
//! Builds with debug assertions write down what a thread takes while it is watched ([`watch`]), and how
//! many it held at that time: the path of a request has few locks and none within another, and a
//! test says so. Other builds have nothing of this.

use std::ops::{Deref, DerefMut};
use std::sync::{
    Mutex, MutexGuard, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard, TryLockError,
};

#[cfg(debug_assertions)]
pub use watched::{Taken, watch};

/// A lock is held until this is dropped.
#[derive(Debug)]
pub struct Held {
    #[cfg(debug_assertions)]
    _one: watched::One,
}

/// The calling thread has taken a lock of a kind that is not of the standard library.
#[inline]
#[track_caller]
pub fn taken() -> Held {
    Held {
        #[cfg(debug_assertions)]
        _one: watched::One::new(),
    }
}

/// A lock of the standard library in this thread's hands.
#[derive(Debug)]
pub struct Counted<G> {
    guard: G,
    _held: Held,
}

/// What a mutex guards.
pub type Guard<'a, T> = Counted<MutexGuard<'a, T>>;

impl<G: Deref> Deref for Counted<G> {
    type Target = G::Target;

    #[inline]
    fn deref(&self) -> &G::Target {
        &self.guard
    }
}

impl<G: DerefMut> DerefMut for Counted<G> {
    #[inline]
    fn deref_mut(&mut self) -> &mut G::Target {
        &mut self.guard
    }
}

/// What a lock guards is whole whatever a holder did that panicked: nothing here unwinds half-way.
pub fn unpoisoned<G>(result: Result<G, PoisonError<G>>) -> G {
    result.unwrap_or_else(PoisonError::into_inner)
}

#[inline]
#[track_caller]
fn counted<G>(result: Result<G, PoisonError<G>>) -> Counted<G> {
    Counted {
        guard: unpoisoned(result),
        _held: taken(),
    }
}

/// Waits for a mutex.
#[inline]
#[track_caller]
pub fn lock<T>(mutex: &Mutex<T>) -> Guard<'_, T> {
    counted(mutex.lock())
}

/// The same, unless somebody has it.
#[inline]
#[track_caller]
pub fn try_lock<T>(mutex: &Mutex<T>) -> Option<Guard<'_, T>> {
    match mutex.try_lock() {
        Err(TryLockError::WouldBlock) => None,
        Err(TryLockError::Poisoned(poisoned)) => Some(counted(Err(poisoned))),
        Ok(guard) => Some(counted(Ok(guard))),
    }
}

/// Waits until nobody writes.
#[inline]
#[track_caller]
pub fn read<T>(lock: &RwLock<T>) -> Counted<RwLockReadGuard<'_, T>> {
    counted(lock.read())
}

/// Waits until nobody else reads or writes.
#[inline]
#[track_caller]
pub fn write<T>(lock: &RwLock<T>) -> Counted<RwLockWriteGuard<'_, T>> {
    counted(lock.write())
}

#[cfg(debug_assertions)]
mod watched {
    use std::cell::{Cell, RefCell};
    use std::panic::Location;

    /// A lock that was taken.
    #[derive(Clone, Copy, Debug)]
    pub struct Taken {
        /// Where, which names the lock or who takes it.
        pub at: &'static Location<'static>,
        /// How many this thread held already.
        pub within: u32,
    }

    thread_local! {
        static HELD: Cell<u32> = const { Cell::new(0) };
        static WATCHED: RefCell<Option<Vec<Taken>>> = const { RefCell::new(None) };
    }

    #[derive(Debug)]
    pub(super) struct One;

    impl One {
        #[track_caller]
        pub(super) fn new() -> One {
            let at = Location::caller();
            let within = HELD.get();
            HELD.set(within + 1);
            // A lock that is taken while a thread ends is nobody's to know of.
            let _ = WATCHED.try_with(|watched| {
                if let Some(all) = &mut *watched.borrow_mut() {
                    all.push(Taken { at, within });
                }
            });
            One
        }
    }

    impl Drop for One {
        fn drop(&mut self) {
            HELD.set(HELD.get().wrapping_sub(1));
        }
    }

    /// Makes calls, and says which locks this thread took in them.
    pub fn watch<R>(calls: impl FnOnce() -> R) -> (R, Vec<Taken>) {
        WATCHED.set(Some(Vec::new()));
        let result = calls();
        (result, WATCHED.take().unwrap_or_default())
    }
}

#[cfg(all(test, debug_assertions))]
mod tests {
    use super::*;

    #[test]
    fn what_is_taken_is_known_with_what_was_held() {
        let (one, other) = (Mutex::new(1), Mutex::new(2));
        let (sum, taken) = watch(|| {
            let first = lock(&one);
            let both = *first + *lock(&other);
            drop(first);
            both + *lock(&one)
        });
        assert_eq!(sum, 4);
        let within = taken.iter().map(|taken| taken.within);
        assert_eq!(within.collect::<Vec<_>>(), [0, 1, 0]);
        assert!(
            taken
                .iter()
                .all(|taken| taken.at.file().ends_with("locks.rs"))
        );
        // Whoever is not watched leaves nothing.
        drop(lock(&one));
        assert!(watch(|| ()).1.is_empty());
    }
}
