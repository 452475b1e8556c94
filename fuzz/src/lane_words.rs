//! One direction of a lane, both of whose ends are under attack: any word changes between any two
//! steps. Copies end where faulting pages begin.
#![allow(unsafe_code)]

use crate::guarded::Guarded;
use crate::input::Input;
use sluice_shmem::Broken;
use sluice_shmem::chunk::Chunk;
use sluice_shmem::direction::Words;
use sluice_shmem::geometry::{Geometry, RING_BYTES_MIN};
use sluice_shmem::handover::{Begun, Receiver, RelayReader, Sender};
use sluice_shmem::parking::{PARKING_BYTES, ParkingTable};
use std::sync::OnceLock;

/// Behind the chunk's header page.
const HEADER_BYTES: usize = 4096;
/// The lane's header in a chunk of one lane.
const LANE_OFFSET: usize = 12_288;
const LANE_BYTES: usize = 512;

struct Scene {
    memory: Guarded,
    parking: Guarded,
    buffer: Guarded,
    chunk: Chunk,
}

impl Scene {
    fn get() -> &'static Scene {
        static SCENE: OnceLock<Scene> = OnceLock::new();
        SCENE.get_or_init(|| {
            let geometry = Geometry::new(1, RING_BYTES_MIN).expect("the smallest geometry");
            let memory = Guarded::new(geometry.chunk_bytes() as usize);
            Scene {
                parking: Guarded::new(PARKING_BYTES),
                buffer: Guarded::new(2 * RING_BYTES_MIN as usize),
                // SAFETY: the memory stays mapped for good.
                chunk: unsafe { Chunk::from_raw(memory.base(), geometry) },
                memory,
            }
        })
    }
}

pub fn run(data: &[u8]) {
    let scene = Scene::get();
    for at in (HEADER_BYTES..LANE_OFFSET + LANE_BYTES).step_by(8) {
        scene.memory.store(at, 0);
    }
    scene.parking.clear();
    // SAFETY: the parking table's memory stays mapped for good.
    let parking = unsafe { ParkingTable::from_raw(scene.parking.base()) };
    let direction = scene.chunk.direction(0, 0);
    let (mut sender, mut receiver) = (Sender::default(), Receiver::default());
    let capacity = u64::from(direction.capacity());
    let mut input = Input::new(data);
    while !input.is_empty() {
        let step: Result<(), Broken> = (|| {
            match input.u8() % 15 {
                0..3 => {
                    let at = LANE_OFFSET + input.below(LANE_BYTES);
                    scene
                        .memory
                        .store(at, input.number(sender.producer().tail()));
                }
                3 => scene.memory.store(input.u32() as usize, input.u64()),
                4 => scene.parking.store(input.below(PARKING_BYTES), input.u64()),
                5 | 6 => {
                    let wanted = usize::from(input.u16());
                    direction.begin_write(Some(parking));
                    let room = sender.producer().room(&direction, wanted)?;
                    assert!(room as u64 <= capacity);
                    let len = room.min(wanted).min(2 * capacity as usize);
                    // SAFETY: there is room for `len` bytes, and the buffer has them.
                    unsafe {
                        sender
                            .producer()
                            .store(&direction, 0, scene.buffer.end(len), len)
                    };
                    sender.producer().publish(&direction, len);
                    direction.end_write();
                }
                7 | 8 => {
                    let available = receiver.consumer().available(&direction)?;
                    assert!(available as u64 <= capacity);
                    let len = available.min(usize::from(input.u16()));
                    let (offset, target) = (available - len, scene.buffer.end(len));
                    // SAFETY: `offset + len` is what `available` returned, and the buffer has it.
                    unsafe { receiver.consumer().load(&direction, offset, target, len) };
                    if len > 0 {
                        receiver.consumer().consume(&direction, len);
                    }
                }
                9 => {
                    let has_sender = input.bool();
                    if receiver.announce(&direction, has_sender) {
                        receiver.withdraw(&direction);
                    }
                    receiver.look(&direction, has_sender).next?;
                    sender.route(&direction, false)?;
                    let written = || Ok::<_, Broken>(input.u64());
                    if let Begun::Ring { .. } = sender.begin(&direction, Some(parking), written)? {
                        sender.end(&direction);
                    }
                    sender.leave(&direction);
                }
                10 => {
                    sender.producer().is_drained(&direction)?;
                    assert!(sender.producer().in_flight(&direction)? <= capacity);
                    for (start, len) in sender.producer().unread(&direction) {
                        assert!(len == 0 || scene.memory.contains(start, len));
                    }
                }
                11 => {
                    let slot = u32::from(input.u8()) % 64;
                    direction.watch(slot);
                    let mut found = 0;
                    scene.chunk.ready(0, slot).take(|lane| {
                        assert!(lane < 512);
                        found += 1;
                    });
                    assert!(found <= 512);
                    direction.unwatch(slot);
                }
                12 => {
                    receiver.ask_back(&direction);
                    if input.bool() {
                        sender.leave(&direction);
                        let fits = |unread| unread <= capacity && input.bool();
                        let pieces = sender.take_back(&direction, fits);
                        for (start, len) in pieces.into_iter().flatten() {
                            assert!(len == 0 || scene.memory.contains(start, len));
                        }
                    }
                    receiver.hear_back(&direction, input.bool());
                    receiver.hear_back(&direction, true);
                }
                13 => {
                    let mut relay = RelayReader::start(&direction);
                    relay.open(&direction);
                    let seen = relay.look(&direction)?;
                    assert!(seen.available <= capacity);
                    for (start, len) in relay.pieces(&direction, 0, seen.available as usize) {
                        assert!(len == 0 || scene.memory.contains(start.as_ptr(), len));
                    }
                    relay.close_gate(&direction);
                }
                _ => {
                    sender.republish(&direction);
                    receiver.consumer().republish(&direction);
                }
            }
            Ok(())
        })();
        if step.is_err() {
            // The connection is over.
            return;
        }
    }
}
