//! Connection managers of several hosts over a network made here. A host is an address of
//! 127.0.0.0/8 with a directory of its own, and may have several processes.

use std::net::{IpAddr, Ipv4Addr};
use std::os::fd::RawFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use sluice_verbs::transport::{Gsi, MAD_BYTES, MadPath, MadReceiver};
use sluice_verbs::types::Gid;

use super::*;
use crate::channel::Event;
use crate::fabric::connector::{self, Lookups, Wire};
use crate::fabric::port::Config;
use crate::host::{self, Host};

const TCP: u16 = 0x106;
const UDP: u16 = 0x111;
const RC: u8 = 2;
const UD: u8 = 4;
const MTU: u8 = 3;

/// `mad.attribute_id` of a datagram.
fn attribute(mad: &[u8; MAD_BYTES]) -> u16 {
    u16::from_be_bytes([mad[16], mad[17]])
}

const REQ: u16 = 0x10;
const REJ: u16 = 0x12;
const REP: u16 = 0x13;
const RTU: u16 = 0x14;
const DREQ: u16 = 0x15;

type Loses = Box<dyn FnMut(&[u8; MAD_BYTES]) -> bool + Send>;

struct Plug {
    host: Gid,
    tag: u16,
    receiver: Option<Arc<dyn MadReceiver>>,
}

/// The wire. Datagrams go to the first process of a host that takes any.
struct Net {
    plugs: Mutex<Vec<Plug>>,
    loses: Mutex<Loses>,
    sent: Mutex<Vec<u16>>,
    /// There is no way to anybody.
    down: AtomicBool,
}

struct Port {
    net: &'static Net,
    host: Gid,
    tag: u16,
}

impl Net {
    fn new() -> &'static Net {
        Box::leak(Box::new(Net {
            plugs: Mutex::default(),
            loses: Mutex::new(Box::new(|_| false)),
            sent: Mutex::default(),
            down: AtomicBool::new(false),
        }))
    }

    fn losing(&self, loses: impl FnMut(&[u8; MAD_BYTES]) -> bool + Send + 'static) {
        *self.loses.lock().unwrap() = Box::new(loses);
    }

    fn count(&self, wanted: u16) -> usize {
        let sent = self.sent.lock().unwrap();
        sent.iter().filter(|sent| **sent == wanted).count()
    }

    /// A process of the host `host`.
    fn process(&'static self, host: u8, directory: &tempfile::TempDir, limits: Limits) -> Side {
        self.process_at(host_address(host), directory, limits, MTU)
    }

    fn process_at(
        &'static self,
        address: Address,
        directory: &tempfile::TempDir,
        limits: Limits,
        mtu: u8,
    ) -> Side {
        let mut plugs = self.plugs.lock().unwrap();
        let tag = 0x1100 + plugs.len() as u16;
        let host = Gid(address.gid());
        plugs.push(Plug {
            host,
            tag,
            receiver: None,
        });
        let gsi = Box::leak(Box::new(Port {
            net: self,
            host,
            tag,
        }));
        let config = Config {
            gsi,
            ca_guid: 0x0200_0000_0000_0000 | u64::from(tag),
            mtu,
            host_device: false,
        };
        Side {
            agent: agent_over(directory, limits, config),
            gsi,
            channel: Arc::new(Channel::new().unwrap()),
            address,
        }
    }
}

impl Gsi for Port {
    fn send(&self, path: &MadPath, mad: &[u8; MAD_BYTES]) -> sluice_verbs::Result<()> {
        assert_eq!(path.source, self.host);
        self.net.sent.lock().unwrap().push(attribute(mad));
        if self.net.down.load(Ordering::Relaxed) {
            return Err(sluice_verbs::Error::NotFound);
        }
        if (self.net.loses.lock().unwrap())(mad) {
            return Ok(());
        }
        let plugs = self.net.plugs.lock().unwrap();
        let receiver = plugs
            .iter()
            .filter(|plug| plug.host == path.destination)
            .find_map(|plug| plug.receiver.clone());
        drop(plugs);
        if let Some(receiver) = receiver {
            receiver.received(path, mad, false);
        }
        Ok(())
    }

    fn set_receiver(&self, receiver: Arc<dyn MadReceiver>) {
        let mut plugs = self.net.plugs.lock().unwrap();
        let own = plugs.iter_mut().find(|plug| plug.tag == self.tag).unwrap();
        own.receiver = Some(receiver);
    }

    fn tag(&self) -> sluice_verbs::Result<u16> {
        Ok(self.tag)
    }

    fn pass_on(&self, tag: Option<u16>, path: &MadPath, mad: &[u8; MAD_BYTES]) {
        let plugs = self.net.plugs.lock().unwrap();
        let receivers: Vec<_> = plugs
            .iter()
            .filter(|plug| plug.host == self.host && plug.tag != self.tag)
            .filter(|plug| tag.is_none_or(|tag| plug.tag == tag))
            .filter_map(|plug| plug.receiver.clone())
            .collect();
        drop(plugs);
        for receiver in receivers {
            receiver.received(path, mad, true);
        }
    }
}

/// An agent with the ways that a process has whose device goes to other hosts.
fn agent_over(directory: &tempfile::TempDir, limits: Limits, config: Config) -> Agent {
    let names = Rendezvous::for_test(directory.path(), 1);
    let ways = |around: &Arc<Surroundings>| -> Vec<Arc<dyn Connector>> {
        let wire = Arc::new(Wire::new(around, 0, config));
        let host = Arc::new(Host::new(around, 1, None));
        match config.host_device {
            true => vec![host, wire],
            false => vec![wire, host],
        }
    };
    Agent::start(names, limits, ways).unwrap()
}

struct Side {
    agent: Agent,
    gsi: &'static Port,
    channel: Arc<Channel>,
    address: Address,
}

fn host_address(host: u8) -> Address {
    Address::new(IpAddr::from(Ipv4Addr::new(127, 0, 0, host)), 0)
}

fn limits() -> Limits {
    Limits {
        time_wait: Duration::from_millis(1),
        absent: Duration::ZERO,
        ..Limits::default()
    }
}

fn directory() -> tempfile::TempDir {
    tempfile::tempdir().unwrap()
}

/// A server on one host, a client on another.
fn hosts() -> (&'static Net, [tempfile::TempDir; 2], Side, Side) {
    let net = Net::new();
    let directories = [directory(), directory()];
    let server = net.process(2, &directories[0], limits());
    let client = net.process(3, &directories[1], limits());
    (net, directories, server, client)
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
    fn expect(&self, kind: EventKind) -> Event {
        assert!(
            readable(self.channel.fd()),
            "no event came, {kind:?} wanted"
        );
        let event = self.channel.try_next().expect("the descriptor said so");
        assert_eq!(event.kind, kind, "{event:?}");
        event
    }

    fn listen(&self, port_space: u16, port: u16, backlog: i32) -> (Key, Address) {
        let qp_type = if port_space == UDP { UD } else { RC };
        let key = self.agent.create(port_space, qp_type, &self.channel);
        self.agent.bind(key, self.address.with_port(port)).unwrap();
        self.agent.listen(key, backlog).unwrap();
        let address = self.agent.info(key).unwrap().source.unwrap();
        (key, address)
    }

    fn resolved(&self, port_space: u16, destination: Address) -> Key {
        let qp_type = if port_space == UDP { UD } else { RC };
        let key = self.agent.create(port_space, qp_type, &self.channel);
        let source = Some(self.address);
        self.agent.resolve_addr(key, source, destination).unwrap();
        self.expect(EventKind::AddrResolved);
        self.agent.resolve_route(key).unwrap();
        self.expect(EventKind::RouteResolved);
        key
    }

    fn requested(&self, destination: Address, qp_num: u32) -> Key {
        let key = self.resolved(TCP, destination);
        let params = params(qp_num);
        self.agent.connect(key, params, private(b"hello")).unwrap();
        key
    }
}

fn params(qp_num: u32) -> ConnParams {
    ConnParams {
        qp_num,
        psn: 5,
        responder_resources: 3,
        initiator_depth: 2,
        flow_control: 1,
        retry_count: 6,
        rnr_retry_count: 7,
        ..ConnParams::default()
    }
}

fn private(bytes: &[u8]) -> PrivateData {
    PrivateData::new(bytes, 196).unwrap()
}

/// As private data comes: with zeros up to the room of its message.
fn padded(bytes: &[u8], room: usize) -> PrivateData {
    let mut all = bytes.to_vec();
    all.resize(room, 0);
    private(&all)
}

fn connected(server: &Side, client: &Side, listening: Address, qps: [u32; 2]) -> (Key, Key) {
    let active = client.requested(listening, qps[0]);
    let passive = server.expect(EventKind::ConnectRequest).key;
    let params = params(qps[1]);
    server
        .agent
        .accept(passive, params, private(b"welcome"))
        .unwrap();
    client.expect(EventKind::ConnectResponse);
    client.agent.ready(active).unwrap();
    server.expect(EventKind::Established);
    (passive, active)
}

#[test]
fn a_connection_between_hosts_from_request_to_timewait() {
    let (_net, _directories, server, client) = hosts();
    let (listener, address) = server.listen(TCP, 0, 8);
    let active = client.requested(address, 7);
    let request = server.expect(EventKind::ConnectRequest);
    assert_eq!(request.listener, Some(listener));
    let passive = request.key;
    let from = |side: &Side, params| ConnParams {
        gid: side.address.gid(),
        ..params
    };
    let body = Body::Connection {
        params: from(&client, params(7)),
        private: padded(b"hello", message::REQ_PRIVATE_MAX),
    };
    assert_eq!(request.body, body);
    let here = server.agent.info(passive).unwrap();
    let there = client.agent.info(active).unwrap();
    assert_eq!(
        (here.source, here.destination),
        (there.destination, there.source)
    );
    assert_eq!([here.way, there.way], [connector::NAME; 2]);
    assert_eq!((here.mtu, there.mtu), (MTU, MTU));
    assert_eq!(here.remote.unwrap().psn, 5);

    server
        .agent
        .accept(passive, params(9), private(b"welcome"))
        .unwrap();
    let response = client.expect(EventKind::ConnectResponse);
    // REQ alone says how often to try.
    let replied = ConnParams {
        retry_count: 0,
        ..params(9)
    };
    let body = Body::Connection {
        params: from(&server, replied),
        private: padded(b"welcome", message::REP_PRIVATE_MAX),
    };
    assert_eq!(response.body, body);
    client.agent.ready(active).unwrap();
    server.expect(EventKind::Established);
    for (side, key) in [(&server, passive), (&client, active)] {
        assert_eq!(side.agent.info(key).unwrap().ack_timeout, Some(17));
    }

    client.agent.disconnect(active).unwrap();
    for side in [&server, &client] {
        let ended = side.expect(EventKind::Disconnected);
        assert_eq!(ended.status, 0);
        side.expect(EventKind::TimewaitExit);
    }
}

#[test]
fn every_message_is_lost_once() {
    let (net, _directories, server, client) = hosts();
    let mut seen = Vec::new();
    net.losing(move |mad| {
        let first = !seen.contains(&attribute(mad));
        seen.push(attribute(mad));
        first
    });
    let (_, address) = server.listen(TCP, 0, 8);
    let (passive, _active) = connected(&server, &client, address, [7, 9]);
    server.agent.disconnect(passive).unwrap();
    for side in [&server, &client] {
        side.expect(EventKind::Disconnected);
        side.expect(EventKind::TimewaitExit);
    }
    assert!(net.count(REQ) >= 2 && net.count(REP) >= 2 && net.count(DREQ) >= 2);
}

#[test]
fn data_before_rtu_establishes() {
    let (net, _directories, server, client) = hosts();
    let (_, address) = server.listen(TCP, 0, 8);
    net.losing(|mad| attribute(mad) == RTU);
    let active = client.requested(address, 7);
    let passive = server.expect(EventKind::ConnectRequest).key;
    server
        .agent
        .accept(passive, params(9), private(b""))
        .unwrap();
    client.expect(EventKind::ConnectResponse);
    client.agent.ready(active).unwrap();
    server.agent.communication_established(passive).unwrap();
    server.expect(EventKind::Established);
    let again = server.agent.communication_established(passive);
    assert_eq!(again, Err(Errno(libc::EISCONN)));
    // The reply is not sent any more: the connection is as if the RTU had come.
    client.agent.disconnect(active).unwrap();
    server.expect(EventKind::Disconnected);
}

#[test]
fn no_way_to_the_host() {
    let (net, _directories, _server, client) = hosts();
    net.down.store(true, Ordering::Relaxed);
    client.requested(host_address(9).with_port(7), 7);
    let unreachable = client.expect(EventKind::Unreachable);
    assert_eq!(unreachable.status, -libc::ETIMEDOUT);
    assert_eq!(net.count(REQ), 4);
}

#[test]
fn hosts_with_different_mtus_take_the_smaller_one() {
    let net = Net::new();
    let directories = [directory(), directory()];
    let server = net.process_at(host_address(2), &directories[0], limits(), 3);
    let client = net.process_at(host_address(3), &directories[1], limits(), 5);
    let (_, address) = server.listen(TCP, 0, 8);
    let (passive, active) = connected(&server, &client, address, [7, 9]);
    for (side, key) in [(&server, passive), (&client, active)] {
        assert_eq!(side.agent.info(key).unwrap().mtu, 3);
    }
    // The other way round it is the requester's.
    let (_, address) = client.listen(TCP, 0, 8);
    let (passive, active) = connected(&client, &server, address, [17, 19]);
    for (side, key) in [(&client, passive), (&server, active)] {
        assert_eq!(side.agent.info(key).unwrap().mtu, 3);
    }
}

#[test]
fn nobody_listens() {
    let (_net, _directories, server, client) = hosts();
    // Its host answers when some process takes datagrams.
    let _other = server.listen(TCP, 0, 8);
    client.requested(server.address.with_port(9), 7);
    let rejected = client.expect(EventKind::Rejected);
    assert_eq!(rejected.status, 8);
    let key = client.resolved(UDP, server.address.with_port(9));
    client.agent.lookup(key, private(b"who")).unwrap();
    let unreachable = client.expect(EventKind::Unreachable);
    assert_eq!(unreachable.status, 1);
}

#[test]
fn a_listener_that_comes_a_little_later_is_found() {
    let net = Net::new();
    let directories = [directory(), directory()];
    let server = net.process(2, &directories[0], limits());
    let patient = Limits {
        absent: Duration::from_secs(30),
        ..limits()
    };
    let client = net.process(3, &directories[1], patient);
    let _other = server.listen(TCP, 0, 8);
    client.requested(server.address.with_port(7777), 7);
    while net.count(REJ) < 2 {
        std::thread::yield_now();
    }
    server.listen(TCP, 7777, 8);
    server.expect(EventKind::ConnectRequest);
}

#[test]
fn a_program_says_no() {
    let (_net, _directories, server, client) = hosts();
    let (_, address) = server.listen(TCP, 0, 8);
    client.requested(address, 7);
    let passive = server.expect(EventKind::ConnectRequest).key;
    server.agent.reject(passive, private(b"no room")).unwrap();
    let rejected = client.expect(EventKind::Rejected);
    assert_eq!(rejected.status, 28);
    let private = padded(b"no room", message::REJ_PRIVATE_MAX);
    assert_eq!(rejected.body, Body::Reject { private });
}

#[test]
fn a_full_backlog_rejects() {
    let (_net, _directories, server, client) = hosts();
    let (_, address) = server.listen(TCP, 0, 1);
    client.requested(address, 7);
    while server.channel.count(|_| true) == 0 {
        std::thread::yield_now();
    }
    client.requested(address, 8);
    assert_eq!(client.expect(EventKind::Rejected).status, 28);
    server.expect(EventKind::ConnectRequest);
}

#[test]
fn an_identifier_that_is_destroyed_tells_its_peer() {
    let (_net, _directories, server, client) = hosts();
    let (_, address) = server.listen(TCP, 0, 8);
    // A connection.
    let (passive, _) = connected(&server, &client, address, [7, 9]);
    server.agent.destroy(passive);
    client.expect(EventKind::Disconnected);
    client.expect(EventKind::TimewaitExit);
    // A request that was not answered.
    let active = client.requested(address, 8);
    server.expect(EventKind::ConnectRequest);
    client.agent.destroy(active);
    assert_eq!(server.expect(EventKind::Rejected).status, 4);
    // A request that nobody took from the channel.
    let (listener, address) = server.listen(TCP, 0, 8);
    client.requested(address, 9);
    while server.channel.count(|_| true) == 0 {
        std::thread::yield_now();
    }
    server.agent.destroy(listener);
    assert_eq!(client.expect(EventKind::Rejected).status, 28);
}

#[test]
fn a_process_that_ends_disconnects() {
    let (net, _directories, server, client) = hosts();
    let (_, address) = server.listen(TCP, 0, 8);
    connected(&server, &client, address, [7, 9]);
    // Also when it is not heard at first.
    let mut lost = 0;
    net.losing(move |mad| {
        lost += u32::from(attribute(mad) == DREQ);
        attribute(mad) == DREQ && lost <= 2
    });
    server.agent.leave();
    // The third is heard; while nobody has a processor to answer it others follow.
    assert!(net.count(DREQ) >= 3, "{}", net.count(DREQ));
    client.expect(EventKind::Disconnected);
}

#[test]
fn a_process_that_ends_does_not_wait_for_ever() {
    let (net, _directories, server, client) = hosts();
    let (_, address) = server.listen(TCP, 0, 8);
    connected(&server, &client, address, [7, 9]);
    net.losing(|_| true);
    server.agent.leave();
    assert!(net.count(DREQ) >= 2);
}

/// A flood of requests that nobody serves is looked up as far as the limit goes, and then again.
#[test]
fn lookups_for_others_are_limited() {
    let mut lookups = Lookups::default();
    let start = Instant::now();
    let mut allowed = |at| (0..10_000).filter(|_| lookups.may(at)).count();
    assert_eq!(allowed(start), 100);
    assert_eq!(allowed(start + Duration::from_millis(99)), 0);
    assert_eq!(allowed(start + Duration::from_millis(100)), 100);
}

#[test]
fn a_datagram_service_is_looked_up() {
    let (_net, _directories, server, client) = hosts();
    let (_, address) = server.listen(UDP, 0, 8);
    let active = client.resolved(UDP, address);
    client.agent.lookup(active, private(b"who")).unwrap();
    let request = server.expect(EventKind::ConnectRequest);
    let body = Body::Lookup {
        private: padded(b"who", message::SIDR_REQ_PRIVATE_MAX),
    };
    assert_eq!(request.body, body);
    let reply = SidrReply {
        status: message::SIDR_SUCCESS,
        qp_num: 0x99,
        qkey: 0x0123_4567,
        gid: [0; 16],
        private: private(b"me"),
    };
    server.agent.accept_lookup(request.key, reply).unwrap();
    let found = client.expect(EventKind::Established);
    let body = Body::Datagram {
        qp_num: 0x99,
        qkey: 0x0123_4567,
        gid: server.address.gid(),
        private: padded(b"me", message::SIDR_REP_PRIVATE_MAX),
    };
    assert_eq!(found.body, body);
    // Turned down.
    let active = client.resolved(UDP, address);
    client.agent.lookup(active, private(b"")).unwrap();
    let request = server.expect(EventKind::ConnectRequest);
    server.agent.reject(request.key, private(b"no")).unwrap();
    let refused = client.expect(EventKind::Unreachable);
    assert_eq!(refused.status, 2);
}

#[test]
fn processes_of_a_host_share_queue_pair_1() {
    let net = Net::new();
    let directories = [directory(), directory()];
    // The first one gets everything that comes to its host.
    let idle = net.process(2, &directories[0], limits());
    let server = net.process(2, &directories[0], limits());
    let bystander = net.process(3, &directories[1], limits());
    let client = net.process(3, &directories[1], limits());
    idle.listen(TCP, 0, 8);
    bystander.listen(TCP, 0, 8);
    let (listener, address) = server.listen(TCP, 0, 8);
    let (passive, active) = connected(&server, &client, address, [7, 9]);
    client.agent.disconnect(active).unwrap();
    for side in [&server, &client] {
        side.expect(EventKind::Disconnected);
        side.expect(EventKind::TimewaitExit);
    }
    server.agent.destroy(passive);
    // A request whose repetition comes when nobody listens any more still finds its process.
    net.losing({
        let mut lost = 0;
        move |mad| {
            lost += u32::from(attribute(mad) == REP);
            attribute(mad) == REP && lost < 2
        }
    });
    client.requested(address, 17);
    let passive = server.expect(EventKind::ConnectRequest).key;
    server.agent.destroy(listener);
    let before = net.count(REQ);
    while net.count(REQ) == before {
        std::thread::yield_now();
    }
    server
        .agent
        .accept(passive, params(19), private(b""))
        .unwrap();
    client.expect(EventKind::ConnectResponse);
    // Neither of the others has seen anything.
    for other in [&idle, &bystander] {
        assert_eq!(other.channel.count(|_| true), 0);
    }
    // Nobody listens any more: whoever gets it says so.
    client.requested(address, 27);
    assert_eq!(client.expect(EventKind::Rejected).status, 8);
}

#[test]
fn both_ends_in_one_process() {
    let here = Address::new(IpAddr::from(std::net::Ipv6Addr::LOCALHOST), 0);
    for address in [host_address(2), here] {
        let ipv6_is_off = address.ip.is_ipv6() && !address.is_local();
        if ipv6_is_off {
            println!("skipped: this machine has no IPv6");
            continue;
        }
        both_ends_at(address);
    }
}

fn both_ends_at(address: Address) {
    let net = Net::new();
    let directory = directory();
    let side = net.process_at(address, &directory, limits(), MTU);
    let (_, address) = side.listen(TCP, 0, 8);
    let active = side.requested(address, 7);
    let passive = side.expect(EventKind::ConnectRequest).key;
    side.agent.accept(passive, params(9), private(b"")).unwrap();
    side.expect(EventKind::ConnectResponse);
    side.agent.ready(active).unwrap();
    side.expect(EventKind::Established);
    // Both at once.
    side.agent.disconnect(active).unwrap();
    side.agent.disconnect(passive).unwrap();
    side.expect(EventKind::Disconnected);
    let second = loop {
        assert!(readable(side.channel.fd()));
        let event = side.channel.try_next().unwrap();
        if event.kind != EventKind::TimewaitExit {
            break event;
        }
    };
    assert_eq!(second.kind, EventKind::Disconnected);
}

/// With a device for this host too, its own addresses are reached by that.
#[test]
fn addresses_of_this_host_do_not_go_over_the_wire() {
    let net = Net::new();
    let directory = directory();
    let side = net.process(2, &directory, limits());
    let config = Config {
        gsi: side.gsi,
        ca_guid: 1,
        mtu: MTU,
        host_device: true,
    };
    let agent = agent_over(&directory, limits(), config);
    let both = Side { agent, ..side };
    let (_, address) = both.listen(TCP, 0, 8);
    let active = both.requested(address, 7);
    assert_eq!(both.agent.info(active).unwrap().way, host::NAME);
    both.expect(EventKind::ConnectRequest);
    assert_eq!(net.count(REQ), 0);
    // Others do, and groups.
    for elsewhere in [Ipv4Addr::new(192, 0, 2, 1), Ipv4Addr::new(239, 1, 2, 3)] {
        let there = both.resolved(UDP, Address::new(elsewhere.into(), 7));
        let way = both.agent.info(there).unwrap().way;
        assert_eq!(way, connector::NAME, "{elsewhere}");
    }
}
