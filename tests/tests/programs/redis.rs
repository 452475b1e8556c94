//! redis-server with redis-benchmark and redis-cli, persistence by fork included.

use libtest_mimic::Trial;
use sluice_tests::cgroup::Cgroup;
use sluice_tests::job::{Job, wait_until};
use sluice_tests::lab::Mode;
use sluice_tests::programs::text;
use sluice_tests::suite::{Verdict, ensure, trial, until};

use crate::tools::{LIMIT, Stage, port};

pub fn trials() -> Vec<Trial> {
    use Mode::{Accelerated, Plain};
    vec![
        trial("redis/both", || benchmark(Accelerated, Accelerated)),
        trial("redis/client-only", || benchmark(Plain, Accelerated)),
        trial("redis/server-only", || benchmark(Accelerated, Plain)),
        trial("redis/bgsave-under-load", bgsave_under_load),
        trial("redis/io-threads", io_threads),
        trial("redis/daemon-killed", daemon_killed),
        trial("redis/memory-limit", memory_limit),
    ]
}

fn server(stage: &mut Stage, mode: Mode, port: u16, extra: &[&str]) -> Verdict<Job> {
    let (port_text, dir) = (port.to_string(), text(stage.lab.path()));
    let mut args = vec![
        "--port",
        &port_text,
        "--bind",
        "127.0.0.1",
        "--dir",
        &dir,
        "--save",
        "",
        "--enable-debug-command",
        "yes",
    ];
    args.extend(extra);
    stage.serve(mode, "redis-server", &args, port)
}

fn cli(stage: &mut Stage, mode: Mode, port: u16, args: &[&str]) -> Verdict<String> {
    let port_text = port.to_string();
    let mut all = vec!["-p", &port_text];
    all.extend(args);
    Ok(stage
        .run(mode, "redis-cli", &all)?
        .text()
        .trim()
        .to_string())
}

fn load(stage: &mut Stage, mode: Mode, port: u16, requests: &str) -> Verdict {
    let port_text = port.to_string();
    for clients in ["1", "50"] {
        let args = [
            "-p", &port_text, "-n", requests, "-c", clients, "-d", "2048", "-r", "1000",
        ];
        let tests = ["-t", "set,get,lpush,lpop,hset", "--csv"];
        let outcome = stage.run(mode, "redis-benchmark", &[&args[..], &tests[..]].concat())?;
        let output = outcome.text();
        for test in ["SET", "GET", "LPUSH", "LPOP", "HSET"] {
            ensure(output.contains(&format!("\"{test}\"")), || {
                outcome.describe()
            })?;
        }
        ensure(!output.to_lowercase().contains("err"), || {
            outcome.describe()
        })?;
    }
    Ok(())
}

/// Values of many sizes must come back as they were written.
fn check_values(stage: &mut Stage, mode: Mode, port: u16) -> Verdict {
    let script = "for i = 1, 300 do redis.call('set', 'v' .. i, string.rep(tostring(i), i * 40)) end \
                  return redis.call('dbsize')";
    cli(stage, mode, port, &["eval", script, "0"])?;
    for number in [1, 17, 150, 300] {
        let got = cli(stage, mode, port, &["get", &format!("v{number}")])?;
        let want = number.to_string().repeat(number * 40);
        ensure(got == want, || {
            format!(
                "v{number}: {} bytes came back, {} were written",
                got.len(),
                want.len()
            )
        })?;
    }
    Ok(())
}

fn benchmark(server_mode: Mode, client_mode: Mode) -> Verdict {
    let mut stage = Stage::new()?;
    let port = port()?;
    let server = server(&mut stage, server_mode, port, &[])?;
    load(&mut stage, client_mode, port, "20000")?;
    check_values(&mut stage, client_mode, port)?;
    server.stop(LIMIT)?.success()?;
    if server_mode == Mode::Accelerated && client_mode == Mode::Accelerated {
        // 2,048-byte values, 20,000 SETs and more: a small part of it proves lanes.
        stage.lab.require_lane_bytes(20_000_000)?;
    }
    Ok(())
}

/// The saving child inherits every connection; the saved data must be whole. Where the children are
/// there as long as the load is, nobody gets a lane: that is tried again.
fn bgsave_under_load() -> Verdict {
    until(bgsave_once)
}

fn bgsave_once() -> Verdict<Verdict> {
    const MODE: Mode = Mode::Accelerated;
    let mut stage = Stage::new()?;
    let port = port()?;
    let first = server(&mut stage, MODE, port, &[])?;
    check_values(&mut stage, MODE, port)?;
    let port_text = port.to_string();
    let args = [
        "-p", &port_text, "-n", "600000", "-c", "20", "-d", "2048", "-r", "2000", "-t", "set",
    ];
    let under_load = stage.start(MODE, "redis-benchmark", &args)?;
    for _ in 0..3 {
        cli(&mut stage, MODE, port, &["bgsave"])?;
        let mut said = String::new();
        let ended = wait_until(LIMIT, || {
            let info = cli(&mut stage, MODE, port, &["info", "persistence"]);
            said = info.unwrap_or_default();
            Ok(said.contains("rdb_bgsave_in_progress:0"))
        })?;
        let saved = ended && said.contains("rdb_last_bgsave_status:ok");
        ensure(saved, || "BGSAVE did not end with status ok".to_string())?;
    }
    under_load.finish(LIMIT)?.success()?;
    cli(&mut stage, MODE, port, &["save"])?;
    let before = data_digest(&mut stage, MODE, port)?;
    first.stop(LIMIT)?.success()?;

    let again = server(&mut stage, Mode::Plain, port, &[])?;
    // It answers already while it loads its data, with what it has by then.
    let loaded = wait_until(LIMIT, || {
        let info = cli(&mut stage, Mode::Plain, port, &["info", "persistence"]);
        Ok(info.is_ok_and(|info| info.lines().any(|line| line.trim() == "loading:0")))
    })?;
    ensure(loaded, || "the saved data were not loaded".to_string())?;
    let after = data_digest(&mut stage, Mode::Plain, port)?;
    again.stop(LIMIT)?.success()?;
    ensure(before == after, || {
        format!("the loaded data differ: {before} and {after}")
    })?;
    Ok(stage.lab.require_lane_bytes(20_000_000))
}

/// The server's own digest of all its data.
fn data_digest(stage: &mut Stage, mode: Mode, port: u16) -> Verdict<String> {
    let digest = cli(stage, mode, port, &["debug", "digest"])?;
    let good = digest.len() == 40 && digest.bytes().all(|byte| byte.is_ascii_hexdigit());
    ensure(good, || format!("DEBUG DIGEST answered {digest:?}"))?;
    Ok(digest)
}

fn io_threads() -> Verdict {
    let mut stage = Stage::new()?;
    let port = port()?;
    let extra = ["--io-threads", "3", "--io-threads-do-reads", "yes"];
    let server = server(&mut stage, Mode::Accelerated, port, &extra)?;
    load(&mut stage, Mode::Accelerated, port, "10000")?;
    check_values(&mut stage, Mode::Accelerated, port)?;
    server.stop(LIMIT)?.success()?;
    stage.lab.require_lane_bytes(10_000_000)
}

/// The matching daemon dies under load: running connections go on, new ones work.
fn daemon_killed() -> Verdict {
    let mut stage = Stage::new()?;
    let port = port()?;
    let server = server(&mut stage, Mode::Accelerated, port, &[])?;
    let port_text = port.to_string();
    let args = [
        "-p", &port_text, "-n", "100000", "-c", "10", "-d", "2048", "-t", "set,get", "--csv",
    ];
    let under_load = stage.start(Mode::Accelerated, "redis-benchmark", &args)?;
    let processed = |stage: &mut Stage| -> Verdict<u64> {
        let info = cli(stage, Mode::Plain, port, &["info", "stats"])?;
        let line = info
            .lines()
            .find_map(|line| line.strip_prefix("total_commands_processed:"));
        Ok(line
            .and_then(|text| text.trim().parse::<u64>().ok())
            .unwrap_or(0))
    };
    // The kill must fall into the transfer, after lanes have been set up.
    wait_until(LIMIT, || Ok(processed(&mut stage).unwrap_or(0) > 5000))?;
    if let Some(daemon) = stage.lab.daemon() {
        daemon.signal(rustix::process::Signal::KILL)?;
    }
    let outcome = under_load.finish(LIMIT)?.success()?;
    ensure(outcome.text().contains("\"GET\""), || outcome.describe())?;
    check_values(&mut stage, Mode::Plain, port)?;
    server.stop(LIMIT)?.success()?;
    Ok(())
}

/// A hundred clients that are sent half a megabyte each: redis itself has 58 MB of answers at most, with or without
/// Sluice. Rings of the usual size would take another 100 MB, and the kernel would kill the server.
fn memory_limit() -> Verdict {
    const MODE: Mode = Mode::Accelerated;
    let group = Cgroup::with_memory("redis", 96 << 20)?;
    let mut stage = Stage::new()?;
    let (port, dir) = (port()?, text(stage.lab.path()));
    let processes = text(group.processes());
    let script =
        "echo 0 >\"$1\"; exec redis-server --port \"$2\" --bind 127.0.0.1 --dir \"$3\" --save ''";
    let port_text = port.to_string();
    let words = ["-c", script, "sh", &processes, &port_text, &dir];
    let server = stage.serve(MODE, "sh", &words, port)?;
    let fill = "redis.call('set', 'key:000000000000', string.rep('x', 500000))";
    cli(&mut stage, MODE, port, &["eval", fill, "0"])?;
    let get = ["get", "key:000000000000"];
    let bounded = ["-p", &port_text, "-c", "100", "-n", "3000", "-q"];
    let outcome = stage.run(MODE, "redis-benchmark", &[&bounded[..], &get].concat())?;
    let output = outcome.text();
    ensure(output.contains("requests per second"), || {
        outcome.describe()
    })?;
    // Its chunks are there as long as the client is.
    let endless = ["-p", &port_text, "-c", "100", "-l", "-q"];
    let client = stage.start(MODE, "redis-benchmark", &[&endless[..], &get].concat())?;
    let is_said = || {
        Ok(stage
            .lab
            .status(&[])
            .contains("of lanes with smaller rings"))
    };
    ensure(wait_until(LIMIT, is_said)?, || stage.lab.status(&[]))?;
    drop(client);
    let answer = cli(&mut stage, MODE, port, &["ping"])?;
    ensure(answer == "PONG", || answer.clone())?;
    server.stop(LIMIT)?.success()?;
    stage.lab.require_lane_bytes(20_000_000)
}
