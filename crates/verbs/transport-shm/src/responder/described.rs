//! Messages that say where their bytes lie, which the receiver fetches.
#![allow(unsafe_code)]

use sluice_shmem::verbs::copy;
use sluice_shmem::verbs::record::Record;
use sluice_verbs::Sge;

use crate::link::{CHUNK_BYTES, Incoming};
use crate::wire::{PIECES_MAX, Piece};
use sluice_transport::pieces;

const _: () = assert!(CHUNK_BYTES >= PIECES_MAX * Piece::BYTES);

/// Copies a described message from the sender's memory. The list is copied before it is looked
/// at; what it names is the sender's own.
pub fn fetch(incoming: &Incoming, target: &[Sge], record: &Record, total: u64) -> bool {
    let mut list = [0u8; PIECES_MAX * Piece::BYTES];
    let bytes = record.payload_bytes;
    if bytes > list.len() || !bytes.is_multiple_of(Piece::BYTES) {
        return false;
    }
    // SAFETY: the payload lies in the ring and is at least as long; the list was checked to be.
    unsafe { copy::ascending(list.as_mut_ptr(), record.payload, bytes) };
    let mut offset = 0;
    for chunk in list[..bytes].chunks_exact(Piece::BYTES) {
        let Ok(chunk) = chunk.try_into() else {
            return false;
        };
        let piece = Piece::decode(chunk);
        if offset + u64::from(piece.len) > total {
            return false;
        }
        if !fetch_piece(incoming, target, offset, &piece) {
            return false;
        }
        offset += u64::from(piece.len);
    }
    offset == total
}

fn fetch_piece(incoming: &Incoming, target: &[Sge], offset: u64, piece: &Piece) -> bool {
    let len = piece.len as usize;
    if piece.region != 0 {
        // The sender passed the region before it sent this.
        if incoming.peer.region(piece.region).is_none() {
            incoming.peer.read_socket(incoming.socket.raw());
        }
        let Some(region) = incoming.peer.region(piece.region) else {
            return false;
        };
        let end = piece.region_offset.checked_add(u64::from(piece.len));
        if end.is_none_or(|end| end > region.bytes() as u64) {
            return false;
        }
        let source = region
            .base()
            .as_ptr()
            .wrapping_add(piece.region_offset as usize);
        // SAFETY: the bytes lie within the mapped region; the engine checked the receive.
        unsafe { pieces::scatter(target, offset, source, len) };
        return true;
    }
    let Some(memory) = &incoming.peer.memory else {
        return false;
    };
    // SAFETY: the pieces of a receive are writable.
    unsafe { memory.read(target, offset, piece.address, len).is_some() }
}
