//! Programs: loading them, and attaching them for as long as a descriptor is open.
#![allow(unsafe_code)]

use core::ffi::CStr;
use std::os::fd::RawFd;

use super::map::Map;
use super::{ITERATOR_CREATE, LINK_CREATE, PROGRAM_ATTACH, PROGRAM_LOAD, PROGRAM_RUN, bpf, name};
use crate::errno::Errno;
use crate::private::Private;
use crate::raw::{check, int, syscall3};
use crate::unix::Fd;

/// `BPF_F_XDP_HAS_FRAGS`: the program copes with packets of several buffers (Linux 5.18).
const HAS_FRAGMENTS: u32 = 1 << 5;
/// `XDP_FLAGS_SKB_MODE` and `XDP_FLAGS_DRV_MODE` of `if_link.h`.
const ATTACH_GENERIC: u32 = 1 << 1;
const ATTACH_NATIVE: u32 = 1 << 2;
/// Second register field of a 64-bit immediate load: the immediate is a map's descriptor.
const PSEUDO_MAP_FD: u8 = 1;

const INSTRUCTION_BYTES: usize = 8;
const LOG_BYTES: usize = 64 * 1024;
/// How often a program is given to the kernel.
const LOADS_MAX: u32 = 16;

/// Loads a program by `once`, and again: the verifier gives up with `EAGAIN` when a signal comes in between
/// (kernel/bpf/verifier.c, `do_check`), be it the end of a child.
pub fn uninterrupted<T>(mut once: impl FnMut() -> Result<T, Errno>) -> Result<T, Errno> {
    for _ in 1..LOADS_MAX {
        match once() {
            Err(errno) if errno.0 == libc::EAGAIN => {}
            done => return done,
        }
    }
    once()
}

/// What a program is run for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProgramKind {
    /// Packets that pass an interface.
    Classifier = 3,
    /// Packets as they arrive.
    Xdp = 6,
    /// Sockets of a cgroup as they are made and released.
    CgroupSocket = 9,
    /// What happens to TCP connections of a cgroup.
    SocketOperations = 13,
    /// Messages that are written to the sockets of a map.
    SocketMessage = 16,
    /// Addresses in socket calls of a cgroup.
    CgroupAddress = 18,
    /// A function of the kernel, or what it goes through.
    Tracing = 26,
}

/// Where a program is attached; a program of most kinds is loaded for one place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AttachType {
    /// Programs that are not loaded for a place.
    Nowhere = 0,
    SocketOperations = 3,
    SocketMessage = 7,
    Connect4 = 10,
    Connect6 = 11,
    Iterator = 28,
    PeerName4 = 29,
    PeerName6 = 30,
    SocketName4 = 31,
    SocketName6 = 32,
    SocketRelease = 34,
    Xdp = 37,
}

/// What `crates/base/bpf-build` made of one program.
#[derive(Clone, Copy, Debug)]
pub struct Code {
    pub instructions: &'static [u8],
    /// Which instructions load the descriptor of which map.
    pub maps: &'static [(usize, &'static str)],
}

#[repr(C)]
struct ProgramLoad {
    kind: u32,
    count: u32,
    instructions: u64,
    license: u64,
    log_level: u32,
    log_bytes: u32,
    log: u64,
    kernel_version: u32,
    flags: u32,
    name: [u8; 16],
    interface: u32,
    attach_type: u32,
    // Types of our own, and lines of the source: none.
    types: u32,
    function_record_bytes: u32,
    functions: u64,
    function_count: u32,
    line_record_bytes: u32,
    lines: u64,
    line_count: u32,
    target: u32,
}

/// Of `bpf_attr.link_create`, what links to interfaces and cgroups use.
#[repr(C)]
struct LinkCreate {
    program: u32,
    target: u32,
    attach_type: u32,
    flags: u32,
}

/// Of `bpf_attr` without a name, for places that are not left when a descriptor is closed.
#[repr(C)]
struct ProgramAttach {
    target: u32,
    program: u32,
    attach_type: u32,
    flags: u32,
}

/// Of `bpf_attr.test`.
#[repr(C)]
struct ProgramRun {
    program: u32,
    result: u32,
    packet_bytes: u32,
    out_bytes: u32,
    packet: u64,
    out: u64,
    times: u32,
    duration: u32,
    context_bytes: u32,
    context_out_bytes: u32,
    context: u64,
    context_out: u64,
}

/// Why a program was not loaded.
#[derive(Debug)]
pub struct Refusal {
    pub errno: Errno,
    /// What the verifier says, if it came to that.
    pub log: String,
}

impl From<Errno> for Refusal {
    fn from(errno: Errno) -> Self {
        Self {
            errno,
            log: String::new(),
        }
    }
}

/// A program to load.
#[derive(Clone, Copy, Debug)]
pub struct Load<'a> {
    /// What tools show of it.
    pub title: &'a str,
    pub license: &'a CStr,
    pub kind: ProgramKind,
    pub attach_type: AttachType,
    /// Of an XDP program: it copes with packets of several buffers (Linux 5.18).
    pub fragments: bool,
    /// Of a tracing program: the function's number in the kernel's types ([`super::Btf`]).
    pub target: u32,
}

/// A loaded program.
#[derive(Debug)]
pub struct Program {
    fd: Private,
    attach_type: AttachType,
}

/// What keeps a program attached: until this is dropped, or the process ends.
#[derive(Debug)]
pub struct Link(Private);

impl Link {
    pub const fn raw(&self) -> RawFd {
        self.0.raw()
    }
}

impl Program {
    pub const fn raw(&self) -> RawFd {
        self.fd.raw()
    }

    /// Loads instructions into which the descriptors of their maps are put. `ENOENT`: a map that
    /// the program names is not among `maps`.
    pub fn load(load: &Load<'_>, code: Code, maps: &[(&str, &Map)]) -> Result<Self, Refusal> {
        let mut instructions = code.instructions.to_vec();
        for (place, wanted) in code.maps {
            let (_, map) = maps
                .iter()
                .find(|(name, _)| name == wanted)
                .ok_or(Errno(libc::ENOENT))?;
            put_descriptor(&mut instructions, *place, map.raw())?;
        }
        let mut attribute = ProgramLoad {
            kind: load.kind as u32,
            count: (instructions.len() / INSTRUCTION_BYTES) as u32,
            instructions: instructions.as_ptr() as u64,
            license: load.license.as_ptr() as u64,
            log_level: 0,
            log_bytes: 0,
            log: 0,
            kernel_version: 0,
            flags: if load.fragments { HAS_FRAGMENTS } else { 0 },
            name: name(load.title),
            interface: 0,
            attach_type: load.attach_type as u32,
            types: 0,
            function_record_bytes: 0,
            functions: 0,
            function_count: 0,
            line_record_bytes: 0,
            lines: 0,
            line_count: 0,
            target: load.target,
        };
        let own = |fd| Self {
            fd: Private::own(Fd::own(fd as RawFd)),
            attach_type: load.attach_type,
        };
        // SAFETY: this is PROGRAM_LOAD's attribute: `count` instructions of 8 bytes, a C string,
        // and no log.
        let errno = match uninterrupted(|| unsafe { bpf(PROGRAM_LOAD, &mut attribute) }) {
            Ok(fd) => return Ok(own(fd)),
            Err(errno) => errno,
        };
        // Once more, to hear why.
        let mut log = vec![0u8; LOG_BYTES];
        attribute.log_level = 1;
        attribute.log_bytes = LOG_BYTES as u32;
        attribute.log = log.as_mut_ptr() as u64;
        // SAFETY: PROGRAM_LOAD's attribute with instructions and a C string that live through the call;
        // the kernel writes at most `log_bytes` bytes to the log.
        if let Ok(fd) = unsafe { bpf(PROGRAM_LOAD, &mut attribute) } {
            return Ok(own(fd));
        }
        let end = log.iter().position(|byte| *byte == 0).unwrap_or(0);
        log.truncate(end);
        Err(Refusal {
            errno,
            log: String::from_utf8_lossy(&log).trim().to_owned(),
        })
    }

    /// Attaches an XDP program to an interface. `EBUSY` and `EEXIST`: another program is there.
    pub fn attach_to_interface(&self, interface: u32, native: bool) -> Result<Link, Errno> {
        let flags = if native {
            ATTACH_NATIVE
        } else {
            ATTACH_GENERIC
        };
        self.attach(interface, flags)
    }

    /// Attaches the program to a cgroup (of version 2), beside what is there (Linux 5.7).
    /// `EPERM`: one is there, or above, that was attached so that it is the only one.
    pub fn attach_to_cgroup(&self, cgroup: RawFd) -> Result<Link, Errno> {
        self.attach(cgroup as u32, 0)
    }

    /// Attaches the program to a map of sockets ([`super::Kind::SocketHash`]) as long as that exists:
    /// for those that are put there from now on.
    pub fn attach_to_map(&self, map: &Map) -> Result<(), Errno> {
        let mut attribute = ProgramAttach {
            target: map.raw() as u32,
            program: self.fd.raw() as u32,
            attach_type: self.attach_type as u32,
            flags: 0,
        };
        // SAFETY: this is PROGRAM_ATTACH's attribute, and it has no address.
        unsafe { bpf(PROGRAM_ATTACH, &mut attribute) }.map(drop)
    }

    /// Runs a program for packets once, with this one, as if it were at the loopback interface of the calling thread's
    /// network namespace; and returns what the program does.
    pub fn run(&self, packet: &[u8]) -> Result<u32, Errno> {
        let mut attribute = ProgramRun {
            program: self.raw() as u32,
            result: 0,
            packet_bytes: packet.len() as u32,
            out_bytes: 0,
            packet: packet.as_ptr() as u64,
            out: 0,
            times: 1,
            duration: 0,
            context_bytes: 0,
            context_out_bytes: 0,
            context: 0,
            context_out: 0,
        };
        // SAFETY: this is PROGRAM_RUN's attribute: a packet of `packet_bytes`, which the kernel copies, no room for what
        // becomes of it, and no context.
        uninterrupted(|| unsafe { bpf(PROGRAM_RUN, &mut attribute) })?;
        Ok(attribute.result)
    }

    /// Runs an iterator's program for all that it goes through (Linux 5.8). Of sockets: those of
    /// the calling thread's network namespace. What the program prints is dropped.
    pub fn iterate(&self) -> Result<(), Errno> {
        let link = self.attach(0, 0)?;
        let mut attribute = [link.raw() as u32, 0];
        // SAFETY: this is ITER_CREATE's attribute, and it has no address.
        let fd = unsafe { bpf(ITERATOR_CREATE, &mut attribute) }?;
        let iterator = Fd::own(fd as RawFd);
        let mut printed = [0u8; 4096];
        loop {
            let address = printed.as_mut_ptr() as usize;
            // SAFETY: read writes at most as many bytes as the buffer has.
            let read = check(unsafe {
                syscall3(libc::SYS_read, int(iterator.raw()), address, printed.len())
            });
            match read {
                Ok(0) => return Ok(()),
                Ok(_) | Err(Errno::AGAIN | Errno::INTR) => {}
                Err(errno) => return Err(errno),
            }
        }
    }

    fn attach(&self, target: u32, flags: u32) -> Result<Link, Errno> {
        let mut attribute = LinkCreate {
            program: self.fd.raw() as u32,
            target,
            attach_type: self.attach_type as u32,
            flags,
        };
        // SAFETY: this is LINK_CREATE's attribute, and it has no address.
        unsafe { bpf(LINK_CREATE, &mut attribute) }
            .map(|fd| Link(Private::own(Fd::own(fd as RawFd))))
    }
}

/// `EINVAL`: there is no such instruction.
fn put_descriptor(instructions: &mut [u8], place: usize, map: RawFd) -> Result<(), Errno> {
    let load = instructions
        .get_mut(place.saturating_mul(INSTRUCTION_BYTES)..)
        .and_then(<[u8]>::first_chunk_mut::<INSTRUCTION_BYTES>)
        .ok_or(Errno::INVAL)?;
    // Destination and source register share a byte; which half is which goes with the byte order.
    let (destination, shift) = if cfg!(target_endian = "big") {
        (load[1] & 0xf0, 0)
    } else {
        (load[1] & 0x0f, 4)
    };
    load[1] = destination | PSEUDO_MAP_FD << shift;
    load[4..].copy_from_slice(&map.to_ne_bytes());
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_load_that_a_signal_ended_is_repeated_and_others_are_not() {
        let tried = |errno: i32, times: u32| {
            let mut count = 0;
            let done = uninterrupted(|| {
                count += 1;
                if count > times {
                    Ok(count)
                } else {
                    Err(Errno(errno))
                }
            });
            (done, count)
        };
        assert_eq!(tried(libc::EAGAIN, 0), (Ok(1), 1));
        assert_eq!(tried(libc::EAGAIN, 3), (Ok(4), 4));
        assert_eq!(tried(libc::EACCES, 3), (Err(Errno(libc::EACCES)), 1));
        assert_eq!(
            tried(libc::EAGAIN, u32::MAX),
            (Err(Errno(libc::EAGAIN)), LOADS_MAX)
        );
    }
}
