//! What an operator can choose, and what the machine allows.

use std::path::PathBuf;
use std::time::Duration;

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Choices for one sluiced.
#[derive(Clone, Debug)]
pub struct Config {
    /// Where to listen.
    pub socket: PathBuf,
    /// End when no client has been connected for that long; `None`: never.
    pub idle_exit: Option<Duration>,
    /// Bytes of each ring; checked by `Geometry::new`.
    pub ring_bytes: u32,
    /// Most lanes in use at a time, over all programs.
    pub lanes_max: u32,
    /// Serve every user of the machine and not only the own one and root.
    pub allow_all_users: bool,
    /// Connections between two network namespaces stay on TCP, as nothing is kept by which one could
    /// compare their ends.
    pub one_namespace: bool,
    /// Percent of the programs, lanes and chunks that one user other than root and the own one
    /// may have, 1 to 100.
    pub user_share: u32,
}

/// Lanes in use at most when nobody says otherwise.
pub const LANES_MAX_DEFAULT: u32 = 65_536;

/// Ends of one program that may wait for their other end at a time. Most servers have more
/// connections from elsewhere than this and none of them will ever be matched; the oldest goes.
pub const WAITING_PER_CLIENT_MAX: usize = 8_192;

/// The same over all programs, which bounds the memory of the tables to some 60 MB.
pub const WAITING_MAX: usize = 262_144;

/// Clients beyond the most programs, who may ask and must not introduce themselves: `sluice status` and
/// `sluice down` work where there is no room for another program.
pub const VISITORS_MAX: usize = 4;

/// Descriptors that are neither programs' nor chunks'.
const DESCRIPTORS_OWN: u64 = 64;
/// With fewer sluiced does not start: it would serve a program or two and refuse the next.
const DESCRIPTORS_MIN: u64 = 128;
/// Descriptors held for each client: its socket, its parking table, its end table, and possibly its
/// network namespace and what looks up sockets there.
const DESCRIPTORS_PER_CLIENT: u64 = 5;

/// What the limit of open files leaves room for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Programs. Of other clients, [`VISITORS_MAX`] more may be there.
    pub clients_max: usize,
    /// A chunk costs one descriptor.
    pub chunks_max: usize,
}

impl Limits {
    /// Divides `descriptors` half and half between clients and chunks.
    pub fn for_descriptors(descriptors: u64) -> Limits {
        let half = descriptors.saturating_sub(DESCRIPTORS_OWN) / 2;
        let count = |n: u64| usize::try_from(n.clamp(1, 1 << 20)).unwrap_or(1);
        Limits {
            clients_max: count(half / DESCRIPTORS_PER_CLIENT),
            chunks_max: count(half),
        }
    }

    /// What the limit of open files of this process leaves room for, once it is raised.
    ///
    /// # Errors
    /// It is too low to serve programs; the text says what to do.
    pub fn of_this_process() -> Result<Limits, String> {
        raise_soft_limits();
        let descriptors = getrlimit(Resource::Nofile).current.unwrap_or(1 << 20);
        if descriptors < DESCRIPTORS_MIN {
            return Err(format!(
                "sluiced may open {descriptors} files here and needs {DESCRIPTORS_MIN}; raise the hard limit \
                 ('ulimit -Hn', LimitNOFILE= of a unit)"
            ));
        }
        Ok(Limits::for_descriptors(descriptors))
    }
}

/// Raises the soft limits of this process to the hard ones, of open files and of the size of chunks, which
/// are files, too.
pub fn raise_soft_limits() {
    for resource in [Resource::Nofile, Resource::Fsize] {
        let maximum = getrlimit(resource).maximum;
        let raised = Rlimit {
            current: maximum,
            maximum,
        };
        // An unprivileged process may always raise the soft limit; should a sandbox refuse, the soft limit is
        // what there is.
        let _ = setrlimit(resource, raised);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_stay_within_the_descriptors() {
        for descriptors in [DESCRIPTORS_MIN, 256, 1024, 20_000, 1 << 20] {
            let limits = Limits::for_descriptors(descriptors);
            let used = limits.clients_max as u64 * DESCRIPTORS_PER_CLIENT
                + limits.chunks_max as u64
                + DESCRIPTORS_OWN;
            assert!(used <= descriptors, "{descriptors}: {used}");
            assert!(limits.clients_max > 1, "{descriptors}");
        }
    }
}
