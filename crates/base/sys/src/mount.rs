//! Mounts, as far as a path shows them.
#![allow(unsafe_code)]

use crate::errno::Errno;
use crate::raw::{check, syscall2};

/// `struct statfs` of 64-bit kernels (`asm-generic/statfs.h`), of which libc does not name `f_flags`.
const STATFS_WORDS: usize = 15;
const STATFS_FLAGS: usize = 10;

/// Whether this process sees `path` by a mount that is read-only, by `statfs`. What others see of
/// the same files may be mounted for writing.
///
/// `ENAMETOOLONG` from 255 bytes on, `EINVAL` with a zero byte in the path.
pub fn is_read_only(path: &[u8]) -> Result<bool, Errno> {
    let mut name = [0_u8; 256];
    let Some(end) = name.get_mut(..path.len()).filter(|_| path.len() < 255) else {
        return Err(Errno(libc::ENAMETOOLONG));
    };
    if path.contains(&0) {
        return Err(Errno::INVAL);
    }
    end.copy_from_slice(path);
    let mut stat = [0_u64; STATFS_WORDS];
    // SAFETY: the path ends with a zero; the kernel writes one `struct statfs`, which has as many words.
    check(unsafe {
        syscall2(
            libc::SYS_statfs,
            name.as_ptr() as usize,
            stat.as_mut_ptr() as usize,
        )
    })?;
    Ok(stat[STATFS_FLAGS] & libc::ST_RDONLY != 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_that_is_none_is_an_error() {
        assert_eq!(is_read_only(b"/nonexistent"), Err(Errno(libc::ENOENT)));
        assert_eq!(is_read_only(b"/\0"), Err(Errno::INVAL));
        assert_eq!(is_read_only(&[b'/'; 255]), Err(Errno(libc::ENAMETOOLONG)));
        assert_eq!(is_read_only(&[b'/'; 254]), is_read_only(b"/"));
    }
}
