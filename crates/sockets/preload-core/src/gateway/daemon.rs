//! Questions about gateways to the daemon, by calls that are not to wait for it.

use core::ffi::c_int;
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use sluice_control::client::{Client, ClientError};
use sluice_control::message::gateway::{Ask, Tell};
use sluice_control::message::{FromDaemon, ToDaemon};
use sluice_lane::clock::now_ns;
use sluice_sys::errno::Errno;

use super::names;
use crate::link;

/// A daemon that did not answer in time is not waited for, for so long; it doubles while it goes on.
const SILENCE_NS_MIN: u64 = if cfg!(test) { 3_600 } else { 1 } * 1_000_000_000;
/// At most.
const SILENCE_NS_MAX: u64 = 32 * SILENCE_NS_MIN;

static SILENT_UNTIL_NS: AtomicU64 = AtomicU64::new(0);
/// One after the other.
static SILENCES: AtomicU32 = AtomicU32::new(0);

/// The daemon did not answer a moment ago: it was stopped, or cannot keep up.
pub fn is_silent() -> bool {
    now_ns() < SILENT_UNTIL_NS.load(Ordering::Relaxed)
}

/// Asks once and waits so long for the answer, or not at all while [`is_silent`]. `EAGAIN`: there
/// is none; `ENOENT`, `ECONNREFUSED`, `EPIPE`: there is no daemon.
pub fn ask(what: Ask, fds: &[c_int], limit: Duration) -> Result<Tell, Errno> {
    let names = names().ok_or(Errno::INVAL)?;
    let path = names.socket_path();
    let client = Client::connect(path)?;
    link::check_server(&client, path)?;
    client.send(&ToDaemon::Gateway(what), fds)?;
    let is_awaited = !is_silent();
    let limit = if is_awaited { limit } else { Duration::ZERO };
    #[cfg(test)]
    let limit = testing::limit(limit);
    match client.receive_until(Instant::now() + limit) {
        Ok((FromDaemon::Gateway(tell), _)) => {
            SILENCES.store(0, Ordering::Relaxed);
            SILENT_UNTIL_NS.store(0, Ordering::Relaxed);
            Ok(tell)
        }
        Ok(_) => Err(Errno::PROTO),
        Err(ClientError::Hung) if is_awaited => {
            let before = SILENCES.fetch_add(1, Ordering::Relaxed);
            let silence = SILENCE_NS_MIN << before.min(5);
            let until = now_ns() + silence.min(SILENCE_NS_MAX);
            SILENT_UNTIL_NS.store(until, Ordering::Relaxed);
            Err(Errno::AGAIN)
        }
        Err(_) => Err(Errno::AGAIN),
    }
}

/// A daemon that tests play, and what is known of it from now on.
#[cfg(test)]
pub mod testing {
    use super::*;
    use std::os::unix::ffi::OsStrExt;
    use std::sync::atomic::AtomicBool;
    use std::sync::{LazyLock, Mutex, MutexGuard};

    use sluice_sys::unix::{self, Fd};

    /// One for all tests of the process, whose settings are read once.
    static DAEMON: LazyLock<Mutex<Fd>> = LazyLock::new(|| {
        let path = std::env::temp_dir().join(format!("sluice-gw-{}", std::process::id()));
        let _ = std::fs::remove_file(&path);
        let path = path.as_os_str().as_bytes();
        let socket = unix::seqpacket().unwrap();
        unix::bind(socket.raw(), path).unwrap();
        unix::listen(socket.raw(), 64).unwrap();
        super::super::set_names(b"gw", path).unwrap();
        Mutex::new(socket)
    });

    /// It will answer: it may stand still before.
    static WILL_ANSWER: AtomicBool = AtomicBool::new(false);

    /// For how long it is waited for.
    pub fn limit(limit: Duration) -> Duration {
        if WILL_ANSWER.load(Ordering::Relaxed) {
            Duration::from_secs(60)
        } else {
            limit
        }
    }

    /// Nobody has asked it anything yet, and it has answered everything.
    pub struct Daemon(MutexGuard<'static, Fd>);

    impl Drop for Daemon {
        fn drop(&mut self) {
            WILL_ANSWER.store(false, Ordering::Relaxed);
        }
    }

    impl Daemon {
        /// One that answers what it is asked.
        pub fn answering() -> Daemon {
            let daemon = Daemon::new();
            WILL_ANSWER.store(true, Ordering::Relaxed);
            daemon
        }

        pub fn new() -> Daemon {
            let socket = DAEMON
                .lock()
                .unwrap_or_else(|poisoned| poisoned.into_inner());
            let daemon = Daemon(socket);
            while daemon.asked() != 0 {}
            SILENCES.store(0, Ordering::Relaxed);
            SILENT_UNTIL_NS.store(0, Ordering::Relaxed);
            daemon
        }

        /// How often it was asked since the last time.
        pub fn asked(&self) -> usize {
            let mut asked = 0;
            while unix::accept(self.0.raw()).is_ok() {
                asked += 1;
            }
            asked
        }

        /// Answers one question, when it comes.
        pub fn answer(&self, tell: Tell) {
            unix::wait_readable(self.0.raw(), 60_000).unwrap();
            let client = unix::accept(self.0.raw()).unwrap();
            let mut buffer = [0; sluice_control::message::MESSAGE_BYTES_MAX];
            unix::wait_readable(client.raw(), 60_000).unwrap();
            unix::receive_with_fds(client.raw(), &mut buffer).unwrap();
            let message = FromDaemon::Gateway(tell);
            unix::send_with_fds(client.raw(), message.encode(&mut buffer), &[]).unwrap();
        }
    }
}
