//! `rdma_getaddrinfo`, and identifiers made from what it finds.

use std::ffi::{CStr, CString, c_char, c_int};
use std::ptr::null_mut;

use libc::{EAI_BADFLAGS, EAI_FAMILY, EAI_MEMORY, EAI_NONAME, EAI_SERVICE, addrinfo, sockaddr};

use super::abi::*;
use super::address::Address;
use super::channel::EventKind;
use super::cm_calls::{create, migrate, rdma_destroy_id};
use super::object::{EventObject, Id, Template, agent};
use super::synchronous::complete;
use super::{Errno, answer, c_address, events, qp};
use crate::ffi::*;

/// The header's `EAI_QPTYPE`, which has the number of `EAI_SOCKTYPE`.
const EAI_QPTYPE: c_int = libc::EAI_SOCKTYPE;

/// # Safety
/// Strings end in NUL, `hints` is NULL or valid, `result` is valid.
pub unsafe extern "C" fn rdma_getaddrinfo(
    node: *const c_char,
    service: *const c_char,
    hints: *const rdma_addrinfo,
    result: *mut *mut rdma_addrinfo,
) -> c_int {
    // SAFETY: the caller's contract.
    match unsafe { lookup(node, service, hints.as_ref()) } {
        Ok(info) => {
            // SAFETY: the caller's contract.
            unsafe { *result = Box::into_raw(info) };
            0
        }
        Err(code) => code,
    }
}

unsafe fn lookup(
    node: *const c_char,
    service: *const c_char,
    hints: Option<&rdma_addrinfo>,
) -> Result<Box<rdma_addrinfo>, c_int> {
    if node.is_null() && service.is_null() && hints.is_none() {
        return Err(EAI_NONAME);
    }
    let flags = hints.map_or(0, |hints| hints.ai_flags);
    if flags & !(RAI_PASSIVE | RAI_NUMERICHOST | RAI_NOROUTE | RAI_FAMILY) != 0 {
        return Err(EAI_BADFLAGS);
    }
    let passive = flags & RAI_PASSIVE != 0;
    let family = match hints {
        Some(hints) if flags & RAI_FAMILY != 0 => hints.ai_family,
        _ => libc::AF_UNSPEC,
    };
    if ![libc::AF_UNSPEC, libc::AF_INET, libc::AF_INET6].contains(&family) {
        return Err(EAI_FAMILY);
    }
    let (qp_type, port_space) = types(hints)?;
    // SAFETY: hints' addresses are as long as they say.
    let (hinted_source, hinted_destination) = unsafe {
        (
            hinted(hints, |h| (h.ai_src_addr, h.ai_src_len))?,
            hinted(hints, |h| (h.ai_dst_addr, h.ai_dst_len))?,
        )
    };
    let found = if node.is_null() && service.is_null() {
        None
    } else {
        // SAFETY: the caller's contract.
        Some(unsafe { resolve(node, service, flags, family, port_space)? })
    };
    let (mut source, mut destination) = match (passive, found) {
        (true, found) => (found.or(hinted_source), None),
        (false, found) => (hinted_source, found.or(hinted_destination)),
    };
    if passive {
        destination = None;
    } else if source.is_none()
        && flags & RAI_NOROUTE == 0
        && let Some(destination) = &destination
    {
        source = destination.route_source().ok();
    }
    let known = source.or(destination).ok_or(EAI_NONAME)?;
    // SAFETY: all zeros is a valid value: null pointers and numbers.
    let mut info: Box<rdma_addrinfo> = Box::new(unsafe { std::mem::zeroed() });
    info.ai_flags = flags;
    info.ai_family = match known.ip.is_ipv4() {
        true => libc::AF_INET,
        false => libc::AF_INET6,
    };
    info.ai_qp_type = qp_type;
    info.ai_port_space = port_space;
    (info.ai_src_addr, info.ai_src_len) = give(source.as_ref());
    (info.ai_dst_addr, info.ai_dst_len) = give(destination.as_ref());
    if !node.is_null() {
        // SAFETY: the caller's contract.
        let name = unsafe { CStr::from_ptr(node) }.to_owned();
        match passive {
            true => info.ai_src_canonname = name.into_raw(),
            false => info.ai_dst_canonname = name.into_raw(),
        }
    }
    if let Some(hints) = hints
        && hints.ai_connect_len > 0
        && !hints.ai_connect.is_null()
    {
        // SAFETY: malloc has no precondition, and the hints' data is as long as it says.
        unsafe {
            info.ai_connect = libc::malloc(hints.ai_connect_len);
            if info.ai_connect.is_null() {
                rdma_freeaddrinfo(Box::into_raw(info));
                return Err(EAI_MEMORY);
            }
            std::ptr::copy_nonoverlapping(
                hints.ai_connect.cast::<u8>(),
                info.ai_connect.cast::<u8>(),
                hints.ai_connect_len,
            );
        }
        info.ai_connect_len = hints.ai_connect_len;
    }
    Ok(info)
}

/// QP type and port space; what the hints leave open follows from the other.
fn types(hints: Option<&rdma_addrinfo>) -> Result<(c_int, c_int), c_int> {
    let (qp_type, port_space) = hints.map_or((0, 0), |h| (h.ai_qp_type, h.ai_port_space));
    let port_space = match (port_space as u16, qp_type as u32) {
        (0, IBV_QPT_UD) => RDMA_PS_UDP,
        (0, _) => RDMA_PS_TCP,
        (given @ (RDMA_PS_TCP | RDMA_PS_UDP | RDMA_PS_IPOIB | RDMA_PS_IB), _) => given,
        _ => return Err(EAI_SERVICE),
    };
    let datagram = port_space == RDMA_PS_UDP || port_space == RDMA_PS_IPOIB;
    let qp_type = match qp_type as u32 {
        0 if datagram => IBV_QPT_UD,
        0 => IBV_QPT_RC,
        IBV_QPT_UD if datagram || port_space == RDMA_PS_IB => IBV_QPT_UD,
        given @ (IBV_QPT_RC | IBV_QPT_UC | IBV_QPT_XRC_SEND | IBV_QPT_XRC_RECV) if !datagram => {
            given
        }
        _ => return Err(EAI_QPTYPE),
    };
    Ok((qp_type as c_int, c_int::from(port_space)))
}

unsafe fn hinted(
    hints: Option<&rdma_addrinfo>,
    which: impl Fn(&rdma_addrinfo) -> (*mut sockaddr, libc::socklen_t),
) -> Result<Option<Address>, c_int> {
    let Some((pointer, len)) = hints.map(which) else {
        return Ok(None);
    };
    if pointer.is_null() || len == 0 {
        return Ok(None);
    }
    // SAFETY: the caller's contract: the address is as long as its length says.
    unsafe { c_address::read_sized(pointer, len) }
        .map(Some)
        .map_err(|_| EAI_FAMILY)
}

unsafe fn resolve(
    node: *const c_char,
    service: *const c_char,
    flags: c_int,
    family: c_int,
    port_space: c_int,
) -> Result<Address, c_int> {
    // SAFETY: all zeros is a valid value: null pointers and numbers.
    let mut hints: addrinfo = unsafe { std::mem::zeroed() };
    if flags & RAI_PASSIVE != 0 {
        hints.ai_flags |= libc::AI_PASSIVE;
    }
    if flags & RAI_NUMERICHOST != 0 {
        hints.ai_flags |= libc::AI_NUMERICHOST;
    }
    hints.ai_family = family;
    hints.ai_socktype = match port_space as u16 {
        RDMA_PS_UDP | RDMA_PS_IPOIB => libc::SOCK_DGRAM,
        _ => libc::SOCK_STREAM,
    };
    let mut list: *mut addrinfo = null_mut();
    // SAFETY: the strings end in NUL or are NULL, the hints live through the call.
    let code = unsafe { libc::getaddrinfo(node, service, &raw const hints, &raw mut list) };
    if code != 0 {
        return Err(code);
    }
    // SAFETY: the list is valid until freeaddrinfo.
    let address = unsafe {
        let address = c_address::read_sized((*list).ai_addr, (*list).ai_addrlen);
        libc::freeaddrinfo(list);
        address
    };
    address.map_err(|_| EAI_FAMILY)
}

fn give(address: Option<&Address>) -> (*mut sockaddr, libc::socklen_t) {
    address.map_or((null_mut(), 0), |address| {
        let (storage, len) = c_address::write(address);
        (Box::into_raw(Box::new(storage)).cast(), len)
    })
}

/// # Safety
/// `info` came from [`rdma_getaddrinfo`] or is NULL.
pub unsafe extern "C" fn rdma_freeaddrinfo(info: *mut rdma_addrinfo) {
    let mut next = info;
    while !next.is_null() {
        // SAFETY: each was made by `lookup`, with these allocations.
        unsafe {
            let info = Box::from_raw(next);
            for address in [info.ai_src_addr, info.ai_dst_addr] {
                if !address.is_null() {
                    drop(Box::from_raw(address.cast::<libc::sockaddr_storage>()));
                }
            }
            for name in [info.ai_src_canonname, info.ai_dst_canonname] {
                if !name.is_null() {
                    drop(CString::from_raw(name));
                }
            }
            libc::free(info.ai_connect);
            next = info.ai_next;
        }
    }
}

/// # Safety
/// As rdma_create_ep(3) wants its arguments.
pub unsafe extern "C" fn rdma_create_ep(
    id: *mut *mut rdma_cm_id,
    info: *mut rdma_addrinfo,
    pd: *mut ibv_pd,
    attr: *mut ibv_qp_init_attr,
) -> c_int {
    // SAFETY: the caller's contract.
    answer(unsafe {
        create_ep(&*info, pd, attr).map(|created| {
            *id = created;
        })
    })
}

unsafe fn create_ep(
    info: &rdma_addrinfo,
    pd: *mut ibv_pd,
    attr: *mut ibv_qp_init_attr,
) -> Result<*mut rdma_cm_id, Errno> {
    let (qp_type, port_space) = (info.ai_qp_type as u32, info.ai_port_space as u16);
    // SAFETY: the caller's contract; the identifier is destroyed when it cannot be used.
    unsafe {
        let id = create(null_mut(), null_mut(), port_space, qp_type)?;
        let result = set_up(id, info, pd, attr);
        if let Err(errno) = result {
            rdma_destroy_id(id);
            return Err(errno);
        }
        Ok(id)
    }
}

unsafe fn set_up(
    id: *mut rdma_cm_id,
    info: &rdma_addrinfo,
    pd: *mut ibv_pd,
    attr: *mut ibv_qp_init_attr,
) -> Result<(), Errno> {
    // SAFETY: the caller's contract.
    let (this, attr) = unsafe { (Id::of(id), attr.as_mut()) };
    let agent = agent()?;
    // SAFETY: addresses from rdma_getaddrinfo are as long as they say.
    let (source, destination) = unsafe {
        (
            hinted(Some(info), |i| (i.ai_src_addr, i.ai_src_len)).map_err(|_| Errno::INVAL)?,
            hinted(Some(info), |i| (i.ai_dst_addr, i.ai_dst_len)).map_err(|_| Errno::INVAL)?,
        )
    };
    if info.ai_flags & RAI_PASSIVE != 0 {
        agent.bind(this.key, source.ok_or(Errno::INVAL)?)?;
        // SAFETY: the caller's contract.
        unsafe { Id::show_addresses(id, &agent.info(this.key)?) };
        if let Some(attr) = attr {
            attr.qp_type = info.ai_qp_type as u32;
            this.inner().template = Some(Template { pd, qp: *attr });
        }
        return Ok(());
    }
    agent.resolve_addr(this.key, source, destination.ok_or(Errno::INVAL)?)?;
    // SAFETY: the caller's contract.
    unsafe {
        complete(id)?;
        agent.resolve_route(this.key)?;
        complete(id)?;
        if let Some(attr) = attr {
            attr.qp_type = info.ai_qp_type as u32;
            qp::create_plain(id, pd, attr)?;
        }
        if info.ai_connect_len > 0 && !info.ai_connect.is_null() {
            this.inner().connect_prefix =
                std::slice::from_raw_parts(info.ai_connect.cast(), info.ai_connect_len).to_vec();
        }
    }
    Ok(())
}

/// # Safety
/// `listener` is a listening identifier without a channel of the program; `id` is valid.
pub unsafe extern "C" fn rdma_get_request(
    listener: *mut rdma_cm_id,
    id: *mut *mut rdma_cm_id,
) -> c_int {
    // SAFETY: the caller's contract.
    answer(unsafe {
        get_request(listener).map(|request| {
            *id = request;
        })
    })
}

unsafe fn get_request(listener: *mut rdma_cm_id) -> Result<*mut rdma_cm_id, Errno> {
    // SAFETY: the caller's contract.
    let this = unsafe { Id::of(listener) };
    if !this.synchronous() {
        return Err(Errno::INVAL);
    }
    let channel = this.inner().channel.clone().ok_or(Errno::INVAL)?;
    let event = events::next(&channel)?;
    if event.c.status != 0 || event.c.event != EventKind::ConnectRequest as u32 {
        let status = event.c.status;
        event.owner.done();
        return Err(Errno(if status < 0 { -status } else { libc::EINVAL }));
    }
    let id = event.c.id;
    let template = this.inner().template;
    // SAFETY: the event brought the identifier, which nobody else knows yet.
    unsafe {
        let prepared = migrate(id, null_mut()).and_then(|()| match template {
            Some(mut template) => qp::create_plain(id, template.pd, &mut template.qp),
            None => Ok(()),
        });
        if let Err(errno) = prepared {
            event.owner.done();
            rdma_destroy_id(id);
            return Err(errno);
        }
        (*id).event = EventObject::give(event);
    }
    Ok(id)
}
