//! Whether this process may use its sockets without our knowledge: from then on none of its connections has a lane.

use crate::{export, log};
use core::sync::atomic::{AtomicU16, Ordering};
use sluice_lane::reason::Reason;

/// Why, as a number; [`Reason::None`] while everything is seen.
static REASON: AtomicU16 = AtomicU16::new(Reason::None as u16);

/// Whether sockets may be used past the hooks.
#[inline]
pub fn is_blind() -> bool {
    REASON.load(Ordering::Relaxed) != Reason::None as u16
}

/// By what.
pub(crate) fn reason() -> Option<Reason> {
    Reason::from_code(REASON.load(Ordering::Relaxed)).filter(|reason| *reason != Reason::None)
}

/// From here on every connection of the process stays on TCP.
#[cold]
pub fn go_blind(reason: Reason, why: &str) {
    let order = Ordering::SeqCst;
    let first = REASON.compare_exchange(Reason::None as u16, reason as u16, order, order);
    if first.is_err() {
        return;
    }
    log!(Warn, "no lanes from here on: {}: {why}", reason.text());
    export::export_all(reason, |_| true, &mut |conn, _| {
        log!(
            Warn,
            "fd {}: unread bytes are in the ring, and what reads past the hooks does not see them",
            conn.fd
        );
    });
}
