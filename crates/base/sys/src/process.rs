//! Chance, locks and signals of this process.
#![allow(unsafe_code)]

use std::os::fd::RawFd;

use crate::errno::Errno;
use crate::raw::{check, int, syscall0, syscall3, syscall4};

/// 16 random bytes.
pub fn random() -> Result<[u64; 2], Errno> {
    let mut bytes = [0u64; 2];
    // SAFETY: the kernel writes at most 16 bytes.
    let got = check(unsafe {
        syscall3(
            libc::SYS_getrandom,
            bytes.as_mut_ptr() as usize,
            size_of_val(&bytes),
            0,
        )
    })?;
    if got == 16 {
        Ok(bytes)
    } else {
        Err(Errno::AGAIN)
    }
}

/// Takes an exclusive lock of the open file description on one byte. `EAGAIN`: taken.
pub fn lock_byte(fd: RawFd, offset: u64, locked: bool) -> Result<(), Errno> {
    set_lock(
        fd,
        offset,
        if locked { libc::F_WRLCK } else { libc::F_UNLCK },
    )
}

/// Takes a lock that others may have at the same time. `EAGAIN`: somebody has an exclusive one.
pub fn share_byte(fd: RawFd, offset: u64) -> Result<(), Errno> {
    set_lock(fd, offset, libc::F_RDLCK)
}

fn set_lock(fd: RawFd, offset: u64, kind: libc::c_int) -> Result<(), Errno> {
    // SAFETY: `flock` is integers, for which zero is valid.
    let mut lock: libc::flock = unsafe { core::mem::zeroed() };
    lock.l_type = kind as libc::c_short;
    lock.l_whence = libc::SEEK_SET as libc::c_short;
    lock.l_start = offset as libc::off_t;
    lock.l_len = 1;
    // SAFETY: the kernel reads one `struct flock`.
    let ret = unsafe {
        syscall3(
            libc::SYS_fcntl,
            int(fd),
            int(libc::F_OFD_SETLK),
            &raw const lock as usize,
        )
    };
    check(ret).map(drop)
}

/// Ignores a signal from now on, in this process and in programs that it executes.
pub fn ignore(signal: i32) {
    // SAFETY: no handler of ours is named; the C library takes numbers.
    unsafe { libc::signal(signal, libc::SIG_IGN) };
}

/// Blocks all signals of the calling thread, which is ours and must run no handler of the
/// program's.
pub fn block_signals() {
    // SAFETY: sigset_t is integers; sigfillset initialises it, pthread_sigmask reads it.
    unsafe {
        let mut set: libc::sigset_t = core::mem::zeroed();
        libc::sigfillset(&raw mut set);
        libc::pthread_sigmask(libc::SIG_BLOCK, &raw const set, core::ptr::null_mut());
    }
}

/// `struct sched_attr` of `sched_setattr(2)`, first version.
#[repr(C)]
#[derive(Debug, Default)]
struct SchedulingAttributes {
    size: u32,
    policy: u32,
    flags: u64,
    nice: i32,
    priority: u32,
    runtime_ns: u64,
    deadline_ns: u64,
    period_ns: u64,
}

/// Asks for slices of a processor for the calling thread of `nanoseconds` each (Linux takes from
/// 0.1 to 100 ms), 0: of the usual length. With short ones, when it wakes, it need not wait until a
/// thread with longer ones, a program that spins say, has used its up. It gets no more of the
/// processor than before. Threads of the ordinary policy only, from Linux 6.12 on
/// (`sched_setattr(2)`); elsewhere nothing changes.
pub fn ask_for_slices(nanoseconds: u64) -> Result<(), Errno> {
    let mut attributes = SchedulingAttributes::default();
    let size = size_of::<SchedulingAttributes>();
    let address = &raw mut attributes as usize;
    // SAFETY: the kernel writes at most `size` bytes.
    check(unsafe { syscall4(libc::SYS_sched_getattr, 0, address, size, 0) })?;
    if attributes.policy != libc::SCHED_OTHER as u32 {
        return Ok(());
    }
    attributes.size = size as u32;
    attributes.runtime_ns = nanoseconds;
    let address = &raw const attributes as usize;
    // SAFETY: the kernel reads one structure of that size.
    check(unsafe { syscall3(libc::SYS_sched_setattr, 0, address, 0) }).map(drop)
}

/// Processors that [`change_processor`] knows of.
const PROCESSORS_MAX: usize = 1024;

/// Takes the calling thread to another of the processors that it may run on; where it may run stays
/// as it is. False if there is no other. For a thread that shares its processor with one that polls,
/// while another processor idles: the scheduler leaves it there as long as it sleeps and is woken from
/// there (`sched_setaffinity(2)`). The kernel takes the mask for one that the program wants
/// from then on.
pub fn change_processor() -> Result<bool, Errno> {
    type Mask = [u64; PROCESSORS_MAX / 64];
    let mut allowed: Mask = [0; PROCESSORS_MAX / 64];
    // SAFETY: the kernel writes at most the size of the mask.
    check(unsafe {
        syscall3(
            libc::SYS_sched_getaffinity,
            0,
            size_of::<Mask>(),
            allowed.as_mut_ptr() as usize,
        )
    })?;
    let mut processor = 0_u32;
    // SAFETY: getcpu writes one number; the node is not asked for.
    check(unsafe { syscall3(libc::SYS_getcpu, &raw mut processor as usize, 0, 0) })?;
    let mut others = allowed;
    if let Some(word) = others.get_mut(processor as usize / 64) {
        *word &= !(1 << (processor % 64));
    }
    if others.iter().all(|word| *word == 0) {
        return Ok(false);
    }
    for mask in [others, allowed] {
        // SAFETY: the kernel reads one mask.
        check(unsafe {
            syscall3(
                libc::SYS_sched_setaffinity,
                0,
                size_of::<Mask>(),
                mask.as_ptr() as usize,
            )
        })?;
    }
    Ok(true)
}

/// The real user id.
pub fn uid() -> u32 {
    // SAFETY: getuid takes nothing and cannot fail.
    unsafe { syscall0(libc::SYS_getuid) as u32 }
}

/// Gives the kernel back what the allocator keeps of memory that nobody uses any more (malloc_trim(3)). Other libraries
/// than glibc give it back by themselves, or not at all.
pub fn trim_heap() {
    #[cfg(target_env = "gnu")]
    // SAFETY: it takes a number, and locks for itself.
    unsafe {
        libc::malloc_trim(0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn attributes() -> SchedulingAttributes {
        let mut attributes = SchedulingAttributes::default();
        let size = size_of::<SchedulingAttributes>();
        let address = &raw mut attributes as usize;
        // SAFETY: the kernel writes at most `size` bytes.
        check(unsafe { syscall4(libc::SYS_sched_getattr, 0, address, size, 0) }).unwrap();
        attributes
    }

    #[test]
    fn only_the_slice_of_a_thread_changes() {
        std::thread::spawn(|| {
            let before = attributes();
            // A value that an older kernel does not tell is 0.
            let known = before.runtime_ns != 0;
            ask_for_slices(200_000).unwrap();
            let after = attributes();
            assert_eq!(after.runtime_ns, if known { 200_000 } else { 0 });
            assert_eq!((before.policy, before.nice), (after.policy, after.nice));
        })
        .join()
        .unwrap();
    }

    fn mask_and_processor() -> ([u64; 16], u32) {
        let (mut mask, mut processor) = ([0_u64; 16], 0_u32);
        let address = mask.as_mut_ptr() as usize;
        // SAFETY: the kernel writes at most 128 bytes, and one number.
        unsafe {
            check(syscall3(libc::SYS_sched_getaffinity, 0, 128, address)).unwrap();
            let address = &raw mut processor as usize;
            check(syscall3(libc::SYS_getcpu, address, 0, 0)).unwrap();
        }
        (mask, processor)
    }

    #[test]
    fn a_thread_changes_its_processor_and_not_where_it_may_run() {
        let (mask, _) = mask_and_processor();
        let processors: u32 = mask.iter().map(|word| word.count_ones()).sum();
        assert_eq!(change_processor(), Ok(processors > 1));
        assert_eq!(mask_and_processor().0, mask);
    }

    #[test]
    fn a_thread_that_may_run_on_one_processor_stays() {
        std::thread::spawn(|| {
            let (_, processor) = mask_and_processor();
            let mut one = [0_u64; 16];
            one[processor as usize / 64] = 1 << (processor % 64);
            let address = one.as_ptr() as usize;
            // SAFETY: the kernel reads one mask.
            check(unsafe { syscall3(libc::SYS_sched_setaffinity, 0, 128, address) }).unwrap();
            assert_eq!(change_processor(), Ok(false));
            assert_eq!(mask_and_processor().0, one);
        })
        .join()
        .unwrap();
    }
}
