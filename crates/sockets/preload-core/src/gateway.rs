//! Programs that a gateway serves (`sluice run --gateway`): ports that are published when the program
//! listens, and connections that look as the gateway's clients see them.
//!
//! Without `SLUICE_GATEWAY` all of this is one load and a branch in calls that are not on any data
//! path.
#![allow(unsafe_code)]

use crate::real::{errno, real, set_errno};
use crate::{config, log};
use core::ffi::{CStr, c_int};
use core::sync::atomic::{AtomicBool, Ordering};
use libc::{sockaddr, socklen_t};
use sluice_control::message::gateway::{Ask, Name, Tell};
use sluice_control::preface::{self, Carrier, Kind, PREFACE_BYTES, Preface};
use sluice_lane::clock::now_ns;
use sluice_sys::errno::Errno;
use sluice_sys::{raw, tcp, unix};
use std::net::SocketAddr;
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use crate::memory::LOWEST_ADDRESS;
use crate::raw_address::RawAddress;

mod client_addresses;
pub(crate) mod daemon;
mod environment;
mod listeners;

pub use environment::for_heir;

use listeners::{Known, Listener};

/// How long the daemon may take to answer `listen`. It answers itself when the gateway does not.
const ANSWER_MAX: Duration = Duration::from_secs(4);
/// How long it may take where the program waits for something else: a server that never blocks is
/// inside `accept`.
const ANSWER_IN_ACCEPT_MAX: Duration = Duration::from_millis(500);
/// A socket that is not published is asked about again after this time at the earliest.
const ASK_AGAIN_NS: u64 = if cfg!(test) { 3_600 } else { 1 } * 1_000_000_000;

/// A gateway's connection whose preface does not come in this time is given up. It is
/// accepted when its first bytes are there (`TCP_DEFER_ACCEPT`), so this is for a gateway that
/// was stopped in between. Who accepts does nothing else meanwhile.
const PREFACE_MAX: Duration = Duration::from_millis(if cfg!(test) { 3_000 } else { 50 });

/// Seconds that the kernel holds back a connection on which nothing was said, for a client that
/// reaches the published port past the gateway and waits for the server to speak first.
const DEFER_S: c_int = 1;

static IS_ON: AtomicBool = AtomicBool::new(false);

/// Whom the program is published by.
#[derive(Debug)]
pub(crate) struct Names {
    pub gateway: Name,
    socket_path: [u8; unix::SOCKET_PATH_BYTES_MAX],
    socket_path_len: usize,
}

impl Names {
    /// The daemon's control socket.
    pub fn socket_path(&self) -> &[u8] {
        &self.socket_path[..self.socket_path_len]
    }
}

static NAMES: OnceLock<Names> = OnceLock::new();

/// Reads the settings.
pub fn init() {
    let Some(gateway) = config::variable(c"SLUICE_GATEWAY").map(CStr::to_bytes) else {
        return;
    };
    let path = config::variable(c"SLUICE_SOCKET").map_or(&b""[..], CStr::to_bytes);
    if set_names(gateway, path).is_none() {
        return;
    }
    client_addresses::init();
    listeners::init();
    environment::keep();
    IS_ON.store(true, Ordering::Release);
}

fn set_names(gateway: &[u8], path: &[u8]) -> Option<()> {
    let mut socket_path = [0; unix::SOCKET_PATH_BYTES_MAX];
    socket_path.get_mut(..path.len())?.copy_from_slice(path);
    let names = Names {
        gateway: Name::new(gateway)?,
        socket_path,
        socket_path_len: Some(path.len()).filter(|len| *len > 0)?,
    };
    NAMES.set(names).ok()
}

/// Whether a gateway serves this program.
#[inline]
pub fn is_on() -> bool {
    IS_ON.load(Ordering::Relaxed)
}

/// Locks what is known of listeners across a fork, so that the child finds no half of a key.
pub fn before_fork() {
    listeners::before_fork();
}

/// Undoes [`before_fork`] in the parent.
pub fn release_after_fork() {
    listeners::release_after_fork();
}

/// The same in the child.
pub fn open_in_child() {
    listeners::open_in_child();
}

/// The gateway and the daemon.
pub(crate) fn names() -> Option<&'static Names> {
    NAMES.get()
}

/// From now on the connection looks like that.
pub(crate) fn set_client_addresses(fd: c_int, addresses: &ClientAddresses) {
    client_addresses::set(fd, addresses);
}

/// `listen` has succeeded for a TCP socket: it is published. The answer is `listen`'s. A socket
/// that only this host can reach is nobody else's, and is not published.
#[cold]
pub fn listening(fd: c_int) -> Result<(), Errno> {
    if is_local(fd) {
        return Ok(());
    }
    let before = errno();
    let published = publish(fd, ANSWER_MAX);
    set_errno(before);
    match published {
        Ok(_) => Ok(()),
        Err(errno) if is_no_daemon(errno) => {
            // The program runs without, as programs do without a lane.
            log!(Warn, "fd {fd} is not published: no daemon answers");
            Ok(())
        }
        Err(errno) => {
            log!(Warn, "fd {fd} is not published: {}", errno.name());
            Err(errno)
        }
    }
}

fn is_no_daemon(errno: Errno) -> bool {
    matches!(
        errno,
        Errno(libc::ENOENT | libc::ECONNREFUSED | libc::EAGAIN | libc::EPIPE)
    )
}

fn is_local(fd: c_int) -> bool {
    tcp::local_address(fd).is_ok_and(|address| address.ip().is_loopback())
}

/// Has the daemon publish the socket, and remembers what it says. `EAGAIN`: it says nothing.
fn publish(fd: c_int, limit: Duration) -> Result<Listener, Errno> {
    let cookie = tcp::cookie(fd)?;
    let gateway = names().ok_or(Errno::AGAIN)?.gateway;
    let published = match daemon::ask(Ask::Publish { gateway }, &[fd], limit) {
        Ok(Tell::Published {
            errno: 0,
            key,
            sources,
        }) => Ok(Listener { key, sources }),
        Ok(Tell::Published { errno, .. }) => Err(Errno(errno.into())),
        Ok(_) => Err(Errno::PROTO),
        Err(errno) => Err(errno),
    };
    let known = match published {
        Ok(listener) => Known::Published(listener),
        Err(errno) => Known::Not {
            again_at_ns: now_ns() + ASK_AGAIN_NS,
            is_wanted: is_no_daemon(errno),
        },
    };
    listeners::put(cookie, known);
    if published.is_ok() {
        defer_accept(fd);
    }
    published
}

/// A connection is accepted when its first bytes are there: the preface, as a rule.
fn defer_accept(fd: c_int) {
    let _ = unix::set_option(fd, libc::IPPROTO_TCP, libc::TCP_DEFER_ACCEPT, &DEFER_S);
}

/// How connections of the gateway that come to the socket are recognised.
///
/// One that came through exec is published again, for its key, but only when there is something to
/// recognise: whoever accepts is not to wait for the daemon.
fn listener(fd: c_int, got: c_int) -> Option<Listener> {
    let known = listeners::find(tcp::cookie(fd).ok()?);
    let is_wanted = match known {
        Some(Known::Published(listener)) => return Some(listener),
        Some(Known::Not { again_at_ns, .. }) if now_ns() < again_at_ns => return None,
        Some(Known::Not { is_wanted, .. }) => is_wanted,
        None => false,
    };
    if daemon::is_silent() || is_local(fd) || !(is_wanted || may_be_for_somebody(got)) {
        return None;
    }
    publish(fd, ANSWER_IN_ACCEPT_MAX).ok()
}

/// Whether what has come so far may be a preface. Nothing is: it may be on its way, and a program that inherits a
/// listener may have it accept before anything has come (`TCP_DEFER_ACCEPT` of 0).
fn may_be_for_somebody(got: c_int) -> bool {
    let mut first = [0; preface::MAGIC.len()];
    match receive(got, &mut first, libc::MSG_PEEK) {
        Ok(count) => count > 0 && preface::may_begin(&first[..count]),
        Err(_) => true,
    }
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
    let is_wanted = !address.is_null();
    if is_wanted && ((address as usize) < LOWEST_ADDRESS || (len as usize) < LOWEST_ADDRESS) {
        // SAFETY: the program's own arguments, which the kernel refuses.
        return unsafe { (real().accept4)(fd, address, len, flags) };
    }
    loop {
        // The kernel says whom it has accepted even where the connection is over by now, which getpeername(2) does not.
        let mut from = [0_u8; ADDRESS_MAX];
        let mut from_len = from.len() as socklen_t;
        // SAFETY: the kernel writes an address to an array of that length.
        let got =
            unsafe { (real().accept4)(fd, from.as_mut_ptr().cast(), &raw mut from_len, flags) };
        if got < 0 {
            return got;
        }
        client_addresses::forget(got);
        let before = errno();
        let outcome = meet(fd, got, tcp::parse_address(&from));
        set_errno(before);
        if let Meeting::Failed(why) = outcome {
            log!(Warn, "a connection of the gateway is given up: {why}");
            reset(got);
            continue;
        }
        if is_wanted {
            let count = (from_len as usize).min(room as usize).min(from.len());
            // SAFETY: the program's own arguments: `room` bytes, and their number.
            unsafe {
                let to = address.cast::<u8>();
                to.copy_from_nonoverlapping(from.as_ptr(), count);
                len.write_unaligned(from_len);
            }
        }
        if let Meeting::For(addresses) = outcome {
            client_addresses::set(got, &addresses);
            if is_wanted {
                // SAFETY: the program's own arguments, to which an address was written.
                unsafe { write_address(got, addresses.client, address, room) };
            }
        }
        return got;
    }
}

/// `struct sockaddr_storage`: any address.
const ADDRESS_MAX: usize = size_of::<libc::sockaddr_storage>();

enum Meeting {
    /// Nobody's: a client that came past the gateway.
    Direct,
    For(ClientAddresses),
    Failed(&'static str),
}

/// `from`: the other end of what was accepted.
fn meet(listening: c_int, got: c_int, from: Result<SocketAddr, Errno>) -> Meeting {
    let (Ok(from), Ok(to)) = (from, tcp::local_address(got)) else {
        return Meeting::Direct;
    };
    let Some(listener) = listener(listening, got) else {
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
    if let Err(outcome) = await_preface(got, &mut bytes, PREFACE_MAX) {
        return outcome;
    }
    let carrier = Carrier { from, to };
    match Preface::decode(&bytes, &listener.key, &carrier) {
        Ok(preface) if preface.kind == Kind::Client => {
            if receive(got, &mut bytes, 0) != Ok(PREFACE_BYTES) {
                return Meeting::Failed("what it says cannot be taken off");
            }
            Meeting::For(ClientAddresses {
                carrier: from,
                client: preface.client,
                outside: preface.outside,
            })
        }
        Ok(_) => Meeting::Failed("it says something else than whom it is for"),
        Err(_) => Meeting::Failed("what it says is not the gateway's"),
    }
}

/// Waits for all bytes of a preface, up to `limit`, and leaves them where they are.
fn await_preface(
    got: c_int,
    bytes: &mut [u8; PREFACE_BYTES],
    limit: Duration,
) -> Result<(), Meeting> {
    let until = Instant::now() + limit;
    let mut before = None;
    let outcome = loop {
        let left = until.saturating_duration_since(Instant::now());
        match receive(got, bytes, libc::MSG_PEEK) {
            Ok(0) => break Err(Meeting::Failed("it ended at once")),
            Ok(count) if !preface::may_begin(&bytes[..count]) => break Err(Meeting::Direct),
            Ok(PREFACE_BYTES) => break Ok(()),
            Ok(_) | Err(Errno::AGAIN | Errno::INTR) => {}
            Err(_) => break Err(Meeting::Failed("it was reset")),
        }
        if left.is_zero() {
            break Err(Meeting::Failed("it does not say whom it is for"));
        }
        if before.is_none() {
            // With a part of the preface the socket would be readable all the time.
            before = low_water(got);
            set_low_water(got, PREFACE_BYTES as c_int);
        }
        let _ = unix::wait_readable(got, left.as_millis() as i32 + 1);
    };
    if let Some(before) = before {
        set_low_water(got, before);
    }
    outcome
}

/// How many bytes must be there for the socket to be readable (`SO_RCVLOWAT`, socket(7)).
fn low_water(fd: c_int) -> Option<c_int> {
    let mut bytes = [0; 4];
    unix::get_option(fd, libc::SOL_SOCKET, libc::SO_RCVLOWAT, &mut bytes).ok()?;
    Some(c_int::from_ne_bytes(bytes))
}

fn set_low_water(fd: c_int, bytes: c_int) {
    let _ = unix::set_option(fd, libc::SOL_SOCKET, libc::SO_RCVLOWAT, &bytes);
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
    let _ = unix::reset_at_close(fd);
    // SAFETY: the descriptor is nobody else's.
    unsafe { (real().close)(fd) };
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
            && let Some(addresses) = client_addresses::get(fd)
        {
            write_address(fd, addresses.client, address, room);
        }
        result
    }
}

/// `getsockname`.
///
/// # Safety
/// As getsockname(2).
pub unsafe fn getsockname(fd: c_int, address: *mut sockaddr, len: *mut socklen_t) -> c_int {
    // SAFETY: the program's own arguments; they are good where the kernel has written to them.
    unsafe {
        let room = room(len);
        let result = (real().getsockname)(fd, address, len);
        if result == 0
            && let Some(addresses) = client_addresses::get(fd)
            && addresses.outside.port() != 0
        {
            write_address(fd, addresses.outside, address, room);
        }
        result
    }
}

/// `fd` was duplicated as `copy`.
pub fn duplicated(fd: c_int, copy: c_int) {
    match client_addresses::get(fd) {
        Some(addresses) => client_addresses::set(copy, &addresses),
        None => client_addresses::forget(copy),
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
pub(crate) struct ClientAddresses {
    /// Its real peer, by which a socket that was connected anew is recognised.
    pub carrier: SocketAddr,
    /// What `getpeername` says.
    pub client: SocketAddr,
    /// What `getsockname` says; with port 0 the kernel's.
    pub outside: SocketAddr,
}

/// Whether the program may have an io_uring: through it the kernel accepts connections whose
/// preface nobody would take off.
pub fn allows_io_uring() -> bool {
    !is_on()
}

#[cfg(test)]
mod tests;
