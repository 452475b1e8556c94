//! A link: the memory between a requester's process and a responder's.
//!
//! Each process opens one to each peer it sends requests to; the answers come back on the same
//! link. So what two processes do in both directions is two links, and neither waits for the
//! other. A link ends with its socket, which the kernel closes when either process ends.
//!
//! ```text
//! request area (requester writes)          response area (responder writes)
//! 0     hazard words                       0     position in the request ring
//! 4096  position in the response ring      4096  response ring
//! 8192  request ring
//! ```
//!
//! The position in the request ring acknowledges: whatever lies before it was carried out,
//! unless the response ring has said otherwise before the position moved.
#![allow(unsafe_code)]

use core::ptr::NonNull;
use core::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::collections::VecDeque;
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

use sluice_shmem::mapping::Mapping;
use sluice_shmem::verbs::directory::{Directory, Rung};
use sluice_shmem::verbs::hazard::{HAZARD_BYTES, Hazards, WORDS};
use sluice_shmem::verbs::record::{Header, Reader, Ring, Writer, record_bytes};
use sluice_sys::errno::Errno;
use sluice_sys::memfd;
use sluice_sys::unix::{self, Fd};

use crate::area::{OwnArea, map_foreign};
use crate::foreign::Foreign;
use crate::hello::{MESSAGE_BYTES, Message};
use crate::os::{self, LocalFd};

const REQUEST_RING_BYTES: usize = 256 * 1024;
/// Answers are never longer than their requests, and a request is outstanding until its answer
/// was read; the ring is twice as large because records pad at its end.
const RESPONSE_RING_BYTES: usize = 2 * REQUEST_RING_BYTES;
const POSITION_OFFSET: usize = HAZARD_BYTES;
const REQUESTS_OFFSET: usize = 8192;
pub const REQUEST_AREA_BYTES: usize = REQUESTS_OFFSET + REQUEST_RING_BYTES;
const RESPONSES_OFFSET: usize = 4096;
pub const RESPONSE_AREA_BYTES: usize = RESPONSES_OFFSET + RESPONSE_RING_BYTES;
/// Payload of one record at most; longer messages are cut or described.
pub const CHUNK_BYTES: usize = 4096;
/// Regions of a peer that a link can know.
const REGIONS: usize = 1024;
/// Largest region that is accepted from a peer, bytes.
const REGION_BYTES_MAX: u64 = 1 << 40;

const _: () = assert!(POSITION_OFFSET + 64 <= REQUESTS_OFFSET);

/// Locks; what a panicking thread left is as good as any, since nothing here unwinds half-way.
pub fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A position in an area, written by the area's owner.
#[derive(Clone, Copy, Debug)]
struct Position(NonNull<AtomicU64>);

// SAFETY: reached as an atomic only.
unsafe impl Send for Position {}
// SAFETY: as above.
unsafe impl Sync for Position {}

impl Position {
    /// # Safety
    /// 8 aligned bytes at `offset` stay mapped as long as the value is used.
    unsafe fn at(base: NonNull<u8>, offset: usize) -> Self {
        // SAFETY: the caller's promise.
        Self(unsafe { base.add(offset) }.cast())
    }

    fn get(&self) -> &AtomicU64 {
        // SAFETY: mapped and aligned by `at`; any value is a valid u64.
        unsafe { self.0.as_ref() }
    }
}

/// What a process has of its peer, whichever side.
#[derive(Debug)]
pub struct Peer {
    pub directory: Directory,
    _directory_mapping: Mapping,
    /// As the kernel says; 0 where it is not seen in this pid namespace.
    pub pid: i32,
    /// Its memory, where the kernel lets us reach it.
    pub memory: Option<Foreign>,
    /// The memory of its directory, which tells processes apart. What lies in our own directory
    /// is what we have published, whoever passes it; a peer that repeats our nonce is still a peer.
    pub file: File,
    /// Whether it said that it can read ours.
    pub can_read_us: bool,
    /// The peer's thread waits on it.
    bell: Fd,
    rung: Rung,
    regions: Box<[OnceLock<Mapping>]>,
    /// Held from taking a message out of the socket to the end of its effect, so that who finds
    /// the socket empty finds the effect.
    reading: Mutex<()>,
}

impl Peer {
    pub fn new(
        directory_fd: &Fd,
        bell: Fd,
        pid: i32,
        identity: &crate::hello::Identity,
    ) -> Result<Self, Errno> {
        use sluice_shmem::mapping::Access;
        use sluice_shmem::verbs::directory::DIRECTORY_BYTES;
        os::check_bell(bell.raw())?;
        let mapping = map_foreign(directory_fd.raw(), DIRECTORY_BYTES, Access::ReadOnly)?;
        // SAFETY: the mapping is kept beside it.
        let directory = unsafe { Directory::from_raw(mapping.base()) };
        Ok(Self {
            directory,
            _directory_mapping: mapping,
            pid,
            memory: Foreign::probe(pid, identity.probe, identity.nonce),
            file: file_of(directory_fd)?,
            can_read_us: identity.can_read,
            bell,
            rung: Rung::default(),
            regions: (0..REGIONS).map(|_| OnceLock::new()).collect(),
            reading: Mutex::new(()),
        })
    }

    /// Wakes the peer's thread if it sleeps. Call it after whatever the peer is to see.
    pub fn ring_if_asleep(&self) {
        if self.directory.must_ring(&self.rung) {
            os::ring_foreign(self.bell.raw());
        }
    }

    /// Whether its queue pair `peer_qpn` is in place and connected to ours, or was going to be.
    pub fn has_connected(&self, own_qpn: u32, peer_qpn: u32) -> bool {
        let slot = self.directory.qp_slot(peer_qpn);
        let entry = slot.and_then(|slot| self.directory.qp(slot));
        entry.is_some_and(|entry| {
            entry.qpn == peer_qpn && (entry.peer_qpn == own_qpn || entry.peer_qpn == 0)
        })
    }

    /// The region `id`, mapped for writing.
    pub fn region(&self, id: u32) -> Option<&Mapping> {
        self.regions.get(id as usize)?.get()
    }

    fn add_region(&self, id: u32, bytes: u64, fd: &Fd) -> Result<(), Errno> {
        use sluice_shmem::mapping::Access;
        let place = self.regions.get(id as usize).ok_or(Errno::PROTO)?;
        if bytes == 0 || bytes > REGION_BYTES_MAX || place.get().is_some() {
            return Err(Errno::PROTO);
        }
        let bytes = usize::try_from(bytes).map_err(|_| Errno::PROTO)?;
        let mapping = map_foreign(fd.raw(), bytes, Access::ReadWrite)?;
        let _ = place.set(mapping);
        Ok(())
    }

    /// Takes what waits in the link's socket: regions. False when the link is over.
    pub fn read_socket(&self, socket: i32) -> bool {
        let _reading = lock(&self.reading);
        let mut buffer = [0; MESSAGE_BYTES];
        // A bound on what one call does; the rest stays readable.
        for _ in 0..REGIONS {
            match unix::receive_with_fds(socket, &mut buffer) {
                Err(Errno::AGAIN) => return true,
                Err(_) => return false,
                Ok(received) if received.len == 0 => return false,
                Ok(mut received) => match Message::decode(&buffer[..received.len]) {
                    Some(Message::Region { id, bytes }) => match received.take_fd(0) {
                        Some(fd) if self.add_region(id, bytes, &fd).is_ok() => {}
                        _ => return false,
                    },
                    _ => return false,
                },
            }
        }
        true
    }
}

/// What tells one memory file from every other one: device and inode.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct File(u64, u64);

/// Which file a descriptor is.
pub fn file_of(fd: &Fd) -> Result<File, Errno> {
    let stat = memfd::stat(fd.raw())?;
    Ok(File(stat.device, stat.inode))
}

/// Which regions of ours the peer of a link has.
#[derive(Debug, Default)]
pub struct Exported(Mutex<Vec<u32>>);

impl Exported {
    /// Passes a region of ours if that was not done before. False: it could not be passed now.
    pub fn pass(&self, socket: i32, id: u32) -> bool {
        let mut exported = lock(&self.0);
        if exported.contains(&id) {
            return true;
        }
        let Some((fd, bytes)) = crate::arena::region(id) else {
            return false;
        };
        let message = Message::Region {
            id,
            bytes: bytes as u64,
        };
        let done = unix::send_with_fds(socket, &message.encode(), &[fd]).is_ok();
        if done {
            exported.push(id);
        }
        done
    }
}

/// A request in the ring that waits for its acknowledgement.
#[derive(Clone, Copy, Debug)]
pub struct Sent {
    pub end: u64,
    /// The queue pair's place in our own directory.
    pub slot: u32,
    pub sequence: u32,
    /// The queue pair's turn; an acknowledgement from an earlier one means nothing.
    pub turn: u16,
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
    hazard_turn: AtomicU32,
    pub writer: Mutex<RequestWriter>,
    /// Requests in the ring without acknowledgement.
    pub in_flight: AtomicUsize,
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
        use sluice_shmem::mapping::Access;
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
            hazard_turn: AtomicU32::new(0),
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
        let turn = self.hazard_turn.fetch_add(1, Ordering::Relaxed);
        self.hazards.announce(index, slot, turn);
        let result = use_slot();
        self.hazards.withdraw(index);
        self.hazards_used
            .fetch_and(!(1 << index), Ordering::Release);
        result
    }
}

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
        use sluice_shmem::mapping::Access;
        let theirs = map_foreign(request_fd.raw(), REQUEST_AREA_BYTES, Access::ReadOnly)?;
        let (base, request) = (own.base(), theirs.base());
        // SAFETY: as in `Outgoing::new`.
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

/// Most records that fit the request ring. As many looks at a link that is over, of which each takes
/// at least one record, empty a ring that a dead process left, while one that only hung up could go
/// on filling it.
pub const fn requests_max() -> usize {
    REQUEST_RING_BYTES / record_bytes(0)
}

/// Fresh memory for one side.
pub fn request_area() -> Result<OwnArea, Errno> {
    OwnArea::new(c"sluice-verbs-requests", REQUEST_AREA_BYTES)
}

/// As [`request_area`].
pub fn response_area() -> Result<OwnArea, Errno> {
    OwnArea::new(c"sluice-verbs-responses", RESPONSE_AREA_BYTES)
}
