//! Small requests that are posted one by one: each would be a call of the kernel, and a packet.
//!
//! A program that posts many, one right behind the other and without a poll between, has the first ones
//! sent at once. Those behind them wait until the program polls, until there are enough of them, or for the
//! transport's thread, which is called for the first one that waits. Whoever posts one and waits for what
//! it brings never has it wait.

/// Requests right behind each other that are sent at once. Pairs, of data and the word that they are there,
/// are common.
const AT_ONCE: u32 = 4;
/// What "right behind" is: less than any answer takes, nanoseconds.
const BEHIND_NS: u64 = 3_000;
/// Bytes of a request that is small.
const SMALL_BYTES: u64 = 8 << 10;
/// So many are sent together, or so many bytes.
const TOGETHER: u32 = 32;
const TOGETHER_BYTES: u64 = 48 << 10;

/// What is known of a program's posts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Gather {
    last_ns: u64,
    quick: u32,
    waiting: u32,
    waiting_bytes: u64,
}

/// What becomes of a request that was posted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate {
    /// It is sent, with all that wait.
    Leaves,
    /// It waits; `first`: nothing else does, so that somebody has to be called.
    Waits { first: bool },
}

impl Gather {
    /// A post of so many bytes.
    pub fn posted(&mut self, now_ns: u64, bytes: u64) -> Fate {
        let behind = now_ns.saturating_sub(self.last_ns) < BEHIND_NS;
        self.quick = if behind {
            self.quick.saturating_add(1)
        } else {
            0
        };
        self.last_ns = now_ns;
        let waits = self.quick >= AT_ONCE
            && bytes <= SMALL_BYTES
            && self.waiting + 1 < TOGETHER
            && self.waiting_bytes + bytes < TOGETHER_BYTES;
        if !waits {
            self.sent();
            return Fate::Leaves;
        }
        self.waiting += 1;
        self.waiting_bytes += bytes;
        Fate::Waits {
            first: self.waiting == 1,
        }
    }

    /// The call of the kernel has ended: the time that it took is not the program's.
    pub fn returned(&mut self, now_ns: u64) {
        self.last_ns = now_ns;
    }

    /// Whether something waits.
    pub fn has_waiting(&self) -> bool {
        self.waiting > 0
    }

    /// All that waited was sent.
    pub fn sent(&mut self) {
        (self.waiting, self.waiting_bytes) = (0, 0);
    }

    /// The program has polled, or the transport's thread has looked.
    pub fn looked(&mut self) {
        self.sent();
        self.quick = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `count` posts, so many nanoseconds apart; how many of them wait.
    fn waiting(gather: &mut Gather, count: u32, apart_ns: u64, bytes: u64) -> u32 {
        let mut waits = 0;
        for _ in 0..count {
            let now = gather.last_ns + apart_ns;
            waits += u32::from(gather.posted(now, bytes) != Fate::Leaves);
        }
        waits
    }

    #[test]
    fn only_what_is_posted_in_a_row_waits() {
        let mut gather = Gather::default();
        assert_eq!(waiting(&mut gather, 100, BEHIND_NS, 8), 0);
        assert_eq!(waiting(&mut gather, AT_ONCE - 1, 100, 8), 0);
        gather.looked();
        assert_eq!(waiting(&mut gather, AT_ONCE - 1, 100, 8), 0);
        assert_eq!(waiting(&mut gather, 1, 100, 8), 1);
    }

    #[test]
    fn the_first_that_waits_is_told_of_and_the_last_takes_all() {
        let mut gather = Gather::default();
        gather.posted(10_000, 8);
        for _ in 1..AT_ONCE {
            assert_eq!(gather.posted(10_000, 8), Fate::Leaves);
        }
        for _ in 0..3 {
            assert_eq!(gather.posted(10_000, 8), Fate::Waits { first: true });
            for _ in 2..TOGETHER {
                assert_eq!(gather.posted(10_000, 8), Fate::Waits { first: false });
            }
            assert_eq!(gather.posted(10_000, 8), Fate::Leaves);
        }
    }

    #[test]
    fn long_ones_and_many_bytes_leave() {
        let mut gather = Gather::default();
        waiting(&mut gather, 10, 100, 8);
        assert_eq!(gather.posted(gather.last_ns, SMALL_BYTES + 1), Fate::Leaves);
        // So many fit; the next one takes them along.
        let fit = (TOGETHER_BYTES / SMALL_BYTES - 1) as u32;
        assert_eq!(
            waiting(&mut gather, 3 * (fit + 1), 100, SMALL_BYTES),
            3 * fit
        );
        gather.looked();
        assert_eq!(gather.waiting, 0);
    }
}
