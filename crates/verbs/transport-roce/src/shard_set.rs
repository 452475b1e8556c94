//! Sets of shards.

/// Shards of a transport, at most: a bit each in a word.
pub const SHARDS_MAX: usize = 64;

/// A set of shards.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Set(pub u64);

impl Set {
    /// The first so many.
    pub fn first(count: usize) -> Self {
        match count {
            0..SHARDS_MAX => Self((1 << count) - 1),
            _ => Self(u64::MAX),
        }
    }

    pub fn insert(&mut self, shard: usize) {
        self.0 |= 1 << (shard % SHARDS_MAX);
    }

    pub fn remove(&mut self, shard: usize) {
        self.0 &= !(1 << (shard % SHARDS_MAX));
    }

    /// All of another's too.
    pub fn add(&mut self, other: Self) {
        self.0 |= other.0;
    }

    pub fn contains(self, shard: usize) -> bool {
        self.0 & 1 << (shard % SHARDS_MAX) != 0
    }

    pub fn is_empty(self) -> bool {
        self.0 == 0
    }
}

impl Iterator for Set {
    type Item = usize;

    /// Takes the first out.
    fn next(&mut self) -> Option<usize> {
        let shard = (self.0 != 0).then(|| self.0.trailing_zeros() as usize)?;
        self.0 &= self.0 - 1;
        Some(shard)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_set_gives_its_shards_in_their_order() {
        let mut set = Set::default();
        assert!(set.is_empty());
        for shard in [63, 0, 7] {
            set.insert(shard);
        }
        assert_eq!(set.collect::<Vec<_>>(), [0, 7, 63]);
        set.remove(0);
        set.add(Set(0b110));
        assert!(set.contains(1) && set.contains(63) && !set.contains(0));
        assert_eq!(set.collect::<Vec<_>>(), [1, 2, 7, 63]);
        assert_eq!(Set::first(3).collect::<Vec<_>>(), [0, 1, 2]);
        assert_eq!(Set::first(64).count(), 64);
    }
}
