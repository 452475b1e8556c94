//! A number that a program counts, and that user space reads without a call of the kernel.
#![allow(unsafe_code)]

use core::sync::atomic::{AtomicU64, Ordering};

use super::map::{Kind, Map};
use super::memory::{map_memory, page_bytes, unmap};
use crate::errno::Errno;
use crate::raw::{check, int, syscall3};

/// An array of one 64-bit number. A child of fork has no part in it.
#[derive(Debug)]
pub struct Number {
    map: Map,
    /// None where the kernel has no maps that can be mapped.
    memory: Option<Page>,
}

#[derive(Debug)]
struct Page {
    address: *mut u8,
    bytes: usize,
}

// SAFETY: the memory is this object's until it is dropped, and is accessed by atomics only.
unsafe impl Send for Page {}
// SAFETY: the page is mapped for reading, and what is read there is read by an atomic.
unsafe impl Sync for Page {}

impl Number {
    /// Zero. Errors: as [`Map::new`].
    pub fn new(title: &str) -> Result<Self, Errno> {
        let make = |kind| Map::new(title, kind, 4, 8, 1);
        match make(Kind::MappedArray) {
            Ok(map) => {
                let memory = Some(Page::of(&map)?);
                Ok(Self { map, memory })
            }
            // Before Linux 5.5.
            Err(Errno::INVAL) => Ok(Self {
                map: make(Kind::Array)?,
                memory: None,
            }),
            Err(errno) => Err(errno),
        }
    }

    /// For the program's symbol.
    pub fn map(&self) -> &Map {
        &self.map
    }

    /// What it has come to. None before Linux 5.5.
    pub fn get(&self) -> Option<u64> {
        let page = self.memory.as_ref()?;
        // SAFETY: an aligned 64-bit number at the start of a page, which is mapped as long as `self`
        // is. Programs change it by atomic additions, and nobody else does.
        let number = unsafe { AtomicU64::from_ptr(page.address.cast()) };
        Some(number.load(Ordering::Relaxed))
    }
}

impl Page {
    fn of(map: &Map) -> Result<Self, Errno> {
        let bytes = page_bytes()?;
        let address = map_memory(map.raw(), bytes, libc::PROT_READ, 0)?;
        let page = Self { address, bytes };
        let advice = int(libc::MADV_DONTFORK);
        // SAFETY: advice about a mapping of our own.
        check(unsafe { syscall3(libc::SYS_madvise, address as usize, bytes, advice) })?;
        Ok(page)
    }
}

impl Drop for Page {
    fn drop(&mut self) {
        unmap(self.address, self.bytes);
    }
}
