//! Thin safe wrappers over the Linux system calls that Sluice uses.
//!
//! Everything here enters the kernel directly, never through libc's socket functions: these
//! wrappers also run inside the preload library, which interposes those functions.

pub mod at_exit;
pub mod bpf;
pub mod capability;
pub mod cgroup;
pub mod clock;
pub mod delay;
pub mod errno;
pub mod holders;
pub mod image;
pub mod local_fd;
pub mod locked;
pub mod mapping;
pub mod memfd;
pub mod mount;
pub mod netlink;
pub mod ofd_lock;
pub mod private;
pub mod process;
pub mod raw;
pub mod reclaim;
pub mod route;
pub mod sock_diag;
pub mod socket_note;
pub mod tcp;
#[cfg(test)]
mod testing;
pub mod timer;
pub mod unix;
pub mod wake;
