//! Groups of processes (cgroups(7), version 2).

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use crate::job::wait_until;
use crate::verdict::{Verdict, ensure, fail, skip};

/// How long the kernel may take to freeze or to end what is in a group.
const LIMIT: Duration = Duration::from_secs(60);

/// How all of them are called, in front of what they are for.
const PREFIX: &str = "sluice-lab-";

/// How often a group is made again that was taken for another's remains before it was locked.
const TRIES_MAX: u32 = 16;

/// One, which is removed with its processes. If this process is killed first, by the next one that
/// makes a group.
#[derive(Debug)]
pub struct Cgroup {
    path: PathBuf,
    /// As long as it is open, its lock says that the group is somebody's.
    _lock: File,
}

impl Cgroup {
    /// Skips where none can be made. `name` is told from those of other tests and runs.
    pub fn new(name: &str) -> Verdict<Cgroup> {
        let Some(mount) = mount_point()? else {
            return skip("no cgroup file system of version 2 is mounted");
        };
        remove_remains(&mount);
        for _ in 0..TRIES_MAX {
            let path = mount.join(unique(name));
            if let Err(error) = fs::create_dir(&path) {
                return skip(format!("cgroups cannot be made here: {error}"));
            }
            if let Some(lock) = lock(&path) {
                return Ok(Cgroup { path, _lock: lock });
            }
        }
        fail(format!("groups in {} do not stay", mount.display()))
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
        end_all(&self.path);
        let _ = wait_until(LIMIT, || Ok(is_removed(&self.path)));
    }
}

/// Where the hierarchy of version 2 is, if it is.
pub fn mount_point() -> io::Result<Option<PathBuf>> {
    let mounts = fs::read_to_string("/proc/self/mountinfo")?;
    let mount = mounts.lines().find_map(|line| {
        let (mount, kind) = line.split_once(" - ")?;
        kind.starts_with("cgroup2 ").then_some(())?;
        mount.split(' ').nth(4)
    });
    Ok(mount.map(PathBuf::from))
}

/// A name that no other group of this machine has.
fn unique(name: &str) -> String {
    static NUMBER: AtomicU32 = AtomicU32::new(0);
    let number = NUMBER.fetch_add(1, Ordering::Relaxed);
    format!("{PREFIX}{name}-{}-{number}", std::process::id())
}

/// The lock, if nobody has it and the group is there with it. The kernel gives it back when the
/// process ends, however it does.
fn lock(path: &Path) -> Option<File> {
    let file = File::open(path).ok()?;
    file.try_lock().ok()?;
    let is_same = file.metadata().ok()?.ino() == fs::metadata(path).ok()?.ino();
    is_same.then_some(file)
}

/// Best effort: what killed runs have left, with the programs in it. The number in a name does not
/// tell whose it is, as others can have other numbers for processes.
fn remove_remains(mount: &Path) {
    for entry in fs::read_dir(mount).into_iter().flatten().flatten() {
        let name = entry.file_name();
        if !name.to_string_lossy().starts_with(PREFIX) {
            continue;
        }
        let path = entry.path();
        if let Some(_lock) = lock(&path) {
            end_all(&path);
            // One whose programs take longer goes another time.
            let _ = is_removed(&path);
        }
    }
}

fn end_all(path: &Path) {
    // Errors say that it is gone, or that the kernel is older than the file.
    let _ = fs::write(path.join("cgroup.freeze"), "0");
    let _ = fs::write(path.join("cgroup.kill"), "1");
}

fn is_removed(path: &Path) -> bool {
    match fs::remove_dir(path) {
        Ok(()) => true,
        Err(error) => error.kind() == io::ErrorKind::NotFound,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::verdict::made;

    /// As if its process had been killed: nobody has the lock.
    #[test]
    fn the_remains_of_a_killed_run_go_and_what_is_used_stays() {
        let name = "the_remains_of_a_killed_run_go";
        let Some(used) = made(name, Cgroup::new("used")) else {
            return;
        };
        let mount = used.path().parent().expect("a mount point");
        let left = mount.join(unique("left"));
        fs::create_dir(&left).expect("made");
        let another = Cgroup::new("another").expect("made");
        // Another run may be just about to remove it.
        let is_gone = wait_until(LIMIT, || Ok(!left.exists()));
        assert!(is_gone.expect("looked"));
        assert!(used.path().exists());
        let paths = [used.path().to_owned(), another.path().to_owned()];
        drop((used, another));
        assert!(!paths.iter().any(|path| path.exists()));
    }
}
