//! Two devices of the kernel's own RoCEv2 (rxe), joined by a veth pair.
//!
//! rxe receives nothing outside of the first network namespace, so that both are in one. There the
//! kernel takes a packet to an address of its own for one that need not leave. So these two
//! addresses are taken out of its table of local ones, and are local only to what the pair
//! brings: packets between the two then cross the pair like those between two hosts. Nothing else
//! of the machine's network is touched.

use std::fs;
use std::io::Write;
use std::net::Ipv4Addr;
use std::path::Path;
use std::process::{Command, Stdio};

use super::{BenchError, IP, Result, frames, machine};

/// The program that makes RDMA devices, of the same package as `ip`.
const RDMA: &str = "rdma";

/// The RDMA devices, each with the name of its network device.
const DEVICES: [&str; 2] = ["sluice-rxe-1", "sluice-rxe-2"];
const ADDRESSES: [Ipv4Addr; 2] = [Ipv4Addr::new(10, 44, 1, 1), Ipv4Addr::new(10, 44, 1, 2)];
/// Locally administered, so that nobody's card has them.
const MACS: [&str; 2] = ["02:53:4c:55:00:01", "02:53:4c:55:00:02"];
/// The routing table in which the addresses are local.
const TABLE: u32 = 447_910;

/// Both devices. Dropping it removes them.
#[derive(Debug)]
pub struct Twins(());

/// Why there can be none, in a sentence; `None` if nothing is known to prevent them.
pub fn obstacle() -> Option<String> {
    if let Some(obstacle) = super::obstacle() {
        return Some(obstacle);
    }
    if machine::find_program(RDMA).is_none() {
        return Some(format!("{RDMA} was not found: install iproute2"));
    }
    if !Path::new("/sys/module/rdma_rxe").exists() {
        return Some(
            "the kernel's rdma_rxe is not loaded: 'modprobe rdma_rxe', or use bench/rxe, which \
             boots a guest that has it"
                .into(),
        );
    }
    let strict = fs::read_to_string("/proc/sys/net/ipv4/conf/all/rp_filter")
        .is_ok_and(|value| value.trim() != "0");
    strict.then(|| {
        "net.ipv4.conf.all.rp_filter is not 0, so that packets from an own address are dropped; \
         bench/rxe measures in a guest, where it is"
            .into()
    })
}

impl Twins {
    /// Makes both, with an MTU in bytes. Devices that a killed run left are removed first.
    pub fn new(mtu: u32) -> Result<Self> {
        let [one, other] = DEVICES;
        remove_all();
        run(
            IP,
            &format!(
                "link add {one} mtu {mtu} address {} type veth peer name {other} mtu {mtu} \
                 address {}\n",
                MACS[0], MACS[1]
            ),
        )?;
        let twins = Self(());
        for device in DEVICES {
            let path = format!("/proc/sys/net/ipv4/conf/{device}");
            for (setting, value) in [("accept_local", "1"), ("rp_filter", "0")] {
                fs::write(format!("{path}/{setting}"), value)
                    .map_err(|error| BenchError::io(format!("set {path}/{setting}"), &error))?;
            }
        }
        run(IP, &ways())?;
        let links = DEVICES.map(|name| format!("link add {name} type rxe netdev {name}\n"));
        run(RDMA, &links.concat())?;
        Ok(twins)
    }

    /// The RDMA devices' names.
    pub fn devices(&self) -> [&'static str; 2] {
        DEVICES
    }

    /// Frames that came by the pair since it was made.
    pub fn frames(&self) -> Result<u64> {
        let table = fs::read_to_string("/proc/net/dev")
            .map_err(|error| BenchError::io("read /proc/net/dev", &error))?;
        let counted: Option<u64> = DEVICES.iter().map(|name| frames(&table, name)).sum();
        counted.ok_or_else(|| BenchError::Failed("a device of the pair is gone".to_owned()))
    }
}

impl Drop for Twins {
    fn drop(&mut self) {
        remove_all();
    }
}

/// Addresses, routes and neighbours, for `ip -batch`.
fn ways() -> String {
    let mut lines = String::new();
    for (own, peer) in [(0, 1), (1, 0)] {
        let (device, address) = (DEVICES[own], ADDRESSES[own]);
        let (peer_address, peer_mac) = (ADDRESSES[peer], MACS[peer]);
        for line in [
            // Nothing is to cross the pair by itself.
            format!("link set {device} addrgenmode none"),
            format!("link set {device} up"),
            format!("addr add {address}/32 dev {device}"),
            format!("route del local {address} dev {device} table local"),
            format!("route add local {address} dev {device} table {TABLE}"),
            format!("rule add iif {device} lookup {TABLE}"),
            format!("route add {peer_address} dev {device}"),
            format!("neigh add {peer_address} lladdr {peer_mac} dev {device} nud permanent"),
        ] {
            lines.push_str(&line);
            lines.push('\n');
        }
    }
    lines
}

/// Best effort. RDMA devices, addresses and routes go with their network devices, rules do not.
fn remove_all() {
    for device in DEVICES {
        // One fails unless there is something to remove.
        let _ = run(IP, &format!("rule del iif {device} lookup {TABLE}\n"));
    }
    let _ = run(IP, &format!("link del {}\n", DEVICES[0]));
}

/// Runs the lines by one process of `ip` or `rdma`, up to the first that fails.
fn run(program: &str, lines: &str) -> Result<()> {
    let path = machine::find_program(program).unwrap_or_else(|| program.into());
    let failed = |error| BenchError::io(format!("run {program}"), &error);
    // The two do not agree about it.
    let option = if program == IP { "-batch" } else { "-b" };
    let mut child = Command::new(path)
        .args([option, "-"])
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .map_err(failed)?;
    // A program that ended early says below why.
    let _ = child
        .stdin
        .take()
        .map(|mut input| input.write_all(lines.as_bytes()));
    let output = child.wait_with_output().map_err(failed)?;
    if output.status.success() {
        return Ok(());
    }
    let said = String::from_utf8_lossy(&output.stderr);
    Err(BenchError::Failed(format!(
        "{program} {option}: {}\n{lines}",
        said.trim_end()
    )))
}
