//! What the kernel has under the addresses of a connection (sock_diag(7)).
//!
//! The look-up is the one by which arriving segments find their socket (`inet_lookup`), in the
//! network namespace in which the netlink socket was made, and needs no privilege there.

use std::cell::Cell;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener};
use std::os::fd::{AsRawFd, RawFd};

use crate::errno::Errno;
use crate::memfd;
use crate::netlink::{self, Request, attributes, failure, messages, u32_at};
use crate::tcp;
use crate::unix::Fd;

/// `SOCK_DIAG_BY_FAMILY` (include/uapi/linux/sock_diag.h).
const SOCK_DIAG_BY_FAMILY: u16 = 20;
const NLMSG_ERROR: u16 = libc::NLMSG_ERROR as u16;

/// `struct inet_diag_req_v2` (include/uapi/linux/inet_diag.h), and in it the parts of
/// `struct inet_diag_sockid`.
const REQUEST_BYTES: usize = 56;
const LOCAL_PORT: usize = 8;
const PEER_PORT: usize = 10;
const LOCAL_ADDRESS: usize = 12;
const PEER_ADDRESS: usize = 28;
const INTERFACE: usize = 44;
const COOKIE: usize = 48;
/// Of the state and the inode in `struct inet_diag_msg`.
const STATE: usize = 1;
const INODE: usize = 68;
/// Behind `struct inet_diag_msg`.
const ANSWER_ATTRIBUTES: usize = 72;
/// Linux 5.8.
const INET_DIAG_CGROUP_ID: u16 = 21;
/// Whatever the cookie is (`INET_DIAG_NOCOOKIE`, both halves).
const ANY_COOKIE: u64 = u64::MAX;

/// `struct unix_diag_req` and `struct unix_diag_msg` (include/uapi/linux/unix_diag.h).
const UNIX_REQUEST_BYTES: usize = 24;
const UNIX_INODE: usize = 8;
const UNIX_SHOW: usize = 12;
const UNIX_COOKIE: usize = 16;
const UNIX_ANSWER_BYTES: usize = 16;
const UDIAG_SHOW_PEER: u32 = 4;
const UNIX_DIAG_PEER: u16 = 2;

/// An answer has 72 bytes and a few attributes; a refusal repeats the request.
const ANSWER_BYTES: usize = 1024;
/// Datagrams read for one question: what an interrupted one left is read with the next.
const ANSWERS_MAX: usize = 8;

/// Which connection, as the socket sees it that is looked for.
#[derive(Clone, Copy, Debug)]
pub struct Ends {
    /// Its own address.
    pub local: SocketAddr,
    /// Its peer's.
    pub peer: SocketAddr,
}

impl Ends {
    /// As this socket sees its connection.
    ///
    /// # Errors
    /// Those of getsockname(2) and getpeername(2).
    pub fn of(fd: RawFd) -> Result<Ends, Errno> {
        Ok(Ends {
            local: tcp::local_address(fd)?,
            peer: tcp::peer_address(fd)?,
        })
    }

    /// As the other end sees it.
    pub fn mirrored(self) -> Ends {
        Ends {
            local: self.peer,
            peer: self.local,
        }
    }
}

/// Looks sockets up in one network namespace.
#[derive(Debug)]
pub struct Diag {
    socket: Fd,
    sequence: Cell<u32>,
}

impl Diag {
    /// For the namespace of the calling thread.
    ///
    /// # Errors
    /// Those of socket(2), and `EOPNOTSUPP` where the kernel does not find a socket that exists,
    /// as one without `tcp_diag`.
    pub fn open() -> Result<Diag, Errno> {
        let diag = Diag::open_unproven()?;
        diag.finds_a_listener()?;
        Ok(diag)
    }

    /// The same without a look whether the kernel finds anything.
    ///
    /// # Errors
    /// Those of socket(2).
    pub fn open_unproven() -> Result<Diag, Errno> {
        Ok(Diag {
            socket: netlink::open(libc::NETLINK_SOCK_DIAG, 0)?,
            sequence: Cell::new(0),
        })
    }

    /// A kernel without the module says of every socket that there is none.
    fn finds_a_listener(&self) -> Result<(), Errno> {
        let Ok(listener) = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)) else {
            // Without loopback there is nothing to try it with.
            return Ok(());
        };
        let local = tcp::local_address(listener.as_raw_fd())?;
        let ends = Ends {
            local,
            peer: SocketAddr::from((Ipv4Addr::UNSPECIFIED, 0)),
        };
        let cookie = tcp::cookie(listener.as_raw_fd())?;
        match self.state(ends, 0, cookie)? {
            Some(_) => Ok(()),
            None => Err(Errno(libc::EOPNOTSUPP)),
        }
    }

    /// The TCP state of the socket with this cookie, if it is the one with these addresses and
    /// bound to this interface (0: none); `None` if it is not, or there is none.
    ///
    /// # Errors
    /// Those of sendto(2) and recv(2), and of the kernel's answer.
    pub fn state(&self, ends: Ends, interface: u32, cookie: u64) -> Result<Option<u8>, Errno> {
        self.ask(ends, interface, cookie, |answer| answer.get(STATE).copied())
    }

    /// The inode of the socket with these addresses; 0 for one that no process has open any more. `None` if there
    /// is none.
    ///
    /// # Errors
    /// As [`Diag::state`].
    pub fn inode(&self, ends: Ends) -> Result<Option<u32>, Errno> {
        self.ask(ends, 0, ANY_COOKIE, |answer| {
            let bytes = answer.get(INODE..INODE + 4)?;
            Some(u32::from_ne_bytes(bytes.try_into().ok()?))
        })
    }

    /// The cgroup (version 2) of the socket that listens at this address, of several the one that the kernel would
    /// choose: its number, which is the inode of its directory. `None`: nobody listens there. `Some(None)`: the kernel does
    /// not say (before Linux 5.8).
    ///
    /// # Errors
    /// As [`Diag::state`].
    pub fn listeners_cgroup(&self, at: SocketAddr) -> Result<Option<Option<u64>>, Errno> {
        let nobody: IpAddr = match at.ip() {
            IpAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
            IpAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
        };
        let ends = Ends {
            local: at,
            peer: SocketAddr::new(nobody, 0),
        };
        self.ask(ends, 0, ANY_COOKIE, |answer| {
            let mut all = attributes(answer, ANSWER_ATTRIBUTES);
            let found = all.find(|(number, _)| *number == INET_DIAG_CGROUP_ID);
            let bytes = found.and_then(|(_, value)| value.first_chunk());
            Some(bytes.map(|bytes| u64::from_ne_bytes(*bytes)))
        })
    }

    fn ask<T>(
        &self,
        ends: Ends,
        interface: u32,
        cookie: u64,
        read: impl Fn(&[u8]) -> Option<T>,
    ) -> Result<Option<T>, Errno> {
        match question(ends, interface, cookie) {
            Some(asked) => self.exchange(&asked, read),
            None => Ok(None),
        }
    }

    /// The inode of the Unix socket that this one is connected to, as long as a process has it open;
    /// `None` if it is connected to none.
    ///
    /// # Errors
    /// As [`Diag::state`].
    pub fn unix_peer(&self, fd: RawFd) -> Result<Option<u32>, Errno> {
        let inode = u32::try_from(memfd::stat(fd)?.inode).map_err(|_| Errno::INVAL)?;
        let mut asked = [0; UNIX_REQUEST_BYTES];
        let mut put =
            |at: usize, value: u32| asked[at..at + 4].copy_from_slice(&value.to_ne_bytes());
        put(0, u32::from_ne_bytes([libc::AF_UNIX as u8, 0, 0, 0]));
        put(4, u32::MAX);
        put(UNIX_INODE, inode);
        put(UNIX_SHOW, UDIAG_SHOW_PEER);
        put(UNIX_COOKIE, u32::MAX);
        put(UNIX_COOKIE + 4, u32::MAX);
        let found = self.exchange(&asked, |answer| {
            let mut all = attributes(answer, UNIX_ANSWER_BYTES);
            let peer = all.find(|(number, _)| *number == UNIX_DIAG_PEER);
            Some(peer.and_then(|(_, value)| u32_at(value, 0)))
        })?;
        Ok(found.flatten().filter(|inode| *inode != 0))
    }

    fn exchange<T>(
        &self,
        asked: &[u8],
        read: impl Fn(&[u8]) -> Option<T>,
    ) -> Result<Option<T>, Errno> {
        let sequence = self.sequence.get().wrapping_add(1);
        self.sequence.set(sequence);
        let request = Request::new(SOCK_DIAG_BY_FAMILY, libc::NLM_F_REQUEST, sequence, asked);
        netlink::send(&self.socket, request.bytes())?;
        let mut buffer = [0; ANSWER_BYTES];
        for _ in 0..ANSWERS_MAX {
            // The kernel answers within the call before.
            let got = netlink::receive(&self.socket, &mut buffer)?;
            for message in messages(&buffer[..got]).filter(|it| it.sequence == sequence) {
                match message.kind {
                    SOCK_DIAG_BY_FAMILY => {
                        return read(message.body).map_or(Err(Errno::PROTO), |it| Ok(Some(it)));
                    }
                    NLMSG_ERROR => {
                        return match failure(message.body) {
                            // No socket, and one with another cookie.
                            Errno(libc::ENOENT | libc::ESTALE) => Ok(None),
                            error => Err(error),
                        };
                    }
                    _ => {}
                }
            }
        }
        Err(Errno::PROTO)
    }
}

/// The request for one socket; `None` for addresses of two families.
fn question(ends: Ends, interface: u32, cookie: u64) -> Option<[u8; REQUEST_BYTES]> {
    let (local, peer) = (ends.local.ip(), ends.peer.ip());
    let family = match (local, peer) {
        (IpAddr::V4(_), IpAddr::V4(_)) => libc::AF_INET,
        (IpAddr::V6(_), IpAddr::V6(_)) => libc::AF_INET6,
        _ => return None,
    };
    let mut asked = [0; REQUEST_BYTES];
    let mut put = |at: usize, bytes: &[u8]| asked[at..at + bytes.len()].copy_from_slice(bytes);
    put(0, &[family as u8, libc::IPPROTO_TCP as u8]);
    // All states: whatever has the addresses is to be found.
    put(4, &u32::MAX.to_ne_bytes());
    put(LOCAL_PORT, &ends.local.port().to_be_bytes());
    put(PEER_PORT, &ends.peer.port().to_be_bytes());
    for (at, address) in [(LOCAL_ADDRESS, local), (PEER_ADDRESS, peer)] {
        match address {
            IpAddr::V4(ip) => put(at, &ip.octets()),
            IpAddr::V6(ip) => put(at, &ip.octets()),
        }
    }
    put(INTERFACE, &interface.to_ne_bytes());
    put(COOKIE, &(cookie as u32).to_ne_bytes());
    put(COOKIE + 4, &((cookie >> 32) as u32).to_ne_bytes());
    Some(asked)
}

#[cfg(test)]
mod tests {
    use std::net::TcpStream;

    use super::*;

    fn pair(address: &str) -> (TcpStream, TcpStream) {
        let listener = TcpListener::bind(address).expect("a listener");
        let connected =
            TcpStream::connect(listener.local_addr().expect("bound")).expect("connects");
        let (accepted, _) = listener.accept().expect("accepts");
        (connected, accepted)
    }

    fn ends(socket: &TcpStream) -> Ends {
        Ends::of(socket.as_raw_fd()).expect("its addresses")
    }

    #[test]
    fn a_connection_is_found_by_its_cookie_until_it_is_closed() {
        let _no_children = crate::testing::without_children();
        let diag = Diag::open().expect("sock_diag");
        for address in ["127.0.0.1:0", "[::1]:0"] {
            let (connected, accepted) = pair(address);
            let cookie = tcp::cookie(connected.as_raw_fd()).expect("a cookie");
            let (one, other) = (ends(&connected), ends(&accepted));
            let state = diag.state(one, 0, cookie);
            assert_eq!(state, Ok(Some(tcp::STATE_ESTABLISHED)));
            // The cookie of somebody else.
            assert_eq!(diag.state(other, 0, cookie), Ok(None));
            assert_eq!(diag.state(one, 0, cookie + 1_000_000), Ok(None));
            drop(accepted);
            drop(connected);
            assert_eq!(diag.state(one, 0, cookie), Ok(None));
        }
    }

    #[test]
    fn an_ipv4_connection_of_an_ipv6_socket_is_found() {
        let diag = Diag::open().expect("sock_diag");
        let listener = TcpListener::bind("[::]:0").expect("a listener");
        let port = listener.local_addr().expect("bound").port();
        let _connected = TcpStream::connect(("127.0.0.1", port)).expect("connects");
        let (accepted, _) = listener.accept().expect("accepts");
        let cookie = tcp::cookie(accepted.as_raw_fd()).expect("a cookie");
        let state = diag.state(ends(&accepted), 0, cookie);
        assert_eq!(state, Ok(Some(tcp::STATE_ESTABLISHED)));
    }

    #[test]
    fn a_socket_that_nobody_has_open_has_no_inode() {
        let _no_children = crate::testing::without_children();
        let diag = Diag::open_unproven().expect("sock_diag");
        for address in ["127.0.0.1:0", "[::1]:0"] {
            let (connected, accepted) = pair(address);
            let one = ends(&connected);
            connected
                .shutdown(std::net::Shutdown::Write)
                .expect("a FIN");
            let inode = diag.inode(one).expect("an answer");
            assert!(inode.is_some_and(|it| it != 0), "half-closed: {inode:?}");
            drop(connected);
            // Kept for the other end's sake.
            assert_eq!(diag.inode(one), Ok(Some(0)), "closed");
            drop(accepted);
        }
    }

    #[test]
    fn the_cgroup_of_a_listener_is_its_processs() {
        let diag = Diag::open().expect("sock_diag");
        let mut cgroups = Vec::new();
        for address in ["127.0.0.1:0", "[::]:0"] {
            let listener = TcpListener::bind(address).expect("a listener");
            let at = listener.local_addr().expect("bound");
            let at = SocketAddr::from((Ipv4Addr::LOCALHOST, at.port()));
            cgroups.push(diag.listeners_cgroup(at));
            drop(listener);
            assert_eq!(diag.listeners_cgroup(at), Ok(None));
        }
        let Ok(Some(Some(cgroup))) = cgroups[0] else {
            panic!("{cgroups:?}");
        };
        assert!(cgroup > 0 && cgroups[0] == cgroups[1], "{cgroups:?}");
    }

    #[test]
    fn a_unix_socket_has_the_peer_that_somebody_has_open() {
        let _no_children = crate::testing::without_children();
        let diag = Diag::open_unproven().expect("sock_diag");
        let inode = |fd: &Fd| memfd::stat(fd.raw()).expect("an inode").inode as u32;
        let (one, other) = crate::unix::seqpacket_pair().expect("a pair");
        assert_eq!(diag.unix_peer(one.raw()), Ok(Some(inode(&other))));
        drop(other);
        assert_eq!(diag.unix_peer(one.raw()), Ok(None), "closed");
        let alone = crate::unix::seqpacket().expect("a socket");
        assert_eq!(diag.unix_peer(alone.raw()), Ok(None), "not connected");
        let (tcp, _other) = pair("127.0.0.1:0");
        assert_eq!(diag.unix_peer(tcp.as_raw_fd()), Ok(None), "none of these");
    }

    #[test]
    fn a_half_closed_connection_is_not_established() {
        let diag = Diag::open().expect("sock_diag");
        let (connected, _accepted) = pair("127.0.0.1:0");
        let cookie = tcp::cookie(connected.as_raw_fd()).expect("a cookie");
        connected
            .shutdown(std::net::Shutdown::Write)
            .expect("a FIN");
        let state = diag.state(ends(&connected), 0, cookie).expect("an answer");
        assert!(
            state.is_some_and(|it| it != tcp::STATE_ESTABLISHED),
            "{state:?}"
        );
    }
}
