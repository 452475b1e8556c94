//! What was measured: variants, samples, points, and what is said of a workload.

use std::collections::BTreeMap;

use serde::Serialize;

use super::machine;
use super::stats::{PairedRatio, median};

/// What others may take of the processors without a remark. Two busy programs and the kernel's
/// own work beside them leave a few percent that are nobody's.
pub const OTHERS_SHARE_TOLERATED: f64 = 0.1;

/// The detail that says how many connections got a lane during a run.
pub const LANES: &str = "lanes";

/// The detail that says which part of the bytes that programs read and wrote went by rings.
pub const RING_SHARE: &str = "ring_share";

/// Daemons that carry less of the bytes than this leave the figures to TCP.
const RING_SHARE_TOLD: f64 = 0.5;

/// The detail that says after which time a writer was stopped by nothing but itself.
pub const STOPPED_AFTER_S: &str = "stopped_itself_after_s";

/// How the two programs of a workload are connected.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Variant {
    /// Kernel TCP over loopback, as it is.
    Tcp,
    /// A Unix stream socket, where both programs can.
    Unix,
    /// Both programs under `sluice run`.
    Sluice,
    /// Only the server under `sluice run`.
    ServerOnly,
    /// Only the client under `sluice run`.
    ClientOnly,
    /// Both programs under `sluice verbs`.
    Verbs,
    /// The same with the allocation hooks off: registered memory is private to its process.
    VerbsPrivate,
    /// UCX over memory that both processes have mapped.
    UcxPosix,
    /// UCX over the kernel's cross-memory calls.
    UcxCma,
    /// libfabric's shared-memory provider.
    Libfabric,
    /// One thread that copies within its own memory: the limit of anything that copies once.
    Memcpy,
    /// Kernel TCP whose both ends poll.
    TcpPolling,
    /// Both programs under `sluice verbs --device roce`, their packets past the kernel's stack.
    RoceXdp,
    /// Both programs under `sluice verbs --device roce-udp`.
    RoceUdp,
    /// Both programs under `sluice verbs --device iwarp`.
    Iwarp,
    /// Frames by AF_XDP and nothing else: the limit of what goes by it.
    RawXdp,
    /// The kernel's own RoCEv2, each end on a device of its own.
    Rxe,
    /// The same with both ends on one device, which hands packets over within itself.
    RxeOneDevice,
    /// [`Self::Verbs`] where there are other ways of Sluice beside it.
    VerbsShm,
    /// Both programs under `sluice run`, whose daemons grant rings to every reader that is awake.
    SluiceRings,
    /// Both programs under `sluice run`, their connections in memory that both hosts share.
    Window,
    /// The same, and what is written there is seen later.
    WindowDelayed,
    /// Both programs under `sluice run`, whose daemons move the bytes over memory that both hosts share.
    WindowDaemons,
    /// The same, and what is written there is seen later.
    WindowDaemonsDelayed,
    /// Both programs under `sluice verbs --device window:PATH`.
    VerbsWindow,
    /// The same, and what is written there is seen later.
    VerbsWindowDelayed,
    /// Programs as they are, whose connections the daemons capture over any device.
    SluiceCaptured,
    /// Programs as they are, with daemons that capture where that is faster.
    CaptureByDefault,
    /// Programs as they are, whose bytes two proxies get by SK_MSG.
    SkMsg,
    /// Programs as they are, with haproxy on each host between them.
    TwoProxies,
}

impl Variant {
    /// The words in tables and plots.
    pub fn title(self) -> &'static str {
        match self {
            Self::Tcp => "TCP",
            Self::Unix => "AF_UNIX",
            Self::Sluice => "Sluice",
            Self::ServerOnly => "server only",
            Self::ClientOnly => "client only",
            Self::Verbs => "Sluice",
            Self::VerbsPrivate => "Sluice, private memory",
            Self::UcxPosix => "UCX posix",
            Self::UcxCma => "UCX cma",
            Self::Libfabric => "libfabric shm",
            Self::Memcpy => "memcpy",
            Self::TcpPolling => "TCP, polling",
            Self::RoceXdp => "Sluice AF_XDP",
            Self::RoceUdp => "Sluice UDP",
            Self::Iwarp => "Sluice iWARP",
            Self::RawXdp => "raw AF_XDP",
            Self::Rxe => "kernel rxe",
            Self::RxeOneDevice => "rxe, one device",
            Self::VerbsShm => "Sluice shm",
            Self::SluiceRings => "Sluice, all by rings",
            Self::Window | Self::VerbsWindow => "Sluice, window",
            Self::WindowDelayed | Self::VerbsWindowDelayed => "window, delayed",
            Self::WindowDaemons => "window, by daemons",
            Self::WindowDaemonsDelayed => "by daemons, delayed",
            Self::SluiceCaptured => "Sluice, captured",
            Self::CaptureByDefault => "[capture] by default",
            Self::SkMsg => "SK_MSG",
            Self::TwoProxies => "two haproxies",
        }
    }

    /// The program that it is measured with, where other variants of the workload do without.
    pub fn program(self) -> Option<&'static str> {
        match self {
            Self::UcxPosix | Self::UcxCma => Some("ucx_perftest"),
            Self::Libfabric => Some("fi_pingpong"),
            Self::TcpPolling => Some("sockperf"),
            Self::RawXdp => Some(machine::PING_PONG),
            Self::SkMsg => Some(machine::SKMSG),
            Self::TwoProxies => Some("haproxy"),
            _ => None,
        }
    }

    /// Whether it is Sluice that is measured, and not what it is compared with.
    pub fn is_sluice(self) -> bool {
        match self {
            Self::Sluice
            | Self::ServerOnly
            | Self::ClientOnly
            | Self::Verbs
            | Self::VerbsPrivate
            | Self::VerbsShm
            | Self::RoceXdp
            | Self::RoceUdp
            | Self::Iwarp
            | Self::SluiceRings
            | Self::Window
            | Self::WindowDelayed
            | Self::WindowDaemons
            | Self::WindowDaemonsDelayed
            | Self::VerbsWindow
            | Self::VerbsWindowDelayed
            | Self::SluiceCaptured
            | Self::CaptureByDefault => true,
            Self::Tcp
            | Self::Unix
            | Self::UcxPosix
            | Self::UcxCma
            | Self::Libfabric
            | Self::Memcpy
            | Self::TcpPolling
            | Self::RawXdp
            | Self::Rxe
            | Self::RxeOneDevice
            | Self::SkMsg
            | Self::TwoProxies => false,
        }
    }

    pub fn server_accelerated(self) -> bool {
        matches!(self, Self::Sluice | Self::ServerOnly | Self::SluiceRings) || self.shares_memory()
    }

    pub fn client_accelerated(self) -> bool {
        matches!(self, Self::Sluice | Self::ClientOnly | Self::SluiceRings) || self.shares_memory()
    }

    /// Whether anything in it needs a daemon.
    pub fn needs_sluice(self) -> bool {
        self.server_accelerated() || self.client_accelerated() || self.has_capture()
    }

    /// Whether both hosts share memory.
    pub fn shares_memory(self) -> bool {
        self.has_window() || self.has_window_device()
    }

    /// Whether both hosts share memory in which connections lie, which the daemons' configuration names.
    pub fn has_window(self) -> bool {
        matches!(self, Self::Window | Self::WindowDelayed)
    }

    /// Whether the daemons move bytes over memory that both hosts share.
    pub fn has_window_device(self) -> bool {
        matches!(self, Self::WindowDaemons | Self::WindowDaemonsDelayed)
    }

    /// Whether the daemons' configuration has `[capture]`.
    pub fn has_capture(self) -> bool {
        matches!(self, Self::SluiceCaptured | Self::CaptureByDefault)
    }
}

/// Which way is good.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Better {
    Higher,
    Lower,
}

/// What CPU seconds are divided by.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum CostUnit {
    /// Microseconds per request, message or connection.
    Operation,
    /// Seconds per 10^9 bytes.
    Gigabyte,
    /// The value itself is a cost.
    None,
}

/// One run of one variant.
#[derive(Debug, Clone, Default, Serialize)]
pub struct Sample {
    /// In the unit of its point.
    pub value: f64,
    /// User and system seconds of the processes that served, over the client's whole life.
    pub cpu_server_s: f64,
    /// User and system seconds of the client.
    pub cpu_client_s: f64,
    /// User and system seconds of sluiced; 0 in variants without Sluice.
    pub cpu_daemon_s: f64,
    /// Seconds of the kernel's threads that carried frames, where the ends are two hosts; else 0.
    pub cpu_kernel_s: f64,
    /// The share of all processors' time that went to anybody else meanwhile, 0 to 1.
    pub cpu_others_share: f64,
    /// Requests, messages or connections in the time that the CPU seconds cover.
    pub operations: f64,
    /// Payload bytes in that time, one way plus the other.
    pub bytes: f64,
    /// Other results of the same run, by name with unit (`latency_p50_us`).
    pub details: BTreeMap<&'static str, f64>,
}

impl Sample {
    /// User and system seconds of everything that belongs to the measurement.
    pub fn cpu_s(&self) -> f64 {
        self.cpu_server_s + self.cpu_client_s + self.cpu_daemon_s + self.cpu_kernel_s
    }

    /// CPU cost of all processes: microseconds per operation or seconds per GB.
    fn cost(&self, unit: CostUnit) -> Option<f64> {
        let cpu_s = self.cpu_s();
        let (scale, amount) = match unit {
            CostUnit::Operation => (1e6, self.operations),
            CostUnit::Gigabyte => (1e9, self.bytes),
            CostUnit::None => return None,
        };
        (amount > 0.0).then(|| cpu_s * scale / amount)
    }
}

/// What a point is about, before anything was measured.
#[derive(Debug, Clone, Serialize)]
pub struct PointSpec {
    /// Points with the same group make one table and one plot.
    pub group: String,
    /// The row of the table: `10 clients`.
    pub label: String,
    /// The place on the plot's horizontal axis, when the group is a curve.
    pub x: Option<f64>,
    pub unit: &'static str,
    pub better: Better,
    pub cost_unit: CostUnit,
    /// Differences of a few percent matter here: the ratio to show is the paired one.
    pub paired: bool,
    /// What ratios compare with.
    pub baseline: Variant,
}

impl PointSpec {
    /// A point whose value itself is a cost, in `unit`.
    pub fn cost(group: &str, label: String, unit: &'static str, baseline: Variant) -> PointSpec {
        PointSpec {
            group: group.to_owned(),
            label,
            x: None,
            unit,
            better: Better::Lower,
            cost_unit: CostUnit::None,
            paired: false,
            baseline,
        }
    }
}

/// The results of one variant at one point.
#[derive(Debug, Clone, Serialize)]
pub struct Series {
    pub variant: Variant,
    pub samples: Vec<Sample>,
    /// Why there is no result. Samples from before the failure are kept but not summarised.
    pub failure: Option<String>,
    /// The median of the samples' values.
    pub median: Option<f64>,
    pub min: Option<f64>,
    pub max: Option<f64>,
    /// How many times better than the baseline at the same point: above 1 is better, whatever
    /// the unit.
    #[serde(rename = "ratio_to_baseline")]
    pub ratio: Option<f64>,
    /// The same from each repetition by itself.
    pub paired_ratio: Option<PairedRatio>,
    /// The median CPU cost of all processes, in the point's cost unit.
    pub cpu_cost: Option<f64>,
    /// CPU cost divided by the baseline's: below 1 is better.
    #[serde(rename = "cpu_cost_to_baseline")]
    pub cpu_cost_ratio: Option<f64>,
    /// Medians of the details.
    pub details: BTreeMap<&'static str, f64>,
}

impl Series {
    pub fn new(variant: Variant) -> Self {
        Self {
            variant,
            samples: Vec::new(),
            failure: None,
            median: None,
            min: None,
            max: None,
            ratio: None,
            paired_ratio: None,
            cpu_cost: None,
            cpu_cost_ratio: None,
            details: BTreeMap::new(),
        }
    }

    fn summarise(&mut self, cost_unit: CostUnit) {
        if self.failure.is_some() || self.samples.is_empty() {
            return;
        }
        let values = values(self);
        self.median = median(&values);
        self.min = values.iter().copied().reduce(f64::min);
        self.max = values.iter().copied().reduce(f64::max);
        let costs: Option<Vec<f64>> = self.samples.iter().map(|s| s.cost(cost_unit)).collect();
        self.cpu_cost = costs.and_then(|costs| median(&costs));
        let names: Vec<&'static str> = self.samples[0].details.keys().copied().collect();
        for name in names {
            let values: Option<Vec<f64>> = self
                .samples
                .iter()
                .map(|s| s.details.get(name).copied())
                .collect();
            if let Some(middle) = values.and_then(|values| median(&values)) {
                self.details.insert(name, middle);
            }
        }
    }
}

/// A point with its results.
#[derive(Debug, Clone, Serialize)]
pub struct Point {
    #[serde(flatten)]
    pub spec: PointSpec,
    pub series: Vec<Series>,
    /// Repetitions that were measured again because other programs disturbed them.
    pub repeated: usize,
    /// Repetitions that count although they were disturbed.
    pub disturbed: usize,
}

impl Point {
    pub fn new(spec: PointSpec, variants: &[Variant]) -> Self {
        Self {
            spec,
            series: variants.iter().copied().map(Series::new).collect(),
            repeated: 0,
            disturbed: 0,
        }
    }

    /// The results of a variant, if it was to be measured here.
    pub fn of(&self, variant: Variant) -> Option<&Series> {
        self.series.iter().find(|series| series.variant == variant)
    }

    /// The results that ratios compare with, if they were to be measured.
    pub fn baseline(&self) -> Option<&Series> {
        self.of(self.spec.baseline)
    }

    /// Whether other programs took so much of the processors in the runs of this series or of
    /// the baseline that its ratio is doubtful.
    pub fn is_doubtful(&self, series: &Series) -> bool {
        self.baseline().into_iter().chain([series]).any(|series| {
            let shares: Vec<f64> = series.samples.iter().map(|s| s.cpu_others_share).collect();
            median(&shares).is_some_and(|share| share > OTHERS_SHARE_TOLERATED)
        })
    }

    /// How many times better than the baseline each run of a series was, compared with the
    /// baseline's run of the same repetition. Empty unless every run of both succeeded and nothing is compared with
    /// zero.
    pub fn pairs(&self, series: &Series) -> Vec<f64> {
        let succeeded = |series: &&Series| series.failure.is_none();
        let Some(baseline) = self.baseline().filter(succeeded) else {
            return Vec::new();
        };
        let pairs = values(series).into_iter().zip(values(baseline));
        let ratios = pairs.map(|(own, base)| times_better(self.spec.better, Some(own), Some(base)));
        let ratios: Option<Vec<f64>> = ratios.collect();
        ratios.filter(|_| succeeded(&series)).unwrap_or_default()
    }

    /// Computes medians and ratios from the samples.
    ///
    /// A ratio exists only if every run of both variants succeeded, and never against zero.
    pub fn summarise(&mut self) {
        for series in &mut self.series {
            series.summarise(self.spec.cost_unit);
        }
        let (base_value, base_cost) = self
            .baseline()
            .map_or((None, None), |base| (base.median, base.cpu_cost));
        let paired: Vec<Option<PairedRatio>> = self
            .series
            .iter()
            .map(|series| PairedRatio::of(&self.pairs(series)))
            .collect();
        for (series, paired) in self.series.iter_mut().zip(paired) {
            series.paired_ratio = paired;
            series.ratio = times_better(self.spec.better, series.median, base_value);
            series.cpu_cost_ratio = quotient(series.cpu_cost, base_cost);
        }
    }
}

fn quotient(above: Option<f64>, below: Option<f64>) -> Option<f64> {
    match (above, below) {
        (Some(above), Some(below)) if above > 0.0 && below > 0.0 => Some(above / below),
        _ => None,
    }
}

fn times_better(better: Better, own: Option<f64>, base: Option<f64>) -> Option<f64> {
    match better {
        Better::Higher => quotient(own, base),
        Better::Lower => quotient(base, own),
    }
}

/// The values of all runs, one for each repetition.
fn values(series: &Series) -> Vec<f64> {
    series.samples.iter().map(|sample| sample.value).collect()
}

/// One workload with all its points.
#[derive(Debug, Serialize)]
pub struct WorkloadReport {
    pub name: &'static str,
    pub title: &'static str,
    /// What is done and measured, for the reader of the report.
    pub about: &'static str,
    /// Why it was not run.
    pub skipped: Option<String>,
    /// What it was not compared with, because a program for that is not installed.
    pub missing: Vec<String>,
    pub points: Vec<Point>,
    /// The exact command lines, each once. The scratch folder is written as `$DIR`.
    pub commands: Vec<String>,
}

impl WorkloadReport {
    /// A sentence for the reader if other programs took enough of the processors to make the
    /// rates doubtful.
    pub fn disturbance(&self) -> Option<String> {
        let samples = self
            .points
            .iter()
            .flat_map(|point| &point.series)
            .flat_map(|series| &series.samples);
        let shares: Vec<f64> = samples.map(|sample| sample.cpu_others_share).collect();
        let middle = median(&shares).filter(|share| *share > OTHERS_SHARE_TOLERATED)?;
        let worst = shares.iter().copied().fold(0.0, f64::max);
        Some(format!(
            "Other programs took {:.0} % of the processors' time during these runs (median; up \
             to {:.0} %). Repeat on an idle machine before you rely on the rates; \
             ratios in doubt have a question mark.",
            100.0 * middle,
            100.0 * worst
        ))
    }
}

impl WorkloadReport {
    /// A sentence that names the points whose connections stayed on TCP although both ends were
    /// accelerated: their figures say what the library costs, not what lanes give.
    pub fn without_lanes(&self) -> Option<String> {
        let on_tcp = |point: &&Point| {
            point.series.iter().any(|series| {
                (series.variant == Variant::Sluice || series.variant.has_window_device())
                    && series.details.get(LANES) == Some(&0.0)
            })
        };
        let names: Vec<String> = self
            .points
            .iter()
            .filter(on_tcp)
            .map(|point| format!("{} {}", point.spec.group, point.spec.label))
            .collect();
        (!names.is_empty()).then(|| {
            format!(
                "No connection got a lane, all bytes went over TCP: {}.",
                names.join("; ")
            )
        })
    }

    /// A sentence about points where daemons could have carried the bytes, and TCP carried most.
    pub fn mostly_by_tcp(&self) -> Option<String> {
        let mut names: Vec<String> = Vec::new();
        for point in &self.points {
            let daemons = point
                .series
                .iter()
                .filter(|s| s.variant.has_window_device());
            for series in daemons {
                let share = series.details.get(RING_SHARE).copied();
                let Some(share) = share.filter(|share| *share < RING_SHARE_TOLD) else {
                    continue;
                };
                names.push(format!(
                    "{} {}, {} ({:.0} %)",
                    point.spec.group,
                    point.spec.label,
                    series.variant.title(),
                    100.0 * share
                ));
            }
        }
        (!names.is_empty()).then(|| {
            format!(
                "Daemons carried the smaller part of the bytes, so that these figures are mostly TCP's: {}.",
                names.join("; ")
            )
        })
    }

    /// A sentence that names the variants whose writers nothing has held back.
    pub fn without_backpressure(&self) -> Option<String> {
        let mut names: Vec<String> = Vec::new();
        for series in self.points.iter().flat_map(|point| &point.series) {
            let after = series.details.get(STOPPED_AFTER_S);
            let name = after.map(|s| format!("{} after {s:.1} s", series.variant.title()));
            names.extend(name.filter(|name| !names.contains(name)));
        }
        (!names.is_empty()).then(|| {
            format!(
                "Nothing held the writer back: it stopped by itself, for the machine's sake, and what \
                 is shown from then on is no limit of the path: {}.",
                names.join("; ")
            )
        })
    }

    /// A sentence about repetitions that were measured again.
    pub fn repetitions(&self) -> Option<String> {
        let mut again: Vec<String> = Vec::new();
        for point in &self.points {
            let is_other = |other: &&Point| {
                other.spec.label == point.spec.label
                    && (other.repeated, other.disturbed) != (point.repeated, point.disturbed)
            };
            let name = match self.points.iter().find(is_other) {
                Some(_) => format!("{}, {}", point.spec.group, point.spec.label),
                None => point.spec.label.clone(),
            };
            let counts = format!(
                "{name}: {} measured again, {} disturbed to the end",
                point.repeated, point.disturbed
            );
            // Points that were measured together have the same label in different groups.
            if point.repeated + point.disturbed > 0 && !again.contains(&counts) {
                again.push(counts);
            }
        }
        (!again.is_empty()).then(|| {
            format!(
                "Repetitions in which other programs took more than {:.0} % of the processors' \
                 time: {}.",
                100.0 * OTHERS_SHARE_TOLERATED,
                again.join("; ")
            )
        })
    }

    /// Everything that a reader must know beside the figures.
    pub fn remarks(&self) -> Vec<String> {
        let remarks = [
            self.disturbance(),
            self.repetitions(),
            self.without_lanes(),
            self.mostly_by_tcp(),
            self.without_backpressure(),
        ];
        let missing = self.missing.iter().cloned();
        missing.chain(remarks.into_iter().flatten()).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn point(better: Better, tcp: &[f64], sluice: &[f64]) -> Point {
        let series = |variant, values: &[f64]| {
            let mut series = Series::new(variant);
            series.samples = values
                .iter()
                .map(|&value| Sample {
                    value,
                    cpu_server_s: 0.5,
                    cpu_client_s: 0.5,
                    operations: value,
                    ..Sample::default()
                })
                .collect();
            series
        };
        let spec = PointSpec {
            group: "g".to_owned(),
            label: "l".to_owned(),
            x: None,
            unit: "requests/s",
            better,
            cost_unit: CostUnit::Operation,
            paired: false,
            baseline: Variant::Tcp,
        };
        let mut point = Point::new(spec, &[]);
        point.series = vec![series(Variant::Tcp, tcp), series(Variant::Sluice, sluice)];
        point.summarise();
        point
    }

    #[test]
    fn ratio_above_one_is_better_for_rates_and_for_latencies() {
        let rates = point(Better::Higher, &[100.0], &[300.0]);
        assert_eq!(rates.series[1].ratio, Some(3.0));
        let latencies = point(Better::Lower, &[30.0], &[10.0]);
        assert_eq!(latencies.series[1].ratio, Some(3.0));
    }

    #[test]
    fn paired_ratio_is_taken_within_repetitions() {
        // The machine was four times slower in the second half of the run.
        let rates = point(
            Better::Higher,
            &[100.0, 100.0, 25.0, 25.0],
            &[100.0, 99.0, 25.0, 24.0],
        );
        let paired = rates.series[1].paired_ratio.expect("all runs succeeded");
        assert_eq!(paired.pairs, 4);
        assert!((paired.median - 0.995).abs() < 1e-9, "{paired:?}");
        assert!((paired.min - 0.96).abs() < 1e-9, "{paired:?}");
        let latencies = point(Better::Lower, &[10.0, 30.0], &[5.0, 10.0]);
        let paired = latencies.series[1]
            .paired_ratio
            .expect("all runs succeeded");
        assert_eq!((paired.min, paired.max), (2.0, 3.0));
    }

    #[test]
    fn cost_counts_both_ends() {
        let rates = point(Better::Higher, &[1e6], &[2e6]);
        assert_eq!(rates.series[0].cpu_cost, Some(1.0));
        assert_eq!(rates.series[1].cpu_cost_ratio, Some(0.5));
    }

    #[test]
    fn failed_variant_has_no_ratio() {
        let mut failed = point(Better::Higher, &[100.0], &[]);
        assert_eq!(failed.series[1].ratio, None);
        failed.series[1].samples = failed.series[0].samples.clone();
        failed.series[1].failure = Some("broken".to_owned());
        failed.summarise();
        assert_eq!(failed.series[1].ratio, None);
        assert_eq!(failed.series[1].paired_ratio, None);
        assert_eq!(failed.series[1].median, None);
    }

    #[test]
    fn disturbed_runs_are_remarked() {
        let mut workload = WorkloadReport {
            name: "w",
            title: "w",
            about: "w",
            skipped: None,
            missing: Vec::new(),
            points: vec![point(Better::Higher, &[1.0, 1.0, 1.0], &[])],
            commands: Vec::new(),
        };
        assert_eq!(workload.disturbance(), None);
        for sample in &mut workload.points[0].series[0].samples[1..] {
            sample.cpu_others_share = 0.4;
        }
        let remark = workload.disturbance().expect("two of three were disturbed");
        assert!(remark.contains("40 %"), "{remark}");
        let point = &workload.points[0];
        assert!(point.is_doubtful(&point.series[1]), "TCP was disturbed");
        assert_eq!(workload.repetitions(), None);
        workload.points[0].repeated = 2;
        workload.points[0].disturbed = 1;
        let remark = workload.repetitions().expect("two were measured again");
        assert!(
            remark.contains("l: 2 measured again, 1 disturbed"),
            "{remark}"
        );
        let mut other = workload.points[0].clone();
        other.spec.group = "other".to_owned();
        other.disturbed = 2;
        workload.points.push(other);
        let remark = workload.repetitions().expect("both were measured again");
        assert!(
            remark.contains("other, l: 2 measured again, 2 disturbed"),
            "{remark}"
        );
    }

    fn report(point: Point) -> WorkloadReport {
        WorkloadReport {
            name: "w",
            title: "w",
            about: "w",
            skipped: None,
            missing: Vec::new(),
            points: vec![point],
            commands: Vec::new(),
        }
    }

    #[test]
    fn tcp_under_another_name_is_remarked() {
        let mut accelerated = point(Better::Higher, &[1.0], &[2.0]);
        let mut workload = |lanes: f64| {
            for sample in &mut accelerated.series[1].samples {
                sample.details.insert(LANES, lanes);
            }
            accelerated.summarise();
            report(accelerated.clone())
        };
        assert_eq!(workload(50.0).without_lanes(), None);
        let remark = workload(0.0).without_lanes().expect("no lane");
        assert!(remark.contains("g l"), "{remark}");
    }

    #[test]
    fn daemons_that_carried_little_are_remarked() {
        let mut by_daemons = point(Better::Higher, &[1.0], &[2.0]);
        by_daemons.series[1].variant = Variant::WindowDaemons;
        let mut workload = |share: f64| {
            for sample in &mut by_daemons.series[1].samples {
                sample.details.insert(RING_SHARE, share);
            }
            by_daemons.summarise();
            report(by_daemons.clone())
        };
        assert_eq!(workload(0.9).mostly_by_tcp(), None);
        let remark = workload(0.04).mostly_by_tcp().expect("a remark");
        assert!(remark.contains("g l, window, by daemons (4 %)"), "{remark}");
    }

    #[test]
    fn nothing_is_compared_with_zero() {
        for (tcp, sluice) in [(0.0, 0.0), (0.0, 2.0), (2.0, 0.0)] {
            let idle = point(Better::Lower, &[tcp], &[sluice]);
            assert_eq!(idle.series[1].ratio, None);
        }
    }
}
