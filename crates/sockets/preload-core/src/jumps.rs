//! `siglongjmp` out of a signal handler that interrupted a call of this library: a timeout made of `setitimer` and
//! a jump, as old programs have it. The kernel's calls are whole for a signal handler; ours hold locks for some hundred
//! nanoseconds, and whoever left them held would leave a connection that nobody can use.
//!
//! So the jump waits. The handler is ended as if it had returned, the interrupted call goes on, and the thread jumps when
//! it lets go of the last lock ([`sluice_lane::held`]). A handler of a fault (`SIGSEGV`, `SIGBUS`) in the middle of a copy
//! from or to the program's memory cannot be ended so, since the copy would fault again: what the thread
//! holds is a dead thread's from then on.

#![allow(unsafe_code)]

use core::ffi::{c_int, c_void};
use sluice_lane::held::{self, Jump};
use sluice_lane::thread::own;
use sluice_sys::raw;

/// A holder's stack pointer is at most so far above where it was when the lock was taken, by a function that returned
/// the lock, and at most so far below. Above is less than a frame of the kernel's, so that a handler is
/// not mistaken for what it interrupted.
const ABOVE: usize = 1024;
const BELOW: usize = 256 * 1024;
/// Bytes of a handler's stack that are looked through.
const STACK_MAX: usize = 1 << 20;
/// Words that are looked at together. The stack may be small.
const PIECE: usize = 64;

/// Where the stack pointer is in a `jmp_buf` of the GNU C library, in words; it is mangled (`PTR_MANGLE`).
const JUMP_STACK: usize = 6;

/// What the kernel puts on the stack below a handler: `struct rt_sigframe` of arch/x86/include/asm/sigframe.h, as
/// far as it is looked at.
#[repr(C)]
#[derive(Clone, Copy)]
struct Frame {
    restorer: usize,
    flags: u64,
    link: usize,
    stack: [usize; 3],
    /// In the order of `struct sigcontext`.
    registers: [usize; 23],
    floats: usize,
    reserved: [u64; 8],
    mask: u64,
    signal: i32,
    errno: i32,
    code: i32,
}

const STACK_POINTER: usize = 15;
const SEGMENTS: usize = 18;
/// The segment of code in user space, in 64-bit mode.
const USER_CODE: usize = 0x33;
/// The flags that a frame may have (arch/x86/include/uapi/asm/ucontext.h).
const FLAGS: u64 = 7;

impl Frame {
    /// Whether these bytes, found at `at`, can be a frame.
    fn is_one(&self, at: usize) -> bool {
        self.flags & !FLAGS == 0
            && self.link == 0
            && self.registers[SEGMENTS] & 0xffff == USER_CODE
            && self.floats > at
            && self.floats - at < STACK_MAX
    }

    /// What was interrupted holds the locks, as far as its stack tells.
    fn is_holders(&self, held_at: usize) -> bool {
        let stack = self.registers[STACK_POINTER];
        stack <= held_at + ABOVE && stack + BELOW >= held_at
    }

    /// The interrupted code did what cannot be done, and would do it again.
    fn is_fault(&self) -> bool {
        let by_processor = [
            libc::SIGSEGV,
            libc::SIGBUS,
            libc::SIGFPE,
            libc::SIGILL,
            libc::SIGTRAP,
        ];
        by_processor.contains(&self.signal) && self.code > 0
    }
}

/// Before a jump of the program's, by `real`. Returns if it is to be made now.
///
/// # Safety
/// `target` is a buffer that `setjmp` has filled, and `stack` the caller's.
#[inline]
pub unsafe fn before(target: *const usize, value: c_int, stack: usize, real: usize) {
    // SAFETY: the caller's promise.
    unsafe {
        if held::is_any_held() {
            postpone(target, value, stack, real);
        } else if held::jumps() {
            replace(target, stack);
        }
    }
}

/// A handler came between the last lock and the jump that has waited for it. Its own jump counts, if it leaves the
/// interrupted call.
#[cold]
unsafe fn replace(target: *const usize, stack: usize) {
    // SAFETY: the caller's promise.
    let jumps_to = unsafe { unmangled(*target.add(JUMP_STACK)) };
    let own_stack = alternate();
    let leaves = if own_stack.contains(&stack) {
        !own_stack.contains(&jumps_to)
    } else {
        jumps_to > own(|own| own.held_at.get())
    };
    if leaves {
        held::forget();
    }
}

#[cold]
unsafe fn postpone(target: *const usize, value: c_int, stack: usize, real: usize) {
    let held_at = own(|own| own.held_at.get());
    let Some((at, frame)) = outermost(stack, held_at) else {
        return;
    };
    // SAFETY: the caller's promise.
    let jumps_to = unsafe { unmangled(*target.add(JUMP_STACK)) };
    if !leaves(at, &frame, jumps_to) {
        return;
    }
    if frame.is_fault() {
        sluice_lane::lock::abandon();
        held::forget();
        return;
    }
    let mut blocked = 0_u64;
    // SAFETY: the call writes a mask of that size.
    unsafe {
        let (mask, bytes) = (&raw mut blocked as usize, size_of_val(&blocked));
        raw::syscall4(libc::SYS_rt_sigprocmask, 0, 0, mask, bytes);
    }
    held::postpone(Jump {
        function: real,
        target: target as usize,
        value,
        blocked,
    });
    // SAFETY: the frame of the handler that the program leaves anyway; the kernel takes it from where a handler's return
    // would leave the stack pointer.
    unsafe {
        core::arch::asm!(
            "mov rsp, {frame}",
            "mov eax, {call}",
            "syscall",
            "ud2",
            frame = in(reg) at + size_of::<usize>(),
            call = const libc::SYS_rt_sigreturn,
            options(noreturn),
        );
    }
}

/// Whether a jump to this stack pointer leaves the handler whose frame is at `at`, and with it what was interrupted.
fn leaves(at: usize, frame: &Frame, jumps_to: usize) -> bool {
    let interrupted = frame.registers[STACK_POINTER];
    if at < interrupted && interrupted - at < STACK_MAX {
        // Stacks grow down; the frames of those whom the handler calls are below it.
        jumps_to > at
    } else {
        // It has a stack of its own.
        !alternate().contains(&jumps_to)
    }
}

/// `PTR_DEMANGLE` of sysdeps/unix/sysv/linux/x86_64.
fn unmangled(word: usize) -> usize {
    let guard: usize;
    // SAFETY: reads the word of the thread's own block that the C library keeps for this.
    unsafe {
        core::arch::asm!("mov {}, fs:[0x30]", out(reg) guard, options(nostack, readonly, preserves_flags));
    }
    word.rotate_right(0x11) ^ guard
}

/// The alternate stack that this handler runs on, if it does.
fn alternate() -> core::ops::Range<usize> {
    let mut stack = libc::stack_t {
        ss_sp: core::ptr::null_mut(),
        ss_flags: 0,
        ss_size: 0,
    };
    // SAFETY: the call writes one such struct.
    unsafe { raw::syscall2(libc::SYS_sigaltstack, 0, &raw mut stack as usize) };
    let start = stack.ss_sp as usize;
    if stack.ss_flags & libc::SS_ONSTACK == 0 {
        return 0..0;
    }
    start..start + stack.ss_size
}

/// The frame of the handler that interrupted who holds the locks: handlers interrupt handlers.
fn outermost(stack: usize, held_at: usize) -> Option<(usize, Frame)> {
    let own_stack = alternate();
    let limit = held_at.checked_add(ABOVE)?;
    if !own_stack.contains(&stack) {
        return last_frame(stack, limit, held_at);
    }
    let (at, frame) = last_frame(stack, own_stack.end, held_at)?;
    // What it interrupted may itself be a handler, on the holder's stack.
    let interrupted = frame.registers[STACK_POINTER];
    last_frame(interrupted, limit, held_at).or(Some((at, frame)))
}

/// The highest frame between two addresses of those that interrupted who holds the locks.
fn last_frame(from: usize, to: usize, held_at: usize) -> Option<(usize, Frame)> {
    let restorers = Restorers::ask();
    let to = to.min(from.checked_add(STACK_MAX)?);
    let mut found = None;
    let mut at = from & !(size_of::<usize>() - 1);
    while at < to {
        let mut words = [0_usize; PIECE];
        let bytes = (to - at).min(size_of_val(&words));
        let read = copy(at, words.as_mut_ptr() as usize, bytes);
        for (index, word) in words[..read / size_of::<usize>()].iter().enumerate() {
            let place = at + index * size_of::<usize>();
            if restorers.contain(*word)
                && let Some(frame) = read_frame(place)
                && frame.is_one(place)
                && frame.is_holders(held_at)
            {
                found = Some((place, frame));
            }
        }
        if read < bytes {
            break;
        }
        at += read;
    }
    found
}

fn read_frame(at: usize) -> Option<Frame> {
    let mut frame = core::mem::MaybeUninit::<Frame>::uninit();
    let read = copy(at, frame.as_mut_ptr() as usize, size_of::<Frame>());
    // SAFETY: the kernel has written all of it, and any bytes are such numbers.
    (read == size_of::<Frame>()).then(|| unsafe { frame.assume_init() })
}

/// Copies memory of this process of which it is not known whether it is mapped. How many bytes that were.
fn copy(from: usize, to: usize, bytes: usize) -> usize {
    let part = |address: usize| libc::iovec {
        iov_base: address as *mut c_void,
        iov_len: bytes,
    };
    let (to, from) = (part(to), part(from));
    // SAFETY: the kernel writes at most so many bytes to memory of the caller's.
    let read = unsafe {
        let own = raw::syscall0(libc::SYS_getpid) as usize;
        let (to, from) = (&raw const to as usize, &raw const from as usize);
        raw::syscall6(libc::SYS_process_vm_readv, own, to, 1, from, 1, 0)
    };
    usize::try_from(read).unwrap_or(0)
}

/// Where handlers return to: one function for each library that installs handlers by itself.
struct Restorers([usize; 4]);

impl Restorers {
    fn ask() -> Self {
        /// `struct kernel_sigaction`.
        #[repr(C)]
        #[derive(Default)]
        struct Action {
            handler: usize,
            flags: u64,
            restorer: usize,
            mask: u64,
        }
        let mut known = Self([0; 4]);
        for signal in 1..=64_usize {
            let mut action = Action::default();
            // SAFETY: the kernel writes one such struct.
            unsafe {
                let (to, bytes) = (&raw mut action as usize, size_of_val(&action.mask));
                raw::syscall4(libc::SYS_rt_sigaction, signal, 0, to, bytes);
            }
            if action.restorer != 0
                && !known.contain(action.restorer)
                && let Some(place) = known.0.iter_mut().find(|place| **place == 0)
            {
                *place = action.restorer;
            }
        }
        known
    }

    fn contain(&self, address: usize) -> bool {
        address != 0 && self.0.contains(&address)
    }
}
