//! Directories that go with their last user.
//!
//! Byte 0 of the file `numbers`, which no block has, is locked by everybody who uses the
//! directory, together with the others. Who leaves lets go of it and tries to have it alone: of
//! all that leave at once the last to let go gets it, unless somebody has come. Whoever has it
//! alone removes the directory. Who comes in the meantime waits, and finds that the file that it
//! has locked is not the one in the directory any more, or not a directory at all, and makes both
//! anew.
//!
//! Killed processes leave a directory that nobody has locked. The next one to use it has it as it
//! is; if there is none, as the namespace is gone, anybody who comes to one beside it removes it.

use core::sync::atomic::{AtomicBool, Ordering};
use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::Path;
use std::time::{Duration, Instant};

use sluice_sys::errno::Errno;
use sluice_sys::{process, unix};

use crate::{NUMBERS, Rendezvous, block_of_socket, entries, is_group, local, open_numbers};

/// The byte of those who are here.
pub(crate) const PRESENT: u64 = 0;
/// How long who comes waits for who removes: some calls of the kernel, unless it is stopped.
const PATIENCE: Duration = Duration::from_secs(5);
/// How often it looks.
const PAUSE: Duration = Duration::from_micros(200);

/// This process is here.
#[derive(Debug)]
pub struct Presence {
    pid: u32,
    file: Identity,
    left: AtomicBool,
}

/// Which file it is: device and number.
type Identity = (u64, u64);

impl Presence {
    /// Whether it was.
    pub fn has_left(&self) -> bool {
        self.left.load(Ordering::Acquire)
    }
}

impl Rendezvous {
    /// Opens a directory that goes with its last user, or makes it. Directories beside it whose
    /// names begin with `family`, and whose users were killed, are removed. `TimedOut`: somebody
    /// has been about to remove it for seconds.
    pub fn open_passing(path: &Path, family: &str) -> io::Result<Self> {
        let start = Instant::now();
        loop {
            // Before it looks: one that stood still itself looks once more.
            let is_last = start.elapsed() > PATIENCE;
            if let Some((file, identity)) = enter(path)? {
                let here = Self {
                    path: path.to_path_buf(),
                    numbers: local(file),
                    passing: Some(Presence {
                        pid: std::process::id(),
                        file: identity,
                        left: AtomicBool::new(false),
                    }),
                };
                sweep_family(path, family);
                return Ok(here);
            }
            if is_last {
                return Err(io::Error::new(
                    io::ErrorKind::TimedOut,
                    format!(
                        "{} is being removed by a process that does not go on; if nobody uses it, \
                         remove it",
                        path.display()
                    ),
                ));
            }
            std::thread::sleep(PAUSE);
        }
    }

    /// This process uses the directory no more, and removes it if nobody else does. Nothing can
    /// be claimed from now on. To be called when no thread is about to.
    pub fn leave(&self) {
        if let Some(file) = self.let_go() {
            remove_if_deserted(&self.path, self.numbers.raw(), file);
        }
    }

    /// Which file it has let go of; None: it has none, or has done so before.
    fn let_go(&self) -> Option<Identity> {
        let presence = self.passing.as_ref()?;
        // A child of fork does not have the file.
        if presence.pid != std::process::id() || presence.left.swap(true, Ordering::AcqRel) {
            return None;
        }
        process::lock_byte(self.numbers.raw(), PRESENT, false).ok()?;
        Some(presence.file)
    }
}

impl Drop for Rendezvous {
    fn drop(&mut self) {
        self.leave();
    }
}

/// Comes to a directory. None: somebody is removing it, try again.
fn enter(path: &Path) -> io::Result<Option<(File, Identity)>> {
    let file = match open_numbers(path) {
        Ok(file) => file,
        // Removed between two steps; not so if there is no place for it at all.
        Err(error)
            if error.kind() == io::ErrorKind::NotFound
                && path.parent().is_some_and(Path::is_dir) =>
        {
            return Ok(None);
        }
        Err(error) => return Err(error),
    };
    stay(path, file)
}

/// Locks what was opened, if it is the one in the directory still.
fn stay(path: &Path, file: File) -> io::Result<Option<(File, Identity)>> {
    match process::share_byte(file.as_raw_fd(), PRESENT) {
        Ok(()) => {}
        Err(Errno::AGAIN) => return Ok(None),
        Err(error) => return Err(io::Error::from_raw_os_error(error.0)),
    }
    let identity = identity(&file.metadata()?);
    Ok(is_in_place(path, identity).then_some((file, identity)))
}

fn identity(metadata: &fs::Metadata) -> Identity {
    (metadata.dev(), metadata.ino())
}

/// Whether an open file is the one in the directory still.
fn is_in_place(path: &Path, opened: Identity) -> bool {
    fs::symlink_metadata(path.join(NUMBERS)).is_ok_and(|there| identity(&there) == opened)
}

/// Removes a directory that nobody is in. `numbers`: its file, as it was opened, of whose byte the
/// caller has no lock.
fn remove_if_deserted(path: &Path, numbers: i32, opened: Identity) {
    if process::lock_byte(numbers, PRESENT, true).is_err() {
        return;
    }
    if is_in_place(path, opened) {
        for name in entries(path) {
            let place = path.join(&name);
            if is_group(&name) {
                let _ = fs::remove_dir_all(place);
            } else if block_of_socket(&name).is_some() {
                let _ = fs::remove_file(place);
            }
        }
        // Who comes from now on makes another one.
        let _ = fs::remove_file(path.join(NUMBERS));
        // Fails if somebody has.
        let _ = fs::remove_dir(path);
    }
    let _ = process::lock_byte(numbers, PRESENT, false);
}

/// Removes what killed processes have left beside `own`.
fn sweep_family(own: &Path, family: &str) {
    let Some(parent) = own.parent() else {
        return;
    };
    for name in entries(parent) {
        let path = parent.join(&name);
        if !name.starts_with(family) || path == own {
            continue;
        }
        let Ok(meta) = fs::symlink_metadata(&path) else {
            continue;
        };
        if !meta.is_dir() || meta.uid() != unix::effective_uid() {
            continue;
        }
        let opened = OpenOptions::new()
            .read(true)
            .write(true)
            .custom_flags(libc::O_NOFOLLOW | libc::O_CLOEXEC)
            .open(path.join(NUMBERS));
        match opened {
            Ok(file) => {
                let Ok(metadata) = file.metadata() else {
                    continue;
                };
                let numbers = local(file);
                remove_if_deserted(&path, numbers.raw(), identity(&metadata));
            }
            // Somebody has only begun, or was killed before the last step. It begins again if it
            // is there.
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                let _ = fs::remove_dir(&path);
            }
            Err(_) => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tests::directory;

    #[test]
    fn the_last_to_leave_removes_it() {
        let parent = directory("last");
        fs::create_dir(&parent).unwrap();
        let path = parent.join("net-1");
        let open = || Rendezvous::open_passing(&path, "net-").unwrap();
        let (one, two) = (open(), open());
        let block = one.claim(&[]).unwrap();
        one.release(&block);
        drop(one);
        assert!(path.exists(), "somebody is there");
        let block = two.claim(&[]).unwrap();
        assert!(two.connect(block.number).is_ok());
        // As at the end of a process that has not given its block back.
        two.leave();
        assert!(!path.exists());
        assert_eq!(two.claim(&[]).unwrap_err(), Errno(libc::ESHUTDOWN));
        // Whoever comes later is not disturbed by one that has left.
        let three = open();
        two.leave();
        drop(two);
        assert!(path.exists());
        let block = three.claim(&[]).unwrap();
        assert!(three.connect(block.number).is_ok());
        drop(three);
        assert!(!path.exists());
        fs::remove_dir(&parent).unwrap();
    }

    #[test]
    fn of_two_that_leave_at_once_one_removes_it() {
        let parent = directory("both");
        fs::create_dir(&parent).unwrap();
        let path = parent.join("net-1");
        let both = [1, 2].map(|_| Rendezvous::open_passing(&path, "net-").unwrap());
        let files = both.each_ref().map(Rendezvous::let_go);
        for (one, file) in both.iter().zip(files) {
            remove_if_deserted(&path, one.numbers.raw(), file.unwrap());
        }
        assert!(!path.exists());
        fs::remove_dir(&parent).unwrap();
    }

    #[test]
    fn who_comes_waits_for_who_removes() {
        let parent = directory("waits");
        fs::create_dir(&parent).unwrap();
        let path = parent.join("net-1");
        let removing = open_numbers(&path).unwrap();
        process::lock_byte(removing.as_raw_fd(), PRESENT, true).unwrap();
        assert!(enter(&path).unwrap().is_none());
        let here = std::thread::scope(|scope| {
            let comes = scope.spawn(|| Rendezvous::open_passing(&path, "net-").unwrap());
            std::thread::sleep(20 * PAUSE);
            assert!(
                !comes.is_finished(),
                "it is in a directory that is being removed"
            );
            fs::remove_file(path.join(NUMBERS)).unwrap();
            comes.join().unwrap()
        });
        assert!(is_in_place(&path, here.passing.as_ref().unwrap().file));
        drop(here);
        assert!(!path.exists());
        fs::remove_dir(&parent).unwrap();
    }

    #[test]
    fn who_opened_the_file_of_a_removed_directory_makes_another() {
        let parent = directory("stale");
        fs::create_dir(&parent).unwrap();
        let path = parent.join("net-1");
        let first = Rendezvous::open_passing(&path, "net-").unwrap();
        // Comes, and has not locked it yet.
        let stale = open_numbers(&path).unwrap();
        drop(first);
        assert!(!path.exists());
        assert!(stay(&path, stale.try_clone().unwrap()).unwrap().is_none());
        let of_stale = identity(&stale.metadata().unwrap());
        assert!(!is_in_place(&path, of_stale));
        let second = Rendezvous::open_passing(&path, "net-").unwrap();
        assert!(stay(&path, stale).unwrap().is_none());
        assert!(!is_in_place(&path, of_stale));
        assert!(is_in_place(&path, second.passing.as_ref().unwrap().file));
        drop(second);
        fs::remove_dir(&parent).unwrap();
    }

    #[test]
    fn what_others_left_beside_it_goes_and_what_they_use_stays() {
        let parent = directory("family");
        fs::create_dir(&parent).unwrap();
        let place = |name: &str| parent.join(name);
        let alive = Rendezvous::open_passing(&place("net-1"), "net-").unwrap();
        // As killed processes leave it: nobody has locked anything.
        let dead = place("net-2");
        fs::create_dir_all(dead.join("group-00")).unwrap();
        fs::write(dead.join("group-00").join("7"), b"").unwrap();
        fs::write(dead.join("b7.sock"), b"").unwrap();
        fs::write(dead.join(NUMBERS), b"").unwrap();
        // Killed in the last step.
        fs::create_dir(place("net-3")).unwrap();
        // Not ours to judge.
        fs::create_dir(place("net-4")).unwrap();
        fs::write(place("net-4").join("letter"), b"").unwrap();
        fs::create_dir(place("other-5")).unwrap();
        fs::write(place("other-5").join(NUMBERS), b"").unwrap();
        std::os::unix::fs::symlink(place("other-5"), place("net-6")).unwrap();
        let own = Rendezvous::open_passing(&place("net-7"), "net-").unwrap();
        let mut left: Vec<String> = entries(&parent).collect();
        left.sort();
        assert_eq!(left, ["net-1", "net-4", "net-6", "net-7", "other-5"]);
        assert!(place("other-5").join(NUMBERS).exists());
        drop((alive, own));
        fs::remove_dir_all(&parent).unwrap();
    }

    #[test]
    fn there_is_no_waiting_for_a_place_that_is_not_there() {
        let parent = directory("nowhere");
        let error = Rendezvous::open_passing(&parent.join("net-1"), "net-").unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::NotFound);
    }
}
