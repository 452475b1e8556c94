//! Every byte, in order, both ways, and the ends of streams.

mod common;

use std::io::{Read, Write};
use std::net::{Shutdown, TcpStream};
use std::time::Duration;

use common::{Relay, pattern};
use proptest::prelude::*;
use sluice_relay::{End, Event, EventLoop, Interest, Options};

/// What one end does with the stream that it sends, and how it reads.
#[derive(Clone, Debug)]
struct Plan {
    writes: Vec<usize>,
    reads: usize,
    pause: Option<u8>,
}

fn plan() -> impl Strategy<Value = Plan> {
    let size = prop_oneof![1_usize..100, 1_000_usize..100_000, 100_000_usize..1_000_000];
    let writes = proptest::collection::vec(size, 0..12);
    let pause = proptest::option::weighted(0.3, 1_u8..4);
    (writes, 1_usize..100_000, pause).prop_map(|(writes, reads, pause)| Plan {
        writes,
        reads,
        pause,
    })
}

fn write(mut stream: TcpStream, seed: u64, plan: &Plan) {
    let mut at = 0;
    for &length in &plan.writes {
        stream.write_all(&pattern(seed, at, length)).unwrap();
        at += length;
    }
    stream.shutdown(Shutdown::Write).unwrap();
}

/// Reads to the end and checks each byte.
fn read(mut stream: TcpStream, seed: u64, plan: &Plan) -> usize {
    let mut at = 0;
    let mut part = vec![0; plan.reads];
    loop {
        let count = stream.read(&mut part).unwrap();
        if count == 0 {
            return at;
        }
        assert_eq!(&part[..count], pattern(seed, at, count), "at {at}");
        at += count;
        if let Some(ms) = plan.pause
            && at % 7 == 0
        {
            std::thread::sleep(Duration::from_millis(ms.into()));
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]
    #[test]
    fn streams_arrive_as_they_were_sent(
        plans in proptest::collection::vec((plan(), plan()), 1..4),
        buffer_bytes in 1_usize..100_000,
        share_bytes in 1_usize..100_000,
    ) {
        // A byte at a time would take long.
        let buffer_bytes = buffer_bytes.max(200);
        let relay = Relay::new(Options { buffer_bytes, share_bytes, ..Options::default() });
        let mut threads = Vec::new();
        let mut sent = Vec::new();
        for (nth, (to_right, to_left)) in plans.into_iter().enumerate() {
            let (left, right) = relay.pair();
            let total = |plan: &Plan| plan.writes.iter().sum::<usize>() as u64;
            sent.push([total(&to_right), total(&to_left)]);
            for (from, to, seed, plan) in [
                (&left, &right, nth as u64, to_right),
                (&right, &left, nth as u64 + 1000, to_left),
            ] {
                let (from, to) = (from.try_clone().unwrap(), to.try_clone().unwrap());
                let reads = plan.clone();
                threads.push(std::thread::spawn(move || write(from, seed, &plan)));
                threads.push(std::thread::spawn(move || {
                    let expected: usize = reads.writes.iter().sum();
                    assert_eq!(read(to, seed, &reads), expected);
                }));
            }
        }
        for thread in threads {
            thread.join().unwrap();
        }
        let mut ended = Vec::new();
        for _ in 0..sent.len() {
            let (end, bytes) = relay.next_end();
            prop_assert_eq!(end, End::Finished);
            ended.push(bytes);
        }
        ended.sort_unstable();
        sent.sort_unstable();
        prop_assert_eq!(ended, sent);
        let counters = relay.counters();
        prop_assert_eq!((counters.pairs, counters.buffered_bytes), (0, 0));
    }
}

#[test]
fn one_stream_ends_and_the_other_goes_on() {
    let relay = Relay::new(Options::default());
    let (mut left, mut right) = relay.pair();
    left.write_all(b"question").unwrap();
    left.shutdown(Shutdown::Write).unwrap();
    let mut question = String::new();
    right.read_to_string(&mut question).unwrap();
    assert_eq!(question, "question");
    for _ in 0..3 {
        right.write_all(b"answer").unwrap();
        let mut answer = [0; 6];
        left.read_exact(&mut answer).unwrap();
        assert_eq!(&answer, b"answer");
        assert_eq!(relay.counters().pairs, 1);
    }
    drop(right);
    assert_eq!(left.read(&mut [0; 1]).unwrap(), 0);
    assert_eq!(relay.next_end(), (End::Finished, [8, 18]));
}

#[test]
fn a_stream_that_ended_before_the_pair_was_made_is_passed_on() {
    let mut event_loop = EventLoop::new(Options::default()).unwrap();
    let (mut far_left, near_left) = common::connection();
    let (mut far_right, near_right) = common::connection();
    far_left.write_all(b"all of it").unwrap();
    far_left.shutdown(Shutdown::Write).unwrap();
    far_right.shutdown(Shutdown::Write).unwrap();
    for near in [&near_left, &near_right] {
        near.set_nonblocking(true).unwrap();
    }
    let id = event_loop
        .pair(near_left.into(), near_right.into())
        .unwrap();
    let mut events = Vec::new();
    while events.is_empty() {
        event_loop
            .turn(Some(common::PATIENCE), &mut events)
            .unwrap();
    }
    let ended = Event::Ended {
        pair: id,
        end: End::Finished,
        bytes: [9, 0],
    };
    assert_eq!(events, [ended]);
    let mut all = String::new();
    far_right.read_to_string(&mut all).unwrap();
    assert_eq!(all, "all of it");
    assert_eq!(far_left.read(&mut [0; 1]).unwrap(), 0);
}

#[test]
fn a_thousand_pairs_at_once() {
    const PAIRS: usize = 1000;
    let relay = Relay::new(Options::default());
    let mut ends: Vec<_> = (0..PAIRS).map(|_| relay.pair()).collect();
    for round in 0..5_u64 {
        for (nth, (left, right)) in ends.iter_mut().enumerate() {
            let seed = nth as u64 + round;
            left.write_all(&pattern(seed, 0, 700)).unwrap();
            right.write_all(&pattern(seed, 9, 300)).unwrap();
        }
        for (nth, (left, right)) in ends.iter_mut().enumerate() {
            let seed = nth as u64 + round;
            let mut part = [0; 700];
            right.read_exact(&mut part).unwrap();
            assert_eq!(part[..], pattern(seed, 0, 700));
            left.read_exact(&mut part[..300]).unwrap();
            assert_eq!(part[..300], pattern(seed, 9, 300));
        }
    }
    assert_eq!(relay.counters().pairs, PAIRS as u64);
    drop(ends);
    relay.until("all have ended", |counters| counters.pairs == 0);
    for _ in 0..PAIRS {
        assert_eq!(relay.next_end().1, [3500, 1500]);
    }
}

#[test]
fn a_busy_pair_leaves_turns_to_others() {
    use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
    let relay = Relay::new(Options::default());
    let (mut busy_from, mut busy_to) = relay.pair();
    let (mut left, mut right) = relay.pair();
    let (stop, carried) = (AtomicBool::new(false), AtomicU64::new(0));
    let more_is_carried = |than: u64| {
        let until = std::time::Instant::now() + common::PATIENCE;
        while carried.load(Relaxed) <= than {
            assert!(std::time::Instant::now() < until, "the busy pair stands");
            std::thread::yield_now();
        }
    };
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let bytes = vec![7; 1 << 20];
            while !stop.load(Relaxed) {
                busy_from.write_all(&bytes).unwrap();
            }
            busy_from.shutdown(std::net::Shutdown::Write).unwrap();
        });
        scope.spawn(|| {
            let mut part = vec![0; 1 << 16];
            loop {
                match busy_to.read(&mut part).unwrap() {
                    0 => break,
                    some => carried.fetch_add(some as u64, Relaxed),
                };
            }
        });
        // Both threads have started when something has come through, and the
        // pair is as busy after the other's rounds as before them.
        more_is_carried(0);
        for _ in 0..100 {
            left.write_all(b"x").unwrap();
            right.read_exact(&mut [0]).unwrap();
        }
        more_is_carried(carried.load(Relaxed));
        stop.store(true, Relaxed);
    });
}

#[test]
fn what_the_owner_watches_is_reported_as_long_as_it_is_so() {
    let mut event_loop = EventLoop::new(Options::default()).unwrap();
    let (mut far, near) = common::connection();
    use std::os::fd::AsFd;
    event_loop
        .watch(near.as_fd(), Interest::Readable, 5)
        .unwrap();
    assert!(
        event_loop
            .watch(near.as_fd(), Interest::Readable, 5)
            .is_err()
    );
    assert!(
        event_loop
            .watch(near.as_fd(), Interest::Readable, 1 << 62)
            .is_err()
    );
    let mut events = Vec::new();
    event_loop.turn(Some(Duration::ZERO), &mut events).unwrap();
    assert_eq!(events, []);
    far.write_all(b"!").unwrap();
    for _ in 0..2 {
        events.clear();
        event_loop
            .turn(Some(common::PATIENCE), &mut events)
            .unwrap();
        let Some(Event::Ready { key: 5, readiness }) = events.first() else {
            panic!("{events:?}");
        };
        assert!(readiness.readable && !readiness.failed && !readiness.hung_up);
    }
    assert!(event_loop.unwatch(near.as_fd(), 6).is_err());
    event_loop.unwatch(near.as_fd(), 5).unwrap();
    events.clear();
    event_loop.turn(Some(Duration::ZERO), &mut events).unwrap();
    assert_eq!(events, []);
}

#[test]
fn a_listener_that_cannot_accept_is_left_alone_for_a_while() {
    use std::os::fd::AsFd;
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let mut event_loop = EventLoop::new(Options::default()).unwrap();
    event_loop
        .watch(listener.as_fd(), Interest::Readable, 7)
        .unwrap();
    let _client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let is_ready = |events: &[Event]| matches!(events, [Event::Ready { key: 7, .. }]);
    let mut events = Vec::new();
    event_loop
        .turn(Some(common::PATIENCE), &mut events)
        .unwrap();
    assert!(is_ready(&events), "{events:?}");
    let start = std::time::Instant::now();
    // Worth a line the first time, and not each time.
    assert!(event_loop.pause(7));
    assert!(!event_loop.pause(7));
    assert!(!event_loop.pause(8), "nothing is watched by this key");
    events.clear();
    // It comes back by itself, also to an owner who waits for ever.
    while events.is_empty() {
        event_loop.turn(None, &mut events).unwrap();
    }
    assert!(start.elapsed() >= Duration::from_millis(100));
    assert!(is_ready(&events), "{events:?}");
    // Who comes later is not paused for who was.
    event_loop.pause(7);
    event_loop.unwatch(listener.as_fd(), 7).unwrap();
    event_loop
        .watch(listener.as_fd(), Interest::Readable, 7)
        .unwrap();
    events.clear();
    event_loop
        .turn(Some(common::PATIENCE), &mut events)
        .unwrap();
    assert!(is_ready(&events), "{events:?}");
}
