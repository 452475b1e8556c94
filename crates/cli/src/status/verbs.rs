//! Verbs processes, which need no daemon: they are asked directly. What they say may be anything,
//! as root asks those of other users too.

pub mod table;

use std::collections::BTreeMap;
use std::os::unix::fs::MetadataExt;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use sluice_rendezvous::survey::{self, Answer, Survey};

/// For all of one user's processes, and for all of everybody's.
const PATIENCE: Duration = Duration::from_secs(3);
const PATIENCE_ALL: Duration = Duration::from_secs(10);
/// The form of answers that this program knows.
const FORMAT: u32 = 1;
/// Queue pair states, addresses and the like of one device that are taken over.
const ITEMS_MAX: usize = 64;

/// Every verbs process that was found.
#[derive(Debug, Default, Serialize)]
pub struct Verbs {
    pub processes: Vec<Process>,
    /// Names that killed processes have left.
    pub leftovers: usize,
    /// Directories that could not be looked at.
    pub failures: Vec<Failed>,
    /// Everything was looked at in time.
    pub complete: bool,
}

#[derive(Debug, Serialize)]
pub struct Failed {
    pub directory: String,
    pub why: String,
}

/// How a process took the question.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum State {
    Answers,
    /// By a signal or a debugger.
    Stopped,
    /// It did not answer in time.
    Silent,
    /// Its answer is not understood: another version, or not a verbs process at all.
    Unknown,
}

/// One process.
#[derive(Debug, Serialize)]
pub struct Process {
    /// None: it is in a pid namespace that cannot be seen from here.
    pub pid: Option<u32>,
    pub uid: u32,
    /// As the kernel names it, or the process itself where the kernel cannot be asked.
    pub program: String,
    pub state: State,
    /// Whether addresses and interfaces are those of the network namespace that this is in.
    pub same_network: Option<bool>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub report: Option<Report>,
}

/// What a process says. Every field has a default, since it may be of another version.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Report {
    pub format: u32,
    pub version: String,
    /// As the process itself sees it.
    pub pid: u32,
    pub program: String,
    /// Since the first device was opened.
    pub open_s: u64,
    /// The number of its file in /proc/PID/ns.
    pub network_namespace: u64,
    pub devices: Vec<Device>,
}

/// A device of a process.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Device {
    pub name: String,
    /// `shm` or `roce`.
    pub transport: String,
    /// How often it is open.
    pub contexts: u64,
    /// What packets go through: `UDP`, `AF_XDP eth0`.
    pub ways: Vec<String>,
    pub addresses: Vec<String>,
    /// Processes that share memory with this one.
    pub peers: Vec<u32>,
    /// By state.
    pub queue_pairs: BTreeMap<String, u64>,
    pub sends: u64,
    pub send_bytes: u64,
    pub sends_failed: u64,
    pub receives: u64,
    pub receive_bytes: u64,
    /// It was at work, and some of `counters` are missing.
    pub is_partial: bool,
    pub counters: BTreeMap<String, u64>,
}

impl Device {
    pub fn queue_pair_count(&self) -> u64 {
        sum(self.queue_pairs.values().copied())
    }

    /// Packets that were sent again; None within a host, where there are none.
    pub fn repeated(&self) -> Option<u64> {
        let count = self.counters.get("retransmitted_pkts").copied();
        self.is_network().then_some(count.unwrap_or(0))
    }

    /// Packets that were dropped here, on their way in or out.
    pub fn dropped(&self) -> Option<u64> {
        let drops = self.counters.iter();
        let drops = drops.filter(|(name, _)| name.starts_with("rx_") || name.starts_with("tx_"));
        self.is_network()
            .then(|| sum(drops.map(|(_, count)| *count)))
    }

    pub fn is_network(&self) -> bool {
        self.transport != "shm"
    }

    /// Keeps what one screen could show.
    fn bound(&mut self) {
        self.ways.truncate(ITEMS_MAX);
        self.addresses.truncate(ITEMS_MAX);
        self.peers.truncate(ITEMS_MAX);
        while self.queue_pairs.len() > ITEMS_MAX {
            self.queue_pairs.pop_last();
        }
    }
}

/// A sum of numbers that somebody made up, perhaps.
fn sum(numbers: impl Iterator<Item = u64>) -> u64 {
    numbers.fold(0, u64::saturating_add)
}

/// Asks the verbs processes of this user; with `all`, of all users.
pub fn ask(all: bool) -> Verbs {
    let found = match all {
        true => survey::look(&survey::all_places(), PATIENCE_ALL),
        false => survey::look(&survey::own_places(), PATIENCE),
    };
    understand(found, own_network())
}

/// The number of this network namespace.
fn own_network() -> Option<u64> {
    let file = std::fs::metadata("/proc/self/ns/net").ok()?;
    Some(file.ino())
}

fn understand(found: Survey, network: Option<u64>) -> Verbs {
    let processes = found.processes.into_iter();
    let failures = found.failures.into_iter();
    Verbs {
        processes: processes.map(|one| process(one, network)).collect(),
        leftovers: found.leftovers,
        failures: failures
            .map(|(directory, why)| Failed {
                directory: directory.display().to_string(),
                why,
            })
            .collect(),
        complete: !found.cut,
    }
}

fn process(found: survey::Process, network: Option<u64>) -> Process {
    let (state, report) = match &found.answer {
        Answer::Stopped => (State::Stopped, None),
        Answer::Silent => (State::Silent, None),
        Answer::Bytes(bytes) => match serde_json::from_slice::<Report>(bytes) {
            Ok(report) if report.format == FORMAT => (State::Answers, Some(report)),
            _ => (State::Unknown, None),
        },
    };
    let mut report = report;
    for device in report.iter_mut().flat_map(|report| &mut report.devices) {
        device.bound();
    }
    let said = report.as_ref().map(|report| report.program.clone());
    let other = report.as_ref().map(|report| report.network_namespace);
    Process {
        pid: found.pid,
        uid: found.uid,
        program: found.program.or(said).unwrap_or_default(),
        state,
        same_network: other.zip(network).map(|(other, own)| other == own),
        report,
    }
}

#[cfg(test)]
pub mod tests {
    use super::*;

    pub fn found(answer: Answer) -> survey::Process {
        survey::Process {
            pid: Some(7),
            uid: 1000,
            program: Some("ib_write_bw".to_owned()),
            answer,
        }
    }

    pub const ANSWER: &str = r#"{"format":1,"version":"0.1.0","pid":7,"program":"ib_write_bw",
        "network_namespace":5,"new":1,"devices":[{"name":"sluice0","transport":"roce",
        "contexts":1,"ways":["AF_XDP va","UDP"],"addresses":["10.9.0.1","fd09::1"],"peers":[],
        "queue_pairs":{"INIT":1,"RTS":2},"sends":5000,"send_bytes":5242880,"receives":3,
        "counters":{"sent_pkts":6000,"retransmitted_pkts":12,"rx_unknown_qp":2,
        "tx_unreachable":1}}]}"#;

    pub fn verbs(answers: Vec<Answer>) -> Verbs {
        let survey = Survey {
            processes: answers.into_iter().map(found).collect(),
            ..Survey::default()
        };
        understand(survey, Some(5))
    }

    #[test]
    fn an_answer_is_taken_over_with_what_is_not_known_left_out() {
        let verbs = verbs(vec![Answer::Bytes(ANSWER.into())]);
        let one = &verbs.processes[0];
        assert_eq!(one.state, State::Answers);
        assert_eq!(one.same_network, Some(true));
        let device = &one.report.as_ref().unwrap().devices[0];
        assert_eq!(device.queue_pair_count(), 3);
        assert_eq!((device.repeated(), device.dropped()), (Some(12), Some(3)));
        let value = serde_json::to_value(&verbs).unwrap();
        assert_eq!(value["processes"][0]["state"], "answers");
        let devices = &value["processes"][0]["report"]["devices"];
        assert_eq!(devices[0]["queue_pairs"]["RTS"], 2);
        assert_eq!(value["complete"], true);
    }

    #[test]
    fn what_is_no_answer_is_said_to_be_none() {
        let deep = "[".repeat(10_000);
        for odd in [
            &b""[..],
            b"\xff\xfe",
            b"{}",
            b"[]",
            b"{\"format\":2}",
            b"{\"format\":1,\"devices\":7}",
            b"{\"format\":1,\"pid\":-1}",
            deep.as_bytes(),
        ] {
            let verbs = verbs(vec![Answer::Bytes(odd.to_vec())]);
            assert_eq!(verbs.processes[0].state, State::Unknown, "{odd:?}");
            assert_eq!(verbs.processes[0].pid, Some(7));
        }
        let quiet = verbs(vec![Answer::Stopped, Answer::Silent]);
        assert_eq!(quiet.processes[0].state, State::Stopped);
        assert_eq!(quiet.processes[1].state, State::Silent);
    }

    #[test]
    fn numbers_that_are_made_up_do_no_harm() {
        let big = u64::MAX;
        let states: Vec<String> = (0..500).map(|n| format!("\"S{n}\":{big}")).collect();
        let answer = format!(
            "{{\"format\":1,\"devices\":[{{\"transport\":\"roce\",\"queue_pairs\":{{{}}},\
             \"counters\":{{\"rx_a\":{big},\"tx_b\":{big}}}}}]}}",
            states.join(",")
        );
        let verbs = verbs(vec![Answer::Bytes(answer.into_bytes())]);
        let device = &verbs.processes[0].report.as_ref().unwrap().devices[0];
        assert_eq!(device.queue_pair_count(), big);
        assert_eq!(device.dropped(), Some(big));
        assert_eq!(device.queue_pairs.len(), ITEMS_MAX);
    }
}
