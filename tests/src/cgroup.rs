//! Groups of processes (cgroups(7), version 2).

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::job::wait_until;
use crate::suite::{Verdict, ensure, skip};

/// How long the kernel may take to freeze or to end what is in a group.
const LIMIT: Duration = Duration::from_secs(60);

/// One, which is removed with its processes.
pub struct Cgroup {
    path: PathBuf,
}

impl Cgroup {
    /// Skips where none can be made. `name` is told from those of other test runs.
    pub fn new(name: &str) -> Verdict<Cgroup> {
        let mounts = fs::read_to_string("/proc/self/mountinfo")?;
        let mount = mounts.lines().find_map(|line| {
            let (mount, kind) = line.split_once(" - ")?;
            kind.starts_with("cgroup2 ").then_some(())?;
            mount.split(' ').nth(4)
        });
        let Some(mount) = mount else {
            return skip("no cgroup file system of version 2 is mounted");
        };
        let path = Path::new(mount).join(format!("sluice-{name}-{}", std::process::id()));
        match fs::create_dir(&path) {
            Ok(()) => Ok(Cgroup { path }),
            Err(error) => skip(format!("cgroups cannot be made here: {error}")),
        }
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The file to which the number of a process is written that is to be in the group.
    pub fn processes(&self) -> PathBuf {
        self.path.join("cgroup.procs")
    }

    /// Stops what is in it, without a signal; it stands still when this returns.
    pub fn freeze(&self) -> Verdict {
        fs::write(self.path.join("cgroup.freeze"), "1")?;
        let events = self.path.join("cgroup.events");
        let is_frozen = || Ok(fs::read_to_string(&events)?.contains("frozen 1"));
        ensure(wait_until(LIMIT, is_frozen)?, || {
            "it is not frozen".to_owned()
        })
    }

    pub fn thaw(&self) -> Verdict {
        Ok(fs::write(self.path.join("cgroup.freeze"), "0")?)
    }
}

impl Drop for Cgroup {
    fn drop(&mut self) {
        let _ = self.thaw();
        // Of programs that a test has left.
        let _ = fs::write(self.path.join("cgroup.kill"), "1");
        let _ = wait_until(LIMIT, || Ok(fs::remove_dir(&self.path).is_ok()));
    }
}
