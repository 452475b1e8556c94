//! Two hosts, a daemon and a cgroup of programs on each.

use std::fs;
use std::net::{IpAddr, SocketAddr};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use sluice_tests::apps::{self, STATIC};
use sluice_tests::hosts::{Host, Pair, Settings};
use sluice_tests::job::{Job, command, find_program, run, wait_until};
use sluice_tests::lab::find_sluice;
use sluice_tests::suite::{Verdict, ensure, fail, skip};

pub const LIMIT: Duration = Duration::from_secs(120);

/// Where daemons listen for one another.
const PORT: u16 = 4797;
const KEY: &str = "00112233445566778899aabbccddeeff00112233445566778899aabbccddeeff";

/// Programs on the left host connect to such on the right one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    Left,
    Right,
}

pub const SIDES: [Side; 2] = [Side::Left, Side::Right];

impl Side {
    fn name(self) -> &'static str {
        match self {
            Side::Left => "left",
            Side::Right => "right",
        }
    }

    fn other(self) -> Side {
        match self {
            Side::Left => Side::Right,
            Side::Right => Side::Left,
        }
    }
}

/// A cgroup of version 2, which is removed with its last process.
struct Group {
    path: PathBuf,
}

impl Group {
    fn new(name: &str) -> Verdict<Group> {
        let mounts = fs::read_to_string("/proc/self/mountinfo")?;
        let mount = mounts.lines().find_map(|line| {
            let (mount, kind) = line.split_once(" - ")?;
            kind.starts_with("cgroup2 ").then_some(())?;
            mount.split(' ').nth(4)
        });
        let Some(mount) = mount else {
            return skip("no cgroup file system of version 2 is mounted");
        };
        let path = Path::new(mount).join(format!("sluice-capture-{}-{name}", std::process::id()));
        match fs::create_dir(&path) {
            Ok(()) => Ok(Group { path }),
            Err(error) => skip(format!("cgroups cannot be made here: {error}")),
        }
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        // Of programs that a test has left.
        let _ = fs::write(self.path.join("cgroup.kill"), "1");
        let _ = wait_until(LIMIT, || Ok(fs::remove_dir(&self.path).is_ok()));
    }
}

/// What a daemon has captured and served, of `sluice status --json`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    pub open: u64,
    pub captured: u64,
    pub direct: u64,
    pub served: u64,
    pub refused: u64,
}

/// Hosts and daemons.
pub struct Two {
    pub family: u8,
    sluice: PathBuf,
    daemons: [Option<Job>; 2],
    /// More of `[capture]`.
    choice: [&'static str; 2],
    // Programs end before their cgroups and hosts go.
    groups: [Group; 2],
    pub pair: Pair,
}

impl Two {
    /// Both daemons capture, and have found each other.
    pub fn new(family: u8) -> Verdict<Two> {
        Two::with_choice(family, ["", ""])
    }

    /// The same, with more in `[capture]`.
    pub fn with_choice(family: u8, choice: [&'static str; 2]) -> Verdict<Two> {
        let mut two = Two {
            family,
            sluice: find_sluice()?,
            daemons: [None, None],
            choice,
            pair: Pair::new(Settings::default())?,
            groups: [Group::new("left")?, Group::new("right")?],
        };
        for side in SIDES {
            two.start(side)?;
        }
        two.await_capture()?;
        Ok(two)
    }

    pub fn host(&self, side: Side) -> &Host {
        match side {
            Side::Left => &self.pair.left,
            Side::Right => &self.pair.right,
        }
    }

    pub fn address(&self, side: Side) -> IpAddr {
        self.host(side).address(self.family)
    }

    fn path(&self, side: Side, what: &str) -> PathBuf {
        self.pair.path().join(format!("{}.{what}", side.name()))
    }

    /// Starts the daemon of one host, which must not run.
    pub fn start(&mut self, side: Side) -> Verdict {
        let at = |side: Side| SocketAddr::new(self.host(side).v4().into(), PORT);
        let other = self.host(side.other());
        let key = self.path(side, "key");
        fs::write(&key, format!("{KEY}\n"))?;
        fs::set_permissions(&key, fs::Permissions::from_mode(0o600))?;
        let config = self.path(side, "toml");
        let text = format!(
            "[daemon]\nname = \"{}\"\nlisten = [\"{}\"]\npsk_file = \"{}\"\n\
             [fabric]\ndevice = \"roce-udp\"\n\
             [[peer]]\nname = \"{}\"\naddresses = [\"{}\", \"{}\"]\ncontrol = \"{}\"\n\
             [capture]\ncgroup = \"{}\"\n{}\n",
            side.name(),
            at(side),
            key.display(),
            side.other().name(),
            other.v4(),
            other.v6(),
            at(side.other()),
            self.groups[side as usize].path.display(),
            self.choice[side as usize],
        );
        fs::write(&config, text)?;
        let socket = self.path(side, "sock");
        let _ = fs::remove_file(&socket);
        let daemon = self.sluice.with_file_name("sluiced");
        let mut command = self.host(side).command(daemon);
        command.arg("--socket").arg(&socket).arg("--config");
        command.arg(&config).args(["--log", "info", "--log-file"]);
        command.arg(self.path(side, "log"));
        let label = format!("sluiced-{}", side.name());
        let mut job = Job::start(command, self.pair.path(), &label)?;
        job.await_ready(LIMIT, "control socket", || socket.exists())?;
        self.daemons[side as usize] = Some(job);
        Ok(())
    }

    /// Waits until connections from left to right are captured: a probe is.
    pub fn await_capture(&self) -> Verdict {
        let before = self.counts(Side::Left)?;
        let ends = self.ends()?;
        let mut server = self.server(&ends, "probe-server")?;
        let to = self.listening(&mut server)?;
        let end = std::time::Instant::now() + LIMIT;
        while self.counts(Side::Left)?.captured == before.captured {
            ensure(std::time::Instant::now() < end, || self.describe())?;
            let client = self.program(Side::Left, &ends, &["client", &to, "1"]);
            let client = Job::start(client, self.pair.path(), "probe")?;
            client.finish(LIMIT)?.success()?;
            std::thread::sleep(Duration::from_millis(50));
        }
        server.stop(LIMIT)?;
        self.await_counts(Side::Left, "the probe has ended", |now| {
            now.open <= before.open
        })?;
        // So that tests find no probe among theirs: relays tell a second later at most.
        let all = || -> Verdict<[Counts; 2]> {
            Ok([self.counts(Side::Left)?, self.counts(Side::Right)?])
        };
        let mut last = all()?;
        loop {
            std::thread::sleep(Duration::from_millis(1500));
            let now = all()?;
            // Others go on.
            let count = |all: [Counts; 2]| all.map(|one| (one.captured, one.direct, one.served));
            if count(now) == count(last) {
                return Ok(());
            }
            ensure(std::time::Instant::now() < end, || self.describe())?;
            last = now;
        }
    }

    /// Ends the daemon of one host: with SIGTERM cleanly.
    pub fn end(&mut self, side: Side, signal: Signal) -> Verdict {
        if let Some(job) = self.daemons[side as usize].take() {
            job.signal(signal)?;
            let _ = job.finish(LIMIT)?;
        }
        Ok(())
    }

    /// The relay that the daemon of this side has started.
    pub fn relay(&self, side: Side) -> Verdict<Pid> {
        let daemon = self.daemons[side as usize].as_ref().map(Job::id);
        let Some(daemon) = daemon else {
            return fail("there is no daemon");
        };
        let children = format!("/proc/{daemon}/task/{daemon}/children");
        let children = fs::read_to_string(children)?;
        let mut children = children.split_whitespace();
        let relay = children.find(|pid| {
            let line = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
            String::from_utf8_lossy(&line).contains("--capture-relay")
        });
        match relay.and_then(|pid| Pid::from_raw(pid.parse().ok()?)) {
            Some(pid) => Ok(pid),
            None => fail(format!("no relay\n{}", self.describe())),
        }
    }

    pub fn kill_relay(&self, side: Side) -> Verdict {
        kill_process(self.relay(side)?, Signal::KILL).map_err(std::io::Error::from)?;
        Ok(())
    }

    /// What the daemon has captured.
    pub fn counts(&self, side: Side) -> Verdict<Counts> {
        let status = self.status(side)?;
        let counts = &status["fabric"]["captured"];
        let count = |name: &str| counts[name].as_u64().unwrap_or(0);
        Ok(Counts {
            open: count("open"),
            captured: count("captured"),
            direct: count("direct"),
            served: count("served"),
            refused: count("refused"),
        })
    }

    /// `sluice status --json`.
    pub fn status(&self, side: Side) -> Verdict<Value> {
        let mut command = self.host(side).command(&self.sluice);
        command.args(["status", "--json"]);
        command.env("SLUICE_SOCKET", self.path(side, "sock"));
        let outcome = run(command, self.pair.path(), "status", LIMIT)?.success()?;
        let text = outcome.text();
        let all: Value =
            serde_json::from_str(&text).or_else(|error| fail(format!("{error}: {text}")))?;
        Ok(all["daemons"][0]["status"].clone())
    }

    /// Waits for counts, of which the daemon hears a second later.
    pub fn await_counts(
        &self,
        side: Side,
        what: &str,
        so: impl Fn(&Counts) -> bool,
    ) -> Verdict<Counts> {
        let end = std::time::Instant::now() + LIMIT;
        loop {
            let counts = self.counts(side)?;
            if so(&counts) {
                return Ok(counts);
            }
            ensure(std::time::Instant::now() < end, || {
                format!("{what}: {counts:?}\n{}", self.describe())
            })?;
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    /// What the daemons have logged.
    pub fn describe(&self) -> String {
        let logs = SIDES.map(|side| fs::read_to_string(self.path(side, "log")).unwrap_or_default());
        format!(
            "--- log of left\n{}\n--- log of right\n{}",
            logs[0], logs[1]
        )
    }

    /// A program in the cgroup of its host, on which nothing is preloaded.
    pub fn program(&self, side: Side, program: &Path, arguments: &[&str]) -> Command {
        let mut command = self.host(side).command("/bin/sh");
        // Sockets belong to the cgroup in which their process was.
        command
            .args(["-c", "echo $$ > \"$0\" && exec \"$@\""])
            .arg(self.groups[side as usize].path.join("cgroup.procs"))
            .arg(program)
            .args(arguments)
            .env("APP_FAMILY", self.family.to_string())
            .env("APP_HOST", self.address(Side::Right).to_string());
        command
    }

    /// A program in the cgroup of its host, under `sluice run`.
    pub fn accelerated(&self, side: Side, arguments: &[&str]) -> Command {
        let arguments = [&["run", "--"], arguments].concat();
        let mut command = self.program(side, &self.sluice, &arguments);
        command.env("SLUICE_SOCKET", self.path(side, "sock"));
        command
    }

    pub fn start_program(&self, command: Command, label: &str) -> Verdict<Job> {
        Job::start(command, self.pair.path(), label)
    }

    /// `tests/apps/go/ends.go`, linked statically.
    pub fn ends(&self) -> Verdict<PathBuf> {
        let binary = self.pair.path().join("ends");
        if !binary.exists() {
            let Some(go) = find_program("go") else {
                return skip("go is not installed; run scripts/setup test");
            };
            let mut build = command(go);
            build.args(["build", "-o"]).arg(&binary);
            build.arg(apps::apps_dir().join("go/ends.go"));
            build.env("CGO_ENABLED", "0").env("GO111MODULE", "off");
            run(build, self.pair.path(), "go-build", LIMIT * 2)?.success()?;
        }
        Ok(binary)
    }

    /// `tests/apps/stream.c`, linked statically.
    pub fn stream(&self) -> Verdict<PathBuf> {
        apps::compile(&apps::apps_dir().join("stream.c"), STATIC, self.pair.path())
    }

    /// A Go server on the right host.
    pub fn server(&self, ends: &Path, label: &str) -> Verdict<Job> {
        let any = SocketAddr::new(self.address(Side::Right), 0).to_string();
        self.start_program(self.program(Side::Right, ends, &["server", &any]), label)
    }

    /// Where it listens.
    pub fn listening(&self, server: &mut Job) -> Verdict<String> {
        let port = sluice_tests::stream::await_port(server, LIMIT)?;
        Ok(SocketAddr::new(self.address(Side::Right), port).to_string())
    }
}
