//! Registered memory, and what requests say of it.
#![allow(unsafe_code)]

use std::ffi::c_int;
use std::fmt;
use std::ptr::NonNull;
use std::sync::Arc;

use sluice_verbs_abi::*;

use crate::device::Device;
use crate::error::Error;
use crate::library::object;

/// What may be done with a region.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// This node may send from it.
    Source,
    /// Peers that are told the key may write to it; this node may send from it too.
    Target,
    /// The device may write messages there.
    Receive,
}

/// When the pages of a region come into memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Paging {
    /// When it is registered: what carries every message must not wait for pages.
    AtOnce,
    /// When they are used first, with our own devices. An adapter that can do that, too, stops the
    /// whole link for each page.
    OnDemand,
}

impl Access {
    fn flags(self) -> c_int {
        let flags = match self {
            Access::Source => 0,
            Access::Target => IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE,
            Access::Receive => IBV_ACCESS_LOCAL_WRITE,
        };
        flags as c_int
    }
}

/// Memory that the device may use. Dropping it ends that: the peer's writes to it fail from then on,
/// and with them its link.
pub struct Region {
    device: Arc<Device>,
    mr: *mut ibv_mr,
    start: NonNull<u8>,
    length: usize,
}

// SAFETY: a region may be used by any thread, by several at a time (rdma-core,
// Documentation/libibverbs.md, "Thread safety"). The memory is not touched by this type.
unsafe impl Send for Region {}
// SAFETY: a registration may be used by several threads at a time (rdma-core,
// Documentation/libibverbs.md, "Thread safety"), and this type does not touch the memory.
unsafe impl Sync for Region {}

/// A part of a region, to send from.
#[derive(Clone, Copy, Debug)]
pub struct Slice {
    pub(crate) address: u64,
    pub(crate) length: u32,
    pub(crate) key: u32,
}

/// Where in a peer's memory: an address in one of its regions, and the key of the region, as the
/// peer said them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Remote {
    pub address: u64,
    pub key: u32,
}

impl Slice {
    /// No bytes at all. Writing it without a number asks the peer's device for a sign of life and
    /// nothing else.
    pub const EMPTY: Slice = Slice {
        address: 0,
        length: 0,
        key: 0,
    };

    /// The part of a region that begins at the address. `key` is [`Region::local_key`]; another one
    /// makes the request fail with [`Status::LOCAL_PROTECTION`](crate::Status::LOCAL_PROTECTION),
    /// and with it the link.
    ///
    /// # Safety
    /// So many bytes can be read as long as the slice is used: short ones are copied when they are
    /// posted.
    pub unsafe fn from_parts(start: NonNull<u8>, length: u32, key: u32) -> Self {
        Self {
            address: start.as_ptr().expose_provenance() as u64,
            length,
            key,
        }
    }

    /// In bytes.
    pub fn length(&self) -> u32 {
        self.length
    }
}

impl Region {
    /// # Safety
    /// As for [`Node::register`](crate::Node::register).
    pub(crate) unsafe fn new(
        device: &Arc<Device>,
        start: NonNull<u8>,
        length: usize,
        access: Access,
        paging: Paging,
    ) -> Result<Self, Error> {
        let flags = access.flags();
        // SAFETY: the domain lives as long as the device; the memory is the caller's contract.
        let register = |flags| unsafe {
            (device.functions.reg_mr)(device.pd, start.as_ptr().cast(), length, flags)
        };
        let mr = if paging == Paging::OnDemand && device.is_software {
            register(flags | IBV_ACCESS_ON_DEMAND as c_int)
        } else {
            register(flags)
        };
        Ok(Self {
            mr: object("ibv_reg_mr", mr)?,
            device: device.clone(),
            start,
            length,
        })
    }

    /// The part from `offset`, `length` bytes long. None if the region ends before that.
    pub fn slice(&self, offset: usize, length: u32) -> Option<Slice> {
        let end = offset.checked_add(length as usize)?;
        (end <= self.length).then(|| Slice {
            address: self.remote().address + offset as u64,
            length,
            key: self.local_key(),
        })
    }

    /// What a peer must be told to write at the beginning of the region. Good for nothing without
    /// [`Access::Target`].
    pub fn remote(&self) -> Remote {
        // SAFETY: the region is registered.
        let key = unsafe { (*self.mr).rkey };
        Remote {
            address: self.start.as_ptr().expose_provenance() as u64,
            key,
        }
    }

    /// In bytes.
    pub fn length(&self) -> usize {
        self.length
    }

    /// What this node's own requests say of the region (`lkey`).
    pub fn local_key(&self) -> u32 {
        // SAFETY: the region is registered.
        unsafe { (*self.mr).lkey }
    }
}

impl fmt::Debug for Region {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        // The key is a secret between this node and its peer.
        formatter
            .debug_struct("Region")
            .field("start", &self.start)
            .field("length", &self.length)
            .finish_non_exhaustive()
    }
}

impl Drop for Region {
    fn drop(&mut self) {
        // SAFETY: registered, and deregistered once. There are no memory windows, for which alone
        // the call can fail.
        unsafe { (self.device.functions.dereg_mr)(self.mr) };
    }
}
