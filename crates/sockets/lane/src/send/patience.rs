//! How a writer that blocks waits: for room in the ring, and for others to leave the kernel.

use crate::clock::now_ns;
use crate::full::full_budget_ns;
use crate::spin::pass;
use crate::wait::{Naps, SocketTimeout};
use sluice_sys::errno::Errno;
use sluice_waiting::limits::LIMITS;

/// The waits of one call.
pub(super) struct Patience {
    naps: Naps,
    /// When the present wait began.
    since_ns: u64,
    /// How often it has looked; 0: nothing is waited for.
    rounds: u32,
    /// All waits before it together, nanoseconds.
    before_ns: u64,
    /// The socket's timeout is over.
    timed_out: bool,
    /// Others were waited for. Once only: they may sleep where they are.
    others_over: bool,
}

impl Patience {
    /// Nothing was waited for yet.
    pub fn new(fd: i32) -> Self {
        Self {
            naps: Naps::new(fd, SocketTimeout::Send),
            since_ns: 0,
            rounds: 0,
            before_ns: 0,
            timed_out: false,
            others_over: false,
        }
    }

    /// Whether something is waited for.
    pub fn is_waiting(&self) -> bool {
        self.rounds > 0
    }

    /// Whether the writer is to sleep in the kernel if there is no room now. With a timeout of
    /// the socket that is when its time is over: the kernel, which may have room at once,
    /// starts the time anew.
    pub fn is_over(&self) -> bool {
        self.timed_out || self.waited_ns() >= LIMITS.patience_ns
    }

    /// Whether others have been waited for long enough.
    pub fn is_over_for_others(&self) -> bool {
        self.others_over
    }

    /// Something went on.
    pub fn end(&mut self) {
        self.before_ns += self.waited_ns();
        self.rounds = 0;
    }

    /// Passes a moment of a wait for room. Errors: `EINTR` as [`Naps::nap`].
    pub fn pass(&mut self, has_bytes: bool) -> Result<(), Errno> {
        let waited_ns = self.look();
        let total_ns = self.before_ns + waited_ns;
        if waited_ns < LIMITS.patience_polling_ns && total_ns < LIMITS.patience_ns {
            self.timed_out |=
                total_ns >= LIMITS.patience_polling_ns && total_ns >= self.naps.limit_ns();
            pass(self.rounds);
            return Ok(());
        }
        self.timed_out |= total_ns >= self.naps.limit_ns();
        match self.naps.nap_for(LIMITS.patience_nap_ns, has_bytes) {
            Err(Errno::AGAIN) => {
                self.timed_out = true;
                Ok(())
            }
            result => result,
        }
    }

    /// Passes a moment of a wait for others, which lasts no longer than that for a reader that
    /// takes nothing.
    pub fn pass_others(&mut self) {
        self.others_over = self.look() >= full_budget_ns();
        pass(self.rounds);
    }

    /// How long the present wait lasts. Starts it.
    fn look(&mut self) -> u64 {
        if self.rounds == 0 {
            self.since_ns = now_ns();
        }
        self.rounds = self.rounds.saturating_add(1);
        self.waited_ns()
    }

    fn waited_ns(&self) -> u64 {
        if self.rounds == 0 {
            0
        } else {
            now_ns() - self.since_ns
        }
    }
}
