//! Cgroups that the file names.

use std::path::Path;

/// Why it cannot be used.
pub fn problem(path: &Path) -> Option<String> {
    is_cgroup(path).err().map(|why| {
        format!(
            "the cgroup {} cannot be used ({why}): name a directory of the hierarchy of version 2, \
             /sys/fs/cgroup as a rule",
            path.display()
        )
    })
}

/// Every directory of the hierarchy of version 2 has this file (cgroups(7)).
fn is_cgroup(path: &Path) -> Result<(), String> {
    match path.join("cgroup.controllers").try_exists() {
        Ok(true) => Ok(()),
        Ok(false) if path.is_dir() => Err("it is no cgroup of version 2".to_owned()),
        Ok(false) => Err("there is no such directory".to_owned()),
        Err(error) => Err(error.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_directory_that_is_no_cgroup_is_named() {
        let wrong = problem(Path::new("/proc")).unwrap();
        assert!(wrong.contains("/proc") && wrong.contains("version 2"));
        let nothing = problem(Path::new("/nothing/here")).unwrap();
        assert!(nothing.contains("no such"));
    }
}
