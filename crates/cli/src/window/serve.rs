//! `sluice window serve`.

use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::net::UnixStream;

use rustix::fs::{MemfdFlags, SealFlags};
use sluice_sys::mapping::{Access, Mapping};
use sluice_window::Kind;
use sluice_window::ivshmem::Server;
use sluice_window::region::Region;

use super::failed;
use crate::args::WindowServeArgs;
use crate::error::Outcome;
use crate::error::{Failure, reason};
use crate::terminal::print;
use crate::units;

/// The least that QEMU gives an address.
const BYTES_MIN: u64 = 1 << 20;

pub(super) fn run(args: &WindowServeArgs) -> Outcome {
    if !args.size.is_power_of_two() || args.size < BYTES_MIN {
        return Err(Failure::new(
            format!(
                "a window of {} bytes is no power of two from 1M on",
                args.size
            ),
            "PCI devices have no other sizes: choose 16M, 64M, 256M",
        ));
    }
    let system = |error: io::Error| {
        Failure::new(
            format!("cannot serve a window: {}", reason(&error)),
            "check the limits of this process (ulimit -a)",
        )
    };
    let (memory, mapping) = memory(args.size).map_err(system)?;
    // Nobody has it yet.
    Region::format(mapping, args.hosts, Kind::Coherent, false).map_err(|error| failed(&error))?;
    let (stop, signalled) = UnixStream::pair().map_err(system)?;
    for signal in [libc::SIGTERM, libc::SIGINT] {
        let copy = signalled.try_clone().map_err(system)?;
        signal_hook::low_level::pipe::register(signal, copy).map_err(system)?;
    }
    let served = |error| Failure::new(format!("{error}"), "choose another socket");
    let mut server = Server::new(&args.socket, memory, args.vectors).map_err(served)?;
    print(&format!(
        "a window of {} for {} hosts; a virtual machine joins with\n  \
         -chardev socket,path={},id=window -device ivshmem-doorbell,vectors={},chardev=window\n",
        units::bytes(args.size),
        args.hosts,
        args.socket.display(),
        args.vectors,
    ))?;
    server
        .run(stop.as_fd(), |peers| {
            // Whoever stopped reading does not miss it.
            let _ = print(&format!("{}\n", units::plural(peers as u64, "peer")));
        })
        .map_err(served)?;
    Ok(0)
}

/// Memory whose size nobody can change: an access to it never faults.
fn memory(bytes: u64) -> io::Result<(OwnedFd, Mapping)> {
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    let memory = rustix::fs::memfd_create("sluice-window", flags)?;
    rustix::fs::ftruncate(&memory, bytes)?;
    rustix::fs::fcntl_add_seals(
        &memory,
        SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL,
    )?;
    let length = usize::try_from(bytes).map_err(io::Error::other)?;
    let mapping = Mapping::shared(memory.as_raw_fd(), length, Access::ReadWrite)
        .map_err(|errno| io::Error::from_raw_os_error(errno.0))?;
    Ok((memory, mapping))
}
