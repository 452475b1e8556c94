//! A process of our own that talks verbs, and a peer that greets it properly and then says and
//! writes anything: as requester, as responder, in its directory, over the sockets.
//!
//! What must hold: no panic, no access outside the registered memory (which ends where faulting
//! pages begin), and every call returns. The victim polls, posts and receives meanwhile.
#![allow(unsafe_code)]

use crate::guarded::Guarded;
use crate::input::Input;
use core::sync::atomic::{AtomicU64, Ordering};
use sluice_rendezvous::{Block, Rendezvous};
use sluice_shmem::mapping::{Access, Mapping};
use sluice_shmem::verbs::directory::{BLOCK_QPS, DIRECTORY_BYTES, Directory, KeyEntry, QpEntry};
use sluice_shmem::verbs::record::{Header, Ring, Writer};
use sluice_sys::unix::{self, Fd};
use sluice_sys::{errno::Errno, memfd};
use sluice_transport_shm::ShmTransport;
use sluice_verbs::{
    Context, Cq, Device, Mr, Pd, Qp, QpAttr, QpCap, QpInit, QpState, QpType, SendWr, Sge, WrOpcode,
    access, qp_mask, send_flags,
};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

/// The layout of a link, as `link.rs` of the transport describes it.
const REQUESTS_OFFSET: usize = 8192;
const REQUEST_RING: usize = 256 * 1024;
const RESPONSES_OFFSET: usize = 4096;
const RESPONSE_RING: usize = 2 * REQUEST_RING;
const MAGIC: u64 = 0x534c_5648_5348_0001;
/// The kind of request that goes to a queue pair for datagrams.
const DATAGRAM: u8 = 5;
const HELLO: u64 = 1;
const WELCOME: u64 = 2;
const REGION: u64 = 3;

/// Registered memory of the victim, bytes.
const MEMORY_BYTES: usize = 64 * 1024;
/// The attacker's queue pair in its block.
const ATTACKER_INDEX: u32 = 5;
/// Steps of one input.
const STEPS_MAX: usize = 200;

/// Keys and regions of the attacker: few, so that requests meet them.
const KEYS: u32 = 2;
const REGIONS: u32 = 4;
const EVERYTHING: u32 = access::LOCAL_WRITE | access::REMOTE_ANY;
const REGION_BYTES: usize = 16 * 4096;
const QKEY: u32 = 0x1111_1111;

const OPCODES: [WrOpcode; 8] = [
    WrOpcode::Send,
    WrOpcode::SendWithImm,
    WrOpcode::SendWithInv,
    WrOpcode::RdmaWrite,
    WrOpcode::RdmaWriteWithImm,
    WrOpcode::RdmaRead,
    WrOpcode::AtomicCmpAndSwp,
    WrOpcode::AtomicFetchAndAdd,
];

/// Memory that the attacker passes.
struct Area {
    fd: Fd,
    mapping: Mapping,
}

impl Area {
    fn new(bytes: usize) -> Area {
        let fd = memfd::create(c"fuzz").expect("memfd_create");
        memfd::set_len(fd.raw(), bytes as u64).expect("ftruncate");
        let mapping = Mapping::shared(fd.raw(), bytes, Access::ReadWrite).expect("mmap");
        memfd::add_seals(fd.raw(), memfd::SEAL_SHRINK).expect("seals");
        Area { fd, mapping }
    }

    fn store(&self, at: usize, value: u64) {
        let at = (at % self.mapping.bytes()) & !7;
        // SAFETY: within the mapping, aligned, and reached as an atomic.
        let word = unsafe { AtomicU64::from_ptr(self.mapping.base().as_ptr().add(at).cast()) };
        word.store(value, Ordering::SeqCst);
    }

    fn ring(&self, offset: usize, bytes: usize) -> Ring {
        // SAFETY: within the mapping, which the caller keeps with the ring's user.
        unsafe { Ring::from_raw(self.mapping.base().add(offset), bytes) }
    }
}

/// Who is attacked.
struct Victim {
    context: Arc<Context>,
    pd: Arc<Pd>,
    mr: Arc<Mr>,
    memory: Guarded,
    /// Takes datagrams.
    ud: (Arc<Qp>, Arc<Cq>),
    _device: Arc<Device>,
}

/// A pair that has met. Each time the attacker has another block: the victim may not have seen
/// the end of the last one yet.
struct Meeting {
    rendezvous: Arc<Rendezvous>,
    block: Block,
    qp: Arc<Qp>,
    cq: Arc<Cq>,
    /// The attacker asked for this link: it writes requests.
    asks: Fd,
    requests: Area,
    request_writer: Writer,
    victim_position: Mapping,
    /// The victim asked for this one: the attacker answers.
    answers: Fd,
    responses: Area,
    response_writer: Writer,
    directory_area: Area,
    victim_bells: [Fd; 2],
    _bells: [Fd; 2],
    sequence: u32,
}

struct Scene {
    victim: Victim,
    rendezvous: Arc<Rendezvous>,
    meeting: Option<Meeting>,
}

impl Scene {
    fn new() -> Scene {
        // The attacker is this very process, whose memory copies through the kernel would reach.
        // SAFETY: nobody else reads the environment yet.
        unsafe { std::env::set_var("SLUICE_VERBS_CMA", "0") };
        let path = std::env::temp_dir().join(format!("sluice-fuzz-{}", std::process::id()));
        let transport = ShmTransport::at(&path).expect("the rendezvous directory");
        let device = Device::new("sluice0", transport);
        let context = device.open().expect("open");
        let pd = context.alloc_pd().expect("a protection domain");
        let memory = Guarded::new(MEMORY_BYTES);
        let start = memory.base().as_ptr() as u64;
        let mr = pd
            .reg_mr(start, MEMORY_BYTES as u64, start, EVERYTHING)
            .expect("a region");
        let rendezvous = Rendezvous::open(&path).expect("the same directory");
        Scene {
            victim: Victim {
                context: context.clone(),
                pd: pd.clone(),
                mr,
                memory,
                ud: ud(&context, &pd),
                _device: device,
            },
            rendezvous: Arc::new(rendezvous),
            meeting: None,
        }
    }
}

fn words(words: [u64; 8]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_ne_bytes()).collect()
}

fn eventfd() -> Fd {
    // SAFETY: eventfd takes integers.
    Fd::own(unsafe { libc::eventfd(0, libc::EFD_NONBLOCK | libc::EFD_CLOEXEC) })
}

fn ring(bell: &Fd) {
    let one = 1u64;
    // SAFETY: the kernel reads 8 bytes.
    unsafe { libc::write(bell.raw(), (&raw const one).cast(), 8) };
}

/// Waits for something to read. The fuzzer's own timer interrupts.
fn wait(fd: i32) {
    let start = Instant::now();
    while unix::wait_readable(fd, 1000) != Ok(true) {
        assert!(start.elapsed() < crate::patience(), "nothing comes");
    }
}

/// Receives a message with three descriptors.
fn receive(socket: &Fd) -> [Fd; 3] {
    wait(socket.raw());
    let mut buffer = [0; 64];
    let mut received = unix::receive_with_fds(socket.raw(), &mut buffer).expect("a greeting");
    core::array::from_fn(|index| received.take_fd(index).expect("three descriptors"))
}

impl Meeting {
    fn new(victim: &Victim, rendezvous: &Arc<Rendezvous>, reads: bool) -> Meeting {
        let block = rendezvous.claim(&[]).expect("a block");
        let directory_area = Area::new(DIRECTORY_BYTES);
        let qpn = block.number << 8 | ATTACKER_INDEX;
        let (qp, cq) = victim.ready(qpn);
        let directory = directory_of(&directory_area);
        directory.set_block(0, block.number);
        directory.set_qp(
            ATTACKER_INDEX as usize,
            &QpEntry {
                qpn,
                kind: 2,
                receives: true,
                peer_qpn: qp.num(),
                pd: 1,
                access: access::REMOTE_ANY,
            },
        );
        // The victim has asked for a link when it became ready.
        let listener = block.listener.raw();
        wait(listener);
        let answers = unix::accept(listener).expect("the victim's connection");
        let [_, _, to_victim] = receive(&answers);
        let responses = Area::new(RESPONSES_OFFSET + RESPONSE_RING);
        let bells = [eventfd(), eventfd()];
        let fds = [&directory_area.fd, &responses.fd, &bells[0]].map(Fd::raw);
        let welcome = words([MAGIC, WELCOME, 1, 2, 8, u64::from(reads), 0, 0]);
        unix::send_with_fds(answers.raw(), &welcome, &fds).expect("welcome");

        // One region that is as it should be, and a key for it.
        let region = Area::new(REGION_BYTES);
        let message = words([MAGIC, REGION, 1, REGION_BYTES as u64, 0, 0, 0, 0]);
        unix::send_with_fds(answers.raw(), &message, &[region.fd.raw()]).expect("region");
        let slot = Directory::choose_key_slot(1, |_| true).expect("a slot");
        directory.set_key(
            slot,
            &KeyEntry {
                key: 1,
                len: REGION_BYTES as u64,
                access: EVERYTHING,
                pd: 1,
                region: 1,
                ..KeyEntry::default()
            },
        );

        let asks = rendezvous.connect(qp.num() / BLOCK_QPS as u32);
        let asks = asks.expect("the victim listens");
        let requests = Area::new(REQUESTS_OFFSET + REQUEST_RING);
        let fds = [&directory_area.fd, &requests.fd, &bells[1]].map(Fd::raw);
        let hello = words([MAGIC, HELLO, 1, 2, 8, 1, 0, 0]);
        unix::send_with_fds(asks.raw(), &hello, &fds).expect("hello");
        wait(asks.raw());
        let mut buffer = [0; 64];
        let mut received = unix::receive_with_fds(asks.raw(), &mut buffer).expect("welcome");
        unix::send_with_fds(asks.raw(), &message, &[region.fd.raw()]).expect("region");
        let mut take = |index| received.take_fd(index).expect("three descriptors");
        let (position, bell) = (take(1), take(2));
        Meeting {
            rendezvous: rendezvous.clone(),
            block,
            qp,
            cq,
            request_writer: Writer::new(requests.ring(REQUESTS_OFFSET, REQUEST_RING)),
            response_writer: Writer::new(responses.ring(RESPONSES_OFFSET, RESPONSE_RING)),
            victim_position: Mapping::shared(position.raw(), 4096, Access::ReadOnly)
                .expect("the victim's area"),
            asks: duplicate(asks.raw()),
            answers,
            requests,
            responses,
            directory_area,
            victim_bells: [to_victim, bell],
            _bells: bells,
            sequence: 0,
        }
    }

    fn directory(&self) -> Directory {
        directory_of(&self.directory_area)
    }

    /// Whether the victim has ended either link, or its queue pair is broken.
    fn is_over(&self) -> bool {
        let ended = |socket: &Fd| {
            let mut buffer = [0; 64];
            match unix::receive_with_fds(socket.raw(), &mut buffer) {
                Ok(received) => received.len == 0,
                Err(error) => error != Errno::AGAIN,
            }
        };
        ended(&self.asks) || ended(&self.answers) || self.qp.state() != QpState::Rts
    }
}

impl Drop for Meeting {
    fn drop(&mut self) {
        self.qp.destroy().expect("the queue pair goes");
        self.cq.destroy().expect("its queue goes");
        self.rendezvous.release(&self.block);
    }
}

fn duplicate(fd: i32) -> Fd {
    // SAFETY: dup takes an integer.
    Fd::own(unsafe { libc::fcntl(fd, libc::F_DUPFD_CLOEXEC, 0) })
}

fn directory_of(area: &Area) -> Directory {
    // SAFETY: the area is as large as a directory and kept as long as the meeting.
    unsafe { Directory::from_raw(area.mapping.base()) }
}

fn init(kind: QpType, cq: &Arc<Cq>) -> QpInit {
    QpInit {
        send_cq: Some(cq.clone()),
        recv_cq: Some(cq.clone()),
        cap: QpCap {
            max_send_wr: 64,
            max_recv_wr: 64,
            max_send_sge: 4,
            max_recv_sge: 4,
            max_inline_data: 64,
        },
        ..QpInit::new(kind)
    }
}

/// A queue pair for datagrams, ready to receive.
fn ud(context: &Arc<Context>, pd: &Arc<Pd>) -> (Arc<Qp>, Arc<Cq>) {
    let cq = context.create_cq(1024, 0, None, 0).expect("a queue");
    let qp = pd.create_qp(&init(QpType::Ud, &cq)).expect("a queue pair");
    let mut attr = QpAttr {
        qp_state: QpState::Init as u32,
        port_num: 1,
        qkey: QKEY,
        ..QpAttr::default()
    };
    let common = qp_mask::STATE | qp_mask::PKEY_INDEX | qp_mask::PORT;
    qp.modify(&attr, common | qp_mask::QKEY).expect("INIT");
    attr.qp_state = QpState::Rtr as u32;
    qp.modify(&attr, qp_mask::STATE).expect("RTR");
    (qp, cq)
}

impl Victim {
    /// A queue pair that is connected to `peer`.
    fn ready(&self, peer: u32) -> (Arc<Qp>, Arc<Cq>) {
        let cq = self.context.create_cq(1024, 0, None, 0).expect("a queue");
        let qp = self
            .pd
            .create_qp(&init(QpType::Rc, &cq))
            .expect("a queue pair");
        let mut attr = QpAttr {
            qp_state: QpState::Init as u32,
            port_num: 1,
            qp_access_flags: access::REMOTE_ANY,
            ..QpAttr::default()
        };
        let common = qp_mask::STATE | qp_mask::PKEY_INDEX | qp_mask::PORT;
        qp.modify(&attr, common | qp_mask::ACCESS_FLAGS)
            .expect("INIT");
        attr = QpAttr {
            qp_state: QpState::Rtr as u32,
            path_mtu: 5,
            dest_qp_num: peer,
            max_dest_rd_atomic: 16,
            min_rnr_timer: 1,
            ..QpAttr::default()
        };
        attr.ah_attr.port_num = 1;
        let connected = qp_mask::STATE
            | qp_mask::AV
            | qp_mask::PATH_MTU
            | qp_mask::DEST_QPN
            | qp_mask::RQ_PSN
            | qp_mask::MAX_DEST_RD_ATOMIC
            | qp_mask::MIN_RNR_TIMER;
        qp.modify(&attr, connected).expect("RTR");
        attr = QpAttr {
            qp_state: QpState::Rts as u32,
            timeout: 14,
            retry_cnt: 3,
            rnr_retry: 7,
            max_rd_atomic: 16,
            ..QpAttr::default()
        };
        let ready = qp_mask::STATE
            | qp_mask::SQ_PSN
            | qp_mask::TIMEOUT
            | qp_mask::RETRY_CNT
            | qp_mask::RNR_RETRY
            | qp_mask::MAX_QP_RD_ATOMIC;
        qp.modify(&attr, ready).expect("RTS");
        (qp, cq)
    }

    /// A piece of the registered memory that ends where it ends.
    fn piece(&self, len: usize) -> Sge {
        let len = len % (MEMORY_BYTES + 1);
        Sge {
            addr: self.memory.end(len) as u64,
            length: len as u32,
            lkey: self.mr.lkey(),
        }
    }
}

pub fn run(data: &[u8]) {
    static SCENE: Mutex<Option<Scene>> = Mutex::new(None);
    let mut scene = SCENE.lock().unwrap_or_else(PoisonError::into_inner);
    let scene = scene.get_or_insert_with(Scene::new);
    let start = Instant::now();
    let mut input = Input::new(data);
    let mut meeting = scene
        .meeting
        .take()
        .filter(|meeting| !meeting.is_over())
        .unwrap_or_else(|| Meeting::new(&scene.victim, &scene.rendezvous, input.bool()));
    for _ in 0..STEPS_MAX {
        if input.is_empty() {
            break;
        }
        step(&scene.victim, &mut meeting, &mut input);
    }
    // Whatever was written, the victim looks at it.
    for bell in &meeting.victim_bells {
        ring(bell);
    }
    for _ in 0..4 {
        while meeting.cq.poll_one().is_some() {}
    }
    assert!(
        start.elapsed() < crate::patience(),
        "an input took {:?}",
        start.elapsed()
    );
    // Half of them go on with the same link, which has been through something.
    if data.len().is_multiple_of(2) && !meeting.is_over() {
        scene.meeting = Some(meeting);
    }
}

fn poll(victim: &Victim, meeting: &Meeting) {
    for _ in 0..4 {
        while meeting.cq.poll_one().is_some() {}
        while victim.ud.1.poll_one().is_some() {}
    }
}

fn step(victim: &Victim, meeting: &mut Meeting, input: &mut Input) {
    match input.u8() % 16 {
        0..3 => request(victim, meeting, input),
        3 | 4 => answer(meeting, input),
        5 => {
            // How far the attacker says that it has carried out requests.
            let near = meeting.request_writer.tail();
            meeting.responses.store(0, input.number(near));
        }
        6 => {
            // How far it says that it has read answers.
            let near = meeting.request_writer.tail();
            meeting.requests.store(4096, input.number(near));
        }
        7 => {
            let at = input.u32() as usize;
            meeting.requests.store(at, input.number(64));
        }
        8 => {
            let at = input.u32() as usize;
            meeting.responses.store(at, input.number(64));
        }
        9 => directory(victim, meeting, input),
        10 => {
            let slot = usize::from(input.u8()) % 64;
            meeting.requests.store(slot * 64, input.number(1));
        }
        11 => socket(meeting, input),
        12 => {
            let sge = [victim.piece(usize::from(input.u16()))];
            let _ = meeting.qp.post_recv(input.u64(), &sge);
            let _ = victim.ud.0.post_recv(1, &sge);
        }
        13 | 14 => post(victim, meeting, input),
        _ => {
            let bell = usize::from(input.bool());
            ring(&meeting.victim_bells[bell]);
            poll(victim, meeting);
        }
    }
}

/// A request that is well enough formed to be looked at.
fn request(victim: &Victim, meeting: &mut Meeting, input: &mut Input) {
    let position = meeting.victim_position.base();
    // SAFETY: the first word of the victim's area, mapped and aligned.
    let head = unsafe { AtomicU64::from_ptr(position.as_ptr().cast()) };
    let _ = meeting
        .request_writer
        .accept_head(head.load(Ordering::Acquire));
    let memory = victim.memory.base().as_ptr() as u64;
    let entry = meeting.directory().qp(ATTACKER_INDEX as usize);
    let sequence = match input.u8() % 8 {
        0 => input.u32(),
        _ => meeting.sequence,
    };
    let kind = match input.u8() % 8 {
        7 => input.u8(),
        kind => kind % 6,
    };
    let header = Header {
        kind,
        flags: if input.bool() { 3 } else { input.u8() },
        short: 0,
        target: if kind == DATAGRAM {
            victim.ud.0.num()
        } else {
            meeting.qp.num()
        },
        origin: entry.map_or(0, |entry| entry.qpn),
        sequence,
        immediate: input.u32(),
        argument: if input.bool() {
            input.number(memory)
        } else {
            u64::from(input.u16()) << 32
        },
    };
    let payload = match input.u8() % 4 {
        0 => 0,
        1 => 24,
        2 => 32,
        _ => usize::from(input.u16()) % 8192,
    };
    let mut bytes = [0u8; 8192];
    // The front of the payload is what says something: a span, an operation, pieces, a datagram.
    let key = victim.mr.rkey();
    let front = [
        match (kind, input.bool()) {
            (_, true) => input.u32(),
            (DATAGRAM, false) => QKEY,
            (_, false) => key,
        },
        input.number(64) as u32,
        input.number(64) as u32,
        input.number(64) as u32,
        input.u32(),
        input.u32(),
        input.u32(),
        input.u32(),
    ];
    for (place, word) in bytes.chunks_exact_mut(4).zip(front) {
        place.copy_from_slice(&word.to_ne_bytes());
    }
    let part = (bytes.as_ptr(), payload);
    // SAFETY: one part of at most 8192 bytes, an array.
    let pushed = unsafe {
        meeting
            .request_writer
            .push(&header, payload, std::iter::once(part))
    };
    if pushed.is_some() && sequence == meeting.sequence {
        meeting.sequence = meeting.sequence.wrapping_add(1) & 0xFF_FFFF;
    }
}

/// An answer to something that the victim may have asked.
fn answer(meeting: &mut Meeting, input: &mut Input) {
    let head = meeting.response_writer.tail();
    // The victim's own position is not looked at: it is an attacker's ring.
    let _ = meeting.response_writer.accept_head(head);
    let header = Header {
        kind: input.u8() % 7,
        target: meeting.qp.num(),
        short: u16::from(input.u8() % 4),
        sequence: u32::from(input.u8()),
        immediate: u32::from(input.u8()),
        argument: input.u64(),
        ..Header::default()
    };
    let payload = usize::from(input.u16()) % 8192;
    let bytes = [0xA5u8; 8192];
    let part = (bytes.as_ptr(), payload);
    // SAFETY: one part of at most 8192 bytes, an array.
    unsafe {
        meeting
            .response_writer
            .push(&header, payload, std::iter::once(part));
    }
}

/// What the attacker publishes about itself.
fn directory(victim: &Victim, meeting: &Meeting, input: &mut Input) {
    let directory = meeting.directory();
    match input.u8() % 4 {
        0 => {
            let key = input.u32() % KEYS + 1;
            let any = input.u8().is_multiple_of(4);
            let entry = KeyEntry {
                key,
                iova: input.number(0),
                len: input.number(1 << 20),
                access: if any { input.u32() } else { EVERYTHING },
                pd: 1,
                address: input.number(victim.memory.base().as_ptr() as u64),
                region: input.u32() % REGIONS,
                region_offset: input.number(4096),
                qpn: 0,
            };
            if let Some(slot) = Directory::choose_key_slot(key, |_| true) {
                directory.set_key(slot, &entry);
            }
        }
        1 => {
            let entry = QpEntry {
                qpn: input.number(u64::from(meeting.qp.num())) as u32,
                peer_qpn: input.number(u64::from(meeting.qp.num())) as u32,
                receives: input.bool(),
                access: input.u32(),
                ..QpEntry::default()
            };
            directory.set_qp(usize::from(input.u8()), &entry);
        }
        2 => directory.set_block(usize::from(input.u8()), input.u32()),
        _ => meeting
            .directory_area
            .store(input.u32() as usize, input.u64()),
    }
}

/// Regions and nonsense over the sockets.
fn socket(meeting: &Meeting, input: &mut Input) {
    let socket = if input.bool() {
        &meeting.asks
    } else {
        &meeting.answers
    };
    if input.u8().is_multiple_of(8) {
        let message = words(core::array::from_fn(|_| input.u64()));
        let len = usize::from(input.u8()) % 65;
        let _ = unix::send_with_fds(socket.raw(), &message[..len], &[]);
        return;
    }
    let file = memfd::create(c"region").expect("memfd_create");
    let pages = u64::from(input.u8() % 8);
    memfd::set_len(file.raw(), pages * 4096).expect("ftruncate");
    if !input.u8().is_multiple_of(4) {
        memfd::add_seals(file.raw(), memfd::SEAL_SHRINK).expect("seals");
    }
    let id = u64::from(input.u32() % REGIONS);
    let bytes = input.number(pages * 4096);
    let message = words([MAGIC, REGION, id, bytes, 0, 0, 0, 0]);
    let _ = unix::send_with_fds(socket.raw(), &message, &[file.raw()]);
}

/// Something that the victim wants of the attacker.
fn post(victim: &Victim, meeting: &Meeting, input: &mut Input) {
    let opcode = OPCODES[input.below(OPCODES.len())];
    let atomic = matches!(
        opcode,
        WrOpcode::AtomicCmpAndSwp | WrOpcode::AtomicFetchAndAdd
    );
    let sges = [victim.piece(if atomic { 8 } else { usize::from(input.u16()) })];
    let wr = SendWr {
        flags: send_flags::SIGNALED,
        sges: &sges,
        remote_addr: u64::from(input.u16()) & !7,
        rkey: input.u32() % KEYS + 1,
        ..SendWr::new(opcode, 1)
    };
    let _ = meeting.qp.post_send(&wr);
}
