//! What the state machines ask of the memory that they move bytes to: the driver's side.

use sluice_wire::Qpn;
use sluice_wire::extended::{ImmDt, NakCode};

use crate::request::{Remote, Status};

/// What a peer wants to do with memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// To write it.
    Write,
    /// To read it.
    Read,
}

/// An atomic operation on 8 bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Atomic {
    /// Put `swap` there if `compare` is there.
    CompareSwap {
        /// What has to be there.
        compare: u64,
        /// What is to be there.
        swap: u64,
    },
    /// Add, modulo 2⁶⁴.
    FetchAdd(u64),
}

/// Why the peer may not (IBTA 9.7.4.1.6, 9.9.3).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// The queue pair does not take the operation, or an atomic is not aligned.
    InvalidRequest,
    /// Unknown key, other protection domain, out of bounds, missing right.
    Access,
    /// Our own fault.
    Operation,
}

impl Refusal {
    /// What the peer is told (IBTA 9.7.5.2.1).
    pub const fn nak(self) -> NakCode {
        match self {
            Self::InvalidRequest => NakCode::InvalidRequest,
            Self::Access => NakCode::RemoteAccess,
            Self::Operation => NakCode::RemoteOperational,
        }
    }
}

/// Why there is no receive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TakeError {
    /// None is posted: the peer is to try again (RNR).
    Empty,
    /// The receive that was posted is bad. The driver has completed it.
    Bad,
}

/// Why bytes did not go into a receive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ScatterError {
    /// The receive is shorter than the message.
    TooLong,
    /// The receive's memory is gone.
    Fault,
}

/// How a receive ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Received {
    /// Success, or why not.
    pub status: Status,
    /// Bytes of the message.
    pub length: u32,
    /// It was a WRITE with immediate data; else a SEND.
    pub write: bool,
    /// Immediate data.
    pub immediate: Option<ImmDt>,
    /// The key that the message took away.
    pub invalidated: Option<u32>,
    /// The sender asked for a solicited event.
    pub solicited: bool,
}

/// The memory behind a queue pair. The state machines call it while they look at a packet,
/// because the answer decides what the packet's fate is. An implementation answers at once and
/// from its own state only.
///
/// "The receive" is the one that was taken last and not completed; there is at most one.
pub trait Memory {
    /// Requester: data of a response goes to the memory of the request, `offset` bytes from its
    /// beginning. An error fails the request with [`Status::LocalProtection`]. The old value that
    /// an atomic returns comes as 8 bytes in the machine's byte order.
    fn place(&mut self, seq: u64, offset: u32, bytes: &[u8]) -> Result<(), Refusal>;

    /// Extended reliable connections: all that follows, until the next such call, is for a
    /// message that names this shared receive queue (annex A14.4). Its receives are taken, and
    /// its domain is the one in which keys count.
    fn select(&mut self, _srq: Qpn) {}

    /// May the peer do that to these bytes? Nothing is touched. `length` is not 0.
    fn check(&mut self, access: Access, remote: Remote, length: u32) -> Result<(), Refusal>;

    /// The peer writes; key and bounds are to be checked here again, for each packet.
    fn write(&mut self, remote: Remote, bytes: &[u8]) -> Result<(), Refusal>;

    /// The peer's atomic operation. Gives the value from before it.
    fn atomic(&mut self, remote: Remote, atomic: Atomic) -> Result<u64, Refusal>;

    /// A message needs a receive.
    fn take_receive(&mut self) -> Result<(), TakeError>;

    /// Bytes of the message go to the receive, `offset` bytes from its beginning. An empty message
    /// comes as no bytes.
    fn scatter(&mut self, offset: u32, bytes: &[u8]) -> Result<(), ScatterError>;

    /// The message takes that key away (IBTA 9.4.1.1.1).
    fn invalidate(&mut self, rkey: u32) -> Result<(), Refusal>;

    /// The receive is done with.
    fn complete_receive(&mut self, received: &Received);
}
