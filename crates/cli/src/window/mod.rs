//! `sluice window`: makes windows, shows who is in them, and serves one to virtual machines.

mod seen;
mod serve;
mod show;

use sluice_window::region::{Region, RegionError};

pub use seen::open;

use crate::args::{WindowArgs, WindowCommand, WindowCreateArgs};
use crate::error::Failure;
use crate::error::Outcome;
use crate::terminal::print;
use crate::units;

pub fn run(args: &WindowArgs) -> Outcome {
    match &args.command {
        WindowCommand::Create(args) => create(args),
        WindowCommand::Show(args) => show::run(&args.file, args.json),
        WindowCommand::List(args) => show::list(args),
        WindowCommand::Serve(args) => serve::run(args),
    }
}

fn failed(error: &RegionError) -> Failure {
    Failure::new(error.to_string(), "see sluice-window(1)")
}

fn create(args: &WindowCreateArgs) -> Outcome {
    let region = Region::create(&args.file, args.size, args.hosts, args.kind, args.force)
        .map_err(|error| failed(&error))?;
    print(&format!("{}: {}\n", args.file.display(), describe(&region)))?;
    Ok(0)
}

/// `a coherent window of 64M for 2 hosts, 31M each`.
pub fn describe(region: &Region) -> String {
    let header = region.header();
    format!(
        "a {} window of {} for {} hosts, {} each",
        header.kind,
        units::bytes(header.geometry.region_bytes()),
        header.geometry.hosts(),
        units::bytes(header.geometry.slot_bytes()),
    )
}
