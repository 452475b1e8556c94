//! A connection under attack, driven by bytes: a test when they are random, and a fuzz target.
//!
//! A *lying peer* sends any segments. The byte of its stream at a sequence number is a function of
//! that number, so that whatever is placed can be compared, and each promise to the caller and to the
//! peer is checked after every step.
//!
//! A *stranger* sees what two honest ends say and sends what RFC 5961 and 7323 call harmless. Both
//! streams must arrive whole and the connection must end as if nobody else had been there.

// The fuzz target and the tests use parts of it.
#![allow(dead_code)]

use std::collections::VecDeque;

use sluice_tcp::{
    Algorithm, Config, Connection, End, Instant, MILLISECOND, RANGES_MAX, Received, SECOND,
    SEGMENTS_MAX, Segment, State, Transmit,
};
use sluice_wire::Ecn;
use sluice_wire::tcp::{Flags, Header, Options};

/// Both kinds, the first bit says which.
pub fn run(data: &[u8]) {
    if let Some((first, rest)) = data.split_first() {
        if first & 1 == 0 {
            lying_peer(rest);
        } else {
            stranger(rest);
        }
    }
}

/// Decisions; behind the end of the bytes all are 0.
struct Chance<'a>(&'a [u8]);

impl Chance<'_> {
    fn byte(&mut self) -> u8 {
        let Some((first, rest)) = self.0.split_first() else {
            return 0;
        };
        self.0 = rest;
        *first
    }

    fn word(&mut self) -> u32 {
        u32::from_be_bytes(std::array::from_fn(|_| self.byte()))
    }

    fn flag(&mut self) -> bool {
        self.byte() & 1 == 1
    }

    /// A number as liars like it: that which is expected, near to it, at an edge, or any.
    fn near(&mut self, expected: u32, other: u32) -> u32 {
        match self.byte() % 10 {
            0..=3 => expected,
            4 => expected.wrapping_add(u32::from(self.byte())),
            5 => expected.wrapping_sub(u32::from(self.byte())),
            6 => expected.wrapping_add(u32::from(self.byte()) << 8),
            7 => other.wrapping_add_signed(i32::from(self.byte().cast_signed())),
            8 => expected.wrapping_add(1_u32.rotate_left(u32::from(self.byte()))),
            _ => self.word(),
        }
    }

    fn config(&mut self) -> Config {
        let bits = self.byte();
        Config {
            receive_buffer: [600, 3000, 65_535, 200_000][usize::from(bits & 3)],
            mss: [128, 536, 1460, 8960][usize::from(bits >> 2 & 3)],
            algorithm: if bits & 16 == 0 {
                Algorithm::Cubic
            } else {
                Algorithm::Dctcp
            },
            ecn: bits & 32 == 0,
            sack: bits & 64 == 0,
            timestamps: bits & 128 == 0,
            ..Config::default()
        }
    }

    fn ecn(&mut self) -> Ecn {
        match self.byte() % 8 {
            0 => Ecn::Congestion,
            1 => Ecn::Capable0,
            _ => Ecn::NotCapable,
        }
    }
}

/// What stands in a peer's stream at a sequence number.
fn content(number: u32) -> u8 {
    (number.wrapping_mul(0x9e37_79b9) >> 11) as u8
}

/// The sequence number of the first byte: a SYN stands before it (RFC 9293 §3.4).
fn first_number(header: &Header) -> u32 {
    let syn = u32::from(header.flags.has(Flags::SYN));
    header.sequence.wrapping_add(syn)
}

/// What the caller of a connection does, and what it was promised.
struct Caller {
    tcp: Connection,
    config: Config,
    /// The first sequence numbers of both directions; the peer's once it is known.
    ours: u32,
    theirs: Option<u32>,
    ring: Vec<Option<u8>>,
    readable: u64,
    read: u64,
    written: u64,
    acknowledged: u64,
    /// The end of what was ever sent, and the furthest right edge that the peer ever promised.
    sent: u64,
    edge: u64,
    scale: u8,
    /// The furthest right edge that was promised to the peer.
    promised: Option<u32>,
    last: Header,
}

impl Caller {
    fn new(tcp: Connection, config: Config, ours: u32) -> Self {
        Self {
            tcp,
            config,
            ours,
            theirs: None,
            ring: vec![None; config.receive_buffer as usize],
            readable: 0,
            read: 0,
            written: 0,
            acknowledged: 0,
            sent: 0,
            edge: 0,
            scale: 0,
            promised: None,
            last: Header::default(),
        }
    }

    /// Hands a segment over. `byte` is what it carries at a place.
    fn receive(&mut self, now: Instant, segment: &Segment, byte: impl Fn(u32) -> u8) {
        let mut twin = self.tcp.clone();
        let fast = self.tcp.counters().fast;
        let received = self.tcp.receive(now, segment);
        if self.tcp.counters().fast > fast {
            assert_eq!(twin.receive_slow(now, segment), received);
            assert_eq!(twin.timeout(), self.tcp.timeout());
            let mut same = self.tcp.clone();
            assert_eq!(twin.transmit(now), same.transmit(now));
        }
        if self.theirs.is_none() && segment.header.flags.has(Flags::SYN) {
            let known = !matches!(self.tcp.state(), State::SynSent | State::Closed);
            self.theirs = known.then_some(segment.header.sequence);
        }
        let syn = segment.header.flags.has(Flags::SYN);
        self.scale = self.tcp.negotiated().4;
        // Generous: what it says may be older than what it said before.
        let shift = if syn { 0 } else { self.scale };
        let right = u64::from(segment.header.window) << shift;
        self.edge = self.edge.max(self.tcp.acknowledged() + right);
        self.place(&received, segment, byte);
    }

    fn place(&mut self, received: &Received, segment: &Segment, byte: impl Fn(u32) -> u8) {
        if let Some(place) = &received.place {
            assert!(place.payload.start < place.payload.end);
            assert!(place.payload.end <= segment.bytes);
            let theirs = self.theirs.expect("no place before a SYN");
            for index in place.payload.clone() {
                let offset = place.offset + u64::from(index - place.payload.start);
                assert!(offset >= self.readable, "it is readable already");
                assert!(offset < self.read + self.ring.len() as u64, "beyond");
                let number = theirs.wrapping_add(1).wrapping_add(offset as u32);
                assert_eq!(
                    first_number(&segment.header).wrapping_add(index),
                    number,
                    "in its place"
                );
                let at = (offset % self.ring.len() as u64) as usize;
                self.ring[at] = Some(byte(index));
            }
        }
        assert!(received.readable >= self.readable);
        assert!(received.readable <= self.read + self.ring.len() as u64);
        self.readable = received.readable;
        assert!(received.acknowledged >= self.acknowledged);
        assert!(received.acknowledged <= self.sent);
        self.acknowledged = received.acknowledged;
        assert_eq!(self.tcp.readable(), self.readable);
        let (flying, ranges) = self.tcp.remembered();
        assert!(flying <= 2 * SEGMENTS_MAX && ranges <= RANGES_MAX);
    }

    /// Takes bytes that are readable, each of which must have come.
    fn read(&mut self, bytes: u64, byte: impl Fn(u64) -> u8) {
        let bytes = bytes.min(self.readable - self.read);
        for offset in self.read..self.read + bytes {
            let at = (offset % self.ring.len() as u64) as usize;
            assert_eq!(self.ring[at].take(), Some(byte(offset)), "offset {offset}");
        }
        self.read += bytes;
        self.tcp.read(bytes);
    }

    fn write(&mut self, bytes: u64) {
        if self.tcp.write(bytes) {
            self.written += bytes;
        }
    }

    /// All that it says now, each found legal.
    fn transmit(&mut self, now: Instant) -> Vec<Transmit> {
        let mut all = Vec::new();
        while let Some(sent) = self.tcp.transmit(now) {
            self.check(&sent);
            all.push(sent);
            assert!(all.len() < 3 * SEGMENTS_MAX, "it talks without end");
        }
        assert_eq!(self.tcp.transmit(now), None);
        all
    }

    fn check(&mut self, sent: &Transmit) {
        let header = &sent.header;
        header.emit().expect("options fit");
        if header.flags.has(Flags::RST) {
            assert!(sent.payload.is_empty());
            return;
        }
        let payload = sent.payload.clone();
        assert!(payload.start <= payload.end && payload.end <= self.written);
        let bytes = payload.end - payload.start;
        let room = u64::from(self.config.mss.max(128)) - header.options.bytes() as u64;
        assert!(bytes <= room, "{bytes} bytes beside {:?}", header.options);
        if bytes > 0 {
            assert!(payload.start >= self.acknowledged, "the caller forgot it");
            let number = self.ours.wrapping_add(1).wrapping_add(payload.start as u32);
            assert_eq!(header.sequence, number);
            // A byte or a segment beyond it, to ask whether it has opened.
            assert!(payload.end <= self.edge.max(payload.start) + room);
            assert!(payload.start <= self.edge, "far beyond the window");
            self.sent = self.sent.max(payload.end);
        }
        if header.flags.has(Flags::ACK) {
            let theirs = self.theirs.expect("it has heard a SYN");
            let fin = u32::from(self.tcp.fin_arrived());
            let next = theirs.wrapping_add(1).wrapping_add(self.readable as u32);
            assert_eq!(header.acknowledgement, next.wrapping_add(fin));
            let shift = if header.flags.has(Flags::SYN) {
                0
            } else {
                self.tcp.negotiated().3
            };
            let window = u32::from(header.window) << shift;
            let room = self.read + self.ring.len() as u64 - self.readable;
            assert!(u64::from(window) <= room + u64::from(fin), "no room for it");
            // What was promised stays so, but for what the shift rounds away and a SYN cannot say.
            let edge = header.acknowledgement.wrapping_add(window);
            let before = *self.promised.get_or_insert(edge);
            let shrunk = before.wrapping_sub(edge).cast_signed();
            let syn = header.flags.has(Flags::SYN);
            assert!(syn || shrunk < 1 << shift, "shrunk by {shrunk}");
            if shrunk < 0 {
                self.promised = Some(edge);
            }
            for (left, right) in header.options.sack() {
                let bytes = right.wrapping_sub(*left).cast_signed();
                assert!(bytes > 0 && i64::from(bytes) <= 1 << 30);
            }
        }
        self.last = *header;
    }

    fn clock(&mut self, now: Instant) {
        if self.tcp.timeout().is_some_and(|due| due <= now) {
            self.tcp.timed_out(now);
            let next = self.tcp.timeout();
            assert!(next.is_none_or(|due| due > now), "{next:?} again at once");
        }
    }
}

/// Segments that a peer may send who keeps no rule, to a connection whose caller keeps all.
pub fn lying_peer(data: &[u8]) {
    let mut chance = Chance(data);
    let config = chance.config();
    let mut now = Instant(SECOND);
    let ours = chance.near(u32::MAX - 2000, 0);
    let theirs = chance.near(u32::MAX - 500, 0x8000_0000);
    let mut options = Options::default();
    options.mss = chance.flag().then(|| chance.word() as u16);
    options.window_scale = chance.flag().then(|| chance.byte() % 15);
    options.sack_permitted = chance.flag();
    options.timestamps = chance.flag().then(|| (chance.word(), chance.word()));
    let syn = Segment {
        header: Header {
            sequence: theirs,
            flags: Flags::SYN.with(Flags(chance.byte() & 0xc0)),
            window: chance.word() as u16,
            options,
            ..Header::default()
        },
        bytes: 0,
        ecn: Ecn::NotCapable,
    };
    let mut caller = if chance.flag() {
        let tcp = Connection::accept(config, &syn, ours, 1, now).expect("a SYN");
        let mut caller = Caller::new(tcp, config, ours);
        caller.theirs = Some(theirs);
        caller.scale = caller.tcp.negotiated().4;
        caller.edge = u64::from(syn.header.window);
        caller
    } else {
        let tcp = Connection::connect(config, ours, 1, now);
        Caller::new(tcp, config, ours)
    };
    caller.transmit(now);
    let mut stamp = options.timestamps.map_or(0, |(value, _)| value);
    (options.mss, options.window_scale, options.sack_permitted) = (None, None, false);
    while !chance.0.is_empty() && caller.tcp.end().is_none() {
        match chance.byte() % 8 {
            0 => caller.write(u64::from(chance.word() >> (16 + chance.byte() % 16))),
            1 => caller.read(u64::from(chance.word() >> 16), |offset| {
                content(theirs.wrapping_add(1).wrapping_add(offset as u32))
            }),
            2 => {
                let step = u64::from(chance.byte()) * MILLISECOND;
                now = now.after(step << (chance.byte() % 12));
                caller.clock(now);
            }
            3 if chance.byte().is_multiple_of(16) => caller.tcp.shutdown(),
            4 if chance.byte().is_multiple_of(64) => caller.tcp.abort(),
            5 if chance.byte().is_multiple_of(8) => caller.tcp.set_mss(chance.word() as u16),
            _ => {
                let lie = lie(&mut chance, &caller, theirs, &mut stamp, options);
                // One that is no SYN of this peer does not change whose numbers they are.
                let at = first_number(&lie.header);
                let other = lie.header.flags.has(Flags::SYN) && lie.header.sequence != theirs;
                if other && caller.tcp.state() == State::SynSent {
                    continue;
                }
                caller.receive(now, &lie, |index| content(at.wrapping_add(index)));
            }
        }
        caller.transmit(now);
    }
    caller.read(u64::MAX, |offset| {
        content(theirs.wrapping_add(1).wrapping_add(offset as u32))
    });
    finish(&mut caller, now);
}

/// However it was left: with a silent peer it ends, in time.
fn finish(caller: &mut Caller, mut now: Instant) {
    caller.tcp.shutdown();
    let limit = now.after(700 * SECOND);
    for _ in 0..100_000 {
        caller.transmit(now);
        let Some(due) = caller.tcp.timeout() else {
            break;
        };
        assert!(due <= limit, "a silent peer holds it until {due:?}");
        now = now.max(due);
        caller.clock(now);
    }
    let waits = caller.tcp.state() == State::FinWait2;
    assert!(
        waits || caller.tcp.end().is_some(),
        "{:?} without a timer",
        caller.tcp.state()
    );
}

fn lie(
    chance: &mut Chance,
    caller: &Caller,
    theirs: u32,
    stamp: &mut u32,
    mut options: Options,
) -> Segment {
    let next = theirs.wrapping_add(match caller.theirs {
        Some(_) => 1 + caller.readable as u32 + u32::from(caller.tcp.fin_arrived()),
        None => 0,
    });
    let acknowledged = caller.ours.wrapping_add(1 + caller.acknowledged as u32);
    let sent = caller.ours.wrapping_add(1 + caller.sent as u32);
    let flags = match chance.byte() % 16 {
        0..=9 => Flags::ACK,
        10 => Flags::ACK.with(Flags::PSH),
        11 => Flags::ACK.with(Flags::FIN),
        12 => Flags::SYN.with(Flags::ACK),
        13 => Flags::SYN,
        14 => Flags::RST.with(Flags(chance.byte() & 16)),
        _ => Flags(chance.byte()),
    };
    let acknowledgement = if chance.flag() {
        chance.near(sent, acknowledged)
    } else {
        chance.near(acknowledged, sent)
    };
    if let Some(stamps) = &mut options.timestamps {
        *stamp = chance.near(*stamp, 0);
        *stamps = (*stamp, chance.word());
        if chance.byte().is_multiple_of(32) {
            options.timestamps = None;
        }
    }
    for _ in 0..chance.byte() % 8 {
        let left = chance.near(acknowledged, sent);
        let bytes = chance.word() >> (chance.byte() % 32);
        options.push_sack(left, left.wrapping_add(bytes));
    }
    if flags.has(Flags::SYN) {
        options.mss = chance.flag().then(|| chance.word() as u16);
        options.window_scale = chance.flag().then(|| chance.byte() % 15);
        options.sack_permitted = chance.flag();
    }
    Segment {
        header: Header {
            sequence: chance.near(next, caller.last.acknowledgement),
            acknowledgement,
            flags,
            window: (chance.word() >> (16 + chance.byte() % 16)) as u16,
            urgent: u16::from(chance.byte()),
            options,
            ..Header::default()
        },
        bytes: match chance.byte() % 4 {
            0 => 0,
            1 => u32::from(chance.byte()),
            2 => 1460,
            _ => chance.word() >> 16,
        },
        ecn: chance.ecn(),
    }
}

/// What stands in the streams of two honest ends.
fn honest(end: usize, offset: u64) -> u8 {
    content((offset as u32) << 1 | end as u32)
}

/// Two ends that speak with each other while a stranger speaks in the name of both.
pub fn stranger(data: &[u8]) {
    let mut chance = Chance(data);
    // Losses may be many, and are not what ends it.
    let patient = |config: Config| Config {
        user_timeout: u64::MAX,
        time_wait: 300 * SECOND,
        ..config
    };
    let configs = [(); 2].map(|()| patient(chance.config()));
    let mut now = Instant(SECOND);
    let first = [u32::MAX - 3000, chance.word()];
    let mut a = Caller::new(
        Connection::connect(configs[0], first[0], 1, now),
        configs[0],
        first[0],
    );
    let syn = a.transmit(now).remove(0);
    let syn = as_segment(&syn);
    let b = Connection::accept(configs[1], &syn, first[1], 2, now).expect("a SYN");
    let mut b = Caller::new(b, configs[1], first[1]);
    b.theirs = Some(first[0]);
    b.edge = u64::from(syn.header.window);
    let mut ends = [a, b];
    let total = [(); 2].map(|()| u64::from(chance.word() >> 16));
    for (end, bytes) in ends.iter_mut().zip(total) {
        end.write(bytes);
        end.tcp.shutdown();
    }
    let mut wires: [VecDeque<Transmit>; 2] = Default::default();
    for round in 0..30_000 {
        for from in 0..2 {
            wires[from].extend(ends[from].transmit(now));
        }
        if ends.iter().all(|end| end.tcp.end().is_some()) {
            break;
        }
        assert!(round < 29_999, "no end: {:?}", ends[0].tcp.counters());
        let from = usize::from(chance.flag());
        // While there are bytes: losses, reordering, copies and the stranger.
        let trouble = if chance.0.is_empty() {
            0
        } else {
            chance.byte()
        };
        match trouble % 16 {
            1 | 2 => drop(wires[from].pop_front()),
            3 => {
                let late = wires[from].pop_front();
                wires[from].extend(late);
            }
            4 => {
                let copy = wires[from].front().cloned();
                wires[from].extend(copy);
            }
            5..=12 => {
                if let Some(lie) = harmless(&mut chance, &ends, from) {
                    ends[1 - from].receive(now, &lie, |_| 0xee);
                }
                continue;
            }
            _ => {}
        }
        let mut idle = true;
        for from in [from, 1 - from] {
            if let Some(sent) = wires[from].pop_front() {
                idle = false;
                let start = sent.payload.start;
                ends[1 - from].receive(now, &as_segment(&sent), |index| {
                    honest(from, start + u64::from(index))
                });
            }
        }
        for (me, end) in ends.iter_mut().enumerate() {
            end.read(1 + u64::from(chance.byte()) * 37, |offset| {
                honest(1 - me, offset)
            });
            if idle {
                end.read(u64::MAX, |offset| honest(1 - me, offset));
            }
        }
        now = now.after(MILLISECOND);
        if idle && wires.iter().all(VecDeque::is_empty) {
            let due = ends.iter().filter_map(|end| end.tcp.timeout()).min();
            now = now.max(due.unwrap_or(now));
        }
        for end in &mut ends {
            end.clock(now);
        }
    }
    for (me, end) in ends.iter_mut().enumerate() {
        end.read(u64::MAX, |offset| honest(1 - me, offset));
        assert_eq!(end.tcp.end(), Some(End::Finished));
        assert_eq!((end.read, end.acknowledged), (total[1 - me], total[me]));
    }
}

fn as_segment(sent: &Transmit) -> Segment {
    Segment {
        header: sent.header,
        bytes: (sent.payload.end - sent.payload.start) as u32,
        ecn: sent.ecn,
    }
}

/// What somebody who is not the peer sends in its name, without effect in any state but the first.
fn harmless(chance: &mut Chance, ends: &[Caller; 2], from: usize) -> Option<Segment> {
    let (liar, victim) = (&ends[from], &ends[1 - from]);
    if matches!(victim.tcp.state(), State::SynSent | State::SynReceived) {
        return None;
    }
    let buffer = u64::from(victim.config.receive_buffer);
    let fin = u32::from(victim.tcp.fin_arrived());
    let next = first(victim)?.wrapping_add(victim.readable as u32 + fin);
    // The number that it would take for the right one.
    let mut header = Header {
        sequence: next,
        acknowledgement: victim.ours.wrapping_add(1 + victim.acknowledged as u32),
        flags: Flags::ACK,
        window: chance.word() as u16,
        options: liar.last.options,
        ..Header::default()
    };
    let mut bytes = u32::from(chance.byte()) << (chance.byte() % 4);
    if let Some((value, _)) = &mut header.options.timestamps {
        *value = value.wrapping_add(chance.word() >> (1 + chance.byte() % 30));
    }
    match chance.byte() % 5 {
        0 => {
            // RFC 5961 §4.
            header.flags = Flags::SYN.with(Flags(chance.byte() & 0x38));
            header.sequence = chance.near(next, victim.ours);
        }
        1 => {
            // RFC 5961 §3: any but the very next.
            header.flags = Flags::RST.with(Flags(chance.byte() & 0x10));
            header.sequence = chance.near(next.wrapping_add(1), 0);
            if header.sequence == next {
                return None;
            }
        }
        2 => {
            // RFC 5961 §5: what was not sent, or far before the window.
            let sent = victim.ours.wrapping_add(3 + victim.sent as u32);
            let ahead = chance.word() >> (1 + chance.byte() % 31);
            header.acknowledgement = sent.wrapping_add(ahead.min((1 << 30) - 1));
        }
        3 => {
            // Before the window or behind it.
            let far = 2 + buffer as u32 + (chance.word() >> (2 + chance.byte() % 20));
            if chance.flag() {
                header.sequence = next.wrapping_add(far);
            } else {
                header.sequence = next.wrapping_sub(bytes + 1 + u32::from(chance.byte()));
            }
            if chance.flag() {
                header.flags = Flags::ACK.with(Flags::FIN);
                header.sequence = header.sequence.wrapping_sub(1);
            }
        }
        _ => {
            // RFC 7323 §5.3.
            let (value, _) = header.options.timestamps.as_mut()?;
            *value = liar.last.options.timestamps?.0;
            *value = value.wrapping_sub(1 << 24 | chance.word() >> 2);
            bytes = bytes.max(1);
        }
    }
    Some(Segment {
        header,
        bytes,
        ecn: Ecn::NotCapable,
    })
}

fn first(victim: &Caller) -> Option<u32> {
    victim.theirs.map(|theirs| theirs.wrapping_add(1))
}
