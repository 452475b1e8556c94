//! Which devices this process has, and over what.

use std::sync::Arc;

use sluice_sys::errno::Errno;
use sluice_transport_shm::ShmTransport;
use sluice_verbs::Device;

/// The name that programs see.
const NAME: &str = "sluice0";
/// Chooses devices by what they are made of, with commas between; `sluice verbs` sets it.
const VARIABLE: &str = "SLUICE_VERBS_DEVICES";

/// The devices that were asked for: shared memory, unless the variable names others. Fails where
/// one of them cannot work here.
pub fn make() -> Result<Vec<Arc<Device>>, Errno> {
    let wanted = std::env::var(VARIABLE).unwrap_or_else(|_| "shm".to_owned());
    let mut devices = Vec::new();
    if wanted.split(',').any(|name| name.trim() == "shm") {
        devices.push(Device::new(NAME, ShmTransport::new()?));
    }
    Ok(devices)
}
