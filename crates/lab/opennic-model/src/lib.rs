//! AMD's OpenNIC shell as a device of a virtual machine: the queue DMA engine as its public
//! register document has it (PG302, cited by the names of its sections), the shell's registers as
//! its source has them, and 100 Gb/s ports that are plugged into this machine instead of a cable.
//!
//! Inner first: [`bits`], [`context`] and [`hash`] are values; [`qdma`], [`cmac`] and [`shell`]
//! are the card's parts, with no I/O; [`card`] puts them together; [`vfio_user`] lets QEMU use
//! one. Everything that a guest writes is taken as hostile: a mistake of the guest's stops the
//! guest's queue, and is told in the error registers.

pub mod bits;
pub mod card;
pub mod cmac;
pub mod context;
pub mod doorbell;
pub mod faults;
pub mod generator;
pub mod hash;
pub mod mapping;
pub mod memory;
pub mod pci;
pub mod qdma;
pub mod shell;
pub mod tap;
pub mod vfio_user;

/// Bytes of the largest frame that the shell passes on.
pub const fn qdma_packet_len_max() -> usize {
    qdma::PACKET_LEN_MAX
}
