//! The harness of the behaviour suites.
//!
//! A suite runs the same program plainly and under `sluice run` and compares what
//! it printed, or runs a real server and client and checks the bytes. The suites
//! are in `tests/tests`, the C programs they run in `tests/apps`.
//!
//! Environment:
//!
//! | variable | meaning |
//! |---|---|
//! | `SLUICE_BIN` | the `sluice` to test; default `target/release/sluice` of this workspace (`scripts/test` says `target/checked/sluice`) |
//! | `SLUICE_NO_SKIP=1` | a test that cannot run fails instead of being skipped |
//! | `SLUICE_TEST_STANDIN=1` | run the "accelerated" side plainly too: tests the suites, not Sluice |
//! | `SLUICE_TEST_KEEP=1` | keep the tests' directories (logs, outputs) and print where they are |
//! | `SLUICE_KILLS=N` | the kill suites kill about N times instead of once for each row |
//! | `SLUICE_SEED=S` | they do it at the moments of the run that printed this |
//! | `SLUICE_SOAK=SECONDS` | each row of the suite `chaos` goes on for so long; its `main.rs` has more variables |
//! | `SLUICE_GUEST_CACHE` | where `tests/guest/kernel` puts the guest's kernel |

pub mod apps;
pub mod asked;
pub mod diff;
pub mod fleet;
pub mod guest;
pub mod hosts;
pub mod lab;
pub mod net;
pub mod nic;
pub mod own_root;
pub mod programs;
pub mod random;
pub mod rerun;
pub mod slow;
pub mod stats;
pub mod stream;
pub mod suite;
pub mod verbs;

pub use sluice_lab::{cgroup, job};
