use super::super::Outcome;
use super::super::tests::report_of;
use super::*;
use crate::bench::model::{PointSpec, Sample};
use crate::bench::workloads::{Workload, roce};

/// A report as a run of all workloads makes it. Points whose value is `None` were not measured.
fn reports(value: impl Fn(&PointSpec, Variant) -> Option<f64>) -> Vec<WorkloadReport> {
    let report = |workload: &Workload| {
        report_of(workload, |spec, variant| {
            let value = value(spec, variant)?;
            Some(Sample {
                value,
                ..Sample::default()
            })
        })
    };
    roce::ALL.iter().map(report).collect()
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
fn latency_at_its_floor_reaches_it_and_only_over_af_xdp() {
    for (what, floor) in [("ib_write_lat, 8 B", 3.0), ("ib_send_lat, 8 B", 4.0)] {
        let at = |us: f64| {
            reports(move |_, variant| {
                Some(if variant == Variant::RoceXdp {
                    us
                } else {
                    50.0
                })
            })
        };
        assert_eq!(outcome(&at(floor), what).outcome, Outcome::Ok, "{what}");
        let above = outcome(&at(floor + 0.01), what);
        assert_eq!(above.outcome, Outcome::BelowFloor, "{what}");
        assert!(above.measured.contains("50.0 µs"), "{}", above.measured);
        let none = reports(|_, variant| (variant != Variant::RoceXdp).then_some(1.0));
        assert_eq!(outcome(&none, what).outcome, Outcome::NotRun, "{what}");
    }
}

#[test]
fn bandwidth_is_compared_with_tcp_of_the_same_link() {
    for (what, floor) in [
        ("ib_write_bw, 64 KiB, MTU 9000", 13.0),
        ("ib_write_bw, 64 KiB, MTU 1500", 6.5),
    ] {
        let at = |gb_per_s: f64| {
            reports(move |_, variant| {
                Some(if variant == Variant::Tcp {
                    13.0
                } else {
                    gb_per_s
                })
            })
        };
        assert_eq!(outcome(&at(floor), what).outcome, Outcome::Ok, "{what}");
        let below = outcome(&at(floor - 0.1), what);
        assert_eq!(below.outcome, Outcome::BelowFloor, "{what}");
    }
    let without_tcp = reports(|_, variant| (variant != Variant::Tcp).then_some(20.0));
    let verdict = outcome(&without_tcp, "ib_write_bw, 64 KiB, MTU 9000");
    assert_eq!(verdict.outcome, Outcome::NotRun);
}

#[test]
fn the_least_of_all_numbers_of_queue_pairs_decides() {
    let at = |one: f64, many: f64| {
        reports(move |spec, _| {
            Some(match &*spec.label {
                messages::ONE => one,
                "64 QPs" => many,
                _ => 1e6,
            })
        })
    };
    let each = "ib_send_bw, 64 B, 1, 16 and 64 QPs";
    assert_eq!(outcome(&at(0.5e6, 0.5e6), each).outcome, Outcome::Ok);
    for reports in [at(0.49e6, 0.6e6), at(0.6e6, 0.49e6)] {
        assert_eq!(outcome(&reports, each).outcome, Outcome::BelowFloor);
    }
    let flat = "ib_send_bw, 64 B, 16 and 64 QPs";
    assert_eq!(outcome(&at(1e6, 0.7e6), flat).outcome, Outcome::Ok);
    let sloping = outcome(&at(1e6, 0.69e6), flat);
    assert_eq!(sloping.outcome, Outcome::BelowFloor);
    assert!(sloping.measured.contains("64 QPs"), "{}", sloping.measured);
}

#[test]
fn loss_may_cost_half() {
    let what = "ib_write_bw, 64 KiB, 1 % of the packets lost";
    let at = |lossy: f64| {
        reports(move |spec, _| {
            Some(if spec.label == loss::LOSSY {
                lossy
            } else {
                10.0
            })
        })
    };
    assert_eq!(outcome(&at(5.0), what).outcome, Outcome::Ok);
    assert_eq!(outcome(&at(4.9), what).outcome, Outcome::BelowFloor);
}
