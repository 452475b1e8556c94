//! Things in a ring that their owner writes, lends in some order, and writes again when they are back.
//!
//! The owner, one thread at a time, numbers what it lends: each number is greater than the one before,
//! and has its place in the ring by its lowest bits. The borrower, another one at a time, finds the
//! numbers in the order of lending, reads the things, and gives them back from the first on. Neither
//! takes a lock, and neither waits for the other.
//!
//! What is lent nobody writes: [`Owner::write`] looks. So the two need not trust each other.
#![allow(unsafe_code)]

use crate::sync::{Arc, AtomicU64, Ordering, UnsafeCell};

/// A place of the ring.
struct Place<T, O> {
    /// 0: it is the owner's. Else it is lent, with the number that is less by 1.
    lent: AtomicU64,
    /// What the owner notes about the thing, lent or not.
    note: UnsafeCell<O>,
    thing: UnsafeCell<T>,
}

struct Ring<T, O> {
    places: Box<[Place<T, O>]>,
    /// Numbers in the order of lending. As long as the places: no more can be lent at a time.
    order: Box<[AtomicU64]>,
    /// Counts what was ever lent.
    handed: AtomicU64,
}

// SAFETY: a thing is written by the owner alone, which is one, and only while it is not lent; the borrower,
// which is one, reads it only while it is, and neither can say otherwise while a reference lives (see
// `Owner::write`, `Borrower::read`, `Borrower::give_back`). So a thing goes from thread to thread
// (`Send`), and is read by both at once (`Sync`). Notes are the owner's alone.
unsafe impl<T: Send + Sync, O: Send> Sync for Ring<T, O> {}
// SAFETY: the ring owns its things and notes, which may both go to another thread and be dropped there
// (`Send`).
unsafe impl<T: Send + Sync, O: Send> Send for Ring<T, O> {}

impl<T, O> Ring<T, O> {
    fn at(&self, number: u64) -> usize {
        number as usize & (self.places.len() - 1)
    }

    fn place(&self, number: u64) -> Option<&Place<T, O>> {
        // An empty ring has no place for any number.
        self.places
            .get(number as usize & self.places.len().wrapping_sub(1))
    }
}

/// Who writes and lends.
pub(crate) struct Owner<T, O> {
    ring: Arc<Ring<T, O>>,
}

/// Who reads what is lent, and gives it back.
pub(crate) struct Borrower<T, O> {
    ring: Arc<Ring<T, O>>,
    /// Counts what was ever given back.
    back: u64,
    /// Counts what was ever taken up.
    taken: u64,
}

/// `things`: a power of two of them, or none.
pub(crate) fn loans<T, O: Copy>(
    things: impl IntoIterator<Item = T>,
    note: O,
) -> (Owner<T, O>, Borrower<T, O>) {
    let places: Box<[_]> = things
        .into_iter()
        .map(|thing| Place {
            lent: AtomicU64::new(0),
            note: UnsafeCell::new(note),
            thing: UnsafeCell::new(thing),
        })
        .collect();
    debug_assert!(places.is_empty() || places.len().is_power_of_two());
    let ring = Arc::new(Ring {
        order: places.iter().map(|_| AtomicU64::new(0)).collect(),
        places,
        handed: AtomicU64::new(0),
    });
    let borrower = Borrower {
        ring: ring.clone(),
        back: 0,
        taken: 0,
    };
    (Owner { ring }, borrower)
}

impl<T, O: Copy> Owner<T, O> {
    pub fn len(&self) -> usize {
        self.ring.places.len()
    }

    /// Looks at a thing, lent or not.
    #[inline]
    pub fn read<R>(&self, number: u64, look: impl FnOnce(usize, &T) -> R) -> R {
        let at = self.ring.at(number);
        // SAFETY: only `write` makes another kind of reference, and needs `&mut self` for it.
        self.ring.places[at]
            .thing
            .with(|thing| look(at, unsafe { &*thing }))
    }

    /// What was noted last.
    #[inline]
    pub fn note(&self, number: u64) -> O {
        let place = &self.ring.places[self.ring.at(number)];
        // SAFETY: only the owner, which is one, reaches notes, and only `set_note` writes them, which needs
        // `&mut self`.
        place.note.with(|note| unsafe { *note })
    }

    /// Looks at a thing and at what was noted about it.
    #[inline]
    pub fn both<R>(&self, number: u64, look: impl FnOnce(&O, &T) -> R) -> R {
        let place = &self.ring.places[self.ring.at(number)];
        place.note.with(|note| {
            // SAFETY: only the owner reaches notes, and only `write` and `set_note` make references that
            // exclude these; both need `&mut self`.
            place
                .thing
                .with(|thing| look(unsafe { &*note }, unsafe { &*thing }))
        })
    }

    #[inline]
    pub fn set_note(&mut self, number: u64, value: O) {
        let place = &self.ring.places[self.ring.at(number)];
        // SAFETY: only the owner, which is one, reaches notes, and by `&mut self` nobody looks at one now.
        place.note.with_mut(|note| unsafe { *note = value });
    }

    /// Changes a thing, which must not be lent; `change` gets its place's number as well.
    #[inline]
    pub fn write<R>(&mut self, number: u64, change: impl FnOnce(usize, &mut T) -> R) -> R {
        let at = self.ring.at(number);
        let place = &self.ring.places[at];
        assert!(
            place.lent.load(Ordering::Acquire) == 0,
            "a request is given back before its place is used again"
        );
        // SAFETY: not lent, and only this owner lends: the borrower has no reference and gets none. What
        // it read was before it gave the thing back (acquire). The owner's own are excluded by `&mut`.
        place
            .thing
            .with_mut(|thing| change(at, unsafe { &mut *thing }))
    }

    /// Lends the thing of that number, as it is now.
    #[inline]
    pub fn lend(&mut self, number: u64) {
        let ring = &*self.ring;
        let place = &ring.places[ring.at(number)];
        debug_assert_eq!(place.lent.load(Ordering::Relaxed), 0);
        // Whoever asks for it by its number must find what was written.
        place.lent.store(number + 1, Ordering::Release);
        let handed = ring.handed.load(Ordering::Relaxed);
        ring.order[ring.at(handed)].store(number, Ordering::Relaxed);
        ring.handed.store(handed + 1, Ordering::Release);
    }
}

impl<T, O> Borrower<T, O> {
    /// The number of the first that was lent and not taken up.
    #[inline]
    pub fn next(&self) -> Option<u64> {
        (self.taken != self.ring.handed.load(Ordering::Acquire)).then(|| self.number(self.taken))
    }

    /// Takes it up.
    #[inline]
    pub fn take(&mut self) {
        debug_assert!(self.next().is_some());
        self.taken += 1;
    }

    /// How many are taken up and not given back.
    pub fn held(&self) -> u64 {
        self.taken - self.back
    }

    /// The number of the first of those.
    #[inline]
    pub fn first(&self) -> Option<u64> {
        (self.back != self.taken).then(|| self.number(self.back))
    }

    fn number(&self, count: u64) -> u64 {
        self.ring.order[self.ring.at(count)].load(Ordering::Relaxed)
    }

    /// Looks at what is lent by that number, taken up or not.
    #[inline]
    pub fn read<R>(&self, number: u64, look: impl FnOnce(usize, &T) -> R) -> Option<R> {
        let place = self.ring.place(number)?;
        if place.lent.load(Ordering::Acquire) != number + 1 {
            return None;
        }
        let at = self.ring.at(number);
        // SAFETY: lent by this very number, so written before (acquire), and the owner writes it only when
        // it has been given back, which needs `&mut self` and so is behind this call.
        Some(place.thing.with(|thing| look(at, unsafe { &*thing })))
    }

    /// Gives back what was taken up, from the first to that of the number.
    #[inline]
    pub fn give_back(&mut self, number: u64) {
        while let Some(first) = self.first()
            && first <= number
        {
            let place = &self.ring.places[self.ring.at(first)];
            self.back += 1;
            // The owner may write it from here on.
            place.lent.store(0, Ordering::Release);
        }
    }

    /// Gives back all that was lent, taken up or not.
    pub fn give_all_back(&mut self) {
        while self.next().is_some() {
            self.take();
        }
        self.give_back(u64::MAX);
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn what_is_lent_is_found_in_its_order_until_it_is_given_back() {
        let (mut owner, mut borrower) = loans([0u64; 4], 'a');
        assert_eq!((borrower.next(), owner.len()), (None, 4));
        // Numbers with gaps.
        for number in [0, 2, 3] {
            owner.write(number, |_, thing| *thing = 10 * number);
            owner.lend(number);
        }
        assert_eq!(borrower.next(), Some(0));
        borrower.take();
        assert_eq!((borrower.next(), borrower.held()), (Some(2), 1));
        assert_eq!(borrower.first(), Some(0));
        assert_eq!(borrower.read(3, |_, thing| *thing), Some(30));
        for other in [1, 4, 7] {
            assert_eq!(borrower.read(other, |_, thing| *thing), None, "{other}");
        }
        borrower.take();
        borrower.give_back(1);
        assert_eq!((borrower.held(), borrower.read(0, |_, _| ())), (1, None));
        owner.write(4, |at, thing| *thing = 40 + at as u64);
        owner.lend(4);
        owner.set_note(4, 'b');
        assert_eq!((owner.note(4), owner.note(5)), ('b', 'a'));
        borrower.give_all_back();
        assert_eq!((borrower.held(), borrower.next()), (0, None));
        for number in 5..9 {
            owner.write(number, |_, thing| *thing = 0);
        }
    }

    #[test]
    #[should_panic(expected = "given back")]
    fn what_is_lent_is_not_written() {
        let (mut owner, _borrower) = loans([0u64; 2], ());
        owner.lend(1);
        owner.write(3, |_, thing| *thing = 1);
    }

    #[test]
    fn a_ring_without_places_has_nothing() {
        let (_owner, mut borrower) = loans([0u64; 0], ());
        borrower.give_all_back();
        assert_eq!((borrower.next(), borrower.read(0, |_, _| ())), (None, None));
    }
}

/// Run with `RUSTFLAGS="--cfg loom" cargo test -p sluice-verbs --release --lib loom`.
#[cfg(all(loom, test))]
mod loom_models {
    use super::*;
    use loom::sync::atomic::AtomicU64 as Word;
    use loom::thread;

    /// Catches: a thing that is found before it is written, or written again before it is back.
    #[test]
    fn what_is_lent_is_whole_and_in_order() {
        loom::model(|| {
            let (mut owner, mut borrower) = loans([0u64; 2], 0u64);
            // The room that the owner knows of, which comes another way: completions that were polled.
            let back = Arc::new(Word::new(0));
            let polled = back.clone();
            let lender = thread::spawn(move || {
                for number in 0..3u64 {
                    while number - polled.load(Ordering::Acquire) >= 2 {
                        thread::yield_now();
                    }
                    owner.write(number, |_, thing| *thing = number + 7);
                    owner.lend(number);
                    owner.set_note(number, number);
                }
            });
            for number in 0..3u64 {
                while borrower.next().is_none() {
                    thread::yield_now();
                }
                assert_eq!(borrower.next(), Some(number));
                borrower.take();
                assert_eq!(borrower.read(number, |_, thing| *thing), Some(number + 7));
                borrower.give_back(number);
                back.store(number + 1, Ordering::Release);
            }
            lender.join().unwrap();
        });
    }
}
