//! Selective reports: a packet of our own, by which a Sluice responder tells a Sluice requester
//! which packets it holds that came before their turn, so that only the others are sent again
//! (decision 0013).
//!
//! ```text
//! BTH   opcode 0xd5: 110 is left to manufacturers (IBTA 9.2.1), so that queue pairs of all services
//!       drop it; packet sequence number: the packet that the responder waits for, the base
//!  0    version, 1
//!  1    0
//!  2-3  extent: of the packets from the base on, so many have left the requester as far as the
//!       responder knows, at most
//!  4-   bit n (of byte n / 8, from the lowest): packet base + n is held; multiples of 4 bytes
//! ```
//!
//! It is sent only to a peer that has said that it is Sluice ([`crate::bth::Bth::sluice`]).

use crate::bth::Bth;
use crate::error::{Error, Result};
use crate::number::{Psn, Qpn};
use crate::opcode::{Opcode, REPORT_BYTES_MAX, REPORT_HEAD_BYTES as HEAD};
use crate::packet::{Headers, Packet};

/// Packets from the base on that a report can speak of one by one.
pub const SPAN: usize = 1024;

/// Bytes of the longest report.
pub const BYTES_MAX: usize = HEAD + SPAN / 8;

// What the opcode allows has room for it.
const _: () = assert!(BYTES_MAX == REPORT_BYTES_MAX);

const VERSION: u8 = 1;

/// Bytes of a report in which the last bit that is set is number `bits` - 1.
pub const fn bytes(bits: usize) -> usize {
    let bits = if bits > SPAN { SPAN } else { bits };
    HEAD + bits.div_ceil(32) * 4
}

/// The headers of a report about the packets from `base` on.
pub const fn headers(destination: Qpn, pkey: u16, base: Psn) -> Headers {
    Headers::new(Bth {
        pkey,
        sluice: true,
        ..Bth::new(Opcode::SELECTIVE, destination, base)
    })
}

/// Writes the payload: `into` has the length that [`bytes`] gives. Numbers from [`SPAN`] on are
/// left out.
pub fn emit(extent: u16, held: impl Iterator<Item = usize>, into: &mut [u8]) -> Result<()> {
    let (head, bits) = into.split_at_mut_checked(HEAD).ok_or(Error::NoRoom)?;
    let [high, low] = extent.to_be_bytes();
    head.copy_from_slice(&[VERSION, 0, high, low]);
    bits.fill(0);
    for number in held.filter(|number| *number < SPAN) {
        if let Some(byte) = bits.get_mut(number / 8) {
            *byte |= 1 << (number % 8);
        }
    }
    Ok(())
}

/// A report that came in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Report<'a> {
    /// The packet that the responder waits for.
    pub base: Psn,
    /// Packets from the base on that are the report's matter.
    pub extent: u16,
    bits: &'a [u8],
}

impl<'a> Report<'a> {
    /// [`Error::Opcode`] when the packet is something else, [`Error::Version`] when the report is
    /// of a later Sluice.
    pub fn parse(packet: &Packet<'a>) -> Result<Self> {
        if packet.bth().opcode != Opcode::SELECTIVE {
            return Err(Error::Opcode(packet.bth().opcode.byte()));
        }
        let (head, bits) = packet
            .payload()
            .split_first_chunk::<HEAD>()
            .ok_or(Error::Payload)?;
        let [version, _, high, low] = *head;
        if version != VERSION {
            return Err(Error::Version);
        }
        Ok(Self {
            base: packet.bth().psn,
            extent: u16::from_be_bytes([high, low]),
            bits,
        })
    }

    /// Whether the packet that is `distance` after the base is held.
    pub fn holds(&self, distance: u64) -> bool {
        usize::try_from(distance / 8)
            .ok()
            .and_then(|place| self.bits.get(place))
            .is_some_and(|byte| byte >> (distance % 8) & 1 != 0)
    }

    /// One more than the distance of the last packet that is held; 0 if there is none.
    pub fn held_until(&self) -> u64 {
        let last = self.bits.iter().rposition(|byte| *byte != 0);
        last.and_then(|place| Some((place, self.bits.get(place)?)))
            .map_or(0, |(place, byte)| {
                place as u64 * 8 + u64::from(byte.ilog2()) + 1
            })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeSet;
    use std::vec;

    proptest! {
        /// Catches: bits at the wrong place, a length that cuts the last one off.
        #[test]
        fn what_is_reported_is_understood(
            held in prop::collection::btree_set(1..SPAN, 0..40),
            extent: u16,
        ) {
            let until = held.last().map_or(0, |last| last + 1);
            let mut payload = vec![0xff; bytes(until)];
            emit(extent, held.iter().copied(), &mut payload).unwrap();
            let mut buffer = [0; 256];
            let headers = headers(Qpn::new(7), 0xffff, Psn::new(99));
            let used = headers.emit(&payload, &mut buffer).unwrap();
            let packet = Packet::parse(&buffer[..used]).unwrap();
            let report = Report::parse(&packet).unwrap();
            prop_assert_eq!((report.base, report.extent), (Psn::new(99), extent));
            prop_assert_eq!(report.held_until(), until as u64);
            let found: BTreeSet<usize> = (0..2 * SPAN)
                .filter(|number| report.holds(*number as u64))
                .collect();
            prop_assert_eq!(found, held);
        }
    }

    #[test]
    fn later_versions_and_other_lengths_are_refused() {
        let mut buffer = [0; 256];
        let headers = headers(Qpn::new(7), 0xffff, Psn::new(1));
        for length in [0, 3, 5, BYTES_MAX + 4] {
            let sent = headers.emit(&[1; 200][..length], &mut buffer);
            assert_eq!(sent, Err(Error::Payload), "{length}");
        }
        let used = headers.emit(&[2, 0, 0, 9], &mut buffer).unwrap();
        let packet = Packet::parse(&buffer[..used]).unwrap();
        assert_eq!(Report::parse(&packet), Err(Error::Version));
    }
}
