//! What is done when the process ends in the ordinary way: by `exit` or by returning from `main`.
//! A process that is killed does none of it.
#![allow(unsafe_code)]

use std::sync::{Mutex, Once, PoisonError, Weak};

/// Something with a duty at the end of the process.
pub trait AtExit: Send + Sync {
    /// The process ends. Other threads may still be at work, and may hold any lock for ever.
    fn leave(&self);
}

/// Who has a duty, and in which process: a child of a fork ends as well, and its parent's duties
/// are not its own.
static LEAVING: Mutex<Vec<(u32, Weak<dyn AtExit>)>> = Mutex::new(Vec::new());

/// Has the end of this process call `duty`, if that is still there.
pub fn remember(duty: Weak<dyn AtExit>) {
    static HANDLER: Once = Once::new();
    HANDLER.call_once(|| {
        // SAFETY: the handler is a function of this library that takes nothing.
        unsafe { libc::atexit(leave) };
    });
    let mut leaving = LEAVING.lock().unwrap_or_else(PoisonError::into_inner);
    leaving.retain(|(_, duty)| duty.strong_count() > 0);
    leaving.push((std::process::id(), duty));
}

extern "C" fn leave() {
    // In a child of a fork the lock may be held by a thread that is not there.
    let Ok(leaving) = LEAVING.try_lock() else {
        return;
    };
    for (pid, duty) in leaving.iter() {
        if *pid == std::process::id()
            && let Some(duty) = duty.upgrade()
        {
            duty.leave();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::RawFd;
    use std::sync::Arc;

    use super::*;
    use crate::wake::{eventfd, ring};

    /// Rings at its end.
    struct Rings(RawFd);

    impl AtExit for Rings {
        fn leave(&self) {
            ring(self.0);
        }
    }

    /// How many of the duties a child of fork does that ends by `exit`.
    fn at_the_end_of_a_child(prepare: impl Fn(RawFd)) -> u64 {
        let bell = eventfd().unwrap();
        // SAFETY: the child makes system calls and allocates, for which the C library's fork keeps the
        // allocator whole; the lock of duties is this test's alone.
        unsafe {
            let child = libc::fork();
            if child == 0 {
                prepare(bell.raw());
                leave();
                libc::_exit(0);
            }
            let mut status = 0;
            assert_eq!(libc::waitpid(child, &raw mut status, 0), child);
            assert!(libc::WIFEXITED(status));
            let mut count = 0u64;
            let read = libc::read(bell.raw(), (&raw mut count).cast(), 8);
            if read == 8 { count } else { 0 }
        }
    }

    #[test]
    fn each_process_does_its_own_duties_as_long_as_they_are_there() {
        let _children = crate::testing::with_children();
        let own: Arc<dyn AtExit> = Arc::new(Rings(eventfd().unwrap().into_raw()));
        remember(Arc::downgrade(&own));
        let done = at_the_end_of_a_child(|bell| {
            let kept: Arc<dyn AtExit> = Arc::new(Rings(bell));
            remember(Arc::downgrade(&kept));
            let gone: Arc<dyn AtExit> = Arc::new(Rings(bell));
            remember(Arc::downgrade(&gone));
            // Lives until the end.
            std::mem::forget(kept);
        });
        assert_eq!(done, 1);
        // What the parent has to do is not done by a child that has nothing of its own.
        let bell = eventfd().unwrap();
        let parents: Arc<dyn AtExit> = Arc::new(Rings(bell.raw()));
        remember(Arc::downgrade(&parents));
        assert_eq!(at_the_end_of_a_child(|_| {}), 0);
        let mut count = 0u64;
        // SAFETY: reads into a number; the descriptor does not block.
        let read = unsafe { libc::read(bell.raw(), (&raw mut count).cast(), 8) };
        assert_eq!(read, -1, "a child did what is its parent's");
    }
}
