//! A client, a gateway, and two application nodes behind it. Nothing but the gateway reaches the
//! nodes from the client's side: no packet is forwarded.

use std::fs;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::Command;

use rustix::process::Signal;
use sluice_tests::fleet::{Fleet, Hosts, KEY, LIMIT, Place};
use sluice_tests::hosts::ports::Protocol;
use sluice_tests::hosts::{Host, Settings, require_means, wire};
use sluice_tests::job::{Job, wait_until};
use sluice_tests::programs::require;
use sluice_tests::stream::Transfer;
use sluice_tests::suite::{Verdict, ensure, fail};
use tempfile::TempDir;

/// The ports that the gateway lets node a publish. One that takes a right to be opened:
pub const LOW_PORT: u16 = 80;
pub const PORT: u16 = 8080;
pub const PORT_OF_BOTH: u16 = 8081;
pub const FORBIDDEN_PORT: u16 = 8999;

/// Hosts, by their place in [`Net::hosts`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum At {
    Client,
    Gateway,
    NodeA,
    NodeB,
}

const ALL: [At; 4] = [At::Client, At::Gateway, At::NodeA, At::NodeB];

impl Place for At {
    const DAEMONS: &'static [At] = &[At::Gateway, At::NodeA, At::NodeB];

    fn name(self) -> &'static str {
        ["client", "gw", "a", "b"][self as usize]
    }
}

impl At {
    /// IPv4 and IPv6; of the gateway the inner ones.
    fn addresses(self) -> (Ipv4Addr, Ipv6Addr) {
        match self {
            At::Client => (
                Ipv4Addr::new(10, 45, 0, 1),
                Ipv6Addr::new(0xfd45, 0, 0, 0, 0, 0, 0, 1),
            ),
            inner => (
                Ipv4Addr::new(10, 46, 0, inner as u8),
                Ipv6Addr::new(0xfd46, 0, 0, 0, 0, 0, 0, inner as u16),
            ),
        }
    }
}

/// The gateway's outside address.
pub fn outside(family: u8) -> IpAddr {
    if family == 6 {
        Ipv6Addr::new(0xfd45, 0, 0, 0, 0, 0, 0, 2).into()
    } else {
        Ipv4Addr::new(10, 45, 0, 2).into()
    }
}

/// The client's address.
pub fn client_address(family: u8) -> IpAddr {
    let (v4, v6) = At::Client.addresses();
    if family == 6 { v6.into() } else { v4.into() }
}

/// The hosts and their wires.
pub struct Net {
    hosts: Vec<Host>,
    // Behind the hosts: their files are in it.
    dir: TempDir,
}

impl Hosts for Net {
    type Place = At;

    fn host(&self, at: At) -> &Host {
        &self.hosts[at as usize]
    }

    fn path(&self) -> &Path {
        self.dir.path()
    }
}

impl Net {
    fn new() -> Verdict<Net> {
        require_means()?;
        let dir = tempfile::Builder::new().prefix("sluice-gw-").tempdir()?;
        let mut hosts = Vec::new();
        for at in ALL {
            hosts.push(Host::new(dir.path(), at.name(), at.addresses())?);
        }
        let mut net = Net { hosts, dir };
        net.wire()?;
        Ok(net)
    }

    /// One wire to the client, and a bridge in the gateway with a wire to each node.
    fn wire(&mut self) -> Verdict {
        let settings = Settings::default();
        let space = |at: At| self.hosts[at as usize].namespace();
        wire(
            space(At::Client),
            "eth0",
            space(At::Gateway),
            "out",
            settings,
        )?;
        for (node, port) in [(At::NodeA, "toa"), (At::NodeB, "tob")] {
            wire(space(node), "eth0", space(At::Gateway), port, settings)?;
        }
        for at in [At::Client, At::NodeA, At::NodeB] {
            self.hosts[at as usize].configure("eth0", settings.mtu)?;
        }
        let gateway = &self.hosts[At::Gateway as usize];
        for words in [
            "link add in type bridge",
            "link set toa master in up",
            "link set tob master in up",
            "link set out up",
            "addr add 10.45.0.2/24 dev out",
            "addr add fd45::2/64 dev out nodad",
        ] {
            gateway.ip(words)?;
        }
        self.hosts[At::Gateway as usize].configure("in", settings.mtu)
    }
}

/// The configuration of a daemon: the gateway's lets node a publish and connect out.
fn config(fleet: &Fleet<Net>, at: At) -> Verdict<String> {
    let head = fleet.head(at, KEY, "roce-udp")?;
    if at != At::Gateway {
        return Ok(head + &fleet.peer_by_both(At::Gateway) + "[node]\ngateways = [\"gw\"]\n");
    }
    let peers = [At::NodeA, At::NodeB].map(|node| fleet.peer_by_both(node));
    Ok(head
        + &peers.concat()
        + &format!(
            "[gateway]\naddresses = [\"{}\", \"{}\"]\n\
             [[gateway.node]]\nname = \"a\"\nports = \"{LOW_PORT},{PORT},{PORT_OF_BOTH},32768-65535\"\n\
             connect = [\"10.45.0.0/24\", \"fd45::/64\"]\n\
             [[gateway.node]]\nname = \"b\"\nports = \"{PORT_OF_BOTH}\"\n",
            outside(4),
            outside(6),
        ))
}

/// Hosts, daemons and a gateway.
pub struct Lab {
    gateway: Option<Job>,
    pub fleet: Fleet<Net>,
}

impl Lab {
    /// Daemons that have found each other, and a gateway that serves.
    pub fn new() -> Verdict<Lab> {
        let mut fleet = Fleet::new(Net::new()?, 4, &["--eager"])?;
        for &at in At::DAEMONS {
            let text = config(&fleet, at)?;
            fleet.write_config(at, &text)?;
            fleet.start(at)?;
        }
        fleet.await_links()?;
        let mut lab = Lab {
            gateway: None,
            fleet,
        };
        lab.start_gateway()?;
        Ok(lab)
    }

    pub fn host(&self, at: At) -> &Host {
        self.fleet.host(at)
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.fleet.dir().join(name)
    }

    pub fn start_gateway(&mut self) -> Verdict {
        let command = self.gateway_command(&["--log", "info"]);
        let mut job = self.fleet.start_program(command, "gateway")?;
        job.await_text("ready", LIMIT)?;
        self.gateway = Some(job);
        Ok(())
    }

    /// Ends the gateway's process with this signal.
    pub fn end_gateway(&mut self, signal: Signal) -> Verdict {
        let job = self.take_gateway()?;
        job.signal(signal)?;
        job.finish(LIMIT)?;
        Ok(())
    }

    /// A field of the gateway's process, as proc_pid_status(5) has it.
    pub fn gateway_status(&self, field: &str) -> Verdict<String> {
        let pid = self.gateway.as_ref().map(Job::id).unwrap_or_default();
        let status = fs::read_to_string(format!("/proc/{pid}/status"))?;
        let mut lines = status.lines().filter_map(|line| line.split_once(':'));
        match lines.find(|(name, _)| *name == field) {
            Some((_, value)) => Ok(value.trim().to_owned()),
            None => fail(format!("the gateway does not run, or has no {field}")),
        }
    }

    /// What the gateway's process has in memory.
    pub fn gateway_memory_kb(&self) -> Verdict<u64> {
        let memory = self.gateway_status("VmRSS")?;
        match memory.trim_end_matches(" kB").parse() {
            Ok(kb) => Ok(kb),
            Err(error) => fail(format!("{memory:?}: {error}")),
        }
    }

    /// Descriptors that the gateway's process has open.
    pub fn gateway_files(&self) -> Verdict<usize> {
        match &self.gateway {
            Some(job) => Ok(std::fs::read_dir(format!("/proc/{}/fd", job.id()))?.count()),
            None => fail("there is no gateway"),
        }
    }

    /// The gateway's process, which is the caller's from now on.
    pub fn take_gateway(&mut self) -> Verdict<Job> {
        match self.gateway.take() {
            Some(job) => Ok(job),
            None => fail("there is no gateway"),
        }
    }

    /// `sluice gateway` with these arguments, at the gateway.
    fn gateway_command(&self, words: &[&str]) -> Command {
        let words = [&["gateway"], words, &["--socket"]].concat();
        let mut command = self.fleet.sluice(At::Gateway, &words);
        command.arg(self.fleet.socket(At::Gateway));
        command
    }

    /// What it says to these arguments.
    pub fn ask_gateway(&self, words: &[&str]) -> Verdict<String> {
        self.fleet.run_program(self.gateway_command(words), "ask")
    }

    /// A program on a node, published at the gateway.
    pub fn published(&self, at: At, gateway: &str, program: &Path) -> Command {
        let words = ["run", "--gateway", gateway, "--"];
        let mut command = self.fleet.sluice(at, &words);
        command.arg(program);
        command
    }

    /// A program of the client's.
    pub fn outside(&self, program: &Path) -> Command {
        self.host(At::Client).command(program)
    }

    /// Checked records of random lengths both ways, in several connections at once, between programs
    /// that know where they meet.
    pub fn check_records(
        &self,
        kind: &'static str,
        server: Command,
        client: Command,
        is_published: bool,
    ) -> Verdict {
        let transfer = Transfer {
            server: kind,
            connections: 8,
            records: 2000,
        };
        let dir = self.fleet.dir();
        let ends = transfer.listen(server, dir, LIMIT).and_then(|server| {
            // Its `listen` returns also where the gateway has not got to it.
            if is_published {
                self.await_open(server.port())?;
            }
            server.connect(client, dir)
        });
        ends.and_then(|ends| ends.check_complete(LIMIT))
            .map_err(|problem| problem.with(|| self.describe()))
    }

    /// `who.py` on a node, before it says that it listens.
    pub fn who(
        &self,
        at: At,
        gateway: &str,
        address: &str,
        port: u16,
        processes: u32,
    ) -> Verdict<Job> {
        let command = self.who_command(at, gateway, address, port, processes)?;
        self.fleet.start_program(command, "who")
    }

    fn who_command(
        &self,
        at: At,
        gateway: &str,
        address: &str,
        port: u16,
        processes: u32,
    ) -> Verdict<Command> {
        let python = require("/usr/bin/python3")?;
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/gateway/who.py");
        let mut command = self.published(at, gateway, &python);
        command.arg(script).args([
            at.name(),
            address,
            &port.to_string(),
            &processes.to_string(),
        ]);
        Ok(command)
    }

    /// The same, serving after it has executed itself without an environment.
    pub fn serve_who_again(&self, at: At, address: &str, port: u16) -> Verdict<Job> {
        let mut command = self.who_command(at, "gw", address, port, 1)?;
        command.arg("again");
        let mut job = self.fleet.start_program(command, "who")?;
        job.await_text("ready", LIMIT)?;
        Ok(job)
    }

    /// The same, serving.
    pub fn serve_who(&self, at: At, address: &str, port: u16, processes: u32) -> Verdict<Job> {
        let mut job = self.who(at, "gw", address, port, processes)?;
        job.await_text("ready", LIMIT)?;
        Ok(job)
    }

    /// A connection from the client to the gateway.
    pub fn connect(&self, family: u8, port: u16) -> io::Result<TcpStream> {
        let at = SocketAddr::new(outside(family), port);
        let stream = self.host(At::Client).inside(|| TcpStream::connect(at))?;
        stream.set_read_timeout(Some(LIMIT))?;
        Ok(stream)
    }

    /// Connects until a node has said who it is.
    pub fn meet(&self, family: u8, port: u16) -> Verdict<Met> {
        let mut met = None;
        let is_met = wait_until(LIMIT, || {
            met = self.try_meet(family, port).ok();
            Ok(met.is_some())
        })?;
        match met.filter(|_| is_met) {
            Some(met) => Ok(met),
            None => fail(format!("nobody serves port {port}\n{}", self.describe())),
        }
    }

    /// Connects until the node has said who it is, so that it is known to be one of those that serve the port.
    pub fn meet_at(&self, at: At, family: u8, port: u16) -> Verdict<Met> {
        let mut met = None;
        wait_until(LIMIT, || {
            met = self.try_meet(family, port).ok();
            Ok(met.as_ref().is_some_and(|met| met.name == at.name()))
        })?;
        match met.filter(|met| met.name == at.name()) {
            Some(met) => Ok(met),
            None => fail(format!("{at:?} does not serve {port}\n{}", self.describe())),
        }
    }

    pub fn try_meet(&self, family: u8, port: u16) -> io::Result<Met> {
        let stream = self.connect(family, port)?;
        let mut reader = BufReader::new(stream);
        let mut line = String::new();
        reader.read_line(&mut line)?;
        let words: Vec<&str> = line.split_whitespace().collect();
        let [name, peer, peer_port, own, own_port] = words[..] else {
            return Err(io::Error::other(format!("it says {line:?}")));
        };
        let address = |ip: &str, port: &str| {
            let ip: IpAddr = ip.parse().map_err(io::Error::other)?;
            let port = port.parse().map_err(io::Error::other)?;
            Ok::<_, io::Error>(SocketAddr::new(ip.to_canonical(), port))
        };
        Ok(Met {
            name: name.to_owned(),
            peer: address(peer, peer_port)?,
            own: address(own, own_port)?,
            reader,
        })
    }

    /// What the daemons and the gateway have said.
    pub fn describe(&self) -> String {
        let gateway = self.gateway.as_ref().map(Job::describe).unwrap_or_default();
        format!("{}\n{gateway}", self.fleet.describe())
    }

    pub fn is_open(&self, port: u16) -> Verdict<bool> {
        Ok(self.host(At::Gateway).is_listening(Protocol::Tcp, port)?)
    }

    /// Waits until the gateway accepts connections to the port.
    pub fn await_open(&self, port: u16) -> Verdict {
        let open = wait_until(LIMIT, || {
            self.host(At::Gateway).is_listening(Protocol::Tcp, port)
        })?;
        ensure(open, || {
            format!("port {port} is not open\n{}", self.describe())
        })
    }

    pub fn await_closed(&self, port: u16) -> Verdict {
        let closed = wait_until(LIMIT, || {
            Ok(!self.host(At::Gateway).is_listening(Protocol::Tcp, port)?)
        })?;
        ensure(closed, || {
            format!("port {port} is still open\n{}", self.describe())
        })
    }
}

/// What a node has said of a connection.
pub struct Met {
    pub name: String,
    pub peer: SocketAddr,
    pub own: SocketAddr,
    pub reader: BufReader<TcpStream>,
}

impl Met {
    /// Sends these bytes and reads them back.
    pub fn echo(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.reader.get_mut().write_all(bytes)?;
        let mut got = vec![0; bytes.len()];
        self.reader.read_exact(&mut got)?;
        if got == bytes {
            Ok(())
        } else {
            Err(io::Error::other("other bytes came back"))
        }
    }

    /// Waits for a reset.
    pub fn expect_reset(&mut self) -> Verdict {
        match self.reader.read(&mut [0; 1]) {
            Err(error) if error.kind() == io::ErrorKind::ConnectionReset => Ok(()),
            other => fail(format!("no reset but {other:?}")),
        }
    }
}
