//! Which sockets listen in the daemon's network namespace, by their cookies (sock_diag(7)).
//!
//! A publication lives as long as one of its sockets does. The daemon keeps no copy of them, which
//! would keep the port open, and processes that have them come and go by fork: the kernel knows.

use std::collections::HashSet;
use std::io;

use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, netlink};

const SOCK_DIAG_BY_FAMILY: u16 = 20;
/// `NLM_F_REQUEST | NLM_F_DUMP`.
const DUMP: u16 = 0x301;
const NLMSG_ERROR: u16 = 2;
const NLMSG_DONE: u16 = 3;
/// `1 << TCP_LISTEN`.
const LISTENING: u32 = 1 << 10;

const HEADER_BYTES: usize = 16;
/// `struct inet_diag_req_v2`.
const REQUEST_BYTES: usize = 56;
/// Of the cookie in `struct inet_diag_msg`: two 32-bit halves, the lower one first.
const COOKIE_OFFSET: usize = 44;

/// Answers read for one question at most: each has up to 32 KiB.
const ANSWERS_MAX: usize = 4_096;

/// The cookies of all listening TCP sockets.
pub fn listening() -> io::Result<HashSet<u64>> {
    let mut cookies = HashSet::new();
    for family in [libc::AF_INET, libc::AF_INET6] {
        dump(family as u8, &mut cookies)?;
    }
    Ok(cookies)
}

fn dump(family: u8, cookies: &mut HashSet<u64>) -> io::Result<()> {
    let socket = rustix::net::socket_with(
        AddressFamily::NETLINK,
        SocketType::DGRAM,
        SocketFlags::CLOEXEC,
        Some(netlink::SOCK_DIAG),
    )?;
    let mut request = [0; HEADER_BYTES + REQUEST_BYTES];
    request[..4].copy_from_slice(&((HEADER_BYTES + REQUEST_BYTES) as u32).to_ne_bytes());
    request[4..6].copy_from_slice(&SOCK_DIAG_BY_FAMILY.to_ne_bytes());
    request[6..8].copy_from_slice(&DUMP.to_ne_bytes());
    request[HEADER_BYTES] = family;
    request[HEADER_BYTES + 1] = libc::IPPROTO_TCP as u8;
    request[HEADER_BYTES + 4..HEADER_BYTES + 8].copy_from_slice(&LISTENING.to_ne_bytes());
    rustix::net::send(&socket, &request, SendFlags::empty())?;
    let mut buffer = vec![0; 32 << 10];
    for _ in 0..ANSWERS_MAX {
        // The kernel answers within the call before.
        let (got, _) = rustix::net::recv(&socket, &mut buffer[..], RecvFlags::DONTWAIT)?;
        if take(&buffer[..got], cookies)? {
            return Ok(());
        }
    }
    Err(io::ErrorKind::InvalidData.into())
}

/// Takes one answer with its messages. Whether it was the last.
fn take(mut answer: &[u8], cookies: &mut HashSet<u64>) -> io::Result<bool> {
    while let Some(header) = answer.first_chunk::<HEADER_BYTES>() {
        let len = u32::from_ne_bytes([header[0], header[1], header[2], header[3]]) as usize;
        let kind = u16::from_ne_bytes([header[4], header[5]]);
        let body = answer
            .get(HEADER_BYTES..len)
            .ok_or(io::ErrorKind::InvalidData)?;
        match kind {
            NLMSG_DONE => return Ok(true),
            NLMSG_ERROR => {
                let code = body
                    .first_chunk()
                    .map_or(-libc::EPROTO, |code| i32::from_ne_bytes(*code));
                return Err(io::Error::from_raw_os_error(-code));
            }
            SOCK_DIAG_BY_FAMILY => {
                let cookie = body
                    .get(COOKIE_OFFSET..)
                    .and_then(|rest| rest.first_chunk::<8>())
                    .ok_or(io::ErrorKind::InvalidData)?;
                let half = |at: usize| {
                    u64::from(u32::from_ne_bytes([
                        cookie[at],
                        cookie[at + 1],
                        cookie[at + 2],
                        cookie[at + 3],
                    ]))
                };
                cookies.insert(half(0) | half(4) << 32);
            }
            _ => {}
        }
        answer = answer.get(len.next_multiple_of(4)..).unwrap_or_default();
    }
    Ok(false)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::TcpListener;
    use std::os::fd::AsRawFd;

    #[test]
    fn a_socket_is_there_as_long_as_it_listens() {
        for address in ["127.0.0.1:0", "[::1]:0"] {
            let listener = TcpListener::bind(address).unwrap();
            let cookie = sluice_sys::tcp::cookie(listener.as_raw_fd()).unwrap();
            assert!(listening().unwrap().contains(&cookie), "{address}");
            drop(listener);
            assert!(!listening().unwrap().contains(&cookie), "{address}");
        }
    }

    #[test]
    fn answers_that_make_no_sense_are_errors() {
        let mut cookies = HashSet::new();
        let message = |len: u32, kind: u16, body: &[u8]| {
            let mut out = len.to_ne_bytes().to_vec();
            out.extend(kind.to_ne_bytes());
            out.extend([0; 10]);
            out.extend(body);
            out
        };
        for (bytes, expected) in [
            (message(16, NLMSG_DONE, &[]), Ok(true)),
            (message(40, NLMSG_DONE, &[]), Err(())),
            (message(3, NLMSG_DONE, &[]), Err(())),
            (message(20, SOCK_DIAG_BY_FAMILY, &[0; 4]), Err(())),
            (message(20, NLMSG_ERROR, &(-1i32).to_ne_bytes()), Err(())),
            (message(16, NLMSG_ERROR, &[]), Err(())),
            (vec![1; 7], Ok(false)),
        ] {
            assert_eq!(
                take(&bytes, &mut cookies).map_err(drop),
                expected,
                "{bytes:?}"
            );
        }
        assert!(cookies.is_empty());
    }
}
