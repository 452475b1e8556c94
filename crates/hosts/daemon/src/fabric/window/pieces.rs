//! Which pieces of windows are whose. A piece is a chunk of lanes for one program here and one of a
//! peer: lent by this host out of its own slot, or borrowed from a peer's.
//!
//! A lane is free again when both ends have let go of it. A piece goes back to the heap when one of its
//! two programs is gone, all its lanes are free and no process has it mapped ([`super::leaving`]): of those under
//! another kernel the peer's daemon says so. What a peer's daemon had lent or borrowed when it
//! was lost is never used again, because nobody says any more whether its programs still write there.

use std::collections::HashMap;

use sluice_shmem::geometry::{Geometry, LANE_HEADER_BYTES};
use sluice_window::layout::{Geometry as Slots, PAGE_BYTES};
use sluice_window::ledger::Ledger;
use sluice_window::{In, Out, View};

use crate::matching::ClientId;
use crate::peer::PeerName;

/// Lanes of the first, second, … piece of two programs; the last number holds for all further ones.
const PIECE_LANES: [u32; 3] = [4, 16, 64];
/// Numbers of these chunks have this bit, and not the uppermost, which those of the fabric have.
const NUMBER_BIT: u32 = 1 << 30;
const NUMBER_MASK: u32 = NUMBER_BIT - 1;
/// Pieces that one peer can have us know of.
const BORROWED_MAX: usize = 4096;

/// The random number of a window, which each memory has for itself.
pub type WindowId = [u64; 2];

/// Where the slots of a piece are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    /// Which of this host's windows.
    pub window: usize,
    /// This host's slot, and the peer's.
    pub own: u32,
    pub slot: u32,
    /// Which of the window's memories.
    pub id: WindowId,
}

/// A lane of a piece.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DirectLane {
    /// The number of the piece for this host's program; peers have others.
    pub number: u32,
    pub lane: u32,
    /// This host has lent it.
    pub is_lender: bool,
}

/// A lane, as its lender tells of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Loan {
    pub window: WindowId,
    /// The lender's number of the piece.
    pub piece: u32,
    /// Where it begins, from the start of the lender's slot.
    pub at: u64,
    pub lanes: u32,
    pub ring_bytes: u32,
    pub lane: u32,
}

/// Whose end of a lane has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ended {
    /// This host's program's.
    Ours,
    /// Neither program was told, and none will be.
    Both,
}

/// What is to be told.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Notice {
    /// A program: its memory with this number is not used for new lanes any more.
    Program(ClientId, u32),
    /// A peer: this end of a lane that it has lent is over. Its number of the piece, and the lane.
    Returned(PeerName, u32, u32),
    /// A peer: a program of this host is gone, with which it had pieces.
    Gone(PeerName, ClientId),
    /// A peer: a piece was taken back.
    Withdrawn(PeerName, u32),
    /// A peer: no process here has a piece mapped that it has lent, by its number.
    Released(PeerName, u32),
}

/// A piece that no connection uses any more.
#[derive(Debug)]
pub struct Free {
    pub place: Place,
    pub at: u64,
    pub bytes: u64,
    pub peer: PeerName,
    /// The lender's number of it.
    pub piece: u32,
    pub is_lender: bool,
    /// The borrower's daemon has said that no process there has it mapped.
    pub is_released: bool,
}

impl Free {
    /// The slot that it lies in.
    pub fn slot(&self) -> u32 {
        if self.is_lender {
            self.place.own
        } else {
            self.place.slot
        }
    }
}

#[derive(Debug)]
struct Piece {
    place: Place,
    at: u64,
    geometry: Geometry,
    client: ClientId,
    peer: PeerName,
    /// Lent: the number of the peer's program. Borrowed: the lender's number of the piece.
    theirs: u32,
    is_lender: bool,
    /// The ends here, and those at the peer, by lanes; of these only the lender knows.
    ours: Vec<bool>,
    far: Vec<bool>,
    /// The program has the memory.
    given: bool,
    /// See [`Free::is_released`].
    is_released: bool,
    /// One of the two programs is gone, or the memory is retired: no more lanes of it are lent.
    is_widowed: bool,
    /// Nobody says any more what the peer's programs use.
    is_orphan: bool,
}

/// All pieces.
#[derive(Debug, Default)]
pub struct Pieces {
    all: HashMap<u32, Piece>,
    by_peer: HashMap<PeerName, OfPeer>,
    next: u32,
    notices: Vec<Notice>,
    free: Vec<Free>,
}

/// Numbers of the pieces with a peer whose daemon says what its programs use.
#[derive(Debug, Default)]
struct OfPeer {
    /// By the number of its program.
    lent: HashMap<u32, Vec<u32>>,
    /// By its own number of the piece.
    borrowed: HashMap<u32, u32>,
}

impl Piece {
    /// One whose lanes are all free. `peer`: its name, its number of the program or of the piece, and
    /// whether this host lends.
    fn new(
        (place, at, geometry): (Place, u64, Geometry),
        client: ClientId,
        (peer, theirs, is_lender): (PeerName, u32, bool),
    ) -> Piece {
        let lanes = geometry.lanes() as usize;
        Piece {
            place,
            at,
            geometry,
            client,
            peer,
            theirs,
            is_lender,
            ours: vec![false; lanes],
            far: vec![false; lanes],
            given: false,
            is_released: false,
            is_widowed: false,
            is_orphan: false,
        }
    }

    fn bytes(&self) -> u64 {
        self.geometry.chunk_bytes()
    }

    fn is_used(&self) -> bool {
        self.ours.contains(&true) || self.far.contains(&true)
    }

    fn free_lane(&self) -> Option<u32> {
        let mut both = self.ours.iter().zip(&self.far);
        let at = both.position(|(ours, far)| !ours && !far)?;
        Some(at as u32)
    }
}

impl Pieces {
    fn number(&mut self) -> u32 {
        loop {
            self.next = (self.next + 1) & NUMBER_MASK;
            let number = NUMBER_BIT | self.next;
            if !self.all.contains_key(&number) {
                return number;
            }
        }
    }

    /// A new piece, and its number.
    fn add(&mut self, piece: Piece) -> u32 {
        let number = self.number();
        let of_peer = self.by_peer.entry(piece.peer.clone()).or_default();
        if piece.is_lender {
            of_peer.lent.entry(piece.theirs).or_default().push(number);
        } else {
            of_peer.borrowed.insert(piece.theirs, number);
        }
        self.all.insert(number, piece);
        number
    }

    fn remove(&mut self, number: u32) -> Option<Piece> {
        let piece = self.all.remove(&number)?;
        // The numbers of an orphan may be those of another piece now.
        if let Some(of_peer) = self.by_peer.get_mut(&piece.peer) {
            if !piece.is_lender {
                let is_it = of_peer.borrowed.get(&piece.theirs) == Some(&number);
                is_it.then(|| of_peer.borrowed.remove(&piece.theirs));
            } else if let Some(lent) = of_peer.lent.get_mut(&piece.theirs) {
                lent.retain(|it| *it != number);
                if lent.is_empty() {
                    of_peer.lent.remove(&piece.theirs);
                }
            }
        }
        Some(piece)
    }

    /// Numbers of the pieces that were lent to this program of a peer.
    fn lent_to(&self, name: &PeerName, theirs: u32) -> Vec<u32> {
        let of_peer = self.by_peer.get(name);
        let lent = of_peer.and_then(|it| it.lent.get(&theirs));
        lent.cloned().unwrap_or_default()
    }

    /// The number of the piece that a peer has lent by this number.
    fn borrowed_from(&self, name: &PeerName, theirs: u32) -> Option<u32> {
        self.by_peer.get(name)?.borrowed.get(&theirs).copied()
    }

    /// See [`super::Windows::lend`].
    pub fn lend(
        &mut self,
        view: &impl View,
        ledger: &mut Ledger,
        place: Place,
        (client, peer, theirs): (ClientId, &PeerName, u32),
        ring_bytes: u32,
    ) -> Option<DirectLane> {
        let mut same = self.lent_to(peer, theirs);
        same.retain(|number| {
            let piece = self.all.get(number);
            piece.is_some_and(|it| !it.is_widowed && (it.client, it.place) == (client, place))
        });
        let has_room = |number: &&u32| {
            let piece = self.all.get(*number);
            piece.is_some_and(|piece| piece.free_lane().is_some())
        };
        let count = same.len();
        let number = match same.iter().find(has_room) {
            Some(number) => *number,
            None => {
                let wanted = PIECE_LANES[count.min(PIECE_LANES.len() - 1)];
                // Few are better than none.
                let mut sizes = [wanted, 1].into_iter();
                let (geometry, at) = sizes.find_map(|lanes| {
                    let geometry = Geometry::new(lanes, ring_bytes).ok()?;
                    let at = ledger.lend(view, place.slot, geometry.chunk_bytes())?;
                    Some((geometry, at))
                })?;
                // Ready lines, and the headers of lanes: others had the pages before.
                zero(view, place, at, 0, geometry.ring_offset(0, 0));
                let lent = (peer.clone(), theirs, true);
                self.add(Piece::new((place, at.0, geometry), client, lent))
            }
        };
        let piece = self.all.get_mut(&number)?;
        let lane = piece.free_lane()?;
        let header = piece.geometry.lane_header_offset(lane);
        zero(view, place, In(piece.at), header, LANE_HEADER_BYTES as u64);
        piece.ours[lane as usize] = true;
        piece.far[lane as usize] = true;
        Some(DirectLane {
            number,
            lane,
            is_lender: true,
        })
    }

    pub fn loan(&self, lane: &DirectLane) -> Option<Loan> {
        let piece = self.all.get(&lane.number)?;
        Some(Loan {
            window: piece.place.id,
            piece: lane.number,
            at: piece.at,
            lanes: piece.geometry.lanes(),
            ring_bytes: piece.geometry.ring_bytes(),
            lane: lane.lane,
        })
    }

    /// See [`super::Windows::borrow`].
    pub fn borrow(
        &mut self,
        slots: &Slots,
        place: Place,
        (client, peer): (ClientId, &PeerName),
        loan: &Loan,
    ) -> Result<DirectLane, &'static str> {
        let geometry = Geometry::new(loan.lanes, loan.ring_bytes)
            .map_err(|_| "lends lanes of a shape that none can have")?;
        let (heap, heap_bytes) = slots.heap();
        let end = loan.at.checked_add(geometry.chunk_bytes());
        let is_inside = end.is_some_and(|end| loan.at >= heap && end <= heap + heap_bytes);
        if !is_inside || !loan.at.is_multiple_of(PAGE_BYTES) || loan.lane >= loan.lanes {
            return Err("lends memory outside of its slot");
        }
        let number = self.borrowed_from(peer, loan.piece);
        let known = number.and_then(|number| Some((number, self.all.get(&number)?)));
        let number = match known {
            Some((number, piece)) => {
                let same = (piece.place, piece.at, piece.geometry, piece.client);
                if same != (place, loan.at, geometry, client) {
                    return Err("lends one piece of memory twice");
                }
                number
            }
            None => {
                let overlaps = |piece: &Piece| {
                    piece.place == place
                        && piece.at < loan.at + geometry.chunk_bytes()
                        && loan.at < piece.at + piece.bytes()
                };
                // Of whichever peer: who had the slot before has lent what its holder cannot lend now.
                if { self.all.values() }.any(|piece| !piece.is_lender && overlaps(piece)) {
                    return Err("lends memory that lies in another piece");
                }
                let of_peer = self.by_peer.get(peer);
                if of_peer.is_some_and(|it| it.borrowed.len() >= BORROWED_MAX) {
                    return Err("lends too many pieces of memory");
                }
                let borrowed = (peer.clone(), loan.piece, false);
                self.add(Piece::new((place, loan.at, geometry), client, borrowed))
            }
        };
        let piece = self.all.get_mut(&number).ok_or("")?;
        let held = &mut piece.ours[loan.lane as usize];
        if *held {
            return Err("lends a lane that is in use");
        }
        *held = true;
        Ok(DirectLane {
            number,
            lane: loan.lane,
            is_lender: false,
        })
    }

    /// Where the piece is, and whether its program has it.
    pub fn find(&self, lane: &DirectLane) -> Option<(Place, u64, Geometry, &bool)> {
        let piece = self.all.get(&lane.number)?;
        Some((piece.place, piece.at, piece.geometry, &piece.given))
    }

    pub fn set_given(&mut self, lane: &DirectLane) {
        if let Some(piece) = self.all.get_mut(&lane.number) {
            piece.given = true;
        }
    }

    pub fn over(&mut self, lane: &DirectLane, ended: Ended) {
        let Some(piece) = self.all.get_mut(&lane.number) else {
            return;
        };
        piece.ours[lane.lane as usize] = false;
        if ended == Ended::Both {
            piece.far[lane.lane as usize] = false;
        }
        if !piece.is_lender && !piece.is_orphan {
            let (peer, theirs) = (piece.peer.clone(), piece.theirs);
            self.notices.push(Notice::Returned(peer, theirs, lane.lane));
        }
        self.bury(lane.number);
    }

    pub fn returned(&mut self, name: &PeerName, number: u32, lane: u32) {
        let Some(piece) = self.all.get_mut(&number) else {
            return;
        };
        if piece.is_lender
            && piece.peer == *name
            && !piece.is_orphan
            && let Some(far) = piece.far.get_mut(lane as usize)
        {
            *far = false;
            self.bury(number);
        }
    }

    /// A peer's daemon says that no process there has a piece mapped. Whether it is one of those that
    /// are in use here still.
    pub fn released(&mut self, name: &PeerName, number: u32) -> bool {
        let piece = self.all.get_mut(&number);
        match piece.filter(|piece| piece.is_lender && piece.peer == *name) {
            Some(piece) => {
                piece.is_released = true;
                true
            }
            None => false,
        }
    }

    pub fn program_gone(&mut self, client: ClientId) {
        let mut told: Vec<PeerName> = Vec::new();
        for number in self.numbers(|piece| piece.client == client) {
            if let Some(piece) = self.all.get_mut(&number) {
                piece.is_widowed = true;
                // Who has lent has to know.
                if !piece.is_lender && !piece.is_orphan && !told.contains(&piece.peer) {
                    told.push(piece.peer.clone());
                }
            }
            self.bury(number);
        }
        let gone = told.into_iter().map(|peer| Notice::Gone(peer, client));
        self.notices.extend(gone);
    }

    pub fn foreign_gone(&mut self, name: &PeerName, theirs: u32) {
        for number in self.lent_to(name, theirs) {
            if let Some(piece) = self.all.get_mut(&number) {
                piece.is_widowed = true;
            }
            self.bury(number);
        }
    }

    pub fn withdrawn(&mut self, name: &PeerName, number: u32) {
        if let Some(number) = self.borrowed_from(name, number) {
            if let Some(piece) = self.all.get_mut(&number) {
                piece.is_widowed = true;
            }
            self.bury(number);
        }
    }

    pub fn peer_lost(&mut self, name: &PeerName) {
        self.by_peer.remove(name);
        for number in self.numbers(|piece| piece.peer == *name) {
            if let Some(piece) = self.all.get_mut(&number) {
                piece.is_orphan = true;
            }
            self.bury(number);
        }
    }

    fn numbers(&self, which: impl Fn(&Piece) -> bool) -> Vec<u32> {
        let all = self.all.iter().filter(|(_, piece)| which(piece));
        all.map(|(number, _)| *number).collect()
    }

    /// Forgets a piece of which there is no more use.
    fn bury(&mut self, number: u32) {
        let Some(piece) = self.all.get(&number) else {
            return;
        };
        let is_done = match (piece.is_orphan, piece.is_lender) {
            // What the peer's programs do there nobody knows: the pages stay lent.
            (true, _) => !piece.ours.contains(&true),
            (false, _) => piece.is_widowed && !piece.is_used(),
        };
        if !is_done {
            return;
        }
        let Some(piece) = self.remove(number) else {
            return;
        };
        if piece.given {
            self.notices.push(Notice::Program(piece.client, number));
        }
        if piece.is_orphan {
            return;
        }
        let lenders_number = if piece.is_lender {
            number
        } else {
            piece.theirs
        };
        self.free.push(Free {
            place: piece.place,
            at: piece.at,
            bytes: piece.bytes(),
            peer: piece.peer.clone(),
            piece: lenders_number,
            is_lender: piece.is_lender,
            is_released: piece.is_released,
        });
        if piece.is_lender {
            self.notices.push(Notice::Withdrawn(piece.peer, number));
        }
    }

    pub fn take_notices(&mut self) -> Vec<Notice> {
        std::mem::take(&mut self.notices)
    }

    pub fn take_free(&mut self) -> Vec<Free> {
        std::mem::take(&mut self.free)
    }

    /// Lanes of this memory of a window that programs here use.
    pub fn lanes_in(&self, window: usize, id: WindowId) -> u32 {
        let used = self.pieces_in(window, id).flat_map(|piece| &piece.ours);
        used.filter(|held| **held).count() as u32
    }

    /// Whether there is a piece in this memory of a window.
    pub fn is_in(&self, window: usize, id: WindowId) -> bool {
        self.pieces_in(window, id).next().is_some()
    }

    fn pieces_in(&self, window: usize, id: WindowId) -> impl Iterator<Item = &Piece> {
        let is_there = move |piece: &&Piece| (piece.place.window, piece.place.id) == (window, id);
        self.all.values().filter(is_there)
    }

    /// No more lanes of pieces like that are lent: each goes back when its last lane is over.
    pub fn retire(&mut self, is_retired: impl Fn(&Place, &PeerName) -> bool) {
        for number in self.numbers(|it| it.is_lender && is_retired(&it.place, &it.peer)) {
            if let Some(piece) = self.all.get_mut(&number) {
                piece.is_widowed = true;
            }
            self.bury(number);
        }
    }
}

/// Zeroes bytes of a piece of this host's own slot.
fn zero(view: &impl View, place: Place, piece: In, from: u64, bytes: u64) {
    let at = Out {
        slot: place.own,
        at: piece.0 + from,
    };
    view.write(at, &vec![0; bytes as usize]);
    view.publish(at, bytes);
}

#[cfg(test)]
mod tests;
