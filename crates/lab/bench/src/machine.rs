//! The machine, the programs' versions and the date, for the report.

use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::{SystemTime, UNIX_EPOCH};

use serde::Serialize;

use super::installation;

/// What a reader must know of the machine to judge the numbers.
#[derive(Debug, Serialize)]
pub struct Machine {
    pub cpu: String,
    /// Cores that the programs may run on.
    pub cores: usize,
    /// The kernel says that it runs on virtual hardware, where waking a sleeping CPU is dear.
    pub virtual_machine: bool,
    pub memory_mib: u64,
    pub distribution: String,
    pub kernel: String,
    /// Load averages when the run began: other work on the machine disturbs.
    pub load_before: String,
    pub descriptors_max: u64,
    pub settings: BTreeMap<&'static str, String>,
}

const SETTINGS: [&str; 5] = [
    "net/core/somaxconn",
    "net/ipv4/tcp_rmem",
    "net/ipv4/tcp_wmem",
    "net/ipv4/tcp_congestion_control",
    "net/ipv4/ip_local_port_range",
];

impl Machine {
    /// Reads `/proc`; what cannot be read is "unknown".
    pub fn read(descriptors_max: u64) -> Self {
        let cpuinfo = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
        let meminfo = fs::read_to_string("/proc/meminfo").unwrap_or_default();
        let release = fs::read_to_string("/etc/os-release").unwrap_or_default();
        let cpu = value_after(&cpuinfo, "model name", ':')
            .or_else(|| value_after(&cpuinfo, "Model", ':'));
        let distribution = value_after(&release, "PRETTY_NAME", '=');
        Self {
            cpu: cpu.unwrap_or_else(unknown),
            cores: std::thread::available_parallelism().map_or(1, usize::from),
            virtual_machine: cpuinfo
                .lines()
                .any(|line| line.starts_with("flags") && line.contains(" hypervisor")),
            memory_mib: memory_kib(&meminfo, "MemTotal").unwrap_or(0) / 1024,
            distribution: distribution
                .map_or_else(unknown, |name| name.trim_matches('"').to_owned()),
            kernel: first_line("/proc/sys/kernel/osrelease"),
            load_before: first_line("/proc/loadavg"),
            descriptors_max,
            settings: SETTINGS
                .into_iter()
                .map(|name| (name, first_line(&format!("/proc/sys/{name}"))))
                .collect(),
        }
    }
}

/// Up to how many bytes all TCP sockets of the machine have as much memory as they like (the first
/// number of `tcp_mem`, tcp(7), in pages).
pub fn tcp_memory_plenty_bytes() -> u64 {
    let text = fs::read_to_string("/proc/sys/net/ipv4/tcp_mem").unwrap_or_default();
    let first = text.split_whitespace().next();
    first
        .and_then(|pages| pages.parse::<u64>().ok())
        .unwrap_or(0)
        * rustix::param::page_size() as u64
}

/// What the kernel allows the queues of one TCP connection in one direction, in bytes: what its writer
/// has written, and what its reader has not read (the last numbers of `tcp_wmem` and `tcp_rmem`, tcp(7)).
pub fn tcp_queues_max_bytes() -> u64 {
    let last = |name| {
        let text = fs::read_to_string(format!("/proc/sys/net/ipv4/{name}")).unwrap_or_default();
        let number = text.split_whitespace().last()?.parse::<u64>();
        number.ok()
    };
    let numbers = ["tcp_wmem", "tcp_rmem"].map(|name| last(name).unwrap_or(0));
    numbers.iter().sum()
}

/// Memory that programs can still take, in bytes.
pub fn memory_available_bytes() -> u64 {
    let meminfo = fs::read_to_string("/proc/meminfo").unwrap_or_default();
    memory_kib(&meminfo, "MemAvailable").unwrap_or(0) * 1024
}

fn unknown() -> String {
    "unknown".to_owned()
}

fn first_line(path: &str) -> String {
    let text = fs::read_to_string(path).unwrap_or_default();
    text.lines()
        .next()
        .map_or_else(unknown, |line| line.replace('\t', " "))
}

fn value_after(text: &str, key: &str, separator: char) -> Option<String> {
    let line = text.lines().find(|line| line.starts_with(key))?;
    Some(line.split_once(separator)?.1.trim().to_owned())
}

fn memory_kib(meminfo: &str, key: &str) -> Option<u64> {
    value_after(meminfo, key, ':')?
        .split_whitespace()
        .next()?
        .parse()
        .ok()
}

/// Frames back and forth by AF_XDP: an example program of `sluice-xdp`, which cargo builds into a
/// folder beside the folder of `sluice` itself.
pub const PING_PONG: &str = "examples/pingpong";

/// The proxy that takes bytes by SK_MSG: a program of `bench/skmsg`, beside `sluice` itself.
pub const SKMSG: &str = "sluice-skmsg";

/// How a program that is missing comes to this machine, in words that follow "not found;".
pub fn remedy(program: &str) -> &'static str {
    match program {
        PING_PONG => {
            "'cargo build --release -p sluice-xdp --example pingpong' builds it beside sluice"
        }
        SKMSG => "'cargo build --release -p sluice-skmsg' builds it beside sluice",
        _ => "'scripts/setup bench' installs it",
    }
}

/// Finds a program in `PATH`, or where distributions put servers that are not in everybody's.
pub fn find_program(name: &str) -> Option<PathBuf> {
    if matches!(name, PING_PONG | SKMSG) {
        return installation::beside_sluice(name)
            .filter(|path| sluice_lab::job::is_executable(path));
    }
    sluice_lab::job::find_program(name).or_else(|| {
        let path = sluice_lab::job::postgresql_folder()?.join(name);
        sluice_lab::job::is_executable(&path).then_some(path)
    })
}

/// The line in which a program says its version.
pub fn program_version(name: &str) -> Option<String> {
    let (program, flag) = match name {
        "nginx" | "wrk" | "haproxy" => (name, "-v"),
        // They only measure.
        PING_PONG | SKMSG => return None,
        // Another program of the same package knows.
        "ucx_perftest" => ("ucx_info", "-v"),
        "fi_pingpong" => ("fi_info", "--version"),
        _ => (name, "--version"),
    };
    let output = Command::new(find_program(program)?)
        .arg(flag)
        .stdin(Stdio::null())
        .output()
        .ok()?;
    // nginx and wrk say it on standard error, and wrk then fails.
    let said = [output.stdout, output.stderr].concat();
    let said = String::from_utf8_lossy(&said).into_owned();
    said.lines()
        .map(str::trim)
        .find(|line| !line.is_empty())
        .map(|line| line.split("  Copyright").next().unwrap_or(line).to_owned())
}

/// The time now, UTC, like `2026-11-21T08:30:00Z`.
pub fn now_utc() -> String {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    utc(since.map_or(0, |since| since.as_secs()))
}

/// The proleptic Gregorian calendar, in 400-year eras that begin on 1 March.
fn utc(unix_s: u64) -> String {
    let (days, second) = (unix_s / 86_400, unix_s % 86_400);
    let shifted = days + 719_468;
    let (era, day_of_era) = (shifted / 146_097, shifted % 146_097);
    let year_of_era =
        (day_of_era - day_of_era / 1_460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month_from_march = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * month_from_march + 2) / 5 + 1;
    let month = if month_from_march < 10 {
        month_from_march + 3
    } else {
        month_from_march - 9
    };
    let year = era * 400 + year_of_era + u64::from(month <= 2);
    let (hour, minute) = (second / 3_600, second / 60 % 60);
    let second = second % 60;
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}Z")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates_around_leap_days() {
        // From `date -u -d @N +%FT%TZ`.
        assert_eq!(utc(0), "1970-01-01T00:00:00Z");
        assert_eq!(utc(951_827_696), "2000-02-29T12:34:56Z");
        assert_eq!(utc(1_709_251_199), "2024-02-29T23:59:59Z");
        assert_eq!(utc(1_795_249_800), "2026-11-21T08:30:00Z");
    }

    #[test]
    fn keys_are_read_up_to_their_separator() {
        let text = "MemTotal:       24684540 kB\nMemFree: 1 kB\n";
        assert_eq!(memory_kib(text, "MemTotal"), Some(24_684_540));
        assert_eq!(memory_kib(text, "SwapTotal"), None);
    }
}
