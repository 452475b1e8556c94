//! The program's threads: each is one of the C library's, which has Go's stack while Go runs and its own while the
//! library does.

use core::arch::naked_asm;
use core::ffi::{c_int, c_void};
use core::ptr;
use core::sync::atomic::{AtomicU64, Ordering};

// `sluice_static_thread` of thread.s, in each thread:
//   0   the stack pointer for calls of the library, a multiple of 16; 0 while one is in progress, and then a signal
//       handler's calls go to the kernel
//   8   where the stack pointer was when Go's code was entered, to return to when the thread ends
//   56  Go's g

/// Bytes of a thread's own stack. The library's deepest call takes a small part of it; pages that are not touched are
/// no memory.
const STACK_BYTES: usize = 512 * 1024;

/// Where `runtime.clone` begins a thread's life.
static CHILD: AtomicU64 = AtomicU64::new(0);

pub fn set_up(clone_child: u64) {
    CHILD.store(clone_child, Ordering::Relaxed);
}

/// Whether the last word of the block is the one below the thread pointer, where Go's code will write.
pub fn is_below_thread_pointer() -> bool {
    offset() == -64
}

#[unsafe(naked)]
extern "C" fn offset() -> i64 {
    naked_asm!("mov rax, offset sluice_static_thread@tpoff", "ret")
}

/// Jumps to a program's first instruction on its stack. What lies above this call's frame is the first thread's stack
/// for the library's calls.
///
/// # Safety
/// `stack` and `entry` are a program's.
#[unsafe(naked)]
pub unsafe extern "C" fn start(stack: u64, entry: u64) -> ! {
    naked_asm!(
        "sub rsp, 8",
        "mov qword ptr fs:[sluice_static_thread@tpoff], rsp",
        "mov qword ptr fs:[sluice_static_thread@tpoff + 8], rsp",
        "mov rsp, rdi",
        "xor edx, edx",
        "xor ebp, ebp",
        "jmp rsi",
    )
}

/// What `runtime.clone` gives a thread.
#[repr(C)]
#[derive(Clone, Copy)]
struct Birth {
    stack: u64,
    m: u64,
    g: u64,
    function: u64,
}

/// Stands in for `runtime.clone` from the number of its call on: the new thread's stack is in rsi, its m in r13, its g
/// in r9, what it calls in r12. Go blocks all signals around it, so that the new thread has them blocked, too.
#[unsafe(naked)]
pub extern "C" fn clone() {
    naked_asm!(
        "mov r15, qword ptr fs:[sluice_static_thread@tpoff]",
        "mov eax, {again}",
        "test r15, r15",
        "jz 2f",
        "mov qword ptr fs:[sluice_static_thread@tpoff], 0",
        "mov rbx, rsp",
        "mov rsp, r15",
        "mov rdi, rsi",
        "mov rsi, r13",
        "mov rdx, r9",
        "mov rcx, r12",
        "call {create}",
        "mov rsp, rbx",
        "mov qword ptr fs:[sluice_static_thread@tpoff], r15",
        "2:",
        // Its result; Go's caller takes a negative one for an error.
        "mov dword ptr [rsp + 0x30], eax",
        "ret",
        again = const -libc::EAGAIN,
        create = sym create,
    )
}

/// Makes a thread. Returns 1, or a negative error of pthread_create(3).
extern "C" fn create(stack: u64, m: u64, g: u64, function: u64) -> c_int {
    let birth = Box::into_raw(Box::new(Birth {
        stack,
        m,
        g,
        function,
    }));
    // SAFETY: the attributes are initialised before they are used, and destroyed; the thread takes the box over.
    let failed = unsafe {
        let mut attributes: libc::pthread_attr_t = core::mem::zeroed();
        let mut thread: libc::pthread_t = 0;
        libc::pthread_attr_init(&raw mut attributes);
        libc::pthread_attr_setstacksize(&raw mut attributes, STACK_BYTES);
        libc::pthread_attr_setdetachstate(&raw mut attributes, libc::PTHREAD_CREATE_DETACHED);
        let failed =
            libc::pthread_create(&raw mut thread, &raw const attributes, live, birth.cast());
        libc::pthread_attr_destroy(&raw mut attributes);
        failed
    };
    if failed != 0 {
        // SAFETY: no thread was made that would take it.
        drop(unsafe { Box::from_raw(birth) });
        return -failed;
    }
    1
}

extern "C" fn live(birth: *mut c_void) -> *mut c_void {
    // SAFETY: `create` has made it for this thread.
    let birth = *unsafe { Box::from_raw(birth.cast::<Birth>()) };
    // SAFETY: the addresses are Go's, for this thread, and the child's first instruction expects them.
    unsafe { enter(&raw const birth, CHILD.load(Ordering::Relaxed)) };
    ptr::null_mut()
}

/// Goes to the child's half of `runtime.clone`. Returns when [`exit_thread`] is called.
#[unsafe(naked)]
unsafe extern "C" fn enter(birth: *const Birth, child: u64) {
    naked_asm!(
        "push rbp",
        "push rbx",
        "push r12",
        "push r13",
        "push r14",
        "push r15",
        "sub rsp, 8",
        "mov qword ptr fs:[sluice_static_thread@tpoff], rsp",
        "mov qword ptr fs:[sluice_static_thread@tpoff + 8], rsp",
        "mov rax, rsi",
        "mov rsi, qword ptr [rdi]",
        "mov r13, qword ptr [rdi + 8]",
        "mov r9, qword ptr [rdi + 16]",
        "mov r12, qword ptr [rdi + 24]",
        "xor ebp, ebp",
        "jmp rax",
    )
}

/// Stands in for `runtime.exitThread`: leaves Go's stack before it says so, and returns from [`enter`], so that the
/// thread ends as the C library's threads do. Go has all signals blocked.
#[unsafe(naked)]
pub extern "C" fn exit_thread() {
    naked_asm!(
        "mov rax, qword ptr [rsp + 8]",
        "mov rsp, qword ptr fs:[sluice_static_thread@tpoff + 8]",
        "mov qword ptr fs:[sluice_static_thread@tpoff], 0",
        "mov dword ptr [rax], 0",
        "add rsp, 8",
        "pop r15",
        "pop r14",
        "pop r13",
        "pop r12",
        "pop rbx",
        "pop rbp",
        "ret",
    )
}
