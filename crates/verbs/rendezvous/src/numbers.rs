//! A process's queue pair numbers: in blocks that no other process of this user has at the same
//! time.

use sluice_sys::errno::Errno;

use crate::{Block, Rendezvous};

/// Numbers of a block.
pub const BLOCK_NUMBERS: usize = 256;

/// The block that a number is in.
pub const fn block_of(number: u32) -> u32 {
    number >> 8
}

/// A process's numbers.
#[derive(Debug)]
pub struct Numbers {
    blocks_max: usize,
    blocks: Vec<Block>,
    used: Vec<bool>,
    /// Where the search for a free one starts, so that none is soon used again.
    next: usize,
}

impl Numbers {
    /// Numbers of at most so many blocks.
    pub fn new(blocks_max: usize) -> Self {
        Self {
            blocks_max,
            blocks: Vec::new(),
            used: Vec::new(),
            next: 0,
        }
    }

    /// A free number. If that takes another block, `claimed` gets it first, and its place among
    /// the blocks; if that fails, so does this, and the block is given back. `ENOMEM`: there are
    /// as many blocks as there may be.
    pub fn take(
        &mut self,
        rendezvous: &Rendezvous,
        claimed: impl FnOnce(usize, &Block) -> Result<(), Errno>,
    ) -> Result<u32, Errno> {
        let total = self.used.len();
        let free = (0..total)
            .map(|step| (self.next + step) % total)
            .find(|place| !self.used[*place]);
        let place = match free {
            Some(place) => place,
            None => {
                self.claim(rendezvous, claimed)?;
                total
            }
        };
        self.used[place] = true;
        self.next = place + 1;
        let block = &self.blocks[place / BLOCK_NUMBERS];
        Ok(block.number << 8 | (place % BLOCK_NUMBERS) as u32)
    }

    fn claim(
        &mut self,
        rendezvous: &Rendezvous,
        claimed: impl FnOnce(usize, &Block) -> Result<(), Errno>,
    ) -> Result<(), Errno> {
        if self.blocks.len() == self.blocks_max {
            return Err(Errno(libc::ENOMEM));
        }
        let owned: Vec<u32> = self.blocks().collect();
        let block = rendezvous.claim(&owned)?;
        if let Err(error) = claimed(self.blocks.len(), &block) {
            rendezvous.release(&block);
            return Err(error);
        }
        self.blocks.push(block);
        self.used.resize(self.blocks.len() * BLOCK_NUMBERS, false);
        Ok(())
    }

    /// A number is free again.
    pub fn give(&mut self, number: u32) {
        let block = self
            .blocks()
            .position(|block| block == block_of(number))
            .unwrap_or(usize::MAX);
        let place = block.saturating_mul(BLOCK_NUMBERS);
        if let Some(used) = self
            .used
            .get_mut(place.saturating_add(number as usize % BLOCK_NUMBERS))
        {
            *used = false;
        }
    }

    /// The first block's number, which names the process.
    pub fn first_block(&self) -> Option<u32> {
        self.blocks().next()
    }

    /// The listening socket of a block.
    pub fn listener(&self, number: u32) -> Option<i32> {
        let block = self.blocks.iter().find(|block| block.number == number)?;
        Some(block.listener.raw())
    }

    /// The numbers of all blocks.
    pub fn blocks(&self) -> impl Iterator<Item = u32> {
        self.blocks.iter().map(|block| block.number)
    }

    /// Takes the names of this process out of the directory: at its end, when other threads may
    /// still be at work. The numbers stay claimed as long as the process lives.
    pub fn take_names_away(&self, rendezvous: &Rendezvous) {
        for block in self.blocks() {
            rendezvous.remove_names(block);
        }
    }

    /// Gives everything back.
    pub fn release(&mut self, rendezvous: &Rendezvous) {
        for block in self.blocks.drain(..) {
            rendezvous.release(&block);
        }
        self.used.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tests::directory;

    #[test]
    fn a_number_is_not_soon_used_again_and_blocks_follow_one_another() {
        let path = directory("numbers");
        let rendezvous = Rendezvous::open(&path).unwrap();
        let mut numbers = Numbers::new(2);
        let mut places = Vec::new();
        let mut take = |numbers: &mut Numbers| {
            numbers.take(&rendezvous, |place, _| {
                places.push(place);
                Ok(())
            })
        };
        let first = take(&mut numbers).unwrap();
        assert_eq!(numbers.first_block(), Some(block_of(first)));
        numbers.give(first);
        let all: Vec<u32> = (0..2 * BLOCK_NUMBERS)
            .map(|_| take(&mut numbers).unwrap())
            .collect();
        assert_eq!(all[BLOCK_NUMBERS - 1], first, "the one given back is last");
        let mut unique = all.clone();
        unique.sort_unstable();
        unique.dedup();
        assert_eq!(unique.len(), all.len());
        assert_eq!(take(&mut numbers), Err(Errno(libc::ENOMEM)));
        // One that was never taken changes nothing.
        numbers.give(0);
        numbers.give(u32::MAX);
        assert_eq!(take(&mut numbers), Err(Errno(libc::ENOMEM)));
        numbers.give(all[300]);
        assert_eq!(take(&mut numbers), Ok(all[300]));
        assert_eq!(places, [0, 1]);
        numbers.release(&rendezvous);
        assert!(rendezvous.blocks().is_empty());
        std::fs::remove_dir_all(&path).unwrap();
    }

    #[test]
    fn a_block_that_cannot_be_served_is_given_back() {
        let path = directory("refused");
        let rendezvous = Rendezvous::open(&path).unwrap();
        let mut numbers = Numbers::new(1);
        let refused = numbers.take(&rendezvous, |_, _| Err(Errno(libc::EMFILE)));
        assert_eq!(refused, Err(Errno(libc::EMFILE)));
        assert!(rendezvous.blocks().is_empty());
        assert!(numbers.take(&rendezvous, |_, _| Ok(())).is_ok());
        std::fs::remove_dir_all(&path).unwrap();
    }
}
