//! The floors of verbs between two processes of one host.

use super::{Label, Selection, Verdict, judged, ratio};
use crate::bench::model::{Point, Series, Variant, WorkloadReport};
use crate::bench::text::number;
use crate::bench::workloads::idle::WATCHED_S;
use crate::bench::workloads::verbs::{BANDWIDTHS, idle, latency, messages, queue_pairs};

/// The most that 8 bytes may take, in microseconds.
const LATENCY_FLOORS: [(&str, f64); 4] = [
    (latency::WRITE, 0.3),
    (latency::SEND, 0.6),
    (latency::READ, 0.5),
    (latency::ATOMIC, 0.5),
];
const MEMCPY_SHARE_MIN: f64 = 0.7;
const MESSAGES_PER_S_MIN: f64 = 3e6;
const MANY_QPS_SHARE_MIN: f64 = 0.7;
/// What shows as 0.0 %.
const IDLE_CPU_PERCENT_MAX: f64 = 0.05;

/// Every floor, in the order in which they are promised.
pub fn verdicts(workloads: &[WorkloadReport]) -> Vec<Verdict> {
    let mut verdicts = Vec::new();
    for (group, floor_us) in LATENCY_FLOORS {
        verdicts.push(latency_verdict(group, floor_us, workloads));
        if group == latency::WRITE {
            verdicts.push(private_verdict(workloads));
        }
    }
    verdicts.extend(BANDWIDTHS.map(|group| bandwidth_verdict(group, workloads)));
    verdicts.push(messages_verdict(workloads));
    verdicts
        .extend(["ib_write_bw", "ib_send_bw"].map(|group| queue_pairs_verdict(group, workloads)));
    verdicts.extend(idle_verdicts(workloads));
    verdicts
}

fn select<'a>(
    workload: &'static str,
    group: &'static str,
    label: Label,
    workloads: &'a [WorkloadReport],
) -> Vec<&'a Point> {
    Selection {
        workload,
        group: Some(group),
        label,
    }
    .points(workloads)
}

/// The others that were measured at the same point: ` (UCX posix: 0.060 µs)`.
fn beside(point: &Point, variants: &[Variant]) -> String {
    let said: Vec<String> = variants
        .iter()
        .filter_map(|variant| {
            let median = point.of(*variant)?.median?;
            Some(format!(
                "{}: {} {}",
                variant.title(),
                number(median),
                point.spec.unit
            ))
        })
        .collect();
    if said.is_empty() {
        String::new()
    } else {
        format!(" ({})", said.join(", "))
    }
}

fn latency_verdict(group: &'static str, floor_us: f64, workloads: &[WorkloadReport]) -> Verdict {
    let what = format!("{group}, 8 B");
    let points = select(latency::WORKLOAD.name, group, Label::Any, workloads);
    judged(
        (&what, format!("{floor_us} µs")),
        &points,
        Variant::Verbs,
        |found| {
            let (point, series) = found.first()?;
            let us = series.median?;
            let others = beside(point, &[Variant::UcxPosix, Variant::Libfabric]);
            Some((format!("{} µs{others}", number(us)), us <= floor_us))
        },
    )
}

fn private_verdict(workloads: &[WorkloadReport]) -> Verdict {
    let points = select(
        latency::WORKLOAD.name,
        latency::WRITE,
        Label::Any,
        workloads,
    );
    let what = format!("{}, 8 B, memory not shared", latency::WRITE);
    let head = (what.as_str(), "below UCX cma".to_owned());
    judged(head, &points, Variant::VerbsPrivate, |found| {
        let (point, series) = found.first()?;
        let (us, cma_us) = (series.median?, point.of(Variant::UcxCma)?.median?);
        let others = beside(point, &[Variant::UcxCma]);
        Some((format!("{} µs{others}", number(us)), us < cma_us))
    })
}

fn bandwidth_verdict(group: &'static str, workloads: &[WorkloadReport]) -> Verdict {
    let points = select("bandwidth", group, Label::Any, workloads);
    let head = (
        &*format!("{group}, 64 KiB"),
        format!("{MEMCPY_SHARE_MIN}× memcpy"),
    );
    judged(head, &points, Variant::Verbs, |found| {
        let (point, series) = found.first()?;
        let share = series.ratio?;
        let others = beside(
            point,
            &[Variant::Memcpy, Variant::UcxPosix, Variant::UcxCma],
        );
        let measured = format!(
            "{} of memcpy, {} GB/s{others}",
            ratio(Some(share)),
            number(series.median?)
        );
        Some((measured, share >= MEMCPY_SHARE_MIN))
    })
}

fn messages_verdict(workloads: &[WorkloadReport]) -> Verdict {
    let points = select(
        messages::WORKLOAD.name,
        messages::GROUP,
        Label::Any,
        workloads,
    );
    let head = ("ib_send_bw, 64 B", "3,000,000 messages/s".to_owned());
    judged(head, &points, Variant::Verbs, |found| {
        let (point, series) = found.first()?;
        let rate = series.median?;
        let others = beside(point, &[Variant::UcxPosix]);
        let measured = format!("{} messages/s{others}", number(rate));
        Some((measured, rate >= MESSAGES_PER_S_MIN))
    })
}

fn queue_pairs_verdict(group: &'static str, workloads: &[WorkloadReport]) -> Verdict {
    let points = select(queue_pairs::WORKLOAD.name, group, Label::Any, workloads);
    let head = (
        &*format!("{group}, 64 B, 100 QPs"),
        format!("{MANY_QPS_SHARE_MIN}× one QP"),
    );
    judged(head, &points, Variant::Verbs, |found| {
        let rate = |label: &str| -> Option<f64> {
            let found = found.iter().find(|(point, _)| point.spec.label == label);
            found.and_then(|(_, series): &(&Point, &Series)| series.median)
        };
        let (one, many) = (rate(queue_pairs::ONE)?, rate(queue_pairs::MANY)?);
        let share = many / one;
        let measured = format!(
            "{} of one QP, {} against {} messages/s",
            ratio(Some(share)),
            number(many),
            number(one)
        );
        Some((measured, share >= MANY_QPS_SHARE_MIN))
    })
}

fn idle_verdicts(workloads: &[WorkloadReport]) -> [Verdict; 2] {
    let points = |group| select(idle::WORKLOAD.name, group, Label::Any, workloads);
    let head = ("idle passive process: CPU", "0.0 %".to_owned());
    let cpu = judged(head, &points(idle::CPU), Variant::Verbs, |found| {
        let (_, series) = found.first()?;
        let watched_ms = 1e3 * series.details.get(WATCHED_S)?;
        let percent = 100.0 * series.median? / watched_ms;
        Some((format!("{percent:.3} %"), percent < IDLE_CPU_PERCENT_MAX))
    });
    let head = ("idle passive process: wake-ups", "none".to_owned());
    let wake_ups = judged(head, &points(idle::WAKE_UPS), Variant::Verbs, |found| {
        let count = found.first()?.1.median?;
        Some((number(count), count == 0.0))
    });
    [cpu, wake_ups]
}

#[cfg(test)]
pub mod tests;
