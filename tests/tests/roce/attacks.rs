//! Strangers on the path that send what they like.
//!
//! What is sent is what RoCEv2 can tell from the peer's own packets: other addresses, other queue
//! pairs, keys and packet numbers, copies, wrong lengths, damage, garbage. A stranger who knows the
//! addresses, the queue pair and the current packet number can do as the peer does: the protocol
//! has no secret (docs/threat-model.md). Near is as good as right, up to `selective::SPAN` packets
//! ahead, which a responder keeps until their turn comes; [`FAR`] is farther.

use std::net::{Ipv4Addr, Ipv6Addr};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;

use sluice_tests::hosts::namespace::Namespace;
use sluice_tests::hosts::packets::{PacketSocket, Role};
use sluice_tests::random::Random;
use sluice_tests::suite::{Verdict, ensure, fail};
use sluice_wire::frame::{Ip, Outer};
use sluice_wire::{Frame, Headers, Psn, Qpn};

/// Frames that an attacker remembers.
const MEMORY: usize = 512;
/// Packets that a wrong number is off at least. More than may pass while an attacker, who reads all
/// that there is and then sends, waits for a processor: 65,536 are half a second of what two hosts on
/// one machine exchange.
const FAR: u32 = 1 << 16;
/// Sent while the programs ran: less would test nothing.
const ENOUGH: u64 = 2000;
/// How often they run at most until so many were.
const RUNS_MAX: u32 = 20;

/// Makes something to send of a frame that was seen; nothing if that cannot be done.
pub type Attack = fn(&Seen<'_>, &mut Random) -> Option<Vec<u8>>;

pub const ATTACKS: &[(&str, Attack)] = &[
    ("garbage", garbage),
    ("damage-with-a-right-checksum", damage),
    ("other-queue-pairs", other_queue_pairs),
    ("other-addresses", other_addresses),
    ("stale-packet-numbers", stale),
    ("packet-numbers-far-ahead", ahead),
    ("copies", copies),
    ("lengths-that-lie", lengths),
    ("everything", everything),
];

/// A frame that crossed the path.
pub struct Seen<'a> {
    pub bytes: &'a [u8],
    pub frame: Frame<'a>,
    /// Later frames, in the same direction.
    pub age: usize,
}

impl Seen<'_> {
    fn outer(&self) -> Outer {
        Outer {
            ethernet: *self.frame.ethernet(),
            ip: *self.frame.ip(),
            source_port: self.frame.udp().source_port,
        }
    }

    /// The same frame with other headers and a checksum that is right for them.
    pub fn with(&self, change: impl FnOnce(&mut Headers)) -> Option<Vec<u8>> {
        let mut headers = *self.frame.packet().headers();
        change(&mut headers);
        emit(&self.outer(), &headers, self.frame.packet().payload())
    }

    /// The same frame with another transport packet, whose number is far from what the peer expects:
    /// its own would make the packet the peer's.
    fn with_far_number(&self, mut transport: Vec<u8>, random: &mut Random) -> Option<Vec<u8>> {
        let number = self
            .frame
            .packet()
            .bth()
            .psn
            .get()
            .wrapping_sub(far(random));
        transport
            .get_mut(9..12)?
            .copy_from_slice(number.to_be_bytes().get(1..)?);
        self.with_transport(&transport)
    }

    /// The same frame with another transport packet and a checksum that is right for it.
    fn with_transport(&self, transport: &[u8]) -> Option<Vec<u8>> {
        wrap(&self.outer(), transport)
    }
}

fn emit(outer: &Outer, headers: &Headers, payload: &[u8]) -> Option<Vec<u8>> {
    let mut bytes = vec![0; 2 * payload.len() + 256];
    let used = outer.emit(headers, payload, &mut bytes).ok()?;
    bytes.truncate(used);
    Some(bytes)
}

fn wrap(outer: &Outer, transport: &[u8]) -> Option<Vec<u8>> {
    let front = outer.bytes();
    let mut bytes = vec![0; front + transport.len() + 4];
    bytes
        .get_mut(front..front + transport.len())?
        .copy_from_slice(transport);
    let used = outer.wrap(transport.len(), &mut bytes).ok()?;
    bytes.truncate(used);
    Some(bytes)
}

/// Some million packets at most, and too many for a number near the current one.
fn far(random: &mut Random) -> u32 {
    FAR + random.below(1 << 22) as u32
}

/// Not a packet at all, or one without a right checksum.
fn garbage(seen: &Seen<'_>, random: &mut Random) -> Option<Vec<u8>> {
    let mut bytes = seen.bytes.to_vec();
    let front = seen.outer().bytes();
    let start = if random.below(2) == 0 {
        front
    } else {
        front + 12
    };
    for byte in bytes.get_mut(start..)? {
        *byte = random.next() as u8;
    }
    Some(bytes)
}

/// Bits turned anywhere in the transport packet, but for a queue pair that does not exist if it
/// still is a packet.
fn damage(seen: &Seen<'_>, random: &mut Random) -> Option<Vec<u8>> {
    let mut transport = seen.frame.transport().to_vec();
    for _ in 0..1 + random.below(8) {
        let bit = random.below(transport.len() as u64 * 8) as usize;
        *transport.get_mut(bit / 8)? ^= 1 << (bit % 8);
    }
    seen.with_far_number(transport, random)
}

fn other_queue_pairs(seen: &Seen<'_>, random: &mut Random) -> Option<Vec<u8>> {
    let near = random.below(2) == 0;
    let change = 1 + random.below(if near { 4 } else { 1 << 24 }) as u32;
    let own = seen.frame.packet().bth().destination.get();
    seen.with(|headers| {
        let other = Qpn::new(own.wrapping_add(change));
        headers.bth.destination = other;
    })
}

/// Right in everything but who sent it.
fn other_addresses(seen: &Seen<'_>, random: &mut Random) -> Option<Vec<u8>> {
    let mut outer = seen.outer();
    let low = 3 + random.below(200) as u8;
    match &mut outer.ip {
        Ip::V4(ip) => ip.source = Ipv4Addr::new(10, 44, 0, low),
        Ip::V6(ip) => ip.source = Ipv6Addr::new(0xfd44, 0, 0, 0, 0, 0, 0, low.into()),
    }
    wrap(&outer, seen.frame.transport())
}

/// From the right address to the right queue pair, with a number of long ago and a key, an
/// address and a length that nobody has given.
fn stale(seen: &Seen<'_>, random: &mut Random) -> Option<Vec<u8>> {
    let back = far(random);
    seen.with(|headers| {
        let number = headers.bth.psn.get().wrapping_sub(back);
        headers.bth.psn = Psn::new(number);
        forge(headers, random);
    })
}

fn ahead(seen: &Seen<'_>, random: &mut Random) -> Option<Vec<u8>> {
    let forward = far(random);
    seen.with(|headers| {
        headers.bth.psn = headers.bth.psn.after(forward);
        forge(headers, random);
    })
}

fn forge(headers: &mut Headers, random: &mut Random) {
    if random.below(2) == 0 {
        return;
    }
    if let Some(reth) = &mut headers.reth {
        reth.rkey = random.next() as u32;
        reth.address = random.next();
    }
    if let Some(atomic) = &mut headers.atomic_eth {
        atomic.rkey = random.next() as u32;
        atomic.swap_add = random.next();
    }
}

/// As it was, later.
fn copies(seen: &Seen<'_>, _: &mut Random) -> Option<Vec<u8>> {
    // An unreliable message that comes twice is two messages.
    (seen.age > 0).then(|| seen.bytes.to_vec())
}

/// Of the packet, its pad, the datagram or the memory that it writes to.
fn lengths(seen: &Seen<'_>, random: &mut Random) -> Option<Vec<u8>> {
    let outer = seen.outer();
    let ip = outer.ethernet.len();
    let mut bytes = seen.bytes.to_vec();
    match random.below(5) {
        // UDP's length.
        0 => {
            let udp = outer.bytes() - 8;
            let length = random.next() as u16;
            bytes
                .get_mut(udp + 4..udp + 6)?
                .copy_from_slice(&length.to_be_bytes());
        }
        // IP's. The header's checksum is wrong then, too; IPv6 has none.
        1 => {
            let at = if matches!(outer.ip, Ip::V4(_)) {
                ip + 2
            } else {
                ip + 4
            };
            let length = random.next() as u16;
            bytes
                .get_mut(at..at + 2)?
                .copy_from_slice(&length.to_be_bytes());
        }
        // Less than there was.
        2 => bytes.truncate(ip + random.below((bytes.len() - ip) as u64) as usize),
        // The pad.
        3 => {
            let mut transport = seen.frame.transport().to_vec();
            *transport.get_mut(1)? ^= 0x30;
            return seen.with_far_number(transport, random);
        }
        // Of the whole message.
        _ => {
            let back = far(random);
            return seen.with(|headers| {
                headers.bth.psn = Psn::new(headers.bth.psn.get().wrapping_sub(back));
                if let Some(reth) = &mut headers.reth {
                    reth.length = random.next() as u32 & 0x7fff_ffff;
                }
            });
        }
    }
    Some(bytes)
}

pub fn everything(seen: &Seen<'_>, random: &mut Random) -> Option<Vec<u8>> {
    let others = ATTACKS.len() as u64 - 1;
    let (_, attack) = ATTACKS.get(random.below(others) as usize)?;
    attack(seen, random)
}

/// Runs the body while threads attack both hosts from the path between them, again if it was over before
/// there was an attack to speak of. Fails if there never was one.
pub fn under_attack(
    between: &Namespace,
    attack: Attack,
    mut body: impl FnMut() -> Verdict,
) -> Verdict {
    let (watch, send) = between.inside(|| {
        let watch = ["left", "right"].map(|device| PacketSocket::open(device, Role::Receive));
        let send = ["right", "left"].map(|device| PacketSocket::open(device, Role::Send));
        let ([a, b], [c, d]) = (watch, send);
        Ok(([a?, b?], [c?, d?]))
    })?;
    let stop = AtomicBool::new(false);
    let sent = AtomicU64::new(0);
    thread::scope(|scope| {
        let threads: Vec<_> = (0..)
            .zip(watch.iter().zip(&send))
            .map(|(seed, (watch, send))| {
                let attacker = attacker::Attacker {
                    watch,
                    send,
                    attack,
                    stop: &stop,
                    sent: &sent,
                };
                scope.spawn(move || attacker.run(Random::new(seed)))
            })
            .collect();
        let mut result = body();
        for _ in 1..RUNS_MAX {
            if result.is_err() || sent.load(Ordering::Relaxed) > ENOUGH {
                break;
            }
            result = body();
        }
        stop.store(true, Ordering::Relaxed);
        for thread in threads {
            match thread.join() {
                Ok(Ok(())) => {}
                Ok(Err(error)) => return fail(format!("the attacker ended: {error}")),
                Err(_) => return fail("the attacker panicked"),
            }
        }
        let sent = sent.load(Ordering::Relaxed);
        println!("{sent} frames were sent");
        result?;
        ensure(sent > ENOUGH, || format!("only {sent} frames were sent"))
    })
}

mod attacker {
    use std::collections::VecDeque;
    use std::io;
    use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
    use std::thread;
    use std::time::Duration;

    use sluice_tests::hosts::packets::{BATCH, Batch, PacketSocket};
    use sluice_tests::random::Random;
    use sluice_wire::Frame;

    use super::{Attack, MEMORY, Seen};

    /// Between batches: it leaves those who are attacked a processor, also where there are few.
    const PAUSE: Duration = Duration::from_millis(4);

    /// One direction's.
    pub struct Attacker<'a> {
        pub watch: &'a PacketSocket,
        pub send: &'a PacketSocket,
        pub attack: Attack,
        pub stop: &'a AtomicBool,
        pub sent: &'a AtomicU64,
    }

    impl Attacker<'_> {
        pub fn run(&self, mut random: Random) -> io::Result<()> {
            let mut batch = Batch::new(2048);
            let mut memory: VecDeque<Vec<u8>> = VecDeque::new();
            while !self.stop.load(Ordering::Relaxed) {
                self.remember(&mut memory, &mut batch)?;
                if memory.is_empty() {
                    continue;
                }
                let frames: Vec<Vec<u8>> = (0..BATCH)
                    .filter_map(|_| {
                        let place = random.below(memory.len() as u64) as usize;
                        let bytes = memory.get(place)?;
                        let frame = Frame::parse(bytes).ok()?;
                        let age = memory.len() - 1 - place;
                        (self.attack)(&Seen { bytes, frame, age }, &mut random)
                    })
                    .collect();
                let refs: Vec<&[u8]> = frames.iter().map(Vec::as_slice).collect();
                let refused = self.send.send(&refs)?;
                let sent = refs.len() as u64 - refused;
                self.sent.fetch_add(sent, Ordering::Relaxed);
                thread::sleep(PAUSE);
            }
            Ok(())
        }

        /// All that has come by now, as the numbers of older frames would not be far from the current
        /// ones.
        fn remember(&self, memory: &mut VecDeque<Vec<u8>>, batch: &mut Batch) -> io::Result<()> {
            let mut wait = PAUSE;
            loop {
                self.watch.receive(batch, wait)?;
                for index in 0..batch.len() {
                    if memory.len() == MEMORY {
                        memory.pop_front();
                    }
                    memory.push_back(batch.frame(index).to_vec());
                }
                if batch.len() < BATCH {
                    return Ok(());
                }
                wait = Duration::ZERO;
            }
        }
    }
}
