//! Options and flags of rsockets (rsocket(7)).

use std::ffi::{c_int, c_void};

use libc::socklen_t;

use super::socket::{Phase, Socket, State};
use super::{Kind, kind};
use sluice_rdmacm::{Errno, answer};

pub const SOL_RDMA: c_int = 0x10000;
const RDMA_SQSIZE: c_int = 0;
pub const RDMA_RQSIZE: c_int = 1;
const RDMA_INLINE: c_int = 2;
const RDMA_IOMAPSIZE: c_int = 3;

/// Buffers and queues within which a stream is made.
const BUFFER_MIN: usize = 4096;
const BUFFER_MAX: usize = 1 << 28;
const QUEUE_MIN: c_int = 16;
const QUEUE_MAX: c_int = 0x3fff;
const INLINE_MAX: c_int = 4096;
/// What TCP_MAXSEG says: the largest packet of the path.
const MAXSEG: c_int = 4096;

/// # Safety
/// As setsockopt(2).
pub unsafe extern "C" fn rsetsockopt(
    fd: c_int,
    level: c_int,
    name: c_int,
    value: *const c_void,
    len: socklen_t,
) -> c_int {
    match kind(fd) {
        Ok(Kind::Stream(socket)) => {
            let size = len as usize;
            if value.is_null() || size < size_of::<c_int>() {
                return answer(Err(Errno::INVAL));
            }
            // SAFETY: the caller's contract; the length was checked.
            let number = unsafe { value.cast::<c_int>().read_unaligned() };
            let second = match size >= size_of::<libc::linger>() {
                // SAFETY: the caller's contract; `value` has the bytes of a linger, which is two of these.
                true => unsafe { value.cast::<c_int>().add(1).read_unaligned() },
                false => 0,
            };
            answer(set(&socket, level, name, number, second))
        }
        // SAFETY: the caller's contract.
        Ok(Kind::Datagram) => unsafe { libc::setsockopt(fd, level, name, value, len) },
        Err(errno) => answer(Err(errno)),
    }
}

fn set(
    socket: &Socket,
    level: c_int,
    name: c_int,
    number: c_int,
    second: c_int,
) -> Result<(), Errno> {
    let mut state = socket.lock();
    // What a stream is made of is fixed once it is.
    let open = state.stream.is_some();
    match (level, name) {
        (libc::SOL_SOCKET, libc::SO_REUSEADDR) => state.reuse = number != 0,
        (libc::SOL_SOCKET, libc::SO_KEEPALIVE) => state.keepalive = number != 0,
        (libc::SOL_SOCKET, libc::SO_OOBINLINE) => state.oob_inline = number != 0,
        (libc::SOL_SOCKET, libc::SO_LINGER) => {
            state.linger = (number != 0).then_some(second.max(0) as u32);
        }
        (libc::SOL_SOCKET, libc::SO_RCVBUF) if !open => {
            state.sizes.receive_buffer = buffer(number)?;
        }
        (libc::SOL_SOCKET, libc::SO_SNDBUF) if !open => state.sizes.send_buffer = buffer(number)?,
        // A buffer that is in use keeps its size, as a kernel may keep its.
        (libc::SOL_SOCKET, libc::SO_RCVBUF | libc::SO_SNDBUF) => {}
        (libc::IPPROTO_TCP, libc::TCP_NODELAY) => state.nodelay = number != 0,
        (libc::IPPROTO_IPV6, libc::IPV6_V6ONLY) => state.family_only = number != 0,
        (SOL_RDMA, _) if open => return Err(Errno::INVAL),
        (SOL_RDMA, RDMA_SQSIZE) => {
            state.sizes.send_queue = number.clamp(QUEUE_MIN, QUEUE_MAX) as u32;
        }
        (SOL_RDMA, RDMA_RQSIZE) => {
            state.sizes.receive_queue = number.clamp(QUEUE_MIN, QUEUE_MAX) as u16;
        }
        (SOL_RDMA, RDMA_INLINE) => state.sizes.inline = number.clamp(0, INLINE_MAX) as u32,
        (SOL_RDMA, RDMA_IOMAPSIZE) => {
            state.sizes.iomaps = u8::try_from(number).map_err(|_| Errno::INVAL)?;
        }
        _ => return Err(Errno(libc::ENOPROTOOPT)),
    }
    Ok(())
}

fn buffer(bytes: c_int) -> Result<usize, Errno> {
    let bytes = usize::try_from(bytes).map_err(|_| Errno::INVAL)?;
    Ok(bytes
        .clamp(BUFFER_MIN, BUFFER_MAX)
        .next_multiple_of(BUFFER_MIN))
}

/// # Safety
/// As getsockopt(2).
pub unsafe extern "C" fn rgetsockopt(
    fd: c_int,
    level: c_int,
    name: c_int,
    value: *mut c_void,
    len: *mut socklen_t,
) -> c_int {
    match kind(fd) {
        Ok(Kind::Stream(socket)) => answer((|| {
            let mut state = socket.lock();
            socket.step(&mut state);
            let numbers = get(&mut state, level, name)?;
            // SAFETY: the caller's contract.
            unsafe {
                let room = *len as usize;
                let size = size_of_val(&numbers[..]);
                let wanted = match (level, name) {
                    (libc::SOL_SOCKET, libc::SO_LINGER) => size,
                    _ => size_of::<c_int>(),
                };
                if room < wanted {
                    return Err(Errno::INVAL);
                }
                std::ptr::copy_nonoverlapping(numbers.as_ptr().cast(), value.cast::<u8>(), wanted);
                *len = wanted as socklen_t;
            }
            Ok(())
        })()),
        // SAFETY: the caller's contract.
        Ok(Kind::Datagram) => unsafe { libc::getsockopt(fd, level, name, value, len) },
        Err(errno) => answer(Err(errno)),
    }
}

fn get(state: &mut State, level: c_int, name: c_int) -> Result<[c_int; 2], Errno> {
    let sizes = state.sizes;
    let number = match (level, name) {
        (libc::SOL_SOCKET, libc::SO_ERROR) => state.take_error().map_or(0, |errno| errno.0),
        (libc::SOL_SOCKET, libc::SO_TYPE) => libc::SOCK_STREAM,
        (libc::SOL_SOCKET, libc::SO_ACCEPTCONN) => c_int::from(state.phase == Phase::Listening),
        (libc::SOL_SOCKET, libc::SO_REUSEADDR) => c_int::from(state.reuse),
        (libc::SOL_SOCKET, libc::SO_KEEPALIVE) => c_int::from(state.keepalive),
        (libc::SOL_SOCKET, libc::SO_OOBINLINE) => c_int::from(state.oob_inline),
        (libc::SOL_SOCKET, libc::SO_LINGER) => {
            let seconds = state.linger.unwrap_or(0) as c_int;
            return Ok([c_int::from(state.linger.is_some()), seconds]);
        }
        (libc::SOL_SOCKET, libc::SO_RCVBUF) => sizes.receive_buffer as c_int,
        (libc::SOL_SOCKET, libc::SO_SNDBUF) => sizes.send_buffer as c_int,
        (libc::IPPROTO_TCP, libc::TCP_NODELAY) => c_int::from(state.nodelay),
        (libc::IPPROTO_TCP, libc::TCP_MAXSEG) => MAXSEG,
        (libc::IPPROTO_IPV6, libc::IPV6_V6ONLY) => c_int::from(state.family_only),
        (SOL_RDMA, RDMA_SQSIZE) => sizes.send_queue as c_int,
        (SOL_RDMA, RDMA_RQSIZE) => c_int::from(sizes.receive_queue),
        (SOL_RDMA, RDMA_INLINE) => sizes.inline as c_int,
        (SOL_RDMA, RDMA_IOMAPSIZE) => c_int::from(sizes.iomaps),
        _ => return Err(Errno(libc::ENOPROTOOPT)),
    };
    Ok([number, 0])
}

/// The header's function takes further arguments; one is enough for every command here,
/// and on the supported machines it is passed like a fixed one.
pub extern "C" fn rfcntl(fd: c_int, command: c_int, argument: libc::c_long) -> c_int {
    match (kind(fd), command) {
        (Ok(Kind::Stream(socket)), libc::F_GETFL) => {
            libc::O_RDWR
                | if socket.lock().nonblocking {
                    libc::O_NONBLOCK
                } else {
                    0
                }
        }
        (Ok(Kind::Stream(socket)), libc::F_SETFL) => {
            socket.lock().nonblocking = argument & libc::c_long::from(libc::O_NONBLOCK) != 0;
            0
        }
        (Ok(Kind::Stream(_)), libc::F_GETFD | libc::F_SETFD) | (Ok(Kind::Datagram), _) => {
            // SAFETY: these commands take integers.
            unsafe { libc::fcntl(fd, command, argument) }
        }
        (Ok(Kind::Stream(_)), _) => answer(Err(Errno::NOTSUP)),
        (Err(errno), _) => answer(Err(errno)),
    }
}
