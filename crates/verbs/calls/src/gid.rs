//! The tables of a port: addresses (GIDs) and partition keys.

use std::ffi::c_int;
use std::ptr;

use sluice_verbs::device::GidEntry;

use super::context::Context;
use super::objects::number;
use crate::errno::minus_one;
use crate::ffi::*;

pub unsafe extern "C" fn ibv_query_gid(
    context: *mut ibv_context,
    port: u8,
    index: c_int,
    gid: *mut ibv_gid,
) -> c_int {
    let Ok(index) = u32::try_from(index) else {
        return minus_one(libc::EINVAL);
    };
    // SAFETY: the header's contract.
    match unsafe { Context::of(context) }
        .engine
        .device()
        .gid(port, index)
    {
        Ok(entry) => {
            // SAFETY: the header's contract.
            unsafe { gid.write(ibv_gid { raw: entry.gid.0 }) };
            0
        }
        Err(error) => minus_one(number(error)),
    }
}

fn c_entry(port: u32, index: u32, entry: &GidEntry) -> ibv_gid_entry {
    ibv_gid_entry {
        gid: ibv_gid { raw: entry.gid.0 },
        gid_index: index,
        port_num: port,
        gid_type: entry.gid_type,
        ndev_ifindex: entry.ndev_ifindex,
    }
}

/// # Safety
/// `to` has `size` bytes.
unsafe fn write_entry(to: *mut u8, size: usize, entry: &ibv_gid_entry) {
    let known = size_of::<ibv_gid_entry>().min(size);
    // SAFETY: the caller's contract.
    unsafe {
        ptr::write_bytes(to, 0, size);
        ptr::copy_nonoverlapping(ptr::from_ref(entry).cast::<u8>(), to, known);
    }
}

pub unsafe extern "C" fn ibv_query_gid_ex(
    context: *mut ibv_context,
    port: u32,
    index: u32,
    entry: *mut ibv_gid_entry,
    flags: u32,
    entry_size: usize,
) -> c_int {
    let Ok(short_port) = u8::try_from(port) else {
        return libc::EINVAL;
    };
    if flags != 0 {
        return libc::EOPNOTSUPP;
    }
    // SAFETY: the header's contract.
    let device = unsafe { Context::of(context) }.engine.device();
    match device.gid(short_port, index) {
        Ok(found) if found.gid.is_zero() => libc::ENODATA,
        Ok(found) => {
            // SAFETY: the header's contract.
            unsafe { write_entry(entry.cast(), entry_size, &c_entry(port, index, &found)) };
            0
        }
        Err(error) => number(error),
    }
}

/// The kind of an entry, as sysfs counts kinds: 1 is RoCEv2. Not in the header; `ibv_devinfo` asks.
pub unsafe extern "C" fn ibv_query_gid_type(
    context: *mut ibv_context,
    port: u8,
    index: u32,
    gid_type: *mut u32,
) -> c_int {
    // SAFETY: the header's contract, as for ibv_query_gid.
    match unsafe { Context::of(context) }
        .engine
        .device()
        .gid(port, index)
    {
        Ok(entry) => {
            let sysfs_type = u32::from(entry.gid_type == IBV_GID_TYPE_ROCE_V2);
            // SAFETY: the header's contract: `gid_type` is a place for the answer.
            unsafe { *gid_type = sysfs_type };
            0
        }
        Err(error) => minus_one(number(error)),
    }
}

/// Returns the number of entries, or a negative error number. Entries without an address are left
/// out.
pub unsafe extern "C" fn ibv_query_gid_table(
    context: *mut ibv_context,
    entries: *mut ibv_gid_entry,
    entries_max: usize,
    flags: u32,
    entry_size: usize,
) -> isize {
    const PORT: u32 = 1;
    if flags != 0 || entry_size == 0 {
        return -(libc::EOPNOTSUPP as isize);
    }
    // SAFETY: the header's contract.
    let table = unsafe { Context::of(context) }.engine.device().gid_table();
    let known = table
        .iter()
        .zip(0_u32..)
        .filter(|(entry, _)| !entry.gid.is_zero());
    let mut written = 0;
    for (entry, index) in known {
        if written == entries_max {
            return -(libc::EINVAL as isize);
        }
        let to = entries.cast::<u8>().wrapping_add(written * entry_size);
        // SAFETY: the header's contract: room for entries_max entries of entry_size bytes.
        unsafe { write_entry(to, entry_size, &c_entry(PORT, index, entry)) };
        written += 1;
    }
    written as isize
}

pub unsafe extern "C" fn ibv_query_pkey(
    context: *mut ibv_context,
    port: u8,
    index: c_int,
    pkey: *mut u16,
) -> c_int {
    let Ok(index) = u32::try_from(index) else {
        return minus_one(libc::EINVAL);
    };
    // SAFETY: the header's contract.
    match unsafe { Context::of(context) }
        .engine
        .device()
        .pkey(port, index)
    {
        Ok(found) => {
            // SAFETY: the header's contract.
            unsafe { *pkey = found };
            0
        }
        Err(error) => minus_one(number(error)),
    }
}

/// The index of a key in network byte order, or -1.
pub unsafe extern "C" fn ibv_get_pkey_index(
    context: *mut ibv_context,
    port: u8,
    pkey: u16,
) -> c_int {
    // SAFETY: the header's contract.
    let device = unsafe { Context::of(context) }.engine.device();
    let length = match device.port_attr(port) {
        Ok(attr) => u32::from(attr.pkey_tbl_len),
        Err(error) => return minus_one(number(error)),
    };
    (0..length)
        .find(|index| device.pkey(port, *index) == Ok(pkey))
        .map_or_else(|| minus_one(libc::EINVAL), |index| index as c_int)
}
