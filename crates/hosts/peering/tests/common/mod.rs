//! Daemons' control connections without daemons: several in one thread, with a clock that tests
//! can turn forward.
#![allow(dead_code)]

use std::fs::{self, File};
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU8, Ordering};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};
use sluice_peering::authority::{create_authority, issue_certificate};
use sluice_peering::limits::Timing;
use sluice_peering::{Config, Event, Identity, PeerId, Peering, Why, generate_psk};
use tempfile::TempDir;

pub mod wire;

/// A condition that does not come true within this time never will: longer than the longest pause
/// between two connections.
const PATIENCE: Duration = Duration::from_secs(240);

/// A loopback address that no other test has, so that all can use the same port.
pub fn address() -> Ipv4Addr {
    static NEXT: AtomicU8 = AtomicU8::new(1);
    let process = std::process::id();
    let [.., high, low] = process.to_be_bytes();
    // 127.0.0.1 is where connections come from.
    Ipv4Addr::new(127, high | 0x40, low, NEXT.fetch_add(1, Ordering::Relaxed))
}

/// The files of one test.
pub struct Lab {
    pub dir: TempDir,
}

impl Lab {
    pub fn new() -> Lab {
        let dir = tempfile::Builder::new()
            .prefix("sluice-peering-")
            .tempdir()
            .unwrap();
        Lab { dir }
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// `[daemon]` with the key of that name, which is made if it is not there.
    pub fn psk(&self, key: &str) -> String {
        let path = self.path(key);
        if !path.exists() {
            generate_psk(&path).unwrap();
        }
        format!("psk_file = '{}'\n", path.display())
    }

    /// `[daemon]` with a certificate for `name` from the authority in that directory, which is
    /// made if it is not there.
    pub fn certificate(&self, authority: &str, name: &str) -> String {
        let dir = self.path(authority);
        if !dir.exists() {
            fs::create_dir(&dir).unwrap();
            create_authority(&dir).unwrap();
        }
        if !dir.join(format!("{name}.pem")).exists() {
            issue_certificate(&dir, name, 30).unwrap();
        }
        certificate_lines(&dir, name)
    }

    /// A daemon. `rest` begins within `[daemon]`.
    pub fn config(&self, name: &str, address: Ipv4Addr, rest: &str) -> Config {
        let text = format!("[daemon]\nname = '{name}'\nlisten = ['{address}']\n{rest}");
        Config::parse(&self.path("sluiced.toml"), &text).unwrap()
    }

    pub fn node(&self, name: &str, address: Ipv4Addr, rest: &str) -> Node {
        Node::new(self.config(name, address, rest))
    }
}

pub fn certificate_lines(dir: &Path, name: &str) -> String {
    let dir = dir.display();
    format!(
        "certificate = '{dir}/{name}.pem'\nprivate_key = '{dir}/{name}.key'\nca = '{dir}/ca.pem'\n"
    )
}

/// Asks and answers all of loopback.
pub const DISCOVERY: &str = "[discovery]\nnetworks = ['127.0.0.0/8']\n";

pub fn peer(name: &str, address: Ipv4Addr) -> String {
    format!("[[peer]]\nname = '{name}'\ncontrol = '{address}'\n")
}

/// Times that only the clocks of tests reach: a machine that does other things for a while ends
/// nothing.
fn timing() -> Timing {
    Timing {
        handshake: HANDSHAKE,
        hold: HANDSHAKE,
        alive: ALIVE,
        silence: SILENCE,
        ..Timing::default()
    }
}

pub const HANDSHAKE: Duration = Duration::from_secs(500);
pub const ALIVE: Duration = Duration::from_secs(500);
pub const SILENCE: Duration = Duration::from_secs(1_500);

/// One daemon's part.
pub struct Node {
    pub peering: Option<Peering>,
    pub events: Vec<Event>,
    ahead: Duration,
    /// Its network namespace, if it has one of its own: sockets are made where the thread is.
    place: Option<File>,
}

impl Node {
    pub fn new(config: Config) -> Node {
        Node::in_place(config, None)
    }

    pub fn in_place(config: Config, place: Option<File>) -> Node {
        let identity = Identity::load(&config).unwrap();
        enter(place.as_ref());
        Node {
            peering: Some(Peering::with_timing(config, identity, timing()).unwrap()),
            events: Vec::new(),
            ahead: Duration::ZERO,
            place,
        }
    }

    pub fn now(&self) -> Instant {
        Instant::now() + self.ahead
    }

    /// Turns its clock forward.
    pub fn wait(&mut self, time: Duration) {
        self.ahead += time;
    }

    pub fn get(&mut self) -> &mut Peering {
        self.peering.as_mut().expect("it was ended")
    }

    pub fn turn(&mut self) {
        enter(self.place.as_ref());
        let now = self.now();
        if let Some(peering) = &mut self.peering {
            peering.advance(now, &mut |event| self.events.push(event));
        }
    }

    pub fn reload(&mut self, config: Config) -> sluice_peering::Changes {
        let identity = Identity::load(&config).unwrap();
        self.get().reload(config, identity).unwrap()
    }

    /// The session with that peer.
    pub fn with(&self, name: &str) -> Option<PeerId> {
        let status = self.peering.as_ref()?.status();
        let found = status.iter().find(|status| status.name == name);
        found.map(|status| status.peer)
    }

    pub fn ups(&self) -> usize {
        let ups = self.events.iter();
        ups.filter(|event| matches!(event, Event::Up { .. }))
            .count()
    }

    pub fn downs(&self) -> Vec<Why> {
        let why = |event: &Event| match event {
            Event::Down { why, .. } => Some(why.clone()),
            _ => None,
        };
        self.events.iter().filter_map(why).collect()
    }

    pub fn unreachable(&self) -> Vec<(IpAddr, Why)> {
        let why = |event: &Event| match event {
            Event::Unreachable { address, why } => Some((*address, why.clone())),
            _ => None,
        };
        self.events.iter().filter_map(why).collect()
    }

    pub fn messages(&self) -> Vec<&[u8]> {
        let mut messages = Vec::new();
        for event in &self.events {
            if let Event::Message { bytes, .. } = event {
                messages.push(bytes.as_slice());
            }
        }
        messages
    }

    pub fn listens_at(&mut self) -> SocketAddr {
        self.get().local_addresses()[0]
    }
}

/// Moves this thread into a network namespace.
fn enter(place: Option<&File>) {
    if let Some(place) = place {
        let kind = Some(LinkNameSpaceType::Network);
        move_into_link_name_space(place.as_fd(), kind).unwrap();
    }
}

/// Drives all of them until the condition holds.
pub fn run<const N: usize>(
    mut nodes: [&mut Node; N],
    what: &str,
    mut is_done: impl FnMut(&mut [&mut Node; N]) -> bool,
) {
    let end = Instant::now() + PATIENCE;
    loop {
        for node in &mut nodes {
            node.turn();
        }
        if is_done(&mut nodes) {
            return;
        }
        if Instant::now() > end {
            for node in &nodes {
                eprintln!("{:#?}", node.events);
            }
            panic!("not within {PATIENCE:?}: {what}");
        }
        sleep(&nodes);
    }
}

/// Until something comes, the next deadline, or 20 ms for conditions that are about other things.
fn sleep<const N: usize>(nodes: &[&mut Node; N]) {
    let mut wait = Duration::from_millis(20);
    let mut fds = Vec::new();
    for node in nodes {
        let Some(peering) = &node.peering else {
            continue;
        };
        if let Some(deadline) = peering.next_deadline() {
            wait = wait.min(deadline.saturating_duration_since(node.now()));
        }
        fds.push(PollFd::from_borrowed_fd(peering.fd(), PollFlags::IN));
    }
    let wait = Timespec {
        tv_sec: 0,
        tv_nsec: wait.subsec_nanos().into(),
    };
    let _ = poll(&mut fds, Some(&wait));
}

/// Drives them for some turns in which nothing is expected.
pub fn idle<const N: usize>(mut nodes: [&mut Node; N], turns: usize) {
    for _ in 0..turns {
        for node in &mut nodes {
            node.turn();
        }
        sleep(&nodes);
    }
}

/// Drives both until each has a session with the other.
pub fn join(a: (&mut Node, &str), b: (&mut Node, &str)) {
    let (a_name, b_name) = (a.1.to_owned(), b.1.to_owned());
    run([a.0, b.0], "a session", |[a, b]| {
        a.with(&b_name).is_some() && b.with(&a_name).is_some()
    });
}
