//! Descriptors that come, go and get other names.
#![allow(unsafe_code)]

use crate::conn::{self, Conn};
use crate::fds::{self, Entry};
use crate::real::{errno, real, set_errno};
use crate::{epoll, gateway, link, log, process, uring};
use core::ffi::{c_int, c_uint};
use sluice_lane::clock::now_ns;
use sluice_lane::end::Role;
use sluice_lane::reason::Reason;
use sluice_lane::recall::{self, Fetched};
use sluice_shmem::direction::Direction;
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
            conn::track(fd, Role::Connected);
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
        conn::track(fd, Role::Accepted);
    }
    set_errno(errno);
}

pub(crate) fn is_nonblocking(fd: c_int) -> bool {
    // SAFETY: F_GETFL takes and returns numbers.
    let flags = unsafe { (real().fcntl)(fd, libc::F_GETFL, 0) };
    flags >= 0 && flags & libc::O_NONBLOCK != 0
}

/// A descriptor came with a message or was inherited: a connected TCP socket of unknown origin
/// is tracked so that it can be seen, and for what its byte counts allow.
pub fn adopted(fd: c_int) {
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
                conn::track(fd, role);
                if let Some(conn) = conn::get(fd) {
                    conn.end.note_inherited(fd);
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
        Entry::Conn { index, generation } | Entry::Settled { index, generation } => {
            epoll::forget_socket(fd);
            fds::take(fd);
            if let Some(conn) = conn::from_entry(fd, index, generation) {
                conn::drop_descriptor(&conn);
            }
        }
        Entry::Epoll { index } => {
            fds::take(fd);
            epoll::close_descriptor(index, fd);
        }
        Entry::Ring { index } => {
            fds::take(fd);
            uring::close_descriptor(index);
        }
    }
}

/// `close`.
pub fn close(fd: c_int) -> c_int {
    if link::hidden_fd() == Some(fd) {
        set_errno(libc::EBADF);
        return -1;
    }
    if fds::is_known(fd) && !process::is_vfork_child() {
        forget(fd);
    }
    // SAFETY: the program's own argument.
    unsafe { (real().close)(fd) }
}

/// `close_range`, around the descriptor that is ours.
pub fn close_range(first: c_uint, last: c_uint, flags: c_int) -> c_int {
    let only_marks = flags & libc::CLOSE_RANGE_CLOEXEC as c_int != 0;
    if first <= last && !only_marks && !process::is_vfork_child() {
        let low = c_int::try_from(first).unwrap_or(c_int::MAX);
        let high = c_int::try_from(last).unwrap_or(c_int::MAX);
        fds::for_each(low, high, |fd, _| forget(fd));
    }
    let range = |first, last| {
        if first > last {
            return 0;
        }
        // SAFETY: the program's own arguments.
        unsafe { (real().close_range)(first, last, flags) }
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
        _ => unsafe { (real().close_range)(first, last, flags) },
    }
}

/// `closefrom`.
pub fn closefrom(first: c_int) {
    close_range(first.max(0) as c_uint, c_uint::MAX, 0);
}

/// `fd` was duplicated as `copy`.
pub fn duplicated(fd: c_int, copy: c_int) {
    if process::is_vfork_child() {
        // For the program that it is about to execute. The table is the parent's, and stays.
        if let Some(conn) = conn::get(fd) {
            export(&conn, Reason::Shared);
        }
        return;
    }
    if gateway::is_on() {
        gateway::duplicated(fd, copy);
    }
    match fds::get(fd) {
        Entry::Other => renamed(copy, Entry::Other),
        Entry::Socket => renamed(copy, Entry::Socket),
        entry @ (Entry::Conn { index, generation } | Entry::Settled { index, generation }) => {
            renamed(copy, Entry::Other);
            if let Some(conn) = conn::from_entry(fd, index, generation) {
                conn::add_descriptor(&conn, entry, copy);
            }
        }
        Entry::Epoll { index } => {
            renamed(copy, Entry::Other);
            epoll::add_descriptor(index, copy);
        }
        Entry::Ring { index } => {
            renamed(copy, Entry::Other);
            uring::add_descriptor(index, copy);
        }
    }
}

/// Before dup2 or dup3 onto `target`, which closes what is there.
pub fn before_replace(fd: c_int, target: c_int) {
    if fd == target || target < 0 || process::is_vfork_child() {
        return;
    }
    link::make_way(target);
    // SAFETY: F_GETFD takes and returns numbers; a bad source makes the call fail and leaves
    // the target alone.
    if fds::is_known(target) && unsafe { (real().fcntl)(fd, libc::F_GETFD, 0) } >= 0 {
        forget(target);
    }
}

/// All exports of one call together wait this long for peers that do not answer, and one of them
/// at most this long: awake peers answer within microseconds.
const FETCH_NS_MAX: u64 = 200_000_000;
const FETCH_ONE_NS_MAX: u64 = 20_000_000;
const FETCH_AT_ONCE_NS_MAX: u64 = 1_000_000;

/// The descriptor is given to code that the hooks do not see: its connection stays on TCP, and
/// what the peer has put into the ring already is fetched first, if the peer answers. False if
/// it did not: only this process and its forks can read these bytes.
pub fn export(conn: &Conn, reason: Reason) -> bool {
    let before = errno();
    conn.pin(reason);
    let fetched = fetch(conn, now_ns() + FETCH_NS_MAX);
    if fetched != Fetched::All {
        log!(
            Warn,
            "fd {}: unread bytes stay in the ring, the peer did not take them back",
            conn.fd
        );
    }
    set_errno(before);
    fetched == Fetched::All && !conn.end.has_gap()
}

/// The same where there is something to do about bytes that are left, so that only a peer that is
/// awake is waited for.
pub fn export_at_once(conn: &Conn, reason: Reason) -> bool {
    let before = errno();
    conn.pin(reason);
    let fetched = fetch(conn, now_ns() + FETCH_AT_ONCE_NS_MAX);
    set_errno(before);
    fetched == Fetched::All && !conn.end.has_gap()
}

/// The same for whatever `fd` is, where it was not done before. False if bytes are left that the
/// kernel does not have.
pub fn leave_to_kernel(fd: c_int, reason: Reason) -> bool {
    match conn::get(fd) {
        Some(conn) if conn.end.is_pinned() && conn.is_empty() => !conn.end.has_gap(),
        Some(conn) => export(&conn, reason),
        None => true,
    }
}

fn fetch(conn: &Conn, deadline_ns: u64) -> Fetched {
    recall::fetch(conn.end, conn.generation, conn.fd, deadline_ns, &mut || {
        // The peer may be an end of this very process, perhaps of this very thread.
        fds::for_each(0, c_int::MAX, |fd, entry| {
            if let Entry::Conn { index, generation } = entry
                && index != conn.index
                && let Some(other) = conn::from_entry(fd, index, generation)
            {
                recall::look(other.end, generation, fd);
            }
        });
    })
}

/// Exports every tracked connection for which `concerned` holds. `left` is called for those,
/// and for those exported before, of which bytes stay with this process: how many, if the
/// sender has finished its last write.
pub fn export_all(
    reason: Reason,
    concerned: impl Fn(c_int) -> bool,
    left: &mut dyn FnMut(&Conn, Option<usize>),
) {
    let before = errno();
    let each = |action: &mut dyn FnMut(&Conn)| {
        fds::for_each(0, c_int::MAX, |fd, entry| {
            if let Entry::Conn { index, generation } = entry
                && let Some(conn) = conn::from_entry(fd, index, generation)
            {
                action(&conn);
            }
        });
    };
    each(&mut |conn| {
        if concerned(conn.fd) {
            conn.pin(reason);
        }
    });
    let deadline_ns = now_ns() + FETCH_NS_MAX;
    each(&mut |conn| {
        let has_gap = conn.end.has_gap();
        if !conn.end.is_pinned() || !has_gap && conn.is_empty() || !conn.is_first_name() {
            return;
        }
        match fetch(conn, deadline_ns.min(now_ns() + FETCH_ONE_NS_MAX)) {
            Fetched::All if !has_gap => {}
            Fetched::All | Fetched::Unfinished => left(conn, None),
            Fetched::Left(unread) => left(conn, Some(unread)),
        }
    });
    set_errno(before);
}

impl Conn {
    /// Whether ring bytes are left, and nobody is about to add to them.
    pub fn has_settled_bytes(&self) -> bool {
        let is_in_flight = |into: Direction| into.is_write_in_flight();
        !self.end.incoming().is_some_and(is_in_flight)
            && self.end.unread_ring_bytes(self.generation, self.fd) > 0
    }

    /// Whether there is nothing to fetch: the ring is empty, and stays so.
    pub fn is_empty(&self) -> bool {
        self.end.unread_ring_bytes(self.generation, self.fd) == 0
            && !self
                .end
                .incoming()
                .is_some_and(|into| into.is_write_in_flight())
    }

    /// Whether no lower descriptor of this process names the connection.
    fn is_first_name(&self) -> bool {
        let mut first = true;
        fds::for_each(0, self.fd - 1, |_, entry| {
            let (index, generation) = (self.index, self.generation);
            first &= entry != Entry::Conn { index, generation };
        });
        first
    }
}
