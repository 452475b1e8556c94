//! `sluice ca`: a certificate authority for daemons, and what each host gets from it.

use std::fs::DirBuilder;
use std::os::unix::fs::DirBuilderExt;
use std::path::Path;

use sluice_peering::authority::{self, AuthorityError};
use sluice_peering::{SecretError, generate_psk};

use crate::args::{CaArgs, CaCommand, CaHostArgs};
use crate::error::{Failure, Outcome, reason, without_numbers};
use crate::terminal::print;

pub fn run(args: &CaArgs) -> Outcome {
    match &args.command {
        CaCommand::Create { directory } => create(directory),
        CaCommand::Host(args) => host(args),
        CaCommand::Key { file } => key(file),
    }
}

fn create(directory: &Path) -> Outcome {
    let made = DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(directory);
    made.map_err(|error| {
        Failure::new(
            format!("cannot make {}: {}", directory.display(), reason(&error)),
            "name a folder that you can make",
        )
    })?;
    authority::create_authority(directory).map_err(|error| failed(&error, directory))?;
    let shown = directory.display();
    print(&format!(
        "{shown}/ca.key: whoever has it can make certificates; keep it on this host\n\
         {shown}/ca.pem: the authority's certificate, which every host has\n\
         Next, for each host: sluice ca host {shown} NAME\n"
    ))?;
    Ok(0)
}

fn host(args: &CaHostArgs) -> Outcome {
    let made = authority::issue_folder(&args.directory, &args.name, args.days, &args.peers);
    let folder = made.map_err(|error| failed(&error, &args.directory))?;
    let (shown, name) = (folder.display(), &args.name);
    print(&format!(
        "{shown}: ca.pem, host.pem, host.key, sluiced.toml and environment, valid for {} days\n\
         To {name}:  scp -pr {shown}/. root@{name}:/etc/sluice/\n\
         On {name}:  sluice up --system --config /etc/sluice/sluiced.toml\n\
         \x20           or, with its unit, systemctl enable --now sluiced\n",
        args.days
    ))?;
    Ok(0)
}

fn key(file: &Path) -> Outcome {
    generate_psk(file).map_err(|error| file_failed(&error))?;
    print(&format!(
        "{}: for psk_file in [daemon] of every host; whoever has it can pass for any of them\n",
        file.display()
    ))?;
    Ok(0)
}

fn failed(error: &AuthorityError, directory: &Path) -> Failure {
    match error {
        AuthorityError::File(SecretError::Read(path, _)) if !path.exists() => Failure::new(
            format!("there is no authority in {}", directory.display()),
            format!("make one with 'sluice ca create {}'", directory.display()),
        ),
        AuthorityError::File(error) => file_failed(error),
        other => Failure::new(without_numbers(&other.to_string()), "see sluice-ca(1)"),
    }
}

/// Most of these say themselves what to do.
fn file_failed(error: &SecretError) -> Failure {
    let hint = match error {
        SecretError::Write(..) => "name a folder that you can write, and that is there",
        _ => "",
    };
    Failure::new(without_numbers(&error.to_string()), hint)
}
