//! Faults on purpose ([`sluice_verbs::fault`]) among messages that nobody acknowledges.
//!
//! There are no packets here, so it is messages that get lost, come twice or late. A datagram is
//! one packet, and all of it happens to datagrams. A message of an unreliable connection is gone
//! when one of the packets that it would be is lost, damaged or overtaken, as its receiver would
//! drop it (IBTA 9.8.2.2); a packet that comes twice changes nothing there. A reliable connection
//! has nothing below it that could fail.

use core::sync::atomic::{AtomicU64, Ordering};
use std::sync::Mutex;

use sluice_shmem::verbs::record::Header;
use sluice_verbs::fault::{Fate, Faults, Injector, say_useless};
use sluice_verbs::{Gid, QpType};

use crate::lock::lock;
use crate::os;
use crate::wire::Datagram;

/// A datagram that comes late.
pub struct Held {
    pub header: Header,
    pub head: [u8; Datagram::BYTES],
    pub data: Vec<u8>,
    /// To a group, or to the queue pair that the header names.
    pub group: Option<Gid>,
    /// When it goes even if nothing has overtaken it, nanoseconds.
    pub due_ns: u64,
}

/// The faults of a process's queue pairs.
pub struct Impairs {
    faults: Option<Faults>,
    /// Queue pairs that were given faults.
    given: AtomicU64,
}

impl Impairs {
    pub fn new(faults: Option<Faults>) -> Self {
        Self {
            faults,
            given: AtomicU64::new(0),
        }
    }

    /// The faults of one more queue pair. They are numbered, so that each run of a program that
    /// makes its queue pairs in the same order has the same faults.
    pub fn give(&self, kind: QpType) -> Option<Box<Impair>> {
        let number = self.given.load(Ordering::Relaxed);
        let impair = Impair::new(self.faults.as_ref(), kind, number)?;
        self.given.fetch_add(1, Ordering::Relaxed);
        Some(impair)
    }
}

/// The faults of one queue pair.
pub struct Impair {
    delay_ns: u64,
    state: Mutex<State>,
}

struct State {
    injector: Injector,
    /// What was drawn for a request that has found no room yet and will be offered again.
    drawn: Option<(u64, Fate)>,
    held: Option<Held>,
}

impl Impair {
    /// None where nothing can happen; for a reliable queue pair that is said.
    pub fn new(faults: Option<&Faults>, kind: QpType, number: u64) -> Option<Box<Self>> {
        let faults = faults.filter(|faults| !faults.is_nothing())?;
        if !matches!(kind, QpType::Ud | QpType::Uc) {
            say_useless(
                "reliable connections",
                "over shared memory they have no packets that could be lost; \
                 datagrams (UD) and unreliable connections (UC) have faults",
            );
            return None;
        }
        Some(Box::new(Self {
            delay_ns: faults.delay().as_nanos() as u64,
            state: Mutex::new(State {
                injector: faults.injector(number),
                drawn: None,
                held: None,
            }),
        }))
    }

    /// What happens to the datagram that is request `seq`: the same each time it is offered, until
    /// [`Impair::done`].
    pub fn datagram(&self, seq: u64) -> Fate {
        self.draw(seq, Injector::fate)
    }

    /// Whether a message of an unreliable connection arrives, which would be so many packets.
    pub fn arrives(&self, seq: u64, packets: u64) -> bool {
        let fate = self.draw(seq, |injector| {
            let whole = |fate| matches!(fate, Fate::Pass | Fate::Duplicate);
            // Each packet has its fate, also those behind one that is lost.
            (0..packets).fold(Fate::Pass, |fate, _| match injector.fate() {
                drawn if whole(drawn) => fate,
                drawn => drawn,
            })
        });
        fate == Fate::Pass
    }

    fn draw(&self, seq: u64, draw: impl FnOnce(&mut Injector) -> Fate) -> Fate {
        let mut state = lock(&self.state);
        match state.drawn {
            Some((drawn, fate)) if drawn == seq => fate,
            _ => {
                let fate = draw(&mut state.injector);
                state.drawn = Some((seq, fate));
                fate
            }
        }
    }

    /// Keeps a datagram back. When it is due at the latest; None, and nothing is kept, if there
    /// is one already, which this one overtakes.
    pub fn hold(&self, make: impl FnOnce(u64) -> Held) -> Option<u64> {
        let mut state = lock(&self.state);
        if state.held.is_some() {
            return None;
        }
        let due_ns = os::now_ns() + self.delay_ns;
        state.held = Some(make(due_ns));
        Some(due_ns)
    }

    /// The one that is kept back, if it is due at `now_ns` ([`u64::MAX`]: whenever). It goes now.
    pub fn due(&self, now_ns: u64) -> Option<Held> {
        let mut state = lock(&self.state);
        match &state.held {
            Some(held) if held.due_ns <= now_ns => state.held.take(),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn impair(list: &str, kind: QpType) -> Option<Box<Impair>> {
        let faults: Faults = list.parse().unwrap();
        Impair::new(Some(&faults), kind, 0)
    }

    #[test]
    fn faults_are_for_those_that_can_have_them() {
        for kind in [QpType::Rc, QpType::XrcSend, QpType::XrcRecv] {
            assert!(impair("loss=1", kind).is_none());
        }
        assert!(impair("seed=1", QpType::Ud).is_none(), "nothing happens");
        assert!(Impair::new(None, QpType::Ud, 0).is_none());
        assert!(impair("loss=1%", QpType::Uc).is_some());
    }

    #[test]
    fn what_is_offered_again_keeps_its_fate() {
        let impair = impair("loss=50%,seed=1", QpType::Ud).unwrap();
        let fates: Vec<Fate> = (0..64)
            .map(|seq| {
                let fate = impair.datagram(seq);
                assert!((0..8).all(|_| impair.datagram(seq) == fate));
                fate
            })
            .collect();
        let lost = fates.iter().filter(|fate| **fate == Fate::Drop).count();
        assert!((16..48).contains(&lost), "{lost}");
    }

    #[test]
    fn long_messages_are_lost_more_often() {
        let impair = impair("loss=0.5%,reorder=0.5%,dup=50%,seed=1", QpType::Uc).unwrap();
        let arrived = |packets: u64| {
            let turns = (0..1000).map(|seq| impair.arrives(packets << 32 | seq, packets));
            turns.filter(|arrives| *arrives).count()
        };
        // 0.99 to the power of 1, 10, 100: 990, 904, 366.
        let [one, ten, hundred] = [1, 10, 100].map(arrived);
        assert!((970..1000).contains(&one), "{one}");
        assert!((860..950).contains(&ten), "{ten}");
        assert!((300..430).contains(&hundred), "{hundred}");
    }

    #[test]
    fn one_is_held_until_it_is_due() {
        let impair = impair("reorder=1,delay=1s", QpType::Ud).unwrap();
        let make = |due_ns| Held {
            header: Header::default(),
            head: [0; Datagram::BYTES],
            data: vec![1],
            group: None,
            due_ns,
        };
        let due = impair.hold(make).unwrap();
        assert!(impair.hold(make).is_none());
        assert!(impair.due(due - 1).is_none());
        assert_eq!(impair.due(due).unwrap().data, [1]);
        assert!(impair.due(u64::MAX).is_none());
    }
}
