//! The connection with the daemon of this host.

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
        client.send(&serve, &[]).map_err(failed)?;
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

    /// Says something. False: it does not read, or is gone.
    pub fn say(&self, ask: Ask) -> bool {
        let client = self.client.as_ref();
        client.is_some_and(|client| client.send(&ToDaemon::Gateway(ask), &[]).is_ok())
    }

    pub fn forget(&mut self) {
        self.client = None;
    }
}
