//! What redis between two hosts takes while it works: memory and processors, second by second.

use std::time::{Duration, Instant};

use super::{Cell, Options, Workload, all_variants, within_host};
use crate::error::{BenchError, Result};
use crate::figures::counted;
use crate::model::{Better, LANES, PointSpec, Sample, Variant};
use crate::process::Process;
use crate::session::Session;
use crate::session::hosts::{Hosts, Side};
use crate::signals;
use crate::usage::{self, Usage};
use crate::workloads::fabric::redis;

pub const WORKLOAD: Workload = Workload {
    name: "over-time",
    title: "Memory and processor time of redis between two hosts over time",
    about: "redis-benchmark with 50 clients and SET of 2,048 bytes; the first point is one interval behind \
            its start. Memory is resident, with what several map divided among them; that of the daemons \
            includes the process that serves the window. Processor time is that of the interval before, in percent of \
            one processor. What the kernel does for a sender in its own time is in that time.",
    programs: &["redis-server", "redis-benchmark"],
    compared_with: &[],
    obstacle: None,
    cells,
};

const CLIENTS: u32 = 50;
/// How often it is looked at.
const LOOKS: u32 = 8;
/// More than are made while anybody looks. Each is of a key that is there already.
const REQUESTS: f64 = 1e9;

const RATE: &str = "requests/s over time";
const OTHERS: [(&str, &str); 4] = [
    ("memory of both programs", "MiB"),
    ("memory of both sluiced", "MiB"),
    ("processor time of both programs", "%"),
    ("processor time of both sluiced", "%"),
];

fn cells(options: &Options) -> Vec<Cell> {
    let interval = interval(options.seconds);
    let mut points = Vec::new();
    let labels = (1..=LOOKS).map(|look| {
        let s = (interval * look).as_secs_f64();
        (format!("{s} seconds"), Some(s))
    });
    let labels: Vec<_> = labels.collect();
    let spec = |group: &str, unit, (label, x): &(String, Option<f64>)| PointSpec {
        x: *x,
        ..PointSpec::cost(group, label.clone(), unit, Variant::Tcp)
    };
    points.extend(labels.iter().map(|label| PointSpec {
        better: Better::Higher,
        ..spec(RATE, "requests/s", label)
    }));
    for (group, unit) in OTHERS {
        points.extend(labels.iter().map(|label| spec(group, unit, label)));
    }
    vec![Cell {
        title: format!("over time, {}", counted(CLIENTS, "client")),
        variants: all_variants(options),
        repetitions: options.repetitions.min(2),
        points,
        run: Box::new(move |session, variant| measure(session, variant, interval)),
    }]
}

/// A measurement is as long as two of others.
fn interval(seconds: u32) -> Duration {
    Duration::from_secs(u64::from(seconds)) * 2 / LOOKS
}

/// What both programs and both daemons have taken, and what was done for it.
struct Look {
    at: Instant,
    done: u64,
    programs: Usage,
    daemons: Usage,
}

fn measure(session: &Session, variant: Variant, interval: Duration) -> Result<Vec<Sample>> {
    let hosts = Hosts::new(session, variant)?;
    let (server, at, _) = redis::start_server(&hosts, variant)?;
    let near = hosts.host(Side::Client);
    near.inside(|| Ok(within_host::fill(at)))??;
    let lanes_before = hosts.lanes_given()?;
    let words = redis::client_words(at, None, ("set", CLIENTS, REQUESTS));
    let mut client = hosts.interactive(Side::Client, &words)?;
    let look = |client: &Process| -> Result<Look> {
        Ok(Look {
            at: Instant::now(),
            done: near.inside(|| Ok(within_host::commands_done(at)))??,
            programs: usage::usage(&[server.group(), client.group()]),
            daemons: usage::usage(&hosts.groups_with_memory()),
        })
    };
    signals::pause(interval)?;
    let mut looks = vec![look(&client)?];
    for _ in 0..LOOKS {
        signals::pause(interval)?;
        looks.push(look(&client)?);
    }
    client.ensure_running()?;
    let mut details = Sample::default();
    hosts.note_lanes(lanes_before, &mut details)?;
    if variant.needs_sluice() && details.details.get(LANES) == Some(&0.0) {
        return Err(BenchError::Failed("no connection got a lane".to_owned()));
    }
    // It has more requests than anybody waits for.
    drop(client);
    type Figure = fn(&Look, &Look, f64) -> f64;
    let figures: [Figure; 5] = [
        |before, after, s| (after.done - before.done) as f64 / s,
        |_, after, _| after.programs.pss_kib as f64 / 1024.0,
        |_, after, _| after.daemons.pss_kib as f64 / 1024.0,
        |before, after, s| percent(before.programs, after.programs, s),
        |before, after, s| percent(before.daemons, after.daemons, s),
    ];
    let sample = |figure: Figure, pair: &[Look]| Sample {
        value: figure(&pair[0], &pair[1], (pair[1].at - pair[0].at).as_secs_f64()),
        details: details.details.clone(),
        ..Sample::default()
    };
    let samples = figures.into_iter().flat_map(|figure| {
        let pairs = looks.windows(2);
        pairs.map(move |pair| sample(figure, pair))
    });
    Ok(samples.collect())
}

fn percent(before: Usage, after: Usage, seconds: f64) -> f64 {
    after.cpu_ns.saturating_sub(before.cpu_ns) as f64 / seconds / 1e7
}
