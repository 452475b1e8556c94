//! What the agent says, as fields of messages on the wire, and back. A trace of what two
//! processes of one host say to each other has the same fields ([`crate::host`]).
//!
//! The values are those of Linux's rdma_cm where it has a choice (`cma.c`, `cm.c`), since every
//! adapter's connection manager has met those.

use std::net::{IpAddr, Ipv6Addr};

use sluice_verbs::transport::MadPath;
use sluice_wire::cm::{IpService, Path, Rep, Req, SidrRep, SidrReq, SidrStatus, Transport};
use sluice_wire::mad;
use sluice_wire::{Mtu, Psn, Qpn};

use super::connection::Connection;
use super::times::{CM_RETRIES, RESPONSE_TIMEOUT};
use crate::abi::{RDMA_PS_IB, RDMA_PS_IPOIB, RDMA_PS_TCP, RDMA_PS_UDP};
use crate::address::Address;
use crate::ffi::{IBV_QPT_RC, IBV_QPT_UC, IBV_QPT_XRC_RECV, IBV_QPT_XRC_SEND};
use crate::message::{
    ConnParams, Ece, PrivateData, Request, SIDR_REQ_PRIVATE_MAX, SIDR_SUCCESS, SIDR_UNSUPPORTED,
    SidrReply, SidrRequest,
};
use crate::path::{HOP_LIMIT, PACKET_LIFE_TIME};

/// How long this device takes to acknowledge, as its attributes say.
pub const ACK_DELAY: u8 = 0;
/// The default partition, full member.
const PKEY: u16 = 0xffff;
/// LIDs of a path over routers (IBTA 4.1.3); with RoCEv2 there are none.
const LID_PERMISSIVE: u16 = 0xffff;
/// The port's own (`IBV_RATE_MAX`): adapters slow down to a smaller one that a peer names.
const RATE: u8 = 0;
/// Bytes of private data in front of the program's.
const HEADER: usize = IpService::BYTES;

/// The local ACK timeout for a path: twice its life time, and the time that the responder takes
/// (IBTA 12.7.34, rounded as Linux does).
pub fn ack_timeout(ack_delay: u8, life_time: u8) -> u8 {
    let there_and_back = life_time + 1;
    let sum = if there_and_back >= ack_delay {
        there_and_back + u8::from(ack_delay >= there_and_back - 1)
    } else {
        ack_delay + u8::from(there_and_back >= ack_delay - 1)
    };
    sum.min(31)
}

/// The service ID of a port (annex A11; the kernel's `rdma_get_service_id`).
pub fn service_id(port_space: u16, port: u16) -> u64 {
    u64::from(port_space) << 16 | u64::from(port)
}

/// Port space and port of a service ID; `None` for one that no identifier can listen to.
fn split_service_id(id: u64) -> Option<(u16, u16)> {
    let port_space = u16::try_from(id >> 16).ok()?;
    [RDMA_PS_TCP, RDMA_PS_UDP, RDMA_PS_IB, RDMA_PS_IPOIB]
        .contains(&port_space)
        .then_some((port_space, id as u16))
}

/// The addresses (annex A11), and the program's private data behind them; `None` when one of them
/// does not fit.
pub fn with_header(
    source: &Address,
    destination: &Address,
    private: &PrivateData,
) -> Option<Vec<u8>> {
    let header = IpService {
        source_port: source.port,
        source: source.ip,
        destination: destination.ip,
    };
    let mut bytes = header.emit().ok()?.to_vec();
    bytes.extend_from_slice(private.as_slice());
    Some(bytes)
}

/// Both addresses of a request, the peer's first, and the program's private data.
fn addresses(
    path: &MadPath,
    service: u64,
    private_data: &[u8],
) -> Option<(u16, Address, Address, Vec<u8>)> {
    let (port_space, port) = split_service_id(service)?;
    let (header, private) = IpService::parse(private_data).ok()?;
    let address = |ip: IpAddr, port| Address {
        ip,
        port,
        scope: match ip {
            IpAddr::V6(ip) if ip.is_unicast_link_local() => path.interface,
            _ => 0,
        },
    };
    Some((
        port_space,
        address(header.source, header.source_port),
        address(header.destination, port),
        private.to_vec(),
    ))
}

/// A QP number of a program, or a PSN: what does not fit is cut.
fn qpn(number: u32) -> Qpn {
    Qpn::new(number)
}

fn transport(qp_type: u8) -> Option<Transport> {
    match u32::from(qp_type) {
        IBV_QPT_RC => Some(Transport::Rc),
        IBV_QPT_UC => Some(Transport::Uc),
        IBV_QPT_XRC_SEND | IBV_QPT_XRC_RECV => Some(Transport::Xrc),
        _ => None,
    }
}

/// The requester's type of QP.
pub fn qp_type(transport: Transport) -> u8 {
    let qp_type = match transport {
        Transport::Rc => IBV_QPT_RC,
        Transport::Uc => IBV_QPT_UC,
        Transport::Xrc => IBV_QPT_XRC_SEND,
    };
    qp_type as u8
}

/// What a message has of the side that says it, besides what the agent says.
#[derive(Clone, Copy, Debug)]
pub struct Names {
    pub local_comm_id: u32,
    /// 0 in a request.
    pub remote_comm_id: u32,
    pub ca_guid: u64,
}

/// A REQ's fields. `gids`: this side's and the peer's. `private_data`: see [`with_header`].
/// `None` for a request that has no such form.
pub fn req_fields<'a>(
    names: Names,
    gids: [[u8; 16]; 2],
    request: &Request,
    private_data: &'a [u8],
) -> Option<Req<'a>> {
    let params = &request.params;
    let [local_gid, remote_gid] = gids.map(Ipv6Addr::from);
    Some(Req {
        local_comm_id: names.local_comm_id,
        service_id: service_id(request.port_space, request.destination.port),
        local_ca_guid: names.ca_guid,
        local_qkey: 0,
        local_qpn: qpn(params.qp_num),
        responder_resources: params.responder_resources,
        initiator_depth: params.initiator_depth,
        remote_response_timeout: RESPONSE_TIMEOUT,
        transport: transport(request.qp_type)?,
        end_to_end_flow_control: params.flow_control != 0,
        starting_psn: Psn::new(params.psn),
        local_response_timeout: RESPONSE_TIMEOUT,
        retry_count: params.retry_count,
        pkey: PKEY,
        path_mtu: Mtu::from_code(request.mtu).ok()?,
        rnr_retry_count: params.rnr_retry_count,
        max_cm_retries: CM_RETRIES,
        srq: params.srq,
        primary: Path {
            local_lid: LID_PERMISSIVE,
            remote_lid: LID_PERMISSIVE,
            local_gid,
            remote_gid,
            flow_label: 0,
            packet_rate: RATE,
            traffic_class: request.tos,
            hop_limit: HOP_LIMIT,
            sl: 0,
            // It says whether the hop limit is at most 1.
            subnet_local: false,
            local_ack_timeout: ack_timeout(ACK_DELAY, PACKET_LIFE_TIME),
        },
        alternate: Path::NONE,
        private_data,
    })
}

/// REQ; `None` for a request that has no such form.
pub fn req(
    connection: &Connection,
    ca_guid: u64,
    request: &Request,
    transaction: u64,
) -> Option<[u8; mad::BYTES]> {
    let private_data = with_header(&request.source, &request.destination, &request.private)?;
    let gids = [connection.path.source.0, connection.path.destination.0];
    let names = Names {
        local_comm_id: connection.local_id,
        remote_comm_id: 0,
        ca_guid,
    };
    let req = req_fields(names, gids, request, &private_data)?;
    sluice_wire::cm::Message::Req(req).emit(transaction).ok()
}

/// A REP's fields, for a requester's `qp_type`.
pub fn rep_fields<'a>(
    names: Names,
    qp_type: u8,
    params: &ConnParams,
    private: &'a PrivateData,
) -> Rep<'a> {
    let extended = transport(qp_type) == Some(Transport::Xrc);
    let (local_qpn, local_eecn) = match extended {
        true => (Qpn::default(), qpn(params.qp_num)),
        false => (qpn(params.qp_num), Qpn::default()),
    };
    Rep {
        local_comm_id: names.local_comm_id,
        remote_comm_id: names.remote_comm_id,
        local_qkey: 0,
        local_qpn,
        local_eecn,
        starting_psn: Psn::new(params.psn),
        responder_resources: params.responder_resources,
        initiator_depth: params.initiator_depth,
        target_ack_delay: ACK_DELAY,
        // There is no alternate path to accept: "not supported" would be 1, Linux says 0.
        failover: 0,
        end_to_end_flow_control: params.flow_control != 0,
        rnr_retry_count: params.rnr_retry_count,
        srq: params.srq || extended,
        local_ca_guid: names.ca_guid,
        private_data: private.as_slice(),
    }
}

/// REP.
pub fn rep(
    connection: &Connection,
    ca_guid: u64,
    params: &ConnParams,
    private: &PrivateData,
) -> Option<[u8; mad::BYTES]> {
    let names = Names {
        local_comm_id: connection.local_id,
        remote_comm_id: connection.remote_id,
        ca_guid,
    };
    let rep = rep_fields(names, connection.qp_type, params, private);
    let message = sluice_wire::cm::Message::Rep(rep);
    message.emit(connection.transaction).ok()
}

/// What a REQ asks; `None` when its service is none that could be listened to, or its header is
/// not that of annex A11.
pub fn request(path: &MadPath, req: &Req<'_>) -> Option<Request> {
    let (port_space, source, destination, private) =
        addresses(path, req.service_id, req.private_data)?;
    Some(Request {
        port_space,
        qp_type: qp_type(req.transport),
        mtu: req.path_mtu.code(),
        tos: req.primary.traffic_class,
        source,
        destination,
        params: ConnParams {
            qp_num: req.local_qpn.get(),
            psn: req.starting_psn.get(),
            responder_resources: req.responder_resources,
            initiator_depth: req.initiator_depth,
            flow_control: u8::from(req.end_to_end_flow_control),
            retry_count: req.retry_count,
            rnr_retry_count: req.rnr_retry_count,
            srq: req.srq,
            gid: path.source.0,
            ece: Ece::default(),
        },
        private: PrivateData::new(&private, private.len())?,
    })
}

/// What a REP says of the peer.
pub fn reply(path: &MadPath, qp_type: u8, rep: &Rep<'_>) -> ConnParams {
    let qp_num = match transport(qp_type) {
        Some(Transport::Xrc) => rep.local_eecn,
        _ => rep.local_qpn,
    };
    ConnParams {
        qp_num: qp_num.get(),
        psn: rep.starting_psn.get(),
        responder_resources: rep.responder_resources,
        initiator_depth: rep.initiator_depth,
        flow_control: u8::from(rep.end_to_end_flow_control),
        retry_count: 0,
        rnr_retry_count: rep.rnr_retry_count,
        srq: rep.srq,
        gid: path.source.0,
        ece: Ece::default(),
    }
}

/// A SIDR_REQ's fields. `private_data`: see [`with_header`].
pub fn sidr_req_fields<'a>(
    request_id: u32,
    request: &SidrRequest,
    private_data: &'a [u8],
) -> SidrReq<'a> {
    SidrReq {
        request_id,
        pkey: PKEY,
        service_id: service_id(request.port_space, request.destination.port),
        private_data,
    }
}

/// SIDR_REQ.
pub fn sidr_req(
    connection: &Connection,
    request: &SidrRequest,
    transaction: u64,
) -> Option<[u8; mad::BYTES]> {
    let private_data = with_header(&request.source, &request.destination, &request.private)?;
    let req = sidr_req_fields(connection.local_id, request, &private_data);
    let message = sluice_wire::cm::Message::SidrReq(req);
    message.emit(transaction).ok()
}

/// What a SIDR_REQ asks.
pub fn sidr_request(path: &MadPath, req: &SidrReq<'_>) -> Option<SidrRequest> {
    let (port_space, source, destination, private) =
        addresses(path, req.service_id, req.private_data)?;
    debug_assert_eq!(private.len(), SIDR_REQ_PRIVATE_MAX);
    Some(SidrRequest {
        port_space,
        source,
        destination,
        private: PrivateData::new(&private, SIDR_REQ_PRIVATE_MAX)?,
    })
}

/// A SIDR_REP's fields.
pub fn sidr_rep_fields(request_id: u32, service_id: u64, reply: &SidrReply) -> SidrRep<'_> {
    SidrRep {
        request_id,
        status: match reply.status {
            SIDR_SUCCESS => SidrStatus::Valid,
            SIDR_UNSUPPORTED => SidrStatus::NotSupported,
            _ => SidrStatus::Rejected,
        },
        qpn: qpn(reply.qp_num),
        service_id,
        qkey: reply.qkey,
        info: &[],
        private_data: reply.private.as_slice(),
    }
}

/// SIDR_REP.
pub fn sidr_rep(connection: &Connection, reply: &SidrReply) -> Option<[u8; mad::BYTES]> {
    let rep = sidr_rep_fields(connection.remote_id, connection.service_id, reply);
    let message = sluice_wire::cm::Message::SidrRep(rep);
    message.emit(connection.transaction).ok()
}

/// What a SIDR_REP says.
pub fn sidr_reply(path: &MadPath, rep: &SidrRep<'_>) -> Option<SidrReply> {
    Some(SidrReply {
        status: rep.status as u8,
        qp_num: rep.qpn.get(),
        qkey: rep.qkey,
        gid: path.source.0,
        private: PrivateData::new(rep.private_data, SidrRep::PRIVATE_BYTES)?,
    })
}

/// A PSN, QP number and the like have room for what they carry: nothing is longer than its field.
const _: () = assert!(HEADER + SIDR_REQ_PRIVATE_MAX == SidrReq::PRIVATE_BYTES);
const _: () = assert!(HEADER + crate::message::REQ_PRIVATE_MAX == Req::PRIVATE_BYTES);
const _: () = assert!(crate::message::REP_PRIVATE_MAX == Rep::PRIVATE_BYTES);
const _: () = assert!(crate::message::SIDR_REP_PRIVATE_MAX == SidrRep::PRIVATE_BYTES);
