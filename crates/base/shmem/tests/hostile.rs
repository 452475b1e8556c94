//! A peer that writes garbage into every word that it shares, as fast as it can, while this end
//! reads, writes, watches and announces sleep.
//!
//! What must hold: no panic, no access outside the rings or this end's own buffers (both lie
//! between pages that fault), every call returns, and the only error is `Broken`. The outcomes
//! are counted: a run in which the garbage did not arrive fails.
#![cfg(not(any(loom, miri)))]
#![allow(unsafe_code)]

#[path = "hostile/guarded.rs"]
mod guarded;
#[path = "hostile/scribbler.rs"]
mod scribbler;

use guarded::Guarded;
use scribbler::Scribbler;
use sluice_shmem::board::{BOARD_BYTES, Board};
use sluice_shmem::chunk::Chunk;
use sluice_shmem::direction::{Direction, Mode};
use sluice_shmem::geometry::Geometry;
use sluice_shmem::{Broken, Consumer, Producer};
use std::sync::atomic::{AtomicBool, Ordering};

const RING_BYTES: u32 = 16 * 1024;
/// This end's buffer is larger than a ring, so that a ring's check is what limits a copy.
const BUFFER_BYTES: usize = 2 * RING_BYTES as usize;
/// Operations after which a run ends, whatever was seen.
const OPERATIONS_MAX: u32 = 50_000_000;
/// Rounds of garbage that must have come while this end worked.
const ROUNDS_MIN: u64 = 500;
/// How often each outcome must have been seen.
const SEEN_MIN: u32 = 1_000;

/// How often each kind of outcome came.
#[derive(Debug, Default)]
struct Outcomes {
    read_bytes: u32,
    read_nothing: u32,
    read_broken: u32,
    wrote_bytes: u32,
    write_found_no_room: u32,
    write_broken: u32,
    reader_awake: u32,
    reader_asleep: u32,
    may_sleep: u32,
    may_not_sleep: u32,
    mode_ring: u32,
    mode_tcp: u32,
    mode_unsettled: u32,
    mark_not_zero: u32,
    drained: u32,
    not_drained: u32,
    adopted: u32,
    closed: u32,
    ready_bits: u32,
}

impl Outcomes {
    fn least(&self) -> u32 {
        let all = [
            self.read_bytes,
            self.read_nothing,
            self.read_broken,
            self.wrote_bytes,
            self.write_found_no_room,
            self.write_broken,
            self.reader_awake,
            self.reader_asleep,
            self.may_sleep,
            self.may_not_sleep,
            self.mode_ring,
            self.mode_tcp,
            self.mode_unsettled,
            self.mark_not_zero,
            self.drained,
            self.not_drained,
            self.adopted,
            self.closed,
            self.ready_bits,
        ];
        all.into_iter().min().unwrap_or(0)
    }
}

/// This end of the lane.
struct Victim {
    outgoing: Direction,
    incoming: Direction,
    chunk: Chunk,
    side: u32,
    peer_board: Board,
    buffer: Guarded,
    producer: Producer,
    consumer: Consumer,
    outcomes: Outcomes,
}

impl Victim {
    fn new(chunk: Chunk, side: u32, peer_board: Board) -> Self {
        Self {
            outgoing: chunk.direction(0, side),
            incoming: chunk.direction(0, 1 - side),
            chunk,
            side,
            peer_board,
            buffer: Guarded::private(BUFFER_BYTES),
            producer: Producer::default(),
            consumer: Consumer::default(),
            outcomes: Outcomes::default(),
        }
    }

    /// A stretch of this end's buffer that ends where the faulting pages begin.
    fn buffer(&self, len: usize) -> *mut u8 {
        assert!(len <= BUFFER_BYTES);
        // SAFETY: `len` is within the buffer.
        unsafe { self.buffer.base().as_ptr().add(BUFFER_BYTES - len) }
    }

    fn read(&mut self, wanted: usize) -> Result<(), Broken> {
        let available = self.consumer.available(&self.incoming)?;
        let len = available.min(wanted);
        if len == 0 {
            self.outcomes.read_nothing += 1;
            return Ok(());
        }
        // SAFETY: `len` is at most what `available` returned, and the buffer has it.
        unsafe {
            self.consumer
                .load(&self.incoming, available - len, self.buffer(len), len);
        }
        self.consumer.consume(&self.incoming, len);
        self.outcomes.read_bytes += 1;
        Ok(())
    }

    fn write(&mut self, wanted: usize) -> Result<(), Broken> {
        let awake = self.outgoing.begin_write(Some(self.peer_board));
        *(match awake {
            true => &mut self.outcomes.reader_awake,
            false => &mut self.outcomes.reader_asleep,
        }) += 1;
        let room = self.producer.room(&self.outgoing, wanted);
        if let Ok(room) = room {
            let len = room.min(wanted);
            // SAFETY: `len` is at most the room, and the buffer has it.
            unsafe {
                self.producer
                    .store(&self.outgoing, 0, self.buffer(len), len);
            }
            self.producer.publish(&self.outgoing, len);
            *(match len {
                0 => &mut self.outcomes.write_found_no_room,
                _ => &mut self.outcomes.wrote_bytes,
            }) += 1;
        }
        self.outgoing.end_write();
        room.map(drop)
    }

    fn look(&mut self) -> Result<(), Broken> {
        let outcomes = &mut self.outcomes;
        self.incoming.announce_sleep();
        *(match self.incoming.settled_mode() {
            Some(Mode::Ring) => &mut outcomes.mode_ring,
            Some(Mode::Tcp) => &mut outcomes.mode_tcp,
            None => &mut outcomes.mode_unsettled,
        }) += 1;
        let may_sleep = self.consumer.may_sleep(&self.incoming);
        self.incoming.withdraw_sleep();
        outcomes.mark_not_zero += u32::from(self.incoming.mark() != 0);
        outcomes.adopted += u32::from(self.outgoing.is_adopted());
        outcomes.closed += u32::from(self.outgoing.is_closed());
        *(match may_sleep? {
            true => &mut outcomes.may_sleep,
            false => &mut outcomes.may_not_sleep,
        }) += 1;
        Ok(())
    }

    fn look_at_room(&mut self) -> Result<(), Broken> {
        let drained = self.producer.is_drained(&self.outgoing)?;
        *(match drained {
            true => &mut self.outcomes.drained,
            false => &mut self.outcomes.not_drained,
        }) += 1;
        let in_flight = self.producer.in_flight(&self.outgoing)?;
        assert!(in_flight <= u64::from(RING_BYTES));
        Ok(())
    }

    fn watch(&mut self, slot: u32) {
        self.incoming.watch(slot);
        let mut found = 0;
        self.chunk.ready(self.side, slot).take(|lane| {
            assert!(lane < 512);
            found += 1;
        });
        assert!(found <= 512);
        self.outcomes.ready_bits += found;
        self.incoming.unwatch(slot);
    }

    /// Works until every outcome was seen often enough, or for `OPERATIONS_MAX` operations.
    fn run(&mut self, scribbler: &Scribbler) {
        let mut random = scribbler::Random::new(self.side.into());
        for operation in 0..OPERATIONS_MAX {
            let dice = random.next();
            let wanted = 1 + (dice >> 32) as usize % BUFFER_BYTES;
            let read_or_write = match dice % 4 {
                0 => self
                    .read(wanted)
                    .inspect_err(|_| self.outcomes.read_broken += 1),
                1 => self
                    .write(wanted)
                    .inspect_err(|_| self.outcomes.write_broken += 1),
                2 => self.look(),
                _ => self.look_at_room(),
            };
            if dice % 64 == 5 {
                self.watch((dice >> 8) as u32 % 64);
            }
            if read_or_write.is_err() {
                // The connection is over; the next one starts from zero, with the same peer.
                scribbler.reset_lane();
                self.producer = Producer::default();
                self.consumer = Consumer::default();
            }
            if operation % 8 == 0 {
                // What the other writer does between two of its turns on a shared processor.
                scribbler.scribble(&mut random);
            }
            if operation % 1024 == 0 {
                if self.outcomes.least() >= SEEN_MIN && scribbler.rounds() >= ROUNDS_MIN {
                    break;
                }
                std::thread::yield_now();
            }
        }
        assert!(scribbler.rounds() >= ROUNDS_MIN, "the peer did not run");
        eprintln!(
            "side {}: {} rounds, {:?}",
            self.side,
            scribbler.rounds(),
            self.outcomes
        );
        assert!(
            self.outcomes.least() >= SEEN_MIN,
            "the garbage did not reach every case: {:?}",
            self.outcomes
        );
    }
}

/// A chunk between faulting pages, and a board that reads as all awake or asleep.
fn scene() -> (Chunk, Board, Guarded, Guarded) {
    let geometry = Geometry::new(1, RING_BYTES).unwrap();
    let memory = Guarded::shared(geometry.chunk_bytes() as usize);
    let board_memory = Guarded::shared(BOARD_BYTES);
    // SAFETY: both are mapped, and the caller keeps them mapped as long as it uses the views.
    unsafe {
        (
            Chunk::from_raw(memory.base(), geometry),
            Board::from_raw(board_memory.base()),
            memory,
            board_memory,
        )
    }
}

#[test]
fn garbage_from_a_thread() {
    let (chunk, board, memory, board_memory) = scene();
    let scribbler = Scribbler::new(&memory, &board_memory, RING_BYTES);
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| scribbler.run(1, || over.load(Ordering::Relaxed)));
        // Ends the scribbler also when the victim panics.
        struct End<'a>(&'a AtomicBool);
        impl Drop for End<'_> {
            fn drop(&mut self) {
                self.0.store(true, Ordering::Relaxed);
            }
        }
        let _end = End(&over);
        Victim::new(chunk, 0, board).run(&scribbler);
    });
}

#[test]
fn garbage_from_a_process() {
    let (chunk, board, memory, board_memory) = scene();
    let scribbler = Scribbler::new(&memory, &board_memory, RING_BYTES);
    let child = scribbler.fork(2);
    Victim::new(chunk, 1, board).run(&scribbler);
    drop(child);
}
