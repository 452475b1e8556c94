//! What a program asks for, and how it ended.

use sluice_wire::extended::{ImmDt, Reth};
use sluice_wire::{Mtu, Qpn};

/// Memory at the peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Remote {
    /// In the region's own counting.
    pub address: u64,
    /// The region's key.
    pub rkey: u32,
}

/// What is to be done (IBTA 10.8.2.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operation {
    /// Fill a receive of the peer.
    Send,
    /// And give these bytes to whoever polls.
    SendImmediate(ImmDt),
    /// And take this key of the peer away.
    SendInvalidate(u32),
    /// Write to the peer's memory.
    Write(Remote),
    /// And complete a receive of the peer.
    WriteImmediate(Remote, ImmDt),
    /// Read from the peer's memory.
    Read(Remote),
    /// Put `swap` where `compare` is; 8 bytes.
    CompareSwap {
        /// Where, aligned to 8 bytes.
        remote: Remote,
        /// What has to be there.
        compare: u64,
        /// What is to be there.
        swap: u64,
    },
    /// Add; 8 bytes.
    FetchAdd {
        /// Where, aligned to 8 bytes.
        remote: Remote,
        /// What to add, modulo 2⁶⁴.
        add: u64,
    },
}

impl Operation {
    /// READs and atomics: the response carries data, and the peer keeps a resource for it (IBTA
    /// 9.4.4, 9.4.5).
    pub const fn has_response_data(&self) -> bool {
        matches!(
            self,
            Self::Read(_) | Self::CompareSwap { .. } | Self::FetchAdd { .. }
        )
    }

    /// Completes a receive of the peer.
    pub const fn takes_receive(&self) -> bool {
        matches!(
            self,
            Self::Send
                | Self::SendImmediate(_)
                | Self::SendInvalidate(_)
                | Self::WriteImmediate(..)
        )
    }

    /// Atomics have one packet and 8 bytes of data.
    pub const fn is_atomic(&self) -> bool {
        matches!(self, Self::CompareSwap { .. } | Self::FetchAdd { .. })
    }
}

/// A work request, without its memory: the driver finds that by `seq`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Request {
    /// The driver's name for it.
    pub seq: u64,
    /// What to do.
    pub operation: Operation,
    /// Bytes of the message, to 2³¹ (IBTA 9.7.2). 8 for atomics.
    pub length: u32,
    /// Raise a solicited event at the peer (IBTA 9.2.3).
    pub solicited: bool,
    /// Of extended reliable connections: the shared receive queue at the peer whose receives and
    /// whose domain count. Else None.
    pub srq: Option<Qpn>,
}

impl Request {
    /// Whether its length is one that the operation can have.
    pub(crate) const fn is_legal(&self) -> bool {
        if self.operation.is_atomic() {
            self.length == 8
        } else {
            self.length <= Reth::LENGTH_MAX
        }
    }

    /// Sequence numbers that it takes: its packets, or for a READ those of the response.
    pub(crate) const fn packets(&self, mtu: Mtu) -> u32 {
        if self.operation.is_atomic() {
            1
        } else {
            // At most 2³¹ / 256.
            mtu.packets(self.length as u64) as u32
        }
    }
}

/// Where a datagram goes; the driver finds the address by the request's `seq`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Datagram {
    /// To whom.
    pub destination: Qpn,
    /// The receiver's key (IBTA 10.2.5).
    pub qkey: u32,
}

/// How a request or a receive ended; the names of the C interface are behind them (IBTA 11.6.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Status {
    /// Done (`IBV_WC_SUCCESS`).
    Success,
    /// A message longer than the receive (`IBV_WC_LOC_LEN_ERR`).
    LocalLength,
    /// Our own memory is not to be used like that (`IBV_WC_LOC_PROT_ERR`).
    LocalProtection,
    /// Not done, since something before it failed (`IBV_WC_WR_FLUSH_ERR`).
    Flushed,
    /// The peer says that the request is not allowed (`IBV_WC_REM_INV_REQ_ERR`).
    RemoteInvalidRequest,
    /// The peer says that the key does not open that memory (`IBV_WC_REM_ACCESS_ERR`).
    RemoteAccess,
    /// The peer could not carry it out (`IBV_WC_REM_OP_ERR`).
    RemoteOperation,
    /// The peer did not answer (`IBV_WC_RETRY_EXC_ERR`).
    RetryExceeded,
    /// The peer had no receive for too long (`IBV_WC_RNR_RETRY_EXC_ERR`).
    RnrRetryExceeded,
}

/// A request that has ended. They come in the order of posting.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Completion {
    /// [`Request::seq`].
    pub seq: u64,
    /// How.
    pub status: Status,
    /// [`Request::length`].
    pub length: u32,
}

/// Why a request was not taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PostError {
    /// The queue is as long as it may be: take completions, then post again.
    Full,
    /// No such message: longer than 2³¹ bytes (UD: than the MTU), an atomic of other than 8
    /// bytes, or an operation that the service does not have.
    Illegal,
    /// The queue pair has failed: nothing is sent any more.
    Failed,
}

impl core::fmt::Display for PostError {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str(match self {
            Self::Full => "the send queue is full, take completions first",
            Self::Illegal => "the service has no such request",
            Self::Failed => "the queue pair has failed",
        })
    }
}

impl core::error::Error for PostError {}
