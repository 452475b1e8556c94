//! A wait for what comes by rings and by the kernel: what it does behind a look at the rings that found nothing.

use crate::limits::Limits;

/// What such a wait does next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Next {
    /// It looks at the rings again.
    Rings,
    /// It asks the kernel, and then looks at the rings again.
    Kernel,
    /// Its time is over: it asks the kernel once more and returns.
    Last,
    /// It must not sleep, because a sender is about to publish: it asks the kernel, for a moment.
    Awake,
    /// It sleeps in the kernel.
    Sleep,
}

/// When such a wait last asked the kernel.
#[derive(Clone, Copy, Debug, Default)]
pub struct KernelLooks {
    last_ns: u64,
}

impl KernelLooks {
    /// The rings had nothing. `polls`: there are rings, and the wait's [polling](crate::polling) is not over at `now_ns`, which
    /// is not 0. `is_over`: the program's own time is. `is_hot`: somebody is about to publish.
    #[inline]
    pub fn next(
        &mut self,
        limits: &Limits,
        (polls, now_ns): (bool, u64),
        is_over: bool,
        is_hot: bool,
    ) -> Next {
        if is_over {
            Next::Last
        } else if polls {
            if self.is_due(limits, now_ns) {
                Next::Kernel
            } else {
                Next::Rings
            }
        } else if is_hot {
            Next::Awake
        } else {
            Next::Sleep
        }
    }

    /// Not at once: what is near comes by the rings in this time.
    #[inline]
    fn is_due(&mut self, limits: &Limits, now_ns: u64) -> bool {
        if now_ns.saturating_sub(self.last_ns) < limits.kernel_look_ns {
            return false;
        }
        let is_first = self.last_ns == 0;
        self.last_ns = now_ns;
        !is_first
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::limits::LIMITS;

    #[test]
    fn while_it_polls_the_kernel_is_asked_now_and_then() {
        let mut looks = KernelLooks::default();
        let from = 1_000_000;
        let step = LIMITS.kernel_look_ns / 3;
        let asks: std::vec::Vec<_> = (0..10)
            .filter(|at| {
                looks.next(&LIMITS, (true, from + at * step), false, false) == Next::Kernel
            })
            .collect();
        assert_eq!(asks, [3, 6, 9]);
    }

    #[test]
    fn what_comes_first_is_the_programs_time_and_then_that_somebody_is_about_to_publish() {
        let next = |polls, is_over, is_hot| {
            KernelLooks::default().next(&LIMITS, (polls, 1_000_000), is_over, is_hot)
        };
        assert_eq!(next(true, true, true), Next::Last);
        assert_eq!(next(true, false, true), Next::Rings);
        assert_eq!(next(false, false, true), Next::Awake);
        assert_eq!(next(false, false, false), Next::Sleep);
    }
}
