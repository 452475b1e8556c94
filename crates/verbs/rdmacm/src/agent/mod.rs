//! The connection manager of a process: what the kernel's rdma_cm is to librdmacm.
//!
//! Identifiers are numbers here and know nothing of QPs. Calls change an identifier's
//! state under one lock and never wait for a peer; one thread, asleep while nothing
//! happens, takes what peers send and turns it into events.

mod endpoint;
mod handle;
mod state;
#[cfg(test)]
mod tests;
mod trace;
mod wire;
#[cfg(test)]
mod wire_tests;

use std::collections::{BTreeSet, HashMap};
use std::os::fd::RawFd;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use sluice_sys::unix::{self, Fd};

use super::Errno;
use super::address::Address;
use super::channel::{Body, Channel, EventKind, Key};
use super::fabric::port::{self, Fabric};
use super::message::{
    self, ConnParams, Ece, Message, PrivateData, Request, SidrReply, SidrRequest,
};
use super::poller::{self, Level, Poller, Watched};
use super::rendezvous::{Claim, Rendezvous};
pub use endpoint::Options;
use endpoint::{Attempt, Endpoint, Link};
pub use state::State;

/// The number under which the wake-up descriptor is watched; keys begin after it.
const WAKE: u64 = 0;
/// Connections that a listener has accepted and that have not sent their request yet.
const STRANGERS_MAX: usize = 128;
/// What a listener's backlog is when a program gives none, and the most it can be.
const BACKLOG_MAX: i32 = 1024;
/// `IBV_MTU_4096`, the port's.
pub const DEFAULT_MTU: u8 = 5;

/// How long things may take.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Until a request or a reply without an answer is given up: the kernel's 16 times
    /// 4.3 s.
    pub response: Duration,
    /// Until a listener with a full backlog is tried again.
    pub retry: Duration,
    /// How long a request looks for a listener that is not there. Finding an address and a
    /// route takes a network some time, and programs rely on it: perftest's server closes
    /// its listener and opens the next one while its client is on the way.
    pub absent: Duration,
    /// Until a DREQ without an answer is given up.
    pub disconnect: Duration,
    /// From the disconnection to TIMEWAIT_EXIT.
    pub time_wait: Duration,
    /// Until an accepted connection must have sent its request.
    pub stranger: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            response: Duration::from_secs(69),
            retry: Duration::from_millis(5),
            absent: Duration::from_millis(300),
            disconnect: Duration::from_secs(4),
            time_wait: Duration::from_secs(2),
            stranger: Duration::from_secs(5),
        }
    }
}

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
    /// The identifier's device is one whose peers are on other hosts.
    pub over_wire: bool,
    /// The local ACK timeout that the two sides have agreed on.
    pub ack_timeout: Option<u8>,
}

pub struct Agent {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

struct Shared {
    table: Mutex<Table>,
    poller: Arc<Poller>,
    wake: Arc<Level>,
    /// Set once, before there are identifiers.
    fabric: OnceLock<Arc<Fabric>>,
    names: Arc<Rendezvous>,
    limits: Limits,
}

/// A connection that a listener accepted and whose request is still to come.
struct Stranger {
    listener: Key,
    link: Watched,
    deadline: Instant,
}

#[derive(Default)]
struct Table {
    last_key: Key,
    endpoints: HashMap<Key, Endpoint>,
    strangers: HashMap<Key, Stranger>,
    timers: BTreeSet<(Instant, Key)>,
    /// The thread sleeps until then; `None` while it is awake or sleeps without a limit.
    asleep_until: Option<Instant>,
    /// Looks into the directory for other hosts' requests: since when, and how many.
    looked_up: Option<(Instant, u32)>,
    stop: bool,
}

impl Agent {
    /// Starts the connection manager's thread. It takes no signals.
    pub fn start(names: Arc<Rendezvous>, limits: Limits) -> Result<Self, Errno> {
        let shared = Arc::new(Shared {
            table: Mutex::default(),
            poller: Arc::new(Poller::new()?),
            wake: Arc::new(Level::new()?),
            fabric: OnceLock::new(),
            names,
            limits,
        });
        shared.poller.add(shared.wake.fd(), WAKE)?;
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

    /// Adds a device whose peers are on other hosts. A second one is not used.
    pub fn set_fabric(&self, config: port::Config) {
        let fabric = Fabric::new(config, Arc::clone(&self.shared.wake));
        // It stays the first one's.
        let _ = self.shared.fabric.set(fabric);
    }

    /// The process ends: tells the peers on other hosts, as the kernel would. Those of this host
    /// see the sockets close.
    pub fn leave(&self) {
        if let Some(fabric) = self.shared.fabric.get() {
            fabric.leave();
        }
    }

    fn table(&self) -> MutexGuard<'_, Table> {
        self.shared.table()
    }

    /// A new identifier, whose events go to `channel`.
    pub fn create(&self, port_space: u16, qp_type: u8, channel: &Arc<Channel>) -> Key {
        let mut table = self.table();
        let endpoint = Endpoint::new(port_space, qp_type, Arc::clone(channel));
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
            over_wire: endpoint.over_wire,
            ack_timeout: match &endpoint.link {
                Some(Link::Wire(link)) => link.ack_timeout(),
                _ => None,
            },
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
        self.shared.choose_device(endpoint, None);
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
                self.shared.choose_device(endpoint, resolved.as_ref());
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
        self.shared.listen_on_wire()?;
        let claim = endpoint.claim.as_mut().ok_or(Errno::INVAL)?;
        // The socket's own queue only has to hold what arrives between two rounds of the
        // thread.
        let socket = claim.listen(BACKLOG_MAX)?;
        endpoint.listen_socket = Some(self.shared.poller.watch(socket, key)?);
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
        let candidates = match endpoint.over_wire {
            true => Vec::new(),
            false => {
                let names = &self.shared.names;
                names.listeners(endpoint.port_space, &destination)?
            }
        };
        let request = message(endpoint, source, destination);
        endpoint.attempt = Some(Attempt {
            request,
            candidates: candidates.into(),
            give_up: Instant::now() + self.shared.limits.response,
            absent_until: Instant::now() + self.shared.limits.absent,
            look_again: false,
            destination_is_here: destination.is_local(),
        });
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
        let ece = endpoint.local.ece;
        let params = ConnParams { ece, ..params };
        endpoint.local = params;
        endpoint.send(&Message::Reply { params, private });
        endpoint.state = State::ReplySent;
        // On the wire the messages say how long an answer may take.
        if !endpoint.over_wire {
            let deadline = Instant::now() + self.shared.limits.response;
            table.set_timer(key, Some(deadline));
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

    /// Active side: tells the peer that this side's QP is ready.
    pub fn ready(&self, key: Key) -> Result<(), Errno> {
        let mut table = self.table();
        let endpoint = table.endpoint_in(key, &[State::ResponseReceived])?;
        endpoint.send(&Message::ReadyToUse);
        endpoint.state = State::Established;
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
                if let Some(Link::Wire(link)) = &endpoint.link {
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
                if !endpoint.over_wire {
                    let deadline = Instant::now() + self.shared.limits.disconnect;
                    table.set_timer(key, Some(deadline));
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
        let listeners = table
            .endpoints
            .values()
            .filter_map(|endpoint| endpoint.listen_socket.as_ref());
        let links = table
            .endpoints
            .values()
            .filter_map(|endpoint| endpoint.link.as_ref())
            .filter_map(Link::raw);
        listeners
            .map(Watched::raw)
            .chain(links)
            .chain(claims)
            .collect()
    }
}

impl Drop for Agent {
    fn drop(&mut self) {
        self.table().stop = true;
        self.shared.wake.raise();
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
    fn bind(&self, endpoint: &mut Endpoint, address: Address) -> Result<(), Errno> {
        if !address.is_any() && !address.is_local() {
            return Err(Errno(libc::EADDRNOTAVAIL));
        }
        let options = endpoint.options;
        let claim = self.names.claim(
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

/// Whether the process at the other end of a socket is one of this user's.
fn same_user(link: &Fd) -> bool {
    unix::peer_credentials(link.raw())
        .is_ok_and(|peer| peer.uid == unix::effective_uid() || peer.uid == 0)
}
