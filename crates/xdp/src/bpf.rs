//! The bpf() system call, as far as this crate needs it (bpf(2), `include/uapi/linux/bpf.h`).
#![allow(unsafe_code)]

use core::ffi::CStr;
use std::os::fd::RawFd;

use sluice_sys::errno::Errno;
use sluice_sys::raw::{check, syscall3};
use sluice_sys::unix::Fd;

use crate::private::Private;

// Commands, kinds and flags, with the header's numbers. Maps, programs and links get descriptors
// that are close-on-exec, always.
const MAP_CREATE: usize = 0;
const MAP_LOOKUP: usize = 1;
const MAP_UPDATE: usize = 2;
const MAP_DELETE: usize = 3;
const PROGRAM_LOAD: usize = 5;
const LINK_CREATE: usize = 28;
const PROGRAM_XDP: u32 = 6;
const ATTACH_XDP: u32 = 37;
/// The program copes with packets of several buffers (Linux 5.18).
const PROGRAM_HAS_FRAGMENTS: u32 = 1 << 5;
/// `XDP_FLAGS_SKB_MODE` and `XDP_FLAGS_DRV_MODE` of `if_link.h`.
const ATTACH_GENERIC: u32 = 1 << 1;
const ATTACH_NATIVE: u32 = 1 << 2;
/// Second register field of a 64-bit immediate load: the immediate is a map's descriptor.
const PSEUDO_MAP_FD: u8 = 1;

const INSTRUCTION_BYTES: usize = 8;
const LOG_BYTES: usize = 64 * 1024;
/// More processors than Linux can be built for. For a per-CPU map the kernel writes one number
/// for each that there could be.
const CPUS_MAX: usize = 16 * 1024;

/// Kinds of maps.
#[derive(Clone, Copy, Debug)]
pub enum Kind {
    /// Any key, any value.
    Hash = 1,
    /// Keys from 0.
    Array = 2,
    /// An array of 64-bit numbers for each processor.
    PerCpuArray = 6,
    /// AF_XDP sockets by queue.
    Sockets = 17,
}

#[repr(C)]
struct MapCreate {
    kind: u32,
    key_bytes: u32,
    value_bytes: u32,
    entries_max: u32,
    flags: u32,
    inner: u32,
    numa_node: u32,
    name: [u8; 16],
}

#[repr(C)]
struct Element {
    map: u32,
    zero: u32,
    key: u64,
    value: u64,
    flags: u64,
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
}

#[repr(C)]
struct LinkCreate {
    program: u32,
    interface: u32,
    attach_type: u32,
    flags: u32,
}

/// # Safety
///
/// `T` is the attribute of `command`, and its addresses are valid for what the command does.
unsafe fn bpf<T>(command: usize, attribute: &mut T) -> Result<usize, Errno> {
    let address = &raw mut *attribute as usize;
    // SAFETY: the kernel reads `size_of::<T>()` bytes there (and may write to them); the caller
    // vouches for the rest.
    check(unsafe { syscall3(libc::SYS_bpf, command, address, size_of::<T>()) })
}

fn name(text: &str) -> [u8; 16] {
    let mut name = [0; 16];
    // The last byte stays 0.
    for (to, from) in name[..15].iter_mut().zip(text.bytes()) {
        *to = from;
    }
    name
}

/// A map. Keys and values are of one size each.
#[derive(Debug)]
pub struct Map {
    fd: Private,
    key_bytes: usize,
    value_bytes: usize,
    per_cpu: bool,
}

impl Map {
    /// A new map, empty or all zero. `EPERM`: no CAP_BPF. On Linux before 5.11 also: the limit
    /// of locked memory.
    pub fn new(
        title: &str,
        kind: Kind,
        key_bytes: usize,
        value_bytes: usize,
        entries_max: u32,
    ) -> Result<Self, Errno> {
        let mut attribute = MapCreate {
            kind: kind as u32,
            key_bytes: key_bytes as u32,
            value_bytes: value_bytes as u32,
            entries_max,
            flags: 0,
            inner: 0,
            numa_node: 0,
            name: name(title),
        };
        // SAFETY: this is MAP_CREATE's attribute, and it has no address.
        let fd = unsafe { bpf(MAP_CREATE, &mut attribute) }?;
        Ok(Self {
            fd: Private::own(Fd::own(fd as RawFd)),
            key_bytes,
            value_bytes,
            per_cpu: matches!(kind, Kind::PerCpuArray),
        })
    }

    pub fn raw(&self) -> RawFd {
        self.fd.raw()
    }

    fn element(&self, key: &[u8], value: u64) -> Result<Element, Errno> {
        if key.len() != self.key_bytes {
            return Err(Errno::INVAL);
        }
        Ok(Element {
            map: self.raw() as u32,
            zero: 0,
            key: key.as_ptr() as u64,
            value,
            flags: 0,
        })
    }

    /// Puts a value there, over what is there. `E2BIG` for a full hash or beyond an array's end.
    pub fn set(&self, key: &[u8], value: &[u8]) -> Result<(), Errno> {
        if value.len() != self.value_bytes || self.per_cpu {
            return Err(Errno::INVAL);
        }
        let mut element = self.element(key, value.as_ptr() as u64)?;
        // SAFETY: MAP_UPDATE reads a key and a value of the sizes with which the map was made,
        // and these are as long (checked above).
        unsafe { bpf(MAP_UPDATE, &mut element) }.map(drop)
    }

    /// Takes a key out of a hash. `ENOENT`: it was not there.
    pub fn remove(&self, key: &[u8]) -> Result<(), Errno> {
        let mut element = self.element(key, 0)?;
        // SAFETY: MAP_DELETE reads a key of the map's size.
        unsafe { bpf(MAP_DELETE, &mut element) }.map(drop)
    }

    /// Of a per-CPU array of numbers: the sum over all processors.
    pub fn sum(&self, key: &[u8]) -> Result<u64, Errno> {
        if !self.per_cpu || self.value_bytes != size_of::<u64>() {
            return Err(Errno::INVAL);
        }
        let mut numbers = vec![0u64; CPUS_MAX];
        let mut element = self.element(key, numbers.as_mut_ptr() as u64)?;
        // SAFETY: MAP_LOOKUP reads a key of the map's size, and writes 8 bytes for each possible
        // processor, of which there are at most CPUS_MAX.
        unsafe { bpf(MAP_LOOKUP, &mut element) }?;
        Ok(numbers
            .iter()
            .fold(0, |sum, number| sum.wrapping_add(*number)))
    }
}

/// Why a program was not loaded.
#[derive(Debug)]
pub struct Refusal {
    pub errno: Errno,
    /// What the verifier says, if it came to that.
    pub log: String,
}

/// A loaded XDP program.
#[derive(Debug)]
pub struct Program(Private);

impl Program {
    /// Loads instructions in which each of `maps`' places (counted in instructions) gets the
    /// descriptor of its map.
    pub fn load(
        title: &str,
        license: &CStr,
        instructions: &[u8],
        maps: &[(usize, &Map)],
        fragments: bool,
    ) -> Result<Self, Refusal> {
        let errno = |errno| Refusal {
            errno,
            log: String::new(),
        };
        let mut code = instructions.to_vec();
        for (place, map) in maps {
            let load = code
                .get_mut(place * INSTRUCTION_BYTES..)
                .and_then(<[u8]>::first_chunk_mut::<INSTRUCTION_BYTES>)
                .ok_or(errno(Errno::INVAL))?;
            // Destination and source register share a byte; which half is which goes with the
            // byte order.
            let (destination, shift) = if cfg!(target_endian = "big") {
                (load[1] & 0xf0, 0)
            } else {
                (load[1] & 0x0f, 4)
            };
            load[1] = destination | PSEUDO_MAP_FD << shift;
            load[4..].copy_from_slice(&map.raw().to_ne_bytes());
        }
        let mut attribute = ProgramLoad {
            kind: PROGRAM_XDP,
            count: (code.len() / INSTRUCTION_BYTES) as u32,
            instructions: code.as_ptr() as u64,
            license: license.as_ptr() as u64,
            log_level: 0,
            log_bytes: 0,
            log: 0,
            kernel_version: 0,
            flags: if fragments { PROGRAM_HAS_FRAGMENTS } else { 0 },
            name: name(title),
            interface: 0,
            attach_type: ATTACH_XDP,
        };
        // SAFETY: this is PROGRAM_LOAD's attribute: `count` instructions of 8 bytes, a C string,
        // and no log.
        let loaded = unsafe { bpf(PROGRAM_LOAD, &mut attribute) };
        let first = match loaded {
            Ok(fd) => return Ok(Self(Private::own(Fd::own(fd as RawFd)))),
            Err(errno) => errno,
        };
        // Once more, to hear why.
        let mut log = vec![0u8; LOG_BYTES];
        attribute.log_level = 1;
        attribute.log_bytes = LOG_BYTES as u32;
        attribute.log = log.as_mut_ptr() as u64;
        // SAFETY: as above, and the kernel writes at most `log_bytes` bytes to the log.
        match unsafe { bpf(PROGRAM_LOAD, &mut attribute) } {
            Ok(fd) => Ok(Self(Private::own(Fd::own(fd as RawFd)))),
            Err(_) => {
                let end = log.iter().position(|byte| *byte == 0).unwrap_or(0);
                log.truncate(end);
                Err(Refusal {
                    errno: first,
                    log: String::from_utf8_lossy(&log).trim().to_owned(),
                })
            }
        }
    }

    /// Attaches the program to an interface for as long as the descriptor that this gives is
    /// open, in any process. `EBUSY` and `EEXIST`: another program is there.
    pub fn attach(&self, interface: u32, native: bool) -> Result<Private, Errno> {
        let mut attribute = LinkCreate {
            program: self.0.raw() as u32,
            interface,
            attach_type: ATTACH_XDP,
            flags: if native {
                ATTACH_NATIVE
            } else {
                ATTACH_GENERIC
            },
        };
        // SAFETY: this is LINK_CREATE's attribute, and it has no address.
        unsafe { bpf(LINK_CREATE, &mut attribute) }.map(|fd| Private::own(Fd::own(fd as RawFd)))
    }
}
