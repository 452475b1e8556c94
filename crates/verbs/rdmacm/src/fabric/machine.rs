//! The protocol's tables: what the agent says, and timers. What comes from the fabric is in
//! [`received`](Machine::received).

mod incoming;

use std::collections::{BTreeSet, HashMap, VecDeque};
use std::time::{Duration, Instant};

use sluice_verbs::transport::{MAD_BYTES, MadPath};
use sluice_verbs::types::Gid;
use sluice_wire::cm::RejectReason;

use super::connection::{Connection, State};
use super::format;
use super::resend::{Due, Resend};
use super::times::{RESPONSE_TIMEOUT, ibta_time};
use crate::channel::Key;
use crate::connector::Happening;
use crate::message::{ConnParams, Message, PrivateData, SidrReply, SidrRequest};
use crate::message::{REJ_CONSUMER_DEFINED, Request};
use crate::path::PACKET_LIFE_TIME;
pub use incoming::Incoming;

/// Connections and lookups of a process, of which each has a name of 16 bits.
const CONNECTIONS_MAX: usize = 60_000;
/// Answers that are kept for repetitions, of all peers together.
const ANSWERS_MAX: usize = 4096;
/// How long: a peer repeats its request for 74 s.
const ANSWER_TIME: Duration = Duration::from_secs(80);
/// A request that could not be sent so often (in about 2 s) is given up.
const NO_WAY_MAX: u8 = 4;
/// How often a refusal is repeated that a patient peer would ask for too late.
const REFUSAL_RETRIES: u8 = 3;
const REFUSAL_INTERVAL_MAX: Duration = Duration::from_secs(1);
/// Requests of others that are remembered.
const PASSED_ON_MAX: usize = 1024;
/// How often a DREQ is repeated. Linux does it 15 times, 74 s in all; a program that waits for a
/// dead peer's answer has it after 22 s here.
const DREQ_RETRIES: u8 = 7;
/// Peers name their own times; these are the least and the most that is waited for one answer.
const RESPONSE_TIME_MIN: Duration = Duration::from_millis(500);
const RESPONSE_TIME_MAX: Duration = Duration::from_secs(9);

/// What leaves the machine.
#[derive(Debug)]
pub enum Output {
    /// With the connection that it is of, if there is one: [`Machine::no_way`] is about that.
    Send(Option<u32>, MadPath, Box<[u8; MAD_BYTES]>),
    /// For the process with this tag, or for all others.
    PassOn(Option<u16>, MadPath, Box<[u8; MAD_BYTES]>),
    Event(Key, Happening),
}

/// Datagrams that had no effect, by reason.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[allow(dead_code)] // Read in tests and debuggers.
pub struct Counters {
    /// No message of connection management, or one with impossible fields.
    pub malformed: u64,
    /// A name that is not known, from somebody else than the peer, or wrong in this state.
    pub misplaced: u64,
    /// Seen before.
    pub repeated: u64,
    /// No room.
    pub overflow: u64,
}

/// Connections of one process over one queue pair 1.
pub struct Machine {
    /// The upper 16 bits of all names.
    tag: u16,
    ca_guid: u64,
    /// The path MTU's code that the port has.
    mtu: u8,
    last_name: u16,
    last_transaction: u64,
    connections: HashMap<u32, Connection>,
    /// By the peer and its name for the connection, where the peer's request began it.
    by_peer: HashMap<(Gid, u32), u32>,
    by_queue_pair: HashMap<(Gid, u32), u32>,
    /// Requests that another process of this host is to answer: peer, name, transaction.
    passed_on: VecDeque<(Gid, u32, u64)>,
    answers: VecDeque<u32>,
    timers: BTreeSet<(Instant, u32)>,
    outputs: VecDeque<Output>,
    pub counters: Counters,
}

impl Machine {
    /// `seed` is random: names of an earlier process with the same tag should not come again.
    pub fn new(tag: u16, ca_guid: u64, mtu: u8, seed: u64) -> Machine {
        Machine {
            tag,
            ca_guid,
            mtu,
            last_name: seed as u16,
            last_transaction: seed >> 16,
            connections: HashMap::new(),
            by_peer: HashMap::new(),
            by_queue_pair: HashMap::new(),
            passed_on: VecDeque::new(),
            answers: VecDeque::new(),
            timers: BTreeSet::new(),
            outputs: VecDeque::new(),
            counters: Counters::default(),
        }
    }

    /// What is to be sent and told now; call until there is nothing.
    pub fn poll(&mut self) -> Option<Output> {
        self.outputs.pop_front()
    }

    /// When [`Machine::tick`] is to be called.
    pub fn deadline(&self) -> Option<Instant> {
        self.timers.first().map(|(deadline, _)| *deadline)
    }

    /// A connection to be; [`Machine::command`] with a request begins it. `None`: too many.
    pub fn open(&mut self, key: Key, path: MadPath) -> Option<u32> {
        let id = self.free_name()?;
        self.connections.insert(id, Connection::new(id, key, path));
        Some(id)
    }

    /// The local ACK timeout of a connection's path.
    pub fn ack_timeout(&self, id: u32) -> Option<u8> {
        let connection = self.connections.get(&id)?;
        (connection.ack_timeout > 0).then_some(connection.ack_timeout)
    }

    /// What the owner says. What does not fit the state is not said: the peer was faster, and the
    /// owner has heard of it or will.
    pub fn command(&mut self, now: Instant, id: u32, message: &Message) {
        let Some(mut connection) = self.connections.remove(&id) else {
            return;
        };
        let c = &mut connection;
        match (c.state, message) {
            (State::Idle, Message::Request(request)) => self.connect(now, c, request),
            (State::Idle, Message::SidrRequest(request)) => self.look_up(now, c, request),
            (State::ReqReceived, Message::Reply { params, private }) => {
                self.reply(now, c, params, private);
            }
            (State::RepReceived, Message::ReadyToUse) => {
                self.send(c, c.rtu());
                c.enter(State::Established, None);
            }
            (
                State::ReqSent | State::ReqReceived | State::RepSent | State::RepReceived,
                Message::Reject { reason, private },
            ) => self.refuse(now, c, *reason, private.as_slice()),
            (State::SidrReqReceived, Message::SidrReply(reply)) => {
                self.answer_lookup(now, c, reply);
            }
            (State::SidrReqReceived, Message::Reject { private, .. }) => {
                self.answer(now, c, c.sidr_refusal(private.as_slice()));
            }
            (
                State::RepSent | State::RepReceived | State::Established,
                Message::DisconnectRequest,
            ) => self.disconnect(now, c),
            _ => {}
        }
        self.put(connection);
    }

    /// Passive side: data came before RTU (IBTA 12.9.7.2, communication established).
    pub fn communication_established(&mut self, id: u32) {
        if let Some(mut connection) = self.connections.remove(&id) {
            if connection.state == State::RepSent {
                connection.enter(State::Established, None);
            }
            self.put(connection);
        }
    }

    /// The owner lets go of a connection: the peer is told what it has to know, and messages
    /// that need an answer are still sent again.
    pub fn release(&mut self, now: Instant, id: u32) {
        let Some(mut connection) = self.connections.remove(&id) else {
            return;
        };
        let c = &mut connection;
        match c.state {
            State::Idle | State::SidrReqSent => c.enter(State::Gone, None),
            State::ReqReceived => self.refuse(now, c, REJ_CONSUMER_DEFINED, &[]),
            State::ReqSent | State::RepSent | State::RepReceived => {
                self.refuse(now, c, RejectReason::Timeout.code(), &[]);
            }
            State::SidrReqReceived => self.answer(now, c, c.sidr_refusal(&[])),
            State::Established => self.disconnect(now, c),
            State::DreqSent | State::TimeWait | State::Answered | State::Gone => {}
        }
        c.key = None;
        self.put(connection);
    }

    /// A datagram of a connection could not be sent: there is no way to the peer now. A request is
    /// given up when there is none for a while; everything else goes on as after a loss.
    pub fn no_way(&mut self, now: Instant, id: u32) {
        let Some(mut connection) = self.connections.remove(&id) else {
            return;
        };
        let c = &mut connection;
        if matches!(c.state, State::ReqSent | State::SidrReqSent) {
            c.no_way += 1;
            if c.no_way >= NO_WAY_MAX {
                self.give_up(now, c);
            }
        }
        self.put(connection);
    }

    /// Lets go of everything that is known to an owner.
    pub fn release_all(&mut self, now: Instant) {
        let owned = self.connections.values().filter(|c| c.key.is_some());
        let ids: Vec<u32> = owned.map(|c| c.local_id).collect();
        for id in ids {
            self.release(now, id);
        }
    }

    /// Whether a peer still has to agree to the end of its connection.
    pub fn disconnecting(&self) -> bool {
        let mut connections = self.connections.values();
        connections.any(|connection| connection.state == State::DreqSent)
    }

    /// Does what is due.
    pub fn tick(&mut self, now: Instant) {
        while let Some(&(deadline, id)) = self.timers.first() {
            if deadline > now {
                return;
            }
            self.timers.remove(&(deadline, id));
            let Some(mut connection) = self.connections.remove(&id) else {
                continue;
            };
            let c = &mut connection;
            c.timer = None;
            match c
                .resend
                .as_mut()
                .map(|resend| (resend.due(now), &resend.mad))
            {
                Some((Due::Send, mad)) => {
                    let again = Output::Send(Some(id), c.path, mad.clone());
                    self.outputs.push_back(again);
                }
                Some((Due::GiveUp, _)) => self.give_up(now, c),
                None => c.enter(State::Gone, None),
            }
            self.put(connection);
        }
    }

    fn give_up(&mut self, now: Instant, c: &mut Connection) {
        match c.state {
            State::ReqSent | State::RepSent => {
                self.refuse(now, c, RejectReason::Timeout.code(), &[]);
                self.tell(c, Happening::Unreachable);
            }
            State::SidrReqSent => {
                self.tell(c, Happening::Unreachable);
                c.enter(State::Gone, None);
            }
            State::DreqSent => {
                self.tell(c, Happening::DisconnectTimedOut);
                self.wait_out(now, c);
            }
            State::Answered => c.resend = None,
            _ => c.enter(State::Gone, None),
        }
    }

    fn connect(&mut self, now: Instant, c: &mut Connection, request: &Request) {
        c.transaction = self.transaction();
        c.qp_type = request.qp_type;
        c.local_qpn = request.params.qp_num;
        c.mtu = request.mtu;
        c.ack_timeout = format::ack_timeout(format::ACK_DELAY, PACKET_LIFE_TIME);
        c.response_time = ibta_time(RESPONSE_TIMEOUT) + ibta_time(PACKET_LIFE_TIME) * 2;
        let mad = format::req(c, self.ca_guid, request, c.transaction);
        self.send_until_answered(now, c, mad, State::ReqSent);
    }

    fn look_up(&mut self, now: Instant, c: &mut Connection, request: &SidrRequest) {
        c.transaction = self.transaction();
        let mad = format::sidr_req(c, request, c.transaction);
        self.send_until_answered(now, c, mad, State::SidrReqSent);
    }

    fn reply(
        &mut self,
        now: Instant,
        c: &mut Connection,
        params: &ConnParams,
        private: &PrivateData,
    ) {
        c.local_qpn = params.qp_num;
        let mad = format::rep(c, self.ca_guid, params, private);
        self.send_until_answered(now, c, mad, State::RepSent);
    }

    fn answer_lookup(&mut self, now: Instant, c: &mut Connection, reply: &SidrReply) {
        let mad = format::sidr_rep(c, reply);
        self.answer(now, c, mad);
    }

    fn disconnect(&mut self, now: Instant, c: &mut Connection) {
        let mad = c.dreq(self.transaction());
        c.retries = DREQ_RETRIES;
        self.send_until_answered(now, c, mad, State::DreqSent);
    }

    fn refuse(&mut self, now: Instant, c: &mut Connection, reason: u16, private: &[u8]) {
        let reason = RejectReason::from_code(reason);
        // A peer that was not heard of yet finds its connection by the adapter (IBTA 12.6.7.2).
        let guid = self.ca_guid.to_be_bytes();
        let info: &[u8] = match reason {
            RejectReason::Timeout => &guid,
            _ => &[],
        };
        let mad = c.rej(reason, info, private);
        self.answer(now, c, mad);
    }

    /// Sends what ends it for this side, and keeps it for when the peer asks again.
    fn answer(&mut self, now: Instant, c: &mut Connection, mad: Option<[u8; MAD_BYTES]>) {
        self.send(c, mad);
        c.answer = mad.map(Box::new);
        self.linger(now, c);
        if let (true, Some(mad)) = (c.peer_waits, mad) {
            let again = Resend::new(mad, now, REFUSAL_RETRIES, REFUSAL_INTERVAL_MAX);
            c.resend = Some(again);
        }
    }

    /// Keeps the answer, or the fact that there is none.
    fn linger(&mut self, now: Instant, c: &mut Connection) {
        c.enter(State::Answered, Some(now + ANSWER_TIME));
        self.answers.push_back(c.local_id);
        while self.answers.len() > ANSWERS_MAX {
            let Some(oldest) = self.answers.pop_front() else {
                return;
            };
            if let Some(mut connection) = self.connections.remove(&oldest) {
                if connection.state == State::Answered {
                    connection.enter(State::Gone, None);
                }
                self.put(connection);
            }
        }
    }

    /// It is disconnected (IBTA 12.9.8.4).
    fn wait_out(&mut self, now: Instant, c: &mut Connection) {
        let time = ibta_time(c.ack_timeout.max(PACKET_LIFE_TIME + 1)).min(RESPONSE_TIME_MAX);
        c.enter(State::TimeWait, Some(now + time));
    }

    /// Sends a message that needs an answer. One that cannot be made is like a peer that does not
    /// answer.
    fn send_until_answered(
        &mut self,
        now: Instant,
        c: &mut Connection,
        mad: Option<[u8; MAD_BYTES]>,
        state: State,
    ) {
        self.send(c, mad);
        c.enter(state, None);
        match mad {
            Some(mad) => c.resend = Some(Resend::new(mad, now, c.retries, c.response_time)),
            None => self.give_up(now, c),
        }
    }

    fn send(&mut self, c: &Connection, mad: Option<[u8; MAD_BYTES]>) {
        if let Some(mad) = mad {
            let output = Output::Send(Some(c.local_id), c.path, Box::new(mad));
            self.outputs.push_back(output);
        }
    }

    /// For nobody's connection.
    fn send_on(&mut self, path: MadPath, mad: Option<[u8; MAD_BYTES]>) {
        if let Some(mad) = mad {
            let output = Output::Send(None, path, Box::new(mad));
            self.outputs.push_back(output);
        }
    }

    fn tell(&mut self, c: &Connection, happening: Happening) {
        if let Some(key) = c.key {
            self.outputs.push_back(Output::Event(key, happening));
        }
    }

    /// Puts a connection back that was taken out to be changed, or forgets it.
    fn put(&mut self, mut c: Connection) {
        let deadline = c.deadline();
        if deadline != c.timer {
            if let Some(old) = c.timer {
                self.timers.remove(&(old, c.local_id));
            }
            if let Some(new) = deadline {
                self.timers.insert((new, c.local_id));
            }
            c.timer = deadline;
        }
        if c.state == State::Gone {
            forget(&mut self.by_peer, (c.path.destination, c.remote_id), &c);
        }
        if !c.holds_queue_pair() {
            let queue_pair = (c.path.destination, c.remote_qpn);
            forget(&mut self.by_queue_pair, queue_pair, &c);
        }
        if c.state != State::Gone || c.key.is_some() {
            self.connections.insert(c.local_id, c);
        }
    }

    fn free_name(&mut self) -> Option<u32> {
        if self.connections.len() >= CONNECTIONS_MAX {
            self.counters.overflow += 1;
            return None;
        }
        loop {
            self.last_name = self.last_name.wrapping_add(1);
            let name = u32::from(self.tag) << 16 | u32::from(self.last_name);
            // There are more names than connections.
            if name != 0 && !self.connections.contains_key(&name) {
                return Some(name);
            }
        }
    }

    fn transaction(&mut self) -> u64 {
        self.last_transaction = self.last_transaction.wrapping_add(1);
        u64::from(self.tag) << 48 | self.last_transaction & 0xffff_ffff_ffff
    }

    #[cfg(test)]
    pub fn len(&self) -> usize {
        self.connections.len()
    }

    #[cfg(test)]
    pub fn tables_are_empty(&self) -> bool {
        self.by_peer.is_empty() && self.by_queue_pair.is_empty() && self.timers.is_empty()
    }

    /// As if the process had begun anew.
    #[cfg(test)]
    pub fn forget_all(&mut self) {
        self.connections.clear();
        self.timers.clear();
    }

    #[cfg(test)]
    pub fn state(&self, id: u32) -> Option<State> {
        self.connections.get(&id).map(|c| c.state)
    }
}

/// Takes a name out of a table if it is this connection's.
fn forget(table: &mut HashMap<(Gid, u32), u32>, name: (Gid, u32), c: &Connection) {
    if table.get(&name) == Some(&c.local_id) {
        table.remove(&name);
    }
}
