//! `sluice-static`: becomes a static Go program that has the library in its process.
//!
//! `sluice run --static` starts it in place of the program, with the library preloaded and the program's path in
//! `SLUICE_STATIC`. It maps the program to the addresses that it is linked to, has Go's runtime jump here where it
//! would enter the kernel (`sluice_static::go`), and jumps to the program's first instruction. What it does not
//! recognise it executes as it is.
//!
//! Go's threads are made by `pthread_create` (`thread.rs`), so that the library finds its thread-local storage, and
//! signals of Go's runtime find its own in every frame, the library's too. Decision 0073.
#![no_main]
#![allow(unsafe_code)]

mod call;
mod map;
mod thread;

use core::convert::Infallible;
use core::ffi::{CStr, c_char, c_int, c_void};
use core::mem;
use std::ffi::{CString, OsStr};
use std::fs;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::Path;

use sluice_static::go::{self, Targets};
use sluice_static::image::Image;
use sluice_static::start;

/// Names the program; `sluice run` sets it, and the program does not see it.
const VARIABLE: &[u8] = b"SLUICE_STATIC=";
/// The same for a program that another one has started (`loader.rs` of `preload-core`), who knows nothing of lanes: what is
/// no program of Go's is executed without a word, unless a log is asked for.
const CHILD: &[u8] = b"SLUICE_STATIC_CHILD=";
const LOG: &[u8] = b"SLUICE_LOG=";
/// env(1)'s status for what cannot be executed.
const NOT_EXECUTABLE: c_int = 126;
/// A function of the library, to be called before a child is made that borrows this process's memory.
const BEFORE_VFORK: &CStr = c"sluice_before_vfork";
/// Of the library: no program that this process executes from then on is to be executed by this one's file.
const DECLINE: &CStr = c"sluice_decline";

type Strings = *const *const c_char;

/// The C library's entry, called as C's main: nothing of Rust's has run before it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn main(_count: c_int, arguments: Strings, environment: Strings) -> c_int {
    // SAFETY: the arrays that the C library passes end with a null pointer, and live as long as the process.
    let (arguments, environment) = unsafe { (listed(arguments), listed(environment)) };
    let value = |name: &'static [u8]| {
        environment.iter().find_map(|string| {
            // SAFETY: strings of the environment, which end with a zero.
            unsafe { CStr::from_ptr(*string) }
                .to_bytes()
                .strip_prefix(name)
        })
    };
    let (named, is_named) = match (value(VARIABLE), value(CHILD)) {
        (Some(path), _) => (path, true),
        (None, Some(path)) => (path, false),
        (None, None) => {
            complain("is started by 'sluice run --static'");
            return NOT_EXECUTABLE;
        }
    };
    // As the kernel has it in /proc/PID/exe.
    let path = fs::canonicalize(OsStr::from_bytes(named)).unwrap_or_default();
    let path = CString::new(path.into_os_string().into_vec()).unwrap_or_default();
    let rest = environment.iter().filter(|string| {
        // SAFETY: strings of the environment, which end with a zero.
        let string = unsafe { CStr::from_ptr(**string) }.to_bytes();
        !string.starts_with(VARIABLE) && !string.starts_with(CHILD)
    });
    let rest: Vec<*const c_char> = rest.copied().collect();
    match become_program(&path, arguments, &rest, environment) {
        Ok(never) => match never {},
        Err(why) if is_named || value(LOG).is_some() => {
            let path = path.to_string_lossy();
            complain(&format!("warning: {path} runs on plain TCP: {why}"));
        }
        Err(_) => {}
    }
    let path = CString::new(named).unwrap_or_default();
    // SAFETY: dlsym takes a name; the library's function of this name takes nothing and returns nothing.
    unsafe {
        let decline = libc::dlsym(libc::RTLD_DEFAULT, DECLINE.as_ptr());
        if let Some(decline) = mem::transmute::<*mut c_void, Option<extern "C" fn()>>(decline) {
            decline();
        }
    }
    let terminated = |strings: &[*const c_char]| [strings, &[core::ptr::null()]].concat();
    let (arguments, rest) = (terminated(arguments), terminated(&rest));
    // SAFETY: a path and two arrays that end with a null pointer.
    unsafe { libc::execve(path.as_ptr(), arguments.as_ptr(), rest.as_ptr()) };
    let error = std::io::Error::last_os_error();
    complain(&format!("cannot run '{}': {error}", path.to_string_lossy()));
    NOT_EXECUTABLE
}

/// A line on standard error, if anybody can hear it.
fn complain(what: &str) {
    let line = format!("sluice-static: {what}\n");
    // SAFETY: the bytes are a string's.
    unsafe { libc::write(2, line.as_ptr().cast(), line.len()) };
}

/// The pointers of an array that ends with a null pointer.
///
/// # Safety
/// It does, and it and what it points to stay.
unsafe fn listed(strings: Strings) -> &'static [*const c_char] {
    let mut count = 0;
    // SAFETY: by the caller's promise a null pointer ends the array, and all of it stays.
    unsafe {
        while !(*strings.add(count)).is_null() {
            count += 1;
        }
        core::slice::from_raw_parts(strings, count)
    }
}

/// What the kernel told this program: it lies behind the environment.
fn auxiliary(environment: &'static [*const c_char]) -> Vec<(u64, u64)> {
    let mut pairs = Vec::new();
    // SAFETY: the C library passes the environment where the kernel has put it, a null pointer behind it and then
    // pairs of words, of which the last one's first word is 0 (getauxval(3)).
    unsafe {
        let mut next = environment.as_ptr_range().end.add(1).cast::<(u64, u64)>();
        while (*next).0 != 0 {
            pairs.push(*next);
            next = next.add(1);
        }
    }
    pairs
}

/// Returns only where it cannot be, and nothing has changed that the program would see.
fn become_program(
    path: &CStr,
    arguments: &[*const c_char],
    environment: &[*const c_char],
    whole_environment: &'static [*const c_char],
) -> Result<Infallible, String> {
    // SAFETY: dlsym takes a name; the library, where it is loaded, has this function with this signature.
    let before_vfork = unsafe { libc::dlsym(libc::RTLD_DEFAULT, BEFORE_VFORK.as_ptr()) };
    if before_vfork.is_null() {
        return Err("libsluice_preload.so of this version is not loaded".into());
    }
    if !thread::is_below_thread_pointer() {
        return Err("this build has its thread-local storage elsewhere".into());
    }
    let file = map::File::open(path).map_err(|error| format!("it cannot be read: {error}"))?;
    let bytes = file.bytes();
    let image = Image::read(bytes).map_err(|refused| refused.to_string())?;
    let (runtime, threads) = go::find(&image, bytes).map_err(|unknown| unknown.to_string())?;
    let targets = Targets {
        syscall6: call::syscall6 as *const () as u64,
        clone: thread::clone as *const () as u64,
        exit_thread: thread::exit_thread as *const () as u64,
        exit: call::exit as *const () as u64,
        vfork: call::vfork as *const () as u64,
    };
    let mapped = map::segments(&file, &image, &go::changes(&runtime, &threads, &targets));
    mapped.map_err(|error| format!("its addresses are not free: {error}"))?;
    call::set_up(path, before_vfork, runtime.vfork_rest());
    thread::set_up(threads.clone_child());
    let addresses = |strings: &[*const c_char]| -> Vec<u64> {
        strings.iter().map(|string| *string as u64).collect()
    };
    let words = start::words(
        &addresses(arguments),
        &addresses(environment),
        &auxiliary(whole_environment),
        &image,
        call::program_path() as u64,
    );
    let stack = map::stack(&words).map_err(|error| format!("no memory for a stack: {error}"))?;
    drop(file);
    name_after(path);
    // SAFETY: the program is mapped and changed, and the words are at `stack` as the ABI has them.
    unsafe { thread::start(stack, image.entry) }
}

/// The process is called as it would be without us (`comm` of proc(5)).
fn name_after(path: &CStr) {
    let path = Path::new(OsStr::from_bytes(path.to_bytes()));
    let name = path.file_name().unwrap_or_default().as_bytes();
    if let Ok(name) = CString::new(name) {
        // SAFETY: PR_SET_NAME reads a string, of which the kernel takes the first 15 bytes.
        unsafe { libc::prctl(libc::PR_SET_NAME, name.as_ptr().cast::<c_void>()) };
    }
}
