//! poll, select and their kin over tracked connections.
//!
//! The call sleeps in the kernel, on the program's own descriptors; what rings have is merged.
#![allow(unsafe_code)]

use crate::epoll::{self, Glance, Timeout};
use crate::epoll_wait::Awake;
use crate::fds::{self, Entry};
use crate::memory::Scratch;
use crate::real::{cancellation_point, errno, real, set_errno};
use crate::waiting::Wait;
use crate::{conn, messages, own_status, this_process};
use core::ffi::{c_int, c_ulong};
use core::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use libc::{fd_set, pollfd, sigset_t, timespec};
use sluice_lane::end::{End, State};
use sluice_lane::spin::{Gaps, Spinner};
use sluice_lane::wait::{self, Announced, Ready, Refused};
use sluice_waiting::kernel::Next;
use sluice_waiting::limits::LIMITS;

const IN: i16 = libc::POLLIN | libc::POLLRDNORM;
const OUT: i16 = libc::POLLOUT | libc::POLLWRNORM;
/// Entries whose bookkeeping fits the stack.
const SMALL: usize = 4;

/// Gaps between the start of such a wait and its end, of the whole process.
static GAPS: Gaps = Gaps::new();
static TURN: AtomicU32 = AtomicU32::new(0);
/// The last look at the kernel of a wait that polled found something, of the whole process: the next
/// wait begins with one.
static KERNEL_ANSWERS: AtomicBool = AtomicBool::new(false);

pub use sluice_lane::clock::now_ns;

/// Whether any of the entries is ours.
pub fn concerns(entries: &[pollfd]) -> bool {
    entries
        .iter()
        .any(|entry| matches!(fds::get(entry.fd), Entry::Conn { .. } | Entry::Epoll { .. }))
}

/// One entry while the call lasts.
#[derive(Clone, Copy)]
struct Slot {
    /// What the kernel is asked.
    asked: pollfd,
    /// On which connection a sleep is announced: the descriptor may name another one when the
    /// call returns.
    announced: Option<(&'static End, Announced)>,
}

const EMPTY: Slot = Slot {
    asked: pollfd {
        fd: -1,
        events: 0,
        revents: 0,
    },
    announced: None,
};

/// What rings say of all entries.
#[derive(Default)]
struct Rings {
    /// Entries with something to report.
    ready: usize,
    /// Of some entries only the kernel knows whether there is something (more) to report.
    ask: bool,
    /// Nobody may sleep now.
    hot: bool,
    /// There are lanes.
    lanes: bool,
}

/// `poll` on entries of which some are ours. `kernel` is the real call.
pub fn poll(
    entries: &mut [pollfd],
    timeout: Timeout,
    kernel: &mut dyn FnMut(&mut [pollfd], Timeout) -> c_int,
) -> c_int {
    cancellation_point();
    if entries.len() <= SMALL {
        let mut slots = [EMPTY; SMALL];
        return poll_with(entries, &mut slots, timeout, kernel);
    }
    let Some(mut scratch) = Scratch::take(entries.len() * size_of::<Slot>()) else {
        set_errno(libc::ENOMEM);
        return -1;
    };
    poll_with(entries, scratch.fill(entries.len(), EMPTY), timeout, kernel)
}

fn poll_with(
    entries: &mut [pollfd],
    slots: &mut [Slot],
    timeout: Timeout,
    kernel: &mut dyn FnMut(&mut [pollfd], Timeout) -> c_int,
) -> c_int {
    let mut wait = Wait::new(timeout);
    let mut awake = Awake::default();
    loop {
        messages::check();
        let rings = look(entries, slots);
        if rings.ready > 0 {
            wait.found(&GAPS);
            let turn = TURN.fetch_add(1, Ordering::Relaxed);
            if !rings.ask && !u64::from(turn).is_multiple_of(LIMITS.kernel_turn) {
                return rings.ready as c_int;
            }
            // A signal that ends the look leaves what rings have.
            return ask(entries, slots, Timeout::Ns(0), kernel).max(rings.ready as c_int);
        }
        if !wait.has_begun() && rings.lanes && rings.ask && KERNEL_ANSWERS.load(Ordering::Relaxed) {
            let found = ask(entries, slots, Timeout::Ns(0), kernel);
            if found != 0 {
                return found;
            }
            KERNEL_ANSWERS.store(false, Ordering::Relaxed);
        }
        match wait.next(&GAPS, rings.lanes, rings.hot) {
            (Next::Rings, ..) => {}
            (Next::Kernel, ..) => {
                let found = ask(entries, slots, Timeout::Ns(0), kernel);
                if found != 0 {
                    KERNEL_ANSWERS.store(true, Ordering::Relaxed);
                    return found;
                }
            }
            (Next::Last, ..) => return ask(entries, slots, Timeout::Ns(0), kernel),
            (Next::Awake, left, _) => {
                let found = ask(entries, slots, awake.pause().min(left), kernel);
                if found != 0 {
                    return found;
                }
            }
            (Next::Sleep, left, spinner) => {
                if let Some(result) = sleep(entries, slots, left, spinner, kernel) {
                    return result;
                }
                // Rings forbade it; the kernel may have something all the same.
                let found = ask(entries, slots, Timeout::Ns(0), kernel);
                if found != 0 {
                    return found;
                }
            }
        }
    }
}

fn lane_of(fd: i32, events: i16) -> Option<Ready> {
    let conn = conn::get(fd)?;
    if conn.end.state() != State::Attached {
        // Before the first byte, waiting for room is waiting for the connection to be made.
        if events & IN != 0 || conn.end.has_traffic() {
            conn.end.note_wait();
        }
        return None;
    }
    wait::ready(conn.end, conn.generation, fd)
}

/// Writes what rings have into `entries`, and what is left for the kernel into `slots`. Apart from its caller for the stack
/// of a sleep.
#[inline(never)]
fn look(entries: &mut [pollfd], slots: &mut [Slot]) -> Rings {
    let mut rings = Rings::default();
    for (entry, slot) in entries.iter_mut().zip(slots.iter_mut()) {
        slot.asked = *entry;
        entry.revents = 0;
        match fds::get(entry.fd) {
            Entry::Conn { .. } => {
                let Some(lane) = lane_of(entry.fd, entry.events) else {
                    rings.ask = true;
                    continue;
                };
                rings.lanes = true;
                rings.ask |= lane.kernel_adds
                    || lane.kernel_next
                    || lane.writable.is_none() && entry.events & OUT != 0
                    // A peer that was killed has not left the ring.
                    || entry.events & libc::POLLRDHUP != 0;
                if lane.readable {
                    entry.revents |= entry.events & IN;
                }
                if lane.error {
                    entry.revents |= libc::POLLERR;
                }
                match lane.writable {
                    Some(true) => entry.revents |= entry.events & OUT,
                    Some(false) => {
                        slot.asked.events &= !OUT;
                        rings.hot |= entry.events & OUT != 0;
                    }
                    None => {}
                }
                if lane.kernel_waits {
                    slot.asked.events &= !IN;
                }
                rings.hot |= lane.in_flight && entry.events & IN != 0;
            }
            Entry::Epoll { index } => {
                rings.lanes = true;
                match epoll::glance(index, 1) {
                    Glance::Ready => entry.revents |= entry.events & IN,
                    Glance::Hot => rings.hot = true,
                    Glance::Nothing => rings.ask = true,
                }
            }
            _ => rings.ask |= entry.fd >= 0,
        }
        rings.ready += usize::from(entry.revents != 0);
    }
    rings
}

/// Asks the kernel, and merges what rings have.
fn ask(
    entries: &mut [pollfd],
    slots: &mut [Slot],
    timeout: Timeout,
    kernel: &mut dyn FnMut(&mut [pollfd], Timeout) -> c_int,
) -> c_int {
    // The kernel sees the asked events in the program's own array, for the time of the call.
    for (entry, slot) in entries.iter_mut().zip(slots.iter_mut()) {
        core::mem::swap(&mut entry.events, &mut slot.asked.events);
        slot.asked.revents = entry.revents;
        entry.revents = 0;
    }
    let result = kernel(entries, timeout);
    let answered_ns = if result > 0 { now_ns() } else { 0 };
    let mut count = 0;
    for (entry, slot) in entries.iter_mut().zip(slots.iter_mut()) {
        core::mem::swap(&mut entry.events, &mut slot.asked.events);
        if entry.revents & IN != 0
            && let Some(conn) = conn::get(entry.fd)
            && !wait::assure(conn.end, conn.generation)
        {
            entry.revents &= !IN;
        }
        entry.revents |= slot.asked.revents;
        // What was written to a ring before something that the kernel reports is reported with it.
        if answered_ns != 0
            && entry.events & IN & !entry.revents != 0
            && let Some(conn) = conn::get(entry.fd)
            && conn.end.state() == State::Attached
            && let Some(lane) = wait::ready(conn.end, conn.generation, conn.fd)
            && lane.readable
            && lane.written_ns < answered_ns
        {
            entry.revents |= entry.events & IN;
        }
        count += c_int::from(entry.revents != 0);
    }
    if result < 0 { result } else { count }
}

/// Sleeps in the kernel; `None`: look again. Apart from its caller for the stack of a look at lanes.
#[inline(never)]
fn sleep(
    entries: &mut [pollfd],
    slots: &mut [Slot],
    left: Timeout,
    spinner: &Spinner,
    kernel: &mut dyn FnMut(&mut [pollfd], Timeout) -> c_int,
) -> Option<c_int> {
    let (mut may_sleep, mut is_interrupted) = (true, false);
    let mut instances = Vec::new();
    for (entry, slot) in entries.iter().zip(slots.iter_mut()) {
        match fds::get(entry.fd) {
            Entry::Conn { index, generation } if entry.events & IN != 0 => {
                let Some(conn) = conn::from_entry(entry.fd, index, generation) else {
                    continue;
                };
                match wait::announce(conn.end, generation) {
                    Ok(announced) => slot.announced = Some((conn.end, announced)),
                    Err(refused) => {
                        may_sleep = false;
                        is_interrupted = refused == Refused::Reentered;
                    }
                }
            }
            Entry::Epoll { index } => {
                instances.push(epoll::enter_sleep(index));
                may_sleep &= epoll::glance(index, 1) == Glance::Nothing;
            }
            _ => {}
        }
        if !may_sleep {
            break;
        }
    }
    let result = if may_sleep {
        let result = ask(entries, slots, left, kernel);
        GAPS.record(spinner.gap_with_sleep_ns(now_ns().saturating_sub(spinner.now_ns())));
        Some(result)
    } else {
        None
    };
    let before = errno();
    for slot in slots.iter_mut() {
        if let Some((end, announced)) = slot.announced.take() {
            wait::withdraw(end, announced);
        }
    }
    for asleep in &instances {
        epoll::leave_sleep(asleep);
    }
    drop(instances);
    if is_interrupted {
        // What is waited for comes only behind the handler that waits.
        set_errno(libc::EINTR);
        return Some(-1);
    }
    set_errno(before);
    result
}

/// Descriptors that fit an `fd_set` of the C library. Programs may have larger ones.
const SET_FDS: c_int = libc::FD_SETSIZE as c_int;
const WORD_BITS: c_int = c_ulong::BITS as c_int;
/// What poll is asked for a descriptor of each set: read, write and except.
const ASKED: [i16; 3] = [libc::POLLIN, libc::POLLOUT, libc::POLLPRI];

/// The three sets of a select, any of which may be null.
#[derive(Clone, Copy)]
struct Sets([*mut c_ulong; 3]);

impl Sets {
    fn of(sets: [*mut fd_set; 3]) -> Self {
        Self(sets.map(<*mut fd_set>::cast))
    }

    /// A word of each set; 0 of one that is null.
    ///
    /// # Safety
    /// The sets have such a word.
    unsafe fn words(self, at: c_int) -> [c_ulong; 3] {
        self.0.map(|set| match set.is_null() {
            true => 0,
            // SAFETY: the caller's promise.
            false => unsafe { set.add(at as usize).read_unaligned() },
        })
    }

    /// # Safety
    /// The set `which` is not null, and has a bit for the descriptor.
    unsafe fn add(self, which: usize, fd: c_int) {
        // SAFETY: the caller's promise.
        unsafe {
            let word = self.0[which].add((fd / WORD_BITS) as usize);
            word.write_unaligned(word.read_unaligned() | 1 << (fd % WORD_BITS));
        }
    }

    /// # Safety
    /// The sets have so many words.
    unsafe fn clear(self, words: c_int) {
        for set in self.0.into_iter().filter(|set| !set.is_null()) {
            // SAFETY: the caller's promise.
            unsafe {
                set.cast::<u8>()
                    .write_bytes(0, words as usize * size_of::<c_ulong>())
            };
        }
    }
}

/// Whether a select concerns us.
///
/// # Safety
/// The sets are null or such as the kernel would read: a bit for each of `count` descriptors, or for as many as the
/// kernel's table has room for.
pub unsafe fn select_concerns(count: c_int, sets: [*mut fd_set; 3]) -> bool {
    let sets = Sets::of(sets);
    let mut found = false;
    fds::for_each(0, count.saturating_sub(1), |fd, entry| {
        if matches!(entry, Entry::Conn { .. } | Entry::Epoll { .. }) {
            // SAFETY: the caller's promise: the descriptor is below `count`, and in the table.
            let words = unsafe { sets.words(fd / WORD_BITS) };
            found |= words.iter().any(|word| word >> (fd % WORD_BITS) & 1 != 0);
        }
    });
    found
}

/// How many descriptors a select is about. The kernel looks at no more than its table has room for, and the sets need
/// have no more, whatever the program says.
fn select_count(count: c_int) -> c_int {
    if count <= SET_FDS {
        return count;
    }
    let table = match this_process::is_confined() {
        true => None,
        false => own_status::field(b"FDSize:").and_then(|size| c_int::try_from(size).ok()),
    };
    // Without /proc: as far as descriptors of ours are known to go.
    let known = || SET_FDS.max(fds::highest() as c_int + 1);
    count.min(table.unwrap_or_else(known))
}

/// `select` and `pselect` by way of ppoll. `sets` are read, write and except.
///
/// # Safety
/// As [`select_concerns`].
pub unsafe fn select(
    count: c_int,
    sets: [*mut fd_set; 3],
    timeout: Timeout,
    mask: *const sigset_t,
) -> c_int {
    let (sets, count) = (Sets::of(sets), select_count(count));
    let words = (count + WORD_BITS - 1) / WORD_BITS;
    // Bits behind the last descriptor are nobody's.
    let used = |word: c_int| {
        // SAFETY: the caller's promise.
        let bits = unsafe { sets.words(word) };
        let left = count - word * WORD_BITS;
        let all = if left < WORD_BITS {
            (1 << left) - 1
        } else {
            c_ulong::MAX
        };
        bits.map(|bits| bits & all)
    };
    let some = |[read, write, except]: [c_ulong; 3]| read | write | except;
    let wanted = (0..words)
        .map(|word| some(used(word)).count_ones() as usize)
        .sum();
    let mut few = [EMPTY.asked; SMALL];
    let mut many = None;
    let entries = if wanted <= SMALL {
        &mut few[..wanted]
    } else {
        let Some(scratch) = Scratch::take(wanted * size_of::<pollfd>()) else {
            set_errno(libc::ENOMEM);
            return -1;
        };
        many.insert(scratch).fill(wanted, EMPTY.asked)
    };
    let mut free = entries.iter_mut();
    for word in 0..words {
        let bits = used(word);
        let mut rest = some(bits);
        while rest != 0 {
            let bit = rest.trailing_zeros();
            rest &= rest - 1;
            let asked = bits
                .iter()
                .zip(ASKED)
                .filter(|(bits, _)| *bits >> bit & 1 != 0);
            // The sets are the program's: another thread may have changed them meanwhile.
            if let Some(entry) = free.next() {
                entry.fd = word * WORD_BITS + bit as c_int;
                entry.events = asked.fold(0, |events, (_, asked)| events | asked);
            }
        }
    }
    let begun_ns = now_ns();
    let mut left = timeout;
    loop {
        // SAFETY: the caller's promise.
        let result = poll(entries, left, &mut |entries, left| unsafe {
            ppoll(entries, left, mask)
        });
        if result < 0 {
            return result;
        }
        if entries.iter().any(|e| e.revents & libc::POLLNVAL != 0) {
            set_errno(libc::EBADF);
            return -1;
        }
        if result == 0 || entries.iter().any(|entry| reports(entry) != [false; 3]) {
            break;
        }
        // An error or the end of a connection that select does not report here, and poll would again.
        for entry in entries.iter_mut().filter(|entry| entry.revents != 0) {
            (entry.fd, entry.revents) = (-1, 0);
        }
        left = timeout.after(now_ns() - begun_ns);
    }
    // SAFETY: the caller's promise.
    unsafe { sets.clear(words) };
    let mut total = 0;
    for entry in entries.iter() {
        for (which, _) in reports(entry)
            .iter()
            .enumerate()
            .filter(|(_, is_so)| **is_so)
        {
            // SAFETY: the descriptor was in that set.
            unsafe { sets.add(which, entry.fd) };
            total += 1;
        }
    }
    total
}

/// Which of the sets a descriptor is in that poll has reported so.
fn reports(entry: &pollfd) -> [bool; 3] {
    // What counts for which set: the kernel's POLLIN_SET, POLLOUT_SET and POLLEX_SET.
    const COUNTS: [i16; 3] = [
        IN | libc::POLLRDBAND | libc::POLLHUP | libc::POLLERR,
        OUT | libc::POLLWRBAND | libc::POLLERR,
        libc::POLLPRI,
    ];
    core::array::from_fn(|which| {
        entry.events & ASKED[which] != 0 && entry.revents & COUNTS[which] != 0
    })
}

/// The real ppoll.
///
/// # Safety
/// `mask` is null or a signal set.
pub unsafe fn ppoll(entries: &mut [pollfd], timeout: Timeout, mask: *const sigset_t) -> c_int {
    let time = match timeout {
        Timeout::Never => None,
        Timeout::Ns(ns) => Some(timespec {
            tv_sec: (ns / 1_000_000_000) as i64,
            tv_nsec: (ns % 1_000_000_000) as i64,
        }),
    };
    let time = time
        .as_ref()
        .map_or(core::ptr::null(), |time| &raw const *time);
    // SAFETY: the entries are a slice; time and mask are null or valid.
    unsafe { (real().ppoll)(entries.as_mut_ptr(), entries.len() as u64, time, mask) }
}
