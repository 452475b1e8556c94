use super::super::Outcome;
use super::super::tests::report_of;
use super::*;
use crate::model::{PointSpec, Sample};
use crate::suites::{ROCE, RXE, Suite, VERBS};

static SUITES: [&Suite; 3] = [&VERBS, &ROCE, &RXE];

/// A report as a run of all workloads makes it. Points whose value is `None` were not measured.
pub fn reports(
    suite: &Suite,
    value: impl Fn(&PointSpec, Variant) -> Option<f64>,
) -> Vec<WorkloadReport> {
    let report = |workload| {
        report_of(workload, |spec, variant| {
            let value = value(spec, variant)?;
            Some(Sample {
                value,
                details: [(WATCHED_S, 10.0)].into(),
                ..Sample::default()
            })
        })
    };
    suite.workloads.iter().map(report).collect()
}

/// The floor in a report in which `value` decides about the figures.
fn outcome(
    suite: &Suite,
    what: &str,
    value: impl Fn(&PointSpec, Variant) -> Option<f64>,
) -> Verdict {
    let verdicts = (suite.verdicts)(&reports(suite, value));
    let found = verdicts.into_iter().find(|verdict| verdict.what == what);
    found.unwrap_or_else(|| panic!("there is no floor '{what}'"))
}

/// One figure reaches the floor and another, next to it, does not.
fn edge(
    suite: &Suite,
    what: &str,
    (reaching, missing): (f64, f64),
    value: impl Fn(f64, &PointSpec, Variant) -> f64,
) {
    for (figure, expected) in [(reaching, Outcome::Ok), (missing, Outcome::BelowFloor)] {
        let verdict = outcome(suite, what, |spec, variant| {
            Some(value(figure, spec, variant))
        });
        assert_eq!(verdict.outcome, expected, "{what} at {figure}");
    }
}

#[test]
fn every_floor_finds_its_points() {
    for suite in SUITES {
        for verdict in (suite.verdicts)(&reports(suite, |_, _| Some(1.0))) {
            assert_ne!(verdict.outcome, Outcome::NotRun, "{}", verdict.what);
        }
        for verdict in (suite.verdicts)(&[]) {
            assert_eq!(verdict.outcome, Outcome::NotRun, "{}", verdict.what);
        }
    }
}

#[test]
fn floors_in_a_unit_have_an_edge() {
    for (suite, what, edges) in [
        (&VERBS, "ib_write_lat, 8 B", (0.3, 0.31)),
        (&VERBS, "ib_send_lat, 8 B", (0.6, 0.61)),
        (&VERBS, "ib_read_lat, 8 B", (0.5, 0.51)),
        (&VERBS, "ib_atomic_lat, 8 B", (0.5, 0.51)),
        (&VERBS, "ib_send_bw, 64 B", (3e6, 2.9e6)),
        // Milliseconds of ten seconds.
        (&VERBS, "idle passive process: CPU", (4.9, 5.1)),
        (&VERBS, "idle passive process: wake-ups", (0.0, 1.0)),
        (&ROCE, "ib_write_lat, 8 B", (3.0, 3.01)),
        (&ROCE, "ib_send_lat, 8 B", (4.0, 4.01)),
        (&ROCE, "ib_send_bw, 64 B, 1, 16 and 64 QPs", (0.5e6, 0.49e6)),
    ] {
        edge(suite, what, edges, |figure, _, _| figure);
    }
}

#[test]
fn floors_between_hosts_are_about_af_xdp_alone() {
    let what = "ib_write_lat, 8 B";
    let others_late = outcome(&ROCE, what, |_, variant| {
        Some(if variant == Variant::RoceXdp {
            3.0
        } else {
            50.0
        })
    });
    assert_eq!(others_late.outcome, Outcome::Ok);
    let said = &others_late.measured;
    assert!(said.starts_with("3.00 µs (TCP: 50.0 µs"), "{said}");
    let without = outcome(&ROCE, what, |_, variant| {
        (variant != Variant::RoceXdp).then_some(1.0)
    });
    assert_eq!(without.outcome, Outcome::NotRun);
}

#[test]
fn latencies_between_hosts_stand_beside_bare_af_xdp() {
    for (what, most, late) in [
        ("ib_write_lat, 8 B", 1.71, 3.4),
        ("ib_send_lat, 8 B", 2.29, 4.4),
    ] {
        let it = outcome(&ROCE, what, |_, variant| {
            Some(if variant == Variant::RawXdp {
                2.0
            } else {
                late
            })
        });
        assert_eq!(
            it.outcome,
            Outcome::BelowFloor,
            "the floor is in microseconds"
        );
        let times = format!(", {:.2}× raw AF_XDP", late / 2.0);
        assert!(it.measured.ends_with(&times), "{}", it.measured);
        assert!(
            it.floor.contains(&format!("{most:.2}× raw AF_XDP")),
            "{}",
            it.floor
        );
    }
}

#[test]
fn floors_that_are_shares_of_another_variant_have_an_edge() {
    let against = |rival: Variant, others: f64| {
        move |figure: f64, _: &PointSpec, variant| {
            if variant == rival { others } else { figure }
        }
    };
    for what in ["ib_write_bw, 64 KiB", "ib_read_bw, 64 KiB"] {
        edge(&VERBS, what, (28.0, 27.9), against(Variant::Memcpy, 40.0));
    }
    let private = "ib_write_lat, 8 B, memory not shared";
    edge(&VERBS, private, (1.7, 1.8), against(Variant::UcxCma, 1.8));
    let [large, small] = [
        "ib_write_bw, 64 KiB, MTU 9000",
        "ib_write_bw, 64 KiB, MTU 1500",
    ];
    edge(&ROCE, large, (13.0, 12.9), against(Variant::Tcp, 13.0));
    edge(&ROCE, small, (6.5, 6.4), against(Variant::Tcp, 13.0));
    for (suite, what, rival) in [
        (&VERBS, private, Variant::UcxCma),
        (&ROCE, large, Variant::Tcp),
        (&RXE, "ib_read_bw, 1 MiB", Variant::Rxe),
    ] {
        let alone = outcome(suite, what, |_, variant| (variant != rival).then_some(20.0));
        assert_eq!(alone.outcome, Outcome::NotRun, "{what}");
    }
}

#[test]
fn the_kernel_is_to_be_beaten_at_every_point() {
    let at = |figure: f64| {
        let value = move |_: &PointSpec, variant| {
            Some(if variant == Variant::RoceXdp {
                figure
            } else {
                100.0
            })
        };
        (RXE.verdicts)(&reports(&RXE, value))
    };
    for (figure, of_latency, of_bandwidth) in [
        (99.0, Outcome::Ok, Outcome::BelowFloor),
        (100.0, Outcome::BelowFloor, Outcome::BelowFloor),
        (101.0, Outcome::BelowFloor, Outcome::Ok),
    ] {
        let verdicts = at(figure);
        assert_eq!(verdicts.len(), 18);
        for verdict in verdicts {
            let is_latency = verdict.what.contains("_lat");
            let expected = if is_latency { of_latency } else { of_bandwidth };
            assert_eq!(verdict.outcome, expected, "{figure}: {}", verdict.what);
        }
    }
}

#[test]
fn floors_that_are_shares_of_another_point_have_an_edge() {
    let rest = |one: &'static str, of_one: f64| {
        move |figure: f64, spec: &PointSpec, _| {
            if spec.label == one { of_one } else { figure }
        }
    };
    for what in ["ib_write_bw, 64 B, 100 QPs", "ib_send_bw, 64 B, 100 QPs"] {
        let value = rest(verbs::queue_pairs::ONE, 10e6);
        edge(&VERBS, what, (7e6, 6.9e6), value);
    }
    let lossy = "ib_write_bw, 64 KiB, 1 % of the packets lost";
    edge(&ROCE, lossy, (5.0, 4.9), rest(roce::loss::LOSSLESS, 10.0));
}

#[test]
fn the_least_of_all_numbers_of_queue_pairs_decides() {
    let with = |one: f64, many: f64| {
        move |spec: &PointSpec, _| {
            Some(match &*spec.label {
                roce::messages::ONE => one,
                "64 QPs" => many,
                _ => 1e6,
            })
        }
    };
    let each = "ib_send_bw, 64 B, 1, 16 and 64 QPs";
    for value in [with(0.49e6, 0.6e6), with(0.6e6, 0.49e6)] {
        assert_eq!(outcome(&ROCE, each, value).outcome, Outcome::BelowFloor);
    }
    let flat = "ib_send_bw, 64 B, 16 and 64 QPs";
    assert_eq!(outcome(&ROCE, flat, with(1e6, 0.7e6)).outcome, Outcome::Ok);
    let sloping = outcome(&ROCE, flat, with(1e6, 0.69e6));
    assert_eq!(sloping.outcome, Outcome::BelowFloor);
    assert!(sloping.measured.contains("64 QPs"), "{}", sloping.measured);
}
