//! The programs that are measured: one `sluice`, and the files that belong to it.

use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use sluice_control::files::{self, DAEMON};

use crate::error::{BenchError, Result};

/// Names the `sluice` to measure. `sluice bench` sets it to itself; no program that is measured
/// gets to see it.
pub const SLUICE_VARIABLE: &str = "SLUICE_BIN";

const SLUICE: &str = "sluice";

/// The path of `sluice`: the one that started this program, or the one of the same installation.
pub fn sluice() -> Result<&'static Path> {
    static FOUND: OnceLock<std::result::Result<PathBuf, String>> = OnceLock::new();
    let found = FOUND.get_or_init(|| {
        let named = std::env::var_os(SLUICE_VARIABLE).filter(|value| !value.is_empty());
        match (named, std::env::current_exe()) {
            (Some(named), _) => std::path::absolute(named)
                .map_err(|error| format!("cannot find the sluice program: {error}")),
            (None, Ok(own)) => beside(&own).ok_or_else(|| {
                format!(
                    "there is no sluice beside {}; name it in {SLUICE_VARIABLE}",
                    own.display()
                )
            }),
            (None, Err(error)) => Err(format!("cannot find the sluice program: {error}")),
        }
    });
    match found {
        Ok(path) => Ok(path),
        Err(text) => Err(BenchError::Failed(text.clone())),
    }
}

/// `sluice` in the folder of a program, or in `bin` where that folder is `lib/sluice`.
fn beside(program: &Path) -> Option<PathBuf> {
    let folder = program.parent()?;
    let mut candidates = vec![folder.join(SLUICE)];
    if folder.ends_with("lib/sluice") {
        let prefix = folder.ancestors().nth(2);
        candidates.extend(prefix.map(|prefix| prefix.join("bin").join(SLUICE)));
    }
    candidates.into_iter().find(|candidate| candidate.is_file())
}

/// A file in the folder of `sluice`.
pub fn beside_sluice(name: &str) -> Option<PathBuf> {
    Some(sluice().ok()?.parent()?.join(name))
}

/// The path of the daemon that `sluice` would start. Fails where it, or the library that programs
/// are to have, is not there.
pub fn sluiced() -> Result<PathBuf> {
    let sluice = Some(sluice()?);
    let unusable = |error: files::Unusable| BenchError::Failed(error.to_string());
    let daemon = files::find_of(sluice, DAEMON).map_err(unusable)?;
    files::library_of(sluice).map_err(unusable)?;
    Ok(daemon)
}

/// The version of `sluice` in its own words, behind its name.
pub fn version() -> Result<String> {
    let sluice = sluice()?;
    let output = std::process::Command::new(sluice).arg("-V").output();
    let output = output.map_err(|e| BenchError::io(format!("run {}", sluice.display()), &e))?;
    let said = String::from_utf8_lossy(&output.stdout);
    let version = said.trim().strip_prefix("sluice ");
    version.map(str::to_owned).ok_or_else(|| {
        BenchError::Failed(format!("{} does not tell its version", sluice.display()))
    })
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;
    use crate::signals::Scratch;

    #[test]
    fn sluice_is_beside_or_in_bin() {
        let scratch = Scratch::create().expect("a scratch folder");
        let prefix = scratch.path();
        let (bin, lib) = (prefix.join("bin"), prefix.join("lib/sluice"));
        for folder in [&bin, &lib] {
            fs::create_dir_all(folder).expect("a folder");
        }
        let found = || beside(&lib.join("sluice-bench"));
        assert_eq!(found(), None);
        fs::write(bin.join(SLUICE), "").expect("a file");
        assert_eq!(found(), Some(bin.join(SLUICE)));
        assert_eq!(beside(&bin.join("sluice-bench")), found());
        fs::write(lib.join(SLUICE), "").expect("a file");
        assert_eq!(found(), Some(lib.join(SLUICE)));
    }
}
