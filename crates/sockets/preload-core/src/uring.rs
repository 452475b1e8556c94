//! io_uring: the kernel moves bytes that no hook sees, so sockets that are submitted to a ring stay
//! on TCP, and others do not notice that there is one.
//!
//! What a program submits is read in the ring's memory when it enters the kernel, before the kernel
//! reads it. An `epoll_ctl` among that is done here, by the rules of the hook, and the kernel gets
//! an entry that completes in its place: event loops send their registrations so (libuv).
//!
//! Where that cannot be seen (a kernel thread polls the ring, or the ring has a form that is not
//! known here) no connection of the process has a lane from then on, and `sluice status` says so.
#![allow(unsafe_code)]

use crate::conn::{self, Conn};
use crate::epoll::{self, ByRing};
use crate::fds::{self, Entry};
use crate::io::written;
use crate::memory::LOWEST_ADDRESS;
use crate::real::{errno, set_errno};
use crate::{descriptors, export, log, passing, this_process};
use core::ffi::c_int;
use sluice_lane::reason::Reason;
use sluice_sys::tcp;

mod unread;

pub use crate::rings::Params;
use crate::rings::{EpollCtl, Meaning, Memory, Ring, Submitted, go_blind, ring_of, see};
use crate::unseen::is_blind;
use unread::{Instead, instead};

/// See io_uring_register(2) and linux/io_uring.h.
const REGISTER_FILES: u32 = 2;
const REGISTER_FILES_UPDATE: u32 = 6;
const REGISTER_FILES2: u32 = 13;
const REGISTER_FILES_UPDATE2: u32 = 14;
const REGISTER_RESIZE_RINGS: u32 = 33;
/// In the operation: the ring is named by the number under which it is registered.
const REGISTER_USE_REGISTERED_RING: u32 = 1 << 31;
/// The same in the flags of io_uring_enter(2).
const ENTER_REGISTERED_RING: u32 = 1 << 4;
/// Registered descriptors that are looked at in one call; the kernel takes no more.
const REGISTERED_MAX: u32 = 1 << 20;

/// io_uring_setup(2) has returned `fd`.
pub fn made(fd: c_int, params: &Params) {
    if this_process::is_vfork_child() {
        return;
    }
    let before = errno();
    if fds::is_known(fd) {
        descriptors::forget(fd);
    }
    if let Err(why) = see(fd, params) {
        go_blind(why);
    }
    set_errno(before);
}

/// A descriptor is about to be closed that may be a ring's.
pub fn about_to_close(fd: c_int) {
    if ring_of(fd).is_some() && !this_process::is_vfork_child() {
        descriptors::forget(fd);
    }
}

/// io_uring_enter(2), which `kernel` makes.
///
/// # Safety
/// As io_uring_enter(2).
pub unsafe fn enter<R>(fd: c_int, to_submit: u32, flags: u32, kernel: impl FnOnce() -> R) -> R {
    let kernel = || written(kernel());
    if to_submit == 0 || is_blind() || this_process::is_vfork_child() {
        return kernel();
    }
    if flags & ENTER_REGISTERED_RING != 0 {
        go_blind("a ring is used by a registered number");
        return kernel();
    }
    let Some(ring) = ring_of(fd) else {
        // The kernel says what it is, if it is none of those.
        return kernel();
    };
    let what = |memory: &Memory| {
        let (first, waiting) = memory.waiting();
        Some(Entries {
            first,
            count: waiting.min(to_submit),
            by_array: true,
        })
    };
    // SAFETY: the caller's.
    unsafe { submit(ring, what, kernel) }
}

/// A function of liburing submits what the program has prepared: `count` entries behind those
/// that the kernel knows of, the first at position `first`.
///
/// # Safety
/// As the function.
pub unsafe fn enter_prepared<R>(
    fd: c_int,
    first: u32,
    count: u32,
    kernel: impl FnOnce() -> R,
) -> R {
    let kernel = || written(kernel());
    if is_blind() || this_process::is_vfork_child() {
        return kernel();
    }
    let Some(ring) = ring_of(fd) else {
        return kernel();
    };
    let what = |memory: &Memory| {
        memory.is_prepared(first, count).then_some(Entries {
            first,
            count,
            by_array: false,
        })
    };
    // SAFETY: the caller's.
    unsafe { submit(ring, what, kernel) }
}

/// Entries that are about to be submitted.
#[derive(Clone, Copy)]
struct Entries {
    /// The position of the first.
    first: u32,
    count: u32,
    /// Whether they are already where the kernel finds them.
    by_array: bool,
}

/// An entry that the kernel gets in another form.
struct Changed {
    position: u32,
    place: u32,
    /// As the program has made it.
    entry: Submitted,
    /// What the kernel gets instead, kept until it has it.
    instead: Option<Instead>,
}

/// # Safety
/// What the ring's entries point to is the program's, for the kernel to read.
unsafe fn submit<R>(
    ring: &Ring,
    what: impl Fn(&Memory) -> Option<Entries>,
    kernel: impl FnOnce() -> R,
) -> R {
    let before = errno();
    let is_alone = ring.enter();
    let mut first = 0;
    let changed = ring.look(|memory| {
        if is_alone && !memory.all_was_seen() {
            go_blind("entries were submitted past the C library");
        }
        match what(memory) {
            Some(entries) => {
                first = entries.first;
                // SAFETY: the caller's.
                unsafe { prepare(memory, entries) }
            }
            None => {
                go_blind("liburing has another form than is known");
                Vec::new()
            }
        }
    });
    set_errno(before);
    let result = kernel();
    ring.look(|memory| {
        let taken = memory.note_taken().wrapping_sub(first);
        // The program may use an entry again as it is. One that the kernel has not taken yet is
        // looked at once more, and stays what it became.
        for changed in changed.iter().flatten() {
            if changed.position.wrapping_sub(first) < taken {
                memory.put_entry(changed.place, &changed.entry);
            } else if changed.instead.is_some() {
                // What was read for it is lost, and what stands in for the connection, too.
                memory.put_entry(changed.place, &changed.entry);
                if let Meaning::Uses([Some(fd), _]) = changed.entry.meaning() {
                    tcp::reset(fd);
                }
            }
        }
    });
    ring.leave();
    result
}

/// What the kernel gets in another form.
///
/// # Safety
/// As [`submit`].
unsafe fn prepare(memory: &Memory, entries: Entries) -> Vec<Changed> {
    let mut changed = Vec::new();
    let mut is_linked = false;
    for step in 0..entries.count {
        let position = entries.first.wrapping_add(step);
        let Some(place) = memory.place(position, entries.by_array) else {
            continue;
        };
        let entry = memory.entry(place);
        let meaning = entry.meaning();
        // SAFETY: the caller's.
        let is_done = unsafe { look(&meaning, !is_linked) };
        is_linked = entry.is_linked_to_next();
        let instead = match meaning {
            Meaning::Uses([Some(fd), _]) => unread_of(fd).and_then(|conn| instead(&conn, &entry)),
            _ => None,
        };
        if is_done {
            memory.put_entry(place, &entry.as_done());
        } else if let Some(instead) = &instead {
            memory.put_entry(place, &instead.entry);
        } else {
            continue;
        }
        changed.push(Changed {
            position,
            place,
            entry,
            instead,
        });
    }
    changed
}

/// The connection of `fd`, if bytes of it are left that the kernel does not have.
fn unread_of(fd: c_int) -> Option<Conn> {
    let conn = conn::get(fd)?;
    (conn.end.unread_ring_bytes(conn.generation, conn.fd) > 0).then_some(conn)
}

/// Prepares for one entry. Whether it is done. `is_alone`: no entry before it decides about it.
///
/// # Safety
/// As [`submit`].
unsafe fn look(meaning: &Meaning, is_alone: bool) -> bool {
    match *meaning {
        Meaning::Nothing => {}
        Meaning::Uses(all) => all.into_iter().flatten().for_each(give),
        Meaning::Closes(fd) => {
            // A link, or the kernel, may decide otherwise: then it is a socket like those that were
            // never seen.
            give(fd);
            if fds::is_known(fd) {
                descriptors::forget(fd);
            }
        }
        Meaning::Sends(fd, message) => {
            give(fd);
            let message = message as *const libc::msghdr;
            if message as usize >= LOWEST_ADDRESS {
                // SAFETY: the caller's; the kernel would read it next.
                let sent = unsafe { passing::before_send(message) };
                if sent.is_err() {
                    log!(
                        Warn,
                        "fd {fd}: a connection is passed on without its unread bytes"
                    );
                }
            }
        }
        // SAFETY: the caller's.
        Meaning::Registers(fds, count) => unsafe { register_all(fds, count) },
        // SAFETY: the caller's.
        Meaning::EpollCtl(ctl) => return unsafe { epoll_ctl(&ctl, is_alone && ctl.is_free) },
    }
    false
}

/// # Safety
/// As epoll_ctl(2).
unsafe fn epoll_ctl(ctl: &EpollCtl, is_free: bool) -> bool {
    match fds::get(ctl.epfd) {
        // With bytes that only this process can read it is done early rather than by the kernel.
        Entry::Epoll { index }
            if is_free || !epoll::leave_registration(index, ctl.epfd, ctl.fd) =>
        {
            let event = ctl.event as *mut libc::epoll_event;
            // SAFETY: the caller's.
            let by = unsafe { epoll::ctl_by_ring(index, ctl.epfd, ctl.op, ctl.fd, event) };
            by == ByRing::Done
        }
        Entry::Epoll { .. } => false,
        _ => {
            if ctl.op == libc::EPOLL_CTL_ADD {
                epoll::watched_from_outside(ctl.fd);
            }
            false
        }
    }
}

/// The kernel is to use this descriptor.
fn give(fd: c_int) {
    match fds::get(fd) {
        Entry::Conn { .. } => {
            export::leave_to_kernel(fd, Reason::IoUring);
        }
        Entry::Epoll { index } => epoll::leave_instance(index),
        _ => {}
    }
}

/// Before io_uring_register(2).
///
/// # Safety
/// As io_uring_register(2).
pub unsafe fn before_register(operation: u32, argument: usize, count: u32) {
    #[repr(C)]
    struct Update {
        offset: u32,
        reserved: u32,
        fds: u64,
    }
    #[repr(C)]
    struct Register {
        count: u32,
        flags: u32,
        reserved: u64,
        fds: u64,
        tags: u64,
    }
    #[repr(C)]
    struct Update2 {
        offset: u32,
        reserved: u32,
        fds: u64,
        tags: u64,
        count: u32,
        reserved2: u32,
    }
    if argument < LOWEST_ADDRESS || is_blind() || this_process::is_vfork_child() {
        return;
    }
    // SAFETY: the caller's: the argument is what the operation takes, and the kernel reads it next.
    unsafe {
        match operation & !REGISTER_USE_REGISTERED_RING {
            REGISTER_FILES => register_all(argument as u64, count),
            REGISTER_FILES_UPDATE => {
                let update = (argument as *const Update).read_unaligned();
                register_all(update.fds, count);
            }
            REGISTER_FILES2 => {
                let register = (argument as *const Register).read_unaligned();
                register_all(register.fds, register.count);
            }
            REGISTER_FILES_UPDATE2 => {
                let update = (argument as *const Update2).read_unaligned();
                register_all(update.fds, update.count);
            }
            REGISTER_RESIZE_RINGS => go_blind("a ring is given another size"),
            _ => {}
        }
    }
}

/// The kernel may use these descriptors by another number.
///
/// # Safety
/// `fds` is the address of so many descriptors, for the kernel to read, or 0.
pub unsafe fn register_all(fds: u64, count: u32) {
    if (fds as usize) < LOWEST_ADDRESS {
        return;
    }
    let before = errno();
    for at in 0..count.min(REGISTERED_MAX) as usize {
        // SAFETY: the caller's.
        let fd = unsafe { (fds as *const c_int).add(at).read_unaligned() };
        give(fd);
        if unread_of(fd).is_some() {
            log!(Warn, "fd {fd}: reset, as io_uring would miss unread bytes");
            tcp::reset(fd);
        }
    }
    set_errno(before);
}
