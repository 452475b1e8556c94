//! What lies between the hosts: for each host one port of a switch, with a queue.

use super::random::Random;

/// What happens to frames on their way to a host. Rates of faults are in parts per million.
#[derive(Clone, Copy, Debug)]
pub struct Faults {
    pub loss: u32,
    pub duplicates: u32,
    pub corruption: u32,
    /// Frames that are late, and by how much at most.
    pub reordering: u32,
    pub late_nanos: u64,
    pub latency_nanos: u64,
    /// Bytes per second; 0 is without limit.
    pub rate: u64,
    /// Bytes in the queue above which frames are dropped, or marked.
    pub queue_max: u64,
    pub mark_above: u64,
}

impl Faults {
    /// A network without faults and limits.
    pub const NONE: Self = Self {
        loss: 0,
        duplicates: 0,
        corruption: 0,
        reordering: 0,
        late_nanos: 20_000,
        latency_nanos: 5_000,
        rate: 0,
        queue_max: u64::MAX,
        mark_above: u64::MAX,
    };
}

/// A frame on its way.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Flying {
    pub bytes: Vec<u8>,
    pub marked: bool,
}

/// The way to one host.
pub struct Port {
    pub faults: Faults,
    /// When all that is queued will have left.
    free_at: u64,
    pub lost: u64,
    pub marked: u64,
}

impl Port {
    pub fn new(faults: Faults) -> Self {
        Self {
            faults,
            free_at: 0,
            lost: 0,
            marked: 0,
        }
    }

    /// When the frame arrives, and how; any number of times.
    pub fn carry(&mut self, now: u64, bytes: Vec<u8>, random: &mut Random) -> Vec<(u64, Flying)> {
        let faults = self.faults;
        let mut frame = Flying {
            bytes,
            marked: false,
        };
        let mut leaves = now;
        if faults.rate > 0 {
            let waiting = self.free_at.saturating_sub(now);
            let queued = u128::from(waiting) * u128::from(faults.rate) / 1_000_000_000;
            if queued as u64 > faults.queue_max {
                self.lost += 1;
                return Vec::new();
            }
            // Between the limit and twice it, more and more frames are marked, as RED does.
            let above = (queued as u64).saturating_sub(faults.mark_above);
            if above > 0 && random.below(faults.mark_above) < above {
                frame.marked = true;
                self.marked += 1;
            }
            // Preamble, check sequence and gap.
            let takes = (frame.bytes.len() as u64 + 24) * 1_000_000_000 / faults.rate;
            self.free_at = self.free_at.max(now) + takes;
            leaves = self.free_at;
        }
        if random.ppm(faults.loss) {
            self.lost += 1;
            return Vec::new();
        }
        if random.ppm(faults.corruption) {
            let bit = random.below(frame.bytes.len() as u64 * 8) as usize;
            frame.bytes[bit / 8] ^= 1 << (bit % 8);
        }
        let mut arrivals = Vec::new();
        let copies = 1 + u64::from(random.ppm(faults.duplicates));
        for _ in 0..copies {
            let mut at = leaves + faults.latency_nanos;
            if random.ppm(faults.reordering) {
                at += random.below(faults.late_nanos);
            }
            arrivals.push((at, frame.clone()));
        }
        arrivals
    }
}
