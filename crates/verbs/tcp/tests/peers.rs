//! Opening and closing, and peers and strangers that lie.

mod ends;

use ends::{NOW, honest, pair, plain, segment, talk, talk_at};
use sluice_tcp::{Config, Connection, End, Segment, State, refuse};
use sluice_wire::tcp::{Flags, Header};

#[test]
fn streams_end_one_after_the_other_or_at_once() {
    let (mut a, mut b) = pair(Config::default());
    a.shutdown();
    talk(&mut a, &mut b);
    assert_eq!((a.state(), b.state()), (State::FinWait2, State::CloseWait));
    b.write(5);
    talk(&mut a, &mut b);
    assert_eq!(a.readable(), 5);
    b.shutdown();
    talk(&mut a, &mut b);
    assert_eq!((a.state(), b.end()), (State::TimeWait, Some(End::Finished)));
    a.timed_out(a.timeout().expect("the end of TIME-WAIT"));
    assert_eq!(a.end(), Some(End::Finished));

    let (mut a, mut b) = pair(Config::default());
    a.shutdown();
    b.shutdown();
    let (from_a, from_b) = (
        a.transmit(NOW).expect("a FIN"),
        b.transmit(NOW).expect("a FIN"),
    );
    a.receive(NOW, &segment(&from_b));
    b.receive(NOW, &segment(&from_a));
    assert_eq!((a.state(), b.state()), (State::Closing, State::Closing));
    talk(&mut a, &mut b);
    assert_eq!((a.state(), b.state()), (State::TimeWait, State::TimeWait));
}

/// RFC 9293 §3.5, figure 7.
#[test]
fn both_may_open_at_once() {
    let mut a = Connection::connect(Config::default(), 100, 1, NOW);
    let mut b = Connection::connect(Config::default(), 300, 2, NOW);
    let (from_a, from_b) = (
        a.transmit(NOW).expect("a SYN"),
        b.transmit(NOW).expect("a SYN"),
    );
    a.receive(NOW, &segment(&from_b));
    b.receive(NOW, &segment(&from_a));
    assert_eq!(
        (a.state(), b.state()),
        (State::SynReceived, State::SynReceived)
    );
    talk(&mut a, &mut b);
    assert_eq!(
        (a.state(), b.state()),
        (State::Established, State::Established)
    );
    a.write(70_000);
    talk(&mut a, &mut b);
    assert_eq!(b.readable(), 70_000);
}

#[test]
fn who_does_not_listen_refuses() {
    let mut a = Connection::connect(Config::default(), 100, 1, NOW);
    let syn = segment(&a.transmit(NOW).expect("a SYN"));
    let reset = segment(&refuse(&syn).expect("an answer"));
    // One that acknowledges something else is a stranger's.
    let mut wrong = reset;
    wrong.header.acknowledgement ^= 4;
    a.receive(NOW, &wrong);
    assert_eq!(a.state(), State::SynSent);
    a.receive(NOW, &reset);
    assert_eq!(a.end(), Some(End::Refused));
    assert_eq!(refuse(&reset), None);
}

/// RFC 5961 §3.2: only the very next number resets; others in the window are asked about.
#[test]
fn a_blind_reset_is_challenged() {
    for distance in [1, 1000, 60_000] {
        let (mut a, mut b) = pair(plain());
        let mut lie = honest(&mut a);
        lie.bytes = 0;
        lie.header.flags = Flags::RST;
        lie.header.sequence = lie.header.sequence.wrapping_add(distance);
        b.receive(NOW, &lie);
        assert_eq!(b.state(), State::Established);
        let answer = b.transmit(NOW).expect("a challenge");
        assert_eq!(answer.header.flags, Flags::ACK);
        lie.header.sequence = answer.header.acknowledgement;
        b.receive(NOW, &lie);
        assert_eq!(b.end(), Some(End::Reset));
    }
}

/// RFC 5961 §4.2, §7.
#[test]
fn a_blind_syn_is_challenged_and_a_flood_of_them_seldom() {
    let (mut a, mut b) = pair(plain());
    let mut lie = honest(&mut a);
    lie.bytes = 0;
    lie.header.flags = Flags::SYN;
    let mut answers = 0;
    for _ in 0..1000 {
        b.receive(NOW, &lie);
        answers += u32::from(b.transmit(NOW).is_some());
    }
    assert_eq!((b.state(), answers), (State::Established, 10));
}

/// RFC 5961 §5.2: data with an acknowledgement of what was not sent, or long ago, is no data.
#[test]
fn data_with_impossible_acknowledgements_is_thrown_away() {
    for distance in [1_u32, 1 << 30, 1_u32.wrapping_neg() << 22, 1 << 31] {
        let (mut a, mut b) = pair(plain());
        let mut lie = honest(&mut a);
        lie.header.acknowledgement = lie.header.acknowledgement.wrapping_add(distance);
        assert_eq!(b.receive(NOW, &lie).place, None, "{distance:#x}");
        assert_eq!((b.readable(), b.state()), (0, State::Established));
    }
}

#[test]
fn sacks_of_what_was_never_sent_or_is_backwards_change_nothing() {
    let (mut a, mut b) = pair(plain());
    a.write(20_000);
    let sent: Vec<_> = std::iter::from_fn(|| a.transmit(NOW)).collect();
    let mut lie = honest(&mut b);
    let first = sent[0].header.sequence;
    lie.header
        .options
        .push_sack(first.wrapping_add(1 << 20), first.wrapping_add(1 << 21));
    lie.header
        .options
        .push_sack(first.wrapping_add(5000), first.wrapping_add(10));
    lie.header
        .options
        .push_sack(first.wrapping_sub(9000), first.wrapping_add(1 << 30));
    a.receive(NOW, &lie);
    let counters = a.counters();
    assert!(a.transmit(NOW).is_none_or(|again| again.payload.is_empty()));
    assert_eq!(counters.retransmitted, 0);
    for sent in &sent {
        b.receive(NOW, &segment(sent));
    }
    talk(&mut a, &mut b);
    assert_eq!(b.readable(), 20_000);
}

#[test]
fn a_closed_window_is_probed_and_opens_again() {
    let config = Config {
        receive_buffer: 2920,
        ..plain()
    };
    let (mut a, mut b) = pair(config);
    a.write(10_000);
    talk(&mut a, &mut b);
    assert_eq!(b.readable(), 2920);
    let mut now = NOW;
    for _ in 0..5 {
        now = a.timeout().expect("a probe's time").max(now);
        a.timed_out(now);
        let probe = a.transmit(now).expect("a probe");
        assert_eq!(probe.payload, 2920..2921);
        assert_eq!(b.receive(now, &segment(&probe)).place, None);
        a.receive(now, &segment(&b.transmit(now).expect("an answer")));
        assert_eq!(a.state(), State::Established);
    }
    for _ in 0..10 {
        b.read(u64::MAX);
        talk_at(now, &mut a, &mut b);
    }
    assert_eq!(b.readable(), 10_000);
}

/// A window that shrinks, an MSS of one byte: less speed, no harm.
#[test]
fn small_windows_and_tiny_segments_are_borne() {
    let mut a = Connection::connect(plain(), 1, 1, NOW);
    let syn = segment(&a.transmit(NOW).expect("a SYN"));
    let mut b = Connection::accept(plain(), &syn, 9, 9, NOW).expect("a SYN");
    let mut answer = segment(&b.transmit(NOW).expect("a SYN-ACK"));
    answer.header.options.mss = Some(1);
    a.receive(NOW, &answer);
    a.write(1000);
    let sizes: Vec<_> = std::iter::from_fn(|| a.transmit(NOW)).collect();
    assert!(
        sizes
            .iter()
            .all(|sent| sent.payload.end - sent.payload.start >= 76)
    );
    b.receive(NOW, &segment(&sizes[0]));
    let mut shrunk = honest(&mut b);
    shrunk.header.window = 0;
    a.receive(NOW, &shrunk);
    a.write(1000);
    assert!(a.transmit(NOW).is_none_or(|sent| sent.payload.is_empty()));
}

/// What anybody may send, at any time, in any state.
#[test]
fn no_header_makes_it_panic_or_talk_without_end() {
    let mut word = 7_u64;
    let mut random = move || {
        word = word
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (word >> 33) as u32
    };
    for _ in 0..300 {
        let (mut a, mut b) = pair(Config {
            timestamps: random() & 1 == 0,
            ..plain()
        });
        a.write(u64::from(random() % 50_000));
        let mut now = NOW;
        for _ in 0..200 {
            let mut lie = honest(&mut b);
            let near = |random: &mut dyn FnMut() -> u32| (random() % 5000).wrapping_sub(2500);
            lie.header = Header {
                sequence: lie.header.sequence.wrapping_add(near(&mut random)),
                acknowledgement: lie.header.acknowledgement.wrapping_add(near(&mut random)),
                flags: Flags(if random() % 3 == 0 {
                    random() as u8
                } else {
                    16
                }),
                window: random() as u16,
                ..lie.header
            };
            let left = lie.header.acknowledgement.wrapping_add(near(&mut random));
            lie.header
                .options
                .push_sack(left, left.wrapping_add(random() % 3000));
            lie.bytes = random() % 3000;
            let received = a.receive(now, &lie);
            if let Some(place) = received.place {
                assert!(place.payload.end <= lie.bytes && place.offset < (1 << 20));
            }
            now = now.after(u64::from(random() % 500_000_000));
            if a.timeout().is_some_and(|due| due <= now) {
                a.timed_out(now);
            }
            assert!(std::iter::from_fn(|| a.transmit(now)).take(5000).count() < 5000);
            if b.state() != State::Established || a.state() == State::Closed {
                break;
            }
        }
    }
}

/// However many holes there are in front of it, what lies behind the place of a FIN says that it is a lie.
#[test]
fn a_fin_before_what_has_arrived_is_none() {
    let (_, mut b) = pair(plain());
    let byte = |offset: u32| Segment {
        header: Header {
            sequence: (u32::MAX - 5).wrapping_add(1 + offset),
            acknowledgement: 0x8000_0001,
            flags: Flags::ACK,
            window: 1000,
            ..Header::default()
        },
        bytes: 1,
        ..Segment::default()
    };
    // The last comes first: four others have changed since.
    for offset in [50, 10, 20, 30, 40] {
        assert!(b.receive(NOW, &byte(offset)).place.is_some());
    }
    let mut fin = byte(45);
    fin.header.flags = Flags::ACK.with(Flags::FIN);
    fin.bytes = 0;
    b.receive(NOW, &fin);
    let mut all = byte(0);
    all.bytes = 51;
    assert_eq!(b.receive(NOW, &all).readable, 51);
    assert!(!b.fin_arrived());
    assert_eq!(b.state(), State::Established);
}
