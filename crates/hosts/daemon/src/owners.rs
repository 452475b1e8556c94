//! Whose a user id is: a user can have 65,536 further ones for user namespaces (`/etc/subuid`, subuid(5)), and is still
//! one user, with one share.

use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// Ranges that are read at most.
const RANGES_MAX: usize = 65_536;
/// How often it is looked whether a file is another one now.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// Ids that somebody was given.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Range {
    first: u32,
    last: u32,
    owner: u32,
}

/// A file, as it was when it was read: device, inode, size, seconds and nanoseconds.
type Stamp = Option<(u64, u64, u64, i64, i64)>;

/// The owners of user ids.
#[derive(Debug)]
pub struct Owners {
    subuid: PathBuf,
    passwd: PathBuf,
    /// sluiced's own user: what runs in its ranges is not it.
    own: u32,
    read: [Stamp; 2],
    look_at: Option<Instant>,
    /// By their first id; none overlaps another one.
    ranges: Vec<Range>,
}

impl Owners {
    /// Those of this machine. A machine without these files has none.
    pub fn of_this_machine(own: u32) -> Owners {
        Owners::of(own, "/etc/subuid".into(), "/etc/passwd".into())
    }

    fn of(own: u32, subuid: PathBuf, passwd: PathBuf) -> Owners {
        Owners {
            subuid,
            passwd,
            own,
            read: [None; 2],
            look_at: None,
            ranges: Vec::new(),
        }
    }

    /// The user whose this id is. Ids of root's and of sluiced's own ranges, and of a user without a number here, are the
    /// range's: its first one stands for all. An id in no range is its own.
    pub fn owner(&mut self, uid: u32, now: Instant) -> u32 {
        if self.look_at.is_none_or(|at| at <= now) {
            self.look_at = Some(now + LOOK_EVERY);
            self.look();
        }
        let behind = self.ranges.partition_point(|range| range.first <= uid);
        let before = behind.checked_sub(1).map(|at| self.ranges[at]);
        let range = before.filter(|range| uid <= range.last);
        range.map_or(uid, |range| range.owner)
    }

    fn look(&mut self) {
        let stamps = [&self.subuid, &self.passwd].map(|path| stamp(path));
        if stamps == self.read {
            return;
        }
        self.read = stamps;
        let text = |path: &Path| match fs::read(path) {
            Ok(bytes) => String::from_utf8_lossy(&bytes).into_owned(),
            Err(error) => {
                if error.kind() != io::ErrorKind::NotFound {
                    tracing::warn!(
                        "{}: {error}; further ids of users have shares of their own",
                        path.display()
                    );
                }
                String::new()
            }
        };
        let subuid = text(&self.subuid);
        // Nobody else is asked: that may take as long as a network does.
        let passwd = match subuid.is_empty() {
            true => String::new(),
            false => text(&self.passwd),
        };
        self.ranges = ranges(&subuid, &passwd, self.own);
    }
}

fn stamp(path: &Path) -> Stamp {
    let data = fs::metadata(path).ok()?;
    Some((
        data.dev(),
        data.ino(),
        data.size(),
        data.mtime(),
        data.mtime_nsec(),
    ))
}

/// The ranges of subuid(5): `user:first:count`, the user by name or by number.
fn ranges(subuid: &str, passwd: &str, own: u32) -> Vec<Range> {
    let uid_of = |user: &str| {
        let by_number = user.parse().ok();
        by_number.or_else(|| {
            let entries = passwd.lines().map(|line| line.split(':'));
            entries.into_iter().find_map(|mut fields| {
                let is_it = fields.next() == Some(user);
                is_it.then(|| fields.nth(1)?.parse().ok()).flatten()
            })
        })
    };
    let range = |line: &str| {
        let line = line.trim();
        let mut fields = line.split(':').take_while(|_| !line.starts_with('#'));
        let (user, first, count) = (fields.next()?, fields.next()?, fields.next()?);
        let (first, count) = (first.parse::<u32>().ok()?, count.parse::<u32>().ok()?);
        let last = first.checked_add(count.checked_sub(1)?)?;
        let owner = uid_of(user).filter(|uid| *uid != 0 && *uid != own);
        Some(Range {
            first,
            last,
            owner: owner.unwrap_or(first),
        })
    };
    let mut all: Vec<Range> = subuid.lines().filter_map(range).take(RANGES_MAX).collect();
    all.sort_by_key(|range| range.first);
    // Ids that two users have belong to the first range.
    let mut behind = Some(0);
    all.retain_mut(|range| {
        let first = behind.map(|behind| range.first.max(behind));
        let Some(first) = first.filter(|first| *first <= range.last) else {
            return false;
        };
        range.first = first;
        behind = range.last.checked_add(1);
        true
    });
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    const PASSWD: &str =
        "root:x:0:0::/root:/bin/sh\nann:x:1000:1000::/:/bin/sh\nbob:x:1001:1001::/:/bin/sh\n";

    fn owners(subuid: &str) -> impl Fn(u32) -> u32 {
        let mut owners = Owners::of(990, PathBuf::new(), PathBuf::new());
        owners.ranges = ranges(subuid, PASSWD, 990);
        let now = Instant::now();
        owners.look_at = Some(now + LOOK_EVERY);
        let owners = std::cell::RefCell::new(owners);
        move |uid| owners.borrow_mut().owner(uid, now)
    }

    #[test]
    fn further_ids_of_a_user_are_his() {
        let owner = owners("ann:100000:65536\n1001:165536:65536\nann:300000:10\n");
        for (uid, expected) in [
            (1000, 1000),
            (99_999, 99_999),
            (100_000, 1000),
            (165_535, 1000),
            (165_536, 1001),
            (231_071, 1001),
            (231_072, 231_072),
            (300_009, 1000),
            (300_010, 300_010),
            (u32::MAX, u32::MAX),
        ] {
            assert_eq!(owner(uid), expected, "{uid}");
        }
    }

    /// A container of root's is not root, and one of a user whom this machine does not list is one user.
    #[test]
    fn what_runs_in_ranges_of_root_has_a_share_of_its_own() {
        let owner = owners("root:100000:1000\n990:200000:1000\nnetwork-user:300000:1000\n");
        assert_eq!(owner(100_005), 100_000);
        assert_eq!(owner(200_999), 200_000);
        assert_eq!(owner(300_999), 300_000);
    }

    #[test]
    fn lines_that_are_none_are_left_out() {
        let owner = owners(
            "# ann:1:9\n\nann\nann:5\nann:x:5\nann:7:0\nann:4294967295:2\nann:-1:5\nann:50:10:more\n",
        );
        for uid in [1, 5, 7, u32::MAX] {
            assert_eq!(owner(uid), uid);
        }
        assert_eq!(owner(59), 1000);
    }

    #[test]
    fn ids_of_two_users_are_those_of_the_first() {
        let owner = owners("bob:150:100\nann:100:100\nann:4294967290:6\nbob:4294967290:6\n");
        assert_eq!([199, 200, 249, 250].map(&owner), [1000, 1001, 1001, 250]);
        assert_eq!(owner(u32::MAX), 1000);
    }

    #[test]
    fn files_that_change_are_read_again() {
        let folder = std::env::temp_dir().join(format!("sluice-owners-{}", std::process::id()));
        fs::create_dir(&folder).unwrap();
        let (subuid, passwd) = (folder.join("subuid"), folder.join("passwd"));
        let mut owners = Owners::of(0, subuid.clone(), passwd.clone());
        let now = Instant::now();
        assert_eq!(owners.owner(100_000, now), 100_000);
        fs::write(&subuid, "ann:100000:65536\n").unwrap();
        fs::write(&passwd, PASSWD).unwrap();
        assert_eq!(owners.owner(100_000, now), 100_000, "not at each question");
        assert_eq!(owners.owner(100_000, now + LOOK_EVERY), 1000);
        fs::remove_dir_all(&folder).unwrap();
        assert_eq!(owners.owner(100_000, now + 2 * LOOK_EVERY), 100_000);
    }
}
