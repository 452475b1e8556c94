//! Verbs programs: those that are installed, those of `apps/verbs`, and how `sluice verbs` starts
//! them.

pub mod cm;
pub mod link;
pub mod rows;

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use crate::apps::apps_dir;
use crate::job::{command, find_program, run};
use crate::lab::find_sluice;
use crate::suite::{Verdict, skip};

/// A program of ours, `apps/verbs/<name>.c`; see the comments at their heads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Own {
    /// A reliable connection with every kind of request, all bytes checked.
    Traffic,
    /// Unreliable connections and datagrams, what comes checked.
    Datagrams,
    /// Sends until the connection fails.
    Stream,
}

impl Own {
    fn name(self) -> &'static str {
        match self {
            Own::Traffic => "traffic",
            Own::Datagrams => "datagrams",
            Own::Stream => "stream",
        }
    }

    /// See [`compile`].
    pub fn compile(self, dir: &Path) -> Verdict<PathBuf> {
        compile(self.name(), dir)
    }
}

/// Compiles `apps/verbs/<name>.c` into the directory, against the installed libibverbs.
///
/// Skips without gcc or the library's headers.
pub fn compile(name: &str, dir: &Path) -> Verdict<PathBuf> {
    const HEADER: &str = "/usr/include/infiniband/verbs.h";
    let Some(gcc) = find_program("gcc").filter(|_| Path::new(HEADER).exists()) else {
        return skip("gcc or libibverbs-dev is not installed; scripts/setup test");
    };
    let binary = dir.join(name);
    let mut gcc = command(gcc);
    gcc.args(["-std=gnu11", "-Wall", "-Wextra", "-Werror", "-g", "-O1"])
        .arg("-o")
        .arg(&binary)
        .arg(apps_dir().join("verbs").join(name).with_extension("c"))
        .arg("-libverbs");
    run(gcc, dir, &format!("gcc-{name}"), Duration::from_secs(60))?.success()?;
    Ok(binary)
}

/// `sluice verbs OPTIONS -- PROGRAM ARGUMENTS`; skips where the program is not installed. A path
/// is taken as it is.
pub fn sluice_verbs(program: &str, arguments: &[&str], options: &[String]) -> Verdict<Command> {
    let path = match program.contains('/') {
        true => PathBuf::from(program),
        false => match find_program(program) {
            Some(path) => path,
            None => return skip(format!("{program} is not installed; scripts/setup test")),
        },
    };
    let mut command = command(find_sluice()?);
    command
        .arg("verbs")
        .args(options)
        .arg("--")
        .arg(path)
        .args(arguments)
        .env_remove("LD_LIBRARY_PATH");
    Ok(command)
}

/// The index of an address in the text of `ibv_devinfo -v`, where GIDs stand as IPv6 addresses.
pub fn gid_index(devinfo: &str, address: std::net::IpAddr) -> Option<String> {
    let wanted = match address {
        std::net::IpAddr::V4(address) => address.to_ipv6_mapped(),
        std::net::IpAddr::V6(address) => address,
    };
    devinfo.lines().find_map(|line| {
        // "GID[  2]:    ::ffff:10.0.0.1, RoCE v2"
        let (index, rest) = line.trim().strip_prefix("GID[")?.split_once("]:")?;
        let (gid, kind) = rest.split_once(',')?;
        let fits = gid.trim().parse() == Ok(wanted) && kind.trim() == "RoCE v2";
        fits.then(|| index.trim().to_owned())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_found_in_the_table_of_a_device() {
        let text = "hca_id:\tsluice0\n\t\t\tGID[  0]:\t\tfe80::1, RoCE v2\n\
                    \t\t\tGID[  1]:\t\t::ffff:10.44.0.1, RoCE v1\n\
                    \t\t\tGID[ 12]:\t\t::ffff:10.44.0.1, RoCE v2\n";
        let find = |address: &str| gid_index(text, address.parse().expect("an address"));
        assert_eq!(find("fe80::1").as_deref(), Some("0"));
        assert_eq!(find("10.44.0.1").as_deref(), Some("12"));
        assert_eq!(find("10.44.0.2"), None);
    }
}
