//! Windows that this host shares with others, for direct lanes (docs/decisions/0041): its slot in
//! each, the links to peers that have one, too, and the pieces that lanes lie in.

use std::collections::HashMap;
use std::ops::Range;
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use sluice_peering::config::window::Window as Choice;
use sluice_shmem::mapping::{Access, Mapping};
use sluice_sys::errno::Errno;
use sluice_sys::memfd;
use sluice_sys::unix::Fd;
use sluice_window::Kind;
use sluice_window::claim::{BEAT_NS, Claim, Claimed, Hold};
use sluice_window::ivshmem::Client;
use sluice_window::layout::Pair;
use sluice_window::ledger::Ledger;
use sluice_window::link::{Event, Link, generation};
use sluice_window::region::{Region, Source};

use crate::matching::ClientId;
use crate::peer::PeerName;

mod leaving;
pub mod pieces;
mod slots;

use leaving::Leaving;
pub use pieces::{DirectLane, Ended, Loan};
use pieces::{Free, Notice, Pieces, Place};
pub use slots::SlotProof;
use slots::{Session, SlotLink};

/// Time between two attempts to get a window, and the longest after some.
const RETRY: Duration = Duration::from_secs(1);
const RETRY_MAX: Duration = Duration::from_secs(60);
/// Bytes of a ring that lies in a window, at most: all of a host's lanes lie in one slot.
const RING_BYTES_MAX: u32 = 256 * 1024;

/// A window's slot, as it is told to peers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Seat {
    /// Of the window: random.
    pub id: [u64; 2],
    pub slot: u32,
    /// Which kernel the host runs, since it was booted.
    pub kernel: KernelId,
}

/// `/proc/sys/kernel/random/boot_id`.
pub type KernelId = [u64; 2];

/// All of them.
#[derive(Debug)]
pub struct Windows {
    all: Vec<Window>,
    name: String,
    started: Instant,
    ring_bytes: u32,
    /// The users of programs.
    users: HashMap<ClientId, u32>,
    /// What peers have said in their sessions.
    sessions: HashMap<PeerName, Session>,
    kernel: KernelId,
    /// What peers have said of themselves.
    kernels: HashMap<PeerName, KernelId>,
    pieces: Pieces,
    leaving: Leaving,
    proofs: Vec<(PeerName, SlotProof)>,
    /// Said beside those of [`Pieces`].
    released: Vec<Notice>,
}

#[derive(Debug)]
struct Window {
    choice: Choice,
    /// After a failure: when to try again.
    retry_at: Option<Instant>,
    retry: Duration,
    shared: Option<Shared>,
}

/// Memory that was got.
#[derive(Debug)]
struct Shared {
    memory: Fd,
    region: Region,
    claim: Option<Claim>,
    held: Option<Held>,
    /// Nothing to do before.
    due: Instant,
}

#[derive(Debug)]
struct Held {
    hold: Hold,
    ledger: Ledger,
    /// By slot.
    links: HashMap<u32, SlotLink>,
}

/// What has become of a window.
#[derive(Debug, Default)]
struct Changes {
    /// This host has another slot.
    is_new: bool,
    /// Slots with which the link has come up.
    met: Vec<u32>,
}

impl Windows {
    /// Gets none yet. `name` is this host's, for people.
    pub fn new(choices: &[Choice], name: &str, ring_bytes: u32) -> Windows {
        let all = choices.iter().map(|choice| Window {
            choice: choice.clone(),
            retry_at: Some(Instant::now()),
            retry: RETRY,
            shared: None,
        });
        Windows {
            all: all.collect(),
            name: name.to_owned(),
            started: Instant::now(),
            ring_bytes: ring_bytes.min(RING_BYTES_MAX),
            users: HashMap::new(),
            sessions: HashMap::new(),
            kernel: kernel_id(),
            kernels: HashMap::new(),
            pieces: Pieces::default(),
            leaving: Leaving::new(),
            proofs: Vec::new(),
            released: Vec::new(),
        }
    }

    /// When [`Windows::turn`] has something to do.
    pub fn next_deadline(&self) -> Option<Instant> {
        let due = |window: &Window| match &window.shared {
            Some(shared) => Some(shared.due),
            None => window.retry_at,
        };
        let all = self.all.iter().filter_map(due);
        all.chain(self.leaving.next_deadline()).min()
    }

    /// Claims, beats, and looks after peers. Whether peers are to be told of a new seat.
    pub fn turn(&mut self, now: Instant) -> bool {
        let now_ns = self.ns(now);
        self.give_back(now, false);
        let mut is_new = false;
        for at in 0..self.all.len() {
            let changes = self.all[at].turn(now, now_ns, &self.name);
            is_new |= changes.is_new;
            for slot in changes.met {
                self.met(at, slot);
            }
        }
        if is_new {
            self.call_all();
        }
        is_new
    }

    fn ns(&self, now: Instant) -> u64 {
        now.saturating_duration_since(self.started).as_nanos() as u64
    }

    /// This host's slots.
    pub fn seats(&self) -> Vec<Seat> {
        let shared = self.all.iter().filter_map(|window| window.shared.as_ref());
        let seat = |it: &Shared| {
            Some(Seat {
                id: it.region.header().id,
                slot: it.held.as_ref()?.hold.slot(),
                kernel: self.kernel,
            })
        };
        shared.filter_map(seat).collect()
    }

    /// The program's user.
    pub fn program_came(&mut self, client: ClientId, user: u32) {
        self.users.insert(client, user);
    }

    /// Where pieces of this program and that peer's can lie.
    fn common(&self, client: ClientId, name: &PeerName) -> Option<Place> {
        let user = self.users.get(&client)?;
        let mut all = self.all.iter().enumerate();
        all.find_map(|(at, window)| {
            let shared = window.shared.as_ref()?;
            let held = shared.held.as_ref()?;
            let mut links = held.links.iter();
            let is_its = |it: &SlotLink| it.holder.as_ref() == Some(name) && it.link.is_up();
            let (slot, _) = links.find(|(_, it)| is_its(it))?;
            let place = Place {
                window: at,
                own: held.hold.slot(),
                slot: *slot,
                id: shared.region.header().id,
            };
            window.choice.is_for(*user).then_some(place)
        })
    }

    /// Whether connections of this program with that peer can lie in a window.
    pub fn may_share(&self, client: ClientId, name: &PeerName) -> bool {
        self.common(client, name).is_some()
    }

    /// A lane for a program here and the peer's program of that number. Its header is all zero.
    pub fn lend(&mut self, client: ClientId, name: &PeerName, theirs: u32) -> Option<DirectLane> {
        let place = self.common(client, name)?;
        let ends = (client, name, theirs);
        if let Some(lane) = self.lend_at(place, ends) {
            return Some(lane);
        }
        self.give_back(Instant::now(), true);
        self.lend_at(place, ends)
    }

    fn lend_at(&mut self, place: Place, ends: (ClientId, &PeerName, u32)) -> Option<DirectLane> {
        let shared = self.all.get_mut(place.window)?.shared.as_mut()?;
        let view = shared.region.view(place.own);
        let ledger = &mut shared.held.as_mut()?.ledger;
        self.pieces
            .lend(&view, ledger, place, ends, self.ring_bytes)
    }

    /// What the peer is told of a lane that was lent.
    pub fn loan(&self, lane: &DirectLane) -> Option<Loan> {
        self.pieces.loan(lane)
    }

    /// A lane that a peer lends.
    ///
    /// # Errors
    /// It is none that the peer can lend, and why; `None` if there is no link with it now.
    pub fn borrow(
        &mut self,
        client: ClientId,
        name: &PeerName,
        loan: &Loan,
    ) -> Result<DirectLane, Option<&'static str>> {
        let place = self.common(client, name).ok_or(None)?;
        let shared = self.all.get(place.window).and_then(|it| it.shared.as_ref());
        let header = *shared.ok_or(None)?.region.header();
        if header.id != loan.window {
            return Err(None);
        }
        self.pieces
            .borrow(&header.geometry, place, (client, name), loan)
            .map_err(Some)
    }

    /// What the program is told of the lane's piece.
    ///
    /// # Errors
    /// The program has not got the memory yet, and there is no descriptor for it.
    pub fn given(&self, lane: &DirectLane) -> Result<Given, Errno> {
        let found = self.pieces.find(lane);
        let (place, at, geometry, given) = found.ok_or(Errno::INVAL)?;
        let shared = self.all.get(place.window).and_then(|it| it.shared.as_ref());
        let shared = shared.ok_or(Errno::INVAL)?;
        let slot = if lane.is_lender {
            place.own
        } else {
            place.slot
        };
        let range = shared.range(slot, at, geometry.chunk_bytes());
        let descriptor = || leaving::descriptor(shared.memory.raw(), &range);
        Ok(Given {
            memory: (!*given).then(descriptor).transpose()?,
            offset: range.start,
            geometry,
        })
    }

    /// The program has the memory of the lane's piece.
    pub fn set_given(&mut self, lane: &DirectLane) {
        self.pieces.set_given(lane);
    }

    /// The path of the window that a lane lies in.
    pub fn path_of(&self, lane: &DirectLane) -> Option<&Path> {
        let (place, ..) = self.pieces.find(lane)?;
        Some(&self.all.get(place.window)?.choice.path)
    }

    /// Whose end of a lane is done with it.
    pub fn over(&mut self, lane: &DirectLane, ended: Ended) {
        self.pieces.over(lane, ended);
        self.sweep();
    }

    /// A peer is done with a lane that was lent to it.
    pub fn returned(&mut self, name: &PeerName, number: u32, lane: u32) {
        self.pieces.returned(name, number, lane);
        self.sweep();
    }

    /// A program is gone, with all its ends.
    pub fn program_gone(&mut self, client: ClientId) {
        self.users.remove(&client);
        self.pieces.program_gone(client);
        self.sweep();
    }

    /// A program of a peer is gone.
    pub fn foreign_gone(&mut self, name: &PeerName, theirs: u32) {
        self.pieces.foreign_gone(name, theirs);
        self.sweep();
    }

    /// A peer takes a piece back that no connection uses any more.
    pub fn withdrawn(&mut self, name: &PeerName, number: u32) {
        self.pieces.withdrawn(name, number);
    }

    /// No process of a peer has a piece mapped any more.
    pub fn released(&mut self, name: &PeerName, number: u32) {
        if !self.pieces.released(name, number) {
            self.leaving.released(name, number, Instant::now());
        }
    }

    /// The peer's daemon is another one, or gone for long: nobody says any more what its programs use.
    pub fn peer_lost(&mut self, name: &PeerName) {
        self.forget_claims(name);
        self.pieces.peer_lost(name);
        let is_same_kernel = self.kernels.remove(name) == Some(self.kernel);
        self.leaving.peer_lost(name, is_same_kernel);
    }

    /// What peers and programs are to be told, since the last time.
    pub fn take_notices(&mut self) -> Vec<Notice> {
        let mut all = self.pieces.take_notices();
        all.append(&mut self.released);
        all
    }

    /// Gives back what nobody uses.
    fn sweep(&mut self) {
        let now = Instant::now();
        self.leaving.add(self.pieces.take_free(), now);
        self.give_back(now, false);
    }

    fn give_back(&mut self, now: Instant, is_urgent: bool) {
        let (all, kernels, own) = (&mut self.all, &self.kernels, self.kernel);
        let is_mapped = |piece: &Free| {
            let is_told = piece.is_released || kernels.get(&piece.peer) == Some(&own);
            if piece.is_lender && !is_told {
                return true;
            }
            let shared = all
                .get(piece.place.window)
                .and_then(|it| it.shared.as_ref());
            shared.is_some_and(|shared| {
                let range = shared.range(piece.slot(), piece.at, piece.bytes);
                leaving::is_mapped(shared.memory.raw(), &range)
            })
        };
        for free in self.leaving.take_free(now, is_urgent, is_mapped) {
            if !free.is_lender {
                self.released.push(Notice::Released(free.peer, free.piece));
                continue;
            }
            let window = all.get_mut(free.place.window);
            let Some(shared) = window.and_then(|it| it.shared.as_mut()) else {
                continue;
            };
            let held = shared.held.as_mut();
            if let Some(held) = held.filter(|held| held.hold.slot() == free.place.own) {
                let view = shared.region.view(held.hold.slot());
                let piece = sluice_window::In(free.at);
                held.ledger
                    .take_back(&view, free.place.slot, piece, free.bytes);
            }
        }
    }

    /// For the status: path, slot, hosts with a link, lanes, bytes lent and in all.
    pub fn report(&self) -> Vec<WindowReport> {
        let report = |(at, window): (usize, &Window)| {
            let shared = window.shared.as_ref();
            let held = shared.and_then(|it| it.held.as_ref());
            let (lent_bytes, bytes) = held.map_or((0, 0), |held| held.ledger.bytes());
            let links = held.into_iter().flat_map(|held| held.links.values());
            WindowReport {
                path: window.choice.path.clone(),
                slot: held.map(|held| held.hold.slot()),
                peers: links
                    .filter(|known| known.link.is_up())
                    .filter_map(|known| known.holder.as_ref().map(ToString::to_string))
                    .collect(),
                lanes: self.pieces.lanes_in(at),
                lent_bytes,
                bytes,
            }
        };
        self.all.iter().enumerate().map(report).collect()
    }
}

/// See [`Windows::given`].
#[derive(Debug)]
pub struct Given {
    /// For the program to map the piece from, if it has not got it yet. Nobody else may have a copy: it
    /// says for how long the piece is in use.
    pub memory: Option<Fd>,
    /// Where the piece begins in the memory.
    pub offset: u64,
    pub geometry: sluice_shmem::geometry::Geometry,
}

/// One window, for people.
#[derive(Debug, serde::Serialize)]
pub struct WindowReport {
    pub path: PathBuf,
    /// This host's; none while it has none.
    pub slot: Option<u32>,
    /// Hosts that share it, and answer.
    pub peers: Vec<String>,
    /// In use by connections of this host.
    pub lanes: u32,
    /// Of this host's slot: in the hands of programs, and in all.
    pub lent_bytes: u64,
    pub bytes: u64,
}

impl Window {
    fn turn(&mut self, now: Instant, now_ns: u64, name: &str) -> Changes {
        if self.shared.is_none() && self.retry_at.is_some_and(|at| at <= now) {
            match open(&self.choice.path, name) {
                Ok(shared) => {
                    self.shared = Some(shared);
                    self.retry = RETRY;
                }
                Err(why) => {
                    let path = self.choice.path.display();
                    // Said once, and then whenever it is asked for.
                    if self.retry == RETRY {
                        tracing::warn!(reason = %why, "no window at {path}: {why}");
                    }
                    self.retry_at = Some(now + self.retry);
                    self.retry = (2 * self.retry).min(RETRY_MAX);
                }
            }
        }
        let Some(shared) = &mut self.shared else {
            return Changes::default();
        };
        if shared.due > now {
            return Changes::default();
        }
        shared.due = now + Duration::from_nanos(BEAT_NS);
        shared.turn(now, now_ns, &self.choice.path, name)
    }
}

impl Shared {
    /// Where bytes of a slot are in the memory.
    fn range(&self, slot: u32, at: u64, bytes: u64) -> Range<u64> {
        let start = self.region.header().geometry.slot_at(slot) + at;
        start..start + bytes
    }

    fn turn(&mut self, now: Instant, now_ns: u64, path: &Path, name: &str) -> Changes {
        let mut changes = Changes::default();
        let path = path.display();
        if let Some(claim) = &mut self.claim {
            return match claim.poll(&self.region, now_ns) {
                Claimed::Held(hold) => {
                    let slot = hold.slot();
                    let ledger = Ledger::open(&self.region.view(slot), self.region.header(), slot);
                    tracing::info!("slot {slot} of the window {path}");
                    self.claim = None;
                    self.held = Some(Held {
                        hold,
                        ledger,
                        links: HashMap::new(),
                    });
                    changes.is_new = true;
                    changes
                }
                Claimed::Wait { until_ns } => {
                    let wait = Duration::from_nanos(until_ns.saturating_sub(now_ns));
                    self.due = now + wait.max(Duration::from_millis(1));
                    changes
                }
            };
        }
        let Some(held) = &mut self.held else {
            return changes;
        };
        if held.hold.beat(&self.region).is_err() {
            // Stopped for too long. What was lent stays so in the ledger that the next holder finds.
            tracing::warn!("another host has this one's slot of the window {path}");
            self.held = None;
            self.claim = claim(name);
            self.due = now;
            return changes;
        }
        let me = held.hold.slot();
        let view = self.region.view(me);
        for (slot, known) in &mut held.links {
            known.link.beat(&view);
            match known.link.poll(&view, now_ns) {
                Some(Event::Up { .. }) => changes.met.push(*slot),
                Some(Event::OtherVersion(version)) => {
                    tracing::warn!("slot {slot} of the window {path} is used by version {version}");
                }
                Some(Event::Down(why)) => {
                    if let Some(name) = known.holder.take() {
                        tracing::info!(peer = %name, reason = %why, "{name}, window {path}: {why}");
                    }
                    if let Some(link) = call(&self.region, me, *slot) {
                        known.link = link;
                    }
                }
                None => {}
            }
        }
        changes
    }
}

/// Of this host. Where it is not known nobody's is the same.
fn kernel_id() -> KernelId {
    let text = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
    let digits: String = text.chars().filter(char::is_ascii_hexdigit).collect();
    let half = |range| u64::from_str_radix(digits.get(range)?, 16).ok();
    match (half(0..16), half(16..32)) {
        (Some(high), Some(low)) => [high, low],
        _ => [
            generation().unwrap_or_default(),
            generation().unwrap_or_default(),
        ],
    }
}

fn claim(name: &str) -> Option<Claim> {
    Some(Claim::new(generation().ok()?, name, None))
}

fn call(region: &Region, me: u32, slot: u32) -> Option<Link> {
    let view = region.view(me);
    Some(Link::new(Pair::new(me, slot), generation().ok()?, &view))
}

/// Of the server behind a socket, or of a device that a guest has.
fn memory(path: &Path) -> Result<Fd, String> {
    let is_socket = std::fs::metadata(path).map(|it| it.file_type().is_socket());
    if is_socket.map_err(|error| error.to_string())? {
        let client = Client::connect(path).map_err(|error| error.to_string())?;
        let memory = sluice_sys::unix::duplicate(client.memory().as_raw_fd());
        return memory.map_err(|error| error.to_string());
    }
    let source = Source::open(path).map_err(|error| error.to_string())?;
    sluice_sys::unix::duplicate(source.fd()).map_err(|error| error.to_string())
}

fn open(path: &Path, name: &str) -> Result<Shared, String> {
    let memory = memory(path)?;
    // Programs map it: nobody may be able to make it shorter under them.
    let stat = memfd::check_lasting(memory.raw(), 1).map_err(|_| {
        "its memory is neither sealed nor a PCI device's: use `sluice window serve`, in a guest the \
         device's resource2"
            .to_owned()
    })?;
    // As it is for each program: without, nobody knows when a piece is free again.
    leaving::descriptor(memory.raw(), &(0..stat.bytes)).map_err(|error| {
        format!("its memory cannot be opened again (/proc has to be mounted): {error}")
    })?;
    let bytes = usize::try_from(stat.bytes).map_err(|error| error.to_string())?;
    let mapping = Mapping::shared(memory.raw(), bytes, Access::ReadWrite)
        .map_err(|error| error.to_string())?;
    let region = Region::of(mapping).map_err(|error| error.to_string())?;
    if region.header().kind != Kind::Coherent {
        return Err("its caches do not agree, so no connection can lie in it".to_owned());
    }
    Ok(Shared {
        memory,
        region,
        claim: Some(claim(name).ok_or("no random numbers")?),
        held: None,
        due: Instant::now(),
    })
}
