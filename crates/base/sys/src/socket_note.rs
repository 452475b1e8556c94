//! A number that lies with a socket, for all who hold it, whatever they share besides.
//!
//! It is carried by a socket filter (socket(7), `SO_ATTACH_FILTER`) that lets everything pass:
//! instructions that load a constant, and one that returns. The kernel gives the instructions out
//! again (`SO_GET_FILTER`). Who changes the number has a record lock of the socket meanwhile
//! (fcntl(2), `F_SETLK`), which the kernel takes back from a process that dies.
#![allow(unsafe_code)]

use core::sync::atomic::{AtomicBool, Ordering};
use std::os::fd::RawFd;

use crate::errno::Errno;
use crate::raw::{check, int, syscall3, syscall5};
use crate::unix::set_option;

/// `SO_GET_FILTER` (include/uapi/asm-generic/socket.h).
const SO_GET_FILTER: i32 = libc::SO_ATTACH_FILTER;
/// `BPF_LD | BPF_IMM` and `BPF_RET | BPF_K` (include/uapi/linux/bpf_common.h).
const LOAD: u16 = 0;
const RETURN: u16 = 6;
/// All of the segment.
const ALL: u32 = u32::MAX;
/// By which our filters are known.
const MAGIC: u32 = u32::from_be_bytes(*b"SLCN");
const INSTRUCTIONS: usize = 3;

/// A thread of this process has the lock: record locks do not tell threads apart.
static LOCKED: AtomicBool = AtomicBool::new(false);

fn program(number: u32) -> [libc::sock_filter; INSTRUCTIONS] {
    let instruction = |code, k| libc::sock_filter {
        code,
        jt: 0,
        jf: 0,
        k,
    };
    [
        instruction(LOAD, MAGIC),
        instruction(LOAD, number),
        instruction(RETURN, ALL),
    ]
}

/// The number that lies with the socket; `None` if there is none.
///
/// # Errors
/// `EEXIST` if it has somebody else's filter, and those of getsockopt(2).
pub fn read(fd: RawFd) -> Result<Option<u32>, Errno> {
    let mut found = program(0);
    // Counts instructions.
    let mut len = INSTRUCTIONS as libc::socklen_t;
    // SAFETY: the kernel writes at most that many instructions, and their number.
    let asked = check(unsafe {
        syscall5(
            libc::SYS_getsockopt,
            int(fd),
            int(libc::SOL_SOCKET),
            int(SO_GET_FILTER),
            found.as_mut_ptr() as usize,
            &raw mut len as usize,
        )
    });
    match asked {
        Ok(_) if len == 0 => Ok(None),
        Ok(_) if len as usize == INSTRUCTIONS => {
            let number = found[1].k;
            let is_ours = program(number)
                .iter()
                .zip(&found)
                .all(|(ours, other)| (ours.code, ours.k) == (other.code, other.k));
            is_ours.then_some(Some(number)).ok_or(Errno(libc::EEXIST))
        }
        // One of more instructions than there was room for, or of fewer.
        Ok(_) | Err(Errno::INVAL) => Err(Errno(libc::EEXIST)),
        Err(errno) => Err(errno),
    }
}

/// Puts a number there, instead of what was there.
///
/// # Errors
/// Those of setsockopt(2): `EPERM` if filters are locked, `ENOMEM`.
pub fn write(fd: RawFd, number: u32) -> Result<(), Errno> {
    let mut program = program(number);
    let named = libc::sock_fprog {
        len: INSTRUCTIONS as u16,
        filter: program.as_mut_ptr(),
    };
    set_option(fd, libc::SOL_SOCKET, libc::SO_ATTACH_FILTER, &named)
}

/// Takes the number away.
///
/// # Errors
/// Those of setsockopt(2): `ENOENT` if there is none.
pub fn remove(fd: RawFd) -> Result<(), Errno> {
    set_option(fd, libc::SOL_SOCKET, libc::SO_DETACH_FILTER, &0_i32)
}

/// Nobody else has one for this socket meanwhile.
#[derive(Debug)]
pub struct NoteLock {
    fd: RawFd,
}

impl NoteLock {
    /// Does not wait.
    ///
    /// # Errors
    /// `EAGAIN` while somebody else has one, and those of fcntl(2).
    pub fn take(fd: RawFd) -> Result<NoteLock, Errno> {
        if LOCKED.swap(true, Ordering::Acquire) {
            return Err(Errno::AGAIN);
        }
        match lock(fd, libc::F_WRLCK) {
            Ok(()) => Ok(NoteLock { fd }),
            Err(errno) => {
                LOCKED.store(false, Ordering::Release);
                Err(match errno {
                    Errno(libc::EACCES) => Errno::AGAIN,
                    errno => errno,
                })
            }
        }
    }
}

impl Drop for NoteLock {
    fn drop(&mut self) {
        // Nothing can fail that the end of the process would not put right.
        let _ = lock(self.fd, libc::F_UNLCK);
        LOCKED.store(false, Ordering::Release);
    }
}

fn lock(fd: RawFd, kind: libc::c_int) -> Result<(), Errno> {
    // SAFETY: `flock` is integers, for which zero is valid: all bytes, from the start.
    let mut lock: libc::flock = unsafe { core::mem::zeroed() };
    lock.l_type = kind as libc::c_short;
    // SAFETY: the kernel reads one `struct flock`.
    let ret = unsafe {
        syscall3(
            libc::SYS_fcntl,
            int(fd),
            int(libc::F_SETLK),
            &raw const lock as usize,
        )
    };
    check(ret).map(drop)
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::net::{TcpListener, TcpStream};
    use std::os::fd::AsRawFd;

    use super::*;

    fn pair() -> (TcpStream, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a listener");
        let one = TcpStream::connect(listener.local_addr().expect("bound")).expect("connects");
        (one, listener.accept().expect("accepts").0)
    }

    #[test]
    fn a_number_stays_with_the_socket_and_lets_everything_pass() {
        let (mut one, mut other) = pair();
        let fd = other.as_raw_fd();
        assert_eq!(read(fd), Ok(None));
        assert_eq!(remove(fd), Err(Errno(libc::ENOENT)));
        for number in [0, 1, u32::MAX] {
            assert_eq!(write(fd, number), Ok(()));
            assert_eq!(read(fd), Ok(Some(number)));
        }
        let copy = other.try_clone().expect("a duplicate");
        assert_eq!(read(copy.as_raw_fd()), Ok(Some(u32::MAX)));
        let sent = vec![7_u8; 100_000];
        let expected = sent.clone();
        let writer = std::thread::spawn(move || one.write_all(&sent));
        let mut got = vec![0; expected.len()];
        other.read_exact(&mut got).expect("all of it");
        assert_eq!(got, expected);
        writer.join().expect("no panic").expect("written");
        assert_eq!(remove(fd), Ok(()));
        assert_eq!(read(fd), Ok(None));
    }

    #[test]
    fn somebody_elses_filter_is_left_alone() {
        let (_one, other) = pair();
        let fd = other.as_raw_fd();
        for instructions in [1_u16, 3, 4] {
            let mut strangers = [libc::sock_filter {
                code: RETURN,
                jt: 0,
                jf: 0,
                k: ALL,
            }; 4];
            let named = libc::sock_fprog {
                len: instructions,
                filter: strangers.as_mut_ptr(),
            };
            set_option(fd, libc::SOL_SOCKET, libc::SO_ATTACH_FILTER, &named).expect("attached");
            assert_eq!(read(fd), Err(Errno(libc::EEXIST)), "{instructions}");
        }
    }

    #[test]
    fn locks_exclude_threads_and_processes_and_end_with_them() {
        let _children = crate::testing::with_children();
        let (_one, other) = pair();
        let fd = other.as_raw_fd();
        let mut pipe = [0; 2];
        // SAFETY: pipe writes two descriptors.
        assert_eq!(unsafe { libc::pipe(pipe.as_mut_ptr()) }, 0);
        let held = NoteLock::take(fd).expect("free");
        assert_eq!(NoteLock::take(fd).err(), Some(Errno::AGAIN), "this process");
        drop(held);
        // SAFETY: the child makes system calls only, and is killed.
        let child = unsafe { libc::fork() };
        if child == 0 {
            let taken = NoteLock::take(fd).is_ok();
            let byte = [u8::from(taken)];
            // SAFETY: writes one byte and waits for the end; `taken`'s lock was dropped, so the
            // lock is taken once more, for good.
            unsafe {
                if taken && lock(fd, libc::F_WRLCK).is_ok() {
                    libc::write(pipe[1], byte.as_ptr().cast(), 1);
                }
                loop {
                    libc::pause();
                }
            }
        }
        let mut byte = [0_u8];
        // SAFETY: reads one byte.
        let got = unsafe { libc::read(pipe[0], byte.as_mut_ptr().cast(), 1) };
        assert_eq!((got, byte[0]), (1, 1), "the child has the lock");
        assert_eq!(
            NoteLock::take(fd).err(),
            Some(Errno::AGAIN),
            "another process"
        );
        // SAFETY: ends and collects the child, closes the pipe.
        unsafe {
            libc::kill(child, libc::SIGKILL);
            libc::waitpid(child, core::ptr::null_mut(), 0);
            libc::close(pipe[0]);
            libc::close(pipe[1]);
        }
        assert!(NoteLock::take(fd).is_ok(), "its lock ended with it");
    }
}
