//! Messages put together from packets that come in order: what RC and UC do alike with SENDs and
//! WRITEs.

use sluice_wire::opcode::Position;
use sluice_wire::{Headers, Mtu, Packet};

use crate::memory::{Access, Memory, Received, Refusal, ScatterError, TakeError};
use crate::request::{Remote, Status};
use crate::segment::{Kind, kind, may_follow};

/// A message of which more packets are to come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Message {
    Send {
        /// Bytes so far.
        done: u32,
    },
    Write {
        remote: Remote,
        /// Bytes in all, and so far.
        length: u32,
        done: u32,
    },
}

/// Why a packet is not carried out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stop {
    /// It is wrong.
    Refuse(Refusal),
    /// There is no receive for it.
    NotReady,
}

impl From<Refusal> for Stop {
    fn from(refusal: Refusal) -> Self {
        Self::Refuse(refusal)
    }
}

/// The message under way.
#[derive(Debug)]
pub(crate) struct Assembly {
    mtu: Mtu,
    message: Option<Message>,
    /// A receive is taken and not completed.
    receiving: bool,
}

impl Assembly {
    pub const fn new(mtu: Mtu) -> Self {
        Self {
            mtu,
            message: None,
            receiving: false,
        }
    }

    /// Whether a request may come now, by opcode and payload alone (IBTA 9.7.4.1.2 to 9.7.4.1.4).
    pub fn may_come(&self, packet: &Packet<'_>) -> bool {
        let inside = self.message.as_ref().map(|message| match message {
            Message::Send { .. } => Kind::Send,
            Message::Write { .. } => Kind::Write,
        });
        let opcode = packet.bth().opcode;
        may_follow(inside, opcode) && opcode.allows(packet.payload().len(), self.mtu)
    }

    /// The next packet of a SEND or WRITE for which [`Assembly::may_come`] is true. All of it is
    /// done when this returns Ok, then whether the message is complete; else nothing, except that
    /// a receive may have been taken.
    pub fn add(&mut self, packet: &Packet<'_>, memory: &mut impl Memory) -> Result<bool, Stop> {
        let opcode = packet.bth().opcode;
        let ends = matches!(opcode.position(), Position::Only | Position::Last);
        let next = match kind(opcode.operation()) {
            Some(Kind::Send) => self.send(packet, ends, memory)?,
            Some(Kind::Write) => self.write(packet, ends, memory)?,
            _ => return Err(Refusal::InvalidRequest.into()),
        };
        self.message = (!ends).then_some(next);
        Ok(ends)
    }

    fn send(
        &mut self,
        packet: &Packet<'_>,
        ends: bool,
        memory: &mut impl Memory,
    ) -> Result<Message, Stop> {
        let done = match self.message {
            Some(Message::Send { done }) => done,
            _ => 0,
        };
        // At most the path MTU.
        let more = packet.payload().len() as u32;
        let Some(length) = done.checked_add(more) else {
            return Err(Refusal::InvalidRequest.into());
        };
        self.take_receive(memory)?;
        if let Err(error) = memory.scatter(done, packet.payload()) {
            let (status, refusal) = match error {
                ScatterError::TooLong => (Status::LocalLength, Refusal::InvalidRequest),
                ScatterError::Fault => (Status::LocalProtection, Refusal::Operation),
            };
            self.fail_receive(status, memory);
            return Err(refusal.into());
        }
        if ends {
            if let Some(ieth) = packet.headers().ieth {
                memory.invalidate(ieth.rkey)?;
            }
            self.complete_receive(packet.headers(), length, memory);
        }
        Ok(Message::Send { done: length })
    }

    fn write(
        &mut self,
        packet: &Packet<'_>,
        ends: bool,
        memory: &mut impl Memory,
    ) -> Result<Message, Stop> {
        let headers = packet.headers();
        let (remote, length, done) = match (headers.reth, self.message) {
            (Some(reth), _) => {
                let remote = Remote {
                    address: reth.address,
                    rkey: reth.rkey,
                };
                if reth.length > 0 {
                    memory.check(Access::Write, remote, reth.length)?;
                }
                (remote, reth.length, 0)
            }
            (
                None,
                Some(Message::Write {
                    remote,
                    length,
                    done,
                }),
            ) => (remote, length, done),
            (None, _) => return Err(Refusal::InvalidRequest.into()),
        };
        // At most the path MTU; and nothing of the message is left if and only if it is the last.
        let more = packet.payload().len() as u32;
        let rest = length
            .checked_sub(done)
            .and_then(|rest| rest.checked_sub(more));
        if rest.is_none_or(|rest| (rest == 0) != ends) {
            return Err(Refusal::InvalidRequest.into());
        }
        if headers.immediate.is_some() {
            self.take_receive(memory)?;
        }
        if more > 0 {
            memory.write(at(remote, u64::from(done)), packet.payload())?;
        }
        if headers.immediate.is_some() {
            self.complete_receive(headers, length, memory);
        }
        Ok(Message::Write {
            remote,
            length,
            done: done + more,
        })
    }

    /// The message is given up, and its receive with it.
    pub fn abort(&mut self, memory: &mut impl Memory) {
        self.message = None;
        self.fail_receive(Status::Flushed, memory);
    }

    /// The message is given up; its receive is for the next one (IBTA 9.9.3.1, class D).
    pub fn drop_message(&mut self) {
        self.message = None;
    }

    fn take_receive(&mut self, memory: &mut impl Memory) -> Result<(), Stop> {
        if !self.receiving {
            memory.take_receive().map_err(|error| match error {
                TakeError::Empty => Stop::NotReady,
                TakeError::Bad => Stop::Refuse(Refusal::Operation),
            })?;
            self.receiving = true;
        }
        Ok(())
    }

    fn complete_receive(&mut self, headers: &Headers, length: u32, memory: &mut impl Memory) {
        self.receiving = false;
        memory.complete_receive(&Received {
            status: Status::Success,
            length,
            write: matches!(kind(headers.bth.opcode.operation()), Some(Kind::Write)),
            immediate: headers.immediate,
            invalidated: headers.ieth.map(|ieth| ieth.rkey),
            solicited: headers.bth.solicited,
        });
    }

    fn fail_receive(&mut self, status: Status, memory: &mut impl Memory) {
        if core::mem::take(&mut self.receiving) {
            memory.complete_receive(&Received {
                status,
                length: 0,
                write: false,
                immediate: None,
                invalidated: None,
                solicited: false,
            });
        }
    }
}

/// Further on in the same region. A range that wraps is refused by whoever checks it.
fn at(remote: Remote, offset: u64) -> Remote {
    Remote {
        address: remote.address.wrapping_add(offset),
        ..remote
    }
}
