//! The program's system calls: those that the library has hooks for, and those that tell a program its own path, go
//! there; all others to the kernel.

use core::arch::naked_asm;
use core::ffi::{CStr, c_char, c_int, c_long, c_void};
use core::ptr;
use core::sync::atomic::{AtomicPtr, AtomicU64, Ordering};

use sluice_go::{NUMBERS, Taken};

/// The program's path, a string that stays.
static PROGRAM: AtomicPtr<c_char> = AtomicPtr::new(ptr::null_mut());
/// The library's function that wants to be called before a vfork.
static BEFORE_VFORK: AtomicPtr<c_void> = AtomicPtr::new(ptr::null_mut());
/// Where `syscall.rawVforkSyscall` goes on.
static VFORK_REST: AtomicU64 = AtomicU64::new(0);

/// As programs ask who they are. For the kernel it is this program's file.
const SELF: &CStr = c"/proc/self/exe";

/// Which calls are taken: those of the library, and some for `SELF`.
static IS_TAKEN: Taken =
    sluice_go::taken(&[libc::SYS_readlink, libc::SYS_readlinkat, libc::SYS_openat]);

pub fn set_up(path: &CStr, before_vfork: *mut c_void, vfork_rest: u64) {
    PROGRAM.store(path.to_owned().into_raw(), Ordering::Relaxed);
    BEFORE_VFORK.store(before_vfork, Ordering::Relaxed);
    VFORK_REST.store(vfork_rest, Ordering::Relaxed);
}

pub fn program_path() -> *const c_char {
    PROGRAM.load(Ordering::Relaxed)
}

/// Stands in for `internal/runtime/syscall.Syscall6`: the number in rax, arguments in rbx, rcx, rdi, rsi, r8 and r9, as
/// Go's ABIInternal has them; results in rax, rbx and the error in rcx. It keeps r14, the running goroutine, and leaves
/// xmm15 zero. Everything else is the caller's to save.
///
/// A goroutine's stack has room for this function and no more, so that the call is made on the thread's own.
#[unsafe(naked)]
pub extern "C" fn syscall6() {
    naked_asm!(
        "cmp rax, {numbers}",
        "jae 3f",
        "lea r10, [rip + {is_taken}]",
        "cmp byte ptr [r10 + rax], 0",
        "je 3f",
        "mov r12, qword ptr fs:[sluice_static_thread@tpoff]",
        "test r12, r12",
        "jz 3f",
        "mov qword ptr fs:[sluice_static_thread@tpoff], 0",
        "mov r13, rsp",
        "lea rsp, [r12 - 16]",
        sluice_go::c_arguments!(),
        "call {taken}",
        "mov rsp, r13",
        "mov qword ptr fs:[sluice_static_thread@tpoff], r12",
        "xorps xmm15, xmm15",
        "xor edx, edx",
        "jmp 4f",
        sluice_go::kernel_or_result!(),
        numbers = const NUMBERS,
        is_taken = sym IS_TAKEN,
        taken = sym taken,
    )
}

/// Whether the program's string is `/proc/self/exe`.
fn is_self(path: usize) -> bool {
    /// Nothing is mapped below it.
    const LOWEST_ADDRESS: usize = 4096;
    if path < LOWEST_ADDRESS {
        return false;
    }
    let expected = SELF.to_bytes_with_nul();
    // SAFETY: the program's own argument, a string of which no byte behind its end is read.
    expected
        .iter()
        .enumerate()
        .all(|(at, byte)| unsafe { *(path as *const u8).add(at) } == *byte)
}

/// A call that is taken. Returns what the kernel would: a result, or a negative error.
extern "C" fn taken(
    number: c_long,
    mut a: usize,
    mut b: usize,
    c: usize,
    d: usize,
    e: usize,
    f: usize,
) -> c_long {
    let own = program_path();
    match number {
        libc::SYS_readlink if is_self(a) && c > 0 => return answer(b, c),
        libc::SYS_readlinkat if is_self(b) && d > 0 => return answer(c, d),
        libc::SYS_openat if is_self(b) => b = own as usize,
        libc::SYS_execve if is_self(a) => a = own as usize,
        _ => {}
    }
    // SAFETY: the program's own arguments for the call of this number. Where the library is loaded, `syscall` is its.
    unsafe {
        match libc::syscall(number, a, b, c, d, e, f) {
            -1 => -c_long::from(*libc::__errno_location()),
            result => result,
        }
    }
}

/// What readlink(2) does for `SELF`, with the program's path.
fn answer(buffer: usize, bytes: usize) -> c_long {
    // SAFETY: the path is a string that stays, and the buffer is the program's, of so many bytes.
    unsafe {
        let path = CStr::from_ptr(program_path()).to_bytes();
        let length = path.len().min(bytes);
        ptr::copy_nonoverlapping(path.as_ptr(), buffer as *mut u8, length);
        length as c_long
    }
}

/// Stands in for `syscall.rawVforkSyscall` up to and with its system call, and tells the library before that a child
/// will run in this process's memory: its hooks change no table there.
///
/// The child has this thread's storage, and executes its program within a call that is taken: the word for the stack is
/// what it was when the parent goes on.
#[unsafe(naked)]
pub extern "C" fn vfork() {
    naked_asm!(
        "mov r13, qword ptr fs:[sluice_static_thread@tpoff]",
        "test r13, r13",
        "jz 2f",
        "mov qword ptr fs:[sluice_static_thread@tpoff], 0",
        "mov rbx, rsp",
        "mov rsp, r13",
        "call qword ptr [rip + {before}]",
        "mov rsp, rbx",
        "mov qword ptr fs:[sluice_static_thread@tpoff], r13",
        "2:",
        sluice_go::vfork_call!(),
        "mov qword ptr fs:[sluice_static_thread@tpoff], r13",
        "jmp qword ptr [rip + {rest}]",
        before = sym BEFORE_VFORK,
        rest = sym VFORK_REST,
    )
}

/// Stands in for `runtime.exit`: the library counts and writes its statistics before the process ends.
#[unsafe(naked)]
pub extern "C" fn exit() {
    naked_asm!(
        "mov edi, dword ptr [rsp + 8]",
        "mov r12, qword ptr fs:[sluice_static_thread@tpoff]",
        "test r12, r12",
        "jz 2f",
        "mov qword ptr fs:[sluice_static_thread@tpoff], 0",
        "mov rsp, r12",
        "call {end}",
        "2:",
        "mov eax, {exit_group}",
        "syscall",
        "ud2",
        end = sym end,
        exit_group = const libc::SYS_exit_group,
    )
}

extern "C" fn end(status: c_int) -> ! {
    // SAFETY: _exit takes a number. Where the library is loaded, it is its.
    unsafe { libc::_exit(status) }
}
