//! Messages and attributes, as bytes. Nothing here panics, whatever the bytes.

use std::net::IpAddr;

use crate::errno::Errno;

/// Bytes of `struct nlmsghdr`.
pub const HEADER: usize = 16;

/// One message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Message<'a> {
    /// `NLMSG_…`, or what a protocol has: `RTM_…`.
    pub kind: u16,
    /// `NLM_F_…`.
    pub flags: u16,
    /// Of the request that this answers.
    pub sequence: u32,
    /// What is behind the header.
    pub body: &'a [u8],
}

/// Takes the next message of a datagram. What is damaged ends the reading: it stays in `bytes`.
pub fn next_message<'a>(bytes: &mut &'a [u8]) -> Option<Message<'a>> {
    let length = usize::try_from(u32_at(bytes, 0)?).ok()?;
    let message = Message {
        kind: u16_at(bytes, 4)?,
        flags: u16_at(bytes, 6)?,
        sequence: u32_at(bytes, 8)?,
        body: bytes.get(HEADER..length)?,
    };
    *bytes = behind(bytes, length);
    Some(message)
}

/// The messages of a datagram, up to the first that is damaged.
pub fn messages(mut bytes: &[u8]) -> impl Iterator<Item = Message<'_>> {
    std::iter::from_fn(move || next_message(&mut bytes))
}

/// The attributes (`struct rtattr`) behind a header of `header` bytes: number and data.
pub fn attributes(body: &[u8], header: usize) -> impl Iterator<Item = (u16, &[u8])> {
    let mut bytes = body.get(header..).unwrap_or_default();
    std::iter::from_fn(move || {
        let length = usize::from(u16_at(bytes, 0)?);
        // Two bits say how the data are to be read (NLA_F_NESTED, NLA_F_NET_BYTEORDER).
        let kind = u16_at(bytes, 2)? & 0x3fff;
        let data = bytes.get(4..length)?;
        bytes = behind(bytes, length);
        Some((kind, data))
    })
}

/// What follows something of `length` bytes, which are padded to four.
fn behind(bytes: &[u8], length: usize) -> &[u8] {
    let next = length.checked_next_multiple_of(4).unwrap_or(usize::MAX);
    bytes.get(next..).unwrap_or_default()
}

/// What an `NLMSG_ERROR` says: it begins with an errno below zero, or with 0, which acknowledges.
/// `EPROTO` where there is no such number.
pub fn failure(body: &[u8]) -> Errno {
    let number = u32_at(body, 0).and_then(|number| number.cast_signed().checked_neg());
    Errno(number.unwrap_or(libc::EPROTO))
}

/// An integer in the processor's order.
pub fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    let chunk = bytes.get(at..)?.first_chunk()?;
    Some(u32::from_ne_bytes(*chunk))
}

/// An integer in the processor's order.
pub fn u16_at(bytes: &[u8], at: usize) -> Option<u16> {
    let chunk = bytes.get(at..)?.first_chunk()?;
    Some(u16::from_ne_bytes(*chunk))
}

/// Bytes of a [`Request`] at most: what is asked here has a few addresses and numbers.
const REQUEST_BYTES_MAX: usize = 512;

/// A message that is being made. It takes no memory from an allocator: hooks do not enter that of
/// their program.
pub struct Request {
    bytes: [u8; REQUEST_BYTES_MAX],
    length: usize,
}

impl Request {
    /// `header` is the fixed part behind the netlink header.
    pub fn new(kind: u16, flags: i32, sequence: u32, header: &[u8]) -> Self {
        let mut request = Self {
            bytes: [0; REQUEST_BYTES_MAX],
            length: 4,
        };
        request.push(&kind.to_ne_bytes());
        request.push(&(flags as u16).to_ne_bytes());
        request.push(&sequence.to_ne_bytes());
        request.push(&[0; 4]);
        request.push(header);
        request.pad();
        request
    }

    /// Adds an attribute; `data` is short.
    pub fn attribute(&mut self, kind: u16, data: &[u8]) {
        self.push(&(data.len() as u16 + 4).to_ne_bytes());
        self.push(&kind.to_ne_bytes());
        self.push(data);
        self.pad();
    }

    /// Adds an attribute with an address.
    pub fn address(&mut self, kind: u16, address: IpAddr) {
        match address {
            IpAddr::V4(address) => self.attribute(kind, &address.octets()),
            IpAddr::V6(address) => self.attribute(kind, &address.octets()),
        }
    }

    fn push(&mut self, data: &[u8]) {
        let room = self.bytes.get_mut(self.length..self.length + data.len());
        debug_assert!(room.is_some(), "requests are short");
        if let Some(room) = room {
            room.copy_from_slice(data);
            self.length += data.len();
        }
    }

    fn pad(&mut self) {
        self.length = self.length.next_multiple_of(4);
        if let Some(place) = self.bytes.first_chunk_mut() {
            *place = (self.length as u32).to_ne_bytes();
        }
    }

    /// The whole message.
    pub fn bytes(&self) -> &[u8] {
        self.bytes.get(..self.length).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn failures_are_numbers_below_zero() {
        assert_eq!(failure(&[]), Errno(libc::EPROTO));
        assert_eq!(failure(&i32::MIN.to_ne_bytes()), Errno(libc::EPROTO));
        assert_eq!(failure(&(-libc::EPERM).to_ne_bytes()), Errno(libc::EPERM));
        assert_eq!(failure(&[0; 4]), Errno(0));
    }
}
