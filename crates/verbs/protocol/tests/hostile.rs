//! Peers that send whatever they like. What they can get is a broken connection of their own.

mod packets;
mod sim;

use packets::{Bench, Made};
use proptest::prelude::*;
use sim::network::Faults;
use sim::program;
use sim::random::Random;
use sim::world::{World, config, outer};
use sluice_protocol::rc::Config;
use sluice_protocol::{Operation, Remote, Request};
use sluice_wire::bth::Bth;
use sluice_wire::extended::{
    Aeth, AtomicAckEth, AtomicEth, Credits, Deth, Ieth, ImmDt, NakCode, Reth, RnrTimer, Syndrome,
    XrcEth,
};
use sluice_wire::opcode::Position;
use sluice_wire::{Ecn, Headers, Mtu, Opcode, Psn, Qpn};

const SECOND: u64 = 1_000_000_000;

/// Bytes of a connection as text, more than which it would have to hold something without bound:
/// the send queue has 16 entries, resources and replies 3 each.
const TEXT_MAX: usize = 20_000;

fn opcode() -> impl Strategy<Value = Opcode> {
    // Mostly such as have a place here.
    let all: Vec<Opcode> = Opcode::all().collect();
    let rc: Vec<Opcode> = all.iter().copied().filter(|op| op.byte() < 0x20).collect();
    prop_oneof![8 => prop::sample::select(rc), 1 => prop::sample::select(all)]
}

fn syndrome() -> impl Strategy<Value = Syndrome> {
    prop_oneof![
        4 => Just(Syndrome::Ack(None)),
        1 => (0u8..31).prop_map(|code| Syndrome::Ack(Credits::from_code(code))),
        1 => (0u8..32).prop_map(|code| Syndrome::RnrNak(RnrTimer::from_code(code))),
        3 => Just(Syndrome::Nak(NakCode::SequenceError)),
        1 => Just(Syndrome::Nak(NakCode::RemoteAccess)),
    ]
}

/// Numbers around those in use, and any.
fn psn() -> impl Strategy<Value = Psn> {
    prop_oneof![
        12 => (0u32..20).prop_map(Psn::new),
        2 => (0u32..300).prop_map(Psn::new),
        1 => any::<u32>().prop_map(Psn::new),
        1 => (0x7f_fff0u32..0x80_0010).prop_map(Psn::new),
    ]
}

fn length() -> impl Strategy<Value = u32> {
    prop_oneof![
        Just(0u32),
        Just(8),
        Just(256),
        Just(512),
        Just(1 << 31),
        0u32..2000,
    ]
}

prop_compose! {
    fn packet()(
        opcode in opcode(),
        psn in psn(),
        syndrome in syndrome(),
        length in length(),
        rkey in 1u32..3,
        address in prop_oneof![Just(0x1000u64), any::<u64>()],
        payload in prop_oneof![
            3 => Just(256usize), 1 => Just(0), 1 => Just(8), 1 => 0usize..600, 1 => Just(4096),
        ],
        bits in any::<(bool, bool)>(),
    ) -> Made {
        let following = opcode.following();
        let mut bth = Bth::new(opcode, Qpn::new(5), psn);
        (bth.ack_request, bth.solicited) = bits;
        let len = match opcode.position() {
            Position::Bare => 0,
            Position::Notification => 16,
            Position::Report => 4 + (payload & 0x7c),
            Position::Only => payload,
            _ => payload.max(1),
        };
        Made {
            headers: Headers {
                deth: following.deth.then_some(Deth { qkey: 1, source: Qpn::new(3) }),
                xrceth: following.xrceth.then_some(XrcEth { srq: Qpn::new(3) }),
                reth: following.reth.then_some(Reth { address, rkey, length }),
                atomic_eth: following.atomic_eth.then_some(AtomicEth {
                    address, rkey, swap_add: 1, compare: 0,
                }),
                aeth: following.aeth.then_some(Aeth { syndrome, msn: psn }),
                atomic_ack_eth: following.atomic_ack_eth.then_some(AtomicAckEth { original: 7 }),
                immediate: following.immediate.then_some(ImmDt([0; 4])),
                ieth: following.ieth.then_some(Ieth { rkey }),
                ..Headers::new(bth)
            },
            payload: vec![0x5a; len],
        }
    }
}

fn asked(seq: u64, kind: u8) -> Request {
    let remote = Remote {
        address: 0x1000,
        rkey: 1,
    };
    let (operation, length) = match kind % 5 {
        0 => (Operation::Send, 700),
        1 => (Operation::Write(remote), 256),
        2 => (Operation::Read(remote), 1000),
        3 => (Operation::FetchAdd { remote, add: 1 }, 8),
        _ => (Operation::Read(remote), 1 << 31),
    };
    Request {
        seq,
        operation,
        length,
        solicited: false,
        srq: None,
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    /// Any packets in any order, while requests are under way: no panic, nothing without bound,
    /// at most one answer without data for a packet, completions once and in order, and no READ
    /// data outside the request. Catches: arithmetic without checks on lengths and numbers,
    /// replies queued for every duplicate.
    #[test]
    fn whatever_comes(
        steps in prop::collection::vec((packet(), 0u64..400_000, any::<u8>()), 1..120),
        early: bool,
    ) {
        let base = config(Mtu::Bytes256);
        let mut bench = Bench::with(&Config {
            depth: 16,
            max_rd_atomic: 3,
            max_dest_rd_atomic: 3,
            early,
            ..base
        });
        let (mut seq, mut completed) = (0, 0);
        for (packet, pause, kind) in steps {
            if bench.connection.post(asked(seq, kind)).is_ok() {
                seq += 1;
            }
            bench.now += pause;
            bench.connection.expire(sluice_protocol::Instant::from_nanos(bench.now));
            bench.feed(&packet);
            let mut plain = 0;
            // A READ of 2 GiB may be answered at length.
            for sent in bench.take(100) {
                let response = sent.headers.bth.opcode.is_response();
                plain += u32::from(response && sent.payload.length() == 0);
            }
            prop_assert!(plain <= 4, "{} answers to one packet", plain);
            while let Some(completion) = bench.connection.completion() {
                prop_assert_eq!(completion.seq, completed);
                completed += 1;
            }
            for (seq, offset, len) in bench.memory.placed.drain(..) {
                let _ = seq;
                prop_assert!(offset + len <= 1 << 31);
            }
            for (_, len) in &bench.memory.writes {
                prop_assert!(*len <= 256);
            }
        }
        let text = format!("{:?}", bench.connection).len();
        prop_assert!(text < TEXT_MAX, "{} bytes", text);
        // Whatever happened, a queue pair that is stopped gives everything back.
        bench.connection.stop();
        while bench.connection.completion().is_some() {
            completed += 1;
        }
        prop_assert_eq!(completed, seq);
    }

    /// Without the key nothing is written, whatever is tried.
    #[test]
    fn guessed_keys(mut packets in prop::collection::vec(packet(), 1..60)) {
        let mut bench = Bench::new();
        for packet in &mut packets {
            if let Some(reth) = &mut packet.headers.reth {
                reth.rkey |= 2;
            }
            if let Some(eth) = &mut packet.headers.atomic_eth {
                eth.rkey |= 2;
            }
            bench.feed(packet);
            bench.take(100);
        }
        prop_assert!(bench.memory.writes.is_empty());
        prop_assert_eq!(bench.memory.counter, 0);
    }
}

/// Somebody floods a host with garbage, some of it for queue pairs that exist: those of others do
/// not even get slower in their own counting of packets.
#[test]
fn other_connections_are_not_touched() {
    let counts = [false, true].map(|hostile| {
        let base = config(Mtu::Bytes1024);
        let mut world = World::new(2, Faults::NONE, 5);
        let mut random = Random::new(5);
        let programs = [0, 1].map(|_| program::random(&mut random, base.mtu, 60, 8));
        world.connect([0, 1], &base, programs);
        // The victim, which asks for nothing.
        world.connect([0, 1], &base, [Vec::new(), Vec::new()]);
        world.hosts[1].ends[1].ledger.lenient = true;
        if hostile {
            for round in 0..3000u64 {
                let frame = garbage(&mut random, 17);
                world.inject(1, frame);
                if round % 100 == 0 {
                    world.pass(world.now + 1000);
                }
            }
        }
        assert!(world.run(10 * SECOND));
        assert!(world.hosts[0].ends[0].all_succeeded());
        assert!(world.hosts[1].ends[0].all_succeeded());
        world
            .hosts
            .iter()
            .map(|host| *host.ends[0].connection.counters())
            .collect::<Vec<_>>()
    });
    assert_eq!(counts[0], counts[1]);
}

/// A frame to that queue pair with a random opcode, number, and body; sometimes damaged.
fn garbage(random: &mut Random, destination: u32) -> Vec<u8> {
    let opcodes: Vec<Opcode> = Opcode::all().collect();
    let opcode = opcodes[random.below(opcodes.len() as u64) as usize];
    let mut bytes = Bth::new(
        opcode,
        Qpn::new(destination),
        Psn::new(random.next() as u32),
    )
    .emit()
    .to_vec();
    let more = random.below(300) as usize * 4;
    bytes.extend(random.bytes(opcode.following().bytes() + more));
    let Ok((headers, payload)) = Headers::parse(&bytes) else {
        return random.bytes(90);
    };
    let mut frame = [0; 2048];
    match outer(Ecn::Capable0).emit(&headers, payload, &mut frame) {
        Ok(used) => frame[..used].to_vec(),
        Err(_) => random.bytes(60),
    }
}

/// Both ends go on when strangers guess: an end that meets random packets to its own number, with
/// numbers far from those in use, finishes its program.
#[test]
fn stray_packets_do_not_stop_a_connection() {
    for seed in 0..20 {
        let base = config(Mtu::Bytes1024);
        let mut world = World::new(2, Faults::NONE, seed);
        let mut random = Random::new(seed);
        let programs = [0, 1].map(|_| program::random(&mut random, base.mtu, 60, 8));
        world.connect([0, 1], &base, programs);
        for _ in 0..300 {
            // 24 bits of sequence number: a guess is within the window with probability 64 / 2²⁴.
            for host in 0..2 {
                let frame = garbage(&mut random, 16);
                world.inject(host, frame);
            }
            world.pass(world.now + 2000);
        }
        assert!(world.run(60 * SECOND), "seed {seed}");
        for host in &world.hosts {
            assert!(host.ends[0].all_succeeded(), "seed {seed}");
        }
    }
}
