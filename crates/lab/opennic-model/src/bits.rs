//! Fields of 32-bit registers, as the register documents number them: `[high:low]`.

/// A field of a 32-bit word.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Field {
    high: u32,
    low: u32,
}

/// The field `[high:low]`.
pub const fn field(high: u32, low: u32) -> Field {
    assert!(high < 32 && low <= high);
    Field { high, low }
}

/// A field of one bit.
pub const fn bit(at: u32) -> Field {
    field(at, at)
}

impl Field {
    /// The bits of the word that belong to it.
    pub const fn mask(self) -> u32 {
        (u32::MAX >> (31 - self.high)) & (u32::MAX << self.low)
    }

    pub const fn get(self, word: u32) -> u32 {
        (word & self.mask()) >> self.low
    }

    pub const fn is_set(self, word: u32) -> bool {
        self.get(word) != 0
    }

    /// The value in the place of the field; what does not fit is cut off.
    pub const fn put(self, value: u32) -> u32 {
        (value << self.low) & self.mask()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_field_takes_its_own_bits_only() {
        let field = field(27, 12);
        assert_eq!(field.mask(), 0x0FFF_F000);
        assert_eq!(field.get(0xFABC_D123), 0xABCD);
        assert_eq!(field.put(0x1_ABCD), 0x0ABC_D000);
        assert_eq!(super::field(31, 0).mask(), u32::MAX);
        assert!(bit(31).is_set(0x8000_0000));
    }
}
