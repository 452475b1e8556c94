//! The state of one end of a tracked connection.
//!
//! It lies in the end table, memory that only this process and its forks write, so that a
//! connection which several processes hold stays one stream. sluiced reads it for
//! `sluice status`. All addresses in it are valid in the process and in forks made after
//! they were stored; a lane is attached only while one process holds the connection.
#![allow(unsafe_code)]

use crate::counts::{has_peer_ended, tcp_bytes_ever, tcp_bytes_read};
use crate::lock::{Guard, Obtained, OwnerLock};
use crate::reason::Reason;
use crate::spin::Gaps;
use crate::totals::{OneEnd, Totals};
use core::net::{IpAddr, Ipv6Addr, SocketAddr};
use core::sync::atomic::{AtomicU8, AtomicU16, AtomicU32, AtomicU64, Ordering};
use sluice_shmem::direction::Direction;
use sluice_shmem::handover::{Receiver, Sender};
use sluice_sys::errno::Errno;
use sluice_sys::tcp;

mod carry;
mod copies;
mod lane;
mod lost;
mod owner;
mod patience;
mod snapshot;
mod traffic;

pub use crate::counts::Role;
pub use carry::{Carried, Filler, Sink};
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

/// Calls do not block: as the kernel says when the connection is announced, and as fcntl and ioctl
/// say.
const FLAG_NONBLOCK: u32 = 1;
/// This end is side 1 of its lane.
const FLAG_SIDE1: u32 = 1 << 1;
/// The sender stays on TCP for good.
const FLAG_PIN_TX: u32 = 1 << 2;
/// The receiver takes no (more) ring bytes.
const FLAG_PIN_RX: u32 = 1 << 3;
/// The peer has finished sending, or the connection is reset.
const FLAG_PEER_DONE: u32 = 1 << 4;
/// The receiver reads by the lane's rules.
const FLAG_ADOPTED: u32 = 1 << 5;
/// The peer broke the rules of shared memory.
const FLAG_BROKEN: u32 = 1 << 6;
/// No sender is left that could write to the peer's ring.
const FLAG_SENDER_GONE: u32 = 1 << 7;
/// The program has shut down reading: the kernel reports the end of the stream when it has
/// no bytes.
const FLAG_SHUT_RX: u32 = 1 << 8;
/// The kernel socket has TCP_NODELAY from us and not from the program.
const FLAG_OUR_NODELAY: u32 = 1 << 9;
/// Bytes of the stream are where this process cannot read them.
const FLAG_GAP: u32 = 1 << 10;
/// The program waits for this connection by calls that Sluice sees.
const FLAG_WAIT_SEEN: u32 = 1 << 11;

/// Programs that do not use this record moved bytes of the connection.
const FLAG_MOVED_ELSEWHERE: u32 = 1 << 12;
/// The other process of the lane is sluiced, and the peer is on another host.
const FLAG_REMOTE: u32 = 1 << 13;
/// The lane waits until the program goes about its connections more quickly.
const FLAG_PATIENT: u32 = 1 << 14;
/// The program was told, or is about to be, that the peer is gone with what this end had sent.
const FLAG_LOST_TOLD: u32 = 1 << 15;
/// Other programs may have copies of the unread ring bytes.
const FLAG_COPIED: u32 = 1 << 16;
/// The lane lies in a window, and the peer is a program on another host.
const FLAG_DIRECT: u32 = 1 << 17;

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

/// An address in the end table.
#[repr(C)]
struct Address {
    ip: [AtomicU8; 16],
    port: AtomicU16,
}

/// One end.
#[repr(C, align(64))]
pub struct End {
    generation: AtomicU32,
    state: AtomicU32,
    /// Descriptors that name this connection, in all processes.
    refs: AtomicU32,
    reason: AtomicU32,
    chunk: AtomicU64,
    peer_board: AtomicU64,
    own_board: AtomicU64,
    lanes: AtomicU32,
    ring_bytes: AtomicU32,
    lane: AtomicU32,
    pub(crate) flags: AtomicU32,
    /// See [`End::set_owner`]. With it the first line has 64 bytes; the second starts with the
    /// sending half.
    owner: AtomicU64,
    pub(crate) tx: OwnerLock<Tx>,
    /// When the first of [`End::empty_reads`] was: the lower half of a clock of microseconds.
    empty_since_us: AtomicU32,
    /// Reads in a row that found nothing.
    empty_reads: AtomicU32,
    pub(crate) rx: OwnerLock<Rx>,
    pub(crate) gaps: Gaps,
    role: AtomicU32,
    /// An error number for the next call, see [`End::postpone`].
    postponed: AtomicU32,
    /// Reads and writes that were no turns.
    repeats: AtomicU32,
    pub(crate) ring_rx: AtomicU64,
    pub(crate) ring_tx: AtomicU64,
    pub(crate) tcp_rx: AtomicU64,
    pub(crate) tcp_tx: AtomicU64,
    pub(crate) switches: AtomicU32,
    pub(crate) sleeps: AtomicU32,
    pub(crate) spins: AtomicU32,
    /// Reads without a bound that were begun by the lane's rules.
    pub(crate) free_reads: AtomicU32,
    /// The last of them that found the kernel's queue empty behind what it took.
    pub(crate) draining_read: AtomicU32,
    /// Writes that went by TCP.
    pub(crate) tcp_writes: AtomicU32,
    /// Reads behind a write and writes behind a read, above the bit [`WROTE_LAST`].
    turns: AtomicU32,
    local: Address,
    peer: Address,
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
        self.refs.store(1, Ordering::Relaxed);
        self.owner.store(0, Ordering::Relaxed);
        self.reason
            .store(Reason::FewOperations as u32, Ordering::Relaxed);
        self.chunk.store(0, Ordering::Relaxed);
        self.role.store(role as u32, Ordering::Relaxed);
        self.flags.store(0, Ordering::Relaxed);
        self.tx.in_kernel.store(0, Ordering::Relaxed);
        self.rx.in_kernel.store(0, Ordering::Relaxed);
        self.gaps.reset();
        self.postponed.store(0, Ordering::Relaxed);
        for counter in [&self.ring_rx, &self.ring_tx, &self.tcp_rx, &self.tcp_tx] {
            counter.store(0, Ordering::Relaxed);
        }
        for counter in [
            &self.switches,
            &self.sleeps,
            &self.spins,
            &self.turns,
            &self.repeats,
            &self.empty_reads,
            &self.free_reads,
            &self.draining_read,
            &self.tcp_writes,
        ] {
            counter.store(0, Ordering::Relaxed);
        }
        let nowhere = SocketAddr::new(IpAddr::V6(Ipv6Addr::UNSPECIFIED), 0);
        self.set_addresses(&nowhere, &nowhere);
        self.state.store(State::Tracked as u32, Ordering::Release);
    }

    /// Says between which addresses the connection runs, for `sluice status`.
    pub fn set_addresses(&self, local: &SocketAddr, peer: &SocketAddr) {
        self.local.store(local);
        self.peer.store(peer);
    }

    /// The ports of this end and of the other, 0 where [`End::set_addresses`] said none.
    pub fn ports(&self) -> [u16; 2] {
        [&self.local, &self.peer].map(|address| address.port.load(Ordering::Relaxed))
    }

    /// Takes a free record for a new connection; the generation that names its life.
    pub fn claim(&self) -> Option<u32> {
        if self.state.load(Ordering::Relaxed) != State::Free as u32 {
            return None;
        }
        self.state
            .compare_exchange(
                State::Free as u32,
                u32::MAX,
                Ordering::Acquire,
                Ordering::Relaxed,
            )
            .ok()?;
        Some(self.generation.load(Ordering::Relaxed))
    }

    /// The life this record is in.
    pub fn generation(&self) -> u32 {
        self.generation.load(Ordering::Relaxed)
    }

    /// How far the connection has come.
    pub fn state(&self) -> State {
        match self.state.load(Ordering::Acquire) {
            1 => State::Tracked,
            2 => State::Announced,
            3 => State::Attached,
            _ => State::Free,
        }
    }

    /// From `Tracked` to `Announced`, once.
    pub fn mark_announced(&self) -> bool {
        let won = self
            .state
            .compare_exchange(
                State::Tracked as u32,
                State::Announced as u32,
                Ordering::AcqRel,
                Ordering::Relaxed,
            )
            .is_ok();
        if won {
            self.reason.store(Reason::NoPeer as u32, Ordering::Relaxed);
        }
        won
    }

    /// Back to `Tracked`: sluiced did not get it, or has forgotten it. False if it was not
    /// announced.
    pub fn unmark_announced(&self) -> bool {
        self.restart_traffic();
        self.state
            .compare_exchange(
                State::Announced as u32,
                State::Tracked as u32,
                Ordering::AcqRel,
                Ordering::Relaxed,
            )
            .is_ok()
    }

    /// Whether the connection never had a lane, and never will.
    pub fn is_settled(&self) -> bool {
        self.state() == State::Tracked && self.is_pinned()
    }

    /// Takes the bytes of a connection that was on TCP alone from the kernel, for the
    /// statistics, unless programs that this record does not know moved some of them.
    pub fn take_kernel_counts(&self, fd: i32) {
        if self.flag(FLAG_MOVED_ELSEWHERE) {
            return;
        }
        if let Ok((read, written)) = tcp_bytes_ever(fd, self.role()) {
            self.tcp_rx.store(read, Ordering::Relaxed);
            self.tcp_tx.store(written, Ordering::Relaxed);
        }
    }

    /// The kernel's counts hold, or will hold, bytes that another program moved before or beside
    /// those who use this record. From now on bytes are counted one call at a time, and those of a
    /// connection that is left to the kernel not at all: better too few than some twice.
    pub fn note_moved_elsewhere(&self, fd: i32) {
        if self.is_settled() {
            self.take_kernel_counts(fd);
        }
        self.flags.fetch_or(FLAG_MOVED_ELSEWHERE, Ordering::Relaxed);
    }

    /// A connection that was inherited: notes whether bytes were moved before.
    pub fn note_inherited(&self, fd: i32) {
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
        self.refs.fetch_add(1, Ordering::Relaxed);
        self.clear_owner();
    }

    /// This many descriptors fewer, if there are others. False, and none fewer, if not.
    pub fn leave_to_others(&self, names: u32) -> bool {
        let fewer = |refs: u32| refs.checked_sub(names).filter(|left| *left > 0);
        self.refs
            .fetch_update(Ordering::AcqRel, Ordering::Relaxed, fewer)
            .is_ok()
    }

    /// This many descriptors more, if the others of [`End::leave_to_others`] have not ended this
    /// life meanwhile.
    pub fn return_to_life(&self, generation: u32, names: u32) -> bool {
        let more = |refs: u32| (refs > 0).then(|| refs + names);
        self.clear_owner();
        self.generation() == generation
            && self
                .refs
                .fetch_update(Ordering::AcqRel, Ordering::Relaxed, more)
                .is_ok()
    }

    /// One descriptor fewer; true if it was the last.
    pub fn drop_ref(&self) -> bool {
        let is_last = self.refs.fetch_sub(1, Ordering::AcqRel) == 1;
        if !is_last {
            // Who has the others is not known here.
            self.clear_owner();
        }
        is_last
    }

    /// Descriptors that name this connection, in all processes.
    pub fn refs(&self) -> u32 {
        self.refs.load(Ordering::Relaxed)
    }

    /// Whether calls do not block.
    pub fn is_nonblocking(&self) -> bool {
        self.flags.load(Ordering::Relaxed) & FLAG_NONBLOCK != 0
    }

    /// Follows `O_NONBLOCK` of the file description.
    pub fn set_nonblocking(&self, on: bool) {
        if on {
            self.flags.fetch_or(FLAG_NONBLOCK, Ordering::Relaxed);
        } else {
            self.flags.fetch_and(!FLAG_NONBLOCK, Ordering::Relaxed);
        }
    }

    #[inline]
    pub(crate) fn flag(&self, flag: u32) -> bool {
        self.flags.load(Ordering::Relaxed) & flag != 0
    }

    pub(crate) fn is_adopted(&self) -> bool {
        self.flag(FLAG_ADOPTED)
    }

    /// Whether there is a lane that is not to be used yet. What the peer sends comes by TCP.
    #[inline]
    pub fn is_patient(&self) -> bool {
        self.flag(FLAG_PATIENT)
    }

    /// Whether reads follow the lane's rules, and nothing else has to be thought of: neither end is
    /// done, pinned or broken.
    pub(crate) fn reads_by_rules_alone(&self) -> bool {
        const OTHERS: u32 = FLAG_BROKEN
            | FLAG_GAP
            | FLAG_PATIENT
            | FLAG_PEER_DONE
            | FLAG_PIN_RX
            | FLAG_PIN_TX
            | FLAG_SHUT_RX;
        self.flags.load(Ordering::Relaxed) & (FLAG_ADOPTED | OTHERS) == FLAG_ADOPTED
    }

    /// Whether there is a lane that may be used.
    pub fn has_usable_lane(&self) -> bool {
        self.state() == State::Attached && !self.is_patient()
    }

    pub(crate) fn is_tx_pinned(&self) -> bool {
        self.flag(FLAG_PIN_TX | FLAG_PEER_DONE)
    }

    /// What this end sends stays on TCP from now on; it is on TCP already.
    pub(crate) fn stop_sending_by_ring(&self) {
        self.flags.fetch_or(FLAG_PIN_TX, Ordering::Relaxed);
    }

    /// The peer sends no more, so its receiving half may be gone: what is written from now on
    /// goes by TCP, which knows.
    pub(crate) fn set_peer_done(&self) {
        self.flags.fetch_or(FLAG_PEER_DONE, Ordering::Relaxed);
    }

    /// Whether the kernel has, or is about to have, the end of the stream: the peer has closed
    /// its last descriptor, or this end has shut down reading.
    pub(crate) fn is_end_near(&self) -> bool {
        self.flag(FLAG_SHUT_RX) || self.outgoing().is_some_and(|out| out.is_closed())
    }

    /// The program is about to shut down reading. What comes all the same is readable, as with
    /// TCP on Linux, between reports of the end of the stream.
    pub fn shut_rx(&self) {
        self.flags.fetch_or(FLAG_SHUT_RX, Ordering::Relaxed);
    }

    /// Whether the connection stays on TCP for good.
    pub fn is_pinned(&self) -> bool {
        self.flag(FLAG_PIN_TX) && self.flag(FLAG_PIN_RX)
    }

    fn half<'a, T>(&'a self, lock: &'a OwnerLock<T>, generation: u32) -> Locked<'a, T> {
        let Some(guard) = lock.lock() else {
            return Locked::Reentered;
        };
        if self.generation.load(Ordering::Relaxed) != generation {
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
        self.flag(FLAG_OUR_NODELAY)
    }

    /// Says so.
    pub fn set_our_nodelay(&self, ours: bool) {
        if ours {
            self.flags.fetch_or(FLAG_OUR_NODELAY, Ordering::Relaxed);
        } else {
            self.flags.fetch_and(!FLAG_OUR_NODELAY, Ordering::Relaxed);
        }
    }

    /// Counts what was read from TCP anew after a reader died on the way to the mark.
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
            self.flags.fetch_or(FLAG_SENDER_GONE, Ordering::Relaxed);
        }
    }

    /// Whether the other process of the lane is sluiced, which is this end's writer and reader for
    /// a peer on another host (docs/decisions/0016).
    pub fn is_remote(&self) -> bool {
        self.flag(FLAG_REMOTE)
    }

    /// Whether the peer's socket is in another kernel, or may be, while its process shares the lane
    /// itself (docs/decisions/0041). Nobody here can be asked about that socket, and the peer's clock
    /// is another one.
    pub fn is_direct(&self) -> bool {
        self.flag(FLAG_DIRECT)
    }

    /// Whether sluiced offers this end's ring to a program on another host.
    pub fn is_offered(&self) -> bool {
        self.state() == State::Attached
            && self.is_remote()
            && self
                .incoming()
                .is_some_and(|into| self.is_write_in_flight(&into))
    }

    /// Whether somebody may write to the ring that this end reads, as far as is known.
    pub(crate) fn has_sender(&self) -> bool {
        !self.flag(FLAG_SENDER_GONE)
    }

    /// An error behind bytes that a call returned: TCP reports it to the next call.
    pub(crate) fn postpone(&self, errno: Errno) {
        self.postponed.store(errno.0 as u32, Ordering::Relaxed);
    }

    /// The error that the last call left to this one.
    pub(crate) fn take_postponed(&self) -> Option<Errno> {
        if self.postponed.load(Ordering::Relaxed) == 0 {
            return None;
        }
        match self.postponed.swap(0, Ordering::Relaxed) {
            0 => None,
            errno => Some(Errno(errno as i32)),
        }
    }

    /// Whether reads fail: the peer broke the rules of shared memory, or this process cannot
    /// reach what is next in the stream.
    pub(crate) fn is_broken(&self) -> bool {
        self.flag(FLAG_BROKEN | FLAG_GAP)
    }

    /// Whether what is next in the stream is with another process.
    pub fn has_gap(&self) -> bool {
        self.flag(FLAG_GAP)
    }

    /// Whether writes fail, too: the peer broke the rules of shared memory.
    pub(crate) fn is_broken_by_peer(&self) -> bool {
        self.flag(FLAG_BROKEN)
    }

    /// Ring bytes that the program has not read.
    pub fn unread_ring_bytes(&self, generation: u32, fd: i32) -> usize {
        let Locked::Held(mut rx) = self.lock_rx(generation) else {
            return 0;
        };
        match self.incoming() {
            Some(into) if self.is_adopted() => {
                self.pass_over(fd, &mut rx, &into);
                rx.stream.consumer().available(&into).unwrap_or(0)
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
            into.close();
        }
        let totals = self.totals();
        self.generation.fetch_add(1, Ordering::Relaxed);
        self.chunk.store(0, Ordering::Relaxed);
        self.state.store(State::Free as u32, Ordering::Release);
        drop(tx);
        drop(rx);
        Some(totals)
    }

    /// What the connection has moved so far.
    fn totals(&self) -> Totals {
        let bytes = |count: &AtomicU64| count.load(Ordering::Relaxed);
        let count = |count: &AtomicU32| u64::from(count.load(Ordering::Relaxed));
        Totals::of_one(&OneEnd {
            is_remote: self.is_remote() || self.is_direct(),
            ring: [bytes(&self.ring_rx), bytes(&self.ring_tx)],
            tcp: [bytes(&self.tcp_rx), bytes(&self.tcp_tx)],
            switches: count(&self.switches),
            sleeps: count(&self.sleeps),
            spins: count(&self.spins),
        })
    }
}

impl Address {
    fn store(&self, address: &SocketAddr) {
        let ip = match address.ip() {
            IpAddr::V4(v4) => v4.to_ipv6_mapped(),
            IpAddr::V6(v6) => v6,
        };
        for (to, byte) in self.ip.iter().zip(ip.octets()) {
            to.store(byte, Ordering::Relaxed);
        }
        self.port.store(address.port(), Ordering::Relaxed);
    }
}
