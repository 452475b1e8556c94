//! Event channels, and what happens when a program takes an event: that is when QPs move
//! on and identifiers show what was found, in the thread of the program.

use std::ffi::{c_char, c_int, c_void};
use std::ptr::null_mut;
use std::sync::Arc;

use super::abi::*;
use super::channel::{Body, Channel, Event, EventKind};
use super::message::{
    ConnParams, REJ_PRIVATE_MAX, REP_PRIVATE_MAX, REQ_PRIVATE_MAX, SIDR_REP_PRIVATE_MAX,
    SIDR_REQ_PRIVATE_MAX,
};
use super::object::{ChannelObject, EventObject, Id, Outstanding, agent};
use super::{Errno, answer, calls, qp};
use crate::ffi::*;
use sluice_verbs_calls::errno::null;

/// The QP number of a datagram to a group (IBTA 10.5.2).
const MULTICAST_QPN: u32 = 0x00ff_ffff;

pub extern "C" fn rdma_create_event_channel() -> *mut rdma_event_channel {
    match ChannelObject::new() {
        Ok(channel) => Box::into_raw(channel).cast(),
        Err(errno) => null(errno.0),
    }
}

/// # Safety
/// `channel` came from `rdma_create_event_channel`; what was destroyed before is left alone.
pub unsafe extern "C" fn rdma_destroy_event_channel(channel: *mut rdma_event_channel) {
    // SAFETY: the caller's contract.
    drop(unsafe { ChannelObject::take(channel) });
}

/// # Safety
/// `event` is valid.
pub unsafe extern "C" fn rdma_get_cm_event(
    channel: *mut rdma_event_channel,
    event: *mut *mut rdma_cm_event,
) -> c_int {
    if channel.is_null() || event.is_null() {
        return answer(Err(Errno::INVAL));
    }
    let object = ChannelObject::find(channel).and_then(|channel| next(&channel));
    answer(object.map(|object| {
        // SAFETY: the caller's contract.
        unsafe { *event = object.give() };
    }))
}

/// The next event of a channel, ready for the program.
pub fn next(channel: &Channel) -> Result<Box<EventObject>, Errno> {
    loop {
        let event = channel.next()?;
        if let Some(object) = prepare(event)? {
            return Ok(object);
        }
    }
}

/// # Safety
/// `event` came from `rdma_get_cm_event` and was not given back.
pub unsafe extern "C" fn rdma_ack_cm_event(event: *mut rdma_cm_event) -> c_int {
    if event.is_null() {
        return answer(Err(Errno::INVAL));
    }
    // SAFETY: the caller's contract.
    let object = unsafe { EventObject::take(event) };
    object.owner.done();
    0
}

/// Does what belongs to an event; `None` when its identifier is gone.
pub fn prepare(event: Event) -> Result<Option<Box<EventObject>>, Errno> {
    if let Some(listener) = event.listener {
        return requested(listener, event);
    }
    let Some(pointer) = Id::for_event(event.key) else {
        return Ok(None);
    };
    // SAFETY: for_event found it, and its event is outstanding from here on.
    let id = unsafe { Id::of(pointer) };
    let mut object = EventObject::new(pointer, event.kind as u32, event.status, &id.outstanding);
    match event.kind {
        EventKind::AddrResolved | EventKind::RouteResolved => {
            let info = agent()?.info(event.key);
            if let Ok(info) = info {
                // SAFETY: for_event found it, and its event is outstanding, so that it is not freed.
                unsafe {
                    Id::show_addresses(pointer, &info);
                    if event.kind == EventKind::RouteResolved {
                        Id::show_route(pointer, &info);
                    }
                }
            }
        }
        EventKind::ConnectResponse if !id.qp().is_null() => connect_now(id, &mut object),
        EventKind::MulticastJoin => joined(id, &event, &mut object),
        _ => {}
    }
    fill(id, &event, &mut object);
    Ok(Some(object))
}

/// The reply came and the QP is ours to bring up: the program sees the result only.
fn connect_now(id: &Id, object: &mut EventObject) {
    let gone = |_| Errno(libc::ECONNRESET);
    let connected = qp::connect_qp(id).and_then(|()| agent()?.ready(id.key).map_err(gone));
    match connected {
        Ok(()) => object.c.event = EventKind::Established as u32,
        Err(errno) => {
            // The peer is told; if it has gone meanwhile, it need not be.
            let _ = agent().and_then(|agent| agent.give_up(id.key));
            object.c.event = EventKind::ConnectError as u32;
            object.c.status = -errno.0;
        }
    }
}

fn joined(id: &Id, event: &Event, object: &mut EventObject) {
    let Body::Group { mgid, context, .. } = event.body else {
        return;
    };
    let mut inner = id.inner();
    let Some(group) = inner
        .groups
        .iter_mut()
        .find(|group| group.context == context && !group.attached)
    else {
        return;
    };
    group.attached = true;
    if id.qp().is_null() || group.send_only {
        return;
    }
    let gid = ibv_gid { raw: mgid };
    // SAFETY: the program's QP lives as long as it is in the identifier's field.
    let attached = super::verbs::check(unsafe { (calls().attach_mcast)(id.qp(), &gid, 0) });
    if let Err(errno) = attached {
        object.c.event = EventKind::MulticastError as u32;
        object.c.status = -errno.0;
    }
}

/// A request: it gets an identifier of its own.
fn requested(
    listener: super::channel::Key,
    event: Event,
) -> Result<Option<Box<EventObject>>, Errno> {
    let Some(listen_pointer) = Id::for_event(listener) else {
        return Ok(None);
    };
    // SAFETY: for_event found it, and its event is outstanding from here on.
    let listen_id = unsafe { Id::of(listen_pointer) };
    let owner: &Arc<Outstanding> = &listen_id.outstanding;
    let Ok(info) = agent()?.info(event.key) else {
        owner.done();
        return Ok(None);
    };
    // The two ends of an XRC connection have different types.
    let qp_type = match u32::from(info.qp_type) {
        IBV_QPT_XRC_SEND => IBV_QPT_XRC_RECV,
        other => other,
    };
    let Some(channel) = listen_id.inner().channel.clone() else {
        owner.done();
        return Ok(None);
    };
    let pointer = Id::make(
        event.key,
        info.port_space,
        qp_type,
        listen_id.context(),
        channel,
        listen_id.channel_object(),
        None,
    );
    // SAFETY: just made, and not known to the program yet.
    unsafe {
        Id::show_addresses(pointer, &info);
        Id::show_route(pointer, &info);
    }
    let mut object = EventObject::new(pointer, event.kind as u32, event.status, owner);
    object.c.listen_id = listen_pointer;
    object.listener = listen_pointer;
    // SAFETY: just made, and not known to the program yet, which could free it.
    let id = unsafe { Id::of(pointer) };
    let mut inner = id.inner();
    if let (Body::Connection { params, .. }, Some(device)) = (&event.body, inner.device) {
        // What rdma_accept without parameters goes by.
        inner.responder_resources = params.initiator_depth.min(device.responder_resources_max);
        inner.initiator_depth = params.responder_resources.min(device.initiator_depth_max);
    }
    drop(inner);
    fill(id, &event, &mut object);
    Ok(Some(object))
}

/// Writes the event's parameters, in the form that its identifier has.
fn fill(id: &Id, event: &Event, object: &mut EventObject) {
    let datagram = id.qp_type() == IBV_QPT_UD;
    match &event.body {
        Body::None => {}
        Body::Connection { params, private } => {
            let room = match event.kind {
                EventKind::ConnectRequest => REQ_PRIVATE_MAX,
                EventKind::ConnectResponse => REP_PRIVATE_MAX,
                _ => 0,
            };
            let (data, len) = object.keep_private(private.as_slice(), room);
            object.c.param.conn = conn_param(params, data, len);
        }
        Body::Reject { private } if datagram => {
            let (data, len) = object.keep_private(private.as_slice(), SIDR_REP_PRIVATE_MAX);
            object.c.param.ud = ud_param(data, len);
        }
        Body::Reject { private } => {
            let (data, len) = object.keep_private(private.as_slice(), REJ_PRIVATE_MAX);
            object.c.param.conn = conn_param(&ConnParams::default(), data, len);
        }
        Body::Lookup { private } => {
            let (data, len) = object.keep_private(private.as_slice(), SIDR_REQ_PRIVATE_MAX);
            object.c.param.ud = ud_param(data, len);
        }
        Body::Datagram {
            qp_num,
            qkey,
            gid,
            private,
        } => {
            let (data, len) = object.keep_private(private.as_slice(), SIDR_REP_PRIVATE_MAX);
            let mut param = ud_param(data, len);
            param.qp_num = *qp_num;
            param.qkey = *qkey;
            if let Ok(info) = agent().and_then(|agent| agent.info(event.key)) {
                param.ah_attr = qp::ah_attr(&info, *gid);
            }
            object.c.param.ud = param;
        }
        Body::Group {
            mgid,
            qkey,
            context,
        } => {
            // rdma_join_multicast(3): the program's context comes back as private data.
            let mut param = ud_param(*context as *const c_void, 0);
            param.qp_num = MULTICAST_QPN;
            param.qkey = *qkey;
            if let Ok(info) = agent().and_then(|agent| agent.info(event.key)) {
                param.ah_attr = qp::ah_attr(&info, *mgid);
            }
            object.c.param.ud = param;
        }
    }
}

/// The peer's parameters as the program sees them: what is its responder is this side's
/// initiator.
fn conn_param(params: &ConnParams, private_data: *const c_void, len: u8) -> rdma_conn_param {
    rdma_conn_param {
        private_data: if len == 0 { null_mut() } else { private_data },
        private_data_len: len,
        responder_resources: params.initiator_depth,
        initiator_depth: params.responder_resources,
        flow_control: params.flow_control,
        retry_count: params.retry_count,
        rnr_retry_count: params.rnr_retry_count,
        srq: u8::from(params.srq),
        qp_num: params.qp_num,
    }
}

fn ud_param(private_data: *const c_void, private_data_len: u8) -> rdma_ud_param {
    // SAFETY: all zeros is a valid value of the plain C structure.
    let mut param: rdma_ud_param = unsafe { std::mem::zeroed() };
    param.private_data = private_data;
    param.private_data_len = private_data_len;
    param
}

pub extern "C" fn rdma_event_str(event: u32) -> *const c_char {
    EventKind::ALL
        .iter()
        .find(|(kind, _, _)| *kind as u32 == event)
        .map_or(c"UNKNOWN EVENT", |(_, _, name)| name)
        .as_ptr()
}
