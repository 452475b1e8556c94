//! What comes from the fabric.

use std::time::Instant;

use sluice_verbs::transport::{MAD_BYTES, MadPath};
use sluice_verbs::types::Gid;
use sluice_wire::cm::{
    Dreq, Message as Wire, MraOf, Rej, RejOf, RejectReason, Rep, Req, SidrRep, SidrReq, SidrStatus,
};
use sluice_wire::mad::Mad;

use super::{Machine, Output, PASSED_ON_MAX, RESPONSE_TIME_MAX, RESPONSE_TIME_MIN};
use crate::channel::Key;
use crate::connector::Happening;
use crate::fabric::connection::{Connection, State};
use crate::fabric::times::{RESPONSE_TIMEOUT, ibta_time};
use crate::fabric::{connection, format, reversed};
use crate::message::{Message, PrivateData};

/// A request that nobody has answered yet: whose it is, the agent knows.
#[derive(Debug)]
pub struct Incoming {
    /// [`Message::Request`] or [`Message::SidrRequest`].
    pub message: Message,
    /// Another process had it first, and will not get it back.
    pub passed_on: bool,
    path: MadPath,
    mad: Box<[u8; MAD_BYTES]>,
    comm_id: u32,
    transaction: u64,
    service_id: u64,
    remote_qpn: u32,
    ack_timeout: u8,
    response_timeout: u8,
    retries: u8,
}

impl Machine {
    /// Takes a datagram; `path` is as it came, from the peer to this side. What it gives back is
    /// to be ended by one of [`Machine::admit`], [`Machine::turn_away`], [`Machine::pass_on`] or
    /// by dropping it.
    pub fn received(
        &mut self,
        now: Instant,
        path: &MadPath,
        mad: &[u8; MAD_BYTES],
        passed_on: bool,
    ) -> Option<Incoming> {
        let parsed = Mad::parse(mad).and_then(|mad| Wire::parse(&mad));
        let Ok((message, transaction)) = parsed else {
            self.counters.malformed += 1;
            return None;
        };
        let peer = path.source;
        let name = match &message {
            Wire::Req(req) => return self.req(now, path, mad, req, transaction, passed_on),
            Wire::SidrReq(req) => return self.sidr_req(path, mad, req, transaction, passed_on),
            Wire::SidrRep(rep) => Some(rep.request_id),
            // Its sender has not heard of this side yet.
            Wire::Rej(Rej {
                remote_comm_id: 0,
                local_comm_id,
                ..
            }) => self.by_peer.get(&(peer, *local_comm_id)).copied(),
            Wire::Rej(rej) => Some(rej.remote_comm_id),
            Wire::Mra(mra) => Some(mra.remote_comm_id),
            Wire::Rep(rep) => Some(rep.remote_comm_id),
            Wire::Rtu(rtu) => Some(rtu.remote_comm_id),
            Wire::Dreq(dreq) => Some(dreq.remote_comm_id),
            Wire::Drep(drep) => Some(drep.remote_comm_id),
        };
        let tag = name.map(|name| (name >> 16) as u16);
        if tag != Some(self.tag) {
            if passed_on {
                self.counters.misplaced += 1;
            } else {
                let mad = Box::new(*mad);
                self.outputs.push_back(Output::PassOn(tag, *path, mad));
            }
            return None;
        }
        let id = name?;
        let known = self
            .connections
            .get(&id)
            .is_some_and(|c| c.path.destination == peer);
        if !known {
            self.unknown(path, &message, transaction);
            return None;
        }
        let mut connection = self.connections.remove(&id)?;
        self.message(now, &mut connection, path, &message, transaction);
        self.put(connection);
        None
    }

    /// A message about a connection that is not there, or not this peer's.
    fn unknown(&mut self, path: &MadPath, message: &Wire<'_>, transaction: u64) {
        self.counters.misplaced += 1;
        let answer = match message {
            // It may have ended already, which is what the peer wants (IBTA 12.9.8.4).
            Wire::Dreq(dreq) => {
                connection::drep(dreq.remote_comm_id, dreq.local_comm_id, transaction)
            }
            // The request was given up; the peer need not wait for the RTU.
            Wire::Rep(rep) => connection::stray_rej(
                rep.remote_comm_id,
                rep.local_comm_id,
                RejOf::Rep,
                RejectReason::InvalidCommId,
                &[],
                transaction,
            ),
            _ => None,
        };
        self.send_on(reversed(path), answer);
    }

    fn message(
        &mut self,
        now: Instant,
        c: &mut Connection,
        path: &MadPath,
        message: &Wire<'_>,
        transaction: u64,
    ) {
        let from_peer = |remote: u32| c.remote_id == remote;
        match (c.state, message) {
            (State::ReqSent, Wire::Rep(rep)) => self.rep(now, c, path, rep),
            (State::Established, Wire::Rep(rep)) if from_peer(rep.local_comm_id) => {
                self.counters.repeated += 1;
                self.send(c, c.rtu());
            }
            (State::RepReceived, Wire::Rep(rep)) if from_peer(rep.local_comm_id) => {
                self.counters.repeated += 1;
                self.send(c, c.mra(MraOf::Rep));
            }
            (State::Answered, Wire::Rep(_)) => self.answer_again(c),
            (State::ReqSent, Wire::Mra(mra)) if mra.of == MraOf::Req => {
                be_patient(now, c, mra.service_timeout);
            }
            (State::RepSent, Wire::Mra(mra))
                if mra.of == MraOf::Rep && from_peer(mra.local_comm_id) =>
            {
                be_patient(now, c, mra.service_timeout);
            }
            (State::RepSent, Wire::Rtu(rtu)) if from_peer(rtu.local_comm_id) => {
                c.enter(State::Established, None);
                self.tell(c, Happening::Message(Message::ReadyToUse));
            }
            (_, Wire::Dreq(dreq)) if from_peer(dreq.local_comm_id) => {
                self.dreq(now, c, dreq, transaction);
            }
            (State::DreqSent, Wire::Drep(drep)) if from_peer(drep.local_comm_id) => {
                self.tell(c, Happening::Message(Message::DisconnectReply));
                self.wait_out(now, c);
            }
            (_, Wire::Rej(rej)) => self.rej(now, c, rej),
            (State::SidrReqSent, Wire::SidrRep(rep)) => self.sidr_rep(c, path, rep),
            _ => self.counters.misplaced += 1,
        }
    }

    fn answer_again(&mut self, c: &Connection) {
        self.counters.repeated += 1;
        if let Some(answer) = &c.answer {
            let again = Output::Send(Some(c.local_id), c.path, answer.clone());
            self.outputs.push_back(again);
        }
    }

    fn rep(&mut self, now: Instant, c: &mut Connection, path: &MadPath, rep: &Rep<'_>) {
        let params = format::reply(path, c.qp_type, rep);
        let Some(private) = PrivateData::new(rep.private_data, Rep::PRIVATE_BYTES) else {
            return;
        };
        c.remote_id = rep.local_comm_id;
        c.remote_qpn = params.qp_num;
        c.ack_timeout = format::ack_timeout(rep.target_ack_delay, c.ack_timeout.saturating_sub(1));
        c.enter(State::RepReceived, None);
        if self.end_stale(now, (path.source, c.remote_qpn)) {
            let reason = RejectReason::StaleConnection.code();
            self.refuse(now, c, reason, &[]);
            let private = PrivateData::default();
            self.tell(c, Happening::Message(Message::Reject { reason, private }));
            return;
        }
        self.hold_queue_pair(path.source, c.remote_qpn, c.local_id);
        self.tell(c, Happening::Message(Message::Reply { params, private }));
    }

    fn dreq(&mut self, now: Instant, c: &mut Connection, dreq: &Dreq<'_>, transaction: u64) {
        if dreq.remote_qpn.get() != c.local_qpn & 0x00ff_ffff {
            self.counters.misplaced += 1;
            return;
        }
        match c.state {
            State::RepSent | State::RepReceived | State::Established | State::DreqSent => {
                self.tell(c, Happening::Message(Message::DisconnectRequest));
                self.wait_out(now, c);
            }
            State::TimeWait | State::Answered | State::Gone => self.counters.repeated += 1,
            _ => {
                self.counters.misplaced += 1;
                return;
            }
        }
        self.send(c, connection::drep(c.local_id, c.remote_id, transaction));
    }

    fn rej(&mut self, now: Instant, c: &mut Connection, rej: &Rej<'_>) {
        let other = c.remote_id != 0 && rej.local_comm_id != 0 && c.remote_id != rej.local_comm_id;
        let reason = rej.reason.code();
        let private = PrivateData::new(rej.private_data, Rej::PRIVATE_BYTES);
        let Some(private) = private.filter(|_| !other) else {
            self.counters.misplaced += 1;
            return;
        };
        match c.state {
            State::ReqSent => {
                c.enter(State::Gone, None);
                let happening = match (rej.reason, rej.info) {
                    // The code at the top of a byte, as in REQ. A larger one is nonsense.
                    (RejectReason::PathMtu, [mtu, ..]) if (1..c.mtu).contains(&(mtu >> 4)) => {
                        Happening::SmallerMtu(mtu >> 4)
                    }
                    _ => Happening::Message(Message::Reject { reason, private }),
                };
                self.tell(c, happening);
            }
            State::ReqReceived | State::RepSent | State::RepReceived => {
                self.tell(c, Happening::Message(Message::Reject { reason, private }));
                self.linger(now, c);
            }
            // The peer never got the RTU and has given up.
            State::Established => {
                self.tell(c, Happening::Message(Message::DisconnectRequest));
                self.wait_out(now, c);
            }
            State::DreqSent => {
                self.tell(c, Happening::Message(Message::DisconnectReply));
                self.wait_out(now, c);
            }
            _ => self.counters.misplaced += 1,
        }
    }

    fn sidr_rep(&mut self, c: &mut Connection, path: &MadPath, rep: &SidrRep<'_>) {
        if let Some(reply) = format::sidr_reply(path, rep) {
            c.enter(State::Gone, None);
            self.tell(c, Happening::Message(Message::SidrReply(reply)));
        }
    }

    fn req(
        &mut self,
        now: Instant,
        path: &MadPath,
        mad: &[u8; MAD_BYTES],
        req: &Req<'_>,
        transaction: u64,
        passed_on: bool,
    ) -> Option<Incoming> {
        let name = (path.source, req.local_comm_id);
        if let Some(&id) = self.by_peer.get(&name)
            && let Some(mut connection) = self.connections.remove(&id)
        {
            if connection.transaction == transaction {
                self.req_again(&mut connection);
                self.put(connection);
                return None;
            }
            // The peer uses the name for something new, so it has forgotten the old one.
            self.by_peer.remove(&name);
            let stale = connection.holds_queue_pair();
            if stale {
                self.disconnect_stale(now, &mut connection);
            }
            self.put(connection);
            if stale {
                self.stray(path, req, RejectReason::StaleConnection, &[], transaction);
                return None;
            }
        }
        if self.end_stale(now, (path.source, req.local_qpn.get())) {
            self.stray(path, req, RejectReason::StaleConnection, &[], transaction);
            return None;
        }
        if self.is_others((name.0, name.1, transaction), path, mad, passed_on) {
            return None;
        }
        let Some(request) = format::request(path, req) else {
            self.stray(path, req, RejectReason::InvalidServiceId, &[], transaction);
            return None;
        };
        // The two ends cut messages in the same way, and this one cannot do it in that way. The
        // peer learns what it can do (IBTA 12.6.7.2, table 109).
        if request.mtu > self.mtu {
            let info = [self.mtu << 4];
            self.stray(path, req, RejectReason::PathMtu, &info, transaction);
            return None;
        }
        Some(Incoming {
            remote_qpn: request.params.qp_num,
            message: Message::Request(request),
            passed_on,
            path: *path,
            mad: Box::new(*mad),
            comm_id: req.local_comm_id,
            transaction,
            service_id: req.service_id,
            // What the requester takes for both directions.
            ack_timeout: req.primary.local_ack_timeout,
            response_timeout: req.local_response_timeout,
            retries: req.max_cm_retries,
        })
    }

    /// A repetition of the request that began a connection.
    fn req_again(&mut self, c: &mut Connection) {
        match (c.state, &c.resend) {
            // The program takes its time.
            (State::ReqReceived, _) => {
                self.counters.repeated += 1;
                c.peer_waits = true;
                self.send(c, c.mra(MraOf::Req));
            }
            (State::RepSent, Some(resend)) => {
                self.counters.repeated += 1;
                let again = Output::Send(Some(c.local_id), c.path, resend.mad.clone());
                self.outputs.push_back(again);
            }
            (State::Answered, _) => self.answer_again(c),
            // It was late on the way.
            _ => self.counters.repeated += 1,
        }
    }

    fn sidr_req(
        &mut self,
        path: &MadPath,
        mad: &[u8; MAD_BYTES],
        req: &SidrReq<'_>,
        transaction: u64,
        passed_on: bool,
    ) -> Option<Incoming> {
        let name = (path.source, req.request_id);
        if let Some(id) = self.by_peer.get(&name)
            && let Some(connection) = self.connections.get(id)
            && connection.transaction == transaction
        {
            let answer = connection.answer.clone();
            let path = connection.path;
            self.counters.repeated += 1;
            if let Some(answer) = answer {
                self.outputs.push_back(Output::Send(None, path, answer));
            }
            return None;
        }
        if self.is_others((name.0, name.1, transaction), path, mad, passed_on) {
            return None;
        }
        let Some(request) = format::sidr_request(path, req) else {
            let status = SidrStatus::NotSupported;
            let refusal =
                connection::sidr_refusal(req.request_id, req.service_id, status, &[], transaction);
            self.send_on(reversed(path), refusal);
            return None;
        };
        Some(Incoming {
            message: Message::SidrRequest(request),
            passed_on,
            path: *path,
            mad: Box::new(*mad),
            comm_id: req.request_id,
            transaction,
            service_id: req.service_id,
            remote_qpn: 0,
            ack_timeout: 0,
            response_timeout: RESPONSE_TIMEOUT,
            retries: 0,
        })
    }

    /// Whether a request went to another process before; then its repetition goes there too, even
    /// if nobody listens any more.
    fn is_others(
        &mut self,
        request: (Gid, u32, u64),
        path: &MadPath,
        mad: &[u8; MAD_BYTES],
        passed_on: bool,
    ) -> bool {
        let others = !passed_on && self.passed_on.contains(&request);
        if others {
            let mad = Box::new(*mad);
            self.outputs.push_back(Output::PassOn(None, *path, mad));
        }
        others
    }

    /// Makes a connection of a request. `None`: too many; the peer will ask again.
    pub fn admit(&mut self, incoming: &Incoming, key: Key) -> Option<u32> {
        let id = self.free_name()?;
        let mut c = Connection::new(id, key, reversed(&incoming.path));
        c.remote_id = incoming.comm_id;
        c.transaction = incoming.transaction;
        c.service_id = incoming.service_id;
        c.remote_qpn = incoming.remote_qpn;
        c.ack_timeout = incoming.ack_timeout;
        let response_time = ibta_time(incoming.response_timeout);
        c.response_time = response_time.clamp(RESPONSE_TIME_MIN, RESPONSE_TIME_MAX);
        c.retries = incoming.retries;
        c.state = match &incoming.message {
            Message::Request(request) => {
                c.qp_type = request.qp_type;
                self.hold_queue_pair(incoming.path.source, incoming.remote_qpn, id);
                State::ReqReceived
            }
            _ => State::SidrReqReceived,
        };
        self.by_peer
            .insert((incoming.path.source, incoming.comm_id), id);
        self.connections.insert(id, c);
        Some(id)
    }

    /// A program that makes its queue pair later may say any number; 0 and 1 are nobody's.
    fn hold_queue_pair(&mut self, peer: Gid, qpn: u32, id: u32) {
        if qpn > 1 {
            self.by_queue_pair.insert((peer, qpn), id);
        }
    }

    /// Nobody serves what is asked for.
    pub fn turn_away(&mut self, incoming: &Incoming) {
        let refusal = match &incoming.message {
            Message::SidrRequest(_) => connection::sidr_refusal(
                incoming.comm_id,
                incoming.service_id,
                SidrStatus::NotSupported,
                &[],
                incoming.transaction,
            ),
            _ => connection::stray_rej(
                0,
                incoming.comm_id,
                RejOf::Req,
                RejectReason::InvalidServiceId,
                &[],
                incoming.transaction,
            ),
        };
        self.send_on(reversed(&incoming.path), refusal);
    }

    /// Another process of this host serves it.
    pub fn pass_on(&mut self, incoming: Incoming) {
        if self.passed_on.len() >= PASSED_ON_MAX {
            self.passed_on.pop_front();
        }
        let (peer, name) = (incoming.path.source, incoming.comm_id);
        self.passed_on.push_back((peer, name, incoming.transaction));
        let output = Output::PassOn(None, incoming.path, incoming.mad);
        self.outputs.push_back(output);
    }

    fn stray(
        &mut self,
        path: &MadPath,
        req: &Req<'_>,
        reason: RejectReason,
        info: &[u8],
        transaction: u64,
    ) {
        let rej =
            connection::stray_rej(0, req.local_comm_id, RejOf::Req, reason, info, transaction);
        self.send_on(reversed(path), rej);
    }

    /// A peer's queue pair can be in one connection only: if one is known, the peer has forgotten
    /// it (IBTA 12.9.8.3.1). It is ended, and whoever asks anew is told.
    fn end_stale(&mut self, now: Instant, queue_pair: (Gid, u32)) -> bool {
        let id = self.by_queue_pair.get(&queue_pair).copied();
        let Some(mut connection) = id.and_then(|id| self.connections.remove(&id)) else {
            return false;
        };
        self.disconnect_stale(now, &mut connection);
        self.put(connection);
        true
    }

    fn disconnect_stale(&mut self, now: Instant, c: &mut Connection) {
        match c.state {
            State::Established | State::RepSent | State::RepReceived => self.disconnect(now, c),
            // The program has not decided yet: it learns that there is nobody any more.
            _ => {
                let reason = RejectReason::StaleConnection.code();
                let private = PrivateData::default();
                self.tell(c, Happening::Message(Message::Reject { reason, private }));
                self.linger(now, c);
            }
        }
    }
}

/// The peer has the message and takes longer.
fn be_patient(now: Instant, c: &mut Connection, service_timeout: u8) {
    if let Some(resend) = &mut c.resend {
        resend.be_patient(now, ibta_time(service_timeout));
    }
}
