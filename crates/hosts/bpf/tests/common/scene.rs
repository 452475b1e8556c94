//! A client's host whose connections are captured.

use std::io::Read;
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};
use std::os::fd::AsRawFd;

use sluice_bpf::{Capture, CaptureCounters, CaptureOptions, Destination, Listener, Original};
use sluice_sys::tcp::netns_cookie;
use sluice_sys::unix::wait_readable;

use super::{Agent, End, Group, Host, Net, until};

/// Longest time that a test waits for a connection.
const PATIENCE_MS: i32 = 60_000;

/// The daemon's side: listeners in a network namespace.
pub struct Daemon {
    pub v4: TcpListener,
    pub v6: TcpListener,
    pub netns: u64,
}

pub fn port(listener: &TcpListener) -> u16 {
    listener.local_addr().expect("bound").port()
}

impl Daemon {
    pub fn new(host: &Host) -> Self {
        let listen = |address: &str| TcpListener::bind(address).expect("bound");
        let (v4, v6) = host.enter(|| (listen("127.0.0.1:0"), listen("[::1]:0")));
        let netns = netns_cookie(v4.as_raw_fd()).expect("a cookie");
        Self { v4, v6, netns }
    }

    pub fn listener(&self) -> Listener {
        Listener {
            v4: Some(port(&self.v4)),
            v6: Some(port(&self.v6)),
        }
    }

    /// Closes its listeners, and waits until they are: a child that another test starts at this moment has them too,
    /// until it executes its program.
    pub fn close(self, host: &Host) {
        let addresses = [&self.v4, &self.v6].map(|it| it.local_addr().expect("bound"));
        drop(self);
        until("nobody listens", || {
            let is_closed = |to: &SocketAddr| TcpStream::connect(to).is_err();
            host.enter(|| addresses.iter().all(is_closed))
        });
    }

    /// What has arrived, and what it was to be.
    pub fn accept(&self, capture: &Capture, v6: bool) -> (TcpStream, Option<Original>) {
        let listener = if v6 { &self.v6 } else { &self.v4 };
        let waiting = wait_readable(listener.as_raw_fd(), PATIENCE_MS);
        assert_eq!(waiting, Ok(true), "nobody came");
        let (stream, remote) = listener.accept().expect("accepts");
        let local = stream.local_addr().expect("a name");
        let original = capture.take_original(self.netns, remote, local);
        (stream, original.expect("works"))
    }
}

pub fn read(stream: &mut TcpStream, bytes: usize) -> String {
    let mut text = vec![0; bytes];
    stream.read_exact(&mut text).expect("read");
    String::from_utf8(text).expect("text")
}

/// Everything at an address, with a known source.
pub fn all_ports(address: IpAddr, source: IpAddr) -> Destination {
    Destination {
        address,
        port: None,
        source: Some(source),
    }
}

/// A client's host that is captured to a server's, and nothing else.
pub struct Scene {
    pub net: Net,
    pub group: Group,
    pub daemon: Daemon,
    pub capture: Capture,
}

impl Scene {
    pub fn new(options: &CaptureOptions) -> Self {
        let net = super::net();
        let group = Group::new();
        let daemon = Daemon::new(&net.a);
        let mut capture = Capture::attach(&group.open(), options).expect("attaches");
        capture
            .set_listener(daemon.netns, daemon.listener())
            .expect("a listener");
        let destinations = [all_ports(net.b.v4, net.a.v4), all_ports(net.b.v6, net.a.v6)];
        capture.set_destinations(&destinations).expect("set");
        Self {
            net,
            group,
            daemon,
            capture,
        }
    }

    pub fn client(&self) -> Agent {
        Agent::start(&self.net.a, Some(&self.group))
    }

    pub fn counters(&self) -> CaptureCounters {
        self.capture.counters().expect("counters")
    }

    /// Connects, and finds out that it was captured.
    pub fn captured(&self, client: &mut Agent, to: SocketAddr) -> (End, TcpStream) {
        let end = client.connect(to).expect("connects");
        let (stream, original) = self.daemon.accept(&self.capture, to.is_ipv6());
        let original = original.expect("captured");
        assert_eq!(original.cookie, end.cookie);
        assert_eq!(original.destination, to);
        (end, stream)
    }
}

/// Connects, and finds out that it went its own way.
pub fn direct(client: &mut Agent, server: &mut Agent, listener: &End) -> End {
    let end = client.connect(listener.local).expect("connects");
    let accepted = server.accept(listener.id);
    assert_eq!(accepted.peer, end.local);
    client.write(end.id, "direct");
    assert_eq!(server.read(accepted.id, 6), Ok("direct".into()));
    end
}
