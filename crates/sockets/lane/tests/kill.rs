//! SIGKILL at any moment: the other side gets an exact prefix and then the end, and a process
//! that shares the end goes on where the dead one stopped.
#![allow(unsafe_code)]

mod common;

use common::process::{Child, Random, bounded, shared_word, tick, wait_for};
use common::{BLOCK, DONTWAIT, Pair, SMALL_RING, Side, WAITALL, byte_at, bytes_at, check_bytes};
use sluice_sys::errno::Errno;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

const ROUNDS: u64 = 40;
/// The largest single write and read.
const PIECE_BYTES: usize = 12_000;

/// A connection that is at once on the ring, or will be in mid-stream.
fn connection(round: u64) -> Pair {
    if !round.is_multiple_of(4) {
        return Pair::enabled(SMALL_RING);
    }
    let pair = Pair::announced(SMALL_RING);
    assert!(pair.a.attach() && pair.b.attach());
    pair
}

fn is_reset(result: Result<usize, Errno>) -> bool {
    result == Err(Errno(libc::ECONNRESET)) || result == Err(Errno::PIPE)
}

/// Writes the test stream for ever, and counts in `sent` what was accepted.
fn write_for_ever(side: Side, seed: u64, stream: &[u8], sent: &AtomicU32) -> i32 {
    let mut random = Random::new(seed);
    let mut position = 0;
    loop {
        let len = 1 + random.below(PIECE_BYTES as u64) as usize;
        if position + len > stream.len() {
            // As much as a test needs: the parent kills.
            std::thread::sleep(Duration::from_millis(1));
            continue;
        }
        match side.send(&stream[position..position + len], false) {
            Ok(count) => position += count,
            Err(_) => return 1,
        }
        sent.store(position as u32, Ordering::SeqCst);
    }
}

/// Kills at a random moment after `has_begun`.
fn kill_later(
    child: Child,
    random: &mut Random,
    has_begun: impl Fn() -> bool + Send + 'static,
) -> std::thread::JoinHandle<Child> {
    let delay = Duration::from_micros(random.below(4000));
    std::thread::spawn(move || {
        wait_for("the child", has_begun);
        std::thread::sleep(delay);
        child.kill();
        child
    })
}

#[test]
fn writer_is_killed() {
    let stream = bytes_at(0, 1 << 22);
    let mut by_ring = 0;
    for round in 0..ROUNDS {
        let mut random = Random::new(round + 1);
        let pair = connection(round);
        let sent = shared_word();
        let child = Child::fork(|| {
            common::close(pair.b.fd);
            write_for_ever(pair.a, round + 1, &stream, sent)
        });
        common::close(pair.a.fd);
        let killer = kill_later(child, &mut random, || sent.load(Ordering::SeqCst) > 0);
        let position = bounded("a reader behind a dead writer", move || {
            let mut position = 0;
            let mut buffer = vec![0; PIECE_BYTES];
            loop {
                let len = 1 + random.below(PIECE_BYTES as u64) as usize;
                match pair.b.recv(&mut buffer[..len], BLOCK) {
                    Ok(0) => return position,
                    Ok(count) => {
                        check_bytes(position, &buffer[..count]);
                        position += count as u64;
                    }
                    Err(errno) => panic!("{errno}"),
                }
            }
        });
        drop(killer.join().unwrap());
        let sent = u64::from(sent.load(Ordering::SeqCst));
        assert!(
            (sent..=sent + PIECE_BYTES as u64).contains(&position),
            "{position} bytes came, {sent} were accepted"
        );
        by_ring += pair.b.snapshot().ring_rx_bytes;
        common::close(pair.b.fd);
    }
    assert!(by_ring > 0, "nothing went by the ring");
}

#[test]
fn reader_is_killed() {
    for round in 0..ROUNDS {
        let mut random = Random::new(round + 1000);
        let pair = connection(round);
        let wrong = shared_word();
        let child = Child::fork(|| {
            common::close(pair.a.fd);
            let mut position = 0;
            let mut buffer = vec![0; PIECE_BYTES];
            while let Ok(count) = pair.b.recv(&mut buffer, BLOCK) {
                let is_right = |at: usize| buffer[at] == byte_at(position + at as u64);
                if count == 0 || !(0..count).all(is_right) {
                    tick(wrong);
                    return 1;
                }
                position += count as u64;
            }
            2
        });
        common::close(pair.b.fd);
        let killer = kill_later(child, &mut random, || true);
        let end = bounded("a writer to a dead reader", move || {
            let mut position = 0;
            loop {
                let bytes = bytes_at(position, 1 + random.below(PIECE_BYTES as u64) as usize);
                match pair.a.send(&bytes, false) {
                    Ok(count) => position += count as u64,
                    result => return result,
                }
            }
        });
        assert!(is_reset(end), "{end:?}");
        drop(killer.join().unwrap());
        assert_eq!(
            wrong.load(Ordering::SeqCst),
            0,
            "the reader got wrong bytes"
        );
        common::close(pair.a.fd);
    }
}

#[test]
fn partner_of_a_ping_pong_is_killed() {
    for round in 0..ROUNDS {
        let mut random = Random::new(round + 2000);
        let pair = connection(round);
        let child = Child::fork(|| {
            common::close(pair.a.fd);
            let mut buffer = [0; 100];
            while let Ok(100) = pair.b.recv(&mut buffer, WAITALL) {
                if pair.b.send_all(&buffer).is_err() {
                    return 1;
                }
            }
            2
        });
        common::close(pair.b.fd);
        let killer = kill_later(child, &mut random, || true);
        bounded("the partner of a dead process", move || {
            let mut position = 0;
            loop {
                let bytes = bytes_at(position, 100);
                if pair.a.send_all(&bytes).is_err() {
                    return;
                }
                let mut buffer = [0; 100];
                match pair.a.recv(&mut buffer, WAITALL) {
                    Ok(100) => check_bytes(position, &buffer),
                    Ok(count) => {
                        check_bytes(position, &buffer[..count]);
                        return;
                    }
                    result => return assert!(is_reset(result), "{result:?}"),
                }
                position += 100;
            }
        });
        drop(killer.join().unwrap());
        common::close(pair.a.fd);
    }
}

/// The dead writer stays a zombie: the survivor is its parent and waits for the lock.
#[test]
fn one_of_two_writing_processes_is_killed() {
    let bytes: Vec<u8> = bytes_at(0, 1 << 22).iter().map(|b| b & 0x7f).collect();
    for round in 0..ROUNDS {
        let mut random = Random::new(round + 3000);
        let pair = connection(round);
        let begun = shared_word();
        let child = Child::fork(|| {
            begun.store(1, Ordering::SeqCst);
            let mut position = 0;
            while position + PIECE_BYTES <= bytes.len() {
                position += pair
                    .a
                    .send(&bytes[position..position + PIECE_BYTES], false)
                    .unwrap();
            }
            wait_for("the kill", || false);
            1
        });
        let reader = std::thread::spawn(move || {
            let mut stream = Vec::new();
            let mut buffer = vec![0; PIECE_BYTES];
            loop {
                match pair.b.recv(&mut buffer, BLOCK).unwrap() {
                    0 => return stream,
                    count => stream.extend_from_slice(&buffer[..count]),
                }
            }
        });
        wait_for("the child", || begun.load(Ordering::SeqCst) > 0);
        std::thread::sleep(Duration::from_micros(random.below(2500)));
        child.kill();
        child.wait_dead();
        let stream = bounded("a survivor", move || {
            let bytes: Vec<u8> = bytes_at(0, 100_000).iter().map(|b| b | 0x80).collect();
            pair.a.send_all(&bytes).unwrap();
            pair.a.shutdown_write().unwrap();
            reader.join().unwrap()
        });
        let dead = stream.iter().take_while(|b| **b < 0x80).count();
        assert_eq!(stream.len(), dead + 100_000);
        for (at, byte) in stream[..dead].iter().enumerate() {
            assert_eq!(*byte, byte_at(at as u64) & 0x7f, "byte {at} of the dead");
        }
        for (at, byte) in stream[dead..].iter().enumerate() {
            assert_eq!(
                *byte,
                byte_at(at as u64) | 0x80,
                "byte {at} of the survivor"
            );
        }
        common::close(pair.a.fd);
        common::close(pair.b.fd);
    }
}

#[test]
fn one_of_two_reading_processes_is_killed() {
    const TOTAL: u64 = 3 << 20;
    for round in 0..ROUNDS {
        let mut random = Random::new(round + 4000);
        let pair = connection(round);
        let read = shared_word();
        let child = Child::fork(|| {
            let mut buffer = vec![0; PIECE_BYTES];
            loop {
                let count = pair.b.recv(&mut buffer, BLOCK).unwrap();
                check_bytes(u64::from(read.load(Ordering::SeqCst)), &buffer[..count]);
                read.fetch_add(count as u32, Ordering::SeqCst);
                if count == 0 {
                    return 0;
                }
            }
        });
        let writer = std::thread::spawn(move || {
            let mut position = 0;
            let mut random = Random::new(round);
            while position < TOTAL {
                let len = (1 + random.below(PIECE_BYTES as u64)).min(TOTAL - position);
                pair.a.send_all(&bytes_at(position, len as usize)).unwrap();
                position += len;
            }
            pair.a.shutdown_write().unwrap();
        });
        // Sleepers that come and go make the stream change between TCP and ring.
        let moments = random.below(300);
        for _ in 0..moments {
            if let Ok(asleep) = sluice_lane::wait::announce(pair.b.end, pair.b.generation) {
                sluice_lane::wait::withdraw(pair.b.end, asleep);
            }
            std::thread::sleep(Duration::from_micros(5));
        }
        child.kill();
        child.wait_dead();
        let rest = bounded("a survivor", move || {
            let mut rest = Vec::new();
            let mut buffer = vec![0; PIECE_BYTES];
            loop {
                match pair.b.recv(&mut buffer, BLOCK).unwrap() {
                    0 => return rest,
                    count => rest.extend_from_slice(&buffer[..count]),
                }
            }
        });
        writer.join().unwrap();
        // The dead one may have taken a piece that it did not count.
        let counted = u64::from(read.load(Ordering::SeqCst));
        let lost = TOTAL - counted - rest.len() as u64;
        assert!(lost <= PIECE_BYTES as u64, "{lost} bytes are missing");
        check_bytes(counted + lost, &rest);
        common::close(pair.a.fd);
        common::close(pair.b.fd);
    }
}

#[test]
fn reader_dies_between_reading_from_tcp_and_counting() {
    let pair = Pair::announced(SMALL_RING);
    assert!(pair.a.attach() && pair.b.attach());
    pair.a.send_all(&bytes_at(0, 10)).unwrap();
    assert!(pair.b.look().is_some());
    pair.a.send_all(&bytes_at(10, 10)).unwrap();
    let snapshot = pair.a.snapshot();
    assert_eq!((snapshot.tcp_tx_bytes, snapshot.ring_tx_bytes), (10, 10));
    let child = Child::fork(|| {
        let mut buffer = [0; 100];
        let _ = pair.b.recv_with(&mut buffer, DONTWAIT, &mut |_, rest| {
            let _ = common::kernel_recv(pair.b.fd, &mut rest[..4], 0);
            // SAFETY: kills this very process.
            unsafe { libc::kill(libc::getpid(), libc::SIGKILL) };
            Ok(4)
        });
        1
    });
    child.wait_dead();
    let rest = bounded("a survivor", move || {
        let mut rest = [0; 16];
        assert_eq!(pair.b.recv(&mut rest, WAITALL), Ok(16));
        rest
    });
    check_bytes(4, &rest);
    assert_eq!(pair.a.send(&bytes_at(20, 5), false), Ok(5));
    assert_eq!(
        pair.a.snapshot().ring_tx_bytes,
        15,
        "the lane is still in use"
    );
}
