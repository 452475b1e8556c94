//! `sluice run`: makes sure that a daemon runs, preloads the library, and becomes the program.

pub use std::ffi::{OsStr, OsString};
use std::path::Path;

use clap::ValueEnum;

use crate::args::{LogLevel, RunArgs};
use crate::error::Outcome;
use crate::error::{EXIT_OWN_FAILURE, Failure, reason};
use crate::exec::takes_orphans;
use crate::launch::{self, Environment, Front};
use crate::terminal::complain;
use crate::{daemon, locate, trial};

use daemon::{Ensured, NoDaemon, State};

use crate::stats::{self, StatsFile};

/// What the library and this program say.
const LOG_VARIABLE: &str = "SLUICE_LOG";
/// Tells `sluice-static` which program to become.
const STATIC_VARIABLE: &str = "SLUICE_STATIC";
/// Tells the library that it is in the program that the user has named, and not in one that this starts.
const STARTED_VARIABLE: &str = "SLUICE_RUN_PID";
/// Tells the library where `sluice-static` is, for static programs that the program starts.
const LOADER_VARIABLE: &str = "SLUICE_STATIC_LOADER";

/// Runs the program. Does not return where it could be executed, except with `--stats`.
pub fn run(args: RunArgs) -> Outcome {
    let own = |failure: Failure| failure.with_status(EXIT_OWN_FAILURE);
    let library = locate::library().map_err(own)?;
    let socket = daemon::socket_path(args.socket.as_deref()).map_err(own)?;
    let named = std::env::var_os(LOG_VARIABLE).filter(|value| !value.is_empty());
    let log = match log_level(args.log, named.as_deref()) {
        Ok(log) => log,
        Err(what) => {
            complain(&format!("warning: {what}"));
            None
        }
    };
    let ensured = find_daemon(&args, &socket, log).map_err(own)?;
    // A program that waits for all its children would wait for the daemon.
    let stays_in_front = ensured == Ensured::Started && takes_orphans();

    let static_program = match args.includes_static {
        true => launch::static_program(&args.command[0]),
        false => None,
    };
    let offer = static_program.is_some() || warn_of_obstacles(&args.command[0]);
    let filters = tried_filters(&library, log.is_some());
    let offer = offer && filters.is_some();
    let stats_file = launch::stats_file(args.stats)?;
    let mut environment = environment(
        std::env::vars_os(),
        &args,
        log,
        offer.then_some(library.as_path()),
        filters.as_deref().unwrap_or(UNTRIED),
        &socket,
        stats_file.as_ref().map(StatsFile::path),
    );
    if stats_file.is_none() && !stays_in_front {
        // This process becomes the program.
        let pid = std::process::id().to_string();
        launch::set_variable(&mut environment, STARTED_VARIABLE, pid.into());
    }
    let mut command = args.command;
    let mut argv0 = args.argv0;
    let loader = match args.includes_static {
        true => Some(locate::loader().map_err(own)?),
        false => None,
    };
    if let Some(loader) = &loader {
        launch::set_variable(&mut environment, LOADER_VARIABLE, loader.into());
    }
    if let (Some(program), Some(loader)) = (static_program, loader) {
        launch::set_variable(&mut environment, STATIC_VARIABLE, program.into());
        let name = std::mem::replace(&mut command[0], loader.into());
        argv0 = argv0.or(Some(name));
    }
    launch::start(
        &command,
        argv0.as_deref(),
        &environment,
        Front {
            stats_file,
            stays: stays_in_front,
        },
        |file| Ok(file.summary()?.text()),
    )
}

/// Sees to it that there is a daemon, as far as the caller has asked for one: what he has named by a
/// flag and cannot have is an error, what by a variable a warning, and so is a daemon that is there and cannot be used.
/// Otherwise the program runs on TCP as programs do that have no daemon.
fn find_daemon(args: &RunArgs, socket: &Path, log: Option<LogLevel>) -> Result<Ensured, Failure> {
    let named = args.socket.is_some() || args.gateway.is_some();
    let is_of_interest = log.is_some() || std::env::var_os("SLUICE_SOCKET").is_some();
    if args.no_daemon {
        if args.socket.is_some() {
            match daemon::probe(socket) {
                State::Running { .. } => {}
                state => warn_of_tcp(&state.failure(socket)),
            }
        }
        return Ok(Ensured::Found);
    }
    let ensured = match daemon::ensure(socket, log) {
        Ok(ensured) => ensured,
        Err(why) if named => return Err(why.into_failure()),
        Err(why) => {
            if is_of_interest || matches!(why, NoDaemon::Unusable(_)) {
                warn_of_tcp(&why.into_failure());
            }
            Ensured::Found
        }
    };
    if let Some(gateway) = &args.gateway {
        daemon::check_gateway(socket, gateway)?;
    }
    Ok(ensured)
}

fn warn_of_tcp(failure: &Failure) {
    complain(&format!("warning: {failure}; connections stay on TCP"));
}

/// The level that was asked for, by flag or by the caller's environment. `None`: be silent.
fn log_level(flag: Option<LogLevel>, variable: Option<&OsStr>) -> Result<Option<LogLevel>, String> {
    let level = match (flag, variable) {
        (Some(level), _) => level,
        (None, None) => return Ok(None),
        (None, Some(word)) => word
            .to_str()
            .and_then(|word| LogLevel::from_str(word, true).ok())
            .ok_or_else(|| {
                let known = LogLevel::value_variants().iter().map(|level| level.name());
                format!(
                    "{LOG_VARIABLE} is '{}', which is no level: use {}",
                    word.display(),
                    known.collect::<Vec<_>>().join(", ")
                )
            })?,
    };
    Ok((level != LogLevel::Off).then_some(level))
}

/// For the library, in place of the number of filters: it must do without lanes.
const UNTRIED: &str = "untried";

/// The seccomp filters of this process, which are the program's too, if they let live who tries
/// what the library does: a number for the library, or a word that is none. `None`: they kill who loads it. Without
/// filters, which is most often so, this costs one small file.
fn tried_filters(library: &Path, speaks: bool) -> Option<String> {
    let filters = trial::own_filters();
    if filters == 0 {
        return Some("0".to_owned());
    }
    let problem = match trial::load(library, filters) {
        // Should they refuse something, the library says so itself.
        Ok(trial) if !trial.standing.is_empty() => return Some(filters.to_string()),
        Ok(trial) if trial.version.is_empty() && trial.signal == Some(libc::SIGSYS) => {
            complain(
                "warning: a seccomp filter kills programs for a call that the library makes; the program runs \
                 without it, on plain TCP",
            );
            return None;
        }
        Ok(trial) => trial.obstacle(),
        Err(error) => format!(
            "the seccomp filters here cannot be tried: {}",
            reason(&error)
        ),
    };
    if speaks {
        complain(&format!("warning: {problem}; connections stay on TCP"));
    }
    Some(UNTRIED.to_owned())
}

/// Says on standard error if the library cannot get into the program. Returns whether to offer
/// it: not where the mere offer would harm.
fn warn_of_obstacles(program: &OsStr) -> bool {
    let Some((obstacle, file)) = launch::obstacle(program) else {
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
    log: Option<LogLevel>,
    library: Option<&Path>,
    tried_filters: &str,
    socket: &Path,
    stats_file: Option<&Path>,
) -> Environment {
    let mut environment: Environment = present.collect();
    let mut set = |name: &str, value| launch::set_variable(&mut environment, name, value);
    set("SLUICE_SOCKET", socket.into());
    set(trial::FILTERS_VARIABLE, tried_filters.into());
    // The library knows the words in one spelling.
    if let Some(level) = args.log.or(log) {
        set(LOG_VARIABLE, level.name().into());
    }
    if let Some(gateway) = &args.gateway {
        set("SLUICE_GATEWAY", gateway.into());
    }
    if let Some(spin_us) = args.spin_us {
        set("SLUICE_SPIN_US", spin_us.to_string().into());
    }
    if let Some(min_ops) = args.min_ops {
        set("SLUICE_MIN_OPS", min_ops.to_string().into());
    }
    for (name, ports) in [
        ("SLUICE_ONLY_PORTS", args.only_ports),
        ("SLUICE_NOT_PORTS", args.not_ports),
    ] {
        if let Some(ports) = ports {
            set(name, ports.to_string().into());
        }
    }
    if let Some(path) = stats_file {
        set(stats::FILE_VARIABLE, path.into());
    }
    if let Some(library) = library {
        launch::preload(&mut environment, library);
    }
    // Some versions of libuv would have a thread of the kernel poll a ring, into which the library
    // does not see. Who set the variable knows what he wants.
    if launch::variable(&environment, "UV_USE_IO_URING").is_none() {
        environment.push(("UV_USE_IO_URING".into(), "0".into()));
    }
    environment
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
            None,
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
                ("ASAN_OPTIONS", "detect_leaks=0"),
                ("SLUICE_SOCKET", "/old"),
                ("SLUICE_SECCOMP_FILTERS", "9"),
            ],
            &[
                "--spin-us",
                "5",
                "--min-ops",
                "7",
                "--log",
                "debug",
                "--only-ports",
                "80, 8000-8080",
                "--not-ports=22",
            ],
            Some("/l.so"),
        );
        for (name, value) in [
            ("A", "1"),
            ("LD_PRELOAD", "/l.so:/x.so"),
            ("ASAN_OPTIONS", "verify_asan_link_order=0:detect_leaks=0"),
            ("SLUICE_SOCKET", "/s/control.sock"),
            ("SLUICE_SECCOMP_FILTERS", "3"),
            ("SLUICE_SPIN_US", "5"),
            ("SLUICE_MIN_OPS", "7"),
            ("SLUICE_LOG", "debug"),
            ("SLUICE_ONLY_PORTS", "80,8000-8080"),
            ("SLUICE_NOT_PORTS", "22"),
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
        assert!(!environment.contains_key("ASAN_OPTIONS"));
        assert!(!environment.contains_key("SLUICE_MIN_OPS"));
    }

    #[test]
    fn only_known_levels_count() {
        let level = |flag, word: Option<&str>| log_level(flag, word.map(OsStr::new));
        assert_eq!(level(None, None), Ok(None));
        assert_eq!(level(None, Some("off")), Ok(None));
        assert_eq!(level(None, Some("Info")), Ok(Some(LogLevel::Info)));
        assert_eq!(level(Some(LogLevel::Off), Some("info")), Ok(None));
        let what = level(None, Some("sluice=loud")).unwrap_err();
        assert!(
            what.contains("sluice=loud") && what.contains("warn"),
            "{what}"
        );
    }
}
