//! `connect` of programs that a gateway serves: what is not of this host's own networks is connected to
//! by the gateway, if that lets this host's programs do so.
//!
//! A program that blocks gets the gateway's answer, with the error that the gateway got. One that
//! does not block is connected when the gateway is reached, and a destination that cannot be
//! reached is a reset.
#![allow(unsafe_code)]

use core::ffi::c_int;
use core::sync::atomic::{AtomicU32, Ordering};
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use libc::{sockaddr, socklen_t};
use sluice_control::message::gateway::{Ask, Ranges, Tell};
use sluice_control::preface::{ANSWER_BYTES, Answer, Carrier, Key, Kind, NOWHERE, Preface};
use sluice_sys::errno::Errno;
use sluice_sys::route::{self, Leads};
use sluice_sys::{raw, tcp, unix};

use crate::fds::{self, Entry};
use crate::gateway::{self, Face, daemon};
use crate::io::LOWEST_ADDRESS;
use crate::lock::SpinLock;
use crate::raw_address::RawAddress;
use crate::real::{real, set_errno};
use crate::{descriptors, log};

/// How long the daemon may take to answer. One that does not is not waited for again for a while
/// ([`daemon::is_silent`]).
const ANSWER_MAX: Duration = Duration::from_secs(1);
/// How long a gateway may take to be reached by a program that does not block.
const REACH_MS_MAX: i32 = 1_000;
/// How long it may take to answer one that blocks: longer than it tries itself.
const CONNECT_MAX: Duration = Duration::from_secs(35);
/// After the daemon has said that there is no way, it is not asked again for so long.
const NO_WAY_MAX: Duration = Duration::from_secs(1);

/// What the daemon has said.
#[derive(Clone, Copy)]
struct Way {
    /// `None`: the gateway connects nowhere for this host.
    exit: Option<(SocketAddr, u32, Key)>,
    direct: Ranges,
    known_since: Instant,
}

static WAY: SpinLock<Option<Way>> = SpinLock::new(None);
static NONCE: AtomicU32 = AtomicU32::new(0);

/// Locks the way out across a fork, so that the child finds no half of a key.
pub fn before_fork() {
    core::mem::forget(WAY.try_lock_fork());
}

/// Undoes [`before_fork`], in both processes.
pub fn release_after_fork() {
    WAY.force_open();
}

fn forget_way() {
    if let Some(mut way) = WAY.lock() {
        *way = None;
    }
}

fn way() -> Option<Way> {
    let known = WAY.lock().and_then(|way| *way);
    if let Some(way) = known
        && (way.exit.is_some() || way.known_since.elapsed() < NO_WAY_MAX)
    {
        return Some(way);
    }
    if daemon::is_silent() {
        return None;
    }
    let asked = ask().ok()?;
    if let Some(mut way) = WAY.lock() {
        *way = Some(asked);
    }
    Some(asked)
}

fn ask() -> Result<Way, Errno> {
    let gateway = gateway::names().ok_or(Errno::INVAL)?.gateway;
    let Tell::Way {
        errno,
        address,
        exit,
        key,
        direct,
    } = daemon::ask(Ask::Way { gateway }, &[], ANSWER_MAX)?
    else {
        return Err(Errno::PROTO);
    };
    Ok(Way {
        exit: (errno == 0).then_some((address, exit, key)),
        direct,
        known_since: Instant::now(),
    })
}

/// `connect`, if the gateway is to do it. `None`: the kernel is.
///
/// # Safety
/// As connect(2).
pub unsafe fn connect(fd: c_int, address: *const sockaddr, len: socklen_t) -> Option<c_int> {
    if fds::get(fd) != Entry::Socket || (address as usize) < LOWEST_ADDRESS {
        return None;
    }
    let mut bytes = [0_u8; size_of::<libc::sockaddr_in6>()];
    let count = bytes.len().min(len as usize);
    // SAFETY: the program's own arguments: an address of this length.
    unsafe {
        bytes
            .as_mut_ptr()
            .copy_from_nonoverlapping(address.cast(), count)
    };
    let target = tcp::parse_address(&bytes[..count]).ok()?;
    let ip = target.ip();
    if target.port() == 0 || ip.is_loopback() || ip.is_unspecified() || ip.is_multicast() {
        return None;
    }
    let way = way()?;
    if way.direct.contain(ip) || is_own(ip) {
        return None;
    }
    way.exit?;
    // A gateway that has come again has another key.
    for attempt in 0..2 {
        let (exit, number, key) = self::way()?.exit?;
        let socket_address = RawAddress::in_family_of(fd, exit)?;
        match reach(fd, &socket_address, target, number, &key) {
            Ok(()) => return Some(0),
            Err(Failure::Way(errno)) if attempt == 0 => {
                log!(
                    Info,
                    "fd {fd}: asks again for the way out: {}",
                    errno.name()
                );
                forget_way();
                disconnect(fd);
            }
            Err(Failure::Way(errno) | Failure::Target(errno)) => {
                disconnect(fd);
                set_errno(errno.0);
                return Some(-1);
            }
        }
    }
    None
}

/// Whether the kernel would send it to this host itself.
fn is_own(ip: IpAddr) -> bool {
    // Where the program may not ask: what such a packet would be sent from.
    route::leads(ip).map_or_else(|_| is_sent_from(ip), |leads| leads != Leads::Away)
}

fn is_sent_from(ip: IpAddr) -> bool {
    let any: SocketAddr = match ip {
        IpAddr::V4(_) => ([0, 0, 0, 0], 0).into(),
        IpAddr::V6(_) => ([0_u16; 8], 0).into(),
    };
    let route = UdpSocket::bind(any).and_then(|probe| {
        probe.connect(SocketAddr::new(ip, 9))?;
        probe.local_addr()
    });
    route.is_ok_and(|own| own.ip() == ip)
}

enum Failure {
    /// The gateway is not reached, or does not believe us.
    Way(Errno),
    /// The gateway says that it cannot get there.
    Target(Errno),
}

fn reach(
    fd: c_int,
    exit: &RawAddress,
    target: SocketAddr,
    number: u32,
    key: &Key,
) -> Result<(), Failure> {
    let blocks = !descriptors::is_nonblocking(fd);
    // SAFETY: the kernel reads the address.
    let connected = raw::check(unsafe {
        raw::syscall3(
            libc::SYS_connect,
            raw::int(fd),
            exit.bytes().as_ptr() as usize,
            exit.bytes().len(),
        )
    });
    match connected {
        Ok(_) => {}
        Err(Errno(libc::EINPROGRESS)) => {
            unix::wait_writable(fd, REACH_MS_MAX)
                .map_err(Failure::Way)?
                .then_some(())
                .ok_or(Failure::Way(Errno(libc::ETIMEDOUT)))?;
            let mut error = [0; 4];
            unix::get_option(fd, libc::SOL_SOCKET, libc::SO_ERROR, &mut error)
                .map_err(Failure::Way)?;
            match i32::from_ne_bytes(error) {
                0 => {}
                libc::ECONNREFUSED => return Err(Failure::Way(Errno(libc::ENETUNREACH))),
                errno => return Err(Failure::Way(Errno(errno))),
            }
        }
        // The gateway's process is away: its host is there, the destination may be.
        Err(Errno(libc::ECONNREFUSED)) => return Err(Failure::Way(Errno(libc::ENETUNREACH))),
        Err(errno) => return Err(Failure::Way(errno)),
    }
    let carrier = Carrier {
        from: tcp::local_address(fd).map_err(Failure::Way)?,
        to: tcp::peer_address(fd).map_err(Failure::Way)?,
    };
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    NONCE.fetch_add(1, Ordering::Relaxed);
    let preface = Preface {
        kind: if blocks {
            Kind::Destination
        } else {
            Kind::Unanswered
        },
        client: target,
        outside: NOWHERE,
        time_ms: since.map_or(0, |since| since.as_millis() as u64),
        nonce: number,
    };
    send(fd, &preface.encode(key, &carrier)).map_err(Failure::Way)?;
    let outside = if blocks {
        let answer = answer(fd).map_err(Failure::Way)?;
        match i32::from(answer.errno) {
            0 => answer.outside,
            errno => return Err(Failure::Target(Errno(errno))),
        }
    } else {
        NOWHERE
    };
    gateway::set_face(
        fd,
        &Face {
            carrier: carrier.to,
            client: target,
            outside,
        },
    );
    Ok(())
}

/// A new connection has room for so little.
fn send(fd: c_int, bytes: &[u8]) -> Result<(), Errno> {
    // SAFETY: the kernel reads the bytes.
    let sent = raw::check(unsafe {
        raw::syscall6(
            libc::SYS_sendto,
            raw::int(fd),
            bytes.as_ptr() as usize,
            bytes.len(),
            raw::int(libc::MSG_NOSIGNAL | libc::MSG_DONTWAIT),
            0,
            0,
        )
    })?;
    if sent == bytes.len() {
        Ok(())
    } else {
        Err(Errno::AGAIN)
    }
}

fn answer(fd: c_int) -> Result<Answer, Errno> {
    let until = Instant::now() + CONNECT_MAX;
    let mut bytes = [0; ANSWER_BYTES];
    let mut seen = 0;
    while seen < bytes.len() {
        match gateway::receive(fd, &mut bytes[seen..], 0) {
            Ok(0) => return Err(Errno(libc::ECONNRESET)),
            Ok(count) => seen += count,
            Err(Errno::AGAIN | Errno::INTR) => {
                let left = until.saturating_duration_since(Instant::now());
                if left.is_zero() {
                    return Err(Errno(libc::ETIMEDOUT));
                }
                // A signal ends it early; the program's call goes on, as with SA_RESTART.
                let _ = unix::wait_readable(fd, left.as_millis() as i32 + 1);
            }
            Err(errno) => return Err(errno),
        }
    }
    Ok(Answer::decode(&bytes))
}

/// So that the program, or another attempt, can connect the socket again.
fn disconnect(fd: c_int) {
    let unspecified = [0_u8; size_of::<libc::sockaddr_in>()];
    // SAFETY: the kernel reads an address of family 0 (connect(2)).
    unsafe {
        (real().connect)(
            fd,
            unspecified.as_ptr().cast(),
            unspecified.len() as socklen_t,
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nobody_writes_while_the_process_forks() {
        before_fork();
        assert!(WAY.try_lock().is_none());
        release_after_fork();
        crate::lock::forget_held();
        assert!(WAY.lock().is_some());
    }

    #[test]
    fn a_daemon_that_does_not_answer_is_waited_for_once() {
        let daemon = daemon::testing::Daemon::new();
        for _ in 0..3 {
            assert!(way().is_none());
        }
        assert_eq!(daemon.asked(), 1);
    }
}
