//! Groups of programs (cgroups(7), version 2), for what takes connections of programs in a group.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use sluice_sys::cgroup;

use super::error::{BenchError, Result};
use super::words::{path_text, words};

/// How often and how long after another an empty group is tried to be removed: the kernel forgets
/// processes that have ended a little later.
const REMOVALS_MAX: usize = 100;
const REMOVAL_PAUSE: Duration = Duration::from_millis(10);

/// One, which is removed when this is dropped, if nothing is in it any more.
#[derive(Debug)]
pub struct Cgroup(PathBuf);

impl Cgroup {
    /// `name` is told from those of other runs.
    pub fn new(name: &str) -> Result<Self> {
        let mount = cgroup::mount_point()
            .map_err(|errno| BenchError::io("read /proc/self/mountinfo", &errno.into()))?
            .ok_or_else(|| {
                BenchError::Failed("no cgroup file system of version 2 is mounted".to_owned())
            })?;
        let path = mount.join(format!("sluice-bench-{}-{name}", std::process::id()));
        fs::create_dir(&path)
            .map_err(|error| BenchError::io(format!("make {}", path.display()), &error))?;
        Ok(Self(path))
    }

    pub fn path(&self) -> &Path {
        &self.0
    }

    /// A command line for the program to run in the group.
    pub fn with(&self, words: &[String]) -> Vec<String> {
        let script = "echo 0 > \"$0\" && shift && exec \"$@\"";
        let processes = self.0.join("cgroup.procs");
        let mut argv = words!["sh", "-c", script, path_text(&processes), "--"];
        argv.extend_from_slice(words);
        argv
    }
}

impl Drop for Cgroup {
    fn drop(&mut self) {
        for _ in 0..REMOVALS_MAX {
            if fs::remove_dir(&self.0).is_ok() {
                return;
            }
            std::thread::sleep(REMOVAL_PAUSE);
        }
    }
}
