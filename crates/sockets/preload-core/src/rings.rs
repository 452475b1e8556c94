//! The rings of io_uring that are seen into, and whether all are. What is submitted by them is told by
//! [`crate::uring`].

use crate::fds::{self, Entry};
use crate::{export, log};
use core::ffi::c_int;
use core::sync::atomic::{AtomicBool, Ordering};
use sluice_lane::reason::Reason;

mod memory;
mod submission;

pub use memory::Params;
use memory::RINGS_MAX;
pub(crate) use memory::{Memory, Ring};
pub(crate) use submission::{Entry as Submitted, EpollCtl, Meaning, Reading};

static RINGS: [Ring; RINGS_MAX] = [const { Ring::new() }; RINGS_MAX];
/// Something is submitted, or may be, that nobody sees here.
static IS_BLIND: AtomicBool = AtomicBool::new(false);

/// Whether the kernel may use any socket of the process for a ring, without our knowledge.
#[inline]
pub fn is_blind() -> bool {
    IS_BLIND.load(Ordering::Relaxed)
}

/// From here on every connection of the process stays on TCP.
#[cold]
pub(crate) fn go_blind(why: &str) {
    if IS_BLIND.swap(true, Ordering::SeqCst) {
        return;
    }
    log!(Warn, "io_uring: no lanes from here on: {why}");
    export::export_all(Reason::IoUring, |_| true, &mut |conn, _| {
        log!(
            Warn,
            "fd {}: unread bytes are not seen by io_uring",
            conn.fd
        );
    });
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
