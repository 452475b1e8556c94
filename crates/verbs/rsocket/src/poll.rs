//! `rpoll` and `rselect`, over rsockets and other descriptors together.

use std::ffi::c_int;
use std::sync::Arc;
use std::time::{Duration, Instant};

use libc::{fd_set, nfds_t, pollfd, timeval};

use super::socket::{Phase, Socket, State};
use super::{Kind, find};
use sluice_rdmacm::{Errno, answer};

/// How long a call polls before it sleeps.
const POLLING: Duration = Duration::from_micros(10);

/// # Safety
/// As poll(2).
pub unsafe extern "C" fn rpoll(fds: *mut pollfd, count: nfds_t, timeout_ms: c_int) -> c_int {
    let items: &mut [pollfd] = if count == 0 {
        &mut []
    } else {
        // SAFETY: the caller's contract.
        unsafe { std::slice::from_raw_parts_mut(fds, count as usize) }
    };
    poll(items, timeout_ms)
}

fn poll(items: &mut [pollfd], timeout_ms: c_int) -> c_int {
    let started = Instant::now();
    let deadline = u64::try_from(timeout_ms)
        .ok()
        .map(|ms| started + Duration::from_millis(ms));
    let sockets: Vec<Option<Arc<Socket>>> = items
        .iter()
        .map(|item| match find(item.fd) {
            Some(Kind::Stream(socket)) => Some(socket),
            _ => None,
        })
        .collect();
    if sockets.iter().all(Option::is_none) {
        // SAFETY: the slice is a valid array of its length.
        return unsafe { libc::poll(items.as_mut_ptr(), items.len() as nfds_t, timeout_ms) };
    }
    loop {
        let ready = look(items, &sockets, None);
        let now = Instant::now();
        if ready != 0 || deadline.is_some_and(|deadline| now >= deadline) {
            return ready;
        }
        if now - started < POLLING {
            std::hint::spin_loop();
            continue;
        }
        let mut seen = Vec::with_capacity(items.len());
        let ready = look(items, &sockets, Some(&mut seen));
        let slept = match ready {
            0 => sleep(items, &sockets, deadline),
            _ => Ok(()),
        };
        for (socket, seen) in sockets.iter().flatten().zip(seen) {
            socket.wake_up(&mut socket.lock(), seen);
        }
        if ready != 0 {
            return ready;
        }
        if let Err(errno) = slept {
            return answer(Err(errno));
        }
    }
}

/// Fills in what is ready now. `asleep`: asks each socket's CQ for an event before it looks, so that the thread can
/// sleep then, and puts there what each socket's `wake_up` is told.
fn look(
    items: &mut [pollfd],
    sockets: &[Option<Arc<Socket>>],
    mut asleep: Option<&mut Vec<u64>>,
) -> c_int {
    let mut ready = 0;
    for (item, socket) in items.iter_mut().zip(sockets) {
        item.revents = 0;
        match socket {
            Some(socket) => {
                let mut state = socket.lock();
                if asleep.is_some() {
                    // One that cannot be armed is broken, which shows below.
                    let _ = state.arm();
                }
                socket.step(&mut state);
                item.revents = readiness(&mut state, socket, item.events);
                if let Some(seen) = asleep.as_deref_mut() {
                    seen.push(socket.fall_asleep(&mut state));
                }
            }
            None if item.fd >= 0 => {
                // SAFETY: one pollfd that lives through the call.
                unsafe { libc::poll(item, 1, 0) };
            }
            None => {}
        }
        ready += c_int::from(item.revents != 0);
    }
    ready
}

fn readiness(state: &mut State, socket: &Socket, wanted: i16) -> i16 {
    let mut ready = 0;
    match state.phase {
        Phase::Listening => {
            let mut item = pollfd {
                fd: socket.fd(),
                events: libc::POLLIN,
                revents: 0,
            };
            // SAFETY: one pollfd that lives through the call.
            unsafe { libc::poll(&raw mut item, 1, 0) };
            ready |= item.revents & libc::POLLIN;
        }
        Phase::Connected => {
            let closed = state.read_closed;
            if let Some(stream) = state.stream.as_mut() {
                if stream.readable() > 0 || stream.peer_closed || closed {
                    ready |= libc::POLLIN;
                }
                if stream.writable() {
                    ready |= libc::POLLOUT;
                }
            }
        }
        Phase::Ended => {
            ready |= libc::POLLIN | libc::POLLOUT;
            // Whoever waits for bytes gets those that came before the end first: programs take
            // POLLHUP for the end of everything (rstream does).
            let unread = state.stream.as_ref().is_some_and(|s| s.readable() > 0);
            if !unread || state.read_closed || wanted & libc::POLLIN == 0 {
                ready |= libc::POLLHUP;
            }
            if state.error != 0 {
                ready |= libc::POLLERR;
            }
        }
        Phase::New | Phase::Bound => ready |= libc::POLLOUT | libc::POLLHUP,
        Phase::Connecting => {}
        Phase::Closed => ready |= libc::POLLNVAL,
    }
    ready & (wanted | libc::POLLERR | libc::POLLHUP | libc::POLLNVAL)
}

/// Sleeps on everything that can make one of the items ready.
fn sleep(
    items: &[pollfd],
    sockets: &[Option<Arc<Socket>>],
    deadline: Option<Instant>,
) -> Result<(), Errno> {
    let mut all = Vec::with_capacity(2 * items.len());
    for (item, socket) in items.iter().zip(sockets) {
        match socket {
            Some(socket) => all.extend(socket.lock().descriptors(socket.fd())),
            None => all.push(*item),
        }
    }
    let timeout_ms = deadline.map_or(-1, |deadline| {
        let left = deadline.saturating_duration_since(Instant::now());
        c_int::try_from((left + Duration::from_micros(999)).as_millis()).unwrap_or(c_int::MAX)
    });
    // SAFETY: the vector is a valid array of its length.
    let ret = unsafe { libc::poll(all.as_mut_ptr(), all.len() as nfds_t, timeout_ms) };
    match ret {
        -1 => Err(Errno(sluice_verbs_calls::errno::errno())),
        _ => Ok(()),
    }
}

/// # Safety
/// As select(2).
pub unsafe extern "C" fn rselect(
    count: c_int,
    read: *mut fd_set,
    write: *mut fd_set,
    except: *mut fd_set,
    timeout: *mut timeval,
) -> c_int {
    let Ok(limit) = usize::try_from(count) else {
        return answer(Err(Errno::INVAL));
    };
    let sets = [
        (
            read,
            libc::POLLIN,
            libc::POLLIN | libc::POLLHUP | libc::POLLERR,
        ),
        (write, libc::POLLOUT, libc::POLLOUT | libc::POLLERR),
        (except, libc::POLLPRI, libc::POLLPRI),
    ];
    let mut items: Vec<pollfd> = Vec::new();
    for fd in 0..limit.min(libc::FD_SETSIZE) as c_int {
        let mut events = 0;
        for (set, event, _) in sets {
            // SAFETY: the caller's contract.
            if !set.is_null() && unsafe { libc::FD_ISSET(fd, set) } {
                events |= event;
            }
        }
        if events != 0 {
            items.push(pollfd {
                fd,
                events,
                revents: 0,
            });
        }
    }
    // SAFETY: the caller's contract.
    let timeout_ms = match unsafe { timeout.as_ref() } {
        None => -1,
        Some(time) => {
            let ms = i128::from(time.tv_sec) * 1000 + (i128::from(time.tv_usec) + 999) / 1000;
            c_int::try_from(ms.max(0)).unwrap_or(c_int::MAX)
        }
    };
    if poll(&mut items, timeout_ms) < 0 {
        return -1;
    }
    if items.iter().any(|item| item.revents & libc::POLLNVAL != 0) {
        return answer(Err(Errno::BADF));
    }
    let mut ready = 0;
    for (set, event, meaning) in sets {
        if set.is_null() {
            continue;
        }
        // SAFETY: the caller's contract.
        unsafe { libc::FD_ZERO(set) };
        for item in items
            .iter()
            .filter(|item| item.events & event != 0 && item.revents & meaning != 0)
        {
            // SAFETY: the caller's contract: a set that is not null is valid; the number is below FD_SETSIZE.
            unsafe { libc::FD_SET(item.fd, set) };
            ready += 1;
        }
    }
    ready
}
