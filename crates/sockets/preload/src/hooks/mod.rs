//! The exported functions, by what they are for.

use core::ffi::{CStr, c_char, c_void};
use core::sync::atomic::{AtomicUsize, Ordering};

/// A function of this library that stands in for one of another.
#[repr(C)]
pub struct Hook {
    name: *const c_char,
    function: *const c_void,
}

// SAFETY: two addresses that never change, of a string and of a function.
unsafe impl Sync for Hook {}

impl Hook {
    /// The name of both.
    fn name(&self) -> &CStr {
        // SAFETY: `register` gives it a zero at its end.
        unsafe { CStr::from_ptr(self.name) }
    }

    fn address(&self) -> *mut c_void {
        self.function.cast_mut()
    }
}

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

unsafe extern "C" {
    fn dlvsym(handle: *mut c_void, name: *const c_char, version: *const c_char) -> *mut c_void;
}

/// A `dlsym` cannot be found by itself; these versions have it, new C libraries first.
const VERSIONS: [&CStr; 2] = [c"GLIBC_2.34", c"GLIBC_2.2.5"];

static DLSYM: AtomicUsize = AtomicUsize::new(0);

fn real_dlsym() -> usize {
    found_once(&DLSYM, || {
        VERSIONS
            .iter()
            // SAFETY: both names are strings.
            .map(|version| unsafe {
                dlvsym(libc::RTLD_NEXT, c"dlsym".as_ptr(), version.as_ptr()) as usize
            })
            .find(|address| *address != 0)
            .unwrap_or(0)
    })
}

fn found_once(place: &AtomicUsize, find: impl FnOnce() -> usize) -> usize {
    match place.load(Ordering::Relaxed) {
        0 => {
            let address = find();
            place.store(address, Ordering::Relaxed);
            address
        }
        address => address,
    }
}

/// The definition of `name` behind this library.
fn next(name: *const c_char) -> usize {
    type Dlsym = unsafe extern "C" fn(*mut c_void, *const c_char) -> *mut c_void;
    // SAFETY: the address is that of dlsym(3), and the name a string.
    unsafe { core::mem::transmute::<usize, Dlsym>(real_dlsym())(libc::RTLD_NEXT, name) as usize }
}

/// Enters a hook in the list.
macro_rules! register {
    ($name:ident) => {
        const _: () = {
            #[used]
            #[unsafe(link_section = "sluice_hooks")]
            static HOOK: $crate::hooks::Hook = $crate::hooks::Hook {
                name: concat!(stringify!($name), "\0").as_ptr().cast(),
                function: $name as *const core::ffi::c_void,
            };
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
mod memory;
#[cfg(target_arch = "x86_64")]
mod plugins;
pub mod process;
mod sockets;
pub mod syscall;
mod transfer;
mod uring;
mod wait;
