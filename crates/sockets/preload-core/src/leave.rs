//! A process counts itself out of its connections when it ends or becomes another program. The
//! end table of a server that forks for each client outlives the children and needs their
//! records back.

use crate::conn::{self, Conn, for_each};
use crate::{children, epoll, fds, stats, this_process, tracking};
use core::sync::atomic::{AtomicU64, Ordering};
use sluice_lane::table::ENDS;

/// Connections that others hold, too, and of which this process was counted out: a bit for each
/// record.
static LEFT: [AtomicU64; ENDS as usize / 64] = [const { AtomicU64::new(0) }; ENDS as usize / 64];

fn left(index: u32) -> (&'static AtomicU64, u64) {
    (
        &LEFT[index as usize / 64 % LEFT.len()],
        1 << (index as usize % 64),
    )
}

/// The process ends. Connections that nobody else holds go with a process that has an end table
/// for itself.
pub fn at_exit() {
    if !this_process::is_itself() {
        return;
    }
    epoll::leave();
    let gives_back = this_process::is_forked() && !this_process::is_sandboxed();
    for_each(i32::MAX, |conn| {
        if conn.end.refs() > 1 {
            fds::take(conn.fd);
            children::note_fewer(conn);
            tracking::leave_announcement(conn);
            conn.end.drop_ref();
        } else if gives_back {
            // What another destructor still writes is the kernel's, behind the ring.
            conn.end.shut_tx(conn.generation);
            fds::take(conn.fd);
            tracking::let_go(conn);
        }
    });
}

/// The process is about to execute another program. Its connections, those that the other program
/// inherits among them, are on TCP by now, but for those whose bytes that one is to take up:
/// `stays`.
///
/// A record that nobody else holds goes back to the table of the parent. Should the program not
/// be executed, the connection is the kernel's: its descriptors name a life that is over.
pub fn before_exec(stays: impl Fn(&Conn) -> bool) {
    if !this_process::is_itself() {
        return;
    }
    for_each(i32::MAX, |conn| {
        let names = conn.own_names();
        if names.first != conn.fd {
            return;
        }
        let known = children::forget(conn);
        if conn.end.leave_to_others(names.count) {
            let (word, bit) = left(conn.index);
            word.fetch_or(bit, Ordering::Relaxed);
        } else if stays(conn) {
            children::note_all(conn, known);
        } else if this_process::is_forked() {
            stats::add_last(conn);
            conn::retire(conn);
        }
    });
}

/// The program could not be executed: what [`before_exec`] gave to others is held again, unless
/// these have let go of it meanwhile.
pub fn after_failed_exec() {
    if !this_process::is_itself() {
        return;
    }
    for_each(i32::MAX, |conn| {
        let names = conn.own_names();
        let (word, bit) = left(conn.index);
        if names.first == conn.fd && word.fetch_and(!bit, Ordering::Relaxed) & bit != 0 {
            conn.end.return_to_life(conn.generation, names.count);
            children::note_all(conn, names.count);
        }
    });
}
