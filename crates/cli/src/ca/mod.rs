//! `sluice ca`: a certificate authority for daemons, what each host gets from it, and keys.

#[cfg(feature = "ca")]
mod authority;
#[cfg(not(feature = "ca"))]
#[path = "left_out.rs"]
mod authority;

use std::path::Path;

use sluice_peering::{SecretError, generate_psk};

use crate::args::{CaArgs, CaCommand};
use crate::error::{Failure, Outcome, without_numbers};
use crate::terminal::print;

pub fn run(args: &CaArgs) -> Outcome {
    match &args.command {
        CaCommand::Create { directory } => authority::create(directory),
        CaCommand::Host(args) => authority::host(args),
        CaCommand::Key { file } => key(file),
    }
}

fn key(file: &Path) -> Outcome {
    generate_psk(file).map_err(|error| file_failed(&error))?;
    print(&format!(
        "{}: for psk_file in [daemon] of every host; whoever has it can pass for any of them\n",
        file.display()
    ))?;
    Ok(0)
}

/// Most of these say themselves what to do.
fn file_failed(error: &SecretError) -> Failure {
    let hint = match error {
        SecretError::Write(..) => "name a folder that you can write, and that is there",
        _ => "",
    };
    Failure::new(without_numbers(&error.to_string()), hint)
}
