//! Whether seccomp lets this process have lanes.
//!
//! A filter that was there before `sluice run`, such as a container's, is like a property of the
//! machine: `sluice run` has seen that it kills nobody for the calls of this library. Any further
//! filter was made for this very program, or by it, by somebody who knew only the calls that the
//! program makes itself; a call of ours could end it.
#![allow(unsafe_code)]

use crate::own_status;
use core::ffi::CStr;
use core::fmt;
use sluice_sys::errno::Errno;
use sluice_sys::unix;
use sluice_sys::{memfd, raw};

/// How many filters there were when `sluice run` tried them; anything but a number: none was.
pub const FILTERS_VARIABLE: &CStr = c"SLUICE_SECCOMP_FILTERS";

/// What seccomp means for this process, as far as it can be known at its start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Standing {
    /// No filter, or only ones that let the library's calls through.
    Open,
    /// There are filters, `now` of them, and nobody has said that some may be tried.
    Untried { now: u32 },
    /// Some came after `sluice run` saw `before` of them.
    Added { now: u32, before: u32 },
    /// They refuse this call.
    Refuses(&'static str),
    /// There are some, and `/proc` does not say how many.
    Unknown,
}

impl Standing {
    /// Looks at this process. `trusted`: the filters that `sluice run` has tried.
    pub fn look(trusted: Option<u32>) -> Standing {
        // SAFETY: prctl with PR_GET_SECCOMP takes and returns numbers.
        let mode =
            unsafe { raw::syscall5(libc::SYS_prctl, libc::PR_GET_SECCOMP as usize, 0, 0, 0, 0) };
        // EINVAL: a kernel without seccomp. Another error is a filter's own.
        if mode == 0 || mode == -(libc::EINVAL as isize) {
            return Standing::Open;
        }
        match Standing::of_filters(count_filters(), trusted) {
            Standing::Open => refused_call().map_or(Standing::Open, Standing::Refuses),
            other => other,
        }
    }

    /// Before the filters are tried.
    fn of_filters(now: Option<u32>, trusted: Option<u32>) -> Standing {
        match (now, trusted) {
            (None, _) => Standing::Unknown,
            (Some(now), Some(before)) if now <= before => Standing::Open,
            (Some(now), None | Some(0)) => Standing::Untried { now },
            (Some(now), Some(before)) => Standing::Added { now, before },
        }
    }

    /// Whether the library may make its calls.
    pub fn allows_lanes(self) -> bool {
        self == Standing::Open
    }
}

impl fmt::Display for Standing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Open => f.write_str("lanes"),
            Self::Untried { now } => write!(
                f,
                "no lanes: {now} seccomp filter(s) that 'sluice run' has not tried"
            ),
            Self::Added { now, before } => write!(
                f,
                "no lanes: {now} seccomp filter(s), {before} when 'sluice run' started"
            ),
            Self::Refuses(call) => write!(f, "no lanes: a seccomp filter refuses {call}"),
            Self::Unknown => f.write_str("no lanes: seccomp filters that /proc does not count"),
        }
    }
}

/// How many filters this process has.
fn count_filters() -> Option<u32> {
    own_status::field(b"Seccomp_filters:")
}

/// The first call of those that lanes need which does not reach the kernel. Each is made as it
/// will be, on nothing: the kernel's answer to that is known, so any other one is a filter's.
///
/// A filter that kills cannot be found out in this way; `sluice run` starts a process for it.
fn refused_call() -> Option<&'static str> {
    refused_without_descriptor()
        .or_else(refused_with_one)
        .or_else(|| {
            try_rare_calls();
            None
        })
}

/// Calls that are made now and then, and done without where a filter refuses them. One that kills has
/// to do so in the process that `sluice run` has started for it.
fn try_rare_calls() {
    let call = |number: i64, a: i32, b: i32, c: i32| {
        // SAFETY: wrong descriptors, paths and kinds: the kernel fails before it looks at an address.
        unsafe { raw::syscall5(number, raw::int(a), raw::int(b), raw::int(c), 0, 0) };
    };
    let tcp = libc::IPPROTO_TCP;
    call(libc::SYS_pidfd_open, -1, 0, 0);
    call(libc::SYS_waitid, -1, 0, 0);
    call(libc::SYS_shutdown, -1, libc::SHUT_RDWR, 0);
    call(libc::SYS_bind, -1, 0, 0);
    call(libc::SYS_recvfrom, -1, 0, 0);
    call(libc::SYS_statfs, 0, 0, 0);
    call(libc::SYS_getsockopt, -1, tcp, libc::TCP_NOTSENT_LOWAT);
    call(libc::SYS_setsockopt, -1, tcp, libc::TCP_NOTSENT_LOWAT);
    call(libc::SYS_fcntl, -1, libc::F_SETLK, 0);
    call(libc::SYS_getdents64, -1, 0, 0);
    call(libc::SYS_readlinkat, -1, 0, 0);
    call(libc::SYS_dup3, -1, -1, 0);
    // A socket of sock_diag leaves no trace, if it may be made.
    let _ = sluice_sys::sock_diag::Diag::open_unproven();
}

fn refused_without_descriptor() -> Option<&'static str> {
    let call = |number: i64, a: i32, b: usize, c: usize, d: usize| {
        // SAFETY: no descriptor -1 exists, so that the kernel fails before it looks at an
        // address; `poll` with no entries and `sched_yield` touch no memory.
        unsafe { raw::syscall5(number, raw::int(a), b, c, d, 0) }
    };
    const BAD: isize = -(libc::EBADF as isize);
    let seals = memfd::SEAL_SHRINK as usize;
    let tcp = libc::IPPROTO_TCP as usize;
    let close_on_exec = libc::F_DUPFD_CLOEXEC as usize;
    let attempts = [
        ("ftruncate", call(libc::SYS_ftruncate, -1, 0, 0, 0), BAD),
        ("fstat", call(libc::SYS_fstat, -1, 0, 0, 0), BAD),
        ("fstatfs", call(libc::SYS_fstatfs, -1, 0, 0, 0), BAD),
        (
            "fcntl (F_ADD_SEALS)",
            call(libc::SYS_fcntl, -1, libc::F_ADD_SEALS as usize, seals, 0),
            BAD,
        ),
        (
            "fcntl (F_GET_SEALS)",
            call(libc::SYS_fcntl, -1, libc::F_GET_SEALS as usize, 0, 0),
            BAD,
        ),
        (
            "fcntl (F_DUPFD_CLOEXEC)",
            call(libc::SYS_fcntl, -1, close_on_exec, 0, 0),
            BAD,
        ),
        ("connect", call(libc::SYS_connect, -1, 0, 0, 0), BAD),
        ("sendmsg", call(libc::SYS_sendmsg, -1, 0, 0, 0), BAD),
        ("recvmsg", call(libc::SYS_recvmsg, -1, 0, 0, 0), BAD),
        ("sendto", call(libc::SYS_sendto, -1, 0, 0, 0), BAD),
        (
            "getsockopt (TCP_INFO)",
            call(libc::SYS_getsockopt, -1, tcp, libc::TCP_INFO as usize, 0),
            BAD,
        ),
        (
            "setsockopt (TCP_NODELAY)",
            call(libc::SYS_setsockopt, -1, tcp, libc::TCP_NODELAY as usize, 0),
            BAD,
        ),
        (
            "ioctl (FIONREAD)",
            call(libc::SYS_ioctl, -1, libc::FIONREAD as usize, 0, 0),
            BAD,
        ),
        (
            "ioctl (TIOCOUTQ)",
            call(libc::SYS_ioctl, -1, libc::TIOCOUTQ as usize, 0, 0),
            BAD,
        ),
        ("poll", call(libc::SYS_poll, 0, 0, 0, 0), 0),
        ("sched_yield", call(libc::SYS_sched_yield, 0, 0, 0, 0), 0),
        ("process_vm_readv", read_own_byte(), 1),
    ];
    let refused = attempts.iter().find(|(_, got, right)| got != right);
    refused.map(|(name, _, _)| *name)
}

/// Reads a byte of this process as if of another one.
fn read_own_byte() -> isize {
    let (byte, mut copy) = (1_u8, 0_u8);
    let local = libc::iovec {
        iov_base: (&raw mut copy).cast(),
        iov_len: 1,
    };
    let remote = libc::iovec {
        iov_base: (&raw const byte).cast_mut().cast(),
        iov_len: 1,
    };
    // SAFETY: the kernel reads one byte of this stack and writes another one.
    unsafe {
        raw::syscall6(
            libc::SYS_process_vm_readv,
            crate::this_process::pid() as usize,
            &raw const local as usize,
            1,
            &raw const remote as usize,
            1,
            0,
        )
    }
}

/// Calls that filters tell apart by more than their number, or that give a descriptor.
fn refused_with_one() -> Option<&'static str> {
    // Without descriptors or memory lanes fail later, each for itself.
    let is_refused = |error: &Errno| {
        !matches!(
            error.0,
            libc::EMFILE | libc::ENFILE | libc::ENOMEM | libc::ENOBUFS
        )
    };
    if unix::seqpacket().is_err_and(|error| is_refused(&error)) {
        return Some("socket (AF_UNIX)");
    }
    if unix::seqpacket_pair().is_err_and(|error| is_refused(&error)) {
        return Some("socketpair");
    }
    match memfd::create(c"sluice-probe") {
        Err(error) => is_refused(&error).then_some("memfd_create"),
        Ok(memory) => {
            let shared = sluice_shmem::mapping::Mapping::shared(
                memory.raw(),
                1,
                sluice_shmem::mapping::Access::ReadOnly,
            );
            shared
                .is_err_and(|error| is_refused(&error))
                .then_some("mmap of shared memory")
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_more_filters_than_before_confine() {
        let of = Standing::of_filters;
        assert_eq!(of(Some(1), Some(1)), Standing::Open);
        assert_eq!(of(Some(1), Some(4)), Standing::Open);
        assert_eq!(of(Some(2), Some(1)), Standing::Added { now: 2, before: 1 });
        assert_eq!(of(Some(1), None), Standing::Untried { now: 1 });
        assert_eq!(of(Some(1), Some(0)), Standing::Untried { now: 1 });
        assert_eq!(of(None, Some(9)), Standing::Unknown);
    }

    #[test]
    fn a_process_without_filters_is_refused_nothing() {
        // The test itself may run in a container whose filter refuses something.
        if matches!(count_filters(), None | Some(0)) {
            assert_eq!(refused_call(), None);
            assert_eq!(Standing::look(None), Standing::Open);
        }
    }
}
