//! The calls on identifiers: making, binding, resolving, connecting and ending them.

use std::ffi::{c_int, c_void};
use std::ptr::null_mut;
use std::sync::Arc;

use libc::sockaddr;

use super::abi::*;
use super::channel::Channel;
use super::message::{
    ConnParams, Ece, PrivateData, REJ_PRIVATE_MAX, REP_PRIVATE_MAX, REQ_PRIVATE_MAX,
    SIDR_REP_PRIVATE_MAX, SIDR_REQ_PRIVATE_MAX, SIDR_SUCCESS, SidrReply,
};
use super::object::{ChannelObject, Id, agent, conn_params};
use super::synchronous::{complete, release_event};
use super::{Errno, answer, c_address, device, multicast, qp};
use crate::ffi::*;

/// Retries of a connection whose program did not say (rdma_connect(3)).
const RETRIES_DEFAULT: u8 = 7;

/// # Safety
/// `channel` is NULL or an event channel; `id` is valid.
pub unsafe extern "C" fn rdma_create_id(
    channel: *mut rdma_event_channel,
    id: *mut *mut rdma_cm_id,
    context: *mut c_void,
    port_space: c_int,
) -> c_int {
    let port_space = port_space as u16;
    let qp_type = match port_space {
        RDMA_PS_UDP | RDMA_PS_IPOIB => IBV_QPT_UD,
        RDMA_PS_TCP | RDMA_PS_IB => IBV_QPT_RC,
        _ => return answer(Err(Errno::INVAL)),
    };
    // SAFETY: the caller's contract.
    let created = unsafe { create(channel, context, port_space, qp_type) };
    answer(created.map(|pointer| {
        // SAFETY: the caller's contract.
        unsafe { *id = pointer };
    }))
}

/// # Safety
/// `channel` is NULL or an event channel.
pub unsafe fn create(
    channel: *mut rdma_event_channel,
    context: *mut c_void,
    port_space: u16,
    qp_type: u32,
) -> Result<*mut rdma_cm_id, Errno> {
    // As in librdmacm, without a device there is no identifier.
    device::all()?;
    let (object, own) = if channel.is_null() {
        let mut own = ChannelObject::new()?;
        (&raw mut own.c, Some(own))
    } else {
        (channel, None)
    };
    let events = match &own {
        Some(own) => Arc::clone(&own.channel),
        None => ChannelObject::find(channel)?,
    };
    let key = agent()?.create(port_space, qp_type as u8, &events);
    Ok(Id::make(
        key, port_space, qp_type, context, events, object, own,
    ))
}

/// # Safety
/// `id` is an identifier; the program does not use it again.
pub unsafe extern "C" fn rdma_destroy_id(id: *mut rdma_cm_id) -> c_int {
    // SAFETY: the caller's contract.
    let this = unsafe { Id::of(id) };
    if let Ok(agent) = agent() {
        agent.destroy(this.key);
    }
    // SAFETY: the caller's contract; a synchronous identifier keeps its last event.
    unsafe { release_event(id) };
    this.forget();
    // SAFETY: nobody finds it any more, and it was made by Id::new.
    drop(unsafe { Box::from_raw(id.cast::<Id>()) });
    0
}

/// # Safety
/// `id` is an identifier and `addr` a socket address.
pub unsafe extern "C" fn rdma_bind_addr(id: *mut rdma_cm_id, addr: *mut sockaddr) -> c_int {
    // SAFETY: the caller's contract.
    answer(unsafe {
        let this = Id::of(id);
        c_address::read(addr).and_then(|address| {
            let agent = agent()?;
            agent.bind(this.key, address)?;
            Id::show_addresses(id, &agent.info(this.key)?);
            Ok(())
        })
    })
}

/// `timeout_ms` is not used: the routing tables answer at once.
///
/// # Safety
/// `id` is an identifier, `destination` a socket address, `source` one or NULL.
pub unsafe extern "C" fn rdma_resolve_addr(
    id: *mut rdma_cm_id,
    source: *mut sockaddr,
    destination: *mut sockaddr,
    _timeout_ms: c_int,
) -> c_int {
    // SAFETY: the caller's contract.
    answer(unsafe {
        (|| {
            let source = match source.is_null() {
                true => None,
                false => Some(c_address::read(source)?),
            };
            let destination = c_address::read(destination)?;
            agent()?.resolve_addr(Id::of(id).key, source, destination)?;
            complete(id)
        })()
    })
}

/// # Safety
/// `id` is an identifier.
pub unsafe extern "C" fn rdma_resolve_route(id: *mut rdma_cm_id, _timeout_ms: c_int) -> c_int {
    // SAFETY: the caller's contract.
    answer(unsafe {
        agent()
            .and_then(|agent| agent.resolve_route(Id::of(id).key))
            .and_then(|()| complete(id))
    })
}

/// # Safety
/// `id` is an identifier.
pub unsafe extern "C" fn rdma_listen(id: *mut rdma_cm_id, backlog: c_int) -> c_int {
    // SAFETY: the caller's contract.
    answer(unsafe {
        agent().and_then(|agent| {
            let key = Id::of(id).key;
            agent.listen(key, backlog)?;
            Id::show_addresses(id, &agent.info(key)?);
            Ok(())
        })
    })
}

/// Private data of the program, with `prefix` in front.
///
/// # Safety
/// `data` is NULL or has `len` bytes.
unsafe fn private(
    prefix: &[u8],
    data: *const c_void,
    len: u8,
    max: usize,
) -> Result<PrivateData, Errno> {
    let mut bytes = prefix.to_vec();
    if !data.is_null() {
        // SAFETY: the caller's contract.
        bytes.extend_from_slice(unsafe { std::slice::from_raw_parts(data.cast(), len.into()) });
    }
    PrivateData::new(&bytes, max).ok_or(Errno::INVAL)
}

/// A value of a program within the device's limit; the header's maximum means the limit.
fn within(value: u8, max: u8, meaning_max: u8) -> Result<u8, Errno> {
    match value {
        value if value == meaning_max => Ok(max),
        value if value <= max => Ok(value),
        _ => Err(Errno::INVAL),
    }
}

/// What this side says in a REQ or REP, from the program's parameters or from what the
/// identifier remembers.
///
/// # Safety
/// `param` is NULL or valid.
unsafe fn our_params(id: &Id, param: *const rdma_conn_param) -> Result<ConnParams, Errno> {
    // SAFETY: the caller's contract.
    let param = unsafe { param.as_ref() };
    let info = agent()?.info(id.key)?;
    let mut inner = id.inner();
    let device = inner.device.ok_or(Errno::INVAL)?;
    let (resources, depth) = param
        .map_or((inner.responder_resources, inner.initiator_depth), |p| {
            (p.responder_resources, p.initiator_depth)
        });
    inner.responder_resources =
        within(resources, device.responder_resources_max, RDMA_MAX_RESP_RES)?;
    inner.initiator_depth = within(depth, device.initiator_depth_max, RDMA_MAX_INIT_DEPTH)?;
    let gid = info
        .source
        .map(|source| device.gid(&source).1)
        .unwrap_or_default();
    let (qp_num, srq) = if id.qp().is_null() {
        // Without a QP there is nothing to say unless the program says it.
        let param = param.ok_or(Errno::INVAL)?;
        (param.qp_num, param.srq != 0)
    } else {
        // SAFETY: the program's QP lives as long as it is in the identifier's field.
        (unsafe { (*id.qp()).qp_num }, id.has_srq())
    };
    let mut params = conn_params(&inner, qp_num & 0x00ff_ffff, gid);
    params.srq = srq;
    params.responder_resources = inner.responder_resources;
    params.initiator_depth = inner.initiator_depth;
    params.flow_control = param.map_or(0, |p| p.flow_control);
    params.retry_count = param.map_or(RETRIES_DEFAULT, |p| p.retry_count.min(7));
    params.rnr_retry_count = param.map_or(RETRIES_DEFAULT, |p| p.rnr_retry_count.min(7));
    Ok(params)
}

/// # Safety
/// `id` is an identifier; `param` is NULL or valid.
pub unsafe extern "C" fn rdma_connect(id: *mut rdma_cm_id, param: *mut rdma_conn_param) -> c_int {
    // SAFETY: the caller's contract.
    answer(unsafe { connect(id, param).and_then(|()| complete(id)) })
}

/// # Safety
/// As [`rdma_connect`].
pub unsafe fn connect(id: *mut rdma_cm_id, param: *const rdma_conn_param) -> Result<(), Errno> {
    // SAFETY: the caller's contract.
    let (this, given) = unsafe { (Id::of(id), param.as_ref()) };
    let (data, len) = given.map_or((std::ptr::null(), 0), |p| {
        (p.private_data, p.private_data_len)
    });
    let prefix = this.inner().connect_prefix.clone();
    if this.qp_type() == IBV_QPT_UD {
        // SAFETY: the caller's contract.
        let private = unsafe { private(&prefix, data, len, SIDR_REQ_PRIVATE_MAX)? };
        return agent()?.lookup(this.key, private);
    }
    // SAFETY: the caller's contract.
    let (private, params) = unsafe {
        (
            private(&prefix, data, len, REQ_PRIVATE_MAX)?,
            our_params(this, param)?,
        )
    };
    this.inner().active = true;
    agent()?.connect(this.key, params, private)
}

/// # Safety
/// `id` came with a connection request; `param` is NULL or valid.
pub unsafe extern "C" fn rdma_accept(id: *mut rdma_cm_id, param: *mut rdma_conn_param) -> c_int {
    // SAFETY: the caller's contract.
    answer(unsafe {
        accept(id, param).and_then(|()| {
            if (*id).qp_type == IBV_QPT_UD {
                return Ok(());
            }
            complete(id)
        })
    })
}

/// # Safety
/// As [`rdma_accept`].
pub unsafe fn accept(id: *mut rdma_cm_id, param: *const rdma_conn_param) -> Result<(), Errno> {
    // SAFETY: the caller's contract.
    let (this, given) = unsafe { (Id::of(id), param.as_ref()) };
    let (data, len) = given.map_or((std::ptr::null(), 0), |p| {
        (p.private_data, p.private_data_len)
    });
    if this.qp_type() == IBV_QPT_UD {
        let info = agent()?.info(this.key)?;
        let device = device::at(info.device)?;
        let gid = device.gid(&info.source.ok_or(Errno::INVAL)?).1;
        let qp_num = match (this.qp().is_null(), given) {
            // SAFETY: the program's QP lives as long as it is in the identifier's field.
            (false, _) => unsafe { (*this.qp()).qp_num },
            (true, Some(param)) => param.qp_num & 0x00ff_ffff,
            (true, None) => return Err(Errno::INVAL),
        };
        let qkey = this.inner().qkey;
        // SAFETY: the caller's contract.
        let private = unsafe { private(&[], data, len, SIDR_REP_PRIVATE_MAX)? };
        return agent()?.accept_lookup(
            this.key,
            SidrReply {
                status: SIDR_SUCCESS,
                qp_num,
                qkey: if qkey == 0 { RDMA_UDP_QKEY } else { qkey },
                gid: gid.raw,
                private,
            },
        );
    }
    // SAFETY: the caller's contract.
    let (private, params) = unsafe {
        (
            private(&[], data, len, REP_PRIVATE_MAX)?,
            our_params(this, param)?,
        )
    };
    if !this.qp().is_null() {
        qp::connect_qp(this)?;
    }
    agent()?.accept(this.key, params, private)
}

/// # Safety
/// `id` came with a connection request; `data` has `len` bytes or is NULL.
pub unsafe extern "C" fn rdma_reject(id: *mut rdma_cm_id, data: *const c_void, len: u8) -> c_int {
    // SAFETY: the caller's contract.
    answer(unsafe {
        private(&[], data, len, REJ_PRIVATE_MAX)
            .and_then(|private| agent()?.reject(Id::of(id).key, private))
    })
}

/// # Safety
/// As [`rdma_reject`].
pub unsafe extern "C" fn rdma_reject_ece(
    id: *mut rdma_cm_id,
    data: *const c_void,
    len: u8,
) -> c_int {
    // There is no reject reason here that would carry the options as well.
    // SAFETY: the caller's contract.
    unsafe { rdma_reject(id, data, len) }
}

/// # Safety
/// `id` is an identifier.
pub unsafe extern "C" fn rdma_establish(id: *mut rdma_cm_id) -> c_int {
    // SAFETY: the caller's contract.
    let this = unsafe { Id::of(id) };
    if !this.qp().is_null() {
        return answer(Err(Errno::INVAL));
    }
    answer(agent().and_then(|agent| agent.ready(this.key)))
}

/// # Safety
/// `id` is an identifier.
pub unsafe extern "C" fn rdma_notify(id: *mut rdma_cm_id, event: u32) -> c_int {
    if event != IBV_EVENT_COMM_EST {
        return answer(Err(Errno::INVAL));
    }
    // SAFETY: the caller's contract.
    let key = unsafe { Id::of(id) }.key;
    answer(agent().and_then(|agent| agent.communication_established(key)))
}

/// # Safety
/// `id` is an identifier.
pub unsafe extern "C" fn rdma_disconnect(id: *mut rdma_cm_id) -> c_int {
    // SAFETY: the caller's contract.
    answer(unsafe {
        let this = Id::of(id);
        agent().and_then(|agent| {
            agent.info(this.key)?;
            qp::fail_qp(this)?;
            agent.disconnect(this.key)?;
            complete(id)
        })
    })
}

/// # Safety
/// `id` is an identifier, `channel` NULL or an event channel.
pub unsafe extern "C" fn rdma_migrate_id(
    id: *mut rdma_cm_id,
    channel: *mut rdma_event_channel,
) -> c_int {
    // SAFETY: the caller's contract.
    answer(unsafe { migrate(id, channel) })
}

/// # Safety
/// As [`rdma_migrate_id`].
pub unsafe fn migrate(id: *mut rdma_cm_id, channel: *mut rdma_event_channel) -> Result<(), Errno> {
    // SAFETY: the caller's contract.
    let this = unsafe { Id::of(id) };
    let own = match channel.is_null() {
        true => Some(ChannelObject::new()?),
        false => None,
    };
    let events: Arc<Channel> = match &own {
        Some(own) => Arc::clone(&own.channel),
        None => ChannelObject::find(channel)?,
    };
    if this.synchronous() {
        // SAFETY: the caller's contract.
        unsafe { release_event(id) };
    }
    agent()?.migrate(this.key, &events)?;
    this.outstanding.wait();
    let mut inner = this.inner();
    inner.channel = Some(events);
    inner.own_channel = own;
    let object = match &mut inner.own_channel {
        Some(own) => &raw mut own.c,
        None => channel,
    };
    // SAFETY: the caller's contract.
    unsafe { (*id).channel = object };
    Ok(())
}

/// # Safety
/// `id` is an identifier; `value` has `len` bytes.
pub unsafe extern "C" fn rdma_set_option(
    id: *mut rdma_cm_id,
    level: c_int,
    name: c_int,
    value: *mut c_void,
    len: usize,
) -> c_int {
    // SAFETY: the caller's contract.
    answer(unsafe {
        let key = Id::of(id).key;
        (|| {
            let byte = || match len {
                1 => Ok(value.cast::<u8>().read()),
                _ => Err(Errno::INVAL),
            };
            let flag = || match len {
                4 => Ok(value.cast::<c_int>().read_unaligned() != 0),
                _ => Err(Errno::INVAL),
            };
            if value.is_null() {
                return Err(Errno::INVAL);
            }
            let agent = agent()?;
            match (level, name) {
                (RDMA_OPTION_ID, RDMA_OPTION_ID_TOS) => {
                    let tos = byte()?;
                    agent.set_options(key, |options| options.tos = tos)
                }
                (RDMA_OPTION_ID, RDMA_OPTION_ID_REUSEADDR) => {
                    let reuse = flag()?;
                    agent.set_options(key, |options| options.reuse = reuse)
                }
                (RDMA_OPTION_ID, RDMA_OPTION_ID_AFONLY) => {
                    let only = flag()?;
                    agent.set_options(key, |options| options.family_only = only)
                }
                (RDMA_OPTION_ID, RDMA_OPTION_ID_ACK_TIMEOUT) => {
                    let timeout = byte()?;
                    if timeout > 31 {
                        return Err(Errno::INVAL);
                    }
                    agent.set_options(key, |options| options.ack_timeout = Some(timeout))
                }
                // Paths are InfiniBand's; a route within a host has none to choose.
                (RDMA_OPTION_IB, RDMA_OPTION_IB_PATH) => Err(Errno(libc::EOPNOTSUPP)),
                _ => Err(Errno(libc::ENOSYS)),
            }
        })()
    })
}

/// # Safety
/// `id` is an identifier.
pub unsafe extern "C" fn rdma_get_src_port(id: *mut rdma_cm_id) -> u16 {
    // SAFETY: the caller's contract.
    let key = unsafe { Id::of(id) }.key;
    port(key, |info| info.source)
}

/// # Safety
/// `id` is an identifier.
pub unsafe extern "C" fn rdma_get_dst_port(id: *mut rdma_cm_id) -> u16 {
    // SAFETY: the caller's contract.
    let key = unsafe { Id::of(id) }.key;
    port(key, |info| info.destination)
}

/// In network byte order; 0 when there is none.
fn port(
    key: super::channel::Key,
    which: impl Fn(&super::agent::Info) -> Option<super::address::Address>,
) -> u16 {
    agent()
        .and_then(|agent| agent.info(key))
        .ok()
        .and_then(|info| which(&info))
        .map_or(0, |address| address.port.to_be())
}

/// # Safety
/// `id` is an identifier, `ece` valid.
pub unsafe extern "C" fn rdma_set_local_ece(id: *mut rdma_cm_id, ece: *mut ibv_ece) -> c_int {
    // SAFETY: the caller's contract.
    let (this, ece) = unsafe { (Id::of(id), ece.as_ref()) };
    answer((|| {
        let ece = ece.ok_or(Errno::INVAL)?;
        let ece = Ece {
            vendor_id: ece.vendor_id,
            options: ece.options,
        };
        agent()?.set_ece(this.key, ece)
    })())
}

/// # Safety
/// `id` is an identifier, `ece` valid.
pub unsafe extern "C" fn rdma_get_remote_ece(id: *mut rdma_cm_id, ece: *mut ibv_ece) -> c_int {
    // SAFETY: the caller's contract.
    let key = unsafe { Id::of(id) }.key;
    answer((|| {
        if ece.is_null() {
            return Err(Errno::INVAL);
        }
        let remote = agent()?.info(key)?.remote.unwrap_or_default();
        // SAFETY: not null, and the caller's contract.
        unsafe {
            *ece = ibv_ece {
                vendor_id: remote.ece.vendor_id,
                options: remote.ece.options,
                comp_mask: 0,
            };
        }
        Ok(())
    })())
}

/// # Safety
/// `count` is NULL or valid.
pub unsafe extern "C" fn rdma_get_devices(count: *mut c_int) -> *mut *mut ibv_context {
    let devices = match device::all() {
        Ok(devices) => devices,
        Err(errno) => return sluice_verbs_calls::errno::null(errno.0),
    };
    let bytes = (devices.len() + 1) * size_of::<*mut ibv_context>();
    // SAFETY: malloc has no precondition; the list has room for every device and the end.
    unsafe {
        let list = libc::malloc(bytes).cast::<*mut ibv_context>();
        if list.is_null() {
            return sluice_verbs_calls::errno::null(libc::ENOMEM);
        }
        for (index, device) in devices.iter().enumerate() {
            *list.add(index) = device.context();
        }
        *list.add(devices.len()) = null_mut();
        if !count.is_null() {
            *count = devices.len() as c_int;
        }
        list
    }
}

/// # Safety
/// `list` came from [`rdma_get_devices`].
pub unsafe extern "C" fn rdma_free_devices(list: *mut *mut ibv_context) {
    // SAFETY: the caller's contract.
    unsafe { libc::free(list.cast()) };
}

/// # Safety
/// `id` is an identifier of `rdma_create_ep` or `rdma_get_request`.
pub unsafe extern "C" fn rdma_destroy_ep(id: *mut rdma_cm_id) {
    // SAFETY: the caller's contract.
    unsafe {
        multicast::leave_all(id);
        qp::rdma_destroy_qp(id);
        qp::rdma_destroy_srq(id);
        rdma_destroy_id(id);
    }
}
