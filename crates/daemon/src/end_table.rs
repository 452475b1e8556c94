//! Reads end tables: for `sluice status`, and to find ends that are over.
//!
//! A program writes its table while we read, and may write anything. So it is copied with
//! `pread` (no mapping, no `SIGBUS`, nothing read twice) and every number is bounded.

use std::os::fd::RawFd;

use sluice_lane::end::{END_BYTES, EndSnapshot};
use sluice_lane::table::{ENDS, HEADER_BYTES, MAGIC, VERSION};
use sluice_sys::memfd;

/// Records copied at a time.
const RECORDS_PER_READ: usize = 256;

/// Where the header has what, after the magic number and the version.
const VERSION_AT: usize = 8;
const USED_AT: usize = 24;

/// The used ends of a table with their numbers, at most `ends_max`. Empty for a table that is
/// none of this version's.
pub fn read(table: RawFd, ends_max: usize) -> Vec<(u32, EndSnapshot)> {
    let mut found = Vec::new();
    let used = used(table).unwrap_or(0) as usize;
    let mut block = vec![0; RECORDS_PER_READ * END_BYTES];
    for first in (0..used).step_by(RECORDS_PER_READ) {
        let wanted = (used - first).min(RECORDS_PER_READ) * END_BYTES;
        let at = (HEADER_BYTES + first * END_BYTES) as u64;
        let Ok(got) = memfd::read_at(table, &mut block[..wanted], at) else {
            break;
        };
        for (place, record) in block[..got].as_chunks::<END_BYTES>().0.iter().enumerate() {
            if found.len() >= ends_max {
                return found;
            }
            if let Some(end) = EndSnapshot::from_bytes(record) {
                found.push(((first + place) as u32, end));
            }
        }
    }
    found
}

/// How many records of a table were ever used; `None` for one that is none of this version's.
fn used(table: RawFd) -> Option<u32> {
    let mut header = [0; 32];
    if !matches!(memfd::read_at(table, &mut header, 0), Ok(32)) {
        return None;
    }
    let word = |at: usize| {
        u32::from_ne_bytes([header[at], header[at + 1], header[at + 2], header[at + 3]])
    };
    let is_one = header[..8] == MAGIC.to_ne_bytes() && word(VERSION_AT) == VERSION;
    is_one.then(|| word(USED_AT).min(ENDS))
}

/// Those of these ends, numbers and generations, that are over: another one has the number, or none.
/// Empty for a table that is none of this version's.
pub fn ended(table: RawFd, ends: impl IntoIterator<Item = (u32, u32)>) -> Vec<(u32, u32)> {
    if used(table).is_none() {
        return Vec::new();
    }
    let mut record = [0; END_BYTES];
    let mut ended = Vec::new();
    for (end, generation) in ends {
        let at = HEADER_BYTES as u64 + u64::from(end) * END_BYTES as u64;
        let Ok(got) = memfd::read_at(table, &mut record, at) else {
            continue;
        };
        let present = EndSnapshot::from_bytes(&record).filter(|_| got == END_BYTES);
        if present.is_none_or(|it| it.generation != generation) {
            ended.push((end, generation));
        }
    }
    ended
}
