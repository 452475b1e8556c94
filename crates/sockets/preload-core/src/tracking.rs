//! Tracked connections: from accept or connect to the last close.

use crate::conn::{Conn, STANDARD_LAST, from_entry, retire};
use crate::fds::{self, Entry};
use crate::messages::leave_alone;
use crate::{
    children, config, ends, epoll, link, log, messages, policy, stats, this_process, unseen,
};
use sluice_lane::clock::now_ns;
use sluice_lane::end::{Role, State, Traffic};
use sluice_lane::reason::Reason;
use sluice_lane::thread;

/// Reads and writes of a connection that waits for a lane between two looks whether sluiced is
/// still there: a system call among so many does not show.
const DAEMON_CHECK_OPS: u32 = 1024;

/// The same between two looks whether there is a lane that had to wait until the process has the
/// connection alone. The first ones come sooner.
const POSTPONED_CHECK_OPS: u32 = 64;

/// Reads behind a read, and writes behind a write, that count like one request or one answer.
/// One large answer comes in several pieces, and its connection may carry no other.
const REPEATS_PER_TURNAROUND: u32 = 8;

/// Turnarounds of an announced connection without a lane until sluiced is asked whether one may still
/// come. The other end, which took part in all of them, was to be announced after a few.
const BYPASS_TURNAROUNDS: u32 = 256;

/// Starts to track the connection of `fd`. A descriptor that cannot be tracked stays the
/// kernel's.
///
/// Most connections of some programs carry one request. So nothing is asked of the kernel here
/// that the announcement can ask later.
pub fn track(fd: i32, role: Role) {
    if this_process::is_confined() {
        leave_untracked(fd, Reason::Confined);
        return;
    }
    let Some((index, generation)) =
        ends::make_table().and_then(|table| table.take(this_process::knows_owners()))
    else {
        leave_untracked(fd, Reason::NoMemory);
        return;
    };
    let Some(conn) = from_entry(fd, index, generation) else {
        return;
    };
    conn.end.start(role);
    conn.note_owner();
    ends::hint(index, fd);
    if !children::place(fd, Entry::Conn { index, generation }, || {}) {
        conn.end.finish(generation);
        return;
    }
    stats::count_connection();
    link::meet();
}

/// The connection stays the kernel's, and is only counted.
fn leave_untracked(fd: i32, reason: Reason) {
    fds::set(fd, Entry::Socket);
    stats::count_untracked(reason);
    log!(Debug, "fd {fd}: on TCP: {}", reason.text());
}

/// `fd` is another descriptor of this process for the connection that `entry` names.
pub fn add_descriptor(conn: &Conn, entry: Entry, fd: i32) {
    children::place(fd, entry, || {
        if conn.end.generation() == conn.generation {
            conn.end.add_ref();
            children::note_more(conn);
        }
    });
    if fd <= STANDARD_LAST && conn.end.state() != State::Tracked {
        conn.pin(Reason::KernelCall);
    }
}

/// A descriptor that names the connection is about to be closed.
pub fn drop_descriptor(conn: &Conn) {
    stats::add_end(conn);
    let_go(conn);
}

/// One descriptor fewer; with the last, the record is free for another connection.
pub fn let_go(conn: &Conn) {
    if conn.end.generation() != conn.generation {
        // It was given back before an exec that failed.
        return;
    }
    children::note_fewer(conn);
    leave_announcement(conn);
    if !conn.end.drop_ref() {
        children::judge(Some(conn));
        return;
    }
    let state = conn.end.state();
    // As TCP does: closing with unread bytes resets the connection (RFC 1122, 4.2.2.13).
    if state == State::Attached
        && conn.end.unread_ring_bytes(conn.generation, conn.fd) > 0
        && !conn.end.has_copies()
    {
        let _ = sluice_sys::unix::reset_at_close(conn.fd);
    }
    if state != State::Attached || conn.end.reason() == Reason::Broken {
        log!(
            Debug,
            "fd {}: closed on TCP: {}",
            conn.fd,
            conn.end.reason().text()
        );
    }
    let announced = state != State::Tracked;
    retire(conn);
    if announced {
        link::release(conn.index, conn.generation);
    }
}

/// A descriptor of this process for a connection that others hold, too, is closed. If it was the last
/// one, and a lane has come that they cannot take, they are to ask for one of their own.
pub fn leave_announcement(conn: &Conn) {
    let is_announced = conn.end.refs() > 1 && conn.end.state() == State::Announced;
    if is_announced
        && conn.own_names().count == 0
        && link::give_back_postponed(conn)
        && conn.end.unmark_announced()
    {
        link::release(conn.index, conn.generation);
    }
}

impl Conn {
    /// Accounts for one read or write. Announces the connection when it has had enough of them
    /// to be worth a lane, and asks to be left alone when none has come for long.
    #[inline]
    pub fn note_operation(&self, is_write: bool, bytes: usize) {
        if self.end.is_patient() {
            if thread::note_operation_and_ask(bytes, now_ns) {
                self.end_patience();
            }
            return;
        }
        thread::note_operation(bytes);
        match self.end.state() {
            State::Tracked => {
                let traffic = self.end.count_operation(is_write);
                if traffic.turnarounds + traffic.repeats / REPEATS_PER_TURNAROUND
                    >= config::min_ops()
                {
                    self.announce();
                }
            }
            State::Announced => self.note_waiting(is_write),
            _ => {}
        }
    }

    /// The lane that lay unused is used from now on.
    #[cold]
    fn end_patience(&self) {
        let Some(parking) = self.end.own_parking() else {
            return;
        };
        match self.watchers(&parking) {
            Some(watchers) => {
                self.end.end_patience(watchers);
                self.for_each_name(epoll::conn_attached);
            }
            None => self.pin(Reason::TooManyWatchers),
        }
    }

    fn note_waiting(&self, is_write: bool) {
        let traffic = self.end.count_operation(is_write);
        let Traffic {
            turnarounds,
            repeats,
            ..
        } = traffic;
        if turnarounds
            .wrapping_add(repeats)
            .is_multiple_of(DAEMON_CHECK_OPS)
        {
            messages::check_daemon();
        }
        let since = turnarounds.wrapping_add(repeats);
        if since.is_power_of_two() || since.is_multiple_of(POSTPONED_CHECK_OPS) {
            messages::attach_postponed(self);
        }
        // sluiced is asked seldomer each time that no answer comes.
        let is_long = turnarounds >= BYPASS_TURNAROUNDS.max(config::min_ops().saturating_mul(4));
        if traffic.is_turnaround && is_long && turnarounds.is_power_of_two() {
            link::ask_for_peer(self);
        }
    }

    #[cold]
    fn announce(&self) {
        if this_process::is_confined() {
            self.keep_off(Reason::Confined);
        } else if let Some(reason) = unseen::reason() {
            self.pin(reason);
        } else if self.end.role() == Role::Unknown {
            self.keep_off(Reason::UnknownOrigin);
        } else if self.end.is_pinned() {
        } else if !self.is_ours_or_childrens() {
            self.keep_off(Reason::Shared);
        } else if self.is_standard_stream() {
            self.keep_off(Reason::KernelCall);
        } else if !link::has_daemon() {
            self.keep_off(Reason::NoDaemon);
        } else {
            self.ask_kernel();
            if !policy::allows(self.end.ports()) {
                self.pin(Reason::Policy);
                leave_alone(self);
                return;
            }
            self.note_owner();
            if !self.is_waited_for() {
                self.keep_off(Reason::UnseenWaits);
            } else if link::announce(self) {
                return;
            }
        }
        // It is asked again after as much traffic as there was so far.
        self.end.restart_traffic();
    }

    /// Notes that this process alone holds the connection, if so: should it be killed, the others
    /// that share its end table get the record back.
    fn note_owner(&self) {
        if !this_process::knows_owners() {
            return;
        }
        let forks = this_process::forks();
        if self.end.refs() == 1 {
            children::forget(self);
            self.end.set_owner(this_process::pid());
        }
        if this_process::forks() != forks {
            // Another thread has forked, which may have looked at the record before.
            self.end.clear_owner();
        }
    }

    /// Whether the program waits for the connection where ring bytes can end the wait. Some
    /// programs read and write through the C library, and wait by system calls of their own.
    fn is_waited_for(&self) -> bool {
        !self.end.is_nonblocking() || self.end.is_wait_seen() || epoll::is_waited_for(self.fd)
    }
}
