//! What an announced descriptor is.

use std::net::SocketAddr;
use std::os::fd::RawFd;

use serde::{Deserialize, Serialize};
use sluice_sys::errno::Errno;
use sluice_sys::tcp;

use crate::matching::{Domain, Tuple};

/// Everything that sluiced wants to know of an announced socket, which it does not get itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SocketFacts {
    pub tuple: Tuple,
    pub domain: Domain,
    pub cookie: u64,
}

impl SocketFacts {
    /// Asks the kernel. `Ok(None)` when the descriptor is not an established TCP connection.
    pub fn read(fd: RawFd) -> Result<Option<SocketFacts>, Errno> {
        // The protocol alone is not enough, since netlink and raw sockets have one of that
        // number; they have no TCP_INFO. TCP_INFO alone is not either: MPTCP has it.
        if tcp::protocol(fd)? != libc::IPPROTO_TCP || tcp::info(fd)?.state != tcp::STATE_ESTABLISHED
        {
            return Ok(None);
        }
        Ok(Some(SocketFacts {
            tuple: Tuple {
                local: normal(tcp::local_address(fd)?),
                peer: normal(tcp::peer_address(fd)?),
            },
            domain: Domain {
                netns: tcp::netns_cookie(fd)?,
                interface: tcp::bound_interface(fd)?,
            },
            cookie: tcp::cookie(fd)?,
        }))
    }
}

/// Without the flow label, which is not part of a connection's name. The scope of a link-local
/// address is: two links may use the same addresses.
fn normal(mut address: SocketAddr) -> SocketAddr {
    if let SocketAddr::V6(v6) = &mut address {
        v6.set_flowinfo(0);
    }
    address
}
