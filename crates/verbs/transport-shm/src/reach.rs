//! One-sided operations that the initiator carries out itself: by memory that both processes
//! map, or through the kernel.
//!
//! Only what passes every check is done here. Whatever does not is sent to the owner, who
//! refuses it with the proper reason, or carries it out when it can be reached no other way.
#![allow(unsafe_code)]

use core::sync::atomic::{AtomicU64, Ordering};

use sluice_shmem::verbs::copy;
use sluice_shmem::verbs::directory::{Directory, KeyEntry, QpEntry};
use sluice_verbs::{SendDone, Wqe, WrOpcode, access};

use crate::foreign::Foreign;
use crate::link::Outgoing;
use sluice_transport::pieces;

/// How the memory behind a key can be reached from this process.
enum Way<'a> {
    /// Mapped here.
    Mapped(*mut u8),
    /// In the peer's address space.
    Foreign(&'a Foreign, u64),
}

/// The two ends of a one-sided operation.
#[derive(Clone, Copy, Debug)]
pub struct Ends {
    pub own_qpn: u32,
    pub peer_qpn: u32,
    /// The peer's place in its directory.
    pub peer_slot: usize,
    /// The peer's memory is our own.
    pub same_process: bool,
}

/// The right that an operation needs; None for what is not one-sided.
pub fn right(opcode: WrOpcode) -> Option<u32> {
    match opcode {
        WrOpcode::RdmaWrite | WrOpcode::RdmaWriteWithImm => Some(access::REMOTE_WRITE),
        WrOpcode::RdmaRead => Some(access::REMOTE_READ),
        WrOpcode::AtomicCmpAndSwp | WrOpcode::AtomicFetchAndAdd => Some(access::REMOTE_ATOMIC),
        _ => None,
    }
}

/// Carries the operation out, if it is allowed and the memory can be reached. None: the owner
/// must see the request; nothing was written.
pub fn direct(link: &Outgoing, ends: &Ends, wqe: &Wqe<'_>) -> Option<SendDone> {
    let directory = &link.peer.directory;
    let right = right(wqe.wr.opcode)?;
    // The peer's queue pair is looked at again below. Without bytes this look is all there is.
    open_end(directory, ends, right)?;
    if wqe.length == 0 {
        return Some(SendDone::ok(0));
    }
    let slot = directory.find_key(wqe.wr.rkey)?;
    link.with_hazard(slot, ends.own_qpn, || {
        // Who destroys it makes it invisible first, and then waits for what is announced.
        let peer = open_end(directory, ends, right)?;
        let key = directory.key(slot, wqe.wr.rkey)?;
        if key.pd != peer.pd
            || key.access & right == 0
            || (key.qpn != 0 && key.qpn != ends.peer_qpn)
        {
            return None;
        }
        let offset = wqe.wr.remote_addr.checked_sub(key.iova)?;
        if offset.checked_add(wqe.length)? > key.len {
            return None;
        }
        let way = way(link, ends, &key, offset, wqe.length)?;
        // SAFETY: the engine checked the local pieces; `way` leads to `wqe.length` bytes that
        // the key opens, which stay registered while the slot is announced.
        unsafe { carry_out(wqe, way) }
    })
}

/// The peer's queue pair, if it is connected to ours and lets it do this.
fn open_end(directory: &Directory, ends: &Ends, right: u32) -> Option<QpEntry> {
    let peer = directory.qp(ends.peer_slot)?;
    let open = peer.qpn == ends.peer_qpn
        && peer.receives
        && peer.peer_qpn == ends.own_qpn
        && peer.access & right != 0;
    open.then_some(peer)
}

fn way<'a>(
    link: &'a Outgoing,
    ends: &Ends,
    key: &KeyEntry,
    offset: u64,
    len: u64,
) -> Option<Way<'a>> {
    if ends.same_process {
        let address = key.address.checked_add(offset)?;
        return Some(Way::Mapped(address as *mut u8));
    }
    if key.region != 0
        && let Some(region) = link.peer.region(key.region)
    {
        let start = key.region_offset.checked_add(offset)?;
        if start.checked_add(len)? > region.bytes() as u64 {
            return None;
        }
        return Some(Way::Mapped(
            region.base().as_ptr().wrapping_add(start as usize),
        ));
    }
    let memory = link.peer.memory.as_ref()?;
    Some(Way::Foreign(memory, key.address.checked_add(offset)?))
}

/// # Safety
/// The local pieces are valid, and so is `way` for `wqe.length` bytes.
unsafe fn carry_out(wqe: &Wqe<'_>, way: Way<'_>) -> Option<SendDone> {
    let sges = wqe.wr.sges;
    match (wqe.wr.opcode, way) {
        (WrOpcode::RdmaWrite | WrOpcode::RdmaWriteWithImm, Way::Mapped(mut target)) => {
            for piece in sges {
                let len = piece.length as usize;
                // SAFETY: the caller's promise; the pieces add up to the checked length.
                unsafe { copy::ascending(target, piece.addr as *const u8, len) };
                target = target.wrapping_add(len);
            }
        }
        (WrOpcode::RdmaRead, Way::Mapped(source)) => {
            let mut source = source.cast_const();
            for piece in sges {
                let len = piece.length as usize;
                // SAFETY: the caller's promise: local pieces that are valid for writing, and a source of
                // `wqe.length` bytes, to which the pieces add up.
                unsafe { copy::ascending(piece.addr as *mut u8, source, len) };
                source = source.wrapping_add(len);
            }
        }
        (WrOpcode::AtomicCmpAndSwp | WrOpcode::AtomicFetchAndAdd, Way::Mapped(target)) => {
            if wqe.length != 8 || !target.addr().is_multiple_of(8) {
                return None;
            }
            let swaps = wqe.wr.opcode == WrOpcode::AtomicCmpAndSwp;
            // SAFETY: 8 aligned bytes that the key opens; others use them as atomics too.
            let old = unsafe { atomic(target, swaps, wqe.wr.compare_add, wqe.wr.swap) };
            // SAFETY: the engine checked the pieces, and they have 8 bytes.
            unsafe { pieces::scatter(sges, 0, (&raw const old).cast(), 8) };
        }
        (WrOpcode::RdmaWrite | WrOpcode::RdmaWriteWithImm, Way::Foreign(memory, address)) => {
            if !Foreign::ends_well(wqe.length as usize) {
                return None;
            }
            // SAFETY: the local pieces are readable.
            unsafe { memory.write(sges, address, wqe.length as usize)? };
        }
        (WrOpcode::RdmaRead, Way::Foreign(memory, address)) => {
            // SAFETY: the local pieces are writable.
            unsafe { memory.read(sges, 0, address, wqe.length as usize)? };
        }
        _ => return None,
    }
    Some(SendDone::ok(wqe.length as u32))
}

/// An atomic operation by the processor; the value that was there.
///
/// # Safety
/// `target` is 8 aligned bytes, readable and writable.
pub unsafe fn atomic(target: *mut u8, swaps: bool, compare_add: u64, swap: u64) -> u64 {
    // SAFETY: the caller's promise.
    let word = unsafe { AtomicU64::from_ptr(target.cast()) };
    if swaps {
        match word.compare_exchange(compare_add, swap, Ordering::SeqCst, Ordering::SeqCst) {
            Ok(old) | Err(old) => old,
        }
    } else {
        word.fetch_add(compare_add, Ordering::SeqCst)
    }
}
