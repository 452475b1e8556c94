//! A program that has introduced itself, and the memory that it shares with sluiced.

use std::os::fd::RawFd;
use std::sync::Arc;

use sluice_control::message::{Hello, hello_fd, hello_flag};
use sluice_lane::table::HEADER_BYTES;
use sluice_shmem::parking::PARKING_BYTES;
use sluice_sys::errno::Errno;
use sluice_sys::memfd::{self, FileStat, SEAL_FUTURE_WRITE, SEAL_GROW, SEAL_SHRINK, SharedWord};
use sluice_sys::unix::{Credentials, Fd, Received};

/// The memory in which a program, and its forks, count what their connections move.
#[derive(Debug)]
pub struct EndTable {
    file: Fd,
    stat: FileStat,
}

impl EndTable {
    /// `EINVAL` unless the memory is sealed as a program's must be.
    pub fn new(file: Fd) -> Result<EndTable, Errno> {
        let seals = SEAL_SHRINK | SEAL_GROW | SEAL_FUTURE_WRITE;
        let stat = memfd::check_foreign(file.raw(), HEADER_BYTES as u64, seals)?;
        Ok(EndTable { file, stat })
    }

    /// To be read with `pread`, and never mapped.
    pub fn raw(&self) -> RawFd {
        self.file.raw()
    }

    /// Tells tables apart.
    pub fn id(&self) -> (u64, u64) {
        (self.stat.device, self.stat.inode)
    }
}

/// What a program said of itself, checked.
#[derive(Debug)]
pub struct Program {
    /// As sluiced sees it; the program's own word where the kernel does not say.
    pub pid: u32,
    pub name: String,
    /// Given to peers as it is.
    pub parking: Fd,
    /// Forks share one.
    pub end_table: Arc<EndTable>,
    /// Its end table was given to an earlier sluiced and is not to be had.
    pub is_earlier: bool,
    event_flag: SharedWord,
}

impl Program {
    /// Takes the descriptors of a `Hello`. `EINVAL` unless they are the sealed memory that it
    /// must bring: whoever maps a parking table must not be exposed to `SIGBUS`, nor its owner to
    /// writers.
    ///
    /// `introducer` is the table of the program that introduced this one, which forks go on using.
    pub fn new(
        hello: &Hello,
        credentials: Credentials,
        received: &mut Received,
        introducer: Option<Arc<EndTable>>,
    ) -> Result<Program, Errno> {
        if received.fd_count() != hello_fd::COUNT {
            return Err(Errno::INVAL);
        }
        let mut take = |index| received.take_fd(index).ok_or(Errno::INVAL);
        let event_flag = SharedWord::map(take(hello_fd::EVENT_FLAG)?.raw())?;
        let parking = take(hello_fd::PARKING)?;
        let own = EndTable::new(take(hello_fd::END_TABLE)?)?;
        let seals = SEAL_SHRINK | SEAL_GROW | SEAL_FUTURE_WRITE;
        memfd::check_foreign(parking.raw(), PARKING_BYTES as u64, seals)?;
        let end_table = match introducer {
            Some(shared) if hello.flags & hello_flag::SHARED != 0 => shared,
            _ => Arc::new(own),
        };
        Ok(Program {
            pid: u32::try_from(credentials.pid)
                .ok()
                .filter(|pid| *pid != 0)
                .unwrap_or(hello.pid),
            name: String::from_utf8_lossy(hello.program.as_bytes()).into_owned(),
            parking,
            end_table,
            is_earlier: hello.flags & hello_flag::EARLIER != 0,
            event_flag,
        })
    }

    /// Tells the program that messages wait for it.
    pub fn ring(&self) {
        self.event_flag.swap(1);
    }
}
