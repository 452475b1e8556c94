//! Two hosts that found each other.
//!
//! A host draws a *generation* for each link, a random number that is not zero, and tells the
//! peer in the peer's own slot. Who sees a new generation of a peer resets what it writes
//! for that peer and answers with the number it saw. The link is up at a host when the peer has
//! answered with this host's generation: everything that the peer wrote for an earlier one lies
//! behind that answer. So a host that died, was restarted, or gave its slot to another one is a
//! new generation, and nothing of the old one is ever taken for the new one's.
//!
//! A host may be up alone: what it said may be lost where the way was cut, and it does not say it again. The
//! peer sees its beat, but no answer, and draws another generation then, which ends the link of that host.

use sluice_sys::errno::Errno;

use crate::claim::{Pulse, Watch};
use crate::layout::Pair;
use crate::mailbox::{Receiver, Sender};
use crate::view::View;

/// In the first word of a hello: "SLUICE", and the version of layout and protocol.
pub const HELLO: u64 = u64::from_le_bytes(*b"SLUICE\0\0") | (VERSION << 48);
/// The version of everything that hosts of a window say to each other.
pub const VERSION: u64 = 1;
const HELLO_MASK: u64 = 0xffff_ffff_ffff;

/// Words of a hello.
mod word {
    pub const HELLO: u64 = 0;
    pub const GENERATION: u64 = 1;
    pub const ANSWER: u64 = 2;
}

/// What every word reads as when the way to the memory is gone (PCI Express 2.3.2: an
/// unsuccessful completion is returned to the processor as ones).
pub const ALL_ONES: u64 = u64::MAX;

/// From one generation of a call to the next, so that neither is one that a host drew elsewhere: odd, and far
/// from what hosts count in.
const STRIDE: u64 = 0x9e37_79b9_7f4a_7c15;

/// A generation, of a claim or a link: random, and neither of the two words that mean nothing.
///
/// # Errors
/// Those of getrandom(2).
pub fn generation() -> Result<u64, Errno> {
    let [word, _] = sluice_sys::process::random()?;
    Ok(word.clamp(1, ALL_ONES - 1))
}

/// Why a link is down.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ended {
    /// The peer left, in order.
    Left,
    /// The peer is another one now: it was restarted, or somebody else has its slot.
    Replaced,
    /// The peer's beats stopped.
    Silent,
    /// The window reads as all ones.
    Cut,
}

impl core::fmt::Display for Ended {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str(match self {
            Ended::Left => "the other host has left the window",
            Ended::Replaced => "the other host was restarted",
            Ended::Silent => "the other host gives no sign of life",
            Ended::Cut => "the window is cut off",
        })
    }
}

/// What [`Link::poll`] found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// The peer of this generation is there and heard of us. Mailboxes are empty and usable.
    Up { generation: u64 },
    /// The link is over, with everything that was on it.
    Down(Ended),
    /// The peer speaks another version of the protocol. Said once for each generation of it.
    OtherVersion(u64),
}

/// The link of this host with one other, from the hello to the end. What comes after the end is
/// another link, with another generation.
#[derive(Debug)]
pub struct Link {
    pair: Pair,
    generation: u64,
    /// The peer's generation that was answered; 0 for none.
    seen: u64,
    /// The answer that was said last; 0 for none.
    answered: u64,
    state: State,
    /// For how long the peer's beat changes, while this host calls.
    alive: Option<Watch>,
    pulse: Pulse,
    beat: u64,
    pub sender: Sender,
    pub receiver: Receiver,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Calling,
    Up,
    Over,
}

impl Link {
    /// Says hello to the peer. `generation` is random, neither 0 nor all ones, and of this link
    /// alone.
    pub fn new(pair: Pair, generation: u64, view: &impl View) -> Link {
        assert!(generation != 0 && generation != ALL_ONES);
        let link = Link {
            pair,
            generation,
            seen: 0,
            answered: 0,
            state: State::Calling,
            alive: None,
            pulse: Pulse::default(),
            beat: 0,
            sender: Sender::new(pair),
            receiver: Receiver::new(pair),
        };
        link.call(view);
        link
    }

    fn call(&self, view: &impl View) {
        // In this order: whoever sees this generation sees no answer of an earlier one.
        view.say(self.pair.hello_out(word::ANSWER), self.answered);
        view.say(self.pair.hello_out(word::GENERATION), self.generation);
        view.say(self.pair.hello_out(word::HELLO), HELLO);
    }

    pub fn pair(&self) -> Pair {
        self.pair
    }

    pub fn is_up(&self) -> bool {
        self.state == State::Up
    }

    /// The generations of this host and of the peer, while the link is up. Both were said in the window alone.
    pub fn generations(&self) -> Option<(u64, u64)> {
        self.is_up().then_some((self.generation, self.seen))
    }

    /// A sign of life. To be called several times in [`SILENCE_NS`](crate::claim::SILENCE_NS). Until the
    /// link is up it says everything again, for what is said while the way is cut is lost.
    pub fn beat(&mut self, view: &impl View) {
        if self.state == State::Calling {
            if self.answered != 0 {
                self.answer(view, self.answered);
            }
            self.call(view);
        }
        self.beat = self.beat.wrapping_add(1);
        view.say(self.pair.beat_out(), self.beat);
    }

    /// Looks at what the peer says. One event at a time: call again until there is none.
    pub fn poll(&mut self, view: &impl View, now_ns: u64) -> Option<Event> {
        match self.state {
            State::Calling => self.poll_calling(view, now_ns),
            State::Up => self.check(view, now_ns).map(|why| {
                self.state = State::Over;
                Event::Down(why)
            }),
            State::Over => None,
        }
    }

    fn poll_calling(&mut self, view: &impl View, now_ns: u64) -> Option<Event> {
        let event = self.listen(view, now_ns);
        if event.is_none() {
            self.call_again_if_unheard(view, now_ns);
        }
        event
    }

    /// The version of the peer's hello, if there is one.
    fn version(&self, view: &impl View) -> Option<u64> {
        let hello = view.look(self.pair.hello_in(word::HELLO));
        (hello != ALL_ONES && hello & HELLO_MASK == HELLO & HELLO_MASK).then_some(hello >> 48)
    }

    fn listen(&mut self, view: &impl View, now_ns: u64) -> Option<Event> {
        let version = self.version(view)?;
        let theirs = view.look(self.pair.hello_in(word::GENERATION));
        if theirs == 0 || theirs == ALL_ONES {
            return None;
        }
        if theirs != self.seen {
            self.seen = theirs;
            if version != VERSION {
                return Some(Event::OtherVersion(version));
            }
            self.answer(view, theirs);
        }
        if version != VERSION || view.look(self.pair.hello_in(word::ANSWER)) != self.generation {
            return None;
        }
        self.state = State::Up;
        // The silence of a peer begins to count now.
        self.pulse = Pulse::default();
        self.pulse.feel(view.look(self.pair.beat_in()), now_ns);
        Some(Event::Up {
            generation: self.seen,
        })
    }

    /// A peer that lives and has not answered for so long may have done so in vain: it hears another call.
    fn call_again_if_unheard(&mut self, view: &impl View, now_ns: u64) {
        if self.pulse.feel(view.look(self.pair.beat_in()), now_ns) {
            self.alive.get_or_insert(Watch::new(now_ns));
        }
        if self.pulse.silence_ns(now_ns) >= view.silence_ns() {
            self.alive = None;
        }
        let alive_ns = self.alive.as_mut().map_or(0, |watch| watch.look(now_ns));
        let speaks_another = || self.version(view).is_some_and(|it| it != VERSION);
        if alive_ns >= view.silence_ns() && !speaks_another() {
            let next = self.generation.wrapping_add(STRIDE);
            let (beat, pulse) = (self.beat, self.pulse);
            *self = Link::new(self.pair, next.clamp(1, ALL_ONES - 1), view);
            (self.beat, self.pulse) = (beat, pulse);
        }
    }

    /// Why the link is over, if it is.
    fn check(&mut self, view: &impl View, now_ns: u64) -> Option<Ended> {
        let theirs = view.look(self.pair.hello_in(word::GENERATION));
        if theirs == ALL_ONES {
            return Some(Ended::Cut);
        }
        if theirs == 0 {
            return Some(Ended::Left);
        }
        if theirs != self.seen {
            return Some(Ended::Replaced);
        }
        if view.look(self.pair.hello_in(word::ANSWER)) != self.generation {
            return Some(Ended::Left);
        }
        self.pulse.feel(view.look(self.pair.beat_in()), now_ns);
        (self.pulse.silence_ns(now_ns) >= view.silence_ns()).then_some(Ended::Silent)
    }

    /// Says to the peer that this host leaves, or that it wants nothing more of it.
    pub fn leave(mut self, view: &impl View) {
        self.state = State::Over;
        view.say(self.pair.hello_out(word::ANSWER), 0);
        view.say(self.pair.hello_out(word::GENERATION), 0);
    }

    /// Both mailboxes are made empty, and then the peer is told that they are.
    fn answer(&mut self, view: &impl View, theirs: u64) {
        self.sender = Sender::new(self.pair);
        self.receiver = Receiver::new(self.pair);
        self.sender.reset(view);
        self.receiver.reset(view);
        self.answered = theirs;
        view.say(self.pair.hello_out(word::ANSWER), theirs);
    }
}

#[cfg(test)]
mod tests;
