//! A kernel in memory: connected TCP sockets, pipes and epoll instances, as far as the library asks for them.
//!
//! It has no time and no threads: a byte that was written is there at once, and a call that would wait says so.
#![allow(unsafe_code)]

use super::trap::real;
use std::collections::{BTreeMap, VecDeque};
use std::sync::atomic::{AtomicI32, Ordering};

/// Descriptors of fake kernels lie here and above, where those of the process do not reach. No two kernels give the
/// same one out, as the library has one table of them.
const FIRST_FD: i32 = 500_000;
static NEXT_FD: AtomicI32 = AtomicI32::new(FIRST_FD);

/// What fits a socket or a pipe.
const ROOM_BYTES: usize = 64 * 1024;

/// The call would wait.
pub struct Waits;

type Outcome = Result<isize, Waits>;

fn error(number: i32) -> Outcome {
    Ok(-number as isize)
}

#[derive(Default)]
struct Stream {
    peer: usize,
    inbox: VecDeque<u8>,
    /// Bytes that came in order, and bytes that were sent.
    received: u64,
    sent: u64,
    has_connected: bool,
    is_shut: [bool; 2],
    peer_has_ended: bool,
    is_reset: bool,
    error: Option<i32>,
    lingers_not: bool,
    options: BTreeMap<(usize, usize), Vec<u8>>,
}

struct Registration {
    fd: i32,
    file: usize,
    events: u32,
    data: u64,
    has_news: bool,
    is_off: bool,
}

enum Kind {
    Stream(Stream),
    /// One end of a pipe: the number of the end with the bytes is that of the reading one.
    PipeOut(VecDeque<u8>),
    PipeIn(usize),
    Epoll(Vec<Registration>),
    Closed,
}

struct File {
    kind: Kind,
    names: u32,
    is_nonblocking: bool,
}

/// The kernel.
#[derive(Default)]
pub struct Fake {
    fds: BTreeMap<i32, (usize, bool)>,
    files: Vec<File>,
}

impl Fake {
    fn file(&mut self, kind: Kind) -> usize {
        self.files.push(File {
            kind,
            names: 0,
            is_nonblocking: false,
        });
        self.files.len() - 1
    }

    fn name(&mut self, file: usize, wanted: Option<i32>) -> i32 {
        let fd = wanted.unwrap_or_else(|| NEXT_FD.fetch_add(1, Ordering::Relaxed));
        self.files[file].names += 1;
        self.fds.insert(fd, (file, false));
        fd
    }

    /// A connection: the end that connected, and the one that was accepted.
    pub fn sockets(&mut self) -> (i32, i32) {
        let one = self.file(Kind::Stream(Stream::default()));
        let other = self.file(Kind::Stream(Stream::default()));
        self.stream(one).peer = other;
        self.stream(one).has_connected = true;
        self.stream(other).peer = one;
        (self.name(one, None), self.name(other, None))
    }

    /// A pipe: the end to read from, and the one to write to.
    pub fn pipe(&mut self) -> (i32, i32) {
        let out = self.file(Kind::PipeOut(VecDeque::new()));
        let into = self.file(Kind::PipeIn(out));
        (self.name(out, None), self.name(into, None))
    }

    fn stream(&mut self, file: usize) -> &mut Stream {
        match &mut self.files[file].kind {
            Kind::Stream(stream) => stream,
            _ => unreachable!("asked of streams only"),
        }
    }

    fn is_stream(&self, file: usize) -> bool {
        matches!(self.files[file].kind, Kind::Stream(_))
    }

    /// Something has happened to a file: who watches it by edges is told.
    fn news(&mut self, changed: usize) {
        for file in &mut self.files {
            if let Kind::Epoll(items) = &mut file.kind {
                for item in items.iter_mut().filter(|item| item.file == changed) {
                    item.has_news = true;
                }
            }
        }
    }

    fn end_peer(&mut self, file: usize) {
        let peer = self.stream(file).peer;
        if self.is_stream(peer) && !self.stream(peer).peer_has_ended {
            self.stream(peer).peer_has_ended = true;
            self.news(peer);
        }
    }

    fn reset(&mut self, file: usize) {
        if self.is_stream(file) && !self.stream(file).is_reset {
            let stream = self.stream(file);
            let is_closing = stream.peer_has_ended && stream.is_shut[1];
            stream.error = (!is_closing).then_some(libc::ECONNRESET);
            (stream.is_reset, stream.peer_has_ended) = (true, true);
            self.news(file);
        }
    }

    fn close(&mut self, fd: i32) -> Outcome {
        let Some((file, _)) = self.fds.remove(&fd) else {
            return error(libc::EBADF);
        };
        self.files[file].names -= 1;
        if self.files[file].names > 0 {
            return Ok(0);
        }
        for other in &mut self.files {
            if let Kind::Epoll(items) = &mut other.kind {
                items.retain(|item| item.file != file);
            }
        }
        if self.is_stream(file) {
            let stream = self.stream(file);
            let (peer, resets) = (stream.peer, stream.lingers_not || !stream.inbox.is_empty());
            if resets {
                self.reset(peer);
            } else {
                self.end_peer(file);
            }
        }
        self.files[file].kind = Kind::Closed;
        Ok(0)
    }

    fn take(&mut self, file: usize, parts: &[(usize, usize)], flags: usize) -> Outcome {
        let has = |flag: i32| flags & flag as usize != 0;
        let wanted: usize = parts.iter().map(|(_, len)| len).sum();
        let dontwait = has(libc::MSG_DONTWAIT) || self.files[file].is_nonblocking;
        let (inbox, is_over, failure) = match &mut self.files[file].kind {
            Kind::Stream(stream) => {
                let is_over = stream.peer_has_ended || stream.is_shut[0];
                (&mut stream.inbox, is_over, &mut stream.error)
            }
            Kind::PipeOut(bytes) => (bytes, false, &mut None),
            _ => return error(libc::EBADF),
        };
        if wanted == 0 {
            return Ok(0);
        }
        let is_short =
            has(libc::MSG_WAITALL) && inbox.len() < wanted && !is_over && failure.is_none();
        if !inbox.is_empty() && (!is_short || dontwait) {
            let count = wanted.min(inbox.len());
            scatter(parts, inbox.range(..count).copied());
            if !has(libc::MSG_PEEK) {
                inbox.drain(..count);
                if let Kind::Stream(stream) = &self.files[file].kind {
                    let peer = stream.peer;
                    self.news(peer);
                }
            }
            return Ok(count as isize);
        }
        match failure.take() {
            Some(number) => error(number),
            None if is_over => Ok(0),
            None if dontwait => error(libc::EAGAIN),
            None => Err(Waits),
        }
    }

    fn put(&mut self, file: usize, bytes: &[u8], flags: usize) -> Outcome {
        let dontwait = flags & libc::MSG_DONTWAIT as usize != 0 || self.files[file].is_nonblocking;
        let target = match &mut self.files[file].kind {
            Kind::Stream(stream) => {
                if let Some(number) = stream.error.take() {
                    return error(number);
                }
                if stream.is_shut[1] || stream.is_reset {
                    return error(libc::EPIPE);
                }
                stream.peer
            }
            Kind::PipeIn(out) => *out,
            _ => return error(libc::EBADF),
        };
        if matches!(self.files[target].kind, Kind::Closed) {
            if !self.is_stream(file) {
                return error(libc::EPIPE);
            }
            self.reset(file);
            return Ok(bytes.len() as isize);
        }
        let (Kind::Stream(Stream { inbox, .. }) | Kind::PipeOut(inbox)) =
            &mut self.files[target].kind
        else {
            return error(libc::EBADF);
        };
        let count = bytes.len().min(ROOM_BYTES - inbox.len());
        if count == 0 && !bytes.is_empty() {
            return if dontwait {
                error(libc::EAGAIN)
            } else {
                Err(Waits)
            };
        }
        inbox.extend(&bytes[..count]);
        if self.is_stream(file) {
            self.stream(file).sent += count as u64;
            self.stream(target).received += count as u64;
        }
        self.news(target);
        Ok(count as isize)
    }

    fn shutdown(&mut self, file: usize, how: usize) -> Outcome {
        if how != libc::SHUT_WR as usize {
            self.stream(file).is_shut[0] = true;
        }
        if how != libc::SHUT_RD as usize && !self.stream(file).is_shut[1] {
            self.stream(file).is_shut[1] = true;
            self.end_peer(file);
        }
        self.news(file);
        Ok(0)
    }

    /// What poll(2) says of a file.
    fn events(&self, file: usize) -> u32 {
        const READABLE: i16 = libc::POLLIN | libc::POLLRDNORM;
        const WRITABLE: i16 = libc::POLLOUT | libc::POLLWRNORM;
        let free = |target: usize| match &self.files[target].kind {
            Kind::Stream(Stream { inbox, .. }) | Kind::PipeOut(inbox) => ROOM_BYTES - inbox.len(),
            _ => ROOM_BYTES,
        };
        let some = |is_so: bool, events: i16| if is_so { events } else { 0 };
        let events = match &self.files[file].kind {
            Kind::Stream(stream) => {
                let [no_more, shut] = stream.is_shut;
                let is_over = stream.peer_has_ended || no_more;
                let has_something = !stream.inbox.is_empty() || is_over || stream.error.is_some();
                some(has_something, READABLE)
                    | some(is_over, libc::POLLRDHUP)
                    | some(is_over && shut || stream.is_reset, libc::POLLHUP)
                    | some(stream.error.is_some(), libc::POLLERR)
                    | some(free(stream.peer) >= ROOM_BYTES / 3 || shut, WRITABLE)
            }
            Kind::PipeOut(bytes) => some(!bytes.is_empty(), READABLE),
            Kind::PipeIn(out) => some(free(*out) >= 4096, WRITABLE),
            Kind::Epoll(items) => some(items.iter().any(|item| self.report(item) != 0), READABLE),
            Kind::Closed => libc::POLLNVAL,
        };
        events as u16 as u32
    }

    /// What an instance has to say of one registration.
    fn report(&self, item: &Registration) -> u32 {
        let is_due = item.events & libc::EPOLLET as u32 == 0 || item.has_news;
        if item.is_off || !is_due {
            return 0;
        }
        let always = (libc::EPOLLERR | libc::EPOLLHUP) as u32;
        self.events(item.file) & (item.events | always)
    }

    fn control(&mut self, epfd: i32, op: usize, fd: i32, event: usize) -> Outcome {
        let Some(&(file, _)) = self.fds.get(&fd) else {
            return error(libc::EBADF);
        };
        let Some(&(instance, _)) = self.fds.get(&epfd) else {
            return error(libc::EBADF);
        };
        let Kind::Epoll(items) = &mut self.files[instance].kind else {
            return error(libc::EINVAL);
        };
        let known = items
            .iter()
            .position(|item| (item.fd, item.file) == (fd, file));
        let made = || {
            // SAFETY: epoll_ctl(2) reads one event with these two.
            let event = unsafe { (event as *const libc::epoll_event).read_unaligned() };
            Registration {
                fd,
                file,
                events: event.events,
                data: event.u64,
                has_news: true,
                is_off: false,
            }
        };
        match (op as i32, known) {
            (libc::EPOLL_CTL_ADD, None) => items.push(made()),
            (libc::EPOLL_CTL_ADD, Some(_)) => return error(libc::EEXIST),
            (_, None) => return error(libc::ENOENT),
            (libc::EPOLL_CTL_MOD, Some(at)) => items[at] = made(),
            (_, Some(at)) => drop(items.remove(at)),
        }
        Ok(0)
    }

    fn wait(&mut self, epfd: i32, events: usize, max: usize, waits: bool) -> Outcome {
        let Some(&(instance, _)) = self.fds.get(&epfd) else {
            return error(libc::EBADF);
        };
        let Kind::Epoll(items) = &self.files[instance].kind else {
            return error(libc::EINVAL);
        };
        let due: Vec<(usize, u32)> = items
            .iter()
            .map(|item| self.report(item))
            .enumerate()
            .filter(|(_, report)| *report != 0)
            .take(max)
            .collect();
        if due.is_empty() {
            return if waits { Err(Waits) } else { Ok(0) };
        }
        let Kind::Epoll(items) = &mut self.files[instance].kind else {
            return error(libc::EINVAL);
        };
        for (at, (item, report)) in due.iter().enumerate() {
            let item = &mut items[*item];
            item.has_news = false;
            item.is_off = item.events & libc::EPOLLONESHOT as u32 != 0;
            let event = libc::epoll_event {
                events: *report,
                u64: item.data,
            };
            // SAFETY: epoll_wait(2) writes so many events at most.
            unsafe {
                (events as *mut libc::epoll_event)
                    .add(at)
                    .write_unaligned(event)
            };
        }
        Ok(due.len() as isize)
    }

    fn poll(&mut self, entries: usize, count: usize, waits: bool) -> Outcome {
        // SAFETY: poll(2) reads and writes so many entries.
        let entries =
            unsafe { core::slice::from_raw_parts_mut(entries as *mut libc::pollfd, count) };
        let mut ready = 0;
        for entry in entries.iter_mut() {
            let always = libc::POLLERR | libc::POLLHUP | libc::POLLNVAL;
            entry.revents = match self.fds.get(&entry.fd) {
                _ if entry.fd < 0 => 0,
                Some((file, _)) => self.events(*file) as i16 & (entry.events | always),
                None => libc::POLLNVAL,
            };
            ready += isize::from(entry.revents != 0);
        }
        if ready == 0 && waits {
            Err(Waits)
        } else {
            Ok(ready)
        }
    }

    fn option(&mut self, file: usize, level: usize, name: usize) -> Result<Vec<u8>, i32> {
        if !self.is_stream(file) {
            return Err(libc::ENOTSOCK);
        }
        let int = |value: i32| Ok(value.to_ne_bytes().to_vec());
        let stream = self.stream(file);
        match (level as i32, name as i32) {
            (libc::IPPROTO_TCP, libc::TCP_INFO) => Ok(info(stream)),
            (libc::SOL_SOCKET, libc::SO_ERROR) => int(stream.error.take().unwrap_or(0)),
            (libc::SOL_SOCKET, libc::SO_PROTOCOL) => int(libc::IPPROTO_TCP),
            (libc::SOL_SOCKET, libc::SO_DOMAIN) => int(libc::AF_INET),
            (libc::SOL_SOCKET, libc::SO_TYPE) => int(libc::SOCK_STREAM),
            (libc::SOL_SOCKET, libc::SO_SNDBUF) => int(2 * ROOM_BYTES as i32),
            (libc::SOL_SOCKET, libc::SO_RCVTIMEO | libc::SO_SNDTIMEO) => Ok(vec![0; 16]),
            (libc::SOL_SOCKET, 57) => Ok((file as u64).to_ne_bytes().to_vec()),
            (libc::SOL_SOCKET, libc::SO_ATTACH_FILTER) => Ok(Vec::new()),
            _ => Ok(stream
                .options
                .get(&(level, name))
                .cloned()
                .unwrap_or_else(|| vec![0; 4])),
        }
    }

    fn get_option(&mut self, file: usize, args: [usize; 6]) -> Outcome {
        let value = match self.option(file, args[1], args[2]) {
            Ok(value) => value,
            Err(number) => return error(number),
        };
        // SAFETY: getsockopt(2) reads and writes the length, and writes so many bytes at most.
        unsafe {
            let len = args[4] as *mut libc::socklen_t;
            let count = value.len().min(*len as usize);
            core::ptr::copy_nonoverlapping(value.as_ptr(), args[3] as *mut u8, count);
            *len = count as libc::socklen_t;
        }
        Ok(0)
    }

    fn set_option(&mut self, file: usize, args: [usize; 6]) -> Outcome {
        // SAFETY: setsockopt(2) reads so many bytes.
        let value = unsafe { core::slice::from_raw_parts(args[3] as *const u8, args[4]) }.to_vec();
        let stream = self.stream(file);
        if (args[1] as i32, args[2] as i32) == (libc::SOL_SOCKET, libc::SO_LINGER) {
            stream.lingers_not = value[0] != 0 && value[4..8] == [0; 4];
        }
        stream.options.insert((args[1], args[2]), value);
        Ok(0)
    }

    fn control_file(&mut self, fd: i32, file: usize, command: usize, arg: usize) -> Outcome {
        match command as i32 {
            libc::F_GETFL => {
                let mode = match self.files[file].kind {
                    Kind::PipeIn(_) => libc::O_WRONLY,
                    Kind::PipeOut(_) => libc::O_RDONLY,
                    _ => libc::O_RDWR,
                };
                let is_nonblocking = i32::from(self.files[file].is_nonblocking);
                Ok((mode | (is_nonblocking * libc::O_NONBLOCK)) as isize)
            }
            libc::F_SETFL => {
                self.files[file].is_nonblocking = arg & libc::O_NONBLOCK as usize != 0;
                Ok(0)
            }
            libc::F_GETFD => Ok(isize::from(self.fds[&fd].1)),
            libc::F_SETFD => {
                self.fds.insert(fd, (file, arg != 0));
                Ok(0)
            }
            libc::F_DUPFD | libc::F_DUPFD_CLOEXEC => Ok(self.name(file, None) as isize),
            libc::F_GETPIPE_SZ if !self.is_stream(file) => Ok(ROOM_BYTES as isize),
            libc::F_GETPIPE_SZ => error(libc::EBADF),
            _ => Ok(0),
        }
    }

    fn ioctl(&mut self, file: usize, request: usize, arg: usize) -> Outcome {
        let value = match request as libc::Ioctl {
            libc::FIONREAD => self.stream(file).inbox.len() as i32,
            libc::TIOCOUTQ => 0,
            libc::FIONBIO => {
                // SAFETY: the request reads an int.
                self.files[file].is_nonblocking = unsafe { *(arg as *const i32) } != 0;
                return Ok(0);
            }
            _ => return error(libc::ENOTTY),
        };
        // SAFETY: the request writes an int.
        unsafe { *(arg as *mut i32) = value };
        Ok(0)
    }

    fn address(&mut self, fd: i32, args: [usize; 6]) -> Outcome {
        let mut raw = [0_u8; 16];
        raw[..8].copy_from_slice(&[2, 0, (fd >> 8) as u8, fd as u8, 127, 0, 0, 1]);
        // SAFETY: getsockname(2) reads and writes the length, and writes so many bytes at most.
        unsafe {
            let len = args[2] as *mut libc::socklen_t;
            let count = raw.len().min(*len as usize);
            core::ptr::copy_nonoverlapping(raw.as_ptr(), args[1] as *mut u8, count);
            *len = raw.len() as libc::socklen_t;
        }
        Ok(0)
    }

    fn move_bytes(&mut self, input: i32, out: i32, len: usize, flags: usize) -> Outcome {
        let (Some(&(from, _)), Some(&(to, _))) = (self.fds.get(&input), self.fds.get(&out)) else {
            return error(libc::EBADF);
        };
        let dontwait = flags & libc::SPLICE_F_NONBLOCK as usize != 0;
        let flags = if dontwait {
            libc::MSG_DONTWAIT as usize
        } else {
            0
        };
        let mut bytes = vec![0; len.min(ROOM_BYTES)];
        let parts = [(bytes.as_mut_ptr() as usize, bytes.len())];
        match self.take(from, &parts, flags)? {
            got @ 1.. => self.put(to, &bytes[..got as usize], flags),
            other => Ok(other),
        }
    }

    /// Answers a call. What is not about descriptors of this kernel is the real one's.
    pub fn call(&mut self, number: i64, args: [usize; 6]) -> Outcome {
        let time_is_zero = |time: usize| {
            // SAFETY: a timespec of the call, where it has one.
            time != 0 && unsafe { (time as *const [i64; 2]).read_unaligned() } == [0, 0]
        };
        match number {
            libc::SYS_epoll_create1 | libc::SYS_epoll_create => {
                let file = self.file(Kind::Epoll(Vec::new()));
                return Ok(self.name(file, None) as isize);
            }
            libc::SYS_poll if args[1] > 0 => return self.poll(args[0], args[1], args[2] != 0),
            libc::SYS_ppoll if args[1] > 0 => {
                return self.poll(args[0], args[1], !time_is_zero(args[2]));
            }
            libc::SYS_splice => {
                return self.move_bytes(args[0] as i32, args[2] as i32, args[4], args[5]);
            }
            libc::SYS_close_range => {
                let range = args[0] as i32..=args[1].min(i32::MAX as usize) as i32;
                for fd in self.fds.range(range).map(|(fd, _)| *fd).collect::<Vec<_>>() {
                    let _ = self.close(fd);
                }
                return Ok(0);
            }
            _ => {}
        }
        let fd = args[0] as i32;
        let Some(&(file, _)) = self.fds.get(&fd) else {
            let is_ours =
                fd >= FIRST_FD && args[0] <= i32::MAX as usize && is_of_descriptor(number);
            return if is_ours {
                error(libc::EBADF)
            } else {
                Ok(real(number, args))
            };
        };
        if let Some((parts, flags)) = super::calls::reads(number, args) {
            let result = self.take(file, &parts, flags);
            if number == libc::SYS_recvmsg && matches!(result, Ok(0..)) {
                // SAFETY: recvmsg(2) writes these fields of its message.
                let message = unsafe { &mut *(args[1] as *mut libc::msghdr) };
                (
                    message.msg_namelen,
                    message.msg_controllen,
                    message.msg_flags,
                ) = (0, 0, 0);
            }
            return result;
        }
        if let Some((parts, flags)) = super::calls::writes(number, args) {
            return self.put(file, &gather(&parts), flags);
        }
        match number {
            libc::SYS_close => self.close(fd),
            libc::SYS_dup => Ok(self.name(file, None) as isize),
            libc::SYS_dup2 | libc::SYS_dup3 => {
                let target = args[1] as i32;
                if target != fd {
                    let _ = self.close(target);
                    self.name(file, Some(target));
                }
                Ok(target as isize)
            }
            libc::SYS_shutdown => self.shutdown(file, args[1]),
            libc::SYS_epoll_ctl => self.control(fd, args[1], args[2] as i32, args[3]),
            libc::SYS_epoll_wait | libc::SYS_epoll_pwait => {
                self.wait(fd, args[1], args[2], args[3] as i32 != 0)
            }
            libc::SYS_epoll_pwait2 => self.wait(fd, args[1], args[2], !time_is_zero(args[3])),
            libc::SYS_getsockopt => self.get_option(file, args),
            libc::SYS_setsockopt => self.set_option(file, args),
            libc::SYS_getsockname | libc::SYS_getpeername => self.address(fd, args),
            libc::SYS_fcntl => self.control_file(fd, file, args[1], args[2]),
            libc::SYS_ioctl => self.ioctl(file, args[1], args[2]),
            libc::SYS_connect => {
                let peer = self.stream(file).peer;
                self.reset(peer);
                self.reset(file);
                Ok(0)
            }
            libc::SYS_sendfile => self.send_file(file, args),
            _ => error(libc::ENOSYS),
        }
    }

    fn send_file(&mut self, file: usize, args: [usize; 6]) -> Outcome {
        let mut bytes = vec![0_u8; args[3].min(ROOM_BYTES)];
        // SAFETY: sendfile(2) reads and writes the offset, if it has one.
        let offset = (args[2] != 0).then(|| unsafe { &mut *(args[2] as *mut i64) });
        let (input, len) = (args[1], bytes.len());
        let at = offset.as_ref().map_or_else(
            || {
                real(
                    libc::SYS_lseek,
                    [input, 0, libc::SEEK_CUR as usize, 0, 0, 0],
                ) as i64
            },
            |offset| **offset,
        );
        let place = [input, bytes.as_mut_ptr() as usize, len, at as usize, 0, 0];
        let got = real(libc::SYS_pread64, place);
        if got <= 0 {
            return Ok(got);
        }
        let sent = self.put(file, &bytes[..got as usize], 0)?;
        if sent > 0 {
            match offset {
                Some(offset) => *offset += sent as i64,
                None => {
                    let to = [
                        input,
                        at as usize + sent as usize,
                        libc::SEEK_SET as usize,
                        0,
                        0,
                        0,
                    ];
                    real(libc::SYS_lseek, to);
                }
            }
        }
        Ok(sent)
    }
}

/// Whether the first argument of a call is a descriptor, of those calls that are asked about ours.
fn is_of_descriptor(number: i64) -> bool {
    matches!(
        number,
        libc::SYS_read
            | libc::SYS_write
            | libc::SYS_readv
            | libc::SYS_writev
            | libc::SYS_recvfrom
            | libc::SYS_sendto
            | libc::SYS_recvmsg
            | libc::SYS_sendmsg
            | libc::SYS_close
            | libc::SYS_fcntl
            | libc::SYS_ioctl
            | libc::SYS_dup
            | libc::SYS_dup2
            | libc::SYS_dup3
            | libc::SYS_shutdown
            | libc::SYS_getsockopt
            | libc::SYS_setsockopt
            | libc::SYS_epoll_ctl
            | libc::SYS_epoll_wait
    )
}

/// The fields of `struct tcp_info` that the library reads.
fn info(stream: &Stream) -> Vec<u8> {
    const CLOSE: u8 = 7;
    const FIN_WAIT2: u8 = 5;
    let mut raw = vec![0_u8; 236];
    raw[0] = match (stream.peer_has_ended, stream.is_shut[1]) {
        _ if stream.is_reset => CLOSE,
        (true, true) => CLOSE,
        (true, false) => sluice_sys::tcp::STATE_CLOSE_WAIT,
        (false, true) => FIN_WAIT2,
        (false, false) => sluice_sys::tcp::STATE_ESTABLISHED,
    };
    let acked = stream.sent + u64::from(stream.has_connected) + u64::from(stream.is_shut[1]);
    let received = stream.received + u64::from(stream.peer_has_ended && !stream.is_reset);
    raw[120..128].copy_from_slice(&acked.to_ne_bytes());
    raw[128..136].copy_from_slice(&received.to_ne_bytes());
    raw
}

fn scatter(parts: &[(usize, usize)], mut bytes: impl Iterator<Item = u8>) {
    for (address, len) in parts {
        for (at, byte) in bytes.by_ref().take(*len).enumerate() {
            // SAFETY: the call's own buffers, which it gave to be written.
            unsafe { *(*address as *mut u8).add(at) = byte };
        }
    }
}

fn gather(parts: &[(usize, usize)]) -> Vec<u8> {
    let mut bytes = Vec::new();
    for (address, len) in parts.iter().filter(|(_, len)| *len > 0) {
        // SAFETY: the call's own buffers, which it gave to be read.
        bytes.extend(unsafe { core::slice::from_raw_parts(*address as *const u8, *len) });
    }
    bytes
}
