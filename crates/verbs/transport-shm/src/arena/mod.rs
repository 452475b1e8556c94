//! Program memory that peers can map: pages from memory files in place of anonymous ones.
//!
//! The library's `posix_memalign` and its relatives take what has page alignment and at least
//! a page from here, and `mmap` of shared anonymous memory. A key on such memory names region
//! and offset, and peers reach it without the kernel and without this process.
//!
//! A peer that may use one key of a region maps all of it (both are processes of one user, who
//! could attach a debugger to either). Pages of a file are shared across `fork`, which program
//! memory must not be: the child gets a copy of everything allocated before `fork` returns in
//! either process, and its share of the old regions is ordinary private memory from then on.
//! Memory that the program itself asked to share stays shared.
#![allow(unsafe_code)]

mod pages;
mod state;

use core::sync::atomic::{AtomicI32, AtomicU32, AtomicU64, AtomicUsize, Ordering};

use sluice_sys::memfd;

pub use state::{aligned_alloc, free, shared_mmap, usable_size};

/// Alignment and granularity, bytes.
pub const PAGE_BYTES: usize = 4096;
/// Address space that regions lie in, bytes; reserved at the first allocation.
const SPAN_BYTES: usize = 64 << 30;
/// The unit in which the span is given to regions, bytes.
const CHUNK_BYTES: usize = 64 << 20;
const CHUNKS: usize = SPAN_BYTES / CHUNK_BYTES;
/// Regions that a process can ever have. Their numbers start at 1.
const REGIONS_MAX: usize = 1024;

/// Start of the span; 0 before the first allocation, 1 if there can be none.
static SPAN: AtomicUsize = AtomicUsize::new(0);
/// The region of each chunk; 0 for none.
static CHUNK_REGION: [AtomicU32; CHUNKS] = [const { AtomicU32::new(0) }; CHUNKS];

struct Region {
    /// -1: there is none, or it is private memory of a forked child. A program that closes all descriptors, as daemons
    /// do, closes this one, too, and gets the number for a file of its own: see [`Region::file`].
    fd: AtomicI32,
    device: AtomicU64,
    inode: AtomicU64,
    start: AtomicUsize,
    bytes: AtomicUsize,
}

impl Region {
    /// Its file, as long as the number is still that of it. Otherwise the number is the program's: it is forgotten.
    fn file(&self) -> Option<i32> {
        let fd = self.fd.load(Ordering::Acquire);
        if fd < 0 {
            return None;
        }
        let is_own = memfd::stat(fd).is_ok_and(|it| {
            it.inode == self.inode.load(Ordering::Relaxed)
                && it.device == self.device.load(Ordering::Relaxed)
        });
        if !is_own {
            self.fd.store(-1, Ordering::Release);
        }
        is_own.then_some(fd)
    }
}

static REGIONS: [Region; REGIONS_MAX] = [const {
    Region {
        fd: AtomicI32::new(-1),
        device: AtomicU64::new(0),
        inode: AtomicU64::new(0),
        start: AtomicUsize::new(0),
        bytes: AtomicUsize::new(0),
    }
}; REGIONS_MAX];

/// Whether `address` may be an allocation of the arena: a test of the range, for the hook of
/// `free`, that most pointers leave here.
#[inline]
pub fn is_ours(address: *const u8) -> bool {
    let span = SPAN.load(Ordering::Relaxed);
    span > 1 && address.addr().wrapping_sub(span) < SPAN_BYTES
}

/// The region that all of `len` bytes at `address` lie in, and where in it.
pub fn locate(address: u64, len: u64) -> Option<(u32, u64)> {
    let address = usize::try_from(address).ok()?;
    let len = usize::try_from(len).ok()?;
    if is_ours(address as *const u8) {
        let chunk = (address - SPAN.load(Ordering::Relaxed)) / CHUNK_BYTES;
        let id = CHUNK_REGION.get(chunk)?.load(Ordering::Acquire);
        return within(id, address, len);
    }
    let id = state::shared_region(address, len)?;
    within(id, address, len)
}

fn within(id: u32, address: usize, len: usize) -> Option<(u32, u64)> {
    let region = REGIONS.get(id as usize)?;
    if id == 0 || region.fd.load(Ordering::Acquire) < 0 {
        return None;
    }
    let start = region.start.load(Ordering::Acquire);
    let offset = address.checked_sub(start)?;
    (offset.checked_add(len)? <= region.bytes.load(Ordering::Acquire))
        .then_some((id, offset as u64))
}

/// The descriptor and length of a region, for passing it to a peer.
pub fn region(id: u32) -> Option<(i32, usize)> {
    let region = REGIONS.get(id as usize).filter(|_| id != 0)?;
    Some((region.file()?, region.bytes.load(Ordering::Acquire)))
}

#[cfg(test)]
mod tests;
