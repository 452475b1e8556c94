//! The program's memory: the few places where the engine itself touches it.
#![allow(unsafe_code)]

use sluice_sys::errno::Errno;
use sluice_sys::raw;
use sluice_verbs_model::error::{Error, Result};
use sluice_verbs_model::types::Sge;

const PAGE: u64 = 4096;
const MADV_POPULATE_READ: usize = 22;
const MADV_POPULATE_WRITE: usize = 23;

/// Copies inline data, as the caller of `ibv_post_send` promises that it may be read.
pub(crate) fn gather(pieces: &[Sge], into: &mut [u8]) {
    let mut at = 0;
    for piece in pieces {
        let len = (piece.length as usize).min(into.len() - at);
        // SAFETY: the program's own pieces: by the contract of ibv_post_send they are readable
        // during the call, as for memcpy. `into` is ours and has `len` bytes from `at` on. They
        // may not overlap, because `into` is the engine's private buffer.
        unsafe {
            core::ptr::copy_nonoverlapping(piece.addr as *const u8, into.as_mut_ptr().add(at), len);
        }
        at += len;
    }
}

/// Copies bytes to checked and pinned pieces of registered memory. The caller has seen to it that
/// they fit.
pub(crate) fn scatter(pieces: &[Sge], offset: u64, mut bytes: &[u8]) {
    let mut skip = offset;
    for piece in pieces {
        let len = u64::from(piece.length);
        if skip >= len {
            skip -= len;
            continue;
        }
        let now = bytes.len().min((len - skip) as usize);
        // SAFETY: the piece was looked up in the key table with the right to write, and is
        // pinned until the receive is completed, so the region is registered: the program keeps
        // it mapped. Raw pointers, because the program may touch it at the same time.
        unsafe {
            core::ptr::copy(bytes.as_ptr(), (piece.addr + skip) as *mut u8, now);
        }
        bytes = &bytes[now..];
        skip = 0;
        if bytes.is_empty() {
            return;
        }
    }
}

/// Looks whether a range is the program's memory, as a registration with hardware would: brings
/// its pages in, for writing if so wished.
pub(crate) fn populate(addr: u64, len: u64, write: bool) -> Result<()> {
    let start = addr & !(PAGE - 1);
    let end = addr
        .checked_add(len)
        .and_then(|end| end.checked_next_multiple_of(PAGE))
        .ok_or(Error::BadRegion)?;
    let advice = if write {
        MADV_POPULATE_WRITE
    } else {
        MADV_POPULATE_READ
    };
    match advise(start, end, advice) {
        Ok(()) => Ok(()),
        // Not writable, unless reading is refused in the same way: then it is a kernel before
        // 5.14, or memory of a device, which has no pages to bring in.
        Err(Errno::INVAL) if write && advise(start, end, MADV_POPULATE_READ).is_ok() => {
            Err(Error::BadAddress)
        }
        Err(Errno::INVAL) => Ok(()),
        Err(_) => Err(Error::BadAddress),
    }
}

/// Pages that one look of [`is_there`] takes in: 16 MiB.
const LOOK_PAGES: u64 = 4096;

/// Looks whether a range is the program's memory without bringing it in, for regions whose pages
/// come on demand: all of it is mapped, and its ends may be used as wished.
pub(crate) fn is_there(addr: u64, len: u64, write: bool) -> Result<()> {
    let last = len
        .checked_sub(1)
        .and_then(|more| addr.checked_add(more))
        .ok_or(Error::BadRegion)?;
    let (mut start, end) = (addr & !(PAGE - 1), last & !(PAGE - 1));
    let mut residence = [0_u8; LOOK_PAGES as usize];
    while start <= end {
        let pages = ((end - start) / PAGE + 1).min(LOOK_PAGES);
        // SAFETY: a byte is written for each page, of which there are no more than bytes.
        let ret = unsafe {
            raw::syscall3(
                libc::SYS_mincore,
                start as usize,
                (pages * PAGE) as usize,
                residence.as_mut_ptr() as usize,
            )
        };
        match raw::check(ret) {
            Ok(_) => start += pages * PAGE,
            Err(Errno::INTR | Errno::AGAIN) => {}
            // Not mapped (mincore(2)).
            Err(_) => return Err(Error::BadAddress),
        }
    }
    populate(addr, 1, write)?;
    populate(last, 1, write)
}

fn advise(start: u64, end: u64, advice: usize) -> Result<(), Errno> {
    loop {
        // SAFETY: this advice changes no byte and no mapping (madvise(2)); the kernel checks
        // the range.
        let ret = unsafe {
            raw::syscall6(
                libc::SYS_madvise,
                start as usize,
                (end - start) as usize,
                advice,
                0,
                0,
                0,
            )
        };
        match raw::check(ret) {
            Err(Errno::INTR | Errno::AGAIN) => continue,
            answer => return answer.map(|_| ()),
        }
    }
}
