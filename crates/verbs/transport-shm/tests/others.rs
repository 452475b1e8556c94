//! Unreliable connections, datagrams, multicast and extended connections.

mod common;

use common::{EVERYTHING, End, Way, World, pair, pair_every_way, until};
use sluice_verbs::wr::UdDestination;
use sluice_verbs::{
    AhAttr, Gid, GlobalRoute, QpAttr, QpInit, QpState, QpType, SendWr, SrqAttr, SrqInit, WcStatus,
    WrOpcode, access, qp_mask, send_flags, settled, wc_flags,
};

fn uc_send(world: &mut World) {
    let end = world.connected(QpType::Uc, 1 << 20);
    end.memory.fill(0, 100_000, 3);
    let sge = [end.sge(0, 100_000)];
    assert_eq!(
        end.run(&end.request(WrOpcode::RdmaWrite, 1, &sge, 0))
            .status,
        0
    );
    // Nobody takes this one; an unreliable sender does not care.
    assert_eq!(end.run(&end.request(WrOpcode::Send, 2, &sge, 0)).status, 0);
    world.meet();
    world.meet();
    assert_eq!(end.run(&end.request(WrOpcode::Send, 3, &sge, 0)).status, 0);
    let mut bad = end.request(WrOpcode::RdmaWrite, 4, &sge, 0);
    bad.rkey ^= 0x100;
    assert_eq!(end.run(&bad).status, 0, "no acknowledgement, no refusal");
    world.meet();
}

fn uc_receive(world: &mut World) {
    let end = world.connected(QpType::Uc, 1 << 20);
    world.meet();
    end.memory.check(0, 100_000, 3);
    end.post_recv(7, 500_000, 100_000);
    world.meet();
    let wc = end.good();
    assert_eq!((wc.wr_id, wc.byte_len), (7, 100_000));
    end.memory.check(500_000, 100_000, 3);
    world.meet();
    assert_eq!(end.qp.state(), QpState::Rts);
}

#[test]
fn unreliable_connections_drop_silently() {
    pair_every_way("unreliable_connections_drop_silently", uc_send, uc_receive);
}

fn datagram<'a>(
    end: &End,
    id: u64,
    sges: &'a [sluice_verbs::Sge],
    ud: UdDestination<'a>,
) -> SendWr<'a> {
    let _ = end;
    SendWr {
        flags: send_flags::SIGNALED,
        sges,
        ud: Some(ud),
        ..SendWr::new(WrOpcode::Send, id)
    }
}

const QKEY: u32 = 0x1111_1111;

fn ud_send(world: &mut World) {
    let end = world.connected(QpType::Ud, 65_536);
    let ah = AhAttr {
        port_num: 1,
        ..AhAttr::default()
    };
    for len in [0, 1, 64, 4096] {
        end.memory.fill(0, len, len as u8);
        let sge = [end.sge(0, len)];
        let ud = UdDestination {
            ah: &ah,
            qpn: end.peer.qpn,
            qkey: QKEY,
        };
        // The wrong key first: dropped.
        let wrong = UdDestination { qkey: 5, ..ud };
        assert_eq!(end.run(&datagram(&end, 1, &sge, wrong)).status, 0);
        let mut wr = datagram(&end, 2, &sge, ud);
        wr.opcode = WrOpcode::SendWithImm;
        wr.imm = len as u32;
        assert_eq!(end.run(&wr).status, 0);
    }
    // To nobody: gone.
    let sge = [end.sge(0, 64)];
    let nobody = UdDestination {
        ah: &ah,
        qpn: end.peer.qpn ^ 0x80,
        qkey: QKEY,
    };
    assert_eq!(end.run(&datagram(&end, 3, &sge, nobody)).status, 0);
    world.meet();
}

fn ud_receive(world: &mut World) {
    let mut end = world.end(QpType::Ud, 65_536, None);
    for id in 0..8 {
        end.to_init_once(id);
        end.post_recv(id, id as usize * 4200, 4136);
    }
    world.introduce(&mut end);
    end.to_rtr();
    end.to_rts(14, 7);
    world.meet();
    for (id, len) in [0usize, 1, 64, 4096].into_iter().enumerate() {
        let wc = end.good();
        assert_eq!((wc.wr_id, wc.byte_len), (id as u64, 40 + len as u32));
        assert_eq!(wc.wc_flags, wc_flags::GRH | wc_flags::WITH_IMM);
        assert_eq!((wc.imm, wc.src_qp), (len as u32, end.peer.qpn));
        end.memory.check(id * 4200 + 40, len, len as u8);
        assert_eq!(end.memory.byte(id * 4200) >> 4, 6, "an IPv6 header");
    }
    world.meet();
    assert!(end.cq.poll_one().is_none(), "nothing else came");
}

trait Once {
    fn to_init_once(&self, turn: u64);
}

impl Once for End {
    fn to_init_once(&self, turn: u64) {
        if turn == 0 {
            self.to_init();
        }
    }
}

#[test]
fn datagrams_arrive_or_are_dropped() {
    pair(
        "datagrams_arrive_or_are_dropped",
        Way::Shared,
        ud_send,
        ud_receive,
    );
}

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

/// Four receives, and a program that comes late to its completions again and again.
fn receive_late(world: &mut World, kind: QpType) {
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
    let end = world.connected(QpType::Uc, 4096);
    end.post_recv(0, 0, 8);
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        // One thread carries messages out, the other gives them receives: each at the moment at
        // which the first finds none for the next.
        scope.spawn(|| {
            while !over.load(Ordering::Relaxed) {
                settled(|after| end.cq.transport().progress(&end.cq, after));
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

fn group() -> Gid {
    let mut bytes = [0; 16];
    (bytes[0], bytes[1], bytes[15]) = (0xff, 0x0e, 0x77);
    Gid(bytes)
}

fn group_send(world: &mut World) {
    let end = world.connected(QpType::Ud, 4096);
    world.meet();
    let ah = AhAttr {
        port_num: 1,
        is_global: 1,
        grh: GlobalRoute {
            dgid: group(),
            ..GlobalRoute::default()
        },
        ..AhAttr::default()
    };
    let sge = [end.sge(0, 64)];
    let ud = UdDestination {
        ah: &ah,
        qpn: 0xFF_FFFF,
        qkey: QKEY,
    };
    end.memory.fill(0, 64, 5);
    assert_eq!(end.run(&datagram(&end, 1, &sge, ud)).status, 0);
    world.meet();
    world.meet();
    assert_eq!(end.run(&datagram(&end, 2, &sge, ud)).status, 0);
    world.meet();
}

fn group_receive(world: &mut World) {
    let ends: Vec<End> = (0..2)
        .map(|index| {
            let mut end = world.end(QpType::Ud, 4096, None);
            if index == 0 {
                world.introduce(&mut end);
            }
            end.to_ready();
            end.post_recv(9, 0, 200);
            end.post_recv(10, 0, 200);
            end.qp.attach_multicast(&group(), 0).unwrap();
            end
        })
        .collect();
    world.meet();
    world.meet();
    for end in &ends {
        assert_eq!(end.good().byte_len, 104);
        end.memory.check(40, 64, 5);
    }
    world.meet();
    for end in &ends {
        end.qp.detach_multicast(&group(), 0).unwrap();
    }
    world.meet();
    world.meet();
    for end in &ends {
        assert!(end.cq.poll_one().is_none(), "left the group");
    }
}

#[test]
fn a_group_gets_each_datagram_while_it_is_joined() {
    pair(
        "a_group_gets_each_datagram_while_it_is_joined",
        Way::Shared,
        group_send,
        group_receive,
    );
}

fn xrc_send(world: &mut World) {
    let mut end = world.end(QpType::XrcSend, 1 << 20, None);
    world.introduce(&mut end);
    let srqn = world.swap([0; 4])[0] as u32;
    end.to_ready();
    world.meet();
    end.memory.fill(0, 50_000, 1);
    let sge = [end.sge(0, 50_000)];
    for opcode in [WrOpcode::RdmaWrite, WrOpcode::Send, WrOpcode::RdmaRead] {
        let mut wr = end.request(opcode, 1, &sge, 0);
        wr.xrc_srqn = srqn;
        assert_eq!(end.run(&wr).status, WcStatus::Success as u32, "{opcode:?}");
    }
    end.memory.check(0, 50_000, 1);
    world.meet();
}

fn xrc_receive(world: &mut World) {
    // The connected queue pair is a target without queues; a helper end has the memory.
    let mut helper = world.end(QpType::Rc, 1 << 20, None);
    let domain = world.context.open_xrcd(None, true, false).unwrap();
    let target = world
        .context
        .create_xrc_recv(&QpInit {
            xrcd: Some(domain.clone()),
            ..QpInit::new(QpType::XrcRecv)
        })
        .unwrap();
    let srq = world
        .pd
        .create_srq(&SrqInit {
            attr: SrqAttr {
                max_wr: 16,
                max_sge: 1,
                srq_limit: 0,
            },
            xrcd: Some(domain),
            cq: Some(helper.cq.clone()),
            cookie: 0,
        })
        .unwrap();
    let theirs = world.swap([
        u64::from(target.num()),
        u64::from(helper.mr.rkey()),
        helper.memory.start as u64,
        u64::from(helper.psn),
    ]);
    helper.peer.qpn = theirs[0] as u32;
    helper.peer.psn = theirs[3] as u32;
    world.swap([u64::from(srq.num()), 0, 0, 0]);
    srq.post_recv(4, &[helper.sge(200_000, 50_000)]).unwrap();
    let as_target = helper.as_target(&target);
    as_target.to_init();
    as_target.to_rtr();
    world.meet();
    let wc = as_target.good();
    assert_eq!((wc.wr_id, wc.byte_len), (4, 50_000));
    as_target.memory.check(0, 50_000, 1);
    as_target.memory.check(200_000, 50_000, 1);
    world.meet();
}

#[test]
fn extended_connections_name_a_shared_receive_queue() {
    pair_every_way(
        "extended_connections_name_a_shared_receive_queue",
        xrc_send,
        xrc_receive,
    );
}

fn srq_send(world: &mut World) {
    let ends: Vec<End> = (0..4).map(|_| world.connected(QpType::Rc, 8192)).collect();
    for turn in 0..25u64 {
        for end in &ends {
            let sge = [end.sge(0, 8)];
            assert_eq!(
                end.run(&end.request(WrOpcode::Send, turn, &sge, 0)).status,
                0
            );
        }
    }
    world.meet();
}

fn srq_receive(world: &mut World) {
    let cq = world.context.create_cq(1024, 0, None, 0).unwrap();
    let srq = world
        .pd
        .create_srq(&SrqInit {
            attr: SrqAttr {
                max_wr: 16,
                max_sge: 1,
                srq_limit: 0,
            },
            ..SrqInit::default()
        })
        .unwrap();
    let mut ends = Vec::new();
    for _ in 0..4 {
        let mut end = world.end_with(QpType::Rc, 8192, &cq);
        end.end.qp = world
            .pd
            .create_qp(&QpInit {
                send_cq: Some(cq.clone()),
                recv_cq: Some(cq.clone()),
                srq: Some(srq.clone()),
                cap: end.qp.cap(),
                ..QpInit::new(QpType::Rc)
            })
            .unwrap();
        world.introduce(&mut end);
        end.to_ready();
        world.meet();
        ends.push(end);
    }
    for id in 0..10 {
        srq.post_recv(id, &[ends[0].sge(0, 64)]).unwrap();
    }
    for _ in 0..100 {
        let wc = ends[0].good();
        assert!(ends.iter().any(|end| end.qp.num() == wc.qp_num));
        srq.post_recv(wc.wr_id, &[ends[0].sge(0, 64)]).unwrap();
    }
    world.meet();
}

#[test]
fn a_shared_receive_queue_serves_all() {
    pair(
        "a_shared_receive_queue_serves_all",
        Way::Shared,
        srq_send,
        srq_receive,
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
    let address = |end: &End| common::Address {
        qpn: end.qp.num(),
        rkey: end.mr.rkey(),
        addr: end.memory.start as u64,
        psn: end.psn,
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
