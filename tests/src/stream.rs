//! `tests/apps/stream.c`: checked records in both directions of some connections, from the first to
//! the last, or until one of the ends is killed.

use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process_group};

use crate::apps::{self, BUILDS, Build};
use crate::job::{Job, Outcome};
use crate::suite::{Verdict, ensure, fail};

/// How its server takes connections.
pub const SERVERS: [&str; 3] = ["thread", "fork", "prefork"];

/// When the victim of a [`Kill`] is killed. Not a measured time: any moment of the transfer will do,
/// this is one of them.
const MOMENT: Duration = Duration::from_millis(500);

/// Who is killed in mid-transfer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kill {
    Nobody,
    Client,
    Server,
}

impl Kill {
    /// What a transfer has as [`Transfer::records`] that has `all` when nobody is killed.
    pub fn records(self, all: u32) -> u32 {
        if self == Kill::Nobody { all } else { 0 }
    }
}

pub const KILLS: [Kill; 3] = [Kill::Nobody, Kill::Client, Kill::Server];

/// What its ends do.
#[derive(Clone, Copy, Debug)]
pub struct Transfer {
    /// One of [`SERVERS`].
    pub server: &'static str,
    pub connections: usize,
    /// Each end's of each connection; 0: until somebody ends it.
    pub records: u32,
}

/// A transfer whose server listens.
pub struct Listening {
    server: Job,
    port: u16,
    transfer: Transfer,
}

/// The ends of a transfer that has begun.
pub struct Ends {
    pub client: Job,
    pub server: Job,
    transfer: Transfer,
}

impl Transfer {
    /// Starts both ends, which get their arguments here; their outputs go to the directory.
    pub fn start(
        self,
        server: Command,
        client: Command,
        dir: &Path,
        limit: Duration,
    ) -> Verdict<Ends> {
        self.listen(server, dir, limit)?.connect(client, dir)
    }

    /// Starts the server alone.
    pub fn listen(self, mut server: Command, dir: &Path, limit: Duration) -> Verdict<Listening> {
        server.args(["server", self.server, &self.connections.to_string()]);
        let mut server = Job::start(server, dir, &label("server"))?;
        Ok(Listening {
            port: await_port(&mut server, limit)?,
            server,
            transfer: self,
        })
    }
}

impl Listening {
    /// Where the server listens.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// Starts the client.
    pub fn connect(self, mut client: Command, dir: &Path) -> Verdict<Ends> {
        let transfer = self.transfer;
        let numbers = [transfer.connections as u64, transfer.records.into()];
        client.args(["client", &self.port.to_string()]);
        client.args(numbers.map(|number| number.to_string()));
        Ok(Ends {
            client: Job::start(client, dir, &label("client"))?,
            server: self.server,
            transfer,
        })
    }
}

impl Ends {
    /// Both end by themselves, and every connection got all its records at both.
    pub fn check_complete(self, limit: Duration) -> Verdict {
        let Transfer {
            connections,
            records,
            ..
        } = self.transfer;
        check_complete(&self.client.finish(limit)?.success()?, connections, records)?;
        check_complete(&self.server.finish(limit)?.success()?, connections, records)
    }

    /// Waits until both ends have got something by every connection of a transfer that somebody has to end.
    pub fn await_flow(&mut self, limit: Duration) -> Verdict {
        for end in [&mut self.client, &mut self.server] {
            let output = end.stdout_path().to_owned();
            end.await_ready(limit, "flowing records", || {
                let text = std::fs::read_to_string(&output).unwrap_or_default();
                text.matches(": flows\n").count() == self.transfer.connections
            })?;
        }
        Ok(())
    }

    /// Kills an end with all its processes while records flow, and judges what the other one got.
    /// When it is nobody who is killed, both must have got everything.
    pub fn judge(mut self, kill: Kill, limit: Duration) -> Verdict {
        if kill != Kill::Nobody {
            self.await_flow(limit)?;
        }
        let (victim, survivor) = match kill {
            Kill::Nobody => return self.check_complete(limit),
            Kill::Client => (self.client, self.server),
            Kill::Server => (self.server, self.client),
        };
        thread::sleep(MOMENT);
        let Some(group) = Pid::from_raw(victim.id().try_into().unwrap_or(0)) else {
            return fail("the victim has no process id");
        };
        kill_process_group(group, Signal::KILL).map_err(std::io::Error::from)?;
        let outcome = survivor.finish(limit)?.success()?;
        check_cut(&outcome, self.transfer.connections)
    }
}

/// Begins the names of an end's outputs: there may be several transfers at a time.
fn label(end: &str) -> String {
    static STARTED: AtomicU32 = AtomicU32::new(0);
    let number = STARTED.fetch_add(1, Ordering::Relaxed);
    format!("stream-{end}-{number}")
}

/// Builds it in the directory.
pub fn compile(build: Build, dir: &Path) -> Verdict<PathBuf> {
    apps::compile(&apps::apps_dir().join("stream.c"), build, dir)
}

/// The same, as it usually is.
pub fn compile_plain(dir: &Path) -> Verdict<PathBuf> {
    compile(BUILDS[0], dir)
}

/// Tells a program of `tests/apps` at which address its server listens.
pub fn meet_at(command: &mut Command, address: IpAddr) {
    let family = if address.is_ipv4() { "4" } else { "6" };
    command
        .env("APP_FAMILY", family)
        .env("APP_HOST", address.to_string());
}

/// Waits until the server listens, and says where.
pub fn await_port(server: &mut Job, limit: Duration) -> Verdict<u16> {
    let output = server.stdout_path().to_owned();
    let mut port = None;
    server.await_ready(limit, "port", || {
        port = port_in(&std::fs::read_to_string(&output).unwrap_or_default());
        port.is_some()
    })?;
    match port {
        Some(port) => Ok(port),
        None => fail("the server printed no port"),
    }
}

fn port_in(text: &str) -> Option<u16> {
    let (line, _) = text.split_once('\n')?;
    line.strip_prefix("port ")?.parse().ok()
}

/// Every connection got all its records.
pub fn check_complete(outcome: &Outcome, connections: usize, records: u32) -> Verdict {
    let lines = connection_lines(outcome);
    let good = lines.len() == connections
        && lines
            .iter()
            .all(|(got, ended)| *got == u64::from(records) && ended == "done");
    ensure(good, || {
        format!("not all records arrived\n{}", outcome.describe())
    })
}

/// Every connection got an exact prefix, and then the end of the stream or a reset.
pub fn check_cut(outcome: &Outcome, connections: usize) -> Verdict {
    let lines = connection_lines(outcome);
    ensure(lines.len() == connections, || {
        format!("not every connection was reported\n{}", outcome.describe())
    })?;
    let mut received = 0;
    for (records, ended) in lines {
        received += records;
        ensure(ended == "eof" || ended == "reset", || {
            format!("a connection ended by {ended}\n{}", outcome.describe())
        })?;
    }
    ensure(received > 0, || {
        format!(
            "nothing was transferred before the kill\n{}",
            outcome.describe()
        )
    })
}

/// Of each "connection I: received N records, ended by X" line, N and X.
fn connection_lines(outcome: &Outcome) -> Vec<(u64, String)> {
    let text = outcome.text();
    text.lines()
        .filter_map(|line| {
            let (_, rest) = line.split_once(": received ")?;
            let (records, ended) = rest.split_once(" records, ended by ")?;
            Some((records.parse().ok()?, ended.to_string()))
        })
        .collect()
}
