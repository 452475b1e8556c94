//! Programs that measure streams, and pipelines of the shell.

use libtest_mimic::Trial;
use sluice_tests::lab::Mode;
use sluice_tests::net::await_listener;
use sluice_tests::programs::{files, iperf, text};
use sluice_tests::suite::{Verdict, ensure, trial, until};

use crate::tools::{LIMIT, Stage, port, write};

const MODE: Mode = Mode::Accelerated;

pub fn trials() -> Vec<Trial> {
    let mut trials: Vec<Trial> = [
        ("one-stream", &[][..]),
        ("three-streams", &["-P", "3"][..]),
        ("reverse", &["-R"][..]),
        ("both-ways", &["--bidir"][..]),
        ("zero-copy", &["-Z"][..]),
        ("small-writes", &["-l", "100"][..]),
        ("ipv6", &["-6"][..]),
    ]
    .into_iter()
    .map(|(name, args)| trial(format!("iperf3/{name}"), move || until(|| iperf3(args))))
    .collect();
    trials.push(trial("sockperf/ping-pong", || until(|| sockperf("pp"))));
    trials.push(trial("sockperf/throughput", || until(|| sockperf("tp"))));
    trials.push(trial("shell/netcat-pipeline", || until(netcat_pipeline)));
    trials.push(trial("shell/socat-relay", socat_relay));
    trials
}

/// The lane has a quarter of the bytes, where both ends and sluiced had processors for the two seconds.
fn iperf3(extra: &[&str]) -> Verdict<Verdict> {
    let mut stage = Stage::new()?;
    let port = port()?.to_string();
    let host = if extra.contains(&"-6") {
        "::1"
    } else {
        "127.0.0.1"
    };
    // A probe would be taken for the one client of "-1"; iperf3 says when it listens.
    let mut server = stage.start(
        MODE,
        "iperf3",
        &["-s", "-1", "-B", host, "-p", &port, "--forceflush"],
    )?;
    server.await_text("Server listening", LIMIT)?;
    let mut args = vec!["-c", host, "-p", &port, "-t", "2", "-J"];
    args.extend(extra);
    let client = stage.run(MODE, "iperf3", &args)?;
    server.finish(LIMIT)?.success()?;
    let received = iperf::received(&client)?;
    Ok(stage.lab.require_lane_bytes(received / 4))
}

fn sockperf(kind: &str) -> Verdict<Verdict> {
    let mut stage = Stage::new()?;
    let number = port()?;
    let port = number.to_string();
    let mut server = stage.start(
        MODE,
        "sockperf",
        &["sr", "--tcp", "-i", "127.0.0.1", "-p", &port],
    )?;
    await_listener(&mut server, number, LIMIT)?;
    let mut args = vec![
        kind,
        "--tcp",
        "-i",
        "127.0.0.1",
        "-p",
        &port,
        "-t",
        "2",
        "-m",
        "64",
    ];
    if kind == "pp" {
        // sockperf makes room for 600,000 messages a second unless told, and ends with
        // "_seqN > m_maxSequenceNo" when a lane carries more.
        args.extend(["--data-integrity", "--mps", "5000000"]);
    }
    let client = stage.run(MODE, "sockperf", &args)?;
    let output = client.text();
    let wrong = ["data integrity test failed", "ERROR", "error"]
        .iter()
        .any(|w| output.contains(w));
    let told = if kind == "pp" {
        "percentile 50"
    } else {
        "BandWidth is"
    };
    ensure(output.contains(told) && !wrong, || client.describe())?;
    if kind == "pp" {
        ensure(output.contains("# dropped messages = 0"), || {
            client.describe()
        })?;
    }
    server.signal(rustix::process::Signal::INT)?;
    server.finish(LIMIT)?;
    Ok(stage.lab.require_lane_bytes(1000))
}

/// Two pipelines started through `sh -c`, each with a netcat in its middle.
fn netcat_pipeline() -> Verdict<Verdict> {
    let mut stage = Stage::new()?;
    let port = port()?;
    files::make(&stage.path("file"), 30_000_000)?;
    // nc -l takes one connection, so nothing may probe it: the sender tries until it is there.
    let listen = format!("nc -l 127.0.0.1 {port} | gzip -1 | gunzip > got");
    let receiver = stage.start(MODE, "sh", &["-c", &listen])?;
    let send = format!(
        "n=0; until cat file | nc -N 127.0.0.1 {port}; do \
         n=$((n+1)); [ $n -lt 3000 ] || exit 1; sleep 0.02; done"
    );
    stage.shell(MODE, &send)?;
    receiver.finish(LIMIT)?.success()?;
    files::check_same(&stage.path("file"), &stage.path("got"))?;
    Ok(stage.lab.require_lane_bytes(1_000_000))
}

/// socat between a client and a server, and a shell script as the server's body.
fn socat_relay() -> Verdict {
    let mut stage = Stage::new()?;
    let (back, front) = (port()?, port()?);
    files::make(&stage.path("file"), 20_000_000)?;
    write(
        &stage.path("body.sh"),
        "#!/bin/sh\nread name\necho \"serving $name\"\ncat \"$name\"\n",
    )?;
    let body = text(stage.path("body.sh"));
    let listen = format!("TCP-LISTEN:{back},bind=127.0.0.1,fork,reuseaddr");
    let server = stage.serve(MODE, "socat", &[&listen, &format!("EXEC:sh {body}")], back)?;
    let relay_listen = format!("TCP-LISTEN:{front},bind=127.0.0.1,fork,reuseaddr");
    let relay = stage.serve(
        MODE,
        "socat",
        &[&relay_listen, &format!("TCP:127.0.0.1:{back}")],
        front,
    )?;
    for round in 0..3 {
        let script = format!(
            "echo file | socat -t 30 - TCP:127.0.0.1:{front} > answer && head -n 1 answer > line && tail -n +2 answer > got"
        );
        stage.shell(MODE, &script)?;
        let line = std::fs::read_to_string(stage.path("line"))?;
        ensure(line == "serving file\n", || {
            format!("round {round}: {line:?}")
        })?;
        files::check_same(&stage.path("file"), &stage.path("got"))?;
    }
    relay.stop(LIMIT)?;
    server.stop(LIMIT)?;
    Ok(())
}
