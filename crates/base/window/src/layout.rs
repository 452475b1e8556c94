//! Where everything lies in a window.
//!
//! ```text
//! one region (coherent, flush)          push: each host has the slot that it reads, and a
//! 0        header page                  mapping of the other one's
//! 4096     slot 0                       0   slot
//! +slot    slot 1 …
//!
//! slot i, read by host i
//! 0        page of peer 0, written by host 0: hello, beat, positions, mailbox
//! 16384    page of peer 1 …
//! hosts × 16384   heap: lent to peers, each piece written by its borrower
//! ```

use crate::ring::{InRing, OutRing};
use crate::view::{In, LINE_BYTES, Out};

/// Bytes in front of the slots of a region.
pub const HEADER_BYTES: u64 = 4096;
/// Hosts of one window at most.
pub const HOSTS_MAX: u32 = 32;
/// Bytes that each peer has in a slot.
pub const PEER_BYTES: u64 = 16 * 1024;
/// Bytes of a mailbox; a power of two.
pub const MAILBOX_BYTES: u64 = 8 * 1024;
/// What slots and pieces of the heap are multiples of.
pub const PAGE_BYTES: u64 = 4096;
/// A slot's heap at least.
pub const HEAP_BYTES_MIN: u64 = 64 * 1024;
/// A window at most: positions and offsets stay far from the end of 64 bits.
pub const REGION_BYTES_MAX: u64 = 1 << 46;

/// Offsets within the page of a peer.
mod peer {
    use super::{LINE_BYTES, MAILBOX_BYTES, PEER_BYTES};

    pub const HELLO: u64 = 0;
    pub const BEAT: u64 = LINE_BYTES;
    pub const TAIL: u64 = 2 * LINE_BYTES;
    pub const HEAD: u64 = 3 * LINE_BYTES;
    pub const MAILBOX: u64 = PEER_BYTES - MAILBOX_BYTES;
}

/// How many hosts, and how much each has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Geometry {
    hosts: u32,
    slot_bytes: u64,
}

/// Why a window cannot be so large, so small, or for so many.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GeometryError {
    /// Not two to [`HOSTS_MAX`].
    Hosts(u32),
    /// Fewer bytes than this many hosts need: `needed`.
    TooSmall { bytes: u64, needed: u64 },
    /// More than [`REGION_BYTES_MAX`], or slots that do not fit into the region.
    TooLarge(u64),
    /// Slots that do not begin at pages.
    Unaligned(u64),
}

impl core::fmt::Display for GeometryError {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match self {
            GeometryError::Hosts(hosts) => {
                write!(f, "a window is for 2 to {HOSTS_MAX} hosts, not {hosts}")
            }
            GeometryError::TooSmall { bytes, needed } => {
                write!(f, "{bytes} bytes are too few: at least {needed} are needed")
            }
            GeometryError::TooLarge(bytes) => write!(f, "{bytes} bytes are too many"),
            GeometryError::Unaligned(bytes) => {
                write!(f, "slots of {bytes} bytes are no multiple of {PAGE_BYTES}")
            }
        }
    }
}

impl core::error::Error for GeometryError {}

impl Geometry {
    /// Slots of `slot_bytes` each.
    pub fn new(hosts: u32, slot_bytes: u64) -> Result<Geometry, GeometryError> {
        if !(2..=HOSTS_MAX).contains(&hosts) {
            return Err(GeometryError::Hosts(hosts));
        }
        if slot_bytes > REGION_BYTES_MAX / u64::from(hosts) - HEADER_BYTES {
            return Err(GeometryError::TooLarge(slot_bytes));
        }
        let needed = u64::from(hosts) * PEER_BYTES + HEAP_BYTES_MIN;
        if slot_bytes < needed {
            return Err(GeometryError::TooSmall {
                bytes: slot_bytes,
                needed,
            });
        }
        if !slot_bytes.is_multiple_of(PAGE_BYTES) {
            return Err(GeometryError::Unaligned(slot_bytes));
        }
        Ok(Geometry { hosts, slot_bytes })
    }

    /// As large slots as a region of `bytes` has room for.
    pub fn of_region(hosts: u32, bytes: u64) -> Result<Geometry, GeometryError> {
        if !(2..=HOSTS_MAX).contains(&hosts) {
            return Err(GeometryError::Hosts(hosts));
        }
        let slot = bytes.saturating_sub(HEADER_BYTES) / u64::from(hosts);
        match Geometry::new(hosts, slot - slot % PAGE_BYTES) {
            Err(GeometryError::TooSmall { needed, .. }) => Err(GeometryError::TooSmall {
                bytes,
                needed: HEADER_BYTES + needed.next_multiple_of(PAGE_BYTES) * u64::from(hosts),
            }),
            other => other,
        }
    }

    pub fn hosts(&self) -> u32 {
        self.hosts
    }

    pub fn slot_bytes(&self) -> u64 {
        self.slot_bytes
    }

    /// Bytes of a whole region.
    pub fn region_bytes(&self) -> u64 {
        HEADER_BYTES + u64::from(self.hosts) * self.slot_bytes
    }

    /// Where a slot begins in the region.
    pub fn slot_at(&self, slot: u32) -> u64 {
        HEADER_BYTES + u64::from(slot) * self.slot_bytes
    }

    /// Where the heap of a slot begins, and how long it is.
    pub fn heap(&self) -> (u64, u64) {
        let start = u64::from(self.hosts) * PEER_BYTES;
        (start, self.slot_bytes - start)
    }
}

/// The places that two hosts have with each other, as one of them sees them.
#[derive(Clone, Copy, Debug)]
pub struct Pair {
    me: u32,
    peer: u32,
}

impl Pair {
    pub const fn new(me: u32, peer: u32) -> Pair {
        Pair { me, peer }
    }

    pub const fn me(&self) -> u32 {
        self.me
    }

    pub const fn peer(&self) -> u32 {
        self.peer
    }

    const fn read(&self, offset: u64) -> In {
        In(self.peer as u64 * PEER_BYTES + offset)
    }

    const fn written(&self, offset: u64) -> Out {
        Out {
            slot: self.peer,
            at: self.me as u64 * PEER_BYTES + offset,
        }
    }

    /// Word `word` of what the peer says of itself.
    pub const fn hello_in(&self, word: u64) -> In {
        self.read(peer::HELLO + 8 * word)
    }

    /// Word `word` of what this host says of itself to the peer.
    pub const fn hello_out(&self, word: u64) -> Out {
        self.written(peer::HELLO + 8 * word)
    }

    pub const fn beat_in(&self) -> In {
        self.read(peer::BEAT)
    }

    pub const fn beat_out(&self) -> Out {
        self.written(peer::BEAT)
    }

    /// The mailbox from the peer.
    pub const fn mailbox_in(&self) -> InRing {
        InRing {
            data: self.read(peer::MAILBOX),
            tail: self.read(peer::TAIL),
            head: self.written(peer::HEAD),
            capacity: MAILBOX_BYTES,
        }
    }

    /// The mailbox to the peer.
    pub const fn mailbox_out(&self) -> OutRing {
        OutRing {
            data: self.written(peer::MAILBOX),
            tail: self.written(peer::TAIL),
            head: self.read(peer::HEAD),
            capacity: MAILBOX_BYTES,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slots_fill_the_region_and_do_not_overlap() {
        let geometry = Geometry::of_region(3, 1 << 20).unwrap();
        assert!(geometry.region_bytes() <= 1 << 20);
        assert!(geometry.region_bytes() > (1 << 20) - 3 * PAGE_BYTES);
        for slot in 0..2 {
            assert_eq!(
                geometry.slot_at(slot) + geometry.slot_bytes(),
                geometry.slot_at(slot + 1)
            );
        }
        let (start, bytes) = geometry.heap();
        assert_eq!(start + bytes, geometry.slot_bytes());
        assert!(bytes >= HEAP_BYTES_MIN);
    }

    #[test]
    fn what_cannot_be_is_refused_and_the_needed_size_works() {
        assert_eq!(
            Geometry::of_region(1, 1 << 20),
            Err(GeometryError::Hosts(1))
        );
        assert_eq!(
            Geometry::of_region(HOSTS_MAX + 1, u64::MAX),
            Err(GeometryError::Hosts(HOSTS_MAX + 1))
        );
        for hosts in 2..=HOSTS_MAX {
            let Err(GeometryError::TooSmall { needed, .. }) = Geometry::of_region(hosts, 0) else {
                panic!("an empty region");
            };
            assert!(Geometry::of_region(hosts, needed).is_ok());
            assert!(Geometry::of_region(hosts, needed - 1).is_err());
        }
        assert!(matches!(
            Geometry::of_region(2, u64::MAX),
            Err(GeometryError::TooLarge(_))
        ));
        assert!(matches!(
            Geometry::new(2, (1 << 20) + 8),
            Err(GeometryError::Unaligned(_))
        ));
    }

    #[test]
    fn the_places_of_two_hosts_mirror_each_other_and_no_line_has_two_writers() {
        let mut writers = std::collections::BTreeMap::new();
        for (me, peer) in [(0, 1), (1, 0), (0, 2), (2, 0), (1, 2), (2, 1)] {
            let (mine, theirs) = (Pair::new(me, peer), Pair::new(peer, me));
            assert_eq!(mine.hello_out(1).at, theirs.hello_in(1).0);
            assert_eq!(mine.beat_out().at, theirs.beat_in().0);
            let (out, inward) = (mine.mailbox_out(), theirs.mailbox_in());
            assert_eq!(out.data.at, inward.data.0);
            assert_eq!(out.tail.at, inward.tail.0);
            assert_eq!(out.head.0, inward.head.at);
            for place in [
                mine.hello_out(0),
                mine.beat_out(),
                out.tail,
                mine.mailbox_in().head,
                out.data,
                out.data.add(MAILBOX_BYTES - 1),
            ] {
                assert_eq!(place.slot, peer);
                let writer = writers
                    .entry((place.slot, place.at / LINE_BYTES))
                    .or_insert(me);
                assert_eq!(*writer, me);
            }
        }
    }

    #[test]
    fn the_document_has_the_layout() {
        let document = include_str!("../../../../docs/windows.md");
        let header = crate::header::VERSION;
        for text in [
            format!("## Layout, version {header}"),
            format!(
                "`SLUICEWN`, version {header}, kind (1 coherent, 2 flush), hosts (2 to {HOSTS_MAX})"
            ),
            format!("| {LINE_BYTES} × (1 + *i*) | the claim"),
            format!("| {HEADER_BYTES} + *i* × slot |"),
            format!("| *j* × {PEER_BYTES} | the page that host *j* writes"),
            format!("in the upper 16 bits version {}", crate::link::VERSION),
            format!(
                "at {} the beat, at {} the tail of the mailbox from *j*, at {} how far *j* has read the mailbox to *j*, at {} the mailbox's {MAILBOX_BYTES} bytes",
                peer::BEAT,
                peer::TAIL,
                peer::HEAD,
                peer::MAILBOX
            ),
            format!(
                "| hosts × {PEER_BYTES} | the heap, which host *i* lends to its peers in pages of {PAGE_BYTES} bytes"
            ),
            format!(
                "at most {}) and the kind",
                crate::mailbox::MESSAGE_BYTES_MAX
            ),
        ] {
            assert!(document.contains(&text), "the document lacks: {text}");
        }
        assert_eq!(crate::header::claim_at(0), LINE_BYTES);
        assert_eq!(crate::claim::SILENCE_NS, 3_000_000_000);
        assert_eq!(crate::claim::SETTLE_NS, 50_000_000);
        assert_eq!(crate::claim::BEAT_NS * 4, 1_000_000_000);
    }
}
