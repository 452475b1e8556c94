//! Service ID resolution: finding the queue pair of a datagram service (IBTA 12.11).

use super::{Data, write};
use crate::bytes::Reader;
use crate::error::{Error, Result};
use crate::number::Qpn;

/// SIDR_REQ: asks who serves (IBTA 12.11.1, table 119).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SidrReq<'a> {
    /// Joins request and answer.
    pub request_id: u32,
    /// The partition.
    pub pkey: u16,
    /// What is asked for ([`super::service_id`]).
    pub service_id: u64,
    /// [`SidrReq::PRIVATE_BYTES`] at most.
    pub private_data: &'a [u8],
}

impl<'a> SidrReq<'a> {
    /// Room for private data.
    pub const PRIVATE_BYTES: usize = 216;

    pub(super) fn parse(data: &'a Data) -> Result<Self> {
        let mut reader = Reader::new(data);
        let request_id = reader.u32();
        let pkey = reader.u16();
        reader.skip(2);
        let service_id = reader.u64();
        let private_data = reader.slice(Self::PRIVATE_BYTES);
        reader.finish()?;
        Ok(Self {
            request_id,
            pkey,
            service_id,
            private_data,
        })
    }

    pub(super) fn emit(&self) -> Result<Data> {
        write(|writer| {
            writer.u32(self.request_id);
            writer.u16(self.pkey);
            writer.zeros(2);
            writer.u64(self.service_id);
            writer.padded(self.private_data, Self::PRIVATE_BYTES);
        })
    }
}

/// What became of the question (IBTA 12.11.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum SidrStatus {
    /// The answer has queue pair and key.
    Valid = 0,
    /// Nobody serves it.
    NotSupported = 1,
    /// The server says no.
    Rejected = 2,
    /// No queue pair is free.
    NoQp = 3,
    /// Ask somebody else.
    Redirect = 4,
    /// The version is not spoken.
    UnsupportedVersion = 5,
}

/// SIDR_REP: says who serves (IBTA 12.11.2, table 120).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SidrRep<'a> {
    /// The question's.
    pub request_id: u32,
    /// What became of it.
    pub status: SidrStatus,
    /// Whom to send to.
    pub qpn: Qpn,
    /// The question's.
    pub service_id: u64,
    /// The key of that queue pair.
    pub qkey: u32,
    /// More about a refusal, [`SidrRep::INFO_BYTES`] at most.
    pub info: &'a [u8],
    /// [`SidrRep::PRIVATE_BYTES`] at most.
    pub private_data: &'a [u8],
}

impl<'a> SidrRep<'a> {
    /// Room for more about a refusal.
    pub const INFO_BYTES: usize = 72;
    /// Room for private data.
    pub const PRIVATE_BYTES: usize = 136;

    pub(super) fn parse(data: &'a Data) -> Result<Self> {
        let mut reader = Reader::new(data);
        let request_id = reader.u32();
        let status = match reader.u8() {
            0 => SidrStatus::Valid,
            1 => SidrStatus::NotSupported,
            2 => SidrStatus::Rejected,
            3 => SidrStatus::NoQp,
            4 => SidrStatus::Redirect,
            5 => SidrStatus::UnsupportedVersion,
            _ => return Err(Error::Reserved("SIDR status")),
        };
        let info_bytes = usize::from(reader.u8());
        reader.skip(2);
        let qpn = Qpn::new(reader.u24());
        reader.skip(1);
        let (service_id, qkey) = (reader.u64(), reader.u32());
        let info = reader.slice(Self::INFO_BYTES);
        let private_data = reader.slice(Self::PRIVATE_BYTES);
        reader.finish()?;
        Ok(Self {
            request_id,
            status,
            qpn,
            service_id,
            qkey,
            info: info.get(..info_bytes).ok_or(Error::Length)?,
            private_data,
        })
    }

    pub(super) fn emit(&self) -> Result<Data> {
        write(|writer| {
            writer.u32(self.request_id);
            writer.u8(self.status as u8);
            // More than its room fails below.
            writer.u8(self.info.len() as u8);
            writer.zeros(2);
            writer.u24(self.qpn.get());
            writer.zeros(1);
            writer.u64(self.service_id);
            writer.u32(self.qkey);
            writer.padded(self.info, Self::INFO_BYTES);
            writer.padded(self.private_data, Self::PRIVATE_BYTES);
        })
    }
}
