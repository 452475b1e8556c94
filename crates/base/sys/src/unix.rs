//! Owned descriptors, and Unix sockets that keep message boundaries and carry descriptors.
#![allow(unsafe_code)]

use core::mem::{size_of, size_of_val};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, IntoRawFd, OwnedFd, RawFd};

use crate::errno::Errno;
use crate::raw::{check, int, syscall0, syscall1, syscall2, syscall3, syscall4, syscall5};

/// Most descriptors that one message carries in either direction.
pub const FDS_PER_MESSAGE_MAX: usize = 4;

/// Longest path that fits a Unix socket address, without the closing zero byte.
pub const SOCKET_PATH_BYTES_MAX: usize = 107;

/// Another descriptor for the same file, closed by exec(2).
///
/// Errors: those of `F_DUPFD_CLOEXEC`, fcntl(2).
pub fn duplicate(fd: RawFd) -> Result<Fd, Errno> {
    // SAFETY: no memory is passed.
    let raw = check(unsafe {
        syscall3(
            libc::SYS_fcntl,
            fd as usize,
            libc::F_DUPFD_CLOEXEC as usize,
            0,
        )
    })?;
    Ok(Fd::own(raw as RawFd))
}

/// A descriptor that is closed when dropped, by the kernel directly.
///
/// `std::os::fd::OwnedFd` closes through libc's `close`, which is a hook of ours in programs.
#[derive(Debug)]
pub struct Fd(RawFd);

impl Fd {
    /// Takes ownership of an open descriptor that nothing else owns.
    ///
    /// Not `unsafe`, as the worst outcome of a wrong number is `EBADF` or the loss of another
    /// descriptor, as with the same number passed to `close`; still: one owner per descriptor.
    pub const fn own(raw: RawFd) -> Fd {
        Fd(raw)
    }

    /// The number, still owned by `self`.
    pub const fn raw(&self) -> RawFd {
        self.0
    }

    /// Gives the ownership away.
    pub const fn into_raw(self) -> RawFd {
        let raw = self.0;
        core::mem::forget(self);
        raw
    }
}

impl Drop for Fd {
    fn drop(&mut self) {
        // Linux releases the number whatever close reports, so there is nothing to react to.
        let _ = close(self.0);
    }
}

impl AsRawFd for Fd {
    fn as_raw_fd(&self) -> RawFd {
        self.0
    }
}

impl AsFd for Fd {
    fn as_fd(&self) -> BorrowedFd<'_> {
        // SAFETY: `self` owns the descriptor, and the borrow keeps `self` alive.
        unsafe { BorrowedFd::borrow_raw(self.0) }
    }
}

impl From<OwnedFd> for Fd {
    fn from(fd: OwnedFd) -> Fd {
        Fd(fd.into_raw_fd())
    }
}

impl From<Fd> for OwnedFd {
    fn from(fd: Fd) -> OwnedFd {
        // SAFETY: `into_raw` gives up the only ownership of an open descriptor.
        unsafe { OwnedFd::from_raw_fd(fd.into_raw()) }
    }
}

/// Closes a descriptor number. The number is free afterwards even when an error is reported.
pub fn close(fd: RawFd) -> Result<(), Errno> {
    // SAFETY: close touches no memory of the process.
    check(unsafe { syscall1(libc::SYS_close, int(fd)) }).map(drop)
}

/// Closes every descriptor from `first` on, for a process that is about to detach from whoever
/// started it. Owners of such descriptors must not exist yet, or not use them any more.
pub fn close_all_from(first: u32) -> Result<(), Errno> {
    let last = u32::MAX as usize;
    // SAFETY: close_range takes integers only and touches no memory of the process.
    check(unsafe { syscall3(libc::SYS_close_range, first as usize, last, 0) }).map(drop)
}

/// A new unconnected `SOCK_SEQPACKET` socket, close-on-exec and non-blocking.
pub fn seqpacket() -> Result<Fd, Errno> {
    let kind = libc::SOCK_SEQPACKET | libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK;
    // SAFETY: socket takes integers only.
    let ret = unsafe { syscall3(libc::SYS_socket, int(libc::AF_UNIX), int(kind), 0) };
    check(ret).map(|fd| Fd(fd as RawFd))
}

/// Two connected `SOCK_SEQPACKET` sockets, close-on-exec and non-blocking.
pub fn seqpacket_pair() -> Result<(Fd, Fd), Errno> {
    let kind = libc::SOCK_SEQPACKET | libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK;
    let mut fds = [-1_i32; 2];
    // SAFETY: the kernel writes two ints into `fds`, which has room for two.
    let ret = unsafe {
        syscall4(
            libc::SYS_socketpair,
            int(libc::AF_UNIX),
            int(kind),
            0,
            fds.as_mut_ptr() as usize,
        )
    };
    check(ret)?;
    Ok((Fd(fds[0]), Fd(fds[1])))
}

/// The kernel's socket address of `path` and its length.
fn address(path: &[u8]) -> Result<(libc::sockaddr_un, usize), Errno> {
    if path.is_empty() || path.contains(&0) {
        return Err(Errno::INVAL);
    }
    if path.len() > SOCKET_PATH_BYTES_MAX {
        return Err(Errno::NAMETOOLONG);
    }
    let mut addr = libc::sockaddr_un {
        sun_family: libc::AF_UNIX as u16,
        sun_path: [0; 108],
    };
    for (slot, byte) in addr.sun_path.iter_mut().zip(path) {
        *slot = *byte as libc::c_char;
    }
    Ok((addr, size_of::<libc::sa_family_t>() + path.len() + 1))
}

/// Connects to the listening socket at `path` (bytes without a zero).
///
/// Never blocks on a non-blocking socket: a listener with a full backlog gives `EAGAIN`.
pub fn connect(fd: RawFd, path: &[u8]) -> Result<(), Errno> {
    let (addr, len) = address(path)?;
    // SAFETY: the kernel reads `len` bytes, no more than `addr` has.
    let ret = unsafe { syscall3(libc::SYS_connect, int(fd), &raw const addr as usize, len) };
    check(ret).map(drop)
}

/// Gives the socket its place in the file system; `EADDRINUSE` when something is there.
pub fn bind(fd: RawFd, path: &[u8]) -> Result<(), Errno> {
    let (addr, len) = address(path)?;
    // SAFETY: the kernel reads `len` bytes, no more than `addr` has.
    let ret = unsafe { syscall3(libc::SYS_bind, int(fd), &raw const addr as usize, len) };
    check(ret).map(drop)
}

/// Starts to listen; at most `backlog` connections wait to be accepted.
pub fn listen(fd: RawFd, backlog: i32) -> Result<(), Errno> {
    // SAFETY: listen takes integers only.
    check(unsafe { syscall2(libc::SYS_listen, int(fd), int(backlog)) }).map(drop)
}

/// Accepts a waiting connection as a close-on-exec, non-blocking descriptor; `EAGAIN` if none.
pub fn accept(fd: RawFd) -> Result<Fd, Errno> {
    let flags = libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK;
    // SAFETY: null address and length are what accept4 takes for "not wanted".
    let ret = unsafe { syscall4(libc::SYS_accept4, int(fd), 0, 0, int(flags)) };
    check(ret).map(|fd| Fd(fd as RawFd))
}

/// How long a thread rests that cannot accept.
const REST: core::time::Duration = core::time::Duration::from_millis(1);

/// The next connection of a listener that is waited for; None when there is none for now. If there is one, and no
/// descriptor or memory for it, the thread rests for a moment: the listener stays readable, and the thread would turn
/// without a pause.
pub fn accept_or_rest(listener: RawFd) -> Option<Fd> {
    match accept(listener) {
        Ok(socket) => Some(socket),
        Err(error) => {
            if is_exhausted(error) {
                std::thread::sleep(REST);
            }
            None
        }
    }
}

/// Whether what lacks for a connection lacks for all.
fn is_exhausted(error: Errno) -> bool {
    let all = [libc::EMFILE, libc::ENFILE, libc::ENOMEM, libc::ENOBUFS];
    all.contains(&error.0)
}

/// Ids that have no number in a user namespace read as this one (`/proc/sys/kernel/overflowuid`, unless somebody has
/// changed that).
const OVERFLOW_ID: u32 = 65_534;

/// Who is at the other end of a Unix socket, as it was when the two were connected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Credentials {
    /// In the reader's pid namespace; 0 when the process is not visible in it.
    pub pid: i32,
    pub uid: u32,
    pub gid: u32,
}

/// The effective user id of this process.
pub fn effective_uid() -> u32 {
    // SAFETY: geteuid takes nothing, changes nothing and cannot fail.
    unsafe { syscall0(libc::SYS_geteuid) as u32 }
}

/// `SO_PEERCRED`.
pub fn peer_credentials(fd: RawFd) -> Result<Credentials, Errno> {
    let mut cred = libc::ucred {
        pid: 0,
        uid: 0,
        gid: 0,
    };
    let len = get_option(
        fd,
        libc::SOL_SOCKET,
        libc::SO_PEERCRED,
        bytes_of_ucred(&mut cred),
    )?;
    if len != size_of::<libc::ucred>() {
        return Err(Errno::PROTO);
    }
    Ok(Credentials {
        pid: cred.pid,
        uid: cred.uid,
        gid: cred.gid,
    })
}

fn bytes_of_ucred(cred: &mut libc::ucred) -> &mut [u8] {
    // SAFETY: ucred is three 32-bit integers without padding; every byte pattern is a valid one.
    unsafe {
        core::slice::from_raw_parts_mut(core::ptr::from_mut(cred).cast(), size_of::<libc::ucred>())
    }
}

/// `getsockopt` into `value`; returns how many bytes the kernel filled.
pub fn get_option(fd: RawFd, level: i32, name: i32, value: &mut [u8]) -> Result<usize, Errno> {
    let mut len = value.len() as libc::socklen_t;
    // SAFETY: the kernel writes at most `len` bytes into `value` and the length into `len`.
    let ret = unsafe {
        syscall5(
            libc::SYS_getsockopt,
            int(fd),
            int(level),
            int(name),
            value.as_mut_ptr() as usize,
            &raw mut len as usize,
        )
    };
    check(ret)?;
    Ok((len as usize).min(value.len()))
}

/// `setsockopt` with a number, a structure of the kernel's, or bytes. Who names other memory in a structure
/// answers for what the kernel does there.
pub fn set_option<T: ?Sized>(fd: RawFd, level: i32, name: i32, value: &T) -> Result<(), Errno> {
    // SAFETY: the kernel reads the value, which has this size.
    let ret = unsafe {
        syscall5(
            libc::SYS_setsockopt,
            int(fd),
            int(level),
            int(name),
            core::ptr::from_ref(value).cast::<u8>() as usize,
            size_of_val(value),
        )
    };
    check(ret).map(drop)
}

/// From now on closing the socket resets its connection (`SO_LINGER`, socket(7)).
pub fn reset_at_close(fd: RawFd) -> Result<(), Errno> {
    let at_once = libc::linger {
        l_onoff: 1,
        l_linger: 0,
    };
    set_option(fd, libc::SOL_SOCKET, libc::SO_LINGER, &at_once)
}

/// For how many seconds the socket's last close waits (`SO_LINGER`, socket(7)); with none it resets the
/// connection, as [`reset_at_close`] has it. `None`: it does neither.
pub fn linger(fd: RawFd) -> Result<Option<i32>, Errno> {
    let mut linger = [0; 8];
    if get_option(fd, libc::SOL_SOCKET, libc::SO_LINGER, &mut linger)? != 8 {
        return Err(Errno::PROTO);
    }
    // l_onoff and l_linger
    let [is_on, seconds] = [0, 4].map(|at| {
        let mut word = [0; 4];
        word.copy_from_slice(&linger[at..at + 4]);
        i32::from_ne_bytes(word)
    });
    Ok((is_on != 0).then_some(seconds))
}

/// Room for one `SCM_RIGHTS` header and its descriptors, aligned as `cmsghdr` wants it, and for who has sent them.
#[repr(C, align(8))]
struct ControlBuffer([u8; CONTROL_BYTES + CREDENTIALS_BYTES]);

const HEADER_BYTES: usize = size_of::<libc::cmsghdr>();
const CONTROL_BYTES: usize =
    HEADER_BYTES + (FDS_PER_MESSAGE_MAX * size_of::<RawFd>()).next_multiple_of(align_bytes());

/// Of `SCM_CREDENTIALS`.
const CREDENTIALS_BYTES: usize =
    HEADER_BYTES + size_of::<libc::ucred>().next_multiple_of(align_bytes());

const fn align_bytes() -> usize {
    size_of::<usize>()
}

/// Sends one message with up to [`FDS_PER_MESSAGE_MAX`] descriptors, never blocking and never
/// raising `SIGPIPE`.
///
/// Errors: `EINVAL` for too many descriptors; `EAGAIN` when the receiver's queue is full;
/// `EPIPE` or `ECONNRESET` when it is gone; `ETOOMANYREFS` when too many descriptors are in
/// flight.
pub fn send_with_fds(socket: RawFd, message: &[u8], fds: &[RawFd]) -> Result<usize, Errno> {
    if fds.len() > FDS_PER_MESSAGE_MAX {
        return Err(Errno::INVAL);
    }
    let mut control = ControlBuffer([0; CONTROL_BYTES + CREDENTIALS_BYTES]);
    let mut control_len = 0;
    if !fds.is_empty() {
        let len = HEADER_BYTES + size_of_val(fds);
        let word = size_of::<usize>();
        control.0[..word].copy_from_slice(&len.to_ne_bytes());
        control.0[word..word + 4].copy_from_slice(&libc::SOL_SOCKET.to_ne_bytes());
        control.0[word + 4..word + 8].copy_from_slice(&libc::SCM_RIGHTS.to_ne_bytes());
        for (slot, fd) in control.0[HEADER_BYTES..].chunks_exact_mut(4).zip(fds) {
            slot.copy_from_slice(&fd.to_ne_bytes());
        }
        control_len = len;
    }
    let mut iov = libc::iovec {
        iov_base: message.as_ptr().cast_mut().cast(),
        iov_len: message.len(),
    };
    let header = message_header(&mut iov, &mut control, control_len);
    let flags = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL;
    loop {
        // SAFETY: `header` points to one iovec over `message` and to `control_len` initialised
        // bytes of `control`; all live through the call, and sendmsg only reads them.
        let ret = unsafe {
            syscall3(
                libc::SYS_sendmsg,
                int(socket),
                &raw const header as usize,
                int(flags),
            )
        };
        match check(ret) {
            Err(Errno::INTR) => {}
            other => return other,
        }
    }
}

/// What [`receive_with_fds`] got. Descriptors that nobody takes are closed on drop.
#[derive(Debug)]
pub struct Received {
    /// Length of the message; 0 means that the other end is closed.
    pub len: usize,
    /// The message was longer than the buffer and its rest is lost.
    pub truncated: bool,
    /// Descriptors were lost, because more came than fit or this process has too many open.
    pub fds_truncated: bool,
    /// Who has sent it, by the real ids that it had then. Only [`receive_with_sender`] asks for it; None where the kernel
    /// does not know.
    pub sender: Option<Credentials>,
    fds: [Option<Fd>; FDS_PER_MESSAGE_MAX],
}

impl Received {
    /// How many descriptors are still held here.
    pub fn fd_count(&self) -> usize {
        self.fds.iter().flatten().count()
    }

    /// Takes the descriptor at `index` in the order of sending.
    pub fn take_fd(&mut self, index: usize) -> Option<Fd> {
        self.fds.get_mut(index)?.take()
    }
}

/// Receives one message, without blocking (`EAGAIN` when none waits).
///
/// Descriptors arrive close-on-exec. When more than [`FDS_PER_MESSAGE_MAX`] were sent, the
/// kernel closes the rest and `fds_truncated` is set.
pub fn receive_with_fds(socket: RawFd, buffer: &mut [u8]) -> Result<Received, Errno> {
    receive_flagged(socket, buffer, 0, CONTROL_BYTES)
}

/// The same, with who has sent it, from a socket with [`pass_credentials`].
pub fn receive_with_sender(socket: RawFd, buffer: &mut [u8]) -> Result<Received, Errno> {
    receive_flagged(socket, buffer, 0, CONTROL_BYTES + CREDENTIALS_BYTES)
}

/// Has the kernel say with each message who has sent it (`SO_PASSCRED`, unix(7)). Sockets that a listener accepts have the
/// option from it, and what was sent before that has its sender, too.
pub fn pass_credentials(socket: RawFd) -> Result<(), Errno> {
    set_option(socket, libc::SOL_SOCKET, libc::SO_PASSCRED, &1_i32)
}

/// The same, and leaves the message where it is (`MSG_PEEK`). The descriptors are copies.
pub fn peek_with_fds(socket: RawFd, buffer: &mut [u8]) -> Result<Received, Errno> {
    receive_flagged(socket, buffer, libc::MSG_PEEK, CONTROL_BYTES)
}

fn receive_flagged(
    socket: RawFd,
    buffer: &mut [u8],
    flags: i32,
    control_bytes: usize,
) -> Result<Received, Errno> {
    let mut control = ControlBuffer([0; CONTROL_BYTES + CREDENTIALS_BYTES]);
    let mut iov = libc::iovec {
        iov_base: buffer.as_mut_ptr().cast(),
        iov_len: buffer.len(),
    };
    let mut header = message_header(&mut iov, &mut control, control_bytes);
    let flags = flags | libc::MSG_DONTWAIT | libc::MSG_CMSG_CLOEXEC;
    let len = loop {
        // SAFETY: `header` points to one iovec over `buffer` and to all of `control`, both
        // exclusively borrowed and alive through the call.
        let ret = unsafe {
            syscall3(
                libc::SYS_recvmsg,
                int(socket),
                &raw mut header as usize,
                int(flags),
            )
        };
        match check(ret) {
            Err(Errno::INTR) => {}
            Err(error) => return Err(error),
            Ok(len) => break len,
        }
    };
    let filled = header.msg_controllen.min(control_bytes);
    let mut received = Received {
        len,
        truncated: header.msg_flags & libc::MSG_TRUNC != 0,
        fds_truncated: header.msg_flags & libc::MSG_CTRUNC != 0,
        sender: None,
        fds: [const { None }; FDS_PER_MESSAGE_MAX],
    };
    received.take(&control.0[..filled]);
    Ok(received)
}

fn message_header(
    iov: &mut libc::iovec,
    control: &mut ControlBuffer,
    control_len: usize,
) -> libc::msghdr {
    // SAFETY: msghdr is plain integers and pointers, for which zero is a valid value. Built this
    // way because its padding fields differ between C libraries.
    let mut header: libc::msghdr = unsafe { core::mem::zeroed() };
    header.msg_iov = iov;
    header.msg_iovlen = 1;
    if control_len > 0 {
        header.msg_control = control.0.as_mut_ptr().cast();
        header.msg_controllen = control_len as _;
    }
    header
}

impl Received {
    /// Takes ownership of every descriptor in the control data that the kernel wrote, and the sender.
    fn take(&mut self, mut control: &[u8]) {
        let mut count = 0;
        let word = size_of::<usize>();
        // Bounded: each turn consumes at least a header of the fixed-size buffer.
        while let Some(header) = control.get(..HEADER_BYTES) {
            let mut length = [0; size_of::<usize>()];
            length.copy_from_slice(&header[..word]);
            let length = usize::from_ne_bytes(length);
            let level = &header[word..word + 4];
            let kind = &header[word + 4..word + 8];
            if length < HEADER_BYTES {
                break;
            }
            let end = length.min(control.len());
            let is = |wanted: i32| {
                level == libc::SOL_SOCKET.to_ne_bytes() && kind == wanted.to_ne_bytes()
            };
            let words = control[HEADER_BYTES..end].chunks_exact(4);
            let mut words = words.map(|raw| i32::from_ne_bytes([raw[0], raw[1], raw[2], raw[3]]));
            if is(libc::SCM_RIGHTS) {
                for raw in words {
                    let fd = Fd(raw);
                    match self.fds.get_mut(count) {
                        Some(slot) => *slot = Some(fd),
                        // Room that credentials would have taken.
                        None => self.fds_truncated = true,
                    }
                    count += 1;
                }
            } else if is(libc::SCM_CREDENTIALS)
                && let (Some(pid), Some(uid), Some(gid)) =
                    (words.next(), words.next(), words.next())
            {
                let (uid, gid) = (uid as u32, gid as u32);
                // What the kernel says of a message that was sent before anybody wanted to know.
                let is_known = pid != 0 || uid != OVERFLOW_ID;
                self.sender = is_known.then_some(Credentials { pid, uid, gid });
            }
            control = control
                .get(length.next_multiple_of(align_bytes())..)
                .unwrap_or(&[]);
        }
    }
}

/// Waits until `fd` can be read, is hung up, or `timeout_ms` has passed (negative: for ever).
///
/// Returns whether there is something to read or an end to see. A signal ends the wait with
/// `EINTR`.
pub fn wait_readable(fd: RawFd, timeout_ms: i32) -> Result<bool, Errno> {
    poll_one(fd, libc::POLLIN, timeout_ms).map(|revents| revents != 0)
}

/// Returns whether there is room, or an error to see. A signal ends the wait with `EINTR`.
pub fn wait_writable(fd: RawFd, timeout_ms: i32) -> Result<bool, Errno> {
    poll_one(fd, libc::POLLOUT, timeout_ms).map(|revents| revents != 0)
}

/// Whether the other end of a connected socket is closed, or will send no more. What it has sent
/// may still be unread.
pub fn has_hung_up(fd: RawFd) -> bool {
    poll_one(fd, libc::POLLRDHUP, 0).is_ok_and(|revents| revents != 0)
}

/// Waits for one of `events`, or an error, a negative time for ever. What there is: 0 when there
/// was nothing in time.
fn poll_one(fd: RawFd, events: libc::c_short, timeout_ms: i32) -> Result<libc::c_short, Errno> {
    let mut poll = libc::pollfd {
        fd,
        events,
        revents: 0,
    };
    let time = libc::timespec {
        tv_sec: i64::from(timeout_ms / 1000),
        tv_nsec: i64::from(timeout_ms % 1000) * 1_000_000,
    };
    let time_ptr = if timeout_ms < 0 {
        0
    } else {
        &raw const time as usize
    };
    // SAFETY: the kernel reads and writes one pollfd and reads one timespec or none; a null
    // signal mask leaves the mask alone.
    let ret = unsafe {
        syscall5(
            libc::SYS_ppoll,
            &raw mut poll as usize,
            1,
            time_ptr,
            0,
            size_of::<u64>(),
        )
    };
    check(ret).map(|_| poll.revents)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_closed_end_is_seen_before_what_it_sent_is_read() {
        let _no_children = crate::testing::without_children();
        let (a, b) = seqpacket_pair().unwrap();
        assert!(!has_hung_up(a.raw()));
        send_with_fds(b.raw(), b"last", &[]).unwrap();
        assert!(!has_hung_up(a.raw()));
        drop(b);
        assert!(has_hung_up(a.raw()));
        let mut buffer = [0; 16];
        assert_eq!(receive_with_fds(a.raw(), &mut buffer).unwrap().len, 4);
        assert!(has_hung_up(a.raw()));
    }

    #[test]
    fn message_boundaries_and_descriptors_arrive() {
        let (a, b) = seqpacket_pair().unwrap();
        let (x, y) = seqpacket_pair().unwrap();
        assert_eq!(send_with_fds(a.raw(), b"one", &[x.raw(), y.raw()]), Ok(3));
        assert_eq!(send_with_fds(a.raw(), b"two", &[]), Ok(3));
        let mut buffer = [0; 16];
        let mut got = receive_with_fds(b.raw(), &mut buffer).unwrap();
        assert_eq!((&buffer[..got.len], got.fd_count()), (&b"one"[..], 2));
        let second = got.take_fd(1).unwrap();
        assert_eq!(got.fd_count(), 1);
        // The received copy of `y` is a way to reach `x`.
        assert_eq!(send_with_fds(second.raw(), b"via", &[]), Ok(3));
        let mut other = [0; 16];
        assert_eq!(receive_with_fds(x.raw(), &mut other).unwrap().len, 3);
        let got = receive_with_fds(b.raw(), &mut buffer).unwrap();
        assert_eq!((&buffer[..got.len], got.fd_count()), (&b"two"[..], 0));
        assert_eq!(
            receive_with_fds(b.raw(), &mut buffer).unwrap_err(),
            Errno::AGAIN
        );
    }

    #[test]
    fn who_cannot_accept_rests_and_who_has_nobody_to_accept_does_not() {
        for errno in [libc::EMFILE, libc::ENFILE, libc::ENOMEM, libc::ENOBUFS] {
            assert!(is_exhausted(Errno(errno)));
        }
        for errno in [libc::EAGAIN, libc::ECONNABORTED, libc::EINTR] {
            assert!(!is_exhausted(Errno(errno)));
        }
    }

    #[test]
    fn a_message_has_its_sender_and_its_descriptors() {
        let (a, b) = seqpacket_pair().unwrap();
        let (x, y) = seqpacket_pair().unwrap();
        let all = [x.raw(), y.raw(), x.raw(), y.raw()];
        let all = &all[..FDS_PER_MESSAGE_MAX.min(4)];
        send_with_fds(a.raw(), b"early", all).unwrap();
        pass_credentials(b.raw()).unwrap();
        send_with_fds(a.raw(), b"late", all).unwrap();
        send_with_fds(a.raw(), b"alone", &[]).unwrap();
        let mut buffer = [0; 16];
        let mut receive = || receive_with_sender(b.raw(), &mut buffer).unwrap();
        let early = receive();
        assert_eq!((early.sender, early.fd_count()), (None, all.len()));
        // SAFETY: these take nothing and cannot fail.
        let (pid, uid) = unsafe { (libc::getpid(), libc::getuid()) };
        for count in [all.len(), 0] {
            let got = receive();
            let sender = got.sender.unwrap();
            assert_eq!((sender.pid, sender.uid, got.fd_count()), (pid, uid, count));
            assert!(!got.fds_truncated);
        }
    }

    #[test]
    fn descriptors_beyond_the_limit_are_refused_by_the_sender() {
        let (a, _b) = seqpacket_pair().unwrap();
        let fds = [a.raw(); FDS_PER_MESSAGE_MAX + 1];
        assert_eq!(send_with_fds(a.raw(), b"x", &fds), Err(Errno::INVAL));
    }

    #[test]
    fn untaken_descriptors_are_closed() {
        let _no_children = crate::testing::without_children();
        let (a, b) = seqpacket_pair().unwrap();
        let (x, y) = seqpacket_pair().unwrap();
        send_with_fds(a.raw(), b"x", &[x.raw()]).unwrap();
        drop(x);
        drop(receive_with_fds(b.raw(), &mut [0; 4]).unwrap());
        assert_eq!(receive_with_fds(y.raw(), &mut [0; 4]).unwrap().len, 0);
    }

    #[test]
    fn a_long_message_is_reported_as_truncated() {
        let (a, b) = seqpacket_pair().unwrap();
        send_with_fds(a.raw(), &[7; 100], &[]).unwrap();
        let mut buffer = [0; 10];
        let got = receive_with_fds(b.raw(), &mut buffer).unwrap();
        assert!(got.truncated);
        assert!(!got.fds_truncated);
    }

    #[test]
    fn a_full_queue_and_a_closed_peer_are_errors_not_signals() {
        let _no_children = crate::testing::without_children();
        let (a, b) = seqpacket_pair().unwrap();
        let full = loop {
            if let Err(error) = send_with_fds(a.raw(), &[0; 512], &[]) {
                break error;
            }
        };
        assert_eq!(full, Errno::AGAIN);
        drop(b);
        // Messages were lost with the peer's queue, which the kernel reports once.
        assert_eq!(
            send_with_fds(a.raw(), b"x", &[]),
            Err(Errno(libc::ECONNRESET))
        );
        assert_eq!(send_with_fds(a.raw(), b"x", &[]), Err(Errno::PIPE));
    }

    #[test]
    fn peer_credentials_are_ours_on_a_pair() {
        let (a, _b) = seqpacket_pair().unwrap();
        assert_eq!(
            peer_credentials(a.raw()).unwrap().pid,
            std::process::id() as i32
        );
    }

    #[test]
    fn paths_that_no_address_can_hold_are_refused() {
        let socket = seqpacket().unwrap();
        assert_eq!(connect(socket.raw(), b""), Err(Errno::INVAL));
        assert_eq!(connect(socket.raw(), b"a\0b"), Err(Errno::INVAL));
        assert_eq!(connect(socket.raw(), &[b'x'; 108]), Err(Errno::NAMETOOLONG));
    }

    #[test]
    fn waiting_ends_with_data_or_with_time() {
        let (a, b) = seqpacket_pair().unwrap();
        assert_eq!(wait_readable(b.raw(), 0), Ok(false));
        send_with_fds(a.raw(), b"x", &[]).unwrap();
        assert_eq!(wait_readable(b.raw(), -1), Ok(true));
    }
}
