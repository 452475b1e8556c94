//! How `sluice run` and `sluice verbs` start a program: they become it, or with `--stats` run it as
//! a child and end as it ended.

use std::ffi::{OsStr, OsString};
use std::io;
use std::path::{Path, PathBuf};

use crate::elf::{self, Obstacle};
use crate::error::Outcome;
use crate::error::{EXIT_NOT_EXECUTABLE, EXIT_NOT_FOUND, EXIT_OWN_FAILURE, Failure, reason};
use crate::exec::{Change, Image, Supervisor, die_by};
use crate::locate;
use crate::stats::StatsFile;
use crate::terminal::complain;

/// The variable of the dynamic linker that names libraries to load first.
const PRELOAD_VARIABLE: &str = "LD_PRELOAD";
/// Options of AddressSanitizer; a later one replaces an earlier one.
const SANITIZER_VARIABLE: &str = "ASAN_OPTIONS";

/// The environment of a program, in order.
pub type Environment = Vec<(OsString, OsString)>;

/// The value of a variable.
pub fn variable(environment: &Environment, name: &str) -> Option<OsString> {
    let found = environment.iter().find(|(present, _)| present == name);
    found.map(|(_, value)| value.clone())
}

/// Sets a variable, once.
pub fn set_variable(environment: &mut Environment, name: &str, value: OsString) {
    environment.retain(|(present, _)| present != name);
    environment.push((name.into(), value));
}

/// Has the dynamic linker load the library into the program, before all others.
pub fn preload(environment: &mut Environment, library: &Path) {
    let present = variable(environment, PRELOAD_VARIABLE);
    let value = locate::preload_value(library, present.as_deref());
    set_variable(environment, PRELOAD_VARIABLE, value);
    // AddressSanitizer's runtime refuses to come behind another library, and works there.
    const ANY_ORDER: &str = "verify_asan_link_order=0";
    let present = variable(environment, SANITIZER_VARIABLE).unwrap_or_default();
    if present
        .to_string_lossy()
        .split(':')
        .any(|option| option == ANY_ORDER)
    {
        return;
    }
    let mut value = OsString::from(ANY_ORDER);
    if !present.is_empty() {
        value.push(":");
        value.push(present);
    }
    set_variable(environment, SANITIZER_VARIABLE, value);
}

/// The absolute path of the program, if it is a static one that nothing but that keeps the library out of.
pub fn static_program(program: &OsStr) -> Option<PathBuf> {
    let path_variable = std::env::var_os("PATH");
    let named = elf::resolve(program, path_variable.as_deref())?;
    let verdict = elf::inspect(&named)?;
    // A script's interpreter gets the script's path from the kernel alone.
    let is_it = verdict.file == named
        && verdict.obstacle == Some(Obstacle::Static)
        && !verdict.gains_rights;
    // The path as the kernel has it in /proc/PID/exe.
    is_it.then(|| named.canonicalize().ok())?
}

/// What keeps a library from being loaded into the program, and in which file that is seen.
pub fn obstacle(program: &OsStr) -> Option<(Obstacle, PathBuf)> {
    let path_variable = std::env::var_os("PATH");
    let verdict = elf::inspect(&elf::resolve(program, path_variable.as_deref())?)?;
    Some((verdict.obstacle?, verdict.file))
}

/// Where the program's library writes statistics, if they are wanted.
pub fn stats_file(is_wanted: bool) -> Result<Option<StatsFile>, Failure> {
    if !is_wanted {
        return Ok(None);
    }
    let made = StatsFile::create(&std::env::temp_dir()).map_err(|error| {
        Failure::new(
            format!("cannot make a file for statistics: {}", reason(&error)),
            "point TMPDIR at a directory that you can write, or leave --stats out",
        )
        .with_status(EXIT_OWN_FAILURE)
    })?;
    Ok(Some(made))
}

/// Why this process does not become the program, but waits for it.
#[derive(Default)]
pub struct Front {
    /// Where the program's library writes statistics.
    pub stats_file: Option<StatsFile>,
    /// It takes the orphans that the program is not to see.
    pub stays: bool,
}

/// Starts the program. Returns only if that failed, or when the program has ended if this process stays in front of it; then
/// what `summary` makes of the file for statistics is printed, if there is one.
pub fn start(
    command: &[OsString],
    argv0: Option<&OsStr>,
    environment: &Environment,
    front: Front,
    summary: impl FnOnce(&StatsFile) -> io::Result<String>,
) -> Outcome {
    let image = Image::new(command, environment).and_then(|image| match argv0 {
        Some(name) => image.called(name),
        None => Ok(image),
    });
    let image = image.map_err(|error| {
        Failure::new(
            format!("cannot pass the arguments on: {}", reason(&error)),
            "remove the NUL byte from the arguments or the environment",
        )
        .with_status(EXIT_OWN_FAILURE)
    })?;
    if front.stats_file.is_none() && !front.stays {
        return Err(not_executed(&command[0], &image.exec()));
    }
    supervise(&command[0], &image, front.stats_file.as_ref(), summary)
}

/// Why the program could not be executed, with the exit status that env(1) would give.
fn not_executed(program: &OsStr, error: &io::Error) -> Failure {
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
fn supervise(
    program: &OsStr,
    image: &Image,
    file: Option<&StatsFile>,
    summary: impl FnOnce(&StatsFile) -> io::Result<String>,
) -> Outcome {
    let cannot = |what: &str, error: &io::Error| {
        Failure::new(
            format!("cannot {what}: {}", reason(error)),
            if file.is_some() {
                "try without --stats"
            } else {
                "try with --no-daemon"
            },
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
    match file.map(summary).transpose() {
        Ok(text) => {
            // Nobody can be told if standard error is closed.
            let text = text.unwrap_or_default();
            let _ = io::Write::write_all(&mut io::stderr(), text.as_bytes());
        }
        Err(error) => complain(&format!(
            "cannot read the statistics back: {}; the program itself was not affected",
            reason(&error)
        )),
    }
    Ok(match change {
        Change::Exited(status) => status,
        Change::Killed(signal) => {
            if let Some(file) = file {
                file.remove();
            }
            die_by(signal)
        }
        Change::Stopped | Change::Continued => EXIT_OWN_FAILURE,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exit_statuses_are_those_of_env() {
        let status =
            |code| not_executed(OsStr::new("x"), &io::Error::from_raw_os_error(code)).status;
        assert_eq!(status(libc::ENOENT), 127);
        assert_eq!(status(libc::EACCES), 126);
        assert_eq!(status(libc::ENOEXEC), 126);
    }
}
