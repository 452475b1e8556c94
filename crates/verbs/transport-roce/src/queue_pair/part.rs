//! A queue pair, as the lanes see it: what was posted, and the machine that one thread at a time
//! works.

use core::ops::{Deref, DerefMut};
use core::sync::atomic::{AtomicU8, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard};

use sluice_protocol::Operation;
use sluice_verbs::transport::QpParams;
use sluice_verbs::{QpType, Wqe};

use crate::completions::Member;
use crate::counters::Seen;
use crate::locks::{Rank, Ranked, lock, try_lock};
use crate::queue_pair::machine::Machine;
use crate::queue_pair::requests::{Outbox, To};

/// Asked for while the machine was in use further up the same stack.
const STOP_SENDING: u8 = 1;
const STOP: u8 = 2;
const CLEAR: u8 = 4;

/// A queue pair.
pub struct Part {
    pub qpn: u32,
    /// Its number among the transport's queue pairs, for the scheduler.
    pub index: usize,
    pub kind: QpType,
    /// The lane that works on it.
    pub lane: usize,
    /// Tells its completion queues of the lane.
    _member: Member,
    outbox: Mutex<Outbox>,
    machine: Mutex<Machine>,
    /// Which thread holds the machine; 0: none.
    holder: AtomicU64,
    asked: AtomicU8,
}

/// The machine, in this thread's hands. What was asked for in the meantime is done when it is
/// let go.
pub struct Held<'a> {
    part: &'a Part,
    machine: MutexGuard<'a, Machine>,
    _rank: Ranked,
}

impl Deref for Held<'_> {
    type Target = Machine;

    fn deref(&self) -> &Machine {
        &self.machine
    }
}

impl DerefMut for Held<'_> {
    fn deref_mut(&mut self) -> &mut Machine {
        &mut self.machine
    }
}

impl Drop for Held<'_> {
    fn drop(&mut self) {
        // Only this thread asks while it holds the machine.
        while self.part.asked.load(Ordering::Relaxed) != 0 {
            let asked = self.part.asked.swap(0, Ordering::AcqRel);
            carry_out(&mut self.machine, asked);
        }
        self.part.holder.store(0, Ordering::Release);
    }
}

fn carry_out(machine: &mut Machine, asked: u8) {
    if asked & CLEAR != 0 {
        machine.clear();
    } else if asked & STOP != 0 {
        machine.stop();
    } else if asked & STOP_SENDING != 0 {
        machine.stop_sending();
    }
}

/// A number of the calling thread's own, not 0.
fn this_thread() -> u64 {
    static NEXT: AtomicU64 = AtomicU64::new(1);
    thread_local! {
        // A number without a destructor may be used at any moment of a thread's life.
        static NUMBER: u64 = NEXT.fetch_add(1, Ordering::Relaxed);
    }
    NUMBER.with(|number| *number)
}

impl Part {
    /// `index`: its number among the transport's queue pairs. `lane`: who works on it.
    pub fn new(qpn: u32, index: usize, lane: usize, member: Member, params: &QpParams) -> Self {
        Self {
            qpn,
            index,
            kind: params.qp_type,
            lane,
            _member: member,
            outbox: Mutex::default(),
            machine: Mutex::new(Machine::new(params.cap)),
            holder: AtomicU64::new(0),
            asked: AtomicU8::new(0),
        }
    }

    /// The machine. Not twice in one thread, and not with the send half's lock held.
    pub fn lock(&self) -> Held<'_> {
        let rank = Rank::Machine.wait();
        let machine = lock(&self.machine);
        self.holder.store(this_thread(), Ordering::Relaxed);
        Held {
            part: self,
            machine,
            _rank: rank,
        }
    }

    /// The machine, if nobody has it.
    pub fn try_lock(&self) -> Option<Held<'_>> {
        let machine = try_lock(&self.machine)?;
        let rank = Rank::Machine.got();
        self.holder.store(this_thread(), Ordering::Relaxed);
        Some(Held {
            part: self,
            machine,
            _rank: rank,
        })
    }

    /// Takes a request of the engine's, for whoever works on the queue pair next.
    pub fn push(&self, wqe: &Wqe<'_>, operation: Operation, to: Option<To>) {
        let xrc = self.kind == QpType::XrcSend;
        lock(&self.outbox).push(wqe, operation, to, xrc);
    }

    /// Takes over what was posted.
    pub fn absorb(&self, machine: &mut Machine) {
        machine.absorb(&mut lock(&self.outbox));
    }

    /// Whether this thread is inside of the machine, further up the stack.
    pub fn is_inside(&self) -> bool {
        self.holder.load(Ordering::Relaxed) == this_thread()
    }

    /// Has something done by the machine: now, or, when this thread is inside of it, as soon as
    /// it is let go.
    fn ask(&self, what: u8) {
        if self.is_inside() {
            self.asked.fetch_or(what, Ordering::AcqRel);
        } else {
            carry_out(&mut self.lock(), what);
        }
    }

    /// SQE, as [`Machine::stop_sending`].
    pub fn stop_sending(&self) {
        self.flush(STOP_SENDING);
    }

    /// ERR, as [`Machine::stop`].
    pub fn stop(&self) {
        self.flush(STOP);
    }

    /// RESET, as [`Machine::clear`].
    pub fn clear(&self) {
        self.flush(CLEAR);
    }

    /// Requests that nobody has looked at are flushed by the engine; the machine is asked to do the
    /// rest.
    fn flush(&self, what: u8) {
        lock(&self.outbox).clear();
        self.ask(what);
    }

    /// It is about to be gone, and in nobody's tables. What it has seen, unless it is still at work
    /// further up the stack.
    pub fn end(&self) -> Option<Seen> {
        self.clear();
        if self.is_inside() {
            return None;
        }
        let mut machine = self.lock();
        machine.qp = None;
        Some(machine.take_seen())
    }
}
