//! Models of the protocols of this crate for loom, which runs them in every interleaving (up to
//! the bound of preemptions) and with every value that the memory model lets a load return.
//!
//! `RUSTFLAGS="--cfg loom" cargo test -p sluice-shmem --release --lib loom`
//!
//! Each protocol also has models of broken variants, which must fail: a model that cannot fail
//! shows nothing.
#![allow(unsafe_code)]

mod bell;
mod directory;
mod order;
mod reclaim;
mod records;
mod ring;
mod sleep;
mod upgrade;

use crate::direction::{Direction, ReceiverLine, SenderLine, Words};
use crate::handover::{Begun, Route, Sender};
use crate::parking::{ParkingTable, Slot};
use crate::ready::{Ready, ReadyLine};
use crate::{Consumer, Producer};
use core::convert::Infallible;
use core::ptr::NonNull;
use loom::sync::{Condvar, Mutex};
use loom::thread::{self, JoinHandle};
use std::collections::VecDeque;
use std::sync::Arc;

/// Bytes of a model's ring.
const CAPACITY: u32 = 4;
/// Epoll instances that a model may have.
const INSTANCES: usize = 2;
const LANE: u32 = 3;

/// One direction of a lane with everything around it, and the kernel socket beside it.
struct World {
    direction: Direction,
    parking: ParkingTable,
    ready: [Ready; INSTANCES],
    kernel: Kernel,
    /// Freed with the world.
    _memory: Memory,
}

struct Memory {
    sender: *mut SenderLine,
    receiver: *mut ReceiverLine,
    ready: *mut [ReadyLine; INSTANCES],
    slots: *mut [Slot; INSTANCES],
    data: *mut [u8; CAPACITY as usize],
}

// SAFETY: the pointers are used to free the memory when the last owner drops it, no else.
unsafe impl Send for Memory {}
// SAFETY: nothing can be done with a shared `Memory`: the pointers are for the drop, which is one owner's.
unsafe impl Sync for Memory {}

impl World {
    fn new() -> Arc<Self> {
        let memory = Memory {
            sender: Box::into_raw(Box::default()),
            receiver: Box::into_raw(Box::default()),
            ready: Box::into_raw(Box::default()),
            slots: Box::into_raw(Box::default()),
            data: Box::into_raw(Box::default()),
        };
        let line =
            |index: usize| NonNull::new(memory.ready.cast::<ReadyLine>().wrapping_add(index));
        // SAFETY: the boxes live as long as the world, and models use no slot above INSTANCES.
        unsafe {
            Arc::new(Self {
                direction: Direction::from_raw(
                    NonNull::new(memory.sender).unwrap(),
                    NonNull::new(memory.receiver).unwrap(),
                    NonNull::new(memory.data).unwrap().cast(),
                    CAPACITY,
                    LANE,
                    line(0).unwrap().cast(),
                ),
                parking: ParkingTable::from_raw(NonNull::new(memory.slots).unwrap().cast()),
                ready: [0, 1].map(|index| Ready::from_raw(line(index).unwrap().cast())),
                kernel: Kernel::default(),
                _memory: memory,
            })
        }
    }

    /// A world whose receiver has enabled its lane, and a thread that sends there.
    fn with_sender(
        send: impl FnOnce(&mut Stream, &World) + Send + 'static,
    ) -> (Arc<Self>, JoinHandle<()>) {
        let world = World::new();
        world.direction.enable();
        let sender = world.clone();
        let sender = thread::spawn(move || send(&mut Stream::default(), &sender));
        (world, sender)
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        // SAFETY: all come from `Box::into_raw` in `World::new`.
        unsafe {
            drop(Box::from_raw(self.sender));
            drop(Box::from_raw(self.receiver));
            drop(Box::from_raw(self.ready));
            drop(Box::from_raw(self.slots));
            drop(Box::from_raw(self.data));
        }
    }
}

/// The kernel socket of one direction: it takes bytes and wakes whoever waits for them. A reader
/// that waits for bytes which never come is a deadlock, and loom reports it.
#[derive(Default)]
struct Kernel {
    queue: Mutex<VecDeque<u8>>,
    arrived: Condvar,
}

impl Kernel {
    fn send(&self, byte: u8) {
        self.queue.lock().unwrap().push_back(byte);
        self.arrived.notify_all();
    }

    /// Blocks until there are bytes and takes at most `max`.
    fn receive(&self, max: usize) -> Vec<u8> {
        let mut queue = self.wait(self.queue.lock().unwrap());
        let len = queue.len().min(max);
        queue.drain(..len).collect()
    }

    /// Blocks until there are bytes and leaves them.
    fn wait_readable(&self) {
        drop(self.wait(self.queue.lock().unwrap()));
    }

    fn is_readable(&self) -> bool {
        !self.queue.lock().unwrap().is_empty()
    }

    fn wait<'a>(
        &self,
        mut queue: loom::sync::MutexGuard<'a, VecDeque<u8>>,
    ) -> loom::sync::MutexGuard<'a, VecDeque<u8>> {
        while queue.is_empty() {
            queue = self.arrived.wait(queue).unwrap();
        }
        queue
    }
}

/// The sending end of a stream that may switch.
#[derive(Default)]
struct Stream {
    sender: Sender,
    by_tcp: u64,
}

impl Stream {
    fn send_tcp(&mut self, world: &World, byte: u8) {
        self.sender.leave(&world.direction);
        self.sender.note_tcp();
        world.kernel.send(byte);
        self.by_tcp += 1;
    }

    /// Announces a write; whether the ring may be filled.
    fn begin(&mut self, world: &World) -> bool {
        let written = || Ok::<_, Infallible>(self.by_tcp);
        let begun = self
            .sender
            .begin(&world.direction, Some(world.parking), written);
        matches!(begun, Ok(Begun::Ring { .. }))
    }

    /// By the ring if the receiver is awake and the segment before is drained, else by TCP.
    fn send(&mut self, world: &World, byte: u8) {
        let direction = &world.direction;
        let route = self.sender.route(direction, false).unwrap();
        if route == Route::Ring && self.begin(world) {
            push(direction, self.sender.producer(), &[byte]);
            self.sender.end(direction);
        } else {
            self.send_tcp(world, byte);
        }
    }

    /// Begins an upgrade and thinks better of it.
    fn abort_upgrade(&mut self, world: &World) {
        if self.begin(world) {
            self.sender.leave(&world.direction);
            self.sender.end(&world.direction);
        }
    }
}

/// Stores and publishes `bytes`, for which there must be room.
fn push(direction: &Direction, producer: &mut Producer, bytes: &[u8]) {
    assert!(producer.room(direction, bytes.len()).unwrap() >= bytes.len());
    // SAFETY: there is room, and the slice is as long as it says.
    unsafe { producer.store(direction, 0, bytes.as_ptr(), bytes.len()) };
    producer.publish(direction, bytes.len());
}

/// Takes all bytes that the ring has.
fn pop(direction: &Direction, consumer: &mut Consumer) -> Vec<u8> {
    let len = consumer.available(direction).unwrap();
    let mut bytes = vec![0; len];
    // SAFETY: `available` said so many, and the vector is as long.
    unsafe { consumer.load(direction, 0, bytes.as_mut_ptr(), len) };
    if len != 0 {
        consumer.consume(direction, len);
    }
    bytes
}

/// Runs `model` with at most `preemptions` involuntary switches in one run.
fn check(preemptions: usize, model: impl Fn() + Sync + Send + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(preemptions);
    builder.check(model);
}
