//! Groups of processes (cgroups(7)), of version 2 unless the kernel has what is asked for only in version 1.

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};

use crate::job::wait_until;
use crate::verdict::{Verdict, ensure, fail, skip};

/// How long the kernel may take to freeze or to end what is in a group.
const LIMIT: Duration = Duration::from_secs(60);

/// How all of them are called, in front of what they are for.
const PREFIX: &str = "sluice-lab-";

/// How many processes and threads may be in a group, in both versions.
const PROCESSES_MAX: &str = "pids.max";

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
        Self::below(&mount, name)
    }

    /// One whose processes together have so much processor time in each period, both in microseconds.
    pub fn with_processor_time(name: &str, (time, period): (u32, u32)) -> Verdict<Cgroup> {
        let (time, period) = (time.to_string(), period.to_string());
        Self::limited(
            (name, "cpu"),
            &[("cpu.max", &format!("{time} {period}"))],
            &[("cpu.cfs_period_us", &period), ("cpu.cfs_quota_us", &time)],
        )
    }

    /// One whose processes together have so much memory.
    pub fn with_memory(name: &str, bytes: u64) -> Verdict<Cgroup> {
        let bytes = bytes.to_string();
        Self::limited(
            (name, "memory"),
            &[("memory.max", &bytes)],
            &[("memory.limit_in_bytes", &bytes)],
        )
    }

    /// One with so many processes and threads; what is more when it is moved there stays.
    pub fn with_processes(name: &str, count: u32) -> Verdict<Cgroup> {
        let count = count.to_string();
        let files = [(PROCESSES_MAX, &*count)];
        Self::limited((name, "pids"), &files, &files)
    }

    /// Lifts that limit.
    pub fn free_processes(&self) -> Verdict {
        Ok(fs::write(self.path.join(PROCESSES_MAX), "max")?)
    }

    /// One of version 2 where groups below the topmost one have that controller there already; else of version 1. With
    /// what is written to its files of that version.
    fn limited(
        (name, controller): (&str, &str),
        two: &[(&str, &str)],
        one: &[(&str, &str)],
    ) -> Verdict<Cgroup> {
        let mounts = fs::read_to_string("/proc/self/mountinfo")?;
        let has_it = |mount: &PathBuf| {
            fs::read_to_string(mount.join("cgroup.subtree_control"))
                .is_ok_and(|all| all.split_ascii_whitespace().any(|it| it == controller))
        };
        let (mount, files) = match mounted(&mounts, "cgroup2", None).filter(has_it) {
            Some(mount) => (Some(mount), two),
            None => (mounted(&mounts, "cgroup", Some(controller)), one),
        };
        let Some(mount) = mount else {
            return skip(format!(
                "no cgroup file system has the {controller} controller"
            ));
        };
        let group = Self::below(&mount, name)?;
        for (file, value) in files {
            fs::write(group.path.join(file), value)?;
        }
        Ok(group)
    }

    fn below(mount: &Path, name: &str) -> Verdict<Cgroup> {
        remove_remains(mount);
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
    Ok(mounted(&mounts, "cgroup2", None))
}

/// Where a file system of the type is mounted, with the option if one is named (proc_pid_mountinfo(5)).
fn mounted(mounts: &str, kind: &str, option: Option<&str>) -> Option<PathBuf> {
    let mount = mounts.lines().find_map(|line| {
        let (mount, of) = line.split_once(" - ")?;
        let mut of = of.split(' ');
        (of.next()? == kind).then_some(())?;
        let has = |option| {
            of.nth(1)
                .is_some_and(|all| all.split(',').any(|it| it == option))
        };
        option.is_none_or(has).then_some(())?;
        mount.split(' ').nth(4)
    });
    mount.map(PathBuf::from)
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
    if fs::write(path.join("cgroup.kill"), "1").is_ok() {
        return;
    }
    let left = fs::read_to_string(path.join("cgroup.procs")).unwrap_or_default();
    let left = left.lines().filter_map(|line| line.parse().ok());
    for process in left.filter_map(Pid::from_raw) {
        let _ = kill_process(process, Signal::KILL);
    }
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

    #[test]
    fn mounts_are_told_by_type_and_option() {
        let mounts = "31 23 0:28 / /c rw - tmpfs tmpfs rw\n\
                      32 31 0:29 / /c/set rw shared:1 - cgroup cgroup rw,cpuset\n\
                      33 31 0:29 / /c/cpu rw shared:1 - cgroup cgroup rw,cpuacct,cpu\n\
                      41 31 0:38 / /c/unified rw shared:2 master:1 - cgroup2 cgroup2 rw\n";
        let at = |kind, option| mounted(mounts, kind, option);
        assert_eq!(at("cgroup2", None), Some(PathBuf::from("/c/unified")));
        assert_eq!(at("cgroup", Some("cpu")), Some(PathBuf::from("/c/cpu")));
        assert_eq!(at("cgroup", Some("memory")), None);
        assert_eq!(mounted("garbage\n\n1 2 - \n", "cgroup2", None), None);
    }

    #[test]
    fn a_group_with_little_processor_time_says_so_and_ends_what_is_in_it() {
        let name = "a_group_with_little_processor_time";
        let group = Cgroup::with_processor_time("time", (50_000, 100_000));
        let Some(group) = made(name, group) else {
            return;
        };
        let quota = ["cpu.max", "cpu.cfs_quota_us"]
            .iter()
            .find_map(|file| fs::read_to_string(group.path().join(file)).ok());
        assert!(quota.is_some_and(|quota| quota.starts_with("50000")));
        let mut sleeper = crate::job::command("sleep")
            .arg("1000")
            .spawn()
            .expect("sleeps");
        fs::write(group.processes(), sleeper.id().to_string()).expect("moved");
        let path = group.path().to_owned();
        // It is waited for: the group is not empty before.
        let waits = std::thread::spawn(move || sleeper.wait());
        drop(group);
        assert!(!waits.join().expect("no panic").expect("ended").success());
        assert!(!path.exists());
    }

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
