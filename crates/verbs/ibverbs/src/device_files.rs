//! The files that the kernel has for an RDMA device, for programs that look for them before they use one.
//!
//! UCX, and so Open MPI, MPICH and NIXL, want a character device `/dev/infiniband/<dev_name>` that they may open.
//! Mooncake also asks where `/sys/class/infiniband/<name>/../..` leads. Nobody reads or writes what is there. So these
//! stand-ins for functions that take a path have the device node be `/dev/null`, and the device's folder one of the
//! devices without hardware (`/sys/devices/virtual`), as the kernel's own software devices are. All other paths go on
//! as they are. A program that makes its system calls itself does not meet the stand-ins.

use std::ffi::{CStr, CString, c_char, c_int, c_uint, c_void};
use std::ptr;

use sluice_verbs_calls::device;
use sluice_verbs_calls::errno::set_errno;

use crate::next::next;

/// Whether a path can be meant. Programs name files often.
fn may_be_meant(path: &[u8]) -> bool {
    path.starts_with(b"/dev/infiniband") || path.starts_with(b"/sys/class/infiniband")
}

/// What a path leads to instead.
#[derive(Debug, PartialEq, Eq)]
struct Meaning {
    /// What is opened, or looked at.
    file: CString,
    /// What it is called without links (realpath(3)).
    name: CString,
}

/// What a path means that is one of a device's, of which `devices` are the names and those of their nodes.
fn meaning<'a>(
    path: &[u8],
    devices: impl Iterator<Item = (&'a [u8], &'a [u8])>,
) -> Option<Meaning> {
    let mut devices = devices;
    let mut parts = path
        .split(|byte| *byte == b'/')
        .filter(|part| !matches!(*part, [] | b"."));
    let front = [parts.next()?, parts.next()?, parts.next()?];
    match front {
        [b"dev", b"infiniband", name] => {
            let is_node = parts.next().is_none() && devices.any(|(_, node)| node == name);
            is_node.then(|| Meaning::new(c"/dev/null".into(), &front))
        }
        [b"sys", b"class", b"infiniband"] => {
            let Some(name) = parts.next() else {
                return Some(Meaning::new(c"/sys/class".into(), &front));
            };
            if !devices.any(|(device, _)| device == name) {
                return None;
            }
            let device: [&[u8]; 5] = [b"sys", b"devices", b"virtual", b"infiniband", name];
            let mut all = device.to_vec();
            for part in parts {
                match part {
                    b".." => drop(all.pop()),
                    part => all.push(part),
                }
            }
            let is_folder = [&device[..], &device[..4]].contains(&&all[..]);
            if is_folder {
                return Some(Meaning::new(c"/sys/devices/virtual".into(), &all));
            }
            // Behind the device there is nothing, above it what the kernel has.
            let file = (!all.starts_with(&device)).then(|| joined(&all))?;
            Some(Meaning::new(file, &all))
        }
        _ => None,
    }
}

impl Meaning {
    fn new(file: CString, parts: &[&[u8]]) -> Self {
        let name = joined(parts);
        Self { file, name }
    }
}

/// The path with these parts, which have no zero byte.
fn joined(parts: &[&[u8]]) -> CString {
    let path = [&b"/"[..], &parts.join(&b'/')].concat();
    CString::new(path).unwrap_or_default()
}

/// # Safety
/// `path` is NULL or a string.
unsafe fn meaning_of(path: *const c_char) -> Option<Meaning> {
    if path.is_null() {
        return None;
    }
    // SAFETY: the caller's contract.
    let path = unsafe { CStr::from_ptr(path) }.to_bytes();
    if !may_be_meant(path) {
        return None;
    }
    meaning(path, device::made().iter().map(device::Device::names))
}

/// Stand-ins for functions of the C library that take a path, perhaps behind other arguments.
macro_rules! stand_ins {
    ($(fn $name:ident($($front:ident: $front_type:ty),*; path $(, $back:ident: $back_type:ty)*)
        -> $ret:ty = $failure:expr;)*) => {$(
        /// # Safety
        /// The contract of the C library's function of this name.
        #[cfg_attr(not(test), unsafe(no_mangle))]
        pub unsafe extern "C" fn $name(
            $($front: $front_type,)* path: *const c_char $(, $back: $back_type)*
        ) -> $ret {
            // SAFETY: the caller's contract.
            let meaning = unsafe { meaning_of(path) };
            let path = meaning.as_ref().map_or(path, |meaning| meaning.file.as_ptr());
            next!(
                $name($($front,)* path $(, $back)*):
                    fn($($front_type,)* *const c_char $(, $back_type)*) -> $ret,
                {
                    set_errno(libc::ENOSYS);
                    $failure
                }
            )
        }
    )*};
}

// The functions with a `mode` have it only where they make a file; it is in a register in any case.
stand_ins! {
    fn stat(; path, out: *mut c_void) -> c_int = -1;
    fn stat64(; path, out: *mut c_void) -> c_int = -1;
    fn lstat(; path, out: *mut c_void) -> c_int = -1;
    fn lstat64(; path, out: *mut c_void) -> c_int = -1;
    fn fstatat(folder: c_int; path, out: *mut c_void, flags: c_int) -> c_int = -1;
    fn fstatat64(folder: c_int; path, out: *mut c_void, flags: c_int) -> c_int = -1;
    fn __xstat(version: c_int; path, out: *mut c_void) -> c_int = -1;
    fn __xstat64(version: c_int; path, out: *mut c_void) -> c_int = -1;
    fn __lxstat(version: c_int; path, out: *mut c_void) -> c_int = -1;
    fn __lxstat64(version: c_int; path, out: *mut c_void) -> c_int = -1;
    fn __fxstatat(version: c_int, folder: c_int; path, out: *mut c_void, flags: c_int) -> c_int = -1;
    fn __fxstatat64(version: c_int, folder: c_int; path, out: *mut c_void, flags: c_int) -> c_int = -1;
    fn statx(folder: c_int; path, flags: c_int, mask: c_uint, out: *mut c_void) -> c_int = -1;
    fn access(; path, mode: c_int) -> c_int = -1;
    fn eaccess(; path, mode: c_int) -> c_int = -1;
    fn euidaccess(; path, mode: c_int) -> c_int = -1;
    fn faccessat(folder: c_int; path, mode: c_int, flags: c_int) -> c_int = -1;
    fn open(; path, flags: c_int, mode: c_uint) -> c_int = -1;
    fn open64(; path, flags: c_int, mode: c_uint) -> c_int = -1;
    fn openat(folder: c_int; path, flags: c_int, mode: c_uint) -> c_int = -1;
    fn openat64(folder: c_int; path, flags: c_int, mode: c_uint) -> c_int = -1;
    fn __open_2(; path, flags: c_int) -> c_int = -1;
    fn __open64_2(; path, flags: c_int) -> c_int = -1;
    fn __openat_2(folder: c_int; path, flags: c_int) -> c_int = -1;
    fn __openat64_2(folder: c_int; path, flags: c_int) -> c_int = -1;
    fn fopen(; path, mode: *const c_char) -> *mut c_void = ptr::null_mut();
    fn fopen64(; path, mode: *const c_char) -> *mut c_void = ptr::null_mut();
}

/// # Safety
/// realpath(3).
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn realpath(path: *const c_char, into: *mut c_char) -> *mut c_char {
    // SAFETY: the caller's contract.
    match unsafe { meaning_of(path) } {
        // SAFETY: the caller's contract; a name has fewer than PATH_MAX bytes.
        Some(meaning) => unsafe { give(&meaning.name, into) },
        None => next!(
            realpath(path, into): fn(*const c_char, *mut c_char) -> *mut c_char,
            ptr::null_mut()
        ),
    }
}

/// # Safety
/// realpath(3); `into` has `size` bytes.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn __realpath_chk(
    path: *const c_char,
    into: *mut c_char,
    size: usize,
) -> *mut c_char {
    // SAFETY: the caller's contract.
    match unsafe { meaning_of(path) } {
        // SAFETY: the caller's contract.
        Some(meaning) if meaning.name.count_bytes() < size => unsafe { give(&meaning.name, into) },
        _ => next!(
            __realpath_chk(path, into, size): fn(*const c_char, *mut c_char, usize) -> *mut c_char,
            ptr::null_mut()
        ),
    }
}

/// # Safety
/// canonicalize_file_name(3).
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn canonicalize_file_name(path: *const c_char) -> *mut c_char {
    // SAFETY: the caller's contract.
    match unsafe { meaning_of(path) } {
        // SAFETY: it is given memory of its own.
        Some(meaning) => unsafe { give(&meaning.name, ptr::null_mut()) },
        None => next!(
            canonicalize_file_name(path): fn(*const c_char) -> *mut c_char,
            ptr::null_mut()
        ),
    }
}

/// # Safety
/// `into` has room for the name, or is NULL, for memory that the caller frees.
unsafe fn give(name: &CStr, into: *mut c_char) -> *mut c_char {
    if into.is_null() {
        // SAFETY: a string.
        return unsafe { libc::strdup(name.as_ptr()) };
    }
    // SAFETY: the caller's contract.
    unsafe { ptr::copy_nonoverlapping(name.as_ptr(), into, name.count_bytes() + 1) };
    into
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What a path is, and what it is called, with one device.
    fn answer(path: &str) -> Option<[String; 2]> {
        assert!(may_be_meant(path.as_bytes()));
        let devices: [(&[u8], &[u8]); 1] = [(b"sluice0", b"uverbs-sluice0")];
        let Meaning { file, name } = meaning(path.as_bytes(), devices.into_iter())?;
        Some([file, name].map(|path| path.into_string().unwrap()))
    }

    #[test]
    fn a_device_has_a_node_and_a_folder() {
        for (path, file, name) in [
            ("/dev/infiniband/uverbs-sluice0", "/dev/null", ""),
            ("/sys/class/infiniband", "/sys/class", ""),
            (
                "/sys/class/infiniband/",
                "/sys/class",
                "/sys/class/infiniband",
            ),
            (
                "/sys/class/infiniband/sluice0",
                "/sys/devices/virtual",
                "/sys/devices/virtual/infiniband/sluice0",
            ),
            (
                "/sys/class/infiniband//./sluice0/..",
                "/sys/devices/virtual",
                "/sys/devices/virtual/infiniband",
            ),
            (
                "/sys/class/infiniband/sluice0/../..",
                "/sys/devices/virtual",
                "/sys/devices/virtual",
            ),
            (
                "/sys/class/infiniband/sluice0/../../..",
                "/sys/devices",
                "/sys/devices",
            ),
            (
                "/sys/class/infiniband/sluice0/../../../../../../etc/passwd",
                "/etc/passwd",
                "/etc/passwd",
            ),
        ] {
            let name = if name.is_empty() { path } else { name };
            assert_eq!(answer(path), Some([file, name].map(String::from)), "{path}");
        }
    }

    #[test]
    fn other_paths_stay_what_they_are() {
        for path in [
            "/dev/infiniband",
            "/dev/infiniband/rdma_cm",
            "/dev/infiniband/uverbs0",
            "/dev/infiniband/uverbs-sluice0/x",
            "/sys/class/infiniband/mlx5_0",
            "/sys/class/infiniband/sluice0/device",
            "/sys/class/infiniband_verbs/uverbs0",
        ] {
            assert_eq!(answer(path), None, "{path}");
        }
        assert!(!may_be_meant(b"/dev/null"));
    }

    #[test]
    fn functions_go_on_to_the_c_library() {
        let path = c"/dev/null".as_ptr();
        // SAFETY: strings; what is opened is closed, and what is allocated freed.
        unsafe {
            assert_eq!(access(path, libc::R_OK), 0);
            let file = open(path, libc::O_RDONLY, 0);
            assert_eq!(libc::close(file), 0);
            let name = realpath(path, ptr::null_mut());
            assert_eq!(CStr::from_ptr(name), c"/dev/null");
            libc::free(name.cast());
            let mut room = [0; 16];
            let given = give(c"/sys", room.as_mut_ptr());
            assert_eq!(CStr::from_ptr(given), c"/sys");
            assert_eq!(access(ptr::null(), 0), -1);
        }
    }
}
