//! Latency and packet rate between two network namespaces joined by a veth pair.
//!
//! ```text
//! cargo run --release -p sluice-xdp --example pingpong [rounds] [seconds] [mtu payload]
//! ```
//!
//! Needs root. Both ends poll, each on a thread of its own, which wants two free processors: of
//! many short measurements the median is given, and the best twentieth, which is what is left
//! when nobody else runs. With no seconds there is no rate; with an MTU and a payload only that
//! payload is measured, over IPv4: `sluice bench roce` asks so. "send" and "flush" are the time that one packet's calls take,
//! and of the rate it is told what processor time the sender's thread, which never waits, took for a packet
//! that it sent, and the receiver's for one that came, where looking in vain is not counted.

#![allow(unsafe_code)]

#[path = "../tests/common/mod.rs"]
mod common;

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use common::{Device as _, Net, QPN, headers, message_bytes};
use sluice_packet::{Leaving, Path, Port};
use sluice_wire::Ecn;
use sluice_xdp::{Options, XdpPort};

fn main() {
    let mut arguments = std::env::args().skip(1);
    let mut number = |default: u64| {
        let given = arguments.next().map(|text| text.parse());
        given.map_or(default, |number| number.expect("a number"))
    };
    let (rounds, seconds) = (number(100_000), number(2));
    if !common::can_run("pingpong") {
        return;
    }
    let only = (number(0), number(0));
    let all = [(1500, vec![8, 64, 1024]), (9000, vec![64, 2048, 4096])];
    let (chosen, versions): (Vec<(u32, Vec<usize>)>, &[bool]) = match only {
        (0, _) => (all.into(), &[false, true]),
        (mtu, payload) => (vec![(mtu as u32, vec![payload as usize])], &[false]),
    };
    for (mtu, payloads) in chosen {
        let net = Net::new(mtu);
        let (steering, mut a) = net.a.open_one(&Options::default());
        let (_steering, mut b) = net.b.open_one(&Options::default());
        println!("MTU {mtu}: {}", steering.mode());
        for &v6 in versions {
            let (there, back) = (net.a.path(&net.b, v6), net.b.path(&net.a, v6));
            let version = if v6 { "IPv6" } else { "IPv4" };
            for &payload in &payloads {
                let one_way = latency(&mut a, &mut b, &there, &back, payload, rounds);
                println!("  {version} {payload:5} B: {one_way}");
                if seconds == 0 {
                    continue;
                }
                let time = Duration::from_secs(seconds);
                let rate = rate(&mut a, &mut b, &there, payload, time);
                println!("  {version} {payload:5} B: {rate}");
            }
        }
    }
}

fn put(port: &mut XdpPort, path: &Path, payload: &[u8]) -> bool {
    let length = message_bytes(payload.len());
    port.put(&Leaving::alone(path, Ecn::Capable0, length), &mut |bytes| {
        headers(QPN, 1).emit(payload, bytes).is_ok()
    })
    .is_ok()
}

/// Median and best twentieth.
fn quantiles(mut values: Vec<f64>) -> (f64, f64) {
    values.sort_by(f64::total_cmp);
    let at = |part: usize| values.get(values.len() / part).copied().unwrap_or(f64::NAN);
    (at(2), at(20))
}

/// Half of a round trip.
fn latency(
    a: &mut XdpPort,
    b: &mut XdpPort,
    there: &Path,
    back: &Path,
    payload: usize,
    rounds: u64,
) -> String {
    const WINDOW: u64 = 100;
    let payload = vec![7; payload];
    let stop = AtomicBool::new(false);
    let (mut trips, mut sends, mut flushes) = (Vec::new(), Vec::new(), Vec::new());
    thread::scope(|scope| {
        scope.spawn(|| {
            while !stop.load(Ordering::Relaxed) {
                let mut got = false;
                b.receive(&mut |_| got = true);
                if got {
                    put(b, back, &payload);
                    b.flush();
                }
            }
        });
        for _ in 0..rounds / WINDOW {
            let (mut send, mut flush) = (Duration::ZERO, Duration::ZERO);
            let window = Instant::now();
            for _ in 0..WINDOW {
                let start = Instant::now();
                put(a, there, &payload);
                let put = Instant::now();
                a.flush();
                let flushed = Instant::now();
                send += put - start;
                flush += flushed - put;
                let mut got = false;
                while !got && flushed.elapsed() < Duration::from_secs(1) {
                    a.receive(&mut |_| got = true);
                }
            }
            let each = |time: Duration| time.as_secs_f64() * 1e6 / WINDOW as f64;
            trips.push(each(window.elapsed()) / 2.0);
            sends.push(each(send));
            flushes.push(each(flush));
        }
        stop.store(true, Ordering::Relaxed);
    });
    let [(trip, trip_best), (_, send), (_, flush)] = [trips, sends, flushes].map(quantiles);
    format!("one way {trip:.2} µs, best {trip_best:.2}; of which send {send:.2}, flush {flush:.2}")
}

/// The processor time of this thread.
fn processor() -> Duration {
    let mut time = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: the call writes a timespec, which `time` is.
    let failed = unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &mut time) };
    assert_eq!(failed, 0, "clock_gettime");
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

/// As many packets as go in one direction.
fn rate(a: &mut XdpPort, b: &mut XdpPort, there: &Path, payload: usize, time: Duration) -> String {
    const BATCH: usize = 32;
    const WINDOW: Duration = Duration::from_millis(5);
    let bytes = vec![7; payload];
    let stop = AtomicBool::new(false);
    let received = AtomicU64::new(0);
    let before = a.counters();
    let mut times = Vec::new();
    let (sending, taking) = thread::scope(|scope| {
        let taking = scope.spawn(|| {
            let (mut taking, mut before) = (Duration::ZERO, processor());
            while !stop.load(Ordering::Relaxed) {
                let mut count = 0;
                b.receive(&mut |_| count += 1);
                received.fetch_add(count, Ordering::Relaxed);
                let now = processor();
                if count > 0 {
                    taking += now - before;
                }
                before = now;
            }
            taking
        });
        let (start, begun) = (Instant::now(), processor());
        while start.elapsed() < time {
            let (window, seen) = (Instant::now(), received.load(Ordering::Relaxed));
            while window.elapsed() < WINDOW {
                for _ in 0..BATCH {
                    if !put(a, there, &bytes) {
                        break;
                    }
                }
                a.flush();
            }
            let count = received.load(Ordering::Relaxed) - seen;
            times.push(window.elapsed().as_secs_f64() / count as f64);
        }
        let sending = processor() - begun;
        thread::sleep(Duration::from_millis(10));
        stop.store(true, Ordering::Relaxed);
        (sending, taking.join().expect("it counts"))
    });
    let after = a.counters();
    let sent = after.sent - before.sent;
    let received = received.load(Ordering::Relaxed);
    let (median, best) = quantiles(times);
    format!(
        "{:.3} M packets/s ({:.2} Gb/s), best {:.3} ({:.2}); {:.0} packets a call, {:.1} % lost; \
         processor time {:.0} ns a packet sent and {:.0} ns a packet taken",
        1e-6 / median,
        payload as f64 * 8e-9 / median,
        1e-6 / best,
        payload as f64 * 8e-9 / best,
        sent as f64 / (after.send_calls - before.send_calls) as f64,
        (sent - received.min(sent)) as f64 * 100.0 / sent as f64,
        sending.as_nanos() as f64 / sent as f64,
        taking.as_nanos() as f64 / received as f64,
    )
}
