//! Cutting messages into packets (IBTA 9.7.2, 9.8.2.1).

use sluice_wire::bth::Bth;
use sluice_wire::extended::{AtomicEth, Deth, Ieth, Reth, XrcEth};
use sluice_wire::opcode::{Operation as Op, Position, Service};
use sluice_wire::{Headers, Mtu, Opcode, Psn, Qpn};

use crate::request::{Datagram, Operation, Remote, Request};
use crate::transmit::{Payload, Transmit};

/// What the packets of one direction have in common.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Path {
    pub service: Service,
    pub destination: Qpn,
    pub pkey: u16,
    pub mtu: Mtu,
    /// As [`crate::rc::Config::single_writes`].
    pub single_writes: bool,
}

impl Path {
    /// A base transport header of an operation that every service in use here has.
    pub fn bth(&self, operation: Op, psn: Psn) -> Option<Bth> {
        let opcode = Opcode::new(self.service, operation)?;
        Some(Bth {
            pkey: self.pkey,
            ..Bth::new(opcode, self.destination, psn)
        })
    }

    /// Whether the service has that operation, and the request all that it needs for it.
    pub const fn has(&self, request: &Request) -> bool {
        let operation = opcode(&request.operation, Position::Only);
        let named = !matches!(self.service, Service::Xrc) || request.srq.is_some();
        Opcode::new(self.service, operation).is_some() && named
    }

    /// Packet number `place` of a request. None if the service does not have the operation, or
    /// if the request lacks what the service needs.
    pub fn packet(&self, request: &Request, place: u32, psn: Psn) -> Option<Transmit> {
        let mtu = self.mtu.bytes() as u32;
        // Both are at most 2³¹.
        let offset = place.saturating_mul(mtu);
        let rest = request.length.saturating_sub(offset);
        let single = self.single_writes && matches!(request.operation, Operation::Write(_));
        let position = match (place, rest <= mtu) {
            _ if single => Position::Only,
            (0, true) => Position::Only,
            (0, false) => Position::First,
            (_, true) => Position::Last,
            (_, false) => Position::Middle,
        };
        let mut headers = Headers::new(self.bth(opcode(&request.operation, position), psn)?);
        let following = headers.bth.opcode.following();
        let ends = matches!(position, Position::Only | Position::Last);
        headers.bth.solicited = request.solicited && ends && request.operation.takes_receive();
        if following.xrceth {
            headers.xrceth = Some(XrcEth { srq: request.srq? });
        }
        let mut payload = Payload::Request {
            seq: request.seq,
            offset,
            length: rest.min(mtu),
        };
        match request.operation {
            Operation::Send => {}
            Operation::SendImmediate(data) => {
                headers.immediate = following.immediate.then_some(data);
            }
            Operation::SendInvalidate(rkey) => {
                headers.ieth = following.ieth.then_some(Ieth { rkey });
            }
            Operation::Write(remote) if single => {
                headers.reth = Some(reth(remote, offset, rest.min(mtu)));
            }
            Operation::Write(remote) => {
                headers.reth = following.reth.then(|| reth(remote, 0, request.length));
            }
            Operation::WriteImmediate(remote, data) => {
                headers.reth = following.reth.then(|| reth(remote, 0, request.length));
                headers.immediate = following.immediate.then_some(data);
            }
            Operation::Read(remote) => {
                // What is still missing, when it is asked for again (IBTA 9.7.5.1.9).
                headers.reth = Some(reth(remote, offset, rest));
                payload = Payload::None;
            }
            Operation::CompareSwap {
                remote,
                compare,
                swap,
            } => {
                headers.atomic_eth = Some(atomic_eth(remote, swap, compare));
                payload = Payload::None;
            }
            Operation::FetchAdd { remote, add } => {
                headers.atomic_eth = Some(atomic_eth(remote, add, 0));
                payload = Payload::None;
            }
        }
        Some(Transmit::data(headers, payload))
    }

    /// The one packet of a datagram. None for an operation that UD does not have.
    pub fn datagram(
        &self,
        request: &Request,
        to: Datagram,
        source: Qpn,
        psn: Psn,
    ) -> Option<Transmit> {
        let mut packet = self.packet(request, 0, psn)?;
        packet.headers.bth.destination = to.destination;
        packet.headers.deth = Some(Deth {
            qkey: to.qkey,
            source,
        });
        Some(packet)
    }
}

fn reth(remote: Remote, offset: u32, length: u32) -> Reth {
    Reth {
        // A range that wraps is the peer's to refuse.
        address: remote.address.wrapping_add(u64::from(offset)),
        rkey: remote.rkey,
        length,
    }
}

fn atomic_eth(remote: Remote, swap_add: u64, compare: u64) -> AtomicEth {
    AtomicEth {
        address: remote.address,
        rkey: remote.rkey,
        swap_add,
        compare,
    }
}

const fn opcode(operation: &Operation, position: Position) -> Op {
    use Position::{First, Last, Middle};
    match (operation, position) {
        (Operation::Read(_), _) => Op::ReadRequest,
        (Operation::CompareSwap { .. }, _) => Op::CompareSwap,
        (Operation::FetchAdd { .. }, _) => Op::FetchAdd,
        (Operation::Write(_) | Operation::WriteImmediate(..), First) => Op::WriteFirst,
        (Operation::Write(_) | Operation::WriteImmediate(..), Middle) => Op::WriteMiddle,
        (Operation::Write(_), Last) => Op::WriteLast,
        (Operation::Write(_), _) => Op::WriteOnly,
        (Operation::WriteImmediate(..), Last) => Op::WriteLastWithImmediate,
        (Operation::WriteImmediate(..), _) => Op::WriteOnlyWithImmediate,
        (_, First) => Op::SendFirst,
        (_, Middle) => Op::SendMiddle,
        (Operation::Send, Last) => Op::SendLast,
        (Operation::Send, _) => Op::SendOnly,
        (Operation::SendImmediate(_), Last) => Op::SendLastWithImmediate,
        (Operation::SendImmediate(_), _) => Op::SendOnlyWithImmediate,
        (Operation::SendInvalidate(_), Last) => Op::SendLastWithInvalidate,
        (Operation::SendInvalidate(_), _) => Op::SendOnlyWithInvalidate,
    }
}

/// What a request packet is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Send,
    Write,
    Read,
    Atomic,
}

/// None for what is no request.
pub(crate) const fn kind(operation: Op) -> Option<Kind> {
    Some(match operation {
        Op::SendFirst
        | Op::SendMiddle
        | Op::SendLast
        | Op::SendLastWithImmediate
        | Op::SendLastWithInvalidate
        | Op::SendOnly
        | Op::SendOnlyWithImmediate
        | Op::SendOnlyWithInvalidate => Kind::Send,
        Op::WriteFirst
        | Op::WriteMiddle
        | Op::WriteLast
        | Op::WriteLastWithImmediate
        | Op::WriteOnly
        | Op::WriteOnlyWithImmediate => Kind::Write,
        Op::ReadRequest => Kind::Read,
        Op::CompareSwap | Op::FetchAdd => Kind::Atomic,
        Op::ReadResponseFirst
        | Op::ReadResponseMiddle
        | Op::ReadResponseLast
        | Op::ReadResponseOnly
        | Op::Acknowledge
        | Op::AtomicAcknowledge
        | Op::CongestionNotification
        | Op::SelectiveReport => return None,
    })
}

/// Whether a request packet may come at this place: `inside` a message of that kind, of which
/// more packets are to come, or between messages (IBTA 9.7.4.1.2, table 35; UC: 9.8.2.2.2).
pub(crate) const fn may_follow(inside: Option<Kind>, opcode: Opcode) -> bool {
    let Some(kind) = kind(opcode.operation()) else {
        return false;
    };
    let goes_on = matches!(opcode.position(), Position::Middle | Position::Last);
    match inside {
        None => !goes_on,
        Some(Kind::Send) => goes_on && matches!(kind, Kind::Send),
        Some(Kind::Write) => goes_on && matches!(kind, Kind::Write),
        Some(Kind::Read | Kind::Atomic) => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec::Vec;
    use sluice_wire::extended::ImmDt;

    const REMOTE: Remote = Remote {
        address: 0x1000,
        rkey: 7,
    };

    fn path(service: Service) -> Path {
        Path {
            service,
            destination: Qpn::new(9),
            pkey: 0xffff,
            mtu: Mtu::Bytes256,
            single_writes: false,
        }
    }

    fn opcodes(operation: Operation, length: u32) -> Vec<u8> {
        let request = Request {
            seq: 1,
            operation,
            length,
            solicited: true,
            srq: None,
        };
        let path = path(Service::Rc);
        let count = match operation {
            Operation::Read(_) => 1,
            _ => request.packets(path.mtu),
        };
        let mut offset = 0;
        let packets: Vec<Transmit> = (0..count)
            .map(|place| path.packet(&request, place, Psn::new(place)).unwrap())
            .collect();
        for (place, packet) in packets.iter().enumerate() {
            let last = place + 1 == packets.len();
            assert_eq!(
                packet.headers.bth.solicited,
                last && operation.takes_receive()
            );
            let opcode = packet.headers.bth.opcode;
            assert!(opcode.allows(packet.payload.length() as usize, path.mtu));
            // The bytes can be emitted, so the headers are those of the opcode.
            let bytes = [0; 256];
            let payload = &bytes[..packet.payload.length() as usize];
            assert!(packet.headers.emit(payload, &mut [0; 400]).is_ok());
            if let Payload::Request {
                offset: at,
                length: len,
                ..
            } = packet.payload
            {
                assert_eq!(at, offset);
                offset += len;
            }
        }
        packets
            .iter()
            .map(|packet| packet.headers.bth.opcode.byte())
            .collect()
    }

    /// IBTA table 35 and 38, by hand. Catches: any opcode of [`opcode`] changed for another.
    #[test]
    fn messages_have_the_opcodes_of_the_table() {
        let immediate = ImmDt([1, 2, 3, 4]);
        let swap = Operation::CompareSwap {
            remote: REMOTE,
            compare: 1,
            swap: 2,
        };
        let add = Operation::FetchAdd {
            remote: REMOTE,
            add: 1,
        };
        let table: [(Operation, u32, &[u8]); 18] = [
            (Operation::Send, 0, &[0x04]),
            (Operation::Send, 256, &[0x04]),
            (Operation::Send, 257, &[0x00, 0x02]),
            (Operation::Send, 768, &[0x00, 0x01, 0x02]),
            (Operation::SendImmediate(immediate), 5, &[0x05]),
            (Operation::SendImmediate(immediate), 300, &[0x00, 0x03]),
            (Operation::SendInvalidate(3), 256, &[0x17]),
            (Operation::SendInvalidate(3), 513, &[0x00, 0x01, 0x16]),
            (Operation::Write(REMOTE), 0, &[0x0a]),
            (Operation::Write(REMOTE), 512, &[0x06, 0x08]),
            (Operation::Write(REMOTE), 1000, &[0x06, 0x07, 0x07, 0x08]),
            (Operation::WriteImmediate(REMOTE, immediate), 9, &[0x0b]),
            (
                Operation::WriteImmediate(REMOTE, immediate),
                900,
                &[6, 7, 7, 9],
            ),
            (Operation::Read(REMOTE), 0, &[0x0c]),
            (Operation::Read(REMOTE), 1 << 20, &[0x0c]),
            (swap, 8, &[0x13]),
            (add, 8, &[0x14]),
            (Operation::Send, 1024, &[0x00, 0x01, 0x01, 0x02]),
        ];
        for (operation, length, wanted) in table {
            assert_eq!(opcodes(operation, length), wanted, "{operation:?} {length}");
        }
    }

    /// All packets of one length and one form; the last may be shorter. A SEND, and what the
    /// receiver is told of, stay whole.
    #[test]
    fn single_writes_name_their_own_place() {
        let path = Path {
            single_writes: true,
            ..path(Service::Rc)
        };
        let request = |operation| Request {
            seq: 1,
            operation,
            length: 1000,
            solicited: false,
            srq: None,
        };
        let write = request(Operation::Write(REMOTE));
        let packets: Vec<Transmit> = (0..4)
            .map(|place| path.packet(&write, place, Psn::new(place)).unwrap())
            .collect();
        for (place, packet) in (0..).zip(&packets) {
            let length = if place == 3 { 1000 - 768 } else { 256 };
            assert_eq!(packet.headers.bth.opcode.byte(), 0x0a);
            assert_eq!(packet.headers.reth, Some(reth(REMOTE, place * 256, length)));
            let offset = place * 256;
            let payload = Payload::Request {
                seq: 1,
                offset,
                length,
            };
            assert_eq!(packet.payload, payload);
        }
        let told = Operation::WriteImmediate(REMOTE, ImmDt([0; 4]));
        for operation in [Operation::Send, told] {
            let first = path.packet(&request(operation), 0, Psn::new(0)).unwrap();
            assert!(matches!(first.headers.bth.opcode.byte(), 0x00 | 0x06));
        }
    }

    #[test]
    fn a_read_that_is_repeated_asks_for_the_rest() {
        let request = Request {
            seq: 1,
            operation: Operation::Read(REMOTE),
            length: 1000,
            solicited: false,
            srq: None,
        };
        let packet = path(Service::Rc).packet(&request, 3, Psn::new(8)).unwrap();
        let reth = packet.headers.reth.unwrap();
        assert_eq!(
            (reth.address, reth.length, reth.rkey),
            (0x1000 + 768, 232, 7)
        );
    }

    #[test]
    fn unreliable_services_have_fewer_operations() {
        let request = |operation| Request {
            seq: 0,
            operation,
            length: 8,
            solicited: false,
            srq: None,
        };
        let has = |service, operation| {
            path(service)
                .packet(&request(operation), 0, Psn::new(0))
                .is_some()
        };
        assert!(has(Service::Uc, Operation::Write(REMOTE)));
        assert!(!has(Service::Uc, Operation::Read(REMOTE)));
        assert!(!has(Service::Uc, Operation::SendInvalidate(1)));
        assert!(has(Service::Ud, Operation::Send));
        assert!(!has(Service::Ud, Operation::Write(REMOTE)));
    }

    /// IBTA table 35 by hand: rows are what came before, columns all requests by their code.
    /// Catches: a wrong answer for any pair.
    #[test]
    fn opcodes_follow_each_other_as_the_table_says() {
        let starts = [0x00, 0x04, 0x05, 0x06, 0x0a, 0x0b, 0x0c, 0x13, 0x14, 0x17];
        let rows: [(Option<Kind>, &[u8]); 3] = [
            (None, &starts),
            (Some(Kind::Send), &[0x01, 0x02, 0x03, 0x16]),
            (Some(Kind::Write), &[0x07, 0x08, 0x09]),
        ];
        for (inside, legal) in rows {
            for byte in 0..0x18 {
                let Ok(opcode) = Opcode::from_byte(byte) else {
                    continue;
                };
                let wanted = legal.contains(&byte);
                assert_eq!(may_follow(inside, opcode), wanted, "{inside:?} {byte:#x}");
            }
        }
    }
}
