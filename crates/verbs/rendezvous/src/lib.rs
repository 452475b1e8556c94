//! How processes find each other without a daemon: a directory of the user's, in which each
//! process owns blocks of queue pair numbers and listens on a socket per block.
//!
//! A block is claimed by a lock on one byte of the file `numbers`, which the kernel releases
//! when the process ends, however it ends. Whoever holds the lock may replace the socket that
//! an earlier owner left. Each claim sweeps up what killed processes left.
//!
//! A directory that belongs to something of which there may be many, such as a network namespace,
//! goes with the last process that uses it ([`Rendezvous::open_passing`]).

mod names;
mod numbers;
mod passing;
mod report;
pub mod survey;

use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use sluice_sys::errno::Errno;
use sluice_sys::unix;

use sluice_sys::local_fd::LocalFd;
use sluice_sys::process;
use sluice_sys::reclaim::reclaim;

pub use names::Names;
pub use numbers::{BLOCK_NUMBERS, Numbers, block_of};
pub use report::{ANSWER_BYTES_MAX, Reporter};

/// Blocks are 1 to this; block 0 holds the reserved numbers 0 and 1.
pub const BLOCK_MAX: u32 = 0xFFFE;
/// The file whose bytes are locked: one for each block; byte 0 see [`passing`], those behind the
/// blocks' [`report`].
const NUMBERS: &str = "numbers";
/// What the name of a network namespace's directory has behind that of all processes.
pub const FAMILY: &str = "-roce-";
/// Connections that wait for a listener to accept.
const BACKLOG: i32 = 128;
/// Entries of a directory that one sweep looks at.
const SWEEP_MAX: usize = 4096;

/// The directory where the processes of a user meet.
#[derive(Debug)]
pub struct Rendezvous {
    path: PathBuf,
    numbers: LocalFd,
    /// It goes with its last user.
    passing: Option<passing::Presence>,
}

/// A claimed block of 256 queue pair numbers. Released by [`Rendezvous::release`].
#[derive(Debug)]
pub struct Block {
    pub number: u32,
    pub listener: LocalFd,
}

/// Where the directory is when nobody says otherwise: `$XDG_RUNTIME_DIR/sluice-verbs`, else
/// `/tmp/sluice-<uid>/verbs`. After `su` the variable can name the former user's directory, which is passed over.
pub fn default_path() -> PathBuf {
    match std::env::var_os("XDG_RUNTIME_DIR") {
        Some(dir) if is_own(Path::new(&dir)) => PathBuf::from(dir).join("sluice-verbs"),
        _ => own_parent().join("verbs"),
    }
}

fn is_own(directory: &Path) -> bool {
    fs::metadata(directory).is_ok_and(|meta| meta.is_dir() && meta.uid() == unix::effective_uid())
}

/// Where this user's directories are without `$XDG_RUNTIME_DIR`.
fn own_parent() -> PathBuf {
    PathBuf::from(format!("/tmp/sluice-{}", process::uid()))
}

/// Makes a directory of ours or checks that the one that is there is: a directory itself and
/// not a link to one, owned by us, closed to others.
fn own_directory(path: &Path) -> io::Result<()> {
    match DirBuilder::new().mode(0o700).create(path) {
        Ok(()) => {}
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
        Err(error) => return Err(error),
    }
    let meta = fs::symlink_metadata(path)?;
    if !meta.is_dir() || meta.uid() != unix::effective_uid() || meta.mode() & 0o077 != 0 {
        return Err(io::Error::new(
            io::ErrorKind::PermissionDenied,
            format!(
                "{} must be a directory of this user with mode 0700; remove it, or set XDG_RUNTIME_DIR",
                path.display()
            ),
        ));
    }
    Ok(())
}

/// Opens the file of locks, which is made if necessary, and its directory with it.
fn open_numbers(path: &Path) -> io::Result<File> {
    if let Some(parent) = path.parent()
        && parent == own_parent()
    {
        // Refused below where it cannot be moved.
        let _ = reclaim(parent);
        own_directory(parent)?;
    }
    own_directory(path)?;
    OpenOptions::new()
        .read(true)
        .write(true)
        .create(true)
        .truncate(false)
        .mode(0o600)
        .custom_flags(libc::O_NOFOLLOW | libc::O_CLOEXEC)
        .open(path.join(NUMBERS))
}

fn local(file: File) -> LocalFd {
    LocalFd::own(unix::Fd::from(std::os::fd::OwnedFd::from(file)))
}

impl Rendezvous {
    /// Opens the directory, or makes it.
    pub fn open(path: &Path) -> io::Result<Self> {
        let file = open_numbers(path)?;
        Ok(Self {
            path: path.to_path_buf(),
            numbers: local(file),
            passing: None,
        })
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The blocks that somebody listens for, or did when he was killed.
    pub fn blocks(&self) -> Vec<u32> {
        entries(&self.path)
            .filter_map(|name| block_of_socket(&name))
            .collect()
    }

    fn socket_path(&self, block: u32) -> PathBuf {
        self.path.join(format!("b{block}.sock"))
    }

    /// Claims a free block, looking from a random one on. `owned` are the caller's already: a
    /// lock would be granted to the same open file again. `ESHUTDOWN`: this process has left.
    pub fn claim(&self, owned: &[u32]) -> Result<Block, Errno> {
        if self
            .passing
            .as_ref()
            .is_some_and(passing::Presence::has_left)
        {
            return Err(Errno(libc::ESHUTDOWN));
        }
        let start = process::random()?[0] as u32;
        for step in 0..BLOCK_MAX {
            let number = start.wrapping_add(step) % BLOCK_MAX + 1;
            if owned.contains(&number) {
                continue;
            }
            match process::lock_byte(self.numbers.raw(), u64::from(number), true) {
                Ok(()) => {}
                Err(Errno::AGAIN) => continue,
                Err(error) => return Err(error),
            }
            match self.listen(number) {
                Ok(listener) => {
                    self.sweep(owned, number);
                    return Ok(Block { number, listener });
                }
                Err(error) => {
                    let _ = process::lock_byte(self.numbers.raw(), u64::from(number), false);
                    return Err(error);
                }
            }
        }
        Err(Errno(libc::ENOSPC))
    }

    fn listen(&self, number: u32) -> Result<LocalFd, Errno> {
        let path = self.socket_path(number);
        match fs::remove_file(&path) {
            Ok(()) => {}
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(Errno(error.raw_os_error().unwrap_or(libc::EIO))),
        }
        let socket = unix::seqpacket()?;
        unix::bind(socket.as_raw_fd(), path.as_os_str().as_bytes())?;
        unix::listen(socket.as_raw_fd(), BACKLOG)?;
        Ok(LocalFd::own(socket))
    }

    /// Gives a block back.
    pub fn release(&self, block: &Block) {
        self.remove_names(block.number);
        let _ = process::lock_byte(self.numbers.raw(), u64::from(block.number), false);
    }

    /// Takes away the socket of a block of ours, and its name in multicast groups.
    pub fn remove_names(&self, number: u32) {
        let _ = fs::remove_file(self.socket_path(number));
        for group in entries(&self.path).filter(|name| is_group(name)) {
            let group = self.path.join(group);
            let _ = fs::remove_file(group.join(number.to_string()));
            // Fails while there are other members.
            let _ = fs::remove_dir(group);
        }
    }

    /// Takes away the names of blocks that nobody owns. Call it as [`Rendezvous::claim`], one at
    /// a time: `owned` and `new` are the caller's, whose locks would be granted once more.
    fn sweep(&self, owned: &[u32], new: u32) {
        for name in entries(&self.path) {
            if is_group(&name) {
                let group = self.path.join(&name);
                for member in entries(&group).filter_map(|name| name.parse().ok()) {
                    self.sweep_block(member, owned, new);
                }
            } else if let Some(number) = block_of_socket(&name) {
                self.sweep_block(number, owned, new);
            }
        }
        report::sweep(self, None);
    }

    fn sweep_block(&self, number: u32, owned: &[u32], new: u32) {
        if number > BLOCK_MAX || number == new || owned.contains(&number) {
            return;
        }
        let byte = u64::from(number);
        if process::lock_byte(self.numbers.raw(), byte, true).is_ok() {
            self.remove_names(number);
            let _ = process::lock_byte(self.numbers.raw(), byte, false);
        }
    }

    /// Connects to the owner of a block. `ENOENT`, `ECONNREFUSED`: there is none.
    /// `EPERM`: it belongs to somebody else.
    pub fn connect(&self, number: u32) -> Result<LocalFd, Errno> {
        let socket = unix::seqpacket()?;
        unix::connect(
            socket.raw(),
            self.socket_path(number).as_os_str().as_bytes(),
        )?;
        check_peer(socket.raw())?;
        Ok(LocalFd::own(socket))
    }
}

/// The names in a directory; none where there is no directory.
fn entries(path: &Path) -> impl Iterator<Item = String> {
    let found = fs::read_dir(path).into_iter().flatten().flatten();
    found
        .take(SWEEP_MAX)
        .filter_map(|entry| entry.file_name().into_string().ok())
}

/// The block of a socket's name.
fn block_of_socket(name: &str) -> Option<u32> {
    name.strip_prefix('b')?.strip_suffix(".sock")?.parse().ok()
}

fn is_group(name: &str) -> bool {
    name.starts_with("group-")
}

/// The pid of whoever is at the other end, if it may be: of our user, or root.
pub fn check_peer(socket: i32) -> Result<i32, Errno> {
    let peer = unix::peer_credentials(socket)?;
    if peer.uid == unix::effective_uid() || peer.uid == 0 {
        Ok(peer.pid)
    } else {
        Err(Errno(libc::EPERM))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    pub fn directory(name: &str) -> PathBuf {
        let path = std::env::temp_dir().join(format!("slv-{name}-{}", std::process::id()));
        let _ = fs::remove_dir_all(&path);
        path
    }

    #[test]
    fn blocks_are_exclusive_and_come_back() {
        let path = directory("blocks");
        let (one, two) = (
            Rendezvous::open(&path).unwrap(),
            Rendezvous::open(&path).unwrap(),
        );
        let block = one.claim(&[]).unwrap();
        assert!((1..=BLOCK_MAX).contains(&block.number));
        let taken = u64::from(block.number);
        assert_eq!(
            process::lock_byte(two.numbers.raw(), taken, true),
            Err(Errno::AGAIN)
        );
        assert!(two.connect(block.number).is_ok());
        one.release(&block);
        assert!(process::lock_byte(two.numbers.raw(), taken, true).is_ok());
        assert!(two.connect(block.number).is_err());
        fs::remove_dir_all(&path).unwrap();
    }

    #[test]
    fn what_the_dead_left_is_swept_up() {
        let path = directory("sweep");
        let alive = Rendezvous::open(&path).unwrap();
        let block = alive.claim(&[]).unwrap();
        // Nobody holds the locks of these two.
        let dead = [1, 2].map(|step| (block.number + step) % BLOCK_MAX + 1);
        let group = path.join("group-00");
        fs::create_dir(&group).unwrap();
        fs::write(alive.socket_path(dead[0]), b"").unwrap();
        fs::write(group.join(dead[1].to_string()), b"").unwrap();
        let other = Rendezvous::open(&path).unwrap();
        let second = other.claim(&[]).unwrap();
        assert!(!alive.socket_path(dead[0]).exists());
        assert!(!group.exists());
        assert!(alive.connect(block.number).is_ok());
        assert!(alive.connect(second.number).is_ok());
        alive.release(&block);
        other.release(&second);
        let left: Vec<String> = entries(&path).collect();
        assert_eq!(left, ["numbers"]);
        fs::remove_dir_all(&path).unwrap();
    }

    #[test]
    fn a_directory_open_to_others_is_refused() {
        let path = directory("mode");
        fs::create_dir(&path).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
        let error = Rendezvous::open(&path).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::PermissionDenied);
        fs::remove_dir_all(&path).unwrap();
    }

    #[test]
    fn a_link_in_place_of_the_directory_is_refused() {
        let (path, target) = (directory("link"), directory("target"));
        own_directory(&target).unwrap();
        std::os::unix::fs::symlink(&target, &path).unwrap();
        assert!(Rendezvous::open(&path).is_err());
        fs::remove_file(&path).unwrap();
        fs::remove_dir_all(&target).unwrap();
    }
}
