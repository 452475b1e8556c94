//! What is in rings, in the words of a trace ([`sluice_transport::tap`]).
#![allow(unsafe_code)]

use sluice_shmem::verbs::record::{Header, Record};
use sluice_transport::tap::{self, Ending, Extras, Operation, Tap};
use sluice_verbs::Gid;

use crate::wire::{Atomic, Datagram, flags, request};

/// What a message has besides its data.
pub fn extras(header: &Header) -> Extras {
    let ending = match header.flags {
        given if given & flags::IMMEDIATE != 0 => Ending::Immediate(header.immediate.to_ne_bytes()),
        // What a peer says of others means nothing.
        given if given & flags::INVALIDATE != 0 && header.kind == request::SEND => {
            Ending::Invalidate(header.immediate)
        }
        _ => Ending::Plain,
    };
    Extras {
        ending,
        solicited: header.flags & flags::SOLICITED != 0,
    }
}

/// An atomic operation.
pub fn operation(operation: &Atomic) -> Operation {
    let (first, second) = (operation.compare_add, operation.swap);
    match operation.swaps {
        1 => Operation {
            compares: true,
            swap_add: second,
            compare: first,
        },
        _ => Operation {
            compares: false,
            swap_add: first,
            compare: 0,
        },
    }
}

/// A datagram has come, with `len` bytes of data.
pub fn datagram(tap: &Tap, record: &Record, datagram: &Datagram, len: usize) {
    let header = &record.header;
    let told = tap::Datagram {
        target: header.target,
        source: header.origin,
        gids: [datagram.sgid, datagram.dgid].map(|gid| Gid(gid.to_ne_bytes())),
        traffic_class: (datagram.class_and_label >> 20) as u8,
        flow_label: datagram.class_and_label & 0xf_ffff,
        hop_limit: datagram.hop_limit as u8,
        qkey: datagram.qkey,
        psn: header.sequence,
        extras: extras(header),
    };
    // SAFETY: the payload lies in the ring, whose reader is locked, and has `len` bytes behind the
    // datagram's head.
    unsafe { tap.datagram(&told, record.payload.wrapping_add(Datagram::BYTES), len) };
}
