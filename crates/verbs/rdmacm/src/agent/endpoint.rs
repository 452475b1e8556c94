//! What the connection manager knows about one identifier.

use std::sync::Arc;
use std::time::Instant;

use crate::address::Address;
use crate::channel::{Body, Channel, Event, EventKind, Key};
use crate::connector::{Connector, Conversation, From, Link, Search};
use crate::message::{ConnParams, Message};
use crate::rendezvous::Claim;
use crate::state::State;

/// What a program can set before it connects.
#[derive(Clone, Copy, Debug, Default)]
pub struct Options {
    pub reuse: bool,
    pub family_only: bool,
    pub tos: u8,
    /// IBTA local ACK timeout, 4.096 µs · 2^n.
    pub ack_timeout: Option<u8>,
}

/// A connection attempt: what is asked, and of whom.
pub struct Attempt {
    pub request: Message,
    pub search: Box<dyn Search>,
}

/// `IBV_MTU_4096`: the largest that there is, of a path that nothing is known of.
const MTU_MAX: u8 = 5;

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
    /// How its peer is reached.
    pub way: Arc<dyn Connector>,
    pub link: Option<Box<dyn Link>>,
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
    pub fn new(
        port_space: u16,
        qp_type: u8,
        channel: Arc<Channel>,
        way: Arc<dyn Connector>,
    ) -> Self {
        Self {
            way,
            state: State::Idle,
            port_space,
            qp_type,
            channel,
            options: Options::default(),
            claim: None,
            source: None,
            destination: None,
            backlog: 0,
            link: None,
            attempt: None,
            local: ConnParams::default(),
            remote: None,
            mtu: MTU_MAX,
            deadline: None,
        }
    }

    pub fn is_datagram(&self) -> bool {
        u32::from(self.qp_type) == crate::ffi::IBV_QPT_UD
    }

    pub fn push(&self, key: Key, kind: EventKind, status: i32, body: Body) {
        self.channel.push(Event::with(key, kind, status, body));
    }

    /// Sends on the link, if there is one.
    pub fn send(&self, message: &Message) {
        if let Some(link) = &self.link {
            // First, so that no answer stands before it.
            self.trace(message, From::Us);
            link.send(message);
        }
    }

    /// Shows a message on the link in a trace, if there is one. `from` has said it.
    pub fn trace(&self, message: &Message, from: From) {
        let (Some(own), Some(peer)) = (self.bound_source(), self.destination) else {
            return;
        };
        // Who asks has bound an address; who is asked has none of his own.
        let is_active = self.claim.is_some();
        let (requester, listener) = if is_active { (own, peer) } else { (peer, own) };
        if let Some(link) = &self.link {
            let conversation = Conversation {
                requester,
                listener,
                is_active,
                port_space: self.port_space,
                state: self.state,
                local: self.local,
                remote: self.remote.unwrap_or_default(),
                tos: self.options.tos,
            };
            link.trace(&conversation, message, from);
        }
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
