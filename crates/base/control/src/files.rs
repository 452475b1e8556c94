//! Where the other files of an installation are: the library that is preloaded, the daemon, the verbs
//! libraries, the benchmark.

use std::ffi::OsStr;
use std::fmt;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

/// The environment variable that names their folder.
pub const LIBDIR_VARIABLE: &str = "SLUICE_LIBDIR";
/// The file name of the library that is put before a program's own libraries.
pub const LIBRARY: &str = "libsluice_preload.so";
/// The file name of the daemon.
pub const DAEMON: &str = "sluiced";
/// The exit status of a daemon that cannot start as another one serves its socket: `EX_TEMPFAIL` of sysexits.h(3head).
pub const DAEMON_EXIT_TAKEN: u8 = 75;
/// The file name of the program that becomes a static one, with the library in its process.
pub const STATIC: &str = "sluice-static";

/// Why a file of the installation cannot be used.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Unusable {
    /// It is in none of the folders. There are none where the program's own path is unknown.
    Missing {
        name: String,
        looked: Vec<PathBuf>,
        /// Whether somebody has named the folder.
        is_folder_named: bool,
    },
    /// A library whose path ld.so(8) would split: `LD_PRELOAD` knows no quoting.
    NotPreloadable(PathBuf),
}

impl Unusable {
    /// What is wrong, without a full stop.
    pub fn what(&self) -> String {
        match self {
            Self::Missing { name, looked, .. } => {
                let looked: Vec<String> = looked.iter().map(|f| f.display().to_string()).collect();
                let looked = if looked.is_empty() {
                    "nowhere, the path of the sluice program is unknown".to_owned()
                } else {
                    looked.join(", ")
                };
                format!("cannot find {name} (looked in {looked})")
            }
            Self::NotPreloadable(path) => format!(
                "the dynamic linker cannot preload {}, whose path has a space or a colon",
                path.display()
            ),
        }
    }

    /// What to do about it, without a full stop.
    pub fn hint(&self) -> String {
        match self {
            Self::Missing {
                is_folder_named: true,
                ..
            } => format!("point {LIBDIR_VARIABLE} at the folder that holds it, or unset it"),
            Self::Missing { looked, .. } if looked.is_empty() => {
                format!("mount /proc, or set {LIBDIR_VARIABLE} to the folder that holds it")
            }
            Self::Missing { .. } => format!(
                "build all of Sluice with 'cargo build --release' ('cargo install' brings one \
                 program alone) and set {LIBDIR_VARIABLE} to its target/release, or install a package"
            ),
            Self::NotPreloadable(_) => format!(
                "copy or link the library to another folder and name that in {LIBDIR_VARIABLE}"
            ),
        }
    }
}

impl fmt::Display for Unusable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}; {}", self.what(), self.hint())
    }
}

impl std::error::Error for Unusable {}

/// Looks for a file by its name below the folder of this program's installation. The path is
/// absolute.
pub fn find(name: &str) -> Result<PathBuf, Unusable> {
    find_of(std::env::current_exe().ok().as_deref(), name)
}

/// The same for the installation that another program belongs to, as that program would find it.
pub fn find_of(executable: Option<&Path>, name: &str) -> Result<PathBuf, Unusable> {
    let libdir = std::env::var_os(LIBDIR_VARIABLE).filter(|value| !value.is_empty());
    find_in(name, folders(executable, libdir.as_deref())).map_err(|looked| Unusable::Missing {
        name: name.to_owned(),
        looked,
        is_folder_named: libdir.is_some(),
    })
}

/// The path of the library that is preloaded, fit for `LD_PRELOAD`, in the installation that the
/// program belongs to.
pub fn library_of(executable: Option<&Path>) -> Result<PathBuf, Unusable> {
    preloadable(find_of(executable, LIBRARY)?)
}

/// ld.so(8) splits `LD_PRELOAD` at spaces and colons and knows no quoting.
fn preloadable(path: PathBuf) -> Result<PathBuf, Unusable> {
    let splits = |byte: &u8| *byte == b':' || byte.is_ascii_whitespace();
    if path.as_os_str().as_bytes().iter().any(splits) {
        return Err(Unusable::NotPreloadable(path));
    }
    Ok(path)
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
    #[test]
    fn a_missing_file_is_reported_with_what_to_do() {
        let missing = |is_folder_named| Unusable::Missing {
            name: LIBRARY.to_owned(),
            looked: ["/nonexistent/a", "/nonexistent/b"]
                .map(PathBuf::from)
                .into(),
            is_folder_named,
        };
        let message = missing(false).to_string();
        assert!(
            message.contains("/nonexistent/a, /nonexistent/b"),
            "{message}"
        );
        assert!(message.contains("cargo build --release"), "{message}");
        assert!(missing(true).hint().contains("unset it"));
    }

    #[test]
    fn paths_that_the_linker_would_split_are_refused() {
        let preloadable = |path: &str| preloadable(PathBuf::from(path));
        assert!(preloadable("/a b/l.so").is_err());
        assert!(preloadable("/a:b/l.so").is_err());
        assert!(preloadable("/ab/l.so").is_ok());
    }
}
