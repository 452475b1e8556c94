//! Goes through the workloads: variants in turn, repetitions outside, failures kept apart.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use super::error::{BenchError, Result};
use super::installation;
use super::machine::{self, Machine};
use super::model::{OTHERS_SHARE_TOLERATED, Point, Sample, Variant, WorkloadReport};
use super::progress::Progress;
use super::report::Report;
use super::session::Session;
use super::signals;
use super::suites::Suite;
use super::usage;
use super::workloads::{Cell, Options, Workload};

/// Raised when a field of the report changes its meaning.
const REPORT_FORMAT: u32 = 2;

/// How long a calm machine is waited for before a repetition is measured again, and how long it
/// must have been calm: long enough for ticks of 10 ms to make a share.
const CALM_TIMEOUT: Duration = Duration::from_secs(10);
const CALM_WINDOW: Duration = Duration::from_millis(500);

/// What all cells of a run share.
struct Runner<'a> {
    session: &'a Session,
    progress: Progress,
    /// How many disturbed repetitions of a cell are measured again.
    repeats_max: usize,
    /// Waits, for a while at most, until nothing else disturbs.
    calm: fn() -> Result<()>,
}

/// Runs the workloads and returns everything that was found.
///
/// A variant that fails is reported as failed and not tried again in its cell; the others go on.
/// An interruption ends it; what was measured until then is in the report, which comes with it.
/// Fails only when nothing can be measured.
pub fn run(
    suite: &'static Suite,
    chosen: &[&'static Workload],
    options: &Options,
) -> Result<(Report, Option<BenchError>)> {
    let descriptors_max = signals::raise_descriptor_limit();
    let mut report = Report {
        format: REPORT_FORMAT,
        suite,
        sluice_version: installation::version()?,
        date: machine::now_utc(),
        command: command(),
        repetitions: options.repetitions,
        seconds_per_run: options.seconds,
        machine: Machine::read(descriptors_max),
        versions: versions(chosen),
        workloads: Vec::new(),
        verdicts: Vec::new(),
    };
    let with_sluice = options.variants.contains(&Variant::Sluice);
    let mut session = Session::start(installation::sluice()?, options.seconds, with_sluice)
        .map_err(|error| match error {
            BenchError::Failed(text) if with_sluice => BenchError::Failed(format!(
                "{text}\n(to measure without Sluice: --variants tcp,unix)"
            )),
            other => other,
        })?;
    session.window_delay_ns = options.window_delay_ns;
    let planned: Vec<Plan> = chosen
        .iter()
        .map(|workload| {
            Plan::new(workload, options, |program| {
                machine::find_program(program).is_some()
            })
        })
        .collect();
    let total = planned.iter().map(Plan::runs).sum();
    let mut runner = Runner {
        session: &session,
        progress: Progress::new(total),
        repeats_max: options.repeats_max,
        calm: wait_for_calm,
    };
    let mut interruption = None;
    for plan in planned {
        let (workload, outcome) = runner.run_workload(plan);
        report.workloads.push(workload);
        match outcome {
            Ok(()) => {}
            Err(error @ BenchError::Interrupted(_)) => {
                interruption = Some(error);
                break;
            }
            Err(error) => return Err(error),
        }
    }
    report.verdicts = (suite.verdicts)(&report.workloads);
    Ok((report, interruption))
}

/// The user's words, whether or not they came by way of `sluice`.
fn command() -> String {
    let arguments = std::env::args().skip(1);
    let words: Vec<String> = ["sluice", "bench"]
        .map(str::to_owned)
        .into_iter()
        .chain(arguments)
        .collect();
    words.join(" ")
}

/// The cells of a workload, without the variants whose programs are not installed.
struct Plan {
    workload: &'static Workload,
    cells: Vec<Cell>,
    /// What is left out, in sentences.
    missing: Vec<String>,
}

impl Plan {
    fn new(
        workload: &'static Workload,
        options: &Options,
        installed: impl Fn(&str) -> bool,
    ) -> Self {
        let mut cells = (workload.cells)(options);
        let mut missing: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
        for cell in &mut cells {
            cell.variants.retain(|variant| {
                let Some(program) = variant.program().filter(|program| !installed(program)) else {
                    return true;
                };
                let titles = missing.entry(program).or_default();
                if !titles.contains(&variant.title()) {
                    titles.push(variant.title());
                }
                false
            });
        }
        let sentence = |(program, titles): (&str, Vec<&str>)| {
            format!(
                "Not compared with {}: {program} not found; {}.",
                titles.join(" and "),
                machine::remedy(program)
            )
        };
        Self {
            workload,
            cells,
            missing: missing.into_iter().map(sentence).collect(),
        }
    }

    fn runs(&self) -> usize {
        let runs = |cell: &Cell| cell.variants.len() * cell.repetitions;
        self.cells.iter().map(runs).sum()
    }
}

/// The programs that a workload needs and this machine does not have.
pub fn missing_programs(workload: &Workload) -> Vec<&'static str> {
    let mut missing = workload.programs.to_vec();
    missing.retain(|program| machine::find_program(program).is_none());
    missing
}

fn versions(chosen: &[&'static Workload]) -> BTreeMap<&'static str, String> {
    chosen
        .iter()
        .flat_map(|workload| workload.programs.iter().chain(workload.compared_with))
        .filter_map(|&program| Some((program, machine::program_version(program)?)))
        .collect()
}

impl Runner<'_> {
    /// What was measured, all of it if the outcome says so.
    fn run_workload(&mut self, plan: Plan) -> (WorkloadReport, Result<()>) {
        let workload = plan.workload;
        let mut report = WorkloadReport {
            name: workload.name,
            title: workload.title,
            about: workload.about,
            skipped: None,
            missing: Vec::new(),
            points: Vec::new(),
            commands: Vec::new(),
        };
        let missing = missing_programs(workload);
        let mut obstacle = workload.obstacle.and_then(|obstacle| obstacle());
        if let Some(first) = missing.first() {
            let remedy = machine::remedy(first);
            obstacle = Some(format!("{} not found; {remedy}", missing.join(" and ")));
        }
        if let Some(reason) = obstacle {
            self.progress
                .note(&format!("{}: skipped: {reason}", workload.name));
            self.progress.skip(plan.runs());
            report.skipped = Some(reason);
            return (report, Ok(()));
        }
        for sentence in &plan.missing {
            self.progress
                .note(&format!("{}: {sentence}", workload.name));
        }
        report.missing = plan.missing;
        for cell in plan.cells {
            match self.run_cell(&cell, &mut report.commands) {
                Ok(points) => report.points.extend(points),
                Err(error) => return (report, Err(error)),
            }
        }
        (report, Ok(()))
    }

    /// Measures all repetitions. One that other programs disturbed is measured again, when the
    /// machine has grown calm or a while has passed; the less disturbed one counts.
    fn run_cell(&mut self, cell: &Cell, commands: &mut Vec<String>) -> Result<Vec<Point>> {
        let mut points: Vec<Point> = cell
            .points
            .iter()
            .map(|spec| Point::new(spec.clone(), &cell.variants))
            .collect();
        let mut failures = vec![None; cell.variants.len()];
        let mut repeats_left = self.repeats_max;
        for repetition in 0..cell.repetitions {
            let place = format!("{} of {}", repetition + 1, cell.repetitions);
            let mut round = self.run_round(cell, repetition, &place, &mut failures)?;
            while round.is_disturbed() && repeats_left > 0 {
                repeats_left -= 1;
                self.progress.more(cell.variants.len());
                (self.calm)()?;
                let place = format!("{place} again, because other programs disturbed it");
                let again = self.run_round(cell, repetition, &place, &mut failures)?;
                if again.others_share < round.others_share {
                    round = again;
                }
                points.iter_mut().for_each(|point| point.repeated += 1);
            }
            round.put_to(&mut points);
            for command in self.session.take_commands() {
                if repetition == 0 && !commands.contains(&command) {
                    commands.push(command);
                }
            }
        }
        for point in &mut points {
            for (series, failure) in point.series.iter_mut().zip(&failures) {
                series.failure.clone_from(failure);
            }
            point.summarise();
        }
        Ok(points)
    }

    /// Measures every variant once. Each repetition begins with another one, so that none always
    /// runs behind the same other. What fails is put to `failures` and not tried again.
    fn run_round(
        &mut self,
        cell: &Cell,
        repetition: usize,
        place: &str,
        failures: &mut [Option<String>],
    ) -> Result<Round> {
        let count = cell.variants.len();
        let mut round = Round {
            samples: vec![Vec::new(); count],
            others_share: 0.0,
        };
        for turn in 0..count {
            let index = (turn + repetition) % count;
            if failures[index].is_some() {
                self.progress.skip(1);
                continue;
            }
            let variant = cell.variants[index];
            self.progress
                .next(&cell.title, &format!("{}, {place}", variant.title()));
            match measure(cell, self.session, variant) {
                Ok(samples) => {
                    let shares = samples.iter().map(|sample| sample.cpu_others_share);
                    round.others_share = shares.fold(round.others_share, f64::max);
                    round.samples[index] = samples;
                }
                Err(BenchError::Failed(text)) => {
                    let (title, variant) = (&cell.title, variant.title());
                    self.progress
                        .note(&format!("{title}: {variant} failed: {text}"));
                    failures[index] = Some(text);
                }
                Err(interrupted @ BenchError::Interrupted(_)) => return Err(interrupted),
            }
        }
        Ok(round)
    }
}

/// One repetition of a cell: the samples of each variant, none of one that failed.
struct Round {
    samples: Vec<Vec<Sample>>,
    /// The greatest share of the processors that went to others in any of its runs.
    others_share: f64,
}

impl Round {
    fn is_disturbed(&self) -> bool {
        self.others_share > OTHERS_SHARE_TOLERATED
    }

    fn put_to(self, points: &mut [Point]) {
        let disturbed = usize::from(self.is_disturbed());
        for point in &mut *points {
            point.disturbed += disturbed;
        }
        for (index, samples) in self.samples.into_iter().enumerate() {
            for (point, sample) in points.iter_mut().zip(samples) {
                point.series[index].samples.push(sample);
            }
        }
    }
}

fn measure(cell: &Cell, session: &Session, variant: Variant) -> Result<Vec<Sample>> {
    let samples = (cell.run)(session, variant)?;
    if samples.len() == cell.points.len() {
        return Ok(samples);
    }
    Err(BenchError::Failed(format!(
        "{} gave {} results for {} points",
        cell.title,
        samples.len(),
        cell.points.len()
    )))
}

/// Waits until others leave the processors alone, but not for long: a machine may never be calm.
fn wait_for_calm() -> Result<()> {
    let cores = std::thread::available_parallelism().map_or(1, usize::from) as f64;
    let deadline = Instant::now() + CALM_TIMEOUT;
    while Instant::now() < deadline {
        let (start, busy_s) = (Instant::now(), usage::machine_busy_s());
        signals::pause(CALM_WINDOW)?;
        let offered_s = start.elapsed().as_secs_f64() * cores;
        if (usage::machine_busy_s() - busy_s) / offered_s < OTHERS_SHARE_TOLERATED {
            break;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::cell::Cell as StdCell;
    use std::path::Path;
    use std::rc::Rc;

    use super::*;
    use crate::model::{Better, CostUnit, PointSpec};

    fn cell(run: crate::workloads::CellRun) -> Cell {
        Cell {
            title: "t".to_owned(),
            variants: vec![Variant::Tcp, Variant::Sluice],
            repetitions: 3,
            points: vec![PointSpec {
                group: "g".to_owned(),
                label: "l".to_owned(),
                x: None,
                unit: "requests/s",
                better: Better::Higher,
                cost_unit: CostUnit::None,
                paired: false,
                baseline: Variant::Tcp,
            }],
            run,
        }
    }

    fn sample(value: f64) -> Vec<Sample> {
        vec![Sample {
            value,
            ..Sample::default()
        }]
    }

    fn run(cell: &Cell) -> Result<Vec<Point>> {
        let session = Session::start(Path::new("sluice"), 1, false).expect("a scratch folder");
        let mut runner = Runner {
            session: &session,
            progress: Progress::new(0),
            repeats_max: 2,
            calm: || Ok(()),
        };
        runner.run_cell(cell, &mut Vec::new())
    }

    #[test]
    fn variants_take_turns() {
        let order = Rc::new(StdCell::new(String::new()));
        let seen = Rc::clone(&order);
        let points = run(&cell(Box::new(move |_, variant| {
            seen.set(seen.take() + variant.title() + " ");
            Ok(sample(1.0))
        })));
        assert_eq!(order.take(), "TCP Sluice Sluice TCP TCP Sluice ");
        assert_eq!(points.expect("runs")[0].series[1].samples.len(), 3);
    }

    #[test]
    fn failure_of_a_variant_stops_it_and_not_the_others() {
        let tries = Rc::new(StdCell::new(0));
        let counted = Rc::clone(&tries);
        let points = run(&cell(Box::new(move |_, variant| {
            if variant == Variant::Tcp {
                return Ok(sample(2.0));
            }
            counted.set(counted.get() + 1);
            Err(BenchError::Failed("broken".to_owned()))
        })))
        .expect("a failure is not the end");
        assert_eq!(tries.get(), 1);
        assert_eq!(points[0].series[0].median, Some(2.0));
        assert_eq!(points[0].series[1].ratio, None);
        assert_eq!(points[0].series[1].failure.as_deref(), Some("broken"));
    }

    /// TCP's runs are disturbed by these shares, one after the other, then by the last for good.
    fn disturbed_by(shares: &'static [f64]) -> Vec<Point> {
        let runs = StdCell::new(0);
        run(&cell(Box::new(move |_, variant| {
            let mut samples = sample(1.0);
            if variant == Variant::Tcp {
                let share = shares[runs.get().min(shares.len() - 1)];
                runs.set(runs.get() + 1);
                samples[0].cpu_others_share = share;
                samples[0].value = share;
            }
            Ok(samples)
        })))
        .expect("runs")
    }

    fn tcp_values(points: &[Point]) -> Vec<f64> {
        let samples = &points[0].series[0].samples;
        samples.iter().map(|sample| sample.value).collect()
    }

    #[test]
    fn disturbed_repetition_is_measured_again_with_all_variants() {
        let points = disturbed_by(&[0.5, 0.05]);
        assert_eq!(tcp_values(&points), [0.05, 0.05, 0.05]);
        assert_eq!(points[0].series[1].samples.len(), 3);
        assert_eq!((points[0].repeated, points[0].disturbed), (1, 0));
    }

    #[test]
    fn repeats_end_and_the_least_disturbed_counts() {
        let points = disturbed_by(&[0.5, 0.4, 0.6]);
        assert_eq!(tcp_values(&points), [0.4, 0.6, 0.6]);
        assert_eq!((points[0].repeated, points[0].disturbed), (2, 3));
    }

    #[test]
    fn failure_in_a_repeat_is_not_hidden() {
        let runs = StdCell::new(0);
        let points = run(&cell(Box::new(move |_, variant| {
            runs.set(runs.get() + 1);
            let mut samples = sample(1.0);
            samples[0].cpu_others_share = 0.9;
            if variant == Variant::Sluice && runs.get() > 2 {
                return Err(BenchError::Failed("broken".to_owned()));
            }
            Ok(samples)
        })))
        .expect("runs");
        assert_eq!(points[0].series[1].failure.as_deref(), Some("broken"));
        assert_eq!(points[0].series[1].ratio, None);
    }

    #[test]
    fn interruption_ends_everything() {
        let outcome = run(&cell(Box::new(|_, _| Err(BenchError::Interrupted(2)))));
        assert!(matches!(outcome, Err(BenchError::Interrupted(2))));
    }

    #[test]
    fn variants_without_their_program_are_left_out_and_named() {
        let plan = |installed: fn(&str) -> bool| {
            let options = crate::verdict::tests::options();
            let latency = &crate::workloads::verbs::ALL[0];
            Plan::new(latency, &options, installed)
        };
        let all = plan(|_| true);
        assert!(all.missing.is_empty());
        let some = plan(|program| program != "ucx_perftest");
        let variants: Vec<Variant> = some.cells.iter().flat_map(|c| c.variants.clone()).collect();
        assert!(variants.contains(&Variant::Verbs) && variants.contains(&Variant::Libfabric));
        assert!(!variants.contains(&Variant::UcxPosix) && !variants.contains(&Variant::UcxCma));
        assert!(some.runs() < all.runs());
        let [sentence] = &some.missing[..] else {
            panic!("one program is missing: {:?}", some.missing);
        };
        assert!(
            sentence.contains("UCX posix and UCX cma") && sentence.contains("scripts/setup"),
            "{sentence}"
        );
    }

    #[test]
    fn missing_sample_is_a_failure() {
        let points = run(&cell(Box::new(|_, _| Ok(Vec::new())))).expect("runs");
        assert!(points[0].series[0].failure.is_some());
    }
}
