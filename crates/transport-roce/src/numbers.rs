//! Numbers of queue pairs: in blocks that no other process of this user in this network namespace
//! has at the same time.

use sluice_rendezvous::{Block, Rendezvous};
use sluice_sys::errno::Errno;

/// Numbers in a block.
const BLOCK: usize = 256;
/// Blocks of one process.
const BLOCKS_MAX: usize = 256;

/// The block that a number is in.
pub const fn block_of(qpn: u32) -> u32 {
    qpn >> 8
}

/// A process's numbers.
#[derive(Default)]
pub struct Numbers {
    blocks: Vec<Block>,
    used: Vec<bool>,
    /// Where the search for a free one starts, so that none is soon used again.
    next: usize,
}

impl Numbers {
    /// A free number. If that takes another block, `claimed` gets it first.
    pub fn take(
        &mut self,
        rendezvous: &Rendezvous,
        claimed: impl FnOnce(&Block) -> Result<(), Errno>,
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
        let block = &self.blocks[place / BLOCK];
        Ok(block.number << 8 | (place % BLOCK) as u32)
    }

    fn claim(
        &mut self,
        rendezvous: &Rendezvous,
        claimed: impl FnOnce(&Block) -> Result<(), Errno>,
    ) -> Result<(), Errno> {
        if self.blocks.len() == BLOCKS_MAX {
            return Err(Errno(libc::ENOMEM));
        }
        let owned: Vec<u32> = self.blocks.iter().map(|block| block.number).collect();
        let block = rendezvous.claim(&owned)?;
        if let Err(error) = claimed(&block) {
            rendezvous.release(&block);
            return Err(error);
        }
        self.blocks.push(block);
        self.used.resize(self.blocks.len() * BLOCK, false);
        Ok(())
    }

    /// A number is free again.
    pub fn give(&mut self, qpn: u32) {
        let block = self
            .blocks
            .iter()
            .position(|block| block.number == block_of(qpn));
        if let Some(block) = block
            && let Some(used) = self.used.get_mut(block * BLOCK + qpn as usize % BLOCK)
        {
            *used = false;
        }
    }

    /// The first block's number, which names the process.
    pub fn first_block(&self) -> Option<u32> {
        self.blocks.first().map(|block| block.number)
    }

    /// The listening socket of a block.
    pub fn listener(&self, number: u32) -> Option<i32> {
        let block = self.blocks.iter().find(|block| block.number == number)?;
        Some(block.listener.raw())
    }

    /// All blocks.
    pub fn blocks(&self) -> impl Iterator<Item = u32> {
        self.blocks.iter().map(|block| block.number)
    }

    /// Gives everything back.
    pub fn release(&mut self, rendezvous: &Rendezvous) {
        for block in self.blocks.drain(..) {
            rendezvous.release(&block);
        }
        self.used.clear();
    }
}
