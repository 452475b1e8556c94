//! What the kernel says of the processors and the processor time that there are, for how long waits poll.

use core::ffi::CStr;
use core::sync::atomic::{AtomicBool, Ordering};
use sluice_sys::cgroup::{MOUNT, each_cpu_max, read_small};
use sluice_waiting::machine::{Machine, Quota, count_list, group};

/// Bytes of a file that are read: `/proc/self/cgroup` has a line for each hierarchy.
const FILE_BYTES_MAX: usize = 4096;

static IS_KNOWN: AtomicBool = AtomicBool::new(false);

/// Reads it, once in the life of a process and of its forks. What cannot be read is not known.
pub(crate) fn learn() {
    if !IS_KNOWN.swap(true, Ordering::Relaxed) {
        sluice_lane::spin::know(&look(
            c"/sys/devices/system/cpu/online",
            c"/proc/self/cgroup",
            MOUNT,
        ));
    }
}

fn look(online: &CStr, groups: &CStr, mount: &[u8]) -> Machine {
    let mut file = [0_u8; FILE_BYTES_MAX];
    let online = read_small(online, &mut file).and_then(count_list);
    let mut quota: Option<Quota> = None;
    if let Some(group) = read_small(groups, &mut file).and_then(group) {
        each_cpu_max(mount, group, |line| {
            if let Some(found) = Quota::parse(line) {
                quota = Some(quota.map_or(found, |known| known.min(found)));
            }
        });
    }
    Machine { online, quota }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::ffi::CString;
    use std::path::PathBuf;

    struct Files(PathBuf);

    impl Files {
        fn new() -> Self {
            let path = std::env::temp_dir().join(format!("sluice-machine-{}", std::process::id()));
            std::fs::create_dir_all(path.join("a/b")).unwrap();
            Self(path)
        }

        fn write(&self, name: &str, text: &str) -> CString {
            let path = self.0.join(name);
            std::fs::write(&path, text).unwrap();
            CString::new(path.as_os_str().as_encoded_bytes()).unwrap()
        }

        fn look(&self, online: &CStr, groups: &CStr) -> Machine {
            look(online, groups, self.0.as_os_str().as_encoded_bytes())
        }
    }

    impl Drop for Files {
        fn drop(&mut self) {
            let _ = std::fs::remove_dir_all(&self.0);
        }
    }

    #[test]
    fn the_smallest_quota_of_all_groups_is_found() {
        let files = Files::new();
        let online = files.write("online", "0-3\n");
        let groups = files.write("cgroup", "4:memory:/else\n0::/a/b\n");
        let nothing = Machine {
            online: Some(4),
            quota: None,
        };
        assert_eq!(files.look(&online, &groups), nothing);
        files.write("a/b/cpu.max", "max 100000\n");
        assert_eq!(files.look(&online, &groups), nothing);
        files.write("a/cpu.max", "50000 100000\n");
        let half = Quota::parse("50000 100000");
        assert_eq!(files.look(&online, &groups).quota, half);
        files.write("a/b/cpu.max", "200000 100000\n");
        assert_eq!(files.look(&online, &groups).quota, half);
        // Who lies is not believed, and hides nobody.
        files.write("a/b/cpu.max", "-7 0\n");
        let online = files.write("online", "3-0,,\n");
        let found = Machine {
            online: None,
            quota: half,
        };
        assert_eq!(files.look(&online, &groups), found);
        let groups = files.write("cgroup", "nothing\n");
        assert_eq!(files.look(&online, &groups), Machine::default());
        assert_eq!(files.look(c"/nowhere", c"/nowhere"), Machine::default());
    }
}
