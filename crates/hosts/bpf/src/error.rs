//! Why a program is not attached or a map not changed, and what to do about it.

use core::fmt;
use std::io;
use std::path::PathBuf;

use sluice_sys::capability::{self, Capability};
use sluice_sys::errno::Errno;

/// Why something of this crate does not work. The connections of programs are never touched by
/// that: they go on by TCP.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Error {
    /// A capability is missing.
    NotPermitted {
        /// What the kernel refused: "to …".
        what: &'static str,
        /// Which of CAP_BPF, CAP_NET_ADMIN and, where it is needed, CAP_PERFMON this process does
        /// not have. Empty in a user namespace, where it has them but they do not count.
        missing: Vec<&'static str>,
    },
    /// Somebody else's program is attached to the cgroup, or above it, so that it is the only one.
    Exclusive {
        /// Of which program there is another.
        program: &'static str,
    },
    /// The path is not a cgroup of version 2.
    NotACgroup {
        /// As it was given.
        path: PathBuf,
        /// Why not.
        errno: i32,
    },
    /// No cgroup file system of version 2 is mounted.
    NoCgroups,
    /// The kernel lacks something.
    Kernel {
        /// What, and since when Linux has it.
        lacks: &'static str,
    },
    /// The verifier refused a program.
    Verifier {
        /// Which.
        program: &'static str,
        /// Its last words.
        log: String,
        /// What the system call gave.
        errno: i32,
    },
    /// There is no room for more of these.
    Full {
        /// Of what.
        what: &'static str,
        /// How many there can be.
        limit: u32,
    },
    /// A value has no sense.
    Invalid {
        /// Which, and what it may be.
        why: &'static str,
    },
    /// A system call failed in a way that is not expected.
    System {
        /// Which.
        call: &'static str,
        /// What it gave.
        errno: i32,
    },
}

impl Error {
    pub(crate) fn system(call: &'static str) -> impl Fn(Errno) -> Self {
        move |errno| Self::System {
            call,
            errno: errno.0,
        }
    }

    pub(crate) fn not_permitted(what: &'static str) -> Self {
        Self::NotPermitted {
            what,
            missing: missing_capabilities(),
        }
    }
}

/// Those that attaching takes and this thread does not have.
pub(crate) fn missing_capabilities() -> Vec<&'static str> {
    capability::missing(&[Capability::Bpf, Capability::NetAdmin])
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = |errno: &i32| io::Error::from_raw_os_error(*errno);
        match self {
            Self::NotPermitted { what, missing } if missing.is_empty() => write!(
                f,
                "not permitted {what}: the capabilities of this user namespace do not count \
                 for it; run as root of the host"
            ),
            Self::NotPermitted { what, missing } => write!(
                f,
                "not permitted {what}: this process lacks {}; run it as root, or give it what it \
                 lacks",
                missing.join(" and ")
            ),
            Self::Exclusive { program } => write!(
                f,
                "the kernel refuses to attach the program {program} to this cgroup: another one \
                 is there or above, without BPF_F_ALLOW_MULTI; 'bpftool cgroup tree' shows it"
            ),
            Self::NotACgroup { path, errno } => write!(
                f,
                "{} is not a cgroup of version 2: {}",
                path.display(),
                text(errno)
            ),
            Self::NoCgroups => f.write_str(
                "no cgroup file system of version 2 is mounted; \
                 'mount -t cgroup2 none /sys/fs/cgroup' mounts it where version 1 is not in use \
                 ('ip netns exec' hides the one that is there, 'nsenter --net=FILE' does not)",
            ),
            Self::Kernel { lacks } => write!(f, "this kernel lacks {lacks}"),
            Self::Verifier {
                program,
                log,
                errno,
            } => {
                let lines: Vec<&str> = log.lines().collect();
                let last = lines[lines.len().saturating_sub(4)..].join("; ");
                let error = text(errno);
                write!(
                    f,
                    "the kernel refuses the program {program}: {error}: {last}"
                )
            }
            Self::Full { what, limit } => write!(f, "there is room for {limit} {what} only"),
            Self::Invalid { why } => f.write_str(why),
            Self::System { call, errno } => write!(f, "{call}: {}", text(errno)),
        }
    }
}

impl std::error::Error for Error {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_missing_is_said() {
        let missing = |missing: &[&'static str]| {
            Error::NotPermitted {
                what: "to load a BPF program",
                missing: missing.to_vec(),
            }
            .to_string()
        };
        assert_eq!(
            missing(&["CAP_BPF"]),
            "not permitted to load a BPF program: this process lacks CAP_BPF; run it as root, or \
             give it what it lacks"
        );
        assert!(missing(&[]).contains("user namespace"));
    }

    #[test]
    fn the_verifier_s_last_lines_are_given() {
        let refused = |log: &str| {
            Error::Verifier {
                program: "follow",
                log: log.into(),
                errno: libc::EACCES,
            }
            .to_string()
        };
        let text = refused("a\nb\nc\nd\ninvalid access to packet");
        assert!(
            text.ends_with(": b; c; d; invalid access to packet"),
            "{text}"
        );
        assert!(refused("").contains("the program follow"));
    }
}
