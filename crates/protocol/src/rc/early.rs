//! Which packets came before their turn.

/// A set of packets that are up to [`Early::SPAN`] after a base that moves on.
#[derive(Clone, Debug, Default)]
pub(crate) struct Early {
    /// Bit `n` is packet `base + n`.
    words: [u64; Self::WORDS],
}

impl Early {
    const WORDS: usize = 4;

    /// Packets from the base on that can be remembered.
    pub const SPAN: u64 = Self::WORDS as u64 * 64;

    /// Adds the packet that is `distance` after the base. False if it was there already or is
    /// too far away.
    pub fn insert(&mut self, distance: u64) -> bool {
        let Some(word) = usize::try_from(distance / 64)
            .ok()
            .and_then(|place| self.words.get_mut(place))
        else {
            return false;
        };
        let bit = 1 << (distance % 64);
        let new = *word & bit == 0;
        *word |= bit;
        new
    }

    /// Whether the packet that is `distance` after the base is there.
    pub fn contains(&self, distance: u64) -> bool {
        usize::try_from(distance / 64)
            .ok()
            .and_then(|place| self.words.get(place))
            .is_some_and(|word| word >> (distance % 64) & 1 != 0)
    }

    /// Moves the base on by one; whether the packet at the new base is there.
    pub fn advance(&mut self) -> bool {
        let mut carry = 0;
        for word in self.words.iter_mut().rev() {
            let low = *word << 63;
            *word = *word >> 1 | carry;
            carry = low;
        }
        self.words[0] & 1 != 0
    }

    pub fn is_empty(&self) -> bool {
        self.words == [0; Self::WORDS]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::collections::BTreeSet;
    use proptest::prelude::*;

    proptest! {
        /// Catches: a bit lost between two words (mutation: no carry).
        #[test]
        fn a_set_with_a_moving_base(
            steps in prop::collection::vec(prop::option::of(1u64..300), 1..400),
        ) {
            let (mut early, mut model, mut base) = (Early::default(), BTreeSet::new(), 0);
            for step in steps {
                match step {
                    Some(distance) => {
                        let fits = distance < Early::SPAN;
                        let new = fits && model.insert(base + distance);
                        prop_assert_eq!(early.insert(distance), new);
                    }
                    None => {
                        base += 1;
                        prop_assert_eq!(early.advance(), model.contains(&base));
                    }
                }
                prop_assert_eq!(early.is_empty(), model.range(base..).next().is_none());
            }
        }
    }
}
