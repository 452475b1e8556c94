//! Programs that a gateway serves (`sluice run --gateway`): ports that are published when the program
//! listens, and connections that look as the gateway's clients see them.
//!
//! Without `SLUICE_GATEWAY` all of this is one load and a branch in calls that are not on any data
//! path.
#![allow(unsafe_code)]

use crate::real::{errno, real, set_errno};
use crate::{config, link, log};
use core::ffi::{CStr, c_int};
use core::ptr::NonNull;
use core::sync::atomic::{AtomicBool, AtomicPtr, AtomicU64, Ordering};
use libc::{sockaddr, socklen_t};
use sluice_control::client::Client;
use sluice_control::message::gateway::{Ask, Name, Ranges, Tell};
use sluice_control::message::{FromDaemon, ToDaemon};
use sluice_control::preface::{self, Carrier, Key, Kind, PREFACE_BYTES, Preface};
use sluice_sys::errno::Errno;
use sluice_sys::{raw, tcp, unix};
use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::time::{Duration, Instant};

use crate::fds::FDS_MAX;
use crate::io::LOWEST_ADDRESS;
use crate::lock::SpinLock;
use crate::raw_address::RawAddress;

/// How long the daemon may take to answer. It answers itself when the gateway does not.
const ANSWER_MAX: Duration = Duration::from_secs(4);

/// A gateway's connection whose preface does not come in so many milliseconds is given up. It is
/// accepted when its first bytes are there (`TCP_DEFER_ACCEPT`), so this is for a gateway that
/// was stopped in between.
const PREFACE_MS_MAX: c_int = 250;

/// Seconds that the kernel holds back a connection on which nothing was said, for a client that
/// reaches the published port past the gateway and waits for the server to speak first.
static DEFER_S: c_int = 1;

/// Listening sockets of one process that are published; others are not.
const LISTENERS_MAX: usize = 64;

static IS_ON: AtomicBool = AtomicBool::new(false);

/// A socket that listens and what came back when it was published.
#[derive(Clone, Copy)]
struct Listener {
    /// `SO_COOKIE`: the number of its descriptor may be another's by now.
    cookie: u64,
    key: Key,
    sources: Ranges,
}

struct State {
    gateway: Option<Name>,
    socket_path: [u8; 108],
    socket_path_len: usize,
    listeners: [Option<Listener>; LISTENERS_MAX],
    /// Where the next one goes if there is no place left.
    oldest: usize,
}

static STATE: SpinLock<State> = SpinLock::new(State {
    gateway: None,
    socket_path: [0; 108],
    socket_path_len: 0,
    listeners: [None; LISTENERS_MAX],
    oldest: 0,
});

/// Reads the settings.
pub fn init() {
    let Some(name) = config::variable(c"SLUICE_GATEWAY").map(CStr::to_bytes) else {
        return;
    };
    let path = config::variable(c"SLUICE_SOCKET").map_or(&b""[..], CStr::to_bytes);
    let (Some(name), Some(mut state)) = (Name::new(name), STATE.try_lock()) else {
        return;
    };
    if path.is_empty() || path.len() > unix::SOCKET_PATH_BYTES_MAX {
        return;
    }
    state.socket_path[..path.len()].copy_from_slice(path);
    state.socket_path_len = path.len();
    state.gateway = Some(name);
    faces::init();
    IS_ON.store(true, Ordering::Release);
}

/// Whether a gateway serves this program.
#[inline]
pub fn is_on() -> bool {
    IS_ON.load(Ordering::Relaxed)
}

/// In a forked child: the lock may have been another thread's.
pub fn after_fork() {
    STATE.force_open();
}

/// The gateway, and the path of the control socket.
pub(crate) fn names() -> Option<(Name, [u8; 108], usize)> {
    let state = STATE.lock()?;
    Some((state.gateway?, state.socket_path, state.socket_path_len))
}

/// From now on the connection looks like that.
pub(crate) fn set_face(fd: c_int, face: &Face) {
    faces::set(fd, face);
}

/// `listen` has succeeded for a TCP socket: it is published. The answer is `listen`'s. A socket
/// that only this host can reach is nobody else's, and is not published.
#[cold]
pub fn listening(fd: c_int) -> Result<(), Errno> {
    let before = errno();
    let published = publish(fd);
    set_errno(before);
    match published {
        Ok(_) => Ok(()),
        Err(Errno(libc::EADDRNOTAVAIL)) if is_local(fd) => Ok(()),
        // No daemon: the program runs without, as programs do without a lane.
        Err(Errno(libc::ENOENT | libc::ECONNREFUSED | libc::EAGAIN | libc::EPIPE)) => {
            log!(Warn, "fd {fd} is not published: no daemon answers");
            Ok(())
        }
        Err(errno) => {
            log!(Warn, "fd {fd} is not published: {}", errno.name());
            Err(errno)
        }
    }
}

fn is_local(fd: c_int) -> bool {
    tcp::local_address(fd).is_ok_and(|address| address.ip().is_loopback())
}

fn publish(fd: c_int) -> Result<Listener, Errno> {
    if is_local(fd) {
        return Err(Errno(libc::EADDRNOTAVAIL));
    }
    let cookie = tcp::cookie(fd)?;
    let (gateway, path, len) = names().ok_or(Errno::AGAIN)?;
    let client = Client::connect(&path[..len])?;
    link::check_server(&client)?;
    client.send(&ToDaemon::Gateway(Ask::Publish { gateway }), &[fd])?;
    let answer = client.receive_until(Instant::now() + ANSWER_MAX);
    let (answer, _) = answer.map_err(|_| Errno::AGAIN)?;
    let FromDaemon::Gateway(Tell::Published {
        errno,
        key,
        sources,
    }) = answer
    else {
        return Err(Errno::PROTO);
    };
    if errno != 0 {
        return Err(Errno(errno.into()));
    }
    let listener = Listener {
        cookie,
        key,
        sources,
    };
    let mut state = STATE.lock().ok_or(Errno::AGAIN)?;
    let place = state.listeners.iter().position(|it| match it {
        Some(it) => it.cookie == cookie,
        None => true,
    });
    let place = place.unwrap_or_else(|| {
        state.oldest = (state.oldest + 1) % LISTENERS_MAX;
        state.oldest
    });
    state.listeners[place] = Some(listener);
    drop(state);
    defer_accept(fd);
    Ok(listener)
}

/// A connection is accepted when its first bytes are there: the preface, as a rule.
fn defer_accept(fd: c_int) {
    // SAFETY: the option reads an int.
    unsafe {
        (real().setsockopt)(
            fd,
            libc::IPPROTO_TCP,
            libc::TCP_DEFER_ACCEPT,
            (&raw const DEFER_S).cast(),
            size_of::<c_int>() as socklen_t,
        );
    }
}

/// What was published of the socket. One that came through exec is published again, for its key.
fn listener(fd: c_int) -> Option<Listener> {
    let cookie = tcp::cookie(fd).ok()?;
    let known = STATE.lock().and_then(|state| {
        let mut all = state.listeners.iter().flatten();
        all.find(|it| it.cookie == cookie).copied()
    });
    if known.is_some() || is_local(fd) {
        return known;
    }
    publish(fd).ok()
}

/// `accept` and `accept4`, with `flags`: what the gateway says before its client speaks is taken
/// off, and the client's address given.
///
/// # Safety
/// As accept4(2).
pub unsafe fn accept(
    fd: c_int,
    address: *mut sockaddr,
    len: *mut socklen_t,
    flags: c_int,
) -> c_int {
    // SAFETY: the program's own argument.
    let room = unsafe { room(len) };
    loop {
        // SAFETY: the program's own arguments.
        let got = unsafe { (real().accept4)(fd, address, len, flags) };
        if got < 0 {
            return got;
        }
        faces::forget(got);
        let before = errno();
        let outcome = meet(fd, got);
        set_errno(before);
        match outcome {
            Meeting::Direct => return got,
            Meeting::For(face) => {
                faces::set(got, &face);
                if !address.is_null() {
                    // SAFETY: the program's own arguments, which the kernel has written to.
                    unsafe { write_address(got, face.client, address, room) };
                }
                return got;
            }
            Meeting::Failed(why) => {
                log!(Warn, "a connection of the gateway is given up: {why}");
                reset(got);
                if !len.is_null() {
                    // SAFETY: the kernel has written there.
                    unsafe { *len = room };
                }
            }
        }
    }
}

enum Meeting {
    /// Nobody's: a client that came past the gateway.
    Direct,
    For(Face),
    Failed(&'static str),
}

fn meet(listening: c_int, got: c_int) -> Meeting {
    let (Ok(from), Ok(to)) = (tcp::peer_address(got), tcp::local_address(got)) else {
        return Meeting::Direct;
    };
    let Some(listener) = listener(listening) else {
        // Its key is not to be had now. The gateway's words must not become the client's.
        let mut first = [0; preface::MAGIC.len()];
        return match receive(got, &mut first, libc::MSG_PEEK) {
            Ok(_) if first == preface::MAGIC => Meeting::Failed("no daemon has its key"),
            _ => Meeting::Direct,
        };
    };
    if !listener.sources.contain(from.ip()) {
        return Meeting::Direct;
    }
    let mut bytes = [0; PREFACE_BYTES];
    let mut seen = 0;
    let until = Instant::now() + Duration::from_millis(PREFACE_MS_MAX as u64);
    loop {
        match receive(got, &mut bytes, libc::MSG_PEEK) {
            Ok(0) => return Meeting::Failed("it ended at once"),
            Ok(count) if !preface::may_begin(&bytes[..count]) => return Meeting::Direct,
            Ok(PREFACE_BYTES) => break,
            Ok(count) => seen = count,
            Err(Errno::AGAIN | Errno::INTR) => {}
            Err(_) => return Meeting::Failed("it was reset"),
        }
        let left = until.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Meeting::Failed("it does not say whom it is for");
        }
        if seen > 0 {
            // Readable all the time, while the rest is on its way.
            std::thread::yield_now();
        } else {
            let _ = unix::wait_readable(got, left.as_millis() as i32 + 1);
        }
    }
    let carrier = Carrier { from, to };
    match Preface::decode(&bytes, &listener.key, &carrier) {
        Ok(preface) if preface.kind == Kind::Client => {
            if receive(got, &mut bytes, 0) != Ok(PREFACE_BYTES) {
                return Meeting::Failed("what it says cannot be taken off");
            }
            Meeting::For(Face {
                carrier: from,
                client: preface.client,
                outside: preface.outside,
            })
        }
        Ok(_) => Meeting::Failed("it says something else than whom it is for"),
        Err(_) => Meeting::Failed("what it says is not the gateway's"),
    }
}

/// Reads without waiting, past every hook.
pub(crate) fn receive(fd: c_int, buffer: &mut [u8], flags: c_int) -> Result<usize, Errno> {
    // SAFETY: the kernel writes at most the length of the buffer.
    raw::check(unsafe {
        raw::syscall6(
            libc::SYS_recvfrom,
            raw::int(fd),
            buffer.as_mut_ptr() as usize,
            buffer.len(),
            raw::int(flags | libc::MSG_DONTWAIT),
            0,
            0,
        )
    })
}

/// Closes a connection that the program has not seen, with a reset.
fn reset(fd: c_int) {
    let at_once = libc::linger {
        l_onoff: 1,
        l_linger: 0,
    };
    // SAFETY: the option reads a struct; the descriptor is nobody else's.
    unsafe {
        (real().setsockopt)(
            fd,
            libc::SOL_SOCKET,
            libc::SO_LINGER,
            (&raw const at_once).cast(),
            size_of::<libc::linger>() as socklen_t,
        );
        (real().close)(fd);
    }
}

/// The bytes that there are for an address, before the kernel says how many it has.
///
/// # Safety
/// `len` is the program's argument, with which it calls a function like getpeername(2).
unsafe fn room(len: *mut socklen_t) -> socklen_t {
    if (len as usize) < LOWEST_ADDRESS {
        return 0;
    }
    // SAFETY: the caller's promise.
    unsafe { len.read_unaligned() }
}

/// `getpeername`.
///
/// # Safety
/// As getpeername(2).
pub unsafe fn getpeername(fd: c_int, address: *mut sockaddr, len: *mut socklen_t) -> c_int {
    // SAFETY: the program's own arguments; they are good where the kernel has written to them.
    unsafe {
        let room = room(len);
        let result = (real().getpeername)(fd, address, len);
        if result == 0
            && let Some(face) = faces::get(fd)
        {
            write_address(fd, face.client, address, room);
        }
        result
    }
}

/// `getsockname`.
///
/// # Safety
/// As getsockname(2).
pub unsafe fn getsockname(fd: c_int, address: *mut sockaddr, len: *mut socklen_t) -> c_int {
    // SAFETY: as above.
    unsafe {
        let room = room(len);
        let result = (real().getsockname)(fd, address, len);
        if result == 0
            && let Some(face) = faces::get(fd)
            && face.outside.port() != 0
        {
            write_address(fd, face.outside, address, room);
        }
        result
    }
}

/// `fd` was duplicated as `copy`.
pub fn duplicated(fd: c_int, copy: c_int) {
    match faces::get(fd) {
        Some(face) => faces::set(copy, &face),
        None => faces::forget(copy),
    }
}

/// Puts `value` in place of the address that the kernel has written, in the family of the
/// socket, and cut to the room there is.
///
/// # Safety
/// The kernel has written an address there, for which there were `room` bytes.
unsafe fn write_address(fd: c_int, value: SocketAddr, address: *mut sockaddr, room: socklen_t) {
    let Some(value) = RawAddress::in_family_of(fd, value) else {
        return;
    };
    let count = value.bytes().len().min(room as usize);
    // SAFETY: the caller's promise.
    unsafe {
        address
            .cast::<u8>()
            .copy_from_nonoverlapping(value.bytes().as_ptr(), count)
    };
}

/// What a connection looks like to the program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Face {
    /// Its real peer, by which a number that names another socket now is recognised.
    pub carrier: SocketAddr,
    /// What `getpeername` says.
    pub client: SocketAddr,
    /// What `getsockname` says; with port 0 the kernel's.
    pub outside: SocketAddr,
}

/// The faces of descriptors.
mod faces {
    use super::*;

    /// Three addresses of 16 bytes and three ports, with a word that says that they are there.
    const WORDS: usize = 8;
    static TABLE: AtomicPtr<[AtomicU64; WORDS]> = AtomicPtr::new(core::ptr::null_mut());

    pub fn init() {
        if let Some(base) = crate::memory::zeroed(FDS_MAX * size_of::<[AtomicU64; WORDS]>()) {
            let base: NonNull<[AtomicU64; WORDS]> = base.cast();
            TABLE.store(base.as_ptr(), Ordering::Release);
        }
    }

    fn row(fd: c_int) -> Option<&'static [AtomicU64; WORDS]> {
        let table = TABLE.load(Ordering::Acquire);
        if table.is_null() || fd as u32 as usize >= FDS_MAX {
            return None;
        }
        // SAFETY: the table has FDS_MAX rows and lives as long as the process.
        Some(unsafe { &*table.add(fd as usize) })
    }

    pub fn set(fd: c_int, face: &Face) {
        let Some(row) = row(fd) else {
            return;
        };
        let all = [face.carrier, face.client, face.outside];
        let mut ports = 1_u64;
        for (at, address) in all.iter().enumerate() {
            let ip = match address.ip() {
                IpAddr::V4(ip) => ip.to_ipv6_mapped(),
                IpAddr::V6(ip) => ip,
            };
            let bits = u128::from(ip);
            row[1 + 2 * at].store((bits >> 64) as u64, Ordering::Relaxed);
            row[2 + 2 * at].store(bits as u64, Ordering::Relaxed);
            ports |= u64::from(address.port()) << (16 + 16 * at);
        }
        row[0].store(ports, Ordering::Release);
    }

    pub fn forget(fd: c_int) {
        if let Some(row) = row(fd)
            && row[0].load(Ordering::Relaxed) != 0
        {
            row[0].store(0, Ordering::Relaxed);
        }
    }

    /// What the descriptor's connection looks like, if it is still that connection.
    pub fn get(fd: c_int) -> Option<Face> {
        let row = row(fd)?;
        let ports = row[0].load(Ordering::Acquire);
        if ports == 0 {
            return None;
        }
        let address = |at: usize| {
            let high = row[1 + 2 * at].load(Ordering::Relaxed);
            let low = row[2 + 2 * at].load(Ordering::Relaxed);
            let ip = Ipv6Addr::from(u128::from(high) << 64 | u128::from(low));
            SocketAddr::new(ip.to_canonical(), (ports >> (16 + 16 * at)) as u16)
        };
        let face = Face {
            carrier: address(0),
            client: address(1),
            outside: address(2),
        };
        let is_it = tcp::peer_address(fd)
            .is_ok_and(|now| (now.ip(), now.port()) == (face.carrier.ip(), face.carrier.port()));
        is_it.then_some(face)
    }
}

/// Whether the program may have an io_uring: through it the kernel accepts connections whose
/// preface nobody would take off.
pub fn allows_io_uring() -> bool {
    !is_on()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Read, Write};
    use std::net::{TcpListener, TcpStream};
    use std::os::fd::{AsRawFd, FromRawFd};

    const KEY: Key = Key([4; 32]);

    fn face(client: &str) -> Preface {
        Preface {
            kind: Kind::Client,
            client: client.parse().unwrap(),
            outside: "192.0.2.1:80".parse().unwrap(),
            time_ms: 1,
            nonce: 1,
        }
    }

    /// A listener that counts as published, with this host as the gateway.
    fn listener(address: &str) -> TcpListener {
        let listener = TcpListener::bind(address).unwrap();
        faces::init();
        let everybody = sluice_control::message::gateway::Range {
            first: Ipv6Addr::UNSPECIFIED,
            prefix: 0,
        };
        let mut state = STATE.lock().unwrap();
        let place = state.listeners.iter().position(Option::is_none).unwrap();
        state.listeners[place] = Some(Listener {
            cookie: tcp::cookie(listener.as_raw_fd()).unwrap(),
            key: KEY,
            sources: Ranges::new([everybody]),
        });
        listener
    }

    fn connect(listener: &TcpListener, key: &Key, preface: &Preface) -> TcpStream {
        let mut stream = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let carrier = Carrier {
            from: stream.local_addr().unwrap(),
            to: stream.peer_addr().unwrap(),
        };
        stream.write_all(&preface.encode(key, &carrier)).unwrap();
        stream
    }

    fn accepted(listener: &TcpListener) -> (TcpStream, SocketAddr) {
        let mut address = [0_u64; 4];
        let mut len = size_of_val(&address) as socklen_t;
        let out = address.as_mut_ptr().cast();
        // SAFETY: room and its length; the descriptor is new.
        let fd = unsafe { accept(listener.as_raw_fd(), out, &raw mut len, libc::SOCK_CLOEXEC) };
        assert!(fd >= 0);
        let bytes: Vec<u8> = address.iter().flat_map(|word| word.to_ne_bytes()).collect();
        // SAFETY: nobody else has it.
        let stream = unsafe { TcpStream::from_raw_fd(fd) };
        (stream, tcp::parse_address(&bytes[..len as usize]).unwrap())
    }

    fn names(stream: &TcpStream) -> (SocketAddr, SocketAddr) {
        let face = faces::get(stream.as_raw_fd()).unwrap();
        (face.client, face.outside)
    }

    #[test]
    fn the_client_is_seen_and_its_bytes_follow() {
        for (at, client) in [
            ("127.0.0.1:0", "203.0.113.5:77"),
            ("[::1]:0", "[2001:db8::5]:77"),
        ] {
            let listener = listener(at);
            let mut outside = connect(&listener, &KEY, &face(client));
            outside.write_all(b"hello").unwrap();
            let (mut stream, from) = accepted(&listener);
            assert_eq!(from, client.parse().unwrap());
            assert_eq!(names(&stream), (from, "192.0.2.1:80".parse().unwrap()));
            let mut bytes = [0; 5];
            stream.read_exact(&mut bytes).unwrap();
            assert_eq!(&bytes, b"hello");
            // The number's next life is another socket's.
            let fd = stream.as_raw_fd();
            drop(stream);
            assert_eq!(faces::get(fd), None);
        }
    }

    #[test]
    fn who_comes_past_the_gateway_is_left_alone() {
        let listener = listener("127.0.0.1:0");
        let mut direct = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        direct.write_all(b"GET /").unwrap();
        let (mut stream, from) = accepted(&listener);
        assert_eq!(from, direct.local_addr().unwrap());
        let mut bytes = [0; 5];
        stream.read_exact(&mut bytes).unwrap();
        assert_eq!(&bytes, b"GET /");
    }

    #[test]
    fn forged_replayed_and_unfinished_prefaces_are_reset_and_the_next_is_served() {
        let listener = listener("127.0.0.1:0");
        let mut bad = vec![connect(&listener, &Key([5; 32]), &face("203.0.113.5:77"))];
        // What was right on another connection.
        let mut replayed = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let carrier = Carrier {
            from: "127.0.0.1:1".parse().unwrap(),
            to: listener.local_addr().unwrap(),
        };
        let bytes = face("203.0.113.5:77").encode(&KEY, &carrier);
        replayed.write_all(&bytes).unwrap();
        bad.push(replayed);
        let mut unfinished = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        unfinished.write_all(&bytes[..20]).unwrap();
        bad.push(unfinished);
        // Says nothing at all.
        bad.push(TcpStream::connect(listener.local_addr().unwrap()).unwrap());
        let to_gateway = Preface {
            kind: Kind::Destination,
            ..face("203.0.113.5:77")
        };
        bad.push(connect(&listener, &KEY, &to_gateway));
        let good = connect(&listener, &KEY, &face("203.0.113.6:78"));
        let (_stream, from) = accepted(&listener);
        assert_eq!(from, "203.0.113.6:78".parse().unwrap());
        for mut stream in bad {
            let error = stream.read(&mut [0; 1]).unwrap_err();
            assert_eq!(error.kind(), std::io::ErrorKind::ConnectionReset);
        }
        drop(good);
    }

    #[test]
    fn an_ipv4_client_of_an_ipv6_socket_is_mapped() {
        let listener = listener("[::]:0");
        let port = listener.local_addr().unwrap().port();
        let mut outside = TcpStream::connect(("127.0.0.1", port)).unwrap();
        let carrier = Carrier {
            from: outside.local_addr().unwrap(),
            to: outside.peer_addr().unwrap(),
        };
        let bytes = face("203.0.113.5:77").encode(&KEY, &carrier);
        outside.write_all(&bytes).unwrap();
        let mut address = [0_u8; 28];
        let mut len = 28;
        let out = address.as_mut_ptr().cast();
        // SAFETY: room and its length.
        let fd = unsafe { accept(listener.as_raw_fd(), out, &raw mut len, 0) };
        assert_eq!(len, 28);
        assert_eq!(address[..2], (libc::AF_INET6 as u16).to_ne_bytes());
        assert_eq!(address[18..24], [0xff, 0xff, 203, 0, 113, 5]);
        unix::close(fd).unwrap();
    }
}
