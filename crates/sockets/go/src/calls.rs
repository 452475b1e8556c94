//! The system calls that the library has hooks for.

/// Numbers of calls are below it; the kernel knows fewer.
pub const NUMBERS: usize = 512;

/// A byte for each number.
pub type Taken = [u8; NUMBERS];

/// Those that the library's `syscall` looks at.
const OF_LIBRARY: [i64; 48] = [
    libc::SYS_close,
    libc::SYS_read,
    libc::SYS_write,
    libc::SYS_readv,
    libc::SYS_writev,
    libc::SYS_recvfrom,
    libc::SYS_sendto,
    libc::SYS_recvmsg,
    libc::SYS_sendmsg,
    libc::SYS_socket,
    libc::SYS_connect,
    libc::SYS_accept,
    libc::SYS_accept4,
    libc::SYS_getpeername,
    libc::SYS_getsockname,
    libc::SYS_shutdown,
    libc::SYS_bind,
    libc::SYS_listen,
    libc::SYS_setsockopt,
    libc::SYS_getsockopt,
    libc::SYS_preadv2,
    libc::SYS_pwritev2,
    libc::SYS_dup,
    libc::SYS_dup2,
    libc::SYS_dup3,
    libc::SYS_fcntl,
    libc::SYS_ioctl,
    libc::SYS_close_range,
    libc::SYS_epoll_create,
    libc::SYS_epoll_create1,
    libc::SYS_epoll_ctl,
    libc::SYS_epoll_wait,
    libc::SYS_epoll_pwait,
    libc::SYS_epoll_pwait2,
    libc::SYS_poll,
    libc::SYS_ppoll,
    libc::SYS_select,
    libc::SYS_pselect6,
    libc::SYS_sendmmsg,
    libc::SYS_recvmmsg,
    libc::SYS_sendfile,
    libc::SYS_splice,
    libc::SYS_prctl,
    libc::SYS_seccomp,
    libc::SYS_io_uring_setup,
    libc::SYS_io_uring_enter,
    libc::SYS_io_uring_register,
    libc::SYS_execve,
];

/// Which calls are taken: the library's, and some more.
pub const fn taken(more: &[i64]) -> Taken {
    let mut taken = [0; NUMBERS];
    mark(&mut taken, &OF_LIBRARY);
    mark(&mut taken, more);
    taken
}

const fn mark(taken: &mut Taken, numbers: &[i64]) {
    let mut index = 0;
    while index < numbers.len() {
        taken[numbers[index] as usize] = 1;
        index += 1;
    }
}
