//! Multicast groups that a port's sockets take part in.

use std::net::IpAddr;

use sluice_sys::errno::Errno;
use sluice_sys::local_fd::LocalFd;
use sluice_sys::unix::{Fd, set_option};

use super::{UdpPort, socket};

/// By what a port's sockets join groups and leave them, whoever has the port in hand.
#[derive(Debug)]
pub struct Members {
    four: Option<LocalFd>,
    six: Option<LocalFd>,
}

impl UdpPort {
    /// By what groups are joined whose datagrams are to come to this port. Datagrams to groups that only
    /// other programs have joined do not come.
    pub fn members(&self) -> Result<Members, Errno> {
        let copy = |socket: &Option<Fd>| -> Result<Option<LocalFd>, Errno> {
            let copy = socket.as_ref().map(socket::duplicate).transpose()?;
            Ok(copy.map(LocalFd::own))
        };
        Ok(Members {
            four: copy(&self.four)?,
            six: copy(&self.six)?,
        })
    }
}

impl Members {
    /// Takes part in a group on an interface, or no longer.
    pub fn join(&self, group: IpAddr, interface: u32, join: bool) -> Result<(), Errno> {
        let number = interface.to_ne_bytes();
        match group {
            IpAddr::V4(group) => {
                // struct ip_mreqn: group, local address, interface.
                let [a, b, c, d] = group.octets();
                let [i0, i1, i2, i3] = number;
                let request = [a, b, c, d, 0, 0, 0, 0, i0, i1, i2, i3];
                let option = if join {
                    libc::IP_ADD_MEMBERSHIP
                } else {
                    libc::IP_DROP_MEMBERSHIP
                };
                let socket = self.four.as_ref().ok_or(Errno::NOTSUP)?;
                set_option(socket.raw(), libc::IPPROTO_IP, option, &request)
            }
            IpAddr::V6(group) => {
                // struct ipv6_mreq: group, interface.
                let mut request = [0; 20];
                let (address, index) = request.split_at_mut(16);
                address.copy_from_slice(&group.octets());
                index.copy_from_slice(&number);
                let option = if join {
                    libc::IPV6_ADD_MEMBERSHIP
                } else {
                    libc::IPV6_DROP_MEMBERSHIP
                };
                let socket = self.six.as_ref().ok_or(Errno::NOTSUP)?;
                set_option(socket.raw(), libc::IPPROTO_IPV6, option, &request)
            }
        }
    }
}
