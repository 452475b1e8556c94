//! One transport packet: base transport header, the headers of its opcode, payload and pad (IBTA
//! 9.2). The ICRC behind it needs the IP header and is [`crate::icrc`]'s.

use core::ops::Range;

use crate::bth::Bth;
use crate::bytes::{Reader, Writer};
use crate::error::{Error, Result};
use crate::extended::{Aeth, AtomicAckEth, AtomicEth, Deth, Ieth, ImmDt, Reth, XrcEth};
use crate::opcode::{Following, Position};

/// The headers of a packet. Exactly those that the opcode has are there
/// ([`crate::Opcode::following`]).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)] // Their types say what they are.
pub struct Headers {
    pub bth: Bth,
    pub deth: Option<Deth>,
    pub xrceth: Option<XrcEth>,
    pub reth: Option<Reth>,
    pub atomic_eth: Option<AtomicEth>,
    pub aeth: Option<Aeth>,
    pub atomic_ack_eth: Option<AtomicAckEth>,
    pub immediate: Option<ImmDt>,
    pub ieth: Option<Ieth>,
}

impl Headers {
    /// The longest headers that an opcode has, bytes: atomics of XRC.
    pub const BYTES_MAX: usize = Bth::BYTES + XrcEth::BYTES + AtomicEth::BYTES;

    /// A base transport header and nothing else.
    pub const fn new(bth: Bth) -> Self {
        Self {
            bth,
            deth: None,
            xrceth: None,
            reth: None,
            atomic_eth: None,
            aeth: None,
            atomic_ack_eth: None,
            immediate: None,
            ieth: None,
        }
    }

    const fn following(&self) -> Following {
        Following {
            deth: self.deth.is_some(),
            xrceth: self.xrceth.is_some(),
            reth: self.reth.is_some(),
            atomic_eth: self.atomic_eth.is_some(),
            aeth: self.aeth.is_some(),
            atomic_ack_eth: self.atomic_ack_eth.is_some(),
            immediate: self.immediate.is_some(),
            ieth: self.ieth.is_some(),
        }
    }

    /// Bytes of these headers.
    pub const fn bytes(&self) -> usize {
        Bth::BYTES + self.following().bytes()
    }

    /// The headers at the front of a packet, and what is behind them.
    pub fn parse(packet: &[u8]) -> Result<(Self, &[u8])> {
        let mut reader = Reader::new(packet);
        let bth = reader.array();
        reader.finish()?;
        let bth = Bth::parse(&bth)?;
        let wanted = bth.opcode.following();
        let mut headers = Self::new(bth);
        if wanted.deth {
            headers.deth = Some(Deth::parse(&reader.array()));
        }
        if wanted.xrceth {
            headers.xrceth = Some(XrcEth::parse(&reader.array()));
        }
        if wanted.reth {
            headers.reth = Some(Reth::parse(&reader.array())?);
        }
        if wanted.atomic_eth {
            headers.atomic_eth = Some(AtomicEth::parse(&reader.array()));
        }
        if wanted.aeth {
            headers.aeth = Some(Aeth::parse(&reader.array())?);
        }
        if wanted.atomic_ack_eth {
            headers.atomic_ack_eth = Some(AtomicAckEth::parse(&reader.array()));
        }
        if wanted.immediate {
            headers.immediate = Some(ImmDt(reader.array()));
        }
        if wanted.ieth {
            headers.ieth = Some(Ieth::parse(&reader.array()));
        }
        reader.finish()?;
        Ok((headers, reader.rest()))
    }

    /// Writes the headers, `payload` and its pad to the front of `buffer`; the pad count of the
    /// base transport header is set from the payload. Bytes written.
    ///
    /// [`Error::Headers`] when these are not the opcode's, [`Error::Payload`] for a payload where
    /// the opcode has none, or none where it must have one; whether it fits the path MTU is for
    /// [`crate::Opcode::allows`] to say.
    pub fn emit(&self, payload: &[u8], buffer: &mut [u8]) -> Result<usize> {
        let place = self.emit_around(payload.len(), buffer)?;
        let end = place.end.next_multiple_of(4);
        buffer
            .get_mut(place)
            .ok_or(Error::NoRoom)?
            .copy_from_slice(payload);
        Ok(end)
    }

    /// As [`Headers::emit`], for a payload that is still to be gathered: writes what is around it
    /// and says where it goes. The packet ends at the next multiple of 4.
    pub fn emit_around(&self, payload: usize, buffer: &mut [u8]) -> Result<Range<usize>> {
        let opcode = self.bth.opcode;
        let following = self.following();
        if following != opcode.following() {
            return Err(Error::Headers);
        }
        check_payload(opcode.position(), payload)?;
        let pad = payload.wrapping_neg() & 3;
        let front = Bth::BYTES + following.bytes();
        let end = front.checked_add(payload).ok_or(Error::NoRoom)?;
        let (buffer, behind) = buffer.split_at_mut_checked(end).ok_or(Error::NoRoom)?;
        behind.get_mut(..pad).ok_or(Error::NoRoom)?.fill(0);
        let mut writer = Writer::new(buffer);
        let bth = Bth {
            pad: pad as u8,
            ..self.bth
        };
        writer.put(&bth.emit());
        if let Some(header) = &self.deth {
            writer.put(&header.emit());
        }
        if let Some(header) = &self.xrceth {
            writer.put(&header.emit());
        }
        if let Some(header) = &self.reth {
            writer.put(&header.emit());
        }
        if let Some(header) = &self.atomic_eth {
            writer.put(&header.emit());
        }
        if let Some(header) = &self.aeth {
            writer.put(&header.emit());
        }
        if let Some(header) = &self.atomic_ack_eth {
            writer.put(&header.emit());
        }
        if let Some(header) = &self.immediate {
            writer.put(&header.0);
        }
        if let Some(header) = &self.ieth {
            writer.put(&header.emit());
        }
        writer.finish()?;
        Ok(front..end)
    }
}

fn check_payload(position: Position, len: usize) -> Result<()> {
    if position.allows(len) {
        Ok(())
    } else {
        Err(Error::Payload)
    }
}

/// A packet that came in, checked: its headers are whole and legal, and so is its pad. Whether
/// the payload fits the path MTU is not checked, since the packet does not say what that is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Packet<'a> {
    headers: Headers,
    payload: &'a [u8],
}

impl<'a> Packet<'a> {
    /// Looks at bytes from the base transport header to the pad, without the ICRC.
    pub fn parse(bytes: &'a [u8]) -> Result<Self> {
        let (headers, rest) = Headers::parse(bytes)?;
        // The pad makes payload and pad a multiple of 4 (IBTA 9.2).
        if !rest.len().is_multiple_of(4) {
            return Err(Error::Length);
        }
        let len = rest.len().checked_sub(usize::from(headers.bth.pad));
        let payload = len.and_then(|len| rest.get(..len)).ok_or(Error::Length)?;
        check_payload(headers.bth.opcode.position(), payload.len())?;
        Ok(Self { headers, payload })
    }

    /// Its headers.
    pub const fn headers(&self) -> &Headers {
        &self.headers
    }

    /// Its base transport header.
    pub const fn bth(&self) -> &Bth {
        &self.headers.bth
    }

    /// The bytes of the message, without the pad.
    pub const fn payload(&self) -> &'a [u8] {
        self.payload
    }

    /// A packet that came before, of which headers and payload were kept. [`Error::Headers`] and
    /// [`Error::Payload`] when these do not go together.
    pub fn again(headers: Headers, payload: &'a [u8]) -> Result<Self> {
        let opcode = headers.bth.opcode;
        if headers.following() != opcode.following() {
            return Err(Error::Headers);
        }
        check_payload(opcode.position(), payload.len())?;
        Ok(Self { headers, payload })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::number::{Psn, Qpn};
    use crate::opcode::Opcode;

    fn send(payload: &[u8], buffer: &mut [u8]) -> Result<usize> {
        let opcode = Opcode::from_byte(0x04).unwrap();
        Headers::new(Bth::new(opcode, Qpn::new(7), Psn::new(1))).emit(payload, buffer)
    }

    #[test]
    fn payloads_are_padded() {
        for len in 0..9 {
            let mut buffer = [0xff; 32];
            let used = send(&[5; 8][..len.min(8)], &mut buffer).unwrap();
            let packet = Packet::parse(&buffer[..used]).unwrap();
            assert_eq!(packet.payload(), &[5; 8][..len.min(8)]);
            assert!(used.is_multiple_of(4));
        }
    }

    #[test]
    fn a_pad_longer_than_the_payload_is_refused() {
        let mut buffer = [0; 32];
        let used = send(&[], &mut buffer).unwrap();
        buffer[1] |= 3 << 4;
        assert_eq!(Packet::parse(&buffer[..used]), Err(Error::Length));
        assert_eq!(Packet::parse(&buffer[..used + 1]), Err(Error::Length));
        assert_eq!(Packet::parse(&buffer[..11]), Err(Error::Truncated));
    }

    #[test]
    fn headers_must_be_the_opcodes() {
        let opcode = Opcode::from_byte(0x0c).unwrap();
        let mut headers = Headers::new(Bth::new(opcode, Qpn::new(7), Psn::new(1)));
        let mut buffer = [0; 64];
        assert_eq!(headers.emit(&[], &mut buffer), Err(Error::Headers));
        headers.reth = Some(Reth {
            address: 0,
            rkey: 0,
            length: 0,
        });
        assert_eq!(headers.emit(&[], &mut buffer), Ok(28));
        assert_eq!(headers.emit(&[0], &mut buffer), Err(Error::Payload));
        assert_eq!(headers.emit(&[], &mut buffer[..27]), Err(Error::NoRoom));
    }
}
