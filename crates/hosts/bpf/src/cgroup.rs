//! The cgroup whose programs are meant (`Documentation/admin-guide/cgroup-v2.rst`).

use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, RawFd};
use std::os::unix::fs::{DirEntryExt, MetadataExt};
use std::path::{Path, PathBuf};

use sluice_sys::cgroup;

use crate::error::Error;

/// A cgroup of version 2. A socket belongs to the cgroup in which its process was when it made
/// the socket, and an accepted one to that of its listener.
#[derive(Debug)]
pub struct Cgroup {
    directory: File,
}

impl Cgroup {
    /// By the path of its directory.
    pub fn open(path: &Path) -> Result<Self, Error> {
        let wrong = |errno| Error::NotACgroup {
            path: path.to_owned(),
            errno,
        };
        let errno = |error: io::Error| wrong(error.raw_os_error().unwrap_or(libc::EIO));
        let directory = File::open(path).map_err(errno)?;
        if !directory.metadata().map_err(errno)?.is_dir() {
            return Err(wrong(libc::ENOTDIR));
        }
        // The kernel knows it by its file system only: every directory of it has this file.
        match path.join("cgroup.controllers").try_exists() {
            Ok(true) => Ok(Self { directory }),
            Ok(false) => Err(wrong(libc::EINVAL)),
            Err(error) => Err(errno(error)),
        }
    }

    /// The root of the hierarchy, as this process sees it: all of its programs are below.
    pub fn root() -> Result<Self, Error> {
        Self::open(&Self::mount_point()?)
    }

    /// Where the hierarchy is mounted: `/sys/fs/cgroup`, or `/sys/fs/cgroup/unified` where
    /// version 1 is used as well.
    pub fn mount_point() -> Result<PathBuf, Error> {
        let found = cgroup::mount_point();
        found
            .map_err(Error::system("read(/proc/self/mountinfo)"))?
            .ok_or(Error::NoCgroups)
    }

    /// Whether the cgroup of this number, which the kernel gives for a socket, is this one or below it.
    pub fn contains(&self, number: u64) -> io::Result<bool> {
        if self.directory.metadata()?.ino() == number {
            return Ok(true);
        }
        contains(Path::new(&format!("/proc/self/fd/{}", self.raw())), number)
    }

    pub(crate) fn raw(&self) -> RawFd {
        self.directory.as_raw_fd()
    }
}

/// One that is removed meanwhile has no socket that listens.
fn contains(directory: &Path, number: u64) -> io::Result<bool> {
    for entry in std::fs::read_dir(directory)? {
        let entry = entry?;
        if !entry.file_type()?.is_dir() {
            continue;
        }
        if entry.ino() == number || contains(&entry.path(), number).unwrap_or(false) {
            return Ok(true);
        }
    }
    Ok(false)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The walk: any directory stands for a cgroup.
    #[test]
    fn what_is_below_is_contained() {
        let place = tempfile::tempdir().unwrap();
        let (inner, beside) = (place.path().join("a/b/c"), place.path().join("d"));
        for path in [&inner, &beside] {
            std::fs::create_dir_all(path).unwrap();
        }
        std::fs::write(place.path().join("a/cgroup.procs"), "").unwrap();
        let number = |path: &Path| std::fs::metadata(path).unwrap().ino();
        let above = Cgroup {
            directory: File::open(place.path().join("a")).unwrap(),
        };
        assert!(above.contains(number(&place.path().join("a"))).unwrap());
        assert!(above.contains(number(&inner)).unwrap());
        for other in [place.path(), &beside, &place.path().join("a/cgroup.procs")] {
            assert!(!above.contains(number(other)).unwrap());
        }
    }

    #[test]
    fn other_directories_are_refused() {
        for (path, errno) in [
            ("/proc", libc::EINVAL),
            ("/nothing/here", libc::ENOENT),
            ("/proc/self/status", libc::ENOTDIR),
        ] {
            let error = Cgroup::open(Path::new(path)).unwrap_err();
            let expected = Error::NotACgroup {
                path: path.into(),
                errno,
            };
            assert_eq!(error, expected);
        }
    }
}
