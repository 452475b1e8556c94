//! Streams whose every byte is checked, between processes that use their sockets in all ways at random, and that are
//! killed, stopped and interrupted (`tests/apps/chaos`).
//!
//! What can go wrong with a stream, and how a round finds it:
//!
//! | fault | found by |
//! |---|---|
//! | a byte is wrong, lost in the middle, doubled, at another place, or of another stream | each byte follows from the seed, the connection, the direction and its offset (`BYTES`) |
//! | more bytes come than were sent | the sender's offset is in memory that all share (`INVENTED`) |
//! | bytes at the end are lost, or the stream ends early | at the end of a stream the receiver has what the sender has sent, and the sender has said that it is all (`EOF`) |
//! | a connection breaks without a reason | an error is right only after somebody has cut the connection or was killed with it (`ERROR`) |
//! | a wake-up is lost, a call spins or blocks | something is unfinished, and no process gets on (`HANG`) |
//! | a process crashes | it ends without having said so (`CRASH`) |
//! | a stream is forgotten | all that were not cut are whole when the round ends (`END`) |
//!
//! No check depends on how long anything takes, but for the hang: nothing at all happened for half a minute, of which
//! what the machine stood still does not count. Each check is true of plain TCP: the suite passes with
//! `SLUICE_TEST_STANDIN=1`. The rows `mutation` hurt streams on purpose, and pass if the checks find it.
//!
//! | variable | meaning |
//! |---|---|
//! | `SLUICE_SOAK=SECONDS` | each row goes on for so long with new seeds, and says every half a minute how far it is |
//! | `SLUICE_ROWS=all` | also the row `one-host/all`, which has what is known to fail |
//! | `SLUICE_SEED=S` | the round with this seed alone, as a failure prints it |
//! | `SLUICE_CHAOS_TIMES=N` | the same so often: a seed says what is done, and the scheduler when |
//! | `SLUICE_CHAOS_FAULTS=kills+stops` | rounds have these faults: `calm`, `kills`, `stops`, `signals`, `daemon`, or `everything` |
//! | `SLUICE_CHAOS_PATIENCE=SECONDS` | until a round in which nothing happens hangs |
//! | `SLUICE_CHAOS_ONLY=recv,send,poll` | rounds have these operations alone (`chaos names` has them all): to make a failure smaller |
//!
//! A failure prints the command that runs its round again, and its report has the last events of each process.

#[allow(dead_code)]
#[path = "../capture/hosts.rs"]
mod capture;
#[allow(dead_code)]
#[path = "../fabric/hosts.rs"]
mod fabric;
#[allow(dead_code)]
#[path = "../gateway/lab.rs"]
mod gateway;
mod hosts;
mod mutations;
mod plan;
mod processes;
mod report;
mod round;
mod rows;
mod stages;
mod state;
#[allow(dead_code)]
#[path = "../window_lanes/stage.rs"]
mod window;

use std::process::ExitCode;
use std::sync::Arc;

use libtest_mimic::Trial;
use sluice_tests::lab::Mode;
use sluice_tests::suite::{self, Verdict, trial};

use plan::{Faults, Programs};
use rows::Row;
use stages::{OneHost, Stage};

const ONE_HOST_BYTES_MAX: u64 = 8 << 20;
const HOSTS_BYTES_MAX: u64 = 2 << 20;

/// Whether connections get lanes at once, and what the processes suffer.
const ONE_HOST: [(bool, &[Faults]); 10] = [
    (true, &[Faults::NONE]),
    (false, &[Faults::of(false, false, false, true)]),
    (true, &[Faults::of(false, false, true, false)]),
    (false, &[Faults::of(false, true, false, false)]),
    (true, &[Faults::of(true, false, false, false)]),
    (false, &[Faults::of(true, false, true, false)]),
    (true, &[Faults::of(false, true, true, false)]),
    (true, &[Faults::of(true, false, false, true)]),
    (true, &[Faults::ALL]),
    // With all operations.
    (true, BETWEEN_HOSTS),
];

/// A sender that is stopped in the middle of a write has its connection reset by exec (docs/limitations.md, "Giving a
/// connection away").
const EXECUTED: &[&str] = &["exec", "exec-self"];

/// Rounds of a row between hosts have one of these each.
const BETWEEN_HOSTS: &[Faults] = &[
    Faults::NONE,
    Faults::of(false, true, true, false),
    Faults::of(true, false, false, false),
    Faults::of(true, true, true, false),
    Faults::of(false, false, false, true),
    Faults::ALL,
];

fn one_host(programs: &Arc<Programs>) -> Vec<Trial> {
    let rows = ONE_HOST.into_iter().enumerate();
    let all = rows.map(|(number, (is_eager, faults))| {
        let first = 100 + number as u64;
        let row = Row {
            name: match faults {
                [only] => format!("one-host/{only}"),
                _ => "one-host/all".to_owned(),
            },
            faults,
            without: match faults {
                [only] if only.stops => EXECUTED,
                _ => &[],
            },
            bytes_max: ONE_HOST_BYTES_MAX,
            seeds: first..first + 1,
            of_the_day: 3,
        };
        let programs = Arc::clone(programs);
        trial(row.name.clone(), move || {
            let mut stage = OneHost::new(Mode::Accelerated, is_eager)?;
            row.check(&mut stage, programs.get(false)?)
        })
    });
    all.collect()
}

/// Makes the hosts of a row.
type SetUp = fn() -> Verdict<Box<dyn Stage>>;

/// A row between hosts.
struct Place {
    name: &'static str,
    faults: &'static [Faults],
    is_static: bool,
    set_up: SetUp,
}

fn between_hosts(programs: &Arc<Programs>) -> Vec<Trial> {
    let fabric: SetUp = || Ok(Box::new(hosts::Fabric::new()?));
    let hosts = |name, faults, set_up| Place {
        name,
        faults,
        is_static: false,
        set_up,
    };
    let rows = [
        hosts("fabric", BETWEEN_HOSTS, fabric),
        hosts("window", BETWEEN_HOSTS, || {
            Ok(Box::new(hosts::Window::new()?))
        }),
        Place {
            // Otherwise it would be preloaded.
            is_static: true,
            ..hosts("capture", BETWEEN_HOSTS, || {
                Ok(Box::new(hosts::Captured::new()?))
            })
        },
        hosts("gateway", BETWEEN_HOSTS, || {
            Ok(Box::new(hosts::Gateway::new()?))
        }),
    ];
    let all = rows.into_iter().map(|place| {
        let row = Row {
            name: format!("hosts/{}", place.name),
            faults: place.faults,
            without: &[],
            bytes_max: HOSTS_BYTES_MAX,
            seeds: 0..BETWEEN_HOSTS.len() as u64,
            of_the_day: 1,
        };
        let programs = Arc::clone(programs);
        trial(row.name.clone(), move || {
            let mut stage = (place.set_up)()?;
            row.check(stage.as_mut(), programs.get(place.is_static)?)
        })
    });
    all.collect()
}

/// What every run has. The other row has what is known to fail: what docs/limitations.md says of exec.
fn is_usual(name: &str) -> bool {
    name != "one-host/all"
}

fn main() -> ExitCode {
    let programs = match Programs::new() {
        Ok(programs) => Arc::new(programs),
        Err(error) => {
            eprintln!("no directory for programs: {error}");
            return ExitCode::FAILURE;
        }
    };
    let mut trials = mutations::trials(&programs);
    trials.extend(suite::usual(one_host(&programs), is_usual));
    trials.extend(suite::usual(between_hosts(&programs), is_usual));
    // One at a time: a round has dozens of threads.
    suite::run(trials, 1).exit_code()
}
