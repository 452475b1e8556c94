//! Two ends and a link between them that may do anything to packets.
#![allow(dead_code)]

use std::collections::VecDeque;

use sluice_lab::random::Random;
use sluice_tcp::{
    Config, Connection, End, Instant, MILLISECOND, Received, Segment, State, Transmit,
};
use sluice_wire::Ecn;

/// The byte at an offset of the stream of an end.
pub fn byte(end: usize, offset: u64) -> u8 {
    (offset.wrapping_mul(0x9e37_79b9) >> 13) as u8 ^ (end as u8).wrapping_mul(0x5a)
}

/// An end with its application, which writes so much and reads all.
pub struct Host {
    pub tcp: Connection,
    me: usize,
    ring: Vec<u8>,
    pub to_write: u64,
    pub read: u64,
    pub readable: u64,
    written: u64,
    send_buffer: u64,
    pub lazy: bool,
    /// Ends its stream after the peer's.
    pub waits: bool,
}

impl Host {
    pub fn new(tcp: Connection, me: usize, ring: usize, to_write: u64) -> Self {
        Self {
            tcp,
            me,
            ring: vec![0; ring],
            to_write,
            read: 0,
            readable: 0,
            written: 0,
            send_buffer: 300_000,
            lazy: false,
            waits: false,
        }
    }

    /// Does what the application would: gives what fits, reads and compares what came.
    pub fn work(&mut self, random: &mut Random) {
        let room = self.send_buffer - (self.written - self.tcp.acknowledged());
        let more = room.min(self.to_write - self.written);
        if more > 0 && self.tcp.write(more) {
            self.written += more;
        }
        if self.written == self.to_write && (!self.waits || self.tcp.fin_arrived()) {
            self.tcp.shutdown();
        }
        let there = self.readable - self.read;
        let take = if self.lazy {
            random.below(there + 1)
        } else {
            there
        };
        for offset in self.read..self.read + take {
            let place = offset as usize % self.ring.len();
            assert_eq!(
                self.ring[place],
                byte(1 - self.me, offset),
                "offset {offset}"
            );
        }
        self.read += take;
        self.tcp.read(take);
        assert!(self.tcp.remembered().0 <= 2 * sluice_tcp::SEGMENTS_MAX);
        assert!(self.tcp.remembered().1 <= sluice_tcp::RANGES_MAX);
    }

    pub fn take(&mut self, now: Instant, packet: &Packet) {
        let segment = Segment {
            header: packet.segment.header,
            bytes: packet.bytes.len() as u32,
            ecn: packet.segment.ecn,
        };
        let mut twin = self.tcp.clone();
        let fast = self.tcp.counters().fast;
        let received = self.tcp.receive(now, &segment);
        if self.tcp.counters().fast > fast {
            // The slow path says and does the same.
            assert_eq!(twin.receive_slow(now, &segment), received);
            assert_eq!(twin.timeout(), self.tcp.timeout());
            let mut same = self.tcp.clone();
            for _ in 0..4 {
                assert_eq!(twin.transmit(now), same.transmit(now));
            }
        }
        self.place(&received, &packet.bytes);
    }

    pub fn place(&mut self, received: &Received, bytes: &[u8]) {
        if let Some(place) = &received.place {
            for index in place.payload.clone() {
                let offset = place.offset + u64::from(index - place.payload.start);
                assert!(
                    offset < self.read + self.ring.len() as u64,
                    "beyond the ring"
                );
                assert!(
                    offset >= self.readable,
                    "a byte that was readable is written again"
                );
                let at = offset as usize % self.ring.len();
                self.ring[at] = bytes[index as usize];
            }
        }
        assert!(received.readable >= self.readable);
        assert!(received.acknowledged <= self.written);
        self.readable = received.readable;
    }
}

#[derive(Clone)]
pub struct Packet {
    at: Instant,
    segment: Transmit,
    bytes: Vec<u8>,
}

/// What a link does.
#[derive(Clone, Copy, Debug, Default)]
pub struct Link {
    pub loss_percent: u64,
    pub copy_percent: u64,
    pub reorder_percent: u64,
    pub delay_ms: u64,
    /// Nanoseconds that a byte takes, and how many wait at most; a mark from a third of them.
    pub byte_ns: u64,
    pub queue: u64,
    pub marks: bool,
}

pub struct World {
    pub now: Instant,
    pub hosts: [Host; 2],
    pub link: Link,
    pub random: Random,
    wires: [VecDeque<Packet>; 2],
    free_at: [Instant; 2],
    pub marked: u64,
    pub lost: u64,
}

impl World {
    /// An end that connects and one that accepts when the SYN arrives.
    pub fn new(configs: [Config; 2], bytes: [u64; 2], link: Link, seed: u64) -> Self {
        let mut random = Random::new(seed);
        let now = Instant(MILLISECOND);
        let sequences = [random.next() as u32, random.next() as u32];
        let mut client = Connection::connect(configs[0], sequences[0], random.next() as u32, now);
        let syn = client.transmit(now).expect("a SYN");
        // The SYN's way is not simulated, but takes its time.
        let now = now.after(link.delay_ms * MILLISECOND);
        let segment = Segment {
            header: syn.header,
            bytes: 0,
            ecn: syn.ecn,
        };
        let server = Connection::accept(configs[1], &segment, sequences[1], 7, now).expect("a SYN");
        let rings = configs.map(|config| config.receive_buffer as usize);
        Self {
            now,
            hosts: [
                Host::new(client, 0, rings[0], bytes[0]),
                Host::new(server, 1, rings[1], bytes[1]),
            ],
            link,
            random,
            wires: Default::default(),
            free_at: [now; 2],
            marked: 0,
            lost: 0,
        }
    }

    fn carry(&mut self, from: usize, mut segment: Transmit) {
        let bytes: Vec<u8> = segment
            .payload
            .clone()
            .map(|offset| byte(from, offset))
            .collect();
        if self.random.below(100) < self.link.loss_percent {
            self.lost += 1;
            return;
        }
        let size = 40 + bytes.len() as u64;
        let free = self.free_at[from].max(self.now);
        if let Some(waiting) = free.since(self.now).checked_div(self.link.byte_ns) {
            if waiting > self.link.queue {
                self.lost += 1;
                return;
            }
            if self.link.marks && waiting > self.link.queue / 3 && segment.ecn != Ecn::NotCapable {
                segment.ecn = Ecn::Congestion;
                self.marked += 1;
            }
            self.free_at[from] = free.after(size * self.link.byte_ns);
        }
        let mut at = free.after(size * self.link.byte_ns + self.link.delay_ms * MILLISECOND + 1000);
        if self.random.below(100) < self.link.reorder_percent {
            at = at.after(self.random.below(3 * (self.link.delay_ms + 1)) * MILLISECOND);
        }
        let copies = 1 + u64::from(self.random.below(100) < self.link.copy_percent);
        for _ in 0..copies {
            let packet = Packet {
                at,
                segment: segment.clone(),
                bytes: bytes.clone(),
            };
            let wire = &mut self.wires[from];
            let place = wire.partition_point(|known| known.at <= at);
            wire.insert(place, packet);
        }
    }

    /// One event. False if there will be none ever again.
    pub fn step(&mut self) -> bool {
        for end in 0..2 {
            self.hosts[end].work(&mut self.random);
            let mut count = 0;
            while let Some(segment) = self.hosts[end].tcp.transmit(self.now) {
                self.carry(end, segment);
                count += 1;
                assert!(count < 10_000, "sends without end");
            }
        }
        let next = self
            .wires
            .iter()
            .filter_map(|wire| wire.front().map(|packet| packet.at));
        let timers = self.hosts.iter().filter_map(|host| host.tcp.timeout());
        let Some(next) = next.chain(timers).min() else {
            return false;
        };
        self.now = self.now.max(next);
        for end in 0..2 {
            while self.wires[1 - end]
                .front()
                .is_some_and(|packet| packet.at <= self.now)
            {
                let packet = self.wires[1 - end].pop_front().expect("it was there");
                self.hosts[end].take(self.now, &packet);
            }
            if self.hosts[end]
                .tcp
                .timeout()
                .is_some_and(|due| due <= self.now)
            {
                self.hosts[end].tcp.timed_out(self.now);
            }
        }
        true
    }

    /// Until both ends have ended.
    pub fn run(&mut self) {
        let mut steps = 0;
        while self
            .hosts
            .iter()
            .any(|host| host.tcp.state() != State::Closed)
        {
            assert!(self.step(), "nothing will happen any more: {}", self.tell());
            steps += 1;
            assert!(steps < 3_000_000, "no end: {}", self.tell());
        }
        for host in &mut self.hosts {
            host.lazy = false;
            host.work(&mut self.random);
        }
    }

    pub fn tell(&self) -> String {
        let ends = self.hosts.each_ref().map(|host| {
            let tcp = &host.tcp;
            (
                tcp.state(),
                tcp.end(),
                tcp.timeout(),
                host.read,
                host.to_write,
                tcp.counters(),
            )
        });
        format!("{:?}: {ends:?}", self.now)
    }

    pub fn finished(&self) -> bool {
        let read = |end: usize| self.hosts[end].read == self.hosts[1 - end].to_write;
        self.hosts
            .iter()
            .all(|host| host.tcp.end() == Some(End::Finished))
            && read(0)
            && read(1)
    }

    pub fn run_to_the_end(&mut self) {
        self.run();
        assert!(self.finished(), "{}", self.tell());
    }
}
