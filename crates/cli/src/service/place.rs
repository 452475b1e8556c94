//! Where a drop-in of ours is, within the root of a system that others may change at any time: each use of a path is one
//! look, which does not lead out of the root ([`super::root`]).

use std::fs::File;
use std::io::{self, Write as _};
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, Mode, OFlags, fstat, mkdirat, renameat, unlinkat};
use rustix::io::Errno;

use super::root::{FOLDER, Root, TEXT, read};
use super::unit::CONFIGURATION;
use super::wrap::MARK;
use crate::error::{Failure, reason};

/// Behind `override.conf`, which 'systemctl edit' makes: what a service runs is what the last one says.
pub const DROP_IN: &str = "zz-sluice.conf";
/// Bytes of a drop-in of ours at most.
const TEXT_BYTES_MAX: u64 = 1 << 20;

/// The drop-in of a unit.
#[derive(Debug)]
pub struct Place {
    root: Root,
    unit: String,
    path: PathBuf,
}

impl Place {
    /// # Errors
    /// The folder leads out of the root.
    pub fn of(root: &Path, unit: &str) -> Result<Place, Failure> {
        let folder = root.join(CONFIGURATION).join(format!("{unit}.d"));
        let path = folder.join(DROP_IN);
        let root = Root::open(root).map_err(|error| cannot("read", root, &error))?;
        let unit = unit.to_owned();
        let place = Place { root, unit, path };
        match place.folder(false) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                Err(place.failed("read", error))
            }
            _ => Ok(place),
        }
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    fn failed(&self, what: &str, error: io::Error) -> Failure {
        if Errno::from_io_error(&error) == Some(Errno::XDEV) {
            let (path, root) = (self.path.display(), self.root.path().display());
            return Failure::new(
                format!("{path} leads out of {root}"),
                "write into that system from inside of it",
            );
        }
        cannot(what, &self.path, &error)
    }

    /// The folder of the drop-in, which is made if that is wanted.
    fn folder(&self, make: bool) -> io::Result<OwnedFd> {
        let mut path = PathBuf::new();
        let mut folder = None;
        let names = Path::new(CONFIGURATION).components();
        let own = format!("{}.d", self.unit);
        for name in names.chain(Path::new(&own).components()) {
            path.push(name);
            folder = Some(match self.root.within(&path, FOLDER) {
                Err(error) if error.kind() == io::ErrorKind::NotFound && make => {
                    let parent = folder.as_ref().unwrap_or(self.root.folder());
                    let name: &Path = name.as_ref();
                    match mkdirat(parent, name, Mode::from_raw_mode(0o755)) {
                        Ok(()) | Err(Errno::EXIST) => {}
                        Err(error) => return Err(error.into()),
                    }
                    self.root.within(&path, FOLDER)?
                }
                other => other?,
            });
        }
        folder.ok_or_else(|| Errno::NOENT.into())
    }

    /// The text of a drop-in of ours; `None` where there is none.
    ///
    /// # Errors
    /// There is one that is not ours.
    pub fn ours(&self) -> Result<Option<String>, Failure> {
        let opened = self.folder(false).and_then(|folder| {
            let flags = TEXT | OFlags::NOFOLLOW;
            Ok(rustix::fs::openat(folder, DROP_IN, flags, Mode::empty())?)
        });
        let text = match opened {
            Ok(file) => match is_regular(&file) {
                true => read(file, TEXT_BYTES_MAX).unwrap_or_default(),
                false => Vec::new(),
            },
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            // A link is not ours.
            Err(error) if Errno::from_io_error(&error) == Some(Errno::LOOP) => Vec::new(),
            Err(error) => return Err(self.failed("read", error)),
        };
        let text = String::from_utf8_lossy(&text).into_owned();
        if !text.starts_with(MARK) {
            return Err(Failure::new(
                format!("{} was not made by 'sluice enable'", self.path.display()),
                "move it away first",
            ));
        }
        Ok(Some(text))
    }

    pub fn exists(&self) -> bool {
        self.folder(false).is_ok_and(|folder| {
            rustix::fs::statat(folder, DROP_IN, AtFlags::SYMLINK_NOFOLLOW).is_ok()
        })
    }

    /// Whole or not at all.
    pub fn write(&self, text: &str) -> Result<(), Failure> {
        let write = || {
            let folder = self.folder(true)?;
            let new = format!(".{DROP_IN}.{}", std::process::id());
            let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | TEXT | OFlags::NOFOLLOW;
            let mode = Mode::from_raw_mode(0o644);
            let mut file = File::from(rustix::fs::openat(&folder, &new, flags, mode)?);
            let written = file
                .write_all(text.as_bytes())
                .and_then(|()| file.sync_all())
                .and_then(|()| Ok(renameat(&folder, &new, &folder, DROP_IN)?));
            written.inspect_err(|_| {
                let _ = unlinkat(&folder, &new, AtFlags::empty());
            })
        };
        write().map_err(|error| self.failed("write", error))
    }

    /// With its folder, if nothing else is there.
    pub fn remove(&self) -> Result<(), Failure> {
        let remove = || {
            let folder = self.folder(false)?;
            unlinkat(&folder, DROP_IN, AtFlags::empty())?;
            let parent = self.root.within(Path::new(CONFIGURATION), FOLDER)?;
            // Others' drop-ins may be beside it.
            let _ = unlinkat(&parent, format!("{}.d", self.unit), AtFlags::REMOVEDIR);
            Ok(())
        };
        remove().map_err(|error| self.failed("remove", error))
    }
}

pub fn cannot(what: &str, path: &Path, error: &io::Error) -> Failure {
    let hint = match error.kind() {
        io::ErrorKind::PermissionDenied => "this takes root",
        _ => "",
    };
    Failure::new(
        format!("cannot {what} {}: {}", path.display(), reason(error)),
        hint,
    )
}

fn is_regular(file: impl AsFd) -> bool {
    fstat(file).is_ok_and(|data| rustix::fs::FileType::from_raw_mode(data.st_mode).is_file())
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::symlink;

    use super::*;

    struct Scene(PathBuf);

    impl Scene {
        fn new(name: &str) -> Scene {
            let name = format!("sluice-place-{}-{name}", std::process::id());
            let folder = std::env::temp_dir().join(name);
            fs::create_dir_all(folder.join("root").join(CONFIGURATION)).unwrap();
            fs::create_dir(folder.join("outside")).unwrap();
            Scene(folder.canonicalize().unwrap())
        }

        fn root(&self) -> PathBuf {
            self.0.join("root")
        }

        fn outside(&self) -> PathBuf {
            self.0.join("outside")
        }

        /// Who lives in the system puts a link out of it in a folder's place.
        fn lead_out(&self, folder: &str) {
            fs::rename(self.root().join(folder), self.root().join("moved")).unwrap();
            symlink(self.outside(), self.root().join(folder)).unwrap();
        }
    }

    impl Drop for Scene {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    fn text() -> String {
        format!("{MARK}\n[Service]\n")
    }

    #[test]
    fn a_link_that_comes_between_the_look_and_the_use_is_not_followed() {
        for folder in ["etc", "etc/systemd", CONFIGURATION] {
            let scene = Scene::new("between");
            let place = Place::of(&scene.root(), "x.service").unwrap();
            scene.lead_out(folder);
            let refused = place.write(&text()).unwrap_err().to_string();
            assert!(refused.contains("leads out of"), "{refused}");
            assert_eq!(fs::read_dir(scene.outside()).unwrap().count(), 0);
        }
    }

    #[test]
    fn what_a_link_leads_to_is_not_removed() {
        let scene = Scene::new("removed");
        let place = Place::of(&scene.root(), "x.service").unwrap();
        place.write(&text()).unwrap();
        assert!(place.exists());
        scene.lead_out("etc");
        let folder = Path::new("systemd/system/x.service.d");
        let outside = scene.outside().join(folder).join(DROP_IN);
        fs::create_dir_all(outside.parent().unwrap()).unwrap();
        fs::write(&outside, text()).unwrap();
        assert!(!place.exists());
        assert!(place.ours().is_err());
        assert!(place.remove().is_err());
        assert!(outside.exists());
    }

    #[test]
    fn links_within_the_root_are_followed() {
        let scene = Scene::new("within");
        let system = scene.root().join(CONFIGURATION);
        fs::rename(&system, scene.root().join("elsewhere")).unwrap();
        symlink("../../elsewhere", &system).unwrap();
        let place = Place::of(&scene.root(), "x.service").unwrap();
        place.write(&text()).unwrap();
        assert_eq!(place.ours().unwrap(), Some(text()));
        let there = scene.root().join("elsewhere/x.service.d");
        assert!(there.join(DROP_IN).is_file());
        place.remove().unwrap();
        assert!(!there.exists());
    }

    #[test]
    fn a_drop_in_that_is_a_link_is_not_ours() {
        let scene = Scene::new("link");
        let place = Place::of(&scene.root(), "x.service").unwrap();
        place.write(&text()).unwrap();
        let path = scene
            .root()
            .join(CONFIGURATION)
            .join("x.service.d")
            .join(DROP_IN);
        fs::rename(&path, scene.outside().join("text")).unwrap();
        symlink(scene.outside().join("text"), &path).unwrap();
        assert!(
            place
                .ours()
                .unwrap_err()
                .to_string()
                .contains("was not made by")
        );
    }
}
