//! What two connection managers say to each other: the messages of IBTA chapter 12
//! (REQ, REP, RTU, REJ, DREQ, DREP, SIDR_REQ, SIDR_REP) with the fields that matter
//! between processes of one host.
//!
//! One message is one packet of a `SOCK_SEQPACKET` socket. Everything is big-endian:
//! magic, version, kind, the fields of the kind, then the length of the private data
//! and its bytes. [`Message::parse`] is a pure function that takes any bytes.

use std::net::IpAddr;

use super::address::Address;

const MAGIC: [u8; 4] = *b"SlCM";
const VERSION: u8 = 1;

/// No message is longer: REP with its fields and 196 bytes of private data.
pub const MESSAGE_LEN_MAX: usize = 384;

/// Private data limits of a user (rdma_connect(3), rdma_accept(3)), in bytes. They are
/// the message's room less the 36 bytes of the IP addressing header in REQ and SIDR_REQ.
pub const REQ_PRIVATE_MAX: usize = 56;
pub const REP_PRIVATE_MAX: usize = 196;
pub const REJ_PRIVATE_MAX: usize = 148;
pub const SIDR_REQ_PRIVATE_MAX: usize = 180;
pub const SIDR_REP_PRIVATE_MAX: usize = 136;

/// Reject reasons (IBTA 12.6.7.2) that this side gives.
pub const REJ_TIMEOUT: u16 = 4;
pub const REJ_INVALID_SERVICE_ID: u16 = 8;
pub const REJ_CONSUMER_DEFINED: u16 = 28;
/// The listener does not answer for this destination address: try the next one. Never
/// shown to a user.
pub const REJ_NOT_MY_ADDRESS: u16 = 0xffff;

/// SIDR statuses (IBTA 12.11.2.1).
pub const SIDR_SUCCESS: u8 = 0;
pub const SIDR_UNSUPPORTED: u8 = 1;
pub const SIDR_REJECT: u8 = 2;

const QPN_MAX: u32 = 0x00ff_ffff;

/// Bytes that are no message of this protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Malformed;

/// Private data, at most 255 bytes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PrivateData(Vec<u8>);

impl PrivateData {
    /// `None` when `bytes` is longer than `max`.
    pub fn new(bytes: &[u8], max: usize) -> Option<Self> {
        (bytes.len() <= max).then(|| Self(bytes.to_vec()))
    }

    pub fn as_slice(&self) -> &[u8] {
        &self.0
    }
}

/// Enhanced connection establishment options, passed through.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Ece {
    pub vendor_id: u32,
    pub options: u32,
}

/// What one side of a connection tells the other about its QP and its wishes. In a
/// message all of it is the sender's view.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ConnParams {
    pub qp_num: u32,
    /// First PSN that the receiver of the message is to use (IBTA 12.7.31).
    pub psn: u32,
    pub responder_resources: u8,
    pub initiator_depth: u8,
    pub flow_control: u8,
    /// 3 bits. In REQ only.
    pub retry_count: u8,
    /// 3 bits.
    pub rnr_retry_count: u8,
    pub srq: bool,
    pub gid: [u8; 16],
    pub ece: Ece,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Request {
    pub port_space: u16,
    /// `ibv_qp_type` of the requester's QP.
    pub qp_type: u8,
    /// `ibv_mtu`.
    pub mtu: u8,
    pub tos: u8,
    pub source: Address,
    pub destination: Address,
    pub params: ConnParams,
    pub private: PrivateData,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SidrRequest {
    pub port_space: u16,
    pub source: Address,
    pub destination: Address,
    pub private: PrivateData,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SidrReply {
    pub status: u8,
    pub qp_num: u32,
    pub qkey: u32,
    pub gid: [u8; 16],
    pub private: PrivateData,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Message {
    Request(Request),
    Reply {
        params: ConnParams,
        private: PrivateData,
    },
    ReadyToUse,
    Reject {
        reason: u16,
        private: PrivateData,
    },
    DisconnectRequest,
    DisconnectReply,
    SidrRequest(SidrRequest),
    SidrReply(SidrReply),
}

const KIND_REQUEST: u8 = 1;
const KIND_REPLY: u8 = 2;
const KIND_READY: u8 = 3;
const KIND_REJECT: u8 = 4;
const KIND_DISCONNECT_REQUEST: u8 = 5;
const KIND_DISCONNECT_REPLY: u8 = 6;
const KIND_SIDR_REQUEST: u8 = 7;
const KIND_SIDR_REPLY: u8 = 8;

impl Message {
    /// Reads one packet. Every byte must belong to the message, every number must be in
    /// its range.
    pub fn parse(bytes: &[u8]) -> Result<Self, Malformed> {
        let mut input = Input(bytes);
        if input.array::<4>()? != MAGIC || input.u8()? != VERSION {
            return Err(Malformed);
        }
        let message = match input.u8()? {
            KIND_REQUEST => Self::Request(Request {
                port_space: input.u16()?,
                qp_type: input.u8()?,
                mtu: input.u8_in(1..=5)?,
                tos: input.u8()?,
                source: input.address()?,
                destination: input.address()?,
                params: input.params()?,
                private: input.private(REQ_PRIVATE_MAX)?,
            }),
            KIND_REPLY => Self::Reply {
                params: input.params()?,
                private: input.private(REP_PRIVATE_MAX)?,
            },
            KIND_READY => Self::ReadyToUse,
            KIND_REJECT => Self::Reject {
                reason: input.u16()?,
                private: input.private(REJ_PRIVATE_MAX)?,
            },
            KIND_DISCONNECT_REQUEST => Self::DisconnectRequest,
            KIND_DISCONNECT_REPLY => Self::DisconnectReply,
            KIND_SIDR_REQUEST => Self::SidrRequest(SidrRequest {
                port_space: input.u16()?,
                source: input.address()?,
                destination: input.address()?,
                private: input.private(SIDR_REQ_PRIVATE_MAX)?,
            }),
            KIND_SIDR_REPLY => Self::SidrReply(SidrReply {
                status: input.u8()?,
                qp_num: input.u24()?,
                qkey: input.u32()?,
                gid: input.array()?,
                private: input.private(SIDR_REP_PRIVATE_MAX)?,
            }),
            _ => return Err(Malformed),
        };
        if input.0.is_empty() {
            Ok(message)
        } else {
            Err(Malformed)
        }
    }

    pub fn emit(&self) -> Vec<u8> {
        let mut out = Output(Vec::with_capacity(MESSAGE_LEN_MAX));
        out.0.extend_from_slice(&MAGIC);
        out.u8(VERSION);
        match self {
            Self::Request(request) => {
                out.u8(KIND_REQUEST);
                out.u16(request.port_space);
                out.u8(request.qp_type);
                out.u8(request.mtu);
                out.u8(request.tos);
                out.address(&request.source);
                out.address(&request.destination);
                out.params(&request.params);
                out.private(&request.private);
            }
            Self::Reply { params, private } => {
                out.u8(KIND_REPLY);
                out.params(params);
                out.private(private);
            }
            Self::ReadyToUse => out.u8(KIND_READY),
            Self::Reject { reason, private } => {
                out.u8(KIND_REJECT);
                out.u16(*reason);
                out.private(private);
            }
            Self::DisconnectRequest => out.u8(KIND_DISCONNECT_REQUEST),
            Self::DisconnectReply => out.u8(KIND_DISCONNECT_REPLY),
            Self::SidrRequest(request) => {
                out.u8(KIND_SIDR_REQUEST);
                out.u16(request.port_space);
                out.address(&request.source);
                out.address(&request.destination);
                out.private(&request.private);
            }
            Self::SidrReply(reply) => {
                out.u8(KIND_SIDR_REPLY);
                out.u8(reply.status);
                out.u32(reply.qp_num);
                out.u32(reply.qkey);
                out.0.extend_from_slice(&reply.gid);
                out.private(&reply.private);
            }
        }
        out.0
    }
}

struct Input<'a>(&'a [u8]);

impl Input<'_> {
    fn array<const N: usize>(&mut self) -> Result<[u8; N], Malformed> {
        let (head, rest) = self.0.split_first_chunk::<N>().ok_or(Malformed)?;
        self.0 = rest;
        Ok(*head)
    }

    fn u8(&mut self) -> Result<u8, Malformed> {
        Ok(self.array::<1>()?[0])
    }

    fn u8_in(&mut self, range: std::ops::RangeInclusive<u8>) -> Result<u8, Malformed> {
        let value = self.u8()?;
        range.contains(&value).then_some(value).ok_or(Malformed)
    }

    fn u16(&mut self) -> Result<u16, Malformed> {
        Ok(u16::from_be_bytes(self.array()?))
    }

    fn u32(&mut self) -> Result<u32, Malformed> {
        Ok(u32::from_be_bytes(self.array()?))
    }

    fn u24(&mut self) -> Result<u32, Malformed> {
        let value = self.u32()?;
        (value <= QPN_MAX).then_some(value).ok_or(Malformed)
    }

    fn address(&mut self) -> Result<Address, Malformed> {
        let ip = match self.u8()? {
            4 => IpAddr::from(self.array::<4>()?),
            6 => IpAddr::from(self.array::<16>()?),
            _ => return Err(Malformed),
        };
        Ok(Address {
            ip,
            port: self.u16()?,
            scope: self.u32()?,
        })
    }

    fn params(&mut self) -> Result<ConnParams, Malformed> {
        Ok(ConnParams {
            qp_num: self.u24()?,
            psn: self.u24()?,
            responder_resources: self.u8()?,
            initiator_depth: self.u8()?,
            flow_control: self.u8()?,
            retry_count: self.u8_in(0..=7)?,
            rnr_retry_count: self.u8_in(0..=7)?,
            srq: self.u8_in(0..=1)? == 1,
            gid: self.array()?,
            ece: Ece {
                vendor_id: self.u32()?,
                options: self.u32()?,
            },
        })
    }

    fn private(&mut self, max: usize) -> Result<PrivateData, Malformed> {
        let len = usize::from(self.u8()?);
        let (bytes, rest) = self.0.split_at_checked(len).ok_or(Malformed)?;
        self.0 = rest;
        PrivateData::new(bytes, max).ok_or(Malformed)
    }
}

struct Output(Vec<u8>);

impl Output {
    fn u8(&mut self, value: u8) {
        self.0.push(value);
    }

    fn u16(&mut self, value: u16) {
        self.0.extend_from_slice(&value.to_be_bytes());
    }

    fn u32(&mut self, value: u32) {
        self.0.extend_from_slice(&value.to_be_bytes());
    }

    fn address(&mut self, address: &Address) {
        match address.ip {
            IpAddr::V4(ip) => {
                self.u8(4);
                self.0.extend_from_slice(&ip.octets());
            }
            IpAddr::V6(ip) => {
                self.u8(6);
                self.0.extend_from_slice(&ip.octets());
            }
        }
        self.u16(address.port);
        self.u32(address.scope);
    }

    fn params(&mut self, params: &ConnParams) {
        self.u32(params.qp_num & QPN_MAX);
        self.u32(params.psn & QPN_MAX);
        self.u8(params.responder_resources);
        self.u8(params.initiator_depth);
        self.u8(params.flow_control);
        self.u8(params.retry_count & 7);
        self.u8(params.rnr_retry_count & 7);
        self.u8(u8::from(params.srq));
        self.0.extend_from_slice(&params.gid);
        self.u32(params.ece.vendor_id);
        self.u32(params.ece.options);
    }

    fn private(&mut self, private: &PrivateData) {
        // Every constructor bounds private data below 256 bytes.
        self.u8(private.0.len().min(255) as u8);
        self.0.extend_from_slice(&private.0);
    }
}

#[cfg(test)]
#[path = "message_tests.rs"]
mod tests;
