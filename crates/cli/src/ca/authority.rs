//! An authority, and the folders of hosts.

use std::fs::DirBuilder;
use std::os::unix::fs::DirBuilderExt;
use std::path::Path;

use sluice_peering::SecretError;
use sluice_peering::authority::{self, AuthorityError};

use super::file_failed;
use crate::args::CaHostArgs;
use crate::error::{Failure, Outcome, reason, without_numbers};
use crate::terminal::print;

pub fn create(directory: &Path) -> Outcome {
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

pub fn host(args: &CaHostArgs) -> Outcome {
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
