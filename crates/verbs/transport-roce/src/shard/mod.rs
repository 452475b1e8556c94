//! A shard: packet ports and the queue pairs whose packets leave by them, worked on by one thread
//! at a time, whichever has the time.
//!
//! Who finds it taken leaves a word at its gate, which the shard's present holder reads when it lets go.
//! The order of locks: [`crate::locks`].

pub mod brought;
pub mod burst;
pub mod common;
pub mod emit;
pub mod gate;
pub mod intake;
pub mod worker;

use std::sync::Arc;

use sluice_packet::Port;
use sluice_planner::posts;
use sluice_verbs::{Aftermath, SendDone};
use sluice_xdp::Left;

use crate::baton::{Baton, Hold};
use crate::keyed::{Key, Keyhole};
use crate::locks::Rank;
use crate::shard::common::Common;
use crate::shard::gate::Gate;
use crate::shard::worker::{Poster, Posting, State, Worker};
use crate::shard_set::Set;

/// Packet ports and whose packets leave by them.
pub struct Shard {
    /// What of it is everybody's.
    pub gate: Arc<Gate>,
    hole: Keyhole,
    state: Baton<State>,
}

impl Shard {
    pub fn new(gate: Arc<Gate>, ports: Vec<Box<dyn Port>>) -> Self {
        let state = State::new(ports);
        Self {
            gate,
            hole: state.key.hole(),
            state: Baton::new(Rank::Shard, state),
        }
    }

    /// Receives, answers, sends. `handed` gets the shards that packets came for; somebody must see
    /// to these.
    pub fn work(
        &self,
        common: &Common,
        worker: Worker,
        handed: &mut Set,
        after: &mut Aftermath,
    ) -> Option<usize> {
        let gate = &*self.gate;
        let mut came = 0;
        let mut rounds = 0;
        loop {
            let Some(mut state) = self.state.try_take() else {
                return (rounds > 0).then_some(came);
            };
            gate.burst.end();
            match worker {
                Worker::Poller => gate.burst.polled(true),
                Worker::Engine { .. } if self.has_left(&state) => gate.burst.polled(false),
                _ => {}
            }
            state.planner.release_due(worker::now);
            if state.planner.owes() {
                state.send(gate, common, None);
            }
            let now_came = state.receive(gate, common, worker);
            if worker == Worker::Leaver {
                state.planner.release();
            }
            came += now_came;
            let idle = now_came == 0 && worker == Worker::Poller && state.has_nothing(gate, common);
            if idle {
                drop(state);
            } else {
                state.report();
                let is_left = worker == Worker::Poller && state.planner.leaves_to_program(now_came);
                if !is_left {
                    state.send(gate, common, None);
                }
                gate.set_deadline(state.due());
                after.append(&mut state.after);
                let mads = core::mem::take(&mut state.mads);
                handed.add(core::mem::take(&mut state.handed));
                drop(state);
                for (path, mad) in mads {
                    common.gsi.came(&path, &mad, false);
                }
            }
            rounds += 1;
            // A note of the meantime is read, also by who found nothing.
            if !gate.is_noted() {
                break;
            }
        }
        if worker == Worker::Poller && came > 0 {
            gate.note_polled(came);
        }
        Some(came)
    }

    /// A program polls. How many packets came, and in `handed` which shards some were for.
    pub fn poll(&self, common: &Common, handed: &mut Set, after: &mut Aftermath) -> usize {
        let came = self
            .work(common, Worker::Poller, handed, after)
            .unwrap_or(0);
        if came > 0 {
            self.gate.wake_for_deadline();
        }
        came
    }

    /// Sends what was noted, by a thread that posts: the engine is not
    /// called. The end of the request that is being posted, if it has ended and nothing else has.
    pub fn send_noted(&self, common: &Common, posting: &Posting) -> Option<SendDone> {
        let gathers = false;
        self.send_by_poster(common, Poster { posting, gathers }, None)
    }

    /// The same for a queue pair that has been posted to, and is noted if it cannot send at once.
    pub fn send_posted(&self, common: &Common, posting: &Posting) -> Option<SendDone> {
        let gate = &*self.gate;
        let gathers = |post| posting.small && gate.burst.gathers(post);
        // A note is in front of the count: who ends the burst takes it, or it counts to the next.
        let noted = gathers(gate.burst.next());
        if noted {
            gate.note(posting.index);
        }
        let post = gate.burst.post();
        if noted && gathers(post) {
            if posts::begins(post) {
                gate.leave();
            }
            return None;
        }
        let mut first = None;
        if !noted {
            first = self.state.try_take();
            match &mut first {
                Some(state) => state.planner.wake(posting.index),
                None => gate.note(posting.index),
            }
        }
        let gathers = !posting.small && gate.burst.is_flowing(post);
        self.send_by_poster(common, Poster { posting, gathers }, first)
    }

    /// `state`: the shard, if it has been taken already.
    fn send_by_poster<'a>(
        &'a self,
        common: &Common,
        poster: Poster<'_>,
        mut state: Option<Hold<'a, State>>,
    ) -> Option<SendDone> {
        let gate = &*self.gate;
        let mut done = None;
        while let Some(mut state) = state.take().or_else(|| self.state.try_take()) {
            let had_gathered = state.planner.has_gathered();
            done = done.or(state.send(gate, common, Some(poster)));
            let left = !had_gathered && state.planner.has_gathered();
            gate.set_deadline(state.due());
            drop(state);
            if left {
                gate.leave();
            }
            if !gate.has_notes() {
                break;
            }
        }
        if !gate.brought.is_empty() {
            // Who brought it found the shard taken, and who posts must not take it in.
            gate.set_deadline(0);
        }
        gate.wake_for_deadline();
        done
    }

    /// Whether a poster has left something.
    fn has_left(&self, state: &State) -> bool {
        state.planner.has_gathered() || self.gate.may_have_notes()
    }

    /// Looks at each port, unless somebody is at work here.
    pub fn try_ports(&self, look: impl FnMut(&dyn Port)) -> Option<()> {
        let state = self.state.try_take()?;
        state.ports.iter().map(|port| &**port).for_each(look);
        drop(state);
        self.see_to_notes();
        Some(())
    }

    /// Does something with what its key opens, behind whoever is at work here.
    pub fn with_key<R>(&self, work: impl FnOnce(&mut Key) -> R) -> R {
        let mut state = self.state.take();
        let result = work(&mut state.key);
        drop(state);
        self.see_to_notes();
        result
    }

    /// The same, unless somebody is at work here.
    pub fn try_with_key<R>(&self, work: impl FnOnce(&mut Key) -> R) -> Option<R> {
        let mut state = self.state.try_take()?;
        let result = work(&mut state.key);
        drop(state);
        self.see_to_notes();
        Some(result)
    }

    /// What the key opens.
    pub fn hole(&self) -> Keyhole {
        self.hole
    }

    /// Who found the shard taken relies on who had it.
    fn see_to_notes(&self) {
        if self.gate.is_noted() {
            self.gate.sleeper.wake();
        }
    }

    /// One more way in and out, and what its interface leaves to sockets. Its place among the ports.
    /// Notes of the meantime are not read: wake the engine thread afterwards.
    pub fn serve(&self, port: Box<dyn Port>, left: Option<Arc<Left>>) -> usize {
        self.state.take().serve(port, left)
    }
}
