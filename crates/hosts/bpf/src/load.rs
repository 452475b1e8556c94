//! Maps, programs and links, with errors that say what to do.

use sluice_sys::bpf::{AttachType, Code, Kind, Link, Load, Map, Program, ProgramKind, RingBuffer};
use sluice_sys::errno::Errno;

use crate::cgroup::Cgroup;
use crate::error::{Error, missing_capabilities};

/// One program and the place in the cgroup that it is for.
#[derive(Clone, Copy, Debug)]
pub struct Part {
    pub name: &'static str,
    pub code: Code,
    pub kind: ProgramKind,
    pub attach_type: AttachType,
}

pub fn map(title: &str, kind: Kind, key: usize, value: usize, entries: u32) -> Result<Map, Error> {
    Map::new(title, kind, key, value, entries).map_err(map_error)
}

/// An array of 64-bit numbers that programs count in.
pub fn counters(entries: u32) -> Result<Map, Error> {
    map("sluice_counters", Kind::PerCpuArray, 4, 8, entries)
}

pub fn counter(map: &Map, which: u32) -> Result<u64, Error> {
    map.sum(&which.to_ne_bytes())
        .map_err(Error::system("bpf(BPF_MAP_LOOKUP_ELEM), a counter"))
}

pub fn ring(title: &str, bytes: u32) -> Result<RingBuffer, Error> {
    RingBuffer::new(title, bytes).map_err(|errno| match errno {
        Errno::INVAL => Error::Kernel {
            lacks: "BPF ring buffers (Linux 5.8)",
        },
        errno => map_error(errno),
    })
}

fn map_error(errno: Errno) -> Error {
    match errno.0 {
        libc::EPERM => Error::not_permitted("to make a BPF map"),
        libc::ENOSYS => Error::Kernel {
            lacks: "bpf() (CONFIG_BPF_SYSCALL)",
        },
        _ => Error::system("bpf(BPF_MAP_CREATE)")(errno),
    }
}

/// Loads a program; `target` is that of a tracing program.
pub fn load(part: &Part, target: u32, maps: &[(&str, &Map)]) -> Result<Program, Error> {
    let title = format!("sluice_{}", part.name);
    let load = Load {
        title: &title,
        // The licences of the sources, in the word that the kernel has for them.
        license: c"Dual MIT/GPL",
        kind: part.kind,
        attach_type: part.attach_type,
        fragments: false,
        target,
    };
    Program::load(&load, part.code, maps).map_err(|refusal| {
        // The verifier's own refusals come with words; EPERM is also what it has for nonsense.
        if refusal.errno.0 == libc::EPERM && refusal.log.is_empty() {
            return Error::not_permitted("to load a BPF program");
        }
        Error::Verifier {
            program: part.name,
            log: refusal.log,
            errno: refusal.errno.0,
        }
    })
}

/// Loads a program and attaches it: until the link is dropped, beside others.
pub fn attach(cgroup: &Cgroup, part: &Part, maps: &[(&str, &Map)]) -> Result<Link, Error> {
    load(part, 0, maps)?
        .attach_to_cgroup(cgroup.raw())
        .map_err(|errno| match errno.0 {
            libc::EPERM if missing_capabilities().is_empty() => {
                Error::Exclusive { program: part.name }
            }
            libc::EPERM => Error::not_permitted("to attach a BPF program to a cgroup"),
            libc::EINVAL => Error::Kernel {
                lacks: "BPF links to cgroups (Linux 5.7, CONFIG_CGROUP_BPF)",
            },
            _ => Error::system("bpf(BPF_LINK_CREATE)")(errno),
        })
}
