//! The processes of capture themselves: what they let in when they end, and what they leave.

use std::fs;
use std::io::{self, Read};
use std::os::fd::OwnedFd;
use std::os::unix::net::{SocketAddr, UnixStream};
use std::path::Path;
use std::sync::mpsc;

use libtest_mimic::Trial;
use rustix::net::sockopt::socket_type;
use rustix::net::{Shutdown, SocketType, shutdown};
use rustix::process::{Pid, PidfdFlags, PidfdGetfdFlags, Signal, pidfd_getfd, pidfd_open};
use sluice_tests::cgroup::Cgroup;
use sluice_tests::fleet::LIMIT;
use sluice_tests::hosts::Side;
use sluice_tests::job::wait_until;
use sluice_tests::suite::{Verdict, ensure, fail, trial};

use crate::hosts::{Talk, Two};
use crate::troubles::more_rounds;

pub fn trials() -> Vec<Trial> {
    vec![
        trial("ended/queue", ended_with_a_queue),
        trial("ended/seen", an_end_is_seen),
        trial("detached", detached),
        trial("reloaded", reloaded),
    ]
}

/// Connections of a script for bash, in an array.
const CONNECT: &str = "for ((i = 0; i < count; i++)); do
    exec {one}<>/dev/tcp/$host/$port || exit 1
    all+=($one)
done
echo connected";

/// Makes a process do nothing until it is thawed, without stopping it: the kernel ends what is stopped
/// when its parent does (SIGHUP of an orphaned process group, setpgid(2)).
fn freeze(process: Pid) -> Verdict<Cgroup> {
    let group = Cgroup::new("frozen")?;
    let pid = process.as_raw_nonzero().to_string();
    fs::write(group.processes(), pid)?;
    group.freeze()?;
    Ok(group)
}

/// Every program that was told that it is connected is let in when capture ends, however many wait.
fn ended_with_a_queue() -> Verdict {
    const COUNT: usize = 300;
    let mut two = Two::new(4)?;
    let ends = two.ends()?;
    let mut server = two.server(&ends, "server")?;
    let to = two.listening(&mut server)?;
    let Some((host, port)) = to.rsplit_once(':') else {
        return fail(to);
    };
    let before = two.counts(Side::Left)?.captured;
    let relay = two.relay(Side::Left)?;
    let frozen = freeze(relay)?;
    let script = format!(
        "host={host} port={port} count={COUNT}
        {CONNECT}
        for one in ${{all[*]}}; do
            read -r -N 5 -u $one word && [ $word = hello ] || exit 2
        done
        echo all"
    );
    let client = two.program(Side::Left, Path::new("/bin/bash"), &["-c", &script]);
    let mut client = two.fleet.start_program(client, "client")?;
    client.await_text("connected", LIMIT)?;
    let now = two.counts(Side::Left)?.captured;
    ensure(now == before, || format!("it was not frozen: {now}"))?;
    // The order to drain is there when the relay sees its queue.
    two.fleet.end(Side::Left, Signal::TERM)?;
    frozen.thaw()?;
    let outcome = client.finish(LIMIT)?;
    ensure(outcome.status.success(), || {
        format!("{}\n{}", outcome.describe(), two.fleet.describe())
    })?;
    server.stop(LIMIT)?;
    Ok(())
}

/// The socket by which a relay hears its sluiced: the one of its kind without a name at either end.
fn orders_of(relay: Pid) -> Verdict<OwnedFd> {
    let process = pidfd_open(relay, PidfdFlags::empty()).map_err(io::Error::from)?;
    for entry in fs::read_dir(format!("/proc/{}/fd", relay.as_raw_nonzero()))? {
        let name = entry?.file_name();
        let Some(number) = name.to_str().and_then(|name| name.parse().ok()) else {
            continue;
        };
        // It may be closed by now.
        let Ok(fd) = pidfd_getfd(&process, number, PidfdGetfdFlags::empty()) else {
            continue;
        };
        let is_one = socket_type(&fd) == Ok(SocketType::SEQPACKET);
        let socket = UnixStream::from(fd);
        let is_unnamed = |name: io::Result<SocketAddr>| name.is_ok_and(|name| name.is_unnamed());
        if is_one && is_unnamed(socket.local_addr()) && is_unnamed(socket.peer_addr()) {
            return Ok(socket.into());
        }
    }
    fail("the relay has no socket with sluiced")
}

/// A relay that has left its sluiced ends with its last connection, and leaves no process behind.
fn an_end_is_seen() -> Verdict {
    let two = Two::new(4)?;
    let Talk {
        server, mut open, ..
    } = two.talk()?;
    more_rounds(&mut open, 20)?;
    let relay = two.relay(Side::Left)?;
    shutdown(orders_of(relay)?, Shutdown::Both).map_err(io::Error::from)?;
    // There is another one, and the connection is still there.
    two.await_capture()?;
    more_rounds(&mut open, 20)?;
    let process = format!("/proc/{}", relay.as_raw_nonzero());
    ensure(Path::new(&process).exists(), || two.fleet.describe())?;
    open.stop(LIMIT)?;
    let is_gone = wait_until(LIMIT, || Ok(!Path::new(&process).exists()))?;
    ensure(is_gone, || {
        let state = fs::read_to_string(format!("{process}/status"));
        format!("the relay is still there: {state:?}")
    })?;
    server.stop(LIMIT)?;
    Ok(())
}

/// The relay of this configuration, if it runs.
fn find_relay(config: &Path) -> Option<Pid> {
    let config = config.to_str()?;
    let all = fs::read_dir("/proc").ok()?.filter_map(Result::ok);
    let mut pids = all.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    let pid: i32 = pids.find(|pid| {
        let line = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        let line = String::from_utf8_lossy(&line);
        line.contains("--capture-relay") && line.contains(config)
    })?;
    Pid::from_raw(pid)
}

/// A sluiced in the background, with its relay, holds nothing of who started it, and the relay has
/// nothing of what is not for it; the log of both has the form that was asked for. To capture takes no
/// capability for other network namespaces.
fn detached() -> Verdict {
    let mut two = Two::with_choice(4, ["drain_seconds = 0", ""])?;
    two.fleet.end(Side::Left, Signal::TERM)?;
    let path = |what: &str| two.fleet.path(Side::Left, what);
    let (config, socket, log) = (path("toml"), path("sock"), path("json"));
    // The former relay ends by itself.
    let is_gone = || Ok(find_relay(&config).is_none());
    ensure(wait_until(LIMIT, is_gone)?, || two.fleet.describe())?;
    let sluiced = two.fleet.sluice.with_file_name("sluiced");
    let mut command = two.fleet.host(Side::Left).command(sluiced);
    command.arg("--daemonize").arg("--socket").arg(&socket);
    command.arg("--config").arg(&config).args(["--log", "info"]);
    command.args(["--log-format", "json", "--log-file"]);
    command.arg(&log).arg("--one-namespace");
    command.env("SLUICE_GATEWAY", "gw");
    let (mut errors, theirs) = io::pipe()?;
    command.stderr(theirs);
    let started = command.status();
    drop(command);
    let look = || -> Verdict {
        ensure(started?.success(), || "it does not start".to_owned())?;
        let is_there = wait_until(LIMIT, || Ok(find_relay(&config).is_some()))?;
        ensure(is_there, || fs::read_to_string(&log).unwrap_or_default())?;
        let captures = || {
            let text = fs::read_to_string(&log).unwrap_or_default();
            Ok(text.contains("captures connections"))
        };
        ensure(wait_until(LIMIT, captures)?, || {
            fs::read_to_string(&log).unwrap_or_default()
        })?;
        let Some(relay) = find_relay(&config) else {
            return fail("the relay has ended");
        };
        let environment = fs::read(format!("/proc/{}/environ", relay.as_raw_nonzero()))?;
        let environment = String::from_utf8_lossy(&environment).into_owned();
        let is_clean =
            environment.contains("LD_PRELOAD=") && !environment.contains("SLUICE_GATEWAY=");
        ensure(is_clean, || environment)?;
        let (done, is_done) = mpsc::channel();
        std::thread::spawn(move || {
            let mut said = String::new();
            // Whoever waits for it is gone in the bad case.
            let _ = done.send(errors.read_to_string(&mut said).map(|_| said));
        });
        let Ok(said) = is_done.recv_timeout(LIMIT) else {
            return fail("somebody still holds the standard error of who started sluiced");
        };
        let said = said?;
        ensure(said.is_empty() && find_relay(&config).is_some(), || said)
    };
    let looked = look();
    let down = two.fleet.sluice(Side::Left, &["down"]);
    two.fleet.run_program(down, "down")?;
    looked?;
    ensure(wait_until(LIMIT, is_gone)?, || {
        "the relay is still there".to_owned()
    })?;
    let text = fs::read_to_string(&log)?;
    let is_json = |line: &str| serde_json::from_str::<serde_json::Value>(line).is_ok();
    // The relay says this one.
    let is_whole = text.contains("takes no new connections") && text.lines().all(is_json);
    ensure(is_whole, || text.clone())
}

/// What cannot change while sluiced runs is named when the configuration is read again.
fn reloaded() -> Verdict {
    let two = Two::new(4)?;
    let config = two.fleet.path(Side::Left, "toml");
    let text = fs::read_to_string(&config)?;
    fs::write(&config, format!("{text}ports = \"1-1000\"\n"))?;
    two.fleet.daemon(Side::Left)?.signal(Signal::HUP)?;
    two.fleet.await_log(Side::Left, "was read again")?;
    let said = two.fleet.log(Side::Left);
    ensure(said.contains("`capture` has changed"), || said.clone())
}
