//! Random programs on both hosts, daemons that are late or hear late of each other, and links that
//! fail. Whatever happens, each stream arrives whole and in order, its end behind its last byte,
//! nobody who sleeps misses a byte, and who is told of bytes gets some.
#![allow(unsafe_code)]

mod pair;

use pair::common::{self, DONTWAIT, bytes_at, check_bytes};
use pair::{Host, Pair};
use sluice_lane::kernel;
use sluice_lane::wait::{self, Announced};
use sluice_sys::errno::Errno;

/// SplitMix64 (Steele, Lea, Flood, OOPSLA 2014).
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    fn below(&mut self, bound: u64) -> u64 {
        self.next() % bound
    }
}

#[derive(Default)]
struct Stream {
    written: u64,
    read: u64,
    is_shut: bool,
    is_over: bool,
}

struct Machine {
    pair: Pair,
    /// By the host that writes.
    streams: [Stream; 2],
    asleep: [Option<(Announced, u64)>; 2],
    /// Programs that were told of bytes and have not read since.
    is_told: [bool; 2],
    is_cut: bool,
}

impl Machine {
    fn new(random: &mut Random) -> Self {
        let sizes = [16 * 1024, 32 * 1024, 64 * 1024];
        let rings = [0, 1].map(|_| sizes[random.below(3) as usize]);
        Self {
            pair: Pair::strangers(rings, random.below(4) == 0),
            streams: Default::default(),
            asleep: [None, None],
            is_told: [false; 2],
            is_cut: false,
        }
    }

    fn write(&mut self, host: usize, len: u64) {
        let stream = &mut self.streams[host];
        if stream.is_shut {
            return;
        }
        let bytes = bytes_at(stream.written, len as usize);
        match self.pair.hosts[host].program.send(&bytes, true) {
            Ok(sent) => stream.written += sent as u64,
            Err(Errno::AGAIN) => {}
            Err(errno) => panic!("{errno:?}"),
        }
    }

    /// Reads on `host` what the other one wrote.
    fn read(&mut self, host: usize, len: u64) -> bool {
        let stream = &mut self.streams[1 - host];
        let is_told = core::mem::take(&mut self.is_told[host]);
        let mut buffer = vec![0; len as usize];
        match self.pair.hosts[host].program.recv(&mut buffer, DONTWAIT) {
            Ok(0) => {
                assert!(stream.is_shut, "an end that nobody made");
                assert_eq!(stream.read, stream.written, "the stream ends short");
                stream.is_over = true;
                false
            }
            Ok(got) => {
                check_bytes(stream.read, &buffer[..got]);
                stream.read += got as u64;
                assert!(stream.read <= stream.written);
                true
            }
            Err(Errno::AGAIN) => {
                assert!(!is_told, "told of bytes, and none there");
                false
            }
            Err(errno) => panic!("{errno:?}"),
        }
    }

    /// Asks as poll does.
    fn ask(&mut self, host: usize) {
        let program = self.pair.hosts[host].program;
        let lane = program.look();
        let is_waiting = |look: &wait::Ready| look.kernel_waits && !look.readable;
        if kernel::kernel_events(program.fd, libc::POLLIN) != 0
            && !lane.as_ref().is_some_and(is_waiting)
        {
            self.is_told[host] = wait::assure(program.end, program.generation);
        }
    }

    fn fall_asleep(&mut self, host: usize) {
        let program = self.pair.hosts[host].program;
        if self.asleep[host].is_none()
            && program.look().is_some()
            && let Ok(announced) = wait::announce(program.end, program.generation)
        {
            // What was written until now and not read may have been missed by the one who sleeps
            // only if the kernel has it, too.
            let written = self.streams[1 - host].written;
            if self.streams[1 - host].read < written {
                assert_ne!(kernel::kernel_events(program.fd, libc::POLLIN), 0);
            }
            self.asleep[host] = Some((announced, written));
        }
    }

    fn wake_up(&mut self, host: usize) {
        let program = self.pair.hosts[host].program;
        if let Some((announced, written)) = self.asleep[host].take() {
            if self.streams[1 - host].written > written {
                let events = kernel::kernel_events(program.fd, libc::POLLIN);
                assert_ne!(events, 0, "bytes came by the ring for a sleeper");
            }
            wait::withdraw(program.end, announced);
        }
    }

    fn shut(&mut self, host: usize) {
        if !self.streams[host].is_shut {
            self.streams[host].is_shut = true;
            self.pair.hosts[host]
                .program
                .shutdown_write()
                .expect("shut down");
        }
    }

    fn step(&mut self, random: &mut Random) {
        let host = random.below(2) as usize;
        if random.below(12) == 0 {
            self.pair.meet(host);
        }
        match random.below(40) {
            0..=9 => {
                let len = match random.below(3) {
                    0 => 1 + random.below(100),
                    1 => 1 + random.below(3_000),
                    _ => 1 + random.below(40_000),
                };
                self.write(host, len);
            }
            10..=19 => {
                let most = [200, 50_000][random.below(2) as usize];
                let len = 1 + random.below(most);
                if self.asleep[host].is_none() {
                    self.read(host, len);
                }
            }
            20..=24 => self.pair.turn(host),
            25..=28 => {
                if !self.is_cut {
                    for _ in 0..random.below(4) {
                        self.pair.deliver(host);
                    }
                }
            }
            29..=32 => self.pair.run(random.below(400_000)),
            33..=34 => self.fall_asleep(host),
            35..=37 => self.wake_up(host),
            38 if random.below(3) != 0 => self.ask(host),
            38 if random.below(2) == 0 => {
                if self.is_cut {
                    self.pair.mend();
                } else {
                    self.pair.cut();
                }
                self.is_cut = !self.is_cut;
            }
            // Requests and answers, so that grants are made: at first while the daemons sleep.
            _ => {
                for ns in [10_000_000, 8_000_000] {
                    if !self.pair.hosts.iter().any(Host::has_lane_standing) {
                        self.pair.fall_asleep_if_idle();
                        self.exchange(host);
                        self.pair.wake_up(ns);
                    }
                }
                for _ in 0..10 {
                    self.exchange(host);
                }
            }
        }
    }

    /// A request and its answer.
    fn exchange(&mut self, host: usize) {
        for host in [host, 1 - host] {
            self.write(host, 64);
            self.pair.run(20_000);
            if self.asleep[1 - host].is_none() {
                self.read(1 - host, 5_000);
            }
        }
    }

    /// Everything arrives, both streams end, and nothing is left of the lane, although one of the
    /// programs closes before the other has read what it wrote, and the link goes on failing.
    fn finish(&mut self, random: &mut Random) -> (u64, u64) {
        if self.is_cut {
            self.pair.mend();
        }
        for host in 0..2 {
            self.pair.meet(host);
            self.wake_up(host);
            self.shut(host);
        }
        let first = random.below(2) as usize;
        let mut snapshots = Vec::new();
        for host in [first, 1 - first] {
            self.read_to_the_end(host);
            let Host {
                program, number, ..
            } = self.pair.hosts[host];
            snapshots.push(program.snapshot());
            program.close();
            self.pair.hosts[host].engine.program_gone(number);
            self.fail_and_recover(random);
        }
        self.pair.run(5_000_000);
        for host in &mut self.pair.hosts {
            let over = host.engine.take_over();
            assert_eq!(over, [host.number], "the lane is not over");
        }
        (
            snapshots.iter().map(|it| it.ring_tx_bytes).sum(),
            snapshots.iter().map(|it| it.tcp_tx_bytes).sum(),
        )
    }

    fn read_to_the_end(&mut self, host: usize) {
        for _ in 0..20_000 {
            while self.read(host, 30_000) {}
            if self.streams[1 - host].is_over {
                return;
            }
            self.pair.run(50_000);
        }
        panic!("the stream does not end");
    }

    /// The link is cut at any moment, some times.
    fn fail_and_recover(&mut self, random: &mut Random) {
        for _ in 0..random.below(4) {
            for _ in 0..random.below(12) {
                let host = random.below(2) as usize;
                match random.below(2) {
                    0 => self.pair.turn(host),
                    _ => {
                        self.pair.deliver(host);
                    }
                }
            }
            self.pair.cut();
            self.pair.turn(random.below(2) as usize);
            self.pair.mend();
        }
    }
}

#[test]
fn random_programs() {
    let (mut ring, mut tcp) = (0, 0);
    for seed in 0..400 {
        let result = std::panic::catch_unwind(|| {
            let mut random = Random(seed);
            let mut machine = Machine::new(&mut random);
            for _ in 0..120 {
                machine.step(&mut random);
            }
            machine.finish(&mut random)
        });
        let Ok((by_ring, by_tcp)) = result else {
            panic!("seed {seed}");
        };
        ring += by_ring;
        tcp += by_tcp;
    }
    println!("{ring} bytes by ring, {tcp} by TCP");
    assert!(ring > 5 << 20 && tcp > 5 << 20, "{ring} and {tcp}");
    let _ = common::SMALL_RING;
}
