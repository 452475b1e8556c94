//! Two connection managers, as two processes have them, over a directory of their own.

use std::net::{IpAddr, Ipv4Addr};
use std::os::fd::RawFd;

use std::time::Duration;

use sluice_sys::unix;

use super::*;
use crate::channel::Event;
use crate::host::Host;

const TCP: u16 = 0x106;
const UDP: u16 = 0x111;
const RC: u8 = 2;
const UD: u8 = 4;

struct Side {
    agent: Agent,
    channel: Arc<Channel>,
}

fn limits() -> Limits {
    Limits {
        time_wait: Duration::from_millis(1),
        absent: Duration::from_millis(20),
        // Whose thread gets no processor between connecting and asking is no stranger.
        stranger: Duration::from_secs(3600),
        ..Limits::default()
    }
}

fn side_with(directory: &tempfile::TempDir, netns: u64, limits: Limits) -> Side {
    Side {
        agent: Agent::start(
            Rendezvous::for_test(directory.path(), netns),
            limits,
            |around| vec![Arc::new(Host::new(around, 0, None))],
        )
        .unwrap(),
        channel: Arc::new(Channel::new().unwrap()),
    }
}

fn sides() -> (tempfile::TempDir, Side, Side) {
    let directory = tempfile::tempdir().unwrap();
    let server = side_with(&directory, 1, limits());
    let client = side_with(&directory, 1, limits());
    (directory, server, client)
}

fn readable(fd: RawFd) -> bool {
    let mut item = libc::pollfd {
        fd,
        events: libc::POLLIN,
        revents: 0,
    };
    // SAFETY: one pollfd that lives through the call.
    unsafe { libc::poll(&mut item, 1, 60_000) == 1 }
}

impl Side {
    /// The next event; it must come within a time that only a hang exceeds.
    fn next(&self) -> Event {
        assert!(readable(self.channel.fd()), "no event came");
        self.channel.try_next().expect("the descriptor said so")
    }

    fn expect(&self, kind: EventKind) -> Event {
        let event = self.next();
        assert_eq!(event.kind, kind, "{event:?}");
        event
    }

    fn listen(&self, port_space: u16, backlog: i32) -> (Key, Address) {
        let qp_type = if port_space == UDP { UD } else { RC };
        let key = self.agent.create(port_space, qp_type, &self.channel);
        self.agent.bind(key, loopback(0)).unwrap();
        self.agent.listen(key, backlog).unwrap();
        let address = self.agent.info(key).unwrap().source.unwrap();
        (key, address)
    }

    fn resolved(&self, port_space: u16, destination: Address) -> Key {
        let qp_type = if port_space == UDP { UD } else { RC };
        let key = self.agent.create(port_space, qp_type, &self.channel);
        self.agent.resolve_addr(key, None, destination).unwrap();
        self.expect(EventKind::AddrResolved);
        self.agent.resolve_route(key).unwrap();
        self.expect(EventKind::RouteResolved);
        key
    }

    fn requested(&self, destination: Address) -> Key {
        let key = self.resolved(TCP, destination);
        self.agent
            .connect(key, params(7), private(b"hello"))
            .unwrap();
        key
    }
}

fn loopback(port: u16) -> Address {
    Address::new(IpAddr::from(Ipv4Addr::LOCALHOST), port)
}

fn params(qp_num: u32) -> ConnParams {
    ConnParams {
        qp_num,
        psn: 5,
        responder_resources: 3,
        initiator_depth: 2,
        ..ConnParams::default()
    }
}

fn private(bytes: &[u8]) -> PrivateData {
    PrivateData::new(bytes, 196).unwrap()
}

fn connected(server: &Side, client: &Side) -> (Key, Key) {
    let (_, address) = server.listen(TCP, 8);
    let active = client.requested(address);
    let passive = server.expect(EventKind::ConnectRequest).key;
    server
        .agent
        .accept(passive, params(9), private(b"welcome"))
        .unwrap();
    client.expect(EventKind::ConnectResponse);
    client.agent.ready(active).unwrap();
    server.expect(EventKind::Established);
    (passive, active)
}

#[test]
fn connect_accept_disconnect() {
    let (_directory, server, client) = sides();
    let (listener, address) = server.listen(TCP, 8);
    let active = client.requested(address);
    let request = server.expect(EventKind::ConnectRequest);
    assert_eq!(request.listener, Some(listener));
    let body = Body::Connection {
        params: params(7),
        private: private(b"hello"),
    };
    assert_eq!(request.body, body);
    let passive = request.key;
    let (here, there) = (
        server.agent.info(passive).unwrap(),
        client.agent.info(active).unwrap(),
    );
    assert_eq!(here.source, there.destination);
    assert_eq!(here.destination, there.source);
    server
        .agent
        .accept(passive, params(9), private(b"welcome"))
        .unwrap();
    let response = client.expect(EventKind::ConnectResponse);
    let body = Body::Connection {
        params: params(9),
        private: private(b"welcome"),
    };
    assert_eq!((response.key, response.body), (active, body));
    client.agent.ready(active).unwrap();
    assert_eq!(server.expect(EventKind::Established).key, passive);
    client.agent.disconnect(active).unwrap();
    assert_eq!(client.expect(EventKind::Disconnected).status, 0);
    assert_eq!(server.expect(EventKind::Disconnected).key, passive);
    server.agent.disconnect(passive).unwrap();
    client.expect(EventKind::TimewaitExit);
    server.expect(EventKind::TimewaitExit);
}

#[test]
fn both_disconnect_at_once() {
    let (_directory, server, client) = sides();
    let (passive, active) = connected(&server, &client);
    client.agent.disconnect(active).unwrap();
    server.agent.disconnect(passive).unwrap();
    for side in [&client, &server] {
        side.expect(EventKind::Disconnected);
        side.expect(EventKind::TimewaitExit);
    }
}

#[test]
fn reject_brings_reason_and_private_data() {
    let (_directory, server, client) = sides();
    let (_, address) = server.listen(TCP, 8);
    let active = client.requested(address);
    let passive = server.expect(EventKind::ConnectRequest).key;
    server.agent.reject(passive, private(b"full")).unwrap();
    let event = client.expect(EventKind::Rejected);
    assert_eq!((event.key, event.status), (active, 28));
    let body = Body::Reject {
        private: private(b"full"),
    };
    assert_eq!(event.body, body);
    assert_eq!(
        server.agent.accept(passive, params(1), private(b"")),
        Err(Errno::INVAL)
    );
}

#[test]
fn nobody_listens() {
    let (_directory, _server, client) = sides();
    client.requested(loopback(1));
    assert_eq!(client.expect(EventKind::Rejected).status, 8);
    let lookup = client.resolved(UDP, loopback(1));
    client.agent.lookup(lookup, private(b"")).unwrap();
    assert_eq!(client.expect(EventKind::Unreachable).status, 1);
}

#[test]
fn a_listener_that_comes_a_little_late_is_found() {
    let directory = tempfile::tempdir().unwrap();
    let server = side_with(&directory, 1, limits());
    let patient = Limits {
        absent: Duration::from_secs(20),
        ..limits()
    };
    let client = side_with(&directory, 1, patient);
    let (first, address) = server.listen(TCP, 8);
    server.agent.destroy(first);
    let active = client.requested(address);
    let second = server.agent.create(TCP, RC, &server.channel);
    server.agent.bind(second, address).unwrap();
    server.agent.listen(second, 8).unwrap();
    let request = server.expect(EventKind::ConnectRequest);
    assert_eq!(request.listener, Some(second));
    server.agent.reject(request.key, private(b"")).unwrap();
    assert_eq!(client.expect(EventKind::Rejected).key, active);
}

#[test]
fn a_destination_of_no_namespace_is_unreachable() {
    let (_directory, _server, client) = sides();
    let nowhere = Address::new(Ipv4Addr::new(192, 0, 2, 1).into(), 7471);
    let key = client.agent.create(TCP, RC, &client.channel);
    client.agent.resolve_addr(key, None, nowhere).unwrap();
    let event = client.next();
    if event.kind == EventKind::AddrError {
        // A machine without a default route says so earlier.
        assert!(event.status < 0);
        return;
    }
    client.agent.resolve_route(key).unwrap();
    client.expect(EventKind::RouteResolved);
    client.agent.connect(key, params(7), private(b"")).unwrap();
    assert_eq!(
        client.expect(EventKind::Unreachable).status,
        -libc::ETIMEDOUT
    );
}

#[test]
fn a_lookup_finds_the_datagram_service() {
    let (_directory, server, client) = sides();
    let (_, address) = server.listen(UDP, 8);
    for accept in [true, false] {
        let active = client.resolved(UDP, address);
        client.agent.lookup(active, private(b"who")).unwrap();
        let request = server.expect(EventKind::ConnectRequest);
        let body = Body::Lookup {
            private: private(b"who"),
        };
        assert_eq!(request.body, body);
        if !accept {
            server.agent.reject(request.key, private(b"no")).unwrap();
            let event = client.expect(EventKind::Unreachable);
            assert_eq!(event.status, 2);
            continue;
        }
        let reply = SidrReply {
            status: 0,
            qp_num: 77,
            qkey: 0x0123_4567,
            gid: [4; 16],
            private: private(b"me"),
        };
        server.agent.accept_lookup(request.key, reply).unwrap();
        let event = client.expect(EventKind::Established);
        let body = Body::Datagram {
            qp_num: 77,
            qkey: 0x0123_4567,
            gid: [4; 16],
            private: private(b"me"),
        };
        assert_eq!(event.body, body);
    }
}

#[test]
fn a_full_backlog_turns_requests_down() {
    let (_directory, server, client) = sides();
    let (_, address) = server.listen(TCP, 2);
    for _ in 0..3 {
        client.requested(address);
    }
    assert_eq!(client.expect(EventKind::Rejected).status, 28);
    server.expect(EventKind::ConnectRequest);
    server.expect(EventKind::ConnectRequest);
    client.requested(address);
    server.expect(EventKind::ConnectRequest);
}

#[test]
fn a_destroyed_listener_turns_down_what_nobody_took() {
    let (_directory, server, client) = sides();
    let (listener, address) = server.listen(TCP, 8);
    client.requested(address);
    assert!(readable(server.channel.fd()));
    server.agent.destroy(listener);
    assert_eq!(client.expect(EventKind::Rejected).status, 28);
    assert_eq!(server.channel.try_next(), None);
    client.requested(address);
    assert_eq!(client.expect(EventKind::Rejected).status, 8);
}

#[test]
fn the_requester_goes_away_before_it_is_accepted() {
    let (_directory, server, client) = sides();
    let (_, address) = server.listen(TCP, 8);
    let active = client.requested(address);
    let passive = server.expect(EventKind::ConnectRequest).key;
    client.agent.destroy(active);
    let event = server.expect(EventKind::Rejected);
    assert_eq!((event.key, event.status), (passive, 4));
}

/// As a server that says one thing and closes.
#[test]
fn a_peer_that_disconnects_before_this_side_is_ready_was_connected() {
    let directory = tempfile::tempdir().unwrap();
    let server = side_with(&directory, 1, limits());
    let time_wait = Duration::from_secs(600);
    let patient = Limits {
        time_wait,
        ..limits()
    };
    let client = side_with(&directory, 1, patient);
    let (_, address) = server.listen(TCP, 8);
    let active = client.requested(address);
    let passive = server.expect(EventKind::ConnectRequest).key;
    let accepted = server.agent.accept(passive, params(9), private(b""));
    assert_eq!(accepted, Ok(()));
    server.agent.disconnect(passive).unwrap();
    server.expect(EventKind::Disconnected);
    client.expect(EventKind::ConnectResponse);
    assert_eq!(client.agent.ready(active), Ok(()));
    assert_eq!(client.expect(EventKind::Disconnected).key, active);
}

#[test]
fn death_of_an_established_peer_disconnects() {
    let (_directory, server, client) = sides();
    let (passive, _) = connected(&server, &client);
    // All its descriptors are closed at once, and nobody says goodbye.
    drop(client.agent);
    assert_eq!(server.expect(EventKind::Disconnected).key, passive);
    server.expect(EventKind::TimewaitExit);
}

#[test]
fn death_of_a_peer_that_was_asked() {
    let (_directory, server, client) = sides();
    let (_, address) = server.listen(TCP, 8);
    client.requested(address);
    server.expect(EventKind::ConnectRequest);
    drop(server.agent);
    assert_eq!(client.expect(EventKind::Rejected).status, 28);
}

#[test]
fn a_server_that_never_answers_times_out() {
    let directory = tempfile::tempdir().unwrap();
    let server = side_with(&directory, 1, limits());
    let impatient = Limits {
        response: Duration::from_millis(20),
        ..limits()
    };
    let client = side_with(&directory, 1, impatient);
    let (_, address) = server.listen(TCP, 8);
    client.requested(address);
    assert_eq!(
        client.expect(EventKind::Unreachable).status,
        -libc::ETIMEDOUT
    );
    server.expect(EventKind::ConnectRequest);
    assert_eq!(server.expect(EventKind::Rejected).status, 4);
}

#[test]
fn data_before_ready_to_use_establishes() {
    let (_directory, server, client) = sides();
    let (_, address) = server.listen(TCP, 8);
    let active = client.requested(address);
    let passive = server.expect(EventKind::ConnectRequest).key;
    assert_eq!(
        server.agent.communication_established(passive),
        Err(Errno::INVAL)
    );
    server
        .agent
        .accept(passive, params(9), private(b""))
        .unwrap();
    server.agent.communication_established(passive).unwrap();
    server.expect(EventKind::Established);
    client.expect(EventKind::ConnectResponse);
    client.agent.ready(active).unwrap();
    assert_eq!(
        server.agent.communication_established(passive),
        Err(Errno(libc::EISCONN))
    );
}

#[test]
fn loopback_of_another_namespace_is_another_host() {
    let directory = tempfile::tempdir().unwrap();
    let server = side_with(&directory, 1, limits());
    let client = side_with(&directory, 2, limits());
    let (_, address) = server.listen(TCP, 8);
    client.requested(address);
    assert_eq!(client.expect(EventKind::Rejected).status, 8);
}

#[test]
fn calls_in_the_wrong_state_are_invalid() {
    let (_directory, _server, client) = sides();
    let agent = &client.agent;
    let key = agent.create(TCP, RC, &client.channel);
    assert_eq!(agent.resolve_route(key), Err(Errno::INVAL));
    assert_eq!(
        agent.connect(key, params(1), private(b"")),
        Err(Errno::INVAL)
    );
    assert_eq!(
        agent.accept(key, params(1), private(b"")),
        Err(Errno::INVAL)
    );
    assert_eq!(agent.reject(key, private(b"")), Err(Errno::INVAL));
    assert_eq!(agent.disconnect(key), Err(Errno::INVAL));
    agent.bind(key, loopback(0)).unwrap();
    assert_eq!(agent.bind(key, loopback(0)), Err(Errno::INVAL));
    let changed = agent.set_options(key, |options| options.reuse = true);
    assert_eq!(changed, Err(Errno::INVAL));
    agent.destroy(key);
    assert_eq!(agent.resolve_route(key), Err(Errno::INVAL));
    let foreign = Address::new(Ipv4Addr::new(192, 0, 2, 1).into(), 0);
    let key = agent.create(TCP, RC, &client.channel);
    assert_eq!(agent.bind(key, foreign), Err(Errno(libc::EADDRNOTAVAIL)));
}

#[test]
fn migration_takes_waiting_events_along() {
    let (_directory, server, client) = sides();
    let (listener, address) = server.listen(TCP, 8);
    client.requested(address);
    assert!(readable(server.channel.fd()));
    let other = Arc::new(Channel::new().unwrap());
    server.agent.migrate(listener, &other).unwrap();
    assert_eq!(server.channel.try_next(), None);
    let request = other.try_next().expect("the request moved");
    server
        .agent
        .accept(request.key, params(1), private(b""))
        .unwrap();
    let active = client.expect(EventKind::ConnectResponse).key;
    client.agent.ready(active).unwrap();
    assert!(readable(other.fd()));
    assert_eq!(other.try_next().unwrap().kind, EventKind::Established);
}

/// A process of the same user that does not keep to the protocol harms its own
/// connection only.
#[test]
fn garbage_and_messages_out_of_turn() {
    let (_directory, server, client) = sides();
    let (_, address) = server.listen(TCP, 8);
    let names = &server.agent.shared.around.names;
    let candidate = &names.listeners(TCP, &address).unwrap()[0];
    for bytes in [
        b"garbage".to_vec(),
        Message::ReadyToUse.emit(),
        vec![0; 4096],
    ] {
        let link = names.connect(candidate).unwrap();
        unix::send_with_fds(link.raw(), &bytes, &[]).unwrap();
        assert!(readable(link.raw()));
        let answer = unix::receive_with_fds(link.raw(), &mut [0; 16]);
        assert!(answer.is_ok_and(|received| received.len == 0), "hung up on");
    }
    let (passive, active) = connected(&server, &client);
    let table = client.agent.table();
    table.endpoints[&active].send(&Message::Reject {
        reason: 1,
        private: PrivateData::default(),
    });
    drop(table);
    assert_eq!(server.expect(EventKind::Disconnected).key, passive);
}
