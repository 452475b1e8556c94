//! TCP sockets, through the C library.
#![allow(unsafe_code)]

use std::io;
use std::mem;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV4, SocketAddrV6};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

/// A TCP socket that does not block, for an address of this family.
///
/// Urgent data is read from it as data in its place (`SO_OOBINLINE`), not left out; also from what
/// a listener accepts. This must be set before there is a lane, which ends with it.
pub fn tcp(address: &SocketAddr) -> io::Result<OwnedFd> {
    let family = match address {
        SocketAddr::V4(_) => libc::AF_INET,
        SocketAddr::V6(_) => libc::AF_INET6,
    };
    let kind = libc::SOCK_STREAM | libc::SOCK_NONBLOCK | libc::SOCK_CLOEXEC;
    // SAFETY: takes no pointers.
    let raw = check(unsafe { libc::socket(family, kind, 0) })?;
    // SAFETY: the kernel gave this descriptor to nobody else.
    let fd = unsafe { OwnedFd::from_raw_fd(raw) };
    set(fd.as_fd(), libc::SOL_SOCKET, libc::SO_OOBINLINE, &1_i32)?;
    Ok(fd)
}

/// bind(2).
pub fn bind(fd: BorrowedFd<'_>, address: &SocketAddr) -> io::Result<()> {
    let (storage, length) = raw_address(address);
    // SAFETY: the storage holds an address of this length.
    check(unsafe { libc::bind(fd.as_raw_fd(), (&raw const storage).cast(), length) }).map(drop)
}

/// Begins to listen at an address, which later listeners may take over
/// (`SO_REUSEADDR`; one of IPv6 is not one of IPv4 as well).
pub fn listen(address: &SocketAddr, backlog: i32) -> io::Result<OwnedFd> {
    let fd = tcp(address)?;
    let socket = fd.as_fd();
    set(socket, libc::SOL_SOCKET, libc::SO_REUSEADDR, &1_i32)?;
    if address.is_ipv6() {
        set(socket, libc::IPPROTO_IPV6, libc::IPV6_V6ONLY, &1_i32)?;
    }
    bind(socket, address)?;
    // SAFETY: takes no pointers.
    check(unsafe { libc::listen(fd.as_raw_fd(), backlog) })?;
    Ok(fd)
}

/// The next connection, not blocking, and who made it. None: there is none.
pub fn accept(listener: BorrowedFd<'_>) -> io::Result<Option<(OwnedFd, SocketAddr)>> {
    let mut storage: libc::sockaddr_storage = zeroed_storage();
    let mut length = mem::size_of_val(&storage) as libc::socklen_t;
    let flags = libc::SOCK_NONBLOCK | libc::SOCK_CLOEXEC;
    // SAFETY: the storage is writable for the length named.
    let accepted = check(unsafe {
        libc::accept4(
            listener.as_raw_fd(),
            (&raw mut storage).cast(),
            &mut length,
            flags,
        )
    });
    match accepted {
        Ok(raw) => {
            // SAFETY: the kernel gave this descriptor to nobody else.
            let fd = unsafe { OwnedFd::from_raw_fd(raw) };
            Ok(Some((fd, address(&storage)?)))
        }
        // ECONNABORTED: it was reset before it was accepted (accept(2)).
        Err(error) => match error.raw_os_error() {
            Some(libc::EAGAIN | libc::ECONNABORTED | libc::EINTR) => Ok(None),
            _ => Err(error),
        },
    }
}

/// Begins to connect. True: it is connected already. False: the socket becomes writable when it is,
/// or has failed, which [`take_error`] tells.
pub fn connect(fd: BorrowedFd<'_>, address: &SocketAddr) -> io::Result<bool> {
    let (storage, length) = raw_address(address);
    // SAFETY: the storage holds an address of this length.
    let done = unsafe { libc::connect(fd.as_raw_fd(), (&raw const storage).cast(), length) };
    match check(done) {
        Ok(_) => Ok(true),
        Err(error) => match error.raw_os_error() {
            Some(libc::EINPROGRESS | libc::EINTR) => Ok(false),
            _ => Err(error),
        },
    }
}

/// Takes the socket's error, if it has one (`SO_ERROR`).
pub fn take_error(fd: BorrowedFd<'_>) -> io::Result<()> {
    let mut error = 0_i32;
    let mut length = mem::size_of_val(&error) as libc::socklen_t;
    // SAFETY: the number is writable for the length named.
    check(unsafe {
        libc::getsockopt(
            fd.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_ERROR,
            (&raw mut error).cast(),
            &mut length,
        )
    })?;
    match error {
        0 => Ok(()),
        error => Err(io::Error::from_raw_os_error(error)),
    }
}

/// getsockname(2).
pub fn local_address(fd: BorrowedFd<'_>) -> io::Result<SocketAddr> {
    let mut storage = zeroed_storage();
    let mut length = mem::size_of_val(&storage) as libc::socklen_t;
    // SAFETY: the storage is writable for the length named.
    check(unsafe { libc::getsockname(fd.as_raw_fd(), (&raw mut storage).cast(), &mut length) })?;
    address(&storage)
}

/// getpeername(2).
pub fn remote_address(fd: BorrowedFd<'_>) -> io::Result<SocketAddr> {
    let mut storage = zeroed_storage();
    let mut length = mem::size_of_val(&storage) as libc::socklen_t;
    // SAFETY: the storage is writable for the length named.
    check(unsafe { libc::getpeername(fd.as_raw_fd(), (&raw mut storage).cast(), &mut length) })?;
    address(&storage)
}

/// Small writes go at once (`TCP_NODELAY`).
pub fn send_at_once(fd: BorrowedFd<'_>) -> io::Result<()> {
    set(fd, libc::IPPROTO_TCP, libc::TCP_NODELAY, &1_i32)
}

/// Finds out about a peer that has gone without a word: an idle connection is asked about after
/// `idle_s` seconds, then every tenth of it, and has failed after three questions (tcp(7)).
pub fn keep_alive(fd: BorrowedFd<'_>, idle_s: u16) -> io::Result<()> {
    let idle_s = i32::from(idle_s.max(1));
    set(fd, libc::IPPROTO_TCP, libc::TCP_KEEPIDLE, &idle_s)?;
    let interval_s = (idle_s / 10).max(1);
    set(fd, libc::IPPROTO_TCP, libc::TCP_KEEPINTVL, &interval_s)?;
    set(fd, libc::IPPROTO_TCP, libc::TCP_KEEPCNT, &3_i32)?;
    set(fd, libc::SOL_SOCKET, libc::SO_KEEPALIVE, &1_i32)
}

/// Has [`keep_alive`] ask first after this time, also if the connection is idle already.
pub fn keep_alive_after(fd: BorrowedFd<'_>, idle_s: u16) -> io::Result<()> {
    let idle_s = i32::from(idle_s.max(1));
    set(fd, libc::IPPROTO_TCP, libc::TCP_KEEPIDLE, &idle_s)
}

/// What the peer gets when the socket is closed, by a call or with the process: a reset, or the end
/// of the stream (`SO_LINGER`).
pub fn reset_on_close(fd: BorrowedFd<'_>, reset: bool) -> io::Result<()> {
    let linger = libc::linger {
        l_onoff: reset.into(),
        l_linger: 0,
    };
    set(fd, libc::SOL_SOCKET, libc::SO_LINGER, &linger)
}

/// Bytes that are there, 0 at the end of the stream.
pub fn read(fd: BorrowedFd<'_>, into: &mut [u8]) -> io::Result<usize> {
    // SAFETY: the slice is writable for its length.
    let done = unsafe { libc::recv(fd.as_raw_fd(), into.as_mut_ptr().cast(), into.len(), 0) };
    check_size(done)
}

/// As many of these bytes as there is room for. A connection that was reset is an error, not a
/// signal.
pub fn write(fd: BorrowedFd<'_>, bytes: &[u8]) -> io::Result<usize> {
    let flags = libc::MSG_NOSIGNAL;
    // SAFETY: the slice is readable for its length.
    let done = unsafe { libc::send(fd.as_raw_fd(), bytes.as_ptr().cast(), bytes.len(), flags) };
    check_size(done)
}

/// The end of what this end sends.
pub fn end_of_stream(fd: BorrowedFd<'_>) -> io::Result<()> {
    // SAFETY: takes no pointers.
    check(unsafe { libc::shutdown(fd.as_raw_fd(), libc::SHUT_WR) }).map(drop)
}

/// Sets an option whose value is a plain structure of the kernel's.
fn set<T>(fd: BorrowedFd<'_>, level: i32, option: i32, value: &T) -> io::Result<()> {
    let length = mem::size_of::<T>() as libc::socklen_t;
    let value: *const T = value;
    // SAFETY: the value is readable for its size.
    check(unsafe { libc::setsockopt(fd.as_raw_fd(), level, option, value.cast(), length) })
        .map(drop)
}

fn zeroed_storage() -> libc::sockaddr_storage {
    // SAFETY: all bits zero are a valid sockaddr_storage of family AF_UNSPEC.
    unsafe { mem::zeroed() }
}

fn raw_address(address: &SocketAddr) -> (libc::sockaddr_storage, libc::socklen_t) {
    let mut storage = zeroed_storage();
    let length = match address {
        SocketAddr::V4(v4) => {
            let raw = libc::sockaddr_in {
                sin_family: libc::AF_INET as libc::sa_family_t,
                sin_port: v4.port().to_be(),
                sin_addr: libc::in_addr {
                    s_addr: u32::from_ne_bytes(v4.ip().octets()),
                },
                sin_zero: [0; 8],
            };
            // SAFETY: a sockaddr_storage has room and alignment for every address.
            unsafe { (&raw mut storage).cast::<libc::sockaddr_in>().write(raw) };
            mem::size_of::<libc::sockaddr_in>()
        }
        SocketAddr::V6(v6) => {
            let raw = libc::sockaddr_in6 {
                sin6_family: libc::AF_INET6 as libc::sa_family_t,
                sin6_port: v6.port().to_be(),
                sin6_flowinfo: v6.flowinfo(),
                sin6_addr: libc::in6_addr {
                    s6_addr: v6.ip().octets(),
                },
                sin6_scope_id: v6.scope_id(),
            };
            // SAFETY: a sockaddr_storage has room and alignment for every address.
            unsafe { (&raw mut storage).cast::<libc::sockaddr_in6>().write(raw) };
            mem::size_of::<libc::sockaddr_in6>()
        }
    };
    (storage, length as libc::socklen_t)
}

/// An address of the kernel's or the C library's. None: there is none, or it is of another family.
///
/// # Safety
/// It is null, or points to an address with as many bytes as its family has, and no fewer than a sockaddr.
pub(crate) unsafe fn address_at(at: *const libc::sockaddr) -> Option<SocketAddr> {
    // SAFETY: the caller promises null or the bytes of a sockaddr, which any bytes are.
    let family = unsafe { at.as_ref() }?.sa_family;
    let mut storage = zeroed_storage();
    let length = match i32::from(family) {
        libc::AF_INET => mem::size_of::<libc::sockaddr_in>(),
        libc::AF_INET6 => mem::size_of::<libc::sockaddr_in6>(),
        _ => return None,
    };
    // SAFETY: the caller has that many bytes, and a sockaddr_storage has room for them.
    unsafe { std::ptr::copy_nonoverlapping(at.cast::<u8>(), (&raw mut storage).cast(), length) };
    address(&storage).ok()
}

fn address(storage: &libc::sockaddr_storage) -> io::Result<SocketAddr> {
    match i32::from(storage.ss_family) {
        libc::AF_INET => {
            // SAFETY: the family says which address the storage holds.
            let raw = unsafe { &*(&raw const *storage).cast::<libc::sockaddr_in>() };
            let ip = Ipv4Addr::from(raw.sin_addr.s_addr.to_ne_bytes());
            Ok(SocketAddrV4::new(ip, u16::from_be(raw.sin_port)).into())
        }
        libc::AF_INET6 => {
            // SAFETY: the family says that the storage holds a sockaddr_in6, for which it has the alignment.
            let raw = unsafe { &*(&raw const *storage).cast::<libc::sockaddr_in6>() };
            let ip = Ipv6Addr::from(raw.sin6_addr.s6_addr);
            let port = u16::from_be(raw.sin6_port);
            Ok(SocketAddrV6::new(ip, port, raw.sin6_flowinfo, raw.sin6_scope_id).into())
        }
        _ => Err(io::Error::from(io::ErrorKind::Unsupported)),
    }
}

fn check(result: i32) -> io::Result<i32> {
    if result < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(result)
}

fn check_size(result: isize) -> io::Result<usize> {
    usize::try_from(result).map_err(|_| io::Error::last_os_error())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_read_as_they_were_written() {
        for text in ["127.0.0.1:80", "[fe80::1%7]:65535", "[::1]:1"] {
            let expected: SocketAddr = text.parse().unwrap();
            let (storage, _) = raw_address(&expected);
            assert_eq!(address(&storage).unwrap(), expected);
        }
        assert!(address(&zeroed_storage()).is_err());
    }

    #[test]
    fn a_connection_is_made_and_says_where_it_is() {
        for any in ["127.0.0.1:0", "[::1]:0"] {
            let listener = listen(&any.parse().unwrap(), 8).unwrap();
            assert!(accept(listener.as_fd()).unwrap().is_none());
            let at = local_address(listener.as_fd()).unwrap();
            let client = tcp(&at).unwrap();
            // On loopback the connection may be there at once.
            connect(client.as_fd(), &at).unwrap();
            let accepted = std::iter::from_fn(|| Some(accept(listener.as_fd()).unwrap()));
            let (server, from) = accepted.flatten().next().unwrap();
            take_error(client.as_fd()).unwrap();
            assert_eq!(local_address(client.as_fd()).unwrap(), from);
            assert_eq!(remote_address(client.as_fd()).unwrap(), at);
            assert_eq!(remote_address(server.as_fd()).unwrap(), from);
            keep_alive(server.as_fd(), 60).unwrap();
            send_at_once(server.as_fd()).unwrap();
        }
    }
}
