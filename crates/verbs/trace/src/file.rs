//! Which file a process writes.

use std::ffi::OsString;
use std::fmt;
use std::fs::{File, TryLockError};
use std::io;
use std::path::{Path, PathBuf};

use sluice_wire::capture::Format;

/// A file could not be opened.
#[derive(Debug)]
pub struct OpenError {
    /// Which.
    pub path: PathBuf,
    /// Why.
    pub error: io::Error,
}

impl fmt::Display for OpenError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "cannot write {}: {}", self.path.display(), self.error)
    }
}

impl std::error::Error for OpenError {}

/// Opens the file that this process writes, and its format by its name: `.pcap` for the classic
/// one, pcapng for any other.
///
/// The first process takes `path` itself: it is empty and nobody has locked it. Every other gets a
/// file of its own, with its process id in front of the extension. The lock lasts as long as the
/// file is open.
pub fn open(path: &Path, pid: u32) -> Result<(File, PathBuf, Format), OpenError> {
    let failed = |path: &Path| {
        let path = path.to_owned();
        move |error| OpenError { path, error }
    };
    let format = match path.extension() {
        Some(extension) if extension.eq_ignore_ascii_case("pcap") => Format::Pcap,
        _ => Format::PcapNg,
    };
    let file = File::options()
        .write(true)
        .create(true)
        .truncate(false)
        .open(path)
        .map_err(failed(path))?;
    match file.try_lock() {
        Ok(()) if file.metadata().map_err(failed(path))?.len() == 0 => {
            return Ok((file, path.to_owned(), format));
        }
        // A pipe or a device has no lock worth the name, and no second process.
        Err(TryLockError::Error(error)) => return Err(failed(path)(error)),
        Ok(()) | Err(TryLockError::WouldBlock) => {}
    }
    let own = with_pid(path, pid);
    let file = File::create(&own).map_err(failed(&own))?;
    Ok((file, own, format))
}

/// `trace.pcapng` becomes `trace.123.pcapng`.
fn with_pid(path: &Path, pid: u32) -> PathBuf {
    let mut name = OsString::from(path.file_stem().unwrap_or_default());
    name.push(format!(".{pid}"));
    if let Some(extension) = path.extension() {
        name.push(".");
        name.push(extension);
    }
    path.with_file_name(name)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;

    #[test]
    fn every_process_has_its_file() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.b.pcap");
        let (mut first, name, format) = open(&path, 1).unwrap();
        assert_eq!((name, format), (path.clone(), Format::Pcap));
        // The first has it open, even before it has written.
        let (_, name, _) = open(&path, 2).unwrap();
        assert_eq!(name, folder.path().join("a.b.2.pcap"));
        first.write_all(b"x").unwrap();
        drop(first);
        // It has ended, and its file stays as it is.
        let (_, name, _) = open(&path, 3).unwrap();
        assert_eq!(name, folder.path().join("a.b.3.pcap"));
        assert_eq!(std::fs::read(&path).unwrap(), b"x");
    }

    #[test]
    fn what_cannot_be_opened_is_named() {
        let error = open(Path::new("/nowhere/x.pcapng"), 1).unwrap_err();
        assert!(error.to_string().contains("/nowhere/x.pcapng"), "{error}");
        assert_eq!(with_pid(Path::new("/a/trace"), 7), Path::new("/a/trace.7"));
    }
}
