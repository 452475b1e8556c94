//! Which devices this process has, and over what.

use std::sync::Arc;

use sluice_sys::errno::Errno;
use sluice_transport_roce::RoceTransport;
use sluice_transport_shm::ShmTransport;
use sluice_verbs::{Device, Transport};

/// Chooses devices by what they are made of, with commas between; `sluice verbs` sets it.
const VARIABLE: &str = "SLUICE_VERBS_DEVICES";

/// The devices that were asked for, `sluice0` and so on in the order of asking: shared memory,
/// unless the variable names others. Fails where one of them cannot work here.
pub fn make() -> Result<Vec<Arc<Device>>, Errno> {
    let wanted = std::env::var(VARIABLE).unwrap_or_else(|_| "shm".to_owned());
    let mut devices = Vec::new();
    for kind in wanted
        .split(',')
        .map(str::trim)
        .filter(|kind| !kind.is_empty())
    {
        let name = format!("sluice{}", devices.len());
        let transport = transport(kind).map_err(|error| {
            eprintln!("sluice: no device over {kind}: {error}");
            Errno(libc::ENODEV)
        })?;
        devices.push(Device::new(&name, transport));
    }
    Ok(devices)
}

fn transport(kind: &str) -> Result<Arc<dyn Transport>, Box<dyn std::error::Error>> {
    Ok(match kind {
        "shm" => ShmTransport::new()?,
        "roce" => RoceTransport::over_xdp()?,
        "roce-udp" => RoceTransport::over_udp()?,
        _ => return Err("there is no such kind; shm, roce and roce-udp are".into()),
    })
}
