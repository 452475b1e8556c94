//! One connection from its first byte to its last.

use std::net::{IpAddr, SocketAddr};
use std::time::Instant;

use rustix::event::epoll;

use super::{PeerStatus, Peering};
use crate::channel::Channel;
use crate::event::{Event, PeerId, Why};
use crate::frame::Kind;
use crate::hello::INSTANCE_BYTES;
use crate::limits::{FAREWELLS_MAX, MESSAGES_PER_TURN_MAX, Timing};
use crate::places::Place;
use crate::proof::Side;

/// How far a connection is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stage {
    /// The kernel connects.
    Connecting,
    /// TLS is being set up.
    Tls,
    /// The other side has not said yet who it is.
    AwaitHello,
    /// Acceptor: the dialer has not said yet what it wants.
    AwaitTake,
    /// Acceptor: it wants a session, and must wait for the outcome of another connection.
    Held,
    /// Dialer: the acceptor has not agreed yet.
    AwaitTaken,
    /// A session.
    Up,
}

/// What a connection of our own is for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Target {
    /// A peer of the configuration.
    Peer(String),
    /// Whoever is there.
    Address(IpAddr),
}

impl Target {
    /// The name that is expected.
    pub fn name(&self) -> Option<&str> {
        match self {
            Target::Peer(name) => Some(name),
            Target::Address(_) => None,
        }
    }
}

/// Who is at the other end, proven.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Who {
    pub name: String,
    pub instance: [u8; INSTANCE_BYTES],
    pub software: String,
    pub version: u16,
}

impl Who {
    /// Whether it is the same daemon, not started again in between.
    pub fn is(&self, other: &Who) -> bool {
        self.name == other.name && self.instance == other.instance
    }
}

#[derive(Debug)]
pub(super) struct Connection {
    pub channel: Channel,
    pub side: Side,
    pub remote: SocketAddr,
    /// What a dialer looks for.
    pub target: Option<Target>,
    pub stage: Stage,
    pub who: Option<Who>,
    /// Of the handshake.
    pub limit: Instant,
    pub last_heard: Instant,
    pub last_said: Instant,
    pub since: Instant,
    pub is_dirty: bool,
    /// There are frames that have come and were not taken in this turn.
    has_backlog: bool,
    /// It is over when they were taken, and why.
    over: Option<Why>,
    watched: epoll::EventFlags,
}

impl Connection {
    pub fn new(
        channel: Channel,
        side: Side,
        remote: SocketAddr,
        stage: Stage,
        limit: Instant,
        now: Instant,
    ) -> Connection {
        Connection {
            channel,
            side,
            remote,
            target: None,
            stage,
            who: None,
            limit,
            last_heard: now,
            last_said: now,
            since: now,
            is_dirty: false,
            has_backlog: false,
            over: None,
            watched: epoll::EventFlags::empty(),
        }
    }

    /// When something must be done for it.
    pub fn deadline(&self, timing: &Timing) -> Instant {
        match self.stage {
            Stage::Up => {
                let vanished = self.last_heard + timing.silence;
                vanished.min(self.last_said + timing.alive)
            }
            _ => self.limit,
        }
    }

    fn wanted(&self) -> epoll::EventFlags {
        match self.stage {
            Stage::Connecting => epoll::EventFlags::OUT,
            _ if self.channel.wants_write() => epoll::EventFlags::IN | epoll::EventFlags::OUT,
            _ => epoll::EventFlags::IN,
        }
    }

    pub fn status(&self, token: u64) -> PeerStatus {
        let who = self.who.as_ref();
        PeerStatus {
            peer: PeerId(token),
            name: who.map(|who| who.name.clone()).unwrap_or_default(),
            address: self.remote,
            version: who.map(|who| who.version).unwrap_or_default(),
            software: who.map(|who| who.software.clone()).unwrap_or_default(),
            is_dialer: self.side == Side::Dialer,
            since: self.since,
            queued: self.channel.queued(),
        }
    }
}

/// A connection that is over; the other side may still read why.
#[derive(Debug)]
pub(super) struct Farewell {
    channel: Channel,
    pub until: Instant,
}

impl Peering {
    /// Takes a new connection in.
    pub(super) fn register(&mut self, token: u64, mut connection: Connection) -> Result<(), Why> {
        connection.watched = connection.wanted();
        let data = epoll::EventData::new_u64(token);
        epoll::add(&self.poll, &connection.channel, data, connection.watched)
            .map_err(|error| Why::Io(std::io::Error::from(error).kind()))?;
        self.due(connection.limit);
        self.connections.insert(token, connection);
        Ok(())
    }

    /// Waits for what the connection needs now.
    fn rewatch(&mut self, token: u64) {
        let Some(connection) = self.connections.get_mut(&token) else {
            return;
        };
        let wanted = connection.wanted();
        if wanted != connection.watched {
            connection.watched = wanted;
            let data = epoll::EventData::new_u64(token);
            // It is in the set, and modifying needs no memory.
            let _ = epoll::modify(&self.poll, &connection.channel, data, wanted);
        }
    }

    /// Sends what the kernel takes.
    pub(super) fn flush(&mut self, token: u64) {
        let Some(connection) = self.connections.get_mut(&token) else {
            return;
        };
        // What has come before its end is taken first.
        if connection.stage == Stage::Connecting || connection.over.is_some() {
            return;
        }
        match connection.channel.flush() {
            Ok(()) => self.rewatch(token),
            Err(why) => self.finish(token, why, None),
        }
    }

    /// The kernel has something to say of it.
    pub(super) fn on_connection(&mut self, token: u64) {
        let Some(connection) = self.connections.get_mut(&token) else {
            return;
        };
        if connection.stage == Stage::Connecting {
            if let Err(why) = connection.channel.connected() {
                return self.finish(token, why, None);
            }
            connection.stage = Stage::Tls;
            return self.flush(token);
        }
        if connection.has_backlog {
            // It is read again when that was taken, in the turns of those that have some.
            return self.flush(token);
        }
        let received = connection.channel.receive();
        if received == Ok(true) {
            connection.last_heard = self.now;
        }
        connection.over = match received {
            Err(why) => Some(why),
            Ok(_) => connection.channel.has_ended().then_some(Why::Lost),
        };
        self.take_turn(token);
    }

    /// Takes what has come, as much as one turn allows.
    pub(super) fn take_turn(&mut self, token: u64) {
        // What came before an error counts, and may say more.
        if let Err(why) = self.take_frames(token) {
            let farewell = (Kind::Bye, Vec::new());
            let farewell = self.is_up(token).then_some(farewell);
            return self.finish(token, why, farewell);
        }
        let Some(connection) = self.connections.get_mut(&token) else {
            return;
        };
        if connection.has_backlog {
            self.backlog.push(token);
        } else if let Some(why) = connection.over.take() {
            return self.finish(token, why, None);
        }
        self.flush(token);
    }

    fn take_frames(&mut self, token: u64) -> Result<(), Why> {
        let mut messages = 0;
        loop {
            let Some(connection) = self.connections.get_mut(&token) else {
                return Ok(());
            };
            connection.has_backlog = messages == MESSAGES_PER_TURN_MAX;
            if connection.has_backlog {
                return Ok(());
            }
            if connection.stage == Stage::Tls {
                if !connection.channel.is_ready()? {
                    return Ok(());
                }
                self.begin(token)?;
                continue;
            }
            let Some((kind, body)) = connection.channel.take_frame()? else {
                return Ok(());
            };
            if connection.stage == Stage::Up {
                messages += 1;
                self.on_session_frame(token, kind, body)?;
            } else {
                self.on_handshake_frame(token, kind, &body)?;
            }
        }
    }

    fn on_session_frame(&mut self, token: u64, kind: Kind, bytes: Vec<u8>) -> Result<(), Why> {
        match kind {
            Kind::Message => {
                self.counters.messages_in += 1;
                let peer = PeerId(token);
                self.hand_over(Event::Message { peer, bytes });
            }
            Kind::Alive => {}
            Kind::Bye => self.finish(token, Why::Closed, None),
            // It has chosen another connection, and so will we when we hear of it.
            Kind::Known => self.finish(token, Why::Duplicate, None),
            _ => return Err(Why::Unexpected),
        }
        Ok(())
    }

    /// Its time has come.
    pub(super) fn on_deadline(&mut self, token: u64) {
        let (now, timing) = (self.now, &self.timing);
        let Some(connection) = self.connections.get_mut(&token) else {
            return;
        };
        match connection.stage {
            Stage::Up if connection.last_heard + timing.silence <= now => {
                self.finish(token, Why::Silent, None);
            }
            Stage::Up => {
                // If something waits for the kernel, this would say nothing new.
                if !connection.channel.wants_write() {
                    connection.channel.queue(Kind::Alive, &[]);
                }
                connection.last_said = now;
                self.flush(token);
            }
            Stage::Held => self.decide(token),
            _ => self.finish(token, Why::Slow, None),
        }
    }

    /// The end of a connection, whatever it was. `last` is a frame that says why.
    pub(super) fn finish(&mut self, token: u64, why: Why, last: Option<(Kind, Vec<u8>)>) {
        let Some(mut connection) = self.connections.remove(&token) else {
            return;
        };
        if let Some((kind, body)) = last {
            connection.channel.queue(kind, &body);
        }
        let Connection {
            channel,
            remote,
            stage,
            side,
            target,
            who,
            since,
            ..
        } = connection;
        if stage != Stage::Connecting {
            self.part(token, channel);
        }
        self.strangers.leave(token);
        match (stage, who) {
            (Stage::Up, Some(who)) => {
                if self.sessions.get(&who.name) == Some(&token) {
                    self.sessions.remove(&who.name);
                }
                self.places.forget(Place::At(token));
                self.session_ended(&who.name, since);
                let peer = PeerId(token);
                self.hand_over(Event::Down { peer, why });
            }
            _ if side == Side::Dialer => self.dial_failed(token, remote, target, why),
            _ => {
                // These are no fault of whoever connected.
                if !matches!(why, Why::Duplicate | Why::Crowded | Why::Reconfigured) {
                    self.counters.failed += 1;
                    // Who goes on does not fill the log.
                    match self.strangers.fail(remote.ip(), self.now) {
                        1 if why.needs_somebody() => {
                            tracing::warn!(reason = %why, address = %remote, "{remote} gets no session: {why}")
                        }
                        1 => {
                            tracing::info!(reason = %why, address = %remote, "{remote} gets no session: {why}")
                        }
                        _ => {
                            tracing::debug!(reason = %why, address = %remote, "{remote} gets no session: {why}")
                        }
                    }
                }
            }
        }
        if side == Side::Dialer {
            self.release_held();
        }
    }

    /// Leaves the other side a moment to read what was said last: a close with unread bytes is a
    /// reset, which takes from it what it has not read (RFC 1122 4.2.2.13).
    pub(super) fn part(&mut self, token: u64, mut channel: Channel) {
        channel.say_goodbye();
        if self.farewells.len() >= FAREWELLS_MAX || channel.has_ended() {
            return;
        }
        let data = epoll::EventData::new_u64(token);
        // If that fails it ends at its time all the same.
        let _ = epoll::modify(&self.poll, &channel, data, epoll::EventFlags::IN);
        let until = self.now + self.timing.farewell;
        self.due(until);
        self.farewells.insert(token, Farewell { channel, until });
    }

    /// Reads and forgets, until the other side has closed.
    pub(super) fn hear_farewell(&mut self, token: u64) {
        let Some(farewell) = self.farewells.get_mut(&token) else {
            return;
        };
        if farewell.channel.drain() {
            self.farewells.remove(&token);
        }
    }
}
