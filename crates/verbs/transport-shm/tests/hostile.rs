//! A peer that speaks the protocol's first words and then writes anything into what it shares.
#![allow(unsafe_code)]

mod common;

use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::path::PathBuf;
use std::time::{Duration, Instant};

use common::{End, PATIENCE, Way, World, pair, until};
use sluice_verbs::{QpState, QpType, WrOpcode};

/// The areas that a requester passes: see `link.rs` and `directory.rs` for their layout.
const REQUEST_AREA: usize = 8192 + 256 * 1024;
const DIRECTORY: usize = 4096 + 64 * 256 * 64 + 128 * 1024 * 64;
const MAGIC: u64 = 0x534c_5648_5348_0001;

struct Attacker {
    socket: OwnedFd,
    request: *mut u8,
    directory: *mut u8,
}

fn area(bytes: usize) -> (OwnedFd, *mut u8) {
    // SAFETY: plain system calls; the mapping is fresh.
    unsafe {
        let fd = libc::memfd_create(c"hostile".as_ptr(), libc::MFD_ALLOW_SEALING);
        assert!(fd >= 0);
        assert_eq!(libc::ftruncate(fd, bytes as i64), 0);
        let protection = libc::PROT_READ | libc::PROT_WRITE;
        let start = libc::mmap(
            std::ptr::null_mut(),
            bytes,
            protection,
            libc::MAP_SHARED,
            fd,
            0,
        );
        assert_ne!(start, libc::MAP_FAILED);
        libc::fcntl(
            fd,
            libc::F_ADD_SEALS,
            libc::F_SEAL_SHRINK | libc::F_SEAL_GROW,
        );
        (OwnedFd::from_raw_fd(fd), start.cast())
    }
}

fn eventfd(flags: i32) -> OwnedFd {
    // SAFETY: a plain system call; the descriptor is fresh.
    unsafe {
        let fd = libc::eventfd(0, flags);
        assert!(fd >= 0);
        OwnedFd::from_raw_fd(fd)
    }
}

/// The writing end of a pipe that nobody reads.
fn broken_pipe() -> OwnedFd {
    let mut ends = [0; 2];
    // SAFETY: plain system calls; both descriptors are fresh.
    unsafe {
        assert_eq!(libc::pipe2(ends.as_mut_ptr(), libc::O_NONBLOCK), 0);
        drop(OwnedFd::from_raw_fd(ends[0]));
        OwnedFd::from_raw_fd(ends[1])
    }
}

/// An eventfd to which a write waits until somebody reads.
fn full_eventfd() -> OwnedFd {
    let bell = eventfd(0);
    let most = u64::MAX - 1;
    // SAFETY: the kernel reads 8 bytes.
    let written = unsafe { libc::write(bell.as_raw_fd(), (&raw const most).cast(), 8) };
    assert_eq!(written, 8);
    bell
}

/// Waits for something to read, or an end.
fn comes(descriptor: RawFd) {
    let patience_ms = i32::try_from(PATIENCE.as_millis()).unwrap();
    let came = sluice_sys::unix::wait_readable(descriptor, patience_ms);
    assert_eq!(came, Ok(true), "nothing comes");
}

/// A connection to the block of `qpn` that has said nothing yet.
fn dial(qpn: u32) -> OwnedFd {
    let directory = PathBuf::from(std::env::var_os("SLV_DIR").unwrap());
    let path = directory.join(format!("b{}.sock", qpn >> 8));
    // SAFETY: plain system calls with valid arguments; the descriptor is fresh.
    unsafe {
        let fd = libc::socket(libc::AF_UNIX, libc::SOCK_SEQPACKET | libc::SOCK_NONBLOCK, 0);
        assert!(fd >= 0);
        let mut address: libc::sockaddr_un = std::mem::zeroed();
        address.sun_family = libc::AF_UNIX as u16;
        let name = path.to_str().unwrap().as_bytes();
        for (place, byte) in address.sun_path.iter_mut().zip(name) {
            *place = *byte as libc::c_char;
        }
        let len = std::mem::size_of::<libc::sockaddr_un>() as u32;
        until("a place in the listener's queue", || {
            libc::connect(fd, (&raw const address).cast(), len) == 0
        });
        OwnedFd::from_raw_fd(fd)
    }
}

impl Attacker {
    /// Connects to the block of `qpn` with a greeting that is accepted.
    fn connect(qpn: u32) -> Attacker {
        Attacker::with_bell(qpn, &eventfd(libc::EFD_NONBLOCK))
    }

    /// Connects to the block of `qpn` and wants to be rung at `bell`. There is an answer, or the
    /// end of the connection, when this returns.
    fn with_bell(qpn: u32, bell: &OwnedFd) -> Attacker {
        let socket = dial(qpn);
        let (directory_fd, directory) = area(DIRECTORY);
        let (request_fd, request) = area(REQUEST_AREA);
        let mut hello = Vec::new();
        for word in [MAGIC, 1, 1, 2, 8, 1, 0, 0u64] {
            hello.extend(word.to_ne_bytes());
        }
        let fds = [&directory_fd, &request_fd, bell].map(AsRawFd::as_raw_fd);
        let sent = sluice_sys::unix::send_with_fds(socket.as_raw_fd(), &hello, &fds);
        assert_eq!(sent, Ok(hello.len()));
        comes(socket.as_raw_fd());
        Attacker {
            socket,
            request,
            directory,
        }
    }

    /// Says that it has the block of a queue pair number.
    fn claim(&self, qpn: u32) {
        const BLOCKS: usize = 1024;
        // SAFETY: inside the mapping of the directory.
        unsafe {
            self.directory
                .add(BLOCKS)
                .cast::<u32>()
                .write_volatile(qpn >> 8)
        };
    }

    fn word(&self, at: usize, value: u64) {
        // SAFETY: inside the mapping of the request area.
        unsafe { self.request.add(at).cast::<u64>().write_volatile(value) };
    }

    /// Wakes the victim: by the end of the connection, after which it reads the ring once more.
    fn hang_up(self) {
        drop(self.socket);
    }
}

fn attack(world: &mut World) {
    let target = world.swap([0; 4])[0] as u32;
    let mut seed = 0x9E37_79B9_7F4A_7C15u64 ^ u64::from(std::process::id());
    println!("seed {seed:#x}");
    let mut random = move || {
        seed ^= seed << 13;
        seed ^= seed >> 7;
        seed ^= seed << 17;
        seed
    };
    for turn in 0..200 {
        let attacker = Attacker::connect(target);
        match turn % 4 {
            // Anything everywhere.
            0 => (0..REQUEST_AREA)
                .step_by(8)
                .for_each(|at| attacker.word(at, random())),
            // Headers that look right: every kind, to the victim's queue pair, with any content.
            1 | 2 => {
                for unit in 0..1024 {
                    let at = 8192 + unit * 64;
                    let kind = random() % 7;
                    let flags = random() & 0x7F;
                    let len = 32 + if turn % 4 == 1 { 32 } else { random() % 5000 };
                    for word in 1..8 {
                        attacker.word(at + word * 8, random());
                    }
                    attacker.word(at + 8, u64::from(target) | (random() << 32));
                    attacker.word(at, len | kind << 32 | flags << 40);
                }
            }
            // A record that ends beyond the ring, and hazard words that never go away.
            _ => {
                for index in 0..64 {
                    attacker.word(index * 64, random() % 64 + 1);
                }
                attacker.word(8192, u64::from(u32::MAX) | 1 << 32);
            }
        }
        if turn % 3 == 0 {
            // Some nonsense on the socket as well.
            let bytes = random().to_ne_bytes();
            let _ = sluice_sys::unix::send_with_fds(attacker.socket.as_raw_fd(), &bytes, &[]);
        }
        attacker.hang_up();
    }
    world.meet();
    let end = world.connected(QpType::Rc, 4096);
    let sge = [end.sge(0, 64)];
    assert_eq!(end.run(&end.request(WrOpcode::Send, 1, &sge, 0)).status, 0);
    world.meet();
}

fn be_attacked(world: &mut World) {
    // Connected to nobody in particular; its memory must not change.
    let mut victim: End = world.end(QpType::Rc, 65_536, None);
    victim.peer.qpn = WRITER;
    victim.to_ready();
    let ud = world.end(QpType::Ud, 8192, None);
    ud.to_ready();
    for id in 0..64 {
        victim.post_recv(id, 0, 65_536);
    }
    world.swap([u64::from(victim.qp.num()), 0, 0, 0]);
    world.meet();
    assert!(victim.cq.poll_one().is_none());
    assert_eq!(victim.qp.state(), QpState::Rts);
    for at in 0..65_536 {
        assert_eq!(victim.memory.byte(at), 0);
    }
    // Deregistration waits for nobody who has gone.
    victim.qp.destroy().unwrap();
    victim.mr.destroy().unwrap();
    // And others are served.
    let end = world.connected(QpType::Rc, 4096);
    end.post_recv(1, 0, 64);
    until("the message", || end.cq.poll_one().is_some());
    world.meet();
}

#[test]
fn nonsense_in_shared_memory_harms_nobody() {
    pair(
        "nonsense_in_shared_memory_harms_nobody",
        Way::Shared,
        attack,
        be_attacked,
    );
}

/// The words of a greeting, and the file at `index` that came with it.
fn greeting(socket: &OwnedFd, index: usize) -> (Vec<u64>, sluice_sys::unix::Fd) {
    comes(socket.as_raw_fd());
    let mut buffer = [0; 64];
    let mut received = sluice_sys::unix::receive_with_fds(socket.as_raw_fd(), &mut buffer).unwrap();
    let words = buffer.chunks_exact(8);
    let words = words.map(|word| u64::from_ne_bytes(word.try_into().unwrap()));
    (words.collect(), received.take_fd(index).unwrap())
}

const SECRET: u64 = 0x5EC2_E700;
/// The number of the impostor's queue pair within its block, and its key.
const IMPOSTOR: u32 = 5;

/// Answers with the victim's own nonce, as if it were the victim, and with a key that lies at an
/// address of the victim's.
fn pretend_to_be_the_victim(world: &mut World) {
    use sluice_shmem::verbs::directory::{Directory, KeyEntry, QpEntry};
    let rendezvous = PathBuf::from(std::env::var_os("SLV_DIR").unwrap());
    let rendezvous = sluice_rendezvous::Rendezvous::open(&rendezvous).unwrap();
    let block = rendezvous.claim(&[]).unwrap();
    let qpn = block.number << 8 | IMPOSTOR;
    let [victim, address, ..] = world.swap([u64::from(qpn), 0, 0, 0]);
    comes(block.listener.raw());
    let socket = sluice_sys::unix::accept(block.listener.raw()).unwrap();
    // SAFETY: the number is given up by its owner.
    let socket = unsafe { OwnedFd::from_raw_fd(socket.into_raw()) };
    let (hello, requests) = greeting(&socket, 1);
    let (directory_fd, directory) = area(DIRECTORY);
    let (responses_fd, _) = area(4096 + 512 * 1024);
    // SAFETY: the area is mapped for good and as large as a directory.
    let directory = unsafe { Directory::from_raw(std::ptr::NonNull::new(directory).unwrap()) };
    directory.set_block(0, block.number);
    directory.set_qp(
        IMPOSTOR as usize,
        &QpEntry {
            qpn,
            kind: 2,
            receives: true,
            peer_qpn: victim as u32,
            pd: 1,
            access: common::EVERYTHING,
        },
    );
    let key = KeyEntry {
        key: IMPOSTOR,
        len: 8,
        access: common::EVERYTHING,
        pd: 1,
        address,
        ..KeyEntry::default()
    };
    let slot = Directory::choose_key_slot(IMPOSTOR, |_| true).unwrap();
    directory.set_key(slot, &key);
    // SAFETY: eventfd takes integers.
    let bell = unsafe { OwnedFd::from_raw_fd(libc::eventfd(0, libc::EFD_NONBLOCK)) };
    let words = [MAGIC, 2, hello[2], hello[3], hello[4], 0, 0, 0];
    let welcome: Vec<u8> = words.iter().flat_map(|word| word.to_ne_bytes()).collect();
    let fds = [&directory_fd, &responses_fd, &bell].map(AsRawFd::as_raw_fd);
    sluice_sys::unix::send_with_fds(socket.as_raw_fd(), &welcome, &fds).unwrap();
    // The victim does not take it for itself, and so has to ask.
    let mut first = [0; 8];
    until("the request", || {
        sluice_sys::memfd::read_at(requests.raw(), &mut first, 8192).unwrap();
        first != [0; 8]
    });
    world.meet();
}

fn write_to_an_impostor(world: &mut World) {
    let secret = Box::new(std::sync::atomic::AtomicU64::new(SECRET));
    let mut end = world.end(QpType::Rc, 4096, None);
    let own = [u64::from(end.qp.num()), secret.as_ptr() as u64, 0, 0];
    end.peer.qpn = world.swap(own)[0] as u32;
    end.peer.rkey = IMPOSTOR;
    end.to_ready();
    let sge = [end.sge(0, 8)];
    end.qp
        .post_send(&end.request(WrOpcode::RdmaWrite, 1, &sge, 0))
        .unwrap();
    world.meet();
    assert_eq!(secret.load(std::sync::atomic::Ordering::SeqCst), SECRET);
}

#[test]
fn a_peer_that_repeats_our_nonce_is_not_taken_for_us() {
    pair(
        "a_peer_that_repeats_our_nonce_is_not_taken_for_us",
        Way::Owner,
        write_to_an_impostor,
        pretend_to_be_the_victim,
    );
}

#[test]
fn strangers_on_the_socket_are_sent_away() {
    fn first(world: &mut World) {
        let target = world.swap([0; 4])[0] as u32;
        for message in [&b"x"[..], &[0; 64], &[0xFF; 64], &[7; 500]] {
            let attacker = Attacker::connect(target);
            let _ = sluice_sys::unix::send_with_fds(attacker.socket.as_raw_fd(), message, &[]);
            attacker.hang_up();
        }
        world.meet();
        let end = world.connected(QpType::Rc, 4096);
        let sge = [end.sge(0, 64)];
        assert_eq!(
            end.run(&end.request(WrOpcode::RdmaWrite, 1, &sge, 0))
                .status,
            0
        );
        world.meet();
    }
    fn second(world: &mut World) {
        let end = world.end(QpType::Rc, 4096, None);
        world.swap([u64::from(end.qp.num()), 0, 0, 0]);
        world.meet();
        let _end = world.connected(QpType::Rc, 4096);
        world.meet();
    }
    pair(
        "strangers_on_the_socket_are_sent_away",
        Way::Shared,
        first,
        second,
    );
}

fn ring_badly(world: &mut World) {
    let target = world.swap([0; 4])[0] as u32;
    for bell in [eventfd(0), full_eventfd(), broken_pipe()] {
        let attacker = Attacker::with_bell(target, &bell);
        let mut buffer = [0; 64];
        let answer = sluice_sys::unix::receive_with_fds(attacker.socket.as_raw_fd(), &mut buffer);
        assert!(answer.map_or(0, |answer| answer.len) == 0, "it is welcome");
    }
    let attacker = Attacker::with_bell(target, &eventfd(libc::EFD_NONBLOCK));
    greeting(&attacker.socket, 0);
    world.meet();
}

fn be_rung_badly(world: &mut World) {
    let end = world.end(QpType::Rc, 4096, None);
    world.swap([u64::from(end.qp.num()), 0, 0, 0]);
    world.meet();
}

#[test]
fn bells_that_could_block_or_kill_are_refused() {
    pair(
        "bells_that_could_block_or_kill_are_refused",
        Way::Shared,
        ring_badly,
        be_rung_badly,
    );
}

/// Where the queue pairs and the keys lie in a directory, and how far they are apart.
const QPS: usize = 4096;
const KEYS: usize = QPS + 64 * 256 * 64;
const KEY_SLOTS: usize = 128 * 1024;

/// How long the victim waits for who writes.
const WRITER_PATIENCE: Duration = Duration::from_secs(5);
/// The queue pair that the victim is connected to.
const WRITER: u32 = 0x12_3456;

/// Announces that it writes to the victim's memory, and goes on while the victim destroys the
/// queue pair.
fn write_for_long(world: &mut World) {
    let target = world.swap([0; 4])[0] as u32;
    let attacker = Attacker::connect(target);
    let (_, directory) = greeting(&attacker.socket, 0);
    // SAFETY: a fresh mapping of a file that is as long; it stays.
    let directory = unsafe {
        let (access, shared) = (libc::PROT_READ, libc::MAP_SHARED);
        let none = std::ptr::null_mut();
        let start = libc::mmap(none, DIRECTORY, access, shared, directory.raw(), 0);
        assert_ne!(start, libc::MAP_FAILED);
        start.cast::<u8>()
    };
    // SAFETY: only offsets inside of the directory are asked for.
    let word = |at: usize| unsafe { directory.add(at).cast::<u64>().read_volatile() };
    let key = (0..KEY_SLOTS).find(|slot| word(KEYS + slot * 64) != 0);
    let key = key.expect("the victim has a key") as u64;
    let place = (0..64 * 256).find(|slot| word(QPS + slot * 64) as u32 == target);
    let place = QPS + place.expect("the victim has a queue pair") * 64;
    let before = word(place);
    attacker.claim(WRITER);
    attacker.word(0, 7 << 32 | (key + 1));
    world.meet();
    until("the queue pair to become invisible", || {
        word(place) != before
    });
    // Long enough for a victim that does not wait; one that does is not hurried by it.
    std::thread::sleep(std::time::Duration::from_millis(100));
    world.meet();
    world.meet();
    attacker.word(0, 0);
    world.meet();
}

fn destroy_meanwhile(world: &mut World) {
    use std::sync::atomic::{AtomicBool, Ordering};
    let mut victim = world.end(QpType::Rc, 4096, None);
    victim.peer.qpn = WRITER;
    victim.to_ready();
    world.swap([u64::from(victim.qp.num()), 0, 0, 0]);
    world.meet();
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let destroyed = scope.spawn(|| {
            let start = Instant::now();
            victim.qp.destroy().unwrap();
            over.store(true, Ordering::SeqCst);
            start.elapsed()
        });
        world.meet();
        let early = over.load(Ordering::SeqCst);
        world.meet();
        let waited = destroyed.join().unwrap();
        // Who writes for as long is waited for no more, also if it only got no processor to say that it is done.
        assert!(
            !early || waited >= WRITER_PATIENCE,
            "destroyed while a peer was writing through it, after {waited:?}"
        );
    });
    world.meet();
}

#[test]
fn destroying_a_queue_pair_waits_for_who_writes_through_it() {
    pair(
        "destroying_a_queue_pair_waits_for_who_writes_through_it",
        Way::Shared,
        write_for_long,
        destroy_meanwhile,
    );
}

/// More than the victim may have open, and than a process has links.
const FLOOD: usize = 700;
const DESCRIPTORS: u64 = 512;
const LINKS_MAX: usize = 64;

/// As many as are allowed, at most.
fn limit_descriptors(most: u64) {
    let mut limit = libc::rlimit {
        rlim_cur: 0,
        rlim_max: 0,
    };
    // SAFETY: plain system calls; the structure lives through them.
    unsafe {
        assert_eq!(libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut limit), 0);
        limit.rlim_cur = most.min(limit.rlim_max);
        assert_eq!(libc::setrlimit(libc::RLIMIT_NOFILE, &raw const limit), 0);
    }
}

/// Whether the victim has ended the connection.
fn is_over(socket: &OwnedFd) -> bool {
    sluice_sys::unix::has_hung_up(socket.as_raw_fd())
}

fn flood(world: &mut World) {
    limit_descriptors(4096);
    let target = world.swap([0; 4])[0] as u32;
    let silent: Vec<OwnedFd> = (0..FLOOD).map(|_| dial(target)).collect();
    until("the oldest to be sent away", || {
        silent.iter().filter(|socket| !is_over(socket)).count() <= LINKS_MAX
    });
    let links: Vec<Attacker> = (0..LINKS_MAX + 10)
        .map(|_| Attacker::connect(target))
        .collect();
    until("links beyond what a process needs to end", || {
        links.iter().filter(|link| !is_over(&link.socket)).count() <= LINKS_MAX
    });
    assert!(!is_over(&links[0].socket), "the first ones stay");
    world.meet();
    links.into_iter().for_each(Attacker::hang_up);
    world.meet();
    let end = world.connected(QpType::Rc, 4096);
    let sge = [end.sge(0, 64)];
    let write = end.request(WrOpcode::RdmaWrite, 1, &sge, 0);
    assert_eq!(end.run(&write).status, 0);
    world.meet();
    drop(silent);
}

fn be_flooded(world: &mut World) {
    limit_descriptors(DESCRIPTORS);
    let end = world.end(QpType::Rc, 4096, None);
    world.swap([u64::from(end.qp.num()), 0, 0, 0]);
    world.meet();
    // It can still open something.
    drop(eventfd(0));
    world.meet();
    let _end = world.connected(QpType::Rc, 4096);
    world.meet();
}

/// Connections that say nothing, and more links than a process can need.
#[test]
fn a_flood_of_connections_uses_up_nothing() {
    pair(
        "a_flood_of_connections_uses_up_nothing",
        Way::Shared,
        flood,
        be_flooded,
    );
}
