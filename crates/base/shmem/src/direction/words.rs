//! The words of a direction as one end writes them. What makes a protocol of them is
//! [`handover`](crate::handover), which alone moves them; whoever takes in [`Words`] instead keeps no
//! rule, as a peer may that lies. Nothing outside this crate but tests and the fuzzer does
//! (`tests/tests/workspace_rules` holds that).

use super::{
    Direction, Mode, RECLAIM_ASKED, RECLAIM_NONE, RECLAIM_REFUSED, RECLAIM_TAKEN, ReceiverLine,
};
use crate::parking::ParkingTable;
use crate::sync::{Ordering, fence_after_rmw};

/// Writes single words of the shared lines.
pub trait Words {
    /// Announces a write, and says whether the reader is awake. If so the sender may fill the
    /// ring and publish; in either case it calls [`Words::end_write`] afterwards.
    ///
    /// `parking` is the receiver's; without one, a receiver that uses epoll counts as asleep.
    /// Contains a full fence.
    fn begin_write(&self, parking: Option<ParkingTable>) -> bool;

    /// Ends what [`Words::begin_write`] announced.
    fn end_write(&self);

    /// Publishes which way the next bytes go. `switch_offset` counts for [`Mode::Ring`]: the bytes of
    /// this direction that went by TCP before.
    ///
    /// To be called between `begin_write` and `end_write` when the mode becomes `Ring`.
    fn publish_mode(&self, mode: Mode, switch_offset: u64);

    /// Says how many bytes of this direction were given to the kernel so far, in the count of the
    /// switch offset, and sets the ready bits. For a receiver that is sluiced.
    fn publish_tcp_sent(&self, bytes: u64);

    /// Breaks the reader's half of the connection: its next look finds a position that cannot be,
    /// and fails. For a sender that knows that bytes are missing.
    fn break_reader(&self);

    /// Answers a wish: takes the ring's unread bytes back, or refuses. False if the receiver was
    /// faster and keeps them.
    fn answer_reclaim(&self, take: bool) -> bool;

    /// Announces one more thread that sleeps on the socket or reads its TCP bytes. A full
    /// fence; the caller enters the kernel only if
    /// [`Receiver::may_read_free`](crate::handover::Receiver::may_read_free), asked afterwards,
    /// allows it.
    fn announce_sleep(&self);

    /// Takes one announcement back.
    fn withdraw_sleep(&self);

    /// Tells a sender that waits for room that this end reads, if not yet from the ring.
    fn publish_tcp_read(&self, bytes: u64);

    /// Wishes that the sender takes the ring's unread bytes back. Until that is answered or
    /// withdrawn the receiver consumes nothing.
    fn ask_reclaim(&self);

    /// Takes the wish back. False if it was answered meanwhile.
    fn withdraw_reclaim(&self) -> bool;

    /// From here on the receiver reads by the lane's rules.
    fn enable(&self);

    /// From here on the receiver reads no more.
    fn close(&self);

    /// Breaks the sender's half, likewise.
    fn break_sender(&self);
}

impl Words for Direction {
    fn begin_write(&self, parking: Option<ParkingTable>) -> bool {
        self.sender().busy.swap(1, Ordering::SeqCst);
        fence_after_rmw();
        // A reader that starts to watch after this load sees the busy flag.
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
        self.is_reader_awake(parking)
    }

    fn end_write(&self) {
        self.sender().busy.store(0, Ordering::Release);
    }

    fn publish_mode(&self, mode: Mode, switch_offset: u64) {
        let line = self.sender();
        match mode {
            Mode::Ring => {
                line.switch_offset.store(switch_offset, Ordering::Relaxed);
                line.mode.store(1, Ordering::Release);
            }
            Mode::Tcp => line.mode.store(0, Ordering::Release),
        }
    }

    fn publish_tcp_sent(&self, bytes: u64) {
        self.sender().tcp_sent.store(bytes, Ordering::Release);
        let mut rest = self.receiver().watchers.load(Ordering::Acquire);
        while rest != 0 {
            self.ready(rest.trailing_zeros()).set(self.lane);
            rest &= rest - 1;
        }
    }

    fn break_reader(&self) {
        self.sender().tail.store(u64::MAX, Ordering::Release);
    }

    fn answer_reclaim(&self, take: bool) -> bool {
        let answer = if take { RECLAIM_TAKEN } else { RECLAIM_REFUSED };
        exchange_reclaim(self.receiver(), RECLAIM_ASKED, answer)
    }

    fn announce_sleep(&self) {
        self.receiver().sleepers.fetch_add(1, Ordering::SeqCst);
        fence_after_rmw();
    }

    fn withdraw_sleep(&self) {
        self.receiver().sleepers.fetch_sub(1, Ordering::Release);
    }

    fn publish_tcp_read(&self, bytes: u64) {
        self.receiver().tcp_read.store(bytes, Ordering::Relaxed);
    }

    fn ask_reclaim(&self) {
        self.receiver()
            .reclaim
            .store(RECLAIM_ASKED, Ordering::Release);
    }

    fn withdraw_reclaim(&self) -> bool {
        exchange_reclaim(self.receiver(), RECLAIM_ASKED, RECLAIM_NONE)
    }

    fn enable(&self) {
        self.receiver().enabled.store(1, Ordering::Release);
    }

    fn close(&self) {
        self.receiver().closed.store(1, Ordering::Release);
    }

    fn break_sender(&self) {
        self.receiver().head.store(u64::MAX, Ordering::Release);
    }
}

fn exchange_reclaim(line: &ReceiverLine, from: u32, to: u32) -> bool {
    line.reclaim
        .compare_exchange(from, to, Ordering::AcqRel, Ordering::Acquire)
        .is_ok()
}
