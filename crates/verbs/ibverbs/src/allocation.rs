//! Stand-ins for the C library's allocation functions, so that memory a program is likely to
//! register is memory that peers can map: what has page alignment and at least a page, and shared
//! anonymous mappings. Everything else goes on to the next definition.
//!
//! The dynamic linker finds these before the C library's when the program is linked with
//! libibverbs, or when the library is preloaded, as `sluice verbs` has it. When a plugin loads the
//! library later, it finds the C library's for all of them, so that no pointer from here meets a
//! `free` that does not know it. A program that is not linked with libibverbs gets all its memory
//! from the C library: most such programs have no use for ours ([`linked`]).
//!
//! These run in any thread at any time, before constructors and in forked children. They use
//! atomics and the arena's own lock only, no thread-local variables, and look the next definition
//! up on first use.

use std::ffi::{CStr, c_int, c_void};
use std::ptr;
use std::sync::atomic::{AtomicU8, Ordering};

use sluice_transport_shm::arena::{self, PAGE_BYTES};
use sluice_verbs_calls::errno::{errno, set_errno};

use crate::linked;
use crate::next::next;

fn no_memory() -> *mut c_void {
    set_errno(libc::ENOMEM);
    ptr::null_mut()
}

/// The variable that turns the stand-ins off, to compare.
const VARIABLE: &CStr = c"SLUICE_VERBS_ARENA";
/// The variable that names the devices.
const DEVICES_VARIABLE: &CStr = c"SLUICE_VERBS_DEVICES";

/// Whether anybody has a use for memory that peers can map. Children of a program that has such memory pay for it: they
/// get a copy.
fn enabled() -> bool {
    const UNKNOWN: u8 = 0;
    const ON: u8 = 1;
    const OFF: u8 = 2;
    static ENABLED: AtomicU8 = AtomicU8::new(UNKNOWN);
    match ENABLED.load(Ordering::Relaxed) {
        UNKNOWN => {
            // Not known before this library's constructor has run: other libraries' may come first.
            let Some(is_linked) = linked::is_linked() else {
                return false;
            };
            let is_on = is_linked
                && variable(VARIABLE) != Some(c"off")
                && variable(DEVICES_VARIABLE).is_none_or(names_shared_memory);
            ENABLED.store(if is_on { ON } else { OFF }, Ordering::Relaxed);
            is_on
        }
        state => state == ON,
    }
}

/// Without allocating.
fn variable(name: &CStr) -> Option<&'static CStr> {
    // SAFETY: the name is a string; the answer, NULL or a string, is looked at before the program can
    // change its environment, or at the first allocation of this size.
    unsafe {
        let value = libc::getenv(name.as_ptr());
        (!value.is_null()).then(|| CStr::from_ptr(value))
    }
}

fn names_shared_memory(devices: &CStr) -> bool {
    let mut devices = devices.to_bytes().split(|byte| *byte == b',');
    devices.any(|device| device.trim_ascii() == b"shm")
}

/// Memory that peers can map, for requests that are worth a page; NULL for all others and when
/// there is no more.
fn shareable(align: usize, size: usize) -> *mut c_void {
    if align < PAGE_BYTES || size < PAGE_BYTES || !enabled() {
        return ptr::null_mut();
    }
    let saved = errno();
    let memory = arena::aligned_alloc(align, size);
    set_errno(saved);
    memory.cast()
}

/// # Safety
/// posix_memalign(3).
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn posix_memalign(out: *mut *mut c_void, align: usize, size: usize) -> c_int {
    let memory = shareable(align, size);
    if memory.is_null() {
        return next!(
            posix_memalign(out, align, size): fn(*mut *mut c_void, usize, usize) -> c_int,
            libc::ENOMEM
        );
    }
    // SAFETY: the caller's contract.
    unsafe { *out = memory };
    0
}

/// memalign(3).
#[cfg_attr(not(test), unsafe(no_mangle))]
pub extern "C" fn memalign(align: usize, size: usize) -> *mut c_void {
    let memory = shareable(align, size);
    if memory.is_null() {
        return next!(memalign(align, size): fn(usize, usize) -> *mut c_void, no_memory());
    }
    memory
}

/// aligned_alloc(3).
#[cfg_attr(not(test), unsafe(no_mangle))]
pub extern "C" fn aligned_alloc(align: usize, size: usize) -> *mut c_void {
    let memory = shareable(align, size);
    if memory.is_null() {
        return next!(aligned_alloc(align, size): fn(usize, usize) -> *mut c_void, no_memory());
    }
    memory
}

/// valloc(3).
#[cfg_attr(not(test), unsafe(no_mangle))]
pub extern "C" fn valloc(size: usize) -> *mut c_void {
    let memory = shareable(PAGE_BYTES, size);
    if memory.is_null() {
        return next!(valloc(size): fn(usize) -> *mut c_void, no_memory());
    }
    memory
}

/// pvalloc(3): the size is rounded up to pages.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub extern "C" fn pvalloc(size: usize) -> *mut c_void {
    // A size that cannot be rounded up is for the C library to refuse.
    let memory = size
        .max(1)
        .checked_next_multiple_of(PAGE_BYTES)
        .map_or(ptr::null_mut(), |bytes| shareable(PAGE_BYTES, bytes));
    if memory.is_null() {
        return next!(pvalloc(size): fn(usize) -> *mut c_void, no_memory());
    }
    memory
}

/// # Safety
/// free(3).
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn free(memory: *mut c_void) {
    if arena::is_ours(memory.cast()) {
        let saved = errno();
        arena::free(memory.cast());
        set_errno(saved);
        return;
    }
    // A block that cannot be freed now is lost, which is the least of evils.
    next!(free(memory): fn(*mut c_void), ());
}

/// # Safety
/// realloc(3).
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn realloc(memory: *mut c_void, size: usize) -> *mut c_void {
    if arena::is_ours(memory.cast()) {
        // SAFETY: the caller's contract.
        return unsafe { move_out(memory, size) };
    }
    next!(realloc(memory, size): fn(*mut c_void, usize) -> *mut c_void, no_memory())
}

/// # Safety
/// reallocarray(3).
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn reallocarray(
    memory: *mut c_void,
    count: usize,
    size: usize,
) -> *mut c_void {
    match count.checked_mul(size) {
        // SAFETY: the caller's contract.
        Some(bytes) => unsafe { realloc(memory, bytes) },
        None => no_memory(),
    }
}

/// realloc(3) of a block of the arena. The new block needs no alignment, so it is an ordinary one
/// unless the old one is large enough.
///
/// # Safety
/// `memory` is the start of a block of the arena.
unsafe fn move_out(memory: *mut c_void, size: usize) -> *mut c_void {
    let Some(present) = arena::usable_size(memory.cast()) else {
        return no_memory();
    };
    if size == 0 {
        arena::free(memory.cast());
        return ptr::null_mut();
    }
    if size <= present && size > present / 2 {
        return memory;
    }
    // SAFETY: malloc has no precondition.
    let moved = unsafe { libc::malloc(size) };
    if !moved.is_null() {
        // SAFETY: both blocks have so many bytes, and the new one is nobody else's.
        unsafe { ptr::copy_nonoverlapping(memory.cast::<u8>(), moved.cast(), present.min(size)) };
        arena::free(memory.cast());
    }
    moved
}

/// # Safety
/// malloc_usable_size(3).
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn malloc_usable_size(memory: *mut c_void) -> usize {
    if let Some(size) = arena::usable_size(memory.cast()) {
        return size;
    }
    next!(malloc_usable_size(memory): fn(*mut c_void) -> usize, 0)
}

/// # Safety
/// mmap(2).
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn mmap(
    address: *mut c_void,
    length: usize,
    protection: c_int,
    flags: c_int,
    fd: c_int,
    offset: i64,
) -> *mut c_void {
    let shared = shared_mapping(address, length, protection, flags);
    if !shared.is_null() {
        return shared;
    }
    next!(
        mmap(address, length, protection, flags, fd, offset):
            fn(*mut c_void, usize, c_int, c_int, c_int, i64) -> *mut c_void,
        {
            set_errno(libc::ENOMEM);
            libc::MAP_FAILED
        }
    )
}

/// # Safety
/// mmap(2), whose offset has 64 bits on this machine in any case.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn mmap64(
    address: *mut c_void,
    length: usize,
    protection: c_int,
    flags: c_int,
    fd: c_int,
    offset: i64,
) -> *mut c_void {
    // SAFETY: the caller's contract.
    unsafe { mmap(address, length, protection, flags, fd, offset) }
}

/// Shared anonymous memory at a place of the kernel's choice, and nothing more special than that.
fn shared_mapping(
    address: *mut c_void,
    length: usize,
    protection: c_int,
    flags: c_int,
) -> *mut c_void {
    const PLAIN: c_int = libc::MAP_SHARED | libc::MAP_ANONYMOUS;
    const HARMLESS: c_int = libc::MAP_NORESERVE;
    let wanted = address.is_null()
        && flags & !HARMLESS == PLAIN
        && protection == libc::PROT_READ | libc::PROT_WRITE
        && length >= PAGE_BYTES;
    if !wanted || !enabled() {
        return ptr::null_mut();
    }
    let saved = errno();
    let memory = arena::shared_mmap(length);
    set_errno(saved);
    memory.cast()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_shared_memory_has_a_use_for_the_arena() {
        for (devices, wanted) in [
            (c"shm", true),
            (c"roce, shm", true),
            (c"roce-udp,iwarp", false),
            (c"", false),
        ] {
            assert_eq!(names_shared_memory(devices), wanted, "{devices:?}");
        }
    }

    #[test]
    fn pages_come_from_the_arena_and_everything_else_from_the_c_library() {
        let page = memalign(PAGE_BYTES, PAGE_BYTES);
        assert!(arena::is_ours(page.cast()));
        let small = memalign(64, 64);
        assert!(!small.is_null() && !arena::is_ours(small.cast()));
        let mut out = ptr::null_mut();
        // SAFETY: out is valid; each block is freed once.
        unsafe {
            assert_eq!(posix_memalign(&mut out, 2 * PAGE_BYTES, 10_000), 0);
            assert!(arena::is_ours(out.cast()) && out.addr() % (2 * PAGE_BYTES) == 0);
            assert_eq!(malloc_usable_size(out), 12_288);
            assert_eq!(posix_memalign(&mut out, 3, 10_000), libc::EINVAL);
            free(page);
            free(small);
        }
    }

    #[test]
    fn pvalloc_gives_whole_pages_and_valloc_does_not() {
        // SAFETY: each block is freed once.
        unsafe {
            for (size, pages) in [(0, 1), (1, 1), (PAGE_BYTES, 1), (PAGE_BYTES + 1, 2)] {
                let block = pvalloc(size);
                assert!(arena::is_ours(block.cast()), "{size}");
                assert_eq!(malloc_usable_size(block), pages * PAGE_BYTES, "{size}");
                free(block);
            }
            let block = valloc(1);
            assert!(!block.is_null() && !arena::is_ours(block.cast()));
            free(block);
            assert!(pvalloc(usize::MAX).is_null());
        }
    }

    #[test]
    fn a_block_that_grows_keeps_its_bytes() {
        let block = valloc(PAGE_BYTES).cast::<u8>();
        // SAFETY: the block has a page; each block is freed once.
        unsafe {
            block.write_bytes(7, PAGE_BYTES);
            assert_eq!(realloc(block.cast(), 4000).cast(), block);
            let grown = realloc(block.cast(), 3 * PAGE_BYTES).cast::<u8>();
            assert!(!arena::is_ours(grown));
            assert!((0..PAGE_BYTES).all(|index| *grown.add(index) == 7));
            assert!(reallocarray(grown.cast(), usize::MAX, 2).is_null());
            free(grown.cast());
        }
    }

    #[test]
    fn shared_anonymous_mappings_can_be_located() {
        let (read_write, shared) = (
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_SHARED | libc::MAP_ANONYMOUS,
        );
        // SAFETY: new mappings, unmapped once.
        unsafe {
            let memory = mmap(ptr::null_mut(), 10_000, read_write, shared, -1, 0);
            assert!(arena::locate(memory as u64, 10_000).is_some());
            libc::munmap(memory, 10_000);
            let private = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
            let memory = mmap(ptr::null_mut(), 10_000, read_write, private, -1, 0);
            assert!(arena::locate(memory as u64, 10_000).is_none());
            libc::munmap(memory, 10_000);
        }
    }
}
