//! What queue pairs did, for `sluice verbs --stats`: a line of JSON for each, appended to the file
//! that `SLUICE_VERBS_STATS_FILE` names when the pair is destroyed or the process ends. Then there
//! also is a line for each device that has seen something of a network.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::Write;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use sluice_verbs as engine;
use sluice_verbs::QpType;

struct Stats {
    path: PathBuf,
    /// Of the process that began it: a child of fork has its parent's devices, and not what
    /// happens to them.
    pid: u32,
    program: String,
    /// Those that live, by number.
    pairs: Mutex<BTreeMap<u32, Arc<engine::Qp>>>,
}

/// None unless the variable is set when the first QP is made.
fn stats() -> Option<&'static Stats> {
    static STATS: OnceLock<Option<Stats>> = OnceLock::new();
    STATS
        .get_or_init(|| {
            let path = std::env::var_os("SLUICE_VERBS_STATS_FILE")?.into();
            // SAFETY: the function may run at the end of the process: it uses nothing that is
            // taken down before.
            unsafe { libc::atexit(at_exit) };
            Some(Stats {
                path,
                pid: std::process::id(),
                program: program(),
                pairs: Mutex::new(BTreeMap::new()),
            })
        })
        .as_ref()
}

/// The kernel's name for this program.
pub fn program() -> String {
    let comm = fs::read("/proc/self/comm").unwrap_or_default();
    String::from_utf8_lossy(&comm).trim_end().to_owned()
}

pub fn began(qp: &Arc<engine::Qp>) {
    if let Some(stats) = stats() {
        let mut pairs = stats.pairs.lock().unwrap_or_else(PoisonError::into_inner);
        pairs.insert(qp.num(), qp.clone());
    }
}

pub fn ended(qp: &Arc<engine::Qp>) {
    if let Some(stats) = stats() {
        let mut pairs = stats.pairs.lock().unwrap_or_else(PoisonError::into_inner);
        if pairs.remove(&qp.num()).is_some() {
            stats.write(&line(&stats.program, qp));
        }
    }
}

extern "C" fn at_exit() {
    let Some(stats) = stats() else {
        return;
    };
    // Another thread may be inside; the end of the process does not wait for it.
    if let Ok(pairs) = stats.pairs.try_lock() {
        let mut lines: String = pairs.values().map(|qp| line(&stats.program, qp)).collect();
        if stats.pid == std::process::id() {
            let devices = super::device::made().iter();
            lines.extend(devices.filter_map(|device| {
                let counters = device.engine.transport().counters();
                device_line(&stats.program, device.engine.name(), &counters)
            }));
        }
        stats.write(&lines);
    }
}

impl Stats {
    /// One write per call, so that lines of several processes do not mix.
    fn write(&self, lines: &str) {
        if lines.is_empty() {
            return;
        }
        let file = File::options().append(true).open(&self.path);
        // The file is sluice's own; a program must not fail because it is gone.
        let _ = file.and_then(|mut file| file.write_all(lines.as_bytes()));
    }
}

fn line(program: &str, qp: &engine::Qp) -> String {
    let counters = qp.counters();
    let kind = match qp.qp_type() {
        QpType::Rc => "RC",
        QpType::Uc => "UC",
        QpType::Ud => "UD",
        QpType::XrcSend => "XRC_SEND",
        QpType::XrcRecv => "XRC_RECV",
    };
    format!(
        "{{\"pid\":{},\"program\":\"{}\",\"qpn\":{},\"type\":\"{kind}\",\"sends\":{},\
         \"send_bytes\":{},\"sends_failed\":{},\"receives\":{},\"receive_bytes\":{}}}\n",
        std::process::id(),
        escaped(program),
        qp.num(),
        counters.sends_posted,
        counters.send_bytes,
        counters.sends_failed,
        counters.receives_done,
        counters.receive_bytes,
    )
}

/// None for a device that counts nothing, or has seen nothing.
fn device_line(program: &str, device: &str, counters: &[(&str, u64)]) -> Option<String> {
    let seen = counters.iter().filter(|(_, count)| *count > 0);
    let counters: Vec<String> = seen
        .map(|(name, count)| format!("\"{name}\":{count}"))
        .collect();
    (!counters.is_empty()).then(|| {
        format!(
            "{{\"pid\":{},\"program\":\"{}\",\"device\":\"{}\",\"counters\":{{{}}}}}\n",
            std::process::id(),
            escaped(program),
            escaped(device),
            counters.join(","),
        )
    })
}

/// Text for the inside of a JSON string.
pub fn escaped(text: &str) -> String {
    text.chars()
        .map(|c| match c {
            '"' | '\\' => format!("\\{c}"),
            c if c.is_control() => format!("\\u{:04x}", u32::from(c)),
            c => c.to_string(),
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_device_has_a_line_if_it_has_seen_something() {
        assert_eq!(device_line("p", "sluice0", &[("rcvd_pkts", 0)]), None);
        let line = device_line("p", "sluice0", &[("a", 1), ("b", 0), ("c", u64::MAX)]);
        let wanted = format!(
            "{{\"pid\":{},\"program\":\"p\",\"device\":\"sluice0\",\
             \"counters\":{{\"a\":1,\"c\":18446744073709551615}}}}\n",
            std::process::id()
        );
        assert_eq!(line, Some(wanted));
    }

    #[test]
    fn names_of_programs_cannot_break_the_line() {
        assert_eq!(escaped("a\"b\\\n"), "a\\\"b\\\\\\u000a");
    }
}
