//! Capabilities of the calling thread (capabilities(7)).
#![allow(unsafe_code)]

use crate::raw::{check, syscall2};

/// `_LINUX_CAPABILITY_VERSION_3` of `capability.h`.
const VERSION_3: u32 = 0x2008_0522;

/// Those that Sluice asks for, with the numbers of `capability.h`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Capability {
    NetAdmin = 12,
    NetRaw = 13,
    SysAdmin = 21,
    Perfmon = 38,
    Bpf = 39,
}

impl Capability {
    /// As man pages and `capsh` write it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::NetAdmin => "CAP_NET_ADMIN",
            Self::NetRaw => "CAP_NET_RAW",
            Self::SysAdmin => "CAP_SYS_ADMIN",
            Self::Perfmon => "CAP_PERFMON",
            Self::Bpf => "CAP_BPF",
        }
    }

    const fn is_in(self, set: u64) -> bool {
        set >> self as u32 & 1 == 1
    }
}

/// The names of those that this thread does not have. `CAP_SYS_ADMIN` includes `CAP_BPF` and
/// `CAP_PERFMON`, which were split from it (Linux 5.8). Empty in a user namespace that has them:
/// the kernel may want them outside of it, and says so by `EPERM` only.
pub fn missing(needed: &[Capability]) -> Vec<&'static str> {
    let effective = effective();
    let has = |wanted: Capability| {
        let of_admin = matches!(wanted, Capability::Bpf | Capability::Perfmon);
        wanted.is_in(effective) || of_admin && Capability::SysAdmin.is_in(effective)
    };
    needed
        .iter()
        .filter(|wanted| !has(**wanted))
        .map(|wanted| wanted.name())
        .collect()
}

/// The effective set; empty when the kernel does not say.
fn effective() -> u64 {
    let mut header = [VERSION_3, 0];
    // Effective, permitted and inheritable: bits 0 to 31, then again 32 to 63.
    let mut sets = [0u32; 6];
    // SAFETY: capget reads a header of two words and writes two sets of three words.
    let ret = unsafe {
        syscall2(
            libc::SYS_capget,
            header.as_mut_ptr() as usize,
            sets.as_mut_ptr() as usize,
        )
    };
    if check(ret).is_err() {
        return 0;
    }
    let [low, _, _, high, _, _] = sets.map(u64::from);
    low | high << 32
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_set_is_that_of_proc() {
        let status = std::fs::read_to_string("/proc/thread-self/status").unwrap();
        let line = status
            .lines()
            .find_map(|line| line.strip_prefix("CapEff:"))
            .unwrap();
        assert_eq!(effective(), u64::from_str_radix(line.trim(), 16).unwrap());
    }
}
