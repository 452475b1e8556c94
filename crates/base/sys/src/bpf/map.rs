//! Maps: what user space and programs share.
#![allow(unsafe_code)]

use std::os::fd::RawFd;

use super::{MAP_CREATE, MAP_DELETE, MAP_LOOKUP, MAP_NEXT_KEY, MAP_UPDATE, bpf, name};
use crate::errno::Errno;
use crate::private::Private;
use crate::unix::Fd;

/// More processors than Linux can be built for. For a per-CPU map the kernel writes one number
/// for each that there could be.
const CPUS_MAX: usize = 16 * 1024;
/// `BPF_F_NO_PREALLOC`: elements are allocated when they come. Tries have no other way.
const NO_PREALLOC: u32 = 1;
/// `BPF_F_MMAPABLE`: user space may map the values.
const MAPPED: u32 = 1 << 10;
/// `BPF_NOEXIST` of an update.
const NO_EXIST: u64 = 1;

/// Kinds of maps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Any key, any value.
    Hash,
    /// Keys from 0.
    Array,
    /// The same, in memory that user space can map ([`super::Number`]).
    MappedArray,
    /// An array of 64-bit numbers for each processor.
    PerCpuArray,
    /// A hash that drops what was not used for long when it is full.
    LruHash,
    /// Keys are a prefix length in bits, 32 bits in the machine's byte order, and that many bits
    /// and more; the longest prefix of what is looked up is found.
    LongestPrefix,
    /// AF_XDP sockets by queue.
    Sockets,
    /// TCP connections by any key. User space puts descriptors there, of four bytes, and reads
    /// nothing.
    SocketHash,
    /// Records from programs to user space ([`super::RingBuffer`]). Keys and values have no size,
    /// the number of entries is one of bytes, a power of two of whole pages.
    RingBuffer,
}

impl Kind {
    /// The header's number, and flags that go with it.
    const fn number_and_flags(self) -> (u32, u32) {
        match self {
            Self::Hash => (1, 0),
            Self::Array => (2, 0),
            Self::MappedArray => (2, MAPPED),
            Self::PerCpuArray => (6, 0),
            Self::LruHash => (9, 0),
            Self::LongestPrefix => (11, NO_PREALLOC),
            Self::Sockets => (17, 0),
            Self::SocketHash => (18, 0),
            Self::RingBuffer => (27, 0),
        }
    }
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

/// A map. Keys and values are of one size each.
#[derive(Debug)]
pub struct Map {
    fd: Private,
    key_bytes: usize,
    value_bytes: usize,
    kind: Kind,
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
        let (number, flags) = kind.number_and_flags();
        let mut attribute = MapCreate {
            kind: number,
            key_bytes: key_bytes as u32,
            value_bytes: value_bytes as u32,
            entries_max,
            flags,
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
            kind,
        })
    }

    pub fn raw(&self) -> RawFd {
        self.fd.raw()
    }

    /// Refuses keys of a wrong size, and kinds whose values have another size than it seems.
    fn element(&self, key: &[u8], value: u64) -> Result<Element, Errno> {
        if key.len() != self.key_bytes || self.kind == Kind::RingBuffer {
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

    fn update(&self, key: &[u8], value: &[u8], flags: u64) -> Result<(), Errno> {
        if value.len() != self.value_bytes || self.kind == Kind::PerCpuArray {
            return Err(Errno::INVAL);
        }
        let mut element = self.element(key, value.as_ptr() as u64)?;
        element.flags = flags;
        // SAFETY: MAP_UPDATE reads a key and a value of the sizes with which the map was made,
        // and these are as long (checked above).
        unsafe { bpf(MAP_UPDATE, &mut element) }.map(drop)
    }

    /// Puts a value there, over what is there. `E2BIG` for a full hash or beyond an array's end,
    /// `ENOSPC` for a full trie.
    pub fn set(&self, key: &[u8], value: &[u8]) -> Result<(), Errno> {
        self.update(key, value, 0)
    }

    /// Puts a value where none is. `EEXIST`: one is there, and stays.
    pub fn insert(&self, key: &[u8], value: &[u8]) -> Result<(), Errno> {
        self.update(key, value, NO_EXIST)
    }

    /// Copies the value of a key. False: there is none.
    pub fn get(&self, key: &[u8], value: &mut [u8]) -> Result<bool, Errno> {
        if value.len() != self.value_bytes || self.kind == Kind::PerCpuArray {
            return Err(Errno::INVAL);
        }
        let mut element = self.element(key, value.as_mut_ptr() as u64)?;
        // SAFETY: MAP_LOOKUP reads a key and writes a value of the sizes with which the map was
        // made, and these are as long (checked above).
        match unsafe { bpf(MAP_LOOKUP, &mut element) } {
            Ok(_) => Ok(true),
            Err(Errno(libc::ENOENT)) => Ok(false),
            Err(errno) => Err(errno),
        }
    }

    /// Takes a key out. `ENOENT`: it was not there.
    pub fn remove(&self, key: &[u8]) -> Result<(), Errno> {
        let mut element = self.element(key, 0)?;
        // SAFETY: MAP_DELETE reads a key of the map's size.
        unsafe { bpf(MAP_DELETE, &mut element) }.map(drop)
    }

    /// The key behind `key` in an order of the kernel's, the first one behind None or a key that
    /// is gone. False: `next` was not written, there are no more.
    pub fn next_key(&self, key: Option<&[u8]>, next: &mut [u8]) -> Result<bool, Errno> {
        if next.len() != self.key_bytes {
            return Err(Errno::INVAL);
        }
        let mut element = match key {
            Some(key) => self.element(key, next.as_mut_ptr() as u64)?,
            None => Element {
                map: self.raw() as u32,
                zero: 0,
                key: 0,
                value: next.as_mut_ptr() as u64,
                flags: 0,
            },
        };
        // SAFETY: MAP_GET_NEXT_KEY reads a key of the map's size unless the address is 0, and
        // writes one, for which `next` has room.
        match unsafe { bpf(MAP_NEXT_KEY, &mut element) } {
            Ok(_) => Ok(true),
            Err(Errno(libc::ENOENT)) => Ok(false),
            Err(errno) => Err(errno),
        }
    }

    /// Of a per-CPU array of numbers: the sum over all processors.
    pub fn sum(&self, key: &[u8]) -> Result<u64, Errno> {
        if self.kind != Kind::PerCpuArray || self.value_bytes != size_of::<u64>() {
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
