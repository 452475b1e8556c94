//! Which network namespaces have the addresses that they say they have.
//!
//! Towards another host an end is known by its addresses alone. Whoever may make network namespaces
//! of his own, which every user may where user namespaces are allowed, gives himself any address in
//! one, and makes a connection there that looks like somebody else's.

use std::collections::HashMap;
use std::os::fd::AsRawFd;

use sluice_sys::tcp;
use sluice_sys::unix::Fd;

use super::probe;

/// Namespaces that are remembered; then all are looked at anew.
const KNOWN_MAX: usize = 256;

/// Network namespaces by their cookies, which the kernel gives out once.
#[derive(Debug)]
pub struct Homes {
    known: HashMap<u64, bool>,
    own: Option<u64>,
}

impl Homes {
    /// Knows the namespace of this process.
    pub fn new() -> Homes {
        Homes {
            known: HashMap::new(),
            own: own_cookie(),
        }
    }

    /// Whether a socket in the namespace with this cookie has the addresses that it says: it is
    /// sluiced's own, or one that was made with the privileges that sluiced's needs.
    ///
    /// To tell takes the namespace itself; without, only the own one counts.
    pub fn have(&mut self, netns: u64, namespace: Option<&Fd>) -> bool {
        if self.own == Some(netns) {
            return true;
        }
        if self.known.len() >= KNOWN_MAX {
            self.known.clear();
        }
        if let Some(known) = self.known.get(&netns) {
            return *known;
        }
        let Some(namespace) = namespace else {
            return false;
        };
        let found = probe::belongs_here(namespace).unwrap_or_else(|error| {
            tracing::debug!("whose network namespace a connection is in is unknown: {error}");
            false
        });
        self.known.insert(netns, found);
        found
    }
}

/// The cookie of this process's namespace.
pub fn own_cookie() -> Option<u64> {
    let socket = std::os::unix::net::UnixDatagram::unbound().ok()?;
    tcp::netns_cookie(socket.as_raw_fd()).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn own_namespace_counts_and_one_that_nothing_is_known_of_does_not() {
        let socket = std::os::unix::net::UnixDatagram::unbound().expect("a socket");
        let own = tcp::netns_cookie(socket.as_raw_fd()).expect("a cookie");
        let mut homes = Homes::new();
        assert!(homes.have(own, None));
        assert!(!homes.have(own.wrapping_add(1), None));
    }
}
