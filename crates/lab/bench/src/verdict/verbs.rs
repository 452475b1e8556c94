//! The floors of verbs: within one host, between two, and against the kernel's own RoCEv2.

use super::{Label, Selection, Verdict, extremes, judged, place};
use crate::figures::{number, ratio};
use crate::model::{Better, Point, Series, Variant, WorkloadReport};
use crate::workloads::idle::WATCHED_S;
use crate::workloads::roce::bandwidth::{LARGE, SMALL};
use crate::workloads::rxe::{self, Measure};
use crate::workloads::{iwarp, roce, verbs};

/// Of the rate of one queue pair, so much with any other number: what is called flat.
const MANY_QPS_SHARE_MIN: f64 = 0.7;

/// Every floor within one host, in the order in which they are promised.
pub fn within_host(workloads: &[WorkloadReport]) -> Vec<Verdict> {
    const COPIED_SHARE_MIN: f64 = 0.7;
    /// What shows as 0.0 %.
    const IDLE_CPU_PERCENT_MAX: f64 = 0.05;
    use verbs::{BANDWIDTHS, idle, latency, messages, queue_pairs};
    let latency = |group, us| latency_floor(latency::WORKLOAD.name, group, us);
    let mut floors = vec![
        latency(latency::WRITE, 0.3),
        Floor {
            what: format!("{}, 8 B, memory not shared", latency::WRITE),
            floor: "below UCX cma".to_owned(),
            variant: Variant::VerbsPrivate,
            limit: Limit::BetterThan(Variant::UcxCma),
            ..latency(latency::WRITE, 0.0)
        },
        latency(latency::SEND, 0.6),
        latency(latency::READ, 0.5),
        latency(latency::ATOMIC, 0.5),
    ];
    floors.extend(BANDWIDTHS.map(|group| Floor {
        what: format!("{group}, 64 KiB"),
        floor: format!("{COPIED_SHARE_MIN}× memcpy"),
        points: points("bandwidth", group, Label::Any),
        variant: Variant::Verbs,
        limit: Limit::OfBaseline(COPIED_SHARE_MIN),
    }));
    floors.push(Floor {
        what: format!("{}, 64 B", messages::GROUP),
        floor: "3,000,000 messages/s".to_owned(),
        points: points(messages::WORKLOAD.name, messages::GROUP, Label::Any),
        variant: Variant::Verbs,
        limit: Limit::AtLeast(3e6),
    });
    floors.extend(["ib_write_bw", "ib_send_bw"].map(|group| Floor {
        what: format!("{group}, 64 B, {}", queue_pairs::MANY),
        floor: format!("{MANY_QPS_SHARE_MIN}× one QP"),
        points: points(queue_pairs::WORKLOAD.name, group, Label::Any),
        variant: Variant::Verbs,
        limit: Limit::OfPoint(queue_pairs::ONE, MANY_QPS_SHARE_MIN),
    }));
    let idle = |what: &str, floor: &str, group, limit| Floor {
        what: format!("idle passive process: {what}"),
        floor: floor.to_owned(),
        points: points(idle::WORKLOAD.name, group, Label::Any),
        variant: Variant::Verbs,
        limit,
    };
    floors.push(idle(
        "CPU",
        "0.0 %",
        idle::CPU,
        Limit::Processor(IDLE_CPU_PERCENT_MAX),
    ));
    floors.push(idle("wake-ups", "none", idle::WAKE_UPS, Limit::AtMost(0.0)));
    floors
        .iter()
        .map(|floor| floor.verdict(workloads))
        .collect()
}

/// Every floor between two hosts. All are about AF_XDP.
pub fn between_hosts(workloads: &[WorkloadReport]) -> Vec<Verdict> {
    const LOSSY_SHARE_MIN: f64 = 0.5;
    /// Half a round trip of bare AF_XDP where these floors were set, microseconds.
    const RAW_US: f64 = 1.75;
    use roce::{bandwidth, latency, loss, messages};
    let variant = Variant::RoceXdp;
    let latency = |group, us| Floor {
        variant,
        floor: format!("{us} µs, {:.2}× raw AF_XDP of {RAW_US} µs", us / RAW_US),
        limit: Limit::AtMostBesideRaw(us),
        ..latency_floor(latency::WORKLOAD.name, group, us)
    };
    let bandwidth = |label, share: f64| Floor {
        what: format!("{}, 64 KiB, {label}", bandwidth::PROGRAM),
        floor: format!("{share}× iperf3 over TCP"),
        points: points(
            bandwidth::WORKLOAD.name,
            bandwidth::PROGRAM,
            Label::Is(label),
        ),
        variant,
        limit: Limit::OfBaseline(share),
    };
    let messages = |what: &str, floor: String, limit| Floor {
        what: format!("{}, 64 B, {what}", messages::GROUP),
        floor,
        points: points(messages::WORKLOAD.name, messages::GROUP, Label::Any),
        variant,
        limit,
    };
    let floors = [
        latency(latency::WRITE, 3.0),
        latency(latency::SEND, 4.0),
        bandwidth(LARGE.label, 1.0),
        bandwidth(SMALL.label, 0.5),
        messages(
            "1, 16 and 64 QPs",
            "500,000 messages/s each".to_owned(),
            Limit::AtLeast(0.5e6),
        ),
        messages(
            "16 and 64 QPs",
            format!("{MANY_QPS_SHARE_MIN}× one QP"),
            Limit::OfPoint(messages::ONE, MANY_QPS_SHARE_MIN),
        ),
        Floor {
            what: "ib_write_bw, 64 KiB, 1 % of the packets lost".to_owned(),
            floor: format!("{LOSSY_SHARE_MIN}× lossless"),
            points: points(loss::WORKLOAD.name, loss::GROUP, Label::Any),
            variant,
            limit: Limit::OfPoint(loss::LOSSLESS, LOSSY_SHARE_MIN),
        },
    ];
    floors
        .iter()
        .map(|floor| floor.verdict(workloads))
        .collect()
}

/// Every floor of verbs over TCP. All are beside what carries them.
pub fn over_tcp(workloads: &[WorkloadReport]) -> Vec<Verdict> {
    const BULK_SHARE_MIN: f64 = 0.9;
    const LATENCY_TIMES_MAX: f64 = 1.2;
    let floor = |what: String, floor: String, selection, limit| Floor {
        what,
        floor,
        points: selection,
        variant: Variant::Iwarp,
        limit,
    };
    let floors = [
        floor(
            format!("{}, {}", iwarp::WRITE_BW, iwarp::BULK),
            format!("{BULK_SHARE_MIN}× iperf3"),
            points(iwarp::SIZES.name, iwarp::WRITE_BW, Label::Is(iwarp::BULK)),
            Limit::OfBaseline(BULK_SHARE_MIN),
        ),
        floor(
            format!("{}, {}", iwarp::WRITE_LAT, iwarp::SMALLEST),
            format!("{LATENCY_TIMES_MAX}× half a round trip of polled TCP"),
            points(
                iwarp::LATENCY.name,
                iwarp::WRITE_LAT,
                Label::Is(iwarp::SMALLEST),
            ),
            Limit::OfBaseline(1.0 / LATENCY_TIMES_MAX),
        ),
        floor(
            format!("{}, {}", iwarp::SEND_LAT, iwarp::SMALLEST),
            format!("{LATENCY_TIMES_MAX}× half a round trip of polled TCP"),
            points(
                iwarp::LATENCY.name,
                iwarp::SEND_LAT,
                Label::Is(iwarp::SMALLEST),
            ),
            Limit::OfBaseline(1.0 / LATENCY_TIMES_MAX),
        ),
        floor(
            format!("{}, 1 to 64 connections", iwarp::WRITE_BW),
            format!("{MANY_QPS_SHARE_MIN}× one"),
            points(iwarp::CONNECTIONS.name, iwarp::ONE_WORKER, Label::Any),
            Limit::OfPoint(iwarp::ONE, MANY_QPS_SHARE_MIN),
        ),
    ];
    floors
        .iter()
        .map(|floor| floor.verdict(workloads))
        .collect()
}

/// Lower latency and higher bandwidth than the kernel's RoCEv2. All are about AF_XDP.
pub fn against_kernel(workloads: &[WorkloadReport]) -> Vec<Verdict> {
    let floor = |(workload, program, measure): (&'static str, &'static str, Measure),
                 size: &'static str| Floor {
        what: format!("{program}, {size}"),
        floor: match measure {
            Measure::Latency => "below rxe's".to_owned(),
            Measure::Bandwidth => "above rxe's".to_owned(),
        },
        points: points(workload, program, Label::Is(size)),
        variant: Variant::RoceXdp,
        limit: Limit::BetterThan(Variant::Rxe),
    };
    rxe::PROGRAMS
        .iter()
        .flat_map(|program| rxe::SIZES.map(|size| floor(*program, size.label)))
        .map(|floor| floor.verdict(workloads))
        .collect()
}

/// A floor, and the points that it is about.
pub(super) struct Floor {
    pub what: String,
    /// The limit in words.
    pub floor: String,
    pub points: Selection,
    /// Whose figures count.
    pub variant: Variant,
    pub limit: Limit,
}

/// What the figures are to be. Those of all selected points are.
#[derive(Debug, Clone, Copy)]
pub(super) enum Limit {
    /// In the points' unit.
    AtMost(f64),
    /// At most a detail of the same run, in the points' unit.
    AtMostDetail(&'static str),
    /// As the first, with what it is of bare AF_XDP's figure at the point, if that was measured.
    AtMostBesideRaw(f64),
    /// In the points' unit.
    AtLeast(f64),
    /// So many times as good as the points' baseline: the first point.
    OfBaseline(f64),
    /// The same at every point.
    EachOfBaseline(f64),
    /// CPU time at most so many times the baseline's, at every point.
    CostOfBaseline(f64),
    /// Better than another variant at the same point, by however little.
    BetterThan(Variant),
    /// So many times the figure of the point with the label, at every other.
    OfPoint(&'static str, f64),
    /// Milliseconds of CPU time: at most so many percent of the time that was watched.
    Processor(f64),
}

pub(super) fn points(workload: &'static str, group: &'static str, label: Label) -> Selection {
    Selection {
        workload,
        group: Some(group),
        label,
    }
}

/// A latency of 8 bytes in microseconds, of `sluice verbs`.
fn latency_floor(workload: &'static str, group: &'static str, us_max: f64) -> Floor {
    Floor {
        what: format!("{group}, 8 B"),
        floor: format!("{us_max} µs"),
        points: points(workload, group, Label::Any),
        variant: Variant::Verbs,
        limit: Limit::AtMost(us_max),
    }
}

/// A point with the results that count there.
type Found<'a> = (&'a Point, &'a Series);

impl Floor {
    pub(super) fn verdict(&self, workloads: &[WorkloadReport]) -> Verdict {
        let points = self.points.points(workloads);
        let head = (&*self.what, self.floor.clone());
        judged(head, &points, self.variant, |found| self.limit.judge(found))
    }
}

impl Limit {
    /// What was measured, in words, and whether that is within the limit; `None` if something to
    /// compare with is missing. There is at least one point, and each has a median.
    fn judge(self, found: &[Found]) -> Option<(String, bool)> {
        match self {
            Self::AtMost(most) => Some((figures(found)?, worst(found, f64::max)? <= most)),
            Self::AtMostDetail(name) => {
                let (point, series) = found.first()?;
                let (own, most) = (series.median?, *series.details.get(name)?);
                let measured = format!("{} of {} {}", number(own), number(most), point.spec.unit);
                Some((measured + &beside(point, series.variant), own <= most))
            }
            Self::AtMostBesideRaw(most) => {
                let (point, series) = found.first()?;
                let own = series.median?;
                let raw = point.of(Variant::RawXdp).and_then(|raw| raw.median);
                let times = raw.map_or(String::new(), |raw| {
                    format!(", {} raw AF_XDP", ratio(Some(own / raw)))
                });
                Some((figures(found)? + &times, own <= most))
            }
            Self::AtLeast(least) => Some((figures(found)?, worst(found, f64::min)? >= least)),
            Self::OfBaseline(share_min) => {
                let (point, series) = found.first()?;
                let share = series.ratio?;
                let measured = format!("{}, {}", ratio(Some(share)), figure(point, series)?);
                Some((
                    measured + &beside(point, series.variant),
                    share >= share_min,
                ))
            }
            Self::EachOfBaseline(share_min) => {
                let (least, greatest, point, _) = extremes(found, |series| series.ratio)?;
                let measured = spread(found, least, greatest, "least", point);
                Some((measured, least >= share_min))
            }
            Self::CostOfBaseline(share_max) => {
                let (least, most, _, point) = extremes(found, |series| series.cpu_cost_ratio)?;
                let measured = spread(found, least, most, "most", point);
                Some((measured, most <= share_max))
            }
            Self::BetterThan(other) => better_than(found.first()?, other),
            Self::OfPoint(label, share_min) => of_point(found, label, share_min),
            Self::Processor(percent_max) => {
                let (_, series) = found.first()?;
                let watched_ms = 1e3 * series.details.get(WATCHED_S)?;
                let percent = 100.0 * series.median? / watched_ms;
                Some((format!("{percent:.3} %"), percent < percent_max))
            }
        }
    }
}

/// A ratio, or the least and the greatest of several and where the one that decides was found.
fn spread(found: &[Found], least: f64, greatest: f64, word: &str, at: &Point) -> String {
    if found.len() == 1 {
        return ratio(Some(least));
    }
    let (least, greatest) = (ratio(Some(least)), ratio(Some(greatest)));
    format!("{least} to {greatest} ({word}: {})", place(at))
}

fn better_than((point, series): &Found, other: Variant) -> Option<(String, bool)> {
    let (own, others) = (series.median?, point.of(other)?.median?);
    let times = match point.spec.better {
        Better::Higher => own / others,
        Better::Lower => others / own,
    };
    let measured = format!("{}, {}", ratio(Some(times)), figure(point, series)?);
    Some((measured + &beside(point, series.variant), times > 1.0))
}

fn of_point(found: &[Found], label: &str, share_min: f64) -> Option<(String, bool)> {
    let is_one = |(point, _): &&Found| point.spec.label == label;
    let one = found.iter().find(is_one)?.1.median?;
    let many = found.iter().filter(|each| !is_one(each));
    let (point, series) = many.min_by(|a, b| {
        let [a, b] = [a, b].map(|(_, series)| series.median.unwrap_or(0.0));
        a.total_cmp(&b)
    })?;
    let share = series.median? / one;
    let measured = format!(
        "{} of {label}, {} against {} ({})",
        ratio(Some(share)),
        number(series.median?),
        number(one),
        point.spec.label
    );
    Some((measured, share >= share_min))
}

/// The figure that decides.
fn worst(found: &[Found], of_two: fn(f64, f64) -> f64) -> Option<f64> {
    let medians = found.iter().filter_map(|(_, series)| series.median);
    medians.reduce(of_two)
}

/// All figures, or the only one with those of the other variants beside it.
fn figures(found: &[Found]) -> Option<String> {
    if let [(point, series)] = found {
        return Some(figure(point, series)? + &beside(point, series.variant));
    }
    let said =
        |(point, series): &Found| Some(format!("{}: {}", point.spec.label, number(series.median?)));
    let said: Option<Vec<String>> = found.iter().map(said).collect();
    Some(said?.join("; "))
}

fn figure(point: &Point, series: &Series) -> Option<String> {
    Some(format!("{} {}", number(series.median?), point.spec.unit))
}

/// The other variants that were measured at the same point: ` (TCP: 45.0 µs)`.
fn beside(point: &Point, variant: Variant) -> String {
    let others = point.series.iter().filter(|each| each.variant != variant);
    let said: Vec<String> = others
        .filter_map(|each| {
            Some(format!(
                "{}: {}",
                each.variant.title(),
                figure(point, each)?
            ))
        })
        .collect();
    if said.is_empty() {
        String::new()
    } else {
        format!(" ({})", said.join("; "))
    }
}

#[cfg(test)]
pub mod tests;
