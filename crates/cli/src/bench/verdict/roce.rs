//! The floors of verbs between two hosts.

use super::{Label, Selection, Verdict, judged, ratio};
use crate::bench::model::{Point, Series, Variant, WorkloadReport};
use crate::bench::text::number;
use crate::bench::workloads::roce::bandwidth::{LARGE, SMALL};
use crate::bench::workloads::roce::{bandwidth, latency, loss, messages};

/// The most that 8 bytes may take one way, in microseconds.
const LATENCY_FLOORS: [(&str, f64); 2] = [(latency::WRITE, 3.0), (latency::SEND, 4.0)];
/// Of iperf3's bandwidth over kernel TCP.
const BANDWIDTH_FLOORS: [(&str, f64); 2] = [(LARGE.label, 1.0), (SMALL.label, 0.5)];
const MESSAGES_PER_S_MIN: f64 = 0.5e6;
/// Of the rate of one queue pair, so much with any other number: what is called flat.
const MANY_QPS_SHARE_MIN: f64 = 0.7;
const LOSSY_SHARE_MIN: f64 = 0.5;

/// Every floor, in the order in which they are promised. All are about AF_XDP.
pub fn verdicts(workloads: &[WorkloadReport]) -> Vec<Verdict> {
    let mut verdicts = Vec::new();
    verdicts.extend(LATENCY_FLOORS.map(|floor| latency_verdict(floor, workloads)));
    verdicts.extend(BANDWIDTH_FLOORS.map(|floor| bandwidth_verdict(floor, workloads)));
    verdicts.push(messages_verdict(workloads));
    verdicts.push(flatness_verdict(workloads));
    verdicts.push(loss_verdict(workloads));
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

/// The other variants that were measured at the same point: ` (TCP: 45.0 µs)`.
fn beside(point: &Point) -> String {
    let said: Vec<String> = point
        .series
        .iter()
        .filter(|series| series.variant != Variant::RoceXdp)
        .filter_map(|series| {
            let (title, unit) = (series.variant.title(), point.spec.unit);
            Some(format!("{title}: {} {unit}", number(series.median?)))
        })
        .collect();
    if said.is_empty() {
        String::new()
    } else {
        format!(" ({})", said.join("; "))
    }
}

fn latency_verdict(
    (group, floor_us): (&'static str, f64),
    workloads: &[WorkloadReport],
) -> Verdict {
    let points = select(latency::WORKLOAD.name, group, Label::Any, workloads);
    let head = (&*format!("{group}, 8 B"), format!("{floor_us} µs"));
    judged(head, &points, Variant::RoceXdp, |found| {
        let (point, series) = found.first()?;
        let us = series.median?;
        let measured = format!("{} µs{}", number(us), beside(point));
        Some((measured, us <= floor_us))
    })
}

fn bandwidth_verdict((label, floor): (&'static str, f64), workloads: &[WorkloadReport]) -> Verdict {
    let name = bandwidth::WORKLOAD.name;
    let points = select(name, bandwidth::PROGRAM, Label::Is(label), workloads);
    let head = (
        &*format!("{}, 64 KiB, {label}", bandwidth::PROGRAM),
        format!("{floor}× iperf3 over TCP"),
    );
    judged(head, &points, Variant::RoceXdp, |found| {
        let (point, series) = found.first()?;
        let share = series.ratio?;
        let measured = format!(
            "{}, {} Gb/s{}",
            ratio(Some(share)),
            number(series.median?),
            beside(point)
        );
        Some((measured, share >= floor))
    })
}

fn message_points(workloads: &[WorkloadReport]) -> Vec<&Point> {
    let (name, group) = (messages::WORKLOAD.name, messages::GROUP);
    select(name, group, Label::Any, workloads)
}

fn messages_verdict(workloads: &[WorkloadReport]) -> Verdict {
    let head = (
        "ib_send_bw, 64 B, 1, 16 and 64 QPs",
        "500,000 messages/s each".to_owned(),
    );
    let points = message_points(workloads);
    judged(head, &points, Variant::RoceXdp, |found| {
        let rates = rates(found)?;
        let least = rates.iter().map(|(_, rate)| *rate).reduce(f64::min)?;
        let said: Vec<String> = rates
            .iter()
            .map(|(label, rate)| format!("{label}: {}", number(*rate)))
            .collect();
        Some((said.join("; "), least >= MESSAGES_PER_S_MIN))
    })
}

fn flatness_verdict(workloads: &[WorkloadReport]) -> Verdict {
    let head = (
        "ib_send_bw, 64 B, 16 and 64 QPs",
        format!("{MANY_QPS_SHARE_MIN}× one QP"),
    );
    let points = message_points(workloads);
    judged(head, &points, Variant::RoceXdp, |found| {
        let rates = rates(found)?;
        let (_, one) = rates.iter().find(|(label, _)| *label == messages::ONE)?;
        let many = rates.iter().filter(|(label, _)| *label != messages::ONE);
        let (label, least) = many.min_by(|a, b| a.1.total_cmp(&b.1))?;
        let share = least / one;
        let measured = format!("{} of one QP ({label})", ratio(Some(share)));
        Some((measured, share >= MANY_QPS_SHARE_MIN))
    })
}

/// Labels and medians, if all were measured.
fn rates<'a>(found: &[(&'a Point, &Series)]) -> Option<Vec<(&'a str, f64)>> {
    let rate = |(point, series): &(&'a Point, &Series)| Some((&*point.spec.label, series.median?));
    found.iter().map(rate).collect()
}

fn loss_verdict(workloads: &[WorkloadReport]) -> Verdict {
    let points = select(loss::WORKLOAD.name, loss::GROUP, Label::Any, workloads);
    let head = (
        "ib_write_bw, 64 KiB, 1 % of the packets lost",
        format!("{LOSSY_SHARE_MIN}× lossless"),
    );
    judged(head, &points, Variant::RoceXdp, |found| {
        let rates = rates(found)?;
        let of = |wanted: &str| rates.iter().find(|(label, _)| *label == wanted);
        let ((_, lossless), (_, lossy)) = (of(loss::LOSSLESS)?, of(loss::LOSSY)?);
        let share = lossy / lossless;
        let measured = format!(
            "{} of lossless, {} against {} Gb/s",
            ratio(Some(share)),
            number(*lossy),
            number(*lossless)
        );
        Some((measured, share >= LOSSY_SHARE_MIN))
    })
}

#[cfg(test)]
mod tests;
