//! A thread that carries: it has the device for itself and lanes to other hosts, all of them or its share, polls
//! while bytes move, and sleeps otherwise.

use std::collections::{HashMap, HashSet};
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::mpsc::{self, Receiver, Sender};
use std::thread::JoinHandle;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use sluice_fabric::engine::{Engine, Rest};
use sluice_fabric::halves::{Far, Near};
use sluice_fabric::message::LaneNumber;
use sluice_fabric::oversubscribed::Oversubscribed;
use sluice_fabric::wire::{Full, LinkId, Local, Remote, Wire};
use sluice_lane::clock::now_ns;
use sluice_lane::spin::yield_processor;
use sluice_rdma::{Access, Endpoint, Event, Node, QueuePosition, Region, WriteRequest};

use super::memory::{ForeignParkingTable, OwnParkingTable, Shared, Taken};
use super::oversubscription::Oversubscription;
use super::traffic::Traffic;
use super::words::Token;

/// Of the processor, nanoseconds; what the engine of the verbs library asks for, too.
const SLICE_NS: u64 = 200_000;
/// Which side of a fabric lane the program has, and which sluiced.
pub const SIDE_OF_PROGRAM: u32 = 0;
pub const SIDE_OF_DAEMON: u32 = 1;
/// Carriers of one daemon, at most: their numbers have one digit in the threads' names, and each has a slot of
/// the parking table.
pub const CARRIERS_MAX: usize = sluice_peering::config::THREADS_MAX as usize;
/// Completions taken at a time.
const COMPLETIONS_MAX: usize = 64;

/// What the carrier is told.
#[derive(Debug)]
pub enum Command {
    /// Makes a queue pair for a link, in place of the one that it had.
    MakeLink {
        link: LinkId,
        attempt: u32,
        /// What goes over it is counted there.
        traffic: Arc<Traffic>,
    },
    /// Connects it with the peer's.
    ConnectLink { link: LinkId, endpoint: Endpoint },
    /// The peer's daemon is gone for good, or cannot be trusted: so are the lanes on the link.
    LoseLink { link: LinkId },
    /// Opens this host's half of a lane. Answered by `LaneOpened` or `LaneRefused`.
    OpenLane {
        link: LinkId,
        token: Token,
        taken: Taken,
        parking: Arc<ForeignParkingTable>,
    },
    /// Where the other half is.
    ConnectLane { number: LaneNumber, far: Far },
    /// The program has closed the connection, or has ended.
    ProgramGone { number: LaneNumber },
    /// The peer has no half of this lane, and never had: it stays on TCP.
    DeclineLane { number: LaneNumber },
    /// Ends the thread.
    Stop,
}

/// What the carrier says.
#[derive(Debug)]
pub enum Report {
    LinkMade {
        link: LinkId,
        attempt: u32,
        endpoint: Endpoint,
    },
    /// Nothing of a link that was given up is left: its number may be another one's.
    LinkForgotten {
        link: LinkId,
    },
    /// Something has come over the link: the network lets the fabric through.
    LinkProven {
        link: LinkId,
    },
    /// The link failed; another may take its place.
    LinkFailed {
        link: LinkId,
        why: String,
    },
    /// The peer's daemon broke the rules.
    Violation {
        link: LinkId,
        what: &'static str,
    },
    LaneOpened {
        token: Token,
        half: Far,
    },
    LaneRefused {
        token: Token,
        why: String,
    },
    /// Nobody uses the lane any more: its memory is free.
    LaneOver {
        token: Token,
    },
    /// The device is gone: nothing goes any more.
    DeviceGone {
        why: String,
    },
}

/// The server's handle of a carrier.
#[derive(Debug)]
pub struct Carrier {
    commands: Sender<Command>,
    reports: Receiver<Report>,
    /// Wakes the thread.
    commanded: Arc<OwnedFd>,
    /// Readable when there are reports.
    reported: Arc<OwnedFd>,
    thread: Option<JoinHandle<()>>,
}

impl Carrier {
    /// Starts the thread of the carrier with this number, below [`CARRIERS_MAX`]. It announces its sleep in
    /// that slot of `parking`, which all of them have in common, as they have `oversubscribed`.
    ///
    /// `is_eager`: see [`Engine::set_eager`].
    pub fn start(
        number: usize,
        node: Node,
        parking: Arc<OwnParkingTable>,
        oversubscribed: Oversubscribed,
        is_eager: bool,
    ) -> io::Result<Self> {
        let (commands, from_server) = mpsc::channel();
        let (to_server, reports) = mpsc::channel();
        let commanded = Arc::new(event_fd()?);
        let reported = Arc::new(event_fd()?);
        let mut thread = Thread {
            commands: from_server,
            reports: to_server,
            commanded: commanded.clone(),
            reported: reported.clone(),
            engine: Engine::with_slot(
                Adapter::new(node),
                parking.view(),
                number as u32,
                oversubscribed,
            ),
            lanes: HashMap::new(),
            lanes_on: HashMap::new(),
            lost: HashSet::new(),
            fading: Vec::new(),
            inbox: Vec::new(),
            bytes: Vec::new(),
            oversubscription: Oversubscription::default(),
            _parking: parking,
        };
        if is_eager {
            thread.engine.set_eager();
        }
        let thread = std::thread::Builder::new()
            .name(match number {
                0 => "sluiced-carrier".to_owned(),
                // A thread's name has 15 bytes (pthread_setname_np(3)).
                _ => format!("sluiced-carry-{number}"),
            })
            .spawn(move || thread.run())?;
        Ok(Self {
            commands,
            reports,
            commanded,
            reported,
            thread: Some(thread),
        })
    }

    /// Readable when [`Carrier::next_report`] has something.
    pub fn reported(&self) -> &OwnedFd {
        &self.reported
    }

    /// Tells the carrier something.
    pub fn tell(&self, command: Command) {
        // A thread that has ended has said why.
        let _ = self.commands.send(command);
        ring(&self.commanded);
    }

    /// What it has said, oldest first.
    pub fn next_report(&self) -> Option<Report> {
        if let Ok(report) = self.reports.try_recv() {
            return Some(report);
        }
        silence(&self.reported);
        self.reports.try_recv().ok()
    }
}

impl Drop for Carrier {
    fn drop(&mut self) {
        self.tell(Command::Stop);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

fn event_fd() -> io::Result<OwnedFd> {
    use rustix::event::{EventfdFlags, eventfd};
    Ok(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?)
}

fn ring(fd: &OwnedFd) {
    // It can only be full, and then it rings already.
    let _ = rustix::io::write(fd, &1_u64.to_ne_bytes());
}

fn silence(fd: &OwnedFd) {
    let _ = rustix::io::read(fd, &mut [0; 8]);
}

/// A link's.
struct QueuePair {
    number: sluice_rdma::LinkId,
    traffic: Arc<Traffic>,
    /// Something has come over it.
    is_proven: bool,
}

/// The engine's wire over a node.
struct Adapter {
    node: Node,
    /// The present queue pair of each link.
    links: Vec<Option<QueuePair>>,
    /// Memory that lanes send from.
    regions: Vec<Option<(Region, u64)>>,
    /// Writes of lanes on one link that go to the device together, in order.
    writes: Vec<WriteRequest>,
    written: LinkId,
}

impl Adapter {
    fn new(node: Node) -> Self {
        Self {
            node,
            links: Vec::new(),
            regions: Vec::new(),
            writes: Vec::new(),
            written: LinkId(0),
        }
    }

    fn place(&self, link: LinkId) -> Option<&QueuePair> {
        self.links.get(link.0 as usize)?.as_ref()
    }

    fn queue_pair(&self, link: LinkId) -> Option<sluice_rdma::LinkId> {
        self.place(link).map(|it| it.number)
    }

    fn link_of(&self, queue_pair: sluice_rdma::LinkId) -> Option<LinkId> {
        let is_it = |it: &Option<QueuePair>| it.as_ref().is_some_and(|it| it.number == queue_pair);
        let at = self.links.iter().position(is_it)?;
        Some(LinkId(at as u32))
    }

    fn set_queue_pair(&mut self, link: LinkId, queue_pair: Option<QueuePair>) {
        let at = link.0 as usize;
        if at >= self.links.len() {
            self.links.resize_with(at + 1, || None);
        }
        if link == self.written {
            // The engine writes it again, from where the far daemon says.
            self.writes.clear();
        }
        if let Some(former) = std::mem::replace(&mut self.links[at], queue_pair) {
            self.node.destroy_link(former.number);
        }
    }

    /// Something has come over the link. Whether that is the first time.
    fn prove(&mut self, link: LinkId) -> bool {
        let place = self.links.get_mut(link.0 as usize);
        let place = place.and_then(Option::as_mut);
        place.is_some_and(|it| !std::mem::replace(&mut it.is_proven, true))
    }

    fn add_region(&mut self, region: Region) -> u32 {
        let start = region.remote().address;
        let entry = Some((region, start));
        match self.regions.iter().position(Option::is_none) {
            Some(at) => {
                self.regions[at] = entry;
                at as u32
            }
            None => {
                self.regions.push(entry);
                self.regions.len() as u32 - 1
            }
        }
    }

    fn remove_region(&mut self, region: u32) {
        if let Some(entry) = self.regions.get_mut(region as usize) {
            *entry = None;
        }
    }
}

impl Wire for Adapter {
    fn write(
        &mut self,
        link: LinkId,
        local: Local,
        remote: Remote,
        immediate: u32,
    ) -> Result<(), Full> {
        let queue_pair = self.queue_pair(link).ok_or(Full)?;
        let (region, start) = self
            .regions
            .get(local.region as usize)
            .and_then(Option::as_ref)
            .ok_or(Full)?;
        let address = local.address.as_ptr().expose_provenance() as u64;
        let offset = address.checked_sub(*start).ok_or(Full)? as usize;
        let slice = region.slice(offset, local.bytes).ok_or(Full)?;
        let remote = sluice_rdma::Remote {
            address: remote.address,
            key: remote.rkey,
        };
        if link != self.written {
            self.flush();
            if !self.writes.is_empty() {
                return Err(Full);
            }
            self.written = link;
        }
        if self.writes.len() >= self.node.room(queue_pair) {
            return Err(Full);
        }
        self.writes.push(WriteRequest {
            local: slice,
            remote,
            number: Some(immediate),
            id: 0,
        });
        if let Some(place) = self.place(link) {
            place.traffic.note_sent(local.bytes as u64);
        }
        Ok(())
    }

    fn send(&mut self, link: LinkId, message: &[u8]) -> Result<(), Full> {
        let queue_pair = self.queue_pair(link).ok_or(Full)?;
        self.flush();
        if link == self.written && !self.writes.is_empty() {
            return Err(Full);
        }
        // What cannot be posted for another reason than room is on a link that has failed, which an
        // event tells; until then it waits.
        let posted = self.node.send(queue_pair, message, 0);
        posted.map_err(|_| Full)
    }

    fn flush(&mut self) {
        let Some(queue_pair) = self.queue_pair(self.written) else {
            return;
        };
        while !self.writes.is_empty() {
            match self.node.write_all(queue_pair, &self.writes) {
                Ok(done @ 1..) => drop(self.writes.drain(..done)),
                // As above.
                Ok(0) | Err(_) => return,
            }
        }
    }
}

/// An event that outlives the poll.
#[derive(Debug)]
enum Came {
    Payload {
        immediate: u32,
        bytes: u32,
    },
    /// Where in the buffer.
    Message {
        start: usize,
        end: usize,
    },
    Broken {
        why: String,
    },
}

#[derive(Debug)]
struct LaneState {
    link: LinkId,
    token: Token,
    region: u32,
    /// Peers write here as long as it is registered.
    _target: Region,
    _parking: Arc<ForeignParkingTable>,
    // Last: everything else is in it.
    _chunk: Arc<Shared>,
}

struct Thread {
    commands: Receiver<Command>,
    reports: Sender<Report>,
    commanded: Arc<OwnedFd>,
    reported: Arc<OwnedFd>,
    engine: Engine<Adapter>,
    lanes: HashMap<LaneNumber, LaneState>,
    /// How many of them are on each link.
    lanes_on: HashMap<LinkId, usize>,
    /// Links that were given up, as long as there are lanes of theirs.
    lost: HashSet<LinkId>,
    /// Lanes that are over, whose memory the device may still send from: the far daemon has
    /// everything, but packets of it may have to be repeated until the device knows that, too.
    fading: Vec<(Option<QueuePosition>, LaneState)>,
    inbox: Vec<(sluice_rdma::LinkId, Came)>,
    bytes: Vec<u8>,
    oversubscription: Oversubscription,
    _parking: Arc<OwnParkingTable>,
}

impl Thread {
    fn run(mut self) {
        loop {
            while let Ok(command) = self.commands.try_recv() {
                if matches!(command, Command::Stop) {
                    return;
                }
                self.obey(command);
            }
            let came = self.take_events();
            self.engine.turn(now_ns());
            self.bury();
            match self.engine.rest(now_ns()) {
                Rest::Poll if came => {}
                Rest::Poll => yield_processor(),
                Rest::Sleep(until_ns) => {
                    if let Err(why) = self.sleep(until_ns) {
                        self.report(Report::DeviceGone {
                            why: why.to_string(),
                        });
                        return;
                    }
                }
            }
        }
    }

    fn report(&self, report: Report) {
        let _ = self.reports.send(report);
        ring(&self.reported);
    }

    fn sleep(&mut self, until_ns: u64) -> Result<(), Box<dyn std::error::Error>> {
        let may_sleep = self.engine.announce_sleep();
        let result = if may_sleep {
            self.sleep_announced(until_ns)
        } else {
            Ok(())
        };
        let now = now_ns();
        self.engine.withdraw_sleep(now);
        if self.engine.lanes().next().is_some()
            && let Some(is_oversubscribed) = self.oversubscription.look(now)
        {
            self.engine.set_oversubscribed(is_oversubscribed);
        }
        result
    }

    fn sleep_announced(&mut self, until_ns: u64) -> Result<(), Box<dyn std::error::Error>> {
        self.engine.wire.node.arm()?;
        if self.take_events() {
            return Ok(());
        }
        let timeout = (until_ns != u64::MAX).then(|| {
            let left = until_ns.saturating_sub(now_ns());
            Timespec {
                tv_sec: (left / 1_000_000_000) as i64,
                tv_nsec: (left % 1_000_000_000) as i64,
            }
        });
        let commanded = self.commanded.clone();
        let mut fds = [
            PollFd::new(&commanded, PollFlags::IN),
            PollFd::from_borrowed_fd(self.engine.wire.node.as_fd(), PollFlags::IN),
        ];
        // Programs that poll must not keep what they poll for from coming. Only for a sleep: among
        // threads that yield to one another those with short slices are run several times in turn.
        let _ = sluice_sys::process::ask_for_slices(SLICE_NS);
        let polled = poll(&mut fds, timeout.as_ref());
        let _ = sluice_sys::process::ask_for_slices(0);
        match polled {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
        if !fds[0].revents().is_empty() {
            silence(&commanded);
        }
        Ok(())
    }

    fn obey(&mut self, command: Command) {
        match command {
            Command::MakeLink {
                link,
                attempt,
                traffic,
            } => {
                self.engine.link_down(link);
                self.engine.wire.set_queue_pair(link, None);
                match self.engine.wire.node.create_link() {
                    Ok((queue_pair, endpoint)) => {
                        let queue_pair = QueuePair {
                            number: queue_pair,
                            traffic,
                            is_proven: false,
                        };
                        self.engine.wire.set_queue_pair(link, Some(queue_pair));
                        self.report(Report::LinkMade {
                            link,
                            attempt,
                            endpoint,
                        });
                    }
                    Err(error) => self.report(Report::LinkFailed {
                        link,
                        why: error.to_string(),
                    }),
                }
            }
            Command::ConnectLink { link, endpoint } => {
                let Some(queue_pair) = self.engine.wire.queue_pair(link) else {
                    return;
                };
                match self.engine.wire.node.connect(queue_pair, &endpoint) {
                    Ok(()) => {
                        tracing::debug!(link = link.0, "link {} is connected", link.0);
                        self.engine.link_up(link);
                        // Says nothing, and that it comes through says all: queue pairs connect
                        // without a packet.
                        let _ = self.engine.wire.send(link, &[]);
                    }
                    Err(error) => self.report(Report::LinkFailed {
                        link,
                        why: error.to_string(),
                    }),
                }
            }
            Command::LoseLink { link } => {
                self.engine.link_lost(link);
                self.engine.wire.set_queue_pair(link, None);
                self.lost.insert(link);
                self.forget_if_unused(link);
            }
            Command::OpenLane {
                link,
                token,
                taken,
                parking,
            } => match self.open_lane(link, token, &taken, parking) {
                Ok(half) => self.report(Report::LaneOpened { token, half }),
                Err(why) => self.report(Report::LaneRefused { token, why }),
            },
            Command::ConnectLane { number, far } => {
                if let Err(violation) = self.engine.connect(number, far, now_ns()) {
                    let link = self.lanes.get(&number).map(|lane| lane.link.0);
                    let peer = format!("link {}", link.unwrap_or_default());
                    tracing::warn!(peer, reason = %violation, "{violation}");
                }
            }
            Command::ProgramGone { number } => self.engine.program_gone(number),
            Command::DeclineLane { number } => self.engine.decline(number),
            Command::Stop => {}
        }
    }

    /// A link that was given up and has no lanes any more is another one from now on.
    fn forget_if_unused(&mut self, link: LinkId) {
        if !self.lanes_on.contains_key(&link) && self.lost.remove(&link) {
            // Nothing that its last lane has left behind is the next one's.
            self.engine.link_lost(link);
            self.report(Report::LinkForgotten { link });
        }
    }

    fn open_lane(
        &mut self,
        link: LinkId,
        token: Token,
        taken: &Taken,
        parking: Arc<ForeignParkingTable>,
    ) -> Result<Far, String> {
        let geometry = taken.chunk.geometry();
        let ring_bytes = geometry.ring_bytes();
        let (source, target) = {
            let node = &self.engine.wire.node;
            let register = |direction: u32, access| {
                let chunk = &taken.chunk;
                chunk.register(node, taken.lane, direction, access)
            };
            // The program writes from its side, and reads what is written from the other one.
            let source = register(SIDE_OF_PROGRAM, Access::Source).map_err(|e| e.to_string())?;
            let target = register(SIDE_OF_DAEMON, Access::Target).map_err(|e| e.to_string())?;
            (source, target)
        };
        let ring = target.remote();
        let region = self.engine.wire.add_region(source);
        let near = Near {
            chunk: taken.chunk.view(),
            lane: taken.lane,
            side: SIDE_OF_DAEMON,
            parking: Some(parking.view()),
            region,
        };
        let Some(number) = self.engine.open(link, near) else {
            self.engine.wire.remove_region(region);
            return Err("too many lanes".to_owned());
        };
        *self.lanes_on.entry(link).or_default() += 1;
        self.lanes.insert(
            number,
            LaneState {
                link,
                token,
                region,
                _target: target,
                _parking: parking,
                _chunk: taken.chunk.clone(),
            },
        );
        Ok(Far {
            number,
            ring: Remote {
                address: ring.address,
                rkey: ring.key,
            },
            ring_bytes,
        })
    }

    /// Takes what has come, in order. Whether there was anything.
    fn take_events(&mut self) -> bool {
        let Self { inbox, bytes, .. } = self;
        inbox.clear();
        bytes.clear();
        let mut is_gone = false;
        let took = self.engine.wire.node.poll(COMPLETIONS_MAX, &mut |event| {
            let (link, came) = match event {
                Event::Arrived {
                    link,
                    number,
                    bytes,
                } => (
                    link,
                    Came::Payload {
                        immediate: number,
                        bytes,
                    },
                ),
                Event::Message {
                    link,
                    bytes: message,
                } => {
                    let start = bytes.len();
                    bytes.extend_from_slice(message);
                    let end = bytes.len();
                    (link, Came::Message { start, end })
                }
                Event::Broken { link, status } => (
                    link,
                    Came::Broken {
                        why: status.to_string(),
                    },
                ),
                Event::Device(events) => {
                    is_gone |= events.gone;
                    return;
                }
                // What is not known to have arrived stays in the rings.
                Event::Done { .. } | Event::Failed { .. } => return,
            };
            inbox.push((link, came));
        });
        if is_gone {
            self.report(Report::DeviceGone {
                why: "the device is gone".to_owned(),
            });
        }
        let inbox = std::mem::take(&mut self.inbox);
        let bytes = std::mem::take(&mut self.bytes);
        let now = now_ns();
        for (queue_pair, came) in &inbox {
            // Of a queue pair that was given up meanwhile.
            let Some(link) = self.engine.wire.link_of(*queue_pair) else {
                continue;
            };
            if !matches!(came, Came::Broken { .. }) && self.engine.wire.prove(link) {
                self.report(Report::LinkProven { link });
            }
            let result = match came {
                Came::Payload {
                    immediate,
                    bytes: count,
                } => {
                    if let Some(place) = self.engine.wire.place(link) {
                        place.traffic.note_received(u64::from(*count));
                    }
                    self.engine.arrived(link, *immediate, *count, now)
                }
                Came::Message { start, end } => self.engine.heard(link, &bytes[*start..*end], now),
                Came::Broken { why } => {
                    self.engine.link_down(link);
                    self.engine.wire.set_queue_pair(link, None);
                    self.report(Report::LinkFailed {
                        link,
                        why: why.clone(),
                    });
                    Ok(())
                }
            };
            if let Err(violation) = result {
                self.engine.link_lost(link);
                self.engine.wire.set_queue_pair(link, None);
                self.report(Report::Violation {
                    link,
                    what: violation.0,
                });
            }
        }
        self.inbox = inbox;
        self.bytes = bytes;
        took > 0
    }

    /// Forgets lanes that are over.
    fn bury(&mut self) {
        for number in self.engine.take_over() {
            if let Some(lane) = self.lanes.remove(&number) {
                let wire = &self.engine.wire;
                let queue_pair = wire.queue_pair(lane.link);
                let position = queue_pair.and_then(|it| wire.node.queue_position(it));
                let link = lane.link;
                self.fading.push((position, lane));
                if let Some(count) = self.lanes_on.get_mut(&link) {
                    *count -= 1;
                    if *count == 0 {
                        self.lanes_on.remove(&link);
                        self.forget_if_unused(link);
                    }
                }
            }
        }
        while let Some(at) = self.fading.iter().position(|(position, _)| {
            let node = &self.engine.wire.node;
            position.is_none_or(|position| node.is_past(position))
        }) {
            let (_, lane) = self.fading.swap_remove(at);
            self.engine.wire.remove_region(lane.region);
            let token = lane.token;
            drop(lane);
            self.report(Report::LaneOver { token });
        }
    }
}
