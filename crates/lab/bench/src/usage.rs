//! What processes use: CPU time, wake-ups and memory of whole process groups.

use std::fs;

use super::signals;

/// Totals over all processes of some groups.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Usage {
    pub cpu_ns: u64,
    /// Voluntary context switches of all threads: each is a sleep that something ended.
    pub sleeps: u64,
    /// Proportional set size, shared memory included, in KiB.
    pub pss_kib: u64,
}

/// CPU seconds of everything in the process groups, from each process's own clock.
///
/// Processes that end between two calls drop out; the servers measured here keep theirs.
pub fn cpu_s(groups: &[i32]) -> f64 {
    let total: u64 = members(groups)
        .into_iter()
        .filter_map(signals::process_cpu_ns)
        .sum();
    total as f64 / 1e9
}

/// How the names of the kernel's threads begin that take over packets when a processor has too many
/// of them. What a program's own system calls carry is in that program's time.
pub const PACKET_THREADS: &str = "ksoftirqd/";
/// Of those that do what the kernel put off and that may run on any processor.
pub const WORKERS: &str = "kworker/u";

/// CPU seconds of the kernel's threads whose names begin with one of these.
pub fn kernel_threads_cpu_s(beginnings: &[&str]) -> f64 {
    if beginnings.is_empty() {
        return 0.0;
    }
    let Ok(processes) = fs::read_dir("/proc") else {
        return 0.0;
    };
    let total: u64 = processes
        .flatten()
        .filter_map(|entry| entry.file_name().to_str()?.parse::<i32>().ok())
        .filter(|pid| {
            fs::read_to_string(format!("/proc/{pid}/comm")).is_ok_and(|name| {
                beginnings
                    .iter()
                    .any(|beginning| name.starts_with(beginning))
            })
        })
        .filter_map(signals::process_cpu_ns)
        .sum();
    total as f64 / 1e9
}

/// The unit of `/proc/stat`: `USER_HZ`, which is 100 on x86-64 and on every newer architecture.
const TICKS_PER_S: f64 = 100.0;

/// CPU seconds that all processors together have spent on work since the start of the machine,
/// time that a hypervisor withheld included. 0 if the kernel does not tell.
pub fn machine_busy_s() -> f64 {
    let stat = fs::read_to_string("/proc/stat").unwrap_or_default();
    busy_ticks(&stat).unwrap_or(0) as f64 / TICKS_PER_S
}

/// The sum of the first line without idle (4th) and iowait (5th), up to steal (8th): the guests
/// that follow are already part of user time.
fn busy_ticks(stat: &str) -> Option<u64> {
    let line = stat.lines().next()?.strip_prefix("cpu ")?;
    let ticks = line.split_whitespace().take(8).enumerate();
    ticks
        .filter(|(index, _)| !matches!(index, 3 | 4))
        .map(|(_, ticks)| ticks.parse::<u64>().ok())
        .sum()
}

/// CPU, sleeps and memory of everything in the process groups.
pub fn usage(groups: &[i32]) -> Usage {
    let mut total = Usage::default();
    for pid in members(groups) {
        total.cpu_ns += signals::process_cpu_ns(pid).unwrap_or(0);
        total.sleeps += sleeps(pid);
        let rollup = fs::read_to_string(format!("/proc/{pid}/smaps_rollup")).unwrap_or_default();
        total.pss_kib += number_after(&rollup, "Pss:").unwrap_or(0);
    }
    total
}

/// The number behind a key, as /proc writes it: `Pss:   123 kB`.
fn number_after(text: &str, key: &str) -> Option<u64> {
    text.lines()
        .find_map(|line| line.strip_prefix(key))?
        .split_whitespace()
        .next()?
        .parse()
        .ok()
}

fn sleeps(pid: i32) -> u64 {
    let Ok(tasks) = fs::read_dir(format!("/proc/{pid}/task")) else {
        return 0;
    };
    tasks
        .flatten()
        .filter_map(|task| fs::read_to_string(task.path().join("status")).ok())
        .filter_map(|status| number_after(&status, "voluntary_ctxt_switches:"))
        .sum()
}

/// The processes that the process has started and that have not ended.
pub fn children(pid: i32) -> Vec<i32> {
    let text = fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).unwrap_or_default();
    let numbers = text.split_whitespace();
    numbers.filter_map(|number| number.parse().ok()).collect()
}

/// The processes of the groups, by `/proc/PID/stat`.
fn members(groups: &[i32]) -> Vec<i32> {
    let Ok(processes) = fs::read_dir("/proc") else {
        return Vec::new();
    };
    processes
        .flatten()
        .filter_map(|entry| entry.file_name().to_str()?.parse::<i32>().ok())
        .filter(|pid| {
            fs::read_to_string(format!("/proc/{pid}/stat"))
                .ok()
                .and_then(|stat| process_group(&stat))
                .is_some_and(|group| groups.contains(&group))
        })
        .collect()
}

/// The group in a stat line. The name before it may hold anything, parentheses included.
fn process_group(stat: &str) -> Option<i32> {
    let after_name = stat.rsplit_once(')')?.1;
    after_name.split_whitespace().nth(2)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn group_is_found_behind_a_hostile_name() {
        assert_eq!(process_group("12 (a) b (c) S 1 77 77 0 -1"), Some(77));
        assert_eq!(process_group("12"), None);
    }

    #[test]
    fn waiting_and_guests_are_not_added_to_work() {
        let stat = "cpu  1 2 4 1000 1000 8 16 32 5000 5000\ncpu0 9 9 9 9\n";
        assert_eq!(busy_ticks(stat), Some(63));
        assert_eq!(busy_ticks("intr 1 2 3"), None);
    }

    #[test]
    fn own_group_has_used_cpu_and_memory() {
        let stat = fs::read_to_string("/proc/self/stat").expect("own stat");
        let group = process_group(&stat).expect("own group");
        let usage = usage(&[group]);
        assert!(usage.cpu_ns > 0 && usage.pss_kib > 0, "{usage:?}");
        assert!(cpu_s(&[group]) > 0.0);
    }
}
