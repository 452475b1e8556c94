//! A kernel of the test's own: every system call of one thread, whoever makes it, comes here first.
//!
//! The thread is told to the kernel for syscall user dispatch (prctl(2), `PR_SET_SYSCALL_USER_DISPATCH`, Linux
//! 5.11): a call raises SIGSYS in it, and what the handler writes into the registers is the call's answer. So
//! the library under test is the one that ships: it is not told, and nothing in it is replaced.
#![allow(unsafe_code)]

use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Once;

/// What a thread's system calls come to.
pub trait Kernel {
    /// Answers a call. It runs in a signal handler, and may allocate where the caller does not at that
    /// moment: calls of the allocator itself are to be passed on as they are.
    fn call(&mut self, number: i64, args: [usize; 6]) -> Answer;
}

/// What a call comes to.
pub enum Answer {
    /// Its result, or the negative number of an error.
    Is(isize),
    /// It would wait. This happens meanwhile, as if in another thread, and the call is made once more.
    After(Box<dyn FnOnce()>),
}

/// The kernel itself.
pub fn real(number: i64, args: [usize; 6]) -> isize {
    let [a, b, c, d, e, f] = args;
    // SAFETY: the caller's own call, with its own arguments, while it waits for the answer.
    unsafe { sluice_sys::raw::syscall6(number, a, b, c, d, e, f) }
}

const PR_SET_SYSCALL_USER_DISPATCH: i32 = 59;
const OFF: usize = 0;
const ON: usize = 1;
/// Values of the byte that the kernel reads at each call.
const ALLOW: u8 = 0;
const BLOCK: u8 = 1;
/// Where `rt_sigreturn` stands, in bytes.
const RESTORER_BYTES: usize = 16;

thread_local! {
    static SELECTOR: Cell<u8> = const { Cell::new(ALLOW) };
    /// Something in the kernel, or that happened while a call waited, has panicked: nothing unwinds past the handler.
    static HAS_FAILED: Cell<bool> = const { Cell::new(false) };
    static KERNEL: Cell<Option<*mut dyn Kernel>> = const { Cell::new(None) };
}

#[cfg(target_arch = "x86_64")]
core::arch::global_asm!(
    ".pushsection .text.sluice_test_restorer, \"ax\"",
    ".global sluice_test_restorer",
    "sluice_test_restorer:",
    "mov eax, 15",
    "syscall",
    "nop",
    ".balign 16",
    ".popsection",
);

#[cfg(target_arch = "x86_64")]
unsafe extern "C" {
    fn sluice_test_restorer();
}

/// `struct sigaction` of the kernel (`include/linux/signal_types.h`).
#[repr(C)]
struct Action {
    handler: usize,
    flags: u64,
    restorer: usize,
    mask: u64,
}

#[cfg(target_arch = "x86_64")]
fn install() {
    const SA_RESTORER: u64 = 0x0400_0000;
    let action = Action {
        handler: trapped as *const () as usize,
        // What happens while a call waits makes calls as well.
        flags: (libc::SA_SIGINFO | libc::SA_NODEFER) as u64 | SA_RESTORER,
        restorer: sluice_test_restorer as *const () as usize,
        mask: 0,
    };
    let args = [
        libc::SIGSYS as usize,
        &raw const action as usize,
        0,
        size_of::<u64>(),
        0,
        0,
    ];
    assert_eq!(real(libc::SYS_rt_sigaction, args), 0, "SIGSYS");
}

#[cfg(target_arch = "x86_64")]
extern "C" fn trapped(_: i32, _: *mut libc::siginfo_t, context: *mut libc::ucontext_t) {
    SELECTOR.set(ALLOW);
    let errno = crate::real::errno();
    // SAFETY: the kernel hands the interrupted registers over in this frame, and writes them back from it.
    let registers = unsafe { &mut (*context).uc_mcontext.gregs };
    let number = registers[libc::REG_RAX as usize];
    let args = [
        libc::REG_RDI,
        libc::REG_RSI,
        libc::REG_RDX,
        libc::REG_R10,
        libc::REG_R8,
        libc::REG_R9,
    ]
    .map(|register| registers[register as usize] as usize);
    let answer = loop {
        match ask(number, args) {
            Answer::Is(answer) => break answer,
            Answer::After(meanwhile) => {
                SELECTOR.set(BLOCK);
                let has_failed = catch_unwind(AssertUnwindSafe(meanwhile)).is_err();
                SELECTOR.set(ALLOW);
                if has_failed {
                    HAS_FAILED.set(true);
                    break -libc::EIO as isize;
                }
            }
        }
    };
    registers[libc::REG_RAX as usize] = answer as i64;
    crate::real::set_errno(errno);
    SELECTOR.set(BLOCK);
}

#[cfg(target_arch = "x86_64")]
fn ask(number: i64, args: [usize; 6]) -> Answer {
    let refused = || Answer::Is(-libc::ENOSYS as isize);
    KERNEL.get().map_or_else(refused, |kernel| {
        // SAFETY: `with` keeps the kernel borrowed for as long as the pointer is here, and no call of
        // this thread comes here while the selector allows them all.
        let kernel = unsafe { &mut *kernel };
        catch_unwind(AssertUnwindSafe(|| kernel.call(number, args))).unwrap_or_else(|_| {
            HAS_FAILED.set(true);
            refused()
        })
    })
}

/// Switches the trap off when the body ends, also by a panic.
struct Trapped;

impl Drop for Trapped {
    fn drop(&mut self) {
        SELECTOR.set(ALLOW);
        dispatch(OFF, 0, 0, 0);
        KERNEL.set(None);
    }
}

fn dispatch(mode: usize, from: usize, bytes: usize, selector: usize) -> isize {
    let option = PR_SET_SYSCALL_USER_DISPATCH as usize;
    real(libc::SYS_prctl, [option, mode, from, bytes, selector, 0])
}

fn skip(why: &str) {
    let thread = std::thread::current();
    println!("SKIP {}: {why}", thread.name().unwrap_or("preload-core"));
}

/// Runs `body` in this thread with `kernel` for its system calls. `None` where the machine has no such dispatch,
/// which is said.
#[cfg(target_arch = "x86_64")]
pub fn with<K: Kernel + 'static, T>(kernel: &mut K, body: impl FnOnce() -> T) -> Option<T> {
    static INSTALLED: Once = Once::new();
    INSTALLED.call_once(install);
    let restorer = sluice_test_restorer as *const () as usize;
    let selector = SELECTOR.with(Cell::as_ptr) as usize;
    let refused = dispatch(ON, restorer, RESTORER_BYTES, selector);
    if refused != 0 {
        skip("the kernel has no syscall user dispatch");
        return None;
    }
    let trapped = Trapped;
    KERNEL.set(Some(kernel as *mut K as *mut dyn Kernel));
    SELECTOR.set(BLOCK);
    let result = body();
    drop(trapped);
    assert!(
        !HAS_FAILED.take(),
        "a panic within a system call, see above"
    );
    Some(result)
}

/// Runs `body` in this thread with `kernel` for its system calls.
#[cfg(not(target_arch = "x86_64"))]
pub fn with<K: Kernel + 'static, T>(_: &mut K, _: impl FnOnce() -> T) -> Option<T> {
    skip("syscall user dispatch is tried on x86-64 only");
    None
}
