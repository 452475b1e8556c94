//! Structures of the kernel's interface to those of the header and back. Other libraries of
//! rdma-core (libibcm and the older librdmacm) call these.

use crate::ffi::*;

/// `struct ib_uverbs_ah_attr`: the header's fields, in the kernel's order.
#[repr(C)]
pub struct KernelAh {
    dgid: [u8; 16],
    flow_label: u32,
    sgid_index: u8,
    hop_limit: u8,
    traffic_class: u8,
    _reserved: u8,
    dlid: u16,
    sl: u8,
    src_path_bits: u8,
    static_rate: u8,
    is_global: u8,
    port_num: u8,
    _reserved_too: u8,
}

/// `struct ib_uverbs_qp_attr`.
#[repr(C)]
pub struct KernelQp {
    _qp_attr_mask: u32,
    qp_state: u32,
    cur_qp_state: u32,
    path_mtu: u32,
    path_mig_state: u32,
    qkey: u32,
    rq_psn: u32,
    sq_psn: u32,
    dest_qp_num: u32,
    qp_access_flags: u32,
    ah_attr: KernelAh,
    alt_ah_attr: KernelAh,
    cap: ibv_qp_cap,
    pkey_index: u16,
    alt_pkey_index: u16,
    en_sqd_async_notify: u8,
    sq_draining: u8,
    max_rd_atomic: u8,
    max_dest_rd_atomic: u8,
    min_rnr_timer: u8,
    port_num: u8,
    timeout: u8,
    retry_cnt: u8,
    rnr_retry: u8,
    alt_port_num: u8,
    alt_timeout: u8,
    _reserved: [u8; 5],
}

/// `struct ib_user_path_rec`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct KernelPath {
    dgid: [u8; 16],
    sgid: [u8; 16],
    dlid: u16,
    slid: u16,
    raw_traffic: u32,
    flow_label: u32,
    reversible: u32,
    mtu: u32,
    pkey: u16,
    hop_limit: u8,
    traffic_class: u8,
    numb_path: u8,
    sl: u8,
    mtu_selector: u8,
    rate_selector: u8,
    rate: u8,
    packet_life_time_selector: u8,
    packet_life_time: u8,
    preference: u8,
}

/// `struct ibv_sa_path_rec` of `infiniband/sa.h`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct Path {
    dgid: ibv_gid,
    sgid: ibv_gid,
    dlid: u16,
    slid: u16,
    raw_traffic: i32,
    flow_label: u32,
    hop_limit: u8,
    traffic_class: u8,
    reversible: i32,
    numb_path: u8,
    pkey: u16,
    sl: u8,
    mtu_selector: u8,
    mtu: u8,
    rate_selector: u8,
    rate: u8,
    packet_life_time_selector: u8,
    packet_life_time: u8,
    preference: u8,
}

const _: () = assert!(size_of::<KernelAh>() == 32 && size_of::<KernelQp>() == 144);
const _: () = assert!(size_of::<KernelPath>() == 64 && size_of::<Path>() == 64);

fn ah_attr(from: &KernelAh) -> ibv_ah_attr {
    ibv_ah_attr {
        grh: ibv_global_route {
            dgid: ibv_gid { raw: from.dgid },
            flow_label: from.flow_label,
            sgid_index: from.sgid_index,
            hop_limit: from.hop_limit,
            traffic_class: from.traffic_class,
        },
        dlid: from.dlid,
        sl: from.sl,
        src_path_bits: from.src_path_bits,
        static_rate: from.static_rate,
        is_global: from.is_global,
        port_num: from.port_num,
    }
}

pub unsafe extern "C" fn ibv_copy_ah_attr_from_kern(to: *mut ibv_ah_attr, from: *const KernelAh) {
    // SAFETY: the header's contract.
    unsafe { to.write(ah_attr(&*from)) };
}

pub unsafe extern "C" fn ibv_copy_qp_attr_from_kern(to: *mut ibv_qp_attr, from: *const KernelQp) {
    // SAFETY: the header's contract.
    let from = unsafe { &*from };
    let attr = ibv_qp_attr {
        qp_state: from.qp_state,
        cur_qp_state: from.cur_qp_state,
        path_mtu: from.path_mtu,
        path_mig_state: from.path_mig_state,
        qkey: from.qkey,
        rq_psn: from.rq_psn,
        sq_psn: from.sq_psn,
        dest_qp_num: from.dest_qp_num,
        qp_access_flags: from.qp_access_flags,
        cap: from.cap,
        ah_attr: ah_attr(&from.ah_attr),
        alt_ah_attr: ah_attr(&from.alt_ah_attr),
        pkey_index: from.pkey_index,
        alt_pkey_index: from.alt_pkey_index,
        en_sqd_async_notify: from.en_sqd_async_notify,
        sq_draining: from.sq_draining,
        max_rd_atomic: from.max_rd_atomic,
        max_dest_rd_atomic: from.max_dest_rd_atomic,
        min_rnr_timer: from.min_rnr_timer,
        port_num: from.port_num,
        timeout: from.timeout,
        retry_cnt: from.retry_cnt,
        rnr_retry: from.rnr_retry,
        alt_port_num: from.alt_port_num,
        alt_timeout: from.alt_timeout,
        rate_limit: 0,
    };
    // SAFETY: the header's contract.
    unsafe { to.write(attr) };
}

pub unsafe extern "C" fn ibv_copy_path_rec_from_kern(to: *mut Path, from: *const KernelPath) {
    // SAFETY: the header's contract.
    unsafe { to.write(path_from_kernel(&*from)) };
}

fn path_from_kernel(from: &KernelPath) -> Path {
    Path {
        dgid: ibv_gid { raw: from.dgid },
        sgid: ibv_gid { raw: from.sgid },
        dlid: from.dlid,
        slid: from.slid,
        raw_traffic: from.raw_traffic as i32,
        flow_label: from.flow_label,
        hop_limit: from.hop_limit,
        traffic_class: from.traffic_class,
        reversible: from.reversible as i32,
        numb_path: from.numb_path,
        pkey: from.pkey,
        sl: from.sl,
        mtu_selector: from.mtu_selector,
        // An MTU's code is at most 5.
        mtu: from.mtu as u8,
        rate_selector: from.rate_selector,
        rate: from.rate,
        packet_life_time_selector: from.packet_life_time_selector,
        packet_life_time: from.packet_life_time,
        preference: from.preference,
    }
}

pub unsafe extern "C" fn ibv_copy_path_rec_to_kern(to: *mut KernelPath, from: *const Path) {
    // SAFETY: the header's contract.
    unsafe { to.write(path_to_kernel(&*from)) };
}

fn path_to_kernel(from: &Path) -> KernelPath {
    KernelPath {
        dgid: from.dgid.raw,
        sgid: from.sgid.raw,
        dlid: from.dlid,
        slid: from.slid,
        raw_traffic: from.raw_traffic as u32,
        flow_label: from.flow_label,
        reversible: from.reversible as u32,
        mtu: u32::from(from.mtu),
        pkey: from.pkey,
        hop_limit: from.hop_limit,
        traffic_class: from.traffic_class,
        numb_path: from.numb_path,
        sl: from.sl,
        mtu_selector: from.mtu_selector,
        rate_selector: from.rate_selector,
        rate: from.rate,
        packet_life_time_selector: from.packet_life_time_selector,
        packet_life_time: from.packet_life_time,
        preference: from.preference,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_comes_back() {
        let mut given = [0_u8; 64];
        for (index, byte) in given.iter_mut().enumerate() {
            *byte = index as u8 + 1;
        }
        // SAFETY: plain numbers of the same size.
        let mut kernel: KernelPath = unsafe { std::mem::transmute::<[u8; 64], KernelPath>(given) };
        kernel.mtu = 5;
        let back = path_to_kernel(&path_from_kernel(&kernel));
        let bytes = |path: KernelPath| {
            // SAFETY: the structure has no padding: its size is that of its fields.
            unsafe { std::mem::transmute::<KernelPath, [u8; 64]>(path) }
        };
        assert_eq!(bytes(kernel), bytes(back));
    }
}
