//! The connection manager of a process: what the kernel's rdma_cm is to librdmacm.
//!
//! Identifiers are numbers here and know nothing of QPs. Calls change an identifier's
//! state under one lock and never wait for a peer; one thread, asleep while nothing
//! happens, takes what peers send and turns it into events. How peers are found and reached is the
//! matter of [ways](crate::connector).

mod endpoint;
mod handle;
#[cfg(test)]
mod tests;
#[cfg(test)]
mod wire_tests;

use std::collections::{BTreeSet, HashMap};
use std::os::fd::RawFd;
use std::sync::{Arc, Mutex, MutexGuard};
use std::thread::JoinHandle;
use std::time::Instant;

use super::Errno;
use super::address::Address;
use super::channel::{Body, Channel, EventKind, Key};
use super::connector::{Connector, Limits, Surroundings, Target};
use super::message::{
    self, ConnParams, Ece, Message, PrivateData, Request, SidrReply, SidrRequest,
};
use super::poller;
use super::rendezvous::{Claim, Rendezvous};
use super::state::State;
pub use endpoint::Options;
use endpoint::{Attempt, Endpoint};

/// What a listener's backlog is when a program gives none, and the most it can be.
const BACKLOG_MAX: i32 = 1024;

/// What a program may want to know about an identifier.
#[derive(Clone, Copy, Debug)]
pub struct Info {
    pub port_space: u16,
    pub qp_type: u8,
    pub source: Option<Address>,
    pub destination: Option<Address>,
    pub options: Options,
    pub local: ConnParams,
    pub remote: Option<ConnParams>,
    pub mtu: u8,
    /// The name of the way that it takes to its peer.
    pub way: &'static str,
    /// The device that carries what is connected this way.
    pub device: usize,
    /// The local ACK timeout that the two sides have agreed on.
    pub ack_timeout: Option<u8>,
}

pub struct Agent {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

struct Shared {
    table: Mutex<Table>,
    around: Arc<Surroundings>,
    /// In the order of preference; there is at least one.
    ways: Vec<Arc<dyn Connector>>,
}

#[derive(Default)]
struct Table {
    last_key: Key,
    endpoints: HashMap<Key, Endpoint>,
    timers: BTreeSet<(Instant, Key)>,
    /// The thread sleeps until then; `None` while it is awake or sleeps without a limit.
    asleep_until: Option<Instant>,
    stop: bool,
}

impl Agent {
    /// Starts the connection manager's thread. It takes no signals. `ways` are the ways to peers,
    /// those first that are preferred; `ENODEV` without one.
    pub fn start(
        names: Arc<Rendezvous>,
        limits: Limits,
        ways: impl FnOnce(&Arc<Surroundings>) -> Vec<Arc<dyn Connector>>,
    ) -> Result<Self, Errno> {
        let around = Surroundings::new(names, limits)?;
        let ways = ways(&around);
        if ways.is_empty() {
            return Err(Errno(libc::ENODEV));
        }
        let shared = Arc::new(Shared {
            table: Mutex::default(),
            around,
            ways,
        });
        let for_thread = Arc::clone(&shared);
        let thread = poller::without_signals(|| {
            std::thread::Builder::new()
                .name("sluice-cm".to_owned())
                .stack_size(256 << 10)
                .spawn(move || for_thread.run())
        })
        .map_err(|e| super::errno_of(&e))?;
        Ok(Self {
            shared,
            thread: Some(thread),
        })
    }

    /// The process ends: tells the peers who would not see it otherwise.
    pub fn leave(&self) {
        for way in &self.shared.ways {
            way.leave();
        }
    }

    fn table(&self) -> MutexGuard<'_, Table> {
        self.shared.table()
    }

    /// A new identifier, whose events go to `channel`.
    pub fn create(&self, port_space: u16, qp_type: u8, channel: &Arc<Channel>) -> Key {
        let mut table = self.table();
        let endpoint = self
            .shared
            .endpoint(port_space, qp_type, Arc::clone(channel));
        table.insert(endpoint)
    }

    pub fn info(&self, key: Key) -> Result<Info, Errno> {
        let mut table = self.table();
        let endpoint = table.endpoint(key)?;
        Ok(Info {
            port_space: endpoint.port_space,
            qp_type: endpoint.qp_type,
            source: endpoint.bound_source(),
            destination: endpoint.destination,
            options: endpoint.options,
            local: endpoint.local,
            remote: endpoint.remote,
            mtu: endpoint.mtu,
            way: endpoint.way.name(),
            device: endpoint.way.device(),
            ack_timeout: endpoint.link.as_ref().and_then(|link| link.ack_timeout()),
        })
    }

    /// Changes the options. Sharing and family must be said before the address is bound.
    pub fn set_options(&self, key: Key, change: impl FnOnce(&mut Options)) -> Result<(), Errno> {
        let mut table = self.table();
        let endpoint = table.endpoint(key)?;
        let mut options = endpoint.options;
        change(&mut options);
        let sharing = (options.reuse, options.family_only);
        let before = (endpoint.options.reuse, endpoint.options.family_only);
        if sharing != before && endpoint.state != State::Idle {
            return Err(Errno::INVAL);
        }
        endpoint.options = options;
        Ok(())
    }

    pub fn set_ece(&self, key: Key, ece: Ece) -> Result<(), Errno> {
        self.table().endpoint(key)?.local.ece = ece;
        Ok(())
    }

    /// Binds an identifier. `EADDRNOTAVAIL` when the address is not of this host.
    pub fn bind(&self, key: Key, address: Address) -> Result<(), Errno> {
        let mut table = self.table();
        let endpoint = table.endpoint_in(key, &[State::Idle])?;
        self.shared.bind(endpoint, address)?;
        self.shared.choose_way(endpoint, None);
        endpoint.state = State::Bound;
        Ok(())
    }

    /// Finds the source address for a destination; ADDR_RESOLVED or ADDR_ERROR tells.
    pub fn resolve_addr(
        &self,
        key: Key,
        source: Option<Address>,
        destination: Address,
    ) -> Result<(), Errno> {
        let mut table = self.table();
        let endpoint = table.endpoint_in(key, &[State::Idle, State::Bound])?;
        if endpoint.state == State::Idle {
            let source = source.unwrap_or_else(|| Address::any_like(&destination, 0));
            self.shared.bind(endpoint, source)?;
            endpoint.state = State::Bound;
        }
        let bound = endpoint.bound_source().ok_or(Errno::INVAL)?;
        if !bound.same_family(&destination) && !bound.is_any() {
            return Err(Errno::INVAL);
        }
        let resolved = if bound.is_any() {
            destination.route_source()
        } else {
            Ok(bound)
        };
        match resolved {
            Ok(address) => {
                endpoint.source = Some(address.with_port(bound.port));
                endpoint.destination = Some(if destination.is_any() {
                    address.with_port(destination.port)
                } else {
                    destination
                });
                let resolved = endpoint.destination;
                self.shared.choose_way(endpoint, resolved.as_ref());
                endpoint.state = State::AddrResolved;
                endpoint.push(key, EventKind::AddrResolved, 0, Body::None);
            }
            Err(errno) => endpoint.push(key, EventKind::AddrError, -errno.0, Body::None),
        }
        Ok(())
    }

    /// There is nothing to find that the routing tables did not say: ROUTE_RESOLVED follows.
    pub fn resolve_route(&self, key: Key) -> Result<(), Errno> {
        let mut table = self.table();
        let endpoint = table.endpoint_in(key, &[State::AddrResolved])?;
        endpoint.state = State::RouteResolved;
        endpoint.push(key, EventKind::RouteResolved, 0, Body::None);
        Ok(())
    }

    /// Takes requests for the bound address. A `backlog` of 0 or less means the most.
    pub fn listen(&self, key: Key, backlog: i32) -> Result<(), Errno> {
        let mut table = self.table();
        let endpoint = table.endpoint(key)?;
        if endpoint.state == State::Idle {
            // As listen(2) on a socket without an address.
            let any = Address::new(std::net::Ipv4Addr::UNSPECIFIED.into(), 0);
            self.shared.bind(endpoint, any)?;
            endpoint.state = State::Bound;
        }
        let endpoint = table.endpoint_in(key, &[State::Bound])?;
        let backlog = match backlog {
            1..=BACKLOG_MAX => backlog,
            _ => BACKLOG_MAX,
        };
        let claim = endpoint.claim.as_mut().ok_or(Errno::INVAL)?;
        self.shared.listen(key, claim)?;
        endpoint.backlog = backlog as usize;
        endpoint.state = State::Listening;
        Ok(())
    }

    /// Asks the destination for a connection. What comes of it comes as an event.
    pub fn connect(&self, key: Key, params: ConnParams, private: PrivateData) -> Result<(), Errno> {
        self.request(key, |endpoint, source, destination| {
            let ece = endpoint.local.ece;
            endpoint.local = ConnParams { ece, ..params };
            Message::Request(Request {
                port_space: endpoint.port_space,
                qp_type: endpoint.qp_type,
                mtu: endpoint.mtu,
                tos: endpoint.options.tos,
                source,
                destination,
                params: endpoint.local,
                private,
            })
        })
    }

    /// Asks the destination for the QP of its datagram service.
    pub fn lookup(&self, key: Key, private: PrivateData) -> Result<(), Errno> {
        self.request(key, |endpoint, source, destination| {
            Message::SidrRequest(SidrRequest {
                port_space: endpoint.port_space,
                source,
                destination,
                private,
            })
        })
    }

    fn request(
        &self,
        key: Key,
        message: impl FnOnce(&mut Endpoint, Address, Address) -> Message,
    ) -> Result<(), Errno> {
        let mut table = self.table();
        let endpoint = table.endpoint_in(key, &[State::RouteResolved])?;
        let source = endpoint.bound_source().ok_or(Errno::INVAL)?;
        let destination = endpoint.destination.ok_or(Errno::INVAL)?;
        let search = endpoint.way.search(&Target {
            port_space: endpoint.port_space,
            source,
            destination,
            is_datagram: endpoint.is_datagram(),
        })?;
        let request = message(endpoint, source, destination);
        endpoint.attempt = Some(Attempt { request, search });
        endpoint.state = State::RequestSent;
        self.shared.advance(&mut table, key);
        self.shared.wake_for_timers(&mut table);
        Ok(())
    }

    /// Accepts a connection request; ESTABLISHED follows when the requester is ready.
    pub fn accept(&self, key: Key, params: ConnParams, private: PrivateData) -> Result<(), Errno> {
        let mut table = self.table();
        let endpoint = table.endpoint_in(key, &[State::RequestReceived])?;
        if endpoint.is_datagram() {
            return Err(Errno::INVAL);
        }
        if let Some(link) = &endpoint.link {
            link.may_accept()?;
        }
        let ece = endpoint.local.ece;
        let params = ConnParams { ece, ..params };
        endpoint.local = params;
        endpoint.send(&Message::Reply { params, private });
        endpoint.state = State::ReplySent;
        if let Some(time) = endpoint.way.patience().reply {
            table.set_timer(key, Some(Instant::now() + time));
            self.shared.wake_for_timers(&mut table);
        }
        Ok(())
    }

    /// Answers a datagram lookup with a QP.
    pub fn accept_lookup(&self, key: Key, reply: SidrReply) -> Result<(), Errno> {
        let mut table = self.table();
        let endpoint = table.endpoint_in(key, &[State::RequestReceived])?;
        if !endpoint.is_datagram() {
            return Err(Errno::INVAL);
        }
        endpoint.send(&Message::SidrReply(reply));
        endpoint.link = None;
        endpoint.state = State::Established;
        Ok(())
    }

    /// Turns a request down.
    pub fn reject(&self, key: Key, private: PrivateData) -> Result<(), Errno> {
        let mut table = self.table();
        let endpoint = table.endpoint_in(key, &[State::RequestReceived])?;
        endpoint.refuse(message::REJ_CONSUMER_DEFINED, private);
        endpoint.link = None;
        endpoint.state = State::Closed;
        Ok(())
    }

    /// Active side: tells the peer that this side's QP is ready. One that has disconnected meanwhile, as after
    /// all it had to say, was connected: DISCONNECTED waits to be taken.
    pub fn ready(&self, key: Key) -> Result<(), Errno> {
        let mut table = self.table();
        let endpoint = table.endpoint_in(key, &[State::ResponseReceived, State::TimeWait])?;
        if endpoint.state == State::ResponseReceived {
            endpoint.send(&Message::ReadyToUse);
            endpoint.state = State::Established;
        }
        Ok(())
    }

    /// Active side: the reply came, but the QP did not take it.
    pub fn give_up(&self, key: Key) -> Result<(), Errno> {
        let mut table = self.table();
        let endpoint = table.endpoint_in(key, &[State::ResponseReceived])?;
        endpoint.refuse(message::REJ_CONSUMER_DEFINED, PrivateData::default());
        endpoint.link = None;
        endpoint.state = State::Closed;
        Ok(())
    }

    /// Passive side: data came before the requester's RTU, so it is connected.
    /// `EISCONN` when that is known already.
    pub fn communication_established(&self, key: Key) -> Result<(), Errno> {
        let mut table = self.table();
        let endpoint = table.endpoint(key)?;
        match endpoint.state {
            State::ReplySent => {
                if let Some(link) = &endpoint.link {
                    link.communication_established();
                }
                endpoint.state = State::Established;
                let body = endpoint.peer_body();
                endpoint.push(key, EventKind::Established, 0, body);
                table.set_timer(key, None);
                Ok(())
            }
            State::Established => Err(Errno(libc::EISCONN)),
            _ => Err(Errno::INVAL),
        }
    }

    /// Ends a connection; DISCONNECTED follows on both sides. Nothing happens when it has
    /// ended already. `EINVAL` when there never was one.
    pub fn disconnect(&self, key: Key) -> Result<(), Errno> {
        let mut table = self.table();
        let endpoint = table.endpoint(key)?;
        match endpoint.state {
            State::Established | State::ReplySent | State::ResponseReceived
                if endpoint.link.is_some() =>
            {
                endpoint.send(&Message::DisconnectRequest);
                endpoint.state = State::Disconnecting;
                if let Some(time) = endpoint.way.patience().disconnect {
                    table.set_timer(key, Some(Instant::now() + time));
                    self.shared.wake_for_timers(&mut table);
                }
                Ok(())
            }
            State::Disconnecting | State::TimeWait | State::Closed => Ok(()),
            State::RequestSent | State::RequestReceived => Ok(()),
            _ => Err(Errno::INVAL),
        }
    }

    /// Forgets an identifier. Its events that nobody took are gone, requests among them
    /// are turned down, the peer is told.
    pub fn destroy(&self, key: Key) {
        let mut table = self.table();
        self.shared.destroy(&mut table, key);
    }

    /// Sends an identifier's events, also those that wait, to another channel.
    pub fn migrate(&self, key: Key, channel: &Arc<Channel>) -> Result<(), Errno> {
        let mut table = self.table();
        let endpoint = table.endpoint(key)?;
        let old = std::mem::replace(&mut endpoint.channel, Arc::clone(channel));
        // A request belongs to its listener until it is taken.
        let waiting = old.take(|event| event.listener.unwrap_or(event.key) == key);
        for event in waiting {
            if event.listener.is_some()
                && let Ok(requested) = table.endpoint(event.key)
            {
                requested.channel = Arc::clone(channel);
            }
            channel.push(event);
        }
        Ok(())
    }

    /// Queues an event that no peer caused.
    pub fn notify(&self, key: Key, kind: EventKind, status: i32, body: Body) -> Result<(), Errno> {
        self.table().endpoint(key)?.push(key, kind, status, body);
        Ok(())
    }

    /// The descriptors that a forked child must not keep, since the thread that serves
    /// them lives in the parent: a peer would not see its death. Empty when a thread of the
    /// parent was inside the table at the fork.
    pub fn descriptors(&self) -> Vec<RawFd> {
        let Ok(table) = self.shared.table.try_lock() else {
            return Vec::new();
        };
        let claims = table
            .endpoints
            .values()
            .filter_map(|endpoint| endpoint.claim.as_ref())
            .map(Claim::fd);
        let ways = self.shared.ways.iter();
        ways.flat_map(|way| way.descriptors())
            .chain(claims)
            .collect()
    }
}

impl Drop for Agent {
    fn drop(&mut self) {
        self.table().stop = true;
        self.shared.around.wake.raise();
        if let Some(thread) = self.thread.take() {
            // It ends after its round; a panic in it was its own matter.
            let _ = thread.join();
        }
    }
}

impl Table {
    fn insert(&mut self, endpoint: Endpoint) -> Key {
        self.last_key += 1;
        self.endpoints.insert(self.last_key, endpoint);
        self.last_key
    }

    fn endpoint(&mut self, key: Key) -> Result<&mut Endpoint, Errno> {
        self.endpoints.get_mut(&key).ok_or(Errno::INVAL)
    }

    /// The endpoint, if it is in one of the states in which the call is allowed.
    fn endpoint_in(&mut self, key: Key, states: &[State]) -> Result<&mut Endpoint, Errno> {
        self.endpoint(key)
            .ok()
            .filter(|endpoint| states.contains(&endpoint.state))
            .ok_or(Errno::INVAL)
    }

    /// Replaces the endpoint's timer.
    fn set_timer(&mut self, key: Key, deadline: Option<Instant>) {
        let Some(endpoint) = self.endpoints.get_mut(&key) else {
            return;
        };
        let old = std::mem::replace(&mut endpoint.deadline, deadline);
        if let Some(old) = old {
            self.timers.remove(&(old, key));
        }
        if let Some(deadline) = deadline {
            self.timers.insert((deadline, key));
        }
    }
}

impl Shared {
    /// A new endpoint, which goes nowhere yet.
    fn endpoint(&self, port_space: u16, qp_type: u8, channel: Arc<Channel>) -> Endpoint {
        Endpoint::new(port_space, qp_type, channel, Arc::clone(&self.ways[0]))
    }

    /// Decides how an identifier's peers are reached. One without a destination takes the way that
    /// is preferred; requests come to it by all of them.
    fn choose_way(&self, endpoint: &mut Endpoint, destination: Option<&Address>) {
        let leads = self.ways.iter().find(|way| way.leads_to(destination));
        let way = leads.unwrap_or(&self.ways[0]);
        endpoint.way = Arc::clone(way);
        endpoint.mtu = way.mtu();
    }

    fn listen(&self, key: Key, claim: &mut Claim) -> Result<(), Errno> {
        let listening = self.ways.iter().try_for_each(|way| way.listen(key, claim));
        if listening.is_err() {
            self.end_listening(key);
        }
        listening
    }

    fn end_listening(&self, key: Key) {
        for way in &self.ways {
            way.end_listening(key);
        }
    }

    fn bind(&self, endpoint: &mut Endpoint, address: Address) -> Result<(), Errno> {
        if !address.is_any() && !address.is_local() {
            return Err(Errno(libc::EADDRNOTAVAIL));
        }
        let options = endpoint.options;
        let claim = self.around.names.claim(
            endpoint.port_space,
            address,
            options.reuse,
            options.family_only,
        )?;
        endpoint.source = Some(claim.address());
        endpoint.claim = Some(claim);
        Ok(())
    }
}
