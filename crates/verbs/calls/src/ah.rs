//! Address handles.

use std::cell::UnsafeCell;
use std::ffi::c_int;
use std::ptr;

use sluice_verbs as engine;

use super::context::Context;
use super::objects::{Ah, Object, Pd, number};
use crate::errno::{minus_one, null};
use crate::ffi::*;

pub unsafe extern "C" fn ibv_create_ah(pd: *mut ibv_pd, attr: *mut ibv_ah_attr) -> *mut ibv_ah {
    // SAFETY: the header's contract.
    let (object, attr) = unsafe { (Pd::of(pd), engine_attr(&*attr)) };
    match object.engine.create_ah(&attr) {
        Ok(engine) => Box::new(Ah {
            c: UnsafeCell::new(ibv_ah {
                // SAFETY: the header's contract.
                context: unsafe { (*pd).context },
                pd,
                handle: 0,
            }),
            engine,
        })
        .give(),
        Err(error) => null(number(error)),
    }
}

fn engine_attr(attr: &ibv_ah_attr) -> engine::AhAttr {
    const { assert!(size_of::<ibv_ah_attr>() == size_of::<engine::AhAttr>()) };
    // SAFETY: both are the header's ibv_ah_attr, plain data field for field.
    unsafe { ptr::from_ref(attr).cast::<engine::AhAttr>().read() }
}

pub unsafe extern "C" fn ibv_destroy_ah(ah: *mut ibv_ah) -> c_int {
    // SAFETY: the header's contract.
    if let Err(error) = unsafe { Ah::of(ah) }.engine.destroy() {
        return number(error);
    }
    // SAFETY: the header's contract.
    unsafe { Ah::take(ah) };
    0
}

pub unsafe extern "C" fn ibv_create_ah_from_wc(
    pd: *mut ibv_pd,
    wc: *mut ibv_wc,
    grh: *mut ibv_grh,
    port: u8,
) -> *mut ibv_ah {
    // SAFETY: plain numbers, for which zero is "none".
    let mut attr: ibv_ah_attr = unsafe { std::mem::zeroed() };
    // SAFETY: the header's contract.
    unsafe {
        if ibv_init_ah_from_wc((*pd).context, port, wc, grh, &mut attr) != 0 {
            return ptr::null_mut();
        }
        ibv_create_ah(pd, &mut attr)
    }
}

/// The way back to the sender of a datagram. Returns 0, or -1 and `errno`.
pub unsafe extern "C" fn ibv_init_ah_from_wc(
    context: *mut ibv_context,
    port: u8,
    wc: *mut ibv_wc,
    grh: *mut ibv_grh,
    attr: *mut ibv_ah_attr,
) -> c_int {
    // SAFETY: the header's contract.
    let (context, wc) = unsafe { (Context::of(context), &*wc) };
    // SAFETY: plain numbers, for which zero is "none".
    let mut answer: ibv_ah_attr = unsafe { std::mem::zeroed() };
    answer.dlid = wc.slid;
    answer.sl = wc.sl;
    answer.src_path_bits = wc.dlid_path_bits;
    answer.port_num = port;
    if wc.wc_flags & IBV_WC_GRH != 0 {
        // SAFETY: the header's contract: 40 bytes, at any address.
        let header = Header::parse(unsafe { &*grh.cast::<[u8; 40]>() });
        let table = context.engine.device().gid_table();
        let Some(index) = table.iter().position(|entry| entry.gid.0 == header.to) else {
            return minus_one(libc::ENOENT);
        };
        answer.is_global = 1;
        answer.grh = ibv_global_route {
            dgid: ibv_gid { raw: header.from },
            flow_label: header.flow_label,
            // The table's length is a small number of this library's choosing.
            sgid_index: index as u8,
            hop_limit: u8::MAX,
            traffic_class: header.traffic_class,
        };
    }
    // SAFETY: the header's contract.
    unsafe { attr.write(answer) };
    0
}

/// What a global route header says about the sender. RoCEv2 over IPv4 has the IPv4 header in the
/// last 20 of the 40 bytes (RoCEv2 annex A17.4.5.2).
#[derive(Debug, PartialEq, Eq)]
struct Header {
    from: [u8; 16],
    to: [u8; 16],
    flow_label: u32,
    traffic_class: u8,
}

impl Header {
    fn parse(bytes: &[u8; 40]) -> Self {
        let word = u32::from_be_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]);
        if word >> 28 != 6 && bytes[20] >> 4 == 4 {
            return Self {
                from: mapped(&bytes[32..36]),
                to: mapped(&bytes[36..40]),
                flow_label: 0,
                traffic_class: bytes[21],
            };
        }
        let gid = |range: std::ops::Range<usize>| {
            let mut gid = [0; 16];
            gid.copy_from_slice(&bytes[range]);
            gid
        };
        Self {
            from: gid(8..24),
            to: gid(24..40),
            flow_label: word & 0xf_ffff,
            traffic_class: (word >> 20) as u8,
        }
    }
}

/// An IPv4 address as a GID.
fn mapped(address: &[u8]) -> [u8; 16] {
    let mut gid = [0; 16];
    gid[10..12].fill(0xff);
    gid[12..].copy_from_slice(address);
    gid
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_forms_of_the_header() {
        let mut bytes = [0; 40];
        bytes[..4].copy_from_slice(&0x6ab1_2345_u32.to_be_bytes());
        bytes[8..24].fill(1);
        bytes[24..40].fill(2);
        assert_eq!(
            Header::parse(&bytes),
            Header {
                from: [1; 16],
                to: [2; 16],
                flow_label: 0x1_2345,
                traffic_class: 0xab,
            }
        );
        let mut bytes = [0; 40];
        bytes[20] = 0x45;
        bytes[21] = 7;
        bytes[32..36].copy_from_slice(&[10, 0, 0, 1]);
        bytes[36..40].copy_from_slice(&[10, 0, 0, 2]);
        let header = Header::parse(&bytes);
        assert_eq!(header.from[10..], [0xff, 0xff, 10, 0, 0, 1]);
        assert_eq!(header.to[12..], [10, 0, 0, 2]);
        assert_eq!(header.traffic_class, 7);
    }
}
