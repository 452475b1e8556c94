//! Hosts of the laboratory, and what only these suites do to the way between them.

pub mod options;
pub mod paths;

pub use sluice_lab::host::Host;
pub use sluice_lab::link::{FRAME_OVERHEAD, Settings, ip, require_means, wire};
pub use sluice_lab::pair::{Pair, SIDES, Side};
pub use sluice_lab::{bottleneck, capture, faults, injector, namespace, packets, ports};
