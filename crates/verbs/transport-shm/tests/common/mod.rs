//! Two processes that talk verbs: each test starts itself twice, with a socket between the two
//! as their standard input.
#![allow(unsafe_code, dead_code, unused_imports)]

use std::io::{Read, Write};
use std::ops::{Deref, DerefMut};
use std::os::fd::{FromRawFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use sluice_transport_shm::{ShmTransport, arena};
use sluice_verbs::Device;
pub use sluice_verbs_testing::{EVERYTHING, Joined as End, Memory, PATIENCE, Peer, Side, until};
use sluice_verbs_testing::{Row, Site};

/// How the peer's memory is reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    Shared,
    Kernel,
    Owner,
}

impl Way {
    pub fn env(self) -> (&'static str, &'static str) {
        match self {
            Way::Shared => ("SLV_WAY", "shared"),
            Way::Kernel => ("SLV_WAY", "kernel"),
            Way::Owner => ("SLV_WAY", "owner"),
        }
    }

    fn here() -> Way {
        match std::env::var("SLV_WAY").as_deref() {
            Ok("kernel") => Way::Kernel,
            Ok("owner") => Way::Owner,
            _ => Way::Shared,
        }
    }
}

/// The two processes of a test, as the test itself sees them.
pub struct Pair {
    pub first: Child,
    pub second: Child,
    directory: PathBuf,
}

impl Pair {
    pub fn start(test: &str, way: Way) -> Pair {
        // Short: sockets are in it, whose names have 107 bytes.
        static STARTED: AtomicU32 = AtomicU32::new(0);
        let number = STARTED.fetch_add(1, Ordering::Relaxed);
        let directory = std::env::temp_dir().join(format!("slv-{}-{number}", std::process::id()));
        let _ = std::fs::remove_dir_all(&directory);
        let (left, right) = UnixStream::pair().unwrap();
        let start = |role: &str, socket: UnixStream| {
            let mut command = Command::new(std::env::current_exe().unwrap());
            command
                .args(["--exact", test, "--nocapture", "--test-threads=1"])
                .env("SLV_ROLE", role)
                .env("SLV_DIR", &directory)
                .env(way.env().0, way.env().1)
                .stdin(Stdio::from(OwnedFd::from(socket)));
            if way == Way::Owner {
                command.env("SLUICE_VERBS_CMA", "0");
            }
            command.spawn().unwrap()
        };
        let first = start("first", left);
        let second = start("second", right);
        Pair {
            first,
            second,
            directory,
        }
    }

    /// What both have for themselves.
    pub fn directory(&self) -> &Path {
        &self.directory
    }

    /// Both end well, in time.
    pub fn finish(mut self) {
        assert!(wait(&mut self.first).success(), "the first process failed");
        assert!(
            wait(&mut self.second).success(),
            "the second process failed"
        );
    }
}

impl Drop for Pair {
    fn drop(&mut self) {
        for child in [&mut self.first, &mut self.second] {
            let _ = child.kill();
            let _ = child.wait();
        }
        let _ = std::fs::remove_dir_all(&self.directory);
    }
}

/// Waits for a process; kills it when it takes too long.
pub fn wait(child: &mut Child) -> std::process::ExitStatus {
    let start = Instant::now();
    loop {
        if let Some(status) = child.try_wait().unwrap() {
            return status;
        }
        if start.elapsed() > PATIENCE {
            let _ = child.kill();
        }
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Runs a test in two processes: `first` and `second` in each of them.
pub fn pair(test: &str, way: Way, first: fn(&mut World), second: fn(&mut World)) {
    match std::env::var("SLV_ROLE").as_deref() {
        Ok("first") if Way::here() == way => first(&mut World::new()),
        Ok("second") if Way::here() == way => second(&mut World::new()),
        Ok(_) => {}
        Err(_) => Pair::start(test, way).finish(),
    }
}

/// Runs a row of the conformance suite: `path` is its test's, from the crate on.
pub fn run_row(path: &str, row: &Row, way: Way) {
    let (_, test) = path.split_once("::").expect("a test of a crate");
    match std::env::var("SLV_ROLE").as_deref() {
        Ok("first") => row.run(row.first, &mut World::new()),
        Ok(_) => row.run(row.second, &mut World::new()),
        Err(_) => Pair::start(test, way).finish(),
    }
}

/// As [`pair`], for each way to reach memory.
pub fn pair_every_way(test: &str, first: fn(&mut World), second: fn(&mut World)) {
    for way in [Way::Shared, Way::Kernel, Way::Owner] {
        pair(test, way, first, second);
    }
}

/// One process of the two.
pub struct World {
    side: Side,
    pub way: Way,
    pub transport: Arc<ShmTransport>,
}

impl Deref for World {
    type Target = Side;

    fn deref(&self) -> &Side {
        &self.side
    }
}

impl DerefMut for World {
    fn deref_mut(&mut self) -> &mut Side {
        &mut self.side
    }
}

/// Where a process of the two is: it has a socket to the other one.
struct Process {
    socket: UnixStream,
    way: Way,
}

impl Site for Process {
    fn swap(&mut self, words: [u64; 4]) -> [u64; 4] {
        let mut bytes = [0; 32];
        for (place, word) in bytes.chunks_exact_mut(8).zip(words) {
            place.copy_from_slice(&word.to_ne_bytes());
        }
        self.socket.write_all(&bytes).unwrap();
        self.socket.read_exact(&mut bytes).unwrap();
        let mut words = [0; 4];
        for (word, place) in words.iter_mut().zip(bytes.chunks_exact(8)) {
            *word = u64::from_ne_bytes(place.try_into().unwrap());
        }
        words
    }

    /// Of the kind that the way needs.
    fn memory(&self, len: usize) -> Memory {
        match self.way {
            // SAFETY: nobody frees it.
            Way::Shared => unsafe { Memory::at(arena::aligned_alloc(4096, len), len) },
            _ => Memory::new(len),
        }
    }
}

impl World {
    pub fn new() -> World {
        let directory = PathBuf::from(std::env::var_os("SLV_DIR").unwrap());
        let transport = ShmTransport::at(&directory).unwrap();
        let device = Device::new("sluice0", transport.clone());
        // SAFETY: standard input is the socket that the test gave us, and nobody else uses it.
        let socket = UnixStream::from(unsafe { OwnedFd::from_raw_fd(0) });
        socket.set_read_timeout(Some(PATIENCE)).unwrap();
        let way = Way::here();
        World {
            side: Side::new(device, Process { socket, way }),
            way,
            transport,
        }
    }
}
