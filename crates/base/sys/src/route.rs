//! What the kernel would do with a packet for an address (rtnetlink(7)).

use std::net::IpAddr;

use crate::errno::Errno;
use crate::netlink::{self, Request, failure, messages};

const NLMSG_ERROR: u16 = libc::NLMSG_ERROR as u16;

/// `struct rtmsg`.
const ROUTE_BYTES: usize = 12;
/// Longest answer that is understood.
const ANSWER_BYTES_MAX: usize = 1_024;

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
    let to = to.to_canonical();
    let (family, bits) = match to {
        IpAddr::V4(_) => (libc::AF_INET, 32),
        IpAddr::V6(_) => (libc::AF_INET6, 128),
    };
    let mut route = [0_u8; ROUTE_BYTES];
    route[0] = family as u8;
    route[1] = bits;
    let mut request = Request::new(libc::RTM_GETROUTE, libc::NLM_F_REQUEST, 0, &route);
    request.address(libc::RTA_DST, to);
    let socket = netlink::open(libc::NETLINK_ROUTE, 0)?;
    netlink::send(&socket, request.bytes())?;
    let mut answer = [0_u8; ANSWER_BYTES_MAX];
    // The kernel answers within the call before.
    let got = netlink::receive(&socket, &mut answer)?;
    understand(&answer[..got])
}

fn understand(answer: &[u8]) -> Result<Leads, Errno> {
    let message = messages(answer).next().ok_or(Errno::PROTO)?;
    match message.kind {
        libc::RTM_NEWROUTE => match message.body.get(7) {
            Some(&libc::RTN_LOCAL) => Ok(Leads::Here),
            Some(&(libc::RTN_BROADCAST | libc::RTN_ANYCAST | libc::RTN_MULTICAST)) => {
                Ok(Leads::ToMany)
            }
            Some(_) => Ok(Leads::Away),
            None => Err(Errno::PROTO),
        },
        NLMSG_ERROR => match failure(message.body) {
            Errno(libc::ENETUNREACH | libc::EHOSTUNREACH | libc::EACCES | libc::EINVAL) => {
                Ok(Leads::Away)
            }
            errno => Err(errno),
        },
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
            let mut out = vec![0; netlink::HEADER];
            out[4..6].copy_from_slice(&kind.to_ne_bytes());
            out.extend(body);
            let len = out.len() as u32;
            out[..4].copy_from_slice(&len.to_ne_bytes());
            out
        };
        for (bytes, expected) in [
            (vec![], Err(Errno::PROTO)),
            (vec![0; netlink::HEADER], Err(Errno::PROTO)),
            (vec![0xff; 40], Err(Errno::PROTO)),
            (message(libc::RTM_NEWROUTE, &[0; 7]), Err(Errno::PROTO)),
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
