//! Nodes and gateways without daemons and sockets between them.

use std::collections::HashSet;
use std::net::{IpAddr, SocketAddr};
use std::path::Path;
use std::time::{Duration, Instant};

use sluice_control::message::gateway::{Range, Ranges, Tell};
use sluice_control::preface::Key;
use sluice_peering::Config;
use sluice_peering::config::Network;

use super::host::{Host, NodePlace, Publish};
use super::node::{Listening, Publications};
use super::words::{PublicationId, Word};
use super::{Action, Asker, PeerName, kept, range};

const KEY: Key = Key([1; 32]);
const PROCESS: u32 = 50;

fn address(text: &str) -> SocketAddr {
    text.parse().unwrap()
}

fn host() -> Host {
    let text = "[daemon]\nname = 'gw'\nauthentication = 'none'\n[discovery]\n\
                [gateway]\naddresses = ['192.0.2.1', '2001:db8::1']\n\
                [[gateway.node]]\nname = 'a'\nports = '80,443'\nconnect = ['::/0']\n\
                [[gateway.node]]\nname = 'b'\nports = '80'\naddresses = ['192.0.2.1']\n";
    let config = Config::parse(Path::new("/gw.toml"), text).unwrap();
    Host::new(config.gateway.unwrap())
}

fn place(session: &str) -> NodePlace {
    let session: IpAddr = session.parse().unwrap();
    NodePlace {
        session,
        addresses: vec![
            Network::single(session),
            "fd00::/64".parse().unwrap(),
            "fd00::7".parse().unwrap(),
        ],
    }
}

fn publish(host: &mut Host, node: &str, id: u64, listener: &str, only_v6: bool) -> Vec<Action> {
    let mut actions = Vec::new();
    let publish = Publish {
        id: PublicationId(id),
        listener: address(listener),
        only_v6,
        key: KEY,
    };
    let source = |target: SocketAddr| {
        Some(
            if target.is_ipv4() {
                "10.0.0.1"
            } else {
                "fd00::1"
            }
            .parse()
            .unwrap(),
        )
    };
    host.publish(
        &node.into(),
        publish,
        &place("10.0.0.2"),
        source,
        &mut actions,
    );
    actions
}

fn opened(host: &mut Host, actions: &[Action], errno: u16) -> Vec<Action> {
    let mut out = Vec::new();
    for action in actions {
        if let Action::Tell(PROCESS, Tell::Open { service, .. }) = action {
            host.opened(*service, errno, &mut out);
        }
    }
    out
}

fn serve(host: &mut Host) -> Vec<Action> {
    let mut actions = Vec::new();
    assert!(host.serve(PROCESS, &mut actions));
    actions
}

fn errnos(actions: &[Action]) -> Vec<(u64, i32)> {
    let published = actions.iter().filter_map(|action| match action {
        Action::Say(_, Word::Published { id, errno, .. }) => Some((id.0, i32::from(*errno))),
        _ => None,
    });
    published.collect()
}

fn outside(actions: &[Action]) -> Vec<SocketAddr> {
    let mut all: Vec<SocketAddr> = actions
        .iter()
        .filter_map(|action| match action {
            Action::Tell(PROCESS, Tell::Open { address, .. }) => Some(*address),
            _ => None,
        })
        .collect();
    all.sort();
    all
}

fn targets(actions: &[Action]) -> Vec<SocketAddr> {
    let all = actions.iter().filter_map(|action| match action {
        Action::Tell(PROCESS, Tell::Backend { target, .. }) => Some(*target),
        _ => None,
    });
    all.collect()
}

fn gone(actions: &[Action]) -> usize {
    let is_gone = |it: &&Action| matches!(it, Action::Tell(PROCESS, Tell::BackendGone { .. }));
    actions.iter().filter(is_gone).count()
}

fn shut(actions: &[Action]) -> usize {
    let is_shut = |it: &&Action| matches!(it, Action::Tell(PROCESS, Tell::Shut { .. }));
    actions.iter().filter(is_shut).count()
}

#[test]
fn what_is_not_allowed_is_refused() {
    let mut host = host();
    serve(&mut host);
    for (node, listener, errno) in [
        ("a", "0.0.0.0:81", libc::EACCES),
        ("b", "0.0.0.0:443", libc::EACCES),
        ("c", "0.0.0.0:80", libc::EACCES),
        // Another host's address: the gateway would connect there for it.
        ("a", "10.0.0.3:80", libc::EACCES),
        // No outside address of the family.
        ("b", "[fd00::7]:80", libc::EADDRNOTAVAIL),
    ] {
        let actions = publish(&mut host, node, 1, listener, false);
        assert_eq!(errnos(&actions), [(1, errno)], "{node} {listener}");
        assert_eq!(actions.len(), 1, "{node} {listener}: {actions:?}");
    }
}

#[test]
fn the_family_of_a_listener_says_where_it_is_published() {
    for (listener, only_v6, outside_at, target) in [
        ("0.0.0.0:80", false, vec!["192.0.2.1:80"], "10.0.0.2:80"),
        ("10.0.0.2:80", false, vec!["192.0.2.1:80"], "10.0.0.2:80"),
        (
            "[::]:80",
            false,
            vec!["192.0.2.1:80", "[2001:db8::1]:80"],
            "10.0.0.2:80",
        ),
        ("[::]:80", true, vec!["[2001:db8::1]:80"], "[fd00::7]:80"),
        (
            "[fd00::9]:80",
            false,
            vec!["[2001:db8::1]:80"],
            "[fd00::9]:80",
        ),
    ] {
        let mut host = host();
        serve(&mut host);
        let actions = publish(&mut host, "a", 1, listener, only_v6);
        let expected: Vec<SocketAddr> = outside_at.iter().map(|text| address(text)).collect();
        assert_eq!(outside(&actions), expected, "{listener}");
        assert!(
            errnos(&actions).is_empty(),
            "{listener} is answered when it is open"
        );
        let actions = opened(&mut host, &actions, 0);
        assert_eq!(errnos(&actions), [(1, 0)], "{listener}");
        assert_eq!(
            targets(&actions),
            vec![address(target); expected.len()],
            "{listener}"
        );
    }
}

#[test]
fn a_port_that_is_taken_is_the_programs_error() {
    let mut host = host();
    serve(&mut host);
    let actions = publish(&mut host, "a", 1, "0.0.0.0:80", false);
    let actions = opened(&mut host, &actions, libc::EADDRINUSE as u16);
    assert_eq!(errnos(&actions), [(1, libc::EADDRINUSE)]);
    // Nothing is left of it, and the next one is tried anew.
    assert_eq!(shut(&actions), 1);
    let actions = publish(&mut host, "a", 2, "0.0.0.0:80", false);
    assert_eq!(outside(&actions).len(), 1);
    assert_eq!(errnos(&opened(&mut host, &actions, 0)), [(2, 0)]);
}

#[test]
fn two_nodes_share_a_port_until_the_last_one_goes() {
    let mut host = host();
    serve(&mut host);
    let first = publish(&mut host, "a", 1, "0.0.0.0:80", false);
    opened(&mut host, &first, 0);
    let second = publish(&mut host, "b", 2, "0.0.0.0:80", false);
    assert!(outside(&second).is_empty(), "it is open already");
    assert_eq!(errnos(&second), [(2, 0)]);
    assert_eq!(targets(&second).len(), 1);
    let mut actions = Vec::new();
    host.node_down(&"a".into(), &mut actions);
    assert_eq!((gone(&actions), shut(&actions)), (1, 0));
    actions.clear();
    // A number of somebody else's.
    host.withdraw(&"a".into(), PublicationId(2), &mut actions);
    assert!(actions.is_empty());
    host.withdraw(&"b".into(), PublicationId(2), &mut actions);
    assert_eq!((gone(&actions), shut(&actions)), (1, 1));
}

#[test]
fn a_drained_node_gets_nothing_until_it_is_resumed() {
    let mut host = host();
    serve(&mut host);
    let actions = publish(&mut host, "a", 1, "0.0.0.0:80", false);
    opened(&mut host, &actions, 0);
    let mut actions = Vec::new();
    assert_eq!(host.drain("c", true, &mut actions), Err(libc::ENOENT));
    assert_eq!(host.drain("a", true, &mut actions), Ok(()));
    assert_eq!((gone(&actions), shut(&actions)), (1, 0));
    // What it publishes now is accepted and not used.
    let more = publish(&mut host, "a", 2, "0.0.0.0:443", false);
    let more = opened(&mut host, &more, 0);
    assert_eq!((errnos(&more), targets(&more).len()), (vec![(2, 0)], 0));
    actions.clear();
    assert_eq!(host.drain("a", false, &mut actions), Ok(()));
    assert_eq!(targets(&actions).len(), 2);
}

#[test]
fn a_process_that_comes_again_is_told_everything() {
    let mut host = host();
    // Without a process a node is told that it is published: it will be.
    assert_eq!(
        errnos(&publish(&mut host, "a", 1, "[::]:80", false)),
        [(1, 0)]
    );
    for _ in 0..2 {
        let actions = serve(&mut host);
        assert_eq!(outside(&actions).len(), 2);
        assert_eq!(actions.last(), Some(&Action::Tell(PROCESS, Tell::Complete)));
        let mut twice = Vec::new();
        assert!(!host.serve(PROCESS + 1, &mut twice), "there is one already");
        let actions = opened(&mut host, &actions, 0);
        assert_eq!((targets(&actions).len(), errnos(&actions).len()), (2, 0));
        host.forget(PROCESS);
    }
    // Another one has the port now.
    let actions = serve(&mut host);
    let actions = opened(&mut host, &actions[..1], libc::EADDRINUSE as u16);
    assert_eq!(errnos(&actions), [(1, libc::EADDRINUSE)]);
}

// The node's side.

fn listening(port: u16, cookie: u64) -> Listening {
    Listening {
        address: SocketAddr::new(IpAddr::from([0; 4]), port),
        only_v6: false,
        cookie,
    }
}

fn sources() -> Ranges {
    Ranges::new([Range {
        first: "::ffff:10.0.0.1".parse().unwrap(),
        prefix: 128,
    }])
}

struct Node {
    publications: Publications,
    now: Instant,
    actions: Vec<Action>,
}

impl Node {
    fn new() -> Node {
        Node {
            publications: Publications::new(25),
            now: Instant::now(),
            actions: Vec::new(),
        }
    }

    fn publish(&mut self, client: u32, listening: Listening, is_up: bool) -> Vec<Action> {
        self.publish_for(client, None, listening, is_up)
    }

    fn publish_for(
        &mut self,
        client: u32,
        payer: Option<u32>,
        listening: Listening,
        is_up: bool,
    ) -> Vec<Action> {
        let user = payer.or(Some(0));
        self.publish_by(client, (payer, user), listening, is_up)
    }

    fn publish_by(
        &mut self,
        client: u32,
        (payer, user): (Option<u32>, Option<u32>),
        listening: Listening,
        is_up: bool,
    ) -> Vec<Action> {
        let fresh = (PublicationId(u64::from(client)), Key([client as u8; 32]));
        let asker = Asker {
            client,
            is_owner: false,
            payer,
            user,
        };
        self.publications.publish(
            asker,
            &"gw".into(),
            listening,
            sources(),
            is_up,
            fresh,
            self.now,
            &mut self.actions,
        );
        std::mem::take(&mut self.actions)
    }

    fn heard(&mut self, id: u64, errno: i32, is_expected: bool) -> Vec<Action> {
        self.publications.heard_published(
            &"gw".into(),
            PublicationId(id),
            is_expected.then_some(errno as u16),
            sources(),
            self.now,
            &mut self.actions,
        );
        std::mem::take(&mut self.actions)
    }

    fn pass(&mut self, time: Duration, listening: &[u64]) -> Vec<Action> {
        self.now += time;
        let listening: HashSet<u64> = listening.iter().copied().collect();
        let sources = |_: &PeerName| sources();
        self.publications
            .pass_time(self.now, || Some(listening), sources, &mut self.actions);
        std::mem::take(&mut self.actions)
    }
}

fn told(actions: &[Action]) -> Vec<(u32, i32)> {
    let told = actions.iter().filter_map(|action| match action {
        Action::Tell(client, Tell::Published { errno, .. }) => Some((*client, i32::from(*errno))),
        _ => None,
    });
    told.collect()
}

fn said(actions: &[Action]) -> Vec<u64> {
    let said = actions.iter().filter_map(|action| match action {
        Action::Say(_, Word::Publish { id, .. }) => Some(id.0),
        _ => None,
    });
    said.collect()
}

fn withdrawn(actions: &[Action]) -> Vec<u64> {
    let said = actions.iter().filter_map(|action| match action {
        Action::Say(_, Word::Withdraw { id }) => Some(id.0),
        _ => None,
    });
    said.collect()
}

#[test]
fn the_gateways_answer_is_the_programs() {
    let mut node = Node::new();
    let actions = node.publish(1, listening(80, 10), true);
    assert_eq!((said(&actions), told(&actions)), (vec![1], vec![]));
    assert_eq!(told(&node.heard(1, 0, true)), [(1, 0)]);
    // Another socket at the same place is the same publication.
    let actions = node.publish(2, listening(80, 11), true);
    assert_eq!((said(&actions), told(&actions)), (vec![], vec![(2, 0)]));
    let actions = node.publish(3, listening(81, 12), true);
    assert_eq!(said(&actions), [3]);
    assert_eq!(
        told(&node.heard(3, libc::EACCES, true)),
        [(3, libc::EACCES)]
    );
    assert!(!node.publications.has(&"gw".into(), PublicationId(3)));
}

#[test]
fn without_an_answer_a_program_listens_and_is_published_later() {
    let mut node = Node::new();
    let actions = node.publish(1, listening(80, 10), false);
    assert_eq!((said(&actions), told(&actions)), (vec![], vec![(1, 0)]));
    node.publications
        .gateway_up(&"gw".into(), &mut node.actions);
    assert_eq!(said(&std::mem::take(&mut node.actions)), [1]);
    // A gateway that is there and says nothing.
    node.publish(2, listening(81, 11), true);
    let deadline = node.publications.next_deadline().unwrap();
    assert!(deadline <= node.now + Duration::from_secs(2));
    assert_eq!(
        told(&node.pass(Duration::from_secs(2), &[10, 11])),
        [(2, 0)]
    );
    // A late refusal does not end it.
    node.heard(2, libc::EADDRINUSE, true);
    let actions = node.pass(Duration::from_secs(5), &[10, 11]);
    assert_eq!(said(&actions), [2]);
}

#[test]
fn a_publication_ends_with_its_last_socket() {
    let mut node = Node::new();
    node.publish(1, listening(80, 10), true);
    node.publish(2, listening(80, 11), true);
    node.heard(1, 0, true);
    assert!(node.pass(Duration::from_secs(1), &[11, 99]).is_empty());
    assert_eq!(withdrawn(&node.pass(Duration::from_secs(1), &[99])), [1]);
    assert_eq!(
        node.publications.next_deadline(),
        None,
        "nothing to look after"
    );
}

#[test]
fn a_gateway_that_connects_from_elsewhere_is_not_used() {
    let mut node = Node::new();
    node.publish(1, listening(80, 10), true);
    let actions = node.heard(1, 0, false);
    assert_eq!(withdrawn(&actions), [1]);
    assert_eq!(told(&actions), [(1, libc::EADDRNOTAVAIL)]);
}

#[test]
fn a_user_has_a_share_of_publications_also_after_a_restart() {
    let user = Some(1_000);
    let mut node = Node::new();
    for n in 0..256 {
        let actions = node.publish_for(1, user, listening(1_000 + n, u64::from(1_000 + n)), false);
        assert_eq!(told(&actions), [(1, 0)], "{n}");
    }
    let one_more = |node: &mut Node, payer, port: u16| {
        let told = told(&node.publish_for(2, payer, listening(port, port.into()), false));
        let [(2, errno)] = told[..] else {
            panic!("{told:?}");
        };
        errno
    };
    assert_eq!(one_more(&mut node, user, 80), libc::ENOBUFS);
    let name = format!("sluice-share-{}.published", std::process::id());
    let file = std::env::temp_dir().join(name);
    kept::write(&file, &node.publications.all).unwrap();
    let mut later = Node::new();
    later.publications.resume(kept::read(&file), later.now);
    std::fs::remove_file(&file).unwrap();
    assert_eq!(one_more(&mut later, user, 80), libc::ENOBUFS);
    assert_eq!(one_more(&mut later, Some(1_001), 80), 0);
    for node in [&mut node, &mut later] {
        assert_eq!(one_more(node, None, 81), 0);
        // One of the user's is closed.
        let left: Vec<u64> = (1_001..1_256).collect();
        node.pass(Duration::from_secs(1), &left);
        assert_eq!(one_more(node, user, 82), 0);
    }
}

/// The keys that programs are given.
fn keys(actions: &[Action]) -> Vec<(u32, u8)> {
    let told = actions.iter().filter_map(|action| match action {
        Action::Tell(client, Tell::Published { errno: 0, key, .. }) => Some((*client, key.0[0])),
        _ => None,
    });
    told.collect()
}

/// F9: who has had the port before still knows the key.
#[test]
fn a_key_is_one_users_and_goes_to_no_other_one() {
    let (ann, bob) = (Some(1_000), Some(1_001));
    let mut node = Node::new();
    node.publish_for(1, ann, listening(80, 10), true);
    assert_eq!(keys(&node.heard(1, 0, true)), [(1, 1)]);
    // Another socket of hers listens there too (SO_REUSEPORT).
    assert_eq!(
        keys(&node.publish_for(2, ann, listening(80, 11), true)),
        [(2, 1)]
    );
    // Who has her socket takes her clients anyway.
    assert_eq!(
        keys(&node.publish_for(3, bob, listening(80, 11), true)),
        [(3, 1)]
    );
    // Hers are closed, and he comes before anybody has looked.
    let actions = node.publish_for(4, bob, listening(80, 20), true);
    assert_eq!((withdrawn(&actions), said(&actions)), (vec![1], vec![4]));
    assert_eq!(keys(&actions), []);
    assert_eq!(keys(&node.heard(4, 0, true)), [(4, 4)]);
    // The same after a restart, which the first one's file does not tell of the earlier version.
    let name = format!("sluice-keys-{}.published", std::process::id());
    let file = std::env::temp_dir().join(name);
    kept::write(&file, &node.publications.all).unwrap();
    let mut later = Node::new();
    later.publications.resume(kept::read(&file), later.now);
    std::fs::remove_file(&file).unwrap();
    assert_eq!(
        keys(&later.publish_for(5, bob, listening(80, 21), false)),
        [(5, 4)]
    );
    assert_eq!(
        keys(&later.publish_for(6, ann, listening(80, 30), false)),
        [(6, 6)]
    );
}

#[test]
fn a_user_whom_the_kernel_does_not_name_shares_a_key_with_nobody() {
    let mut node = Node::new();
    let root = (None, Some(0));
    let nobody = (None, None);
    node.publish_by(1, root, listening(80, 10), false);
    for (client, asker, key) in [(2, nobody, 2), (3, nobody, 3), (4, root, 4)] {
        let socket = u64::from(10 * client);
        let actions = node.publish_by(client, asker, listening(80, socket), false);
        assert_eq!(keys(&actions), [(client, key)]);
    }
    assert_eq!(node.publications.all.len(), 1);
}

/// Programs that waited for the gateway hear that their socket is none.
#[test]
fn who_waits_for_what_goes_to_another_user_is_told() {
    let mut node = Node::new();
    node.publish_for(1, Some(1_000), listening(80, 10), true);
    let actions = node.publish_for(2, Some(1_001), listening(80, 20), true);
    assert_eq!(told(&actions), [(1, libc::EINVAL)]);
    assert_eq!(told(&node.heard(1, 0, true)), []);
    assert_eq!(told(&node.heard(2, 0, true)), [(2, 0)]);
}

#[test]
fn the_file_is_written_when_something_has_changed_and_not_all_the_time() {
    let mut node = Node::new();
    assert!(!node.publications.must_write(node.now));
    node.publish(1, listening(80, 10), false);
    assert!(node.publications.must_write(node.now));
    node.publish(1, listening(80, 10), false);
    assert!(!node.publications.must_write(node.now), "nothing is new");
    node.now += Duration::from_secs(1);
    for socket in 11..20 {
        node.publish(1, listening(80, socket), false);
    }
    assert!(node.publications.must_write(node.now));
    node.publish(1, listening(80, 20), false);
    assert!(
        !node.publications.must_write(node.now),
        "it was just written"
    );
    let all: Vec<u64> = (10..=20).collect();
    node.pass(Duration::ZERO, &all);
    let due = node.publications.next_deadline().unwrap();
    assert!(node.publications.must_write(due));
}

#[test]
fn programs_that_come_and_go_make_nobody_look_all_the_time() {
    let mut node = Node::new();
    node.publish(1, listening(80, 10), false);
    let mut looked = 0;
    for _ in 0..1_000 {
        node.now += Duration::from_millis(1);
        node.publications.look_soon(node.now);
        let (look, now) = (&mut looked, node.now);
        node.publications.pass_time(
            now,
            || {
                *look += 1;
                Some(HashSet::from([10]))
            },
            |_| sources(),
            &mut node.actions,
        );
    }
    assert_eq!(looked, 10);
}

#[test]
fn what_was_published_is_so_after_a_restart() {
    let dir = std::env::temp_dir().join(format!("sluice-kept-{}", std::process::id()));
    std::fs::create_dir_all(&dir).unwrap();
    let file = dir.join("sock.published");
    let mut node = Node::new();
    node.publish(1, listening(80, 10), true);
    kept::write(&file, &node.publications.all).unwrap();
    let mut later = Node::new();
    later.publications.resume(kept::read(&file), later.now);
    assert!(later.pass(Duration::ZERO, &[10]).is_empty());
    later
        .publications
        .gateway_up(&"gw".into(), &mut later.actions);
    let expected = Word::Publish {
        id: PublicationId(1),
        listener: address("0.0.0.0:80"),
        only_v6: false,
        key: KEY,
    };
    assert_eq!(later.actions, [Action::Say("gw".into(), expected)]);
    // Others must not have been able to write it.
    use std::os::unix::fs::PermissionsExt;
    std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o640)).unwrap();
    assert!(kept::read(&file).is_empty());
    kept::write(&file, &[]).unwrap();
    assert!(!file.exists());
    std::fs::remove_dir_all(&dir).unwrap();
}

// Connecting out.

fn exits(actions: &[Action]) -> Vec<u32> {
    let all = actions.iter().filter_map(|action| match action {
        Action::Tell(PROCESS, Tell::Exit { exit, .. }) => Some(*exit),
        _ => None,
    });
    all.collect()
}

#[test]
fn nodes_that_may_connect_out_are_told_where() {
    let mut host = host();
    serve(&mut host);
    let own: IpAddr = "10.0.0.1".parse().unwrap();
    let from = Ranges::new([range("10.0.0.2".parse().unwrap())]);
    let mut actions = Vec::new();
    host.node_up(&"b".into(), own, from, KEY, &mut actions);
    host.node_up(&"stranger".into(), own, from, KEY, &mut actions);
    assert!(actions.is_empty(), "they may not: {actions:?}");
    host.node_up(&"a".into(), own, from, KEY, &mut actions);
    let [exit] = exits(&actions)[..] else {
        panic!("{actions:?}");
    };
    let is_so =
        |it: &Action| matches!(it, Action::Tell(_, Tell::Exit { sources, .. }) if *sources == from);
    assert!(actions.iter().all(is_so), "{actions:?}");
    actions.clear();
    host.exit_opened(exit + 1, 4000, &mut actions);
    host.exit_opened(exit, 0, &mut actions);
    assert!(actions.is_empty(), "{actions:?}");
    host.exit_opened(exit, 4000, &mut actions);
    let word = Word::Exit {
        exit,
        address: address("10.0.0.1:4000"),
        key: KEY,
    };
    assert_eq!(actions, [Action::Say("a".into(), word)]);
    // Another process opens it again; without the node's daemon nobody does.
    host.forget(PROCESS);
    assert_eq!(exits(&serve(&mut host)), [exit]);
    actions.clear();
    host.node_down(&"a".into(), &mut actions);
    assert_eq!(actions, [Action::Tell(PROCESS, Tell::ExitGone { exit })]);
    host.forget(PROCESS);
    assert!(exits(&serve(&mut host)).is_empty());
}

/// Another user may listen at the same address by another device, and clients would come to him with this key.
#[test]
fn a_socket_that_is_bound_to_a_device_is_not_published() {
    let listener = std::net::TcpListener::bind("0.0.0.0:0").unwrap();
    let socket = sluice_sys::unix::Fd::from(std::os::fd::OwnedFd::from(listener));
    assert!(super::look_at(&socket).is_ok());
    let (level, option) = (libc::SOL_SOCKET, libc::SO_BINDTODEVICE);
    sluice_sys::unix::set_option(socket.raw(), level, option, b"lo\0").unwrap();
    let looked = super::look_at(&socket).map(|it| it.address);
    assert_eq!(looked.unwrap_err().0, libc::EADDRNOTAVAIL);
}
