//! Requests as records in the ring of a link.
#![allow(unsafe_code)]

use sluice_shmem::verbs::record::Header;
use sluice_verbs::{Wqe, WrOpcode, send_flags};

use crate::arena;
use crate::link::{CHUNK_BYTES, Outgoing, RequestWriter, Sent};
use crate::part::{Entry, Part, SendSide};
use crate::route::Route;
use crate::wire::{Atomic, PIECES_MAX, Piece, SEQUENCE_MASK, Span, flags, request};
use sluice_transport::pieces;
use sluice_verbs::locks::lock;

/// Data of one WRITE or READ record.
pub const SPAN_DATA_BYTES: usize = CHUNK_BYTES - Span::BYTES;

pub fn is_send(opcode: WrOpcode) -> bool {
    matches!(
        opcode,
        WrOpcode::Send | WrOpcode::SendWithImm | WrOpcode::SendWithInv
    )
}

pub fn opcode_is_atomic(opcode: WrOpcode) -> bool {
    matches!(
        opcode,
        WrOpcode::AtomicCmpAndSwp | WrOpcode::AtomicFetchAndAdd
    )
}

/// Whether the receiver can fetch the data itself, which saves a copy of a long message.
pub fn is_described(route: &Route, link: &Outgoing, wqe: &Wqe<'_>) -> bool {
    if wqe.length <= CHUNK_BYTES as u64
        || wqe.wr.flags & send_flags::INLINE != 0
        || wqe.wr.sges.len() > PIECES_MAX
    {
        return false;
    }
    wqe.wr.sges.iter().all(|piece| {
        piece.length == 0
            || region_of(route, link, piece.addr, piece.length).is_some()
            || link.peer.can_read_us
    })
}

/// The region with these bytes, if the peer has it.
fn region_of(route: &Route, link: &Outgoing, address: u64, len: u32) -> Option<(u32, u64)> {
    let (region, offset) = arena::locate(address, u64::from(len))?;
    link.exported
        .pass(route.socket.raw(), region)
        .then_some((region, offset))
}

/// Puts as much of the first unsent request into the ring as fits.
pub fn push_records(
    part: &Part,
    side: &mut SendSide,
    route: &Route,
    link: &Outgoing,
    wqe: &Wqe<'_>,
) {
    let rewinds = side.rewinds;
    let peer_qpn = side.peer_qpn;
    let Some(entry) = side.queue.get_mut(side.next_send) else {
        return;
    };
    {
        let mut writer = lock(&link.writer);
        while entry.sent < entry.records {
            let sequence = entry.first.wrapping_add(entry.sent) & SEQUENCE_MASK;
            let mut header = Header {
                target: peer_qpn,
                origin: part.qpn,
                sequence,
                short: rewinds,
                immediate: wqe.wr.imm,
                ..Header::default()
            };
            // Before the peer can answer, which sees the record that is published behind this: who looks for the
            // answer looks at this first.
            link.count_in_flight(|count| count + 1);
            let Some(end) = push_record(&mut writer, &mut header, entry, route, link, wqe) else {
                link.count_in_flight(|count| count - 1);
                if !writer.starved.contains(&part.slot) {
                    writer.starved.push_back(part.slot);
                }
                break;
            };
            writer.sent.push_back(Sent {
                end,
                slot: part.slot,
                sequence,
                rewinds,
            });
            entry.sent += 1;
        }
        if entry.sent == entry.records {
            side.next_send += 1;
        }
    }
    link.peer.ring_if_asleep();
}

/// One record of a request; the position behind it, or None when the ring is full.
fn push_record(
    writer: &mut RequestWriter,
    header: &mut Header,
    entry: &Entry,
    route: &Route,
    link: &Outgoing,
    wqe: &Wqe<'_>,
) -> Option<u64> {
    let wr = &wqe.wr;
    let last = entry.sent + 1 == entry.records;
    if entry.sent == 0 {
        header.flags |= flags::FIRST;
    }
    if last {
        header.flags |= flags::LAST;
    }
    if wr.flags & send_flags::SOLICITED != 0 {
        header.flags |= flags::SOLICITED;
    }
    if matches!(
        wr.opcode,
        WrOpcode::SendWithImm | WrOpcode::RdmaWriteWithImm
    ) {
        header.flags |= flags::IMMEDIATE;
    }
    if wr.opcode == WrOpcode::SendWithInv {
        header.flags |= flags::INVALIDATE;
    }
    if is_send(wr.opcode) {
        header.kind = request::SEND;
        header.argument = u64::from(wr.xrc_srqn) | wqe.length << 32;
        if entry.described {
            return push_described(writer, header, route, link, wqe);
        }
        let offset = u64::from(entry.sent) * CHUNK_BYTES as u64;
        let len = (wqe.length - offset).min(CHUNK_BYTES as u64) as usize;
        // SAFETY: the engine checked the pieces, and `gather` stays within them and `len`.
        return unsafe {
            writer
                .ring
                .push(header, len, pieces::gather(wr.sges, offset, len))
        };
    }
    header.argument = wr.remote_addr;
    if opcode_is_atomic(wr.opcode) {
        header.kind = request::ATOMIC;
        let bytes = Atomic {
            rkey: wr.rkey,
            swaps: u32::from(wr.opcode == WrOpcode::AtomicCmpAndSwp),
            compare_add: wr.compare_add,
            swap: wr.swap,
            srqn: wr.xrc_srqn,
            reserved: 0,
        }
        .encode();
        let part = (bytes.as_ptr(), bytes.len());
        // SAFETY: one part, an array.
        return unsafe {
            writer
                .ring
                .push(header, bytes.len(), core::iter::once(part))
        };
    }
    let offset = u64::from(entry.sent) * SPAN_DATA_BYTES as u64;
    let len = (wqe.length - offset.min(wqe.length)).min(SPAN_DATA_BYTES as u64) as usize;
    let span = Span {
        rkey: wr.rkey,
        total: wqe.length as u32,
        offset: offset as u32,
        len: len as u32,
        srqn: wr.xrc_srqn,
        reserved: 0,
    }
    .encode();
    let head = core::iter::once((span.as_ptr(), span.len()));
    if wr.opcode == WrOpcode::RdmaRead {
        header.kind = request::READ;
        // Room for the answer is taken here, so that answers always fit.
        // SAFETY: one part, an array, shorter than the payload.
        return unsafe { writer.ring.push(header, Span::BYTES + len, head) };
    }
    header.kind = request::WRITE;
    if entry.written {
        header.flags |= flags::WRITTEN;
        // SAFETY: one part, the array behind `span`, as long as the payload.
        return unsafe { writer.ring.push(header, Span::BYTES, head) };
    }
    let data = pieces::gather(wr.sges, offset, len);
    // SAFETY: an array and checked pieces of `len` bytes together.
    unsafe {
        writer
            .ring
            .push(header, Span::BYTES + len, head.chain(data))
    }
}

fn push_described(
    writer: &mut RequestWriter,
    header: &mut Header,
    route: &Route,
    link: &Outgoing,
    wqe: &Wqe<'_>,
) -> Option<u64> {
    header.flags |= flags::DESCRIBED;
    let mut list = [0u8; PIECES_MAX * Piece::BYTES];
    let mut used = 0;
    for piece in wqe.wr.sges.iter().filter(|piece| piece.length > 0) {
        let (region, region_offset) =
            region_of(route, link, piece.addr, piece.length).unwrap_or((0, 0));
        let bytes = Piece {
            address: piece.addr,
            len: piece.length,
            region,
            region_offset,
        }
        .encode();
        list.get_mut(used..used + bytes.len())?
            .copy_from_slice(&bytes);
        used += bytes.len();
    }
    let part = (list.as_ptr(), used);
    // SAFETY: one part, the used bytes of an array.
    unsafe { writer.ring.push(header, used, core::iter::once(part)) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_never_need_more_room_than_their_requests() {
        use sluice_shmem::verbs::record::record_bytes;
        for len in [0, 1, 100, SPAN_DATA_BYTES] {
            assert!(record_bytes(len) <= record_bytes(Span::BYTES + len));
        }
        assert!(record_bytes(0) <= record_bytes(Atomic::BYTES));
    }
}
