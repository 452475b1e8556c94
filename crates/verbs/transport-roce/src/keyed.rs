//! What is a shard's and lies elsewhere, as its queue pairs' machines do: whoever has the shard has its key, and
//! with that reaches them. No lock of their own is needed, and none can be forgotten.
#![allow(unsafe_code)]

use core::cell::UnsafeCell;
use core::sync::atomic::{AtomicU64, Ordering};

/// A shard's key. There is one of each.
#[derive(Debug, Default)]
pub struct Key(u64);

/// What a key opens, for those who make something that it is to open.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Keyhole(u64);

impl Key {
    /// Another one than all before.
    pub fn new() -> Self {
        // The default opens nothing.
        static NEXT: AtomicU64 = AtomicU64::new(1);
        Self(NEXT.fetch_add(1, Ordering::Relaxed))
    }

    pub fn hole(&self) -> Keyhole {
        Keyhole(self.0)
    }

    /// Takes it, and leaves one that opens nothing.
    pub fn take(&mut self) -> Self {
        core::mem::take(self)
    }
}

/// Something that one key opens.
pub struct Keyed<T> {
    hole: Keyhole,
    value: UnsafeCell<T>,
}

// SAFETY: a `&Keyed` gives out the value by `&mut` to whoever has the key by `&mut`, of which there is one: to one
// thread at a time, so that the value goes from one to the next.
unsafe impl<T: Send> Sync for Keyed<T> {}

impl<T> Keyed<T> {
    pub fn new(hole: Keyhole, value: T) -> Self {
        Self {
            hole,
            value: UnsafeCell::new(value),
        }
    }

    pub fn is_opened_by(&self, key: &Key) -> bool {
        self.hole == key.hole()
    }

    /// The value, for as long as the key is in it. The wrong key is a mistake of the caller's.
    #[inline]
    pub fn open<'a>(&'a self, key: &'a mut Key) -> &'a mut T {
        assert_eq!(self.hole, key.hole(), "the key of another shard");
        // SAFETY: keys are all different and are not copied, so this is the only one that opens it; it is borrowed
        // as long as what is given out. A key that was taken opens nothing, since no hole is for it.
        unsafe { &mut *self.value.get() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn its_key_opens_it_and_no_other_does() {
        let (mut one, mut other) = (Key::new(), Key::new());
        let value = Keyed::new(one.hole(), 1);
        *value.open(&mut one) += 1;
        let mut moved = one.take();
        assert_eq!(*value.open(&mut moved), 2);
        assert!(value.is_opened_by(&moved) && !value.is_opened_by(&other));
        for wrong in [&mut one, &mut other] {
            let open = std::panic::AssertUnwindSafe(|| *value.open(wrong));
            assert!(std::panic::catch_unwind(open).is_err());
        }
    }
}
