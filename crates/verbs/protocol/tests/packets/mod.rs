//! One connection on a bench: packets are made by hand, and what it answers is looked at.

// Each test uses a part of it.
#![allow(dead_code)]

use sluice_protocol::rc::{Config, Connection};
use sluice_protocol::{
    Access, Atomic, Instant, Memory, Payload, Received, Refusal, Remote, ScatterError, Status,
    TakeError, Transmit,
};
use sluice_wire::bth::Bth;
use sluice_wire::extended::{
    Aeth, AtomicAckEth, AtomicEth, Ieth, ImmDt, NakCode, Reth, RnrTimer, Syndrome,
};
use sluice_wire::opcode::{Operation as Op, Service};
use sluice_wire::{Ecn, Headers, Mtu, Opcode, Packet, Psn, Qpn};

pub const MTU: usize = 256;
pub const RESOURCES: u32 = 3;

/// A packet as a value.
#[derive(Clone, Debug)]
pub struct Made {
    pub headers: Headers,
    pub payload: Vec<u8>,
}

fn made(operation: Op, psn: u32, len: usize) -> Made {
    let opcode = Opcode::new(Service::Rc, operation).expect("an opcode of RC");
    let mut bth = Bth::new(opcode, Qpn::new(5), Psn::new(psn));
    bth.ack_request = true;
    Made {
        headers: Headers::new(bth),
        payload: vec![psn as u8; len],
    }
}

/// A request. `value` is the length that is announced, or the operand of an atomic.
pub fn request(operation: Op, psn: u32, len: usize, remote: Remote, value: u32) -> Made {
    let len = match operation {
        Op::ReadRequest | Op::FetchAdd | Op::CompareSwap => 0,
        _ => len,
    };
    let mut packet = made(operation, psn, len);
    let following = packet.headers.bth.opcode.following();
    let announced = match operation {
        Op::WriteOnly | Op::WriteOnlyWithImmediate => len as u32,
        _ => value,
    };
    packet.headers.reth = following.reth.then_some(Reth {
        address: remote.address,
        rkey: remote.rkey,
        length: announced,
    });
    packet.headers.atomic_eth = following.atomic_eth.then_some(AtomicEth {
        address: remote.address,
        rkey: remote.rkey,
        swap_add: u64::from(value),
        compare: 0,
    });
    packet.headers.immediate = following.immediate.then_some(ImmDt([1, 2, 3, 4]));
    packet.headers.ieth = following.ieth.then_some(Ieth { rkey: 9 });
    packet
}

fn with_aeth(operation: Op, psn: u32, len: usize, syndrome: Syndrome) -> Made {
    let mut packet = made(operation, psn, len);
    let has = packet.headers.bth.opcode.following().aeth;
    packet.headers.aeth = has.then_some(Aeth {
        syndrome,
        msn: Psn::new(0),
    });
    packet
}

pub fn ack(psn: u32) -> Made {
    with_aeth(Op::Acknowledge, psn, 0, Syndrome::Ack(None))
}

pub fn nak(psn: u32, code: NakCode) -> Made {
    with_aeth(Op::Acknowledge, psn, 0, Syndrome::Nak(code))
}

pub fn rnr(psn: u32) -> Made {
    let timer = RnrTimer::from_code(1);
    with_aeth(Op::Acknowledge, psn, 0, Syndrome::RnrNak(timer))
}

pub fn read_data(operation: Op, psn: u32, len: usize) -> Made {
    with_aeth(operation, psn, len, Syndrome::Ack(None))
}

pub fn atomic(psn: u32, original: u64) -> Made {
    let mut packet = with_aeth(Op::AtomicAcknowledge, psn, 0, Syndrome::Ack(None));
    packet.headers.atomic_ack_eth = Some(AtomicAckEth { original });
    packet
}

/// What was answered, with its number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reply {
    Ack(u32),
    Nak(u32, NakCode),
    Rnr(u32),
    /// Opcode and bytes.
    Read(u32, Op, usize),
    /// The value from before.
    Atomic(u32, u64),
}

/// Memory that writes down what happens. Key 1 opens it.
pub struct Notes {
    pub writes: Vec<(u64, usize)>,
    pub counter: u64,
    pub receives: u32,
    pub receive_bytes: u32,
    /// Lengths.
    pub received: Vec<u32>,
    pub failed: Vec<Status>,
    pub placed: Vec<(u64, usize, usize)>,
    pub refusal: Refusal,
    /// What key 1 opens.
    pub region_bytes: u32,
    /// Shared receive queues that messages named.
    pub selected: Vec<u32>,
    /// Bytes from the beginning that READ data can be had of.
    pub readable: u32,
}

impl Notes {
    fn open(&self, remote: Remote) -> Result<(), Refusal> {
        if remote.rkey == 1 {
            Ok(())
        } else {
            Err(self.refusal)
        }
    }
}

impl Memory for Notes {
    fn place(&mut self, seq: u64, offset: u32, bytes: &[u8]) -> Result<(), Refusal> {
        self.placed.push((seq, offset as usize, bytes.len()));
        Ok(())
    }

    fn select(&mut self, srq: Qpn) {
        self.selected.push(srq.get());
    }

    fn check(&mut self, _access: Access, remote: Remote, length: u32) -> Result<(), Refusal> {
        if length > self.region_bytes {
            return Err(self.refusal);
        }
        self.open(remote)
    }

    fn write(&mut self, remote: Remote, bytes: &[u8]) -> Result<(), Refusal> {
        self.open(remote)?;
        self.writes.push((remote.address, bytes.len()));
        Ok(())
    }

    fn atomic(&mut self, remote: Remote, atomic: Atomic) -> Result<u64, Refusal> {
        self.open(remote)?;
        let original = self.counter;
        match atomic {
            Atomic::FetchAdd(add) => self.counter += add,
            Atomic::CompareSwap { .. } => {}
        }
        Ok(original)
    }

    fn take_receive(&mut self) -> Result<(), TakeError> {
        self.receives = self.receives.checked_sub(1).ok_or(TakeError::Empty)?;
        Ok(())
    }

    fn scatter(&mut self, offset: u32, bytes: &[u8]) -> Result<(), ScatterError> {
        if offset + bytes.len() as u32 > self.receive_bytes {
            return Err(ScatterError::TooLong);
        }
        Ok(())
    }

    fn invalidate(&mut self, _rkey: u32) -> Result<(), Refusal> {
        Ok(())
    }

    fn complete_receive(&mut self, received: &Received) {
        match received.status {
            Status::Success => self.received.push(received.length),
            status => self.failed.push(status),
        }
    }
}

/// The attributes of [`Bench::new`].
pub fn config() -> Config {
    Config {
        destination: Qpn::new(6),
        pkey: 0xffff,
        mtu: Mtu::Bytes256,
        send_psn: Psn::new(0),
        receive_psn: Psn::new(0),
        depth: 16,
        window: 64,
        max_rd_atomic: RESOURCES as u8,
        max_dest_rd_atomic: RESOURCES as u8,
        timeout: 14,
        retry_cnt: 7,
        rnr_retry: 7,
        min_rnr_timer: RnrTimer::from_code(1),
        extended: false,
        early: false,
        single_writes: false,
        rate: None,
    }
}

/// A connection whose numbers begin with 0 in both directions.
pub struct Bench {
    pub connection: Connection,
    pub memory: Notes,
    pub now: u64,
}

impl Bench {
    pub fn new() -> Self {
        Self::with(&config())
    }

    pub fn with(config: &Config) -> Self {
        Self {
            connection: Connection::new(config),
            memory: Notes {
                writes: Vec::new(),
                counter: 0,
                receives: 1000,
                receive_bytes: 1 << 20,
                received: Vec::new(),
                failed: Vec::new(),
                placed: Vec::new(),
                refusal: Refusal::Access,
                region_bytes: u32::MAX,
                selected: Vec::new(),
                readable: u32::MAX,
            },
            now: 0,
        }
    }

    /// Gives it a packet.
    pub fn feed(&mut self, made: &Made) {
        let mut buffer = [0; 8192];
        let used = made
            .headers
            .emit(&made.payload, &mut buffer)
            .expect("legal");
        let packet = Packet::parse(&buffer[..used]).expect("legal");
        let now = Instant::from_nanos(self.now);
        self.connection
            .receive(now, &packet, Ecn::Capable0, &mut self.memory);
    }

    fn transmit(&mut self) -> Option<Transmit> {
        self.connection.transmit(Instant::from_nanos(self.now))
    }

    /// Lets time pass.
    pub fn expire(&mut self, now: u64) {
        self.now = now;
        self.connection.expire(Instant::from_nanos(now));
    }

    /// Takes some of what it wants to send.
    pub fn take(&mut self, most: usize) -> Vec<Transmit> {
        std::iter::from_fn(|| self.transmit()).take(most).collect()
    }

    /// Takes all that it wants to send, responses only.
    pub fn replies(&mut self) -> Vec<Reply> {
        let mut replies = Vec::new();
        let mut read = 0;
        while let Some(packet) = self.transmit() {
            let psn = packet.headers.bth.psn.get();
            if let Payload::Region { length, .. } = packet.payload {
                read += length;
                if read > self.memory.readable {
                    self.connection.refuse_read(Psn::new(psn), Refusal::Access);
                    continue;
                }
            }
            let syndrome = packet.headers.aeth.map(|aeth| aeth.syndrome);
            let length = packet.payload.length() as usize;
            let reply = match (packet.headers.bth.opcode.operation(), syndrome) {
                (Op::Acknowledge, Some(Syndrome::Ack(_))) => Reply::Ack(psn),
                (Op::Acknowledge, Some(Syndrome::Nak(code))) => Reply::Nak(psn, code),
                (Op::Acknowledge, Some(Syndrome::RnrNak(_))) => Reply::Rnr(psn),
                (Op::AtomicAcknowledge, _) => {
                    let value = packet.headers.atomic_ack_eth.expect("has one");
                    Reply::Atomic(psn, value.original)
                }
                (operation, _) => Reply::Read(psn, operation, length),
            };
            replies.push(reply);
        }
        replies
    }

    pub fn deliver(&mut self, made: &Made) -> Vec<Reply> {
        self.feed(made);
        self.replies()
    }

    /// Numbers of all packets that it wants to send.
    pub fn sent(&mut self) -> Vec<u32> {
        std::iter::from_fn(|| self.transmit())
            .map(|packet| packet.headers.bth.psn.get())
            .collect()
    }

    pub fn completed(&mut self) -> Vec<Status> {
        std::iter::from_fn(|| self.connection.completion())
            .map(|completion| completion.status)
            .collect()
    }
}
