//! Little-endian fields, written and read in order.

use super::{DecodeError, HEADER_BYTES, MAGIC, MESSAGE_BYTES_MAX, VERSION};

/// Writes the fields of one message. Every kind's fields fit by construction, which the test
/// over all kinds checks; a field that did not would be left out and fail the peer's length
/// check.
pub(super) struct Writer<'a> {
    buffer: &'a mut [u8; MESSAGE_BYTES_MAX],
    at: usize,
}

impl<'a> Writer<'a> {
    pub fn new(buffer: &'a mut [u8; MESSAGE_BYTES_MAX], kind: u16) -> Writer<'a> {
        let mut writer = Writer { buffer, at: 0 };
        writer.u16(MAGIC);
        writer.u16(VERSION);
        writer.u16(kind);
        writer.u16(0);
        writer
    }

    /// Fills the length in and returns the finished message.
    pub fn finish(self) -> &'a [u8] {
        let Writer { buffer, at } = self;
        // `at` never exceeds MESSAGE_BYTES_MAX, which fits 16 bits.
        buffer[6..HEADER_BYTES].copy_from_slice(&(at as u16).to_le_bytes());
        &buffer[..at]
    }

    pub fn bytes(&mut self, bytes: &[u8]) {
        if let Some(room) = self.buffer.get_mut(self.at..self.at + bytes.len()) {
            room.copy_from_slice(bytes);
            self.at += bytes.len();
        }
    }

    pub fn u8(&mut self, value: u8) {
        self.bytes(&[value]);
    }

    pub fn u16(&mut self, value: u16) {
        self.bytes(&value.to_le_bytes());
    }

    pub fn u32(&mut self, value: u32) {
        self.bytes(&value.to_le_bytes());
    }

    pub fn u64(&mut self, value: u64) {
        self.bytes(&value.to_le_bytes());
    }
}

/// Reads the fields of one message; every read past the end is [`DecodeError::Length`].
pub(super) struct Reader<'a> {
    rest: &'a [u8],
}

impl<'a> Reader<'a> {
    /// Checks the header; returns the kind and a reader of the body.
    pub fn new(message: &'a [u8]) -> Result<(u16, Reader<'a>), DecodeError> {
        let mut reader = Reader { rest: message };
        if reader.u16()? != MAGIC {
            return Err(DecodeError::Magic);
        }
        let version = reader.u16()?;
        if version != VERSION {
            return Err(DecodeError::Version(version));
        }
        let kind = reader.u16()?;
        if usize::from(reader.u16()?) != message.len() {
            return Err(DecodeError::Length);
        }
        Ok((kind, reader))
    }

    /// The body must be used up.
    pub fn finish(self) -> Result<(), DecodeError> {
        if self.rest.is_empty() {
            Ok(())
        } else {
            Err(DecodeError::Length)
        }
    }

    pub fn array<const N: usize>(&mut self) -> Result<[u8; N], DecodeError> {
        let (array, rest) = self.rest.split_first_chunk().ok_or(DecodeError::Length)?;
        self.rest = rest;
        Ok(*array)
    }

    pub fn u8(&mut self) -> Result<u8, DecodeError> {
        self.array().map(u8::from_le_bytes)
    }

    pub fn u16(&mut self) -> Result<u16, DecodeError> {
        self.array().map(u16::from_le_bytes)
    }

    pub fn u32(&mut self) -> Result<u32, DecodeError> {
        self.array().map(u32::from_le_bytes)
    }

    pub fn u64(&mut self) -> Result<u64, DecodeError> {
        self.array().map(u64::from_le_bytes)
    }
}
