//! The way to processes of this host: they meet in a directory ([`crate::rendezvous`]), and talk by
//! sockets that stand in it. What they say can be traced as if there were a wire (`trace`).

mod search;
mod socket;
mod trace;

use std::collections::{HashMap, VecDeque};
use std::os::fd::RawFd;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use sluice_sys::unix;
use sluice_verbs::transport::ManagementTrace;

use crate::Errno;
use crate::address::Address;
use crate::channel::Key;
use crate::connector::{
    Arrival, Connector, Conversation, From, Happening, IncomingRequest, Link, Patience, Search,
    Surroundings, Target,
};
use crate::message::Message;
use crate::poller::Watched;
use crate::rendezvous::Claim;
use socket::{Input, receive, same_user};

pub const NAME: &str = "this host";

/// Connections that a listener has accepted and that have not sent their request yet.
const STRANGERS_MAX: usize = 128;
/// Connections that the socket of a listener lets wait: those that come between two turns.
const SOCKET_BACKLOG: i32 = 1024;
/// Packets taken from one link before the others have their turn.
const PACKETS_PER_TURN: usize = 8;
/// Connections taken from one listener before the others have their turn.
const ACCEPTS_PER_TURN: usize = 32;
/// `IBV_MTU_4096`, the port's.
const MTU: u8 = 5;

pub struct Host {
    shared: Arc<Shared>,
    device: usize,
}

struct Shared {
    around: Arc<Surroundings>,
    trace: Option<&'static dyn ManagementTrace>,
    sockets: Mutex<Sockets>,
}

/// Sockets by their numbers in the poller.
#[derive(Default)]
struct Sockets {
    listeners: HashMap<u64, (Key, Watched)>,
    strangers: HashMap<u64, Stranger>,
    links: HashMap<u64, (Key, Arc<Watched>)>,
    /// Those that have something and were not looked at in this turn, or not often enough.
    turn: VecDeque<u64>,
    /// How often the first of them was.
    taken: usize,
}

/// A connection that a listener accepted and whose request is still to come.
struct Stranger {
    listener: Key,
    socket: Watched,
    deadline: Instant,
}

impl Host {
    /// `device` is the number of the device for peers on this host; `trace` is where a trace of
    /// what they say goes.
    pub fn new(
        around: &Arc<Surroundings>,
        device: usize,
        trace: Option<&'static dyn ManagementTrace>,
    ) -> Self {
        Self {
            shared: Arc::new(Shared {
                around: Arc::clone(around),
                trace,
                sockets: Mutex::default(),
            }),
            device,
        }
    }
}

impl Shared {
    fn sockets(&self) -> MutexGuard<'_, Sockets> {
        self.sockets.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Connector for Host {
    fn name(&self) -> &'static str {
        NAME
    }

    fn device(&self) -> usize {
        self.device
    }

    fn mtu(&self) -> u8 {
        MTU
    }

    /// A group is everywhere; that the kernel lets programs bind to it does not make it local.
    fn leads_to(&self, destination: Option<&Address>) -> bool {
        destination.is_none_or(|address| !address.ip.is_multicast() && address.is_local())
    }

    fn patience(&self) -> Patience {
        self.shared.around.limits.patience()
    }

    fn listen(&self, key: Key, claim: &mut Claim) -> Result<(), Errno> {
        let around = &self.shared.around;
        let number = around.number();
        let socket = claim.listen(SOCKET_BACKLOG)?;
        let socket = around.poller.watch(socket, number)?;
        let mut sockets = self.shared.sockets();
        sockets.listeners.insert(number, (key, socket));
        Ok(())
    }

    fn end_listening(&self, key: Key) {
        let mut sockets = self.shared.sockets();
        sockets
            .listeners
            .retain(|_, (listener, _)| *listener != key);
        sockets
            .strangers
            .retain(|_, stranger| stranger.listener != key);
    }

    fn search(&self, target: &Target) -> Result<Box<dyn Search>, Errno> {
        Ok(Box::new(search::HostSearch::new(&self.shared, target)?))
    }

    fn begin_turn(&self, ready: &[u64]) {
        let mut sockets = self.shared.sockets();
        sockets.turn = ready.iter().copied().collect();
        sockets.taken = 0;
    }

    fn next(&self) -> Option<Arrival> {
        let mut sockets = self.shared.sockets();
        loop {
            let number = *sockets.turn.front()?;
            let arrival = if sockets.strangers.contains_key(&number) {
                sockets.next_socket();
                self.shared.stranger_ready(&mut sockets, number)
            } else if sockets.listeners.contains_key(&number) {
                sockets.next_socket();
                self.shared.accept_strangers(&mut sockets, number);
                None
            } else {
                sockets.link_ready(number)
            };
            if arrival.is_some() {
                return arrival;
            }
        }
    }

    fn deadline(&self) -> Option<Instant> {
        let now = Instant::now();
        let mut sockets = self.shared.sockets();
        sockets
            .strangers
            .retain(|_, stranger| stranger.deadline > now);
        let strangers = sockets.strangers.values();
        strangers.map(|stranger| stranger.deadline).min()
    }

    /// A peer would not see this process's death while a child has its sockets. None where a
    /// thread of the parent was at them at the fork.
    fn descriptors(&self) -> Vec<RawFd> {
        let Ok(sockets) = self.shared.sockets.try_lock() else {
            return Vec::new();
        };
        let listeners = sockets.listeners.values().map(|(_, socket)| socket.raw());
        let links = sockets.links.values().map(|(_, socket)| socket.raw());
        listeners.chain(links).collect()
    }
}

impl Sockets {
    fn next_socket(&mut self) {
        self.turn.pop_front();
        self.taken = 0;
    }

    fn link_ready(&mut self, number: u64) -> Option<Arrival> {
        let Some((key, socket)) = self.links.get(&number) else {
            self.next_socket();
            return None;
        };
        if self.taken == PACKETS_PER_TURN {
            self.next_socket();
            return None;
        }
        let key = *key;
        let happening = match receive(socket.raw()) {
            Input::Message(message) => {
                self.taken += 1;
                return Some(Arrival::Happened(key, Happening::Message(message)));
            }
            Input::HangUp => Some(Arrival::Happened(key, Happening::HungUp)),
            Input::Nothing => None,
        };
        self.next_socket();
        happening
    }
}

impl Shared {
    fn accept_strangers(&self, sockets: &mut Sockets, listener: u64) {
        for _ in 0..ACCEPTS_PER_TURN {
            let Some((key, socket)) = sockets.listeners.get(&listener) else {
                return;
            };
            let Some(socket) = unix::accept_or_rest(socket.raw()) else {
                return;
            };
            // Whoever is not ours, or too many at a time, finds the link closed.
            if !same_user(&socket) || sockets.strangers.len() >= STRANGERS_MAX {
                continue;
            }
            let number = self.around.number();
            if let Ok(socket) = self.around.poller.watch(socket, number) {
                let stranger = Stranger {
                    listener: *key,
                    socket,
                    deadline: Instant::now() + self.around.limits.stranger,
                };
                sockets.strangers.insert(number, stranger);
            }
        }
    }

    /// The first packet of an accepted connection must be a request to its listener.
    fn stranger_ready(self: &Arc<Self>, sockets: &mut Sockets, number: u64) -> Option<Arrival> {
        let stranger = sockets.strangers.remove(&number)?;
        match receive(stranger.socket.raw()) {
            Input::Message(message) => {
                if let Some(trace) = self.trace {
                    trace::requested(trace, &message);
                }
                Some(Arrival::Request(Box::new(HostRequest {
                    host: Arc::clone(self),
                    number,
                    stranger,
                    message,
                })))
            }
            Input::HangUp => None,
            Input::Nothing => {
                sockets.strangers.insert(number, stranger);
                None
            }
        }
    }

    fn link(self: &Arc<Self>, number: u64, key: Key, socket: Watched) -> HostLink {
        let socket = Arc::new(socket);
        let mut sockets = self.sockets();
        sockets.links.insert(number, (key, Arc::clone(&socket)));
        drop(sockets);
        HostLink {
            host: Arc::clone(self),
            number,
            socket,
        }
    }
}

struct HostRequest {
    host: Arc<Shared>,
    number: u64,
    stranger: Stranger,
    message: Message,
}

impl IncomingRequest for HostRequest {
    fn message(&self) -> &Message {
        &self.message
    }

    fn listener(&self) -> Option<Key> {
        Some(self.stranger.listener)
    }

    fn admit(self: Box<Self>, key: Key) -> Option<(Box<dyn Link>, Message)> {
        let link = self.host.link(self.number, key, self.stranger.socket);
        Some((Box::new(link), self.message))
    }

    fn nobody_listens(self: Box<Self>) {}
}

struct HostLink {
    host: Arc<Shared>,
    number: u64,
    socket: Arc<Watched>,
}

impl Link for HostLink {
    /// A link that does not take a message is broken, and its hang-up tells both sides: a socket
    /// holds far more than the few messages of a connection.
    fn send(&self, message: &Message) {
        let _ = unix::send_with_fds(self.socket.raw(), &message.emit(), &[]);
    }

    fn trace(&self, conversation: &Conversation, message: &Message, from: From) {
        if let Some(trace) = self.host.trace {
            trace::record(trace, conversation, message, from);
        }
    }
}

impl Drop for HostLink {
    fn drop(&mut self) {
        self.host.sockets().links.remove(&self.number);
    }
}
