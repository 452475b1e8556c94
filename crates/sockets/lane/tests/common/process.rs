//! Child processes and deadlines.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::mpsc;
use std::time::Duration;

/// What a test that hangs is given before it fails.
pub const PATIENCE: Duration = Duration::from_secs(180);

/// Runs `body` in a thread and fails if it has not ended after [`PATIENCE`].
pub fn bounded<T: Send + 'static>(what: &str, body: impl FnOnce() -> T + Send + 'static) -> T {
    let (done, waiter) = mpsc::channel();
    let thread = std::thread::spawn(move || {
        let _ = done.send(body());
    });
    match waiter.recv_timeout(PATIENCE) {
        Ok(result) => result,
        Err(mpsc::RecvTimeoutError::Timeout) => panic!("{what} hangs"),
        Err(mpsc::RecvTimeoutError::Disconnected) => match thread.join() {
            Err(panic) => std::panic::resume_unwind(panic),
            Ok(()) => unreachable!("the thread sends before it ends"),
        },
    }
}

/// Waits until `condition` holds; fails after [`PATIENCE`].
pub fn wait_for(what: &str, mut condition: impl FnMut() -> bool) {
    let start = std::time::Instant::now();
    while !condition() {
        assert!(start.elapsed() < PATIENCE, "{what} did not come");
        std::thread::sleep(Duration::from_micros(200));
    }
}

/// A child process, killed and reaped when dropped.
pub struct Child {
    pub pid: i32,
}

impl Child {
    /// Forks. The child runs `body` and exits with its answer; it must not rely on threads.
    pub fn fork(body: impl FnOnce() -> i32) -> Self {
        // SAFETY: the child runs `body` and then leaves by _exit.
        let pid = unsafe { libc::fork() };
        assert!(pid >= 0, "fork: {}", super::last_errno());
        if pid == 0 {
            sluice_lane::lock::forget_thread();
            let body = std::panic::AssertUnwindSafe(body);
            let code = std::panic::catch_unwind(body).unwrap_or(101);
            // SAFETY: ends the process without running the parent's exit handlers.
            unsafe { libc::_exit(code) };
        }
        Self { pid }
    }

    /// SIGKILL. The process stays a zombie until it is reaped.
    pub fn kill(&self) {
        // SAFETY: our own child, not reaped yet.
        unsafe { libc::kill(self.pid, libc::SIGKILL) };
    }

    /// Waits until the process is dead, without reaping it.
    pub fn wait_dead(&self) {
        // SAFETY: waitid writes one siginfo_t, which zeroes are a valid value of.
        unsafe {
            let mut info: libc::siginfo_t = std::mem::zeroed();
            let ret = libc::waitid(
                libc::P_PID,
                self.pid as u32,
                &raw mut info,
                libc::WEXITED | libc::WNOWAIT,
            );
            assert_eq!(ret, 0, "waitid: {}", super::last_errno());
        }
    }

    /// Waits for the end and gives the exit code; fails if it hangs.
    pub fn join(mut self) -> i32 {
        let mut status = 0;
        super::process::wait_for("the end of the child", || {
            // SAFETY: our own child; the kernel writes one int.
            let ret = unsafe { libc::waitpid(self.pid, &raw mut status, libc::WNOHANG) };
            assert!(ret >= 0, "waitpid: {}", super::last_errno());
            ret == self.pid
        });
        self.pid = 0;
        assert!(libc::WIFEXITED(status), "the child died of a signal");
        libc::WEXITSTATUS(status)
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        if self.pid != 0 {
            self.kill();
            // SAFETY: our own child.
            unsafe { libc::waitpid(self.pid, std::ptr::null_mut(), 0) };
        }
    }
}

/// A word that forks share.
pub fn shared_word() -> &'static AtomicU32 {
    // SAFETY: zeroed memory that is never unmapped.
    unsafe { AtomicU32::from_ptr(super::shared_memory(4096).as_ptr().cast()) }
}

/// Counts one up and tells what was there.
pub fn tick(word: &AtomicU32) -> u32 {
    word.fetch_add(1, Ordering::SeqCst)
}

/// A small generator of random numbers (xorshift), seeded by hand so that failures repeat.
pub struct Random(u64);

impl Random {
    pub fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    pub fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    /// A number below `limit`.
    pub fn below(&mut self, limit: u64) -> u64 {
        (self.next() >> 11) % limit
    }
}
