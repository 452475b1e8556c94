//! Unreliable datagrams (IBTA 9.8.3): SENDs of one packet, to anybody.

use alloc::collections::VecDeque;

use sluice_wire::opcode::Service;
use sluice_wire::{Mtu, Packet, Psn, Qpn};

use crate::assembly::Assembly;
use crate::counters::Counters;
use crate::memory::Memory;
use crate::request::{Completion, Datagram, PostError, Request, Status};
use crate::segment::Path;
use crate::transmit::Transmit;

/// What a datagram queue pair is.
#[derive(Clone, Copy, Debug)]
pub struct Config {
    /// Its own number.
    pub source: Qpn,
    /// The partition.
    pub pkey: u16,
    /// Of the port: the longest datagram.
    pub mtu: Mtu,
    /// What datagrams must carry to be taken (IBTA 10.2.5).
    pub qkey: u32,
    /// Number of the first datagram that is sent. Receivers do not look at it (IBTA 9.8.3.2).
    pub send_psn: Psn,
    /// Requests that may be posted before a completion is taken.
    pub depth: usize,
}

/// A datagram queue pair. A request is complete when its packet was handed out.
///
/// The network headers that a receive begins with are the driver's: it puts them into the first
/// 40 bytes, and takes the offset of [`Memory::scatter`] to count from there.
#[derive(Debug)]
pub struct Endpoint {
    path: Path,
    source: Qpn,
    qkey: u32,
    psn: Psn,
    queue: VecDeque<(Request, Datagram)>,
    done: VecDeque<Completion>,
    depth: usize,
    assembly: Assembly,
    counters: Counters,
}

impl Endpoint {
    /// In the states RTR and RTS.
    pub fn new(config: &Config) -> Self {
        Self {
            path: Path {
                service: Service::Ud,
                destination: Qpn::default(),
                pkey: config.pkey,
                mtu: config.mtu,
                single_writes: false,
            },
            source: config.source,
            qkey: config.qkey,
            psn: config.send_psn,
            queue: VecDeque::new(),
            done: VecDeque::new(),
            depth: config.depth,
            assembly: Assembly::new(config.mtu),
            counters: Counters::default(),
        }
    }

    /// In the state RTS: the number of the first datagram.
    pub fn ready_to_send(&mut self, psn: Psn) {
        self.psn = psn;
    }

    /// What datagrams must carry from now on.
    pub fn set_qkey(&mut self, qkey: u32) {
        self.qkey = qkey;
    }

    /// Takes a SEND of at most the MTU.
    pub fn post(&mut self, request: Request, to: Datagram) -> Result<(), PostError> {
        if !self.path.has(&request) || request.length as usize > self.path.mtu.bytes() {
            return Err(PostError::Illegal);
        }
        if self.queue.len() + self.done.len() >= self.depth {
            return Err(PostError::Full);
        }
        self.queue.push_back((request, to));
        Ok(())
    }

    /// Whether a request waits for [`Endpoint::transmit`].
    pub fn has_request(&self) -> bool {
        !self.queue.is_empty()
    }

    /// The next packet to send. To be called until there is none, after every post.
    pub fn transmit(&mut self) -> Option<Transmit> {
        let (request, to) = self.queue.pop_front()?;
        let packet = self.path.datagram(&request, to, self.source, self.psn);
        self.psn = self.psn.after(1);
        self.counters.request_packets += 1;
        self.finish(&request, Status::Success);
        packet
    }

    fn finish(&mut self, request: &Request, status: Status) {
        self.done.push_back(Completion {
            seq: request.seq,
            status,
            length: request.length,
        });
    }

    /// The payload of the packet that [`Endpoint::transmit`] gave cannot be had.
    pub fn fail_request(&mut self, seq: u64) {
        if let Some(done) = self.done.back_mut().filter(|done| done.seq == seq) {
            done.status = Status::LocalProtection;
        }
    }

    /// The next request that has ended.
    pub fn completion(&mut self) -> Option<Completion> {
        self.done.pop_front()
    }

    /// Whether [`Endpoint::completion`] has one.
    pub fn has_completion(&self) -> bool {
        !self.done.is_empty()
    }

    /// A packet came for this queue pair. Whatever is wrong with it, it is dropped (IBTA 9.8.3.2).
    pub fn receive(&mut self, packet: &Packet<'_>, memory: &mut impl Memory) {
        let headers = packet.headers();
        let deth = headers
            .deth
            .filter(|_| headers.bth.opcode.service() == Service::Ud);
        let Some(deth) = deth else {
            self.counters.misdirected += 1;
            return;
        };
        if deth.qkey != self.qkey {
            self.counters.bad_qkeys += 1;
        } else if !self.assembly.may_come(packet) || self.assembly.add(packet, memory).is_err() {
            self.counters.messages_dropped += 1;
        }
    }

    /// The queue pair has left RTS: what was posted is flushed.
    pub fn stop(&mut self) {
        while let Some((request, _)) = self.queue.pop_front() {
            self.finish(&request, Status::Flushed);
        }
    }

    /// What has happened so far.
    pub fn counters(&self) -> &Counters {
        &self.counters
    }
}
