//! `sluice-bench`, the program behind `sluice bench`: the same real programs over TCP, Unix sockets and
//! lanes, in turn.
//!
//! What a reader must be able to trust: every variant is started in the same way, the variants
//! alternate within one run, warm-up is not counted, and a ratio exists only if every run of both
//! of its sides succeeded.

mod cgroup;
mod error;
mod figures;
mod helper;
mod html;
mod installation;
mod machine;
mod model;
mod network;
mod output;
mod overview;
mod parse;
mod plot;
mod process;
mod progress;
mod report;
mod runner;
mod session;
mod signals;
mod sockets;
mod stats;
mod suites;
mod table;
mod text;
mod usage;
mod verdict;
mod words;
mod workloads;

use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Args, FromArgMatches, Parser, Subcommand};
use sluice_bench_args::{BenchArgs, BenchCommand, CommonArgs, VariantArg};

use error::{BenchError, Result};
use model::Variant;
use output::OutputFiles;
use suites::Suite;
use workloads::{Options, Workload, redis};

/// The words of a small program that some workloads run.
#[derive(Debug, Parser)]
struct HelperArgs {
    #[command(subcommand)]
    helper: helper::Helper,
}

/// The command line of everything else, named as its users know it.
fn command() -> clap::Command {
    let command = clap::Command::new("sluice-bench")
        .bin_name("sluice bench")
        .version(env!("CARGO_PKG_VERSION"))
        .propagate_version(true)
        .max_term_width(100);
    BenchArgs::augment_args(command)
}

fn main() -> ExitCode {
    let first = std::env::args_os().nth(1);
    if first.is_some_and(|first| first.to_str().is_some_and(helper::Helper::has_subcommand)) {
        return helper::run(&HelperArgs::parse().helper);
    }
    match BenchArgs::from_arg_matches(&command().get_matches()) {
        Ok(args) => run(&args),
        Err(error) => error.exit(),
    }
}

/// Runs the command. The exit status is 0 if every measurement succeeded, 1 if not, and 128 plus
/// the signal's number after an interruption.
fn run(args: &BenchArgs) -> ExitCode {
    let (suite, common, options) = match &args.command {
        Some(BenchCommand::Verbs(common)) => (&suites::VERBS, common, verbs_options(common)),
        Some(BenchCommand::Roce(common)) => (&suites::ROCE, common, verbs_options(common)),
        Some(BenchCommand::Iwarp(common)) => (&suites::IWARP, common, verbs_options(common)),
        Some(BenchCommand::Fabric { common, clients }) => {
            let options = Options {
                redis_clients: clients.clone(),
                ..verbs_options(common)
            };
            (&suites::FABRIC, common, options)
        }
        Some(BenchCommand::Windows {
            common,
            clients,
            window_delay,
        }) => {
            let options = Options {
                redis_clients: clients.clone(),
                window_delay_ns: *window_delay,
                ..verbs_options(common)
            };
            (&suites::WINDOWS, common, options)
        }
        Some(BenchCommand::Rxe(common)) => (&suites::RXE, common, verbs_options(common)),
        None => (&suites::SOCKETS, &args.common, socket_options(args)),
    };
    if common.list {
        say(&list(suite));
        return ExitCode::SUCCESS;
    }
    match compare(suite, common, &options) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            complain(&error.to_string());
            match error {
                BenchError::Interrupted(signal) => {
                    ExitCode::from(u8::try_from(128 + signal).unwrap_or(1))
                }
                BenchError::Failed(_) => ExitCode::FAILURE,
            }
        }
    }
}

/// Measures, prints and writes the report; returns whether everything succeeded.
fn compare(suite: &'static Suite, args: &CommonArgs, options: &Options) -> Result<bool> {
    let chosen = chosen_workloads(suite, &args.only)?;
    if let Some(obstacle) = suite.obstacle.and_then(|obstacle| obstacle()) {
        return Err(BenchError::Failed(obstacle));
    }
    signals::install().map_err(|error| BenchError::io("handle signals", &error))?;
    let folder = args.out.clone().unwrap_or_else(|| suite.folder.into());
    let file = |given: &Option<PathBuf>, name| given.clone().unwrap_or_else(|| folder.join(name));
    let mut files = OutputFiles::prepare(
        file(&args.json, "report.json"),
        file(&args.html, "report.html"),
    )?;
    let (report, interruption) = runner::run(suite, &chosen, options)?;
    let mut points = report
        .workloads
        .iter()
        .flat_map(|workload| &workload.points);
    if points.next().is_none() {
        return Err(interruption.unwrap_or_else(|| {
            BenchError::Failed("nothing was measured: every workload was skipped".to_owned())
        }));
    }
    say(&text::render(&report, args.quick));
    files.write(&report)?;
    say(&format!(
        "Report: {} and {}\n",
        files.html.display(),
        files.json.display()
    ));
    if let Some(interruption) = interruption {
        return Err(interruption);
    }
    let failed = report
        .workloads
        .iter()
        .flat_map(|workload| &workload.points)
        .flat_map(|point| &point.series)
        .any(|series| series.failure.is_some());
    Ok(!failed)
}

fn chosen_workloads(suite: &'static Suite, only: &[String]) -> Result<Vec<&'static Workload>> {
    let all = suite.workloads;
    let known = |name: &str| all.iter().any(|workload| workload.name == name);
    if let Some(unknown) = only.iter().find(|name| !known(name)) {
        let names: Vec<&str> = all.iter().map(|workload| workload.name).collect();
        return Err(BenchError::Failed(format!(
            "there is no workload '{unknown}'; choose from {}",
            names.join(", ")
        )));
    }
    let wanted = |name: &str| only.is_empty() || only.iter().any(|wanted| wanted == name);
    Ok(all
        .iter()
        .filter(|workload| wanted(workload.name))
        .collect())
}

fn socket_options(args: &BenchArgs) -> Options {
    let or = |given: &[u32], standard: &[u32]| {
        if given.is_empty() {
            standard.to_vec()
        } else {
            given.to_vec()
        }
    };
    let (clients, tests): (&[u32], &[&str]) = if args.common.quick {
        (&[1, 10, 50], &["set", "get"])
    } else {
        (&redis::CLIENTS, &redis::TESTS)
    };
    let named = |variant: &VariantArg| match variant {
        VariantArg::Tcp => Variant::Tcp,
        VariantArg::Unix => Variant::Unix,
        VariantArg::Sluice => Variant::Sluice,
    };
    Options {
        variants: args.variants.iter().map(named).collect(),
        redis_clients: or(&args.clients, clients),
        busy_connections: args.clients.clone(),
        redis_tests: if args.tests.is_empty() {
            tests.iter().map(|test| (*test).to_owned()).collect()
        } else {
            args.tests.clone()
        },
        ..verbs_options(&args.common)
    }
}

/// What no option of plain `sluice bench` changes.
fn verbs_options(args: &CommonArgs) -> Options {
    Options {
        variants: Vec::new(),
        brief: args.quick,
        full: args.full,
        repetitions: args.reps.map_or(if args.full { 5 } else { 3 }, usize::from),
        seconds: args.seconds.unwrap_or(if args.full { 3 } else { 1 }),
        redis_clients: Vec::new(),
        redis_tests: Vec::new(),
        busy_connections: Vec::new(),
        idle_connections: 1_000,
        idle_seconds: if args.quick { 3 } else { 10 },
        stall_seconds: match (args.quick, args.full) {
            (true, _) => 5,
            (_, true) => 30,
            _ => 10,
        },
        window_delay_ns: 0,
        repeats_max: usize::from(args.repeats),
    }
}

fn list(suite: &Suite) -> String {
    let mut text = String::new();
    for workload in suite.workloads {
        text.push_str(&format!("{:<12} {}\n", workload.name, workload.title));
        let marked = |programs: &[&'static str]| {
            let missing = |program: &&str| machine::find_program(program).is_none();
            let marked = programs.iter().map(|program| {
                let mark = if missing(program) { " (missing)" } else { "" };
                format!("{program}{mark}")
            });
            marked.collect::<Vec<_>>().join(", ")
        };
        for (what, programs) in [
            ("needs", workload.programs),
            ("compares with", workload.compared_with),
        ] {
            if !programs.is_empty() {
                text.push_str(&format!("{:<12} {what} {}\n", "", marked(programs)));
            }
        }
    }
    text
}

/// Writes to standard output; a reader that went away is no error of ours.
fn say(text: &str) {
    let _ = std::io::stdout().write_all(text.as_bytes());
}

fn complain(text: &str) {
    let _ = writeln!(std::io::stderr(), "sluice: {text}");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_line_is_consistent() {
        command().debug_assert();
        <HelperArgs as clap::CommandFactory>::command().debug_assert();
    }

    #[test]
    fn list_names_the_programs_of_every_workload() {
        let text = list(&suites::SOCKETS);
        for workload in suites::SOCKETS.workloads {
            for program in workload.programs {
                assert!(text.contains(program), "{program} in\n{text}");
            }
        }
        assert!(text.contains("needs "), "{text}");
    }
}
