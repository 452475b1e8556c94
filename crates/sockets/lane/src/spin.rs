//! How long to poll before sleeping.
//!
//! A wait polls when arrivals of late came sooner than the ceiling, because then a wake-up
//! (tens of microseconds on a virtual machine) costs more than the polling. It polls hard for
//! a few microseconds, then gives the processor away between looks, so that a peer on the same
//! core can run; if somebody else really ran each time, the machine has more runnable threads
//! than cores and the wait ends early.
//!
//! A yield shows who waits for the own core alone. Whether the machine as a whole is crowded sluiced
//! says, where it has lanes to other hosts: while it is, a wait for what comes by TCP sleeps at once.
#![allow(unsafe_code)]

use crate::clock::now_ns;
use crate::thread::own;
use core::ptr::NonNull;
use core::sync::atomic::{AtomicPtr, AtomicU32, Ordering};
use sluice_shmem::board::Board;
use sluice_sys::raw;

/// The ceiling when `SLUICE_SPIN_US` does not say: docs/decisions/0004 has the measurement.
pub const CEILING_DEFAULT_US: u32 = 100;
/// The largest ceiling that can be asked for.
pub const CEILING_MAX_US: u32 = 10_000;

/// Polling without giving the processor away, at the start of a wait.
const HARD_NS: u64 = 8_000;
/// Looks of that time from one look at the clock, which costs as much as one, to the next.
const LOOKS_PER_CLOCK: u32 = 8;
/// A yield that takes this long let somebody else run; without a switch it takes 0.3 µs.
const YIELD_SWITCH_NS: u64 = 1_500;
/// A yield that takes this long let somebody else run who did not give the processor back.
const YIELD_LOST_NS: u64 = 50_000;
/// What a yield with a switch costs this thread and the one it let run.
const SWITCH_COST_NS: u64 = 1_500;
/// Yields that lost the processor in one wait after which it is left to others.
const LOST_MAX: u32 = 2;
/// The processor time that one wait may poll away while others want it. Then it is not the time
/// of an idle processor that is at stake but what a sleep costs, about 10 µs at both ends.
const CROWDED_NS: u64 = 10_000;

/// Whether yields of late let others run: then more threads want to run than there are cores,
/// perhaps the very peer on this core, and polling hard only keeps it from answering. Between 0
/// and [`CROWD_MAX`], of the whole process; racing threads may lose a count.
static CROWD: AtomicU32 = AtomicU32::new(0);
const CROWD_MAX: u32 = 8;
const CROWDED: u32 = 4;

/// A thread whose reads by TCP get so many bytes between two waits does not poll in the second: what
/// a wake-up costs is little beside them, and while it sleeps the kernel makes larger pieces of what
/// comes.
const BULK_BYTES: u64 = 32 * 1024;

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
/// crowded machine somebody else waits for the processor.
fn is_best_asleep() -> bool {
    let (taken, by_ring) = own(|own| (own.taken.get(), own.by_ring.get()));
    taken >= BULK_BYTES || !by_ring && is_machine_crowded()
}

/// A wait begins.
fn forget_taken() {
    own(|own| {
        own.taken.set(0);
        own.by_ring.set(false);
    });
}

/// The board of the sluiced that carries lanes of this process to other hosts.
static BOARD: AtomicPtr<u8> = AtomicPtr::new(core::ptr::null_mut());

/// Heeds what sluiced says of the machine on its board, or nobody.
pub fn heed(board: Option<Board>) {
    let address = board.map_or(0, |board| board.address());
    BOARD.store(address as *mut u8, Ordering::Release);
}

fn is_machine_crowded() -> bool {
    // SAFETY: a board stays mapped for the process's life, and is only read here.
    let board =
        NonNull::new(BOARD.load(Ordering::Acquire)).map(|it| unsafe { Board::from_raw(it) });
    board.is_some_and(|board| board.is_crowded())
}

static CEILING_NS: AtomicU32 = AtomicU32::new(CEILING_DEFAULT_US * 1000);

/// Sets the ceiling; 0 means that nothing polls.
pub fn set_ceiling_us(us: u32) {
    CEILING_NS.store(us.min(CEILING_MAX_US) * 1000, Ordering::Relaxed);
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
    const HARD_ROUNDS: u32 = 50;
    if round < HARD_ROUNDS && !is_crowded() {
        for _ in 0..32 {
            core::hint::spin_loop();
        }
    } else {
        yield_processor();
    }
}

/// The recent gaps between the start of a wait and what it waited for.
#[derive(Default)]
#[repr(C)]
pub struct Gaps {
    mean_ns: AtomicU32,
    /// Waits left without polling (low half) and how many there are between two tries (high).
    pause: AtomicU32,
}

/// Waits that do not poll between two that try whether polling pays again, at first and at
/// most. Two ends that both sleep measure each other's wake-ups: one has to try first.
const PAUSE_MIN: u32 = 4;
const PAUSE_MAX: u32 = 64;

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

    /// Accounts for one wait. Long ones count as four ceilings, so that one pause is soon
    /// forgotten.
    pub fn record(&self, gap_ns: u64) {
        let ceiling = ceiling_ns();
        let gap = gap_ns.min(4 * ceiling) as u32;
        let mean = self.mean_ns.load(Ordering::Relaxed);
        if gap_ns <= ceiling && self.pause.load(Ordering::Relaxed) != 0 {
            // A try paid: polling is on again at once.
            self.mean_ns.store(gap, Ordering::Relaxed);
            self.pause.store(0, Ordering::Relaxed);
            return;
        }
        // A mean over about four waits; racing threads may lose one.
        self.mean_ns
            .store(mean - mean / 4 + gap / 4, Ordering::Relaxed);
    }

    fn are_short(&self) -> bool {
        let ceiling = ceiling_ns();
        u64::from(self.mean_ns.load(Ordering::Relaxed)) <= ceiling + ceiling / 2
    }

    /// Whether the next wait may poll, if it is this thread's.
    pub fn may_poll(&self) -> bool {
        let is_paused = || self.pause.load(Ordering::Relaxed) & 0xffff != 0;
        // Who sleeps for long does not look at the board, which would be out of its cache.
        ceiling_ns() > 0 && (self.are_short() || !is_paused()) && !is_best_asleep()
    }

    /// How long the next wait may poll.
    pub fn budget_ns(&self) -> u64 {
        let may_poll = self.may_poll();
        forget_taken();
        if !self.are_short() {
            let pause = self.pause.load(Ordering::Relaxed);
            let (left, between) = (pause & 0xffff, (pause >> 16).max(PAUSE_MIN));
            let next = match left {
                0 if may_poll => (between * 2).min(PAUSE_MAX) << 16 | between,
                0 => pause,
                _ => between << 16 | (left - 1),
            };
            self.pause.store(next, Ordering::Relaxed);
        }
        if may_poll { ceiling_ns() } else { 0 }
    }
}

fn is_crowded() -> bool {
    CROWD.load(Ordering::Relaxed) >= CROWDED
}

fn note_yield(switched: bool) {
    let crowd = CROWD.load(Ordering::Relaxed);
    let next = if switched {
        (crowd + 2).min(CROWD_MAX)
    } else {
        crowd.saturating_sub(1)
    };
    if next != crowd {
        CROWD.store(next, Ordering::Relaxed);
    }
}

/// One wait's polling.
pub struct Spinner {
    start_ns: u64,
    now_ns: u64,
    budget_ns: u64,
    /// Processor time spent.
    spent_ns: u64,
    lost: u32,
    looks: u32,
}

impl Spinner {
    /// Starts a wait that may poll for `budget_ns`.
    pub fn start(budget_ns: u64) -> Self {
        let now = now_ns();
        Self {
            start_ns: now,
            now_ns: now,
            budget_ns,
            spent_ns: 0,
            lost: 0,
            looks: 0,
        }
    }

    /// How long this wait has lasted, as of the last look at the clock.
    pub fn waited_ns(&self) -> u64 {
        self.now_ns - self.start_ns
    }

    /// What the wait counts for in [`Gaps`] if polling ended it: the processor time it took.
    pub fn gap_ns(&self) -> u64 {
        self.spent_ns
    }

    /// What it counts for if it took a sleep of `asleep_ns` besides. While others want the
    /// processor, a wait that polling did not end is as good as endless.
    pub fn gap_with_sleep_ns(&self, asleep_ns: u64) -> u64 {
        if self.budget_ns > 0 && is_crowded() {
            u64::MAX
        } else {
            self.waited_ns().saturating_add(asleep_ns)
        }
    }

    /// The time of the last look at the clock.
    pub fn now_ns(&self) -> u64 {
        self.now_ns
    }

    /// Whether the polling is over.
    pub fn is_over(&self) -> bool {
        let budget = if is_crowded() {
            self.budget_ns.min(CROWDED_NS)
        } else {
            self.budget_ns
        };
        self.spent_ns >= budget || self.lost >= LOST_MAX
    }

    /// Passes a moment. False when the polling is over.
    pub fn step(&mut self) -> bool {
        if self.is_over() {
            // A wait that may not sleep goes on looking, and must notice that its time is over.
            self.now_ns = now_ns();
            return false;
        }
        let before = self.now_ns;
        if self.spent_ns < HARD_NS && !is_crowded() {
            core::hint::spin_loop();
            self.looks += 1;
            if self.looks.is_multiple_of(LOOKS_PER_CLOCK) {
                self.now_ns = now_ns();
                self.spent_ns += self.now_ns.saturating_sub(before);
            }
            return true;
        }
        yield_processor();
        self.now_ns = now_ns();
        let away = self.now_ns.saturating_sub(before);
        let switched = away >= YIELD_SWITCH_NS;
        note_yield(switched);
        self.spent_ns += if switched { SWITCH_COST_NS } else { away };
        self.lost += u32::from(away >= YIELD_LOST_NS);
        !self.is_over()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use sluice_shmem::board::BOARD_BYTES;

    #[test]
    fn who_reads_by_tcp_sleeps_on_a_crowded_machine() {
        let memory = vec![0_u64; BOARD_BYTES / 8 + 8].leak();
        let base = memory.as_mut_ptr().cast::<u8>();
        let aligned = base.wrapping_add(base.align_offset(64));
        // SAFETY: aligned zeroes of that size, leaked.
        let board = unsafe { Board::from_raw(NonNull::new(aligned).unwrap()) };
        heed(Some(board));
        let gaps = Gaps::new();
        assert!(gaps.may_poll() && gaps.budget_ns() > 0, "not crowded yet");
        board.set_crowded(true);
        assert!(!gaps.may_poll() && gaps.budget_ns() == 0);
        note_by_ring();
        assert!(gaps.may_poll() && gaps.budget_ns() > 0, "rings need it");
        assert!(!gaps.may_poll(), "which was one wait ago");
        board.set_crowded(false);
        assert!(gaps.may_poll());
        board.set_crowded(true);
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
}
