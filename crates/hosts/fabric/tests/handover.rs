//! Bytes by TCP and by the ring in turn, between two hosts.

mod pair;

use pair::Pair;
use pair::common::{self, BLOCK, DONTWAIT, SMALL_RING, Side, bytes_at, check_bytes};
use sluice_fabric::engine::Rest;
use sluice_lane::wait;
use sluice_sys::errno::Errno;

/// The daemons find that messages come, and measure how many do while they sleep.
fn measure(pair: &mut Pair, mut message: impl FnMut(&mut Pair)) {
    for ns in [10_000_000, 8_000_000] {
        pair.fall_asleep();
        message(pair);
        pair.wake_up(ns);
    }
}

/// Small messages there and back by TCP until the daemons have noticed and made grants.
fn warm_up(pair: &mut Pair, at: &mut [u64; 2]) {
    measure(pair, |pair| {
        exchange(pair, at, 0, 50);
        exchange(pair, at, 1, 50);
    });
    for _ in 0..40 {
        for from in 0..2 {
            exchange(pair, at, from, 50);
        }
        pair.run(100_000);
    }
}

/// One message that the other end reads at once.
fn exchange(pair: &mut Pair, at: &mut [u64; 2], from: usize, len: usize) {
    let bytes = bytes_at(at[from], len);
    let sent = pair.hosts[from].program.send(&bytes, true).expect("room");
    assert_eq!(sent, len);
    let mut got = 0;
    let mut rounds = 0;
    while got < len {
        let mut buffer = vec![0; len - got];
        match pair.hosts[1 - from].program.recv(&mut buffer, DONTWAIT) {
            Ok(0) => panic!("an end of the stream"),
            Ok(n) => {
                check_bytes(at[from] + got as u64, &buffer[..n]);
                got += n;
            }
            Err(Errno::AGAIN) => pair.run(10_000),
            Err(errno) => panic!("{errno:?}"),
        }
        rounds += 1;
        assert!(rounds < 10_000, "nothing comes");
    }
    at[from] += len as u64;
}

fn ring_bytes(pair: &Pair, host: usize) -> u64 {
    pair.hosts[host].program.snapshot().ring_tx_bytes
}

#[test]
fn lively_connections_go_by_the_ring() {
    let mut pair = Pair::new(common::SMALL_RING);
    let mut at = [0; 2];
    warm_up(&mut pair, &mut at);
    for host in 0..2 {
        assert!(ring_bytes(&pair, host) > 0, "host {host} is on TCP");
    }
    // From here on nothing goes by TCP, however much it is.
    let before = [0, 1].map(|host| pair.hosts[host].program.snapshot().tcp_tx_bytes);
    for round in 0..300 {
        exchange(&mut pair, &mut at, 0, 1 + round * 37 % 4000);
        exchange(&mut pair, &mut at, 1, 1 + round * 91 % 4000);
    }
    let after = [0, 1].map(|host| pair.hosts[host].program.snapshot().tcp_tx_bytes);
    assert_eq!(before, after);
}

#[test]
fn a_reader_that_sleeps_is_served_by_tcp() {
    let mut pair = Pair::new(common::SMALL_RING);
    let mut at = [0; 2];
    warm_up(&mut pair, &mut at);
    assert!(ring_bytes(&pair, 0) > 0);
    // It sleeps in the kernel, in a thread, as soon as the daemon lets it.
    let reader = pair.hosts[1].program;
    let thread = std::thread::spawn(move || {
        let mut buffer = [0; 100];
        let got = reader.recv(&mut buffer, BLOCK).expect("bytes");
        buffer[..got].to_vec()
    });
    let asleep = |pair: &Pair| pair.hosts[1].program.snapshot().sleeps > 0;
    while !asleep(&pair) {
        pair.run(1_000_000);
        std::thread::yield_now();
    }
    let before = ring_bytes(&pair, 0);
    let bytes = bytes_at(at[0], 70);
    assert_eq!(pair.hosts[0].program.send(&bytes, false), Ok(70));
    assert_eq!(thread.join().expect("a thread"), bytes);
    assert_eq!(ring_bytes(&pair, 0), before, "not by the ring");
}

#[test]
fn the_end_of_the_stream_is_behind_the_rings_last_byte() {
    let mut pair = Pair::new(common::SMALL_RING);
    let mut at = [0; 2];
    warm_up(&mut pair, &mut at);
    let bytes = bytes_at(at[0], 5000);
    let before = ring_bytes(&pair, 0);
    assert_eq!(pair.hosts[0].program.send(&bytes, true), Ok(5000));
    assert_eq!(ring_bytes(&pair, 0), before + 5000);
    pair.hosts[0].program.close();
    let number = pair.hosts[0].number;
    pair.hosts[0].engine.program_gone(number);
    // The kernel's FIN is there already; the bytes are not.
    let mut buffer = vec![0; 6000];
    let reader = pair.hosts[1].program;
    for _ in 0..100 {
        assert_eq!(reader.recv(&mut buffer, DONTWAIT), Err(Errno::AGAIN));
    }
    pair.run(3_000_000);
    assert_eq!(reader.recv(&mut buffer, DONTWAIT), Ok(5000));
    check_bytes(at[0], &buffer[..5000]);
    assert_eq!(reader.recv(&mut buffer, DONTWAIT), Ok(0));
    // Nothing is left of the lane when the other program has closed as well.
    reader.close();
    let number = pair.hosts[1].number;
    pair.hosts[1].engine.program_gone(number);
    pair.run(3_000_000);
    for host in &mut pair.hosts {
        assert_eq!(host.engine.take_over(), [host.number]);
        assert_eq!(host.engine.lanes().count(), 0);
    }
}

#[test]
fn a_link_that_comes_back_loses_nothing() {
    let mut pair = Pair::new(common::SMALL_RING);
    let mut at = [0; 2];
    warm_up(&mut pair, &mut at);
    for round in 0..200 {
        let bytes = bytes_at(at[0], 3000);
        let mut sent = 0;
        // Some of it is under way, or has arrived and is not reported, when the link fails.
        while sent < bytes.len() {
            match pair.hosts[0].program.send(&bytes[sent..], true) {
                Ok(n) => sent += n,
                Err(Errno::AGAIN) => break,
                Err(errno) => panic!("{errno:?}"),
            }
        }
        pair.turn(0);
        for _ in 0..round % 3 {
            pair.deliver(0);
        }
        pair.turn(1);
        for _ in 0..round % 2 {
            pair.deliver(1);
        }
        pair.cut();
        pair.run(50_000);
        pair.mend();
        let mut got = 0;
        let mut rounds = 0;
        while got < sent {
            let mut buffer = [0; 700];
            match pair.hosts[1].program.recv(&mut buffer, DONTWAIT) {
                Ok(n) => {
                    check_bytes(at[0] + got as u64, &buffer[..n]);
                    got += n;
                }
                Err(Errno::AGAIN) => pair.run(20_000),
                Err(errno) => panic!("{errno:?}"),
            }
            rounds += 1;
            assert!(rounds < 10_000, "round {round}: {got} of {sent}");
        }
        at[0] += sent as u64;
        // Back to the ring, about which nobody knows anything by now.
        measure(&mut pair, |pair| {
            exchange(pair, &mut at, 1, 40);
            exchange(pair, &mut at, 0, 40);
        });
        let before = ring_bytes(&pair, 0);
        for _ in 0..200 {
            exchange(&mut pair, &mut at, 1, 40);
            exchange(&mut pair, &mut at, 0, 40);
            pair.run(30_000);
            if ring_bytes(&pair, 0) > before {
                break;
            }
        }
    }
    assert!(ring_bytes(&pair, 0) > 100_000, "{}", ring_bytes(&pair, 0));
}

#[test]
fn a_link_that_never_comes_back_ends_no_stream_short() {
    let mut pair = Pair::new(common::SMALL_RING);
    let mut at = [0; 2];
    warm_up(&mut pair, &mut at);
    let bytes = bytes_at(at[0], 3000);
    assert_eq!(pair.hosts[0].program.send(&bytes, true), Ok(3000));
    pair.cut();
    for host in &mut pair.hosts {
        host.engine.link_lost(pair::LINK);
    }
    let mut buffer = [0; 100];
    let reset = Err(Errno(libc::ECONNRESET));
    assert_eq!(pair.hosts[1].program.recv(&mut buffer, DONTWAIT), reset);
    let mut result = Ok(0);
    for _ in 0..100 {
        result = pair.hosts[0].program.send(&bytes, true);
        if result.is_err() {
            break;
        }
    }
    assert_eq!(result, reset);
}

#[test]
fn a_lane_whose_reader_closed_lets_its_daemon_rest_and_goes_with_the_link() {
    let mut pair = Pair::new(common::SMALL_RING);
    let mut at = [0; 2];
    warm_up(&mut pair, &mut at);
    exchange(&mut pair, &mut at, 0, 40);
    assert!(pair.hosts[1].has_lane_standing(), "no grant");
    // The reader closes, and the link fails while the answer to that is under way.
    pair.hosts[1].program.close();
    let number = pair.hosts[1].number;
    pair.hosts[1].engine.program_gone(number);
    pair.turn(1);
    while pair.deliver(1) {}
    pair.turn(0);
    pair.cut();
    pair.mend();
    pair.run(10_000_000);
    // The writer is still there. Its daemon has nothing to poll for.
    assert!(!pair.hosts[0].has_lane_standing());
    // And when there is no link any more and the writer goes, so does the lane.
    pair.cut();
    for host in &mut pair.hosts {
        host.engine.link_lost(pair::LINK);
    }
    pair.hosts[0].program.close();
    let number = pair.hosts[0].number;
    pair.hosts[0].engine.program_gone(number);
    pair.run(1_000_000);
    for host in &mut pair.hosts {
        assert_eq!(host.engine.take_over(), [host.number]);
    }
}

#[test]
fn daemons_sleep_while_the_link_is_down_whatever_is_missing() {
    let mut pair = Pair::new(common::SMALL_RING);
    let mut at = [0; 2];
    warm_up(&mut pair, &mut at);
    exchange(&mut pair, &mut at, 0, 40);
    // Bytes in the ring that have not left yet.
    assert_eq!(
        pair.hosts[0].program.send(&bytes_at(at[0], 30), true),
        Ok(30)
    );
    pair.cut();
    pair.run(1_000_000_000);
    assert!(pair.hosts[1].has_lane_standing(), "the reader waits");
    for host in &pair.hosts {
        let rest = host.engine.rest(pair.now_ns);
        assert!(matches!(rest, Rest::Sleep(_)), "{rest:?}");
    }
    pair.mend();
    pair.run(1_000_000);
    let mut got = [0; 40];
    assert_eq!(pair.hosts[1].program.recv(&mut got, DONTWAIT), Ok(30));
    check_bytes(at[0], &got[..30]);
}

#[test]
fn a_lane_that_the_far_host_never_had_goes_on_by_tcp() {
    let mut pair = Pair::new(common::SMALL_RING);
    let mut at = 0;
    // A grant that nobody hears of.
    let stands = |pair: &Pair| {
        let mut lanes = pair.hosts[0].engine.lanes();
        lanes.any(|lane| lane.down.is_standing())
    };
    let mut message = |pair: &mut Pair| {
        let bytes = bytes_at(at, 50);
        assert_eq!(pair.hosts[1].program.send(&bytes, true), Ok(50));
        let mut got = [0; 50];
        assert_eq!(pair.hosts[0].program.recv(&mut got, DONTWAIT), Ok(50));
        at += 50;
    };
    measure(&mut pair, &mut message);
    for _ in 0..10_000 {
        message(&mut pair);
        pair.turn(0);
        if stands(&pair) {
            break;
        }
        while pair.deliver(0) {}
        pair.turn(1);
        while pair.deliver(1) {}
    }
    assert!(stands(&pair));
    let bytes = bytes_at(at, 200);
    let [reader, writer] = [0, 1].map(|host| pair.hosts[host].program);
    assert_eq!(writer.send(&bytes, true), Ok(200));
    writer.shutdown_write().expect("shut down");
    let mut got = [0; 300];
    assert_eq!(
        reader.recv(&mut got, DONTWAIT),
        Err(Errno::AGAIN),
        "ring bytes may come before these"
    );
    let number = pair.hosts[0].number;
    pair.hosts[0].engine.decline(number);
    assert_eq!(reader.recv(&mut got, DONTWAIT), Ok(200));
    check_bytes(at, &got[..200]);
    assert_eq!(reader.recv(&mut got, DONTWAIT), Ok(0));
}

#[test]
fn a_grant_to_a_daemon_that_hears_late_of_the_lane_ends() {
    let mut pair = Pair::strangers([SMALL_RING; 2], true);
    pair.meet(0);
    let ready = pair.hosts[0].program.look();
    assert!(ready.is_some(), "nothing keeps it from enabling");
    // Granted, and taken back, since nothing comes.
    pair.run(2_000_000);
    let Side {
        end, generation, ..
    } = pair.hosts[0].program;
    assert!(
        wait::announce(end, generation).is_err(),
        "a ring is granted"
    );
    pair.meet(1);
    let slept = (0..100).any(|_| {
        pair.run(50_000);
        let announced = wait::announce(end, generation);
        announced.inspect(|it| wait::withdraw(end, *it)).is_ok()
    });
    assert!(slept, "the program can never sleep");
}

#[test]
fn lanes_that_never_had_a_link_end_with_their_programs() {
    let mut pair = Pair::strangers([SMALL_RING; 2], false);
    pair.cut();
    pair.meet(0);
    pair.meet(1);
    pair.run(1_000_000);
    let number = pair.hosts[0].number;
    pair.hosts[0].engine.program_gone(number);
    assert_eq!(pair.hosts[0].engine.take_over(), [number]);
    // The other host has its half when the link comes after all, and hears that it is alone.
    pair.mend();
    pair.run(1_000_000);
    let number = pair.hosts[1].number;
    pair.hosts[1].engine.program_gone(number);
    pair.run(1_000_000);
    assert_eq!(pair.hosts[1].engine.take_over(), [number]);
    assert_eq!(pair.hosts[0].engine.take_over(), []);
}
