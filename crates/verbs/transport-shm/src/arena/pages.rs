//! Which pages of a region are free: extents by offset, joined when they touch.

use std::collections::BTreeMap;

use super::PAGE_BYTES;

/// The pages of one region. Offsets and lengths are bytes, multiples of a page.
#[derive(Debug)]
pub struct Pages {
    free: BTreeMap<usize, usize>,
    used: BTreeMap<usize, usize>,
}

impl Pages {
    /// All of `bytes` free.
    pub fn new(bytes: usize) -> Self {
        Self {
            free: BTreeMap::from([(0, bytes)]),
            used: BTreeMap::new(),
        }
    }

    /// Takes `len` bytes whose address, `base` plus the offset, is a multiple of `align`.
    pub fn take(&mut self, base: usize, len: usize, align: usize) -> Option<usize> {
        let (start, extent, at) = self.free.iter().find_map(|(start, extent)| {
            let at = (base + start).next_multiple_of(align) - base;
            (at + len <= start + extent).then_some((*start, *extent, at))
        })?;
        self.free.remove(&start);
        if at > start {
            self.free.insert(start, at - start);
        }
        if at + len < start + extent {
            self.free.insert(at + len, start + extent - at - len);
        }
        self.used.insert(at, len);
        Some(at)
    }

    /// Gives back what starts at `offset`; its length, or None if nothing does.
    pub fn give(&mut self, offset: usize) -> Option<usize> {
        let len = self.used.remove(&offset)?;
        let (mut start, mut end) = (offset, offset + len);
        if let Some(next) = self.free.remove(&end) {
            end += next;
        }
        if let Some((before, extent)) = self.free.range(..start).next_back()
            && before + extent == start
        {
            start = *before;
        }
        self.free.insert(start, end - start);
        Some(len)
    }

    /// The length of what starts at `offset`.
    pub fn len_at(&self, offset: usize) -> Option<usize> {
        self.used.get(&offset).copied()
    }

    /// What is taken: offsets and lengths.
    pub fn used(&self) -> impl Iterator<Item = (usize, usize)> + '_ {
        self.used.iter().map(|(offset, len)| (*offset, *len))
    }
}

/// Rounds up to pages; None if that wraps.
pub fn round(len: usize) -> Option<usize> {
    len.max(1).checked_next_multiple_of(PAGE_BYTES)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn extents_split_and_join() {
        const P: usize = PAGE_BYTES;
        let mut pages = Pages::new(16 * P);
        let base = 4 * P;
        let a = pages.take(base, P, P).unwrap();
        let b = pages.take(base, 2 * P, 8 * P).unwrap();
        assert_eq!((a, (base + b) % (8 * P)), (0, 0));
        let c = pages.take(base, 3 * P, P).unwrap();
        assert_eq!(c, P, "the gap before the aligned one is used");
        assert_eq!(pages.take(base, 11 * P, P), None);
        assert_eq!(pages.len_at(b), Some(2 * P));
        assert_eq!(pages.give(b + P), None);
        for offset in [a, c, b] {
            pages.give(offset).unwrap();
        }
        assert_eq!(pages.take(base, 16 * P, P), Some(0));
    }
}
