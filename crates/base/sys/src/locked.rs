//! Memory of a library in a program that locks its own (mlockall(2)): the tables and rings of the library are large and
//! mostly untouched, and are not what the program means. They are left out, so that a limit of some megabytes
//! (`RLIMIT_MEMLOCK`) is the program's alone.
#![allow(unsafe_code)]

use crate::errno::Errno;
use crate::raw::{check, int, syscall1, syscall2, syscall3, syscall4};
use crate::unix::Fd;
use core::ffi::c_void;
use core::sync::atomic::{AtomicI32, AtomicUsize, Ordering};

/// What the program has said of memory that it maps later: `MCL_FUTURE` and `MCL_ONFAULT`, or 0.
static FUTURE: AtomicI32 = AtomicI32::new(0);

/// Anonymous memory of the library, by its first address and the one behind it. Files of the library's have names.
static ANONYMOUS: [[AtomicUsize; 2]; 64] =
    [const { [AtomicUsize::new(0), AtomicUsize::new(0)] }; 64];
/// Less is not worth the place.
const NOTED_BYTES_MIN: usize = 64 * 1024;

/// How /proc/self/maps names the library's files.
const OUR_FILES: &[u8] = b"/memfd:sluice-";

/// Maps `bytes` by `map`, and takes out of the program's locked memory what was mapped.
///
/// A page is locked when it is touched for as long as this lasts, in other threads' new memory too: nothing
/// else keeps the kernel from filling all that is mapped.
pub fn unlocked(bytes: usize, map: impl FnOnce() -> *mut c_void) -> *mut c_void {
    let future = FUTURE.load(Ordering::Relaxed);
    if future == 0 {
        return map();
    }
    lock_later(libc::MCL_FUTURE | libc::MCL_ONFAULT);
    let address = map();
    if address != libc::MAP_FAILED {
        unlock(address as usize, bytes);
    }
    lock_later(future);
    address
}

/// Notes anonymous memory that was mapped.
pub fn note(start: usize, bytes: usize) {
    if bytes < NOTED_BYTES_MIN {
        return;
    }
    for [first, end] in &ANONYMOUS {
        let order = Ordering::Relaxed;
        if first.compare_exchange(0, start, order, order).is_ok() {
            end.store(start + bytes, Ordering::Release);
            return;
        }
    }
}

/// It is about to be unmapped.
pub fn forget(start: usize) {
    for [first, end] in &ANONYMOUS {
        if first.load(Ordering::Relaxed) == start {
            end.store(0, Ordering::Relaxed);
            first.store(0, Ordering::Release);
        }
    }
}

/// mlockall(2) of the program. Errors: as there.
pub fn lock_all(flags: i32) -> Result<(), Errno> {
    // SAFETY: the call takes a number.
    let locked = check(unsafe { syscall1(libc::SYS_mlockall, int(flags)) });
    match locked {
        Ok(_) if flags & libc::MCL_CURRENT != 0 => {
            unlock_ours();
        }
        Ok(_) => {}
        // The limit counts the library's memory.
        Err(Errno(libc::ENOMEM)) if flags & libc::MCL_CURRENT != 0 => lock_programs(flags)?,
        Err(errno) => return Err(errno),
    }
    let future = match flags & libc::MCL_FUTURE {
        0 => 0,
        _ => flags & (libc::MCL_FUTURE | libc::MCL_ONFAULT),
    };
    FUTURE.store(future, Ordering::Relaxed);
    Ok(())
}

/// munlockall(2) of the program.
pub fn unlock_all() -> Result<(), Errno> {
    FUTURE.store(0, Ordering::Relaxed);
    // SAFETY: the call takes nothing.
    check(unsafe { syscall1(libc::SYS_munlockall, 0) }).map(drop)
}

/// From here on the library makes no call of its own for what it maps.
pub fn leave_alone() {
    FUTURE.store(0, Ordering::Relaxed);
}

fn lock_later(flags: i32) {
    // SAFETY: the call takes a number; it cannot fail for a process that was allowed to say so before.
    unsafe { syscall1(libc::SYS_mlockall, int(flags)) };
}

fn unlock(start: usize, bytes: usize) {
    // SAFETY: the call changes no byte.
    unsafe { syscall2(libc::SYS_munlock, start, bytes) };
}

fn unlock_ours() {
    for [first, end] in &ANONYMOUS {
        let end = end.load(Ordering::Acquire);
        let start = first.load(Ordering::Relaxed);
        if start != 0 && end > start {
            unlock(start, end - start);
        }
    }
    for_each(&mut |area| {
        if area.is_ours {
            unlock(area.start, area.end - area.start);
        }
    });
}

/// Locks what the program has mapped, and nothing of the library's.
fn lock_programs(flags: i32) -> Result<(), Errno> {
    let mut bytes = 0;
    let mut count = |start: usize, end: usize| bytes += end - start;
    for_each_of_the_program(&mut count);
    if bytes == 0 || bytes as u64 > limit() {
        return Err(Errno(libc::ENOMEM));
    }
    // Only this takes back what was said of the future before.
    unlock_all()?;
    let how = flags & libc::MCL_ONFAULT != 0;
    for_each_of_the_program(&mut |start, end| {
        // As mlockall(2) does, it counts as locked where a page cannot be had (PROT_NONE).
        // SAFETY: the call changes no byte.
        unsafe { syscall3(libc::SYS_mlock2, start, end - start, usize::from(how)) };
    });
    match flags & !libc::MCL_CURRENT {
        0 => Ok(()),
        // SAFETY: the call takes a number.
        later => check(unsafe { syscall1(libc::SYS_mlockall, int(later)) }).map(drop),
    }
}

fn limit() -> u64 {
    let mut limit = [0_u64; 2];
    let (kind, to) = (libc::RLIMIT_MEMLOCK as usize, (&raw mut limit) as usize);
    // SAFETY: the kernel writes the two words of a `struct rlimit64`.
    unsafe { syscall4(libc::SYS_prlimit64, 0, kind, 0, to) };
    limit[0]
}

/// Calls `each` with the first address, and the one behind the last, of all that is the program's.
fn for_each_of_the_program(each: &mut dyn FnMut(usize, usize)) {
    for_each(&mut |area| {
        if area.is_ours || area.is_kernels {
            return;
        }
        let mut start = area.start;
        while start < area.end {
            let ours = ANONYMOUS
                .iter()
                .map(|range| [&range[0], &range[1]].map(|word| word.load(Ordering::Acquire)))
                .filter(|[first, end]| *first < area.end && *end > start)
                .min();
            let [first, end] = ours.unwrap_or([area.end, area.end]);
            if first > start {
                each(start, first);
            }
            start = end;
        }
    });
}

/// A line of /proc/self/maps (proc_pid_maps(5)).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Area {
    start: usize,
    end: usize,
    /// A file of the library's.
    is_ours: bool,
    /// The vDSO and its like, which cannot be locked.
    is_kernels: bool,
}

fn for_each(each: &mut dyn FnMut(Area)) {
    let flags = (libc::O_RDONLY | libc::O_CLOEXEC) as usize;
    let (at, path) = (
        libc::AT_FDCWD as usize,
        c"/proc/self/maps".as_ptr() as usize,
    );
    // SAFETY: the path is a static string.
    let opened = check(unsafe { syscall4(libc::SYS_openat, at, path, flags, 0) });
    let Ok(opened) = opened else {
        return;
    };
    let file = Fd::own(opened as i32);
    let mut line = Line::default();
    let mut block = [0_u8; 512];
    loop {
        let (to, room) = (block.as_mut_ptr() as usize, block.len());
        // SAFETY: the kernel writes at most as many bytes as the block has.
        let got = check(unsafe { syscall3(libc::SYS_read, int(file.raw()), to, room) });
        let Some(bytes) = got.ok().and_then(|got| block.get(..got)) else {
            return;
        };
        if bytes.is_empty() {
            return;
        }
        for byte in bytes {
            if let Some(area) = line.take(*byte) {
                each(area);
            }
        }
    }
}

/// A line, as far as it has been read.
#[derive(Default)]
struct Line {
    area: Area,
    part: Part,
    /// The name's first bytes, and how many.
    name: [u8; OUR_FILES.len()],
    named: usize,
}

#[derive(Clone, Copy, Default, PartialEq, Eq)]
enum Part {
    #[default]
    Start,
    End,
    /// Permissions, offset, device and inode, which have neither a slash nor a bracket.
    Middle,
    Name,
}

impl Line {
    /// Takes the next byte; the area if it ends the line.
    fn take(&mut self, byte: u8) -> Option<Area> {
        if byte == b'\n' {
            let mut line = core::mem::take(self);
            line.area.is_ours = line.name == *OUR_FILES;
            line.area.is_kernels = line.name.starts_with(b"[v");
            return Some(line.area);
        }
        let digit = (byte as char).to_digit(16).map(|digit| digit as usize);
        match (self.part, byte, digit) {
            (Part::Start, b'-', _) => self.part = Part::End,
            (Part::Start, _, Some(digit)) => self.area.start = self.area.start << 4 | digit,
            (Part::End, b' ', _) => self.part = Part::Middle,
            (Part::End, _, Some(digit)) => self.area.end = self.area.end << 4 | digit,
            (Part::Middle, b'/' | b'[', _) | (Part::Name, _, _) => {
                self.part = Part::Name;
                if let Some(place) = self.name.get_mut(self.named) {
                    *place = byte;
                    self.named += 1;
                }
            }
            _ => {}
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_say_whose_the_memory_is() {
        let text = b"7fc007600000-7fc007e00000 rw-p 00000000 00:00 0 \n\
            7fc008248000-7fc00824f000 rw-s 00000000 00:01 5344105          /memfd:sluice-chunk (deleted)\n\
            7fc008253000-7fc008255000 r--p 00000000 00:00 0                          [vvar_vclock]\n\
            7fffb2708000-7fffb2729000 rw-p 00000000 00:00 0                          [stack]\n\
            1000-2000 r-xp 00000000 fe:00 5344105    /home/memfd:sluice-x\n\
            3000-4000 r-xp 00000000 fe:00 5344105    /memfd:sluice\n";
        let mut line = Line::default();
        let areas: Vec<Area> = text.iter().filter_map(|byte| line.take(*byte)).collect();
        let area = |start, end, is_ours, is_kernels| Area {
            start,
            end,
            is_ours,
            is_kernels,
        };
        let expected = [
            area(0x7fc0_0760_0000, 0x7fc0_07e0_0000, false, false),
            area(0x7fc0_0824_8000, 0x7fc0_0824_f000, true, false),
            area(0x7fc0_0825_3000, 0x7fc0_0825_5000, false, true),
            area(0x7fff_b270_8000, 0x7fff_b272_9000, false, false),
            area(0x1000, 0x2000, false, false),
            area(0x3000, 0x4000, false, false),
        ];
        assert_eq!(areas, expected);
    }

    #[test]
    fn what_is_noted_is_not_the_programs() {
        let all = |noted: usize| {
            let mut seen = 0;
            for_each_of_the_program(&mut |start, end| {
                seen += usize::from(start <= noted && noted < end);
            });
            seen
        };
        let memory = vec![0_u8; 8 * NOTED_BYTES_MIN];
        let middle = memory.as_ptr() as usize + 4 * NOTED_BYTES_MIN;
        assert_eq!(all(middle), 1);
        note(middle, 100);
        assert_eq!(all(middle), 1, "too little to be noted");
        note(middle, NOTED_BYTES_MIN);
        assert_eq!(all(middle), 0);
        assert_eq!([all(middle - 1), all(middle + NOTED_BYTES_MIN)], [1, 1]);
        forget(middle);
        assert_eq!(all(middle), 1);
    }
}
