//! One direction of a lane: the words that its two ends exchange, and the handshake that
//! keeps a sender from writing to a ring whose reader sleeps (docs/decisions/0001).
#![allow(unsafe_code)]

use crate::board::Board;
use crate::ready::{Ready, ReadyLine};
use crate::sync::{AtomicU32, AtomicU64, Ordering, fence_after_rmw};
use core::ptr::NonNull;

/// Written by the sender, read by the receiver. All of it lies in one cache line: a line of its
/// own for the intent was not faster between two pollers, and one more to fetch for each lane.
#[derive(Debug, Default)]
#[repr(C, align(128))]
pub struct SenderLine {
    /// Ring position behind the last byte published.
    pub(crate) tail: AtomicU64,
    /// Positions below this one that the receiver has not reached yet were skipped.
    pub(crate) base: AtomicU64,
    /// Bytes of this direction that went by TCP before the current ring segment.
    pub(crate) mark: AtomicU64,
    /// Bytes of this direction that were given to the kernel, in the count of `mark`; only where
    /// the receiver is sluiced, for a reader on another host.
    tcp_sent: AtomicU64,
    /// When the last write to the ring began, and the last one to the socket, on the sender's
    /// monotonic clock. The order of connections in one report, and nothing else, depends on them.
    ring_began_ns: AtomicU64,
    tcp_began_ns: AtomicU64,
    /// [`Mode`] of the bytes that come after everything published.
    pub(crate) mode: AtomicU32,
    /// Not zero while the sender decides and copies.
    pub(crate) intent: AtomicU32,
}

/// Written by the receiver, read by the sender. The position has a cache line of its own: a
/// sender that knows of room does not fetch it.
#[derive(Debug, Default)]
#[repr(C, align(128))]
pub struct ReceiverLine {
    /// Ring position behind the last byte consumed.
    pub(crate) head: AtomicU64,
    /// Bytes of this direction that were read from TCP; only a sign of life for the sender.
    tcp_read: AtomicU64,
    _pad: [u64; 6],
    /// Epoll instances that watch this direction: slots of the receiver's board, a bit each.
    pub(crate) watchers: AtomicU64,
    /// Threads inside the kernel on the socket itself: asleep, or reading TCP bytes.
    pub(crate) sleepers: AtomicU32,
    /// Not zero once the receiver reads by the lane's rules.
    adopted: AtomicU32,
    /// Not zero once the receiver will read no more.
    closed: AtomicU32,
    /// A [`Recall`] between the two ends. Both write it.
    recall: AtomicU32,
}

const _: () = assert!(size_of::<SenderLine>() == 128 || cfg!(loom));
const _: () = assert!(core::mem::offset_of!(SenderLine, intent) < 64 || cfg!(loom));
const _: () = assert!(size_of::<ReceiverLine>() == 128 || cfg!(loom));

/// Which way the bytes go that a sender writes next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// Through the kernel socket.
    Tcp,
    /// Through the ring.
    Ring,
}

/// Where the receiver's wish stands that ring bytes go back to the sender, who sends them again
/// by TCP: the receiver's socket is given to somebody who cannot read the ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Recall {
    /// Nobody wishes it; or the receiver took the wish back, and the bytes stay its own.
    None,
    /// The receiver wishes it and reads nothing from the ring meanwhile.
    Asked,
    /// The bytes are the sender's again.
    Taken,
    /// The sender cannot: later bytes went by TCP already.
    Refused,
}

const RECALL_NONE: u32 = 0;
const RECALL_ASKED: u32 = 1;
const RECALL_TAKEN: u32 = 2;
const RECALL_REFUSED: u32 = 3;

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

    pub(crate) fn ready(&self, slot: u32) -> Ready {
        // SAFETY: `from_raw` promised SLOTS lines; slots come from bits of a 64-bit mask.
        unsafe { Ready::from_raw(self.ready.add(slot as usize * size_of::<ReadyLine>())) }
    }

    // The sender's side.

    /// Announces a write, and says whether the reader is awake. If so the sender may fill the
    /// ring and publish; in either case it calls [`Direction::end_write`] afterwards.
    ///
    /// `board` is the receiver's; without one, a receiver that uses epoll counts as asleep.
    /// Contains a full fence.
    pub fn begin_write(&self, board: Option<Board>) -> bool {
        self.sender().intent.swap(1, Ordering::SeqCst);
        fence_after_rmw();
        // A reader that starts to watch after this load sees the intent.
        let watchers = self.receiver().watchers.load(Ordering::Acquire);
        let mut rest = watchers;
        while rest != 0 {
            self.ready(rest.trailing_zeros()).set(self.lane);
            rest &= rest - 1;
        }
        if watchers != 0 {
            // A reader that announces its sleep after the loads below sees the bit.
            fence_after_rmw();
        }
        self.is_reader_awake(board)
    }

    /// Whether the reader is awake, as far as it has said. Binding only behind
    /// [`Direction::begin_write`], which asks the same.
    pub fn is_reader_awake(&self, board: Option<Board>) -> bool {
        let receiver = self.receiver();
        let watchers = receiver.watchers.load(Ordering::Acquire);
        receiver.sleepers.load(Ordering::Acquire) == 0
            && (watchers == 0 || board.is_some_and(|board| !board.any_asleep(watchers)))
    }

    /// The reader's epoll instances that watch this direction, a mask of slots.
    pub fn watchers(&self) -> u64 {
        self.receiver().watchers.load(Ordering::Acquire)
    }

    /// Breaks the reader's half of the connection: its next look finds a position that cannot be,
    /// and fails. For a sender that knows that bytes are missing.
    pub fn break_reader(&self) {
        self.sender().tail.store(u64::MAX, Ordering::Release);
    }

    /// Breaks the sender's half, likewise.
    pub fn break_sender(&self) {
        self.receiver().head.store(u64::MAX, Ordering::Release);
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

    /// Says how many bytes of this direction were given to the kernel so far, in the count of the
    /// mark, and sets the ready bits. For a receiver that is sluiced.
    pub fn publish_tcp_sent(&self, bytes: u64) {
        self.sender().tcp_sent.store(bytes, Ordering::Release);
        let mut rest = self.receiver().watchers.load(Ordering::Acquire);
        while rest != 0 {
            self.ready(rest.trailing_zeros()).set(self.lane);
            rest &= rest - 1;
        }
    }

    /// Says when the write to the ring began whose bytes are published next.
    pub fn note_ring_write(&self, now_ns: u64) {
        self.sender().ring_began_ns.store(now_ns, Ordering::Relaxed);
    }

    /// Says when the write to the socket began that is about to enter the kernel.
    pub fn note_tcp_write(&self, now_ns: u64) {
        self.sender().tcp_began_ns.store(now_ns, Ordering::Relaxed);
    }

    /// When the last write to the ring began; behind a look at its position, no earlier than the one
    /// of the bytes that were seen. 0: unknown, as from another host. The peer's word.
    pub fn ring_began_ns(&self) -> u64 {
        self.sender().ring_began_ns.load(Ordering::Relaxed)
    }

    /// When the last write to the socket began, likewise.
    pub fn tcp_began_ns(&self) -> u64 {
        self.sender().tcp_began_ns.load(Ordering::Relaxed)
    }

    /// Bytes that were given to the kernel, as far as published. The ring bytes that come before
    /// them are visible.
    pub fn tcp_sent(&self) -> u64 {
        self.sender().tcp_sent.load(Ordering::Acquire)
    }

    /// Whether the receiver reads by the lane's rules yet.
    pub fn is_adopted(&self) -> bool {
        self.receiver().adopted.load(Ordering::Acquire) != 0
    }

    /// Whether the receiver has closed.
    pub fn is_closed(&self) -> bool {
        self.receiver().closed.load(Ordering::Relaxed) != 0
    }

    /// A number that changes whenever the receiver takes bytes, from the ring or from TCP.
    pub fn reader_progress(&self) -> u64 {
        let line = self.receiver();
        line.head
            .load(Ordering::Relaxed)
            .wrapping_add(line.tcp_read.load(Ordering::Relaxed))
    }

    /// How the receiver's wish stands.
    pub fn recall(&self) -> Recall {
        match self.receiver().recall.load(Ordering::Acquire) {
            RECALL_ASKED => Recall::Asked,
            RECALL_TAKEN => Recall::Taken,
            RECALL_REFUSED => Recall::Refused,
            _ => Recall::None,
        }
    }

    /// Answers a wish: takes the ring's unread bytes back, or refuses. False if the receiver was
    /// faster and keeps them.
    pub fn answer_recall(&self, take: bool) -> bool {
        let answer = if take { RECALL_TAKEN } else { RECALL_REFUSED };
        self.exchange_recall(RECALL_ASKED, answer)
    }

    fn exchange_recall(&self, from: u32, to: u32) -> bool {
        let word = &self.receiver().recall;
        word.compare_exchange(from, to, Ordering::AcqRel, Ordering::Acquire)
            .is_ok()
    }

    // The receiver's side.

    /// Wishes that the sender takes the ring's unread bytes back. Until that is answered or
    /// withdrawn the receiver consumes nothing.
    pub fn ask_recall(&self) {
        self.receiver()
            .recall
            .store(RECALL_ASKED, Ordering::Release);
    }

    /// Takes the wish back. False if it was answered meanwhile.
    pub fn withdraw_recall(&self) -> bool {
        self.exchange_recall(RECALL_ASKED, RECALL_NONE)
    }

    /// Tells a sender that waits for room that this end reads, if not yet from the ring.
    pub fn publish_tcp_read(&self, bytes: u64) {
        self.receiver().tcp_read.store(bytes, Ordering::Relaxed);
    }

    /// Which way the sender's next bytes go, as far as published. It may change at once, but behind
    /// [`Receiver::announce`](crate::handover::Receiver::announce).
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

    /// The mark of the present ring segment; 0 without one.
    pub fn mark_if_ring(&self) -> u64 {
        match self.mode() {
            Mode::Ring => self.mark(),
            Mode::Tcp => 0,
        }
    }

    /// Whether the sender is between deciding and publishing. Once this is false, what the last
    /// write published is visible; so look at this first and at ring and mode afterwards.
    pub fn is_write_in_flight(&self) -> bool {
        self.sender().intent.load(Ordering::Acquire) != 0
    }

    /// Announces one more thread that sleeps on the socket or reads its TCP bytes. A full
    /// fence; the caller enters the kernel only if
    /// [`Receiver::may_read_free`](crate::handover::Receiver::may_read_free), asked afterwards,
    /// allows it.
    pub fn announce_sleep(&self) {
        self.receiver().sleepers.fetch_add(1, Ordering::SeqCst);
        fence_after_rmw();
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

    /// Adds an epoll instance to those that watch this direction. A full fence. A
    /// write that began before may not set the instance's ready bit: the caller asks
    /// [`Receiver::look`](crate::handover::Receiver::look) afterwards and treats a write in flight
    /// as a bit taken.
    pub fn watch(&self, slot: u32) {
        self.watch_all(1 << (slot % 64));
    }

    /// Adds those of a mask, whose slots are bits.
    pub fn watch_all(&self, slots: u64) {
        if slots != 0 {
            self.receiver().watchers.fetch_or(slots, Ordering::SeqCst);
            fence_after_rmw();
        }
    }

    /// Removes an epoll instance.
    pub fn unwatch(&self, slot: u32) {
        self.receiver()
            .watchers
            .fetch_and(!(1u64 << (slot % 64)), Ordering::AcqRel);
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::board::{BOARD_BYTES, Slot};
    use crate::geometry::{
        Geometry, LANE_HEADER_BYTES, LANES_MAX, RING_BYTES_MAX, RING_BYTES_MIN, SLOTS,
    };
    use core::mem::offset_of;

    const DOCUMENT: &str = include_str!("../../../../docs/protocols.md");

    #[test]
    fn the_document_has_the_layout() {
        macro_rules! rows {
            ($line:ty, $head:literal: $($field:ident $bits:literal),+) => {
                let head = concat!("| offset in a ", $head, " line |");
                let rows = DOCUMENT.lines().skip_while(|line| !line.starts_with(head)).skip(2);
                let rows: Vec<_> = rows.take_while(|line| line.starts_with('|')).collect();
                let expected = [$((offset_of!($line, $field), $bits, stringify!($field))),+];
                for (row, (offset, bits, name)) in rows.iter().zip(expected) {
                    let begin = format!("| {offset} | {bits} | `{name}` |");
                    assert!(row.starts_with(&begin), "{row} is not {begin}");
                }
                assert_eq!(rows.len(), expected.len());
            };
        }
        rows!(SenderLine, "sender's": tail 64, base 64, mark 64, tcp_sent 64, ring_began_ns 64, tcp_began_ns 64, mode 32, intent 32);
        rows!(ReceiverLine, "receiver's": head 64, tcp_read 64, watchers 64, sleepers 32, adopted 32, closed 32, recall 32);
        let shape = Geometry::new(LANES_MAX, RING_BYTES_MIN).expect("a chunk");
        for text in [
            format!(
                "1 to {LANES_MAX} lanes, rings of a power of two from {RING_BYTES_MIN} to {RING_BYTES_MAX} bytes"
            ),
            format!(
                "| {} | ready lines: for each receiving side (0, 1), {SLOTS} lines of {} bytes",
                shape.ready_line_offset(0, 0),
                size_of::<ReadyLine>()
            ),
            format!(
                "| {} | lane headers of {LANE_HEADER_BYTES} bytes",
                shape.lane_header_offset(0)
            ),
            format!("A line has {} bytes", size_of::<SenderLine>()),
            format!("has {SLOTS} slots of {} bytes", size_of::<Slot>()),
            format!("board ({BOARD_BYTES} bytes)"),
            format!("more than {}\nbytes into it", crate::ring::WINDOW_BYTES),
            format!(
                "{RECALL_NONE} none, {RECALL_ASKED} asked, {RECALL_TAKEN} taken, {RECALL_REFUSED} refused"
            ),
        ] {
            assert!(DOCUMENT.contains(&text), "the document lacks: {text}");
        }
    }
}
