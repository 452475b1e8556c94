//! A peer's memory through the kernel.
//!
//! Two ways, and what they cost for 8 bytes and for 64 KiB on the machine of the benchmarks:
//!
//! | way | µs | whose memory it is |
//! |---|---|---|
//! | its `/proc/PID/mem`, opened once | 1.1, 8.6 | that of the program which was looked at, for good: after its end, or its `exec`, there is none |
//! | `process_vm_*` by its pid, after asking its pidfd | 1.4 + 0.5, 5.7 + 0.5 | that of whoever has the number now |
//!
//! So short copies take the first, long ones the second, and each stands in where the other is
//! forbidden. The question before the second keeps it from the memory of another process that has
//! got the number: it is asked each time, because the end of the link's socket may not have been
//! read yet (this process may have been stopped meanwhile).
//!
//! The kernel copies with `rep movsb`, or on older processors with pairs of stores that overlap. Both may store 2, 4 or
//! 8 bytes twice: a program that waits for the value, and then uses the place for something else, would get the value
//! back. And no piece of several bytes is sure to be seen whole. So a WRITE ends with a piece of one byte, and one that
//! is a single value of up to 8 bytes is none of this module's: its owner stores it ([`Foreign::ends_well`]).
#![allow(unsafe_code)]

use std::fs::File;
use std::os::fd::IntoRawFd;

use sluice_sys::errno::Errno;
use sluice_sys::raw::{check, int, syscall6};
use sluice_sys::unix::Fd;
use sluice_verbs::Sge;

use crate::os::{self, LocalFd};
use sluice_transport::pieces::gather;

/// Pieces of local memory in one call.
const PIECES_MAX: usize = 32;
/// From here on copying twice, as the memory file does, costs more than the question.
const FILE_BYTES_MAX: usize = 16 << 10;
/// Each piece is a copy of its own for the memory file.
const FILE_PIECES_MAX: usize = 1 + LAST_PIECES.len();
/// The longest value that a program looks at, whole, until it has come, bytes.
const VALUE_BYTES_MAX: usize = size_of::<u64>();
/// The last pieces of a WRITE, which are written one after the other behind all others.
const LAST_PIECES: [usize; 2] = [VALUE_BYTES_MAX - 1, 1];

const NO_PIECE: libc::iovec = libc::iovec {
    iov_base: core::ptr::null_mut(),
    iov_len: 0,
};

/// A process whose memory can be reached through the kernel.
#[derive(Debug)]
pub struct Foreign {
    /// The memory itself.
    file: Option<LocalFd>,
    process: Option<Process>,
}

#[derive(Debug)]
struct Process {
    pid: i32,
    /// Numbers are given again, this is not.
    handle: Fd,
}

/// Local memory of one operation.
struct Pieces {
    list: [libc::iovec; PIECES_MAX],
    count: usize,
}

impl Pieces {
    /// `len` bytes from `offset` on. None if they lie in too many pieces.
    fn new(pieces: &[Sge], offset: u64, len: usize) -> Option<Self> {
        let mut own = Self {
            list: [NO_PIECE; PIECES_MAX],
            count: 0,
        };
        own.add(pieces, offset, len)?;
        Some(own)
    }

    fn add(&mut self, pieces: &[Sge], offset: u64, len: usize) -> Option<()> {
        for (start, bytes) in gather(pieces, offset, len) {
            *self.list.get_mut(self.count)? = libc::iovec {
                iov_base: start.cast_mut().cast(),
                iov_len: bytes,
            };
            self.count += 1;
        }
        Some(())
    }

    fn get(&self) -> &[libc::iovec] {
        self.list.get(..self.count).unwrap_or_default()
    }
}

impl Foreign {
    /// The process with that number in this pid namespace, if it is the one that has the nonce at
    /// that address; the way or ways by which it can be reached. `SLUICE_VERBS_CMA=0` forbids both,
    /// for tests and comparisons.
    pub fn probe(pid: i32, address: u64, nonce: [u64; 2]) -> Option<Self> {
        if pid <= 0 || std::env::var_os("SLUICE_VERBS_CMA").is_some_and(|value| value == "0") {
            return None;
        }
        let found = |foreign: &Self| {
            let mut words = [0u64; 2];
            let place = [Sge {
                addr: words.as_mut_ptr() as u64,
                length: size_of_val(&words) as u32,
                lkey: 0,
            }];
            // SAFETY: 16 writable bytes of ours.
            let read = unsafe { foreign.read(&place, 0, address, size_of_val(&words)) };
            read.is_some() && words == nonce
        };
        let by_file = Self {
            file: open_memory(pid),
            process: None,
        };
        // Asked before and after the nonce is read, so it is the number of who has that.
        let by_number = Self {
            file: None,
            process: os::pidfd(pid).ok().map(|handle| Process { pid, handle }),
        };
        let file = by_file.file.is_some() && found(&by_file);
        let process = by_number.process.is_some() && found(&by_number);
        let process = process && by_number.number().is_some();
        (file || process).then_some(Self {
            file: by_file.file.filter(|_| file),
            process: by_number.process.filter(|_| process),
        })
    }

    /// The pid for one call; None where there is no such way, or no longer.
    fn number(&self) -> Option<i32> {
        let process = self.process.as_ref()?;
        os::has_pid(process.handle.raw()).then_some(process.pid)
    }

    /// The memory file, where it is the better way or the only one.
    fn file(&self, pieces: usize, len: usize) -> Option<i32> {
        let short = pieces <= FILE_PIECES_MAX && len <= FILE_BYTES_MAX;
        let file = self.file.as_ref()?;
        (short || self.process.is_none()).then(|| file.raw())
    }

    /// Whether a WRITE of so many bytes can end as programs expect: its last byte is stored once, behind all others, and
    /// a single value at once.
    pub const fn ends_well(len: usize) -> bool {
        // Elsewhere the kernel's copies store single bytes several times, too.
        cfg!(target_arch = "x86_64") && (len == 1 || len > VALUE_BYTES_MAX)
    }

    /// Writes the first `len` bytes of the pieces to `address`, the last of them after all others.
    /// None: not, or not all of them.
    ///
    /// # Safety
    /// The pieces are readable.
    pub unsafe fn write(&self, pieces: &[Sge], address: u64, len: usize) -> Option<()> {
        let mut local = Pieces::new(&[], 0, 0)?;
        let mut to = [NO_PIECE; 1 + LAST_PIECES.len()];
        let ends = LAST_PIECES.map(|bytes| if len > VALUE_BYTES_MAX { bytes } else { 0 });
        let body = len - ends.iter().sum::<usize>();
        let mut at = 0;
        for (place, bytes) in to.iter_mut().zip([body].into_iter().chain(ends)) {
            local.add(pieces, at as u64, bytes)?;
            *place = remote(address.wrapping_add(at as u64), bytes);
            at += bytes;
        }
        if let Some(file) = self.file(local.count, len) {
            // SAFETY: the caller's promise; pieces of a call are written one after the other.
            let done = unsafe { transfer(libc::SYS_pwritev, file, local.get(), address) };
            return (done == Ok(len)).then_some(());
        }
        // SAFETY: the caller's promise; pieces of a call are written one after the other.
        let done = unsafe { os::process_vm(self.number()?, true, local.get(), &to) };
        (done == Ok(len)).then_some(())
    }

    /// Reads `len` bytes at `address` to the places `offset` bytes into the pieces. None: not, or
    /// not all of them.
    ///
    /// # Safety
    /// The pieces are writable.
    pub unsafe fn read(&self, pieces: &[Sge], offset: u64, address: u64, len: usize) -> Option<()> {
        let local = Pieces::new(pieces, offset, len)?;
        if let Some(file) = self.file(local.count, len) {
            // SAFETY: the caller's promise.
            let done = unsafe { transfer(libc::SYS_preadv, file, local.get(), address) };
            return (done == Ok(len)).then_some(());
        }
        let remote = [remote(address, len)];
        // SAFETY: the caller's promise.
        let done = unsafe { os::process_vm(self.number()?, false, local.get(), &remote) };
        (done == Ok(len)).then_some(())
    }
}

/// A descriptor that a forked child does not keep.
fn open_memory(pid: i32) -> Option<LocalFd> {
    let path = format!("/proc/{pid}/mem");
    let file = File::options().read(true).write(true).open(path).ok()?;
    Some(LocalFd::own(Fd::own(file.into_raw_fd())))
}

fn remote(address: u64, len: usize) -> libc::iovec {
    libc::iovec {
        iov_base: address as *mut libc::c_void,
        iov_len: len,
    }
}

/// `preadv` or `pwritev` of a memory file. Bytes moved, which may be fewer than asked for.
///
/// # Safety
/// The pieces are readable (pwritev) or writable (preadv) memory of this process.
unsafe fn transfer(
    call: libc::c_long,
    file: i32,
    local: &[libc::iovec],
    address: u64,
) -> Result<usize, Errno> {
    // SAFETY: the caller vouches for the pieces; the kernel checks the file's side. The position
    // is one word on 64-bit machines, and the kernel ignores the other.
    check(unsafe {
        syscall6(
            call,
            int(file),
            local.as_ptr() as usize,
            local.len(),
            address as usize,
            0,
            0,
        )
    })
}

#[cfg(test)]
mod tests {
    use std::io::{BufRead, BufReader, Read, Write};
    use std::process::{Child, Command, Stdio};

    use super::*;

    fn pieces(buffers: &mut [&mut [u8]]) -> Vec<Sge> {
        let each = buffers.iter_mut().map(|buffer| Sge {
            addr: buffer.as_mut_ptr() as u64,
            length: buffer.len() as u32,
            lkey: 0,
        });
        each.collect()
    }

    /// The ways that work here, each alone and both.
    fn ways(pid: i32, address: u64, nonce: [u64; 2]) -> Vec<Foreign> {
        let probe = || Foreign::probe(pid, address, nonce);
        let Some(both) = probe() else {
            println!("skipped: neither /proc/PID/mem nor process_vm_readv is allowed here");
            return Vec::new();
        };
        let mut ways = vec![both];
        for mut way in [probe(), probe()].into_iter().flatten() {
            if ways.len() == 1 {
                way.file = None;
            } else {
                way.process = None;
            }
            ways.push(way);
        }
        ways.retain(|way| way.file.is_some() || way.process.is_some());
        ways
    }

    #[test]
    fn a_probe_wants_the_right_words() {
        let words = [0x1234u64, 0x5678];
        let pid = std::process::id() as i32;
        let address = words.as_ptr() as u64;
        if Foreign::probe(pid, address, words).is_some() {
            assert!(Foreign::probe(pid, address, [1, 2]).is_none());
        } else {
            println!("skipped: neither /proc/PID/mem nor process_vm_readv is allowed here");
        }
        assert!(Foreign::probe(pid, 8, words).is_none());
        assert!(Foreign::probe(0, address, words).is_none());
    }

    #[test]
    fn both_ways_copy_the_same_bytes() {
        let nonce = [7u64, 8];
        let pid = std::process::id() as i32;
        for way in ways(pid, nonce.as_ptr() as u64, nonce) {
            for len in [1, 7, 8, 9, 100, FILE_BYTES_MAX, FILE_BYTES_MAX + 1] {
                let source: Vec<u8> = (0..len).map(|at| at as u8 ^ 0x5A).collect();
                let target = vec![0u8; len + 2];
                let address = target.as_ptr() as u64 + 1;
                for parts in [1, 3, 40] {
                    let mut copy = source.clone();
                    let size = len.div_ceil(parts);
                    let mut chunks: Vec<&mut [u8]> = copy.chunks_mut(size).collect();
                    let list = pieces(&mut chunks);
                    // SAFETY: slices of `copy`; the target is `target`, which nobody looks at now.
                    let done = unsafe { way.write(&list, address, len) };
                    if list.len() > PIECES_MAX - 1 {
                        continue;
                    }
                    assert!(done.is_some(), "{way:?} {len} in {parts}");
                    assert_eq!(target[1..=len], source, "{way:?} {len} in {parts}");
                    assert_eq!((target[0], target[len + 1]), (0, 0));
                    let mut back = vec![0u8; len];
                    let list = pieces(&mut [&mut back]);
                    let half = len / 2;
                    // SAFETY: the list is `back`, which nobody else has; what is read is `target`, which lives.
                    let read = unsafe { way.read(&list, half as u64, address, len - half) };
                    assert!(read.is_some());
                    assert_eq!(back[half..], source[..len - half]);
                }
            }
        }
    }

    #[test]
    fn memory_that_is_not_there_is_an_answer() {
        let nonce = [9u64, 10];
        let pid = std::process::id() as i32;
        for way in ways(pid, nonce.as_ptr() as u64, nonce) {
            let mut bytes = [0u8; 16];
            let list = pieces(&mut [&mut bytes]);
            for address in [0, 8, u64::MAX - 7, 1 << 63] {
                // SAFETY: 16 bytes of ours.
                let (read, written) = unsafe {
                    (
                        way.read(&list, 0, address, 16),
                        way.write(&list, address, 16),
                    )
                };
                assert!(read.is_none() && written.is_none(), "{way:?} {address:#x}");
            }
        }
    }

    /// A shell whose memory has a known place: where its executable's header is.
    fn shell() -> (Child, u64, [u64; 2]) {
        let mut child = Command::new("sh")
            .args(["-c", "echo; read line; exec cat"])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut line = String::new();
        let mut out = BufReader::new(child.stdout.as_mut().unwrap());
        out.read_line(&mut line).unwrap();
        let maps = std::fs::read_to_string(format!("/proc/{}/maps", child.id())).unwrap();
        let start = maps.split('-').next().unwrap();
        let start = u64::from_str_radix(start, 16).unwrap();
        let header = std::fs::read("/bin/sh").unwrap();
        let word = |at: usize| u64::from_ne_bytes(header[at..at + 8].try_into().unwrap());
        (child, start, [word(0), word(8)])
    }

    #[test]
    fn after_its_end_a_process_has_no_memory() {
        let (mut child, address, nonce) = shell();
        let ways = ways(child.id() as i32, address, nonce);
        child.kill().unwrap();
        child.wait().unwrap();
        for way in &ways {
            let mut bytes = [0u8; 16];
            let list = pieces(&mut [&mut bytes]);
            // SAFETY: 16 bytes of ours.
            let read = unsafe { way.read(&list, 0, address, 16) };
            assert!(read.is_none(), "{way:?}");
        }
    }

    #[test]
    fn the_program_after_an_exec_is_another_one() {
        let (mut child, address, nonce) = shell();
        let mut ways = ways(child.id() as i32, address, nonce);
        ways.retain(|way| way.file.is_some());
        child.stdin.as_mut().unwrap().write_all(b"\nx").unwrap();
        // cat answers: it runs now.
        let mut answer = [0];
        let out = child.stdout.as_mut().unwrap();
        out.read_exact(&mut answer).unwrap();
        for way in &ways {
            let mut bytes = [0u8; 16];
            let list = pieces(&mut [&mut bytes]);
            // SAFETY: 16 bytes of ours.
            let read = unsafe { way.read(&list, 0, address, 16) };
            assert!(read.is_none(), "{way:?}");
        }
        child.kill().unwrap();
        child.wait().unwrap();
    }
}
