//! The guest's memory as the device sees it: bytes at bus addresses, any of which may be missing.

/// There is no memory at some of these addresses. A bus answers such a read or write with
/// "unsupported request" (PCI Express base specification 2.3.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NoMemory {
    pub address: u64,
}

impl std::fmt::Display for NoMemory {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "no memory at {:#x}", self.address)
    }
}

impl std::error::Error for NoMemory {}

/// Memory that the device reads and writes (DMA). All or nothing is read or written.
pub trait Memory {
    fn read(&self, address: u64, bytes: &mut [u8]) -> Result<(), NoMemory>;
    fn write(&mut self, address: u64, bytes: &[u8]) -> Result<(), NoMemory>;
}

/// What a function of the card is plugged into: one memory and one set of interrupts for each.
pub trait Host {
    fn memory(&mut self, function: usize) -> &mut dyn Memory;
    /// Sends an MSI-X message. A vector that the guest did not set up is not sent.
    fn interrupt(&mut self, function: usize, vector: u16);
}

#[cfg(any(test, feature = "testing"))]
pub mod testing {
    use super::*;

    /// Memory that begins at an address, for tests.
    pub struct Flat {
        pub base: u64,
        pub bytes: Vec<u8>,
    }

    impl Flat {
        fn range(&self, address: u64, len: usize) -> Result<std::ops::Range<usize>, NoMemory> {
            let missing = NoMemory { address };
            let start = address.checked_sub(self.base).ok_or(missing)?;
            let start = usize::try_from(start).map_err(|_| missing)?;
            let end = start.checked_add(len).ok_or(missing)?;
            if end > self.bytes.len() {
                return Err(missing);
            }
            Ok(start..end)
        }
    }

    impl Memory for Flat {
        fn read(&self, address: u64, bytes: &mut [u8]) -> Result<(), NoMemory> {
            bytes.copy_from_slice(&self.bytes[self.range(address, bytes.len())?]);
            Ok(())
        }

        fn write(&mut self, address: u64, bytes: &[u8]) -> Result<(), NoMemory> {
            let range = self.range(address, bytes.len())?;
            self.bytes[range].copy_from_slice(bytes);
            Ok(())
        }
    }

    /// One memory for all functions, and the interrupts that came.
    pub struct TestHost {
        pub memory: Flat,
        pub interrupts: Vec<(usize, u16)>,
    }

    impl TestHost {
        pub fn new(base: u64, len: usize) -> Self {
            Self {
                memory: Flat {
                    base,
                    bytes: vec![0; len],
                },
                interrupts: Vec::new(),
            }
        }
    }

    impl Host for TestHost {
        fn memory(&mut self, _function: usize) -> &mut dyn Memory {
            &mut self.memory
        }

        fn interrupt(&mut self, function: usize, vector: u16) {
            self.interrupts.push((function, vector));
        }
    }
}
