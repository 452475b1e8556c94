//! How long to poll before sleeping: the driver of the policy in `sluice-waiting`, with a clock, the processor to give
//! away, and what the process knows of its waits.
//!
//! A wait polls when arrivals of late came sooner than the ceiling, because then a wake-up
//! (tens of microseconds on a virtual machine) costs more than the polling. It polls hard for
//! a few microseconds, then gives the processor away between looks, so that a peer on the same
//! core can run; if somebody else really ran each time, the machine has more runnable threads
//! than cores and the wait ends early.
//!
//! A yield shows who waits for the own core alone. Whether the machine as a whole is oversubscribed sluiced
//! says, where it has lanes to other hosts: while it is, a wait for what comes by TCP sleeps at once.
#![allow(unsafe_code)]

use crate::clock::now_ns;
use crate::thread::own;
use core::ptr::NonNull;
use core::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, AtomicU64, Ordering};
use sluice_shmem::parking::ParkingTable;
use sluice_sys::raw;
use sluice_waiting::gaps;
use sluice_waiting::limits::LIMITS;
use sluice_waiting::machine::Machine;
use sluice_waiting::oversubscription::{Off, Oversubscription};
use sluice_waiting::polling::{self, Pass, Polling, Yielded};

/// The ceiling when `SLUICE_SPIN_US` does not say: docs/decisions/0004 has the measurement.
pub const CEILING_DEFAULT_US: u32 = (LIMITS.ceiling_ns / 1000) as u32;
/// The largest ceiling that can be asked for.
pub const CEILING_MAX_US: u32 = (LIMITS.ceiling_max_ns / 1000) as u32;

/// What yields of late have shown; [`Oversubscription`] of the whole process. Racing threads may lose a count.
static OVERSUBSCRIPTION: AtomicU32 = AtomicU32::new(0);

/// Until when nothing in this process polls, and for how long it did not the last time; [`Off`]. Racing threads
/// may lose a doubling.
static OFF_UNTIL_NS: AtomicU64 = AtomicU64::new(0);
static OFF_LAST_NS: AtomicU64 = AtomicU64::new(0);

/// Nobody else runs while a thread of this process polls.
static IS_SINGLE: AtomicBool = AtomicBool::new(false);

/// A yield was starved.
fn stay_off(now_ns: u64) {
    let before = Off {
        until_ns: OFF_UNTIL_NS.load(Ordering::Relaxed),
        last_ns: OFF_LAST_NS.load(Ordering::Relaxed),
    };
    let off = before.starved(&LIMITS, now_ns);
    // Else another thread has just said so.
    if off != before {
        OFF_LAST_NS.store(off.last_ns, Ordering::Relaxed);
        OFF_UNTIL_NS.store(off.until_ns, Ordering::Relaxed);
    }
}

/// A read without a bound has taken bytes by TCP.
pub(crate) fn note_taken(bytes: u64) {
    own(|own| own.taken.set(own.taken.get().saturating_add(bytes)));
}

/// A read has taken bytes from a ring.
#[inline]
pub(crate) fn note_by_ring() {
    own(|own| own.by_ring.set(true));
}

/// Whether what this thread has taken since its last wait is best waited for asleep. Rings need a
/// reader that is awake. What comes by TCP comes to one that sleeps, too, and while it polls on a
/// oversubscribed machine somebody else waits for the processor.
fn is_best_asleep() -> bool {
    let (taken, by_ring) = own(|own| (own.taken.get(), own.by_ring.get()));
    taken >= LIMITS.bulk_bytes || !by_ring && is_machine_oversubscribed()
}

/// A wait begins.
fn forget_taken() {
    own(|own| {
        own.taken.set(0);
        own.by_ring.set(false);
    });
}

/// The parking table of the sluiced that carries lanes of this process to other hosts.
static PARKING: AtomicPtr<u8> = AtomicPtr::new(core::ptr::null_mut());

/// Heeds what sluiced says of the machine in its parking table, or nobody.
pub fn heed(parking: Option<ParkingTable>) {
    let address = parking.map_or(0, |parking| parking.address());
    PARKING.store(address as *mut u8, Ordering::Release);
}

fn is_machine_oversubscribed() -> bool {
    // SAFETY: a parking table stays mapped for the process's life, and is only read here.
    let parking = NonNull::new(PARKING.load(Ordering::Acquire))
        .map(|it| unsafe { ParkingTable::from_raw(it) });
    parking.is_some_and(|parking| parking.is_oversubscribed())
}

static CEILING_NS: AtomicU32 = AtomicU32::new(LIMITS.ceiling_ns as u32);
/// Somebody has asked for that ceiling.
static IS_CEILING_SET: AtomicBool = AtomicBool::new(false);

/// Sets the ceiling; 0 means that nothing polls.
pub fn set_ceiling_us(us: u32) {
    CEILING_NS.store(us.min(CEILING_MAX_US) * 1000, Ordering::Relaxed);
    IS_CEILING_SET.store(true, Ordering::Relaxed);
}

/// Heeds what is known of the machine. A ceiling that somebody has asked for stays.
pub fn know(machine: &Machine) {
    IS_SINGLE.store(machine.is_single(), Ordering::Relaxed);
    if !IS_CEILING_SET.load(Ordering::Relaxed) {
        let ceiling_ns = machine.ceiling_ns(&LIMITS, LIMITS.ceiling_ns);
        CEILING_NS.store(ceiling_ns as u32, Ordering::Relaxed);
    }
}

/// The ceiling in force, nanoseconds.
pub fn ceiling_ns() -> u64 {
    u64::from(CEILING_NS.load(Ordering::Relaxed))
}

/// Gives the processor to whoever else wants it.
pub fn yield_processor() {
    // SAFETY: sched_yield takes nothing and cannot fail.
    unsafe {
        raw::syscall0(libc::SYS_sched_yield);
    }
}

/// Passes a moment of a wait that has its own end: polls hard for some rounds, unless others
/// want the processor, then gives it away.
pub fn pass(round: u32) {
    if polling::looks_hard(&LIMITS, round, is_oversubscribed()) {
        for _ in 0..LIMITS.pass_pauses {
            core::hint::spin_loop();
        }
    } else {
        yield_processor();
    }
}

/// The recent gaps between the start of a wait and what it waited for ([`gaps::Gaps`]), where threads and forks
/// share them. Racing threads may lose one.
#[derive(Default)]
#[repr(C)]
pub struct Gaps {
    mean_ns: AtomicU32,
    pause: AtomicU32,
}

impl Gaps {
    /// No gaps known: the first wait polls.
    pub const fn new() -> Self {
        Self {
            mean_ns: AtomicU32::new(0),
            pause: AtomicU32::new(0),
        }
    }

    /// Forgets everything.
    pub fn reset(&self) {
        self.mean_ns.store(0, Ordering::Relaxed);
        self.pause.store(0, Ordering::Relaxed);
    }

    /// Accounts for one wait.
    pub fn record(&self, gap_ns: u64) {
        let before = self.known();
        self.note(before, before.record(&LIMITS, gap_ns, ceiling_ns()));
    }

    /// Whether the next wait may poll, if it is this thread's.
    pub fn may_poll(&self) -> bool {
        // Who sleeps for long does not look in the parking table, which would be out of its cache.
        self.known().may_poll(&LIMITS, ceiling_ns()) && !is_best_asleep()
    }

    /// Whether the gaps alone say that the next wait does not poll.
    pub fn are_long(&self) -> bool {
        !self.known().may_poll(&LIMITS, ceiling_ns())
    }

    /// A wait begins: how long it may poll.
    pub fn budget_ns(&self) -> u64 {
        let (before, ceiling_ns) = (self.known(), ceiling_ns());
        let may_poll = before.may_poll(&LIMITS, ceiling_ns) && !is_best_asleep();
        forget_taken();
        self.note(before, before.begins(&LIMITS, may_poll, ceiling_ns));
        if may_poll { ceiling_ns } else { 0 }
    }

    fn known(&self) -> gaps::Gaps {
        gaps::Gaps {
            mean_ns: self.mean_ns.load(Ordering::Relaxed),
            pause: self.pause.load(Ordering::Relaxed),
        }
    }

    /// Stores only what has changed: another thread may be at the rest.
    fn note(&self, before: gaps::Gaps, after: gaps::Gaps) {
        if after.mean_ns != before.mean_ns {
            self.mean_ns.store(after.mean_ns, Ordering::Relaxed);
        }
        if after.pause != before.pause {
            self.pause.store(after.pause, Ordering::Relaxed);
        }
    }
}

fn is_oversubscribed() -> bool {
    Oversubscription(OVERSUBSCRIPTION.load(Ordering::Relaxed)).is_oversubscribed(&LIMITS)
        || IS_SINGLE.load(Ordering::Relaxed)
}

fn note_yield(yielded: Yielded) {
    let oversubscription = Oversubscription(OVERSUBSCRIPTION.load(Ordering::Relaxed));
    let next = oversubscription.after(&LIMITS, yielded);
    if next != oversubscription {
        OVERSUBSCRIPTION.store(next.0, Ordering::Relaxed);
    }
}

/// One wait's polling.
pub struct Spinner(Polling);

impl Spinner {
    /// Starts a wait that may poll for `budget_ns`.
    pub fn start(budget_ns: u64) -> Self {
        let now = now_ns();
        let is_off = now < OFF_UNTIL_NS.load(Ordering::Relaxed);
        Self(Polling::start(now, if is_off { 0 } else { budget_ns }))
    }

    /// Whether this wait polls at all.
    pub fn polls(&self) -> bool {
        self.0.polls()
    }

    /// How long this wait has lasted, as of the last look at the clock.
    pub fn waited_ns(&self) -> u64 {
        self.0.waited_ns()
    }

    /// What the wait counts for in [`Gaps`] if polling ended it.
    pub fn gap_ns(&self) -> u64 {
        self.0.gap_ns()
    }

    /// What it counts for if it took a sleep of `asleep_ns` besides.
    pub fn gap_with_sleep_ns(&self, asleep_ns: u64) -> u64 {
        self.0.gap_with_sleep_ns(asleep_ns, is_oversubscribed())
    }

    /// The time of the last look at the clock.
    pub fn now_ns(&self) -> u64 {
        self.0.now_ns()
    }

    /// Passes a moment. False when the polling is over.
    pub fn step(&mut self) -> bool {
        match self.0.next(&LIMITS, is_oversubscribed()) {
            Pass::Over => {
                self.0.ended(now_ns());
                false
            }
            Pass::Look => {
                core::hint::spin_loop();
                true
            }
            Pass::LookAtClock => {
                core::hint::spin_loop();
                self.0.looked(now_ns());
                true
            }
            Pass::Yield => {
                yield_processor();
                let now = now_ns();
                let yielded = self.0.yielded(&LIMITS, now);
                note_yield(yielded);
                if yielded == Yielded::Starved {
                    stay_off(now);
                }
                !self.0.is_over(&LIMITS, is_oversubscribed())
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use sluice_shmem::parking::PARKING_BYTES;

    #[test]
    fn who_reads_by_tcp_sleeps_on_an_oversubscribed_machine() {
        let memory = vec![0_u64; PARKING_BYTES / 8 + 8].leak();
        let base = memory.as_mut_ptr().cast::<u8>();
        let aligned = base.wrapping_add(base.align_offset(64));
        // SAFETY: aligned zeroes of that size, leaked.
        let parking = unsafe { ParkingTable::from_raw(NonNull::new(aligned).unwrap()) };
        heed(Some(parking));
        let gaps = Gaps::new();
        assert!(
            gaps.may_poll() && gaps.budget_ns() > 0,
            "not oversubscribed yet"
        );
        parking.set_oversubscribed(true);
        assert!(!gaps.may_poll() && gaps.budget_ns() == 0);
        note_by_ring();
        assert!(gaps.may_poll() && gaps.budget_ns() > 0, "rings need it");
        assert!(!gaps.may_poll(), "which was one wait ago");
        parking.set_oversubscribed(false);
        assert!(gaps.may_poll());
        parking.set_oversubscribed(true);
        heed(None);
        assert!(gaps.may_poll(), "nobody knows any more");
    }

    #[test]
    fn time_passes_for_a_wait_that_polls_no_more() {
        let mut spinner = Spinner::start(0);
        std::thread::sleep(std::time::Duration::from_millis(2));
        assert!(!spinner.step());
        assert!(spinner.waited_ns() >= 2_000_000);
    }

    #[test]
    fn a_ceiling_that_was_asked_for_stays_whatever_the_quota() {
        let half = Machine {
            online: Some(2),
            quota: sluice_waiting::machine::Quota::parse("50000 100000"),
        };
        know(&half);
        assert_eq!(ceiling_ns(), LIMITS.oversubscribed_ns);
        know(&Machine::default());
        assert_eq!(ceiling_ns(), LIMITS.ceiling_ns);
        set_ceiling_us(CEILING_DEFAULT_US);
        know(&half);
        assert_eq!(ceiling_ns(), LIMITS.ceiling_ns);
        know(&Machine::default());
    }
}
