//! Waiting on an epoll instance.
#![allow(unsafe_code)]

use crate::conn;
use crate::epoll::instance::{Instance, instance};
use crate::epoll::item::{Glance, IN, Kind, RDNORM};
use crate::epoll::oneshot::{Report, labelled};
use crate::epoll::sleepers::{enter_children, glance, withdraw, withdraw_all};
use crate::epoll::state::{State, tagged};
use crate::event_times::{EVENTS_MAX, Times};
use crate::lock::SpinGuard;
use crate::memory::LOWEST_ADDRESS;
use crate::messages;
use crate::real::{cancellation_point, set_errno};
use crate::waiting::{Timeout, Wait};
use core::ffi::c_int;
use core::sync::atomic::Ordering;
use libc::epoll_event;
use sluice_lane::clock::{now_ns, ticks};
use sluice_lane::spin::{Spinner, yield_processor};
use sluice_shmem::parking::ParkingTable;
use sluice_waiting::kernel::Next;
use sluice_waiting::limits::LIMITS;

/// [`Instance::turn`] behind a call that the kernel answered: it is asked first in the next one. Who has
/// much to do by TCP finds the next of it there, without polling. A call that would not poll asks it by
/// going to sleep. More than reports of one event make of it in between.
const KERNEL_FIRST: u32 = 16;
/// Looks at the kernel for one report, behind the first. A second one is for what went by rings during
/// the first.
const LOOKS_MAX: u32 = 3;
/// Processes whose writes without a lane one call looks at.
const WRITERS_MAX: usize = 4;
/// The kernel is asked behind what rings have if it was not for so long, whatever their writers' counts say:
/// for who writes without our eyes on him, or tells another process by memory that both share. In
/// [`ticks`], 10 to 50 µs.
const UNASKED_TICKS: u64 = 50_000;

/// A wait that must not sleep, because a sender is about to publish. With a local one that takes
/// a moment. sluiced, as the sender of a lane to another host, may have no link to that.
#[derive(Default)]
pub struct Awake {
    looks: u64,
}

impl Awake {
    /// How long the next look may sleep.
    pub fn pause(&mut self) -> Timeout {
        if self.looks < LIMITS.awake_looks {
            self.looks += 1;
            yield_processor();
            return Timeout::Ns(0);
        }
        messages::check_daemon();
        conn::check_resets();
        Timeout::Ns(LIMITS.awake_nap_ns)
    }
}

/// `epoll_wait` and its kin on an instance that we know. `kernel` is the program's own call, with
/// another timeout and another piece of its array.
///
/// # Safety
/// `events` has room for `max` events, as epoll_wait(2) demands.
pub unsafe fn wait(
    index: u32,
    epfd: c_int,
    events: *mut epoll_event,
    max: c_int,
    timeout: Timeout,
    kernel: &mut dyn FnMut(*mut epoll_event, c_int, Timeout) -> c_int,
) -> c_int {
    let this = instance(index);
    this.unlocked.note_wait();
    // A sleep is announced even on an instance that watches nothing of ours: another thread may
    // add a connection meanwhile, and its peer has to know.
    let is_empty_look = timeout == Timeout::Ns(0) && this.unlocked.item_count() == 0;
    if is_empty_look || max <= 0 || (events as usize) < LOWEST_ADDRESS {
        return kernel(events, max, timeout);
    }
    let mut waiter = Waiter {
        this,
        epfd,
        events,
        max: max as usize,
        kernel,
        call: 0,
        times: Times::default(),
        asked_ns: 0,
        has_kernels: false,
        unmarked: 0,
        parking_tables: [None; WRITERS_MAX],
        has_strangers: false,
        is_heard: false,
    };
    messages::check();
    let timeout = match waiter.wait_without_lanes(timeout) {
        Ok(result) => return result,
        Err(left) => left,
    };
    cancellation_point();
    let max = max.min(EVENTS_MAX as c_int);
    waiter.max = max as usize;
    let result = wait_with_lanes(&mut waiter, max, timeout);
    waiter.pass_on();
    result
}

/// The same where rings may have something.
fn wait_with_lanes(waiter: &mut Waiter, max: c_int, timeout: Timeout) -> c_int {
    let this = waiter.this;
    let turn = this.turn.load(Ordering::Relaxed);
    let sleeps = turn == KERNEL_FIRST && timeout != Timeout::Ns(0) && !this.gaps.may_poll();
    // With room for one event only the kernel is asked before the rings, and in turn with them.
    if turn >= KERNEL_FIRST && !sleeps || max == 1 && turn != 0 {
        this.turn.store(0, Ordering::Relaxed);
        waiter.tag_lanes();
        if let found @ 1.. = waiter.look_at_kernel() {
            if found == max {
                // It is the rings' turn.
                this.turn.store(0, Ordering::Relaxed);
            }
            return waiter.complete(found);
        }
    }
    let mut this_wait = Wait::new(timeout);
    let mut awake = Awake::default();
    loop {
        messages::check();
        let Some((count, hot, lanes)) = waiter.take_rings() else {
            return waiter.look_from_handler();
        };
        if count > 0 {
            this_wait.found(&this.gaps);
            if max == 1 {
                this.turn.fetch_add(1, Ordering::Relaxed);
            }
            return waiter.ask_behind(count);
        }
        match this_wait.next(&this.gaps, lanes, hot) {
            (Next::Rings, ..) => {}
            (Next::Kernel, ..) => {
                if let found @ 1.. = waiter.look_at_kernel() {
                    return waiter.complete(found);
                }
            }
            (Next::Last, ..) => {
                return match waiter.look_at_kernel() {
                    // Our tags may have brought something.
                    0 => match waiter.take_rings() {
                        Some((count @ 1.., ..)) => waiter.ask_behind(count),
                        _ => 0,
                    },
                    found => waiter.complete(found),
                };
            }
            (Next::Awake, left, _) => {
                if let found @ 1.. = waiter.look_at_kernel_for(awake.pause().min(left)) {
                    return waiter.complete(found);
                }
            }
            (Next::Sleep, left, spinner) => {
                if let Some(result) = waiter.sleep(left, spinner) {
                    return result;
                }
            }
        }
    }
}

struct Waiter<'k> {
    this: &'static Instance,
    epfd: c_int,
    events: *mut epoll_event,
    max: usize,
    kernel: &'k mut dyn FnMut(*mut epoll_event, c_int, Timeout) -> c_int,
    /// The number of this call, once it has taken reports.
    call: u64,
    /// When what each event reports was written.
    times: Times,
    /// When the kernel was last asked.
    asked_ns: u64,
    /// It had something for this call.
    has_kernels: bool,
    /// The events that the kernel reports of others than our lanes, a bit each.
    unmarked: u128,
    /// Of those who have written to the rings that are reported: when they wrote to a connection without a
    /// lane.
    parking_tables: [Option<ParkingTable>; WRITERS_MAX],
    /// There were others.
    has_strangers: bool,
    /// Whether the kernel was asked since it last took something from those who wrote to them, or gave them
    /// something.
    is_heard: bool,
}

impl Waiter<'_> {
    /// While no connection here has a lane the kernel knows everything. Only that somebody sleeps
    /// has to be known, should another thread add or attach a lane meanwhile. Where there are lanes
    /// the time that is left is the error.
    fn wait_without_lanes(&mut self, timeout: Timeout) -> Result<c_int, Timeout> {
        let is_sleep = timeout != Timeout::Ns(0);
        let is_plain = if is_sleep {
            self.this.unlocked.sleep_plainly()
        } else {
            !self.this.unlocked.heeds_rings()
        };
        if !is_plain {
            let Some(mut state) = self.this.lock() else {
                return Err(timeout);
            };
            if state.has_lanes() {
                return Err(timeout);
            }
            if is_sleep {
                state.announce_sleep();
            }
        }
        let start_ns = match timeout {
            Timeout::Ns(1..) if !is_plain => now_ns(),
            _ => 0,
        };
        let got = (self.kernel)(self.events, self.max as c_int, timeout);
        if is_sleep && !self.this.unlocked.wake_plainly() {
            withdraw(self.this);
        }
        if is_plain && !self.this.unlocked.heeds_rings() {
            return Ok(got);
        }
        if got <= 0 {
            return Ok(got);
        }
        match self.translate(0, got) {
            // The kernel reported only our tags, of a lane that came meanwhile.
            0 if start_ns == 0 => Err(timeout),
            0 => Err(timeout.after(now_ns().saturating_sub(start_ns))),
            kept => Ok(kept),
        }
    }

    /// In a signal handler on top of a call that has the instance in hand: what the kernel has at once. There is no sleeping
    /// here, as nobody would know of it.
    fn look_from_handler(&mut self) -> c_int {
        match (self.kernel)(self.events, self.max as c_int, Timeout::Ns(0)) {
            0 => {
                set_errno(libc::EINTR);
                -1
            }
            found => found,
        }
    }

    /// Reports what rings have. How many events, whether somebody must not sleep, and whether
    /// there are lanes at all. `None` in a signal handler on top of a wait.
    fn take_rings(&mut self) -> Option<(usize, bool, bool)> {
        let mut state = self.this.lock()?;
        if !state.has_lanes() {
            return Some((0, false, false));
        }
        // The kernel needs room, too.
        let room = (self.max - 1).max(1);
        let mut taken = self.deliver(&mut state, 0, room, Which::All, u64::MAX);
        // What was written during the look may come behind what the look had passed already. Its bit tells.
        if taken.count > 0 && taken.count < room && state.is_anyone_named() {
            let more = self.deliver(&mut state, taken.count, room, Which::All, now_ns());
            taken.count += more.count;
        }
        self.is_heard = !self.has_strangers
            && self
                .parking_tables
                .iter()
                .flatten()
                .all(|parking| state.writers.is_heard(*parking));
        Some((taken.count, taken.is_hot, true))
    }

    /// Puts registrations whose connections have got a lane under our tags: what the kernel reports of
    /// them otherwise lacks what only the lane knows.
    fn tag_lanes(&mut self) {
        let Some(mut state) = self.this.lock() else {
            return;
        };
        for at in 0..state.queue.len() {
            let number = state.queue[at];
            let is_due = state.item(number).is_some_and(|item| item.has_new_lane());
            if is_due {
                state.start_tagging(self.epfd, number);
            }
        }
    }

    /// Rings had `count` events. What was written to the kernel before is there by now, and reported with
    /// them: a program may have been told of both, in this order, by who wrote them. It is not asked if it was
    /// just now, and they have not used it since.
    fn ask_behind(&mut self, mut count: usize) -> c_int {
        let asked_ticks = self.this.asked_ticks.load(Ordering::Relaxed);
        let is_answered = self.is_heard && ticks().wrapping_sub(asked_ticks) < UNASKED_TICKS;
        if !is_answered && count < self.max {
            let found = self.look_behind(count);
            return self.complete((count + found) as c_int);
        }
        // The kernel's place.
        if count == self.max - 1
            && let Some(mut state) = self.this.lock()
        {
            let taken = self.deliver(&mut state, count, self.max, Which::All, now_ns());
            count += taken.count;
        }
        self.put_in_order(count);
        count as c_int
    }

    /// What the kernel reports at once, behind the first `count` events; how many more.
    fn look_behind(&mut self, count: usize) -> usize {
        let count_of = |parking: ParkingTable| (parking, parking.kernel_transfers());
        let counts = self.parking_tables.map(|parking| parking.map(count_of));
        let since_ns = now_ns();
        // SAFETY: `count` is at most the array's length.
        let rest = unsafe { self.events.add(count) };
        let room = self.max - count;
        let got = (self.kernel)(rest, room as c_int, Timeout::Ns(0));
        let kept = if got > 0 {
            let kept = self.translate(count, got) as usize;
            self.merge(count, kept)
        } else {
            0
        };
        let is_full = got == room as c_int;
        self.note_asked(count, kept, since_ns, is_full);
        if !is_full
            && !self.is_heard
            && let Some(mut state) = self.this.lock()
        {
            for (parking, transfers) in counts.into_iter().flatten() {
                state.writers.note(parking, transfers);
            }
        }
        kept
    }

    /// Takes what the kernel has said twice out of the `kept` events behind the first `count`: a program
    /// that reads once for each report would find nothing the second time. How many are left.
    fn merge(&mut self, count: usize, kept: usize) -> usize {
        if self.unmarked == 0 {
            return kept;
        }
        // SAFETY: so many events were written, and the array lives as long as the call.
        let events = unsafe { core::slice::from_raw_parts_mut(self.events, count + kept) };
        let (before, behind) = events.split_at_mut(count);
        let mut left = 0;
        for at in 0..kept {
            let event = behind[at];
            let same = |(at, known): &(usize, &mut epoll_event)| {
                self.unmarked & 1 << at != 0 && known.u64 == event.u64
            };
            match before.iter_mut().enumerate().find(same) {
                Some((_, known)) => known.events |= event.events,
                None => {
                    behind[left] = event;
                    self.times.set(count + left, self.times.get(count + at));
                    left += 1;
                }
            }
        }
        left
    }

    /// The kernel was asked at `since_ns` and reports `kept` events behind the first `count`. They had not come
    /// when it was last asked; whether rings had theirs before, since then, nobody knows. `is_full`: it may have
    /// more.
    fn note_asked(&mut self, count: usize, kept: usize, since_ns: u64, is_full: bool) {
        let before = self.this.asked_ns.load(Ordering::Relaxed);
        if !is_full {
            self.this.asked_ns.store(since_ns, Ordering::Relaxed);
            self.this.asked_ticks.store(ticks(), Ordering::Relaxed);
        }
        for at in count..(count + kept).min(EVENTS_MAX) {
            // Which may be known better.
            self.times.raise(at, before);
            self.unmarked |= 1 << at;
        }
        self.asked_ns = since_ns;
    }

    /// Completes a report of `found` events, behind which the kernel was asked last. What rings have comes on top:
    /// it may have been written before what the kernel reports. Of that it may also be later, and
    /// something in the kernel that comes before it not be here yet. So what was written after the kernel
    /// was asked is left for the next call, or the kernel is asked once more.
    fn complete(&mut self, found: c_int) -> c_int {
        let mut count = found as usize;
        for _ in 0..LOOKS_MAX {
            let answered_ns = now_ns();
            let Some(mut state) = self.this.lock() else {
                break;
            };
            if count == self.max || !state.has_lanes() {
                break;
            }
            // Only tagged ones are delivered: of others the kernel may just have reported the same.
            let until_ns = self.asked_ns;
            let taken = self.deliver(&mut state, count, self.max, Which::Tagged, until_ns);
            drop(state);
            count += taken.count;
            let is_later = taken.left_ns > answered_ns || !self.has_kernels;
            if is_later || count == self.max {
                break;
            }
            count += self.look_behind(count);
        }
        self.put_in_order(count);
        count as c_int
    }

    /// One of those who have written to rings. Where there are many, the last ones.
    fn note_writer(&mut self, parking: Option<ParkingTable>) {
        if parking.is_none() {
            self.has_strangers = true;
        } else if !self.parking_tables.contains(&parking) {
            self.has_strangers |= self.parking_tables[WRITERS_MAX - 1].is_some();
            self.parking_tables.rotate_right(1);
            self.parking_tables[0] = parking;
        }
    }

    /// Puts the events in the order of their writes, as far as that is known.
    fn put_in_order(&mut self, count: usize) {
        let count = count.min(EVENTS_MAX);
        if self.unmarked != 0 {
            let began = |parking: &Option<ParkingTable>| parking.map_or(0, |it| it.tcp_began_ns());
            let tcp_began_ns = self.parking_tables.iter().map(began).max().unwrap_or(0);
            for at in 0..count {
                if self.unmarked & 1 << at != 0 {
                    // What they wrote without a lane is most likely this.
                    self.times.raise(at, tcp_began_ns);
                }
            }
        }
        // SAFETY: `count` is at most the number of events in the array.
        unsafe { self.times.put_in_order(self.events, count) };
    }

    /// What the kernel reports at once. An error counts as nothing here; the sleep meets it
    /// again.
    fn look_at_kernel(&mut self) -> c_int {
        self.look_at_kernel_for(Timeout::Ns(0))
    }

    /// The same for a program that must not sleep for long.
    fn look_at_kernel_for(&mut self, timeout: Timeout) -> c_int {
        // A small array may be full of our tags. They are edge-triggered, so what is behind them
        // comes after at most one for each item.
        for _ in 0..=self.this.unlocked.item_count() {
            let since_ns = now_ns();
            let got = (self.kernel)(self.events, self.max as c_int, timeout);
            if got <= 0 {
                self.note_asked(0, 0, since_ns, false);
                return 0;
            }
            let kept = self.translate(0, got);
            self.note_asked(0, kept as usize, since_ns, got as usize == self.max);
            if kept > 0 || (got as usize) < self.max {
                return kept;
            }
        }
        0
    }

    /// Takes our tags out of the `got` kernel events behind the first `first`; how many are left.
    fn translate(&mut self, first: usize, got: c_int) -> c_int {
        self.this.turn.store(KERNEL_FIRST, Ordering::Relaxed);
        self.has_kernels = true;
        // SAFETY: `first` is at most the array's length.
        let events = unsafe { self.events.add(first) };
        let mut kept = 0;
        let mut state: Option<SpinGuard<'_, State>> = None;
        // The kernel reports in the order of arrival: what comes behind a connection of ours was written
        // behind it.
        let mut before_ns = 0;
        for at in 0..got as usize {
            // SAFETY: the kernel wrote `got` events.
            let event = unsafe { *events.add(at) };
            let (tag, label) = (tagged(event.u64), labelled(event.u64));
            if state.is_none() && (tag.is_some() || label.is_some()) {
                state = self.this.lock();
            }
            let report = match (label, state.as_mut()) {
                (Some(label), Some(state)) => state.take_label(label),
                // In a signal handler on top of who has the lock.
                (Some(_), None) => Report::Stale,
                (None, _) => tag.map_or(Report::Program(event.u64), Report::Taken),
            };
            let number = match report {
                Report::Program(data) => {
                    let event = epoll_event { u64: data, ..event };
                    // SAFETY: `kept` is at most `at`.
                    unsafe { *events.add(kept) = event };
                    self.times.set(first + kept, before_ns);
                    kept += 1;
                    continue;
                }
                Report::Taken(number) => number,
                Report::Stale => continue,
            };
            if let Some(state) = state.as_mut() {
                if self.call == 0 {
                    self.call = state.next_call();
                }
                if let Some(item) = state.item(number) {
                    item.note_kernel(event.events, self.call);
                    before_ns = before_ns.max(match item.tcp_began_ns() {
                        0 => 0,
                        began_ns => began_ns.saturating_add(1),
                    });
                }
                state.enqueue(number);
            }
        }
        kept as c_int
    }

    /// What this call has taken from the kernel, and leaves for the next one, is told to who sleeps on the instance:
    /// the thread may not come back while another one sleeps here, as Go's do not, and the kernel has
    /// told it once.
    fn pass_on(&mut self) {
        if self.has_kernels
            && let Some(mut state) = self.this.lock()
        {
            state.pass_on(self.epfd);
        }
    }

    /// Sleeps in the kernel. `None`: look again.
    fn sleep(&mut self, left: Timeout, spinner: &Spinner) -> Option<c_int> {
        {
            let Some(mut state) = self.this.lock() else {
                return Some(self.look_from_handler());
            };
            state.announce_sleep();
        }
        let mut inner = Vec::new();
        enter_children(self.this, 1, &mut inner);
        // The last look.
        let mut awake = true;
        let mut found = 0;
        if let Some(mut state) = self.this.lock() {
            let room = (self.max - 1).max(1);
            // Nothing is left behind by who goes to sleep; the kernel is asked.
            let taken = self.deliver(&mut state, 0, room, Which::All, u64::MAX);
            self.is_heard = false;
            (found, awake) = (taken.count, taken.is_hot);
        }
        let since_ns = now_ns();
        let result = if found == 0 && !awake {
            let got = (self.kernel)(self.events, self.max as c_int, left);
            self.this
                .gaps
                .record(spinner.gap_with_sleep_ns(now_ns().saturating_sub(since_ns)));
            Some(got)
        } else {
            None
        };
        withdraw_all(&inner);
        withdraw(self.this);
        match result {
            None if found > 0 => Some(self.ask_behind(found)),
            None => None,
            Some(got) if got > 0 => {
                let kept = self.translate(0, got);
                self.note_asked(0, kept as usize, since_ns, got as usize == self.max);
                if kept > 0 {
                    return Some(self.complete(kept));
                }
                let (count, ..) = self.take_rings()?;
                (count > 0).then(|| self.ask_behind(count))
            }
            // The time is over, or a signal came. A timeout of 0 is left then, or an error.
            Some(got) => Some(got),
        }
    }

    /// Looks at queued items and writes the events of the ready ones, behind the first `count` and up to `max`.
    /// What was written to rings after `until_ns` is left for later.
    fn deliver(
        &mut self,
        state: &mut State,
        count: usize,
        max: usize,
        which: Which,
        until_ns: u64,
    ) -> Taken {
        if self.call == 0 {
            self.call = state.next_call();
        }
        state.collect();
        for at in 0..state.children.len() {
            let child = state.children[at];
            state.enqueue(child);
        }
        let mut taken = Taken {
            count: 0,
            is_hot: state.check_granted(),
            left_ns: u64::MAX,
        };
        for _ in 0..state.queue.len() {
            let at = count + taken.count;
            if at >= max {
                break;
            }
            let Some(number) = state.queue.pop_front() else {
                break;
            };
            let Some(item) = state.item(number) else {
                continue;
            };
            item.is_queued = false;
            if which == Which::Tagged && !item.is_tagged || item.call == self.call {
                state.enqueue(number);
                continue;
            }
            let look = match item.kind {
                Kind::Instance(inner) => {
                    let found = glance(inner, 1);
                    if found == Glance::Ready {
                        item.note_news();
                    }
                    taken.is_hot |= found == Glance::Hot;
                    item.look_nested(found == Glance::Ready)
                }
                Kind::Socket => {
                    if !item.is_tagged && !item.is_removed && item.is_attached() {
                        if item.has_new_lane() {
                            state.start_tagging(self.epfd, number);
                        } else {
                            // Looked at again until the lane is in use.
                            state.enqueue(number);
                            continue;
                        }
                    }
                    match state.item(number) {
                        Some(item) => item.look(until_ns, self.call),
                        None => continue,
                    }
                }
            };
            taken.is_hot |= look.hot || look.granted;
            if look.granted {
                state.note_granted(number);
            }
            if look.events != 0
                && let Some(item) = state.item(number)
            {
                item.call = self.call;
                // SAFETY: `at` is below `max`, which is at most the array's length.
                unsafe {
                    *self.events.add(at) = epoll_event {
                        events: look.events,
                        u64: item.data,
                    };
                }
                self.times.set(at, look.written_ns);
                if look.events & (IN | RDNORM) != 0 {
                    self.note_writer(look.parking);
                }
                taken.count += 1;
            } else if look.written_ns != 0 {
                taken.left_ns = taken.left_ns.min(look.written_ns);
            }
            if look.keep {
                state.enqueue(number);
            }
        }
        taken
    }
}

/// What a look at the queued items came to.
struct Taken {
    /// Events written.
    count: usize,
    /// Somebody must not sleep.
    is_hot: bool,
    /// The earliest write of those that were left for later; `u64::MAX` for none.
    left_ns: u64,
}

/// Which items are looked at.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Which {
    All,
    /// Those that the kernel reports only under our tag.
    Tagged,
}
