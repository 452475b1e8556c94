//! What the host has.
#![allow(unsafe_code)]

use std::io;
use std::net::IpAddr;
use std::ptr;

use crate::socket;

/// Interfaces with an address that are looked at.
const ADDRESSES_MAX: usize = 4096;

/// The addresses of all interfaces that are up, in the network namespace of this process
/// (getifaddrs(3)), each once.
pub fn addresses() -> io::Result<Vec<IpAddr>> {
    let mut first: *mut libc::ifaddrs = ptr::null_mut();
    // SAFETY: the pointer is writable for the call.
    if unsafe { libc::getifaddrs(&mut first) } < 0 {
        return Err(io::Error::last_os_error());
    }
    let mut addresses = Vec::new();
    let mut next = first;
    for _ in 0..ADDRESSES_MAX {
        // SAFETY: the list of getifaddrs is whole until it is freed, and ends with a null pointer.
        let Some(entry) = (unsafe { next.as_ref() }) else {
            break;
        };
        next = entry.ifa_next;
        let is_up = entry.ifa_flags & libc::IFF_UP as u32 != 0;
        // SAFETY: the address is null or one of its family, which lives as long as the list.
        let address = unsafe { socket::address_at(entry.ifa_addr) };
        addresses.extend(address.filter(|_| is_up).map(|address| address.ip()));
    }
    // SAFETY: it came from getifaddrs, and nothing refers to it any more.
    unsafe { libc::freeifaddrs(first) };
    addresses.sort_unstable();
    addresses.dedup();
    Ok(addresses)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn loopback_is_there() {
        let addresses = addresses().unwrap();
        assert!(addresses.contains(&IpAddr::from([127, 0, 0, 1])));
        let mut once = addresses.clone();
        once.dedup();
        assert_eq!(once, addresses);
    }
}
