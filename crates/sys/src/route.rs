//! What the kernel would do with a packet for an address (rtnetlink(7)).
#![allow(unsafe_code)]

use std::net::IpAddr;

use crate::errno::Errno;
use crate::raw::{check, int, syscall3, syscall6};
use crate::unix::Fd;

const RTM_NEWROUTE: u16 = 24;
const RTM_GETROUTE: u16 = 26;
const NLMSG_ERROR: u16 = 2;
const NLM_F_REQUEST: u16 = 1;
const RTA_DST: u16 = 1;
/// Of `rtm_type` in `struct rtmsg`: `enum` in the kernel's `include/uapi/linux/rtnetlink.h`.
const RTN_LOCAL: u8 = 2;
const RTN_BROADCAST: u8 = 3;
const RTN_ANYCAST: u8 = 4;
const RTN_MULTICAST: u8 = 5;

/// `struct nlmsghdr`.
const HEADER_BYTES: usize = 16;
/// `struct rtmsg`.
const ROUTE_BYTES: usize = 12;
const REQUEST_BYTES_MAX: usize = HEADER_BYTES + ROUTE_BYTES + 4 + 16;

/// Where packets for an address go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Leads {
    /// To this host: the address is one of its own, or is delivered here by a route.
    Here,
    /// To no single host: broadcast, anycast, multicast.
    ToMany,
    /// To another host, or nowhere.
    Away,
}

/// Where packets for the address go from here, by the addresses and routes of this moment. An address that no
/// route has leads away.
///
/// An address that an interface has besides another one of the same network ("secondary") is not found
/// by comparing a socket's two addresses: packets to it are sent from the first one.
pub fn leads(to: IpAddr) -> Result<Leads, Errno> {
    let mut request = [0_u8; REQUEST_BYTES_MAX];
    let mut address = [0_u8; 16];
    let (family, len) = match to.to_canonical() {
        IpAddr::V4(ip) => {
            address[..4].copy_from_slice(&ip.octets());
            (libc::AF_INET, 4)
        }
        IpAddr::V6(ip) => {
            address = ip.octets();
            (libc::AF_INET6, 16)
        }
    };
    let total = HEADER_BYTES + ROUTE_BYTES + 4 + len;
    request[..4].copy_from_slice(&(total as u32).to_ne_bytes());
    request[4..6].copy_from_slice(&RTM_GETROUTE.to_ne_bytes());
    request[6..8].copy_from_slice(&NLM_F_REQUEST.to_ne_bytes());
    let route = &mut request[HEADER_BYTES..];
    route[0] = family as u8;
    route[1] = 8 * len as u8;
    let attribute = &mut route[ROUTE_BYTES..];
    attribute[..2].copy_from_slice(&(4 + len as u16).to_ne_bytes());
    attribute[2..4].copy_from_slice(&RTA_DST.to_ne_bytes());
    attribute[4..4 + len].copy_from_slice(&address[..len]);
    let mut answer = [0_u8; 1_024];
    let got = ask(&request[..total], &mut answer)?;
    understand(&answer[..got])
}

/// The kernel answers within the call that asks.
fn ask(request: &[u8], answer: &mut [u8]) -> Result<usize, Errno> {
    let kind = libc::SOCK_RAW | libc::SOCK_CLOEXEC;
    // SAFETY: socket takes integers only.
    let socket = check(unsafe {
        syscall3(
            libc::SYS_socket,
            int(libc::AF_NETLINK),
            int(kind),
            int(libc::NETLINK_ROUTE),
        )
    })?;
    let socket = Fd::own(socket as i32);
    // SAFETY: the kernel reads the request; without an address it is for the kernel itself.
    check(unsafe {
        syscall6(
            libc::SYS_sendto,
            int(socket.raw()),
            request.as_ptr() as usize,
            request.len(),
            0,
            0,
            0,
        )
    })?;
    // SAFETY: the kernel writes at most the length of the buffer.
    check(unsafe {
        syscall6(
            libc::SYS_recvfrom,
            int(socket.raw()),
            answer.as_mut_ptr() as usize,
            answer.len(),
            int(libc::MSG_DONTWAIT),
            0,
            0,
        )
    })
}

fn understand(answer: &[u8]) -> Result<Leads, Errno> {
    let kind = answer.get(4..6).ok_or(Errno::PROTO)?;
    let body = answer.get(HEADER_BYTES..).ok_or(Errno::PROTO)?;
    match u16::from_ne_bytes([kind[0], kind[1]]) {
        RTM_NEWROUTE => match body.get(7) {
            Some(&RTN_LOCAL) => Ok(Leads::Here),
            Some(&(RTN_BROADCAST | RTN_ANYCAST | RTN_MULTICAST)) => Ok(Leads::ToMany),
            Some(_) => Ok(Leads::Away),
            None => Err(Errno::PROTO),
        },
        NLMSG_ERROR => {
            let code = body.first_chunk().ok_or(Errno::PROTO)?;
            match -i32::from_ne_bytes(*code) {
                libc::ENETUNREACH | libc::EHOSTUNREACH | libc::EACCES | libc::EINVAL => {
                    Ok(Leads::Away)
                }
                errno => Err(Errno(errno)),
            }
        }
        _ => Err(Errno::PROTO),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_of_this_host_lead_here() {
        for (to, expected) in [
            ("127.0.0.1", Leads::Here),
            ("127.1.2.3", Leads::Here),
            ("::ffff:127.0.0.1", Leads::Here),
            ("::1", Leads::Here),
            ("224.0.0.1", Leads::ToMany),
            // RFC 5737: nobody's, with or without a route.
            ("203.0.113.77", Leads::Away),
            ("2001:db8::77", Leads::Away),
        ] {
            assert_eq!(leads(to.parse().unwrap()), Ok(expected), "{to}");
        }
    }

    #[test]
    fn answers_that_make_no_sense_are_errors() {
        let message = |kind: u16, body: &[u8]| {
            let mut out = vec![0; HEADER_BYTES];
            out[4..6].copy_from_slice(&kind.to_ne_bytes());
            out.extend(body);
            out
        };
        for (bytes, expected) in [
            (vec![], Err(Errno::PROTO)),
            (vec![0; HEADER_BYTES], Err(Errno::PROTO)),
            (message(RTM_NEWROUTE, &[0; 7]), Err(Errno::PROTO)),
            (message(NLMSG_ERROR, &[0; 3]), Err(Errno::PROTO)),
            (
                message(NLMSG_ERROR, &(-libc::EPERM).to_ne_bytes()),
                Err(Errno(libc::EPERM)),
            ),
            (
                message(NLMSG_ERROR, &(-libc::ENETUNREACH).to_ne_bytes()),
                Ok(Leads::Away),
            ),
        ] {
            assert_eq!(understand(&bytes), expected, "{bytes:?}");
        }
    }
}
