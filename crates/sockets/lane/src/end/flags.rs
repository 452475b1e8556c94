//! What is so of an end and of its connection, a bit each, in memory that several processes share.
//!
//! They are independent of one another, and each is set and cleared in one step. What is decided from several of them
//! has a name at [`End`](super::End). Programs and daemons of several versions look at the same bits: they keep their
//! places.

use core::ops::BitOr;
use core::sync::atomic::{AtomicU32, Ordering};

/// Some of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Flags(u32);

impl Flags {
    // The kernel's socket.

    /// Calls do not block: as the kernel says when the connection is announced, and as fcntl and ioctl
    /// say.
    pub const NONBLOCK: Self = Self(1);
    /// It has TCP_NODELAY from us and not from the program.
    pub const OUR_NODELAY: Self = Self(1 << 9);
    /// The program has shut down reading: the kernel reports the end of the stream when it has
    /// no bytes.
    pub const SHUT_RX: Self = Self(1 << 8);

    // The lane.

    /// This end is side 1 of its lane.
    pub const SIDE1: Self = Self(1 << 1);
    /// The other process of the lane is sluiced, and the peer is on another host.
    pub const REMOTE: Self = Self(1 << 13);
    /// The lane lies in a window, and the peer is a program on another host.
    pub const DIRECT: Self = Self(1 << 17);
    /// It waits until the program goes about its connections more quickly.
    pub const PATIENT: Self = Self(1 << 14);
    /// The peer broke the rules of shared memory.
    pub const BROKEN: Self = Self(1 << 6);

    // Sending.

    /// The sender stays on TCP for good.
    pub const PIN_TX: Self = Self(1 << 2);
    /// The program has ended its half, or is about to: nothing more can be sent.
    pub const SHUT_TX: Self = Self(1 << 18);
    /// No sender is left that could write to the peer's ring.
    pub const SENDER_GONE: Self = Self(1 << 7);
    /// The program was told, or is about to be, that the peer is gone with what this end had sent.
    pub const LOST_TOLD: Self = Self(1 << 15);

    // Receiving.

    /// The receiver takes no (more) ring bytes.
    pub const PIN_RX: Self = Self(1 << 3);
    /// The receiver reads by the lane's rules.
    pub const ENABLED: Self = Self(1 << 5);
    /// The peer has finished sending, or the connection is reset.
    pub const PEER_DONE: Self = Self(1 << 4);
    /// Bytes of the stream are where this process cannot read them.
    pub const GAP: Self = Self(1 << 10);
    /// Other programs may have copies of the unread ring bytes.
    pub const COPIED: Self = Self(1 << 16);

    // Who has the connection.

    /// The program waits for it by calls that Sluice sees.
    pub const WAIT_SEEN: Self = Self(1 << 11);
    /// It came from another program, which may have it still.
    pub const ARRIVED: Self = Self(1 << 19);
    /// Programs that do not use this record moved bytes of it.
    pub const MOVED_ELSEWHERE: Self = Self(1 << 12);

    /// Both directions.
    pub const PINNED: Self = Self::PIN_TX.and(Self::PIN_RX);

    pub const fn and(self, others: Self) -> Self {
        Self(self.0 | others.0)
    }

    /// `self` if that is so, else none.
    pub fn only_if(self, is_so: bool) -> Self {
        if is_so { self } else { Self(0) }
    }

    /// As they are in the memory of another process.
    pub const fn of(bits: u32) -> Self {
        Self(bits)
    }

    pub const fn has_any(self, of: Self) -> bool {
        self.0 & of.0 != 0
    }

    /// Whether all of `these` are set, and none of `but`.
    pub const fn has(self, these: Self, but: Self) -> bool {
        self.0 & (these.0 | but.0) == these.0
    }
}

impl BitOr for Flags {
    type Output = Self;
    fn bitor(self, others: Self) -> Self {
        self.and(others)
    }
}

/// Those of one end.
#[repr(transparent)]
pub(crate) struct Shared(AtomicU32);

impl Shared {
    pub fn get(&self) -> Flags {
        Flags(self.0.load(Ordering::Relaxed))
    }

    /// Sets some; all as they were before.
    pub fn set(&self, some: Flags) -> Flags {
        Flags(self.0.fetch_or(some.0, Ordering::Relaxed))
    }

    pub fn clear(&self, some: Flags) {
        self.0.fetch_and(!some.0, Ordering::Relaxed);
    }

    /// Sets or clears some.
    pub fn put(&self, some: Flags, is_so: bool) {
        if is_so {
            self.set(some);
        } else {
            self.clear(some);
        }
    }

    pub fn clear_all(&self) {
        self.0.store(0, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flags_are_set_and_cleared_by_themselves() {
        let shared = Shared(AtomicU32::new(0));
        assert_eq!(shared.set(Flags::PIN_RX), Flags(0));
        assert_eq!(shared.set(Flags::GAP | Flags::PIN_TX), Flags::PIN_RX);
        assert!(shared.get().has(Flags::PINNED, Flags::ENABLED));
        assert!(!shared.get().has(Flags::PINNED, Flags::GAP));
        shared.put(Flags::PIN_TX, false);
        assert!(shared.get().has_any(Flags::PINNED) && !shared.get().has(Flags::PINNED, Flags(0)));
        assert!(
            !shared
                .get()
                .has_any(Flags::COPIED.only_if(true) | Flags::GAP.only_if(false))
        );
        shared.clear_all();
        assert_eq!(shared.get(), Flags(0));
    }
}
