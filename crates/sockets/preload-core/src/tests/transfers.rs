//! sendfile and splice: the bytes that a call says it has moved are those that were moved, whatever fails meanwhile.
#![allow(unsafe_code)]

use super::machine::{Fault, Which};
use super::pair::{Pair, on, within};
use super::streams::{SEGMENT, WAYS, Way, byte_at, bytes, expected, fill, write_all};
use crate::conn::Conn;
use crate::real::{errno, real};
use crate::{options, transfer};
use std::io::{Seek, Write};
use std::os::fd::AsRawFd;

/// Bytes of the file: more than go through at a time.
const FILE_BYTES: usize = 40_000;

fn file() -> std::fs::File {
    let mut file = tempfile::tempfile().unwrap();
    file.write_all(&bytes(0, FILE_BYTES)).unwrap();
    file.rewind().unwrap();
    file
}

/// Sends the file with calls of `count` bytes, and reads on the other side: what came, and the errors.
fn send_file(
    which: Which,
    (has_lane, has_offset): (bool, bool),
    count: usize,
    fault: Option<(usize, Fault)>,
) -> Option<(Vec<u8>, usize, Vec<i32>)> {
    on(which, |machine, pair| {
        let file = file();
        within(machine, || {
            pair.track();
            if has_lane {
                pair.attach();
                pair.look();
            }
        })?;
        (machine.calls, machine.fault) = (0, fault);
        within(machine, || {
            let (a, b) = pair.ends();
            a.end.set_nonblocking(true);
            // SAFETY: takes numbers.
            unsafe { libc::fcntl(a.fd, libc::F_SETFL, libc::O_NONBLOCK) };
            let (mut offset, mut sent) = (0_i64, 0);
            let (mut got, mut errors) = (Vec::new(), Vec::new());
            for _ in 0..FILE_BYTES {
                let place = if has_offset {
                    &raw mut offset
                } else {
                    core::ptr::null_mut()
                };
                // SAFETY: the offset lies on this stack.
                let wrote = unsafe { transfer::sendfile(&a, file.as_raw_fd(), place, count) };
                match wrote {
                    0 => break,
                    1.. => sent += wrote as usize,
                    _ => errors.push(errno()),
                }
                if has_offset {
                    assert_eq!(offset as usize, sent, "the offset is behind what was sent");
                }
                read_what_is_there(&b, &mut got);
            }
            let mut at = &file;
            let position = at.stream_position().unwrap() as usize;
            assert_eq!(position, if has_offset { 0 } else { sent });
            read_what_is_there(&b, &mut got);
            (got, sent, errors)
        })
    })
}

fn read_what_is_there(conn: &Conn, into: &mut Vec<u8>) {
    let mut buffer = [0_u8; 8192];
    for _ in 0..64 {
        let (at, flags) = (buffer.as_mut_ptr().cast(), libc::MSG_DONTWAIT);
        // SAFETY: the buffer lies on this stack.
        match unsafe { crate::io::recv(conn, at, 8192, flags) } {
            got @ 1.. => into.extend(&buffer[..got as usize]),
            _ => return,
        }
    }
}

#[test]
fn a_file_is_sent_whole_whatever_fails_in_the_middle() {
    let faults = [
        Fault::Short,
        Fault::Errno(libc::EAGAIN),
        Fault::Errno(libc::ENOMEM),
    ];
    for which in [Which::Fake, Which::Real] {
        for how in [(false, false), (false, true), (true, false), (true, true)] {
            for count in [1_000, 100_000] {
                for fault in faults.map(Some).into_iter().chain([None]) {
                    for at in 0..4 {
                        let fault = fault.map(|fault| (at, fault));
                        let Some((got, sent, errors)) = send_file(which, how, count, fault) else {
                            return;
                        };
                        let what = format!("{which:?} {how:?} {count} {fault:?} {errors:?}");
                        assert_eq!(sent, FILE_BYTES, "{what}");
                        assert!(got == bytes(0, got.len()), "{what}");
                        assert_eq!(got.len(), sent, "{what}");
                    }
                }
            }
        }
    }
}

/// Splices a stream, with `more` bytes behind it, into a pipe, in pieces, and takes it out there.
fn splice_stream(
    which: Which,
    way: Way,
    (len, flags, more): (usize, u32, usize),
    fault: Option<(usize, Fault)>,
) -> Option<(Vec<u8>, Vec<i32>, usize)> {
    on(which, |machine, pair| {
        let (out, into) = machine.pipe();
        let total = within(machine, || {
            pair.track();
            let mut total = fill(pair, way);
            if more > 0 {
                write_all(&pair.ends().1, total, more);
                total += more;
            }
            end(pair);
            total
        })?;
        (machine.calls, machine.fault) = (0, fault);
        let outcome = within(machine, || {
            let (a, _) = pair.ends();
            let (mut got, mut errors) = (Vec::new(), Vec::new());
            for _ in 0..4 * total + 16 {
                let (from, none) = (a.fd, core::ptr::null_mut());
                let moved = transfer::splice_from(&a, into, len, flags, false, |len| {
                    // SAFETY: no offsets, and numbers.
                    unsafe { (real().splice)(from, none, into, none, len, flags) }
                });
                match moved {
                    0 => break,
                    1.. => take(out, moved as usize, &mut got),
                    _ => errors.push(errno()),
                }
            }
            (got, errors)
        })?;
        for fd in [out, into] {
            within(machine, || {
                // SAFETY: a descriptor of this test.
                unsafe { libc::close(fd) }
            });
        }
        Some((outcome.0, outcome.1, machine.calls))
    })
}

fn end(pair: &Pair) {
    options::before_shutdown(&pair.ends().1, libc::SHUT_WR);
    // SAFETY: takes numbers.
    assert_eq!(unsafe { libc::shutdown(pair.b, libc::SHUT_WR) }, 0);
}

/// Takes so many bytes out of a pipe, past whatever its reads are made to come to.
fn take(out: i32, count: usize, got: &mut Vec<u8>) {
    let mut left = count;
    for _ in 0..count + 4 {
        let mut buffer = vec![0_u8; left];
        // SAFETY: the buffer is a vector of that length.
        let taken = unsafe { libc::read(out, buffer.as_mut_ptr().cast(), left) };
        if let Ok(taken) = usize::try_from(taken) {
            got.extend(&buffer[..taken]);
            left -= taken;
        }
        if left == 0 {
            return;
        }
    }
    panic!("{left} bytes are not in the pipe");
}

#[test]
fn a_stream_is_spliced_whole_whatever_fails_in_the_middle() {
    let faults = [
        Fault::Short,
        Fault::Errno(libc::EINTR),
        Fault::Errno(libc::ENOMEM),
    ];
    for which in [Which::Fake, Which::Real] {
        for way in WAYS {
            for (len, flags) in [(7, 0), (1000, 0), (1000, libc::SPLICE_F_NONBLOCK)] {
                for fault in faults.map(Some).into_iter().chain([None]) {
                    for at in 0..6 {
                        let fault = fault.map(|fault| (at, fault));
                        let Some((got, errors, _)) =
                            splice_stream(which, way, (len, flags, 0), fault)
                        else {
                            return;
                        };
                        let what = format!("{which:?} {way:?} {len} {flags} {fault:?} {errors:?}");
                        assert_eq!(got, bytes(0, expected(way)), "{what}");
                        assert!(errors.len() <= 1 || flags != 0, "{what}");
                    }
                }
            }
        }
    }
    assert_ne!(byte_at(0), byte_at(1), "the test's bytes differ");
}

#[test]
fn ring_bytes_that_a_pipe_took_count_when_it_refuses_the_next() {
    const MORE: usize = 9_000;
    for which in [Which::Fake, Which::Real] {
        for at in 0..12 {
            for fault in [
                Fault::Short,
                Fault::Errno(libc::EINTR),
                Fault::Errno(libc::EPIPE),
            ] {
                let call = (20_000, 0, MORE);
                let Some((got, errors, _)) =
                    splice_stream(which, Way::Ring, call, Some((at, fault)))
                else {
                    return;
                };
                let what = format!("{which:?} {fault:?} at {at}: {errors:?}");
                assert!(
                    got == bytes(0, SEGMENT + MORE),
                    "{what}: {} bytes",
                    got.len()
                );
                assert!(errors.len() <= 1, "{what}");
            }
        }
    }
}
