//! Which sockets listen in the daemon's network namespace, by their cookies (sock_diag(7)).
//!
//! A publication lives as long as one of its sockets does. The daemon keeps no copy of them, which
//! would keep the port open, and processes that have them come and go by fork: the kernel knows.

use std::collections::HashSet;
use std::io;

use sluice_sys::netlink::{self, Request, failure, next_message, u32_at};

/// `SOCK_DIAG_BY_FAMILY` (include/uapi/linux/sock_diag.h).
const SOCK_DIAG_BY_FAMILY: u16 = 20;
const NLMSG_ERROR: u16 = libc::NLMSG_ERROR as u16;
const NLMSG_DONE: u16 = libc::NLMSG_DONE as u16;
/// `1 << TCP_LISTEN`.
const LISTENING: u32 = 1 << 10;

/// `struct inet_diag_req_v2`.
const REQUEST_BYTES: usize = 56;
/// Of the cookie in `struct inet_diag_msg`: two 32-bit halves, the lower one first.
const COOKIE_OFFSET: usize = 44;

/// Bytes of an answer at most.
const ANSWER_BYTES: usize = 32 << 10;
/// Answers read for one question at most.
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
    let socket = netlink::open(libc::NETLINK_SOCK_DIAG, 0)?;
    let mut asked = [0; REQUEST_BYTES];
    asked[0] = family;
    asked[1] = libc::IPPROTO_TCP as u8;
    asked[4..8].copy_from_slice(&LISTENING.to_ne_bytes());
    let flags = libc::NLM_F_REQUEST | libc::NLM_F_DUMP;
    let request = Request::new(SOCK_DIAG_BY_FAMILY, flags, 0, &asked);
    netlink::send(&socket, request.bytes())?;
    let mut buffer = vec![0; ANSWER_BYTES];
    for _ in 0..ANSWERS_MAX {
        // The kernel answers within the call before.
        let got = netlink::receive(&socket, &mut buffer)?;
        if take(&buffer[..got], cookies)? {
            return Ok(());
        }
    }
    Err(io::ErrorKind::InvalidData.into())
}

/// Takes one answer with its messages. Whether it was the last.
fn take(mut answer: &[u8], cookies: &mut HashSet<u64>) -> io::Result<bool> {
    while let Some(message) = next_message(&mut answer) {
        match message.kind {
            NLMSG_DONE => return Ok(true),
            NLMSG_ERROR => return Err(failure(message.body).into()),
            SOCK_DIAG_BY_FAMILY => {
                let half = |at: usize| u32_at(message.body, COOKIE_OFFSET + at).map(u64::from);
                let (Some(low), Some(high)) = (half(0), half(4)) else {
                    return Err(io::ErrorKind::InvalidData.into());
                };
                cookies.insert(low | high << 32);
            }
            _ => {}
        }
    }
    if answer.len() < netlink::HEADER {
        Ok(false)
    } else {
        Err(io::ErrorKind::InvalidData.into())
    }
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
