//! What connections have moved, added up.

/// Numbers of [`Totals`].
pub const TOTALS: usize = 11;

/// Sums over ends of connections. They wrap around, as programs write them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Totals {
    /// Ends.
    pub ends: u64,
    /// Bytes by rings on this host, received and sent.
    pub local_bytes: [u64; 2],
    /// Bytes by rings to other hosts, received and sent.
    pub fabric_bytes: [u64; 2],
    /// Bytes by TCP, received and sent.
    pub tcp_bytes: [u64; 2],
    /// Changes of senders between TCP and rings: on this host, to others.
    pub switches: [u64; 2],
    /// Waits that slept in the kernel.
    pub sleeps: u64,
    /// Waits that polling ended.
    pub spins: u64,
}

/// The counts of one end.
pub(crate) struct OneEnd {
    pub is_remote: bool,
    /// Bytes received and sent.
    pub ring: [u64; 2],
    pub tcp: [u64; 2],
    pub switches: u64,
    pub sleeps: u64,
    pub spins: u64,
}

impl Totals {
    pub(crate) fn of_one(end: &OneEnd) -> Totals {
        let mut totals = Totals {
            ends: 1,
            tcp_bytes: end.tcp,
            sleeps: end.sleeps,
            spins: end.spins,
            ..Totals::default()
        };
        if end.is_remote {
            totals.fabric_bytes = end.ring;
        } else {
            totals.local_bytes = end.ring;
        }
        totals.switches[usize::from(end.is_remote)] = end.switches;
        totals
    }

    /// In the order of the fields.
    pub fn to_words(self) -> [u64; TOTALS] {
        let [local_rx, local_tx] = self.local_bytes;
        let [fabric_rx, fabric_tx] = self.fabric_bytes;
        let [tcp_rx, tcp_tx] = self.tcp_bytes;
        let [local, fabric] = self.switches;
        [
            self.ends,
            local_rx,
            local_tx,
            fabric_rx,
            fabric_tx,
            tcp_rx,
            tcp_tx,
            local,
            fabric,
            self.sleeps,
            self.spins,
        ]
    }

    /// The reverse of [`Totals::to_words`].
    pub fn from_words(words: [u64; TOTALS]) -> Totals {
        let [
            ends,
            local_rx,
            local_tx,
            fabric_rx,
            fabric_tx,
            tcp_rx,
            tcp_tx,
            local,
            fabric,
            sleeps,
            spins,
        ] = words;
        Totals {
            ends,
            local_bytes: [local_rx, local_tx],
            fabric_bytes: [fabric_rx, fabric_tx],
            tcp_bytes: [tcp_rx, tcp_tx],
            switches: [local, fabric],
            sleeps,
            spins,
        }
    }

    fn each_with(self, other: Totals, join: impl Fn(u64, u64) -> u64) -> Totals {
        let (ours, theirs) = (self.to_words(), other.to_words());
        Totals::from_words(core::array::from_fn(|at| join(ours[at], theirs[at])))
    }

    /// Both together.
    pub fn plus(self, other: Totals) -> Totals {
        self.each_with(other, u64::wrapping_add)
    }

    /// What is here more than there, number by number; 0 where it is less.
    pub fn beyond(self, other: Totals) -> Totals {
        self.each_with(other, u64::saturating_sub)
    }

    /// The larger one of each number.
    pub fn max(self, other: Totals) -> Totals {
        self.each_with(other, u64::max)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_keep_their_places() {
        let words = core::array::from_fn(|at| at as u64 + 1);
        let totals = Totals::from_words(words);
        assert_eq!(totals.to_words(), words);
        assert_eq!((totals.ends, totals.spins), (1, TOTALS as u64));
        assert_eq!(totals.fabric_bytes, [4, 5]);
    }

    #[test]
    fn an_end_counts_where_its_lane_leads() {
        let end = |is_remote| {
            Totals::of_one(&OneEnd {
                is_remote,
                ring: [1, 2],
                tcp: [3, 4],
                switches: 5,
                sleeps: 6,
                spins: 7,
            })
        };
        let both = end(false).plus(end(true));
        assert_eq!((both.local_bytes, both.fabric_bytes), ([1, 2], [1, 2]));
        assert_eq!((both.tcp_bytes, both.switches), ([6, 8], [5, 5]));
        assert_eq!((both.ends, both.sleeps, both.spins), (2, 12, 14));
        assert_eq!(both.beyond(end(true)), end(false));
    }
}
