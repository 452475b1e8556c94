//! The embedded XDP program and its maps.

use crate::error::OpenError;
use crate::interface::missing_capabilities;
use crate::left::Left;

use std::sync::Arc;

use sluice_sys::bpf::{AttachType, Code, Kind, Load, Map, Number, Program, ProgramKind};
use sluice_sys::errno::Errno;

/// What clang made of `bpf/steer.bpf.c`.
const STEER: Code = include!(concat!(env!("OUT_DIR"), "/steer.rs"));

/// More addresses than this are not steered ([`crate::Steering::set_addresses`]).
pub const ADDRESSES_MAX: u32 = 1024;
/// 65536 blocks, a bit each.
pub const BLOCK_WORDS: usize = 1024;
/// Of `enum counter` in steer.bpf.c.
const COUNTERS: u32 = 5;

/// The maps that the program shares with us.
#[derive(Debug)]
pub struct Maps {
    pub addresses: Map,
    pub blocks: Map,
    pub sockets: Map,
    pub counters: Map,
    pub left: Arc<Left>,
}

impl Maps {
    /// `queues`: how many receive queues there can be.
    pub fn new(queues: u32) -> Result<Self, OpenError> {
        let refused = |errno: Errno| match errno.0 {
            libc::EPERM => OpenError::NotPermitted {
                what: "to make a BPF map",
                missing: missing_capabilities(),
            },
            libc::EINVAL => OpenError::Kernel {
                lacks: "AF_XDP (Linux 4.18, CONFIG_XDP_SOCKETS)",
            },
            _ => OpenError::system("bpf(BPF_MAP_CREATE)")(errno),
        };
        let make = |name, kind, key, value, entries| {
            Map::new(name, kind, key, value, entries).map_err(refused)
        };
        let left = Number::new("sluice_left").map_err(refused)?;
        Ok(Self {
            addresses: make("sluice_address", Kind::Hash, 16, 1, ADDRESSES_MAX)?,
            blocks: make("sluice_blocks", Kind::Array, 4, 8, BLOCK_WORDS as u32)?,
            sockets: make("sluice_sockets", Kind::Sockets, 4, 4, queues)?,
            counters: make("sluice_counters", Kind::PerCpuArray, 4, 8, COUNTERS)?,
            left: Arc::new(Left::new(left)),
        })
    }
}

/// Loads the program for the driver or for the kernel's generic code.
///
/// Drivers may want one that copes with packets of several buffers (Linux 5.18). The generic code makes one
/// piece of every packet for any other, and copies what there is into fresh pages for such a one (since
/// Linux 6.9): short packets, which only lack the room in front that programs may want, come 0.25 µs later
/// then, and pieces of bulk cost more as well.
pub fn load(maps: &Maps, native: bool) -> Result<Program, OpenError> {
    let named = [
        ("addresses", &maps.addresses),
        ("blocks", &maps.blocks),
        ("sockets", &maps.sockets),
        ("counters", &maps.counters),
        ("left", maps.left.number().map()),
    ];
    let load = |fragments| {
        let load = Load {
            title: "sluice_steer",
            // The license of steer.bpf.c, in the word that the kernel has for it.
            license: c"Dual MIT/GPL",
            kind: ProgramKind::Xdp,
            attach_type: AttachType::Xdp,
            fragments,
            target: 0,
        };
        Program::load(&load, STEER, &named)
    };
    let loaded = match load(native) {
        // Before Linux 5.18 the flag is not known.
        Err(refusal) if native && refusal.errno == Errno::INVAL => load(false),
        loaded => loaded,
    };
    loaded.map_err(|refusal| match refusal.errno.0 {
        libc::EPERM => OpenError::NotPermitted {
            what: "to load an XDP program",
            missing: missing_capabilities(),
        },
        errno => OpenError::Verifier {
            log: refusal.log,
            errno,
        },
    })
}
