//! Where the two ends are, and what each case is run with.

use std::net::{Ipv4Addr, Ipv6Addr};
use std::path::{Path, PathBuf};
use std::time::Duration;

use libtest_mimic::Trial;
use rustix::process::Signal;
use sluice_tests::guest::RXE;
use sluice_tests::guest::stranger::{self, Stranger};
use sluice_tests::hosts::{Host, Pair, Settings};
use sluice_tests::job::{Job, command};
use sluice_tests::lab::find_sluice;
use sluice_tests::suite::{Verdict, ensure, skip, trial};

use crate::side::SIDE;

/// For one case, both ends: longer than what an end waits for anything.
const LIMIT: Duration = Duration::from_secs(240);
/// With an end that is emulated.
const LIMIT_GUEST: Duration = Duration::from_secs(300);
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

/// Case, device here, how often, whether the kernel has the left end. The other end is the kernel's device in the guest, by the system's
/// library.
const WITH_THE_KERNEL: &[(&str, &str, u32, bool)] = &[
    ("payload", "roce-udp", 2000, false),
    ("payload", "roce", 2000, false),
    ("pressure", "roce", 500, false),
    ("sleep", "roce", 100, false),
    ("wrong-key", "roce", 1, false),
    ("wrong-key", "roce-udp", 1, true),
    ("pressure", "roce-udp", 500, true),
    ("churn", "roce-udp", 20, false),
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
    for device in ["roce-udp", "roce"] {
        let name = format!("reconnect/{device}");
        trials.push(trial(name, move || reconnect(device)));
    }
    for &(case, device, count, kernel_left) in WITH_THE_KERNEL {
        let ends = if kernel_left {
            "kernel-left"
        } else {
            "kernel-right"
        };
        let name = format!("kernel/{case}/{device}/{ends}");
        trials.push(trial(name, move || {
            with_the_kernel(case, device, count, kernel_left)
        }));
    }
    for (survivor, kernel_survives) in [("kernel", true), ("sluice", false)] {
        let name = format!("kernel/killed/{survivor}-survives");
        trials.push(trial(name, move || {
            killed_with_the_kernel("roce-udp", kernel_survives)
        }));
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
    let left = stage.start(true, "killed", 1)?;
    let right = stage.start(false, "killed", 1)?;
    kill_right(left, right, LIMIT)
}

/// Kills the right end when the requests flow; the left one must end well, after it was told.
fn kill_right(mut left: Job, right: Job, limit: Duration) -> Verdict {
    left.await_text("flowing", limit)?;
    right.signal(Signal::KILL)?;
    let outcome = left.finish(limit)?.success()?;
    ensure(outcome.text().contains("failed, "), || outcome.describe())
}

fn reconnect(device: &'static str) -> Verdict {
    let stage = Stage::new(device, 1500)?;
    let mut ends = [
        stage.start(true, "reconnect", 1)?,
        stage.start(false, "reconnect", 1)?,
    ];
    await_words(&mut ends, "flowing")?;
    let Stage::Two(pair, _) = &stage else {
        return skip("shared memory has no cable");
    };
    let cable = pair.left.device();
    pair.left.ip(&format!("link set {cable} down"))?;
    let broken = await_words(&mut ends, "broken");
    pair.left.ip(&format!("link set {cable} up"))?;
    broken?;
    let [left, right] = ends;
    finish(left, right, LIMIT)
}

/// Waits until both ends have said the word.
fn await_words(ends: &mut [Job; 2], word: &str) -> Verdict {
    for end in ends {
        end.await_text(word, LIMIT)?;
    }
    Ok(())
}

fn with_the_kernel(case: &str, device: &str, count: u32, kernel_left: bool) -> Verdict {
    let lab = stranger::borrow()?;
    let dir = tempfile::tempdir_in(lab.path())?;
    let start = |left| {
        let in_guest = left == kernel_left;
        start_with_the_kernel(&lab, dir.path(), case, count, device, left, in_guest)
    };
    finish(start(true)?, start(false)?, LIMIT_GUEST)
}

fn killed_with_the_kernel(device: &str, kernel_survives: bool) -> Verdict {
    let lab = stranger::borrow()?;
    let dir = tempfile::tempdir_in(lab.path())?;
    let start = |left| {
        let in_guest = left == kernel_survives;
        start_with_the_kernel(&lab, dir.path(), "killed", 1, device, left, in_guest)
    };
    kill_right(start(true)?, start(false)?, LIMIT_GUEST)
}

/// Starts an end here, with a device of ours, or in the guest, with the kernel's.
fn start_with_the_kernel(
    lab: &Stranger,
    dir: &Path,
    case: &str,
    count: u32,
    device: &str,
    left: bool,
    in_guest: bool,
) -> Verdict<Job> {
    // The left end listens on its own address.
    let control = match left == in_guest {
        true => lab.guest.v4(),
        false => lab.host.v4(),
    };
    let program = std::env::current_exe()?;
    let command = if in_guest {
        let hardware = format!("hw:{RXE}");
        let words = words(
            left,
            case,
            count,
            &hardware,
            Path::new(""),
            lab.guest.v4(),
            control,
        );
        let mut command = lab.guest.command(&lab.host, &program);
        command.args(words);
        command
    } else {
        let words = words(
            left,
            case,
            count,
            device,
            &library()?,
            lab.host.v4(),
            control,
        );
        let mut command = command(&program);
        command.args(words);
        lab.host.place(&mut command);
        command
    };
    Job::start(command, dir, role(left))
}
