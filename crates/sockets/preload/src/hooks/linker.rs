//! The dynamic linker: what `sluice_preload_core::plugins` does about it.

use super::registered;
use core::ffi::{c_char, c_int, c_long};
use sluice_preload_core::plugins::{self, Verdict};

unsafe extern "C" fn sluice_before_dlsym(
    handle: usize,
    name: *const c_char,
    _: usize,
    caller: usize,
) -> Verdict {
    // SAFETY: the program's own arguments.
    unsafe { plugins::before_dlsym(registered(), handle, name, caller) }
}

unsafe extern "C" fn sluice_before_dlopen(
    file: *const c_char,
    flags: c_int,
    _: usize,
    caller: usize,
) -> Verdict {
    // SAFETY: the program's own arguments.
    unsafe { plugins::before_dlopen(registered(), file, flags, caller) }
}

extern "C" fn sluice_before_dlmopen(
    namespace: c_long,
    _: *const c_char,
    _: c_int,
    _: usize,
) -> Verdict {
    plugins::before_dlmopen(namespace)
}

/// The linker asks who called it, so that no frame of ours may lie between: a tail jump where nothing is to be done
/// behind the call.
macro_rules! linker {
    ($name:ident, $before:ident) => {
        #[unsafe(no_mangle)]
        #[unsafe(naked)]
        pub unsafe extern "C" fn $name() {
            core::arch::naked_asm!(
                "push rdi",
                "push rsi",
                "push rdx",
                "mov rcx, [rsp + 24]",
                "call {before}",
                "mov r11, rax",
                "mov rax, rdx",
                "pop rdx",
                "pop rsi",
                "pop rdi",
                "test r11, r11",
                "jz 2f",
                "jmp r11",
                "2:",
                "ret",
                before = sym $before,
            )
        }
        register!($name);
    };
}

linker!(dlsym, sluice_before_dlsym);
linker!(dlopen, sluice_before_dlopen);
linker!(dlmopen, sluice_before_dlmopen);
