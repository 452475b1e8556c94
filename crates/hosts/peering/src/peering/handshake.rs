//! Two daemons find out who they are and whether this is to be their session.

use super::connection::{Stage, Target, Who};
use super::{Peering, SOFTWARE};
use crate::event::{Event, PeerId, Why};
use crate::frame::Kind;
use crate::hello::{Hello, Reason, Refusal, VERSIONS};
use crate::limits::SESSIONS_MAX;
use crate::places::Place;
use crate::proof::{PROOF_BYTES, Side, holds, prove};
use crate::secret::Psk;
use crate::tls::Method;

/// Why a hello is refused, and what the other side is told of it.
struct Refused(Why, Option<Reason>);

impl From<Why> for Refused {
    fn from(why: Why) -> Refused {
        Refused(why, None)
    }
}

impl Peering {
    /// TLS is there: the dialer says who it is.
    pub(super) fn begin(&mut self, token: u64) -> Result<(), Why> {
        let Some(connection) = self.connections.get_mut(&token) else {
            return Ok(());
        };
        connection.stage = Stage::AwaitHello;
        match connection.side {
            Side::Dialer => {
                let expected = connection.target.as_ref().and_then(Target::name);
                let key = self.identity.psk_for(expected).cloned();
                self.say_hello(token, key.as_ref())
            }
            Side::Acceptor => Ok(()),
        }
    }

    fn say_hello(&mut self, token: u64, key: Option<&Psk>) -> Result<(), Why> {
        let Some(connection) = self.connections.get_mut(&token) else {
            return Ok(());
        };
        let mut hello = Hello {
            versions: VERSIONS,
            proof: [0; PROOF_BYTES],
            instance: self.instance,
            name: self.identity.name.clone(),
            software: SOFTWARE.to_owned(),
        };
        if self.identity.method == Method::Psk {
            let key = key.ok_or(Why::Key)?;
            let exporter = connection.channel.exporter()?;
            hello.proof = prove(key, connection.side, &exporter, &hello.encode());
        }
        connection.channel.queue(Kind::Hello, &hello.encode());
        Ok(())
    }

    pub(super) fn on_handshake_frame(
        &mut self,
        token: u64,
        kind: Kind,
        body: &[u8],
    ) -> Result<(), Why> {
        let Some(connection) = self.connections.get(&token) else {
            return Ok(());
        };
        match (connection.stage, connection.side, kind) {
            (Stage::AwaitHello, _, Kind::Hello) => match self.hear_hello(token, body) {
                Ok(()) => Ok(()),
                Err(Refused(why, reason)) => {
                    let last = reason.map(|r| (Kind::Refuse, Refusal::encode(r).to_vec()));
                    self.finish(token, why, last);
                    Ok(())
                }
            },
            (_, _, Kind::Refuse) => {
                let refusal = Refusal::decode(body).ok_or(Why::Unexpected)?;
                Err(match refusal.reason {
                    Some(Reason::Version) => Why::Version {
                        theirs: refusal.versions,
                    },
                    Some(Reason::Key) => Why::Key,
                    Some(Reason::Itself) => Why::Itself,
                    Some(Reason::SameName) => Why::SameName,
                    reason => Why::Refused(reason),
                })
            }
            (Stage::AwaitTake, _, Kind::Take) => {
                if self.must_wait(token) {
                    let limit = self.now + self.timing.hold;
                    if let Some(connection) = self.connections.get_mut(&token) {
                        connection.stage = Stage::Held;
                        connection.limit = limit;
                    }
                } else {
                    self.decide(token);
                }
                Ok(())
            }
            (Stage::AwaitTake, _, Kind::Known) => {
                self.finish(token, Why::Duplicate, None);
                Ok(())
            }
            (Stage::AwaitTaken, _, Kind::Taken) => {
                self.on_taken(token);
                Ok(())
            }
            (Stage::AwaitTaken, _, Kind::Duplicate) => {
                self.on_duplicate(token);
                Ok(())
            }
            _ => Err(Why::Unexpected),
        }
    }

    fn hear_hello(&mut self, token: u64, body: &[u8]) -> Result<(), Refused> {
        let theirs = Hello::versions_of(body).map_err(Why::Hello)?;
        let version = VERSIONS.common(theirs);
        let version = version.ok_or(Refused(Why::Version { theirs }, Some(Reason::Version)))?;
        let hello = Hello::decode(body).map_err(Why::Hello)?;
        let key = self.believe(token, &hello, body)?;
        self.compare_names(token, &hello)?;
        let who = Who {
            name: hello.name,
            instance: hello.instance,
            software: hello.software,
            version,
        };
        let Some(connection) = self.connections.get_mut(&token) else {
            return Ok(());
        };
        connection.channel.trust();
        connection.who = Some(who);
        match connection.side {
            Side::Acceptor => {
                connection.stage = Stage::AwaitTake;
                self.say_hello(token, key.as_ref())?;
            }
            Side::Dialer => self.ask(token),
        }
        Ok(())
    }

    /// Whether the hello is from the daemon that it names. Returns the key that was proven.
    fn believe(&self, token: u64, hello: &Hello, body: &[u8]) -> Result<Option<Psk>, Refused> {
        let Some(connection) = self.connections.get(&token) else {
            return Err(Why::Lost.into());
        };
        match self.identity.method {
            Method::Psk => {
                let unknown = Refused(Why::Unknown(hello.name.clone()), Some(Reason::Unknown));
                let key = self.identity.psk_for(Some(&hello.name)).ok_or(unknown)?;
                let wrong = || Refused(Why::Key, Some(Reason::Key));
                // A dialer has proven another key if it expected somebody else. One that has the
                // key of all must not pass for a peer that has a key of its own.
                if connection.side == Side::Dialer {
                    let expected = connection.target.as_ref().and_then(Target::name);
                    if self.identity.psk_for(expected) != Some(key) {
                        return Err(wrong());
                    }
                }
                let exporter = connection.channel.exporter()?;
                let said = Hello::without_proof(body);
                let side = connection.side.other();
                if !holds(key, side, &exporter, &said, &hello.proof) {
                    return Err(wrong());
                }
                Ok(Some(key.clone()))
            }
            Method::Certificates => {
                let wrong = || {
                    let why = Why::CertificateName(hello.name.clone());
                    Refused(why, Some(Reason::Name))
                };
                let certificate = connection.channel.certificate().ok_or_else(wrong)?;
                if !self.identity.believes(certificate, &hello.name) {
                    return Err(wrong());
                }
                Ok(None)
            }
            Method::None => Ok(None),
        }
    }

    /// Whether a daemon of that name may have a session.
    fn compare_names(&self, token: u64, hello: &Hello) -> Result<(), Refused> {
        let Some(connection) = self.connections.get(&token) else {
            return Err(Why::Lost.into());
        };
        if hello.instance == self.instance {
            return Err(Refused(Why::Itself, Some(Reason::Itself)));
        }
        if hello.name == self.identity.name {
            return Err(Refused(Why::SameName, Some(Reason::SameName)));
        }
        let expected = connection.target.as_ref().and_then(Target::name);
        if let Some(expected) = expected.filter(|expected| *expected != hello.name) {
            return Err(Refused(
                Why::OtherName {
                    expected: expected.to_owned(),
                    found: hello.name.clone(),
                },
                None,
            ));
        }
        let is_known = self.config.peer(&hello.name).is_some()
            || self.config.is_discovered(connection.remote.ip());
        if !is_known {
            let why = Why::Unknown(hello.name.clone());
            return Err(Refused(why, Some(Reason::Unknown)));
        }
        Ok(())
    }

    /// Dialer: knows who is there, and says whether it wants a session.
    fn ask(&mut self, token: u64) {
        let Some(who) = self.who(token) else {
            return;
        };
        if let Some(session) = self.session_with(&who) {
            return self.know(token, session);
        }
        let mut others = self.connections.iter();
        let other = others.find(|(other, connection)| {
            let same = connection.who.as_ref().is_some_and(|other| other.is(&who));
            **other != token && connection.stage == Stage::AwaitTaken && same
        });
        if let Some((other, _)) = other {
            let other = *other;
            return self.know(token, other);
        }
        if let Some(connection) = self.connections.get_mut(&token) {
            connection.channel.queue(Kind::Take, &[]);
            connection.stage = Stage::AwaitTaken;
        }
    }

    fn who(&self, token: u64) -> Option<Who> {
        self.connections.get(&token)?.who.clone()
    }

    /// The session with exactly this daemon.
    fn session_with(&self, who: &Who) -> Option<u64> {
        let token = self.sessions.get(&who.name)?;
        let same = self.connections.get(token)?.who.as_ref()?.is(who);
        same.then_some(*token)
    }

    /// Whether this daemon comes before the other one: then its connections win.
    fn comes_first(&self, who: &Who) -> bool {
        (&self.identity.name, &self.instance) < (&who.name, &who.instance)
    }

    /// Dialer: the daemon is one with which there is a session, or will be when `other` is one.
    fn know(&mut self, token: u64, other: u64) {
        let Some(mut connection) = self.connections.remove(&token) else {
            return;
        };
        connection.channel.queue(Kind::Known, &[]);
        self.part(token, connection.channel);
        for address in self.places.with(Place::Asking(token)) {
            if self.is_up(other) {
                self.places.found(address, other);
                let peer = PeerId(other);
                self.hand_over(Event::Address { peer, address });
            } else {
                self.places.set(address, Place::Asking(other));
            }
        }
        if let Some(Target::Peer(name)) = connection.target {
            self.dial_superseded(&name);
        }
        self.release_held();
    }

    /// Acceptor: whether a connection of our own with the same daemon, which would win, is under
    /// way.
    fn must_wait(&self, token: u64) -> bool {
        let Some(connection) = self.connections.get(&token) else {
            return false;
        };
        let Some(who) = &connection.who else {
            return false;
        };
        let under_way = |other: &super::Connection| {
            let expected = other.target.as_ref().and_then(Target::name);
            other.side == Side::Dialer
                && other.stage != Stage::Up
                && (other.who.as_ref().is_some_and(|other| other.is(who))
                    || expected == Some(who.name.as_str())
                    || (other.who.is_none() && other.remote.ip() == connection.remote.ip()))
        };
        self.comes_first(who) && self.connections.values().any(under_way)
    }

    /// What those waited for is decided.
    pub(super) fn release_held(&mut self) {
        let held = self.connections.iter();
        let held = held.filter(|(_, connection)| connection.stage == Stage::Held);
        let held: Vec<u64> = held.map(|(token, _)| *token).collect();
        for token in held {
            if !self.must_wait(token) {
                self.decide(token);
            }
        }
    }

    /// Acceptor: this connection, or the one there is.
    pub(super) fn decide(&mut self, token: u64) {
        let Some(who) = self.who(token) else {
            return;
        };
        let current = self.sessions.get(&who.name).copied();
        if let Some(session) = self.session_with(&who) {
            let side = self.connections.get(&session).map(|session| session.side);
            if side == Some(Side::Dialer) && self.comes_first(&who) {
                let last = (Kind::Duplicate, Vec::new());
                return self.finish(token, Why::Duplicate, Some(last));
            }
        }
        if current.is_none() && self.sessions.len() >= SESSIONS_MAX {
            let last = (Kind::Refuse, Refusal::encode(Reason::Full).to_vec());
            return self.finish(token, Why::Full, Some(last));
        }
        if let Some(connection) = self.connections.get_mut(&token) {
            connection.channel.queue(Kind::Taken, &[]);
        }
        self.replace(current, token);
        self.flush(token);
    }

    /// Dialer: the acceptor agrees.
    fn on_taken(&mut self, token: u64) {
        let Some(who) = self.who(token) else {
            return;
        };
        let current = self.sessions.get(&who.name).copied();
        if let Some(session) = self.session_with(&who) {
            let side = self.connections.get(&session).map(|session| session.side);
            // The acceptor comes to the same result when it hears of the other one.
            if side == Some(Side::Acceptor) && !self.comes_first(&who) {
                return self.know(token, session);
            }
        }
        if current.is_none() && self.sessions.len() >= SESSIONS_MAX {
            let last = (Kind::Bye, Vec::new());
            return self.finish(token, Why::Full, Some(last));
        }
        self.replace(current, token);
    }

    /// Dialer: the acceptor keeps another connection.
    fn on_duplicate(&mut self, token: u64) {
        let session = self.who(token).and_then(|who| self.session_with(&who));
        match session {
            Some(session) => self.know(token, session),
            // It does not know yet that it is gone.
            None => self.finish(token, Why::Duplicate, None),
        }
    }

    /// A session begins, in place of `current`.
    fn replace(&mut self, current: Option<u64>, token: u64) {
        let (now, limit) = (self.now, self.now);
        let Some(connection) = self.connections.get_mut(&token) else {
            return;
        };
        let Some(who) = connection.who.clone() else {
            return;
        };
        // TLS is set up where a session begins.
        let Ok(binding) = connection.channel.binding() else {
            return;
        };
        connection.stage = Stage::Up;
        connection.limit = limit;
        connection.since = now;
        connection.last_heard = now;
        connection.last_said = now;
        let (remote, target) = (connection.remote, connection.target.clone());
        self.strangers.leave(token);
        self.sessions.insert(who.name.clone(), token);
        if let Some(current) = current {
            let last = (Kind::Bye, Vec::new());
            self.finish(current, Why::Replaced, Some(last));
        }
        self.counters.sessions += 1;
        let peer = PeerId(token);
        let name = who.name.clone();
        self.hand_over(Event::Up {
            peer,
            name: who.name,
            address: remote,
            version: who.version,
            software: who.software,
            binding,
        });
        self.places.found(remote.ip(), token);
        for address in self.places.with(Place::Asking(token)) {
            self.places.found(address, token);
            self.hand_over(Event::Address { peer, address });
        }
        if let Some(Target::Peer(_)) = target {
            self.dial_superseded(&name);
        }
        for address in self.take_sought(&name) {
            if address != remote.ip() {
                self.hand_over(Event::Address { peer, address });
            }
        }
        self.release_held();
    }
}
