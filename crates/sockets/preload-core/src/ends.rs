//! The end table of this process: made with its first connection, and given to sluiced as a file.
#![allow(unsafe_code)]

use crate::{memory, this_process};
use core::ptr::NonNull;
use core::sync::atomic::{AtomicI32, AtomicPtr, Ordering};
use sluice_lane::end::End;
use sluice_lane::lock::threads;
use sluice_lane::table::{ENDS, EndTable, HEADER_BYTES, table_bytes};
use sluice_shmem::mapping::{Access, Mapping};
use sluice_sys::errno::Errno;
use sluice_sys::memfd::{self, SEAL_FUTURE_WRITE, SEAL_GROW, SEAL_SHRINK};
use sluice_sys::unix::Fd;

static TABLE: AtomicPtr<u8> = AtomicPtr::new(core::ptr::null_mut());
/// The end table's file, until sluiced has got it; -1 afterwards.
static TABLE_FILE: AtomicI32 = AtomicI32::new(-1);
/// For each record a descriptor that names it (hints).
static FD_OF_END: AtomicPtr<AtomicI32> = AtomicPtr::new(core::ptr::null_mut());

/// A process that may have less address space than this (`ulimit -v`) gets no lanes. The end table
/// takes 20 MiB, and the first chunk 32.
const ADDRESS_BYTES_MIN: u64 = 256 << 20;

/// The end table of this process, once it has one.
#[inline]
pub fn table() -> Option<EndTable> {
    // SAFETY: the address was stored by `make_table` and stays mapped.
    NonNull::new(TABLE.load(Ordering::Acquire)).map(|base| unsafe { EndTable::from_raw(base) })
}

/// Whether the process may have so little address space that tables and rings could take what the
/// program needs: it would fail where it runs without the library.
fn is_short_of_addresses() -> bool {
    let mut limit = libc::rlimit {
        rlim_cur: libc::RLIM_INFINITY,
        rlim_max: libc::RLIM_INFINITY,
    };
    // SAFETY: getrlimit writes one struct.
    unsafe { libc::getrlimit(libc::RLIMIT_AS, &raw mut limit) };
    limit.rlim_cur < ADDRESS_BYTES_MIN
}

/// The table, made if there is none yet. Without memory for it there is none.
pub fn make_table() -> Option<EndTable> {
    if let Some(table) = table() {
        return Some(table);
    }
    if is_short_of_addresses() {
        return None;
    }
    let hints = memory::zeroed(ENDS as usize * size_of::<AtomicI32>())?;
    // Before there are locks that forks share.
    threads::share();
    let (made, file) = new_table().ok()?;
    FD_OF_END.store(hints.as_ptr().cast(), Ordering::Relaxed);
    // SAFETY: record 0 lies behind the header of a table that was just made.
    let base = unsafe {
        (made.end(0) as *const End)
            .cast::<u8>()
            .sub(HEADER_BYTES)
            .cast_mut()
    };
    match TABLE.compare_exchange(
        core::ptr::null_mut(),
        base,
        Ordering::AcqRel,
        Ordering::Acquire,
    ) {
        Ok(_) => {
            TABLE_FILE.store(file.into_raw(), Ordering::Release);
            Some(made)
        }
        // Another thread was faster; its table counts, this one's address space is lost.
        Err(_) => table(),
    }
}

/// The end table's file for the hello to sluiced; an empty one if it was given away before
/// (in forked children, whose parent's table has it all, and after a lost daemon). Whether it is
/// the table itself is the second value.
pub fn table_file() -> Result<(Fd, bool), Errno> {
    // A server meets sluiced before it has a connection. Made later, the table would never be
    // seen, and its file would stay open among the program's descriptors.
    let _ = make_table();
    match TABLE_FILE.swap(-1, Ordering::AcqRel) {
        -1 => {
            let file = memfd::create(c"sluice-ends")?;
            memfd::set_len(file.raw(), table_bytes() as u64)?;
            memfd::add_seals(file.raw(), SEAL_SHRINK | SEAL_GROW | SEAL_FUTURE_WRITE)?;
            Ok((file, false))
        }
        fd => Ok((Fd::own(fd), true)),
    }
}

/// Maps memory for an end table of its own, and keeps the file for the hello.
fn new_table() -> Result<(EndTable, Fd), Errno> {
    let file = memfd::create(c"sluice-ends")?;
    memfd::set_len(file.raw(), table_bytes() as u64)?;
    let mapping = Mapping::shared(file.raw(), table_bytes(), Access::ReadWrite)?;
    memfd::add_seals(file.raw(), SEAL_SHRINK | SEAL_GROW | SEAL_FUTURE_WRITE)?;
    // SAFETY: new zeroed memory of the table's size, leaked.
    let table = unsafe { EndTable::from_raw(mapping.leak()) };
    table.describe(this_process::pid());
    Ok((table, file))
}

/// Notes that the descriptor names the record.
pub fn hint(index: u32, fd: i32) {
    let hints = FD_OF_END.load(Ordering::Relaxed);
    if !hints.is_null() && index < ENDS {
        // SAFETY: `index` is below the number of hints, which are never unmapped.
        unsafe { &*hints.add(index as usize) }.store(fd, Ordering::Relaxed);
    }
}

/// A descriptor that named the record when that was noted.
pub fn hinted(index: u32) -> Option<i32> {
    let hints = FD_OF_END.load(Ordering::Relaxed);
    if hints.is_null() || index >= ENDS {
        return None;
    }
    // SAFETY: `index` is below the number of hints, which are never unmapped.
    Some(unsafe { &*hints.add(index as usize) }.load(Ordering::Relaxed))
}
