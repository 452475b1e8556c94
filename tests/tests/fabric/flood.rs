//! A peer with the cluster's key that says the same words without end (the attacks N1, F4 and F4b of issue 46). The
//! daemon stays small, hears all of it, and says little to people. What it costs others is bounded by what one turn
//! takes (`crates/hosts/peering/tests/sessions.rs`) and by shares (`fabric/introducer/tests/hostile.rs` of the daemon).

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::time::{Duration, Instant};

use libtest_mimic::Trial;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use sluice_peering::{Config, Event, Identity, PeerId, Peering, SendError};
use sluice_tests::fleet::{KEY, LIMIT};
use sluice_tests::hosts::Side::{Left, Right};
use sluice_tests::suite::{Verdict, ensure, fail, trial};

use crate::hosts::Two;
use crate::programs::WAYS;

/// Memory by which the daemon may grow: the ends of one peer, and what it reads at once.
const GROWTH_KIB_MAX: u64 = 64 << 10;
/// Of its log. One word in ten would be more.
const LOG_BYTES_MAX: usize = 1 << 20;
/// Words of each kind, but for *hello*, each of which has cost 72 bytes.
const WORDS: u64 = 100_000;
const HELLOS: u64 = 2_000_000;
/// Sessions one after the other.
const SESSIONS: u64 = 200;
/// Ends of one peer that the daemon keeps.
const ENDS: u64 = 65_536;

pub fn trials() -> Vec<Trial> {
    vec![
        trial("flood/hello", || flooded(0, HELLOS, &hello)),
        trial("flood/gone", || flooded(ENDS, WORDS, &gone)),
        trial("flood/ends", || {
            flooded(0, WORDS, &|n, places| end(n, places.own, places.victim, n))
        }),
        trial("flood/others-ends", || {
            flooded(0, WORDS, &|n, places| {
                end(n, [9, 0, 0, 9].into(), places.victim, n)
            })
        }),
        trial("flood/links", || flooded(0, WORDS, &link)),
        trial("flood/seats", || flooded(0, WORDS, &seat)),
        trial("flood/sessions", sessions),
    ]
}

/// The addresses of the two hosts.
#[derive(Clone, Copy)]
struct Places {
    own: IpAddr,
    victim: IpAddr,
}

/// The n-th word.
type Say = dyn Fn(u64, Places) -> Vec<u8> + Sync;

/// Of lives in turn that are greater than the daemon's, which then makes the links that this one asks for.
fn hello(n: u64, _: Places) -> Vec<u8> {
    hello_of(u64::MAX - n % 2)
}

fn hello_of(life: u64) -> Vec<u8> {
    [&[1], &life.to_be_bytes()[..]].concat()
}

/// Of a token that nobody has.
fn gone(_: u64, _: Places) -> Vec<u8> {
    [&[4], &u64::MAX.to_be_bytes()[..]].concat()
}

/// A queue pair of another attempt each time.
fn link(n: u64, _: Places) -> Vec<u8> {
    let mut endpoint = [0; 32];
    endpoint[..2].copy_from_slice(&[1, 3]);
    endpoint[5] = 1;
    endpoint[26..].copy_from_slice(&[0xff, 0xff, 10, 0, 0, 1]);
    [&[2], &(n as u32).to_be_bytes()[..], &endpoint].concat()
}

/// Of no window.
fn seat(n: u64, _: Places) -> Vec<u8> {
    let mut out = vec![10];
    out.extend(n.to_be_bytes().repeat(2));
    out.extend((n as u32 % 4).to_be_bytes());
    out.extend([9; 16]);
    out
}

fn address(out: &mut Vec<u8>, address: SocketAddr) {
    let ip = match address.ip() {
        IpAddr::V4(ip) => ip.to_ipv6_mapped(),
        IpAddr::V6(ip) => ip,
    };
    out.extend(ip.octets());
    out.extend(address.port().to_be_bytes());
}

fn end(token: u64, own: IpAddr, victim: IpAddr, n: u64) -> Vec<u8> {
    let mut out = vec![3];
    out.extend(token.to_be_bytes());
    let ports = [1 + n % 60_000, 1 + n / 60_000];
    for (ip, port) in [own, victim].into_iter().zip(ports) {
        address(&mut out, SocketAddr::new(ip, port as u16));
    }
    out
}

/// Asks for an end that nobody has: the answer comes when everything before it was heard.
fn ask(places: Places) -> Vec<u8> {
    let mut out = end(u64::MAX, places.own, places.victim, 59_999);
    out[0] = 8;
    out
}

const NOBODY: u8 = 9;

/// The peer says so many ends of its own, then words of a kind.
fn flooded(ends: u64, count: u64, say: &Say) -> Verdict {
    withstands(|config, places| {
        let words = |n: u64| {
            if n == 0 {
                hello(0, places)
            } else if n <= ends {
                end(n, places.own, places.victim, n)
            } else {
                say(n, places)
            }
        };
        speak(config, 1 + ends + count, &words, ask(places))
    })
}

/// The peer has one session after the other, each with another life.
fn sessions() -> Verdict {
    withstands(|config, places| {
        for n in 0..SESSIONS {
            speak(config.clone(), 1, &|_| hello_of(n), ask(places))?;
        }
        Ok(())
    })
}

/// The daemon of the left host stays small whatever its peer on the right one does, says little, and answers.
fn withstands(attack: impl FnOnce(Config, Places) -> io::Result<()> + Send) -> Verdict {
    let mut two = WAYS[0].hosts()?;
    let device = WAYS[0].device_of(&two)?;
    let text = two.head(Left, KEY, &device)? + &two.peer(Right);
    two.write_config(Left, &text)?;
    two.start(Left)?;
    let text = two.head(Right, KEY, &device)? + &two.peer(Left);
    let path = two.write_config(Right, &text)?;
    let config = Config::load(&path).or_else(|error| fail(error.to_string()))?;
    let places = Places {
        own: two.address(Right),
        victim: two.address(Left),
    };

    let before = memory_kib(&two)?;
    two.host(Right).inside(|| attack(config, places))?;
    let growth = memory_kib(&two)?.saturating_sub(before);
    let log = two.log(Left);
    println!("{growth} KiB, {} bytes of log", log.len());
    ensure(growth < GROWTH_KIB_MAX, || format!("{growth} KiB"))?;
    ensure(log.len() < LOG_BYTES_MAX, || {
        format!("{} bytes of log, of {}", log.len(), &log[..4096])
    })?;
    // It serves as before.
    two.status(Left).map(drop)
}

/// The resident memory of the left host's daemon.
fn memory_kib(two: &Two) -> Verdict<u64> {
    let status = std::fs::read_to_string(format!("/proc/{}/status", two.daemon(Left)?.id()))?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let kib = line.and_then(|line| line.trim().strip_suffix(" kB"));
    match kib.map(str::parse) {
        Some(Ok(kib)) => Ok(kib),
        _ => fail(format!("no memory in {status}")),
    }
}

/// Has a session with the daemon, says so many words, and the last one until it is answered.
fn speak(
    config: Config,
    count: u64,
    words: &(dyn Fn(u64) -> Vec<u8> + Sync),
    last: Vec<u8>,
) -> io::Result<()> {
    let identity = Identity::load(&config).map_err(io::Error::other)?;
    let mut peering = Peering::new(config, identity).map_err(io::Error::other)?;
    let (mut with, mut said, mut is_answered) = (None::<PeerId>, 0, false);
    let limit = Instant::now() + LIMIT;
    while !is_answered {
        let mut down = None;
        peering.advance(Instant::now(), &mut |event| match event {
            Event::Up { peer, .. } => with = Some(peer),
            Event::Down { why, .. } => down = Some(why),
            Event::Message { bytes, .. } => is_answered |= bytes.first() == Some(&NOBODY),
            _ => {}
        });
        if let Some(why) = down {
            return Err(io::Error::other(format!("the session ended: {why}")));
        }
        if Instant::now() > limit {
            return Err(io::Error::other(format!("{said} words, and no answer")));
        }
        let is_full = with.is_some_and(|peer| {
            while said <= count {
                let word = if said < count {
                    words(said)
                } else {
                    last.clone()
                };
                match peering.send(peer, &word) {
                    Ok(()) => said += 1,
                    Err(SendError::Full) => return true,
                    Err(_) => return false,
                }
            }
            false
        });
        let wait = if is_full { 1 } else { 20 };
        let mut wait = Duration::from_millis(wait);
        if let Some(deadline) = peering.next_deadline() {
            wait = wait.min(deadline.saturating_duration_since(Instant::now()));
        }
        let timeout = Timespec {
            tv_sec: 0,
            tv_nsec: wait.subsec_nanos().into(),
        };
        let mut fds = [PollFd::from_borrowed_fd(peering.fd(), PollFlags::IN)];
        poll(&mut fds, Some(&timeout))?;
    }
    peering.close();
    Ok(())
}
