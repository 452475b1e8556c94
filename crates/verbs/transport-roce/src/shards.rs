//! All shards of a transport, and what one of them leaves to another.
//!
//! A queue pair is on the shard that its number leaves as the remainder, so that whoever has a
//! packet in hand, the kernel included ([`sluice_packet::UdpPort::open_group`]), knows where
//! it belongs from its header alone.

use core::ops::Index;
use std::sync::Arc;

use sluice_packet::{Port, Received};
use sluice_sys::clock::now_ns;
use sluice_verbs::{Aftermath, Handed, SendDone};

use crate::completions::{Completions, Sources};
use crate::queue_pair::machine::Machine;
use crate::queue_pair::part::Part;
use crate::shard::Shard;
use crate::shard::common::Common;
use crate::shard::gate::Gate;
use crate::shard::worker::{Posting, SMALL_BYTES, Worker};
use crate::shard_set::Set;

/// So many packets from another shard are taken in by who brings them, if the shard's thread sleeps:
/// to wake it takes longer. Behind more there are more to come, and two threads are better.
const BROUGHT_FEW: usize = 8;

/// How long who ends waits for whoever is at it.
const LEAVE_NS: u64 = 20_000_000;

/// The shards of a transport.
pub struct Shards {
    pub common: Common,
    /// At least one.
    each: Box<[Shard]>,
}

impl Index<usize> for Shards {
    type Output = Shard;

    fn index(&self, shard: usize) -> &Shard {
        &self.each[shard]
    }
}

impl Shards {
    /// `ports`: those of each shard, as many as `common` has gates.
    pub fn new(common: Common, ports: Vec<Vec<Box<dyn Port>>>) -> Self {
        let gates = common.gates.iter().map(Arc::clone);
        let each = gates
            .zip(ports)
            .map(|(gate, ports)| Shard::new(gate, ports));
        let each = each.collect();
        Self { common, each }
    }

    pub fn count(&self) -> usize {
        self.each.len()
    }

    pub fn iter(&self) -> impl Iterator<Item = &Shard> {
        self.each.iter()
    }

    /// The shard that has what is the whole transport's: queue pair 1, groups, neighbours.
    pub fn first(&self) -> &Shard {
        &self.each[0]
    }

    fn gate(&self, shard: usize) -> &Gate {
        &self.each[shard].gate
    }

    /// A shard receives, answers, sends, and has others take what came for them. How many packets
    /// came; None: somebody else is at it.
    pub fn progress(&self, shard: usize, worker: Worker, after: &mut Aftermath) -> Option<usize> {
        let mut handed = Set::default();
        let came = self.each[shard].work(&self.common, worker, &mut handed, after);
        for other in handed {
            self.expect_brought(other, came.unwrap_or(0) <= BROUGHT_FEW, after);
        }
        came
    }

    /// Takes in a packet that another process got, or has whoever is at it take it. By an engine
    /// thread.
    pub fn inject(&self, shard: usize, received: &Received<'_>, after: &mut Aftermath) {
        self.gate(shard).bring(received);
        self.progress(shard, Worker::Engine { udp: false }, after);
    }

    /// Has what was handed over taken in: by whoever is at it, who finds it when he lets go; by
    /// who polls next, which costs no call of the kernel; where nobody does by this thread, which
    /// holds no shard, or by the shard's own. `few`: it is not worth waking that.
    fn expect_brought(&self, shard: usize, few: bool, after: &mut Aftermath) {
        let gate = self.gate(shard);
        if few && gate.sleeper.is_asleep() {
            self.progress(shard, Worker::Bringer, after);
        } else {
            gate.set_deadline(0);
        }
        gate.wake_for_deadline();
    }

    /// Does something with a queue pair's machine, behind whoever works on its shard. Without any lock.
    pub fn with_machine<R>(&self, part: &Part, work: impl FnOnce(&mut Machine) -> R) -> R {
        self.each[part.shard].with_key(|key| work(part.machine(key)))
    }

    /// A queue pair was given requests. The end of the last, if that is all there is to tell. Several at
    /// once are looked at now, as a large one is.
    pub fn posted(&self, part: &Part, handed: &Handed) -> Option<SendDone> {
        let posting = Posting {
            index: part.index,
            seq: handed.seq,
            small: handed.count == 1 && handed.longest <= SMALL_BYTES,
        };
        self.each[part.shard].send_posted(&self.common, &posting)
    }

    /// Sends what was put into queues that belong to no queue pair.
    pub fn send_waiting(&self) {
        let nobody = Posting {
            index: usize::MAX,
            seq: 0,
            small: false,
        };
        self.first().send_noted(&self.common, &nobody);
    }

    /// A poll of a completion queue found nothing: looks at the ports of the shards that its
    /// completions come from. How many packets came.
    pub fn poll(&self, completions: &Completions, queue: &Sources, after: &mut Aftermath) -> usize {
        let mut handed = Set::default();
        if let [only] = &*self.each {
            return only.poll(&self.common, &mut handed, after);
        }
        let mut came = 0;
        let polled = self.of(completions, queue);
        for shard in polled {
            came += self.each[shard].poll(&self.common, &mut handed, after);
            // What the ones before had for it has been taken in.
            handed.remove(shard);
        }
        for shard in handed {
            // To one that was polled already this thread comes back: none has to be woken.
            let few = came <= BROUGHT_FEW || polled.contains(shard);
            self.expect_brought(shard, few, after);
        }
        came
    }

    /// The shards where packets may be that end in a completion in this queue.
    fn of(&self, completions: &Completions, queue: &Sources) -> Set {
        let all = Set::first(self.each.len());
        let own = completions.sources(queue);
        if own.is_empty() {
            // Somebody polls, for whatever reason: it is everybody's gain.
            return all;
        }
        let fed = own.map(|shard| self.gate(shard).fed_by().0);
        Set(fed.fold(own.0, |set, by| set | by) & all.0)
    }

    /// The threads of the shards where packets may be that end in a completion in this queue must hear of
    /// every packet from now on.
    pub fn wake_to_hear(&self, completions: &Completions, queue: &Sources) {
        for shard in self.of(completions, queue) {
            self.gate(shard).sleeper.wake_to_hear();
        }
    }

    /// All threads are woken.
    pub fn wake(&self) {
        for shard in &self.each {
            shard.gate.sleeper.wake();
        }
    }

    /// Sends what is due on a shard, behind whoever is at it now: what came is answered before its queue
    /// pair, or the process, is gone. Not for long.
    pub fn send_due(&self, shard: usize, after: &mut Aftermath) {
        let until = now_ns() + LEAVE_NS;
        while now_ns() < until {
            if self.progress(shard, Worker::Leaver, after).is_some() {
                return;
            }
            std::thread::yield_now();
        }
    }

    /// The same on every shard.
    pub fn send_all_due(&self, after: &mut Aftermath) {
        for shard in 0..self.each.len() {
            self.send_due(shard, after);
        }
    }

    /// Takes in what waits at every shard's ports, the UDP sockets too, until nothing does. What is
    /// another process's is handed on, and would be lost when the sockets are closed. Not for long: peers
    /// may send more than that.
    pub fn drain(&self, after: &mut Aftermath) {
        for shard in 0..self.each.len() {
            self.drain_one(shard, after);
        }
    }

    fn drain_one(&self, shard: usize, after: &mut Aftermath) {
        let until = now_ns() + LEAVE_NS;
        while now_ns() < until {
            match self.progress(shard, Worker::Engine { udp: true }, after) {
                Some(0) => return,
                Some(_) => {}
                None => std::thread::yield_now(),
            }
        }
    }
}
