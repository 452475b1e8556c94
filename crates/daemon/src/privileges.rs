//! Gives up every capability (capabilities(7)) that sluiced does not need.
//!
//! It is done when files are open and the control socket is there, and before there is a second
//! thread: the kernel keeps capabilities for each thread, and new ones begin with their maker's.

use std::path::Path;

use rustix::io::Errno;
use rustix::process::geteuid;
use rustix::thread::{
    CapabilitySet, CapabilitySets, capabilities, remove_capability_from_bounding_set,
    set_capabilities, set_no_new_privs,
};
use sluice_peering::config::Device;

/// What sluiced goes on doing.
#[derive(Clone, Copy, Debug, Default)]
pub struct Needs<'a> {
    /// Where the control socket is, which is removed at the end.
    pub socket: Option<&'a Path>,
    /// There are lanes to other hosts, by this device if one is named.
    pub fabric: Option<Option<&'a Device>>,
}

/// What these needs take, of which a sluiced that is not root may have less.
pub fn needed(needs: &Needs<'_>) -> CapabilitySet {
    // Whether two sockets in two network namespaces are one connection (`namespace`).
    let mut set = CapabilitySet::SYS_ADMIN | CapabilitySet::BPF | CapabilitySet::NET_ADMIN;
    match needs.fabric {
        // AF_XDP: sockets on queues of interfaces, also when an interface comes back, and packet
        // memory beyond the limit of locked memory.
        Some(None | Some(Device::Roce)) => set |= CapabilitySet::NET_RAW | CapabilitySet::IPC_LOCK,
        // Registered memory is locked.
        Some(Some(Device::Hardware(_))) => set |= CapabilitySet::IPC_LOCK,
        Some(Some(Device::RoceUdp | Device::Shm)) | None => {}
    }
    let others = needs
        .socket
        .and_then(Path::parent)
        .is_some_and(|directory| {
            use std::os::unix::fs::MetadataExt;
            std::fs::metadata(directory).is_ok_and(|meta| meta.uid() != geteuid().as_raw())
        });
    if others {
        set |= CapabilitySet::DAC_OVERRIDE;
    }
    set
}

/// Keeps what `keep` has of what there is, and makes sure that no program that is executed from now
/// on gets more. Returns what is left.
///
/// # Errors
/// The kernel refuses, which it does not do to who gives something up.
pub fn drop_others(keep: CapabilitySet) -> Result<CapabilitySet, Errno> {
    let now = capabilities(None)?;
    // Takes CAP_SETPCAP, which goes below. Who does not have it has little to lose.
    if now.effective.contains(CapabilitySet::SETPCAP) {
        for one in CapabilitySet::all().iter() {
            if !keep.contains(one) {
                match remove_capability_from_bounding_set(one) {
                    // One that this kernel does not know.
                    Ok(()) | Err(Errno::INVAL) => {}
                    Err(error) => return Err(error),
                }
            }
        }
    }
    let left = now.permitted & keep;
    set_capabilities(
        None,
        CapabilitySets {
            effective: now.effective & keep,
            permitted: left,
            // And with them the ambient ones, which a relay of an ordinary user's sluiced needs.
            inheritable: now.inheritable & keep,
        },
    )?;
    set_no_new_privs(true)?;
    Ok(left)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_need_brings_what_it_takes() {
        let of = |device| {
            needed(&Needs {
                socket: None,
                fabric: Some(device),
            })
        };
        assert!(of(None).contains(CapabilitySet::NET_RAW | CapabilitySet::IPC_LOCK));
        assert!(!of(Some(&Device::RoceUdp)).contains(CapabilitySet::NET_RAW));
        let hardware = Device::Hardware("mlx5_0".to_owned());
        assert!(of(Some(&hardware)).contains(CapabilitySet::IPC_LOCK));
        let alone = needed(&Needs::default());
        assert!(!alone.intersects(
            CapabilitySet::DAC_OVERRIDE | CapabilitySet::SETUID | CapabilitySet::SYS_PTRACE
        ));
    }

    #[test]
    fn what_is_given_up_is_gone_for_this_thread_and_what_it_executes() {
        let keep = CapabilitySet::NET_ADMIN;
        // Of a thread of its own: the other tests keep theirs.
        let (before, after, status) = std::thread::spawn(move || {
            let before = capabilities(None).expect("known").permitted;
            drop_others(keep).expect("it may");
            let after = capabilities(None).expect("known");
            let child = std::process::Command::new("cat")
                .arg("/proc/self/status")
                .output()
                .expect("it runs");
            (
                before,
                after,
                String::from_utf8_lossy(&child.stdout).into_owned(),
            )
        })
        .join()
        .expect("no panic");
        assert_eq!(after.permitted, before & keep);
        assert_eq!(after.effective, after.permitted);
        let field = |name: &str| {
            let line = status.lines().find_map(|line| line.strip_prefix(name));
            line.expect("a line").trim().to_owned()
        };
        assert_eq!(field("NoNewPrivs:"), "1");
        let permitted = u64::from_str_radix(&field("CapPrm:"), 16).expect("a number");
        assert_eq!(permitted & !keep.bits(), 0, "{permitted:x}");
    }
}
