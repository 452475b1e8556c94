//! Two hosts of the laboratory.

use std::fs::File;

use sluice_lab::link::Settings;
use sluice_lab::pair::{End, Pair, SIDES};
use sluice_lab::verdict::made;
use sluice_peering::authority::{create_authority, issue_folder};
use sluice_peering::{Config, Sought, Why};

mod common;

use common::{HANDSHAKE, Lab, Node, SILENCE, idle, join, run};

const LEFT: usize = 0;
const RIGHT: usize = 1;
const FOUR: [&str; 2] = ["10.77.0.1", "10.77.0.2"];
const SIX: [&str; 2] = ["fd77::1", "fd77::2"];

struct Hosts {
    pair: Pair,
    /// Where the thread was.
    home: File,
}

impl Hosts {
    /// None, with a line that says why, where namespaces cannot be made.
    fn new(test: &str) -> Option<Hosts> {
        let end = |host: usize| End {
            device: "wire",
            v4: FOUR[host].parse().unwrap(),
            v6: SIX[host].parse().unwrap(),
            mac: None,
            link_local: None,
        };
        let pair = Pair::with([end(LEFT), end(RIGHT)], Settings::default());
        Some(Hosts {
            pair: made(test, pair)?,
            home: File::open("/proc/thread-self/ns/net").unwrap(),
        })
    }

    fn ip(&self, host: usize, arguments: &str) {
        self.pair.host(SIDES[host]).ip(arguments).unwrap();
    }

    /// A daemon on that host, listening where daemons do when nothing is said.
    fn node(&self, host: usize, lab: &Lab, name: &str, rest: &str) -> Node {
        let text = format!("[daemon]\nname = '{name}'\n{}{rest}", lab.psk("key"));
        let config = Config::parse(&lab.path("sluiced.toml"), &text).unwrap();
        let place = File::open(self.pair.host(SIDES[host]).namespace().path()).unwrap();
        Node::in_place(config, Some(place))
    }
}

impl Drop for Hosts {
    fn drop(&mut self) {
        use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};
        use std::os::fd::AsFd;
        let kind = Some(LinkNameSpaceType::Network);
        let _ = move_into_link_name_space(self.home.as_fd(), kind);
    }
}

#[test]
fn hosts_that_seek_one_another_at_the_same_time_have_one_session() {
    let Some(hosts) = Hosts::new("hosts_that_seek_one_another") else {
        return;
    };
    for addresses in [FOUR, SIX] {
        let lab = Lab::new();
        let mut alpha = hosts.node(LEFT, &lab, "alpha", "[discovery]\n");
        let mut beta = hosts.node(RIGHT, &lab, "beta", "[discovery]\n");
        let (here, there) = (
            addresses[LEFT].parse().unwrap(),
            addresses[RIGHT].parse().unwrap(),
        );
        let now = alpha.now();
        assert_eq!(alpha.get().seek(there, now), Sought::Asking);
        assert_eq!(beta.get().seek(here, now), Sought::Asking);
        join((&mut alpha, "alpha"), (&mut beta, "beta"));
        idle([&mut alpha, &mut beta], 10);
        // Each sees where the other's connection comes from, so none begins only to end.
        assert_eq!(
            (alpha.ups(), beta.ups()),
            (1, 1),
            "{:?} {:?}",
            alpha.events,
            beta.events
        );
        assert_eq!((alpha.downs(), beta.downs()), (vec![], vec![]));
        let (a, b) = (alpha.with("beta"), beta.with("alpha"));
        assert_eq!(
            (alpha.get().peer_at(there), beta.get().peer_at(here)),
            (a, b)
        );
        assert_eq!(alpha.get().status()[0].address.ip(), there);
    }
}

#[test]
fn a_link_that_fails_ends_the_session_and_a_link_that_comes_back_begins_one() {
    let Some(hosts) = Hosts::new("a_link_that_fails") else {
        return;
    };
    let lab = Lab::new();
    let peer = |name: &str, host: usize| {
        format!("[[peer]]\nname = '{name}'\ncontrol = '{}'\n", FOUR[host])
    };
    let mut alpha = hosts.node(LEFT, &lab, "alpha", &peer("beta", RIGHT));
    let mut beta = hosts.node(RIGHT, &lab, "beta", &peer("alpha", LEFT));
    join((&mut alpha, "alpha"), (&mut beta, "beta"));
    let session = alpha.with("beta").unwrap();
    // For a moment nobody notices, and what is sent meanwhile arrives after it.
    hosts.ip(LEFT, "link set wire down");
    alpha.get().send(session, b"later").unwrap();
    idle([&mut alpha, &mut beta], 10);
    assert!(beta.messages().is_empty());
    hosts.ip(LEFT, "link set wire up");
    run([&mut alpha, &mut beta], "the message", |[_, beta]| {
        beta.messages() == [b"later"]
    });
    assert_eq!((alpha.downs(), beta.downs()), (vec![], vec![]));
    // For longer.
    hosts.ip(LEFT, "link set wire down");
    for node in [&mut alpha, &mut beta] {
        node.wait(SILENCE);
    }
    run([&mut alpha, &mut beta], "the end", |[alpha, beta]| {
        alpha.with("beta").is_none() && beta.with("alpha").is_none()
    });
    assert_eq!(
        (alpha.downs(), beta.downs()),
        (vec![Why::Silent], vec![Why::Silent])
    );
    for _ in 0..5 {
        alpha.wait(HANDSHAKE);
        beta.wait(HANDSHAKE);
        idle([&mut alpha, &mut beta], 5);
    }
    assert!(alpha.unreachable().len() >= 2, "{:?}", alpha.events);
    hosts.ip(LEFT, "link set wire up");
    for node in [&mut alpha, &mut beta] {
        node.wait(HANDSHAKE);
    }
    join((&mut alpha, "alpha"), (&mut beta, "beta"));
}

#[test]
fn folders_that_an_authority_made_are_configurations_that_work_as_they_are() {
    let Some(hosts) = Hosts::new("folders_that_an_authority_made") else {
        return;
    };
    let lab = Lab::new();
    let authority = lab.dir.path();
    create_authority(authority).unwrap();
    let node = |host: usize, name: &str| {
        let folder = issue_folder(authority, name, 30, &[]).unwrap();
        let config = Config::load(&folder.join("sluiced.toml")).unwrap();
        let place = File::open(hosts.pair.host(SIDES[host]).namespace().path()).unwrap();
        Node::in_place(config, Some(place))
    };
    let (mut alpha, mut beta) = (node(LEFT, "alpha"), node(RIGHT, "beta"));
    let now = alpha.now();
    let there = FOUR[RIGHT].parse().unwrap();
    assert_eq!(alpha.get().seek(there, now), Sought::Asking);
    join((&mut alpha, "alpha"), (&mut beta, "beta"));
}
