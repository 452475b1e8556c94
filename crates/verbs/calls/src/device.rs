//! Devices: the list, and what they can do.

use std::cell::UnsafeCell;
use std::ffi::{c_char, c_int, c_void};
use std::ptr;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use sluice_sys::errno::Errno;
use sluice_verbs as engine;
use sluice_verbs::transport::TransportCaps;
use sluice_verbs::{QpType, WrOpcode};

use super::context::Context;
use super::devices;
use super::objects::number;
use crate::errno::null;
use crate::ffi::*;

/// What a provider library believes to be its table of functions, for a device of any other
/// provider: it compares the address with its own.
static FOREIGN_OPS: [usize; 64] = [0; 64];

/// A device as programs and provider libraries see it. Providers read past the header's
/// structure, whatever the device: a pointer to a table at its end, and fields behind that.
#[repr(C)]
pub struct Device {
    c: UnsafeCell<ibv_device>,
    ops: *const c_void,
    private: [usize; 16],
    pub engine: Arc<engine::Device>,
    node: String,
}

/// Where rdma-core's `verbs_device` has `ops`.
const _: () = assert!(std::mem::offset_of!(Device, ops) == 664);
/// The size of rdma-core's `verbs_device`.
const _: () = assert!(std::mem::offset_of!(Device, engine) >= 712);

// SAFETY: the C structure and the table are only read after they were made.
unsafe impl Sync for Device {}
// SAFETY: no part of it belongs to a thread: `ops` leads to a static table, the rest is bytes and an `Arc`.
unsafe impl Send for Device {}

impl Device {
    fn new(engine: Arc<engine::Device>) -> Self {
        let identity = engine.caps().identity;
        let mut name = [0; IBV_SYSFS_NAME_MAX];
        copy_text(&mut name, engine.name());
        let mut ibdev_path = [0; IBV_SYSFS_PATH_MAX];
        copy_text(
            &mut ibdev_path,
            &format!("/sys/class/infiniband/{}", engine.name()),
        );
        let mut dev_name = [0; IBV_SYSFS_NAME_MAX];
        let node = format!("uverbs-{}", engine.name());
        copy_text(&mut dev_name, &node);
        Self {
            c: UnsafeCell::new(ibv_device {
                _ops: [ptr::null_mut(); 2],
                node_type: identity.node_type as c_int,
                transport_type: identity.transport_type as c_int,
                name,
                dev_name,
                dev_path: [0; IBV_SYSFS_PATH_MAX],
                ibdev_path,
            }),
            ops: FOREIGN_OPS.as_ptr().cast(),
            private: [0; 16],
            engine,
            node,
        }
    }

    /// # Safety
    /// The header's contract.
    pub unsafe fn of<'a>(pointer: *mut ibv_device) -> &'a Self {
        // SAFETY: the header's contract; the C structure is the first field.
        unsafe { &*pointer.cast::<Self>() }
    }

    pub fn as_c(&self) -> *mut ibv_device {
        self.c.get()
    }

    /// The device's name, and its node's in `/dev/infiniband`.
    pub fn names(&self) -> (&[u8], &[u8]) {
        let name = self.engine.name();
        (name.as_bytes(), self.node.as_bytes())
    }
}

fn copy_text<const N: usize>(field: &mut [c_char; N], text: &str) {
    for (slot, byte) in field[..N - 1].iter_mut().zip(text.bytes()) {
        *slot = byte as c_char;
    }
}

static DEVICES: OnceLock<Vec<Device>> = OnceLock::new();

/// The devices that were made so far.
pub fn made() -> &'static [Device] {
    DEVICES.get().map_or(&[], Vec::as_slice)
}

/// The devices of this process, made when the first part of the program asks. They live as long as
/// the process: pointers to them stay good after the list was freed.
pub fn all() -> Result<&'static [Device], Errno> {
    static MAKING: Mutex<()> = Mutex::new(());
    if let Some(devices) = DEVICES.get() {
        return Ok(devices);
    }
    let _making = MAKING.lock().unwrap_or_else(PoisonError::into_inner);
    if DEVICES.get().is_none() {
        let devices = devices::make()?;
        // Nobody else sets it: MAKING is held.
        let _ = DEVICES.set(devices.into_iter().map(Device::new).collect());
    }
    Ok(made())
}

/// Returns NULL and `errno` where the devices cannot work.
pub unsafe extern "C" fn ibv_get_device_list(count: *mut c_int) -> *mut *mut ibv_device {
    let devices = match all() {
        Ok(devices) => devices,
        Err(error) => return null(error.0),
    };
    // SAFETY: calloc has no precondition; the list is freed with free below.
    let list = unsafe { libc::calloc(devices.len() + 1, size_of::<*mut ibv_device>()) }
        .cast::<*mut ibv_device>();
    if list.is_null() {
        return null(libc::ENOMEM);
    }
    for (index, device) in devices.iter().enumerate() {
        // SAFETY: the list has room for all devices and a NULL.
        unsafe { *list.add(index) = device.as_c() };
    }
    if !count.is_null() {
        // SAFETY: the header's contract.
        unsafe { *count = devices.len() as c_int };
    }
    list
}

pub unsafe extern "C" fn ibv_free_device_list(list: *mut *mut ibv_device) {
    // SAFETY: the header's contract: the list came from calloc above, or is NULL.
    unsafe { libc::free(list.cast()) };
}

pub unsafe extern "C" fn ibv_get_device_name(device: *mut ibv_device) -> *const c_char {
    // SAFETY: the header's contract.
    unsafe { (&raw const (*device).name).cast() }
}

pub unsafe extern "C" fn ibv_get_device_guid(device: *mut ibv_device) -> u64 {
    // SAFETY: the header's contract.
    unsafe { Device::of(device) }.engine.guid()
}

/// The kernel's number for the device: it has none.
pub extern "C" fn ibv_get_device_index(_device: *mut ibv_device) -> c_int {
    -1
}

pub unsafe extern "C" fn ibv_query_device(
    context: *mut ibv_context,
    attr: *mut ibv_device_attr,
) -> c_int {
    // SAFETY: the header's contract.
    let context = unsafe { Context::of(context) };
    // SAFETY: the header's contract; the engine's structure has the C layout.
    unsafe { ptr::write(attr, device_attr(context)) };
    0
}

fn device_attr(context: &Context) -> ibv_device_attr {
    const { assert!(size_of::<ibv_device_attr>() == size_of::<engine::DeviceAttr>()) };
    // SAFETY: both are the header's ibv_device_attr, plain data field for field.
    let mut attr: ibv_device_attr = unsafe { std::mem::transmute(context.engine.device().attr()) };
    if attr.vendor_id == 0 {
        attr.vendor_id = VENDOR_ID_OF_SOFTWARE;
    }
    attr.atomic_cap = attr.atomic_cap.min(IBV_ATOMIC_HCA);
    attr
}

/// Programs take 0 for a device that does not answer. Linux's software devices have this one.
const VENDOR_ID_OF_SOFTWARE: u32 = 0x00ff_ffff;

/// What a device says whose atomics are atomic against its other operations. Ours are against the
/// processor's too (`IBV_ATOMIC_GLOB`), but programs ask whether the answer *is* HCA (UCX, and
/// others after it), as no adapter gives the other one. What is more than that is said in
/// `pci_atomic_caps`.
const IBV_ATOMIC_HCA: u32 = 1;
/// `IBV_PCI_ATOMIC_OPERATION_8_BYTE_SIZE_SUP`.
const PCI_ATOMIC_8_BYTES: u16 = 1 << 1;

/// Registered memory needs no pinning here, so every access of a service may be "on demand"
/// (`enum ibv_odp_transport_cap_bits`).
fn on_demand(caps: &TransportCaps, qp_type: QpType) -> u32 {
    const SRQ_RECV: u32 = 1 << 5;
    let opcodes = caps.opcodes_of(qp_type);
    if !opcodes.contains(WrOpcode::Send) {
        return 0;
    }
    let bits = [
        (WrOpcode::RdmaWrite, 1 << 2),
        (WrOpcode::RdmaRead, 1 << 3),
        (WrOpcode::AtomicCmpAndSwp, 1 << 4),
    ];
    // SEND and RECV, and what there is besides.
    bits.iter()
        .filter(|(opcode, _)| opcodes.contains(*opcode))
        .fold(0b11 | SRQ_RECV, |set, (_, bit)| set | bit)
}

/// Bytes of device memory that a program may ask for at once.
pub const DEVICE_MEMORY_BYTES_MAX: u64 = 1 << 20;
/// Completion times are nanoseconds: a clock of 1 GHz, in kHz.
const CLOCK_KHZ: u64 = 1_000_000;

pub unsafe extern "C" fn query_device_ex(
    context: *mut ibv_context,
    input: *const ibv_query_device_ex_input,
    attr: *mut ibv_device_attr_ex,
    attr_size: usize,
) -> c_int {
    // SAFETY: the header's contract.
    let (context, input) = unsafe { (Context::of(context), input.as_ref()) };
    if input.is_some_and(|input| input.comp_mask != 0)
        || attr_size < std::mem::offset_of!(ibv_device_attr_ex, odp_caps)
    {
        return libc::EINVAL;
    }
    let orig_attr = device_attr(context);
    let caps = context.engine.device().caps();
    let atomic = match caps.atomic_cap {
        0 => 0,
        _ => PCI_ATOMIC_8_BYTES,
    };
    let answer = ibv_device_attr_ex {
        orig_attr,
        comp_mask: 0,
        odp_caps: ibv_odp_caps {
            general_caps: 1,
            per_transport_caps: [QpType::Rc, QpType::Uc, QpType::Ud]
                .map(|qp_type| on_demand(&caps, qp_type)),
        },
        completion_timestamp_mask: u64::MAX,
        hca_core_clock: CLOCK_KHZ,
        device_cap_flags_ex: u64::from(orig_attr.device_cap_flags),
        cq_mod_caps: ibv_cq_moderation_caps {
            max_cq_count: u16::MAX,
            max_cq_period: u16::MAX,
        },
        max_dm_size: DEVICE_MEMORY_BYTES_MAX,
        pci_atomic_caps: ibv_pci_atomic_caps {
            fetch_add: atomic,
            swap: 0,
            compare_swap: atomic,
        },
        phys_port_cnt_ex: u32::from(orig_attr.phys_port_cnt),
        // SAFETY: plain numbers, for which zero is "none".
        ..unsafe { std::mem::zeroed() }
    };
    // A program that was built against another header has room for less, or for more.
    let known = size_of::<ibv_device_attr_ex>().min(attr_size);
    // SAFETY: the header's contract: attr has attr_size bytes.
    unsafe {
        ptr::write_bytes(attr.cast::<u8>(), 0, attr_size);
        ptr::copy_nonoverlapping((&raw const answer).cast::<u8>(), attr.cast(), known);
    }
    0
}

/// The bytes of `ibv_port_attr` that programs before rdma-core 22 have room for.
const OLD_PORT_ATTR_BYTES: usize = std::mem::offset_of!(ibv_port_attr, port_cap_flags2);

pub unsafe extern "C" fn ibv_query_port(
    context: *mut ibv_context,
    port: u8,
    attr: *mut ibv_port_attr,
) -> c_int {
    // SAFETY: the header's contract.
    unsafe { query_port(context, port, attr, OLD_PORT_ATTR_BYTES) }
}

pub unsafe extern "C" fn query_port(
    context: *mut ibv_context,
    port: u8,
    attr: *mut ibv_port_attr,
    attr_len: usize,
) -> c_int {
    // SAFETY: the header's contract.
    let context = unsafe { Context::of(context) };
    let answer = match context.engine.device().port_attr(port) {
        Ok(answer) => answer,
        Err(error) => return number(error),
    };
    let known = size_of::<engine::PortAttr>().min(attr_len);
    // SAFETY: the header's contract: attr has attr_len bytes; the engine's structure has the C
    // layout.
    unsafe {
        ptr::write_bytes(attr.cast::<u8>(), 0, attr_len);
        ptr::copy_nonoverlapping((&raw const answer).cast::<u8>(), attr.cast(), known);
    }
    0
}

pub unsafe extern "C" fn query_rt_values(
    _context: *mut ibv_context,
    values: *mut ibv_values_ex,
) -> c_int {
    const RAW_CLOCK: u32 = 1;
    // SAFETY: the header's contract.
    let values = unsafe { &mut *values };
    if values.comp_mask & !RAW_CLOCK != 0 {
        return libc::EINVAL;
    }
    if values.comp_mask & RAW_CLOCK != 0 {
        values.raw_clock = libc::timespec {
            tv_sec: 0,
            tv_nsec: clock_ns(libc::CLOCK_MONOTONIC) as i64,
        };
    }
    0
}

/// What completion times are counted in.
pub fn clock_ns(clock: libc::clockid_t) -> u64 {
    let mut now = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: now is valid for the call; the clock is one of the C library's own.
    unsafe { libc::clock_gettime(clock, &mut now) };
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::qp_ex;
    use sluice_transport_loop::LoopTransport;
    use sluice_verbs::opcode::Opcodes;
    use sluice_verbs::transport::Identity;

    /// As a first adapter of RDMA over TCP would be.
    const LITTLE: TransportCaps = TransportCaps {
        identity: Identity::IWARP,
        atomic_cap: 0,
        uc: false,
        ud: false,
        xrc: false,
        opcodes: Opcodes::of(&[WrOpcode::Send, WrOpcode::RdmaWrite, WrOpcode::RdmaRead]),
        rnr_retry: false,
        ..TransportCaps::EVERYTHING
    };

    /// Of the program: node and transport type, link layer.
    fn told(caps: TransportCaps) -> (c_int, c_int, u8) {
        let [transport, _peer] = LoopTransport::pair(caps).unwrap();
        let device = Device::new(engine::Device::new("sluice0", transport));
        let port = device.engine.port_attr(1).unwrap();
        // SAFETY: only read after it was made.
        let c = unsafe { &*device.as_c() };
        (c.node_type, c.transport_type, port.link_layer)
    }

    #[test]
    fn a_device_is_what_its_transport_says() {
        // IBV_NODE_CA, IBV_TRANSPORT_IB, IBV_LINK_LAYER_ETHERNET.
        assert_eq!(told(TransportCaps::EVERYTHING), (1, 0, 2));
        // IBV_NODE_RNIC, IBV_TRANSPORT_IWARP.
        assert_eq!(told(LITTLE), (4, 1, 2));
    }

    #[test]
    fn nothing_is_on_demand_that_does_not_exist() {
        let services = [QpType::Rc, QpType::Uc, QpType::Ud];
        let all = services.map(|of| on_demand(&TransportCaps::EVERYTHING, of));
        assert_eq!(all, [0b11_1111, 0b10_0111, 0b10_0011]);
        let little = services.map(|of| on_demand(&LITTLE, of));
        assert_eq!(little, [0b10_1111, 0, 0]);
    }

    #[test]
    fn a_queue_pair_is_made_for_what_the_device_can_do() {
        let of = |caps, kind| qp_ex::operations(caps, kind);
        let everything = TransportCaps::EVERYTHING;
        assert_eq!(
            of(&everything, QpType::XrcSend),
            of(&everything, QpType::Rc)
        );
        assert_eq!(
            of(&everything, QpType::Ud),
            IBV_QP_EX_WITH_SEND | IBV_QP_EX_WITH_SEND_WITH_IMM
        );
        assert_eq!(of(&everything, QpType::XrcRecv), 0);
        assert_eq!(
            of(&LITTLE, QpType::Rc),
            IBV_QP_EX_WITH_SEND
                | IBV_QP_EX_WITH_RDMA_WRITE
                | IBV_QP_EX_WITH_RDMA_READ
                | IBV_QP_EX_WITH_LOCAL_INV
                | IBV_QP_EX_WITH_BIND_MW
        );
        assert_eq!(of(&LITTLE, QpType::Uc), 0);
        let lost = of(&everything, QpType::Uc) & IBV_QP_EX_WITH_RDMA_READ;
        assert_eq!(lost, 0, "no READ on an unreliable connection");
    }
}
