//! Where groups of processes are (cgroups(7), version 2).

use std::path::PathBuf;

use crate::errno::Errno;

/// Where the hierarchy is mounted: `/sys/fs/cgroup`, or `/sys/fs/cgroup/unified` where version 1 is
/// used as well. `None`: nowhere.
pub fn mount_point() -> Result<Option<PathBuf>, Errno> {
    let mounts = std::fs::read_to_string("/proc/self/mountinfo")
        .map_err(|error| Errno(error.raw_os_error().unwrap_or(libc::EIO)))?;
    Ok(find(&mounts))
}

/// proc_pid_mountinfo(5): the fifth field is the mount point; behind " - " comes the type.
fn find(mounts: &str) -> Option<PathBuf> {
    mounts.lines().find_map(|line| {
        let (mount, kind) = line.split_once(" - ")?;
        (kind.split(' ').next()? == "cgroup2").then_some(())?;
        // A space is written as \040; nobody mounts this there.
        mount.split(' ').nth(4).map(PathBuf::from)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_mount_is_found() {
        let mounts = "31 23 0:28 / /sys/fs/cgroup rw - tmpfs tmpfs rw\n\
                      32 31 0:29 / /sys/fs/cgroup/cpu rw shared:1 - cgroup cgroup rw,cpu\n\
                      41 31 0:38 / /sys/fs/cgroup/unified rw shared:2 master:1 - cgroup2 cgroup2 rw\n";
        let found = find(mounts);
        assert_eq!(found, Some(PathBuf::from("/sys/fs/cgroup/unified")));
        assert_eq!(find("garbage\n\n1 2 - \n"), None);
    }
}
