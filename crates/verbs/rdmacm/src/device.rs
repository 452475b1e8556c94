//! The devices that identifiers are bound to: opened once for the process, never closed.

use std::ffi::c_int;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use sluice_verbs::iw_cm::IwCm;
use sluice_verbs::transport::{Gsi, ManagementTrace};

use super::address::Address;
use super::connector::{Connector, Surroundings};
use super::fabric::connector::Wire;
#[cfg(any(test, feature = "testing"))]
use super::fabric::loopback;
use super::fabric::port;
use super::host::Host;
use super::stream::Streams;
use super::verbs::{check, check_pointer};
use super::{Errno, calls};
use crate::ffi::*;

/// The only port of a device.
pub const PORT: u8 = 1;

pub struct Device {
    context: *mut ibv_context,
    /// The default protection domain and the number of its users.
    pd: Mutex<(*mut ibv_pd, usize)>,
    xrcd: OnceLock<Result<usize, Errno>>,
    /// The most RDMA reads and atomics that a QP answers at a time.
    pub responder_resources_max: u8,
    /// The most that a QP has under way.
    pub initiator_depth_max: u8,
    /// `ibv_mtu`.
    pub mtu: u8,
    /// Host byte order.
    ca_guid: u64,
    /// Queue pair 1, where peers are on other hosts.
    gsi: Option<&'static dyn Gsi>,
    /// Where queue pairs are connected by streams.
    iw_cm: Option<&'static dyn IwCm>,
    trace: Option<&'static dyn ManagementTrace>,
}

// SAFETY: libibverbs objects may be used from every thread (ibv_open_device(3) puts no
// limit on that), and what changes here is behind a lock.
unsafe impl Send for Device {}
// SAFETY: libibverbs objects may be used from several threads at a time (ibv_open_device(3) puts no
// limit on that), and what changes here is behind a lock.
unsafe impl Sync for Device {}

/// Every device, or why there is none.
pub fn all() -> Result<&'static [Device], Errno> {
    static DEVICES: OnceLock<Result<Vec<Device>, Errno>> = OnceLock::new();
    match DEVICES.get_or_init(open_all) {
        Ok(devices) if devices.is_empty() => Err(Errno(libc::ENODEV)),
        Ok(devices) => Ok(devices),
        Err(errno) => Err(*errno),
    }
}

/// The first device.
pub fn first() -> Result<&'static Device, Errno> {
    all()?.first().ok_or(Errno(libc::ENODEV))
}

/// A device by its number ([`ways`]).
pub fn at(number: usize) -> Result<&'static Device, Errno> {
    all()?.get(number).ok_or(Errno(libc::ENODEV))
}

/// The ways to peers that the devices bring along. One with a queue pair 1 goes to other hosts, one
/// without to processes of this host, whose addresses are reached by that if it is there. All of
/// them carry all addresses of the host.
pub fn ways(around: &Arc<Surroundings>) -> Vec<Arc<dyn Connector>> {
    let devices = all().unwrap_or_default();
    let host = devices
        .iter()
        .position(|device| device.gsi.is_none() && device.iw_cm.is_none());
    let streams = devices
        .iter()
        .enumerate()
        .filter_map(|(number, device)| Some(Streams::new(around, number, device.iw_cm?)))
        .map(|way| -> Arc<dyn Connector> { Arc::new(way) });
    let wire = devices.iter().enumerate().find_map(|(number, device)| {
        let config = port::Config {
            gsi: device.gsi?,
            ca_guid: device.ca_guid,
            mtu: device.mtu,
            host_device: host.is_some(),
        };
        Some((number, config))
    });
    #[cfg(any(test, feature = "testing"))]
    let (host, wire) = match devices
        .first()
        .and_then(|device| loopback::config(device.mtu))
    {
        Some(config) => (None, Some((0, config))),
        None => (host, wire),
    };
    let trace = host.and_then(|number| devices[number].trace);
    let wire = wire.map(|(number, config)| Wire::new(around, number, config));
    // Without a device of its own it is there for what other processes ask.
    let by_host: Arc<dyn Connector> = Arc::new(Host::new(around, host.unwrap_or(0), trace));
    let wire = wire.map(|wire| -> Arc<dyn Connector> { Arc::new(wire) });
    let elsewhere = wire.into_iter().chain(streams);
    match host {
        Some(_) => std::iter::once(by_host).chain(elsewhere).collect(),
        None => elsewhere.chain(std::iter::once(by_host)).collect(),
    }
}

/// The device of a context that came from here.
pub fn of(context: *mut ibv_context) -> Result<&'static Device, Errno> {
    all()?
        .iter()
        .find(|device| device.context == context)
        .ok_or(Errno::INVAL)
}

fn open_all() -> Result<Vec<Device>, Errno> {
    let calls = calls();
    let mut count: c_int = 0;
    // SAFETY: `count` is valid; the list is freed below, after its devices were opened.
    let list = check_pointer(unsafe { (calls.get_device_list)(&raw mut count) })?;
    let mut devices = Vec::new();
    for index in 0..usize::try_from(count).unwrap_or(0) {
        // SAFETY: the list has `count` devices.
        let context = unsafe { (calls.open_device)(*list.add(index)) };
        if !context.is_null() {
            devices.push(Device::new(context)?);
        }
    }
    // SAFETY: the list came from get_device_list.
    unsafe { (calls.free_device_list)(list) };
    Ok(devices)
}

impl Device {
    fn new(context: *mut ibv_context) -> Result<Self, Errno> {
        let calls = calls();
        // SAFETY: all zeros is a valid value of both plain C structures.
        let (mut attr, mut port): (ibv_device_attr, ibv_port_attr) =
            unsafe { (std::mem::zeroed(), std::mem::zeroed()) };
        // SAFETY: the context is open, and the structures live through the calls.
        unsafe {
            check((calls.query_device)(context, &raw mut attr))?;
            check((calls.query_port)(context, PORT, &raw mut port))?;
        }
        // SAFETY: the context is open and is never closed.
        let transport = unsafe { (calls.transport)(context) };
        let limit = |number: c_int| number.clamp(0, 0xfe) as u8;
        Ok(Self {
            context,
            pd: Mutex::new((std::ptr::null_mut(), 0)),
            xrcd: OnceLock::new(),
            responder_resources_max: limit(attr.max_qp_rd_atom),
            initiator_depth_max: limit(attr.max_qp_init_rd_atom),
            mtu: port.active_mtu.clamp(1, 5) as u8,
            ca_guid: u64::from_be(attr.node_guid),
            gsi: transport.gsi(),
            iw_cm: transport.iw_cm(),
            trace: transport.management_trace(),
        })
    }

    pub fn context(&self) -> *mut ibv_context {
        self.context
    }

    /// The place of an address in the GID table, and the GID there. An address without a
    /// place of its own, such as 127.0.0.1, goes by the first.
    pub fn gid(&self, address: &Address) -> (u8, ibv_gid) {
        let wanted = address.gid();
        let mut first = None;
        for index in 0..=u8::MAX {
            let mut gid = ibv_gid::default();
            // SAFETY: the context is open and `gid` lives through the call.
            let ret =
                unsafe { (calls().query_gid)(self.context, PORT, c_int::from(index), &mut gid) };
            if ret != 0 {
                break;
            }
            if gid.raw == wanted {
                return (index, gid);
            }
            first.get_or_insert(gid);
        }
        (0, first.unwrap_or(ibv_gid { raw: wanted }))
    }

    /// The default protection domain, with one more user.
    pub fn hold_pd(&self) -> Result<*mut ibv_pd, Errno> {
        let mut pd = self.pd.lock().unwrap_or_else(PoisonError::into_inner);
        if pd.1 == 0 {
            // SAFETY: the context is open.
            pd.0 = check_pointer(unsafe { (calls().alloc_pd)(self.context) })?;
        }
        pd.1 += 1;
        Ok(pd.0)
    }

    /// One user less. Does nothing for a protection domain that is not the default one.
    pub fn release_pd(&self, released: *mut ibv_pd) {
        let mut pd = self.pd.lock().unwrap_or_else(PoisonError::into_inner);
        if pd.1 == 0 || pd.0 != released {
            return;
        }
        pd.1 -= 1;
        if pd.1 == 0 {
            // A program may still have memory registered in it. Then it stays for good.
            // SAFETY: it was allocated by hold_pd, and nobody here uses it any more.
            unsafe { (calls().dealloc_pd)(pd.0) };
        }
    }

    /// The default XRC domain. Stays as long as the process.
    pub fn xrcd(&self) -> Result<*mut ibv_xrcd, Errno> {
        const IBV_XRCD_INIT_ATTR_FD: u32 = 1;
        const IBV_XRCD_INIT_ATTR_OFLAGS: u32 = 2;
        let opened = self.xrcd.get_or_init(|| {
            let mut attr = ibv_xrcd_init_attr {
                comp_mask: IBV_XRCD_INIT_ATTR_FD | IBV_XRCD_INIT_ATTR_OFLAGS,
                fd: -1,
                oflags: libc::O_CREAT,
            };
            // SAFETY: the context is open and `attr` lives through the call.
            check_pointer(unsafe { (calls().open_xrcd)(self.context, &raw mut attr) })
                .map(|xrcd| xrcd as usize)
        });
        (*opened).map(|xrcd| xrcd as *mut ibv_xrcd)
    }
}
