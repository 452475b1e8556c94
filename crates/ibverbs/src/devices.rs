//! Which devices this process has, and over what.

use std::sync::Arc;

use sluice_verbs::Device;
use sluice_verbs::transport::{CqTransport, NewQp, QpParams, Transport, TransportCaps};

/// The name that programs see.
const NAME: &str = "sluice0";
/// Chooses devices by what they are made of, with commas between; `sluice verbs` sets it.
const VARIABLE: &str = "SLUICE_VERBS_DEVICES";

/// The devices that were asked for: shared memory, unless the variable names others.
pub fn make() -> Vec<Arc<Device>> {
    let wanted = std::env::var(VARIABLE).unwrap_or_else(|_| "shm".to_owned());
    if wanted.split(',').any(|name| name.trim() == "shm") {
        vec![Device::new(NAME, Arc::new(Unavailable))]
    } else {
        Vec::new()
    }
}

/// Shows what a device would be and can move no message.
struct Unavailable;

impl Transport for Unavailable {
    fn caps(&self) -> TransportCaps {
        TransportCaps {
            max_msg_sz: 1 << 30,
            mtu: 5,
            max_inline: 0,
            max_rd_atomic: 1,
            atomic_cap: 0,
            uc: false,
            ud: false,
            xrc: false,
        }
    }

    fn create_qp(&self, _params: &QpParams) -> sluice_verbs::Result<NewQp> {
        Err(sluice_verbs::Error::NotSupported)
    }

    fn create_cq(&self, _id: u32) -> sluice_verbs::Result<Box<dyn CqTransport>> {
        Err(sluice_verbs::Error::NotSupported)
    }

    fn key_published(&self, _key: &sluice_verbs::keys::KeyInfo) -> sluice_verbs::Result<()> {
        Err(sluice_verbs::Error::NotSupported)
    }

    fn key_withdrawn(&self, _key: &sluice_verbs::keys::KeyInfo) {}

    fn create_srq(&self, _xrc: bool) -> sluice_verbs::Result<u32> {
        Err(sluice_verbs::Error::NotSupported)
    }
}
