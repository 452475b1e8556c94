//! Finds the other files of an installation: the preload library, the daemon, the benchmark and others.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use sluice_control::files::{self, DAEMON, STATIC, Unusable};

pub use sluice_control::files::LIBDIR_VARIABLE;

use crate::error::Failure;

impl From<Unusable> for Failure {
    fn from(unusable: Unusable) -> Self {
        Self::new(unusable.what(), unusable.hint())
    }
}

/// Finds a file of this installation by its name.
pub fn find(name: &str) -> Result<PathBuf, Failure> {
    Ok(files::find(name)?)
}

/// The daemon's path.
pub fn daemon() -> Result<PathBuf, Failure> {
    find(DAEMON)
}

/// The path of what becomes a static program.
pub fn loader() -> Result<PathBuf, Failure> {
    find(STATIC)
}

/// The preload library's path, fit for `LD_PRELOAD`.
pub fn library() -> Result<PathBuf, Failure> {
    Ok(files::library_of(std::env::current_exe().ok().as_deref())?)
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
}
