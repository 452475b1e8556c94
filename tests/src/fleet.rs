//! Hosts with a `sluiced` on each, and programs that use it.
//!
//! What hosts these are the suite says: [`Pair`] is two of them, and whatever else implements
//! [`Hosts`].

use std::collections::BTreeMap;
use std::fs;
use std::net::{IpAddr, SocketAddr};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use rustix::process::Signal;
use serde_json::Value;

use crate::hosts::{Host, Pair, SIDES, Side};
use crate::job::{Job, run, wait_until};
use crate::lab::find_sluice;
use crate::stats::{self, Totals};
use crate::stream;
use crate::suite::{Verdict, ensure, fail};

/// How long anything may take that takes seconds when all is well.
pub const LIMIT: Duration = Duration::from_secs(180);

/// Where daemons listen for one another.
const CONTROL_PORT: u16 = 4797;

/// Every byte of the key that daemons have unless a test wants otherwise.
pub const KEY: u8 = 0x5a;

/// A name for a host.
pub trait Place: Copy + 'static {
    /// The hosts with a daemon.
    const DAEMONS: &'static [Self];

    /// In configurations, names of files, and error messages.
    fn name(self) -> &'static str;
}

/// The hosts of a test, and its directory.
pub trait Hosts {
    type Place: Place;

    fn host(&self, at: Self::Place) -> &Host;

    /// Is removed with the hosts.
    fn path(&self) -> &Path;
}

impl Place for Side {
    const DAEMONS: &'static [Side] = &SIDES;

    fn name(self) -> &'static str {
        Side::name(self)
    }
}

impl Hosts for Pair {
    type Place = Side;

    fn host(&self, at: Side) -> &Host {
        Pair::host(self, at)
    }

    fn path(&self) -> &Path {
        Pair::path(self)
    }
}

struct Daemon {
    job: Job,
    /// What its predecessors have logged, in bytes.
    log_start: usize,
}

/// Hosts, daemons, and the statistics of programs.
pub struct Fleet<H: Hosts> {
    // Before the hosts: it ends before they go.
    daemons: BTreeMap<&'static str, Daemon>,
    /// Whose `sluiced` and libraries are beside it.
    pub sluice: PathBuf,
    /// The version of IP by which daemons talk, 4 or 6.
    family: u8,
    options: Vec<String>,
    started: AtomicU32,
    pub hosts: H,
}

impl<H: Hosts> Fleet<H> {
    /// Starts no daemon yet. Those that are will have these `options`.
    ///
    /// Skips when there is no `sluice` to test.
    pub fn new(hosts: H, family: u8, options: &[&str]) -> Verdict<Fleet<H>> {
        let fleet = Fleet {
            daemons: BTreeMap::new(),
            sluice: find_sluice()?,
            family,
            options: options.iter().map(|&option| option.to_owned()).collect(),
            started: AtomicU32::new(0),
            hosts,
        };
        // The library appends to this file but never makes it.
        fs::write(fleet.stats(), "")?;
        Ok(fleet)
    }

    pub fn host(&self, at: H::Place) -> &Host {
        self.hosts.host(at)
    }

    /// Of the version of IP by which daemons talk.
    pub fn address(&self, at: H::Place) -> IpAddr {
        self.host(at).address(self.family)
    }

    /// The test's directory, which goes with its hosts.
    pub fn dir(&self) -> &Path {
        self.hosts.path()
    }

    /// A file of a host's.
    pub fn path(&self, at: H::Place, what: &str) -> PathBuf {
        self.dir().join(format!("{}.{what}", at.name()))
    }

    pub fn socket(&self, at: H::Place) -> PathBuf {
        self.path(at, "sock")
    }

    fn stats(&self) -> PathBuf {
        self.dir().join("stats")
    }
}

/// Configurations.
impl<H: Hosts> Fleet<H> {
    /// Where the daemon of a host listens for others.
    pub fn control(&self, at: H::Place) -> SocketAddr {
        SocketAddr::new(self.address(at), CONTROL_PORT)
    }

    /// `[daemon]` and `[fabric]` of a host, whose key is `key` again and again.
    pub fn head(&self, at: H::Place, key: u8, device: &str) -> Verdict<String> {
        let file = self.path(at, "key");
        fs::write(&file, format!("{key:02x}").repeat(32) + "\n")?;
        fs::set_permissions(&file, fs::Permissions::from_mode(0o600))?;
        Ok(format!(
            "[daemon]\nname = \"{}\"\nlisten = [\"{}\"]\npsk_file = \"{}\"\n\
             [fabric]\ndevice = \"{device}\"\n",
            at.name(),
            self.control(at),
            file.display(),
        ))
    }

    /// The `[[peer]]` that others have of a host: it has the address at which its daemon listens.
    pub fn peer(&self, at: H::Place) -> String {
        let (name, control) = (at.name(), self.control(at));
        format!("[[peer]]\nname = \"{name}\"\ncontrol = \"{control}\"\n")
    }

    /// The same with the addresses of both versions of IP.
    pub fn peer_by_both(&self, at: H::Place) -> String {
        let host = self.host(at);
        self.peer(at) + &format!("addresses = [\"{}\", \"{}\"]\n", host.v4(), host.v6())
    }

    pub fn write_config(&self, at: H::Place, text: &str) -> Verdict<PathBuf> {
        let path = self.path(at, "toml");
        fs::write(&path, text)?;
        Ok(path)
    }
}

/// Daemons.
impl<H: Hosts> Fleet<H> {
    /// `sluiced` inside a host, with the configuration that was written last and the fleet's
    /// options.
    pub fn daemon_command(&self, at: H::Place) -> Command {
        let mut command = self.host(at).command(self.sluice.with_file_name("sluiced"));
        command
            .arg("--socket")
            .arg(self.socket(at))
            .arg("--config")
            .arg(self.path(at, "toml"))
            .args(["--log", "info", "--log-file"])
            .arg(self.path(at, "log"))
            .args(&self.options);
        command
    }

    /// Starts the daemon of a host, which must not run.
    pub fn start(&mut self, at: H::Place) -> Verdict {
        self.start_by(at, self.daemon_command(at))
    }

    /// The same by a command like [`Fleet::daemon_command`]'s. Programs can connect when this
    /// returns.
    pub fn start_by(&mut self, at: H::Place, command: Command) -> Verdict {
        let _ = fs::remove_file(self.socket(at));
        let log_start = self.log(at).len();
        let mut job = self.start_program(command, &format!("sluiced-{}", at.name()))?;
        job.await_ready(LIMIT, "answer", || self.status(at).is_ok())?;
        self.daemons.insert(at.name(), Daemon { job, log_start });
        Ok(())
    }

    pub fn daemon(&self, at: H::Place) -> Verdict<&Job> {
        match self.daemons.get(at.name()) {
            Some(daemon) => Ok(&daemon.job),
            None => fail(format!("no daemon was started on {}", at.name())),
        }
    }

    /// The daemon of a host, which is the caller's from now on.
    pub fn take_daemon(&mut self, at: H::Place) -> Verdict<Job> {
        match self.daemons.remove(at.name()) {
            Some(daemon) => Ok(daemon.job),
            None => fail(format!("no daemon was started on {}", at.name())),
        }
    }

    /// Ends the daemon of a host with this signal.
    pub fn end(&mut self, at: H::Place, signal: Signal) -> Verdict {
        let daemon = self.take_daemon(at)?;
        daemon.signal(signal)?;
        daemon.finish(LIMIT)?;
        Ok(())
    }

    pub fn log(&self, at: H::Place) -> String {
        fs::read_to_string(self.path(at, "log")).unwrap_or_default()
    }

    /// Waits until the daemon that runs now has logged that.
    pub fn await_log(&self, at: H::Place, text: &str) -> Verdict {
        let start = self.daemons.get(at.name()).map_or(0, |it| it.log_start);
        let is_there = || {
            Ok(self
                .log(at)
                .get(start..)
                .is_some_and(|it| it.contains(text)))
        };
        ensure(wait_until(LIMIT, is_there)?, || {
            format!("no {text:?}\n{}", self.describe())
        })
    }

    /// What all daemons have logged.
    pub fn describe(&self) -> String {
        let logs = H::Place::DAEMONS.iter();
        let logs = logs.map(|&at| format!("--- log of {}\n{}", at.name(), self.log(at)));
        logs.collect::<Vec<String>>().join("\n")
    }

    /// What the daemon of a host says of itself.
    pub fn status(&self, at: H::Place) -> Verdict<Value> {
        self.status_by(at, &self.socket(at))
    }

    /// The same of one that has another socket.
    pub fn status_by(&self, at: H::Place, socket: &Path) -> Verdict<Value> {
        let mut command = self.host(at).command(&self.sluice);
        command.args(["status", "--json", "--socket"]).arg(socket);
        let label = format!("{}-status", at.name());
        let outcome = run(command, self.dir(), &label, LIMIT)?.success()?;
        let all: Value = serde_json::from_slice(&outcome.stdout)
            .or_else(|error| fail(format!("{error}: {}", outcome.describe())))?;
        let status = all["daemons"][0]["status"].clone();
        ensure(status.is_object(), || outcome.describe())?;
        Ok(status)
    }

    /// Waits until each daemon has a link to every peer of its configuration.
    pub fn await_links(&self) -> Verdict {
        for &at in H::Place::DAEMONS {
            let mut last = Value::Null;
            let are_up = || {
                last = self.status(at).unwrap_or_default()["fabric"]["peers"].take();
                let peers = last.as_array();
                Ok(peers.is_some_and(|peers| peers.iter().all(|peer| peer["link"] == "up")))
            };
            let are_up = wait_until(LIMIT, are_up)?;
            ensure(are_up, || {
                format!("{} has {last}\n{}", at.name(), self.describe())
            })?;
        }
        Ok(())
    }
}

/// Runs it until what it comes to is as it must be, which it has the time for. All may be said on TCP before two
/// daemons on a busy machine have agreed on a lane.
pub fn repeat_until(
    limit: Duration,
    mut run: impl FnMut() -> Verdict,
    judge: impl Fn() -> Verdict,
) -> Verdict {
    let until = Instant::now() + limit;
    loop {
        run()?;
        let judged = judge();
        if judged.is_ok() || Instant::now() > until {
            return judged;
        }
    }
}

/// Programs.
impl<H: Hosts> Fleet<H> {
    /// `sluice` with the words, inside a host and with its daemon.
    pub fn sluice(&self, at: H::Place, words: &[&str]) -> Command {
        let mut command = self.host(at).command(&self.sluice);
        command
            .args(words)
            .env("SLUICE_SOCKET", self.socket(at))
            .env("SLUICE_STATS_FILE", self.stats());
        command
    }

    /// Starts a program. `label` begins the names of its outputs.
    pub fn start_program(&self, command: Command, label: &str) -> Verdict<Job> {
        let number = self.started.fetch_add(1, Ordering::Relaxed);
        Job::start(command, self.dir(), &format!("{label}-{number}"))
    }

    /// Runs it to its end and requires status 0; what it printed.
    pub fn run_program(&self, command: Command, label: &str) -> Verdict<String> {
        let outcome = self.start_program(command, label)?.finish(LIMIT)?;
        Ok(outcome.success()?.text())
    }

    /// What accelerated programs that have ended have counted.
    pub fn totals(&self) -> Verdict<Totals> {
        Ok(stats::read(&self.stats())?)
    }

    /// Runs it until bytes have gone by a lane, and fails if they never do.
    pub fn run_until_ring_bytes(&self, run: impl FnMut() -> Verdict) -> Verdict {
        repeat_until(LIMIT, run, || self.require_ring_bytes())
    }

    /// Fails unless bytes went by a lane.
    pub fn require_ring_bytes(&self) -> Verdict {
        let totals = self.totals()?;
        ensure(totals.lane_bytes() > 0, || {
            let at = H::Place::DAEMONS.iter();
            let counted = at.map(|&at| match self.status(at) {
                Ok(status) => format!("--- {} has counted {}\n", at.name(), status["counters"]),
                Err(_) => format!("--- {} does not say what it has counted\n", at.name()),
            });
            let counted: String = counted.collect();
            let logs = self.describe();
            format!("no byte went by a ring: {totals:?}\n{counted}{logs}")
        })
    }
}

impl Fleet<Pair> {
    /// Gives both hosts the other one as their peer, starts their daemons, and waits until they
    /// have found each other.
    pub fn start_both(&mut self, device: &str) -> Verdict {
        for side in SIDES {
            let text = self.head(side, KEY, device)? + &self.peer(side.other());
            self.write_config(side, &text)?;
            self.start(side)?;
        }
        self.await_links()
    }

    /// What the daemon of one host says of the other.
    pub fn peer_status(&self, side: Side) -> Value {
        let status = self.status(side).unwrap_or_default();
        let peers = status["fabric"]["peers"].as_array();
        let name = side.other().name();
        let found = peers.into_iter().flatten().find(|it| it["name"] == name);
        found.cloned().unwrap_or_default()
    }

    /// A program on one host, accelerated or not, that meets another one on the right host.
    pub fn program(&self, side: Side, is_accelerated: bool, program: &Path) -> Command {
        let mut command = if is_accelerated {
            let mut command = self.sluice(side, &["run", "--"]);
            command.arg(program);
            command
        } else {
            self.host(side).command(program)
        };
        stream::meet_at(&mut command, self.address(Side::Right));
        command
    }
}
