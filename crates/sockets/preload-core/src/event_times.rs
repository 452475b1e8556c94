//! When what each event of a call of `epoll_wait` reports was written.

use crate::memory::Scratch;

/// Most calls have no more events; the times of these are on the thread's stack.
const FEW: usize = 16;
/// Events that one call reports, at most.
pub(crate) const EVENTS_MAX: usize = 128;

/// A time for each event of a call, nanoseconds; 0 for unknown.
#[derive(Default)]
pub(crate) struct Times {
    few: [u64; FEW],
    many: Option<Scratch>,
}

impl Times {
    #[inline]
    pub fn get(&self, at: usize) -> u64 {
        match (self.few.get(at), &self.many) {
            (Some(time), _) => *time,
            (None, Some(many)) => many.words().get(at).copied().unwrap_or(0),
            (None, None) => 0,
        }
    }

    /// Times that there is no memory for stay unknown.
    #[inline]
    pub fn set(&mut self, at: usize, time_ns: u64) {
        match self.few.get_mut(at) {
            Some(time) => *time = time_ns,
            None => self.set_many(at, time_ns),
        }
    }

    #[cold]
    fn set_many(&mut self, at: usize, time_ns: u64) {
        if self.many.is_none() {
            self.many = Scratch::take(EVENTS_MAX * size_of::<u64>());
            if let Some(many) = &mut self.many {
                many.fill(EVENTS_MAX, 0_u64);
            }
        }
        let many = self.many.as_mut().map(Scratch::words_mut);
        if let Some(time) = many.and_then(|many| many.get_mut(at)) {
            *time = time_ns;
        }
    }

    /// At least this time.
    pub fn raise(&mut self, at: usize, time_ns: u64) {
        self.set(at, self.get(at).max(time_ns));
    }

    pub fn swap(&mut self, one: usize, other: usize) {
        let time_ns = self.get(one);
        self.set(one, self.get(other));
        self.set(other, time_ns);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn few_and_many_are_kept_alike() {
        let mut times = Times::default();
        for at in 0..EVENTS_MAX {
            assert_eq!(times.get(at), 0);
            times.set(at, 1000 - at as u64);
            times.raise(at, 5);
        }
        times.swap(3, 100);
        times.raise(120, 2000);
        assert_eq!(
            [3, 100, 120, 17].map(|at| times.get(at)),
            [900, 997, 2000, 983]
        );
    }
}
