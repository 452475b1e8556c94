//! The numbers that are this process's, and where it meets the others that have some.

use std::sync::{Mutex, MutexGuard};

use sluice_rendezvous::{Block, Numbers, Rendezvous};
use sluice_sys::errno::Errno;
use sluice_sys::local_fd::LocalFd;

use crate::locks::{lock, try_lock, unpoisoned};

/// Blocks of queue pair numbers of one process.
const BLOCKS_MAX: usize = 256;

/// Blocks of numbers, each of which is a name in the directory where processes meet.
pub struct Names {
    rendezvous: Rendezvous,
    numbers: Mutex<Numbers>,
}

impl Names {
    /// None so far.
    pub fn new(rendezvous: Rendezvous) -> Self {
        Self {
            rendezvous,
            numbers: Mutex::new(Numbers::new(BLOCKS_MAX)),
        }
    }

    fn numbers(&self) -> MutexGuard<'_, Numbers> {
        lock(&self.numbers)
    }

    /// A number for a queue pair or a shared receive queue. `claimed` is told, with the numbers
    /// locked, of a block that is this process's from now on.
    pub fn take(&self, claimed: impl FnOnce(&Block) -> Result<(), Errno>) -> Result<u32, Errno> {
        self.numbers()
            .take(&self.rendezvous, |_, block| claimed(block))
    }

    /// Nobody has the number any longer.
    pub fn give(&self, number: u32) {
        self.numbers().give(number);
    }

    /// The block that was claimed first.
    pub fn first_block(&self) -> Option<u32> {
        self.numbers().first_block()
    }

    /// This process's blocks.
    pub fn own_blocks(&self) -> Vec<u32> {
        self.numbers().blocks().collect()
    }

    /// Whether a block is this process's.
    pub fn is_own(&self, block: u32) -> bool {
        self.numbers().blocks().any(|own| own == block)
    }

    /// The listening socket of a block of this process.
    pub fn listener(&self, block: u32) -> Option<i32> {
        self.numbers().listener(block)
    }

    /// All blocks that have an owner, or had one that was killed.
    pub fn all_blocks(&self) -> Vec<u32> {
        self.rendezvous.blocks()
    }

    /// A socket to the owner of a block.
    pub fn connect(&self, block: u32) -> Result<LocalFd, Errno> {
        self.rendezvous.connect(block)
    }

    /// The names go, as the process is about to end.
    pub fn leave(&self) {
        // A thread that holds this is about to claim one more; who comes later sweeps it up.
        if let Some(numbers) = try_lock(&self.numbers) {
            numbers.take_names_away(&self.rendezvous);
            self.rendezvous.leave();
        }
    }

    /// Gives all numbers back.
    pub fn release(&mut self) {
        unpoisoned(self.numbers.get_mut()).release(&self.rendezvous);
    }
}
