//! A peer that shares a window with this host, and lies in other memory: connections between the two get no lanes
//! there. That is so for a moment when the server of a window was started anew, and for good when the daemon of one
//! host has found the new memory and that of the other has not. People are told once.

use std::time::{Duration, Instant};

/// For how long two hosts are in different memories before somebody is told: each finds a new server within seconds.
const LONG: Duration = Duration::from_secs(20);

/// How it stands between this host and a peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Standing {
    /// Both are in one memory.
    Together,
    /// The peer is in memory that this host has not, and in none that it has.
    Apart,
    /// One of the two has no window, or a link is about to come up.
    Unknown,
}

/// What is known of one peer.
#[derive(Debug, Default)]
pub struct Apart {
    since: Option<Instant>,
    has_shared: bool,
    is_told: bool,
}

/// What people are to be told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tell {
    /// Two hosts that have shared memory do not any more, or the windows of this one are shared with nobody.
    Warning,
    /// The peer may have windows that this host is not meant to have.
    Remark,
}

impl Apart {
    /// How it stands now. `is_alone`: nobody shares any memory with this host.
    pub fn look(&mut self, standing: Standing, is_alone: bool, now: Instant) -> Option<Tell> {
        match standing {
            Standing::Together => {
                *self = Apart {
                    has_shared: true,
                    ..Apart::default()
                };
                None
            }
            Standing::Unknown => {
                self.since = None;
                None
            }
            Standing::Apart => {
                let since = *self.since.get_or_insert(now);
                if now < since + LONG || std::mem::replace(&mut self.is_told, true) {
                    return None;
                }
                let is_wrong = self.has_shared || is_alone;
                Some(if is_wrong {
                    Tell::Warning
                } else {
                    Tell::Remark
                })
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::Standing::{Apart as Away, Together, Unknown};
    use super::*;

    /// What is said in these seconds.
    fn said(standings: &[(Standing, u64)], is_alone: bool) -> Vec<(u64, Tell)> {
        let begin = Instant::now();
        let (mut apart, mut second, mut said) = (Apart::default(), 0, Vec::new());
        for (standing, seconds) in standings {
            for _ in 0..*seconds {
                let now = begin + Duration::from_secs(second);
                said.extend(
                    apart
                        .look(*standing, is_alone, now)
                        .map(|tell| (second, tell)),
                );
                second += 1;
            }
        }
        said
    }

    #[test]
    fn who_is_apart_for_long_is_told_of_once() {
        assert_eq!(said(&[(Away, 1000)], true), [(20, Tell::Warning)]);
        assert_eq!(said(&[(Away, 1000)], false), [(20, Tell::Remark)]);
    }

    #[test]
    fn a_moment_in_different_memories_is_nothing() {
        let moments = [(Away, 19), (Unknown, 1), (Away, 19), (Together, 1)].repeat(5);
        assert_eq!(said(&moments, true), []);
    }

    #[test]
    fn hosts_that_have_shared_a_window_are_missed_each_time() {
        let times = [(Together, 10), (Away, 100), (Unknown, 5), (Away, 100)].repeat(2);
        let warnings = [30, 245].map(|second| (second, Tell::Warning));
        assert_eq!(said(&times, false), warnings);
    }
}
