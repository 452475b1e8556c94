//! The device opened.
#![allow(unsafe_code)]

use std::ffi::CStr;
use std::net::IpAddr;
use std::sync::Arc;

use sluice_verbs_abi::*;

use crate::choice::DeviceChoice;
use crate::endpoint::{address_of, gid_of};
use crate::error::Error;
use crate::library::{Functions, Library, check, object};

/// GIDs of a port that are looked at. Adapters have 256 at most.
const GIDS_MAX: i32 = 4096;

/// For tests: whatever device it is has no shared receive queue.
const NO_SRQ_VARIABLE: &str = "SLUICE_TEST_NO_SRQ";

/// An open device and its protection domain. Regions keep it open.
pub(crate) struct Device {
    pub functions: Arc<Functions>,
    pub context: *mut ibv_context,
    pub pd: *mut ibv_pd,
    pub name: String,
    /// One of ours, not an adapter.
    pub is_software: bool,
}

// SAFETY: a context and a domain may be used by any thread, by several at a time (rdma-core,
// Documentation/libibverbs.md, "Thread safety").
unsafe impl Send for Device {}
// SAFETY: a context and a domain may be used by several threads at a time (rdma-core,
// Documentation/libibverbs.md, "Thread safety"), and nothing else of it changes.
unsafe impl Sync for Device {}

/// Where an address is.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Port {
    pub number: u8,
    pub gid_index: u8,
    pub gid: [u8; 16],
}

impl Device {
    pub fn open(library: &Library, choice: &DeviceChoice) -> Result<Self, Error> {
        let functions = library.functions().clone();
        let mut count = 0;
        // SAFETY: count is written.
        let list = unsafe { (functions.get_device_list)(&raw mut count) };
        let list = object("ibv_get_device_list", list)?;
        let mut found = Vec::new();
        let mut opened = None;
        for index in 0..usize::try_from(count).unwrap_or(0) {
            // SAFETY: the list has so many devices, which are valid until it is freed, and as long
            // as they are open.
            let (device, name) = unsafe {
                let device = *list.add(index);
                let name = CStr::from_ptr((functions.get_device_name)(device));
                (device, name.to_string_lossy().into_owned())
            };
            if choice.is(&name) {
                // SAFETY: the device is one of the list, which is not freed yet.
                let context = unsafe { (functions.open_device)(device) };
                opened = Some((object("ibv_open_device", context), name));
                break;
            }
            found.push(name);
        }
        // SAFETY: the list came from the library, and is used no more.
        unsafe { (functions.free_device_list)(list) };
        let Some((context, name)) = opened else {
            return Err(Error::NoDevice {
                wanted: choice.to_string(),
                found,
            });
        };
        let mut device = Self {
            context: context?,
            functions,
            pd: std::ptr::null_mut(),
            name,
            is_software: !matches!(choice, DeviceChoice::Hardware(_)),
        };
        // SAFETY: the context is open.
        let pd = unsafe { (device.functions.alloc_pd)(device.context) };
        device.pd = object("ibv_alloc_pd", pd)?;
        Ok(device)
    }

    pub fn attributes(&self) -> Result<ibv_device_attr, Error> {
        // SAFETY: plain numbers, for which zero is a value.
        let mut attr: ibv_device_attr = unsafe { std::mem::zeroed() };
        // SAFETY: the context is open, and attr is written.
        let answer = unsafe { (self.functions.query_device)(self.context, &raw mut attr) };
        check("ibv_query_device", answer)?;
        if std::env::var_os(NO_SRQ_VARIABLE).is_some() {
            attr.max_srq = 0;
        }
        Ok(attr)
    }

    /// As the header's inline function: newer libraries say more than there is room for in the
    /// structure of older programs.
    fn port_attributes(&self, port: u8) -> Result<ibv_port_attr, Error> {
        // SAFETY: plain numbers, for which zero is a value.
        let mut attr: ibv_port_attr = unsafe { std::mem::zeroed() };
        // SAFETY: the context is open. If it says so it is the end of a verbs_context, which has
        // `sz` bytes, counted from its end; the operation is in those.
        let answer = unsafe {
            let extended = self.extended();
            let operation = match extended {
                Some(extended)
                    if reaches(extended, std::mem::offset_of!(verbs_context, query_port)) =>
                {
                    (*extended).query_port
                }
                _ => None,
            };
            match operation {
                Some(query) => query(self.context, port, &raw mut attr, size_of_val(&attr)),
                None => (self.functions.query_port)(self.context, port, &raw mut attr),
            }
        };
        check("ibv_query_port", answer)?;
        Ok(attr)
    }

    /// `verbs_get_ctx` of the header.
    fn extended(&self) -> Option<*const verbs_context> {
        // SAFETY: the context is open.
        let marker = unsafe { (*self.context).abi_compat };
        (marker.addr() == VERBS_ABI_IS_EXTENDED).then(|| {
            self.context
                .cast_const()
                .wrapping_byte_sub(std::mem::offset_of!(verbs_context, context))
                .cast()
        })
    }

    /// The first port that has the address, as a GID of RoCEv2.
    pub fn find(&self, address: IpAddr) -> Result<Port, Error> {
        let wanted = gid_of(address);
        let ports = self.attributes()?.phys_port_cnt;
        let mut found = Vec::new();
        for number in 1..=ports {
            let port = self.port_attributes(number)?;
            // The index has a byte in an address handle.
            for gid_index in 0..port.gid_tbl_len.clamp(0, GIDS_MAX) {
                let Some(gid) = self.gid(number, gid_index as u32) else {
                    continue;
                };
                match u8::try_from(gid_index) {
                    Ok(gid_index) if gid == wanted => {
                        return Ok(Port {
                            number,
                            gid_index,
                            gid,
                        });
                    }
                    _ => found.push(address_of(gid)),
                }
            }
        }
        Err(Error::NoAddress {
            device: self.name.clone(),
            wanted: address,
            found,
        })
    }

    /// The port's MTU as it is now, a code, `IBV_MTU_256` and so on. It follows that of the network
    /// interfaces, which may come up after the device was opened.
    pub fn mtu(&self, port: u8) -> Result<u8, Error> {
        let mtu = self.port_attributes(port)?.active_mtu;
        Ok(mtu.clamp(IBV_MTU_256, IBV_MTU_4096) as u8)
    }

    /// An entry of a port's table, if it is one of RoCEv2.
    fn gid(&self, port: u8, index: u32) -> Option<[u8; 16]> {
        // SAFETY: plain numbers, for which zero is a value.
        let mut entry: ibv_gid_entry = unsafe { std::mem::zeroed() };
        // SAFETY: the context is open, and entry has the size that is said.
        let answer = unsafe {
            (self.functions.query_gid_ex)(
                self.context,
                u32::from(port),
                index,
                &raw mut entry,
                0,
                size_of_val(&entry),
            )
        };
        (answer == 0 && entry.gid_type == IBV_GID_TYPE_ROCE_V2).then_some(entry.gid.raw)
    }
}

/// Whether the extended context has the field at the offset (`verbs_get_ctx_op` of the header): it
/// grows at its beginning.
///
/// # Safety
/// The pointer comes from [`Device::extended`].
unsafe fn reaches(extended: *const verbs_context, offset: usize) -> bool {
    // SAFETY: sz is just before the plain context, in every version.
    let size = unsafe { (*extended).sz };
    size >= size_of::<verbs_context>() - offset
}

impl Drop for Device {
    fn drop(&mut self) {
        // SAFETY: nothing of the domain or the context is left: what was made of them has dropped
        // its Arc.
        unsafe {
            if !self.pd.is_null() {
                (self.functions.dealloc_pd)(self.pd);
            }
            (self.functions.close_device)(self.context);
        }
    }
}
