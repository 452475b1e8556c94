//! Two hosts, and daemons with the options that a test wants.

use std::fs;
use std::io::{Read, Write};
use std::net::{IpAddr, SocketAddr, TcpStream};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use serde_json::Value;
use sluice_tests::apps::{self, BUILDS};
use sluice_tests::hosts::{Host, Pair, Settings};
use sluice_tests::job::{self, Job, wait_until};
use sluice_tests::lab::find_sluice;
use sluice_tests::stream;
use sluice_tests::suite::{Verdict, ensure, fail};

pub const LIMIT: Duration = Duration::from_secs(120);

/// Where figures are served, in each host's own network namespace.
pub const METRICS_PORT: u16 = 9797;
const CONTROL_PORT: u16 = 4797;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    Left,
    Right,
}

pub const SIDES: [Side; 2] = [Side::Left, Side::Right];

impl Side {
    pub fn name(self) -> &'static str {
        match self {
            Side::Left => "left",
            Side::Right => "right",
        }
    }

    pub fn other(self) -> Side {
        match self {
            Side::Left => Side::Right,
            Side::Right => Side::Left,
        }
    }
}

pub struct Two {
    pub pair: Pair,
    pub sluice: PathBuf,
}

impl Two {
    pub fn new() -> Verdict<Two> {
        let sluice = find_sluice()?;
        let pair = Pair::new(Settings::default())?;
        Ok(Two { pair, sluice })
    }

    pub fn host(&self, side: Side) -> &Host {
        match side {
            Side::Left => &self.pair.left,
            Side::Right => &self.pair.right,
        }
    }

    pub fn address(&self, side: Side) -> IpAddr {
        self.host(side).address(4)
    }

    pub fn path(&self, side: Side, what: &str) -> PathBuf {
        self.pair.path().join(format!("{}.{what}", side.name()))
    }

    pub fn socket(&self, side: Side) -> PathBuf {
        self.path(side, "sock")
    }

    pub fn log(&self, side: Side) -> String {
        fs::read_to_string(self.path(side, "log")).unwrap_or_default()
    }

    /// Where the daemon of a host listens for others.
    pub fn control(&self, side: Side) -> SocketAddr {
        SocketAddr::new(self.address(side), CONTROL_PORT)
    }

    /// `[daemon]` and `[fabric]` of a host.
    pub fn head(&self, side: Side, key: u8) -> Verdict<String> {
        let file = self.path(side, "key");
        fs::write(&file, format!("{}\n", format!("{key:02x}").repeat(32)))?;
        fs::set_permissions(&file, fs::Permissions::from_mode(0o600))?;
        Ok(format!(
            "[daemon]\nname = \"{}\"\nlisten = [\"{}\"]\npsk_file = \"{}\"\n\
             [fabric]\ndevice = \"roce-udp\"\n",
            side.name(),
            self.control(side),
            file.display(),
        ))
    }

    /// The `[[peer]]` that a host has of the other one.
    pub fn peer(&self, side: Side) -> String {
        let other = side.other();
        format!(
            "[[peer]]\nname = \"{}\"\ncontrol = \"{}\"\n",
            other.name(),
            self.control(other),
        )
    }

    pub fn write_config(&self, side: Side, text: &str) -> Verdict<PathBuf> {
        let path = self.path(side, "toml");
        fs::write(&path, text)?;
        Ok(path)
    }

    /// `sluiced` with a configuration, inside a host.
    pub fn daemon(&self, side: Side) -> Command {
        let daemon = self.sluice.with_file_name("sluiced");
        let mut command = self.host(side).command(daemon);
        command
            .arg("--socket")
            .arg(self.socket(side))
            .arg("--config")
            .arg(self.path(side, "toml"))
            .args(["--log", "info", "--log-file"])
            .arg(self.path(side, "log"));
        command
    }

    /// Starts it; programs can connect when this returns.
    pub fn start(&self, side: Side, command: Command) -> Verdict<Job> {
        let socket = self.socket(side);
        let _ = fs::remove_file(&socket);
        let label = format!("sluiced-{}", side.name());
        let mut job = Job::start(command, self.pair.path(), &label)?;
        let answers = || self.status(side).is_some();
        job.await_ready(LIMIT, "an answer", answers)?;
        Ok(job)
    }

    /// Both with the same key and each other as peers.
    pub fn start_both(&self, options: &[&str]) -> Verdict<[Job; 2]> {
        let start = |side: Side| {
            let text = self.head(side, 0x5a)? + &self.peer(side);
            self.write_config(side, &text)?;
            let mut command = self.daemon(side);
            command.args(options);
            self.start(side, command)
        };
        let both = [start(Side::Left)?, start(Side::Right)?];
        self.await_links()?;
        Ok(both)
    }

    pub fn await_links(&self) -> Verdict {
        for side in SIDES {
            let is_up = || Ok(self.peer_status(side)["link"] == "up");
            ensure(wait_until(LIMIT, is_up)?, || {
                format!("no link: {:?}\n{}", self.status(side), self.log(side))
            })?;
        }
        Ok(())
    }

    /// `sluice` with the words, inside a host and with its daemon.
    pub fn sluice(&self, side: Side, words: &[&str]) -> Command {
        let mut command = self.host(side).command(&self.sluice);
        command.args(words).env("SLUICE_SOCKET", self.socket(side));
        command
    }

    /// What the daemon of a host says of itself.
    pub fn status(&self, side: Side) -> Option<Value> {
        let output = self.sluice(side, &["status", "--json"]).output().ok()?;
        let all: Value = serde_json::from_slice(&output.stdout).ok()?;
        let status = all["daemons"][0]["status"].clone();
        status.is_object().then_some(status)
    }

    /// What it says of the other host.
    pub fn peer_status(&self, side: Side) -> Value {
        let status = self.status(side).unwrap_or_default();
        let peers = status["fabric"]["peers"].as_array().cloned();
        let name = side.other().name();
        let found = peers.into_iter().flatten().find(|it| it["name"] == name);
        found.unwrap_or_default()
    }

    /// Checked records both ways between a client on the left and a server on the right. `sockets`: of
    /// the daemons; a program that has none runs without Sluice.
    pub fn exchange(&self, sockets: [Option<&Path>; 2], records: u32) -> Verdict {
        const CONNECTIONS: usize = 2;
        let source = apps::apps_dir().join("stream.c");
        let binary = apps::compile(&source, BUILDS[0], self.pair.path())?;
        let command = |side: Side| {
            let host = self.host(side);
            let mut command = match sockets[side as usize] {
                Some(socket) => {
                    let mut command = host.command(&self.sluice);
                    command.args(["run", "--"]).arg(&binary);
                    command.env("SLUICE_SOCKET", socket);
                    command
                }
                None => host.command(&binary),
            };
            command
                .env("APP_FAMILY", "4")
                .env("APP_HOST", self.address(Side::Right).to_string());
            command
        };
        let mut server = command(Side::Right);
        server.args(["server", "thread", &CONNECTIONS.to_string()]);
        let mut server = Job::start(server, self.pair.path(), "server")?;
        let port = stream::await_port(&mut server, LIMIT)?.to_string();
        let mut client = command(Side::Left);
        client.args(["client", &port, &CONNECTIONS.to_string()]);
        client.arg(records.to_string());
        let client = job::run(client, self.pair.path(), "client", LIMIT)?;
        stream::check_complete(&client.success()?, CONNECTIONS, records)?;
        stream::check_complete(&server.finish(LIMIT)?.success()?, CONNECTIONS, records)
    }

    /// Sends bytes to the figures' port of a host; what comes back.
    pub fn ask(&self, side: Side, request: &[u8]) -> Verdict<String> {
        let answer = self.host(side).inside(|| {
            let mut stream = TcpStream::connect(("127.0.0.1", METRICS_PORT))?;
            stream.set_read_timeout(Some(LIMIT))?;
            stream.write_all(request)?;
            let mut answer = String::new();
            stream.read_to_string(&mut answer)?;
            Ok(answer)
        })?;
        Ok(answer)
    }

    /// The figures of a host.
    pub fn scrape(&self, side: Side, accept: &str) -> Verdict<String> {
        let request = format!("GET /metrics HTTP/1.1\r\nHost: x\r\nAccept: {accept}\r\n\r\n");
        let answer = self.ask(side, request.as_bytes())?;
        match answer.split_once("\r\n\r\n") {
            Some((head, body)) if head.starts_with("HTTP/1.1 200 ") => Ok(body.to_owned()),
            _ => fail(format!("no figures: {answer}")),
        }
    }
}
