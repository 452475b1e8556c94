//! The bpf() system call, as far as Sluice needs it (bpf(2), `include/uapi/linux/bpf.h`).
//!
//! Programs are compiled at build time (`crates/base/bpf-build`); what is left is to make maps, to put
//! their descriptors into the instructions, to load and to attach. Everything lives as long as
//! its descriptors: nothing is pinned, so that the end of the process is the end of it all.
#![allow(unsafe_code)]

mod btf;
mod map;
mod memory;
mod number;
mod program;
mod ring;

pub use btf::{Btf, Place};
pub use map::{Kind, Map};
pub use number::Number;
pub use program::{AttachType, Code, Link, Load, Program, ProgramKind, Refusal, uninterrupted};
pub use ring::RingBuffer;

use crate::errno::Errno;
use crate::raw::{check, syscall3};

// Commands, with the header's numbers. Maps, programs and links get descriptors that are
// close-on-exec, always.
const MAP_CREATE: usize = 0;
const MAP_LOOKUP: usize = 1;
const MAP_UPDATE: usize = 2;
const MAP_DELETE: usize = 3;
const MAP_NEXT_KEY: usize = 4;
const PROGRAM_LOAD: usize = 5;
const PROGRAM_ATTACH: usize = 8;
const PROGRAM_RUN: usize = 10;
const LINK_CREATE: usize = 28;
const ITERATOR_CREATE: usize = 33;

/// # Safety
///
/// `T` is the attribute of `command`, and its addresses are valid for what the command does.
unsafe fn bpf<T>(command: usize, attribute: &mut T) -> Result<usize, Errno> {
    let address = &raw mut *attribute as usize;
    // SAFETY: the kernel reads `size_of::<T>()` bytes there (and may write to them); the caller
    // vouches for the rest.
    check(unsafe { syscall3(libc::SYS_bpf, command, address, size_of::<T>()) })
}

/// What tools show of a map or program: letters, digits, `_` and `.`, cut to 15 bytes.
fn name(text: &str) -> [u8; 16] {
    let mut name = [0; 16];
    // The last byte stays 0.
    for (to, from) in name[..15].iter_mut().zip(text.bytes()) {
        *to = from;
    }
    name
}
