//! `sluice bench`: the same real programs over TCP, Unix sockets and lanes, in turn.
//!
//! What a reader must be able to trust: every variant is started in the same way, the variants
//! alternate within one run, warm-up is not counted, and a ratio exists only if every run of both
//! of its sides succeeded.

mod cgroup;
mod error;
mod helper;
mod html;
mod machine;
mod model;
mod network;
mod output;
mod parse;
mod plot;
mod process;
mod progress;
mod runner;
mod session;
mod signals;
mod sockets;
mod stats;
mod table;
mod text;
mod usage;
mod verdict;
mod workloads;

use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Args, Subcommand, ValueEnum};

use error::{BenchError, Result};
use model::Variant;
use output::OutputFiles;
use workloads::{Options, Suite, Workload, redis};

/// Compares TCP, Unix sockets and Sluice with real programs on this machine.
///
/// Runs each workload over every variant in turn, several times, prints medians, ratios, CPU
/// costs and whether every promised floor was reached, and writes a JSON file and an HTML report.
/// A repetition that other programs disturbed is measured again. Everything that it starts runs
/// on ports of its own and is gone when it ends.
///
/// 'sluice bench verbs' does the same for RDMA programs within one host, 'sluice bench roce' for
/// RDMA programs on two hosts, 'sluice bench rxe' beside the kernel's software RDMA, 'sluice bench
/// fabric' for socket programs on two hosts.
#[derive(Debug, Clone, Args)]
#[command(args_conflicts_with_subcommands = true, disable_help_subcommand = true)]
pub struct BenchArgs {
    #[command(flatten)]
    common: CommonArgs,

    /// Only these variants
    #[arg(
        long,
        value_name = "V",
        value_delimiter = ',',
        default_values = ["tcp", "unix", "sluice"]
    )]
    variants: Vec<VariantArg>,

    /// Numbers of clients for the redis workload
    #[arg(long, value_name = "N", value_delimiter = ',', value_parser = clap::value_parser!(u32).range(1..=9_000))]
    clients: Vec<u32>,

    /// Requests for the redis workload
    #[arg(long, value_name = "T", value_delimiter = ',', value_parser = redis::TESTS)]
    tests: Vec<String>,

    #[command(subcommand)]
    command: Option<BenchCommand>,
}

/// What all kinds of `sluice bench` take.
#[derive(Debug, Clone, Args)]
struct CommonArgs {
    /// Only these workloads (see --list)
    #[arg(long, value_name = "W", value_delimiter = ',')]
    only: Vec<String>,

    /// List the workloads and the programs that they need, then end
    #[arg(long)]
    list: bool,

    /// Fewer points and three short repetitions: for a first look
    #[arg(long, conflicts_with = "full")]
    quick: bool,

    /// Five repetitions of three seconds: for numbers to quote
    #[arg(long)]
    full: bool,

    /// How often each variant is measured [default: 3, with --full 5]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=100))]
    reps: Option<u16>,

    /// How long one measurement takes, in seconds [default: 1, with --full 3]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=60))]
    seconds: Option<u32>,

    /// How many repetitions of a point are measured again when other programs disturbed them
    #[arg(long, value_name = "N", default_value_t = 2, value_parser = clap::value_parser!(u16).range(0..=100))]
    repeats: u16,

    /// The folder for report.json and report.html [default: sluice-bench, for verbs
    /// sluice-bench-verbs, and so on]
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,

    /// Write the JSON file here instead
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,

    /// Write the HTML report here instead
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,
}

#[derive(Debug, Clone, Subcommand)]
enum BenchCommand {
    /// Compares verbs programs under 'sluice verbs' with UCX, libfabric and memcpy
    ///
    /// Runs perftest over the shared-memory transport beside ucx_perftest (posix and cma),
    /// fi_pingpong (shm) and a plain copy, and reports as 'sluice bench' does. What is not
    /// installed is said and left out.
    Verbs(CommonArgs),
    /// Compares verbs programs between two hosts, over AF_XDP and UDP, with kernel TCP
    ///
    /// The hosts are two network namespaces joined by a veth pair, which this command makes and
    /// which end with it: it needs root. Runs perftest under 'sluice verbs --device roce' and
    /// '--device roce-udp' beside sockperf and iperf3 through the same veth pair, and reports as
    /// 'sluice bench' does.
    Roce(CommonArgs),
    /// Compares socket programs between two hosts with a sluiced each with kernel TCP
    ///
    /// The hosts are two network namespaces joined by a veth pair, which this command makes and
    /// which end with it: it needs root. Runs sockperf, redis and iperf3 over TCP and under 'sluice
    /// run', with CPU time that includes both daemons, and reports as 'sluice bench' does. Without
    /// --quick also with daemons that put bytes on rings whether that pays or not. 'stall' has a writer
    /// push to a reader that sleeps, and shows what both hosts hold meanwhile over TCP, under 'sluice
    /// run', captured, and by a proxy of SK_MSG; that writer stops by itself before it harms the
    /// machine.
    Fabric {
        #[command(flatten)]
        common: CommonArgs,

        /// Numbers of clients for the redis workload
        #[arg(long, value_name = "N", value_delimiter = ',', value_parser = clap::value_parser!(u32).range(1..=9_000))]
        clients: Vec<u32>,
    },
    /// Compares verbs programs over the kernel's own RoCEv2 (rdma_rxe) and over Sluice
    ///
    /// Runs perftest over two rxe devices joined by a veth pair, which this command makes in the
    /// network namespace that it is started in and removes at its end, beside 'sluice verbs
    /// --device roce' and '--device roce-udp' over such a pair, and reports as 'sluice bench' does.
    /// It needs root, rdma_rxe in the kernel, and, with most kernels, the first network namespace:
    /// bench/rxe in the source tree boots a guest that has all that, and runs it there.
    Rxe(CommonArgs),
    #[command(flatten)]
    Helper(helper::Helper),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum VariantArg {
    Tcp,
    Unix,
    Sluice,
}

/// Runs the command. The exit status is 0 if every measurement succeeded, 1 if not, and 128 plus
/// the signal's number after an interruption.
pub fn run(args: BenchArgs) -> ExitCode {
    let (suite, common, options) = match &args.command {
        Some(BenchCommand::Helper(helper)) => return helper::run(helper),
        Some(BenchCommand::Verbs(common)) => (&workloads::VERBS, common, verbs_options(common)),
        Some(BenchCommand::Roce(common)) => (&workloads::ROCE, common, verbs_options(common)),
        Some(BenchCommand::Fabric { common, clients }) => {
            let options = Options {
                redis_clients: clients.clone(),
                ..verbs_options(common)
            };
            (&workloads::FABRIC, common, options)
        }
        Some(BenchCommand::Rxe(common)) => (&workloads::RXE, common, verbs_options(common)),
        None => (&workloads::SOCKETS, &args.common, socket_options(&args)),
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
        repetitions: args.reps.map_or(if args.full { 5 } else { 3 }, usize::from),
        seconds: args.seconds.unwrap_or(if args.full { 3 } else { 1 }),
        redis_clients: Vec::new(),
        redis_tests: Vec::new(),
        idle_connections: 1_000,
        idle_seconds: if args.quick { 3 } else { 10 },
        stall_seconds: match (args.quick, args.full) {
            (true, _) => 5,
            (_, true) => 30,
            _ => 10,
        },
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
    fn list_names_the_programs_of_every_workload() {
        let text = list(&workloads::SOCKETS);
        for workload in workloads::SOCKETS.workloads {
            for program in workload.programs {
                assert!(text.contains(program), "{program} in\n{text}");
            }
        }
        assert!(text.contains("needs "), "{text}");
    }
}
