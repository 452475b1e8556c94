//! Fair turns for the connections of one port: deficit round robin (Shreedhar and Varghese,
//! SIGCOMM 1995) by bytes, with connections that wait for their pace left out until it is time.

use alloc::collections::{BinaryHeap, VecDeque};
use alloc::vec::Vec;
use core::cmp::Reverse;

use sluice_protocol::Instant;

/// What a connection does when it has no turn.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum State {
    /// It has nothing to send.
    #[default]
    Idle,
    /// It is in the queue.
    Ready,
    /// It is in the heap, with that number.
    Waiting(u64),
}

#[derive(Clone, Copy, Debug, Default)]
struct Flow {
    state: State,
    /// Bytes that it may send in its turn; less than 0 for what it sent beyond.
    deficit: i64,
}

/// Whose turn it is. Connections have small numbers that the driver chooses; the tables grow with
/// the largest. Every call takes time that does not grow with the number of connections, except by
/// the logarithm of those that wait.
#[derive(Debug)]
pub struct Scheduler {
    quantum: i64,
    flows: Vec<Flow>,
    queue: VecDeque<usize>,
    /// Whoever waits for a time. Entries whose number is not the flow's any more are void.
    waiting: BinaryHeap<Reverse<(Instant, u64, usize)>>,
    waits: u64,
}

impl Scheduler {
    /// The least quantum: no packet is larger on the link (MTU 4096, all headers, IPv6, VLAN).
    pub const QUANTUM_MIN: u32 = 4608;

    /// `quantum`: bytes of a turn, at least [`Scheduler::QUANTUM_MIN`], so that what a packet
    /// took too much is paid by sitting out one turn's bytes. Small is fair, large is cheap.
    pub fn new(quantum: u32) -> Self {
        Self {
            quantum: i64::from(quantum.max(Self::QUANTUM_MIN)),
            flows: Vec::new(),
            queue: VecDeque::new(),
            waiting: BinaryHeap::new(),
            waits: 0,
        }
    }

    fn flow(&mut self, id: usize) -> &mut Flow {
        if id >= self.flows.len() {
            self.flows.resize(id + 1, Flow::default());
        }
        &mut self.flows[id]
    }

    /// The connection may have something to send.
    pub fn wake(&mut self, id: usize) {
        let flow = self.flow(id);
        if flow.state != State::Ready {
            flow.state = State::Ready;
            self.queue.push_back(id);
        }
    }

    /// Whose turn it is. Ask it for a packet, then call one of [`Scheduler::sent`],
    /// [`Scheduler::idle`] and [`Scheduler::wait`].
    pub fn turn(&mut self, now: Instant) -> Option<usize> {
        self.wake_due(now);
        let id = *self.queue.front()?;
        let quantum = self.quantum;
        let flow = self.flow(id);
        // A debt is less than a packet, so that this makes it good.
        if flow.deficit <= 0 {
            flow.deficit += quantum;
        }
        Some(id)
    }

    fn wake_due(&mut self, now: Instant) {
        while let Some(Reverse((until, wait, id))) = self.waiting.peek().copied() {
            if until > now {
                break;
            }
            self.waiting.pop();
            if self.flow(id).state == State::Waiting(wait) {
                self.wake(id);
            }
        }
    }

    /// It has sent a packet of so many bytes on the link. Whether its turn goes on.
    pub fn sent(&mut self, id: usize, bytes: u32) -> bool {
        let flow = self.flow(id);
        flow.deficit -= i64::from(bytes);
        if flow.deficit <= 0 && self.queue.front() == Some(&id) {
            self.queue.rotate_left(1);
        }
        self.queue.front() == Some(&id)
    }

    fn leave(&mut self, id: usize, state: State) {
        let flow = self.flow(id);
        let was_ready = flow.state == State::Ready;
        flow.state = state;
        // Turns cannot be saved up.
        flow.deficit = flow.deficit.min(0);
        if was_ready {
            if self.queue.front() == Some(&id) {
                self.queue.pop_front();
            } else {
                self.queue.retain(|other| *other != id);
            }
        }
    }

    /// It has nothing to send until it is woken.
    pub fn idle(&mut self, id: usize) {
        self.leave(id, State::Idle);
    }

    /// It may not send before that time; or until it is woken.
    pub fn wait(&mut self, id: usize, until: Instant) {
        self.waits += 1;
        let wait = self.waits;
        self.leave(id, State::Waiting(wait));
        self.waiting.push(Reverse((until, wait, id)));
        self.drop_void_waits();
    }

    /// Void entries are dropped when they are more than the others, so that they do not pile up.
    fn drop_void_waits(&mut self) {
        if self.waiting.len() > 2 * self.flows.len() {
            let flows = &self.flows;
            self.waiting.retain(|Reverse((_, wait, id))| {
                flows
                    .get(*id)
                    .is_some_and(|flow| flow.state == State::Waiting(*wait))
            });
        }
    }

    /// When the next waiting connection is due, if none is ready; may be too early.
    pub fn deadline(&self) -> Option<Instant> {
        self.waiting.peek().map(|Reverse((until, _, _))| *until)
    }

    /// Nobody is ready but the one whose turn it is.
    pub fn is_last(&self) -> bool {
        self.queue.len() == 1
    }

    /// Nobody is ready.
    pub fn is_idle(&self) -> bool {
        self.queue.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        /// Connections that always have something to send get the same number of bytes, whatever
        /// the size of their packets. Catches: turns counted in packets.
        #[test]
        fn bytes_are_shared_evenly(
            sizes in prop::collection::vec(64u32..4600, 2..20),
            quantum in 64u32..10_000,
        ) {
            let mut scheduler = Scheduler::new(quantum);
            for id in 0..sizes.len() {
                scheduler.wake(id);
            }
            let mut bytes = alloc::vec![0u64; sizes.len()];
            for _ in 0..sizes.len() * 2000 {
                let id = scheduler.turn(Instant::default()).unwrap();
                scheduler.sent(id, sizes[id]);
                bytes[id] += u64::from(sizes[id]);
            }
            let (least, most) = (bytes.iter().min().unwrap(), bytes.iter().max().unwrap());
            // One turn and the packet with which it ends.
            let apart = u64::from(quantum.max(Scheduler::QUANTUM_MIN) + sizes.iter().max().unwrap());
            prop_assert!(most - least <= apart, "{:?}", bytes);
        }

        /// Nobody is forgotten, nobody is twice in the queue, and waits do not pile up.
        #[test]
        fn any_order_of_calls(steps in prop::collection::vec((0usize..5, 0u8..5, 0u64..50), 1..300)) {
            let mut scheduler = Scheduler::new(1000);
            let mut now = Instant::default();
            for (id, step, time) in steps {
                match step {
                    0 => scheduler.wake(id),
                    1 => scheduler.idle(id),
                    2 => scheduler.wait(id, now.after_nanos(time)),
                    3 => now = now.after_nanos(time),
                    _ => if let Some(id) = scheduler.turn(now) {
                        prop_assert_eq!(scheduler.flows[id].state, State::Ready);
                        scheduler.sent(id, 700);
                    },
                }
                let ready = scheduler.flows.iter().filter(|flow| flow.state == State::Ready);
                prop_assert_eq!(ready.count(), scheduler.queue.len());
                prop_assert!(scheduler.waiting.len() <= 2 * scheduler.flows.len() + 1);
                for (id, flow) in scheduler.flows.iter().enumerate() {
                    if let State::Waiting(wait) = flow.state {
                        let found = scheduler.waiting.iter().any(|Reverse((_, w, i))| (*w, *i) == (wait, id));
                        prop_assert!(found);
                    }
                }
            }
        }
    }
}
