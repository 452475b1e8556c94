//! The requester's side of a trace: what it asks for, and how that ended.

use sluice_trace::{Direction, Ending, Kind, Mtu, NakCode, Psn, RnrTimer, Syndrome};
use sluice_verbs::{Posted, Qp, SendDone, WcStatus, Wqe, WrOpcode, send_flags};

use super::fill::{from_pieces, nothing};
use super::{Sent, State, Tap};
use sluice_verbs::locks::lock;

/// What the requester's fields say of a request without data of its own.
fn kind(wqe: &Wqe<'_>) -> Kind {
    let wr = &wqe.wr;
    let solicited = wr.flags & send_flags::SOLICITED != 0;
    let (address, rkey, srq) = (wr.remote_addr, wr.rkey, wr.xrc_srqn);
    match wr.opcode {
        WrOpcode::RdmaWrite | WrOpcode::RdmaWriteWithImm => Kind::Write {
            address,
            rkey,
            ending: ending(wr.opcode, wr.imm),
            solicited,
            srq,
        },
        WrOpcode::RdmaRead => Kind::ReadRequest {
            address,
            rkey,
            length: wqe.length as u32,
            srq,
        },
        WrOpcode::AtomicCmpAndSwp => Kind::Atomic {
            compares: true,
            address,
            rkey,
            swap_add: wr.swap,
            compare: wr.compare_add,
            srq,
        },
        WrOpcode::AtomicFetchAndAdd => Kind::Atomic {
            compares: false,
            address,
            rkey,
            swap_add: wr.compare_add,
            compare: 0,
            srq,
        },
        opcode => Kind::Send {
            ending: ending(opcode, wr.imm),
            solicited,
            srq,
            qkey: wr.ud.map_or(0, |ud| ud.qkey),
        },
    }
}

fn ending(opcode: WrOpcode, imm: u32) -> Ending {
    match opcode {
        WrOpcode::SendWithImm | WrOpcode::RdmaWriteWithImm => Ending::Immediate(imm.to_ne_bytes()),
        WrOpcode::SendWithInv => Ending::Invalidate(imm),
        _ => Ending::Plain,
    }
}

fn reads(kind: &Kind) -> bool {
    matches!(kind, Kind::ReadRequest { .. } | Kind::Atomic { .. })
}

/// What the seam shows.
impl Tap {
    /// What became of a request that the engine handed over.
    pub(super) fn posted(&self, qp: &Qp, wqe: &Wqe<'_>, posted: &Posted) {
        let done = match posted {
            Posted::Busy => return,
            Posted::Done(done) if done.status != WcStatus::Success => return,
            Posted::Done(done) => Some(*done),
            Posted::Pending => None,
        };
        let mut state = lock(&self.state);
        if let Some(ud) = &wqe.wr.ud {
            Self::set_flow(&mut state, self.flow(qp, ud.ah, ud.qpn, Mtu::Bytes4096));
        }
        let Some(flow) = &state.flow else { return };
        // A READ takes the numbers of its answer (IBTA 9.7.3); an atomic takes one.
        let packets = match wqe.wr.opcode {
            WrOpcode::AtomicCmpAndSwp | WrOpcode::AtomicFetchAndAdd => 1,
            _ => flow.mtu.packets(wqe.length),
        };
        let psn = state.send_psn;
        state.send_psn = psn.after(packets as u32);
        self.requested(&state, psn, wqe);
        match done {
            Some(done) => self.answered(&mut state, psn, wqe, &done),
            None => state.sent.push_back(Sent {
                seq: wqe.seq,
                psn,
                again: false,
            }),
        }
    }

    fn requested(&self, state: &State, psn: Psn, wqe: &Wqe<'_>) {
        let kind = kind(wqe);
        let len = if reads(&kind) { 0 } else { wqe.length as u32 };
        let fill = from_pieces(wqe.wr.sges);
        self.record(state, Direction::Outbound, psn, kind, len, fill);
    }

    /// The answer to a request that has ended.
    fn answered(&self, state: &mut State, psn: Psn, wqe: &Wqe<'_>, done: &SendDone) {
        if !self.is_reliable() {
            return;
        }
        let nak = match done.status {
            WcStatus::Success => None,
            WcStatus::RemInvReqErr => Some(NakCode::InvalidRequest),
            WcStatus::RemAccessErr => Some(NakCode::RemoteAccess),
            WcStatus::RemOpErr => Some(NakCode::RemoteOperational),
            // No answer, or one that is there already.
            _ => return,
        };
        if let Some(code) = nak {
            return self.acknowledged(state, psn, Syndrome::Nak(code));
        }
        state.peer_msn += 1;
        let msn = state.peer_msn;
        let inbound = Direction::Inbound;
        match wqe.wr.opcode {
            WrOpcode::RdmaRead => {
                let (kind, len) = (Kind::ReadResponse { msn }, wqe.length as u32);
                self.record(state, inbound, psn, kind, len, from_pieces(wqe.wr.sges));
            }
            WrOpcode::AtomicCmpAndSwp | WrOpcode::AtomicFetchAndAdd => {
                let mut original = [0; 8];
                from_pieces(wqe.wr.sges)(0, &mut original);
                let original = u64::from_ne_bytes(original);
                let kind = Kind::AtomicResponse { original, msn };
                self.record(state, inbound, psn, kind, 0, nothing);
            }
            _ => {
                let packets = match &state.flow {
                    Some(flow) => flow.mtu.packets(wqe.length) as u32,
                    None => return,
                };
                self.acknowledged(state, psn.after(packets - 1), Syndrome::Ack(None));
            }
        }
    }

    fn acknowledged(&self, state: &State, psn: Psn, syndrome: Syndrome) {
        let msn = state.peer_msn;
        let kind = Kind::Acknowledge { syndrome, msn };
        self.record(state, Direction::Inbound, psn, kind, 0, nothing);
    }
}

/// What only the transport knows.
impl Tap {
    /// A pending request is about to be completed: with [`Qp::complete_send`] it is forgotten. Not
    /// with any lock of the queue pair held: it waits for a `post` under way to have said what it
    /// posted.
    pub fn completing(&self, qp: &Qp, seq: u64, done: &SendDone) {
        qp.with_wqe(seq, |wqe| {
            let mut state = lock(&self.state);
            while let Some(sent) = state.sent.front() {
                let (found, psn) = (sent.seq, sent.psn);
                if found > seq {
                    break;
                }
                state.sent.pop_front();
                if found == seq {
                    self.answered(&mut state, psn, wqe, done);
                }
            }
        });
    }

    /// The peer did not take the oldest request now; it and all later ones are sent again.
    /// `rnr_timer`: the code of the time to wait, if it was for want of a receive.
    pub fn put_off(&self, rnr_timer: Option<u8>) {
        let mut state = lock(&self.state);
        if let Some(code) = rnr_timer
            && let Some(first) = state.sent.front()
        {
            let psn = first.psn;
            let timer = RnrTimer::from_code(code);
            self.acknowledged(&state, psn, Syndrome::RnrNak(timer));
        }
        for sent in &mut state.sent {
            sent.again = true;
        }
    }

    /// A request is with the peer completely, maybe not for the first time.
    pub fn sent(&self, wqe: &Wqe<'_>) {
        let mut state = lock(&self.state);
        let found = state.sent.iter_mut().find(|sent| sent.seq == wqe.seq);
        let Some(sent) = found.filter(|sent| sent.again) else {
            return;
        };
        sent.again = false;
        let psn = sent.psn;
        self.requested(&state, psn, wqe);
    }
}
