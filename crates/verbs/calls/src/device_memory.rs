//! Device memory: on a device of software it is memory of the process, reached by offset.

use std::ffi::{c_int, c_uint, c_void};
use std::ptr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use super::device::DEVICE_MEMORY_BYTES_MAX;
use super::memory::register;
use crate::errno::null;
use crate::ffi::*;

/// `struct ibv_dm`, and where its bytes are.
#[repr(C)]
pub struct DeviceMemory {
    context: *mut ibv_context,
    memcpy_to_dm: unsafe extern "C" fn(*mut Self, u64, *const c_void, usize) -> c_int,
    memcpy_from_dm: unsafe extern "C" fn(*mut c_void, *mut Self, u64, usize) -> c_int,
    comp_mask: u32,
    handle: u32,
    bytes: *mut u8,
    length: usize,
    /// How many there are in it.
    regions: Arc<AtomicU32>,
}

#[repr(C)]
pub struct ibv_alloc_dm_attr {
    length: usize,
    log_align_req: u32,
    comp_mask: u32,
}

impl DeviceMemory {
    /// Where a copy begins, if all of it is inside and it consists of whole words.
    fn word_at(&self, offset: u64, length: usize) -> Option<*mut u8> {
        let whole = offset.is_multiple_of(WORD as u64) && length.is_multiple_of(WORD);
        self.at(offset, length).filter(|_| whole)
    }

    /// Where an access begins, if all of it is inside.
    fn at(&self, offset: u64, length: usize) -> Option<*mut u8> {
        let offset = usize::try_from(offset).ok()?;
        (offset.checked_add(length)? <= self.length).then(|| self.bytes.wrapping_add(offset))
    }
}

/// Bytes that copies to and from device memory have a multiple of, as on adapters (rdma-core's
/// `test_dm_bad_access`): a program that does without would fail there.
const WORD: usize = 4;

/// Whole pages, so that any alignment that is asked for and fits a page is met.
const PAGE: usize = 4096;

fn mapped(length: usize) -> usize {
    length.next_multiple_of(PAGE)
}

pub unsafe extern "C" fn alloc_dm(
    context: *mut ibv_context,
    attr: *mut ibv_alloc_dm_attr,
) -> *mut DeviceMemory {
    // SAFETY: the header's contract.
    let attr = unsafe { &*attr };
    if attr.comp_mask != 0
        || attr.length == 0
        || attr.length as u64 > DEVICE_MEMORY_BYTES_MAX
        || attr.log_align_req > PAGE.ilog2()
    {
        return null(libc::EINVAL);
    }
    // SAFETY: a new mapping, which nothing else is in.
    let bytes = unsafe {
        libc::mmap(
            ptr::null_mut(),
            mapped(attr.length),
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_SHARED | libc::MAP_ANONYMOUS,
            -1,
            0,
        )
    };
    if bytes == libc::MAP_FAILED {
        return ptr::null_mut();
    }
    Box::into_raw(Box::new(DeviceMemory {
        context,
        memcpy_to_dm,
        memcpy_from_dm,
        comp_mask: 0,
        handle: 0,
        bytes: bytes.cast(),
        length: attr.length,
        regions: Arc::default(),
    }))
}

/// EBUSY while there are regions in it.
pub unsafe extern "C" fn free_dm(dm: *mut DeviceMemory) -> c_int {
    // SAFETY: the header's contract.
    if unsafe { &*dm }.regions.load(Ordering::Acquire) != 0 {
        return libc::EBUSY;
    }
    // SAFETY: the header's contract: alloc_dm made it from a Box.
    let dm = unsafe { Box::from_raw(dm) };
    // SAFETY: alloc_dm mapped so many bytes there.
    unsafe { libc::munmap(dm.bytes.cast(), mapped(dm.length)) };
    0
}

unsafe extern "C" fn memcpy_to_dm(
    dm: *mut DeviceMemory,
    offset: u64,
    from: *const c_void,
    length: usize,
) -> c_int {
    // SAFETY: the header's contract.
    let Some(to) = unsafe { &*dm }.word_at(offset, length) else {
        return libc::EINVAL;
    };
    // SAFETY: word_at() checked the bounds; the rest is the header's contract.
    unsafe { ptr::copy_nonoverlapping(from.cast::<u8>(), to, length) };
    0
}

unsafe extern "C" fn memcpy_from_dm(
    to: *mut c_void,
    dm: *mut DeviceMemory,
    offset: u64,
    length: usize,
) -> c_int {
    // SAFETY: the header's contract.
    let Some(from) = unsafe { &*dm }.word_at(offset, length) else {
        return libc::EINVAL;
    };
    // SAFETY: word_at() checked the bounds; the rest is the header's contract.
    unsafe { ptr::copy_nonoverlapping(from, to.cast::<u8>(), length) };
    0
}

/// What lets peers in: all bits of `ibv_access_flags` with "remote" in their names.
const REMOTE: u32 = sluice_verbs::access::REMOTE_ANY;

/// Offsets in the region count from its beginning, so the flag for that is a must.
pub unsafe extern "C" fn reg_dm_mr(
    pd: *mut ibv_pd,
    dm: *mut DeviceMemory,
    offset: u64,
    length: usize,
    access: c_uint,
) -> *mut ibv_mr {
    // SAFETY: the header's contract.
    let dm = unsafe { &*dm };
    let Some(bytes) = dm.at(offset, length) else {
        return null(libc::EINVAL);
    };
    if access & IBV_ACCESS_ZERO_BASED == 0 {
        return null(libc::EINVAL);
    }
    let mut access = access & !IBV_ACCESS_ZERO_BASED;
    if length == 0 {
        // Nothing can be reached by such a region, whatever it allows.
        access &= !REMOTE;
    }
    let (bytes, shown) = (bytes as u64, ptr::null_mut());
    // SAFETY: the header's contract.
    unsafe { register(pd, bytes, length, 0, access, shown, Some(&dm.regions)) }
}
