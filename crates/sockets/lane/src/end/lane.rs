//! An end's lane: how it is given, put to use, left and broken.

use super::flags::Flags;
use super::{End, Locked, Rx, State, Tx};
use crate::confined::is_refusing;
use crate::counts::tcp_bytes_read;
use crate::kernel::kernel_events;
use crate::reason::Reason;
use core::sync::atomic::Ordering;
use sluice_shmem::Broken;
use sluice_shmem::chunk::Chunk;
use sluice_shmem::direction::{Direction, Mode};
use sluice_shmem::handover::Sender;
use sluice_shmem::parking::ParkingTable;
use sluice_sys::errno::Errno;
use sluice_sys::tcp;

/// A lane of a chunk, and this end's side of it.
#[derive(Clone, Copy, Debug)]
pub struct Place {
    /// The memory shared with the peer.
    pub chunk: Chunk,
    /// The lane in it.
    pub lane: u32,
    /// Which side this end is, 0 or 1.
    pub side: u32,
}

/// The peer's process, for a lane that sluiced assigned.
#[derive(Clone, Copy, Debug)]
pub struct Assignment {
    /// The memory shared with the peer.
    pub chunk: Chunk,
    /// The lane in it.
    pub lane: u32,
    /// Which side this end is, 0 or 1.
    pub side: u32,
    /// Where the peer announces the sleep of its epoll instances.
    pub peer_parking: Option<ParkingTable>,
    /// Where this process announces the sleep of its own.
    pub own_parking: ParkingTable,
    /// The slots of `own_parking` that watch this connection; none yet for a patient one.
    pub watchers: u64,
    /// The other process is sluiced: the peer is on another host.
    pub remote: bool,
    /// The peer is on another host, and the chunk lies in memory that both hosts share.
    pub direct: bool,
    /// The lane is not to be used before [`End::end_patience`].
    pub patient: bool,
}

impl Place {
    fn is_of(&self, a: &Assignment) -> bool {
        (self.chunk.address(), self.lane, self.side) == (a.chunk.address(), a.lane, a.side & 1)
    }
}

impl End {
    /// Whether the lane lies in the chunk at this address.
    pub fn is_in_chunk(&self, address: u64) -> bool {
        self.memory.is_at(address)
    }

    /// Whether the peer announces its sleep in the parking table at this address.
    pub fn uses_parking(&self, address: u64) -> bool {
        self.memory.uses_parking(address)
    }

    /// Where the lane lies, if there is one.
    pub fn place(&self) -> Option<Place> {
        Some(Place {
            chunk: self.memory.chunk()?,
            lane: self.lane.load(Ordering::Relaxed),
            side: self.side(),
        })
    }

    fn side(&self) -> u32 {
        u32::from(self.flag(Flags::SIDE1))
    }

    /// The direction that this end writes, if there is a lane.
    pub fn outgoing(&self) -> Option<Direction> {
        Some(
            self.memory
                .chunk()?
                .direction(self.lane.load(Ordering::Relaxed), self.side()),
        )
    }

    /// The direction that this end reads, if there is a lane.
    pub fn incoming(&self) -> Option<Direction> {
        Some(
            self.memory
                .chunk()?
                .direction(self.lane.load(Ordering::Relaxed), 1 - self.side()),
        )
    }

    /// Where the peer announces the sleep of its epoll instances.
    pub(crate) fn peer_parking(&self) -> Option<ParkingTable> {
        self.memory.peer_parking()
    }

    /// Where this process announces the sleep of epoll instances that watch this connection.
    pub fn own_parking(&self) -> Option<ParkingTable> {
        self.memory.own_parking()
    }

    /// Gives the connection its lane. False if it cannot take one (any more): closed, pinned,
    /// or its present lane is in use.
    pub fn attach(&self, generation: u32, a: &Assignment) -> bool {
        let Locked::Held(mut rx) = self.lock_rx(generation) else {
            return false;
        };
        let Locked::Held(mut tx) = self.lock_tx(generation) else {
            return false;
        };
        if self.place().is_some_and(|place| place.is_of(a)) {
            // sluiced has told it twice. The peer may rely on this end's enabling already.
            return true;
        }
        let replaces = match self.state() {
            State::Announced => true,
            State::Attached => self.is_lane_untouched(&tx, &rx),
            _ => false,
        };
        if !replaces || self.flag(Flags::PINNED) {
            return false;
        }
        self.take_lane(&mut tx, &mut rx, a);
        self.reason.store(Reason::None as u32, Ordering::Relaxed);
        self.life.attach();
        true
    }

    /// Stores where the lane lies; nothing was written to it or read from it yet.
    pub(super) fn take_lane(&self, tx: &mut Tx, rx: &mut Rx, a: &Assignment) {
        tx.stream = Sender::default();
        tx.full_since_ns = 0;
        tx.tcp_base = u64::MAX;
        rx.stream.restart();
        self.memory.prepare(&a.chunk, a.peer_parking, a.own_parking);
        self.lane.store(a.lane, Ordering::Relaxed);
        self.flags
            .clear(Flags::SIDE1 | Flags::ENABLED | Flags::REMOTE | Flags::DIRECT | Flags::PATIENT);
        self.flags.set(
            Flags::SIDE1.only_if(a.side & 1 == 1)
                | Flags::REMOTE.only_if(a.remote)
                | Flags::DIRECT.only_if(a.direct)
                | Flags::PATIENT.only_if(a.patient),
        );
        self.memory.publish(&a.chunk);
        a.chunk
            .direction(a.lane, 1 - (a.side & 1))
            .watch_all(a.watchers);
    }

    fn is_lane_untouched(&self, tx: &Tx, rx: &Rx) -> bool {
        tx.stream.is_untouched()
            && rx.stream.is_untouched()
            && self
                .incoming()
                .is_some_and(|into| into.mode() == Mode::Tcp && !into.is_write_in_flight())
    }

    /// Starts to read by the lane's rules, if no thread is inside the kernel reading this
    /// socket. The kernel tells how many bytes of the stream were read from it so far.
    pub(crate) fn try_enable(&self, fd: i32, rx: &mut Rx) {
        if self.is_enabled()
            || self.flag(Flags::PIN_RX | Flags::PEER_DONE | Flags::PATIENT)
            || self.rx.in_kernel.load(Ordering::SeqCst) != 0
        {
            return;
        }
        let Some(into) = self.incoming() else {
            return;
        };
        if let Ok(read) = tcp_bytes_read(fd) {
            // Nobody has put anything into the ring. Who is told of bytes now reads them next.
            let unread = if self.is_remote() {
                sluice_sys::tcp::unread_bytes(fd).unwrap_or(0)
            } else {
                0
            };
            self.flags.set(Flags::ENABLED);
            rx.stream.enable(&into, read, unread.into());
        }
    }

    /// Gives the reading of a pinned connection back to the kernel once its ring is empty: from
    /// then on the program's own calls are made, which matters to a process that seccomp allows
    /// no others.
    ///
    /// The announcement of [`End::pin`] is never taken back, so every write that begins behind it
    /// goes to TCP. One that began before is in flight or can be seen.
    pub(crate) fn leave_rules_if_pinned(&self, rx: &mut Rx) {
        if self.flag(Flags::PIN_RX)
            && !self.is_broken()
            && let Some(into) = self.incoming().filter(|_| self.is_enabled())
            && !self.is_write_in_flight(&into)
            && matches!(rx.stream.consumer().available(&into), Ok(0))
        {
            self.flags.clear(Flags::ENABLED);
        }
    }

    /// Keeps both directions on TCP from now on, as far as this end decides: it writes no more
    /// to its ring and accepts no more from the peer's. Bytes that are in the peer's ring
    /// already stay readable by this process.
    pub fn pin(&self, generation: u32, reason: Reason) {
        if let Locked::Held(mut tx) = self.lock_tx(generation) {
            self.flags.set(Flags::PIN_TX);
            self.leave_ring(&mut tx);
        }
        if let Locked::Held(mut rx) = self.lock_rx(generation) {
            // Its announcement stays, beside this one.
            rx.stream.keep_promise();
            let flags = self.flags.set(Flags::PIN_RX);
            if flags.has(Flags::ENABLED, Flags::PIN_RX)
                && let Some(into) = self.incoming()
            {
                // A sleeper that never wakes: the peer's sender stays on TCP.
                rx.stream.retire(&into);
            }
            self.set_reason(reason);
        }
    }

    /// sluiced has ended, which moved the bytes of this lane to and from another host. What is in
    /// the incoming ring can still be read, and later bytes go by TCP; but where bytes are missing,
    /// or may be, the connection is broken.
    pub fn lose_carrier(&self, generation: u32, fd: i32) {
        if !self.is_remote() || self.state() != State::Attached {
            return;
        }
        let mut is_whole = true;
        if let Locked::Held(mut tx) = self.lock_tx(generation)
            && let Some(out) = self.outgoing()
        {
            is_whole &= matches!(tx.stream.producer().is_drained(&out), Ok(true));
        }
        if let Some(into) = self.incoming() {
            is_whole &= !into.is_write_in_flight();
        }
        if is_whole {
            self.pin(generation, Reason::NoDaemon);
        } else {
            self.break_lane(fd, Broken);
        }
    }

    /// A lane to another host whose writer does not end its write: breaks it if the kernel's
    /// connection is reset, since nobody will ever end it then. A connection that both ends have
    /// closed in order is none: its last bytes may still come by the ring.
    pub fn check_reset(&self, fd: i32) {
        if self.is_remote()
            && self.state() == State::Attached
            && self
                .incoming()
                .is_some_and(|into| into.is_write_in_flight())
            && kernel_events(fd, 0) & libc::POLLERR != 0
        {
            self.break_lane(fd, Broken);
        }
    }

    /// The program has dissolved the connection, and may connect the socket anew: the lane and what
    /// is in it are gone, as the kernel's queues are. What comes next stays on TCP.
    pub fn disconnect(&self, generation: u32, reason: Reason) {
        let Locked::Held(mut rx) = self.lock_rx(generation) else {
            return;
        };
        let Locked::Held(mut tx) = self.lock_tx(generation) else {
            return;
        };
        rx.stream.keep_promise();
        self.flags.set(Flags::PINNED);
        self.leave_ring(&mut tx);
        if let Some(into) = self.incoming() {
            rx.stream.close(&into);
        }
        self.flags.clear(Flags::ENABLED);
        self.memory.clear();
        // An error of the former connection.
        let _ = self.take_postponed();
        self.set_reason(reason);
    }

    /// The program is about to shut down writing: what this end still sends goes by TCP, and ring bytes are not
    /// taken back any more.
    pub fn shut_tx(&self, generation: u32) {
        if let Locked::Held(mut tx) = self.lock_tx(generation) {
            self.flags.set(Flags::PIN_TX | Flags::SHUT_TX);
            self.leave_ring(&mut tx);
        }
    }

    pub(crate) fn leave_ring(&self, tx: &mut Tx) {
        let switched = match self.outgoing() {
            Some(out) => tx.stream.leave(&out),
            None => tx.stream.leave_unsaid(),
        };
        if switched {
            tx.full_since_ns = 0;
            self.events.switched();
        }
    }

    /// The peer broke the rules of shared memory, or bytes are lost: the ring is never touched again, and the
    /// connection is reset, for all who have it and for the peer. Threads that sleep in the kernel are woken so.
    pub(crate) fn break_lane(&self, fd: i32, _: Broken) -> Errno {
        let is_first = !self.flag(Flags::BROKEN);
        self.flags.set(Flags::PINNED | Flags::BROKEN);
        self.set_reason(Reason::Broken);
        // A confined process makes no calls of its own. The number may have been closed and given out behind the hooks.
        if is_first && !is_refusing() && tcp::ports(fd) == Ok(self.ports()) {
            tcp::reset(fd);
        }
        Errno(libc::ECONNRESET)
    }
}
