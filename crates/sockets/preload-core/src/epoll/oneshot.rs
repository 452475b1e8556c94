//! One-shot registrations that the kernel keeps, before their connection has a lane in use.
//!
//! The kernel disables such a registration when it reports it, and says so to nobody else. When the lane
//! comes into use, what the ring has must not be reported as well, until the program arms the
//! registration again. So these are registered with the program's events and with data of ours, a *label*, by
//! which the report is known and the program's data put back.
//!
//! A thread may have taken a report out of the kernel and not noted it yet when another one arms the
//! registration, takes it over for the lane, or removes it and adds another under its number: each
//! arming has a label of its own.

use super::item::{ARMINGS, Armed, Kind};
use super::state::State;
use super::unlocked::Unlocked;

/// Upper half of such data. No user-space pointer and no small integer looks like this.
const LABEL: u64 = 0xd15c_51e8_0000_0000;
const LABEL_MASK: u64 = 0xffff_ffff_0000_0000;
/// Bits of the registration's number; above them are those that count armings.
const NUMBER_BITS: u32 = 32 - ARMINGS.ilog2();

/// What a report with a label is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Report {
    /// The program's, with this data.
    Program(u64),
    /// The registration with this number was taken over for its lane meanwhile, which reports it.
    Taken(u32),
    /// Nobody's: the registration is gone.
    Stale,
}

/// The label of a kernel event's data, if it is one.
pub(crate) fn labelled(data: u64) -> Option<u32> {
    (data & LABEL_MASK == LABEL).then_some(data as u32)
}

impl State {
    /// The data to register in the place of the program's, for an `EPOLL_CTL_ADD` or `EPOLL_CTL_MOD` of a
    /// registration with this number; `None` where it has none, and is none that can be one-shot.
    pub fn label(&mut self, this: &Unlocked, number: u32, kind: Kind, events: u32) -> Option<u64> {
        let is_oneshot = events & libc::EPOLLONESHOT as u32 != 0;
        let has_one = self.item(number).is_some_and(|item| item.armed.is_some());
        if kind != Kind::Socket || !(is_oneshot || has_one) || number >> NUMBER_BITS != 0 {
            return None;
        }
        self.start_to_heed_rings(this);
        self.armings = (self.armings + 1) % ARMINGS;
        Some(LABEL | u64::from(self.armings << NUMBER_BITS | number))
    }

    /// The kernel has taken a registration with that data.
    pub fn note_label(&mut self, number: u32, data: Option<u64>) {
        let Some(item) = self.item(number) else {
            return;
        };
        let last = data.map(|data| data as u32 >> NUMBER_BITS);
        item.armed = last.map(|last| Armed {
            first: item.armed.map_or(last, |armed| armed.first),
            last,
        });
    }

    /// Notes that the kernel has reported a registration under its label.
    pub(crate) fn take_label(&mut self, label: u32) -> Report {
        let (number, arming) = (label & ((1 << NUMBER_BITS) - 1), label >> NUMBER_BITS);
        let Some(item) = self.item(number) else {
            return Report::Stale;
        };
        match item.armed {
            Some(armed) if armed.has(arming) => {
                if item.is_tagged {
                    return Report::Taken(number);
                }
                if armed.last == arming {
                    item.spend();
                }
                Report::Program(item.data)
            }
            _ => Report::Stale,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::item::Item;
    use super::*;

    const ONESHOT: u32 = (libc::EPOLLIN | libc::EPOLLONESHOT) as u32;

    fn arm(state: &mut State, this: &Unlocked, number: u32) -> u32 {
        let data = state.label(this, number, Kind::Socket, ONESHOT);
        state.note_label(number, data);
        labelled(data.expect("a label")).expect("a label")
    }

    #[test]
    fn reports_that_are_noted_late_disable_nothing_that_was_armed_since() {
        let this: &Unlocked = Box::leak(Box::new(Unlocked::new()));
        let mut state = State::new();
        state.add(this, Item::new(7, ONESHOT, 77, Kind::Socket));
        let first = arm(&mut state, this, 0);
        assert_eq!(state.take_label(first), Report::Program(77));
        assert_eq!(
            state.item(0).expect("it").events_left() & ONESHOT,
            libc::EPOLLONESHOT as u32
        );
        let second = arm(&mut state, this, 0);
        state.item(0).expect("it").modify(ONESHOT, 78);
        // This label is another thread's, which was slow.
        assert_eq!(state.take_label(first), Report::Program(78));
        assert_eq!(state.item(0).expect("it").events_left(), ONESHOT);
        assert_eq!(state.take_label(second), Report::Program(78));
        // One that was taken over is reported once, by its lane.
        let third = arm(&mut state, this, 0);
        state.item(0).expect("it").is_tagged = true;
        assert_eq!(state.take_label(third), Report::Taken(0));
        // Its number is another registration's.
        state.forget(this, 0);
        assert_eq!(state.take_label(third), Report::Stale);
        state.add(this, Item::new(7, ONESHOT, 79, Kind::Socket));
        assert_eq!(state.take_label(third), Report::Stale, "it has no label");
        let _ = arm(&mut state, this, 0);
        assert_eq!(state.take_label(third), Report::Stale);
    }

    #[test]
    fn registrations_of_others_and_those_that_are_not_one_shot_keep_their_data() {
        let this: &Unlocked = Box::leak(Box::new(Unlocked::new()));
        let mut state = State::new();
        let label =
            |state: &mut State, number, kind, events| state.label(this, number, kind, events);
        let plain = libc::EPOLLIN as u32;
        assert_eq!(label(&mut state, 0, Kind::Socket, plain), None);
        assert_eq!(label(&mut state, 0, Kind::Instance(3), ONESHOT), None);
        assert_eq!(
            label(&mut state, 1 << NUMBER_BITS, Kind::Socket, ONESHOT),
            None
        );
        state.add(this, Item::new(7, ONESHOT, 1, Kind::Socket));
        let _ = arm(&mut state, this, 0);
        let data = label(&mut state, 0, Kind::Socket, plain);
        assert!(data.is_some(), "it goes on under a label");
        assert_eq!(labelled(0xd15c_51e7_0000_0001), None, "a tag");
    }
}
