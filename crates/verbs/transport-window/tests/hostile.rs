//! A host of the window that lies, in everything that it can say. Whoever it lies to loses the
//! connection with it, or that queue pair, and nothing else: an honest third host goes on.

mod common;
#[path = "common/liar.rs"]
mod liar;
#[path = "common/scene.rs"]
mod scene;

use std::sync::atomic::{AtomicBool, Ordering};

use liar::{LEND, Liar, READY, RING_BYTES};
use scene::{LEN, PSN, Scene};
use sluice_transport_window::frame::{Frame, What, flag};
use sluice_verbs::{AhAttr, QpState, QpType, SendWr, UdDestination, WcStatus, WrOpcode};
use sluice_verbs_testing::{QKEY, Remote, request, until};
use sluice_window::view::{Out, View as _};

#[test]
fn a_piece_that_is_none_is_not_written_to() {
    let geometry = |scene: &Scene| scene.liar.region.header().geometry;
    let lies: [fn(&Scene) -> [u64; 2]; 7] = [
        |_| [0, RING_BYTES],
        |scene| [scene.liar.lent.0 + 8, RING_BYTES],
        |scene| [scene.liar.lent.0, RING_BYTES - 1],
        |scene| [scene.liar.lent.0, 64],
        |scene| [scene.liar.lent.0, 1 << 63],
        |_| [u64::MAX - 4095, RING_BYTES],
        |_| [u64::MAX, u64::MAX],
    ];
    for lie in lies {
        let mut scene = Scene::new();
        let numbers = lie(&scene);
        scene.liar.tell_numbers(LEND, numbers);
        scene.ends_the_link();
    }
    let mut scene = Scene::new();
    let end = geometry(&scene).slot_bytes();
    scene.liar.tell_numbers(LEND, [end - 4096, RING_BYTES]);
    scene.ends_the_link();
}

#[test]
fn messages_out_of_turn_end_the_link() {
    let lies: [fn(&mut Liar); 5] = [
        |liar| liar.tell(LEND, b"short"),
        |liar| liar.tell(0x5600_0003, &[0; 16]),
        |liar| liar.tell_numbers(READY, [1, 1]),
        |liar| {
            liar.tell_numbers(LEND, [liar.lent.0, RING_BYTES]);
            liar.tell_numbers(LEND, [liar.lent.0, RING_BYTES]);
        },
        |liar| {
            liar.tell_numbers(READY, [liar.borrowed.unwrap().0.at, 1]);
            liar.tell_numbers(READY, [liar.borrowed.unwrap().0.at, 1]);
        },
    ];
    for lie in lies {
        let mut scene = Scene::new();
        lie(&mut scene.liar);
        scene.ends_the_link();
    }
}

/// As the kernel of a guest does (docs/windows.md, "Pieces for programs"), and programs there.
#[test]
fn messages_to_others_are_not_its_own() {
    let mut scene = Scene::new();
    scene.liar.tell(0x5700_0004, &[1, 0, 0, 0, 4, 0, 0, 0]);
    scene.liar.tell(0x1001_0002, &[7; 1024]);
    scene.liar.tell(1234, &[]);
    scene.liar.join();
    until("a channel", || {
        assert!(!scene.liar.is_cut_off());
        scene.liar.is_heard()
    });
}

#[test]
fn positions_that_cannot_be_end_the_link() {
    for tail in [8, 63, 1 << 40, u64::MAX] {
        let scene = Scene::joined();
        scene.liar.say_tail(tail);
        scene.ends_the_link();
    }
    // Room that was never taken is given back.
    let scene = Scene::joined();
    scene.liar.say_head(1 << 20);
    let sge = [scene.victim.sge(0, LEN)];
    let write = request(WrOpcode::RdmaWrite, 1, &sge, 0, 0);
    for _ in 0..2 {
        scene.victim.qp.post_send(&write).unwrap();
    }
    scene.ends_the_link();
}

#[test]
fn frames_that_are_none_end_the_link() {
    let good = |scene: &Scene| scene.frame(What::Request, WrOpcode::Send);
    let mut scene = Scene::joined();
    scene.liar.put(&[0xff; 64]);
    scene.ends_the_link();
    let mut scene = Scene::joined();
    let mut bytes = good(&scene).emit();
    bytes[4] = 99;
    scene.liar.put(&bytes);
    scene.ends_the_link();
    // Longer than a piece, and longer than what is there.
    for len in [u32::MAX, 32 * 1024 + 1, 8] {
        let mut scene = Scene::joined();
        let frame = Frame {
            len,
            ..good(&scene)
        };
        scene.liar.put(&frame.emit());
        scene.ends_the_link();
    }
    // In the name of an honest host.
    let mut scene = Scene::joined();
    let from = scene.honesty.ends[0].qp.num();
    let frame = Frame {
        from,
        ..good(&scene)
    };
    scene.liar.put(&frame.emit());
    scene.ends_the_link();
}

#[test]
fn requests_that_are_not_allowed_end_their_queue_pair() {
    let lies: [fn(&mut Frame); 8] = [
        |frame| frame.code = 77,
        |frame| frame.code = WrOpcode::LocalInv as u16,
        |frame| frame.rkey ^= 1,
        |frame| frame.addr = frame.addr.wrapping_sub(1),
        |frame| frame.addr = u64::MAX - 3,
        // It says that less is to come than comes, and that too much is.
        |frame| frame.words[0] = 1,
        |frame| frame.words[0] = u64::MAX,
        |frame| frame.words[0] = 1 << 30,
    ];
    for lie in lies {
        let mut scene = Scene::joined();
        scene.victim.memory.fill(0, 64, 9);
        let mut frame = scene.frame(What::Request, WrOpcode::RdmaWrite);
        (frame.len, frame.words[0]) = (8, 8);
        lie(&mut frame);
        scene.liar.send(frame, &[0xee; 8]);
        scene.ends_the_queue_pair();
        scene.victim.memory.check(0, 64, 9);
    }
    // An atomic beside its word, one with too much in its bytes, and a READ that brings bytes.
    for (opcode, addr, bytes) in [
        (WrOpcode::AtomicFetchAndAdd, 4, 0),
        (WrOpcode::AtomicFetchAndAdd, 0, 8),
        (WrOpcode::RdmaRead, 0, 8),
    ] {
        let mut scene = Scene::joined();
        let mut frame = scene.frame(What::Request, opcode);
        frame.addr += addr;
        (frame.len, frame.words[0]) = (bytes, 64);
        scene.liar.send(frame, &vec![0; bytes as usize]);
        scene.ends_the_queue_pair();
    }
}

#[test]
fn more_than_was_said_ends_the_queue_pair_and_more_of_nothing_is_nothing() {
    let mut scene = Scene::joined();
    let mut frame = scene.frame(What::Request, WrOpcode::RdmaWrite);
    (frame.len, frame.words[0]) = (8, 16);
    scene.liar.send(frame, &[1; 8]);
    frame.what = What::More;
    frame.len = 64;
    scene.liar.send(frame, &[2; 64]);
    scene.ends_the_queue_pair();
    let mut scene = Scene::joined();
    let mut frame = scene.frame(What::More, WrOpcode::RdmaWrite);
    frame.len = 64;
    scene.liar.send(frame, &[2; 64]);
    scene.passes();
    // A second message in the middle of one.
    let mut scene = Scene::joined();
    scene.victim.post_recv(1, 0, 64);
    let mut frame = scene.frame(What::Request, WrOpcode::Send);
    (frame.len, frame.words[0]) = (8, 16);
    scene.liar.send(frame, &[1; 8]);
    scene.liar.send(frame, &[1; 8]);
    scene.ends_the_queue_pair();
}

#[test]
fn what_is_not_for_this_connection_is_nothing() {
    let lies: [fn(&mut Frame); 4] = [
        |frame| frame.psn = PSN + 1,
        |frame| frame.from += 1,
        |frame| frame.flags = 0,
        |frame| frame.to ^= 0x100,
    ];
    for lie in lies {
        let mut scene = Scene::joined();
        let mut frame = scene.frame(What::Request, WrOpcode::RdmaWrite);
        (frame.len, frame.words[0]) = (8, 8);
        lie(&mut frame);
        scene.liar.send(frame, &[0xee; 8]);
        scene.passes();
    }
    // Answers to what was never asked.
    for what in [What::Answer, What::Data, What::NotYet, What::Ready] {
        let mut scene = Scene::joined();
        let to = scene.victim.qp.num() | 1 << 24;
        for to in [to, to ^ 1, scene.honesty.ends[0].qp.num() | 1 << 24] {
            let frame = Frame {
                to,
                ..Frame::new(what)
            };
            scene.liar.send(frame, &[]);
        }
        scene.passes();
    }
}

/// Answers that the request cannot have.
#[test]
fn false_answers_end_the_queue_pair() {
    type Lie = fn(&Frame) -> (Frame, Vec<u8>);
    let lies: [Lie; 7] = [
        // A READ is done without bytes.
        |read| (Frame::about(What::Answer, read), vec![]),
        |read| {
            (
                Frame {
                    code: 999,
                    ..Frame::about(What::Answer, read)
                },
                vec![],
            )
        },
        // More than was asked for, not from the beginning, and nothing.
        |read| {
            (
                Frame {
                    len: 72,
                    ..Frame::about(What::Data, read)
                },
                vec![7; 72],
            )
        },
        |read| {
            let frame = Frame {
                len: 8,
                addr: 8,
                ..Frame::about(What::Data, read)
            };
            (frame, vec![7; 8])
        },
        |read| {
            let frame = Frame {
                len: 8,
                addr: u64::MAX,
                ..Frame::about(What::Data, read)
            };
            (frame, vec![7; 8])
        },
        |read| (Frame::about(What::Data, read), vec![]),
        // Again and again.
        |read| {
            let flags = flag::NO_RECEIVE;
            (
                Frame {
                    flags,
                    code: 1,
                    ..Frame::about(What::NotYet, read)
                },
                vec![],
            )
        },
    ];
    for lie in lies {
        let mut scene = Scene::joined();
        let sge = [scene.victim.sge(0, 64)];
        scene.victim.memory.fill(64, 64, 3);
        let read = request(WrOpcode::RdmaRead, 1, &sge, 0, 0);
        scene.victim.qp.post_send(&read).unwrap();
        until("an end", || {
            scene.liar.poll();
            if let Some((frame, _)) = scene.liar.next()
                && frame.what == What::Request
            {
                let (answer, bytes) = lie(&frame);
                scene.liar.send(answer, &bytes);
            }
            scene.victim.cq.poll_one();
            scene.victim.qp.state() == QpState::Err
        });
        scene.victim.memory.check(64, 64, 3);
        scene.honesty.works();
    }
}

/// It asks and asks, and takes no answer.
#[test]
fn answers_that_nobody_takes_have_a_bound() {
    let mut scene = Scene::joined();
    let mut frame = scene.frame(What::Request, WrOpcode::RdmaRead);
    frame.words[0] = LEN as u64;
    for number in 0..2000 {
        frame.psn = (PSN + number) & 0xff_ffff;
        scene.liar.send(frame, &[]);
    }
    scene.ends_the_queue_pair();
    // To queue pairs that do not exist: each has an answer that finds no room.
    let mut scene = Scene::joined();
    let mut frame = scene.frame(What::Request, WrOpcode::Send);
    for number in 0..8000 {
        frame.to = scene.victim.qp.num() ^ 0x40000;
        frame.from = scene.qpn + number;
        scene.liar.send(frame, &[]);
    }
    scene.ends_the_link();
}

/// F10: READY in front of NOT_YET says nothing to its requester, which then waits for ever.
#[test]
fn ready_never_overtakes_the_word_that_it_is_about() {
    let mut scene = Scene::joined();
    let mut read = scene.frame(What::Request, WrOpcode::RdmaRead);
    read.words[0] = LEN as u64;
    // More than its ring has room for.
    const READS: u32 = 4;
    for number in 0..READS {
        read.psn = (PSN + number) & 0xff_ffff;
        scene.liar.send(read, &[]);
    }
    let mut send = scene.frame(What::Request, WrOpcode::Send);
    send.psn = (PSN + READS) & 0xff_ffff;
    send.words[0] = 0;
    scene.liar.send(send, &[]);
    until("a request that came too early", || {
        scene.victim.cq.poll_one();
        scene.host.count("not_yet") > 0
    });
    scene.victim.post_recv(1, 0, 64);
    let mut came = Vec::new();
    until("what it says", || {
        scene.victim.cq.poll_one();
        let next = scene.liar.next();
        came.extend(next.map(|(frame, _)| frame.what));
        came.contains(&What::Ready) && came.contains(&What::NotYet)
    });
    came.retain(|what| *what != What::Data);
    assert_eq!(came, [What::NotYet, What::Ready]);
    // It comes again, and is taken.
    scene.liar.send(send, &[]);
    assert_eq!(scene.victim.good().wr_id, 1);
}

/// Random words everywhere that the liar can write as a member, while honest programs work.
#[test]
fn who_scribbles_breaks_his_own_connections() {
    for seed in 1..4_u64 {
        let mut scene = Scene::joined();
        let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let mut random = move || {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            state
        };
        let stop = AtomicBool::new(false);
        let victim = scene.victim.qp.num() >> 19;
        let liar = &scene.liar;
        let honesty = &mut scene.honesty;
        std::thread::scope(|scope| {
            let stop = &stop;
            scope.spawn(move || {
                let (piece, ring) = liar.borrowed.unwrap();
                let page = u64::from(liar.slot()) * 16384;
                while !stop.load(Ordering::Relaxed) {
                    let at = match random() % 3 {
                        0 => page + random() % 16384,
                        1 => piece.at + random() % 256,
                        _ => piece.at + random() % (4096 + ring),
                    };
                    let place = Out {
                        slot: victim,
                        at: at & !7,
                    };
                    liar.region.view(liar.slot()).say(place, random());
                }
            });
            for _ in 0..50 {
                honesty.works();
            }
            stop.store(true, Ordering::Relaxed);
        });
        // Its own connection may be broken or not; nothing else happens, and the device can be
        // closed.
        let wc = scene.victim.cq.poll_one();
        assert!(wc.is_none_or(|wc| wc.status != WcStatus::Success as u32));
    }
}

/// docs/windows.md: where requests have an address, a packet number and a key a datagram has its sender's
/// address, and zeros where it is not known. Devices of kernels make a GRH of it.
#[test]
fn datagrams_have_no_number_where_their_senders_address_stands() {
    let mut scene = Scene::joined();
    let end = scene.host.end_of(QpType::Ud);
    end.to_init();
    end.receive_from(&Remote::default());
    end.send_with(0, 0, 0);
    let ah = AhAttr::default();
    for number in 0..40 {
        let sges = [end.sge(0, 8)];
        let send = SendWr {
            ud: Some(UdDestination {
                ah: &ah,
                qpn: scene.qpn,
                qkey: QKEY,
            }),
            ..request(WrOpcode::Send, number, &sges, 0, 0)
        };
        assert_eq!(end.run(&send).status, 0);
        let mut came = None;
        until("a datagram", || {
            came = scene.liar.next();
            came.is_some()
        });
        let (frame, bytes) = came.unwrap();
        assert_eq!((frame.from, frame.about), (end.qp.num(), QKEY));
        assert_eq!((frame.addr, frame.psn, frame.rkey), (0, 0, 0));
        let psn = (u64::from(end.psn) + number) & 0xff_ffff;
        assert_eq!((frame.seq, bytes.len()), (psn, 8));
    }
}
