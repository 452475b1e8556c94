//! Memory that has a descriptor (`memfd_create`) and promises about it (seals).
#![allow(unsafe_code)]

use core::ffi::CStr;
use core::mem::MaybeUninit;
use core::sync::atomic::{AtomicU32, Ordering};
use std::os::fd::RawFd;

use crate::errno::Errno;
use crate::raw::{check, int, syscall2, syscall3, syscall4, syscall6};
use crate::unix::Fd;

/// Nobody adds further seals.
pub const SEAL_SEAL: u32 = libc::F_SEAL_SEAL as u32;
/// The size never shrinks, so a mapping below it never raises `SIGBUS`.
pub const SEAL_SHRINK: u32 = libc::F_SEAL_SHRINK as u32;
/// The size never grows.
pub const SEAL_GROW: u32 = libc::F_SEAL_GROW as u32;
/// Nobody writes by `write`, and no new writable mapping can be made; old ones stay writable.
pub const SEAL_FUTURE_WRITE: u32 = libc::F_SEAL_FUTURE_WRITE as u32;

/// `HUGETLBFS_MAGIC`: faults in such memory raise `SIGBUS` when the pool of huge pages is empty.
const HUGETLBFS_MAGIC: i64 = 0x958458f6;
/// `SYSFS_MAGIC`.
const SYSFS_MAGIC: i64 = 0x62656572;

/// `MFD_NOEXEC_SEAL` (Linux 6.3): not executable, for good.
const MFD_NOEXEC_SEAL: u32 = 8;

/// New empty memory that takes seals, close-on-exec. `name` shows up in `/proc/*/maps`.
pub fn create(name: &CStr) -> Result<Fd, Errno> {
    let with = |flags: u32| {
        // SAFETY: the kernel reads the zero-terminated name.
        check(unsafe {
            syscall2(
                libc::SYS_memfd_create,
                name.as_ptr() as usize,
                (libc::MFD_CLOEXEC | libc::MFD_ALLOW_SEALING | flags) as usize,
            )
        })
    };
    let made = match with(0) {
        // Where `vm.memfd_noexec` is 2 the kernel refuses memory that might be executed.
        Err(Errno(libc::EACCES)) => with(MFD_NOEXEC_SEAL),
        made => made,
    };
    made.map(|fd| Fd::own(fd as RawFd))
}

/// `EFBIG` if no file of this process may have so many bytes (`RLIMIT_FSIZE`, which memory files
/// are under, too). The kernel would say the same, and send `SIGXFSZ`, which ends the program.
pub fn check_size_limit(bytes: u64) -> Result<(), Errno> {
    let mut limit = MaybeUninit::<libc::rlimit64>::uninit();
    // SAFETY: the kernel writes one `struct rlimit64`; no new limit is given.
    check(unsafe {
        syscall4(
            libc::SYS_prlimit64,
            0,
            libc::RLIMIT_FSIZE as usize,
            0,
            limit.as_mut_ptr() as usize,
        )
    })?;
    // SAFETY: the call succeeded, so it was filled.
    let limit = unsafe { limit.assume_init() };
    if bytes > limit.rlim_cur {
        return Err(Errno(libc::EFBIG));
    }
    Ok(())
}

/// Sets the size in bytes; new bytes read as zero and cost no memory until touched. `EFBIG` as
/// [`check_size_limit`] has it.
pub fn set_len(fd: RawFd, bytes: u64) -> Result<(), Errno> {
    check_size_limit(bytes)?;
    let bytes = usize::try_from(bytes).map_err(|_| Errno::INVAL)?;
    // SAFETY: ftruncate takes integers only.
    check(unsafe { syscall2(libc::SYS_ftruncate, int(fd), bytes) }).map(drop)
}

/// Makes room for the first `bytes` of a file, and the file as long as that if it is shorter: no
/// access to a mapping of them faults for want of room later. `EFBIG` as [`check_size_limit`] has
/// it, `ENOSPC` where there is none.
pub fn allocate(fd: RawFd, bytes: u64) -> Result<(), Errno> {
    check_size_limit(bytes)?;
    let bytes = usize::try_from(bytes).map_err(|_| Errno::INVAL)?;
    // SAFETY: fallocate takes integers only.
    check(unsafe { syscall4(libc::SYS_fallocate, int(fd), 0, 0, bytes) }).map(drop)
}

/// Adds seals.
pub fn add_seals(fd: RawFd, seals: u32) -> Result<(), Errno> {
    // SAFETY: F_ADD_SEALS takes an integer.
    let ret = unsafe {
        syscall3(
            libc::SYS_fcntl,
            int(fd),
            int(libc::F_ADD_SEALS),
            seals as usize,
        )
    };
    check(ret).map(drop)
}

/// The seals; `EINVAL` for a descriptor that is not sealable memory.
pub fn seals(fd: RawFd) -> Result<u32, Errno> {
    // SAFETY: F_GET_SEALS takes no further argument.
    let ret = unsafe { syscall3(libc::SYS_fcntl, int(fd), int(libc::F_GET_SEALS), 0) };
    check(ret).map(|seals| seals as u32)
}

/// Size and identity of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FileStat {
    pub bytes: u64,
    /// Of its pages, which may lie beyond its end.
    pub allocated_bytes: u64,
    pub device: u64,
    pub inode: u64,
}

/// `fstat`.
pub fn stat(fd: RawFd) -> Result<FileStat, Errno> {
    let mut stat = MaybeUninit::<libc::stat>::zeroed();
    // SAFETY: the kernel writes one `struct stat`, whose layout libc mirrors for this target.
    check(unsafe { syscall2(libc::SYS_fstat, int(fd), stat.as_mut_ptr() as usize) })?;
    // SAFETY: it was zeroed, which is valid for its integers, and then filled.
    let stat = unsafe { stat.assume_init() };
    Ok(FileStat {
        bytes: u64::try_from(stat.st_size).map_err(|_| Errno::INVAL)?,
        // In units of 512 bytes (inode(7)).
        allocated_bytes: u64::try_from(stat.st_blocks)
            .unwrap_or(u64::MAX)
            .saturating_mul(512),
        device: stat.st_dev,
        inode: stat.st_ino,
    })
}

/// Checks what somebody else passed as memory: a memfd of ordinary pages, of `bytes_min` or more,
/// with all of `seals_wanted`. Returns its size and identity.
///
/// `EINVAL` when any of it is not so. What this accepts stays so, since seals cannot be removed;
/// ask for [`SEAL_SHRINK`] before mapping.
pub fn check_foreign(fd: RawFd, bytes_min: u64, seals_wanted: u32) -> Result<FileStat, Errno> {
    let seals = seals(fd)?;
    let stat = stat(fd)?;
    if seals & seals_wanted != seals_wanted || stat.bytes < bytes_min || is_hugetlb(fd)? {
        return Err(Errno::INVAL);
    }
    Ok(stat)
}

/// Whether a descriptor is memory that takes at most `bytes_max` now, as its size says and as its pages do:
/// `FALLOC_FL_KEEP_SIZE` gives a file pages beyond its end.
pub fn is_small_memory(fd: RawFd, bytes_max: u64) -> bool {
    let takes = |stat: FileStat| stat.bytes.max(stat.allocated_bytes);
    seals(fd).is_ok() && stat(fd).is_ok_and(|stat| takes(stat) <= bytes_max)
}

/// Checks memory that somebody else passed and that nobody can make shorter: a memfd with [`SEAL_SHRINK`], or
/// the memory of a PCI device (a `resource` file of sysfs). Returns its size and identity.
///
/// `EINVAL` when it is neither, or shorter than `bytes_min`.
pub fn check_lasting(fd: RawFd, bytes_min: u64) -> Result<FileStat, Errno> {
    let stat = stat(fd)?;
    if file_system(fd)? != SYSFS_MAGIC {
        return check_foreign(fd, bytes_min, SEAL_SHRINK);
    }
    if stat.bytes < bytes_min {
        return Err(Errno::INVAL);
    }
    Ok(stat)
}

fn is_hugetlb(fd: RawFd) -> Result<bool, Errno> {
    Ok(file_system(fd)? == HUGETLBFS_MAGIC)
}

/// The magic number of the file system that a file lies in.
fn file_system(fd: RawFd) -> Result<i64, Errno> {
    let mut stat = MaybeUninit::<libc::statfs>::zeroed();
    // SAFETY: the kernel writes one `struct statfs`, whose layout libc mirrors for this target.
    check(unsafe { syscall2(libc::SYS_fstatfs, int(fd), stat.as_mut_ptr() as usize) })?;
    // SAFETY: it was zeroed, which is valid for its integers, and then filled.
    let stat = unsafe { stat.assume_init() };
    Ok(stat.f_type)
}

/// `pread`: copies at most `buffer.len()` bytes; fewer at the end of the file.
pub fn read_at(fd: RawFd, buffer: &mut [u8], offset: u64) -> Result<usize, Errno> {
    // SAFETY: the kernel writes at most `buffer.len()` bytes into `buffer`.
    let ret = unsafe {
        syscall4(
            libc::SYS_pread64,
            int(fd),
            buffer.as_mut_ptr() as usize,
            buffer.len(),
            offset as usize,
        )
    };
    check(ret)
}

/// `pwrite` of all of `bytes`; `EIO` when the kernel took only a part, `EFBIG` as
/// [`check_size_limit`] has it.
pub fn write_at(fd: RawFd, bytes: &[u8], offset: u64) -> Result<(), Errno> {
    check_size_limit(offset.saturating_add(bytes.len() as u64))?;
    // SAFETY: the kernel reads `bytes.len()` bytes from `bytes`.
    let ret = unsafe {
        syscall4(
            libc::SYS_pwrite64,
            int(fd),
            bytes.as_ptr() as usize,
            bytes.len(),
            offset as usize,
        )
    };
    match check(ret)? {
        written if written == bytes.len() => Ok(()),
        _ => Err(Errno(libc::EIO)),
    }
}

/// Gives the memory of a range back; it reads as zero afterwards.
pub fn punch_hole(fd: RawFd, offset: u64, bytes: u64) -> Result<(), Errno> {
    let mode = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE;
    // SAFETY: fallocate takes integers only; mappings of the range see zero bytes.
    let ret = unsafe {
        syscall4(
            libc::SYS_fallocate,
            int(fd),
            int(mode),
            offset as usize,
            bytes as usize,
        )
    };
    check(ret).map(drop)
}

/// Bytes of the page that a [`SharedWord`] maps.
pub const WORD_PAGE_BYTES: usize = 4096;

/// The first 32-bit word of a shared page, mapped: a flag between two processes.
#[derive(Debug)]
pub struct SharedWord {
    page: *mut u32,
}

// SAFETY: the page is only reached by atomic operations, from any thread, until the drop.
unsafe impl Send for SharedWord {}
// SAFETY: threads that share it reach the page by atomic operations alone, and the drop needs it whole.
unsafe impl Sync for SharedWord {}

impl SharedWord {
    /// Maps the first page of `fd`. The descriptor may be closed afterwards.
    ///
    /// `EINVAL` unless `fd` is a memfd of at least a page with [`SEAL_SHRINK`]: otherwise its
    /// owner could turn every later access into `SIGBUS`.
    pub fn map(fd: RawFd) -> Result<SharedWord, Errno> {
        check_foreign(fd, WORD_PAGE_BYTES as u64, SEAL_SHRINK)?;
        let protection = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: a new shared mapping at a place of the kernel's choice replaces none of ours.
        let ret = unsafe {
            syscall6(
                libc::SYS_mmap,
                0,
                WORD_PAGE_BYTES,
                int(protection),
                int(libc::MAP_SHARED),
                int(fd),
                0,
            )
        };
        check(ret).map(|page| SharedWord {
            page: page as *mut u32,
        })
    }

    /// Stores `value` and returns what was there, as one step that orders all memory accesses.
    pub fn swap(&self, value: u32) -> u32 {
        self.word().swap(value, Ordering::SeqCst)
    }

    /// Reads the word; orders what follows after it.
    pub fn load(&self) -> u32 {
        self.word().load(Ordering::Acquire)
    }

    fn word(&self) -> &AtomicU32 {
        // SAFETY: `page` is page-aligned and mapped until the drop; the seal checked in `map`
        // keeps it backed. It is memory of another process too, but any value is a valid u32 and
        // it is reached by atomics only.
        unsafe { AtomicU32::from_ptr(self.page) }
    }
}

impl Drop for SharedWord {
    fn drop(&mut self) {
        // SAFETY: unmaps exactly what `map` mapped; `word` borrows `self`, so no reference is
        // left.
        let _ = unsafe { syscall2(libc::SYS_munmap, self.page as usize, WORD_PAGE_BYTES) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sealed(bytes: u64, seals: u32) -> Fd {
        let fd = create(c"sluice-test").unwrap();
        set_len(fd.raw(), bytes).unwrap();
        add_seals(fd.raw(), seals).unwrap();
        fd
    }

    #[test]
    fn written_bytes_are_read_back_and_holes_are_zero() {
        let fd = sealed(16384, SEAL_SHRINK | SEAL_GROW);
        write_at(fd.raw(), b"hello", 4096).unwrap();
        let mut buffer = [0; 5];
        assert_eq!(read_at(fd.raw(), &mut buffer, 4096), Ok(5));
        assert_eq!(&buffer, b"hello");
        punch_hole(fd.raw(), 4096, 4096).unwrap();
        read_at(fd.raw(), &mut buffer, 4096).unwrap();
        assert_eq!(buffer, [0; 5]);
        assert_eq!(stat(fd.raw()).unwrap().bytes, 16384);
    }

    #[test]
    fn memory_is_as_large_as_its_size_and_its_pages_say() {
        let fd = sealed(4096, SEAL_SHRINK | SEAL_GROW);
        assert!(is_small_memory(fd.raw(), 4096));
        assert!(!is_small_memory(fd.raw(), 4095));
        // Pages beyond the end, which the size does not tell of.
        let more = create(c"sluice-test").unwrap();
        let keep = libc::FALLOC_FL_KEEP_SIZE;
        // SAFETY: fallocate takes integers only.
        assert_eq!(unsafe { libc::fallocate(more.raw(), keep, 0, 1 << 20) }, 0);
        add_seals(more.raw(), SEAL_SHRINK | SEAL_GROW).unwrap();
        assert_eq!(stat(more.raw()).unwrap().bytes, 0);
        assert!(!is_small_memory(more.raw(), 1 << 19));
        assert!(is_small_memory(more.raw(), 1 << 20));
        // What is no memory is none however small.
        let socket = crate::unix::seqpacket().unwrap();
        assert!(!is_small_memory(socket.raw(), u64::MAX));
    }

    #[test]
    fn limit_of_file_sizes_is_an_error_and_no_signal() {
        let _children = crate::testing::with_children();
        let fd = create(c"sluice-test").unwrap();
        // SAFETY: the child makes system calls only, and ends without running anything of ours.
        let child = unsafe { libc::fork() };
        if child == 0 {
            let limit = libc::rlimit {
                rlim_cur: 4096,
                rlim_max: 4096,
            };
            // SAFETY: setrlimit reads one struct.
            unsafe { libc::setrlimit(libc::RLIMIT_FSIZE, &raw const limit) };
            let too_big = Err(Errno(libc::EFBIG));
            let is_right = set_len(fd.raw(), 8192) == too_big
                && write_at(fd.raw(), b"x", 4096) == too_big
                && set_len(fd.raw(), 4096) == Ok(())
                && write_at(fd.raw(), b"x", 4095) == Ok(());
            // SAFETY: ends the child.
            unsafe { libc::_exit(if is_right { 0 } else { 1 }) };
        }
        let mut status = -1;
        // SAFETY: waitpid writes one integer.
        assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
        assert_eq!(status, 0);
    }

    #[test]
    fn seals_hold() {
        let fd = sealed(8192, SEAL_SHRINK | SEAL_GROW | SEAL_FUTURE_WRITE);
        assert_eq!(set_len(fd.raw(), 4096), Err(Errno(libc::EPERM)));
        assert_eq!(set_len(fd.raw(), 16384), Err(Errno(libc::EPERM)));
        assert_eq!(write_at(fd.raw(), b"x", 0), Err(Errno(libc::EPERM)));
    }

    #[test]
    fn foreign_memory_is_checked() {
        let good = sealed(4096, SEAL_SHRINK);
        assert!(check_foreign(good.raw(), 4096, SEAL_SHRINK).is_ok());
        assert!(check_lasting(good.raw(), 4096).is_ok());
        assert_eq!(check_lasting(good.raw(), 4097), Err(Errno::INVAL));
        assert_eq!(
            check_foreign(good.raw(), 4097, SEAL_SHRINK),
            Err(Errno::INVAL)
        );
        assert_eq!(check_foreign(good.raw(), 1, SEAL_GROW), Err(Errno::INVAL));
        let null = std::fs::File::open("/dev/null").unwrap();
        let raw = std::os::fd::AsRawFd::as_raw_fd(&null);
        assert_eq!(check_foreign(raw, 0, 0), Err(Errno::INVAL));
    }

    #[test]
    fn a_word_is_shared_and_needs_the_seal() {
        let fd = sealed(4096, SEAL_SHRINK);
        let (a, b) = (
            SharedWord::map(fd.raw()).unwrap(),
            SharedWord::map(fd.raw()).unwrap(),
        );
        assert_eq!(a.swap(1), 0);
        assert_eq!(b.load(), 1);
        assert_eq!(b.swap(0), 1);
        assert_eq!(a.load(), 0);
        let shrinkable = sealed(4096, 0);
        assert_eq!(SharedWord::map(shrinkable.raw()).unwrap_err(), Errno::INVAL);
    }
}
