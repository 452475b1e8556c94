//! The memory of a ring, as far as submissions are in it.
#![allow(unsafe_code)]

use super::submission::{ENTRY_BYTES, Entry};
use core::ffi::c_int;
use core::ptr::NonNull;
use core::sync::atomic::{AtomicPtr, AtomicU32, AtomicUsize, Ordering};
use sluice_lane::spin::yield_processor;

/// Rings of a process that are seen into, at a time.
pub const RINGS_MAX: usize = 64;
/// Entries of a submission queue (IORING_MAX_ENTRIES).
const ENTRIES_MAX: u32 = 32_768;
/// Whoever closes a ring that another thread is just entering waits so often.
const YIELDS_MAX: u32 = 10_000;

/// Where to map what (linux/io_uring.h).
const OFFSET_QUEUE: usize = 0;
const OFFSET_ENTRIES: usize = 0x1000_0000;

const SETUP_SQPOLL: u32 = 1 << 1;
const SETUP_ENTRIES_OF_128: u32 = 1 << 10;
const SETUP_NO_MMAP: u32 = 1 << 14;
const SETUP_REGISTERED_FD_ONLY: u32 = 1 << 15;
const SETUP_NO_ARRAY: u32 = 1 << 16;
/// None behind this one is known; those between do not change where submissions are.
const SETUP_KNOWN: u32 = (1 << 19) - 1;

/// `struct io_uring_params`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct Params {
    entries: u32,
    completions: u32,
    pub flags: u32,
    thread_cpu: u32,
    thread_idle: u32,
    features: u32,
    workers_fd: u32,
    reserved: [u32; 3],
    head: u32,
    tail: u32,
    mask: u32,
    ring_entries: u32,
    ring_flags: u32,
    dropped: u32,
    array: u32,
    reserved1: u32,
    user_address: u64,
    completion_offsets: [u64; 5],
}

const _: () = assert!(size_of::<Params>() == 120);

impl Params {
    /// Whether all that is submitted to such a ring can be seen; if not, why.
    pub fn is_visible(&self) -> Result<(), &'static str> {
        if self.flags & SETUP_SQPOLL != 0 {
            Err("a kernel thread polls a ring (IORING_SETUP_SQPOLL)")
        } else if self.flags & SETUP_REGISTERED_FD_ONLY != 0 {
            Err("a ring has no descriptor (IORING_SETUP_REGISTERED_FD_ONLY)")
        } else if self.flags & SETUP_NO_MMAP != 0 {
            Err("a ring is in memory of the program (IORING_SETUP_NO_MMAP)")
        } else if self.flags & !SETUP_KNOWN != 0 {
            Err("a ring has a form that is not known")
        } else if !self.entries.is_power_of_two() || self.entries > ENTRIES_MAX {
            Err("a ring has a size that is not known")
        } else {
            Ok(())
        }
    }

    fn has_array(&self) -> bool {
        self.flags & SETUP_NO_ARRAY == 0
    }

    fn entry_bytes(&self) -> usize {
        if self.flags & SETUP_ENTRIES_OF_128 != 0 {
            2 * ENTRY_BYTES
        } else {
            ENTRY_BYTES
        }
    }

    fn queue_bytes(&self) -> usize {
        let array = if self.has_array() {
            self.array as usize + self.entries as usize * size_of::<u32>()
        } else {
            0
        };
        let last = self.head.max(self.tail) as usize + size_of::<u32>();
        array.max(last)
    }

    fn entries_bytes(&self) -> usize {
        self.entries as usize * self.entry_bytes()
    }
}

/// A ring that the process has.
pub struct Ring {
    /// Descriptors that name it, 0: unused.
    names: AtomicU32,
    /// Threads that look at its memory.
    users: AtomicU32,
    /// Threads that submit, and how many have begun to.
    submitters: AtomicU32,
    begun: AtomicU32,
    /// What the kernel had taken when somebody looked last.
    seen: AtomicU32,
    queue: AtomicPtr<u8>,
    queue_bytes: AtomicUsize,
    entries_at: AtomicPtr<u8>,
    entries_bytes: AtomicUsize,
    entry_bytes: AtomicUsize,
    entries: AtomicU32,
    head: AtomicU32,
    tail: AtomicU32,
    /// [`NO_ARRAY`]: entries are taken in their order.
    array: AtomicU32,
}

const NO_ARRAY: u32 = u32::MAX;

impl Ring {
    /// An unused place.
    pub const fn new() -> Self {
        Self {
            names: AtomicU32::new(0),
            users: AtomicU32::new(0),
            submitters: AtomicU32::new(0),
            begun: AtomicU32::new(0),
            seen: AtomicU32::new(0),
            queue: AtomicPtr::new(core::ptr::null_mut()),
            queue_bytes: AtomicUsize::new(0),
            entries_at: AtomicPtr::new(core::ptr::null_mut()),
            entries_bytes: AtomicUsize::new(0),
            entry_bytes: AtomicUsize::new(ENTRY_BYTES),
            entries: AtomicU32::new(0),
            head: AtomicU32::new(0),
            tail: AtomicU32::new(0),
            array: AtomicU32::new(NO_ARRAY),
        }
    }

    /// Takes an unused place, for one descriptor.
    pub fn claim(&self) -> bool {
        self.names
            .compare_exchange(0, 1, Ordering::AcqRel, Ordering::Relaxed)
            .is_ok()
    }

    /// Maps the ring that `fd` names, which has these visible parameters.
    pub fn map(&self, fd: c_int, params: &Params) -> bool {
        let queue_bytes = params.queue_bytes();
        let entries_bytes = params.entries_bytes();
        let Some(queue) = map(fd, queue_bytes, OFFSET_QUEUE) else {
            return false;
        };
        let Some(entries) = map(fd, entries_bytes, OFFSET_ENTRIES) else {
            unmap(queue.as_ptr(), queue_bytes);
            return false;
        };
        let array = if params.has_array() {
            params.array
        } else {
            NO_ARRAY
        };
        self.queue_bytes.store(queue_bytes, Ordering::Relaxed);
        self.entries_bytes.store(entries_bytes, Ordering::Relaxed);
        self.entry_bytes
            .store(params.entry_bytes(), Ordering::Relaxed);
        self.entries.store(params.entries, Ordering::Relaxed);
        self.head.store(params.head, Ordering::Relaxed);
        self.tail.store(params.tail, Ordering::Relaxed);
        self.array.store(array, Ordering::Relaxed);
        self.seen.store(0, Ordering::Relaxed);
        self.entries_at.store(entries.as_ptr(), Ordering::Relaxed);
        self.queue.store(queue.as_ptr(), Ordering::Release);
        true
    }

    /// One more descriptor.
    pub fn add_name(&self) {
        self.names.fetch_add(1, Ordering::AcqRel);
    }

    /// One descriptor fewer; with the last the memory is given back.
    pub fn drop_name(&self) {
        let another = |names: u32| (names > 1).then(|| names - 1);
        if self
            .names
            .fetch_update(Ordering::AcqRel, Ordering::Acquire, another)
            .is_err()
        {
            self.give_up();
        }
    }

    /// Gives the memory and the place back.
    pub fn give_up(&self) {
        let queue = self.queue.swap(core::ptr::null_mut(), Ordering::SeqCst);
        for _ in 0..YIELDS_MAX {
            if self.users.load(Ordering::SeqCst) == 0 {
                if !queue.is_null() {
                    unmap(queue, self.queue_bytes.load(Ordering::Relaxed));
                    let entries = self.entries_at.load(Ordering::Relaxed);
                    unmap(entries, self.entries_bytes.load(Ordering::Relaxed));
                }
                self.names.store(0, Ordering::Release);
                return;
            }
            yield_processor();
        }
        // A handler closes the ring that the thread below it is just entering. Place and memory
        // are lost.
    }

    /// A thread is about to submit. Whether no other one does.
    pub fn enter(&self) -> bool {
        self.begun.fetch_add(1, Ordering::SeqCst);
        self.submitters.fetch_add(1, Ordering::SeqCst) == 0
    }

    /// It has.
    pub fn leave(&self) {
        self.submitters.fetch_sub(1, Ordering::SeqCst);
    }

    /// Calls `body` with the memory, which is not given back meanwhile. `None`: it was before.
    pub fn look<R>(&self, body: impl FnOnce(&Memory) -> R) -> Option<R> {
        self.users.fetch_add(1, Ordering::SeqCst);
        let result = NonNull::new(self.queue.load(Ordering::SeqCst))
            .zip(NonNull::new(self.entries_at.load(Ordering::Relaxed)))
            .map(|(queue, entries)| {
                body(&Memory {
                    ring: self,
                    queue,
                    entries,
                })
            });
        self.users.fetch_sub(1, Ordering::SeqCst);
        result
    }

    /// Whether the kernel has taken entries that nobody saw. That is not known while a thread
    /// submits, and false.
    pub fn was_used_unseen(&self) -> bool {
        if self.names.load(Ordering::Relaxed) == 0 {
            return false;
        }
        let begun = self.begun.load(Ordering::SeqCst);
        if self.submitters.load(Ordering::SeqCst) != 0 {
            return false;
        }
        let is_unseen = self.look(|memory| !memory.all_was_seen());
        is_unseen == Some(true) && self.begun.load(Ordering::SeqCst) == begun
    }
}

/// The memory of a ring that somebody keeps from being given back.
pub struct Memory<'a> {
    ring: &'a Ring,
    queue: NonNull<u8>,
    entries: NonNull<u8>,
}

impl Memory<'_> {
    fn word(&self, offset: u32) -> &AtomicU32 {
        // SAFETY: offsets are those that the kernel gave for this ring, and what was mapped reaches
        // behind each of them; its words are aligned.
        unsafe { self.queue.add(offset as usize).cast::<AtomicU32>().as_ref() }
    }

    fn head(&self) -> u32 {
        self.word(self.ring.head.load(Ordering::Relaxed))
            .load(Ordering::Acquire)
    }

    /// The position of the first entry that the kernel has not taken, and how many wait there.
    pub fn waiting(&self) -> (u32, u32) {
        let tail = self
            .word(self.ring.tail.load(Ordering::Relaxed))
            .load(Ordering::Acquire);
        let head = self.head();
        let entries = self.ring.entries.load(Ordering::Relaxed);
        (head, tail.wrapping_sub(head).min(entries))
    }

    /// Whether so many entries that a program has prepared can be waiting at this position.
    pub fn is_prepared(&self, first: u32, count: u32) -> bool {
        let (head, waiting) = self.waiting();
        let entries = self.ring.entries.load(Ordering::Relaxed);
        count <= entries && first.wrapping_sub(head) <= waiting
    }

    /// Where the entry at a position is. `by_array`: as the kernel finds it. `None` if there is
    /// none.
    pub fn place(&self, position: u32, by_array: bool) -> Option<u32> {
        let entries = self.ring.entries.load(Ordering::Relaxed);
        let turn = position & entries.wrapping_sub(1);
        let place = match self.ring.array.load(Ordering::Relaxed) {
            array if by_array && array != NO_ARRAY => self
                .word(array + turn * size_of::<u32>() as u32)
                .load(Ordering::Relaxed),
            _ => turn,
        };
        (place < entries).then_some(place)
    }

    fn entry_at(&self, place: u32) -> NonNull<[u8; ENTRY_BYTES]> {
        let offset = place as usize * self.ring.entry_bytes.load(Ordering::Relaxed);
        // SAFETY: `place` is below the number of entries, and all of them are mapped.
        unsafe { self.entries.add(offset).cast() }
    }

    /// The entry at a place that [`Memory::place`] gave.
    pub fn entry(&self, place: u32) -> Entry {
        // SAFETY: mapped, see `entry_at`; any bytes are an entry. The program, which has prepared it,
        // may not change it before the kernel has taken it.
        Entry::new(unsafe { self.entry_at(place).read_volatile() })
    }

    /// Replaces it.
    pub fn put_entry(&self, place: u32, entry: &Entry) {
        // SAFETY: `entry_at` gives an entry that is mapped for writing.
        unsafe { self.entry_at(place).write_volatile(*entry.bytes()) };
    }

    /// Whether the kernel has taken only what somebody looked at.
    pub fn all_was_seen(&self) -> bool {
        self.head() == self.ring.seen.load(Ordering::Relaxed)
    }

    /// Notes what the kernel has taken, and returns the position behind that.
    pub fn note_taken(&self) -> u32 {
        let head = self.head();
        self.ring.seen.store(head, Ordering::Relaxed);
        head
    }
}

fn map(fd: c_int, bytes: usize, offset: usize) -> Option<NonNull<u8>> {
    // SAFETY: a new mapping at an address of the kernel's choice.
    let address = unsafe {
        libc::mmap(
            core::ptr::null_mut(),
            bytes,
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_SHARED,
            fd,
            offset as libc::off_t,
        )
    };
    if address == libc::MAP_FAILED {
        return None;
    }
    NonNull::new(address.cast())
}

fn unmap(address: *mut u8, bytes: usize) {
    // SAFETY: a mapping of this module's own, which nobody uses any more.
    unsafe { libc::munmap(address.cast(), bytes) };
}
