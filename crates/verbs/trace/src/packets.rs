//! Packets of a message: segmentation, headers, sequence numbers (IBTA 9.7, 9.8).

use sluice_wire::bth::Bth;
use sluice_wire::capture::Direction;
use sluice_wire::extended::{
    Aeth, AtomicAckEth, AtomicEth, Deth, Ieth, ImmDt, Reth, Syndrome, XrcEth,
};
use sluice_wire::opcode::{Opcode, Operation as Op, Service};
use sluice_wire::{Headers, Psn, Qpn, Result};

use crate::flow::Flow;

/// How a SEND or WRITE ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ending {
    /// With its data.
    Plain,
    /// With immediate data.
    Immediate([u8; 4]),
    /// A SEND that takes a key away.
    Invalidate(u32),
}

/// What a message is. Lengths and offsets are bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A SEND; over UD a datagram.
    Send {
        /// How it ends.
        ending: Ending,
        /// The receiver is to be told at once.
        solicited: bool,
        /// XRC: the receiver's shared receive queue.
        srq: u32,
        /// UD: the receiver's key.
        qkey: u32,
    },
    /// A WRITE.
    Write {
        /// Where the message goes.
        address: u64,
        /// The key of that memory.
        rkey: u32,
        /// How it ends.
        ending: Ending,
        /// The receiver is to be told at once.
        solicited: bool,
        /// XRC: the receiver's shared receive queue.
        srq: u32,
    },
    /// A request to read; it has no data.
    ReadRequest {
        /// Where from.
        address: u64,
        /// The key of that memory.
        rkey: u32,
        /// How much.
        length: u32,
        /// XRC: the receiver's shared receive queue.
        srq: u32,
    },
    /// What was read.
    ReadResponse {
        /// Messages that the responder has completed.
        msn: u32,
    },
    /// An atomic operation.
    Atomic {
        /// Compare and swap, not fetch and add.
        compares: bool,
        /// Of 8 bytes.
        address: u64,
        /// The key of that memory.
        rkey: u32,
        /// What to put in or to add.
        swap_add: u64,
        /// What to compare with.
        compare: u64,
        /// XRC: the receiver's shared receive queue.
        srq: u32,
    },
    /// Its result.
    AtomicResponse {
        /// The value from before.
        original: u64,
        /// Messages that the responder has completed.
        msn: u32,
    },
    /// An acknowledgement or a refusal.
    Acknowledge {
        /// Which.
        syndrome: Syndrome,
        /// Messages that the responder has completed.
        msn: u32,
    },
}

/// Part of a message, for the packets that it makes.
pub(crate) struct Part<'a> {
    pub flow: &'a Flow,
    pub direction: Direction,
    /// Of the message's first packet.
    pub psn: Psn,
    pub kind: &'a Kind,
    /// Bytes of the whole message.
    pub total: u32,
    /// A multiple of the MTU.
    pub offset: u32,
    pub payload: &'a [u8],
}

impl Part<'_> {
    /// Makes the frames of this part, each at the front of `buffer`.
    pub fn frames(&self, buffer: &mut [u8], mut take: impl FnMut(&[u8])) -> Result<()> {
        let mtu = self.flow.mtu.bytes();
        let outer = self.flow.outer(self.direction);
        // An empty payload has one packet too.
        let count = self.payload.len().div_ceil(mtu).max(1);
        for n in 0..count {
            let start = n * mtu;
            let end = self.payload.len().min(start + mtu);
            let payload = self.payload.get(start..end).unwrap_or_default();
            let offset = self.offset as usize + start;
            let headers = self.headers(offset, payload.len())?;
            let used = outer.emit(&headers, payload, buffer)?;
            take(buffer.get(..used).unwrap_or_default());
        }
        Ok(())
    }

    /// The headers of the packet at an offset of the message.
    fn headers(&self, offset: usize, len: usize) -> Result<Headers> {
        let first = offset == 0;
        let last = offset + len >= self.total as usize;
        let service = self.flow.service;
        let operation = self.operation(first, last);
        let opcode = Opcode::new(service, operation).ok_or(sluice_wire::Error::Headers)?;
        let following = opcode.following();
        let psn = self.psn.after((offset / self.flow.mtu.bytes()) as u32);
        let (sender, receiver) = self.flow.ends(self.direction);
        let mut headers = Headers::new(Bth::new(opcode, receiver.qpn, psn));
        let reliable = matches!(service, Service::Rc | Service::Xrc);
        headers.bth.ack_request = reliable && !opcode.is_response() && last;
        match *self.kind {
            Kind::Send {
                ending,
                solicited,
                srq,
                qkey,
            } => {
                headers.bth.solicited = solicited && last;
                headers.deth = following.deth.then_some(Deth {
                    qkey,
                    source: sender.qpn,
                });
                headers.xrceth = xrceth(following.xrceth, srq);
                if last {
                    end(&mut headers, ending);
                }
            }
            Kind::Write {
                address,
                rkey,
                ending,
                solicited,
                srq,
            } => {
                headers.bth.solicited = solicited && last;
                headers.xrceth = xrceth(following.xrceth, srq);
                headers.reth = following.reth.then_some(Reth {
                    address,
                    rkey,
                    length: self.total,
                });
                if last {
                    end(&mut headers, ending);
                }
            }
            Kind::ReadRequest {
                address,
                rkey,
                length,
                srq,
            } => {
                headers.xrceth = xrceth(following.xrceth, srq);
                headers.reth = Some(Reth {
                    address,
                    rkey,
                    length,
                });
            }
            Kind::Atomic {
                address,
                rkey,
                swap_add,
                compare,
                srq,
                ..
            } => {
                headers.xrceth = xrceth(following.xrceth, srq);
                headers.atomic_eth = Some(AtomicEth {
                    address,
                    rkey,
                    swap_add,
                    compare,
                });
            }
            Kind::ReadResponse { msn } => {
                headers.aeth = following.aeth.then_some(acknowledged(msn));
            }
            Kind::AtomicResponse { original, msn } => {
                headers.aeth = Some(acknowledged(msn));
                headers.atomic_ack_eth = Some(AtomicAckEth { original });
            }
            Kind::Acknowledge { syndrome, msn } => {
                headers.aeth = Some(Aeth {
                    syndrome,
                    msn: Psn::new(msn),
                });
            }
        }
        Ok(headers)
    }

    fn operation(&self, first: bool, last: bool) -> Op {
        // First, middle, last, only.
        let by_place = |operations: [Op; 4]| {
            let [at_first, middle, at_last, only] = operations;
            match (first, last) {
                (true, false) => at_first,
                (false, false) => middle,
                (false, true) => at_last,
                (true, true) => only,
            }
        };
        match self.kind {
            Kind::Send { ending, .. } => match ending {
                Ending::Plain => {
                    by_place([Op::SendFirst, Op::SendMiddle, Op::SendLast, Op::SendOnly])
                }
                Ending::Immediate(_) => by_place([
                    Op::SendFirst,
                    Op::SendMiddle,
                    Op::SendLastWithImmediate,
                    Op::SendOnlyWithImmediate,
                ]),
                Ending::Invalidate(_) => by_place([
                    Op::SendFirst,
                    Op::SendMiddle,
                    Op::SendLastWithInvalidate,
                    Op::SendOnlyWithInvalidate,
                ]),
            },
            Kind::Write { ending, .. } => match ending {
                Ending::Immediate(_) => by_place([
                    Op::WriteFirst,
                    Op::WriteMiddle,
                    Op::WriteLastWithImmediate,
                    Op::WriteOnlyWithImmediate,
                ]),
                _ => by_place([
                    Op::WriteFirst,
                    Op::WriteMiddle,
                    Op::WriteLast,
                    Op::WriteOnly,
                ]),
            },
            Kind::ReadResponse { .. } => by_place([
                Op::ReadResponseFirst,
                Op::ReadResponseMiddle,
                Op::ReadResponseLast,
                Op::ReadResponseOnly,
            ]),
            Kind::ReadRequest { .. } => Op::ReadRequest,
            Kind::Atomic { compares: true, .. } => Op::CompareSwap,
            Kind::Atomic { .. } => Op::FetchAdd,
            Kind::AtomicResponse { .. } => Op::AtomicAcknowledge,
            Kind::Acknowledge { .. } => Op::Acknowledge,
        }
    }
}

fn xrceth(wanted: bool, srq: u32) -> Option<XrcEth> {
    wanted.then_some(XrcEth { srq: Qpn::new(srq) })
}

/// Nobody here gives credits.
fn acknowledged(msn: u32) -> Aeth {
    Aeth {
        syndrome: Syndrome::Ack(None),
        msn: Psn::new(msn),
    }
}

fn end(headers: &mut Headers, ending: Ending) {
    match ending {
        Ending::Plain => {}
        Ending::Immediate(bytes) => headers.immediate = Some(ImmDt(bytes)),
        Ending::Invalidate(rkey) => headers.ieth = Some(Ieth { rkey }),
    }
}
