//! `sluice verbs`: becomes a verbs program that finds our libibverbs and librdmacm.

mod stats;
mod trace;

use std::ffi::{OsStr, OsString};
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use sluice_transport::fault::{self, Faults};

use crate::args::{VerbsArgs, VerbsDevice};
use crate::error::Outcome;
use crate::error::{EXIT_OWN_FAILURE, Failure, reason};
use crate::launch::{self, Environment, Front};
use crate::locate;
use crate::stats::StatsFile;
use crate::terminal::complain;

/// The variable of the dynamic linker that names folders to look in first.
const PATH_VARIABLE: &str = "LD_LIBRARY_PATH";
/// Tells the library which devices to show.
const DEVICES_VARIABLE: &str = "SLUICE_VERBS_DEVICES";
/// Tells the library how many engine threads a device over a network has.
const ENGINES_VARIABLE: &str = "SLUICE_VERBS_ENGINES";
/// Tells the library where to append what its queue pairs did.
const STATS_VARIABLE: &str = "SLUICE_VERBS_STATS_FILE";
/// Names the library's file for a trace.
const TRACE_VARIABLE: &str = "SLUICE_VERBS_TRACE_FILE";
/// The two names of the library, in a folder of their own: nothing else may be found there.
const LIBRARIES: [&str; 2] = ["libibverbs.so.1", "librdmacm.so.1"];

/// Runs the program. Does not return where it could be executed, except with `--stats`.
pub fn run(args: &VerbsArgs) -> Outcome {
    let own = |failure: Failure| failure.with_status(EXIT_OWN_FAILURE);
    check_engines(args).map_err(own)?;
    let folder = library_folder().map_err(own)?;
    warn_of_obstacles(&args.command[0]);
    let trace_file = args.trace.as_deref().map(trace::prepare).transpose();
    let trace_file = trace_file.map_err(own)?;
    let stats_file = launch::stats_file(args.stats)?;
    let faults = args.fault.map(seeded);
    let environment = environment(
        std::env::vars_os().collect(),
        args,
        &folder,
        stats_file.as_ref().map(StatsFile::path),
        trace_file,
        faults,
    );
    let front = Front {
        stats_file,
        ..Front::default()
    };
    launch::start(&args.command, None, &environment, front, |file| {
        stats::table(fs::File::open(file.path())?)
    })
}

/// Shared memory and windows have no engine threads: whoever asks for some has meant another device.
fn check_engines(args: &VerbsArgs) -> Result<(), Failure> {
    match (args.engines, &args.device) {
        (Some(_), VerbsDevice::Shm | VerbsDevice::Window(_)) => Err(Failure::new(
            "--engines is for devices over a network, and this one is over shared memory",
            "add --device roce or --device roce-udp, or leave --engines out",
        )),
        _ => Ok(()),
    }
}

/// The faults with a seed. One that nobody gave is said, so that the run can be repeated.
fn seeded(faults: Faults) -> Faults {
    let with_seed = faults.seeded();
    if let (None, Some(seed)) = (faults.seed(), with_seed.seed()) {
        complain(&format!("fault: seed={seed}"));
    }
    with_seed
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
    if let Some((obstacle, file)) = launch::obstacle(program) {
        complain(&format!(
            "warning: {} {obstacle} and does not load this libibverbs; it sees the machine's own \
             devices only",
            file.display()
        ));
    }
}

/// The environment of the program: the caller's, with our folder before all others.
fn environment(
    mut environment: Environment,
    args: &VerbsArgs,
    folder: &Path,
    stats_file: Option<&Path>,
    trace_file: Option<PathBuf>,
    faults: Option<Faults>,
) -> Environment {
    let present = launch::variable(&environment, PATH_VARIABLE);
    let mut set = |name: &str, value| launch::set_variable(&mut environment, name, value);
    set(PATH_VARIABLE, search_path(folder, present.as_deref()));
    set(DEVICES_VARIABLE, args.device.name());
    if let Some(engines) = args.engines {
        set(ENGINES_VARIABLE, engines.to_string().into());
    }
    if let Some(path) = stats_file {
        set(STATS_VARIABLE, path.into());
    }
    if let Some(path) = trace_file {
        set(TRACE_VARIABLE, path.into());
    }
    if let Some(faults) = faults {
        set(fault::VARIABLE, faults.to_string().into());
    }
    if !args.no_preload && can_be_preloaded(folder) {
        launch::preload(&mut environment, &folder.join(LIBRARIES[0]));
    }
    environment
}

/// Whether the dynamic linker takes this path from `LD_PRELOAD`, which it splits at blanks, too.
pub fn can_be_preloaded(path: &Path) -> bool {
    let bytes = path.as_os_str().as_bytes();
    !bytes.iter().any(|byte| byte.is_ascii_whitespace())
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
