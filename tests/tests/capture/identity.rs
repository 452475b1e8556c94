//! What a server can check of its peer is what it would be without capture, and so is whether a connection comes about.

use std::fs;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::Command;

use libtest_mimic::Trial;
use sluice_tests::fleet::LIMIT;
use sluice_tests::hosts::Side;
use sluice_tests::job::{Job, wait_until};
use sluice_tests::programs::require;
use sluice_tests::suite::{Verdict, ensure, fail, trial};

use crate::hosts::Two;

pub fn trials() -> Vec<Trial> {
    vec![
        trial("terms/ttl", ttl),
        trial("terms/md5", md5),
        trial("ports_of_many_destinations", ports_of_many_destinations),
    ]
}

/// Listens at ARGV[1], with the options of a line like `IP_TTL=255`, and says each client.
const SERVER: &str = "\
import socket, struct, sys
host, port = sys.argv[1].rsplit(':', 1)
def key(s, ip):
    at = struct.pack('HH4s120x', 2, 0, socket.inet_aton(ip))
    s.setsockopt(6, 14, at + struct.pack('BBHI', 0, 0, 6, 0) + b'secret'.ljust(80, b'\\0'))
l = socket.socket()
if sys.argv[2] == 'ttl':
    l.setsockopt(0, 2, 255)
    l.setsockopt(0, 21, 255)
l.bind((host, int(port)))
if sys.argv[2] == 'md5':
    key(l, sys.argv[3])
l.listen(4096)
print('listening', l.getsockname()[1], flush=True)
all = []
while True:
    s, at = l.accept()
    s.sendall(b'in')
    print('client', at[0], flush=True)
    all.append(s)
";

/// Connects to ARGV[1], with the terms ARGV[2], and says when it is let in.
const CLIENT: &str = "\
import socket, struct, sys
host, port = sys.argv[1].rsplit(':', 1)
s = socket.socket()
terms = sys.argv[2]
if terms == 'ttl':
    s.setsockopt(0, 2, 255)
    s.setsockopt(0, 21, 255)
elif terms != 'none':
    at = struct.pack('HH4s120x', 2, 0, socket.inet_aton(host))
    word = terms.encode()
    s.setsockopt(6, 14, at + struct.pack('BBHI', 0, 0, len(word), 0) + word.ljust(80, b'\\0'))
s.connect((host, int(port)))
if s.recv(2) == b'in': print('in', flush=True)
";

struct Python {
    two: Two,
    path: PathBuf,
}

impl Python {
    fn new() -> Verdict<Python> {
        Ok(Python {
            path: require("python3")?,
            two: Two::new(4)?,
        })
    }

    fn command(&self, side: Side, script: &str, arguments: &[&str]) -> Command {
        let arguments = [&["-c", script], arguments].concat();
        self.two.program(side, &self.path, &arguments)
    }

    /// A server on the right host, and where it listens.
    fn serve(&self, arguments: &[&str]) -> Verdict<(Job, String)> {
        let any = SocketAddr::new(self.two.address(Side::Right), 0).to_string();
        let arguments = [&[any.as_str()], arguments].concat();
        let command = self.command(Side::Right, SERVER, &arguments);
        let mut server = self.two.fleet.start_program(command, "server")?;
        server.await_text("listening", LIMIT)?;
        let said = server.stdout_so_far();
        let port = said.split_whitespace().nth(1).unwrap_or_default();
        let Ok(port) = port.parse() else {
            return fail(format!("no port in {said:?}"));
        };
        let at = SocketAddr::new(self.two.address(Side::Right), port);
        Ok((server, at.to_string()))
    }

    fn reason(&self, side: Side, name: &str) -> Verdict<u64> {
        let status = self.two.fleet.status(side)?;
        let count = &status["fabric"]["captured"]["reasons"][name];
        Ok(count.as_u64().unwrap_or(0))
    }

    fn await_reason(&self, side: Side, name: &str, least: u64) -> Verdict {
        self.wait(name, || {
            self.reason(side, name).is_ok_and(|count| count >= least)
        })
    }

    /// Waits until the right host's kernel has counted more.
    fn await_kernel(&self, name: &str, before: u64) -> Verdict {
        self.wait(name, || {
            self.kernel_count(name).is_ok_and(|now| now > before)
        })
    }

    fn wait(&self, what: &str, done: impl Fn() -> bool) -> Verdict {
        let has_come = wait_until(LIMIT, || Ok(done()))?;
        ensure(has_come, || {
            format!("{what}\n{}", self.two.fleet.describe())
        })
    }

    /// A number of the right host's kernel.
    fn kernel_count(&self, name: &str) -> Verdict<u64> {
        let host = self.two.fleet.host(Side::Right);
        let text = host.inside(|| fs::read_to_string("/proc/thread-self/net/netstat"))?;
        let lines: Vec<&str> = text
            .lines()
            .filter(|line| line.starts_with("TcpExt:"))
            .collect();
        let [names, counts] = lines[..] else {
            return fail(text);
        };
        let mut all = names.split(' ').zip(counts.split(' '));
        let found = all.find(|(word, _)| *word == name);
        Ok(found.and_then(|(_, count)| count.parse().ok()).unwrap_or(0))
    }
}

/// Both ends take nothing that has come over a router (RFC 5082): what a relay sends would not count.
fn ttl() -> Verdict {
    let python = Python::new()?;
    let (server, to) = python.serve(&["ttl"])?;
    let command = python.command(Side::Left, CLIENT, &[&to, "ttl"]);
    let said = python.two.fleet.run_program(command, "client")?;
    ensure(said.contains("in"), || said.clone())?;
    python.await_reason(Side::Left, "left_terms", 1)?;
    server.stop(LIMIT)?;
    Ok(())
}

/// A server that lets in who has a key (RFC 2385) lets in nobody else.
fn md5() -> Verdict {
    let python = Python::new()?;
    let client = python.two.address(Side::Left).to_string();
    let (server, to) = python.serve(&["md5", &client])?;
    let start = |terms: &str| {
        let command = python.command(Side::Left, CLIENT, &[&to, terms]);
        python.two.fleet.start_program(command, terms)
    };
    // Captured, refused by the relay there, and then dropped by the kernel.
    let dropped = "TCPMD5NotFound";
    let before = python.kernel_count(dropped)?;
    let without = start("none")?;
    python.await_reason(Side::Right, "refused_terms", 1)?;
    python.await_kernel(dropped, before)?;
    // Left alone, and dropped.
    let dropped = "TCPMD5Failure";
    let before = python.kernel_count(dropped)?;
    let wrong = start("wrong")?;
    python.await_reason(Side::Left, "left_terms", 1)?;
    python.await_kernel(dropped, before)?;
    let command = python.command(Side::Left, CLIENT, &[&to, "secret"]);
    let said = python.two.fleet.run_program(command, "secret")?;
    ensure(said.contains("in"), || said.clone())?;
    let accepted = server.stdout_so_far().matches("client").count();
    ensure(accepted == 1, || server.stdout_so_far())?;
    without.stop(LIMIT)?;
    wrong.stop(LIMIT)?;
    server.stop(LIMIT)?;
    Ok(())
}

/// A host has a range of local ports for each destination: more connections than that are made, some of them captured.
fn ports_of_many_destinations() -> Verdict {
    const HOLDER: &str = "\
import socket, sys
all = []
for at in sys.argv[1:]:
    host, port = at.rsplit(':', 1)
    for i in range(300):
        all.append(socket.create_connection((host, int(port))))
for s in all:
    assert s.recv(2) == b'in'
print('made', len(all), flush=True)
";
    let python = Python::new()?;
    let host = python.two.fleet.host(Side::Left);
    host.write_setting("ipv4/ip_local_port_range", "40000 40499")?;
    let servers = [
        python.serve(&["none"])?,
        python.serve(&["none"])?,
        python.serve(&["none"])?,
    ];
    let before = python.two.counts(Side::Left)?;
    let to: Vec<&str> = servers.iter().map(|(_, to)| to.as_str()).collect();
    let command = python.command(Side::Left, HOLDER, &to);
    let said = python.two.fleet.run_program(command, "holder")?;
    ensure(said.contains("made 900"), || said.clone())?;
    python.await_reason(Side::Left, "left_full", 1)?;
    let now = python.two.counts(Side::Left)?;
    ensure(now.captured > before.captured, || format!("{now:?}"))?;
    for (server, _) in servers {
        server.stop(LIMIT)?;
    }
    Ok(())
}
