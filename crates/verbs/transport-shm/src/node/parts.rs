//! The queue pairs of a process, by their place in its directory.

use std::sync::{Arc, OnceLock, PoisonError, RwLock};

use sluice_shmem::verbs::directory::{BLOCK_QPS, BLOCKS_MAX};

use crate::part::Part;

type Slots = Box<[RwLock<Option<Arc<Part>>>]>;

/// A place for each number of each block that the process has.
pub struct Parts([OnceLock<Slots>; BLOCKS_MAX]);

impl Parts {
    pub fn new() -> Self {
        Self([const { OnceLock::new() }; BLOCKS_MAX])
    }

    /// Places for the numbers of one more block.
    pub fn add_block(&self, index: usize) {
        if let Some(slots) = self.0.get(index) {
            slots.get_or_init(|| (0..BLOCK_QPS).map(|_| RwLock::new(None)).collect());
        }
    }

    /// The queue pair at a place of the directory.
    pub fn get(&self, slot: u32) -> Option<Arc<Part>> {
        let slots = self.0.get(slot as usize / BLOCK_QPS)?.get()?;
        slots[slot as usize % BLOCK_QPS]
            .read()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }

    /// Puts one there, or takes it away.
    pub fn set(&self, slot: u32, part: Option<Arc<Part>>) {
        if let Some(slots) = self
            .0
            .get(slot as usize / BLOCK_QPS)
            .and_then(OnceLock::get)
        {
            *slots[slot as usize % BLOCK_QPS]
                .write()
                .unwrap_or_else(PoisonError::into_inner) = part;
        }
    }

    /// All queue pairs.
    pub fn all(&self) -> Vec<Arc<Part>> {
        self.0
            .iter()
            .filter_map(OnceLock::get)
            .flat_map(|slots| slots.iter())
            .filter_map(|slot| slot.read().unwrap_or_else(PoisonError::into_inner).clone())
            .collect()
    }
}
