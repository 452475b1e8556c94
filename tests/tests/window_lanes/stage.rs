//! Two hosts that share a window.

use std::cell::OnceCell;
use std::path::{Path, PathBuf};
use std::process::Command;

use rustix::process::Signal;
use serde_json::Value;
use sluice_tests::fleet::{Fleet, KEY, LIMIT};
use sluice_tests::hosts::{Pair, SIDES, Settings, Side};
use sluice_tests::job::{Job, wait_until};
use sluice_tests::programs::require;
use sluice_tests::stream::{self, Ends, Transfer};
use sluice_tests::suite::{Verdict, ensure};

pub const CONNECTIONS: usize = 4;
pub const RECORDS: u32 = 3000;

pub struct Stage {
    // Daemons end before the memory's server.
    pub two: Fleet<Pair>,
    socket: PathBuf,
    /// The program of [`Stage::flow`], once it is there.
    stream: OnceCell<PathBuf>,
    size: &'static str,
    server: Job,
}

impl Stage {
    /// Daemons that have found each other, and the window.
    pub fn new(users: &[&str]) -> Verdict<Stage> {
        Stage::with(users, "256M")
    }

    /// The same with a window of that size.
    pub fn with(users: &[&str], size: &'static str) -> Verdict<Stage> {
        // Not eager: by the fabric bytes would hardly go by rings, and by a window they do.
        let mut two = Fleet::new(Pair::new(Settings::default())?, 4, &[])?;
        let socket = two.dir().join("window.sock");
        let server = serve(&two, &socket, size)?;
        let users: Vec<String> = users.iter().map(|user| format!("{user:?}")).collect();
        let window = format!(
            "[[window]]\npath = {socket:?}\nusers = [{}]\n",
            users.join(", ")
        );
        for side in SIDES {
            let text = two.head(side, KEY, "roce-udp")? + &two.peer(side.other()) + &window;
            two.write_config(side, &text)?;
            two.start(side)?;
        }
        let stage = Stage {
            two,
            socket,
            stream: OnceCell::new(),
            size,
            server,
        };
        stage.await_window()?;
        Ok(stage)
    }

    /// Kills the process that serves the window.
    pub fn kill_server(&mut self) -> Verdict {
        let server = &mut self.server;
        server.signal(Signal::KILL)?;
        let is_over = || Ok(server.poll()?.is_some());
        ensure(wait_until(LIMIT, is_over)?, || "the server lives on".into())
    }

    /// Serves another window in the place of the one whose server was killed.
    pub fn serve_anew(&mut self) -> Verdict {
        self.server = serve(&self.two, &self.socket, self.size)?;
        Ok(())
    }

    /// Waits until both daemons say this of their window.
    pub fn await_state(&self, what: &str, is_so: impl Fn(&Value) -> bool) -> Verdict {
        let are_so = || {
            let is_so = |side| is_so(&self.window(side).unwrap_or_default());
            Ok(SIDES.into_iter().all(is_so))
        };
        ensure(wait_until(LIMIT, are_so)?, || {
            let windows = SIDES.map(|side| self.window(side));
            format!("not {what}: {windows:?}\n{}", self.two.describe())
        })
    }

    /// What a daemon says of its window.
    fn window(&self, side: Side) -> Verdict<Value> {
        Ok(self.two.status(side)?["fabric"]["windows"][0].take())
    }

    /// Waits until each host sees the other one in the window.
    pub fn await_window(&self) -> Verdict {
        for side in SIDES {
            let other = Value::from(side.other().name());
            let is_there = || {
                let window = self.window(side).unwrap_or_default();
                let peers = window["peers"].as_array();
                Ok(peers.is_some_and(|it| it.contains(&other)))
            };
            ensure(wait_until(LIMIT, is_there)?, || self.two.describe())?;
        }
        Ok(())
    }

    /// Waits until neither host sees the other one in the window.
    pub fn await_cut(&self) -> Verdict {
        let are_cut = || {
            let is_alone = |side| {
                let window = self.window(side).unwrap_or_default();
                window["peers"].as_array().is_some_and(Vec::is_empty)
            };
            Ok(SIDES.into_iter().all(is_alone))
        };
        ensure(wait_until(LIMIT, are_cut)?, || self.two.describe())
    }

    /// Bytes that a host has sent and received by the fabric.
    pub fn fabric_bytes(&self, side: Side) -> Verdict<[Option<u64>; 2]> {
        let mut status = self.two.status(side)?;
        let peer = status["fabric"]["peers"][0].take();
        Ok(["sent_bytes", "received_bytes"].map(|name| peer[name].as_u64()))
    }

    /// Connections of a host in the window.
    pub fn lanes(&self, side: Side) -> Verdict<u64> {
        Ok(self.window(side)?["lanes"].as_u64().unwrap_or(u64::MAX))
    }

    /// Bytes of its slot that are in the hands of programs.
    pub fn lent(&self, side: Side) -> Verdict<u64> {
        Ok(self.window(side)?["lent_bytes"]
            .as_u64()
            .unwrap_or(u64::MAX))
    }

    /// Waits until so many connections of a host, or more, are in the window.
    pub fn await_lanes(&self, side: Side, count: u64) -> Verdict {
        let has = || {
            let window = self.window(side).unwrap_or_default();
            Ok(window["lanes"].as_u64().unwrap_or(0) >= count)
        };
        ensure(wait_until(LIMIT, has)?, || self.two.describe())
    }

    /// Waits until nothing is lent: all programs are gone.
    pub fn await_all_back(&self) -> Verdict {
        let are_back = || {
            let is_back = |side| {
                let window = self.window(side).unwrap_or_default();
                window["lanes"] == 0 && window["lent_bytes"] == 0
            };
            Ok(SIDES.into_iter().all(is_back))
        };
        ensure(wait_until(LIMIT, are_back)?, || {
            let windows = SIDES.map(|side| self.window(side));
            format!("{windows:?}\n{}", self.two.describe())
        })
    }

    /// Fails unless bytes went by rings, and none of them by the fabric.
    pub fn require_direct(&self) -> Verdict {
        self.two.require_ring_bytes()?;
        for side in SIDES {
            let bytes = self.fabric_bytes(side)?;
            ensure(bytes == [Some(0); 2], || {
                format!("bytes by the fabric: {bytes:?}")
            })?;
        }
        Ok(())
    }

    pub fn flow(&self, transfer: Transfer) -> Verdict<Ends> {
        let binary = match self.stream.get() {
            Some(binary) => binary,
            None => {
                let binary = stream::compile_plain(self.two.dir())?;
                self.stream.get_or_init(|| binary)
            }
        };
        let server = self.two.program(Side::Right, true, binary);
        let client = self.two.program(Side::Left, true, binary);
        transfer.start(server, client, self.two.dir(), LIMIT)
    }

    /// A program in Python, whose first word is the server's address and whose second the window's
    /// socket.
    pub fn script(
        &self,
        side: Side,
        is_accelerated: bool,
        text: &str,
        words: &[&str],
    ) -> Verdict<Command> {
        let python = require("python3")?;
        let mut command = self.two.program(side, is_accelerated, &python);
        command.args(["-c", text]);
        command.arg(self.two.address(Side::Right).to_string());
        command.arg(&self.socket).args(words);
        Ok(command)
    }
}

/// `sluice window serve`, once it listens.
fn serve(two: &Fleet<Pair>, socket: &Path, size: &str) -> Verdict<Job> {
    let mut command = Command::new(&two.sluice);
    command.args(["window", "serve"]).arg(socket);
    command.args(["--size", size, "--hosts", "2"]);
    let mut server = two.start_program(command, "window")?;
    // Said when it listens.
    server.await_text("a window of", LIMIT)?;
    Ok(server)
}
