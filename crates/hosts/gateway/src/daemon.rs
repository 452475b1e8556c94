//! The connection with the daemon of this host.

use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use sluice_control::client::{Client, ReceiveError};
use sluice_control::message::gateway::{Ask, Tell};
use sluice_control::message::{FromDaemon, Reason, ToDaemon};
use sluice_sys::errno::Errno;

/// Messages taken at a time.
const MESSAGES_PER_TURN_MAX: usize = 256;

/// A session with it, if there is one.
#[derive(Debug)]
pub struct Daemon {
    path: PathBuf,
    client: Option<Client>,
    /// What it was not told yet, because the socket had no room.
    waiting: VecDeque<Ask>,
    /// It refused this process before it had heard what this process is.
    refused: Option<Reason>,
}

/// What it says.
#[derive(Debug)]
#[allow(clippy::large_enum_variant, reason = "messages live for one turn")]
pub enum Said {
    Tell(Tell),
    /// It does not want this process.
    Refused(Reason),
    /// It is gone.
    Gone,
}

impl Daemon {
    pub fn new(path: &Path) -> Daemon {
        Daemon {
            path: path.to_owned(),
            client: None,
            waiting: VecDeque::new(),
            refused: None,
        }
    }

    pub fn is_there(&self) -> bool {
        self.client.is_some()
    }

    /// Makes one attempt to reach it, and says what this process is.
    pub fn connect(&mut self) -> io::Result<()> {
        let failed = |error: Errno| io::Error::from_raw_os_error(error.0);
        let client = Client::connect(self.path.as_os_str().as_bytes()).map_err(failed)?;
        let serve = ToDaemon::Gateway(Ask::Serve);
        if let Err(error) = client.send(&serve, &[]) {
            // A daemon that wants nobody says so and closes, maybe before it is told anything.
            // Its word can still be received then.
            let Ok(Some((FromDaemon::Refused { reason }, _))) = client.receive() else {
                return Err(failed(error));
            };
            self.refused = Some(reason);
        }
        self.client = Some(client);
        Ok(())
    }

    pub fn fd(&self) -> Option<BorrowedFd<'_>> {
        self.client.as_ref().map(|client| client.as_fd())
    }

    /// What has come since the last time. Behind [`Said::Gone`] and [`Said::Refused`] there is no
    /// session any more, but its descriptor until [`Daemon::forget`].
    pub fn receive(&mut self) -> Vec<Said> {
        let mut said = Vec::new();
        let Some(client) = &self.client else {
            return said;
        };
        if let Some(reason) = self.refused.take() {
            return vec![Said::Refused(reason)];
        }
        for _ in 0..MESSAGES_PER_TURN_MAX {
            match client.receive() {
                Ok(Some((FromDaemon::Gateway(tell), _))) => said.push(Said::Tell(tell)),
                Ok(Some((FromDaemon::Refused { reason }, _))) => {
                    said.push(Said::Refused(reason));
                    break;
                }
                Ok(Some(_)) | Err(ReceiveError::Message(_)) => {}
                Ok(None) => break,
                Err(ReceiveError::Closed | ReceiveError::System(_)) => {
                    said.push(Said::Gone);
                    break;
                }
            }
        }
        said
    }

    /// Says something, when there is room: what waits is at most an answer to each question and one
    /// word about each node's port. False: it is gone.
    pub fn say(&mut self, ask: Ask) -> bool {
        let is_news = matches!(ask, Ask::Unreachable { .. });
        if !(is_news && self.waiting.contains(&ask)) {
            self.waiting.push_back(ask);
        }
        self.say_waiting()
    }

    /// Says what there is room for. False: it is gone.
    pub fn say_waiting(&mut self) -> bool {
        let Some(client) = &self.client else {
            return false;
        };
        while let Some(ask) = self.waiting.front() {
            match client.send(&ToDaemon::Gateway(*ask), &[]) {
                Ok(()) => drop(self.waiting.pop_front()),
                Err(Errno::AGAIN) => break,
                Err(_) => return false,
            }
        }
        true
    }

    /// It is to be told more, when there is room.
    pub fn has_waiting(&self) -> bool {
        !self.waiting.is_empty()
    }

    pub fn forget(&mut self) {
        self.client = None;
        self.waiting.clear();
        self.refused = None;
    }
}
