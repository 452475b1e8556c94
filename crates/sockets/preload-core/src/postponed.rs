//! Lanes that came while another process had the connection, too, as a child has that redis has
//! forked to save its data. The peer has its end of such a lane and goes on by TCP until this one is
//! read by the lane's rules, so it can wait.
#![allow(unsafe_code)]

use crate::memory;
use core::ptr::NonNull;
use sluice_control::message::Lane;
use sluice_lane::table::ENDS;

/// All of one process and one sluiced.
pub struct Postponed {
    /// One for each record, made with the first that is kept.
    kept: Option<NonNull<Kept>>,
    /// Which are of this sluiced. Those of former ones mean nothing.
    session: u32,
}

/// Zeroes where there was none.
struct Kept {
    session: u32,
    lane: Lane,
}

// SAFETY: the memory is never given back, and whoever has the struct alone has it alone.
unsafe impl Send for Postponed {}

impl Postponed {
    /// None kept.
    #[allow(clippy::new_without_default)]
    pub const fn new() -> Self {
        Self {
            kept: None,
            session: 1,
        }
    }

    /// Keeps a lane in place of what was kept for its record. Without memory the connection stays on
    /// TCP.
    pub fn keep(&mut self, lane: &Lane) {
        let session = self.session;
        if self.kept.is_none() {
            self.kept = memory::zeroed(ENDS as usize * size_of::<Kept>()).map(NonNull::cast);
        }
        if let Some(place) = self.place(lane.end) {
            *place = Kept {
                session,
                lane: *lane,
            };
        }
    }

    /// What is kept for this life of a record; kept no longer.
    pub fn take(&mut self, end: u32, generation: u32) -> Option<Lane> {
        let session = self.session;
        let place = self.place(end).filter(|kept| kept.session == session)?;
        place.session = 0;
        (place.lane.generation == generation).then_some(place.lane)
    }

    /// What is kept was another sluiced's, or is the parent's.
    pub fn forget_all(&mut self) {
        self.session = self.session.wrapping_add(1).max(1);
    }

    fn place(&mut self, end: u32) -> Option<&mut Kept> {
        let kept = self.kept.filter(|_| end < ENDS)?;
        // SAFETY: there is one for each record, in memory that stays and that nobody else refers to. It
        // is of numbers and `false`s, so zeroes are one.
        Some(unsafe { kept.add(end as usize).as_mut() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lane(end: u32, generation: u32) -> Lane {
        Lane {
            end,
            generation,
            chunk: 1,
            lane: 2,
            lanes: 16,
            ring_bytes: 65_536,
            side: 1,
            has_chunk_fd: true,
            has_parking_fd: true,
            is_remote: false,
            is_direct: false,
            offset: 0,
            peer: 3,
            peer_pid: 4,
            cookie: 5,
        }
    }

    #[test]
    fn a_lane_is_taken_once_and_by_its_own_connection() {
        let mut postponed = Postponed::new();
        assert_eq!(postponed.take(7, 0), None, "nothing was kept yet");
        postponed.keep(&lane(7, 1));
        assert_eq!(postponed.take(0, 0), None);
        assert_eq!(postponed.take(7, 1), Some(lane(7, 1)));
        assert_eq!(postponed.take(7, 1), None);
        postponed.keep(&lane(7, 1));
        assert_eq!(postponed.take(7, 2), None, "another life of the record");
        postponed.keep(&lane(7, 1));
        postponed.keep(&lane(7, 2));
        assert_eq!(postponed.take(7, 2), Some(lane(7, 2)));
    }

    #[test]
    fn lanes_of_a_sluiced_that_was_lost_are_none() {
        let mut postponed = Postponed::new();
        postponed.keep(&lane(7, 1));
        postponed.forget_all();
        assert_eq!(postponed.take(7, 1), None);
        postponed.keep(&lane(7, 1));
        assert_eq!(postponed.take(7, 1), Some(lane(7, 1)));
    }

    #[test]
    fn numbers_beyond_the_table_are_nobodys() {
        let mut postponed = Postponed::new();
        postponed.keep(&lane(ENDS, 1));
        assert_eq!(postponed.take(ENDS, 1), None);
        postponed.keep(&lane(ENDS - 1, 1));
        assert_eq!(postponed.take(ENDS - 1, 1), Some(lane(ENDS - 1, 1)));
    }
}
