//! A shard's gate: what whoever does not hold the shard leaves for the one who does, and by what
//! somebody is made to come for it.
//!
//! Who leaves something tries the shard behind that. If somebody holds it, it is his to find: he
//! looks here when he has let go ([`Gate::is_noted`]), and [`crate::baton`] says why he does find it.

use core::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::Mutex;

use sluice_packet::Received;
use sluice_sys::errno::Errno;
use sluice_transport::worker::Sleeper;

use crate::counters::{ShardCounters, count};
use crate::locks::lock;
use crate::shard::brought::Brought;
use crate::shard::burst::Burst;
use crate::shard_set::Set;

/// What of a shard is everybody's.
pub struct Gate {
    /// The shard's place among the transport's.
    pub number: usize,
    /// By what its thread is woken.
    pub sleeper: Sleeper,
    /// Queue pairs that may have something to send.
    inbox: Mutex<Vec<usize>>,
    /// How many, to look without the lock.
    pending: AtomicUsize,
    /// Packets that other processes got, or other shards.
    pub brought: Brought,
    /// Shards that have handed packets over to this one.
    fed_by: AtomicU64,
    /// When somebody must look at the shard again, nanoseconds; [`u64::MAX`]: no need.
    deadline: AtomicU64,
    /// Packets that pollers have found.
    polled: AtomicU64,
    /// How the program posts.
    pub burst: Burst,
    pub counters: ShardCounters,
}

impl Gate {
    pub fn new(number: usize) -> Result<Self, Errno> {
        Ok(Self {
            number,
            sleeper: Sleeper::new()?,
            inbox: Mutex::default(),
            pending: AtomicUsize::new(0),
            brought: Brought::default(),
            fed_by: AtomicU64::new(0),
            deadline: AtomicU64::new(u64::MAX),
            polled: AtomicU64::new(0),
            burst: Burst::default(),
            counters: ShardCounters::default(),
        })
    }

    /// A queue pair may have something to send. The shard is to be tried behind it.
    pub fn note(&self, index: usize) {
        lock(&self.inbox).push(index);
        self.pending.fetch_add(1, Ordering::SeqCst);
    }

    /// Whether there are notes, for who found the shard's holder or was it.
    pub fn has_notes(&self) -> bool {
        self.pending.load(Ordering::SeqCst) != 0
    }

    /// The same, of notes that may be somebody else's to find.
    pub fn may_have_notes(&self) -> bool {
        self.pending.load(Ordering::Relaxed) != 0
    }

    /// Takes all notes.
    pub fn take_notes(&self, mut each: impl FnMut(usize)) {
        if !self.has_notes() {
            return;
        }
        let mut inbox = lock(&self.inbox);
        self.pending.store(0, Ordering::SeqCst);
        for index in inbox.drain(..) {
            each(index);
        }
    }

    /// Whether somebody has left something since the shard was taken. To be asked after it was let
    /// go: who left it in the meantime did not get the shard.
    pub fn is_noted(&self) -> bool {
        self.has_notes() || !self.brought.is_empty()
    }

    /// A packet came elsewhere. The shard is to be tried behind it.
    pub fn bring(&self, received: &Received<'_>) {
        if !self.brought.put(received) {
            count(&self.counters.crowded);
        }
    }

    /// Another shard's holder got a packet for this one. The shard is to be seen to behind it.
    pub fn hand_over(&self, from: usize, received: &Received<'_>) {
        self.bring(received);
        let mut fed_by = self.fed_by();
        fed_by.insert(from);
        if fed_by != self.fed_by() {
            self.fed_by.fetch_or(fed_by.0, Ordering::Relaxed);
        }
    }

    /// Shards by whose ports packets for this one have come.
    pub fn fed_by(&self) -> Set {
        Set(self.fed_by.load(Ordering::Relaxed))
    }

    /// A program that polled has found packets.
    pub fn note_polled(&self, packets: usize) {
        self.polled.fetch_add(packets as u64, Ordering::Relaxed);
    }

    /// Packets that programs have found, ever.
    pub fn polled(&self) -> u64 {
        self.polled.load(Ordering::Relaxed)
    }

    /// When somebody must look at the shard again, nanoseconds; 0: at once; [`u64::MAX`]: no need.
    pub fn deadline(&self) -> u64 {
        self.deadline.load(Ordering::SeqCst)
    }

    pub fn set_deadline(&self, deadline: u64) {
        self.deadline.store(deadline, Ordering::SeqCst);
    }

    /// Sees to it that the engine thread does not sleep for long while something is due.
    pub fn wake_for_deadline(&self) {
        self.sleeper.wake_for(self.deadline());
    }

    /// Something is left for whoever comes next. A program that polls will be that, or posts so
    /// much more that it sends it, or else it is the engine thread when it looks whether the
    /// program still polls. The next time it is woken then.
    pub fn leave(&self) {
        self.set_deadline(0);
        if self.burst.is_polled() {
            self.wake_for_deadline();
        } else {
            self.sleeper.wake();
        }
    }
}
