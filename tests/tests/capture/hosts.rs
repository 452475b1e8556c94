//! Two hosts, a daemon and a cgroup of programs on each.

use std::fs;
use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use sluice_tests::apps::{self, STATIC};
use sluice_tests::cgroup::Cgroup;
use sluice_tests::fleet::{Fleet, KEY, LIMIT};
use sluice_tests::hosts::{Pair, SIDES, Settings, Side};
use sluice_tests::job::Job;
use sluice_tests::stream::{self, Ends, Transfer};
use sluice_tests::suite::{Verdict, ensure, fail};

/// What a daemon has captured and served, of `sluice status --json`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    pub open: u64,
    pub captured: u64,
    pub direct: u64,
    pub served: u64,
    pub refused: u64,
}

/// Hosts with daemons that capture what the programs in a cgroup do.
pub struct Two {
    /// Of programs; daemons talk by IPv4.
    family: u8,
    // Programs end before their hosts go.
    groups: [Cgroup; 2],
    pub fleet: Fleet<Pair>,
}

impl Two {
    /// Both daemons capture, and have found each other.
    pub fn new(family: u8) -> Verdict<Two> {
        Two::with_choice(family, ["", ""])
    }

    /// The same, with more in `[capture]`.
    pub fn with_choice(family: u8, choice: [&str; 2]) -> Verdict<Two> {
        let two = Two::over(family, ["any", "any"], choice)?;
        two.await_capture()?;
        // Of others that are open by then a daemon may hear later than of the probe.
        two.await_counts(Side::Left, "the probe has ended", |now| now.open == 0)?;
        Ok(two)
    }

    /// Daemons that are to capture over such devices, or leave connections to TCP.
    pub fn over(family: u8, over: [&str; 2], choice: [&str; 2]) -> Verdict<Two> {
        let mut fleet = Fleet::new(Pair::new(Settings::default())?, 4, &[])?;
        let groups = [Cgroup::new("capture-left")?, Cgroup::new("capture-right")?];
        for side in SIDES {
            let head = fleet.head(side, KEY, "roce-udp")? + &fleet.peer_by_both(side.other());
            let group = groups[side as usize].path().display();
            let (over, choice) = (over[side as usize], choice[side as usize]);
            let text =
                format!("{head}[capture]\nover = \"{over}\"\ncgroup = \"{group}\"\n{choice}\n");
            fleet.write_config(side, &text)?;
            fleet.start(side)?;
        }
        Ok(Two {
            family,
            groups,
            fleet,
        })
    }

    pub fn address(&self, side: Side) -> IpAddr {
        self.fleet.host(side).address(self.family)
    }

    /// Waits until connections from left to right are captured: a probe is.
    pub fn await_capture(&self) -> Verdict {
        let before = self.counts(Side::Left)?;
        let ends = self.ends()?;
        let mut server = self.server(&ends, "probe-server")?;
        let to = self.listening(&mut server)?;
        let end = Instant::now() + LIMIT;
        while self.counts(Side::Left)?.captured == before.captured {
            ensure(Instant::now() < end, || self.fleet.describe())?;
            self.run_client(&ends, &to, 1)?;
            std::thread::sleep(Duration::from_millis(50));
        }
        server.stop(LIMIT)?;
        // So that tests find no probe among theirs: relays tell a second later, or when they get a processor. What
        // came to the other relay, both have told; where one of them has forgotten, nothing more comes for long.
        const CALM: Duration = Duration::from_secs(10);
        let all = || -> Verdict<[Counts; 2]> {
            Ok([self.counts(Side::Left)?, self.counts(Side::Right)?])
        };
        let mut last = all()?;
        let mut since = Instant::now();
        loop {
            std::thread::sleep(Duration::from_millis(1500));
            let now = all()?;
            // Others go on.
            let count = |all: [Counts; 2]| all.map(|one| (one.captured, one.direct, one.served));
            let [left, right] = now;
            let is_told = left.captured - left.direct == right.served;
            if count(now) != count(last) {
                since = Instant::now();
            } else if is_told || since.elapsed() > CALM {
                return Ok(());
            }
            ensure(Instant::now() < end, || self.fleet.describe())?;
            last = now;
        }
    }

    /// The relay that the daemon of this side has started.
    pub fn relay(&self, side: Side) -> Verdict<Pid> {
        let daemon = self.fleet.daemon(side)?.id();
        let children = format!("/proc/{daemon}/task/{daemon}/children");
        let children = fs::read_to_string(children)?;
        let mut children = children.split_whitespace();
        let relay = children.find(|pid| {
            let line = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
            String::from_utf8_lossy(&line).contains("--capture-relay")
        });
        match relay.and_then(|pid| Pid::from_raw(pid.parse().ok()?)) {
            Some(pid) => Ok(pid),
            None => fail(format!("no relay\n{}", self.fleet.describe())),
        }
    }

    pub fn kill_relay(&self, side: Side) -> Verdict {
        kill_process(self.relay(side)?, Signal::KILL).map_err(std::io::Error::from)?;
        Ok(())
    }

    /// What the daemon has captured.
    pub fn counts(&self, side: Side) -> Verdict<Counts> {
        let status = self.fleet.status(side)?;
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

    /// Waits for counts, of which the daemon hears a second later.
    pub fn await_counts(
        &self,
        side: Side,
        what: &str,
        so: impl Fn(&Counts) -> bool,
    ) -> Verdict<Counts> {
        let end = Instant::now() + LIMIT;
        loop {
            let counts = self.counts(side)?;
            if so(&counts) {
                return Ok(counts);
            }
            ensure(Instant::now() < end, || {
                format!("{what}: {counts:?}\n{}", self.fleet.describe())
            })?;
            std::thread::sleep(Duration::from_millis(50));
        }
    }
}

/// Programs.
impl Two {
    /// A program in the cgroup of its host, on which nothing is preloaded.
    pub fn program(&self, side: Side, program: &Path, arguments: &[&str]) -> Command {
        let mut command = self.fleet.host(side).command("/bin/sh");
        // Sockets belong to the cgroup in which their process was.
        command
            .args(["-c", "echo $$ > \"$0\" && exec \"$@\""])
            .arg(self.groups[side as usize].processes())
            .arg(program)
            .args(arguments);
        stream::meet_at(&mut command, self.address(Side::Right));
        command
    }

    /// A program in the cgroup of its host, under `sluice run`.
    pub fn accelerated(&self, side: Side, arguments: &[&str]) -> Command {
        let arguments = [&["run", "--"], arguments].concat();
        let mut command = self.program(side, &self.fleet.sluice, &arguments);
        command.env("SLUICE_SOCKET", self.fleet.socket(side));
        command
    }

    /// `tests/apps/go/ends.go`, linked statically.
    pub fn ends(&self) -> Verdict<PathBuf> {
        apps::compile_go("ends.go", apps::Linked::Statically, self.fleet.dir())
    }

    /// Starts both ends of `tests/apps/stream.c`, linked statically.
    pub fn start_stream(&self, connections: usize, records: u32) -> Verdict<Ends> {
        let binary = stream::compile(STATIC, self.fleet.dir())?;
        let transfer = Transfer {
            server: "thread",
            connections,
            records,
        };
        let [server, client] =
            [Side::Right, Side::Left].map(|side| self.program(side, &binary, &[]));
        transfer.start(server, client, self.fleet.dir(), LIMIT)
    }

    /// A server of [`Two::ends`] on the right host.
    pub fn server(&self, ends: &Path, label: &str) -> Verdict<Job> {
        let any = SocketAddr::new(self.address(Side::Right), 0).to_string();
        let command = self.program(Side::Right, ends, &["server", &any]);
        self.fleet.start_program(command, label)
    }

    /// Where it listens.
    pub fn listening(&self, server: &mut Job) -> Verdict<String> {
        let port = stream::await_port(server, LIMIT)?;
        Ok(SocketAddr::new(self.address(Side::Right), port).to_string())
    }

    /// Runs a client of that server on the left host, which gets back the bytes that it sends.
    pub fn run_client(&self, program: &Path, to: &str, bytes: u32) -> Verdict {
        let arguments = ["client", to, &bytes.to_string()];
        let command = self.program(Side::Left, program, &arguments);
        self.fleet.run_program(command, "client")?;
        Ok(())
    }

    /// Starts one that goes on, a round after the other, until it is ended.
    pub fn start_rounds(&self, ends: &Path, to: &str) -> Verdict<Job> {
        let arguments = ["client", to, "1000000", "ping"];
        let command = self.program(Side::Left, ends, &arguments);
        self.fleet.start_program(command, "rounds")
    }
    /// A server on the right host, and a client on the left one whose rounds go on.
    pub fn talk(&self) -> Verdict<Talk> {
        let ends = self.ends()?;
        let mut server = self.server(&ends, "server")?;
        let to = self.listening(&mut server)?;
        let open = self.start_rounds(&ends, &to)?;
        Ok(Talk {
            ends,
            server,
            to,
            open,
        })
    }
}

/// A connection that stays open, and its server, which takes others.
pub struct Talk {
    /// The program of both ends.
    pub ends: PathBuf,
    pub server: Job,
    /// Where it listens.
    pub to: String,
    /// The client.
    pub open: Job,
}
