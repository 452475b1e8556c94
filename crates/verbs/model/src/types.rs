//! The types that everybody shares: numbers and layouts of the C interface.
//!
//! What a work request or a poll touches is `repr(C)` with exactly the layout of
//! `infiniband/verbs.h`, so that the C interface casts and never converts. Enumerations whose
//! value can come from a C program are plain numbers there and are checked when they are
//! converted (`QpType::try_from`).

use std::net::{IpAddr, Ipv6Addr};

use crate::error::Error;

/// One piece of a work request's local memory (`ibv_sge`).
///
/// In what a program posts, `addr` counts from the region's `iova` and `lkey` names the region;
/// in an inline request `addr` is an address of the program and `lkey` means nothing. In what a
/// transport gets, `addr` is always an address of this process and was checked.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sge {
    pub addr: u64,
    /// Bytes.
    pub length: u32,
    pub lkey: u32,
}

/// A work completion (`ibv_wc`).
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Wc {
    pub wr_id: u64,
    /// A [`WcStatus`].
    pub status: u32,
    /// A [`WcOpcode`]; as in C, only `wr_id`, `status`, `qp_num` and `vendor_err` mean
    /// something when `status` is not success.
    pub opcode: u32,
    pub vendor_err: u32,
    /// Bytes received, read, or 8 for atomics.
    pub byte_len: u32,
    /// Immediate data in network byte order, or the key that the message invalidated.
    pub imm: u32,
    pub qp_num: u32,
    pub src_qp: u32,
    /// [`wc_flags`].
    pub wc_flags: u32,
    pub pkey_index: u16,
    pub slid: u16,
    pub sl: u8,
    pub dlid_path_bits: u8,
}

const _: () = assert!(size_of::<Sge>() == 16 && size_of::<Wc>() == 48);

macro_rules! numbers {
    ($(#[$meta:meta])* $name:ident: $($(#[$item_meta:meta])* $item:ident = $value:literal),+ $(,)?) => {
        $(#[$meta])*
        #[repr(u32)]
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub enum $name { $($(#[$item_meta])* $item = $value),+ }

        impl $name {
            pub const ALL: &'static [$name] = &[$($name::$item),+];
        }

        impl TryFrom<u32> for $name {
            type Error = Error;

            #[inline]
            fn try_from(number: u32) -> Result<Self, Error> {
                match number {
                    $($value => Ok($name::$item),)+
                    _ => Err(Error::UnknownNumber),
                }
            }
        }
    };
}

numbers! {
    /// `ibv_wc_status`.
    WcStatus:
    Success = 0,
    LocLenErr = 1,
    LocQpOpErr = 2,
    LocEecOpErr = 3,
    LocProtErr = 4,
    WrFlushErr = 5,
    MwBindErr = 6,
    BadRespErr = 7,
    LocAccessErr = 8,
    RemInvReqErr = 9,
    RemAccessErr = 10,
    RemOpErr = 11,
    RetryExcErr = 12,
    RnrRetryExcErr = 13,
    LocRddViolErr = 14,
    RemInvRdReqErr = 15,
    RemAbortErr = 16,
    InvEecnErr = 17,
    InvEecStateErr = 18,
    FatalErr = 19,
    RespTimeoutErr = 20,
    GeneralErr = 21,
}

numbers! {
    /// `ibv_wc_opcode`.
    WcOpcode:
    Send = 0,
    RdmaWrite = 1,
    RdmaRead = 2,
    CompSwap = 3,
    FetchAdd = 4,
    BindMw = 5,
    LocalInv = 6,
    Recv = 128,
    RecvRdmaWithImm = 129,
}

numbers! {
    /// `ibv_wr_opcode`, as far as the engine knows it; facts are in [`crate::opcode`].
    WrOpcode:
    RdmaWrite = 0,
    RdmaWriteWithImm = 1,
    Send = 2,
    SendWithImm = 3,
    RdmaRead = 4,
    AtomicCmpAndSwp = 5,
    AtomicFetchAndAdd = 6,
    LocalInv = 7,
    BindMw = 8,
    SendWithInv = 9,
}

numbers! {
    /// `ibv_qp_type`.
    QpType:
    Rc = 2,
    Uc = 3,
    Ud = 4,
    /// The initiating half of an extended reliable connection.
    XrcSend = 9,
    /// The target half: it has no queues, messages name an SRQ of its domain.
    XrcRecv = 10,
}

impl QpType {
    /// Its requests have answers, and its messages come once and in order.
    #[inline]
    pub const fn is_reliable(self) -> bool {
        !matches!(self, QpType::Uc | QpType::Ud)
    }
}

numbers! {
    /// `ibv_qp_state`.
    QpState:
    Reset = 0,
    Init = 1,
    Rtr = 2,
    Rts = 3,
    Sqd = 4,
    Sqe = 5,
    Err = 6,
}

numbers! {
    /// `ibv_event_type`, as far as the engine raises them.
    EventType:
    CqErr = 0,
    QpFatal = 1,
    QpReqErr = 2,
    QpAccessErr = 3,
    CommEst = 4,
    SqDrained = 5,
    PathMig = 6,
    PathMigErr = 7,
    DeviceFatal = 8,
    PortActive = 9,
    PortErr = 10,
    SrqErr = 14,
    SrqLimitReached = 15,
    QpLastWqeReached = 16,
    GidChange = 18,
}

numbers! {
    /// `ibv_node_type`, as far as a device may be one.
    NodeType:
    /// A channel adapter of InfiniBand or RoCE.
    Ca = 1,
    /// An adapter of RDMA over TCP.
    Rnic = 4,
    Unspecified = 7,
}

numbers! {
    /// `ibv_transport_type`, as far as a device may have one.
    TransportType:
    Ib = 0,
    Iwarp = 1,
    Unspecified = 4,
}

numbers! {
    /// `IBV_LINK_LAYER_*`.
    LinkLayer:
    Unspecified = 0,
    InfiniBand = 1,
    Ethernet = 2,
}

/// `ibv_access_flags`.
pub mod access {
    pub const LOCAL_WRITE: u32 = 1;
    pub const REMOTE_WRITE: u32 = 1 << 1;
    pub const REMOTE_READ: u32 = 1 << 2;
    pub const REMOTE_ATOMIC: u32 = 1 << 3;
    pub const MW_BIND: u32 = 1 << 4;
    pub const ZERO_BASED: u32 = 1 << 5;
    pub const ON_DEMAND: u32 = 1 << 6;
    pub const HUGETLB: u32 = 1 << 7;
    /// `IBV_ACCESS_FLUSH_GLOBAL` and `IBV_ACCESS_FLUSH_PERSISTENT`.
    pub const FLUSH: u32 = 3 << 8;
    /// Bits that a device may ignore (`IBV_ACCESS_OPTIONAL_RANGE`); relaxed ordering is one.
    pub const OPTIONAL: u32 = 0x3ff0_0000;
    pub const REMOTE_ANY: u32 = REMOTE_WRITE | REMOTE_READ | REMOTE_ATOMIC;
}

/// `ibv_send_flags`.
pub mod send_flags {
    pub const FENCE: u32 = 1;
    pub const SIGNALED: u32 = 1 << 1;
    pub const SOLICITED: u32 = 1 << 2;
    pub const INLINE: u32 = 1 << 3;
    /// Checksum offload is not among them: it is for devices that say they have it.
    pub const ALL: u32 = FENCE | SIGNALED | SOLICITED | INLINE;
}

/// `ibv_wc_flags`.
pub mod wc_flags {
    pub const GRH: u32 = 1;
    pub const WITH_IMM: u32 = 1 << 1;
    pub const WITH_INV: u32 = 1 << 3;
}

/// `ibv_qp_attr_mask`.
pub mod qp_mask {
    pub const STATE: u32 = 1;
    pub const CUR_STATE: u32 = 1 << 1;
    pub const EN_SQD_ASYNC_NOTIFY: u32 = 1 << 2;
    pub const ACCESS_FLAGS: u32 = 1 << 3;
    pub const PKEY_INDEX: u32 = 1 << 4;
    pub const PORT: u32 = 1 << 5;
    pub const QKEY: u32 = 1 << 6;
    pub const AV: u32 = 1 << 7;
    pub const PATH_MTU: u32 = 1 << 8;
    pub const TIMEOUT: u32 = 1 << 9;
    pub const RETRY_CNT: u32 = 1 << 10;
    pub const RNR_RETRY: u32 = 1 << 11;
    pub const RQ_PSN: u32 = 1 << 12;
    pub const MAX_QP_RD_ATOMIC: u32 = 1 << 13;
    pub const ALT_PATH: u32 = 1 << 14;
    pub const MIN_RNR_TIMER: u32 = 1 << 15;
    pub const SQ_PSN: u32 = 1 << 16;
    pub const MAX_DEST_RD_ATOMIC: u32 = 1 << 17;
    pub const PATH_MIG_STATE: u32 = 1 << 18;
    pub const CAP: u32 = 1 << 19;
    pub const DEST_QPN: u32 = 1 << 20;
    pub const RATE_LIMIT: u32 = 1 << 25;
}

/// `ibv_srq_attr_mask`.
pub mod srq_mask {
    pub const MAX_WR: u32 = 1;
    pub const LIMIT: u32 = 1 << 1;
}

/// `ibv_rereg_mr_flags`.
pub mod rereg {
    pub const TRANSLATION: u32 = 1;
    pub const PD: u32 = 1 << 1;
    pub const ACCESS: u32 = 1 << 2;
}

/// A port's address, in network byte order (`ibv_gid`).
#[repr(C, align(8))]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Gid(pub [u8; 16]);

impl Gid {
    /// An IPv6 group, or one of IPv4 mapped into IPv6 (224.0.0.0/4), as RoCEv2 writes it (IBTA
    /// annex A17).
    #[inline]
    pub const fn is_multicast(&self) -> bool {
        match self.0 {
            [0xff, ..] => true,
            [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, first, ..] => first >> 4 == 0xe,
            _ => false,
        }
    }

    #[inline]
    pub fn is_zero(&self) -> bool {
        self.0 == [0; 16]
    }

    /// The address that it is over RoCEv2 (IBTA annex A17.4.4).
    pub fn address(&self) -> IpAddr {
        Ipv6Addr::from(self.0).to_canonical()
    }
}

/// And back.
impl From<IpAddr> for Gid {
    fn from(address: IpAddr) -> Self {
        Self(match address {
            IpAddr::V4(address) => address.to_ipv6_mapped().octets(),
            IpAddr::V6(address) => address.octets(),
        })
    }
}

/// `ibv_global_route`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct GlobalRoute {
    pub dgid: Gid,
    pub flow_label: u32,
    pub sgid_index: u8,
    pub hop_limit: u8,
    pub traffic_class: u8,
}

/// The way to a peer (`ibv_ah_attr`).
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct AhAttr {
    pub grh: GlobalRoute,
    pub dlid: u16,
    pub sl: u8,
    pub src_path_bits: u8,
    pub static_rate: u8,
    pub is_global: u8,
    pub port_num: u8,
}

/// `ibv_qp_cap`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct QpCap {
    pub max_send_wr: u32,
    pub max_recv_wr: u32,
    pub max_send_sge: u32,
    pub max_recv_sge: u32,
    /// Bytes.
    pub max_inline_data: u32,
}

/// `ibv_qp_attr`. Enumerations are numbers here: [`QpState`] and the MTU's code 1 to 5.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct QpAttr {
    pub qp_state: u32,
    pub cur_qp_state: u32,
    /// 1 to 5 for 256 to 4096 bytes.
    pub path_mtu: u32,
    pub path_mig_state: u32,
    pub qkey: u32,
    pub rq_psn: u32,
    pub sq_psn: u32,
    pub dest_qp_num: u32,
    pub qp_access_flags: u32,
    pub cap: QpCap,
    pub ah_attr: AhAttr,
    pub alt_ah_attr: AhAttr,
    pub pkey_index: u16,
    pub alt_pkey_index: u16,
    pub en_sqd_async_notify: u8,
    pub sq_draining: u8,
    pub max_rd_atomic: u8,
    pub max_dest_rd_atomic: u8,
    pub min_rnr_timer: u8,
    pub port_num: u8,
    pub timeout: u8,
    pub retry_cnt: u8,
    pub rnr_retry: u8,
    pub alt_port_num: u8,
    pub alt_timeout: u8,
    pub rate_limit: u32,
}

const _: () = assert!(size_of::<AhAttr>() == 32 && size_of::<QpAttr>() == 144);

/// `ibv_srq_attr`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SrqAttr {
    pub max_wr: u32,
    pub max_sge: u32,
    /// The limit event comes once fewer receives than this are queued; 0 is disarmed.
    pub srq_limit: u32,
}

/// `ibv_device_attr`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct DeviceAttr {
    pub fw_ver: [u8; 64],
    /// Network byte order, as the next one.
    pub node_guid: u64,
    pub sys_image_guid: u64,
    pub max_mr_size: u64,
    pub page_size_cap: u64,
    pub vendor_id: u32,
    pub vendor_part_id: u32,
    pub hw_ver: u32,
    pub max_qp: i32,
    pub max_qp_wr: i32,
    pub device_cap_flags: u32,
    pub max_sge: i32,
    pub max_sge_rd: i32,
    pub max_cq: i32,
    pub max_cqe: i32,
    pub max_mr: i32,
    pub max_pd: i32,
    pub max_qp_rd_atom: i32,
    pub max_ee_rd_atom: i32,
    pub max_res_rd_atom: i32,
    pub max_qp_init_rd_atom: i32,
    pub max_ee_init_rd_atom: i32,
    /// 0 none, 1 among QPs of this device, 2 also against the processor.
    pub atomic_cap: u32,
    pub max_ee: i32,
    pub max_rdd: i32,
    pub max_mw: i32,
    pub max_raw_ipv6_qp: i32,
    pub max_raw_ethy_qp: i32,
    pub max_mcast_grp: i32,
    pub max_mcast_qp_attach: i32,
    pub max_total_mcast_qp_attach: i32,
    pub max_ah: i32,
    pub max_fmr: i32,
    pub max_map_per_fmr: i32,
    pub max_srq: i32,
    pub max_srq_wr: i32,
    pub max_srq_sge: i32,
    pub max_pkeys: u16,
    pub local_ca_ack_delay: u8,
    pub phys_port_cnt: u8,
}

const _: () = assert!(size_of::<DeviceAttr>() == 232);

/// `ibv_port_attr`, the version with `port_cap_flags2`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct PortAttr {
    pub state: u32,
    pub max_mtu: u32,
    pub active_mtu: u32,
    pub gid_tbl_len: i32,
    pub port_cap_flags: u32,
    pub max_msg_sz: u32,
    pub bad_pkey_cntr: u32,
    pub qkey_viol_cntr: u32,
    pub pkey_tbl_len: u16,
    pub lid: u16,
    pub sm_lid: u16,
    pub lmc: u8,
    pub max_vl_num: u8,
    pub sm_sl: u8,
    pub subnet_timeout: u8,
    pub init_type_reply: u8,
    pub active_width: u8,
    pub active_speed: u8,
    pub phys_state: u8,
    pub link_layer: u8,
    pub flags: u8,
    pub port_cap_flags2: u16,
}

const _: () = assert!(size_of::<PortAttr>() == 52);

/// How a memory window is bound.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MwType {
    /// Bound by `ibv_bind_mw`, for every QP of the domain.
    Type1,
    /// Bound by a work request, for its QP; taken away by an invalidation.
    Type2,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_and_gids_are_the_same_thing() {
        for text in ["192.0.2.1", "2001:db8::7", "fe80::1", "127.0.0.1"] {
            let wanted: IpAddr = text.parse().unwrap();
            assert_eq!(Gid::from(wanted).address(), wanted);
        }
    }

    #[test]
    fn groups_of_both_address_families_are_multicast() {
        let v4 = |address: [u8; 4]| Gid::from(IpAddr::from(address));
        for group in [[224, 0, 0, 1], [239, 255, 255, 255]] {
            assert!(v4(group).is_multicast());
        }
        for host in [[223, 255, 255, 255], [240, 0, 0, 0], [127, 0, 0, 1]] {
            assert!(!v4(host).is_multicast());
        }
        let v6 = |text: &str| Gid(text.parse::<Ipv6Addr>().unwrap().octets());
        assert!(v6("ff0e::1").is_multicast());
        for host in ["fe80::1", "::224.0.0.1", "1::ffff:224.0.0.1", "::1"] {
            assert!(!v6(host).is_multicast(), "{host}");
        }
    }

    #[test]
    fn numbers_convert_both_ways() {
        for status in WcStatus::ALL {
            assert_eq!(WcStatus::try_from(*status as u32), Ok(*status));
        }
        assert_eq!(WcStatus::try_from(22), Err(Error::UnknownNumber));
        for opcode in WrOpcode::ALL {
            assert_eq!(WrOpcode::try_from(*opcode as u32), Ok(*opcode));
        }
        assert!(WrOpcode::try_from(10).is_err());
        assert!(QpType::try_from(1).is_err());
    }
}
