use super::*;
use crate::model::{LANES, PointSpec, Sample};
use crate::suites;
use crate::workloads::{self, Options, redis};

pub fn options() -> Options {
    Options {
        variants: vec![Variant::Tcp, Variant::Unix, Variant::Sluice],
        full: false,
        brief: false,
        repetitions: 1,
        seconds: 1,
        redis_clients: redis::CLIENTS.to_vec(),
        busy_connections: Vec::new(),
        redis_tests: redis::TESTS.map(str::to_owned).into(),
        idle_connections: 1_000,
        idle_seconds: 10,
        stall_seconds: 30,
        window_delay_ns: 1_000,
        repeats_max: 0,
    }
}

/// A report as a run of all workloads makes it, TCP always at 100 and each other variant where
/// `value` puts it. Points whose value is `None` were not measured.
pub fn reports(value: impl Fn(&str, &PointSpec, Variant) -> Option<f64>) -> Vec<WorkloadReport> {
    let report = |workload: &workloads::Workload| {
        report_of(workload, |spec, variant| {
            let value = match variant {
                Variant::Tcp => Some(100.0),
                variant => value(workload.name, spec, variant),
            };
            value.map(sample)
        })
    };
    suites::SOCKETS.workloads.iter().map(report).collect()
}

/// A report as a run makes it, with one repetition.
pub fn report_of(
    workload: &workloads::Workload,
    sample: impl Fn(&PointSpec, Variant) -> Option<Sample>,
) -> WorkloadReport {
    let mut points = Vec::new();
    for cell in (workload.cells)(&options()) {
        for spec in &cell.points {
            let mut point = Point::new(spec.clone(), &cell.variants);
            for series in &mut point.series {
                series.samples.extend(sample(spec, series.variant));
            }
            point.summarise();
            points.push(point);
        }
    }
    WorkloadReport {
        name: workload.name,
        title: workload.title,
        about: workload.about,
        skipped: None,
        missing: Vec::new(),
        points,
        commands: Vec::new(),
    }
}

/// A run that needs as much CPU time as its value.
fn sample(value: f64) -> Sample {
    Sample {
        value,
        cpu_client_s: value,
        operations: 1e6,
        bytes: 1e9,
        details: [
            (LANES, 1.0),
            (idle::WATCHED_S, 10.0),
            (stall::BLOCKED_S, 29.9),
            (stall::SLEPT_S, 30.0),
            (stall::RING_KIB, 256.0),
        ]
        .into(),
        ..Sample::default()
    }
}

fn outcomes(reports: &[WorkloadReport]) -> Vec<(String, Outcome)> {
    verdicts(reports)
        .into_iter()
        .map(|verdict| (verdict.what, verdict.outcome))
        .collect()
}

fn outcome(reports: &[WorkloadReport], what: &str) -> Verdict {
    let found = verdicts(reports).into_iter().find(|v| v.what == what);
    found.unwrap_or_else(|| panic!("there is no floor '{what}'"))
}

#[test]
fn every_floor_finds_its_points() {
    let all_equal = reports(|_, _, _| Some(100.0));
    for (what, outcome) in outcomes(&all_equal) {
        assert_ne!(outcome, Outcome::NotRun, "{what}");
    }
}

#[test]
fn nothing_was_run() {
    for (what, outcome) in outcomes(&[]) {
        assert_eq!(outcome, Outcome::NotRun, "{what}");
    }
    let without_sluice = reports(|_, _, _| None);
    for (what, outcome) in outcomes(&without_sluice) {
        assert_eq!(outcome, Outcome::NotRun, "{what}");
    }
}

#[test]
fn ratio_at_the_floor_reaches_it_and_the_least_point_decides() {
    let at = |get: f64| {
        reports(move |workload, spec, _| match (workload, &*spec.group) {
            ("redis", "GET") if spec.label == "10 clients" => Some(get),
            _ => Some(500.0),
        })
    };
    let what = "redis requests/s, 10 clients";
    assert_eq!(outcome(&at(300.0), what).outcome, Outcome::Ok);
    let below = outcome(&at(299.0), what);
    assert_eq!(below.outcome, Outcome::BelowFloor);
    assert!(
        below.measured.contains("GET, 10 clients"),
        "{}",
        below.measured
    );
}

#[test]
fn latencies_are_better_when_lower() {
    let at = |us: f64| reports(move |_, _, _| Some(us));
    let (what, polling) = (
        "sockperf ping-pong median, 64 B",
        "sockperf ping-pong median, 64 B, both ends poll",
    );
    assert_eq!(outcome(&at(1.0), what).outcome, Outcome::Ok);
    assert_eq!(outcome(&at(1.0), polling).outcome, Outcome::Ok);
    assert_eq!(outcome(&at(4.0), what).outcome, Outcome::BelowFloor);
    assert_eq!(outcome(&at(1.1), polling).outcome, Outcome::BelowFloor);
}

#[test]
fn one_dear_point_misses_the_cost_floor_and_is_named() {
    let at = |dear: f64| {
        reports(move |_, spec, _| {
            let is_dear = spec.group == "reverse" && spec.label == "8 streams";
            Some(if is_dear { dear } else { 50.0 })
        })
    };
    assert_eq!(outcome(&at(99.0), "CPU time per GB").outcome, Outcome::Ok);
    let missed = outcome(&at(100.0), "CPU time per GB");
    assert_eq!(missed.outcome, Outcome::BelowFloor);
    assert!(
        missed.measured.contains("5 of 6 points below")
            && missed.measured.contains("reverse, 8 streams"),
        "{}",
        missed.measured
    );
}

#[test]
fn short_connections_may_cost_a_little_more() {
    let what = "CPU time per request, new connection per request";
    let at = |dear: f64| {
        reports(move |_, spec, _| {
            let is_short = spec.group == "new connection per request";
            Some(if is_short { dear } else { 50.0 })
        })
    };
    assert_eq!(outcome(&at(125.0), what).outcome, Outcome::Ok);
    assert_eq!(outcome(&at(126.0), what).outcome, Outcome::BelowFloor);
    let requests = outcome(&at(126.0), "CPU time per request");
    assert_eq!(requests.outcome, Outcome::Ok, "{}", requests.measured);
}

#[test]
fn one_end_is_judged_by_pairs() {
    let what = "server only under sluice run";
    let at = |value: f64| reports(move |_, _, _| Some(value));
    assert_eq!(outcome(&at(97.0), what).outcome, Outcome::Ok);
    assert_eq!(outcome(&at(96.0), what).outcome, Outcome::BelowFloor);
    // One point of four is clearly slower: the pool's median is not, but it is not hidden.
    let one = reports(|_, spec, _| {
        let is_slow = spec.group == "GET" && spec.label == "50 clients";
        Some(if is_slow { 90.0 } else { 100.0 })
    });
    let verdict = outcome(&one, what);
    assert_eq!(verdict.outcome, Outcome::BelowFloor);
    assert!(
        verdict.measured.contains("GET, 50 clients"),
        "{}",
        verdict.measured
    );
}

#[test]
fn idle_connections_that_cost_something_miss_their_floors() {
    let floors = [
        ("idle connections: CPU", 4.9, 5.1),
        ("idle connections: wake-ups", 0.0, 1.0),
        ("idle connections: memory of one, both ends", 63.9, 64.0),
    ];
    for (what, good, bad) in floors {
        let at = |value: f64| reports(move |_, _, _| Some(value));
        assert_eq!(outcome(&at(good), what).outcome, Outcome::Ok, "{what}");
        let verdict = outcome(&at(bad), what);
        assert_eq!(verdict.outcome, Outcome::BelowFloor, "{what}");
    }
}

#[test]
fn writer_that_is_not_blocked_or_fills_memory_misses_its_floor() {
    let (writer, memory) = (
        "sleeping reader: the writer is blocked",
        "sleeping reader: memory of both ends",
    );
    let at = |value: f64| reports(move |_, _, _| Some(value));
    assert_eq!(outcome(&at(299.0), writer).outcome, Outcome::Ok);
    assert_eq!(outcome(&at(300.0), writer).outcome, Outcome::BelowFloor);
    assert_eq!(outcome(&at(384.0), memory).outcome, Outcome::Ok);
    assert_eq!(outcome(&at(385.0), memory).outcome, Outcome::BelowFloor);

    let mut not_blocked = at(1.0);
    for workload in &mut not_blocked {
        for series in workload.points.iter_mut().flat_map(|p| &mut p.series) {
            series.details.insert(stall::BLOCKED_S, 20.0);
        }
    }
    let verdict = outcome(&not_blocked, writer);
    assert_eq!(verdict.outcome, Outcome::BelowFloor);
}

#[test]
fn failed_run_is_no_success_and_not_left_out() {
    let mut reports = reports(|_, _, _| Some(1e6));
    for point in reports.iter_mut().flat_map(|w| &mut w.points) {
        if point.spec.label == "3 streams" && point.spec.group == "reverse" {
            point.series[1].failure = Some("broken".to_owned());
            point.series[1].median = None;
        }
    }
    let verdict = outcome(&reports, "iperf3, three streams");
    assert_eq!(verdict.outcome, Outcome::Failed);
    assert_eq!(outcome(&reports, "iperf3, one stream").outcome, Outcome::Ok);
}

#[test]
fn disturbed_runs_leave_a_doubt() {
    let mut reports = reports(|_, _, _| Some(1e6));
    assert!(verdicts(&reports).iter().all(|verdict| !verdict.doubtful));
    for point in reports.iter_mut().flat_map(|w| &mut w.points) {
        for sample in &mut point.series[0].samples {
            sample.cpu_others_share = 0.5;
        }
    }
    assert!(outcome(&reports, "iperf3, one stream").doubtful);
}
