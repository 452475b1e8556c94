//! `sluice window`: makes windows, shows who is in them, and serves one to virtual machines.

mod serve;
mod show;

use std::path::PathBuf;

use clap::{Args, Subcommand};
use sluice_window::Kind;
use sluice_window::region::{Region, RegionError};

use crate::commands::{Outcome, print};
use crate::error::Failure;
use crate::units;

/// Makes and shows windows: memory that several hosts share.
///
/// A window is a file that containers or network namespaces map, the memory of an ivshmem device
/// of virtual machines, or a device DAX. Nothing is carried over windows yet.
#[derive(Debug, Args)]
pub struct WindowArgs {
    #[command(subcommand)]
    command: WindowCommand,
}

#[derive(Debug, Subcommand)]
enum WindowCommand {
    /// Make a window in a file or a device
    Create(CreateArgs),
    /// Say what a window is and who holds its slots
    Show(ShowArgs),
    /// Serve a window to virtual machines (QEMU's ivshmem-doorbell) and programs until interrupted
    Serve(ServeArgs),
}

#[derive(Debug, Args)]
struct CreateArgs {
    /// A file, which is made if it is missing, /sys/bus/pci/devices/…/resource2, or /dev/dax…
    file: PathBuf,

    /// Bytes; K, M and G are understood. For files
    #[arg(long, value_name = "SIZE", value_parser = units::parse_bytes)]
    size: Option<u64>,

    /// For how many hosts, 2 to 32
    #[arg(long, value_name = "N", default_value_t = 2)]
    hosts: u32,

    /// coherent: caches of all hosts agree; flush: they do not (CXL 2 pools)
    #[arg(long, value_name = "KIND", default_value = "coherent", value_parser = kind_of_region)]
    kind: Kind,

    /// Make a new window where there is one. Who uses the old one loses it
    #[arg(long)]
    force: bool,
}

#[derive(Debug, Args)]
struct ShowArgs {
    /// The window
    file: PathBuf,

    /// Print one JSON document
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Args)]
struct ServeArgs {
    /// Where to listen; only this user can connect
    socket: PathBuf,

    /// Bytes of the window, a power of two from 1M on, as PCI devices want it
    #[arg(long, value_name = "SIZE", default_value = "64M", value_parser = units::parse_bytes)]
    size: u64,

    /// For how many hosts, 2 to 32
    #[arg(long, value_name = "N", default_value_t = 2)]
    hosts: u32,

    /// Doorbells of each peer, 1 to 32
    #[arg(long, value_name = "N", default_value_t = 4)]
    vectors: u32,
}

fn kind_of_region(name: &str) -> Result<Kind, String> {
    match name.parse::<Kind>() {
        Ok(Kind::Push) => Err("a push window is no file: each host has memory of its own".into()),
        Ok(kind) => Ok(kind),
        Err(_) => Err("choose coherent or flush".into()),
    }
}

pub fn run(args: &WindowArgs) -> Outcome {
    match &args.command {
        WindowCommand::Create(args) => create(args),
        WindowCommand::Show(args) => show::run(&args.file, args.json),
        WindowCommand::Serve(args) => serve::run(args),
    }
}

fn failed(error: &RegionError) -> Failure {
    Failure::new(error.to_string(), "see sluice-window(1)")
}

fn create(args: &CreateArgs) -> Outcome {
    let region = Region::create(&args.file, args.size, args.hosts, args.kind, args.force)
        .map_err(|error| failed(&error))?;
    print(&format!("{}: {}\n", args.file.display(), describe(&region)))?;
    Ok(0)
}

/// `a coherent window of 64M for 2 hosts, 31M each`.
fn describe(region: &Region) -> String {
    let header = region.header();
    format!(
        "a {} window of {} for {} hosts, {} each",
        header.kind,
        units::bytes(header.geometry.region_bytes()),
        header.geometry.hosts(),
        units::bytes(header.geometry.slot_bytes()),
    )
}
