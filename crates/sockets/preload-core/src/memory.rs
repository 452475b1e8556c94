//! Private memory straight from the kernel, so that hooks do not enter the program's allocator, and addresses
//! that are none.
#![allow(unsafe_code)]

use crate::this_process;
use core::ptr::NonNull;
use core::sync::atomic::{AtomicPtr, Ordering};
use sluice_sys::errno::Errno;
use sluice_sys::{locked, raw};

/// Addresses below are never mapped (`vm.mmap_min_addr`), so a call with one is the kernel's to
/// refuse.
pub const LOWEST_ADDRESS: usize = 4096;

/// `bytes` of zeroed memory for the rest of the process's life; pages that nobody touches cost
/// nothing.
pub fn zeroed(bytes: usize) -> Option<NonNull<u8>> {
    // SAFETY: a new private mapping at an address of the kernel's choice.
    let map = || unsafe {
        libc::mmap(
            core::ptr::null_mut(),
            bytes,
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE,
            -1,
            0,
        )
    };
    let address = locked::unlocked(bytes, map);
    if address == libc::MAP_FAILED {
        None
    } else {
        locked::note(address as usize, bytes);
        NonNull::new(address.cast())
    }
}

/// mlockall(2) of the program.
pub fn lock_all(flags: i32) -> Result<usize, Errno> {
    if this_process::is_confined() {
        // A filter knows this call, and not the ones that go with it.
        // SAFETY: the call takes a number.
        return raw::check(unsafe { raw::syscall1(libc::SYS_mlockall, raw::int(flags)) });
    }
    locked::lock_all(flags).map(|()| 0)
}

/// munlockall(2) of the program.
pub fn unlock_all() -> Result<usize, Errno> {
    locked::unlock_all().map(|()| 0)
}

/// Bytes of each piece of [`POOL`].
const POOLED_BYTES: usize = 64 * 1024;
/// Pieces of memory that nobody uses at the moment.
static POOL: [AtomicPtr<u8>; 8] = [const { AtomicPtr::new(core::ptr::null_mut()) }; 8];

/// Memory for the time of one call of the program, whose stack may be small. What it contains is arbitrary.
pub struct Scratch {
    base: NonNull<u8>,
    bytes: usize,
}

impl Scratch {
    /// `None` if the kernel has no memory, or the program may have no more of it (setrlimit(2), `RLIMIT_AS`,
    /// `RLIMIT_MEMLOCK`).
    pub fn take(bytes: usize) -> Option<Self> {
        if bytes > POOLED_BYTES {
            return zeroed(bytes).map(|base| Self { base, bytes });
        }
        let pooled = POOL
            .iter()
            .find_map(|place| NonNull::new(place.swap(core::ptr::null_mut(), Ordering::AcqRel)));
        let bytes = POOLED_BYTES;
        pooled
            .or_else(|| zeroed(bytes))
            .map(|base| Self { base, bytes })
    }

    /// All of it, page aligned.
    pub fn bytes(&mut self) -> &mut [u8] {
        // SAFETY: mapped memory of that length, initialised by the kernel, of this value alone.
        unsafe { core::slice::from_raw_parts_mut(self.base.as_ptr(), self.bytes) }
    }

    /// All of it as words.
    pub fn words(&self) -> &[u64] {
        // SAFETY: mapped memory of that length, page aligned, initialised by the kernel, and of this value alone.
        unsafe {
            let words = self.bytes / size_of::<u64>();
            core::slice::from_raw_parts(self.base.as_ptr().cast(), words)
        }
    }

    /// The same, to be changed.
    pub fn words_mut(&mut self) -> &mut [u64] {
        let words = self.bytes / size_of::<u64>();
        // SAFETY: mapped memory of that length, page aligned and initialised by the kernel, which `self` alone names.
        unsafe { core::slice::from_raw_parts_mut(self.base.as_ptr().cast(), words) }
    }

    /// The first `count` values of a type, each of which is `value`.
    pub fn fill<T: Copy>(&mut self, count: usize, value: T) -> &mut [T] {
        assert!(count * size_of::<T>() <= self.bytes && align_of::<T>() <= LOWEST_ADDRESS);
        let base = self.base.cast::<T>();
        for at in 0..count {
            // SAFETY: within the memory, by the assertion.
            unsafe { base.add(at).write(value) };
        }
        // SAFETY: all of it was just written.
        unsafe { core::slice::from_raw_parts_mut(base.as_ptr(), count) }
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let nobody = core::ptr::null_mut();
        let is_kept = |place: &AtomicPtr<u8>| {
            place
                .compare_exchange(
                    nobody,
                    self.base.as_ptr(),
                    Ordering::AcqRel,
                    Ordering::Relaxed,
                )
                .is_ok()
        };
        if self.bytes == POOLED_BYTES && POOL.iter().any(is_kept) {
            return;
        }
        locked::forget(self.base.as_ptr() as usize);
        // SAFETY: mapped by `zeroed`, and nobody's any more.
        unsafe { raw::syscall2(libc::SYS_munmap, self.base.as_ptr() as usize, self.bytes) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_has_memory_of_its_own_and_it_is_used_again() {
        let mut many: Vec<Scratch> = (0..12)
            .map(|_| Scratch::take(100).expect("memory"))
            .collect();
        for (at, one) in many.iter_mut().enumerate() {
            one.fill(50, at as u16);
        }
        for (at, one) in many.iter_mut().enumerate() {
            assert_eq!(one.bytes()[..2], (at as u16).to_ne_bytes());
        }
        let known: Vec<_> = many.iter().map(|one| one.base).collect();
        drop(many);
        assert!(known.contains(&Scratch::take(POOLED_BYTES).expect("memory").base));
        let mut large = Scratch::take(POOLED_BYTES + 1).expect("memory");
        assert!(!known.contains(&large.base));
        assert_eq!(large.bytes().len(), POOLED_BYTES + 1);
    }
}
