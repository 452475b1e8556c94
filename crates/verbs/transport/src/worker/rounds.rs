//! The thread's loop.
//!
//! No wake-up is lost because each step relies on the one before it:
//!
//! 1. [`Work::awakes`]: it is awake. From here on nobody wakes it, so all that was left until now must
//!    be found by the look behind it.
//! 2. [`Work::look`]: it does what there is.
//! 3. [`Work::announce`]: it says whether it sleeps. Who brings work from now on wakes it. Work that
//!    was brought between the look and this has woken nobody: where bringing it leaves no trace that
//!    the kernel keeps, as a readable descriptor does, `announce` looks once more. Both sides write
//!    first and look then, in one order.
//! 4. [`Work::until`]: it says until when it sleeps. The same with deadlines: whoever sets one looks
//!    at that behind it, and the thread looks at the deadlines once more behind saying so.
//! 5. [`Work::wait`]: it blocks. What wakes it are descriptors that stay readable until step 6, so
//!    that it makes no difference whether they became so before or after this.
//! 6. [`Work::events`]: what is readable is made unreadable, in front of the next look.

use std::sync::{Arc, Weak};
use std::time::Duration;

use sluice_sys::clock::now_ns;
use sluice_sys::errno::Errno;
use sluice_sys::process::{ask_for_slices, block_signals, change_processor};
use sluice_sys::wake::Epoll;
use sluice_waiting::limits::LIMITS;

use super::control::Control;
use super::policy::{Manner, Policy, Rest};
use crate::timers::Timers;

/// What a look is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Look<const SIDES: usize> {
    /// The one of a round; programs have polled these sides since the last.
    Round {
        /// By side.
        polled: [bool; SIDES],
    },
    /// One of many, while the next work is expected: so many were before it.
    Again {
        /// From 0 on.
        looks: u32,
    },
}

/// What has ended a wait.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Woken {
    /// How many things are there for [`Work::events`].
    pub count: usize,
    /// Work is among them.
    pub by_work: bool,
}

impl Woken {
    /// Sleeps on `epoll`, whose tokens say what [`Work::events`] is to see to; `timers` are awake again
    /// then.
    pub fn by<T: Copy + Ord>(
        epoll: &Epoll,
        tokens: &mut [u64; 64],
        timers: &Timers<T>,
        timeout_ns: Option<u64>,
    ) -> Woken {
        let ready = epoll.wait(tokens, timeout_ns);
        let count = ready.map_or(0, <[u64]>::len);
        timers.awake();
        Woken {
            count,
            by_work: false,
        }
    }
}

/// What a transport's thread does, in the order in which it is asked for it.
pub trait Work<const SIDES: usize>: Send {
    /// The transport's share of the process. The thread ends with it.
    type Node: Send + Sync + 'static;

    /// In what its threads differ from others'.
    const MANNER: Manner;

    /// What others tell the thread.
    fn control(node: &Self::Node) -> &Control;

    /// How much programs have taken by polling so far, by side.
    fn polled(&self, node: &Self::Node) -> [u64; SIDES];

    /// It is awake: nobody wakes it for what it is about to find.
    fn awakes(&mut self, node: &Self::Node);

    /// Does what there is. How much it was, by side; `None`: somebody else is at it.
    fn look(&mut self, node: &Self::Node, look: Look<SIDES>) -> Option<[usize; SIDES]>;

    /// Whether all that the last look left waits for the program, so that being woken for more of it
    /// would be in vain.
    fn is_spared(&self) -> bool {
        false
    }

    /// What else is to be done now and then. `busy`: there was traffic lately.
    fn chores(&mut self, _node: &Self::Node, _now: u64, _busy: bool) {}

    /// Says that it sleeps from now on, or only watches. True: there was something after all, and it
    /// does not rest.
    fn announce(&mut self, node: &Self::Node, sleeps: bool) -> bool;

    /// Says until when it rests, nanoseconds ([`u64::MAX`]: until it is woken), and what that is.
    /// None: something was set in between that did not see for how long, and is due before.
    fn until(&mut self, node: &Self::Node, sleeps: bool, now: u64) -> Option<u64>;

    /// Blocks until it is woken, `timeout_ns` at most.
    fn wait(&mut self, node: &Self::Node, sleeps: bool, timeout_ns: Option<u64>) -> Woken;

    /// Sees to what has ended the last wait, which is `woken`.
    fn events(&mut self, node: &Self::Node, woken: Woken);
}

/// Starts a thread of that name. It ends when the node is gone or told to stop.
pub fn start<const SIDES: usize, W: Work<SIDES> + 'static>(
    node: &Arc<W::Node>,
    name: String,
    work: W,
) -> Result<(), Errno> {
    let weak = Arc::downgrade(node);
    std::thread::Builder::new()
        .name(name)
        .spawn(move || {
            block_signals();
            if let Some(slice) = W::MANNER.slice_ns {
                // A peer waits for what it is woken for; without, it is only served later.
                let _ = ask_for_slices(slice);
            }
            Rounds::new(work).run(&weak);
        })
        .map(drop)
        .map_err(|error| Errno(error.raw_os_error().unwrap_or(libc::EAGAIN)))
}

/// What a system call takes that does nothing, nanoseconds.
fn call_ns() -> u64 {
    let mut tokens = [0; 64];
    let Ok(nothing) = Epoll::new() else {
        return 0;
    };
    let mut least = u64::MAX;
    for _ in 0..16 {
        let began = now_ns();
        let _ = nothing.wait(&mut tokens, Some(0));
        least = least.min(now_ns().saturating_sub(began));
    }
    least
}

struct Rounds<const SIDES: usize, W: Work<SIDES>> {
    work: W,
    policy: Policy<SIDES>,
}

impl<const SIDES: usize, W: Work<SIDES>> Rounds<SIDES, W> {
    fn new(work: W) -> Self {
        let (call_ns, processors) = if W::MANNER.looks_on {
            let processors = std::thread::available_parallelism();
            (call_ns(), processors.map_or(1, |it| it.get() as u32))
        } else {
            (0, 1)
        };
        Self {
            work,
            policy: Policy::new(W::MANNER, call_ns, processors),
        }
    }

    fn run(&mut self, weak: &Weak<W::Node>) {
        while let Some(node) = weak.upgrade() {
            if W::control(&node).is_stopped() {
                return;
            }
            self.round(&node);
        }
    }

    /// From one sleep to the next.
    fn round(&mut self, node: &W::Node) {
        self.work.awakes(node);
        let polled = self.policy.begins(self.work.polled(node));
        let found = self.work.look(node, Look::Round { polled });
        let now = now_ns();
        self.policy.looked(now, polled, found);
        self.work.chores(node, now, self.policy.is_busy());
        let armed = W::control(node).is_armed();
        let sleeps = self.policy.sleeps(armed, self.work.is_spared());
        let first = if W::MANNER.looks_on_first {
            let Some(rest) = self.looks_on(node, now, sleeps) else {
                return;
            };
            Some(rest)
        } else {
            None
        };
        if self.work.announce(node, sleeps) {
            return;
        }
        if let Some(rest) = first.or_else(|| self.looks_on(node, now_ns(), sleeps)) {
            self.rest(node, rest);
        }
    }

    /// Looks on if it is worth it. How it rests then; `None`: it does not, as it has found something.
    fn looks_on(&mut self, node: &W::Node, now: u64, sleeps: bool) -> Option<Rest> {
        let rest = self.policy.rest(now, sleeps);
        if let Rest::LookOn { until_ns } = rest
            && let Some(found) = self.look_on(node, until_ns)
        {
            self.policy.found_more(now_ns(), found);
            return None;
        }
        Some(rest)
    }

    /// Looks for work until some comes or the time is over: how much came, if any. Where it has said that
    /// it sleeps, it would be woken.
    fn look_on(&mut self, node: &W::Node, until_ns: u64) -> Option<[usize; SIDES]> {
        let mut looks = 0_u32;
        loop {
            let found = self.work.look(node, Look::Again { looks });
            if found.is_some_and(|found| found != [0; SIDES]) {
                return found;
            }
            let before = now_ns();
            if before >= until_ns || W::control(node).is_stopped() {
                return None;
            }
            looks += 1;
            if u64::from(looks).is_multiple_of(LIMITS.yield_looks) {
                std::thread::yield_now();
                let moves = || change_processor() == Ok(true);
                if !self.policy.yielded(before, now_ns(), moves) {
                    return None;
                }
            }
            core::hint::spin_loop();
        }
    }

    /// Sleeps or watches, and sees to what has ended that.
    fn rest(&mut self, node: &W::Node, rest: Rest) {
        let sleeps = rest != Rest::Watch;
        let now = now_ns();
        let Some(until_ns) = self.work.until(node, sleeps, now) else {
            return;
        };
        let mut timeout = (until_ns != u64::MAX).then(|| until_ns.saturating_sub(now));
        if let Rest::Nap { in_vain } = rest
            && until_ns > now + LIMITS.nap_ns
        {
            if in_vain {
                std::thread::sleep(Duration::from_nanos(LIMITS.nap_ns));
            }
            timeout = Some(0);
        }
        let mut woken = self.work.wait(node, sleeps, timeout);
        for _ in 0..W::MANNER.watches_left_out {
            if sleeps || woken.count > 0 {
                self.policy.is_wanted();
                break;
            }
            if !self.policy.is_left_out(self.work.polled(node)) {
                break;
            }
            self.work.chores(node, now_ns(), false);
            woken = self.work.wait(node, sleeps, timeout);
        }
        if sleeps && woken.by_work {
            self.policy.woken(now_ns());
        }
        self.work.events(node, woken);
    }
}

#[cfg(test)]
mod tests;
