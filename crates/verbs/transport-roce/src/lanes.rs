//! All lanes of a transport, and what one of them leaves to another.
//!
//! A queue pair is on the lane that its number leaves as the remainder, so that whoever has a
//! packet in hand, the kernel included ([`sluice_packet::UdpPort::open_group`]), knows where
//! it belongs from its header alone.

use core::ops::Index;
use std::sync::Arc;

use sluice_packet::{Port, Received};
use sluice_sys::process::now_ns;
use sluice_verbs::{Aftermath, Handed, SendDone};

use crate::completions::{Completions, Sources};
use crate::lane::Lane;
use crate::lane::common::Common;
use crate::lane::gate::Gate;
use crate::lane::worker::{Posting, SMALL_BYTES, Worker};
use crate::lane_set::Set;
use crate::queue_pair::machine::Machine;
use crate::queue_pair::part::Part;

/// So many packets from another lane are taken in by who brings them, if the lane's thread sleeps:
/// to wake it takes longer. Behind more there are more to come, and two threads are better.
const BROUGHT_FEW: usize = 8;

/// How long who ends waits for whoever is at it.
const SETTLE_NS: u64 = 20_000_000;

/// The lanes of a transport.
pub struct Lanes {
    pub common: Common,
    /// At least one.
    each: Box<[Lane]>,
}

impl Index<usize> for Lanes {
    type Output = Lane;

    fn index(&self, lane: usize) -> &Lane {
        &self.each[lane]
    }
}

impl Lanes {
    /// `ports`: those of each lane, as many as `common` has gates.
    pub fn new(common: Common, ports: Vec<Vec<Box<dyn Port>>>) -> Self {
        let gates = common.gates.iter().map(Arc::clone);
        let each = gates.zip(ports).map(|(gate, ports)| Lane::new(gate, ports));
        let each = each.collect();
        Self { common, each }
    }

    pub fn count(&self) -> usize {
        self.each.len()
    }

    pub fn iter(&self) -> impl Iterator<Item = &Lane> {
        self.each.iter()
    }

    /// The lane that has what is the whole transport's: queue pair 1, groups, neighbours.
    pub fn first(&self) -> &Lane {
        &self.each[0]
    }

    fn gate(&self, lane: usize) -> &Gate {
        &self.each[lane].gate
    }

    /// A lane receives, answers, sends, and has others take what came for them. How many packets
    /// came; None: somebody else is at it.
    pub fn progress(&self, lane: usize, worker: Worker, after: &mut Aftermath) -> Option<usize> {
        let mut handed = Set::default();
        let came = self.each[lane].work(&self.common, worker, &mut handed, after);
        for other in handed {
            self.expect_brought(other, came.unwrap_or(0) <= BROUGHT_FEW, after);
        }
        came
    }

    /// Takes in a packet that another process got, or has whoever is at it take it. By an engine
    /// thread.
    pub fn inject(&self, lane: usize, received: &Received<'_>, after: &mut Aftermath) {
        self.gate(lane).bring(received);
        self.progress(lane, Worker::Engine { udp: false }, after);
    }

    /// Has what was handed over taken in: by whoever is at it, who finds it when he lets go; by
    /// who polls next, which costs no call of the kernel; where nobody does by this thread, which
    /// holds no lane, or by the lane's own. `few`: it is not worth waking that.
    fn expect_brought(&self, lane: usize, few: bool, after: &mut Aftermath) {
        let gate = self.gate(lane);
        if few && gate.sleeper.is_asleep() {
            self.progress(lane, Worker::Bringer, after);
        } else {
            gate.set_deadline(0);
        }
        gate.wake_for_deadline();
    }

    /// Does something with a queue pair's machine, behind whoever works on its lane. Without any lock.
    pub fn with_machine<R>(&self, part: &Part, work: impl FnOnce(&mut Machine) -> R) -> R {
        self.each[part.lane].with_key(|key| work(part.machine(key)))
    }

    /// A queue pair was given requests. The end of the last, if that is all there is to tell. Several at
    /// once are looked at now, as a large one is.
    pub fn posted(&self, part: &Part, handed: &Handed) -> Option<SendDone> {
        let posting = Posting {
            index: part.index,
            seq: handed.seq,
            small: handed.count == 1 && handed.longest <= SMALL_BYTES,
        };
        self.each[part.lane].send_posted(&self.common, &posting)
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

    /// A poll of a completion queue found nothing: looks at the ports of the lanes that its
    /// completions come from. How many packets came.
    pub fn poll(&self, completions: &Completions, queue: &Sources, after: &mut Aftermath) -> usize {
        let mut handed = Set::default();
        if let [only] = &*self.each {
            return only.poll(&self.common, &mut handed, after);
        }
        let mut came = 0;
        let polled = self.of(completions, queue);
        for lane in polled {
            came += self.each[lane].poll(&self.common, &mut handed, after);
            // What the ones before had for it has been taken in.
            handed.remove(lane);
        }
        for lane in handed {
            // To one that was polled already this thread comes back: none has to be woken.
            let few = came <= BROUGHT_FEW || polled.contains(lane);
            self.expect_brought(lane, few, after);
        }
        came
    }

    /// The lanes where packets may be that end in a completion in this queue.
    fn of(&self, completions: &Completions, queue: &Sources) -> Set {
        let all = Set::first(self.each.len());
        let own = completions.sources(queue);
        if own.is_empty() {
            // Somebody polls, for whatever reason: it is everybody's gain.
            return all;
        }
        let fed = own.map(|lane| self.gate(lane).fed_by().0);
        Set(fed.fold(own.0, |set, by| set | by) & all.0)
    }

    /// The threads of the lanes where packets may be that end in a completion in this queue must hear of
    /// every packet from now on.
    pub fn wake_to_hear(&self, completions: &Completions, queue: &Sources) {
        for lane in self.of(completions, queue) {
            self.gate(lane).sleeper.wake_to_hear();
        }
    }

    /// All threads are woken.
    pub fn wake(&self) {
        for lane in &self.each {
            lane.gate.sleeper.wake();
        }
    }

    /// Sends what is due on a lane, behind whoever is at it now: what came is answered before its queue
    /// pair, or the process, is gone. Not for long.
    pub fn settle_one(&self, lane: usize, after: &mut Aftermath) {
        let until = now_ns() + SETTLE_NS;
        while now_ns() < until {
            if self.progress(lane, Worker::Leaver, after).is_some() {
                return;
            }
            std::thread::yield_now();
        }
    }

    /// The same on every lane.
    pub fn settle(&self, after: &mut Aftermath) {
        for lane in 0..self.each.len() {
            self.settle_one(lane, after);
        }
    }

    /// Takes in what waits at every lane's ports, the UDP sockets too, until nothing does. What is
    /// another process's is handed on, and would be lost when the sockets are closed. Not for long: peers
    /// may send more than that.
    pub fn drain(&self, after: &mut Aftermath) {
        for lane in 0..self.each.len() {
            self.drain_one(lane, after);
        }
    }

    fn drain_one(&self, lane: usize, after: &mut Aftermath) {
        let until = now_ns() + SETTLE_NS;
        while now_ns() < until {
            match self.progress(lane, Worker::Engine { udp: true }, after) {
                Some(0) => return,
                Some(_) => {}
                None => std::thread::yield_now(),
            }
        }
    }
}
