//! The process: exec, spawn, vfork, confinement, exit.

use core::ffi::{CStr, c_char, c_int, c_uint, c_void};
use libc::{pid_t, siginfo_t};
use sluice_preload_core::reach::{Target, environment};
use sluice_preload_core::real::real;
use sluice_preload_core::{Reason, children, conn, export, gateway, loader, process, this_process};

type Strings = *const *const c_char;

/// Before and around another program that is to replace this one; `execute` does it.
///
/// # Safety
/// `target`, `args` and `env` are the program's own arguments of a function like execve(2).
unsafe fn execute(
    target: Target,
    args: Strings,
    env: Strings,
    execute: impl FnOnce(Strings) -> c_int,
) -> c_int {
    // SAFETY: the caller's promise; the loader's path and environment are what `instead_of` gives.
    unsafe {
        // It returns only if it could not be executed.
        loader::instead_of(target, env, |loader, env| {
            let mut carry = process::before_exec(Target::Path(loader), env);
            (real().execve)(loader, args, env);
            carry.end();
        });
        gateway::for_heir(target, env, |env| {
            let mut carry = process::before_exec(target, env);
            let failed = execute(env);
            carry.end();
            failed
        })
    }
}

/// The same for one that is to run beside this one. `execute` gets the environment, and a path if it is another one than the
/// program's.
///
/// # Safety
/// `target` and `env` are the program's own arguments of a function like posix_spawn(3).
unsafe fn spawn(
    target: Target,
    env: Strings,
    execute: impl Fn(Option<*const c_char>, Strings) -> c_int,
) -> c_int {
    let mut carry = process::before_spawn();
    // SAFETY: the caller's promise.
    let result = unsafe {
        match loader::instead_of(target, env, |loader, env| execute(Some(loader), env)) {
            Some(0) => 0,
            _ => gateway::for_heir(target, env, |env| execute(None, env)),
        }
    };
    carry.end();
    result
}

/// What a program to be spawned is found by, which is from another folder if the actions say so.
///
/// # Safety
/// `path` is a string, or null.
unsafe fn spawned(path: *const c_char, actions: *const c_void) -> Target {
    // SAFETY: the caller's promise.
    if actions.is_null() || (!path.is_null() && unsafe { *path } == b'/' as c_char) {
        Target::Path(path)
    } else {
        Target::Below(-1, path)
    }
}

hooks! {
    fn execve(path: *const c_char, args: Strings, env: Strings) -> c_int {
        // SAFETY: the program's own arguments.
        unsafe { execute(Target::Path(path), args, env, |env| (real().execve)(path, args, env)) }
    }

    fn execv(path: *const c_char, args: Strings) -> c_int {
        // SAFETY: the program's own arguments, and the environment of this process.
        unsafe { execute(Target::Path(path), args, environment(), |env| (real().execve)(path, args, env)) }
    }

    fn execvp(path: *const c_char, args: Strings) -> c_int {
        // SAFETY: the program's own arguments, and the environment of this process.
        unsafe { execute(Target::Search(path), args, environment(), |env| (real().execvpe)(path, args, env)) }
    }

    fn execvpe(path: *const c_char, args: Strings, env: Strings) -> c_int {
        // SAFETY: the program's own arguments.
        unsafe { execute(Target::Search(path), args, env, |env| (real().execvpe)(path, args, env)) }
    }

    fn fexecve(fd: c_int, args: Strings, env: Strings) -> c_int {
        // SAFETY: the program's own arguments.
        unsafe { execute(Target::Open(fd), args, env, |env| (real().fexecve)(fd, args, env)) }
    }

    fn execveat(dir: c_int, path: *const c_char, args: Strings, env: Strings, flags: c_int) -> c_int {
        // SAFETY: the program's own arguments.
        unsafe {
            execute(Target::Below(dir, path), args, env, |env| (real().execveat)(dir, path, args, env, flags))
        }
    }

    fn posix_spawn(
        pid: *mut pid_t,
        path: *const c_char,
        actions: *const c_void,
        attributes: *const c_void,
        args: Strings,
        env: Strings
    ) -> c_int {
        // SAFETY: the program's own arguments.
        unsafe {
            spawn(spawned(path, actions), env, |loader, env| {
                (real().posix_spawn)(pid, loader.unwrap_or(path), actions, attributes, args, env)
            })
        }
    }

    fn posix_spawnp(
        pid: *mut pid_t,
        name: *const c_char,
        actions: *const c_void,
        attributes: *const c_void,
        args: Strings,
        env: Strings
    ) -> c_int {
        // SAFETY: the program's own arguments; what has no slash is searched for.
        unsafe {
            let has_slash = !name.is_null() && CStr::from_ptr(name).to_bytes().contains(&b'/');
            let target = if has_slash { spawned(name, actions) } else { Target::Search(name) };
            spawn(target, env, |loader, env| match loader {
                Some(loader) => (real().posix_spawn)(pid, loader, actions, attributes, args, env),
                None => (real().posix_spawnp)(pid, name, actions, attributes, args, env),
            })
        }
    }

    fn posix_spawn_file_actions_adddup2(actions: *mut c_void, fd: c_int, copy: c_int) -> c_int {
        // The connection is meant for another program, whether or not it closes on exec.
        if let Some(conn) = conn::get(fd) {
            export::export(&conn, Reason::Shared);
        }
        // SAFETY: the program's own arguments.
        unsafe { (real().posix_spawn_file_actions_adddup2)(actions, fd, copy) }
    }

    fn system(command: *const c_char) -> c_int {
        let mut carry = process::before_spawn();
        // SAFETY: the program's own command.
        let result = unsafe { (real().system)(command) };
        carry.end();
        result
    }

    fn popen(command: *const c_char, mode: *const c_char) -> *mut c_void {
        let mut carry = process::before_spawn();
        // SAFETY: the program's own strings.
        let result = unsafe { (real().popen)(command, mode) };
        carry.end();
        result
    }

    fn fork() -> pid_t {
        // SAFETY: fork takes nothing.
        children::around_fork(|| unsafe { (real().fork)() })
    }

    fn forkpty(
        terminal: *mut c_int,
        name: *mut c_char,
        settings: *const c_void,
        size: *const c_void
    ) -> pid_t {
        // SAFETY: the program's own arguments.
        children::around_fork(|| unsafe { (real().forkpty)(terminal, name, settings, size) })
    }

    fn daemon(keeps_directory: c_int, keeps_streams: c_int) -> c_int {
        // The parent does not come back from it.
        // SAFETY: daemon takes numbers.
        children::around_fork(|| unsafe { (real().daemon)(keeps_directory, keeps_streams) })
    }

    fn wait(status: *mut c_int) -> pid_t {
        // SAFETY: the program's own argument.
        children::waited_for(unsafe { (real().wait)(status) })
    }

    fn waitpid(which: pid_t, status: *mut c_int, options: c_int) -> pid_t {
        // SAFETY: the program's own arguments.
        children::waited_for(unsafe { (real().waitpid)(which, status, options) })
    }

    fn wait3(status: *mut c_int, options: c_int, usage: *mut c_void) -> pid_t {
        // SAFETY: the program's own arguments.
        children::waited_for(unsafe { (real().wait3)(status, options, usage) })
    }

    fn wait4(which: pid_t, status: *mut c_int, options: c_int, usage: *mut c_void) -> pid_t {
        // SAFETY: the program's own arguments.
        children::waited_for(unsafe { (real().wait4)(which, status, options, usage) })
    }

    fn waitid(kind: c_uint, which: c_uint, info: *mut siginfo_t, options: c_int) -> c_int {
        // SAFETY: the program's own arguments.
        let result = unsafe { (real().waitid)(kind, which, info, options) };
        if result == 0 && !info.is_null() {
            // SAFETY: the kernel has filled it.
            children::waited_for(unsafe { (*info).si_pid() });
        }
        result
    }

    fn prctl(option: c_int, a: usize, b: usize, c: usize, d: usize) -> c_int {
        if option == libc::PR_SET_SECCOMP {
            process::before_confinement();
        }
        // SAFETY: the program's own arguments.
        unsafe { (real().prctl)(option, a, b, c, d) }
    }

    fn _exit(status: c_int) -> ! {
        process::before_exit();
        // SAFETY: _exit takes a number.
        unsafe { (real()._exit)(status) }
    }

    fn _Exit(status: c_int) -> ! {
        process::before_exit();
        // SAFETY: _exit takes a number, and `_Exit` is the same function.
        unsafe { (real()._exit)(status) }
    }
}

aliases! {
    fn __fork() -> pid_t = fork;
    fn __waitpid(which: pid_t, status: *mut c_int, options: c_int) -> pid_t = waitpid;
    fn __wait(status: *mut c_int) -> pid_t = wait;
    fn _IO_popen(command: *const c_char, mode: *const c_char) -> *mut c_void = popen;
}

/// Called by `vfork` below, and by `sluice-static` before Go's own; returns the real one.
#[unsafe(no_mangle)]
pub extern "C" fn sluice_before_vfork() -> *const c_void {
    this_process::before_vfork();
    real().vfork as *const c_void
}

/// Called by `sluice-static` before it executes a program that it does not know.
#[unsafe(no_mangle)]
pub extern "C" fn sluice_decline() {
    loader::decline();
}

/// vfork returns twice on the caller's stack, so no frame of ours may lie between: a tail jump.
/// Naked functions, unlike symbols of `global_asm!`, are exported from the library.
#[cfg(target_arch = "x86_64")]
macro_rules! vfork {
    ($name:ident) => {
        #[unsafe(no_mangle)]
        #[unsafe(naked)]
        pub unsafe extern "C" fn $name() -> pid_t {
            core::arch::naked_asm!(
                "sub rsp, 8",
                "call {before}",
                "add rsp, 8",
                "jmp rax",
                before = sym sluice_before_vfork,
            )
        }
        register!($name);
    };
}

#[cfg(target_arch = "x86_64")]
vfork!(vfork);
#[cfg(target_arch = "x86_64")]
vfork!(__vfork);

/// Called by `execl`, `execlp` and `execle` below. `block` is what lies on the stack: the words
/// that came in the five registers behind the path, the return address, then the other words.
///
/// The words become an array by moving those five over the return address, for as long as the
/// call lasts.
unsafe extern "C" fn sluice_exec_list(path: *const c_char, block: *mut usize, which: u32) -> c_int {
    const REGISTERS: usize = 5;
    // SAFETY: the block is as said, and the program's list ends with a null pointer, behind which
    // `execle` has the environment.
    unsafe {
        let back = *block.add(REGISTERS);
        core::ptr::copy(block, block.add(1), REGISTERS);
        let args: Strings = block.add(1).cast_const().cast();
        let failed = match which {
            0 => execv(path, args),
            1 => execvp(path, args),
            _ => {
                let mut count = 0;
                while !(*args.add(count)).is_null() {
                    count += 1;
                }
                execve(path, args, (*args.add(count + 1)).cast())
            }
        };
        *block.add(REGISTERS) = back;
        failed
    }
}

#[cfg(target_arch = "x86_64")]
macro_rules! exec_list {
    ($name:ident, $which:literal) => {
        #[unsafe(no_mangle)]
        #[unsafe(naked)]
        pub unsafe extern "C" fn $name() {
            core::arch::naked_asm!(
                "push r9",
                "push r8",
                "push rcx",
                "push rdx",
                "push rsi",
                "mov rsi, rsp",
                concat!("mov edx, ", $which),
                "call {exec}",
                "add rsp, 40",
                "ret",
                exec = sym sluice_exec_list,
            )
        }
        register!($name);
    };
}

#[cfg(target_arch = "x86_64")]
exec_list!(execl, 0);
#[cfg(target_arch = "x86_64")]
exec_list!(execlp, 1);
#[cfg(target_arch = "x86_64")]
exec_list!(execle, 2);
