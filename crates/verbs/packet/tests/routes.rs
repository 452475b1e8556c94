//! Routes and neighbours in network namespaces, and how their changes are seen.
#![allow(unsafe_code)]

mod netns;

use std::net::IpAddr;
use std::os::fd::RawFd;
use std::time::{Duration, Instant};

use netns::{FOUR, Hosts, LEFT, RIGHT, SIX};
use sluice_packet::Routes;
use sluice_packet::routes::{Hop, Interface, RouteError};

const WAIT_MAX: Duration = Duration::from_secs(60);

const LEFT_MAC: [u8; 6] = [2, 0, 0, 0, 0, 1];
const RIGHT_MAC: [u8; 6] = [2, 0, 0, 0, 0, 2];

fn at(text: &str) -> IpAddr {
    text.parse().unwrap()
}

fn open(hosts: &Hosts) -> Routes {
    hosts.within(LEFT, || Routes::open().unwrap())
}

fn readable(descriptor: RawFd, wait_ms: i32) -> bool {
    let mut poll = libc::pollfd {
        fd: descriptor,
        events: libc::POLLIN,
        revents: 0,
    };
    // SAFETY: the kernel reads and writes one pollfd.
    unsafe { libc::poll(&raw mut poll, 1, wait_ms) == 1 }
}

/// Waits with the descriptor until `found` gives something.
fn until<T>(routes: &mut Routes, mut found: impl FnMut(&mut Routes) -> Option<T>) -> T {
    let start = Instant::now();
    loop {
        let generation = routes.generation();
        let changed = routes.process();
        assert_eq!(routes.generation() != generation, changed);
        if let Some(found) = found(routes) {
            return found;
        }
        assert!(start.elapsed() < WAIT_MAX, "nothing changed");
        readable(routes.descriptor(), 500);
    }
}

fn device(routes: &Routes) -> Option<Interface> {
    let mut all = routes.interfaces().into_iter();
    all.find(|interface| interface.name == "left")
}

/// Waits for the link, and until nothing happens any more.
fn settle(routes: &mut Routes) {
    until(routes, |routes| device(routes).filter(|left| left.up));
    while readable(routes.descriptor(), 200) {
        routes.process();
    }
}

fn to(routes: &mut Routes, destination: &str) -> Hop {
    routes.lookup(None, at(destination), 0).unwrap()
}

#[test]
fn interfaces_are_as_they_were_made() {
    let Some(hosts) = Hosts::new("interfaces_are_as_they_were_made", 9000) else {
        return;
    };
    let mut routes = open(&hosts);
    settle(&mut routes);
    let left = device(&routes).unwrap();
    assert_eq!(
        (left.mtu, left.loopback, left.mac),
        (9000, false, Some(LEFT_MAC))
    );
    assert_eq!(left.kind.as_deref(), Some("veth"));
    for (address, bits) in [(FOUR[LEFT], 24), (SIX[LEFT], 64), ("fe80::1", 64)] {
        assert!(left.addresses.contains(&(at(address), bits)), "{address}");
    }
    let loopback = routes.interfaces().into_iter().find(|one| one.loopback);
    let loopback = loopback.unwrap();
    assert_eq!((loopback.name.as_str(), loopback.mac), ("lo", None));

    hosts.ip(LEFT, "link set left mtu 4200");
    until(&mut routes, |routes| {
        device(routes).filter(|left| left.mtu == 4200)
    });
    assert_eq!(to(&mut routes, FOUR[RIGHT]).mtu, 4200);
    hosts.ip(LEFT, "addr del 192.0.2.1/24 dev left");
    until(&mut routes, |routes| {
        let left = device(routes)?;
        let gone = left.addresses.iter().all(|(own, _)| *own != at(FOUR[LEFT]));
        gone.then_some(())
    });
    hosts.ip(LEFT, "link set left down");
    until(&mut routes, |routes| device(routes).filter(|left| !left.up));
    hosts.ip(LEFT, "link del left");
    until(&mut routes, |routes| device(routes).is_none().then_some(()));
}

#[test]
fn neighbours_come_and_go() {
    let Some(hosts) = Hosts::new("neighbours_come_and_go", 9000) else {
        return;
    };
    let mut routes = open(&hosts);
    settle(&mut routes);
    let index = device(&routes).unwrap().index;
    for (own, peer) in [(FOUR[LEFT], "192.0.2.77"), (SIX[LEFT], "2001:db8::77")] {
        let hop = to(&mut routes, peer);
        assert_eq!((hop.interface, hop.mtu, hop.gateway), (index, 9000, None));
        assert_eq!(
            (hop.source, hop.local, hop.ethernet),
            (at(own), false, None)
        );
        let neighbour = format!("{peer} lladdr 02:00:00:00:00:99 dev left nud");
        for (state, known) in [("permanent", true), ("stale", true), ("failed", false)] {
            hosts.ip(LEFT, &format!("neigh replace {neighbour} {state}"));
            until(&mut routes, |routes| {
                let ethernet = to(routes, peer).ethernet;
                (ethernet.is_some() == known).then_some(())
            });
        }
        hosts.ip(LEFT, &format!("neigh replace {neighbour} permanent"));
        let ethernet = until(&mut routes, |routes| to(routes, peer).ethernet);
        assert_eq!(ethernet.source, LEFT_MAC);
        assert_eq!(ethernet.destination, [2, 0, 0, 0, 0, 0x99]);
        hosts.ip(LEFT, &format!("neigh del {peer} dev left"));
        until(&mut routes, |routes| {
            to(routes, peer).ethernet.is_none().then_some(())
        });
    }
}

#[test]
fn neighbours_are_looked_for() {
    let Some(hosts) = Hosts::new("neighbours_are_looked_for", 1500) else {
        return;
    };
    let mut routes = open(&hosts);
    settle(&mut routes);
    let index = device(&routes).unwrap().index;
    let check = |routes: &mut Routes| {
        for peer in [FOUR[RIGHT], SIX[RIGHT], "fe80::2"] {
            hosts.ip(LEFT, "neigh flush dev left");
            until(routes, |routes| {
                let hop = routes.lookup(None, at(peer), index).unwrap();
                let is_gone = hop.ethernet.is_none();
                if !is_gone {
                    // The peer may have asked for us meanwhile, and is known again.
                    hosts.ip(LEFT, "neigh flush dev left");
                }
                is_gone.then_some(())
            });
            hosts.within(LEFT, || routes.resolve(index, at(peer)).unwrap());
            let ethernet = until(routes, |routes| {
                routes.lookup(None, at(peer), index).unwrap().ethernet
            });
            assert_eq!(ethernet.destination, RIGHT_MAC, "{peer}");
        }
    };
    check(&mut routes);
    // Without privilege; only this thread loses it.
    let mut routes = hosts.within(LEFT, || {
        // SAFETY: the raw call changes this thread only, unlike libc's function.
        let changed = unsafe { libc::syscall(libc::SYS_setresuid, 65534, 65534, 65534) };
        assert_eq!(changed, 0);
        let mut routes = Routes::open().unwrap();
        assert!(routes.resolve(index, at(FOUR[RIGHT])).is_ok());
        routes
    });
    let ethernet = until(&mut routes, |routes| to(routes, FOUR[RIGHT]).ethernet);
    assert_eq!(ethernet.destination, RIGHT_MAC);
}

#[test]
fn routes_change_under_way() {
    let Some(hosts) = Hosts::new("routes_change_under_way", 9000) else {
        return;
    };
    let mut routes = open(&hosts);
    settle(&mut routes);
    for (far, near, all) in [
        ("198.51.100.7", FOUR[RIGHT], "198.51.100.0/24"),
        ("2001:db8:7::7", SIX[RIGHT], "2001:db8:7::/64"),
    ] {
        let gone = routes.lookup(None, at(far), 0);
        assert_eq!(gone, Err(RouteError::NoRoute));
        // What the kernel does behind the link's coming may be late.
        while readable(routes.descriptor(), 0) {
            routes.process();
        }
        hosts.ip(LEFT, &format!("route add {all} via {near} mtu 1400"));
        assert!(readable(routes.descriptor(), 60_000), "a route is an event");
        let hop = until(&mut routes, |routes| routes.lookup(None, at(far), 0).ok());
        assert_eq!((hop.gateway, hop.mtu), (Some(at(near)), 1400));
        // The router's address counts, not the destination's.
        let neighbour = format!("neigh replace {near} lladdr 02:00:00:00:00:02 dev left");
        hosts.ip(LEFT, &neighbour);
        let ethernet = until(&mut routes, |routes| to(routes, far).ethernet);
        assert_eq!(ethernet.destination, RIGHT_MAC);
        let generation = routes.generation();
        hosts.ip(LEFT, &format!("route replace prohibit {all}"));
        let refused = until(&mut routes, |routes| routes.lookup(None, at(far), 0).err());
        assert_eq!(refused, RouteError::Prohibited);
        assert!(routes.generation() > generation);
    }
    // An address of one version by way of a router of the other.
    hosts.ip(
        LEFT,
        "route add 203.0.113.0/24 via inet6 2001:db8::2 dev left",
    );
    let hop = to(&mut routes, "203.0.113.1");
    assert_eq!(hop.gateway, Some(at(SIX[RIGHT])));
    assert_eq!(hop.ethernet.unwrap().destination, RIGHT_MAC);
}

#[test]
fn this_host_groups_and_strangers() {
    let Some(hosts) = Hosts::new("this_host_groups_and_strangers", 1500) else {
        return;
    };
    let mut routes = open(&hosts);
    settle(&mut routes);
    let index = device(&routes).unwrap().index;
    for own in [FOUR[LEFT], SIX[LEFT], "127.0.0.1", "::1"] {
        let hop = to(&mut routes, own);
        assert_eq!((hop.local, hop.ethernet), (true, None), "{own}");
        assert_eq!(hop.source, at(own));
    }
    for (group, mac) in [
        ("239.129.2.3", [1, 0, 0x5e, 1, 2, 3]),
        ("ff02::1234", [0x33, 0x33, 0, 0, 0x12, 0x34]),
        ("192.0.2.255", [0xff; 6]),
    ] {
        let hop = routes.lookup(None, at(group), index).unwrap();
        assert_eq!(hop.ethernet.unwrap().destination, mac);
        assert!(!hop.local);
    }
    for (source, destination) in [
        ("192.0.2.66", FOUR[RIGHT]),
        ("2001:db8::66", SIX[RIGHT]),
        (FOUR[LEFT], SIX[RIGHT]),
    ] {
        let asked = routes.lookup(Some(at(source)), at(destination), 0);
        assert_eq!(asked, Err(RouteError::ForeignSource), "{source}");
    }
    let hop = routes.lookup(Some(at(SIX[LEFT])), at(SIX[RIGHT]), index);
    assert_eq!(hop.unwrap().source, at(SIX[LEFT]));
    let nowhere = routes.lookup(None, at(FOUR[RIGHT]), 9999);
    assert!(
        matches!(nowhere, Err(RouteError::NoInterface)),
        "{nowhere:?}"
    );
}

/// More changes than the kernel keeps events for.
#[test]
fn lost_events_are_made_up_for() {
    let Some(hosts) = Hosts::new("lost_events_are_made_up_for", 1500) else {
        return;
    };
    let mut routes = open(&hosts);
    settle(&mut routes);
    // Each event takes a page of the socket's buffer or so.
    let batch = std::env::temp_dir().join(format!("sluice-routes-{}", std::process::id()));
    let mut lines = String::new();
    for n in 0..6000 {
        let (high, low) = (n / 250, n % 250 + 1);
        lines += &format!("neigh replace 192.0.2.{low} lladdr 02:00:00:00:{high:02x}:{low:02x} ");
        lines += "dev left nud permanent\n";
    }
    std::fs::write(&batch, lines).unwrap();
    hosts.ip(LEFT, &format!("-batch {}", batch.display()));
    let _ = std::fs::remove_file(&batch);
    let ethernet = until(&mut routes, |routes| {
        let ethernet = to(routes, "192.0.2.250").ethernet?;
        (ethernet.destination == [2, 0, 0, 0, 23, 250]).then_some(ethernet)
    });
    assert_eq!(ethernet.source, LEFT_MAC);
}
