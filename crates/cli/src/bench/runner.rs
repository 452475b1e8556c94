//! Goes through the workloads: variants in turn, repetitions outside, failures kept apart.

use std::collections::BTreeMap;

use super::error::{BenchError, Result};
use super::machine::{self, Machine};
use super::model::{Point, Report, Series, Variant, WorkloadReport};
use super::progress::Progress;
use super::session::Session;
use super::signals;
use super::workloads::{Cell, Options, Workload};

/// Raised when a field of the report changes its meaning.
const REPORT_FORMAT: u32 = 1;

/// Runs the workloads and returns everything that was found.
///
/// A variant that fails is reported as failed and not tried again in its cell; the others go on.
/// Fails only when nothing can be measured or the user interrupts.
pub fn run(chosen: &[&'static Workload], options: &Options) -> Result<Report> {
    let descriptors_max = signals::raise_descriptor_limit();
    let mut report = Report {
        format: REPORT_FORMAT,
        sluice_version: env!("CARGO_PKG_VERSION"),
        date: machine::now_utc(),
        command: std::env::args().collect::<Vec<_>>().join(" "),
        repetitions: options.repetitions,
        seconds_per_run: options.seconds,
        machine: Machine::read(descriptors_max),
        versions: versions(chosen),
        workloads: Vec::new(),
    };
    let with_sluice = options.variants.contains(&Variant::Sluice);
    let session = Session::start(options.seconds, with_sluice).map_err(|error| match error {
        BenchError::Failed(text) if with_sluice => BenchError::Failed(format!(
            "{text}\n(to measure without Sluice: --variants tcp,unix)"
        )),
        other => other,
    })?;
    let planned: Vec<(&Workload, Vec<Cell>)> = chosen
        .iter()
        .map(|workload| (*workload, (workload.cells)(options)))
        .collect();
    let runs = |cell: &Cell| cell.variants.len() * cell.repetitions;
    let total = planned.iter().flat_map(|(_, cells)| cells).map(runs).sum();
    let mut progress = Progress::new(total);
    for (workload, cells) in planned {
        report
            .workloads
            .push(run_workload(workload, cells, &session, &mut progress)?);
    }
    Ok(report)
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
        .flat_map(|workload| workload.programs)
        .filter_map(|&program| Some((program, machine::program_version(program)?)))
        .collect()
}

fn run_workload(
    workload: &Workload,
    cells: Vec<Cell>,
    session: &Session,
    progress: &mut Progress,
) -> Result<WorkloadReport> {
    let mut report = WorkloadReport {
        name: workload.name,
        title: workload.title,
        about: workload.about,
        skipped: None,
        points: Vec::new(),
        commands: Vec::new(),
    };
    let missing = missing_programs(workload);
    if !missing.is_empty() {
        let reason = format!(
            "{} not found; 'scripts/setup bench' installs it",
            missing.join(" and ")
        );
        progress.note(&format!("{}: skipped: {reason}", workload.name));
        progress.skip(cells.iter().map(|c| c.variants.len() * c.repetitions).sum());
        report.skipped = Some(reason);
        return Ok(report);
    }
    for cell in cells {
        let points = run_cell(&cell, session, progress, &mut report.commands)?;
        report.points.extend(points);
    }
    Ok(report)
}

fn run_cell(
    cell: &Cell,
    session: &Session,
    progress: &mut Progress,
    commands: &mut Vec<String>,
) -> Result<Vec<Point>> {
    let series = || {
        cell.variants
            .iter()
            .map(|&variant| Series::new(variant))
            .collect()
    };
    let mut points: Vec<Point> = cell
        .points
        .iter()
        .map(|spec| Point {
            spec: spec.clone(),
            series: series(),
        })
        .collect();
    for repetition in 1..=cell.repetitions {
        for (index, &variant) in cell.variants.iter().enumerate() {
            let failed = points
                .iter()
                .any(|point| point.series[index].failure.is_some());
            if failed {
                progress.skip(1);
                continue;
            }
            let detail = format!("{}, {repetition} of {}", variant.title(), cell.repetitions);
            progress.next(&cell.title, &detail);
            let outcome = measure(cell, session, variant);
            if let Err(BenchError::Failed(text)) = &outcome {
                progress.note(&format!(
                    "{}: {} failed: {text}",
                    cell.title,
                    variant.title()
                ));
            }
            record(&mut points, index, outcome)?;
            let started = session.take_commands();
            if repetition == 1 {
                for command in started {
                    if !commands.contains(&command) {
                        commands.push(command);
                    }
                }
            }
        }
    }
    points.iter_mut().for_each(Point::summarise);
    Ok(points)
}

fn measure(cell: &Cell, session: &Session, variant: Variant) -> Result<Vec<super::model::Sample>> {
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

/// Puts a run's samples, or its failure, to its points. An interruption is passed on.
fn record(
    points: &mut [Point],
    series: usize,
    outcome: Result<Vec<super::model::Sample>>,
) -> Result<()> {
    match outcome {
        Ok(samples) => {
            for (point, sample) in points.iter_mut().zip(samples) {
                point.series[series].samples.push(sample);
            }
            Ok(())
        }
        Err(BenchError::Failed(text)) => {
            for point in points {
                point.series[series].failure = Some(text.clone());
            }
            Ok(())
        }
        Err(interrupted @ BenchError::Interrupted(_)) => Err(interrupted),
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell as StdCell;
    use std::rc::Rc;

    use super::*;
    use crate::bench::model::{Better, CostUnit, PointSpec, Sample};

    fn cell(run: crate::bench::workloads::CellRun) -> Cell {
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
        let session = Session::start(1, false).expect("a scratch folder");
        run_cell(cell, &session, &mut Progress::new(0), &mut Vec::new())
    }

    #[test]
    fn variants_take_turns() {
        let order = Rc::new(StdCell::new(String::new()));
        let seen = Rc::clone(&order);
        let points = run(&cell(Box::new(move |_, variant| {
            seen.set(seen.take() + variant.title() + " ");
            Ok(sample(1.0))
        })));
        assert_eq!(order.take(), "TCP Sluice TCP Sluice TCP Sluice ");
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
        assert_eq!(points[0].series[1].ratio_to_tcp, None);
        assert_eq!(points[0].series[1].failure.as_deref(), Some("broken"));
    }

    #[test]
    fn interruption_ends_everything() {
        let outcome = run(&cell(Box::new(|_, _| Err(BenchError::Interrupted(2)))));
        assert!(matches!(outcome, Err(BenchError::Interrupted(2))));
    }

    #[test]
    fn missing_sample_is_a_failure() {
        let points = run(&cell(Box::new(|_, _| Ok(Vec::new())))).expect("runs");
        assert!(points[0].series[0].failure.is_some());
    }
}
