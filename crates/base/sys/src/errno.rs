//! The kernel's error numbers.

use core::fmt;

/// A positive `errno` value as the kernel returned it.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Errno(pub i32);

impl Errno {
    pub const AGAIN: Errno = Errno(libc::EAGAIN);
    pub const BADF: Errno = Errno(libc::EBADF);
    pub const INTR: Errno = Errno(libc::EINTR);
    pub const INVAL: Errno = Errno(libc::EINVAL);
    pub const NAMETOOLONG: Errno = Errno(libc::ENAMETOOLONG);
    pub const NOTCONN: Errno = Errno(libc::ENOTCONN);
    pub const NOTSUP: Errno = Errno(libc::EOPNOTSUPP);
    pub const PIPE: Errno = Errno(libc::EPIPE);
    pub const PROTO: Errno = Errno(libc::EPROTO);

    /// The symbolic name, for the numbers that Sluice's own system calls can give.
    ///
    /// The table is here because `strerror` may allocate and take locks, which code inside a
    /// hook must not.
    pub const fn name(self) -> &'static str {
        match self.0 {
            libc::EPERM => "EPERM",
            libc::ENOENT => "ENOENT",
            libc::EINTR => "EINTR",
            libc::EIO => "EIO",
            libc::EBADF => "EBADF",
            libc::EAGAIN => "EAGAIN",
            libc::ENOMEM => "ENOMEM",
            libc::EACCES => "EACCES",
            libc::EFAULT => "EFAULT",
            libc::EBUSY => "EBUSY",
            libc::EEXIST => "EEXIST",
            libc::ENODEV => "ENODEV",
            libc::ENOTDIR => "ENOTDIR",
            libc::EINVAL => "EINVAL",
            libc::ENFILE => "ENFILE",
            libc::EMFILE => "EMFILE",
            libc::ENOTTY => "ENOTTY",
            libc::EFBIG => "EFBIG",
            libc::ENOSPC => "ENOSPC",
            libc::EROFS => "EROFS",
            libc::EPIPE => "EPIPE",
            libc::ENAMETOOLONG => "ENAMETOOLONG",
            libc::ENOSYS => "ENOSYS",
            libc::ELOOP => "ELOOP",
            libc::EPROTO => "EPROTO",
            libc::ENOTSOCK => "ENOTSOCK",
            libc::EMSGSIZE => "EMSGSIZE",
            libc::EPROTOTYPE => "EPROTOTYPE",
            libc::ENOPROTOOPT => "ENOPROTOOPT",
            libc::EOPNOTSUPP => "EOPNOTSUPP",
            libc::EAFNOSUPPORT => "EAFNOSUPPORT",
            libc::EADDRINUSE => "EADDRINUSE",
            libc::ECONNRESET => "ECONNRESET",
            libc::ENOBUFS => "ENOBUFS",
            libc::EISCONN => "EISCONN",
            libc::ENOTCONN => "ENOTCONN",
            libc::ETOOMANYREFS => "ETOOMANYREFS",
            libc::ETIMEDOUT => "ETIMEDOUT",
            libc::ECONNREFUSED => "ECONNREFUSED",
            libc::EINPROGRESS => "EINPROGRESS",
            _ => "errno",
        }
    }
}

impl fmt::Debug for Errno {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}({})", self.name(), self.0)
    }
}

impl fmt::Display for Errno {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({})", self.name(), self.0)
    }
}

impl std::error::Error for Errno {}

impl From<Errno> for std::io::Error {
    fn from(errno: Errno) -> Self {
        std::io::Error::from_raw_os_error(errno.0)
    }
}
