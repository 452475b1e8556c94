//! Ends whose other end may be on another host.

use std::os::fd::RawFd;
use std::time::Instant;

use sluice_control::message::{FromDaemon, Lane};
use sluice_sys::unix::Fd;

use super::Server;
use crate::fabric::Fabric;
use crate::fabric::carrier::SIDE_OF_PROGRAM;
use crate::fabric::introducer::{GivenDirect, GivenLane};
use crate::matching::{ClientId, EndKey};

/// sluiced itself, where clients are numbered: theirs begin with 1.
const SLUICED: u32 = 0;

impl Server {
    /// Says to the sluiced of other hosts that an end is here.
    pub(super) fn announce_to_peers(&mut self, key: EndKey) {
        let Some(entry) = self.matcher.entry(key) else {
            return;
        };
        let namespace = self.namespace_of(&entry.announced).cloned();
        let (Some(fabric), Some(namespace)) = (&mut self.fabric, namespace) else {
            return;
        };
        let Some(client) = self.clients.get(&key.client) else {
            return;
        };
        let Some(program) = &client.program else {
            return;
        };
        let parking = || duplicate(&program.parking);
        let program_of = (program, client.credentials.uid);
        fabric.announced(entry.announced, &namespace, program_of, parking);
    }

    /// An end is not to be matched with one on another host, or not any more.
    pub(super) fn release_from_peers(&mut self, key: EndKey) {
        if let Some(fabric) = &mut self.fabric {
            fabric.released(key);
        }
    }

    pub(super) fn may_come_from_a_peer(&mut self, key: EndKey) -> bool {
        let fabric = self.fabric.as_mut();
        fabric.is_some_and(|fabric| fabric.may_come(key))
    }

    /// A program has introduced itself: what it connects to is not captured.
    pub(super) fn program_came(&mut self, id: ClientId) {
        let program = self.clients.get(&id).and_then(|it| it.program.as_ref());
        if let (Some(program), Some(fabric)) = (program, &mut self.fabric)
            && let Some(capture) = fabric.capture()
        {
            capture.program_came(program.pid);
        }
    }

    /// It is gone.
    pub(super) fn program_went(&mut self, pid: u32) {
        if let Some(capture) = self.fabric.as_mut().and_then(Fabric::capture) {
            capture.program_gone(pid);
        }
    }

    /// The program of this end was told of its lane to another host, or did not take the message.
    fn lane_told(&mut self, key: EndKey, is_given: bool) {
        if is_given {
            self.matcher.pair_remote(key);
            self.counters.matches_across_hosts += 1;
        } else {
            self.counters.lanes_refused_unread += 1;
            self.release_from_peers(key);
        }
    }

    /// Hears what the sluiced of other hosts say, and tells programs of their lanes to them.
    pub(super) fn turn_fabric(&mut self) {
        let Some(fabric) = &mut self.fabric else {
            return;
        };
        for lane in fabric.turn(Instant::now()) {
            let is_given = self.give_lane(&lane);
            self.lane_told(lane.announced.key, is_given);
        }
        let given = self.fabric.as_mut().map(Fabric::take_given_direct);
        for given in given.into_iter().flatten() {
            let is_given = self.give_direct(&given);
            self.lane_told(given.announced.key, is_given);
        }
        let gone = self.fabric.as_mut().map(Fabric::take_gone);
        for (client, peer) in gone.into_iter().flatten() {
            self.send(client, &FromDaemon::PeerGone { peer }, &[]);
        }
        let alone = self.fabric.as_mut().map(Fabric::take_alone);
        for end in alone.into_iter().flatten() {
            self.will_answer(end.key.client, end.key.end, end.generation);
        }
    }

    fn give_lane(&mut self, lane: &GivenLane) -> bool {
        let client = lane.announced.key.client;
        let (Some(fabric), Some(state)) = (&mut self.fabric, self.clients.get(&client)) else {
            return false;
        };
        let (needs_chunk, needs_parking) = (!fabric.is_given(lane), !state.has_our_parking);
        let chunk = &lane.taken.chunk;
        let mut fds = Vec::with_capacity(2);
        if needs_chunk {
            fds.push(chunk.memory.raw());
        }
        if needs_parking {
            fds.push(fabric.parking().raw());
        }
        let geometry = chunk.geometry();
        let message = FromDaemon::Lane(Lane {
            end: lane.announced.key.end,
            generation: lane.announced.generation,
            chunk: chunk.number,
            lane: lane.taken.lane,
            lanes: geometry.lanes(),
            ring_bytes: geometry.ring_bytes(),
            side: SIDE_OF_PROGRAM as u8,
            has_chunk_fd: needs_chunk,
            has_parking_fd: needs_parking,
            is_remote: true,
            is_direct: false,
            offset: 0,
            peer: SLUICED,
            peer_pid: std::process::id(),
            cookie: lane.announced.cookie,
        });
        if !self.send(client, &message, &fds) {
            return false;
        }
        if let Some(state) = self.clients.get_mut(&client) {
            state.has_our_parking = true;
        }
        if let Some(fabric) = &mut self.fabric {
            fabric.set_given(lane);
        }
        true
    }

    fn give_direct(&mut self, given: &GivenDirect) -> bool {
        let (announced, lane) = (&given.announced, &given.lane);
        let Some(fabric) = &self.fabric else {
            return false;
        };
        let it = match fabric.given_direct(lane) {
            Ok(it) => it,
            Err(error) => {
                tracing::warn!(reason = %error, "no descriptor of a window for a program: {error}");
                return false;
            }
        };
        let fds: Vec<RawFd> = it.memory.iter().map(Fd::raw).collect();
        let message = FromDaemon::Lane(Lane {
            end: announced.key.end,
            generation: announced.generation,
            chunk: lane.number,
            lane: lane.lane,
            lanes: it.geometry.lanes(),
            ring_bytes: it.geometry.ring_bytes(),
            // A piece is of two programs alone.
            side: u8::from(!lane.is_lender),
            has_chunk_fd: it.memory.is_some(),
            has_parking_fd: false,
            is_remote: false,
            is_direct: true,
            offset: it.offset,
            // A peer of its own, that is gone with the piece.
            peer: lane.number,
            peer_pid: 0,
            cookie: announced.cookie,
        });
        if !self.send(announced.key.client, &message, &fds) {
            return false;
        }
        if let Some(fabric) = &mut self.fabric {
            fabric.set_given_direct(lane);
        }
        true
    }
}

fn duplicate(fd: &Fd) -> Option<Fd> {
    sluice_sys::unix::duplicate(fd.raw()).ok()
}
