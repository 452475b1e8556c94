//! A reader that sleeps while its writer pushes, and what the path between them holds meanwhile: beside
//! it a path by SK_MSG, whose queues have no limit of their own.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use super::capture::{Capture, start_reader};
use super::{Cell, Options, Workload};
use crate::error::{BenchError, Result};
use crate::helper::flow::{Drained, Flowed};
use crate::helper::stall::OPEN;
use crate::machine;
use crate::model::{Better, CostUnit, PointSpec, STOPPED_AFTER_S, Sample, Variant};
use crate::process::Process;
use crate::session::Session;
use crate::session::hosts::{Hosts, Side};
use crate::signals;
use crate::sockets::Sockets;
use crate::usage;

pub const WORKLOAD: Workload = Workload {
    name: "stall",
    title: "A reader that sleeps while a writer pushes, between two hosts",
    about: "A small program of our own writes as fast as it can, first to a reader that sleeps, then \
            to one that takes 6 MiB a second, then to one that reads all. 'Memory' is what the sockets \
            of both hosts have in their queues, as the kernel accounts for them, and the growth of both \
            programs, both sluiced and their relays, or both proxies, since before the first byte. \
            'Sluice' are programs under 'sluice run', 'Sluice, captured' programs as they are. 'SK_MSG' \
            is not Sluice but what it is compared with: on each host a proxy (bench/skmsg) that takes \
            what programs write out of their connections by redirection to its own sockets' queues of \
            incoming messages, sends it over one TCP connection, and gives it to the reader in the same \
            way. The writer stops by itself when so much is unread that it would do the machine harm; \
            the report says where it did. All bytes are checked. With a reader that keeps up at most \
            256 MiB are unread, in every variant.",
    programs: &[],
    compared_with: &[machine::SKMSG],
    obstacle: None,
    cells,
};

pub const SUMMARY: &str = "while the reader slept";
pub const MEMORY_MOST: &str = "most memory";
const SOCKETS_MOST: &str = "of that in queues of sockets";
pub const GROWTH: &str = "growth in its second half";
const ACCEPTED: &str = "taken from the writer";
const CURVE: &str = "memory of both hosts";
const THROUGHPUT: &str = "throughput, a reader that keeps up";

/// The detail that says what a path whose queues are all bounded may hold.
pub const ALLOWED_MIB: &str = "allowed_mib";
/// Of that, what is not in queues of sockets: rings, buffers of devices and relays, pages that are used
/// for the first time.
const PROCESSES_MIB: f64 = 24.0;

const VARIANTS: [Variant; 4] = [
    Variant::Tcp,
    Variant::Sluice,
    Variant::SluiceCaptured,
    Variant::SkMsg,
];

/// Points of the curve during the sleep. Half as many follow while the reader is slow.
const POINTS: u32 = 10;
/// How often memory is looked at.
const LOOK_EVERY: Duration = Duration::from_millis(100);

/// What may be unread at most when the reader sleeps, whatever the machine has; and when it keeps up.
const UNREAD_MIB_MAX: u64 = 1024;
const AHEAD_MIB: u64 = 256;

/// For programs to start, and for all to be read.
const PATIENCE: Duration = Duration::from_secs(60);

const MIB: f64 = 1024.0 * 1024.0;

fn cells(options: &Options) -> Vec<Cell> {
    let sleep_s = options.stall_seconds;
    let point = |group, label: String, x| PointSpec {
        x,
        ..PointSpec::cost(group, label, "MiB", Variant::Tcp)
    };
    let mut points: Vec<PointSpec> = [MEMORY_MOST, SOCKETS_MOST, GROWTH, ACCEPTED]
        .map(|label| point(SUMMARY, label.to_owned(), None))
        .into();
    points.extend(looks(sleep_s).map(|at| {
        let s = at.as_secs_f64();
        point(CURVE, format!("{s} seconds"), Some(s))
    }));
    let stall = Cell {
        title: format!("stall, {sleep_s} s"),
        variants: VARIANTS.into(),
        repetitions: options.repetitions.min(2),
        points,
        run: Box::new(move |session, variant| stalled(session, variant, sleep_s)),
    };
    let throughput = Cell {
        title: "stall, a reader that keeps up".to_owned(),
        variants: VARIANTS.into(),
        repetitions: options.repetitions,
        points: vec![PointSpec {
            better: Better::Higher,
            cost_unit: CostUnit::Gigabyte,
            ..PointSpec::cost(THROUGHPUT, "1 stream".to_owned(), "Gbit/s", Variant::Tcp)
        }],
        run: Box::new(|session, variant| Ok(vec![kept_up(session, variant)?])),
    };
    vec![stall, throughput]
}

/// When the points of the curve are, from the writer's first byte.
fn looks(sleep_s: u32) -> impl Iterator<Item = Duration> {
    let count = POINTS + POINTS / 2;
    (1..=count).map(move |number| Duration::from_secs(u64::from(sleep_s)) * number / POINTS)
}

/// What is unread at most: a half of what TCP may have in plenty, for the machine's other programs.
fn unread_mib() -> u64 {
    let bytes = (machine::tcp_memory_plenty_bytes() / 2).min(machine::memory_available_bytes() / 8);
    (bytes >> 20).clamp(1, UNREAD_MIB_MAX)
}

/// See [`ALLOWED_MIB`]: one connection between the programs, or three with two relays, or proxies,
/// between them.
fn allowed_mib(variant: Variant) -> f64 {
    let connections = match variant {
        Variant::SluiceCaptured | Variant::SkMsg => 3.0,
        _ => 1.0,
    };
    connections * machine::tcp_queues_max_bytes() as f64 / MIB + PROCESSES_MIB
}

/// What both hosts hold.
#[derive(Debug, Clone, Copy, Default)]
struct Held {
    sockets_bytes: u64,
    processes_kib: u64,
}

impl Held {
    fn sockets_mib(self) -> f64 {
        self.sockets_bytes as f64 / MIB
    }

    /// Sockets begin with empty queues.
    fn since_mib(self, start: Self) -> f64 {
        let grown_kib = self.processes_kib.saturating_sub(start.processes_kib);
        self.sockets_mib() + grown_kib as f64 / 1024.0
    }
}

/// Looks at both hosts.
struct Scales {
    sockets: [Sockets; 2],
    groups: Vec<i32>,
}

impl Scales {
    fn new(hosts: &Hosts<'_>, programs: [&Process; 2]) -> Result<Self> {
        let open = |side| {
            let here =
                || Sockets::here().map_err(|errno| std::io::Error::from_raw_os_error(errno.0));
            hosts.host(side).inside(here)
        };
        let mut groups = hosts.daemon_groups();
        groups.extend(programs.map(Process::group));
        Ok(Self {
            sockets: [open(Side::Server)?, open(Side::Client)?],
            groups,
        })
    }

    fn look(&self) -> Result<Held> {
        let mut held = Held {
            processes_kib: usage::usage(&self.groups).pss_kib,
            sockets_bytes: 0,
        };
        for sockets in &self.sockets {
            held.sockets_bytes += sockets.queued_bytes().map_err(|errno| {
                BenchError::Failed(format!(
                    "the kernel does not tell of sockets ({errno}); it may lack its module tcp_diag"
                ))
            })?;
        }
        Ok(held)
    }
}

fn stalled(session: &Session, variant: Variant, sleep_s: u32) -> Result<Vec<Sample>> {
    let hosts = Hosts::new(session, variant)?;
    let capture = Capture::begin(&hosts, variant)?;
    let slow_s = sleep_s.div_ceil(2);
    let mut reader = start_reader(&hosts, slow_s)?;
    let (port, pushing_s) = (reader.1.to_string(), (sleep_s + slow_s).to_string());
    let (address, window) = (hosts.address().to_string(), unread_mib().to_string());
    let words = ["flow-writer", &port, &address, &pushing_s, &window];
    let lanes_before = hosts.lanes_given()?;
    let mut writer = hosts.interactive(Side::Client, &session.helper(&words))?;
    let reader = &mut reader.0;
    writer.wait_output(OPEN, PATIENCE)?;
    reader.wait_output(OPEN, PATIENCE)?;

    let scales = Scales::new(&hosts, [&writer, reader])?;
    let (before, available) = (scales.look()?, machine::memory_available_bytes());
    drop(writer.take_input());
    let (start, sleep) = (Instant::now(), Duration::from_secs(u64::from(sleep_s)));
    let mut slept = Slept::default();
    let mut curve = Vec::new();
    for at in looks(sleep_s) {
        let held = loop {
            let held = scales.look()?;
            if start.elapsed() <= sleep {
                let lost = available.saturating_sub(machine::memory_available_bytes());
                slept.note(start.elapsed(), held, before, lost);
            }
            let left = at.saturating_sub(start.elapsed());
            if left.is_zero() {
                break held;
            }
            signals::pause(left.min(LOOK_EVERY))?;
        };
        curve.push(held.since_mib(before));
        if at == sleep {
            writer.ensure_running()?;
            drop(reader.take_input());
        }
    }
    reader.wait_output("}", PATIENCE)?;
    let flowed: Flowed = writer
        .finish(PATIENCE + 3 * sleep)?
        .read(super::super::stall::last_line)?;
    let drained: Drained = super::super::stall::last_line(&reader.output_so_far())?;
    check(&flowed, &drained)?;

    let accepted = flowed
        .progress
        .iter()
        .rfind(|(s, _)| *s <= sleep.as_secs_f64());
    let mut details: BTreeMap<&'static str, f64> = [
        (ALLOWED_MIB, allowed_mib(variant)),
        ("pushed_mib", flowed.bytes as f64 / MIB),
        ("refused_writes", flowed.refused as f64),
        ("machine_memory_mib", slept.machine_bytes as f64 / MIB),
        ("memory_afterwards_mib", scales.look()?.since_mib(before)),
    ]
    .into();
    if let Some(after_s) = flowed.window_full_s {
        details.insert(STOPPED_AFTER_S, after_s);
    }
    let mut sample = Sample {
        details,
        ..Sample::default()
    };
    hosts.note_lanes(lanes_before, &mut sample)?;
    ensure_taken(&hosts, variant, &capture)?;
    let summary = [
        slept.most_mib,
        slept.sockets_most_mib,
        slept.growth_mib(sleep),
        accepted.map_or(0.0, |(_, bytes)| *bytes as f64 / MIB),
    ];
    let values = summary.into_iter().chain(curve);
    let samples = values.map(|value| Sample {
        value,
        ..sample.clone()
    });
    Ok(samples.collect())
}

/// What was seen while the reader slept.
#[derive(Default)]
struct Slept {
    most_mib: f64,
    sockets_most_mib: f64,
    /// What the whole machine had less at most.
    machine_bytes: u64,
    seen: Vec<(Duration, f64)>,
}

impl Slept {
    fn note(&mut self, at: Duration, held: Held, before: Held, machine_bytes: u64) {
        let mib = held.since_mib(before);
        self.most_mib = self.most_mib.max(mib);
        self.sockets_most_mib = self.sockets_most_mib.max(held.sockets_mib());
        self.machine_bytes = self.machine_bytes.max(machine_bytes);
        self.seen.push((at, mib));
    }

    /// From the middle of the sleep to its end.
    fn growth_mib(&self, sleep: Duration) -> f64 {
        let middle = self.seen.iter().find(|(at, _)| *at >= sleep / 2);
        match (middle, self.seen.last()) {
            (Some((_, middle)), Some((_, last))) => (last - middle).max(0.0),
            _ => 0.0,
        }
    }
}

fn kept_up(session: &Session, variant: Variant) -> Result<Sample> {
    let hosts = Hosts::new(session, variant)?;
    let capture = Capture::begin(&hosts, variant)?;
    let (mut reader, port) = start_reader(&hosts, 0)?;
    drop(reader.take_input());
    let (port, address) = (port.to_string(), hosts.address().to_string());
    let window = AHEAD_MIB.min(unread_mib()).to_string();
    let words = [
        "flow-writer",
        &port,
        &address,
        &session.seconds.to_string(),
        &window,
    ];
    let (output, mut sample) = hosts.measured(&[&reader], &session.helper(&words))?;
    let flowed: Flowed = output.read(super::super::stall::last_line)?;
    let said = reader.wait_output("}", PATIENCE)?;
    let drained: Drained = super::super::stall::last_line(&said)?;
    check(&flowed, &drained)?;
    ensure_taken(&hosts, variant, &capture)?;
    sample.bytes = drained.bytes as f64;
    sample.value = 8.0 * sample.bytes / drained.seconds / 1e9;
    Ok(sample)
}

fn check(flowed: &Flowed, drained: &Drained) -> Result<()> {
    if flowed.bytes == drained.bytes {
        return Ok(());
    }
    Err(BenchError::Failed(format!(
        "of {} bytes {} arrived",
        flowed.bytes, drained.bytes
    )))
}

/// Fails if the bytes did not go the variant's way: unless a connection was captured since, or the
/// proxies got something.
fn ensure_taken(hosts: &Hosts<'_>, variant: Variant, capture: &Capture) -> Result<()> {
    if variant == Variant::SkMsg && !hosts.carried() {
        let what = "no bytes came to the proxies: they went by the connection itself";
        return Err(BenchError::Failed(what.to_owned()));
    }
    capture.ensure(hosts, 1)
}
