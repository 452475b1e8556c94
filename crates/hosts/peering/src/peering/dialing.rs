//! Connecting: to the peers of the configuration, for ever, and to addresses that somebody asks
//! about, once.

use std::collections::BTreeSet;
use std::net::{IpAddr, SocketAddr, TcpStream};
use std::time::Instant;

use rustix::net::{AddressFamily, SocketFlags, SocketType, connect, socket_with};

use super::connection::{Connection, Stage, Target};
use super::{Peering, Sought};
use crate::channel::Channel;
use crate::event::{Event, PeerId, Why};
use crate::limits::{SEEKS_MAX, SEEKS_WAITING_MAX, SOUGHT_PER_PEER_MAX};
use crate::places::Place;
use crate::proof::Side;
use crate::tls::Method;

/// A peer of the configuration, as long as it has no session.
#[derive(Debug)]
pub(super) struct Dial {
    address: SocketAddr,
    /// The connection under way.
    token: Option<u64>,
    /// In a row.
    failures: u32,
    next: Instant,
    /// Its addresses that somebody asked about and has no answer for.
    sought: BTreeSet<IpAddr>,
}

impl Peering {
    /// A plan for each peer of the configuration that has none.
    pub(super) fn plan_dials(&mut self) {
        let now = self.now;
        for peer in &self.config.peers {
            let dial = || Dial {
                address: peer.control,
                token: None,
                failures: 0,
                next: now,
                sought: BTreeSet::new(),
            };
            self.dials.entry(peer.name.clone()).or_insert_with(dial);
        }
        self.soon();
    }

    /// When the next connection is to be made.
    pub(super) fn next_dial(&self) -> Option<Instant> {
        let idle = self.dials.iter().filter(|(name, dial)| {
            dial.token.is_none() && !self.sessions.contains_key(name.as_str())
        });
        let next = idle.map(|(_, dial)| dial.next).min();
        // What waits for its turn goes on when a connection ends; that is an event or a deadline.
        let can_seek = !self.waiting.is_empty() && self.seeks() < SEEKS_MAX;
        if can_seek { Some(self.now) } else { next }
    }

    fn seeks(&self) -> usize {
        let seeks = self.connections.values();
        let seeks = seeks.filter(|connection| {
            connection.stage != Stage::Up && matches!(connection.target, Some(Target::Address(_)))
        });
        seeks.count()
    }

    /// Makes the connections whose time has come.
    pub(super) fn start_dials(&mut self) {
        let due = self.dials.iter().filter(|(name, dial)| {
            dial.token.is_none()
                && dial.next <= self.now
                && !self.sessions.contains_key(name.as_str())
        });
        let due: Vec<(String, SocketAddr)> = due
            .map(|(name, dial)| (name.clone(), dial.address))
            .collect();
        for (name, address) in due {
            let token = self.new_token();
            if let Some(dial) = self.dials.get_mut(&name) {
                dial.token = Some(token);
            }
            self.dial(token, address, Target::Peer(name));
        }
        let mut places = SEEKS_MAX.saturating_sub(self.seeks());
        while places > 0
            && let Some(address) = self.waiting.pop_front()
        {
            // Somebody may have come from there meanwhile.
            if self.places.get(address, self.now) != Some(Place::Waiting) {
                continue;
            }
            let token = self.new_token();
            self.places.set(address, Place::Asking(token));
            let socket = SocketAddr::new(address, self.config.discovery.port);
            self.dial(token, socket, Target::Address(address));
            places -= 1;
        }
    }

    fn dial(&mut self, token: u64, remote: SocketAddr, target: Target) {
        let began = begin(remote).map_err(|error| Why::Io(error.kind()));
        let began = began.and_then(|socket| {
            let (tls, method) = (&self.identity.tls, self.identity.method);
            let channel = Channel::new(socket, Side::Dialer, tls, method)?;
            let limit = self.handshake_deadline();
            let stage = Stage::Connecting;
            let mut connection =
                Connection::new(channel, Side::Dialer, remote, stage, limit, self.now);
            connection.target = Some(target.clone());
            self.register(token, connection)
        });
        if let Err(why) = began {
            self.dial_failed(token, remote, Some(target), why);
        }
    }

    /// A connection of our own came to nothing.
    pub(super) fn dial_failed(
        &mut self,
        token: u64,
        remote: SocketAddr,
        target: Option<Target>,
        why: Why,
    ) {
        match target {
            Some(Target::Peer(name)) => {
                let failures = match self.dials.get(&name) {
                    Some(dial) if dial.token == Some(token) => dial.failures.saturating_add(1),
                    // Its configuration was changed meanwhile.
                    _ => return,
                };
                let next = self.now + self.backoff(failures);
                if let Some(dial) = self.dials.get_mut(&name) {
                    match failures {
                        1 if why.needs_somebody() => {
                            tracing::warn!(peer = %name, reason = %why, address = %remote, "{name} at {remote} is out of reach: {why}");
                        }
                        1 => {
                            tracing::info!(peer = %name, reason = %why, address = %remote, "{name} at {remote} is out of reach: {why}");
                        }
                        _ => {}
                    }
                    dial.token = None;
                    dial.failures = failures;
                    dial.next = next;
                    self.due(next);
                }
                let mut unreachable = self.take_sought(&name);
                unreachable.insert(remote.ip());
                self.all_unreachable(unreachable, &why);
            }
            Some(Target::Address(address)) => {
                // Somebody may have come from there meanwhile, and then it is known who.
                tracing::debug!(reason = %why, address = %address, "nobody to talk to at {address}: {why}");
            }
            None => {}
        }
        // What was asked, and others that waited for this one.
        let asked = self.places.with(Place::Asking(token));
        for address in &asked {
            let random = self.random_u32();
            self.places.fail(*address, &self.timing, random, self.now);
        }
        self.all_unreachable(asked, &why);
        if !self.waiting.is_empty() {
            self.soon();
        }
    }

    pub(super) fn all_unreachable(&mut self, all: impl IntoIterator<Item = IpAddr>, why: &Why) {
        for address in all {
            let why = why.clone();
            self.hand_over(Event::Unreachable { address, why });
        }
    }

    /// The addresses of the peer that an answer is owed for.
    pub(super) fn take_sought(&mut self, name: &str) -> BTreeSet<IpAddr> {
        let dial = self.dials.get_mut(name);
        dial.map(|dial| std::mem::take(&mut dial.sought))
            .unwrap_or_default()
    }

    /// Whether a connection to this peer is under way.
    pub(super) fn is_dialing(&self, name: &str) -> bool {
        self.dials
            .get(name)
            .is_some_and(|dial| dial.token.is_some())
    }

    /// A connection of our own has found the peer, with which there is a session.
    pub(super) fn dial_superseded(&mut self, name: &str) {
        if let Some(dial) = self.dials.get_mut(name) {
            dial.token = None;
        }
    }

    /// Plans when to connect to the peer again.
    pub(super) fn session_ended(&mut self, name: &str, since: Instant) {
        let lasted = self.now.saturating_duration_since(since);
        let is_stable = lasted >= self.timing.stable;
        let failures = match self.dials.get(name) {
            Some(_) if is_stable => 1,
            Some(dial) => dial.failures.saturating_add(1),
            None => return,
        };
        let next = self.now + self.backoff(failures);
        if let Some(dial) = self.dials.get_mut(name) {
            dial.failures = failures;
            dial.next = next;
        }
        self.due(next);
    }

    /// See [`Peering::seek`].
    pub(super) fn look_for(&mut self, address: IpAddr) -> Sought {
        if let Some(peer) = self.config.peer_at(address) {
            if let Some(token) = self.sessions.get(&peer.name) {
                return Sought::Peer(PeerId(*token));
            }
            let Some(dial) = self.dials.get_mut(&peer.name) else {
                return Sought::Nobody;
            };
            let is_tried = dial.token.is_some() || dial.failures == 0;
            if !is_tried || dial.sought.len() >= SOUGHT_PER_PEER_MAX {
                return Sought::Nobody;
            }
            dial.sought.insert(address);
            return Sought::Asking;
        }
        match self.places.get(address, self.now) {
            Some(Place::At(token)) => return Sought::Peer(PeerId(token)),
            Some(Place::Waiting | Place::Asking(_)) => return Sought::Asking,
            Some(Place::Nobody { .. }) => return Sought::Nobody,
            None => {}
        }
        let has_key = self.identity.method != Method::Psk || self.identity.psk_for(None).is_some();
        let can_be_asked = has_key
            && self.config.is_discovered(address)
            && !address.is_unspecified()
            && !address.is_multicast()
            && self.waiting.len() < SEEKS_WAITING_MAX;
        if !can_be_asked || !self.places.set(address, Place::Waiting) {
            return Sought::Nobody;
        }
        self.waiting.push_back(address);
        self.soon();
        Sought::Asking
    }

    /// Has no plan for the peer any more.
    pub(super) fn forget_dial(&mut self, name: &str) {
        let sought = self.take_sought(name);
        self.all_unreachable(sought, &Why::Reconfigured);
        self.dials.remove(name);
    }

    /// All connections that were under way are gone, and are made anew at once.
    pub(super) fn restart_dials(&mut self) {
        for dial in self.dials.values_mut() {
            dial.token = None;
            dial.failures = 0;
            dial.next = self.now;
        }
    }
}

/// Begins to connect.
fn begin(remote: SocketAddr) -> std::io::Result<TcpStream> {
    let family = match remote {
        SocketAddr::V4(_) => AddressFamily::INET,
        SocketAddr::V6(_) => AddressFamily::INET6,
    };
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = socket_with(family, SocketType::STREAM, flags, None)?;
    match connect(&socket, &remote) {
        Ok(()) | Err(rustix::io::Errno::INPROGRESS) => Ok(socket.into()),
        Err(error) => Err(error.into()),
    }
}
