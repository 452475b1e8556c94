//! How far the requests of a send queue are complete, for two who move it on: whoever has the queue's lock,
//! and the one thread at a time that ends requests of a transport that works by record, without it.
//!
//! The latter puts the completion of the first request that is not complete, and then moves on. While
//! it may do that, whoever has the lock leaves the first request alone if it is the transport's. When the
//! end of a request is to be followed by something, an earlier request that has waited for its turn, or
//! one that may be handed over then, the holder of the lock guards the front and looks how far it is behind that: so
//! either it sees that the request has ended, or the one who moved the front sees the guard, and takes the lock.

use crate::sync::{AtomicU64, Ordering, fence_behind_rmw};

const GUARDED: u64 = 1;
const ONE: u64 = 2;

/// Counts complete requests.
pub(crate) struct Front(AtomicU64);

impl Front {
    /// No request is complete, and it is guarded.
    pub fn new() -> Front {
        Front(AtomicU64::new(GUARDED))
    }

    /// The first request that is not complete.
    #[inline]
    pub fn position(&self) -> u64 {
        self.0.load(Ordering::SeqCst) / ONE
    }

    /// Whether `seq` is that one, and nothing is to follow from its end. For the one who ends requests
    /// without the lock.
    #[inline]
    pub fn may_end(&self, seq: u64) -> bool {
        self.0.load(Ordering::Acquire) == seq * ONE
    }

    /// The first one's completion has been put. Whether the front is guarded.
    #[inline]
    pub fn pass(&self) -> bool {
        let before = self.0.fetch_add(ONE, Ordering::SeqCst);
        fence_behind_rmw();
        before & GUARDED != 0
    }

    /// Something is to follow from the end of the first one. By who has the lock.
    pub fn guard(&self) {
        self.0.fetch_or(GUARDED, Ordering::SeqCst);
        fence_behind_rmw();
    }

    /// No longer.
    pub fn unguard(&self) {
        self.0.fetch_and(!GUARDED, Ordering::SeqCst);
    }

    /// All before `seq` are complete or flushed, and it is guarded. By who has the lock, while the transport
    /// ends nothing.
    pub fn jump(&self, seq: u64) {
        self.0.store((seq * ONE) | GUARDED, Ordering::SeqCst);
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn only_the_first_may_end_and_only_unguarded() {
        let front = Front::new();
        assert!(!front.may_end(0));
        front.unguard();
        assert!(front.may_end(0) && !front.may_end(1));
        assert!(!front.pass());
        assert_eq!((front.position(), front.may_end(1)), (1, true));
        front.guard();
        assert!(!front.may_end(1) && front.pass());
        front.jump(7);
        assert_eq!((front.position(), front.may_end(7)), (7, false));
    }
}

/// Run with `RUSTFLAGS="--cfg loom" cargo test -p sluice-verbs --release --lib loom`.
#[cfg(all(loom, test))]
mod loom_models {
    use super::*;
    use crate::sync::Arc;
    use loom::sync::Mutex;
    use loom::thread;

    /// What the lock guards: request 1, which is done by whoever posts it, but not in its turn.
    struct Queue {
        done: bool,
        retired: bool,
    }

    fn retire(front: &Front, queue: &mut Queue, log: &Mutex<Vec<u64>>) {
        if queue.done && !queue.retired && front.position() == 1 {
            queue.retired = true;
            log.lock().unwrap().push(1);
            front.pass();
        }
    }

    /// The transport ends request 0 while a poster finds request 1 done, which it guards and then looks for its
    /// turn, or the other way round.
    fn one_ends_and_one_posts(guards_first: bool) {
        let front = Arc::new(Front::new());
        front.unguard();
        let queue = Arc::new(Mutex::new(Queue {
            done: false,
            retired: false,
        }));
        let log = Arc::new(Mutex::new(Vec::new()));
        let transport = {
            let (front, queue, log) = (front.clone(), queue.clone(), log.clone());
            thread::spawn(move || {
                // As in `Qp::complete_lent`.
                if front.may_end(0) {
                    log.lock().unwrap().push(0);
                    if front.pass() {
                        retire(&front, &mut queue.lock().unwrap(), &log);
                    }
                } else {
                    let mut queue = queue.lock().unwrap();
                    log.lock().unwrap().push(0);
                    front.pass();
                    retire(&front, &mut queue, &log);
                }
            })
        };
        {
            let mut queue = queue.lock().unwrap();
            queue.done = true;
            if guards_first {
                front.guard();
                retire(&front, &mut queue, &log);
            } else {
                retire(&front, &mut queue, &log);
                front.guard();
            }
        }
        transport.join().unwrap();
        assert_eq!(*log.lock().unwrap(), [0, 1]);
    }

    /// Catches: a request that is done and that nobody completes, or that is complete before the one in
    /// front of it, or twice.
    #[test]
    fn what_has_waited_for_its_turn_gets_it() {
        loom::model(|| one_ends_and_one_posts(true));
    }

    #[test]
    #[should_panic(expected = "assertion")]
    fn broken_poster_that_looks_before_it_guards() {
        loom::model(|| one_ends_and_one_posts(false));
    }
}
