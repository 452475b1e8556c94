//! Sockets for which a program has set what a connection in its place would not have, and the room that there is for others.
mod common;

use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::path::Path;

use common::scene::{Scene, direct};
use common::{Agent, End, can_run, skip};
use sluice_bpf::CaptureOptions;

/// Linux's numbers, of those that libc does not name on every machine.
const IP_MINTTL: i32 = 21;
const IPV6_MINHOPCOUNT: i32 = 73;
/// Four times "no operation" (RFC 791 §3.1).
const NO_OPERATIONS: i32 = 0x0101_0101;

const TTL: [i32; 3] = [libc::IPPROTO_IP, libc::IP_TTL, 255];
const LOWEST_TTL: [i32; 3] = [libc::IPPROTO_IP, IP_MINTTL, 1];
const OPTIONS: [i32; 3] = [libc::IPPROTO_IP, libc::IP_OPTIONS, NO_OPERATIONS];
const HOPS: [i32; 3] = [libc::IPPROTO_IPV6, libc::IPV6_UNICAST_HOPS, 255];
const LOWEST_HOPS: [i32; 3] = [libc::IPPROTO_IPV6, IPV6_MINHOPCOUNT, 1];

#[test]
fn agent() {
    common::run_as_agent();
}

fn can_see(test: &str) -> bool {
    if !Path::new("/sys/kernel/btf/vmlinux").exists() {
        skip(test, "the kernel does not say where terms are: no BTF");
        return false;
    }
    can_run(test)
}

fn socket(agent: &mut Agent, family: i32, option: [i32; 3]) -> String {
    let [level, name, value] = option;
    let order = format!("socket {family} {level} {name} {value}");
    agent.ask(&order).expect("a socket")
}

/// A socket whose peer must have a key; None: the kernel has no such keys.
fn keyed(agent: &mut Agent, family: i32, peer: IpAddr) -> Option<String> {
    let id = agent.ask(&format!("socket {family}")).expect("a socket");
    match agent.ask(&format!("key {id} {peer}")) {
        Err(libc::ENOPROTOOPT) => None,
        set => {
            set.expect("a key");
            Some(id)
        }
    }
}

fn listen_on(agent: &mut Agent, id: &str, at: SocketAddr) -> SocketAddr {
    agent.ask(&format!("bind {id} {at}")).expect("bound");
    agent.ask(&format!("listen-on {id}")).expect("listens");
    let own = agent.ask(&format!("own {id}")).expect("an address");
    own.split(' ')
        .nth(2)
        .expect("three words")
        .parse()
        .expect("one")
}

/// Connects a socket that is there, and finds out that it went its own way.
fn goes_directly(client: &mut Agent, id: &str, server: &mut Agent, listener: u32, to: SocketAddr) {
    client.ask(&format!("join {id} {to}")).expect("connects");
    let accepted: End = server.accept(listener);
    let end = client.names(id.parse().expect("a number")).expect("names");
    assert_eq!(accepted.peer, end.local);
}

#[test]
fn connections_with_terms_go_their_own_way() {
    if !can_see("connections_with_terms_go_their_own_way") {
        return;
    }
    let scene = Scene::new(&CaptureOptions::default());
    assert!(scene.capture.sees_terms());
    let mut client = scene.client();
    let mut server = Agent::start(&scene.net.b, None);
    let v4 = server.listen(scene.net.b.v4_any());
    let v6 = server.listen(scene.net.b.v6_any());
    let IpAddr::V4(v4_address) = v4.local.ip() else {
        panic!("{v4:?}");
    };
    let mapped = SocketAddr::new(v4_address.to_ipv6_mapped().into(), v4.local.port());
    for (family, option, to) in [
        (libc::AF_INET, TTL, &v4),
        (libc::AF_INET, LOWEST_TTL, &v4),
        (libc::AF_INET, OPTIONS, &v4),
        (libc::AF_INET6, HOPS, &v6),
        (libc::AF_INET6, LOWEST_HOPS, &v6),
    ] {
        let id = socket(&mut client, family, option);
        goes_directly(&mut client, &id, &mut server, to.id, to.local);
    }
    // A socket of IPv6 that speaks IPv4.
    let id = socket(&mut client, libc::AF_INET6, LOWEST_TTL);
    client
        .ask(&format!("join {id} {mapped}"))
        .expect("connects");
    server.accept(v4.id);

    let mut seen = 6;
    for (family, any, own) in [
        (libc::AF_INET, scene.net.b.v4_any(), scene.net.a.v4),
        (libc::AF_INET6, scene.net.b.v6_any(), scene.net.a.v6),
    ] {
        let Some(listener) = keyed(&mut server, family, own) else {
            break;
        };
        let at = listen_on(&mut server, &listener, any);
        let id = keyed(&mut client, family, at.ip()).expect("as the server");
        let listener = listener.parse().expect("a number");
        goes_directly(&mut client, &id, &mut server, listener, at);
        seen += 1;
    }
    let counters = scene.counters();
    assert_eq!((counters.own_terms, counters.captured), (seen, 0));

    // What is set back is no term any more.
    for option in [
        [libc::IPPROTO_IP, libc::IP_TTL, -1],
        [libc::IPPROTO_IP, IP_MINTTL, 0],
    ] {
        let id = socket(&mut client, libc::AF_INET, option);
        client
            .ask(&format!("join {id} {}", v4.local))
            .expect("connects");
        let (_stream, original) = scene.daemon.accept(&scene.capture, false);
        assert!(original.is_some(), "{option:?}");
    }
    assert_eq!(scene.counters().own_terms, seen);
}

#[test]
fn listeners_with_terms_are_recognised() {
    if !can_see("listeners_with_terms_are_recognised") {
        return;
    }
    let scene = Scene::new(&CaptureOptions::default());
    let mut server = Agent::start(&scene.net.b, None);
    let ask = |to: SocketAddr| {
        let from = SocketAddr::new(to.ip(), 40_000);
        let found = scene.net.b.enter(|| scene.capture.has_terms(from, to));
        found.expect("works")
    };
    let plain = [scene.net.b.v4_any(), scene.net.b.v6_any()].map(|at| server.listen(at).local);
    for at in plain {
        assert!(!ask(at), "{at}");
        assert!(
            !ask(SocketAddr::new(at.ip(), at.port() ^ 1)),
            "nobody listens"
        );
    }
    for (family, option, any) in [
        (libc::AF_INET, TTL, scene.net.b.v4_any()),
        (libc::AF_INET, LOWEST_TTL, scene.net.b.v4_any()),
        (libc::AF_INET6, LOWEST_HOPS, scene.net.b.v6_any()),
    ] {
        let id = socket(&mut server, family, option);
        let at = listen_on(&mut server, &id, any);
        assert!(ask(at), "{option:?}");
    }
    // One for both protocols.
    let id = socket(&mut server, libc::AF_INET6, LOWEST_TTL);
    let any = SocketAddr::new(Ipv6Addr::UNSPECIFIED.into(), 0);
    let at = listen_on(&mut server, &id, any);
    assert!(ask(SocketAddr::new(scene.net.b.v4, at.port())));
    for (family, any, peer) in [
        (libc::AF_INET, scene.net.b.v4_any(), scene.net.a.v4),
        (libc::AF_INET6, scene.net.b.v6_any(), scene.net.a.v6),
    ] {
        let Some(id) = keyed(&mut server, family, peer) else {
            break;
        };
        let at = listen_on(&mut server, &id, any);
        assert!(ask(at), "{at}");
    }
    // In another network namespace nobody listens there.
    let from = SocketAddr::new(at.ip(), 40_000);
    let there = scene.net.a.enter(|| scene.capture.has_terms(from, at));
    assert_eq!(there, Ok(false));
}

/// As on a kernel without BTF.
#[test]
fn without_a_look_everything_is_captured_and_said() {
    if !can_run("without_a_look_everything_is_captured_and_said") {
        return;
    }
    let scene = Scene::new(&CaptureOptions {
        sees_terms: false,
        ..CaptureOptions::default()
    });
    assert!(!scene.capture.sees_terms());
    let mut client = scene.client();
    let id = socket(&mut client, libc::AF_INET, TTL);
    let to = SocketAddr::new(scene.net.b.v4, 4321);
    client.ask(&format!("join {id} {to}")).expect("connects");
    let (_stream, original) = scene.daemon.accept(&scene.capture, false);
    assert_eq!(original.map(|it| it.destination), Some(to));
    assert_eq!(scene.capture.has_terms(to, to), Ok(false));
}

#[test]
fn clients_with_a_privileged_port_go_their_own_way() {
    if !can_run("clients_with_a_privileged_port_go_their_own_way") {
        return;
    }
    let scene = Scene::new(&CaptureOptions::default());
    let mut client = scene.client();
    let mut server = Agent::start(&scene.net.b, None);
    let listener = server.listen(scene.net.b.v4_any());
    let id = client
        .ask(&format!("socket {}", libc::AF_INET))
        .expect("a socket");
    client
        .ask(&format!("bind {id} {}:1023", scene.net.a.v4))
        .expect("bound");
    goes_directly(&mut client, &id, &mut server, listener.id, listener.local);
    assert_eq!(scene.counters().captured, 0);
}

#[test]
fn beyond_the_limit_connections_go_their_own_way() {
    if !can_run("beyond_the_limit_connections_go_their_own_way") {
        return;
    }
    let scene = Scene::new(&CaptureOptions {
        connections_max: 3,
        ..CaptureOptions::default()
    });
    let mut client = scene.client();
    let mut server = Agent::start(&scene.net.b, None);
    let listener = server.listen(scene.net.b.v4_any());
    let mut open = Vec::new();
    for (limit, room) in [(1, 1), (2, 2), (1_000, 3), (0, 0), (3, 3)] {
        scene.capture.set_limit(limit).expect("set");
        while open.len() < room {
            open.push(scene.captured(&mut client, listener.local));
        }
        let full = scene.counters().full;
        let end = direct(&mut client, &mut server, &listener);
        assert_eq!(scene.counters().full, full + 1, "{limit}");
        client.close(end.id);
    }
    // Each that closes makes room for one.
    let (end, _stream) = open.remove(0);
    client.close(end.id);
    scene.captured(&mut client, listener.local);
}
