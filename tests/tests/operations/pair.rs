//! What `sluice doctor --peer`, `sluice status` and `sluice top` say of two hosts.

use libtest_mimic::Trial;
use serde_json::Value;
use sluice_tests::fleet::{KEY, LIMIT};
use sluice_tests::hosts::{SIDES, Side};
use sluice_tests::job::wait_until;
use sluice_tests::programs::require;
use sluice_tests::stream;
use sluice_tests::suite::{Verdict, ensure, eventually, fail, trial};

use crate::lab::{self, DEVICE, Two, exchange_until};

pub fn trials() -> Vec<Trial> {
    vec![
        trial("pair/good", good),
        trial("pair/nobody-there", nobody_there),
        trial("pair/another-key", another_key),
        trial("pair/small-packets-only", small_packets_only),
        trial("pair/status", status),
        trial("pair/one-end-is-bypassed", one_end_is_bypassed),
    ]
}

/// What the doctor says: whether there are lanes, and each check's verdict, finding and hint.
pub struct Opinion {
    lanes: bool,
    status: Option<i32>,
    checks: Value,
}

impl Opinion {
    pub fn of(two: &Two, side: Side, more: &[&str]) -> Verdict<Opinion> {
        let address = two.address(side.other()).to_string();
        let mut command = two.sluice(side, &["doctor", "--json", "--peer", &address]);
        let output = command.args(more).output()?;
        let Ok(report) = serde_json::from_slice::<Value>(&output.stdout) else {
            return fail(format!("no report: {output:?}"));
        };
        Ok(Opinion {
            lanes: report["lanes"] == true,
            status: output.status.code(),
            checks: report["checks"].clone(),
        })
    }

    fn check(&self, name: &str) -> Verdict<(String, String)> {
        let checks = self.checks.as_array();
        let mut checks = checks.into_iter().flatten();
        match checks.find(|check| check["name"] == name) {
            Some(check) => Ok((
                check["verdict"].as_str().unwrap_or_default().to_owned(),
                format!("{} | {}", check["found"], check["hint"]),
            )),
            None => fail(format!("no check {name}: {}", self.checks)),
        }
    }

    pub fn require(&self, name: &str, verdict: &str, words: &str) -> Verdict {
        let (found, text) = self.check(name)?;
        ensure(found == verdict && text.contains(words), || {
            format!("{name}: {found} instead of {verdict} with {words:?}: {text}")
        })
    }
}

fn good() -> Verdict {
    let two = lab::started(&[])?;
    for side in SIDES {
        // The other one may get no processor for as long as doctor waits.
        eventually(LIMIT, || {
            let opinion = Opinion::of(&two, side, &[])?;
            opinion.require("route", "ok", "is reached from")?;
            opinion.require("control port", "ok", "round trip")?;
            opinion.require("path MTU", "ok", "1500 bytes get there")?;
            opinion.require("session", "ok", side.other().name())?;
            opinion.require("fabric", "ok", "messages get through")?;
            ensure(opinion.lanes && opinion.status == Some(0), || {
                opinion.checks.to_string()
            })
        })?;
    }
    Ok(())
}

fn nobody_there() -> Verdict {
    let mut two = lab::set_up(&[])?;
    let text = two.head(Side::Left, KEY, DEVICE)? + &two.peer(Side::Right);
    two.write_config(Side::Left, &text)?;
    two.start(Side::Left)?;
    eventually(LIMIT, || {
        let opinion = Opinion::of(&two, Side::Left, &[])?;
        opinion.require("control port", "missing", "sluice up --config")?;
        opinion.require("session", "missing", "does not talk")?;
        opinion.require("fabric", "missing", "nobody has UDP port 4791")?;
        ensure(!opinion.lanes && opinion.status == Some(1), || {
            opinion.checks.to_string()
        })
    })
}

fn another_key() -> Verdict {
    let mut two = lab::set_up(&[])?;
    for (side, key) in SIDES.into_iter().zip([KEY, !KEY]) {
        let text = two.head(side, key, DEVICE)? + &two.peer(side.other());
        two.write_config(side, &text)?;
        two.start(side)?;
    }
    let config = two.path(Side::Left, "toml").display().to_string();
    eventually(LIMIT, || {
        let opinion = Opinion::of(&two, Side::Left, &["--config", &config])?;
        opinion.require("control port", "ok", "somebody listens")?;
        opinion.require("session", "missing", "key")?;
        ensure(!opinion.lanes, || opinion.checks.to_string())
    })
}

/// A path that carries less than both interfaces believe.
fn small_packets_only() -> Verdict {
    let two = lab::started(&[])?;
    // The other end of the wire drops what is longer.
    let right = two.host(Side::Right);
    right.ip(&format!("link set {} mtu 1300", right.device()))?;
    eventually(LIMIT, || {
        let opinion = Opinion::of(&two, Side::Left, &[])?;
        opinion.require("path MTU", "missing", "get lost on the way")
    })
}

fn status() -> Verdict {
    let two = lab::started(&["--eager"])?;
    // Which direction found its reader awake is a matter of luck.
    let has_moved = exchange_until(&two, |side| {
        let peer = two.peer_status(side);
        let mut moved = ["sent_bytes", "received_bytes"].iter();
        moved.any(|key| peer[key].as_u64().unwrap_or(0) > 0)
    })?;
    ensure(has_moved, || {
        format!("{:?}", SIDES.map(|side| two.peer_status(side)))
    })?;
    for side in SIDES {
        let peer = two.peer_status(side);
        let software = peer["software"].as_str().unwrap_or_default();
        ensure(software.starts_with("sluiced "), || peer.to_string())?;
        let output = two.sluice(side, &["status", "--wide"]).output()?;
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        for part in [
            "lanes to other hosts by roce-udp",
            "HOST",
            side.other().name(),
        ] {
            ensure(text.contains(part), || format!("{part} in {text}"))?;
        }
    }
    Ok(())
}

/// A server that sends back what it gets, and a client that goes on asking.
const SERVER: &str = "import socket, sys
listener = socket.create_server((sys.argv[1], 0))
print('port', listener.getsockname()[1], flush=True)
stream = listener.accept()[0]
while True:
    stream.sendall(stream.recv(64))
";
const CLIENT: &str = "import socket, sys
stream = socket.create_connection((sys.argv[1], int(sys.argv[2])))
while True:
    stream.sendall(b'x' * 64)
    stream.recv(64)
";

/// A program whose peer on another host is not under Sluice is let go, though both daemons run.
fn one_end_is_bypassed() -> Verdict {
    let python = require("python3")?;
    let two = lab::started(&[])?;
    let address = two.address(Side::Right).to_string();
    let mut server = two.host(Side::Right).command(&python);
    server.args(["-c", SERVER, &address]);
    let mut server = two.start_program(server, "server")?;
    let port = stream::await_port(&mut server, LIMIT)?.to_string();
    let mut client = two.sluice(Side::Left, &["run", "--"]);
    client.arg(&python).args(["-c", CLIENT, &address, &port]);
    let client = two.start_program(client, "client")?;
    let bypassed = || {
        let status = two.status(Side::Left).unwrap_or_default();
        Ok(status["counters"]["ends_settled"] == 1)
    };
    ensure(wait_until(LIMIT, bypassed)?, || {
        format!("{:?}\n{}", two.status(Side::Left), client.describe())
    })?;
    // It goes on, by TCP.
    ensure(two.peer_status(Side::Left)["waiting"] == 0, || {
        two.peer_status(Side::Left).to_string()
    })?;
    let _ = client.stop(LIMIT)?;
    let _ = server.stop(LIMIT)?;
    Ok(())
}
