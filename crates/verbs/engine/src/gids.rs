//! The host's addresses as the kernel has them.
#![allow(unsafe_code)]

use std::ffi::CStr;

use sluice_verbs_model::gids::{GidEntry, ROCE_V2, mapped};
use sluice_verbs_model::types::Gid;

/// The addresses of the host: those that mean the same on every interface, then link-local ones,
/// the loopback's last. Programs that are told no index take the first entry (libfabric does), and
/// with it they reach the most hosts.
pub(crate) fn host() -> Vec<GidEntry> {
    let mut list: *mut libc::ifaddrs = core::ptr::null_mut();
    // SAFETY: the library writes one pointer to a list that is ours until freeifaddrs.
    if unsafe { libc::getifaddrs(&raw mut list) } != 0 {
        return Vec::new();
    }
    let mut entries: Vec<(u8, GidEntry)> = Vec::new();
    let mut next = list;
    // SAFETY: the list ends with a null pointer and every element is a valid ifaddrs.
    while let Some(interface) = unsafe { next.as_ref() } {
        next = interface.ifa_next;
        let up = interface.ifa_flags & libc::IFF_UP as u32 != 0;
        if !up || interface.ifa_addr.is_null() || interface.ifa_name.is_null() {
            continue;
        }
        // SAFETY: an address that is not null has at least its family; those of AF_INET and
        // AF_INET6 are whole (getifaddrs(3)). The name is a C string.
        let (gid, ifindex) = unsafe {
            let gid = match i32::from((*interface.ifa_addr).sa_family) {
                libc::AF_INET => {
                    let address = interface.ifa_addr.cast::<libc::sockaddr_in>();
                    mapped((*address).sin_addr.s_addr.to_ne_bytes())
                }
                libc::AF_INET6 => {
                    let address = interface.ifa_addr.cast::<libc::sockaddr_in6>();
                    Gid((*address).sin6_addr.s6_addr)
                }
                _ => continue,
            };
            (
                gid,
                libc::if_nametoindex(CStr::from_ptr(interface.ifa_name).as_ptr()),
            )
        };
        let loopback = interface.ifa_flags & libc::IFF_LOOPBACK as u32 != 0;
        let rank = match gid.0 {
            _ if loopback => 2,
            [0xfe, 0x80, ..] => 1,
            _ => 0,
        };
        let entry = GidEntry {
            gid,
            gid_type: ROCE_V2,
            ndev_ifindex: ifindex,
        };
        entries.push((rank, entry));
    }
    // SAFETY: the list from above, freed once.
    unsafe { libc::freeifaddrs(list) };
    entries.sort_by_key(|(rank, _)| *rank);
    entries.into_iter().map(|(_, entry)| entry).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_loopback_is_among_the_hosts_addresses() {
        let loopback = mapped([127, 0, 0, 1]);
        let host = host();
        assert!(host.iter().any(|entry| entry.gid == loopback), "{host:?}");
    }
}
