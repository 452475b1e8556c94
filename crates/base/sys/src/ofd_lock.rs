//! Locks of an open file description (fcntl(2), "Open file description locks"), as a sign that some
//! process still has a part of a file mapped.
//!
//! Such a lock ends with the last reference to its description, and a mapping is one (mmap(2): it goes
//! on when the descriptor is closed), also in forked children, and in a message that nobody has received. So
//! whoever opens a file anew, locks a range of it and gives the descriptor away can later ask from
//! another description whether everybody has let go of it: the kernel notes the end of every
//! process, and nobody has to say anything.
#![allow(unsafe_code)]

use core::ffi::CStr;
use core::ops::Range;
use std::io::Write as _;
use std::os::fd::RawFd;

use crate::errno::Errno;
use crate::raw::{check, int, syscall3, syscall4};
use crate::unix::Fd;

/// Bytes of `/proc/self/fd/` and a number, with the zero behind it.
const PATH_BYTES_MAX: usize = 32;

/// Opens what `fd` names again, for reading and writing: another description, whose locks are its own.
/// Close-on-exec.
///
/// # Errors
/// Those of open(2): `ENOENT` where no `/proc` is mounted, `EACCES` where the file or this process's
/// `/proc/self/fd` is not for this user.
pub fn reopen(fd: RawFd) -> Result<Fd, Errno> {
    let mut path = [0_u8; PATH_BYTES_MAX];
    // A number of at most eleven characters: it fits, with its zero.
    let _ = write!(&mut path[..PATH_BYTES_MAX - 1], "/proc/self/fd/{fd}");
    let path = CStr::from_bytes_until_nul(&path).map_err(|_| Errno::INVAL)?;
    // SAFETY: the kernel reads the zero-terminated path.
    let ret = unsafe {
        syscall4(
            libc::SYS_openat,
            int(libc::AT_FDCWD),
            path.as_ptr() as usize,
            int(libc::O_RDWR | libc::O_CLOEXEC),
            0,
        )
    };
    check(ret).map(|fd| Fd::own(fd as RawFd))
}

/// Locks a range for the description of `fd`, beside others that do so too.
///
/// # Errors
/// `EAGAIN` if somebody has it alone, `EINVAL` for a range that ends beyond 2^63, `ENOLCK` without memory.
pub fn share(fd: RawFd, range: &Range<u64>) -> Result<(), Errno> {
    let mut lock = lock(libc::F_RDLCK, range)?;
    fcntl(fd, libc::F_OFD_SETLK, &mut lock)
}

/// A range that another description than that of `fd` has locked and that lies, at least partly, in this
/// one. If there are several, it is any of them.
///
/// # Errors
/// `EINVAL` as [`share`].
pub fn held(fd: RawFd, range: &Range<u64>) -> Result<Option<Range<u64>>, Errno> {
    let mut lock = lock(libc::F_WRLCK, range)?;
    fcntl(fd, libc::F_OFD_GETLK, &mut lock)?;
    if i32::from(lock.l_type) == libc::F_UNLCK {
        return Ok(None);
    }
    let start = u64::try_from(lock.l_start).map_err(|_| Errno::INVAL)?;
    let bytes = u64::try_from(lock.l_len).map_err(|_| Errno::INVAL)?;
    // Zero bytes are all up to the end.
    let end = if bytes == 0 { u64::MAX } else { start + bytes };
    Ok(Some(start..end))
}

/// All ranges in this one that others have locked, each once, at most `count_max` of them, in order of their
/// starts where they do not overlap.
///
/// # Errors
/// As [`held`].
pub fn all_held(fd: RawFd, range: Range<u64>, count_max: usize) -> Result<Vec<Range<u64>>, Errno> {
    let mut all = Vec::new();
    // What is to be looked at, the last one first.
    let mut parts = vec![range];
    while let Some(part) = parts.pop().filter(|_| all.len() < count_max) {
        let Some(found) = held(fd, &part)? else {
            continue;
        };
        let (before, after) = (part.start..found.start, found.end..part.end);
        parts.extend([after, before].into_iter().filter(|it| it.start < it.end));
        all.push(found);
    }
    all.sort_by_key(|found| found.start);
    Ok(all)
}

fn lock(kind: i32, range: &Range<u64>) -> Result<libc::flock64, Errno> {
    let bytes = range.end.checked_sub(range.start).ok_or(Errno::INVAL)?;
    // Zero would be everything up to the file's end.
    let bytes = libc::off64_t::try_from(bytes).map_err(|_| Errno::INVAL)?;
    if bytes == 0 {
        return Err(Errno::INVAL);
    }
    Ok(libc::flock64 {
        l_type: kind as i16,
        l_whence: libc::SEEK_SET as i16,
        l_start: libc::off64_t::try_from(range.start).map_err(|_| Errno::INVAL)?,
        l_len: bytes,
        // The kernel takes no other.
        l_pid: 0,
    })
}

fn fcntl(fd: RawFd, command: i32, lock: &mut libc::flock64) -> Result<(), Errno> {
    // SAFETY: the kernel reads and writes one `struct flock64`, whose layout libc mirrors for this target.
    let ret = unsafe {
        syscall3(
            libc::SYS_fcntl,
            int(fd),
            int(command),
            (&raw mut *lock) as usize,
        )
    };
    check(ret).map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mapping::{Access, Mapping};
    use crate::memfd;

    const PAGE: u64 = 4096;

    fn memory() -> Fd {
        let fd = memfd::create(c"sluice-test").unwrap();
        memfd::set_len(fd.raw(), 8 * PAGE).unwrap();
        fd
    }

    #[test]
    fn a_mapping_holds_its_range_when_the_descriptor_is_closed() {
        let _no_children = crate::testing::without_children();
        let memory = memory();
        let range = PAGE..3 * PAGE;
        let again = reopen(memory.raw()).unwrap();
        share(again.raw(), &range).unwrap();
        let bytes = 2 * PAGE as usize;
        let mapping = Mapping::shared(again.raw(), bytes, Access::ReadWrite).unwrap();
        drop(again);
        assert_eq!(held(memory.raw(), &(0..8 * PAGE)), Ok(Some(range.clone())));
        assert_eq!(held(memory.raw(), &(2 * PAGE..3 * PAGE)), Ok(Some(range)));
        assert_eq!(held(memory.raw(), &(3 * PAGE..8 * PAGE)), Ok(None));
        drop(mapping);
        assert_eq!(held(memory.raw(), &(0..8 * PAGE)), Ok(None));
    }

    #[test]
    fn a_range_is_held_until_the_last_of_several_lets_go() {
        let _no_children = crate::testing::without_children();
        let memory = memory();
        let all = 0..8 * PAGE;
        let two = [(); 2].map(|()| reopen(memory.raw()).unwrap());
        for one in &two {
            share(one.raw(), &(0..PAGE)).unwrap();
        }
        let [first, second] = two;
        drop(first);
        assert_eq!(held(memory.raw(), &all), Ok(Some(0..PAGE)));
        drop(second);
        assert_eq!(held(memory.raw(), &all), Ok(None));
    }

    #[test]
    fn ranges_that_several_hold_are_named_once_each() {
        let _no_children = crate::testing::without_children();
        let memory = memory();
        let ranges = [5 * PAGE..6 * PAGE, 0..PAGE, PAGE..3 * PAGE, 0..PAGE];
        let all: Vec<Fd> = ranges
            .iter()
            .map(|range| {
                let fd = reopen(memory.raw()).unwrap();
                share(fd.raw(), range).unwrap();
                fd
            })
            .collect();
        let seen = |range, count| all_held(memory.raw(), range, count).unwrap();
        let wanted = [0..PAGE, PAGE..3 * PAGE, 5 * PAGE..6 * PAGE];
        assert_eq!(seen(0..8 * PAGE, 9), wanted);
        assert_eq!(seen(PAGE..5 * PAGE, 9), wanted[1..2]);
        assert_eq!(seen(0..8 * PAGE, 2).len(), 2);
        drop(all);
        assert!(seen(0..8 * PAGE, 9).is_empty());
    }

    #[test]
    fn a_range_that_is_none_is_refused() {
        let memory = memory();
        #[allow(clippy::reversed_empty_ranges)]
        for range in [5..5, 6..5, 0..u64::MAX, u64::MAX - 1..u64::MAX] {
            assert_eq!(share(memory.raw(), &range), Err(Errno::INVAL), "{range:?}");
            assert_eq!(held(memory.raw(), &range), Err(Errno::INVAL), "{range:?}");
        }
    }

    #[test]
    fn a_descriptor_that_is_closed_cannot_be_opened_again() {
        assert_eq!(reopen(-1).unwrap_err(), Errno(libc::ENOENT));
    }
}
