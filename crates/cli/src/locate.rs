//! Finds the other two files of an installation: the preload library and the daemon.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

pub use sluice_control::files::LIBDIR_VARIABLE;

use sluice_control::files;

use crate::error::Failure;

/// The file name of the library that is put before a program's own libraries.
pub const LIBRARY: &str = "libsluice_preload.so";
/// The file name of the daemon.
pub const DAEMON: &str = "sluiced";

/// What to say of a file that is in none of these folders.
fn missing(name: &str, looked: &[PathBuf], is_folder_named: bool) -> Failure {
    let looked: Vec<String> = looked.iter().map(|f| f.display().to_string()).collect();
    let looked = if looked.is_empty() {
        "nowhere, the path of the sluice program is unknown".to_owned()
    } else {
        looked.join(", ")
    };
    let hint = if is_folder_named {
        format!("point {LIBDIR_VARIABLE} at the folder that holds it, or unset it")
    } else {
        format!("build it with 'cargo build --release' or set {LIBDIR_VARIABLE} to its folder")
    };
    Failure::new(format!("cannot find {name} (looked in {looked})"), hint)
}

/// Finds a file of this installation by its name.
pub fn find(name: &str) -> Result<PathBuf, Failure> {
    files::find(name).map_err(|looked| missing(name, &looked, files::is_folder_named()))
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
    fn a_missing_file_says_where_it_was_looked_for() {
        let folders = [
            PathBuf::from("/nonexistent/a"),
            PathBuf::from("/nonexistent/b"),
        ];
        let message = missing(LIBRARY, &folders, false).to_string();
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
