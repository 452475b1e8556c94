//! The memory itself: where windows come from, and what a processor does to them.
#![allow(unsafe_code)]

mod bridge;
mod lines;
mod source;

use core::sync::atomic::{AtomicU64, Ordering, fence};
use std::path::Path;

use sluice_sys::errno::Errno;
use sluice_sys::mapping::{Access, Mapping};

pub use bridge::Bridge;
pub use source::{Source, SourceError};

use crate::Kind;
use crate::claim::{SILENCE_NS, Table, Word};
use crate::header::{self, Header, HeaderError};
use crate::layout::{Geometry, GeometryError, HEADER_BYTES};
use crate::view::{In, LINE_BYTES, Out, View};

/// Why a window cannot be made or used.
#[derive(Debug)]
pub enum RegionError {
    Source(SourceError),
    Header(HeaderError),
    Geometry(GeometryError),
    /// There is a window already, and it was not said that it may go.
    Exists,
    /// This processor cannot write lines back.
    NoFlush,
    Map(Errno),
}

impl core::fmt::Display for RegionError {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match self {
            RegionError::Source(error) => error.fmt(f),
            RegionError::Header(error) => error.fmt(f),
            RegionError::Geometry(error) => error.fmt(f),
            RegionError::Exists => {
                f.write_str("there is a window already; --force makes a new one in its place")
            }
            RegionError::NoFlush => f.write_str(
                "a window of kind flush needs a processor with CLFLUSH, which this one has not",
            ),
            RegionError::Map(errno) => write!(f, "the memory cannot be mapped: {errno}"),
        }
    }
}

impl core::error::Error for RegionError {}

impl From<SourceError> for RegionError {
    fn from(error: SourceError) -> Self {
        RegionError::Source(error)
    }
}

impl From<HeaderError> for RegionError {
    fn from(error: HeaderError) -> Self {
        RegionError::Header(error)
    }
}

/// A window in one region, mapped as a whole.
#[derive(Debug)]
pub struct Region {
    mapping: Mapping,
    header: Header,
    silence_ns: u64,
}

impl Region {
    /// Makes a window in this memory. Everything in it is gone; whoever uses an older window
    /// there finds its link broken. With `force` unset only where there is none yet.
    pub fn create(
        path: &Path,
        bytes: Option<u64>,
        hosts: u32,
        kind: Kind,
        force: bool,
    ) -> Result<Region, RegionError> {
        // Before the file exists.
        if let Some(bytes) = bytes {
            Geometry::of_region(hosts, bytes).map_err(RegionError::Geometry)?;
        }
        let source = Source::create(path, bytes)?;
        let mapping = Mapping::shared(source.fd(), source.map_bytes()?, Access::ReadWrite)
            .map_err(RegionError::Map)?;
        Region::format(mapping, hosts, kind, force)
    }

    /// As [`Region::create`], in memory that is mapped already.
    pub fn format(
        mapping: Mapping,
        hosts: u32,
        kind: Kind,
        force: bool,
    ) -> Result<Region, RegionError> {
        let bytes = mapping.bytes() as u64;
        let geometry = Geometry::of_region(hosts, bytes).map_err(RegionError::Geometry)?;
        if !force && !matches!(read_header(&mapping), Err(HeaderError::NoWindow)) {
            return Err(RegionError::Exists);
        }
        let id = sluice_sys::process::random().map_err(RegionError::Map)?;
        let header = Header { kind, geometry, id };
        let region = Region::new(mapping, header);
        region.check_processor()?;
        region.clear();
        region.write_header();
        Ok(region)
    }

    /// The window that is there.
    pub fn open(path: &Path) -> Result<Region, RegionError> {
        let source = Source::open(path)?;
        let mapping = Mapping::shared(source.fd(), source.map_bytes()?, Access::ReadWrite)
            .map_err(RegionError::Map)?;
        Region::of(mapping)
    }

    /// The window in memory that is mapped already.
    pub fn of(mapping: Mapping) -> Result<Region, RegionError> {
        let header = read_header(&mapping)?;
        let region = Region::new(mapping, header);
        region.check_processor()?;
        Ok(region)
    }

    fn new(mapping: Mapping, header: Header) -> Region {
        Region {
            mapping,
            header,
            silence_ns: SILENCE_NS,
        }
    }

    /// After how long without another beat a host is dead to this one, from now on: [`SILENCE_NS`] at first.
    pub fn set_silence(&mut self, silence_ns: u64) {
        self.silence_ns = silence_ns;
    }

    pub fn header(&self) -> &Header {
        &self.header
    }

    /// The window as the holder of a slot sees it.
    pub fn view(&self, slot: u32) -> RegionView<'_> {
        assert!(slot < self.header.geometry.hosts());
        RegionView { region: self, slot }
    }

    fn check_processor(&self) -> Result<(), RegionError> {
        if self.header.kind == Kind::Flush && !lines::can_flush() {
            return Err(RegionError::NoFlush);
        }
        Ok(())
    }

    /// Zeroes claims and the pages of peers. Heaps need none: nobody reads there what nobody said.
    fn clear(&self) {
        let geometry = self.header.geometry;
        let (heap, _) = geometry.heap();
        let zero = |at: u64, bytes: u64| {
            // SAFETY: within the region, whose length the geometry fits.
            unsafe {
                core::ptr::write_bytes(
                    self.mapping.base().as_ptr().add(at as usize),
                    0,
                    bytes as usize,
                );
            }
            self.drop_lines(at, bytes);
        };
        self.word(0).store(0, Ordering::SeqCst);
        self.drop_lines(0, LINE_BYTES);
        zero(LINE_BYTES, HEADER_BYTES - LINE_BYTES);
        for slot in 0..geometry.hosts() {
            zero(geometry.slot_at(slot), heap);
        }
    }

    fn write_header(&self) {
        let bytes = self.header.emit();
        // The magic number last.
        for index in (0..bytes.len() / 8).rev() {
            let mut word = [0; 8];
            word.copy_from_slice(&bytes[8 * index..8 * index + 8]);
            if index == 0 {
                self.drop_lines(0, LINE_BYTES);
            }
            self.word(8 * index as u64)
                .store(u64::from_ne_bytes(word), Ordering::SeqCst);
        }
        self.drop_lines(0, LINE_BYTES);
    }

    /// Writes lines back and out of the cache, where that matters.
    fn drop_lines(&self, at: u64, bytes: u64) {
        if self.header.kind == Kind::Flush {
            // SAFETY: callers pass ranges within the mapping.
            unsafe { lines::flush(self.mapping.base().as_ptr().add(at as usize), bytes) };
        }
        fence(Ordering::SeqCst);
    }

    fn word(&self, at: u64) -> &AtomicU64 {
        assert!(at.is_multiple_of(8) && at + 8 <= self.mapping.bytes() as u64);
        // SAFETY: within the mapping, which is aligned to a page and lives as long as `self`;
        // it is reached as an atomic only.
        unsafe {
            self.mapping
                .base()
                .add(at as usize)
                .cast::<AtomicU64>()
                .as_ref()
        }
    }

    fn claim_word(&self, slot: u32, word: Word) -> (u64, &AtomicU64) {
        assert!(slot < self.header.geometry.hosts());
        let at = header::claim_at(slot);
        (at, self.word(at + word.offset()))
    }
}

fn read_header(mapping: &Mapping) -> Result<Header, HeaderError> {
    let mut bytes = [0; header::BYTES];
    if mapping.bytes() < header::BYTES {
        return Err(HeaderError::NoWindow);
    }
    // SAFETY: the mapping has a header's bytes, which are copied once and looked at afterwards.
    unsafe {
        core::ptr::copy_nonoverlapping(mapping.base().as_ptr(), bytes.as_mut_ptr(), header::BYTES);
    }
    Header::parse(&bytes, mapping.bytes() as u64)
}

/// The lines of all claims. Two claimants may write to one line: it is the one place in a window
/// where that is so, and a claim's protocol is about that.
impl Table for Region {
    fn hosts(&self) -> u32 {
        self.header.geometry.hosts()
    }

    fn silence_ns(&self) -> u64 {
        self.silence_ns
    }

    fn look(&self, slot: u32, word: Word) -> u64 {
        let (line, word) = self.claim_word(slot, word);
        self.drop_lines(line, LINE_BYTES);
        word.load(Ordering::SeqCst)
    }

    fn say(&self, slot: u32, word: Word, value: u64) {
        let (line, word) = self.claim_word(slot, word);
        // The other words of the line are written back with this one: they must not be old.
        self.drop_lines(line, LINE_BYTES);
        word.store(value, Ordering::SeqCst);
        self.drop_lines(line, LINE_BYTES);
    }

    fn exchange(&self, slot: u32, from: u64, to: u64) -> Option<bool> {
        if self.header.kind != Kind::Coherent {
            return None;
        }
        let (_, word) = self.claim_word(slot, Word::Generation);
        Some(
            word.compare_exchange(from, to, Ordering::SeqCst, Ordering::SeqCst)
                .is_ok(),
        )
    }
}

/// A region as the holder of one of its slots sees it.
#[derive(Clone, Copy, Debug)]
pub struct RegionView<'a> {
    region: &'a Region,
    slot: u32,
}

impl RegionView<'_> {
    /// Where bytes of a slot lie in the region. Everything that touches memory comes by here.
    #[inline]
    fn place(&self, slot: u32, at: u64, bytes: u64) -> u64 {
        let geometry = &self.region.header.geometry;
        let end = at.checked_add(bytes);
        assert!(
            slot < geometry.hosts() && end.is_some_and(|end| end <= geometry.slot_bytes()),
            "an address outside a slot"
        );
        geometry.slot_at(slot) + at
    }

    #[inline]
    fn pointer(&self, slot: u32, at: u64, bytes: u64) -> *mut u8 {
        let place = self.place(slot, at, bytes);
        // SAFETY: within the region: the header was checked against the mapping's length.
        unsafe { self.region.mapping.base().as_ptr().add(place as usize) }
    }

    #[inline]
    fn is_flush(&self) -> bool {
        self.region.header.kind == Kind::Flush
    }
}

impl View for RegionView<'_> {
    fn silence_ns(&self) -> u64 {
        self.region.silence_ns
    }

    #[inline]
    fn load(&self, at: In) -> u64 {
        let place = self.place(self.slot, at.0, 8);
        self.region.word(place).load(Ordering::Acquire)
    }

    #[inline]
    unsafe fn copy_out(&self, at: In, to: *mut u8, len: usize) {
        let from = self.pointer(self.slot, at.0, len as u64);
        // SAFETY: `from` is within the mapping for `len` bytes, `to` is the caller's promise.
        // A stranger who writes there meanwhile changes bytes that are his own.
        unsafe { core::ptr::copy_nonoverlapping(from, to, len) }
    }

    #[inline]
    fn store(&self, at: Out, value: u64) {
        let place = self.place(at.slot, at.at, 8);
        self.region.word(place).store(value, Ordering::Release);
    }

    #[inline]
    unsafe fn copy_in(&self, at: Out, from: *const u8, len: usize) {
        let to = self.pointer(at.slot, at.at, len as u64);
        // SAFETY: `to` is within the mapping for `len` bytes, `from` is the caller's promise.
        unsafe { core::ptr::copy_nonoverlapping(from, to, len) }
    }

    #[inline]
    fn publish(&self, from: Out, bytes: u64) {
        if self.is_flush() {
            let start = self.pointer(from.slot, from.at, bytes);
            // SAFETY: the range is within the mapping.
            unsafe { lines::write_back(start, bytes) };
        } else {
            fence(Ordering::Release);
        }
    }

    #[inline]
    fn refresh(&self, from: In, bytes: u64) {
        if self.is_flush() {
            let start = self.pointer(self.slot, from.0, bytes);
            // SAFETY: the range is within the mapping.
            unsafe { lines::flush(start, bytes) };
        } else {
            fence(Ordering::Acquire);
        }
    }
}

#[cfg(test)]
mod tests;
