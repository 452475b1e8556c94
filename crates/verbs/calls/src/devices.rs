//! Which devices this process has, and over what.

use std::io::Write as _;
use std::ops::RangeInclusive;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use sluice_sys::errno::Errno;
use sluice_transport::fault::{self, Faults};
use sluice_transport_iwarp::IwarpTransport;
use sluice_transport_roce::{ENGINES_VARIABLE, Engines, RoceTransport};
use sluice_transport_shm::ShmTransport;
use sluice_transport_window::WindowTransport;
use sluice_verbs::{Device, Transport};

/// Chooses devices by what they are made of, with commas between; `sluice verbs` sets it.
const VARIABLE: &str = "SLUICE_VERBS_DEVICES";

/// The devices that were asked for, `sluice0` and so on in the order of asking: shared memory,
/// unless the variable names others. Fails where one of them cannot work here, or where faults
/// were asked for in words that mean nothing.
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
    for kind in wanted
        .split(',')
        .map(str::trim)
        .filter(|kind| !kind.is_empty())
    {
        let name = format!("sluice{}", devices.len());
        let transport = transport(kind, faults).map_err(|error| {
            let _ = writeln!(std::io::stderr(), "sluice: no device over {kind}: {error}");
            Errno(libc::ENODEV)
        })?;
        devices.push(Device::new(&name, transport));
    }
    Ok(devices)
}

fn transport(
    kind: &str,
    faults: Option<&Faults>,
) -> Result<Arc<dyn Transport>, Box<dyn std::error::Error>> {
    Ok(match kind {
        "shm" => ShmTransport::new(faults.copied())?,
        "roce" => RoceTransport::over_xdp(engines()?)?,
        "roce-udp" => RoceTransport::over_udp(engines()?)?,
        "iwarp" => {
            if faults.is_some_and(|faults| !faults.is_nothing()) {
                fault::say_useless("iwarp", "the kernel's TCP mends what a network does");
            }
            IwarpTransport::over_tcp(engines()?.count(), crc()?)?
        }
        _ => match kind.strip_prefix("window:") {
            Some(path) => {
                if faults.is_some_and(|faults| !faults.is_nothing()) {
                    fault::say_useless("window", "memory loses nothing");
                }
                WindowTransport::with_silence(Path::new(path), silence()?)?
            }
            None => {
                let text = "there is no such kind; shm, roce, roce-udp, iwarp and window:PATH are";
                return Err(text.into());
            }
        },
    })
}

/// How many engine threads each device over a network has.
fn engines() -> Result<Engines, String> {
    Engines::from_environment().map_err(|error| format!("{ENGINES_VARIABLE}: {error}"))
}

/// After how many seconds without a sign of life another host of a window is dead.
const SILENCE_VARIABLE: &str = "SLUICE_VERBS_SILENCE_S";
/// Shorter is what a machine with much to do takes for a dead host.
const SILENCE_S: RangeInclusive<u64> = 3..=3600;

fn silence() -> Result<Duration, String> {
    match std::env::var(SILENCE_VARIABLE).as_deref() {
        Err(_) | Ok("") => Ok(Duration::from_secs(*SILENCE_S.start())),
        Ok(text) => silence_of(text),
    }
}

fn silence_of(text: &str) -> Result<Duration, String> {
    let seconds = text
        .parse()
        .ok()
        .filter(|number| SILENCE_S.contains(number));
    seconds.map(Duration::from_secs).ok_or_else(|| {
        let (least, most) = SILENCE_S.into_inner();
        format!("{SILENCE_VARIABLE}: {text:?} is no number of seconds from {least} to {most}")
    })
}

/// Asks for CRCs over iWARP: `1`, or `0` and nothing.
const CRC_VARIABLE: &str = "SLUICE_VERBS_CRC";

fn crc() -> Result<bool, String> {
    match std::env::var(CRC_VARIABLE).as_deref() {
        Err(_) | Ok("" | "0") => Ok(false),
        Ok("1") => Ok(true),
        Ok(other) => Err(format!("{CRC_VARIABLE}: {other:?} is neither 0 nor 1")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_silence_is_a_number_of_seconds_within_its_bounds() {
        assert_eq!(silence_of("3"), Ok(Duration::from_secs(3)));
        assert_eq!(silence_of("3600"), Ok(Duration::from_secs(3600)));
        for wrong in ["2", "3601", "-3", "3s", "3.5", "99999999999999999999"] {
            let said = silence_of(wrong).unwrap_err();
            assert!(
                said.contains(SILENCE_VARIABLE) && said.contains(wrong),
                "{said}"
            );
            assert!(said.contains("from 3 to 3600"), "{said}");
        }
    }
}
