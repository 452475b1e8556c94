//! The arena's regions, its lock, and what happens to them at a fork.
#![allow(unsafe_code)]

use core::cell::UnsafeCell;
use core::sync::atomic::{AtomicBool, AtomicI32, Ordering};
use std::os::fd::RawFd;
use std::sync::Once;

use sluice_sys::errno::Errno;
use sluice_sys::memfd::{self, FileStat};
use sluice_sys::raw::{check, int, syscall2, syscall3, syscall4, syscall5, syscall6};
use sluice_sys::unix::Fd;

use super::pages::{Pages, round};
use super::{
    CHUNK_BYTES, CHUNK_REGION, CHUNKS, PAGE_BYTES, REGIONS, REGIONS_MAX, SPAN, SPAN_BYTES, is_ours,
};

/// A huge page, bytes; on machines with others the advice is not taken.
const HUGE_BYTES: usize = 2 << 20;
/// What is freed gives its memory back to the system from this length on, bytes.
const RETURN_BYTES: usize = 64 * 1024;

struct OwnRegion {
    id: usize,
    start: usize,
    bytes: usize,
    pages: Pages,
    /// Still shared memory; false in a child that got it by fork.
    shareable: bool,
}

struct SharedMapping {
    id: usize,
    start: usize,
    bytes: usize,
    inode: u64,
}

impl SharedMapping {
    /// Whether a line of `/proc/self/maps` is of this mapping, or of what is left of it.
    fn has(&self, (from, _, offset, inode): MapLine) -> bool {
        inode == self.inode && from.wrapping_sub(offset) == self.start
    }
}

struct State {
    regions: Vec<OwnRegion>,
    shared: Vec<SharedMapping>,
    next_chunk: usize,
    next_id: usize,
}

/// A lock that a fork can hold across: `std`'s would be poisoned by nothing, but its guard
/// cannot be kept in a handler.
struct Lock {
    held: AtomicBool,
    state: UnsafeCell<State>,
}

// SAFETY: the state is only reached by whoever holds `held`.
unsafe impl Sync for Lock {}

static LOCK: Lock = Lock {
    held: AtomicBool::new(false),
    state: UnsafeCell::new(State {
        regions: Vec::new(),
        shared: Vec::new(),
        next_chunk: 0,
        next_id: 1,
    }),
};

impl Lock {
    fn acquire(&self) {
        while self.held.swap(true, Ordering::Acquire) {
            std::thread::yield_now();
        }
    }

    fn release(&self) {
        self.held.store(false, Ordering::Release);
    }

    fn with<R>(&self, body: impl FnOnce(&mut State) -> R) -> R {
        self.acquire();
        // SAFETY: `held` makes this the only reference; `body` cannot call back into the arena,
        // because what it allocates has less than a page's alignment.
        let result = body(unsafe { &mut *self.state.get() });
        self.release();
        result
    }
}

/// `size` bytes at a multiple of `align` (a power of two), as a multiple of pages. Null when
/// the arena has none; the caller takes other memory then.
pub fn aligned_alloc(align: usize, size: usize) -> *mut u8 {
    if !align.is_power_of_two() || align > CHUNK_BYTES || !ready() {
        return core::ptr::null_mut();
    }
    let Some(len) = round(size) else {
        return core::ptr::null_mut();
    };
    let align = align.max(PAGE_BYTES);
    LOCK.with(|state| {
        for region in state.regions.iter_mut().filter(|region| region.shareable) {
            if let Some(offset) = region.pages.take(region.start, len, align) {
                return (region.start + offset) as *mut u8;
            }
        }
        let Some(region) = state.new_region(len) else {
            return core::ptr::null_mut();
        };
        match region.pages.take(region.start, len, align) {
            Some(offset) => (region.start + offset) as *mut u8,
            None => core::ptr::null_mut(),
        }
    })
}

/// Frees an allocation. False: the address is not the start of one of ours.
pub fn free(address: *mut u8) -> bool {
    if !is_ours(address) {
        return false;
    }
    LOCK.with(|state| {
        let Some(region) = state.region_of(address.addr()) else {
            return false;
        };
        let offset = address.addr() - region.start;
        let Some(len) = region.pages.give(offset) else {
            return false;
        };
        if len >= RETURN_BYTES {
            let advice = match region.shareable {
                true => libc::MADV_REMOVE,
                false => libc::MADV_DONTNEED,
            };
            // SAFETY: pages of ours that nobody uses any more.
            let advised =
                check(unsafe { syscall3(libc::SYS_madvise, address.addr(), len, int(advice)) });
            // Refused where the program has locked its memory (mlock(2)).
            if advised.is_err()
                && region.shareable
                && let Some(file) = REGIONS[region.id].file()
            {
                let _ = memfd::punch_hole(file, offset as u64, len as u64);
            }
        }
        true
    })
}

/// Bytes of the allocation that starts at `address`.
pub fn usable_size(address: *const u8) -> Option<usize> {
    if !is_ours(address) {
        return None;
    }
    LOCK.with(|state| {
        let region = state.region_of(address.addr())?;
        region.pages.len_at(address.addr() - region.start)
    })
}

/// A mapping for `mmap` of shared anonymous memory, readable and writable, which peers can map
/// too. The program may unmap it as it likes. Null when there is none.
pub fn shared_mmap(len: usize) -> *mut u8 {
    let Some(bytes) = round(len).filter(|_| ready()) else {
        return core::ptr::null_mut();
    };
    LOCK.with(|state| {
        state.forget_unmapped();
        let Ok((fd, stat)) = region_file(bytes) else {
            return core::ptr::null_mut();
        };
        let Some(id) = state.take_id() else {
            return core::ptr::null_mut();
        };
        let Ok(start) = map(0, bytes, fd.raw(), 0) else {
            return core::ptr::null_mut();
        };
        publish(id, start, bytes, (fd, stat));
        state.shared.push(SharedMapping {
            id,
            start,
            bytes,
            inode: stat.inode,
        });
        start as *mut u8
    })
}

/// The region of a shared mapping, if it is still mapped there.
pub fn shared_region(address: usize, len: usize) -> Option<u32> {
    let end = address.checked_add(len)?;
    LOCK.with(|state| {
        let shared = state
            .shared
            .iter()
            .find(|shared| address >= shared.start && end <= shared.start + shared.bytes)?;
        maps_whole(shared, address, end).then_some(shared.id as u32)
    })
}

impl State {
    fn region_of(&mut self, address: usize) -> Option<&mut OwnRegion> {
        self.regions
            .iter_mut()
            .find(|region| address >= region.start && address < region.start + region.bytes)
    }

    fn take_id(&mut self) -> Option<usize> {
        (self.next_id < REGIONS_MAX).then(|| {
            self.next_id += 1;
            self.next_id - 1
        })
    }

    /// A region with room for `len` bytes at any alignment up to a chunk.
    fn new_region(&mut self, len: usize) -> Option<&mut OwnRegion> {
        let bytes = len.checked_next_multiple_of(CHUNK_BYTES)?;
        let chunks = bytes / CHUNK_BYTES;
        let chunk = self.next_chunk;
        if chunk + chunks > CHUNKS {
            return None;
        }
        let (fd, stat) = region_file(bytes).ok()?;
        let start = SPAN.load(Ordering::Relaxed) + chunk * CHUNK_BYTES;
        let id = self.take_id()?;
        map(start, bytes, fd.raw(), libc::MAP_FIXED).ok()?;
        publish(id, start, bytes, (fd, stat));
        for place in &CHUNK_REGION[chunk..chunk + chunks] {
            place.store(id as u32, Ordering::Release);
        }
        self.next_chunk += chunks;
        self.regions.push(OwnRegion {
            id,
            start,
            bytes,
            pages: Pages::new(bytes),
            shareable: true,
        });
        self.regions.last_mut()
    }

    /// Lets go of shared mappings of which the program has unmapped everything.
    fn forget_unmapped(&mut self) {
        // Without the list nobody knows what is mapped.
        let Ok(maps) = std::fs::read_to_string("/proc/self/maps") else {
            return;
        };
        self.shared.retain(|shared| {
            let mapped = maps
                .lines()
                .filter_map(map_line)
                .any(|line| shared.has(line));
            if !mapped {
                drop(take_file(shared.id));
            }
            mapped
        });
    }
}

/// A region's file, which it does not have any more.
fn take_file(id: usize) -> Option<Fd> {
    let file = REGIONS[id].file()?;
    REGIONS[id].fd.store(-1, Ordering::Release);
    Some(Fd::own(file))
}

fn publish(id: usize, start: usize, bytes: usize, (fd, stat): (Fd, FileStat)) {
    let region = &REGIONS[id];
    region.device.store(stat.device, Ordering::Relaxed);
    region.inode.store(stat.inode, Ordering::Relaxed);
    region.start.store(start, Ordering::Release);
    region.bytes.store(bytes, Ordering::Release);
    region.fd.store(fd.into_raw(), Ordering::Release);
}

fn region_file(bytes: usize) -> Result<(Fd, FileStat), Errno> {
    let fd = memfd::create(c"sluice-verbs-arena")?;
    memfd::set_len(fd.raw(), bytes as u64)?;
    memfd::add_seals(
        fd.raw(),
        memfd::SEAL_SHRINK | memfd::SEAL_GROW | memfd::SEAL_SEAL,
    )?;
    let stat = memfd::stat(fd.raw())?;
    Ok((fd, stat))
}

fn map(address: usize, bytes: usize, fd: RawFd, flags: i32) -> Result<usize, Errno> {
    let flags = flags | libc::MAP_SHARED | libc::MAP_NORESERVE;
    // SAFETY: a new mapping at a place of the kernel's choice, or over our own reservation.
    check(unsafe {
        syscall6(
            libc::SYS_mmap,
            address,
            bytes,
            int(libc::PROT_READ | libc::PROT_WRITE),
            int(flags),
            int(fd),
            0,
        )
    })
}

/// Anonymous private memory.
fn anonymous(bytes: usize, protection: i32) -> Result<usize, Errno> {
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
    // SAFETY: a new mapping at a place of the kernel's choice.
    check(unsafe {
        syscall6(
            libc::SYS_mmap,
            0,
            bytes,
            int(protection),
            int(flags),
            int(-1),
            0,
        )
    })
}

/// Whether the span is there; reserves it at the first call.
fn ready() -> bool {
    static START: Once = Once::new();
    START.call_once(|| {
        // One chunk more, to start at a multiple of one.
        let span = match anonymous(SPAN_BYTES + CHUNK_BYTES, libc::PROT_NONE) {
            Ok(start) => start.next_multiple_of(CHUNK_BYTES),
            Err(_) => 1,
        };
        // SAFETY: the handlers are functions of this library.
        unsafe {
            libc::pthread_atfork(
                Some(before_fork),
                Some(after_in_parent),
                Some(after_in_child),
            );
        }
        SPAN.store(span, Ordering::Release);
    });
    SPAN.load(Ordering::Acquire) > 1
}

/// Whether all of `address..end` is a mapping of the region's file at the right place.
fn maps_whole(shared: &SharedMapping, address: usize, end: usize) -> bool {
    let Ok(maps) = std::fs::read_to_string("/proc/self/maps") else {
        return false;
    };
    let mut covered = address;
    for line in maps.lines() {
        let Some((from, to, offset, inode)) = map_line(line) else {
            continue;
        };
        if to <= covered || from > covered {
            continue;
        }
        if !shared.has((from, to, offset, inode)) {
            return false;
        }
        covered = to;
        if covered >= end {
            return true;
        }
    }
    covered >= end
}

/// Start, end, offset and inode of a line of `/proc/self/maps` (proc(5)).
type MapLine = (usize, usize, usize, u64);

fn map_line(line: &str) -> Option<MapLine> {
    let mut words = line.split_ascii_whitespace();
    let (from, to) = words.next()?.split_once('-')?;
    let offset = words.nth(1)?;
    let inode = words.nth(1)?;
    Some((
        usize::from_str_radix(from, 16).ok()?,
        usize::from_str_radix(to, 16).ok()?,
        usize::from_str_radix(offset, 16).ok()?,
        inode.parse().ok()?,
    ))
}

/// A pipe that the child holds open while it copies: reading end and writing end.
static COPYING: [AtomicI32; 2] = [AtomicI32::new(-1), AtomicI32::new(-1)];

extern "C" fn before_fork() {
    LOCK.acquire();
    // SAFETY: the lock is held until one of the other handlers releases it.
    let state = unsafe { &*LOCK.state.get() };
    let in_use = state
        .regions
        .iter()
        .any(|region| region.shareable && region.pages.used().next().is_some());
    let mut ends = [-1i32; 2];
    if in_use {
        // SAFETY: the kernel writes two ints.
        let _ = unsafe {
            syscall2(
                libc::SYS_pipe2,
                ends.as_mut_ptr() as usize,
                int(libc::O_CLOEXEC),
            )
        };
    }
    COPYING[0].store(ends[0], Ordering::Relaxed);
    COPYING[1].store(ends[1], Ordering::Relaxed);
}

extern "C" fn after_in_parent() {
    // The parent goes on when the child has its copy, or is dead.
    let (reading, writing) = take_pipe();
    if writing >= 0 {
        drop(Fd::own(writing));
        let mut byte = 0u8;
        // SAFETY: the kernel writes at most one byte.
        while check(unsafe { syscall3(libc::SYS_read, int(reading), &raw mut byte as usize, 1) })
            == Err(Errno::INTR)
        {}
        drop(Fd::own(reading));
    }
    LOCK.release();
}

extern "C" fn after_in_child() {
    // SAFETY: `before_fork` took the lock, and this is the child's only thread.
    let state = unsafe { &mut *LOCK.state.get() };
    for region in &mut state.regions {
        if region.shareable {
            make_private(region);
        }
    }
    let (reading, writing) = take_pipe();
    if writing >= 0 {
        drop(Fd::own(reading));
        drop(Fd::own(writing));
    }
    LOCK.release();
}

fn take_pipe() -> (RawFd, RawFd) {
    (
        COPYING[0].swap(-1, Ordering::Relaxed),
        COPYING[1].swap(-1, Ordering::Relaxed),
    )
}

/// Replaces a region in the child by private memory with the same contents.
fn make_private(region: &mut OwnRegion) {
    region.shareable = false;
    let file = take_file(region.id);
    let Ok(room) = anonymous(
        region.bytes + HUGE_BYTES,
        libc::PROT_READ | libc::PROT_WRITE,
    ) else {
        // Without memory for a copy the child must not run on its parent's.
        std::process::abort();
    };
    let copy = room.next_multiple_of(HUGE_BYTES);
    for (offset, len) in region.pages.used() {
        in_huge_pages(copy + offset, len);
        let is_copied = match &file {
            Some(file) => copy_extent(file.raw(), copy, offset, len),
            None => {
                // The program has closed it. What is mapped stays, and pages without contents get some.
                // SAFETY: both are mapped for that many bytes, and the copy is this function's own.
                unsafe {
                    core::ptr::copy_nonoverlapping(
                        (region.start + offset) as *const u8,
                        (copy + offset) as *mut u8,
                        len,
                    );
                }
                true
            }
        };
        if !is_copied {
            std::process::abort();
        }
    }
    // SAFETY: moves our own fresh mapping over our own region.
    let moved = check(unsafe {
        syscall5(
            libc::SYS_mremap,
            copy,
            region.bytes,
            region.bytes,
            int(libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED),
            region.start,
        )
    });
    if moved.is_err() {
        std::process::abort();
    }
    for (start, end) in [
        (room, copy),
        (copy + region.bytes, room + region.bytes + HUGE_BYTES),
    ] {
        if start < end {
            // SAFETY: what is left of our own fresh mapping.
            let _ = unsafe { syscall2(libc::SYS_munmap, start, end - start) };
        }
    }
}

/// Asks for huge pages, each of which is brought in at once: without them most of a copy's time is page faults. Pages
/// of an extent that have no contents are not touched.
fn in_huge_pages(start: usize, len: usize) {
    let (from, to) = (
        start.next_multiple_of(HUGE_BYTES),
        (start + len) & !(HUGE_BYTES - 1),
    );
    if from < to {
        let advice = int(libc::MADV_HUGEPAGE);
        // SAFETY: within our own fresh mapping. Refused where the kernel has none.
        let _ = unsafe { syscall3(libc::SYS_madvise, from, to - from, advice) };
    }
}

/// Reads the pages of an extent that have contents.
fn copy_extent(fd: RawFd, copy: usize, offset: usize, len: usize) -> bool {
    let end = offset + len;
    let mut at = offset;
    while at < end {
        // SAFETY: lseek takes integers.
        let data =
            match check(unsafe { syscall3(libc::SYS_lseek, int(fd), at, int(libc::SEEK_DATA)) }) {
                Ok(data) if data < end => data,
                Ok(_) | Err(Errno(libc::ENXIO)) => return true,
                Err(_) => return false,
            };
        // SAFETY: lseek takes integers.
        let hole = check(unsafe { syscall3(libc::SYS_lseek, int(fd), data, int(libc::SEEK_HOLE)) });
        let stop = hole.map_or(end, |hole| hole.min(end));
        at = data;
        while at < stop {
            // SAFETY: the copy is as large as the region, and `stop` lies within it.
            match check(unsafe { syscall4(libc::SYS_pread64, int(fd), copy + at, stop - at, at) }) {
                Ok(0) | Err(_) => return false,
                Ok(got) => at += got,
            }
        }
    }
    true
}
