//! Shared memory as the models have it: loom's atomics must be made one by one and before the
//! threads that use them, so an area is a list of the words that a model will touch.
#![allow(unsafe_code)]

use core::ptr::NonNull;
use loom::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::collections::BTreeMap;

/// What a payload looks like where a header could be expected: a record of one unit.
pub(crate) const HEADER_LIKE: u64 = 0x2A << 32 | 64;

/// The words of one area, by offset.
#[derive(Default)]
pub(crate) struct Area {
    words64: BTreeMap<usize, AtomicU64>,
    words32: BTreeMap<usize, AtomicU32>,
}

impl Area {
    /// Words at the given offsets, all zero.
    pub fn new(
        words64: impl IntoIterator<Item = usize>,
        words32: impl IntoIterator<Item = usize>,
    ) -> Box<Self> {
        let words64 = words64.into_iter();
        let words32 = words32.into_iter();
        Box::new(Self {
            words64: words64.map(|at| (at, AtomicU64::new(0))).collect(),
            words32: words32.map(|at| (at, AtomicU32::new(0))).collect(),
        })
    }

    /// What `from_raw` of the protocols takes. The area must outlive it.
    pub fn base(&self) -> NonNull<u8> {
        NonNull::from(self).cast()
    }
}

/// # Safety
/// `base` comes from [`Area::base`] of an area that outlives `'a`.
pub(crate) unsafe fn word64<'a>(base: NonNull<u8>, offset: usize) -> &'a AtomicU64 {
    // SAFETY: the caller's promise.
    let area: &'a Area = unsafe { base.cast().as_ref() };
    &area.words64[&offset]
}

/// # Safety
/// As [`word64`].
pub(crate) unsafe fn word32<'a>(base: NonNull<u8>, offset: usize) -> &'a AtomicU32 {
    // SAFETY: the caller's promise.
    let area: &'a Area = unsafe { base.cast().as_ref() };
    &area.words32[&offset]
}

/// Payload bytes are not kept, but wherever they cover a word it gets a value that could be taken
/// for a header.
///
/// # Safety
/// As [`word64`].
pub(crate) unsafe fn copy_in(base: NonNull<u8>, offset: usize, _source: *const u8, len: usize) {
    // SAFETY: the caller's promise.
    let area: &Area = unsafe { base.cast().as_ref() };
    for (_, word) in area.words64.range(offset..offset + len) {
        word.store(HEADER_LIKE, Ordering::Relaxed);
    }
}
