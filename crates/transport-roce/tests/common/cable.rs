//! A cable in memory: two ports, each of which gets what the other sends.

use std::collections::VecDeque;
use std::net::IpAddr;
use std::os::fd::RawFd;
use std::sync::{Arc, Mutex};

use sluice_packet::{Path, Port, PortCounters, Received, SendError};
use sluice_sys::errno::Errno;
use sluice_sys::unix::Fd;
use sluice_sys::wake;
use sluice_verbs::fault::{Fate, Faults, Injector};
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
}

impl Inbox {
    fn new() -> Arc<Self> {
        Arc::new(Self {
            state: Mutex::new(State {
                allowed: usize::MAX,
                ..State::default()
            }),
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

    /// Nothing comes through any more, or all again.
    pub fn cut(&self, cut: bool) {
        self.state.lock().unwrap().cut = cut;
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
        let count = state.packets.len().min(BATCH);
        let batch = state.packets.drain(..count).collect();
        if state.packets.is_empty() {
            wake::drain(self.bell.raw());
        }
        batch
    }
}

/// A port at one end.
pub struct Plug {
    own: Arc<Inbox>,
    peer: Arc<Inbox>,
    staged: Vec<Frame>,
    faults: Option<(Injector, Option<Frame>)>,
    counters: PortCounters,
}

/// Two plugs, with the places where packets to each of them come.
pub fn cable(faults: Option<&Faults>) -> [(Plug, Arc<Inbox>); 2] {
    let (left, right) = (Inbox::new(), Inbox::new());
    let plug = |own: &Arc<Inbox>, peer: &Arc<Inbox>, number| Plug {
        own: own.clone(),
        peer: peer.clone(),
        staged: Vec::new(),
        faults: faults.map(|faults| (faults.injector(number), None)),
        counters: PortCounters::default(),
    };
    [
        (plug(&left, &right, 1), left.clone()),
        (plug(&right, &left, 2), right.clone()),
    ]
}

impl Plug {
    /// A port of another process behind the address of `like`'s: what it sends goes the same way,
    /// and nothing comes to it.
    pub fn beside(like: &Plug) -> (Plug, Arc<Inbox>) {
        let own = Inbox::new();
        let plug = Plug {
            own: own.clone(),
            peer: like.peer.clone(),
            staged: Vec::new(),
            faults: None,
            counters: PortCounters::default(),
        };
        (plug, own)
    }

    fn carry(&mut self, frame: Frame) {
        let Some((injector, late)) = &mut self.faults else {
            return self.peer.put(frame);
        };
        match injector.fate() {
            Fate::Drop | Fate::Corrupt => return,
            Fate::Late if late.is_none() => {
                *late = Some(frame);
                return;
            }
            Fate::Duplicate => self.peer.put(frame.clone()),
            Fate::Late | Fate::Pass => {}
        }
        self.peer.put(frame);
        if let Some(overtaken) = late.take() {
            self.peer.put(overtaken);
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

    fn send(
        &mut self,
        path: &Path,
        ecn: Ecn,
        length: usize,
        fill: &mut dyn FnMut(&mut [u8]) -> bool,
    ) -> Result<(), SendError> {
        if self.staged.len() >= ROOM {
            return Err(SendError::NoRoom);
        }
        // What was there before shows if not every byte is written.
        let mut packet = vec![0xa5; length];
        if !fill(&mut packet) {
            return Err(SendError::Nothing);
        }
        self.staged.push(Frame {
            path: *path,
            ecn,
            packet,
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

    fn descriptors(&self) -> Vec<RawFd> {
        vec![self.own.bell.raw()]
    }

    fn join(&self, _: IpAddr, _: u32, _: bool) -> Result<(), Errno> {
        Ok(())
    }

    fn counters(&self) -> PortCounters {
        self.counters
    }
}
