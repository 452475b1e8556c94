//! Announcements, matches and releases.

use std::time::Instant;

use sluice_control::message::{Announce, FromDaemon, Lane};
use sluice_sys::unix::{Fd, Received};

use super::Server;
use crate::lanes::{LaneRef, NoLane};
use crate::matching::{Announced, ClientId, EndKey, Outcome, Waiting};
use crate::namespace::{NAMESPACES_MAX, Namespace, Verdict, prove};
use crate::receiver::Brought;
use crate::shares::Payer;
use crate::socket::SocketFacts;

/// Network namespaces of one client that are remembered for proofs.
const NAMESPACES_PER_CLIENT_MAX: usize = 8;

/// Ends that wait for the answer whether a peer may come, at a time.
const ASKING_MAX: usize = 4096;

/// An end that asks whether a peer may still come, and after which hearing it is answered.
#[derive(Debug)]
pub(super) struct Asking {
    key: EndKey,
    generation: u32,
    after: u64,
}

impl Server {
    pub(super) fn announce(
        &mut self,
        id: ClientId,
        announce: &Announce,
        brought: &Brought,
        received: &mut Received,
    ) {
        self.counters.announcements += 1;
        self.note_change();
        let key = EndKey {
            client: id,
            end: announce.end,
        };
        self.lanes.release_former(key, announce.generation);
        let Brought::Connection(facts) = brought else {
            self.counters.announcements_rejected += 1;
            return;
        };
        let has_its_addresses = self.place(id, facts, received.take_fd(0));
        let announced = Announced {
            key,
            generation: announce.generation,
            tuple: facts.tuple,
            domain: facts.domain,
            cookie: facts.cookie,
        };
        let user = self.clients.get(&id).and_then(|client| client.payer);
        let (outcome, displaced) = self.matcher.announce(announced, user);
        self.counters.ends_replaced += displaced.replaced;
        self.counters.ends_forgotten += displaced.forgotten;
        let found = match outcome {
            Outcome::Waits => Vec::new(),
            Outcome::Mirrored(found) => found,
            Outcome::Duplicate => {
                self.counters.announcements_duplicate += 1;
                return;
            }
        };
        // One look each: how many there are is bounded.
        let is_joined = found
            .into_iter()
            .any(|other| self.join_if_proven(other, key));
        // What was found here may have been nobody's other end.
        if !is_joined && has_its_addresses {
            self.announce_to_peers(key);
        }
    }

    /// Keeps the network namespace of a client's connection, which was given unless it is ours. Says
    /// whether the connection's addresses are those that other hosts know.
    fn place(&mut self, id: ClientId, facts: &SocketFacts, namespace: Option<Fd>) -> bool {
        let netns = facts.domain.netns;
        let has_its_addresses = self.fabric.is_some() && self.homes.have(netns, namespace.as_ref());
        self.hold_namespace(id, netns, namespace);
        has_its_addresses
    }

    /// Keeps the namespace of a client's socket, for looks at the socket later on.
    fn hold_namespace(&mut self, id: ClientId, netns: u64, given: Option<Fd>) {
        let Some(client) = self.clients.get(&id) else {
            return;
        };
        let is_own = self.prover.is_own(netns);
        if client.namespaces.contains_key(&netns)
            || !is_own && client.namespaces.len() >= NAMESPACES_PER_CLIENT_MAX
            || !is_own && !self.may_hold_namespace(client.payer)
        {
            return;
        }
        if let Some(namespace) = self.prover.keep(netns, given)
            && let Some(client) = self.clients.get_mut(&id)
        {
            client.namespaces.insert(netns, namespace);
        }
    }

    /// So that nobody holds so many that there are none for others.
    fn may_hold_namespace(&self, payer: Payer) -> bool {
        let Some(user) = payer else {
            return true;
        };
        let own = self.clients.values().filter(|it| it.payer == Some(user));
        let held: usize = own.map(|client| client.namespaces.len()).sum();
        held < NAMESPACES_MAX * self.config.user_share as usize / 100
    }

    pub(super) fn release(&mut self, id: ClientId, end: u32, generation: u32) {
        let key = EndKey { client: id, end };
        if self.matcher.release(key, generation).is_some() {
            self.counters.ends_released += 1;
        }
        self.lanes.release(key, generation);
        self.release_from_peers(key);
    }

    /// Somebody asks whether a peer may still come. What its peer has sent may not have been read
    /// yet, so the answer waits until everybody was heard who has something to say by now.
    pub(super) fn will_answer(&mut self, id: ClientId, end: u32, generation: u32) {
        // Who finds no place asks again.
        if self.asking.len() < ASKING_MAX {
            let after = self.receivers.hear_all(&self.poll, Instant::now());
            self.asking.push_back(Asking {
                key: EndKey { client: id, end },
                generation,
                after,
            });
        }
    }

    /// Answers who has asked long enough ago: programs, and other hosts.
    pub(super) fn answer_due(&mut self) {
        let heard_until = self.receivers.heard_until();
        let is_due = |after: u64| after <= heard_until;
        while let Some(asking) = self.asking.pop_front_if(|it| is_due(it.after)) {
            self.answer_one(asking.key, asking.generation);
        }
        let Some(fabric) = &mut self.fabric else {
            return;
        };
        let marked: usize = self.questions.iter().map(|(_, count)| count).sum();
        let unmarked = fabric.questions().saturating_sub(marked);
        if unmarked > 0 {
            let after = self.receivers.hear_all(&self.poll, Instant::now());
            self.questions.push_back((after, unmarked));
        }
        while let Some((_, count)) = self.questions.pop_front_if(|(after, _)| is_due(*after)) {
            fabric.answer(count);
        }
    }

    fn answer_one(&mut self, key: EndKey, generation: u32) {
        let waits = self.matcher.entry(key).is_some_and(|entry| {
            entry.announced.generation == generation
                && !entry.laned
                && matches!(entry.waiting, Waiting::Peer | Waiting::Other)
        }) && !self.may_come_from_a_peer(key);
        let answer = FromDaemon::NoPeer {
            end: key.end,
            generation,
        };
        if waits && self.send(key.client, &answer, &[]) {
            self.matcher.release(key, generation);
            self.release_from_peers(key);
            self.counters.ends_settled += 1;
        }
    }

    /// Gives two ends of one connection a lane. Returns whether both know of it.
    fn join(&mut self, a: EndKey, b: EndKey) -> bool {
        let (Some(entry_a), Some(entry_b)) = (self.matcher.entry(a), self.matcher.entry(b)) else {
            return false;
        };
        let mut ends = [*entry_a, *entry_b];
        // A process has the same side in all lanes that it shares with another one, because the
        // ready lines of a side are drained by one process alone.
        ends.sort_by_key(|entry| (entry.announced.key.client, entry.order));
        let [first, second] = ends.map(|entry| entry.announced);
        let taken = self.lanes.take([
            (first.key, first.generation),
            (second.key, second.generation),
        ]);
        let lane = match taken {
            Ok(lane) => lane,
            Err(why) => {
                let waiting = match why {
                    NoLane::Full => {
                        self.counters.lanes_refused_full += 1;
                        Waiting::Full
                    }
                    NoLane::Share => {
                        self.counters.lanes_refused_share += 1;
                        Waiting::Share
                    }
                    NoLane::Limit => {
                        self.counters.lanes_refused_limit += 1;
                        Waiting::Limit
                    }
                    NoLane::Memory(error) => {
                        tracing::warn!(reason = %error, "no memory for a lane: {error}");
                        self.counters.lanes_refused_memory += 1;
                        Waiting::Memory
                    }
                };
                self.matcher.set_waiting(a, waiting);
                self.matcher.set_waiting(b, waiting);
                return false;
            }
        };
        if !self.send_lane(&first, second.key.client, lane, 0) {
            self.lanes.take_back(first.key, lane);
            self.lanes.take_back(second.key, lane);
            return self.give_up(a, b);
        }
        if !self.send_lane(&second, first.key.client, lane, 1) {
            // The first end knows of the lane, so it has to release it; since the other never
            // enables it, no byte will pass.
            self.lanes.take_back(second.key, lane);
            return self.give_up(a, b);
        }
        self.matcher.pair(a, b);
        for key in [a, b] {
            self.release_from_peers(key);
        }
        self.counters.matches += 1;
        if first.domain.netns != second.domain.netns {
            self.counters.matches_across_namespaces += 1;
        }
        true
    }

    fn give_up(&mut self, a: EndKey, b: EndKey) -> bool {
        self.counters.lanes_refused_unread += 1;
        self.matcher.set_waiting(a, Waiting::Unread);
        self.matcher.set_waiting(b, Waiting::Unread);
        false
    }

    fn send_lane(&mut self, end: &Announced, peer: ClientId, lane: LaneRef, side: u8) -> bool {
        let client = end.key.client;
        let Some((geometry, chunk)) = self.lanes.chunk_for(lane, client) else {
            return false;
        };
        let peer_program = self.clients.get(&peer).and_then(|c| c.program.as_ref());
        let Some(peer_program) = peer_program else {
            return false;
        };
        let needs_parking = self.lanes.needs_parking(client, peer);
        let mut fds = [0; 2];
        let mut count = 0;
        if let Some(chunk) = chunk {
            fds[count] = chunk.raw();
            count += 1;
        }
        if needs_parking {
            fds[count] = peer_program.parking.raw();
            count += 1;
        }
        let message = FromDaemon::Lane(Lane {
            end: end.key.end,
            generation: end.generation,
            chunk: lane.chunk,
            lane: lane.lane,
            lanes: geometry.lanes(),
            ring_bytes: geometry.ring_bytes(),
            side,
            has_chunk_fd: chunk.is_some(),
            has_parking_fd: needs_parking,
            is_remote: false,
            is_direct: false,
            offset: 0,
            peer,
            peer_pid: peer_program.pid,
            cookie: end.cookie,
        });
        let sent = self.send(client, &message, &fds[..count]);
        if sent {
            self.lanes.set_given(lane, client, peer);
        }
        sent
    }

    /// Joins two ends if the kernel proves that they are one connection's.
    fn join_if_proven(&mut self, a: EndKey, b: EndKey) -> bool {
        let (Some(entry_a), Some(entry_b)) = (self.matcher.entry(a), self.matcher.entry(b)) else {
            return false;
        };
        let ends = [(a, entry_a.order), (b, entry_b.order)];
        let located = |announced| Some((announced, self.namespace_of(announced)?));
        let verdict = match (located(&entry_a.announced), located(&entry_b.announced)) {
            (Some(a), Some(b)) => prove(a, b),
            _ => Verdict::Unable,
        };
        match verdict {
            Verdict::Same => self.join(a, b),
            Verdict::Different => {
                self.counters.mirrors_refuted += 1;
                self.matcher.set_waiting(a, Waiting::Other);
                self.matcher.set_waiting(b, Waiting::Other);
                false
            }
            Verdict::Gone(which) => {
                self.counters.ends_gone += 1;
                let (key, order) = ends[which];
                self.matcher.remove_gone(key, order);
                self.release_from_peers(key);
                false
            }
            Verdict::Closing => false,
            Verdict::Unable => {
                self.counters.mirrors_unproven += 1;
                self.matcher.set_waiting(a, Waiting::Proof);
                self.matcher.set_waiting(b, Waiting::Proof);
                false
            }
        }
    }

    pub(super) fn namespace_of(&self, announced: &Announced) -> Option<&Namespace> {
        let client = self.clients.get(&announced.key.client)?;
        client.namespaces.get(&announced.domain.netns)
    }
}
