use super::super::Outcome;
use super::super::tests::report_of;
use super::*;
use crate::bench::model::{PointSpec, Sample};
use crate::bench::workloads::{Workload, verbs};

/// A report as a run of all workloads makes it. Points whose value is `None` were not measured.
pub fn reports(value: impl Fn(&PointSpec, Variant) -> Option<f64>) -> Vec<WorkloadReport> {
    let report = |workload: &Workload| {
        report_of(workload, |spec, variant| {
            let value = value(spec, variant)?;
            Some(Sample {
                value,
                details: [(WATCHED_S, 10.0)].into(),
                ..Sample::default()
            })
        })
    };
    verbs::ALL.iter().map(report).collect()
}

fn outcome(reports: &[WorkloadReport], what: &str) -> Verdict {
    let found = verdicts(reports).into_iter().find(|v| v.what == what);
    found.unwrap_or_else(|| panic!("there is no floor '{what}'"))
}

#[test]
fn every_floor_finds_its_points() {
    for verdict in verdicts(&reports(|_, _| Some(1.0))) {
        assert_ne!(verdict.outcome, Outcome::NotRun, "{}", verdict.what);
    }
    for verdict in verdicts(&[]) {
        assert_eq!(verdict.outcome, Outcome::NotRun, "{}", verdict.what);
    }
}

#[test]
fn latency_at_its_floor_reaches_it() {
    for (what, floor) in [
        ("ib_write_lat, 8 B", 0.3),
        ("ib_send_lat, 8 B", 0.6),
        ("ib_read_lat, 8 B", 0.5),
        ("ib_atomic_lat, 8 B", 0.5),
    ] {
        let at = |us: f64| reports(move |_, _| Some(us));
        assert_eq!(outcome(&at(floor), what).outcome, Outcome::Ok, "{what}");
        let above = outcome(&at(floor + 0.01), what);
        assert_eq!(above.outcome, Outcome::BelowFloor, "{what}");
    }
}

#[test]
fn private_memory_is_compared_with_cma() {
    let what = "ib_write_lat, 8 B, memory not shared";
    let at = |us: f64, cma_us: Option<f64>| {
        reports(move |_, variant| match variant {
            Variant::UcxCma => cma_us,
            _ => Some(us),
        })
    };
    assert_eq!(outcome(&at(1.7, Some(1.8)), what).outcome, Outcome::Ok);
    let missed = outcome(&at(1.8, Some(1.8)), what);
    assert_eq!(missed.outcome, Outcome::BelowFloor);
    assert!(
        missed.measured.contains("UCX cma: 1.80 µs"),
        "{}",
        missed.measured
    );
    assert_eq!(outcome(&at(1.7, None), what).outcome, Outcome::NotRun);
}

#[test]
fn bandwidth_is_a_share_of_memcpy() {
    for what in ["ib_write_bw, 64 KiB", "ib_read_bw, 64 KiB"] {
        let at = |gb_per_s: f64| {
            reports(move |_, variant| {
                Some(if variant == Variant::Memcpy {
                    40.0
                } else {
                    gb_per_s
                })
            })
        };
        assert_eq!(outcome(&at(28.0), what).outcome, Outcome::Ok);
        assert_eq!(outcome(&at(27.9), what).outcome, Outcome::BelowFloor);
    }
}

#[test]
fn a_hundred_queue_pairs_are_compared_with_one() {
    let at = |many: f64| {
        reports(move |spec, _| {
            Some(if spec.label == queue_pairs::MANY {
                many
            } else {
                10e6
            })
        })
    };
    for what in ["ib_write_bw, 64 B, 100 QPs", "ib_send_bw, 64 B, 100 QPs"] {
        assert_eq!(outcome(&at(7e6), what).outcome, Outcome::Ok, "{what}");
        assert_eq!(
            outcome(&at(6.9e6), what).outcome,
            Outcome::BelowFloor,
            "{what}"
        );
    }
}

#[test]
fn messages_and_idleness_have_their_floors() {
    let at = |value: f64| reports(move |_, _| Some(value));
    let messages = "ib_send_bw, 64 B";
    assert_eq!(outcome(&at(3e6), messages).outcome, Outcome::Ok);
    assert_eq!(outcome(&at(2.9e6), messages).outcome, Outcome::BelowFloor);
    let cpu = "idle passive process: CPU";
    assert_eq!(outcome(&at(4.9), cpu).outcome, Outcome::Ok);
    assert_eq!(outcome(&at(5.1), cpu).outcome, Outcome::BelowFloor);
    let wake_ups = "idle passive process: wake-ups";
    assert_eq!(outcome(&at(0.0), wake_ups).outcome, Outcome::Ok);
    assert_eq!(outcome(&at(1.0), wake_ups).outcome, Outcome::BelowFloor);
}
