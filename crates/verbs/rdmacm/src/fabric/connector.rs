//! Queue pair 1 as a way to peers.

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use super::machine::Incoming;
use super::port::{Config, Fabric, WireLink, lock};
use crate::Errno;
use crate::address::Address;
use crate::channel::{EventKind, Key};
use crate::connector::{
    Arrival, Asked, Connector, IncomingRequest, Link, Patience, Search, Surroundings, Target, WAKE,
};
use crate::message::{self, Message};
use crate::rendezvous::Claim;

pub const NAME: &str = "queue pair 1";

/// Datagrams taken before the others have their turn.
const DATAGRAMS_PER_TURN: usize = 256;
/// How often the directory is searched for the listener of a request, in each of these times:
/// whoever floods a host with requests for services that nobody has is not to keep it busy.
const LOOKUPS_MAX: u32 = 100;
const LOOKUPS_TIME: Duration = Duration::from_millis(100);
/// Until a listener that was not there is asked for again.
const ASK_AGAIN: Duration = Duration::from_millis(50);

pub struct Wire {
    fabric: Arc<Fabric>,
    around: Arc<Surroundings>,
    device: usize,
    /// Datagrams that may be taken in this turn; `None` when it is over.
    left: Mutex<Option<usize>>,
    lookups: Arc<Mutex<Lookups>>,
}

/// Looks into the directory for other hosts' requests: since when, and how many.
#[derive(Default)]
pub struct Lookups(Option<(Instant, u32)>);

impl Lookups {
    pub fn may(&mut self, now: Instant) -> bool {
        let (since, count) = match self.0 {
            Some((since, count)) if now < since + LOOKUPS_TIME => (since, count),
            _ => (now, 0),
        };
        self.0 = Some((since, count.saturating_add(1)));
        count < LOOKUPS_MAX
    }
}

impl Wire {
    /// `device` is the number of the device that `config` is of.
    pub fn new(around: &Arc<Surroundings>, device: usize, config: Config) -> Self {
        Self {
            fabric: Fabric::new(config, Arc::clone(&around.wake)),
            around: Arc::clone(around),
            device,
            left: Mutex::new(None),
            lookups: Arc::default(),
        }
    }
}

impl Connector for Wire {
    fn name(&self) -> &'static str {
        NAME
    }

    fn device(&self) -> usize {
        self.device
    }

    fn mtu(&self) -> u8 {
        self.fabric.config().mtu
    }

    fn leads_to(&self, _destination: Option<&Address>) -> bool {
        true
    }

    /// The messages say how long an answer may take.
    fn patience(&self) -> Patience {
        Patience::default()
    }

    /// Without a way to the network a listener still takes the requests of this host, if there is
    /// a device for them.
    fn listen(&self, _key: Key, _claim: &mut Claim) -> Result<(), Errno> {
        match self.fabric.start() {
            Err(_) if self.fabric.config().host_device => Ok(()),
            started => started,
        }
    }

    fn search(&self, target: &Target) -> Result<Box<dyn Search>, Errno> {
        Ok(Box::new(WireSearch {
            fabric: Arc::clone(&self.fabric),
            source: target.source,
            destination: target.destination,
            absent_until: Instant::now() + self.around.limits.absent,
        }))
    }

    fn begin_turn(&self, ready: &[u64]) {
        if ready.contains(&WAKE) {
            self.fabric.tick(Instant::now());
            *lock(&self.left) = Some(DATAGRAMS_PER_TURN);
        }
    }

    /// What comes of a datagram is before the next one, and so is what comes of that.
    fn next(&self) -> Option<Arrival> {
        let mut left = lock(&self.left);
        loop {
            let datagrams = (*left)?;
            if let Some((key, happening)) = self.fabric.next_event() {
                return Some(Arrival::Happened(key, happening));
            }
            if datagrams == 0 {
                *left = None;
                self.around.wake.raise();
                return None;
            }
            let (more, incoming) = self.fabric.take_one(Instant::now());
            *left = more.then_some(datagrams - 1);
            if let Some(incoming) = incoming {
                return Some(Arrival::Request(Box::new(WireRequest {
                    fabric: Arc::clone(&self.fabric),
                    around: Arc::clone(&self.around),
                    lookups: Arc::clone(&self.lookups),
                    incoming,
                })));
            }
        }
    }

    fn deadline(&self) -> Option<Instant> {
        let deadline = self.fabric.deadline();
        // It is due: the turn does it.
        if deadline.is_some_and(|deadline| deadline <= Instant::now()) {
            self.around.wake.raise();
        }
        deadline
    }

    /// Peers see nothing else of the end of a process; the kernel would tell them too.
    fn leave(&self) {
        self.fabric.leave();
    }
}

struct WireSearch {
    fabric: Arc<Fabric>,
    source: Address,
    destination: Address,
    absent_until: Instant,
}

impl Search for WireSearch {
    fn ask(&mut self, key: Key) -> Asked {
        match self.fabric.open(key, &self.source, &self.destination) {
            Ok(link) => Asked::On(Box::new(link), None),
            Err(errno) => Asked::Nobody(EventKind::Unreachable, -errno.0),
        }
    }

    fn again(&self, answer: &Message) -> Option<Instant> {
        let absent = match answer {
            Message::Reject { reason, .. } => *reason == message::REJ_INVALID_SERVICE_ID,
            Message::SidrReply(reply) => reply.status == message::SIDR_UNSUPPORTED,
            _ => false,
        };
        let now = Instant::now();
        (absent && now < self.absent_until).then(|| now + ASK_AGAIN)
    }
}

/// The datagrams themselves are traced, where there is a trace of packets.
impl Link for WireLink {
    fn send(&self, message: &Message) {
        WireLink::send(self, message);
    }

    fn communication_established(&self) {
        WireLink::communication_established(self);
    }

    fn ack_timeout(&self) -> Option<u8> {
        WireLink::ack_timeout(self)
    }
}

struct WireRequest {
    fabric: Arc<Fabric>,
    around: Arc<Surroundings>,
    lookups: Arc<Mutex<Lookups>>,
    incoming: Incoming,
}

impl IncomingRequest for WireRequest {
    fn message(&self) -> &Message {
        &self.incoming.message
    }

    fn listener(&self) -> Option<Key> {
        None
    }

    fn admit(self: Box<Self>, key: Key) -> Option<(Box<dyn Link>, Message)> {
        let link = self.fabric.admit(&self.incoming, key)?;
        Some((Box::new(link), self.incoming.message))
    }

    /// Other processes of this host may have a listener for it. Beyond the limit of lookups it is
    /// as if it had got lost.
    fn nobody_listens(self: Box<Self>) {
        let (port_space, destination) = match &self.incoming.message {
            Message::Request(request) => (request.port_space, request.destination),
            Message::SidrRequest(request) => (request.port_space, request.destination),
            _ => return,
        };
        if !self.incoming.passed_on && lock(&self.lookups).may(Instant::now()) {
            let names = &self.around.names;
            match names.somebody_listens(port_space, &destination) {
                true => self.fabric.pass_on(self.incoming),
                false => self.fabric.turn_away(&self.incoming),
            }
        }
    }
}
