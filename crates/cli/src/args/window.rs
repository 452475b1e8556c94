//! The command line of `sluice window`.

use std::path::PathBuf;

use clap::{Args, Subcommand};
use sluice_window::Kind;

use crate::units;

/// Makes and shows windows: memory that several hosts share.
///
/// A window is a file that containers or network namespaces map, the memory of an ivshmem device
/// of virtual machines, or a device DAX. Verbs programs use one
/// by 'sluice verbs --device window:PATH', connections between hosts one that is served by [[window]] in
/// sluiced.toml(5).
#[derive(Debug, Args)]
pub struct WindowArgs {
    #[command(subcommand)]
    pub command: WindowCommand,
}

#[derive(Debug, Subcommand)]
pub enum WindowCommand {
    /// Make a window in a file or a device
    Create(WindowCreateArgs),
    /// Say what a window is and who holds its slots
    Show(WindowShowArgs),
    /// The same for all windows that sluiced has, or that its configuration names
    List(WindowListArgs),
    /// Serve a window to virtual machines (QEMU's ivshmem-doorbell) and programs until interrupted
    Serve(WindowServeArgs),
}

#[derive(Debug, Args)]
pub struct WindowCreateArgs {
    /// A file, which is made if it is missing, /sys/bus/pci/devices/…/resource2, or /dev/dax…
    pub file: PathBuf,

    /// Bytes; K, M and G are understood. For files
    #[arg(long, value_name = "SIZE", value_parser = units::parse_bytes)]
    pub size: Option<u64>,

    /// For how many hosts, 2 to 32
    #[arg(long, value_name = "N", default_value_t = 2)]
    pub hosts: u32,

    /// coherent: caches of all hosts agree; flush: they do not (CXL 2 pools)
    #[arg(long, value_name = "KIND", default_value = "coherent", value_parser = kind_of_region)]
    pub kind: Kind,

    /// Make a new window where there is one. Who uses the old one loses it
    #[arg(long)]
    pub force: bool,
}

#[derive(Debug, Args)]
pub struct WindowShowArgs {
    /// The window: a file, a device, or the socket of 'sluice window serve'
    pub file: PathBuf,

    /// Print one JSON document
    #[arg(long)]
    pub json: bool,
}

#[derive(Debug, Args)]
pub struct WindowListArgs {
    /// The configuration whose [[window]]s are meant [default: /etc/sluice/sluiced.toml if it is there]
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,

    /// The daemon's control socket
    #[arg(long, value_name = "PATH")]
    pub socket: Option<PathBuf>,

    /// Print one JSON document
    #[arg(long)]
    pub json: bool,
}

#[derive(Debug, Args)]
pub struct WindowServeArgs {
    /// Where to listen; only this user can connect
    pub socket: PathBuf,

    /// Bytes of the window, a power of two from 1M on, as PCI devices want it
    #[arg(long, value_name = "SIZE", default_value = "64M", value_parser = units::parse_bytes)]
    pub size: u64,

    /// For how many hosts, 2 to 32
    #[arg(long, value_name = "N", default_value_t = 2)]
    pub hosts: u32,

    /// Doorbells of each peer, 1 to 32
    #[arg(long, value_name = "N", default_value_t = 4)]
    pub vectors: u32,
}

fn kind_of_region(name: &str) -> Result<Kind, String> {
    match name.parse::<Kind>() {
        Ok(Kind::Push) => Err("a push window is no file: each host has memory of its own".into()),
        Ok(kind) => Ok(kind),
        Err(_) => Err("choose coherent or flush".into()),
    }
}
