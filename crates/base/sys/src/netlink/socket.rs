//! Netlink sockets (netlink(7)), without libc's socket functions, which programs that carry this
//! code may interpose.
#![allow(unsafe_code)]

use crate::errno::Errno;
use crate::raw::{check, int, syscall3, syscall6};
use crate::unix::Fd;

/// Bytes of `struct sockaddr_nl`: family, pad, port id, groups.
const NAME_BYTES: usize = 12;

fn name(groups: u32) -> [u8; NAME_BYTES] {
    let mut name = [0; NAME_BYTES];
    let (front, back) = name.split_at_mut(8);
    if let Some(family) = front.first_chunk_mut() {
        *family = (libc::AF_NETLINK as u16).to_ne_bytes();
    }
    back.copy_from_slice(&groups.to_ne_bytes());
    name
}

/// A socket of a protocol (`NETLINK_ROUTE` and others) in these of its multicast groups,
/// close-on-exec and non-blocking.
///
/// # Errors
/// Those of socket(2) and bind(2).
pub fn open(protocol: i32, groups: u32) -> Result<Fd, Errno> {
    let kind = libc::SOCK_RAW | libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK;
    let (family, protocol) = (int(libc::AF_NETLINK), int(protocol));
    // SAFETY: socket takes integers only.
    let ret = unsafe { syscall3(libc::SYS_socket, family, int(kind), protocol) };
    let socket = Fd::own(check(ret)? as i32);
    let name = name(groups);
    let (raw, address) = (int(socket.raw()), name.as_ptr() as usize);
    // SAFETY: the kernel reads the bytes of `name`.
    check(unsafe { syscall3(libc::SYS_bind, raw, address, NAME_BYTES) })?;
    Ok(socket)
}

/// Sends a message to the kernel.
///
/// # Errors
/// Those of sendto(2).
pub fn send(socket: &Fd, message: &[u8]) -> Result<(), Errno> {
    let name = name(0);
    loop {
        // SAFETY: the kernel reads the bytes of `message` and of `name`.
        let ret = unsafe {
            syscall6(
                libc::SYS_sendto,
                int(socket.raw()),
                message.as_ptr() as usize,
                message.len(),
                int(libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL),
                name.as_ptr() as usize,
                NAME_BYTES,
            )
        };
        match check(ret) {
            Err(Errno::INTR) => {}
            other => return other.map(drop),
        }
    }
}

/// Takes a datagram of the kernel's: how many bytes of `buffer` it fills, 0 for one that is
/// somebody else's.
///
/// # Errors
/// `EMSGSIZE` when it is longer, `EAGAIN` when there is none, `ENOBUFS` when some were lost.
pub fn receive(socket: &Fd, buffer: &mut [u8]) -> Result<usize, Errno> {
    let mut from = [0_u8; NAME_BYTES];
    let mut from_bytes = NAME_BYTES as u32;
    let length = loop {
        // SAFETY: the kernel writes at most the bytes of `buffer`, those of `from`, and how many
        // the latter are. With MSG_TRUNC it says how long the datagram is, not what it wrote.
        let ret = unsafe {
            syscall6(
                libc::SYS_recvfrom,
                int(socket.raw()),
                buffer.as_mut_ptr() as usize,
                buffer.len(),
                int(libc::MSG_DONTWAIT | libc::MSG_TRUNC),
                from.as_mut_ptr() as usize,
                &raw mut from_bytes as usize,
            )
        };
        match check(ret) {
            Err(Errno::INTR) => {}
            other => break other?,
        }
    };
    if length > buffer.len() {
        return Err(Errno(libc::EMSGSIZE));
    }
    let [_, _, _, _, p0, p1, p2, p3, ..] = from;
    if [p0, p1, p2, p3] != [0; 4] {
        return Ok(0);
    }
    Ok(length)
}
