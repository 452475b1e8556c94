//! One connection, or one lookup of a datagram service, as the protocol sees it.

use std::time::{Duration, Instant};

use sluice_verbs::transport::{MAD_BYTES, MadPath};
use sluice_wire::Qpn;
use sluice_wire::cm::{
    Drep, Dreq, Message, Mra, MraOf, Rej, RejOf, RejectReason, Rtu, SidrRep, SidrStatus,
};

use super::resend::Resend;
use super::times;
use crate::channel::Key;

/// The states of IBTA 12.9.5, as far as they differ for somebody.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// Nothing was sent.
    Idle,
    ReqSent,
    ReqReceived,
    RepSent,
    RepReceived,
    Established,
    DreqSent,
    /// It has ended; what comes late finds it.
    TimeWait,
    SidrReqSent,
    SidrReqReceived,
    /// Refused, or a lookup that was answered: the answer stays a while, as it may get lost.
    Answered,
    /// Nothing is left of it but its name, which somebody still holds.
    Gone,
}

#[derive(Debug)]
pub struct Connection {
    pub local_id: u32,
    /// The peer's name for it; 0 until it is known.
    pub remote_id: u32,
    /// Whose it is; `None` when the agent has let go of it.
    pub key: Option<Key>,
    /// From this side to the peer.
    pub path: MadPath,
    /// Of the request that began it.
    pub transaction: u64,
    pub service_id: u64,
    /// `ibv_qp_type` of the requester.
    pub qp_type: u8,
    pub state: State,
    pub local_qpn: u32,
    pub remote_qpn: u32,
    /// The path MTU's code in this side's request.
    pub mtu: u8,
    /// The local ACK timeout of the path, 5 bits.
    pub ack_timeout: u8,
    /// How long the peer may take to answer.
    pub response_time: Duration,
    /// How often it wants to get a message at most, less one.
    pub retries: u8,
    pub resend: Option<Resend>,
    /// What a repetition of the peer's request gets.
    pub answer: Option<Box<[u8; MAD_BYTES]>>,
    /// The peer was asked for patience: it does not repeat its request soon.
    pub peer_waits: bool,
    /// How often its request could not be sent.
    pub no_way: u8,
    /// When the present state ends by itself.
    pub until: Option<Instant>,
    /// Its entry in the table of timers.
    pub timer: Option<Instant>,
}

impl Connection {
    pub fn new(local_id: u32, key: Key, path: MadPath) -> Connection {
        Connection {
            local_id,
            remote_id: 0,
            key: Some(key),
            path,
            transaction: 0,
            service_id: 0,
            qp_type: 0,
            state: State::Idle,
            local_qpn: 0,
            remote_qpn: 0,
            mtu: 0,
            ack_timeout: 0,
            response_time: times::ibta_time(times::RESPONSE_TIMEOUT),
            retries: times::CM_RETRIES,
            resend: None,
            answer: None,
            peer_waits: false,
            no_way: 0,
            until: None,
            timer: None,
        }
    }

    /// When something is to be done for it.
    pub fn deadline(&self) -> Option<Instant> {
        match &self.resend {
            Some(resend) => Some(resend.next()),
            None => self.until,
        }
    }

    /// Leaves a state in which something was sent again and again.
    pub fn enter(&mut self, state: State, until: Option<Instant>) {
        self.state = state;
        self.resend = None;
        self.until = until;
    }

    /// Whether its queue pair is, or may be, in use.
    pub fn holds_queue_pair(&self) -> bool {
        matches!(
            self.state,
            State::ReqReceived | State::RepSent | State::RepReceived | State::Established
        )
    }

    fn emit(&self, message: Message<'_>, transaction: u64) -> Option<[u8; MAD_BYTES]> {
        // It fails for private data that is too long only, which there is none of here, or was
        // checked when the program gave it.
        message.emit(transaction).ok()
    }

    pub fn mra(&self, of: MraOf) -> Option<[u8; MAD_BYTES]> {
        let service_timeout = match of {
            MraOf::Req => times::REQUEST_SERVICE_TIMEOUT,
            MraOf::Rep | MraOf::Lap => times::REPLY_SERVICE_TIMEOUT,
        };
        let mra = Mra {
            local_comm_id: self.local_id,
            remote_comm_id: self.remote_id,
            of,
            service_timeout,
            private_data: &[],
        };
        self.emit(Message::Mra(mra), self.transaction)
    }

    pub fn rtu(&self) -> Option<[u8; MAD_BYTES]> {
        let rtu = Rtu {
            local_comm_id: self.local_id,
            remote_comm_id: self.remote_id,
            private_data: &[],
        };
        self.emit(Message::Rtu(rtu), self.transaction)
    }

    /// REJ of what this state has been asked; `info` is more about the reason.
    pub fn rej(
        &self,
        reason: RejectReason,
        info: &[u8],
        private_data: &[u8],
    ) -> Option<[u8; MAD_BYTES]> {
        let of = match self.state {
            State::ReqReceived => RejOf::Req,
            State::RepReceived => RejOf::Rep,
            _ => RejOf::Other,
        };
        let rej = Rej {
            local_comm_id: self.local_id,
            remote_comm_id: self.remote_id,
            of,
            reason,
            info,
            private_data,
        };
        self.emit(Message::Rej(rej), self.transaction)
    }

    pub fn dreq(&self, transaction: u64) -> Option<[u8; MAD_BYTES]> {
        let dreq = Dreq {
            local_comm_id: self.local_id,
            remote_comm_id: self.remote_id,
            remote_qpn: Qpn::new(self.remote_qpn),
            private_data: &[],
        };
        self.emit(Message::Dreq(dreq), transaction)
    }

    pub fn sidr_refusal(&self, private_data: &[u8]) -> Option<[u8; MAD_BYTES]> {
        sidr_refusal(
            self.remote_id,
            self.service_id,
            SidrStatus::Rejected,
            private_data,
            self.transaction,
        )
    }
}

/// SIDR_REP that has no queue pair.
pub fn sidr_refusal(
    request_id: u32,
    service_id: u64,
    status: SidrStatus,
    private_data: &[u8],
    transaction: u64,
) -> Option<[u8; MAD_BYTES]> {
    let rep = SidrRep {
        request_id,
        status,
        qpn: Qpn::default(),
        service_id,
        qkey: 0,
        info: &[],
        private_data,
    };
    Message::SidrRep(rep).emit(transaction).ok()
}

/// DREP; also for a connection that is not known any more.
pub fn drep(local: u32, remote: u32, transaction: u64) -> Option<[u8; MAD_BYTES]> {
    let drep = Drep {
        local_comm_id: local,
        remote_comm_id: remote,
        private_data: &[],
    };
    Message::Drep(drep).emit(transaction).ok()
}

/// REJ of a message that belongs to no connection here. `local` is what the message calls this
/// side, `remote` its sender.
pub fn stray_rej(
    local: u32,
    remote: u32,
    of: RejOf,
    reason: RejectReason,
    info: &[u8],
    transaction: u64,
) -> Option<[u8; MAD_BYTES]> {
    let rej = Rej {
        local_comm_id: local,
        remote_comm_id: remote,
        of,
        reason,
        info,
        private_data: &[],
    };
    Message::Rej(rej).emit(transaction).ok()
}
