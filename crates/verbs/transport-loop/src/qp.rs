//! A queue pair. Requester: requests leave, and answers end them. Responder: requests of peers are
//! carried out one after the other.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex};

use sluice_verbs::message::GRH_BYTES;
use sluice_verbs::responder::{RecvWqe, TakeError};
use sluice_verbs::transport::QpChange;
use sluice_verbs::{
    Aftermath, Gid, Message, NakReason, Posted, Qp, QpAttr, QpState, QpTransport, QpType, Result,
    SendDone, WcStatus, Wqe, WrOpcode, send_flags, with_aftermath,
};

use crate::frame::{ANSWER, Frame};
use crate::{Node, lock};

pub struct Part {
    node: Arc<Node>,
    kind: QpType,
    qpn: u32,
    state: Mutex<State>,
    responder: Mutex<Responder>,
}

/// What `post` and answers look at: never locked over a call into the engine, nor while a responder is locked
/// for, since that one looks at it.
#[derive(Default)]
struct State {
    /// None when it is being destroyed.
    qp: Option<Arc<Qp>>,
    attr: QpAttr,
    /// Requests that have left since the connection began, and those without an answer: `seq`, PSN.
    sent: u64,
    open: VecDeque<(u64, u64)>,
    groups: Vec<Gid>,
}

impl Part {
    pub fn new(node: &Arc<Node>, qpn: u32, kind: QpType) -> Part {
        Part {
            node: node.clone(),
            kind,
            qpn,
            state: Mutex::default(),
            responder: Mutex::default(),
        }
    }

    pub fn qp(&self) -> Option<Arc<Qp>> {
        lock(&self.state).qp.clone()
    }

    fn is_in(&self, group: &Gid) -> bool {
        lock(&self.state).groups.contains(group)
    }

    /// A connection begins.
    fn begin(&self) {
        let mut state = lock(&self.state);
        (state.sent, state.open) = Default::default();
    }

    /// The peer has answered, unless that is for a connection of before. Answers come in order.
    pub fn end(&self, answer: &Frame) {
        let its = (answer.seq, answer.psn);
        let ended = lock(&self.state).open.pop_front_if(|first| *first == its);
        let Some(qp) = self.qp().filter(|_| ended.is_some()) else {
            return;
        };
        let mut done = SendDone::ok(answer.length as u32);
        done.status = match WcStatus::try_from((answer.what - ANSWER) as u32) {
            _ if !qp.scatter_answer(answer.seq, &answer.payload) => WcStatus::LocProtErr,
            status => status.unwrap_or(WcStatus::BadRespErr),
        };
        with_aftermath(|after| qp.complete_send(answer.seq, done, after));
    }

    /// There is no peer any more: the oldest request fails, and the queue pair in any case.
    pub fn give_up(&self) {
        let Some(qp) = self.qp().filter(|_| self.kind.is_reliable()) else {
            return;
        };
        let failed = SendDone::failed(WcStatus::RetryExcErr);
        let open = std::mem::take(&mut lock(&self.state).open);
        let open: Vec<_> = open.iter().map(|(seq, _)| (*seq, failed)).collect();
        with_aftermath(|after| {
            qp.complete_sends(&open, after);
            qp.fail(None, after);
        });
    }
}

/// What the engine has of it.
pub struct LoopQp(pub Arc<Part>);

impl QpTransport for LoopQp {
    fn bind(&self, qp: &Arc<Qp>) {
        lock(&self.0.state).qp = Some(qp.clone());
    }

    fn post(&self, _: &Qp, wqe: &Wqe<'_>) -> Posted {
        let (part, wr, mut state) = (&self.0, &wqe.wr, lock(&self.0.state));
        let attr = state.attr;
        // Packet numbers have 24 bits. Here a request has one, however long it is.
        let psn = (u64::from(attr.sq_psn) + state.sent) & 0xff_ffff;
        state.sent += 1;
        state
            .open
            .extend(part.kind.is_reliable().then_some((wqe.seq, psn)));
        drop(state);
        let gid = wr.ud.map(|ud| u128::from_le_bytes(ud.ah.grh.dgid.0));
        let left = part.node.put(Frame {
            what: wr.opcode as u64,
            to: wr.ud.map_or(attr.dest_qp_num, |ud| ud.qpn).into(),
            from: part.qpn.into(),
            seq: wqe.seq,
            psn,
            answered: part.kind.is_reliable().into(),
            patient: (attr.rnr_retry == 7).into(),
            solicited: (wr.flags & send_flags::SOLICITED != 0).into(),
            imm: wr.imm.into(),
            addr: wr.remote_addr,
            rkey: wr.rkey.into(),
            about: wr.ud.map_or(wr.xrc_srqn, |ud| ud.qkey).into(),
            first: gid.map_or(wr.compare_add, |gid| gid as u64),
            second: gid.map_or(wr.swap, |gid| (gid >> 64) as u64),
            length: wqe.length,
            payload: wqe.gather(),
        });
        match (part.kind.is_reliable(), left) {
            (true, true) => Posted::Pending,
            (true, false) => Posted::Done(SendDone::failed(WcStatus::RetryExcErr)),
            // Its bytes have been copied, and nobody says what becomes of them.
            (false, _) => Posted::Done(SendDone::ok(wqe.length as u32)),
        }
    }

    fn modify(&self, _: &Qp, change: &QpChange<'_>, _: &mut Aftermath) -> Result<()> {
        lock(&self.0.state).attr = *change.attr;
        match change.to {
            QpState::Rtr => {
                self.0.begin();
                lock(&self.0.responder).start(change.attr.rq_psn);
            }
            QpState::Err | QpState::Reset => lock(&self.0.responder).stop(&self.0.node),
            _ => {}
        }
        Ok(())
    }

    fn receives_posted(&self, _: &mut Aftermath) {
        serve(&self.0);
    }

    fn attach_multicast(&self, gid: &Gid) -> Result<()> {
        lock(&self.0.state).groups.push(*gid);
        Ok(())
    }

    fn detach_multicast(&self, gid: &Gid) {
        lock(&self.0.state).groups.retain(|group| group != gid);
    }

    fn destroy(&self, _: &mut Aftermath) {
        lock(&self.0.node.parts).remove(&self.0.qpn);
        lock(&self.0.responder).stop(&self.0.node);
        lock(&self.0.state).qp = None;
    }
}

#[derive(Default)]
struct Responder {
    /// Not carried out yet: the queue pair is not ready, or the first one finds no receive.
    waiting: VecDeque<Frame>,
    /// The packet number of the next.
    expected: u64,
    /// One was refused: nothing more is done.
    refused: bool,
    receive: RecvWqe,
}

impl Responder {
    /// A connection begins.
    fn start(&mut self, psn: u32) {
        (self.expected, self.refused) = (psn.into(), false);
    }

    /// Those that wait wait in vain.
    fn stop(&mut self, node: &Node) {
        let waiting = self.waiting.drain(..);
        waiting.for_each(|request| answer(node, &request, WcStatus::RetryExcErr, Vec::new()));
    }
}

/// Ends a request, if its requester waits for that.
fn answer(node: &Node, request: &Frame, status: WcStatus, payload: Vec<u8>) {
    if request.answered != 0 {
        let _ = node.put(Frame {
            what: ANSWER + status as u64,
            to: request.from,
            seq: request.seq,
            psn: request.psn,
            length: request.length,
            payload,
            ..Frame::default()
        });
    }
}

/// A request has come.
pub fn take(node: &Node, part: Option<Arc<Part>>, request: Frame) {
    let gid = u128::from(request.second) << 64 | u128::from(request.first);
    let group =
        Some(Gid(gid.to_le_bytes())).filter(|gid| request.to == 0xff_ffff && gid.is_multicast());
    let mut parts: Vec<Arc<Part>> = group.map_or(part.into_iter().collect(), |_| node.all());
    parts.retain(|part| match group {
        Some(gid) => part.is_in(&gid),
        None => part.kind.is_reliable() == (request.answered != 0),
    });
    for part in &parts {
        lock(&part.responder).waiting.push_back(request.clone());
        serve(part);
    }
    if parts.is_empty() {
        answer(node, &request, WcStatus::RetryExcErr, Vec::new());
    }
}

/// Carries out what waits, as far as it goes.
fn serve(part: &Part) {
    while with_aftermath(|after| serve_one(part, &mut lock(&part.responder), after)) {}
}

/// Carries out the first that waits. False when it goes on waiting, or there is none.
fn serve_one(part: &Part, responder: &mut Responder, after: &mut Aftermath) -> bool {
    let (Some(qp), Some(request)) = (part.qp(), responder.waiting.pop_front()) else {
        return false;
    };
    let datagram = part.kind == QpType::Ud;
    match qp.state() {
        // It will be ready, or reset.
        QpState::Reset | QpState::Init if !datagram => {
            responder.waiting.push_front(request);
            return false;
        }
        QpState::Err => {
            answer(&part.node, &request, WcStatus::RetryExcErr, Vec::new());
            return true;
        }
        // Of a connection of before, or behind a request that has ended this one; not ours.
        _ if !datagram && (responder.refused || request.psn != responder.expected) => return true,
        _ if datagram && u64::from(qp.qkey()) != request.about => return true,
        _ => {}
    }
    let (status, payload) = match carry_out(&qp, &mut responder.receive, &request, after) {
        Ok(payload) => (WcStatus::Success, payload),
        Err(TakeError::Bad(reason)) => {
            qp.responder_failed(reason, after);
            (reason.requester_status(), Vec::new())
        }
        Err(_) if request.answered & request.patient != 0 => {
            responder.waiting.push_front(request);
            return false;
        }
        // There are no timers here: all its retries come at once, and in vain.
        Err(_) => (WcStatus::RnrRetryExcErr, Vec::new()),
    };
    responder.refused = part.kind.is_reliable() && status != WcStatus::Success;
    responder.expected = (responder.expected + 1) & 0xff_ffff;
    answer(&part.node, &request, status, payload);
    true
}

fn carry_out(
    qp: &Qp,
    receive: &mut RecvWqe,
    request: &Frame,
    after: &mut Aftermath,
) -> std::result::Result<Vec<u8>, TakeError> {
    let opcode = WrOpcode::try_from(request.what as u32);
    let message = Message {
        opcode: opcode.map_err(|_| TakeError::Bad(NakReason::InvalidRequest))?,
        bytes: &request.payload,
        len: request.length,
        addr: request.addr,
        rkey: request.rkey as u32,
        operands: [request.first, request.second],
        imm: request.imm as u32,
        solicited: request.solicited != 0,
        srqn: request.about as u32,
        src_qp: request.from as u32,
        header: [0; GRH_BYTES],
    };
    qp.carry_out(&message, receive, after)
}
