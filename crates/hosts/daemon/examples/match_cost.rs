//! Measures what one match costs sluiced: CPU time per connection announced by both ends,
//! matched and released.
//!
//! `cargo run --release -p sluice-daemon --example match_cost -- [MATCHES [AT_A_TIME]]`, which
//! needs `sluiced` built the same way before. More than 16 connections at a time release more
//! lanes than are kept warm, so that sluiced gives ring memory back.

#[path = "../tests/common/mod.rs"]
mod common;

use std::fs;
use std::time::Instant;

use common::{Daemon, Program, tcp_pair};

fn main() {
    let argument = |place| std::env::args().nth(place)?.parse::<u32>().ok();
    let count = argument(1).unwrap_or(20_000);
    let at_a_time = argument(2).unwrap_or(16);
    let daemon = Daemon::start(&[]);
    let (client, server) = (daemon.program("client"), daemon.program("server"));
    let pairs: Vec<_> = (0..at_a_time).map(|_| tcp_pair("127.0.0.1:0")).collect();
    let rounds = count / pairs.len() as u32;
    let before_ns = cpu_ns(&daemon);
    let start = Instant::now();
    for round in 0..rounds {
        for (end, (connected, accepted)) in pairs.iter().enumerate() {
            client.announce_life(
                end as u32,
                round,
                std::os::fd::AsRawFd::as_raw_fd(connected),
            );
            server.announce_life(end as u32, round, std::os::fd::AsRawFd::as_raw_fd(accepted));
        }
        for _ in &pairs {
            take_lane(&client);
            take_lane(&server);
        }
        for end in 0..pairs.len() as u32 {
            for program in [&client, &server] {
                let release = sluice_control::message::ToDaemon::Release {
                    end,
                    generation: round,
                };
                program.client.send(&release, &[]).unwrap();
            }
        }
        client.settle();
        server.settle();
    }
    let matches = f64::from(rounds) * pairs.len() as f64;
    let cpu_us = (cpu_ns(&daemon) - before_ns) as f64 / 1000.0;
    println!(
        "{matches} matches, {:.2} us of sluiced's CPU each, {:.2} us of wall clock each",
        cpu_us / matches,
        start.elapsed().as_secs_f64() * 1e6 / matches
    );
    println!("{}", daemon.status()["counters"]);
}

/// Takes a lane message as programs do: it looks at the event flag and does not sleep on the
/// socket, so that sluiced does not have to wake anybody.
fn take_lane(program: &Program) {
    loop {
        if program.client.receive().unwrap().is_some() {
            return;
        }
        while program.event_flag.swap(0) == 0 {
            std::thread::yield_now();
        }
    }
}

/// Time on a CPU so far.
fn cpu_ns(daemon: &Daemon) -> u64 {
    let text = fs::read_to_string(format!("/proc/{}/schedstat", daemon.child.id())).unwrap();
    text.split(' ').next().unwrap().parse().unwrap()
}
