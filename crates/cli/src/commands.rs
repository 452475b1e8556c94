//! From the command line to the command, and from its end to the exit status.

use std::process::ExitCode;

use clap::error::ErrorKind;
use clap::{CommandFactory, Parser};

use crate::args::{Cli, Command, CompletionsArgs};
use crate::bench::BenchArgs;
use crate::error::{EXIT_OWN_FAILURE, Failure};
use crate::terminal;
use crate::{
    bench as benchmarks, daemon, doctor, exec, gateway, man, run, status, top, verbs, window,
};

/// What a command ends with: an exit status, or a failure to report.
pub type Outcome = Result<u8, Failure>;

/// Runs the command that the arguments name. Returns the exit status.
pub fn main() -> u8 {
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(error) => {
            if matches!(
                error.kind(),
                ErrorKind::DisplayHelp | ErrorKind::DisplayVersion
            ) {
                // Whoever does not read help does not miss it.
                let _ = error.print();
                return 0;
            }
            let text = error.render().to_string();
            let text = text.strip_prefix("error: ").unwrap_or(&text);
            terminal::complain(text.trim_end());
            // A status below 125 would be the program's, had it been started.
            return match std::env::args_os().nth(1) {
                Some(command) if command == "run" || command == "verbs" => EXIT_OWN_FAILURE,
                _ => 2,
            };
        }
    };
    let outcome = match cli.command {
        Command::Run(args) => run::run(args),
        Command::Verbs(args) => verbs::run(&args),
        Command::Status(args) => status::run(&args),
        Command::Top(args) => top::run(&args),
        Command::Doctor(args) => doctor::run(&args),
        Command::Bench(args) => Ok(bench(args)),
        Command::Up(args) => daemon::up(&args),
        Command::Down(args) => daemon::down(&args),
        Command::Gateway(args) => gateway::run(&args),
        Command::Window(args) => window::run(&args),
        Command::Man(args) => man::run(&args),
        Command::Completions(args) => completions(&args),
    };
    match outcome {
        Ok(status) => status,
        Err(failure) => {
            terminal::complain(&failure.to_string());
            failure.status
        }
    }
}

fn bench(args: BenchArgs) -> u8 {
    // A reader that goes away must not end it by a signal: it has servers to stop first.
    exec::ignore_broken_pipes();
    let exit = benchmarks::run(args);
    // ExitCode does not give its number away.
    (0..=u8::MAX)
        .find(|status| ExitCode::from(*status) == exit)
        .unwrap_or(1)
}

fn completions(args: &CompletionsArgs) -> Outcome {
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut Cli::command(), "sluice", &mut script);
    print(&String::from_utf8_lossy(&script))?;
    Ok(0)
}

/// Writes to standard output. Returns false if its reader has gone away.
pub fn print(text: &str) -> Result<bool, Failure> {
    terminal::print(text).map_err(|error| {
        Failure::new(
            format!(
                "cannot write to standard output: {}",
                crate::error::reason(&error)
            ),
            "check where it is redirected to",
        )
    })
}
