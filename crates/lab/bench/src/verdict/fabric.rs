//! The floors of socket programs between two hosts.

use super::verbs::{Floor, Limit, points};
use super::{Label, Verdict};
use crate::model::{Variant, WorkloadReport};
use crate::workloads::fabric::{idle, iperf, latency, redis, stall};

/// Against the programs as they are, sleeping in the kernel.
const POLLING_TIMES_MIN: f64 = 5.0;
/// Two runs of the same differ by so much; less is not worse.
const NOT_WORSE_MIN: f64 = 0.97;
const FEW_CLIENTS: [&str; 2] = ["1 client", "10 clients"];
const FEW_CLIENTS_TIMES_MIN: f64 = 2.0;
const CPU_TIMES_MAX: f64 = 1.5;
/// What shows as 0.0 %, of one processor.
const IDLE_CPU_PERCENT_MAX: f64 = 0.05;

/// Whose memory is bounded while a reader sleeps.
const STALLED: [(&str, Variant); 2] = [
    ("preloaded", Variant::Sluice),
    ("captured", Variant::SluiceCaptured),
];
/// In the second half of the sleep, when all that is bounded is full: nothing but a few pages.
const STALL_GROWTH_MIB_MAX: f64 = 1.0;

/// Every floor, in the order in which they are promised.
pub fn across_hosts(workloads: &[WorkloadReport]) -> Vec<Verdict> {
    let latency = |label, times: f64| Floor {
        what: format!("round trip of 64 B, {label}"),
        floor: format!("{times}× TCP"),
        points: points(latency::WORKLOAD.name, label, Label::Any),
        variant: Variant::Sluice,
        limit: Limit::OfBaseline(times),
    };
    let redis = |variant, what: String, label, times: f64| Floor {
        what: format!("redis requests/s, {what}"),
        floor: format!("{times}× TCP"),
        points: super::Selection {
            workload: redis::WORKLOAD.name,
            group: None,
            label,
        },
        variant,
        limit: Limit::EachOfBaseline(times),
    };
    let mut floors = vec![
        latency(latency::POLLING, POLLING_TIMES_MIN),
        latency(latency::BLOCKING, NOT_WORSE_MIN),
        latency(latency::SLEEPING, NOT_WORSE_MIN),
    ];
    floors.extend(FEW_CLIENTS.map(|label| {
        let times = FEW_CLIENTS_TIMES_MIN;
        redis(Variant::Sluice, label.to_owned(), Label::Is(label), times)
    }));
    for (variant, whose) in [
        (Variant::Sluice, ""),
        (Variant::CaptureByDefault, ", [capture] by default"),
        (Variant::SluiceCaptured, ", captured"),
    ] {
        let what = format!("any number of clients{whose}");
        floors.push(redis(variant, what, Label::Any, NOT_WORSE_MIN));
    }
    floors.push(Floor {
        what: "iperf3, throughput".to_owned(),
        floor: format!("{NOT_WORSE_MIN}× TCP"),
        points: points(iperf::WORKLOAD.name, iperf::GROUP, Label::Any),
        variant: Variant::Sluice,
        limit: Limit::EachOfBaseline(NOT_WORSE_MIN),
    });
    floors.push(Floor {
        what: "iperf3, CPU time of everything per GB".to_owned(),
        floor: format!("{CPU_TIMES_MAX}× TCP's at most"),
        points: points(iperf::WORKLOAD.name, iperf::GROUP, Label::Any),
        variant: Variant::Sluice,
        limit: Limit::CostOfBaseline(CPU_TIMES_MAX),
    });
    floors.push(Floor {
        what: "idle connections with lanes: CPU of both sluiced".to_owned(),
        floor: "0.0 %".to_owned(),
        points: points(idle::WORKLOAD.name, idle::DAEMONS_CPU, Label::Any),
        variant: Variant::Sluice,
        limit: Limit::Processor(IDLE_CPU_PERCENT_MAX),
    });
    for (what, variant) in STALLED {
        let floor = |measure, floor, label, limit| Floor {
            what: format!("sleeping reader, {what}: {measure}"),
            floor,
            points: points(stall::WORKLOAD.name, stall::SUMMARY, Label::Is(label)),
            variant,
            limit,
        };
        floors.push(floor(
            "memory of both hosts",
            "what tcp_rmem and tcp_wmem allow, and 24 MiB".to_owned(),
            stall::MEMORY_MOST,
            Limit::AtMostDetail(stall::ALLOWED_MIB),
        ));
        floors.push(floor(
            "growth in its second half",
            format!("{STALL_GROWTH_MIB_MAX} MiB at most"),
            stall::GROWTH,
            Limit::AtMost(STALL_GROWTH_MIB_MAX),
        ));
    }
    floors
        .iter()
        .map(|floor| floor.verdict(workloads))
        .collect()
}

#[cfg(test)]
mod tests;
