//! Where the other files of an installation are: the library that is preloaded, the daemon, the verbs
//! libraries.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};

/// The environment variable that names their folder.
pub const LIBDIR_VARIABLE: &str = "SLUICE_LIBDIR";

/// Looks for a file by its name below the folder of the installation. The path is absolute. The
/// error has the folders in which it is not; none where the program's own path is unknown.
pub fn find(name: &str) -> Result<PathBuf, Vec<PathBuf>> {
    let executable = std::env::current_exe().ok();
    let libdir = std::env::var_os(LIBDIR_VARIABLE);
    find_in(name, folders(executable.as_deref(), libdir.as_deref()))
}

/// Whether somebody has named the folder.
pub fn is_folder_named() -> bool {
    std::env::var_os(LIBDIR_VARIABLE).is_some_and(|value| !value.is_empty())
}

/// The folders where a file of this installation may be, in the order in which they count.
///
/// `SLUICE_LIBDIR` alone if it is set: who names a folder does not want the files of another
/// build, found by accident.
fn folders(executable: Option<&Path>, libdir: Option<&OsStr>) -> Vec<PathBuf> {
    if let Some(libdir) = libdir.filter(|value| !value.is_empty()) {
        return vec![PathBuf::from(libdir)];
    }
    let Some(beside) = executable.and_then(Path::parent) else {
        return Vec::new();
    };
    let mut folders = vec![beside.to_owned()];
    // Test binaries live one folder below the programs that they test.
    if beside.ends_with("deps")
        && let Some(above) = beside.parent()
    {
        folders.push(above.to_owned());
    }
    if let Some(prefix) = beside.parent() {
        folders.push(prefix.join("lib/sluice"));
    }
    folders
}

fn find_in(name: &str, folders: Vec<PathBuf>) -> Result<PathBuf, Vec<PathBuf>> {
    let found = folders
        .iter()
        .map(|it| it.join(name))
        .find(|it| it.is_file());
    // The path outlives this process's working directory: in LD_PRELOAD of a program that may
    // change it.
    match found.map(std::path::absolute) {
        Some(Ok(path)) => Ok(path),
        Some(Err(_)) | None => Err(folders),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn looks_beside_itself_then_in_lib() {
        let found = folders(Some(Path::new("/opt/s/bin/sluice")), None);
        assert_eq!(
            found,
            [Path::new("/opt/s/bin"), Path::new("/opt/s/lib/sluice")]
        );
    }

    #[test]
    fn libdir_is_the_only_place_when_set() {
        let found = folders(Some(Path::new("/usr/bin/sluice")), Some(OsStr::new("/x")));
        assert_eq!(found, [Path::new("/x")]);
        let found = folders(Some(Path::new("/usr/bin/sluice")), Some(OsStr::new("")));
        assert_eq!(found[0], Path::new("/usr/bin"));
    }

    #[test]
    fn a_missing_file_says_where_it_was_looked_for() {
        let folders = vec![PathBuf::from("/nonexistent/a")];
        assert_eq!(find_in("x", folders.clone()), Err(folders));
    }
}
