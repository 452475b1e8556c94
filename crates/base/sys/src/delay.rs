//! For measurements: memory whose news takes longer, as behind a bridge.

use core::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

/// How long the readers of some kind of memory wait, without giving up their processor, from the moment
/// that they find something new until they believe it; nothing unless somebody says so. What is written
/// meanwhile is found the next time.
#[derive(Debug, Default)]
pub struct Delay {
    ns: AtomicU32,
}

impl Delay {
    pub const fn none() -> Self {
        Self {
            ns: AtomicU32::new(0),
        }
    }

    /// For this whole process, from now on.
    pub fn set_ns(&self, ns: u32) {
        self.ns.store(ns, Ordering::Relaxed);
    }

    /// Something new was found.
    #[inline]
    pub fn wait(&self) {
        let ns = self.ns.load(Ordering::Relaxed);
        if ns != 0 {
            spin(Duration::from_nanos(ns.into()));
        }
    }
}

#[cold]
fn spin(delay: Duration) {
    let begun = Instant::now();
    while begun.elapsed() < delay {
        core::hint::spin_loop();
    }
}
