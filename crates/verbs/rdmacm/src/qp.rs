//! QPs, CQs and SRQs of an identifier, and the attributes that take a QP through its
//! states (rdma_create_qp(3), rdma_init_qp_attr(3)).

use std::ffi::{c_int, c_void};
use std::ptr::null_mut;

use super::abi::*;
use super::agent::Info;
use super::object::{Id, PdUser, agent};
use super::path::{HOP_LIMIT, PACKET_LIFE_TIME};
use super::qp_mask::{self, QP_STATE, QPS_ERR, QPS_INIT, QPS_RTR, QPS_RTS};
use super::verbs::{check, check_pointer};
use super::{Errno, answer, calls, device};
use crate::ffi::*;

/// Local ACK timeout: two packet life times and the time of the far end.
const ACK_TIMEOUT: u8 = PACKET_LIFE_TIME + 2;

/// Programs send small messages inline without asking for room, which every adapter
/// happens to have (rdma_xclient does).
const INLINE_MIN: u32 = 64;

const ACCESS_REMOTE_WRITE: u32 = 1 << 1;
const ACCESS_REMOTE_READ: u32 = 1 << 2;
const ACCESS_REMOTE_ATOMIC: u32 = 1 << 3;

fn zeroed_attr() -> ibv_qp_attr {
    // SAFETY: a plain C structure of numbers.
    unsafe { std::mem::zeroed() }
}

/// An address handle to a GID, from the address of the identifier.
pub fn ah_attr(info: &Info, dgid: [u8; 16]) -> ibv_ah_attr {
    let (sgid_index, _) = match (device::at(info.device), info.source) {
        (Ok(device), Some(source)) => device.gid(&source),
        _ => (0, ibv_gid::default()),
    };
    ibv_ah_attr {
        grh: ibv_global_route {
            dgid: ibv_gid { raw: dgid },
            flow_label: 0,
            sgid_index,
            hop_limit: HOP_LIMIT,
            traffic_class: info.options.tos,
        },
        dlid: 0,
        sl: 0,
        src_path_bits: 0,
        static_rate: 0,
        is_global: 1,
        port_num: device::PORT,
    }
}

/// The GID of the peer: what it said, or what its address makes.
pub fn peer_gid(info: &Info) -> [u8; 16] {
    match (info.remote, info.destination) {
        (Some(remote), _) if remote.gid != [0; 16] => remote.gid,
        (_, Some(destination)) => destination.gid(),
        _ => [0; 16],
    }
}

/// The attributes and their mask for the state that `attr.qp_state` names, as the
/// communication manager of the kernel gives them.
fn init_attr(id: &Id, attr: &mut ibv_qp_attr) -> Result<c_int, Errno> {
    let info = agent()?.info(id.key)?;
    let inner = id.inner();
    let qp_type = id.qp_type();
    let datagram = qp_type == IBV_QPT_UD;
    // The passive side decided these when it accepted; the active side has asked and
    // goes by the answer.
    let active = inner.active;
    let (responder_resources, initiator_depth) = match info.remote {
        Some(remote) if active => (remote.initiator_depth, remote.responder_resources),
        _ => (inner.responder_resources, inner.initiator_depth),
    };
    let mask = qp_mask::mask(qp_type, attr.qp_state).ok_or(Errno::INVAL)?;
    match attr.qp_state {
        QPS_INIT => {
            attr.pkey_index = 0;
            attr.port_num = device::PORT;
            if datagram {
                attr.qkey = if inner.qkey == 0 {
                    RDMA_UDP_QKEY
                } else {
                    inner.qkey
                };
                return Ok(mask);
            }
            attr.qp_access_flags = 0;
            if info.remote.is_some() {
                attr.qp_access_flags = ACCESS_REMOTE_WRITE;
                if responder_resources > 0 {
                    attr.qp_access_flags |= ACCESS_REMOTE_READ | ACCESS_REMOTE_ATOMIC;
                }
            }
        }
        QPS_RTR if !datagram => {
            let remote = info.remote.ok_or(Errno::INVAL)?;
            attr.ah_attr = ah_attr(&info, peer_gid(&info));
            let mtu = inner.device.map_or(info.mtu, |device| device.mtu);
            attr.path_mtu = u32::from(info.mtu.min(mtu));
            attr.dest_qp_num = remote.qp_num;
            // What a side calls its starting PSN is where the other one begins to send.
            attr.rq_psn = inner.psn;
            attr.max_dest_rd_atomic = responder_resources;
            attr.min_rnr_timer = 0;
        }
        QPS_RTS => {
            attr.sq_psn = match info.remote {
                _ if datagram => 0,
                Some(remote) => remote.psn,
                None => return Err(Errno::INVAL),
            };
            let agreed = info.options.ack_timeout.or(info.ack_timeout);
            attr.timeout = agreed.unwrap_or(ACK_TIMEOUT);
            if qp_mask::is_requester(qp_type) {
                let remote = info.remote.ok_or(Errno::INVAL)?;
                let ours = info.local;
                // REQ says it for both sides.
                attr.retry_cnt = if active {
                    ours.retry_count
                } else {
                    remote.retry_count
                };
                attr.rnr_retry = remote.rnr_retry_count;
                attr.max_rd_atomic = initiator_depth;
            }
        }
        _ => {}
    }
    Ok(mask)
}

fn modify_to(id: &Id, qp: *mut ibv_qp, state: u32) -> Result<(), Errno> {
    let mut attr = zeroed_attr();
    attr.qp_state = state;
    let mask = init_attr(id, &mut attr)?;
    // SAFETY: the program's QP lives as long as it is in the identifier's field.
    check(unsafe { (calls().modify_qp)(qp, &raw mut attr, mask) })
}

/// Connects the QP with the peer that the identifier knows: INIT once more, now with the
/// access that was agreed on, then RTR and RTS.
pub fn connect_qp(id: &Id) -> Result<(), Errno> {
    for state in [QPS_INIT, QPS_RTR, QPS_RTS] {
        modify_to(id, id.qp(), state)?;
    }
    Ok(())
}

/// Flushes the QP, if there is a connected one.
pub fn fail_qp(id: &Id) -> Result<(), Errno> {
    if id.qp().is_null() || id.qp_type() == IBV_QPT_UD {
        return Ok(());
    }
    let mut attr = zeroed_attr();
    attr.qp_state = QPS_ERR;
    // SAFETY: the program's QP lives as long as it is in the identifier's field; `attr` is ours.
    check(unsafe { (calls().modify_qp)(id.qp(), &raw mut attr, QP_STATE) })
}

/// # Safety
/// `id` is an identifier; `attr` and `mask` are valid.
pub unsafe extern "C" fn rdma_init_qp_attr(
    id: *mut rdma_cm_id,
    attr: *mut ibv_qp_attr,
    mask: *mut c_int,
) -> c_int {
    // SAFETY: the caller's contract.
    let (id, attr) = unsafe { (Id::of(id), &mut *attr) };
    answer(init_attr(id, attr).map(|bits| {
        // SAFETY: the caller's contract.
        unsafe { *mask = bits };
    }))
}

/// Makes a CQ with a channel of its own; its context is the identifier.
fn create_cq(
    id: *mut rdma_cm_id,
    context: *mut ibv_context,
    entries: u32,
) -> Result<(*mut ibv_comp_channel, *mut ibv_cq), Errno> {
    let entries = c_int::try_from(entries.max(1)).map_err(|_| Errno::INVAL)?;
    // SAFETY: the context is open; the channel is destroyed when no CQ comes of it.
    unsafe {
        let channel = check_pointer((calls().create_comp_channel)(context))?;
        let cq = (calls().create_cq)(context, entries, id.cast::<c_void>(), channel, 0);
        match check_pointer(cq) {
            Ok(cq) => Ok((channel, cq)),
            Err(errno) => {
                (calls().destroy_comp_channel)(channel);
                Err(errno)
            }
        }
    }
}

fn destroy_cqs(c: &mut rdma_cm_id) {
    // SAFETY: the fields hold what create_cq made, and the QP and SRQ on them are gone.
    unsafe {
        if !c.recv_cq.is_null() {
            (calls().destroy_cq)(c.recv_cq);
            (calls().destroy_comp_channel)(c.recv_cq_channel);
        }
        if !c.send_cq.is_null() && c.send_cq != c.recv_cq {
            (calls().destroy_cq)(c.send_cq);
            (calls().destroy_comp_channel)(c.send_cq_channel);
        }
    }
    c.recv_cq = null_mut();
    c.recv_cq_channel = null_mut();
    c.send_cq = null_mut();
    c.send_cq_channel = null_mut();
}

/// The protection domain that a program gave, or the default one.
fn choose_pd(id: &Id, given: *mut ibv_pd, user: PdUser) -> Result<*mut ibv_pd, Errno> {
    let mut inner = id.inner();
    let device = inner.device.ok_or(Errno::INVAL)?;
    if given.is_null() {
        let pd = device.hold_pd()?;
        inner.pds[user as usize] = Some(pd as usize);
        return Ok(pd);
    }
    // SAFETY: the program's PD is valid.
    if unsafe { (*given).context } != device.context() {
        return Err(Errno::INVAL);
    }
    Ok(given)
}

fn release_pd(id: &Id, user: PdUser) {
    let mut inner = id.inner();
    if let (Some(device), Some(pd)) = (inner.device, inner.pds[user as usize].take()) {
        device.release_pd(pd as *mut ibv_pd);
    }
}

unsafe fn create(pointer: *mut rdma_cm_id, attr: &mut ibv_qp_init_attr_ex) -> Result<(), Errno> {
    // SAFETY: the caller passes an identifier.
    let (c, id) = unsafe { (&mut *pointer, Id::of(pointer)) };
    if !c.qp.is_null() {
        return Err(Errno::INVAL);
    }
    let context = id.inner().device.ok_or(Errno::INVAL)?.context();
    if attr.comp_mask & IBV_QP_INIT_ATTR_PD == 0 && attr.qp_type != IBV_QPT_XRC_RECV {
        attr.comp_mask |= IBV_QP_INIT_ATTR_PD;
        attr.pd = null_mut();
    }
    if attr.qp_type == IBV_QPT_XRC_RECV && attr.comp_mask & IBV_QP_INIT_ATTR_XRCD == 0 {
        attr.comp_mask |= IBV_QP_INIT_ATTR_XRCD;
        attr.xrcd = device::of(context)?.xrcd()?;
    }
    if attr.comp_mask & IBV_QP_INIT_ATTR_PD != 0 {
        attr.pd = choose_pd(id, attr.pd, PdUser::Qp)?;
    }
    let result = (|| {
        // The SRQ may have brought a CQ along.
        if attr.send_cq.is_null() && attr.cap.max_send_wr > 0 {
            (c.send_cq_channel, c.send_cq) = create_cq(pointer, context, attr.cap.max_send_wr)?;
        }
        if attr.recv_cq.is_null() && c.recv_cq.is_null() && attr.cap.max_recv_wr > 0 {
            (c.recv_cq_channel, c.recv_cq) = create_cq(pointer, context, attr.cap.max_recv_wr)?;
        }
        if attr.send_cq.is_null() {
            attr.send_cq = c.send_cq;
        }
        if attr.recv_cq.is_null() {
            attr.recv_cq = c.recv_cq;
        }
        // libibverbs wants both of a QP that has only one kind of work.
        if attr.qp_type != IBV_QPT_XRC_RECV {
            if attr.send_cq.is_null() {
                attr.send_cq = attr.recv_cq;
            }
            if attr.recv_cq.is_null() && attr.qp_type != IBV_QPT_XRC_SEND {
                attr.recv_cq = attr.send_cq;
            }
        }
        if attr.srq.is_null() && attr.qp_type != IBV_QPT_XRC_RECV {
            attr.srq = c.srq;
        }
        if attr.cap.max_send_wr > 0 {
            attr.cap.max_inline_data = attr.cap.max_inline_data.max(INLINE_MIN);
        }
        // SAFETY: the context is open, and the attributes' objects are the program's or
        // were made above.
        let qp = check_pointer(unsafe { (calls().create_qp)(context, attr) })?;
        let ready = match attr.qp_type {
            IBV_QPT_UD => [QPS_INIT, QPS_RTR, QPS_RTS]
                .iter()
                .try_for_each(|state| modify_to(id, qp, *state)),
            _ => modify_to(id, qp, QPS_INIT),
        };
        if let Err(errno) = ready {
            // SAFETY: nobody else has seen the QP.
            unsafe { (calls().destroy_qp)(qp) };
            return Err(errno);
        }
        Ok(qp)
    })();
    match result {
        Ok(qp) => {
            c.pd = if attr.comp_mask & IBV_QP_INIT_ATTR_PD != 0 {
                attr.pd
            } else {
                c.pd
            };
            c.qp = qp;
            Ok(())
        }
        Err(errno) => {
            if c.srq.is_null() {
                destroy_cqs(c);
            }
            release_pd(id, PdUser::Qp);
            Err(errno)
        }
    }
}

/// # Safety
/// As rdma_create_qp(3) wants its arguments.
pub unsafe extern "C" fn rdma_create_qp_ex(
    id: *mut rdma_cm_id,
    attr: *mut ibv_qp_init_attr_ex,
) -> c_int {
    // SAFETY: the caller's contract.
    answer(unsafe { create(id, &mut *attr) })
}

/// # Safety
/// As rdma_create_qp(3) wants its arguments.
pub unsafe extern "C" fn rdma_create_qp(
    id: *mut rdma_cm_id,
    pd: *mut ibv_pd,
    attr: *mut ibv_qp_init_attr,
) -> c_int {
    // SAFETY: the caller's contract.
    answer(unsafe { create_plain(id, pd, &mut *attr) })
}

/// # Safety
/// `id` is an identifier and the objects in `attr` are valid.
pub unsafe fn create_plain(
    id: *mut rdma_cm_id,
    pd: *mut ibv_pd,
    attr: &mut ibv_qp_init_attr,
) -> Result<(), Errno> {
    // SAFETY: all zeros is a valid value of the plain C structure.
    let mut extended: ibv_qp_init_attr_ex = unsafe { std::mem::zeroed() };
    extended.qp_context = attr.qp_context;
    extended.send_cq = attr.send_cq;
    extended.recv_cq = attr.recv_cq;
    extended.srq = attr.srq;
    extended.cap = attr.cap;
    extended.qp_type = attr.qp_type;
    extended.sq_sig_all = attr.sq_sig_all;
    if attr.qp_type != IBV_QPT_XRC_RECV {
        extended.comp_mask = IBV_QP_INIT_ATTR_PD;
        extended.pd = pd;
    }
    // SAFETY: the caller's contract.
    unsafe { create(id, &mut extended)? };
    attr.cap = extended.cap;
    attr.send_cq = extended.send_cq;
    attr.recv_cq = extended.recv_cq;
    Ok(())
}

/// # Safety
/// `id` is an identifier.
pub unsafe extern "C" fn rdma_destroy_qp(id: *mut rdma_cm_id) {
    // SAFETY: the caller's contract; the field holds the QP that create made.
    unsafe {
        let c = &mut *id;
        if c.qp.is_null() {
            return;
        }
        (calls().destroy_qp)(c.qp);
        c.qp = null_mut();
        // An SRQ of XRC stands on the CQ too.
        if c.srq.is_null() {
            destroy_cqs(c);
        }
        release_pd(Id::of(id), PdUser::Qp);
    }
}

unsafe fn create_srq_ex(
    pointer: *mut rdma_cm_id,
    attr: &mut ibv_srq_init_attr_ex,
) -> Result<(), Errno> {
    // SAFETY: the caller passes an identifier.
    let (c, id) = unsafe { (&mut *pointer, Id::of(pointer)) };
    if !c.srq.is_null() {
        return Err(Errno::INVAL);
    }
    let device = id.inner().device.ok_or(Errno::INVAL)?;
    let context = device.context();
    let xrc = attr.comp_mask & IBV_SRQ_INIT_ATTR_TYPE != 0 && attr.srq_type == IBV_SRQT_XRC;
    let given = if attr.comp_mask & IBV_SRQ_INIT_ATTR_PD != 0 {
        attr.pd
    } else {
        null_mut()
    };
    attr.pd = choose_pd(id, given, PdUser::Srq)?;
    attr.comp_mask |= IBV_SRQ_INIT_ATTR_PD;
    let result = (|| {
        if xrc {
            if attr.comp_mask & IBV_SRQ_INIT_ATTR_XRCD == 0 || attr.xrcd.is_null() {
                attr.comp_mask |= IBV_SRQ_INIT_ATTR_XRCD;
                attr.xrcd = device.xrcd()?;
            }
            if attr.comp_mask & IBV_SRQ_INIT_ATTR_CQ == 0 || attr.cq.is_null() {
                if c.recv_cq.is_null() {
                    (c.recv_cq_channel, c.recv_cq) = create_cq(pointer, context, attr.attr.max_wr)?;
                }
                attr.comp_mask |= IBV_SRQ_INIT_ATTR_CQ;
                attr.cq = c.recv_cq;
            }
        }
        // SAFETY: the context is open, and the attributes' objects are valid.
        check_pointer(unsafe { (calls().create_srq)(context, attr) })
    })();
    match result {
        Ok(srq) => {
            if c.pd.is_null() {
                c.pd = attr.pd;
            }
            c.srq = srq;
            Ok(())
        }
        Err(errno) => {
            release_pd(id, PdUser::Srq);
            if c.qp.is_null() {
                destroy_cqs(c);
            }
            Err(errno)
        }
    }
}

/// # Safety
/// As rdma_create_srq(3) wants its arguments.
pub unsafe extern "C" fn rdma_create_srq_ex(
    id: *mut rdma_cm_id,
    attr: *mut ibv_srq_init_attr_ex,
) -> c_int {
    // SAFETY: the caller's contract.
    answer(unsafe { create_srq_ex(id, &mut *attr) })
}

/// # Safety
/// As rdma_create_srq(3) wants its arguments.
pub unsafe extern "C" fn rdma_create_srq(
    id: *mut rdma_cm_id,
    pd: *mut ibv_pd,
    attr: *mut ibv_srq_init_attr,
) -> c_int {
    // SAFETY: the caller's contract; all zeros is a valid value of the C structure.
    unsafe {
        let mut extended: ibv_srq_init_attr_ex = std::mem::zeroed();
        extended.srq_context = (*attr).srq_context;
        extended.attr = (*attr).attr;
        extended.comp_mask = IBV_SRQ_INIT_ATTR_TYPE | IBV_SRQ_INIT_ATTR_PD;
        extended.srq_type = if (*id).qp_type == IBV_QPT_XRC_RECV {
            IBV_SRQT_XRC
        } else {
            IBV_SRQT_BASIC
        };
        extended.pd = pd;
        let result = create_srq_ex(id, &mut extended);
        if result.is_ok() {
            (*attr).attr = extended.attr;
        }
        answer(result)
    }
}

/// # Safety
/// `id` is an identifier.
pub unsafe extern "C" fn rdma_destroy_srq(id: *mut rdma_cm_id) {
    // SAFETY: the caller's contract; the field holds the SRQ that create_srq_ex made.
    unsafe {
        let c = &mut *id;
        if c.srq.is_null() {
            return;
        }
        (calls().destroy_srq)(c.srq);
        c.srq = null_mut();
        if c.qp.is_null() {
            destroy_cqs(c);
        }
        release_pd(Id::of(id), PdUser::Srq);
    }
}
