//! What a peer or a stranger can do by the letters of the RFCs, one test for each, and what of it
//! must have no effect.

mod ends;

use ends::{NOW, honest, pair, plain, segment, talk};
use sluice_tcp::{
    Config, Connection, End, Instant, MILLISECOND, SECOND, SEGMENTS_MAX, Segment, State, Transmit,
};
use sluice_wire::tcp::{Flags, Header, Options};

/// All that it has to say now.
fn all(from: &mut Connection, now: Instant) -> Vec<Transmit> {
    std::iter::from_fn(|| from.transmit(now))
        .take(3 * SEGMENTS_MAX)
        .collect()
}

/// Lets its clock run to its next timer.
fn wait(end: &mut Connection, now: Instant) -> Instant {
    let now = end.timeout().expect("a timer").max(now);
    end.timed_out(now);
    now
}

/// A segment without data, with the numbers that the peer expects.
fn bare(from: &mut Connection) -> Segment {
    let mut segment = honest(from);
    segment.bytes = 0;
    segment.header.flags = Flags::ACK;
    segment
}

fn stamped(segment: &Segment, more: i32) -> Segment {
    let mut other = *segment;
    let stamps = &mut other.header.options.timestamps;
    *stamps = stamps.map(|(value, echo)| (value.wrapping_add_signed(more), echo));
    other
}

/// RFC 7323 §5.3, R1.
#[test]
fn an_old_timestamp_is_answered_and_its_data_not_taken() {
    let (mut a, mut b) = pair(Config::default());
    let data = honest(&mut a);
    for age in [1, 1000, i32::MAX] {
        let received = b.receive(NOW, &stamped(&data, -age));
        assert_eq!((received.place, received.readable), (None, 0), "{age}");
        let answer = b.transmit(NOW).expect("an acknowledgement");
        assert_eq!(answer.header.acknowledgement, data.header.sequence);
    }
    assert_eq!(b.receive(NOW, &stamped(&data, 0)).readable, 1);
}

/// RFC 7323 §3.2: a segment that has none is dropped in silence; §5.2: a reset needs none.
#[test]
fn data_without_a_timestamp_is_dropped_and_a_reset_is_not() {
    let (mut a, mut b) = pair(Config::default());
    let mut data = honest(&mut a);
    data.header.options.timestamps = None;
    assert_eq!(b.receive(NOW, &data).place, None);
    assert_eq!(b.transmit(NOW), None);
    data.bytes = 0;
    data.header.flags = Flags::RST;
    b.receive(NOW, &data);
    assert_eq!(b.end(), Some(End::Reset));
}

/// RFC 7323 §5.5.
#[test]
fn after_24_days_any_timestamp_is_new() {
    let (mut a, mut b) = pair(Config::default());
    let old = stamped(&honest(&mut a), -5);
    let day = 86_400 * SECOND;
    assert_eq!(b.receive(NOW.after(23 * day), &old).place, None);
    assert!(b.receive(NOW.after(25 * day), &old).place.is_some());
}

/// RFC 7323 §5.3, R2 before R3: only what is acceptable says which timestamp is the newest. Else a
/// stranger who knows no sequence number silences the peer for 24 days.
#[test]
fn a_timestamp_of_an_unacceptable_segment_is_not_believed() {
    for (sequence, acknowledgement) in [(1_u32 << 30, 0), (2, 0), (70, 0), (0, 1 << 30), (0, 1)] {
        let (mut a, mut b) = pair(Config::default());
        // Two full segments, which are acknowledged at once.
        a.write(2 * 1448);
        talk(&mut a, &mut b);
        let data = honest(&mut a);
        let mut lie = stamped(&data, 1 << 30);
        lie.header.sequence = lie.header.sequence.wrapping_sub(sequence);
        lie.header.acknowledgement = lie.header.acknowledgement.wrapping_add(acknowledgement);
        for bytes in [0, 1] {
            lie.bytes = bytes;
            assert_eq!(b.receive(NOW, &lie).place, None);
        }
        let received = b.receive(NOW, &data);
        let what = format!("{sequence:#x} {acknowledgement:#x}");
        assert_eq!(received.readable, 2897, "{what}");
    }
}

/// RFC 7323 §4.3: what lies behind a hole must not make what fills it old.
#[test]
fn what_is_ahead_does_not_make_what_it_waits_for_old() {
    let (mut a, mut b) = pair(Config::default());
    let first = honest(&mut a);
    let second = stamped(&honest(&mut a), 500);
    assert!(b.receive(NOW, &second).place.is_some());
    assert_eq!(b.receive(NOW, &first).readable, 2);
}

/// RFC 9293 §3.7.1 (MUST-15, MUST-16), and CVE-2019-11479: a peer chooses how many headers its
/// bytes cost, within limits.
#[test]
fn the_peer_says_the_largest_segment_within_limits() {
    for (said, least, most) in [
        (None, 536, 536),
        (Some(0), 76, 128),
        (Some(48), 76, 128),
        (Some(700), 700, 700),
        (Some(u16::MAX), 1460, 1460),
    ] {
        let mut a = Connection::connect(plain(), 1, 1, NOW);
        let syn = segment(&a.transmit(NOW).expect("a SYN"));
        let mut b = Connection::accept(plain(), &syn, 9, 9, NOW).expect("a SYN");
        let mut answer = segment(&b.transmit(NOW).expect("a SYN-ACK"));
        answer.header.options.mss = said;
        a.receive(NOW, &answer);
        a.write(20_000_000);
        let sent = all(&mut a, NOW);
        let sizes = sent
            .iter()
            .map(|sent| sent.payload.end - sent.payload.start);
        let largest = sizes.max().expect("data");
        assert!((least..=most).contains(&largest), "{said:?}: {largest}");
    }
}

/// CVE-2019-11478: tiny segments, and a SACK for every second of them.
#[test]
fn the_memory_of_what_is_in_flight_is_bounded() {
    let mut a = Connection::connect(plain(), 1, 1, NOW);
    let syn = segment(&a.transmit(NOW).expect("a SYN"));
    let mut b = Connection::accept(plain(), &syn, 9, 9, NOW).expect("a SYN");
    let mut answer = segment(&b.transmit(NOW).expect("a SYN-ACK"));
    answer.header.options.mss = Some(1);
    answer.header.options.window_scale = Some(14);
    a.receive(NOW, &answer);
    talk(&mut a, &mut b);
    a.write(100_000_000);
    let mut acknowledgement = bare(&mut b);
    let (mut next, mut most) = (acknowledgement.header.acknowledgement, 0);
    for round in 0..30_000_u32 {
        for sent in all(&mut a, NOW) {
            next = next.max(sent.header.sequence + segment(&sent).bytes);
        }
        most = most.max(a.remembered().0);
        // Every second segment of those in flight, and every fourth round one more is complete.
        let mut lie = acknowledgement;
        lie.header.window = u16::MAX;
        let left = lie.header.acknowledgement + 76 * (1 + 2 * (round % 200));
        lie.header.options.push_sack(left, left + 76);
        if round % 4 == 0 && acknowledgement.header.acknowledgement + 76 < next {
            acknowledgement.header.acknowledgement += 76;
            lie.header.acknowledgement = acknowledgement.header.acknowledgement;
        }
        a.receive(NOW, &lie);
    }
    assert!(most > 100, "{most}");
    assert!(most <= 2 * SEGMENTS_MAX, "{most}");
}

/// RFC 5961 §5.2, and what "optimistic acknowledging" (Savage et al. 1999) hopes for.
#[test]
fn an_acknowledgement_of_what_was_not_sent_is_none() {
    let (mut a, mut b) = pair(plain());
    a.write(100_000);
    let sent = all(&mut a, NOW);
    let (window, end) = (
        a.congestion_window(),
        sent.last().expect("data").payload.end,
    );
    let mut lie = bare(&mut b);
    lie.header.acknowledgement = lie.header.acknowledgement.wrapping_add(end as u32 + 1);
    lie.header.window = 7;
    let received = a.receive(NOW, &lie);
    assert_eq!((received.acknowledged, a.unacknowledged()), (0, 100_000));
    assert_eq!(a.congestion_window(), window);
    let answer = a.transmit(NOW).expect("a challenge");
    assert!(answer.payload.is_empty());
    assert_eq!(a.counters().challenges, 1);
    // Nor was it believed what it said of its window.
    lie.header.acknowledgement = lie.header.acknowledgement.wrapping_sub(1);
    lie.header.window = u16::MAX;
    assert_eq!(a.receive(NOW, &lie).acknowledged, end);
    assert!(!all(&mut a, NOW).is_empty());
}

/// RFC 3465 §2.3, "acknowledgement division": many for one segment gain what one does.
#[test]
fn acknowledging_byte_by_byte_gains_nothing() {
    let windows = [1460, 73, 1].map(|step| {
        let (mut a, mut b) = pair(plain());
        a.write(1_000_000);
        all(&mut a, NOW);
        let mut acknowledgement = bare(&mut b);
        for _ in 0..1460 / step {
            let number = &mut acknowledgement.header.acknowledgement;
            *number = number.wrapping_add(step);
            a.receive(NOW, &acknowledgement);
        }
        assert_eq!(a.acknowledged(), 1460);
        a.congestion_window()
    });
    assert_eq!(windows, [windows[0]; 3]);
}

/// RFC 2018 §8: what was reported may be thrown away; only the acknowledgement counts.
#[test]
fn a_receiver_that_throws_away_what_it_reported_gets_it_again() {
    let (mut a, mut b) = pair(plain());
    a.write(14_000);
    let (mut now, first) = (NOW, all(&mut a, NOW));
    let mut answer = bare(&mut b);
    let base = answer.header.acknowledgement;
    let number = |offset: u64| base.wrapping_add(offset as u32);
    let rest = number(first[2].payload.start);
    answer.header.options.push_sack(rest, number(14_000));
    a.receive(now, &answer);
    answer.header.options = Options::default();
    let (mut there, mut rounds) = (0, 0);
    while there < 14_000 {
        for sent in all(&mut a, now) {
            if sent.payload.start <= there {
                there = there.max(sent.payload.end);
                answer.header.acknowledgement = number(there);
                a.receive(now, &answer);
            }
        }
        if a.unacknowledged() > 0 {
            now = wait(&mut a, now);
        }
        rounds += 1;
        assert!(rounds < 30, "{there} bytes after {rounds} timers");
    }
    assert_eq!(a.acknowledged(), 14_000);
}

/// RFC 9293 §3.8.6 (SHLD-14 and -15): what the peer sends is acknowledged by a number that it
/// takes, though the window ends within what was sent; so does a reset.
#[test]
fn a_window_that_shrinks_does_not_silence_us() {
    let (mut a, mut b) = pair(plain());
    a.write(2920);
    assert_eq!(all(&mut a, NOW).len(), 2);
    // Neither arrived, and the window ends 320 bytes (10, shifted by 5) behind the SYN.
    let mut less = honest(&mut b);
    less.header.window = 10;
    a.receive(NOW, &less);
    a.write(1000);
    let now = NOW.after(50 * MILLISECOND);
    a.timed_out(now);
    let acknowledgement = a.transmit(now).expect("an acknowledgement");
    assert!(acknowledgement.payload.is_empty());
    let first = (u32::MAX - 5).wrapping_add(1);
    assert!(acknowledgement.header.sequence.wrapping_sub(first) <= 320);
    assert_eq!(acknowledgement.header.acknowledgement, 0x8000_0002);
    assert_eq!(a.transmit(now), None);
    a.abort();
    let reset = a.transmit(now).expect("a reset");
    assert!(reset.header.sequence.wrapping_sub(first) <= 320);
}

/// While a probe of a closed window is out, what the peer sends is acknowledged with a number in its window.
#[test]
fn the_peers_data_is_acknowledged_while_its_window_is_probed() {
    let config = Config {
        receive_buffer: 2920,
        ..plain()
    };
    let (mut a, mut b) = pair(config);
    a.write(3000);
    talk(&mut a, &mut b);
    let now = wait(&mut a, NOW);
    assert_eq!(a.transmit(now).expect("a probe").payload, 2920..2921);
    b.write(2000);
    for sent in all(&mut b, now) {
        a.receive(now, &segment(&sent));
    }
    a.timed_out(now.after(50 * MILLISECOND));
    for sent in all(&mut a, now.after(50 * MILLISECOND)) {
        b.receive(now, &segment(&sent));
    }
    assert_eq!((a.readable(), b.acknowledged()), (2000, 2000));
}

/// A window that shuts and opens says that what lay beyond it was thrown away, once in a round
/// trip at most: no pair of small segments makes us send all again.
#[test]
fn a_window_that_flaps_is_no_lever() {
    // A round trip of 10 ms.
    let mut a = Connection::connect(plain(), 1, 1, NOW);
    let syn = segment(&a.transmit(NOW).expect("a SYN"));
    let mut now = NOW.after(10 * MILLISECOND);
    let mut b = Connection::accept(plain(), &syn, 9, 9, now).expect("a SYN");
    let answer = segment(&b.transmit(now).expect("a SYN-ACK"));
    a.receive(now, &answer);
    b.receive(
        now,
        &segment(&a.transmit(now).expect("its acknowledgement")),
    );
    let mut answer = bare(&mut b);
    a.write(14_000);
    let flight = all(&mut a, now).len();
    let mut again = 0;
    for _ in 0..100 {
        now = now.after(MILLISECOND);
        for window in [0, u16::MAX] {
            answer.header.window = window;
            a.receive(now, &answer);
        }
        let sent = all(&mut a, now);
        again += sent.iter().filter(|s| !s.payload.is_empty()).count();
    }
    assert!(again <= 11 * flight, "{again} segments for 100 pairs");
}

/// RFC 9293 §3.8.6.1: a closed window is asked about for as long as it is answered, and counts as
/// silence when it is not.
#[test]
fn probes_of_a_closed_window_go_on_while_they_are_answered() {
    let config = Config {
        receive_buffer: 2920,
        ..plain()
    };
    let (mut a, mut b) = pair(config);
    a.write(5000);
    talk(&mut a, &mut b);
    let mut now = NOW;
    // Longer than the user timeout.
    while now < NOW.after(3000 * SECOND) {
        now = wait(&mut a, now);
        for probe in all(&mut a, now) {
            b.receive(now, &segment(&probe));
        }
        for answer in all(&mut b, now) {
            a.receive(now, &segment(&answer));
        }
        assert_eq!((a.state(), b.readable()), (State::Established, 2920));
    }
    let since = now;
    while a.end().is_none() {
        now = wait(&mut a, now);
        all(&mut a, now);
    }
    assert_eq!(a.end(), Some(End::TimedOut));
    let silence = now.since(since);
    assert!(
        (300 * SECOND..=360 * SECOND).contains(&silence),
        "{silence}"
    );
}

/// How long ago the window was shut says nothing of a peer that nobody has asked since.
#[test]
fn a_window_that_was_shut_long_ago_is_asked_about_first() {
    let config = Config {
        receive_buffer: 2920,
        ..plain()
    };
    let (mut a, mut b) = pair(config);
    a.write(2920);
    talk(&mut a, &mut b);
    let now = NOW.after(1000 * SECOND);
    a.write(1);
    assert_eq!(a.transmit(now), None);
    let now = wait(&mut a, now);
    assert_eq!(a.state(), State::Established);
    assert_eq!(a.transmit(now).expect("a probe").payload, 2920..2921);
}

/// RFC 9293 §3.8.6.2.1: a window that is worth no segment is used when the override timer runs
/// out, also while the peer keeps talking.
#[test]
fn a_small_window_is_used_after_a_while_whatever_else_is_said() {
    let (mut a, mut b) = pair(plain());
    let mut chatter = honest(&mut b);
    chatter.header.window = 3;
    a.receive(NOW, &chatter);
    a.write(5000);
    let mut now = NOW;
    for _ in 0..200 {
        let sent = all(&mut a, now);
        if let Some(sent) = sent.iter().find(|sent| !sent.payload.is_empty()) {
            assert_eq!(sent.payload, 0..3 << 5);
            return;
        }
        now = now.after(50 * MILLISECOND);
        if a.timeout().is_some_and(|due| due <= now) {
            a.timed_out(now);
        }
        chatter.header.sequence = chatter.header.sequence.wrapping_add(1);
        a.receive(now, &chatter);
    }
    panic!("nothing for {} ms", now.since(NOW) / MILLISECOND);
}

/// RFC 9293 §3.10.7.4, first check: outside of the window a reset is not even answered.
#[test]
fn a_reset_outside_of_the_window_is_nothing() {
    for distance in [-1_i32, -70_000, (1 << 20) + 1, 1 << 30, i32::MIN] {
        let (mut a, mut b) = pair(plain());
        let mut lie = bare(&mut a);
        lie.header.flags = Flags::RST.with(Flags::ACK);
        lie.header.sequence = lie.header.sequence.wrapping_add_signed(distance);
        b.receive(NOW, &lie);
        assert_eq!((b.state(), b.transmit(NOW)), (State::Established, None));
    }
}

/// RFC 1337 §3, F1.
#[test]
fn resets_and_syns_do_not_end_time_wait() {
    let (mut a, mut b) = pair(plain());
    a.shutdown();
    talk(&mut a, &mut b);
    b.shutdown();
    talk(&mut a, &mut b);
    assert_eq!(a.state(), State::TimeWait);
    for flags in [Flags::RST, Flags::SYN, Flags::SYN.with(Flags::ACK)] {
        let lie = Segment {
            header: Header {
                flags,
                sequence: 0x8000_0002,
                acknowledgement: u32::MAX - 3,
                ..Header::default()
            },
            ..Segment::default()
        };
        a.receive(NOW, &lie);
        assert_eq!(a.state(), State::TimeWait);
    }
    assert_eq!(a.timeout(), Some(NOW.after(60 * SECOND)));
}

/// RFC 9293 §3.10.7.3: what does not acknowledge the SYN cannot refuse it.
#[test]
fn a_reset_before_the_answer_must_know_the_number() {
    for (flags, acknowledgement, end) in [
        (Flags::RST, 101, None),
        (Flags::RST.with(Flags::ACK), 100, None),
        (Flags::RST.with(Flags::ACK), 102, None),
        (Flags::RST.with(Flags::ACK), 101, Some(End::Refused)),
    ] {
        let mut a = Connection::connect(plain(), 100, 1, NOW);
        a.transmit(NOW).expect("a SYN");
        let lie = Segment {
            header: Header {
                flags,
                acknowledgement,
                ..Header::default()
            },
            ..Segment::default()
        };
        a.receive(NOW, &lie);
        assert_eq!((a.end(), a.transmit(NOW)), (end, None));
    }
}

/// RFC 9293 §3.8.4: a number that was acknowledged, with no byte or one; the answer says what is
/// expected.
#[test]
fn keep_alives_are_answered_and_take_no_place() {
    for config in [plain(), Config::default()] {
        for bytes in [0, 1] {
            let (mut a, mut b) = pair(config);
            a.write(100);
            talk(&mut a, &mut b);
            let mut alive = honest(&mut a);
            alive.bytes = bytes;
            alive.header.sequence = alive.header.sequence.wrapping_sub(1);
            let received = b.receive(NOW, &alive);
            assert_eq!((received.place, received.readable), (None, 100));
            let answer = b.transmit(NOW).expect("an answer");
            assert!(answer.payload.is_empty());
            let expected = alive.header.sequence.wrapping_add(1);
            assert_eq!(answer.header.acknowledgement, expected);
        }
    }
}

/// RFC 6093 §6: urgent data is data, wherever the pointer points.
#[test]
fn urgent_data_is_data() {
    for urgent in [0, 1, 50, 100, 101, u16::MAX] {
        let (mut a, mut b) = pair(plain());
        a.write(100);
        let mut sent = segment(&a.transmit(NOW).expect("data"));
        sent.header.flags = sent.header.flags.with(Flags::URG);
        sent.header.urgent = urgent;
        let received = b.receive(NOW, &sent);
        assert_eq!(received.place.map(|place| place.payload), Some(0..100));
        assert_eq!((received.readable, b.readable()), (100, 100));
    }
}

/// RFC 9293 §3.5, figure 7, with an answer that is lost; §3.6, figure 13, with data that is lost
/// before the FIN.
#[test]
fn both_open_and_both_close_at_once_and_lose_an_answer() {
    let mut a = Connection::connect(Config::default(), 100, 1, NOW);
    let mut b = Connection::connect(Config::default(), 300, 2, NOW);
    let syns = [&mut a, &mut b].map(|end| segment(&end.transmit(NOW).expect("a SYN")));
    a.receive(NOW, &syns[1]);
    b.receive(NOW, &syns[0]);
    a.transmit(NOW).expect("an answer, which is lost");
    talk(&mut a, &mut b);
    let states = (a.state(), b.state());
    assert_eq!(states, (State::Established, State::Established));
    let mut now = NOW;
    a.write(3000);
    a.shutdown();
    b.write(10);
    b.shutdown();
    let (from_a, from_b) = (all(&mut a, now), all(&mut b, now));
    for sent in from_b {
        a.receive(now, &segment(&sent));
    }
    b.receive(now, &segment(from_a.last().expect("a FIN")));
    assert_eq!((a.readable(), b.readable()), (10, 0));
    for _ in 0..8 {
        for sent in all(&mut a, now) {
            b.receive(now, &segment(&sent));
        }
        for sent in all(&mut b, now) {
            a.receive(now, &segment(&sent));
        }
        if b.state() == State::TimeWait {
            break;
        }
        now = wait(&mut a, now);
    }
    assert_eq!((b.readable(), b.fin_arrived()), (3000, true));
    assert_eq!((a.state(), b.state()), (State::TimeWait, State::TimeWait));
}
