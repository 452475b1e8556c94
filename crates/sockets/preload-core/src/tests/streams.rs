//! Reads and writes: whatever the kernel does in the middle of a call, the stream's bytes come whole and in order, and
//! every error is told.
#![allow(unsafe_code)]

use super::machine::{Fault, Machine, Which};
use super::pair::{Pair, on, within};
use crate::conn::Conn;
use crate::io;
use crate::real::errno;
use core::ffi::c_int;
use core::ptr::{null, null_mut};
use libc::{iovec, mmsghdr, msghdr};

/// How a stream came to be before it is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Way {
    /// By TCP, without a lane.
    Tcp,
    /// By TCP, then by the ring.
    TcpThenRing,
    /// By the ring alone.
    Ring,
    /// By the ring, then by TCP, which the sender has gone back to.
    RingThenTcp,
    /// All three.
    TcpRingTcp,
}

pub(super) const WAYS: [Way; 5] = [
    Way::Tcp,
    Way::TcpThenRing,
    Way::Ring,
    Way::RingThenTcp,
    Way::TcpRingTcp,
];

/// Bytes of one segment of a test's stream.
pub(super) const SEGMENT: usize = 40;

pub(super) fn byte_at(position: usize) -> u8 {
    (position as u32).wrapping_mul(0x9e37_79b9).rotate_left(9) as u8
}

pub(super) fn bytes(from: usize, count: usize) -> Vec<u8> {
    (from..from + count).map(byte_at).collect()
}

fn part(buffer: &mut [u8]) -> iovec {
    iovec {
        iov_base: buffer.as_mut_ptr().cast(),
        iov_len: buffer.len(),
    }
}

fn message(parts: &mut [iovec]) -> msghdr {
    // SAFETY: zeroes are a message without address and control.
    let mut message: msghdr = unsafe { core::mem::zeroed() };
    (message.msg_iov, message.msg_iovlen) = (parts.as_mut_ptr(), parts.len());
    message
}

pub(super) type Read = fn(&Conn, &mut [u8]) -> isize;
pub(super) type Write = fn(&Conn, &[u8]) -> isize;

/// Every way to read, into a buffer of at least two bytes.
pub(super) const READS: [(&str, Read); 11] = [
    ("read", |conn, to| {
        // SAFETY: the buffer is a slice.
        unsafe { io::read(conn, to.as_mut_ptr().cast(), to.len()) }
    }),
    ("recv", |conn, to| recv(conn, to, 0)),
    ("recv dontwait", |conn, to| {
        recv(conn, to, libc::MSG_DONTWAIT)
    }),
    ("recv waitall", |conn, to| recv(conn, to, libc::MSG_WAITALL)),
    ("peek, then recv", |conn, to| {
        let seen = recv(conn, to, libc::MSG_PEEK);
        if seen <= 0 {
            return seen;
        }
        let before = to[..seen as usize].to_vec();
        let got = recv(conn, to, 0);
        let same = usize::try_from(got.min(seen)).unwrap_or(0);
        assert_eq!(
            before[..same],
            to[..same],
            "what a peek saw is what is read"
        );
        got
    }),
    ("recvfrom", |conn, to| {
        let (at, len) = (to.as_mut_ptr().cast(), to.len());
        // SAFETY: the buffer is a slice.
        unsafe { io::recvfrom(conn, at, len, 0, null_mut(), null_mut()) }
    }),
    ("readv", |conn, to| {
        let (one, other) = to.split_at_mut(1);
        let parts = [part(one), part(other)];
        // SAFETY: the parts are slices.
        unsafe { io::readv(conn, parts.as_ptr(), 2) }
    }),
    ("preadv2", |conn, to| {
        let (one, other) = to.split_at_mut(1);
        let parts = [part(one), part(other)];
        // SAFETY: the parts are slices.
        unsafe { io::preadv2(conn, parts.as_ptr(), 2, -1, libc::RWF_NOWAIT) }
    }),
    ("recvmsg", |conn, to| {
        let (one, other) = to.split_at_mut(1);
        let mut parts = [part(one), part(other)];
        let mut message = message(&mut parts);
        // SAFETY: the message and its parts lie on this stack.
        unsafe { io::recvmsg(conn, &raw mut message, 0) }
    }),
    ("recvmsg dontwait", |conn, to| {
        let mut parts = [part(to)];
        let mut message = message(&mut parts);
        // SAFETY: the message and its parts lie on this stack.
        unsafe { io::recvmsg(conn, &raw mut message, libc::MSG_DONTWAIT) }
    }),
    ("recvmmsg", |conn, to| {
        let (one, other) = to.split_at_mut(1);
        let mut parts = [[part(one)], [part(other)]];
        let mut messages = parts.each_mut().map(|parts| mmsghdr {
            msg_hdr: message(parts),
            msg_len: 0,
        });
        let (at, flags) = (messages.as_mut_ptr(), libc::MSG_WAITFORONE);
        // SAFETY: the messages and their parts lie on this stack.
        let got = unsafe { io::recvmmsg(conn, at, 2, flags, null_mut()) };
        match usize::try_from(got) {
            Ok(count) => messages[..count].iter().map(|it| it.msg_len as isize).sum(),
            Err(_) => -1,
        }
    }),
];

fn recv(conn: &Conn, to: &mut [u8], flags: c_int) -> isize {
    // SAFETY: the buffer is a slice.
    unsafe { io::recv(conn, to.as_mut_ptr().cast(), to.len(), flags) }
}

/// Every way to write, of at least two bytes.
pub(super) const WRITES: [(&str, Write); 8] = [
    ("write", |conn, from| {
        // SAFETY: the buffer is a slice.
        unsafe { io::write(conn, from.as_ptr().cast(), from.len()) }
    }),
    ("send", |conn, from| send(conn, from, 0)),
    ("send dontwait", |conn, from| {
        send(conn, from, libc::MSG_DONTWAIT)
    }),
    ("sendto", |conn, from| {
        // SAFETY: the buffer is a slice.
        unsafe { io::sendto(conn, from.as_ptr().cast(), from.len(), 0, null(), 0) }
    }),
    ("writev", |conn, from| {
        let mut copy = from.to_vec();
        let (one, other) = copy.split_at_mut(1);
        let parts = [part(one), part(other)];
        // SAFETY: the parts are slices.
        unsafe { io::writev(conn, parts.as_ptr(), 2) }
    }),
    ("pwritev2", |conn, from| {
        let mut copy = from.to_vec();
        let parts = [part(&mut copy)];
        // SAFETY: the part is a slice.
        unsafe { io::pwritev2(conn, parts.as_ptr(), 1, -1, libc::RWF_NOWAIT) }
    }),
    ("sendmsg", |conn, from| {
        let mut copy = from.to_vec();
        let (one, other) = copy.split_at_mut(1);
        let mut parts = [part(one), part(other)];
        let message = message(&mut parts);
        // SAFETY: the message and its parts lie on this stack.
        unsafe { io::sendmsg(conn, &raw const message, 0) }
    }),
    ("sendmmsg", |conn, from| {
        let mut copy = from.to_vec();
        let (one, other) = copy.split_at_mut(1);
        let mut parts = [[part(one)], [part(other)]];
        let mut messages = parts.each_mut().map(|parts| mmsghdr {
            msg_hdr: message(parts),
            msg_len: 0,
        });
        // SAFETY: the messages and their parts lie on this stack.
        let sent = unsafe { io::sendmmsg(conn, messages.as_mut_ptr(), 2, 0) };
        match usize::try_from(sent) {
            Ok(count) => messages[..count].iter().map(|it| it.msg_len as isize).sum(),
            Err(_) => -1,
        }
    }),
];

fn send(conn: &Conn, from: &[u8], flags: c_int) -> isize {
    // SAFETY: the buffer is a slice.
    unsafe {
        io::send(
            conn,
            from.as_ptr().cast(),
            from.len(),
            flags | libc::MSG_NOSIGNAL,
        )
    }
}

/// Writes `count` bytes of the stream from `from` on.
pub(super) fn write_all(conn: &Conn, from: usize, count: usize) {
    let mut done = 0;
    // One of its calls may be the one that is to fail.
    for _ in 0..count {
        done += usize::try_from(send(conn, &bytes(from + done, count - done), 0)).unwrap_or(0);
        if done == count {
            return;
        }
    }
    panic!("{done} of {count} bytes were written");
}

/// Puts a stream into the connection from `b` to `a`. How many bytes it has.
pub(super) fn fill(pair: &Pair, way: Way) -> usize {
    let (_, b) = pair.ends();
    let mut written = 0;
    let mut segment = || {
        write_all(&b, written, SEGMENT);
        written += SEGMENT;
        written
    };
    match way {
        Way::Tcp => return segment(),
        Way::TcpThenRing | Way::TcpRingTcp => {
            segment();
        }
        Way::Ring | Way::RingThenTcp => {}
    }
    pair.attach();
    pair.look();
    segment();
    let (a, _) = pair.ends();
    let by_ring = a.end.unread_ring_bytes(a.generation, a.fd);
    assert_eq!(by_ring, SEGMENT, "the ring is used");
    if matches!(way, Way::RingThenTcp | Way::TcpRingTcp) {
        b.end.shut_tx(b.generation);
        segment();
    }
    written
}

/// What came of reading a stream.
#[derive(Debug, Default)]
struct Outcome {
    bytes: Vec<u8>,
    errors: Vec<i32>,
    calls: usize,
    has_failed: bool,
    is_stuck: bool,
    log: Vec<(i64, isize)>,
}

/// Reads a stream to its end, with calls of one kind and of `room` bytes, and goes on behind errors.
fn read_stream(
    which: Which,
    way: Way,
    read: Read,
    room: usize,
    fault: Option<(usize, Fault)>,
) -> Option<Outcome> {
    on(which, |machine, pair| {
        let total = within(machine, || {
            pair.track();
            fill(pair, way)
        })?;
        // The end of the stream comes behind the last byte.
        within(machine, || {
            let (_, b) = pair.ends();
            crate::options::before_shutdown(&b, libc::SHUT_WR);
            // SAFETY: the call takes numbers.
            assert_eq!(unsafe { libc::shutdown(pair.b, libc::SHUT_WR) }, 0);
        })?;
        begin(machine, fault);
        let mut outcome = within(machine, || drain(&pair.ends().0, read, room, total))?;
        finish(machine, &mut outcome);
        Some(outcome)
    })
}

fn begin(machine: &mut Machine, fault: Option<(usize, Fault)>) {
    machine.calls = 0;
    machine.log.clear();
    machine.fault = fault;
}

fn finish(machine: &mut Machine, outcome: &mut Outcome) {
    outcome.calls = machine.calls;
    outcome.has_failed = machine.has_failed;
    outcome.is_stuck = machine.is_stuck;
    outcome.log = core::mem::take(&mut machine.log);
}

fn drain(conn: &Conn, read: Read, room: usize, total: usize) -> Outcome {
    let mut outcome = Outcome::default();
    let mut buffer = vec![0_u8; room];
    let mut ends = 0;
    // More calls than bytes, errors and a few looks at nothing are no progress.
    for _ in 0..4 * total + 64 {
        match read(conn, &mut buffer) {
            // A call of several reads may have met an error behind the end.
            0 if ends == 1 => break,
            0 => ends += 1,
            got @ 1.. => outcome.bytes.extend(&buffer[..got as usize]),
            _ => outcome.errors.push(errno()),
        }
    }
    outcome
}

/// What the kernel may do in the middle of a read.
const READ_FAULTS: [Fault; 7] = [
    Fault::Short,
    Fault::Errno(libc::EINTR),
    Fault::Errno(libc::EAGAIN),
    Fault::Errno(libc::ENOMEM),
    Fault::Errno(libc::ECONNRESET),
    Fault::Errno(libc::ETIMEDOUT),
    Fault::Errno(libc::ENETUNREACH),
];

pub(super) fn expected(way: Way) -> usize {
    match way {
        Way::Tcp | Way::Ring => SEGMENT,
        Way::TcpThenRing | Way::RingThenTcp => 2 * SEGMENT,
        Way::TcpRingTcp => 3 * SEGMENT,
    }
}

#[test]
fn a_stream_is_read_whole_by_every_call_and_every_way() {
    for which in [Which::Fake, Which::Real] {
        for way in WAYS {
            for (name, read) in READS {
                for room in [2, 30, 300] {
                    let Some(outcome) = read_stream(which, way, read, room, None) else {
                        return;
                    };
                    let what = format!("{which:?} {way:?} {name} of {room}: {outcome:?}");
                    assert_eq!(outcome.bytes, bytes(0, expected(way)), "{what}");
                    assert!(
                        outcome.errors.iter().all(|it| *it == libc::EAGAIN),
                        "{what}"
                    );
                    assert!(!outcome.is_stuck, "{what}");
                }
            }
        }
    }
}

/// Whether an error says that the connection is over.
fn is_last(number: i32) -> bool {
    matches!(
        number,
        libc::ECONNRESET | libc::ETIMEDOUT | libc::ENETUNREACH | libc::EPIPE
    )
}

#[test]
fn whatever_goes_wrong_in_a_read_no_byte_and_no_error_is_lost() {
    for which in [Which::Fake, Which::Real] {
        for way in WAYS {
            for (name, read) in READS {
                for (room, fault) in READ_FAULTS.iter().flat_map(|it| [(30, it), (300, it)]) {
                    read_with_faults(which, way, (name, read), room, *fault);
                }
            }
        }
    }
}

/// Lets one call after another fail, each in a run of its own.
fn read_with_faults(which: Which, way: Way, (name, read): (&str, Read), room: usize, fault: Fault) {
    let mut at = 0;
    loop {
        let Some(outcome) = read_stream(which, way, read, room, Some((at, fault))) else {
            return;
        };
        let what = format!("{which:?} {way:?} {name} of {room}, {fault:?} at {at}: {outcome:?}");
        assert_eq!(outcome.bytes, bytes(0, expected(way)), "{what}");
        assert!(!outcome.is_stuck, "{what}");
        if let (Fault::Errno(number), true) = (fault, outcome.has_failed && is_last_of(fault)) {
            let told = outcome.errors.iter().filter(|it| **it == number).count();
            // Behind the end of the stream nobody asks.
            let is_end = |(call, answer): &(i64, isize)| is_read(*call) && *answer == 0;
            let was_read = outcome
                .log
                .iter()
                .take_while(|it| !is_end(it))
                .any(|(call, answer)| is_read(*call) && *answer == -number as isize);
            assert!((usize::from(was_read)..=1).contains(&told), "{what}");
        }
        at += 1;
        if at >= outcome.calls {
            return;
        }
    }
}

fn is_last_of(fault: Fault) -> bool {
    matches!(fault, Fault::Errno(number) if is_last(number))
}

fn is_read(call: i64) -> bool {
    matches!(
        call,
        libc::SYS_read
            | libc::SYS_readv
            | libc::SYS_recvfrom
            | libc::SYS_recvmsg
            | libc::SYS_preadv2
    )
}

/// What came of writing a stream.
fn write_stream(
    which: Which,
    way: Way,
    write: Write,
    fault: Option<(usize, Fault)>,
) -> Option<(Outcome, Vec<u8>)> {
    on(which, |machine, pair| {
        within(machine, || {
            pair.track();
            if way != Way::Tcp {
                pair.attach();
                pair.look();
            }
            if way == Way::RingThenTcp {
                let (a, _) = pair.ends();
                write_all(&a, 0, SEGMENT);
                a.end.shut_tx(a.generation);
            }
        })?;
        begin(machine, fault);
        let before = if way == Way::RingThenTcp { SEGMENT } else { 0 };
        let (mut outcome, sent) = within(machine, || {
            let mut outcome = Outcome::default();
            let mut sent = before;
            for _ in 0..SEGMENT {
                match write(&pair.ends().0, &bytes(sent, SEGMENT)) {
                    wrote @ 0.. => sent += wrote as usize,
                    _ => outcome.errors.push(errno()),
                }
                if sent >= before + 3 * SEGMENT {
                    break;
                }
            }
            (outcome, sent)
        })?;
        finish(machine, &mut outcome);
        machine.fault = None;
        let read = within(machine, || {
            let (a, b) = pair.ends();
            crate::options::before_shutdown(&a, libc::SHUT_WR);
            // SAFETY: the call takes numbers.
            assert_eq!(unsafe { libc::shutdown(pair.a, libc::SHUT_WR) }, 0);
            drain(&b, READS[0].1, 4096, sent).bytes
        })?;
        outcome.bytes = bytes(0, sent);
        Some((outcome, read))
    })
}

#[test]
fn whatever_goes_wrong_in_a_write_what_counts_as_written_is_read() {
    let faults = [
        Fault::Short,
        Fault::Errno(libc::EINTR),
        Fault::Errno(libc::EAGAIN),
        Fault::Errno(libc::ENOMEM),
        Fault::Errno(libc::ENOBUFS),
    ];
    for which in [Which::Fake, Which::Real] {
        for way in [Way::Tcp, Way::Ring, Way::RingThenTcp] {
            for (name, write) in WRITES {
                for fault in faults {
                    for at in 0..8 {
                        let Some((outcome, read)) =
                            write_stream(which, way, write, Some((at, fault)))
                        else {
                            return;
                        };
                        let what =
                            format!("{which:?} {way:?} {name}, {fault:?} at {at}: {outcome:?}");
                        assert_eq!(read, outcome.bytes, "{what}");
                        assert!(!outcome.is_stuck, "{what}");
                        assert!(outcome.errors.len() <= 1, "{what}");
                    }
                }
            }
        }
    }
}

/// Reads until so many bytes have come, or nothing more does, and goes on behind errors.
pub(super) fn read_until(conn: &Conn, read: Read, total: usize) -> (Vec<u8>, Vec<i32>) {
    let (mut got, mut errors) = (Vec::new(), Vec::new());
    let mut buffer = [0_u8; 70];
    while got.len() < total && errors.len() < 4 {
        match read(conn, &mut buffer) {
            0 => break,
            bytes @ 1.. => got.extend(&buffer[..bytes as usize]),
            _ => errors.push(errno()),
        }
    }
    (got, errors)
}
