//! The floors of hosts that share memory (issue 26).

use super::verbs::{Floor, Limit, points};
use super::{Label, Selection, Verdict};
use crate::model::{Variant, WorkloadReport};
use crate::workloads::{fabric, windows};

const ROUND_TRIP_US_MAX: f64 = 1.0;
/// Times kernel TCP, for these numbers of clients.
const REDIS: [(&str, f64); 4] = [
    ("1 client", 10.0),
    ("10 clients", 4.0),
    ("50 clients", 3.0),
    ("500 clients", 2.0),
];
/// The same where the daemons move the bytes.
const REDIS_BY_DAEMONS: [(&str, f64); 4] = [
    ("1 client", 2.0),
    ("10 clients", 2.0),
    ("50 clients", 1.0),
    ("500 clients", 1.0),
];
const COMMANDS_BY_DAEMONS: f64 = 1.0;
const IPERF_TIMES_MIN: f64 = 3.0;
const CPU_TIMES_MAX: f64 = 1.0;
const WRITE_US_MAX: f64 = 0.3;
const SEND_US_MAX: f64 = 0.6;
const COPIED_SHARE_MIN: f64 = 0.5;

/// Every floor, in the order in which they are promised: of direct lanes in the memory as it is, then delayed,
/// then of the daemons.
pub fn shared_memory(workloads: &[WorkloadReport]) -> Vec<Verdict> {
    let of_both = [(Variant::Window, ""), (Variant::WindowDelayed, ", delayed")];
    let floors = of_both
        .into_iter()
        .flat_map(|(variant, kind)| floors(variant, kind));
    let of_daemons = [
        (Variant::WindowDaemons, ""),
        (Variant::WindowDaemonsDelayed, ", delayed"),
    ];
    let of_daemons = of_daemons.into_iter();
    let floors = floors.chain(floors_of_verbs());
    let floors =
        floors.chain(of_daemons.flat_map(|(variant, kind)| floors_by_daemons(variant, kind)));
    floors.map(|floor| floor.verdict(workloads)).collect()
}

/// Of the memory as it is: what a delay adds depends on how many answers an operation waits for.
fn floors_of_verbs() -> Vec<Floor> {
    use windows::verbs::{LARGE, SEND_LAT, WORKLOAD, WRITE_BW, WRITE_LAT};
    let floor = |program: &'static str, what: &str, floor: String, limit| Floor {
        what: format!("{program}, {what}"),
        floor,
        points: points(WORKLOAD.name, program, Label::Any),
        variant: Variant::VerbsWindow,
        limit,
    };
    let mut floors: Vec<Floor> = [(WRITE_LAT, WRITE_US_MAX), (SEND_LAT, SEND_US_MAX)]
        .map(|(program, us)| floor(program, "8 B", format!("{us} µs"), Limit::AtMost(us)))
        .into();
    let (what, times) = (LARGE.0, format!("{COPIED_SHARE_MIN}× memcpy"));
    floors.push(floor(
        WRITE_BW,
        what,
        times,
        Limit::OfBaseline(COPIED_SHARE_MIN),
    ));
    floors
}

fn floors_by_daemons(variant: Variant, kind: &str) -> Vec<Floor> {
    let mut floors: Vec<Floor> = REDIS_BY_DAEMONS
        .map(|(clients, times)| Floor {
            what: format!("redis SET of 2 KiB, {clients}, by daemons{kind}"),
            floor: format!("{times}× TCP"),
            points: points(windows::REDIS.name, windows::SET, Label::Is(clients)),
            variant,
            limit: Limit::OfBaseline(times),
        })
        .into();
    floors.push(Floor {
        what: format!("redis, six commands, any number of clients, by daemons{kind}"),
        floor: format!("{COMMANDS_BY_DAEMONS}× TCP"),
        points: Selection {
            workload: windows::COMMANDS.name,
            group: None,
            label: Label::Any,
        },
        variant,
        limit: Limit::EachOfBaseline(COMMANDS_BY_DAEMONS),
    });
    floors
}

fn floors(variant: Variant, kind: &str) -> Vec<Floor> {
    let (limit, floor) = match variant {
        Variant::WindowDelayed => (
            Limit::AtMostDetail(windows::ROUND_TRIP_FLOOR_US),
            "2 µs and the delay".to_owned(),
        ),
        _ => (
            Limit::AtMost(ROUND_TRIP_US_MAX),
            format!("{ROUND_TRIP_US_MAX} µs"),
        ),
    };
    let mut floors = vec![Floor {
        what: format!("round trip of 64 B, programs poll{kind}"),
        floor,
        points: points(windows::LATENCY.name, windows::POLLING, Label::Any),
        variant,
        limit,
    }];
    floors.extend(REDIS.map(|(clients, times)| Floor {
        what: format!("redis SET of 2 KiB, {clients}{kind}"),
        floor: format!("{times}× TCP"),
        points: points(windows::REDIS.name, windows::SET, Label::Is(clients)),
        variant,
        limit: Limit::OfBaseline(times),
    }));
    let iperf = |what: &str, floor, limit| Floor {
        what: format!("iperf3, {what}{kind}"),
        floor,
        points: points(windows::IPERF.name, fabric::iperf::GROUP, Label::Any),
        variant,
        limit,
    };
    floors.push(iperf(
        "throughput",
        format!("{IPERF_TIMES_MIN}× TCP"),
        Limit::EachOfBaseline(IPERF_TIMES_MIN),
    ));
    floors.push(iperf(
        "CPU time of everything per GB",
        "TCP's at most".to_owned(),
        Limit::CostOfBaseline(CPU_TIMES_MAX),
    ));
    floors
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::{PointSpec, Sample};
    use crate::suites::WINDOWS;
    use crate::verdict::Outcome;
    use crate::verdict::tests::report_of;

    /// All verdicts where TCP's figure is always 100 and that of direct lanes is what `figures` says: the value,
    /// and the CPU time of an operation or a GB.
    fn verdicts(figures: impl Fn(&PointSpec, Variant) -> (f64, f64)) -> Vec<Verdict> {
        let report = |workload| {
            report_of(workload, |spec, variant| {
                let (value, cpu_client_s) = match variant {
                    variant if variant.shares_memory() => figures(spec, variant),
                    _ => (100.0, 100.0),
                };
                Some(Sample {
                    value,
                    cpu_client_s,
                    operations: 1.0,
                    bytes: 1e9,
                    details: [(windows::ROUND_TRIP_FLOOR_US, 3.0)].into(),
                    ..Sample::default()
                })
            })
        };
        let reports: Vec<WorkloadReport> = WINDOWS.workloads.iter().map(report).collect();
        shared_memory(&reports)
    }

    fn edge(what: &str, reaching: (f64, f64), missing: (f64, f64)) {
        for (figures, expected) in [(reaching, Outcome::Ok), (missing, Outcome::BelowFloor)] {
            let all = verdicts(|_, _| figures);
            let found = all.iter().find(|verdict| verdict.what == what);
            let found = found.unwrap_or_else(|| panic!("there is no floor '{what}'"));
            assert_eq!(found.outcome, expected, "{what} at {figures:?}");
        }
    }

    #[test]
    fn floors_are_those_of_the_issue() {
        let cpu = 100.0;
        edge("round trip of 64 B, programs poll", (1.0, cpu), (1.01, cpu));
        edge(
            "round trip of 64 B, programs poll, delayed",
            (3.0, cpu),
            (3.01, cpu),
        );
        for kind in ["", ", delayed"] {
            for (clients, times) in REDIS {
                let what = format!("redis SET of 2 KiB, {clients}{kind}");
                edge(&what, (100.0 * times, cpu), (100.0 * times - 1.0, cpu));
            }
            edge(
                &format!("iperf3, throughput{kind}"),
                (300.0, cpu),
                (299.0, cpu),
            );
            let what = format!("iperf3, CPU time of everything per GB{kind}");
            edge(&what, (300.0, 100.0), (300.0, 101.0));
        }
    }

    #[test]
    fn verbs_have_floors_of_their_own() {
        let verdict = |value: f64, what: &str| {
            let report = |workload| {
                report_of(workload, |_, variant| {
                    let value = match variant {
                        Variant::VerbsWindow => value,
                        _ => 10.0,
                    };
                    Some(Sample {
                        value,
                        operations: 1.0,
                        ..Sample::default()
                    })
                })
            };
            let reports: Vec<WorkloadReport> = WINDOWS.workloads.iter().map(report).collect();
            let all = shared_memory(&reports);
            let found = all.iter().find(|verdict| verdict.what == what);
            found.map(|verdict| verdict.outcome).expect("a floor")
        };
        for (what, reaching, missing) in [
            ("ib_write_lat, 8 B", 0.3, 0.31),
            ("ib_send_lat, 8 B", 0.6, 0.61),
            ("ib_write_bw, 1 MiB", 5.0, 4.9),
        ] {
            assert_eq!(verdict(reaching, what), Outcome::Ok, "{what}");
            assert_eq!(verdict(missing, what), Outcome::BelowFloor, "{what}");
        }
    }

    #[test]
    fn daemons_are_never_below_tcp() {
        let cpu = 100.0;
        for ((clients, times), kind) in REDIS_BY_DAEMONS
            .into_iter()
            .flat_map(|floor| ["", ", delayed"].map(|kind| (floor, kind)))
        {
            let what = format!("redis SET of 2 KiB, {clients}, by daemons{kind}");
            edge(&what, (100.0 * times, cpu), (100.0 * times - 1.0, cpu));
        }
        let what = "redis, six commands, any number of clients, by daemons";
        edge(what, (100.0, cpu), (99.0, cpu));
        let all = verdicts(|spec, _| match (&*spec.group, &*spec.label) {
            ("LPOP", "1000 clients") => (90.0, cpu),
            _ => (1_000.0, cpu),
        });
        let commands = all.iter().find(|verdict| verdict.what == what);
        let commands = commands.expect("the floor of commands");
        assert_eq!(commands.outcome, Outcome::BelowFloor);
        assert!(commands.measured.contains("LPOP"), "{commands:?}");
    }

    #[test]
    fn one_point_that_is_missed_is_a_floor_that_is_missed() {
        let all = verdicts(|spec, _| match &*spec.label {
            "4 streams" => (299.0, 100.0),
            _ => (10_000.0, 100.0),
        });
        let iperf = all
            .iter()
            .find(|verdict| verdict.what == "iperf3, throughput");
        assert_eq!(iperf.map(|it| it.outcome), Some(Outcome::BelowFloor));
    }
}
