//! Errors of this host.

use std::io;

/// What the gateway has run out of says nothing about the node: descriptors, memory, or local ports for one
/// node and port (`ip_local_port_range`, ip(7)).
pub fn is_of_this_host(error: &io::Error) -> bool {
    matches!(
        error.raw_os_error(),
        Some(libc::EADDRNOTAVAIL | libc::EMFILE | libc::ENFILE | libc::ENOBUFS | libc::ENOMEM)
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_node_is_blamed_for_what_it_does_and_not_for_what_is_missing_here() {
        for errno in [
            libc::EADDRNOTAVAIL,
            libc::EMFILE,
            libc::ENFILE,
            libc::ENOBUFS,
        ] {
            assert!(is_of_this_host(&io::Error::from_raw_os_error(errno)));
        }
        for errno in [libc::ECONNREFUSED, libc::ETIMEDOUT, libc::EHOSTUNREACH] {
            assert!(!is_of_this_host(&io::Error::from_raw_os_error(errno)));
        }
    }
}
