//! When what each event of a call of `epoll_wait` reports was written.
#![allow(unsafe_code)]

use libc::epoll_event;

use crate::memory::Scratch;

/// Most calls have no more events; the times of these are on the thread's stack.
const FEW: usize = 16;
/// Events that one call reports, at most.
pub(crate) const EVENTS_MAX: usize = 128;

/// Bits of an event's place, and the greatest time that a word has room for beside it: 4 years since the start.
const PLACE_BITS: u32 = 7;
const _: () = assert!(1 << PLACE_BITS == EVENTS_MAX);
const TIME_MAX: u64 = u64::MAX >> PLACE_BITS;
/// Behind the times of many events, in words: what is sorted, and then copies of the events.
const KEYS: usize = EVENTS_MAX;
const COPIES: usize = 2 * EVENTS_MAX;

/// A time for each event of a call, nanoseconds; 0 for unknown.
#[derive(Default)]
pub(crate) struct Times {
    few: [u64; FEW],
    /// In place of the above once there are more, all of them.
    many: Option<Scratch>,
}

impl Times {
    #[inline]
    fn all(&self) -> &[u64] {
        match &self.many {
            Some(many) => &many.words()[..EVENTS_MAX],
            None => &self.few,
        }
    }

    #[inline]
    fn all_mut(&mut self) -> &mut [u64] {
        match &mut self.many {
            Some(many) => &mut many.words_mut()[..EVENTS_MAX],
            None => &mut self.few,
        }
    }

    #[inline]
    pub fn get(&self, at: usize) -> u64 {
        self.all().get(at).copied().unwrap_or(0)
    }

    /// Times that there is no memory for stay unknown.
    #[inline]
    pub fn set(&mut self, at: usize, time_ns: u64) {
        if at >= FEW && self.many.is_none() {
            self.grow();
        }
        if let Some(time) = self.all_mut().get_mut(at) {
            *time = time_ns;
        }
    }

    #[cold]
    fn grow(&mut self) {
        let mut many = Scratch::take((COPIES + 2 * EVENTS_MAX) * size_of::<u64>());
        if let Some(many) = &mut many {
            let times = many.fill(EVENTS_MAX, 0_u64);
            times[..FEW].copy_from_slice(&self.few);
        }
        self.many = many;
    }

    /// At least this time.
    pub fn raise(&mut self, at: usize, time_ns: u64) {
        self.set(at, self.get(at).max(time_ns));
    }

    /// Puts `count` events in the order of their times; those of one time stay in theirs.
    ///
    /// # Safety
    /// `events` has so many, at most [`EVENTS_MAX`].
    #[inline]
    pub unsafe fn put_in_order(&mut self, events: *mut epoll_event, count: usize) {
        let count = count.min(self.all().len());
        if self.all()[..count].is_sorted() {
            return;
        }
        // SAFETY: the caller's promise.
        unsafe {
            match &mut self.many {
                Some(many) => sort_many(many, events, count),
                None => sort_few(&mut self.few[..count], events),
            }
        }
    }
}

/// By insertion: they are few, and most are in order.
///
/// # Safety
/// There are as many events.
unsafe fn sort_few(times: &mut [u64], events: *mut epoll_event) {
    for end in 1..times.len() {
        let mut at = end;
        while at > 0 && times[at - 1] > times[at] {
            times.swap(at - 1, at);
            // SAFETY: both are below the number of times.
            unsafe { events.add(at - 1).swap(events.add(at)) };
            at -= 1;
        }
    }
}

/// By words that have a time and a place each, and so are all different.
///
/// # Safety
/// There are `count` events, and at most [`EVENTS_MAX`].
#[inline(never)]
unsafe fn sort_many(many: &mut Scratch, events: *mut epoll_event, count: usize) {
    let (times, rest) = many.words_mut().split_at_mut(KEYS);
    let (keys, copies) = rest.split_at_mut(COPIES - KEYS);
    let keys = &mut keys[..count];
    for ((at, key), time) in keys.iter_mut().enumerate().zip(times.iter()) {
        *key = (*time).min(TIME_MAX) << PLACE_BITS | at as u64;
    }
    keys.sort_unstable();
    let copies = copies.as_mut_ptr().cast::<epoll_event>();
    // SAFETY: `events` has `count`, by the caller's promise, and there is room for EVENTS_MAX copies of 16 bytes; places are
    // below `count`.
    unsafe {
        copies.copy_from_nonoverlapping(events, count);
        for ((at, key), time) in keys.iter().enumerate().zip(times) {
            let place = (*key as usize) & (EVENTS_MAX - 1);
            events
                .add(at)
                .copy_from_nonoverlapping(copies.add(place), 1);
            *time = *key >> PLACE_BITS;
        }
    }
}
const _: () = assert!(size_of::<epoll_event>() <= 16);

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
        times.raise(120, 2000);
        let got = [3, 15, 16, 100, 120].map(|at| times.get(at));
        assert_eq!(got, [997, 985, 984, 900, 2000]);
    }

    #[test]
    fn events_are_put_in_order_and_equals_stay_in_theirs() {
        // Any numbers, many of them equal.
        let mut seed = 1_u64;
        let mut next = || {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            seed >> 60
        };
        for count in 0..=EVENTS_MAX {
            let given: Vec<u64> = (0..count).map(|_| next()).collect();
            let mut times = Times::default();
            for (at, time) in given.iter().enumerate() {
                times.set(at, *time);
            }
            let event = |at: usize| epoll_event {
                events: at as u32,
                u64: at as u64,
            };
            let mut events: Vec<epoll_event> = (0..count).map(event).collect();
            // SAFETY: there are as many.
            unsafe { times.put_in_order(events.as_mut_ptr(), count) };
            let mut expected: Vec<usize> = (0..count).collect();
            expected.sort_by_key(|at| given[*at]);
            let got: Vec<usize> = events.iter().map(|event| event.u64 as usize).collect();
            assert_eq!(got, expected);
            let sorted: Vec<u64> = (0..count).map(|at| times.get(at)).collect();
            assert!(sorted.is_sorted(), "{sorted:?}");
        }
    }
}
