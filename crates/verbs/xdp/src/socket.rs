//! One AF_XDP socket with its packet memory and its four rings.
#![allow(unsafe_code)]

use std::os::fd::RawFd;
use std::thread;
use std::time::{Duration, Instant};

use sluice_sys::errno::Errno;
use sluice_sys::private::Private;
use sluice_sys::raw::{check, int, syscall3, syscall6};
use sluice_sys::unix::{Fd, get_option, set_option};

use crate::error::OpenError;
use crate::interface::{Interface, missing_capabilities};
use crate::ring::{Consumer, Descriptor, Producer};
use crate::umem::Umem;

/// `XDP_PACKET_HEADROOM`: what the kernel leaves free in front of what it receives.
pub const HEADROOM: usize = 256;
/// `XDP_MAX_TX_SKB_BUDGET` (Linux 6.17): how many packets one call sends in copy mode.
const SEND_BUDGET: i32 = 9;
/// What the kernel's bookkeeping of a packet takes, about.
const COPY_MODE_PACKET_BYTES: usize = 2048;

/// The kernel frees a queue a moment after its socket was closed, so that a program that follows
/// another one finds it busy.
const QUEUE_PATIENCE: Duration = Duration::from_millis(300);

/// How the packet memory is cut up: first the chunks for what comes, then those for what leaves.
#[derive(Clone, Copy, Debug)]
pub struct Layout {
    /// A power of two, from 2048 to a page.
    pub chunk_bytes: usize,
    /// Chunks for what comes.
    pub receive_chunks: usize,
    /// Packets that can be on their way out, a power of two.
    pub send_slots: usize,
    /// Chunks that one of these has, one behind the other.
    pub slot_chunks: usize,
}

impl Layout {
    pub const fn slot_bytes(&self) -> usize {
        self.slot_chunks * self.chunk_bytes
    }

    pub const fn receive_bytes(&self) -> usize {
        self.receive_chunks * self.chunk_bytes
    }

    pub const fn bytes(&self) -> usize {
        self.receive_bytes() + self.send_slots * self.slot_bytes()
    }
}

/// How a socket is bound.
#[derive(Clone, Copy, Debug)]
pub struct Binding {
    pub zero_copy: bool,
    /// Packets of more than one chunk.
    pub pieces: bool,
}

/// A bound socket.
#[derive(Debug)]
pub struct Socket {
    // Unmapped before the socket is closed.
    pub fill: Producer<u64>,
    pub completion: Consumer<u64>,
    pub receive: Consumer<Descriptor>,
    pub send: Producer<Descriptor>,
    fd: Private,
    pub umem: Umem,
}

/// One in each ring for each chunk: so the fill and completion rings never overflow.
fn ring_sizes(layout: &Layout) -> (u32, u32) {
    let send = (layout.send_slots * layout.slot_chunks).next_power_of_two();
    (
        layout.receive_chunks.next_power_of_two() as u32,
        send as u32,
    )
}

impl Socket {
    /// Binds to a queue in the best of `bindings` that the interface takes, and says which.
    pub fn open(
        interface: &Interface,
        queue: u32,
        layout: &Layout,
        bindings: &[Binding],
    ) -> Result<(Self, Binding), OpenError> {
        let kind = libc::SOCK_RAW | libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK;
        // SAFETY: socket takes integers only.
        let ret = unsafe { syscall3(libc::SYS_socket, int(libc::AF_XDP), int(kind), 0) };
        let fd = match check(ret) {
            Ok(fd) => Private::own(Fd::own(fd as RawFd)),
            Err(Errno(libc::EPERM)) => {
                return Err(OpenError::NotPermitted {
                    what: "to open an AF_XDP socket",
                    missing: missing_capabilities(),
                });
            }
            Err(Errno(libc::EAFNOSUPPORT)) => {
                return Err(OpenError::Kernel {
                    lacks: "AF_XDP sockets (Linux 4.18, CONFIG_XDP_SOCKETS)",
                });
            }
            Err(errno) => return Err(OpenError::system("socket(AF_XDP)")(errno)),
        };
        let umem = Umem::new(layout.bytes()).map_err(OpenError::system("mmap"))?;
        register(&fd, &umem, layout)?;
        let (receive, send) = ring_sizes(layout);
        for (name, size) in [
            (libc::XDP_UMEM_FILL_RING, receive),
            (libc::XDP_UMEM_COMPLETION_RING, send),
            (libc::XDP_RX_RING, receive),
            (libc::XDP_TX_RING, send),
        ] {
            set_option(fd.raw(), libc::SOL_XDP, name, &size)
                .map_err(OpenError::system("setsockopt(SOL_XDP), the size of a ring"))?;
        }
        // Copy mode: what one call sends (unknown before Linux 6.17: 32 packets), and how much of
        // it may wait at the receiver. Without them there are more calls.
        let _ = set_option(fd.raw(), libc::SOL_XDP, SEND_BUDGET, &send);
        let waiting = layout.send_slots * (layout.slot_bytes() + COPY_MODE_PACKET_BYTES);
        let waiting = i32::try_from(waiting).unwrap_or(i32::MAX / 2);
        let _ = set_option(fd.raw(), libc::SOL_SOCKET, libc::SO_SNDBUFFORCE, &waiting);
        let offsets = offsets(&fd)?;
        let raw = fd.raw();
        let mapped = OpenError::system("mmap of an AF_XDP ring");
        let mut socket = Self {
            fill: Producer::map(raw, libc::XDP_UMEM_PGOFF_FILL_RING, &offsets.fr, receive)
                .map_err(&mapped)?,
            completion: Consumer::map(raw, libc::XDP_UMEM_PGOFF_COMPLETION_RING, &offsets.cr, send)
                .map_err(&mapped)?,
            receive: Consumer::map(raw, libc::XDP_PGOFF_RX_RING as u64, &offsets.rx, receive)
                .map_err(&mapped)?,
            send: Producer::map(raw, libc::XDP_PGOFF_TX_RING as u64, &offsets.tx, send)
                .map_err(&mapped)?,
            fd,
            umem,
        };
        for chunk in 0..layout.receive_chunks {
            socket.fill.push((chunk * layout.chunk_bytes) as u64);
        }
        socket.fill.publish();
        let binding = socket.bind(interface, queue, bindings)?;
        Ok((socket, binding))
    }

    /// Waits for up to [`QUEUE_PATIENCE`] if the queue is taken.
    fn bind(
        &self,
        interface: &Interface,
        queue: u32,
        bindings: &[Binding],
    ) -> Result<Binding, OpenError> {
        let start = Instant::now();
        loop {
            match self.bind_once(interface, queue, bindings) {
                Err(OpenError::QueueBusy { .. }) if start.elapsed() < QUEUE_PATIENCE => {
                    thread::sleep(Duration::from_millis(1));
                }
                result => return result,
            }
        }
    }

    fn bind_once(
        &self,
        interface: &Interface,
        queue: u32,
        bindings: &[Binding],
    ) -> Result<Binding, OpenError> {
        let mut last = Errno::INVAL;
        for binding in bindings {
            let mut flags = libc::XDP_USE_NEED_WAKEUP;
            flags |= if binding.zero_copy {
                libc::XDP_ZEROCOPY
            } else {
                libc::XDP_COPY
            };
            if binding.pieces {
                flags |= libc::XDP_USE_SG;
            }
            let address = libc::sockaddr_xdp {
                sxdp_family: libc::AF_XDP as u16,
                sxdp_flags: flags,
                sxdp_ifindex: interface.index(),
                sxdp_queue_id: queue,
                sxdp_shared_umem_fd: 0,
            };
            // SAFETY: the kernel reads one sockaddr_xdp.
            let ret = unsafe {
                syscall3(
                    libc::SYS_bind,
                    int(self.fd.raw()),
                    &raw const address as usize,
                    size_of_val(&address),
                )
            };
            match check(ret) {
                Ok(_) => return Ok(*binding),
                Err(Errno(libc::EBUSY)) => {
                    return Err(OpenError::QueueBusy {
                        interface: interface.name().to_owned(),
                        queue,
                    });
                }
                Err(Errno(libc::ENODEV)) => {
                    return Err(OpenError::NoInterface {
                        interface: interface.name().to_owned(),
                    });
                }
                Err(errno) => last = errno,
            }
        }
        Err(OpenError::system("bind(AF_XDP)")(last))
    }

    pub const fn raw(&self) -> RawFd {
        self.fd.raw()
    }

    /// Lets the kernel send what is in the transmit ring.
    pub fn kick_send(&self) -> Result<(), Errno> {
        // SAFETY: neither data nor address is passed.
        let ret = unsafe {
            syscall6(
                libc::SYS_sendto,
                int(self.raw()),
                0,
                0,
                int(libc::MSG_DONTWAIT),
                0,
                0,
            )
        };
        check(ret).map(drop)
    }

    /// Lets the kernel take what is in the fill ring.
    pub fn kick_receive(&self) {
        // SAFETY: no buffer is passed. An error says that there is nothing to do now.
        let _ = unsafe {
            syscall6(
                libc::SYS_recvfrom,
                int(self.raw()),
                0,
                0,
                int(libc::MSG_DONTWAIT),
                0,
                0,
            )
        };
    }

    /// What the kernel counts (`XDP_STATISTICS`).
    pub fn statistics(&self) -> Result<libc::xdp_statistics, Errno> {
        // SAFETY: integers, for which zero is valid.
        let mut statistics: libc::xdp_statistics = unsafe { core::mem::zeroed() };
        get(&self.fd, libc::XDP_STATISTICS, &mut statistics)?;
        Ok(statistics)
    }
}

fn register(fd: &Private, umem: &Umem, layout: &Layout) -> Result<(), OpenError> {
    let registration = libc::xdp_umem_reg {
        addr: umem.address(),
        len: umem.len() as u64,
        chunk_size: layout.chunk_bytes as u32,
        headroom: 0,
        flags: 0,
        tx_metadata_len: 0,
    };
    set_option(fd.raw(), libc::SOL_XDP, libc::XDP_UMEM_REG, &registration).map_err(|errno| {
        match errno.0 {
            libc::ENOBUFS => OpenError::LockedMemory {
                bytes: umem.len(),
                limit: locked_memory_limit(),
            },
            _ => OpenError::system("setsockopt(XDP_UMEM_REG)")(errno),
        }
    })
}

fn locked_memory_limit() -> u64 {
    let mut limit = libc::rlimit {
        rlim_cur: 0,
        rlim_max: 0,
    };
    // SAFETY: getrlimit writes one rlimit.
    unsafe { libc::getrlimit(libc::RLIMIT_MEMLOCK, &raw mut limit) };
    limit.rlim_cur
}

fn offsets(fd: &Private) -> Result<libc::xdp_mmap_offsets, OpenError> {
    // SAFETY: integers, for which zero is valid.
    let mut offsets: libc::xdp_mmap_offsets = unsafe { core::mem::zeroed() };
    match get(fd, libc::XDP_MMAP_OFFSETS, &mut offsets) {
        Ok(bytes) if bytes == size_of_val(&offsets) => Ok(offsets),
        // Older kernels have a shorter structure.
        Ok(_) => Err(OpenError::Kernel {
            lacks: "need_wakeup in AF_XDP rings (Linux 5.4)",
        }),
        Err(errno) => Err(OpenError::system("getsockopt(XDP_MMAP_OFFSETS)")(errno)),
    }
}

/// `T` is made of integers only.
fn get<T>(fd: &Private, name: i32, value: &mut T) -> Result<usize, Errno> {
    // SAFETY: the bytes of a `T`, all of them initialised, in which any bytes are valid.
    let bytes = unsafe {
        core::slice::from_raw_parts_mut(core::ptr::from_mut(value).cast::<u8>(), size_of::<T>())
    };
    get_option(fd.raw(), libc::SOL_XDP, name, bytes)
}
