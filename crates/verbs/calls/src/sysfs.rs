//! Reading the kernel's files, for programs that look for more than the verbs say. There are none
//! for our devices.

use std::ffi::{CStr, OsStr, c_char, c_int};
use std::fs::File;
use std::io::Read;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use crate::errno::minus_one;

/// Where sysfs is mounted.
pub extern "C" fn ibv_get_sysfs_path() -> *const c_char {
    c"/sys".as_ptr()
}

/// Reads `dir/file` into `buf`, without a newline at its end and with a zero behind it if there is
/// room. Returns the number of bytes, or -1 and `errno`.
///
/// # Safety
/// `dir` and `file` are strings; `buf` has room for `size` bytes.
pub unsafe extern "C" fn ibv_read_sysfs_file(
    dir: *const c_char,
    file: *const c_char,
    buf: *mut c_char,
    size: usize,
) -> c_int {
    if dir.is_null() || file.is_null() || buf.is_null() || size == 0 {
        return minus_one(libc::EINVAL);
    }
    // SAFETY: the caller's contract.
    let (dir, file) = unsafe { (CStr::from_ptr(dir), CStr::from_ptr(file)) };
    // SAFETY: the caller's contract; the bytes are only written.
    let buf = unsafe { std::slice::from_raw_parts_mut(buf.cast::<u8>(), size) };
    let path =
        Path::new(OsStr::from_bytes(dir.to_bytes())).join(OsStr::from_bytes(file.to_bytes()));
    let read = File::open(path).and_then(|mut file| file.read(buf));
    let mut length = match read {
        Ok(length) => length,
        Err(error) => return minus_one(error.raw_os_error().unwrap_or(libc::EIO)),
    };
    if length > 0 && buf[length - 1] == b'\n' {
        length -= 1;
    }
    if length < size {
        buf[length] = 0;
    }
    c_int::try_from(length).unwrap_or(c_int::MAX)
}
