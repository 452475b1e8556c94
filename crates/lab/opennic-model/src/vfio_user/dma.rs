//! Where the guest's memory is in this process.

use std::collections::BTreeMap;
use std::fs::File;
use std::io;

use crate::mapping::Mapping;
use crate::memory::{Memory, NoMemory};

/// A guest has a few: its memory above and below 4 GiB, and what its firmware shows.
const MAPS_MAX: usize = 4096;

/// Parts of the guest's address space, none of which overlap.
#[derive(Default)]
pub struct DmaMaps(BTreeMap<u64, Part>);

struct Part {
    len: u64,
    /// None for memory without a descriptor, which a device cannot reach.
    mapping: Option<Mapping>,
}

impl DmaMaps {
    /// A map comes. One without a file, or whose file is not safe to map, is kept as a hole.
    pub fn add(&mut self, address: u64, len: u64, file: Option<(File, u64)>) -> io::Result<()> {
        let refused = |text| io::Error::new(io::ErrorKind::InvalidInput, text);
        let end = address
            .checked_add(len)
            .ok_or_else(|| refused("a map that overflows"))?;
        let before = self.0.range(..end).next_back();
        if before.is_some_and(|(start, part)| start + part.len > address) {
            return Err(refused("a map over another"));
        }
        if len == 0 || self.0.len() >= MAPS_MAX {
            return Err(refused("an empty map, or too many"));
        }
        let mapping = match file {
            Some((file, offset)) => Some(Mapping::of_stranger(&file, offset, len)?),
            None => None,
        };
        self.0.insert(address, Part { len, mapping });
        Ok(())
    }

    /// A map goes.
    pub fn remove(&mut self, address: u64, len: u64) -> io::Result<()> {
        match self.0.get(&address) {
            Some(part) if part.len == len => {
                self.0.remove(&address);
                Ok(())
            }
            _ => Err(io::Error::new(io::ErrorKind::NotFound, "no such map")),
        }
    }

    pub fn clear(&mut self) {
        self.0.clear();
    }

    /// The mapping with these bytes, and where in it they begin. What crosses from one map to the
    /// next is not found: guests' buffers do not.
    fn find(&self, address: u64, len: usize) -> Result<(&Mapping, usize), NoMemory> {
        let missing = NoMemory { address };
        let (start, part) = self.0.range(..=address).next_back().ok_or(missing)?;
        let mapping = part.mapping.as_ref().ok_or(missing)?;
        let offset = usize::try_from(address - start).map_err(|_| missing)?;
        if offset
            .checked_add(len)
            .is_none_or(|end| end > mapping.len())
        {
            return Err(missing);
        }
        Ok((mapping, offset))
    }
}

impl Memory for DmaMaps {
    fn read(&self, address: u64, bytes: &mut [u8]) -> Result<(), NoMemory> {
        let (mapping, offset) = self.find(address, bytes.len())?;
        mapping.read(offset, bytes).ok_or(NoMemory { address })
    }

    fn write(&mut self, address: u64, bytes: &[u8]) -> Result<(), NoMemory> {
        let (mapping, offset) = self.find(address, bytes.len())?;
        mapping.write(offset, bytes).ok_or(NoMemory { address })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(len: u64) -> File {
        File::from(Mapping::new_shared(len, 0, len as usize).expect("memfd").1)
    }

    #[test]
    fn what_is_mapped_is_reached_and_nothing_else() {
        let mut maps = DmaMaps::default();
        maps.add(0x10000, 0x2000, Some((file(0x4000), 0x1000)))
            .expect("a map");
        maps.write(0x11FF8, &[9; 8]).expect("inside");
        let mut bytes = [0; 8];
        maps.read(0x11FF8, &mut bytes).expect("inside");
        assert_eq!(bytes, [9; 8]);
        assert!(maps.read(0x11FF9, &mut bytes).is_err());
        assert!(maps.read(0xFFFF, &mut bytes).is_err());
        assert!(maps.read(u64::MAX, &mut bytes).is_err());
        maps.remove(0x10000, 0x1000).expect_err("another length");
        maps.remove(0x10000, 0x2000).expect("the map");
        assert!(maps.read(0x10000, &mut bytes).is_err());
    }

    #[test]
    fn maps_do_not_overlap_and_holes_are_not_reached() {
        let mut maps = DmaMaps::default();
        maps.add(0x1000, 0x1000, None).expect("a hole");
        assert!(maps.add(0x1800, 0x1000, None).is_err());
        assert!(maps.add(0x800, 0x1000, None).is_err());
        assert!(maps.add(u64::MAX, 2, None).is_err());
        assert!(maps.add(0x4000, 0, None).is_err());
        assert!(maps.add(0x4000, 0x9000, Some((file(0x1000), 0))).is_err());
        assert!(maps.read(0x1000, &mut [0; 1]).is_err());
    }
}
