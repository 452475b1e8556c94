//! What the kernel and the limits of this machine allow. Features are tried, not derived from
//! the kernel's version: distributions and sandboxes change what a version means.

use std::fs;
use std::io;
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::os::fd::AsRawFd;
use std::path::Path;

use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, ftruncate, memfd_create};
use rustix::process::{Resource, getrlimit};
use sluice_sys::tcp;

use super::Check;
use crate::error::reason;
use crate::units;

/// The ceiling that the library polls for if nothing else is said; its own default.
pub const SPIN_US_DEFAULT: u32 = 100;
/// The library takes no larger one.
pub const SPIN_US_MAX: u32 = 10_000;

/// A server with many clients needs more descriptors than this.
const DESCRIPTORS_FEW: u64 = 4096;
/// Rings of a few hundred lanes need about as much.
const MEMORY_FEW_BYTES: u64 = 256 << 20;

/// Every check of the machine, in the order of the report.
pub fn checks() -> Vec<Check> {
    vec![
        kernel(),
        memfd(),
        loopback(),
        descriptors(),
        processors(),
        memory(),
        container(),
        io_uring(),
        yama(),
    ]
}

/// A small file of /proc or /sys, without white space around it. `None` if it is not there.
fn read(path: &str) -> Option<String> {
    let text = fs::read_to_string(path).ok()?;
    Some(text.trim().to_owned())
}

fn kernel() -> Check {
    let name = rustix::system::uname();
    let release = name.release().to_string_lossy();
    let machine = name.machine().to_string_lossy();
    Check::ok("kernel", format!("Linux {release}, {machine}"))
}

fn memfd() -> Check {
    const NAME: &str = "sealed memory";
    let attempt = || -> rustix::io::Result<()> {
        let memory = memfd_create(
            "sluice-doctor",
            MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING,
        )?;
        ftruncate(&memory, 4096)?;
        fcntl_add_seals(
            &memory,
            SealFlags::SHRINK | SealFlags::GROW | SealFlags::FUTURE_WRITE,
        )
    };
    match attempt() {
        Ok(()) => Check::ok(NAME, "memfd_create with F_SEAL_FUTURE_WRITE works"),
        Err(error) => Check::missing(
            NAME,
            format!("memfd_create or its seals: {}", reason(&error.into())),
            "needs Linux 5.1 or newer and a sandbox that lets memfd_create through",
        ),
    }
}

/// Opens a TCP connection to itself and asks the kernel what the daemon asks it.
fn loopback() -> Check {
    const NAME: &str = "TCP facts";
    let connected = || -> io::Result<(TcpStream, TcpStream)> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
        let client = TcpStream::connect(listener.local_addr()?)?;
        let (server, _) = listener.accept()?;
        Ok((client, server))
    };
    let (client, _server) = match connected() {
        Ok(pair) => pair,
        Err(error) => {
            return Check::missing(
                NAME,
                format!("no TCP connection over 127.0.0.1: {}", reason(&error)),
                "bring the interface up with 'ip link set lo up'",
            );
        }
    };
    if let Err(errno) = tcp::netns_cookie(client.as_raw_fd()) {
        return Check::missing(
            NAME,
            format!("SO_NETNS_COOKIE: {errno}"),
            "needs Linux 5.14 or newer",
        );
    }
    match tcp::info(client.as_raw_fd()) {
        Ok(_) => Check::ok(NAME, "loopback, SO_NETNS_COOKIE and TCP_INFO work"),
        Err(errno) => Check::missing(
            NAME,
            format!("TCP_INFO: {errno}"),
            "needs an ordinary Linux TCP stack; some sandboxes have their own",
        ),
    }
}

fn descriptors() -> Check {
    const NAME: &str = "descriptors";
    let limit = getrlimit(Resource::Nofile);
    let show = |value: Option<u64>| value.map_or("unlimited".to_owned(), |v| v.to_string());
    let found = format!(
        "{} (hard limit {})",
        show(limit.current),
        show(limit.maximum)
    );
    match limit.current {
        Some(few) if few < DESCRIPTORS_FEW => Check::note(
            NAME,
            found,
            "a lane needs none, but its connection does: 'ulimit -n' raises it",
        ),
        _ => Check::ok(NAME, found),
    }
}

/// What a program started from here would poll for, and whether that is the default.
fn spin_ceiling(variable: Option<&str>) -> Result<u32, String> {
    match variable {
        None | Some("") => Ok(SPIN_US_DEFAULT),
        Some(text) => match text.parse::<u32>() {
            Ok(value) => Ok(value.min(SPIN_US_MAX)),
            Err(_) => Err(format!("SLUICE_SPIN_US is '{text}', which is no number")),
        },
    }
}

fn processors() -> Check {
    const NAME: &str = "processors";
    // Counts the affinity mask and the cgroup's quota, as the scheduler does.
    let count = std::thread::available_parallelism().map_or(1, usize::from);
    let variable = std::env::var("SLUICE_SPIN_US").ok();
    let ceiling = match spin_ceiling(variable.as_deref()) {
        Ok(ceiling) => ceiling,
        Err(what) => {
            return Check::note(NAME, what, "unset it, or give microseconds from 0 to 10000");
        }
    };
    let found = format!(
        "{}, polls for at most {ceiling} µs before it sleeps",
        units::plural(count as u64, "processor")
    );
    if count == 1 {
        Check::note(
            NAME,
            found,
            "both ends share it, so polling gives way to the other end at once",
        )
    } else {
        Check::ok(NAME, found)
    }
}

/// The memory limit of the cgroup: version 2, or 1. Both may be mounted at several places.
fn memory_limit_bytes() -> Option<u64> {
    let own = read("/proc/self/cgroup")?;
    for line in own.lines() {
        let mut parts = line.splitn(3, ':');
        let (Some(_), Some(controllers), Some(path)) = (parts.next(), parts.next(), parts.next())
        else {
            continue;
        };
        let places = match controllers {
            "" => vec![
                format!("/sys/fs/cgroup{path}/memory.max"),
                format!("/sys/fs/cgroup/unified{path}/memory.max"),
            ],
            c if c.split(',').any(|c| c == "memory") => vec![
                format!("/sys/fs/cgroup/memory{path}/memory.limit_in_bytes"),
                "/sys/fs/cgroup/memory/memory.limit_in_bytes".to_owned(),
            ],
            _ => continue,
        };
        let limit = places.iter().find_map(|place| read(place)?.parse().ok());
        // Version 1 says "no limit" with a number near the end of the range.
        if let Some(limit) = limit.filter(|limit| *limit < 1 << 60) {
            return Some(limit);
        }
    }
    None
}

fn memory() -> Check {
    const NAME: &str = "memory";
    let address_space = getrlimit(Resource::As).current;
    let mut found = match memory_limit_bytes() {
        Some(limit) => format!("the cgroup's limit is {}", units::bytes(limit)),
        None => "no limit from a cgroup".to_owned(),
    };
    if let Some(limit) = address_space {
        found += &format!(", address space limited to {}", units::bytes(limit));
    }
    // Rings are memfds: /dev/shm and kernel.shmmax do not limit them.
    let least = memory_limit_bytes().into_iter().chain(address_space).min();
    match least {
        Some(limit) if limit < MEMORY_FEW_BYTES => Check::note(
            NAME,
            found,
            "many busy lanes may not fit; smaller rings do: 'sluice up --ring-bytes 16384'",
        ),
        _ => Check::ok(NAME, found),
    }
}

/// What kind of container this process is in, as far as it shows.
fn container_kind(
    exists: impl Fn(&str) -> bool,
    variable: Option<&str>,
    first_cgroup: &str,
) -> Option<String> {
    if let Some(kind) = variable.filter(|kind| !kind.is_empty()) {
        return Some(kind.to_owned());
    }
    if exists("/.dockerenv") {
        return Some("docker".to_owned());
    }
    if exists("/run/.containerenv") {
        return Some("podman".to_owned());
    }
    ["kubepods", "docker", "lxc", "containerd"]
        .into_iter()
        .find(|kind| first_cgroup.contains(kind))
        .map(str::to_owned)
}

fn container() -> Check {
    const NAME: &str = "container";
    let variable = std::env::var("container").ok();
    let cgroup = read("/proc/1/cgroup").unwrap_or_default();
    let kind = container_kind(
        |path| Path::new(path).exists(),
        variable.as_deref(),
        &cgroup,
    );
    match kind {
        None => Check::ok(NAME, "none seen"),
        Some(kind) => Check::note(
            NAME,
            format!("this is one ({kind})"),
            "connections to programs outside get a lane only if both use one control socket: \
             mount its directory into the container and name it with SLUICE_SOCKET",
        ),
    }
}

fn io_uring() -> Check {
    const NAME: &str = "io_uring";
    match read("/proc/sys/kernel/io_uring_disabled").as_deref() {
        Some("0") => Check::ok(
            NAME,
            "available; connections that a program drives with it stay on TCP",
        ),
        Some(_) => Check::ok(NAME, "disabled by kernel.io_uring_disabled; not needed"),
        None => Check::ok(NAME, "no switch in this kernel; not needed"),
    }
}

fn yama() -> Check {
    const NAME: &str = "yama";
    match read("/proc/sys/kernel/yama/ptrace_scope") {
        Some(scope) => Check::ok(
            NAME,
            format!("ptrace_scope {scope}; lanes do not use ptrace"),
        ),
        None => Check::ok(NAME, "not in this kernel"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_spin_ceiling_is_the_librarys() {
        assert_eq!(SPIN_US_DEFAULT, sluice_lane::spin::CEILING_DEFAULT_US);
        assert_eq!(SPIN_US_MAX, sluice_lane::spin::CEILING_MAX_US);
        assert_eq!(spin_ceiling(None), Ok(SPIN_US_DEFAULT));
        assert_eq!(spin_ceiling(Some("0")), Ok(0));
        assert_eq!(spin_ceiling(Some("4000000000")), Ok(SPIN_US_MAX));
        assert!(spin_ceiling(Some("fast")).is_err());
    }

    #[test]
    fn containers_are_recognised_by_what_they_leave() {
        let none = |_: &str| false;
        assert_eq!(container_kind(none, None, "0::/init.scope"), None);
        let kind = |exists: &dyn Fn(&str) -> bool, variable, cgroup| {
            container_kind(exists, variable, cgroup).unwrap()
        };
        assert_eq!(kind(&none, Some("oci"), ""), "oci");
        assert_eq!(kind(&|path| path == "/.dockerenv", None, ""), "docker");
        assert_eq!(kind(&none, None, "0::/kubepods/x"), "kubepods");
    }

    #[test]
    fn every_check_finds_something_to_say() {
        for check in checks() {
            assert!(!check.found.is_empty(), "{check:?}");
        }
    }
}
