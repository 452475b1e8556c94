//! What each opcode of the base transport header means: who sends it, which headers follow, and
//! how much payload it carries (IBTA 9.2, 9.3; XRC: annex A14; CNP: annex
//! A17.9.3; one of our own: [`crate::selective`]). Reliable datagrams (RD) are not part of RoCEv2 and their opcodes are refused.

use crate::error::{Error, Result};
use crate::number::Mtu;

/// The transport service: bits 7 to 5 of an opcode.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Service {
    /// Reliable connection.
    Rc = 0,
    /// Unreliable connection.
    Uc = 1,
    /// Unreliable datagram.
    Ud = 3,
    /// Congestion notification, which is no service but has a code here.
    Cnp = 4,
    /// Extended reliable connection.
    Xrc = 5,
    /// Left to manufacturers, for packets of their own.
    Manufacturer = 6,
}

/// The operation: bits 4 to 0 of an opcode.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
#[allow(missing_docs)] // The names are the specification's.
pub enum Operation {
    SendFirst = 0x00,
    SendMiddle = 0x01,
    SendLast = 0x02,
    SendLastWithImmediate = 0x03,
    SendOnly = 0x04,
    SendOnlyWithImmediate = 0x05,
    WriteFirst = 0x06,
    WriteMiddle = 0x07,
    WriteLast = 0x08,
    WriteLastWithImmediate = 0x09,
    WriteOnly = 0x0a,
    WriteOnlyWithImmediate = 0x0b,
    ReadRequest = 0x0c,
    ReadResponseFirst = 0x0d,
    ReadResponseMiddle = 0x0e,
    ReadResponseLast = 0x0f,
    ReadResponseOnly = 0x10,
    Acknowledge = 0x11,
    AtomicAcknowledge = 0x12,
    CompareSwap = 0x13,
    FetchAdd = 0x14,
    SendLastWithInvalidate = 0x16,
    SendOnlyWithInvalidate = 0x17,
    /// Of [`Service::Cnp`] only.
    CongestionNotification = 0x1f,
    /// Of [`Service::Manufacturer`] only, and ours: which packets came before their turn.
    SelectiveReport = 0x15,
}

/// Of [`Operation::CongestionNotification`] on the wire, where it shares a code.
const CNP: u8 = 0x81;
/// Of [`Operation::SelectiveReport`] on the wire.
const SELECTIVE: u8 = (Service::Manufacturer as u8) << 5 | Operation::SelectiveReport as u8;

use Operation as Op;

const OPERATIONS: [Op; 23] = [
    Op::SendFirst,
    Op::SendMiddle,
    Op::SendLast,
    Op::SendLastWithImmediate,
    Op::SendOnly,
    Op::SendOnlyWithImmediate,
    Op::WriteFirst,
    Op::WriteMiddle,
    Op::WriteLast,
    Op::WriteLastWithImmediate,
    Op::WriteOnly,
    Op::WriteOnlyWithImmediate,
    Op::ReadRequest,
    Op::ReadResponseFirst,
    Op::ReadResponseMiddle,
    Op::ReadResponseLast,
    Op::ReadResponseOnly,
    Op::Acknowledge,
    Op::AtomicAcknowledge,
    Op::CompareSwap,
    Op::FetchAdd,
    Op::SendLastWithInvalidate,
    Op::SendOnlyWithInvalidate,
];

/// Where in its message a packet is (IBTA 9.2). It decides how long the payload is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Position {
    /// The first of several: its payload fills the path MTU.
    First,
    /// Between first and last: its payload fills the path MTU.
    Middle,
    /// The last of several: from one byte to the path MTU.
    Last,
    /// The only one: from nothing to the path MTU.
    Only,
    /// No part of a message with data: no payload.
    Bare,
    /// A congestion notification: 16 reserved bytes.
    Notification,
    /// A selective report, [`crate::selective`]: its head, and words of 32 bits behind it.
    Report,
}

/// Bytes of a selective report's payload: of its head, and of the longest.
pub(crate) const REPORT_HEAD_BYTES: usize = 4;
pub(crate) const REPORT_BYTES_MAX: usize = 132;

impl Position {
    /// Whether a payload of `len` bytes is allowed on some path, whatever its MTU.
    pub(crate) const fn allows(self, len: usize) -> bool {
        match self {
            Self::First | Self::Middle | Self::Last => len > 0,
            Self::Only => true,
            Self::Bare => len == 0,
            Self::Notification => len == 16,
            Self::Report => {
                len >= REPORT_HEAD_BYTES && len <= REPORT_BYTES_MAX && len.is_multiple_of(4)
            }
        }
    }
}

/// The headers behind the BTH, in their order on the wire.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Following {
    /// Datagram extended transport header, 8 bytes.
    pub deth: bool,
    /// XRC extended transport header, 4 bytes.
    pub xrceth: bool,
    /// RDMA extended transport header, 16 bytes.
    pub reth: bool,
    /// Atomic extended transport header, 28 bytes.
    pub atomic_eth: bool,
    /// ACK extended transport header, 4 bytes.
    pub aeth: bool,
    /// Atomic ACK extended transport header, 8 bytes.
    pub atomic_ack_eth: bool,
    /// Immediate data, 4 bytes.
    pub immediate: bool,
    /// Invalidate extended transport header, 4 bytes.
    pub ieth: bool,
}

impl Following {
    /// Bytes of these headers.
    pub const fn bytes(&self) -> usize {
        self.deth as usize * 8
            + self.xrceth as usize * 4
            + self.reth as usize * 16
            + self.atomic_eth as usize * 28
            + self.aeth as usize * 4
            + self.atomic_ack_eth as usize * 8
            + self.immediate as usize * 4
            + self.ieth as usize * 4
    }
}

/// An opcode that exists.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Opcode {
    service: Service,
    operation: Operation,
}

impl Opcode {
    /// The congestion notification.
    pub const CNP: Self = Self {
        service: Service::Cnp,
        operation: Op::CongestionNotification,
    };

    /// The selective report.
    pub const SELECTIVE: Self = Self {
        service: Service::Manufacturer,
        operation: Op::SelectiveReport,
    };

    /// None where the service does not have the operation.
    pub const fn new(service: Service, operation: Operation) -> Option<Self> {
        let code = operation as u8;
        let exists = match service {
            Service::Rc | Service::Xrc => {
                !matches!(operation, Op::CongestionNotification | Op::SelectiveReport)
            }
            Service::Uc => code <= Op::WriteOnlyWithImmediate as u8,
            Service::Ud => matches!(operation, Op::SendOnly | Op::SendOnlyWithImmediate),
            Service::Cnp => matches!(operation, Op::CongestionNotification),
            Service::Manufacturer => matches!(operation, Op::SelectiveReport),
        };
        if exists {
            Some(Self { service, operation })
        } else {
            None
        }
    }

    /// From the first byte of a BTH.
    pub fn from_byte(byte: u8) -> Result<Self> {
        match byte {
            CNP => return Ok(Self::CNP),
            SELECTIVE => return Ok(Self::SELECTIVE),
            _ => {}
        }
        let service = match byte >> 5 {
            0 => Service::Rc,
            1 => Service::Uc,
            3 => Service::Ud,
            5 => Service::Xrc,
            _ => return Err(Error::Opcode(byte)),
        };
        // The codes count up without a gap except at 0x15, which only RD has.
        let place = match byte & 0x1f {
            code @ 0..=0x14 => code,
            code @ 0x16..=0x17 => code - 1,
            _ => return Err(Error::Opcode(byte)),
        };
        OPERATIONS
            .get(usize::from(place))
            .and_then(|operation| Self::new(service, *operation))
            .ok_or(Error::Opcode(byte))
    }

    /// The first byte of a BTH.
    pub const fn byte(self) -> u8 {
        match self.service {
            Service::Cnp => CNP,
            service => (service as u8) << 5 | self.operation as u8,
        }
    }

    /// All opcodes that exist, each once.
    pub fn all() -> impl Iterator<Item = Self> {
        (0..=u8::MAX).filter_map(|byte| Self::from_byte(byte).ok())
    }

    /// Its service.
    pub const fn service(self) -> Service {
        self.service
    }

    /// Its operation.
    pub const fn operation(self) -> Operation {
        self.operation
    }

    /// Sent by the responder of a reliable service.
    pub const fn is_response(self) -> bool {
        matches!(
            self.operation,
            Op::ReadResponseFirst
                | Op::ReadResponseMiddle
                | Op::ReadResponseLast
                | Op::ReadResponseOnly
                | Op::Acknowledge
                | Op::AtomicAcknowledge
        )
    }

    /// Where in its message the packet is.
    pub const fn position(self) -> Position {
        match self.operation {
            Op::SendFirst | Op::WriteFirst | Op::ReadResponseFirst => Position::First,
            Op::SendMiddle | Op::WriteMiddle | Op::ReadResponseMiddle => Position::Middle,
            Op::SendLast
            | Op::SendLastWithImmediate
            | Op::SendLastWithInvalidate
            | Op::WriteLast
            | Op::WriteLastWithImmediate
            | Op::ReadResponseLast => Position::Last,
            Op::SendOnly
            | Op::SendOnlyWithImmediate
            | Op::SendOnlyWithInvalidate
            | Op::WriteOnly
            | Op::WriteOnlyWithImmediate
            | Op::ReadResponseOnly => Position::Only,
            Op::ReadRequest
            | Op::Acknowledge
            | Op::AtomicAcknowledge
            | Op::CompareSwap
            | Op::FetchAdd => Position::Bare,
            Op::CongestionNotification => Position::Notification,
            Op::SelectiveReport => Position::Report,
        }
    }

    /// The headers behind the BTH (IBTA 9.3).
    pub const fn following(self) -> Following {
        let operation = self.operation;
        Following {
            deth: matches!(self.service, Service::Ud),
            // Requests only: annex A14.
            xrceth: matches!(self.service, Service::Xrc) && !self.is_response(),
            reth: matches!(
                operation,
                Op::WriteFirst | Op::WriteOnly | Op::WriteOnlyWithImmediate | Op::ReadRequest
            ),
            atomic_eth: matches!(operation, Op::CompareSwap | Op::FetchAdd),
            aeth: self.is_response() && !matches!(operation, Op::ReadResponseMiddle),
            atomic_ack_eth: matches!(operation, Op::AtomicAcknowledge),
            immediate: matches!(
                operation,
                Op::SendLastWithImmediate
                    | Op::SendOnlyWithImmediate
                    | Op::WriteLastWithImmediate
                    | Op::WriteOnlyWithImmediate
            ),
            ieth: matches!(
                operation,
                Op::SendLastWithInvalidate | Op::SendOnlyWithInvalidate
            ),
        }
    }

    /// Whether a payload of `len` bytes is allowed on a path with this MTU (IBTA 9.7.4.1
    /// and 9.8).
    pub const fn allows(self, len: usize, mtu: Mtu) -> bool {
        match self.position() {
            Position::First | Position::Middle => len == mtu.bytes(),
            Position::Last => len >= 1 && len <= mtu.bytes(),
            Position::Only => len <= mtu.bytes(),
            position => position.allows(len),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::string::String;

    #[test]
    fn every_byte_is_an_opcode_or_not() {
        let mut count = 0;
        for byte in 0..=u8::MAX {
            match Opcode::from_byte(byte) {
                Ok(opcode) => {
                    assert_eq!(opcode.byte(), byte);
                    assert_eq!(
                        Opcode::new(opcode.service(), opcode.operation()),
                        Some(opcode)
                    );
                    count += 1;
                }
                Err(error) => assert_eq!(error, Error::Opcode(byte)),
            }
        }
        // RC and XRC 23 each, UC 12, UD 2, CNP, ours.
        assert_eq!(count, 23 + 23 + 12 + 2 + 1 + 1);
        assert_eq!(Opcode::all().count(), count);
    }

    /// The table of IBTA 9.3, by hand: D deth, X xrceth, R reth, C atomic, A aeth, V atomic ack, I
    /// immediate, K ieth.
    #[test]
    fn headers_are_those_of_the_table() {
        const TABLE: &[(u8, &str)] = &[
            (0x00, ""),
            (0x01, ""),
            (0x02, ""),
            (0x03, "I"),
            (0x04, ""),
            (0x05, "I"),
            (0x06, "R"),
            (0x07, ""),
            (0x08, ""),
            (0x09, "I"),
            (0x0a, "R"),
            (0x0b, "RI"),
            (0x0c, "R"),
            (0x0d, "A"),
            (0x0e, ""),
            (0x0f, "A"),
            (0x10, "A"),
            (0x11, "A"),
            (0x12, "AV"),
            (0x13, "C"),
            (0x14, "C"),
            (0x16, "K"),
            (0x17, "K"),
            (0x2b, "RI"),
            (0x64, "D"),
            (0x65, "DI"),
            (0x81, ""),
            (0xa1, "X"),
            (0xab, "XRI"),
            (0xae, ""),
            (0xb2, "AV"),
            (0xb3, "XC"),
            (0xb6, "XK"),
            (0xd5, ""),
        ];
        for (byte, wanted) in TABLE {
            let headers = Opcode::from_byte(*byte).unwrap().following();
            let letters = [
                (headers.deth, 'D'),
                (headers.xrceth, 'X'),
                (headers.reth, 'R'),
                (headers.atomic_eth, 'C'),
                (headers.aeth, 'A'),
                (headers.atomic_ack_eth, 'V'),
                (headers.immediate, 'I'),
                (headers.ieth, 'K'),
            ];
            let found: String = letters
                .iter()
                .filter(|(is, _)| *is)
                .map(|(_, c)| c)
                .collect();
            assert_eq!(found, *wanted, "{byte:#04x}");
        }
    }

    #[test]
    fn payloads_have_limits() {
        let mtu = Mtu::Bytes256;
        let allowed = |byte, len| Opcode::from_byte(byte).unwrap().allows(len, mtu);
        assert!(allowed(0x00, 256) && !allowed(0x00, 255) && !allowed(0x00, 257));
        assert!(allowed(0x02, 1) && allowed(0x02, 256) && !allowed(0x02, 0));
        assert!(allowed(0x04, 0) && allowed(0x04, 256) && !allowed(0x04, 257));
        assert!(allowed(0x0c, 0) && !allowed(0x0c, 4));
        assert!(allowed(0x81, 16) && !allowed(0x81, 0));
    }
}
