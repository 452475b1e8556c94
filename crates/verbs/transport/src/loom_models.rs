//! Models of what a thread and those who wake it say to each other, run with `--cfg loom`: nobody sleeps
//! past what it was to be woken for.

use std::sync::Arc;

use loom::sync::{Condvar, Mutex};
use loom::thread;

use crate::sync::{AtomicU32, AtomicU64, Ordering};
use crate::timers::Timers;
use crate::worker::Announced;

/// An eventfd.
struct Bell {
    rung: Mutex<bool>,
    changed: Condvar,
}

impl Bell {
    fn new() -> Self {
        Self {
            rung: Mutex::new(false),
            changed: Condvar::new(),
        }
    }

    fn ring(&self) {
        *self.rung.lock().unwrap() = true;
        self.changed.notify_all();
    }

    /// Sleeps until it is rung: for ever, if it is not, which loom finds.
    fn wait(&self) {
        let mut rung = self.rung.lock().unwrap();
        while !*rung {
            rung = self.changed.wait(rung).unwrap();
        }
        *rung = false;
    }
}

fn check(model: impl Fn() + Sync + Send + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(3);
    builder.check(model);
}

/// A timer is set while the thread goes to sleep until it is woken.
#[test]
fn loom_a_timer_is_not_slept_past() {
    check(|| {
        let world = Arc::new((Timers::default(), Bell::new()));
        let setter = {
            let world = world.clone();
            thread::spawn(move || {
                let (timers, bell) = &*world;
                if timers.set(5, ()) {
                    bell.ring();
                }
            })
        };
        let (timers, bell) = &*world;
        while timers.take_due(10).is_none() {
            let until = timers.next();
            // The time is 10: one that is due is no reason to sleep.
            if until > 10 && timers.may_sleep(until) {
                bell.wait();
            }
            timers.awake();
        }
        setter.join().unwrap();
    });
}

/// The same with a deadline beside it, as a shard has one.
#[test]
fn loom_a_deadline_is_not_slept_past() {
    check(|| {
        let world = Arc::new((Announced::default(), AtomicU64::new(u64::MAX), Bell::new()));
        let setter = {
            let world = world.clone();
            thread::spawn(move || {
                let (announced, deadline, bell) = &*world;
                deadline.store(5, Ordering::SeqCst);
                if announced.sleeps_past(5) {
                    bell.ring();
                }
            })
        };
        let (announced, deadline, bell) = &*world;
        while deadline.load(Ordering::SeqCst) == u64::MAX {
            announced.awakes();
            let due = deadline.load(Ordering::SeqCst);
            announced.sleeps_until(due, 0);
            // It looks once more behind saying so.
            if due == u64::MAX && deadline.load(Ordering::SeqCst) == u64::MAX {
                bell.wait();
            }
        }
        setter.join().unwrap();
    });
}

/// Somebody begins to wait without polling, which the engine counts, while the thread, which has listened to packets, is about
/// to watch: it must come to listen again.
#[test]
fn loom_who_waits_for_an_event_is_heard() {
    check(|| {
        let world = Arc::new((Announced::default(), AtomicU32::default(), Bell::new()));
        world.0.listens(true);
        let waiter = {
            let world = world.clone();
            thread::spawn(move || {
                let (announced, armed, bell) = &*world;
                armed.fetch_add(1, Ordering::SeqCst);
                if !announced.hears() {
                    bell.ring();
                }
            })
        };
        let (announced, armed, bell) = &*world;
        loop {
            announced.awakes();
            let listens = armed.load(Ordering::SeqCst) != 0;
            announced.listens(listens);
            if listens {
                break;
            }
            // It watches; without the bell for as long as a program polls.
            bell.wait();
        }
        waiter.join().unwrap();
    });
}
