//! Readers that sleep, ends that are reset, and what is given up.

mod common;

use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::time::{Duration, Instant};

use common::{PATIENCE, Relay, pattern};
use sluice_relay::{End, Event, EventLoop, Options, socket};

fn reset(stream: TcpStream) {
    use std::os::fd::AsFd;
    socket::reset_on_close(stream.as_fd(), true).unwrap();
}

/// Writes on behind `sent` bytes, without waiting, until there was no room for a while: how much was taken in all.
fn fill(stream: &TcpStream, seed: u64, mut sent: usize) -> usize {
    let mut stream = stream.try_clone().unwrap();
    stream
        .set_write_timeout(Some(Duration::from_millis(300)))
        .unwrap();
    loop {
        match stream.write(&pattern(seed, sent, 50_000)) {
            Ok(count) => sent += count,
            Err(error) => {
                assert_eq!(error.kind(), ErrorKind::WouldBlock, "{error}");
                return sent;
            }
        }
    }
}

#[test]
fn a_reader_that_sleeps_stops_its_writer_and_costs_a_buffer() {
    const PAIRS: u64 = 8;
    let options = Options::default();
    let buffer_bytes = options.buffer_bytes as u64;
    let relay = Relay::new(options);
    let mut ends: Vec<_> = (0..PAIRS).map(|_| relay.pair()).collect();
    let mut sent = [0; PAIRS as usize];
    let start = Instant::now();
    // An event loop that stood still while there was no room passes on later what it has.
    let counters = loop {
        for (nth, (left, _)) in ends.iter().enumerate() {
            sent[nth] = fill(left, nth as u64, sent[nth]);
        }
        let counters = relay.counters();
        if counters.buffered_bytes > 0 {
            break counters;
        }
        assert!(start.elapsed() < PATIENCE, "{counters:?}");
    };
    assert!(
        counters.buffered_bytes <= PAIRS * buffer_bytes,
        "{counters:?}"
    );
    // The other direction is not held up.
    for (left, right) in &mut ends {
        right.write_all(b"hello").unwrap();
        left.read_exact(&mut [0; 5]).unwrap();
        left.shutdown(Shutdown::Write).unwrap();
    }
    for (nth, (_, right)) in ends.iter_mut().enumerate() {
        let mut all = Vec::new();
        right.read_to_end(&mut all).unwrap();
        assert_eq!(all.len(), sent[nth]);
        assert!(all == pattern(nth as u64, 0, all.len()));
    }
    let counters = relay.counters();
    assert_eq!((counters.pairs, counters.buffered_bytes), (PAIRS, 0));
}

#[test]
fn a_reset_comes_out_as_a_reset_behind_what_was_sent() {
    let relay = Relay::new(Options::default());
    for left_resets in [true, false] {
        let (left, right) = relay.pair();
        let (mut first, mut second) = if left_resets {
            (left, right)
        } else {
            (right, left)
        };
        first.write_all(b"last words").unwrap();
        let mut words = [0; 10];
        second.read_exact(&mut words).unwrap();
        reset(first);
        let error = second.read(&mut words).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::ConnectionReset);
        let bytes = if left_resets { [10, 0] } else { [0, 10] };
        assert_eq!(relay.next_end(), (End::Reset, bytes));
    }
}

#[test]
fn what_was_there_before_a_reset_is_passed_on() {
    let mut event_loop = EventLoop::new(Options {
        buffer_bytes: 1000,
        share_bytes: 1000,
        ..Options::default()
    })
    .unwrap();
    let (mut far_left, near_left) = common::connection();
    let (mut far_right, near_right) = common::connection();
    let sent = pattern(1, 0, 20_000);
    far_left.write_all(&sent).unwrap();
    // Both arrive before the event loop looks.
    let mut probe = vec![0; sent.len()];
    while near_left.peek(&mut probe).unwrap() < sent.len() {}
    reset(far_left);
    for near in [&near_left, &near_right] {
        near.set_nonblocking(true).unwrap();
    }
    let pair = event_loop
        .pair(near_left.into(), near_right.into())
        .unwrap();
    let mut events = Vec::new();
    while events.is_empty() {
        event_loop.turn(Some(PATIENCE), &mut events).unwrap();
    }
    let ended = Event::Ended {
        pair,
        end: End::Reset,
        bytes: [20_000, 0],
    };
    assert_eq!(events, [ended]);
    let mut all = Vec::new();
    let error = far_right.read_to_end(&mut all).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::ConnectionReset);
    assert!(all == sent);
}

#[test]
fn a_reset_passes_a_reader_that_sleeps() {
    let relay = Relay::new(Options::default());
    let (left, mut right) = relay.pair();
    fill(&left, 3, 0);
    reset(left);
    assert_eq!(relay.next_end().0, End::Reset);
    let mut all = Vec::new();
    let error = right.read_to_end(&mut all).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::ConnectionReset);
    assert!(all == pattern(3, 0, all.len()));
    let counters = relay.counters();
    assert_eq!((counters.pairs, counters.buffered_bytes), (0, 0));
}

#[test]
fn writing_to_an_end_that_is_gone_resets_the_writer() {
    let relay = Relay::new(Options::default());
    let (mut left, right) = relay.pair();
    drop(right);
    assert_eq!(left.read(&mut [0; 1]).unwrap(), 0);
    let start = Instant::now();
    let error = loop {
        assert!(start.elapsed() < PATIENCE);
        match left.write_all(b"anybody?") {
            Ok(()) => std::thread::sleep(Duration::from_millis(1)),
            Err(error) => break error,
        }
    };
    let kinds = [ErrorKind::ConnectionReset, ErrorKind::BrokenPipe];
    assert!(kinds.contains(&error.kind()), "{error}");
    assert_eq!(relay.next_end().0, End::Reset);
}

#[test]
fn a_pair_that_is_given_up_is_reset_and_its_name_means_nothing_more() {
    let mut event_loop = EventLoop::new(Options::default()).unwrap();
    let make = |event_loop: &mut EventLoop| {
        let (far_left, near_left) = common::connection();
        let (far_right, near_right) = common::connection();
        for near in [&near_left, &near_right] {
            near.set_nonblocking(true).unwrap();
        }
        let id = event_loop
            .pair(near_left.into(), near_right.into())
            .unwrap();
        (id, far_left, far_right)
    };
    let (first, mut left, mut right) = make(&mut event_loop);
    assert!(event_loop.reset(first));
    for far in [&mut left, &mut right] {
        let error = far.read(&mut [0; 1]).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::ConnectionReset);
    }
    let (second, mut left, _right) = make(&mut event_loop);
    assert!(!event_loop.reset(first));
    assert_ne!(first, second);
    assert_eq!(event_loop.counters().pairs, 1);
    event_loop.reset_all();
    assert!(left.read(&mut [0; 1]).is_err());
    let counters = event_loop.counters();
    assert_eq!((counters.pairs, counters.reset), (0, 2));
    let mut events = Vec::new();
    event_loop.turn(Some(Duration::ZERO), &mut events).unwrap();
    assert_eq!(events, []);
}

#[test]
fn an_event_loop_that_goes_without_a_word_resets_its_pairs() {
    let mut event_loop = EventLoop::new(Options::default()).unwrap();
    let (mut far_left, near_left) = common::connection();
    let (_far_right, near_right) = common::connection();
    for near in [&near_left, &near_right] {
        near.set_nonblocking(true).unwrap();
    }
    event_loop
        .pair(near_left.into(), near_right.into())
        .unwrap();
    // As the kernel closes the descriptors of a process that was killed.
    drop(event_loop);
    let error = far_left.read(&mut [0; 1]).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::ConnectionReset);
}

#[test]
fn idle_pairs_take_no_turns() {
    let mut event_loop = EventLoop::new(Options::default()).unwrap();
    let (_far_left, near_left) = common::connection();
    let (_far_right, near_right) = common::connection();
    for near in [&near_left, &near_right] {
        near.set_nonblocking(true).unwrap();
    }
    event_loop
        .pair(near_left.into(), near_right.into())
        .unwrap();
    let mut events = Vec::new();
    let nap = Duration::from_millis(50);
    // The first turn finds that both have room.
    event_loop.turn(Some(nap), &mut events).unwrap();
    let start = Instant::now();
    event_loop.turn(Some(nap), &mut events).unwrap();
    assert!(start.elapsed() >= nap);
    assert_eq!(events, []);
}

#[test]
fn an_event_loop_without_room_is_refused() {
    for (buffer_bytes, share_bytes) in [(0, 1), (1, 0)] {
        let options = Options {
            buffer_bytes,
            share_bytes,
            ..Options::default()
        };
        let error = EventLoop::new(options).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidInput);
    }
}
