//! rsocket(7): stream sockets over RDMA writes. A datagram rsocket is the kernel's socket.
//!
//! From the inside out: `wire` is what two sockets say to each other, `region` memory that the peer
//! may write, `stream` the bytes of a connection, `socket` the life of a socket, and on top of them
//! the C calls: `api`, `options`, `poll`. `crates/verbs/ibverbs` exports them.
#![allow(unsafe_code)]

pub mod api;
pub mod options;
pub mod poll;
mod region;
mod socket;
mod stream;
#[cfg(test)]
mod tests;
pub mod wire;

use std::collections::HashMap;
use std::os::fd::RawFd;
use std::sync::{Arc, OnceLock, PoisonError, RwLock};

use sluice_rdmacm::Errno;
use sluice_verbs_abi as ffi;
use socket::Socket;

#[derive(Clone)]
enum Kind {
    Stream(Arc<Socket>),
    /// The kernel's own socket, for datagrams.
    Datagram,
}

fn table() -> &'static RwLock<HashMap<RawFd, Kind>> {
    static TABLE: OnceLock<RwLock<HashMap<RawFd, Kind>>> = OnceLock::new();
    TABLE.get_or_init(RwLock::default)
}

fn find(fd: RawFd) -> Option<Kind> {
    let table = table().read().unwrap_or_else(PoisonError::into_inner);
    table.get(&fd).cloned()
}

fn kind(fd: RawFd) -> Result<Kind, Errno> {
    find(fd).ok_or(Errno::BADF)
}

fn insert(fd: RawFd, kind: Kind) {
    let mut table = table().write().unwrap_or_else(PoisonError::into_inner);
    table.insert(fd, kind);
}

fn remove(fd: RawFd) -> Option<Kind> {
    let mut table = table().write().unwrap_or_else(PoisonError::into_inner);
    table.remove(&fd)
}
