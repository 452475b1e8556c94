//! Memory shared with the guest: its own, and the page of doorbells. The other side may write at
//! any time, so everything is copied out before it is looked at, and no reference into it is given
//! away.
#![allow(unsafe_code)]

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::ptr::{self, NonNull};
use std::sync::atomic::{AtomicU32, Ordering};

use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, fcntl_get_seals, fstat, ftruncate};
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};

/// A mapped part of a file that cannot become shorter.
pub struct Mapping {
    start: NonNull<u8>,
    len: usize,
}

// SAFETY: the mapping belongs to this value alone and is reached through copies and atomics only.
unsafe impl Send for Mapping {}

impl Mapping {
    /// Maps a part of a file that a stranger gave. Refuses one that can be made shorter, because
    /// reading behind its end would end this process, and a part that is not inside it.
    pub fn of_stranger(file: &File, offset: u64, len: u64) -> io::Result<Self> {
        let refused = |text| io::Error::new(io::ErrorKind::InvalidInput, text);
        let seals = fcntl_get_seals(file).map_err(|_| refused("memory that cannot be sealed"))?;
        if !seals.contains(SealFlags::SHRINK) {
            return Err(refused("memory that could be made shorter"));
        }
        let size = u64::try_from(fstat(file)?.st_size).unwrap_or(0);
        let end = offset
            .checked_add(len)
            .ok_or_else(|| refused("a length that overflows"))?;
        if len == 0 || end > size || !offset.is_multiple_of(4096) {
            return Err(refused("a part that is not inside the file"));
        }
        let len = usize::try_from(len).map_err(|_| refused("a length that overflows"))?;
        Self::map(file.as_fd(), offset, len)
    }

    /// A part of a new file of zeros to share, and the file.
    pub fn new_shared(file_len: u64, offset: u64, len: usize) -> io::Result<(Self, OwnedFd)> {
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
        let fd = rustix::fs::memfd_create("opennic-doorbells", flags)?;
        ftruncate(&fd, file_len)?;
        fcntl_add_seals(&fd, SealFlags::SHRINK | SealFlags::GROW)?;
        Ok((Self::map(fd.as_fd(), offset, len)?, fd))
    }

    fn map(fd: impl AsFd, offset: u64, len: usize) -> io::Result<Self> {
        // SAFETY: a new mapping at an address that the kernel chooses; nothing else is touched.
        let start = unsafe {
            mmap(
                ptr::null_mut(),
                len,
                ProtFlags::READ | ProtFlags::WRITE,
                MapFlags::SHARED,
                fd,
                offset,
            )?
        };
        let start = NonNull::new(start.cast()).ok_or(io::ErrorKind::OutOfMemory)?;
        Ok(Self { start, len })
    }

    pub fn len(&self) -> usize {
        self.len
    }

    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    fn at(&self, offset: usize, len: usize) -> Option<NonNull<u8>> {
        if offset.checked_add(len)? > self.len {
            return None;
        }
        // SAFETY: the offset is inside the mapping, which was just checked.
        Some(unsafe { self.start.add(offset) })
    }

    /// Copies out; None, and nothing done, if that is not inside.
    pub fn read(&self, offset: usize, bytes: &mut [u8]) -> Option<()> {
        let from = self.at(offset, bytes.len())?;
        // SAFETY: both ranges are `bytes.len()` long (checked by `at`) and cannot overlap. The other
        // side may write meanwhile: then we hold a mixture, which every caller takes as hostile.
        unsafe { ptr::copy_nonoverlapping(from.as_ptr(), bytes.as_mut_ptr(), bytes.len()) };
        Some(())
    }

    /// Copies in; None, and nothing done, if that is not inside.
    pub fn write(&self, offset: usize, bytes: &[u8]) -> Option<()> {
        let to = self.at(offset, bytes.len())?;
        // What the guest reads as "done" must not be seen before what it says is done.
        std::sync::atomic::fence(Ordering::Release);
        // An aligned word is written at once, as a device does: an index or an entry is never half.
        if let (Ok(word), true) = (
            <[u8; 8]>::try_from(bytes),
            to.addr().get().is_multiple_of(8),
        ) {
            // SAFETY: `at` checked eight bytes, and the address is a multiple of eight.
            let cell = unsafe { std::sync::atomic::AtomicU64::from_ptr(to.as_ptr().cast()) };
            cell.store(u64::from_ne_bytes(word), Ordering::Release);
            return Some(());
        }
        // SAFETY: both ranges are `bytes.len()` long (checked by `at`) and cannot overlap. The guest may read or
        // write meanwhile: then it holds a mixture, and so it would with a device.
        unsafe { ptr::copy_nonoverlapping(bytes.as_ptr(), to.as_ptr(), bytes.len()) };
        Some(())
    }

    /// A word of it, for as long as the mapping lives.
    pub fn word(&self, offset: usize) -> Option<&AtomicU32> {
        let at = self.at(offset, 4)?;
        if !at.addr().get().is_multiple_of(4) {
            return None;
        }
        // SAFETY: four bytes inside the mapping (checked by `at`), aligned, living as long as self.
        Some(unsafe { AtomicU32::from_ptr(at.as_ptr().cast()) })
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: mapped by `map` with this length, and no reference outlives self. It cannot fail
        // for a range that is mapped.
        let _ = unsafe { munmap(self.start.as_ptr().cast(), self.len) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_that_can_shrink_is_refused() {
        let (_, fd) = Mapping::new_shared(8192, 0, 8192).expect("memfd");
        let sealed = File::from(fd);
        assert!(Mapping::of_stranger(&sealed, 0, 8192).is_ok());
        assert!(Mapping::of_stranger(&sealed, 4096, 8192).is_err());
        assert!(Mapping::of_stranger(&sealed, u64::MAX - 4095, 8192).is_err());
        assert!(Mapping::of_stranger(&sealed, 0, 0).is_err());
        let open = rustix::fs::memfd_create("open", MemfdFlags::ALLOW_SEALING).expect("memfd");
        ftruncate(&open, 8192).expect("its size");
        let error = Mapping::of_stranger(&File::from(open), 0, 4096).err();
        assert!(error.is_some_and(|e| e.to_string().contains("shorter")));
        let plain = tempfile::tempfile().expect("a file");
        plain.set_len(8192).expect("its size");
        assert!(Mapping::of_stranger(&plain, 0, 4096).is_err());
    }

    #[test]
    fn what_is_not_inside_is_neither_read_nor_written() {
        let (mapping, _fd) = Mapping::new_shared(4096, 0, 4096).expect("memfd");
        assert_eq!(mapping.write(4090, &[1; 8]), None);
        assert_eq!(mapping.read(usize::MAX, &mut [0; 8]), None);
        assert!(mapping.word(4096).is_none() && mapping.word(2).is_none());
        mapping.write(4088, &[7; 8]).expect("inside");
        let mut bytes = [0; 3];
        mapping.read(4093, &mut bytes).expect("inside");
        assert_eq!(bytes, [7; 3]);
    }
}
