//! Multicast groups. There is no subnet manager to ask: to join is to attach a QP, which happens
//! when the program takes the join event. Between hosts the transport then says to the network
//! that this host is a member (IGMP, MLD).

use std::ffi::{c_int, c_void};
use std::net::IpAddr;

use libc::sockaddr;

use super::abi::*;
use super::address::Address;
use super::channel::{Body, EventKind};
use super::object::{Group, Id, agent};
use super::synchronous::complete;
use super::verbs::check;
use super::{Errno, answer, c_address, calls};
use crate::ffi::*;

/// The Q_Key of datagrams over IP addresses: the low half of the kernel's for IPoIB groups
/// is not known here, so all port spaces use one.
const QKEY: u32 = RDMA_UDP_QKEY;

/// # Safety
/// `id` is an identifier and `addr` a socket address.
pub unsafe extern "C" fn rdma_join_multicast(
    id: *mut rdma_cm_id,
    addr: *mut sockaddr,
    context: *mut c_void,
) -> c_int {
    // SAFETY: the caller's contract.
    answer(unsafe { join(id, addr, false, context) })
}

/// # Safety
/// `id` is an identifier, `attr` valid.
pub unsafe extern "C" fn rdma_join_multicast_ex(
    id: *mut rdma_cm_id,
    attr: *mut rdma_cm_join_mc_attr_ex,
    context: *mut c_void,
) -> c_int {
    const KNOWN: u32 = RDMA_CM_JOIN_MC_ATTR_ADDRESS | RDMA_CM_JOIN_MC_ATTR_JOIN_FLAGS;
    // SAFETY: the caller's contract.
    let Some(attr) = (unsafe { attr.as_ref() }) else {
        return answer(Err(Errno::INVAL));
    };
    if attr.comp_mask & !KNOWN != 0 {
        return answer(Err(Errno(libc::ENOSYS)));
    }
    if attr.comp_mask & RDMA_CM_JOIN_MC_ATTR_ADDRESS == 0 {
        return answer(Err(Errno::INVAL));
    }
    let send_only = match attr.join_flags {
        _ if attr.comp_mask & RDMA_CM_JOIN_MC_ATTR_JOIN_FLAGS == 0 => false,
        RDMA_MC_JOIN_FLAG_FULLMEMBER => false,
        RDMA_MC_JOIN_FLAG_SENDONLY_FULLMEMBER => true,
        _ => return answer(Err(Errno::INVAL)),
    };
    // SAFETY: the caller's contract.
    answer(unsafe { join(id, attr.addr, send_only, context) })
}

unsafe fn join(
    id: *mut rdma_cm_id,
    addr: *mut sockaddr,
    send_only: bool,
    context: *mut c_void,
) -> Result<(), Errno> {
    // SAFETY: the caller's contract.
    let (this, address) = unsafe { (Id::of(id), c_address::read(addr)?) };
    let mgid = group_gid(&address).ok_or(Errno::INVAL)?;
    let agent = agent()?;
    let mut inner = this.inner();
    if inner.device.is_none() || this.qp_type() != IBV_QPT_UD {
        return Err(Errno::INVAL);
    }
    if inner
        .groups
        .iter()
        .any(|group| group.address.ip == address.ip)
    {
        return Err(Errno(libc::EADDRINUSE));
    }
    inner.groups.push(Group {
        address,
        mgid,
        attached: false,
        send_only,
        context: context as usize,
    });
    drop(inner);
    let body = Body::Group {
        mgid: mgid.raw,
        qkey: QKEY,
        context: context as usize,
    };
    agent.notify(this.key, EventKind::MulticastJoin, 0, body)?;
    // SAFETY: the caller's contract.
    unsafe { complete(id) }
}

/// # Safety
/// `id` is an identifier and `addr` a socket address.
pub unsafe extern "C" fn rdma_leave_multicast(id: *mut rdma_cm_id, addr: *mut sockaddr) -> c_int {
    // SAFETY: the caller's contract.
    answer(unsafe {
        let this = Id::of(id);
        c_address::read(addr).and_then(|address| {
            let mut inner = this.inner();
            let at = inner
                .groups
                .iter()
                .position(|group| group.address.ip == address.ip)
                .ok_or(Errno(libc::EADDRNOTAVAIL))?;
            let group = inner.groups.remove(at);
            drop(inner);
            detach(this, &group)
        })
    })
}

/// Leaves what was joined, before the QP goes.
///
/// # Safety
/// `id` is an identifier.
pub unsafe fn leave_all(id: *mut rdma_cm_id) {
    // SAFETY: the caller's contract.
    let this = unsafe { Id::of(id) };
    let groups = std::mem::take(&mut this.inner().groups);
    for group in groups {
        // The QP is about to be destroyed, which detaches it as well.
        let _ = detach(this, &group);
    }
}

fn detach(id: &Id, group: &Group) -> Result<(), Errno> {
    if id.qp().is_null() || !group.attached || group.send_only {
        return Ok(());
    }
    // SAFETY: the program's QP lives as long as it is in the identifier's field.
    check(unsafe { (calls().detach_mcast)(id.qp(), &group.mgid, 0) })
}

/// The multicast GID of a group's IP address over RoCEv2 (IBTA annex A17): IPv4 is mapped
/// into IPv6. `None` for an address that names no group.
fn group_gid(address: &Address) -> Option<ibv_gid> {
    let multicast = match address.ip {
        IpAddr::V4(ip) => ip.is_multicast(),
        IpAddr::V6(ip) => ip.is_multicast(),
    };
    // 0.0.0.0 means "any group" to the kernel; a host has no manager who would pick one.
    multicast.then(|| ibv_gid { raw: address.gid() })
}
