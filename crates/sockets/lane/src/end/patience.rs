//! A lane that is not in use yet: both halves are the kernel's, and their calls take the short way.
//!
//! What is counted is what the end of the patience needs: who is in the kernel on behalf of either
//! half. How many bytes went by TCP the kernel itself is asked then.

use super::flags::Flags;
use super::{End, Locked};
use crate::kernel::is_final;
use crate::lock::{count, count_bytes};
use crate::parking::count_kernel_transfer;
use sluice_sys::errno::Errno;

/// With one of them there is more to do than the kernel's call.
const FLAGS_OF_MORE: Flags = Flags::BROKEN
    .and(Flags::GAP)
    .and(Flags::PIN_RX)
    .and(Flags::PIN_TX);

impl End {
    /// Whether the connection is the kernel's as long as its lane is patient.
    #[inline]
    fn is_plain(&self) -> bool {
        self.flags.get().has(Flags::PATIENT, FLAGS_OF_MORE)
    }

    /// The lane may be used from now on ([`Assignment::patient`](super::Assignment::patient)), and
    /// these slots of [`End::own_parking`] watch the connection.
    pub fn end_patience(&self, watchers: u64) {
        if let Some(into) = self.incoming() {
            into.watch_all(watchers);
        }
        self.flags.clear(Flags::PATIENT);
    }

    /// A read of a connection with a patient lane, by the program's own call, for `wanted` bytes.
    /// `None`, and no call, where there is more to do than that.
    #[inline]
    pub fn read_patiently(
        &self,
        generation: u32,
        wanted: usize,
        call: impl FnOnce() -> Result<usize, Errno>,
    ) -> Option<Result<usize, Errno>> {
        if !self.is_plain() {
            return None;
        }
        let Locked::Held(rx) = self.lock_rx(generation) else {
            return None;
        };
        if !self.is_plain() {
            return None;
        }
        count(&self.rx.in_kernel, 1);
        drop(rx);
        let result = call();
        let is_over = match result {
            Ok(bytes) => bytes == 0 && wanted > 0,
            Err(errno) => is_final(errno),
        };
        if is_over {
            self.flags.set(Flags::PEER_DONE);
        }
        // Under the lock: the record may be given to another connection meanwhile.
        if let Locked::Held(_rx) = self.lock_rx(generation) {
            count(&self.rx.in_kernel, -1);
            count_bytes(&self.bytes.tcp_rx, result.unwrap_or(0));
        }
        Some(result)
    }

    /// A write likewise.
    #[inline]
    pub fn write_patiently(
        &self,
        generation: u32,
        call: impl FnOnce() -> Result<usize, Errno>,
    ) -> Option<Result<usize, Errno>> {
        if !self.is_plain() {
            return None;
        }
        let Locked::Held(mut tx) = self.lock_tx(generation) else {
            return None;
        };
        if !self.is_plain() {
            return None;
        }
        tx.stream.note_tcp();
        self.note_tcp_write();
        count(&self.tx.in_kernel, 1);
        drop(tx);
        let result = call();
        count_kernel_transfer();
        if let Locked::Held(_tx) = self.lock_tx(generation) {
            count(&self.tx.in_kernel, -1);
            count_bytes(&self.bytes.tcp_tx, result.unwrap_or(0));
            self.kernel_calls.count_write();
        }
        Some(result)
    }
}
