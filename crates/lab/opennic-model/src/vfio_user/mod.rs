//! The card as vfio-user devices, one socket for each function (the vfio-user protocol
//! specification of QEMU, `docs/interop/vfio-user.rst`).

mod dma;
mod endpoint;
pub mod message;

pub use dma::DmaMaps;
pub use endpoint::Endpoint;

use crate::memory::{Host, Memory};

/// The machine behind the sockets.
pub struct Machine {
    pub endpoints: Vec<Endpoint>,
}

impl Host for Machine {
    fn memory(&mut self, function: usize) -> &mut dyn Memory {
        &mut self.endpoints[function].maps
    }

    fn interrupt(&mut self, function: usize, vector: u16) {
        if let Some(endpoint) = self.endpoints.get(function) {
            endpoint.interrupt(vector);
        }
    }
}
