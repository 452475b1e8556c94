//! One other host of the window, or this one itself, as far as frames go to it and come from it.
#![allow(unsafe_code)]

use core::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::collections::VecDeque;
use std::sync::{Arc, Mutex};

use sluice_sys::clock::now_ns;
use sluice_verbs::locks::{lock, try_lock};
use sluice_window::region::RegionView;
use sluice_window::{Broken, In, Out, View as _};

use crate::answers::is_good;
use crate::bell::Bell;
use crate::channel::{Pieces, Receiving, Sending, reset, sleep};
use crate::counts::Counts;
use crate::frame::Frame;
use crate::host::{Host, INNER_BYTES};
use crate::turn::Turn;

/// Frames without bytes that wait for room at most. Peers that keep the rules have no more than
/// three of them for each queue pair.
const OWED_MAX: usize = 4096;
/// How long an acknowledgement waits for what the program sends next, so that both leave together.
pub const ACK_WAIT_NS: u64 = 20_000;
/// How long a datagram waits for a host that has just come.
const COMING_NS: u64 = 1_000_000_000;
/// Polls in vain for which it does.
const ACK_WAIT_POLLS: u64 = 24;

/// Another host, or this one.
pub struct Peer {
    pub host: Arc<Host>,
    pub slot: u32,
    is_self: bool,
    pub counts: Counts,
    pub outgoing: Mutex<Outgoing>,
    pub incoming: Mutex<Option<Receiving>>,
    /// There is a channel.
    up: AtomicBool,
    /// Acknowledgements wait: since when, nanoseconds; 0 for none.
    owes_since: AtomicU64,
    owes_polls: AtomicU64,
    /// Queue pairs wait for their turn.
    pub has_turns: AtomicBool,
    broken: Mutex<Option<Broken>>,
    /// Until when it is waited for if it holds its slot and has no channel yet; 0: not since it had.
    expected_until: AtomicU64,
}

/// What leaves.
#[derive(Default)]
pub struct Outgoing {
    pub sending: Option<Sending>,
    pieces: Option<Pieces>,
    /// Frames without bytes, which leave in front of all others.
    owed: VecDeque<Frame>,
    /// Queue pairs with more to send, each in its turn.
    turns: VecDeque<Arc<Turn>>,
    /// Those whose datagrams found no room.
    datagrams: Vec<Arc<Turn>>,
}

/// What became of an attempt to send.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sent {
    /// There is more.
    Some,
    /// There is nothing that could leave now.
    Idle,
    /// There is no room at the peer.
    Full,
}

/// What became of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Put {
    Yes,
    /// There is no room now.
    Full,
    /// There is no channel.
    Down,
}

impl Peer {
    pub fn new(host: &Arc<Host>, slot: u32) -> Peer {
        Peer {
            host: host.clone(),
            slot,
            is_self: slot == host.slot,
            counts: Counts::default(),
            outgoing: Mutex::default(),
            incoming: Mutex::default(),
            up: AtomicBool::new(false),
            owes_since: AtomicU64::new(0),
            owes_polls: AtomicU64::new(0),
            has_turns: AtomicBool::new(false),
            broken: Mutex::default(),
            expected_until: AtomicU64::new(0),
        }
    }

    pub fn is_self(&self) -> bool {
        self.is_self
    }

    pub fn is_up(&self) -> bool {
        self.up.load(Ordering::Acquire)
    }

    /// It holds its slot and is about to have a channel. A dead one is, for a while, too.
    pub fn is_coming(&self) -> bool {
        if self.is_up() || !self.host.is_held(self.slot) {
            self.expected_until.store(0, Ordering::Relaxed);
            return false;
        }
        let now = now_ns();
        match self.expected_until.load(Ordering::Relaxed) {
            0 => {
                self.expected_until
                    .store(now + COMING_NS, Ordering::Relaxed);
                true
            }
            until => now < until,
        }
    }

    /// As this host writes to it.
    pub fn out_view(&self) -> RegionView<'_> {
        match self.is_self {
            true => self.host.inner.view(0),
            false => self.host.region.view(self.host.slot),
        }
    }

    /// As this host reads from it.
    pub fn in_view(&self) -> RegionView<'_> {
        match self.is_self {
            true => self.host.inner.view(1),
            false => self.host.region.view(self.host.slot),
        }
    }

    /// A channel begins.
    pub fn begin(&self, sending: Sending, receiving: Receiving, pieces: Pieces) {
        *lock(&self.incoming) = Some(receiving);
        let mut outgoing = lock(&self.outgoing);
        outgoing.sending = Some(sending);
        outgoing.pieces = Some(pieces);
        if !self.is_self {
            self.counts.joined.add(1);
        }
        drop(outgoing);
        self.up.store(true, Ordering::Release);
    }

    /// It ends, and what waits to leave is gone. Its queue pairs are for the caller.
    pub fn end(&self) {
        self.up.store(false, Ordering::Release);
        *lock(&self.incoming) = None;
        let outgoing = core::mem::take(&mut *lock(&self.outgoing));
        self.owes_since.store(0, Ordering::Relaxed);
        self.has_turns.store(false, Ordering::Relaxed);
        for turn in outgoing.turns {
            turn.leave();
        }
    }

    /// It has broken the rules, and the worker ends it.
    pub fn breaks(&self, broken: Broken) {
        lock(&self.broken).get_or_insert(broken);
        self.host.wake();
    }

    pub fn take_broken(&self) -> Option<Broken> {
        lock(&self.broken).take()
    }

    /// Says whether this host sleeps.
    pub fn say_sleep(&self, word: u64) {
        let outgoing = lock(&self.outgoing);
        let Some(pieces) = outgoing.pieces else {
            return;
        };
        let wants = match outgoing.turns.is_empty() && outgoing.owed.is_empty() {
            true => 0,
            false => sleep::WANTS_ROOM,
        };
        let word = match word & sleep::ASLEEP {
            0 => word,
            _ => word | wants,
        };
        match self.is_self {
            // The two halves of the channel with itself are two slots.
            true => {
                let mut place = pieces.sleep();
                place.slot = 0;
                self.host.inner.view(1).say(place, word);
            }
            false => self.out_view().say(pieces.sleep(), word),
        }
    }

    /// A frame with bytes, and what is owed in front of it.
    ///
    /// # Safety
    /// As [`Sending::put`].
    pub unsafe fn put(
        &self,
        frame: &Frame,
        bytes: impl Iterator<Item = (*const u8, usize)>,
    ) -> Put {
        let mut outgoing = lock(&self.outgoing);
        let view = self.out_view();
        let outgoing = &mut *outgoing;
        let Some(sending) = &mut outgoing.sending else {
            return Put::Down;
        };
        let put = self
            .put_owed(sending, &view, &mut outgoing.owed)
            // SAFETY: the caller's promise.
            .and_then(|all| Ok(all && unsafe { sending.put(&view, frame, bytes) }?));
        sending.publish(&view);
        match put {
            Ok(true) => {
                self.counts.frames_sent.add(1);
                self.counts.bytes_sent.add(u64::from(frame.len));
                Put::Yes
            }
            Ok(false) => {
                self.counts.no_room.add(1);
                Put::Full
            }
            Err(broken) => {
                self.breaks(broken);
                Put::Down
            }
        }
    }

    /// Whether none is left.
    fn put_owed(
        &self,
        sending: &mut Sending,
        view: &RegionView<'_>,
        owed: &mut VecDeque<Frame>,
    ) -> Result<bool, Broken> {
        while let Some(frame) = owed.front() {
            // SAFETY: no bytes are promised.
            if !unsafe { sending.put(view, frame, core::iter::empty()) }? {
                return Ok(false);
            }
            self.counts.frames_sent.add(1);
            owed.pop_front();
        }
        self.owes_since.store(0, Ordering::Relaxed);
        Ok(true)
    }

    /// A frame without bytes is to leave: with what comes next, or soon, or at once.
    pub fn owe(&self, frame: Frame, at_once: bool) {
        let mut outgoing = lock(&self.outgoing);
        if outgoing.sending.is_none() {
            return;
        }
        let same = |owed: &&mut Frame| owed.to == frame.to && is_good(owed);
        // A later acknowledgement says what the earlier would.
        match outgoing.owed.iter_mut().rev().take(16).find(same) {
            Some(owed) if is_good(&frame) => *owed = frame,
            _ => outgoing.owed.push_back(frame),
        }
        if outgoing.owed.len() > OWED_MAX {
            self.breaks(Broken("does not take its answers"));
            return;
        }
        if self.owes_since.load(Ordering::Relaxed) == 0 {
            self.owes_polls.store(0, Ordering::Relaxed);
            self.owes_since.store(now_ns(), Ordering::SeqCst);
        }
        // A thread that is about to sleep says so first and looks at what is owed then.
        if at_once || self.host.asleep.load(Ordering::SeqCst) {
            self.flush(&mut outgoing);
        }
    }

    fn flush(&self, outgoing: &mut Outgoing) {
        let view = self.out_view();
        let Some(sending) = &mut outgoing.sending else {
            return;
        };
        let put = self.put_owed(sending, &view, &mut outgoing.owed);
        sending.publish(&view);
        if let Err(broken) = put {
            self.breaks(broken);
        }
    }

    /// Since when acknowledgements wait; 0 if none does.
    pub fn owes_since(&self) -> u64 {
        self.owes_since.load(Ordering::SeqCst)
    }

    /// Lets acknowledgements go now, as nothing may follow.
    pub fn flush_all(&self) {
        if self.owes_since() != 0 {
            self.flush(&mut lock(&self.outgoing));
        }
    }

    /// The same at the end of the process, when other threads may hold any lock for ever.
    pub fn flush_at_exit(&self) {
        if self.owes_since() != 0
            && let Some(mut outgoing) = try_lock(&self.outgoing)
        {
            self.flush(&mut outgoing);
        }
    }

    /// Lets acknowledgements go that have waited for long.
    pub fn flush_old(&self, now: u64) {
        let since = self.owes_since();
        if since != 0 && now.saturating_sub(since) >= ACK_WAIT_NS {
            self.flush(&mut lock(&self.outgoing));
        }
    }

    /// A poll has found nothing: what the program was to send may not come.
    pub fn polled_in_vain(&self) {
        if self.owes_since() != 0
            && self.owes_polls.fetch_add(1, Ordering::Relaxed) >= ACK_WAIT_POLLS
        {
            self.flush(&mut lock(&self.outgoing));
        }
    }

    /// The queue pair is to have its turn. Once, however often it is said.
    pub fn call(&self, turn: &Arc<Turn>) {
        self.enqueue(turn, VecDeque::push_back);
    }

    /// The same, in front of the others: there was no room for it.
    pub fn call_first(&self, turn: &Arc<Turn>) {
        self.enqueue(turn, VecDeque::push_front);
    }

    fn enqueue(&self, turn: &Arc<Turn>, put: fn(&mut VecDeque<Arc<Turn>>, Arc<Turn>)) {
        if turn.queue() {
            put(&mut lock(&self.outgoing).turns, turn.clone());
            self.has_turns.store(true, Ordering::Release);
            self.host.called();
        }
    }

    pub fn next_turn(&self) -> Option<Arc<Turn>> {
        let mut outgoing = lock(&self.outgoing);
        let next = outgoing.turns.pop_front();
        if outgoing.turns.is_empty() && outgoing.datagrams.is_empty() {
            self.has_turns.store(false, Ordering::Release);
        }
        next
    }

    /// Its datagram found no room, and is offered again when there is some.
    pub fn datagram_waits(&self, turn: Arc<Turn>) {
        lock(&self.outgoing).datagrams.push(turn);
        self.has_turns.store(true, Ordering::Release);
    }

    pub fn waiting_datagrams(&self) -> Vec<Arc<Turn>> {
        core::mem::take(&mut lock(&self.outgoing).datagrams)
    }

    /// What one frame may carry; 0 while there is no channel.
    pub fn piece_bytes(&self) -> u64 {
        let outgoing = lock(&self.outgoing);
        outgoing.sending.as_ref().map_or(0, Sending::piece_bytes)
    }
}

/// All hosts of the window by slot, this one among them.
pub struct Peers {
    pub host: Arc<Host>,
    all: Vec<Arc<Peer>>,
}

impl Peers {
    pub fn new(host: Host) -> Peers {
        let host = Arc::new(host);
        let slots = 0..host.region.header().geometry.hosts();
        let peers = Peers {
            all: slots.map(|slot| Arc::new(Peer::new(&host, slot))).collect(),
            host,
        };
        peers.join_itself();
        peers
    }

    /// The channel to itself needs nobody's consent.
    fn join_itself(&self) {
        let (start, _) = self.host.inner.header().geometry.heap();
        let pieces = |slot: u32| Pieces {
            lent: In(start),
            lent_ring: INNER_BYTES,
            borrowed: Out { slot, at: start },
            borrowed_ring: INNER_BYTES,
        };
        reset(&pieces(1), &self.host.inner.view(0));
        reset(&pieces(0), &self.host.inner.view(1));
        let bell = Bell::of(&self.host.path, self.host.slot);
        let sending = Sending::new(&pieces(1), bell);
        let receiving = Receiving::new(&pieces(0), None);
        self.all[self.host.slot as usize].begin(sending, receiving, pieces(1));
    }

    pub fn iter(&self) -> core::slice::Iter<'_, Arc<Peer>> {
        self.all.iter()
    }

    /// But for this one.
    pub fn others(&self) -> impl Iterator<Item = &Arc<Peer>> {
        self.all.iter().filter(|peer| !peer.is_self())
    }

    pub fn of(&self, slot: u32) -> Option<&Arc<Peer>> {
        self.all.get(slot as usize)
    }
}
