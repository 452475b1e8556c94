//! What joins network namespaces: pairs of virtual Ethernet devices, and the programs that make them.

use std::path::PathBuf;

use crate::job::{command, find_program};
use crate::namespace::Namespace;
use crate::verdict::{Verdict, fail, skip};

/// Ethernet header, a VLAN tag, and some room.
pub const FRAME_OVERHEAD: usize = 64;

/// How a link is made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Settings {
    /// Of both ends, in bytes (IP packet).
    pub mtu: u32,
    /// Receive and transmit queues of both ends.
    pub queues: u32,
    /// Segmentation, checksum and receive offload, which veth has by default: frames then cross it
    /// with checksums that are not filled in, and longer than the MTU. Always off with an injector.
    pub offloads: bool,
    /// Whether a fault injector lies between the ends.
    pub faults: bool,
}

impl Default for Settings {
    fn default() -> Self {
        Settings {
            mtu: 1500,
            queues: 1,
            offloads: true,
            faults: false,
        }
    }
}

/// Whether hosts and links can be made: skips for other users than root, and without iproute2.
pub fn require_means() -> Verdict {
    if !rustix::process::geteuid().is_root() {
        return skip("making network namespaces and their devices needs root: use sudo");
    }
    find("ip").map(drop)
}

fn find(program: &str) -> Verdict<PathBuf> {
    match find_program(program) {
        Some(path) => Ok(path),
        None => skip(format!(
            "{program} is not installed: install it, or all with scripts/setup test"
        )),
    }
}

/// Makes a veth pair with an end in each namespace.
pub fn wire(
    near: &Namespace,
    near_name: &str,
    far: &Namespace,
    far_name: &str,
    settings: Settings,
) -> Verdict {
    let mtu = settings.mtu;
    let queues = format!("numrxqueues {0} numtxqueues {0}", settings.queues.max(1));
    ip(
        near,
        &format!(
            "link add {near_name} mtu {mtu} {queues} type veth \
             peer name {far_name} mtu {mtu} {queues} netns {}",
            far.path()
        ),
    )?;
    if settings.faults || !settings.offloads {
        disable_offloads(near, near_name)?;
        disable_offloads(far, far_name)?;
    }
    Ok(())
}

/// Makes a device send whole frames with all checksums, and deliver them one by one.
pub fn disable_offloads(namespace: &Namespace, device: &str) -> Verdict {
    run_inside(
        namespace,
        "ethtool",
        &format!("-K {device} rx off tx off sg off tso off gso off gro off"),
    )?;
    Ok(())
}

/// Runs `ip` with the words in the namespace; what it printed.
pub fn ip(namespace: &Namespace, words: &str) -> Verdict<String> {
    run_inside(namespace, "ip", words)
}

fn run_inside(namespace: &Namespace, program: &str, words: &str) -> Verdict<String> {
    let mut command = command(find(program)?);
    command.args(words.split_whitespace());
    let output = namespace.inside(|| command.output())?;
    if output.status.success() {
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    } else {
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        fail(format!("{program} {words}: {}: {said}", output.status))
    }
}
