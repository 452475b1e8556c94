//! Readers that sleep, and what becomes of what their peers write.

use std::fs;
use std::path::Path;
use std::time::Duration;

use libtest_mimic::Trial;
use serde_json::Value;
use sluice_tests::fleet::LIMIT;
use sluice_tests::hosts::{SIDES, Side};
use sluice_tests::lab::find_sluice;
use sluice_tests::suite::{Verdict, ensure, fail, skip, trial};
use sluice_tests::{job, slow};

use crate::hosts::Two;

pub fn trials() -> Vec<Trial> {
    vec![
        trial("slow_reader/bounds", bounds),
        trial("slow_reader/benchmark", benchmark),
    ]
}

/// Bytes that are written while the reader sleeps and afterwards.
const TOTAL: u64 = 400_000_000;

/// What a process may grow by. A relay keeps 64 KiB for each direction of a connection; the rest are
/// rings between the relays, the buffers of a device, and pages of programs that are used first.
const GROWTH_BYTES_MAX: u64 = 24 << 20;

/// The writer is held back through both relays, and neither they nor the kernel keep what the reader
/// would have read.
fn bounds() -> Verdict {
    let two = Two::new(4)?;
    let captured = two.counts(Side::Left)?;
    let processes = || -> Verdict<Vec<u64>> {
        let mut all = Vec::new();
        for side in SIDES {
            let relay = two.relay(side)?.as_raw_nonzero().get().unsigned_abs();
            for process in [relay, two.fleet.daemon(side)?.id()] {
                all.push(slow::resident_bytes(process)?);
            }
        }
        Ok(all)
    };
    let before = processes()?;
    let address = two.address(Side::Right).to_string();
    let program = |side| {
        let two = &two;
        move |python: &Path| two.program(side, python, &[])
    };
    let (reader, writer) = (program(Side::Right), program(Side::Left));
    let sleeper = slow::start(&address, TOTAL, two.fleet.dir(), LIMIT, reader, writer)?;
    two.await_counts(Side::Left, "captured", |now| {
        now.captured == captured.captured + 1 && now.direct == captured.direct
    })?;
    for side in SIDES {
        let (queued, sockets) = slow::queued_bytes(two.fleet.host(side), two.fleet.dir(), LIMIT)?;
        let most = sockets * slow::queues_max()?;
        ensure(queued <= most, || {
            format!("{queued} bytes in {sockets} sockets")
        })?;
    }
    let now = processes()?;
    let is_flat = |(now, before): (&u64, &u64)| *now <= before + GROWTH_BYTES_MAX;
    ensure(now.iter().zip(&before).all(is_flat), || {
        format!("relays and daemons had {before:?} bytes, and have {now:?}")
    })?;
    sleeper.wake(LIMIT)
}

/// `sluice bench fabric --only stall` with one repetition: nine runs of five to ten seconds.
const BENCH_LIMIT: Duration = Duration::from_secs(300);

/// The benchmark's own sleepers: every path carries all bytes, ours stay within their bounds, and the one
/// that has none holds many times more than TCP does.
fn benchmark() -> Verdict {
    let sluice = find_sluice()?;
    if !sluice.with_file_name("sluice-skmsg").is_file() {
        return skip("sluice-skmsg is not built (cargo build --release)");
    }
    let dir = tempfile::tempdir()?;
    let mut command = job::command(&sluice);
    let words = "bench fabric --only stall --quick --reps 1 --repeats 0 --out";
    command
        .args(words.split(' '))
        .arg(dir.path().join("report"));
    job::run(command, dir.path(), "bench", BENCH_LIMIT)?.success()?;
    let report = fs::read_to_string(dir.path().join("report/report.json"))?;
    let report: Value = serde_json::from_str(&report).or_else(|error| fail(error.to_string()))?;
    let list = |of: &Value, name| of[name].as_array().cloned().unwrap_or_default();
    let verdicts = list(&report, "verdicts");
    let is_memory = |verdict: &&Value| {
        let what = verdict["what"].as_str().unwrap_or_default();
        what.starts_with("sleeping reader") && what.ends_with("memory of both hosts")
    };
    let memory: Vec<&Value> = verdicts.iter().filter(is_memory).collect();
    let is_ok = |verdict: &&Value| verdict["outcome"] == "ok";
    ensure(memory.len() == 2 && memory.iter().all(is_ok), || {
        format!("{memory:?}")
    })?;
    let points = list(&report["workloads"][0], "points");
    let most = points.iter().find(|point| point["label"] == "most memory");
    let held = |variant: &str| {
        let series = list(most?, "series");
        let series = series.iter().find(|series| series["variant"] == variant)?;
        series["median"].as_f64()
    };
    let (tcp, skmsg) = (held("tcp"), held("sk-msg"));
    let times = tcp.zip(skmsg).map(|(tcp, skmsg)| skmsg / tcp);
    ensure(times.is_some_and(|times| times > 10.0), || {
        format!("TCP held {tcp:?} MiB, SK_MSG {skmsg:?}")
    })
}
