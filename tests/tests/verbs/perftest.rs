//! perftest: latency and bandwidth of every operation. The tests look at exit statuses and that
//! all iterations were made; figures are the benchmark's business.

use std::time::Duration;

use libtest_mimic::Trial;
use sluice_tests::suite::{Verdict, ensure, trial};

use crate::stage::{LIMIT, Stage};

/// After each of 23 sizes the programs of perftest measure the processor's clock: 200 loops of
/// 0.1 to 2.1 ms that ask for the time and do nothing else. That is 0.2 s on a processor of its
/// own and seconds on one that is shared with many. `ib_send_bw`, where server and client both
/// do it, was seen to take 53 s then, and 2 s when it got the time in larger steps.
const ALL_SIZES_LIMIT: Duration = Duration::from_secs(300);

pub fn trials() -> Vec<Trial> {
    let mut trials = Vec::new();
    for program in [
        "ib_send_lat",
        "ib_send_bw",
        "ib_write_lat",
        "ib_write_bw",
        "ib_read_lat",
        "ib_read_bw",
    ] {
        add(&mut trials, program, "rc", &["-n", "1000"]);
        add(&mut trials, program, "all-sizes", &["-a", "-n", "100"]);
        if program.ends_with("_bw") {
            add(&mut trials, program, "both-ways", &["-b", "-n", "1000"]);
            add(&mut trials, program, "16-pairs", &["-q", "16", "-n", "200"]);
            add(&mut trials, program, "duration", &["-D", "2"]);
        }
        if !program.starts_with("ib_read") {
            add(&mut trials, program, "uc", &["-c", "UC", "-n", "1000"]);
            let inline = ["-I", "64", "-s", "64", "-n", "1000"];
            add(&mut trials, program, "inline", &inline);
        }
        if !program.starts_with("ib_write") {
            add(&mut trials, program, "events", &["-e", "-n", "1000"]);
        }
        if program.starts_with("ib_send") {
            let ud = ["-c", "UD", "-s", "1024", "-n", "1000"];
            add(&mut trials, program, "ud", &ud);
            let all = ["-c", "UC", "-a", "-n", "100"];
            add(&mut trials, program, "uc-all-sizes", &all);
            let srq = ["--use-srq", "-n", "1000"];
            add(&mut trials, program, "shared-receive-queue", &srq);
        }
    }
    for program in ["ib_atomic_lat", "ib_atomic_bw"] {
        for (name, kind) in [
            ("fetch-and-add", "FETCH_AND_ADD"),
            ("compare-and-swap", "CMP_AND_SWAP"),
        ] {
            add(&mut trials, program, name, &["-A", kind, "-n", "1000"]);
        }
    }
    trials
}

fn add(trials: &mut Vec<Trial>, program: &'static str, name: &str, arguments: &[&'static str]) {
    let arguments = arguments.to_vec();
    trials.push(trial(format!("{program}/{name}"), move || {
        measure(program, &arguments)
    }));
}

fn measure(program: &str, arguments: &[&str]) -> Verdict {
    // -F: a processor whose clock changes is no reason to end.
    let mut all = vec!["-F"];
    all.extend(arguments);
    let limit = if arguments.contains(&"-a") {
        ALL_SIZES_LIMIT
    } else {
        LIMIT
    };
    let mut stage = Stage::new()?.with_limit(limit);
    let (_, client) = stage.pair(program, &all)?;
    // A row of results begins with the size.
    let rows = client.text();
    let rows = rows
        .lines()
        .filter(|line| {
            let mut words = line.split_whitespace();
            words.next().is_some_and(|word| word.parse::<u64>().is_ok())
                && words.next().is_some_and(|word| word.parse::<u64>().is_ok())
        })
        .count();
    let wanted = if arguments.contains(&"-a") { 20 } else { 1 };
    ensure(rows >= wanted, || {
        format!(
            "{rows} rows of results, {wanted} wanted\n{}",
            client.describe()
        )
    })
}
