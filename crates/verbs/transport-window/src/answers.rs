//! What a responder has to say that is to leave behind the bytes of READs that came earlier.
//!
//! A peer that does not take those bytes cannot make it long: READs and atomics have a bound, and a frame that says all
//! that the one before it says takes its place.

use std::collections::VecDeque;

use sluice_verbs::WcStatus;

use crate::frame::{Frame, What};

/// READs and atomics that wait at most. A peer that keeps to the device's limit needs no more.
pub const LOADS_MAX: usize = 512;
/// Frames without bytes at most. A peer that keeps the rules needs one behind each READ or atomic, and one each of a
/// request that is to come again, that may come again, and that has failed.
const SHORTS_MAX: usize = LOADS_MAX + 8;

/// What is to leave in its turn.
#[derive(Debug)]
pub enum Answer {
    Read { request: Frame, offset: u64 },
    Atomic { request: Frame, old: u64 },
    Short(Frame),
}

/// All of them, in their order.
#[derive(Debug, Default)]
pub struct Answers {
    waiting: VecDeque<Answer>,
    /// READs and atomics among them.
    loads: usize,
}

/// The peer has not taken what it must have taken to get so far.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TooMany;

impl Answers {
    pub fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    pub fn clear(&mut self) {
        *self = Answers::default();
    }

    pub fn front_mut(&mut self) -> Option<&mut Answer> {
        self.waiting.front_mut()
    }

    /// The first one has left.
    pub fn pop_front(&mut self) {
        match self.waiting.pop_front() {
            Some(Answer::Read { .. } | Answer::Atomic { .. }) => self.loads -= 1,
            Some(Answer::Short(_)) | None => {}
        }
    }

    /// Whether one more READ or atomic may wait.
    pub fn have_room(&self) -> bool {
        self.loads < LOADS_MAX
    }

    pub fn read(&mut self, request: Frame) {
        self.loads += 1;
        let offset = 0;
        self.waiting.push_back(Answer::Read { request, offset });
    }

    pub fn atomic(&mut self, request: Frame, old: u64) {
        self.loads += 1;
        self.waiting.push_back(Answer::Atomic { request, old });
    }

    /// A frame without bytes.
    ///
    /// # Errors
    /// The frame is not kept: too many wait.
    pub fn short(&mut self, frame: Frame) -> Result<(), TooMany> {
        if let Some(Answer::Short(last)) = self.waiting.back_mut()
            && says_all_of(&frame, last)
        {
            *last = frame;
            return Ok(());
        }
        if self.waiting.len() - self.loads >= SHORTS_MAX {
            return Err(TooMany);
        }
        self.waiting.push_back(Answer::Short(frame));
        Ok(())
    }
}

/// An answer that a request ended well.
pub fn is_good(frame: &Frame) -> bool {
    frame.what == What::Answer && frame.code == WcStatus::Success as u16
}

/// Whether a peer that gets `frame` needs no `earlier`.
fn says_all_of(frame: &Frame, earlier: &Frame) -> bool {
    if frame.to != earlier.to {
        return false;
    }
    match (frame.what, earlier.what) {
        // All before it have ended well, too.
        (What::Answer, What::Answer) => is_good(frame) && is_good(earlier),
        // Nothing of the connection has ended in between.
        (What::NotYet, What::NotYet) | (What::Ready, What::Ready) => true,
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn about(what: What, psn: u32) -> Frame {
        Frame {
            to: 7,
            psn,
            ..Frame::new(what)
        }
    }

    fn good(psn: u32) -> Frame {
        about(What::Answer, psn)
    }

    fn failed(psn: u32) -> Frame {
        Frame {
            code: WcStatus::RemAccessErr as u16,
            ..good(psn)
        }
    }

    /// What leaves, in its order.
    fn left(mut answers: Answers) -> Vec<(What, u32)> {
        let mut left = Vec::new();
        while let Some(front) = answers.front_mut() {
            left.push(match front {
                Answer::Read { request, .. } | Answer::Atomic { request, .. } => {
                    (What::Data, request.psn)
                }
                Answer::Short(frame) => (frame.what, frame.psn),
            });
            answers.pop_front();
        }
        assert_eq!(answers.loads, 0);
        left
    }

    /// F6: a READ whose bytes the peer does not take, and SENDs of nothing behind it, without end.
    #[test]
    fn what_waits_behind_a_read_has_a_bound_whatever_comes() {
        type Says = fn(u32) -> Frame;
        let floods: [(&str, &[Says]); 4] = [
            ("no receive", &[|psn| about(What::NotYet, psn)]),
            ("all well", &[good]),
            // The program posts a receive each time.
            (
                "a receive each",
                &[
                    |psn| about(What::NotYet, psn),
                    |psn| about(What::Ready, psn),
                    good,
                ],
            ),
            (
                "others",
                &[|psn| Frame {
                    to: psn,
                    ..failed(psn)
                }],
            ),
        ];
        for (name, flood) in floods {
            let mut answers = Answers::default();
            answers.read(good(0));
            let mut refused = 0;
            for psn in 1..100_000 {
                for frame in flood {
                    refused += usize::from(answers.short(frame(psn)).is_err());
                }
            }
            assert!(answers.waiting.len() <= SHORTS_MAX + 1, "{name}");
            assert_eq!(refused == 0, answers.waiting.len() == 2, "{name}");
        }
    }

    /// As many as the device lets a peer have, and SENDs between them.
    #[test]
    fn a_peer_that_keeps_the_rules_has_room() {
        let mut answers = Answers::default();
        let mut expected = Vec::new();
        for psn in 0..LOADS_MAX as u32 {
            assert!(answers.have_room());
            match psn % 2 {
                0 => answers.read(good(3 * psn)),
                _ => answers.atomic(good(3 * psn), 0),
            }
            expected.push((What::Data, 3 * psn));
            for send in 1..=2 {
                answers.short(good(3 * psn + send)).unwrap();
            }
            expected.push((What::Answer, 3 * psn + 2));
        }
        assert!(!answers.have_room());
        let last = 3 * LOADS_MAX as u32;
        for frame in [
            about(What::NotYet, last),
            about(What::Ready, last),
            failed(last),
        ] {
            answers.short(frame).unwrap();
            expected.push((frame.what, last));
        }
        assert_eq!(left(answers), expected);
    }

    #[test]
    fn what_says_something_else_takes_no_place() {
        let mut answers = Answers::default();
        answers.read(good(0));
        answers.short(good(1)).unwrap();
        answers.short(good(2)).unwrap();
        answers.short(about(What::NotYet, 3)).unwrap();
        answers.short(about(What::NotYet, 3)).unwrap();
        answers.short(failed(3)).unwrap();
        answers.short(good(3)).unwrap();
        // Of another connection of the peer's.
        answers.short(Frame { to: 8, ..good(4) }).unwrap();
        let expected = [
            (What::Data, 0),
            (What::Answer, 2),
            (What::NotYet, 3),
            (What::Answer, 3),
            (What::Answer, 3),
            (What::Answer, 4),
        ];
        assert_eq!(left(answers), expected);
    }
}
