//! The rings of io_uring that are seen into, and whether all are. What is submitted by them is told by
//! [`crate::uring`].

use crate::fds::{self, Entry};
use crate::unseen;
use core::ffi::c_int;
use sluice_lane::reason::Reason;

mod memory;
mod submission;

pub use memory::Params;
use memory::RINGS_MAX;
pub(crate) use memory::{Memory, Ring};
pub(crate) use submission::{Entry as Submitted, EpollCtl, Meaning, Reading};

static RINGS: [Ring; RINGS_MAX] = [const { Ring::new() }; RINGS_MAX];
/// From here on every connection of the process stays on TCP.
#[cold]
pub(crate) fn go_blind(why: &str) {
    unseen::go_blind(Reason::IoUring, why);
}

/// Takes a place for the ring, and maps what is needed of it.
pub(crate) fn see(fd: c_int, params: &Params) -> Result<(), &'static str> {
    params.is_visible()?;
    for (index, ring) in RINGS.iter().enumerate() {
        if ring.claim() {
            let mapped = ring.map(fd, params);
            let index = index as u32;
            if mapped && fds::set(fd, Entry::Ring { index }) {
                return Ok(());
            }
            ring.give_up();
            return Err("its memory cannot be mapped");
        }
    }
    Err("the process has too many")
}

/// Another descriptor names the ring.
pub fn add_descriptor(index: u32, fd: c_int) {
    if let Some(ring) = RINGS.get(index as usize) {
        ring.add_name();
        fds::set(fd, Entry::Ring { index });
    }
}

/// A descriptor of the ring is about to be closed. Memory that is mapped would keep the ring, and
/// what it has begun.
pub fn close_descriptor(index: u32) {
    if let Some(ring) = RINGS.get(index as usize) {
        ring.drop_name();
    }
}

/// The ring that a descriptor names, if it is one.
pub(crate) fn ring_of(fd: c_int) -> Option<&'static Ring> {
    match fds::get(fd) {
        Entry::Ring { index } => RINGS.get(index as usize),
        _ => None,
    }
}

/// Looks whether somebody submits without our seeing it, before another connection gets a lane.
pub fn check() {
    if RINGS.iter().any(Ring::was_used_unseen) {
        go_blind("entries were submitted past the C library");
    }
}
