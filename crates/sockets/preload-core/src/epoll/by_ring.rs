//! Instances that the program, or the kernel for it, uses through an io_uring.
#![allow(unsafe_code)]

use super::instance::{close_descriptor, instance};
use super::item::Item;
use super::registrations::ctl;
use super::state::{State, untag};
use crate::export;
use crate::fds::{self, Entry};
use crate::real::{errno, real, set_errno};
use core::ffi::c_int;
use sluice_lane::reason::Reason;

/// What becomes of an epoll_ctl(2) that the program has put into a ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ByRing {
    /// It is done, and its result is 0.
    Done,
    /// The kernel does it, and gives the result that it has to have.
    Kernel,
}

/// `epoll_ctl` with `epfd` one of ours, made by a ring that is about to be submitted.
///
/// # Safety
/// As epoll_ctl(2).
pub unsafe fn ctl_by_ring(
    index: u32,
    epfd: c_int,
    op: c_int,
    fd: c_int,
    event: *mut libc::epoll_event,
) -> ByRing {
    match fds::get(fd) {
        Entry::Socket | Entry::Conn { .. } | Entry::Epoll { .. } => {}
        // It is none of our business, be it registered or not.
        _ => return ByRing::Kernel,
    }
    let before = errno();
    // SAFETY: the program's own arguments.
    let result = unsafe { ctl(index, epfd, op, fd, event) };
    let failed = errno();
    set_errno(before);
    if result == 0 {
        return ByRing::Done;
    }
    if failed == libc::ENOENT {
        // The kernel may have a registration that the program has removed. Every other error that
        // we find, it finds, too.
        forget_removed(index, epfd, fd);
    }
    ByRing::Kernel
}

/// Takes out of the kernel what the program has taken out of the instance.
fn forget_removed(index: u32, epfd: c_int, fd: c_int) {
    let this = instance(index);
    if let Some(mut state) = this.lock()
        && let Some(number) = state.number(fd)
        && state.item(number).is_some_and(|item| item.is_removed)
    {
        untag(epfd, fd);
        state.forget(&this.unlocked, number);
    }
}

/// A registration is the kernel's from now on, as the program has made it, and so is the connection.
/// For an `epoll_ctl` in a ring of which only the kernel knows when its turn comes.
///
/// False, and nothing has changed, if only this process can tell when it is readable: bytes are in
/// the ring that the sender did not take back.
pub fn leave_registration(index: u32, epfd: c_int, fd: c_int) -> bool {
    if !export::leave_to_kernel(fd, Reason::IoUring) {
        return false;
    }
    let this = instance(index);
    if let Some(mut state) = this.lock()
        && let Some(number) = state.number(fd)
    {
        give_back(&mut state, epfd, number);
        state.forget(&this.unlocked, number);
    }
    true
}

/// An instance is the kernel's from now on, with everything that is registered in it: the kernel
/// waits for it where nobody can announce that.
pub fn leave_instance(index: u32) {
    let this = instance(index);
    let Some(sockets) = this.lock().map(|state| state.sockets()) else {
        return;
    };
    for (_, fd) in sockets {
        export::leave_to_kernel(fd, Reason::IoUring);
    }
    if let Some(mut state) = this.lock() {
        for (number, _) in state.sockets() {
            give_back(&mut state, this.epfd(), number);
        }
    }
    let mut names = Vec::new();
    fds::for_each(0, c_int::MAX, |fd, entry| {
        if entry == (Entry::Epoll { index }) {
            names.push(fd);
        }
    });
    for fd in names {
        fds::take(fd);
        close_descriptor(index, fd);
    }
}

/// The kernel's registration becomes what the program has made.
fn give_back(state: &mut State, epfd: c_int, number: u32) {
    let is_ours = |item: &&mut Item| item.is_tagged || item.armed.is_some();
    let Some(item) = state.item(number).filter(is_ours) else {
        return;
    };
    item.armed = None;
    let (fd, is_removed) = (item.fd, item.is_removed);
    let mut event = libc::epoll_event {
        events: item.events_left(),
        u64: item.data,
    };
    if state.number(fd) != Some(number) {
        // The number that the kernel knows it by is closed.
        return;
    }
    // EPOLLEXCLUSIVE can only be set by EPOLL_CTL_ADD.
    untag(epfd, fd);
    if !is_removed {
        let before = errno();
        // SAFETY: the event lives on this stack.
        unsafe { (real().epoll_ctl)(epfd, libc::EPOLL_CTL_ADD, fd, &raw mut event) };
        set_errno(before);
    }
}
