//! Reads end tables: for `sluice status`, and to find ends that are over.
//!
//! A program writes its table while we read, and may write anything. So it is copied with
//! `pread` (no mapping, no `SIGBUS`, nothing read twice) and every number is bounded.

use std::os::fd::RawFd;

use sluice_lane::end::{END_BYTES, EndSnapshot};
use sluice_lane::table::{CLOSED_AT, ENDS, HEADER_BYTES, MAGIC, VERSION};
use sluice_lane::totals::{TOTALS, Totals};
use sluice_sys::memfd;

/// Records of tables that one look at several reads, for a status document or figures: 20 MB.
pub const RECORDS_MAX: usize = 65_536;

/// Records copied at a time.
const RECORDS_PER_READ: usize = 256;

/// Where the header has what, after the magic number and the version.
const VERSION_AT: usize = 8;
const USED_AT: usize = 24;

/// What one look at a table has found.
#[derive(Debug, Default)]
pub struct Table {
    /// The used ends with their numbers.
    pub ends: Vec<(u32, EndSnapshot)>,
    /// What the ends that are over have moved.
    pub closed: Totals,
    /// There are more records than were looked at.
    pub is_partial: bool,
    /// Records that were looked at, used and free.
    pub records: usize,
}

/// Reads a table, `records_max` records of it at most: free ones cost as much time as used ones,
/// and the program says how many there are. Empty for a table that is none of this version's.
pub fn read(table: RawFd, records_max: usize) -> Table {
    let Some(used) = used(table) else {
        return Table::default();
    };
    let used = used as usize;
    let records = used.min(records_max);
    let mut found = Table {
        closed: closed(table),
        is_partial: records < used,
        records,
        ..Table::default()
    };
    let mut block = vec![0; RECORDS_PER_READ.min(records) * END_BYTES];
    for first in (0..records).step_by(RECORDS_PER_READ) {
        let wanted = (records - first).min(RECORDS_PER_READ) * END_BYTES;
        let at = (HEADER_BYTES + first * END_BYTES) as u64;
        let Ok(got) = memfd::read_at(table, &mut block[..wanted], at) else {
            break;
        };
        for (place, record) in block[..got].as_chunks::<END_BYTES>().0.iter().enumerate() {
            if let Some(end) = EndSnapshot::from_bytes(record) {
                found.ends.push(((first + place) as u32, end));
            }
        }
    }
    found
}

fn closed(table: RawFd) -> Totals {
    let mut bytes = [0; TOTALS * 8];
    if memfd::read_at(table, &mut bytes, CLOSED_AT as u64) != Ok(bytes.len()) {
        return Totals::default();
    }
    let mut words = [0; TOTALS];
    for (word, bytes) in words.iter_mut().zip(bytes.as_chunks::<8>().0) {
        *word = u64::from_ne_bytes(*bytes);
    }
    Totals::from_words(words)
}

/// Whether the sender of this end, in this life, uses the ring now. `None` if it is over.
pub fn sends_by_ring(table: RawFd, end: u32, generation: u32) -> Option<bool> {
    let mut record = [0; END_BYTES];
    let at = HEADER_BYTES as u64 + u64::from(end) * END_BYTES as u64;
    let got = memfd::read_at(table, &mut record, at).ok()?;
    let present = EndSnapshot::from_bytes(&record).filter(|_| got == END_BYTES)?;
    (present.generation == generation).then_some(present.sends_by_ring)
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
