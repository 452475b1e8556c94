//! A client, a gateway, and two application nodes behind it. Nothing but the gateway reaches the
//! nodes from the client's side: no packet is forwarded.

use std::fs;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpStream};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use rustix::process::Signal;
use sluice_tests::hosts::ports::Protocol;
use sluice_tests::hosts::{Host, Settings, wire};
use sluice_tests::job::{Job, command, wait_until};
use sluice_tests::lab::find_sluice;
use sluice_tests::stats::{self, Totals};
use sluice_tests::suite::{Verdict, ensure, fail, skip};
use tempfile::TempDir;

pub const LIMIT: Duration = Duration::from_secs(120);

const CONTROL_PORT: u16 = 4797;
const KEY: &str = "00112233445566778899aabbccddeeff00112233445566778899aabbccddeeff";

/// The ports that the gateway lets node a publish. One that takes a right to be opened:
pub const LOW_PORT: u16 = 80;
pub const PORT: u16 = 8080;
pub const PORT_OF_BOTH: u16 = 8081;
pub const FORBIDDEN_PORT: u16 = 8999;

/// Hosts, by their place in [`Lab::hosts`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum At {
    Client,
    Gateway,
    NodeA,
    NodeB,
}

const ALL: [At; 4] = [At::Client, At::Gateway, At::NodeA, At::NodeB];
/// Those with a daemon.
pub const DAEMONS: [At; 3] = [At::Gateway, At::NodeA, At::NodeB];

impl At {
    pub fn name(self) -> &'static str {
        ["client", "gw", "a", "b"][self as usize]
    }

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

pub struct Lab {
    sluice: PathBuf,
    hosts: Vec<Host>,
    daemons: [Option<Job>; 4],
    gateway: Option<Job>,
    starts: u32,
    // Behind the jobs: their files are in it.
    dir: TempDir,
}

impl Lab {
    /// Daemons that have found each other, and a gateway that serves.
    pub fn new() -> Verdict<Lab> {
        sluice_tests::hosts::require_root()?;
        let sluice = find_sluice()?;
        let dir = tempfile::Builder::new().prefix("sluice-gw-").tempdir()?;
        let mut hosts = Vec::new();
        for at in ALL {
            hosts.push(Host::new(dir.path(), at.name(), at.addresses())?);
        }
        let mut lab = Lab {
            sluice,
            hosts,
            daemons: [const { None }; 4],
            gateway: None,
            starts: 0,
            dir,
        };
        lab.wire()?;
        fs::write(lab.path("stats"), "")?;
        for at in DAEMONS {
            lab.start_daemon(at)?;
        }
        lab.await_session(At::NodeA)?;
        lab.await_session(At::NodeB)?;
        lab.start_gateway()?;
        Ok(lab)
    }

    /// One wire to the client, and a bridge in the gateway with a wire to each node.
    fn wire(&mut self) -> Verdict {
        let settings = Settings::default();
        let space = |at: At| self.host(at).namespace();
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
        let gateway = self.host(At::Gateway);
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

    pub fn host(&self, at: At) -> &Host {
        &self.hosts[at as usize]
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    fn file(&self, at: At, what: &str) -> PathBuf {
        self.path(&format!("{}.{what}", at.name()))
    }

    fn config(&self, at: At) -> Verdict<PathBuf> {
        let key = self.file(at, "key");
        fs::write(&key, format!("{KEY}\n"))?;
        fs::set_permissions(&key, fs::Permissions::from_mode(0o600))?;
        let control = |at: At| SocketAddr::new(self.host(at).v4().into(), CONTROL_PORT);
        let mut text = format!(
            "[daemon]\nname = \"{}\"\nlisten = [\"{}\"]\npsk_file = \"{}\"\n\
             [fabric]\ndevice = \"roce-udp\"\n",
            at.name(),
            control(at),
            key.display(),
        );
        let mut peer = |other: At| {
            let host = self.host(other);
            text += &format!(
                "[[peer]]\nname = \"{}\"\naddresses = [\"{}\", \"{}\"]\ncontrol = \"{}\"\n",
                other.name(),
                host.v4(),
                host.v6(),
                control(other),
            );
        };
        if at == At::Gateway {
            peer(At::NodeA);
            peer(At::NodeB);
            text += &format!(
                "[gateway]\naddresses = [\"{}\", \"{}\"]\n\
                 [[gateway.node]]\nname = \"a\"\nports = \"{LOW_PORT},{PORT},{PORT_OF_BOTH},32768-65535\"\n\
                 connect = [\"10.45.0.0/24\", \"fd45::/64\"]\n\
                 [[gateway.node]]\nname = \"b\"\nports = \"{PORT_OF_BOTH}\"\n",
                outside(4),
                outside(6),
            );
        } else {
            peer(At::Gateway);
            text += "[node]\ngateways = [\"gw\"]\n";
        }
        let path = self.file(at, "toml");
        fs::write(&path, text)?;
        Ok(path)
    }

    fn job(&mut self, command: Command, label: &str) -> Verdict<Job> {
        self.starts += 1;
        let label = format!("{label}-{}", self.starts);
        Job::start(command, self.dir.path(), &label)
    }

    pub fn start_daemon(&mut self, at: At) -> Verdict {
        let config = self.config(at)?;
        let socket = self.file(at, "sock");
        let _ = fs::remove_file(&socket);
        let mut command = self.host(at).command(self.sluice.with_file_name("sluiced"));
        command
            .arg("--socket")
            .arg(&socket)
            .arg("--config")
            .arg(&config)
            .args(["--eager", "--log", "info", "--log-file"])
            .arg(self.file(at, "log"));
        let mut job = self.job(command, &format!("sluiced-{}", at.name()))?;
        job.await_ready(LIMIT, "control socket", || socket.exists())?;
        self.daemons[at as usize] = Some(job);
        Ok(())
    }

    /// Kills the daemon of one host.
    pub fn kill_daemon(&mut self, at: At) -> Verdict {
        if let Some(job) = self.daemons[at as usize].take() {
            job.signal(Signal::KILL)?;
            let _ = job.finish(LIMIT)?;
        }
        Ok(())
    }

    /// Waits until the gateway's daemon has heard of the node once more than `before`.
    fn await_session(&self, node: At) -> Verdict {
        let line = format!("{} is up", node.name());
        self.await_log(At::Gateway, &line)
    }

    /// Waits for a line of the daemon's log.
    pub fn await_log(&self, at: At, text: &str) -> Verdict {
        let log = self.file(at, "log");
        let is_there = || Ok(fs::read_to_string(&log).is_ok_and(|log| log.contains(text)));
        ensure(wait_until(LIMIT, is_there)?, || {
            format!("no {text:?}\n{}", self.describe())
        })
    }

    pub fn start_gateway(&mut self) -> Verdict {
        let mut command = self.host(At::Gateway).command(&self.sluice);
        command
            .args(["gateway", "--log", "info", "--socket"])
            .arg(self.file(At::Gateway, "sock"))
            .env("SLUICE_STATS_FILE", self.path("stats"));
        let mut job = self.job(command, "gateway")?;
        let output = job.stdout_path().to_owned();
        job.await_ready(LIMIT, "gateway", || {
            fs::read_to_string(&output).is_ok_and(|text| text.contains("ready"))
        })?;
        self.gateway = Some(job);
        Ok(())
    }

    /// Ends the gateway's process with this signal.
    pub fn end_gateway(&mut self, signal: Signal) -> Verdict {
        if let Some(job) = self.gateway.take() {
            job.signal(signal)?;
            let _ = job.finish(LIMIT)?;
        }
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

    /// The gateway's process, which is the caller's from now on.
    pub fn take_gateway(&mut self) -> Verdict<Job> {
        match self.gateway.take() {
            Some(job) => Ok(job),
            None => fail("there is no gateway"),
        }
    }

    /// `sluice gateway` with these arguments.
    pub fn ask_gateway(&mut self, words: &[&str]) -> Verdict<String> {
        let mut command = self.host(At::Gateway).command(&self.sluice);
        command
            .arg("gateway")
            .args(words)
            .arg("--socket")
            .arg(self.file(At::Gateway, "sock"));
        Ok(self.job(command, "ask")?.finish(LIMIT)?.success()?.text())
    }

    /// A program on a node, published at the gateway.
    pub fn published(&self, at: At, gateway: &str, program: &Path) -> Command {
        let mut command = self.host(at).command(&self.sluice);
        command
            .args(["run", "--gateway", gateway, "--"])
            .arg(program)
            .env("SLUICE_SOCKET", self.file(at, "sock"))
            .env("SLUICE_STATS_FILE", self.path("stats"));
        command
    }

    pub fn start(&mut self, command: Command, label: &str) -> Verdict<Job> {
        self.job(command, label)
    }

    /// `who.py` on a node, before it says that it listens.
    pub fn who(
        &mut self,
        at: At,
        gateway: &str,
        address: &str,
        port: u16,
        processes: u32,
    ) -> Verdict<Job> {
        let python = Path::new("/usr/bin/python3");
        if !python.exists() {
            return skip("python3 is not installed");
        }
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/gateway/who.py");
        let mut command = self.published(at, gateway, python);
        command.arg(script).args([
            at.name(),
            address,
            &port.to_string(),
            &processes.to_string(),
        ]);
        self.start(command, "who")
    }

    /// The same, serving.
    pub fn serve_who(&mut self, at: At, address: &str, port: u16, processes: u32) -> Verdict<Job> {
        let mut job = self.who(at, "gw", address, port, processes)?;
        await_line(&mut job, "ready")?;
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
        let logs = DAEMONS.map(|at| {
            let log = fs::read_to_string(self.file(at, "log")).unwrap_or_default();
            format!("--- log of {}\n{log}", at.name())
        });
        let gateway = self.gateway.as_ref().map(Job::describe).unwrap_or_default();
        format!("{}\n{gateway}", logs.join("\n"))
    }

    /// What accelerated programs that have ended have counted.
    pub fn totals(&self) -> Verdict<Totals> {
        Ok(stats::read(&self.path("stats"))?)
    }

    pub fn require_ring_bytes(&self) -> Verdict {
        let totals = self.totals()?;
        ensure(totals.lane_bytes() > 0, || {
            format!("no byte went by a ring: {totals:?}\n{}", self.describe())
        })
    }

    pub fn is_open(&self, port: u16) -> Verdict<bool> {
        Ok(self.host(At::Gateway).is_listening(Protocol::Tcp, port)?)
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

/// Waits until a program has printed that.
pub fn await_line(job: &mut Job, text: &str) -> Verdict {
    let output = job.stdout_path().to_owned();
    job.await_ready(LIMIT, text, || {
        fs::read_to_string(&output).is_ok_and(|all| all.contains(text))
    })
}

/// A program of the client's.
pub fn on_client(lab: &Lab, program: &Path) -> Command {
    let mut command = command(program);
    lab.host(At::Client).place(&mut command);
    command
}
