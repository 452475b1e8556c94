//! What a slot has lent, written down in the slot itself, so that it outlives who lent it.
//!
//! Programs go on with pieces that their daemon has lent when that daemon has ended. Whoever claims
//! the slot next must not lend these pages again: he finds them here. What both users of a piece have
//! given back is free; what was lent when a holder died stays lent for the life of the window.
//!
//! ```text
//! heap of the slot
//! 0    two words: the window's random id, so that pages of an older window in the same memory say nothing
//! 64   a byte for each page of the heap: 0 free and never lent; else the borrower's slot plus one,
//!      with 0x80 while it is lent
//! ```
//!
//! The holder keeps all this privately and only writes it here. It is read once, when a slot was
//! claimed: who scribbles over it can have pages lent twice or never, as can whoever scribbles over
//! the pieces themselves.

use crate::header::Header;
use crate::heap::Heap;
use crate::layout::PAGE_BYTES;
use crate::view::{In, LINE_BYTES, Out, View};

const LENT: u8 = 0x80;

/// A heap that is written down.
#[derive(Debug)]
pub struct Ledger {
    heap: Heap,
    me: u32,
    /// Where the heap and its bytes of the ledger begin.
    start: u64,
    pages: u64,
    /// Pages that the ledger itself takes.
    own_pages: u64,
}

impl Ledger {
    /// Takes over what earlier holders of the slot `me` have lent. To be called by its holder.
    pub fn open(view: &impl View, header: &Header, me: u32) -> Ledger {
        let (start, bytes) = header.geometry.heap();
        let pages = bytes / PAGE_BYTES;
        let own_pages = (LINE_BYTES + pages).div_ceil(PAGE_BYTES);
        let mut ledger = Ledger {
            heap: Heap::new(start, bytes),
            me,
            start,
            pages,
            own_pages,
        };
        // Nobody borrows these.
        ledger.heap.restore(0..own_pages as usize, me, true);
        let id = |word: u64| view.look(In(start + 8 * word));
        if [id(0), id(1)] != header.id {
            ledger.begin(view, header);
            return ledger;
        }
        let mut noted = vec![0; pages as usize];
        view.refresh(In(start + LINE_BYTES), pages);
        view.read(In(start + LINE_BYTES), &mut noted);
        for (page, byte) in noted.iter().enumerate().skip(own_pages as usize) {
            let peer = u32::from(byte & !LENT).wrapping_sub(1);
            if peer < header.geometry.hosts() {
                ledger.heap.restore(page..page + 1, peer, byte & LENT != 0);
            }
        }
        ledger
    }

    /// Bytes that a slot's ledger says to be lent, for whoever only looks. Without a ledger there are none.
    pub fn lent_bytes(view: &impl View, header: &Header) -> u64 {
        let (start, bytes) = header.geometry.heap();
        if [0, 1].map(|word| view.look(In(start + 8 * word))) != header.id {
            return 0;
        }
        let pages = bytes / PAGE_BYTES;
        let own_pages = (LINE_BYTES + pages).div_ceil(PAGE_BYTES);
        let mut noted = vec![0; pages as usize];
        view.refresh(In(start + LINE_BYTES), pages);
        view.read(In(start + LINE_BYTES), &mut noted);
        let lent = noted.iter().skip(own_pages as usize);
        lent.filter(|byte| *byte & LENT != 0).count() as u64 * PAGE_BYTES
    }

    fn begin(&self, view: &impl View, header: &Header) {
        let at = |offset: u64| Out {
            slot: self.me,
            at: self.start + offset,
        };
        view.say(at(0), 0);
        view.write(at(LINE_BYTES), &vec![0; self.pages as usize]);
        view.publish(at(LINE_BYTES), self.pages);
        view.say(at(8), header.id[1]);
        // Last: a holder that dies before has begun nothing.
        view.say(at(0), header.id[0]);
    }

    /// A piece of at least `bytes` for a peer, as [`Heap::lend`] has it. It is written down before
    /// this returns.
    pub fn lend(&mut self, view: &impl View, peer: u32, bytes: u64) -> Option<In> {
        let piece = self.heap.lend(peer, bytes)?;
        let count = bytes.div_ceil(PAGE_BYTES).max(1);
        self.note(view, piece, count, peer, LENT);
        Some(piece)
    }

    /// Takes back a piece of `bytes` that nobody uses any more. False: no piece of this peer begins there.
    pub fn take_back(&mut self, view: &impl View, peer: u32, piece: In, bytes: u64) -> bool {
        let is_one = self.heap.take_back(peer, piece);
        if is_one {
            let count = bytes.div_ceil(PAGE_BYTES).max(1);
            self.note(view, piece, count, peer, 0);
        }
        is_one
    }

    /// Bytes that are lent, and bytes there are to lend.
    pub fn bytes(&self) -> (u64, u64) {
        let own = self.own_pages * PAGE_BYTES;
        let all = self.pages * PAGE_BYTES;
        (self.heap.lent_bytes().saturating_sub(own), all - own)
    }

    fn note(&self, view: &impl View, piece: In, count: u64, peer: u32, lent: u8) {
        let bytes = vec![(peer as u8 + 1) | lent; count as usize];
        let page = (piece.0 - self.start) / PAGE_BYTES;
        let at = Out {
            slot: self.me,
            at: self.start + LINE_BYTES + page,
        };
        view.write(at, &bytes);
        view.publish(at, count);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Kind;
    use crate::layout::Geometry;
    use crate::region::Region;
    use sluice_sys::mapping::Mapping;

    const HOSTS: u32 = 3;
    const BYTES: usize = 1 << 20;

    fn region() -> Region {
        let memory = Mapping::anonymous(BYTES).expect("memory");
        Region::format(memory, HOSTS, Kind::Coherent, true).expect("a window")
    }

    fn open(region: &Region, slot: u32) -> Ledger {
        Ledger::open(&region.view(slot), region.header(), slot)
    }

    #[test]
    fn the_next_holder_lends_nothing_that_is_lent() {
        let region = region();
        let view = region.view(1);
        let mut first = open(&region, 1);
        let (0, room) = first.bytes() else {
            panic!("something is lent");
        };
        let kept = first.lend(&view, 0, 3 * PAGE_BYTES).expect("a piece");
        let back = first.lend(&view, 2, 2 * PAGE_BYTES).expect("a piece");
        assert!(first.take_back(&view, 2, back, 2 * PAGE_BYTES));
        assert!(!first.take_back(&view, 2, kept, 3 * PAGE_BYTES));
        let mut second = open(&region, 1);
        assert_eq!(second.bytes(), (3 * PAGE_BYTES, room));
        assert_eq!(
            Ledger::lent_bytes(&view, region.header()),
            3 * PAGE_BYTES,
            "who only looks sees the same"
        );
        // Pages that one peer had are never another's, whoever holds the slot.
        let mut pieces = vec![
            kept.0..kept.0 + 3 * PAGE_BYTES,
            back.0..back.0 + 2 * PAGE_BYTES,
        ];
        while let Some(piece) = second.lend(&view, 0, PAGE_BYTES) {
            let page = piece.0..piece.0 + PAGE_BYTES;
            assert!(
                pieces
                    .iter()
                    .all(|it| page.end <= it.start || it.end <= page.start)
            );
            pieces.push(page);
        }
        assert_eq!(second.lend(&view, 2, 2 * PAGE_BYTES), Some(back));
        // The ledger is not lent either: it still says so.
        assert_eq!(open(&region, 1).bytes(), (room, room));
        assert_eq!(open(&region, 0).bytes(), (0, room), "another slot");
    }

    #[test]
    fn what_an_older_window_has_left_says_nothing() {
        let region = region();
        let mut ledger = open(&region, 0);
        ledger
            .lend(&region.view(0), 1, PAGE_BYTES)
            .expect("a piece");
        let geometry = Geometry::of_region(HOSTS, BYTES as u64).expect("a geometry");
        let other = Header {
            kind: Kind::Coherent,
            geometry,
            id: [8, 9],
        };
        assert_eq!(Ledger::lent_bytes(&region.view(0), &other), 0);
        assert_eq!(Ledger::open(&region.view(0), &other, 0).bytes().0, 0);
    }

    #[test]
    fn any_bytes_there_are_a_ledger() {
        let region = region();
        let view = region.view(0);
        let mut ledger = open(&region, 0);
        let at = Out {
            slot: 0,
            at: region.header().geometry.heap().0 + LINE_BYTES,
        };
        let garbage: Vec<u8> = (0..ledger.pages).map(|at| (at * 37 % 256) as u8).collect();
        view.write(at, &garbage);
        let (lent, room) = open(&region, 0).bytes();
        assert!(lent <= room);
        // What this holder knows holds.
        assert_eq!(ledger.bytes(), (0, room));
        assert!(ledger.lend(&view, 1, PAGE_BYTES).is_some());
    }
}
