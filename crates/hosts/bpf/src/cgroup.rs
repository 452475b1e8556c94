//! The cgroup whose programs are meant (`Documentation/admin-guide/cgroup-v2.rst`).

use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, RawFd};
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

    pub(crate) fn raw(&self) -> RawFd {
        self.directory.as_raw_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
