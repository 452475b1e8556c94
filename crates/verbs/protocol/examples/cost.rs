//! What the protocol itself costs: two connections that hand packets to each other, without
//! frames, checksums and payloads. Prints nanoseconds per packet, both ends together.
//!
//! `cargo run --release -p sluice-protocol --example cost`

use std::time::Instant as Clock;

use sluice_protocol::rc::{Config, Connection};
use sluice_protocol::{
    Access, Atomic, Instant, Memory, Operation, Received, Refusal, Remote, Request, ScatterError,
    TakeError,
};
use sluice_wire::extended::RnrTimer;
use sluice_wire::{Ecn, Mtu, Packet, Psn, Qpn};

/// Takes everything and keeps nothing.
struct Void;

impl Memory for Void {
    fn place(&mut self, _: u64, _: u32, _: &[u8]) -> Result<(), Refusal> {
        Ok(())
    }
    fn check(&mut self, _: Access, _: Remote, _: u32) -> Result<(), Refusal> {
        Ok(())
    }
    fn write(&mut self, _: Remote, _: &[u8]) -> Result<(), Refusal> {
        Ok(())
    }
    fn atomic(&mut self, _: Remote, _: Atomic) -> Result<u64, Refusal> {
        Ok(0)
    }
    fn take_receive(&mut self) -> Result<(), TakeError> {
        Ok(())
    }
    fn scatter(&mut self, _: u32, _: &[u8]) -> Result<(), ScatterError> {
        Ok(())
    }
    fn invalidate(&mut self, _: u32) -> Result<(), Refusal> {
        Ok(())
    }
    fn complete_receive(&mut self, _: &Received) {}
}

fn main() {
    let remote = Remote {
        address: 0x1000,
        rkey: 7,
    };
    let kinds = [
        ("SEND 64 B", Operation::Send, 64, 1_000_000),
        ("WRITE 64 KiB", Operation::Write(remote), 65536, 20_000),
        ("READ 64 KiB", Operation::Read(remote), 65536, 20_000),
        (
            "FETCH_ADD",
            Operation::FetchAdd { remote, add: 1 },
            8,
            1_000_000,
        ),
    ];
    for (name, operation, length, messages) in kinds {
        let (packets, nanos) = run(operation, length, messages);
        let each = nanos as f64 / packets as f64;
        let message = nanos as f64 / messages as f64;
        println!("{name:14} {each:6.1} ns a packet, {message:8.1} ns a message");
    }
}

/// Packets carried, and how long it took.
fn run(operation: Operation, length: u32, messages: u64) -> (u64, u128) {
    let config = Config {
        destination: Qpn::new(18),
        pkey: 0xffff,
        mtu: Mtu::Bytes4096,
        send_psn: Psn::new(100),
        receive_psn: Psn::new(100),
        depth: 128,
        window: 256,
        max_rd_atomic: 16,
        max_dest_rd_atomic: 16,
        timeout: 14,
        retry_cnt: 7,
        rnr_retry: 7,
        min_rnr_timer: RnrTimer::from_code(12),
        extended: false,
        early: false,
        single_writes: false,
        rate: None,
    };
    let mut ends = [Connection::new(&config), Connection::new(&config)];
    let (mut posted, mut done, mut packets) = (0, 0, 0);
    let start = Clock::now();
    while done < messages {
        let now = Instant::from_nanos(start.elapsed().as_nanos() as u64);
        while posted < messages {
            let request = Request {
                seq: posted,
                operation,
                length,
                solicited: false,
                srq: None,
            };
            if ends[0].post(request).is_err() {
                break;
            }
            posted += 1;
        }
        packets += carry(&mut ends, 0, now) + carry(&mut ends, 1, now);
        while ends[0].completion().is_some() {
            done += 1;
        }
    }
    (packets, start.elapsed().as_nanos())
}

/// Up to a batch of packets from one end to the other.
fn carry(ends: &mut [Connection; 2], from: usize, now: Instant) -> u64 {
    static BYTES: [u8; 4096] = [0; 4096];
    let mut buffer = [0; 4200];
    let mut packets = 0;
    while packets < 64 {
        let Some(packet) = ends[from].transmit(now) else {
            break;
        };
        let payload = &BYTES[..packet.payload.length() as usize];
        let used = packet.headers.emit(payload, &mut buffer).expect("legal");
        let parsed = Packet::parse(&buffer[..used]).expect("legal");
        ends[1 - from].receive(now, &parsed, Ecn::Capable0, &mut Void);
        packets += 1;
    }
    packets
}
