//! Which devices this process has, and over what.

use std::io::Write as _;
use std::sync::Arc;

use sluice_sys::errno::Errno;
use sluice_transport_shm::ShmTransport;
use sluice_verbs::{Device, fault};

/// The name that programs see.
const NAME: &str = "sluice0";
/// Chooses devices by what they are made of, with commas between; `sluice verbs` sets it.
const VARIABLE: &str = "SLUICE_VERBS_DEVICES";

/// The devices that were asked for: shared memory, unless the variable names others. Fails where
/// one of them cannot work here, or where faults were asked for in words that mean nothing.
pub fn make() -> Result<Vec<Arc<Device>>, Errno> {
    let faults = fault::from_environment().map_err(|error| {
        // A program whose standard error is closed must not fail for that.
        let _ = writeln!(std::io::stderr(), "sluice: {}: {error}", fault::VARIABLE);
        Errno::INVAL
    })?;
    if faults.is_some() {
        fault::at_exit();
    }
    let wanted = std::env::var(VARIABLE).unwrap_or_else(|_| "shm".to_owned());
    let mut devices = Vec::new();
    if wanted.split(',').any(|name| name.trim() == "shm") {
        devices.push(Device::new(NAME, ShmTransport::new(faults.copied())?));
    }
    Ok(devices)
}
