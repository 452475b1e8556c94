//! How many bytes of a stream went through a kernel socket, by the kernel's own counts: they
//! stay true across fork, exec and reads that nobody told us of.

use crate::kernel::kernel_events;
use sluice_sys::errno::Errno;
use sluice_sys::tcp;

/// Who opened the connection; it decides how the kernel's byte counts are read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Role {
    /// This end called connect.
    Connected = 0,
    /// This end was accepted.
    Accepted = 1,
    /// Inherited, and nothing tells.
    Unknown = 2,
}

/// How often [`stable`] looks again when bytes move under it.
const LOOKS_MAX: u32 = 16;

// `enum` in the kernel's include/net/tcp_states.h; the others are in `sluice_sys::tcp`.
const STATE_FIN_WAIT1: u8 = 4;
const STATE_FIN_WAIT2: u8 = 5;
const STATE_TIME_WAIT: u8 = 6;
const STATE_CLOSE: u8 = 7;
const STATE_LAST_ACK: u8 = 9;
const STATE_CLOSING: u8 = 11;

/// Whether a socket in this state has received the peer's FIN or a RST.
pub(crate) fn has_peer_ended(state: u8) -> bool {
    matches!(
        state,
        tcp::STATE_CLOSE_WAIT | STATE_LAST_ACK | STATE_CLOSING | STATE_TIME_WAIT | STATE_CLOSE
    )
}

/// `TCP_INFO` taken while `count` did not change. `EAGAIN` when it changed all the time.
fn stable(
    fd: i32,
    count: impl Fn(i32) -> Result<u32, Errno>,
) -> Result<(tcp::TcpInfo, u32), Errno> {
    let mut before = count(fd)?;
    for _ in 0..LOOKS_MAX {
        let info = tcp::info(fd)?;
        let after = count(fd)?;
        if before == after {
            return Ok((info, after));
        }
        before = after;
    }
    Err(Errno::AGAIN)
}

/// Bytes of the stream that were ever read from a socket on which no thread is reading.
///
/// `tcpi_bytes_received` less `SIOCINQ`, less the peer's FIN, which the first counts and the
/// second does not. Errors: `ENOTCONN` if the connection was reset, `EAGAIN` as above.
pub(crate) fn tcp_bytes_read(fd: i32) -> Result<u64, Errno> {
    let (info, unread) = stable(fd, tcp::unread_bytes)?;
    let fin = match info.state {
        tcp::STATE_ESTABLISHED | STATE_FIN_WAIT1 | STATE_FIN_WAIT2 => 0,
        tcp::STATE_CLOSE_WAIT | STATE_LAST_ACK | STATE_CLOSING => 1,
        // Both ends have sent their FIN. An error is there until somebody is told of it.
        STATE_CLOSE if kernel_events(fd, 0) & libc::POLLERR == 0 => 1,
        _ => return Err(Errno::NOTCONN),
    };
    info.bytes_received
        .checked_sub(u64::from(unread) + fin)
        .ok_or(Errno::PROTO)
}

/// Bytes of the stream that were ever written to a socket on which no thread is writing.
///
/// `tcpi_bytes_acked` plus `SIOCOUTQ`, less the SYN on the end that connected. Refused with
/// `ENOTCONN` once either end has begun to close, with `EOPNOTSUPP` for an end of unknown role.
pub(crate) fn tcp_bytes_written(fd: i32, role: Role) -> Result<u64, Errno> {
    let (info, unacked) = stable(fd, tcp::unacked_bytes)?;
    let syn = match role {
        Role::Connected => 1,
        Role::Accepted => 0,
        Role::Unknown => return Err(Errno::NOTSUP),
    };
    if info.state != tcp::STATE_ESTABLISHED {
        return Err(Errno::NOTCONN);
    }
    (info.bytes_acked + u64::from(unacked))
        .checked_sub(syn)
        .ok_or(Errno::PROTO)
}

/// Bytes of the stream that were ever read and written, in any state of the connection, for
/// statistics. They may move meanwhile, and of a connection that was reset one byte may be
/// missing: it looks like one that ended with a FIN.
pub(crate) fn tcp_bytes_ever(fd: i32, role: Role) -> Result<(u64, u64), Errno> {
    let info = tcp::info(fd)?;
    let unread = tcp::unread_bytes(fd).unwrap_or(0);
    let unacked = tcp::unacked_bytes(fd).unwrap_or(0);
    let peer_fin = u64::from(has_peer_ended(info.state));
    let own_fin = u64::from(matches!(
        info.state,
        STATE_FIN_WAIT1
            | STATE_FIN_WAIT2
            | STATE_CLOSING
            | STATE_LAST_ACK
            | STATE_TIME_WAIT
            | STATE_CLOSE
    ));
    let syn = u64::from(role == Role::Connected);
    let read = info.bytes_received;
    let written = info.bytes_acked + u64::from(unacked);
    Ok((
        read.saturating_sub(u64::from(unread) + peer_fin),
        written.saturating_sub(syn + own_fin),
    ))
}

#[cfg(test)]
#[path = "counts_tests.rs"]
mod tests;
