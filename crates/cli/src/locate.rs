//! Finds the other two files of an installation: the preload library and the daemon.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use crate::error::Failure;

/// The file name of the library that is put before a program's own libraries.
pub const LIBRARY: &str = "libsluice_preload.so";
/// The file name of the daemon.
pub const DAEMON: &str = "sluiced";
/// The environment variable that names the folder of both.
pub const LIBDIR_VARIABLE: &str = "SLUICE_LIBDIR";

/// The folders where a file of this installation may be, in the order in which they count.
///
/// `SLUICE_LIBDIR` alone if it is set: who names a folder does not want the files of another
/// build, found by accident.
fn folders(executable: Option<&Path>, libdir: Option<&OsStr>) -> Vec<PathBuf> {
    if let Some(libdir) = libdir.filter(|value| !value.is_empty()) {
        return vec![PathBuf::from(libdir)];
    }
    let Some(beside) = executable.and_then(Path::parent) else {
        return Vec::new();
    };
    let mut folders = vec![beside.to_owned()];
    // Test binaries live one folder below the programs that they test.
    if beside.ends_with("deps")
        && let Some(above) = beside.parent()
    {
        folders.push(above.to_owned());
    }
    if let Some(prefix) = beside.parent() {
        folders.push(prefix.join("lib/sluice"));
    }
    folders
}

fn find_in(name: &str, folders: &[PathBuf], libdir_set: bool) -> Result<PathBuf, Failure> {
    for folder in folders {
        let candidate = folder.join(name);
        if candidate.is_file() {
            // The path outlives this process's working directory: in LD_PRELOAD of a program
            // that may change it.
            return std::path::absolute(&candidate).map_err(|error| {
                Failure::new(
                    format!("cannot make {} absolute: {error}", candidate.display()),
                    "run sluice from a directory that exists",
                )
            });
        }
    }
    let looked: Vec<String> = folders.iter().map(|f| f.display().to_string()).collect();
    let looked = if looked.is_empty() {
        "nowhere, the path of the sluice program is unknown".to_owned()
    } else {
        looked.join(", ")
    };
    let hint = if libdir_set {
        format!("point {LIBDIR_VARIABLE} at the folder that holds it, or unset it")
    } else {
        format!("build it with 'cargo build --release' or set {LIBDIR_VARIABLE} to its folder")
    };
    Err(Failure::new(
        format!("cannot find {name} (looked in {looked})"),
        hint,
    ))
}

/// Finds a file of this installation by its name.
pub fn find(name: &str) -> Result<PathBuf, Failure> {
    let executable = std::env::current_exe().ok();
    let libdir = std::env::var_os(LIBDIR_VARIABLE).filter(|value| !value.is_empty());
    let folders = folders(executable.as_deref(), libdir.as_deref());
    find_in(name, &folders, libdir.is_some())
}

/// The daemon's path.
pub fn daemon() -> Result<PathBuf, Failure> {
    find(DAEMON)
}

/// The preload library's path, fit for `LD_PRELOAD`.
pub fn library() -> Result<PathBuf, Failure> {
    let path = find(LIBRARY)?;
    check_preloadable(&path)?;
    Ok(path)
}

/// ld.so(8) splits `LD_PRELOAD` at spaces and colons and knows no quoting.
fn check_preloadable(path: &Path) -> Result<(), Failure> {
    let splits = |byte: &u8| *byte == b':' || byte.is_ascii_whitespace();
    if path.as_os_str().as_bytes().iter().any(splits) {
        return Err(Failure::new(
            format!(
                "the dynamic linker cannot preload {}, whose path has a space or a colon",
                path.display()
            ),
            format!(
                "copy or link the library to another folder and name that in {LIBDIR_VARIABLE}"
            ),
        ));
    }
    Ok(())
}

/// `LD_PRELOAD` with `library` first, and whatever was there after it.
pub fn preload_value(library: &Path, present: Option<&OsStr>) -> OsString {
    let mut value = OsString::from(library);
    let present = present.map(OsStr::as_bytes).unwrap_or_default();
    for entry in present.split(|byte| *byte == b':' || byte.is_ascii_whitespace()) {
        // A nested `sluice run` finds its own library here already.
        if entry.is_empty() || entry == library.as_os_str().as_bytes() {
            continue;
        }
        value.push(":");
        value.push(OsStr::from_bytes(entry));
    }
    value
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn looks_beside_itself_then_in_lib() {
        let found = folders(Some(Path::new("/opt/s/bin/sluice")), None);
        assert_eq!(
            found,
            [Path::new("/opt/s/bin"), Path::new("/opt/s/lib/sluice")]
        );
    }

    #[test]
    fn libdir_is_the_only_place_when_set() {
        let found = folders(Some(Path::new("/usr/bin/sluice")), Some(OsStr::new("/x")));
        assert_eq!(found, [Path::new("/x")]);
        let found = folders(Some(Path::new("/usr/bin/sluice")), Some(OsStr::new("")));
        assert_eq!(found[0], Path::new("/usr/bin"));
    }

    #[test]
    fn a_missing_file_says_where_it_was_looked_for() {
        let folders = [
            PathBuf::from("/nonexistent/a"),
            PathBuf::from("/nonexistent/b"),
        ];
        let message = find_in(LIBRARY, &folders, false).unwrap_err().to_string();
        assert!(
            message.contains("/nonexistent/a, /nonexistent/b"),
            "{message}"
        );
        assert!(message.contains("cargo build --release"), "{message}");
    }

    #[test]
    fn what_was_preloaded_stays_preloaded_once() {
        let library = Path::new("/l/libsluice_preload.so");
        let value = |present: &str| preload_value(library, Some(OsStr::new(present)));
        assert_eq!(preload_value(library, None), "/l/libsluice_preload.so");
        assert_eq!(value("a.so b.so"), "/l/libsluice_preload.so:a.so:b.so");
        assert_eq!(
            value("a.so:/l/libsluice_preload.so"),
            "/l/libsluice_preload.so:a.so"
        );
        assert_eq!(value(" : "), "/l/libsluice_preload.so");
    }

    #[test]
    fn paths_that_the_linker_would_split_are_refused() {
        assert!(check_preloadable(Path::new("/a b/l.so")).is_err());
        assert!(check_preloadable(Path::new("/a:b/l.so")).is_err());
        assert!(check_preloadable(Path::new("/ab/l.so")).is_ok());
    }
}
