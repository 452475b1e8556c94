//! Reading and writing fields in their order, big-endian, without a panic.
//!
//! Both remember that they ran out of bytes and go on with zeros or into nothing, so that a
//! format reads like its table in the specification and is checked once, at the end.

use crate::error::{Error, Result};

/// Reads fields from the front of bytes.
pub(crate) struct Reader<'a> {
    rest: &'a [u8],
    short: bool,
}

impl<'a> Reader<'a> {
    pub fn new(bytes: &'a [u8]) -> Self {
        Self {
            rest: bytes,
            short: false,
        }
    }

    pub fn array<const N: usize>(&mut self) -> [u8; N] {
        match self.rest.split_first_chunk() {
            Some((field, rest)) => {
                self.rest = rest;
                *field
            }
            None => {
                self.short = true;
                self.rest = &[];
                [0; N]
            }
        }
    }

    pub fn slice(&mut self, len: usize) -> &'a [u8] {
        match self.rest.split_at_checked(len) {
            Some((field, rest)) => {
                self.rest = rest;
                field
            }
            None => {
                self.short = true;
                core::mem::take(&mut self.rest)
            }
        }
    }

    pub fn u8(&mut self) -> u8 {
        let [byte] = self.array();
        byte
    }

    pub fn u16(&mut self) -> u16 {
        u16::from_be_bytes(self.array())
    }

    pub fn u24(&mut self) -> u32 {
        let [a, b, c] = self.array();
        u32::from_be_bytes([0, a, b, c])
    }

    pub fn u32(&mut self) -> u32 {
        u32::from_be_bytes(self.array())
    }

    pub fn u64(&mut self) -> u64 {
        u64::from_be_bytes(self.array())
    }

    pub fn skip(&mut self, len: usize) {
        self.slice(len);
    }

    pub fn rest(&self) -> &'a [u8] {
        self.rest
    }

    pub fn finish(&self) -> Result<()> {
        if self.short {
            Err(Error::Truncated)
        } else {
            Ok(())
        }
    }
}

/// Writes fields to the front of a buffer.
pub(crate) struct Writer<'a> {
    buffer: &'a mut [u8],
    used: usize,
    short: bool,
}

impl<'a> Writer<'a> {
    pub fn new(buffer: &'a mut [u8]) -> Self {
        Self {
            buffer,
            used: 0,
            short: false,
        }
    }

    pub fn put(&mut self, bytes: &[u8]) {
        let end = self.used.saturating_add(bytes.len());
        match self.buffer.get_mut(self.used..end) {
            Some(place) => {
                place.copy_from_slice(bytes);
                self.used = end;
            }
            None => self.short = true,
        }
    }

    pub fn u8(&mut self, value: u8) {
        self.put(&[value]);
    }

    pub fn u16(&mut self, value: u16) {
        self.put(&value.to_be_bytes());
    }

    pub fn u24(&mut self, value: u32) {
        let [_, field @ ..] = value.to_be_bytes();
        self.put(&field);
    }

    pub fn u32(&mut self, value: u32) {
        self.put(&value.to_be_bytes());
    }

    pub fn u64(&mut self, value: u64) {
        self.put(&value.to_be_bytes());
    }

    /// Zeros, for reserved fields and padding.
    pub fn zeros(&mut self, len: usize) {
        let end = self.used.saturating_add(len);
        match self.buffer.get_mut(self.used..end) {
            Some(place) => {
                place.fill(0);
                self.used = end;
            }
            None => self.short = true,
        }
    }

    /// `bytes`, and zeros up to `len`.
    pub fn padded(&mut self, bytes: &[u8], len: usize) {
        match len.checked_sub(bytes.len()) {
            Some(zeros) => {
                self.put(bytes);
                self.zeros(zeros);
            }
            None => self.short = true,
        }
    }

    /// Bytes written.
    pub fn finish(&self) -> Result<usize> {
        if self.short {
            Err(Error::NoRoom)
        } else {
            Ok(self.used)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_follow_each_other() {
        let mut buffer = [0xaa; 16];
        let mut writer = Writer::new(&mut buffer);
        writer.u8(1);
        writer.u16(0x0203);
        writer.u24(0x04_0506);
        writer.u32(0x0708_090a);
        writer.zeros(2);
        writer.padded(&[0x0b], 2);
        assert_eq!(writer.finish(), Ok(14));
        let mut reader = Reader::new(&buffer);
        assert_eq!((reader.u8(), reader.u16()), (1, 0x0203));
        assert_eq!((reader.u24(), reader.u32()), (0x04_0506, 0x0708_090a));
        reader.skip(2);
        assert_eq!(reader.slice(2), [0x0b, 0]);
        assert_eq!(reader.rest(), [0xaa, 0xaa]);
        assert_eq!(reader.finish(), Ok(()));
    }

    #[test]
    fn an_end_that_comes_too_early_is_remembered() {
        let mut reader = Reader::new(&[1, 2, 3]);
        assert_eq!(reader.u32(), 0);
        assert_eq!(reader.u8(), 0);
        assert_eq!(reader.finish(), Err(Error::Truncated));
        let mut buffer = [0; 3];
        let mut writer = Writer::new(&mut buffer);
        writer.u32(1);
        writer.u8(7);
        assert_eq!(writer.finish(), Err(Error::NoRoom));
    }
}
