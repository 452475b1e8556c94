//! Requests of a link: as the device takes them, and how it gets them.
#![allow(unsafe_code)]

use std::ptr;

use sluice_verbs_abi::*;

use crate::link::{Link, request_id};
use crate::queue::Kind;
use crate::region::{Remote, Slice};

/// Bytes that go to the peer's memory.
#[derive(Clone, Copy, Debug)]
pub struct WriteRequest {
    /// From here.
    pub local: Slice,
    /// To there.
    pub remote: Remote,
    /// With a number, the peer is told the number and the length
    /// ([`Event::Arrived`](crate::Event::Arrived)) once all bytes are there, and those of every
    /// write before.
    pub number: Option<u32>,
    /// The caller's, for [`Event::Done`](crate::Event::Done).
    pub id: u64,
}

/// Posts an empty write that asks for a completion.
pub(crate) fn post_marker(link: &mut Link) -> Result<(), i32> {
    let mut entry = entry_of(Slice::EMPTY);
    let mut request = request(link, &mut entry, true);
    request.opcode = IBV_WR_RDMA_WRITE;
    // Where it writes nothing: some devices look at the key all the same.
    request.wr.rdma = send_wr_rdma {
        remote_addr: link.remote.address,
        rkey: link.remote.key,
    };
    // SAFETY: it has no bytes.
    unsafe { post(link.qp, &mut request) }.map_err(|refusal| refusal.errno)?;
    link.queue.push(0, Kind::Marker, true);
    Ok(())
}

#[inline]
pub(crate) fn entry_of(slice: Slice) -> ibv_sge {
    ibv_sge {
        addr: slice.address,
        length: slice.length,
        lkey: slice.key,
    }
}

/// A request with one entry, or with none if that is empty.
#[inline]
pub(crate) fn request(link: &Link, entry: &mut ibv_sge, signal: bool) -> ibv_send_wr {
    // SAFETY: plain numbers and pointers, for which zero is a value.
    let mut request: ibv_send_wr = unsafe { std::mem::zeroed() };
    request.wr_id = request_id(link.id, link.queue.position());
    request.sg_list = ptr::from_mut(entry);
    request.num_sge = i32::from(entry.length > 0);
    request.send_flags = if signal { IBV_SEND_SIGNALED } else { 0 };
    request
}

/// A write's request, with `entry` for its bytes.
#[inline]
pub(crate) fn write_request(
    link: &Link,
    write: &WriteRequest,
    entry: &mut ibv_sge,
    signal: bool,
    inline_bytes: u32,
) -> ibv_send_wr {
    let mut request = request(link, entry, signal);
    request.opcode = match write.number {
        Some(_) => IBV_WR_RDMA_WRITE_WITH_IMM,
        None => IBV_WR_RDMA_WRITE,
    };
    request.imm_data = write.number.unwrap_or(0).to_be();
    request.wr.rdma = send_wr_rdma {
        remote_addr: write.remote.address,
        rkey: write.remote.key,
    };
    if write.local.length <= inline_bytes {
        request.send_flags |= IBV_SEND_INLINE;
    }
    request
}

/// What the library did not take.
pub(crate) struct Refusal {
    pub errno: i32,
    /// The first request that it did not take; null if it does not say.
    pub request: *const ibv_send_wr,
}

/// `ibv_post_send` of the header, of a list.
///
/// # Safety
/// The queue pair exists, and the requests are as ibv_post_send(3) wants them.
#[inline]
pub(crate) unsafe fn post(qp: *mut ibv_qp, request: &mut ibv_send_wr) -> Result<(), Refusal> {
    let mut refused = ptr::null_mut();
    // SAFETY: the caller's contract.
    let answer = unsafe {
        match (*(*qp).context).ops.post_send {
            Some(post) => post(qp, request, &raw mut refused),
            None => libc::EOPNOTSUPP,
        }
    };
    let errno = match answer {
        0 => return Ok(()),
        1.. => answer,
        _ => std::io::Error::last_os_error()
            .raw_os_error()
            .unwrap_or(libc::EIO),
    };
    Err(Refusal {
        errno,
        request: refused,
    })
}
