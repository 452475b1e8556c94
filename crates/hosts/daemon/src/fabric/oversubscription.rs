//! Whether far more threads want to run than the machine has processors.

use std::fs::File;
use std::os::unix::fs::FileExt;

use sluice_waiting::limits::LIMITS;
use sluice_waiting::machine::count_list;

/// Where the kernel says how many threads run or could ("4th field" in proc_loadavg(5)).
const LOAD: &str = "/proc/loadavg";
/// And which processors there are: the files list ranges, "0-3,8".
const PROCESSORS: &str = "/sys/devices/system/cpu/online";

/// Looks from time to time.
#[derive(Debug, Default)]
pub struct Oversubscription {
    files: Option<(File, File)>,
    looked_ns: u64,
    was_oversubscribed: bool,
}

impl Oversubscription {
    /// Whether the machine is oversubscribed now and was at the last look. `None`: too soon after that, or
    /// nothing is known.
    pub fn look(&mut self, now_ns: u64) -> Option<bool> {
        if self.looked_ns != 0
            && now_ns.saturating_sub(self.looked_ns) < LIMITS.daemon_oversubscribed_look_ns
        {
            return None;
        }
        self.looked_ns = now_ns;
        if self.files.is_none() {
            self.files = File::open(LOAD).ok().zip(File::open(PROCESSORS).ok());
        }
        let (load, processors) = self.files.as_ref()?;
        let threads = runnable(&first_line(load)?)?;
        let processors = count_list(&first_line(processors)?)?;
        // One of them is the one that asks.
        let is_oversubscribed =
            threads.saturating_sub(1) > LIMITS.daemon_oversubscribed_threads as u32 * processors;
        if is_oversubscribed != self.was_oversubscribed {
            tracing::debug!(
                threads,
                processors,
                "{threads} threads want to run on {processors} processors"
            );
        }
        Some(
            std::mem::replace(&mut self.was_oversubscribed, is_oversubscribed) && is_oversubscribed,
        )
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_files_of_the_kernel_are_understood() {
        assert_eq!(runnable("0.51 2.42 1.89 21/386 29026"), Some(21));
        assert_eq!(runnable("0.51 2.42 1.89"), None);
    }

    #[test]
    fn a_machine_is_oversubscribed_that_was_so_twice() {
        let mut oversubscription = Oversubscription {
            was_oversubscribed: true,
            ..Oversubscription::default()
        };
        let first = oversubscription
            .look(LIMITS.daemon_oversubscribed_look_ns)
            .unwrap();
        assert_eq!(
            first, oversubscription.was_oversubscribed,
            "as it was before"
        );
        assert_eq!(
            oversubscription.look(2 * LIMITS.daemon_oversubscribed_look_ns - 1),
            None,
            "too soon"
        );
        oversubscription.was_oversubscribed = false;
        assert_eq!(
            oversubscription.look(2 * LIMITS.daemon_oversubscribed_look_ns),
            Some(false),
            "once is not enough"
        );
    }
}
