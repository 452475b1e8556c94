//! Whether sluiced is still there, which carries the bytes of lanes to other hosts.
#![allow(unsafe_code)]

use core::sync::atomic::{AtomicPtr, Ordering};

/// Who finds out; a `fn()`, or null.
static CHECK: AtomicPtr<()> = AtomicPtr::new(core::ptr::null_mut());

/// Says who finds out. It is called by readers that sluiced keeps from sleeping for long, without locks of theirs.
pub fn set_check(check: fn()) {
    CHECK.store(check as *mut (), Ordering::Release);
}

pub(crate) fn check() {
    let check = CHECK.load(Ordering::Acquire);
    if !check.is_null() {
        // SAFETY: only `set_check` stores here, and it stores functions of this type.
        unsafe { core::mem::transmute::<*mut (), fn()>(check)() };
    }
}
