//! What `sluiced` learns from the kernel, and tells it, about other programs' TCP connections.
//!
//! [`Finder`] asks the other end of each connection, by an option in the TCP handshake, whether it
//! can do lanes. [`Capture`] takes connections of programs that cannot be preloaded to a listener
//! of the daemon's, and shows both programs the addresses that they would see without it. Both are
//! BPF programs that are attached to a cgroup ([`Cgroup`]), so to the programs in it and below.
//!
//! | what | who holds it | when it goes |
//! |---|---|---|
//! | programs, links, maps | [`Finder`], [`Capture`], by descriptors | dropped, or the process ends, however it ends |
//! | what is known of a connection | maps of bounded size | the connection is closed |
//!
//! Nothing is pinned, no other program is replaced, and no address, route or rule is changed.
//! Descriptors are close-on-exec; a child of fork has copies that keep all this alive until it
//! ends or calls exec.
//!
//! Needed: CAP_BPF and CAP_NET_ADMIN, and CAP_PERFMON for [`Capture`], once, to load and attach, and a kernel with BTF to
//! recognise sockets with terms of their own ([`Capture::sees_terms`]); what comes later needs descriptors
//! only (before Linux 5.19, unless `kernel.unprivileged_bpf_disabled` is set). Linux 5.15, of which
//! 6.18 was tried, and cgroups of version 2. The design: `docs/decisions/0017`.

#![warn(missing_docs)]

mod address;
mod capture;
mod cgroup;
mod error;
mod event;
mod finder;
mod load;
mod rules;
mod terms;

pub use capture::{Capture, CaptureCounters, CaptureOptions, Destination, Listener, Original};
pub use cgroup::Cgroup;
pub use error::Error;
pub use event::{Connection, Event, Peer, Verdict};
pub use finder::{Finder, FinderCounters, FinderOptions};
pub use rules::{NETWORKS_MAX, Network, ParseNetworkError, PortSet, Rules};
