//! What the connection manager knows about one identifier.

use std::collections::VecDeque;
use std::os::fd::RawFd;
use std::sync::Arc;
use std::time::Instant;

use super::state::State;
use super::trace::{Connection, From};
use crate::address::Address;
use crate::channel::{Body, Channel, Event, EventKind, Key};
use crate::fabric::port::WireLink;
use crate::message::{ConnParams, Message};
use crate::poller::Watched;
use crate::rendezvous::{Candidate, Claim};

/// What a program can set before it connects.
#[derive(Clone, Copy, Debug, Default)]
pub struct Options {
    pub reuse: bool,
    pub family_only: bool,
    pub tos: u8,
    /// IBTA local ACK timeout, 4.096 µs · 2^n.
    pub ack_timeout: Option<u8>,
}

/// A connection attempt: what is still to be tried, and until when.
pub struct Attempt {
    pub request: Message,
    pub candidates: VecDeque<Candidate>,
    pub give_up: Instant,
    /// Until then a listener may still appear.
    pub absent_until: Instant,
    /// The candidates are used up and must be looked for anew.
    pub look_again: bool,
    /// The destination is an address of this network namespace.
    pub destination_is_here: bool,
}

/// The way to the peer.
pub enum Link {
    /// A process of this host, by a socket.
    Host(Watched),
    /// Over a device that goes to other hosts.
    Wire(WireLink),
}

impl Link {
    /// The socket, if there is one.
    pub fn raw(&self) -> Option<RawFd> {
        match self {
            Self::Host(socket) => Some(socket.raw()),
            Self::Wire(_) => None,
        }
    }
}

pub struct Endpoint {
    pub state: State,
    pub port_space: u16,
    /// `ibv_qp_type`.
    pub qp_type: u8,
    pub channel: Arc<Channel>,
    pub options: Options,
    pub claim: Option<Claim>,
    pub source: Option<Address>,
    pub destination: Option<Address>,
    /// Connection requests that may wait to be taken from the channel.
    pub backlog: usize,
    pub listen_socket: Option<Watched>,
    pub link: Option<Link>,
    /// Its device is one whose peers are on other hosts.
    pub over_wire: bool,
    pub attempt: Option<Attempt>,
    /// What this side told the peer.
    pub local: ConnParams,
    /// What the peer told this side.
    pub remote: Option<ConnParams>,
    /// `ibv_mtu` of the path.
    pub mtu: u8,
    /// The entry of this endpoint in the table of timers.
    pub deadline: Option<Instant>,
}

impl Endpoint {
    pub fn new(port_space: u16, qp_type: u8, channel: Arc<Channel>) -> Self {
        Self {
            state: State::Idle,
            port_space,
            qp_type,
            channel,
            options: Options::default(),
            claim: None,
            source: None,
            destination: None,
            backlog: 0,
            listen_socket: None,
            link: None,
            over_wire: false,
            attempt: None,
            local: ConnParams::default(),
            remote: None,
            mtu: super::DEFAULT_MTU,
            deadline: None,
        }
    }

    pub fn is_datagram(&self) -> bool {
        u32::from(self.qp_type) == crate::ffi::IBV_QPT_UD
    }

    pub fn push(&self, key: Key, kind: EventKind, status: i32, body: Body) {
        self.channel.push(Event::with(key, kind, status, body));
    }

    /// Sends on the link. A link that does not take a message is broken, and its hang-up
    /// tells both sides: a socket holds far more than the few messages of a connection.
    pub fn send(&self, message: &Message) {
        match &self.link {
            Some(Link::Host(socket)) => {
                // First, so that no answer stands before it.
                self.trace(message, From::Us);
                let _ = sluice_sys::unix::send_with_fds(socket.raw(), &message.emit(), &[]);
            }
            // The datagrams themselves are traced, where there is a trace of packets.
            Some(Link::Wire(link)) => link.send(message),
            None => {}
        }
    }

    /// Shows a message on the link in the trace, if there is one. `from` has said it.
    pub fn trace(&self, message: &Message, from: From) {
        let (Some(own), Some(peer)) = (self.bound_source(), self.destination) else {
            return;
        };
        // Who asks has bound an address; who is asked has none of his own.
        let is_active = self.claim.is_some();
        let (requester, listener) = if is_active { (own, peer) } else { (peer, own) };
        let connection = Connection {
            requester,
            listener,
            is_active,
            port_space: self.port_space,
            state: self.state,
            local: self.local,
            remote: self.remote.unwrap_or_default(),
        };
        connection.trace(message, from, self.options.tos);
    }

    pub fn bound_source(&self) -> Option<Address> {
        self.claim
            .as_ref()
            .map(|claim| match self.source {
                Some(source) => source.with_port(claim.address().port),
                None => claim.address(),
            })
            .or(self.source)
    }
}
