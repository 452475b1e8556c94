//! The connection manager's thread: what peers send, hang-ups and timers.

use std::os::fd::RawFd;
use std::sync::{MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use sluice_sys::unix;

use super::endpoint::{Endpoint, Link};
use super::state::State;
use super::{STRANGERS_MAX, Shared, Stranger, Table, WAKE, same_user, trace};
use crate::Errno;
use crate::channel::{Body, Event, EventKind, Key};
use crate::message::{self, ConnParams, MESSAGE_LEN_MAX, Message, PrivateData, SidrReply};

/// Packets taken from one link before the others have their turn.
const PACKETS_PER_TURN: usize = 8;
/// Connections taken from one listener before the others have their turn.
const ACCEPTS_PER_TURN: usize = 32;

/// What came in on a link.
enum Input {
    Message(Message),
    /// The peer is gone, or speaks something else.
    HangUp,
    Nothing,
}

impl Shared {
    pub(super) fn table(&self) -> MutexGuard<'_, Table> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn run(&self) {
        loop {
            let timeout_ms = {
                let mut table = self.table();
                if table.stop {
                    return;
                }
                let next = self.run_timers(&mut table);
                table.asleep_until = next;
                timeout_ms(next)
            };
            let ready = self.poller.wait(timeout_ms);
            let mut table = self.table();
            table.asleep_until = None;
            let wire = ready.contains(&WAKE);
            for number in ready {
                if number == WAKE {
                    self.wake.lower();
                } else if table.strangers.contains_key(&number) {
                    self.stranger_ready(&mut table, number);
                } else if table
                    .endpoints
                    .get(&number)
                    .is_some_and(|endpoint| endpoint.state == State::Listening)
                {
                    self.accept_strangers(&mut table, number);
                } else {
                    self.link_ready(&mut table, number);
                }
            }
            if wire {
                self.wire_turn(&mut table);
            }
        }
    }

    /// Wakes the thread if a timer is due before it would wake by itself.
    pub(super) fn wake_for_timers(&self, table: &mut Table) {
        let Some(&(first, _)) = table.timers.first() else {
            return;
        };
        if table.asleep_until.is_none_or(|until| first < until) {
            table.asleep_until = Some(first);
            self.wake.raise();
        }
    }

    /// Does what is due and tells when the next timer is.
    fn run_timers(&self, table: &mut Table) -> Option<Instant> {
        let now = Instant::now();
        while let Some(&(deadline, key)) = table.timers.first() {
            if deadline > now {
                break;
            }
            table.set_timer(key, None);
            self.timer(table, key, now);
        }
        table
            .strangers
            .retain(|_, stranger| stranger.deadline > now);
        let strangers = table.strangers.values().map(|stranger| stranger.deadline);
        let timers = table.timers.first().map(|(deadline, _)| *deadline);
        let wire = self.wire_deadline(table);
        strangers.chain(timers).chain(wire).min()
    }

    fn timer(&self, table: &mut Table, key: Key, now: Instant) {
        let Ok(endpoint) = table.endpoint(key) else {
            return;
        };
        let timed_out = -libc::ETIMEDOUT;
        match endpoint.state {
            State::RequestSent if endpoint.link.is_none() => self.advance(table, key),
            State::RequestSent | State::ReplySent => {
                endpoint.refuse(message::REJ_TIMEOUT, PrivateData::default());
                endpoint.end(key, EventKind::Unreachable, timed_out, Body::None);
            }
            State::Disconnecting => {
                endpoint.push(key, EventKind::Disconnected, timed_out, Body::None);
                self.wait_out(table, key, now);
            }
            State::TimeWait => endpoint.end(key, EventKind::TimewaitExit, 0, Body::None),
            _ => {}
        }
    }

    /// After a disconnection: the link is done with, TIMEWAIT_EXIT comes later.
    pub(super) fn wait_out(&self, table: &mut Table, key: Key, now: Instant) {
        if let Ok(endpoint) = table.endpoint(key) {
            endpoint.link = None;
            endpoint.state = State::TimeWait;
            table.set_timer(key, Some(now + self.limits.time_wait));
        }
    }

    /// Sends the request of an attempt to the next listener that may answer. When there
    /// is none left, the destination says so itself (a service that is not there), or
    /// nobody knows it.
    pub(super) fn advance(&self, table: &mut Table, key: Key) {
        let now = Instant::now();
        let Ok(endpoint) = table.endpoint(key) else {
            return;
        };
        if endpoint.over_wire {
            return self.ask_on_wire(table, key);
        }
        endpoint.link = None;
        let (port_space, destination) = (endpoint.port_space, endpoint.destination);
        let Some(attempt) = endpoint.attempt.as_mut() else {
            return;
        };
        if std::mem::take(&mut attempt.look_again)
            && let Some(destination) = &destination
        {
            let listeners = self.names.listeners(port_space, destination);
            attempt.candidates = listeners.unwrap_or_default().into();
        }
        while let Some(candidate) = attempt.candidates.pop_front() {
            match self.names.connect(&candidate) {
                Ok(link) if same_user(&link) => {
                    let give_up = attempt.give_up;
                    let request = attempt.request.clone();
                    let Ok(link) = self.poller.watch(link, key) else {
                        continue;
                    };
                    endpoint.link = Some(Link::Host(link));
                    endpoint.send(&request);
                    table.set_timer(key, Some(give_up));
                    return;
                }
                Err(Errno::AGAIN) if now < attempt.give_up => {
                    attempt.candidates.push_front(candidate);
                    table.set_timer(key, Some(now + self.limits.retry));
                    return;
                }
                // Dead, or a stranger's.
                Ok(_) | Err(_) => {}
            }
        }
        if now < attempt.absent_until {
            attempt.look_again = true;
            table.set_timer(key, Some(now + self.limits.retry));
            return;
        }
        let here = attempt.destination_is_here;
        let (kind, status) = match (here, endpoint.is_datagram()) {
            (true, true) => (EventKind::Unreachable, i32::from(message::SIDR_UNSUPPORTED)),
            (true, false) => (
                EventKind::Rejected,
                i32::from(message::REJ_INVALID_SERVICE_ID),
            ),
            (false, _) => (EventKind::Unreachable, -libc::ETIMEDOUT),
        };
        endpoint.end(key, kind, status, Body::None);
        table.set_timer(key, None);
    }

    fn accept_strangers(&self, table: &mut Table, listener: Key) {
        for _ in 0..ACCEPTS_PER_TURN {
            let Some(socket) = table
                .endpoints
                .get(&listener)
                .and_then(|endpoint| endpoint.listen_socket.as_ref())
            else {
                return;
            };
            let Ok(link) = unix::accept(socket.raw()) else {
                return;
            };
            // Whoever is not ours, or too many at a time, finds the link closed.
            if !same_user(&link) || table.strangers.len() >= STRANGERS_MAX {
                continue;
            }
            table.last_key += 1;
            let key = table.last_key;
            if let Ok(link) = self.poller.watch(link, key) {
                let deadline = Instant::now() + self.limits.stranger;
                let stranger = Stranger {
                    listener,
                    link,
                    deadline,
                };
                table.strangers.insert(key, stranger);
            }
        }
    }

    /// The first packet of an accepted connection must be a request to its listener.
    fn stranger_ready(&self, table: &mut Table, key: Key) {
        let Some(stranger) = table.strangers.remove(&key) else {
            return;
        };
        let message = match receive(stranger.link.raw()) {
            Input::Message(message) => message,
            Input::HangUp => return,
            Input::Nothing => {
                table.strangers.insert(key, stranger);
                return;
            }
        };
        trace::requested(&message);
        let link = Link::Host(stranger.link);
        self.request_received(table, key, stranger.listener, link, message);
    }

    /// Makes an endpoint of a request, under the key that its link tells.
    pub(super) fn request_received(
        &self,
        table: &mut Table,
        key: Key,
        listening: Key,
        link: Link,
        message: Message,
    ) {
        let Some(listener) = table.endpoints.get(&listening) else {
            return;
        };
        let (port_space, qp_type, source, destination) = match &message {
            Message::Request(request) => (
                request.port_space,
                request.qp_type,
                request.source,
                request.destination,
            ),
            Message::SidrRequest(request) => (
                request.port_space,
                crate::ffi::IBV_QPT_UD as u8,
                request.source,
                request.destination,
            ),
            _ => return,
        };
        let mut endpoint = Endpoint::new(port_space, qp_type, listener.channel.clone());
        endpoint.over_wire = matches!(link, Link::Wire(_));
        endpoint.link = Some(link);
        endpoint.source = Some(destination);
        endpoint.destination = Some(source);
        endpoint.options = listener.options;
        let answers = listener
            .claim
            .as_ref()
            .is_some_and(|claim| claim.answers_for(&destination));
        let datagram = matches!(message, Message::SidrRequest(_));
        if !answers || port_space != listener.port_space || datagram != listener.is_datagram() {
            endpoint.refuse(message::REJ_NOT_MY_ADDRESS, PrivateData::default());
            return;
        }
        let waiting = listener
            .channel
            .count(|event| event.listener == Some(listening));
        if waiting >= listener.backlog {
            endpoint.refuse(message::REJ_CONSUMER_DEFINED, PrivateData::default());
            return;
        }
        let body = match message {
            Message::Request(request) => {
                endpoint.remote = Some(request.params);
                endpoint.mtu = request.mtu.min(endpoint.mtu);
                endpoint.options.tos = request.tos;
                Body::Connection {
                    params: request.params,
                    private: request.private,
                }
            }
            Message::SidrRequest(request) => Body::Lookup {
                private: request.private,
            },
            _ => return,
        };
        endpoint.state = State::RequestReceived;
        let channel = endpoint.channel.clone();
        table.endpoints.insert(key, endpoint);
        channel.push(Event {
            listener: Some(listening),
            ..Event::with(key, EventKind::ConnectRequest, 0, body)
        });
    }

    fn link_ready(&self, table: &mut Table, key: Key) {
        for _ in 0..PACKETS_PER_TURN {
            let Ok(endpoint) = table.endpoint(key) else {
                return;
            };
            let Some(socket) = endpoint.link.as_ref().and_then(Link::raw) else {
                return;
            };
            match receive(socket) {
                Input::Message(message) => {
                    endpoint.trace(&message, trace::From::Peer);
                    self.message(table, key, message);
                }
                Input::HangUp => return self.hung_up(table, key),
                Input::Nothing => return,
            }
        }
    }

    /// One message on the link of an endpoint. What does not fit the state is a peer that
    /// breaks the protocol: the connection ends as if it had hung up.
    pub(super) fn message(&self, table: &mut Table, key: Key, message: Message) {
        let now = Instant::now();
        let Ok(endpoint) = table.endpoint(key) else {
            return;
        };
        match (endpoint.state, message) {
            (State::RequestSent, Message::Reply { params, private }) if !endpoint.is_datagram() => {
                endpoint.remote = Some(params);
                endpoint.attempt = None;
                endpoint.state = State::ResponseReceived;
                let body = Body::Connection { params, private };
                endpoint.push(key, EventKind::ConnectResponse, 0, body);
                table.set_timer(key, None);
            }
            (State::RequestSent, Message::SidrReply(reply)) if endpoint.is_datagram() => {
                table.set_timer(key, None);
                if let Ok(endpoint) = table.endpoint(key) {
                    endpoint.looked_up(key, reply);
                }
            }
            (
                State::RequestSent,
                Message::Reject {
                    reason: message::REJ_NOT_MY_ADDRESS,
                    ..
                },
            ) => self.advance(table, key),
            (
                State::RequestSent
                | State::ResponseReceived
                | State::RequestReceived
                | State::ReplySent,
                Message::Reject { reason, private },
            ) => {
                let body = Body::Reject { private };
                endpoint.end(key, EventKind::Rejected, i32::from(reason), body);
                table.set_timer(key, None);
            }
            (State::ReplySent, Message::ReadyToUse) => {
                endpoint.state = State::Established;
                let body = endpoint.peer_body();
                endpoint.push(key, EventKind::Established, 0, body);
                table.set_timer(key, None);
            }
            (
                State::Established | State::ReplySent | State::ResponseReceived,
                Message::DisconnectRequest,
            ) => {
                endpoint.send(&Message::DisconnectReply);
                endpoint.push(key, EventKind::Disconnected, 0, Body::None);
                self.wait_out(table, key, now);
            }
            (State::Disconnecting, Message::DisconnectReply | Message::DisconnectRequest) => {
                endpoint.push(key, EventKind::Disconnected, 0, Body::None);
                self.wait_out(table, key, now);
            }
            // It crossed this side's DREQ, or data that came earlier made it superfluous.
            (State::Disconnecting | State::Established, Message::ReadyToUse) => {}
            _ => self.hung_up(table, key),
        }
    }

    /// The peer closed the link, or its process is gone.
    fn hung_up(&self, table: &mut Table, key: Key) {
        let now = Instant::now();
        let Ok(endpoint) = table.endpoint(key) else {
            return;
        };
        endpoint.link = None;
        let reset = -libc::ECONNRESET;
        match endpoint.state {
            State::RequestSent if endpoint.is_datagram() => {
                endpoint.end(key, EventKind::Unreachable, -libc::ETIMEDOUT, Body::None);
            }
            // IBTA 12.9.8.3: a side that goes away rejects what it was asked.
            State::RequestSent => {
                let status = i32::from(message::REJ_CONSUMER_DEFINED);
                endpoint.end(key, EventKind::Rejected, status, Body::None);
            }
            State::RequestReceived => {
                let status = i32::from(message::REJ_TIMEOUT);
                endpoint.end(key, EventKind::Rejected, status, Body::None);
            }
            State::ResponseReceived | State::ReplySent => {
                endpoint.end(key, EventKind::ConnectError, reset, Body::None);
            }
            State::Established | State::Disconnecting => {
                endpoint.push(key, EventKind::Disconnected, 0, Body::None);
                return self.wait_out(table, key, now);
            }
            _ => return,
        }
        table.set_timer(key, None);
    }

    pub(super) fn destroy(&self, table: &mut Table, key: Key) {
        table.set_timer(key, None);
        let Some(endpoint) = table.endpoints.remove(&key) else {
            return;
        };
        match endpoint.state {
            State::RequestSent | State::ResponseReceived | State::ReplySent => {
                endpoint.refuse(message::REJ_TIMEOUT, PrivateData::default());
            }
            State::RequestReceived => {
                endpoint.refuse(message::REJ_CONSUMER_DEFINED, PrivateData::default());
            }
            State::Established => endpoint.send(&Message::DisconnectRequest),
            _ => {}
        }
        table
            .strangers
            .retain(|_, stranger| stranger.listener != key);
        let dropped = endpoint
            .channel
            .take(|event| event.listener.unwrap_or(event.key) == key);
        // A request that nobody took has no identifier that could be destroyed.
        for request in dropped.iter().filter(|event| event.listener == Some(key)) {
            self.destroy(table, request.key);
        }
    }
}

impl Endpoint {
    /// Turns the peer down, in the form that fits what it asked.
    pub(super) fn refuse(&self, reason: u16, private: PrivateData) {
        let not_here = reason == message::REJ_NOT_MY_ADDRESS;
        if !self.is_datagram() || not_here {
            self.send(&Message::Reject { reason, private });
        } else if self.state == State::RequestReceived {
            let bytes = private.as_slice();
            let len = bytes.len().min(message::SIDR_REP_PRIVATE_MAX);
            let private = PrivateData::new(&bytes[..len], len).unwrap_or_default();
            self.send(&Message::SidrReply(SidrReply {
                status: message::SIDR_REJECT,
                qp_num: 0,
                qkey: 0,
                gid: [0; 16],
                private,
            }));
        }
    }

    /// The last event of a connection that never was.
    pub(super) fn end(&mut self, key: Key, kind: EventKind, status: i32, body: Body) {
        self.link = None;
        self.attempt = None;
        self.state = State::Closed;
        self.push(key, kind, status, body);
    }

    fn looked_up(&mut self, key: Key, reply: SidrReply) {
        self.link = None;
        self.attempt = None;
        if reply.status == message::SIDR_SUCCESS {
            self.state = State::Established;
            self.remote = Some(ConnParams {
                qp_num: reply.qp_num,
                gid: reply.gid,
                ..ConnParams::default()
            });
            let body = Body::Datagram {
                qp_num: reply.qp_num,
                qkey: reply.qkey,
                gid: reply.gid,
                private: reply.private,
            };
            self.push(key, EventKind::Established, 0, body);
        } else {
            let private = reply.private;
            let status = i32::from(reply.status);
            self.end(
                key,
                EventKind::Unreachable,
                status,
                Body::Reject { private },
            );
        }
    }

    /// What the peer said of itself, without the private data, which its request event
    /// had.
    pub(super) fn peer_body(&self) -> Body {
        self.remote.map_or(Body::None, |params| Body::Connection {
            params,
            private: PrivateData::default(),
        })
    }
}

fn receive(link: RawFd) -> Input {
    // One byte more than the longest message, so that a longer one shows.
    let mut buffer = [0; MESSAGE_LEN_MAX + 1];
    // A peer that closes with something unread leaves an error in front of what it sent.
    for _ in 0..2 {
        match unix::receive_with_fds(link, &mut buffer) {
            Ok(received) if received.len == 0 => return Input::HangUp,
            Ok(received) if received.truncated => return Input::HangUp,
            Ok(received) => {
                return Message::parse(&buffer[..received.len])
                    .map_or(Input::HangUp, Input::Message);
            }
            Err(Errno::AGAIN) => return Input::Nothing,
            Err(_) => {}
        }
    }
    Input::HangUp
}

/// Rounded up, so that the timer is due when the wait is over. -1 waits for ever.
fn timeout_ms(deadline: Option<Instant>) -> i32 {
    deadline.map_or(-1, |deadline| {
        let left = deadline.saturating_duration_since(Instant::now());
        let rounded = left + Duration::from_micros(999);
        i32::try_from(rounded.as_millis()).unwrap_or(i32::MAX)
    })
}
