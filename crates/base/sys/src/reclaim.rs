//! Names in `/tmp` that are root's.

use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use crate::{process, unix};

/// How often another one is put there while the one before is moved away.
const ATTEMPTS_MAX: usize = 16;

/// Moves what another user has put at `path` out of the way, if this process is root's: everybody can make a file, a
/// folder or a link of a name that root will need, before root does. It keeps what is in it, beside `path`. Nothing is
/// done for other users, whom a sticky folder does not let do that, or where there is nothing, or root's.
///
/// # Errors
/// Root may not move it, as in a user namespace.
pub fn reclaim(path: &Path) -> io::Result<()> {
    if unix::effective_uid() != 0 {
        return Ok(());
    }
    for _ in 0..ATTEMPTS_MAX {
        let owner = match fs::symlink_metadata(path) {
            Ok(data) => data.uid(),
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
            Err(error) => return Err(error),
        };
        if owner == 0 {
            return Ok(());
        }
        let [random, _] = process::random()?;
        let mut aside = path.as_os_str().to_owned();
        aside.push(format!(".of-uid-{owner}-{random:016x}"));
        match fs::rename(path, &aside) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
    }
    Err(io::Error::other("another user makes it anew all the time"))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{chown, lchown, symlink};

    use super::*;

    #[test]
    fn what_another_user_has_put_in_roots_place_is_moved_away() {
        if unix::effective_uid() != 0 {
            println!("SKIP what_another_user_has_put_in_roots_place_is_moved_away: not root");
            return;
        }
        let name = format!("sluice-reclaim-{}", std::process::id());
        let folder = std::env::temp_dir().join(name);
        fs::create_dir(&folder).unwrap();
        let path = folder.join("sluice-0");
        reclaim(&path).unwrap();
        let makes: [fn(&Path); 3] = [
            |path| {
                fs::create_dir(path).unwrap();
                fs::write(path.join("kept"), b"").unwrap();
                chown(path, Some(4321), None).unwrap();
            },
            |path| {
                fs::write(path, b"").unwrap();
                chown(path, Some(4321), None).unwrap();
            },
            |path| {
                symlink("/nowhere", path).unwrap();
                lchown(path, Some(4321), None).unwrap();
            },
        ];
        for (number, make) in makes.into_iter().enumerate() {
            make(&path);
            reclaim(&path).unwrap();
            assert!(fs::symlink_metadata(&path).is_err());
            let aside = fs::read_dir(&folder).unwrap().flatten();
            assert_eq!(aside.count(), number + 1);
        }
        // Root's own stays.
        fs::create_dir(&path).unwrap();
        reclaim(&path).unwrap();
        assert!(path.is_dir());
        fs::remove_dir_all(&folder).unwrap();
    }
}
