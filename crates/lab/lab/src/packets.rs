//! Whole frames in and out of a device, in batches: `AF_PACKET` (packet(7)).

#![allow(unsafe_code)]

use std::ffi::CString;
use std::io;
use std::mem::{size_of, zeroed};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::ptr;
use std::time::Duration;

/// Frames that one system call takes.
pub const BATCH: usize = 64;

/// What the kernel may keep for a socket that does not read, in bytes.
const RECEIVE_BUFFER: libc::c_int = 64 << 20;

/// How often a frame is offered again to a device that has no room for it.
const RETRIES_MAX: u32 = 10_000;

/// What a socket is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// Gets the frames that come in from the device's other end.
    Receive,
    /// Gets the frames of both directions.
    Watch,
    /// Only sends.
    Send,
}

/// A socket for one device of the calling thread's network namespace.
#[derive(Debug)]
pub struct PacketSocket {
    descriptor: OwnedFd,
}

/// Received frames, until the next ones.
pub struct Batch {
    frames: Vec<Vec<u8>>,
    lengths: [usize; BATCH],
    count: usize,
}

impl Batch {
    /// For frames of at most so many bytes.
    pub fn new(frame_bytes_max: usize) -> Batch {
        Batch {
            frames: vec![vec![0; frame_bytes_max]; BATCH],
            lengths: [0; BATCH],
            count: 0,
        }
    }

    pub fn len(&self) -> usize {
        self.count
    }

    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// The frame with the index; empty when there is none.
    pub fn frame(&self, index: usize) -> &[u8] {
        match (self.frames.get(index), self.lengths.get(index)) {
            (Some(frame), Some(&length)) => frame.get(..length).unwrap_or_default(),
            _ => &[],
        }
    }

    pub fn frame_mut(&mut self, index: usize) -> &mut [u8] {
        match (self.frames.get_mut(index), self.lengths.get(index)) {
            (Some(frame), Some(&length)) => frame.get_mut(..length).unwrap_or_default(),
            _ => &mut [],
        }
    }
}

impl PacketSocket {
    /// # Errors
    /// `EPERM` for other users than root, `ENODEV` where there is no such device.
    pub fn open(device: &str, role: Role) -> io::Result<PacketSocket> {
        let name = CString::new(device)?;
        // SAFETY: the name ends with a zero byte.
        let index = unsafe { libc::if_nametoindex(name.as_ptr()) };
        if index == 0 {
            return Err(io::Error::last_os_error());
        }
        // No protocol yet: nothing arrives before the socket is bound to its device.
        let kind = libc::SOCK_RAW | libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK;
        // SAFETY: no pointers.
        let number = unsafe { libc::socket(libc::AF_PACKET, kind, 0) };
        check(number)?;
        // SAFETY: the number was just returned as a new descriptor, which nobody else owns.
        let descriptor = unsafe { OwnedFd::from_raw_fd(number) };
        let socket = PacketSocket { descriptor };
        match role {
            Role::Send => socket.set(libc::SOL_PACKET, libc::PACKET_QDISC_BYPASS, 1)?,
            Role::Receive | Role::Watch => {
                socket.set(libc::SOL_SOCKET, libc::SO_RCVBUFFORCE, RECEIVE_BUFFER)?;
                if role == Role::Receive {
                    socket.set(libc::SOL_PACKET, libc::PACKET_IGNORE_OUTGOING, 1)?;
                }
            }
        }
        let everything = if role == Role::Send {
            0
        } else {
            libc::ETH_P_ALL as u16
        };
        // SAFETY: a structure of numbers, for which zero is legal.
        let mut address: libc::sockaddr_ll = unsafe { zeroed() };
        address.sll_family = libc::AF_PACKET as u16;
        address.sll_protocol = everything.to_be();
        address.sll_ifindex = index as i32;
        // SAFETY: the address is a sockaddr_ll and its size is given.
        let bound = unsafe {
            libc::bind(
                socket.number(),
                ptr::from_ref(&address).cast(),
                size_of::<libc::sockaddr_ll>() as u32,
            )
        };
        check(bound)?;
        Ok(socket)
    }

    /// Takes what is there, waiting for at most so long when there is nothing.
    ///
    /// Frames longer than the batch has room for are an error: a test would see them cut.
    pub fn receive(&self, batch: &mut Batch, wait: Duration) -> io::Result<()> {
        batch.count = 0;
        let count = match self.receive_now(batch) {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock && !wait.is_zero() => {
                self.await_frames(wait)?;
                self.receive_now(batch)
            }
            other => other,
        };
        match count {
            Ok(count) => batch.count = count,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            // The device was taken down; it may come back.
            Err(error) if error.raw_os_error() == Some(libc::ENETDOWN) => {}
            Err(error) => return Err(error),
        }
        Ok(())
    }

    fn receive_now(&self, batch: &mut Batch) -> io::Result<usize> {
        let mut places = batch.frames.iter_mut().map(|frame| libc::iovec {
            iov_base: frame.as_mut_ptr().cast(),
            iov_len: frame.len(),
        });
        let nothing = libc::iovec {
            iov_base: ptr::null_mut(),
            iov_len: 0,
        };
        let mut places: [libc::iovec; BATCH] =
            std::array::from_fn(|_| places.next().unwrap_or(nothing));
        let mut messages = headers(&mut places);
        // SAFETY: every header points to one place, and every place to a frame's memory, which
        // the batch owns and nobody else uses meanwhile.
        let count = unsafe {
            libc::recvmmsg(
                self.number(),
                messages.as_mut_ptr(),
                BATCH as u32,
                libc::MSG_TRUNC,
                ptr::null_mut(),
            )
        };
        check(count)?;
        let count = (count as usize).min(BATCH);
        for ((length, message), frame) in batch
            .lengths
            .iter_mut()
            .zip(&messages)
            .zip(&batch.frames)
            .take(count)
        {
            *length = message.msg_len as usize;
            if *length > frame.len() {
                return Err(io::Error::other(format!(
                    "a frame of {length} bytes, more than {}: is segmentation offload on?",
                    frame.len()
                )));
            }
        }
        Ok(count)
    }

    fn await_frames(&self, wait: Duration) -> io::Result<()> {
        let time = rustix::event::Timespec {
            tv_sec: i64::try_from(wait.as_secs()).unwrap_or(i64::MAX),
            tv_nsec: wait.subsec_nanos().into(),
        };
        let mut watched = [rustix::event::PollFd::new(
            &self.descriptor,
            rustix::event::PollFlags::IN,
        )];
        match rustix::event::poll(&mut watched, Some(&time)) {
            Ok(_) | Err(rustix::io::Errno::INTR) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    /// Sends the frames, in order. Returns how many the device did not take.
    pub fn send(&self, frames: &[&[u8]]) -> io::Result<u64> {
        let mut refused = 0;
        for part in frames.chunks(BATCH) {
            refused += self.send_batch(part)?;
        }
        Ok(refused)
    }

    fn send_batch(&self, frames: &[&[u8]]) -> io::Result<u64> {
        let mut places = [libc::iovec {
            iov_base: ptr::null_mut(),
            iov_len: 0,
        }; BATCH];
        for (place, frame) in places.iter_mut().zip(frames) {
            place.iov_base = frame.as_ptr().cast_mut().cast();
            place.iov_len = frame.len();
        }
        let mut messages = headers(&mut places);
        let (mut done, mut refused, mut retries) = (0, 0, 0);
        while let Some(rest) = messages.get_mut(done..frames.len())
            && !rest.is_empty()
        {
            // SAFETY: every header points to one place, and every place to a frame, which is borrowed for the
            // call and which sending only reads.
            let count =
                unsafe { libc::sendmmsg(self.number(), rest.as_mut_ptr(), rest.len() as u32, 0) };
            if let Err(error) = check(count) {
                let full = [libc::ENOBUFS, libc::EAGAIN];
                let skip = [libc::EMSGSIZE, libc::ENETDOWN, libc::ENXIO];
                match error.raw_os_error() {
                    Some(number) if full.contains(&number) && retries < RETRIES_MAX => {
                        retries += 1;
                        std::thread::yield_now();
                    }
                    Some(number) if full.contains(&number) || skip.contains(&number) => {
                        refused += 1;
                        done += 1;
                    }
                    _ => return Err(error),
                }
            } else {
                done += count as usize;
            }
        }
        Ok(refused)
    }

    /// How many frames found the receive buffer full, since the last question.
    pub fn dropped(&self) -> io::Result<u64> {
        // SAFETY: a structure of numbers, for which zero is legal.
        let mut statistics: libc::tpacket_stats = unsafe { zeroed() };
        let mut length = size_of::<libc::tpacket_stats>() as u32;
        // SAFETY: the kernel writes at most as many bytes as the structure has.
        let result = unsafe {
            libc::getsockopt(
                self.number(),
                libc::SOL_PACKET,
                libc::PACKET_STATISTICS,
                ptr::from_mut(&mut statistics).cast(),
                &mut length,
            )
        };
        check(result)?;
        Ok(statistics.tp_drops.into())
    }

    fn set(&self, level: i32, option: i32, value: libc::c_int) -> io::Result<()> {
        // SAFETY: the option is an int, and so is the value.
        let result = unsafe {
            libc::setsockopt(
                self.number(),
                level,
                option,
                ptr::from_ref(&value).cast(),
                size_of::<libc::c_int>() as u32,
            )
        };
        check(result)
    }

    fn number(&self) -> i32 {
        self.descriptor.as_raw_fd()
    }
}

/// One message for each place.
fn headers(places: &mut [libc::iovec; BATCH]) -> [libc::mmsghdr; BATCH] {
    // SAFETY: structures of numbers and pointers, for which zero is legal.
    let mut messages: [libc::mmsghdr; BATCH] = unsafe { zeroed() };
    for (message, place) in messages.iter_mut().zip(places) {
        message.msg_hdr.msg_iov = place;
        message.msg_hdr.msg_iovlen = 1;
    }
    messages
}

fn check(result: libc::c_int) -> io::Result<()> {
    if result < 0 {
        Err(io::Error::last_os_error())
    } else {
        Ok(())
    }
}
