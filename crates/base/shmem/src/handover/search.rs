//! What searches through all states have in common: memory of a direction that can be put back, and the way through
//! the states.
#![allow(unsafe_code)]

use crate::direction::{Direction, Image, ReceiverLine, SenderLine};
use crate::ready::ReadyLine;
use core::hash::Hash;
use core::ptr::NonNull;
use std::collections::{HashSet, VecDeque};

/// Bytes of a ring: so small that it is full at times.
pub const CAPACITY: usize = 2;

/// A direction's words and bytes at one time.
pub type Shared = (Image, [u8; CAPACITY]);

#[derive(Default)]
struct Lines {
    sender: SenderLine,
    receiver: ReceiverLine,
    ready: ReadyLine,
    data: [u8; CAPACITY],
}

/// A direction in memory of its own.
pub struct Memory {
    pub direction: Direction,
    lines: *mut Lines,
}

impl Memory {
    pub fn new() -> Self {
        let lines = Box::into_raw(Box::<Lines>::default());
        // SAFETY: the fields of a box are not null, and they live until this is dropped. No bit of a watcher is set
        // but that of slot 0.
        let direction = unsafe {
            Direction::from_raw(
                NonNull::new_unchecked(&raw mut (*lines).sender),
                NonNull::new_unchecked(&raw mut (*lines).receiver),
                NonNull::new_unchecked(&raw mut (*lines).data).cast(),
                CAPACITY as u32,
                0,
                NonNull::new_unchecked(&raw mut (*lines).ready).cast(),
            )
        };
        Self { direction, lines }
    }

    /// Puts a byte at a place of the ring, as a write from afar does.
    pub fn put(&mut self, place: usize, byte: u8) {
        // SAFETY: one thread has the memory, which lives as long as this.
        unsafe { (*self.lines).data[place] = byte };
    }

    pub fn save(&self) -> Shared {
        // SAFETY: one thread has the memory, which lives as long as this.
        (self.direction.image(), unsafe { (*self.lines).data })
    }

    pub fn load(&mut self, (image, data): &Shared) {
        self.direction.set_image(image);
        // SAFETY: one thread has the memory, which lives as long as this.
        unsafe { (*self.lines).data = *data };
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        // SAFETY: it came from a box, and who has a copy of the direction ends with this.
        drop(unsafe { Box::from_raw(self.lines) });
    }
}

/// What has states, and goes from one to another by steps.
pub trait World {
    type Step: Copy;
    type State: Clone + Eq + Hash;

    fn save(&self) -> Self::State;
    fn load(&mut self, state: &Self::State);
    fn step(&mut self, step: Self::Step);

    /// Everything that has begun ends; panics where something sent does not come.
    fn end(&mut self);
}

/// Goes through all states, and to the end from each; `seen` is told of each step that changes something. Returns how
/// many states there are.
pub fn search<W: World>(
    mut world: W,
    steps: &[W::Step],
    mut seen: impl FnMut(&mut W, &W::State, &W::State),
) -> usize {
    let first = world.save();
    let mut known = HashSet::from([first.clone()]);
    // What takes fewest steps comes first.
    let mut open = VecDeque::from([first]);
    while let Some(state) = open.pop_front() {
        for &step in steps {
            world.load(&state);
            world.step(step);
            let next = world.save();
            if next == state {
                continue;
            }
            seen(&mut world, &state, &next);
            if known.insert(next.clone()) {
                world.load(&next);
                world.end();
                open.push_back(next);
            }
        }
    }
    known.len()
}
