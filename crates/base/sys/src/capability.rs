//! Capabilities of the calling thread (capabilities(7)).
#![allow(unsafe_code)]

use crate::errno::Errno;
use crate::raw::{check, syscall2, syscall5};

/// `_LINUX_CAPABILITY_VERSION_3` of `capability.h`.
const VERSION_3: u32 = 0x2008_0522;

/// Those that Sluice asks for, with the numbers of `capability.h`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Capability {
    DacOverride = 1,
    Setpcap = 8,
    NetBindService = 10,
    NetAdmin = 12,
    NetRaw = 13,
    IpcLock = 14,
    SysAdmin = 21,
    Perfmon = 38,
    Bpf = 39,
}

impl Capability {
    /// As man pages and `capsh` write it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::DacOverride => "CAP_DAC_OVERRIDE",
            Self::Setpcap => "CAP_SETPCAP",
            Self::NetBindService => "CAP_NET_BIND_SERVICE",
            Self::NetAdmin => "CAP_NET_ADMIN",
            Self::NetRaw => "CAP_NET_RAW",
            Self::IpcLock => "CAP_IPC_LOCK",
            Self::SysAdmin => "CAP_SYS_ADMIN",
            Self::Perfmon => "CAP_PERFMON",
            Self::Bpf => "CAP_BPF",
        }
    }

    const fn is_in(self, set: u64) -> bool {
        self.bit() & set != 0
    }

    /// Its bit in a set.
    pub const fn bit(self) -> u64 {
        1 << self as u32
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

/// Keeps for this thread what `keep` has of what there is, bit by bit, and makes sure that no program
/// that it executes from now on gets more (bounding set and `PR_SET_NO_NEW_PRIVS`, prctl(2)). Other
/// threads keep what they have: it is for a process that has one. Returns the permitted set.
///
/// Errors: those of capset(2) and prctl(2), which the kernel does not have for who gives something up.
pub fn keep_only(keep: u64) -> Result<u64, Errno> {
    let now = sets()?;
    // Takes CAP_SETPCAP, which goes below. Who does not have it has little to lose.
    if Capability::Setpcap.is_in(now.effective) {
        for number in (0..u64::BITS as usize).filter(|number| keep >> number & 1 == 0) {
            match prctl(libc::PR_CAPBSET_DROP, number) {
                // One that this kernel does not know.
                Ok(()) | Err(Errno(libc::EINVAL)) => {}
                Err(error) => return Err(error),
            }
        }
    }
    let permitted = now.permitted & keep;
    let left = [
        now.effective & keep,
        permitted,
        // And with them the ambient ones, which what an ordinary user's process starts may need.
        now.inheritable & keep,
    ];
    let [low, high] = [0, 32].map(|shift| left.map(|set| (set >> shift) as u32));
    let sets = [low, high];
    let header = [VERSION_3, 0];
    // SAFETY: capset reads a header of two words and two sets of three words.
    check(unsafe {
        syscall2(
            libc::SYS_capset,
            header.as_ptr() as usize,
            sets.as_ptr() as usize,
        )
    })?;
    prctl(libc::PR_SET_NO_NEW_PRIVS, 1)?;
    Ok(permitted)
}

fn prctl(option: libc::c_int, value: usize) -> Result<(), Errno> {
    // SAFETY: these options take a number and no memory.
    let ret = unsafe { syscall5(libc::SYS_prctl, option as usize, value, 0, 0, 0) };
    check(ret).map(drop)
}

/// The effective set; empty when the kernel does not say.
fn effective() -> u64 {
    sets().map_or(0, |sets| sets.effective)
}

struct Sets {
    effective: u64,
    permitted: u64,
    inheritable: u64,
}

fn sets() -> Result<Sets, Errno> {
    let mut header = [VERSION_3, 0];
    // Effective, permitted and inheritable: bits 0 to 31, then again 32 to 63.
    let mut sets = [[0u32; 3]; 2];
    // SAFETY: capget reads a header of two words and writes two sets of three words.
    check(unsafe {
        syscall2(
            libc::SYS_capget,
            header.as_mut_ptr() as usize,
            sets.as_mut_ptr() as usize,
        )
    })?;
    let [low, high] = sets.map(|half| half.map(u64::from));
    let of = |which: usize| low[which] | high[which] << 32;
    Ok(Sets {
        effective: of(0),
        permitted: of(1),
        inheritable: of(2),
    })
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

    #[test]
    fn what_is_given_up_is_gone_for_this_thread_and_what_it_executes() {
        let _children = crate::testing::with_children();
        // Who has nothing can show nothing.
        let all = [Capability::NetBindService, Capability::Setpcap];
        if !missing(&all).is_empty() {
            let test = "what_is_given_up_is_gone_for_this_thread_and_what_it_executes";
            let reason = format!("needs {}", missing(&all).join(" and "));
            let may_skip = std::env::var_os("SLUICE_NO_SKIP").is_none_or(|value| value != "1");
            assert!(may_skip, "SKIP {test}: {reason}");
            println!("SKIP {test}: {reason}");
            return;
        }
        let keep = Capability::NetBindService.bit();
        // Of a thread of its own: the other tests keep theirs.
        let (before, left, status) = std::thread::spawn(move || {
            let before = sets().unwrap().permitted;
            let left = keep_only(keep).unwrap();
            let mut child = std::process::Command::new("cat");
            let output = child.arg("/proc/self/status").output().unwrap();
            (before, left, String::from_utf8(output.stdout).unwrap())
        })
        .join()
        .unwrap();
        assert!(before & !keep != 0 && left == keep, "{before:x} {left:x}");
        let field = |name: &str| {
            let line = status.lines().find_map(|line| line.strip_prefix(name));
            line.unwrap().trim().to_owned()
        };
        assert_eq!(field("NoNewPrivs:"), "1");
        for set in ["CapPrm:", "CapEff:", "CapInh:"] {
            let has = u64::from_str_radix(&field(set), 16).unwrap();
            assert_eq!(has & !keep, 0, "{set} {has:x}");
        }
        // It keeps root from having all again in what it executes.
        for set in ["CapPrm:", "CapBnd:"] {
            assert_eq!(u64::from_str_radix(&field(set), 16).unwrap(), keep, "{set}");
        }
    }
}
