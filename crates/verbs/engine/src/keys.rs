//! Memory keys: 24 random bits that name a place in the table, and 8 bits that count how often
//! the place was used.
//!
//! Lookups take no lock. A program's own requests look without leaving a trace and look twice
//! ([`KeyTable::local`]). Who touches memory later, or for a peer, pins the place, so that
//! taking the key away waits for it ([`KeyTable::pin`]).

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};
use std::sync::{Mutex, OnceLock};
use std::time::Duration;

use sluice_verbs_model::error::{Error, Result};
use sluice_verbs_model::keys::{KEYS_MAX, SLOTS, WINDOW, place};

use crate::locks::lock;
use crate::random::random_u32;

pub use sluice_verbs_model::keys::KeyInfo;

/// Places are made in pieces of this many, when they are first needed.
const CHUNK: u32 = 64;

#[derive(Default)]
#[repr(align(64))]
struct Slot {
    /// 0: this place opens nothing.
    key: AtomicU32,
    /// Transfers under way.
    pins: AtomicU32,
    /// How often the place was closed: a region that is registered anew keeps its key, so the
    /// key alone does not say that what it opens is still the same.
    closed: AtomicU32,
    pd: AtomicU32,
    qpn: AtomicU32,
    access: AtomicU32,
    iova: AtomicU64,
    len: AtomicU64,
    host: AtomicU64,
}

impl Slot {
    fn info(&self, slot: u32, key: u32) -> KeyInfo {
        KeyInfo {
            slot,
            key,
            pd: self.pd.load(Ordering::Relaxed),
            qpn: self.qpn.load(Ordering::Relaxed),
            iova: self.iova.load(Ordering::Relaxed),
            len: self.len.load(Ordering::Relaxed),
            host: self.host.load(Ordering::Relaxed),
            access: self.access.load(Ordering::Relaxed),
        }
    }
}

/// Who has which place, for those who make and destroy keys.
struct Places {
    in_use: u32,
    taken: Vec<u64>,
    /// The low byte that the place's last key had.
    generation: Vec<u8>,
}

pub(crate) struct KeyTable {
    chunks: Box<[OnceLock<Box<[Slot]>>]>,
    places: Mutex<Places>,
}

impl KeyTable {
    pub fn new() -> KeyTable {
        KeyTable {
            chunks: (0..SLOTS / CHUNK).map(|_| OnceLock::new()).collect(),
            places: Mutex::new(Places {
                in_use: 0,
                taken: vec![0; SLOTS as usize / 64],
                generation: vec![0; SLOTS as usize],
            }),
        }
    }

    #[inline]
    fn slot(&self, place: u32) -> Option<&Slot> {
        let chunk = self.chunks[(place / CHUNK) as usize].get()?;
        Some(&chunk[(place % CHUNK) as usize])
    }

    /// Reserves a place and a key for it that opens nothing yet.
    pub fn reserve(&self) -> Result<u32> {
        let mut places = lock(&self.places);
        if places.in_use >= KEYS_MAX {
            return Err(Error::NoResources);
        }
        // At most half are taken: two tries on average, and so many in a row do not happen.
        for _ in 0..1024 {
            let index = random_u32() >> 8;
            let at = index & (SLOTS - 1);
            let (word, bit) = (at as usize / 64, 1u64 << (at % 64));
            if index == 0 || places.taken[word] & bit != 0 {
                continue;
            }
            places.taken[word] |= bit;
            places.in_use += 1;
            places.generation[at as usize] = places.generation[at as usize].wrapping_add(1);
            let key = index << 8 | u32::from(places.generation[at as usize]);
            self.chunks[(at / CHUNK) as usize]
                .get_or_init(|| (0..CHUNK).map(|_| Slot::default()).collect());
            return Ok(key);
        }
        Err(Error::NoResources)
    }

    /// Gives a place back. The key must have been withdrawn, or never published.
    pub fn release(&self, key: u32) {
        let mut places = lock(&self.places);
        let at = place(key);
        let (word, bit) = (at as usize / 64, 1u64 << (at % 64));
        if places.taken[word] & bit != 0 {
            places.taken[word] &= !bit;
            places.in_use -= 1;
            // A window's owner may have chosen a low byte: go on from there.
            places.generation[at as usize] = key as u8;
        }
    }

    /// Makes a reserved key open `info`. The place must not be open.
    pub fn publish(&self, info: &KeyInfo) {
        let Some(slot) = self.slot(place(info.key)) else {
            return;
        };
        slot.pd.store(info.pd, Ordering::Relaxed);
        slot.qpn.store(info.qpn, Ordering::Relaxed);
        slot.access.store(info.access, Ordering::Relaxed);
        slot.iova.store(info.iova, Ordering::Relaxed);
        slot.len.store(info.len, Ordering::Relaxed);
        slot.host.store(info.host, Ordering::Relaxed);
        slot.key.store(info.key, Ordering::SeqCst);
    }

    /// Takes a key away and waits for the transfers that use it. Not from two threads at once
    /// for one key: its region or window keeps others away.
    pub fn withdraw(&self, key: u32) {
        let Some(slot) = self.slot(place(key)) else {
            return;
        };
        slot.key.store(0, Ordering::SeqCst);
        let closed = slot.closed.load(Ordering::Relaxed);
        slot.closed.store(closed.wrapping_add(1), Ordering::SeqCst);
        let mut rounds = 0u32;
        while slot.pins.load(Ordering::SeqCst) != 0 {
            rounds += 1;
            match rounds {
                0..100 => core::hint::spin_loop(),
                100..1000 => std::thread::yield_now(),
                _ => std::thread::sleep(Duration::from_micros(50)),
            }
        }
        // Whoever finds the place open again must also find what it opens.
        fence(Ordering::SeqCst);
    }

    /// The small number of a key.
    pub const fn slot_number(key: u32) -> u32 {
        place(key)
    }

    /// The process's address of a piece of memory that a work request names. `write`: it will
    /// be written. No pin: for requests that are carried out during the call that checks them.
    #[inline]
    pub fn local(&self, key: u32, pd: u32, addr: u64, len: u32, write: bool) -> Option<u64> {
        let slot = self.slot(place(key))?;
        let closed = slot.closed.load(Ordering::Acquire);
        if key == 0 || slot.key.load(Ordering::Acquire) != key {
            return None;
        }
        let info = slot.info(0, key);
        fence(Ordering::Acquire);
        // The fields belong together only if the place was not closed meanwhile.
        if slot.closed.load(Ordering::Relaxed) != closed {
            return None;
        }
        let right = sluice_verbs_model::types::access::LOCAL_WRITE;
        if info.pd != pd || info.access & WINDOW != 0 || (write && info.access & right == 0) {
            return None;
        }
        info.translate(addr, u64::from(len))
    }

    /// Pins a key's place and says what it opens; [`KeyTable::unpin`] must follow.
    #[inline]
    pub fn pin(&self, key: u32) -> Option<KeyInfo> {
        let at = place(key);
        let slot = self.slot(at)?;
        if key == 0 {
            return None;
        }
        slot.pins.fetch_add(1, Ordering::SeqCst);
        if slot.key.load(Ordering::SeqCst) != key {
            slot.pins.fetch_sub(1, Ordering::Release);
            return None;
        }
        Some(slot.info(at, key))
    }

    #[inline]
    pub fn unpin(&self, place: u32) {
        if let Some(slot) = self.slot(place) {
            slot.pins.fetch_sub(1, Ordering::Release);
        }
    }

    /// As [`KeyTable::local`], for writing, and pinned: the place's number and the address.
    #[inline]
    pub fn pin_local(&self, key: u32, pd: u32, addr: u64, len: u32) -> Option<(u32, u64)> {
        let info = self.pin(key)?;
        let right = sluice_verbs_model::types::access::LOCAL_WRITE;
        let good = info.pd == pd && info.access & WINDOW == 0 && info.access & right != 0;
        match info.translate(addr, u64::from(len)) {
            Some(host) if good => Some((info.slot, host)),
            _ => {
                self.unpin(info.slot);
                None
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    fn open(table: &KeyTable) -> KeyInfo {
        let key = table.reserve().unwrap();
        let info = KeyInfo {
            slot: KeyTable::slot_number(key),
            key,
            pd: 7,
            iova: 0x1000,
            len: 0x100,
            host: 0x9000,
            access: sluice_verbs_model::types::access::LOCAL_WRITE,
            ..KeyInfo::default()
        };
        table.publish(&info);
        info
    }

    #[test]
    fn bounds_hold_to_the_byte() {
        let table = KeyTable::new();
        let key = open(&table).key;
        let local = |addr, len| table.local(key, 7, addr, len, true);
        assert_eq!(local(0x1000, 0x100), Some(0x9000));
        assert_eq!(local(0x10ff, 1), Some(0x90ff));
        assert_eq!(local(0x1100, 0), Some(0x9100));
        assert_eq!(local(0x0fff, 1), None);
        assert_eq!(local(0x1000, 0x101), None);
        assert_eq!(local(0x10ff, 2), None);
        assert_eq!(local(0x1101, 0), None);
        assert_eq!(local(u64::MAX, u32::MAX), None);
        assert_eq!(local(0, u32::MAX), None);
    }

    #[test]
    fn only_the_exact_key_opens() {
        let table = KeyTable::new();
        let key = open(&table).key;
        for wrong in [0, key ^ 1, key ^ 0x8000_0000, key.wrapping_add(0x100), !key] {
            assert_eq!(table.local(wrong, 7, 0x1000, 1, false), None, "{wrong:#x}");
            assert_eq!(table.pin(wrong), None);
        }
        assert_eq!(table.local(key, 8, 0x1000, 1, false), None);
    }

    #[test]
    fn a_withdrawn_key_opens_nothing_and_does_not_come_back_soon() {
        let table = KeyTable::new();
        let mut seen = HashSet::new();
        for _ in 0..20_000 {
            let key = open(&table).key;
            assert!(seen.insert(key), "{key:#x} came twice");
            table.withdraw(key);
            table.release(key);
            assert_eq!(table.local(key, 7, 0x1000, 1, false), None);
        }
    }

    /// A region that is registered anew has the same key for other memory: who looks meanwhile
    /// finds the one, the other or nothing, but no mixture.
    #[test]
    fn a_key_that_opens_something_else_is_never_half_of_it() {
        let table = KeyTable::new();
        let first = open(&table);
        let second = KeyInfo {
            iova: 0x2000,
            host: 0xf000,
            ..first
        };
        let done = AtomicU32::new(0);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                for round in 0..200_000 {
                    table.withdraw(first.key);
                    table.publish(if round % 2 == 0 { &second } else { &first });
                }
                done.store(1, Ordering::SeqCst);
            });
            while done.load(Ordering::SeqCst) == 0 {
                for info in [&first, &second] {
                    let found = table.local(info.key, info.pd, info.iova, 1, false);
                    assert!(found.is_none_or(|host| host == info.host), "{found:x?}");
                    if let Some(pinned) = table.pin(info.key) {
                        assert!(pinned == first || pinned == second, "{pinned:x?}");
                        table.unpin(pinned.slot);
                    }
                }
            }
        });
    }

    #[test]
    fn keys_end_with_an_error() {
        let table = KeyTable::new();
        let keys: Vec<u32> = (0..KEYS_MAX).map(|_| table.reserve().unwrap()).collect();
        assert_eq!(table.reserve(), Err(Error::NoResources));
        table.release(keys[0]);
        table.release(keys[0]);
        assert!(table.reserve().is_ok());
        assert_eq!(table.reserve(), Err(Error::NoResources));
    }

    #[test]
    fn withdrawing_waits_for_the_last_pin() {
        let table = KeyTable::new();
        let info = open(&table);
        let pinned = table.pin(info.key).unwrap();
        let done = AtomicU32::new(0);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                table.withdraw(info.key);
                done.store(1, Ordering::SeqCst);
            });
            while table.local(info.key, 7, 0x1000, 1, false).is_some() {
                std::thread::yield_now();
            }
            assert_eq!(table.pin(info.key), None, "closed to new users");
            assert_eq!(done.load(Ordering::SeqCst), 0);
            table.unpin(pinned.slot);
        });
        assert_eq!(done.load(Ordering::SeqCst), 1);
    }
}
