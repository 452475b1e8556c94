//! Windows: bytes that several hosts reach, and what makes a wire of them (docs/windows.md).
//!
//! Three kinds of such memory exist ([`Kind`]), and one discipline is right on all of them:
//!
//! - Every cache line has one writer for the life of the window.
//! - What is read lies in the reader's own slot, because reading across a bridge costs
//!   microseconds. An address is either one that this host reads ([`In`]) or one that it writes
//!   ([`Out`]); there is no type for both.
//! - What must be visible before what is said by a named barrier: [`View::publish`] at the
//!   writer, [`View::refresh`] at the reader.
//!
//! A host that shares a window is a stranger. Its numbers are read once, checked against what
//! this host keeps privately, and then used; a number that cannot be ends the link with that host
//! ([`Broken`]) and nothing else.
//!
//! | module | what |
//! |---|---|
//! | [`view`] | what a host can do to a window, whatever kind it is |
//! | [`layout`] | where everything lies |
//! | [`header`] | the first page: what window this is |
//! | [`claim`] | who holds which slot, and whether he lives |
//! | [`link`] | two hosts that found each other: generations, and the end of a peer |
//! | [`ring`], [`mailbox`] | bytes, and messages, from one host to another |
//! | [`heap`] | the rest of a slot, lent to peers piece by piece |
//! | [`ledger`] | a heap that is written down, for what outlives its lender |
//! | [`ivshmem`] | how virtual machines and programs get one memory and each other's doorbells |
//! | [`trial`] | two hosts that try a window |
//! | [`region`] | the memory itself: files, memory files, PCI resources, device DAX |
//! | `model` | a window for tests that delays, reorders and hides writes as each kind allows |

pub mod claim;
pub mod header;
pub mod heap;
pub mod ivshmem;
pub mod layout;
pub mod ledger;
pub mod link;
pub mod mailbox;
#[cfg(any(test, feature = "model"))]
pub mod model;
pub mod region;
pub mod ring;
pub mod trial;
pub mod view;

pub use view::{In, Out, View};

/// What a window is made of. It says what a write needs to be seen by another host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// One region, and caches agree: `ivshmem`, a file shared by containers, CXL 3.
    Coherent,
    /// One region, and caches do not agree (CXL 2 pools): lines are written back and
    /// invalidated by software.
    Flush,
    /// Each host reaches the other's memory through a bridge (PCIe NTB). Writes are posted and
    /// cheap; reads across are never made.
    Push,
}

impl Kind {
    /// The word for it in the header of a window.
    pub const fn code(self) -> u64 {
        match self {
            Kind::Coherent => 1,
            Kind::Flush => 2,
            Kind::Push => 3,
        }
    }

    pub const fn from_code(code: u64) -> Option<Kind> {
        match code {
            1 => Some(Kind::Coherent),
            2 => Some(Kind::Flush),
            3 => Some(Kind::Push),
            _ => None,
        }
    }

    /// The word for it in configuration and output.
    pub const fn name(self) -> &'static str {
        match self {
            Kind::Coherent => "coherent",
            Kind::Flush => "flush",
            Kind::Push => "push",
        }
    }
}

impl core::fmt::Display for Kind {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str(self.name())
    }
}

impl core::str::FromStr for Kind {
    type Err = UnknownKind;

    fn from_str(name: &str) -> Result<Kind, UnknownKind> {
        [Kind::Coherent, Kind::Flush, Kind::Push]
            .into_iter()
            .find(|kind| kind.name() == name)
            .ok_or(UnknownKind)
    }
}

/// A word that names no [`Kind`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UnknownKind;

impl core::fmt::Display for UnknownKind {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str("the kinds of windows are coherent, flush and push")
    }
}

impl core::error::Error for UnknownKind {}

/// The other host wrote something impossible. The link with it is over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Broken(pub &'static str);

impl core::fmt::Display for Broken {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "the other host of the window {}", self.0)
    }
}

impl core::error::Error for Broken {}
