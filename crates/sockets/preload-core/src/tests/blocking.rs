//! Calls that wait: what comes meanwhile ends the wait, and what ends it otherwise loses nothing.
#![allow(unsafe_code)]

use super::machine::{Fault, Machine, Which};
use super::pair::{Pair, on, within};
use super::streams::{READS, Read, SEGMENT, WRITES, Write, bytes, read_until, write_all};
use crate::options;
use crate::real::errno;

/// Bytes of a write that fits neither the ring nor the socket.
const LARGE: usize = 150_000;

fn prepare(machine: &mut Machine, pair: &Pair, has_lane: bool) -> Option<()> {
    within(machine, || {
        pair.track();
        if has_lane {
            pair.attach();
            pair.look();
        }
    })
}

/// What the peer does while calls wait: it writes some segments, and ends.
fn write_later(machine: &mut Machine, pair: &Pair, segments: usize) {
    let b = pair.b;
    for at in 0..segments {
        machine.later.push_back(Box::new(move || {
            write_all(&crate::conn::get(b).unwrap(), at * SEGMENT, SEGMENT);
        }));
    }
    machine.later.push_back(Box::new(move || {
        options::before_shutdown(&crate::conn::get(b).unwrap(), libc::SHUT_WR);
        // SAFETY: takes numbers.
        assert_eq!(unsafe { libc::shutdown(b, libc::SHUT_WR) }, 0);
    }));
}

fn read_waiting(
    which: Which,
    has_lane: bool,
    (name, read): (&str, Read),
    fault: Option<(usize, Fault)>,
) -> Option<usize> {
    const SEGMENTS: usize = 3;
    on(which, |machine, pair| {
        prepare(machine, pair, has_lane)?;
        write_later(machine, pair, SEGMENTS);
        (machine.calls, machine.fault) = (0, fault);
        let (got, errors) = within(machine, || {
            read_until(&pair.ends().0, read, SEGMENTS * SEGMENT)
        })?;
        let log = &machine.log;
        let what = format!("{which:?} lane {has_lane} {name} {fault:?}: {errors:?} {log:?}");
        assert_eq!(got, bytes(0, SEGMENTS * SEGMENT), "{what}");
        assert!(!machine.is_stuck, "{what}");
        assert!(errors.len() <= usize::from(machine.has_failed), "{what}");
        Some(machine.calls)
    })
}

#[test]
fn a_read_that_waits_gets_what_is_written_meanwhile() {
    let faults = [
        Fault::Short,
        Fault::Errno(libc::EINTR),
        Fault::Errno(libc::ENOMEM),
    ];
    let waiting = || {
        READS
            .into_iter()
            .filter(|(name, _)| !name.contains("dontwait") && *name != "preadv2")
    };
    for which in [Which::Fake, Which::Real] {
        for has_lane in [false, true] {
            for read in waiting() {
                if read_waiting(which, has_lane, read, None).is_none() {
                    return;
                }
                for fault in faults {
                    let mut at = 0;
                    while at < read_waiting(which, has_lane, read, Some((at, fault))).unwrap() {
                        at += 1;
                    }
                }
            }
        }
    }
}

/// Writes more than fits, while the peer reads some of it whenever the writer waits.
fn write_waiting(
    which: Which,
    has_lane: bool,
    (name, write): (&str, Write),
    fault: Option<(usize, Fault)>,
) -> Option<()> {
    on(which, |machine, pair| {
        prepare(machine, pair, has_lane)?;
        let got = std::rc::Rc::new(std::cell::RefCell::new(Vec::new()));
        let b = pair.b;
        for _ in 0..64 {
            let got = got.clone();
            machine.later.push_back(Box::new(move || {
                read_some(b, &mut got.borrow_mut());
            }));
        }
        (machine.calls, machine.fault) = (0, fault);
        let (sent, errors) = within(machine, || {
            let (mut sent, mut errors) = (0, Vec::new());
            while sent < LARGE && errors.len() < 4 {
                match write(&pair.ends().0, &bytes(sent, LARGE - sent)) {
                    wrote @ 0.. => sent += wrote as usize,
                    _ => errors.push(errno()),
                }
                if name.contains("dontwait") || name == "pwritev2" {
                    // Full is an answer to these.
                    errors.retain(|number| *number != libc::EAGAIN);
                    read_some(b, &mut got.borrow_mut());
                }
            }
            for _ in 0..64 {
                read_some(b, &mut got.borrow_mut());
            }
            (sent, errors)
        })?;
        let what = format!("{which:?} lane {has_lane} {name} {fault:?}: {errors:?}");
        assert!(got.borrow().as_slice() == bytes(0, sent), "{what}: {sent}");
        assert_eq!(sent, LARGE, "{what}");
        assert!(errors.len() <= 1, "{what}");
        assert!(!machine.is_stuck, "{what}");
        Some(())
    })
}

fn read_some(fd: i32, into: &mut Vec<u8>) {
    let conn = crate::conn::get(fd).unwrap();
    let mut buffer = [0_u8; 20_000];
    let (at, flags) = (buffer.as_mut_ptr().cast(), libc::MSG_DONTWAIT);
    // SAFETY: the buffer lies on this stack.
    let got = unsafe { crate::io::recv(&conn, at, 20_000, flags) };
    into.extend(&buffer[..usize::try_from(got).unwrap_or(0)]);
}

#[test]
fn a_write_of_more_than_fits_goes_on_as_the_peer_reads() {
    let faults = [
        Fault::Short,
        Fault::Errno(libc::EINTR),
        Fault::Errno(libc::ENOMEM),
    ];
    for has_lane in [false, true] {
        for write in WRITES {
            if write_waiting(Which::Fake, has_lane, write, None).is_none() {
                return;
            }
            for fault in faults {
                for at in 0..6 {
                    write_waiting(Which::Fake, has_lane, write, Some((at, fault)));
                }
            }
        }
    }
}
