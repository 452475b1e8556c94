//! All sessions of one daemon with its peers.
//!
//! Two daemons of which one has found the other:
//!
//! ```text
//!   dialer                                       acceptor
//!     │── TCP, TLS 1.3 ─────────────────────────────►│
//!     │── Hello: versions, name, instance, proof ───►│  versions, proof, name are checked
//!     │◄─ Hello: versions, name, instance, proof ────│  (or Refuse)
//!     │── Take ─────────────────────────────────────►│  (or Known: they have a session already)
//!     │◄─ Taken ─────────────────────────────────────│  (or Duplicate)
//!     │◄════════════ Message, Alive, Bye ═══════════►│
//! ```
//!
//! **Two that connect to one another at the same time** end with one session: the connection of
//! the daemon that comes first in the order of name and instance. It lets the other's `Take` wait
//! until its own connection has come to something, so that no session begins only to be replaced.
//! Where it cannot know that the two connections are between the same daemons, the sessions of both
//! may begin, and the same rule ends one of them at both ends.
//!
//! A peer that was started again has another instance: its connection takes the place of the
//! session with the former one.

use std::collections::{HashMap, VecDeque};
use std::fmt;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use rustix::event::{Timespec, epoll};
use serde::Serialize;

use crate::config::Config;
use crate::event::{Event, PeerId, Why};
use crate::frame::{Kind, MESSAGE_BYTES_MAX};
use crate::hello::INSTANCE_BYTES;
use crate::identity::Identity;
use crate::limits::{QUEUE_BYTES_MAX, Timing};
use crate::places::{Place, Places};
use crate::secret::random;
use crate::strangers::Strangers;

mod connection;
mod dialing;
mod handshake;
mod listening;
mod reload;

use connection::{Connection, Farewell, Stage};
use dialing::Dial;
use listening::Listener;

/// Events taken from the kernel at a time.
const EVENTS_MAX: usize = 256;

/// What the software of this build calls itself.
const SOFTWARE: &str = concat!("sluiced ", env!("CARGO_PKG_VERSION"));

/// Why there are no control connections.
#[derive(Debug)]
pub enum PeeringError {
    /// The kernel's answer to something that has nothing to do with peers.
    System(io::Error),
    /// Nobody can connect there.
    Listen(SocketAddr, io::Error),
}

impl fmt::Display for PeeringError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::System(error) => write!(f, "control connections cannot be set up: {error}"),
            Self::Listen(address, error) => write!(
                f,
                "{address} cannot be listened at: {error}; write another address or port as \
                 listen in [daemon], or end what uses it"
            ),
        }
    }
}

impl std::error::Error for PeeringError {}

/// Why a message was not taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SendError {
    /// [`QUEUE_BYTES_MAX`] bytes wait already. The peer reads too slowly; try again after
    /// something else, or do without.
    Full,
    /// The session has ended. [`Event::Down`] says so, or is about to.
    Gone,
    /// More than [`MESSAGE_BYTES_MAX`] bytes.
    TooLong,
}

impl fmt::Display for SendError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Full => f.write_str("too much waits to be sent to this peer"),
            Self::Gone => f.write_str("there is no such session"),
            Self::TooLong => write!(f, "a message has at most {MESSAGE_BYTES_MAX} bytes"),
        }
    }
}

impl std::error::Error for SendError {}

/// What is known of an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sought {
    /// There is a session with the daemon of that host.
    Peer(PeerId),
    /// It is being asked; an event will tell.
    Asking,
    /// It was asked not long ago and is not there, or is not to be asked.
    Nobody,
}

/// A session, for people.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PeerStatus {
    pub peer: PeerId,
    pub name: String,
    pub address: SocketAddr,
    pub version: u16,
    pub software: String,
    /// Whether this daemon connected.
    pub is_dialer: bool,
    /// Since when, in [`Instant`]s.
    pub since: Instant,
    /// Bytes that wait to be sent.
    pub queued: usize,
}

/// How often things have happened since the start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Counters {
    /// Sessions that began.
    pub sessions: u64,
    /// Connections that were accepted.
    pub accepted: u64,
    /// Of these, closed because there were too many, or too many from one address.
    pub crowded: u64,
    /// Of these, that came to nothing for any other reason.
    pub failed: u64,
    /// Messages that came.
    pub messages_in: u64,
    /// Messages that were taken to be sent.
    pub messages_out: u64,
}

/// The sessions of one daemon. One thread drives it; nothing blocks.
///
/// When [`Peering::fd`] is readable, when [`Peering::next_deadline`] is reached, and after calls
/// that make the deadline an earlier one, the thread calls [`Peering::advance`].
#[derive(Debug)]
pub struct Peering {
    config: Config,
    identity: Identity,
    instance: [u8; INSTANCE_BYTES],
    timing: Timing,
    poll: OwnedFd,
    listeners: Vec<Listener>,
    listeners_paused_until: Option<Instant>,
    next_token: u64,
    connections: HashMap<u64, Connection>,
    farewells: HashMap<u64, Farewell>,
    /// Sessions by the names of peers.
    sessions: HashMap<String, u64>,
    strangers: Strangers,
    places: Places,
    /// Addresses that are to be asked.
    waiting: VecDeque<IpAddr>,
    /// By the names of peers of the configuration.
    dials: HashMap<String, Dial>,
    /// Sessions with something to send.
    dirty: Vec<u64>,
    /// Connections of which something has come that was not taken in the last turn.
    backlog: Vec<u64>,
    events: VecDeque<Event>,
    random: u64,
    now: Instant,
    deadline: Option<Instant>,
    counters: Counters,
}

impl Peering {
    /// Listens, and will connect to the peers of the configuration when it is driven.
    ///
    /// # Errors
    /// An address cannot be listened at, or the system is out of descriptors.
    pub fn new(config: Config, identity: Identity) -> Result<Peering, PeeringError> {
        Peering::with_timing(config, identity, Timing::default())
    }

    /// The same with other times.
    ///
    /// # Errors
    /// As [`Peering::new`].
    pub fn with_timing(
        config: Config,
        identity: Identity,
        timing: Timing,
    ) -> Result<Peering, PeeringError> {
        let poll = epoll::create(epoll::CreateFlags::CLOEXEC);
        let poll = poll.map_err(|error| PeeringError::System(error.into()))?;
        let now = Instant::now();
        let mut peering = Peering {
            instance: random().map_err(PeeringError::System)?,
            // Zero would stay zero.
            random: u64::from_ne_bytes(random().map_err(PeeringError::System)?) | 1,
            config,
            identity,
            timing,
            poll,
            listeners: Vec::new(),
            listeners_paused_until: None,
            next_token: 0,
            connections: HashMap::new(),
            farewells: HashMap::new(),
            sessions: HashMap::new(),
            strangers: Strangers::default(),
            places: Places::default(),
            waiting: VecDeque::new(),
            dials: HashMap::new(),
            dirty: Vec::new(),
            backlog: Vec::new(),
            events: VecDeque::new(),
            now,
            deadline: Some(now),
            counters: Counters::default(),
        };
        for problem in peering.identity.problems() {
            tracing::warn!("{problem}");
        }
        peering.listeners = peering.listen(&peering.config.listen)?;
        peering.plan_dials();
        Ok(peering)
    }

    /// Readable (level-triggered) when there is something to do; an epoll descriptor that can be
    /// watched by another one.
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.poll.as_fd()
    }

    /// When [`Peering::advance`] must be called at the latest, even if nothing comes.
    pub fn next_deadline(&self) -> Option<Instant> {
        if self.dirty.is_empty() && self.events.is_empty() && self.backlog.is_empty() {
            self.deadline
        } else {
            Some(self.now)
        }
    }

    /// Where control connections are accepted, with the ports that the kernel chose for 0.
    pub fn local_addresses(&self) -> Vec<SocketAddr> {
        self.listeners
            .iter()
            .filter_map(Listener::address)
            .collect()
    }

    /// Does what can be done without waiting, and tells what happened, in order.
    pub fn advance(&mut self, now: Instant, sink: &mut dyn FnMut(Event)) {
        // Times of callers may be those of different moments.
        self.now = now.max(self.now);
        self.flush_dirty();
        for token in std::mem::take(&mut self.backlog) {
            self.take_turn(token);
        }
        let mut ready = Vec::with_capacity(EVENTS_MAX);
        let spare = rustix::buffer::spare_capacity(&mut ready);
        let at_once = Timespec {
            tv_sec: 0,
            tv_nsec: 0,
        };
        // Interrupted, or something is wrong that the next call will meet again.
        let _ = epoll::wait(&self.poll, spare, Some(&at_once));
        let woke = !ready.is_empty();
        for event in &ready {
            self.on_ready(event.data.u64());
        }
        if woke || self.deadline.is_some_and(|deadline| deadline <= self.now) {
            self.expire();
            self.start_dials();
            self.flush_dirty();
            self.deadline = self.earliest();
        }
        while let Some(event) = self.events.pop_front() {
            sink(event);
        }
    }

    /// What is known of the daemon of the host with this address; it is asked if that is not
    /// known. When this returned [`Sought::Asking`], one of [`Event::Up`], [`Event::Address`] and
    /// [`Event::Unreachable`] follows that has this address (in canonical form, IPv4 if it can be).
    pub fn seek(&mut self, address: IpAddr, now: Instant) -> Sought {
        self.now = now.max(self.now);
        self.look_for(address.to_canonical())
    }

    /// The same for an address of which something has shown that a daemon is there now. If none was
    /// there before, it is asked again, as often as [`Timing::absent_min`] lets it.
    pub fn seek_anew(&mut self, address: IpAddr, now: Instant) -> Sought {
        self.now = now.max(self.now);
        let address = address.to_canonical();
        self.places.hint(address, &self.timing);
        self.look_for(address)
    }

    /// Whether somebody at this address is being connected to, so that more is known soon. Asks
    /// nobody.
    pub fn is_asking(&self, address: IpAddr) -> bool {
        let address = address.to_canonical();
        match self.config.peer_at(address) {
            Some(peer) => self.is_dialing(&peer.name),
            None => matches!(
                self.places.get(address, self.now),
                Some(Place::Waiting | Place::Asking(_))
            ),
        }
    }

    /// The session with the daemon of the host with this address. Asks nobody.
    pub fn peer_at(&self, address: IpAddr) -> Option<PeerId> {
        let address = address.to_canonical();
        if let Some(peer) = self.config.peer_at(address) {
            return self.sessions.get(&peer.name).copied().map(PeerId);
        }
        match self.places.get(address, self.now) {
            Some(Place::At(token)) => Some(PeerId(token)),
            _ => None,
        }
    }

    /// Takes a message; it is sent by the next [`Peering::advance`], together with others. An
    /// empty message is one, too.
    ///
    /// # Errors
    /// See [`SendError`]; nothing was taken.
    pub fn send(&mut self, peer: PeerId, bytes: &[u8]) -> Result<(), SendError> {
        if bytes.len() > MESSAGE_BYTES_MAX {
            return Err(SendError::TooLong);
        }
        let connection = self.connections.get_mut(&peer.0).ok_or(SendError::Gone)?;
        if connection.stage != Stage::Up {
            return Err(SendError::Gone);
        }
        if connection.channel.queued() + bytes.len() > QUEUE_BYTES_MAX {
            return Err(SendError::Full);
        }
        connection.channel.queue(Kind::Message, bytes);
        if !connection.is_dirty {
            connection.is_dirty = true;
            self.dirty.push(peer.0);
        }
        self.counters.messages_out += 1;
        Ok(())
    }

    /// Ends a session; [`Event::Down`] follows. A peer of the configuration is connected to again
    /// after a while.
    pub fn hang_up(&mut self, peer: PeerId, why: Why) {
        if self.is_up(peer.0) {
            self.finish(peer.0, why, Some((Kind::Bye, Vec::new())));
        }
    }

    /// Tells all peers that this daemon ends.
    pub fn close(mut self) {
        let sessions: Vec<u64> = self.sessions.values().copied().collect();
        for token in sessions {
            if let Some(mut connection) = self.connections.remove(&token) {
                connection.channel.queue(Kind::Bye, &[]);
                connection.channel.say_goodbye();
            }
        }
    }

    /// All sessions, in the order in which they began.
    pub fn status(&self) -> Vec<PeerStatus> {
        let mut all: Vec<PeerStatus> = self
            .sessions
            .values()
            .filter_map(|token| self.connections.get(token).map(|c| c.status(*token)))
            .collect();
        all.sort_by_key(|status| status.peer);
        all
    }

    /// How often things have happened.
    pub fn counters(&self) -> Counters {
        self.counters
    }

    /// The configuration in use.
    pub fn config(&self) -> &Config {
        &self.config
    }

    fn is_up(&self, token: u64) -> bool {
        let connection = self.connections.get(&token);
        connection.is_some_and(|connection| connection.stage == Stage::Up)
    }

    fn new_token(&mut self) -> u64 {
        self.next_token += 1;
        self.next_token
    }

    /// Not for secrets (xorshift64, Marsaglia 2003).
    fn random(&mut self) -> u64 {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        self.random
    }

    fn random_u32(&mut self) -> u32 {
        (self.random() >> 32) as u32
    }

    fn on_ready(&mut self, token: u64) {
        if let Some(at) = listening::index_of(token) {
            self.accept_from(at);
        } else if self.farewells.contains_key(&token) {
            self.hear_farewell(token);
        } else {
            self.on_connection(token);
        }
    }

    fn flush_dirty(&mut self) {
        for token in std::mem::take(&mut self.dirty) {
            if let Some(connection) = self.connections.get_mut(&token) {
                connection.is_dirty = false;
                connection.last_said = self.now;
                self.flush(token);
            }
        }
    }

    /// Handles everything whose time has come.
    fn expire(&mut self) {
        let now = self.now;
        let due = self.connections.iter();
        let due = due.filter_map(|(token, connection)| {
            (connection.deadline(&self.timing) <= now).then_some(*token)
        });
        for token in due.collect::<Vec<u64>>() {
            self.on_deadline(token);
        }
        self.farewells.retain(|_, farewell| farewell.until > now);
        if self
            .listeners_paused_until
            .is_some_and(|until| until <= now)
        {
            self.listeners_paused_until = None;
            self.watch_listeners(true);
        }
    }

    fn earliest(&self) -> Option<Instant> {
        let connections = self.connections.values();
        let connections = connections.map(|connection| connection.deadline(&self.timing));
        let farewells = self.farewells.values().map(|farewell| farewell.until);
        let dials = self.next_dial();
        connections
            .chain(farewells)
            .chain(dials)
            .chain(self.listeners_paused_until)
            .min()
    }

    /// The deadline is not later than this.
    fn due(&mut self, at: Instant) {
        self.deadline = Some(self.deadline.map_or(at, |deadline| deadline.min(at)));
    }

    fn soon(&mut self) {
        self.due(self.now);
    }

    fn hand_over(&mut self, event: Event) {
        match &event {
            Event::Up { name, address, .. } => {
                tracing::info!(peer = name, %address, "{name} is up, at {address}");
            }
            Event::Down { peer, why } => {
                tracing::debug!(session = peer.0, reason = %why, "session {peer} ends: {why}");
            }
            Event::Unreachable { address, why } => {
                tracing::debug!(%address, reason = %why, "{address}: {why}");
            }
            Event::Address { .. } | Event::Message { .. } => {}
        }
        self.events.push_back(event);
    }

    fn handshake_deadline(&self) -> Instant {
        self.now + self.timing.handshake
    }

    fn backoff(&mut self, failures: u32) -> Duration {
        let random = self.random_u32();
        let (first, most) = (self.timing.retry_min, self.timing.retry_max);
        crate::limits::backoff(first, most, failures, random)
    }
}
