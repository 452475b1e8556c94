//! The root of a system that others may change at any time.
//!
//! Each path is resolved by the kernel at the moment that it is used, and never leads out of the root (openat2(2)): a
//! check of a path and its use are two looks, between which a link can be put there.

use std::fs::File;
use std::io::{self, Read as _};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

use rustix::fs::{Mode, OFlags, ResolveFlags, openat2};
use rustix::io::Errno;

/// How often a path is resolved anew that somebody changes meanwhile (openat2(2), `EAGAIN`).
const RESOLVES_MAX: usize = 64;
pub const FOLDER: OFlags = OFlags::DIRECTORY.union(OFlags::CLOEXEC);
/// A pipe must not hold us up.
pub const TEXT: OFlags = OFlags::NONBLOCK.union(OFlags::CLOEXEC);

/// The root of a system.
#[derive(Debug)]
pub struct Root {
    path: PathBuf,
    folder: OwnedFd,
}

impl Root {
    pub fn open(path: &Path) -> io::Result<Root> {
        let folder = rustix::fs::open(path, FOLDER | OFlags::PATH, Mode::empty())?;
        let path = path.to_owned();
        Ok(Root { path, folder })
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    pub fn folder(&self) -> &OwnedFd {
        &self.folder
    }

    /// Reads a file, of which links are resolved as for who lives in that system.
    pub fn read(&self, path: &Path, bytes_max: u64) -> io::Result<Vec<u8>> {
        let resolve = ResolveFlags::IN_ROOT | ResolveFlags::NO_MAGICLINKS;
        let file = self.resolve(path, TEXT, resolve)?;
        read(file, bytes_max)
    }

    /// Opens what lies in the system, or where a link leads to that stays in it.
    pub fn within(&self, path: &Path, flags: OFlags) -> io::Result<OwnedFd> {
        // In the system that runs, an absolute link leads out of nothing.
        let stay = match self.path == Path::new("/") {
            true => ResolveFlags::IN_ROOT,
            false => ResolveFlags::BENEATH,
        };
        self.resolve(path, flags, stay | ResolveFlags::NO_MAGICLINKS)
    }

    fn resolve(&self, path: &Path, flags: OFlags, how: ResolveFlags) -> io::Result<OwnedFd> {
        let path = path.strip_prefix(&self.path).unwrap_or(path);
        let path = path.strip_prefix("/").unwrap_or(path);
        for _ in 0..RESOLVES_MAX {
            match openat2(&self.folder, path, flags, Mode::empty(), how) {
                Err(Errno::AGAIN) => {}
                // Of a kernel, or a filter, of before it. The system that runs is not looked at from outside.
                Err(Errno::NOSYS | Errno::PERM) if self.path == Path::new("/") => {
                    let plain = rustix::fs::openat(&self.folder, path, flags, Mode::empty());
                    return Ok(plain?);
                }
                other => return Ok(other?),
            }
        }
        Err(Errno::AGAIN.into())
    }
}

/// What a regular file says.
pub fn read(file: OwnedFd, bytes_max: u64) -> io::Result<Vec<u8>> {
    let file = File::from(file);
    if !file.metadata()?.is_file() {
        return Err(io::Error::other("it is no file"));
    }
    let mut bytes = Vec::new();
    file.take(bytes_max + 1).read_to_end(&mut bytes)?;
    match bytes.len() as u64 > bytes_max {
        true => Err(io::Error::other("it is too long for a unit")),
        false => Ok(bytes),
    }
}
