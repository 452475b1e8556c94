//! Two processes that talk verbs: each test starts itself twice, with a socket between the two
//! as their standard input.
#![allow(unsafe_code, dead_code)]

use std::io::{Read, Write};
use std::os::fd::{FromRawFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use sluice_transport_shm::{ShmTransport, arena};
use sluice_verbs::{
    Channel, Context, Cq, Device, Mr, Pd, Qp, QpAttr, QpCap, QpInit, QpState, QpType, SendWr, Sge,
    Wc, WcStatus, WrOpcode, access, qp_mask, send_flags,
};

/// Nothing in these tests takes longer; a test that does has hung.
pub const PATIENCE: Duration = Duration::from_secs(60);
pub const EVERYTHING: u32 = access::LOCAL_WRITE | access::REMOTE_ANY;

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

/// A queue pair with memory.
pub struct End {
    pub qp: Arc<Qp>,
    pub cq: Arc<Cq>,
    pub mr: Arc<Mr>,
    pub memory: Memory,
    pub peer: Address,
    pub psn: u32,
}

/// Registered memory of a test, of the kind that the way needs.
#[derive(Clone, Copy, Debug)]
pub struct Memory {
    pub start: *mut u8,
    pub len: usize,
}

impl Memory {
    pub fn new(way: Way, len: usize) -> Memory {
        let start = if way == Way::Shared {
            arena::aligned_alloc(4096, len)
        } else {
            Box::leak(vec![0u64; len.div_ceil(8)].into_boxed_slice())
                .as_mut_ptr()
                .cast()
        };
        assert!(!start.is_null());
        Memory { start, len }
    }

    pub fn byte(&self, at: usize) -> u8 {
        assert!(at < self.len);
        // SAFETY: inside the memory; peers may write it at any time.
        unsafe { self.start.add(at).read_volatile() }
    }

    pub fn word(&self, at: usize) -> u64 {
        assert!(at + 8 <= self.len && at.is_multiple_of(8));
        // SAFETY: as above.
        unsafe { self.start.add(at).cast::<u64>().read_volatile() }
    }

    pub fn set_word(&self, at: usize, value: u64) {
        assert!(at + 8 <= self.len && at.is_multiple_of(8));
        // SAFETY: as above.
        unsafe { self.start.add(at).cast::<u64>().write_volatile(value) };
    }

    pub fn fill(&self, at: usize, len: usize, seed: u8) {
        for index in 0..len {
            assert!(at + index < self.len);
            // SAFETY: as above.
            unsafe {
                self.start
                    .add(at + index)
                    .write_volatile(pattern(index, seed));
            }
        }
    }

    pub fn check(&self, at: usize, len: usize, seed: u8) {
        for index in 0..len {
            assert_eq!(
                self.byte(at + index),
                pattern(index, seed),
                "byte {index} of {len}"
            );
        }
    }
}

fn pattern(index: usize, seed: u8) -> u8 {
    (index.wrapping_mul(7) + index / 251) as u8 ^ seed
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
        let memory = Memory::new(self.way, len);
        let address = memory.start as u64;
        let mr = self
            .pd
            .reg_mr(address, len as u64, address, EVERYTHING)
            .unwrap();
        let qp = self
            .pd
            .create_qp(&QpInit {
                send_cq: Some(cq.clone()),
                recv_cq: Some(cq.clone()),
                cap: QpCap {
                    max_send_wr: 256,
                    max_recv_wr: 256,
                    max_send_sge: 4,
                    max_recv_sge: 4,
                    max_inline_data: 64,
                },
                ..QpInit::new(kind)
            })
            .unwrap();
        let psn = 0xFF_FFF0 + (qp.num() & 0xF);
        End {
            qp,
            cq: cq.clone(),
            mr,
            memory,
            peer: Address::default(),
            psn,
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
    pub fn to_init(&self) {
        let attr = QpAttr {
            qp_state: QpState::Init as u32,
            port_num: 1,
            qp_access_flags: access::REMOTE_ANY,
            qkey: 0x1111_1111,
            ..QpAttr::default()
        };
        let own = if self.qp.qp_type() == QpType::Ud {
            qp_mask::QKEY
        } else {
            qp_mask::ACCESS_FLAGS
        };
        self.qp
            .modify(
                &attr,
                qp_mask::STATE | qp_mask::PKEY_INDEX | qp_mask::PORT | own,
            )
            .unwrap();
    }

    pub fn to_rtr(&self) {
        let mut attr = QpAttr {
            qp_state: QpState::Rtr as u32,
            path_mtu: 5,
            dest_qp_num: self.peer.qpn,
            rq_psn: self.peer.psn,
            max_dest_rd_atomic: 16,
            min_rnr_timer: 1,
            ..QpAttr::default()
        };
        attr.ah_attr.port_num = 1;
        attr.ah_attr.is_global = 0;
        let mask = match self.qp.qp_type() {
            QpType::Ud => qp_mask::STATE,
            kind => {
                let connected = qp_mask::STATE
                    | qp_mask::AV
                    | qp_mask::PATH_MTU
                    | qp_mask::DEST_QPN
                    | qp_mask::RQ_PSN;
                if matches!(kind, QpType::Uc | QpType::XrcSend) {
                    connected
                } else {
                    connected | qp_mask::MAX_DEST_RD_ATOMIC | qp_mask::MIN_RNR_TIMER
                }
            }
        };
        self.qp.modify(&attr, mask).unwrap();
    }

    pub fn to_rts(&self, timeout: u8, rnr_retry: u8) {
        let attr = QpAttr {
            qp_state: QpState::Rts as u32,
            sq_psn: self.psn,
            timeout,
            retry_cnt: 3,
            rnr_retry,
            max_rd_atomic: 16,
            ..QpAttr::default()
        };
        let mask = match self.qp.qp_type() {
            QpType::Ud | QpType::Uc => qp_mask::STATE | qp_mask::SQ_PSN,
            _ => {
                qp_mask::STATE
                    | qp_mask::SQ_PSN
                    | qp_mask::TIMEOUT
                    | qp_mask::RETRY_CNT
                    | qp_mask::RNR_RETRY
                    | qp_mask::MAX_QP_RD_ATOMIC
            }
        };
        self.qp.modify(&attr, mask).unwrap();
    }

    pub fn to_ready(&self) {
        self.to_init();
        self.to_rtr();
        self.to_rts(14, 7);
    }

    pub fn sge(&self, at: usize, len: usize) -> Sge {
        Sge {
            addr: self.memory.start as u64 + at as u64,
            length: len as u32,
            lkey: self.mr.lkey(),
        }
    }

    pub fn post_recv(&self, id: u64, at: usize, len: usize) {
        self.qp.post_recv(id, &[self.sge(at, len)]).unwrap();
    }

    /// A signalled request for the peer's memory at `remote`.
    pub fn request<'a>(
        &self,
        opcode: WrOpcode,
        id: u64,
        sges: &'a [Sge],
        remote: usize,
    ) -> SendWr<'a> {
        SendWr {
            flags: send_flags::SIGNALED,
            sges,
            remote_addr: self.peer.addr + remote as u64,
            rkey: self.peer.rkey,
            ..SendWr::new(opcode, id)
        }
    }

    /// The next completion.
    pub fn completion(&self) -> Wc {
        let start = Instant::now();
        loop {
            if let Some(wc) = self.cq.poll_one() {
                return wc;
            }
            assert!(start.elapsed() < PATIENCE, "no completion");
            std::hint::spin_loop();
        }
    }

    /// The next completion, which is good.
    pub fn good(&self) -> Wc {
        let wc = self.completion();
        assert_eq!(wc.status, WcStatus::Success as u32, "{wc:?}");
        wc
    }

    /// Posts, and waits for the completion of exactly this.
    pub fn run(&self, wr: &SendWr<'_>) -> Wc {
        self.qp.post_send(wr).unwrap();
        let wc = self.completion();
        assert_eq!(wc.wr_id, wr.wr_id, "{wc:?}");
        wc
    }
}

/// Waits for a condition on memory that a peer writes.
pub fn until(what: &str, mut condition: impl FnMut() -> bool) {
    let start = Instant::now();
    while !condition() {
        assert!(start.elapsed() < PATIENCE, "{what} did not happen");
        std::hint::spin_loop();
    }
}
