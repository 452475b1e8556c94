//! The floors that Sluice promises, and whether a run reached them.

pub mod fabric;
pub mod verbs;
pub mod windows;

use serde::Serialize;

use super::figures::{number, ratio};
use super::model::{CostUnit, Point, Series, Variant, WorkloadReport};
use super::stats::PairedRatio;
use super::workloads::{busy, idle, stall};

/// How a run compares with one floor.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Outcome {
    Ok,
    BelowFloor,
    /// A run that the floor is about failed.
    Failed,
    /// What the floor is about was not measured, or not everything that it compares.
    NotRun,
}

impl Outcome {
    pub fn title(self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::BelowFloor => "below the floor",
            Self::Failed => "failed",
            Self::NotRun => "not run",
        }
    }

    fn of(reached: bool) -> Self {
        if reached { Self::Ok } else { Self::BelowFloor }
    }
}

/// One floor with what was measured.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Verdict {
    pub what: String,
    pub floor: String,
    pub measured: String,
    pub outcome: Outcome,
    /// Other programs took so much of the processors that the figure may be wrong.
    pub doubtful: bool,
}

/// Points of a report that a floor is about.
#[derive(Debug, Clone, Copy)]
struct Selection {
    workload: &'static str,
    /// `None`: all.
    group: Option<&'static str>,
    label: Label,
}

#[derive(Debug, Clone, Copy)]
enum Label {
    Any,
    Is(&'static str),
    Without(&'static str),
}

impl Selection {
    fn points<'a>(&self, workloads: &'a [WorkloadReport]) -> Vec<&'a Point> {
        workloads
            .iter()
            .filter(|workload| workload.name == self.workload)
            .flat_map(|workload| &workload.points)
            .filter(|point| self.group.is_none_or(|group| point.spec.group == group))
            .filter(|point| match self.label {
                Label::Any => true,
                Label::Is(label) => point.spec.label == label,
                Label::Without(word) => !point.spec.label.contains(word),
            })
            .collect()
    }
}

/// A floor for the ratio of Sluice to TCP, to be reached at each selected point.
struct RatioFloor {
    what: &'static str,
    floor: f64,
    points: Selection,
}

const fn redis(what: &'static str, label: &'static str, floor: f64) -> RatioFloor {
    RatioFloor {
        what,
        floor,
        points: Selection {
            workload: "redis",
            group: None,
            label: Label::Is(label),
        },
    }
}

const fn other(
    what: &'static str,
    floor: f64,
    workload: &'static str,
    group: Option<&'static str>,
    label: Label,
) -> RatioFloor {
    RatioFloor {
        what,
        floor,
        points: Selection {
            workload,
            group,
            label,
        },
    }
}

const PING_PONG: Option<&str> = Some("ping-pong, median one way");

const RATIO_FLOORS: [RatioFloor; 10] = [
    redis("redis requests/s, 1 client", "1 client", 15.0),
    redis("redis requests/s, 10 clients", "10 clients", 3.0),
    redis("redis requests/s, 50 clients", "50 clients", 2.0),
    redis("redis requests/s, 500 clients", "500 clients", 1.5),
    redis("redis requests/s, 1000 clients", "1000 clients", 1.3),
    other(
        "sockperf ping-pong median, 64 B",
        30.0,
        "sockperf",
        PING_PONG,
        Label::Is("64 B"),
    ),
    other(
        "iperf3, one stream",
        3.0,
        "iperf3",
        None,
        Label::Is("1 stream"),
    ),
    other(
        "iperf3, three streams",
        2.0,
        "iperf3",
        None,
        Label::Is("3 streams"),
    ),
    other(
        "nginx and wrk, keep-alive, 50 connections",
        1.5,
        "nginx",
        Some("keep-alive"),
        Label::Without("haproxy"),
    ),
    other(
        "nginx and wrk, new connection per request",
        0.8,
        "nginx",
        Some(NEW_CONNECTIONS),
        Label::Any,
    ),
];

/// The requests of these points stay on TCP: no lane earns back there what it costs.
const NEW_CONNECTIONS: &str = "new connection per request";
/// What a rate of 0.8 of TCP's allows, should all of the rest be work.
const NEW_CONNECTION_COST_MAX: f64 = 1.25;

/// With both ends polling, one way.
const POLLING_LATENCY_MAX_US: f64 = 1.0;
const POLLING: Selection = Selection {
    workload: "sockperf",
    group: PING_PONG,
    label: Label::Is("64 B, both ends poll"),
};

/// A rate with one end under Sluice, divided by the plain one of the same repetition.
const ONE_END_RATIO_MIN: f64 = 0.97;

/// A rate on a busy machine, divided by the plain one of the same repetition.
const BUSY_RATIO_MIN: f64 = 0.9;

/// What shows as 0.0 %.
const IDLE_CPU_PERCENT_MAX: f64 = 0.05;
const IDLE_MEMORY_KIB_MAX: f64 = 64.0;

/// A blocked writer was stopped for nearly all of the reader's sleep, and used nearly nothing.
const STALL_BLOCKED_SHARE_MIN: f64 = 0.9;
const STALL_CPU_SHARE_MAX: f64 = 0.01;
/// What may be resident beside the ring that was filled: both programs' buffers and the pages of
/// code that they had not needed before.
const STALL_MEMORY_BESIDE_RING_KIB: f64 = 128.0;

/// Every floor, in the order in which they are promised.
pub fn verdicts(workloads: &[WorkloadReport]) -> Vec<Verdict> {
    let mut verdicts: Vec<Verdict> = RATIO_FLOORS
        .iter()
        .map(|floor| ratio_verdict(floor, workloads))
        .collect();
    let after_ping_pong = RATIO_FLOORS
        .iter()
        .position(|floor| floor.points.workload == POLLING.workload)
        .map_or(verdicts.len(), |index| index + 1);
    verdicts.insert(after_ping_pong, polling_verdict(workloads));
    verdicts.extend([
        cost_verdict("CPU time per request", CostUnit::Operation, workloads),
        cost_verdict("CPU time per GB", CostUnit::Gigabyte, workloads),
        new_connection_cost_verdict(workloads),
        one_end_verdict(
            "server only under sluice run",
            Variant::ServerOnly,
            workloads,
        ),
        one_end_verdict(
            "client only under sluice run",
            Variant::ClientOnly,
            workloads,
        ),
    ]);
    verdicts.extend(busy::GROUPS.map(|group| busy_verdict(group, workloads)));
    verdicts.extend(idle_verdicts(workloads));
    verdicts.extend(stall_verdicts(workloads));
    verdicts
}

/// Decides about points that have a series of `variant`: failed and missing ones first, then
/// `judge` with those that have a median.
fn judged(
    (what, floor): (&str, String),
    points: &[&Point],
    variant: Variant,
    judge: impl FnOnce(&[(&Point, &Series)]) -> Option<(String, bool)>,
) -> Verdict {
    let found: Vec<(&Point, &Series)> = points
        .iter()
        .filter_map(|point| Some((*point, point.of(variant)?)))
        .collect();
    let failed = found.iter().find(|(point, series)| {
        series.failure.is_some()
            || point
                .baseline()
                .is_some_and(|baseline| baseline.failure.is_some())
    });
    let measured = found.iter().all(|(_, series)| series.median.is_some());
    let (measured, outcome) = if let Some((point, _)) = failed {
        (place(point), Outcome::Failed)
    } else if found.is_empty() || !measured {
        ("–".to_owned(), Outcome::NotRun)
    } else {
        judge(&found).map_or(
            ("–".to_owned(), Outcome::NotRun),
            |(measured, reached)| (measured, Outcome::of(reached)),
        )
    };
    let doubtful = found
        .iter()
        .any(|(point, series)| point.is_doubtful(series));
    Verdict {
        what: what.to_owned(),
        floor,
        measured,
        doubtful: doubtful && matches!(outcome, Outcome::Ok | Outcome::BelowFloor),
        outcome,
    }
}

fn place(point: &Point) -> String {
    format!("{}, {}", point.spec.group, point.spec.label)
}

/// The least and the greatest of a figure, and the point of the least.
fn extremes<'a>(
    found: &[(&'a Point, &'a Series)],
    figure: impl Fn(&Series) -> Option<f64>,
) -> Option<(f64, f64, &'a Point, &'a Point)> {
    let figures: Option<Vec<(f64, &Point)>> = found
        .iter()
        .map(|(point, series)| Some((figure(series)?, *point)))
        .collect();
    let figures = figures?;
    let least = figures.iter().min_by(|a, b| a.0.total_cmp(&b.0))?;
    let greatest = figures.iter().max_by(|a, b| a.0.total_cmp(&b.0))?;
    Some((least.0, greatest.0, least.1, greatest.1))
}

fn ratio_verdict(floor: &RatioFloor, workloads: &[WorkloadReport]) -> Verdict {
    let points = floor.points.points(workloads);
    let head = (floor.what, format!("{}×", floor.floor));
    judged(head, &points, Variant::Sluice, |found| {
        let (least, greatest, point, _) = extremes(found, |series| series.ratio)?;
        let measured = if found.len() == 1 {
            ratio(Some(least))
        } else {
            let (least, greatest) = (ratio(Some(least)), ratio(Some(greatest)));
            format!("{least} to {greatest} (least: {})", place(point))
        };
        Some((measured, least >= floor.floor))
    })
}

fn polling_verdict(workloads: &[WorkloadReport]) -> Verdict {
    let what = "sockperf ping-pong median, 64 B, both ends poll";
    let head = (what, format!("{POLLING_LATENCY_MAX_US} µs"));
    judged(head, &POLLING.points(workloads), Variant::Sluice, |found| {
        let (_, series) = found.first()?;
        let latency_us = series.median?;
        let against = series.ratio.map_or_else(String::new, |times| {
            format!(" ({} against polling TCP)", ratio(Some(times)))
        });
        let measured = format!("{} µs{against}", number(latency_us));
        Some((measured, latency_us <= POLLING_LATENCY_MAX_US))
    })
}

fn cost_verdict(what: &str, unit: CostUnit, workloads: &[WorkloadReport]) -> Verdict {
    // Connections that carry one byte have no requests, and one-ended runs and connections of one
    // request no lanes.
    let points: Vec<&Point> = workloads
        .iter()
        .filter(|workload| !matches!(workload.name, "connect" | "one-end"))
        .flat_map(|workload| &workload.points)
        .filter(|point| point.spec.cost_unit == unit && point.spec.group != NEW_CONNECTIONS)
        .collect();
    judged(
        (what, "below 1×".to_owned()),
        &points,
        Variant::Sluice,
        |found| {
            let (least, most, _, worst) = extremes(found, |series| series.cpu_cost_ratio)?;
            let below = |(_, series): &&(&Point, &Series)| {
                series.cpu_cost_ratio.is_some_and(|ratio| ratio < 1.0)
            };
            let measured = format!(
                "{} to {}, {} of {} points below (most: {})",
                ratio(Some(least)),
                ratio(Some(most)),
                found.iter().filter(below).count(),
                found.len(),
                place(worst)
            );
            Some((measured, most < 1.0))
        },
    )
}

fn new_connection_cost_verdict(workloads: &[WorkloadReport]) -> Verdict {
    let points = Selection {
        workload: "nginx",
        group: Some(NEW_CONNECTIONS),
        label: Label::Any,
    }
    .points(workloads);
    let head = (
        "CPU time per request, new connection per request",
        format!("{NEW_CONNECTION_COST_MAX}× at most"),
    );
    judged(head, &points, Variant::Sluice, |found| {
        let (least, most, _, worst) = extremes(found, |series| series.cpu_cost_ratio)?;
        let measured = format!(
            "{} to {} (most: {})",
            ratio(Some(least)),
            ratio(Some(most)),
            place(worst)
        );
        Some((measured, most <= NEW_CONNECTION_COST_MAX))
    })
}

fn one_end_verdict(what: &str, variant: Variant, workloads: &[WorkloadReport]) -> Verdict {
    let points = Selection {
        workload: "one-end",
        group: None,
        label: Label::Any,
    }
    .points(workloads);
    let head = (what, format!("{ONE_END_RATIO_MIN}×"));
    judged(head, &points, variant, |found| {
        let ratios: Option<Vec<PairedRatio>> = found
            .iter()
            .map(|(_, series)| series.paired_ratio)
            .collect();
        let ratios = ratios?;
        let all: Vec<f64> = found
            .iter()
            .flat_map(|(point, series)| point.pairs(series))
            .collect();
        let pooled = PairedRatio::of(&all)?;
        let (least, _, point, _) = extremes(found, |series| Some(series.paired_ratio?.median))?;
        let measured = format!(
            "{:.3}× (middle half {:.3}–{:.3} of {} pairs; least point {least:.3}×: {})",
            pooled.median,
            pooled.lower_quartile,
            pooled.upper_quartile,
            pooled.pairs,
            place(point)
        );
        // The median of all pairs must be near TCP's; and no point may be clearly slower, which
        // it is when three quarters of its pairs are.
        let clearly_slower = ratios.iter().any(|r| r.upper_quartile < ONE_END_RATIO_MIN);
        Some((
            measured,
            pooled.median >= ONE_END_RATIO_MIN && !clearly_slower,
        ))
    })
}

/// The median of all pairs at each point.
fn busy_verdict(group: &'static str, workloads: &[WorkloadReport]) -> Verdict {
    let points = Selection {
        workload: "busy",
        group: Some(group),
        label: Label::Any,
    }
    .points(workloads);
    let what = format!("busy machine: {group}");
    let head = (&*what, format!("{BUSY_RATIO_MIN}×"));
    judged(head, &points, Variant::Sluice, |found| {
        let median = |series: &Series| Some(series.paired_ratio?.median);
        let (least, greatest, point, _) = extremes(found, median)?;
        let (low, high) = (ratio(Some(least)), ratio(Some(greatest)));
        let measured = format!("{low} to {high} (least: {})", point.spec.label);
        Some((measured, least >= BUSY_RATIO_MIN))
    })
}

fn idle_verdicts(workloads: &[WorkloadReport]) -> [Verdict; 3] {
    let points = |group| {
        Selection {
            workload: "idle",
            group: Some(group),
            label: Label::Any,
        }
        .points(workloads)
    };
    let cpu = judged(
        ("idle connections: CPU", "0.0 %".to_owned()),
        &points(idle::CPU),
        Variant::Sluice,
        |found| {
            let (point, series) = found.first()?;
            let watched_ms = 1e3 * series.details.get(idle::WATCHED_S)?;
            let percent = 100.0 * series.median? / watched_ms;
            let measured = format!("{percent:.3} % ({})", point.spec.label);
            Some((measured, percent < IDLE_CPU_PERCENT_MAX))
        },
    );
    let wake_ups = judged(
        ("idle connections: wake-ups", "none".to_owned()),
        &points(idle::WAKE_UPS),
        Variant::Sluice,
        |found| {
            let (point, series) = found.first()?;
            let tcp = point.of(Variant::Tcp).and_then(|tcp| tcp.median);
            let against = tcp.map_or_else(String::new, |tcp| format!(" (TCP: {})", number(tcp)));
            let count = series.median?;
            Some((format!("{}{against}", number(count)), count == 0.0))
        },
    );
    let memory = judged(
        (
            "idle connections: memory of one, both ends",
            format!("below {IDLE_MEMORY_KIB_MAX} KiB"),
        ),
        &points(idle::MEMORY),
        Variant::Sluice,
        |found| {
            let kib = found.first()?.1.median?;
            Some((format!("{} KiB", number(kib)), kib < IDLE_MEMORY_KIB_MAX))
        },
    );
    [cpu, wake_ups, memory]
}

fn stall_verdicts(workloads: &[WorkloadReport]) -> [Verdict; 2] {
    let points = |group| {
        Selection {
            workload: "stall",
            group: Some(group),
            label: Label::Any,
        }
        .points(workloads)
    };
    let accepted = points(stall::ACCEPTED);
    let accepted_of = |variant| accepted.first().and_then(|point| point.of(variant)?.median);
    let writer = judged(
        (
            "sleeping reader: the writer is blocked",
            "blocked, without CPU".to_owned(),
        ),
        &points(stall::BLOCKED_CPU),
        Variant::Sluice,
        |found| {
            let (_, series) = found.first()?;
            let (cpu_ms, blocked_s) = (series.median?, *series.details.get(stall::BLOCKED_S)?);
            let slept_s = *series.details.get(stall::SLEPT_S)?;
            let tcp = accepted_of(Variant::Tcp)
                .map_or_else(String::new, |kib| format!(" (TCP: {} KiB)", number(kib)));
            let measured = format!(
                "for {blocked_s:.1} of {slept_s} s after {} KiB{tcp}, CPU {} ms",
                number(accepted_of(Variant::Sluice)?),
                number(cpu_ms)
            );
            let reached = blocked_s >= STALL_BLOCKED_SHARE_MIN * slept_s
                && cpu_ms / 1e3 <= STALL_CPU_SHARE_MAX * blocked_s;
            Some((measured, reached))
        },
    );
    let memory = judged(
        (
            "sleeping reader: memory of both ends",
            format!("one ring and {STALL_MEMORY_BESIDE_RING_KIB} KiB"),
        ),
        &points(stall::MEMORY),
        Variant::Sluice,
        |found| {
            let (point, series) = found.first()?;
            let (growth_kib, ring_kib) = (series.median?, *series.details.get(stall::RING_KIB)?);
            let tcp = point
                .of(Variant::Tcp)
                .and_then(|tcp| tcp.median)
                .map_or_else(String::new, |kib| format!(" (TCP: {} KiB)", number(kib)));
            let measured = format!(
                "grew by {} KiB{tcp}, a ring is {} KiB",
                number(growth_kib),
                number(ring_kib)
            );
            let most_kib = ring_kib + STALL_MEMORY_BESIDE_RING_KIB;
            Some((measured, growth_kib <= most_kib))
        },
    );
    [writer, memory]
}

#[cfg(test)]
pub mod tests;
