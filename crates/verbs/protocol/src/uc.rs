//! Unreliable connections (IBTA 9.8.2): SENDs and WRITEs, in order or not at all.

use alloc::collections::VecDeque;

use sluice_wire::opcode::{Position, Service};
use sluice_wire::{Ecn, Mtu, Packet, Psn, Qpn};

use crate::assembly::Assembly;
use crate::congestion::{Congestion, RateConfig};
use crate::counters::Counters;
use crate::memory::Memory;
use crate::request::{Completion, PostError, Request, Status};
use crate::segment::Path;
use crate::sequence::Sequence;
use crate::time::Instant;
use crate::transmit::Transmit;

/// What the two ends have agreed on; as in [`crate::rc::Config`].
#[derive(Clone, Copy, Debug)]
#[allow(missing_docs)]
pub struct Config {
    pub destination: Qpn,
    pub pkey: u16,
    pub mtu: Mtu,
    pub send_psn: Psn,
    pub receive_psn: Psn,
    pub depth: usize,
    pub rate: Option<RateConfig>,
}

/// Packets before the expected one that are taken for copies or for overtaken ones. Others start
/// anew: a stray number must not make a connection deaf for half of the numbers that there are.
const STALE_MAX: u64 = 1024;

/// An unreliable connection. A request is complete when its last packet was handed out.
#[derive(Debug)]
pub struct Connection {
    path: Path,
    /// What we send.
    sending: Sequence,
    receiving: Sequence,
    /// The next packet to send, and its place in the first request.
    next: u64,
    place: u32,
    queue: VecDeque<Request>,
    done: VecDeque<Completion>,
    depth: usize,
    /// The packet that comes next.
    expected: u64,
    /// Packets up to the next beginning of a message are dropped (IBTA 9.8.2.2.1).
    dropping: bool,
    assembly: Assembly,
    congestion: Congestion,
    counters: Counters,
}

impl Connection {
    /// In the states RTR and RTS.
    pub fn new(config: &Config) -> Self {
        Self {
            path: Path {
                service: Service::Uc,
                destination: config.destination,
                pkey: config.pkey,
                mtu: config.mtu,
                single_writes: false,
            },
            sending: Sequence::new(config.send_psn),
            receiving: Sequence::new(config.receive_psn),
            next: 0,
            place: 0,
            queue: VecDeque::new(),
            done: VecDeque::new(),
            depth: config.depth,
            expected: 0,
            dropping: false,
            assembly: Assembly::new(config.mtu),
            congestion: Congestion::new(config.rate),
            counters: Counters::default(),
        }
    }

    /// In the state RTS, if the first packet's number was not known before. To be called before
    /// anything is posted.
    pub fn ready_to_send(&mut self, config: &Config) {
        self.sending = Sequence::new(config.send_psn);
        self.next = 0;
    }

    /// Takes a request.
    pub fn post(&mut self, request: Request) -> Result<(), PostError> {
        if !request.is_legal() || !self.path.has(&request) {
            return Err(PostError::Illegal);
        }
        if self.queue.len() + self.done.len() >= self.depth {
            return Err(PostError::Full);
        }
        self.queue.push_back(request);
        Ok(())
    }

    /// The next packet to send. To be called until there is none, after every other call.
    pub fn transmit(&mut self, now: Instant) -> Option<Transmit> {
        let (destination, pkey) = (self.path.destination, self.path.pkey);
        if let Some(packet) = self.congestion.notifier.transmit(destination, pkey) {
            self.counters.notifications_sent += 1;
            return Some(packet);
        }
        if !self.congestion.may_send(now) {
            return None;
        }
        let request = *self.queue.front()?;
        let psn = self.sending.psn(self.next);
        let packet = self.path.packet(&request, self.place, psn)?;
        self.next += 1;
        self.place += 1;
        self.counters.request_packets += 1;
        self.congestion.sent(now, packet.link_bytes());
        if self.place >= request.packets(self.path.mtu) {
            self.finish(Status::Success);
        }
        Some(packet)
    }

    /// The first request has ended.
    fn finish(&mut self, status: Status) {
        if let Some(request) = self.queue.pop_front() {
            self.place = 0;
            self.done.push_back(Completion {
                seq: request.seq,
                status,
                length: request.length,
            });
        }
    }

    /// The payload of the packet that [`Connection::transmit`] gave cannot be had: the request
    /// fails, and the peer gets half a message at most.
    pub fn fail_request(&mut self, seq: u64) {
        if let Some(done) = self.done.back_mut().filter(|done| done.seq == seq) {
            done.status = Status::LocalProtection;
        } else if self.queue.front().is_some_and(|front| front.seq == seq) {
            self.finish(Status::LocalProtection);
        }
    }

    /// When to call [`Connection::transmit`] at the latest, if nothing else happens.
    pub fn deadline(&self) -> Option<Instant> {
        (!self.queue.is_empty()).then(|| self.congestion.ready_at())
    }

    /// The next request that has ended.
    pub fn completion(&mut self) -> Option<Completion> {
        self.done.pop_front()
    }

    /// Whether [`Connection::completion`] has one.
    pub fn has_completion(&self) -> bool {
        !self.done.is_empty()
    }

    /// A packet came for this queue pair; as in [`crate::rc::Connection::receive`].
    pub fn receive(
        &mut self,
        now: Instant,
        packet: &Packet<'_>,
        ecn: Ecn,
        memory: &mut impl Memory,
    ) {
        if ecn == Ecn::Congestion {
            self.counters.marked_packets += 1;
            self.congestion.notifier.received(now, ecn);
        }
        match packet.bth().opcode.service() {
            Service::Uc => self.request(packet, memory),
            Service::Cnp => {
                self.counters.notifications += 1;
                self.congestion.notified(now);
            }
            Service::Rc | Service::Ud | Service::Xrc | Service::Manufacturer => {
                self.counters.misdirected += 1;
            }
        }
    }

    fn request(&mut self, packet: &Packet<'_>, memory: &mut impl Memory) {
        let headers = packet.headers();
        let Some(index) = self.receiving.index(headers.bth.psn, self.expected) else {
            self.counters.bad_duplicates += 1;
            return;
        };
        let begins = matches!(
            headers.bth.opcode.position(),
            Position::First | Position::Only
        );
        if index < self.expected && self.expected - index <= STALE_MAX {
            self.counters.duplicate_requests += 1;
            return;
        }
        if index != self.expected {
            // Something was lost or overtaken. Without acknowledgements nobody sends it again, so
            // that wherever a message begins is a place to go on (IBTA 9.8.2.2.1).
            self.counters.out_of_sequence += 1;
            self.give_up();
        }
        self.expected = index + 1;
        if begins {
            // A message before it that has no end is over.
            if !self.assembly.may_come(packet) {
                self.give_up();
            }
            self.dropping = false;
        }
        if self.dropping {
            return;
        }
        let added = self.assembly.may_come(packet) && self.assembly.add(packet, memory).is_ok();
        if !added {
            // No receive, no right, wrong length: all the same to the sender (IBTA 9.8.2.2.3).
            self.give_up();
        }
    }

    /// The message under way is dropped; its receive is for the next one.
    fn give_up(&mut self) {
        if !core::mem::replace(&mut self.dropping, true) {
            self.counters.messages_dropped += 1;
        }
        self.assembly.drop_message();
    }

    /// The queue pair has left RTS: what was posted is flushed.
    pub fn stop(&mut self) {
        while !self.queue.is_empty() {
            self.finish(Status::Flushed);
        }
    }

    /// The queue pair receives no more: a message under way is dropped and its receive flushed.
    pub fn stop_receiving(&mut self, memory: &mut impl Memory) {
        self.assembly.abort(memory);
        self.dropping = true;
    }

    /// What has happened so far.
    pub fn counters(&self) -> &Counters {
        &self.counters
    }
}
