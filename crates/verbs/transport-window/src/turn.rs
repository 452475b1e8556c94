//! A queue pair as those know it who give turns to send.

use core::sync::atomic::{AtomicBool, Ordering};
use std::sync::Arc;

use sluice_transport::tap::Tap;
use sluice_verbs::QpType;

pub struct Turn {
    pub qpn: u32,
    pub kind: QpType,
    /// While somebody traces.
    pub tap: Option<Arc<Tap>>,
    /// It waits at its peer.
    queued: AtomicBool,
}

impl Turn {
    pub fn new(qpn: u32, kind: QpType) -> Turn {
        Turn {
            qpn,
            kind,
            tap: Tap::new(kind, qpn),
            queued: AtomicBool::new(false),
        }
    }

    pub fn is_reliable(&self) -> bool {
        self.kind.is_reliable()
    }

    pub fn is_queued(&self) -> bool {
        self.queued.load(Ordering::Acquire)
    }

    /// Whether it is the caller's to put it there.
    pub fn queue(&self) -> bool {
        !self.queued.swap(true, Ordering::AcqRel)
    }

    /// It has its turn, or never will: from here on it may be put there again.
    pub fn leave(&self) {
        self.queued.store(false, Ordering::Release);
    }
}
