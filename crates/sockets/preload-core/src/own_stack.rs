//! Calls that happen rarely and need some kilobytes of stack: they get one of the library's, since the program's threads may
//! have little.
#![allow(unsafe_code)]

#[cfg(target_arch = "x86_64")]
use crate::memory::Scratch;

/// Bytes of such a stack, the guard that it has not got included: what runs there is this library's own.
#[cfg(target_arch = "x86_64")]
const BYTES: usize = 64 * 1024;

/// Calls `body` on another stack, or on this one if there is no memory. It calls none of the program's functions, and
/// nothing that can be cancelled (pthreads(7)): the C library finds a thread's frames by its stack.
#[cfg(target_arch = "x86_64")]
pub(crate) fn run<R>(body: impl FnOnce() -> R) -> R {
    /// What the function on the other stack is given and gives back.
    struct Call<B, R> {
        body: Option<B>,
        result: Option<R>,
    }

    extern "C" fn there<B: FnOnce() -> R, R>(call: *mut Call<B, R>) {
        // SAFETY: the caller's frame, which waits.
        let call = unsafe { &mut *call };
        call.result = call.body.take().map(|body| body());
    }

    let mut call = Call {
        body: Some(body),
        result: None,
    };
    if let Some(mut scratch) = Scratch::take(BYTES) {
        let end = scratch.bytes().as_mut_ptr_range().end;
        // SAFETY: the memory is this call's, its end is a multiple of 16, and the function takes what it is given.
        unsafe { switch(end, (&raw mut call).cast(), there_address(there, &call)) };
    }
    match (call.result, call.body) {
        (Some(result), _) => result,
        (None, Some(body)) => body(),
        (None, None) => unreachable!("the body has run and returned"),
    }
}

/// The address of a function, whose type names what it takes.
#[cfg(target_arch = "x86_64")]
fn there_address<C>(there: extern "C" fn(*mut C), _: &C) -> usize {
    there as *const () as usize
}

/// The same on the stack of the thread.
#[cfg(not(target_arch = "x86_64"))]
pub(crate) fn run<R>(body: impl FnOnce() -> R) -> R {
    body()
}

/// Calls the function at the third address with the second one, on the stack that ends at the first. The frame
/// is found by its base pointer, so that a debugger sees through.
#[cfg(target_arch = "x86_64")]
#[unsafe(naked)]
unsafe extern "C" fn switch(end: *mut u8, argument: *mut core::ffi::c_void, function: usize) {
    core::arch::naked_asm!(
        ".cfi_startproc",
        "push rbp",
        ".cfi_def_cfa_offset 16",
        ".cfi_offset rbp, -16",
        "mov rbp, rsp",
        ".cfi_def_cfa_register rbp",
        "mov rsp, rdi",
        "mov rdi, rsi",
        "call rdx",
        "leave",
        ".cfi_def_cfa rsp, 8",
        "ret",
        ".cfi_endproc",
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn here() -> usize {
        let byte = 0_u8;
        &raw const byte as usize
    }

    #[test]
    fn the_body_runs_elsewhere_and_its_result_comes_back() {
        let outside = here();
        let text = String::from("some");
        let (inside, text) = run(move || (here(), text + " text"));
        assert_eq!(text, "some text");
        assert_eq!(
            inside.abs_diff(outside) > BYTES,
            cfg!(target_arch = "x86_64")
        );
        let nested = run(|| run(here).abs_diff(here()));
        assert!(nested > 0);
        // Both stacks are given back.
        assert_eq!(run(here), run(here));
    }
}
