//! Connection management messages (IBTA 12.6) and the header by which rdma_cm puts IP addresses
//! and ports into them (annex A11).
//!
//! [`Message::parse`] reads one from a management datagram, [`Message::emit`] makes one. Private
//! data has a fixed room in each message; shorter data is padded with zeros, and a receiver gets
//! the whole room.

mod connect;
mod ip;
mod refuse;
mod sidr;

pub use connect::{Drep, Dreq, Path, Rep, Req, Rtu, Transport};
pub use ip::{IpService, PortSpace, service_id, split_service_id};
pub use refuse::{Mra, MraOf, Rej, RejOf, RejectReason};
pub use sidr::{SidrRep, SidrReq, SidrStatus};

use crate::error::{Error, Result};
use crate::mad::{self, Class, DATA_BYTES, Header, Mad};

/// The version of the class (IBTA 16.7).
pub const CLASS_VERSION: u8 = 2;
/// The only method: Send (IBTA 16.7).
const METHOD_SEND: u8 = 0x03;

/// What follows a management datagram's header.
type Data = [u8; DATA_BYTES];

/// A message of connection management, by its attribute (IBTA 16.7).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Message<'a> {
    /// 0x0010 ConnectRequest.
    Req(Req<'a>),
    /// 0x0011 MsgRcptAck.
    Mra(Mra<'a>),
    /// 0x0012 ConnectReject.
    Rej(Rej<'a>),
    /// 0x0013 ConnectReply.
    Rep(Rep<'a>),
    /// 0x0014 ReadyToUse.
    Rtu(Rtu<'a>),
    /// 0x0015 DisconnectRequest.
    Dreq(Dreq<'a>),
    /// 0x0016 DisconnectReply.
    Drep(Drep<'a>),
    /// 0x0017 ServiceIDResReq.
    SidrReq(SidrReq<'a>),
    /// 0x0018 ServiceIDResReqResp.
    SidrRep(SidrRep<'a>),
}

impl<'a> Message<'a> {
    /// Reads a message and its transaction number.
    ///
    /// [`Error::Version`] for another version of the class, [`Error::Reserved`] for another class
    /// or method, for messages that change paths (LAP, APR), which RoCEv2 has no use for, and for
    /// fields with reserved values.
    pub fn parse(mad: &Mad<'a>) -> Result<(Self, u64)> {
        let header = mad.header();
        if header.class != Class::Cm {
            return Err(Error::Reserved("management class"));
        }
        if header.class_version != CLASS_VERSION {
            return Err(Error::Version);
        }
        if header.method != METHOD_SEND {
            return Err(Error::Reserved("method"));
        }
        let data = mad.data();
        let message = match header.attribute {
            0x10 => Self::Req(Req::parse(data)?),
            0x11 => Self::Mra(Mra::parse(data)?),
            0x12 => Self::Rej(Rej::parse(data)?),
            0x13 => Self::Rep(Rep::parse(data)?),
            0x14 => Self::Rtu(Rtu::parse(data)?),
            0x15 => Self::Dreq(Dreq::parse(data)?),
            0x16 => Self::Drep(Drep::parse(data)?),
            0x17 => Self::SidrReq(SidrReq::parse(data)?),
            0x18 => Self::SidrRep(SidrRep::parse(data)?),
            _ => return Err(Error::Reserved("attribute")),
        };
        Ok((message, header.transaction))
    }

    /// Its attribute.
    pub const fn attribute(&self) -> u16 {
        match self {
            Self::Req(_) => 0x10,
            Self::Mra(_) => 0x11,
            Self::Rej(_) => 0x12,
            Self::Rep(_) => 0x13,
            Self::Rtu(_) => 0x14,
            Self::Dreq(_) => 0x15,
            Self::Drep(_) => 0x16,
            Self::SidrReq(_) => 0x17,
            Self::SidrRep(_) => 0x18,
        }
    }

    /// The management datagram. [`Error::NoRoom`] for private data that is longer than its room.
    pub fn emit(&self, transaction: u64) -> Result<[u8; mad::BYTES]> {
        let data = match self {
            Self::Req(message) => message.emit()?,
            Self::Mra(message) => message.emit()?,
            Self::Rej(message) => message.emit()?,
            Self::Rep(message) => message.emit()?,
            Self::Rtu(message) => message.emit()?,
            Self::Dreq(message) => message.emit()?,
            Self::Drep(message) => message.emit()?,
            Self::SidrReq(message) => message.emit()?,
            Self::SidrRep(message) => message.emit()?,
        };
        let header = Header {
            class: Class::Cm,
            class_version: CLASS_VERSION,
            method: METHOD_SEND,
            status: 0,
            class_specific: 0,
            transaction,
            attribute: self.attribute(),
            modifier: 0,
        };
        Ok(mad::emit(&header, &data))
    }
}

/// Fills a message's data.
fn write(fill: impl FnOnce(&mut crate::bytes::Writer<'_>)) -> Result<Data> {
    let mut data = [0; DATA_BYTES];
    let mut writer = crate::bytes::Writer::new(&mut data);
    fill(&mut writer);
    match writer.finish() {
        Ok(DATA_BYTES) => Ok(data),
        Ok(_) => Err(Error::Length),
        Err(error) => Err(error),
    }
}
