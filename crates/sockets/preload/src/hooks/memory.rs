//! Memory that the program locks: the library's own is left out.

use core::ffi::c_int;
use sluice_preload_core::{this_process, to_c};
use sluice_sys::locked;
use sluice_sys::raw::{check, int, syscall1};

hooks! {
    fn mlockall(flags: c_int) -> c_int {
        if this_process::is_confined() {
            // A filter knows this call and not the ones that go with it.
            // SAFETY: the call takes a number.
            return to_c(check(unsafe { syscall1(libc::SYS_mlockall, int(flags)) })) as c_int;
        }
        to_c(locked::lock_all(flags).map(|()| 0)) as c_int
    }

    fn munlockall() -> c_int {
        to_c(locked::unlock_all().map(|()| 0)) as c_int
    }
}
