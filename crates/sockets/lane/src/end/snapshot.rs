//! What other processes and people read in a record.

use super::addresses::Addresses;
use super::flags::Flags;
use super::owner::Owner;
use super::{END_BYTES, End, State, Tx};
use crate::reason::Reason;
use crate::totals::{OneEnd, Totals};
use core::net::SocketAddr;
use sluice_shmem::handover::Sender;

/// What a record says about its connection, for people. Unlike [`End`] it can be made from
/// bytes that another process wrote.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EndSnapshot {
    /// The life the record is in.
    pub generation: u32,
    /// How far the connection has come.
    pub state: State,
    /// Why it is on TCP, if it is.
    pub reason: Reason,
    /// This end.
    pub local: SocketAddr,
    /// The other end.
    pub peer: SocketAddr,
    /// Whether what this end sends goes by the ring now.
    pub sends_by_ring: bool,
    /// Whether its lane is one to another host.
    pub is_remote: bool,
    /// Whether its lane lies in a window that two hosts share.
    pub is_direct: bool,
    /// Whether its lane waits for quicker traffic ([`End::is_patient`]).
    pub is_patient: bool,
    /// Whether it sends, or receives, no more by its lane.
    pub is_pinned: bool,
    /// The process that has it alone, by its own number; 0 if others have it, too, or nobody
    /// knows.
    pub owner: u32,
    /// Bytes by ring, received.
    pub ring_rx_bytes: u64,
    /// Bytes by ring, sent.
    pub ring_tx_bytes: u64,
    /// Bytes by TCP, received.
    pub tcp_rx_bytes: u64,
    /// Bytes by TCP, sent.
    pub tcp_tx_bytes: u64,
    /// Changes between ring and TCP of what this end sends.
    pub switches: u32,
    /// Waits on this socket that slept in the kernel.
    pub sleeps: u32,
    /// Waits on this socket that polling ended.
    pub spins: u32,
    /// Bytes of each of its rings.
    pub ring_bytes: u32,
}

impl EndSnapshot {
    /// Reads a record. `None` for a free one, and for bytes that no record has.
    pub fn from_bytes(bytes: &[u8; END_BYTES]) -> Option<Self> {
        use core::mem::offset_of;
        let u32_at = |at: usize| {
            bytes
                .get(at..at + 4)
                .and_then(|b| b.try_into().ok())
                .map(u32::from_ne_bytes)
        };
        let u64_at = |at: usize| {
            bytes
                .get(at..at + 8)
                .and_then(|b| b.try_into().ok())
                .map(u64::from_ne_bytes)
        };
        let address_at = |at: usize| Addresses::read(bytes, at);
        let state = match u32_at(offset_of!(End, life.state))? {
            1 => State::Tracked,
            2 => State::Announced,
            3 => State::Attached,
            _ => return None,
        };
        let ring_at = offset_of!(End, tx) + 8 + offset_of!(Tx, stream) + Sender::IS_ON_RING_OFFSET;
        let flags = Flags::of(u32_at(offset_of!(End, flags))?);
        let generation = u32_at(offset_of!(End, life.generation))?;
        let owner = u64_at(offset_of!(End, owner))?;
        Some(Self {
            generation,
            state,
            reason: Reason::from_code(u32_at(offset_of!(End, reason))? as u16)?,
            local: address_at(offset_of!(End, addresses.local))?,
            peer: address_at(offset_of!(End, addresses.peer))?,
            sends_by_ring: *bytes.get(ring_at)? != 0,
            is_remote: flags.has_any(Flags::REMOTE),
            is_direct: flags.has_any(Flags::DIRECT),
            is_patient: flags.has_any(Flags::PATIENT),
            is_pinned: flags.has_any(Flags::PINNED),
            owner: Owner::of_word(owner, generation),
            ring_rx_bytes: u64_at(offset_of!(End, bytes.ring_rx))?,
            ring_tx_bytes: u64_at(offset_of!(End, bytes.ring_tx))?,
            tcp_rx_bytes: u64_at(offset_of!(End, bytes.tcp_rx))?,
            tcp_tx_bytes: u64_at(offset_of!(End, bytes.tcp_tx))?,
            switches: u32_at(offset_of!(End, events.switches))?,
            sleeps: u32_at(offset_of!(End, events.sleeps))?,
            spins: u32_at(offset_of!(End, events.spins))?,
            ring_bytes: u32_at(offset_of!(End, memory.ring_bytes))?,
        })
    }

    /// What the connection has moved so far.
    pub fn totals(&self) -> Totals {
        Totals::of_one(&OneEnd {
            is_remote: self.is_remote || self.is_direct,
            ring: [self.ring_rx_bytes, self.ring_tx_bytes],
            tcp: [self.tcp_rx_bytes, self.tcp_tx_bytes],
            switches: self.switches.into(),
            sleeps: self.sleeps.into(),
            spins: self.spins.into(),
        })
    }
}
