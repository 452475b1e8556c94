//! A device: one transport, one port, the addresses of the host.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use sluice_verbs_model::error::{Error, Result};
use sluice_verbs_model::keys::{KEYS_MAX, KeyInfo};
use sluice_verbs_model::limits::{CQS_MAX, MAX_SGE, QPS_MAX, REGION_MAX};
use sluice_verbs_model::report::DeviceReport;
use sluice_verbs_model::transport::TransportCaps;
use sluice_verbs_model::types::{DeviceAttr, Gid, PortAttr};

use crate::adapter::{Adapter, Medium, check_port};
use crate::qp::Directory;
use crate::transport::Transport;
use crate::xrcd::Xrcds;

pub use sluice_verbs_model::gids::{GIDS_MAX, GidEntry};
pub use sluice_verbs_model::limits::{CQES_MAX, GROUPS_PER_QP, QUEUE_MAX};

/// The one P_Key: the default partition, full member.
const PKEY: u16 = 0xffff;

/// A device and what belongs to all who have opened it.
pub struct Device {
    name: String,
    transport: Arc<dyn Transport>,
    pub(crate) adapter: Arc<Adapter>,
    pub(crate) directory: Arc<Directory>,
    pub(crate) xrcds: Arc<Xrcds>,
}

impl Medium for Arc<dyn Transport> {
    fn caps(&self) -> TransportCaps {
        (**self).caps()
    }

    fn key_published(&self, key: &KeyInfo) -> Result<()> {
        (**self).key_published(key)
    }

    fn key_withdrawn(&self, key: &KeyInfo) {
        (**self).key_withdrawn(key);
    }

    fn destroy_srq(&self, srqn: u32) {
        (**self).destroy_srq(srqn);
    }
}

impl Device {
    /// `name` is what programs see, `sluice0`.
    pub fn new(name: &str, transport: Arc<dyn Transport>) -> Arc<Device> {
        Arc::new(Device {
            name: name.to_owned(),
            adapter: Adapter::new(host_guid(name), Box::new(transport.clone())),
            transport,
            directory: Arc::default(),
            xrcds: Arc::default(),
        })
    }

    pub fn name(&self) -> &str {
        &self.name
    }

    pub fn transport(&self) -> &dyn Transport {
        &*self.transport
    }

    /// What it can do.
    pub fn caps(&self) -> TransportCaps {
        self.transport.caps()
    }

    /// Network byte order; the same for all processes of a host.
    pub fn guid(&self) -> u64 {
        self.adapter.guid()
    }

    /// A device of no known vendor (0), because programs take known numbers for permission to
    /// use that vendor's ways.
    pub fn attr(&self) -> DeviceAttr {
        let caps = self.transport.caps();
        let mut fw_ver = [0; 64];
        let version = env!("CARGO_PKG_VERSION").as_bytes();
        fw_ver[..version.len()].copy_from_slice(version);
        let depth = i32::from(caps.max_rd_atomic);
        DeviceAttr {
            fw_ver,
            node_guid: self.guid(),
            sys_image_guid: self.guid(),
            max_mr_size: REGION_MAX,
            page_size_cap: !0xfff,
            vendor_id: 0,
            vendor_part_id: 0,
            hw_ver: 0,
            max_qp: QPS_MAX,
            max_qp_wr: QUEUE_MAX as i32,
            device_cap_flags: cap_flags(&caps),
            max_sge: MAX_SGE as i32,
            max_sge_rd: MAX_SGE as i32,
            max_cq: CQS_MAX as i32,
            max_cqe: CQES_MAX as i32,
            max_mr: KEYS_MAX as i32,
            max_pd: i32::MAX,
            max_qp_rd_atom: depth,
            max_ee_rd_atom: 0,
            max_res_rd_atom: depth * QPS_MAX,
            max_qp_init_rd_atom: depth,
            max_ee_init_rd_atom: 0,
            atomic_cap: caps.atomic_cap,
            max_ee: 0,
            max_rdd: 0,
            max_mw: KEYS_MAX as i32,
            max_raw_ipv6_qp: 0,
            max_raw_ethy_qp: 0,
            max_mcast_grp: if caps.ud { 8192 } else { 0 },
            max_mcast_qp_attach: if caps.ud { GROUPS_PER_QP as i32 } else { 0 },
            max_total_mcast_qp_attach: if caps.ud { 8192 } else { 0 },
            max_ah: if caps.ud { i32::MAX } else { 0 },
            max_fmr: 0,
            max_map_per_fmr: 0,
            max_srq: QPS_MAX,
            max_srq_wr: QUEUE_MAX as i32,
            max_srq_sge: MAX_SGE as i32,
            max_pkeys: 1,
            local_ca_ack_delay: 0,
            phys_port_cnt: 1,
        }
    }

    /// Ports count from 1; there is one, in state ACTIVE.
    pub fn port_attr(&self, port: u8) -> Result<PortAttr> {
        check_port(port)?;
        let caps = self.transport.caps();
        Ok(PortAttr {
            state: 4,
            max_mtu: caps.mtu,
            active_mtu: caps.mtu,
            gid_tbl_len: GIDS_MAX as i32,
            port_cap_flags: port_cap_flags(&caps),
            max_msg_sz: caps.max_msg_sz,
            pkey_tbl_len: 1,
            max_vl_num: 1,
            // 4X, 25 Gb/s: nothing measures by it, and zero is not understood.
            active_width: 2,
            active_speed: 32,
            // LINK_UP.
            phys_state: 5,
            link_layer: caps.identity.link_layer as u8,
            ..PortAttr::default()
        })
    }

    /// Network byte order, as `ibv_query_pkey` gives it.
    pub fn pkey(&self, port: u8, index: u32) -> Result<u16> {
        check_port(port)?;
        match index {
            0 => Ok(PKEY.to_be()),
            _ => Err(Error::NotFound),
        }
    }

    /// The addresses at the time of the last `open` or [`Device::refresh_gids`]. Zero entries
    /// are free ones.
    pub fn gid_table(&self) -> Arc<[GidEntry]> {
        self.adapter.gid_table()
    }

    /// `NotFound` for an index beyond the port's `gid_tbl_len`; a free entry is all zeros, as in
    /// the kernel's tables.
    pub fn gid(&self, port: u8, index: u32) -> Result<GidEntry> {
        self.adapter.gid(port, index)
    }

    /// Reads the host's addresses again. Entries keep their index while their address exists;
    /// an address that is gone leaves a zero entry. Says whether anything changed.
    pub fn refresh_gids(&self) -> bool {
        self.adapter.refresh_gids()
    }

    /// What it is doing. May be called by any thread without a lock of the engine's. It waits for
    /// none for long.
    pub fn report(&self) -> DeviceReport {
        let mut report = DeviceReport {
            contexts: self.adapter.contexts.load(Ordering::Relaxed),
            ..DeviceReport::default()
        };
        self.adapter.census.look(&mut report);
        report
    }
}

/// `ibv_device_cap_flags`.
fn cap_flags(caps: &TransportCaps) -> u32 {
    const CURR_QP_STATE_MOD: u32 = 1 << 7;
    const PORT_ACTIVE_EVENT: u32 = 1 << 10;
    const SYS_IMAGE_GUID: u32 = 1 << 11;
    const RC_RNR_NAK_GEN: u32 = 1 << 12;
    const SRQ_RESIZE: u32 = 1 << 13;
    const N_NOTIFY_CQ: u32 = 1 << 14;
    const MEM_WINDOW: u32 = 1 << 17;
    const XRC: u32 = 1 << 20;
    const MEM_MGT_EXTENSIONS: u32 = 1 << 21;
    const MEM_WINDOW_TYPE_2B: u32 = 1 << 24;
    CURR_QP_STATE_MOD
        | PORT_ACTIVE_EVENT
        | SYS_IMAGE_GUID
        | SRQ_RESIZE
        | N_NOTIFY_CQ
        | MEM_WINDOW
        | MEM_MGT_EXTENSIONS
        | MEM_WINDOW_TYPE_2B
        | if caps.rnr_retry { RC_RNR_NAK_GEN } else { 0 }
        | if caps.xrc { XRC } else { 0 }
}

/// `ibv_port_cap_flags`.
fn port_cap_flags(caps: &TransportCaps) -> u32 {
    const CM_SUP: u32 = 1 << 16;
    const IP_BASED_GIDS: u32 = 1 << 26;
    match caps.identity.has_roce_gids() {
        true => CM_SUP | IP_BASED_GIDS,
        false => CM_SUP,
    }
}

/// A GUID for the host and the device's name: an EUI-64 with the bit that says that it was not
/// bought, from the identity that systemd keeps, or from the host's name.
fn host_guid(name: &str) -> [u8; 8] {
    let identity = std::fs::read("/etc/machine-id")
        .ok()
        .filter(|id| !id.is_empty())
        .or_else(|| std::fs::read("/proc/sys/kernel/hostname").ok())
        .unwrap_or_default();
    // FNV-1a: the GUID need not be secret, only spread.
    let mut hash = 0xcbf2_9ce4_8422_2325u64;
    for byte in identity.iter().chain(name.as_bytes()) {
        hash = (hash ^ u64::from(*byte)).wrapping_mul(0x0000_0100_0000_01b3);
    }
    let [a, b, c, d, e, f, ..] = hash.to_be_bytes();
    [(a & 0xfc) | 2, b, c, 0xff, 0xfe, d, e, f]
}

/// The address of a GID that is one of this device's, for those who look for it.
impl Device {
    pub fn gid_index(&self, gid: &Gid) -> Option<u32> {
        let table = self.gid_table();
        let at = table.iter().position(|entry| entry.gid == *gid)?;
        Some(at as u32)
    }
}
