//! The C calls as programs make them: between two identifiers of this process, within the host,
//! and in a second process over queue pair 1.

use std::ffi::{c_int, c_void};
use std::net::{IpAddr, Ipv4Addr};
use std::process::Command;
use std::ptr::null_mut;

use super::abi::*;
use super::address::Address;
use super::channel::{Event, EventKind};
use super::cm_calls::*;
use super::endpoint::{rdma_create_ep, rdma_freeaddrinfo, rdma_get_request, rdma_getaddrinfo};
use super::events::*;
use super::fabric::{self, loopback};
use super::object::{ChannelObject, Id, agent};
use super::qp::*;
use super::{c_address, qp_mask};
use crate::ffi::*;
use sluice_verbs_calls::errno::errno;
use sluice_verbs_calls::qp::ibv_query_qp;

/// An identifier with a channel of its own.
struct End {
    id: *mut rdma_cm_id,
    channel: *mut rdma_event_channel,
}

impl Drop for End {
    fn drop(&mut self) {
        // SAFETY: both are this test's and nothing uses them afterwards.
        unsafe {
            if !self.id.is_null() {
                rdma_destroy_qp(self.id);
                rdma_destroy_id(self.id);
            }
            if !self.channel.is_null() {
                rdma_destroy_event_channel(self.channel);
            }
        }
    }
}

/// What a test wants to know of an event.
#[derive(Debug)]
struct Seen {
    id: *mut rdma_cm_id,
    kind: u32,
    status: c_int,
    conn: (u8, u8, u32),
    ud: (u32, u32, [u8; 16]),
    private: Vec<u8>,
}

fn loopback_address(port: u16) -> Address {
    Address::new(IpAddr::from(Ipv4Addr::LOCALHOST), port)
}

fn ok(status: c_int) {
    assert_eq!(status, 0, "errno {}", errno());
}

impl End {
    fn new(port_space: u16) -> End {
        let channel = rdma_create_event_channel();
        let mut id = null_mut();
        // SAFETY: the channel is valid, and so is `id`.
        ok(unsafe { rdma_create_id(channel, &raw mut id, null_mut(), port_space.into()) });
        End { id, channel }
    }

    fn listening(port_space: u16) -> (End, Address) {
        let end = End::new(port_space);
        let mut address = c_address::write(&loopback_address(0)).0;
        // SAFETY: the identifier is valid, and the address lives through the call.
        let port = unsafe {
            ok(rdma_bind_addr(end.id, (&raw mut address).cast()));
            ok(rdma_listen(end.id, 4));
            u16::from_be(rdma_get_src_port(end.id))
        };
        (end, loopback_address(port))
    }

    /// Resolved, with a QP.
    fn going_to(port_space: u16, destination: &Address) -> End {
        let end = End::new(port_space);
        let mut address = c_address::write(destination).0;
        // SAFETY: the identifier is valid, and the address lives through the call.
        unsafe {
            let to = (&raw mut address).cast();
            ok(rdma_resolve_addr(end.id, null_mut(), to, 1000));
            end.expect(EventKind::AddrResolved);
            ok(rdma_resolve_route(end.id, 1000));
            end.expect(EventKind::RouteResolved);
        }
        make_qp(end.id);
        end
    }

    fn next(&self) -> Seen {
        let mut event = null_mut();
        // SAFETY: the channel is valid; the event is until it is given back.
        unsafe {
            ok(rdma_get_cm_event(self.channel, &raw mut event));
            let c = &*event;
            let datagram = (*c.id).qp_type == IBV_QPT_UD;
            let (data, len) = match datagram {
                true => (c.param.ud.private_data, c.param.ud.private_data_len),
                false => (c.param.conn.private_data, c.param.conn.private_data_len),
            };
            let private = match data.is_null() || len == 0 {
                true => Vec::new(),
                false => std::slice::from_raw_parts(data.cast(), len.into()).to_vec(),
            };
            let (conn, ud) = (c.param.conn, c.param.ud);
            let seen = Seen {
                id: c.id,
                kind: c.event,
                status: c.status,
                conn: (conn.responder_resources, conn.initiator_depth, conn.qp_num),
                ud: (ud.qp_num, ud.qkey, ud.ah_attr.grh.dgid.raw),
                private,
            };
            ok(rdma_ack_cm_event(event));
            seen
        }
    }

    fn expect(&self, kind: EventKind) -> Seen {
        let seen = self.next();
        assert_eq!(seen.kind, kind as u32, "{seen:?}");
        seen
    }
}

fn make_qp(id: *mut rdma_cm_id) {
    // SAFETY: all zeros is a valid value; the identifier is valid.
    unsafe {
        let mut attr: ibv_qp_init_attr = std::mem::zeroed();
        attr.qp_type = (*id).qp_type;
        attr.cap.max_send_wr = 4;
        attr.cap.max_recv_wr = 4;
        attr.cap.max_send_sge = 1;
        attr.cap.max_recv_sge = 1;
        ok(rdma_create_qp(id, null_mut(), &raw mut attr));
    }
}

fn qp_num(id: *mut rdma_cm_id) -> u32 {
    // SAFETY: the identifier has a QP.
    unsafe { (*(*id).qp).qp_num }
}

fn param(private: &[u8]) -> rdma_conn_param {
    rdma_conn_param {
        private_data: private.as_ptr().cast::<c_void>(),
        private_data_len: private.len() as u8,
        responder_resources: 3,
        initiator_depth: 2,
        flow_control: 1,
        retry_count: 5,
        rnr_retry_count: 6,
        srq: 0,
        qp_num: 0,
    }
}

fn over_wire(id: *mut rdma_cm_id) -> bool {
    // SAFETY: the identifier is valid.
    let key = unsafe { Id::of(id) }.key;
    agent().unwrap().info(key).unwrap().way == fabric::connector::NAME
}

fn query(id: *mut rdma_cm_id) -> ibv_qp_attr {
    // SAFETY: all zeros is a valid value of both; the identifier has a QP.
    unsafe {
        let mut attr: ibv_qp_attr = std::mem::zeroed();
        let mut init: ibv_qp_init_attr = std::mem::zeroed();
        ok(ibv_query_qp(
            (*id).qp,
            &raw mut attr,
            c_int::MAX,
            &raw mut init,
        ));
        attr
    }
}

#[test]
fn a_connection_and_what_its_queue_pairs_are_told() {
    let (listener, address) = End::listening(RDMA_PS_TCP);
    let active = End::going_to(RDMA_PS_TCP, &address);
    assert_eq!(over_wire(active.id), loopback::active());
    // SAFETY: the identifiers are valid, parameters live through the calls.
    unsafe {
        let route = (*active.id).route;
        let path = &*route.path_rec;
        assert_eq!(
            (route.num_paths, path.hop_limit, path.pkey),
            (1, 64, 0xffff)
        );
        ok(rdma_connect(active.id, &raw mut *Box::new(param(b"hello"))));
    }
    let request = listener.expect(EventKind::ConnectRequest);
    // The peer's depth is what this side answers.
    assert_eq!(request.conn, (2, 3, qp_num(active.id)));
    assert_eq!(
        (request.private.len(), &request.private[..6]),
        (56, &b"hello\0"[..])
    );
    let passive = End {
        id: request.id,
        channel: null_mut(),
    };
    assert_eq!(over_wire(passive.id), loopback::active());
    make_qp(passive.id);
    // SAFETY: the identifier is valid, and the parameters live through the call.
    unsafe {
        let mut accepted = param(b"welcome");
        accepted.responder_resources = request.conn.0;
        accepted.initiator_depth = request.conn.1;
        ok(rdma_accept(passive.id, &raw mut accepted));
    }
    let up = active.expect(EventKind::Established);
    assert_eq!(up.conn.2, qp_num(passive.id));
    assert_eq!(
        (up.private.len(), &up.private[..8]),
        (196, &b"welcome\0"[..])
    );
    listener.expect(EventKind::Established);

    let (a, p) = (query(active.id), query(passive.id));
    for (here, there, own, peer) in [
        (&a, &p, active.id, passive.id),
        (&p, &a, passive.id, active.id),
    ] {
        assert_eq!(here.qp_state, qp_mask::QPS_RTS);
        // SAFETY: the identifier is valid: both ends are destroyed behind this.
        assert_eq!(here.rq_psn, unsafe { Id::of(own) }.inner().psn);
        assert_eq!(here.dest_qp_num, qp_num(peer));
        assert_eq!(here.rq_psn, there.sq_psn);
        assert_eq!(here.max_rd_atomic, there.max_dest_rd_atomic);
        assert_eq!((here.retry_cnt, here.rnr_retry), (5, 6));
        assert_eq!(here.path_mtu, there.path_mtu);
        // Twice the packet life time and the peer's delay; Linux between hosts adds one to it.
        assert_eq!(here.timeout, if loopback::active() { 17 } else { 18 });
        assert_eq!(here.ah_attr.is_global, 1);
        assert_eq!(here.ah_attr.grh.hop_limit, 64);
        assert_eq!(here.ah_attr.grh.dgid.raw, loopback_address(0).gid());
    }
    assert_eq!((a.max_dest_rd_atomic, a.max_rd_atomic), (3, 2));

    // SAFETY: the identifier is valid.
    ok(unsafe { rdma_disconnect(active.id) });
    active.expect(EventKind::Disconnected);
    listener.expect(EventKind::Disconnected);
    active.expect(EventKind::TimewaitExit);
    listener.expect(EventKind::TimewaitExit);
}

#[test]
fn a_rejection_brings_reason_and_private_data() {
    let (listener, address) = End::listening(RDMA_PS_TCP);
    let active = End::going_to(RDMA_PS_TCP, &address);
    // SAFETY: the identifiers are valid, parameters live through the calls.
    unsafe {
        ok(rdma_connect(active.id, &raw mut *Box::new(param(b""))));
        let request = listener.expect(EventKind::ConnectRequest);
        ok(rdma_reject(request.id, b"no".as_ptr().cast(), 2));
        let rejected = active.expect(EventKind::Rejected);
        assert_eq!(rejected.status, 28);
        assert_eq!(
            (rejected.private.len(), &rejected.private[..3]),
            (148, &b"no\0"[..])
        );
        ok(rdma_destroy_id(request.id));
    }
}

#[test]
fn a_channel_that_is_gone_is_a_descriptor_that_is_closed() {
    // Where one was destroyed another thread's may stand at once; here there never was one.
    let mut nothing = rdma_event_channel { fd: -1 };
    let channel = &raw mut nothing;
    let (mut event, mut id) = (null_mut(), null_mut());
    // SAFETY: what is no channel is compared only; the rest is valid.
    unsafe {
        assert_eq!(rdma_get_cm_event(channel, &raw mut event), -1);
        assert_eq!(errno(), libc::EBADF);
        let made = rdma_create_id(channel, &raw mut id, null_mut(), RDMA_PS_TCP.into());
        assert_eq!((made, errno()), (-1, libc::EBADF));
        let end = End::new(RDMA_PS_TCP);
        assert_eq!(rdma_migrate_id(end.id, channel), -1);
        assert_eq!(errno(), libc::EBADF);
        // Nor is it freed.
        rdma_destroy_event_channel(channel);
    }
}

#[test]
fn who_waits_for_a_channel_keeps_it() {
    let channel = rdma_create_event_channel();
    // SAFETY: just made.
    let found = ChannelObject::find(channel);
    let found = found.expect("it is there");
    // SAFETY: nobody uses the object any more.
    unsafe { rdma_destroy_event_channel(channel) };
    found.push(Event::new(1, EventKind::Established));
    assert_eq!(found.next(), Ok(Event::new(1, EventKind::Established)));
}

#[test]
fn nobody_listens() {
    let (listener, address) = End::listening(RDMA_PS_TCP);
    drop(listener);
    let active = End::going_to(RDMA_PS_TCP, &address);
    // SAFETY: the identifier is valid, the parameters live through the call.
    ok(unsafe { rdma_connect(active.id, &raw mut *Box::new(param(b""))) });
    assert_eq!(active.expect(EventKind::Rejected).status, 8);
}

#[test]
fn a_datagram_service_is_found() {
    let (listener, address) = End::listening(RDMA_PS_UDP);
    let active = End::going_to(RDMA_PS_UDP, &address);
    // SAFETY: the identifiers are valid, parameters live through the calls.
    unsafe {
        ok(rdma_connect(active.id, &raw mut *Box::new(param(b"who"))));
        let request = listener.expect(EventKind::ConnectRequest);
        assert_eq!(
            (request.private.len(), &request.private[..4]),
            (180, &b"who\0"[..])
        );
        let passive = End {
            id: request.id,
            channel: null_mut(),
        };
        make_qp(passive.id);
        ok(rdma_accept(passive.id, &raw mut *Box::new(param(b"me"))));
        let found = active.expect(EventKind::Established);
        let expected = (qp_num(passive.id), RDMA_UDP_QKEY, address.gid());
        assert_eq!(found.ud, expected);
        assert_eq!(
            (found.private.len(), &found.private[..3]),
            (136, &b"me\0"[..])
        );
    }
}

/// The synchronous calls: `rdma_create_ep`, `rdma_get_request`.
#[test]
fn endpoints() {
    let port = {
        let (_probe, address) = End::listening(RDMA_PS_TCP);
        address.port
    };
    let service = std::ffi::CString::new(port.to_string()).unwrap();
    let endpoint = |flags: c_int| {
        // SAFETY: all zeros is a valid value of the plain structures; pointers live through the
        // calls.
        unsafe {
            let mut hints: rdma_addrinfo = std::mem::zeroed();
            hints.ai_flags = flags;
            hints.ai_port_space = RDMA_PS_TCP.into();
            let mut found = null_mut();
            let node = c"127.0.0.1".as_ptr();
            ok(rdma_getaddrinfo(
                node,
                service.as_ptr(),
                &raw const hints,
                &raw mut found,
            ));
            let mut attr: ibv_qp_init_attr = std::mem::zeroed();
            attr.cap.max_send_wr = 2;
            attr.cap.max_recv_wr = 2;
            attr.cap.max_send_sge = 1;
            attr.cap.max_recv_sge = 1;
            let mut id = null_mut();
            ok(rdma_create_ep(
                &raw mut id,
                found,
                null_mut(),
                &raw mut attr,
            ));
            rdma_freeaddrinfo(found);
            id
        }
    };
    let listener = endpoint(RAI_PASSIVE);
    // SAFETY: the identifier is valid.
    ok(unsafe { rdma_listen(listener, 0) });
    let listener = listener as usize;
    let server = std::thread::spawn(move || {
        let mut id = null_mut();
        // SAFETY: the listener lives until this thread has ended.
        unsafe {
            ok(rdma_get_request(listener as *mut rdma_cm_id, &raw mut id));
            ok(rdma_accept(id, null_mut()));
        }
        id as usize
    });
    let client = endpoint(0);
    // SAFETY: all identifiers are valid until they are destroyed, once.
    unsafe {
        ok(rdma_connect(client, null_mut()));
        let server = server.join().unwrap() as *mut rdma_cm_id;
        assert_eq!(query(client).dest_qp_num, qp_num(server));
        ok(rdma_disconnect(client));
        for id in [client, server, listener as *mut rdma_cm_id] {
            rdma_destroy_ep(id);
        }
    }
}

/// Everything here when the connection manager has no other way than queue pair 1.
#[test]
fn all_of_it_over_queue_pair_1() {
    if loopback::active() {
        return;
    }
    let output = Command::new(std::env::current_exe().unwrap())
        .args(["c_tests"])
        .env(loopback::VARIABLE, "1")
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(
        output.status.success(),
        "{said}{}",
        String::from_utf8_lossy(&output.stderr)
    );
    assert!(said.contains("c_tests::a_connection_and_what"), "{said}");
}

/// As on Linux, where libfabric tells its peers the device's addresses then, not 127.0.0.1.
#[test]
fn an_identifier_bound_to_the_loopback_has_no_device_until_it_goes_somewhere() {
    let (listener, address) = End::listening(RDMA_PS_TCP);
    // SAFETY: the identifier is valid.
    assert!(unsafe { (*listener.id).verbs }.is_null());
    let client = End::going_to(RDMA_PS_TCP, &address);
    // SAFETY: the identifier is valid.
    assert!(!unsafe { (*client.id).verbs }.is_null());
}
