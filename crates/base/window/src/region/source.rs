//! Where the memory of a window comes from.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::{AsRawFd, RawFd};
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use crate::layout::REGION_BYTES_MAX;

/// Of a folder in which nobody removes the files of others.
const STICKY: u32 = 0o1000;
/// Users other than the owner may make files.
const OTHERS_WRITE: u32 = 0o022;

/// An open file that can be mapped, and how long it is.
#[derive(Debug)]
pub struct Source {
    file: File,
    bytes: u64,
}

/// Why there is no memory.
#[derive(Debug)]
pub enum SourceError {
    Open(PathBuf, io::Error),
    /// A folder, a pipe, or a device that is no device DAX.
    NotMemory(PathBuf),
    /// A file has to be told its size.
    NoSize(PathBuf),
    /// Another user's file lies where everybody may make files, so that whose it is says nothing.
    Foreign(PathBuf, u32),
    /// The size of a device is what it is.
    FixedSize {
        path: PathBuf,
        bytes: u64,
    },
    Empty(PathBuf),
    TooLarge(PathBuf, u64),
    /// The size could not be set, or there is no room for it.
    Allocate(PathBuf, u64, io::Error),
}

impl core::fmt::Display for SourceError {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match self {
            SourceError::Open(path, error) => write!(f, "{}: {error}", path.display()),
            SourceError::NotMemory(path) => write!(
                f,
                "{}: no memory that can be mapped; a window is a file, \
                 /sys/bus/pci/devices/…/resource2, or /dev/dax…",
                path.display()
            ),
            SourceError::Foreign(path, uid) => write!(
                f,
                "{}: user {uid} has made this file in a folder for everybody, and would have the window's memory; \
                 choose another name or another folder",
                path.display()
            ),
            SourceError::NoSize(path) => {
                write!(
                    f,
                    "{}: a new file needs a size (--size 64M)",
                    path.display()
                )
            }
            SourceError::FixedSize { path, bytes } => write!(
                f,
                "{}: has {bytes} bytes, and no other size can be chosen",
                path.display()
            ),
            SourceError::Empty(path) => write!(f, "{}: has no bytes", path.display()),
            SourceError::TooLarge(path, bytes) => {
                write!(f, "{}: {bytes} bytes are too many", path.display())
            }
            SourceError::Allocate(path, bytes, error) => {
                write!(f, "{}: no room for {bytes} bytes: {error}", path.display())
            }
        }
    }
}

impl core::error::Error for SourceError {}

impl Source {
    /// What is there.
    pub fn open(path: &Path) -> Result<Source, SourceError> {
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            // A pipe or a terminal must not hold the program up.
            .custom_flags(libc::O_NONBLOCK | libc::O_CLOEXEC | libc::O_NOCTTY)
            .open(path)
            .map_err(|error| SourceError::Open(path.to_owned(), error))?;
        let bytes = length(path, &file)?;
        if bytes == 0 {
            return Err(SourceError::Empty(path.to_owned()));
        }
        Source::checked(path, file, bytes)
    }

    /// What is there, or a new file of this size. A file that is too short is made longer; one
    /// that is longer keeps its size. The memory is allocated, so that no access faults for want
    /// of room later.
    pub fn create(path: &Path, bytes: Option<u64>) -> Result<Source, SourceError> {
        let fail = |error| SourceError::Open(path.to_owned(), error);
        let is_device = path
            .metadata()
            .is_ok_and(|data| data.file_type().is_char_device() || is_resource(path));
        if is_device {
            let source = Source::open(path)?;
            return match bytes {
                Some(wanted) if wanted != source.bytes => Err(SourceError::FixedSize {
                    path: path.to_owned(),
                    bytes: source.bytes,
                }),
                _ => Ok(source),
            };
        }
        if bytes.is_none() && !path.exists() {
            return Err(SourceError::NoSize(path.to_owned()));
        }
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .mode(0o600)
            .custom_flags(libc::O_NONBLOCK | libc::O_CLOEXEC | libc::O_NOFOLLOW)
            .open(path)
            .map_err(|error| {
                // Where fs.protected_regular is set the kernel refuses another user's file (proc_sys_fs(5)), and does
                // not say whose it is.
                let owner = path.symlink_metadata().map(|data| data.uid());
                match owner.map(|owner| check_owner(path, owner)) {
                    Ok(Err(foreign)) if error.kind() == io::ErrorKind::PermissionDenied => foreign,
                    _ => fail(error),
                }
            })?;
        check_owner(path, file.metadata().map_err(fail)?.uid())?;
        let bytes = length(path, &file)?.max(bytes.unwrap_or(0));
        if bytes == 0 {
            return Err(SourceError::NoSize(path.to_owned()));
        }
        let source = Source::checked(path, file, bytes)?;
        sluice_sys::memfd::allocate(source.fd(), bytes).map_err(|errno| {
            let error = io::Error::from_raw_os_error(errno.0);
            SourceError::Allocate(path.to_owned(), bytes, error)
        })?;
        Ok(source)
    }

    fn checked(path: &Path, file: File, bytes: u64) -> Result<Source, SourceError> {
        if bytes > REGION_BYTES_MAX {
            return Err(SourceError::TooLarge(path.to_owned(), bytes));
        }
        Ok(Source { file, bytes })
    }

    pub fn fd(&self) -> RawFd {
        self.file.as_raw_fd()
    }

    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    pub(super) fn map_bytes(&self) -> Result<usize, SourceError> {
        usize::try_from(self.bytes).map_err(|_| SourceError::TooLarge(PathBuf::new(), self.bytes))
    }
}

/// Whether a file of this owner may be made a window by who opens it to make one. In a folder like `/tmp` or `/dev/shm` another
/// user can have made a file of that name before: as protected_regular (Documentation/admin-guide/sysctl/fs.rst), which
/// not every system has, it must be this user's own, or that of the folder's owner.
fn check_owner(path: &Path, owner: u32) -> Result<(), SourceError> {
    let fail = |error| SourceError::Open(path.to_owned(), error);
    let folder = path.parent().filter(|it| !it.as_os_str().is_empty());
    let folder = folder.unwrap_or(Path::new("."));
    let folder = folder.metadata().map_err(fail)?;
    let own = sluice_sys::unix::effective_uid();
    if is_foreign(owner, own, (folder.mode(), folder.uid())) {
        return Err(SourceError::Foreign(path.to_owned(), owner));
    }
    Ok(())
}

/// The same of the file's owner, this user, and the mode and owner of the folder.
fn is_foreign(owner: u32, own: u32, (mode, folder_owner): (u32, u32)) -> bool {
    let is_for_everybody = mode & STICKY != 0 && mode & OTHERS_WRITE != 0;
    is_for_everybody && owner != own && owner != folder_owner
}

/// A base address register in sysfs.
fn is_resource(path: &Path) -> bool {
    let name = path.file_name().and_then(|name| name.to_str());
    path.starts_with("/sys") && name.is_some_and(|name| name.starts_with("resource"))
}

fn length(path: &Path, file: &File) -> Result<u64, SourceError> {
    let data = file
        .metadata()
        .map_err(|error| SourceError::Open(path.to_owned(), error))?;
    if data.is_file() {
        return Ok(data.len());
    }
    if data.file_type().is_char_device() {
        return dax_length(data.rdev()).ok_or_else(|| SourceError::NotMemory(path.to_owned()));
    }
    Err(SourceError::NotMemory(path.to_owned()))
}

/// The size of a device DAX, which stat does not tell (Documentation/ABI/testing/sysfs-bus-dax).
fn dax_length(device: u64) -> Option<u64> {
    let folder = PathBuf::from(format!(
        "/sys/dev/char/{}:{}",
        libc::major(device),
        libc::minor(device)
    ));
    let subsystem = folder.join("subsystem").canonicalize().ok()?;
    if subsystem.file_name()? != "dax" {
        return None;
    }
    std::fs::read_to_string(folder.join("size"))
        .ok()?
        .trim()
        .parse()
        .ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_of_another_user_is_none_to_make_a_window_of_where_all_make_files() {
        const TMP: (u32, u32) = (0o041_777, 0);
        for (owner, own, folder, expected) in [
            (1000, 0, TMP, true),
            (1000, 1001, TMP, true),
            // One's own, and what the folder's owner has put there.
            (1000, 1000, TMP, false),
            (0, 0, TMP, false),
            (0, 1000, TMP, false),
            // A group's folder.
            (1000, 1001, (0o041_770, 1002), true),
            // Where one user says who makes files.
            (1000, 0, (0o040_755, 1000), false),
            (1000, 0, (0o041_755, 0), false),
            (1000, 0, (0o040_777, 0), false),
        ] {
            assert_eq!(
                is_foreign(owner, own, folder),
                expected,
                "{owner} {own} {folder:?}"
            );
        }
    }

    #[test]
    fn another_users_file_stays_as_it_is() {
        if sluice_sys::unix::effective_uid() != 0 {
            println!("SKIP another_users_file_stays_as_it_is: only root can give a file away");
            return;
        }
        let name = format!("sluice-foreign-{}", std::process::id());
        let folder = std::env::temp_dir().join(name);
        std::fs::create_dir(&folder).unwrap();
        let mode = std::os::unix::fs::PermissionsExt::from_mode(0o1777);
        std::fs::set_permissions(&folder, mode).unwrap();
        let path = folder.join("window");
        std::fs::write(&path, b"").unwrap();
        std::os::unix::fs::chown(&path, Some(4321), None).unwrap();
        let made = Source::create(&path, Some(1 << 20));
        assert!(
            matches!(made, Err(SourceError::Foreign(_, 4321))),
            "{made:?}"
        );
        assert_eq!(path.metadata().unwrap().len(), 0);
        std::fs::remove_dir_all(&folder).unwrap();
    }
}
