//! A peer that writes garbage into every shared word and every ring byte while this end sends
//! and receives: errors on this connection, and nothing else.
#![allow(unsafe_code)]

mod common;

use common::process::{Random, bounded};
use common::{DONTWAIT, How, PEEK, Pair, SMALL_RING, Side};
use sluice_lane::clock::now_ns;
use sluice_lane::reason::Reason;
use sluice_lane::reclaim;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// 32-bit words of a lane's header.
const WORDS: u64 = 128;

/// Where the reclaim word of a direction lies: behind the receiver's position and its padding, the
/// watchers (two words), `sleepers`, `enabled` and `closed`.
const RECLAIM_WORD: u64 = (128 + 64) / 4 + 5;

/// Values that are likely to pass a check, or to overflow behind one.
fn garbage(random: &mut Random) -> u32 {
    match random.below(9) {
        0 => 0,
        1 => 1,
        // With the two before: all that the reclaim word may say.
        8 => 2 + random.below(2) as u32,
        2 => u32::MAX,
        3 => 1 << 31,
        4 => SMALL_RING,
        5 => SMALL_RING - 1,
        6 => random.below(u64::from(4 * SMALL_RING)) as u32,
        _ => random.next() as u32,
    }
}

/// Writes garbage until told to stop. `only`: the words of the header that it writes.
fn scribble(side: Side, seed: u64, only: impl Fn(u64) -> bool, is_over: &AtomicBool) {
    let mut random = Random::new(seed);
    while !is_over.load(Ordering::Relaxed) {
        let word = random.below(WORDS);
        if only(word) {
            side.words()
                .word(word as usize)
                .store(garbage(&mut random), Ordering::Relaxed);
        }
        if random.below(64) == 0 {
            std::thread::yield_now();
        }
    }
}

/// Everything that a program may call, for a while. Calls do not block, so each must return.
fn use_all(side: Side, seed: u64, time: Duration) {
    let mut random = Random::new(seed);
    let mut buffer = vec![0; 40_000];
    let start = Instant::now();
    while start.elapsed() < time {
        let len = random.below(buffer.len() as u64) as usize;
        let bytes = &mut buffer[..len];
        match random.below(9) {
            0..3 => drop(side.send(bytes, true)),
            3..5 => drop(side.recv(bytes, DONTWAIT)),
            5 => drop(side.recv(bytes, PEEK)),
            6 => drop(side.look()),
            7 => {
                reclaim::look(side.end, side.generation, side.fd);
                let _ = side.end.unread_ring_bytes(side.generation, side.fd);
                let _ = side.end.unacked_ring_bytes(side.generation);
                if let Ok(asleep) = sluice_lane::wait::announce(side.end, side.generation) {
                    sluice_lane::wait::withdraw(side.end, asleep);
                }
            }
            _ => give_away(side, &mut random),
        }
    }
}

/// What a program that hands its connection on does, seldom, since it stays on TCP then.
fn give_away(side: Side, random: &mut Random) {
    if random.below(16) != 0 {
        return;
    }
    let (end, generation) = (side.end, side.generation);
    end.pin(generation, Reason::Shared);
    let deadline_ns = now_ns() + 100_000 * random.below(10);
    reclaim::fetch(end, generation, side.fd, deadline_ns, &mut || {
        reclaim::look(end, generation, side.fd);
    });
    if random.below(2) == 0 && end.take_out(generation, &mut |_| true).is_some() {
        end.put_back(generation);
    } else if random.below(2) == 0 {
        end.copy_out(generation, side.fd, &mut |_| true);
    }
}

/// One connection under attack. The victim's calls end, and so does the connection.
fn attack(seed: u64, only: impl Fn(u64) -> bool + Send + 'static) {
    let pair = Pair::enabled(SMALL_RING);
    // Garbage in the ring's bytes needs no help: they are the peer's to write.
    let bystander = Pair::enabled(SMALL_RING);
    let is_over = Arc::new(AtomicBool::new(false));
    let peer = {
        let is_over = is_over.clone();
        std::thread::spawn(move || scribble(pair.b, seed, only, &is_over))
    };
    bounded("a victim", move || {
        use_all(pair.a, seed, Duration::from_millis(60))
    });
    // A blocking read ends when the peer's socket does, whatever the words say.
    common::close(pair.b.fd);
    bounded("a blocking read", move || {
        let how = How {
            waitall: seed.is_multiple_of(2),
            ..common::BLOCK
        };
        let mut buffer = vec![0; 5000];
        // As much as the ring could pretend to hold, many times over.
        (0..100_000).find(|_| !matches!(pair.a.recv(&mut buffer, how), Ok(1..)))
    });
    is_over.store(true, Ordering::Relaxed);
    peer.join().unwrap();
    let mut byte = [0];
    bystander.a.send_all(b"x").unwrap();
    assert_eq!(bystander.b.recv(&mut byte, common::BLOCK), Ok(1));
    pair.a.close();
}

#[test]
fn garbage_in_all_words() {
    (0..20).for_each(|seed| attack(seed, |_| true));
}

#[test]
fn garbage_in_one_word_at_a_time() {
    // In both directions; words behind the first 32 bytes of a cache line are padding.
    for word in (0..64).filter(|at| at % 16 < 8) {
        attack(word, move |at| at % 64 == word);
    }
}

/// Answers that nobody asked for, wishes that nobody has, and both while others are made.
#[test]
fn garbage_in_the_reclaim_word() {
    for seed in 0..8 {
        attack(200 + seed, |at| at % 64 == RECLAIM_WORD);
    }
}

#[test]
fn garbage_in_one_line_at_a_time() {
    for line in 0..8 {
        attack(100 + line, move |at| at / 16 == line);
    }
}
