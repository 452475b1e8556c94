//! redis-server on one host, and what talks to it on another.

use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use crate::job::{Job, run};
use crate::programs::require;
use crate::suite::{Verdict, ensure};

/// Where its programs are.
pub struct Redis {
    pub server: PathBuf,
    benchmark: PathBuf,
    cli: PathBuf,
}

impl Redis {
    /// Skips when it is not installed.
    pub fn find() -> Verdict<Redis> {
        Ok(Redis {
            server: require("redis-server")?,
            benchmark: require("redis-benchmark")?,
            cli: require("redis-cli")?,
        })
    }

    /// Starts the server, which `command` does, at the address; it serves when this returns.
    pub fn serve(
        &self,
        mut command: Command,
        at: SocketAddr,
        dir: &Path,
        limit: Duration,
    ) -> Verdict<Job> {
        command
            .args(["--bind", &at.ip().to_string()])
            .args(["--port", &at.port().to_string()])
            .args(["--save", "", "--protected-mode", "no"]);
        let mut server = Job::start(command, dir, "redis-server")?;
        server.await_text("Ready to accept", limit)?;
        Ok(server)
    }

    /// Runs clients, which `command` starts, against the server: many requests by several
    /// connections; what one client stores another one reads; and the server sees them at `seen`.
    pub fn exercise(
        &self,
        command: impl Fn(&Path) -> Command,
        server: SocketAddr,
        seen: IpAddr,
        dir: &Path,
        limit: Duration,
    ) -> Verdict {
        let client = |program: &Path, words: &[&str]| -> Verdict<String> {
            let mut command = command(program);
            command
                .args(["-h", &server.ip().to_string()])
                .args(["-p", &server.port().to_string()])
                .args(words);
            Ok(run(command, dir, "redis-client", limit)?.success()?.text())
        };
        let tests = ["-t", "set,get,lpush,lrange_100"];
        let load = ["-n", "4000", "-c", "10", "-d", "2048", "-q"];
        client(&self.benchmark, &[&tests[..], &load].concat())?;
        let value = "0123456789abcdef".repeat(1 << 12);
        client(&self.cli, &["set", "large", &value])?;
        let got = client(&self.cli, &["get", "large"])?;
        ensure(got.trim() == value, || "another value came back".to_owned())?;
        let listed = client(&self.cli, &["client", "list"])?;
        let address = match seen {
            IpAddr::V4(address) => format!(" addr={address}:"),
            IpAddr::V6(address) => format!(" addr=[{address}]:"),
        };
        ensure(listed.contains(&address), || listed.clone())
    }
}
