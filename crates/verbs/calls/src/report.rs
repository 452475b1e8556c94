//! What `sluice status` learns of this process: an object of JSON with its devices, made when it
//! asks. Who may ask and how is [`sluice_rendezvous::Reporter`]'s.

use std::fmt::Write as _;
use std::net::IpAddr;
use std::os::unix::fs::MetadataExt;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Instant;

use sluice_rendezvous::{ANSWER_BYTES_MAX, Reporter, default_path};
use sluice_verbs as engine;
use sluice_verbs::report::state_name;

use super::stats::{escaped, program};

/// Of the answer; a new one says that a field means something else.
const FORMAT: u32 = 1;
/// Addresses, interfaces and peers of a device that are listed.
const LISTED_MAX: usize = 16;
/// Devices that are listed.
const DEVICES_MAX: usize = 4;

/// A device has been opened: from now on this process can be asked. One that cannot is not listed,
/// and works as well.
pub fn begin() {
    /// The process that has begun: a child of fork has its parent's memory and not its thread.
    static BEGUN: AtomicU32 = AtomicU32::new(0);
    let own = std::process::id();
    if BEGUN.swap(own, Ordering::Relaxed) != own {
        let begun = Instant::now();
        let _ = Reporter::start(&default_path(), move || answer(begun).into_bytes());
    }
}

fn answer(begun: Instant) -> String {
    let devices = super::device::made().iter().map(|device| &*device.engine);
    let devices: Vec<String> = devices
        .filter_map(|device| device_object(device, device.report()))
        .take(DEVICES_MAX)
        .collect();
    // The network namespace of this thread is the one of the thread that opened the device.
    let namespace = std::fs::metadata("/proc/thread-self/ns/net").map_or(0, |file| file.ino());
    let text = format!(
        "{{\"format\":{FORMAT},\"version\":\"{}\",\"pid\":{},\"program\":\"{}\",\"open_s\":{},\
         \"network_namespace\":{namespace},\"devices\":[{}]}}",
        env!("CARGO_PKG_VERSION"),
        std::process::id(),
        escaped(&program()),
        begun.elapsed().as_secs(),
        devices.join(",")
    );
    debug_assert!(text.len() <= ANSWER_BYTES_MAX);
    text
}

/// None for a device that the program does not use.
fn device_object(device: &engine::Device, report: engine::report::DeviceReport) -> Option<String> {
    let pairs: u32 = report.states.iter().sum();
    if report.contexts == 0 && pairs == 0 && report.counters == Default::default() {
        return None;
    }
    let transport = device.transport().report();
    let states = report.states.iter().enumerate();
    let states = states
        .filter(|(_, count)| **count > 0)
        .map(|(state, count)| (state_name(state), u64::from(*count)));
    let addresses = match transport.has_addresses {
        true => addresses(device),
        false => Vec::new(),
    };
    let counters = report.counters;
    let mut text = format!(
        "{{\"name\":\"{}\",\"transport\":\"{}\",\"contexts\":{}",
        escaped(device.name()),
        transport.kind,
        report.contexts
    );
    // Writing to a String cannot fail.
    let _ = write!(
        text,
        ",\"ways\":[{}],\"addresses\":[{}],\"peers\":[{}],\"queue_pairs\":{{{}}}",
        listed(transport.ways.iter().map(|way| quoted(way))),
        listed(addresses.iter().map(|address| quoted(&address.to_string()))),
        listed(transport.peers.iter().map(u32::to_string)),
        numbers(states),
    );
    let _ = write!(
        text,
        ",\"sends\":{},\"send_bytes\":{},\"sends_failed\":{},\"receives\":{},\
         \"receive_bytes\":{},\"is_partial\":{},\"counters\":{{{}}}}}",
        counters.sends_posted,
        counters.send_bytes,
        counters.sends_failed,
        counters.receives_done,
        counters.receive_bytes,
        transport.is_partial,
        numbers(
            transport
                .counters
                .into_iter()
                .filter(|(_, count)| *count > 0)
        ),
    );
    Some(text)
}

fn quoted(text: &str) -> String {
    format!("\"{}\"", escaped(text))
}

fn listed(items: impl Iterator<Item = String>) -> String {
    items.take(LISTED_MAX).collect::<Vec<_>>().join(",")
}

fn numbers<'a>(fields: impl Iterator<Item = (&'a str, u64)>) -> String {
    let fields: Vec<String> = fields
        .map(|(name, number)| format!("\"{name}\":{number}"))
        .collect();
    fields.join(",")
}

/// The addresses that peers on other hosts can know: not those of one link or of this host alone,
/// unless there are no others.
fn addresses(device: &engine::Device) -> Vec<IpAddr> {
    let table = device.gid_table();
    let all = table.iter().filter(|entry| !entry.gid.is_zero());
    let all = all.map(|entry| entry.gid.address());
    let (mut far, mut near) = (Vec::new(), Vec::new());
    for address in all {
        let list = match is_near(address) {
            true => &mut near,
            false => &mut far,
        };
        if !list.contains(&address) {
            list.push(address);
        }
    }
    if far.is_empty() {
        near.retain(IpAddr::is_loopback);
        return near;
    }
    far
}

fn is_near(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(address) => address.is_loopback() || address.is_link_local(),
        IpAddr::V6(address) => address.is_loopback() || address.is_unicast_link_local(),
    }
}
