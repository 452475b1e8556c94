//! Verbs programs: those that are installed, those of `apps/verbs`, and how `sluice verbs` starts
//! them.

pub mod cm;
pub mod link;
pub mod rows;
pub mod traces;

use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus};
use std::time::Duration;

use crate::apps::apps_dir;
use crate::job::{Job, command, find_program, run, wait_until};
use crate::lab::find_sluice;
use crate::suite::{Verdict, ensure, skip};

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
    compile_with(name, dir, &[])
}

/// The same with more arguments for gcc.
pub fn compile_with(name: &str, dir: &Path, more: &[&str]) -> Verdict<PathBuf> {
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
        .args(more)
        .arg("-libverbs");
    run(gcc, dir, &format!("gcc-{name}"), Duration::from_secs(60))?.success()?;
    Ok(binary)
}

/// What programs of perftest are given everywhere. For their figures they measure the processor's clock against the
/// time of day, which fails when the processor is taken from them at the wrong moment; without this option they end
/// with an error then. Their figures are the benchmark's business.
pub fn without_clock(program: &Path) -> &'static [&'static str] {
    let name = program.file_name().unwrap_or_default().to_string_lossy();
    match name.starts_with("ib_") {
        true => &["-F"],
        false => &[],
    }
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
        .arg(&path)
        .args(without_clock(&path))
        .args(arguments)
        .env_remove("LD_LIBRARY_PATH");
    Ok(command)
}

/// For pairs over a window, of which one may stand still on a busy machine: it is not dead for as long.
pub const PATIENT: (&str, &str) = ("SLUICE_VERBS_SILENCE_S", "10");

/// Waits for the good ends of a server and its client, or for a bad one, after which the other may wait for ever.
pub fn finish_both([mut server, mut client]: [Job; 2], limit: Duration) -> Verdict {
    let both = wait_until(limit, || {
        let ended = [client.poll()?, server.poll()?];
        let is_bad = |end: &Option<ExitStatus>| end.is_some_and(|status| !status.success());
        Ok(ended.iter().any(is_bad) || ended.iter().all(Option::is_some))
    });
    let picture = format!("{}\n{}", client.describe(), server.describe());
    ensure(both?, || format!("did not end within {limit:?}\n{picture}"))?;
    for job in [&mut client, &mut server] {
        let is_good = job.poll()?.is_some_and(|status| status.success());
        ensure(is_good, || picture.clone())?;
    }
    Ok(())
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
