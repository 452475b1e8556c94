//! What tests of verbs transports have in common.
//!
//! | module | what |
//! |---|---|
//! | `memory` | memory that peers may write at any time |
//! | `end` | a queue pair with some of it, from RESET to RTS |
//! | [`side`] | one of two programs that talk to each other, on a device of its own; how they meet is each transport's ([`side::Site`]) |
//! | [`row`] | a row of the conformance suite: two programs, and what they need of a device |
//! | [`rows`] | the rows, which [`conformance`] makes tests of |
//!
//! # The conformance suite
//!
//! Every transport runs the same rows, whatever it is made of. What a device cannot do it says by its
//! [capabilities](sluice_verbs::transport::TransportCaps), and by nothing else: a row that needs
//! more is left out, [`rows::left_out`] lists those, and the row
//! `what_a_device_does_not_claim_it_refuses` holds it to that.
//!
//! A transport's test says how to make the two sides, in two threads of one process
//! ([`row::Row::in_threads`]) or in two processes:
//!
//! ```ignore
//! fn run(_test: &str, row: &Row) {
//!     let [left, right] = two_devices();
//!     row.in_threads(|site| Side::new(left, site), |site| Side::new(right, site));
//! }
//!
//! sluice_verbs_testing::conformance!(run);
//! ```

mod end;
mod memory;
pub mod row;
pub mod rows;
pub mod side;

pub use end::{EVERYTHING, End, PATIENCE, QKEY, Remote, init, request, until};
pub use memory::{Memory, pattern};
pub use row::{Need, Row};
pub use side::{Joined, Peer, Side, Site, Thread};
