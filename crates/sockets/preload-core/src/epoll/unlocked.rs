//! What is known of an instance without its lock: whether rings may have anything for who waits on it.

use core::sync::atomic::{AtomicBool, AtomicU32, Ordering};

/// Of one instance.
pub(crate) struct Unlocked {
    /// Items; without any the kernel alone is asked.
    item_count: AtomicU32,
    /// Rings may have something for who waits here. Set under the lock, and not taken back before the
    /// last descriptor is closed.
    heeds_rings: AtomicBool,
    /// The program has waited by a call that Sluice sees.
    is_waited_for: AtomicBool,
    /// Threads in the kernel's wait that are not in [`super::state::State::asleep`]: they found nobody to tell
    /// that they sleep. Who takes the lock counts them there.
    plain_sleepers: AtomicU32,
}

impl Unlocked {
    /// Of an instance in which nothing is registered.
    pub const fn new() -> Self {
        Self {
            item_count: AtomicU32::new(0),
            heeds_rings: AtomicBool::new(false),
            is_waited_for: AtomicBool::new(false),
            plain_sleepers: AtomicU32::new(0),
        }
    }

    /// How many items there are.
    #[inline]
    pub fn item_count(&self) -> u32 {
        self.item_count.load(Ordering::Acquire)
    }

    /// Changes the number of items; to be called by the holder of the lock.
    pub fn set_item_count(&self, by: i32) {
        let count = self.item_count.load(Ordering::Relaxed);
        self.item_count
            .store(count.wrapping_add_signed(by), Ordering::Release);
    }

    /// The instance is closed; to be called by the holder of the lock.
    pub fn close(&self) {
        self.item_count.store(0, Ordering::Relaxed);
        self.heeds_rings.store(false, Ordering::SeqCst);
        self.is_waited_for.store(false, Ordering::Relaxed);
    }

    /// The program waits, or looks, by a call that Sluice sees.
    #[inline]
    pub fn note_wait(&self) {
        if !self.is_waited_for.load(Ordering::Relaxed) {
            self.is_waited_for.store(true, Ordering::Relaxed);
        }
    }

    /// Whether it has. Some programs register through the C library and wait by system calls of their own.
    pub fn is_waited_for(&self) -> bool {
        self.is_waited_for.load(Ordering::Relaxed)
    }

    /// Whether rings may have something for who waits here.
    #[inline]
    pub fn heeds_rings(&self) -> bool {
        self.heeds_rings.load(Ordering::SeqCst)
    }

    /// From here on rings may have something. False if so they may have before. To be called by the
    /// holder of the lock, who counts the plain sleepers then.
    pub fn start_to_heed_rings(&self) -> bool {
        !self.heeds_rings.swap(true, Ordering::SeqCst)
    }

    /// A thread is about to sleep in the kernel, which nobody has to be told. False where somebody
    /// has to.
    #[inline]
    pub fn sleep_plainly(&self) -> bool {
        if self.heeds_rings() {
            return false;
        }
        // Either it sees what `start_to_heed_rings` stores, or that sees this.
        self.plain_sleepers.fetch_add(1, Ordering::SeqCst);
        !self.heeds_rings() || !self.wake_plainly()
    }

    /// It has left the kernel. False if it is counted among those that others know of.
    #[inline]
    pub fn wake_plainly(&self) -> bool {
        let fewer = |sleepers: u32| sleepers.checked_sub(1);
        self.plain_sleepers
            .fetch_update(Ordering::SeqCst, Ordering::Relaxed, fewer)
            .is_ok()
    }

    /// The plain sleepers, who are none any more.
    #[inline]
    pub fn take_plain_sleepers(&self) -> u32 {
        match self.plain_sleepers.load(Ordering::Relaxed) {
            0 => 0,
            _ => self.plain_sleepers.swap(0, Ordering::SeqCst),
        }
    }

    /// In a forked child no thread sleeps.
    pub fn forget_plain_sleepers(&self) {
        self.plain_sleepers.store(0, Ordering::Relaxed);
    }
}
