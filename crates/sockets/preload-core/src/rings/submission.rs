//! Entries of a submission queue: what the kernel is about to do, and to which descriptors
//! (`struct io_uring_sqe` in linux/io_uring.h).

use core::ffi::c_int;

/// Bytes of an entry that have the same meaning in every ring.
pub const ENTRY_BYTES: usize = 64;

const OP_NOP: u8 = 0;
const OP_WRITEV: u8 = 2;
const OP_WRITE_FIXED: u8 = 5;
const OP_POLL_ADD: u8 = 6;
const OP_POLL_REMOVE: u8 = 7;
const OP_SENDMSG: u8 = 9;
const OP_TIMEOUT: u8 = 11;
const OP_TIMEOUT_REMOVE: u8 = 12;
const OP_ASYNC_CANCEL: u8 = 14;
const OP_LINK_TIMEOUT: u8 = 15;
const OP_CLOSE: u8 = 19;
const OP_FILES_UPDATE: u8 = 20;
const OP_READ: u8 = 22;
const OP_WRITE: u8 = 23;
const OP_MADVISE: u8 = 25;
const OP_SEND: u8 = 26;
const OP_RECV: u8 = 27;
const OP_EPOLL_CTL: u8 = 29;
const OP_SPLICE: u8 = 30;
const OP_PROVIDE_BUFFERS: u8 = 31;
const OP_REMOVE_BUFFERS: u8 = 32;
const OP_TEE: u8 = 33;
const OP_SHUTDOWN: u8 = 34;
const OP_MSG_RING: u8 = 40;
const OP_SOCKET: u8 = 45;
const OP_SEND_ZC: u8 = 47;
const OP_SENDMSG_ZC: u8 = 48;
const OP_WAITID: u8 = 50;
const OP_FUTEX_WAITV: u8 = 53;
const OP_WRITEV_FIXED: u8 = 61;

const FIXED_FILE: u8 = 1;
const DRAIN: u8 = 1 << 1;
const LINK: u8 = 1 << 2;
const HARDLINK: u8 = 1 << 3;
const BUFFER_SELECT: u8 = 1 << 5;
/// In the flags of a splice: its source is a registered file.
const SPLICE_FD_IN_FIXED: u32 = 1 << 31;

/// One entry, as the program has written it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entry {
    bytes: [u8; ENTRY_BYTES],
}

/// What an entry means for descriptors that hooks know.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Meaning {
    /// It names none.
    Nothing,
    /// The kernel uses these descriptors.
    Uses([Option<c_int>; 2]),
    /// It closes this one.
    Closes(c_int),
    /// It sends the message at this address, which may have descriptors in it.
    Sends(c_int, u64),
    /// It registers the descriptors of an array at this address, and how many.
    Registers(u64, u32),
    /// It is epoll_ctl(2).
    EpollCtl(EpollCtl),
}

/// What an operation on a connection reads of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reading {
    Nothing,
    /// At most so many bytes, and as many as are there.
    Bytes(usize),
    /// Whether there is something, once.
    Readiness,
    /// More than can be said in one of these ways.
    Otherwise,
}

/// epoll_ctl(2) as an entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EpollCtl {
    pub epfd: c_int,
    pub op: c_int,
    pub fd: c_int,
    /// The address of the program's `epoll_event`.
    pub event: u64,
    /// Nothing but this entry decides when and whether it is done.
    pub is_free: bool,
}

impl Entry {
    /// An entry as it lies in the memory of a ring.
    pub fn new(bytes: [u8; ENTRY_BYTES]) -> Self {
        Self { bytes }
    }

    /// For the memory of a ring.
    pub fn bytes(&self) -> &[u8; ENTRY_BYTES] {
        &self.bytes
    }

    fn flags(&self) -> u8 {
        self.bytes[1]
    }

    fn fd(&self) -> c_int {
        self.u32_at(4) as c_int
    }

    fn u32_at(&self, at: usize) -> u32 {
        let mut word = [0; 4];
        word.copy_from_slice(&self.bytes[at..at + 4]);
        u32::from_ne_bytes(word)
    }

    fn u64_at(&self, at: usize) -> u64 {
        let mut word = [0; 8];
        word.copy_from_slice(&self.bytes[at..at + 8]);
        u64::from_ne_bytes(word)
    }

    /// Whether the entry behind this one waits for it.
    pub fn is_linked_to_next(&self) -> bool {
        self.flags() & (LINK | HARDLINK) != 0
    }

    /// What it means. Operations that are not known are taken to use the descriptor they name.
    pub fn meaning(&self) -> Meaning {
        let named = (self.flags() & FIXED_FILE == 0).then(|| self.fd());
        match self.bytes[0] {
            // `fd` is something else, or not looked at.
            OP_NOP
            | OP_POLL_REMOVE
            | OP_TIMEOUT
            | OP_TIMEOUT_REMOVE
            | OP_ASYNC_CANCEL
            | OP_LINK_TIMEOUT
            | OP_MADVISE
            | OP_PROVIDE_BUFFERS
            | OP_REMOVE_BUFFERS
            | OP_MSG_RING
            | OP_SOCKET
            | OP_WAITID..=OP_FUTEX_WAITV => Meaning::Nothing,
            // With a number of a registered file in `file_index` that one is closed.
            OP_CLOSE if self.u32_at(44) != 0 => Meaning::Nothing,
            OP_CLOSE => Meaning::Closes(self.fd()),
            OP_FILES_UPDATE => Meaning::Registers(self.u64_at(16), self.u32_at(24)),
            OP_SENDMSG | OP_SENDMSG_ZC => Meaning::Sends(named.unwrap_or(-1), self.u64_at(16)),
            OP_SPLICE | OP_TEE => {
                let source = self.u32_at(44) as c_int;
                let is_fixed = self.u32_at(28) & SPLICE_FD_IN_FIXED != 0;
                Meaning::Uses([named, (!is_fixed).then_some(source)])
            }
            OP_EPOLL_CTL => Meaning::EpollCtl(EpollCtl {
                epfd: self.fd(),
                op: self.u32_at(24) as c_int,
                fd: self.u64_at(8) as c_int,
                event: self.u64_at(16),
                is_free: self.flags() & (FIXED_FILE | DRAIN | LINK | HARDLINK | BUFFER_SELECT) == 0,
            }),
            _ => match named {
                Some(_) => Meaning::Uses([named, None]),
                None => Meaning::Nothing,
            },
        }
    }

    /// What it reads of the connection that it names.
    pub fn reading(&self) -> Reading {
        const HARMLESS: u32 = (libc::MSG_NOSIGNAL | libc::MSG_DONTWAIT) as u32;
        const POLL_IN: u32 = (libc::POLLIN | libc::POLLRDNORM) as u32;
        let is_plain =
            self.flags() & (FIXED_FILE | BUFFER_SELECT) == 0 && self.bytes[2..4] == [0; 2];
        let (len, details) = (self.u32_at(24), self.u32_at(28));
        match self.bytes[0] {
            OP_WRITEV | OP_WRITE_FIXED | OP_SENDMSG | OP_WRITE | OP_SEND | OP_SHUTDOWN
            | OP_SEND_ZC | OP_SENDMSG_ZC | OP_WRITEV_FIXED => Reading::Nothing,
            OP_READ if is_plain && details == 0 => Reading::Bytes(len as usize),
            OP_RECV if is_plain && details & !HARMLESS == 0 => Reading::Bytes(len as usize),
            OP_POLL_ADD if details & POLL_IN == 0 => Reading::Nothing,
            OP_POLL_ADD if is_plain && len == 0 => Reading::Readiness,
            _ => Reading::Otherwise,
        }
    }

    /// The same for another descriptor.
    pub fn on(&self, fd: c_int) -> Self {
        let mut bytes = self.bytes;
        bytes[4..8].copy_from_slice(&fd.to_ne_bytes());
        Self { bytes }
    }

    /// An entry that does nothing and completes with 0, in the way that this one would have.
    pub fn as_done(&self) -> Self {
        let mut bytes = [0; ENTRY_BYTES];
        bytes[0] = OP_NOP;
        bytes[1] = self.flags();
        bytes[4..8].copy_from_slice(&(-1_i32).to_ne_bytes());
        bytes[32..40].copy_from_slice(&self.bytes[32..40]);
        Self { bytes }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const OP_READV: u8 = 1;
    const OP_EPOLL_WAIT: u8 = 59;

    fn entry(op: u8, change: impl FnOnce(&mut [u8; ENTRY_BYTES])) -> Entry {
        let mut bytes = [0; ENTRY_BYTES];
        bytes[0] = op;
        bytes[4] = 7;
        change(&mut bytes);
        Entry::new(bytes)
    }

    #[test]
    fn descriptors_are_those_that_the_kernel_uses() {
        let meaning = |op| entry(op, |_| {}).meaning();
        assert_eq!(meaning(OP_READV), Meaning::Uses([Some(7), None]));
        assert_eq!(meaning(OP_EPOLL_WAIT), Meaning::Uses([Some(7), None]));
        assert_eq!(meaning(200), Meaning::Uses([Some(7), None]), "a later one");
        assert_eq!(meaning(OP_SPLICE), Meaning::Uses([Some(7), Some(0)]));
        assert_eq!(meaning(OP_CLOSE), Meaning::Closes(7));
        for op in [OP_NOP, OP_PROVIDE_BUFFERS, OP_WAITID, OP_MSG_RING] {
            assert_eq!(meaning(op), Meaning::Nothing, "{op}");
        }
    }

    #[test]
    fn numbers_of_registered_files_are_no_descriptors() {
        let fixed = |bytes: &mut [u8; ENTRY_BYTES]| bytes[1] = FIXED_FILE;
        assert_eq!(entry(OP_READV, fixed).meaning(), Meaning::Nothing);
        let closed = entry(OP_CLOSE, |bytes| bytes[44] = 1);
        assert_eq!(closed.meaning(), Meaning::Nothing);
        let spliced = entry(OP_SPLICE, |bytes| bytes[31] = 0x80);
        assert_eq!(spliced.meaning(), Meaning::Uses([Some(7), None]));
    }

    #[test]
    fn only_simple_reads_are_told_in_bytes() {
        let reading = |op, change: fn(&mut [u8; ENTRY_BYTES])| entry(op, change).reading();
        assert_eq!(reading(OP_RECV, |b| b[24] = 9), Reading::Bytes(9));
        assert_eq!(reading(OP_READ, |b| b[24] = 9), Reading::Bytes(9));
        let peek = libc::MSG_PEEK as u8;
        assert_eq!(peek, 2);
        assert_eq!(reading(OP_RECV, |b| b[28] = 2), Reading::Otherwise);
        assert_eq!(
            reading(OP_RECV, |b| b[2] = 2),
            Reading::Otherwise,
            "multishot"
        );
        assert_eq!(
            reading(OP_RECV, |b| b[1] = BUFFER_SELECT),
            Reading::Otherwise
        );
        assert_eq!(reading(OP_READV, |_| {}), Reading::Otherwise);
        assert_eq!(reading(200, |_| {}), Reading::Otherwise, "a later one");
        assert_eq!(reading(OP_POLL_ADD, |b| b[28] = 1), Reading::Readiness);
        assert_eq!(reading(OP_POLL_ADD, |b| b[28] = 4), Reading::Nothing);
        assert_eq!(reading(OP_SEND, |_| {}), Reading::Nothing);
    }

    #[test]
    fn an_entry_that_is_done_completes_as_it_would_have() {
        let made = entry(OP_EPOLL_CTL, |bytes| {
            bytes[1] = 1 << 6;
            bytes[8] = 9;
            bytes[24] = libc::EPOLL_CTL_ADD as u8;
            bytes[32..40].copy_from_slice(&[5; 8]);
        });
        let Meaning::EpollCtl(ctl) = made.meaning() else {
            panic!("not epoll_ctl");
        };
        assert_eq!((ctl.epfd, ctl.op, ctl.fd, ctl.is_free), (7, 1, 9, true));
        let done = made.as_done();
        assert_eq!(done.meaning(), Meaning::Nothing);
        assert_eq!(
            (done.flags(), done.u64_at(32)),
            (1 << 6, u64::from_ne_bytes([5; 8]))
        );
    }
}
