//! perftest: latency and bandwidth of every operation. The tests look at exit statuses and that
//! all iterations were made; figures are the benchmark's business.

use std::time::Duration;

use libtest_mimic::Trial;
use sluice_tests::suite::{Verdict, ensure, trial};

use crate::stage::{Environment, LIMIT, Stage, WAYS};

/// After each of 23 sizes the programs of perftest measure the processor's clock: 200 loops of
/// 0.1 to 2.1 ms that ask for the time and do nothing else. That is 0.2 s on a processor of its
/// own and seconds on one that is shared with many. `ib_send_bw`, where server and client both
/// do it, was seen to take 53 s then, and 2 s when it got the time in larger steps.
const ALL_SIZES_LIMIT: Duration = Duration::from_secs(300);

/// With which each program is run; those of one program only are in [`SPECIAL`].
pub fn trials() -> Vec<Trial> {
    let mut trials = Vec::new();
    for program in [
        "ib_send_lat",
        "ib_send_bw",
        "ib_write_lat",
        "ib_write_bw",
        "ib_read_lat",
        "ib_read_bw",
        "ib_atomic_lat",
        "ib_atomic_bw",
    ] {
        let (atomic, bandwidth) = (program.contains("atomic"), program.ends_with("_bw"));
        add(&mut trials, program, "rc", &["-n", "1000"]);
        add(&mut trials, program, "duration", &["-D", "1"]);
        if !atomic {
            add(&mut trials, program, "all-sizes", &["-a", "-n", "100"]);
        }
        if bandwidth {
            add(&mut trials, program, "both-ways", &["-b", "-n", "1000"]);
            add(&mut trials, program, "16-pairs", &["-q", "16", "-n", "200"]);
        }
        if program.starts_with("ib_send") || program.starts_with("ib_write") {
            add(&mut trials, program, "uc", &["-c", "UC", "-n", "1000"]);
            let inline = ["-I", "64", "-s", "64", "-n", "1000"];
            add(&mut trials, program, "inline", &inline);
        }
        // The write programs wait for bytes, not for completions.
        if !program.starts_with("ib_write") {
            add(&mut trials, program, "events", &["-e", "-n", "1000"]);
        }
    }
    for (program, name, arguments) in SPECIAL {
        add(&mut trials, program, name, arguments);
    }
    // How memory is reached shows in no result, but must change none either.
    for (way, environment) in &WAYS[1..] {
        for program in ["ib_write_bw", "ib_read_lat", "ib_send_bw", "ib_atomic_bw"] {
            trials.push(trial(format!("{program}/{way}"), || {
                measure(program, &["-n", "500"], environment)
            }));
        }
    }
    trials
}

type Case = (&'static str, &'static str, &'static [&'static str]);

const SPECIAL: &[Case] = &[
    ("ib_send_lat", "xrc", &["-c", "XRC", "-n", "500"]),
    ("ib_send_bw", "xrc", &["-c", "XRC", "-n", "500"]),
    ("ib_write_bw", "xrc", &["-c", "XRC", "-n", "500"]),
    ("ib_read_bw", "xrc", &["-c", "XRC", "-n", "500"]),
    (
        "ib_send_lat",
        "ud",
        &["-c", "UD", "-s", "1024", "-n", "1000"],
    ),
    (
        "ib_send_bw",
        "ud",
        &["-c", "UD", "-s", "1024", "-n", "1000"],
    ),
    (
        "ib_send_bw",
        "ud-all-sizes",
        &["-c", "UD", "-a", "-n", "100"],
    ),
    (
        "ib_send_bw",
        "ud-16-pairs",
        &["-c", "UD", "-q", "16", "-n", "200"],
    ),
    ("ib_send_bw", "ud-events", &["-c", "UD", "-e", "-n", "500"]),
    (
        "ib_send_lat",
        "uc-all-sizes",
        &["-c", "UC", "-a", "-n", "100"],
    ),
    (
        "ib_send_bw",
        "uc-all-sizes",
        &["-c", "UC", "-a", "-n", "100"],
    ),
    (
        "ib_write_bw",
        "uc-all-sizes",
        &["-c", "UC", "-a", "-n", "100"],
    ),
    (
        "ib_send_bw",
        "uc-both-ways",
        &["-c", "UC", "-b", "-q", "4", "-n", "200"],
    ),
    (
        "ib_send_lat",
        "shared-receive-queue",
        &["--use-srq", "-n", "1000"],
    ),
    (
        "ib_send_bw",
        "shared-receive-queue",
        &["--use-srq", "-n", "1000"],
    ),
    (
        "ib_send_bw",
        "16-pairs-one-queue",
        &["--use-srq", "-q", "16", "-n", "200"],
    ),
    (
        "ib_send_bw",
        "ud-shared-receive-queue",
        &["--use-srq", "-c", "UD", "-n", "500"],
    ),
    (
        "ib_atomic_lat",
        "compare-and-swap",
        &["-A", "CMP_AND_SWAP", "-n", "1000"],
    ),
    (
        "ib_atomic_bw",
        "compare-and-swap",
        &["-A", "CMP_AND_SWAP", "-n", "1000"],
    ),
    (
        "ib_atomic_lat",
        "fetch-and-add",
        &["-A", "FETCH_AND_ADD", "-n", "1000"],
    ),
    (
        "ib_atomic_bw",
        "fetch-and-add",
        &["-A", "FETCH_AND_ADD", "-n", "1000"],
    ),
];

fn add(trials: &mut Vec<Trial>, program: &'static str, name: &str, arguments: &[&'static str]) {
    let arguments = arguments.to_vec();
    trials.push(trial(format!("{program}/{name}"), move || {
        measure(program, &arguments, &[])
    }));
}

fn measure(program: &str, arguments: &[&str], environment: Environment) -> Verdict {
    // -F: a processor whose clock changes is no reason to end.
    let mut all = vec!["-F"];
    all.extend(arguments);
    let limit = if arguments.contains(&"-a") {
        ALL_SIZES_LIMIT
    } else {
        LIMIT
    };
    let mut stage = Stage::new()?.with_limit(limit);
    stage.set(environment);
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
    // From 2 bytes to 8 MiB, or to what fits a datagram.
    let wanted = match (arguments.contains(&"-a"), arguments.contains(&"UD")) {
        (true, true) => 12,
        (true, false) => 23,
        (false, _) => 1,
    };
    ensure(rows == wanted, || {
        format!(
            "{rows} rows of results, {wanted} wanted\n{}",
            client.describe()
        )
    })
}
