//! Copies within one process: the limit of everything that copies once.

use std::hint::black_box;
use std::io::{self, Write};
use std::time::{Duration, Instant};

/// Between two looks at the clock.
const ROUND: u64 = 100;
/// Warm-up: page faults, and the clock of the processor.
const WARM_UP: Duration = Duration::from_millis(200);

/// Copies from one buffer to another for so many seconds and says how often.
pub fn run(bytes: usize, seconds: u32) -> io::Result<()> {
    let source = vec![1_u8; bytes];
    let mut target = vec![0_u8; bytes];
    let mut copy_for = |duration: Duration| {
        let start = Instant::now();
        let mut copies = 0;
        while start.elapsed() < duration {
            for _ in 0..ROUND {
                target.copy_from_slice(black_box(&source));
                black_box(&mut target);
            }
            copies += ROUND;
        }
        (copies, start.elapsed().as_secs_f64())
    };
    copy_for(WARM_UP);
    let (copies, elapsed_s) = copy_for(Duration::from_secs(u64::from(seconds)));
    writeln!(io::stdout(), "{copies} copies in {elapsed_s} seconds")
}
