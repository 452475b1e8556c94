//! Verbs between hosts that share memory ([`sluice_window`]; docs/windows.md has the protocol, decision
//! 0039 why it is so).
//!
//! | module | its part |
//! |---|---|
//! | [`frame`], `channel`, `bell` | what goes over the window; the two rings of a pair of hosts; how sleepers are woken |
//! | `host`, `peer` | this process as a host of the window; what leaves to another one and comes from it |
//! | `contact`, `contacts`, `lines` | how another host is found, and its end; all others; what is said of them |
//! | `turn`, `part`, `responder`, `answers` | a queue pair as its peer's turns know it; its two halves, and what leaves behind READs |
//! | `management` | queue pair 1 |
//! | `counts` | what is counted |
//! | `node`, `worker` | the process's share, and its thread |
//! | `device` | what the engine has of all that |
//!
//! **Locks**, each before those behind it: what comes from a peer; a responder; the engine's; a
//! requester's state; what leaves to a peer. Calls into the engine are made with the first two only.

mod answers;
mod bell;
mod channel;
mod contact;
mod contacts;
mod counts;
mod device;
pub mod frame;
mod host;
mod lines;
mod management;
mod node;
mod part;
mod peer;
mod responder;
mod turn;
mod worker;

use std::path::PathBuf;

use sluice_sys::errno::Errno;
use sluice_window::region::RegionError;

pub use device::WindowTransport;

/// Why there is no device.
#[derive(Debug)]
pub enum OpenError {
    /// The file is no window that can be used.
    Region(RegionError),
    /// All slots have holders that live.
    NoSlot(PathBuf, u32),
    /// Its slots have no room for a ring for each of the other hosts.
    TooSmall(PathBuf),
    System(Errno),
}

impl core::fmt::Display for OpenError {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match self {
            OpenError::Region(error) => error.fmt(f),
            OpenError::NoSlot(path, hosts) => write!(
                f,
                "all {hosts} slots of {path} are held (`sluice window show {path}` says by whom): \
                 each program takes one. That of a program that was killed is free after 3 seconds; \
                 for more programs make the window with more --hosts",
                path = path.display()
            ),
            OpenError::TooSmall(path) => write!(
                f,
                "{}: too small for this many hosts: make it with a larger --size or fewer --hosts",
                path.display()
            ),
            OpenError::System(errno) => errno.fmt(f),
        }
    }
}

impl core::error::Error for OpenError {}
