//! The memory that control groups may still take, as the kernel's files say (cgroups(7), both versions).

use std::fs;
use std::path::{Component, Path, PathBuf};

/// More than any machine has: version 1 has no word for "none".
const NO_LIMIT_FROM: u64 = 1 << 60;

/// Groups within groups that are looked at.
const LEVELS_MAX: usize = 32;

/// The names of files of one version of the hierarchy.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Version {
    /// From here on the kernel takes memory back, slows down or kills.
    limits: &'static [&'static str],
    usage: &'static str,
    /// The line of `memory.stat` with file pages that nobody has used of late.
    idle_files: &'static str,
}

const TWO: Version = Version {
    limits: &["memory.max", "memory.high"],
    usage: "memory.current",
    idle_files: "inactive_file ",
};

const ONE: Version = Version {
    limits: &["memory.limit_in_bytes"],
    usage: "memory.usage_in_bytes",
    idle_files: "total_inactive_file ",
};

/// Where a hierarchy that counts memory is mounted.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Hierarchy {
    version: Version,
    mount: PathBuf,
    /// The group that is mounted there.
    root: PathBuf,
}

/// All of them: none, one, or one of each version.
#[derive(Debug, Clone, Default)]
pub struct Hierarchies(Vec<Hierarchy>);

/// A group that has a limit.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Limited {
    pub folder: PathBuf,
    /// Bytes that it may still take. File pages that nobody has used of late count as free.
    pub room: u64,
}

impl Hierarchies {
    /// Of this process's mounts.
    pub fn find() -> Self {
        Self::parse(&fs::read_to_string("/proc/self/mountinfo").unwrap_or_default())
    }

    /// proc_pid_mountinfo(5): the fourth field is the root of the mount, the fifth where it is.
    fn parse(mounts: &str) -> Self {
        let one = |line: &str| {
            let (mount, kind) = line.split_once(" - ")?;
            let mut kind = kind.split(' ');
            let version = match kind.next()? {
                "cgroup2" => TWO,
                "cgroup" if kind.nth(1)?.split(',').any(|it| it == "memory") => ONE,
                _ => return None,
            };
            let mut fields = mount.split(' ').skip(3);
            let (root, mount) = (fields.next()?.into(), fields.next()?.into());
            Some(Hierarchy {
                version,
                mount,
                root,
            })
        };
        Self(mounts.lines().filter_map(one).collect())
    }

    /// The groups with a limit that a process is in. None if the kernel does not tell.
    pub fn limited(&self, pid: i32) -> Vec<Limited> {
        if self.0.is_empty() {
            return Vec::new();
        }
        let groups = fs::read_to_string(format!("/proc/{pid}/cgroup")).unwrap_or_default();
        self.limited_of(&groups)
    }

    /// The same of what the process's file says.
    fn limited_of(&self, groups: &str) -> Vec<Limited> {
        let each = self.0.iter().flat_map(|hierarchy| {
            let group = hierarchy.group(groups);
            group.map_or_else(Vec::new, |group| hierarchy.limited(&group))
        });
        each.collect()
    }
}

impl Hierarchy {
    /// Where its group is below the mount, of `/proc/PID/cgroup`. None if it is not below it.
    fn group(&self, groups: &str) -> Option<PathBuf> {
        let path = groups.lines().find_map(|line| {
            let (_, rest) = line.split_once(':')?;
            let (controllers, path) = rest.split_once(':')?;
            let is_ours = match self.version {
                TWO => controllers.is_empty(),
                _ => controllers.split(',').any(|it| it == "memory"),
            };
            is_ours.then_some(path)
        })?;
        let below = Path::new(path).strip_prefix(&self.root).ok()?;
        let is_plain = |part| matches!(part, Component::Normal(_));
        below.components().all(is_plain).then(|| below.to_owned())
    }

    fn limited(&self, group: &Path) -> Vec<Limited> {
        let levels = group.ancestors().take(LEVELS_MAX);
        let limited = levels.filter_map(|group| {
            let folder = self.mount.join(group);
            let limits = self.version.limits.iter();
            let limit = limits
                .filter_map(|file| number(&folder.join(file)))
                .filter(|limit| *limit < NO_LIMIT_FROM)
                .min()?;
            let used = number(&folder.join(self.version.usage))?;
            let room = limit.saturating_sub(used) + self.idle_files(&folder).min(used);
            Some(Limited { folder, room })
        });
        limited.collect()
    }

    fn idle_files(&self, folder: &Path) -> u64 {
        let stat = fs::read_to_string(folder.join("memory.stat")).unwrap_or_default();
        let mut lines = stat.lines();
        lines
            .find_map(|line| line.strip_prefix(self.version.idle_files)?.parse().ok())
            .unwrap_or(0)
    }
}

/// What a file with one number says. `max` is none.
fn number(path: &Path) -> Option<u64> {
    fs::read_to_string(path).ok()?.trim_end().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    const MOUNTS: &str = "32 31 0:29 / /c/cpu rw - cgroup cgroup rw,cpu\n\
                          33 31 0:30 /box /c/memory rw shared:1 - cgroup cgroup rw,memory\n\
                          41 31 0:38 / /c/unified rw shared:2 master:1 - cgroup2 cgroup2 rw\n\
                          garbage\n1 2 - \n";

    struct Files(tempfile::TempDir);

    impl Files {
        fn new() -> Self {
            Self(tempfile::tempdir().unwrap())
        }

        fn write(&self, name: &str, text: &str) {
            let path = self.0.path().join(name);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }

        fn hierarchy(&self, version: Version) -> Hierarchies {
            Hierarchies(vec![Hierarchy {
                version,
                mount: self.0.path().to_owned(),
                root: "/".into(),
            }])
        }

        fn limited(&self, version: Version, groups: &str) -> Vec<(String, u64)> {
            let named = |it: Limited| {
                let below = it.folder.strip_prefix(self.0.path()).unwrap();
                (below.to_string_lossy().into_owned(), it.room)
            };
            let found = self.hierarchy(version).limited_of(groups);
            found.into_iter().map(named).collect()
        }
    }

    #[test]
    fn hierarchies_that_count_memory_are_found() {
        let Hierarchies(found) = Hierarchies::parse(MOUNTS);
        let told: Vec<_> = found
            .iter()
            .map(|it| (it.version, it.mount.to_str().unwrap()))
            .collect();
        assert_eq!(told, [(ONE, "/c/memory"), (TWO, "/c/unified")]);
        // Of the group that is mounted there, its part below that.
        let groups = "5:cpu:/x\n4:memory:/box/inner\n0::/a/b\n";
        assert_eq!(found[0].group(groups), Some("inner".into()));
        assert_eq!(found[1].group(groups), Some("a/b".into()));
        for outside in ["4:memory:/other\n", "4:memory:/box/../x\n", "", "0:\n"] {
            assert_eq!(found[0].group(outside), None, "{outside}");
        }
        // As one in a namespace of groups sees who is outside.
        assert_eq!(found[1].group("0::/../x\n"), None);
    }

    #[test]
    fn room_is_what_is_left_below_the_lowest_limit_of_each_group() {
        let files = Files::new();
        for (name, text) in [
            ("pod/memory.max", "1000000\n"),
            ("pod/memory.high", "max\n"),
            ("pod/memory.current", "400000\n"),
            ("pod/memory.stat", "anon 1\ninactive_file 100000\n"),
            ("pod/box/memory.max", "500000\n"),
            ("pod/box/memory.high", "300000\n"),
            ("pod/box/memory.current", "350000\n"),
            ("pod/box/free/memory.max", "max\n"),
            ("pod/box/free/memory.current", "1\n"),
        ] {
            files.write(name, text);
        }
        let found = files.limited(TWO, "0::/pod/box/free\n");
        let expected = [("pod/box".to_owned(), 0), ("pod".to_owned(), 700_000)];
        assert_eq!(found, expected);
        assert_eq!(files.limited(TWO, "0::/\n"), []);
        assert_eq!(files.limited(TWO, "0::/nowhere\n"), []);
        // Who lies about files that nobody uses is believed up to what is used.
        files.write("pod/memory.stat", "inactive_file 18446744073709551615\n");
        assert_eq!(files.limited(TWO, "0::/pod\n")[0].1, 1_000_000);
        files.write("pod/memory.current", "-3\n");
        assert_eq!(files.limited(TWO, "0::/pod\n"), []);
    }

    #[test]
    fn no_limit_is_a_large_number_in_version_one() {
        let files = Files::new();
        files.write("memory.limit_in_bytes", "9223372036854771712\n");
        files.write("memory.usage_in_bytes", "5\n");
        files.write("box/memory.limit_in_bytes", "1000\n");
        files.write("box/memory.usage_in_bytes", "600\n");
        files.write(
            "box/memory.stat",
            "inactive_file 7\ntotal_inactive_file 50\n",
        );
        let found = files.limited(ONE, "4:cpu,memory:/box\n");
        assert_eq!(found, [("box".to_owned(), 450)]);
    }

    #[test]
    fn own_groups_can_be_read() {
        let pid = i32::try_from(std::process::id()).unwrap();
        let found = Hierarchies::find().limited(pid);
        assert!(found.iter().all(|it| it.folder.is_absolute()));
        assert_eq!(Hierarchies::find().limited(-1), []);
    }
}
