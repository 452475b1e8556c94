//! Which capabilities (capabilities(7)) sluiced keeps for what it goes on doing; it gives up the others
//! ([`keep_only`](sluice_sys::capability::keep_only)).
//!
//! It is done when files are open and the control socket is there, and before there is a second
//! thread: the kernel keeps capabilities for each thread, and new ones begin with their maker's.

use std::path::Path;

use rustix::process::geteuid;
use sluice_peering::config::Device;
use sluice_sys::capability::Capability;

/// What sluiced goes on doing.
#[derive(Clone, Copy, Debug, Default)]
pub struct Needs<'a> {
    /// Where the control socket is, which is removed at the end.
    pub socket: Option<&'a Path>,
    /// There are lanes to other hosts, by this device if one is named.
    pub fabric: Option<Option<&'a Device>>,
    /// Programs are in several network namespaces.
    pub namespaces: bool,
    /// Connections are captured by a relay, which is started again when it has ended.
    pub capture: bool,
}

/// A set of what these needs take, of which a sluiced that is not root may have less.
pub fn needed(needs: &Needs<'_>) -> u64 {
    use Capability::{Bpf, DacOverride, IpcLock, NetAdmin, NetRaw, Perfmon, SysAdmin};
    let mut all: Vec<Capability> = Vec::new();
    // To run what reads sequence numbers, before Linux 5.19.
    all.push(Bpf);
    if needs.namespaces {
        // Whether two sockets in two network namespaces are one connection (`namespace`).
        all.extend([SysAdmin, NetAdmin]);
    }
    if needs.capture {
        // What a relay executes with, until its programs are in the kernel; these ask who connects
        // (`bpf_get_current_comm`), for which the verifier wants CAP_PERFMON.
        all.extend([Bpf, NetAdmin, Perfmon]);
    }
    match needs.fabric {
        // AF_XDP: sockets on queues of interfaces, also when an interface comes back, and packet
        // memory beyond the limit of locked memory. The program's pointer arithmetic takes CAP_PERFMON.
        Some(None | Some(Device::Roce)) => all.extend([NetRaw, NetAdmin, Bpf, Perfmon, IpcLock]),
        // Registered memory is locked.
        Some(Some(Device::Hardware(_))) => all.push(IpcLock),
        Some(Some(Device::RoceUdp | Device::Shm | Device::Window(_))) | None => {}
    }
    let others = needs
        .socket
        .and_then(Path::parent)
        .is_some_and(|directory| {
            use std::os::unix::fs::MetadataExt;
            std::fs::metadata(directory).is_ok_and(|meta| meta.uid() != geteuid().as_raw())
        });
    if others {
        all.push(DacOverride);
    }
    all.into_iter().fold(0, |set, one| set | one.bit())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn set(of: &[Capability]) -> u64 {
        of.iter().fold(0, |set, one| set | one.bit())
    }

    #[test]
    fn each_need_brings_what_it_takes_and_no_more() {
        use Capability::{Bpf, IpcLock, NetAdmin, NetRaw, Perfmon, SysAdmin};
        let none = Needs::default();
        assert_eq!(needed(&none), set(&[Bpf]));
        let of_device = |device| {
            needed(&Needs {
                fabric: Some(device),
                ..none
            })
        };
        let of_xdp = set(&[NetRaw, NetAdmin, Bpf, Perfmon, IpcLock]);
        assert_eq!(of_device(None), of_xdp);
        assert_eq!(of_device(Some(&Device::Roce)), of_xdp);
        assert_eq!(of_device(Some(&Device::RoceUdp)), set(&[Bpf]));
        assert_eq!(of_device(Some(&Device::Shm)), set(&[Bpf]));
        let hardware = Device::Hardware("mlx5_0".to_owned());
        assert_eq!(of_device(Some(&hardware)), set(&[Bpf, IpcLock]));
        let namespaces = Needs {
            namespaces: true,
            ..none
        };
        assert_eq!(needed(&namespaces), set(&[SysAdmin, Bpf, NetAdmin]));
        let capture = Needs {
            capture: true,
            ..none
        };
        assert_eq!(needed(&capture), set(&[Bpf, NetAdmin, Perfmon]));
    }
}
