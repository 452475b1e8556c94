//! What sluiced says, as the values that the link makes of it: what becomes of the connection.
#![allow(unsafe_code)]

use super::ANNOUNCED;
use super::machine::Machine;
use super::pair::{Pair, on_both, within};
use crate::conn::{self, Conn};
use crate::descriptors;
use crate::fds::{self, Entry};
use crate::messages::{attach, bypass, go_without};
use crate::{link, messages};
use sluice_control::message::Lane;
use sluice_lane::end::{Assignment, State};
use sluice_lane::reason::Reason;
use sluice_sys::tcp;
use std::time::{Duration, Instant};

/// A connection whose first end is announced, on both kernels. Its other end is tracked.
fn each(body: impl Fn(&str, &Pair, Conn)) {
    on_both(|which, machine: &mut Machine, pair| {
        let _alone = ANNOUNCED.lock();
        within(machine, || {
            pair.track();
            let conn = conn::get(pair.a).unwrap();
            assert!(conn.end.mark_announced());
            body(&format!("{which:?}"), pair, conn);
        });
    });
}

/// A lane for the connection as it is now.
fn lane(conn: &Conn) -> Lane {
    Lane {
        end: conn.index,
        generation: conn.generation,
        chunk: 1,
        lane: 0,
        lanes: 2,
        ring_bytes: 16 * 1024,
        side: 0,
        has_chunk_fd: false,
        has_parking_fd: false,
        is_remote: false,
        is_direct: false,
        offset: 0,
        peer: 3,
        peer_pid: 4,
        cookie: tcp::cookie(conn.fd).unwrap(),
    }
}

#[test]
fn a_lane_is_attached_to_the_socket_and_the_life_that_it_is_for() {
    each(|what, pair, conn| {
        let lane = lane(&conn);
        let (cookie, generation) = (lane.cookie + 1, lane.generation + 1);
        attach(&Lane { cookie, ..lane }, pair.assignment(0));
        assert_eq!(conn.end.state(), State::Announced, "{what}");
        attach(&Lane { generation, ..lane }, pair.assignment(0));
        assert_eq!(conn.end.state(), State::Announced, "{what}");
        attach(&lane, pair.assignment(0));
        assert_eq!(conn.end.state(), State::Attached, "{what}");
    });
}

#[test]
fn a_lane_for_a_connection_that_others_have_too_waits() {
    each(|what, pair, conn| {
        conn.end.add_ref();
        attach(&lane(&conn), pair.assignment(0));
        assert_eq!(conn.end.state(), State::Announced, "{what}");
        assert_eq!(conn.end.reason(), Reason::Shared, "{what}");
        assert!(!conn.end.is_pinned(), "{what}");
        assert!(!conn.end.drop_ref());
        attach(&lane(&conn), pair.assignment(0));
        assert_eq!(conn.end.state(), State::Attached, "{what}");
    });
}

#[test]
fn a_lane_that_cannot_be_taken_leaves_its_reason() {
    each(|what, _, conn| {
        let generation = conn.generation + 1;
        let lane = lane(&conn);
        go_without(&Lane { generation, ..lane }, Reason::NoMemory);
        assert_ne!(conn.end.reason(), Reason::NoMemory, "{what}");
        go_without(&lane, Reason::NoMemory);
        assert_eq!(conn.end.reason(), Reason::NoMemory, "{what}");
        assert_eq!(conn.end.state(), State::Announced, "{what}");
    });
}

#[test]
fn a_connection_without_a_peer_is_left_alone_by_all_its_names() {
    each(|what, pair, conn| {
        let (index, generation) = (conn.index, conn.generation);
        let other = conn::get(pair.b).unwrap();
        bypass(other.index, other.generation);
        assert!(conn::get(pair.b).is_some(), "not announced: {what}");
        bypass(index, generation + 1);
        assert_eq!(conn.end.state(), State::Announced, "{what}");
        // SAFETY: takes and returns numbers.
        let copy = unsafe { libc::dup(pair.a) };
        descriptors::duplicated(pair.a, copy);
        bypass(index, generation);
        for name in [pair.a, copy] {
            let entry = Entry::Bypassed { index, generation };
            assert_eq!(fds::get(name), entry, "{what}");
        }
        assert!(conn.end.is_bypassed(), "{what}");
        assert_eq!(conn.end.reason(), Reason::NoPeer, "{what}");
        assert_eq!(descriptors::close(copy), 0, "{what}");
    });
}

#[test]
fn a_connection_without_a_peer_that_others_have_too_is_announced_again() {
    each(|what, pair, conn| {
        conn.end.add_ref();
        bypass(conn.index, conn.generation);
        assert!(conn::get(pair.a).is_some(), "{what}");
        assert_eq!(conn.end.state(), State::Tracked, "{what}");
        assert_eq!(conn.end.reason(), Reason::Shared, "{what}");
        assert!(!conn.end.is_pinned(), "{what}");
        assert!(!conn.end.drop_ref());
    });
}

/// What a lost sluiced has carried is looked after, also where another thread has found the next one before.
#[test]
fn what_a_lost_sluiced_carried_is_seen_to_though_another_one_is_there() {
    each(|what, pair, conn| {
        let assignment = Assignment {
            remote: true,
            ..pair.assignment(0)
        };
        assert!(conn.end.attach(conn.generation, &assignment));
        assert_ne!(conn.end.reason(), Reason::NoDaemon, "{what}");
        link::lose_and_find_another(crate::memory::zeroed(4096).unwrap(), || {
            // Any thread may see to it.
            let begun = Instant::now();
            while conn.end.reason() != Reason::NoDaemon {
                messages::check();
                assert!(begun.elapsed() < Duration::from_secs(60), "{what}");
            }
        });
    });
}
