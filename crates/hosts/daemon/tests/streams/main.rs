//! Addresses are translated, packets marked and routed, devices bound, and ends removed without a word: whatever there
//! is, a lane joins two sockets only if what is written to one arrives at the other.
//!
//! These tests make namespaces of their own, and need root and `nft`.

#[path = "../common/mod.rs"]
mod common;
mod world;

use std::io;
use std::sync::{Mutex, PoisonError};

use common::Daemon;
use sluice_lab::random::Random;
use world::{ADDRESSES, Fate, HOSTS, PORTS, World};

/// A child that a test starts has the connections of the other one for a moment.
static TURN: Mutex<()> = Mutex::new(());

/// Worlds of the property test, and what happens in each. `SLUICE_SEED` chooses one.
const WORLDS: u64 = 24;
const STEPS: usize = 70;

/// Why these tests cannot run here.
fn missing() -> Option<&'static str> {
    if !rustix::process::geteuid().is_root() {
        return Some("it takes root");
    }
    let nft = std::process::Command::new("nft").arg("--version").output();
    nft.is_err()
        .then_some("nft is missing (nftables; scripts/setup --install test)")
}

/// The attack N3: the host redirects a port on which the thief has connections whose other ends he has removed without
/// a word, before they are made or after.
#[test]
fn a_redirected_connection_is_not_matched_with_an_old_one_of_its_addresses() {
    let test = "a_redirected_connection_is_not_matched_with_an_old_one_of_its_addresses";
    if let Some(reason) = missing() {
        return common::skip(test, reason);
    }
    let _turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    for at in [0, 1] {
        let daemon = Daemon::start(&[]);
        let mut world = World::new(&daemon).unwrap();
        let (thief, victim) = (0, 1);
        let (to, from) = ((at, PORTS[0]), (at, PORTS[2]));
        let (connected, accepted) = world
            .connect(0, to, from, None)
            .unwrap()
            .expect("a connection");
        world.announce(connected, thief);
        world.vanish(accepted).unwrap();
        world
            .rule(
                0,
                &format!(
                    "o ip daddr {} tcp dport {} redirect to :{}",
                    ADDRESSES[at], PORTS[0], PORTS[1]
                ),
            )
            .unwrap();
        let (client, server) = world
            .connect(0, from, to, None)
            .unwrap()
            .expect("a redirected one");
        assert_eq!(world.local_port(server), PORTS[1]);
        world.announce(client, victim);
        assert_eq!(world.lanes(), [], "the thief has the client's lane");
        world.announce(server, victim);
        assert_eq!(world.lanes(), []);
        assert_eq!(world.fate(client, server), Fate::Arrives);
        assert_eq!(daemon.counter("mirrors_refuted"), 1);
        let status = daemon.status().to_string();
        assert!(status.contains("is another connection's end"), "{status}");
        // An honest connection beside it has its lane.
        let (client, server) = world
            .connect(0, (at, PORTS[3]), (at, PORTS[1]), None)
            .unwrap()
            .expect("another");
        world.announce(client, victim);
        world.announce(server, thief);
        assert_eq!(world.lanes(), [(client, server)]);
    }
}

/// As N3, by a socket that is bound to loopback beside one that is bound to nothing, with the same addresses.
#[test]
fn an_old_end_without_a_device_is_not_taken_for_the_one_that_is_bound_to_loopback() {
    let test = "an_old_end_without_a_device_is_not_taken_for_the_one_that_is_bound_to_loopback";
    if let Some(reason) = missing() {
        return common::skip(test, reason);
    }
    let _turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    let daemon = Daemon::start(&[]);
    let mut world = World::new(&daemon).unwrap();
    let (to, from) = ((0, PORTS[0]), (0, PORTS[2]));
    let (old, accepted) = world
        .connect(0, to, from, None)
        .unwrap()
        .expect("a connection");
    world.bind(old, world::VOID).unwrap();
    world.vanish(accepted).unwrap();
    let made = world.connect(0, from, to, None).unwrap();
    let (client, server) = made.expect("a connection");
    // Now the kernel finds the server's by loopback, and the old one where no device is named.
    world.bind(server, "lo").unwrap();
    world.bind(old, "").unwrap();
    world.announce(old, 0);
    world.announce(client, 1);
    assert_eq!(world.lanes(), []);
}

/// The property of issue 46: whatever rules, devices, marks, routes and old sockets exist.
#[test]
fn a_lane_joins_sockets_between_which_bytes_arrive() {
    let test = "a_lane_joins_sockets_between_which_bytes_arrive";
    if let Some(reason) = missing() {
        return common::skip(test, reason);
    }
    let _turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    let daemon = Daemon::start(&[]);
    let chosen = std::env::var("SLUICE_SEED")
        .ok()
        .map(|seed| seed.parse().unwrap());
    let seeds = chosen.map_or(0..WORLDS, |seed: u64| seed..seed + 1);
    let (mut lanes, mut cut) = (0, 0);
    for seed in seeds {
        let mut random = Random::new(seed);
        let mut world = World::new(&daemon).unwrap();
        for step in 0..STEPS {
            let did = act(&mut world, &mut random).unwrap();
            for (a, b) in world.lanes() {
                lanes += 1;
                for (from, to) in [(a, b), (b, a)] {
                    match world.fate(from, to) {
                        Fate::Arrives => {}
                        // The network has changed since these two shook hands: nobody else gets it.
                        Fate::Cut if world.were_ends_before_a_change(from, to) => cut += 1,
                        fate => panic!(
                            "seed {seed}, step {step} ({did}): {fate:?}, {}",
                            world.describe(from, to)
                        ),
                    }
                }
            }
        }
    }
    let refuted = daemon.counter("mirrors_refuted");
    println!("{lanes} lanes, {refuted} pairs refuted, {cut} cut");
    if chosen.is_none() {
        assert!(
            lanes > 30 && refuted > 5,
            "{lanes} lanes, {refuted} refuted: that shows little"
        );
    }
}

/// Something happens.
fn act(world: &mut World, random: &mut Random) -> io::Result<String> {
    let host = random.below(HOSTS as u64) as usize;
    let place = |random: &mut Random| {
        let address = random.below(ADDRESSES.len() as u64) as usize;
        (address, PORTS[random.below(PORTS.len() as u64) as usize])
    };
    let some = world.some(random.next());
    Ok(match (random.below(20), some) {
        (0..4, _) => {
            let (from, to) = (place(random), place(random));
            let device =
                random
                    .chance(0.2)
                    .then_some(if random.chance(0.5) { "lo" } else { "cable" });
            let made = world.connect(host, from, to, device)?;
            announce(world, random, made);
            format!("connects on {host} from {from:?} to {to:?} by {device:?}: {made:?}")
        }
        // Who is where the other end was does what that did.
        (4..7, Some(socket)) => {
            let made = world.mirror(socket)?;
            announce(world, random, made);
            format!("connects as the other end of {socket} did: {made:?}")
        }
        // The same when what it says goes elsewhere.
        (7..10, _) => {
            let Some(orphan) = world.orphan(random.next()) else {
                return Ok("nobody is left alone".to_owned());
            };
            let rule = translation(world.local_port(orphan), random);
            world.rule(world.host(orphan), &rule)?;
            let made = world.mirror(orphan)?;
            announce(world, random, made);
            format!("connects as the other end of {orphan} did, with the rule {rule}: {made:?}")
        }
        (10..12, Some(socket)) => {
            world.vanish(socket)?;
            format!("{socket} vanishes")
        }
        (12, Some(socket)) => {
            let device = ["lo", "cable", world::VOID, ""][random.below(4) as usize];
            world.bind(socket, device)?;
            format!("{socket} is bound to {device:?}")
        }
        (13, Some(socket)) if random.chance(0.5) => {
            world.mark(socket)?;
            format!("{socket} is marked")
        }
        (14..17, Some(socket)) => {
            let rule = translation(world.local_port(socket), random);
            world.rule(host, &rule)?;
            format!("{host} has the rule {rule}")
        }
        (17, _) => {
            world.forget_rules(host)?;
            format!("{host} has no rules")
        }
        (_, Some(socket)) => {
            let program = random.below(world::PROGRAMS as u64) as usize;
            world.announce(socket, program);
            format!("{program} announces {socket}")
        }
        _ => "nothing".to_owned(),
    })
}

/// Both ends, one of them, or neither are announced.
fn announce(world: &mut World, random: &mut Random, made: Option<(usize, usize)>) {
    for end in made.into_iter().flat_map(|(a, b)| [a, b]) {
        if random.chance(0.7) {
            world.announce(end, random.below(world::PROGRAMS as u64) as usize);
        }
    }
}

/// A rule that translates what goes to a port, or comes from it.
fn translation(of: u16, random: &mut Random) -> String {
    let to = PORTS[random.below(PORTS.len() as u64) as usize];
    let marked = if random.chance(0.2) {
        "meta mark 7 "
    } else {
        ""
    };
    let address = ADDRESSES[random.below(ADDRESSES.len() as u64) as usize];
    match random.below(7) {
        0..3 => format!("o {marked}tcp dport {of} redirect to :{to}"),
        3 => format!("o ip daddr {address} tcp dport {of} redirect to :{to}"),
        4 => format!("p {marked}tcp dport {of} redirect to :{to}"),
        5 => format!("o {marked}tcp dport {of} dnat to {address}:{to}"),
        _ => format!("s {marked}tcp sport {of} masquerade to :{to}"),
    }
}
