//! Two ends of a real TCP connection over loopback, with the memory of a lane between them.
//!
//! What the preload library does around `receive` and `send` is done here in its simplest form:
//! the kernel's part of a call is `recvmsg` or `sendmsg`, shutting down pins first, closing with
//! unread bytes resets. Memory is mapped shared and stays mapped, so everything works across
//! fork.
#![allow(unsafe_code, dead_code)]

pub mod process;
pub mod raw_lane;

use sluice_lane::end::{Assignment, End, EndSnapshot, Role};
use sluice_lane::table::{EndTable, table_bytes};
use sluice_lane::{Piece, receive, send, wait};
use sluice_shmem::chunk::Chunk;
use sluice_shmem::direction::Direction;
use sluice_shmem::geometry::Geometry;
use sluice_shmem::parking::{PARKING_BYTES, ParkingTable};
use sluice_sys::errno::Errno;
use sluice_sys::tcp;
use std::net::{TcpListener, TcpStream};
use std::os::fd::IntoRawFd;
use std::ptr::NonNull;

/// Bytes of a small ring: it is full, and goes round, after a few writes.
pub const SMALL_RING: u32 = 16 * 1024;

/// Zeroed memory that forks share, mapped for the rest of the process's life.
pub fn shared_memory(bytes: usize) -> NonNull<u8> {
    // SAFETY: a new mapping at an address the kernel picks touches nothing that exists.
    let address = unsafe {
        libc::mmap(
            std::ptr::null_mut(),
            bytes,
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_SHARED | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE,
            -1,
            0,
        )
    };
    assert_ne!(address, libc::MAP_FAILED, "mmap of {bytes} bytes");
    NonNull::new(address.cast()).expect("not mapped at zero")
}

/// A new end table, its header written.
pub fn new_table() -> EndTable {
    // SAFETY: the memory is zeroed, page aligned, and never unmapped.
    let table = unsafe { EndTable::from_raw(shared_memory(table_bytes())) };
    table.describe(std::process::id());
    table
}

fn new_parking() -> ParkingTable {
    // SAFETY: the memory is page aligned and never unmapped.
    unsafe { ParkingTable::from_raw(shared_memory(PARKING_BYTES.next_multiple_of(4096))) }
}

/// One end, as the program that holds it sees it. Copies name the same end.
#[derive(Clone, Copy)]
pub struct Side {
    pub fd: i32,
    pub end: &'static End,
    pub generation: u32,
    /// Which side of the lane it is.
    pub number: u32,
    pub parking: ParkingTable,
    peer_parking: ParkingTable,
    chunk: Chunk,
}

/// How a read is done.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct How {
    pub peek: bool,
    pub waitall: bool,
    pub dontwait: bool,
}

/// A blocking read.
pub const BLOCK: How = How {
    peek: false,
    waitall: false,
    dontwait: false,
};

/// `MSG_DONTWAIT`.
pub const DONTWAIT: How = How {
    peek: false,
    waitall: false,
    dontwait: true,
};

/// `MSG_WAITALL`.
pub const WAITALL: How = How {
    peek: false,
    waitall: true,
    dontwait: false,
};

/// `MSG_PEEK | MSG_DONTWAIT`.
pub const PEEK: How = How {
    peek: true,
    waitall: false,
    dontwait: true,
};

impl How {
    pub fn flags(self) -> i32 {
        let flag = |on, flag| if on { flag } else { 0 };
        flag(self.peek, libc::MSG_PEEK)
            | flag(self.waitall, libc::MSG_WAITALL)
            | flag(self.dontwait, libc::MSG_DONTWAIT)
    }
}

/// The kernel's part of a read: the piece, and its place in the buffer.
pub type KernelPart<'a> = &'a mut dyn FnMut(Piece, &mut [u8]) -> Result<usize, Errno>;

/// The kernel's part of a write: the piece, and all bytes.
pub type KernelSend<'a> = &'a mut dyn FnMut(Piece, &[u8]) -> Result<usize, Errno>;

/// The number of a failed call, as the kernel's functions return it.
pub fn from_c(value: isize) -> Result<usize, Errno> {
    usize::try_from(value).map_err(|_| last_errno())
}

pub fn last_errno() -> Errno {
    // SAFETY: errno of this thread.
    Errno(unsafe { *libc::__errno_location() })
}

/// `recv` by the kernel alone.
pub fn kernel_recv(fd: i32, buffer: &mut [u8], flags: i32) -> Result<usize, Errno> {
    // SAFETY: the kernel writes at most the buffer's length.
    from_c(unsafe { libc::recv(fd, buffer.as_mut_ptr().cast(), buffer.len(), flags) })
}

/// `send` by the kernel alone, without SIGPIPE.
pub fn kernel_send(fd: i32, bytes: &[u8], flags: i32) -> Result<usize, Errno> {
    let flags = flags | libc::MSG_NOSIGNAL;
    // SAFETY: the kernel reads at most the length of `bytes`.
    from_c(unsafe { libc::send(fd, bytes.as_ptr().cast(), bytes.len(), flags) })
}

fn part(address: *mut u8, len: usize) -> [libc::iovec; 1] {
    [libc::iovec {
        iov_base: address.cast(),
        iov_len: len,
    }]
}

impl Side {
    /// `recv` through the lane.
    pub fn recv(&self, buffer: &mut [u8], how: How) -> Result<usize, Errno> {
        let (fd, total) = (self.fd, buffer.len());
        let mut kernel = |piece: Piece, rest: &mut [u8]| {
            if piece.limit == 0 && total > 0 {
                return kernel_recv(fd, &mut [0], how.flags() | libc::MSG_PEEK).map(|_| 0);
            }
            let dontwait = if piece.dontwait {
                libc::MSG_DONTWAIT
            } else {
                0
            };
            kernel_recv(fd, rest, how.flags() | dontwait)
        };
        self.recv_with(buffer, how, &mut kernel)
    }

    /// `recv` through the lane, with `kernel` for the kernel's part.
    pub fn recv_with(
        &self,
        buffer: &mut [u8],
        how: How,
        kernel: KernelPart,
    ) -> Result<usize, Errno> {
        let (address, len) = (buffer.as_mut_ptr(), buffer.len());
        let request = receive::Request {
            parts: &part(address, len),
            peek: how.peek,
            waitall: how.waitall,
            dontwait: how.dontwait,
        };
        receive::receive(self.end, self.generation, self.fd, &request, &mut |piece| {
            assert!(piece.skip + piece.limit <= len, "{piece:?} of {len}");
            // SAFETY: the piece lies in the buffer, which nothing else uses during the call.
            let rest =
                unsafe { std::slice::from_raw_parts_mut(address.add(piece.skip), piece.limit) };
            kernel(piece, rest)
        })
    }

    /// `send` through the lane.
    pub fn send(&self, bytes: &[u8], dontwait: bool) -> Result<usize, Errno> {
        let flags = if dontwait { libc::MSG_DONTWAIT } else { 0 };
        let fd = self.fd;
        self.send_with(bytes, dontwait, &mut |piece, bytes| {
            kernel_send(fd, &bytes[piece.skip..piece.skip + piece.limit], flags)
        })
    }

    /// `send` through the lane, with `kernel` for the kernel's part, which is given all the bytes.
    pub fn send_with(
        &self,
        bytes: &[u8],
        dontwait: bool,
        kernel: KernelSend,
    ) -> Result<usize, Errno> {
        let request = send::Request {
            parts: &part(bytes.as_ptr().cast_mut(), bytes.len()),
            dontwait,
        };
        send::send(self.end, self.generation, self.fd, &request, &mut |piece| {
            kernel(piece, bytes)
        })
    }

    /// Sends all of `bytes`, blocking.
    pub fn send_all(&self, bytes: &[u8]) -> Result<(), Errno> {
        let mut done = 0;
        while done < bytes.len() {
            done += self.send(&bytes[done..], false)?;
        }
        Ok(())
    }

    /// Gives this end the lane.
    pub fn attach(&self) -> bool {
        self.attach_lane(0)
    }

    /// Gives this end a lane whose other process is sluiced, for a peer on another host.
    pub fn attach_remote(&self) -> bool {
        self.attach_as(0, true, false)
    }

    /// Gives this end a certain lane of the chunk.
    pub fn attach_lane(&self, lane: u32) -> bool {
        self.attach_as(lane, false, false)
    }

    /// Gives this end the lane, which is to wait.
    pub fn attach_patiently(&self) -> bool {
        self.attach_as(0, false, true)
    }

    fn attach_as(&self, lane: u32, remote: bool, patient: bool) -> bool {
        self.end.attach(
            self.generation,
            &Assignment {
                chunk: self.chunk,
                lane,
                side: self.number,
                peer_parking: Some(self.peer_parking),
                own_parking: self.parking,
                watchers: 0,
                remote,
                direct: false,
                patient,
            },
        )
    }

    /// Enables the lane if it can be enabled now, as poll does.
    pub fn look(&self) -> Option<wait::Ready> {
        wait::ready(self.end, self.generation, self.fd)
    }

    /// Shuts down what this end sends, as the preload library does.
    pub fn shutdown_write(&self) -> Result<(), Errno> {
        self.end.shut_tx(self.generation);
        // SAFETY: no memory is passed.
        from_c(unsafe { libc::shutdown(self.fd, libc::SHUT_WR) } as isize).map(drop)
    }

    /// Closes the connection, as the preload library does for the last descriptor.
    pub fn close(self) {
        if self.end.unread_ring_bytes(self.generation, self.fd) > 0 {
            set_linger_zero(self.fd);
        }
        assert!(self.end.drop_ref(), "the only descriptor");
        self.end.finish(self.generation);
        close(self.fd);
    }

    /// Closes so that the peer gets RST.
    pub fn reset(self) {
        set_linger_zero(self.fd);
        self.close();
    }

    /// What the record says, perhaps while others use it: the counters are not of one moment.
    pub fn snapshot(&self) -> EndSnapshot {
        let record: *const u8 = std::ptr::from_ref(self.end).cast();
        // SAFETY: a record has END_BYTES; it is copied byte by byte, as sluiced does through a
        // file, and whatever comes out is checked.
        let bytes = std::array::from_fn(|at| unsafe { record.add(at).read_volatile() });
        EndSnapshot::from_bytes(&bytes).expect("a record in use")
    }

    /// The memory that both ends have lanes in.
    pub fn chunk(&self) -> Chunk {
        self.chunk
    }

    /// The lane's words.
    pub fn words(&self) -> raw_lane::Words {
        raw_lane::Words::of(self.chunk)
    }
}

/// The close that follows resets the connection.
pub fn set_linger_zero(fd: i32) {
    let linger = libc::linger {
        l_onoff: 1,
        l_linger: 0,
    };
    // SAFETY: setsockopt reads one struct linger.
    let ret = unsafe {
        libc::setsockopt(
            fd,
            libc::SOL_SOCKET,
            libc::SO_LINGER,
            (&raw const linger).cast(),
            size_of::<libc::linger>() as u32,
        )
    };
    assert_eq!(ret, 0, "SO_LINGER: {}", last_errno());
}

pub fn close(fd: i32) {
    // SAFETY: the tests own their descriptors.
    unsafe { libc::close(fd) };
}

/// Both ends of a connection; `a` connected, `b` was accepted.
#[derive(Clone, Copy)]
pub struct Pair {
    pub a: Side,
    pub b: Side,
}

/// Two connected TCP sockets over IPv4 loopback: the one that connected comes first.
pub fn sockets() -> (i32, i32) {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a loopback listener");
    let address = listener.local_addr().expect("its address");
    let connected = TcpStream::connect(address).expect("connect to it");
    let (accepted, _) = listener.accept().expect("accept");
    connected.set_nodelay(true).expect("TCP_NODELAY");
    accepted.set_nodelay(true).expect("TCP_NODELAY");
    (connected.into_raw_fd(), accepted.into_raw_fd())
}

impl Pair {
    /// A connection whose ends are announced and have no lane yet.
    pub fn announced(ring_bytes: u32) -> Self {
        let geometry = Geometry::new(2, ring_bytes).expect("a legal geometry");
        // SAFETY: zeroed memory of that size, page aligned, never unmapped.
        let chunk =
            unsafe { Chunk::from_raw(shared_memory(geometry.chunk_bytes() as usize), geometry) };
        let (parking_tables, fds) = ([new_parking(), new_parking()], sockets());
        let side = |number: u32, fd: i32, role| {
            let table = Box::leak(Box::new(new_table()));
            let (index, generation) = table.take(false).expect("a free record");
            let end = table.end(index);
            end.start(role);
            let [local, peer] =
                [tcp::local_address(fd), tcp::peer_address(fd)].map(|it| it.expect("an address"));
            end.set_addresses(&local, &peer);
            assert!(end.mark_announced());
            Side {
                fd,
                end,
                generation,
                number,
                parking: parking_tables[number as usize],
                peer_parking: parking_tables[1 - number as usize],
                chunk,
            }
        };
        Self {
            a: side(0, fds.0, Role::Connected),
            b: side(1, fds.1, Role::Accepted),
        }
    }

    /// The direction from `a` to `b`, to play its sender.
    pub fn there(&self) -> Direction {
        self.a.end.outgoing().expect("an end with a lane")
    }

    /// A connection whose ends have the lane and read by its rules.
    pub fn enabled(ring_bytes: u32) -> Self {
        let pair = Self::announced(ring_bytes);
        for side in [pair.a, pair.b] {
            assert!(side.attach());
            assert!(side.look().is_some(), "nothing keeps the end from enabling");
        }
        pair
    }
}

/// The byte at a position of the test streams: no period that a ring's size divides.
pub fn byte_at(position: u64) -> u8 {
    let mixed = (position ^ (position >> 7)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    (mixed >> 56) as u8
}

/// Bytes of a test stream from `position` on.
pub fn bytes_at(position: u64, len: usize) -> Vec<u8> {
    (position..position + len as u64).map(byte_at).collect()
}

/// Fails unless `got` are the bytes of the test stream from `position` on.
pub fn check_bytes(position: u64, got: &[u8]) {
    if let Some(at) = (0..got.len()).find(|at| got[*at] != byte_at(position + *at as u64)) {
        panic!("byte {} of the stream is wrong", position + at as u64);
    }
}
