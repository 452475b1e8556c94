//! What the program has left to UDP sockets, known without asking them.

use core::sync::atomic::{AtomicBool, Ordering};

use sluice_sys::bpf::Number;

/// Shared by whoever attaches the program and whoever polls the sockets.
#[derive(Debug)]
pub struct Left {
    number: Number,
    is_attached: AtomicBool,
}

impl Left {
    pub(crate) fn new(number: Number) -> Self {
        Self {
            number,
            is_attached: AtomicBool::new(true),
        }
    }

    pub(crate) fn number(&self) -> &Number {
        &self.number
    }

    /// To be told before the program is detached, and when it is attached again.
    pub(crate) fn set_attached(&self, is_attached: bool) {
        self.is_attached.store(is_attached, Ordering::Release);
    }

    /// How many packets for us the program has left to sockets. None: it leaves all, because it is
    /// not attached, or this kernel (before 5.5) does not tell.
    pub fn get(&self) -> Option<u64> {
        let is_attached = self.is_attached.load(Ordering::Acquire);
        is_attached.then(|| self.number.get()).flatten()
    }
}
