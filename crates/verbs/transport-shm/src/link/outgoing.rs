//! The requester's side of a link.
#![allow(unsafe_code)]

use core::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::collections::VecDeque;
use std::sync::Mutex;

use sluice_shmem::mapping::{Access, Mapping};
use sluice_shmem::verbs::hazard::{Hazards, WORDS};
use sluice_shmem::verbs::record::{Reader, Ring, Writer};
use sluice_sys::errno::Errno;
use sluice_sys::unix::Fd;

use super::exported::Exported;
use super::layout::{
    POSITION_OFFSET, REQUEST_RING_BYTES, REQUESTS_OFFSET, RESPONSE_AREA_BYTES, RESPONSE_RING_BYTES,
    RESPONSES_OFFSET,
};
use super::peer::Peer;
use super::position::Position;
use crate::area::{OwnArea, map_foreign};

/// A request in the ring that waits for its acknowledgement.
#[derive(Clone, Copy, Debug)]
pub struct Sent {
    pub end: u64,
    /// The queue pair's place in our own directory.
    pub slot: u32,
    pub sequence: u32,
    /// How often the queue pair had rewound; an acknowledgement from before a rewind means nothing.
    pub rewinds: u16,
}

#[derive(Debug)]
pub struct RequestWriter {
    pub ring: Writer,
    pub sent: VecDeque<Sent>,
    /// Queue pairs that found no room.
    pub starved: VecDeque<u32>,
}

/// The requester's side.
#[derive(Debug)]
pub struct Outgoing {
    pub peer: Peer,
    pub hazards: Hazards,
    hazards_used: AtomicU64,
    hazard_uses: AtomicU32,
    pub writer: Mutex<RequestWriter>,
    /// Requests in the ring without acknowledgement, changed by who has `writer`.
    in_flight: AtomicUsize,
    /// Held by whoever reads answers; never while posting.
    pub responses: Mutex<Reader>,
    response_ring: Ring,
    response_head: AtomicU64,
    /// The position up to which requests have been acknowledged.
    pub accepted: AtomicU64,
    own_position: Position,
    peer_position: Position,
    pub exported: Exported,
    _own: OwnArea,
    _theirs: Mapping,
}

impl Outgoing {
    /// `own` is the request area that was passed with the greeting.
    pub fn new(own: OwnArea, response_fd: &Fd, peer: Peer) -> Result<Self, Errno> {
        let theirs = map_foreign(response_fd.raw(), RESPONSE_AREA_BYTES, Access::ReadOnly)?;
        let (base, response) = (own.mapping.base(), theirs.base());
        // SAFETY: the offsets are those of the layout above, inside areas whose sizes were
        // checked, and both mappings are kept in the same struct.
        let (request_ring, response_ring, hazards, own_position, peer_position) = unsafe {
            (
                Ring::from_raw(base.add(REQUESTS_OFFSET), REQUEST_RING_BYTES),
                Ring::from_raw(response.add(RESPONSES_OFFSET), RESPONSE_RING_BYTES),
                Hazards::from_raw(base),
                Position::at(base, POSITION_OFFSET),
                Position::at(response, 0),
            )
        };
        Ok(Self {
            peer,
            hazards,
            hazards_used: AtomicU64::new(0),
            hazard_uses: AtomicU32::new(0),
            writer: Mutex::new(RequestWriter {
                ring: Writer::new(request_ring),
                sent: VecDeque::with_capacity(REQUEST_RING_BYTES / 64),
                starved: VecDeque::with_capacity(64),
            }),
            in_flight: AtomicUsize::new(0),
            responses: Mutex::new(Reader::new(response_ring)),
            response_ring,
            response_head: AtomicU64::new(0),
            accepted: AtomicU64::new(0),
            own_position,
            peer_position,
            exported: Exported::default(),
            _own: own,
            _theirs: theirs,
        })
    }

    /// Whether there can be something for [`crate::requester`] to do.
    pub fn is_waiting(&self) -> bool {
        Reader::is_waiting(
            &self.response_ring,
            self.response_head.load(Ordering::Relaxed),
        ) || (self.in_flight.load(Ordering::Relaxed) != 0
            && self.peer_position.get().load(Ordering::Relaxed)
                != self.accepted.load(Ordering::Relaxed))
    }

    /// So many more, or fewer, are in the ring without acknowledgement. By who has `writer`: a count needs no
    /// locked instruction.
    #[inline]
    pub fn count_in_flight(&self, change: impl FnOnce(usize) -> usize) {
        let count = self.in_flight.load(Ordering::Relaxed);
        self.in_flight.store(change(count), Ordering::Relaxed);
    }

    /// How far the peer has come. Read the answers afterwards, then believe it.
    pub fn peer_position(&self) -> u64 {
        self.peer_position.get().load(Ordering::Acquire)
    }

    /// Publishes how far the answers have been read.
    pub fn publish_response_head(&self, head: u64) {
        self.response_head.store(head, Ordering::Relaxed);
        self.own_position.get().store(head, Ordering::Release);
    }

    /// Runs `use_slot` while `slot` of the peer's keys is announced as in use.
    pub fn with_hazard<R>(&self, slot: u32, preferred: u32, use_slot: impl FnOnce() -> R) -> R {
        let mut index = preferred as usize % WORDS;
        // Others hold a word only while they copy; there are more words than processors mostly.
        while self.hazards_used.fetch_or(1 << index, Ordering::Acquire) & (1 << index) != 0 {
            index = (index + 1) % WORDS;
            core::hint::spin_loop();
        }
        let use_number = self.hazard_uses.fetch_add(1, Ordering::Relaxed);
        self.hazards.announce(index, slot, use_number);
        let result = use_slot();
        self.hazards.withdraw(index);
        self.hazards_used
            .fetch_and(!(1 << index), Ordering::Release);
        result
    }
}
