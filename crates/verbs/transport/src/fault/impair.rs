//! What is done with units that have fates, whatever they are: packets that come in at a port, or
//! datagrams that go out.

use super::{Fate, Faults, Injector};

/// One stream of units with faults. `T` is a unit that is kept for later.
pub struct Impair<T> {
    injector: Injector,
    delay_ns: u64,
    held: Option<Held<T>>,
}

struct Held<T> {
    unit: T,
    due_ns: u64,
}

/// What happens to a unit now.
#[derive(Debug, PartialEq, Eq)]
pub struct Passing<T> {
    /// Why.
    pub fate: Fate,
    /// So often it goes on.
    pub copies: usize,
    /// What it has overtaken, and goes on behind it.
    pub behind: Option<T>,
}

impl<T> Impair<T> {
    /// `number` tells these faults from those of others ([`Faults::injector`]).
    pub fn new(faults: &Faults, number: u64) -> Self {
        Self {
            injector: faults.injector(number),
            delay_ns: faults.delay().as_nanos() as u64,
            held: None,
        }
    }

    /// One more unit. If it is to come late, `keep` makes a copy of it that is due after
    /// [`Faults::delay`]. `now_ns`: the time, nanoseconds.
    pub fn pass(&mut self, now_ns: impl FnOnce() -> u64, keep: impl FnOnce() -> T) -> Passing<T> {
        let fate = self.draw();
        let (copies, behind) = match fate {
            Fate::Drop | Fate::Corrupt => (0, None),
            Fate::Late => match self.hold(now_ns, keep) {
                Some(_) => (0, None),
                None => (1, self.overtaken()),
            },
            Fate::Pass => (1, self.overtaken()),
            Fate::Duplicate => (2, self.overtaken()),
        };
        Passing {
            fate,
            copies,
            behind,
        }
    }

    /// The fate of one more unit.
    pub fn draw(&mut self) -> Fate {
        self.injector.fate()
    }

    /// The fate of one more message, which would be so many packets and arrives only with all of
    /// them: the first that hinders it. Each packet has its fate, also those behind one that is lost.
    pub fn draw_whole(&mut self, packets: u64) -> Fate {
        let whole = |fate| matches!(fate, Fate::Pass | Fate::Duplicate);
        (0..packets).fold(Fate::Pass, |fate, _| match self.draw() {
            drawn if whole(drawn) || !whole(fate) => fate,
            drawn => drawn,
        })
    }

    /// Keeps a unit back. When it is due at the latest; None, and nothing is kept, if there is one
    /// already, which this one overtakes.
    pub fn hold(&mut self, now_ns: impl FnOnce() -> u64, keep: impl FnOnce() -> T) -> Option<u64> {
        if self.held.is_some() {
            return None;
        }
        let due_ns = now_ns() + self.delay_ns;
        self.held = Some(Held {
            unit: keep(),
            due_ns,
        });
        Some(due_ns)
    }

    /// When what is kept back is due, nanoseconds.
    pub fn due_ns(&self) -> Option<u64> {
        self.held.as_ref().map(|held| held.due_ns)
    }

    /// What is kept back, as something has gone past it.
    pub fn overtaken(&mut self) -> Option<T> {
        self.held.take().map(|held| held.unit)
    }

    /// What is kept back, if its time has come.
    pub fn due(&mut self, now_ns: u64) -> Option<T> {
        let held = self.held.take_if(|held| held.due_ns <= now_ns)?;
        Some(held.unit)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn impair(list: &str) -> Impair<u32> {
        Impair::new(&list.parse().unwrap(), 0)
    }

    fn passing(impair: &mut Impair<u32>, unit: u32) -> (Fate, usize, Option<u32>) {
        let passing = impair.pass(|| 100, || unit);
        (passing.fate, passing.copies, passing.behind)
    }

    #[test]
    fn each_fault_does_what_it_is_called() {
        for (list, fate, copies) in [
            ("loss=1", Fate::Drop, 0),
            ("corrupt=1", Fate::Corrupt, 0),
            ("dup=1", Fate::Duplicate, 2),
            ("seed=1", Fate::Pass, 1),
        ] {
            let mut impair = impair(list);
            for unit in 0..3 {
                assert_eq!(passing(&mut impair, unit), (fate, copies, None), "{list}");
            }
        }
    }

    #[test]
    fn the_late_come_after_the_next_or_after_their_time() {
        let mut late = impair("reorder=1,delay=1s");
        assert_eq!(passing(&mut late, 1), (Fate::Late, 0, None));
        assert_eq!(late.due_ns(), Some(1_000_000_100));
        assert_eq!(late.due(1_000_000_099), None);
        // The next one would be late too, and goes past the first.
        assert_eq!(passing(&mut late, 2), (Fate::Late, 1, Some(1)));
        assert_eq!((late.due_ns(), late.due(u64::MAX)), (None, None));
        assert_eq!(passing(&mut late, 3), (Fate::Late, 0, None));
        assert_eq!(late.due(1_000_000_100), Some(3));
    }

    /// Whatever is mixed, a unit that is not lost goes on at least once, and a late one behind the
    /// next that does.
    #[test]
    fn nothing_is_lost_but_what_is_said_to_be() {
        let mut impair = impair("loss=20%,dup=20%,reorder=20%,corrupt=20%,seed=1");
        let (mut came, mut lost, mut waits) = (Vec::new(), 0, None);
        for unit in 0..1000 {
            let (fate, copies, behind) = passing(&mut impair, unit);
            came.extend(std::iter::repeat_n(unit, copies).chain(behind));
            match (fate, copies) {
                (Fate::Drop | Fate::Corrupt, _) => lost += 1,
                (_, 0) => waits = Some(unit),
                _ => assert_eq!(behind, waits.take()),
            }
        }
        came.extend(impair.overtaken());
        came.sort_unstable();
        came.dedup();
        assert_eq!(came.len() + lost, 1000);
        assert!((300..500).contains(&lost), "{lost}");
    }

    #[test]
    fn long_messages_are_lost_more_often() {
        let mut impair = impair("loss=0.5%,reorder=0.5%,dup=50%,seed=1");
        let mut arrived = |packets| {
            let turns = (0..1000).map(|_| impair.draw_whole(packets));
            turns.filter(|fate| *fate == Fate::Pass).count()
        };
        // 0.99 to the power of 1, 10, 100: 990, 904, 366.
        let [one, ten, hundred] = [1, 10, 100].map(&mut arrived);
        assert!((970..1000).contains(&one), "{one}");
        assert!((860..950).contains(&ten), "{ten}");
        assert!((300..430).contains(&hundred), "{hundred}");
    }
}
