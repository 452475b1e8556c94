//! The program's memory.

use core::ffi::{CStr, c_int, c_void};
use core::ptr;
use std::io;

use sluice_static::image::{Image, PAGE_BYTES, Segment};

/// What the runtime of Go takes of the first thread's stack: 64 KiB below the words, and what its first functions
/// and the kernel's signal frames need beside.
const STACK_BYTES: usize = 512 * 1024;

/// A file that is mapped for reading.
pub struct File {
    fd: c_int,
    start: *const u8,
    length: usize,
}

impl File {
    pub fn open(path: &CStr) -> io::Result<Self> {
        // The kernel executes nothing else, and nothing from a file system without programs.
        // SAFETY: a path.
        if unsafe { libc::access(path.as_ptr(), libc::X_OK) } != 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: a path; the descriptor is this value's from here on.
        let fd = unsafe { libc::open(path.as_ptr(), libc::O_RDONLY | libc::O_CLOEXEC) };
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        let mut file = Self {
            fd,
            start: ptr::null(),
            length: 0,
        };
        // SAFETY: zero is a value of the type, which is a C structure of numbers; fstat fills it.
        let length = unsafe {
            let mut status: libc::stat = core::mem::zeroed();
            if libc::fstat(fd, &raw mut status) != 0 {
                return Err(io::Error::last_os_error());
            }
            usize::try_from(status.st_size).unwrap_or(0)
        };
        // SAFETY: a new mapping, anywhere; an empty file gives an error.
        let start = unsafe {
            let (read, private) = (libc::PROT_READ, libc::MAP_PRIVATE);
            libc::mmap(ptr::null_mut(), length, read, private, fd, 0)
        };
        if start == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        file.start = start.cast();
        file.length = length;
        Ok(file)
    }

    pub fn bytes(&self) -> &[u8] {
        // SAFETY: the mapping is this value's. The file is a program that the caller executes: who changes it
        // meanwhile changes what is executed, as with the kernel's own loader.
        unsafe { core::slice::from_raw_parts(self.start, self.length) }
    }
}

impl Drop for File {
    fn drop(&mut self) {
        // SAFETY: both are this value's, and nobody has a reference into the mapping.
        unsafe {
            if !self.start.is_null() {
                libc::munmap(self.start as *mut c_void, self.length);
            }
            libc::close(self.fd);
        }
    }
}

fn protection(segment: &Segment) -> c_int {
    let mut protection = libc::PROT_NONE;
    for (has, what) in [
        (segment.is_readable, libc::PROT_READ),
        (segment.is_writable, libc::PROT_WRITE),
        (segment.is_executable, libc::PROT_EXEC),
    ] {
        if has {
            protection |= what;
        }
    }
    protection
}

/// Maps `file`'s segments to their addresses and writes `changes`, each an address within the bytes of a segment in the
/// file and what comes there. Where it fails, nothing is mapped.
pub fn segments(file: &File, image: &Image, changes: &[(u64, Vec<u8>)]) -> io::Result<()> {
    let pages = image.pages();
    let (start, length) = (
        pages.start as *mut c_void,
        (pages.end - pages.start) as usize,
    );
    // SAFETY: these pages are nobody's, or it fails: then nothing of this process is touched.
    let reserved = unsafe {
        let flags = libc::MAP_PRIVATE
            | libc::MAP_ANONYMOUS
            | libc::MAP_NORESERVE
            | libc::MAP_FIXED_NOREPLACE;
        libc::mmap(start, length, libc::PROT_NONE, flags, -1, 0)
    };
    if reserved == libc::MAP_FAILED {
        return Err(io::Error::last_os_error());
    }
    let filled = fill(file, image, changes);
    if filled.is_err() {
        // SAFETY: the pages are those that were reserved above.
        unsafe { libc::munmap(start, length) };
    }
    filled
}

/// The pages are reserved.
fn fill(file: &File, image: &Image, changes: &[(u64, Vec<u8>)]) -> io::Result<()> {
    let writable = libc::PROT_READ | libc::PROT_WRITE;
    let checked = |result: *mut c_void| match result {
        libc::MAP_FAILED => Err(io::Error::last_os_error()),
        _ => Ok(()),
    };
    for segment in &image.segments {
        let pages = segment.pages();
        let (start, end) = (pages.start, pages.end);
        let file_end = segment.address + segment.file_bytes;
        let from_file = if segment.file_bytes == 0 {
            start
        } else {
            file_end.next_multiple_of(PAGE_BYTES)
        };
        let fixed = libc::MAP_PRIVATE | libc::MAP_FIXED;
        let length = |from: u64, to: u64| (to - from) as usize;
        if from_file > start {
            let offset = (segment.offset / PAGE_BYTES * PAGE_BYTES) as libc::off_t;
            // SAFETY: pages of the reservation, which is this function's to fill.
            checked(unsafe {
                let bytes = length(start, from_file);
                libc::mmap(start as _, bytes, writable, fixed, file.fd, offset)
            })?;
        }
        if segment.memory_bytes > segment.file_bytes && from_file > file_end {
            // SAFETY: the rest of the last page that was mapped from the file, writable.
            unsafe { ptr::write_bytes(file_end as *mut u8, 0, length(file_end, from_file)) };
        }
        if end > from_file {
            // SAFETY: pages of the reservation.
            checked(unsafe {
                let anonymous = fixed | libc::MAP_ANONYMOUS;
                let bytes = length(from_file, end);
                libc::mmap(from_file as _, bytes, writable, anonymous, -1, 0)
            })?;
        }
    }
    for (address, bytes) in changes {
        // SAFETY: `sluice_static::go` has found these bytes in a segment, which is mapped and writable.
        unsafe { ptr::copy_nonoverlapping(bytes.as_ptr(), *address as *mut u8, bytes.len()) };
    }
    for segment in &image.segments {
        let pages = segment.pages();
        let bytes = (pages.end - pages.start) as usize;
        // SAFETY: pages of the reservation, which nobody has a reference into.
        if unsafe { libc::mprotect(pages.start as _, bytes, protection(segment)) } != 0 {
            return Err(io::Error::last_os_error());
        }
    }
    Ok(())
}

/// A stack for the program's first thread, with `words` at its pointer, which is returned.
pub fn stack(words: &[u64]) -> io::Result<u64> {
    let page = PAGE_BYTES as usize;
    let bytes = STACK_BYTES + (size_of_val(words) + 16).next_multiple_of(page);
    // SAFETY: a new mapping, anywhere.
    let start = unsafe {
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_STACK;
        let writable = libc::PROT_READ | libc::PROT_WRITE;
        libc::mmap(ptr::null_mut(), bytes, writable, flags, -1, 0)
    };
    if start == libc::MAP_FAILED {
        return Err(io::Error::last_os_error());
    }
    let pointer = (start as usize + bytes - size_of_val(words)) / 16 * 16;
    // SAFETY: the mapping is new and large enough for the words below its end; its first page is nobody's yet.
    unsafe {
        ptr::copy_nonoverlapping(words.as_ptr(), pointer as *mut u64, words.len());
        libc::mprotect(start, page, libc::PROT_NONE);
    }
    Ok(pointer as u64)
}
