//! Hosts that are network namespaces, two cables with one address plan, and sockets of which some are removed without a
//! word to their other ends.

use std::fs;
use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::os::fd::AsRawFd;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use rustix::net::{AddressFamily, SocketType, sockopt};
use sluice_control::message::{FromDaemon, ToDaemon};
use sluice_lab::namespace::Namespace;
use sluice_sys::{tcp, unix};

use super::common::{self, Daemon, Program};

/// Two with a cable, and the same once more.
pub const HOSTS: usize = 4;
pub const ADDRESSES: [Ipv4Addr; 3] = [
    Ipv4Addr::LOCALHOST,
    Ipv4Addr::new(10, 99, 0, 1),
    Ipv4Addr::new(10, 99, 0, 2),
];
/// Servers' and clients'.
pub const PORTS: [u16; 4] = [6400, 6401, 40000, 40001];
pub const PROGRAMS: usize = 3;
/// What goes out by it comes nowhere.
pub const VOID: &str = "void";
/// Marked packets to the cable's network stay on their host.
const MARK: u32 = 7;

/// After that long nothing comes any more. What comes later all the same was no connection of the world: it shows less.
const MOMENT: Duration = Duration::from_millis(50);

/// What becomes of what is written to a socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate {
    Arrives,
    /// At this socket.
    ArrivesElsewhere(usize),
    /// Nobody has it, and the socket was reset or the kernel repeats itself.
    Cut,
}

struct Open {
    stream: TcpStream,
    host: usize,
    /// Who shook hands with it.
    other: usize,
    /// Since then rules, devices or marks are others.
    is_disturbed: bool,
    end: Option<(usize, u32)>,
}

pub struct World {
    hosts: Vec<Namespace>,
    programs: Vec<Program>,
    ends: u32,
    /// By the order in which they were made; closed ones are none.
    sockets: Vec<Option<Open>>,
    markers: u64,
}

impl World {
    pub fn new(daemon: &Daemon) -> io::Result<World> {
        let hosts = (0..HOSTS)
            .map(|_| Namespace::new())
            .collect::<io::Result<Vec<_>>>()?;
        for (host, namespace) in hosts.iter().enumerate() {
            let mut words = format!(
                "link set lo up\nlink add {VOID} type veth peer name nowhere\nlink set {VOID} up\nlink set nowhere up\n"
            );
            if host % 2 == 0 {
                let other = hosts[host + 1].path();
                words += &format!("link add cable type veth peer name cable netns {other}\n");
            }
            let address = ADDRESSES[1 + host % 2];
            words += &format!("addr add {address}/24 dev cable\nlink set cable up\n");
            words += &format!(
                "rule add pref 10 fwmark {MARK} lookup 77\nrule add pref 20 lookup local\nrule del pref 0\n"
            );
            words += "route add local 10.99.0.0/24 dev lo table 77\n";
            namespace.inside(|| {
                feed("ip", &["-batch", "-"], &words)?;
                feed("nft", &["-f", "-"], TABLE)?;
                fs::write("/proc/sys/net/ipv4/tcp_fwmark_accept", "1")
            })?;
        }
        Ok(World {
            hosts,
            programs: (0..PROGRAMS).map(|_| daemon.program("anybody")).collect(),
            ends: 0,
            sockets: Vec::new(),
            markers: 0,
        })
    }

    /// A connection on this host from one address and port to others, bound to a device or not: the one that connects,
    /// and the one that accepts, wherever that is. `None` if there is none.
    pub fn connect(
        &mut self,
        host: usize,
        from: (usize, u16),
        to: (usize, u16),
        device: Option<&str>,
    ) -> io::Result<Option<(usize, usize)>> {
        let [from, to] = [from, to].map(|(at, port)| SocketAddr::from((ADDRESSES[at], port)));
        let mut listeners = Vec::new();
        for (at, namespace) in self.hosts.iter().enumerate() {
            listeners
                .extend(namespace.inside(|| Ok(listen(at, (at == host).then_some(from.port()))))?);
        }
        let made = self.hosts[host].inside(|| Ok(connect(from, to, device)))?;
        let Ok(connected) = made else {
            return Ok(None);
        };
        // Whoever gets its first bytes, if anybody does.
        self.markers += 1;
        let marker = self.markers.to_be_bytes();
        if (&connected).write_all(&marker).is_err() {
            return Ok(None);
        }
        let Some((there, accepted)) = accept(&listeners, &marker)? else {
            return Ok(None);
        };
        let first = self.sockets.len();
        for (stream, host, other) in [(connected, host, first + 1), (accepted, there, first)] {
            stream.set_nonblocking(true)?;
            self.sockets.push(Some(Open {
                stream,
                host,
                other,
                is_disturbed: false,
                end: None,
            }));
        }
        Ok(Some((first, first + 1)))
    }

    /// A connection from where this one's other end is to where it is itself.
    pub fn mirror(&mut self, socket: usize) -> io::Result<Option<(usize, usize)>> {
        let Some(open) = &self.sockets[socket] else {
            return Ok(None);
        };
        let (Ok(local), Ok(peer)) = (open.stream.local_addr(), open.stream.peer_addr()) else {
            return Ok(None);
        };
        let place = |address: SocketAddr| {
            let at = ADDRESSES.iter().position(|it| address.ip() == *it)?;
            Some((at, address.port()))
        };
        // Where the one was that has these addresses.
        let is_own = peer.ip().is_loopback() || peer.ip() == local.ip();
        let host = if is_own { open.host } else { open.host ^ 1 };
        match (place(peer), place(local)) {
            (Some(from), Some(to)) => self.connect(host, from, to, None),
            _ => Ok(None),
        }
    }

    /// A socket that is open.
    pub fn some(&self, number: u64) -> Option<usize> {
        let open: Vec<usize> = (0..self.sockets.len())
            .filter(|at| self.sockets[*at].is_some())
            .collect();
        let at = number.checked_rem(open.len() as u64)?;
        Some(open[at as usize])
    }

    /// One whose other end is gone.
    pub fn orphan(&self, number: u64) -> Option<usize> {
        let is_alone = |open: &Open| self.sockets[open.other].is_none();
        let all = self.sockets.iter().enumerate();
        let alone: Vec<usize> = all
            .filter(|(_, open)| open.as_ref().is_some_and(is_alone))
            .map(|(at, _)| at)
            .collect();
        let at = number.checked_rem(alone.len() as u64)?;
        Some(alone[at as usize])
    }

    pub fn host(&self, socket: usize) -> usize {
        self.open(socket).host
    }

    fn open(&self, socket: usize) -> &Open {
        self.sockets[socket].as_ref().expect("it is open")
    }

    pub fn local_port(&self, socket: usize) -> u16 {
        self.open(socket)
            .stream
            .local_addr()
            .map_or(0, |it| it.port())
    }

    /// The end goes, and its reset with it.
    pub fn vanish(&mut self, socket: usize) -> io::Result<()> {
        let Some(open) = self.sockets[socket].take() else {
            return Ok(());
        };
        bind_to(&open.stream, VOID)?;
        sockopt::set_socket_linger(&open.stream, Some(Duration::ZERO))?;
        Ok(())
    }

    pub fn bind(&mut self, socket: usize, device: &str) -> io::Result<()> {
        bind_to(&self.open(socket).stream, device)?;
        self.disturb(socket);
        Ok(())
    }

    pub fn mark(&mut self, socket: usize) -> io::Result<()> {
        let fd = self.open(socket).stream.as_raw_fd();
        unix::set_option(fd, libc::SOL_SOCKET, libc::SO_MARK, &MARK)?;
        self.disturb(socket);
        Ok(())
    }

    fn disturb(&mut self, socket: usize) {
        let other = self.open(socket).other;
        for at in [socket, other] {
            if let Some(open) = &mut self.sockets[at] {
                open.is_disturbed = true;
            }
        }
    }

    /// A rule in one of the chains `o` (output), `p` (prerouting) and `s` (postrouting).
    pub fn rule(&mut self, host: usize, rule: &str) -> io::Result<()> {
        self.change(host, &format!("insert rule ip t {rule}\n"))
    }

    pub fn forget_rules(&mut self, host: usize) -> io::Result<()> {
        self.change(host, "flush table ip t\n")
    }

    fn change(&mut self, host: usize, words: &str) -> io::Result<()> {
        self.hosts[host].inside(|| feed("nft", &["-f", "-"], words))?;
        for open in self.sockets.iter_mut().flatten() {
            open.is_disturbed = true;
        }
        Ok(())
    }

    /// A program says that it has this socket.
    pub fn announce(&mut self, socket: usize, program: usize) {
        let end = self.ends;
        self.ends += 1;
        let open = self.sockets[socket].as_mut().expect("it is open");
        open.end = Some((program, end));
        self.programs[program].announce(end, &open.stream);
    }

    /// The lanes that sluiced has given meanwhile, by their sockets, in the order of these.
    pub fn lanes(&self) -> Vec<(usize, usize)> {
        let mut places: std::collections::HashMap<_, Vec<usize>> = std::collections::HashMap::new();
        let mut told = |lane: &sluice_control::message::Lane| {
            let is_it = |open: &Open| tcp::cookie(open.stream.as_raw_fd()) == Ok(lane.cookie);
            let mut all = self.sockets.iter();
            let socket = all.position(|open| open.as_ref().is_some_and(is_it));
            let socket = socket.expect("a lane for a socket that is open");
            places
                .entry((lane.chunk, lane.lane))
                .or_default()
                .push(socket);
        };
        // Twice: the first answers are from before the last announcements of others.
        for _ in 0..2 {
            for program in &self.programs {
                program
                    .client
                    .send(&ToDaemon::Ping, &[])
                    .expect("room for a ping");
                loop {
                    match common::next(&program.client).0 {
                        FromDaemon::Pong { .. } => break,
                        FromDaemon::Lane(lane) => told(&lane),
                        other => panic!("{other:?}"),
                    }
                }
            }
        }
        let mut lanes: Vec<(usize, usize)> = { places.into_values() }
            .map(|mut ends| {
                ends.sort_unstable();
                assert_eq!(ends.len(), 2, "{ends:?}");
                (ends[0], ends[1])
            })
            .collect();
        lanes.sort_unstable();
        lanes
    }

    /// Writes to one socket, and waits for what becomes of it.
    pub fn fate(&mut self, from: usize, to: usize) -> Fate {
        self.markers += 1;
        let marker = self.markers.to_be_bytes();
        let before =
            tcp::info(self.open(from).stream.as_raw_fd()).map_or(0, |it| it.retransmits_total);
        if (&self.open(from).stream).write_all(&marker).is_err() {
            return Fate::Cut;
        }
        let mut fate = None;
        common::wait_for("what becomes of a byte", || {
            fate = self.found(from, &marker).map(|at| {
                if at == to {
                    Fate::Arrives
                } else {
                    Fate::ArrivesElsewhere(at)
                }
            });
            if fate.is_none() && self.is_stuck(from, before) {
                // It may have come meanwhile.
                let found = self.found(from, &marker);
                fate = Some(if found == Some(to) {
                    Fate::Arrives
                } else {
                    Fate::Cut
                });
            }
            fate.is_some()
        });
        fate.expect("it was waited for")
    }

    fn found(&self, from: usize, marker: &[u8; 8]) -> Option<usize> {
        for (at, open) in self.sockets.iter().enumerate() {
            let Some(open) = open.as_ref().filter(|_| at != from) else {
                continue;
            };
            let mut bytes = [0; 8];
            // What was written earlier and was thought lost is passed over.
            while (&open.stream).read_exact(&mut bytes).is_ok() {
                if bytes == *marker {
                    return Some(at);
                }
            }
        }
        None
    }

    fn is_stuck(&self, socket: usize, before: u32) -> bool {
        tcp::info(self.open(socket).stream.as_raw_fd()).map_or(true, |it| {
            it.state != tcp::STATE_ESTABLISHED || it.retransmits_total > before
        })
    }

    /// Whether these are the ends of one handshake, and the network was changed since.
    pub fn were_ends_before_a_change(&self, a: usize, b: usize) -> bool {
        let (a, b) = ((a, self.open(a)), (b, self.open(b)));
        a.1.other == b.0 && b.1.other == a.0 && a.1.is_disturbed && b.1.is_disturbed
    }

    pub fn describe(&self, a: usize, b: usize) -> String {
        let one = |at: usize| {
            let open = self.open(at);
            let (local, peer) = (open.stream.local_addr(), open.stream.peer_addr());
            format!(
                "{at} on {} ({local:?} to {peer:?}, other end {}, end {:?})",
                open.host, open.other, open.end
            )
        };
        format!("{} and {}", one(a), one(b))
    }
}

const TABLE: &str = "table ip t {
    chain o { type nat hook output priority -100; }
    chain p { type nat hook prerouting priority -100; }
    chain s { type nat hook postrouting priority 100; }
}
";

/// Runs a program with this input.
fn feed(program: &str, arguments: &[&str], input: &str) -> io::Result<()> {
    let mut child = Command::new(program)
        .args(arguments)
        .stdin(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()?;
    child
        .stdin
        .take()
        .expect("a pipe")
        .write_all(input.as_bytes())?;
    let output = child.wait_with_output()?;
    let said = String::from_utf8_lossy(&output.stderr);
    if output.status.success() {
        Ok(())
    } else {
        Err(io::Error::other(format!("{program}: {said}, of {input}")))
    }
}

/// Listens at all ports but this one.
fn listen(host: usize, but: Option<u16>) -> Vec<(usize, TcpListener)> {
    let ports = PORTS.into_iter().filter(|port| Some(*port) != but);
    let listeners = ports.filter_map(|port| {
        let listener = TcpListener::bind((Ipv4Addr::UNSPECIFIED, port)).ok()?;
        listener.set_nonblocking(true).ok()?;
        Some((host, listener))
    });
    listeners.collect()
}

/// The connection that brings these bytes, and its host. On one machine that takes no time.
fn accept(
    listeners: &[(usize, TcpListener)],
    marker: &[u8; 8],
) -> io::Result<Option<(usize, TcpStream)>> {
    let begun = Instant::now();
    let mut accepted = Vec::new();
    while begun.elapsed() < MOMENT {
        for (at, listener) in listeners {
            while let Ok((stream, _)) = listener.accept() {
                stream.set_nonblocking(true)?;
                accepted.push((*at, stream));
            }
        }
        let brings = |(_, stream): &(usize, TcpStream)| {
            let mut bytes = [0; 8];
            (&*stream).read_exact(&mut bytes).is_ok() && bytes == *marker
        };
        if let Some(at) = accepted.iter().position(brings) {
            return Ok(Some(accepted.swap_remove(at)));
        }
        std::thread::yield_now();
    }
    Ok(None)
}

/// Connects, or gives up where nothing answers: on one machine that takes no time.
fn connect(from: SocketAddr, to: SocketAddr, device: Option<&str>) -> io::Result<TcpStream> {
    let socket = rustix::net::socket(AddressFamily::INET, SocketType::STREAM, None)?;
    sockopt::set_socket_reuseaddr(&socket, true)?;
    if let Some(device) = device {
        bind_to(&socket, device)?;
    }
    rustix::net::bind(&socket, &from)?;
    rustix::io::ioctl_fionbio(&socket, true)?;
    match rustix::net::connect(&socket, &to) {
        Ok(()) => {}
        Err(rustix::io::Errno::INPROGRESS) => {
            if !unix::wait_writable(socket.as_raw_fd(), MOMENT.as_millis() as i32)? {
                return Err(io::ErrorKind::TimedOut.into());
            }
        }
        Err(error) => return Err(error.into()),
    }
    let stream = TcpStream::from(socket);
    stream.peer_addr()?;
    Ok(stream)
}

/// `SO_BINDTODEVICE`; no device for an empty name.
fn bind_to(socket: &impl AsRawFd, device: &str) -> io::Result<()> {
    let mut name = [0_u8; libc::IFNAMSIZ];
    name[..device.len()].copy_from_slice(device.as_bytes());
    unix::set_option(
        socket.as_raw_fd(),
        libc::SOL_SOCKET,
        libc::SO_BINDTODEVICE,
        &name,
    )?;
    Ok(())
}
