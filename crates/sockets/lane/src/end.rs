//! The state of one end of a tracked connection.
//!
//! It lies in the end table, memory that only this process and its forks write, so that a
//! connection which several processes hold stays one stream. sluiced reads it for
//! `sluice status`. All addresses in it are valid in the process and in forks made after
//! they were stored; a lane is attached only while one process holds the connection.
#![allow(unsafe_code)]

use crate::carrier;
use crate::counts::{has_peer_ended, tcp_bytes_ever, tcp_bytes_read};
use crate::kernel::is_final;
use crate::lock::{Guard, Obtained, OwnerLock};
use crate::reason::Reason;
use crate::spin::Gaps;
use crate::totals::{OneEnd, Totals};
use core::net::SocketAddr;
use core::sync::atomic::{AtomicU32, Ordering};
use sluice_shmem::direction::Direction;
use sluice_shmem::handover::{Receiver, Sender};
use sluice_sys::errno::Errno;
use sluice_sys::tcp;

mod addresses;
mod carry;
mod copies;
mod counters;
mod flags;
mod lane;
#[cfg(test)]
mod layout_tests;
mod life;
mod lost;
mod memory;
mod order;
mod owner;
mod patience;
mod postponed;
mod snapshot;
mod traffic;

use addresses::Addresses;
use counters::{Bytes, Events, KernelCalls};
use flags::{Flags, Shared};
use life::Life;
use memory::Memory;
use owner::Owner;
use postponed::Postponed;
use traffic::{EmptyReads, Turnarounds};

pub use crate::counts::Role;
pub use carry::{Carried, Filler, Sink};
pub use copies::{close_beside_copies, forget_locks};
pub use lane::{Assignment, Place};
pub use snapshot::EndSnapshot;
pub use traffic::Traffic;

/// Bytes of one record of the end table.
pub const END_BYTES: usize = 320;

/// How far a connection has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum State {
    /// The record is unused.
    Free = 0,
    /// Known, on TCP.
    Tracked = 1,
    /// Given to sluiced; on TCP.
    Announced = 2,
    /// It has a lane.
    Attached = 3,
}

/// The sending half's private state.
#[repr(C)]
pub struct Tx {
    pub(crate) stream: Sender,
    /// Since when the ring is full and its reader takes nothing, 0 if it is not full.
    pub(crate) full_since_ns: u64,
    /// What the reader had taken then.
    pub(crate) progress: u64,
    /// When the kernel was last asked whether the peer is still there.
    pub(crate) checked_ns: u64,
    /// What to add to `tcp_tx` to have the kernel's count; `u64::MAX`: not known. Only for lanes to
    /// other hosts.
    pub(crate) tcp_base: u64,
}

/// The receiving half's private state.
#[repr(C)]
pub struct Rx {
    pub(crate) stream: Receiver,
    /// When the kernel was last asked for the end of the stream, [`crate::clock::ticks`]; 0 to ask
    /// at the next look.
    pub(crate) checked: u64,
}

/// One end.
///
/// sluiced and forks of other versions of the library find each word where it was: the order stays, and
/// [`VERSION`](crate::table::VERSION) says so.
#[repr(C, align(64))]
pub struct End {
    life: Life,
    reason: AtomicU32,
    memory: Memory,
    /// The lane's number in its chunk.
    lane: AtomicU32,
    pub(crate) flags: Shared,
    /// See [`End::set_owner`]. With it the first line has 64 bytes; the second starts with the
    /// sending half.
    owner: Owner,
    pub(crate) tx: OwnerLock<Tx>,
    empty_reads: EmptyReads,
    pub(crate) rx: OwnerLock<Rx>,
    pub(crate) gaps: Gaps,
    role: AtomicU32,
    postponed: Postponed,
    /// Reads and writes that were no turnarounds.
    repeats: AtomicU32,
    pub(crate) bytes: Bytes,
    pub(crate) events: Events,
    pub(crate) kernel_calls: KernelCalls,
    turnarounds: Turnarounds,
    addresses: Addresses,
}

const _: () = assert!(size_of::<End>() == END_BYTES);

/// A half of an end, locked.
pub enum Locked<'a, T> {
    /// Held.
    Held(Guard<'a, T>),
    /// The connection was closed meanwhile.
    Gone,
    /// This thread holds the lock already, outside the signal handler it is in.
    Reentered,
}

impl End {
    /// Starts a new life of a free record. The caller owns the record and has set no state.
    pub fn start(&self, role: Role) {
        self.life.name_first();
        self.owner.reset();
        self.reason
            .store(Reason::FewOperations as u32, Ordering::Relaxed);
        self.memory.clear();
        self.role.store(role as u32, Ordering::Relaxed);
        self.flags.clear_all();
        self.tx.in_kernel.store(0, Ordering::Relaxed);
        self.rx.in_kernel.store(0, Ordering::Relaxed);
        self.gaps.reset();
        self.postponed.clear();
        self.bytes.reset();
        self.events.reset();
        self.kernel_calls.reset();
        self.restart_traffic();
        self.empty_reads.reset();
        self.addresses.clear();
        self.life.track();
    }

    /// Says between which addresses the connection runs, for `sluice status`.
    pub fn set_addresses(&self, local: &SocketAddr, peer: &SocketAddr) {
        self.addresses.set(local, peer);
    }

    /// The ports of this end and of the other, 0 where [`End::set_addresses`] said none.
    pub fn ports(&self) -> [u16; 2] {
        self.addresses.ports()
    }

    /// Takes a free record for a new connection; the generation that names its life.
    pub fn claim(&self) -> Option<u32> {
        self.life.claim()
    }

    /// The life this record is in.
    pub fn generation(&self) -> u32 {
        self.life.generation()
    }

    /// How far the connection has come.
    pub fn state(&self) -> State {
        self.life.state()
    }

    /// From `Tracked` to `Announced`, once.
    pub fn mark_announced(&self) -> bool {
        let won = self.life.announce();
        if won {
            self.reason.store(Reason::NoPeer as u32, Ordering::Relaxed);
        }
        won
    }

    /// Back to `Tracked`: sluiced did not get it, or has forgotten it. False if it was not
    /// announced.
    pub fn unmark_announced(&self) -> bool {
        self.restart_traffic();
        self.life.retract()
    }

    /// Whether the connection never had a lane, and never will.
    pub fn is_bypassed(&self) -> bool {
        self.state() == State::Tracked && self.is_pinned()
    }

    /// Takes the bytes of a connection that was on TCP alone from the kernel, for the
    /// statistics, unless programs that this record does not know moved some of them.
    pub fn take_kernel_counts(&self, fd: i32) {
        if self.flag(Flags::MOVED_ELSEWHERE) {
            return;
        }
        if let Ok((read, written)) = tcp_bytes_ever(fd, self.role()) {
            self.bytes.set_tcp(read, written);
        }
    }

    /// The kernel's counts hold, or will hold, bytes that another program moved before or beside
    /// those who use this record. From now on bytes are counted one call at a time, and those of a
    /// connection that is left to the kernel not at all: better too few than some twice.
    pub fn note_moved_elsewhere(&self, fd: i32) {
        if self.is_bypassed() {
            self.take_kernel_counts(fd);
        }
        self.flags.set(Flags::MOVED_ELSEWHERE);
    }

    /// Whether it came from another program, which may have it still.
    pub fn has_arrived(&self) -> bool {
        self.flag(Flags::ARRIVED)
    }

    /// A connection that came from another program: notes whether bytes were moved before.
    pub fn note_arrived(&self, fd: i32) {
        self.flags.set(Flags::ARRIVED);
        if tcp_bytes_ever(fd, self.role()) != Ok((0, 0)) {
            self.note_moved_elsewhere(fd);
        }
    }

    /// Says why the connection is on TCP.
    pub fn set_reason(&self, reason: Reason) {
        self.reason.store(reason as u32, Ordering::Relaxed);
    }

    /// Why the connection is on TCP.
    pub fn reason(&self) -> Reason {
        Reason::from_code(self.reason.load(Ordering::Relaxed) as u16).unwrap_or(Reason::None)
    }

    /// Who opened the connection.
    pub fn role(&self) -> Role {
        match self.role.load(Ordering::Relaxed) {
            0 => Role::Connected,
            1 => Role::Accepted,
            _ => Role::Unknown,
        }
    }

    /// One more descriptor names this connection.
    pub fn add_ref(&self) {
        self.life.add_ref();
        self.clear_owner();
    }

    /// This many descriptors fewer, if there are others. False, and none fewer, if not.
    pub fn leave_to_others(&self, names: u32) -> bool {
        self.life.leave_to_others(names)
    }

    /// This many descriptors more, if the others of [`End::leave_to_others`] have not ended this
    /// life meanwhile.
    pub fn return_to_life(&self, generation: u32, names: u32) -> bool {
        self.clear_owner();
        self.life.return_to(generation, names)
    }

    /// One descriptor fewer; true if it was the last.
    pub fn drop_ref(&self) -> bool {
        let is_last = self.life.drop_ref();
        if !is_last {
            // Who has the others is not known here.
            self.clear_owner();
        }
        is_last
    }

    /// Descriptors that name this connection, in all processes.
    pub fn refs(&self) -> u32 {
        self.life.refs()
    }

    /// Whether calls do not block.
    pub fn is_nonblocking(&self) -> bool {
        self.flag(Flags::NONBLOCK)
    }

    /// Follows `O_NONBLOCK` of the file description.
    pub fn set_nonblocking(&self, on: bool) {
        self.flags.put(Flags::NONBLOCK, on);
    }

    #[inline]
    pub(crate) fn flag(&self, any_of: Flags) -> bool {
        self.flags.get().has_any(any_of)
    }

    pub(crate) fn is_enabled(&self) -> bool {
        self.flag(Flags::ENABLED)
    }

    /// Whether there is a lane that is not to be used yet. What the peer sends comes by TCP.
    #[inline]
    pub fn is_patient(&self) -> bool {
        self.flag(Flags::PATIENT)
    }

    /// Whether reads follow the lane's rules, and nothing else has to be thought of: neither end is
    /// done, pinned or broken.
    pub(crate) fn reads_by_rules_alone(&self) -> bool {
        const OTHERS: Flags = Flags::BROKEN
            .and(Flags::GAP)
            .and(Flags::PATIENT)
            .and(Flags::PEER_DONE)
            .and(Flags::PIN_RX)
            .and(Flags::PIN_TX)
            .and(Flags::SHUT_RX);
        self.flags.get().has(Flags::ENABLED, OTHERS)
    }

    /// Whether there is a lane that may be used.
    pub fn has_usable_lane(&self) -> bool {
        self.state() == State::Attached && !self.is_patient()
    }

    pub(crate) fn is_tx_pinned(&self) -> bool {
        self.flag(Flags::PIN_TX | Flags::PEER_DONE)
    }

    /// What this end sends stays on TCP from now on; it is on TCP already.
    pub(crate) fn stop_sending_by_ring(&self) {
        self.flags.set(Flags::PIN_TX);
    }

    /// The peer sends no more, so its receiving half may be gone: what is written from now on
    /// goes by TCP, which knows.
    pub(crate) fn set_peer_done(&self) {
        self.flags.set(Flags::PEER_DONE);
    }

    /// Whether the kernel has, or is about to have, the end of the stream: it was read, the peer has closed
    /// its last descriptor, or this end has shut down reading.
    pub(crate) fn is_end_near(&self) -> bool {
        self.flag(Flags::SHUT_RX | Flags::PEER_DONE)
            || self.outgoing().is_some_and(|out| out.is_closed())
    }

    /// The program is about to shut down reading. What comes all the same is readable, as with
    /// TCP on Linux, between reports of the end of the stream.
    pub fn shut_rx(&self) {
        self.flags.set(Flags::SHUT_RX);
    }

    /// Whether the program has shut down writing, or is about to.
    pub(crate) fn has_shut_tx(&self) -> bool {
        self.flag(Flags::SHUT_TX)
    }

    /// Whether the connection stays on TCP for good.
    pub fn is_pinned(&self) -> bool {
        self.flag(Flags::PIN_TX) && self.flag(Flags::PIN_RX)
    }

    fn half<'a, T>(&'a self, lock: &'a OwnerLock<T>, generation: u32) -> Locked<'a, T> {
        let Some(guard) = lock.lock() else {
            return Locked::Reentered;
        };
        if self.generation() != generation {
            return Locked::Gone;
        }
        Locked::Held(guard)
    }

    /// Locks the sending half. Who holds the receiving half of this or another end may wait here,
    /// so nobody waits for a receiving half while holding this.
    pub(crate) fn lock_tx(&self, generation: u32) -> Locked<'_, Tx> {
        let locked = self.half(&self.tx, generation);
        if let Locked::Held(tx) = &locked
            && tx.obtained == Obtained::FromTheDead
        {
            self.republish_tx(tx);
        }
        locked
    }

    #[cold]
    fn republish_tx(&self, tx: &Tx) {
        if let Some(out) = self.outgoing() {
            tx.stream.republish(&out);
        }
    }

    /// Locks the receiving half.
    pub(crate) fn lock_rx(&self, generation: u32) -> Locked<'_, Rx> {
        let mut locked = self.half(&self.rx, generation);
        if let Locked::Held(rx) = &mut locked
            && rx.obtained == Obtained::FromTheDead
        {
            self.republish_rx(rx);
        }
        locked
    }

    #[cold]
    fn republish_rx(&self, rx: &mut Rx) {
        if let Some(into) = self.incoming() {
            rx.stream.consumer().republish(&into);
        }
    }

    /// Whether the kernel socket has `TCP_NODELAY` from us and not from the program.
    pub fn has_our_nodelay(&self) -> bool {
        self.flag(Flags::OUR_NODELAY)
    }

    /// Says so.
    pub fn set_our_nodelay(&self, ours: bool) {
        self.flags.put(Flags::OUR_NODELAY, ours);
    }

    /// Counts what was read from TCP anew after a reader died on the way to the switch offset.
    ///
    /// A reader that died in a read without a bound has left its announcement: the peer's sender
    /// stays on TCP then, and the count no longer matters.
    pub(crate) fn recount(&self, fd: i32, rx: &mut Rx) {
        if !rx.stream.is_uncounted() {
            return;
        }
        match tcp_bytes_read(fd) {
            Ok(read) => rx.stream.recount(Some(read)),
            Err(Errno::AGAIN) => {}
            Err(_) => rx.stream.recount(None),
        }
    }

    /// Whether the sender may be between deciding and publishing. One that died there, or was
    /// closed since, has published all that it ever will.
    pub(crate) fn is_write_in_flight(&self, into: &Direction) -> bool {
        into.is_write_in_flight() && self.has_sender()
    }

    /// Asks the kernel whether a sender with a write in flight still exists. All senders end
    /// their writes before they shut down or close, so behind its FIN there is none. But for
    /// lanes to another host: there the FIN may be ahead of ring bytes, and only sluiced knows.
    pub(crate) fn check_sender(&self, fd: i32) {
        if !self.is_remote() && tcp::info(fd).is_ok_and(|info| has_peer_ended(info.state)) {
            self.flags.set(Flags::SENDER_GONE);
        }
    }

    /// The same, and for lanes to another host whether sluiced still exists, and the connection. The caller has no
    /// lock of this end.
    pub(crate) fn check_sender_or_carrier(&self, fd: i32) {
        if self.is_remote() {
            carrier::check();
            self.check_reset(fd);
        } else {
            self.check_sender(fd);
        }
    }

    /// Whether the other process of the lane is sluiced, which is this end's writer and reader for
    /// a peer on another host (docs/decisions/0016).
    pub fn is_remote(&self) -> bool {
        self.flag(Flags::REMOTE)
    }

    /// Whether the peer's socket is in another kernel, or may be, while its process shares the lane
    /// itself (docs/decisions/0041). Nobody here can be asked about that socket, and the peer's clock
    /// is another one.
    pub fn is_direct(&self) -> bool {
        self.flag(Flags::DIRECT)
    }

    /// Whether sluiced grants this end's ring to a program on another host. A lane that is broken waits for nothing: who
    /// has died does not end its grants.
    pub fn is_granted(&self) -> bool {
        self.state() == State::Attached
            && self.is_remote()
            && !self.is_broken_by_peer()
            && self
                .incoming()
                .is_some_and(|into| self.is_write_in_flight(&into))
    }

    /// Whether somebody may write to the ring that this end reads, as far as is known.
    pub(crate) fn has_sender(&self) -> bool {
        !self.flag(Flags::SENDER_GONE)
    }

    /// An error behind bytes that a call returned: TCP reports it to the next call.
    pub(crate) fn postpone(&self, errno: Errno) {
        self.postponed.put(errno);
    }

    /// An error that ends the connection, and with which a call ended that returns what it had
    /// done before: the next call is told, as the kernel tells each error once. Other errors come
    /// again, or are of one call only.
    pub fn keep_error(&self, errno: Errno) {
        if is_final(errno) {
            self.set_peer_done();
            // Not the short way, which asks the kernel alone.
            self.stop_sending_by_ring();
            self.postpone(errno);
        }
    }

    /// The error that the last call left to this one.
    pub(crate) fn take_postponed(&self) -> Option<Errno> {
        self.postponed.take()
    }

    /// Whether reads fail: the peer broke the rules of shared memory, or this process cannot
    /// reach what is next in the stream.
    pub(crate) fn is_broken(&self) -> bool {
        self.flag(Flags::BROKEN | Flags::GAP)
    }

    /// Whether what is next in the stream is with another process.
    pub fn has_gap(&self) -> bool {
        self.flag(Flags::GAP)
    }

    /// Whether writes fail, too: the peer broke the rules of shared memory.
    pub fn is_broken_by_peer(&self) -> bool {
        self.flag(Flags::BROKEN)
    }

    /// Ring bytes that the program has not read. A ring that is beyond repair, or of which sluiced says that bytes are
    /// missing, has none, and breaks the lane.
    pub fn unread_ring_bytes(&self, generation: u32, fd: i32) -> usize {
        self.ring_bytes_behind(generation, fd, u64::MAX)
    }

    /// The same, where the kernel has `queued` bytes: none while some that come before the ring's are on their way to the
    /// kernel still, since no read gets at the ring's before.
    pub fn ring_bytes_behind(&self, generation: u32, fd: i32, queued: u64) -> usize {
        let Locked::Held(mut rx) = self.lock_rx(generation) else {
            return 0;
        };
        match self.incoming() {
            Some(into) if self.is_enabled() => {
                self.pass_over(fd, &mut rx, &into);
                let available = match rx.stream.consumer().available(&into) {
                    Ok(available) => available,
                    Err(broken) => {
                        self.break_lane(fd, broken);
                        0
                    }
                };
                // Looked at behind the ring, whose bytes come with their switch offset.
                let is_cut_off = !rx.stream.is_uncounted() && rx.stream.owed(&into) > queued;
                if is_cut_off { 0 } else { available }
            }
            _ => 0,
        }
    }

    /// Ring bytes that the peer has not read.
    pub fn unacked_ring_bytes(&self, generation: u32) -> u64 {
        let Locked::Held(mut tx) = self.lock_tx(generation) else {
            return 0;
        };
        match self.outgoing() {
            Some(out) => tx.stream.producer().in_flight(&out).unwrap_or(0),
            None => 0,
        }
    }

    /// The last descriptor is closed: tells the peer's sender, and frees the record. What the
    /// connection has moved, unless somebody else was faster.
    pub fn finish(&self, generation: u32) -> Option<Totals> {
        self.end_life(generation, true)
    }

    /// The last process that had it was killed. As always then the peer has to find out, and bytes that it had
    /// sent are lost and not refused.
    pub fn abandon(&self, generation: u32) -> Option<Totals> {
        self.end_life(generation, false)
    }

    fn end_life(&self, generation: u32, tells: bool) -> Option<Totals> {
        let Locked::Held(rx) = self.lock_rx(generation) else {
            return None;
        };
        let Locked::Held(tx) = self.lock_tx(generation) else {
            return None;
        };
        if let Some(into) = self.incoming().filter(|_| tells) {
            rx.stream.close(&into);
        }
        let totals = self.totals();
        self.life.end();
        self.memory.clear();
        self.life.free();
        drop(tx);
        drop(rx);
        Some(totals)
    }

    /// What the connection has moved so far.
    fn totals(&self) -> Totals {
        let [switches, sleeps, spins] = self.events.get();
        Totals::of_one(&OneEnd {
            is_remote: self.is_remote() || self.is_direct(),
            ring: self.bytes.ring(),
            tcp: self.bytes.tcp(),
            switches,
            sleeps,
            spins,
        })
    }
}
