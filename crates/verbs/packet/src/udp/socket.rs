//! UDP sockets and the system calls on them, without libc's functions, which programs that carry
//! this code may interpose.
#![allow(unsafe_code)]

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::os::fd::RawFd;

use sluice_sys::errno::Errno;
use sluice_sys::raw::{check, int, syscall3, syscall4, syscall5, syscall6};
use sluice_sys::unix::{Fd, get_option, set_option};

use super::control::{self, Control};

/// Bytes of the longer of the two socket addresses, that of IPv6.
const NAME_BYTES: usize = size_of::<libc::sockaddr_in6>();

/// A socket address (`struct sockaddr_in` or `sockaddr_in6`) as the kernel has it.
#[derive(Clone, Copy, Debug)]
#[repr(C, align(8))]
pub struct Name {
    bytes: [u8; NAME_BYTES],
}

impl Name {
    const EMPTY: Self = Self {
        bytes: [0; NAME_BYTES],
    };

    /// An address; `scope` is the interface of a link-local IPv6 address.
    pub fn new(address: IpAddr, port: u16, scope: u32) -> Self {
        let mut name = Self::EMPTY;
        let mut put = |at: usize, bytes: &[u8]| {
            for (to, from) in name.bytes.iter_mut().skip(at).zip(bytes) {
                *to = *from;
            }
        };
        put(2, &port.to_be_bytes());
        match address {
            IpAddr::V4(address) => {
                put(0, &(libc::AF_INET as u16).to_ne_bytes());
                put(4, &address.octets());
            }
            IpAddr::V6(address) => {
                put(0, &(libc::AF_INET6 as u16).to_ne_bytes());
                put(8, &address.octets());
                if address.is_unicast_link_local() || address.is_multicast() {
                    put(24, &scope.to_ne_bytes());
                }
            }
        }
        name
    }

    fn family(&self) -> i32 {
        let [low, high, ..] = self.bytes;
        i32::from(u16::from_ne_bytes([low, high]))
    }

    fn len(&self) -> usize {
        if self.family() == libc::AF_INET {
            size_of::<libc::sockaddr_in>()
        } else {
            NAME_BYTES
        }
    }

    /// Address and port. None when it is of neither family.
    pub fn parse(&self) -> Option<(IpAddr, u16)> {
        let [_, _, p0, p1, rest @ ..] = &self.bytes;
        let address = match self.family() {
            libc::AF_INET => Ipv4Addr::from(*rest.first_chunk::<4>()?).into(),
            libc::AF_INET6 => Ipv6Addr::from(*rest.get(4..)?.first_chunk::<16>()?).into(),
            _ => return None,
        };
        Some((address, u16::from_be_bytes([*p0, *p1])))
    }
}

/// A new UDP socket of a family (`AF_INET`, `AF_INET6`), close-on-exec and non-blocking.
pub fn open(family: i32) -> Result<Fd, Errno> {
    let kind = libc::SOCK_DGRAM | libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK;
    // SAFETY: socket takes integers only.
    let ret = unsafe { syscall3(libc::SYS_socket, int(family), int(kind), 0) };
    check(ret).map(|fd| Fd::own(fd as RawFd))
}

/// Gives the socket its address.
pub fn bind(socket: &Fd, name: &Name) -> Result<(), Errno> {
    let address = name.bytes.as_ptr() as usize;
    // SAFETY: the kernel reads as many bytes as `len` says, no more than a name has.
    let ret = unsafe { syscall3(libc::SYS_bind, int(socket.raw()), address, name.len()) };
    check(ret).map(drop)
}

/// `setsockopt`.
pub fn set(socket: &Fd, level: i32, option: i32, value: &[u8]) -> Result<(), Errno> {
    set_option(socket.raw(), level, option, value)
}

/// `setsockopt` of an int.
pub fn set_int(socket: &Fd, level: i32, option: i32, value: i32) -> Result<(), Errno> {
    set(socket, level, option, &value.to_ne_bytes())
}

/// Another descriptor of the same socket.
pub fn duplicate(socket: &Fd) -> Result<Fd, Errno> {
    // SAFETY: F_DUPFD_CLOEXEC takes integers only.
    let ret = unsafe {
        syscall3(
            libc::SYS_fcntl,
            int(socket.raw()),
            int(libc::F_DUPFD_CLOEXEC),
            0,
        )
    };
    check(ret).map(|fd| Fd::own(fd as RawFd))
}

/// One instruction of a classic BPF program (`struct sock_filter`).
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct Instruction {
    code: u16,
    if_true: u8,
    if_false: u8,
    k: u32,
}

impl Instruction {
    /// `code` as <linux/filter.h> has it; how many instructions are left out if a jump's condition
    /// holds, and if it does not.
    pub const fn new(code: u32, if_true: u8, if_false: u8, k: u32) -> Self {
        Self {
            code: code as u16,
            if_true,
            if_false,
            k,
        }
    }
}

/// Has a program choose which socket of the group a packet comes to, in place of any other that
/// chose.
pub fn steer_group(socket: RawFd, program: &[Instruction]) -> Result<(), Errno> {
    /// `struct sock_fprog`.
    #[repr(C)]
    struct Program {
        length: u16,
        start: *const Instruction,
    }
    let program = Program {
        length: u16::try_from(program.len()).map_err(|_| Errno::INVAL)?,
        start: program.as_ptr(),
    };
    // SAFETY: the kernel reads the structure, which it gets the length of, and behind its pointer
    // as many instructions as it says, which the caller lends for this call. Instructions have
    // the kernel's layout: they are 8 bytes without padding.
    let ret = unsafe {
        syscall5(
            libc::SYS_setsockopt,
            int(socket),
            int(libc::SOL_SOCKET),
            int(libc::SO_ATTACH_REUSEPORT_CBPF),
            &raw const program as usize,
            size_of::<Program>(),
        )
    };
    check(ret).map(drop)
}

/// What the kernel has dropped that came for the socket; 0 where it does not say.
pub fn drops(socket: &Fd) -> u32 {
    // Of the 32-bit numbers that SO_MEMINFO gives, SK_MEMINFO_DROPS is at place 8.
    let mut numbers = [0; 36];
    match get_option(socket.raw(), libc::SOL_SOCKET, SO_MEMINFO, &mut numbers) {
        Ok(_) => numbers
            .last_chunk()
            .map_or(0, |last| u32::from_ne_bytes(*last)),
        Err(_) => 0,
    }
}

/// `SO_MEMINFO` (Linux 4.12).
const SO_MEMINFO: i32 = 55;

/// Sends an empty datagram, without waiting.
pub fn send_empty(socket: &Fd, to: IpAddr, port: u16, scope: u32) -> Result<(), Errno> {
    let name = Name::new(to, port, scope);
    // SAFETY: the kernel reads no data and as many bytes of `name` as it has.
    let ret = unsafe {
        syscall6(
            libc::SYS_sendto,
            int(socket.raw()),
            0,
            0,
            int(libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL),
            name.bytes.as_ptr() as usize,
            name.len(),
        )
    };
    check(ret).map(drop)
}

const NO_HEADER: libc::mmsghdr = libc::mmsghdr {
    // SAFETY: plain integers and pointers, for which zero is a valid value. Built this way because
    // its padding fields differ between C libraries.
    msg_hdr: unsafe { core::mem::zeroed() },
    msg_len: 0,
};

const NO_PART: libc::iovec = libc::iovec {
    iov_base: core::ptr::null_mut(),
    iov_len: 0,
};

/// Room for datagrams that come, several with one system call.
pub struct Incoming {
    buffer: Vec<u8>,
    /// From one datagram's place to the next.
    stride: usize,
    datagram_bytes_max: usize,
    names: Vec<Name>,
    controls: Vec<Control>,
    parts: Vec<libc::iovec>,
    headers: Vec<libc::mmsghdr>,
    filled: usize,
}

// SAFETY: the pointers in `parts` and `headers` lead into the other fields, which go where this
// goes; nothing else has them.
unsafe impl Send for Incoming {}

/// One of the datagrams that came.
pub struct Datagram<'a> {
    /// From where.
    pub name: &'a Name,
    /// What the kernel says beside it.
    pub control: &'a [u8],
    /// What it carried.
    pub bytes: &'a [u8],
    /// It was longer than the place for it, or what is beside it was.
    pub cut: bool,
}

impl Incoming {
    /// For `count` datagrams of at most so many bytes.
    pub fn new(count: usize, datagram_bytes_max: usize) -> Self {
        // Not a power of two, or all would want the same places in the processor's cache.
        let stride = datagram_bytes_max.next_multiple_of(64) + 576;
        let mut all = Self {
            buffer: vec![0; count * stride],
            stride,
            datagram_bytes_max,
            names: vec![Name::EMPTY; count],
            controls: vec![Control([0; control::BYTES]); count],
            parts: vec![NO_PART; count],
            headers: vec![NO_HEADER; count],
            filled: count,
        };
        all.prepare();
        all
    }

    /// Makes the places that the kernel has used as they were.
    fn prepare(&mut self) {
        let count = self.filled.min(self.headers.len());
        let places = self.buffer.chunks_mut(self.stride).zip(&mut self.names);
        let headers = self.headers.iter_mut().zip(&mut self.controls);
        let all = places.zip(headers.zip(&mut self.parts));
        for ((place, name), ((header, control), part)) in all.take(count) {
            part.iov_base = place.as_mut_ptr().cast();
            part.iov_len = self.datagram_bytes_max.min(place.len());
            *header = NO_HEADER;
            header.msg_hdr.msg_name = name.bytes.as_mut_ptr().cast();
            header.msg_hdr.msg_namelen = NAME_BYTES as u32;
            header.msg_hdr.msg_control = control.0.as_mut_ptr().cast();
            header.msg_hdr.msg_controllen = control::BYTES as _;
            header.msg_hdr.msg_iov = part;
            header.msg_hdr.msg_iovlen = 1;
        }
        self.filled = 0;
    }

    /// Takes what has come, up to so many datagrams, without waiting (`EAGAIN`). How many bytes.
    pub fn receive(&mut self, socket: &Fd, limit: usize) -> Result<usize, Errno> {
        self.prepare();
        // SAFETY: every header points to one part, a name and a control buffer of this object,
        // and every part to a place in its buffer, with the lengths that these have. No vector
        // changes its size after `new`. The kernel writes there and into the headers.
        let ret = unsafe {
            syscall5(
                libc::SYS_recvmmsg,
                int(socket.raw()),
                self.headers.as_mut_ptr() as usize,
                self.headers.len().min(limit),
                int(libc::MSG_DONTWAIT),
                0,
            )
        };
        let count = check(ret)?;
        self.filled = count;
        let came = self.headers.iter().take(count);
        Ok(came.map(|header| header.msg_len as usize).sum())
    }

    /// The datagrams of the last [`Incoming::receive`].
    pub fn datagrams(&self) -> impl Iterator<Item = Datagram<'_>> {
        let places = self.buffer.chunks(self.stride);
        let rest = self.names.iter().zip(&self.controls);
        let all = places.zip(&self.headers).zip(rest).take(self.filled);
        all.map(|((place, header), (name, control))| {
            let flags = header.msg_hdr.msg_flags;
            let told = control.0.get(..header.msg_hdr.msg_controllen);
            Datagram {
                name,
                control: told.unwrap_or_default(),
                bytes: place.get(..header.msg_len as usize).unwrap_or_default(),
                cut: flags & (libc::MSG_TRUNC | libc::MSG_CTRUNC) != 0,
            }
        })
    }
}

/// Messages that leave with one system call. Each may be made of several parts.
pub struct Outgoing {
    names: Vec<Name>,
    controls: Vec<Control>,
    parts: Vec<libc::iovec>,
    headers: Vec<libc::mmsghdr>,
}

// SAFETY: the pointers in `headers` and `parts` lead into the other fields, which go where this goes, and
// to slices that are lent for one call; between calls nobody follows them.
unsafe impl Send for Outgoing {}

impl Outgoing {
    /// For so many messages and parts.
    pub fn new(count: usize) -> Self {
        Self {
            names: vec![Name::EMPTY; count],
            controls: vec![Control([0; control::BYTES]); count],
            parts: vec![NO_PART; count],
            headers: vec![NO_HEADER; count],
        }
    }

    /// Sends messages, without waiting (`EAGAIN`); how many the kernel took, at least one. Each
    /// has the number of its parts; the parts of all come from `parts` one after the other.
    pub fn send<'a>(
        &mut self,
        socket: &Fd,
        messages: impl Iterator<Item = (Name, control::Telling, usize)>,
        parts: impl Iterator<Item = &'a [u8]>,
    ) -> Result<usize, Errno> {
        let mut ready = 0;
        for (slot, part) in self.parts.iter_mut().zip(parts) {
            slot.iov_base = part.as_ptr().cast_mut().cast();
            slot.iov_len = part.len();
            ready += 1;
        }
        let mut free = self.parts.get_mut(..ready).unwrap_or_default();
        let mut count = 0;
        let places = self.names.iter_mut().zip(&mut self.controls);
        let places = places.zip(&mut self.headers);
        for (((name, control), header), (to, telling, wanted)) in places.zip(messages) {
            let Some((own, rest)) = free.split_at_mut_checked(wanted) else {
                break;
            };
            free = rest;
            *name = to;
            *header = NO_HEADER;
            header.msg_hdr.msg_name = name.bytes.as_mut_ptr().cast();
            header.msg_hdr.msg_namelen = name.len() as u32;
            header.msg_hdr.msg_controllen = telling.write(control) as _;
            header.msg_hdr.msg_control = control.0.as_mut_ptr().cast();
            header.msg_hdr.msg_iov = own.as_mut_ptr();
            header.msg_hdr.msg_iovlen = own.len() as _;
            count += 1;
        }
        let flags = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL;
        loop {
            // SAFETY: the first `count` headers point to a name, a control buffer and parts of this
            // object, with the lengths that these have, and the parts to slices that the caller
            // lends for this call. The kernel reads them and writes only into the headers.
            let ret = unsafe {
                syscall4(
                    libc::SYS_sendmmsg,
                    int(socket.raw()),
                    self.headers.as_mut_ptr() as usize,
                    count,
                    int(flags),
                )
            };
            match check(ret) {
                Err(Errno::INTR) => {}
                other => return other,
            }
        }
    }
}
