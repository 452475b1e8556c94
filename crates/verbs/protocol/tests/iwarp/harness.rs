//! Two ends of a connection, the programs behind them, and a stream between them that is cut
//! anywhere: what happens next is read from bytes. So the same code is a test, when the bytes are
//! random ones, and a fuzz target.
//!
//! While the stream is TCP's (nothing is changed in it) every request must succeed, in order, and
//! the oracle knows what it must have done. When it is damaged, what must hold is that nothing is
//! placed where the peer was not allowed to, that every request ends once and in order, and that
//! no call panics.

// The fuzz target and the tests use parts of it.
#![allow(dead_code)]

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use sluice_protocol::iwarp::{
    self, Config, Connection, Frame, Memory, Payload, Place, Refusal, Settings, Stream, Wishes,
};
use sluice_protocol::{
    Access, Atomic, Instant, Operation, PostError, Received, Remote, Request, Status, TakeError,
};
use sluice_wire::extended::ImmDt;
use sluice_wire::iwarp::{Role, Startup, fpdu};

/// The region of each end: the peer writes the first half, and reads the other, which does not
/// change, and makes atomics in words at the end of the first.
const REGION_BYTES: usize = 8192;
const BASE: u64 = 0x7000_0000_0000;
const KEY: u32 = 0xa1b2_c300;
const WRITABLE: usize = REGION_BYTES / 2;
const WORDS: usize = 4;
const WORDS_AT: usize = WRITABLE - 8 * WORDS;
const RECEIVE_BYTES: u32 = 3000;
const DEPTH: usize = 16;
const STEPS_MAX: usize = 4000;
/// So short that all steps together are far from the other times.
const KEEPALIVE: Duration = Duration::from_micros(1);

/// Decisions, from bytes; when these have run out, from a generator that goes on from them.
pub struct Chance<'a> {
    bytes: &'a [u8],
    state: u64,
    /// Bytes are left.
    pub fresh: bool,
}

impl<'a> Chance<'a> {
    pub fn new(bytes: &'a [u8]) -> Self {
        Self {
            bytes,
            state: 0x9e37_79b9_7f4a_7c15,
            fresh: !bytes.is_empty(),
        }
    }

    fn byte(&mut self) -> u8 {
        if let Some((first, rest)) = self.bytes.split_first() {
            self.bytes = rest;
            self.fresh = !rest.is_empty();
            self.state = (self.state ^ u64::from(*first)).wrapping_mul(0x0100_0000_01b3);
            return *first;
        }
        self.state ^= self.state << 13;
        self.state ^= self.state >> 7;
        self.state ^= self.state << 17;
        (self.state >> 32) as u8
    }

    pub fn below(&mut self, end: usize) -> usize {
        let value = usize::from(self.byte());
        if end <= 256 {
            value % end
        } else {
            (value << 8 | usize::from(self.byte())) % end
        }
    }
}

/// The bytes that a request sends.
fn pattern(end: usize, seq: u64, length: usize) -> Vec<u8> {
    let start = seq.wrapping_mul(0x9e37_79b9) as u8 ^ (end as u8) << 7;
    (0..length).map(|n| start.wrapping_add(n as u8)).collect()
}

fn fixed(end: usize, at: usize) -> u8 {
    (at as u8).wrapping_mul(7) ^ (at >> 8) as u8 ^ end as u8
}

/// What a program was told of a message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Message {
    pub bytes: Option<Vec<u8>>,
    pub received: Received,
}

/// The memory behind one end.
pub struct Ledger {
    end: usize,
    pub region: Vec<u8>,
    /// What [`Memory::check`] allowed last.
    allowed: Option<(u64, u32)>,
    pub receives: usize,
    current: Option<Vec<u8>>,
    pub messages: Vec<Message>,
    /// By request: what is to come, and what came.
    pub answers: BTreeMap<u64, Vec<u8>>,
    pub invalidated: Vec<u32>,
    pub puts: u64,
}

impl Ledger {
    pub fn new(end: usize) -> Self {
        let mut region = vec![0; REGION_BYTES];
        for (at, byte) in region.iter_mut().enumerate().skip(WRITABLE) {
            *byte = fixed(end, at);
        }
        Self {
            end,
            region,
            allowed: None,
            receives: 0,
            current: None,
            messages: Vec::new(),
            answers: BTreeMap::new(),
            invalidated: Vec::new(),
            puts: 0,
        }
    }

    fn range(&self, remote: Remote, length: usize) -> Result<std::ops::Range<usize>, Refusal> {
        if remote.rkey != KEY {
            return Err(Refusal::InvalidStag);
        }
        let start = remote.address.checked_sub(BASE).ok_or(Refusal::Bounds)?;
        let start = usize::try_from(start).map_err(|_| Refusal::Bounds)?;
        let end = start.checked_add(length).ok_or(Refusal::Bounds)?;
        if end > REGION_BYTES {
            return Err(Refusal::Bounds);
        }
        Ok(start..end)
    }

    fn gather(&self, payload: Payload) -> Vec<u8> {
        match payload {
            Payload::None => Vec::new(),
            Payload::Request {
                seq,
                offset,
                length,
            } => {
                let end = offset as usize + length as usize;
                pattern(self.end, seq, end)[offset as usize..].to_vec()
            }
            Payload::Region { remote, length } => {
                let range = self.range(remote, length as usize);
                self.region[range.expect("was checked")].to_vec()
            }
        }
    }
}

impl Memory for Ledger {
    fn check(&mut self, access: Access, remote: Remote, length: u32) -> Result<(), Refusal> {
        assert!(length > 0);
        let range = self.range(remote, length as usize)?;
        if access == Access::Write {
            if range.end > WRITABLE {
                return Err(Refusal::AccessRights);
            }
            self.allowed = Some((remote.address, length));
        }
        Ok(())
    }

    fn put(&mut self, place: Place, bytes: &[u8]) -> Result<(), Refusal> {
        assert!(!bytes.is_empty());
        self.puts += 1;
        match place {
            Place::Region(remote) => {
                let (start, length) = self.allowed.expect("unchecked");
                let end = start + u64::from(length);
                let inside = remote.address >= start && remote.address + bytes.len() as u64 <= end;
                assert!(inside && remote.rkey == KEY, "beyond what was allowed");
                let range = self.range(remote, bytes.len())?;
                self.region[range].copy_from_slice(bytes);
            }
            Place::Receive { offset } => {
                let receive = self.current.as_mut().expect("no receive");
                receive[offset as usize..][..bytes.len()].copy_from_slice(bytes);
            }
            Place::Request { seq, offset } => {
                let answer = self.answers.get_mut(&seq).expect("asked for nothing");
                answer[offset as usize..][..bytes.len()].copy_from_slice(bytes);
            }
        }
        Ok(())
    }

    fn atomic(&mut self, remote: Remote, atomic: Atomic) -> Result<u64, Refusal> {
        if !remote.address.is_multiple_of(8) {
            return Err(Refusal::Unsupported);
        }
        let range = self.range(remote, 8)?;
        if range.end > WRITABLE {
            return Err(Refusal::AccessRights);
        }
        let place = self.region[range].first_chunk_mut().expect("eight bytes");
        let original = u64::from_ne_bytes(*place);
        *place = apply(original, atomic).to_ne_bytes();
        Ok(original)
    }

    fn take_receive(&mut self) -> Result<u32, TakeError> {
        assert!(self.current.is_none(), "two receives at a time");
        if self.receives == 0 {
            return Err(TakeError::Empty);
        }
        self.receives -= 1;
        self.current = Some(vec![0; RECEIVE_BYTES as usize]);
        Ok(RECEIVE_BYTES)
    }

    fn invalidate(&mut self, stag: u32) -> Result<(), Refusal> {
        if stag == 0 {
            return Err(Refusal::CannotInvalidate);
        }
        self.invalidated.push(stag);
        Ok(())
    }

    fn complete_receive(&mut self, received: &Received) {
        let receive = self.current.take().expect("no receive");
        let bytes = (received.status == Status::Success && !received.write)
            .then(|| receive[..received.length as usize].to_vec());
        self.messages.push(Message {
            bytes,
            received: *received,
        });
    }
}

fn apply(original: u64, atomic: Atomic) -> u64 {
    match atomic {
        Atomic::FetchAdd(add) => original.wrapping_add(add),
        Atomic::CompareSwap { compare, swap } if compare == original => swap,
        Atomic::CompareSwap { .. } => original,
    }
}

/// One end.
pub struct End {
    pub connection: Connection,
    pub ledger: Ledger,
    /// What it was asked to do, by `seq`.
    pub posted: Vec<Request>,
    pub completed: Vec<Status>,
    /// Bytes on their way to this end.
    pub pipe: VecDeque<u8>,
    /// Bytes in its buffer.
    staged: Vec<u8>,
    /// [`Frame::end`] of frames that are written.
    written: u64,
    broken: bool,
}

impl End {
    fn new(end: usize, config: &Config) -> Self {
        Self {
            connection: Connection::new(config),
            ledger: Ledger::new(end),
            posted: Vec::new(),
            completed: Vec::new(),
            pipe: VecDeque::new(),
            staged: Vec::new(),
            written: 0,
            broken: false,
        }
    }
}

pub struct World {
    pub ends: [End; 2],
    now: u64,
}

/// How two ends come together, by their frames.
pub fn meet(wishes: [Wishes; 2]) -> [Settings; 2] {
    let mut buffer = [0; Startup::BYTES_MAX];
    let used = iwarp::request(&wishes[0], b"hello").emit(&mut buffer);
    let used = used.expect("fits");
    let request = iwarp::arrived(Role::Request, &buffer[..used]);
    let request = request.expect("legal").expect("whole");
    assert_eq!(
        (request.startup.private_data, request.bytes),
        (&b"hello"[..], used)
    );
    iwarp::acceptable(&request.startup).expect("no markers");
    let (reply, responder) = iwarp::accept(&request.startup, &wishes[1], b"welcome");
    let mut buffer = [0; Startup::BYTES_MAX];
    let used = reply.emit(&mut buffer).expect("fits");
    let reply = iwarp::arrived(Role::Reply, &buffer[..used]);
    let reply = reply.expect("legal").expect("whole");
    let initiator = iwarp::established(&wishes[0], &reply.startup).expect("agreed");
    [initiator, responder]
}

impl World {
    pub fn new(chance: &mut Chance<'_>) -> Self {
        let mut wishes = || Wishes {
            crc: chance.below(4) == 0,
            ird: 1 + chance.below(4) as u16,
            ird_max: 8,
            ord: 1 + chance.below(4) as u16,
            peer_to_peer: chance.below(2) == 0,
            long_frames: false,
        };
        let wishes = [wishes(), wishes()];
        let settings = meet(wishes);
        assert_eq!(settings[0].crc, settings[1].crc);
        let mut end = |end: usize| {
            let config = Config {
                settings: settings[end],
                mulpdu: [0, 128, 200, 1442, 65_535][chance.below(5)],
                depth: DEPTH,
                receive_wait: Duration::from_secs(1),
                close_wait: Duration::from_secs(1),
                keepalive: KEEPALIVE,
            };
            End::new(end, &config)
        };
        Self {
            ends: [end(0), end(1)],
            now: 0,
        }
    }

    pub fn now(&self) -> Instant {
        Instant::from_nanos(self.now)
    }

    /// Asks for something. What is asked for is allowed, but for `wild`.
    pub fn post(&mut self, end: usize, chance: &mut Chance<'_>, wild: bool) {
        let here = &mut self.ends[end];
        let seq = here.posted.len() as u64;
        let length = match chance.below(4) {
            0 => 0,
            1 => chance.below(64),
            2 => chance.below(600),
            _ => chance.below(RECEIVE_BYTES as usize + 1),
        };
        let mut remote = |area: std::ops::Range<usize>, length: usize| {
            let room = area.len().saturating_sub(length);
            let at = area.start + chance.below(room + 1);
            match wild && chance.below(3) == 0 {
                true => Remote {
                    address: [0, BASE + REGION_BYTES as u64 - 1, u64::MAX][chance.below(3)],
                    rkey: KEY + chance.below(2) as u32,
                },
                false => Remote {
                    address: BASE + at as u64,
                    rkey: KEY,
                },
            }
        };
        let write = remote(0..WORDS_AT, length);
        let read = remote(WRITABLE..REGION_BYTES, length);
        let mut word = remote(0..1, 1);
        if word.rkey == KEY && word.address == BASE {
            word.address += (WORDS_AT + 8 * chance.below(WORDS)) as u64;
        }
        let operation = match chance.below(9) {
            0 | 1 => Operation::Send,
            2 => Operation::SendInvalidate(1 + chance.below(100) as u32),
            3 | 4 => Operation::Write(write),
            5 => Operation::WriteImmediate(write, ImmDt((seq as u32).to_be_bytes())),
            6 => Operation::Read(read),
            7 => Operation::FetchAdd {
                remote: word,
                add: seq + 1,
            },
            _ => Operation::CompareSwap {
                remote: word,
                compare: chance.below(3) as u64,
                swap: seq,
            },
        };
        let length = if operation.is_atomic() { 8 } else { length };
        let request = Request {
            seq,
            operation,
            length: length as u32,
            solicited: chance.below(2) == 0,
            srq: None,
        };
        match here.connection.post(request) {
            Ok(()) => {
                if operation.has_response_data() {
                    here.ledger.answers.insert(seq, vec![0; length]);
                }
                here.posted.push(request);
            }
            Err(PostError::Full) => {
                let open = here.posted.len() - here.completed.len();
                assert!(open >= DEPTH, "full with {open}");
            }
            Err(PostError::Failed) => assert!(here.connection.failure().is_some() || here.broken),
            Err(PostError::Illegal) => panic!("{request:?} is legal"),
        }
    }

    /// Writes the next frame. False if there is none.
    pub fn transmit(&mut self, end: usize) -> bool {
        let Some(frame) = self.ends[end].connection.transmit() else {
            return false;
        };
        let bytes = render(&frame, &self.ends[end].ledger.gather(frame.payload));
        let here = &mut self.ends[end];
        assert_eq!(here.written + bytes.len() as u64, frame.end);
        here.written = frame.end;
        here.connection.sent(Instant::from_nanos(self.now));
        self.ends[1 - end].pipe.extend(bytes);
        true
    }

    /// So many bytes arrive: to their place if `direct`, else by the buffer.
    pub fn arrive(&mut self, end: usize, bytes: usize, direct: bool) {
        let now = self.now();
        let End {
            connection,
            ledger,
            pipe,
            staged,
            ..
        } = &mut self.ends[end];
        let mut bytes = bytes.min(pipe.len());
        if direct
            && staged.is_empty()
            && let Some(expected) = connection.expected()
        {
            let count = bytes.min(expected.length);
            if count > 0 {
                let read: Vec<u8> = pipe.drain(..count).collect();
                ledger.put(expected.place, &read).expect("was allowed");
                connection.placed(count);
                bytes -= count;
            }
        }
        staged.extend(pipe.drain(..bytes));
        let used = connection.receive(now, staged, ledger);
        staged.drain(..used);
        assert!(staged.len() < fpdu::BYTES_MAX || connection.is_stalled());
    }

    pub fn post_receive(&mut self, end: usize) {
        self.ends[end].ledger.receives += 1;
        if self.ends[end].connection.is_stalled() {
            self.arrive(end, 0, false);
        }
    }

    /// Time goes on: a peer that has not answered may be sent a WRITE of nothing.
    fn time_passes(&mut self, end: usize) {
        self.now += KEEPALIVE.as_nanos() as u64 * 3;
        let now = self.now();
        let here = &mut self.ends[end];
        here.connection.expire(now, &mut here.ledger);
    }

    pub fn release(&mut self, end: usize) {
        let here = &mut self.ends[end];
        here.connection.released(here.written);
    }

    /// Takes completions, which come in order.
    pub fn collect(&mut self, end: usize) {
        let here = &mut self.ends[end];
        while let Some(done) = here.connection.completion() {
            assert_eq!(done.seq, here.completed.len() as u64, "out of order");
            let request = here.posted[here.completed.len()];
            assert_eq!(done.length, request.length);
            here.completed.push(done.status);
        }
    }

    /// One of the two, does something.
    pub fn step(&mut self, chance: &mut Chance<'_>, wild: bool) {
        let end = chance.below(2);
        match chance.below(13) {
            0..=2 => self.post(end, chance, wild),
            3..=5 => {
                self.transmit(end);
            }
            6..=8 => {
                let bytes = match chance.below(3) {
                    0 => 1 + chance.below(8),
                    1 => 1 + chance.below(200),
                    _ => 1 + chance.below(9000),
                };
                let direct = chance.below(2) == 0;
                self.arrive(end, bytes, direct);
            }
            9 => self.post_receive(end),
            10 => self.release(end),
            11 => self.time_passes(end),
            _ => self.collect(end),
        }
    }

    /// Lets all that was asked for happen. An initiator that has sent nothing begins: without an
    /// RTR, the responder waits for that (RFC 5044 §7.1.2).
    pub fn settle(&mut self) {
        if self.ends[0].posted.is_empty() {
            let request = request(0, Operation::Send, 0);
            let here = &mut self.ends[0];
            here.connection.post(request).expect("the first");
            here.posted.push(request);
        }
        for _ in 0..STEPS_MAX {
            let mut busy = false;
            for end in [0, 1] {
                while self.transmit(end) {
                    busy = true;
                }
                busy |= !self.ends[end].pipe.is_empty();
                self.arrive(end, usize::MAX, true);
                if self.ends[end].connection.is_stalled() {
                    self.post_receive(end);
                    busy = true;
                }
                self.release(end);
                self.collect(end);
            }
            if !busy {
                return;
            }
        }
        panic!("it does not come to an end");
    }

    /// What must have happened where nothing went wrong.
    pub fn verify(&self) {
        for end in [0, 1] {
            let (here, there) = (&self.ends[end], &self.ends[1 - end]);
            assert_eq!(here.connection.failure(), None);
            assert_eq!(here.completed.len(), here.posted.len(), "end {end}");
            assert!(
                here.completed
                    .iter()
                    .all(|status| *status == Status::Success)
            );
            let mut region = Ledger::new(1 - end).region;
            let mut messages = Vec::new();
            let mut invalidated = Vec::new();
            for request in &here.posted {
                let length = request.length as usize;
                let bytes = pattern(end, request.seq, length);
                let mut received = Received {
                    status: Status::Success,
                    length: request.length,
                    write: false,
                    immediate: None,
                    invalidated: None,
                    solicited: request.solicited,
                };
                let answer = here.ledger.answers.get(&request.seq);
                let mut put = |remote: Remote, bytes: &[u8]| {
                    let at = (remote.address - BASE) as usize;
                    region[at..at + bytes.len()].copy_from_slice(bytes);
                };
                match request.operation {
                    Operation::Send => messages.push((Some(bytes), received)),
                    Operation::SendInvalidate(stag) => {
                        received.invalidated = Some(stag);
                        invalidated.push(stag);
                        messages.push((Some(bytes), received));
                    }
                    Operation::Write(remote) => put(remote, &bytes),
                    Operation::WriteImmediate(remote, data) => {
                        put(remote, &bytes);
                        received.write = true;
                        received.immediate = Some(data);
                        messages.push((None, received));
                    }
                    Operation::Read(remote) => {
                        let at = (remote.address - BASE) as usize;
                        let wanted: Vec<u8> =
                            (at..at + length).map(|at| fixed(1 - end, at)).collect();
                        assert!(answer == Some(&wanted), "READ {}", request.seq);
                    }
                    Operation::FetchAdd { remote, .. } | Operation::CompareSwap { remote, .. } => {
                        let at = (remote.address - BASE) as usize;
                        let word = region[at..].first_chunk_mut().expect("a word");
                        let original = u64::from_ne_bytes(*word);
                        let atomic = match request.operation {
                            Operation::FetchAdd { add, .. } => Atomic::FetchAdd(add),
                            Operation::CompareSwap { compare, swap, .. } => {
                                Atomic::CompareSwap { compare, swap }
                            }
                            _ => continue,
                        };
                        *word = apply(original, atomic).to_ne_bytes();
                        assert_eq!(answer, Some(&original.to_ne_bytes().to_vec()));
                    }
                    Operation::SendImmediate(_) => panic!("not asked for"),
                }
            }
            let got = there.ledger.messages.iter().cloned();
            let got: Vec<_> = got
                .map(|message| (message.bytes, message.received))
                .collect();
            assert!(got == messages, "messages from {end}");
            assert_eq!(there.ledger.invalidated, invalidated);
            assert!(there.ledger.region == region, "the region of {}", 1 - end);
        }
    }

    /// The connection breaks. Every request has ended, once.
    pub fn break_down(&mut self) {
        for end in [0, 1] {
            let here = &mut self.ends[end];
            here.broken = true;
            here.connection.lost(&mut here.ledger);
            assert_eq!(here.connection.stream(), Stream::Reset);
            assert!(here.ledger.current.is_none(), "a receive is not given back");
            self.collect(end);
            let here = &self.ends[end];
            assert_eq!(here.completed.len(), here.posted.len());
            assert!(!self.transmit(end), "nothing is sent any more");
        }
    }

    /// Something that TCP does not do to the stream.
    pub fn damage(&mut self, chance: &mut Chance<'_>) {
        let end = chance.below(2);
        let pipe = &mut self.ends[end].pipe;
        let at = chance.below(pipe.len().min(200) + 1);
        match chance.below(3) {
            0 => pipe.insert(at, chance.byte()),
            1 => {
                pipe.remove(at);
            }
            _ => {
                if let Some(byte) = pipe.get_mut(at) {
                    *byte ^= 1 << chance.below(8);
                }
            }
        }
    }
}

/// A request for nothing but that.
pub fn request(seq: u64, operation: Operation, length: u32) -> Request {
    Request {
        seq,
        operation,
        length,
        solicited: false,
        srq: None,
    }
}

/// The bytes of a frame, as a driver writes them.
pub fn render(frame: &Frame, payload: &[u8]) -> Vec<u8> {
    assert_eq!(payload.len(), frame.payload.length() as usize);
    let mut sum = frame.sum();
    sum.update(payload);
    let bytes = [frame.head(), payload, frame.trailer(sum).bytes()].concat();
    assert_eq!(bytes.len(), frame.bytes());
    let parsed = fpdu::parse(&bytes, frame.has_crc())
        .expect("our own")
        .expect("whole");
    assert_eq!(parsed.1, bytes.len());
    bytes
}

/// Whether the stream stays as it is, and programs ask for what they may.
fn run_one(bytes: &[u8], honest: bool) -> World {
    let mut chance = Chance::new(bytes);
    let mut world = World::new(&mut chance);
    for _ in 0..STEPS_MAX {
        if !chance.fresh {
            break;
        }
        if !honest && chance.below(16) == 0 {
            world.damage(&mut chance);
        }
        world.step(&mut chance, !honest);
    }
    world
}

/// For any bytes: first as TCP is, then as it is not, and cut off.
pub fn run(bytes: &[u8]) {
    let mut world = run_one(bytes, true);
    world.settle();
    world.verify();
    world.break_down();
    let mut world = run_one(bytes, false);
    world.break_down();
    stranger(bytes);
}

/// The bytes themselves come from the peer, behind an honest start.
pub fn stranger(bytes: &[u8]) {
    for crc in [false, true] {
        let wishes = Wishes {
            crc,
            ird: 2,
            ird_max: 2,
            ord: 2,
            peer_to_peer: true,
            long_frames: true,
        };
        let config = Config {
            settings: meet([wishes, wishes])[1],
            mulpdu: 1442,
            depth: DEPTH,
            receive_wait: Duration::ZERO,
            close_wait: Duration::from_secs(1),
            keepalive: Duration::ZERO,
        };
        let mut world = World {
            ends: [End::new(0, &config), End::new(1, &config)],
            now: 0,
        };
        let mut chance = Chance::new(bytes);
        world.ends[0].ledger.receives = 2;
        for _ in 0..4 {
            world.post(0, &mut chance, true);
        }
        world.ends[0].pipe.extend(bytes);
        for _ in 0..STEPS_MAX {
            if world.ends[0].pipe.is_empty() {
                break;
            }
            let bytes = 1 + chance.below(40);
            world.arrive(0, bytes, chance.below(2) == 0);
            while world.transmit(0) {}
            world.collect(0);
        }
        world.break_down();
    }
}
