//! Two processes that talk verbs: each test starts itself twice, with a socket between the two
//! as their standard input.
#![allow(unsafe_code, dead_code, unused_imports)]

use std::io::{Read, Write};
use std::ops::Deref;
use std::os::fd::{FromRawFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use sluice_transport_shm::{ShmTransport, arena};
use sluice_verbs::{Channel, Context, Cq, Device, Pd, Qp, QpType, SendWr, Sge, WrOpcode};
use sluice_verbs_testing::Remote;
pub use sluice_verbs_testing::{EVERYTHING, Memory, PATIENCE, until};

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
        let directory =
            std::env::temp_dir().join(format!("slv-{}-{test}-{way:?}", std::process::id()));
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

/// As [`pair`], for each way to reach memory.
pub fn pair_every_way(test: &str, first: fn(&mut World), second: fn(&mut World)) {
    for way in [Way::Shared, Way::Kernel, Way::Owner] {
        pair(test, way, first, second);
    }
}

/// One process of the two.
pub struct World {
    pub context: Arc<Context>,
    pub pd: Arc<Pd>,
    pub way: Way,
    socket: UnixStream,
    _device: Arc<Device>,
    pub transport: Arc<ShmTransport>,
}

/// What a peer must know of an [`End`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Address {
    pub qpn: u32,
    pub rkey: u32,
    pub addr: u64,
    pub psn: u32,
}

/// A queue pair with memory, and where its peer is.
pub struct End {
    pub end: sluice_verbs_testing::End,
    pub peer: Address,
}

impl Deref for End {
    type Target = sluice_verbs_testing::End;

    fn deref(&self) -> &Self::Target {
        &self.end
    }
}

/// Memory of the kind that the way needs.
pub fn memory(way: Way, len: usize) -> Memory {
    match way {
        // SAFETY: nobody frees it.
        Way::Shared => unsafe { Memory::at(arena::aligned_alloc(4096, len), len) },
        _ => Memory::new(len),
    }
}

impl World {
    pub fn new() -> World {
        let directory = PathBuf::from(std::env::var_os("SLV_DIR").unwrap());
        let transport = ShmTransport::at(&directory).unwrap();
        let device = Device::new("sluice0", transport.clone());
        let context = device.open().unwrap();
        let pd = context.alloc_pd().unwrap();
        // SAFETY: standard input is the socket that the test gave us, and nobody else uses it.
        let socket = UnixStream::from(unsafe { OwnedFd::from_raw_fd(0) });
        socket.set_read_timeout(Some(PATIENCE)).unwrap();
        World {
            context,
            pd,
            way: Way::here(),
            socket,
            _device: device,
            transport,
        }
    }

    /// Gives the peer four words and takes its four.
    pub fn swap(&mut self, words: [u64; 4]) -> [u64; 4] {
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

    /// Waits until the peer is here too.
    pub fn meet(&mut self) {
        self.swap([0; 4]);
    }

    pub fn end(&mut self, kind: QpType, len: usize, channel: Option<&Arc<Channel>>) -> End {
        let cq = self.context.create_cq(1024, 0, channel, 0).unwrap();
        self.end_with(kind, len, &cq)
    }

    pub fn end_with(&mut self, kind: QpType, len: usize, cq: &Arc<Cq>) -> End {
        let memory = memory(self.way, len);
        End {
            end: sluice_verbs_testing::End::new(&self.pd, kind, cq, memory),
            peer: Address::default(),
        }
    }

    /// Tells the peer where this end is and learns where its is.
    pub fn introduce(&mut self, end: &mut End) {
        let theirs = self.swap([
            u64::from(end.qp.num()),
            u64::from(end.mr.rkey()),
            end.memory.start as u64,
            u64::from(end.psn),
        ]);
        end.peer = Address {
            qpn: theirs[0] as u32,
            rkey: theirs[1] as u32,
            addr: theirs[2],
            psn: theirs[3] as u32,
        };
    }

    /// A connected end of `len` bytes, as the peer makes one at the same time.
    pub fn connected(&mut self, kind: QpType, len: usize) -> End {
        let mut end = self.end(kind, len, None);
        self.introduce(&mut end);
        end.to_ready();
        self.meet();
        end
    }
}

impl End {
    /// The same, around a queue pair that only receives and shares its completion queue.
    pub fn as_target(&self, target: &Arc<Qp>) -> End {
        End {
            end: sluice_verbs_testing::End {
                qp: target.clone(),
                cq: self.cq.clone(),
                mr: self.mr.clone(),
                memory: self.memory,
                psn: self.psn,
            },
            peer: self.peer,
        }
    }

    pub fn to_rtr(&self) {
        let mut remote = Remote {
            qpn: self.peer.qpn,
            psn: self.peer.psn,
            path_mtu: 5,
            ..Remote::default()
        };
        remote.ah.port_num = 1;
        self.receive_from(&remote);
    }

    pub fn to_rts(&self, timeout: u8, rnr_retry: u8) {
        self.send_with(timeout, 3, rnr_retry);
    }

    pub fn to_ready(&self) {
        self.to_init();
        self.to_rtr();
        self.to_rts(14, 7);
    }

    /// A signalled request for the peer's memory at `remote`.
    pub fn request<'a>(
        &self,
        opcode: WrOpcode,
        id: u64,
        sges: &'a [Sge],
        remote: usize,
    ) -> SendWr<'a> {
        let address = self.peer.addr + remote as u64;
        sluice_verbs_testing::request(opcode, id, sges, address, self.peer.rkey)
    }
}
