//! From the command line to the command, and from its end to the exit status.

use std::io::ErrorKind::BrokenPipe;

use clap::error::ErrorKind;
use clap::{CommandFactory, Parser};

use crate::args::{Cli, Command, CompletionsArgs};
use crate::error::{EXIT_OWN_FAILURE, Outcome};
use crate::terminal::{self, print};
use crate::{
    bench, ca, daemon, device_plugin, doctor, gateway, man, run, service, status, top, verbs,
    window,
};

/// Runs the command that the arguments name. Returns the exit status.
pub fn main() -> u8 {
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(error) => {
            if matches!(
                error.kind(),
                ErrorKind::DisplayHelp | ErrorKind::DisplayVersion
            ) {
                return match error.print() {
                    Ok(()) => 0,
                    // Whoever does not read help does not miss it.
                    Err(error) if error.kind() == BrokenPipe => 0,
                    Err(error) => {
                        terminal::complain(&terminal::unwritten(&error).to_string());
                        1
                    }
                };
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
        // The program reads the same words again: what is wrong with them is said here.
        Command::Bench(_) => Err(bench::become_program(std::env::args_os().skip(2).collect())),
        Command::Up(args) => daemon::up(&args),
        Command::Down(args) => daemon::down(&args),
        Command::Gateway(args) => gateway::run(&args),
        Command::Window(args) => window::run(&args),
        Command::Ca(args) => ca::run(&args),
        Command::DevicePlugin(args) => device_plugin::run(&args),
        Command::Enable(args) => service::enable(&args),
        Command::Disable(args) => service::disable(&args),
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

fn completions(args: &CompletionsArgs) -> Outcome {
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut Cli::command(), "sluice", &mut script);
    print(&String::from_utf8_lossy(&script))?;
    Ok(0)
}
