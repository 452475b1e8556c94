//! What is made of segments that no kernel would send: echoes, nonsense, and what comes too late.

mod common;

use std::net::SocketAddr;

use common::pair::{Pair, answer_to, default_answer, established, events};
use common::segment::{ACK, ANSWER, OFFER, Puppet, REPEAT, SYN, Segment, option, proper};
use common::{can_run, parse_end, until};
use sluice_bpf::{Event, Finder, FinderOptions, Peer, Rules};

#[test]
fn agent() {
    common::run_as_agent();
}

/// What a peer, or something on the way to it, answers to a SYN with our option, and what is
/// thought of it.
#[test]
fn answers_are_told_from_echoes_and_from_nonsense() {
    if !can_run("answers_are_told_from_echoes_and_from_nonsense") {
        return;
    }
    let pair = Pair::new();
    let [mut a, _b] = pair.finders();
    let (mut client, _server) = pair.agents();
    let mut puppet = Puppet::new(&pair.net.b, &pair.net.a);
    type Reply = fn(u64) -> Vec<u8>;
    let rows: [(&str, Peer, Reply); 15] = [
        ("right", Peer::Can, |n| proper(ANSWER, 0, default_answer(n))),
        ("unknown flags", Peer::Can, |n| {
            proper(ANSWER, 0xfe, default_answer(n))
        }),
        ("behind others", Peer::Can, |n| {
            [
                &[1, 1, 254, 4, 1, 2, 253, 6, 1, 2, 3, 4],
                &proper(ANSWER, 0, default_answer(n))[..],
            ]
            .concat()
        }),
        ("nothing", Peer::Cannot, |_| Vec::new()),
        ("echo", Peer::Echoed, |n| proper(OFFER, 0, n)),
        ("echo, as if an answer", Peer::Echoed, |n| {
            proper(ANSWER, 0, n)
        }),
        ("echo of a repetition", Peer::Echoed, |n| {
            proper(REPEAT, 0, n)
        }),
        ("echo with flags", Peer::Echoed, |n| proper(OFFER, 0xff, n)),
        ("answer in a wrong role", Peer::Foreign, |n| {
            proper(OFFER, 0, default_answer(n))
        }),
        ("another key's answer", Peer::Foreign, |n| {
            proper(ANSWER, 0, answer_to([7; 16], n))
        }),
        ("another connection's answer", Peer::Foreign, |n| {
            proper(ANSWER, 0, default_answer(n ^ 1))
        }),
        ("another version", Peer::Foreign, |n| {
            proper(0x22, 0, default_answer(n))
        }),
        ("too short", Peer::Foreign, |_| {
            option(&[ANSWER, 0, 1, 2, 3])
        }),
        ("nothing behind the ExID", Peer::Foreign, |_| option(&[])),
        ("too long", Peer::Foreign, |n| {
            let mut longer = proper(ANSWER, 0, default_answer(n));
            longer[1] += 4;
            longer.extend([0; 4]);
            longer
        }),
    ];
    for (port, (what, peer, reply)) in (5000..).zip(rows) {
        let to = SocketAddr::new(puppet.address.into(), port);
        client.tell(&format!("connect {to}"));
        let syn = puppet.receive(port, SYN);
        let (role, flags, nonce) = syn.ours().expect("an offer");
        assert_eq!((role, flags), (OFFER, 0));
        puppet.answer(&syn, SYN | ACK, 1000, reply(nonce));
        client.answer().expect(what);
        assert_eq!(puppet.receive(port, ACK).ours(), None, "{what}");
        let mut got = None;
        until(what, || {
            got = events(&mut a).into_iter().find_map(|event| match event {
                Event::Established(connection) if connection.remote == to => Some(connection),
                _ => None,
            });
            got.is_some()
        });
        let got = got.map(|got| got.verdict.peer);
        // On a machine that stood still the SYN was repeated.
        if (peer, got) != (Peer::Cannot, Some(Peer::Unheard)) {
            assert_eq!(got, Some(peer), "{what}");
        }
    }
}

/// What a kernel's listener makes of SYNs with all sorts of options.
#[test]
fn only_proper_offers_are_answered() {
    if !can_run("only_proper_offers_are_answered") {
        return;
    }
    let pair = Pair::new();
    let [_a, mut b] = pair.finders();
    let (_client, mut server) = pair.agents();
    let listener = server.listen(pair.net.b.v4_any());
    let mut puppet = Puppet::new(&pair.net.a, &pair.net.b);
    let nonce = 0x0123_4567_89ab_cdef;
    let rows: [(&str, Peer, Vec<u8>); 8] = [
        ("offer", Peer::Can, proper(OFFER, 0, nonce)),
        ("offer with flags", Peer::Can, proper(OFFER, 0xff, nonce)),
        ("nothing", Peer::Cannot, Vec::new()),
        ("answer", Peer::Cannot, proper(ANSWER, 0, nonce)),
        ("repetition", Peer::Cannot, proper(REPEAT, 0, nonce)),
        ("another version", Peer::Cannot, proper(0x21, 0, nonce)),
        ("too short", Peer::Cannot, option(&[OFFER, 0])),
        ("another experiment", Peer::Cannot, {
            let mut other = proper(OFFER, 0, nonce);
            other[5] = b'K';
            other
        }),
    ];
    for (port, (what, peer, options)) in (6000..).zip(rows) {
        let source = SocketAddr::new(puppet.address.into(), port);
        let syn = Segment {
            source,
            destination: listener.local,
            sequence: 7000,
            acknowledgement: 0,
            flags: SYN,
            options,
            data: Vec::new(),
        };
        puppet.send(&syn);
        let answer = puppet.receive(port, SYN | ACK);
        assert_eq!(answer.destination, source);
        let expected = (peer == Peer::Can).then(|| (ANSWER, 0, default_answer(nonce)));
        assert_eq!(answer.ours(), expected, "{what}");
        if peer == Peer::Can {
            // The SYN-ACK was lost: because of its option?
            puppet.send(&syn);
            assert_eq!(puppet.receive(port, SYN | ACK).ours(), None, "{what}");
        }
        puppet.answer(&answer, ACK, 7001, Vec::new());
        let accepted = server.accept(listener.id);
        assert_eq!(accepted.peer, source);
        let verdict = established(&mut b, accepted.cookie).verdict;
        assert_eq!(verdict.peer, peer, "{what}");
        assert_eq!(verdict.nonce, if peer == Peer::Can { nonce } else { 0 });
    }
}

#[test]
fn a_repeated_syn_goes_without() {
    if !can_run("a_repeated_syn_goes_without") {
        return;
    }
    let pair = Pair::new();
    let [mut a, _b] = pair.finders();
    let (mut client, _server) = pair.agents();
    let mut puppet = Puppet::new(&pair.net.b, &pair.net.a);
    let mut nonces = Vec::new();
    for (port, answered) in [(5000, false), (5001, true)] {
        let to = SocketAddr::new(puppet.address.into(), port);
        client.tell(&format!("connect {to}"));
        let first = puppet.receive(port, SYN);
        let second = puppet.receive(port, SYN);
        assert_eq!(first.sequence, second.sequence);
        assert_eq!(second.ours(), None);
        let (_, _, nonce) = first.ours().expect("an offer");
        // To the first one, very late, or to the second one.
        let options = match answered {
            true => proper(ANSWER, 0, default_answer(nonce)),
            false => Vec::new(),
        };
        puppet.answer(&second, SYN | ACK, 1000, options);
        client.answer().expect("connects");
        puppet.receive(port, ACK);
        nonces.push(nonce);
    }
    assert_ne!(nonces[0], nonces[1], "another connection's");
    let peers: Vec<_> = events(&mut a)
        .into_iter()
        .filter_map(|event| match event {
            Event::Established(connection) => Some(connection.verdict.peer),
            Event::Closed { .. } => None,
        })
        .collect();
    assert_eq!(peers, [Peer::Unheard, Peer::Can]);
}

#[test]
fn a_simultaneous_open_stays_as_it_is() {
    if !can_run("a_simultaneous_open_stays_as_it_is") {
        return;
    }
    let pair = Pair::new();
    let [mut a, _b] = pair.finders();
    let (mut client, _server) = pair.agents();
    let mut puppet = Puppet::new(&pair.net.b, &pair.net.a);
    let port = 5000;
    let to = SocketAddr::new(puppet.address.into(), port);
    client.tell(&format!("connect {to}"));
    let syn = puppet.receive(port, SYN);
    let crossing = Segment {
        source: to,
        destination: syn.source,
        sequence: 1000,
        acknowledgement: 0,
        flags: SYN,
        options: proper(OFFER, 0, 99),
        data: Vec::new(),
    };
    puppet.send(&crossing);
    let answer = puppet.receive(port, SYN | ACK);
    assert_eq!(answer.ours(), None);
    puppet.answer(&syn, SYN | ACK, 1000, Vec::new());
    let connected = client.answer().expect("connects");
    let cookie = connected
        .split(' ')
        .nth(1)
        .and_then(|word| word.parse().ok());
    let verdict = established(&mut a, cookie.expect("a number")).verdict;
    // On a machine that stood still the SYN was repeated.
    assert!(matches!(verdict.peer, Peer::Cannot | Peer::Unheard));
}

/// For a reader that is woken for what is wrong only.
#[test]
fn events_can_be_of_unheard_syns_alone() {
    if !can_run("events_can_be_of_unheard_syns_alone") {
        return;
    }
    let pair = Pair::new();
    let options = FinderOptions {
        only_unheard: true,
        ..FinderOptions::default()
    };
    let mut a = Finder::attach(&pair.groups[0].open(), &options, &Rules::all()).expect("attaches");
    let (mut client, _server) = pair.agents();
    let mut puppet = Puppet::new(&pair.net.b, &pair.net.a);
    for (port, repeats) in [(5000, false), (5001, true)] {
        let to = SocketAddr::new(puppet.address.into(), port);
        client.tell(&format!("connect {to}"));
        let mut syn = puppet.receive(port, SYN);
        let (_, _, nonce) = syn.ours().expect("an offer");
        let mut reply = proper(ANSWER, 0, default_answer(nonce));
        if repeats {
            syn = puppet.receive(port, SYN);
            reply.clear();
        }
        puppet.answer(&syn, SYN | ACK, 1000, reply);
        let connected = parse_end(&client.answer().expect("connects"));
        puppet.receive(port, ACK);
        let verdict = a.verdict(connected.cookie).expect("works").expect("known");
        let expected = if repeats { Peer::Unheard } else { Peer::Can };
        assert_eq!(verdict.peer, expected);
        client.close(connected.id);
    }
    let told: Vec<_> = events(&mut a)
        .into_iter()
        .map(|event| match event {
            Event::Established(connection) => (connection.remote.port(), connection.verdict.peer),
            Event::Closed { .. } => panic!("ends are not told of"),
        })
        .collect();
    assert_eq!(told, [(5001, Peer::Unheard)]);
    assert_eq!(a.counters().expect("counters").verdicts, [0, 1, 0, 0, 1]);
}
