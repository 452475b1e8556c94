//! Faults of a transport that has no packets: it is messages that get lost, come twice or late.
//!
//! A datagram is one packet, and all of it happens to datagrams. A message of an unreliable
//! connection is gone when one of the packets that it would be is lost, damaged or overtaken, as its
//! receiver would drop it (IBTA 9.8.2.2); a packet that comes twice changes nothing there. A reliable
//! connection has nothing below it that could fail.

use core::sync::atomic::{AtomicU64, Ordering};
use std::sync::Mutex;

use sluice_sys::clock::now_ns;
use sluice_verbs::{Posted, QpType, SendDone};

use super::{Fate, Faults, Impair, say_useless};
use sluice_verbs::locks::lock;

/// The queue pairs of a transport that send messages with faults.
pub struct Senders {
    faults: Option<Faults>,
    /// Queue pairs that were given faults.
    given: AtomicU64,
}

impl Senders {
    /// Without faults none of them has any.
    pub fn new(faults: Option<Faults>) -> Self {
        Self {
            faults,
            given: AtomicU64::new(0),
        }
    }

    /// The faults of one more queue pair. They are numbered, so that each run of a program that
    /// makes its queue pairs in the same order has the same faults.
    pub fn give<T>(&self, kind: QpType) -> Option<Box<Messages<T>>> {
        let number = self.given.load(Ordering::Relaxed);
        let messages = Messages::new(self.faults.as_ref(), kind, number)?;
        self.given.fetch_add(1, Ordering::Relaxed);
        Some(messages)
    }
}

/// How one datagram leaves.
pub trait Outlet {
    /// A datagram that is kept for later.
    type Kept;

    /// Sends it, as without faults.
    fn send(&mut self) -> Posted;

    /// A copy of it for later. None where one that is kept could not leave: nothing makes a
    /// connection for it.
    fn keep(&self) -> Option<Self::Kept>;

    /// Sends it once more, or what was kept, where there is room at once.
    fn send_also(&mut self, kept: Option<Self::Kept>);

    /// [`Messages::due`] is to be asked then, nanoseconds.
    fn wake_at(&mut self, when_ns: u64);
}

/// The faults of one queue pair's messages. `T` is a datagram that is kept for later.
pub struct Messages<T>(Mutex<State<T>>);

struct State<T> {
    impair: Impair<T>,
    /// What was drawn for a request that has found no room yet and will be offered again.
    drawn: Option<(u64, Fate)>,
}

impl<T> State<T> {
    fn draw(&mut self, seq: u64, draw: impl FnOnce(&mut Impair<T>) -> Fate) -> Fate {
        match self.drawn {
            Some((drawn, fate)) if drawn == seq => fate,
            _ => {
                let fate = draw(&mut self.impair);
                self.drawn = Some((seq, fate));
                fate
            }
        }
    }
}

impl<T> Messages<T> {
    /// None where nothing can happen; for a reliable queue pair that is said.
    pub fn new(faults: Option<&Faults>, kind: QpType, number: u64) -> Option<Box<Self>> {
        let faults = faults.filter(|faults| !faults.is_nothing())?;
        if !matches!(kind, QpType::Ud | QpType::Uc) {
            say_useless(
                "reliable connections",
                "they have no packets here that could be lost; \
                 datagrams (UD) and unreliable connections (UC) have faults",
            );
            return None;
        }
        Some(Box::new(Self(Mutex::new(State {
            impair: Impair::new(faults, number),
            drawn: None,
        }))))
    }

    /// Whether a message of an unreliable connection arrives, request `seq`, which would be so many
    /// packets. The same each time it is offered.
    pub fn arrives(&self, seq: u64, packets: u64) -> bool {
        let mut state = lock(&self.0);
        state.draw(seq, |impair| impair.draw_whole(packets)) == Fate::Pass
    }

    /// Sends the datagram that is request `seq` as its fate has it, which is the same each time it is
    /// offered. The engine gets the completion that it would get from a network: the sender of a
    /// datagram never hears what became of it. `len`: its bytes.
    pub fn post(&self, seq: u64, len: u32, outlet: &mut impl Outlet<Kept = T>) -> Posted {
        let done = Posted::Done(SendDone::ok(len));
        let fate = lock(&self.0).draw(seq, Impair::draw);
        match fate {
            Fate::Drop | Fate::Corrupt => return done,
            Fate::Late => {
                if let Some(kept) = outlet.keep()
                    && let Some(due_ns) = lock(&self.0).impair.hold(now_ns, || kept)
                {
                    outlet.wake_at(due_ns);
                    return done;
                }
            }
            Fate::Pass | Fate::Duplicate => {}
        }
        // Without the lock: to send may mean to receive, if it is to ourselves.
        let posted = outlet.send();
        if posted == Posted::Busy {
            return posted;
        }
        if fate == Fate::Duplicate {
            outlet.send_also(None);
        }
        let overtaken = lock(&self.0).impair.overtaken();
        if overtaken.is_some() {
            outlet.send_also(overtaken);
        }
        posted
    }

    /// What is kept back, if it is due at `now_ns` ([`u64::MAX`]: whenever). It is to go now.
    pub fn due(&self, now_ns: u64) -> Option<T> {
        lock(&self.0).impair.due(now_ns)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn messages(list: &str, kind: QpType) -> Option<Box<Messages<u64>>> {
        let faults: Faults = list.parse().unwrap();
        Messages::new(Some(&faults), kind, 0)
    }

    /// Has room for so many datagrams, and notes what leaves.
    #[derive(Default)]
    struct Link {
        room: usize,
        is_up: bool,
        datagram: u64,
        left: Vec<u64>,
        wakes: Vec<u64>,
    }

    impl Outlet for Link {
        type Kept = u64;

        fn send(&mut self) -> Posted {
            if self.left.len() >= self.room {
                return Posted::Busy;
            }
            self.left.push(self.datagram);
            Posted::Done(SendDone::ok(1))
        }

        fn keep(&self) -> Option<u64> {
            self.is_up.then_some(self.datagram)
        }

        fn send_also(&mut self, kept: Option<u64>) {
            self.left.push(kept.unwrap_or(self.datagram));
        }

        fn wake_at(&mut self, when_ns: u64) {
            self.wakes.push(when_ns);
        }
    }

    impl Link {
        fn new(room: usize) -> Self {
            Self {
                room,
                is_up: true,
                ..Self::default()
            }
        }

        fn post(&mut self, messages: &Messages<u64>, seq: u64) -> bool {
            self.datagram = seq;
            messages.post(seq, 1, self) != Posted::Busy
        }
    }

    #[test]
    fn faults_are_for_those_that_can_have_them() {
        for kind in [QpType::Rc, QpType::XrcSend, QpType::XrcRecv] {
            assert!(messages("loss=1", kind).is_none());
        }
        assert!(messages("seed=1", QpType::Ud).is_none(), "nothing happens");
        assert!(Messages::<()>::new(None, QpType::Ud, 0).is_none());
        assert!(messages("loss=1%", QpType::Uc).is_some());
    }

    #[test]
    fn queue_pairs_without_faults_are_not_counted() {
        let senders = Senders::new(Some("loss=50%,seed=1".parse().unwrap()));
        let fates = |messages: &Messages<()>| -> Vec<bool> {
            (0..64).map(|seq| messages.arrives(seq, 1)).collect()
        };
        assert!(senders.give::<()>(QpType::Rc).is_none());
        let [first, second] = [(); 2].map(|()| fates(&senders.give(QpType::Uc).unwrap()));
        let again = Senders::new(Some("loss=50%,seed=1".parse().unwrap()));
        assert_eq!(first, fates(&again.give(QpType::Uc).unwrap()));
        assert_ne!(first, second);
        assert!(Senders::new(None).give::<()>(QpType::Ud).is_none());
    }

    #[test]
    fn what_is_offered_again_keeps_its_fate() {
        let messages = messages("loss=50%,seed=1", QpType::Uc).unwrap();
        let arrived = (0..64)
            .filter(|seq| {
                let arrives = messages.arrives(*seq, 1);
                assert!((0..8).all(|_| messages.arrives(*seq, 1) == arrives));
                arrives
            })
            .count();
        assert!((16..48).contains(&arrived), "{arrived}");
    }

    #[test]
    fn one_that_finds_no_room_leaves_once_later() {
        let messages = messages("dup=1", QpType::Ud).unwrap();
        let mut link = Link::new(0);
        assert!(!link.post(&messages, 7) && !link.post(&messages, 7));
        assert!(link.left.is_empty());
        link.room = 1;
        assert!(link.post(&messages, 7));
        assert_eq!(link.left, [7, 7]);
    }

    #[test]
    fn one_that_is_late_is_overtaken_or_due() {
        let messages = messages("reorder=1,delay=1s", QpType::Ud).unwrap();
        let mut link = Link::new(8);
        let before = now_ns();
        assert!(link.post(&messages, 1) && link.left.is_empty());
        let [due] = link.wakes[..] else {
            panic!("nobody asks for it")
        };
        assert!(due >= before + 1_000_000_000);
        assert_eq!(messages.due(due - 1), None);
        assert!(link.post(&messages, 2));
        assert_eq!(link.left, [2, 1]);
        assert!(link.post(&messages, 3));
        assert_eq!(messages.due(u64::MAX), Some(3));
        assert_eq!(messages.due(u64::MAX), None);
        // Where it could not leave later it leaves now.
        link.is_up = false;
        assert!(link.post(&messages, 4));
        assert_eq!(link.left, [2, 1, 4]);
    }
}
