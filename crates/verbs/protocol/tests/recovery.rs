//! What is sent again, to a peer that is Sluice and to any other, packet by packet.

mod packets;

use packets::{Bench, Made, Reply, ack, nak, read_data, request};
use sluice_protocol::rc::Config;
use sluice_protocol::{Operation, Payload, Remote, Request, Status};
use sluice_wire::extended::NakCode;
use sluice_wire::opcode::Operation as Op;
use sluice_wire::{Psn, Qpn, selective};

const MTU: u32 = packets::MTU as u32;
const GOOD: Remote = Remote {
    address: 0x1000,
    rkey: 1,
};

fn sluice() -> Bench {
    Bench::with(&Config {
        early: true,
        window: 256,
        ..packets::config()
    })
}

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

/// From a peer that is Sluice.
fn told(mut made: Made) -> Made {
    made.headers.bth.sluice = true;
    made
}

fn missing(psn: u32) -> Made {
    nak(psn, NakCode::SequenceError)
}

/// A report that these are held.
fn report(base: u32, extent: u16, held: &[u32]) -> Made {
    let until = held.last().map_or(0, |last| last + 1 - base);
    let mut payload = vec![0; selective::bytes(until as usize)];
    let held = held.iter().map(|psn| (psn - base) as usize);
    selective::emit(extent, held, &mut payload).unwrap();
    Made {
        headers: selective::headers(Qpn::new(5), 0xffff, Psn::new(base)),
        payload,
    }
}

/// What a responder says of packets that it holds: base, extent, those held.
fn reports(bench: &mut Bench) -> Vec<(u32, u16, Vec<u64>)> {
    let mut reports = Vec::new();
    for packet in bench.take(100) {
        if let Payload::Report { length } = packet.payload {
            let mut bytes = vec![0; length as usize];
            assert!(bench.connection.write_report(&mut bytes));
            let packet = sluice_wire::Packet::again(packet.headers, &bytes).unwrap();
            let report = selective::Report::parse(&packet).unwrap();
            let held = (0..report.held_until()).filter(|distance| report.holds(*distance));
            reports.push((report.base.get(), report.extent, held.collect()));
        }
    }
    reports
}

/// Catches: a NAK that makes all be sent again to a peer that has it, or only one packet to a peer
/// that has nothing.
#[test]
fn a_nak_means_one_packet_to_sluice_and_all_to_others() {
    let nine: Vec<u32> = (2..10).collect();
    for (answer, again) in [(missing(2), nine), (told(missing(2)), vec![2])] {
        let mut bench = sluice();
        post(&mut bench, &[(Operation::Send, 10 * MTU)]);
        assert_eq!(bench.sent().len(), 10);
        bench.feed(&answer);
        assert_eq!(bench.sent(), again);
        // Copies of it, and what was under way.
        bench.feed(&answer);
        assert_eq!(bench.sent(), []);
        bench.feed(&ack(9));
        assert_eq!(bench.completed(), [Status::Success]);
        assert_eq!(bench.sent(), []);
    }
}

/// Each hole of a report is filled once, whatever is said of it before that has come. Catches: a
/// repetition for each report.
#[test]
fn the_holes_of_a_report_are_filled_once() {
    let mut bench = sluice();
    post(
        &mut bench,
        &[
            (Operation::Write(GOOD), 10 * MTU),
            (Operation::Send, 10 * MTU),
            (Operation::Send, 1),
        ],
    );
    let requests: Vec<bool> = bench
        .take(100)
        .iter()
        .map(|packet| packet.headers.bth.sluice)
        .collect();
    assert_eq!(requests, [false; 21], "nobody is told without a reason");
    let holds = [4, 6, 7, 8, 9, 10, 11, 12, 13, 15, 17];
    bench.feed(&report(3, 0, &holds[..5]));
    bench.feed(&told(missing(3)));
    let again = bench.take(100);
    assert!(again.iter().all(|packet| packet.headers.bth.sluice));
    let again: Vec<u32> = again.iter().map(|p| p.headers.bth.psn.get()).collect();
    assert_eq!(again, [3, 5]);
    // All of it left before the repetitions came.
    bench.feed(&report(3, 0, &holds[..6]));
    bench.feed(&report(3, 0, &holds));
    assert_eq!(bench.sent(), [14, 16]);
    bench.feed(&report(5, 0, &holds[1..]));
    assert_eq!(bench.sent(), []);
    // 14 was sent again after 5, and is there: 5 was lost once more.
    bench.feed(&report(5, 0, &[6, 7, 8, 9, 10, 11, 12, 13, 14, 15]));
    assert_eq!(bench.sent(), [5]);
    // What the peer had no room for is a hole too.
    bench.feed(&ack(16));
    bench.feed(&report(17, 3, &[18]));
    assert_eq!(bench.sent(), [17, 19]);
    bench.feed(&ack(20));
    assert_eq!(bench.completed(), [Status::Success; 3]);
}

/// Catches: believing a report about packets that were never sent, or one that a network holds
/// back for long.
#[test]
fn reports_of_what_cannot_be_are_dropped() {
    let mut bench = sluice();
    post(&mut bench, &[(Operation::Send, 6 * MTU)]);
    assert_eq!(bench.sent().len(), 6);
    bench.feed(&report(2, 0, &[6]));
    bench.feed(&report(2, 5, &[3]));
    bench.feed(&report(0x80_0000, 9, &[]));
    assert_eq!(bench.sent(), []);
    bench.feed(&ack(3));
    bench.feed(&report(0, 0, &[2]));
    assert_eq!(bench.sent(), []);
    let counters = *bench.connection.counters();
    assert_eq!(
        (counters.reports, counters.future_responses),
        (0, 2),
        "{counters:?}"
    );
    // Who does not take part in it does not even look at them.
    let mut other = Bench::new();
    post(&mut other, &[(Operation::Send, 6 * MTU)]);
    assert_eq!(other.sent().len(), 6);
    other.feed(&report(0, 0, &[2]));
    other.feed(&told(missing(1)));
    assert_eq!(other.sent(), [1, 2, 3, 4, 5]);
}

fn sends(psns: std::ops::Range<u32>) -> impl Iterator<Item = Made> {
    let last = psns.end - 1;
    psns.map(move |psn| {
        let operation = match psn {
            0 => Op::SendFirst,
            psn if psn == last => Op::SendLast,
            _ => Op::SendMiddle,
        };
        request(operation, psn, MTU as usize, GOOD, 0)
    })
}

/// A responder keeps whatever comes early, of any request, and does it in order; one that does not
/// know the peer says no more than a NAK. Catches: effects before their turn.
#[test]
fn what_comes_early_waits_for_its_turn() {
    let mut bench = sluice();
    let made: Vec<Made> = sends(0..4)
        .chain([
            request(Op::WriteOnly, 4, 8, GOOD, 0),
            request(Op::FetchAdd, 5, 0, GOOD, 7),
            request(Op::ReadRequest, 6, 0, GOOD, 2 * MTU),
            request(Op::SendOnly, 8, 3, GOOD, 0),
        ])
        .collect();
    assert_eq!(bench.deliver(&made[0]), [Reply::Ack(0)]);
    assert_eq!(
        bench.deliver(&made[2]),
        [Reply::Nak(1, NakCode::SequenceError)]
    );
    for early in [3, 4, 5, 6, 7] {
        assert_eq!(bench.deliver(&made[early]), []);
    }
    assert!(bench.memory.writes.is_empty() && bench.memory.received.is_empty());
    assert_eq!(bench.memory.counter, 0);
    let replies = bench.deliver(&made[1]);
    assert_eq!(replies[0], Reply::Atomic(5, 0));
    assert_eq!(
        replies[1],
        Reply::Read(6, Op::ReadResponseFirst, MTU as usize)
    );
    assert_eq!(replies[3], Reply::Ack(8));
    assert_eq!(bench.memory.received, [4 * MTU, 3]);
    assert_eq!((bench.memory.writes.len(), bench.memory.counter), (1, 7));
    // Sent again by one that knows no better, it is answered and not done again.
    assert_eq!(bench.deliver(&made[7]), [Reply::Ack(8)]);
    assert_eq!(bench.deliver(&made[5]), [Reply::Atomic(5, 0)]);
    assert_eq!(bench.memory.counter, 7);
}

/// A packet with a number that the peer is far from, as a stranger guesses one. Catches: reports of
/// more than the peer has sent from then on, which it drops.
#[test]
fn a_number_far_ahead_is_in_no_report() {
    let mut bench = sluice();
    let made: Vec<Made> = sends(0..6).collect();
    bench.feed(&told(made[0].clone()));
    bench.feed(&sends(5000..5001).next().unwrap());
    assert_eq!(reports(&mut bench), []);
    bench.feed(&made[2]);
    bench.feed(&made[4]);
    assert_eq!(reports(&mut bench), [(1, 4, vec![1, 3])]);
}

/// Catches: a report to a stranger, a report that leaves after the NAK or not at all, one about
/// what is done.
#[test]
fn reports_are_for_those_who_know_them() {
    let mut bench = sluice();
    let made: Vec<Made> = sends(0..30).collect();
    bench.feed(&made[0]);
    bench.feed(&made[2]);
    assert_eq!(reports(&mut bench), []);
    bench.feed(&told(made[0].clone()));
    bench.feed(&made[4]);
    bench.feed(&made[5]);
    assert_eq!(reports(&mut bench), [(1, 5, vec![1, 3, 4])]);
    assert_eq!(reports(&mut bench), []);
    bench.feed(&made[1]);
    let answers = bench.take(10);
    assert!(matches!(answers[0].payload, Payload::Report { .. }));
    let aeth = answers[1].headers.aeth.unwrap();
    let wanted = sluice_wire::extended::Syndrome::Nak(NakCode::SequenceError);
    assert_eq!((aeth.syndrome, answers.len()), (wanted, 2));
    bench.feed(&made[3]);
    assert_eq!(bench.replies(), [Reply::Ack(5)]);
}

/// What is kept of a message that is not wanted is dropped: no receive, or refused.
#[test]
fn nothing_is_kept_behind_what_is_not_taken() {
    let mut bench = sluice();
    bench.memory.receives = 0;
    let send = |psn| request(Op::SendOnly, psn, 4, GOOD, 0);
    assert_eq!(
        bench.deliver(&send(1)),
        [Reply::Nak(0, NakCode::SequenceError)]
    );
    bench.feed(&send(2));
    assert_eq!(bench.deliver(&send(0)), [Reply::Rnr(0)]);
    assert_eq!(bench.deliver(&send(3)), []);
    bench.memory.receives = 2;
    assert_eq!(bench.deliver(&send(0)), [Reply::Ack(0)]);
    assert_eq!(bench.memory.received.len(), 1);
    bench.memory.receives = 1;
    bench.feed(&send(1));
    bench.replies();
    // Kept, and then there is no receive for the second of them.
    bench.feed(&send(3));
    bench.feed(&send(4));
    bench.memory.receives = 2;
    bench.replies();
    bench.feed(&send(2));
    assert_eq!(bench.replies(), [Reply::Rnr(4)]);
    assert_eq!(bench.memory.received.len(), 4);
    let bad = Remote { rkey: 2, ..GOOD };
    bench.memory.receives = 9;
    bench.feed(&request(Op::WriteOnly, 5, 8, bad, 0));
    bench.feed(&send(6));
    bench.feed(&send(4));
    // RNR was said of 4, so that what followed it was not kept.
    assert_eq!(bench.memory.received.len(), 5);
    bench.feed(&send(6));
    bench.feed(&request(Op::WriteOnly, 5, 8, bad, 0));
    let last = bench.replies().pop();
    assert_eq!(last, Some(Reply::Nak(5, NakCode::RemoteAccess)));
    assert_eq!(bench.memory.received.len(), 5);
}

fn pieces(bench: &mut Bench) -> Vec<(u32, u32)> {
    let packets = bench.take(100);
    let asked = packets.iter().map(|packet| {
        let reth = packet.headers.reth.expect("a READ");
        (packet.headers.bth.psn.get(), reth.length / MTU)
    });
    asked.collect()
}

/// Of a READ only what is missing is asked for again, and of READs behind it nothing that came.
/// Catches: all READs asked for again for each loss, until no retry is left.
#[test]
fn missing_pieces_of_reads_are_asked_for() {
    let data = |psn: u32| {
        let operation = match psn % 10 {
            0 => Op::ReadResponseFirst,
            9 => Op::ReadResponseLast,
            _ => Op::ReadResponseMiddle,
        };
        read_data(operation, psn, MTU as usize)
    };
    for known in [true, false] {
        let mut bench = sluice();
        let read = (Operation::Read(GOOD), 10 * MTU);
        post(&mut bench, &[read, read, read]);
        assert_eq!(pieces(&mut bench), [(0, 10), (10, 10), (20, 10)]);
        let told = |made| if known { told(made) } else { made };
        bench.feed(&told(data(0)));
        for psn in (3..10).chain(10..14).chain(15..30) {
            bench.feed(&data(psn));
        }
        let wanted = if known {
            [(1, 2), (14, 1)]
        } else {
            [(1, 9), (14, 6)]
        };
        assert_eq!(pieces(&mut bench), wanted);
        for _ in 0..20 {
            bench.feed(&data(29));
        }
        assert_eq!(pieces(&mut bench), []);
        // Of the repetition the first is lost. A piece has an end of its own.
        let end = |psn: u32| match known {
            true => read_data(Op::ReadResponseLast, psn, MTU as usize),
            false => data(psn),
        };
        bench.feed(&end(2));
        if !known {
            // What it was asked for begins before that and ends behind it.
            (3..10).for_each(|psn| bench.feed(&data(psn)));
        }
        let wanted = if known { (1, 1) } else { (1, 9) };
        assert_eq!(pieces(&mut bench)[0], wanted);
        bench.feed(&end(1));
        assert_eq!(bench.completed(), [Status::Success]);
        bench.feed(&end(14));
        assert_eq!(bench.completed(), [Status::Success; 2]);
        assert_eq!(bench.connection.counters().timeouts, 0);
        let placed: usize = bench.memory.placed.iter().map(|(_, _, len)| len).sum();
        assert_eq!(placed, 30 * MTU as usize, "each piece once");
    }
}

/// What was acknowledged behind a READ whose data is missing needs no second acknowledgement.
/// Catches: a message that is sent again, or waits for a probe.
#[test]
fn acknowledgements_behind_missing_data_count() {
    let mut bench = sluice();
    let send = (Operation::Send, 4);
    post(&mut bench, &[(Operation::Read(GOOD), 4), send, send, send]);
    assert_eq!(bench.sent(), [0, 1, 2, 3]);
    bench.feed(&ack(2));
    assert_eq!(bench.sent(), [0]);
    bench.feed(&read_data(Op::ReadResponseOnly, 0, 4));
    assert_eq!(bench.completed(), [Status::Success; 3]);
    bench.feed(&ack(3));
    assert_eq!(bench.completed(), [Status::Success]);
}

/// With a peer that drops all behind a missing packet, less is under way after a loss, so that the
/// next one costs less; and with time all of it again. Catches: a window for each NAK.
#[test]
fn losses_that_cost_a_window_make_it_smaller() {
    let mut bench = sluice();
    post(&mut bench, &[(Operation::Send, 4000 * MTU)]);
    let (mut base, mut last) = (0, 0);
    let mut after = Vec::new();
    assert_eq!(bench.sent().len(), 256);
    for _ in 0..5 {
        bench.feed(&missing(base + 1));
        let sent = bench.sent();
        assert_eq!(sent[0], base + 1);
        after.push(sent.len());
        base = *sent.last().unwrap();
        bench.feed(&ack(base));
        base += 1;
        last = bench.sent().pop().unwrap();
    }
    assert!(after[4] < 64, "{after:?}");
    let mut most = 0;
    for _ in 0..40 {
        bench.feed(&ack(last));
        let sent = bench.sent();
        most = most.max(sent.len());
        last = sent.last().copied().unwrap_or(last);
    }
    assert!(most > 100, "{most}");
}
