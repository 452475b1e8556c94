//! One direction of a lane: the words that its two ends exchange, and the handshake that
//! keeps a sender from writing to a ring whose reader sleeps (docs/decisions/0001).
#![allow(unsafe_code)]

use crate::board::Board;
use crate::ready::Ready;
use crate::sync::{AtomicU32, AtomicU64, Ordering, fence};
use core::ptr::NonNull;

/// Written by the sender, read by the receiver.
#[repr(C, align(128))]
pub struct SenderLine {
    /// Ring position behind the last byte published.
    pub(crate) tail: AtomicU64,
    /// Positions below this one that the receiver has not reached yet were skipped.
    pub(crate) base: AtomicU64,
    /// Bytes of this direction that went by TCP before the current ring segment.
    mark: AtomicU64,
    /// [`Mode`] of the bytes that come after everything published.
    mode: AtomicU32,
    /// Not zero while the sender decides and copies.
    intent: AtomicU32,
}

/// Written by the receiver, read by the sender. The position has a cache line of its own: a
/// sender that knows of room does not fetch it.
#[repr(C, align(128))]
pub struct ReceiverLine {
    /// Ring position behind the last byte consumed.
    pub(crate) head: AtomicU64,
    _pad: [u64; 7],
    /// Epoll instances that watch this direction: slots of the receiver's board, a bit each.
    watchers: AtomicU64,
    /// Threads inside the kernel on the socket itself: asleep, or reading TCP bytes.
    sleepers: AtomicU32,
    /// Not zero once the receiver reads by the lane's rules.
    adopted: AtomicU32,
    /// Not zero once the receiver will read no more.
    closed: AtomicU32,
}

const _: () = assert!(size_of::<SenderLine>() == 128 || cfg!(loom));
const _: () = assert!(size_of::<ReceiverLine>() == 128 || cfg!(loom));

/// Which way the bytes go that a sender writes next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// Through the kernel socket.
    Tcp,
    /// Through the ring.
    Ring,
}

/// How often [`Direction::begin_write`] follows a watcher mask that changes under it. Epoll
/// registrations change rarely; a peer that flips the mask for ever is taken for asleep.
const WATCHER_CHANGES_MAX: u32 = 8;

/// One direction of one lane. A view: copying it copies addresses.
#[derive(Clone, Copy, Debug)]
pub struct Direction {
    sender: NonNull<SenderLine>,
    receiver: NonNull<ReceiverLine>,
    data: NonNull<u8>,
    capacity: u32,
    lane: u32,
    /// The first of the receiving side's ready lines.
    ready: NonNull<u8>,
}

// SAFETY: the lines are reached through atomics, the bytes through the position protocol of
// `Producer` and `Consumer`.
unsafe impl Send for Direction {}
// SAFETY: as above.
unsafe impl Sync for Direction {}

impl Direction {
    /// A view of a direction.
    ///
    /// # Safety
    /// All of it stays mapped for writing for the rest of the process's life: the two lines,
    /// `capacity` (a power of two) bytes of `data`, and `SLOTS` ready lines from `ready`.
    pub unsafe fn from_raw(
        sender: NonNull<SenderLine>,
        receiver: NonNull<ReceiverLine>,
        data: NonNull<u8>,
        capacity: u32,
        lane: u32,
        ready: NonNull<u8>,
    ) -> Self {
        debug_assert!(capacity.is_power_of_two());
        Self {
            sender,
            receiver,
            data,
            capacity,
            lane,
            ready,
        }
    }

    /// Bytes that the ring can hold.
    pub fn capacity(&self) -> u32 {
        self.capacity
    }

    pub(crate) fn data(&self) -> NonNull<u8> {
        self.data
    }

    pub(crate) fn sender(&self) -> &SenderLine {
        // SAFETY: `from_raw` promised a mapped line; it consists of atomics.
        unsafe { self.sender.as_ref() }
    }

    pub(crate) fn receiver(&self) -> &ReceiverLine {
        // SAFETY: as in `sender`.
        unsafe { self.receiver.as_ref() }
    }

    fn ready(&self, slot: u32) -> Ready {
        // SAFETY: `from_raw` promised SLOTS lines; slots come from bits of a 64-bit mask.
        unsafe { Ready::from_raw(self.ready.add(slot as usize * 64)) }
    }

    // The sender's side.

    /// Announces a write, and says whether the reader is awake. If so the sender may fill the
    /// ring and publish; in either case it calls [`Direction::end_write`] afterwards.
    ///
    /// `board` is the receiver's. Contains a full fence.
    pub fn begin_write(&self, board: Option<Board>) -> bool {
        self.sender().intent.store(1, Ordering::Relaxed);
        let receiver = self.receiver();
        let mut watchers = receiver.watchers.load(Ordering::Relaxed);
        for _ in 0..WATCHER_CHANGES_MAX {
            if watchers == 0 {
                fence(Ordering::SeqCst);
            }
            let mut rest = watchers;
            while rest != 0 {
                self.ready(rest.trailing_zeros()).set(self.lane);
                rest &= rest - 1;
            }
            // Behind the fence: a reader that starts to watch after this load sees the intent.
            let now = receiver.watchers.load(Ordering::Acquire);
            if now == watchers {
                return receiver.sleepers.load(Ordering::Acquire) == 0
                    && (watchers == 0 || board.is_some_and(|board| !board.any_asleep(watchers)));
            }
            watchers = now;
        }
        false
    }

    /// Ends what [`Direction::begin_write`] announced.
    pub fn end_write(&self) {
        self.sender().intent.store(0, Ordering::Release);
    }

    /// Publishes which way the next bytes go. `mark` counts for [`Mode::Ring`]: the bytes of
    /// this direction that went by TCP before.
    ///
    /// To be called between `begin_write` and `end_write` when the mode becomes `Ring`.
    pub fn publish_mode(&self, mode: Mode, mark: u64) {
        let line = self.sender();
        match mode {
            Mode::Ring => {
                line.mark.store(mark, Ordering::Relaxed);
                line.mode.store(1, Ordering::Release);
            }
            Mode::Tcp => line.mode.store(0, Ordering::Release),
        }
    }

    /// Whether the receiver reads by the lane's rules yet.
    pub fn is_adopted(&self) -> bool {
        self.receiver().adopted.load(Ordering::Acquire) != 0
    }

    /// Whether the receiver has closed.
    pub fn is_closed(&self) -> bool {
        self.receiver().closed.load(Ordering::Relaxed) != 0
    }

    // The receiver's side.

    /// Which way the sender's next bytes go, as far as published.
    pub fn mode(&self) -> Mode {
        match self.sender().mode.load(Ordering::Acquire) {
            1 => Mode::Ring,
            _ => Mode::Tcp,
        }
    }

    /// Bytes that went by TCP before the ring segment that was published last.
    pub fn mark(&self) -> u64 {
        self.sender().mark.load(Ordering::Relaxed)
    }

    /// Whether the sender is between deciding and publishing.
    pub fn is_write_in_flight(&self) -> bool {
        self.sender().intent.load(Ordering::Acquire) != 0
    }

    /// Announces one more thread that sleeps on the socket or reads its TCP bytes. A full
    /// fence; the caller looks at ring, mode and intent once more before it enters the kernel.
    pub fn announce_sleep(&self) {
        self.receiver().sleepers.fetch_add(1, Ordering::SeqCst);
        fence(Ordering::SeqCst);
    }

    /// Takes one announcement back.
    pub fn withdraw_sleep(&self) {
        self.receiver().sleepers.fetch_sub(1, Ordering::Release);
    }

    /// From here on the receiver reads by the lane's rules.
    pub fn adopt(&self) {
        self.receiver().adopted.store(1, Ordering::Release);
    }

    /// From here on the receiver reads no more.
    pub fn close(&self) {
        self.receiver().closed.store(1, Ordering::Release);
    }

    /// Adds an epoll instance to those that watch this direction. A full fence; the caller
    /// looks at the ring and the intent afterwards.
    pub fn watch(&self, slot: u32) {
        self.receiver()
            .watchers
            .fetch_or(1 << (slot % 64), Ordering::SeqCst);
        fence(Ordering::SeqCst);
    }

    /// Removes an epoll instance.
    pub fn unwatch(&self, slot: u32) {
        self.receiver()
            .watchers
            .fetch_and(!(1u64 << (slot % 64)), Ordering::AcqRel);
    }
}
