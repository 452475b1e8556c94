//! What sluiced says, carried out on the connections: lanes come, or it is said that none will.

use crate::conn::{Conn, first_named};
use crate::fds::{self, Entry};
use crate::link::{self, BATCH_MESSAGES, EventFlag, Incoming};
use crate::{config, epoll, lock, log, nagle, own_stack, rings, stats, this_process, unseen};
use sluice_control::message::Lane;
use sluice_lane::clock::now_ns;
use sluice_lane::end::{Assignment, State};
use sluice_lane::reason::Reason;
use sluice_lane::thread;
use sluice_shmem::parking::ParkingTable;
use sluice_sys::tcp;

/// Messages taken at one time.
const MESSAGES_MAX: usize = 256;

/// Takes lanes that sluiced assigned, if there are messages.
#[inline]
pub fn check() {
    let flag = link::event_flag();
    if flag.is_up() {
        take(flag);
    }
}

/// Looks whether sluiced is still there. A sluiced that has gone rings nobody, so a process with
/// announced connections would wait for the lanes of a dead one.
#[cold]
pub fn check_daemon() {
    if link::is_known() {
        take(link::event_flag());
    } else if !this_process::is_confined() {
        link::check_inherited();
    }
    check();
}

#[cold]
fn take(flag: EventFlag) {
    own_stack::run(|| take_here(flag));
}

fn take_here(flag: EventFlag) {
    if this_process::is_confined() || lock::is_any_held() {
        return;
    }
    if link::see_to_loss() {
        return;
    }
    for _ in 0..MESSAGES_MAX / BATCH_MESSAGES {
        let mut incoming = [None; BATCH_MESSAGES];
        let count = flag.take_messages(&mut incoming);
        // The link's lock is not held here: both arms take those of epoll instances.
        for incoming in incoming.iter().flatten() {
            match incoming {
                Incoming::Lane(lane, assignment) => {
                    attach(lane, *assignment);
                    link::attached();
                }
                Incoming::Unusable(lane, reason) => go_without(lane, *reason),
                Incoming::NoPeer { end, generation } => bypass(*end, *generation),
            }
        }
        if count < BATCH_MESSAGES {
            return;
        }
    }
    flag.put_up();
}

/// Attaches a lane that was postponed, if this process has the connection alone by now.
#[cold]
pub fn attach_postponed(conn: &Conn) {
    if this_process::is_confined() || lock::is_any_held() || !conn.is_ours_alone() {
        return;
    }
    if let Some((lane, assignment)) = link::take_postponed(conn) {
        attach(&lane, assignment);
        link::attached();
    }
}

/// A lane that sluiced assigned.
pub(crate) fn attach(lane: &Lane, mut assignment: Assignment) {
    let entry = Entry::Conn {
        index: lane.end,
        generation: lane.generation,
    };
    let Some(conn) = first_named(entry) else {
        return;
    };
    let fd = conn.fd;
    if conn.end.generation() != lane.generation || !is_same_socket(fd, lane.cookie) {
        return;
    }
    rings::check();
    if let Some(reason) = unseen::reason() {
        conn.pin(reason);
        return;
    }
    if !conn.is_ours_alone() {
        // A child would have to have the lane's memory mapped.
        conn.keep_off(Reason::Shared);
        link::postpone(lane);
        return;
    }
    if conn.is_standard_stream() {
        conn.keep_off(Reason::KernelCall);
        return;
    }
    // Who wants a lane for the first operation has it however fast the next one comes.
    assignment.patient = config::min_ops() > 1 && !thread::is_lively(now_ns);
    if !assignment.patient {
        match conn.watchers(&assignment.own_parking) {
            Some(watchers) => assignment.watchers = watchers,
            None => {
                conn.pin(Reason::TooManyWatchers);
                return;
            }
        }
    }
    if conn.end.attach(conn.generation, &assignment) {
        log!(Info, "fd {fd}: lane {} of chunk {}", lane.lane, lane.chunk);
        stats::count_lane();
        nagle::turn_off(&conn);
        conn.for_each_name(epoll::conn_attached);
    }
}

/// A lane that sluiced assigned, and that this process cannot take.
pub(crate) fn go_without(lane: &Lane, reason: Reason) {
    let (index, generation) = (lane.end, lane.generation);
    let conn = first_named(Entry::Conn { index, generation });
    if let Some(conn) = conn.filter(|conn| conn.end.generation() == generation) {
        conn.keep_off(reason);
    }
}

/// sluiced has heard everybody, and nobody has the other end, so it has forgotten this one: the
/// kernel alone is enough from now on. While another process holds the connection, too, it is
/// announced again instead, once one of them has it alone.
pub(crate) fn bypass(index: u32, generation: u32) {
    let Some(conn) = first_named(Entry::Conn { index, generation }) else {
        return;
    };
    if conn.end.generation() != generation || conn.end.state() != State::Announced {
        return;
    }
    if !conn.is_ours_alone() {
        if conn.end.unmark_announced() {
            conn.keep_off(Reason::Shared);
        }
        return;
    }
    conn.end.pin(generation, Reason::NoPeer);
    // Somebody else may have found a lane for it in this very moment.
    if !conn.end.unmark_announced() {
        return;
    }
    leave_alone(&conn);
}

/// The hooks leave the connection alone from now on, which is pinned and has no lane.
pub(crate) fn leave_alone(conn: &Conn) {
    let (index, generation) = (conn.index, conn.generation);
    let (from, to) = (
        Entry::Conn { index, generation },
        Entry::Bypassed { index, generation },
    );
    log!(Debug, "fd {}: bypassed, on TCP", conn.fd);
    conn.for_each_name(|name| {
        if fds::replace(name.fd, from, to) {
            epoll::bypass(name.fd, to);
        }
    });
}

/// The socket cookie of `fd`, to tell a connection from a later one with the same addresses.
fn is_same_socket(fd: i32, cookie: u64) -> bool {
    tcp::cookie(fd).is_ok_and(|now| now == cookie)
}

impl Conn {
    /// The slots on `parking` of the instances that watch the connection, by whichever name. `None` when
    /// one can get none.
    pub(crate) fn watchers(&self, parking: &ParkingTable) -> Option<u64> {
        let mut all = Some(0);
        self.for_each_name(|name| {
            all = all
                .zip(epoll::watchers(name.fd, parking))
                .map(|(some, more): (u64, u64)| some | more);
        });
        all
    }
}
