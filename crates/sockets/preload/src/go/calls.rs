//! Stands in for the places where Go's runtime enters the kernel.
//!
//! A goroutine's stack has room for little more than the runtime's own functions, so that the library runs on one that is
//! made for each thread when it makes the first call that the library takes. `sluice_go_thread`, in each thread:
//!
//! - 0: where that stack begins, above it; 0 while the library runs on it, and where there is none yet
//! - 8: where its memory begins; 0 where there is none, 1 while it is being made
//!
//! Go's signal handlers run on stacks of their own, in the midst of a call of the library's, too: what they ask for goes to the
//! kernel. They look for the running goroutine below the thread pointer, which nobody changes.

use core::arch::{global_asm, naked_asm};
use core::ffi::{c_int, c_long, c_void};
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use sluice_go::{NUMBERS, Runtime, Taken};
use sluice_preload_core::this_process::before_vfork;

use crate::hooks::syscall::syscall;

/// Bytes of a thread's stack for the library's calls. Pages that are not touched are no memory.
const STACK_BYTES: usize = 512 * 1024;
/// At its end, for what would run over.
const GUARD_BYTES: usize = 4096;

static IS_TAKEN: Taken = sluice_go::taken(&[]);
/// Gives a thread's stack back.
static KEY: AtomicU32 = AtomicU32::new(0);
/// Where `syscall.rawVforkSyscall` goes on.
static VFORK_REST: AtomicU64 = AtomicU64::new(0);

global_asm!(
    ".pushsection .tbss.sluice_go_thread,\"awT\",@nobits",
    ".balign 16",
    ".globl sluice_go_thread",
    ".hidden sluice_go_thread",
    ".type sluice_go_thread, @object",
    ".size sluice_go_thread, 16",
    "sluice_go_thread:",
    ".zero 16",
    ".popsection",
);

/// Where the runtime is to jump to.
pub struct Stubs {
    pub syscall6: u64,
    pub exit: u64,
    pub vfork: u64,
}

/// What the stubs need.
pub fn prepare(runtime: &Runtime) -> Option<Stubs> {
    let mut key = 0;
    // SAFETY: pthread_key_create writes one key if it returns 0.
    if unsafe { libc::pthread_key_create(&raw mut key, Some(give_back)) } != 0 {
        return None;
    }
    KEY.store(key, Ordering::Relaxed);
    VFORK_REST.store(runtime.vfork_rest(), Ordering::Relaxed);
    Some(Stubs {
        syscall6: syscall6 as *const () as u64,
        exit: exit as *const () as u64,
        vfork: vfork as *const () as u64,
    })
}

/// Stands in for `internal/runtime/syscall.Syscall6`: the number in rax, arguments in rbx, rcx, rdi, rsi, r8 and r9, as
/// Go's ABIInternal has them; results in rax, rbx and the error in rcx. It keeps r14, the running goroutine, and leaves
/// xmm15 zero. Everything else is the caller's to save.
#[unsafe(naked)]
extern "C" fn syscall6() {
    naked_asm!(
        "cmp rax, {numbers}",
        "jae 3f",
        "lea r10, [rip + {is_taken}]",
        "cmp byte ptr [r10 + rax], 0",
        "je 3f",
        "mov r11, qword ptr [rip + sluice_go_thread@GOTTPOFF]",
        "mov r12, qword ptr fs:[r11]",
        "test r12, r12",
        "jz 6f",
        "2:",
        "mov qword ptr fs:[r11], 0",
        "mov r13, rsp",
        "lea rsp, [r12 - 16]",
        sluice_go::c_arguments!(),
        "call {taken}",
        "mov rsp, r13",
        "mov r11, qword ptr [rip + sluice_go_thread@GOTTPOFF]",
        "mov qword ptr fs:[r11], r12",
        "xorps xmm15, xmm15",
        "xor edx, edx",
        "jmp 4f",
        sluice_go::kernel_or_result!(),
        // No stack. Where there is one it is in use: a call within a call.
        "6:",
        "cmp qword ptr fs:[r11 + 8], 0",
        "jne 3b",
        "lea r10, [rip + 7f]",
        "jmp {make}",
        "7:",
        "test r12, r12",
        "jnz 2b",
        // What is on a lane may not go to the kernel.
        "xorps xmm15, xmm15",
        "mov rax, {no_memory}",
        "jmp 5b",
        numbers = const NUMBERS,
        is_taken = sym IS_TAKEN,
        taken = sym taken,
        make = sym make_stack,
        no_memory = const -libc::ENOMEM,
    )
}

/// Makes the thread's stack, without one: r10 is where to go on, r11 where `sluice_go_thread` is below the thread pointer. It keeps
/// the other registers, but for rdx, r13 and those of vectors; r12 is the stack, or 0.
#[unsafe(naked)]
extern "C" fn make_stack() {
    naked_asm!(
        "movq xmm0, rax",
        "movq xmm1, rcx",
        "movq xmm2, rdi",
        "movq xmm3, rsi",
        "movq xmm4, r8",
        "movq xmm5, r9",
        "movq xmm6, r10",
        "mov qword ptr fs:[r11 + 8], 1",
        "mov eax, {mmap}",
        "xor edi, edi",
        "mov esi, {bytes}",
        "mov edx, {rights}",
        "mov r10d, {flags}",
        "mov r8, -1",
        "xor r9d, r9d",
        "syscall",
        "mov r11, qword ptr [rip + sluice_go_thread@GOTTPOFF]",
        "cmp rax, -4095",
        "jae 2f",
        "mov qword ptr fs:[r11 + 8], rax",
        "lea r12, [rax + {bytes}]",
        "mov r13, rsp",
        "lea rsp, [r12 - 64]",
        "movq qword ptr [rsp], xmm0",
        "movq qword ptr [rsp + 8], xmm1",
        "movq qword ptr [rsp + 16], xmm2",
        "movq qword ptr [rsp + 24], xmm3",
        "movq qword ptr [rsp + 32], xmm4",
        "movq qword ptr [rsp + 40], xmm5",
        "movq qword ptr [rsp + 48], xmm6",
        "mov rdi, rax",
        "call {register}",
        "mov rax, qword ptr [rsp]",
        "mov rcx, qword ptr [rsp + 8]",
        "mov rdi, qword ptr [rsp + 16]",
        "mov rsi, qword ptr [rsp + 24]",
        "mov r8, qword ptr [rsp + 32]",
        "mov r9, qword ptr [rsp + 40]",
        "mov r10, qword ptr [rsp + 48]",
        "mov rsp, r13",
        "mov r11, qword ptr [rip + sluice_go_thread@GOTTPOFF]",
        "jmp r10",
        "2:",
        "mov qword ptr fs:[r11 + 8], 0",
        "xor r12d, r12d",
        "movq r10, xmm6",
        "jmp r10",
        mmap = const libc::SYS_mmap,
        bytes = const STACK_BYTES,
        rights = const libc::PROT_READ | libc::PROT_WRITE,
        flags = const libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE,
        register = sym register,
    )
}

/// On the new stack: it ends with a page that nobody touches, and with its thread.
extern "C" fn register(stack: *mut c_void) {
    // SAFETY: the page is the stack's lowest, and the key was made for it.
    unsafe {
        libc::mprotect(stack, GUARD_BYTES, libc::PROT_NONE);
        libc::pthread_setspecific(KEY.load(Ordering::Relaxed), stack);
    }
}

/// The thread ends, on a stack of its own. What other destructors still ask of the library is on one that is made anew.
unsafe extern "C" fn give_back(stack: *mut c_void) {
    forget();
    // SAFETY: mapped for this thread, which does not know it any more.
    unsafe { libc::munmap(stack, STACK_BYTES) };
}

/// The thread has no stack for the library.
#[unsafe(naked)]
extern "C" fn forget() {
    naked_asm!(
        "mov r11, qword ptr [rip + sluice_go_thread@GOTTPOFF]",
        "mov qword ptr fs:[r11], 0",
        "mov qword ptr fs:[r11 + 8], 0",
        "ret",
    )
}

/// A call that the library takes. Returns what the kernel would: a result, or a negative error.
extern "C" fn taken(
    number: c_long,
    a: usize,
    b: usize,
    c: usize,
    d: usize,
    e: usize,
    f: usize,
) -> c_long {
    // SAFETY: the program's own arguments for the call of this number.
    match unsafe { syscall(number, a, b, c, d, e, f) } {
        -1 => -c_long::from(sluice_preload_core::real::errno()),
        result => result,
    }
}

/// Goes on at label 3 with the thread's stack, which is made if there is none, in r12; at 4 in a call within a call, and at 5
/// where there is no memory for one. r11 is where `sluice_go_thread` is below the thread pointer.
macro_rules! with_stack {
    () => {
        concat!(
            "mov r11, qword ptr [rip + sluice_go_thread@GOTTPOFF]\n",
            "mov r12, qword ptr fs:[r11]\n",
            "test r12, r12\n",
            "jnz 3f\n",
            "cmp qword ptr fs:[r11 + 8], 0\n",
            "jne 4f\n",
            "lea r10, [rip + 2f]\n",
            "jmp {make}\n",
            "2:\n",
            "test r12, r12\n",
            "jz 5f\n",
            "3:\n",
        )
    };
}

/// Stands in for `syscall.rawVforkSyscall` up to and with its system call, and notes before that a child will run in this
/// process's memory: hooks change no table there.
///
/// The child has this thread's storage, and executes its program within a call that is taken: the word for the stack is
/// what it was when the parent goes on.
#[unsafe(naked)]
extern "C" fn vfork() {
    naked_asm!(
        with_stack!(),
        "mov qword ptr fs:[r11], 0",
        "mov r13, r12",
        "mov rbx, rsp",
        "mov rsp, r13",
        "call {before}",
        "mov rsp, rbx",
        "mov r11, qword ptr [rip + sluice_go_thread@GOTTPOFF]",
        "mov qword ptr fs:[r11], r13",
        "mov r12, r13",
        "4:",
        "mov r13, r12",
        sluice_go::vfork_call!(),
        "mov r11, qword ptr [rip + sluice_go_thread@GOTTPOFF]",
        "mov qword ptr fs:[r11], r13",
        "jmp qword ptr [rip + {rest}]",
        // No child without memory for its call.
        "5:",
        "mov rax, {no_memory}",
        "pop r12",
        "push r12",
        "jmp qword ptr [rip + {rest}]",
        make = sym make_stack,
        before = sym before_vfork,
        rest = sym VFORK_REST,
        no_memory = const -libc::ENOMEM,
    )
}

/// Stands in for `runtime.exit`: the library counts and writes its statistics before the process ends.
#[unsafe(naked)]
extern "C" fn exit() {
    naked_asm!(
        with_stack!(),
        "mov edi, dword ptr [rsp + 8]",
        "mov qword ptr fs:[r11], 0",
        "mov rsp, r12",
        "call {end}",
        "4:",
        "5:",
        "mov edi, dword ptr [rsp + 8]",
        "mov eax, {exit_group}",
        "syscall",
        "ud2",
        make = sym make_stack,
        end = sym end,
        exit_group = const libc::SYS_exit_group,
    )
}

extern "C" fn end(status: c_int) -> ! {
    // SAFETY: the hook takes a number.
    unsafe { crate::hooks::process::_exit(status) }
}
