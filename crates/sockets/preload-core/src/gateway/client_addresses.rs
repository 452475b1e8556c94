//! The client addresses of descriptors: what `getpeername` and `getsockname` say.
#![allow(unsafe_code)]

use core::ffi::c_int;
use core::ptr::NonNull;
use core::sync::atomic::{AtomicPtr, AtomicU64, Ordering};
use std::net::{IpAddr, Ipv6Addr, SocketAddr};

use sluice_sys::errno::Errno;
use sluice_sys::tcp;

use super::ClientAddresses;
use crate::fds::FDS_MAX;

/// Three addresses of 16 bytes and three ports, with a word that says that they are there, and the
/// socket's cookie.
const WORDS: usize = 8;
const COOKIE: usize = 7;
static TABLE: AtomicPtr<[AtomicU64; WORDS]> = AtomicPtr::new(core::ptr::null_mut());

/// Once is enough: what is known stays.
pub fn init() {
    if !TABLE.load(Ordering::Acquire).is_null() {
        return;
    }
    if let Some(base) = crate::memory::zeroed(FDS_MAX * size_of::<[AtomicU64; WORDS]>()) {
        let base: NonNull<[AtomicU64; WORDS]> = base.cast();
        let (none, order) = (core::ptr::null_mut(), Ordering::AcqRel);
        // Another thread was faster: its table counts, this one's address space is lost.
        let _ = TABLE.compare_exchange(none, base.as_ptr(), order, Ordering::Relaxed);
    }
}

fn row(fd: c_int) -> Option<&'static [AtomicU64; WORDS]> {
    let table = TABLE.load(Ordering::Acquire);
    if table.is_null() || fd as u32 as usize >= FDS_MAX {
        return None;
    }
    // SAFETY: the table has FDS_MAX rows and lives as long as the process.
    Some(unsafe { &*table.add(fd as usize) })
}

pub fn set(fd: c_int, addresses: &ClientAddresses) {
    let (Some(row), Ok(cookie)) = (row(fd), tcp::cookie(fd)) else {
        return;
    };
    let all = [addresses.carrier, addresses.client, addresses.outside];
    let mut ports = 1_u64;
    for (at, address) in all.iter().enumerate() {
        let ip = match address.ip() {
            IpAddr::V4(ip) => ip.to_ipv6_mapped(),
            IpAddr::V6(ip) => ip,
        };
        let bits = u128::from(ip);
        row[1 + 2 * at].store((bits >> 64) as u64, Ordering::Relaxed);
        row[2 + 2 * at].store(bits as u64, Ordering::Relaxed);
        ports |= u64::from(address.port()) << (16 + 16 * at);
    }
    row[COOKIE].store(cookie, Ordering::Relaxed);
    row[0].store(ports, Ordering::Release);
}

pub fn forget(fd: c_int) {
    if let Some(row) = row(fd)
        && row[0].load(Ordering::Relaxed) != 0
    {
        row[0].store(0, Ordering::Relaxed);
    }
}

/// What the descriptor's connection looks like, if it is still that connection.
pub fn get(fd: c_int) -> Option<ClientAddresses> {
    let row = row(fd)?;
    let ports = row[0].load(Ordering::Acquire);
    if ports == 0 {
        return None;
    }
    let address = |at: usize| {
        let high = row[1 + 2 * at].load(Ordering::Relaxed);
        let low = row[2 + 2 * at].load(Ordering::Relaxed);
        let ip = Ipv6Addr::from(u128::from(high) << 64 | u128::from(low));
        SocketAddr::new(ip.to_canonical(), (ports >> (16 + 16 * at)) as u16)
    };
    let addresses = ClientAddresses {
        carrier: address(0),
        client: address(1),
        outside: address(2),
    };
    // The number may name another socket by now, of which no call told: all connections out have the same
    // peer. And the socket may have been connected anew.
    let cookie = row[COOKIE].load(Ordering::Relaxed);
    let is_it = tcp::cookie(fd) == Ok(cookie)
        && match tcp::peer_address(fd) {
            Ok(now) => (now.ip(), now.port()) == (addresses.carrier.ip(), addresses.carrier.port()),
            // It was reset, perhaps since the kernel was asked by the program's own call. One that the program
            // has disconnected (connect(2), AF_UNSPEC) has no address any more, unless it was bound to it.
            Err(Errno(libc::ENOTCONN)) => {
                tcp::local_address(fd).is_ok_and(|own| !own.ip().is_unspecified())
            }
            Err(_) => false,
        };
    is_it.then_some(addresses)
}
