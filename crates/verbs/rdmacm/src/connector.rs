//! What the agent asks of a way to peers: how two ends find each other, and how what they say gets
//! from one to the other.
//!
//! A device brings its way along. There are two: [`host`](crate::host) for processes of this host,
//! which meet in a directory, and [`fabric`](crate::fabric) for other hosts, by management
//! datagrams. The agent knows neither. It has a list of ways in the order of preference, and
//! takes the first that leads to a destination; listeners take requests from all of them.
//!
//! **Locks.** The agent calls everything here with its table locked, [`Connector::leave`] and
//! [`Connector::descriptors`] apart. No way calls the agent: what came waits until the agent's
//! thread asks for it ([`Connector::next`]).

use std::os::fd::RawFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use super::Errno;
use super::address::Address;
use super::channel::{EventKind, Key};
use super::message::{ConnParams, Message};
use super::poller::{Level, Poller};
use super::rendezvous::{Claim, Rendezvous};
use super::state::State;

/// The number under which the agent's wake-up descriptor is watched; others begin after it.
pub const WAKE: u64 = 0;

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

impl Limits {
    /// For ways that do not say by themselves when a peer has taken too long.
    pub fn patience(&self) -> Patience {
        Patience {
            reply: Some(self.response),
            disconnect: Some(self.disconnect),
        }
    }
}

/// What a way has of the agent that it belongs to.
pub struct Surroundings {
    /// The agent's thread sleeps in it.
    pub poller: Arc<Poller>,
    /// Raised, it wakes that thread.
    pub wake: Arc<Level>,
    pub names: Arc<Rendezvous>,
    pub limits: Limits,
    last_number: AtomicU64,
}

impl Surroundings {
    /// Watches [`Surroundings::wake`] under the number [`WAKE`].
    pub fn new(names: Arc<Rendezvous>, limits: Limits) -> Result<Arc<Self>, Errno> {
        let around = Self {
            poller: Arc::new(Poller::new()?),
            wake: Arc::new(Level::new()?),
            names,
            limits,
            last_number: AtomicU64::new(WAKE),
        };
        around.poller.add(around.wake.fd(), WAKE)?;
        Ok(Arc::new(around))
    }

    /// A number for a descriptor in the poller that nobody has had.
    pub fn number(&self) -> u64 {
        self.last_number.fetch_add(1, Ordering::Relaxed) + 1
    }
}

/// A way to peers.
pub trait Connector: Send + Sync {
    /// For people and tests.
    fn name(&self) -> &'static str;

    /// Which of the process's devices carries what is connected this way.
    fn device(&self) -> usize;

    /// `ibv_mtu` of its paths.
    fn mtu(&self) -> u8;

    /// Whether it leads to an address; `None`: to nowhere yet.
    fn leads_to(&self, destination: Option<&Address>) -> bool;

    /// How long the agent waits for peers.
    fn patience(&self) -> Patience;

    /// Requests for the address of `claim` come as [`Arrival::Request`] from now on.
    fn listen(&self, key: Key, claim: &mut Claim) -> Result<(), Errno>;

    /// They do not come any more.
    fn end_listening(&self, _key: Key) {}

    /// Begins to look for who answers a request.
    fn search(&self, target: &Target) -> Result<Box<dyn Search>, Errno>;

    /// The agent's thread is awake, and these descriptors have something ([`WAKE`] among them: it
    /// was woken).
    fn begin_turn(&self, ready: &[u64]);

    /// What came, one after the other until there is nothing or it is the others' turn. What the
    /// agent does about one may change what the next is.
    fn next(&self) -> Option<Arrival>;

    /// When the agent's thread is to be awake. Called before it sleeps.
    fn deadline(&self) -> Option<Instant>;

    /// The process ends. Called without locks, and takes none that somebody may have who is gone.
    fn leave(&self) {}

    /// Descriptors that a forked child must not keep. Called in the child, and waits for no lock.
    fn descriptors(&self) -> Vec<RawFd> {
        Vec::new()
    }
}

/// How long the agent waits for a peer; `None` where the way itself says when that was too long.
#[derive(Clone, Copy, Debug, Default)]
pub struct Patience {
    /// For an answer to a reply.
    pub reply: Option<Duration>,
    /// For an answer to a request to disconnect.
    pub disconnect: Option<Duration>,
}

/// Who is looked for.
#[derive(Clone, Copy, Debug)]
pub struct Target {
    pub port_space: u16,
    pub source: Address,
    pub destination: Address,
    /// A datagram service.
    pub is_datagram: bool,
}

/// A request on its way to somebody who answers it.
pub trait Search: Send {
    /// Looks for the next one to ask.
    fn ask(&mut self, key: Key) -> Asked;

    /// The peer's answer says that nobody is there: when to ask again, if somebody soon may be.
    fn again(&self, _answer: &Message) -> Option<Instant> {
        None
    }
}

/// What came of a search.
pub enum Asked {
    /// The request goes on this link. An answer must come until then, unless the way itself says
    /// that none came.
    On(Box<dyn Link>, Option<Instant>),
    /// Nobody for now: ask again then.
    Again(Instant),
    /// Nobody: what the program is told, kind and status.
    Nobody(EventKind, i32),
}

/// The way to one peer. Dropping it ends what has not ended.
pub trait Link: Send {
    /// A message that cannot be sent is lost; what comes of that, comes as [`Happening`].
    fn send(&self, message: &Message);

    /// Whether a request can still be accepted; why not.
    fn may_accept(&self) -> Result<(), Errno> {
        Ok(())
    }

    /// Shows a message in a trace, where what carries it does not do that itself. Called before
    /// a message is sent, and before a message that came has an effect.
    fn trace(&self, _conversation: &Conversation, _message: &Message, _from: From) {}

    /// The peer is connected, though it has not said so.
    fn communication_established(&self) {}

    /// The local ACK timeout that the two sides have agreed on, 5 bits.
    fn ack_timeout(&self) -> Option<u8> {
        None
    }
}

/// Who says a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum From {
    Us,
    Peer,
}

/// What is known of a connection when something is said.
#[derive(Clone, Copy, Debug)]
pub struct Conversation {
    pub requester: Address,
    pub listener: Address,
    /// This side asked for it.
    pub is_active: bool,
    pub port_space: u16,
    /// Of this side, before the message.
    pub state: State,
    pub local: ConnParams,
    pub remote: ConnParams,
    /// Of this side.
    pub tos: u8,
}

/// What came.
pub enum Arrival {
    /// On the link of an identifier.
    Happened(Key, Happening),
    Request(Box<dyn IncomingRequest>),
}

/// What the owner of a connection gets to know.
#[derive(Debug, PartialEq, Eq)]
pub enum Happening {
    /// What the peer said.
    Message(Message),
    /// The peer has closed the link, is gone, or speaks something else.
    HungUp,
    /// It did not answer, or there is no way to it.
    Unreachable,
    /// It refuses the path's MTU and can do this one, a smaller one.
    SmallerMtu(u8),
    /// It did not answer the request to disconnect.
    DisconnectTimedOut,
}

/// A request that came. Dropping it ends the connection, if there is one already.
pub trait IncomingRequest {
    /// [`Message::Request`], [`Message::SidrRequest`], or what a peer says that breaks the
    /// protocol.
    fn message(&self) -> &Message;

    /// Whose it is, where the way knows that.
    fn listener(&self) -> Option<Key>;

    /// Gives it to the identifier `key`. `None`: there are too many; the peer asks again.
    fn admit(self: Box<Self>, key: Key) -> Option<(Box<dyn Link>, Message)>;

    /// No identifier of this process listens for it.
    fn nobody_listens(self: Box<Self>);
}
