//! A queue pair, as the lanes see it: what was posted, and the machine that one thread at a time
//! works.

use core::ops::{Deref, DerefMut};
use std::sync::{Mutex, MutexGuard};

use sluice_protocol::Operation;
use sluice_verbs::transport::QpParams;
use sluice_verbs::{Aftermath, QpType, Wqe};

use crate::completions::Member;
use crate::counters::Seen;
use crate::locks::{Rank, Ranked, lock, try_lock};
use crate::queue_pair::machine::Machine;
use crate::queue_pair::requests::{Outbox, To};

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
}

/// The machine, in this thread's hands.
pub struct Held<'a> {
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
        }
    }

    /// The machine. Not twice in one thread, and not with the send half's lock held.
    pub fn lock(&self) -> Held<'_> {
        let rank = Rank::Machine.wait();
        Held {
            machine: lock(&self.machine),
            _rank: rank,
        }
    }

    /// The machine, if nobody has it.
    pub fn try_lock(&self) -> Option<Held<'_>> {
        let machine = try_lock(&self.machine)?;
        Some(Held {
            machine,
            _rank: Rank::Machine.got(),
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

    /// SQE, as [`Machine::stop_sending`].
    pub fn stop_sending(&self) {
        self.flush().stop_sending();
    }

    /// ERR, as [`Machine::stop`].
    pub fn stop(&self, after: &mut Aftermath) {
        self.flush().stop(after);
    }

    /// RESET, as [`Machine::clear`].
    pub fn clear(&self, after: &mut Aftermath) {
        self.flush().clear(after);
    }

    /// Requests that nobody has looked at are flushed by the engine; the machine is to do the rest.
    fn flush(&self) -> Held<'_> {
        lock(&self.outbox).clear();
        self.lock()
    }

    /// It is about to be gone, and in nobody's tables. What it has seen.
    pub fn end(&self, after: &mut Aftermath) -> Seen {
        let mut machine = self.flush();
        machine.clear(after);
        machine.qp = None;
        machine.take_seen()
    }
}
