//! Whether this process may make system calls that its program does not expect.

use core::sync::atomic::{AtomicBool, Ordering};

/// Whether wishes are refused, see [`refuse`].
static REFUSES: AtomicBool = AtomicBool::new(false);

/// From here on this process makes no system calls for its peers' wishes, and refuses them: it
/// is confined by seccomp, and a call that the program does not expect would kill it.
pub fn refuse() {
    REFUSES.store(true, Ordering::Relaxed);
}

pub(crate) fn is_refusing() -> bool {
    REFUSES.load(Ordering::Relaxed)
}
