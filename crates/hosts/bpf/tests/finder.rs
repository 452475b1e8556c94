//! Whether ends find each other in the handshake, and whom they take for one.

mod common;

use std::net::{IpAddr, SocketAddr};
use std::process::Command;

use common::pair::{Pair, default_answer, established, events, is_syn, meet};
use common::places::detach;
use common::segment::{ANSWER, OFFER, REPEAT, Segment, Wire};
use common::{Agent, End, Group, can_run, until};
use sluice_bpf::{
    Connection, Error, Event, Finder, FinderCounters, FinderOptions, Network, Peer, PortSet, Rules,
    Verdict,
};
use sluice_sys::wake::Epoll;

#[test]
fn agent() {
    common::run_as_agent();
}

#[test]
fn both_ends_find_each_other() {
    if !can_run("both_ends_find_each_other") {
        return;
    }
    let pair = Pair::new();
    let [mut a, mut b] = pair.finders();
    let (mut client, mut server) = pair.agents();
    for address in [pair.net.b.v4_any(), pair.net.b.v6_any()] {
        let mut wire = Wire::open(&pair.net.b);
        let listener = server.listen(address);
        let (connected, accepted) = meet(&mut client, &mut server, &listener);
        let active = established(&mut a, connected.cookie);
        let passive = established(&mut b, accepted.cookie);
        let nonce = active.verdict.nonce;
        let verdict = |active| Verdict {
            peer: Peer::Can,
            active,
            nonce,
        };
        let expected = Connection {
            cookie: connected.cookie,
            netns: client.netns,
            local: connected.local,
            remote: listener.local,
            verdict: verdict(true),
        };
        assert_eq!(active, expected);
        let expected = Connection {
            cookie: accepted.cookie,
            netns: server.netns,
            local: listener.local,
            remote: connected.local,
            verdict: verdict(false),
        };
        assert_eq!(passive, expected);
        assert_eq!(a.verdict(connected.cookie), Ok(Some(verdict(true))));
        assert_eq!(b.verdict(accepted.cookie), Ok(Some(verdict(false))));
        assert_eq!(a.verdict(accepted.cookie), Ok(None), "another end's");

        client.write(connected.id, "question");
        assert_eq!(server.read(accepted.id, 8), Ok("question".into()));
        let segments = wire.between(connected.local, listener.local);
        let [syn, answer] = &segments[..2] else {
            panic!("{segments:?}");
        };
        assert_eq!(syn.ours(), Some((OFFER, 0, nonce)));
        assert_eq!(answer.ours(), Some((ANSWER, 0, default_answer(nonce))));
        assert!(is_syn(syn) && is_syn(answer));
        assert!(segments.iter().any(|segment| !segment.data.is_empty()));
        for later in &segments[2..] {
            assert_eq!(later.ours(), None, "{later:?}");
        }

        client.close(connected.id);
        server.close(accepted.id);
        for (finder, cookie) in [(&mut a, connected.cookie), (&mut b, accepted.cookie)] {
            let gone = Event::Closed { cookie };
            until("the end", || events(finder).contains(&gone));
            assert_eq!(finder.verdict(cookie), Ok(None));
            finder
                .for_each(&mut |cookie, verdict| panic!("{cookie} {verdict:?}"))
                .expect("works");
        }
    }
    for (finder, offered, answered) in [(&a, 2, 0), (&b, 0, 2)] {
        let counters = FinderCounters {
            offered,
            answered,
            no_room: 0,
            lost: 0,
            enrolled: 0,
            verdicts: [0, 2, 0, 0, 0],
        };
        assert_eq!(finder.counters(), Ok(counters));
    }
}

/// As others see it: Wireshark's own reading of the handshake.
#[test]
fn a_dissector_knows_the_option_as_an_experiment() {
    let test = "a_dissector_knows_the_option_as_an_experiment";
    if !can_run(test) {
        return;
    }
    if Command::new("tshark").arg("-v").output().is_err() {
        common::skip(test, "needs tshark");
        return;
    }
    let pair = Pair::new();
    let _finders = pair.finders();
    let (mut client, mut server) = pair.agents();
    let mut wire = Wire::open(&pair.net.a);
    for address in [pair.net.b.v4_any(), pair.net.b.v6_any()] {
        let listener = server.listen(address);
        meet(&mut client, &mut server, &listener);
    }
    wire.drain();
    // pcap, of version 2.4, of Ethernet.
    let mut file = Vec::new();
    for word in [0xa1b2_c3d4_u32, 4 << 16 | 2, 0, 0, 65536, 1] {
        file.extend(word.to_ne_bytes());
    }
    for frame in &wire.seen {
        for word in [0, 0, frame.len() as u32, frame.len() as u32] {
            file.extend(word.to_ne_bytes());
        }
        file.extend(frame);
    }
    let path = std::env::temp_dir().join(format!("sluice-bpf-{}.pcap", std::process::id()));
    std::fs::write(&path, file).expect("written");
    let output = Command::new("tshark")
        .arg("-r")
        .arg(&path)
        .args([
            "-Y",
            "tcp.flags.syn == 1",
            "-T",
            "fields",
            "-E",
            "separator=;",
        ])
        .args(["-e", "tcp.options.experimental.exid", "-e", "tcp.hdr_len"])
        .args(["-e", "_ws.malformed", "-e", "tcp.option_len"])
        .output()
        .expect("tshark runs");
    let _ = std::fs::remove_file(&path);
    let text = String::from_utf8_lossy(&output.stdout);
    let lines: Vec<&str> = text.lines().collect();
    assert_eq!(lines.len(), 4, "{text}");
    for line in lines {
        let fields: Vec<&str> = line.split(';').collect();
        assert_eq!(fields[0], "0x534c", "{line}");
        assert_eq!(fields[1], "56", "{line}");
        assert_eq!(fields[2], "", "{line}");
        assert!(fields[3].split(',').any(|length| length == "16"), "{line}");
    }
}

#[test]
fn a_peer_without_the_program_cannot() {
    if !can_run("a_peer_without_the_program_cannot") {
        return;
    }
    let pair = Pair::new();
    let (mut client, mut server) = pair.agents();
    for (end, address) in [
        (0, pair.net.b.v4_any()),
        (0, pair.net.b.v6_any()),
        (1, pair.net.b.v4_any()),
        (1, pair.net.b.v6_any()),
    ] {
        let cgroup = pair.groups[end].open();
        let options = FinderOptions::default();
        let mut finder = Finder::attach(&cgroup, &options, &Rules::all()).expect("attaches");
        let mut wire = Wire::open(&pair.net.b);
        let listener = server.listen(address);
        let (connected, accepted) = meet(&mut client, &mut server, &listener);
        let cookie = [connected.cookie, accepted.cookie][end];
        let verdict = established(&mut finder, cookie).verdict;
        assert_eq!(verdict.peer, Peer::Cannot);
        assert_eq!(verdict.active, end == 0);
        let segments = wire.between(connected.local, listener.local);
        // Nobody is answered who has not asked; who asks again, where the first SYN had no answer in time, has a new nonce.
        let ours: Vec<_> = segments.iter().filter_map(Segment::ours).collect();
        if end == 0 {
            assert_eq!(ours.last(), Some(&(OFFER, 0, verdict.nonce)));
            assert!(
                ours.iter()
                    .all(|(kind, seen, _)| (*kind, *seen) == (OFFER, 0))
            );
        } else {
            assert_eq!(ours, []);
        }
        client.write(connected.id, "question");
        assert_eq!(server.read(accepted.id, 8), Ok("question".into()));
        detach(&pair.groups[end], finder);
    }
}

#[test]
fn syn_cookies_are_survived() {
    if !can_run("syn_cookies_are_survived") {
        return;
    }
    let pair = Pair::new();
    // 2: for every SYN.
    pair.net.b.sysctl("ipv4/tcp_syncookies", "2");
    let [mut a, mut b] = pair.finders();
    let (mut client, mut server) = pair.agents();
    for address in [pair.net.b.v4_any(), pair.net.b.v6_any()] {
        let mut wire = Wire::open(&pair.net.b);
        let listener = server.listen(address);
        let (connected, accepted) = meet(&mut client, &mut server, &listener);
        let active = established(&mut a, connected.cookie).verdict;
        let passive = established(&mut b, accepted.cookie).verdict;
        assert_eq!(active.peer, Peer::Can);
        assert_eq!(passive.peer, Peer::Can);
        assert_eq!(active.nonce, passive.nonce);
        let repeated = Some((REPEAT, 0, active.nonce));
        let segments = wire.between(connected.local, listener.local);
        let ours: Vec<_> = segments.iter().map(Segment::ours).collect();
        let answer = Some((ANSWER, 1, default_answer(active.nonce)));
        assert_eq!(
            ours[..3],
            [Some((OFFER, 0, active.nonce)), answer, repeated]
        );
        // Until the first word of the other end.
        client.write(connected.id, "question");
        assert_eq!(server.read(accepted.id, 8), Ok("question".into()));
        server.write(accepted.id, "answer");
        assert_eq!(client.read(connected.id, 6), Ok("answer".into()));
        wire.drain();
        client.write(connected.id, "more");
        let more = |segment: &Segment| segment.data == b"more";
        assert_eq!(wire.next("data", more).ours(), None);
    }
}

const SOL_TCP: i32 = 6;

#[test]
fn a_full_header_goes_without() {
    if !can_run("a_full_header_goes_without") {
        return;
    }
    let mut scene = FastOpen::new();
    // The first SYN asks for a cookie of Fast Open, and fits; the answer has the cookie, and does
    // not. The second SYN has it.
    for round in 0..2 {
        let ([active, passive], segments) = scene.connect();
        let peers = (active.peer, passive.peer);
        assert_eq!(peers, (Peer::Cannot, Peer::Cannot), "{round}");
        let syn = segments.iter().find(|segment| is_syn(segment));
        let syn = syn.expect("a SYN");
        assert_eq!(syn.ours().is_some(), round == 0);
        assert_eq!(syn.data, if round == 0 { &b""[..] } else { b"early" });
    }
    let [a, b] = scene.finders.map(|it| it.counters().expect("counters"));
    assert_eq!((a.offered, a.no_room, b.answered, b.no_room), (1, 1, 0, 1));
}

#[test]
fn data_in_the_syn_goes_with_it() {
    if !can_run("data_in_the_syn_goes_with_it") {
        return;
    }
    let mut scene = FastOpen::new();
    for host in [&scene.pair.net.a, &scene.pair.net.b] {
        // Makes room.
        host.sysctl("ipv4/tcp_timestamps", "0");
    }
    for round in 0..2 {
        let ([active, passive], segments) = scene.connect();
        let peers = (active.peer, passive.peer);
        assert_eq!(peers, (Peer::Can, Peer::Can), "{round}");
        assert_eq!(active.nonce, passive.nonce);
        let early = segments
            .iter()
            .any(|segment| is_syn(segment) && segment.data == b"early");
        assert_eq!(early, round == 1);
        let ours = segments.iter().filter(|segment| segment.ours().is_some());
        assert!(
            ours.clone().count() == 2 && ours.clone().all(is_syn),
            "{segments:?}"
        );
    }
}

/// Fast Open (RFC 7413) at both ends.
struct FastOpen {
    pair: Pair,
    finders: [Finder; 2],
    client: Agent,
    server: Agent,
    listener: End,
}

impl FastOpen {
    fn new() -> Self {
        let pair = Pair::new();
        for host in [&pair.net.a, &pair.net.b] {
            host.sysctl("ipv4/tcp_fastopen", "3");
        }
        let finders = pair.finders();
        let (client, mut server) = pair.agents();
        let listener = fast_open_listener(&mut server, pair.net.b.v4);
        Self {
            pair,
            finders,
            client,
            server,
            listener,
        }
    }

    /// One connection: what its ends find out, and what goes over the wire meanwhile.
    fn connect(&mut self) -> ([Verdict; 2], Vec<Segment>) {
        let mut wire = Wire::open(&self.pair.net.b);
        let (connected, accepted) = fast_open(&mut self.client, &mut self.server, &self.listener);
        let [a, b] = &mut self.finders;
        let active = established(a, connected).verdict;
        let passive = established(b, accepted).verdict;
        ([active, passive], wire.drain())
    }
}

fn fast_open_listener(server: &mut Agent, address: IpAddr) -> End {
    const TCP_FASTOPEN: i32 = 23;
    let order = format!("socket {} {SOL_TCP} {TCP_FASTOPEN} 16", libc::AF_INET);
    let id = server.ask(&order).expect("a socket");
    server
        .ask(&format!("bind {id} {address}:0"))
        .expect("bound");
    server.ask(&format!("listen-on {id}")).expect("listens");
    let mut own = server.ask(&format!("own {id}")).expect("a name");
    own.push_str(" 0.0.0.0:0");
    common::parse_end(&own)
}

/// Sends "early" with connect(), and gives the cookies of both ends.
fn fast_open(client: &mut Agent, server: &mut Agent, listener: &End) -> (u64, u64) {
    const TCP_FASTOPEN_CONNECT: i32 = 30;
    let order = format!(
        "socket {} {SOL_TCP} {TCP_FASTOPEN_CONNECT} 1",
        libc::AF_INET
    );
    let id = client.ask(&order).expect("a socket");
    client
        .ask(&format!("join {id} {}", listener.local))
        .expect("connects");
    client.ask(&format!("write {id} early")).expect("written");
    let accepted = server.accept(listener.id);
    assert_eq!(server.read(accepted.id, 5), Ok("early".into()));
    let own = client.ask(&format!("own {id}")).expect("a name");
    let cookie = own.split(' ').nth(1).and_then(|word| word.parse().ok());
    (cookie.expect("a number"), accepted.cookie)
}

#[test]
fn rules_choose_by_network_and_port() {
    if !can_run("rules_choose_by_network_and_port") {
        return;
    }
    let pair = Pair::new();
    let [mut a, mut b] = pair.finders();
    let (mut client, mut server) = pair.agents();
    let network = |text: &str| -> Network { text.parse().expect("a network") };
    let listeners = [
        server.listen(pair.net.b.v4_any()),
        server.listen(pair.net.b.v6_any()),
        // Takes both.
        server.listen("[::]:0".parse().expect("an address")),
    ];
    let [v4, v6, both] = listeners.clone().map(|listener| listener.local);
    let mapped = SocketAddr::new(pair.net.b.v4, both.port());
    let rules = |networks: Vec<(Network, bool)>, other_networks, ports| Rules {
        enabled: true,
        networks,
        other_networks,
        ports,
    };
    let port = |port: u16| PortSet::none().with(port..=port, true);
    let all = PortSet::all;
    let rows = [
        ("all", Rules::all(), [true; 3]),
        ("none", Rules::none(), [false; 3]),
        ("no networks", rules(vec![], false, all()), [false; 3]),
        (
            "one network",
            rules(vec![(network("192.0.2.0/24"), true)], false, all()),
            [true, false, true],
        ),
        (
            "all of IPv6",
            rules(vec![(network("::/0"), true)], false, all()),
            [false, true, false],
        ),
        (
            "the longest decides",
            rules(
                vec![
                    (network("192.0.2.2"), false),
                    (network("192.0.0.0/8"), true),
                ],
                true,
                all(),
            ),
            [false, true, false],
        ),
        (
            "a port",
            rules(vec![], true, port(v4.port())),
            [true, false, false],
        ),
        (
            "all but a port",
            rules(vec![], true, all().with(v6.port()..=v6.port(), false)),
            [true, false, true],
        ),
    ];
    for (what, rules, chosen) in rows {
        a.set_rules(&rules).expect("new rules");
        // What one end is not asked, the other one does not answer.
        b.set_rules(&Rules::all()).expect("new rules");
        for ((listener, to), chosen) in listeners.iter().zip([v4, v6, mapped]).zip(chosen) {
            let connected = client.connect(to).expect("connects");
            let accepted = server.accept(listener.id);
            let peer = established(&mut b, accepted.cookie).verdict.peer;
            let expected = if chosen { Peer::Can } else { Peer::Cannot };
            assert_eq!(peer, expected, "{what}: {to}");
            let known = a.verdict(connected.cookie).expect("works");
            assert_eq!(known.is_some(), chosen, "{what}: {to}");
        }
        // And the passive end's rules, by its own port and the other's address.
        let swapped = Rules {
            networks: rules
                .networks
                .iter()
                .map(|(rule, chosen)| {
                    let own = *rule == network("192.0.2.2");
                    (if own { network("192.0.2.1") } else { *rule }, *chosen)
                })
                .collect(),
            ..rules.clone()
        };
        a.set_rules(&Rules::all()).expect("new rules");
        b.set_rules(&swapped).expect("new rules");
        for ((listener, to), chosen) in listeners.iter().zip([v4, v6, mapped]).zip(chosen) {
            let connected = client.connect(to).expect("connects");
            let accepted = server.accept(listener.id);
            let peer = established(&mut a, connected.cookie).verdict.peer;
            let expected = if chosen { Peer::Can } else { Peer::Cannot };
            assert_eq!(peer, expected, "passive, {what}: {to}");
            let known = b.verdict(accepted.cookie).expect("works");
            assert_eq!(known.is_some(), chosen, "passive, {what}: {to}");
        }
    }
}

#[test]
fn ends_with_other_keys_are_foreign() {
    if !can_run("ends_with_other_keys_are_foreign") {
        return;
    }
    let pair = Pair::new();
    let mut finders = [0, 1].map(|end| {
        let options = FinderOptions {
            key: [end as u8; 16],
            ..FinderOptions::default()
        };
        Finder::attach(&pair.groups[end].open(), &options, &Rules::all()).expect("attaches")
    });
    let (mut client, mut server) = pair.agents();
    let listener = server.listen(pair.net.b.v4_any());
    let (connected, _) = meet(&mut client, &mut server, &listener);
    let verdict = established(&mut finders[0], connected.cookie).verdict;
    assert_eq!(verdict.peer, Peer::Foreign);
    // With the same one they find each other.
    let done = finders[0].set_key([1; 16], &Rules::all());
    assert_eq!(done, Ok(()));
    let (connected, _) = meet(&mut client, &mut server, &listener);
    let verdict = established(&mut finders[0], connected.cookie).verdict;
    assert_eq!(verdict.peer, Peer::Can);
}

#[test]
fn programs_elsewhere_are_left_alone() {
    if !can_run("programs_elsewhere_are_left_alone") {
        return;
    }
    let pair = Pair::new();
    let [mut a, mut b] = pair.finders();
    let mut client = Agent::start(&pair.net.a, None);
    let mut server = Agent::start(&pair.net.b, Some(&pair.groups[1]));
    let mut wire = Wire::open(&pair.net.b);
    let listener = server.listen(pair.net.b.v4_any());
    let (connected, accepted) = meet(&mut client, &mut server, &listener);
    assert_eq!(
        established(&mut b, accepted.cookie).verdict.peer,
        Peer::Cannot
    );
    assert_eq!(a.verdict(connected.cookie), Ok(None));
    assert_eq!(events(&mut a), []);
    assert!(wire.drain().iter().all(|segment| segment.ours().is_none()));
}

#[test]
fn a_full_ring_loses_events_and_no_verdicts() {
    if !can_run("a_full_ring_loses_events_and_no_verdicts") {
        return;
    }
    let pair = Pair::new();
    let options = FinderOptions {
        events_bytes: 4096,
        ..FinderOptions::default()
    };
    let mut a = Finder::attach(&pair.groups[0].open(), &options, &Rules::all()).expect("attaches");
    let (mut client, mut server) = pair.agents();
    let listener = server.listen(pair.net.b.v4_any());
    let mut cookies: Vec<u64> = (0..100)
        .map(|_| meet(&mut client, &mut server, &listener).0.cookie)
        .collect();
    let lost = a.counters().expect("counters").lost;
    let told = events(&mut a).len() as u64;
    assert!(lost > 0 && told + lost == 100, "{told} and {lost}");
    let mut known = Vec::new();
    a.for_each(&mut |cookie, verdict| {
        assert_eq!(verdict.peer, Peer::Cannot);
        known.push(cookie);
    })
    .expect("works");
    known.sort_unstable();
    cookies.sort_unstable();
    assert_eq!(known, cookies);
    // It goes round, many times.
    for _ in 0..200 {
        let (connected, _) = meet(&mut client, &mut server, &listener);
        established(&mut a, connected.cookie);
    }
    assert_eq!(a.counters().expect("counters").lost, lost);
}

#[test]
fn epoll_says_when_there_are_events() {
    if !can_run("epoll_says_when_there_are_events") {
        return;
    }
    const MOST_NS: Option<u64> = Some(30_000_000_000);
    let pair = Pair::new();
    let (mut client, mut server) = pair.agents();
    let listener = server.listen(pair.net.b.v4_any());
    for wake_after_events in [1, 3] {
        let options = FinderOptions {
            wake_after_events,
            ..FinderOptions::default()
        };
        let cgroup = pair.groups[0].open();
        let mut a = Finder::attach(&cgroup, &options, &Rules::all()).expect("attaches");
        let epoll = Epoll::new().expect("made");
        epoll.add(a.raw(), 7).expect("added");
        let mut tokens = [0; 64];
        for _ in 0..3 {
            for number in 1..=wake_after_events {
                assert_eq!(epoll.wait(&mut tokens, Some(0)), Ok(&[][..]), "{number}");
                let (connected, _) = meet(&mut client, &mut server, &listener);
                assert!(a.verdict(connected.cookie).expect("works").is_some());
            }
            assert_eq!(epoll.wait(&mut tokens, MOST_NS), Ok(&[7][..]));
            assert_eq!(events(&mut a).len(), wake_after_events as usize);
        }
        // Who looks by itself sees the first one.
        meet(&mut client, &mut server, &listener);
        assert_eq!(events(&mut a).len(), 1);
        detach(&pair.groups[0], a);
    }
}

#[test]
fn it_goes_with_its_owner_and_the_next_one_goes_on() {
    if !can_run("it_goes_with_its_owner_and_the_next_one_goes_on") {
        return;
    }
    let pair = Pair::new();
    let (mut client, mut server) = pair.agents();
    let [a, b] = pair.finders();
    let listener = server.listen(pair.net.b.v4_any());
    let (first, _) = meet(&mut client, &mut server, &listener);
    detach(&pair.groups[0], a);
    detach(&pair.groups[1], b);
    let mut wire = Wire::open(&pair.net.b);
    meet(&mut client, &mut server, &listener);
    assert!(wire.drain().iter().all(|segment| segment.ours().is_none()));
    // The listener is older than these.
    let [mut a, mut b] = pair.finders();
    let (connected, accepted) = meet(&mut client, &mut server, &listener);
    assert_eq!(
        established(&mut a, connected.cookie).verdict.peer,
        Peer::Can
    );
    assert_eq!(established(&mut b, accepted.cookie).verdict.peer, Peer::Can);
    assert_eq!(a.verdict(first.cookie), Ok(None), "older than the program");
    client.close(first.id);
    drop(client);
    until("the end", || {
        events(&mut a).contains(&Event::Closed {
            cookie: connected.cookie,
        })
    });
}

#[test]
fn listeners_of_before_are_enrolled() {
    let test = "listeners_of_before_are_enrolled";
    if !can_run(test) {
        return;
    }
    let pair = Pair::new();
    let (mut client, mut server) = pair.agents();
    let listeners = [
        server.listen(pair.net.b.v4_any()),
        server.listen(pair.net.b.v6_any()),
    ];
    let [mut a, b] = pair.finders();
    let mut peers = |a: &mut Finder| {
        listeners.clone().map(|listener| {
            let (connected, _) = meet(&mut client, &mut server, &listener);
            established(a, connected.cookie).verdict.peer
        })
    };
    assert_eq!(peers(&mut a), [Peer::Cannot; 2]);
    // Elsewhere.
    match pair.net.a.enter(|| b.enroll_listeners()) {
        Err(Error::Kernel { lacks }) => {
            common::skip(test, &format!("this kernel lacks {lacks}"));
            return;
        }
        enrolled => enrolled.expect("goes through the sockets"),
    }
    assert_eq!(peers(&mut a), [Peer::Cannot; 2]);
    pair.net
        .b
        .enter(|| b.enroll_listeners())
        .expect("goes through the sockets");
    assert_eq!(b.counters().expect("counters").enrolled, 2);
    assert_eq!(peers(&mut a), [Peer::Can; 2]);
    pair.net
        .b
        .enter(|| b.enroll_listeners())
        .expect("goes through the sockets");
    assert_eq!(b.counters().expect("counters").enrolled, 2, "no more");
    assert_eq!(b.counters().expect("counters").answered, 2);
}

#[test]
fn options_without_sense_are_refused() {
    if !can_run("options_without_sense_are_refused") {
        return;
    }
    let group = Group::new();
    let attach = |connections_max, events_bytes, wake_after_events| {
        let options = FinderOptions {
            connections_max,
            events_bytes,
            wake_after_events,
            ..FinderOptions::default()
        };
        Finder::attach(&group.open(), &options, &Rules::all())
    };
    for (connections, events, wake) in [
        (0, 4096, 1),
        (u32::MAX, 4096, 1),
        (1, 0, 1),
        (1, 4095, 1),
        (1, 2048, 1),
        (1, 4096, 29),
        (1, 4096, u32::MAX),
    ] {
        let refused = attach(connections, events, wake);
        assert!(matches!(refused, Err(Error::Invalid { .. })), "{refused:?}");
    }
    attach(1, 4096, 0).expect("the smallest");
    attach(1, 4096, 28).expect("the latest");
}
