//! Windows that this host shares with others, for direct lanes (docs/decisions/0041): its slot in
//! each, the links to peers that have one, too, and the pieces that lanes lie in.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use sluice_peering::config::window::Window as Choice;
use sluice_sys::errno::Errno;
use sluice_sys::unix::Fd;
use sluice_window::claim::BEAT_NS;
use sluice_window::link::generation;

use crate::matching::ClientId;
use crate::peer::PeerName;

mod apart;
#[cfg(test)]
mod fake;
mod leaving;
pub mod pieces;
mod server;
mod shared;
mod slots;
mod succession;

use apart::Apart;
use leaving::Leaving;
pub use pieces::{DirectLane, Ended, Loan};
use pieces::{Free, Notice, Pieces, Place, WindowId};
use shared::{Changes, Shared};
use slots::Session;
pub use slots::SlotProof;
use succession::Window;

/// Bytes of a ring that lies in a window, at most: all of a host's lanes lie in one slot.
const RING_BYTES_MAX: u32 = 256 * 1024;
/// Time between two looks at what is retired, and at who is apart.
const LOOK: Duration = Duration::from_nanos(BEAT_NS);

/// A window's slot, as it is told to peers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Seat {
    /// Of the window: random.
    pub id: WindowId,
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
    apart: HashMap<PeerName, Apart>,
    look_at: Instant,
}

impl Windows {
    /// Gets none yet. `name` is this host's, for people.
    pub fn new(choices: &[Choice], name: &str, ring_bytes: u32) -> Windows {
        let started = Instant::now();
        let all = choices.iter().map(|choice| Window::new(choice, started));
        Windows {
            all: all.collect(),
            name: name.to_owned(),
            started,
            ring_bytes: ring_bytes.min(RING_BYTES_MAX),
            users: HashMap::new(),
            sessions: HashMap::new(),
            kernel: kernel_id(),
            kernels: HashMap::new(),
            pieces: Pieces::default(),
            leaving: Leaving::new(),
            proofs: Vec::new(),
            released: Vec::new(),
            apart: HashMap::new(),
            look_at: started,
        }
    }

    /// When [`Windows::turn`] has something to do.
    pub fn next_deadline(&self) -> Option<Instant> {
        let all = self.all.iter().filter_map(Window::next_deadline);
        all.chain(self.leaving.next_deadline()).min()
    }

    /// Claims, beats, and looks after servers and peers. Whether peers are to be told of a new seat.
    pub fn turn(&mut self, now: Instant) -> bool {
        let now_ns = self.ns(now);
        self.give_back(now, false);
        let mut changes = Changes::default();
        for window in &mut self.all {
            window.turn(now, now_ns, &self.name, &mut changes);
        }
        for (id, slot) in changes.met {
            self.met(id, slot);
        }
        if changes.is_new {
            self.call_all();
        }
        // Memory is beaten in as often.
        if self.look_at <= now {
            self.look_at = now + LOOK;
            self.retire(now);
            self.look_for_strangers(now);
        }
        changes.is_new
    }

    /// Has what lies in retired memory end, and gives back the memory where all has.
    fn retire(&mut self, now: Instant) {
        let all = &self.all;
        if !all.iter().any(Window::has_retired) {
            return;
        }
        self.pieces.retire(|place, peer| {
            let window = all.get(place.window);
            window.is_some_and(|window| {
                let newest = window.place(place.window, peer).map(|it| it.id);
                window.is_retired(place.id) && newest != Some(place.id)
            })
        });
        self.sweep();
        let (pieces, leaving) = (&self.pieces, &self.leaving);
        for (at, window) in self.all.iter_mut().enumerate() {
            window.give_back(now, |id| pieces.is_in(at, id) || leaving.is_in(at, id));
        }
    }

    fn ns(&self, now: Instant) -> u64 {
        now.saturating_duration_since(self.started).as_nanos() as u64
    }

    /// This host's slots, those in retired memory last: a peer hears of so many.
    pub fn seats(&self) -> Vec<Seat> {
        let seat = |it: &Shared| {
            Some(Seat {
                id: it.id(),
                slot: it.held.as_ref()?.hold.slot(),
                kernel: self.kernel,
            })
        };
        let present = self.all.iter().filter_map(|window| window.all().next());
        let retired = self.all.iter().flat_map(|window| window.all().skip(1));
        present.chain(retired).filter_map(seat).collect()
    }

    /// The program's user.
    pub fn program_came(&mut self, client: ClientId, user: u32) {
        self.users.insert(client, user);
    }

    /// Where pieces of this program and that peer's can lie.
    fn common(&self, client: ClientId, name: &PeerName) -> Option<Place> {
        self.common_in(client, |at, window| window.place(at, name))
    }

    /// Where the window is for this program's user.
    fn common_in(
        &self,
        client: ClientId,
        place: impl Fn(usize, &Window) -> Option<Place>,
    ) -> Option<Place> {
        let user = self.users.get(&client)?;
        let all = self.all.iter().enumerate();
        let mut all = all.filter(|(_, window)| window.choice.is_for(*user));
        all.find_map(|(at, window)| place(at, window))
    }

    /// The memory that this is a place in.
    fn memory(&self, place: &Place) -> Option<&Shared> {
        self.all.get(place.window)?.memory(place.id)
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
        let shared = self.all.get_mut(place.window)?.memory_mut(place.id)?;
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
        // The lender may have seen before this host that both share newer memory, or after it.
        let there = |at, window: &Window| window.memory(loan.window)?.place(at, name);
        let place = self.common_in(client, there).ok_or(None)?;
        let shared = self.memory(&place).ok_or(None)?;
        let header = *shared.region.header();
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
        let shared = self.memory(&place).ok_or(Errno::INVAL)?;
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
            let window = all.get(piece.place.window);
            let shared = window.and_then(|it| it.memory(piece.place.id));
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
            let Some(shared) = window.and_then(|it| it.memory_mut(free.place.id)) else {
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

    /// For the status.
    pub fn report(&self) -> Vec<WindowReport> {
        let memory = |at: usize, shared: &Shared| {
            let ledger = shared.held.as_ref().map(|held| &held.ledger);
            let (lent_bytes, bytes) = ledger.map_or((0, 0), |ledger| ledger.bytes());
            MemoryReport {
                slot: shared.held.as_ref().map(|held| held.hold.slot()),
                peers: shared.holders().map(|(_, it)| it.to_string()).collect(),
                lanes: self.pieces.lanes_in(at, shared.id()),
                lent_bytes,
                bytes,
            }
        };
        let report = |(at, window): (usize, &Window)| {
            let mut all = window.all().map(|shared| memory(at, shared));
            WindowReport {
                path: window.choice.path.clone(),
                state: window.state(),
                present: all.next().unwrap_or_default(),
                retired: all.collect(),
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
    /// `no memory`; `served`; `no server`, while this host stays in the memory that it has; `device`.
    pub state: &'static str,
    /// The memory that new lanes lie in.
    #[serde(flatten)]
    pub present: MemoryReport,
    /// Memories before it, which somebody still uses.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub retired: Vec<MemoryReport>,
}

/// One memory of a window, for people.
#[derive(Debug, Default, serde::Serialize)]
pub struct MemoryReport {
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
