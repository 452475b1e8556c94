//! The atomics and mutexes of what threads share here, or loom's when the models run
//! (`--cfg loom`).

#[cfg(not(loom))]
pub use core::sync::atomic::{AtomicBool, AtomicU64, Ordering};
#[cfg(not(loom))]
pub use sluice_verbs::locks::lock;
#[cfg(not(loom))]
pub use std::sync::Mutex;

#[cfg(loom)]
pub use loom::sync::Mutex;
#[cfg(loom)]
pub use modelled::{AtomicBool, AtomicU32, AtomicU64, Ordering, lock};

/// loom gives accesses with `SeqCst` no order among each other, as the language does, but full fences.
/// One behind each such store stands for it: it is what keeps a load behind the store there, on the
/// machine as well.
#[cfg(loom)]
mod modelled {
    use loom::sync::atomic::fence;

    pub use loom::sync::atomic::Ordering;

    pub fn lock<T>(mutex: &loom::sync::Mutex<T>) -> loom::sync::MutexGuard<'_, T> {
        sluice_verbs::locks::unpoisoned(mutex.lock())
    }

    macro_rules! atomic {
        ($name:ident, $value:ty) => {
            #[derive(Debug)]
            pub struct $name(loom::sync::atomic::$name);

            impl $name {
                pub fn new(value: $value) -> Self {
                    Self(loom::sync::atomic::$name::new(value))
                }

                pub fn load(&self, order: Ordering) -> $value {
                    self.0.load(order)
                }

                pub fn store(&self, value: $value, order: Ordering) {
                    self.0.store(value, order);
                    if order == Ordering::SeqCst {
                        fence(order);
                    }
                }
            }

            impl Default for $name {
                fn default() -> Self {
                    Self::new(<$value>::default())
                }
            }
        };
    }

    atomic!(AtomicBool, bool);
    atomic!(AtomicU32, u32);
    atomic!(AtomicU64, u64);

    impl AtomicU32 {
        pub fn fetch_add(&self, value: u32, order: Ordering) -> u32 {
            let before = self.0.fetch_add(value, order);
            fence(Ordering::SeqCst);
            before
        }
    }
}
