//! What a process tells its peers about itself: whether its engine sleeps, its queue pairs and
//! its memory keys. One writer, the owner; peers map it read-only.
//!
//! ```text
//! 0      magic, version, nonce; engine state and armed completion queues on lines of their own;
//!        the blocks of queue pair numbers that the process has claimed
//! 4096   queue pairs: BLOCKS_MAX x 256 slots of 64 bytes
//!        keys: KEY_SLOTS slots of 64 bytes
//! ```
//!
//! A slot's first word says whose it is and is stored last; zero means free. The other words of
//! a key's slot change only while the first is zero and nobody announces the slot
//! ([`super::hazard`]), so a reader that announced it and found its key may use them all. Those
//! of a queue pair may change at any time; its first word counts the changes, so a reader that
//! finds the same count before and after has read one entry.
#![allow(unsafe_code)]

use core::ptr::NonNull;

use crate::sync::{self, AtomicU32, AtomicU64, Ordering};

/// Blocks of queue pair numbers that one process can claim.
pub const BLOCKS_MAX: usize = 64;
/// Queue pair numbers of a block.
pub const BLOCK_QPS: usize = 256;
/// Slots for keys; a key lies within [`KEY_WINDOW`] slots from its hash.
pub const KEY_SLOTS: usize = 128 * 1024;
/// How many slots a lookup visits at most.
pub const KEY_WINDOW: usize = if cfg!(loom) { 2 } else { 16 };

/// The bits of a queue pair's first word from here on count its changes: 23 bits, of which a
/// reader would have to sleep through all, to the very number.
const QP_CHANGES_SHIFT: u32 = 41;
const SLOT_BYTES: usize = 64;
const STATE_OFFSET: usize = 64;
const ARMED_OFFSET: usize = 128;
const BLOCKS_OFFSET: usize = 1024;
const QPS_OFFSET: usize = 4096;
const KEYS_OFFSET: usize = QPS_OFFSET + BLOCKS_MAX * BLOCK_QPS * SLOT_BYTES;
/// Size of the area, bytes.
pub const DIRECTORY_BYTES: usize = KEYS_OFFSET + KEY_SLOTS * SLOT_BYTES;

/// The engine thread is in the kernel until somebody rings.
pub const ENGINE_ASLEEP: u32 = 0;
/// The engine thread looks again by itself within a millisecond.
pub const ENGINE_WATCHING: u32 = 1;
/// The engine thread is at work, and looks again before it sleeps.
pub const ENGINE_AWAKE: u32 = 2;

/// A queue pair as its owner publishes it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct QpEntry {
    /// 24 bits, never 0.
    pub qpn: u32,
    /// The engine's number of the type.
    pub kind: u8,
    /// Whether it takes requests (RTR, RTS, SQD, SQE).
    pub receives: bool,
    /// The queue pair it is connected to; 0 for none.
    pub peer_qpn: u32,
    /// The owner's number of its protection domain.
    pub pd: u32,
    /// Remote access that it allows (`qp_access_flags`).
    pub access: u32,
}

/// A memory key as its owner publishes it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct KeyEntry {
    /// Never 0.
    pub key: u32,
    /// The address that peers use for the first byte.
    pub iova: u64,
    /// Bytes.
    pub len: u64,
    /// Access flags of the region.
    pub access: u32,
    /// The owner's number of its protection domain.
    pub pd: u32,
    /// The first byte in the owner's address space.
    pub address: u64,
    /// The shareable region that the bytes lie in; 0 for none.
    pub region: u32,
    /// Where in the region, bytes.
    pub region_offset: u64,
    /// Only this queue pair may use the key (a type 2 memory window); 0 for any of the domain.
    pub qpn: u32,
}

/// The sleep of a peer's engine thread for which this process has rung last; see
/// [`Directory::must_ring`].
#[derive(Debug)]
pub struct Rung(AtomicU32);

impl Rung {
    pub(crate) fn swap(&self, state: u32) -> u32 {
        self.0.swap(state, Ordering::Relaxed)
    }
}

impl Default for Rung {
    fn default() -> Self {
        // No state has these low bits, so the first sleep is a new one.
        Self(AtomicU32::new(u32::MAX))
    }
}

/// A directory in shared memory.
#[derive(Clone, Copy, Debug)]
pub struct Directory {
    base: NonNull<u8>,
}

// SAFETY: everything in the area is reached only as atomics.
unsafe impl Send for Directory {}
// SAFETY: a shared `Directory` gives out only atomics.
unsafe impl Sync for Directory {}

/// Where the search for a key starts.
fn hash(key: u32) -> usize {
    (key.wrapping_mul(0x9E37_79B1) >> 16) as usize % KEY_SLOTS
}

impl Directory {
    /// # Safety
    /// [`DIRECTORY_BYTES`] from `base`, page aligned, stay mapped as long as the value is used;
    /// for writing at the owner. A fresh directory is zero.
    pub unsafe fn from_raw(base: NonNull<u8>) -> Self {
        Self { base }
    }

    pub(crate) fn word64(&self, offset: usize) -> &AtomicU64 {
        debug_assert!(offset.is_multiple_of(8) && offset + 8 <= DIRECTORY_BYTES);
        // SAFETY: callers compute `offset` from indices that they bound; see the layout above.
        unsafe { sync::word64(self.base, offset) }
    }

    pub(crate) fn word32(&self, offset: usize) -> &AtomicU32 {
        debug_assert!(offset.is_multiple_of(4) && offset + 4 <= DIRECTORY_BYTES);
        // SAFETY: callers compute `offset` from indices that they bound, and every field of the layout is
        // aligned to its size.
        unsafe { sync::word32(self.base, offset) }
    }

    /// Whether the engine thread sleeps: [`ENGINE_ASLEEP`], [`ENGINE_WATCHING`].
    pub fn engine_state(&self) -> u32 {
        self.word32(STATE_OFFSET).load(Ordering::SeqCst)
    }

    /// Announces what the engine thread is about to do; the look afterwards comes after it.
    pub fn set_engine_state(&self, state: u32) {
        self.word32(STATE_OFFSET).swap(state, Ordering::SeqCst);
        sync::fence_after_rmw();
    }

    /// Whether the engine thread must be rung for what the caller has just published. It is
    /// rung once for each time that it goes to sleep; `rung` remembers for which.
    pub fn must_ring(&self, rung: &Rung) -> bool {
        sync::full_fence();
        let state = self.engine_state();
        state & 3 == ENGINE_ASLEEP && rung.swap(state) != state
    }

    /// How many completion queues wait for an event.
    pub fn armed(&self) -> u32 {
        self.word32(ARMED_OFFSET).load(Ordering::SeqCst)
    }

    /// Publishes that number; looks at rings afterwards come after it.
    pub fn set_armed(&self, count: u32) {
        self.word32(ARMED_OFFSET).swap(count, Ordering::SeqCst);
    }

    /// Publishes a claimed block at `index` below [`BLOCKS_MAX`]; 0 withdraws it.
    pub fn set_block(&self, index: usize, block: u32) {
        if index < BLOCKS_MAX {
            self.word32(BLOCKS_OFFSET + index * 4)
                .store(block, Ordering::Release);
        }
    }

    /// The slot of a queue pair number, if its block is one of this process.
    pub fn qp_slot(&self, qpn: u32) -> Option<usize> {
        let block = qpn >> 8;
        let index = (0..BLOCKS_MAX).find(|index| {
            block != 0
                && self
                    .word32(BLOCKS_OFFSET + index * 4)
                    .load(Ordering::Acquire)
                    == block
        })?;
        Some(index * BLOCK_QPS + (qpn & 0xFF) as usize)
    }

    pub(crate) fn qp_offset(slot: usize) -> usize {
        QPS_OFFSET + slot % (BLOCKS_MAX * BLOCK_QPS) * SLOT_BYTES
    }

    /// Publishes a queue pair. Calls for one slot come one after the other.
    pub fn set_qp(&self, slot: usize, entry: &QpEntry) {
        let at = Self::qp_offset(slot);
        let changes = self.word64(at + 24).load(Ordering::Relaxed).wrapping_add(1);
        self.word64(at + 24).store(changes, Ordering::Relaxed);
        self.word64(at).store(0, Ordering::SeqCst);
        let peer = u64::from(entry.peer_qpn) | u64::from(entry.pd) << 32;
        self.word64(at + 8).store(peer, Ordering::Release);
        self.word64(at + 16)
            .store(u64::from(entry.access), Ordering::Release);
        let first = u64::from(entry.qpn)
            | u64::from(entry.kind) << 32
            | u64::from(entry.receives) << 40
            | changes << QP_CHANGES_SHIFT;
        self.word64(at).store(first, Ordering::SeqCst);
    }

    /// Takes a queue pair out.
    pub fn clear_qp(&self, slot: usize) {
        self.word64(Self::qp_offset(slot))
            .store(0, Ordering::SeqCst);
    }

    /// The queue pair at `slot`; None while there is none or it is changing.
    pub fn qp(&self, slot: usize) -> Option<QpEntry> {
        let at = Self::qp_offset(slot);
        let first = self.word64(at).load(Ordering::Acquire);
        let peer = self.word64(at + 8).load(Ordering::Acquire);
        let access = self.word64(at + 16).load(Ordering::Acquire);
        if first == 0 || self.word64(at).load(Ordering::Relaxed) != first {
            return None;
        }
        Some(QpEntry {
            qpn: first as u32,
            kind: (first >> 32) as u8,
            receives: (first >> 40) & 1 == 1,
            peer_qpn: peer as u32,
            pd: (peer >> 32) as u32,
            access: access as u32,
        })
    }

    pub(crate) fn key_offset(slot: u32) -> usize {
        KEYS_OFFSET + slot as usize % KEY_SLOTS * SLOT_BYTES
    }

    fn key_slots(key: u32) -> impl Iterator<Item = u32> {
        let first = hash(key);
        (0..KEY_WINDOW).map(move |step| ((first + step) % KEY_SLOTS) as u32)
    }

    /// The owner's choice of a slot for `key`: the first in its window that `free` accepts.
    pub fn choose_key_slot(key: u32, free: impl FnMut(&u32) -> bool) -> Option<u32> {
        Self::key_slots(key).find(free)
    }

    /// Publishes a key at a slot that [`Directory::choose_key_slot`] gave and nobody uses.
    pub fn set_key(&self, slot: u32, entry: &KeyEntry) {
        let at = Self::key_offset(slot);
        let words = [
            entry.iova,
            entry.len,
            u64::from(entry.access) | u64::from(entry.pd) << 32,
            entry.address,
            u64::from(entry.region) | u64::from(entry.qpn) << 32,
            entry.region_offset,
        ];
        for (index, word) in words.into_iter().enumerate() {
            self.word64(at + 8 + index * 8)
                .store(word, Ordering::Relaxed);
        }
        self.word64(at)
            .store(u64::from(entry.key) | 1 << 32, Ordering::SeqCst);
    }

    /// Makes a key's slot invalid; then wait for its users.
    pub fn clear_key(&self, slot: u32) {
        self.word64(Self::key_offset(slot))
            .swap(0, Ordering::SeqCst);
        sync::fence_after_rmw();
    }

    /// The slot that holds `key` right now.
    pub fn find_key(&self, key: u32) -> Option<u32> {
        let wanted = u64::from(key) | 1 << 32;
        Self::key_slots(key)
            .find(|slot| self.word64(Self::key_offset(*slot)).load(Ordering::Relaxed) == wanted)
    }

    /// The entry of `key` at `slot`, which the caller has announced; None if it is not there.
    pub fn key(&self, slot: u32, key: u32) -> Option<KeyEntry> {
        let at = Self::key_offset(slot);
        if self.word64(at).load(Ordering::SeqCst) != u64::from(key) | 1 << 32 {
            return None;
        }
        let word = |index: usize| self.word64(at + 8 + index * 8).load(Ordering::Relaxed);
        let (rights, place) = (word(2), word(4));
        Some(KeyEntry {
            key,
            iova: word(0),
            len: word(1),
            access: rights as u32,
            pd: (rights >> 32) as u32,
            address: word(3),
            region: place as u32,
            qpn: (place >> 32) as u32,
            region_offset: word(5),
        })
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::mapping::{Access, Mapping};
    use sluice_sys::memfd;

    fn directory() -> (Mapping, Directory) {
        let fd = memfd::create(c"test").unwrap();
        memfd::set_len(fd.raw(), DIRECTORY_BYTES as u64).unwrap();
        let mapping = Mapping::shared(fd.raw(), DIRECTORY_BYTES, Access::ReadWrite).unwrap();
        // SAFETY: tests keep the mapping.
        let directory = unsafe { Directory::from_raw(mapping.base()) };
        (mapping, directory)
    }

    #[test]
    fn a_queue_pair_is_found_by_its_number() {
        let (_mapping, directory) = directory();
        assert_eq!(directory.qp_slot(0x0012_3405), None);
        directory.set_block(0, 0x77);
        directory.set_block(3, 0x1234);
        let slot = directory.qp_slot(0x0012_3405).unwrap();
        assert_eq!(slot, 3 * BLOCK_QPS + 5);
        assert_eq!(directory.qp(slot), None);
        let entry = QpEntry {
            qpn: 0x0012_3405,
            kind: 2,
            receives: true,
            peer_qpn: 0xFF_FFFF,
            pd: 9,
            access: 0xF,
        };
        directory.set_qp(slot, &entry);
        assert_eq!(directory.qp(slot), Some(entry));
        directory.clear_qp(slot);
        assert_eq!(directory.qp(slot), None);
        assert_eq!(directory.qp_slot(5), None, "block 0 is nobody's");
    }

    #[test]
    fn keys_with_one_hash_find_their_own_slots() {
        let (_mapping, directory) = directory();
        let first = 0xABCD_0001;
        // Keys with the same hash as the first, by search.
        let keys: Vec<u32> = (1..)
            .filter(|key| hash(*key) == hash(first))
            .take(KEY_WINDOW + 1)
            .collect();
        let mut used = Vec::new();
        for key in &keys[..KEY_WINDOW] {
            let slot = Directory::choose_key_slot(*key, |slot| !used.contains(slot)).unwrap();
            used.push(slot);
            let entry = KeyEntry {
                key: *key,
                iova: u64::from(*key),
                len: 3,
                access: 4,
                pd: 5,
                address: 6,
                region: 7,
                region_offset: 8,
                qpn: 9,
            };
            directory.set_key(slot, &entry);
            let found = directory.find_key(*key).unwrap();
            assert_eq!(directory.key(found, *key), Some(entry));
        }
        assert_eq!(
            Directory::choose_key_slot(keys[KEY_WINDOW], |slot| !used.contains(slot)),
            None
        );
        directory.clear_key(used[4]);
        assert_eq!(directory.find_key(keys[4]), None);
        assert_eq!(directory.key(used[4], keys[4]), None);
    }
}
