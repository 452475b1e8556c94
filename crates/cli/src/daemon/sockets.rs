//! Where the daemons of all users are, and whether each place belongs to whom it should.

use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// The control socket of a daemon that serves all users.
pub const SYSTEM_SOCKET: &str = "/run/sluice/control.sock";
const SOCKET_NAME: &str = "control.sock";
/// Daemons that are asked at most; anybody can make directories in /tmp.
const TARGETS_MAX: usize = 1024;

/// A control socket and whose it has to be.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Target {
    pub socket: PathBuf,
    /// The user that the path names; only a daemon of that user may be behind it.
    pub uid: Option<u32>,
}

/// Every place on this machine where a daemon's socket exists now, `own` (this user's) first.
pub fn everywhere(own: PathBuf) -> Vec<Target> {
    everywhere_below(Path::new("/"), own)
}

fn everywhere_below(root: &Path, own: PathBuf) -> Vec<Target> {
    let mut targets = vec![Target {
        socket: own,
        uid: None,
    }];
    let system = Target {
        socket: root.join(SYSTEM_SOCKET.trim_start_matches('/')),
        uid: Some(0),
    };
    let per_session = user_folders(&root.join("run/user"), "", "sluice");
    let private = user_folders(&root.join("tmp"), "sluice-", "");
    for target in [system].into_iter().chain(per_session).chain(private) {
        let known = targets.iter().any(|other| other.socket == target.socket);
        if !known && target.socket.symlink_metadata().is_ok() && targets.len() < TARGETS_MAX {
            targets.push(target);
        }
    }
    targets
}

/// Sockets in `FOLDER/<prefix>UID/<below>/`, by user.
fn user_folders(folder: &Path, prefix: &str, below: &str) -> Vec<Target> {
    // A folder that does not exist or may not be listed holds nothing for us.
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    let mut targets: Vec<Target> = entries
        .filter_map(|entry| {
            let name = entry.file_name();
            let number = name.as_bytes().strip_prefix(prefix.as_bytes())?;
            let uid = std::str::from_utf8(number).ok()?.parse().ok()?;
            Some(Target {
                socket: entry.path().join(below).join(SOCKET_NAME),
                uid: Some(uid),
            })
        })
        .collect();
    targets.sort_by_key(|target| target.uid);
    targets
}

impl Target {
    /// Checks that the socket's directory is a real one of the right user, so that nobody
    /// answers in another user's name. Returns what is wrong.
    pub fn check_owner(&self) -> Result<(), String> {
        let Some(uid) = self.uid else { return Ok(()) };
        let Some(folder) = self.socket.parent() else {
            return Err("the socket has no directory".to_owned());
        };
        match folder.symlink_metadata() {
            Ok(metadata) if !metadata.is_dir() => Err("its directory is none".to_owned()),
            Ok(metadata) if metadata.uid() != uid => Err(format!(
                "its directory belongs to uid {}, not {uid}; it was not asked",
                metadata.uid()
            )),
            Ok(_) => Ok(()),
            Err(error) => Err(crate::error::reason(&error)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn finds_the_sockets_of_all_users_and_knows_whose_they_must_be() {
        let root = std::env::temp_dir().join(format!("sluice-sockets-{}", std::process::id()));
        let make = |path: &str| {
            let path = root.join(path);
            fs::create_dir_all(&path).unwrap();
            fs::write(path.join(SOCKET_NAME), "").unwrap();
        };
        make("run/sluice");
        make("run/user/1000/sluice");
        make("tmp/sluice-1001");
        make("tmp/sluice-stats-x");
        fs::create_dir_all(root.join("tmp/sluice-1002")).unwrap();
        let own = root.join("run/user/1000/sluice").join(SOCKET_NAME);
        let found = everywhere_below(&root, own);
        let uids: Vec<Option<u32>> = found.iter().map(|target| target.uid).collect();
        assert_eq!(uids, [None, Some(0), Some(1001)]);

        let uid = rustix::process::getuid().as_raw();
        let mut target = found[2].clone();
        target.uid = Some(uid);
        assert_eq!(target.check_owner(), Ok(()));
        target.uid = Some(uid.wrapping_add(1));
        assert!(target.check_owner().unwrap_err().contains("belongs to uid"));
        let link = root.join("tmp/link");
        std::os::unix::fs::symlink(root.join("tmp/sluice-1001"), &link).unwrap();
        target.socket = link.join(SOCKET_NAME);
        assert!(target.check_owner().is_err());
        fs::remove_dir_all(root).unwrap();
    }
}
