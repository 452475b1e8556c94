//! A ring that any number of threads put into and take from, without a lock.
//!
//! Each cell has a sequence number that says whose it is (Vyukov's bounded queue): that of position `p` is free for
//! `p`, then it holds what was put there, and taking it makes it free for `p` plus the length. A thread that has moved
//! `tail` or `head` on by an exchange is alone with the cells that it has passed, until it lets their sequence numbers
//! go on.
//!
//! Who must have all of it ([`Ring::alone`]), to take something out of its middle or to change its
//! length, closes both ends, waits for those who are in the middle of a cell, which is a few instructions, and opens
//! the ring with positions that were never used: who has read `tail`, `head` or the cells before
//! cannot exchange them any more.
#![allow(unsafe_code)]

use crate::sync::{Arc, AtomicPtr, AtomicU64, Mutex, Ordering, UnsafeCell, lock, wait_a_moment};

/// Nobody puts or takes: a bit of either end. Positions are far from it, and from half of it.
const CLOSED: u64 = 1 << 63;

/// What is taken at once, at most: so many cells are nobody's for a moment.
const BATCH: usize = 32;

struct Cell<T> {
    /// [`free`] or [`full`].
    sequence: AtomicU64,
    value: UnsafeCell<T>,
}

/// The sequence number of who puts something at a position.
const fn free(position: u64) -> u64 {
    position << 1
}

/// The sequence number of who takes it.
const fn full(position: u64) -> u64 {
    position << 1 | 1
}

/// As many cells as a power of two.
struct Cells<T>(Box<[Cell<T>]>);

impl<T> Cells<T> {
    #[inline]
    fn at(&self, position: u64) -> &Cell<T> {
        &self.0[position as usize & (self.0.len() - 1)]
    }

    fn len(&self) -> u64 {
        self.0.len() as u64
    }
}

/// On a line of its own: those who put and those who take do not disturb each other.
#[repr(align(64))]
struct End(AtomicU64);

/// Whoever has this has all that the ring ever used.
struct Arrays<T> {
    /// One of each length at most. They are kept, since whoever has been slow may still look at one.
    all: Vec<Arc<Cells<T>>>,
    /// The first position since the ring was opened.
    base: u64,
}

/// The ring has no room.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Full;

pub(crate) struct Ring<T> {
    tail: End,
    head: End,
    /// Of `arrays`.
    cells: AtomicPtr<Cells<T>>,
    arrays: Mutex<Arrays<T>>,
}

// SAFETY: a value is written by the thread that has the cell's sequence number for that and read by the one that has
// its for that, one behind the other, so it only goes from thread to thread.
unsafe impl<T: Send> Sync for Cells<T> {}
// SAFETY: values may go to another thread (`T: Send`), and sequence numbers are atomics.
unsafe impl<T: Send> Send for Cells<T> {}

fn cells<T: Default>(len: usize) -> Arc<Cells<T>> {
    let cell = |position| Cell {
        sequence: AtomicU64::new(free(position)),
        value: UnsafeCell::new(T::default()),
    };
    Arc::new(Cells((0..len as u64).map(cell).collect()))
}

impl<T: Copy + Default> Ring<T> {
    /// `len`: a power of two.
    pub fn new(len: usize) -> Ring<T> {
        let first = cells(len);
        Ring {
            tail: End(AtomicU64::new(0)),
            head: End(AtomicU64::new(0)),
            cells: AtomicPtr::new(Arc::as_ptr(&first).cast_mut()),
            arrays: Mutex::new(Arrays {
                all: vec![first],
                base: 0,
            }),
        }
    }

    #[inline]
    fn cells(&self) -> &Cells<T> {
        // SAFETY: it points to one of `arrays`, of which none is dropped before the ring is.
        unsafe { &*self.cells.load(Ordering::Acquire) }
    }

    /// Waits until whoever has the ring alone has opened it.
    #[cold]
    fn wait_for_opening(&self) {
        drop(lock(&self.arrays));
    }

    /// Puts a value behind all others, made where it is put. Behind it the caller sees what others have
    /// done in front of a [`Ring::wait_for_putters`] that has not waited for this.
    #[inline]
    pub fn put(&self, make: impl FnOnce() -> T) -> Result<(), Full> {
        let mut rounds = 0;
        loop {
            let tail = self.tail.0.load(Ordering::Acquire);
            if tail & CLOSED != 0 {
                self.wait_for_opening();
                continue;
            }
            let cells = self.cells();
            let cell = cells.at(tail);
            let sequence = cell.sequence.load(Ordering::Acquire);
            if sequence == free(tail) {
                let moved = self.tail.0.compare_exchange_weak(
                    tail,
                    tail + 1,
                    Ordering::AcqRel,
                    Ordering::Relaxed,
                );
                if moved.is_ok() {
                    // SAFETY: the tail was where the cell was free, and by the exchange this thread is the
                    // only one that has that number; the cell is one of the ring's of now, since the ring
                    // has other positions whenever it has been opened anew.
                    cell.value.with_mut(|place| unsafe { place.write(make()) });
                    cell.sequence.store(full(tail), Ordering::Release);
                    return Ok(());
                }
            } else if sequence < free(tail) {
                let head = self.head.0.load(Ordering::Acquire) & !CLOSED;
                // No other position meanwhile, so the two belong together.
                if self.tail.0.load(Ordering::Acquire) == tail
                    && tail.wrapping_sub(head) >= cells.len()
                {
                    return Err(Full);
                }
            }
            wait_a_moment(&mut rounds);
        }
    }

    /// Whether a call of [`Ring::take`] would find nothing.
    #[inline]
    pub fn is_empty(&self) -> bool {
        loop {
            let head = self.head.0.load(Ordering::Acquire);
            if head & CLOSED != 0 {
                // Who takes waits.
                return false;
            }
            if self.cells().at(head).sequence.load(Ordering::Acquire) == full(head) {
                return false;
            }
            if self.head.0.load(Ordering::Acquire) == head {
                return true;
            }
        }
    }

    /// Values that wait to be taken, about.
    pub fn len(&self) -> usize {
        let head = self.head.0.load(Ordering::Acquire) & !CLOSED;
        let tail = self.tail.0.load(Ordering::Acquire) & !CLOSED;
        tail.saturating_sub(head) as usize
    }

    /// Room for so many.
    pub fn capacity(&self) -> usize {
        let _arrays = lock(&self.arrays);
        self.cells().len() as usize
    }

    /// Gives the oldest values to `each`, and then calls `done`, before anybody else can have the ring
    /// [alone](Ring::alone). How many: at most as wished, and a few at a time. `state` is for both.
    #[inline]
    pub fn take<S>(
        &self,
        most: usize,
        state: &mut S,
        mut each: impl FnMut(&mut S, &T),
        done: impl FnOnce(&mut S),
    ) -> usize {
        let most = most.min(BATCH) as u64;
        let mut rounds = 0;
        loop {
            let head = self.head.0.load(Ordering::Acquire);
            if head & CLOSED != 0 {
                self.wait_for_opening();
                continue;
            }
            let cells = self.cells();
            let is_there = |count| {
                let position = head + count;
                cells.at(position).sequence.load(Ordering::Acquire) == full(position)
            };
            let mut count = 0;
            while count < most && is_there(count) {
                count += 1;
            }
            if count == 0 {
                if self.head.0.load(Ordering::Acquire) == head {
                    return 0;
                }
                continue;
            }
            let moved = self.head.0.compare_exchange_weak(
                head,
                head + count,
                Ordering::AcqRel,
                Ordering::Relaxed,
            );
            if moved.is_err() {
                wait_a_moment(&mut rounds);
                continue;
            }
            for position in head..head + count {
                let cell = cells.at(position);
                // SAFETY: it was there at this number (acquire), and by the exchange this thread is the only
                // one to take it; nobody puts another there before the number goes on, below.
                cell.value.with(|place| each(state, unsafe { &*place }));
            }
            done(state);
            for position in head..head + count {
                let next = free(position + cells.len());
                cells.at(position).sequence.store(next, Ordering::Release);
            }
            return count as usize;
        }
    }

    /// Waits for those who are putting something: what they put is found from now on, and those who put
    /// something behind this see what was done in front of it. A few instructions.
    pub fn wait_for_putters(&self) {
        let _arrays = lock(&self.arrays);
        let tail = self.tail.0.fetch_or(CLOSED, Ordering::AcqRel);
        let cells = self.cells();
        let mut position = self.head.0.load(Ordering::Acquire);
        let mut rounds = 0;
        while position < tail {
            // Put, or taken meanwhile.
            if cells.at(position).sequence.load(Ordering::Acquire) >= full(position) {
                position += 1;
            } else {
                wait_a_moment(&mut rounds);
            }
        }
        // As it was: the cells are the same.
        self.tail.0.store(tail, Ordering::Release);
    }

    /// Changes what is in the ring, and its length, a power of two that holds it all, while nobody else
    /// puts or takes.
    pub fn alone<R>(&self, change: impl FnOnce(&mut Vec<T>, &mut usize) -> R) -> R {
        let mut arrays = lock(&self.arrays);
        let tail = self.tail.0.fetch_or(CLOSED, Ordering::AcqRel);
        let head = self.head.0.fetch_or(CLOSED, Ordering::AcqRel);
        let old = self.cells();
        let await_sequence = |position: u64, sequence: u64| {
            let mut rounds = 0;
            while old.at(position).sequence.load(Ordering::Acquire) != sequence {
                wait_a_moment(&mut rounds);
            }
        };
        // Those who were taking.
        for position in tail.saturating_sub(old.len()).max(arrays.base)..head {
            await_sequence(position, free(position + old.len()));
        }
        // Those who were putting.
        let mut all = Vec::with_capacity((tail - head) as usize);
        for position in head..tail {
            await_sequence(position, full(position));
            // SAFETY: put at this number (acquire), and nobody takes it: the head is closed.
            all.push(old.at(position).value.with(|place| unsafe { *place }));
        }
        let mut len = old.0.len();
        let result = change(&mut all, &mut len);
        debug_assert!(len.is_power_of_two() && all.len() <= len);
        let known = arrays.all.iter().find(|known| known.0.len() == len);
        let new = match known {
            Some(known) => known.clone(),
            None => {
                let new = cells(len);
                arrays.all.push(new.clone());
                new
            }
        };
        let base = tail + 1;
        for (position, value) in (base..).zip(&all) {
            let cell = new.at(position);
            // SAFETY: nobody puts or takes: both ends are closed, and whoever was in a cell has left it.
            // Those who have read an end before find another one when they exchange it.
            cell.value.with_mut(|place| unsafe { place.write(*value) });
            cell.sequence.store(full(position), Ordering::Release);
        }
        let end = base + all.len() as u64;
        for position in end..base + new.len() {
            new.at(position)
                .sequence
                .store(free(position), Ordering::Release);
        }
        arrays.base = base;
        self.cells
            .store(Arc::as_ptr(&new).cast_mut(), Ordering::Release);
        self.head.0.store(base, Ordering::Release);
        self.tail.0.store(end, Ordering::Release);
        result
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use std::collections::VecDeque;
    use std::sync::atomic::AtomicUsize;

    fn taken(ring: &Ring<u64>, most: usize) -> Vec<u64> {
        let mut all = Vec::new();
        ring.take(most, &mut all, |all, value| all.push(*value), |_| {});
        all
    }

    #[test]
    fn what_is_put_is_taken_in_its_order() {
        let ring = Ring::new(4);
        let mut oracle = VecDeque::new();
        for value in 0..100u64 {
            while ring.put(|| value).is_err() {
                assert_eq!(oracle.len(), 4);
                let most = value as usize % 3 + 1;
                let expected: Vec<_> = oracle.drain(..most).collect();
                assert_eq!(taken(&ring, most), expected);
            }
            oracle.push_back(value);
            assert_eq!((ring.len(), ring.is_empty()), (oracle.len(), false));
        }
        assert_eq!(taken(&ring, 9), Vec::from(oracle));
        assert!(ring.is_empty() && taken(&ring, 9).is_empty());
    }

    #[test]
    fn who_is_alone_changes_what_is_there_and_its_room() {
        let ring = Ring::new(4);
        (0..4u64).for_each(|value| ring.put(|| value).unwrap());
        assert_eq!(taken(&ring, 1), [0]);
        ring.alone(|all, _| all.retain(|value| *value != 2));
        assert_eq!((ring.len(), ring.capacity()), (2, 4));
        ring.alone(|_, len| *len = 8);
        (4..10u64).for_each(|value| ring.put(|| value).unwrap());
        assert_eq!(ring.put(|| 10), Err(Full));
        assert_eq!(taken(&ring, 9), [1, 3, 4, 5, 6, 7, 8, 9]);
        // Back to cells that were used before.
        ring.alone(|_, len| *len = 4);
        (0..4u64).for_each(|value| ring.put(|| value).unwrap());
        assert_eq!(
            (ring.put(|| 4), taken(&ring, 9)),
            (Err(Full), vec![0, 1, 2, 3])
        );
    }

    /// Catches: a value that is lost or comes twice, also while the ring is changed.
    #[test]
    fn every_value_comes_once_to_somebody() {
        const EACH: u64 = 20_000;
        const THREADS: u64 = 3;
        let ring = Ring::new(8);
        let (count, sum) = (AtomicUsize::new(0), AtomicU64::new(0));
        let all = (EACH * THREADS) as usize;
        std::thread::scope(|scope| {
            for thread in 0..THREADS {
                let ring = &ring;
                scope.spawn(move || {
                    for value in 0..EACH {
                        while ring.put(|| thread * EACH + value).is_err() {
                            std::thread::yield_now();
                        }
                    }
                });
            }
            for _ in 0..2 {
                scope.spawn(|| {
                    while count.load(Ordering::Relaxed) < all {
                        let came = taken(&ring, 5);
                        sum.fetch_add(came.iter().sum(), Ordering::Relaxed);
                        if count.fetch_add(came.len(), Ordering::Relaxed) % 7 == 0 {
                            std::thread::yield_now();
                        }
                    }
                });
            }
            for turn in 0.. {
                if count.load(Ordering::Relaxed) >= all {
                    break;
                }
                ring.alone(|_, len| *len = if turn % 3 == 0 { 16 } else { 16.max(*len) });
                std::thread::yield_now();
            }
        });
        let all = all as u64;
        assert_eq!(sum.load(Ordering::Relaxed), all * (all - 1) / 2);
        assert!(ring.is_empty());
    }
}

/// Run with `RUSTFLAGS="--cfg loom" cargo test -p sluice-verbs --release --lib loom`.
#[cfg(all(loom, test))]
mod loom_models {
    use super::*;
    use loom::thread;

    fn model(run: impl Fn() + Sync + Send + 'static) {
        let mut builder = loom::model::Builder::new();
        builder.preemption_bound = Some(2);
        builder.check(run);
    }

    fn take_one(ring: &Ring<u64>) -> Option<u64> {
        let mut found = None;
        ring.take(1, &mut found, |found, value| *found = Some(*value), |_| {});
        found
    }

    /// Catches: a value that is read before it is written, lost, or given twice.
    #[test]
    fn two_put_and_one_takes() {
        model(|| {
            let ring = Arc::new(Ring::new(2));
            let putters = [5u64, 7].map(|value| {
                let ring = ring.clone();
                thread::spawn(move || ring.put(|| value).unwrap())
            });
            let early = take_one(&ring);
            for putter in putters {
                putter.join().unwrap();
            }
            let mut sum = early.unwrap_or(0);
            while let Some(value) = take_one(&ring) {
                sum += value;
            }
            assert_eq!(sum, 12);
        });
    }

    /// Catches: a cell that is written again while it is still read.
    #[test]
    fn one_puts_into_a_full_ring_and_two_take() {
        model(|| {
            let ring = Arc::new(Ring::new(1));
            ring.put(|| 3u64).unwrap();
            let taker = {
                let ring = ring.clone();
                thread::spawn(move || take_one(&ring).unwrap_or(0))
            };
            let put = ring.put(|| 9).is_ok();
            let own = take_one(&ring).unwrap_or(0);
            let sum = own + taker.join().unwrap() + take_one(&ring).unwrap_or(0);
            assert_eq!(sum, if put { 12 } else { 3 });
        });
    }

    /// Catches: one who puts into, or takes from, a ring that is no longer that.
    #[test]
    fn one_is_alone_while_another_puts_and_takes() {
        model(|| {
            let ring = Arc::new(Ring::new(2));
            ring.put(|| 1u64).unwrap();
            let other = {
                let ring = ring.clone();
                thread::spawn(move || {
                    ring.put(|| 2).unwrap();
                    take_one(&ring)
                })
            };
            let seen = ring.alone(|all, len| {
                *len = 4;
                let seen = all.clone();
                all.retain(|value| *value != 1);
                seen
            });
            let taken = other.join().unwrap();
            let rest = take_one(&ring);
            match (seen.as_slice(), taken, rest) {
                // Both before, both behind, or one on either side of it.
                ([2], Some(1), Some(2)) | ([1, 2] | [1], Some(2), None) => {}
                other => panic!("{other:?}"),
            }
        });
    }

    fn one_puts_and_one_arms(waits: bool) {
        let ring = Arc::new(Ring::new(1));
        let armed = Arc::new(AtomicU64::new(0));
        let putter = {
            let (ring, armed) = (ring.clone(), armed.clone());
            thread::spawn(move || {
                ring.put(|| 1u64).unwrap();
                armed.load(Ordering::Relaxed)
            })
        };
        armed.store(1, Ordering::Relaxed);
        if waits {
            ring.wait_for_putters();
        }
        let found = !ring.is_empty();
        let seen = putter.join().unwrap() == 1;
        assert!(found || seen);
    }

    /// Catches: who puts sees nobody waiting, and who waits sees nothing there.
    #[test]
    fn who_has_armed_and_finds_nothing_is_seen() {
        model(|| one_puts_and_one_arms(true));
    }

    #[test]
    #[should_panic(expected = "found || seen")]
    fn broken_waiter_that_does_not_wait_for_who_is_putting() {
        model(|| one_puts_and_one_arms(false));
    }
}
