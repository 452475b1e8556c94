//! Waits that cannot be the kernel's own, because a ring decides when they end: sleep in slices,
//! with the timeouts, signals and cancellation of the call that waits (signal(7), pthreads(7)).
#![allow(unsafe_code)]

use crate::clock::now_ns;
use core::sync::atomic::{AtomicU32, Ordering};
use sluice_sys::errno::Errno;
use sluice_sys::raw;
use sluice_sys::unix::get_option;
use sluice_waiting::limits::LIMITS;

/// `FUTEX2_SIZE_U32 | FUTEX2_PRIVATE` of `include/uapi/linux/futex.h`.
const FUTEX_FLAGS: u32 = 0x02 | 0x80;

unsafe extern "C" {
    /// Ends the thread if somebody has cancelled it.
    safe fn pthread_testcancel();
}

/// Which of the socket's timeouts bounds the call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SocketTimeout {
    /// `SO_RCVTIMEO`.
    Receive,
    /// `SO_SNDTIMEO`.
    Send,
}

/// The slices of one call.
pub(crate) struct Naps {
    fd: i32,
    timeout: SocketTimeout,
    /// The socket's timeout in nanoseconds, once asked; `u64::MAX` when it has none.
    limit_ns: Option<u64>,
    /// When the first slice began; 0: none has.
    start_ns: u64,
}

impl Naps {
    /// There was no nap yet. The socket is asked for its timeout when that is needed.
    pub fn new(fd: i32, timeout: SocketTimeout) -> Self {
        Self {
            fd,
            timeout,
            limit_ns: None,
            start_ns: 0,
        }
    }

    /// Sleeps for a millisecond.
    ///
    /// Errors: `EAGAIN` when the socket's timeout has passed since the first such sleep. `EINTR`
    /// when a signal came that the kernel's call would return for: one whose handler is without
    /// `SA_RESTART`, and any if the socket has a timeout or the call `has_bytes` to return. May
    /// not return at all: the thread can be cancelled here, so the caller holds no lock.
    pub fn nap(&mut self, has_bytes: bool) -> Result<(), Errno> {
        self.nap_for(LIMITS.slice_ns, has_bytes)
    }

    /// The same for `ns` nanoseconds.
    pub fn nap_for(&mut self, ns: u64, has_bytes: bool) -> Result<(), Errno> {
        let now_ns = now_ns();
        if self.start_ns == 0 {
            self.start_ns = now_ns;
        }
        let limit_ns = self.limit_ns();
        if now_ns - self.start_ns >= limit_ns {
            return Err(Errno::AGAIN);
        }
        pthread_testcancel();
        let result = if has_bytes || limit_ns != u64::MAX {
            sleep(ns)
        } else {
            sleep_through_restarts(ns)
        };
        pthread_testcancel();
        result
    }

    /// The socket's timeout, nanoseconds; `u64::MAX` when it has none.
    pub fn limit_ns(&mut self) -> u64 {
        let (fd, timeout) = (self.fd, self.timeout);
        *self
            .limit_ns
            .get_or_insert_with(|| socket_timeout_ns(fd, timeout).unwrap_or(u64::MAX))
    }
}

/// The timeout that the program has set, nanoseconds.
fn socket_timeout_ns(fd: i32, timeout: SocketTimeout) -> Option<u64> {
    let name = match timeout {
        SocketTimeout::Receive => libc::SO_RCVTIMEO,
        SocketTimeout::Send => libc::SO_SNDTIMEO,
    };
    let mut value = [0_u8; size_of::<libc::timeval>()];
    get_option(fd, libc::SOL_SOCKET, name, &mut value).ok()?;
    let (seconds, micros) = value.split_at(8);
    let seconds = u64::from_ne_bytes(seconds.try_into().ok()?);
    let micros = u64::from_ne_bytes(micros.try_into().ok()?);
    let ns = seconds
        .saturating_mul(1_000_000_000)
        .saturating_add(micros.saturating_mul(1_000));
    (ns > 0).then_some(ns)
}

fn timespec(ns: u64) -> libc::timespec {
    libc::timespec {
        tv_sec: (ns / 1_000_000_000) as i64,
        tv_nsec: (ns % 1_000_000_000) as i64,
    }
}

/// `EINTR` for every signal with a handler.
fn sleep(ns: u64) -> Result<(), Errno> {
    let time = timespec(ns);
    // SAFETY: no descriptors, no mask, and a timespec that lives on this stack.
    let result =
        raw::check(unsafe { raw::syscall5(libc::SYS_ppoll, 0, 0, &raw const time as usize, 0, 0) });
    match result {
        Err(Errno::INTR) => Err(Errno::INTR),
        _ => Ok(()),
    }
}

/// `EINTR` for signals whose handler is without `SA_RESTART`: `futex_waitv`, alone among the
/// calls that sleep for a time, is restarted behind the others.
fn sleep_through_restarts(ns: u64) -> Result<(), Errno> {
    /// `struct futex_waitv` of `include/uapi/linux/futex.h`.
    #[repr(C)]
    struct Waiter {
        value: u64,
        address: u64,
        flags: u32,
        reserved: u32,
    }
    /// Nobody wakes it.
    static WORD: AtomicU32 = AtomicU32::new(0);

    let waiter = Waiter {
        value: u64::from(WORD.load(Ordering::Relaxed)),
        address: WORD.as_ptr() as u64,
        flags: FUTEX_FLAGS,
        reserved: 0,
    };
    let until = timespec(now_ns() + ns);
    // SAFETY: one waiter and one timespec, alive through the call, which only reads them.
    let result = raw::check(unsafe {
        raw::syscall5(
            libc::SYS_futex_waitv,
            &raw const waiter as usize,
            1,
            0,
            &raw const until as usize,
            libc::CLOCK_MONOTONIC as usize,
        )
    });
    match result {
        Err(Errno::INTR) => Err(Errno::INTR),
        Ok(_) | Err(Errno(libc::ETIMEDOUT)) => Ok(()),
        // Before Linux 5.16, or behind a filter of system calls, nobody tells whether the handler
        // wants a restart. Most do.
        Err(_) => {
            let _ = sleep(ns);
            Ok(())
        }
    }
}
