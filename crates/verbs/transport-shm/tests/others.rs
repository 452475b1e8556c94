//! Receivers that come late, and both ends in one process.

mod common;

use common::{EVERYTHING, End, PATIENCE, Peer, Way, World, pair, pair_every_way, until};
use sluice_verbs::{
    AhAttr, Gid, QpAttr, QpState, QpType, UdDestination, WcStatus, WrOpcode, access, qp_mask,
    with_aftermath,
};
use sluice_verbs_testing::QKEY;
use sluice_verbs_testing::rows::order::read_and_add_in_turns;

/// More messages than the receiver ever has receives.
const MANY: u32 = 200;

fn send_many(world: &mut World, kind: QpType) -> End {
    let end = world.connected(kind, 65_536);
    let ah = AhAttr {
        port_num: 1,
        ..AhAttr::default()
    };
    let sge = [end.sge(0, 64)];
    world.meet();
    for number in 0..MANY {
        let mut wr = end.request(WrOpcode::SendWithImm, u64::from(number), &sge, 0);
        wr.imm = number;
        if kind == QpType::Ud {
            wr.ud = Some(UdDestination {
                ah: &ah,
                qpn: end.peer.qpn,
                qkey: QKEY,
            });
        }
        end.qp.post_send(&wr).unwrap();
    }
    for number in 0..MANY {
        assert_eq!(end.good().wr_id, u64::from(number));
    }
    end
}

/// Four receives, and a program that comes late to its completions again and again: too late never, however long it
/// gets no processor.
fn receive_late(world: &mut World, kind: QpType) {
    world.transport.set_hold(PATIENCE);
    let end = world.connected(kind, 65_536);
    for id in 0..4 {
        end.post_recv(id, id as usize * 128, 128);
    }
    world.meet();
    for number in 0..MANY {
        if number.is_multiple_of(50) {
            // Meanwhile the thread of the transport works.
            std::thread::sleep(std::time::Duration::from_millis(30));
        }
        let wc = end.good();
        assert_eq!(wc.imm, number, "in order, and none is missing");
        end.post_recv(wc.wr_id, wc.wr_id as usize * 128, 128);
    }
}

#[test]
fn a_late_receiver_of_datagrams_loses_none() {
    pair(
        "a_late_receiver_of_datagrams_loses_none",
        Way::Shared,
        |world| {
            send_many(world, QpType::Ud);
            world.meet();
        },
        |world| {
            receive_late(world, QpType::Ud);
            world.meet();
        },
    );
}

#[test]
fn a_late_receiver_on_an_unreliable_connection_loses_nothing() {
    pair(
        "a_late_receiver_on_an_unreliable_connection_loses_nothing",
        Way::Shared,
        |world| {
            send_many(world, QpType::Uc);
            world.meet();
        },
        |world| {
            receive_late(world, QpType::Uc);
            world.meet();
        },
    );
}

/// Messages that each come when there is no receive for them, or nearly so.
const JUST_IN_TIME: u32 = 50_000;

fn send_just_in_time(world: &mut World) {
    let end = world.connected(QpType::Uc, 4096);
    let sge = [end.sge(0, 8)];
    let mut under_way = 0;
    for number in 0..JUST_IN_TIME {
        let mut request = end.request(WrOpcode::SendWithImm, 1, &sge, 0);
        request.imm = number;
        end.qp.post_send(&request).unwrap();
        under_way += 1;
        while under_way == 200 || (under_way > 0 && number + 1 == JUST_IN_TIME) {
            end.good();
            under_way -= 1;
        }
    }
    world.meet();
}

fn receive_just_in_time(world: &mut World) {
    use std::sync::atomic::{AtomicBool, Ordering};
    world.transport.set_hold(PATIENCE);
    let end = world.connected(QpType::Uc, 4096);
    end.post_recv(0, 0, 8);
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        // One thread carries messages out, the other gives them receives: each at the moment at
        // which the first finds none for the next.
        scope.spawn(|| {
            while !over.load(Ordering::Relaxed) {
                with_aftermath(|after| end.cq.transport().progress(&end.cq, after));
            }
        });
        let received = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            for number in 0..JUST_IN_TIME {
                until("the next message", || end.cq.filled() > 0);
                end.post_recv(0, 0, 8);
                assert_eq!(end.good().imm, number, "messages are lost");
            }
        }));
        over.store(true, Ordering::Relaxed);
        received.unwrap();
    });
    world.meet();
}

#[test]
fn receives_that_come_at_the_last_moment_are_not_overlooked() {
    pair(
        "receives_that_come_at_the_last_moment_are_not_overlooked",
        Way::Shared,
        send_just_in_time,
        receive_just_in_time,
    );
}

#[test]
fn datagrams_outlive_their_sender() {
    pair(
        "datagrams_outlive_their_sender",
        Way::Shared,
        |world| {
            send_many(world, QpType::Ud);
            std::process::exit(0);
        },
        |world| receive_late(world, QpType::Ud),
    );
}

fn send_past_a_dry_one(world: &mut World) {
    let dry = world.connected(QpType::Uc, 4096);
    let other = world.connected(QpType::Rc, 4096);
    let (dry_sge, sge) = ([dry.sge(0, 64)], [other.sge(0, 64)]);
    for id in 0..100 {
        dry.qp
            .post_send(&dry.request(WrOpcode::Send, id, &dry_sge, 0))
            .unwrap();
    }
    other.run(&other.request(WrOpcode::Send, 1, &sge, 0));
    for id in 0..100 {
        assert_eq!(dry.good().wr_id, id, "dropped, which it is not told");
    }
    world.meet();
    dry.run(&dry.request(WrOpcode::Send, 200, &dry_sge, 0));
    world.meet();
}

fn receive_past_a_dry_one(world: &mut World) {
    let dry = world.connected(QpType::Uc, 4096);
    let other = world.connected(QpType::Rc, 4096);
    other.post_recv(1, 0, 64);
    assert_eq!(other.good().wr_id, 1, "it does not wait for ever");
    dry.post_recv(2, 0, 64);
    world.meet();
    assert_eq!(dry.good().wr_id, 2);
    world.meet();
}

#[test]
fn messages_without_a_receive_hold_up_others_only_once() {
    pair(
        "messages_without_a_receive_hold_up_others_only_once",
        Way::Shared,
        send_past_a_dry_one,
        receive_past_a_dry_one,
    );
}

/// Without a fence.
fn read_what_was_added(world: &mut World) {
    let end = world.connected(QpType::Rc, 8192);
    read_and_add_in_turns(&end, 0);
    world.meet();
}

#[test]
fn reads_are_not_overtaken_by_the_atomics_behind_them() {
    pair_every_way(
        "reads_are_not_overtaken_by_the_atomics_behind_them",
        read_what_was_added,
        |world| {
            let _end = world.connected(QpType::Rc, 8192);
            world.meet();
        },
    );
}

/// Both ends in one process, as tests of programs like to have it.
fn loop_back(world: &mut World) {
    let (mut left, mut right) = (
        world.end(QpType::Rc, 65_536, None),
        world.end(QpType::Rc, 65_536, None),
    );
    for (own, other) in [(&left, &right), (&right, &left)].map(|(own, other)| (own.qp.num(), other))
    {
        assert_ne!(own, other.qp.num());
    }
    let address = |end: &End| Peer {
        qpn: end.qp.num(),
        rkey: end.mr.rkey(),
        addr: end.memory.start as u64,
        psn: end.psn,
        path: world.path(&Gid::default()),
        path_mtu: world.caps().mtu,
    };
    (left.peer, right.peer) = (address(&right), address(&left));
    left.to_ready();
    right.to_ready();
    left.memory.fill(0, 20_000, 8);
    let sge = [left.sge(0, 20_000)];
    assert_eq!(
        left.run(&left.request(WrOpcode::RdmaWrite, 1, &sge, 0))
            .status,
        0
    );
    right.memory.check(0, 20_000, 8);
    right.post_recv(1, 30_000, 20_000);
    left.qp
        .post_send(&left.request(WrOpcode::Send, 2, &sge, 0))
        .unwrap();
    assert_eq!(right.good().byte_len, 20_000);
    right.memory.check(30_000, 20_000, 8);
    assert_eq!(left.good().wr_id, 2);
    // No rights on the queue pair: refused by the owner, whatever the key says.
    let attr = QpAttr {
        qp_access_flags: 0,
        ..QpAttr::default()
    };
    right.qp.modify(&attr, qp_mask::ACCESS_FLAGS).unwrap();
    let wc = left.run(&left.request(WrOpcode::RdmaWrite, 3, &sge, 0));
    assert_eq!(wc.status, WcStatus::RemInvReqErr as u32);
    until("both in error", || left.qp.state() == QpState::Err);
    assert_eq!(EVERYTHING & access::REMOTE_WRITE, access::REMOTE_WRITE);
    world.meet();
}

#[test]
fn one_process_talks_to_itself() {
    pair_every_way("one_process_talks_to_itself", loop_back, loop_back);
}
