//! `sluice verbs`: becomes a verbs program that finds our libibverbs and librdmacm.

mod stats;

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::{fs, io};

use crate::args::VerbsArgs;
use crate::commands::Outcome;
use crate::error::{EXIT_OWN_FAILURE, Failure, reason};
use crate::exec::{Change, Image, Supervisor, die_by};
use crate::run::{not_executed, stats::StatsFile};
use crate::terminal::complain;
use crate::{elf, locate};

/// The variable of the dynamic linker that names folders to look in first.
const PATH_VARIABLE: &str = "LD_LIBRARY_PATH";
/// Tells the library which devices to show.
const DEVICES_VARIABLE: &str = "SLUICE_VERBS_DEVICES";
/// Tells the library where to append what its queue pairs did.
const STATS_VARIABLE: &str = "SLUICE_VERBS_STATS_FILE";
/// The two names of the library, in a folder of their own: nothing else may be found there.
const LIBRARIES: [&str; 2] = ["libibverbs.so.1", "librdmacm.so.1"];

/// Runs the program. Does not return where it could be executed, except with `--stats`.
pub fn run(args: &VerbsArgs) -> Outcome {
    let own = |failure: Failure| failure.with_status(EXIT_OWN_FAILURE);
    let folder = library_folder().map_err(own)?;
    warn_of_obstacles(&args.command[0]);
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
        std::env::vars_os().collect(),
        args,
        &folder,
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

/// The folder with both names of the library, fit for `LD_LIBRARY_PATH`.
fn library_folder() -> Result<PathBuf, Failure> {
    let found = LIBRARIES.map(|name| locate::find(&format!("verbs/{name}")));
    let [verbs, cm] = found;
    let (verbs, cm) = (verbs?, cm?);
    check_same_file(&verbs, &cm)?;
    let folder = verbs.parent().map(Path::to_owned).unwrap_or_default();
    // ld.so(8) splits the variable at colons and semicolons and knows no quoting.
    if folder
        .as_os_str()
        .as_bytes()
        .iter()
        .any(|byte| matches!(byte, b':' | b';'))
    {
        return Err(Failure::new(
            format!(
                "the dynamic linker cannot search {}, whose path has a colon or semicolon",
                folder.display()
            ),
            format!(
                "copy the folder elsewhere and name the one above it in {}",
                locate::LIBDIR_VARIABLE
            ),
        ));
    }
    Ok(folder)
}

/// Two files would be two engines in one process, with objects of one unknown to the other.
fn check_same_file(verbs: &Path, cm: &Path) -> Result<(), Failure> {
    use std::os::unix::fs::MetadataExt;
    let identity = |path: &Path| fs::metadata(path).map(|meta| (meta.dev(), meta.ino()));
    match (identity(verbs), identity(cm)) {
        (Ok(a), Ok(b)) if a == b => Ok(()),
        (Err(error), _) | (_, Err(error)) => Err(Failure::new(
            format!("cannot look at {}: {}", verbs.display(), reason(&error)),
            "check the installation",
        )),
        _ => Err(Failure::new(
            format!(
                "{} and {} are two files and must be one",
                verbs.display(),
                cm.display()
            ),
            "make the second a symbolic link to the first",
        )),
    }
}

fn warn_of_obstacles(program: &OsStr) {
    let path_variable = std::env::var_os("PATH");
    let verdict = elf::resolve(program, path_variable.as_deref())
        .and_then(|path| elf::inspect(&path))
        .and_then(|verdict| Some((verdict.obstacle?, verdict.file)));
    if let Some((obstacle, file)) = verdict {
        complain(&format!(
            "warning: {} {obstacle} and does not load this libibverbs; it sees the machine's own \
             devices only",
            file.display()
        ));
    }
}

/// The environment of the program: the caller's, with our folder before all others.
fn environment(
    mut environment: Vec<(OsString, OsString)>,
    args: &VerbsArgs,
    folder: &Path,
    stats_file: Option<&Path>,
) -> Vec<(OsString, OsString)> {
    let present = environment
        .iter()
        .find(|(name, _)| name == PATH_VARIABLE)
        .map(|(_, value)| value.clone());
    let mut set = |name: &str, value: OsString| {
        environment.retain(|(present, _)| present != name);
        environment.push((name.into(), value));
    };
    set(PATH_VARIABLE, search_path(folder, present.as_deref()));
    set(DEVICES_VARIABLE, args.device.name().into());
    if let Some(path) = stats_file {
        set(STATS_VARIABLE, path.into());
    }
    environment
}

/// `folder` first, then what was there, once each.
fn search_path(folder: &Path, present: Option<&OsStr>) -> OsString {
    let mut value = OsString::from(folder);
    let Some(present) = present.filter(|present| !present.is_empty()) else {
        return value;
    };
    for entry in present.as_bytes().split(|byte| matches!(byte, b':' | b';')) {
        if entry == folder.as_os_str().as_bytes() {
            continue;
        }
        // An empty entry is the working directory; it stays what it is.
        value.push(":");
        value.push(OsStr::from_bytes(entry));
    }
    value
}

/// Runs the program as a child, prints what its queue pairs did, and ends as it ended.
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
    match fs::File::open(file.path()).and_then(stats::table) {
        Ok(table) => {
            // Nobody can be told if standard error is closed.
            let _ = io::Write::write_all(&mut io::stderr(), table.as_bytes());
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

    #[test]
    fn our_folder_comes_first_and_once() {
        let folder = Path::new("/s/verbs");
        assert_eq!(search_path(folder, None), "/s/verbs");
        assert_eq!(search_path(folder, Some(OsStr::new(""))), "/s/verbs");
        assert_eq!(
            search_path(folder, Some(OsStr::new("/a:/s/verbs:/b"))),
            "/s/verbs:/a:/b"
        );
        assert_eq!(
            search_path(folder, Some(OsStr::new("/a::/b"))),
            "/s/verbs:/a::/b"
        );
    }

    #[test]
    fn two_files_are_refused() {
        let failure = check_same_file(Path::new("/bin/sh"), Path::new("/etc/passwd")).unwrap_err();
        assert!(failure.to_string().contains("must be one"), "{failure}");
        assert!(check_same_file(Path::new("/bin/sh"), Path::new("/bin/sh")).is_ok());
    }
}
