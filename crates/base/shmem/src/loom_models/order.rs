//! The order of connections in one report (docs/decisions/0030): who is told of what was written later is
//! told of what was written before, one by a ring, the other by the kernel.

use super::{World, check, pop, push};
use crate::direction::Words;
use crate::geometry::SLOTS;
use crate::parking::{ParkingTable, Slot};
use crate::{Consumer, Producer};
use core::ptr::NonNull;
use loom::thread;
use std::sync::Arc;

/// A connection on the ring, another one without a lane (the world's kernel socket), and the parking table on
/// which their writer counts what he gives to the kernel.
struct Two {
    world: Arc<World>,
    parking: ParkingTable,
    slots: *mut [Slot; SLOTS as usize],
}

// SAFETY: the slots are atomics, freed by the last owner.
unsafe impl Send for Two {}
// SAFETY: the slots are atomics, and nobody but the drop, which is one owner's, uses the pointer.
unsafe impl Sync for Two {}

impl Two {
    fn new() -> Arc<Two> {
        let slots = Box::into_raw(Box::new(core::array::from_fn(|_| Slot::default())));
        let world = World::new();
        // SAFETY: the slots live as long as the parking table's owner.
        let parking = unsafe { ParkingTable::from_raw(NonNull::new(slots).unwrap().cast()) };
        Arc::new(Two {
            world,
            parking,
            slots,
        })
    }

    fn by_ring(&self) {
        let direction = &self.world.direction;
        direction.begin_write(None);
        push(direction, &mut Producer::default(), &[2]);
        direction.end_write();
    }

    fn by_kernel(&self) {
        self.world.kernel.send(1);
        self.parking.count_kernel_transfer();
    }
}

impl Drop for Two {
    fn drop(&mut self) {
        // SAFETY: comes from `Box::into_raw` in `new`.
        drop(unsafe { Box::from_raw(self.slots) });
    }
}

/// Asks the kernel; what the writer's count was then.
type Ask = fn(&Two, &mut bool) -> u64;

fn ask(two: &Two, seen: &mut bool) -> u64 {
    let transfers = two.parking.kernel_transfers();
    *seen |= two.world.kernel.is_readable();
    transfers
}

/// Reports of a reader that asks the kernel only if its writer's count has moved, until one has the ring's
/// bytes: whether these or an earlier one have the kernel's.
fn report(two: &Two, ask: Ask) -> bool {
    let mut consumer = Consumer::default();
    let (mut heard, mut seen) = (None, false);
    loop {
        if !pop(&two.world.direction, &mut consumer).is_empty() {
            if heard != Some(two.parking.kernel_transfers()) {
                ask(two, &mut seen);
            }
            return seen;
        }
        heard = Some(ask(two, &mut seen));
        thread::yield_now();
    }
}

fn kernel_then_ring(ask: Ask) {
    check(3, move || {
        let two = Two::new();
        let writer = two.clone();
        let writer = thread::spawn(move || {
            writer.by_kernel();
            writer.by_ring();
        });
        assert!(report(&two, ask), "the ring's bytes come first");
        writer.join().unwrap();
    });
}

#[test]
fn what_the_kernel_had_before_is_reported_with_what_the_ring_has() {
    kernel_then_ring(ask);
}

#[test]
#[should_panic(expected = "the ring's bytes come first")]
fn a_count_that_is_read_behind_the_answer_hides_what_came_between() {
    kernel_then_ring(|two, seen| {
        *seen |= two.world.kernel.is_readable();
        two.parking.kernel_transfers()
    });
}

fn ring_then_kernel(looks_again: bool) {
    check(3, move || {
        let two = Two::new();
        let writer = two.clone();
        let writer = thread::spawn(move || {
            writer.by_ring();
            writer.by_kernel();
        });
        let mut consumer = Consumer::default();
        let mut by_ring = pop(&two.world.direction, &mut consumer).len();
        if two.world.kernel.is_readable() {
            if looks_again {
                by_ring += pop(&two.world.direction, &mut consumer).len();
            }
            assert_eq!(by_ring, 1, "the kernel's bytes come first");
        }
        writer.join().unwrap();
    });
}

#[test]
fn what_the_ring_had_before_is_reported_with_what_the_kernel_has() {
    ring_then_kernel(true);
}

#[test]
#[should_panic(expected = "the kernel's bytes come first")]
fn rings_have_to_be_looked_at_behind_the_kernel() {
    ring_then_kernel(false);
}
