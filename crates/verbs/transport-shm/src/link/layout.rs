//! The two areas of a link, and what they hold where.

use sluice_shmem::verbs::hazard::HAZARD_BYTES;
use sluice_shmem::verbs::record::record_bytes;
use sluice_sys::errno::Errno;

use crate::area::OwnArea;

pub const REQUEST_RING_BYTES: usize = 256 * 1024;
/// Answers are never longer than their requests, and a request is outstanding until its answer
/// was read; the ring is twice as large because records pad at its end.
pub const RESPONSE_RING_BYTES: usize = 2 * REQUEST_RING_BYTES;
pub const POSITION_OFFSET: usize = HAZARD_BYTES;
pub const REQUESTS_OFFSET: usize = 8192;
pub const REQUEST_AREA_BYTES: usize = REQUESTS_OFFSET + REQUEST_RING_BYTES;
pub const RESPONSES_OFFSET: usize = 4096;
pub const RESPONSE_AREA_BYTES: usize = RESPONSES_OFFSET + RESPONSE_RING_BYTES;
/// Payload of one record at most; longer messages are cut or described.
pub const CHUNK_BYTES: usize = 4096;

const _: () = assert!(POSITION_OFFSET + 64 <= REQUESTS_OFFSET);

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
