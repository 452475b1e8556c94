//! What the kernel says about a TCP socket.
#![allow(unsafe_code)]

use core::mem::size_of;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV4, SocketAddrV6};
use std::os::fd::RawFd;

use crate::errno::Errno;
use crate::raw::{check, int, syscall3};
use crate::unix::get_option;

/// `SO_COOKIE` (Linux 4.12): a number that no other socket has had since boot.
const SO_COOKIE: i32 = 57;
/// `SO_NETNS_COOKIE` (Linux 5.14): the same for the network namespace of the socket.
const SO_NETNS_COOKIE: i32 = 71;

/// `TCP_ESTABLISHED` of `enum` in the kernel's `include/net/tcp_states.h`.
pub const STATE_ESTABLISHED: u8 = 1;
/// `TCP_CLOSE_WAIT`: the peer has sent its FIN, this end has not.
pub const STATE_CLOSE_WAIT: u8 = 8;
/// `TCP_LISTEN`.
pub const STATE_LISTEN: u8 = 10;

/// Bytes of `struct tcp_info` that we ask for: up to and with `tcpi_data_segs_out`.
const INFO_BYTES: usize = 160;

/// The fields of the kernel's `struct tcp_info` that Sluice uses (`include/uapi/linux/tcp.h`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TcpInfo {
    /// `tcpi_state`, see [`STATE_ESTABLISHED`].
    pub state: u8,
    /// Segments sent and not yet acknowledged.
    pub unacked_segments: u32,
    /// Sequence space that the peer has acknowledged. It counts the SYN on the end that
    /// connected, and the FIN.
    pub bytes_acked: u64,
    /// Sequence space received in order. It counts the peer's FIN, but not its SYN.
    pub bytes_received: u64,
    /// Bytes written and not yet sent for the first time.
    pub notsent_bytes: u32,
    /// Retransmitted segments so far.
    pub retransmits_total: u32,
    /// All segments sent and received, with and without data.
    pub segments_out: u32,
    pub segments_in: u32,
    /// Segments with data, sent and received.
    pub data_segments_in: u32,
    pub data_segments_out: u32,
    /// Smoothed round-trip time and its smallest observed value, in microseconds.
    pub rtt_us: u32,
    pub rtt_min_us: u32,
}

/// `TCP_INFO`. `EPROTO` when the kernel is too old to count bytes (before Linux 4.6).
pub fn info(fd: RawFd) -> Result<TcpInfo, Errno> {
    let mut raw = [0_u8; INFO_BYTES];
    let len = get_option(fd, libc::IPPROTO_TCP, libc::TCP_INFO, &mut raw)?;
    if len < INFO_BYTES {
        return Err(Errno::PROTO);
    }
    Ok(TcpInfo {
        state: raw[0],
        unacked_segments: u32_at(&raw, 24),
        rtt_us: u32_at(&raw, 68),
        retransmits_total: u32_at(&raw, 100),
        bytes_acked: u64_at(&raw, 120),
        bytes_received: u64_at(&raw, 128),
        segments_out: u32_at(&raw, 136),
        segments_in: u32_at(&raw, 140),
        notsent_bytes: u32_at(&raw, 144),
        rtt_min_us: u32_at(&raw, 148),
        data_segments_in: u32_at(&raw, 152),
        data_segments_out: u32_at(&raw, 156),
    })
}

fn u32_at(raw: &[u8; INFO_BYTES], at: usize) -> u32 {
    u32::from_ne_bytes([raw[at], raw[at + 1], raw[at + 2], raw[at + 3]])
}

fn u64_at(raw: &[u8; INFO_BYTES], at: usize) -> u64 {
    let mut bytes = [0; 8];
    bytes.copy_from_slice(&raw[at..at + 8]);
    u64::from_ne_bytes(bytes)
}

/// `SIOCINQ`: bytes received in order that the program has not read yet.
pub fn unread_bytes(fd: RawFd) -> Result<u32, Errno> {
    ioctl_count(fd, libc::FIONREAD)
}

/// `SIOCOUTQ`: bytes written that the peer has not acknowledged yet.
pub fn unacked_bytes(fd: RawFd) -> Result<u32, Errno> {
    ioctl_count(fd, libc::TIOCOUTQ)
}

fn ioctl_count(fd: RawFd, request: libc::Ioctl) -> Result<u32, Errno> {
    let mut count = 0_i32;
    // SAFETY: both requests write one int through the pointer.
    let ret = unsafe {
        syscall3(
            libc::SYS_ioctl,
            int(fd),
            request as usize,
            &raw mut count as usize,
        )
    };
    check(ret)?;
    u32::try_from(count).map_err(|_| Errno::PROTO)
}

/// The ports of a connection: its own, and the peer's.
///
/// # Errors
/// Those of getsockname(2) and getpeername(2).
pub fn ports(fd: RawFd) -> Result<[u16; 2], Errno> {
    Ok([local_address(fd)?.port(), peer_address(fd)?.port()])
}

/// Breaks a connection off: everybody who holds it is told `ECONNRESET`, and so is the peer
/// (`AF_UNSPEC`, connect(2)). Threads that sleep in a read of it are woken; Linux 6.7 and later tell those `EPIPE`.
pub fn reset(fd: RawFd) {
    for _ in 0..RESETS_MAX {
        if disconnect(fd) != Err(Errno(libc::EBUSY)) {
            return;
        }
        // Some kernels refuse while threads sleep there (Linux 6.4 to 6.6, and stable ones of that time).
        // SAFETY: shutdown and sched_yield take numbers.
        unsafe {
            syscall3(libc::SYS_shutdown, int(fd), int(libc::SHUT_RD), 0);
            syscall3(libc::SYS_sched_yield, 0, 0, 0);
        }
    }
}

/// Attempts to reset a connection, until threads that sleep in it have woken.
const RESETS_MAX: u32 = 10_000;

fn disconnect(fd: RawFd) -> Result<usize, Errno> {
    let nobody = libc::sockaddr {
        sa_family: libc::AF_UNSPEC as u16,
        sa_data: [0; 14],
    };
    // SAFETY: connect reads one address.
    check(unsafe {
        syscall3(
            libc::SYS_connect,
            int(fd),
            &raw const nobody as usize,
            size_of::<libc::sockaddr>(),
        )
    })
}

/// `SO_DOMAIN`, `SO_TYPE` and `SO_PROTOCOL` say that this is a TCP socket over IPv4 or IPv6.
///
/// `ENOTSOCK` for something that is no socket.
pub fn is_tcp(fd: RawFd) -> Result<bool, Errno> {
    if protocol(fd)? != libc::IPPROTO_TCP {
        return Ok(false);
    }
    let domain = option_i32(fd, libc::SO_DOMAIN)?;
    let kind = option_i32(fd, libc::SO_TYPE)?;
    Ok(kind == libc::SOCK_STREAM && (domain == libc::AF_INET || domain == libc::AF_INET6))
}

/// `SO_PROTOCOL`: `IPPROTO_TCP` for TCP, but also for raw sockets of that protocol, on which
/// [`info`] fails. `ENOTSOCK` for something that is no socket.
pub fn protocol(fd: RawFd) -> Result<i32, Errno> {
    option_i32(fd, libc::SO_PROTOCOL)
}

fn option_i32(fd: RawFd, name: i32) -> Result<i32, Errno> {
    let mut value = [0; 4];
    match get_option(fd, libc::SOL_SOCKET, name, &mut value)? {
        4 => Ok(i32::from_ne_bytes(value)),
        _ => Err(Errno::PROTO),
    }
}

/// `SO_COOKIE`: tells this socket from all others since boot.
pub fn cookie(fd: RawFd) -> Result<u64, Errno> {
    option_u64(fd, SO_COOKIE)
}

/// `SO_NETNS_COOKIE`: tells the network namespace in which this socket was made from all others.
pub fn netns_cookie(fd: RawFd) -> Result<u64, Errno> {
    option_u64(fd, SO_NETNS_COOKIE)
}

/// `SO_BINDTOIFINDEX`: the interface or VRF that the socket is bound to, 0 for none.
///
/// Addresses and ports name one connection only among the sockets with the same binding.
pub fn bound_interface(fd: RawFd) -> Result<u32, Errno> {
    u32::try_from(option_i32(fd, libc::SO_BINDTOIFINDEX)?).map_err(|_| Errno::PROTO)
}

fn option_u64(fd: RawFd, name: i32) -> Result<u64, Errno> {
    let mut value = [0; 8];
    match get_option(fd, libc::SOL_SOCKET, name, &mut value)? {
        8 => Ok(u64::from_ne_bytes(value)),
        _ => Err(Errno::PROTO),
    }
}

/// The local address; v4-mapped IPv6 addresses come back as IPv4.
///
/// `EAFNOSUPPORT` for sockets of other families.
pub fn local_address(fd: RawFd) -> Result<SocketAddr, Errno> {
    address(fd, libc::SYS_getsockname)
}

/// The peer's address, as [`local_address`]; `ENOTCONN` when there is none.
pub fn peer_address(fd: RawFd) -> Result<SocketAddr, Errno> {
    address(fd, libc::SYS_getpeername)
}

#[repr(C, align(8))]
struct AddressBuffer([u8; ADDRESS_BYTES]);

const ADDRESS_BYTES: usize = size_of::<libc::sockaddr_in6>();

fn address(fd: RawFd, call: i64) -> Result<SocketAddr, Errno> {
    let mut buffer = AddressBuffer([0; ADDRESS_BYTES]);
    let mut len = ADDRESS_BYTES as libc::socklen_t;
    // SAFETY: the kernel writes at most `len` bytes of address and the length.
    let ret = unsafe {
        syscall3(
            call,
            int(fd),
            buffer.0.as_mut_ptr() as usize,
            &raw mut len as usize,
        )
    };
    check(ret)?;
    parse_address(buffer.0.get(..len as usize).unwrap_or(&buffer.0))
}

/// Reads a `sockaddr_in` or `sockaddr_in6`; v4-mapped IPv6 addresses come back as IPv4.
///
/// `EINVAL` when the bytes are too few, `EAFNOSUPPORT` for other families.
pub fn parse_address(raw: &[u8]) -> Result<SocketAddr, Errno> {
    let family = *raw.first_chunk::<2>().ok_or(Errno::INVAL)?;
    let port = |raw: &[u8]| u16::from_be_bytes([raw[2], raw[3]]);
    match i32::from(u16::from_ne_bytes(family)) {
        libc::AF_INET => {
            let raw = raw.first_chunk::<8>().ok_or(Errno::INVAL)?;
            let ip = Ipv4Addr::new(raw[4], raw[5], raw[6], raw[7]);
            Ok(SocketAddr::V4(SocketAddrV4::new(ip, port(raw))))
        }
        libc::AF_INET6 => {
            let raw = raw.first_chunk::<ADDRESS_BYTES>().ok_or(Errno::INVAL)?;
            let mut octets = [0; 16];
            octets.copy_from_slice(&raw[8..24]);
            let flow = u32::from_be_bytes([raw[4], raw[5], raw[6], raw[7]]);
            let scope = u32::from_ne_bytes([raw[24], raw[25], raw[26], raw[27]]);
            let v6 = SocketAddrV6::new(Ipv6Addr::from(octets), port(raw), flow, scope);
            Ok(match v6.ip().to_canonical() {
                IpAddr::V4(ip) => SocketAddr::V4(SocketAddrV4::new(ip, v6.port())),
                IpAddr::V6(_) => SocketAddr::V6(v6),
            })
        }
        _ => Err(Errno(libc::EAFNOSUPPORT)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Read, Write};
    use std::net::{TcpListener, TcpStream};
    use std::os::fd::AsRawFd;

    fn pair(listen: &str) -> (TcpStream, TcpStream) {
        let listener = TcpListener::bind(listen).unwrap();
        let a = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (b, _) = listener.accept().unwrap();
        (a, b)
    }

    #[test]
    fn addresses_agree_with_std_in_both_families() {
        for listen in ["127.0.0.1:0", "[::1]:0"] {
            let (a, b) = pair(listen);
            let fd = a.as_raw_fd();
            assert_eq!(local_address(fd), Ok(a.local_addr().unwrap()));
            assert_eq!(peer_address(fd), Ok(a.peer_addr().unwrap()));
            assert_eq!(local_address(b.as_raw_fd()), peer_address(fd));
        }
    }

    #[test]
    fn a_v4_mapped_address_is_the_v4_address() {
        let listener = TcpListener::bind("[::]:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let a = TcpStream::connect(("127.0.0.1", port)).unwrap();
        let (b, _) = listener.accept().unwrap();
        assert_eq!(peer_address(b.as_raw_fd()), Ok(a.local_addr().unwrap()));
    }

    #[test]
    fn cookies_tell_sockets_apart_and_namespaces_not() {
        let (a, b) = pair("127.0.0.1:0");
        let (a, b) = (a.as_raw_fd(), b.as_raw_fd());
        assert_ne!(cookie(a).unwrap(), cookie(b).unwrap());
        assert_eq!(cookie(a), cookie(a));
        assert_eq!(bound_interface(a), Ok(0));
        assert_eq!(netns_cookie(a).unwrap(), netns_cookie(b).unwrap());
    }

    #[test]
    fn byte_counts_follow_what_was_written_and_read() {
        let (mut a, mut b) = pair("127.0.0.1:0");
        a.write_all(&[1; 1000]).unwrap();
        b.read_exact(&mut [0; 400]).unwrap();
        let (fa, fb) = (a.as_raw_fd(), b.as_raw_fd());
        let written = loop {
            let unacked = unacked_bytes(fa).unwrap();
            let acked = info(fa).unwrap().bytes_acked;
            // Otherwise an acknowledgement has come between the two.
            if unacked_bytes(fa) == Ok(unacked) {
                break acked + u64::from(unacked) - 1;
            }
        };
        let received = info(fb).unwrap().bytes_received;
        assert_eq!(written, 1000);
        assert_eq!(received, 1000);
        assert_eq!(unread_bytes(fb), Ok(600));
        assert_eq!(info(fb).unwrap().state, STATE_ESTABLISHED);
    }

    #[test]
    fn other_descriptors_are_told_from_tcp() {
        let udp = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
        assert_eq!(is_tcp(udp.as_raw_fd()), Ok(false));
        let (unix, _other) = crate::unix::seqpacket_pair().unwrap();
        assert_eq!(is_tcp(unix.raw()), Ok(false));
        let file = std::fs::File::open("/dev/null").unwrap();
        assert_eq!(is_tcp(file.as_raw_fd()), Err(Errno(libc::ENOTSOCK)));
        let (a, _b) = pair("127.0.0.1:0");
        assert_eq!(is_tcp(a.as_raw_fd()), Ok(true));
    }

    #[test]
    fn short_and_foreign_addresses_are_refused() {
        assert_eq!(parse_address(&[]), Err(Errno::INVAL));
        assert_eq!(parse_address(&[2, 0, 1]), Err(Errno::INVAL));
        assert_eq!(parse_address(&[10, 0, 1, 2, 3, 4, 5, 6]), Err(Errno::INVAL));
        assert_eq!(parse_address(&[1, 0, 47]), Err(Errno(libc::EAFNOSUPPORT)));
    }
}
