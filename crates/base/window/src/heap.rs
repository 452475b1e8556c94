//! The heap of this host's slot: what it lends to peers to write to.
//!
//! Pages that were lent to one peer are lent to no other one for the life of the window: a peer
//! that is thought dead may be stopped in the middle of a copy, and go on when its pages have
//! another use. So what it writes then are its own connections' bytes.

use crate::layout::PAGE_BYTES;
use crate::view::In;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Page {
    /// The peer that it was lent to first.
    peer: Option<u32>,
    lent: bool,
    /// The first page of a piece.
    first: bool,
}

/// Which pages are lent to whom. Private to this host.
#[derive(Debug)]
pub struct Heap {
    start: u64,
    pages: Vec<Page>,
}

impl Heap {
    /// `start` and `bytes` as [`Geometry::heap`](crate::layout::Geometry::heap) has them.
    pub fn new(start: u64, bytes: u64) -> Heap {
        let page = Page {
            peer: None,
            lent: false,
            first: false,
        };
        Heap {
            start,
            pages: vec![page; (bytes / PAGE_BYTES) as usize],
        }
    }

    /// A piece of at least `bytes`, from a page's start. None: there is no such room.
    pub fn lend(&mut self, peer: u32, bytes: u64) -> Option<In> {
        let count = usize::try_from(bytes.div_ceil(PAGE_BYTES)).ok()?.max(1);
        // Its own pages first, so that peers that come and go use up no new ones.
        let own = |page: &Page| !page.lent && page.peer == Some(peer);
        let usable = |page: &Page| !page.lent && page.peer.is_none_or(|had| had == peer);
        let at = self.run(count, own).or_else(|| self.run(count, usable))?;
        for (index, page) in self.pages[at..at + count].iter_mut().enumerate() {
            *page = Page {
                peer: Some(peer),
                lent: true,
                first: index == 0,
            };
        }
        Some(In(self.start + at as u64 * PAGE_BYTES))
    }

    /// Pages that were lent before this holder of the slot came.
    pub(crate) fn restore(&mut self, pages: core::ops::Range<usize>, peer: u32, lent: bool) {
        for page in self.pages.get_mut(pages).into_iter().flatten() {
            *page = Page {
                peer: Some(peer),
                lent,
                // Nobody gives it back any more: no piece begins there.
                first: false,
            };
        }
    }

    /// Takes a piece back. False: no piece of this peer begins there.
    pub fn take_back(&mut self, peer: u32, piece: In) -> bool {
        let Some(offset) = piece.0.checked_sub(self.start) else {
            return false;
        };
        let at = (offset / PAGE_BYTES) as usize;
        let begins = |page: &Page| page.lent && page.first && page.peer == Some(peer);
        if !offset.is_multiple_of(PAGE_BYTES) || !self.pages.get(at).is_some_and(begins) {
            return false;
        }
        self.pages[at].lent = false;
        for page in &mut self.pages[at + 1..] {
            if !page.lent || page.first {
                break;
            }
            page.lent = false;
        }
        true
    }

    /// Takes everything back that a peer has.
    pub fn take_all_back(&mut self, peer: u32) {
        for page in &mut self.pages {
            page.lent &= page.peer != Some(peer);
        }
    }

    /// Bytes that are lent now.
    pub fn lent_bytes(&self) -> u64 {
        self.pages.iter().filter(|page| page.lent).count() as u64 * PAGE_BYTES
    }

    fn run(&self, count: usize, fits: impl Fn(&Page) -> bool) -> Option<usize> {
        let mut length = 0;
        for (index, page) in self.pages.iter().enumerate() {
            length = if fits(page) { length + 1 } else { 0 };
            if length == count {
                return Some(index + 1 - count);
            }
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const START: u64 = 3 * PAGE_BYTES;
    const PAGES: u64 = 12;

    fn heap() -> Heap {
        Heap::new(START, PAGES * PAGE_BYTES)
    }

    #[test]
    fn a_full_heap_lends_nothing_and_takes_back_what_it_lent() {
        let mut heap = heap();
        let all = heap.lend(0, PAGES * PAGE_BYTES).unwrap();
        assert_eq!(all, In(START));
        assert_eq!(heap.lend(0, 1), None);
        assert!(!heap.take_back(1, all));
        assert!(!heap.take_back(0, all.add(PAGE_BYTES)));
        assert!(!heap.take_back(0, all.add(8)));
        assert!(!heap.take_back(0, In(0)));
        assert!(heap.take_back(0, all));
        assert!(!heap.take_back(0, all));
        assert_eq!(heap.lent_bytes(), 0);
    }

    #[test]
    fn an_absurd_length_is_no_room() {
        assert_eq!(heap().lend(0, u64::MAX), None);
    }

    #[test]
    fn pages_of_a_dead_peer_are_its_successors_alone() {
        let mut heap = heap();
        heap.lend(0, PAGES * PAGE_BYTES).unwrap();
        heap.take_all_back(0);
        assert_eq!(heap.lend(1, 1), None);
        assert!(heap.lend(0, PAGES * PAGE_BYTES).is_some());
    }

    proptest! {
        /// Against an oracle: which peer first had each page, and which pieces are out.
        #[test]
        fn no_page_is_lent_twice_or_to_two_peers(
            steps in proptest::collection::vec((0..3u32, 0..4 * PAGE_BYTES, any::<bool>()), 1..60)
        ) {
            let mut heap = heap();
            let mut owner = std::collections::BTreeMap::new();
            let mut out: Vec<(u32, In, u64)> = Vec::new();
            for (peer, bytes, give) in steps {
                if give && !out.is_empty() {
                    let (peer, piece, _) = out.swap_remove(bytes as usize % out.len());
                    prop_assert!(heap.take_back(peer, piece));
                } else if let Some(piece) = heap.lend(peer, bytes) {
                    let end = piece.0 + bytes.max(1).next_multiple_of(PAGE_BYTES);
                    prop_assert!(piece.0 >= START && end <= START + PAGES * PAGE_BYTES);
                    for (_, other, other_end) in &out {
                        prop_assert!(end <= other.0 || *other_end <= piece.0);
                    }
                    for page in (piece.0..end).step_by(PAGE_BYTES as usize) {
                        prop_assert_eq!(*owner.entry(page).or_insert(peer), peer);
                    }
                    out.push((peer, piece, end));
                }
                let lent: u64 = out.iter().map(|(_, piece, end)| end - piece.0).sum();
                prop_assert_eq!(heap.lent_bytes(), lent);
            }
        }
    }
}
