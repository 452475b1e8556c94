//! Where groups of processes are, and what processor time they have (cgroups(7), version 2).
#![allow(unsafe_code)]

use core::ffi::CStr;
use std::path::PathBuf;

use crate::errno::Errno;
use crate::unix::Fd;
use crate::{memfd, raw};

/// Where the hierarchy is mounted on nearly all machines.
pub const MOUNT: &[u8] = b"/sys/fs/cgroup";
/// Groups within groups that are looked at.
const LEVELS_MAX: usize = 32;
/// Bytes of a path, and of a file that has two numbers.
const PATH_BYTES_MAX: usize = 1024;
const LINE_BYTES_MAX: usize = 64;

/// Reads the beginning of a file of the kernel's, without memory of its own: for threads of other people's
/// programs. `None` if there is no such file, or it is no text. Does not block, whatever lies there.
pub fn read_small<'a>(path: &CStr, buffer: &'a mut [u8]) -> Option<&'a str> {
    let flags = libc::O_RDONLY | libc::O_CLOEXEC | libc::O_NONBLOCK;
    // SAFETY: the kernel reads the path up to its end, which a CStr has.
    let opened = raw::check(unsafe {
        raw::syscall4(
            libc::SYS_openat,
            libc::AT_FDCWD as usize,
            path.as_ptr() as usize,
            flags as usize,
            0,
        )
    });
    let file = Fd::own(opened.ok()? as i32);
    let got = memfd::read_at(file.raw(), buffer, 0).ok()?;
    core::str::from_utf8(buffer.get(..got)?).ok()
}

/// Calls `each` with the line of `cpu.max` of a group below `mount`, and of all groups that it is in. A file that is
/// missing, as in the topmost group, or no text is passed over.
pub fn each_cpu_max(mount: &[u8], group: &str, mut each: impl FnMut(&str)) {
    let mut path = [0_u8; PATH_BYTES_MAX];
    let mut group = group.trim_end_matches('/').as_bytes();
    for _ in 0..LEVELS_MAX {
        let mut end = 0;
        let mut line = [0_u8; LINE_BYTES_MAX];
        let parts = [mount, group, b"/cpu.max\0"];
        let fits = parts.iter().all(|part| {
            let place = path.get_mut(end..end + part.len());
            end += part.len();
            place.is_some_and(|place| {
                place.copy_from_slice(part);
                true
            })
        });
        if fits
            && let Ok(path) = CStr::from_bytes_with_nul(&path[..end])
            && let Some(text) = read_small(path, &mut line)
        {
            each(text.lines().next().unwrap_or(""));
        }
        let Some(above) = group.iter().rposition(|byte| *byte == b'/') else {
            return;
        };
        group = &group[..above];
    }
}

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

    fn lines(mount: &std::path::Path, group: &str) -> Vec<String> {
        let mut lines = Vec::new();
        each_cpu_max(mount.as_os_str().as_encoded_bytes(), group, |line| {
            lines.push(line.to_owned());
        });
        lines
    }

    #[test]
    fn quotas_are_found_from_the_group_up_and_none_where_somebody_lies() {
        let mount = std::env::temp_dir().join(format!("sluice-cpu-max-{}", std::process::id()));
        let pod = mount.join("kubepods.slice/pod1");
        std::fs::create_dir_all(pod.join("box")).unwrap();
        std::fs::write(mount.join("kubepods.slice/cpu.max"), "150000 100000\n").unwrap();
        std::fs::write(pod.join("cpu.max"), "max 100000\nmore\n").unwrap();
        std::fs::write(pod.join("box/cpu.max"), "50000 100000\n").unwrap();
        let all = ["50000 100000", "max 100000", "150000 100000"];
        assert_eq!(lines(&mount, "/kubepods.slice/pod1/box"), all);
        assert_eq!(lines(&mount, "/kubepods.slice/pod1/"), all[1..]);
        assert_eq!(lines(&mount, "/"), [""; 0]);
        assert_eq!(lines(&mount, ""), [""; 0]);
        // A pipe that nobody writes to, a directory, what is no text, and more than a line is long.
        let box_file = pod.join("box/cpu.max");
        std::fs::remove_file(&box_file).unwrap();
        let path = std::ffi::CString::new(box_file.as_os_str().as_encoded_bytes()).unwrap();
        // SAFETY: mkfifo reads the path, which ends with a zero.
        assert_eq!(unsafe { libc::mkfifo(path.as_ptr(), 0o600) }, 0);
        assert_eq!(lines(&mount, "/kubepods.slice/pod1/box"), all[1..]);
        std::fs::remove_file(&box_file).unwrap();
        std::fs::create_dir(&box_file).unwrap();
        assert_eq!(lines(&mount, "/kubepods.slice/pod1/box"), all[1..]);
        std::fs::remove_dir(&box_file).unwrap();
        std::fs::write(&box_file, [0xff; 20]).unwrap();
        assert_eq!(lines(&mount, "/kubepods.slice/pod1/box"), all[1..]);
        std::fs::write(&box_file, "9".repeat(10_000)).unwrap();
        assert_eq!(
            lines(&mount, "/kubepods.slice/pod1/box")[0].len(),
            LINE_BYTES_MAX
        );
        // Groups that do not fit, or have no end.
        assert_eq!(lines(&mount, &"/x".repeat(PATH_BYTES_MAX)), [""; 0]);
        assert_eq!(lines(&mount, "/a\0b"), [""; 0]);
        std::fs::remove_dir_all(&mount).unwrap();
    }
}
