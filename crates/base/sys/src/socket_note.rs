//! A number that lies with a socket, for all who hold it, whatever they share besides.
//!
//! It is carried by `TCP_NOTSENT_LOWAT` (tcp(7)): how many bytes may wait to be sent for the first time before the
//! socket counts as full. Its upper values, which are ours, mean no limit: no socket has so many. Any user may set it;
//! a socket filter, which could carry a number as well, not on every kernel. Who changes the number has a record lock of
//! the socket meanwhile (fcntl(2), `F_SETLK`), which the kernel takes back from a process that dies.
#![allow(unsafe_code)]

use core::sync::atomic::{AtomicBool, Ordering};
use std::os::fd::RawFd;

use crate::errno::Errno;
use crate::raw::{check, int, syscall3};
use crate::unix::{get_option, set_option};

/// By which our values are known. `u32::MAX`, which programs write for "no limit", is none of them.
const OURS: u32 = 0xe000_0000;
/// The highest number that can be noted.
pub const NUMBER_MAX: u32 = !OURS - 1;
/// What the socket has without a note: the limit of its network namespace.
const NOTHING: u32 = 0;

/// A thread of this process has a [`ThreadLock`].
static TAKEN: AtomicBool = AtomicBool::new(false);

/// The number that lies with the socket; `None` if there is none.
///
/// # Errors
/// `EEXIST` if the program has set its own limit, and those of getsockopt(2).
pub fn read(fd: RawFd) -> Result<Option<u32>, Errno> {
    let mut value = [0; 4];
    get_option(fd, libc::IPPROTO_TCP, libc::TCP_NOTSENT_LOWAT, &mut value)?;
    match u32::from_ne_bytes(value) {
        NOTHING => Ok(None),
        value if value & OURS == OURS && value != u32::MAX => Ok(Some(value & !OURS)),
        _ => Err(Errno(libc::EEXIST)),
    }
}

/// Puts a number there, instead of what was there.
///
/// # Errors
/// Those of setsockopt(2); `EINVAL` above [`NUMBER_MAX`].
pub fn write(fd: RawFd, number: u32) -> Result<(), Errno> {
    if number > NUMBER_MAX {
        return Err(Errno::INVAL);
    }
    set(fd, OURS | number)
}

/// Takes the number away.
///
/// # Errors
/// Those of setsockopt(2).
pub fn remove(fd: RawFd) -> Result<(), Errno> {
    set(fd, NOTHING)
}

fn set(fd: RawFd, value: u32) -> Result<(), Errno> {
    set_option(fd, libc::IPPROTO_TCP, libc::TCP_NOTSENT_LOWAT, &value)
}

/// One thread of this process has it at a time. The kernel does not tell threads apart: each of them may lock what
/// another has locked, and takes all locks of a file from the process by closing any descriptor of it (fcntl(2)). So who
/// closes one that others may have locked has this meanwhile.
#[derive(Debug)]
pub struct ThreadLock(());

impl ThreadLock {
    /// Does not wait; `None` while another thread has it.
    pub fn take() -> Option<ThreadLock> {
        (!TAKEN.swap(true, Ordering::Acquire)).then(|| ThreadLock(()))
    }

    /// In the child after a fork: the thread that had it is the parent's.
    pub fn forget_holder() {
        TAKEN.store(false, Ordering::Relaxed);
    }
}

impl Drop for ThreadLock {
    fn drop(&mut self) {
        TAKEN.store(false, Ordering::Release);
    }
}

/// Nobody else has one for this socket meanwhile.
#[derive(Debug)]
pub struct NoteLock {
    fd: RawFd,
    /// Ends after the lock.
    _thread: ThreadLock,
}

impl NoteLock {
    /// Does not wait.
    ///
    /// # Errors
    /// `EAGAIN` while somebody else has one, and those of fcntl(2).
    pub fn take(fd: RawFd) -> Result<NoteLock, Errno> {
        let thread = ThreadLock::take().ok_or(Errno::AGAIN)?;
        match lock(fd, libc::F_WRLCK) {
            Ok(()) => Ok(NoteLock {
                fd,
                _thread: thread,
            }),
            Err(Errno(libc::EACCES)) => Err(Errno::AGAIN),
            Err(errno) => Err(errno),
        }
    }
}

impl Drop for NoteLock {
    fn drop(&mut self) {
        // Nothing can fail that the end of the process would not put right.
        let _ = lock(self.fd, libc::F_UNLCK);
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
        for number in [0, 1, NUMBER_MAX] {
            assert_eq!(write(fd, number), Ok(()));
            assert_eq!(read(fd), Ok(Some(number)));
        }
        let copy = other.try_clone().expect("a duplicate");
        assert_eq!(read(copy.as_raw_fd()), Ok(Some(NUMBER_MAX)));
        assert_eq!(write(fd, NUMBER_MAX + 1), Err(Errno::INVAL));
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
    fn a_limit_of_the_programs_own_is_told_from_a_note() {
        let (_one, other) = pair();
        let fd = other.as_raw_fd();
        for limit in [1, 16_384, 1 << 30, u32::MAX] {
            set(fd, limit).expect("set");
            assert_eq!(read(fd), Err(Errno(libc::EEXIST)), "{limit}");
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
