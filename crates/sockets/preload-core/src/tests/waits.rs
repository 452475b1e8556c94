//! poll, select and epoll: what rings and the kernel have is reported, whatever happens in the middle of the call.
#![allow(unsafe_code)]

use super::PLACES;
use super::machine::{Fault, Machine, Which};
use super::pair::{Pair, on, on_both, within};
use crate::epoll::{self, Timeout};
use crate::epoll_wait;
use crate::fds::{self, Entry};
use crate::real::{errno, real};
use crate::{descriptors, io, poll as poll_core};
use core::ffi::c_int;
use core::ptr::null;
use libc::{epoll_event, fd_set, pollfd};

const IN: i16 = libc::POLLIN;
const OUT: i16 = libc::POLLOUT;

fn write(fd: i32, text: &[u8]) {
    let conn = crate::conn::get(fd).unwrap();
    // SAFETY: the bytes are a slice.
    let wrote = unsafe { io::write(&conn, text.as_ptr().cast(), text.len()) };
    assert_eq!(wrote, text.len() as isize);
}

fn read(fd: i32) -> Vec<u8> {
    let conn = crate::conn::get(fd).unwrap();
    let mut buffer = [0_u8; 4096];
    // SAFETY: the buffer lies on this stack.
    let got = unsafe { io::recv(&conn, buffer.as_mut_ptr().cast(), 4096, libc::MSG_DONTWAIT) };
    buffer[..usize::try_from(got).unwrap_or(0)].to_vec()
}

/// `poll` as the hook does it: how many entries, or the error, and what they say.
fn poll(entries: &[(i32, i16)], ms: c_int) -> (Result<c_int, i32>, Vec<i16>) {
    let mut entries: Vec<pollfd> = entries
        .iter()
        .map(|&(fd, events)| pollfd {
            fd,
            events,
            revents: 0,
        })
        .collect();
    let asked: Vec<i16> = entries.iter().map(|entry| entry.events).collect();
    let count = poll_core::poll(&mut entries, Timeout::from_ms(ms), &mut |entries, left| {
        // SAFETY: a slice.
        unsafe { (real().poll)(entries.as_mut_ptr(), entries.len() as u64, left.ms()) }
    });
    let result = if count < 0 { Err(errno()) } else { Ok(count) };
    let kept: Vec<i16> = entries.iter().map(|entry| entry.events).collect();
    assert_eq!(kept, asked, "the program's own fields stay as they are");
    (result, entries.iter().map(|entry| entry.revents).collect())
}

/// `select` as the hook does it, for reading: how many, or the error, and which.
fn select(fds: &[i32], ms: u64) -> (Result<c_int, i32>, Vec<i32>) {
    // SAFETY: zeroes are an empty set, and the numbers are below its size.
    let mut set: fd_set = unsafe { core::mem::zeroed() };
    for fd in fds {
        // SAFETY: a number below the size of a set, and the set lies on this stack.
        unsafe { libc::FD_SET(*fd, &raw mut set) };
    }
    let last = fds.iter().max().map_or(0, |fd| fd + 1);
    let sets = [&raw mut set, core::ptr::null_mut(), core::ptr::null_mut()];
    // SAFETY: the set lies on this stack.
    let count = unsafe { poll_core::select(last, sets, Timeout::Ns(ms * 1_000_000), null()) };
    let result = if count < 0 { Err(errno()) } else { Ok(count) };
    // SAFETY: a number below the size of a set, and the set lies on this stack.
    let left = fds
        .iter()
        .copied()
        .filter(|fd| unsafe { libc::FD_ISSET(*fd, &raw const set) });
    (result, left.collect())
}

/// A second connection of the machine, without a lane.
fn another(machine: &mut Machine) -> Pair {
    Pair::new(machine)
}

fn with_lane(pair: &Pair) {
    pair.track();
    pair.attach();
    pair.look();
}

#[test]
fn poll_reports_rings_and_the_kernel_in_one_answer() {
    on_both(|which, machine, pair| {
        let plain = another(machine);
        within(machine, || {
            with_lane(pair);
            plain.track();
            let both = [(pair.a, IN), (plain.a, IN | OUT), (pair.b, IN)];
            assert_eq!(poll(&both, 0), (Ok(1), vec![0, OUT, 0]), "{which:?}");
            write(pair.b, b"ring");
            assert_eq!(poll(&both, -1), (Ok(2), vec![IN, OUT, 0]), "{which:?}");
            write(plain.b, b"tcp");
            assert_eq!(poll(&both, -1), (Ok(2), vec![IN, IN | OUT, 0]), "{which:?}");
            assert_eq!(read(pair.a), b"ring");
            assert_eq!(poll(&both, -1), (Ok(1), vec![0, IN | OUT, 0]), "{which:?}");
            assert_eq!(read(plain.a), b"tcp");
            descriptors::close(pair.b);
            let ended = IN | libc::POLLRDHUP;
            let asked = [(pair.a, IN | libc::POLLRDHUP)];
            assert_eq!(poll(&asked, -1), (Ok(1), vec![ended]), "{which:?}");
            assert_eq!(poll(&[(-1, IN), (pair.b, IN)], 0).1, [0, libc::POLLNVAL]);
        });
    });
}

#[test]
fn a_wait_that_sleeps_is_woken_by_what_comes_meanwhile() {
    for which in [Which::Fake, Which::Real] {
        on(which, |machine, pair| {
            let (a, b) = (pair.a, pair.b);
            machine.later.push_back(Box::new(move || write(b, b"late")));
            within(machine, || {
                with_lane(pair);
                assert_eq!(poll(&[(a, IN)], -1), (Ok(1), vec![IN]), "{which:?}");
                assert_eq!(read(a), b"late");
            });
            assert!(!machine.is_stuck, "{which:?}: {:?}", machine.log);
        });
    }
}

/// What a fault in one of its calls makes of a poll on connections of which some have something.
fn poll_with_fault(which: Which, has_ring: bool, fault: Fault, at: usize) -> Option<usize> {
    on(which, |machine, pair| {
        let plain = another(machine);
        within(machine, || {
            with_lane(pair);
            plain.track();
            if has_ring {
                write(pair.b, b"ring");
            } else {
                write(plain.b, b"tcp");
            }
        })?;
        (machine.calls, machine.fault) = (0, Some((at, fault)));
        let entries = [(pair.a, IN), (plain.a, IN)];
        let (result, revents) = within(machine, || poll(&entries, -1))?;
        let what = format!(
            "{which:?} ring {has_ring} {fault:?} at {at}: {result:?} {revents:?} {:?}",
            machine.log
        );
        let expected = if has_ring { vec![IN, 0] } else { vec![0, IN] };
        match result {
            Ok(count) => {
                assert_eq!(count, 1, "a wait without an end has ended: {what}");
                assert_eq!(revents, expected, "{what}");
            }
            Err(number) => {
                assert_eq!(fault, Fault::Errno(number), "{what}");
                assert!(machine.has_failed, "{what}");
            }
        }
        Some(machine.calls)
    })
}

#[test]
fn a_signal_in_a_poll_does_not_make_it_return_nothing() {
    for which in [Which::Fake, Which::Real] {
        for has_ring in [true, false] {
            for number in [libc::EINTR, libc::ENOMEM] {
                for at in 0..6 {
                    // Every so many polls ask the kernel behind rings that have something.
                    for turn in 0..64 {
                        let calls = poll_with_fault(which, has_ring, Fault::Errno(number), at);
                        if calls.is_none() || turn > 0 && !has_ring {
                            break;
                        }
                    }
                }
            }
        }
    }
}

#[test]
fn select_says_the_same_as_poll() {
    // Fake descriptors do not fit a set.
    on(Which::Real, |machine, pair| {
        within(machine, || {
            with_lane(pair);
            let both = [pair.a, pair.b];
            if both.iter().any(|fd| *fd >= libc::FD_SETSIZE as i32) {
                return;
            }
            assert_eq!(select(&both, 0), (Ok(0), vec![]));
            write(pair.b, b"ring");
            assert_eq!(select(&both, 1000), (Ok(1), vec![pair.a]));
            assert_eq!(read(pair.a), b"ring");
            assert_eq!(select(&both, 1), (Ok(0), vec![]));
        });
    });
}

/// An epoll instance as hooks see it.
#[derive(Clone, Copy)]
struct Instance {
    epfd: i32,
}

impl Instance {
    fn new() -> Self {
        // SAFETY: takes and returns numbers.
        let epfd = unsafe { (real().epoll_create1)(libc::EPOLL_CLOEXEC) };
        assert!(epfd >= 0, "{}", errno());
        descriptors::instance_created(epfd);
        Self { epfd }
    }

    fn index(self) -> u32 {
        match fds::get(self.epfd) {
            Entry::Epoll { index } => index,
            other => panic!("{other:?}"),
        }
    }

    /// What `epoll_ctl` returns, or the error.
    fn ctl(self, op: c_int, fd: i32, events: c_int) -> Result<c_int, i32> {
        let mut event = epoll_event {
            events: events as u32,
            u64: fd as u64,
        };
        // SAFETY: the event lies on this stack.
        let done = unsafe { epoll::ctl(self.index(), self.epfd, op, fd, &raw mut event) };
        if done < 0 { Err(errno()) } else { Ok(done) }
    }

    /// What `epoll_wait` reports, in the order of descriptors, or the error.
    fn wait(self, max: usize, ms: c_int) -> Result<Vec<(i32, i32)>, i32> {
        let mut events = vec![epoll_event { events: 0, u64: 0 }; max];
        let epfd = self.epfd;
        // SAFETY: the array has room for so many events.
        let count = unsafe {
            epoll_wait::wait(
                self.index(),
                epfd,
                events.as_mut_ptr(),
                max as c_int,
                Timeout::from_ms(ms),
                &mut |events, max, left| (real().epoll_wait)(epfd, events, max, left.ms()),
            )
        };
        let count = usize::try_from(count).map_err(|_| errno())?;
        let mut found: Vec<(i32, i32)> = events[..count]
            .iter()
            .map(|event| (event.u64 as i32, event.events as i32))
            .collect();
        found.sort_unstable();
        Ok(found)
    }
}

/// How a registration is told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Told {
    Level,
    Edge,
    Once,
}

impl Told {
    fn events(self) -> c_int {
        libc::EPOLLIN
            | match self {
                Self::Level => 0,
                Self::Edge => libc::EPOLLET,
                Self::Once => libc::EPOLLONESHOT,
            }
    }

    /// Whether what was reported is reported again while nothing was read and nothing came.
    fn again(self) -> bool {
        self == Self::Level
    }
}

#[test]
fn epoll_reports_rings_as_the_kernel_reports_sockets() {
    let _places = PLACES.lock().unwrap();
    for has_lane in [false, true] {
        for told in [Told::Level, Told::Edge, Told::Once] {
            on_both(|which, machine, pair| {
                within(machine, || {
                    pair.track();
                    let instance = Instance::new();
                    if has_lane {
                        pair.attach();
                        pair.look();
                    }
                    let what = format!("{which:?} lane {has_lane} {told:?}");
                    let report = Ok(vec![(pair.a, libc::EPOLLIN)]);
                    assert_eq!(
                        instance.ctl(libc::EPOLL_CTL_ADD, pair.a, told.events()),
                        Ok(0)
                    );
                    let twice = instance.ctl(libc::EPOLL_CTL_ADD, pair.a, told.events());
                    assert_eq!(twice, Err(libc::EEXIST), "{what}");
                    assert_eq!(instance.wait(8, 0), Ok(vec![]), "{what}");
                    write(pair.b, b"one");
                    assert_eq!(instance.wait(8, -1), report, "{what}");
                    let again = instance.wait(8, 0);
                    assert_eq!(again == report, told.again(), "{what}: {again:?}");
                    write(pair.b, b"two");
                    let news = instance.wait(8, 0);
                    assert_eq!(news == report, told != Told::Once, "{what}: {news:?}");
                    assert_eq!(
                        instance.ctl(libc::EPOLL_CTL_MOD, pair.a, told.events()),
                        Ok(0)
                    );
                    assert_eq!(instance.wait(8, -1), report, "armed anew: {what}");
                    assert_eq!(read(pair.a), b"onetwo", "{what}");
                    assert_eq!(instance.wait(8, 0), Ok(vec![]), "{what}");
                    assert_eq!(instance.ctl(libc::EPOLL_CTL_DEL, pair.a, 0), Ok(0));
                    write(pair.b, b"three");
                    assert_eq!(instance.wait(8, 0), Ok(vec![]), "taken out: {what}");
                    let gone = instance.ctl(libc::EPOLL_CTL_DEL, pair.a, 0);
                    assert_eq!(gone, Err(libc::ENOENT), "{what}");
                    descriptors::close(instance.epfd);
                });
            });
        }
    }
}

/// A program's loop around an instance, for one connection whose peer writes `rounds` messages: what was read, and
/// the errors on the way.
fn served(
    machine: &mut Machine,
    pair: &Pair,
    told: Told,
    fault: (usize, Fault),
) -> Option<(Vec<u8>, Vec<i32>)> {
    let instance = within(machine, || {
        with_lane(pair);
        Instance::new()
    })?;
    (machine.calls, machine.fault) = (0, Some(fault));
    within(machine, || {
        let (mut got, mut errors) = (Vec::new(), Vec::new());
        let mut op = libc::EPOLL_CTL_ADD;
        for round in 0..4_u8 {
            for attempt in 0.. {
                assert!(attempt < 4, "an error that stays");
                match instance.ctl(op, pair.a, told.events()) {
                    Ok(_) => break,
                    Err(number) => errors.push(number),
                }
            }
            op = libc::EPOLL_CTL_MOD;
            write(pair.b, &[round; 3]);
            for attempt in 0.. {
                assert!(
                    attempt < 4,
                    "{told:?} {fault:?}: round {round} was not told: {errors:?}"
                );
                match instance.wait(8, 1000) {
                    Ok(events) if events.is_empty() => errors.push(0),
                    Ok(_) => break,
                    Err(number) => errors.push(number),
                }
            }
            got.extend(read(pair.a));
        }
        (got, errors)
    })
}

#[test]
fn whatever_goes_wrong_in_an_epoll_call_every_message_is_told() {
    let _places = PLACES.lock().unwrap();
    for which in [Which::Fake, Which::Real] {
        for told in [Told::Level, Told::Edge, Told::Once] {
            for number in [libc::EINTR, libc::ENOMEM] {
                for at in 0..24 {
                    let fault = (at, Fault::Errno(number));
                    let (outcome, log) = on(which, |machine, pair| {
                        let outcome = served(machine, pair, told, fault);
                        (outcome, machine.log.clone())
                    });
                    let Some((got, errors)) = outcome else {
                        return;
                    };
                    let what = format!("{which:?} {told:?} {fault:?}: {errors:?} {log:?}");
                    assert_eq!(got, [0, 0, 0, 1, 1, 1, 2, 2, 2, 3, 3, 3], "{what}");
                    assert!(errors.iter().all(|it| *it == number), "{what}");
                    assert!(errors.len() <= 1, "{what}");
                }
            }
        }
    }
}
