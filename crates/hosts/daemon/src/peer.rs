//! How the `sluiced` of other hosts are named here.

use std::sync::Arc;

/// A peer's name, as its certificate or the configuration has it.
pub type PeerName = Arc<str>;
