//! Programs to which a client's address can be shown: those whose listening sockets are in the cgroup that is captured.
//! Others would see this host in the client's place, and let in whom they would not.

use std::collections::HashMap;
use std::io;
use std::net::SocketAddr;

use sluice_bpf::Cgroup;
use sluice_sys::sock_diag::Diag;

/// Cgroups whose place is remembered. Each has its number for good, and its place, too.
const KNOWN_MAX: usize = 4096;

#[derive(Debug)]
pub(super) struct Shown {
    /// `None`: all.
    only: Option<Only>,
}

#[derive(Debug)]
struct Only {
    cgroup: Cgroup,
    diag: Diag,
    known: HashMap<u64, bool>,
}

impl Shown {
    /// To programs of all cgroups.
    pub fn to_all() -> Shown {
        Shown { only: None }
    }

    /// To those of this cgroup, and of the ones below it.
    pub fn to_those_of(cgroup: Cgroup) -> io::Result<Shown> {
        let diag = Diag::open().map_err(|errno| {
            io::Error::other(format!(
                "the kernel does not say to which cgroup a socket belongs ({}): load the module tcp_diag, or leave \
                 `cgroup` out",
                errno.name()
            ))
        })?;
        let known = HashMap::new();
        Ok(Shown {
            only: Some(Only {
                cgroup,
                diag,
                known,
            }),
        })
    }

    /// Whether the program that listens there is one. True if nobody listens: the connection says so.
    pub fn reaches(&mut self, at: SocketAddr) -> bool {
        let Some(only) = &mut self.only else {
            return true;
        };
        match only.diag.listeners_cgroup(at) {
            Ok(None) => true,
            Ok(Some(Some(cgroup))) => only.contains(cgroup),
            // Before Linux 5.8.
            Ok(Some(None)) | Err(_) => false,
        }
    }
}

impl Only {
    fn contains(&mut self, cgroup: u64) -> bool {
        if let Some(known) = self.known.get(&cgroup) {
            return *known;
        }
        let Ok(found) = self.cgroup.contains(cgroup) else {
            return false;
        };
        if self.known.len() >= KNOWN_MAX {
            self.known.clear();
        }
        self.known.insert(cgroup, found);
        found
    }
}
