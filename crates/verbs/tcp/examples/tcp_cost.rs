//! What the state machine itself costs: two established ends that hand segments to each other, in
//! one thread, without payloads, checksums or a network. Prints bytes per second and nanoseconds per
//! data segment, both ends and the acknowledgements together; and what the checksum of a segment costs
//! one end, which a network card would compute.
//!
//! `cargo run --release -p sluice-tcp --example tcp_cost`

use std::hint::black_box;
use std::time::Instant as Clock;

use sluice_tcp::{Config, Connection, Instant, Segment, Transmit};
use sluice_wire::tcp;

fn segment(sent: &Transmit) -> Segment {
    Segment {
        header: sent.header,
        bytes: (sent.payload.end - sent.payload.start) as u32,
        ecn: sent.ecn,
    }
}

fn main() {
    for (mss, timestamps) in [(1460, true), (1460, false), (8960, true)] {
        measure(mss, timestamps);
    }
    for bytes in [64, 1448, 4282, 8948] {
        checksums(bytes);
    }
}

fn checksums(bytes: usize) {
    const ROUNDS: u32 = 200_000;
    let (header, mut payload) = ([5_u8; 32], vec![7_u8; bytes]);
    let start = Clock::now();
    let mut all = 0_u32;
    for round in 0..ROUNDS {
        payload[0] = round as u8;
        let sum = tcp::checksum(&[10, 0, 0, 1], &[10, 0, 0, 2], &header, black_box(&payload));
        all = all.wrapping_add(u32::from(sum));
    }
    black_box(all);
    let nanos = start.elapsed().as_nanos() as f64 / f64::from(ROUNDS);
    println!("checksum of {bytes} B: {nanos:.0} ns");
}

fn measure(mss: u16, timestamps: bool) {
    const TOTAL: u64 = 20_000_000_000;
    let config = Config {
        receive_buffer: 4 << 20,
        mss,
        timestamps,
        ..Config::default()
    };
    let mut now = Instant(1);
    let mut from = Connection::connect(config, 1, 1, now);
    let syn = from.transmit(now).expect("a SYN");
    let mut to = Connection::accept(config, &segment(&syn), 2, 2, now).expect("it is a SYN");
    let answer = to.transmit(now).expect("a SYN-ACK");
    now = now.after(10_000);
    from.receive(now, &segment(&answer));
    let (mut written, mut segments, mut acknowledgements) = (0, 0_u64, 0_u64);
    let mut batch = Vec::with_capacity(32);
    let start = Clock::now();
    while to.readable() < TOTAL {
        let more = (1 << 20) - (written - from.acknowledged());
        from.write(more);
        written += more;
        // As a driver does: some segments, then their answers.
        while batch.len() < 32
            && let Some(sent) = from.transmit(now)
        {
            batch.push(sent);
        }
        now = now.after(2_000);
        segments += batch.len() as u64;
        for sent in batch.drain(..) {
            to.receive(now, &segment(&sent));
            while let Some(answer) = to.transmit(now) {
                from.receive(now, &segment(&answer));
                acknowledgements += 1;
            }
        }
        to.read(u64::MAX);
        for end in [&mut from, &mut to] {
            if end.timeout().is_some_and(|due| due <= now) {
                end.timed_out(now);
            }
        }
    }
    let nanos = start.elapsed().as_nanos() as f64;
    let fast = to.counters().fast as f64 / segments as f64;
    println!(
        "MSS {mss}, timestamps {timestamps}: {:.1} GB/s, {:.1} ns a segment, {segments} segments, \
         {acknowledgements} acknowledgements, {:.2} % on the fast path, {} sent again",
        TOTAL as f64 / nanos,
        nanos / segments as f64,
        100.0 * fast,
        from.counters().retransmitted,
    );
}
