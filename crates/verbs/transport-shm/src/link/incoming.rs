//! The responder's side of a link.
#![allow(unsafe_code)]

use core::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::Mutex;

use sluice_shmem::mapping::{Access, Mapping};
use sluice_shmem::verbs::hazard::Hazards;
use sluice_shmem::verbs::record::{Header, Reader, Ring, Writer};
use sluice_sys::errno::Errno;
use sluice_sys::unix::Fd;

use super::exported::Exported;
use super::layout::{
    POSITION_OFFSET, REQUEST_AREA_BYTES, REQUEST_RING_BYTES, REQUESTS_OFFSET, RESPONSE_RING_BYTES,
    RESPONSES_OFFSET,
};
use super::peer::Peer;
use super::position::Position;
use crate::area::map_foreign;
use crate::os::{self, LocalFd};

#[derive(Debug)]
pub struct IncomingState {
    pub requests: Reader,
    pub responses: Writer,
    /// How often the first request's wait for a receive was made longer.
    pub extensions: u32,
}

/// The responder's side.
#[derive(Debug)]
pub struct Incoming {
    pub peer: Peer,
    pub socket: LocalFd,
    /// The peer rings here.
    pub bell: LocalFd,
    /// What the peer announces about our keys.
    pub hazards: Hazards,
    pub state: Mutex<IncomingState>,
    pub broken: AtomicBool,
    /// The peer has ended; what it sent completely is still to be carried out.
    pub ended: AtomicBool,
    /// Until when the first request waits for a receive; 0: it does not.
    held_until: AtomicU64,
    /// The queue pair that it is for.
    held_slot: AtomicU32,
    request_ring: Ring,
    request_head: AtomicU64,
    own_position: Position,
    peer_position: Position,
    pub exported: Exported,
    _own: Mapping,
    _theirs: Mapping,
}

impl Incoming {
    /// `own` is a fresh response area; its descriptor goes to the peer.
    pub fn new(
        own: Mapping,
        request_fd: &Fd,
        socket: LocalFd,
        bell: LocalFd,
        peer: Peer,
    ) -> Result<Self, Errno> {
        let theirs = map_foreign(request_fd.raw(), REQUEST_AREA_BYTES, Access::ReadOnly)?;
        let (base, request) = (own.base(), theirs.base());
        // SAFETY: the offsets are those of the layout in this module's parent, inside areas whose sizes were
        // checked or made so, and both mappings are kept in the same struct.
        let (request_ring, response_ring, hazards, own_position, peer_position) = unsafe {
            (
                Ring::from_raw(request.add(REQUESTS_OFFSET), REQUEST_RING_BYTES),
                Ring::from_raw(base.add(RESPONSES_OFFSET), RESPONSE_RING_BYTES),
                Hazards::from_raw(request),
                Position::at(base, 0),
                Position::at(request, POSITION_OFFSET),
            )
        };
        Ok(Self {
            peer,
            socket,
            bell,
            hazards,
            state: Mutex::new(IncomingState {
                requests: Reader::new(request_ring),
                responses: Writer::new(response_ring),
                extensions: 0,
            }),
            broken: AtomicBool::new(false),
            ended: AtomicBool::new(false),
            held_until: AtomicU64::new(0),
            held_slot: AtomicU32::new(0),
            request_ring,
            request_head: AtomicU64::new(0),
            own_position,
            peer_position,
            exported: Exported::default(),
            _own: own,
            _theirs: theirs,
        })
    }

    /// Whether there is something that can be carried out now.
    pub fn is_waiting(&self) -> bool {
        self.has_requests() && self.holds_until().is_none_or(|until| os::now_ns() >= until)
    }

    /// Whether there is a request, held or not.
    pub fn has_requests(&self) -> bool {
        !self.broken.load(Ordering::Relaxed)
            && Reader::is_waiting(
                &self.request_ring,
                self.request_head.load(Ordering::Relaxed),
            )
    }

    /// The first request waits for a receive of the queue pair at `slot`.
    pub fn hold(&self, slot: u32, until_ns: u64) {
        self.held_slot.store(slot, Ordering::Relaxed);
        self.held_until.store(until_ns, Ordering::SeqCst);
    }

    /// Until when the first request waits for a receive, if it does.
    pub fn holds_until(&self) -> Option<u64> {
        match self.held_until.load(Ordering::SeqCst) {
            0 => None,
            until => Some(until),
        }
    }

    /// The queue pair at `slot` has a receive, or takes none any more: whether a request has
    /// waited for that.
    pub fn release(&self, slot: u32) -> bool {
        self.holds_until().is_some()
            && self.held_slot.load(Ordering::Relaxed) == slot
            && self.held_until.swap(0, Ordering::SeqCst) != 0
    }

    /// The wait is over, whoever it was for.
    pub fn hold_no_longer(&self) {
        self.held_until.store(0, Ordering::SeqCst);
    }

    /// Publishes how far requests have been carried out; answers were written before.
    pub fn publish_head(&self, head: u64) {
        self.request_head.store(head, Ordering::Relaxed);
        self.own_position.get().store(head, Ordering::Release);
    }

    /// Writes an answer of `bytes`. False: the peer has not left the room that its requests
    /// are to leave, or wrote an impossible position, and the link is to be broken.
    pub fn respond(&self, state: &mut IncomingState, header: &Header, bytes: &[u8]) -> bool {
        if !state.responses.fits(bytes.len()) {
            let head = self.peer_position.get().load(Ordering::Acquire);
            if state.responses.accept_head(head).is_err() {
                return false;
            }
        }
        let part = (bytes.as_ptr(), bytes.len());
        // SAFETY: one part, a slice of that length.
        unsafe {
            state
                .responses
                .push(header, bytes.len(), core::iter::once(part))
        }
        .is_some()
    }

    /// The same from memory that others may change meanwhile.
    ///
    /// # Safety
    /// `len` bytes from `source` are readable.
    pub unsafe fn respond_raw(
        &self,
        state: &mut IncomingState,
        header: &Header,
        source: *const u8,
        len: usize,
    ) -> bool {
        if !state.responses.fits(len) {
            let head = self.peer_position.get().load(Ordering::Acquire);
            if state.responses.accept_head(head).is_err() {
                return false;
            }
        }
        // SAFETY: the caller's promise.
        unsafe {
            state
                .responses
                .push(header, len, core::iter::once((source, len)))
        }
        .is_some()
    }
}
