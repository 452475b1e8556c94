//! Which connection a record has, how far that one has come, and how many descriptors name it.

use super::State;
use core::sync::atomic::{AtomicU32, Ordering};

/// The life of a record. Whoever takes it is alone with it until [`Life::track`].
#[repr(C)]
pub(super) struct Life {
    pub(super) generation: AtomicU32,
    /// A [`State`], or `u32::MAX` while somebody takes it.
    pub(super) state: AtomicU32,
    /// Descriptors that name the connection, in all processes.
    pub(super) refs: AtomicU32,
}

impl Life {
    /// Takes a free record; the generation of the life that it may begin.
    pub fn claim(&self) -> Option<u32> {
        if self.state.load(Ordering::Relaxed) != State::Free as u32 {
            return None;
        }
        self.state
            .compare_exchange(
                State::Free as u32,
                u32::MAX,
                Ordering::Acquire,
                Ordering::Relaxed,
            )
            .ok()?;
        Some(self.generation())
    }

    /// The first descriptor of a connection names the record.
    pub fn name_first(&self) {
        self.refs.store(1, Ordering::Relaxed);
    }

    /// Publishes a record that was claimed.
    pub fn track(&self) {
        self.state.store(State::Tracked as u32, Ordering::Release);
    }

    /// The connection has its lane.
    pub fn attach(&self) {
        self.state.store(State::Attached as u32, Ordering::Release);
    }

    /// From `from` to `to`, if it is there.
    fn step(&self, from: State, to: State) -> bool {
        self.state
            .compare_exchange(from as u32, to as u32, Ordering::AcqRel, Ordering::Relaxed)
            .is_ok()
    }

    /// From `Tracked` to `Announced`, once.
    pub fn announce(&self) -> bool {
        self.step(State::Tracked, State::Announced)
    }

    /// Back to `Tracked`, if it was announced.
    pub fn retract(&self) -> bool {
        self.step(State::Announced, State::Tracked)
    }

    /// The connection is over: whoever looks for its generation does not find it any more. The record is not free yet.
    pub fn end(&self) {
        self.generation.fetch_add(1, Ordering::Relaxed);
    }

    /// The record is free behind all that was stored in it.
    pub fn free(&self) {
        self.state.store(State::Free as u32, Ordering::Release);
    }

    #[inline]
    pub fn generation(&self) -> u32 {
        self.generation.load(Ordering::Relaxed)
    }

    /// How far the connection has come.
    pub fn state(&self) -> State {
        match self.state.load(Ordering::Acquire) {
            1 => State::Tracked,
            2 => State::Announced,
            3 => State::Attached,
            _ => State::Free,
        }
    }

    pub fn refs(&self) -> u32 {
        self.refs.load(Ordering::Relaxed)
    }

    /// One descriptor more.
    pub fn add_ref(&self) {
        self.refs.fetch_add(1, Ordering::Relaxed);
    }

    /// One descriptor fewer; true if it was the last.
    pub fn drop_ref(&self) -> bool {
        self.refs.fetch_sub(1, Ordering::AcqRel) == 1
    }

    /// This many descriptors fewer, if there are others. False, and none fewer, if not.
    pub fn leave_to_others(&self, names: u32) -> bool {
        let fewer = |refs: u32| refs.checked_sub(names).filter(|left| *left > 0);
        self.refs
            .fetch_update(Ordering::AcqRel, Ordering::Relaxed, fewer)
            .is_ok()
    }

    /// This many descriptors more, if the others have not ended this life meanwhile.
    pub fn return_to(&self, generation: u32, names: u32) -> bool {
        let more = |refs: u32| (refs > 0).then(|| refs + names);
        self.generation() == generation
            && self
                .refs
                .fetch_update(Ordering::AcqRel, Ordering::Relaxed, more)
                .is_ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn new() -> Life {
        Life {
            generation: AtomicU32::new(7),
            state: AtomicU32::new(0),
            refs: AtomicU32::new(0),
        }
    }

    #[test]
    fn one_life_after_the_other() {
        let life = new();
        assert_eq!(life.state(), State::Free);
        assert_eq!(life.claim(), Some(7));
        assert_eq!(life.claim(), None, "somebody takes it");
        assert_eq!(life.state(), State::Free, "nobody else sees it yet");
        life.track();
        assert_eq!((life.claim(), life.state()), (None, State::Tracked));
        life.end();
        assert_eq!(life.claim(), None, "not free yet");
        life.free();
        assert_eq!(life.claim(), Some(8));
    }

    #[test]
    fn an_announcement_is_made_once_and_can_be_taken_back() {
        let life = new();
        assert!(!life.announce() && !life.retract(), "a free record");
        life.track();
        assert!(life.announce() && !life.announce());
        assert_eq!(life.state(), State::Announced);
        assert!(life.retract() && !life.retract());
        assert_eq!(life.state(), State::Tracked);
        life.attach();
        assert!(!life.announce() && !life.retract(), "it has its lane");
    }

    #[test]
    fn the_last_descriptor_cannot_be_left_to_others() {
        let life = new();
        life.name_first();
        assert!(!life.leave_to_others(1) && life.refs() == 1);
        life.add_ref();
        life.add_ref();
        assert!(!life.leave_to_others(3) && !life.leave_to_others(4));
        assert!(life.leave_to_others(2));
        assert!(life.return_to(7, 2) && life.refs() == 3);
        assert!(!life.return_to(6, 1), "another life's");
        assert!(!life.drop_ref() && !life.drop_ref() && life.drop_ref());
        assert!(!life.return_to(7, 1), "nobody has it any more");
    }
}
