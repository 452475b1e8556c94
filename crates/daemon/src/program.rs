//! A program that has introduced itself, and the memory that it shares with sluiced.

use sluice_control::message::{Hello, hello_fd, hello_flag};
use sluice_lane::table::HEADER_BYTES;
use sluice_shmem::board::BOARD_BYTES;
use sluice_sys::errno::Errno;
use sluice_sys::memfd::{self, FileStat, SEAL_FUTURE_WRITE, SEAL_GROW, SEAL_SHRINK, SharedWord};
use sluice_sys::unix::{Credentials, Fd, Received};

/// What a program said of itself, checked.
#[derive(Debug)]
pub struct Program {
    /// As sluiced sees it; the program's own word where the kernel does not say.
    pub pid: u32,
    pub name: String,
    /// Given to peers as it is.
    pub board: Fd,
    pub end_table: Fd,
    /// Tells end tables apart: forks share one.
    pub end_table_stat: FileStat,
    /// Its end table was given to an earlier sluiced and is not to be had.
    pub is_earlier: bool,
    mailbox: SharedWord,
}

impl Program {
    /// Takes the descriptors of a `Hello`. `EINVAL` unless they are the sealed memory that it
    /// must bring: whoever maps a board must not be exposed to `SIGBUS`, nor its owner to
    /// writers.
    pub fn new(
        hello: &Hello,
        credentials: Credentials,
        received: &mut Received,
    ) -> Result<Program, Errno> {
        if received.fd_count() != hello_fd::COUNT {
            return Err(Errno::INVAL);
        }
        let mut take = |index| received.take_fd(index).ok_or(Errno::INVAL);
        let mailbox = SharedWord::map(take(hello_fd::MAILBOX)?.raw())?;
        let board = take(hello_fd::BOARD)?;
        let end_table = take(hello_fd::END_TABLE)?;
        let seals = SEAL_SHRINK | SEAL_GROW | SEAL_FUTURE_WRITE;
        memfd::check_foreign(board.raw(), BOARD_BYTES as u64, seals)?;
        let end_table_stat = memfd::check_foreign(end_table.raw(), HEADER_BYTES as u64, seals)?;
        Ok(Program {
            pid: u32::try_from(credentials.pid)
                .ok()
                .filter(|pid| *pid != 0)
                .unwrap_or(hello.pid),
            name: String::from_utf8_lossy(hello.program.as_bytes()).into_owned(),
            board,
            end_table,
            end_table_stat,
            is_earlier: hello.flags & hello_flag::EARLIER != 0,
            mailbox,
        })
    }

    /// Tells the program that messages wait for it.
    pub fn ring(&self) {
        self.mailbox.swap(1);
    }
}
