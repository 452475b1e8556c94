//! The file of the log. Whoever rotates it renames it, and that is all: the next line goes to a new file of its name.

use std::fs::{self, File};
use std::io::{self, Write};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};

use tracing_subscriber::fmt::MakeWriter;

/// A file that is written to under its name, whatever becomes of the one that had it before.
#[derive(Debug)]
pub struct LogFile {
    path: PathBuf,
    open: Mutex<Open>,
}

#[derive(Debug)]
struct Open {
    file: File,
    /// Device and inode.
    id: (u64, u64),
}

impl LogFile {
    /// What is there stays, and goes on.
    pub fn open(path: &Path) -> io::Result<LogFile> {
        // The working directory changes.
        let path = std::path::absolute(path)?;
        let open = Mutex::new(Open::at(&path)?);
        Ok(LogFile { path, open })
    }
}

impl Open {
    fn at(path: &Path) -> io::Result<Open> {
        let file = File::options().create(true).append(true).open(path)?;
        let about = file.metadata()?;
        let id = (about.dev(), about.ino());
        Ok(Open { file, id })
    }

    /// Opens the file anew if its name is another file's now, or nobody's. Where that is not possible, a full disk or a
    /// folder that is gone, the file that was there goes on.
    fn follow(&mut self, path: &Path) {
        let is_same = fs::metadata(path).is_ok_and(|now| (now.dev(), now.ino()) == self.id);
        if !is_same && let Ok(open) = Open::at(path) {
            *self = open;
        }
    }
}

impl<'a> MakeWriter<'a> for LogFile {
    type Writer = Line<'a>;

    /// For one line.
    fn make_writer(&'a self) -> Line<'a> {
        let mut open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        open.follow(&self.path);
        Line(open)
    }
}

/// The file, for one line.
#[derive(Debug)]
pub struct Line<'a>(MutexGuard<'a, Open>);

impl Write for Line<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.file.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.0.file.flush()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn say(log: &LogFile, text: &str) {
        log.make_writer().write_all(text.as_bytes()).unwrap();
    }

    #[test]
    fn a_renamed_file_is_followed_by_a_new_one() {
        let dir = tempfile::tempdir().unwrap();
        let [path, rotated] = ["log", "log.1"].map(|name| dir.path().join(name));
        let read = |path: &Path| fs::read_to_string(path).unwrap_or_default();
        fs::write(&path, "before\n").unwrap();
        let log = LogFile::open(&path).unwrap();
        say(&log, "one\n");
        assert_eq!(read(&path), "before\none\n");
        fs::rename(&path, &rotated).unwrap();
        say(&log, "two\n");
        assert_eq!(read(&rotated), "before\none\n");
        assert_eq!(read(&path), "two\n");
        // One that somebody has made with the rights that he wants, and one that was cut.
        fs::rename(&path, &rotated).unwrap();
        fs::write(&path, "").unwrap();
        say(&log, "three\n");
        assert_eq!(read(&path), "three\n");
        fs::write(&path, "").unwrap();
        say(&log, "four\n");
        assert_eq!(read(&path), "four\n");
    }

    #[test]
    fn without_its_folder_the_file_goes_on() {
        let dir = tempfile::tempdir().unwrap();
        let folder = dir.path().join("folder");
        fs::create_dir(&folder).unwrap();
        let log = LogFile::open(&folder.join("log")).unwrap();
        let moved = dir.path().join("moved");
        fs::rename(&folder, &moved).unwrap();
        say(&log, "still\n");
        assert_eq!(fs::read_to_string(moved.join("log")).unwrap(), "still\n");
    }
}
