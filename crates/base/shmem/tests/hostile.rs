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
use sluice_shmem::Broken;
use sluice_shmem::chunk::Chunk;
use sluice_shmem::direction::{Direction, Words};
use sluice_shmem::geometry::Geometry;
use sluice_shmem::handover::{Back, Begun, Next, Receiver, RelayReader, Route, Sender};
use sluice_shmem::parking::{PARKING_BYTES, ParkingTable};
use std::sync::atomic::{AtomicBool, Ordering};

const RING_BYTES: u32 = 16 * 1024;
/// This end's buffer is larger than a ring, so that a ring's check is what limits a copy.
const BUFFER_BYTES: usize = 2 * RING_BYTES as usize;
/// Operations after which a run ends, whatever was seen.
const OPERATIONS_MAX: u32 = 50_000_000;
/// Rounds of garbage that must have come while this end worked.
const ROUNDS_MIN: u64 = 500;
/// How often each outcome must have been seen.
const SEEN_MIN: u32 = 3_000;

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
    next_ring: u32,
    next_owed: u32,
    next_empty: u32,
    next_tcp: u32,
    in_flight: u32,
    route_ring: u32,
    route_tcp: u32,
    switched: u32,
    switch_offset_not_zero: u32,
    drained: u32,
    not_drained: u32,
    enabled: u32,
    closed: u32,
    ready_bits: u32,
    taken_back: u32,
    not_taken_back: u32,
    heard_back: u32,
    relayed: u32,
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
            self.next_ring,
            self.next_owed,
            self.next_empty,
            self.next_tcp,
            self.in_flight,
            self.route_ring,
            self.route_tcp,
            self.switched,
            self.switch_offset_not_zero,
            self.drained,
            self.not_drained,
            self.enabled,
            self.closed,
            self.ready_bits,
            self.taken_back,
            self.not_taken_back,
            self.heard_back,
            self.relayed,
        ];
        all.into_iter().min().unwrap_or(0)
    }
}

/// One that has read half of all the bytes that a switch offset can name.
fn receiver(into: &Direction) -> Receiver {
    let mut receiver = Receiver::default();
    receiver.enable(into, 1 << 63, 0);
    receiver
}

/// This end of the lane.
struct Victim {
    outgoing: Direction,
    incoming: Direction,
    chunk: Chunk,
    side: u32,
    peer_parking: ParkingTable,
    buffer: Guarded,
    sender: Sender,
    receiver: Receiver,
    /// Another reader of the same lane, as sluiced is one.
    relay: RelayReader,
    outcomes: Outcomes,
}

impl Victim {
    fn new(chunk: Chunk, side: u32, peer_parking: ParkingTable) -> Self {
        Self {
            outgoing: chunk.direction(0, side),
            incoming: chunk.direction(0, 1 - side),
            chunk,
            side,
            peer_parking,
            buffer: Guarded::private(BUFFER_BYTES),
            sender: Sender::default(),
            receiver: receiver(&chunk.direction(0, 1 - side)),
            relay: RelayReader::default(),
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
        let available = self.receiver.consumer().available(&self.incoming)?;
        let len = available.min(wanted);
        if len == 0 {
            self.outcomes.read_nothing += 1;
            return Ok(());
        }
        let buffer = self.buffer(len);
        // SAFETY: `len` is at most what `available` returned, and the buffer has it.
        unsafe {
            self.receiver
                .consumer()
                .load(&self.incoming, available - len, buffer, len);
        }
        self.receiver.consumer().consume(&self.incoming, len);
        self.outcomes.read_bytes += 1;
        Ok(())
    }

    fn write(&mut self, wanted: usize) -> Result<(), Broken> {
        let awake = self.outgoing.begin_write(Some(self.peer_parking));
        *(match awake {
            true => &mut self.outcomes.reader_awake,
            false => &mut self.outcomes.reader_asleep,
        }) += 1;
        let room = self.sender.producer().room(&self.outgoing, wanted);
        if let Ok(room) = room {
            let len = room.min(wanted);
            let buffer = self.buffer(len);
            // SAFETY: `len` is at most the room, and the buffer has it.
            unsafe {
                self.sender.producer().store(&self.outgoing, 0, buffer, len);
            }
            self.sender.producer().publish(&self.outgoing, len);
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
        let look = self.receiver.look(&self.incoming, true);
        outcomes.in_flight += u32::from(look.in_flight);
        outcomes.switch_offset_not_zero += u32::from(self.incoming.switch_offset() != 0);
        outcomes.enabled += u32::from(self.outgoing.is_enabled());
        outcomes.closed += u32::from(self.outgoing.is_closed());
        let may_sleep = self.receiver.announce(&self.incoming, true);
        if may_sleep {
            self.receiver.withdraw(&self.incoming);
        }
        *(match may_sleep {
            true => &mut outcomes.may_sleep,
            false => &mut outcomes.may_not_sleep,
        }) += 1;
        *(match look.next? {
            Next::Ring(_) => &mut outcomes.next_ring,
            Next::Owed(_) => &mut outcomes.next_owed,
            Next::Empty => &mut outcomes.next_empty,
            Next::Tcp => &mut outcomes.next_tcp,
        }) += 1;
        Ok(())
    }

    /// Goes to the ring, if the peer seems to allow it, and back to TCP.
    fn hand_over(&mut self, switch_offset: u64) -> Result<(), Broken> {
        let outcomes = &mut self.outcomes;
        match self.sender.route(&self.outgoing, false)? {
            Route::Ring => outcomes.route_ring += 1,
            Route::Tcp | Route::RingWithoutOthers => outcomes.route_tcp += 1,
        }
        // What the garbage seldom allows is tried all the same.
        let written = || Ok::<_, core::convert::Infallible>(switch_offset);
        let parking = Some(self.peer_parking);
        let Ok(begun) = self.sender.begin(&self.outgoing, parking, written);
        if let Begun::Ring { switched } = begun {
            outcomes.switched += u32::from(switched);
            self.sender.end(&self.outgoing);
            assert!(self.sender.leave(&self.outgoing));
        }
        Ok(())
    }

    fn look_at_room(&mut self) -> Result<(), Broken> {
        let drained = self.sender.producer().is_drained(&self.outgoing)?;
        *(match drained {
            true => &mut self.outcomes.drained,
            false => &mut self.outcomes.not_drained,
        }) += 1;
        let in_flight = self.sender.producer().in_flight(&self.outgoing)?;
        assert!(in_flight <= u64::from(RING_BYTES));
        Ok(())
    }

    /// Both parts of ring bytes on their way back; the peer may say anything of either.
    fn give_back(&mut self) {
        self.outgoing.ask_reclaim();
        let fits = |bytes| {
            assert!(bytes <= u64::from(RING_BYTES));
            true
        };
        match self.sender.take_back(&self.outgoing, fits) {
            Some(pieces) => {
                self.outcomes.taken_back += 1;
                for (address, len) in pieces.into_iter().filter(|(_, len)| *len > 0) {
                    // SAFETY: the piece lies in the ring, or this faults, and the test has failed.
                    unsafe {
                        address.read_volatile();
                        address.add(len - 1).read_volatile();
                    }
                }
            }
            None => self.outcomes.not_taken_back += 1,
        }
        self.receiver.ask_back(&self.incoming);
        let heard = self.receiver.hear_back(&self.incoming, true);
        self.outcomes.heard_back += u32::from(heard != Back::Asked);
    }

    /// What sluiced does as the reader of a program.
    fn relay(&mut self) -> Result<(), Broken> {
        if self.relay.open(&self.incoming) {
            self.relay.close_gate(&self.incoming);
            assert!(self.relay.finish_closing());
        }
        let seen = self.relay.look(&self.incoming)?;
        assert!(seen.available <= u64::from(RING_BYTES));
        for (address, len) in self
            .relay
            .pieces(&self.incoming, 0, seen.available as usize)
        {
            if len > 0 {
                // SAFETY: the piece lies in the ring, or this faults, and the test has failed.
                unsafe { address.as_ptr().add(len - 1).read_volatile() };
            }
        }
        self.outcomes.relayed += 1;
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
            let read_or_write = match dice % 7 {
                0 => self
                    .read(wanted)
                    .inspect_err(|_| self.outcomes.read_broken += 1),
                1 => self
                    .write(wanted)
                    .inspect_err(|_| self.outcomes.write_broken += 1),
                2 => self.look(),
                3 => self.hand_over(dice),
                4 => {
                    self.give_back();
                    Ok(())
                }
                5 => self.relay(),
                _ => self.look_at_room(),
            };
            if dice % 64 == 5 {
                self.watch((dice >> 8) as u32 % 64);
            }
            if read_or_write.is_err() {
                // The connection is over; the next one starts from zero, with the same peer.
                scribbler.reset_lane();
                self.sender = Sender::default();
                self.receiver = receiver(&self.incoming);
                self.relay = RelayReader::default();
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

/// A chunk between faulting pages, and a parking table that reads as all awake or asleep.
fn scene() -> (Chunk, ParkingTable, Guarded, Guarded) {
    let geometry = Geometry::new(1, RING_BYTES).unwrap();
    let memory = Guarded::shared(geometry.chunk_bytes() as usize);
    let parking_memory = Guarded::shared(PARKING_BYTES);
    // SAFETY: both are mapped, and the caller keeps them mapped as long as it uses the views.
    unsafe {
        (
            Chunk::from_raw(memory.base(), geometry),
            ParkingTable::from_raw(parking_memory.base()),
            memory,
            parking_memory,
        )
    }
}

#[test]
fn garbage_from_a_thread() {
    let (chunk, parking, memory, parking_memory) = scene();
    let scribbler = Scribbler::new(&memory, &parking_memory, RING_BYTES);
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
        Victim::new(chunk, 0, parking).run(&scribbler);
    });
}

#[test]
fn garbage_from_a_process() {
    let (chunk, parking, memory, parking_memory) = scene();
    let scribbler = Scribbler::new(&memory, &parking_memory, RING_BYTES);
    let child = scribbler.fork(2);
    Victim::new(chunk, 1, parking).run(&scribbler);
    drop(child);
}
