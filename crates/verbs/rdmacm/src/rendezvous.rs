//! Where the connection managers of one user find each other: names in a directory that
//! only this user can write.
//!
//! Every bound identifier has an entry, a file whose name says network namespace, port
//! space, port, address and sharing flags, and whose lock says that somebody lives: the
//! kernel releases it at death. A listener's socket stands beside its entry, with
//! `.sock` appended. Claiming happens under the lock of the file `cm.lock`, which makes
//! the check of the others' names and the making of one's own one step. Looking for a
//! listener takes no lock; an entry of the dead has a socket that refuses.

use std::fs::{self, DirBuilder, File, OpenOptions, TryLockError};
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::os::fd::{AsRawFd, RawFd};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use sluice_sys::reclaim::reclaim;
use sluice_sys::unix::{self, Fd};

use super::address::Address;
use super::{Errno, errno_of};

/// How long a claim waits for another process that is inside its own claim.
const LOCK_WAIT: Duration = Duration::from_secs(5);
/// Ports that are picked when a program asks for any: Linux's default ephemeral range.
const EPHEMERAL: std::ops::Range<u32> = 32768..61000;
/// Entries of one directory that are looked at. More of them are a defect or an attack
/// by oneself; the rest is not seen.
const ENTRIES_MAX: usize = 1 << 20;

/// Entries that one claim looks at to see whether their process lives.
const SWEEP_MAX: usize = 16;

const FLAG_REUSE: u8 = 1;
const FLAG_FAMILY_ONLY: u8 = 2;

/// The directory, shared by everything that names something in it.
pub struct Rendezvous {
    path: PathBuf,
    /// Names are used through `/proc/self/fd`, so that a long path fits a socket address.
    handle: File,
    netns: Netns,
}

/// Whose 127.0.0.1 is meant.
enum Netns {
    /// That of the calling thread, at the time of the call.
    Current,
    #[cfg(test)]
    Fixed(u64),
}

/// What an entry's name says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Entry {
    netns: u64,
    port_space: u16,
    address: Address,
    flags: u8,
    unique: u64,
}

/// A bound address. Dropping it releases the name.
pub struct Claim {
    directory: Arc<Rendezvous>,
    entry: Entry,
    /// Holds the lock that says the claim lives.
    file: File,
    listening: bool,
}

/// A listener that may answer for a destination.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Candidate(String);

impl Rendezvous {
    /// The directory of this user: `$XDG_RUNTIME_DIR/sluice-verbs` if there is such a directory, or
    /// `/tmp/sluice-<uid>/verbs`. Made if it does not exist.
    pub fn open() -> Result<Arc<Self>, Errno> {
        let path = match std::env::var_os("XDG_RUNTIME_DIR") {
            Some(runtime) if Path::new(&runtime).is_dir() => {
                PathBuf::from(runtime).join("sluice-verbs")
            }
            _ => {
                let parent = PathBuf::from(format!("/tmp/sluice-{}", unix::effective_uid()));
                // Refused below where it cannot be moved.
                let _ = reclaim(&parent);
                make_private(&parent)?;
                parent.join("verbs")
            }
        };
        Self::open_at(&path, Netns::Current)
    }

    fn open_at(path: &Path, netns: Netns) -> Result<Arc<Self>, Errno> {
        make_private(path)?;
        let handle = OpenOptions::new()
            .read(true)
            .custom_flags(libc::O_DIRECTORY)
            .open(path)
            .map_err(|e| errno_of(&e))?;
        Ok(Arc::new(Self {
            path: path.to_owned(),
            handle,
            netns,
        }))
    }

    #[cfg(test)]
    pub fn for_test(path: &Path, netns: u64) -> Arc<Self> {
        use std::os::unix::fs::PermissionsExt;
        fs::set_permissions(path, fs::Permissions::from_mode(0o700)).expect("it is the test's");
        Self::open_at(path, Netns::Fixed(netns)).expect("the test's directory opens")
    }

    fn netns(&self) -> Result<u64, Errno> {
        match self.netns {
            Netns::Current => fs::metadata("/proc/thread-self/ns/net")
                .map(|metadata| metadata.ino())
                .map_err(|e| errno_of(&e)),
            #[cfg(test)]
            Netns::Fixed(number) => Ok(number),
        }
    }

    /// Takes an address for one identifier. Port 0 picks a free one.
    ///
    /// Errors are the kernel's: `EADDRINUSE` when the same address is taken,
    /// `EADDRNOTAVAIL` when one of the two is a wildcard.
    pub fn claim(
        self: &Arc<Self>,
        port_space: u16,
        address: Address,
        reuse: bool,
        family_only: bool,
    ) -> Result<Claim, Errno> {
        let netns = self.netns()?;
        let mut entry = Entry {
            netns,
            port_space,
            address,
            flags: u8::from(reuse) * FLAG_REUSE + u8::from(family_only) * FLAG_FAMILY_ONLY,
            unique: unique(),
        };
        let _lock = self.lock()?;
        let names = self.entries()?;
        let same_space = |other: &Entry| other.netns == netns && other.port_space == port_space;
        if address.port == 0 {
            let taken: Vec<u16> = names
                .iter()
                .filter(|(other, _)| same_space(other))
                .map(|(other, _)| other.address.port)
                .collect();
            let port = free_port(&taken, entry.unique).ok_or(Errno(libc::EADDRNOTAVAIL))?;
            entry.address.port = port;
        }
        // What killed processes left is swept up along the way.
        for (other, _) in names.iter().take(SWEEP_MAX) {
            self.remove_if_dead(other);
        }
        for (other, listening) in &names {
            if same_space(other)
                && other.address.port == entry.address.port
                && let Some(error) = conflict(&entry, other, *listening)
                && !self.remove_if_dead(other)
            {
                return Err(error);
            }
        }
        let file = OpenOptions::new()
            .write(true)
            .create_new(true)
            .mode(0o600)
            .open(self.path.join(entry.name()))
            .map_err(|e| errno_of(&e))?;
        file.try_lock().map_err(|_| Errno::AGAIN)?;
        let claim = Claim {
            directory: Arc::clone(self),
            entry,
            file,
            listening: false,
        };
        farewell::remember(claim.path());
        Ok(claim)
    }

    /// Listeners that may answer for `destination`, the best first: one of this network
    /// namespace bound to the very address, a wildcard one of this namespace, then others.
    /// Listeners of other namespaces must still say whether the address is theirs.
    pub fn listeners(
        &self,
        port_space: u16,
        destination: &Address,
    ) -> Result<Vec<Candidate>, Errno> {
        let netns = self.netns()?;
        let local = destination.is_local();
        let mut found: Vec<(u8, Candidate)> = self
            .entries()?
            .into_iter()
            .filter(|(entry, listening)| {
                *listening
                    && entry.port_space == port_space
                    && entry.address.port == destination.port
                    && (entry.netns == netns) == local
                    && entry.answers_for(destination)
            })
            .map(|(entry, _)| {
                let rank = u8::from(entry.address.is_any())
                    + u8::from(!entry.address.same_family(destination));
                (rank, Candidate(entry.name()))
            })
            .collect();
        found.sort_by_key(|(rank, _)| *rank);
        Ok(found.into_iter().map(|(_, candidate)| candidate).collect())
    }

    /// Whether a process of this user that lives listens for `destination`, an address of this
    /// network namespace.
    pub fn somebody_listens(&self, port_space: u16, destination: &Address) -> bool {
        let candidates = self.listeners(port_space, destination).unwrap_or_default();
        candidates.iter().any(|Candidate(name)| {
            // It holds the lock while it lives.
            File::open(self.path.join(name)).is_ok_and(|entry| entry.try_lock_shared().is_err())
        })
    }

    /// Connects to a listener. `ECONNREFUSED` and `ENOENT`: it is dead. `EAGAIN`: it has
    /// more connections waiting than it takes. Does not block.
    pub fn connect(&self, candidate: &Candidate) -> Result<Fd, Errno> {
        let socket = unix::seqpacket()?;
        unix::connect(socket.raw(), &self.socket_path(&candidate.0))?;
        Ok(socket)
    }

    fn socket_path(&self, name: &str) -> Vec<u8> {
        format!("/proc/self/fd/{}/{name}.sock", self.handle.as_raw_fd()).into_bytes()
    }

    /// Every entry, and whether it has a listener's socket beside it.
    fn entries(&self) -> Result<Vec<(Entry, bool)>, Errno> {
        let mut entries = Vec::new();
        let mut sockets = std::collections::HashSet::new();
        for item in fs::read_dir(&self.path)
            .map_err(|e| errno_of(&e))?
            .take(ENTRIES_MAX)
        {
            let item = item.map_err(|e| errno_of(&e))?;
            let name = item.file_name();
            let Some(name) = name.to_str() else { continue };
            let (stem, socket) = match name.strip_suffix(".sock") {
                Some(stem) => (stem, true),
                None => (name, false),
            };
            let Some(entry) = Entry::parse(stem) else {
                continue;
            };
            if socket {
                sockets.insert(entry.unique);
            } else {
                entries.push(entry);
            }
        }
        Ok(entries
            .into_iter()
            .map(|entry| (entry, sockets.contains(&entry.unique)))
            .collect())
    }

    /// Call with the directory's lock held: otherwise the entry could be one that is
    /// just being made.
    fn remove_if_dead(&self, entry: &Entry) -> bool {
        let path = self.path.join(entry.name());
        let dead = match File::open(&path) {
            Ok(file) => file.try_lock().is_ok(),
            Err(error) => error.kind() == io::ErrorKind::NotFound,
        };
        if dead {
            // Somebody who removes it first wanted the same.
            let _ = fs::remove_file(self.path.join(format!("{}.sock", entry.name())));
            let _ = fs::remove_file(path);
        }
        dead
    }

    fn lock(&self) -> Result<File, Errno> {
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .mode(0o600)
            .open(self.path.join("cm.lock"))
            .map_err(|e| errno_of(&e))?;
        let deadline = Instant::now() + LOCK_WAIT;
        loop {
            match file.try_lock() {
                Ok(()) => return Ok(file),
                Err(TryLockError::WouldBlock) if Instant::now() < deadline => {
                    std::thread::sleep(Duration::from_millis(1));
                }
                Err(TryLockError::WouldBlock) => return Err(Errno(libc::ETIMEDOUT)),
                Err(TryLockError::Error(error)) => return Err(errno_of(&error)),
            }
        }
    }
}

impl Claim {
    pub fn address(&self) -> Address {
        self.entry.address
    }

    pub fn port_space(&self) -> u16 {
        self.entry.port_space
    }

    /// Whether an IPv6 wildcard stands for IPv6 only.
    pub fn family_only(&self) -> bool {
        self.entry.flags & FLAG_FAMILY_ONLY != 0
    }

    pub fn fd(&self) -> RawFd {
        self.file.as_raw_fd()
    }

    /// Makes the claim a listener and gives its socket, which takes up to `backlog`
    /// connections that nobody has accepted yet.
    ///
    /// Sharing an address ends here, as in the kernel: whoever listens must not conflict
    /// with another identifier, whatever both said about sharing.
    pub fn listen(&mut self, backlog: i32) -> Result<Fd, Errno> {
        let _lock = self.directory.lock()?;
        let alone = Entry {
            flags: self.entry.flags & !FLAG_REUSE,
            ..self.entry
        };
        for (other, listening) in self.directory.entries()? {
            if other.unique != alone.unique
                && other.netns == alone.netns
                && other.port_space == alone.port_space
                && other.address.port == alone.address.port
                && let Some(error) = conflict(&alone, &other, listening)
                && !self.directory.remove_if_dead(&other)
            {
                return Err(error);
            }
        }
        let socket = unix::seqpacket()?;
        let name = self.entry.name();
        unix::bind(socket.raw(), &self.directory.socket_path(&name))?;
        self.listening = true;
        unix::listen(socket.raw(), backlog)?;
        Ok(socket)
    }

    /// Whether the listener with this claim answers for `destination`.
    pub fn answers_for(&self, destination: &Address) -> bool {
        self.entry.answers_for(destination) && destination.is_local()
    }
}

impl Claim {
    fn path(&self) -> PathBuf {
        self.directory.path.join(self.entry.name())
    }
}

impl Drop for Claim {
    fn drop(&mut self) {
        let path = self.path();
        farewell::forget(&path);
        remove(&path);
    }
}

/// Removes an entry, and the socket of a listener beside it.
fn remove(path: &Path) {
    let mut socket = path.to_path_buf().into_os_string();
    socket.push(".sock");
    let _ = fs::remove_file(socket);
    let _ = fs::remove_file(path);
}

/// Programs may end without destroying their identifiers. The kernel would release their
/// addresses; here the end of the process does.
mod farewell {
    use std::path::{Path, PathBuf};
    use std::sync::{Mutex, Once, PoisonError};

    /// Entries of this process, and the process: a forked child ends as well, and its parent's
    /// entries are not its own.
    static ENTRIES: Mutex<Vec<(u32, PathBuf)>> = Mutex::new(Vec::new());

    pub fn remember(path: PathBuf) {
        static HANDLER: Once = Once::new();
        HANDLER.call_once(|| {
            // SAFETY: the handler is a function of this library that takes nothing.
            unsafe { libc::atexit(leave) };
        });
        let mut entries = ENTRIES.lock().unwrap_or_else(PoisonError::into_inner);
        entries.push((std::process::id(), path));
    }

    pub fn forget(path: &Path) {
        let mut entries = ENTRIES.lock().unwrap_or_else(PoisonError::into_inner);
        entries.retain(|(_, known)| known != path);
    }

    extern "C" fn leave() {
        // In a child of a fork the lock may be held by a thread that is not there.
        let Ok(entries) = ENTRIES.try_lock() else {
            return;
        };
        for (pid, path) in entries.iter() {
            if *pid == std::process::id() {
                super::remove(path);
            }
        }
    }
}

impl Entry {
    fn name(&self) -> String {
        let address = match self.address.ip {
            IpAddr::V4(ip) => format!("4{:08x}", u32::from(ip)),
            IpAddr::V6(ip) => format!("6{:032x}", u128::from(ip)),
        };
        format!(
            "cm-{:x}-{:04x}-{:04x}-{address}-{}-{:016x}",
            self.netns, self.port_space, self.address.port, self.flags, self.unique
        )
    }

    fn parse(name: &str) -> Option<Self> {
        let mut parts = name.strip_prefix("cm-")?.split('-');
        let netns = u64::from_str_radix(parts.next()?, 16).ok()?;
        let port_space = u16::from_str_radix(parts.next()?, 16).ok()?;
        let port = u16::from_str_radix(parts.next()?, 16).ok()?;
        let address = parts.next()?;
        let ip: IpAddr = if let Some(hex) = address.strip_prefix('4') {
            Ipv4Addr::from(u32::from_str_radix(hex, 16).ok()?).into()
        } else {
            Ipv6Addr::from(u128::from_str_radix(address.strip_prefix('6')?, 16).ok()?).into()
        };
        let flags = parts.next()?.parse().ok()?;
        let unique = u64::from_str_radix(parts.next()?, 16).ok()?;
        let entry = Self {
            netns,
            port_space,
            address: Address::new(ip, port),
            flags,
            unique,
        };
        // One spelling per entry, so that its file is found again by its name.
        (parts.next().is_none() && entry.name() == name).then_some(entry)
    }

    fn answers_for(&self, destination: &Address) -> bool {
        if self.address.is_any() {
            // An IPv6 wildcard takes IPv4 as well, unless the program said otherwise.
            self.address.same_family(destination)
                || (self.address.ip.is_ipv6() && self.flags & FLAG_FAMILY_ONLY == 0)
        } else {
            self.address.ip == destination.ip
        }
    }
}

/// Why `new` cannot stand beside `other`, on the same port: the rules of the kernel's
/// rdma_cm.
fn conflict(new: &Entry, other: &Entry, other_listens: bool) -> Option<Errno> {
    if !other_listens && new.flags & other.flags & FLAG_REUSE != 0 {
        return None;
    }
    let apart = new.flags & other.flags & FLAG_FAMILY_ONLY != 0;
    if apart && !new.address.same_family(&other.address) {
        return None;
    }
    if new.address.is_any() || other.address.is_any() {
        return Some(Errno(libc::EADDRNOTAVAIL));
    }
    (new.address.ip == other.address.ip).then_some(Errno(libc::EADDRINUSE))
}

fn free_port(taken: &[u16], seed: u64) -> Option<u16> {
    let count = EPHEMERAL.end - EPHEMERAL.start;
    let start = (seed % u64::from(count)) as u32;
    (0..count)
        .map(|step| (EPHEMERAL.start + (start + step) % count) as u16)
        .find(|port| !taken.contains(port))
}

/// A number that no other claim on this host has: process, time and count, mixed.
fn unique() -> u64 {
    static COUNT: AtomicU64 = AtomicU64::new(0);
    let count = COUNT.fetch_add(1, Ordering::Relaxed);
    let now = std::time::SystemTime::now()
        .duration_since(std::time::UNIX_EPOCH)
        .map_or(0, |elapsed| elapsed.as_nanos() as u64);
    let mut value = now ^ (u64::from(std::process::id()) << 40) ^ (count << 20);
    // The finaliser of splitmix64, so that ports picked by it are spread.
    value = (value ^ (value >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    value = (value ^ (value >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    value ^ (value >> 31)
}

/// Makes a directory of mode 0700, or checks that it is one and ours.
fn make_private(path: &Path) -> Result<(), Errno> {
    match DirBuilder::new().mode(0o700).create(path) {
        Ok(()) => {}
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
        Err(error) => return Err(errno_of(&error)),
    }
    let metadata = fs::symlink_metadata(path).map_err(|e| errno_of(&e))?;
    let private = metadata.is_dir()
        && metadata.uid() == unix::effective_uid()
        && metadata.mode() & 0o077 == 0;
    private.then_some(()).ok_or(Errno(libc::EACCES))
}

#[cfg(test)]
#[path = "rendezvous_tests.rs"]
mod tests;
