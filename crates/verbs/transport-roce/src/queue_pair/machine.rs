//! A queue pair's state machine, with its memory.

use std::sync::Arc;

use sluice_packet::Received;
use sluice_planner::{Owes, Ways};
use sluice_protocol::congestion::RateConfig;
use sluice_protocol::{Instant, Payload, Transmit, rc, uc, ud};
use sluice_transport::request::status;
use sluice_verbs::responder::receives;
use sluice_verbs::transport::QpChange;
use sluice_verbs::types::qp_mask;
use sluice_verbs::{Aftermath, NakReason, Qp, QpAttr, QpCap, QpType, SendDone, WcStatus};
use sluice_wire::extended::{NakCode, RnrTimer};
use sluice_wire::opcode::Operation;
use sluice_wire::{Ecn, Mtu, Packet, Psn, Qpn, grh, ipv4, ipv6};

use crate::counters::Seen;
use crate::network::path::{UDP_PORT, Way};
use crate::queue_pair::bridge::{self, Bridge, Inbound};
use crate::queue_pair::bulk;
use crate::queue_pair::requests::{Requests, Targets};

/// Request packets of one queue pair on their way, at most: a megabyte, which a receiver's socket
/// can hold while its thread is away, but no more than this while packets are small.
const WINDOW_BYTES: u32 = 1 << 20;
const WINDOW_MAX: u32 = 512;

/// Where a queue pair's rate begins when the first congestion mark comes, and what it grows back to,
/// bytes per second: 100 Gb/s, more than packets that software makes can reach.
const LINK_RATE: u64 = 12_500_000_000;

/// The only partition (IBTA 10.9.2).
const PKEY: u16 = sluice_wire::bth::DEFAULT_PKEY;

enum Service {
    /// Before RTR.
    None,
    Rc(Box<rc::Connection>),
    Uc(Box<uc::Connection>),
    Ud(Box<ud::Endpoint>),
}

/// What a queue pair does with packets. One thread at a time, see [`crate::queue_pair::part::Part::machine`].
pub struct Machine {
    qp: Option<Arc<Qp>>,
    service: Service,
    cap: QpCap,
    /// Where a connected queue pair's packets go.
    way: Option<Way>,
    /// Which of the two that [`Way`] has, where these differ.
    bulk: Ways,
    /// The path's MTU, bytes.
    mtu: u64,
    requests: Requests,
    inbound: Inbound,
    /// Packets are taken in.
    receives: bool,
    /// The program has been told of the refusal.
    refusal_told: bool,
    /// When the shard will look at it again, as [`Machine::deadline`] last said.
    told: Option<Instant>,
    /// What was seen, by earlier services too, but for the counters of `service`.
    seen: Seen,
}

/// A packet that leaves, and where to.
pub struct Outgoing {
    pub transmit: Transmit,
    pub way: Way,
}

impl Machine {
    pub fn new(kind: QpType, cap: QpCap, targets: Arc<Targets>) -> Self {
        Self {
            qp: None,
            service: Service::None,
            cap,
            way: None,
            bulk: Ways::default(),
            mtu: 0,
            requests: Requests::new(kind, targets),
            inbound: Inbound::default(),
            receives: false,
            refusal_told: false,
            told: None,
            seen: Seen::default(),
        }
    }

    /// Whose machine it is.
    pub fn bind(&mut self, qp: &Arc<Qp>) {
        self.requests.bind(qp.lent_records());
        self.qp = Some(qp.clone());
    }

    /// Its queue pair is about to be gone, and in nobody's tables. What it has seen.
    pub fn end(&mut self, after: &mut Aftermath) -> Seen {
        self.clear(after);
        self.requests.bind(None);
        self.qp = None;
        self.take_seen()
    }

    /// What it has seen so far.
    pub fn seen(&self) -> Seen {
        let mut all = self.seen;
        match &self.service {
            Service::None => {}
            Service::Rc(connection) => all.protocol += connection.counters(),
            Service::Uc(connection) => all.protocol += connection.counters(),
            Service::Ud(endpoint) => all.protocol += endpoint.counters(),
        }
        all
    }

    /// What it has seen so far, which is somebody else's to keep from now on. Without a service.
    fn take_seen(&mut self) -> Seen {
        core::mem::take(&mut self.seen)
    }

    /// What connected queue pairs are set up with.
    fn connection(&self, kind: QpType, attr: &QpAttr) -> rc::Config {
        rc::Config {
            destination: Qpn::new(attr.dest_qp_num),
            pkey: PKEY,
            mtu: mtu(attr),
            send_psn: Psn::new(attr.sq_psn),
            receive_psn: Psn::new(attr.rq_psn),
            // One more than the queue has, so that the protocol never is the narrow place.
            depth: self.cap.max_send_wr as usize + 1,
            window: (WINDOW_BYTES / mtu(attr).bytes() as u32).min(WINDOW_MAX),
            max_rd_atomic: attr.max_rd_atomic,
            max_dest_rd_atomic: attr.max_dest_rd_atomic,
            timeout: attr.timeout,
            retry_cnt: attr.retry_cnt,
            rnr_retry: attr.rnr_retry,
            min_rnr_timer: RnrTimer::from_code(attr.min_rnr_timer),
            extended: matches!(kind, QpType::XrcSend | QpType::XrcRecv),
            early: true,
            // Of these the kernel takes many at a time.
            single_writes: self.way.is_some_and(|way| way.bulk == UDP_PORT),
            rate: Some(RateConfig::for_software(LINK_RATE)),
        }
    }

    fn unreliable(&self, attr: &QpAttr) -> uc::Config {
        uc::Config {
            destination: Qpn::new(attr.dest_qp_num),
            pkey: PKEY,
            mtu: mtu(attr),
            send_psn: Psn::new(attr.sq_psn),
            receive_psn: Psn::new(attr.rq_psn),
            depth: self.cap.max_send_wr as usize + 1,
            rate: Some(RateConfig::for_software(LINK_RATE)),
        }
    }

    /// INIT to RTR: packets are taken from now on.
    pub fn ready_to_receive(&mut self, qp: &Qp, attr: &QpAttr, way: Option<Way>, port_mtu: Mtu) {
        self.way = way;
        self.bulk = Ways::default();
        self.mtu = mtu(attr).bytes() as u64;
        self.refusal_told = false;
        self.seen = self.seen();
        self.service = match qp.qp_type() {
            QpType::Ud => Service::Ud(Box::new(ud::Endpoint::new(&ud::Config {
                source: Qpn::new(qp.num()),
                pkey: PKEY,
                mtu: port_mtu,
                qkey: attr.qkey,
                send_psn: Psn::new(attr.sq_psn),
                depth: self.cap.max_send_wr as usize + 1,
            }))),
            QpType::Uc => Service::Uc(Box::new(uc::Connection::new(&self.unreliable(attr)))),
            kind => Service::Rc(Box::new(rc::Connection::new(&self.connection(kind, attr)))),
        };
        self.receives = true;
    }

    /// RTR to RTS: the sending half's attributes are known.
    pub fn ready_to_send(&mut self, qp: &Qp, attr: &QpAttr) {
        let config = self.connection(qp.qp_type(), attr);
        let unreliable = self.unreliable(attr);
        match &mut self.service {
            Service::Rc(connection) => connection.ready_to_send(&config),
            Service::Uc(connection) => connection.ready_to_send(&unreliable),
            Service::Ud(endpoint) => endpoint.ready_to_send(Psn::new(attr.sq_psn)),
            Service::None => {}
        }
    }

    /// New attributes in a state that works.
    pub fn change(&mut self, qp: &Qp, change: &QpChange<'_>, way: Option<Way>) {
        if way.is_some() {
            self.way = way;
        }
        let config = self.connection(qp.qp_type(), change.attr);
        match &mut self.service {
            Service::Rc(connection) => connection.change(&config),
            Service::Ud(endpoint) if change.mask & qp_mask::QKEY != 0 => {
                endpoint.set_qkey(change.attr.qkey);
            }
            Service::Ud(_) | Service::Uc(_) | Service::None => {}
        }
    }

    /// The way is another now: routes or neighbours have changed.
    pub fn reroute(&mut self, new: impl FnOnce(&Way) -> Way) {
        if let Some(way) = &mut self.way {
            *way = new(way);
        }
    }

    /// SQE: requests are flushed, messages still come.
    pub fn stop_sending(&mut self) {
        self.requests.clear();
        match &mut self.service {
            Service::Rc(connection) => connection.stop(),
            Service::Uc(connection) => connection.stop(),
            Service::Ud(endpoint) => endpoint.stop(),
            Service::None => {}
        }
        self.drain();
    }

    /// ERR: everything is flushed, the receive that is being filled too. A refusal is still
    /// repeated to a peer that goes on.
    pub fn stop(&mut self, after: &mut Aftermath) {
        self.stop_sending();
        let Some(qp) = self.qp.clone() else { return };
        self.receives = matches!(&self.service, Service::Rc(c) if c.refusal().is_some());
        let mut bridge = Bridge {
            qp: &qp,
            requests: &self.requests,
            inbound: &mut self.inbound,
            after,
        };
        match &mut self.service {
            Service::Rc(connection) => connection.stop_receiving(&mut bridge),
            Service::Uc(connection) => connection.stop_receiving(&mut bridge),
            Service::Ud(_) | Service::None => {}
        }
    }

    /// RESET, and the end.
    pub fn clear(&mut self, after: &mut Aftermath) {
        self.stop(after);
        self.seen = self.seen();
        self.service = Service::None;
        self.receives = false;
        self.way = None;
    }

    /// Completions that nobody is told of.
    fn drain(&mut self) {
        while self.completion().is_some() {}
    }

    fn completion(&mut self) -> Option<sluice_protocol::Completion> {
        match &mut self.service {
            Service::Rc(connection) => connection.completion(),
            Service::Uc(connection) => connection.completion(),
            Service::Ud(endpoint) => endpoint.completion(),
            Service::None => None,
        }
    }

    /// A packet came for this queue pair. False: it is not from its peer, or not for its state.
    pub fn receive(
        &mut self,
        now: Instant,
        packet: &Packet<'_>,
        received: &Received<'_>,
        after: &mut Aftermath,
    ) -> bool {
        if !self.receives {
            self.seen.not_taken.not_ready += 1;
            return false;
        }
        if packet.bth().pkey & 0x7fff != PKEY & 0x7fff {
            self.seen.not_taken.bad_pkey += 1;
            return false;
        }
        let Some(qp) = &self.qp else {
            return false;
        };
        // The program is moving it: the engine's state changes in front of this one, or behind it. To
        // refuse what comes in between would end the peer's request with a reason that is none.
        let refuses = matches!(&self.service, Service::Rc(c) if c.refusal().is_some());
        if !refuses && !receives(qp.state()) {
            self.seen.not_taken.not_ready += 1;
            return false;
        }
        // Connected queue pairs listen to their peer's address only (IBTA 9.6.1.5).
        if !matches!(self.service, Service::Ud(_))
            && self.way.is_none_or(|way| {
                way.path.destination != received.source || way.path.source != received.destination
            })
        {
            self.seen.not_taken.wrong_peer += 1;
            return false;
        }
        let mut bridge = Bridge {
            qp,
            requests: &self.requests,
            inbound: &mut self.inbound,
            after,
        };
        let ecn = received.ecn();
        match &mut self.service {
            Service::Rc(connection) => {
                connection.receive(now, packet, ecn, &mut bridge);
                // What waits for quiet may be sent now, or waits again.
                connection.hold(false);
            }
            Service::Uc(connection) => connection.receive(now, packet, ecn, &mut bridge),
            Service::Ud(endpoint) => {
                bridge.inbound.source = packet.headers().deth.map_or(0, |deth| deth.source.get());
                bridge.inbound.header = route_header(received);
                endpoint.receive(packet, &mut bridge);
            }
            Service::None => return false,
        }
        self.inbound.suspend(qp);
        true
    }

    /// Gives the protocol what it takes of what was posted. Requests that it does not know are completed.
    fn hand_over(&mut self, after: &mut Aftermath) {
        while let Some(request) = self.requests.next_request() {
            let posted = match &mut self.service {
                Service::Rc(connection) => connection.post(request),
                Service::Uc(connection) => connection.post(request),
                // One at a time, since each may go by another port.
                Service::Ud(endpoint) if !endpoint.has_request() => {
                    let Some(to) = self.requests.to(request.seq) else {
                        return;
                    };
                    endpoint.post(request, to.datagram)
                }
                Service::Ud(_) | Service::None => return,
            };
            match posted {
                Ok(()) => self.requests.handed(),
                Err(sluice_protocol::PostError::Illegal) => {
                    self.requests.handed();
                    self.complete(request.seq, WcStatus::LocQpOpErr, 0, after);
                }
                // Flushed by the engine, or tried again after the next completion.
                Err(_) => return,
            }
        }
    }

    fn complete(&mut self, seq: u64, status: WcStatus, byte_len: u32, after: &mut Aftermath) {
        let done = SendDone {
            status,
            byte_len,
            vendor_err: 0,
        };
        match &self.qp {
            Some(qp) => self.requests.complete(qp, seq, done, after),
            None => self.requests.end(seq),
        }
    }

    /// The ports by which the next packet may leave. Datagrams have a way each; it is that of the oldest.
    pub fn ports(&self) -> Option<[usize; 2]> {
        let way = match self.service {
            Service::Ud(_) => {
                let next = self.requests.next();
                next.and_then(|seq| Some(self.requests.to(seq)?.way))
            }
            _ => self.way,
        };
        way.map(|way| [way.port, way.bulk])
    }

    /// Whether [`Machine::report`] has something to tell.
    pub fn has_news(&self) -> bool {
        match &self.service {
            Service::Rc(connection) => {
                connection.has_completion() || connection.refusal().is_some() && !self.refusal_told
            }
            Service::Uc(connection) => connection.has_completion(),
            Service::Ud(endpoint) => endpoint.has_completion(),
            Service::None => false,
        }
    }

    /// Whether requests are done when their packets have left.
    pub fn is_unreliable(&self) -> bool {
        matches!(self.service, Service::Uc(_) | Service::Ud(_))
    }

    /// The end of `seq`, if that is all that there is to tell, and it is forgotten then: for
    /// whoever posts it right now and tells the engine by the answer.
    pub fn take_only(&mut self, seq: u64) -> Option<SendDone> {
        if !self.is_unreliable() || !self.requests.is_only(seq) {
            return None;
        }
        let done = self.completion()?;
        self.requests.end(seq);
        Some(SendDone {
            status: status(done.status),
            byte_len: done.length,
            vendor_err: 0,
        })
    }

    /// The next packet that leaves. `flows`: as for [`bulk::look`].
    pub fn transmit(
        &mut self,
        now: Instant,
        flows: bool,
        after: &mut Aftermath,
    ) -> Option<Outgoing> {
        self.hand_over(after);
        let transmit = match &mut self.service {
            Service::Rc(connection) => {
                if self.way.is_some_and(|way| way.port != way.bulk) {
                    bulk::look(&mut self.bulk, connection, self.mtu, flows, now);
                }
                connection.transmit(now)
            }
            Service::Uc(connection) => connection.transmit(now),
            Service::Ud(endpoint) => endpoint.transmit(),
            Service::None => None,
        }?;
        let way = match (&self.service, &transmit.payload) {
            (Service::Ud(_), Payload::Request { seq, .. }) => self.requests.to(*seq)?.way,
            _ => {
                let mut way = self.way?;
                let opcode = transmit.headers.bth.opcode;
                let bulk = match transmit.payload {
                    Payload::Notification => false,
                    _ if opcode.is_response() => self
                        .bulk
                        .reply(opcode.operation() == Operation::Acknowledge),
                    _ => self.bulk.request(),
                };
                if bulk {
                    way.port = way.bulk;
                }
                way
            }
        };
        Some(Outgoing { transmit, way })
    }

    /// Writes a packet: headers, and the payload from where it is. False: the payload cannot be
    /// had; [`Machine::gather_failed`] must follow.
    pub fn write(&self, transmit: &Transmit, into: &mut [u8]) -> bool {
        let payload = transmit.payload.length() as usize;
        let Ok(place) = transmit.headers.emit_around(payload, into) else {
            debug_assert!(false, "the protocol's headers are legal");
            return false;
        };
        let Some(place) = into.get_mut(place) else {
            return false;
        };
        let Some(qp) = &self.qp else { return false };
        match transmit.payload {
            Payload::None => true,
            Payload::Request { seq, offset, .. } => self.requests.gather(qp, seq, offset, place),
            Payload::Region { remote, srq, .. } => {
                bridge::read_region(qp, remote, srq, place).is_ok()
            }
            Payload::Report { .. } => match &self.service {
                Service::Rc(connection) => connection.write_report(place),
                _ => false,
            },
            Payload::Notification => {
                place.copy_from_slice(&sluice_wire::cnp::PAYLOAD);
                true
            }
        }
    }

    /// [`Machine::write`] gave false.
    pub fn gather_failed(&mut self, transmit: &Transmit) {
        match (&mut self.service, transmit.payload) {
            (Service::Rc(connection), Payload::Request { seq, .. }) => connection.fail_request(seq),
            (Service::Uc(connection), Payload::Request { seq, .. }) => connection.fail_request(seq),
            (Service::Ud(endpoint), Payload::Request { seq, .. }) => endpoint.fail_request(seq),
            (
                Service::Rc(connection),
                Payload::Region {
                    remote,
                    length,
                    srq,
                },
            ) => {
                let Some(qp) = &self.qp else { return };
                let srq = srq.map_or(0, Qpn::get);
                let op = sluice_verbs::responder::RemoteOp::Read;
                // What the reason was, by asking again. If it may now, the peer asks again too.
                if let Err(refusal) = bridge::remote_memory(qp, op, remote, length, srq).map(drop) {
                    connection.refuse_read(transmit.headers.bth.psn, refusal);
                }
            }
            _ => {}
        }
    }

    /// Time has passed.
    pub fn expire(&mut self, now: Instant) {
        if let Service::Rc(connection) = &mut self.service
            && connection
                .deadline()
                .is_some_and(|deadline| deadline <= now)
        {
            connection.expire(now);
        }
    }

    /// When it wants to be looked at again, if nothing happens. For the shard, which will.
    pub fn deadline(&mut self) -> Option<Instant> {
        self.told = match &self.service {
            Service::Rc(connection) => connection.deadline(),
            Service::Uc(connection) => connection.deadline(),
            Service::Ud(_) | Service::None => None,
        };
        self.told
    }

    /// What is to be done behind a packet that came.
    pub fn owes(&self) -> Owes {
        // The others answer nothing.
        let Service::Rc(connection) = &self.service else {
            return Owes::Nothing;
        };
        if self.requests.next().is_some() {
            return Owes::Turn;
        }
        if connection.is_ready() {
            return match connection.owes_acknowledgement_only() {
                true => Owes::Acknowledgement,
                false => Owes::Turn,
            };
        }
        let sooner = match (connection.deadline(), self.told) {
            (Some(deadline), Some(told)) => deadline < told,
            (deadline, _) => deadline.is_some(),
        };
        if sooner { Owes::Turn } else { Owes::Nothing }
    }

    /// Tells the engine what has happened. A queue pair that has failed does no more by itself: the
    /// engine moves it when the aftermath is run.
    pub fn report(&mut self, after: &mut Aftermath) {
        while let Some(done) = self.completion() {
            let status = status(done.status);
            self.complete(done.seq, status, done.length, after);
            if status != WcStatus::Success {
                match &self.service {
                    Service::Rc(_) => self.stop(after),
                    _ => self.stop_sending(),
                }
            }
        }
        if self.refusal_told {
            return;
        }
        if let Service::Rc(connection) = &self.service
            && let Some(code) = connection.refusal()
            && let Some(qp) = self.qp.clone()
        {
            self.refusal_told = true;
            let reason = match code {
                NakCode::RemoteAccess => NakReason::RemoteAccess,
                NakCode::RemoteOperational => NakReason::RemoteOperation,
                _ => NakReason::InvalidRequest,
            };
            qp.responder_failed(reason, after);
            self.stop(after);
        }
    }
}

fn mtu(attr: &QpAttr) -> Mtu {
    // The engine has checked the code.
    Mtu::from_code(attr.path_mtu as u8).unwrap_or(Mtu::Bytes256)
}

/// What a UD receive begins with: the IP header, in the place of InfiniBand's route header.
fn route_header(received: &Received<'_>) -> [u8; grh::BYTES] {
    // UDP header and ICRC are part of the IP payload.
    let payload_bytes = (received.packet.len() + 8 + 4) as u16;
    let (dscp, ecn) = (
        received.traffic_class >> 2,
        Ecn::from_bits(received.traffic_class),
    );
    match (received.source, received.destination) {
        (std::net::IpAddr::V4(source), std::net::IpAddr::V4(destination)) => {
            grh::of_ipv4(&ipv4::Header {
                dscp,
                ecn,
                identification: 0,
                dont_fragment: true,
                ttl: received.hop_limit,
                protocol: ipv4::UDP,
                source,
                destination,
                payload_bytes,
            })
            .unwrap_or([0; grh::BYTES])
        }
        (std::net::IpAddr::V6(source), std::net::IpAddr::V6(destination)) => {
            grh::of_ipv6(&ipv6::Header {
                dscp,
                ecn,
                flow_label: 0,
                payload_bytes,
                next_header: ipv4::UDP,
                hop_limit: received.hop_limit,
                source,
                destination,
            })
        }
        _ => [0; grh::BYTES],
    }
}
