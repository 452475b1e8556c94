//! The hostile end. It knows the chunk's layout by number, as a stranger would.

use super::guarded::Guarded;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

const READY_OFFSET: usize = 4096;
const LANE_OFFSET: usize = 12288;
const LANE_BYTES: usize = 512;
/// In the chunk's header page, which the crate under test leaves alone.
const ROUNDS_OFFSET: usize = 64;
/// Bytes of a direction's two lines.
const DIRECTION_BYTES: usize = 256;
/// Small numbers, flags and masks of a direction: where they begin, and how many words they are.
const FLAGS: [(usize, usize); 3] = [(16, 3), (48, 1), (192, 3)];
/// Tail and base of direction 0 and of direction 1, and the two heads.
const TAILS: [usize; 2] = [0, 256];
const BASES: [usize; 2] = [8, 264];
const HEADS: [usize; 2] = [128, 384];

/// A pseudo-random sequence (xorshift64*), the same in every run.
pub struct Random(u64);

impl Random {
    pub fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    pub fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }
}

/// Writes to a chunk of one lane and to a parking table.
pub struct Scribbler<'a> {
    chunk: &'a Guarded,
    parking: &'a Guarded,
    ring_bytes: u64,
}

/// A forked scribbler, killed when dropped.
pub struct Child(i32);

impl Drop for Child {
    fn drop(&mut self) {
        // SAFETY: our own child, which nobody else has waited for.
        unsafe {
            libc::kill(self.0, libc::SIGKILL);
            libc::waitpid(self.0, std::ptr::null_mut(), 0);
        }
    }
}

impl<'a> Scribbler<'a> {
    pub fn new(chunk: &'a Guarded, parking: &'a Guarded, ring_bytes: u32) -> Self {
        Self {
            chunk,
            parking,
            ring_bytes: ring_bytes.into(),
        }
    }

    fn word(&self, offset: usize) -> &AtomicU64 {
        assert!(offset + 8 <= self.chunk.bytes());
        // SAFETY: mapped, aligned, and everybody uses atomics there.
        unsafe { &*self.chunk.base().as_ptr().add(offset).cast() }
    }

    fn lane(&self, offset: usize) -> &AtomicU64 {
        self.word(LANE_OFFSET + offset)
    }

    /// What a new connection finds.
    pub fn reset_lane(&self) {
        for offset in (0..LANE_BYTES).step_by(8) {
            self.lane(offset).store(0, Ordering::Relaxed);
        }
    }

    /// How many rounds of [`Scribbler::run`] there were.
    pub fn rounds(&self) -> u64 {
        self.word(ROUNDS_OFFSET).load(Ordering::Relaxed)
    }

    /// Scribbles until `is_over`.
    pub fn run(&self, seed: u64, is_over: impl Fn() -> bool) {
        let mut random = Random::new(seed);
        while !is_over() {
            for _ in 0..64 {
                self.scribble(&mut random);
            }
            self.word(ROUNDS_OFFSET).fetch_add(1, Ordering::Relaxed);
            // Without a second processor the other end must get its turn with what is there.
            for _ in 0..random.next() % 512 {
                std::hint::spin_loop();
            }
        }
    }

    /// Scribbles in a process of its own. It dies with the caller.
    pub fn fork(&self, seed: u64) -> Child {
        // SAFETY: the child calls nothing that takes a lock or allocates.
        unsafe {
            let parent = libc::getpid();
            match libc::fork() {
                0 => {
                    libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL);
                    if libc::getppid() == parent {
                        self.run(seed, || false);
                    }
                    libc::_exit(0)
                }
                child => {
                    assert!(child > 0, "fork failed");
                    Child(child)
                }
            }
        }
    }

    /// Writes one piece of garbage.
    pub fn scribble(&self, random: &mut Random) {
        let dice = random.next();
        let value = self.value(random);
        match dice % 16 {
            // Any word of the lane, whoever should write it.
            0..4 => {
                let offset = (dice >> 8) as usize % (LANE_BYTES / 8) * 8;
                self.lane(offset).store(value, Ordering::Relaxed);
            }
            // Positions that might be true, so that the other end goes on.
            4..10 => self.plausible_position(random),
            // A position moved by a little.
            10 => {
                let offsets = [TAILS, BASES, HEADS][(dice >> 8) as usize % 3];
                let word = self.lane(offsets[(dice >> 16) as usize % 2]);
                let step = (value % 17).wrapping_sub(8);
                word.fetch_add(step, Ordering::Relaxed);
            }
            // Flags and masks back to zero, or to what an honest end would write.
            11..13 => {
                let (offset, words) = FLAGS[(dice >> 8) as usize % FLAGS.len()];
                let line = offset + (dice >> 12) as usize % 2 * DIRECTION_BYTES;
                for word in 0..words {
                    // Two in each.
                    let flags = (dice >> (16 + word) & 1) | (dice >> (24 + word) & 1) << 32;
                    self.lane(line + 8 * word).store(flags, Ordering::Relaxed);
                }
            }
            13 => self.half_word(dice, value),
            14 => {
                let offset = READY_OFFSET + (dice >> 8) as usize % 1024 * 8;
                self.word(offset).store(value, Ordering::Relaxed);
            }
            _ => self.sleepers(dice, value),
        }
    }

    fn value(&self, random: &mut Random) -> u64 {
        let dice = random.next();
        match dice % 8 {
            0 => 0,
            1 => u64::MAX - (dice >> 8) % 3,
            2 => 1 << ((dice >> 8) % 64),
            3 => (dice >> 8) % 5 * self.ring_bytes,
            4 => ((dice >> 8) % 5 * self.ring_bytes).wrapping_sub(1),
            5 => i64::MAX as u64 + (dice >> 8) % 2,
            6 => (dice >> 8) % (2 * self.ring_bytes),
            _ => dice,
        }
    }

    fn plausible_position(&self, random: &mut Random) {
        let dice = random.next();
        let direction = (dice >> 8) as usize % 2;
        let tail = self.lane(TAILS[direction]).load(Ordering::Relaxed);
        let head = self.lane(HEADS[direction]).load(Ordering::Relaxed);
        let some = (dice >> 16) % (self.ring_bytes + 1);
        match dice % 4 {
            0 => self
                .lane(TAILS[direction])
                .store(head.wrapping_add(some), Ordering::Relaxed),
            1 => self.lane(HEADS[direction]).store(tail, Ordering::Relaxed),
            2 => {
                let lag = some.min(tail);
                self.lane(HEADS[direction])
                    .store(tail - lag, Ordering::Relaxed);
            }
            _ => {
                let base = head.checked_next_multiple_of(self.ring_bytes).unwrap_or(0);
                self.lane(BASES[direction]).store(base, Ordering::Relaxed);
                self.lane(TAILS[direction])
                    .store(base.wrapping_add(some), Ordering::Relaxed);
            }
        }
    }

    fn half_word(&self, dice: u64, value: u64) {
        let offset = LANE_OFFSET + (dice >> 8) as usize % (LANE_BYTES / 4) * 4;
        // SAFETY: within the lane's header, aligned, and everybody uses atomics there.
        let word: &AtomicU32 = unsafe { &*self.chunk.base().as_ptr().add(offset).cast() };
        word.store(value as u32, Ordering::Relaxed);
    }

    fn sleepers(&self, dice: u64, value: u64) {
        let offset = (dice >> 8) as usize % (self.parking.bytes() / 64) * 64;
        // SAFETY: a slot of the parking table, aligned, and everybody uses atomics there.
        let word: &AtomicU32 = unsafe { &*self.parking.base().as_ptr().add(offset).cast() };
        let value = if dice >> 20 & 3 == 0 { value as u32 } else { 0 };
        word.store(value, Ordering::Relaxed);
    }
}
