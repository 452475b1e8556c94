//! What a packet costs between two network namespaces: one-way latency and packet rate of
//! [`UdpPort`] over a pair of virtual Ethernet devices, both ends polling. Needs root.
//!
//! `cargo run --release -p sluice-packet --example packet_pingpong [segmentation: on|off]`
#![allow(unsafe_code)]

#[path = "../tests/netns/mod.rs"]
mod netns;

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use netns::{FOUR, Hosts, LEFT, RIGHT, SIX};
use sluice_packet::udp::Config;
use sluice_packet::{Leaving, Path, Port, Routes, UdpPort};
use sluice_wire::Ecn;

const ROUND_TRIPS: usize = 20_000;
const STREAM: Duration = Duration::from_millis(1500);

fn path(addresses: [&str; 2], from: usize) -> Path {
    Path {
        source: addresses[from].parse().expect("an address"),
        destination: addresses[1 - from].parse().expect("an address"),
        interface: 0,
        ethernet: None,
        source_port: 0xc000,
        dscp: 0,
        hop_limit: 64,
        flow_label: 0,
    }
}

fn send(port: &mut UdpPort, path: &Path, bytes: usize) {
    let sent = port.put(&Leaving::alone(path, Ecn::Capable0, bytes), &mut |to| {
        to.fill(0x5a);
        true
    });
    assert_eq!(sent, Ok(()));
}

/// Polls until something comes; false when there is nothing more to wait for.
fn wait(port: &mut UdpPort, stop: &AtomicBool) -> bool {
    while port.receive(&mut |_| {}) == 0 {
        if stop.load(Ordering::Relaxed) {
            return false;
        }
    }
    true
}

fn latency(mut left: UdpPort, mut right: UdpPort, addresses: [&str; 2], bytes: usize) {
    let stop = AtomicBool::new(false);
    let (there, back) = (path(addresses, LEFT), path(addresses, RIGHT));
    let mut times = Vec::with_capacity(ROUND_TRIPS);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while wait(&mut right, &stop) {
                send(&mut right, &back, bytes);
                while !right.flush() {}
            }
        });
        for _ in 0..ROUND_TRIPS {
            let start = Instant::now();
            send(&mut left, &there, bytes);
            while !left.flush() {}
            wait(&mut left, &stop);
            times.push(start.elapsed());
        }
        stop.store(true, Ordering::Relaxed);
    });
    times.sort();
    let half = |at: usize| times[at].as_nanos() as f64 / 2000.0;
    let (median, late) = (half(ROUND_TRIPS / 2), half(ROUND_TRIPS * 99 / 100));
    println!("{bytes:>6} B  one way {median:6.2} µs, 99 % under {late:6.2} µs");
}

fn rate(mut left: UdpPort, mut right: UdpPort, addresses: [&str; 2], bytes: usize) {
    let stop = AtomicBool::new(false);
    let there = path(addresses, LEFT);
    std::thread::scope(|scope| {
        let start = Instant::now();
        let receiver = scope.spawn(|| {
            while wait(&mut right, &stop) {}
            right.counters()
        });
        while start.elapsed() < STREAM {
            while left.room() > 0 {
                send(&mut left, &there, bytes);
            }
            while !left.flush() {}
        }
        let seconds = start.elapsed().as_secs_f64();
        stop.store(true, Ordering::Relaxed);
        let got = receiver.join().expect("the receiver ends");
        let sent = left.counters();
        println!(
            "{bytes:>6} B  sent {:7.0}/s, received {:7.0}/s, {:5.2} GB/s, {} with a wrong ICRC",
            sent.sent as f64 / seconds,
            got.received as f64 / seconds,
            got.received_bytes as f64 / seconds / 1e9,
            got.bad_icrc,
        );
    });
}

/// What [`Routes::lookup`] costs.
fn routes(hosts: &Hosts) {
    let mut routes = hosts.within(LEFT, || Routes::open().expect("routes"));
    for addresses in [FOUR, SIX] {
        let Path { destination, .. } = path(addresses, LEFT);
        let start = Instant::now();
        for _ in 0..ROUND_TRIPS {
            routes.lookup(None, destination, 0).expect("a route");
        }
        let each = start.elapsed().as_nanos() as f64 / ROUND_TRIPS as f64 / 1000.0;
        println!("{destination}: a route takes {each:.2} µs");
    }
}

fn main() {
    let Some(hosts) = Hosts::new("pingpong", 9000) else {
        return;
    };
    routes(&hosts);
    let only = std::env::args().nth(1);
    for segmentation in [false, true] {
        let name = if segmentation { "on" } else { "off" };
        if only.as_deref().is_some_and(|only| only != name) {
            continue;
        }
        let config = Config {
            segmentation,
            ..Config::default()
        };
        let open = |host| hosts.within(host, || UdpPort::open(&config).expect("a port"));
        for (version, addresses) in [("IPv4", FOUR), ("IPv6", SIX)] {
            println!("{version}, segmentation {name}");
            // Base transport header, headers and pad are 28 bytes for a WRITE.
            for payload in [64, 4096] {
                latency(open(LEFT), open(RIGHT), addresses, payload + 28);
            }
            for payload in [64, 4096] {
                rate(open(LEFT), open(RIGHT), addresses, payload + 28);
            }
        }
    }
}
