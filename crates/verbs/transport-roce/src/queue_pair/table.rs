//! The queue pairs that there are, by their numbers.

use core::hash::{BuildHasherDefault, Hasher};
use core::sync::atomic::{AtomicU64, Ordering};
use std::collections::HashMap;
use std::sync::{Arc, Mutex, RwLock};

use crate::locks::{lock, read, write};
use crate::queue_pair::part::Part;

/// Numbers that this process has chosen need no keyed hash: nobody can choose them so that they
/// fall together.
#[derive(Default)]
pub struct OwnNumber(u64);

impl Hasher for OwnNumber {
    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.write_u32(u32::from(*byte));
        }
    }

    fn write_u32(&mut self, number: u32) {
        // 2⁶⁴ divided by the golden ratio (Knuth, The Art of Computer Programming, 6.4).
        self.0 = (self.0 ^ u64::from(number)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    }

    fn finish(&self) -> u64 {
        self.0
    }
}

/// The queue pairs at one moment.
#[derive(Default)]
pub struct Table {
    pub by_qpn: HashMap<u32, Arc<Part>, BuildHasherDefault<OwnNumber>>,
    pub by_index: Vec<Option<Arc<Part>>>,
}

/// Small numbers for queue pairs.
#[derive(Default)]
struct Indices {
    next: usize,
    free: Vec<usize>,
}

/// The queue pairs of a transport. Who works on them keeps a [`Table`] until they change.
pub struct QueuePairs {
    indices: Mutex<Indices>,
    table: RwLock<Arc<Table>>,
    /// Counts changes of the table.
    generation: AtomicU64,
}

impl Default for QueuePairs {
    fn default() -> Self {
        Self {
            indices: Mutex::default(),
            table: RwLock::default(),
            // An empty table that was never asked for is of generation 0.
            generation: AtomicU64::new(1),
        }
    }
}

impl QueuePairs {
    /// Those that there are now.
    pub fn table(&self) -> Arc<Table> {
        read(&self.table).clone()
    }

    /// Another one than before if they have changed.
    pub fn generation(&self) -> u64 {
        self.generation.load(Ordering::Acquire)
    }

    fn change(&self, change: impl FnOnce(&mut Table)) {
        let mut table = write(&self.table);
        let mut new = Table {
            by_qpn: table.by_qpn.clone(),
            by_index: table.by_index.clone(),
        };
        change(&mut new);
        *table = Arc::new(new);
        self.generation.fetch_add(1, Ordering::Release);
    }

    /// A small number for a queue pair, its own until [`QueuePairs::remove`].
    pub fn take_index(&self) -> usize {
        let mut indices = lock(&self.indices);
        indices.free.pop().unwrap_or_else(|| {
            indices.next += 1;
            indices.next - 1
        })
    }

    pub fn add(&self, part: &Arc<Part>) {
        self.change(|table| {
            table.by_qpn.insert(part.qpn, part.clone());
            if table.by_index.len() <= part.index {
                table.by_index.resize(part.index + 1, None);
            }
            table.by_index[part.index] = Some(part.clone());
        });
    }

    pub fn remove(&self, part: &Part) {
        self.change(|table| {
            table.by_qpn.remove(&part.qpn);
            if let Some(place) = table.by_index.get_mut(part.index) {
                *place = None;
            }
        });
        lock(&self.indices).free.push(part.index);
    }
}
