//! Which node gets a connection.

use std::collections::HashMap;
use std::time::{Duration, Instant};

/// How long a node that did not answer gets no connections, at first; it doubles.
const PAUSE_MIN: Duration = Duration::from_secs(1);
/// At most.
const PAUSE_MAX: Duration = Duration::from_secs(30);

/// What is known of one.
#[derive(Clone, Copy, Debug, Default)]
struct Load {
    connections: u32,
    failures: u32,
    paused_until: Option<Instant>,
}

/// How many connections each backend has, and how well it answers.
#[derive(Debug, Default)]
pub struct Balance {
    loads: HashMap<u32, Load>,
    /// The one that was chosen last: of those with equally few the next one is.
    last: u32,
}

impl Balance {
    /// Of these the one with the fewest connections, and counts one more for it. Who does not answer
    /// is asked only if nobody else is left.
    pub fn choose(&mut self, among: impl Iterator<Item = u32>, now: Instant) -> Option<u32> {
        let last = self.last;
        let rank = |backend: &u32| {
            let load = self.loads.get(backend).copied().unwrap_or_default();
            let is_paused = load.paused_until.is_some_and(|until| until > now);
            (is_paused, load.connections, *backend <= last, *backend)
        };
        let chosen = among.min_by_key(rank)?;
        self.last = chosen;
        self.loads.entry(chosen).or_default().connections += 1;
        Some(chosen)
    }

    /// It has answered.
    pub fn answered(&mut self, backend: u32) {
        if let Some(load) = self.loads.get_mut(&backend) {
            load.failures = 0;
            load.paused_until = None;
        }
    }

    /// It has not; the connection is over.
    pub fn failed(&mut self, backend: u32, now: Instant) {
        if let Some(load) = self.loads.get_mut(&backend) {
            let pause = PAUSE_MIN.saturating_mul(1 << load.failures.min(16));
            load.failures += 1;
            load.paused_until = Some(now + pause.min(PAUSE_MAX));
        }
        self.ended(backend, true);
    }

    /// A connection is over. `is_known`: it may get others.
    pub fn ended(&mut self, backend: u32, is_known: bool) {
        if let Some(load) = self.loads.get_mut(&backend) {
            load.connections = load.connections.saturating_sub(1);
            if load.connections == 0 && !is_known {
                self.loads.remove(&backend);
            }
        }
    }

    /// Numbers change.
    pub fn renumber(&mut self, mut new: impl FnMut(u32) -> u32) {
        let loads = std::mem::take(&mut self.loads);
        self.loads = loads
            .into_iter()
            .map(|(it, load)| (new(it), load))
            .collect();
    }

    /// It gets no others.
    pub fn gone(&mut self, backend: u32) {
        if self
            .loads
            .get(&backend)
            .is_some_and(|load| load.connections == 0)
        {
            self.loads.remove(&backend);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_one_with_the_fewest_is_chosen_and_all_have_their_turn() {
        let now = Instant::now();
        let mut balance = Balance::default();
        let choose = |balance: &mut Balance| balance.choose([1, 2, 3].into_iter(), now);
        let chosen: Vec<_> = (0..6).filter_map(|_| choose(&mut balance)).collect();
        assert_eq!(chosen, [1, 2, 3, 1, 2, 3]);
        balance.ended(2, true);
        assert_eq!(choose(&mut balance), Some(2));
        assert_eq!(balance.choose([].into_iter(), now), None);
    }

    #[test]
    fn who_does_not_answer_is_asked_last_and_less_and_less_often() {
        let mut now = Instant::now();
        let mut balance = Balance::default();
        let choose = |balance: &mut Balance, now| balance.choose([1, 2].into_iter(), now);
        assert_eq!(choose(&mut balance, now), Some(1));
        balance.failed(1, now);
        for _ in 0..3 {
            assert_eq!(choose(&mut balance, now), Some(2));
        }
        // Nobody else is left.
        assert_eq!(balance.choose([1].into_iter(), now), Some(1));
        balance.failed(1, now);
        now += PAUSE_MIN;
        assert_eq!(choose(&mut balance, now), Some(2), "the pause has doubled");
        now += PAUSE_MIN;
        assert_eq!(choose(&mut balance, now), Some(1));
        balance.answered(1);
        for _ in 0..3 {
            assert_eq!(choose(&mut balance, now), Some(1), "it has fewer");
        }
    }

    #[test]
    fn nothing_is_kept_of_those_that_are_gone() {
        let now = Instant::now();
        let mut balance = Balance::default();
        balance.choose([7].into_iter(), now);
        balance.gone(7);
        assert_eq!(balance.loads.len(), 1, "a connection is left");
        balance.ended(7, false);
        assert!(balance.loads.is_empty());
    }
}
