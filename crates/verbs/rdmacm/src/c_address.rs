//! `struct sockaddr` of programs, both ways.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use libc::{sockaddr, sockaddr_in, sockaddr_in6, sockaddr_storage, socklen_t};

use super::Errno;
use super::address::Address;

/// Reads an address. `EINVAL` for NULL, `EAFNOSUPPORT` for a family without IP addresses.
///
/// # Safety
/// `pointer` is NULL or points to a socket address that is as long as its family says.
pub unsafe fn read(pointer: *const sockaddr) -> Result<Address, Errno> {
    if pointer.is_null() {
        return Err(Errno::INVAL);
    }
    // SAFETY: not null, and a socket address has a family.
    match i32::from(unsafe { pointer.cast::<u16>().read_unaligned() }) {
        libc::AF_INET => {
            // SAFETY: the family says that it is this long.
            let v4 = unsafe { pointer.cast::<sockaddr_in>().read_unaligned() };
            let ip = Ipv4Addr::from(u32::from_be(v4.sin_addr.s_addr));
            Ok(Address::new(ip.into(), u16::from_be(v4.sin_port)))
        }
        libc::AF_INET6 => {
            // SAFETY: the family says that it is this long.
            let v6 = unsafe { pointer.cast::<sockaddr_in6>().read_unaligned() };
            Ok(Address {
                ip: Ipv6Addr::from(v6.sin6_addr.s6_addr).into(),
                port: u16::from_be(v6.sin6_port),
                scope: v6.sin6_scope_id,
            })
        }
        _ => Err(Errno(libc::EAFNOSUPPORT)),
    }
}

/// Reads an address whose length the caller gives: `EINVAL` when it is too short.
///
/// # Safety
/// `pointer` is NULL or points to `len` bytes.
pub unsafe fn read_sized(pointer: *const sockaddr, len: socklen_t) -> Result<Address, Errno> {
    let len = len as usize;
    if pointer.is_null() || len < size_of::<u16>() {
        return Err(Errno::INVAL);
    }
    // SAFETY: there are at least two bytes.
    let needed = match i32::from(unsafe { pointer.cast::<u16>().read_unaligned() }) {
        libc::AF_INET => size_of::<sockaddr_in>(),
        libc::AF_INET6 => size_of::<sockaddr_in6>(),
        _ => return Err(Errno(libc::EAFNOSUPPORT)),
    };
    if len < needed {
        return Err(Errno::INVAL);
    }
    // SAFETY: it is as long as its family says.
    unsafe { read(pointer) }
}

/// The address in C, and its length.
pub fn write(address: &Address) -> (sockaddr_storage, socklen_t) {
    // SAFETY: all zeros is a valid sockaddr_storage.
    let mut storage: sockaddr_storage = unsafe { std::mem::zeroed() };
    match address.ip {
        IpAddr::V4(ip) => {
            let v4 = sockaddr_in {
                sin_family: libc::AF_INET as u16,
                sin_port: address.port.to_be(),
                sin_addr: libc::in_addr {
                    s_addr: u32::from(ip).to_be(),
                },
                sin_zero: [0; 8],
            };
            // SAFETY: a sockaddr_storage has room for every kind, and its alignment.
            unsafe { (&raw mut storage).cast::<sockaddr_in>().write(v4) };
            (storage, size_of::<sockaddr_in>() as socklen_t)
        }
        IpAddr::V6(ip) => {
            let v6 = sockaddr_in6 {
                sin6_family: libc::AF_INET6 as u16,
                sin6_port: address.port.to_be(),
                sin6_flowinfo: 0,
                sin6_addr: libc::in6_addr {
                    s6_addr: ip.octets(),
                },
                sin6_scope_id: address.scope,
            };
            // SAFETY: a sockaddr_storage has room for every kind, and its alignment.
            unsafe { (&raw mut storage).cast::<sockaddr_in6>().write(v6) };
            (storage, size_of::<sockaddr_in6>() as socklen_t)
        }
    }
}

/// Gives an address to a program as `getsockname(2)` does: cut to the room it has, the
/// true length beside it.
///
/// # Safety
/// `len` is NULL or valid; `pointer` has room for as many bytes as `len` says.
pub unsafe fn give(address: &Address, pointer: *mut sockaddr, len: *mut socklen_t) {
    if pointer.is_null() || len.is_null() {
        return;
    }
    let (storage, true_len) = write(address);
    // SAFETY: the caller's contract.
    unsafe {
        let room = (*len).min(true_len) as usize;
        std::ptr::copy_nonoverlapping((&raw const storage).cast::<u8>(), pointer.cast(), room);
        *len = true_len;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read() {
        let v4 = Address::new(Ipv4Addr::new(10, 0, 0, 9).into(), 7471);
        let v6 = Address {
            ip: Ipv6Addr::LOCALHOST.into(),
            port: 1,
            scope: 2,
        };
        for address in [v4, v6] {
            let (storage, len) = write(&address);
            let pointer = (&raw const storage).cast();
            // SAFETY: the storage lives and is as long as said.
            unsafe {
                assert_eq!(read(pointer), Ok(address));
                assert_eq!(read_sized(pointer, len), Ok(address));
                assert_eq!(read_sized(pointer, len - 1), Err(Errno::INVAL));
            }
        }
        // SAFETY: NULL is allowed.
        assert_eq!(unsafe { read(std::ptr::null()) }, Err(Errno::INVAL));
    }
}
