//! Where the two ends are, and what each case is run with.

use std::net::{Ipv4Addr, Ipv6Addr};
use std::path::{Path, PathBuf};
use std::time::Duration;

use libtest_mimic::Trial;
use rustix::process::Signal;
use sluice_tests::guest::RXE;
use sluice_tests::guest::stranger;
use sluice_tests::hosts::{Host, Pair, Settings};
use sluice_tests::job::{Job, command};
use sluice_tests::lab::find_sluice;
use sluice_tests::suite::{Verdict, ensure, skip, trial};

use crate::side::SIDE;

/// For one case, both ends: longer than what an end waits for anything.
const LIMIT: Duration = Duration::from_secs(120);
/// With an end that is emulated.
const LIMIT_GUEST: Duration = Duration::from_secs(240);
/// Nobody else is in the namespaces.
const CONTROL_PORT: u16 = 18_790;

/// Case, device, how often, bytes of an IP packet.
const CASES: &[(&str, &str, u32, u32)] = &[
    ("payload", "shm", 100_000, 1500),
    ("payload", "roce-udp", 100_000, 1500),
    ("payload", "roce-udp", 20_000, 9000),
    ("payload", "roce", 100_000, 1500),
    ("payload", "roce", 20_000, 9000),
    ("pressure", "shm", 20_000, 1500),
    ("pressure", "roce-udp", 20_000, 1500),
    ("pressure", "roce", 20_000, 1500),
    ("wrong-key", "shm", 1, 1500),
    ("wrong-key", "roce-udp", 1, 1500),
    ("wrong-key", "roce", 1, 1500),
    ("sleep", "shm", 3000, 1500),
    ("sleep", "roce-udp", 3000, 1500),
    ("sleep", "roce", 3000, 1500),
    ("idle", "shm", 1, 1500),
    ("idle", "roce-udp", 1, 1500),
    ("idle", "roce", 1, 1500),
    ("churn", "shm", 100, 1500),
    ("churn", "roce-udp", 100, 1500),
    ("churn", "roce", 100, 1500),
];

const KILLED: &[&str] = &["shm", "roce-udp", "roce"];

/// Case, device here, how often. The other end is the kernel's device in the guest, by the system's
/// library.
const WITH_THE_KERNEL: &[(&str, &str, u32)] = &[
    ("payload", "roce-udp", 2000),
    ("payload", "roce", 2000),
    ("pressure", "roce", 500),
    ("sleep", "roce", 100),
    ("wrong-key", "roce", 1),
    ("churn", "roce-udp", 20),
];

pub fn trials() -> Vec<Trial> {
    let mut trials = Vec::new();
    for &(case, device, count, mtu) in CASES {
        let name = format!("{case}/{device}/mtu-{mtu}");
        trials.push(trial(name, move || {
            let stage = Stage::new(device, mtu)?;
            let left = stage.start(true, case, count)?;
            let right = stage.start(false, case, count)?;
            finish(left, right, LIMIT)
        }));
    }
    for &device in KILLED {
        trials.push(trial(format!("killed/{device}"), move || killed(device)));
    }
    for &(case, device, count) in WITH_THE_KERNEL {
        let name = format!("kernel/{case}/{device}");
        trials.push(trial(name, move || with_the_kernel(case, device, count)));
    }
    trials
}

/// Two hosts, or one for shared memory.
enum Stage {
    One(Host, tempfile::TempDir),
    Two(Pair, &'static str),
}

impl Stage {
    fn new(device: &'static str, mtu: u32) -> Verdict<Stage> {
        if device != "shm" {
            let settings = Settings {
                mtu,
                ..Settings::default()
            };
            return Ok(Stage::Two(Pair::new(settings)?, device));
        }
        let dir = tempfile::Builder::new().prefix("sluice-rdma-").tempdir()?;
        let addresses = (Ipv4Addr::LOCALHOST, Ipv6Addr::LOCALHOST);
        Ok(Stage::One(Host::new(dir.path(), "host", addresses)?, dir))
    }

    fn start(&self, left: bool, case: &str, count: u32) -> Verdict<Job> {
        let (host, control, device, dir) = match self {
            Stage::One(host, dir) => (host, host.v4(), "shm", dir.path()),
            Stage::Two(pair, device) if left => (&pair.left, pair.left.v4(), *device, pair.path()),
            Stage::Two(pair, device) => (&pair.right, pair.left.v4(), *device, pair.path()),
        };
        let mut command = command(std::env::current_exe()?);
        let words = words(left, case, count, device, &library()?, host.v4(), control);
        command.args(words);
        host.place(&mut command);
        Job::start(command, dir, role(left))
    }
}

fn role(left: bool) -> &'static str {
    if left { "left" } else { "right" }
}

fn words(
    left: bool,
    case: &str,
    count: u32,
    device: &str,
    library: &Path,
    local: Ipv4Addr,
    control: Ipv4Addr,
) -> [String; 8] {
    [
        SIDE.to_owned(),
        case.to_owned(),
        count.to_string(),
        role(left).to_owned(),
        device.to_owned(),
        library.display().to_string(),
        local.to_string(),
        format!("{control}:{CONTROL_PORT}"),
    ]
}

/// Ours, where `sluice verbs` finds it.
fn library() -> Verdict<PathBuf> {
    let folder = match std::env::var_os("SLUICE_LIBDIR") {
        Some(folder) => PathBuf::from(folder),
        None => find_sluice()?
            .parent()
            .map(Path::to_owned)
            .unwrap_or_default(),
    };
    let library = folder.join("verbs/libibverbs.so.1");
    if library.is_file() {
        Ok(library)
    } else {
        skip(format!("{} does not exist", library.display()))
    }
}

/// Both must end well. What both said belongs to the picture.
fn finish(left: Job, right: Job, limit: Duration) -> Verdict {
    let right = match right.finish(limit) {
        Ok(right) => right,
        Err(problem) => {
            println!("{}", left.describe());
            return Err(problem);
        }
    };
    let left = left.finish(limit)?;
    if !left.status.success() || !right.status.success() {
        println!("{}\n{}", left.describe(), right.describe());
    }
    left.success()?;
    right.success()?;
    Ok(())
}

fn killed(device: &'static str) -> Verdict {
    let stage = Stage::new(device, 1500)?;
    let mut left = stage.start(true, "killed", 1)?;
    let right = stage.start(false, "killed", 1)?;
    let mut flowing = false;
    let out = left.stdout_path().to_owned();
    left.await_ready(LIMIT, "writes", || {
        flowing = std::fs::read_to_string(&out).is_ok_and(|text| text.contains("flowing"));
        flowing
    })?;
    right.signal(Signal::KILL)?;
    let outcome = left.finish(LIMIT)?.success()?;
    ensure(outcome.text().contains("failed, "), || outcome.describe())
}

fn with_the_kernel(case: &str, device: &str, count: u32) -> Verdict {
    let lab = stranger::borrow()?;
    let dir = tempfile::tempdir_in(lab.path())?;
    let program = std::env::current_exe()?;
    let control = lab.host.v4();
    let mut here = command(&program);
    here.args(words(
        true,
        case,
        count,
        device,
        &library()?,
        control,
        control,
    ));
    lab.host.place(&mut here);
    let hardware = format!("hw:{RXE}");
    let none = Path::new("");
    let mut there = lab.guest.command(&lab.host, &program);
    there.args(words(
        false,
        case,
        count,
        &hardware,
        none,
        lab.guest.v4(),
        control,
    ));
    let left = Job::start(here, dir.path(), "left")?;
    let right = Job::start(there, dir.path(), "right")?;
    finish(left, right, LIMIT_GUEST)
}
