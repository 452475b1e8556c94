//! Peers on other hosts: what the agent does with its [`Fabric`].

use std::sync::Arc;
use std::time::{Duration, Instant};

use super::endpoint::{Endpoint, Link};
use super::state::State;
use super::{Shared, Table};
use crate::Errno;
use crate::address::Address;
use crate::channel::{Body, EventKind, Key};
use crate::fabric::machine::{Happening, Incoming};
use crate::fabric::port::Fabric;
use crate::message::{self, Message};

/// Datagrams taken before the others have their turn.
const DATAGRAMS_PER_TURN: usize = 256;
/// How often the directory is searched for the listener of a request, in each of these times:
/// whoever floods a host with requests for services that nobody has is not to keep it busy.
const LOOKUPS_MAX: u32 = 100;
const LOOKUPS_TIME: Duration = Duration::from_millis(100);
/// Until a listener that was not there is asked for again.
const ASK_AGAIN: Duration = Duration::from_millis(50);

impl Table {
    pub(super) fn may_look_up(&mut self, now: Instant) -> bool {
        let (since, count) = match self.looked_up {
            Some((since, count)) if now < since + LOOKUPS_TIME => (since, count),
            _ => (now, 0),
        };
        self.looked_up = Some((since, count.saturating_add(1)));
        count < LOOKUPS_MAX
    }
}

impl Shared {
    fn fabric(&self) -> Option<&Arc<Fabric>> {
        self.fabric.get()
    }

    /// Decides by what device an identifier's peers are reached: addresses of this host by a
    /// device for this host if there is one, all others over the wire. An identifier without a
    /// destination takes the first kind too; requests come to it from everywhere.
    pub(super) fn choose_device(&self, endpoint: &mut Endpoint, destination: Option<&Address>) {
        let Some(fabric) = self.fabric() else {
            return;
        };
        let config = fabric.config();
        // A group is everywhere; that the kernel lets programs bind to it does not make it local.
        let elsewhere =
            destination.is_some_and(|address| address.ip.is_multicast() || !address.is_local());
        endpoint.over_wire = elsewhere || !config.host_device;
        if endpoint.over_wire {
            endpoint.mtu = config.mtu;
        }
    }

    /// A listener takes requests from everywhere. Without a way to the network it still takes
    /// those of this host, if there is a device for them.
    pub(super) fn listen_on_wire(&self) -> Result<(), Errno> {
        match self.fabric() {
            Some(fabric) => match fabric.start() {
                Err(_) if fabric.config().host_device => Ok(()),
                started => started,
            },
            None => Ok(()),
        }
    }

    /// Sends the request of an attempt to another host.
    pub(super) fn ask_on_wire(&self, table: &mut Table, key: Key) {
        let Ok(endpoint) = table.endpoint(key) else {
            return;
        };
        endpoint.link = None;
        let (source, destination) = (endpoint.bound_source(), endpoint.destination);
        let (Some(fabric), Some(source), Some(destination), Some(attempt)) =
            (self.fabric(), source, destination, &endpoint.attempt)
        else {
            return;
        };
        let request = attempt.request.clone();
        match fabric.open(key, &source, &destination) {
            Ok(link) => {
                endpoint.link = Some(Link::Wire(link));
                endpoint.send(&request);
            }
            Err(errno) => endpoint.end(key, EventKind::Unreachable, -errno.0, Body::None),
        }
    }

    /// When there is something to do for the fabric. Under the table's lock, so that what changes
    /// afterwards wakes the thread.
    pub(super) fn wire_deadline(&self, _table: &Table) -> Option<Instant> {
        let fabric = self.fabric()?;
        let deadline = fabric.deadline();
        // It is due: the turn does it.
        if deadline.is_some_and(|deadline| deadline <= Instant::now()) {
            self.wake.raise();
        }
        deadline
    }

    /// Timers, datagrams and what comes of them.
    pub(super) fn wire_turn(&self, table: &mut Table) {
        let Some(fabric) = self.fabric() else {
            return;
        };
        fabric.tick(Instant::now());
        self.wire_events(table, fabric);
        for _ in 0..DATAGRAMS_PER_TURN {
            let (more, incoming) = fabric.take_one(Instant::now());
            if !more {
                return;
            }
            if let Some(incoming) = incoming {
                self.asked_on_wire(table, fabric, incoming);
            }
            self.wire_events(table, fabric);
        }
        self.wake.raise();
    }

    fn wire_events(&self, table: &mut Table, fabric: &Fabric) {
        // A connection has two at most, and each request that follows one of them is a new one,
        // which has to be answered first.
        while let Some((key, happening)) = fabric.next_event() {
            match happening {
                Happening::Message(message) if self.not_there_yet(table, key, &message) => {
                    let again = Instant::now() + ASK_AGAIN;
                    if let Ok(endpoint) = table.endpoint(key) {
                        endpoint.link = None;
                    }
                    table.set_timer(key, Some(again));
                }
                Happening::Message(message) => self.message(table, key, message),
                Happening::SmallerMtu(mtu) => {
                    if let Ok(endpoint) = table.endpoint(key)
                        && let Some(attempt) = &mut endpoint.attempt
                        && let Message::Request(request) = &mut attempt.request
                    {
                        request.mtu = mtu;
                        endpoint.mtu = mtu;
                        self.ask_on_wire(table, key);
                    }
                }
                Happening::Unreachable => {
                    if let Ok(endpoint) = table.endpoint(key) {
                        let status = -libc::ETIMEDOUT;
                        endpoint.end(key, EventKind::Unreachable, status, Body::None);
                    }
                }
                Happening::DisconnectTimedOut => {
                    if let Ok(endpoint) = table.endpoint(key) {
                        let status = -libc::ETIMEDOUT;
                        endpoint.push(key, EventKind::Disconnected, status, Body::None);
                    }
                    self.wait_out(table, key, Instant::now());
                }
            }
        }
    }

    /// Nobody listens there, but somebody soon may ([`super::Limits::absent`]).
    fn not_there_yet(&self, table: &mut Table, key: Key, message: &Message) -> bool {
        let absent = match message {
            Message::Reject { reason, .. } => *reason == message::REJ_INVALID_SERVICE_ID,
            Message::SidrReply(reply) => reply.status == message::SIDR_UNSUPPORTED,
            _ => false,
        };
        let now = Instant::now();
        absent
            && table.endpoint(key).is_ok_and(|endpoint| {
                let attempt = endpoint.attempt.as_ref();
                endpoint.state == State::RequestSent
                    && attempt.is_some_and(|attempt| now < attempt.absent_until)
            })
    }

    /// A request came: from whom, and for which listener?
    fn asked_on_wire(&self, table: &mut Table, fabric: &Arc<Fabric>, incoming: Incoming) {
        let (port_space, destination, datagram) = match &incoming.message {
            Message::Request(request) => (request.port_space, request.destination, false),
            Message::SidrRequest(request) => (request.port_space, request.destination, true),
            _ => return,
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
        let listener = table
            .endpoints
            .iter()
            .filter_map(|(key, endpoint)| answers(endpoint).map(|rank| (rank, *key)))
            .min();
        let Some((_, listener)) = listener else {
            // Beyond the limit it is as if it had got lost.
            if !incoming.passed_on && table.may_look_up(Instant::now()) {
                match self.names.somebody_listens(port_space, &destination) {
                    true => fabric.pass_on(incoming),
                    false => fabric.turn_away(&incoming),
                }
            }
            return;
        };
        table.last_key += 1;
        let key = table.last_key;
        // Too many connections: the peer asks again.
        if let Some(link) = fabric.admit(&incoming, key) {
            self.request_received(table, key, listener, Link::Wire(link), incoming.message);
        }
    }
}
