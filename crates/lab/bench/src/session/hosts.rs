//! Two hosts whose programs have lanes between them: a network and, where a variant wants them, a
//! `sluiced` on each, or another proxy to compare with.

use std::fs;
use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use sluice_lab::cgroup::Cgroup;

use super::{Session, daemon_number, private};
use crate::cgroup;
use crate::error::{BenchError, Result};
use crate::installation;
use crate::machine;
use crate::model::{LANES, RING_SHARE, Sample, Variant};
use crate::network::{End, Network};
use crate::process::{Output, Process, Ready};
use crate::signals;
use crate::usage;
use crate::words::{path_text, words};

/// Of the link, in bytes: what most networks have.
const MTU: u32 = 1500;
/// Where the daemons listen for each other. The namespaces are our own.
const CONTROL_PORT: u16 = 4797;
/// Where the proxies that use SK_MSG find each other.
const SKMSG_PORT: u16 = 4799;
/// How long two daemons may take to find each other.
const PATIENCE: Duration = Duration::from_secs(20);
/// Daemons that have just found each other expect packets and steer them past the kernel, for a fifth
/// of a second, which slows others on the device. What is measured is what comes after.
const SETTLED: Duration = Duration::from_millis(300);

/// What moves lanes' bytes between hosts that share nothing.
const ROCE: &str = "roce";

/// Which of the two.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Side {
    Server,
    Client,
}

const SIDES: [Side; 2] = [Side::Server, Side::Client];

impl Side {
    fn name(self) -> &'static str {
        match self {
            Self::Server => "server",
            Self::Client => "client",
        }
    }
}

/// Both hosts of one measurement. Everything in them ends with this.
#[derive(Debug)]
pub struct Hosts<'a> {
    session: &'a Session,
    variant: Variant,
    // Before the network that they are in. Of Sluice, or what it is compared with; none of kernel TCP.
    daemons: Vec<Process>,
    /// Serves the memory that both share, if they do; ends after the daemons.
    window: Option<Process>,
    /// The programs' groups, where the variant takes the connections of programs in a group.
    groups: Vec<Cgroup>,
    /// What accelerated programs write when they end.
    stats: PathBuf,
    folder: PathBuf,
    network: Network,
}

impl<'a> Hosts<'a> {
    /// Makes them; the daemons have found each other.
    pub fn new(session: &'a Session, variant: Variant) -> Result<Self> {
        let network = session.network(MTU)?;
        let folder = session.folder(&format!("hosts-{}", session.next_number()))?;
        fs::set_permissions(&folder, private())
            .map_err(|error| BenchError::io("protect the daemons' folder", &error))?;
        let stats = folder.join("stats");
        // Programs append to it, and make none.
        write(&stats, "")?;
        let mut hosts = Self {
            session,
            variant,
            daemons: Vec::new(),
            window: None,
            groups: Vec::new(),
            stats,
            folder,
            network,
        };
        if variant.has_capture() || variant == Variant::SkMsg {
            for side in SIDES {
                hosts
                    .groups
                    .push(Cgroup::new(&format!("bench-{}", side.name()))?);
            }
        }
        if variant.has_window() {
            hosts.serve_window()?;
        }
        if variant.has_window_device() {
            hosts.session.create_window(&hosts.window_file())?;
        }
        if variant.needs_sluice() {
            for side in SIDES {
                hosts.start_daemon(side)?;
            }
            hosts.await_peers()?;
        }
        if variant == Variant::SkMsg {
            hosts.start_proxies()?;
        }
        Ok(hosts)
    }

    /// What programs are started with.
    pub fn session(&self) -> &'a Session {
        self.session
    }

    /// Where programs on the server's host listen.
    pub fn address(&self) -> Ipv4Addr {
        self.network.server.address()
    }

    /// The host of one side.
    pub fn host(&self, side: Side) -> &End {
        match side {
            Side::Server => &self.network.server,
            Side::Client => &self.network.client,
        }
    }

    /// The process groups of both daemons and of what they have started, or of both proxies.
    pub fn daemon_groups(&self) -> Vec<i32> {
        let mut groups: Vec<i32> = self.daemons.iter().map(Process::group).collect();
        // A relay of captured connections has a group of its own.
        let relays = groups.iter().flat_map(|daemon| usage::children(*daemon));
        groups.extend(relays.collect::<Vec<i32>>());
        groups
    }

    /// The same, with who serves the memory that both share.
    pub fn groups_with_memory(&self) -> Vec<i32> {
        let mut groups = self.daemon_groups();
        groups.extend(self.window.as_ref().map(Process::group));
        groups
    }

    /// How many connections of programs on the client's host the daemon has captured; it hears of
    /// them a second later at most.
    pub fn captured(&self) -> Result<u64> {
        daemon_number(&self.socket(Side::Client), "/fabric/captured/captured")
    }

    /// Whether both proxies that use SK_MSG have got bytes of programs.
    pub fn carried(&self) -> bool {
        let has_carried = |proxy: &Process| proxy.output_so_far().contains("carries");
        self.daemons.iter().all(has_carried)
    }

    /// Starts a server and waits until it is up.
    pub fn server(&self, words: &[String], ready: &Ready) -> Result<Process> {
        self.server_on(Side::Server, words, ready)
    }

    /// The same on the host of either side.
    pub fn server_on(&self, side: Side, words: &[String], ready: &Ready) -> Result<Process> {
        let mut server = self.start(side, words, false)?;
        server.wait_ready(ready)?;
        Ok(server)
    }

    /// Starts a program that takes orders on its standard input.
    pub fn interactive(&self, side: Side, words: &[String]) -> Result<Process> {
        self.start(side, words, true)
    }

    /// Runs a client to its end; the time that it was told to take is `seconds`.
    pub fn client(&self, words: &[String], seconds: u32) -> Result<Output> {
        let argv = self.command_line(Side::Client, words);
        let host = Some(&self.network.client);
        self.session.to_its_end(host, &argv, seconds)
    }

    /// Runs a client and counts the CPU time that it, the servers, both daemons and the kernel's
    /// threads that carry frames use meanwhile.
    pub fn measured(&self, servers: &[&Process], words: &[String]) -> Result<(Output, Sample)> {
        let lanes_before = self.lanes_given()?;
        let argv = self.command_line(Side::Client, words);
        let host = Some(&self.network.client);
        let (output, mut sample) =
            self.session
                .watched(host, self.variant, servers, &self.daemon_groups(), &argv)?;
        self.note_lanes(lanes_before, &mut sample)?;
        self.ensure_direct()?;
        Ok((output, sample))
    }

    /// How many connections have got a lane to the other host; `None` in variants without Sluice.
    pub fn lanes_given(&self) -> Result<Option<u64>> {
        if !self.variant.needs_sluice() {
            return Ok(None);
        }
        let socket = self.socket(Side::Client);
        daemon_number(&socket, "/counters/matches_across_hosts").map(Some)
    }

    /// Puts down how many lanes there were since `before`, and what programs that have ended since
    /// the start sent and received by rings.
    pub fn note_lanes(&self, before: Option<u64>, sample: &mut Sample) -> Result<()> {
        if let (Some(before), Some(after)) = (before, self.lanes_given()?) {
            sample.details.insert(LANES, (after - before) as f64);
            let text = fs::read_to_string(&self.stats).unwrap_or_default();
            if let Some(share) = ring_share(&text) {
                sample.details.insert(RING_SHARE, share);
            }
        }
        Ok(())
    }

    /// Fails if hosts that share memory have moved bytes by their daemons.
    fn ensure_direct(&self) -> Result<()> {
        if !self.variant.has_window() {
            return Ok(());
        }
        for side in SIDES {
            for way in ["sent", "received"] {
                let pointer = format!("/fabric/peers/0/{way}_bytes");
                let bytes = daemon_number(&self.socket(side), &pointer)?;
                if bytes != 0 {
                    return Err(BenchError::Failed(format!(
                        "{bytes} bytes went by the daemons and not by the window"
                    )));
                }
            }
        }
        Ok(())
    }

    /// Where programs of both hosts can have a socket in the file system.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    fn window_socket(&self) -> PathBuf {
        self.folder.join("window.sock")
    }

    fn serve_window(&mut self) -> Result<()> {
        let mut server = self.session.window("serve", &self.window_socket())?;
        server.wait_ready(&Ready::Unix(self.window_socket()))?;
        self.window = Some(server);
        Ok(())
    }

    fn window_file(&self) -> PathBuf {
        self.folder.join("window")
    }

    fn start(&self, side: Side, words: &[String], with_input: bool) -> Result<Process> {
        let argv = self.command_line(side, words);
        let folder = self.session.scratch.path();
        Process::start_on(Some(self.host(side)), &argv, folder, with_input)
    }

    fn command_line(&self, side: Side, words: &[String]) -> Vec<String> {
        let accelerated = match side {
            Side::Server => self.variant.server_accelerated(),
            Side::Client => self.variant.client_accelerated(),
        };
        let socket = accelerated.then(|| self.socket(side));
        let mut argv = self.session.command_line_at(socket.as_deref(), words);
        if accelerated {
            let variable = format!("SLUICE_STATS_FILE={}", path_text(&self.stats));
            let is_delayed = self.variant == Variant::WindowDelayed;
            let delay = is_delayed.then(|| self.session.delay_variable());
            argv.splice(0..0, words!["env", variable].into_iter().chain(delay));
        }
        match self.groups.get(side as usize) {
            Some(group) => cgroup::within(group, &argv),
            None => argv,
        }
    }

    fn file(&self, side: Side, what: &str) -> PathBuf {
        self.folder.join(format!("{}.{what}", side.name()))
    }

    fn socket(&self, side: Side) -> PathBuf {
        self.file(side, "sock")
    }

    fn start_daemon(&mut self, side: Side) -> Result<()> {
        let (own, other) = match side {
            Side::Server => (&self.network.server, &self.network.client),
            Side::Client => (&self.network.client, &self.network.server),
        };
        let sluiced = installation::sluiced()?;
        let config = self.file(side, "toml");
        let group = self.groups.get(side as usize);
        let text = match group.map(|group| path_text(group.path())) {
            // Nobody else is on this network, so nobody has to prove anything.
            None => {
                let device = if self.variant.has_window_device() {
                    format!("window:{}", path_text(&self.window_file()))
                } else {
                    ROCE.to_owned()
                };
                let text = configuration(side, own, other, "authentication = \"none\"", &device);
                if self.variant.has_window() {
                    let path = path_text(&self.window_socket());
                    let user = rustix::process::geteuid().as_raw();
                    text + &format!("[[window]]\npath = \"{path}\"\nusers = [\"{user}\"]\n")
                } else {
                    text
                }
            }
            // But what captures wants it.
            Some(group) => {
                let key = self.file(side, "key");
                write(&key, &format!("{}\n", "5a".repeat(32)))?;
                fs::set_permissions(&key, secret())
                    .map_err(|error| BenchError::io("protect a key", &error))?;
                let proof = format!("psk_file = \"{}\"", path_text(&key));
                let over = match self.variant {
                    Variant::CaptureByDefault => "",
                    _ => "over = \"any\"\n",
                };
                configuration(side, own, other, &proof, ROCE)
                    + &format!("[capture]\n{over}cgroup = \"{group}\"\ndrain_seconds = 0\n")
            }
        };
        write(&config, &text)?;
        let mut words = words![
            path_text(&sluiced),
            "--foreground",
            "--socket",
            path_text(&self.socket(side)),
            "--config",
            path_text(&config),
            // Says which peers are up.
            "--log",
            "info",
            "--log-file",
            path_text(&self.file(side, "log")),
        ];
        if self.variant == Variant::SluiceRings {
            words.push("--eager".to_owned());
        }
        if self.variant == Variant::WindowDaemonsDelayed {
            words.splice(0..0, words!["env", self.session.delay_variable()]);
        }
        let folder = self.session.scratch.path();
        let mut daemon = Process::start_on(Some(own), &words, folder, false)?;
        daemon.wait_ready(&Ready::Unix(self.socket(side)))?;
        self.daemons.push(daemon);
        Ok(())
    }

    /// Starts both proxies that use SK_MSG; they have found each other.
    fn start_proxies(&mut self) -> Result<()> {
        let program = machine::find_program(machine::SKMSG)
            .ok_or_else(|| BenchError::Failed(format!("{} is gone", machine::SKMSG)))?;
        let at = format!("{}:{SKMSG_PORT}", self.address());
        for (side, role, said) in [
            (Side::Server, "--listen", "listening"),
            (Side::Client, "--connect", "up"),
        ] {
            let group = path_text(self.groups[side as usize].path());
            let words = words![path_text(&program), "--cgroup", group, role, at];
            let folder = self.session.scratch.path();
            let mut proxy = Process::start_on(Some(self.host(side)), &words, folder, false)?;
            proxy.wait_output(said, PATIENCE)?;
            self.daemons.push(proxy);
        }
        Ok(())
    }

    /// Waits until each daemon has said that it hears the other.
    fn await_peers(&mut self) -> Result<()> {
        let deadline = Instant::now() + PATIENCE;
        for (side, other) in [(SIDES[0], SIDES[1]), (SIDES[1], SIDES[0])] {
            let log = self.file(side, "log");
            let mut said = vec![format!("{} is up", other.name())];
            if self.variant.has_window() {
                said.push(format!("{} shares the window", other.name()));
            }
            let has_said = |text: &str| said.iter().all(|words| text.contains(words));
            while !fs::read_to_string(&log).is_ok_and(|text| has_said(&text)) {
                for daemon in &mut self.daemons {
                    daemon.ensure_running()?;
                }
                if Instant::now() > deadline {
                    let text = fs::read_to_string(&log).unwrap_or_default();
                    return Err(BenchError::Failed(format!(
                        "the daemons of the two hosts did not find each other: {text}"
                    )));
                }
                signals::pause(Duration::from_millis(5))?;
            }
        }
        signals::pause(SETTLED)
    }
}

impl Drop for Hosts<'_> {
    fn drop(&mut self) {
        self.daemons.clear();
        self.window = None;
        self.groups.clear();
        // Best effort: the scratch folder, which it is in, goes at the end.
        let _ = fs::remove_dir_all(&self.folder);
    }
}

fn secret() -> fs::Permissions {
    <fs::Permissions as std::os::unix::fs::PermissionsExt>::from_mode(0o600)
}

/// `proof` is how daemons prove to each other who they are, a line of `[daemon]`.
fn configuration(side: Side, own: &End, other: &End, proof: &str, device: &str) -> String {
    let (own, other_address) = (own.address(), other.address());
    let other = match side {
        Side::Server => Side::Client,
        Side::Client => Side::Server,
    };
    format!(
        "[daemon]\nname = \"{}\"\nlisten = [\"{own}:{CONTROL_PORT}\"]\n{proof}\n\
         [fabric]\ndevice = \"{device}\"\n\
         [[peer]]\nname = \"{}\"\naddresses = [\"{other_address}\"]\n\
         control = \"{other_address}:{CONTROL_PORT}\"\n",
        side.name(),
        other.name(),
    )
}

fn write(path: &Path, text: &str) -> Result<()> {
    fs::write(path, text)
        .map_err(|error| BenchError::io(format!("write {}", path.display()), &error))
}

/// Which part of the bytes in these lines, one for each process, went by rings. `None`: there were
/// no bytes.
fn ring_share(text: &str) -> Option<f64> {
    let (mut rings, mut all) = (0.0, 0.0);
    for line in text.lines() {
        let counters: serde_json::Value = serde_json::from_str(line).ok()?;
        let bytes = |name: &str| counters.get(name).and_then(serde_json::Value::as_f64);
        let by_rings = bytes("lane_rx_bytes")? + bytes("lane_tx_bytes")?;
        rings += by_rings;
        all += by_rings + bytes("tcp_rx_bytes")? + bytes("tcp_tx_bytes")?;
    }
    (all > 0.0).then(|| rings / all)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn share_of_rings_is_that_of_all_processes() {
        let line = |ring: u32, tcp: u32| {
            format!(
                "{{\"lane_rx_bytes\":{ring},\"lane_tx_bytes\":{ring},\"tcp_rx_bytes\":{tcp},\
                 \"tcp_tx_bytes\":{tcp}}}\n"
            )
        };
        assert_eq!(ring_share(""), None);
        assert_eq!(ring_share(&line(0, 0)), None);
        assert_eq!(ring_share(&(line(3, 0) + &line(0, 1))), Some(0.75));
        assert_eq!(ring_share("{}"), None, "says nothing");
    }
}
