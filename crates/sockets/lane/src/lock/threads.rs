//! Who holds a lock: the threads of the processes that share locks, and which of them are dead.
//!
//! The kernel's numbers of threads are used again, and mean others in another PID namespace. So each thread
//! takes a *place* in memory that a process shares with its forks, and holds the place's robust mutex for as long
//! as it lives (pthread_mutexattr_setrobust(3)). The kernel marks the mutex when the thread ends, however it
//! ends and wherever it lived, so who asks for the mutex is told that its owner is dead. A place that is taken again
//! has another generation: what the dead thread held is held by nobody.
//!
//! Only a process and its forks write this memory: whoever could scribble over the links that a robust mutex keeps
//! in itself could already write all of what the locks protect.
#![allow(unsafe_code)]

use core::cell::UnsafeCell;
use core::mem::MaybeUninit;
use core::ptr::NonNull;
use core::sync::atomic::{AtomicPtr, AtomicU32, Ordering};
use sluice_sys::mapping::Mapping;

/// Living threads that have places. Further ones go by the kernel's number.
const PLACES: usize = 1024;
const PLACE_BITS: u32 = PLACES.trailing_zeros();
/// Tells a place from the kernel's number of a thread, which has 22 bits at most (`PID_MAX_LIMIT`).
const IS_PLACE: u32 = 1 << 31;
const GENERATION_MASK: u32 = (IS_PLACE >> PLACE_BITS) - 1;
/// Places that one thread looks at. When so many are taken, it goes by its number.
const LOOKS_MAX: usize = 256;

#[repr(C, align(64))]
struct Place {
    mutex: UnsafeCell<libc::pthread_mutex_t>,
    /// Changed by the holder of the mutex.
    generation: AtomicU32,
}

#[repr(C)]
struct Places {
    /// Where the next thread begins to look.
    next: AtomicU32,
    places: [Place; PLACES],
}

static SHARED: AtomicPtr<Places> = AtomicPtr::new(core::ptr::null_mut());

fn shared() -> Option<&'static Places> {
    // SAFETY: what `share` stored stays mapped.
    unsafe { SHARED.load(Ordering::Acquire).as_ref() }
}

/// Makes the memory, which forks of this process will share. To be called before the first lock that they
/// will share, too; without it threads go by the kernel's numbers.
pub fn share() {
    if shared().is_some() {
        return;
    }
    let Some(places) = map() else {
        return;
    };
    let mut kind = MaybeUninit::<libc::pthread_mutexattr_t>::uninit();
    // SAFETY: the attributes are initialized by the first call, and each mutex lies in memory that is nobody's
    // else yet.
    unsafe {
        libc::pthread_mutexattr_init(kind.as_mut_ptr());
        libc::pthread_mutexattr_setpshared(kind.as_mut_ptr(), libc::PTHREAD_PROCESS_SHARED);
        libc::pthread_mutexattr_setrobust(kind.as_mut_ptr(), libc::PTHREAD_MUTEX_ROBUST);
        for place in &places.as_ref().places {
            libc::pthread_mutex_init(place.mutex.get(), kind.as_ptr());
        }
        libc::pthread_mutexattr_destroy(kind.as_mut_ptr());
    }
    // Another thread may have been faster; its memory counts, and the address space of this one is lost.
    let _ = SHARED.compare_exchange(
        core::ptr::null_mut(),
        places.as_ptr(),
        Ordering::AcqRel,
        Ordering::Acquire,
    );
}

fn map() -> Option<NonNull<Places>> {
    let memory = Mapping::anonymous(size_of::<Places>()).ok()?;
    Some(memory.leak().cast())
}

/// What this thread found when it asked for a place's mutex.
enum Asked {
    /// The mutex is this thread's now; the place was free, or its thread is dead.
    Taken,
    /// A living thread has the place.
    Lives,
}

impl Place {
    /// Takes the place if no living thread has it, in a new generation.
    fn ask(&self) -> Asked {
        // SAFETY: an initialized mutex.
        let result = unsafe { libc::pthread_mutex_trylock(self.mutex.get()) };
        if result == libc::EOWNERDEAD {
            // SAFETY: this thread holds it, and has been told that its owner died.
            unsafe { libc::pthread_mutex_consistent(self.mutex.get()) };
        } else if result != 0 {
            return Asked::Lives;
        }
        self.generation.fetch_add(1, Ordering::AcqRel);
        Asked::Taken
    }

    fn leave(&self) {
        // SAFETY: held by this thread.
        unsafe { libc::pthread_mutex_unlock(self.mutex.get()) };
    }

    fn word(&self, index: usize) -> u32 {
        let generation = self.generation.load(Ordering::Acquire) & GENERATION_MASK;
        IS_PLACE | generation << PLACE_BITS | index as u32
    }
}

/// A word for the calling thread that no other thread which shares the memory has, ever but for
/// two million threads in one place. `None`: it goes by its number.
pub(super) fn take_place() -> Option<u32> {
    let shared = shared()?;
    for _ in 0..LOOKS_MAX {
        let index = shared.next.fetch_add(1, Ordering::Relaxed) as usize % PLACES;
        let place = &shared.places[index];
        if let Asked::Taken = place.ask() {
            return Some(place.word(index));
        }
    }
    None
}

/// The calling thread, whose word this is, is not to be found by it any more.
pub(super) fn leave_place(word: u32) {
    if word & IS_PLACE != 0
        && let Some(shared) = shared()
    {
        shared.places[word as usize % PLACES].leave();
    }
}

/// Whether the thread of a word is dead; `None` for a word that is a number.
pub(super) fn is_dead(word: u32) -> Option<bool> {
    if word & IS_PLACE == 0 {
        return None;
    }
    // Who has such a word shares the memory.
    let shared = shared()?;
    let index = word as usize % PLACES;
    let place = &shared.places[index];
    if place.word(index) != word {
        return Some(true);
    }
    match place.ask() {
        Asked::Lives => Some(false),
        Asked::Taken => {
            place.leave();
            Some(true)
        }
    }
}
