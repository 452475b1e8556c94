//! Memory of the kernel that the TCP sockets of a host hold (sock_diag(7), `ss --memory`).

#![allow(unsafe_code)]

use std::os::fd::BorrowedFd;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use sluice_sys::errno::Errno;
use sluice_sys::netlink;
use sluice_sys::unix::Fd;

/// `SOCK_DIAG_BY_FAMILY`, and `NLMSG_ERROR` and `NLMSG_DONE` of netlink(7).
const BY_FAMILY: u16 = 20;
const ERROR: u16 = 2;
const DONE: u16 = 3;
/// Bytes of `struct inet_diag_req_v2` and `struct inet_diag_msg`.
const REQUEST_BYTES: usize = 56;
const ANSWER_BYTES: usize = 72;
/// `INET_DIAG_SKMEMINFO`: an attribute, and in a request the bit one lower. In it are 32-bit numbers,
/// of which these are `SK_MEMINFO_RMEM_ALLOC` and `SK_MEMINFO_WMEM_QUEUED`.
const MEMORY: u16 = 7;
const RECEIVED_AT: usize = 0;
const QUEUED_AT: usize = 5 * 4;

/// More than one answer of the kernel has.
const BUFFER_BYTES: usize = 64 << 10;
const PATIENCE: Duration = Duration::from_secs(5);

/// Asks one network namespace.
#[derive(Debug)]
pub struct Sockets(Fd);

impl Sockets {
    /// Asks the namespace of the calling thread, from any other one as well.
    pub fn here() -> Result<Self, Errno> {
        netlink::open(libc::NETLINK_SOCK_DIAG, 0).map(Self)
    }

    /// Bytes in the queues of all IPv4 sockets, as the kernel accounts for them: what has come and
    /// was not read, and what was written and not acknowledged.
    pub fn queued_bytes(&self) -> Result<u64, Errno> {
        netlink::send(&self.0, request().bytes())?;
        let mut buffer = vec![0; BUFFER_BYTES];
        let mut bytes = 0;
        loop {
            let length = match netlink::receive(&self.0, &mut buffer) {
                Err(Errno::AGAIN) => {
                    self.wait()?;
                    continue;
                }
                other => other?,
            };
            let datagram = buffer.get(..length).unwrap_or_default();
            for message in netlink::messages(datagram) {
                match message.kind {
                    DONE => return Ok(bytes),
                    ERROR => return Err(netlink::failure(message.body)),
                    _ => bytes += queued(message.body),
                }
            }
        }
    }

    fn wait(&self) -> Result<(), Errno> {
        // SAFETY: the socket is open as long as it is borrowed.
        let socket = unsafe { BorrowedFd::borrow_raw(self.0.raw()) };
        let timeout = Timespec::try_from(PATIENCE).map_err(|_| Errno::INVAL)?;
        match poll(&mut [PollFd::new(&socket, PollFlags::IN)], Some(&timeout)) {
            Ok(0) => Err(Errno(libc::ETIMEDOUT)),
            Ok(_) => Ok(()),
            Err(error) => Err(Errno(error.raw_os_error())),
        }
    }
}

/// All TCP sockets over IPv4, in every state.
fn request() -> netlink::Request {
    let mut header = [0; REQUEST_BYTES];
    header[0] = libc::AF_INET as u8;
    header[1] = libc::IPPROTO_TCP as u8;
    header[2] = 1 << (MEMORY - 1);
    header[4..8].fill(0xff);
    netlink::Request::new(
        BY_FAMILY,
        libc::NLM_F_REQUEST | libc::NLM_F_DUMP,
        1,
        &header,
    )
}

fn queued(body: &[u8]) -> u64 {
    let memory = netlink::attributes(body, ANSWER_BYTES).find(|(kind, _)| *kind == MEMORY);
    let number = |at| memory.and_then(|(_, numbers)| netlink::u32_at(numbers, at));
    let number = |at| u64::from(number(at).unwrap_or(0));
    number(RECEIVED_AT) + number(QUEUED_AT)
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::net::{TcpListener, TcpStream};

    use super::*;

    #[test]
    fn what_nobody_reads_is_counted() {
        const WRITTEN_BYTES: u64 = 100_000;
        let listener = TcpListener::bind(("127.0.0.1", 0)).expect("a listener");
        let mut end =
            TcpStream::connect(listener.local_addr().expect("its address")).expect("a connection");
        let other = listener.accept().expect("the other end");
        let written = vec![0; WRITTEN_BYTES as usize];
        end.write_all(&written).expect("the kernel takes it");
        // Other tests' sockets are counted as well: what is held is at least this.
        let sockets = Sockets::here().expect("a netlink socket");
        assert!(sockets.queued_bytes().expect("an answer") >= WRITTEN_BYTES);
        drop(other);
    }

    #[test]
    fn answers_that_are_cut_count_nothing() {
        assert_eq!(queued(&[0; ANSWER_BYTES]), 0);
        assert_eq!(queued(&[]), 0);
    }
}
