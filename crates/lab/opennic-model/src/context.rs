//! Queue contexts, which the driver programs through the indirect registers (PG302, "Queue
//! Context"): what software set up, and what the device adds to it.

use crate::bits::{Field, bit, field};

/// Words of the indirect data registers.
pub const WORDS: usize = 8;
pub type Words = [u32; WORDS];

/// Descriptor queues of software (PG302, "Software Descriptor Context Structure").
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Software {
    pub pidx: u16,
    pub irq_arm: bool,
    pub function: u8,
    pub enabled: bool,
    pub fetch_credit: bool,
    pub write_back_check: bool,
    pub write_back_interval: bool,
    pub ring_size_index: u8,
    /// log2 of the descriptor's size over 8 bytes.
    pub descriptor_size: u8,
    pub bypass: bool,
    pub write_back: bool,
    pub irq_enabled: bool,
    /// 0 is none; 1 an error of the descriptor, 2 of a fetch.
    pub error: u8,
    pub memory_mapped: bool,
    pub base: u64,
    pub vector: u16,
    pub aggregate_interrupts: bool,
}

mod software {
    use super::*;
    pub const PIDX: Field = field(15, 0);
    pub const IRQ_ARM: Field = bit(16);
    pub const FUNCTION: Field = field(24, 17);
    pub const ENABLED: Field = bit(0);
    pub const FETCH_CREDIT: Field = bit(1);
    pub const WRITE_BACK_CHECK: Field = bit(2);
    pub const WRITE_BACK_INTERVAL: Field = bit(3);
    pub const RING_SIZE: Field = field(15, 12);
    pub const DESCRIPTOR_SIZE: Field = field(17, 16);
    pub const BYPASS: Field = bit(18);
    pub const WRITE_BACK: Field = bit(20);
    pub const IRQ_ENABLED: Field = bit(21);
    pub const ERROR: Field = field(27, 26);
    pub const MEMORY_MAPPED: Field = bit(31);
    pub const VECTOR: Field = field(10, 0);
    pub const AGGREGATE: Field = bit(11);
}

impl Software {
    pub fn decode(words: &Words) -> Self {
        use software::*;
        Self {
            pidx: PIDX.get(words[0]) as u16,
            irq_arm: IRQ_ARM.is_set(words[0]),
            function: FUNCTION.get(words[0]) as u8,
            enabled: ENABLED.is_set(words[1]),
            fetch_credit: FETCH_CREDIT.is_set(words[1]),
            write_back_check: WRITE_BACK_CHECK.is_set(words[1]),
            write_back_interval: WRITE_BACK_INTERVAL.is_set(words[1]),
            ring_size_index: RING_SIZE.get(words[1]) as u8,
            descriptor_size: DESCRIPTOR_SIZE.get(words[1]) as u8,
            bypass: BYPASS.is_set(words[1]),
            write_back: WRITE_BACK.is_set(words[1]),
            irq_enabled: IRQ_ENABLED.is_set(words[1]),
            error: ERROR.get(words[1]) as u8,
            memory_mapped: MEMORY_MAPPED.is_set(words[1]),
            base: u64::from(words[3]) << 32 | u64::from(words[2]),
            vector: VECTOR.get(words[4]) as u16,
            aggregate_interrupts: AGGREGATE.is_set(words[4]),
        }
    }

    pub fn encode(&self) -> Words {
        use software::*;
        let mut words = Words::default();
        words[0] = PIDX.put(self.pidx.into())
            | IRQ_ARM.put(self.irq_arm.into())
            | FUNCTION.put(self.function.into());
        words[1] = ENABLED.put(self.enabled.into())
            | FETCH_CREDIT.put(self.fetch_credit.into())
            | WRITE_BACK_CHECK.put(self.write_back_check.into())
            | WRITE_BACK_INTERVAL.put(self.write_back_interval.into())
            | RING_SIZE.put(self.ring_size_index.into())
            | DESCRIPTOR_SIZE.put(self.descriptor_size.into())
            | BYPASS.put(self.bypass.into())
            | WRITE_BACK.put(self.write_back.into())
            | IRQ_ENABLED.put(self.irq_enabled.into())
            | ERROR.put(self.error.into())
            | MEMORY_MAPPED.put(self.memory_mapped.into());
        words[2] = self.base as u32;
        words[3] = (self.base >> 32) as u32;
        words[4] = VECTOR.put(self.vector.into()) | AGGREGATE.put(self.aggregate_interrupts.into());
        words
    }
}

/// What the device keeps beside a descriptor queue (PG302, "Hardware Descriptor Context").
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Hardware {
    pub cidx: u16,
}

impl Hardware {
    pub fn decode(words: &Words) -> Self {
        Self {
            cidx: words[0] as u16,
        }
    }

    pub fn encode(&self) -> Words {
        let mut words = Words::default();
        words[0] = self.cidx.into();
        words
    }
}

/// Buffers of a receive queue (PG302, "C2H Prefetch Context Structure").
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Prefetch {
    pub buffer_size_index: u8,
    pub error: bool,
    pub enabled: bool,
    pub valid: bool,
}

mod prefetch {
    use super::*;
    pub const BUFFER_SIZE: Field = field(4, 1);
    pub const ERROR: Field = bit(26);
    pub const ENABLED: Field = bit(27);
    pub const VALID: Field = bit(13);
}

impl Prefetch {
    pub fn decode(words: &Words) -> Self {
        use prefetch::*;
        Self {
            buffer_size_index: BUFFER_SIZE.get(words[0]) as u8,
            error: ERROR.is_set(words[0]),
            enabled: ENABLED.is_set(words[0]),
            valid: VALID.is_set(words[1]),
        }
    }

    pub fn encode(&self) -> Words {
        use prefetch::*;
        let mut words = Words::default();
        words[0] = BUFFER_SIZE.put(self.buffer_size_index.into())
            | ERROR.put(self.error.into())
            | ENABLED.put(self.enabled.into());
        words[1] = VALID.put(self.valid.into());
        words
    }
}

/// A completion ring (PG302, "Completion Context Structure").
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Completion {
    pub status: bool,
    pub interrupt: bool,
    pub trigger: u8,
    pub function: u8,
    pub counter_index: u8,
    pub timer_index: u8,
    /// Software has armed the interrupt and it was not sent since.
    pub armed: bool,
    pub colour: bool,
    pub ring_size_index: u8,
    /// Of the ring, a multiple of 4096.
    pub base: u64,
    /// log2 of an entry's size over 8 bytes.
    pub entry_size: u8,
    pub pidx: u16,
    pub cidx: u16,
    pub valid: bool,
    pub error: u8,
    pub overflow_unchecked: bool,
    pub vector: u16,
    pub aggregate_interrupts: bool,
}

mod completion {
    use super::*;
    pub const STATUS: Field = bit(0);
    pub const INTERRUPT: Field = bit(1);
    pub const TRIGGER: Field = field(4, 2);
    pub const FUNCTION: Field = field(12, 5);
    pub const COUNTER: Field = field(20, 17);
    pub const TIMER: Field = field(24, 21);
    pub const STATE: Field = field(26, 25);
    pub const COLOUR: Field = bit(27);
    pub const RING_SIZE: Field = field(31, 28);
    /// Bits 37:12 of the base.
    pub const BASE_LOW: Field = field(31, 6);
    /// Bits 63:38 of the base.
    pub const BASE_HIGH: Field = field(25, 0);
    pub const ENTRY_SIZE: Field = field(27, 26);
    pub const PIDX_LOW: Field = field(31, 28);
    pub const PIDX_HIGH: Field = field(11, 0);
    pub const CIDX: Field = field(27, 12);
    pub const VALID: Field = bit(28);
    pub const ERROR: Field = field(30, 29);
    pub const OVERFLOW_UNCHECKED: Field = bit(2);
    pub const VECTOR: Field = field(14, 4);
    pub const AGGREGATE: Field = bit(15);
}

impl Completion {
    pub fn decode(words: &Words) -> Self {
        use completion::*;
        let base =
            u64::from(BASE_LOW.get(words[1])) << 12 | u64::from(BASE_HIGH.get(words[2])) << 38;
        Self {
            status: STATUS.is_set(words[0]),
            interrupt: INTERRUPT.is_set(words[0]),
            trigger: TRIGGER.get(words[0]) as u8,
            function: FUNCTION.get(words[0]) as u8,
            counter_index: COUNTER.get(words[0]) as u8,
            timer_index: TIMER.get(words[0]) as u8,
            armed: STATE.is_set(words[0]),
            colour: COLOUR.is_set(words[0]),
            ring_size_index: RING_SIZE.get(words[0]) as u8,
            base,
            entry_size: ENTRY_SIZE.get(words[2]) as u8,
            pidx: (PIDX_LOW.get(words[2]) | PIDX_HIGH.get(words[3]) << 4) as u16,
            cidx: CIDX.get(words[3]) as u16,
            valid: VALID.is_set(words[3]),
            error: ERROR.get(words[3]) as u8,
            overflow_unchecked: OVERFLOW_UNCHECKED.is_set(words[4]),
            vector: VECTOR.get(words[4]) as u16,
            aggregate_interrupts: AGGREGATE.is_set(words[4]),
        }
    }

    pub fn encode(&self) -> Words {
        use completion::*;
        let mut words = Words::default();
        words[0] = STATUS.put(self.status.into())
            | INTERRUPT.put(self.interrupt.into())
            | TRIGGER.put(self.trigger.into())
            | FUNCTION.put(self.function.into())
            | COUNTER.put(self.counter_index.into())
            | TIMER.put(self.timer_index.into())
            | STATE.put(self.armed.into())
            | COLOUR.put(self.colour.into())
            | RING_SIZE.put(self.ring_size_index.into());
        words[1] = BASE_LOW.put((self.base >> 12) as u32);
        words[2] = BASE_HIGH.put((self.base >> 38) as u32)
            | ENTRY_SIZE.put(self.entry_size.into())
            | PIDX_LOW.put(self.pidx.into());
        words[3] = PIDX_HIGH.put(u32::from(self.pidx) >> 4)
            | CIDX.put(self.cidx.into())
            | VALID.put(self.valid.into())
            | ERROR.put(self.error.into());
        words[4] = OVERFLOW_UNCHECKED.put(self.overflow_unchecked.into())
            | VECTOR.put(self.vector.into())
            | AGGREGATE.put(self.aggregate_interrupts.into());
        words
    }
}

/// Which queues a function has (PG302, "Function Map").
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FunctionMap {
    pub base: u16,
    pub count: u16,
}

impl FunctionMap {
    pub fn decode(words: &Words) -> Self {
        Self {
            base: field(10, 0).get(words[0]) as u16,
            count: field(11, 0).get(words[1]) as u16,
        }
    }

    pub fn encode(&self) -> Words {
        let mut words = Words::default();
        words[0] = field(10, 0).put(self.base.into());
        words[1] = field(11, 0).put(self.count.into());
        words
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_software_context_as_pg302_lays_it_out() {
        let words = [
            0x0002_0007,
            0x0011_1005,
            0x9000_0000,
            0x0000_0001,
            0x0000_0003,
            0,
            0,
            0,
        ];
        let context = Software::decode(&words);
        assert_eq!((context.pidx, context.function), (7, 1));
        assert!(context.enabled && context.write_back && context.write_back_check);
        assert_eq!((context.ring_size_index, context.descriptor_size), (1, 1));
        assert_eq!((context.base, context.vector), (0x1_9000_0000, 3));
    }

    #[test]
    fn the_base_of_a_completion_ring_is_split_at_bit_38() {
        let context = Completion {
            base: 0x1234_5678_9ABC_D000,
            pidx: 0xABCD,
            ..Completion::default()
        };
        let words = context.encode();
        assert_eq!(
            words[1] >> 6,
            0x5678_9ABC_D000_u64.wrapping_shr(12) as u32 & 0x03FF_FFFF
        );
        assert_eq!(Completion::decode(&words), context);
    }

    proptest! {
        /// Whatever is written reads back as what the device took of it.
        #[test]
        fn contexts_survive_a_round_trip(words: [u32; 8]) {
            let software = Software::decode(&words);
            prop_assert_eq!(Software::decode(&software.encode()), software);
            let completion = Completion::decode(&words);
            prop_assert_eq!(Completion::decode(&completion.encode()), completion);
            let prefetch = Prefetch::decode(&words);
            prop_assert_eq!(Prefetch::decode(&prefetch.encode()), prefetch);
            let map = FunctionMap::decode(&words);
            prop_assert_eq!(FunctionMap::decode(&map.encode()), map);
            let hardware = Hardware::decode(&words);
            prop_assert_eq!(Hardware::decode(&hardware.encode()), hardware);
        }
    }
}
