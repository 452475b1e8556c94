//! The laboratory: hosts that are network namespaces, links between them, and programs that run
//! there, for tests and benchmarks.
//!
//! Nothing here outlives who made it. A [`namespace::Namespace`] has no name: the kernel removes it,
//! with its devices, when the last process that is in it or has it open has ended. Programs end with
//! the thread that started them, and their process group with the [`job::Job`]. A
//! [`cgroup::Cgroup`] is locked by its process, so that a later one can tell what a killed one left.
//!
//! | module | has |
//! |---|---|
//! | [`pair`] | two hosts and what joins them |
//! | [`net`] | the same for tests that want no verdicts, with all addresses known |
//! | [`host`], [`ports`] | one host, and who listens there |
//! | [`link`] | wires with their MTU, queues and offloads |
//! | [`injector`], [`faults`], [`bottleneck`] | a bad path: loss, delay, rates |
//! | [`capture`], [`packets`] | frames on a device |
//! | [`namespace`], [`cgroup`] | what the kernel has for it |
//! | [`job`] | programs with deadlines, their output kept |
//! | [`verdict`] | how it comes out: well, a failure, or a skip with its reason |

pub mod bottleneck;
pub mod capture;
pub mod cgroup;
pub mod faults;
pub mod host;
pub mod injector;
pub mod job;
pub mod link;
pub mod namespace;
pub mod net;
pub mod packets;
pub mod pair;
pub mod ports;
pub mod random;
pub mod verdict;
