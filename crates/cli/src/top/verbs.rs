//! What devices of verbs processes do, per second, from two looks.

use std::collections::HashMap;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::{Duration, Instant};

use crate::status::verbs::table::{over, states};
use crate::status::verbs::{self, Device, Process, Verbs};

/// A device of a process.
#[derive(Debug, Clone, PartialEq)]
pub struct Row {
    pub program: String,
    pub pid: Option<u32>,
    pub device: String,
    pub over: String,
    /// `2 RTS, 1 INIT`.
    pub queue_pairs: String,
    pub sends: f64,
    pub sent_bytes: f64,
    pub receives: f64,
    pub received_bytes: f64,
    /// Packets that were sent again.
    pub repeated: f64,
}

/// A device across looks.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Key {
    uid: u32,
    pid: Option<u32>,
    program: String,
    device: String,
}

/// Devices, the busiest first.
#[derive(Debug, Default)]
pub struct Devices {
    pub rows: Vec<Row>,
    before: HashMap<Key, [u64; 5]>,
}

impl Devices {
    /// Takes a new look in. `elapsed`: time since the one before.
    pub fn update(&mut self, verbs: &Verbs, elapsed: Duration) {
        let mut now = HashMap::new();
        self.rows.clear();
        for process in &verbs.processes {
            for device in process.report.iter().flat_map(|report| &report.devices) {
                let key = Key {
                    uid: process.uid,
                    pid: process.pid,
                    program: process.program.clone(),
                    device: device.name.clone(),
                };
                let counters = counters(device);
                let before = self.before.get(&key).copied().unwrap_or(counters);
                self.rows.push(row(process, device, before, elapsed));
                now.insert(key, counters);
            }
        }
        self.before = now;
        self.rows.sort_by(|a, b| {
            let busy = |row: &Row| row.sent_bytes + row.received_bytes;
            let most = busy(b).total_cmp(&busy(a));
            most.then_with(|| (&a.program, a.pid, &a.device).cmp(&(&b.program, b.pid, &b.device)))
        });
    }
}

fn counters(device: &Device) -> [u64; 5] {
    [
        device.sends,
        device.send_bytes,
        device.receives,
        device.receive_bytes,
        device.repeated().unwrap_or(0),
    ]
}

fn row(process: &Process, device: &Device, before: [u64; 5], elapsed: Duration) -> Row {
    let now = counters(device);
    let seconds = elapsed.as_secs_f64();
    // A counter that went back belongs to another process with the same number.
    let rate = |which: usize| match seconds > 0.0 {
        true => now[which].saturating_sub(before[which]) as f64 / seconds,
        false => 0.0,
    };
    Row {
        program: process.program.clone(),
        pid: process.pid,
        device: device.name.clone(),
        over: over(device),
        queue_pairs: states(&device.queue_pairs),
        sends: rate(0),
        sent_bytes: rate(1),
        receives: rate(2),
        received_bytes: rate(3),
        repeated: rate(4),
    }
}

/// Asks in a thread of its own: a process that is stopped or at odds answers late or never, and the
/// screen is not to wait for it.
pub struct Asker {
    wishes: Sender<()>,
    answers: Receiver<(Verbs, Instant)>,
    is_asking: bool,
    last: Option<Instant>,
}

impl Asker {
    /// `all`: all users' processes. Without a thread there is never an answer.
    pub fn start(all: bool) -> Self {
        let (wishes, wished) = channel();
        let (answer, answers) = channel();
        let _ = std::thread::Builder::new()
            .name("sluice-verbs".to_owned())
            .spawn(move || {
                while wished.recv() == Ok(()) {
                    let verbs = verbs::ask(all);
                    if answer.send((verbs, Instant::now())).is_err() {
                        return;
                    }
                }
            });
        Self {
            wishes,
            answers,
            is_asking: false,
            last: None,
        }
    }

    /// Has them asked once more, unless that is under way.
    pub fn ask(&mut self) {
        if !self.is_asking {
            self.is_asking = self.wishes.send(()).is_ok();
        }
    }

    /// A new answer, and how long after the one before it came.
    pub fn answer(&mut self) -> Option<(Verbs, Duration)> {
        let (verbs, at) = self.answers.try_recv().ok()?;
        self.is_asking = false;
        let before = self.last.replace(at);
        Some((verbs, before.map_or(Duration::ZERO, |before| at - before)))
    }
}

#[cfg(test)]
pub mod tests {
    use super::*;
    use crate::status::verbs::tests::{ANSWER, verbs};
    use sluice_rendezvous::survey::Answer;

    pub fn look(sends: u64, bytes: u64) -> Verbs {
        let mut answer = verbs(vec![Answer::Bytes(ANSWER.into())]);
        for device in answer.processes.iter_mut().flat_map(|it| &mut it.report) {
            device.devices[0].sends = sends;
            device.devices[0].send_bytes = bytes;
        }
        answer
    }

    #[test]
    fn rates_need_two_looks_at_the_same_process() {
        let mut devices = Devices::default();
        devices.update(&look(5000, 5_000_000), Duration::ZERO);
        let one = &devices.rows[0];
        assert_eq!((one.pid, one.device.as_str()), (Some(7), "sluice0"));
        assert_eq!((one.sends, one.sent_bytes), (0.0, 0.0));
        assert_eq!(one.queue_pairs, "2 RTS, 1 INIT");
        devices.update(&look(6000, 9_000_000), Duration::from_secs(2));
        let one = &devices.rows[0];
        assert_eq!((one.sends, one.sent_bytes), (500.0, 2_000_000.0));
        // Another process with the same number and name.
        devices.update(&look(1, 1), Duration::from_secs(1));
        assert_eq!(devices.rows[0].sends, 0.0);
        devices.update(&Verbs::default(), Duration::from_secs(1));
        assert_eq!(devices.rows, []);
    }

    #[test]
    fn the_busiest_device_is_first() {
        let mut both = look(0, 0);
        both.processes.extend(look(0, 0).processes);
        both.processes[1].pid = Some(8);
        let mut devices = Devices::default();
        devices.update(&both, Duration::ZERO);
        if let Some(report) = &mut both.processes[1].report {
            report.devices[0].receive_bytes += 10;
        }
        devices.update(&both, Duration::from_secs(1));
        let pids: Vec<_> = devices.rows.iter().map(|row| row.pid).collect();
        assert_eq!(pids, [Some(8), Some(7)]);
    }
}
