//! Signals, panics and what must not outlive this process.
//!
//! A signal only raises a flag and wakes whoever waits; the main thread then leaves through its
//! ordinary error path, whose destructors end the children and remove the scratch folder. A
//! panic does not unwind in release builds, so the panic hook does both itself.

#![allow(unsafe_code)]

use std::fs;
use std::io;
use std::os::fd::{FromRawFd, OwnedFd, RawFd};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicI32, Ordering};
use std::sync::{Mutex, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use super::error::{BenchError, Result};

/// The most process groups alive at once: the daemon, a server, a proxy, a client and room.
const GROUPS_MAX: usize = 16;

static GROUPS: [AtomicI32; GROUPS_MAX] = [const { AtomicI32::new(0) }; GROUPS_MAX];
static SIGNAL: AtomicI32 = AtomicI32::new(0);
static WAKE_WRITE: AtomicI32 = AtomicI32::new(-1);
static WAKE_READ: AtomicI32 = AtomicI32::new(-1);
static SCRATCH: OnceLock<Mutex<Option<PathBuf>>> = OnceLock::new();

extern "C" fn on_signal(signal: libc::c_int) {
    SIGNAL.store(signal, Ordering::SeqCst);
    let fd = WAKE_WRITE.load(Ordering::SeqCst);
    // SAFETY: `write` is async-signal-safe, the byte outlives the call, and errno is put back
    // for the code that was interrupted.
    unsafe {
        let errno = *libc::__errno_location();
        libc::write(fd, c"!".as_ptr().cast(), 1);
        *libc::__errno_location() = errno;
    }
}

/// Takes over SIGINT, SIGTERM and SIGHUP, ignores SIGPIPE, and installs the panic hook.
///
/// To be called once, before the first child is started.
pub fn install() -> io::Result<()> {
    let mut ends: [RawFd; 2] = [-1; 2];
    // SAFETY: `ends` has room for the two descriptors that the call writes.
    if unsafe { libc::pipe2(ends.as_mut_ptr(), libc::O_CLOEXEC | libc::O_NONBLOCK) } != 0 {
        return Err(io::Error::last_os_error());
    }
    WAKE_READ.store(ends[0], Ordering::SeqCst);
    WAKE_WRITE.store(ends[1], Ordering::SeqCst);
    for signal in [libc::SIGINT, libc::SIGTERM, libc::SIGHUP] {
        set_handler(signal, on_signal as *const () as libc::sighandler_t)?;
    }
    // A closed pipe behind our output must not end us before the children are gone.
    set_handler(libc::SIGPIPE, libc::SIG_IGN)?;
    let previous = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |info| {
        kill_all_groups();
        remove_scratch();
        previous(info);
    }));
    Ok(())
}

fn set_handler(signal: libc::c_int, handler: libc::sighandler_t) -> io::Result<()> {
    // SAFETY: an all-zero sigaction is valid (empty mask, no flags: without SA_RESTART waits end
    // with EINTR); the handler is SIG_IGN or a function that only does async-signal-safe work.
    let status = unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = handler;
        libc::sigaction(signal, &action, std::ptr::null_mut())
    };
    if status == 0 {
        Ok(())
    } else {
        Err(io::Error::last_os_error())
    }
}

/// Fails if the user has asked to stop.
pub fn check() -> Result<()> {
    match SIGNAL.load(Ordering::SeqCst) {
        0 => Ok(()),
        signal => Err(BenchError::Interrupted(signal)),
    }
}

/// Waits until `fd` is readable, a signal asks to stop, or `timeout_ms` have passed.
///
/// Returns whether `fd` is readable.
pub fn wait_readable(fd: RawFd, timeout_ms: i32) -> Result<bool> {
    check()?;
    let mut set = [fd, WAKE_READ.load(Ordering::SeqCst)].map(|fd| libc::pollfd {
        fd,
        events: libc::POLLIN,
        revents: 0,
    });
    // SAFETY: the array holds exactly the two entries that the count names.
    let ready = unsafe { libc::poll(set.as_mut_ptr(), 2, timeout_ms) };
    let error = io::Error::last_os_error();
    check()?;
    if ready < 0 && error.kind() != io::ErrorKind::Interrupted {
        return Err(BenchError::io("wait for a program", &error));
    }
    Ok(ready > 0 && set[0].revents != 0)
}

/// Waits for `timeout_ms`, or fails at once when a signal asks to stop.
pub fn wait_signal(timeout_ms: i32) -> Result<()> {
    // poll ignores negative descriptors.
    wait_readable(-1, timeout_ms).map(|_| ())
}

/// Lets `duration` pass; only a signal that asks to stop ends it early.
pub fn pause(duration: Duration) -> Result<()> {
    let until = Instant::now() + duration;
    loop {
        let left = until.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Ok(());
        }
        let left_ms = i32::try_from(left.as_millis()).unwrap_or(i32::MAX);
        wait_signal(left_ms.saturating_add(1))?;
    }
}

/// A descriptor that is readable once process `pid`, a child of ours, has ended.
pub fn pidfd(pid: i32) -> io::Result<OwnedFd> {
    // SAFETY: pidfd_open takes two integers and returns a new descriptor (CLOEXEC) or -1.
    let fd = unsafe { libc::syscall(libc::SYS_pidfd_open, pid, 0) };
    let Some(fd) = RawFd::try_from(fd).ok().filter(|fd| *fd >= 0) else {
        return Err(io::Error::last_os_error());
    };
    // SAFETY: the kernel has just given us this descriptor; nobody else owns it.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// Remembers a process group until [`forget_group`], so that a panic ends it.
///
/// Fails when more groups than this program ever uses are alive.
pub fn remember_group(group: i32) -> io::Result<()> {
    let free = GROUPS.iter().find(|slot| {
        slot.compare_exchange(0, group, Ordering::SeqCst, Ordering::SeqCst)
            .is_ok()
    });
    match free {
        Some(_) => Ok(()),
        None => Err(io::Error::other("too many programs at once")),
    }
}

/// Forgets a process group whose leader has been waited for.
pub fn forget_group(group: i32) {
    for slot in &GROUPS {
        let _ = slot.compare_exchange(group, 0, Ordering::SeqCst, Ordering::SeqCst);
    }
}

/// Sends `signal` to every process of a group that [`remember_group`] holds.
pub fn signal_group(group: i32, signal: i32) {
    if group <= 1 {
        return;
    }
    // SAFETY: kill takes two integers. The leader has not been waited for, so the number cannot
    // have been given to somebody else. A group that has just ended is no error.
    unsafe { libc::kill(-group, signal) };
}

fn kill_all_groups() {
    for slot in &GROUPS {
        signal_group(slot.load(Ordering::SeqCst), libc::SIGKILL);
    }
}

fn scratch_slot() -> &'static Mutex<Option<PathBuf>> {
    SCRATCH.get_or_init(|| Mutex::new(None))
}

fn remove_scratch() {
    let path = scratch_slot()
        .lock()
        .unwrap_or_else(PoisonError::into_inner)
        .take();
    if let Some(path) = path {
        // Best effort: there is nobody to tell, and the folder is in the temporary directory.
        let _ = fs::remove_dir_all(path);
    }
}

/// The folder of one run: configuration, sockets and output of the programs. Removed on drop and
/// on panic.
#[derive(Debug)]
pub struct Scratch {
    path: PathBuf,
}

impl Scratch {
    /// Makes a new folder in the temporary directory. Programs that give up their user (nginx
    /// workers) must be able to read below it, so it is 0755.
    pub fn create() -> Result<Self> {
        let mut template = std::env::temp_dir()
            .join("sluice-bench.XXXXXX")
            .into_os_string()
            .into_encoded_bytes();
        template.push(0);
        // SAFETY: the buffer is writable and ends in "XXXXXX" and a zero byte.
        let made = unsafe { libc::mkdtemp(template.as_mut_ptr().cast()) };
        if made.is_null() {
            let error = io::Error::last_os_error();
            return Err(BenchError::io(
                "make a folder in the temporary directory",
                &error,
            ));
        }
        template.pop();
        let path = PathBuf::from(String::from_utf8_lossy(&template).into_owned());
        *scratch_slot()
            .lock()
            .unwrap_or_else(PoisonError::into_inner) = Some(path.clone());
        let readable = <fs::Permissions as std::os::unix::fs::PermissionsExt>::from_mode(0o755);
        fs::set_permissions(&path, readable)
            .map_err(|error| BenchError::io("open the scratch folder to workers", &error))?;
        Ok(Self { path })
    }

    pub fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let mut slot = scratch_slot()
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        slot.take_if(|path| *path == self.path);
        drop(slot);
        // Best effort, as on panic.
        let _ = fs::remove_dir_all(&self.path);
    }
}

/// Prepares the calling process, which is about to execute a program: it gets SIGTERM when this
/// process dies by something that no handler sees, and the signals that we changed are back.
///
/// To be called between fork and exec.
pub fn prepare_child(parent: i32) -> io::Result<()> {
    // SAFETY: prctl, getppid and signal are async-signal-safe and take integers here.
    unsafe {
        libc::signal(libc::SIGPIPE, libc::SIG_DFL);
        if libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGTERM) != 0 {
            return Err(io::Error::last_os_error());
        }
        // The parent may have died before the request was in force.
        if libc::getppid() != parent {
            return Err(io::Error::from_raw_os_error(libc::ECANCELED));
        }
    }
    Ok(())
}

/// Raises the number of descriptors that children may open to the most that is allowed.
///
/// Returns the limit in force.
pub fn raise_descriptor_limit() -> u64 {
    let mut limit = libc::rlimit {
        rlim_cur: 0,
        rlim_max: 0,
    };
    // SAFETY: both calls read or write exactly the structure that they are given.
    unsafe {
        if libc::getrlimit(libc::RLIMIT_NOFILE, &mut limit) == 0 && limit.rlim_cur < limit.rlim_max
        {
            let raised = libc::rlimit {
                rlim_cur: limit.rlim_max,
                ..limit
            };
            if libc::setrlimit(libc::RLIMIT_NOFILE, &raised) == 0 {
                return raised.rlim_cur;
            }
        }
    }
    limit.rlim_cur
}

/// CPU time, user and system, that process `pid` has used with all its threads, in nanoseconds.
///
/// Its own clock is exact; the ticks in `/proc/PID/stat` are 10 ms. `None` if it has ended.
pub fn process_cpu_ns(pid: i32) -> Option<u64> {
    let mut clock: libc::clockid_t = 0;
    let mut time = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: both calls write only the variables that they are given.
    let known = unsafe {
        libc::clock_getcpuclockid(pid, &mut clock) == 0
            && libc::clock_gettime(clock, &mut time) == 0
    };
    if !known {
        return None;
    }
    let seconds = u64::try_from(time.tv_sec).ok()?;
    let nanos = u64::try_from(time.tv_nsec).ok()?;
    Some(seconds * 1_000_000_000 + nanos)
}
