//! Memory areas: our own, sealed so that peers can only read them, and peers' ones.

use core::ffi::CStr;
use std::os::fd::RawFd;

use sluice_shmem::mapping::{Access, Mapping};
use sluice_sys::errno::Errno;
use sluice_sys::memfd;
use sluice_sys::unix::Fd;

/// Memory that this process writes and peers read.
#[derive(Debug)]
pub struct OwnArea {
    pub fd: Fd,
    pub mapping: Mapping,
}

impl OwnArea {
    /// Zeroed memory. Our mapping is the only writable one there can ever be.
    pub fn new(name: &CStr, bytes: usize) -> Result<Self, Errno> {
        let fd = memfd::create(name)?;
        memfd::set_len(fd.raw(), bytes as u64)?;
        let mapping = Mapping::shared(fd.raw(), bytes, Access::ReadWrite)?;
        memfd::add_seals(
            fd.raw(),
            memfd::SEAL_SHRINK | memfd::SEAL_GROW | memfd::SEAL_FUTURE_WRITE | memfd::SEAL_SEAL,
        )?;
        Ok(Self { fd, mapping })
    }
}

/// Maps what a peer passed; `EINVAL` if it is not memory of that size for good.
pub fn map_foreign(fd: RawFd, bytes: usize, access: Access) -> Result<Mapping, Errno> {
    memfd::check_foreign(fd, bytes as u64, memfd::SEAL_SHRINK)?;
    Mapping::shared(fd, bytes, access)
}

/// What tells one memory file from every other one: device and inode.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct File(u64, u64);

/// Which file a descriptor is.
pub fn file_of(fd: &Fd) -> Result<File, Errno> {
    let stat = memfd::stat(fd.raw())?;
    Ok(File(stat.device, stat.inode))
}
