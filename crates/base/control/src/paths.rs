//! Where the control socket lives.

use std::ffi::OsString;
use std::fmt;
use std::fs::{self, DirBuilder, Metadata};
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

use sluice_sys::errno::Errno;
use sluice_sys::reclaim::reclaim;
use sluice_sys::unix::{SOCKET_PATH_BYTES_MAX, effective_uid};

use crate::client::Client;

/// The environment variable that names the socket and overrides everything else.
pub const SOCKET_ENV: &str = "SLUICE_SOCKET";
/// The socket of a system-wide sluiced.
pub const SYSTEM_SOCKET: &str = "/run/sluice/control.sock";

const SOCKET_NAME: &str = "control.sock";

/// Where the socket is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Place {
    /// Its path.
    pub socket: PathBuf,
    /// The runtime directory that would have been used but for the length of its name.
    pub passed_over: Option<PathBuf>,
}

impl Place {
    /// What the user has to know about the choice: everybody who is to meet at the socket must
    /// make the same one.
    pub fn warning(&self) -> Option<String> {
        let directory = self.passed_over.as_ref()?;
        Some(format!(
            "the path of XDG_RUNTIME_DIR ({}) is too long for a socket in it (at most \
             {SOCKET_PATH_BYTES_MAX} bytes with its name); {} is used instead",
            directory.display(),
            self.socket.display()
        ))
    }
}

impl From<PathBuf> for Place {
    fn from(socket: PathBuf) -> Place {
        Place {
            socket,
            passed_over: None,
        }
    }
}

/// Why there is no safe place for the socket.
#[derive(Debug)]
pub enum PathError {
    /// The directory is not this user's own, private directory; the text says in what way.
    Unsafe {
        directory: PathBuf,
        problem: &'static str,
    },
    /// The directory cannot be looked at or made.
    Io {
        directory: PathBuf,
        error: io::Error,
    },
}

impl fmt::Display for PathError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unsafe { directory, problem } => write!(
                f,
                "{} {problem}; remove it or set {SOCKET_ENV} to a path in a directory of your own",
                directory.display()
            ),
            Self::Io { directory, error } => write!(
                f,
                "{} cannot be used: {error}; set {SOCKET_ENV} to a path in a directory of your own",
                directory.display()
            ),
        }
    }
}

impl std::error::Error for PathError {}

/// The control socket for this process: `$SLUICE_SOCKET`, else that of a running system-wide
/// sluiced, else `$XDG_RUNTIME_DIR/sluice/control.sock`, else `/tmp/sluice-<uid>/control.sock`.
/// A runtime directory whose name leaves no room for the socket's is passed over, and the place
/// says so.
///
/// Makes nothing. The directory in `/tmp`, if it is there, must be this user's and private, as
/// everybody can make one of that name. What another user has put in root's place, root moves away.
pub fn control_socket() -> Result<Place, PathError> {
    Surroundings::of_this_process().control_socket()
}

/// Makes the directory of `socket` with mode 0700 unless it exists. One that exists must be this
/// user's (or root's), not a symbolic link, and not writable for others, except that nobody can
/// replace what lies in a sticky one like `/tmp`. Whether it was made.
pub fn prepare_directory(socket: &Path) -> Result<bool, PathError> {
    let directory = directory_of(socket);
    let is_new = fs::symlink_metadata(directory).is_err();
    let built = DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(directory);
    if let Err(error) = built {
        return Err(io_error(directory, error));
    }
    let sticky = fs::metadata(directory).is_ok_and(|meta| meta.permissions().mode() & 0o1000 != 0);
    check_directory(directory, effective_uid(), if sticky { 0 } else { 0o022 })?;
    Ok(is_new)
}

/// The file whose lock a sluiced holds as long as `socket` is its own.
pub fn lock_of(socket: &Path) -> PathBuf {
    let mut path = OsString::from(socket);
    path.push(".lock");
    path.into()
}

/// Whether somebody listens at `socket` and lets this user connect. One that was killed leaves
/// its socket behind. One whose queue is full is there.
fn is_served(socket: &Path) -> bool {
    use std::os::unix::ffi::OsStrExt;
    let connected = Client::connect(socket.as_os_str().as_bytes());
    matches!(connected, Ok(_) | Err(Errno::AGAIN))
}

fn directory_of(socket: &Path) -> &Path {
    match socket.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    }
}

/// What the choice depends on, apart from the process so that tests can vary it.
struct Surroundings {
    socket: Option<OsString>,
    system_socket: PathBuf,
    runtime_directory: Option<OsString>,
    temporary: PathBuf,
    uid: u32,
}

impl Surroundings {
    fn of_this_process() -> Surroundings {
        Surroundings {
            socket: std::env::var_os(SOCKET_ENV),
            system_socket: SYSTEM_SOCKET.into(),
            runtime_directory: std::env::var_os("XDG_RUNTIME_DIR"),
            temporary: "/tmp".into(),
            uid: effective_uid(),
        }
    }

    fn control_socket(&self) -> Result<Place, PathError> {
        if let Some(path) = self.socket.as_ref().filter(|path| !path.is_empty()) {
            return Ok(PathBuf::from(path).into());
        }
        if is_served(&self.system_socket) {
            return Ok(self.system_socket.clone().into());
        }
        let mut passed_over = None;
        if let Some(directory) = &self.runtime_directory {
            let directory = Path::new(directory);
            // After `su` the variable can name the former user's directory.
            if directory.is_absolute() && owned_directory(directory, self.uid) {
                let socket = directory.join("sluice").join(SOCKET_NAME);
                if socket.as_os_str().len() <= SOCKET_PATH_BYTES_MAX {
                    return Ok(socket.into());
                }
                passed_over = Some(directory.into());
            }
        }
        let directory = self.temporary.join(format!("sluice-{}", self.uid));
        if self.uid == 0 {
            // Refused below where it cannot be moved.
            let _ = reclaim(&directory);
        }
        if fs::symlink_metadata(&directory).is_ok() {
            check_directory(&directory, self.uid, 0o077)?;
        }
        Ok(Place {
            socket: directory.join(SOCKET_NAME),
            passed_over,
        })
    }
}

fn owned_directory(directory: &Path, uid: u32) -> bool {
    fs::metadata(directory).is_ok_and(|meta| meta.is_dir() && meta.uid() == uid)
}

fn check_directory(directory: &Path, uid: u32, forbidden: u32) -> Result<(), PathError> {
    let meta = fs::symlink_metadata(directory).map_err(|error| io_error(directory, error))?;
    match problem(&meta, uid, forbidden) {
        None => Ok(()),
        Some(problem) => Err(PathError::Unsafe {
            directory: directory.into(),
            problem,
        }),
    }
}

fn problem(meta: &Metadata, uid: u32, forbidden: u32) -> Option<&'static str> {
    if meta.file_type().is_symlink() {
        Some("is a symbolic link")
    } else if !meta.is_dir() {
        Some("is not a directory")
    } else if meta.uid() != uid && meta.uid() != 0 {
        Some("belongs to another user")
    } else if meta.permissions().mode() & forbidden != 0 {
        Some("is open to other users")
    } else {
        None
    }
}

fn io_error(directory: &Path, error: io::Error) -> PathError {
    PathError::Io {
        directory: directory.into(),
        error,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use sluice_sys::unix;

    /// A directory of its own for each test, removed at the end.
    struct Scratch(PathBuf);

    impl Scratch {
        fn new(name: &str) -> Scratch {
            let path =
                std::env::temp_dir().join(format!("sluice-paths-{name}-{}", std::process::id()));
            // What is left of a process of this number that was killed.
            let _ = fs::remove_dir_all(&path);
            fs::create_dir(&path).unwrap();
            Scratch(path)
        }

        fn surroundings(&self) -> Surroundings {
            Surroundings {
                socket: None,
                system_socket: self.0.join("system.sock"),
                runtime_directory: None,
                temporary: self.0.clone(),
                uid: effective_uid(),
            }
        }

        fn own(&self) -> PathBuf {
            self.0.join(format!("sluice-{}", effective_uid()))
        }
    }

    impl Drop for Scratch {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    fn listen(path: &Path) -> unix::Fd {
        use std::os::unix::ffi::OsStrExt;
        let socket = unix::seqpacket().unwrap();
        unix::bind(socket.raw(), path.as_os_str().as_bytes()).unwrap();
        unix::listen(socket.raw(), 1).unwrap();
        socket
    }

    #[test]
    fn a_daemon_that_does_not_accept_is_there() {
        let scratch = Scratch::new("full");
        let here = scratch.surroundings();
        let _listener = listen(&here.system_socket);
        let path = here.system_socket.to_str().unwrap().as_bytes();
        let mut waiting = Vec::new();
        while let Ok(client) = Client::connect(path) {
            waiting.push(client);
        }
        assert_eq!(here.control_socket().unwrap().socket, here.system_socket);
    }

    #[test]
    fn the_places_have_their_order() {
        let scratch = Scratch::new("order");
        let mut here = scratch.surroundings();
        let fallback = scratch.own().join("control.sock");
        assert_eq!(here.control_socket().unwrap().socket, fallback);
        here.runtime_directory = Some(scratch.0.clone().into());
        let runtime = scratch.0.join("sluice/control.sock");
        assert_eq!(here.control_socket().unwrap().socket, runtime);
        let listener = listen(&here.system_socket);
        assert_eq!(here.control_socket().unwrap().socket, here.system_socket);
        // Killed: the socket stays.
        drop(listener);
        assert!(here.system_socket.exists());
        assert_eq!(here.control_socket().unwrap().socket, runtime);
        here.socket = Some("/elsewhere.sock".into());
        assert_eq!(
            here.control_socket().unwrap().socket,
            Path::new("/elsewhere.sock")
        );
    }

    #[test]
    fn a_runtime_directory_that_is_not_there_is_passed_over() {
        let scratch = Scratch::new("absent");
        let mut here = scratch.surroundings();
        here.runtime_directory = Some(scratch.0.join("absent").into());
        let fallback = scratch.own().join("control.sock");
        assert_eq!(here.control_socket().unwrap().socket, fallback);
    }

    #[test]
    fn a_runtime_directory_of_too_long_a_name_is_passed_over_and_named() {
        let scratch = Scratch::new("long");
        let mut here = scratch.surroundings();
        let name = "sluice/control.sock";
        let room = SOCKET_PATH_BYTES_MAX - scratch.0.as_os_str().len() - name.len() - 2;
        for (bytes, fits) in [(room, true), (room + 1, false)] {
            let directory = scratch.0.join("d".repeat(bytes));
            fs::create_dir(&directory).unwrap();
            here.runtime_directory = Some(directory.clone().into());
            let place = here.control_socket().unwrap();
            if fits {
                assert_eq!(place, directory.join(name).into());
                assert_eq!(place.warning(), None);
            } else {
                assert_eq!(place.socket, scratch.own().join("control.sock"));
                let warning = place.warning().unwrap();
                assert!(warning.contains(directory.to_str().unwrap()), "{warning}");
            }
        }
    }

    #[test]
    fn a_symbolic_link_in_the_shared_directory_is_refused() {
        let scratch = Scratch::new("link");
        let target = scratch.0.join("target");
        fs::create_dir(&target).unwrap();
        std::os::unix::fs::symlink(&target, scratch.own()).unwrap();
        let error = scratch.surroundings().control_socket().unwrap_err();
        assert!(error.to_string().contains("symbolic link"), "{error}");
    }

    #[test]
    fn a_directory_that_another_user_has_made_in_roots_place_is_none() {
        if effective_uid() != 0 {
            println!(
                "SKIP a_directory_that_another_user_has_made_in_roots_place_is_none: not root"
            );
            return;
        }
        let scratch = Scratch::new("squatted");
        fs::create_dir(scratch.own()).unwrap();
        std::os::unix::fs::chown(scratch.own(), Some(4321), None).unwrap();
        let place = scratch.surroundings().control_socket().unwrap();
        assert_eq!(place.socket, scratch.own().join("control.sock"));
        assert!(!scratch.own().exists());
    }

    #[test]
    fn a_directory_open_to_others_is_refused() {
        let scratch = Scratch::new("open");
        fs::create_dir(scratch.own()).unwrap();
        fs::set_permissions(scratch.own(), fs::Permissions::from_mode(0o755)).unwrap();
        let error = scratch.surroundings().control_socket().unwrap_err();
        assert!(error.to_string().contains("open to other users"), "{error}");
    }

    #[test]
    fn a_directory_of_another_user_is_refused() {
        let scratch = Scratch::new("owner");
        let meta = fs::symlink_metadata(&scratch.0).unwrap();
        let stranger = effective_uid() + 1;
        // Directories of root are everybody's to trust, so this needs an owner who is not root.
        let expected = (effective_uid() != 0).then_some("belongs to another user");
        assert_eq!(problem(&meta, stranger, 0), expected);
    }

    #[test]
    fn preparing_makes_a_private_directory() {
        let scratch = Scratch::new("prepare");
        let socket = scratch.0.join("new/control.sock");
        prepare_directory(&socket).unwrap();
        let mode = fs::metadata(scratch.0.join("new"))
            .unwrap()
            .permissions()
            .mode();
        assert_eq!(mode & 0o777, 0o700);
        prepare_directory(&socket).unwrap();
        fs::set_permissions(scratch.0.join("new"), fs::Permissions::from_mode(0o777)).unwrap();
        assert!(prepare_directory(&socket).is_err());
    }
}
