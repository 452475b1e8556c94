//! Whether the library will be in a program that is about to be executed. Asked only when
//! something depends on it; allocates nothing, as a child of vfork may ask.
#![allow(unsafe_code)]

use core::ffi::{CStr, c_char, c_int};
use sluice_sys::raw::{check, int, syscall1, syscall3, syscall4};

/// What the program's call names.
#[derive(Clone, Copy)]
pub enum Target {
    /// A file, by its path.
    Path(*const c_char),
    /// A file, by its path or, without a slash, by its name in the folders of `PATH`.
    Search(*const c_char),
    /// An open file.
    Open(c_int),
    /// A file below an open folder.
    Below(c_int, *const c_char),
}

/// Part of the library's file name, as `LD_PRELOAD` has it.
const LIBRARY: &[u8] = b"libsluice_preload";
/// Part of the name of the GNU C library's dynamic linker.
const LINKER: &[u8] = b"ld-linux";
/// Scripts whose interpreter is a script, and so on; the kernel follows 4.
const SCRIPTS_MAX: u32 = 5;
/// Variables of an environment, and folders of `PATH`, that are looked at.
const STRINGS_MAX: usize = 100_000;
/// Of a path with the zero at its end.
pub const PATH_BYTES: usize = libc::PATH_MAX as usize;
const START_BYTES: usize = 2048;
const PROGRAM_HEADERS_MAX: u16 = 64;

#[cfg(target_arch = "x86_64")]
const MACHINE: u16 = 62;
#[cfg(target_arch = "aarch64")]
const MACHINE: u16 = 183;
#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
const MACHINE: u16 = 0;

unsafe extern "C" {
    static environ: *const *const c_char;
}

/// The environment of this process as it is now.
pub fn environment() -> *const *const c_char {
    // SAFETY: the C library's variable; programs that change it while they execute another
    // program race with themselves.
    unsafe { environ }
}

/// Whether the library will be in the program that is executed. True also if none can be: there
/// is no such file, or it may not be executed. False also for one that cannot be read.
///
/// # Safety
/// `target` and `env` are as execve(2) takes them; a null `env` is an empty one.
pub unsafe fn reaches(target: Target, env: *const *const c_char) -> bool {
    // SAFETY: the caller's promise, in all of these.
    unsafe {
        is_preloaded(env)
            && match target {
                Target::Path(path) => at(libc::AT_FDCWD, path),
                Target::Below(folder, path) if !path.is_null() && *path == 0 => opened(folder, 0),
                Target::Below(folder, path) => at(folder, path),
                Target::Open(fd) => opened(fd, 0),
                Target::Search(name) => searched(name),
            }
    }
}

/// Whether the environment names the library to the dynamic linker.
///
/// # Safety
/// As of [`reaches`].
pub unsafe fn is_preloaded(env: *const *const c_char) -> bool {
    // SAFETY: the caller's promise.
    unsafe { variable(env, b"LD_PRELOAD=") }.is_some_and(|list| contains(list, LIBRARY))
}

/// The value of the variable whose name and equals sign are `name`. A zero is behind it.
///
/// # Safety
/// As of [`reaches`].
pub unsafe fn variable<'a>(env: *const *const c_char, name: &[u8]) -> Option<&'a [u8]> {
    if env.is_null() {
        return None;
    }
    for at in 0..STRINGS_MAX {
        // SAFETY: an environment ends with a null pointer, and consists of strings.
        let text = unsafe {
            let text = *env.add(at);
            if text.is_null() {
                return None;
            }
            CStr::from_ptr(text).to_bytes()
        };
        if let Some(value) = text.strip_prefix(name) {
            return Some(value);
        }
    }
    None
}

fn contains(text: &[u8], part: &[u8]) -> bool {
    text.windows(part.len()).any(|window| window == part)
}

/// As execvp(3) finds it. True also if it is nowhere.
unsafe fn searched(name: *const c_char) -> bool {
    let mut path = [0_u8; PATH_BYTES];
    // SAFETY: a string of the program's, or null; what was found is one.
    unsafe { !found(name, &mut path) || at(libc::AT_FDCWD, path.as_ptr().cast()) }
}

/// Writes the path by which execvp(3) finds the program, with a zero at its end.
///
/// # Safety
/// `name` is a string, or null.
pub unsafe fn found(name: *const c_char, path: &mut [u8]) -> bool {
    if name.is_null() {
        return false;
    }
    // SAFETY: a string of the program's.
    let text = unsafe { CStr::from_ptr(name) }.to_bytes();
    if text.contains(&b'/') {
        return write(path, &[text]);
    }
    // SAFETY: the environment of this process.
    let folders = unsafe { variable(environment(), b"PATH=") }.unwrap_or(b"/bin:/usr/bin");
    folders
        .split(|byte| *byte == b':')
        .take(STRINGS_MAX)
        .any(|folder| {
            let slash: &[u8] = if folder.is_empty() { b"" } else { b"/" };
            write(path, &[folder, slash, text]) && is_executable(libc::AT_FDCWD, path.as_ptr())
        })
}

/// Writes the parts and a zero, if there is room.
fn write(to: &mut [u8], parts: &[&[u8]]) -> bool {
    let mut at = 0;
    for part in parts.iter().chain([&b"\0".as_slice()]) {
        let Some(room) = to.get_mut(at..at + part.len()) else {
            return false;
        };
        room.copy_from_slice(part);
        at += part.len();
    }
    true
}

/// `path` is a string.
fn is_executable(folder: c_int, path: *const u8) -> bool {
    // SAFETY: faccessat reads the path, a string, and takes numbers.
    unsafe {
        let mode = int(libc::X_OK);
        syscall3(libc::SYS_faccessat, int(folder), path as usize, mode) == 0
    }
}

unsafe fn at(folder: c_int, path: *const c_char) -> bool {
    // SAFETY: the path is a string.
    unsafe { at_depth(folder, path, 0) }
}

unsafe fn at_depth(folder: c_int, path: *const c_char, depth: u32) -> bool {
    if !is_executable(folder, path.cast()) {
        return true;
    }
    // SAFETY: the path is a string.
    unsafe { with_file(folder, path, |fd| opened(fd, depth)) }.unwrap_or(false)
}

/// Whether it is an executable file of this machine that is mapped to fixed addresses and linked with no library, a C
/// library included (which has thread-local storage), and that gains no rights.
///
/// # Safety
/// `path` is a string.
pub unsafe fn is_alone(path: *const c_char) -> bool {
    const FIXED: u16 = 2;
    const DYNAMIC: u32 = 2;
    const STORAGE: u32 = 7;
    let is_it = |fd| {
        let mut start = [0_u8; START_BYTES];
        let Ok(len) = sluice_sys::memfd::read_at(fd, &mut start, 0) else {
            return false;
        };
        let start = &start[..len];
        let with_others = |kind| [INTERPRETER, DYNAMIC, STORAGE].contains(&kind);
        start.starts_with(b"\x7fELF")
            && u16_at(start, 16) == Some(FIXED)
            && !gains_rights(fd)
            && program_header(fd, start, |kind| kind == LOADED).is_some()
            && program_header(fd, start, with_others).is_none()
    };
    // SAFETY: the caller's promise.
    is_executable(libc::AT_FDCWD, path.cast())
        && unsafe { with_file(libc::AT_FDCWD, path, is_it) }.unwrap_or(false)
}

/// # Safety
/// `path` is a string.
unsafe fn with_file<R>(
    folder: c_int,
    path: *const c_char,
    look: impl FnOnce(c_int) -> R,
) -> Option<R> {
    let flags = int(libc::O_RDONLY | libc::O_CLOEXEC | libc::O_NONBLOCK);
    // SAFETY: openat reads the path, a string.
    let file = check(unsafe { syscall4(libc::SYS_openat, int(folder), path as usize, flags, 0) });
    let fd = file.ok()?;
    let seen = look(fd as c_int);
    // SAFETY: closes what was opened here.
    unsafe { syscall1(libc::SYS_close, fd) };
    Some(seen)
}

fn opened(fd: c_int, depth: u32) -> bool {
    let mut start = [0_u8; START_BYTES];
    let Ok(len) = sluice_sys::memfd::read_at(fd, &mut start, 0) else {
        return false;
    };
    let start = &start[..len];
    match start {
        [b'#', b'!', line @ ..] => depth < SCRIPTS_MAX && interpreter(line, depth),
        [0x7f, b'E', b'L', b'F', ..] => !gains_rights(fd) && has_linker(fd, start),
        // execvp and its kin give it to the shell; others refuse it.
        _ => {
            depth < SCRIPTS_MAX && {
                // SAFETY: a string.
                unsafe { at_depth(libc::AT_FDCWD, c"/bin/sh".as_ptr(), depth + 1) }
            }
        }
    }
}

/// The program that runs a script with this first line.
fn interpreter(line: &[u8], depth: u32) -> bool {
    let mut path = [0_u8; 256];
    let line = line.split(|byte| *byte == b'\n').next().unwrap_or(line);
    let mut words = line.split(|byte| matches!(byte, b' ' | b'\t' | b'\r'));
    let Some(word) = words.find(|word| !word.is_empty()) else {
        return false;
    };
    let Some(to) = path.get_mut(..word.len()).filter(|to| to.len() < 255) else {
        return false;
    };
    to.copy_from_slice(word);
    // SAFETY: a string on this stack, ended by a zero.
    unsafe { at_depth(libc::AT_FDCWD, path.as_ptr().cast(), depth + 1) }
}

/// Whether the dynamic linker would ignore `LD_PRELOAD`: the file has a set-user-ID or
/// set-group-ID bit that changes something, or capabilities.
fn gains_rights(fd: c_int) -> bool {
    let mut stat = core::mem::MaybeUninit::<libc::stat>::zeroed();
    // SAFETY: fstat writes one struct; the others take and return numbers, or read a string.
    unsafe {
        if syscall3(libc::SYS_fstat, int(fd), stat.as_mut_ptr() as usize, 0) != 0 {
            return true;
        }
        let stat = stat.assume_init();
        let (user, group) = (libc::getuid(), libc::getgid());
        let name = c"security.capability".as_ptr() as usize;
        let capabilities = syscall4(libc::SYS_fgetxattr, int(fd), name, 0, 0);
        (stat.st_mode & libc::S_ISUID != 0 && stat.st_uid != user)
            || (stat.st_mode & libc::S_ISGID != 0 && stat.st_gid != group)
            || (capabilities > 0 && user != 0)
    }
}

/// Kinds of program headers (elf(5)).
const LOADED: u32 = 1;
const INTERPRETER: u32 = 3;

/// Whether an ELF file asks for the dynamic linker of the GNU C library, for this architecture.
fn has_linker(fd: c_int, start: &[u8]) -> bool {
    let Some(header) = program_header(fd, start, |kind| kind == INTERPRETER) else {
        return false;
    };
    let mut name = [0_u8; 256];
    let wanted = u64_at(&header, 32).map_or(0, |len| len.min(256)) as usize;
    let offset = u64_at(&header, 8).unwrap_or(0);
    let name = &mut name[..wanted];
    sluice_sys::memfd::read_at(fd, name, offset).is_ok() && contains(name, LINKER)
}

const HEADER_BYTES: u16 = 56;

/// The first program header of a wanted kind, of an ELF file for this architecture.
fn program_header(
    fd: c_int,
    start: &[u8],
    is_wanted: impl Fn(u32) -> bool,
) -> Option<[u8; HEADER_BYTES as usize]> {
    const CLASS_64: u8 = 2;
    let (table, entry, count) = (u64_at(start, 32)?, u16_at(start, 54)?, u16_at(start, 56)?);
    if start.get(4) != Some(&CLASS_64)
        || u16_at(start, 18) != Some(MACHINE)
        || entry != HEADER_BYTES
    {
        return None;
    }
    let mut header = [0_u8; HEADER_BYTES as usize];
    for number in 0..count.min(PROGRAM_HEADERS_MAX) {
        let offset = table.checked_add(u64::from(number) * u64::from(entry))?;
        if sluice_sys::memfd::read_at(fd, &mut header, offset) != Ok(header.len()) {
            return None;
        }
        if header
            .first_chunk()
            .is_some_and(|kind| is_wanted(u32::from_ne_bytes(*kind)))
        {
            return Some(header);
        }
    }
    None
}

fn u16_at(bytes: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_ne_bytes(*bytes.get(at..)?.first_chunk()?))
}

fn u64_at(bytes: &[u8], at: usize) -> Option<u64> {
    Some(u64::from_ne_bytes(*bytes.get(at..)?.first_chunk()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reach(target: Target, env: &[&CStr]) -> bool {
        let mut env: Vec<_> = env.iter().map(|text| text.as_ptr()).collect();
        env.push(core::ptr::null());
        // SAFETY: a null-terminated array of strings.
        unsafe { reaches(target, env.as_ptr()) }
    }

    const PRELOADED: &CStr = c"LD_PRELOAD=/a:/x/libsluice_preload.so";

    #[test]
    fn dynamic_programs_and_their_scripts_are_reached() {
        assert!(reach(
            Target::Path(c"/bin/sh".as_ptr()),
            &[c"A=1", PRELOADED]
        ));
        assert!(reach(Target::Search(c"sh".as_ptr()), &[PRELOADED]));
        let script = std::env::temp_dir().join(format!("sluice-reach-{}", std::process::id()));
        let path = std::ffi::CString::new(script.to_str().unwrap()).unwrap();
        for (text, reached) in [
            ("#! /bin/sh -e\n:\n", true),
            ("plain words\n", true),
            ("#! /nonexistent\n", true),
            ("\x7fELF and nothing more", false),
        ] {
            std::fs::write(&script, text).unwrap();
            let all = std::os::unix::fs::PermissionsExt::from_mode(0o755);
            std::fs::set_permissions(&script, all).unwrap();
            assert_eq!(
                reach(Target::Path(path.as_ptr()), &[PRELOADED]),
                reached,
                "{text}"
            );
        }
        std::fs::remove_file(script).unwrap();
    }

    #[test]
    fn what_cannot_be_executed_concerns_nobody() {
        for path in [
            c"/nonexistent",
            c"/etc/passwd/x",
            c"/etc/passwd",
            c"nonexistent",
        ] {
            assert!(reach(Target::Path(path.as_ptr()), &[PRELOADED]));
            assert!(reach(Target::Search(path.as_ptr()), &[PRELOADED]));
        }
    }

    #[test]
    fn programs_without_the_library_are_not() {
        let sh = Target::Path(c"/bin/sh".as_ptr());
        assert!(!reach(sh, &[]));
        assert!(!reach(sh, &[c"LD_PRELOAD=/lib/other.so"]));
        assert!(!reach(sh, &[c"XLD_PRELOAD=libsluice_preload.so"]));
        // SAFETY: no environment at all.
        assert!(unsafe { !reaches(sh, core::ptr::null()) });
    }
}
