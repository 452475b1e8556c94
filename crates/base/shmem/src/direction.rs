//! One direction of a lane: the words that its two ends exchange, and the handshake that
//! keeps a sender from writing to a ring whose reader sleeps (docs/decisions/0001). Everybody may read
//! the words; [`handover`](crate::handover) writes them.
#![allow(unsafe_code)]

mod words;

pub use words::Words;

use crate::parking::ParkingTable;
use crate::ready::{Ready, ReadyLine};
use crate::sync::{AtomicU32, AtomicU64, Ordering, fence_after_rmw};
use core::ptr::NonNull;

/// Written by the sender, read by the receiver. All of it lies in one cache line: a line of its
/// own for the busy flag was not faster between two pollers, and one more to fetch for each lane.
#[derive(Debug, Default)]
#[repr(C, align(128))]
pub struct SenderLine {
    /// Ring position behind the last byte published.
    pub(crate) tail: AtomicU64,
    /// Positions below this one that the receiver has not reached yet were skipped.
    pub(crate) base: AtomicU64,
    /// Bytes of this direction that went by TCP before the current ring segment.
    pub(crate) switch_offset: AtomicU64,
    /// Bytes of this direction that were given to the kernel, in the count of `switch_offset`; only where
    /// the receiver is sluiced, for a reader on another host.
    tcp_sent: AtomicU64,
    /// When the last write to the ring began, and the last one to the socket, on the sender's
    /// monotonic clock. The order of connections in one report, and nothing else, depends on them.
    ring_began_ns: AtomicU64,
    tcp_began_ns: AtomicU64,
    /// [`Mode`] of the bytes that come after everything published.
    pub(crate) mode: AtomicU32,
    /// Not zero while the sender decides and copies.
    pub(crate) busy: AtomicU32,
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
    /// Epoll instances that watch this direction: slots of the receiver's parking table, a bit each.
    pub(crate) watchers: AtomicU64,
    /// Threads inside the kernel on the socket itself: asleep, or reading TCP bytes.
    pub(crate) sleepers: AtomicU32,
    /// Not zero once the receiver reads by the lane's rules.
    enabled: AtomicU32,
    /// Not zero once the receiver will read no more.
    closed: AtomicU32,
    /// A [`Reclaim`] between the two ends. Both write it.
    pub(crate) reclaim: AtomicU32,
}

const _: () = assert!(size_of::<SenderLine>() == 128 || cfg!(loom));
const _: () = assert!(core::mem::offset_of!(SenderLine, busy) < 64 || cfg!(loom));
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
pub enum Reclaim {
    /// Nobody wishes it; or the receiver took the wish back, and the bytes stay its own.
    None,
    /// The receiver wishes it and reads nothing from the ring meanwhile.
    Asked,
    /// The bytes are the sender's again.
    Taken,
    /// The sender cannot: later bytes went by TCP already.
    Refused,
}

const RECLAIM_NONE: u32 = 0;
const RECLAIM_ASKED: u32 = 1;
const RECLAIM_TAKEN: u32 = 2;
const RECLAIM_REFUSED: u32 = 3;

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
// SAFETY: a shared `Direction` gives out the lines' atomics and the bytes' address; whoever reads or writes
// bytes does so by the positions of `Producer` and `Consumer`.
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
        // SAFETY: `from_raw` promised a mapped line; it consists of atomics.
        unsafe { self.receiver.as_ref() }
    }

    pub(crate) fn ready(&self, slot: u32) -> Ready {
        // SAFETY: `from_raw` promised SLOTS lines; slots come from bits of a 64-bit mask.
        unsafe { Ready::from_raw(self.ready.add(slot as usize * size_of::<ReadyLine>())) }
    }

    // The sender's side.

    /// Whether the reader is awake, as far as it has said. Binding only behind
    /// [`Words::begin_write`], which asks the same.
    pub fn is_reader_awake(&self, parking: Option<ParkingTable>) -> bool {
        let receiver = self.receiver();
        let watchers = receiver.watchers.load(Ordering::Acquire);
        receiver.sleepers.load(Ordering::Acquire) == 0
            && (watchers == 0 || parking.is_some_and(|parking| !parking.any_asleep(watchers)))
    }

    /// The reader's epoll instances that watch this direction, a mask of slots.
    pub fn watchers(&self) -> u64 {
        self.receiver().watchers.load(Ordering::Acquire)
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
    pub fn is_enabled(&self) -> bool {
        self.receiver().enabled.load(Ordering::Acquire) != 0
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
    pub fn reclaim(&self) -> Reclaim {
        match self.receiver().reclaim.load(Ordering::Acquire) {
            RECLAIM_ASKED => Reclaim::Asked,
            RECLAIM_TAKEN => Reclaim::Taken,
            RECLAIM_REFUSED => Reclaim::Refused,
            _ => Reclaim::None,
        }
    }

    // The receiver's side.

    /// Which way the sender's next bytes go, as far as published. It may change at once, but behind
    /// [`Receiver::announce`](crate::handover::Receiver::announce).
    pub fn mode(&self) -> Mode {
        match self.sender().mode.load(Ordering::Acquire) {
            1 => Mode::Ring,
            _ => Mode::Tcp,
        }
    }

    /// Bytes that went by TCP before the ring segment that was published last.
    pub fn switch_offset(&self) -> u64 {
        self.sender().switch_offset.load(Ordering::Relaxed)
    }

    /// The switch offset of the present ring segment; 0 without one.
    pub fn switch_offset_if_ring(&self) -> u64 {
        match self.mode() {
            Mode::Ring => self.switch_offset(),
            Mode::Tcp => 0,
        }
    }

    /// Whether the sender is between deciding and publishing. Once this is false, what the last
    /// write published is visible; so look at this first and at ring and mode afterwards.
    pub fn is_write_in_flight(&self) -> bool {
        self.sender().busy.load(Ordering::Acquire) != 0
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

/// All words of a direction but those of its reports' order and its watchers.
#[cfg(all(test, not(loom)))]
pub(crate) type Image = ([u64; 6], [u32; 6]);

#[cfg(all(test, not(loom)))]
impl Direction {
    fn large(&self) -> [&AtomicU64; 6] {
        let (from, to) = (self.sender(), self.receiver());
        [
            &from.tail,
            &from.base,
            &from.switch_offset,
            &from.tcp_sent,
            &to.head,
            &to.tcp_read,
        ]
    }

    fn small(&self) -> [&AtomicU32; 6] {
        let (from, to) = (self.sender(), self.receiver());
        [
            &from.mode,
            &from.busy,
            &to.sleepers,
            &to.enabled,
            &to.closed,
            &to.reclaim,
        ]
    }

    /// What the words say, for a search that comes back to it.
    pub(crate) fn image(&self) -> Image {
        (
            self.large().map(|word| word.load(Ordering::Relaxed)),
            self.small().map(|word| word.load(Ordering::Relaxed)),
        )
    }

    pub(crate) fn set_image(&self, (large, small): &Image) {
        for (word, value) in self.large().into_iter().zip(large) {
            word.store(*value, Ordering::Relaxed);
        }
        for (word, value) in self.small().into_iter().zip(small) {
            word.store(*value, Ordering::Relaxed);
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::geometry::{
        Geometry, LANE_HEADER_BYTES, LANES_MAX, RING_BYTES_MAX, RING_BYTES_MIN, SLOTS,
    };
    use crate::parking::{PARKING_BYTES, Slot};
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
        rows!(SenderLine, "sender's": tail 64, base 64, switch_offset 64, tcp_sent 64, ring_began_ns 64, tcp_began_ns 64, mode 32, busy 32);
        rows!(ReceiverLine, "receiver's": head 64, tcp_read 64, watchers 64, sleepers 32, enabled 32, closed 32, reclaim 32);
        let shape = Geometry::new(LANES_MAX, RING_BYTES_MIN).expect("a chunk");
        // Wherever its lines end.
        let document = DOCUMENT.split_whitespace().collect::<Vec<_>>().join(" ");
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
            format!("parking table ({PARKING_BYTES} bytes)"),
            format!("more than {} bytes into it", crate::ring::WINDOW_BYTES),
            format!(
                "{RECLAIM_NONE} none, {RECLAIM_ASKED} asked, {RECLAIM_TAKEN} taken, {RECLAIM_REFUSED} refused"
            ),
        ] {
            assert!(document.contains(&text), "the document lacks: {text}");
        }
    }
}
