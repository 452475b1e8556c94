//! Streams as a way to peers, of devices whose queue pairs are connected by them (iWARP).
//!
//! What IBTA's messages say, MPA's frames say in part: private data, and how many READs. The rest
//! is known otherwise (addresses) or means nothing there. A queue pair is connected by the number
//! of the stream, which stands where the peer's number does.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use sluice_verbs::iw_cm::{ConnectionParameters, Event, EventSink, IwCm};
use sluice_verbs::locks::lock;

use crate::Errno;
use crate::abi::{RDMA_PS_IPOIB, RDMA_PS_UDP};
use crate::address::Address;
use crate::channel::{EventKind, Key};
use crate::connector::{
    Arrival, Asked, Connector, Happening, IncomingRequest, Link, Patience, Search, Surroundings,
    Target,
};
use crate::message::{self, ConnParams, Message, PrivateData, Request};
use crate::poller::Level;
use crate::rendezvous::Claim;

pub const NAME: &str = "streams";

/// `IBV_MTU_4096`: of no meaning, but every queue pair has one.
const MTU: u8 = 5;
/// Until a listener that was not there is asked for again.
const ASK_AGAIN: Duration = Duration::from_millis(50);
/// What `rdma_conn_param` has room for.
const PRIVATE_MAX: usize = u8::MAX as usize;
/// Happenings taken before the others have their turn.
const TURN: usize = 64;

/// The way of a device over streams.
pub struct Streams {
    shared: Arc<Shared>,
    device: usize,
}

struct Shared {
    cm: &'static dyn IwCm,
    around: Arc<Surroundings>,
    inbox: Arc<Inbox>,
    known: Mutex<Known>,
}

/// Who is who, on either side.
#[derive(Default)]
struct Known {
    /// The transport has been told whom to tell.
    begun: bool,
    streams: HashMap<u32, Key>,
    /// By the transport's number: the identifier, and its port space.
    listeners: HashMap<u32, (Key, u16)>,
    /// Happenings that may be taken in this turn.
    left: usize,
}

/// What has happened and was not taken.
struct Inbox {
    queue: Mutex<VecDeque<News>>,
    wake: Arc<Level>,
}

enum News {
    /// To a stream.
    Of(u32, Event),
    /// Here.
    Here(Key, Happening),
}

impl Inbox {
    fn push(&self, news: News) {
        lock(&self.queue).push_back(news);
        self.wake.raise();
    }
}

impl EventSink for Inbox {
    fn happened(&self, stream: u32, event: Event) {
        self.push(News::Of(stream, event));
    }
}

impl Streams {
    /// `device` is the number of the device that `cm` is of.
    pub fn new(around: &Arc<Surroundings>, device: usize, cm: &'static dyn IwCm) -> Self {
        Self {
            shared: Arc::new(Shared {
                cm,
                around: Arc::clone(around),
                inbox: Arc::new(Inbox {
                    queue: Mutex::default(),
                    wake: Arc::clone(&around.wake),
                }),
                known: Mutex::default(),
            }),
            device,
        }
    }
}

impl Shared {
    /// Events come from now on.
    fn begin(&self) {
        if !std::mem::replace(&mut lock(&self.known).begun, true) {
            let sink = Arc::clone(&self.inbox);
            self.cm.set_sink(sink);
        }
    }

    fn arrival(self: &Arc<Self>, stream: u32, event: Event) -> Option<Arrival> {
        let known = lock(&self.known);
        let happening = match event {
            Event::Requested {
                listener,
                local,
                peer,
                parameters,
            } => {
                let Some((key, port_space)) = known.listeners.get(&listener).copied() else {
                    drop(known);
                    self.cm.forget(stream);
                    return None;
                };
                let source = Address::from(peer);
                return Some(Arrival::Request(Box::new(StreamRequest {
                    message: Message::Request(Request {
                        port_space,
                        qp_type: crate::ffi::IBV_QPT_RC as u8,
                        mtu: MTU,
                        tos: 0,
                        source,
                        destination: Address::from(local),
                        params: params(stream, &parameters, source.gid()),
                        private: private(&parameters.private_data),
                    }),
                    shared: Some(Arc::clone(self)),
                    stream,
                    listener: key,
                })));
            }
            Event::Accepted(parameters) => Happening::Message(Message::Reply {
                // The peer's address is the one that was asked.
                params: params(stream, &parameters, [0; 16]),
                private: private(&parameters.private_data),
            }),
            Event::Rejected(data) => Happening::Message(Message::Reject {
                reason: message::REJ_CONSUMER_DEFINED,
                private: private(&data),
            }),
            Event::Failed(libc::ECONNREFUSED) => Happening::Message(Message::Reject {
                reason: message::REJ_INVALID_SERVICE_ID,
                private: PrivateData::default(),
            }),
            Event::Failed(libc::ECONNRESET) => Happening::HungUp,
            Event::Failed(_) => Happening::Unreachable,
            Event::Closed => Happening::HungUp,
        };
        let key = known.streams.get(&stream).copied()?;
        Some(Arrival::Happened(key, happening))
    }
}

/// What the peer says of itself. Its queue pair has a number that nobody needs to know.
fn params(stream: u32, parameters: &ConnectionParameters, gid: [u8; 16]) -> ConnParams {
    let number = |number: u16| u8::try_from(number).unwrap_or(u8::MAX);
    ConnParams {
        qp_num: stream,
        responder_resources: number(parameters.ird),
        initiator_depth: number(parameters.ord),
        retry_count: 7,
        rnr_retry_count: 7,
        gid,
        ..ConnParams::default()
    }
}

fn private(bytes: &[u8]) -> PrivateData {
    let bytes = bytes.get(..PRIVATE_MAX).unwrap_or(bytes);
    PrivateData::new(bytes, PRIVATE_MAX).unwrap_or_default()
}

fn parameters(params: &ConnParams, private: &PrivateData) -> ConnectionParameters {
    ConnectionParameters {
        ird: u16::from(params.responder_resources),
        ord: u16::from(params.initiator_depth),
        private_data: private.as_slice().to_vec(),
    }
}

impl Connector for Streams {
    fn name(&self) -> &'static str {
        NAME
    }

    fn device(&self) -> usize {
        self.device
    }

    fn mtu(&self) -> u8 {
        MTU
    }

    fn leads_to(&self, _destination: Option<&Address>) -> bool {
        true
    }

    fn patience(&self) -> Patience {
        self.shared.around.limits.patience()
    }

    fn listen(&self, key: Key, claim: &mut Claim) -> Result<(), Errno> {
        if matches!(claim.port_space(), RDMA_PS_UDP | RDMA_PS_IPOIB) {
            // There are none here; another way may have them.
            return Ok(());
        }
        self.shared.begin();
        let address = claim.address().socket_addr();
        let cm = self.shared.cm;
        let listener = cm
            .listen(address, claim.family_only())
            .map_err(|error| error.errno())?;
        let space = claim.port_space();
        lock(&self.shared.known)
            .listeners
            .insert(listener, (key, space));
        Ok(())
    }

    fn end_listening(&self, key: Key) {
        let mut known = lock(&self.shared.known);
        let ended: Vec<u32> = known
            .listeners
            .extract_if(|_, (listening, _)| *listening == key)
            .map(|(listener, _)| listener)
            .collect();
        drop(known);
        for listener in ended {
            self.shared.cm.end_listening(listener);
        }
    }

    fn search(&self, target: &Target) -> Result<Box<dyn Search>, Errno> {
        if target.is_datagram {
            return Err(Errno(libc::EOPNOTSUPP));
        }
        self.shared.begin();
        let now = Instant::now();
        let limits = &self.shared.around.limits;
        Ok(Box::new(StreamSearch {
            shared: Arc::clone(&self.shared),
            give_up: now + limits.response,
            absent_until: now + limits.absent,
        }))
    }

    fn begin_turn(&self, _ready: &[u64]) {
        lock(&self.shared.known).left = TURN;
    }

    fn next(&self) -> Option<Arrival> {
        loop {
            let news = {
                let mut known = lock(&self.shared.known);
                if known.left == 0 {
                    // The rest in the next turn.
                    self.shared.around.wake.raise();
                    return None;
                }
                known.left -= 1;
                drop(known);
                lock(&self.shared.inbox.queue).pop_front()?
            };
            let arrival = match news {
                News::Of(stream, event) => self.shared.arrival(stream, event),
                News::Here(key, happening) => Some(Arrival::Happened(key, happening)),
            };
            if arrival.is_some() {
                return arrival;
            }
        }
    }

    fn deadline(&self) -> Option<Instant> {
        None
    }
}

struct StreamSearch {
    shared: Arc<Shared>,
    give_up: Instant,
    absent_until: Instant,
}

impl Search for StreamSearch {
    fn ask(&mut self, key: Key) -> Asked {
        if Instant::now() >= self.give_up {
            return Asked::Nobody(EventKind::Unreachable, -libc::ETIMEDOUT);
        }
        let link = StreamLink {
            shared: Arc::clone(&self.shared),
            key,
            stream: Mutex::new(None),
        };
        Asked::On(Box::new(link), Some(self.give_up))
    }

    fn again(&self, answer: &Message) -> Option<Instant> {
        let absent = matches!(
            answer,
            Message::Reject { reason, .. } if *reason == message::REJ_INVALID_SERVICE_ID
        );
        let now = Instant::now();
        (absent && now < self.absent_until).then(|| now + ASK_AGAIN)
    }
}

struct StreamLink {
    shared: Arc<Shared>,
    key: Key,
    /// None before the request is sent.
    stream: Mutex<Option<u32>>,
}

impl StreamLink {
    fn here(&self, happening: Happening) {
        self.shared.inbox.push(News::Here(self.key, happening));
    }

    fn connect(&self, request: &Request) {
        let shared = &self.shared;
        // Held until the stream is known, so that no event finds it unknown.
        let mut known = lock(&shared.known);
        let asked = shared.cm.connect(
            request.source.socket_addr(),
            request.destination.socket_addr(),
            request.tos,
            &parameters(&request.params, &request.private),
        );
        match asked {
            Ok(stream) => {
                known.streams.insert(stream, self.key);
                *lock(&self.stream) = Some(stream);
            }
            Err(_) => self.here(Happening::Unreachable),
        }
    }
}

impl Link for StreamLink {
    fn may_accept(&self) -> Result<(), Errno> {
        let stream = lock(&self.stream).ok_or(Errno::INVAL)?;
        let is_there = self.shared.cm.is_requested(stream);
        is_there.then_some(()).ok_or(Errno(libc::ECONNRESET))
    }

    fn send(&self, message: &Message) {
        if let Message::Request(request) = message {
            return self.connect(request);
        }
        let cm = self.shared.cm;
        let Some(stream) = *lock(&self.stream) else {
            return;
        };
        match message {
            Message::Reply { params, private } => {
                // In front of the end of the stream, which may come at once. Nothing else comes from
                // the requester but messages of its program.
                self.here(Happening::Message(Message::ReadyToUse));
                if cm.accept(stream, &parameters(params, private)).is_err() {
                    self.here(Happening::HungUp);
                }
            }
            Message::Reject { private, .. } => cm.reject(stream, private.as_slice()),
            Message::DisconnectRequest | Message::DisconnectReply => cm.close(stream),
            _ => {}
        }
    }
}

impl Drop for StreamLink {
    fn drop(&mut self) {
        if let Some(stream) = *lock(&self.stream) {
            lock(&self.shared.known).streams.remove(&stream);
            self.shared.cm.forget(stream);
        }
    }
}

/// A request that came.
struct StreamRequest {
    message: Message,
    /// None once somebody has it.
    shared: Option<Arc<Shared>>,
    stream: u32,
    listener: Key,
}

impl IncomingRequest for StreamRequest {
    fn message(&self) -> &Message {
        &self.message
    }

    fn listener(&self) -> Option<Key> {
        Some(self.listener)
    }

    fn admit(mut self: Box<Self>, key: Key) -> Option<(Box<dyn Link>, Message)> {
        let shared = self.shared.take()?;
        lock(&shared.known).streams.insert(self.stream, key);
        let link = StreamLink {
            shared,
            key,
            stream: Mutex::new(Some(self.stream)),
        };
        Some((Box::new(link), self.message.clone()))
    }

    fn nobody_listens(self: Box<Self>) {}
}

impl Drop for StreamRequest {
    fn drop(&mut self) {
        if let Some(shared) = &self.shared {
            shared.cm.forget(self.stream);
        }
    }
}
