//! What a requester does with each kind of answer, packet by packet, with the clause that wants it.

mod packets;

use packets::{Bench, Reply, ack, atomic, nak, read_data, request, rnr};
use sluice_protocol::rc::Config;
use sluice_protocol::{Operation, Remote, Request, Status};
use sluice_wire::extended::NakCode;
use sluice_wire::opcode::Operation as Op;

const MTU: usize = packets::MTU;
const GOOD: Remote = Remote {
    address: 0x1000,
    rkey: 1,
};

fn post(bench: &mut Bench, operations: &[(Operation, u32)]) {
    for (seq, (operation, length)) in operations.iter().enumerate() {
        let request = Request {
            seq: seq as u64,
            operation: *operation,
            length: *length,
            solicited: false,
            srq: None,
        };
        bench.connection.post(request).unwrap();
    }
}

/// Requester: what each NAK completes the request with (IBTA 9.9.2.4, 11.6.2), and that it says
/// that all before it was done.
#[test]
fn naks_have_their_status() {
    let table = [
        (NakCode::InvalidRequest, Status::RemoteInvalidRequest),
        (NakCode::RemoteAccess, Status::RemoteAccess),
        (NakCode::RemoteOperational, Status::RemoteOperation),
    ];
    for (code, status) in table {
        let mut bench = Bench::new();
        post(
            &mut bench,
            &[
                (Operation::Send, 4),
                (Operation::Write(GOOD), 4),
                (Operation::Send, 4),
            ],
        );
        assert_eq!(bench.sent(), [0, 1, 2]);
        bench.feed(&nak(1, code));
        let wanted = [Status::Success, status, Status::Flushed];
        assert_eq!(bench.completed(), wanted);
        assert!(bench.connection.has_failed());
        bench.feed(&ack(2));
        assert_eq!((bench.completed(), bench.sent()), (vec![], vec![]));
    }
}

#[test]
fn acknowledgements_imply_earlier_ones() {
    let mut bench = Bench::new();
    post(
        &mut bench,
        &[
            (Operation::Send, 4),
            (Operation::Write(GOOD), 4),
            (Operation::Send, 4),
        ],
    );
    bench.sent();
    bench.feed(&ack(1));
    assert_eq!(bench.completed(), [Status::Success; 2], "IBTA 9.7.5.1.4");
    bench.feed(&ack(1));
    bench.feed(&ack(3));
    bench.feed(&ack(0x80_0000));
    assert_eq!(bench.completed(), []);
    let counters = bench.connection.counters();
    assert_eq!(
        (counters.stale_responses, counters.future_responses),
        (1, 2)
    );
}

/// A READ is only done by its data: what acknowledges later requests says that it was lost.
#[test]
fn reads_are_not_implied() {
    // What was acknowledged is, and needs not be sent again.
    let table: [(_, &[u32], usize); 3] = [
        (ack(1), &[0], 2),
        (nak(1, NakCode::RemoteAccess), &[0, 1], 1),
        (rnr(1), &[0, 1], 1),
    ];
    for (later, again, done) in table {
        let mut bench = Bench::new();
        post(
            &mut bench,
            &[(Operation::Read(GOOD), 4), (Operation::Send, 4)],
        );
        assert_eq!(bench.sent(), [0, 1]);
        bench.feed(&later);
        assert_eq!(bench.completed(), []);
        assert_eq!(bench.sent(), again, "implied NAK, IBTA 9.7.5.1.4");
        bench.feed(&read_data(Op::ReadResponseOnly, 0, 4));
        assert_eq!(bench.completed(), vec![Status::Success; done]);
    }
}

#[test]
fn missing_packets_are_sent_again_with_all_behind_them() {
    let mut bench = Bench::new();
    post(
        &mut bench,
        &[(Operation::Send, 5 * MTU as u32), (Operation::Send, 1)],
    );
    assert_eq!(bench.sent(), [0, 1, 2, 3, 4, 5]);
    bench.feed(&nak(2, NakCode::SequenceError));
    assert_eq!(bench.sent(), [2, 3, 4, 5], "IBTA 9.7.5.2.2");
    bench.feed(&nak(2, NakCode::SequenceError));
    assert_eq!(bench.sent(), [], "a copy of the same NAK");
    bench.feed(&ack(5));
    assert_eq!(bench.completed(), [Status::Success; 2]);
}

/// READ data of the wrong length or opcode is dropped, and with it what a liar wants to place.
#[test]
fn read_data_must_fit() {
    let length = 2 * MTU as u32 + 8;
    let wrong = [
        read_data(Op::ReadResponseFirst, 0, MTU - 4),
        read_data(Op::ReadResponseFirst, 0, MTU + 4),
        read_data(Op::ReadResponseOnly, 0, MTU),
        read_data(Op::ReadResponseLast, 0, 8),
        read_data(Op::ReadResponseMiddle, 2, 8),
        read_data(Op::ReadResponseLast, 2, 9),
        read_data(Op::ReadResponseLast, 1, MTU),
        atomic(0, 1),
    ];
    let mut bench = Bench::new();
    post(&mut bench, &[(Operation::Read(GOOD), length)]);
    bench.sent();
    for packet in &wrong {
        bench.feed(packet);
    }
    assert_eq!(
        bench.connection.counters().bad_responses,
        wrong.len() as u64
    );
    assert_eq!(bench.memory.placed, []);
    let right = [
        (Op::ReadResponseFirst, MTU),
        (Op::ReadResponseMiddle, MTU),
        (Op::ReadResponseLast, 8),
    ];
    for (psn, (operation, len)) in right.into_iter().enumerate() {
        assert_eq!(bench.completed(), []);
        bench.feed(&read_data(operation, psn as u32, len));
    }
    assert_eq!(bench.completed(), [Status::Success]);
    assert_eq!(
        bench.memory.placed,
        [(0, 0, MTU), (0, MTU, MTU), (0, 2 * MTU, 8)]
    );
}

/// No more READs and atomics under way than the peer has resources for (IBTA 9.7.4.1.3), and what
/// is behind them waits, since requests leave in order.
#[test]
fn reads_under_way_are_limited() {
    let mut bench = Bench::new();
    let reads = packets::RESOURCES as usize;
    let mut operations = vec![(Operation::Read(GOOD), 4); reads + 2];
    operations.push((Operation::Send, 4));
    post(&mut bench, &operations);
    let all: Vec<u32> = (0..reads as u32 + 3).collect();
    assert_eq!(bench.sent(), all[..reads]);
    bench.feed(&read_data(Op::ReadResponseOnly, 0, 4));
    assert_eq!(bench.sent(), all[reads..=reads]);
    bench.feed(&read_data(Op::ReadResponseOnly, 1, 4));
    assert_eq!(bench.sent(), all[reads + 1..]);
}

/// Memory that cannot be had any more: nothing of the request is sent from then on, and it fails
/// in its turn; unless the peer has it all.
#[test]
fn a_request_whose_memory_is_gone() {
    let begin = || {
        let mut bench = Bench::new();
        let send = (Operation::Send, 4);
        post(&mut bench, &[send, send, send]);
        assert_eq!(bench.sent(), [0, 1, 2]);
        bench.feed(&nak(0, NakCode::SequenceError));
        bench.connection.fail_request(1);
        assert_eq!(bench.completed(), []);
        assert_eq!(bench.sent(), [0]);
        bench
    };
    let mut bench = begin();
    bench.feed(&ack(0));
    let wanted = [Status::Success, Status::LocalProtection, Status::Flushed];
    assert_eq!(bench.completed(), wanted);
    let mut bench = begin();
    bench.feed(&ack(1));
    assert_eq!(bench.completed(), [Status::Success; 2]);
    assert_eq!(bench.sent(), [2]);
}

/// The last packet of each message asks for an acknowledgement, and so does the last that the
/// window has room for. Catches: a requester that waits for what nobody was asked for.
#[test]
fn whoever_waits_has_asked() {
    let mut bench = Bench::new();
    post(
        &mut bench,
        &[
            (Operation::Send, 3 * MTU as u32),
            (Operation::Write(GOOD), 200 * MTU as u32),
        ],
    );
    let asks: Vec<u32> = bench
        .take(1000)
        .iter()
        .filter(|packet| packet.headers.bth.ack_request)
        .map(|packet| packet.headers.bth.psn.get())
        .collect();
    // A window of 64 packets, and a quarter of it between two questions.
    assert_eq!(asks, [2, 19, 36, 53, 63]);
    bench.feed(&ack(53));
    assert_eq!(bench.take(1000).len(), 54);
}

/// 2²³ numbers at most are under way, so that old and new can be told apart (IBTA 9.7.5.1.1).
#[test]
fn half_of_the_numbers_are_under_way_at_most() {
    let mut bench = Bench::new();
    post(
        &mut bench,
        &[(Operation::Read(GOOD), 1 << 31), (Operation::Send, 1)],
    );
    assert_eq!(bench.sent(), [0], "2³¹ bytes of 256 are all there may be");
    bench.feed(&read_data(Op::ReadResponseFirst, 0, MTU));
    assert_eq!(bench.sent(), [0x80_0000]);
    assert_eq!(bench.connection.counters().future_responses, 0);
}

/// A queue pair answers in RTR, and learns in RTS how to ask.
#[test]
fn the_sending_half_begins_later() {
    let mut bench = Bench::new();
    assert_eq!(
        bench.deliver(&request(Op::SendOnly, 0, 5, GOOD, 0)),
        [Reply::Ack(0)]
    );
    let mut config = packets::config();
    config.send_psn = sluice_wire::Psn::new(500);
    config.retry_cnt = 0;
    bench.connection.ready_to_send(&config);
    post(&mut bench, &[(Operation::Send, 4), (Operation::Send, 4)]);
    assert_eq!(bench.sent(), [500, 501]);
    assert_eq!(
        bench.deliver(&request(Op::SendOnly, 1, 5, GOOD, 0)),
        [Reply::Ack(1)]
    );
    // Without retries the first sequence error is the last; unless there are some after all.
    config.retry_cnt = 1;
    bench.connection.change(&config);
    bench.feed(&ack(500));
    bench.feed(&nak(501, NakCode::SequenceError));
    assert_eq!(bench.sent(), [501]);
    bench.connection.stop();
    assert_eq!(bench.completed(), [Status::Success, Status::Flushed]);
}

/// Everything on its way was lost. Catches: a repair of one packet for each probe.
#[test]
fn a_lost_tail_costs_one_probe() {
    let mut bench = Bench::new();
    post(
        &mut bench,
        &[(Operation::Send, 3 * MTU as u32), (Operation::Send, 1)],
    );
    assert_eq!(bench.sent(), [0, 1, 2, 3]);
    let deadline = bench.connection.deadline().expect("a probe");
    bench.expire(deadline.nanos());
    assert_eq!(bench.sent(), [0]);
    bench.feed(&ack(0));
    assert_eq!(bench.sent(), [1, 2, 3]);
    assert_eq!(bench.connection.counters().timeouts, 0);
}

/// Copies of an RNR NAK count once (IBTA 9.7.5.2.8). Catches: a network that duplicates makes
/// connections fail.
#[test]
fn copies_of_an_rnr_nak_count_once() {
    let mut bench = Bench::with(&Config {
        rnr_retry: 1,
        ..packets::config()
    });
    post(&mut bench, &[(Operation::Send, 1)]);
    assert_eq!(bench.sent(), [0]);
    bench.feed(&rnr(0));
    bench.feed(&rnr(0));
    bench.expire(5_000);
    assert_eq!(bench.sent(), [], "10 µs are not over");
    bench.expire(10_000);
    // Before the request is sent again nobody can have an opinion on it.
    bench.feed(&rnr(0));
    assert_eq!(bench.sent(), [0]);
    assert_eq!(bench.completed(), []);
    bench.feed(&rnr(0));
    assert_eq!(bench.completed(), [Status::RnrRetryExceeded]);
}

/// Progress gives all retries back, and a NAK that comes with it uses the first of them (IBTA
/// 9.9.2.4.1). Catches: one more or one less, or a count that is not given back.
#[test]
fn naks_that_come_with_progress_are_counted() {
    for kind in [rnr, |psn| nak(psn, NakCode::SequenceError)] {
        let mut bench = Bench::with(&Config {
            rnr_retry: 1,
            retry_cnt: 1,
            ..packets::config()
        });
        let send = (Operation::Send, 1);
        post(&mut bench, &[send, send, send]);
        assert_eq!(bench.sent(), [0, 1, 2]);
        for psn in 1..3 {
            bench.feed(&kind(psn));
            assert_eq!(bench.completed(), [Status::Success]);
            let later = bench.now + 20_000;
            bench.expire(later);
            assert_eq!(bench.sent().first(), Some(&psn));
        }
        // Without progress a NAK for a missing packet is a copy, and the timeout counts.
        bench.feed(&kind(2));
        let later = bench.now + (4096 << 14);
        bench.expire(later);
        let ended = bench.completed();
        assert!(
            ended == [Status::RnrRetryExceeded] || ended == [Status::RetryExceeded],
            "{ended:?}"
        );
    }
}

/// Catches: what a driver may send by another way although something is under way; a hold that
/// stops what is sent again.
#[test]
fn what_is_held_waits_for_quiet_and_repetitions_do_not() {
    let mut bench = Bench::new();
    let long = 3 * MTU as u32;
    post(
        &mut bench,
        &[(Operation::Send, 4), (Operation::Write(GOOD), long)],
    );
    let begins = |bench: &Bench| bench.connection.begins().map(|request| request.seq);
    assert!(bench.connection.is_quiet());
    assert_eq!(begins(&bench), Some(0));
    bench.connection.hold(true);
    assert_eq!(bench.sent(), []);
    assert!(!bench.connection.is_ready());
    bench.connection.hold(false);
    assert_eq!(bench.sent(), [0, 1, 2, 3]);
    assert!(!bench.connection.is_quiet());
    assert_eq!(begins(&bench), None);
    bench.feed(&ack(0));
    assert!(!bench.connection.is_quiet());
    bench.connection.hold(true);
    bench.feed(&nak(1, NakCode::SequenceError));
    assert_eq!(begins(&bench), None);
    assert_eq!(bench.sent(), [1, 2, 3]);
    bench.feed(&ack(3));
    assert!(bench.connection.is_quiet());
}
