//! Messages that refuse, or ask for patience.

use super::{Data, write};
use crate::bytes::Reader;
use crate::error::{Error, Result};

/// Which message an MRA is about (IBTA 12.6.6).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
#[allow(missing_docs)]
pub enum MraOf {
    Req = 0,
    Rep = 1,
    Lap = 2,
}

/// MRA: the message came, the answer takes longer (IBTA 12.6.6, table 107).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mra<'a> {
    /// The sender's name for the connection.
    pub local_comm_id: u32,
    /// The receiver's.
    pub remote_comm_id: u32,
    /// Which message came.
    pub of: MraOf,
    /// How much longer: 4.096 µs times two to this power, 5 bits.
    pub service_timeout: u8,
    /// [`Mra::PRIVATE_BYTES`] at most.
    pub private_data: &'a [u8],
}

impl<'a> Mra<'a> {
    /// Room for private data.
    pub const PRIVATE_BYTES: usize = 222;

    pub(super) fn parse(data: &'a Data) -> Result<Self> {
        let mut reader = Reader::new(data);
        let (local_comm_id, remote_comm_id) = (reader.u32(), reader.u32());
        let of = match reader.u8() >> 6 {
            0 => MraOf::Req,
            1 => MraOf::Rep,
            2 => MraOf::Lap,
            _ => return Err(Error::Reserved("message MRAed")),
        };
        let service_timeout = reader.u8() >> 3;
        let private_data = reader.slice(Self::PRIVATE_BYTES);
        reader.finish()?;
        Ok(Self {
            local_comm_id,
            remote_comm_id,
            of,
            service_timeout,
            private_data,
        })
    }

    pub(super) fn emit(&self) -> Result<Data> {
        write(|writer| {
            writer.u32(self.local_comm_id);
            writer.u32(self.remote_comm_id);
            writer.u8((self.of as u8) << 6);
            writer.u8(self.service_timeout << 3);
            writer.padded(self.private_data, Self::PRIVATE_BYTES);
        })
    }
}

/// Which message is refused (IBTA 12.6.7).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum RejOf {
    /// A REQ.
    Req = 0,
    /// A REP.
    Rep = 1,
    /// No message, or another.
    Other = 2,
}

macro_rules! reasons {
    ($($(#[$meta:meta])* $name:ident = $code:literal),+ $(,)?) => {
        /// Why (IBTA 12.6.7.2, table 109).
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        #[allow(missing_docs)] // The names are the table's.
        pub enum RejectReason {
            $($(#[$meta])* $name,)+
            /// A code that is none of these.
            Other(u16),
        }

        impl RejectReason {
            /// By code.
            pub const fn from_code(code: u16) -> Self {
                match code {
                    $($code => Self::$name,)+
                    other => Self::Other(other),
                }
            }

            /// Its code.
            pub const fn code(self) -> u16 {
                match self {
                    $(Self::$name => $code,)+
                    Self::Other(code) => code,
                }
            }
        }
    };
}

reasons! {
    NoQp = 1,
    NoEec = 2,
    NoResources = 3,
    Timeout = 4,
    UnsupportedRequest = 5,
    InvalidCommId = 6,
    InvalidCommInstance = 7,
    InvalidServiceId = 8,
    InvalidTransport = 9,
    StaleConnection = 10,
    RdcDoesNotExist = 11,
    PrimaryGid = 12,
    PrimaryLid = 13,
    PrimarySl = 14,
    PrimaryTrafficClass = 15,
    PrimaryHopLimit = 16,
    PrimaryPacketRate = 17,
    AlternateGid = 18,
    AlternateLid = 19,
    AlternateSl = 20,
    AlternateTrafficClass = 21,
    AlternateHopLimit = 22,
    AlternatePacketRate = 23,
    PortAndCmRedirection = 24,
    PortRedirection = 25,
    PathMtu = 26,
    ResponderResources = 27,
    /// The program says no.
    Consumer = 28,
    RnrRetryCount = 29,
    DuplicateCommId = 30,
    ClassVersion = 31,
    PrimaryFlowLabel = 32,
    AlternateFlowLabel = 33,
}

/// REJ: refuses (IBTA 12.6.7, table 108).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rej<'a> {
    /// The sender's name for the connection.
    pub local_comm_id: u32,
    /// The receiver's.
    pub remote_comm_id: u32,
    /// What is refused.
    pub of: RejOf,
    /// Why.
    pub reason: RejectReason,
    /// More about the reason, [`Rej::INFO_BYTES`] at most (IBTA 12.6.7.2).
    pub info: &'a [u8],
    /// [`Rej::PRIVATE_BYTES`] at most.
    pub private_data: &'a [u8],
}

impl<'a> Rej<'a> {
    /// Room for more about the reason.
    pub const INFO_BYTES: usize = 72;
    /// Room for private data.
    pub const PRIVATE_BYTES: usize = 148;

    pub(super) fn parse(data: &'a Data) -> Result<Self> {
        let mut reader = Reader::new(data);
        let (local_comm_id, remote_comm_id) = (reader.u32(), reader.u32());
        let of = match reader.u8() >> 6 {
            0 => RejOf::Req,
            1 => RejOf::Rep,
            2 => RejOf::Other,
            _ => return Err(Error::Reserved("message rejected")),
        };
        let info_bytes = usize::from(reader.u8() >> 1);
        let reason = RejectReason::from_code(reader.u16());
        let info = reader.slice(Self::INFO_BYTES);
        let private_data = reader.slice(Self::PRIVATE_BYTES);
        reader.finish()?;
        Ok(Self {
            local_comm_id,
            remote_comm_id,
            of,
            reason,
            info: info.get(..info_bytes).ok_or(Error::Length)?,
            private_data,
        })
    }

    pub(super) fn emit(&self) -> Result<Data> {
        write(|writer| {
            writer.u32(self.local_comm_id);
            writer.u32(self.remote_comm_id);
            writer.u8((self.of as u8) << 6);
            // More than its room fails below.
            writer.u8((self.info.len() as u8) << 1);
            writer.u16(self.reason.code());
            writer.padded(self.info, Self::INFO_BYTES);
            writer.padded(self.private_data, Self::PRIVATE_BYTES);
        })
    }
}
