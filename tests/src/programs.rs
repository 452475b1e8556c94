//! Programs that other people have written: what the suites that run them have in common.

pub mod files;
pub mod iperf;
pub mod nginx;
pub mod redis;
pub mod ssh;

use std::ffi::OsStr;
use std::path::PathBuf;

use crate::job::find_program;
use crate::suite::{Verdict, skip};

/// The program's path; a missing one skips the test.
pub fn require(program: &str) -> Verdict<PathBuf> {
    if program.contains('/') {
        return Ok(PathBuf::from(program));
    }
    match find_program(program) {
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
