//! The exported functions, by what they are for.

use sluice_preload_core::plugins::Hook;

/// All hooks, in no order: what [`register`] has put into a section of its own.
fn registered() -> &'static [Hook] {
    unsafe extern "C" {
        #[link_name = "__start_sluice_hooks"]
        static START: Hook;
        #[link_name = "__stop_sluice_hooks"]
        static STOP: Hook;
    }
    // SAFETY: the link editor defines both around the section, which consists of such values.
    unsafe {
        let (start, stop) = (&raw const START, &raw const STOP);
        core::slice::from_raw_parts(start, stop.offset_from_unsigned(start))
    }
}

/// Enters a hook in the list.
macro_rules! register {
    ($name:ident) => {
        const _: () = {
            #[used]
            #[unsafe(link_section = "sluice_hooks")]
            static HOOK: sluice_preload_core::plugins::Hook =
                sluice_preload_core::plugins::Hook::new(
                    concat!(stringify!($name), "\0"),
                    $name as *const core::ffi::c_void,
                );
        };
    };
}

/// Defines hooks: exported C functions. `a = b` pairs give a hook a second name.
macro_rules! hooks {
    ($(fn $name:ident($($arg:ident: $kind:ty),*) -> $ret:ty $body:block)*) => {
        $(
            #[unsafe(no_mangle)]
            pub unsafe extern "C" fn $name($($arg: $kind),*) -> $ret $body
            register!($name);
        )*
    };
}

/// Second names of hooks, with the same arguments.
macro_rules! aliases {
    ($(fn $name:ident($($arg:ident: $kind:ty),*) -> $ret:ty = $other:path;)*) => {
        $(
            #[unsafe(no_mangle)]
            pub unsafe extern "C" fn $name($($arg: $kind),*) -> $ret {
                // SAFETY: the program's own arguments, to a function with the same contract.
                unsafe { $other($($arg),*) }
            }
            register!($name);
        )*
    };
}

mod descriptors;
mod inside;
mod io;
#[cfg(target_arch = "x86_64")]
mod jumps;
#[cfg(target_arch = "x86_64")]
mod linker;
mod memory;
pub mod process;
mod sockets;
pub mod syscall;
mod transfer;
mod uring;
mod wait;
