//! The exported functions, by what they are for.

/// Defines hooks: exported C functions. `a = b` pairs give a hook a second name.
macro_rules! hooks {
    ($(fn $name:ident($($arg:ident: $kind:ty),*) -> $ret:ty $body:block)*) => {
        $(
            #[unsafe(no_mangle)]
            pub unsafe extern "C" fn $name($($arg: $kind),*) -> $ret $body
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
        )*
    };
}

mod descriptors;
mod inside;
mod io;
pub mod process;
mod sockets;
pub mod syscall;
mod transfer;
mod uring;
mod wait;
