//! Requests to queue pairs that are not ready: in RESET and INIT, and while they are made and destroyed.

mod common;
#[path = "common/liar.rs"]
mod liar;
#[path = "common/scene.rs"]
mod scene;

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};

use scene::{LEN, PSN, Scene};
use sluice_transport_window::frame::{Frame, What};
use sluice_verbs::{AhAttr, QpState, QpType, WcStatus, WrOpcode};
use sluice_verbs_testing::{End, Remote, init, request, until};

const OPERATIONS: [WrOpcode; 5] = [
    WrOpcode::Send,
    WrOpcode::RdmaWrite,
    WrOpcode::RdmaRead,
    WrOpcode::AtomicFetchAndAdd,
    WrOpcode::SendWithInv,
];

/// A request for the victim's memory. The victim's own queue pair would carry it out; this one goes to another.
fn asking(scene: &Scene, qpn: u32, opcode: WrOpcode) -> (Frame, &'static [u8]) {
    let mut frame = scene.frame_to(qpn, opcode);
    let bytes: &[u8] = match opcode {
        WrOpcode::RdmaRead | WrOpcode::AtomicFetchAndAdd => &[],
        _ => &[0xee; 8],
    };
    (frame.len, frame.words[0]) = (bytes.len() as u32, 8);
    (frame, bytes)
}

fn answer(scene: &mut Scene, wanted: What) -> Frame {
    let mut came = None;
    until("an answer", || {
        assert!(!scene.liar.is_cut_off());
        came = scene.liar.next().map(|(frame, _)| frame);
        came.is_some_and(|frame| frame.what == wanted)
    });
    came.unwrap()
}

/// Connects, and waits for a peer that is not ready as long as it takes.
fn connect(end: &End, peer: &End) {
    end.receive_from(&Remote {
        qpn: peer.qp.num(),
        psn: peer.psn,
        path_mtu: 5,
        ah: AhAttr {
            port_num: 1,
            ..AhAttr::default()
        },
    });
    end.send_with(0, 7, 7);
}

/// Which of the two asks first.
#[derive(Clone, Copy, Debug)]
enum First {
    Liar,
    Peer,
}

/// The queue pair has no peer yet. A stranger is put off, as the peer is. The peer's request is carried out when the
/// queue pair is connected.
#[test]
fn a_stranger_asks_a_queue_pair_that_waits_for_its_peer() {
    for first in [First::Liar, First::Peer] {
        for state in [QpState::Reset, QpState::Init] {
            for opcode in OPERATIONS {
                let mut scene = Scene::joined();
                let (late, early) = (scene.host.end(), scene.honesty.hosts[0].end());
                let prepare = || {
                    late.to_init();
                    late.post_recv(1, 0, 64);
                };
                early.to_init();
                connect(&early, &late);
                if state == QpState::Init {
                    prepare();
                }
                let (frame, bytes) = asking(&scene, late.qp.num(), opcode);
                if let First::Liar = first {
                    scene.liar.send(frame, bytes);
                    assert_eq!(answer(&mut scene, What::NotYet).psn, PSN);
                }
                early.memory.set_word(0, 0x77);
                let sge = [early.sge(0, 8)];
                let before = scene.host.count("frames_received");
                let send = request(WrOpcode::Send, 2, &sge, 0, 0);
                early.qp.post_send(&send).unwrap();
                until("the peer's request", || {
                    scene.host.count("frames_received") > before
                });
                // Another queue pair of the liar asks.
                let again = Frame {
                    from: frame.from + 1,
                    ..frame
                };
                scene.liar.send(again, bytes);
                assert_eq!(answer(&mut scene, What::NotYet).to, again.from);
                assert_eq!(late.qp.state(), state);
                assert_eq!(late.memory.bytes(0, 64), [0; 64]);
                if state == QpState::Reset {
                    prepare();
                }
                connect(&late, &early);
                assert_eq!(early.good().wr_id, 2, "{first:?} {opcode:?}");
                assert_eq!((late.good().wr_id, late.memory.word(0)), (1, 0x77));
                // The stranger gets an answer, too.
                let told = answer(&mut scene, What::Answer);
                assert_eq!(told.to, again.from);
                assert_eq!(told.code, WcStatus::RetryExcErr as u16);
                assert_eq!(scene.victim.memory.bytes(0, LEN), vec![0; LEN]);
                assert_eq!(scene.victim.qp.state(), QpState::Rts);
                scene.honesty.works();
            }
        }
    }
}

/// Each request to a queue pair that is never connected gets one answer, which says that there is no peer. The moment in
/// the life of the queue pair makes no difference.
#[test]
fn queue_pairs_come_and_go_while_a_stranger_asks() {
    const ANSWERS: u64 = 600;
    let mut scene = Scene::joined();
    let frames = OPERATIONS.map(|opcode| asking(&scene, 0, opcode));
    // The last of those that are gone.
    let first = scene.host.end();
    first.qp.destroy().unwrap();
    let target = AtomicU32::new(first.qp.num());
    let (answers, over) = (AtomicU64::new(0), AtomicBool::new(false));
    let cq = scene.victim.cq.clone();
    let Scene {
        liar,
        host,
        victim,
        honesty,
        ..
    } = &mut scene;
    std::thread::scope(|scope| {
        let (target, answers, over) = (&target, &answers, &over);
        scope.spawn(move || {
            let mut number = 0;
            while !over.load(Ordering::Relaxed) {
                let (frame, bytes) = frames[number as usize % frames.len()];
                number += 1;
                let asked = Frame {
                    to: target.load(Ordering::Relaxed) + number % 2,
                    psn: number,
                    ..frame
                };
                liar.send(asked, bytes);
                let mut heard = None;
                until("its end", || {
                    assert!(!liar.is_cut_off());
                    heard = liar.next().map(|(frame, _)| frame);
                    heard.is_some_and(|frame| frame.what == What::Answer)
                });
                let heard = heard.unwrap();
                assert_eq!((heard.to, heard.psn), (asked.from, asked.psn));
                assert_eq!(heard.code, WcStatus::RetryExcErr as u16);
                answers.fetch_add(1, Ordering::Relaxed);
            }
        });
        let mut turn = 0;
        while answers.load(Ordering::Relaxed) < ANSWERS {
            let before = answers.load(Ordering::Relaxed);
            let qp = host.pd.create_qp(&init(QpType::Rc, &cq)).unwrap();
            target.store(qp.num(), Ordering::Relaxed);
            let end = End::of(&host.pd, qp, &cq, victim.memory);
            if turn % 2 == 0 {
                end.to_init();
            }
            if turn % 3 == 0 {
                end.to_state(QpState::Reset);
            }
            end.mr.destroy().unwrap();
            end.qp.destroy().unwrap();
            if turn % 10 == 0 {
                // It has asked this one or a later one.
                until("an answer", || answers.load(Ordering::Relaxed) > before);
                honesty.works();
            }
            turn += 1;
        }
        over.store(true, Ordering::Relaxed);
    });
    assert_eq!(scene.victim.memory.bytes(0, LEN), vec![0; LEN]);
    assert_eq!(scene.victim.qp.state(), QpState::Rts);
    scene.honesty.works();
}
