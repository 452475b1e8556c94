//! Two hosts with a daemon each.

use std::fs;
use std::net::IpAddr;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use rustix::process::Signal;
use sluice_tests::apps::{self, BUILDS};
use sluice_tests::hosts::{Host, Pair, Settings};
use sluice_tests::job::{Job, wait_until};
use sluice_tests::lab::find_sluice;
use sluice_tests::stats::{self, Totals};
use sluice_tests::suite::{Verdict, ensure, fail};

pub const LIMIT: Duration = Duration::from_secs(180);

/// Where daemons listen for one another.
const PORT: u16 = 4797;

/// The key that both have, unless a test wants otherwise.
const KEY: &str = "00112233445566778899aabbccddeeff00112233445566778899aabbccddeeff";

/// Which of the two.
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

/// What differs from row to row.
#[derive(Clone, Copy, Debug)]
pub struct Way {
    pub device: &'static str,
    pub family: u8,
    /// Whether a fault injector lies between the hosts.
    pub faults: bool,
}

/// Hosts, daemons, and the statistics of programs.
pub struct Two {
    pub pair: Pair,
    pub way: Way,
    sluice: PathBuf,
    daemons: [Option<Job>; 2],
    keys: [&'static str; 2],
}

impl Two {
    /// Both daemons run, and have found each other.
    pub fn new(way: Way) -> Verdict<Two> {
        let mut two = Two::without_daemons(way)?;
        for side in SIDES {
            two.start(side)?;
        }
        two.await_session()?;
        Ok(two)
    }

    /// Daemons that do not have the same key.
    pub fn with_different_keys(way: Way) -> Verdict<Two> {
        let mut two = Two::without_daemons(way)?;
        two.keys[1] = "ff112233445566778899aabbccddeeff00112233445566778899aabbccddeeff";
        for side in SIDES {
            two.start(side)?;
        }
        Ok(two)
    }

    fn without_daemons(way: Way) -> Verdict<Two> {
        let sluice = find_sluice()?;
        let pair = Pair::new(Settings {
            faults: way.faults,
            ..Settings::default()
        })?;
        fs::write(pair.path().join("stats"), "")?;
        Ok(Two {
            pair,
            way,
            sluice,
            daemons: [None, None],
            keys: [KEY; 2],
        })
    }

    pub fn host(&self, side: Side) -> &Host {
        match side {
            Side::Left => &self.pair.left,
            Side::Right => &self.pair.right,
        }
    }

    pub fn address(&self, side: Side) -> IpAddr {
        self.host(side).address(self.way.family)
    }

    fn path(&self, side: Side, what: &str) -> PathBuf {
        self.pair.path().join(format!("{}.{what}", side.name()))
    }

    /// Starts the daemon of one host, which must not run.
    pub fn start(&mut self, side: Side) -> Verdict {
        let (own, other) = (self.address(side), self.address(side.other()));
        let at = |address: IpAddr| std::net::SocketAddr::new(address, PORT);
        let key = self.path(side, "key");
        fs::write(&key, format!("{}\n", self.keys[side as usize]))?;
        fs::set_permissions(&key, fs::Permissions::from_mode(0o600))?;
        let config = self.path(side, "toml");
        let text = format!(
            "[daemon]\nname = \"{}\"\nlisten = [\"{}\"]\npsk_file = \"{}\"\n\
             [fabric]\ndevice = \"{}\"\n\
             [[peer]]\nname = \"{}\"\naddresses = [\"{other}\"]\ncontrol = \"{}\"\n",
            side.name(),
            at(own),
            key.display(),
            self.way.device,
            side.other().name(),
            at(other),
        );
        fs::write(&config, text)?;
        let socket = self.path(side, "sock");
        let _ = fs::remove_file(&socket);
        let daemon = self.sluice.with_file_name("sluiced");
        let mut command = self.host(side).command(daemon);
        command
            .arg("--socket")
            .arg(&socket)
            .arg("--config")
            .arg(&config)
            .args(["--eager", "--log", "info", "--log-file"])
            .arg(self.path(side, "log"));
        let mut job = Job::start(
            command,
            self.pair.path(),
            &format!("sluiced-{}", side.name()),
        )?;
        job.await_ready(LIMIT, "control socket", || socket.exists())?;
        self.daemons[side as usize] = Some(job);
        Ok(())
    }

    /// Kills the daemon of one host.
    pub fn kill(&mut self, side: Side) -> Verdict {
        if let Some(job) = self.daemons[side as usize].take() {
            job.signal(Signal::KILL)?;
            let _ = job.finish(LIMIT)?;
        }
        Ok(())
    }

    /// Waits until each daemon has heard of the other.
    pub fn await_session(&self) -> Verdict {
        for side in SIDES {
            let log = self.path(side, "log");
            let found = format!("{} is up", side.other().name());
            let has_found = || Ok(fs::read_to_string(&log).is_ok_and(|text| text.contains(&found)));
            ensure(wait_until(LIMIT, has_found)?, || self.describe())?;
        }
        Ok(())
    }

    /// What the daemons have logged.
    pub fn describe(&self) -> String {
        let logs = SIDES.map(|side| fs::read_to_string(self.path(side, "log")).unwrap_or_default());
        format!(
            "--- log of left\n{}\n--- log of right\n{}",
            logs[0], logs[1]
        )
    }

    /// A program on one host, accelerated or not.
    pub fn command(&self, side: Side, is_accelerated: bool, program: &Path) -> Command {
        let mut command = if is_accelerated {
            let mut command = self.host(side).command(&self.sluice);
            command
                .args(["run", "--"])
                .arg(program)
                .env("SLUICE_SOCKET", self.path(side, "sock"))
                .env("SLUICE_STATS_FILE", self.pair.path().join("stats"));
            command
        } else {
            self.host(side).command(program)
        };
        command
            .env("APP_FAMILY", self.way.family.to_string())
            .env("APP_HOST", self.address(Side::Right).to_string());
        command
    }

    /// Starts it. `label` names its output.
    pub fn start_program(&self, command: Command, label: &str) -> Verdict<Job> {
        Job::start(command, self.pair.path(), label)
    }

    /// `tests/apps/stream.c`, built.
    pub fn stream(&self) -> Verdict<PathBuf> {
        let source = apps::apps_dir().join("stream.c");
        apps::compile(&source, BUILDS[0], self.pair.path())
    }

    /// What accelerated programs that have ended have counted.
    pub fn totals(&self) -> Verdict<Totals> {
        Ok(stats::read(&self.pair.path().join("stats"))?)
    }

    /// Fails unless bytes went by a lane.
    pub fn require_ring_bytes(&self) -> Verdict {
        let totals = self.totals()?;
        if totals.lane_bytes() > 0 {
            return Ok(());
        }
        fail(format!(
            "no byte went by a ring: {totals:?}\n{}",
            self.describe()
        ))
    }
}
