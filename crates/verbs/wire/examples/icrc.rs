//! How fast the ICRC is, and what making and reading a whole frame costs: prints nanoseconds per
//! packet and bytes per second for some payloads.

use std::hint::black_box;
use std::time::Instant;

use sluice_wire::bth::Bth;
use sluice_wire::ethernet::{self, EtherType, Mac};
use sluice_wire::frame::Outer;
use sluice_wire::icrc::{self, Icrc};
use sluice_wire::{Ecn, Frame, Headers, Ip, Opcode, Psn, Qpn, ipv4};

const ROUNDS: u32 = 200_000;

fn time(what: &str, bytes: usize, mut work: impl FnMut()) {
    let start = Instant::now();
    for _ in 0..ROUNDS {
        work();
    }
    let ns = start.elapsed().as_nanos() as f64 / f64::from(ROUNDS);
    println!(
        "{what:<14} {bytes:>5} B {ns:>8.1} ns {:>7.2} GB/s",
        bytes as f64 / ns
    );
}

fn main() -> Result<(), sluice_wire::Error> {
    let outer = Outer {
        ethernet: ethernet::Header {
            destination: Mac([2; 6]),
            source: Mac([4; 6]),
            vlan: None,
            ethertype: EtherType::Ipv4,
        },
        ip: Ip::V4(ipv4::Header {
            dscp: 0,
            ecn: Ecn::Capable0,
            identification: 0,
            dont_fragment: true,
            ttl: 64,
            protocol: ipv4::UDP,
            source: [192, 0, 2, 1].into(),
            destination: [192, 0, 2, 2].into(),
            payload_bytes: 0,
        }),
        source_port: 0xc000,
    };
    let opcode = Opcode::from_byte(0x04)?;
    let headers = Headers::new(Bth::new(opcode, Qpn::new(5), Psn::new(6)));
    let mut frame = [0; 8192];
    for bytes in [0, 64, 1024, 4096] {
        let payload = vec![0x5a; bytes];
        time("icrc", bytes, || {
            let start = Icrc::ipv4(black_box(&[1; 20]), &[2; 8]);
            black_box(start.of(&[3; 12], &[&payload]));
        });
        time("unseen", bytes, || {
            black_box(icrc::unseen(black_box([1; 4]), [2; 4], 12 + bytes));
        });
        time("emit", bytes, || {
            black_box(
                outer
                    .emit(black_box(&headers), &payload, &mut frame)
                    .is_ok(),
            );
        });
        let used = outer.emit(&headers, &payload, &mut frame)?;
        time("parse", bytes, || {
            black_box(Frame::parse(black_box(&frame[..used])).is_ok());
        });
    }
    Ok(())
}
