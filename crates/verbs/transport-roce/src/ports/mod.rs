//! What is put around a port that the environment asks for: faults on purpose
//! (`SLUICE_VERBS_FAULT`) and a trace (`SLUICE_VERBS_TRACE_FILE`).

pub mod impair;
pub mod share;
pub mod tap;

use core::sync::atomic::{AtomicU64, Ordering};

use sluice_packet::Port;
use sluice_transport::fault;

use crate::ports::impair::Impaired;
use crate::ports::tap::{Below, Tapped};

/// The port itself, if nothing is asked for. The trace is outside of the faults: it has what the
/// transport sees.
pub fn dressed(port: impl Port + 'static, below: Below) -> Box<dyn Port> {
    /// Each port has other faults.
    static NUMBER: AtomicU64 = AtomicU64::new(0);
    let mut port: Box<dyn Port> = Box::new(port);
    // What cannot be understood has been said where the devices are made.
    if let Ok(Some(faults)) = fault::from_environment()
        && !faults.is_nothing()
    {
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        port = Impaired::around(port, faults, number);
    }
    if let Some(recorder) = sluice_trace::of_process() {
        port = Box::new(Tapped::new(port, recorder.clone(), below));
    }
    port
}
