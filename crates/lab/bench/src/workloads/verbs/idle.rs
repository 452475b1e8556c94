//! A process whose memory others may read and write, and to which nothing happens.

use std::time::{Duration, Instant};

use super::programs;
use super::{Cell, Options, Workload};
use crate::error::{BenchError, Result};
use crate::model::{PointSpec, Sample, Variant};
use crate::process::{Process, Ready};
use crate::session::Session;
use crate::signals;
use crate::usage;
use crate::words::words;
use crate::workloads::idle::WATCHED_S;

pub const WORKLOAD: Workload = Workload {
    name: "idle",
    title: "Passive process",
    about: "The server of ib_read_lat never calls the library once it is connected. Its client \
            reads from it for a while, then is stopped (SIGSTOP). CPU time and voluntary context \
            switches are those of the server from half a second after that on. Beside them: the \
            server's CPU time while the client was reading.",
    programs: &[PROGRAM],
    compared_with: &[],
    obstacle: None,
    cells,
};

pub const CPU: &str = "CPU time of the passive process";
pub const WAKE_UPS: &str = "voluntary context switches";

const PROGRAM: &str = "ib_read_lat";
/// A client that has used so much CPU time is through with its preparations and reads.
const READING_AFTER_CPU_S: f64 = 0.5;
const READING_TIMEOUT: Duration = Duration::from_secs(30);
const READING: Duration = Duration::from_secs(1);
/// Going to sleep is no wake-up.
const SETTLING: Duration = Duration::from_millis(500);

fn cells(options: &Options) -> Vec<Cell> {
    let seconds = options.idle_seconds;
    let point = |group, unit| PointSpec::cost(group, format!("{seconds} s"), unit, Variant::Verbs);
    vec![Cell {
        title: "passive process".to_owned(),
        variants: vec![Variant::Verbs],
        // Nothing here varies as rates do.
        repetitions: options.repetitions.min(2),
        points: vec![point(CPU, "ms"), point(WAKE_UPS, "switches")],
        run: Box::new(move |session, variant| measure(session, variant, seconds)),
    }]
}

fn measure(session: &Session, variant: Variant, seconds: u32) -> Result<Vec<Sample>> {
    let port = session.free_port()?;
    // Longer than it will be let run.
    let duration_s = READING_TIMEOUT.as_secs() + 60;
    let arguments = words!["-s", 8, "-D", duration_s];
    let words = programs::perftest_words(session, variant, PROGRAM, port, &arguments);
    let mut server = session.server(variant, &words, &Ready::Listens(port))?;
    let mut client_words = words;
    client_words.push("127.0.0.1".to_owned());
    let mut client = session.interactive(false, &client_words)?;
    wait_until_reading(&mut client)?;

    let watched = [server.group()];
    let before = usage::usage(&watched);
    signals::pause(READING)?;
    let read_from = usage::usage(&watched);
    client.ensure_running()?;
    signals::signal_group(client.group(), libc::SIGSTOP);
    signals::pause(SETTLING)?;
    let start = usage::usage(&watched);
    signals::pause(Duration::from_secs(u64::from(seconds)))?;
    let end = usage::usage(&watched);
    server.ensure_running()?;
    // A stopped process does not hear that it is to end.
    signals::signal_group(client.group(), libc::SIGKILL);

    if start.cpu_ns == 0 {
        return Err(BenchError::Failed(
            "the CPU time of the passive process cannot be read".to_owned(),
        ));
    }
    let reading_ms = read_from.cpu_ns.saturating_sub(before.cpu_ns) as f64 / 1e6;
    let sample = |value: f64| Sample {
        value,
        details: [
            (WATCHED_S, f64::from(seconds)),
            (
                "cpu_ms_per_s_while_read_from",
                reading_ms / READING.as_secs_f64(),
            ),
        ]
        .into(),
        ..Sample::default()
    };
    Ok(vec![
        sample(end.cpu_ns.saturating_sub(start.cpu_ns) as f64 / 1e6),
        sample(end.sleeps.saturating_sub(start.sleeps) as f64),
    ])
}

/// perftest buffers what it says, but only a client that reads polls.
fn wait_until_reading(client: &mut Process) -> Result<()> {
    let deadline = Instant::now() + READING_TIMEOUT;
    while usage::cpu_s(&[client.group()]) < READING_AFTER_CPU_S {
        client.ensure_running()?;
        if Instant::now() > deadline {
            return Err(client.failure("did not read within 30 s"));
        }
        signals::pause(Duration::from_millis(20))?;
    }
    Ok(())
}
