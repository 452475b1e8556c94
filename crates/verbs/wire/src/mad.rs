//! Management datagrams (IBTA 13.4): 256 bytes, sent as UD messages to queue pair 1.

use crate::bytes::{Reader, Writer};
use crate::error::{Error, Result};

/// Bytes of a datagram.
pub const BYTES: usize = 256;

/// Bytes behind the common header.
pub const DATA_BYTES: usize = BYTES - Header::BYTES;

/// The Q_Key of queue pair 1 (IBTA 10.2.5).
pub const QKEY: u32 = 0x8001_0000;

/// A management class (IBTA 13.4).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Class {
    /// Connection management, 0x07 (IBTA 16.7).
    Cm,
    /// Anything else.
    Other(u8),
}

/// The common header (IBTA 13.4.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// What it is about.
    pub class: Class,
    /// The class's version.
    pub class_version: u8,
    /// What the class is asked to do, with the response bit at the top.
    pub method: u8,
    /// Zero, or what went wrong (IBTA 13.4.7).
    pub status: u16,
    /// For the class.
    pub class_specific: u16,
    /// Joins requests and answers (IBTA 13.4.6.4).
    pub transaction: u64,
    /// What the data is.
    pub attribute: u16,
    /// More about it.
    pub modifier: u32,
}

impl Header {
    /// Bytes of the header.
    pub const BYTES: usize = 24;
    /// The only version of the format.
    const BASE_VERSION: u8 = 1;

    fn read(reader: &mut Reader<'_>) -> Result<Self> {
        let version = reader.u8();
        let class = match reader.u8() {
            0x07 => Class::Cm,
            other => Class::Other(other),
        };
        let header = Self {
            class,
            class_version: reader.u8(),
            method: reader.u8(),
            status: reader.u16(),
            class_specific: reader.u16(),
            transaction: reader.u64(),
            attribute: reader.u16(),
            modifier: {
                reader.skip(2);
                reader.u32()
            },
        };
        reader.finish()?;
        if version != Self::BASE_VERSION {
            return Err(Error::Version);
        }
        Ok(header)
    }
}

/// A datagram that came in, checked: it has its 256 bytes and a version that is known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mad<'a> {
    header: Header,
    data: &'a [u8; DATA_BYTES],
}

impl<'a> Mad<'a> {
    /// Looks at the payload of a UD message.
    pub fn parse(bytes: &'a [u8]) -> Result<Self> {
        let mut reader = Reader::new(bytes);
        let header = Header::read(&mut reader)?;
        let (data, rest) = reader.rest().split_first_chunk().ok_or(Error::Truncated)?;
        if !rest.is_empty() {
            return Err(Error::Length);
        }
        Ok(Self { header, data })
    }

    /// The common header.
    pub const fn header(&self) -> &Header {
        &self.header
    }

    /// What the class defines.
    pub const fn data(&self) -> &'a [u8; DATA_BYTES] {
        self.data
    }
}

/// The bytes of a datagram.
pub fn emit(header: &Header, data: &[u8; DATA_BYTES]) -> [u8; BYTES] {
    let mut bytes = [0; BYTES];
    let mut writer = Writer::new(&mut bytes);
    writer.u8(Header::BASE_VERSION);
    writer.u8(match header.class {
        Class::Cm => 0x07,
        Class::Other(class) => class,
    });
    writer.u8(header.class_version);
    writer.u8(header.method);
    writer.u16(header.status);
    writer.u16(header.class_specific);
    writer.u64(header.transaction);
    writer.u16(header.attribute);
    writer.zeros(2);
    writer.u32(header.modifier);
    writer.put(data);
    debug_assert_eq!(writer.finish(), Ok(BYTES));
    bytes
}
