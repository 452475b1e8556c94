//! The clock of moderated completion queues: an event that waits for more completions comes at
//! the latest when its time is over.
//!
//! One thread per device, started by the first event that must wait, asleep while none does.

use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};

/// What waits for its time.
pub(crate) trait Timed: Send + Sync {
    fn period_over(&self);
}

#[derive(Default)]
pub(crate) struct Moderator {
    shared: Arc<Shared>,
}

#[derive(Default)]
struct Shared {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    /// Few: at most one for each moderated CQ.
    waiting: Vec<(Instant, Weak<dyn Timed>)>,
    running: bool,
    over: bool,
}

impl Moderator {
    /// [`Timed::period_over`] is called after `period`. False when there is no thread for it.
    pub fn schedule(&self, period: Duration, cq: Weak<dyn Timed>) -> bool {
        let mut state = self.shared.lock();
        if !state.running {
            let shared = self.shared.clone();
            let thread = std::thread::Builder::new().name("sluice-cq-timer".into());
            state.running = thread.spawn(move || shared.run()).is_ok();
        }
        if state.running {
            state.waiting.push((Instant::now() + period, cq));
            self.shared.changed.notify_one();
        }
        state.running
    }
}

impl Drop for Moderator {
    fn drop(&mut self) {
        self.shared.lock().over = true;
        self.shared.changed.notify_one();
    }
}

impl Shared {
    fn run(&self) {
        let mut state = self.lock();
        while !state.over {
            let now = Instant::now();
            let due = state.waiting.extract_if(.., |(when, _)| *when <= now);
            let due: Vec<Weak<dyn Timed>> = due.map(|(_, cq)| cq).collect();
            if !due.is_empty() {
                // Without the lock: a CQ calls `schedule` with its own.
                drop(state);
                for cq in due.iter().filter_map(Weak::upgrade) {
                    cq.period_over();
                }
                state = self.lock();
                continue;
            }
            let next = state.waiting.iter().map(|(when, _)| *when).min();
            state = match next {
                None => self
                    .changed
                    .wait(state)
                    .unwrap_or_else(PoisonError::into_inner),
                Some(when) => {
                    self.changed
                        .wait_timeout(state, when - now)
                        .unwrap_or_else(PoisonError::into_inner)
                        .0
                }
            };
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
