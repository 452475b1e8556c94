//! `sluice run`: makes sure that a daemon runs, preloads the library, and becomes the program.

pub mod stats;

use std::ffi::{OsStr, OsString};
use std::io;
use std::path::Path;

use clap::ValueEnum;

use crate::args::{LogLevel, RunArgs};
use crate::commands::Outcome;
use crate::elf;
use crate::error::{EXIT_NOT_EXECUTABLE, EXIT_NOT_FOUND, EXIT_OWN_FAILURE, Failure, reason};
use crate::exec::{Change, Image, Supervisor, die_by};
use crate::terminal::complain;
use crate::{daemon, locate, trial};

use stats::StatsFile;

/// The variable of the dynamic linker that names libraries to load first.
const PRELOAD_VARIABLE: &str = "LD_PRELOAD";

/// Runs the program. Does not return where it could be executed, except with `--stats`.
pub fn run(args: RunArgs) -> Outcome {
    let own = |failure: Failure| failure.with_status(EXIT_OWN_FAILURE);
    let library = locate::library().map_err(own)?;
    let socket = daemon::socket_path(args.socket.as_deref()).map_err(own)?;
    let log = log_level(args.log, std::env::var("SLUICE_LOG").ok().as_deref());

    if !args.no_daemon
        && let Err(failure) = daemon::ensure(&socket, log)
        && log.is_some()
    {
        complain(&format!("warning: {failure}; connections stay on TCP"));
    }

    let offer = warn_of_obstacles(&args.command[0]);
    let stats_file = if args.stats {
        Some(StatsFile::create(&std::env::temp_dir()).map_err(|error| {
            own(Failure::new(
                format!("cannot make a file for statistics: {}", reason(&error)),
                "point TMPDIR at a directory that you can write, or leave --stats out",
            ))
        })?)
    } else {
        None
    };
    let environment = environment(
        std::env::vars_os(),
        &args,
        offer.then_some(library.as_path()),
        &tried_filters(&library, log.is_some()),
        &socket,
        stats_file.as_ref().map(StatsFile::path),
    );
    let image = Image::new(&args.command, &environment).map_err(|error| {
        own(Failure::new(
            format!("cannot pass the arguments on: {}", reason(&error)),
            "remove the NUL byte from the arguments or the environment",
        ))
    })?;
    match stats_file {
        None => Err(not_executed(&args.command[0], &image.exec())),
        Some(file) => supervise(&args.command[0], &image, &file),
    }
}

/// The level that was asked for, by flag or by the caller's environment. `None`: be silent.
fn log_level(flag: Option<LogLevel>, variable: Option<&str>) -> Option<LogLevel> {
    // The library, too, is silent if it does not know the word.
    let level = flag.or_else(|| LogLevel::from_str(variable?, true).ok())?;
    (level != LogLevel::Off).then_some(level)
}

/// The seccomp filters of this process, which are the program's too, if they let live who tries
/// what the library does: a number for the library, or a word that is none. Without filters,
/// which is most often so, this costs one small file.
fn tried_filters(library: &Path, speaks: bool) -> String {
    let filters = trial::own_filters();
    if filters == 0 {
        return "0".to_owned();
    }
    let problem = match trial::load(library, filters) {
        // Should they refuse something, the library says so itself.
        Ok(trial) if !trial.standing.is_empty() => return filters.to_string(),
        Ok(trial) => trial.obstacle(),
        Err(error) => format!(
            "the seccomp filters here cannot be tried: {}",
            reason(&error)
        ),
    };
    if speaks {
        complain(&format!("warning: {problem}; connections stay on TCP"));
    }
    "untried".to_owned()
}

/// Says on standard error if the library cannot get into the program. Returns whether to offer
/// it: not where the mere offer would harm.
fn warn_of_obstacles(program: &OsStr) -> bool {
    let path_variable = std::env::var_os("PATH");
    let verdict = elf::resolve(program, path_variable.as_deref())
        .and_then(|path| elf::inspect(&path))
        .and_then(|verdict| Some((verdict.obstacle?, verdict.file)));
    let Some((obstacle, file)) = verdict else {
        return true;
    };
    let children = if obstacle.forbids_preload() {
        "it and what it starts run on plain TCP"
    } else {
        "it runs on plain TCP, what it starts may not"
    };
    complain(&format!(
        "warning: {} {obstacle} and cannot load the library; {children}",
        file.display()
    ));
    !obstacle.forbids_preload()
}

/// The environment of the program: the caller's, with what the library reads.
fn environment(
    present: impl Iterator<Item = (OsString, OsString)>,
    args: &RunArgs,
    library: Option<&Path>,
    tried_filters: &str,
    socket: &Path,
    stats_file: Option<&Path>,
) -> Vec<(OsString, OsString)> {
    let mut environment: Vec<(OsString, OsString)> = present.collect();
    let mut set = |name: &str, value: OsString| {
        environment.retain(|(present, _)| present != name);
        environment.push((name.into(), value));
    };
    set("SLUICE_SOCKET", socket.into());
    set(trial::FILTERS_VARIABLE, tried_filters.into());
    if let Some(level) = args.log {
        set("SLUICE_LOG", level.name().into());
    }
    if let Some(spin_us) = args.spin_us {
        set("SLUICE_SPIN_US", spin_us.to_string().into());
    }
    if let Some(min_ops) = args.min_ops {
        set("SLUICE_MIN_OPS", min_ops.to_string().into());
    }
    if let Some(path) = stats_file {
        set(stats::FILE_VARIABLE, path.into());
    }
    let find = |environment: &[(OsString, OsString)], name: &str| {
        let found = environment.iter().find(|(present, _)| present == name);
        found.map(|(_, value)| value.clone())
    };
    if let Some(library) = library {
        let value = locate::preload_value(library, find(&environment, PRELOAD_VARIABLE).as_deref());
        environment.retain(|(present, _)| present != PRELOAD_VARIABLE);
        environment.push((PRELOAD_VARIABLE.into(), value));
    }
    // libuv would talk to the kernel through io_uring, past every function that a library can
    // stand in for. Who set the variable knows what he wants.
    if find(&environment, "UV_USE_IO_URING").is_none() {
        environment.push(("UV_USE_IO_URING".into(), "0".into()));
    }
    environment
}

/// Why the program could not be executed, with the exit status that env(1) would give.
pub fn not_executed(program: &OsStr, error: &io::Error) -> Failure {
    let (status, hint) = if error.raw_os_error() == Some(libc::ENOENT) {
        (
            EXIT_NOT_FOUND,
            "check its name and PATH, and the interpreter that it names",
        )
    } else {
        (
            EXIT_NOT_EXECUTABLE,
            "check its permissions and that it is a program for this machine",
        )
    };
    Failure::new(
        format!("cannot run '{}': {}", program.display(), reason(error)),
        hint,
    )
    .with_status(status)
}

/// Runs the program as a child, prints the summary, and ends as it ended.
fn supervise(program: &OsStr, image: &Image, file: &StatsFile) -> Outcome {
    let cannot = |what: &str, error: &io::Error| {
        Failure::new(
            format!("cannot {what}: {}", reason(error)),
            "try without --stats",
        )
        .with_status(EXIT_OWN_FAILURE)
    };
    let supervisor = Supervisor::start(image, |error| {
        let failure = not_executed(program, &error);
        complain(&failure.to_string());
        failure.status
    })
    .map_err(|error| cannot("start a process", &error))?;
    let change = supervisor
        .wait()
        .map_err(|error| cannot("wait for the program", &error))?;
    match file.summary() {
        Ok(summary) => {
            // Nobody can be told if standard error is closed.
            let _ = io::Write::write_all(&mut io::stderr(), summary.text().as_bytes());
        }
        Err(error) => complain(&format!(
            "cannot read the statistics back: {}; the program itself was not affected",
            reason(&error)
        )),
    }
    Ok(match change {
        Change::Exited(status) => status,
        Change::Killed(signal) => {
            file.remove();
            die_by(signal)
        }
        Change::Stopped => EXIT_OWN_FAILURE,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::args::{Cli, Command};
    use clap::Parser;
    use std::collections::HashMap;

    fn args(flags: &[&str]) -> RunArgs {
        let all = ["sluice", "run"].iter().chain(flags).chain(&["--", "prog"]);
        match Cli::try_parse_from(all).unwrap().command {
            Command::Run(args) => args,
            other => panic!("parsed as {other:?}"),
        }
    }

    fn made(
        present: &[(&str, &str)],
        flags: &[&str],
        library: Option<&str>,
    ) -> HashMap<String, String> {
        let present = present.iter().map(|(n, v)| (n.into(), v.into()));
        let environment = environment(
            present,
            &args(flags),
            library.map(Path::new),
            "3",
            Path::new("/s/control.sock"),
            None,
        );
        let length = environment.len();
        let map: HashMap<String, String> = environment
            .into_iter()
            .map(|(n, v)| (n.into_string().unwrap(), v.into_string().unwrap()))
            .collect();
        assert_eq!(map.len(), length, "a variable is set twice");
        map
    }

    #[test]
    fn the_callers_environment_is_kept() {
        let environment = made(
            &[
                ("A", "1"),
                ("LD_PRELOAD", "/x.so"),
                ("SLUICE_SOCKET", "/old"),
                ("SLUICE_SECCOMP_FILTERS", "9"),
            ],
            &["--spin-us", "5", "--min-ops", "7", "--log", "debug"],
            Some("/l.so"),
        );
        for (name, value) in [
            ("A", "1"),
            ("LD_PRELOAD", "/l.so:/x.so"),
            ("SLUICE_SOCKET", "/s/control.sock"),
            ("SLUICE_SECCOMP_FILTERS", "3"),
            ("SLUICE_SPIN_US", "5"),
            ("SLUICE_MIN_OPS", "7"),
            ("SLUICE_LOG", "debug"),
            ("UV_USE_IO_URING", "0"),
        ] {
            assert_eq!(environment[name], value, "{name}");
        }
    }

    #[test]
    fn without_flags_the_variables_pass_through() {
        let environment = made(
            &[("SLUICE_SPIN_US", "9"), ("UV_USE_IO_URING", "1")],
            &[],
            None,
        );
        assert_eq!(environment["SLUICE_SPIN_US"], "9");
        assert_eq!(environment["UV_USE_IO_URING"], "1");
        assert!(!environment.contains_key("LD_PRELOAD"));
        assert!(!environment.contains_key("SLUICE_MIN_OPS"));
    }

    #[test]
    fn only_known_levels_count() {
        assert_eq!(log_level(None, None), None);
        assert_eq!(log_level(None, Some("sluice=loud")), None);
        assert_eq!(log_level(None, Some("off")), None);
        assert_eq!(log_level(None, Some("Info")), Some(LogLevel::Info));
        assert_eq!(log_level(Some(LogLevel::Off), Some("info")), None);
    }

    #[test]
    fn exit_statuses_are_those_of_env() {
        let status =
            |code| not_executed(OsStr::new("x"), &io::Error::from_raw_os_error(code)).status;
        assert_eq!(status(libc::ENOENT), 127);
        assert_eq!(status(libc::EACCES), 126);
        assert_eq!(status(libc::ENOEXEC), 126);
    }
}
