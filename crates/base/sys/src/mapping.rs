//! A shared mapping of a memory file, or of memory that only forks share, and nothing else.
#![allow(unsafe_code)]

use crate::errno::Errno;
use crate::locked;
use core::ptr::NonNull;

/// Memory that is mapped shared. Unmapped when dropped.
#[derive(Debug)]
pub struct Mapping {
    base: NonNull<u8>,
    bytes: usize,
}

// SAFETY: a mapping is an address range; every access to it goes through atomics or raw copies
// whose synchronisation is argued where they are made.
unsafe impl Send for Mapping {}
// SAFETY: `Mapping` itself never changes: an address and a size. What lies there is argued where it is
// reached, by atomics or raw copies.
unsafe impl Sync for Mapping {}

/// What the mapping may be used for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// Loads only; a store faults.
    ReadOnly,
    /// Loads and stores.
    ReadWrite,
}

impl Mapping {
    /// Maps the first `bytes` of `fd`. The descriptor may be closed afterwards.
    ///
    /// The file must be at least that long; sealed or measured by the caller, since a page
    /// behind the end of the file faults with SIGBUS (mmap(2)).
    pub fn shared(fd: i32, bytes: usize, access: Access) -> Result<Self, Errno> {
        let prot = match access {
            Access::ReadOnly => libc::PROT_READ,
            Access::ReadWrite => libc::PROT_READ | libc::PROT_WRITE,
        };
        Self::map(bytes, prot, 0, fd, 0)
    }

    /// Maps `bytes` of `fd` from `offset` on, for loads and stores. `EINVAL` for an offset that is no
    /// multiple of the page size.
    ///
    /// The file must reach that far, as for [`Mapping::shared`].
    pub fn piece(fd: i32, offset: u64, bytes: usize) -> Result<Self, Errno> {
        let offset = i64::try_from(offset).map_err(|_| Errno::INVAL)?;
        Self::map(bytes, libc::PROT_READ | libc::PROT_WRITE, 0, fd, offset)
    }

    /// Maps `bytes` of zeroed memory that this process shares with the forks it makes from now on.
    pub fn anonymous(bytes: usize) -> Result<Self, Errno> {
        let prot = libc::PROT_READ | libc::PROT_WRITE;
        Self::map(bytes, prot, libc::MAP_ANONYMOUS, -1, 0)
    }

    fn map(bytes: usize, prot: i32, kind: i32, fd: i32, offset: i64) -> Result<Self, Errno> {
        let flags = libc::MAP_SHARED | libc::MAP_NORESERVE | kind;
        // SAFETY: a new mapping at an address the kernel picks touches nothing that exists.
        let map = || unsafe { libc::mmap(core::ptr::null_mut(), bytes, prot, flags, fd, offset) };
        let address = locked::unlocked(bytes, map);
        if address == libc::MAP_FAILED {
            // SAFETY: errno of this thread, set by the failed call.
            return Err(Errno(unsafe { *libc::__errno_location() }));
        }
        if kind == libc::MAP_ANONYMOUS {
            locked::note(address as usize, bytes);
        }
        match NonNull::new(address.cast::<u8>()) {
            Some(base) => Ok(Self { base, bytes }),
            None => Err(Errno(libc::ENOMEM)),
        }
    }

    /// The first byte.
    pub fn base(&self) -> NonNull<u8> {
        self.base
    }

    /// The length, bytes.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Leaves the memory mapped for the rest of the process's life.
    pub fn leak(self) -> NonNull<u8> {
        let base = self.base;
        core::mem::forget(self);
        base
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        locked::forget(self.base.as_ptr() as usize);
        // SAFETY: the range was mapped by `map` and nobody else unmaps it.
        unsafe {
            libc::munmap(self.base.as_ptr().cast(), self.bytes);
        }
    }
}
