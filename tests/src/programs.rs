//! Programs that other people have written: what the suites that run them have in common.

pub mod between;
pub mod files;
pub mod iperf;
pub mod load;
pub mod nginx;
pub mod redis;
pub mod ssh;

use std::ffi::OsStr;
use std::path::PathBuf;

use crate::job::find_program;
use crate::suite::{Verdict, skip};

/// The path of a program that is named, or whose path it is; a missing one skips the test.
pub fn require(program: &str) -> Verdict<PathBuf> {
    let found = if program.contains('/') {
        Some(PathBuf::from(program)).filter(|path| path.is_file())
    } else {
        find_program(program)
    };
    match found {
        Some(path) => Ok(path),
        None => skip(format!(
            "{program} is not installed; run scripts/setup test"
        )),
    }
}

/// Text for command lines and configuration files; the paths of tests are ASCII.
pub fn text(path: impl AsRef<OsStr>) -> String {
    path.as_ref().to_string_lossy().into_owned()
}
