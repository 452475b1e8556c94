//! What each descriptor number is, one word each.
#![allow(unsafe_code)]

use core::ptr::NonNull;
use core::sync::atomic::{AtomicI32, AtomicPtr, AtomicU64, Ordering};

/// Descriptors that can be known; higher ones stay the kernel's alone.
pub const FDS_MAX: usize = 1 << 20;

/// What a descriptor is to us.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Entry {
    /// Nothing of ours.
    Other,
    /// A TCP socket without a connection.
    Socket,
    /// A tracked connection: its record in the end table and the life it is in.
    Conn { index: u32, generation: u32 },
    /// A tracked connection that stays the kernel's alone: hooks leave it alone, and only its
    /// record is kept.
    Bypassed { index: u32, generation: u32 },
    /// An epoll instance that we know: its number.
    Epoll { index: u32 },
    /// An io_uring that we see into: its number.
    Ring { index: u32 },
}

impl Entry {
    /// The record of a tracked connection, bypassed or not, and the life it is in.
    pub fn record(self) -> Option<(u32, u32)> {
        match self {
            Entry::Conn { index, generation } | Entry::Bypassed { index, generation } => {
                Some((index, generation))
            }
            _ => None,
        }
    }
}

const KIND_BITS: u64 = 3;
const KIND_SOCKET: u64 = 1;
const KIND_CONN: u64 = 2;
const KIND_EPOLL: u64 = 3;
const KIND_BYPASSED: u64 = 4;
const KIND_RING: u64 = 5;

static TABLE: AtomicPtr<AtomicU64> = AtomicPtr::new(core::ptr::null_mut());
/// The highest number that was ever known.
static HIGHEST: AtomicI32 = AtomicI32::new(-1);

/// The highest number that was ever known; 0 before the first.
pub fn highest() -> u32 {
    HIGHEST.load(Ordering::Relaxed).max(0) as u32
}

/// Makes the table. Without memory for it nothing is ever tracked.
pub fn init() {
    if let Some(base) = crate::memory::zeroed(FDS_MAX * size_of::<AtomicU64>()) {
        let base: NonNull<AtomicU64> = base.cast();
        // A second initialisation loses and leaks nothing but address space.
        let _ = TABLE.compare_exchange(
            core::ptr::null_mut(),
            base.as_ptr(),
            Ordering::AcqRel,
            Ordering::Relaxed,
        );
    }
}

#[inline]
fn word(fd: i32) -> Option<&'static AtomicU64> {
    let table = TABLE.load(Ordering::Relaxed);
    if table.is_null() || fd as u32 as usize >= FDS_MAX {
        return None;
    }
    // SAFETY: the table has FDS_MAX words and lives as long as the process.
    Some(unsafe { &*table.add(fd as usize) })
}

fn decode(word: u64) -> Entry {
    let index = (word >> KIND_BITS) as u32 & 0x1fff_ffff;
    match word & ((1 << KIND_BITS) - 1) {
        KIND_SOCKET => Entry::Socket,
        KIND_CONN => Entry::Conn {
            index,
            generation: (word >> 32) as u32,
        },
        KIND_BYPASSED => Entry::Bypassed {
            index,
            generation: (word >> 32) as u32,
        },
        KIND_EPOLL => Entry::Epoll { index },
        KIND_RING => Entry::Ring { index },
        _ => Entry::Other,
    }
}

fn encode(entry: Entry) -> u64 {
    let record = |index: u32, generation: u32| {
        u64::from(index & 0x1fff_ffff) << KIND_BITS | u64::from(generation) << 32
    };
    match entry {
        Entry::Other => 0,
        Entry::Socket => KIND_SOCKET,
        Entry::Conn { index, generation } => KIND_CONN | record(index, generation),
        Entry::Bypassed { index, generation } => KIND_BYPASSED | record(index, generation),
        Entry::Epoll { index } => KIND_EPOLL | record(index, 0),
        Entry::Ring { index } => KIND_RING | record(index, 0),
    }
}

/// What `fd` is.
#[inline]
pub fn get(fd: i32) -> Entry {
    match word(fd) {
        Some(word) => match word.load(Ordering::Relaxed) {
            0 => Entry::Other,
            word => decode(word),
        },
        None => Entry::Other,
    }
}

/// Whether `fd` is anything of ours.
#[inline]
pub fn is_known(fd: i32) -> bool {
    word(fd).is_some_and(|word| word.load(Ordering::Relaxed) != 0)
}

/// Says what `fd` is from now on; returns what it was. Descriptors beyond the table are not
/// kept: false then.
pub fn set(fd: i32, entry: Entry) -> bool {
    let Some(word) = word(fd) else {
        return false;
    };
    HIGHEST.fetch_max(fd, Ordering::Relaxed);
    word.store(encode(entry), Ordering::Relaxed);
    true
}

/// Makes `fd` what `to` says if it is what `from` says.
pub fn replace(fd: i32, from: Entry, to: Entry) -> bool {
    word(fd).is_some_and(|word| {
        word.compare_exchange(
            encode(from),
            encode(to),
            Ordering::Relaxed,
            Ordering::Relaxed,
        )
        .is_ok()
    })
}

/// Forgets `fd`, and returns what it was.
pub fn take(fd: i32) -> Entry {
    match word(fd) {
        Some(word) if word.load(Ordering::Relaxed) != 0 => decode(word.swap(0, Ordering::Relaxed)),
        _ => Entry::Other,
    }
}

/// Calls `each` with every known descriptor in `range`.
pub fn for_each(first: i32, last: i32, mut each: impl FnMut(i32, Entry)) {
    let last = last.min(HIGHEST.load(Ordering::Relaxed));
    let mut fd = first.max(0);
    while fd <= last {
        let entry = get(fd);
        if entry != Entry::Other {
            each(fd, entry);
        }
        fd += 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_survive_their_word() {
        for entry in [
            Entry::Other,
            Entry::Socket,
            Entry::Conn {
                index: 65_535,
                generation: u32::MAX,
            },
            Entry::Bypassed {
                index: 7,
                generation: 9,
            },
            Entry::Epoll { index: 1023 },
            Entry::Ring { index: 63 },
        ] {
            assert_eq!(decode(encode(entry)), entry);
        }
    }
}
