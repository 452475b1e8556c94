//! The calls that carry the names of socket calls with an `r` in front, and the meaning.

use std::ffi::{c_int, c_void};
use std::sync::Arc;

use libc::{iovec, msghdr, off_t, size_t, sockaddr, socklen_t, ssize_t};

use super::socket::{Phase, Socket};
use super::{Kind, insert, kind, remove};
use sluice_rdmacm::{Errno, answer, c_address};
use sluice_verbs_calls::errno::set_errno;

/// The most that one call takes, as in Linux.
const BYTES_MAX: usize = 0x7fff_f000;

fn count(result: Result<usize, Errno>) -> ssize_t {
    match result {
        Ok(count) => count as ssize_t,
        Err(errno) => {
            set_errno(errno.0);
            -1
        }
    }
}

fn descriptor(result: Result<c_int, Errno>) -> c_int {
    result.unwrap_or_else(|errno| sluice_verbs_calls::errno::minus_one(errno.0))
}

/// A stream call, or the kernel's for a datagram socket.
macro_rules! dispatch {
    ($fd:expr, $socket:ident => $stream:expr, $datagram:expr) => {
        match kind($fd) {
            Ok(Kind::Stream($socket)) => $stream,
            // SAFETY: the caller's contract is that of the kernel's call.
            Ok(Kind::Datagram) => unsafe { $datagram },
            Err(errno) => {
                set_errno(errno.0);
                -1
            }
        }
    };
}

/// A call that moves datagrams. That nobody had the port of an earlier one is no news of an RDMA
/// fabric: rsocket(7) loses such datagrams, and a client that comes before its server asks again.
/// The kernel's socket says it once, in place of what was to be done.
fn delivered(call: impl Fn() -> libc::ssize_t) -> libc::ssize_t {
    loop {
        let moved = call();
        if moved >= 0 || sluice_verbs_calls::errno::errno() != libc::ECONNREFUSED {
            return moved;
        }
    }
}

pub extern "C" fn rsocket(domain: c_int, kind: c_int, protocol: c_int) -> c_int {
    descriptor(create(domain, kind, protocol))
}

fn create(domain: c_int, kind: c_int, protocol: c_int) -> Result<c_int, Errno> {
    if ![libc::AF_INET, libc::AF_INET6].contains(&domain) {
        return Err(Errno(libc::EAFNOSUPPORT));
    }
    let nonblocking = kind & libc::SOCK_NONBLOCK != 0;
    match kind & !(libc::SOCK_NONBLOCK | libc::SOCK_CLOEXEC) {
        libc::SOCK_STREAM if [0, libc::IPPROTO_TCP].contains(&protocol) => {
            let socket = Socket::new(domain)?;
            socket.lock().nonblocking = nonblocking;
            let fd = socket.fd();
            insert(fd, Kind::Stream(socket));
            Ok(fd)
        }
        libc::SOCK_DGRAM if [0, libc::IPPROTO_UDP].contains(&protocol) => {
            // SAFETY: socket takes integers only.
            let fd = unsafe { libc::socket(domain, kind, protocol) };
            if fd < 0 {
                return Err(Errno(sluice_verbs_calls::errno::errno()));
            }
            insert(fd, Kind::Datagram);
            Ok(fd)
        }
        _ => Err(Errno(libc::EPROTONOSUPPORT)),
    }
}

/// # Safety
/// As bind(2).
pub unsafe extern "C" fn rbind(fd: c_int, address: *const sockaddr, len: socklen_t) -> c_int {
    dispatch!(
        fd,
        // SAFETY: the caller's contract.
        socket => answer(unsafe { c_address::read_sized(address, len) }
            .and_then(|address| socket.bind(address))),
        libc::bind(fd, address, len)
    )
}

pub extern "C" fn rlisten(fd: c_int, backlog: c_int) -> c_int {
    dispatch!(fd, socket => answer(socket.listen(backlog)), libc::listen(fd, backlog))
}

/// # Safety
/// As accept(2).
pub unsafe extern "C" fn raccept(fd: c_int, address: *mut sockaddr, len: *mut socklen_t) -> c_int {
    dispatch!(
        fd,
        socket => descriptor(socket.accept().map(|accepted| {
            if let Ok((_, Some(peer))) = accepted.addresses() {
                // SAFETY: the caller's contract.
                unsafe { c_address::give(&peer, address, len) };
            }
            let fd = accepted.fd();
            insert(fd, Kind::Stream(accepted));
            fd
        })),
        libc::accept(fd, address, len)
    )
}

/// # Safety
/// As connect(2).
pub unsafe extern "C" fn rconnect(fd: c_int, address: *const sockaddr, len: socklen_t) -> c_int {
    dispatch!(
        fd,
        // SAFETY: the caller's contract.
        socket => answer(unsafe { c_address::read_sized(address, len) }
            .and_then(|address| socket.connect(address))),
        libc::connect(fd, address, len)
    )
}

pub extern "C" fn rshutdown(fd: c_int, how: c_int) -> c_int {
    dispatch!(
        fd,
        socket => answer(match how {
            libc::SHUT_RD => socket.shutdown(true, false),
            libc::SHUT_WR => socket.shutdown(false, true),
            libc::SHUT_RDWR => socket.shutdown(true, true),
            _ => Err(Errno::INVAL),
        }),
        libc::shutdown(fd, how)
    )
}

pub extern "C" fn rclose(fd: c_int) -> c_int {
    match remove(fd) {
        Some(Kind::Stream(socket)) => {
            socket.close();
            0
        }
        // SAFETY: close takes an integer.
        Some(Kind::Datagram) => unsafe { libc::close(fd) },
        None => answer(Err(Errno::BADF)),
    }
}

/// Receives into one buffer, behind `skipped` bytes that were only looked at.
unsafe fn receive(
    socket: &Arc<Socket>,
    to: *mut u8,
    len: usize,
    flags: c_int,
    skipped: usize,
) -> Result<usize, Errno> {
    // There is no urgent data. Flags that mean nothing to a stream are passed over, as
    // Linux does.
    if flags & (libc::MSG_OOB | libc::MSG_ERRQUEUE | libc::MSG_TRUNC) != 0 {
        return Err(Errno::NOTSUP);
    }
    let len = len.min(BYTES_MAX);
    let peek = flags & libc::MSG_PEEK != 0;
    let mut taken = 0;
    loop {
        let state = socket.lock();
        state.was_connected()?;
        if len == 0 {
            return Ok(0);
        }
        let nonblocking = state.nonblocking || flags & libc::MSG_DONTWAIT != 0;
        let waited = socket.wait(state, nonblocking, |state| {
            state.read_closed
                || state.phase != Phase::Connected
                || state
                    .stream
                    .as_ref()
                    .is_none_or(|stream| stream.readable() > skipped || stream.peer_closed)
        });
        let mut state = match waited {
            Ok(state) => state,
            Err(_) if taken > 0 => return Ok(taken),
            Err(errno) => return Err(errno),
        };
        let closed = state.read_closed;
        let got = match state.stream.as_mut() {
            // SAFETY: within the caller's room.
            Some(stream) if !closed && peek => unsafe { stream.peek(to, len, skipped) },
            // SAFETY: within the caller's room.
            Some(stream) if !closed => unsafe { stream.read(to.add(taken), len - taken) },
            _ => 0,
        };
        taken += got;
        if got == 0 && taken == 0 {
            state.was_connected()?;
            let broken = state.stream.as_ref().and_then(|stream| {
                // After the peer's goodbye the rest is silence.
                stream.broken.filter(|_| !stream.peer_closed)
            });
            return match (state.take_error(), broken) {
                (Some(errno), _) => Err(errno),
                (None, Some(errno)) => Err(errno),
                (None, None) => Ok(0),
            };
        }
        let all = flags & libc::MSG_WAITALL != 0 && !peek;
        if got == 0 || !all || taken == len {
            return Ok(taken);
        }
    }
}

unsafe fn send(
    socket: &Arc<Socket>,
    from: *const u8,
    len: usize,
    flags: c_int,
) -> Result<usize, Errno> {
    if flags & (libc::MSG_OOB | libc::MSG_FASTOPEN) != 0 {
        return Err(Errno::NOTSUP);
    }
    let len = len.min(BYTES_MAX);
    let mut taken = 0;
    loop {
        let state = socket.lock();
        let ended =
            |state: &super::socket::State| state.write_closed || state.phase != Phase::Connected;
        if ended(&state) {
            if taken > 0 {
                return Ok(taken);
            }
            state.was_connected()?;
            return Err(broken_pipe(flags));
        }
        if taken == len {
            return Ok(taken);
        }
        let nonblocking = state.nonblocking || flags & libc::MSG_DONTWAIT != 0;
        let waited = socket.wait(state, nonblocking, |state| {
            ended(state)
                || state
                    .stream
                    .as_mut()
                    .is_none_or(|stream| stream.tell_iomaps().unwrap_or(true) && stream.writable())
        });
        let mut state = match waited {
            Ok(state) => state,
            Err(_) if taken > 0 => return Ok(taken),
            Err(errno) => return Err(errno),
        };
        if ended(&state) {
            continue;
        }
        if let Some(stream) = state.stream.as_mut() {
            // SAFETY: within the caller's bytes.
            match unsafe { stream.write(from.add(taken), len - taken) } {
                Ok(sent) => taken += sent,
                // The next call says why.
                Err(_) if taken > 0 => return Ok(taken),
                Err(errno) => return Err(errno),
            }
        }
    }
}

/// EPIPE, with the signal that comes with it unless the program asked for none.
fn broken_pipe(flags: c_int) -> Errno {
    if flags & libc::MSG_NOSIGNAL == 0 {
        // SAFETY: raise takes an integer.
        unsafe { libc::raise(libc::SIGPIPE) };
    }
    Errno::PIPE
}

/// # Safety
/// As recv(2).
pub unsafe extern "C" fn rrecv(fd: c_int, to: *mut c_void, len: size_t, flags: c_int) -> ssize_t {
    dispatch!(
        fd,
        // SAFETY: the caller's contract.
        socket => count(unsafe { receive(&socket, to.cast(), len, flags, 0) }),
        delivered(|| libc::recv(fd, to, len, flags))
    )
}

/// # Safety
/// As recvfrom(2).
pub unsafe extern "C" fn rrecvfrom(
    fd: c_int,
    to: *mut c_void,
    len: size_t,
    flags: c_int,
    address: *mut sockaddr,
    address_len: *mut socklen_t,
) -> ssize_t {
    dispatch!(
        fd,
        socket => {
            // SAFETY: the caller's contract.
            let got = count(unsafe { receive(&socket, to.cast(), len, flags, 0) });
            if got > 0 && let Ok((_, Some(peer))) = socket.addresses() {
                // SAFETY: the caller's contract.
                unsafe { c_address::give(&peer, address, address_len) };
            }
            got
        },
        delivered(|| libc::recvfrom(fd, to, len, flags, address, address_len))
    )
}

/// # Safety
/// As recvmsg(2).
pub unsafe extern "C" fn rrecvmsg(fd: c_int, message: *mut msghdr, flags: c_int) -> ssize_t {
    dispatch!(
        fd,
        // SAFETY: the caller's contract.
        socket => count(unsafe { pieces_of(message) }.and_then(|pieces| {
            receive_vector(&socket, pieces, flags)
        })),
        delivered(|| libc::recvmsg(fd, message, flags))
    )
}

/// The pieces of a message without control data, which a stream has none of.
///
/// # Safety
/// The message and its array are valid for as long as the answer is used.
unsafe fn pieces_of<'a>(message: *const msghdr) -> Result<&'a [iovec], Errno> {
    // SAFETY: the caller's contract.
    let message = unsafe { &*message };
    if message.msg_controllen > 0 {
        return Err(Errno::NOTSUP);
    }
    // SAFETY: the caller's contract.
    unsafe { slice_of(message.msg_iov, message.msg_iovlen) }
}

/// # Safety
/// The array is valid for as long as the answer is used.
unsafe fn slice_of<'a>(pieces: *const iovec, count: usize) -> Result<&'a [iovec], Errno> {
    if count == 0 {
        return Ok(&[]);
    }
    if count > libc::UIO_MAXIOV as usize {
        return Err(Errno(libc::EMSGSIZE));
    }
    // SAFETY: the caller's contract.
    Ok(unsafe { std::slice::from_raw_parts(pieces, count) })
}

/// As [`slice_of`], for readv(2) and writev(2): they have another error for too many.
unsafe fn vector_of<'a>(pieces: *const iovec, count: c_int) -> Result<&'a [iovec], Errno> {
    let count = usize::try_from(count).map_err(|_| Errno::INVAL)?;
    // SAFETY: the caller's contract.
    unsafe { slice_of(pieces, count) }.map_err(|_| Errno::INVAL)
}

/// Receives into several buffers that are valid.
fn receive_vector(socket: &Arc<Socket>, pieces: &[iovec], flags: c_int) -> Result<usize, Errno> {
    let peek = flags & libc::MSG_PEEK != 0;
    in_pieces(pieces, |piece, taken| {
        // Only the first piece waits, unless all of them were asked for.
        let waits = taken == 0 || (flags & libc::MSG_WAITALL != 0 && !peek);
        let flags = flags | if waits { 0 } else { libc::MSG_DONTWAIT };
        let skipped = if peek { taken } else { 0 };
        // SAFETY: the pieces are valid.
        unsafe { receive(socket, piece.iov_base.cast(), piece.iov_len, flags, skipped) }
    })
}

/// Does something with each piece that is not empty, up to one that is not done in full, and with no more
/// bytes than one call takes. `EINVAL` for pieces that are longer together than the answer can say. An
/// error behind the first byte is for the next call to find.
fn in_pieces(
    pieces: &[iovec],
    mut each: impl FnMut(&iovec, usize) -> Result<usize, Errno>,
) -> Result<usize, Errno> {
    let mut lengths = pieces.iter().map(|piece| piece.iov_len);
    let total = lengths.try_fold(0_usize, |total, len| total.checked_add(len));
    if total.is_none_or(|total| ssize_t::try_from(total).is_err()) {
        return Err(Errno::INVAL);
    }
    let mut taken = 0;
    for piece in pieces.iter().filter(|piece| piece.iov_len > 0) {
        let iov_len = piece.iov_len.min(BYTES_MAX - taken);
        match each(&iovec { iov_len, ..*piece }, taken) {
            Ok(count) => {
                taken += count;
                if count < iov_len || taken == BYTES_MAX {
                    break;
                }
            }
            Err(_) if taken > 0 => break,
            Err(errno) => return Err(errno),
        }
    }
    Ok(taken)
}

/// # Safety
/// As read(2).
pub unsafe extern "C" fn rread(fd: c_int, to: *mut c_void, len: size_t) -> ssize_t {
    // SAFETY: the caller's contract.
    unsafe { rrecv(fd, to, len, 0) }
}

/// # Safety
/// As readv(2).
pub unsafe extern "C" fn rreadv(fd: c_int, pieces: *const iovec, pieces_count: c_int) -> ssize_t {
    dispatch!(
        fd,
        // SAFETY: the caller's contract.
        socket => count(unsafe { vector_of(pieces, pieces_count) }.and_then(|pieces| {
            receive_vector(&socket, pieces, 0)
        })),
        delivered(|| libc::readv(fd, pieces, pieces_count))
    )
}

/// # Safety
/// As send(2).
pub unsafe extern "C" fn rsend(
    fd: c_int,
    from: *const c_void,
    len: size_t,
    flags: c_int,
) -> ssize_t {
    dispatch!(
        fd,
        // SAFETY: the caller's contract.
        socket => count(unsafe { send(&socket, from.cast(), len, flags) }),
        delivered(|| libc::send(fd, from, len, flags))
    )
}

/// # Safety
/// As sendto(2).
pub unsafe extern "C" fn rsendto(
    fd: c_int,
    from: *const c_void,
    len: size_t,
    flags: c_int,
    address: *const sockaddr,
    address_len: socklen_t,
) -> ssize_t {
    dispatch!(
        fd,
        socket => count(if address.is_null() {
            // SAFETY: the caller's contract.
            unsafe { send(&socket, from.cast(), len, flags) }
        } else {
            Err(Errno(libc::EISCONN))
        }),
        delivered(|| libc::sendto(fd, from, len, flags, address, address_len))
    )
}

/// Sends several buffers that are valid.
fn send_vector(socket: &Arc<Socket>, pieces: &[iovec], flags: c_int) -> Result<usize, Errno> {
    if pieces.iter().all(|piece| piece.iov_len == 0) {
        // Nothing is sent, but the connection must be there.
        // SAFETY: no byte is read.
        return unsafe { send(socket, std::ptr::null(), 0, flags) };
    }
    in_pieces(pieces, |piece, _| {
        // SAFETY: the pieces are valid.
        unsafe { send(socket, piece.iov_base.cast(), piece.iov_len, flags) }
    })
}

/// # Safety
/// As sendmsg(2).
pub unsafe extern "C" fn rsendmsg(fd: c_int, message: *const msghdr, flags: c_int) -> ssize_t {
    dispatch!(
        fd,
        // SAFETY: the caller's contract.
        socket => count(unsafe { pieces_of(message) }.and_then(|pieces| {
            send_vector(&socket, pieces, flags)
        })),
        delivered(|| libc::sendmsg(fd, message, flags))
    )
}

/// # Safety
/// As write(2).
pub unsafe extern "C" fn rwrite(fd: c_int, from: *const c_void, len: size_t) -> ssize_t {
    // SAFETY: the caller's contract.
    unsafe { rsend(fd, from, len, 0) }
}

/// # Safety
/// As writev(2).
pub unsafe extern "C" fn rwritev(fd: c_int, pieces: *const iovec, pieces_count: c_int) -> ssize_t {
    dispatch!(
        fd,
        // SAFETY: the caller's contract.
        socket => count(unsafe { vector_of(pieces, pieces_count) }.and_then(|pieces| {
            send_vector(&socket, pieces, 0)
        })),
        delivered(|| libc::writev(fd, pieces, pieces_count))
    )
}

/// # Safety
/// As getpeername(2).
pub unsafe extern "C" fn rgetpeername(
    fd: c_int,
    address: *mut sockaddr,
    len: *mut socklen_t,
) -> c_int {
    dispatch!(
        fd,
        socket => answer(socket.addresses().and_then(|(_, peer)| {
            let peer = peer.ok_or(Errno::NOTCONN)?;
            // SAFETY: the caller's contract.
            unsafe { c_address::give(&peer, address, len) };
            Ok(())
        })),
        libc::getpeername(fd, address, len)
    )
}

/// # Safety
/// As getsockname(2).
pub unsafe extern "C" fn rgetsockname(
    fd: c_int,
    address: *mut sockaddr,
    len: *mut socklen_t,
) -> c_int {
    dispatch!(
        fd,
        socket => answer(socket.addresses().map(|(own, _)| {
            let own = own.unwrap_or_else(|| sluice_rdmacm::address::Address::new(
                match socket.domain {
                    libc::AF_INET6 => std::net::Ipv6Addr::UNSPECIFIED.into(),
                    _ => std::net::Ipv4Addr::UNSPECIFIED.into(),
                },
                0,
            ));
            // SAFETY: the caller's contract.
            unsafe { c_address::give(&own, address, len) };
        })),
        libc::getsockname(fd, address, len)
    )
}

/// # Safety
/// `buffer` has `len` bytes and stays until `riounmap`.
pub unsafe extern "C" fn riomap(
    fd: c_int,
    buffer: *mut c_void,
    len: size_t,
    protection: c_int,
    flags: c_int,
    offset: off_t,
) -> off_t {
    let mapped = (|| {
        let Kind::Stream(socket) = kind(fd)? else {
            return Err(Errno::NOTSUP);
        };
        if flags != 0 || protection & !(libc::PROT_WRITE | libc::PROT_NONE) != 0 {
            return Err(Errno::INVAL);
        }
        let offset = match offset {
            -1 => None,
            given => Some(u64::try_from(given).map_err(|_| Errno::INVAL)?),
        };
        let mut state = socket.lock();
        let stream = state.stream.as_mut().ok_or(Errno::NOTCONN)?;
        let remote = protection & libc::PROT_WRITE != 0;
        stream.map(buffer as u64, len, remote, offset)
    })();
    mapped.map_or_else(
        |errno| {
            set_errno(errno.0);
            -1
        },
        |offset| offset as off_t,
    )
}

/// # Safety
/// `buffer` and `len` are those of a `riomap`.
pub unsafe extern "C" fn riounmap(fd: c_int, buffer: *mut c_void, len: size_t) -> c_int {
    answer((|| {
        let Kind::Stream(socket) = kind(fd)? else {
            return Err(Errno::NOTSUP);
        };
        let mut state = socket.lock();
        let stream = state.stream.as_mut().ok_or(Errno::NOTCONN)?;
        stream.unmap(buffer as u64, len)
    })())
}

/// # Safety
/// `from` has `len` bytes.
pub unsafe extern "C" fn riowrite(
    fd: c_int,
    from: *const c_void,
    len: size_t,
    offset: off_t,
    flags: c_int,
) -> size_t {
    let written = (|| {
        let Kind::Stream(socket) = kind(fd)? else {
            return Err(Errno::NOTSUP);
        };
        let offset = u64::try_from(offset).map_err(|_| Errno::INVAL)?;
        let mut taken = 0;
        while taken < len {
            let state = socket.lock();
            if state.phase != Phase::Connected || state.write_closed {
                state.was_connected()?;
                return Err(Errno::PIPE);
            }
            let nonblocking = state.nonblocking || flags & libc::MSG_DONTWAIT != 0;
            let mut wrote: Result<usize, Errno> = Ok(0);
            let waited = socket.wait(state, nonblocking, |state| {
                let Some(stream) = state.stream.as_mut() else {
                    return true;
                };
                let told = stream.tell_iomaps();
                wrote = match told {
                    // SAFETY: within the caller's bytes.
                    Ok(true) => unsafe {
                        stream.write_mapped(
                            from.cast::<u8>().add(taken),
                            len - taken,
                            offset + taken as u64,
                        )
                    },
                    Ok(false) => Ok(0),
                    Err(errno) => Err(errno),
                };
                wrote != Ok(0) || state.phase != Phase::Connected
            });
            match waited {
                Ok(_) => taken += wrote?,
                Err(_) if taken > 0 => break,
                Err(errno) => return Err(errno),
            }
        }
        Ok(taken)
    })();
    count(written) as size_t
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_are_taken_up_to_what_one_call_takes() {
        let piece = |iov_len| iovec {
            iov_base: std::ptr::null_mut(),
            iov_len,
        };
        let all = |pieces: &[iovec]| {
            let mut lengths = Vec::new();
            let taken = in_pieces(pieces, |piece, _| {
                lengths.push(piece.iov_len);
                Ok(piece.iov_len)
            });
            (taken, lengths)
        };
        let whole = [piece(5), piece(0), piece(BYTES_MAX - 5)];
        assert_eq!(all(&whole), (Ok(BYTES_MAX), vec![5, BYTES_MAX - 5]));
        let more = [piece(BYTES_MAX - 5), piece(6), piece(7)];
        assert_eq!(all(&more), (Ok(BYTES_MAX), vec![BYTES_MAX - 5, 5]));
        let beyond = [piece(5), piece(isize::MAX as usize - 4)];
        assert_eq!(all(&beyond), (Err(Errno::INVAL), vec![]));
    }
}
