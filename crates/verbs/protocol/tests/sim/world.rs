//! Hosts, connections between them, and time.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::net::Ipv4Addr;

use sluice_planner::Scheduler;
use sluice_protocol::rc::{Config, Connection};
use sluice_protocol::{Completion, Instant, Operation, Payload, Refusal, Status, Transmit};
use sluice_wire::ethernet::{self, EtherType, Mac};
use sluice_wire::extended::RnrTimer;
use sluice_wire::frame::{OVERHEAD_MAX, Outer};
use sluice_wire::{Ecn, Frame, Headers, Ip, Mtu, Psn, Qpn, cnp, ipv4};

use super::ledger::Ledger;
use super::network::{Faults, Flying, Port};
use super::program::Op;
use super::random::Random;

/// Packets in a frame at most: MTU, headers.
const FRAME_BYTES_MAX: usize = 4096 + 4 + Headers::BYTES_MAX + OVERHEAD_MAX;

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Event {
    Arrive { host: usize, frame: Flying },
    Pump { host: usize },
    Receives { host: usize, end: usize, count: u64 },
}

/// One end of a connection.
pub struct End {
    pub connection: Connection,
    pub ledger: Ledger,
    /// Host and end of the peer.
    peer: (usize, usize),
    program: Vec<Op>,
    posted: usize,
    pub completions: Vec<Completion>,
    /// When each came, nanoseconds.
    pub completed_at: Vec<u64>,
    /// What a READ of what was written must give.
    snapshot: Option<Vec<u8>>,
}

impl End {
    pub fn is_done(&self) -> bool {
        let ended = self.completions.len();
        ended == self.program.len() || (self.connection.has_failed() && ended == self.posted)
    }

    pub fn all_succeeded(&self) -> bool {
        self.completions
            .iter()
            .all(|completion| completion.status == Status::Success)
    }
}

pub struct Host {
    pub ends: Vec<End>,
    scheduler: Scheduler,
    /// Bytes per second that it can send, 0 without limit; it does not fill its queue.
    pub nic_rate: u64,
    nic_free_at: u64,
    /// How long it takes at most until it looks at what has come; it answers to all of it then.
    pub slow_nanos: u64,
    pump_at: Option<u64>,
    pub bad_frames: u64,
}

pub struct World {
    pub now: u64,
    pub hosts: Vec<Host>,
    pub ports: Vec<Port>,
    pub random: Random,
    events: BinaryHeap<Reverse<(u64, u64, Event)>>,
    order: u64,
    /// Frames carried.
    pub frames: u64,
}

/// A connection's attributes that most tests want.
pub fn config(mtu: Mtu) -> Config {
    Config {
        destination: Qpn::new(0),
        pkey: 0xffff,
        mtu,
        send_psn: Psn::new(0),
        receive_psn: Psn::new(0),
        depth: 32,
        window: 64,
        max_rd_atomic: 4,
        max_dest_rd_atomic: 4,
        timeout: 12,
        retry_cnt: 7,
        rnr_retry: 7,
        min_rnr_timer: RnrTimer::from_code(1),
        extended: false,
        early: false,
        single_writes: false,
        rate: None,
    }
}

impl World {
    pub fn new(hosts: usize, faults: Faults, seed: u64) -> Self {
        let host = |_| Host {
            ends: Vec::new(),
            scheduler: Scheduler::new(0),
            nic_rate: 0,
            nic_free_at: 0,
            slow_nanos: 0,
            pump_at: None,
            bad_frames: 0,
        };
        Self {
            now: 0,
            hosts: (0..hosts).map(host).collect(),
            ports: (0..hosts).map(|_| Port::new(faults)).collect(),
            random: Random::new(seed),
            events: BinaryHeap::new(),
            order: 0,
            frames: 0,
        }
    }

    fn at(&mut self, time: u64, event: Event) {
        self.order += 1;
        self.events.push(Reverse((time, self.order, event)));
    }

    /// Connects two hosts. Both ends have the attributes, except for number and sequence, which
    /// are set here. Each carries out one program.
    pub fn connect(&mut self, hosts: [usize; 2], base: &Config, programs: [Vec<Op>; 2]) {
        self.connect_unlike(hosts, [base, base], programs);
    }

    /// As [`World::connect`], with attributes for each end.
    pub fn connect_unlike(
        &mut self,
        hosts: [usize; 2],
        bases: [&Config; 2],
        programs: [Vec<Op>; 2],
    ) {
        let [a, b] = hosts;
        let ends = [self.hosts[a].ends.len(), self.hosts[b].ends.len()];
        // Half of them wrap soon.
        let psns = [0, 1].map(|_| match self.random.below(2) {
            0 => Psn::new(0xff_ffff - self.random.below(200) as u32),
            _ => Psn::new(self.random.next() as u32),
        });
        let seed = self.random.next();
        for side in 0..2 {
            let other = 1 - side;
            let config = Config {
                destination: Qpn::new(ends[other] as u32 + 16),
                send_psn: psns[side],
                receive_psn: psns[other],
                ..*bases[side]
            };
            let mut ledger = Ledger::new(programs[other].clone(), config.mtu, seed + side as u64);
            for op in &programs[side] {
                ledger.asked.insert(op.request.seq, op.request.length);
            }
            ledger.receives = u64::MAX;
            self.hosts[hosts[side]].ends.push(End {
                connection: Connection::new(&config),
                ledger,
                peer: (hosts[other], ends[other]),
                program: programs[side].clone(),
                posted: 0,
                completions: Vec::new(),
                completed_at: Vec::new(),
                snapshot: None,
            });
        }
        self.wake(a, ends[0]);
        self.wake(b, ends[1]);
    }

    /// That end has so few receives, and gets more at random times.
    pub fn scarce_receives(&mut self, host: usize, end: usize, total: u64, pause_nanos: u64) {
        self.hosts[host].ends[end].ledger.receives = 0;
        let (mut left, mut at) = (total, self.now);
        while left > 0 {
            let count = (1 + self.random.below(3)).min(left);
            at += self.random.below(pause_nanos);
            left -= count;
            self.at(at, Event::Receives { host, end, count });
        }
    }

    fn wake(&mut self, host: usize, end: usize) {
        self.hosts[host].scheduler.wake(end);
        let slow = self.hosts[host].slow_nanos;
        let delay = if slow > 0 { self.random.below(slow) } else { 0 };
        self.pump_at(host, self.now + delay);
    }

    fn pump_at(&mut self, host: usize, time: u64) {
        if self.hosts[host].pump_at.is_none_or(|at| time < at) {
            self.hosts[host].pump_at = Some(time);
            self.at(time, Event::Pump { host });
        }
    }

    /// Lets time pass until all programs are done, or until `until`. Whether they are.
    pub fn run(&mut self, until: u64) -> bool {
        while !self.is_done() {
            if !self.step(until) {
                return false;
            }
        }
        true
    }

    /// Lets time pass until `until`, whatever happens.
    pub fn pass(&mut self, until: u64) {
        while self.step(until) {}
        self.now = self.now.max(until);
    }

    fn step(&mut self, until: u64) -> bool {
        match self.events.peek() {
            Some(Reverse((time, _, _))) if *time <= until => {}
            _ => return false,
        }
        let Some(Reverse((time, _, event))) = self.events.pop() else {
            return false;
        };
        self.now = time;
        match event {
            Event::Arrive { host, frame } => self.arrive(host, &frame),
            Event::Pump { host } => {
                if self.hosts[host].pump_at == Some(time) {
                    self.hosts[host].pump_at = None;
                    self.pump(host);
                }
            }
            Event::Receives { host, end, count } => {
                self.hosts[host].ends[end].ledger.receives += count;
            }
        }
        true
    }

    pub fn is_done(&self) -> bool {
        let mut ends = self.hosts.iter().flat_map(|host| &host.ends);
        ends.all(End::is_done)
    }

    fn arrive(&mut self, host: usize, frame: &Flying) {
        let now = Instant::from_nanos(self.now);
        let Ok(parsed) = Frame::parse(&frame.bytes) else {
            self.hosts[host].bad_frames += 1;
            return;
        };
        let Some(end) = parsed.packet().bth().destination.get().checked_sub(16) else {
            return;
        };
        let ecn = match parsed.ip().ecn() {
            Ecn::NotCapable => Ecn::NotCapable,
            _ if frame.marked => Ecn::Congestion,
            ecn => ecn,
        };
        if let Some(end) = self.hosts[host].ends.get_mut(end as usize) {
            let ledger = &mut end.ledger;
            end.connection.receive(now, parsed.packet(), ecn, ledger);
        }
        self.collect(host, end as usize);
        self.wake(host, end as usize);
    }

    /// Posts what may be posted, and looks at what has ended.
    fn collect(&mut self, host: usize, end: usize) {
        if end >= self.hosts[host].ends.len() {
            return;
        }
        loop {
            self.post(host, end);
            let Some(completion) = self.hosts[host].ends[end].connection.completion() else {
                return;
            };
            self.check(host, end, completion);
            let now = self.now;
            let end = &mut self.hosts[host].ends[end];
            end.completions.push(completion);
            end.completed_at.push(now);
        }
    }

    fn post(&mut self, host: usize, end: usize) {
        let (peer_host, peer_end) = self.hosts[host].ends[end].peer;
        loop {
            let end = &self.hosts[host].ends[end];
            let Some(op) = end.program.get(end.posted) else {
                return;
            };
            let quiet = end.completions.len() == end.posted;
            let after_alone = end.posted > 0 && end.program[end.posted - 1].alone;
            if (op.alone || after_alone) && !quiet {
                return;
            }
            let (request, alone) = (op.request, op.alone);
            let snapshot = match request.operation {
                Operation::Read(remote) => self.hosts[peer_host].ends[peer_end]
                    .ledger
                    .bytes(remote, request.length as usize)
                    .filter(|_| alone)
                    .map(<[u8]>::to_vec),
                _ => None,
            };
            let end = self.end_mut(host, end.peer);
            if end.connection.post(request).is_err() {
                return;
            }
            end.posted += 1;
            if snapshot.is_some() {
                end.snapshot = snapshot;
            }
        }
    }

    /// The end at that host whose peer this is.
    fn end_mut(&mut self, host: usize, peer: (usize, usize)) -> &mut End {
        self.hosts[host]
            .ends
            .iter_mut()
            .find(|end| end.peer == peer)
            .expect("connected")
    }

    /// Completions come in order, and only for what has happened.
    fn check(&mut self, host: usize, end: usize, completion: Completion) {
        let end = &self.hosts[host].ends[end];
        let place = end.completions.len();
        let op = &end.program[place];
        assert_eq!(completion.seq, op.request.seq, "out of order");
        if completion.status != Status::Success {
            return;
        }
        assert_eq!(completion.length, op.request.length);
        let peer = &self.hosts[end.peer.0].ends[end.peer.1].ledger;
        let empty = Vec::new();
        let answer = end.ledger.answers.get(&completion.seq).unwrap_or(&empty);
        match op.request.operation {
            Operation::Read(remote) => {
                let length = op.request.length as usize;
                let wanted = match &end.snapshot {
                    Some(snapshot) if op.alone => snapshot,
                    _ => peer.bytes(remote, length).expect("in the region"),
                };
                assert!(answer == wanted, "READ {place} gave other bytes");
            }
            Operation::CompareSwap { .. } | Operation::FetchAdd { .. } => {
                assert_eq!(
                    *answer,
                    peer.originals[&completion.seq].to_ne_bytes(),
                    "atomic {place}"
                );
            }
            _ => assert!(
                peer.effects() > completion.seq,
                "complete before it was done"
            ),
        }
    }

    /// Sends what the host's connections have to send.
    fn pump(&mut self, host: usize) {
        loop {
            if self.hosts[host].nic_free_at > self.now {
                let free_at = self.hosts[host].nic_free_at;
                return self.pump_at(host, free_at);
            }
            let now = Instant::from_nanos(self.now);
            let Some(id) = self.hosts[host].scheduler.turn(now) else {
                if let Some(deadline) = self.hosts[host].scheduler.deadline() {
                    self.pump_at(host, deadline.nanos());
                }
                return;
            };
            self.collect(host, id);
            let Host {
                ends, scheduler, ..
            } = &mut self.hosts[host];
            let Some(end) = ends.get_mut(id) else {
                scheduler.idle(id);
                continue;
            };
            end.connection.expire(now);
            match end.connection.transmit(now) {
                Some(packet) => {
                    scheduler.sent(id, packet.link_bytes());
                    let peer = end.peer.0;
                    self.send(host, id, peer, &packet);
                }
                None => match end.connection.deadline() {
                    Some(deadline) => {
                        assert!(deadline > now, "a deadline that does not move");
                        scheduler.wait(id, deadline);
                    }
                    None => scheduler.idle(id),
                },
            }
            self.collect(host, id);
        }
    }

    fn send(&mut self, host: usize, id: usize, peer: usize, packet: &Transmit) {
        let end = &mut self.hosts[host].ends[id];
        let payload = match packet.payload {
            Payload::None => Vec::new(),
            Payload::Notification => cnp::PAYLOAD.to_vec(),
            Payload::Report { length } => {
                let mut report = vec![0; length as usize];
                assert!(end.connection.write_report(&mut report));
                report
            }
            Payload::Request {
                seq,
                offset,
                length,
            } => end.program[seq as usize].data[offset as usize..][..length as usize].to_vec(),
            Payload::Region { remote, length, .. } => {
                match end.ledger.bytes(remote, length as usize) {
                    Some(bytes) => bytes.to_vec(),
                    None => {
                        let psn = packet.headers.bth.psn;
                        return end.connection.refuse_read(psn, Refusal::Access);
                    }
                }
            }
        };
        let mut buffer = [0; FRAME_BYTES_MAX];
        let used = outer(packet.ecn)
            .emit(&packet.headers, &payload, &mut buffer)
            .expect("a legal packet");
        // Preamble, check sequence and gap.
        let work = (used as u64 + 24) * 1_000_000_000;
        if let Some(takes) = work.checked_div(self.hosts[host].nic_rate) {
            self.hosts[host].nic_free_at = self.now + takes;
        }
        self.inject(peer, buffer[..used].to_vec());
    }

    /// A frame goes to a host, from whoever.
    pub fn inject(&mut self, host: usize, frame: Vec<u8>) {
        self.frames += 1;
        for (time, frame) in self.ports[host].carry(self.now, frame, &mut self.random) {
            self.at(time, Event::Arrive { host, frame });
        }
    }
}

pub fn outer(ecn: Ecn) -> Outer {
    Outer {
        ethernet: ethernet::Header {
            destination: Mac([2, 0, 0, 0, 0, 1]),
            source: Mac([2, 0, 0, 0, 0, 2]),
            vlan: None,
            ethertype: EtherType::Ipv4,
        },
        ip: Ip::V4(ipv4::Header {
            dscp: 26,
            ecn,
            identification: 0,
            dont_fragment: true,
            ttl: 64,
            protocol: ipv4::UDP,
            source: Ipv4Addr::new(10, 0, 0, 1),
            destination: Ipv4Addr::new(10, 0, 0, 2),
            payload_bytes: 0,
        }),
        source_port: 0xc123,
    }
}
