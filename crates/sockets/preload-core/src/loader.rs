//! Static programs that programs start under `sluice run --static`: `sluice-static`, which loads the library and becomes
//! the program, is executed in their place. Allocates nothing, as a child of vfork may ask.
#![allow(unsafe_code)]

use core::ffi::{CStr, c_char};
use core::ptr;
use core::sync::atomic::{AtomicBool, Ordering};

use crate::reach::{self, PATH_BYTES, Target};

/// Names `sluice-static`; `sluice run --static` sets it.
const LOADER: &[u8] = b"SLUICE_STATIC_LOADER=";
/// Tells it which program to become, and that nobody has asked for that program by name: `sluice-static` then says nothing
/// where it cannot.
const PROGRAM: &[u8] = b"SLUICE_STATIC_CHILD=";
/// An environment with more strings is left alone, and the program on TCP.
const STRINGS_MAX: usize = 1024;

type Strings = *const *const c_char;

/// This process is `sluice-static`, and executes a program that it does not know.
static DECLINES: AtomicBool = AtomicBool::new(false);

/// From now on every program that this process executes is executed itself.
pub fn decline() {
    DECLINES.store(true, Ordering::Relaxed);
}

/// Calls `execute` with the path and the environment of what is to be executed in place of a program, if that is a static
/// one that `sluice-static` may know. `None` if it is not, or nobody has asked for it.
///
/// # Safety
/// `target` and `env` are as execve(2) takes them; a null `env` is an empty one.
#[inline]
pub unsafe fn instead_of<R>(
    target: Target,
    env: Strings,
    execute: impl FnOnce(*const c_char, Strings) -> R,
) -> Option<R> {
    // SAFETY: the caller's promise.
    unsafe {
        let loader = reach::variable(env, LOADER)?;
        // Without the library in its environment it would have none to load.
        if DECLINES.load(Ordering::Relaxed) || !reach::is_preloaded(env) {
            return None;
        }
        planned(target, env, loader.as_ptr().cast(), execute)
    }
}

/// Apart from its callers for its stack: threads may have little, and few programs are asked about.
///
/// # Safety
/// As of [`instead_of`]; `loader` is a string.
#[inline(never)]
unsafe fn planned<R>(
    target: Target,
    env: Strings,
    loader: *const c_char,
    execute: impl FnOnce(*const c_char, Strings) -> R,
) -> Option<R> {
    let mut program = [0_u8; PROGRAM.len() + PATH_BYTES];
    let (name, path) = program.split_first_chunk_mut()?;
    *name = *PROGRAM.first_chunk::<{ PROGRAM.len() }>()?;
    // SAFETY: the caller's promise; what is written is a string.
    unsafe {
        written(target, path)?;
        if !reach::is_alone(path.as_ptr().cast()) {
            return None;
        }
        let mut strings = [ptr::null(); STRINGS_MAX];
        let mut count = 0;
        for at in 0.. {
            let string = *env.add(at);
            if string.is_null() {
                break;
            }
            if CStr::from_ptr(string).to_bytes().starts_with(PROGRAM) {
                continue;
            }
            *strings.get_mut(count)? = string;
            count += 1;
        }
        *strings.get_mut(count)? = program.as_ptr().cast();
        // A null pointer ends it.
        strings.get(count + 1)?;
        Some(execute(loader, strings.as_ptr()))
    }
}

/// The path by which the program is found here, as a string. `None` for one that has none.
///
/// # Safety
/// As of [`instead_of`].
unsafe fn written(target: Target, to: &mut [u8]) -> Option<()> {
    let path = match target {
        Target::Path(path) => path,
        // SAFETY: the caller's promise: a string, if it is one.
        Target::Below(folder, path) => unsafe {
            let is_here = folder == libc::AT_FDCWD || (!path.is_null() && *path == b'/' as c_char);
            is_here.then_some(path)?
        },
        // SAFETY: the caller's promise.
        Target::Search(name) => return unsafe { reach::found(name, to) }.then_some(()),
        Target::Open(_) => return None,
    };
    if path.is_null() {
        return None;
    }
    // SAFETY: the caller's promise: a string.
    let text = unsafe { CStr::from_ptr(path) }.to_bytes_with_nul();
    to.get_mut(..text.len())?.copy_from_slice(text);
    Some(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::ffi::CString;
    use std::os::unix::fs::PermissionsExt;
    use std::path::Path;

    const PRELOADED: &CStr = c"LD_PRELOAD=/x/libsluice_preload.so";
    const ASKED: &CStr = c"SLUICE_STATIC_LOADER=/x/sluice-static";

    /// The path and the environment that would be executed.
    fn planned(target: Target, env: &[&CStr]) -> Option<(String, Vec<String>)> {
        let mut env: Vec<_> = env.iter().map(|text| text.as_ptr()).collect();
        env.push(ptr::null());
        let text = |string: *const c_char| {
            // SAFETY: a string.
            let text = unsafe { CStr::from_ptr(string) };
            text.to_str().unwrap().to_owned()
        };
        // SAFETY: a null-terminated array of strings, and one is what comes back.
        unsafe {
            instead_of(target, env.as_ptr(), |path, env| {
                let strings = (0..).map(|at| *env.add(at));
                let strings = strings.take_while(|it| !it.is_null()).map(text);
                (text(path), strings.collect())
            })
        }
    }

    /// A file with the headers of a program: its kind, and the kinds of its program headers.
    fn program(folder: &Path, name: &str, kind: u16, headers: &[u32]) -> CString {
        let mut bytes = b"\x7fELF\x02\x01\x01".to_vec();
        bytes.resize(64, 0);
        bytes[16..18].copy_from_slice(&kind.to_le_bytes());
        bytes[18..20].copy_from_slice(&62_u16.to_le_bytes());
        bytes[32..40].copy_from_slice(&64_u64.to_le_bytes());
        bytes[54..56].copy_from_slice(&56_u16.to_le_bytes());
        bytes[56..58].copy_from_slice(&(headers.len() as u16).to_le_bytes());
        for header in headers {
            let at = bytes.len();
            bytes.resize(at + 56, 0);
            bytes[at..at + 4].copy_from_slice(&header.to_le_bytes());
        }
        let path = folder.join(name);
        std::fs::write(&path, bytes).unwrap();
        std::fs::set_permissions(&path, PermissionsExt::from_mode(0o755)).unwrap();
        CString::new(path.to_str().unwrap()).unwrap()
    }

    const LOAD: u32 = 1;
    const NOTE: u32 = 4;

    #[test]
    fn a_static_program_is_executed_by_the_loader() {
        let place = tempfile::tempdir().unwrap();
        let path = program(place.path(), "go", 2, &[LOAD, NOTE]);
        let named = format!("SLUICE_STATIC_CHILD={}", path.to_str().unwrap());
        let env = [c"A=1", PRELOADED, c"SLUICE_STATIC_CHILD=/another", ASKED];
        let expected = [
            "A=1",
            PRELOADED.to_str().unwrap(),
            ASKED.to_str().unwrap(),
            &named,
        ];
        for target in [
            Target::Path(path.as_ptr()),
            Target::Below(libc::AT_FDCWD, path.as_ptr()),
        ] {
            let (loader, env) = planned(target, &env).unwrap();
            assert_eq!(loader, "/x/sluice-static");
            assert_eq!(env, expected);
        }
        // With a slash nothing is searched for.
        assert!(planned(Target::Search(path.as_ptr()), &env).is_some());
        assert!(planned(Target::Search(c"go-that-is-nowhere".as_ptr()), &env).is_none());
    }

    #[test]
    fn others_are_not() {
        let place = tempfile::tempdir().unwrap();
        let env = [PRELOADED, ASKED];
        let is_planned = |path: &CStr| planned(Target::Path(path.as_ptr()), &env).is_some();
        // Linked with a C library, to be moved, or no program.
        for (kind, headers) in [
            (2, &[LOAD, 3][..]),
            (2, &[LOAD, 2]),
            (2, &[7, LOAD]),
            (3, &[LOAD]),
        ] {
            assert!(!is_planned(&program(place.path(), "other", kind, headers)));
        }
        assert!(!is_planned(&program(place.path(), "empty", 2, &[])));
        let path = program(place.path(), "go", 2, &[LOAD]);
        assert!(is_planned(&path));
        for other in [c"/bin/sh", c"/etc/passwd", c"/nonexistent", c""] {
            assert!(!is_planned(other));
        }
        // Nobody may execute it, nobody has asked, or the library would not be in the loader.
        let file = Path::new(path.to_str().unwrap());
        for env in [&[PRELOADED][..], &[ASKED], &[]] {
            assert!(planned(Target::Path(path.as_ptr()), env).is_none());
        }
        // SAFETY: a path that is a string, and no environment at all.
        let planned = unsafe { instead_of(Target::Path(path.as_ptr()), ptr::null(), |_, _| ()) };
        assert!(planned.is_none());
        std::fs::set_permissions(file, PermissionsExt::from_mode(0o644)).unwrap();
        assert!(!is_planned(&path));
        // It gains rights, which the kernel gives to a program's own file alone. Only root can give one away.
        if std::os::unix::fs::chown(file, Some(1), None).is_ok() {
            std::fs::set_permissions(file, PermissionsExt::from_mode(0o755)).unwrap();
            assert!(is_planned(&path));
            std::fs::set_permissions(file, PermissionsExt::from_mode(0o4755)).unwrap();
            assert!(!is_planned(&path));
        }
    }

    #[test]
    fn what_has_too_many_strings_or_too_long_a_path_is_left_alone() {
        let place = tempfile::tempdir().unwrap();
        let path = program(place.path(), "go", 2, &[LOAD]);
        let target = Target::Path(path.as_ptr());
        let mut env = vec![c"A=1"; STRINGS_MAX - 4];
        env.extend([PRELOADED, ASKED]);
        assert!(planned(target, &env).is_some());
        env.push(c"B=1");
        assert!(planned(target, &env).is_none());
        let long = CString::new(vec![b'/'; PATH_BYTES]).unwrap();
        assert!(planned(Target::Path(long.as_ptr()), &[PRELOADED, ASKED]).is_none());
        assert!(planned(Target::Path(ptr::null()), &[PRELOADED, ASKED]).is_none());
    }
}
