//! The summary of `sluice run --stats`: what each process of the family wrote at its end.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs::{self, File};
use std::io::{self, BufRead, BufReader, Read};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use rustix::rand::{GetRandomFlags, getrandom};
use serde::Deserialize;

use crate::terminal::harmless;
use crate::units;

/// The environment variable that tells the library where to append its line.
pub const FILE_VARIABLE: &str = "SLUICE_STATS_FILE";

/// The summary reads no more of the file than this; a family of 100,000 processes fits.
const FILE_BYTES_MAX: u64 = 64 << 20;
/// What the names of directories begin with, in a temporary directory.
const DIRECTORY_PREFIX: &str = "sluice-stats-";
/// Different reasons that are kept apart.
const REASONS_MAX: usize = 64;

/// One process's line.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
struct Line {
    connections: u64,
    laned: u64,
    lane_rx_bytes: u64,
    lane_tx_bytes: u64,
    tcp_rx_bytes: u64,
    tcp_tx_bytes: u64,
    switches: u64,
    sleeps: u64,
    spins: u64,
    reasons: BTreeMap<String, u64>,
}

/// The sum over all processes.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Summary {
    processes: u64,
    unreadable: u64,
    total: Line,
}

impl Summary {
    /// Reads lines up to [`FILE_BYTES_MAX`]. A line that is no JSON object is counted, not
    /// believed: a process may have been killed while it wrote.
    pub fn read(source: impl Read) -> io::Result<Self> {
        let mut summary = Self::default();
        for line in BufReader::new(source.take(FILE_BYTES_MAX)).split(b'\n') {
            let line = line?;
            if line.is_empty() {
                continue;
            }
            match serde_json::from_slice::<Line>(&line) {
                Ok(line) => summary.add(line),
                Err(_) => summary.unreadable += 1,
            }
        }
        Ok(summary)
    }

    fn add(&mut self, line: Line) {
        self.processes += 1;
        let total = &mut self.total;
        for (sum, value) in [
            (&mut total.connections, line.connections),
            (&mut total.laned, line.laned),
            (&mut total.lane_rx_bytes, line.lane_rx_bytes),
            (&mut total.lane_tx_bytes, line.lane_tx_bytes),
            (&mut total.tcp_rx_bytes, line.tcp_rx_bytes),
            (&mut total.tcp_tx_bytes, line.tcp_tx_bytes),
            (&mut total.switches, line.switches),
            (&mut total.sleeps, line.sleeps),
            (&mut total.spins, line.spins),
        ] {
            *sum = sum.saturating_add(value);
        }
        for (reason, count) in line.reasons {
            let known = total.reasons.contains_key(&reason);
            let key = if known || total.reasons.len() < REASONS_MAX {
                reason
            } else {
                "other".to_owned()
            };
            let sum = total.reasons.entry(key).or_default();
            *sum = sum.saturating_add(count);
        }
    }

    /// The text for a person, several lines, each with the program's name before it.
    pub fn text(&self) -> String {
        let mut text = String::new();
        let mut line = |content: String| {
            // Writing to a String cannot fail.
            let _ = writeln!(text, "sluice: {content}");
        };
        if self.processes == 0 && self.unreadable == 0 {
            line(
                "no process wrote statistics: the program was killed, could not write the file \
                 (disk, limits), or did not load the library (see 'sluice doctor')"
                    .to_owned(),
            );
            return text;
        }
        let total = &self.total;
        line(format!(
            "{}: {}, {} on a lane",
            units::plural(self.processes, "process"),
            units::plural(total.connections, "connection"),
            total.laned,
        ));
        for (name, read, written) in [
            ("lane", total.lane_rx_bytes, total.lane_tx_bytes),
            ("tcp ", total.tcp_rx_bytes, total.tcp_tx_bytes),
        ] {
            line(format!(
                "  {name}  {:>5} read ({read} bytes), {:>5} written ({written} bytes)",
                units::bytes(read),
                units::bytes(written),
            ));
        }
        line(format!(
            "  {} between lane and TCP, {}, {}",
            units::plural(total.switches, "switch"),
            units::plural(total.sleeps, "sleep"),
            units::plural(total.spins, "spin"),
        ));
        let mut reasons: Vec<_> = total
            .reasons
            .iter()
            .filter(|(_, count)| **count > 0)
            .collect();
        reasons.sort_by_key(|(reason, count)| (std::cmp::Reverse(**count), *reason));
        for (reason, count) in reasons {
            line(format!("  {count:>5} on TCP: {}", harmless(reason)));
        }
        if self.unreadable > 0 {
            line(format!(
                "  {} could not be read and count nothing here",
                units::plural(self.unreadable, "line")
            ));
        }
        text
    }
}

/// The file that the processes append to, in a directory of its own; both go when it is dropped.
pub struct StatsFile {
    directory: PathBuf,
    path: PathBuf,
    /// On the directory, which belongs to a living process as long as it is held.
    _lock: File,
}

impl StatsFile {
    /// Makes the file under `parent` (a temporary directory).
    ///
    /// Programs of root may append after they changed to another user, so for root both are open
    /// to writers who know the name, which the directory does not tell.
    pub fn create(parent: &Path) -> io::Result<Self> {
        let shared = rustix::process::geteuid().is_root();
        let (directory_mode, file_mode) = if shared {
            (0o711, 0o622)
        } else {
            (0o700, 0o600)
        };
        remove_abandoned(parent);
        let mut random = [0_u8; 16];
        // So few come whole (getrandom(2)).
        getrandom(&mut random, GetRandomFlags::empty())?;
        let (outer, inner) = random.split_at(8);
        let hex = |bytes: &[u8]| -> String { bytes.iter().map(|b| format!("{b:02x}")).collect() };
        let directory = parent.join(format!("{DIRECTORY_PREFIX}{}", hex(outer)));
        // Fails if somebody has made it before us.
        fs::DirBuilder::new().mode(0o700).create(&directory)?;
        let path = directory.join(hex(inner));
        // Held until this process ends, however it ends.
        let lock = File::open(&directory)?;
        // Whoever looks whether it was left behind holds it for a moment.
        lock.lock()?;
        let made = Self {
            directory,
            path,
            _lock: lock,
        };
        File::options()
            .write(true)
            .create_new(true)
            .mode(0o600)
            .open(&made.path)?;
        // Set apart from creation: the umask must not narrow them.
        fs::set_permissions(&made.path, fs::Permissions::from_mode(file_mode))?;
        fs::set_permissions(&made.directory, fs::Permissions::from_mode(directory_mode))?;
        Ok(made)
    }

    /// The path for [`FILE_VARIABLE`].
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Sums what has been appended so far.
    pub fn summary(&self) -> io::Result<Summary> {
        Summary::read(File::open(&self.path)?)
    }

    /// Removes both, for a process that will not live to drop this. A second call does nothing.
    pub fn remove(&self) {
        // A temporary directory is cleaned by others if this fails.
        let _ = fs::remove_file(&self.path);
        let _ = fs::remove_dir(&self.directory);
    }
}

impl Drop for StatsFile {
    fn drop(&mut self) {
        self.remove();
    }
}

/// Removes what processes of this user have left that were killed. A program that one of them started may run on and
/// write: to a file that nobody would have read.
fn remove_abandoned(parent: &Path) {
    let user = rustix::process::geteuid().as_raw();
    let entries = fs::read_dir(parent).into_iter().flatten().flatten();
    for entry in entries {
        let name = entry.file_name();
        let is_ours = name
            .as_encoded_bytes()
            .starts_with(DIRECTORY_PREFIX.as_bytes())
            && entry
                .metadata()
                .is_ok_and(|it| it.is_dir() && it.uid() == user);
        if !is_ours {
            continue;
        }
        let directory = entry.path();
        let opened = File::options()
            .read(true)
            .custom_flags(libc::O_DIRECTORY | libc::O_NOFOLLOW)
            .open(&directory);
        if opened.is_ok_and(|it| it.try_lock().is_ok()) {
            let files = fs::read_dir(&directory).into_iter().flatten().flatten();
            let removed = files.filter(|file| fs::remove_file(file.path()).is_ok());
            // One without a file is new: it is not locked yet.
            if removed.count() > 0 {
                let _ = fs::remove_dir(&directory);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: &str = r#"{"pid":1,"program":"a","connections":3,"laned":2,"lane_rx_bytes":1024,
        "lane_tx_bytes":5,"tcp_rx_bytes":7,"tcp_tx_bytes":8,"switches":1,"sleeps":9,"spins":10,
        "reasons":{"too little traffic yet":1}}"#;

    fn one_line(text: &str) -> String {
        text.replace('\n', " ")
    }

    #[test]
    fn lines_are_summed_and_garbage_is_counted() {
        let a = one_line(A);
        let input = format!("{a}\n{a}\n\nnot json\n{}", &a[..40]);
        let summary = Summary::read(input.as_bytes()).unwrap();
        assert_eq!(summary.processes, 2);
        assert_eq!(summary.unreadable, 2);
        assert_eq!(summary.total.connections, 6);
        assert_eq!(summary.total.lane_rx_bytes, 2048);
        assert_eq!(summary.total.reasons["too little traffic yet"], 2);
        let text = summary.text();
        assert!(
            text.contains("2 processes: 6 connections, 4 on a lane"),
            "{text}"
        );
        assert!(text.contains("2.0K read (2048 bytes)"), "{text}");
        assert!(text.contains("2 on TCP: too little traffic yet"), "{text}");
        assert!(text.contains("2 lines could not be read"), "{text}");
        assert!(text.lines().all(|line| line.starts_with("sluice: ")));
    }

    #[test]
    fn sums_do_not_overflow_and_reasons_are_bounded() {
        let mut input = String::new();
        for index in 0..2 * REASONS_MAX {
            input += &format!(
                "{{\"spins\":{},\"reasons\":{{\"r{index}\":1}}}}\n",
                u64::MAX
            );
        }
        let summary = Summary::read(input.as_bytes()).unwrap();
        assert_eq!(summary.total.spins, u64::MAX);
        assert_eq!(summary.total.reasons.len(), REASONS_MAX + 1);
        assert_eq!(summary.total.reasons["other"], REASONS_MAX as u64);
    }

    #[test]
    fn a_silent_program_is_said_to_be_silent() {
        let text = Summary::read(&b""[..]).unwrap().text();
        assert!(text.contains("no process wrote statistics"), "{text}");
    }

    #[test]
    fn what_a_killed_process_left_goes_with_the_next() {
        let parent = std::env::temp_dir().join(format!("sluice-left-{}", std::process::id()));
        fs::create_dir(&parent).unwrap();
        let living = StatsFile::create(&parent).unwrap();
        let left = std::mem::ManuallyDrop::new(StatsFile::create(&parent).unwrap());
        let (path, directory) = (left.path.clone(), left.directory.clone());
        // As the kernel does when it ends the process.
        left._lock.unlock().unwrap();
        // It was made in this moment by somebody who has not locked it yet.
        let new = parent.join(format!("{DIRECTORY_PREFIX}0"));
        fs::create_dir(&new).unwrap();
        let next = StatsFile::create(&parent).unwrap();
        assert!(!path.exists() && !directory.exists());
        assert!(new.exists() && living.path.exists() && next.path.exists());
        drop((living, next));
        fs::remove_dir(new).unwrap();
        fs::remove_dir(parent).unwrap();
    }

    #[test]
    fn the_file_goes_with_its_owner() {
        let file = StatsFile::create(&std::env::temp_dir()).unwrap();
        let (path, directory) = (file.path().to_owned(), file.directory.clone());
        fs::write(&path, format!("{}\n", one_line(A))).unwrap();
        assert_eq!(file.summary().unwrap().processes, 1);
        drop(file);
        assert!(!path.exists() && !directory.exists());
    }
}
