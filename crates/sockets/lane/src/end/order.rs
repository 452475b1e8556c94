//! When a write to the socket began, by which a reader on this host puts what it finds in order
//! (docs/decisions/0030).

use super::End;
use crate::clock::now_ns;
use crate::parking::own_parking_tables;

impl End {
    /// Tells a reader on this host when it was written: it may find bytes of other connections besides,
    /// and is to know which came first.
    pub(crate) fn note_tcp_write(&self) {
        let out = self.outgoing();
        if out.is_some() && self.is_remote() {
            return;
        }
        let now_ns = now_ns();
        if let Some(out) = &out {
            out.note_tcp_write(now_ns);
        }
        // Who does not know of the lane yet looks in the parking table.
        if !out.is_some_and(|out| out.is_enabled()) {
            for parking in own_parking_tables() {
                parking.note_tcp_write(now_ns);
            }
        }
    }
}
