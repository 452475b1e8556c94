//! A cable in memory: two ports, each of which gets what the other sends.

use std::collections::VecDeque;
use std::os::fd::RawFd;
use std::sync::{Arc, Condvar, Mutex};

use sluice_packet::{Facts, Leaving, Path, Port, PortCounters, Received, SendError};
use sluice_sys::unix::Fd;
use sluice_sys::wake;
use sluice_transport::fault::{Fate, Faults, Injector};
use sluice_wire::Ecn;

/// Packets that a port gives in one go.
const BATCH: usize = 16;
/// Packets that a port takes before it is flushed.
const ROOM: usize = 32;

#[derive(Clone)]
pub struct Frame {
    pub path: Path,
    pub ecn: Ecn,
    pub packet: Vec<u8>,
}

/// One end of the cable, as a test sees it.
pub struct Inbox {
    state: Mutex<State>,
    /// Who takes packets waits for this while they are kept.
    released: Condvar,
    bell: Fd,
}

#[derive(Default)]
struct State {
    packets: VecDeque<Frame>,
    /// Held back.
    waiting: VecDeque<Frame>,
    /// How many more come through.
    allowed: usize,
    cut: bool,
    seen: usize,
    kept: bool,
    /// Somebody waits for them.
    asked: bool,
}

impl Inbox {
    fn new() -> Arc<Self> {
        Arc::new(Self {
            state: Mutex::new(State {
                allowed: usize::MAX,
                ..State::default()
            }),
            released: Condvar::new(),
            bell: wake::eventfd().unwrap(),
        })
    }

    /// A packet comes, now or when it is allowed to.
    pub fn put(&self, frame: Frame) {
        let mut state = self.state.lock().unwrap();
        if state.cut {
            return;
        }
        state.seen += 1;
        if state.allowed == 0 {
            state.waiting.push_back(frame);
            return;
        }
        if state.allowed != usize::MAX {
            state.allowed -= 1;
        }
        state.packets.push_back(frame);
        wake::ring(self.bell.raw());
    }

    /// Only so many more come through; others wait. `usize::MAX`: all.
    pub fn allow(&self, packets: usize) {
        let waiting = {
            let mut state = self.state.lock().unwrap();
            state.allowed = packets;
            std::mem::take(&mut state.waiting)
        };
        for frame in waiting {
            self.put(frame);
        }
    }

    /// What was held back never comes; what is sent from now on does.
    pub fn lose(&self) {
        self.state.lock().unwrap().waiting.clear();
        self.allow(usize::MAX);
    }

    /// The first that was held back never comes; everything else does.
    pub fn lose_first(&self) {
        self.state.lock().unwrap().waiting.pop_front();
        self.allow(usize::MAX);
    }

    /// Nothing comes through any more, or all again.
    pub fn cut(&self, cut: bool) {
        self.state.lock().unwrap().cut = cut;
    }

    /// Whoever takes packets next gets stuck in it, until they are not kept any more.
    pub fn keep(&self, kept: bool) {
        let mut state = self.state.lock().unwrap();
        (state.kept, state.asked) = (kept, false);
        self.released.notify_all();
        wake::ring(self.bell.raw());
    }

    /// Whether somebody is stuck.
    pub fn has_stuck(&self) -> bool {
        self.state.lock().unwrap().asked
    }

    /// Whether everything has been taken.
    pub fn is_empty(&self) -> bool {
        self.state.lock().unwrap().packets.is_empty()
    }

    /// What the port at this end is waited for with.
    pub fn descriptor(&self) -> RawFd {
        self.bell.raw()
    }

    /// Packets that were sent here, so far.
    pub fn seen(&self) -> usize {
        self.state.lock().unwrap().seen
    }

    fn take(&self) -> Vec<Frame> {
        let mut state = self.state.lock().unwrap();
        state.asked = state.kept;
        let mut state = self.released.wait_while(state, |state| state.kept).unwrap();
        let count = state.packets.len().min(BATCH);
        let batch = state.packets.drain(..count).collect();
        if state.packets.is_empty() {
            wake::drain(self.bell.raw());
        }
        batch
    }
}

/// By which of a host's ports a packet comes, where it has several: a port for each shard.
#[derive(Clone, Copy, Debug)]
pub enum Steer {
    /// Its shard's, as the queue pair's number says.
    Right,
    /// Always another shard's.
    Wrong,
    /// The first, as with an interface that has one queue.
    First,
}

impl Steer {
    fn port(self, packet: &[u8], ports: usize) -> usize {
        // Of the base transport header.
        let number = packet[5..8]
            .iter()
            .fold(0, |number, byte| number << 8 | usize::from(*byte));
        match self {
            Self::Right => number % ports,
            Self::Wrong => (number + 1) % ports,
            Self::First => 0,
        }
    }
}

/// A port at one end.
pub struct Plug {
    own: Arc<Inbox>,
    /// Of the other end's shards.
    peers: Vec<Arc<Inbox>>,
    steer: Steer,
    staged: Vec<Frame>,
    faults: Option<(Injector, Option<Frame>)>,
    counters: PortCounters,
}

/// Two plugs, with the places where packets to each of them come.
pub fn cable(faults: Option<&Faults>) -> [(Plug, Arc<Inbox>); 2] {
    let (left, right) = (Inbox::new(), Inbox::new());
    let plug = |own: &Arc<Inbox>, peer: &Arc<Inbox>, number| Plug {
        own: own.clone(),
        peers: vec![peer.clone()],
        steer: Steer::Right,
        staged: Vec::new(),
        faults: faults.map(|faults| (faults.injector(number), None)),
        counters: PortCounters::default(),
    };
    [
        (plug(&left, &right, 1), left.clone()),
        (plug(&right, &left, 2), right.clone()),
    ]
}

/// Two hosts' plugs, with so many shards each.
pub fn shards(
    faults: Option<&Faults>,
    counts: [usize; 2],
    steer: Steer,
) -> [Vec<(Plug, Arc<Inbox>)>; 2] {
    let inboxes = counts.map(|count| (0..count).map(|_| Inbox::new()).collect::<Vec<_>>());
    [(0, 1), (1, 0)].map(|(own, peer): (usize, usize)| {
        let plug = |(shard, inbox): (usize, &Arc<Inbox>)| {
            let plug = Plug {
                own: inbox.clone(),
                peers: inboxes[peer].clone(),
                steer,
                staged: Vec::new(),
                faults: faults.map(|faults| (faults.injector((shard * 2 + own) as u64 + 1), None)),
                counters: PortCounters::default(),
            };
            (plug, inbox.clone())
        };
        inboxes[own].iter().enumerate().map(plug).collect()
    })
}

impl Plug {
    /// A port of another process behind the address of `like`'s: what it sends goes the same way,
    /// and nothing comes to it.
    pub fn beside(like: &Plug) -> (Plug, Arc<Inbox>) {
        let own = Inbox::new();
        let plug = Plug {
            own: own.clone(),
            peers: like.peers.clone(),
            steer: like.steer,
            staged: Vec::new(),
            faults: None,
            counters: PortCounters::default(),
        };
        (plug, own)
    }

    fn carry(&mut self, frame: Frame) {
        let (peers, steer) = (&self.peers, self.steer);
        let put = |frame: Frame| peers[steer.port(&frame.packet, peers.len())].put(frame);
        let Some((injector, late)) = &mut self.faults else {
            return put(frame);
        };
        match injector.fate() {
            Fate::Drop | Fate::Corrupt => return,
            Fate::Late if late.is_none() => {
                *late = Some(frame);
                return;
            }
            Fate::Duplicate => put(frame.clone()),
            Fate::Late | Fate::Pass => {}
        }
        put(frame);
        if let Some(overtaken) = late.take() {
            put(overtaken);
        }
    }
}

impl Port for Plug {
    fn receive(&mut self, each: &mut dyn FnMut(&Received<'_>)) -> usize {
        let batch = self.own.take();
        for frame in &batch {
            self.counters.received += 1;
            each(&Received {
                source: frame.path.source,
                destination: frame.path.destination,
                interface: 1,
                source_port: frame.path.source_port,
                traffic_class: frame.path.dscp | frame.ecn as u8,
                hop_limit: frame.path.hop_limit,
                packet: &frame.packet,
            });
        }
        batch.len()
    }

    fn put(
        &mut self,
        packet: &Leaving<'_>,
        fill: &mut dyn FnMut(&mut [u8]) -> bool,
    ) -> Result<(), SendError> {
        let places = 1 + usize::from(packet.beside.is_some());
        if self.staged.len() + places > ROOM {
            return Err(SendError::NoRoom);
        }
        if let Some(kept) = packet.beside {
            self.staged.push(Frame {
                path: kept.path,
                ecn: kept.ecn,
                packet: kept.packet().to_vec(),
            });
        }
        // What was there before shows if not every byte is written.
        let mut bytes = vec![0xa5; packet.length];
        if !fill(&mut bytes) {
            return Err(SendError::Nothing);
        }
        self.staged.push(Frame {
            path: *packet.path,
            ecn: packet.ecn,
            packet: bytes,
        });
        Ok(())
    }

    fn flush(&mut self) -> bool {
        for frame in std::mem::take(&mut self.staged) {
            self.counters.sent += 1;
            self.carry(frame);
        }
        true
    }

    fn room(&self) -> usize {
        ROOM - self.staged.len()
    }

    fn facts(&self) -> Facts {
        Facts {
            descriptors: vec![self.own.bell.raw()],
            counters: self.counters,
        }
    }
}
