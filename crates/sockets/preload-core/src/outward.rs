//! `connect` of programs that a gateway serves: what is not of this host's own networks is connected to
//! by the gateway, if that lets this host's programs do so.
//!
//! A program that blocks gets the gateway's answer, with the error that the gateway got. One that
//! does not block is connected when the gateway is reached, and a destination that cannot be
//! reached is a reset.
#![allow(unsafe_code)]

use core::ffi::c_int;
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::time::{Duration, Instant};

use libc::{sockaddr, socklen_t};
use sluice_control::message::gateway::{Ask, Ranges, Tell};
use sluice_control::preface::{ANSWER_BYTES, Answer, Carrier, Key, Kind, NOWHERE, Preface};
use sluice_sys::errno::Errno;
use sluice_sys::route::{self, Leads};
use sluice_sys::{raw, tcp, unix};

use crate::fds::{self, Entry};
use crate::gateway::{self, ClientAddresses, daemon};
use crate::lock::SpinLock;
use crate::log;
use crate::memory::LOWEST_ADDRESS;
use crate::raw_address::RawAddress;
use crate::real::{is_nonblocking, real, set_errno};

/// How long the daemon may take to answer. One that does not is not waited for again for a while
/// ([`daemon::is_silent`]).
const ANSWER_MAX: Duration = Duration::from_secs(1);
/// How long a program that does not block may be inside `connect`, whatever the daemon and the gateway
/// do.
const UNBLOCKED_MAX: Duration = Duration::from_secs(1);
/// The same for one that blocks: longer than the gateway tries.
const BLOCKED_MAX: Duration = Duration::from_secs(35);
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

/// Locks the way out across a fork, so that the child finds no half of a key.
pub fn before_fork() {
    WAY.hold_across_fork();
}

/// Undoes [`before_fork`] in the parent.
pub fn release_after_fork() {
    WAY.release_after_fork();
}

/// The same in the child.
pub fn open_in_child() {
    WAY.force_open();
}

fn forget_way() {
    if let Some(mut way) = WAY.lock() {
        *way = None;
    }
}

fn way(deadline: Instant) -> Option<Way> {
    let known = WAY.lock().and_then(|way| *way);
    if let Some(way) = known
        && (way.exit.is_some() || way.known_since.elapsed() < NO_WAY_MAX)
    {
        return Some(way);
    }
    if daemon::is_silent() {
        return None;
    }
    let asked = ask(ANSWER_MAX.min(left(deadline))).ok()?;
    if let Some(mut way) = WAY.lock() {
        *way = Some(asked);
    }
    Some(asked)
}

fn ask(limit: Duration) -> Result<Way, Errno> {
    let gateway = gateway::names().ok_or(Errno::INVAL)?.gateway;
    let Tell::Way {
        errno,
        address,
        exit,
        key,
        direct,
    } = daemon::ask(Ask::Way { gateway }, &[], limit)?
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
    if target.port() == 0 || is_of_this_link(target.ip()) {
        return None;
    }
    match by_gateway(fd, target, Instant::now() + patience(fd))? {
        Ok(()) => Some(0),
        Err(errno) => {
            set_errno(errno.0);
            Some(-1)
        }
    }
}

/// Addresses that mean this host, this link, or many: a gateway goes to none of them.
fn is_of_this_link(ip: IpAddr) -> bool {
    let ip = ip.to_canonical();
    let is_link_local = match ip {
        IpAddr::V4(ip) => ip.is_link_local() || ip.is_broadcast(),
        IpAddr::V6(ip) => ip.is_unicast_link_local(),
    };
    is_link_local || ip.is_loopback() || ip.is_unspecified() || ip.is_multicast()
}

/// How long `connect` may take.
fn patience(fd: c_int) -> Duration {
    if is_nonblocking(fd) {
        return UNBLOCKED_MAX;
    }
    let own = send_timeout(fd).map(|own| {
        Duration::from_secs(own.tv_sec as u64) + Duration::from_micros(own.tv_usec as u64)
    });
    // Zero: none.
    own.filter(|own| !own.is_zero())
        .map_or(BLOCKED_MAX, |own| own.min(BLOCKED_MAX))
}

fn left(deadline: Instant) -> Duration {
    deadline.saturating_duration_since(Instant::now())
}

/// For poll(2), rounded up.
fn left_ms(deadline: Instant) -> i32 {
    left(deadline).as_micros().div_ceil(1_000) as i32
}

fn by_gateway(fd: c_int, target: SocketAddr, deadline: Instant) -> Option<Result<(), Errno>> {
    let way = way(deadline)?;
    way.exit?;
    if way.direct.contain(target.ip()) || is_own(target.ip()) {
        return None;
    }
    // A gateway that has come again has another key.
    for attempt in 0..2 {
        let (exit, number, key) = self::way(deadline)?.exit?;
        let socket_address = RawAddress::in_family_of(fd, exit)?;
        match reach(fd, &socket_address, target, number, &key, deadline) {
            Ok(()) => return Some(Ok(())),
            Err(Failure::Way(errno)) => {
                forget_way();
                disconnect(fd);
                if attempt > 0 || left(deadline).is_zero() {
                    return Some(Err(errno));
                }
                let name = errno.name();
                log!(Info, "fd {fd}: asks again for the way out: {name}");
            }
            Err(Failure::Target(errno)) => {
                disconnect(fd);
                return Some(Err(errno));
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
    deadline: Instant,
) -> Result<(), Failure> {
    let blocks = !is_nonblocking(fd);
    begin(fd, exit, blocks, deadline).map_err(Failure::Way)?;
    let carrier = Carrier {
        from: tcp::local_address(fd).map_err(Failure::Way)?,
        to: tcp::peer_address(fd).map_err(Failure::Way)?,
    };
    let preface = Preface {
        kind: if blocks {
            Kind::Destination
        } else {
            Kind::Unanswered
        },
        client: target,
        outside: NOWHERE,
        exit: number,
    };
    send(fd, &preface.encode(key, &carrier)).map_err(Failure::Way)?;
    let outside = if blocks {
        let answer = answer(fd, deadline).map_err(Failure::Way)?;
        match i32::from(answer.errno) {
            0 => answer.outside,
            errno => return Err(Failure::Target(Errno(errno))),
        }
    } else {
        NOWHERE
    };
    gateway::set_client_addresses(
        fd,
        &ClientAddresses {
            carrier: carrier.to,
            client: target,
            outside,
        },
    );
    Ok(())
}

/// Connects the socket with the gateway.
fn begin(fd: c_int, exit: &RawAddress, blocks: bool, deadline: Instant) -> Result<(), Errno> {
    let own = send_timeout(fd).filter(|_| blocks);
    if own.is_some() {
        // The kernel would try for two minutes.
        let left = left(deadline).max(Duration::from_millis(1));
        let timeout = libc::timeval {
            tv_sec: left.as_secs() as libc::time_t,
            tv_usec: left.subsec_micros().into(),
        };
        set_send_timeout(fd, &timeout);
    }
    // SAFETY: the kernel reads the address.
    let connected = raw::check(unsafe {
        raw::syscall3(
            libc::SYS_connect,
            raw::int(fd),
            exit.bytes().as_ptr() as usize,
            exit.bytes().len(),
        )
    });
    if let Some(own) = own {
        set_send_timeout(fd, &own);
    }
    let failed = match connected {
        Ok(_) => return Ok(()),
        // On its way; or the time is over, or a signal came.
        Err(Errno(libc::EINPROGRESS) | Errno::INTR) => {
            loop {
                match unix::wait_writable(fd, left_ms(deadline)) {
                    Ok(true) => break,
                    Err(Errno::INTR) if !left(deadline).is_zero() => {}
                    Ok(false) | Err(Errno::INTR) => return Err(Errno(libc::ETIMEDOUT)),
                    Err(errno) => return Err(errno),
                }
            }
            let mut error = [0; 4];
            unix::get_option(fd, libc::SOL_SOCKET, libc::SO_ERROR, &mut error)?;
            Errno(i32::from_ne_bytes(error))
        }
        Err(errno) => errno,
    };
    match failed {
        Errno(0) => Ok(()),
        // The gateway's process is away: its host is there, the destination may be.
        Errno(libc::ECONNREFUSED) => Err(Errno(libc::ENETUNREACH)),
        errno => Err(errno),
    }
}

/// What bounds a `connect` that blocks (`SO_SNDTIMEO`, socket(7)).
fn send_timeout(fd: c_int) -> Option<libc::timeval> {
    let mut bytes = [0; size_of::<libc::timeval>()];
    unix::get_option(fd, libc::SOL_SOCKET, libc::SO_SNDTIMEO, &mut bytes).ok()?;
    // SAFETY: any bytes are two numbers, and the kernel has written these.
    Some(unsafe { bytes.as_ptr().cast::<libc::timeval>().read_unaligned() })
}

fn set_send_timeout(fd: c_int, timeout: &libc::timeval) {
    let _ = unix::set_option(fd, libc::SOL_SOCKET, libc::SO_SNDTIMEO, timeout);
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

fn answer(fd: c_int, deadline: Instant) -> Result<Answer, Errno> {
    let mut bytes = [0; ANSWER_BYTES];
    let mut seen = 0;
    while seen < bytes.len() {
        // Before the look, so that an answer that comes while this thread stands still is not late.
        let is_over = left(deadline).is_zero();
        match gateway::receive(fd, &mut bytes[seen..], 0) {
            Ok(0) => return Err(Errno(libc::ECONNRESET)),
            Ok(count) => seen += count,
            Err(Errno::AGAIN | Errno::INTR) => {
                if is_over {
                    return Err(Errno(libc::ETIMEDOUT));
                }
                // A signal ends it early; the program's call goes on, as with SA_RESTART.
                let _ = unix::wait_readable(fd, left_ms(deadline));
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
    use std::net::{TcpListener, TcpStream};
    use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

    #[test]
    fn nobody_writes_while_the_process_forks() {
        before_fork();
        assert!(WAY.try_lock().is_none());
        release_after_fork();
        crate::lock::forget_held();
        assert!(WAY.lock().is_some());
    }

    fn soon() -> Instant {
        Instant::now() + Duration::from_millis(300)
    }

    #[test]
    fn a_daemon_that_does_not_answer_is_waited_for_once() {
        let daemon = daemon::testing::Daemon::new();
        forget_way();
        for _ in 0..3 {
            assert!(way(soon()).is_none());
        }
        assert_eq!(daemon.asked(), 1);
    }

    /// An address where nobody answers: the queue of who waits there is full.
    fn black_hole() -> (TcpListener, Vec<TcpStream>, SocketAddr) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        // SAFETY: the call takes numbers.
        assert_eq!(unsafe { libc::listen(listener.as_raw_fd(), 0) }, 0);
        let address = listener.local_addr().unwrap();
        let mut waiting = Vec::new();
        while let Ok(one) = TcpStream::connect_timeout(&address, Duration::from_millis(300)) {
            waiting.push(one);
            assert!(waiting.len() < 16);
        }
        (listener, waiting, address)
    }

    fn socket(flags: c_int) -> OwnedFd {
        // SAFETY: the call takes numbers, and the descriptor is nobody else's.
        unsafe {
            let fd = libc::socket(libc::AF_INET, libc::SOCK_STREAM | flags, 0);
            OwnedFd::from_raw_fd(fd)
        }
    }

    /// The kernel alone would try for two minutes, twice.
    #[test]
    fn a_gateway_that_does_not_answer_is_given_up_in_time() {
        let _daemon = daemon::testing::Daemon::new();
        let (_listener, _waiting, address) = black_hole();
        for flags in [0, libc::SOCK_NONBLOCK] {
            *WAY.lock().unwrap() = Some(Way {
                exit: Some((address, 1, Key([1; 32]))),
                direct: Ranges::new([]),
                known_since: Instant::now(),
            });
            let socket = socket(flags);
            let own = libc::timeval {
                tv_sec: 77,
                tv_usec: 0,
            };
            set_send_timeout(socket.as_raw_fd(), &own);
            let (done, is_done) = std::sync::mpsc::channel();
            let target = "203.0.113.5:7".parse().unwrap();
            let fd = socket.as_raw_fd();
            std::thread::spawn(move || done.send(by_gateway(fd, target, soon())));
            let said = is_done.recv_timeout(Duration::from_secs(60)).unwrap();
            assert_eq!(said, Some(Err(Errno(libc::ETIMEDOUT))));
            assert_eq!(send_timeout(fd).unwrap().tv_sec, 77);
        }
        forget_way();
    }

    #[test]
    fn a_programs_own_limit_holds() {
        let blocks = socket(0);
        assert_eq!(patience(blocks.as_raw_fd()), BLOCKED_MAX);
        for (own, expected) in [(3, Duration::from_secs(3)), (300, BLOCKED_MAX)] {
            let own = libc::timeval {
                tv_sec: own,
                tv_usec: 0,
            };
            set_send_timeout(blocks.as_raw_fd(), &own);
            assert_eq!(patience(blocks.as_raw_fd()), expected);
        }
        let does_not = socket(libc::SOCK_NONBLOCK);
        assert_eq!(patience(does_not.as_raw_fd()), UNBLOCKED_MAX);
    }

    #[test]
    fn what_is_of_this_link_is_no_gateways_business() {
        for (ip, expected) in [
            ("169.254.169.254", true),
            ("::ffff:169.254.169.254", true),
            ("fe80::1", true),
            ("127.0.0.2", true),
            ("::ffff:127.0.0.1", true),
            ("255.255.255.255", true),
            ("224.0.0.1", true),
            ("ff02::1", true),
            ("0.0.0.0", true),
            ("::", true),
            ("10.0.0.1", false),
            ("fd00::1", false),
            ("203.0.113.5", false),
        ] {
            assert_eq!(is_of_this_link(ip.parse().unwrap()), expected, "{ip}");
        }
    }
}
