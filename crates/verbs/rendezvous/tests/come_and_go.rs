//! Processes that come to a directory and leave it, all at once, and are killed in between: nobody
//! is in a directory that is not the one in place, and nothing is left in the end.

use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};
use std::{env, fs};

use sluice_rendezvous::{Numbers, Rendezvous};

const FAMILY: &str = "net-";
/// Visits of one process.
const VISITS: usize = 200;
const PROCESSES: usize = 6;
/// Of each kind of round.
const ROUNDS: usize = 4;
/// Nothing here takes longer; a test that does has hung.
const PATIENCE: Duration = Duration::from_secs(60);

fn place() -> Option<PathBuf> {
    env::var_os("SLV_PLACE").map(PathBuf::from)
}

/// Comes, also when who removes the directory gets no processor for it.
fn come(path: &Path) -> Rendezvous {
    let start = Instant::now();
    loop {
        match Rendezvous::open_passing(path, FAMILY) {
            Err(error) if error.kind() == ErrorKind::TimedOut && start.elapsed() < PATIENCE => {}
            opened => return opened.unwrap(),
        }
    }
}

/// One process: comes and leaves again and again.
fn visit(path: &Path) {
    for _ in 0..VISITS {
        let rendezvous = come(path);
        let mut numbers = Numbers::new(4);
        let number = numbers.take(&rendezvous, |_, _| Ok(())).unwrap();
        let block = number >> 8;
        for _ in 0..3 {
            // By its name: in a directory that was removed, or made anew by others, it is not.
            let found = rendezvous.blocks().contains(&block);
            assert!(found, "block {block} is not in the directory");
            assert!(rendezvous.connect(block).is_ok());
            std::thread::yield_now();
        }
        numbers.release(&rendezvous);
    }
}

fn start(test: &str, path: &Path) -> Child {
    Command::new(env::current_exe().unwrap())
        .args(["--exact", test, "--test-threads=1"])
        .env("SLV_PLACE", path)
        .stdout(Stdio::null())
        .spawn()
        .unwrap()
}

fn ends_well(child: &mut Child) {
    let start = Instant::now();
    while child.try_wait().unwrap().is_none() {
        if start.elapsed() > PATIENCE {
            let _ = child.kill();
        }
        std::thread::sleep(Duration::from_millis(2));
    }
    assert!(child.wait().unwrap().success());
}

/// The names in the parent directory.
fn left(parent: &Path) -> Vec<String> {
    let entries = fs::read_dir(parent).unwrap();
    entries
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect()
}

#[test]
fn all_that_come_and_leave_leave_nothing() {
    if let Some(path) = place() {
        return visit(&path);
    }
    let parent = tempfile::tempdir().unwrap();
    let path = parent.path().join("net-1");
    let mut children: Vec<Child> = (0..PROCESSES)
        .map(|_| start("all_that_come_and_leave_leave_nothing", &path))
        .collect();
    children.iter_mut().for_each(ends_well);
    assert_eq!(left(parent.path()), [""; 0]);
}

#[test]
fn what_the_killed_leave_goes_with_the_next() {
    if let Some(path) = place() {
        return visit(&path);
    }
    let parent = tempfile::tempdir().unwrap();
    let path = parent.path().join("net-1");
    for round in 0..ROUNDS {
        let start = || start("what_the_killed_leave_goes_with_the_next", &path);
        let mut killed: Vec<Child> = (0..PROCESSES).map(|_| start()).collect();
        let mut kept = start();
        // Each at another moment of its visits.
        for (turn, child) in killed.iter_mut().enumerate() {
            std::thread::sleep(Duration::from_millis((5 + 3 * turn + round) as u64));
            let _ = child.kill();
            child.wait().unwrap();
        }
        ends_well(&mut kept);
        // If all that came last were killed, it is there still, for whoever comes beside it.
        let beside = parent.path().join("net-2");
        drop(Rendezvous::open_passing(&beside, FAMILY).unwrap());
        assert_eq!(left(parent.path()), [""; 0]);
    }
}
