//! Which verbs processes there are, and what they say of themselves ([`crate::Reporter`]).
//!
//! Whoever looks may be root and what he looks at another user's, who can put anything there:
//! links, pipes, sockets that never answer, answers of any kind. So nothing is followed, every
//! socket is looked at before it is connected to and belongs to the directory's owner, as does the
//! process behind it, and there is one time limit for all. Nothing is changed: what killed
//! processes have left is counted here and swept up by the next process that claims numbers.

#![allow(unsafe_code)]

use std::collections::BTreeSet;
use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::fd::{AsRawFd, RawFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use sluice_sys::errno::Errno;
use sluice_sys::raw::{check, int, syscall3};
use sluice_sys::{process, unix};

use crate::passing::PRESENT;
use crate::report::{ANSWER_BYTES_MAX, report_of_socket};
use crate::{FAMILY, NUMBERS, SWEEP_MAX, block_of_socket, own_parent};

/// Processes that are asked at a time: a descriptor each.
const AT_ONCE: usize = 200;
/// Directories that are looked at; anybody can make some in /tmp.
const PLACES_MAX: usize = 1024;
/// How long the processes of one place have, so that those of one user do not use up the time of
/// the others.
const PLACE_PATIENCE: Duration = Duration::from_secs(2);

/// Where processes of a user may meet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Place {
    pub path: PathBuf,
    /// Whose it has to be, and everything in it.
    pub uid: u32,
}

/// A process that is there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Process {
    /// In the caller's pid namespace; None: it is in another one that cannot be seen from here.
    pub pid: Option<u32>,
    pub uid: u32,
    /// The name of its program as the kernel has it, 15 bytes; none without a pid.
    pub program: Option<String>,
    pub answer: Answer,
}

/// What a process said.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answer {
    /// Anything at all, [`ANSWER_BYTES_MAX`] at most.
    Bytes(Vec<u8>),
    /// It is stopped (SIGSTOP, a debugger).
    Stopped,
    /// It did not answer in time.
    Silent,
}

/// What was found.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Survey {
    pub processes: Vec<Process>,
    /// Names in the directories whose processes have been killed.
    pub leftovers: usize,
    /// Places that could not be looked at, and why.
    pub failures: Vec<(PathBuf, String)>,
    /// Not everything was looked at when the time was over.
    pub cut: bool,
}

/// Where processes of this user meet: the usual place of this environment, and those of sessions
/// with and without `$XDG_RUNTIME_DIR`.
pub fn own_places() -> Vec<Place> {
    let uid = process::uid();
    let mut places = Vec::new();
    for path in [
        crate::default_path(),
        PathBuf::from(format!("/run/user/{uid}/sluice-verbs")),
        own_parent().join("verbs"),
    ] {
        let place = Place { path, uid };
        if !places.contains(&place) {
            places.push(place);
        }
    }
    places
}

/// Those of all users, this one's first. Of use to root only.
pub fn all_places() -> Vec<Place> {
    let mut places = own_places();
    for (folder, prefix, below) in [
        ("/run/user", "", "sluice-verbs"),
        ("/tmp", "sluice-", "verbs"),
    ] {
        let entries = fs::read_dir(folder).into_iter().flatten().flatten();
        for entry in entries {
            let name = entry.file_name();
            let number = name.to_str().and_then(|name| name.strip_prefix(prefix));
            let Some(uid) = number.and_then(|number| number.parse().ok()) else {
                continue;
            };
            let path = entry.path().join(below);
            let place = Place { path, uid };
            if places.len() < PLACES_MAX && !places.contains(&place) {
                places.push(place);
            }
        }
    }
    places
}

/// Looks at all places, for so long at most. What hangs, a file system of some user's say, is left
/// to itself.
pub fn look(places: &[Place], patience: Duration) -> Survey {
    let until = Instant::now() + patience;
    let (sender, receiver) = mpsc::channel();
    let owned = places.to_vec();
    let spawned = std::thread::Builder::new().spawn(move || {
        for place in owned {
            let found = look_at(&place, until.min(Instant::now() + PLACE_PATIENCE));
            if sender.send(found).is_err() {
                return;
            }
        }
    });
    let mut survey = Survey::default();
    if spawned.is_err() {
        survey.cut = true;
        return survey;
    }
    for _ in places {
        let left = until.saturating_duration_since(Instant::now());
        // The thread stops waiting at the same time, and needs a moment to say so.
        match receiver.recv_timeout(left + Duration::from_millis(100)) {
            Ok(mut found) => {
                survey.processes.append(&mut found.processes);
                survey.failures.append(&mut found.failures);
                survey.leftovers += found.leftovers;
                survey.cut |= found.cut;
            }
            Err(_) => {
                survey.cut = true;
                break;
            }
        }
    }
    survey
        .processes
        .sort_by_key(|process| (process.uid, process.pid));
    survey
}

/// One place.
fn look_at(place: &Place, until: Instant) -> Survey {
    let mut survey = Survey {
        leftovers: left_beside(place),
        ..Survey::default()
    };
    match open_place(place) {
        Ok(Some(directory)) => {
            let path = through(directory.as_raw_fd());
            let names = names(&path, &mut survey);
            survey.leftovers += left_blocks(&path, &names);
            let mut numbers: Vec<u32> = names
                .iter()
                .filter_map(|name| report_of_socket(name))
                .collect();
            numbers.sort_unstable();
            for some in numbers.chunks(AT_ONCE) {
                ask(&path, some, place.uid, until, &mut survey);
            }
        }
        // Nobody has met there.
        Ok(None) => {}
        Err(error) => {
            let why = error.to_string();
            survey.failures.push((place.path.clone(), why));
        }
    }
    survey
}

/// A path to an open file, whatever has become of its name.
fn through(descriptor: RawFd) -> PathBuf {
    PathBuf::from(format!("/proc/self/fd/{descriptor}"))
}

/// Opens a directory if it is one, and of that user. None: it is not there.
fn open_place(place: &Place) -> io::Result<Option<File>> {
    let parent = match (place.path.parent(), place.path.file_name()) {
        // Made by whoever was first, in a directory that is everybody's.
        (Some(parent), Some(name)) if parent.parent() == Some(Path::new("/tmp")) => {
            match open_directory(parent, place.uid)? {
                Some(parent) => Some((parent, name)),
                None => return Ok(None),
            }
        }
        _ => None,
    };
    match &parent {
        Some((parent, name)) => open_directory(&through(parent.as_raw_fd()).join(name), place.uid),
        None => open_directory(&place.path, place.uid),
    }
}

fn open_directory(path: &Path, uid: u32) -> io::Result<Option<File>> {
    let opened = OpenOptions::new()
        .read(true)
        .custom_flags(libc::O_DIRECTORY | libc::O_NOFOLLOW | libc::O_NONBLOCK | libc::O_CLOEXEC)
        .open(path);
    let directory = match opened {
        Ok(directory) => directory,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(error),
    };
    let owner = directory.metadata()?.uid();
    if owner != uid {
        return Err(io::Error::new(
            io::ErrorKind::PermissionDenied,
            format!("it belongs to uid {owner}, not {uid}"),
        ));
    }
    Ok(Some(directory))
}

/// The names in a directory, so many at most.
fn names(path: &Path, survey: &mut Survey) -> Vec<String> {
    let found = fs::read_dir(path).into_iter().flatten().flatten();
    let mut names: Vec<String> = found
        .take(SWEEP_MAX + 1)
        .filter_map(|entry| entry.file_name().into_string().ok())
        .collect();
    survey.cut |= names.len() > SWEEP_MAX;
    names.truncate(SWEEP_MAX);
    names
}

/// How many directories of network namespaces, which are beside that of all processes, have been
/// left by killed ones ([`crate::Rendezvous::open_passing`]).
fn left_beside(place: &Place) -> usize {
    let (Some(parent), Some(name)) = (place.path.parent(), place.path.file_name()) else {
        return 0;
    };
    let Ok(Some(parent)) = open_directory(parent, place.uid) else {
        return 0;
    };
    let parent = through(parent.as_raw_fd());
    let family = format!("{}{FAMILY}", name.to_string_lossy());
    let is_left = |name: &String| {
        let Ok(Some(directory)) = open_directory(&parent.join(name), place.uid) else {
            return false;
        };
        let numbers = open_numbers(&through(directory.as_raw_fd()));
        numbers.is_ok_and(|numbers| is_locked(numbers.as_raw_fd(), PRESENT) == Ok(false))
    };
    let beside = names(&parent, &mut Survey::default());
    let family = beside.iter().filter(|name| name.starts_with(&family));
    family.filter(|name| is_left(name)).count()
}

/// How many blocks have a name and no owner.
fn left_blocks(path: &Path, names: &[String]) -> usize {
    let blocks: BTreeSet<u32> = names
        .iter()
        .filter_map(|name| block_of_socket(name))
        .collect();
    if blocks.is_empty() {
        return 0;
    }
    let Ok(numbers) = open_numbers(path) else {
        return 0;
    };
    let dead = |block: &&u32| is_locked(numbers.as_raw_fd(), u64::from(**block)) == Ok(false);
    blocks.iter().filter(dead).count()
}

/// The file of locks, to ask for them only.
fn open_numbers(directory: &Path) -> io::Result<File> {
    OpenOptions::new()
        .read(true)
        .custom_flags(libc::O_NOFOLLOW | libc::O_NONBLOCK | libc::O_CLOEXEC)
        .open(directory.join(NUMBERS))
}

/// Whether anybody has a lock of a byte. Takes none itself.
fn is_locked(file: RawFd, byte: u64) -> Result<bool, Errno> {
    // SAFETY: `flock` is integers, for which zero is valid.
    let mut lock: libc::flock = unsafe { core::mem::zeroed() };
    lock.l_type = libc::F_WRLCK as libc::c_short;
    lock.l_whence = libc::SEEK_SET as libc::c_short;
    lock.l_start = byte as libc::off_t;
    lock.l_len = 1;
    // SAFETY: the kernel reads and writes one `struct flock`.
    check(unsafe {
        syscall3(
            libc::SYS_fcntl,
            int(file),
            int(libc::F_OFD_GETLK),
            &raw mut lock as usize,
        )
    })?;
    Ok(lock.l_type != libc::F_UNLCK as libc::c_short)
}

/// Connected, and to whom.
struct Asked {
    socket: unix::Fd,
    who: unix::Credentials,
}

/// Asks the processes with these numbers.
fn ask(path: &Path, numbers: &[u32], uid: u32, until: Instant, survey: &mut Survey) {
    let mut asked = Vec::new();
    for number in numbers {
        match connect(&path.join(format!("r{number}.sock")), uid) {
            Ok(one) => asked.push(one),
            Err(Errno(libc::ECONNREFUSED)) => survey.leftovers += 1,
            // Too many have asked it that it did not answer; nobody can tell who it is.
            Err(Errno::AGAIN) => survey.processes.push(Process {
                pid: None,
                uid,
                program: None,
                answer: Answer::Silent,
            }),
            // It has gone, or is nothing that we would talk to.
            Err(_) => {}
        }
    }
    for one in asked {
        survey.processes.extend(hear(&one, until));
    }
}

/// Connects to a socket, if it is one and that user's, and so is who listens.
fn connect(path: &Path, uid: u32) -> Result<Asked, Errno> {
    let number = |error: io::Error| Errno(error.raw_os_error().unwrap_or(libc::EIO));
    // What was looked at is what is connected to, whatever the name means by then.
    let place = OpenOptions::new()
        .read(true)
        .custom_flags(libc::O_PATH | libc::O_NOFOLLOW | libc::O_CLOEXEC)
        .open(path)
        .map_err(number)?;
    let metadata = place.metadata().map_err(number)?;
    if !metadata.file_type().is_socket() || metadata.uid() != uid {
        return Err(Errno::PROTO);
    }
    let socket = unix::seqpacket()?;
    let path = through(place.as_raw_fd());
    unix::connect(socket.raw(), path.as_os_str().as_bytes())?;
    let who = unix::peer_credentials(socket.raw())?;
    if who.uid != uid {
        return Err(Errno::PROTO);
    }
    Ok(Asked { socket, who })
}

/// What a process says. None: it has ended.
fn hear(asked: &Asked, until: Instant) -> Option<Process> {
    let pid = u32::try_from(asked.who.pid).ok().filter(|pid| *pid != 0);
    let program = match pid {
        Some(pid) => Some(program_of(pid)?),
        None => None,
    };
    let process = |answer| {
        Some(Process {
            pid,
            uid: asked.who.uid,
            program: program.clone(),
            answer,
        })
    };
    let socket = asked.socket.raw();
    loop {
        let stopped = pid.is_some_and(is_stopped);
        let left = until.saturating_duration_since(Instant::now());
        // One that is stopped may have answered before. A wait is cut into pieces, to see one that
        // is stopped in the meantime.
        let wait = match stopped {
            true => 0,
            false => left.as_millis().min(100) as i32,
        };
        let ready = unix::wait_readable(socket, wait).unwrap_or(false);
        if ready {
            let mut bytes = vec![0; ANSWER_BYTES_MAX + 1];
            let received = unix::receive_with_fds(socket, &mut bytes).ok()?;
            if received.len == 0 {
                return None;
            }
            bytes.truncate(received.len);
            return process(Answer::Bytes(bytes));
        }
        if stopped {
            return process(Answer::Stopped);
        }
        if left.is_zero() {
            return process(Answer::Silent);
        }
    }
}

/// The name that the kernel has for a process's first thread. None: it has ended.
fn program_of(pid: u32) -> Option<String> {
    let comm = fs::read(format!("/proc/{pid}/comm")).ok()?;
    let comm = comm.strip_suffix(b"\n").unwrap_or(&comm);
    Some(String::from_utf8_lossy(comm).into_owned())
}

fn is_stopped(pid: u32) -> bool {
    let stat = fs::read(format!("/proc/{pid}/stat")).unwrap_or_default();
    state_of(&stat).is_some_and(|state| matches!(state, b'T' | b't'))
}

/// The state in a line of `/proc/PID/stat` (proc(5)). The name before it may have any bytes.
fn state_of(stat: &[u8]) -> Option<u8> {
    let end = stat.iter().rposition(|byte| *byte == b')')?;
    stat.get(end + 2).copied()
}

#[cfg(test)]
mod tests;
