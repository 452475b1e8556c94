//! Jumps out of signal handlers: what `sluice_preload_core::jumps` does about them.

use core::ffi::{CStr, c_int};
use core::sync::atomic::AtomicUsize;
use sluice_preload_core::jumps;
use sluice_preload_core::real::{found_once, next};

/// The real functions, in the order of [`NAMES`].
static REAL: [AtomicUsize; 4] = [const { AtomicUsize::new(0) }; 4];
const NAMES: [&CStr; 4] = [c"longjmp", c"_longjmp", c"siglongjmp", c"__longjmp_chk"];

/// Called by the jumps below. The address of the real one, unless it jumps later.
extern "C" fn sluice_before_jump(
    target: *const usize,
    value: c_int,
    stack: usize,
    which: usize,
) -> usize {
    let real = found_once(&REAL[which], || next(NAMES[which]));
    // SAFETY: the program's own buffer, filled by `setjmp`.
    unsafe { jumps::before(target, value, stack, real) };
    real
}

/// The jump is made by a tail jump, from the caller's own frame.
macro_rules! jump {
    ($name:ident, $which:literal) => {
        #[unsafe(no_mangle)]
        #[unsafe(naked)]
        pub unsafe extern "C" fn $name() {
            core::arch::naked_asm!(
                "push rdi",
                "push rsi",
                "lea rdx, [rsp + 16]",
                concat!("mov ecx, ", $which),
                "sub rsp, 8",
                "call {before}",
                "add rsp, 8",
                "pop rsi",
                "pop rdi",
                "jmp rax",
                before = sym sluice_before_jump,
            )
        }
        register!($name);
    };
}

jump!(longjmp, 0);
jump!(_longjmp, 1);
jump!(siglongjmp, 2);
jump!(__longjmp_chk, 3);
