//! Connections that are given to code that the hooks do not see: from then on they are on TCP, with all their
//! bytes, if the peer takes back what is unread in the ring.

use crate::conn::{self, Conn};
use crate::fds::{self, Entry};
use crate::log;
use crate::real::{errno, set_errno};
use core::ffi::c_int;
use sluice_lane::clock::now_ns;
use sluice_lane::reason::Reason;
use sluice_lane::reclaim::{self, Fetched};
use sluice_lane::send;
use sluice_shmem::direction::Direction;

/// All exports of one call together wait this long for peers that do not answer, and one of them
/// at most this long: awake peers answer within microseconds.
const FETCH_NS_MAX: u64 = 200_000_000;
const FETCH_ONE_NS_MAX: u64 = 20_000_000;
const FETCH_AT_ONCE_NS_MAX: u64 = 1_000_000;
/// All exports of one call together wait this long for rings that are granted to programs on other hosts: two daemons
/// take a grant back, each when its host lets it. A connection whose grant stays is not whole without this process.
const GRANTS_NS_MAX: u64 = 1_000_000_000;

/// The descriptor is given to code that the hooks do not see: its connection stays on TCP, and
/// what the peer has put into the ring already is fetched first, if the peer answers. False if
/// it did not: only this process and its forks can read these bytes.
pub fn export(conn: &Conn, reason: Reason) -> bool {
    let before = errno();
    conn.pin(reason);
    let now = now_ns();
    let fetched = fetch(conn, now + FETCH_NS_MAX, now + GRANTS_NS_MAX);
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

/// The same before the C library or the kernel reads and writes by itself, at any time from now on.
pub fn export_to_unseen(conn: &Conn, reason: Reason) -> bool {
    let fetched = export(conn, reason);
    send::leave_to_others(conn.end, conn.generation, conn.fd);
    fetched
}

/// The same where there is something to do about bytes that are left, so that only a peer that is
/// awake is waited for.
pub fn export_at_once(conn: &Conn, reason: Reason) -> bool {
    let before = errno();
    conn.pin(reason);
    let now = now_ns();
    let fetched = fetch(conn, now + FETCH_AT_ONCE_NS_MAX, now + GRANTS_NS_MAX);
    set_errno(before);
    fetched == Fetched::All && !conn.end.has_gap()
}

/// The same for whatever `fd` is, where it was not done before. False if bytes are left that the
/// kernel does not have.
pub fn leave_to_kernel(fd: c_int, reason: Reason) -> bool {
    match conn::get(fd) {
        Some(conn) if conn.end.is_pinned() && conn.is_empty() => {
            send::leave_to_others(conn.end, conn.generation, conn.fd);
            !conn.end.has_gap()
        }
        Some(conn) => export_to_unseen(&conn, reason),
        None => true,
    }
}

fn fetch(conn: &Conn, deadline_ns: u64, grants_deadline_ns: u64) -> Fetched {
    reclaim::await_grant_end(conn.end, conn.fd, grants_deadline_ns);
    reclaim::fetch(conn.end, conn.generation, conn.fd, deadline_ns, &mut || {
        // The peer may be an end of this very process, perhaps of this very thread.
        fds::for_each(0, c_int::MAX, |fd, entry| {
            if let Entry::Conn { index, generation } = entry
                && index != conn.index
                && let Some(other) = conn::from_entry(fd, index, generation)
            {
                reclaim::look(other.end, generation, fd);
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
    let now = now_ns();
    let (deadline_ns, grants_deadline_ns) = (now + FETCH_NS_MAX, now + GRANTS_NS_MAX);
    each(&mut |conn| {
        let has_gap = conn.end.has_gap();
        if !conn.end.is_pinned() || !has_gap && conn.is_empty() || !conn.is_first_name() {
            return;
        }
        let one_ns = deadline_ns.min(now_ns() + FETCH_ONE_NS_MAX);
        match fetch(conn, one_ns, grants_deadline_ns) {
            Fetched::All if !has_gap => {}
            Fetched::All | Fetched::Unfinished => left(conn, None),
            Fetched::Left(unread) => left(conn, Some(unread)),
        }
    });
    set_errno(before);
}

impl Conn {
    /// Whether ring bytes are left, and nobody is about to add to them.
    pub fn has_stable_bytes(&self) -> bool {
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
