//! What `crates/verbs/ibverbs/src/rdmacm/rsocket` gives its messages.

#[path = "../../../crates/verbs/ibverbs/src/rdmacm/rsocket/wire.rs"]
pub mod wire;

pub mod stream {
    /// As `rsocket/stream.rs` has it.
    pub const TABLE_ENTRIES: usize = 2;
}
