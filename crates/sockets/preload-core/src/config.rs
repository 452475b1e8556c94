//! Settings, read from the environment once, when the library starts.
#![allow(unsafe_code)]

use core::ffi::CStr;
use core::sync::atomic::{AtomicU32, Ordering};
use sluice_lane::spin;

/// Turnarounds before a connection is announced, when `SLUICE_MIN_OPS` does not say.
/// A connection that makes one request and closes never is.
pub const MIN_OPS_DEFAULT: u32 = 4;

static MIN_OPS: AtomicU32 = AtomicU32::new(MIN_OPS_DEFAULT);

/// Turnarounds before a connection is announced: writes behind reads, and reads behind writes.
pub fn min_ops() -> u32 {
    MIN_OPS.load(Ordering::Relaxed)
}

/// A variable of the environment as it is now; only to be used at start.
pub fn variable(name: &CStr) -> Option<&'static CStr> {
    // SAFETY: getenv returns null or a string of the environment, which the program does not
    // change before its main function runs; later users copy it at start.
    unsafe {
        let value = libc::getenv(name.as_ptr());
        if value.is_null() {
            None
        } else {
            Some(CStr::from_ptr(value))
        }
    }
}

/// A variable that is a number.
pub fn number(name: &CStr) -> Option<u32> {
    core::str::from_utf8(variable(name)?.to_bytes())
        .ok()?
        .trim()
        .parse()
        .ok()
}

/// Reads the settings.
pub fn load() {
    if let Some(us) = number(c"SLUICE_SPIN_US") {
        spin::set_ceiling_us(us);
    }
    if let Some(ops) = number(c"SLUICE_MIN_OPS") {
        MIN_OPS.store(ops, Ordering::Relaxed);
    }
    // For `sluice bench windows` alone.
    if let Some(ns) = number(c"SLUICE_WINDOW_DELAY_NS") {
        sluice_shmem::NEWS_DELAY.set_ns(ns);
    }
}
