//! What an end counts: bytes by either way, events, and calls of the kernel.
//!
//! Bytes, events and calls are changed without a locked instruction by whoever holds the lock of the half that they are
//! of, or may lose one to a racing thread: see [`count`](crate::lock::count).

use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// Bytes that the program read and wrote.
#[repr(C)]
pub(crate) struct Bytes {
    pub ring_rx: AtomicU64,
    pub ring_tx: AtomicU64,
    pub tcp_rx: AtomicU64,
    pub tcp_tx: AtomicU64,
}

impl Bytes {
    pub fn reset(&self) {
        for counter in [&self.ring_rx, &self.ring_tx, &self.tcp_rx, &self.tcp_tx] {
            counter.store(0, Ordering::Relaxed);
        }
    }

    /// Takes the kernel's word for what went by TCP.
    pub fn set_tcp(&self, read: u64, written: u64) {
        self.tcp_rx.store(read, Ordering::Relaxed);
        self.tcp_tx.store(written, Ordering::Relaxed);
    }

    /// Received and sent by the ring.
    pub fn ring(&self) -> [u64; 2] {
        [&self.ring_rx, &self.ring_tx].map(|counter| counter.load(Ordering::Relaxed))
    }

    /// Received and sent by TCP.
    pub fn tcp(&self) -> [u64; 2] {
        [&self.tcp_rx, &self.tcp_tx].map(|counter| counter.load(Ordering::Relaxed))
    }
}

/// How often something has happened.
#[repr(C)]
pub(crate) struct Events {
    /// Changes between ring and TCP of what this end sends.
    pub(super) switches: AtomicU32,
    /// Waits that slept in the kernel.
    pub(super) sleeps: AtomicU32,
    /// Waits that polling ended.
    pub(super) spins: AtomicU32,
}

impl Events {
    pub fn reset(&self) {
        for counter in [&self.switches, &self.sleeps, &self.spins] {
            counter.store(0, Ordering::Relaxed);
        }
    }

    pub fn switched(&self) {
        self.switches.fetch_add(1, Ordering::Relaxed);
    }

    pub fn slept(&self) {
        self.sleeps.fetch_add(1, Ordering::Relaxed);
    }

    pub fn spun(&self) {
        self.spins.fetch_add(1, Ordering::Relaxed);
    }

    /// Switches, sleeps and spins.
    pub fn get(&self) -> [u64; 3] {
        [&self.switches, &self.sleeps, &self.spins]
            .map(|counter| counter.load(Ordering::Relaxed).into())
    }
}

/// Calls of the kernel, as far as they say for how long its last answer holds
/// ([`Asked`](crate::wait::Asked)).
#[repr(C)]
pub(crate) struct KernelCalls {
    /// Reads without a bound that were begun by the lane's rules.
    pub(super) unbounded_reads: AtomicU32,
    /// The last of them that found the kernel's queue empty behind what it took.
    pub(super) draining_read: AtomicU32,
    /// Writes that went by TCP.
    pub(super) writes: AtomicU32,
}

impl KernelCalls {
    pub fn reset(&self) {
        for counter in [&self.unbounded_reads, &self.draining_read, &self.writes] {
            counter.store(0, Ordering::Relaxed);
        }
    }

    /// A read without a bound begins, under the lock of the receiving half. Its number.
    pub fn begin_read(&self) -> u32 {
        crate::lock::count(&self.unbounded_reads, 1).wrapping_add(1)
    }

    /// That read has found that nothing is left in the kernel.
    pub fn drained_by(&self, number: u32) {
        self.draining_read.store(number, Ordering::Release);
    }

    /// Reads that have begun.
    pub fn reads(&self) -> u32 {
        self.unbounded_reads.load(Ordering::Acquire)
    }

    /// Whether a read drained the kernel that began when these many had begun.
    pub fn is_drained_since(&self, reads: u32) -> bool {
        let draining = self.draining_read.load(Ordering::Acquire);
        draining.wrapping_sub(reads).cast_signed() > 0
    }

    /// A write went by TCP. The caller holds the lock of the sending half.
    pub fn count_write(&self) {
        crate::lock::count(&self.writes, 1);
    }

    /// Writes that went by TCP.
    pub fn writes(&self) -> u32 {
        self.writes.load(Ordering::Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lock::count_bytes;

    #[test]
    fn bytes_and_events_are_told_apart_and_forgotten() {
        let [ring_rx, ring_tx, tcp_rx, tcp_tx] = [1, 2, 3, 4].map(AtomicU64::new);
        let bytes = Bytes {
            ring_rx,
            ring_tx,
            tcp_rx,
            tcp_tx,
        };
        assert_eq!(count_bytes(&bytes.ring_tx, 10), 2, "what there was");
        assert_eq!((bytes.ring(), bytes.tcp()), ([1, 12], [3, 4]));
        bytes.set_tcp(50, 60);
        assert_eq!((bytes.ring(), bytes.tcp()), ([1, 12], [50, 60]));
        bytes.reset();
        assert_eq!((bytes.ring(), bytes.tcp()), ([0; 2], [0; 2]));

        let [switches, sleeps, spins] = [0; 3].map(AtomicU32::new);
        let events = Events {
            switches,
            sleeps,
            spins,
        };
        events.switched();
        (0..2).for_each(|_| events.slept());
        (0..3).for_each(|_| events.spun());
        assert_eq!(events.get(), [1, 2, 3]);
        events.reset();
        assert_eq!(events.get(), [0; 3]);
    }

    #[test]
    fn only_a_read_that_began_since_has_drained_the_kernel() {
        // Shortly before the numbers begin anew.
        let [unbounded_reads, draining_read, writes] = [u32::MAX - 1; 3].map(AtomicU32::new);
        let calls = KernelCalls {
            unbounded_reads,
            draining_read,
            writes,
        };
        let before = calls.begin_read();
        let asked = calls.reads();
        calls.drained_by(before);
        assert!(!calls.is_drained_since(asked), "it had begun already");
        let since = calls.begin_read();
        assert!(!calls.is_drained_since(asked), "it has not said so");
        calls.drained_by(since);
        assert!(calls.is_drained_since(asked) && !calls.is_drained_since(calls.reads()));
        calls.count_write();
        assert_eq!(calls.writes(), u32::MAX);
        calls.reset();
        assert_eq!((calls.reads(), calls.writes()), (0, 0));
    }
}
