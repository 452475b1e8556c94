//! Whether far more threads want to run than the machine has processors.

use std::fs::File;
use std::os::unix::fs::FileExt;

/// Time between looks, nanoseconds, at least.
const LOOK_NS: u64 = 10_000_000;
/// So many threads for each processor want to run where the machine is crowded: then each waits at
/// least as long as it runs.
const THREADS_PER_PROCESSOR: u32 = 2;
/// Where the kernel says how many threads run or could ("4th field" in proc_loadavg(5)).
const LOAD: &str = "/proc/loadavg";
/// And which processors there are: the files list ranges, "0-3,8".
const PROCESSORS: &str = "/sys/devices/system/cpu/online";

/// Looks from time to time.
#[derive(Debug, Default)]
pub struct Crowd {
    files: Option<(File, File)>,
    looked_ns: u64,
    was_crowded: bool,
}

impl Crowd {
    /// Whether the machine is crowded now and was at the last look. `None`: too soon after that, or
    /// nothing is known.
    pub fn look(&mut self, now_ns: u64) -> Option<bool> {
        if self.looked_ns != 0 && now_ns.saturating_sub(self.looked_ns) < LOOK_NS {
            return None;
        }
        self.looked_ns = now_ns;
        if self.files.is_none() {
            self.files = File::open(LOAD).ok().zip(File::open(PROCESSORS).ok());
        }
        let (load, processors) = self.files.as_ref()?;
        let threads = runnable(&first_line(load)?)?;
        let processors = count(&first_line(processors)?)?;
        // One of them is the one that asks.
        let is_crowded = threads.saturating_sub(1) > THREADS_PER_PROCESSOR * processors;
        if is_crowded != self.was_crowded {
            tracing::debug!(
                threads,
                processors,
                "{threads} threads want to run on {processors} processors"
            );
        }
        Some(std::mem::replace(&mut self.was_crowded, is_crowded) && is_crowded)
    }
}

fn first_line(file: &File) -> Option<String> {
    let mut bytes = [0; 4096];
    let got = file.read_at(&mut bytes, 0).ok()?;
    let text = std::str::from_utf8(&bytes[..got]).ok()?;
    text.lines().next().map(str::to_owned)
}

/// Of a line of `/proc/loadavg`.
fn runnable(line: &str) -> Option<u32> {
    let (runnable, _) = line.split(' ').nth(3)?.split_once('/')?;
    runnable.parse().ok()
}

/// How many numbers a list of ranges has.
fn count(ranges: &str) -> Option<u32> {
    ranges.trim().split(',').try_fold(0_u32, |sum, range| {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        let (first, last): (u32, u32) = (first.parse().ok()?, last.parse().ok()?);
        sum.checked_add(last.checked_sub(first)?.checked_add(1)?)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_files_of_the_kernel_are_understood() {
        assert_eq!(runnable("0.51 2.42 1.89 21/386 29026"), Some(21));
        assert_eq!(runnable("0.51 2.42 1.89"), None);
        assert_eq!(count("0"), Some(1));
        assert_eq!(count("0-3,8,10-11\n"), Some(7));
        for strange in ["", "x", "3-1", "0-4294967295", "0-"] {
            assert_eq!(count(strange), None, "{strange}");
        }
    }

    #[test]
    fn a_machine_is_crowded_that_was_so_twice() {
        let mut crowd = Crowd {
            was_crowded: true,
            ..Crowd::default()
        };
        let first = crowd.look(LOOK_NS).unwrap();
        assert_eq!(first, crowd.was_crowded, "as it was before");
        assert_eq!(crowd.look(2 * LOOK_NS - 1), None, "too soon");
        crowd.was_crowded = false;
        assert_eq!(crowd.look(2 * LOOK_NS), Some(false), "once is not enough");
    }
}
