//! Datagrams out of rings, into receives.
#![allow(unsafe_code)]

use std::sync::Arc;

use sluice_shmem::verbs::copy;
use sluice_shmem::verbs::record::Record;
use sluice_verbs::responder::{RecvDone, TakeError};
use sluice_verbs::{Aftermath, Gid, Qp, QpType, WcStatus, wc_flags};

use super::{DATAGRAM_BYTES_MAX, MULTICAST_QPN};
use crate::hold::{Taken, wait_for_receive};
use crate::link::{Incoming, IncomingState};
use crate::node::Node;
use crate::part::{Part, RecvSide};
use crate::tap;
use crate::wire::{Datagram, flags};
use sluice_transport::pieces;
use sluice_verbs::locks::lock;

/// The header that a receiver finds in front of the data (IBTA 8.3).
const GRH_BYTES: usize = 40;

/// A datagram from a peer.
pub fn take(
    node: &Node,
    incoming: &Incoming,
    state: &mut IncomingState,
    record: &Record,
    after: &mut Aftermath,
) -> Taken {
    let mut bytes = [0; Datagram::BYTES];
    let Some(len) = record.payload_bytes.checked_sub(bytes.len()) else {
        return Taken::Broken;
    };
    if len > DATAGRAM_BYTES_MAX {
        return Taken::Broken;
    }
    // SAFETY: the payload lies in the ring and has that many bytes.
    unsafe { copy::ascending(bytes.as_mut_ptr(), record.payload, bytes.len()) };
    let datagram = Datagram::decode(&bytes);
    let header = &record.header;
    if incoming.peer.directory.qp_slot(header.origin).is_none() {
        return Taken::Done;
    }
    if header.target == MULTICAST_QPN {
        let group = Gid(datagram.dgid.to_ne_bytes());
        let attached = node.groups.attached(&group).into_iter();
        for part in attached.filter_map(|slot| node.parts.get(slot)) {
            if let Some(tap) = part.tap_of_incoming(incoming) {
                tap::datagram(tap, record, &datagram, len);
            }
            // One late member holds back no others.
            deliver(&part, record, &datagram, len, after, |_, _| None);
        }
        return Taken::Done;
    }
    let part = node
        .directory
        .qp_slot(header.target)
        .and_then(|slot| node.parts.get(slot as u32))
        .filter(|part| part.qpn == header.target && part.kind == QpType::Ud);
    let held = part.and_then(|part| {
        let held = deliver(&part, record, &datagram, len, after, |qp, side| {
            wait_for_receive(node, &part, qp, side, incoming, state)
        });
        // One that is held comes again.
        if held.is_none()
            && let Some(tap) = part.tap_of_incoming(incoming)
        {
            tap::datagram(tap, record, &datagram, len);
        }
        held
    });
    held.unwrap_or(Taken::Done)
}

/// Puts a datagram into a receive, or asks `without_receive` what is to become of it.
fn deliver(
    part: &Arc<Part>,
    record: &Record,
    datagram: &Datagram,
    len: usize,
    after: &mut Aftermath,
    without_receive: impl FnOnce(&Qp, &mut RecvSide) -> Option<Taken>,
) -> Option<Taken> {
    let mut side = lock(&part.recv);
    match side.qp.clone() {
        Some(qp) if side.ready && datagram.qkey == side.qkey => {
            match qp.take_recv(&mut side.recv, after) {
                Ok(()) => {
                    fill(&qp, &mut side, record, datagram, len, after);
                    None
                }
                Err(TakeError::Empty) => without_receive(&qp, &mut side),
                Err(_) => None,
            }
        }
        _ => None,
    }
}

/// Fills the receive that was taken, and completes it.
fn fill(
    qp: &Qp,
    side: &mut RecvSide,
    record: &Record,
    datagram: &Datagram,
    len: usize,
    after: &mut Aftermath,
) {
    side.taken = true;
    side.dry = false;
    let whole = (GRH_BYTES + len) as u64;
    let done = if side.recv.room() < whole {
        RecvDone::failed(WcStatus::LocLenErr)
    } else {
        let grh = grh(datagram, len);
        // SAFETY: the engine checked the receive, which has room; the payload lies in the ring.
        unsafe {
            let data = record.payload.add(Datagram::BYTES);
            pieces::scatter(side.recv.sges(), GRH_BYTES as u64, data, len);
            pieces::scatter(side.recv.sges(), 0, grh.as_ptr(), GRH_BYTES);
        }
        let header = &record.header;
        let immediate = header.flags & flags::IMMEDIATE != 0;
        RecvDone {
            imm: if immediate { header.immediate } else { 0 },
            wc_flags: wc_flags::GRH | if immediate { wc_flags::WITH_IMM } else { 0 },
            solicited: header.flags & flags::SOLICITED != 0,
            src_qp: header.origin,
            sl: datagram.sl as u8,
            ..RecvDone::ok(whole as u32)
        }
    };
    side.taken = false;
    qp.complete_recv(&mut side.recv, &done, after);
}

/// The global route header (IBTA 8.3): an IPv6 header whose payload is a BTH, as RoCE has it.
fn grh(datagram: &Datagram, len: usize) -> [u8; GRH_BYTES] {
    let mut grh = [0; GRH_BYTES];
    let first = 6 << 28 | (datagram.class_and_label & 0x0FFF_FFFF);
    grh[..4].copy_from_slice(&first.to_be_bytes());
    grh[4..6].copy_from_slice(&(len as u16).to_be_bytes());
    grh[6] = 0x1B;
    grh[7] = datagram.hop_limit as u8;
    grh[8..24].copy_from_slice(&datagram.sgid.to_ne_bytes());
    grh[24..].copy_from_slice(&datagram.dgid.to_ne_bytes());
    grh
}
