//! `--trace`: the file is made before the program starts, so that what is wrong with it is said
//! while nothing else has happened.

use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};

use crate::error::{Failure, reason};

/// Empties the file, and says where it is, whatever directory the program goes to.
pub fn prepare(file: &Path) -> Result<PathBuf, Failure> {
    let path = std::path::absolute(file).map_err(|error| cannot_write(file, &error))?;
    let made = File::create(&path).map_err(|error| cannot_write(file, &error))?;
    // The library looks at the length and the lock of the file; a pipe has neither.
    let kind = made
        .metadata()
        .map_err(|error| cannot_write(file, &error))?;
    if !kind.is_file() {
        return Err(Failure::new(
            format!("cannot trace to {}: it is not a file", file.display()),
            "name a file, and read it while it is written with tail -c +0 -f",
        ));
    }
    Ok(path)
}

fn cannot_write(file: &Path, error: &io::Error) -> Failure {
    Failure::new(
        format!("cannot write {}: {}", file.display(), reason(error)),
        "name a file in a folder that you can write",
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_in_the_file_is_gone() {
        let folder = std::env::temp_dir().join(format!("sluice-trace-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let path = folder.join("x.pcapng");
        std::fs::write(&path, b"old").unwrap();
        assert_eq!(prepare(&path).unwrap(), path);
        assert_eq!(std::fs::read(&path).unwrap(), b"");
        std::fs::remove_dir_all(&folder).unwrap();
    }

    #[test]
    fn what_cannot_be_a_trace_is_refused_with_its_name() {
        for path in ["/nowhere/x.pcapng", "/dev/null", "/tmp"] {
            let failure = prepare(Path::new(path)).unwrap_err().to_string();
            assert!(failure.contains(path), "{failure}");
        }
    }
}
