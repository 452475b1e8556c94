//! What can be fuzzed: a function for each target that takes any bytes and panics, faults or
//! hangs if something is wrong. The same functions are run by libFuzzer (`fuzz_targets/`), by the
//! driver of this crate that needs nothing but a stable compiler, and over the seeds by
//! `scripts/test` (`main.rs`).

use std::time::Duration;

mod guarded;
mod input;
mod parsers;
mod private;

#[path = "../../crates/verbs/protocol/tests/iwarp/harness.rs"]
pub mod iwarp_stream;
pub mod lane_words;
pub mod opennic_card;
pub mod opennic_message;
pub mod roce_packets;
#[path = "../../crates/verbs/tcp/tests/hostile/harness.rs"]
pub mod tcp_segments;
pub mod verbs_directory;
pub mod verbs_peer;
pub mod verbs_records;

pub use parsers::{
    cm_message, control_message, iwarp_formats, peering_frames, program_file, rsocket_message,
    verbs_hello,
};

/// How long one input may take: 20 s, or as many as `SLUICE_FUZZ_PATIENCE` says, for runs on a
/// machine that stops them or gives them little of its processors.
fn patience() -> Duration {
    let asked = std::env::var("SLUICE_FUZZ_PATIENCE");
    Duration::from_secs(asked.ok().and_then(|s| s.parse().ok()).unwrap_or(20))
}

/// A target's name and function.
pub type Target = (&'static str, fn(&[u8]));

/// All targets.
pub const TARGETS: [Target; 16] = [
    ("control_message", control_message::run),
    ("cm_message", cm_message::run),
    ("rsocket_message", rsocket_message::run),
    ("verbs_hello", verbs_hello::run),
    ("peering_frames", peering_frames::run),
    ("program_file", program_file::run),
    ("iwarp_formats", iwarp_formats::run),
    ("iwarp_stream", iwarp_stream::run),
    ("tcp_segments", tcp_segments::run),
    ("lane_words", lane_words::run),
    ("verbs_records", verbs_records::run),
    ("verbs_directory", verbs_directory::run),
    ("verbs_peer", verbs_peer::run),
    ("roce_packets", roce_packets::run),
    ("opennic_card", opennic_card::run),
    ("opennic_message", opennic_message::run),
];
