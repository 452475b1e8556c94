//! Programs that get a listening socket by exec, with an environment that does not name the library: nginx starts its new
//! binary so. The gateway goes on to introduce its clients there, so the library has to be there, too.
#![allow(unsafe_code)]

use core::ffi::{CStr, c_char, c_int};
use core::ptr;
use core::sync::atomic::{AtomicPtr, Ordering};

use sluice_sys::tcp;

use crate::log;
use crate::memory;
use crate::reach::{self, Target};
use crate::real::real;

type Strings = *const *const c_char;

/// Descriptors that are looked at.
const FDS_MAX: c_int = 1024;
/// An environment with more strings is left as it is.
const STRINGS_MAX: usize = 1024;
/// Strings that are put in, at most, and their bytes.
const KEPT_MAX: usize = 32;
const KEPT_BYTES: usize = 16 * 1024;
const PRELOAD: &[u8] = b"LD_PRELOAD=";
const OURS: &[u8] = b"SLUICE_";

/// The strings of this process's environment that brought the library here, and a null pointer. A copy: programs write
/// their titles over what they were given.
static KEPT: AtomicPtr<[*const c_char; KEPT_MAX + 1]> = AtomicPtr::new(ptr::null_mut());

/// At the library's start, for a program that a gateway serves.
pub(super) fn keep() {
    let table = memory::zeroed(size_of::<[*const c_char; KEPT_MAX + 1]>());
    let (Some(table), Some(bytes)) = (table, memory::zeroed(KEPT_BYTES)) else {
        return;
    };
    let (table, bytes) = (
        table.cast::<[*const c_char; KEPT_MAX + 1]>(),
        bytes.cast::<u8>(),
    );
    // SAFETY: zeroed memory of these sizes that is nobody else's, and null pointers are zeros; the environment as it was
    // given to this program.
    unsafe {
        let table = &mut *table.as_ptr();
        let mut used = 0;
        let mut count = 0;
        let environment = reach::environment();
        for at in 0.. {
            let string = *environment.add(at);
            if string.is_null() {
                break;
            }
            let string = CStr::from_ptr(string).to_bytes_with_nul();
            let is_kept = string.starts_with(PRELOAD) || string.starts_with(OURS);
            if is_kept && count < KEPT_MAX && used + string.len() <= KEPT_BYTES {
                let copy = bytes.as_ptr().add(used);
                copy.copy_from_nonoverlapping(string.as_ptr(), string.len());
                table[count] = copy.cast_const().cast();
                count += 1;
                used += string.len();
            }
        }
        KEPT.store(ptr::from_mut(table), Ordering::Release);
    }
}

/// Calls `execute` with the environment for a program that is to be executed: `env`, or with the library put in where the
/// program gets a listening socket and would not know whom its clients are. A program that the library cannot get into is
/// said in the log only: most inherit a listening socket by carelessness, and take nothing from it, so the socket stays
/// published for who does.
///
/// # Safety
/// `target` and `env` are as execve(2) takes them; a null `env` is empty.
#[inline]
pub unsafe fn for_heir<R>(target: Target, env: Strings, execute: impl FnOnce(Strings) -> R) -> R {
    // SAFETY: the caller's promise.
    unsafe {
        if !super::is_on() {
            return execute(env);
        }
        if !reach::is_preloaded(env) {
            if hands_on_a_listener() {
                return completed(env, execute);
            }
        } else if !reach::reaches(target, env) && hands_on_a_listener() {
            say_that_it_is_without();
        }
        execute(env)
    }
}

#[cold]
fn say_that_it_is_without() {
    log!(
        Warn,
        "a program gets a listening socket and not the library: if it accepts connections there, it reads what the gateway \
         says of its clients"
    );
}

/// Whether a listening socket that others reach stays open.
fn hands_on_a_listener() -> bool {
    (0..FDS_MAX).any(|fd| {
        // SAFETY: F_GETFD takes and returns numbers.
        let flags = unsafe { (real().fcntl)(fd, libc::F_GETFD, 0) };
        flags >= 0 && flags & libc::FD_CLOEXEC == 0 && is_listener(fd)
    })
}

fn is_listener(fd: c_int) -> bool {
    tcp::is_tcp(fd) == Ok(true)
        && tcp::info(fd).is_ok_and(|info| info.state == tcp::STATE_LISTEN)
        && !super::is_local(fd)
}

/// Apart from its caller for its stack.
///
/// # Safety
/// As of [`for_heir`].
#[inline(never)]
unsafe fn completed<R>(env: Strings, execute: impl FnOnce(Strings) -> R) -> R {
    let mut strings = [ptr::null(); STRINGS_MAX];
    // SAFETY: the caller's promise.
    if unsafe { complete(env, &mut strings) } {
        execute(strings.as_ptr())
    } else {
        say_that_it_is_without();
        execute(env)
    }
}

/// Writes the strings of `env`, those that bring the library, and a null pointer. False if `env` has other libraries of its
/// own, or too many strings.
///
/// # Safety
/// As of [`for_heir`].
unsafe fn complete(env: Strings, to: &mut [*const c_char; STRINGS_MAX]) -> bool {
    let kept = KEPT.load(Ordering::Acquire);
    if kept.is_null() {
        return false;
    }
    let mut count = 0;
    // SAFETY: `keep` has written the table; the caller's promise.
    unsafe {
        let kept = (*kept).iter().take_while(|string| !string.is_null());
        let given = (0..).map(|at| {
            if env.is_null() {
                ptr::null()
            } else {
                *env.add(at)
            }
        });
        let given = given.take_while(|string| !string.is_null());
        for (string, is_given) in given
            .map(|it| (it, true))
            .chain(kept.map(|it| (*it, false)))
        {
            let text = CStr::from_ptr(string).to_bytes();
            if is_given && text.starts_with(PRELOAD) {
                return false;
            }
            if is_given && text.starts_with(OURS) {
                continue;
            }
            // A null pointer stays behind the last one.
            if count + 1 == STRINGS_MAX {
                return false;
            }
            to[count] = string;
            count += 1;
        }
    }
    true
}

#[cfg(test)]
mod tests {
    use super::*;

    fn completed(env: &[&CStr]) -> Option<Vec<String>> {
        let mut env: Vec<_> = env.iter().map(|text| text.as_ptr()).collect();
        env.push(ptr::null());
        let mut strings = [ptr::null(); STRINGS_MAX];
        // SAFETY: a null-terminated array of strings; what is written is one.
        unsafe {
            complete(env.as_ptr(), &mut strings).then(|| {
                let strings = strings.iter().take_while(|it| !it.is_null());
                let text = |it: &*const c_char| CStr::from_ptr(*it).to_str().unwrap().to_owned();
                strings.map(text).collect()
            })
        }
    }

    #[test]
    fn the_library_and_its_settings_are_put_in() {
        // This test's own environment says nothing of the library.
        let kept = Box::leak(Box::new([ptr::null(); KEPT_MAX + 1]));
        kept[0] = c"LD_PRELOAD=/x/libsluice_preload.so".as_ptr();
        kept[1] = c"SLUICE_GATEWAY=front".as_ptr();
        KEPT.store(kept, Ordering::Release);
        let expected = [
            "A=1",
            "LD_PRELOAD=/x/libsluice_preload.so",
            "SLUICE_GATEWAY=front",
        ];
        assert_eq!(completed(&[c"A=1"]).unwrap(), expected);
        assert_eq!(
            completed(&[c"SLUICE_GATEWAY=old", c"A=1"]).unwrap(),
            expected
        );
        assert_eq!(completed(&[]).unwrap(), expected[1..]);
        assert!(completed(&[c"LD_PRELOAD=/own.so"]).is_none());
        assert!(completed(&vec![c"A=1"; STRINGS_MAX - 3]).is_some());
        assert!(completed(&vec![c"A=1"; STRINGS_MAX - 2]).is_none());
    }

    #[test]
    fn a_listener_that_others_reach_is_one() {
        use std::net::TcpListener;
        use std::os::fd::AsRawFd;
        let is = |address| is_listener(TcpListener::bind(address).unwrap().as_raw_fd());
        assert!(is("0.0.0.0:0"));
        assert!(!is("127.0.0.1:0"));
        let file = std::fs::File::open("/dev/null").unwrap();
        assert!(!is_listener(file.as_raw_fd()));
    }
}
