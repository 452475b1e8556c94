//! Sessions that begin, carry messages, and end.

use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use sluice_peering::limits::{MESSAGES_PER_TURN_MAX, QUEUE_BYTES_MAX};
use sluice_peering::{Event, MESSAGE_BYTES_MAX, PORT_DEFAULT, SendError, Sought, VERSIONS, Why};

mod common;

use common::{ALIVE, DISCOVERY, HANDSHAKE, Lab, Node, SILENCE, address, idle, join, peer, run};

/// Two that have one key; the first one connects.
fn pair(lab: &Lab) -> (Node, Node) {
    let (here, there) = (address(), address());
    let psk = lab.psk("key");
    let alpha = lab.node(
        "alpha",
        here,
        &format!("{psk}{}{DISCOVERY}", peer("beta", there)),
    );
    let beta = lab.node("beta", there, &format!("{psk}{DISCOVERY}"));
    (alpha, beta)
}

#[test]
fn messages_come_complete_and_in_order() {
    let lab = Lab::new();
    let (mut alpha, mut beta) = pair(&lab);
    join((&mut alpha, "alpha"), (&mut beta, "beta"));
    let there = beta.listens_at();
    let Event::Up {
        peer,
        name,
        address,
        version,
        software,
        binding,
    } = &alpha.events[0]
    else {
        panic!("{:?}", alpha.events);
    };
    let Event::Up { binding: same, .. } = &beta.events[0] else {
        panic!("{:?}", beta.events);
    };
    assert_eq!(binding, same);
    let code = binding.code(b"said");
    assert!(same.is_code(b"said", &code) && !same.is_code(b"not said", &code));
    assert_eq!(
        (name.as_str(), *address, *version),
        ("beta", there, VERSIONS.last)
    );
    assert!(software.starts_with("sluiced "), "{software}");
    let (peer, back) = (*peer, beta.with("alpha").unwrap());
    let lengths = [
        0,
        1,
        100,
        MESSAGE_BYTES_MAX,
        16384,
        0,
        MESSAGE_BYTES_MAX - 1,
    ];
    let message = |n: usize| vec![n as u8; lengths[n]];
    for n in 0..lengths.len() {
        alpha.get().send(peer, &message(n)).unwrap();
        beta.get().send(back, &message(n)).unwrap();
    }
    let count = lengths.len();
    run([&mut alpha, &mut beta], "all messages", |[alpha, beta]| {
        alpha.messages().len() == count && beta.messages().len() == count
    });
    for n in 0..count {
        assert_eq!(alpha.messages()[n], message(n), "{n}");
        assert_eq!(beta.messages()[n], message(n), "{n}");
    }
    let too_long = vec![0; MESSAGE_BYTES_MAX + 1];
    assert_eq!(alpha.get().send(peer, &too_long), Err(SendError::TooLong));
    assert_eq!((alpha.ups(), beta.ups()), (1, 1));
}

#[test]
fn each_session_has_a_binding_of_its_own() {
    let mut bindings = Vec::new();
    for _ in 0..2 {
        let lab = Lab::new();
        let (mut alpha, mut beta) = pair(&lab);
        join((&mut alpha, "alpha"), (&mut beta, "beta"));
        let Event::Up { binding, .. } = &alpha.events[0] else {
            panic!("{:?}", alpha.events);
        };
        bindings.push(binding.clone());
    }
    assert_ne!(bindings[0], bindings[1]);
}

#[test]
fn many_short_messages_take_many_turns_and_come_before_the_end() {
    const COUNT: u32 = 20_000;
    let lab = Lab::new();
    let (mut alpha, mut beta) = pair(&lab);
    join((&mut alpha, "alpha"), (&mut beta, "beta"));
    let peer = alpha.with("beta").unwrap();
    for n in 0..COUNT {
        alpha.get().send(peer, &n.to_be_bytes()).unwrap();
    }
    let mut most = 0;
    let mut count = 0;
    run(
        [&mut alpha, &mut beta],
        "all but the end",
        |[alpha, beta]| {
            let before = std::mem::replace(&mut count, beta.messages().len());
            most = most.max(count - before);
            alpha.get().status()[0].queued == 0
        },
    );
    // The end comes behind them, and is told behind them.
    alpha.peering.take().unwrap().close();
    run([&mut beta], "the end", |[beta]| {
        let before = std::mem::replace(&mut count, beta.messages().len());
        most = most.max(count - before);
        !beta.downs().is_empty()
    });
    assert_eq!(beta.downs(), [Why::Closed]);
    // What was left in the turn before, and what came in this one.
    assert!(most <= 2 * MESSAGES_PER_TURN_MAX, "{most} in one turn");
    let messages = beta.messages();
    assert_eq!(messages.len(), COUNT as usize);
    for (n, bytes) in (0..COUNT).zip(messages) {
        assert_eq!(bytes, n.to_be_bytes());
    }
}

#[test]
fn a_peer_that_does_not_read_fills_a_bounded_queue_and_loses_nothing() {
    let lab = Lab::new();
    let (mut alpha, mut beta) = pair(&lab);
    join((&mut alpha, "alpha"), (&mut beta, "beta"));
    let peer = alpha.with("beta").unwrap();
    let mut sent = 0_u32;
    let message = |n: u32| n.to_be_bytes().repeat(8_000);
    loop {
        match alpha.get().send(peer, &message(sent)) {
            Ok(()) => sent += 1,
            Err(error) => {
                assert_eq!(error, SendError::Full);
                let before = alpha.get().status()[0].queued;
                assert!(before <= QUEUE_BYTES_MAX + 4 * sent as usize, "{before}");
                alpha.turn();
                // The kernel's buffers are full as well.
                if alpha.get().status()[0].queued == before {
                    break;
                }
            }
        }
    }
    run([&mut alpha, &mut beta], "all of them", |[_, beta]| {
        beta.messages().len() == sent as usize
    });
    for (n, bytes) in beta.messages().iter().enumerate() {
        assert_eq!(*bytes, message(n as u32), "{n}");
    }
    assert_eq!(alpha.downs(), []);
    alpha.get().send(peer, b"again").unwrap();
}

#[test]
fn a_quiet_session_stays_and_a_silent_peer_is_given_up() {
    let lab = Lab::new();
    let (mut alpha, mut beta) = pair(&lab);
    join((&mut alpha, "alpha"), (&mut beta, "beta"));
    for _ in 0..20 {
        alpha.wait(ALIVE * 4 / 5);
        beta.wait(ALIVE * 4 / 5);
        idle([&mut alpha, &mut beta], 5);
    }
    assert_eq!((alpha.downs(), beta.downs()), (vec![], vec![]));
    // Beta's host has lost its power: nothing comes, not even a reset.
    alpha.wait(SILENCE);
    run([&mut alpha], "the end", |[alpha]| {
        alpha.with("beta").is_none()
    });
    assert_eq!(alpha.downs(), [Why::Silent]);
    // It comes back, and alpha tries until it does.
    alpha.wait(Duration::from_secs(2));
    join((&mut alpha, "alpha"), (&mut beta, "beta"));
    assert_eq!(beta.downs().len(), 1);
}

#[test]
fn nothing_is_to_do_when_nothing_happens() {
    let lab = Lab::new();
    let (mut alpha, mut beta) = pair(&lab);
    join((&mut alpha, "alpha"), (&mut beta, "beta"));
    idle([&mut alpha, &mut beta], 5);
    for node in [&mut alpha, &mut beta] {
        let now = node.now();
        let deadline = node.get().next_deadline().unwrap();
        let wait = deadline.saturating_duration_since(now);
        assert!(wait > ALIVE / 2, "{wait:?}");
        let mut fds = [PollFd::from_borrowed_fd(node.get().fd(), PollFlags::IN)];
        let at_once = Timespec {
            tv_sec: 0,
            tv_nsec: 0,
        };
        assert_eq!(poll(&mut fds, Some(&at_once)), Ok(0));
    }
}

#[test]
fn a_peer_that_was_started_again_gets_a_new_session() {
    let lab = Lab::new();
    let (here, there) = (address(), address());
    let psk = lab.psk("key");
    let rest = format!("{psk}{}", peer("beta", there));
    let mut alpha = lab.node("alpha", here, &rest);
    let rest = format!("{psk}{}", peer("alpha", here));
    let mut beta = lab.node("beta", there, &rest);
    join((&mut alpha, "alpha"), (&mut beta, "beta"));
    let first = alpha.with("beta").unwrap();
    // Killed: the kernel closes its connections.
    beta.peering = None;
    run([&mut alpha], "the end", |[alpha]| {
        alpha.with("beta").is_none()
    });
    assert_eq!(alpha.downs(), [Why::Lost]);
    assert_eq!(alpha.get().send(first, b"late"), Err(SendError::Gone));
    let mut beta = lab.node("beta", there, &rest);
    join((&mut alpha, "alpha"), (&mut beta, "beta"));
    assert_ne!(alpha.with("beta").unwrap(), first);
    // Ended in order.
    beta.peering.take().unwrap().close();
    run([&mut alpha], "the end", |[alpha]| {
        alpha.with("beta").is_none()
    });
    assert_eq!(alpha.downs(), [Why::Lost, Why::Closed]);
}

#[test]
fn a_new_instance_takes_the_place_of_one_that_vanished() {
    let lab = Lab::new();
    let (mut alpha, mut vanished) = pair(&lab);
    join((&mut alpha, "alpha"), (&mut vanished, "beta"));
    // It is driven no more, so its connection just stays.
    let rest = format!("{}{}", lab.psk("key"), peer("alpha", *ip(&mut alpha)));
    let mut beta = lab.node("beta", address(), &rest);
    let first = alpha.with("beta").unwrap();
    join((&mut alpha, "alpha"), (&mut beta, "beta"));
    run([&mut alpha, &mut beta], "the new one", |[alpha, _]| {
        alpha.with("beta").is_some_and(|peer| peer != first)
    });
    assert_eq!(alpha.downs(), [Why::Replaced]);
    let at = |wanted: fn(&Event) -> bool| alpha.events.iter().rposition(wanted);
    let down = at(|event| matches!(event, Event::Down { .. }));
    let up = at(|event| matches!(event, Event::Up { .. }));
    assert!(down < up, "{:?}", alpha.events);
}

fn ip(node: &mut Node) -> Box<std::net::Ipv4Addr> {
    match node.listens_at().ip() {
        std::net::IpAddr::V4(v4) => Box::new(v4),
        std::net::IpAddr::V6(_) => panic!("tests use IPv4"),
    }
}

#[test]
fn two_that_connect_at_the_same_time_have_one_session() {
    for round in 0..10 {
        let lab = Lab::new();
        let (here, there) = (address(), address());
        let psk = lab.psk("key");
        let mut alpha = lab.node("alpha", here, &format!("{psk}{}", peer("beta", there)));
        let mut beta = lab.node("beta", there, &format!("{psk}{}", peer("alpha", here)));
        if round % 2 == 1 {
            beta.turn();
        }
        join((&mut alpha, "alpha"), (&mut beta, "beta"));
        idle([&mut alpha, &mut beta], 10);
        // Who expects whom is known, so none begins only to end.
        assert_eq!((alpha.ups(), beta.ups()), (1, 1));
        assert_eq!((alpha.downs(), beta.downs()), (vec![], vec![]));
        let (a, b) = (alpha.get().status(), beta.get().status());
        assert_eq!((a.len(), b.len()), (1, 1));
        assert_ne!(a[0].is_dialer, b[0].is_dialer);
        alpha.get().send(a[0].peer, b"to beta").unwrap();
        beta.get().send(b[0].peer, b"to alpha").unwrap();
        run([&mut alpha, &mut beta], "messages", |[alpha, beta]| {
            alpha.messages() == [b"to alpha"] && beta.messages() == [b"to beta"]
        });
    }
}

#[test]
fn two_that_seek_one_another_have_one_session_in_the_end() {
    // Who gets a turn is chance, but the same in every run.
    let mut chance = 0x2545_f491_4f6c_dd1d_u64;
    for _ in 0..30 {
        let lab = Lab::new();
        let (here, there) = (address(), address());
        let rest = format!("{}{DISCOVERY}", lab.psk("key"));
        let mut alpha = lab.node("alpha", here, &rest);
        let mut beta = lab.node("beta", there, &rest);
        let now = alpha.now();
        assert_eq!(alpha.get().seek(there.into(), now), Sought::Asking);
        assert_eq!(beta.get().seek(here.into(), now), Sought::Asking);
        for _ in 0..40 {
            chance ^= chance << 13;
            chance ^= chance >> 7;
            chance ^= chance << 17;
            match chance >> 62 {
                0 => alpha.turn(),
                1 => beta.turn(),
                // What was sent gets there.
                _ => std::thread::yield_now(),
            }
        }
        run([&mut alpha, &mut beta], "one session", |[alpha, beta]| {
            let (a, b) = (alpha.get().status(), beta.get().status());
            a.len() == 1
                && b.len() == 1
                && a[0].is_dialer != b[0].is_dialer
                && alpha.get().peer_at(there.into()) == Some(a[0].peer)
                && beta.get().peer_at(here.into()) == Some(b[0].peer)
        });
        idle([&mut alpha, &mut beta], 10);
        let (a, b) = (alpha.with("beta").unwrap(), beta.with("alpha").unwrap());
        alpha.get().send(a, b"to beta").unwrap();
        beta.get().send(b, b"to alpha").unwrap();
        run([&mut alpha, &mut beta], "messages", |[alpha, beta]| {
            alpha.messages() == [b"to alpha"] && beta.messages() == [b"to beta"]
        });
        assert_eq!((alpha.unreachable(), beta.unreachable()), (vec![], vec![]));
    }
}

#[test]
fn an_address_without_a_daemon_is_remembered_for_a_while() {
    let lab = Lab::new();
    let mut alpha = lab.node(
        "alpha",
        address(),
        &format!("{}{DISCOVERY}", lab.psk("key")),
    );
    let nobody = address();
    let now = alpha.now();
    assert_eq!(alpha.get().seek(nobody.into(), now), Sought::Asking);
    assert_eq!(alpha.get().seek(nobody.into(), now), Sought::Asking);
    run([&mut alpha], "an answer", |[alpha]| {
        !alpha.unreachable().is_empty()
    });
    let refused = Why::Io(std::io::ErrorKind::ConnectionRefused);
    assert_eq!(alpha.unreachable(), [(nobody.into(), refused)]);
    assert_eq!(alpha.get().seek(nobody.into(), now), Sought::Nobody);
    let later = alpha.now() + Duration::from_secs(6);
    assert_eq!(alpha.get().seek(nobody.into(), later), Sought::Asking);
    // Those outside of the networks are not asked.
    let outside = "192.0.2.1".parse().unwrap();
    assert_eq!(alpha.get().seek(outside, later), Sought::Nobody);
}

#[test]
fn a_daemon_finds_itself_and_remembers() {
    let lab = Lab::new();
    let here = address();
    let mut alpha = lab.node("alpha", here, &format!("{}{DISCOVERY}", lab.psk("key")));
    let now = alpha.now();
    assert_eq!(alpha.get().seek(here.into(), now), Sought::Asking);
    run([&mut alpha], "an answer", |[alpha]| {
        !alpha.unreachable().is_empty()
    });
    assert_eq!(alpha.unreachable(), [(here.into(), Why::Itself)]);
    assert_eq!(alpha.ups(), 0);
}

#[test]
fn two_of_one_name_have_no_session() {
    let lab = Lab::new();
    let there = address();
    let rest = format!("{}{DISCOVERY}", lab.psk("key"));
    let mut one = lab.node("alpha", address(), &rest);
    let mut other = lab.node("alpha", there, &rest);
    let now = one.now();
    one.get().seek(there.into(), now);
    run([&mut one, &mut other], "an answer", |[one, _]| {
        !one.unreachable().is_empty()
    });
    assert_eq!(one.unreachable(), [(there.into(), Why::SameName)]);
}

#[test]
fn a_second_address_of_a_peer_is_found_without_a_second_session() {
    let lab = Lab::new();
    let (here, there, second) = (address(), address(), address());
    let psk = lab.psk("key");
    let listen = format!("[daemon]\nname = 'beta'\nlisten = ['{there}', '{second}']\n");
    let text = format!("{listen}{psk}{DISCOVERY}");
    let config = sluice_peering::Config::parse(&lab.path("beta.toml"), &text).unwrap();
    let mut beta = Node::new(config);
    let rest = format!("{psk}{}{DISCOVERY}", peer("beta", there));
    let mut alpha = lab.node("alpha", here, &rest);
    join((&mut alpha, "alpha"), (&mut beta, "beta"));
    let peer = alpha.with("beta").unwrap();
    let now = alpha.now();
    assert_eq!(alpha.get().seek(there.into(), now), Sought::Peer(peer));
    assert_eq!(alpha.get().seek(second.into(), now), Sought::Asking);
    let found = Event::Address {
        peer,
        address: second.into(),
    };
    run([&mut alpha, &mut beta], "the address", |[alpha, _]| {
        alpha.events.contains(&found)
    });
    let now = alpha.now();
    assert_eq!(alpha.get().seek(second.into(), now), Sought::Peer(peer));
    assert_eq!((alpha.ups(), beta.ups()), (1, 1));
    assert_eq!((alpha.downs(), beta.downs()), (vec![], vec![]));
}

#[test]
fn another_daemon_than_expected_is_not_taken_for_it() {
    let lab = Lab::new();
    let there = address();
    let psk = lab.psk("key");
    let mut alpha = lab.node("alpha", address(), &format!("{psk}{}", peer("beta", there)));
    let mut gamma = lab.node("gamma", there, &format!("{psk}{DISCOVERY}"));
    run([&mut alpha, &mut gamma], "an answer", |[alpha, _]| {
        !alpha.unreachable().is_empty()
    });
    let why = Why::OtherName {
        expected: "beta".into(),
        found: "gamma".into(),
    };
    assert_eq!(alpha.unreachable(), [(there.into(), why)]);
    assert_eq!((alpha.ups(), gamma.ups()), (0, 0));
}

#[test]
fn a_reload_ends_sessions_with_peers_that_are_gone() {
    let lab = Lab::new();
    let (here, there) = (address(), address());
    let psk = lab.psk("key");
    let with_beta = format!("{psk}{}", peer("beta", there));
    let mut alpha = lab.node("alpha", here, &with_beta);
    let mut beta = lab.node("beta", there, &format!("{psk}{}", peer("alpha", here)));
    join((&mut alpha, "alpha"), (&mut beta, "beta"));
    // The same again changes nothing.
    let changes = alpha.reload(lab.config("alpha", here, &with_beta));
    assert!(changes.is_empty(), "{changes:?}");
    idle([&mut alpha, &mut beta], 5);
    assert_eq!(alpha.downs(), []);
    let changes = alpha.reload(lab.config("alpha", here, &psk));
    assert_eq!(changes.went, ["beta"]);
    run([&mut alpha, &mut beta], "the end", |[alpha, beta]| {
        !alpha.downs().is_empty() && !beta.downs().is_empty()
    });
    assert_eq!(alpha.downs(), [Why::Reconfigured]);
    assert_eq!(beta.downs(), [Why::Closed]);
    // It may try, and is told why not.
    beta.wait(Duration::from_secs(70));
    run([&mut alpha, &mut beta], "a refusal", |[_, beta]| {
        !beta.unreachable().is_empty()
    });
    let text = beta.unreachable()[0].1.to_string();
    assert!(text.contains("does not know this one"), "{text}");
    assert_eq!(alpha.with("beta"), None);
    // And back.
    let changes = alpha.reload(lab.config("alpha", here, &with_beta));
    assert_eq!(changes.came, ["beta"]);
    join((&mut alpha, "alpha"), (&mut beta, "beta"));
}

#[test]
fn a_reload_moves_the_listening_address() {
    let lab = Lab::new();
    let (here, elsewhere) = (address(), address());
    let rest = format!("{}{DISCOVERY}", lab.psk("key"));
    let mut alpha = lab.node("alpha", here, &rest);
    let changes = alpha.reload(lab.config("alpha", elsewhere, &rest));
    assert!(changes.listen);
    let at = std::net::SocketAddr::new(elsewhere.into(), PORT_DEFAULT);
    assert_eq!(alpha.get().local_addresses(), [at]);
    let mut beta = lab.node("beta", address(), &rest);
    let now = beta.now();
    beta.get().seek(elsewhere.into(), now);
    join((&mut alpha, "alpha"), (&mut beta, "beta"));
    // An address that somebody else has changes nothing.
    let taken = std::net::TcpListener::bind((address(), PORT_DEFAULT)).unwrap();
    let std::net::IpAddr::V4(taken_ip) = taken.local_addr().unwrap().ip() else {
        panic!("IPv4");
    };
    let config = lab.config("alpha", taken_ip, &rest);
    let identity = sluice_peering::Identity::load(&config).unwrap();
    let error = alpha
        .get()
        .reload(config, identity)
        .unwrap_err()
        .to_string();
    assert!(error.contains("cannot be listened at"), "{error}");
    assert_eq!(alpha.get().local_addresses(), [at]);
    idle([&mut alpha, &mut beta], 5);
    assert_eq!(alpha.downs(), []);
}

#[test]
fn a_reload_gives_up_what_is_not_to_be_asked_any_more() {
    let lab = Lab::new();
    let (here, there) = (address(), address());
    let psk = lab.psk("key");
    let mut alpha = lab.node("alpha", here, &format!("{psk}{DISCOVERY}"));
    // It listens, and never answers.
    let _mute = std::net::TcpListener::bind((there, PORT_DEFAULT)).unwrap();
    let now = alpha.now();
    assert!(!alpha.get().is_asking(there.into()));
    assert_eq!(alpha.get().seek(there.into(), now), Sought::Asking);
    assert!(alpha.get().is_asking(there.into()));
    alpha.turn();
    assert!(alpha.get().is_asking(there.into()));
    alpha.reload(lab.config("alpha", here, &psk));
    run([&mut alpha], "an answer", |[alpha]| {
        !alpha.unreachable().is_empty()
    });
    assert_eq!(alpha.unreachable(), [(there.into(), Why::Reconfigured)]);
    let now = alpha.now();
    assert_eq!(alpha.get().seek(there.into(), now), Sought::Nobody);
    // With discovery it is asked again at once.
    alpha.reload(lab.config("alpha", here, &format!("{psk}{DISCOVERY}")));
    assert_eq!(alpha.get().seek(there.into(), now), Sought::Asking);
    alpha.turn();
    alpha.wait(HANDSHAKE);
    run([&mut alpha], "an answer", |[alpha]| {
        alpha.unreachable().len() == 2
    });
    assert_eq!(alpha.unreachable()[1], (there.into(), Why::Slow));
    assert!(!alpha.get().is_asking(there.into()));
}

#[test]
fn each_address_of_a_peer_that_was_asked_about_gets_its_answer() {
    let lab = Lab::new();
    let (here, there) = (address(), address());
    let psk = lab.psk("key");
    let networks = format!("addresses = ['10.8.0.0/24', '{there}']\n");
    let rest = format!("{psk}{}{networks}", peer("beta", there));
    let mut alpha = lab.node("alpha", here, &rest);
    let pods = ["10.8.0.1", "10.8.0.2"].map(|text| text.parse().unwrap());
    let now = alpha.now();
    for pod in pods {
        assert_eq!(alpha.get().seek(pod, now), Sought::Asking);
    }
    run([&mut alpha], "an answer", |[alpha]| {
        alpha.unreachable().len() == 3
    });
    let refused = Why::Io(std::io::ErrorKind::ConnectionRefused);
    for asked in [pods[0], pods[1], there.into()] {
        let answer = (asked, refused.clone());
        assert!(alpha.unreachable().contains(&answer), "{:?}", alpha.events);
    }
    // It is tried again later, and until then the answer stays.
    assert_eq!(alpha.get().seek(pods[0], now), Sought::Nobody);
    let mut beta = lab.node("beta", there, &format!("{psk}{DISCOVERY}"));
    alpha.wait(Duration::from_secs(2));
    alpha.turn();
    assert_eq!(alpha.get().seek(pods[0], now), Sought::Asking);
    join((&mut alpha, "alpha"), (&mut beta, "beta"));
    let peer = alpha.with("beta").unwrap();
    let found = Event::Address {
        peer,
        address: pods[0],
    };
    assert_eq!(alpha.events.last(), Some(&found));
    assert_eq!(alpha.get().seek(pods[1], now), Sought::Peer(peer));
}
