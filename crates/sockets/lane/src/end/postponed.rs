//! An error that a call leaves to the next one.

use core::sync::atomic::{AtomicU32, Ordering};
use sluice_sys::errno::Errno;

/// An error behind bytes that a call returned: TCP reports it to the next call. 0 is none.
#[repr(transparent)]
pub(super) struct Postponed(AtomicU32);

impl Postponed {
    pub fn clear(&self) {
        self.0.store(0, Ordering::Relaxed);
    }

    pub fn put(&self, errno: Errno) {
        self.0.store(errno.0 as u32, Ordering::Relaxed);
    }

    /// What the last call left; only one of several threads that ask gets it.
    pub fn take(&self) -> Option<Errno> {
        if self.0.load(Ordering::Relaxed) == 0 {
            return None;
        }
        match self.0.swap(0, Ordering::Relaxed) {
            0 => None,
            errno => Some(Errno(errno as i32)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_is_taken_once() {
        let postponed = Postponed(AtomicU32::new(0));
        assert_eq!(postponed.take(), None);
        postponed.put(Errno(libc::ECONNRESET));
        assert_eq!(postponed.take(), Some(Errno(libc::ECONNRESET)));
        assert_eq!(postponed.take(), None);
        postponed.put(Errno(libc::EPIPE));
        postponed.clear();
        assert_eq!(postponed.take(), None);
    }

    #[test]
    fn one_of_two_threads_gets_it() {
        let postponed = Postponed(AtomicU32::new(0));
        for _ in 0..200 {
            postponed.put(Errno(libc::ECONNRESET));
            let taken = std::thread::scope(|scope| {
                let other = scope.spawn(|| postponed.take());
                [postponed.take(), other.join().unwrap()]
            });
            assert_eq!(taken.iter().flatten().count(), 1, "{taken:?}");
        }
    }
}
