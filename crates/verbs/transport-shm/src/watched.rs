//! What the engine thread waits for, and the numbers by which the kernel names it.

use sluice_transport::worker::{parse, token};

/// One thing that can happen. Links are told apart by their numbers in this process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Watched {
    /// Somebody in this process wants the thread to look around.
    Kick,
    /// Somebody connects to a block of numbers.
    Listener(u32),
    /// The peer of a link to it says something, or has ended.
    RouteSocket(u64),
    /// It rings.
    RouteBell(u64),
    /// Somebody who has connected says who it is.
    Greeting(u64),
    /// The peer of a link from it says something, or has ended.
    IncomingSocket(u64),
    /// It rings.
    IncomingBell(u64),
}

impl Watched {
    /// The number that is watched under.
    pub fn token(self) -> u64 {
        let (kind, id) = match self {
            Watched::Kick => (0, 0),
            Watched::Listener(block) => (1, u64::from(block)),
            Watched::RouteSocket(id) => (2, id),
            Watched::RouteBell(id) => (3, id),
            Watched::Greeting(id) => (4, id),
            Watched::IncomingSocket(id) => (5, id),
            Watched::IncomingBell(id) => (6, id),
        };
        token(kind, id)
    }

    /// What a number stands for, if it is one of ours.
    pub fn of_token(token: u64) -> Option<Self> {
        let (kind, id) = parse(token);
        Some(match kind {
            0 => Watched::Kick,
            1 => Watched::Listener(id as u32),
            2 => Watched::RouteSocket(id),
            3 => Watched::RouteBell(id),
            4 => Watched::Greeting(id),
            5 => Watched::IncomingSocket(id),
            6 => Watched::IncomingBell(id),
            _ => return None,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_stands_for_what_it_was_made_of() {
        let id = (1 << 56) - 1;
        for watched in [
            Watched::Kick,
            Watched::Listener(u32::MAX),
            Watched::RouteSocket(id),
            Watched::RouteBell(1),
            Watched::Greeting(2),
            Watched::IncomingSocket(id),
            Watched::IncomingBell(3),
        ] {
            assert_eq!(Watched::of_token(watched.token()), Some(watched));
        }
        assert_eq!(Watched::of_token(token(7, 0)), None);
    }
}
