use super::*;
use crate::model::{PointSpec, Sample};
use crate::suites::FABRIC;
use crate::verdict::Outcome;
use crate::verdict::tests::report_of;
use crate::workloads::idle::WATCHED_S;

/// The floor in a report in which TCP's figure is always 100 and Sluice's is what `value` says; the
/// CPU time of an operation or a GB is the figure behind it.
fn outcome(what: &str, value: impl Fn(&PointSpec) -> (f64, f64)) -> Verdict {
    let report = |workload| {
        report_of(workload, |spec, variant| {
            let (value, cpu_s) = match variant {
                Variant::Sluice | Variant::SluiceCaptured | Variant::CaptureByDefault => {
                    value(spec)
                }
                _ => (100.0, 100.0),
            };
            Some(Sample {
                value,
                cpu_client_s: cpu_s,
                operations: 1.0,
                bytes: 1e9,
                details: [(WATCHED_S, 10.0), (stall::ALLOWED_MIB, 60.0)].into(),
                ..Sample::default()
            })
        })
    };
    let reports: Vec<WorkloadReport> = FABRIC.workloads.iter().map(report).collect();
    let found = { across_hosts(&reports).into_iter() }.find(|verdict| verdict.what == what);
    found.unwrap_or_else(|| panic!("there is no floor '{what}'"))
}

fn edge(what: &str, reaching: (f64, f64), missing: (f64, f64)) {
    for (figures, expected) in [(reaching, Outcome::Ok), (missing, Outcome::BelowFloor)] {
        let verdict = outcome(what, |_| figures);
        assert_eq!(verdict.outcome, expected, "{what} at {figures:?}");
    }
}

#[test]
fn floors_are_judged_against_tcp() {
    let cpu = 100.0;
    edge(
        "round trip of 64 B, programs poll",
        (19.9, cpu),
        (20.1, cpu),
    );
    edge(
        "round trip of 64 B, programs block",
        (103.0, cpu),
        (104.0, cpu),
    );
    edge(
        "round trip of 64 B, programs sleep in epoll_wait",
        (103.0, cpu),
        (104.0, cpu),
    );
    edge("redis requests/s, 1 client", (200.0, cpu), (199.0, cpu));
    edge("redis requests/s, 10 clients", (200.0, cpu), (199.0, cpu));
    edge(
        "redis requests/s, any number of clients",
        (97.1, cpu),
        (96.9, cpu),
    );
    edge(
        "redis requests/s, any number of clients, captured",
        (97.1, cpu),
        (96.9, cpu),
    );
    edge(
        "redis requests/s, any number of clients, [capture] by default",
        (97.1, cpu),
        (96.9, cpu),
    );
    edge("iperf3, throughput", (97.1, cpu), (96.9, cpu));
    edge(
        "iperf3, CPU time of everything per GB",
        (100.0, 150.0),
        (100.0, 151.0),
    );
    // Milliseconds of ten seconds.
    let idle = "idle connections with lanes: CPU of both sluiced";
    edge(idle, (4.9, cpu), (5.1, cpu));
}

#[test]
fn what_is_held_for_a_sleeping_reader_is_bounded_and_flat() {
    for what in ["preloaded", "captured"] {
        let floor = |measure| format!("sleeping reader, {what}: {measure}");
        edge(&floor("memory of both hosts"), (60.0, 0.0), (60.1, 0.0));
        edge(&floor("growth in its second half"), (1.0, 0.0), (1.1, 0.0));
    }
}

#[test]
fn worst_number_of_clients_decides_and_is_named() {
    let verdict = outcome("redis requests/s, any number of clients", |spec| {
        let is_slow = spec.group == "GET" && spec.label == "40 clients";
        (if is_slow { 50.0 } else { 300.0 }, 100.0)
    });
    assert_eq!(verdict.outcome, Outcome::BelowFloor);
    assert!(verdict.measured.contains("GET, 40 clients"), "{verdict:?}");
}

#[test]
fn nothing_measured_is_no_verdict() {
    for verdict in across_hosts(&[]) {
        assert_eq!(verdict.outcome, Outcome::NotRun, "{}", verdict.what);
    }
}
