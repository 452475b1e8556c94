//! The connection manager's thread: what peers send, hang-ups and timers.

use std::sync::{Arc, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use super::endpoint::Endpoint;
use super::{Shared, Table};
use crate::channel::{Body, Event, EventKind, Key};
use crate::connector::{Arrival, Asked, Connector, From, Happening, IncomingRequest, Link, WAKE};
use crate::message::{self, ConnParams, Message, PrivateData, SidrReply};
use crate::state::State;

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
            let ready = self.around.poller.wait(timeout_ms);
            let mut table = self.table();
            table.asleep_until = None;
            if ready.contains(&WAKE) {
                self.around.wake.lower();
            }
            for way in &self.ways {
                way.begin_turn(&ready);
                while let Some(arrival) = way.next() {
                    match arrival {
                        Arrival::Request(request) => self.asked(&mut table, way, request),
                        Arrival::Happened(key, happening) => {
                            self.happened(&mut table, key, happening);
                        }
                    }
                }
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
            self.around.wake.raise();
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
        let timers = table.timers.first().map(|(deadline, _)| *deadline);
        // Under the table's lock, so that what changes afterwards wakes the thread.
        let ways = self.ways.iter().filter_map(|way| way.deadline());
        ways.chain(timers).min()
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
    fn wait_out(&self, table: &mut Table, key: Key, now: Instant) {
        if let Ok(endpoint) = table.endpoint(key) {
            endpoint.link = None;
            endpoint.state = State::TimeWait;
            table.set_timer(key, Some(now + self.around.limits.time_wait));
        }
    }

    /// Sends the request of an attempt to the next one who may answer.
    pub(super) fn advance(&self, table: &mut Table, key: Key) {
        let Ok(endpoint) = table.endpoint(key) else {
            return;
        };
        endpoint.link = None;
        let Some(attempt) = endpoint.attempt.as_mut() else {
            return;
        };
        match attempt.search.ask(key) {
            Asked::On(link, until) => {
                let request = attempt.request.clone();
                endpoint.link = Some(link);
                endpoint.send(&request);
                if until.is_some() {
                    table.set_timer(key, until);
                }
            }
            Asked::Again(when) => table.set_timer(key, Some(when)),
            Asked::Nobody(kind, status) => {
                endpoint.end(key, kind, status, Body::None);
                table.set_timer(key, None);
            }
        }
    }

    /// A request came: for which listener?
    fn asked(
        &self,
        table: &mut Table,
        way: &Arc<dyn Connector>,
        request: Box<dyn IncomingRequest>,
    ) {
        let listener = request.listener();
        let Some(listener) = listener.or_else(|| table.listener_for(request.message())) else {
            return request.nobody_listens();
        };
        table.last_key += 1;
        let key = table.last_key;
        if let Some((link, message)) = request.admit(key) {
            self.request_received(table, key, listener, (way, link), message);
        }
    }

    fn happened(&self, table: &mut Table, key: Key, happening: Happening) {
        let Ok(endpoint) = table.endpoint(key) else {
            return;
        };
        let timed_out = -libc::ETIMEDOUT;
        match happening {
            Happening::Message(message) => {
                endpoint.trace(&message, From::Peer);
                match endpoint.again(&message) {
                    Some(again) => {
                        endpoint.link = None;
                        table.set_timer(key, Some(again));
                    }
                    None => self.message(table, key, message),
                }
            }
            Happening::HungUp => self.hung_up(table, key),
            Happening::SmallerMtu(mtu) => {
                if let Some(attempt) = &mut endpoint.attempt
                    && let Message::Request(request) = &mut attempt.request
                {
                    request.mtu = mtu;
                    endpoint.mtu = mtu;
                    self.advance(table, key);
                }
            }
            Happening::Unreachable => {
                endpoint.end(key, EventKind::Unreachable, timed_out, Body::None);
            }
            Happening::DisconnectTimedOut => {
                endpoint.push(key, EventKind::Disconnected, timed_out, Body::None);
                self.wait_out(table, key, Instant::now());
            }
        }
    }

    /// Makes an endpoint of a request, under the key that its link tells.
    fn request_received(
        &self,
        table: &mut Table,
        key: Key,
        listening: Key,
        (way, link): (&Arc<dyn Connector>, Box<dyn Link>),
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
        let (channel, way) = (listener.channel.clone(), Arc::clone(way));
        let mut endpoint = Endpoint::new(port_space, qp_type, channel, way);
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

    /// One message on the link of an endpoint. What does not fit the state is a peer that
    /// breaks the protocol: the connection ends as if it had hung up.
    fn message(&self, table: &mut Table, key: Key, message: Message) {
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
        self.end_listening(key);
        let dropped = endpoint
            .channel
            .take(|event| event.listener.unwrap_or(event.key) == key);
        // A request that nobody took has no identifier that could be destroyed.
        for request in dropped.iter().filter(|event| event.listener == Some(key)) {
            self.destroy(table, request.key);
        }
    }
}

impl Table {
    /// The listener of this process that a request is for: one with the address before one with
    /// any.
    fn listener_for(&self, message: &Message) -> Option<Key> {
        let (port_space, destination, datagram) = match message {
            Message::Request(request) => (request.port_space, request.destination, false),
            Message::SidrRequest(request) => (request.port_space, request.destination, true),
            _ => return None,
        };
        let answers = |endpoint: &Endpoint| {
            let claim = endpoint.claim.as_ref()?;
            let address = claim.address();
            (endpoint.state == State::Listening
                && endpoint.port_space == port_space
                && endpoint.is_datagram() == datagram
                && address.port == destination.port
                && claim.answers_for(&destination))
            .then(|| u8::from(address.is_any()) + u8::from(!address.same_family(&destination)))
        };
        let listeners = self.endpoints.iter();
        listeners
            .filter_map(|(key, endpoint)| answers(endpoint).map(|rank| (rank, *key)))
            .min()
            .map(|(_, key)| key)
    }
}

impl Endpoint {
    /// Nobody answers this request, but somebody soon may: when to ask again.
    fn again(&self, answer: &Message) -> Option<Instant> {
        let attempt = self.attempt.as_ref()?;
        (self.state == State::RequestSent)
            .then(|| attempt.search.again(answer))
            .flatten()
    }

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

/// Rounded up, so that the timer is due when the wait is over. -1 waits for ever.
fn timeout_ms(deadline: Option<Instant>) -> i32 {
    deadline.map_or(-1, |deadline| {
        let left = deadline.saturating_duration_since(Instant::now());
        let rounded = left + Duration::from_micros(999);
        i32::try_from(rounded.as_millis()).unwrap_or(i32::MAX)
    })
}
