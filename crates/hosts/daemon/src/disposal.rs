//! Gives memory back in a thread of its own.
//!
//! Whoever closes the last descriptor of a file in memory, or removes the last mapping, frees its pages: 0.1 s and more for
//! each GiB. `sluiced` holds such files of programs, and chunks, and has one thread for all users.

use std::sync::OnceLock;
use std::sync::mpsc::{Sender, channel};
use std::thread;

use sluice_sys::process;

/// What is to be done there: nothing that waits for anybody.
type Work = Box<dyn FnOnce() + Send>;

/// Drops `memory`, soon.
pub fn dispose(memory: impl Send + 'static) {
    later(move || drop(memory));
}

/// Does something that takes as long as there are pages. In the order of the calls.
pub fn later(work: impl FnOnce() + Send + 'static) {
    static QUEUE: OnceLock<Option<Sender<Work>>> = OnceLock::new();
    let work: Work = Box::new(work);
    match QUEUE.get_or_init(start) {
        Some(queue) => {
            // It ends with the process.
            if let Err(unsent) = queue.send(work) {
                (unsent.0)();
            }
        }
        None => work(),
    }
}

fn start() -> Option<Sender<Work>> {
    let (queue, waiting) = channel::<Work>();
    let run = move || {
        process::block_signals();
        for work in waiting {
            work();
        }
    };
    let thread = thread::Builder::new().name("sluiced-memory".into());
    match thread.spawn(run) {
        Ok(_) => Some(queue),
        Err(error) => {
            tracing::warn!(reason = %error, "no thread to give memory back: {error}");
            None
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use super::*;

    /// Says which thread has dropped it.
    struct Tells(mpsc::Sender<thread::ThreadId>);

    impl Drop for Tells {
        fn drop(&mut self) {
            self.0.send(thread::current().id()).unwrap();
        }
    }

    /// F7: the one thread freed GiBs of a user's, and all others waited.
    #[test]
    fn memory_is_given_back_by_another_thread_which_this_one_does_not_wait_for() {
        let (go, may_go) = mpsc::channel::<()>();
        let (sender, dropped) = mpsc::channel();
        later(move || may_go.recv().unwrap());
        dispose(Tells(sender));
        assert!(dropped.try_recv().is_err(), "it was waited for");
        go.send(()).unwrap();
        assert_ne!(dropped.recv().unwrap(), thread::current().id());
    }
}
