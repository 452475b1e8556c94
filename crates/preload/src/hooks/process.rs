//! The process: exec, spawn, vfork, confinement, exit.

use core::ffi::{c_char, c_int, c_void};
use libc::pid_t;
use sluice_preload_core::process;
use sluice_preload_core::real::real;

type Strings = *const *const c_char;

hooks! {
    fn execve(path: *const c_char, args: Strings, env: Strings) -> c_int {
        process::before_exec();
        // SAFETY: the program's own arguments, here and below.
        unsafe { (real().execve)(path, args, env) }
    }

    fn execv(path: *const c_char, args: Strings) -> c_int {
        process::before_exec();
        // SAFETY: as above.
        unsafe { (real().execv)(path, args) }
    }

    fn execvp(path: *const c_char, args: Strings) -> c_int {
        process::before_exec();
        // SAFETY: as above.
        unsafe { (real().execvp)(path, args) }
    }

    fn execvpe(path: *const c_char, args: Strings, env: Strings) -> c_int {
        process::before_exec();
        // SAFETY: as above.
        unsafe { (real().execvpe)(path, args, env) }
    }

    fn fexecve(fd: c_int, args: Strings, env: Strings) -> c_int {
        process::before_exec();
        // SAFETY: as above.
        unsafe { (real().fexecve)(fd, args, env) }
    }

    fn execveat(dir: c_int, path: *const c_char, args: Strings, env: Strings, flags: c_int) -> c_int {
        process::before_exec();
        // SAFETY: as above.
        unsafe { (real().execveat)(dir, path, args, env, flags) }
    }

    fn posix_spawn(
        pid: *mut pid_t,
        path: *const c_char,
        actions: *const c_void,
        attributes: *const c_void,
        args: Strings,
        env: Strings
    ) -> c_int {
        process::before_spawn();
        // SAFETY: as above.
        unsafe { (real().posix_spawn)(pid, path, actions, attributes, args, env) }
    }

    fn posix_spawnp(
        pid: *mut pid_t,
        path: *const c_char,
        actions: *const c_void,
        attributes: *const c_void,
        args: Strings,
        env: Strings
    ) -> c_int {
        process::before_spawn();
        // SAFETY: as above.
        unsafe { (real().posix_spawnp)(pid, path, actions, attributes, args, env) }
    }

    fn system(command: *const c_char) -> c_int {
        process::before_spawn();
        // SAFETY: as above.
        unsafe { (real().system)(command) }
    }

    fn popen(command: *const c_char, mode: *const c_char) -> *mut c_void {
        process::before_spawn();
        // SAFETY: as above.
        unsafe { (real().popen)(command, mode) }
    }

    fn prctl(option: c_int, a: usize, b: usize, c: usize, d: usize) -> c_int {
        if option == libc::PR_SET_SECCOMP {
            process::before_confinement();
        }
        // SAFETY: as above.
        unsafe { (real().prctl)(option, a, b, c, d) }
    }

    fn _exit(status: c_int) -> ! {
        process::before_exit();
        // SAFETY: as above.
        unsafe { (real()._exit)(status) }
    }

    fn _Exit(status: c_int) -> ! {
        process::before_exit();
        // SAFETY: as above.
        unsafe { (real()._exit)(status) }
    }
}

/// Called by `vfork` below; returns the real one.
extern "C" fn sluice_before_vfork() -> *const c_void {
    process::before_vfork();
    real().vfork as *const c_void
}

/// vfork returns twice on the caller's stack, so no frame of ours may lie between: a tail jump.
/// Naked functions, unlike symbols of `global_asm!`, are exported from the library.
#[cfg(target_arch = "x86_64")]
#[unsafe(no_mangle)]
#[unsafe(naked)]
pub unsafe extern "C" fn vfork() -> pid_t {
    core::arch::naked_asm!(
        "sub rsp, 8",
        "call {before}",
        "add rsp, 8",
        "jmp rax",
        before = sym sluice_before_vfork,
    )
}

/// Called by the variadic functions below; returns the real function number `which`. The first
/// argument of the program's call tells `dprintf` which descriptor it is about.
extern "C" fn sluice_before_variadic(which: usize, first: usize) -> *const c_void {
    const NAMES: [&core::ffi::CStr; 4] = [c"execl", c"execlp", c"execle", c"dprintf"];
    if which < 3 {
        process::before_exec();
    } else if let Some(conn) = sluice_preload_core::conn::get(first as c_int) {
        sluice_preload_core::descriptors::export(&conn, sluice_preload_core::Reason::KernelCall);
    }
    // SAFETY: the names are strings; these functions exist in every C library.
    unsafe { libc::dlsym(libc::RTLD_NEXT, NAMES[which % NAMES.len()].as_ptr()) }
}

// Variadic functions cannot be written in stable Rust: keep all argument registers, look, jump.
#[cfg(target_arch = "x86_64")]
macro_rules! variadic {
    ($name:ident, $which:literal) => {
        #[unsafe(no_mangle)]
        #[unsafe(naked)]
        pub unsafe extern "C" fn $name() {
            core::arch::naked_asm!(
                "push rdi",
                "push rsi",
                "push rdx",
                "push rcx",
                "push r8",
                "push r9",
                "push rax",
                "sub rsp, 128",
                "movups [rsp], xmm0",
                "movups [rsp + 16], xmm1",
                "movups [rsp + 32], xmm2",
                "movups [rsp + 48], xmm3",
                "movups [rsp + 64], xmm4",
                "movups [rsp + 80], xmm5",
                "movups [rsp + 96], xmm6",
                "movups [rsp + 112], xmm7",
                "mov rsi, rdi",
                concat!("mov edi, ", $which),
                "call {before}",
                "mov r11, rax",
                "movups xmm0, [rsp]",
                "movups xmm1, [rsp + 16]",
                "movups xmm2, [rsp + 32]",
                "movups xmm3, [rsp + 48]",
                "movups xmm4, [rsp + 64]",
                "movups xmm5, [rsp + 80]",
                "movups xmm6, [rsp + 96]",
                "movups xmm7, [rsp + 112]",
                "add rsp, 128",
                "pop rax",
                "pop r9",
                "pop r8",
                "pop rcx",
                "pop rdx",
                "pop rsi",
                "pop rdi",
                "jmp r11",
                before = sym sluice_before_variadic,
            )
        }
    };
}

#[cfg(target_arch = "x86_64")]
variadic!(execl, 0);
#[cfg(target_arch = "x86_64")]
variadic!(execlp, 1);
#[cfg(target_arch = "x86_64")]
variadic!(execle, 2);
#[cfg(target_arch = "x86_64")]
variadic!(dprintf, 3);
