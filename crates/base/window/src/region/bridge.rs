//! Two hosts on the sides of a bridge: each has a slot of its own, and reaches the other's.
#![allow(unsafe_code)]

use core::sync::atomic::{AtomicU64, Ordering, fence};

use sluice_sys::mapping::Mapping;

use crate::layout::{Geometry, GeometryError};
use crate::view::{In, Out, View};

/// One side of a bridge. Sides are numbered 0 and 1, as slots are.
#[derive(Debug)]
pub struct Bridge {
    me: u32,
    geometry: Geometry,
    /// This host's memory, which the other one writes.
    inward: Mapping,
    /// The other host's memory, through the bridge. Never read.
    outward: Mapping,
}

impl Bridge {
    /// Both mappings hold a slot; the longer one is used as far as the shorter one goes.
    pub fn new(me: u32, inward: Mapping, outward: Mapping) -> Result<Bridge, GeometryError> {
        let bytes = inward.bytes().min(outward.bytes()) as u64;
        let page = crate::layout::PAGE_BYTES;
        let geometry = Geometry::new(2, bytes - bytes % page)?;
        if me > 1 {
            return Err(GeometryError::Hosts(me + 1));
        }
        Ok(Bridge {
            me,
            geometry,
            inward,
            outward,
        })
    }

    pub fn geometry(&self) -> Geometry {
        self.geometry
    }

    /// A place in one of the two mappings. Everything that touches memory comes by here.
    #[inline]
    fn pointer(&self, mapping: &Mapping, at: u64, bytes: u64) -> *mut u8 {
        let end = at.checked_add(bytes);
        assert!(
            end.is_some_and(|end| end <= self.geometry.slot_bytes()),
            "an address outside a slot"
        );
        // SAFETY: within the mapping: a slot is no longer than the shorter one.
        unsafe { mapping.base().as_ptr().add(at as usize) }
    }

    #[inline]
    fn word(&self, mapping: &Mapping, at: u64) -> &AtomicU64 {
        assert!(at.is_multiple_of(8));
        let pointer = self.pointer(mapping, at, 8);
        // SAFETY: aligned, because mappings begin at pages; mapped as long as `self` lives; it is
        // reached as an atomic only.
        unsafe { &*pointer.cast::<AtomicU64>() }
    }

    fn check(&self, at: Out) {
        assert_eq!(
            at.slot,
            1 - self.me,
            "a bridge leads to the other side only"
        );
    }
}

impl View for Bridge {
    #[inline]
    fn load(&self, at: In) -> u64 {
        self.word(&self.inward, at.0).load(Ordering::Acquire)
    }

    #[inline]
    unsafe fn copy_out(&self, at: In, to: *mut u8, len: usize) {
        let from = self.pointer(&self.inward, at.0, len as u64);
        // SAFETY: `from` is within the mapping for `len` bytes, `to` is the caller's promise.
        unsafe { core::ptr::copy_nonoverlapping(from, to, len) }
    }

    #[inline]
    fn store(&self, at: Out, value: u64) {
        self.check(at);
        self.word(&self.outward, at.at)
            .store(value, Ordering::Release);
    }

    #[inline]
    unsafe fn copy_in(&self, at: Out, from: *const u8, len: usize) {
        self.check(at);
        let to = self.pointer(&self.outward, at.at, len as u64);
        // SAFETY: `to` is within the mapping for `len` bytes, `from` is the caller's promise.
        unsafe { core::ptr::copy_nonoverlapping(from, to, len) }
    }

    #[inline]
    fn publish(&self, _from: Out, _bytes: u64) {
        store_fence();
    }

    #[inline]
    fn refresh(&self, _from: In, _bytes: u64) {
        fence(Ordering::Acquire);
    }
}

/// Orders stores to memory that the processor may combine writes to (Intel SDM volume 3A,
/// "Write Combining Memory Location"): a release fence does not, as ordinary memory needs none.
/// What has left the processor stays in order on the way (PCI Express, ordering of posted
/// requests).
#[inline]
fn store_fence() {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: every x86-64 processor has SSE.
    unsafe {
        core::arch::x86_64::_mm_sfence();
    }
    fence(Ordering::Release);
}
