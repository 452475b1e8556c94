//! The numbers that are this process's, and where it meets the others that have some.

use std::sync::{Mutex, MutexGuard, PoisonError, TryLockError};

use sluice_sys::errno::Errno;
use sluice_sys::local_fd::LocalFd;

use crate::numbers::Numbers;
use crate::{Block, Rendezvous};

/// Blocks of numbers, each of which is a name in the directory where processes meet. They are given
/// back when this is dropped.
pub struct Names {
    rendezvous: Rendezvous,
    numbers: Mutex<Numbers>,
}

impl Names {
    /// None so far, and so many blocks at most.
    pub fn new(rendezvous: Rendezvous, blocks_max: usize) -> Self {
        Self {
            rendezvous,
            numbers: Mutex::new(Numbers::new(blocks_max)),
        }
    }

    /// Where the processes meet.
    pub fn rendezvous(&self) -> &Rendezvous {
        &self.rendezvous
    }

    fn numbers(&self) -> MutexGuard<'_, Numbers> {
        self.numbers.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A number for a queue pair or a shared receive queue. `claimed` is told, with the numbers
    /// locked, of a block that is this process's from now on, and its place among these.
    pub fn take(
        &self,
        claimed: impl FnOnce(usize, &Block) -> Result<(), Errno>,
    ) -> Result<u32, Errno> {
        self.numbers().take(&self.rendezvous, claimed)
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

    /// The names go, as the process is about to end; those of one that is killed are left to whoever
    /// claims numbers next.
    pub fn leave(&self) {
        let numbers = match self.numbers.try_lock() {
            Ok(numbers) => numbers,
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
            // A thread that holds this is about to claim one more; who comes later sweeps it up.
            Err(TryLockError::WouldBlock) => return,
        };
        numbers.take_names_away(&self.rendezvous);
        self.rendezvous.leave();
    }
}

impl Drop for Names {
    fn drop(&mut self) {
        let numbers = self.numbers.get_mut();
        numbers
            .unwrap_or_else(PoisonError::into_inner)
            .release(&self.rendezvous);
    }
}
