//! What the DMA engine complains about (PG302, "Error Aggregator"): leaf registers that say what,
//! one register that says where, and an interrupt that must be armed.

use crate::bits::{Field, bit, field};

/// A leaf register.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Leaf {
    Descriptor,
    Request,
    CardToHost,
    HostToCard,
}

const LEAVES: [(Leaf, u32, u32); 4] = [
    // The register with the errors (its mask follows it), and the bit of the aggregator.
    (Leaf::Descriptor, 0x254, 2),
    (Leaf::Request, 0x264, 3),
    (Leaf::CardToHost, 0xAF0, 8),
    (Leaf::HostToCard, 0xE00, 11),
];

/// `GLBL_DSC_ERR`.
pub const PARAMETER: u32 = 1 << 2;
pub const DMA: u32 = 1 << 20;
/// `GLBL_TRQ_ERR`.
pub const UNMAPPED: u32 = 1 << 0;
pub const QUEUE_RANGE: u32 = 1 << 1;
/// `C2H_ERR`.
pub const INVALID_QUEUE: u32 = 1 << 12;
pub const COMPLETIONS_FULL: u32 = 1 << 13;
pub const COMPLETION_CIDX: u32 = 1 << 14;
/// `H2C_ERR`.
pub const ZERO_LENGTH: u32 = 1 << 0;

const STATUS: u32 = 0x248;
const MASK: u32 = 0x24C;
const INTERRUPT: u32 = 0xB04;
const FUNCTION: Field = field(7, 0);
const VECTOR: Field = field(22, 12);
const ARM: Field = bit(24);

#[derive(Clone, Debug, Default)]
pub struct Errors {
    leaves: [(u32, u32); LEAVES.len()],
    status: u32,
    mask: u32,
    interrupt: u32,
}

impl Errors {
    pub fn raise(&mut self, leaf: Leaf, errors: u32) {
        for ((known, _, aggregate), (status, mask)) in LEAVES.iter().zip(&mut self.leaves) {
            if *known == leaf {
                *status |= errors;
                if *status & *mask != 0 {
                    self.status |= 1 << aggregate;
                }
            }
        }
    }

    /// The interrupt that is due, once.
    pub fn take_interrupt(&mut self) -> Option<(usize, u16)> {
        if self.status & self.mask == 0 || !ARM.is_set(self.interrupt) {
            return None;
        }
        self.interrupt &= !ARM.mask();
        let function = FUNCTION.get(self.interrupt) as usize;
        Some((function, VECTOR.get(self.interrupt) as u16))
    }

    /// None for a register that is not here.
    pub fn read(&self, offset: u32) -> Option<u32> {
        match offset {
            STATUS => return Some(self.status),
            MASK => return Some(self.mask),
            INTERRUPT => return Some(self.interrupt),
            _ => {}
        }
        let leaves = LEAVES.iter().zip(&self.leaves);
        leaves.into_iter().find_map(|((_, at, _), (status, mask))| {
            match offset.checked_sub(*at)? {
                0 => Some(*status),
                4 => Some(*mask),
                _ => None,
            }
        })
    }

    /// Whether the register is here. A status is cleared by writing ones.
    pub fn write(&mut self, offset: u32, value: u32) -> bool {
        match offset {
            STATUS => self.status &= !value,
            MASK => self.mask = value,
            INTERRUPT => self.interrupt = value,
            _ => {
                for ((_, at, _), (status, mask)) in LEAVES.iter().zip(&mut self.leaves) {
                    if offset == *at {
                        *status &= !value;
                        return true;
                    }
                    if offset == at + 4 {
                        *mask = value;
                        return true;
                    }
                }
                return false;
            }
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_interrupts_once_when_it_is_unmasked_and_armed() {
        let mut errors = Errors::default();
        errors.raise(Leaf::HostToCard, ZERO_LENGTH);
        assert_eq!(
            (errors.read(0xE00), errors.read(STATUS)),
            (Some(1), Some(0))
        );
        assert!(errors.write(0xE04, 0x1F) && errors.write(MASK, 1 << 11));
        assert!(errors.write(INTERRUPT, ARM.put(1) | VECTOR.put(3) | FUNCTION.put(1)));
        errors.raise(Leaf::HostToCard, ZERO_LENGTH);
        assert_eq!(errors.take_interrupt(), Some((1, 3)));
        assert_eq!(errors.take_interrupt(), None);
        errors.write(0xE00, 1);
        errors.write(STATUS, 1 << 11);
        assert_eq!(
            (errors.read(0xE00), errors.read(STATUS)),
            (Some(0), Some(0))
        );
    }

    #[test]
    fn other_registers_are_not_its() {
        let mut errors = Errors::default();
        assert_eq!(errors.read(0x250), None);
        assert!(!errors.write(0x250, 1));
    }
}
