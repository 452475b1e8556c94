//! Why an interface cannot be opened, and what to do about it.

use core::fmt;
use std::io;

use sluice_sys::errno::Errno;

/// Why there are no AF_XDP sockets. Whoever gets it can still use UDP sockets.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum OpenError {
    /// There is no such interface in this network namespace.
    NoInterface {
        /// As it was asked for.
        interface: String,
    },
    /// A capability is missing.
    NotPermitted {
        /// What the kernel refused: "to …".
        what: &'static str,
        /// Which of CAP_NET_ADMIN, CAP_NET_RAW, CAP_BPF and CAP_PERFMON this process does not
        /// have. Empty in a user namespace, where it has them but they do not count.
        missing: Vec<&'static str>,
    },
    /// Somebody else's XDP program is attached, and stays.
    Attached {
        /// Where.
        interface: String,
    },
    /// Another AF_XDP socket is bound to the queue.
    QueueBusy {
        /// Of which interface.
        interface: String,
        /// Counted from 0.
        queue: u32,
    },
    /// The packet memory does not fit the limit of locked memory.
    LockedMemory {
        /// Size of the memory of one queue.
        bytes: usize,
        /// The limit, for all that this user has locked.
        limit: u64,
    },
    /// The kernel lacks something.
    Kernel {
        /// What, and since when Linux has it.
        lacks: &'static str,
    },
    /// An option has no sense.
    Options {
        /// Which, and what it may be.
        why: &'static str,
    },
    /// The verifier refused the program.
    Verifier {
        /// Its last words.
        log: String,
        /// What the system call gave.
        errno: i32,
    },
    /// A system call failed in a way that is not expected.
    System {
        /// Which.
        call: &'static str,
        /// What it gave.
        errno: i32,
    },
}

impl OpenError {
    pub(crate) fn system(call: &'static str) -> impl Fn(Errno) -> Self {
        move |errno| Self::System {
            call,
            errno: errno.0,
        }
    }
}

impl fmt::Display for OpenError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoInterface { interface } => {
                write!(
                    f,
                    "there is no network interface {interface} in this namespace"
                )
            }
            Self::NotPermitted { what, missing } if missing.is_empty() => write!(
                f,
                "not permitted {what}: the capabilities of this user namespace do not count \
                 for it; run as root of the host"
            ),
            Self::NotPermitted { what, missing } => write!(
                f,
                "not permitted {what}: this process lacks {}; run it as root, or with \
                 CAP_NET_ADMIN, CAP_NET_RAW, CAP_BPF and CAP_PERFMON",
                missing.join(" and ")
            ),
            Self::Attached { interface } => write!(
                f,
                "another XDP program is attached to {interface}, perhaps that of another Sluice \
                 process; 'ip link show {interface}' gives its number"
            ),
            Self::QueueBusy { interface, queue } => write!(
                f,
                "another process has an AF_XDP socket on queue {queue} of {interface}"
            ),
            Self::LockedMemory { bytes, limit } => write!(
                f,
                "{bytes} bytes of packet memory do not fit the limit of locked memory, {limit} \
                 bytes for all of this user's processes; raise it ('ulimit -l') or give \
                 CAP_IPC_LOCK"
            ),
            Self::Kernel { lacks } => write!(f, "this kernel lacks {lacks}"),
            Self::Options { why } => f.write_str(why),
            Self::Verifier { log, errno } => {
                let last = log.lines().rev().take(4).collect::<Vec<_>>();
                let last = last.into_iter().rev().collect::<Vec<_>>().join("; ");
                let error = io::Error::from_raw_os_error(*errno);
                write!(f, "the kernel refuses the XDP program: {error}: {last}")
            }
            Self::System { call, errno } => {
                write!(f, "{call}: {}", io::Error::from_raw_os_error(*errno))
            }
        }
    }
}

impl std::error::Error for OpenError {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_missing_is_said() {
        let missing = |missing: &[&'static str]| {
            OpenError::NotPermitted {
                what: "to open an AF_XDP socket",
                missing: missing.to_vec(),
            }
            .to_string()
        };
        assert_eq!(
            missing(&["CAP_NET_RAW", "CAP_BPF"]),
            "not permitted to open an AF_XDP socket: this process lacks CAP_NET_RAW and CAP_BPF; \
             run it as root, or with CAP_NET_ADMIN, CAP_NET_RAW, CAP_BPF and CAP_PERFMON"
        );
        assert!(missing(&[]).contains("user namespace"));
    }

    #[test]
    fn the_verifier_s_last_lines_are_given() {
        let error = OpenError::Verifier {
            log: "a\nb\nc\nd\ninvalid access to packet".into(),
            errno: libc::EACCES,
        };
        let text = error.to_string();
        assert!(
            text.ends_with("b; c; d; invalid access to packet"),
            "{text}"
        );
    }
}
