//! Clients: accepted, and given to a node.

use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd, OwnedFd};
use std::time::Instant;

use sluice_control::message::gateway::Ask;
use sluice_control::preface::{Carrier, Kind, Preface};
use sluice_relay::{Interest, PairId, socket};

use super::{ACCEPT_PAUSE, ACCEPTS_PER_TURN_MAX, Attempt, Backend, Server, key};
use crate::local::is_of_this_host;

impl Server {
    pub(super) fn accept(&mut self, service: u32, now: Instant) {
        for _ in 0..ACCEPTS_PER_TURN_MAX {
            let Some(listener) = self.listeners.get(&service) else {
                return;
            };
            match socket::accept(listener.fd.as_fd()) {
                Ok(Some((client, from))) => {
                    // Whatever happens before both ends are there is no orderly end.
                    let _ = socket::reset_on_close(client.as_fd(), true);
                    self.attempt(client, from, service, Vec::new(), now);
                }
                Ok(None) => return,
                Err(error) => {
                    if matches!(error.raw_os_error(), Some(libc::EMFILE | libc::ENFILE)) {
                        tracing::warn!("no descriptor for a client: {error}; raise ulimit -n");
                    } else {
                        tracing::warn!(
                            "clients of {} cannot be accepted: {error}",
                            listener.address
                        );
                    }
                    self.pause(now);
                    return;
                }
            }
        }
    }

    /// Otherwise the listener that cannot be served would be ready all the time.
    fn pause(&mut self, now: Instant) {
        self.paused_until = Some(now + ACCEPT_PAUSE);
        for (service, listener) in &self.listeners {
            let key = key::LISTENER | u64::from(*service);
            let _ = self.event_loop.unwatch(listener.fd.as_fd(), key);
        }
    }

    /// Begins to connect to a node for a client. With nobody left, the client is reset.
    fn attempt(
        &mut self,
        client: OwnedFd,
        from: SocketAddr,
        service: u32,
        mut tried: Vec<u32>,
        now: Instant,
    ) {
        loop {
            let backends = self
                .listeners
                .get(&service)
                .map(|it| it.backends.as_slice());
            let backends = backends.unwrap_or_default();
            let left = backends.iter().filter(|it| !tried.contains(&it.number));
            let Some(chosen) = self.balance.choose(left.map(|it| it.number), now) else {
                return;
            };
            let Some(backend) = backends.iter().find(|it| it.number == chosen).copied() else {
                return;
            };
            match self.begin(&backend) {
                Ok(inside) => {
                    let number = self.next_attempt;
                    self.next_attempt = (self.next_attempt + 1) & (key::LISTENER - 1);
                    let attempt = Attempt {
                        client,
                        from,
                        service,
                        inside,
                        backend,
                        tried,
                        is_overdue: false,
                    };
                    let key = key::ATTEMPT | number;
                    let inside = attempt.inside.as_fd();
                    if let Err(error) = self.event_loop.watch(inside, Interest::Writable, key) {
                        tracing::warn!("a connection cannot be watched: {error}");
                        self.balance.ended(chosen, true);
                        return;
                    }
                    self.attempts.insert(number, attempt);
                    let due = now + self.options.connect;
                    self.deadlines.push_back((due, number));
                    return;
                }
                Err(error) if is_of_this_host(&error) => {
                    tracing::warn!("no connection to {} can be made: {error}", backend.target);
                    self.balance.ended(chosen, true);
                    if error.raw_os_error() != Some(libc::EADDRNOTAVAIL) {
                        // Neither to another node.
                        self.pause(now);
                        return;
                    }
                    tried.push(chosen);
                }
                Err(error) => {
                    self.unreachable(&backend, &error.to_string(), now);
                    tried.push(chosen);
                }
            }
        }
    }

    fn begin(&self, backend: &Backend) -> io::Result<OwnedFd> {
        let inside = socket::tcp(&backend.target)?;
        // Also what makes small messages go at once from the first one on.
        socket::send_at_once(inside.as_fd())?;
        socket::connect(inside.as_fd(), &backend.target)?;
        Ok(inside)
    }

    fn unreachable(&mut self, backend: &Backend, why: &str, now: Instant) {
        tracing::warn!("{} is not reached: {why}", backend.target);
        self.balance.failed(backend.number, now);
        let backend = backend.number;
        self.say(Ask::Unreachable { backend }, now);
    }

    /// A node has not answered in time: another one is asked. With no other one left the client waits on, as long as the
    /// kernel tries: the node may be busy, and its queue full.
    pub(super) fn overdue(&mut self, number: u64, now: Instant) {
        const WHY: &str = "no answer";
        let Some(attempt) = self.attempts.get_mut(&number) else {
            return;
        };
        let listener = self.listeners.get(&attempt.service);
        let backends = listener
            .map(|it| it.backends.as_slice())
            .unwrap_or_default();
        let own = attempt.backend.number;
        let is_there = backends.iter().any(|it| it.number == own);
        let is_left = |it: &Backend| it.number != own && !attempt.tried.contains(&it.number);
        if !is_there || backends.iter().any(is_left) {
            return self.fail(number, WHY, now);
        }
        attempt.is_overdue = true;
        let target = attempt.backend.target;
        tracing::warn!("{target} is not reached: {WHY}; nobody else is left, and the client waits");
        // Who does not listen any more is found out so.
        self.say(Ask::Unreachable { backend: own }, now);
    }

    /// The nodes of a port are others now: clients that wait for one of them are given to those, if there are any.
    pub(super) fn stop_waiting(&mut self, service: u32, now: Instant) {
        let is_concerned = |it: &&Attempt| it.is_overdue && it.service == service;
        let waiting = self.attempts.iter().filter(|(_, it)| is_concerned(it));
        let waiting: Vec<u64> = waiting.map(|(number, _)| *number).collect();
        for number in waiting {
            self.fail(number, "others serve", now);
        }
    }

    pub(super) fn fail(&mut self, number: u64, why: &str, now: Instant) {
        let Some(attempt) = self.attempts.remove(&number) else {
            return;
        };
        let key = key::ATTEMPT | number;
        let _ = self.event_loop.unwatch(attempt.inside.as_fd(), key);
        if attempt.is_overdue {
            // That was said.
            self.balance.failed(attempt.backend.number, now);
        } else {
            self.unreachable(&attempt.backend, why, now);
        }
        let mut tried = attempt.tried;
        tried.push(attempt.backend.number);
        self.attempt(attempt.client, attempt.from, attempt.service, tried, now);
    }

    /// A node has answered, or refused.
    pub(super) fn connected(&mut self, number: u64, now: Instant) {
        let Some(attempt) = self.attempts.get(&number) else {
            return;
        };
        if let Err(error) = self.introduce(attempt) {
            return self.fail(number, &error.to_string(), now);
        }
        let Some(attempt) = self.attempts.remove(&number) else {
            return;
        };
        let key = key::ATTEMPT | number;
        let _ = self.event_loop.unwatch(attempt.inside.as_fd(), key);
        self.balance.answered(attempt.backend.number);
        match self.event_loop.pair(attempt.client, attempt.inside) {
            Ok(pair) => {
                self.pairs.insert(pair, attempt.backend.number);
            }
            Err(error) => {
                tracing::warn!("a client is turned away: {error}");
                self.balance.ended(attempt.backend.number, true);
            }
        }
    }

    /// Says to the node whom the connection is for.
    fn introduce(&self, attempt: &Attempt) -> io::Result<()> {
        let inside = attempt.inside.as_fd();
        socket::take_error(inside)?;
        let carrier = Carrier {
            from: socket::local_address(inside)?,
            to: socket::remote_address(inside)?,
        };
        if carrier.from.ip() != attempt.backend.source {
            // The node would not expect a preface from there, and take it for the client's bytes.
            let from = carrier.from.ip();
            return Err(io::Error::other(format!(
                "the way there leads from {from} and not from {} any more",
                attempt.backend.source
            )));
        }
        let outside = socket::local_address(attempt.client.as_fd())?;
        let preface = Preface {
            kind: Kind::Client,
            client: attempt.from,
            outside,
            exit: 0,
        };
        let bytes = preface.encode(&attempt.backend.key, &carrier);
        // A connection on which nothing was sent has room for these few bytes.
        if socket::write(inside, &bytes)? == bytes.len() {
            Ok(())
        } else {
            Err(io::ErrorKind::WriteZero.into())
        }
    }

    pub(super) fn ended(&mut self, pair: PairId) {
        if let Some(backend) = self.pairs.remove(&pair) {
            let is_known = self.is_known(backend);
            self.balance.ended(backend, is_known);
        }
    }
}
