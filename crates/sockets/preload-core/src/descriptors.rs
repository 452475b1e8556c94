//! Descriptors that come, go and get other names.
#![allow(unsafe_code)]

use crate::conn;
use crate::fds::{self, Entry};
use crate::real::{errno, real, set_errno};
use crate::{closing, epoll, export, gateway, link, rings, this_process, tracking};
use core::ffi::{c_int, c_uint};
use sluice_lane::end::{Role, State, close_beside_copies};
use sluice_lane::reason::Reason;
use sluice_sys::tcp;

/// A socket was created.
pub fn socket_created(fd: c_int, domain: c_int, kind: c_int, protocol: c_int) {
    let kind = kind & !(libc::SOCK_NONBLOCK | libc::SOCK_CLOEXEC);
    let is_tcp = (domain == libc::AF_INET || domain == libc::AF_INET6)
        && kind == libc::SOCK_STREAM
        && (protocol == 0 || protocol == libc::IPPROTO_TCP);
    renamed(fd, if is_tcp { Entry::Socket } else { Entry::Other });
}

/// An epoll instance was created.
pub fn instance_created(fd: c_int) {
    renamed(fd, Entry::Other);
    epoll::created(fd);
}

/// A socket was connected by its first bytes (TCP Fast Open): it stays the kernel's.
pub fn opened_fast(fd: c_int) {
    if fds::get(fd) == Entry::Socket {
        fds::take(fd);
    }
}

/// The kernel gave out `fd` for something new; whatever was known of the number is stale (it
/// was closed by a way that the hooks do not see).
fn renamed(fd: c_int, entry: Entry) {
    if fds::is_known(fd) {
        forget(fd);
    }
    if entry != Entry::Other {
        fds::set(fd, entry);
    }
}

/// A TCP socket listens. sluiced is met now, because servers fork, change their root and their
/// user between this and the first connection, and the children are introduced over what this
/// process has.
pub fn listening() {
    let before = errno();
    link::meet();
    set_errno(before);
}

/// The same for a program that a gateway serves: what the gateway says is what `listen` returns.
pub fn listening_at_gateway(fd: c_int) -> c_int {
    if fds::get(fd) != Entry::Socket {
        return 0;
    }
    match gateway::listening(fd) {
        Ok(()) => 0,
        Err(error) => {
            // Nobody may connect to a socket of which the program thinks that it does not listen.
            // SAFETY: the call takes numbers.
            unsafe { (real().shutdown)(fd, libc::SHUT_RDWR) };
            set_errno(error.0);
            -1
        }
    }
}

/// `connect` returned for a TCP socket: done, or on its way, or undone (`AF_UNSPEC`, connect(2)).
///
/// # Safety
/// `address` is what the kernel has read, if `result` is 0.
pub unsafe fn connected(fd: c_int, result: c_int, address: *const libc::sockaddr) {
    let before = errno();
    let in_progress = result != 0 && before == libc::EINPROGRESS;
    // SAFETY: the caller's promise.
    let is_undone = result == 0 && unsafe { (*address).sa_family } == libc::AF_UNSPEC as u16;
    match fds::get(fd) {
        Entry::Socket if !is_undone && (result == 0 || in_progress) => {
            tracking::track(fd, Role::Connected);
        }
        Entry::Conn { .. } if is_undone => {
            if let Some(conn) = conn::get(fd) {
                conn.end.disconnect(conn.generation, Reason::KernelCall);
            }
        }
        _ => {}
    }
    set_errno(before);
}

/// `accept` returned a descriptor. `listener` tells by its own entry that it is TCP; sockets
/// inherited from a program that was not followed are asked.
pub fn accepted(listener: c_int, fd: c_int) {
    let errno = errno();
    if fds::is_known(fd) {
        forget(fd);
    }
    if fds::get(listener) == Entry::Socket || tcp::is_tcp(fd) == Ok(true) {
        tracking::track(fd, Role::Accepted);
    }
    set_errno(errno);
}

/// A descriptor came with a message or was inherited: a connected TCP socket of unknown origin
/// is tracked so that it can be seen, and for what its byte counts allow.
pub fn arrived(fd: c_int) {
    let before = errno();
    if fds::is_known(fd) {
        forget(fd);
    }
    if tcp::is_tcp(fd) == Ok(true) {
        match tcp::info(fd) {
            Ok(info) if info.state == tcp::STATE_ESTABLISHED => {
                // An end that connected has its SYN acknowledged; an accepted one that has
                // written nothing has nothing acknowledged.
                let untouched = info.bytes_acked == 0 && tcp::unacked_bytes(fd) == Ok(0);
                let role = if untouched {
                    Role::Accepted
                } else {
                    Role::Unknown
                };
                tracking::track(fd, role);
                if let Some(conn) = conn::get(fd) {
                    conn.end.note_arrived(fd);
                }
            }
            _ => {
                fds::set(fd, Entry::Socket);
            }
        }
    }
    set_errno(before);
}

/// Forgets what is known of `fd`, which is about to be closed or was.
pub fn forget(fd: c_int) {
    match fds::get(fd) {
        Entry::Other => {}
        Entry::Socket => {
            epoll::forget_socket(fd);
            fds::take(fd);
        }
        Entry::Conn { index, generation } | Entry::Bypassed { index, generation } => {
            epoll::forget_socket(fd);
            fds::take(fd);
            if let Some(conn) = conn::from_entry(fd, index, generation) {
                tracking::drop_descriptor(&conn);
            }
        }
        Entry::Epoll { index } => {
            fds::take(fd);
            epoll::close_descriptor(index, fd);
        }
        Entry::Ring { index } => {
            fds::take(fd);
            rings::close_descriptor(index);
        }
    }
}

/// `fd` is about to be closed, by a call that its program made. sluiced may have its connection open for a
/// moment more, which ends with the program's last name of it all the same. Whoever has a connection from another
/// program does not know whether his name is the last.
fn end_if_last(fd: c_int) {
    let Some(conn) = conn::get(fd) else {
        return;
    };
    // A lane comes behind sluiced's look.
    if conn.end.state() != State::Announced || conn.end.generation() != conn.generation {
        return;
    }
    let before = errno();
    // What a program that confines itself may ask the kernel is not known.
    let may_ask = !this_process::is_sandboxed() && !this_process::is_confined();
    if may_ask
        && !conn.end.is_pinned()
        && !conn.end.has_arrived()
        && conn.is_ours_alone()
        && conn.end.refs() == 1
        && closing::is_between(fd, conn.end.ports())
    {
        closing::end(fd);
    }
    set_errno(before);
}

/// `close`.
pub fn close(fd: c_int) -> c_int {
    if link::hidden_fd() == Some(fd) {
        set_errno(libc::EBADF);
        return -1;
    }
    if fds::is_known(fd) && !this_process::is_vfork_child() {
        end_if_last(fd);
        forget(fd);
    }
    // SAFETY: the program's own argument.
    close_beside_copies(|| unsafe { (real().close)(fd) })
}

/// `close_range`, around the descriptor that is ours.
pub fn close_range(first: c_uint, last: c_uint, flags: c_int) -> c_int {
    let only_marks = flags & libc::CLOSE_RANGE_CLOEXEC as c_int != 0;
    if first <= last && !only_marks && !this_process::is_vfork_child() {
        let low = c_int::try_from(first).unwrap_or(c_int::MAX);
        let high = c_int::try_from(last).unwrap_or(c_int::MAX);
        fds::for_each(low, high, |fd, _| {
            end_if_last(fd);
            forget(fd);
        });
    }
    let range = |first, last| {
        if first > last {
            return 0;
        }
        // SAFETY: the program's own arguments.
        close_beside_copies(|| unsafe { (real().close_range)(first, last, flags) })
    };
    match link::hidden_fd().map(|fd| fd as c_uint) {
        Some(hidden) if (first..=last).contains(&hidden) && !only_marks => {
            let below = if hidden > first {
                range(first, hidden - 1)
            } else {
                0
            };
            let above = if hidden < last {
                range(hidden + 1, last)
            } else {
                0
            };
            if below != 0 { below } else { above }
        }
        // SAFETY: the program's own arguments; also the wrong ones, for their error.
        _ => close_beside_copies(|| unsafe { (real().close_range)(first, last, flags) }),
    }
}

/// `closefrom`.
pub fn closefrom(first: c_int) {
    close_range(first.max(0) as c_uint, c_uint::MAX, 0);
}

/// `fd` was duplicated as `copy`.
pub fn duplicated(fd: c_int, copy: c_int) {
    if this_process::is_vfork_child() {
        // For the program that it is about to execute. The table is the parent's, and stays.
        if let Some(conn) = conn::get(fd) {
            export::export(&conn, Reason::Shared);
        }
        return;
    }
    if gateway::is_on() {
        gateway::duplicated(fd, copy);
    }
    match fds::get(fd) {
        Entry::Other => renamed(copy, Entry::Other),
        Entry::Socket => renamed(copy, Entry::Socket),
        entry @ (Entry::Conn { index, generation } | Entry::Bypassed { index, generation }) => {
            renamed(copy, Entry::Other);
            if let Some(conn) = conn::from_entry(fd, index, generation) {
                tracking::add_descriptor(&conn, entry, copy);
            }
        }
        Entry::Epoll { index } => {
            renamed(copy, Entry::Other);
            epoll::add_descriptor(index, copy);
        }
        Entry::Ring { index } => {
            renamed(copy, Entry::Other);
            rings::add_descriptor(index, copy);
        }
    }
}

/// `dup2` and `dup3`, which close what `target` is: `call` makes the copy.
pub fn replace(fd: c_int, target: c_int, call: impl FnOnce() -> c_int) -> c_int {
    before_replace(fd, target);
    let copy = close_beside_copies(call);
    if copy >= 0 && fd != target {
        duplicated(fd, copy);
    }
    copy
}

fn before_replace(fd: c_int, target: c_int) {
    if fd == target || target < 0 || this_process::is_vfork_child() {
        return;
    }
    link::make_way(target);
    // SAFETY: F_GETFD takes and returns numbers; a bad source makes the call fail and leaves
    // the target alone.
    if fds::is_known(target) && unsafe { (real().fcntl)(fd, libc::F_GETFD, 0) } >= 0 {
        end_if_last(target);
        forget(target);
    }
}
