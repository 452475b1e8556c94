//! Bytes of the fuzzer as a stream of numbers. Behind the end there are zeros.

pub struct Input<'a>(&'a [u8]);

impl<'a> Input<'a> {
    pub fn new(bytes: &'a [u8]) -> Self {
        Self(bytes)
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    fn array<const N: usize>(&mut self) -> [u8; N] {
        let mut bytes = [0; N];
        let len = N.min(self.0.len());
        bytes[..len].copy_from_slice(&self.0[..len]);
        self.0 = &self.0[len..];
        bytes
    }

    pub fn u8(&mut self) -> u8 {
        self.array::<1>()[0]
    }

    pub fn u16(&mut self) -> u16 {
        u16::from_le_bytes(self.array())
    }

    pub fn u32(&mut self) -> u32 {
        u32::from_le_bytes(self.array())
    }

    pub fn u64(&mut self) -> u64 {
        u64::from_le_bytes(self.array())
    }

    pub fn bool(&mut self) -> bool {
        self.u8() & 1 == 1
    }

    /// Below `bound`.
    pub fn below(&mut self, bound: usize) -> usize {
        let value = if bound <= 256 {
            usize::from(self.u8())
        } else {
            self.u32() as usize
        };
        value % bound
    }

    /// A number as peers like to write them: small, at an edge, near `near`, or any.
    pub fn number(&mut self, near: u64) -> u64 {
        match self.u8() % 8 {
            0 => 0,
            1 => u64::from(self.u8()),
            2 => near,
            3 => near.wrapping_add(u64::from(self.u8())),
            4 => near.wrapping_sub(u64::from(self.u8())),
            5 => u64::MAX - u64::from(self.u8()),
            6 => 1u64.rotate_left(u32::from(self.u8())),
            _ => self.u64(),
        }
    }
}
