//! Acknowledgements that wait for the program's answer.
//!
//! A program that answers what comes posts a moment after it has seen it. Its acknowledgement is
//! held until then. So one call of the kernel takes both, or one frame: then the peer's program, which
//! may poll until its own request is acknowledged and then look at memory only, still polls when the
//! answer comes.
//!
//! Nothing is held for a program that does not answer soon: that is learned from what it does.
//! Nothing is held for longer than [`Answers::WAIT`] while the program polls, or than the engine
//! thread sleeps, which is a millisecond then.

use alloc::vec::Vec;
use core::time::Duration;

use sluice_protocol::Instant;

/// Acknowledgements that wait.
#[derive(Debug, Default)]
pub struct Answers {
    /// The queue pairs that owe them.
    flows: Vec<usize>,
    /// Messages that they are for.
    messages: u32,
    /// Until when.
    until: Instant,
    /// When the first message came after the last post.
    unanswered: Option<Instant>,
    /// How sure it is that the program answers soon.
    habit: u32,
}

impl Answers {
    /// How soon an answer is to be posted. It is much less than the time after which a requester
    /// asks again.
    pub const WAIT: Duration = Duration::from_micros(30);
    /// Messages that one acknowledgement waits for: more are a stream.
    const MESSAGES_MAX: u32 = 4;
    /// From then on something is held.
    const SURE: u32 = 4;
    const HABIT_MAX: u32 = 12;
    /// An answer that does not come undoes so many that did.
    const DISAPPOINTED: u32 = 3;

    fn late(since: Instant, now: Instant) -> bool {
        now.nanos_since(since) > Self::WAIT.as_nanos() as u64
    }

    fn disappointed(&mut self) {
        self.habit = self.habit.saturating_sub(Self::DISAPPOINTED);
    }

    /// A message came for which queue pair `index` owes an acknowledgement and nothing else.
    /// Whether that waits; if not, whatever waits for this queue pair goes with it.
    pub fn came(&mut self, index: usize, now: Instant) -> bool {
        match self.unanswered {
            Some(since) if Self::late(since, now) => {
                self.disappointed();
                self.unanswered = Some(now);
            }
            Some(_) => {}
            None => self.unanswered = Some(now),
        }
        if self.habit < Self::SURE || self.messages >= Self::MESSAGES_MAX {
            return false;
        }
        if self.flows.is_empty() {
            self.until = now.after_nanos(Self::WAIT.as_nanos() as u64);
        }
        self.messages += 1;
        if self.flows.last() != Some(&index) {
            self.flows.push(index);
        }
        true
    }

    /// The program has posted something.
    pub fn posted(&mut self, now: Instant) {
        match self.unanswered.take() {
            Some(since) if Self::late(since, now) => self.disappointed(),
            Some(_) => self.habit = (self.habit + 1).min(Self::HABIT_MAX),
            None => {}
        }
    }

    /// Until when something waits.
    pub fn until(&self) -> Option<Instant> {
        (!self.flows.is_empty()).then_some(self.until)
    }

    /// Whether something has waited long enough. `now` is asked for only if something waits.
    pub fn is_due(&self, now: impl FnOnce() -> Instant) -> bool {
        self.until().is_some_and(|until| until <= now())
    }

    /// Nothing waits any longer: the queue pairs that owe something.
    pub fn release(&mut self) -> impl Iterator<Item = usize> + '_ {
        self.messages = 0;
        self.flows.drain(..)
    }
}

#[cfg(test)]
mod tests {
    use super::Answers;
    use sluice_protocol::Instant;

    fn micros(micros: u64) -> Instant {
        Instant::from_nanos(micros * 1000)
    }

    /// A program that answers so many microseconds after each message, which come every so many.
    fn habit(
        answers: &mut Answers,
        start: u64,
        rounds: u64,
        every: u64,
        after: Option<u64>,
    ) -> bool {
        let mut waits = false;
        for round in 0..rounds {
            let now = start + round * every;
            waits = answers.came(7, micros(now));
            if let Some(after) = after {
                answers.posted(micros(now + after));
                answers.release().for_each(drop);
            } else if answers.is_due(|| micros(now + every)) {
                answers.release().for_each(drop);
            }
        }
        waits
    }

    #[test]
    fn it_waits_for_who_answers_soon_only() {
        let mut answers = Answers::default();
        assert!(!answers.came(1, micros(0)), "nothing is known yet");
        assert!(habit(&mut answers, 10, 20, 10, Some(5)));
        assert!(
            !habit(&mut answers, 1000, 20, 100, Some(90)),
            "late answers"
        );
        assert!(habit(&mut answers, 10_000, 20, 10, Some(5)));
        assert!(!habit(&mut answers, 20_000, 100, 10, None), "no answers");
        assert!(!habit(&mut answers, 30_000, 100, 1, None), "a stream");
    }

    #[test]
    fn it_ends_with_the_time() {
        let mut answers = Answers::default();
        assert!(habit(&mut answers, 0, 20, 10, Some(5)));
        assert_eq!(answers.until(), None);
        assert!(!answers.is_due(|| unreachable!("nothing waits")));
        assert!(answers.came(1, micros(1000)));
        assert!(answers.came(2, micros(1010)));
        assert!(answers.came(2, micros(1011)));
        assert!(!answers.is_due(|| micros(1029)));
        assert!(answers.is_due(|| micros(1030)));
        assert_eq!(answers.release().collect::<alloc::vec::Vec<_>>(), [1, 2]);
        assert_eq!(answers.until(), None);
    }

    #[test]
    fn it_does_not_wait_for_a_stream() {
        let mut answers = Answers::default();
        assert!(habit(&mut answers, 0, 20, 10, Some(5)));
        let waits = (0..9).map(|_| answers.came(1, micros(1000)));
        assert_eq!(waits.filter(|waits| *waits).count(), 4);
    }
}
