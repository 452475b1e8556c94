//! Memory that the program locks: the library's own is left out.

use core::ffi::c_int;
use sluice_preload_core::{memory, to_c};

hooks! {
    fn mlockall(flags: c_int) -> c_int {
        to_c(memory::lock_all(flags)) as c_int
    }

    fn munlockall() -> c_int {
        to_c(memory::unlock_all()) as c_int
    }
}
