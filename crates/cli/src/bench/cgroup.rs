//! Groups of programs (cgroups(7), version 2), for what takes connections of programs in a group.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::error::{BenchError, Result};
use super::session::{path_text, words};

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
        let mounts = fs::read_to_string("/proc/self/mountinfo")
            .map_err(|error| BenchError::io("read /proc/self/mountinfo", &error))?;
        let mount = mount_point(&mounts).ok_or_else(|| {
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

/// proc_pid_mountinfo(5): the fifth field is the mount point; behind " - " comes the type.
fn mount_point(mounts: &str) -> Option<PathBuf> {
    mounts.lines().find_map(|line| {
        let (mount, kind) = line.split_once(" - ")?;
        kind.starts_with("cgroup2 ").then_some(())?;
        mount.split(' ').nth(4).map(PathBuf::from)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mount_of_version_2_is_found() {
        let mounts = "32 31 0:29 / /sys/fs/cgroup/cpu rw shared:1 - cgroup cgroup rw,cpu\n\
                      41 31 0:38 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n";
        let found = mount_point(mounts);
        assert_eq!(found, Some(PathBuf::from("/sys/fs/cgroup/unified")));
        assert_eq!(mount_point("garbage\n1 2 - \n"), None);
    }
}
