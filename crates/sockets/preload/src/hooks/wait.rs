//! Waiting: poll, select and epoll.

use core::ffi::{c_int, c_ulong};
use core::ptr::null;
use libc::{epoll_event, fd_set, nfds_t, pollfd, sigset_t, size_t, timespec, timeval};
use sluice_preload_core::epoll::{self, Timeout};
use sluice_preload_core::fds::{self, Entry};
use sluice_preload_core::memory::LOWEST_ADDRESS;
use sluice_preload_core::real::real;
use sluice_preload_core::{epoll_wait, poll as poll_core, this_process};

/// The kernel refuses a poll of more entries than that (poll(2)).
fn open_files_max() -> nfds_t {
    let mut limit = libc::rlimit {
        rlim_cur: 0,
        rlim_max: 0,
    };
    // SAFETY: the call writes one struct.
    unsafe { libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut limit) };
    limit.rlim_cur
}

/// The entries of a poll that concerns us.
///
/// # Safety
/// As poll(2).
unsafe fn entries<'a>(entries: *mut pollfd, count: nfds_t) -> Option<&'a mut [pollfd]> {
    let is_refused = |count| count > fds::FDS_MAX as nfds_t && count > open_files_max();
    if count == 0 || (entries as usize) < LOWEST_ADDRESS || is_refused(count) {
        return None;
    }
    // SAFETY: the caller's promise.
    let entries = unsafe { core::slice::from_raw_parts_mut(entries, count as usize) };
    (poll_core::concerns(entries) && !this_process::is_vfork_child()).then_some(entries)
}

/// The time as a timeout; `None` for one that the kernel refuses.
pub(super) fn timeout_of(time: &timespec) -> Option<Timeout> {
    if !(0..1_000_000_000).contains(&time.tv_nsec) {
        return None;
    }
    let seconds = u64::try_from(time.tv_sec).ok()?;
    Some(Timeout::Ns(
        seconds
            .saturating_mul(1_000_000_000)
            .saturating_add(time.tv_nsec as u64),
    ))
}

fn timespec_of(timeout: Timeout) -> Option<timespec> {
    match timeout {
        Timeout::Never => None,
        Timeout::Ns(ns) => Some(timespec {
            tv_sec: (ns / 1_000_000_000) as i64,
            tv_nsec: (ns % 1_000_000_000) as i64,
        }),
    }
}

fn pointer_to(time: &Option<timespec>) -> *const timespec {
    time.as_ref().map_or(null(), |time| &raw const *time)
}

hooks! {
    fn poll(fds: *mut pollfd, count: nfds_t, ms: c_int) -> c_int {
        // SAFETY: the program's own arguments.
        match unsafe { entries(fds, count) } {
            Some(entries) => poll_core::poll(entries, Timeout::from_ms(ms), &mut |entries, left| {
                // SAFETY: a slice.
                unsafe { (real().poll)(entries.as_mut_ptr(), entries.len() as c_ulong, left.ms()) }
            }),
            // SAFETY: the program's own arguments.
            None => unsafe { (real().poll)(fds, count, ms) },
        }
    }

    fn ppoll(
        fds: *mut pollfd,
        count: nfds_t,
        time: *const timespec,
        mask: *const sigset_t
    ) -> c_int {
        // SAFETY: the program's own arguments.
        let timeout = match unsafe { time.as_ref() } {
            None => Some(Timeout::Never),
            Some(time) => timeout_of(time),
        };
        // SAFETY: the program's own arguments.
        match (unsafe { entries(fds, count) }, timeout) {
            (Some(entries), Some(timeout)) => {
                poll_core::poll(entries, timeout, &mut |entries, left| {
                    // SAFETY: the program's own mask.
                    unsafe { poll_core::ppoll(entries, left, mask) }
                })
            }
            // SAFETY: the program's own arguments.
            _ => unsafe { (real().ppoll)(fds, count, time, mask) },
        }
    }

    fn __poll_chk(fds: *mut pollfd, count: nfds_t, ms: c_int, _room: size_t) -> c_int {
        // SAFETY: the program's own arguments.
        unsafe { poll(fds, count, ms) }
    }

    fn __ppoll_chk(
        fds: *mut pollfd,
        count: nfds_t,
        time: *const timespec,
        mask: *const sigset_t,
        _room: size_t
    ) -> c_int {
        // SAFETY: the program's own arguments.
        unsafe { ppoll(fds, count, time, mask) }
    }

    fn select(
        count: c_int,
        read: *mut fd_set,
        write: *mut fd_set,
        except: *mut fd_set,
        time: *mut timeval
    ) -> c_int {
        let sets = [read, write, except];
        // SAFETY: the program's own arguments.
        unsafe {
            let timeout = match time.as_ref() {
                None => Some(Timeout::Never),
                Some(time) if time.tv_sec < 0 || time.tv_usec < 0 => None,
                Some(time) => Some(Timeout::Ns(
                    (time.tv_sec as u64)
                        .saturating_mul(1_000_000_000)
                        .saturating_add(time.tv_usec as u64 * 1000),
                )),
            };
            match timeout {
                Some(timeout)
                    if poll_core::select_concerns(count, sets) && !this_process::is_vfork_child() =>
                {
                    let start = poll_core::now_ns();
                    let result = poll_core::select(count, sets, timeout, null());
                    // Linux leaves the time that was not slept (select(2)).
                    if let (Some(time), Timeout::Ns(left)) =
                        (time.as_mut(), timeout.after(poll_core::now_ns() - start))
                    {
                        time.tv_sec = (left / 1_000_000_000) as i64;
                        time.tv_usec = (left % 1_000_000_000 / 1000) as i64;
                    }
                    result
                }
                _ => (real().select)(count, read, write, except, time),
            }
        }
    }

    fn pselect(
        count: c_int,
        read: *mut fd_set,
        write: *mut fd_set,
        except: *mut fd_set,
        time: *const timespec,
        mask: *const sigset_t
    ) -> c_int {
        let sets = [read, write, except];
        // SAFETY: the program's own arguments.
        unsafe {
            let timeout = match time.as_ref() {
                None => Some(Timeout::Never),
                Some(time) => timeout_of(time),
            };
            match timeout {
                Some(timeout)
                    if poll_core::select_concerns(count, sets) && !this_process::is_vfork_child() =>
                {
                    poll_core::select(count, sets, timeout, mask)
                }
                _ => (real().pselect)(count, read, write, except, time, mask),
            }
        }
    }

    fn epoll_create(size: c_int) -> c_int {
        // SAFETY: the program's own argument.
        let fd = unsafe { (real().epoll_create)(size) };
        if fd >= 0 && !this_process::is_vfork_child() {
            sluice_preload_core::descriptors::instance_created(fd);
        }
        fd
    }

    fn epoll_create1(flags: c_int) -> c_int {
        // SAFETY: the program's own argument.
        let fd = unsafe { (real().epoll_create1)(flags) };
        if fd >= 0 && !this_process::is_vfork_child() {
            sluice_preload_core::descriptors::instance_created(fd);
        }
        fd
    }

    fn epoll_ctl(epfd: c_int, op: c_int, fd: c_int, event: *mut epoll_event) -> c_int {
        // SAFETY: the program's own arguments.
        unsafe {
            match fds::get(epfd) {
                Entry::Epoll { index } => epoll::ctl(index, epfd, op, fd, event),
                _ => {
                    if op == libc::EPOLL_CTL_ADD {
                        epoll::watched_from_outside(fd);
                    }
                    (real().epoll_ctl)(epfd, op, fd, event)
                }
            }
        }
    }

    fn epoll_wait(epfd: c_int, events: *mut epoll_event, max: c_int, ms: c_int) -> c_int {
        // SAFETY: the program's own arguments.
        unsafe {
            match fds::get(epfd) {
                Entry::Epoll { index } => {
                    epoll_wait::wait(index, epfd, events, max, Timeout::from_ms(ms), &mut |e, n, left| {
                        (real().epoll_wait)(epfd, e, n, left.ms())
                    })
                }
                _ => (real().epoll_wait)(epfd, events, max, ms),
            }
        }
    }

    fn epoll_pwait(
        epfd: c_int,
        events: *mut epoll_event,
        max: c_int,
        ms: c_int,
        mask: *const sigset_t
    ) -> c_int {
        // SAFETY: the program's own arguments.
        unsafe {
            match fds::get(epfd) {
                Entry::Epoll { index } => {
                    epoll_wait::wait(index, epfd, events, max, Timeout::from_ms(ms), &mut |e, n, left| {
                        (real().epoll_pwait)(epfd, e, n, left.ms(), mask)
                    })
                }
                _ => (real().epoll_pwait)(epfd, events, max, ms, mask),
            }
        }
    }

    fn epoll_pwait2(
        epfd: c_int,
        events: *mut epoll_event,
        max: c_int,
        time: *const timespec,
        mask: *const sigset_t
    ) -> c_int {
        // SAFETY: the program's own arguments.
        unsafe {
            let timeout = match time.as_ref() {
                None => Some(Timeout::Never),
                Some(time) => timeout_of(time),
            };
            match (fds::get(epfd), timeout) {
                (Entry::Epoll { index }, Some(timeout)) => {
                    epoll_wait::wait(index, epfd, events, max, timeout, &mut |e, n, left| {
                        let time = timespec_of(left);
                        (real().epoll_pwait2)(epfd, e, n, pointer_to(&time), mask)
                    })
                }
                _ => (real().epoll_pwait2)(epfd, events, max, time, mask),
            }
        }
    }
}

aliases! {
    fn __poll(fds: *mut pollfd, count: nfds_t, ms: c_int) -> c_int = poll;
    fn __select(
        count: c_int,
        read: *mut fd_set,
        write: *mut fd_set,
        except: *mut fd_set,
        time: *mut timeval
    ) -> c_int = select;
}
