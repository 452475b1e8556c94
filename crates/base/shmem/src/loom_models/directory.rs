//! The directory of a verbs process and the hazard words of its peers: nobody reads half of an
//! entry, and nobody uses memory whose key its owner has withdrawn.

use super::check;
use crate::loom_area::Area;
use crate::sync::Ordering;
use crate::verbs::directory::{Directory, KEY_WINDOW, KeyEntry, QpEntry};
use crate::verbs::hazard::Hazards;
use loom::cell::UnsafeCell;
use loom::thread;
use std::sync::Arc;

const KEY: u32 = 0x0123_4567;
const SLOT_BYTES: usize = 64;

/// The words of one queue pair, of the slots in which a key can lie, and of one initiator.
struct World {
    directory_area: Box<Area>,
    hazard_area: Box<Area>,
    /// The memory that the key opens.
    memory: UnsafeCell<()>,
}

// SAFETY: the cell holds nothing, and loom checks its accesses; the rest is atomics.
unsafe impl Send for World {}
// SAFETY: threads share atomics, and a cell that holds nothing and whose accesses loom checks.
unsafe impl Sync for World {}

impl World {
    fn new() -> Arc<Self> {
        let slot = |at: usize| (0..7).map(move |word| at + word * 8);
        let keys = (0..KEY_WINDOW as u32).flat_map(|step| {
            let first = Directory::choose_key_slot(KEY, |_| true).unwrap();
            slot(Directory::key_offset(first + step))
        });
        let words = slot(Directory::qp_offset(0)).chain(keys);
        Arc::new(Self {
            directory_area: Area::new(words, []),
            hazard_area: Area::new((0..2).map(|index| index * SLOT_BYTES), []),
            memory: UnsafeCell::new(()),
        })
    }

    fn directory(&self) -> Directory {
        // SAFETY: the area lives as long as the world, which every user holds.
        unsafe { Directory::from_raw(self.directory_area.base()) }
    }

    fn hazards(&self) -> Hazards {
        // SAFETY: the area of hazards lives as long as the world, which every user holds.
        unsafe { Hazards::from_raw(self.hazard_area.base()) }
    }
}

fn qp(peer_qpn: u32, access: u32) -> QpEntry {
    QpEntry {
        qpn: 0x12_3456,
        kind: 2,
        receives: true,
        peer_qpn,
        pd: peer_qpn,
        access,
    }
}

type SetQp = fn(&Directory, usize, &QpEntry);

/// A number that is used again, for another peer and with other rights.
fn qp_model(set_qp: SetQp) -> impl Fn() {
    move || {
        let world = World::new();
        let owner = world.clone();
        let owner = thread::spawn(move || {
            set_qp(&owner.directory(), 0, &qp(1, 1));
            set_qp(&owner.directory(), 0, &qp(2, 2));
        });
        if let Some(entry) = world.directory().qp(0) {
            assert!(
                entry == qp(1, 1) || entry == qp(2, 2),
                "half an entry: {entry:?}"
            );
        }
        owner.join().unwrap();
        assert_eq!(world.directory().qp(0), Some(qp(2, 2)));
    }
}

#[test]
fn a_verbs_queue_pair_is_read_whole_or_not_at_all() {
    check(3, qp_model(Directory::set_qp));
}

fn key_entry(key: u32) -> KeyEntry {
    KeyEntry {
        key,
        iova: u64::from(key),
        len: 4096,
        ..KeyEntry::default()
    }
}

/// How an initiator uses the key's memory; whether it did.
type Use = fn(&World) -> bool;
/// How the owner withdraws it.
type Withdraw = fn(&World, u32);

fn use_key(world: &World) -> bool {
    let (directory, hazards) = (world.directory(), world.hazards());
    let Some(slot) = directory.find_key(KEY) else {
        return false;
    };
    hazards.announce(0, slot, 0);
    let found = directory.key(slot, KEY);
    if let Some(entry) = found {
        assert_eq!(entry, key_entry(KEY), "half an entry");
        world.memory.with(|_| ());
    }
    hazards.withdraw(0);
    found.is_some()
}

fn withdraw_key(world: &World, slot: u32) {
    world.directory().clear_key(slot);
    while used(world, slot) {
        thread::yield_now();
    }
}

/// Of the words of an initiator the model has one.
fn used(world: &World, slot: u32) -> bool {
    world.hazards().announced(0, slot).is_some()
}

/// The key is withdrawn while an initiator may use it; then its memory goes, and its slot to
/// another key.
fn key_model(use_key: Use, withdraw: Withdraw) -> impl Fn() {
    move || {
        let world = World::new();
        let slot = Directory::choose_key_slot(KEY, |_| true).unwrap();
        world.directory().set_key(slot, &key_entry(KEY));
        let initiator = world.clone();
        let initiator = thread::spawn(move || {
            use_key(&initiator);
        });
        withdraw(&world, slot);
        world.memory.with_mut(|_| ());
        world.directory().set_key(slot, &key_entry(KEY + 1));
        initiator.join().unwrap();
    }
}

#[test]
fn memory_of_a_withdrawn_verbs_key_is_not_used() {
    check(3, key_model(use_key, withdraw_key));
}

#[test]
fn a_verbs_key_that_is_published_meanwhile_is_whole() {
    check(3, || {
        let world = World::new();
        let initiator = world.clone();
        let initiator = thread::spawn(move || {
            use_key(&initiator);
        });
        let slot = Directory::choose_key_slot(KEY, |_| true).unwrap();
        world.directory().set_key(slot, &key_entry(KEY));
        initiator.join().unwrap();
    });
}

// Broken variants.

/// An entry that is found by the same first word as the one before it.
#[test]
#[should_panic(expected = "half an entry")]
fn broken_owner_that_does_not_count_changes_of_a_queue_pair() {
    fn set_qp(directory: &Directory, slot: usize, entry: &QpEntry) {
        directory
            .word64(Directory::qp_offset(slot) + 24)
            .store(0, Ordering::Relaxed);
        directory.set_qp(slot, entry);
    }
    check(3, qp_model(set_qp));
}

#[test]
#[should_panic(expected = "Causality violation")]
fn broken_owner_that_does_not_wait_for_the_users_of_a_key() {
    fn withdraw(world: &World, slot: u32) {
        world.directory().clear_key(slot);
    }
    check(3, key_model(use_key, withdraw));
}

#[test]
#[should_panic(expected = "Causality violation")]
fn broken_owner_without_a_fence_behind_the_withdrawal() {
    fn withdraw(world: &World, slot: u32) {
        let at = Directory::key_offset(slot);
        world.directory().word64(at).swap(0, Ordering::SeqCst);
        while used(world, slot) {
            thread::yield_now();
        }
    }
    check(3, key_model(use_key, withdraw));
}

#[test]
#[should_panic(expected = "Causality violation")]
fn broken_initiator_that_announces_after_its_look_at_the_key() {
    fn use_key(world: &World) -> bool {
        let (directory, hazards) = (world.directory(), world.hazards());
        let slot = Directory::choose_key_slot(KEY, |_| true).unwrap();
        let found = directory.key(slot, KEY).is_some();
        hazards.announce(0, slot, 0);
        if found {
            world.memory.with(|_| ());
        }
        hazards.withdraw(0);
        found
    }
    check(3, key_model(use_key, withdraw_key));
}

#[test]
#[should_panic(expected = "Causality violation")]
fn broken_initiator_that_withdraws_without_order() {
    fn use_key(world: &World) -> bool {
        let (directory, hazards) = (world.directory(), world.hazards());
        let Some(slot) = directory.find_key(KEY) else {
            return false;
        };
        hazards.announce(0, slot, 0);
        let found = directory.key(slot, KEY).is_some();
        if found {
            world.memory.with(|_| ());
        }
        hazards.word(0).store(0, Ordering::Relaxed);
        found
    }
    check(3, key_model(use_key, withdraw_key));
}
