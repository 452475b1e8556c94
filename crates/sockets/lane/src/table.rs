//! The end table: one record for each tracked connection of a process and its forks.
#![allow(unsafe_code)]

use crate::end::{END_BYTES, End, State};
use crate::lock;
use crate::totals::{TOTALS, Totals};
use core::ptr::NonNull;
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// First word of an end table.
pub const MAGIC: u64 = u64::from_ne_bytes(*b"SLUICEND");
/// Changes whenever the header's or a record's layout does.
pub const VERSION: u32 = 3;
/// Bytes before the first record.
pub const HEADER_BYTES: usize = 4096;
/// Records of a table.
pub const ENDS: u32 = 65_536;

/// Records of a full table that one search looks at.
const LOOKS_MAX: u32 = 1024;

/// Each time that so many more records were used, those of dead processes are looked for first.
const REAP_STEP: u32 = 1024;

/// The first page.
#[repr(C)]
struct Header {
    magic: AtomicU64,
    version: AtomicU32,
    ends: AtomicU32,
    pid: AtomicU32,
    /// Where the search for a free record goes on.
    next: AtomicU32,
    /// No record at or behind this one was ever used.
    used: AtomicU32,
    closed: Closed,
}

/// What connections have moved whose records are free again, as [`Totals::to_words`] orders it: on
/// lines of its own, as the header's first changes with every new connection.
#[repr(C, align(64))]
struct Closed([AtomicU64; TOTALS]);

/// Where the header has [`Totals`] of closed connections, as native words.
pub const CLOSED_AT: usize = core::mem::offset_of!(Header, closed);

const _: () = assert!(size_of::<Header>() <= HEADER_BYTES);

/// Bytes of a whole table; only touched pages take memory.
pub const fn table_bytes() -> usize {
    HEADER_BYTES + ENDS as usize * END_BYTES
}

/// An end table of this process.
#[derive(Clone, Copy, Debug)]
pub struct EndTable {
    base: NonNull<u8>,
}

// SAFETY: the table consists of atomics and of values behind locks.
unsafe impl Send for EndTable {}
// SAFETY: a shared `EndTable` gives out only atomics and values behind locks.
unsafe impl Sync for EndTable {}

impl EndTable {
    /// The table at `base`.
    ///
    /// # Safety
    /// [`table_bytes`] bytes from `base`, page aligned, zero at first, stay mapped for writing
    /// for the rest of the process's life.
    pub unsafe fn from_raw(base: NonNull<u8>) -> Self {
        Self { base }
    }

    /// Writes the header of a new table.
    pub fn describe(&self, pid: u32) {
        let header = self.header();
        header.version.store(VERSION, Ordering::Relaxed);
        header.ends.store(ENDS, Ordering::Relaxed);
        header.pid.store(pid, Ordering::Relaxed);
        header.magic.store(MAGIC, Ordering::Release);
    }

    fn header(&self) -> &Header {
        // SAFETY: the first page is a header, made of atomics.
        unsafe { self.base.cast::<Header>().as_ref() }
    }

    /// The record with this number; numbers that no record has give the first.
    pub fn end(&self, index: u32) -> &End {
        let index = if index < ENDS { index } else { 0 };
        // SAFETY: the index is below the number of records, and zeroed bytes are a valid free
        // record.
        unsafe {
            self.base
                .add(HEADER_BYTES + index as usize * END_BYTES)
                .cast::<End>()
                .as_ref()
        }
    }

    /// The last descriptor of a connection is closed: frees its record, see [`End::finish`].
    pub fn retire(&self, index: u32, generation: u32) {
        if let Some(totals) = self.end(index).finish(generation) {
            self.count_closed(&totals);
        }
    }

    /// The last process that had the connection was killed: as [`EndTable::retire`], by [`End::abandon`].
    pub fn abandon(&self, index: u32, generation: u32) {
        if let Some(totals) = self.end(index).abandon(generation) {
            self.count_closed(&totals);
        }
    }

    /// Behind the record's end, so that a process that is killed between counts too little and
    /// never twice.
    fn count_closed(&self, totals: &Totals) {
        let sums = &self.header().closed.0;
        for (sum, more) in sums.iter().zip(totals.to_words()) {
            if more != 0 {
                sum.fetch_add(more, Ordering::Relaxed);
            }
        }
    }

    /// What connections have moved whose records are free again.
    pub fn closed(&self) -> Totals {
        let sums = &self.header().closed.0;
        Totals::from_words(core::array::from_fn(|at| sums[at].load(Ordering::Relaxed)))
    }

    /// Whether `is` holds for any end that has a lane.
    pub fn any_attached(&self, is: impl Fn(&End) -> bool) -> bool {
        let used = self.header().used.load(Ordering::Relaxed).min(ENDS);
        (0..used)
            .map(|index| self.end(index))
            .any(|end| end.state() == State::Attached && is(end))
    }

    /// Takes a free record: its number and the generation of its new life. `None` when none was
    /// found: all are in use, or nearly all.
    ///
    /// `reaps`: records whose owner ([`End::set_owner`]) was killed are free, too. Only for
    /// processes that know the owners by the numbers that they have noted.
    pub fn take(&self, reaps: bool) -> Option<(u32, u32)> {
        let header = self.header();
        let used = header.used.load(Ordering::Relaxed).min(ENDS);
        // Records that were freed come first, to keep the table small: a few looks, then new
        // ones, then more looks. A full table costs each new connection a bounded search, which
        // goes on where the last one stopped.
        let start = header.next.load(Ordering::Relaxed);
        for step in 0..used.min(64) {
            let index = start.wrapping_add(step) % used;
            if let Some(generation) = self.end(index).claim() {
                header.next.store(index + 1, Ordering::Relaxed);
                return Some((index, generation));
            }
        }
        header.next.store(start.wrapping_add(64), Ordering::Relaxed);
        let mut is_dead = remembering(lock::is_process_dead);
        let is_time = used != 0 && used < ENDS && used.is_multiple_of(REAP_STEP);
        if reaps
            && is_time
            && let Some(taken) = self.reap(used, &mut is_dead)
        {
            return Some(taken);
        }
        while header.used.load(Ordering::Relaxed) < ENDS {
            let index = header.used.fetch_add(1, Ordering::Relaxed);
            if index >= ENDS {
                break;
            }
            if let Some(generation) = self.end(index).claim() {
                return Some((index, generation));
            }
        }
        let start = header.next.fetch_add(LOOKS_MAX, Ordering::Relaxed);
        (0..LOOKS_MAX).find_map(|step| {
            let index = start.wrapping_add(step) % ENDS;
            let end = self.end(index);
            if reaps && let Some(totals) = end.reap(&mut is_dead) {
                self.count_closed(&totals);
            }
            Some((index, end.claim()?))
        })
    }

    /// Frees all records of dead processes, and takes the first. The search for free ones goes on
    /// behind it.
    fn reap(&self, used: u32, is_dead: &mut impl FnMut(u32) -> bool) -> Option<(u32, u32)> {
        let mut first = None;
        for index in 0..used {
            if let Some(totals) = self.end(index).reap(&mut *is_dead) {
                self.count_closed(&totals);
                first = first.or(Some(index));
            }
        }
        let index = first?;
        self.header().next.store(index + 1, Ordering::Relaxed);
        Some((index, self.end(index).claim()?))
    }
}

/// The same answer for the same process without a question: many records in a row have one owner.
fn remembering(mut is_dead: impl FnMut(u32) -> bool) -> impl FnMut(u32) -> bool {
    let mut last = None;
    move |pid| match last {
        Some((known, answer)) if known == pid => answer,
        _ => {
            let answer = is_dead(pid);
            last = Some((pid, answer));
            answer
        }
    }
}
