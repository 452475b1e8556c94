//! `syscall(2)`: some programs make socket calls through it (node closes its sockets so).

use super::{descriptors, inside, io, memory, process, sockets, transfer, wait};
use core::ffi::{c_int, c_long};
use sluice_preload_core::epoll::Timeout;
use sluice_preload_core::memory::LOWEST_ADDRESS;
use sluice_preload_core::real::{real, set_errno};
use sluice_preload_core::{
    gateway, poll as poll_core, process as core_process, this_process, to_c, uring,
};

hooks! {
    fn syscall(
        number: c_long,
        a: usize,
        b: usize,
        c: usize,
        d: usize,
        e: usize,
        f: usize
    ) -> c_long {
        // SAFETY: the program's own arguments, of the types that the call with this number has.
        unsafe {
            match number {
                libc::SYS_close => descriptors::close(a as c_int).into(),
                libc::SYS_read => io::read(a as c_int, b as _, c) as c_long,
                libc::SYS_write => io::write(a as c_int, b as _, c) as c_long,
                libc::SYS_readv => io::readv(a as c_int, b as _, c as c_int) as c_long,
                libc::SYS_writev => io::writev(a as c_int, b as _, c as c_int) as c_long,
                libc::SYS_recvfrom => {
                    io::recvfrom(a as c_int, b as _, c, d as c_int, e as _, f as _) as c_long
                }
                libc::SYS_sendto => {
                    io::sendto(a as c_int, b as _, c, d as c_int, e as _, f as _) as c_long
                }
                libc::SYS_recvmsg => io::recvmsg(a as c_int, b as _, c as c_int) as c_long,
                libc::SYS_sendmsg => io::sendmsg(a as c_int, b as _, c as c_int) as c_long,
                libc::SYS_socket => sockets::socket(a as c_int, b as c_int, c as c_int).into(),
                libc::SYS_connect => sockets::connect(a as c_int, b as _, c as _).into(),
                libc::SYS_accept => sockets::accept(a as c_int, b as _, c as _).into(),
                libc::SYS_accept4 => sockets::accept4(a as c_int, b as _, c as _, d as c_int).into(),
                libc::SYS_getpeername => sockets::getpeername(a as c_int, b as _, c as _).into(),
                libc::SYS_getsockname => sockets::getsockname(a as c_int, b as _, c as _).into(),
                libc::SYS_shutdown => sockets::shutdown(a as c_int, b as c_int).into(),
                libc::SYS_bind => sockets::bind(a as c_int, b as _, c as _).into(),
                libc::SYS_listen => sockets::listen(a as c_int, b as c_int).into(),
                libc::SYS_setsockopt => {
                    sockets::setsockopt(a as c_int, b as c_int, c as c_int, d as _, e as _).into()
                }
                libc::SYS_getsockopt => {
                    sockets::getsockopt(a as c_int, b as c_int, c as c_int, d as _, e as _).into()
                }
                // The offset is one word on a machine of 64 bits; the upper half is not looked at.
                libc::SYS_preadv2 => {
                    io::preadv2(a as c_int, b as _, c as c_int, d as _, f as c_int) as c_long
                }
                libc::SYS_pwritev2 => {
                    io::pwritev2(a as c_int, b as _, c as c_int, d as _, f as c_int) as c_long
                }
                libc::SYS_dup => descriptors::dup(a as c_int).into(),
                libc::SYS_dup3 => descriptors::dup3(a as c_int, b as c_int, c as c_int).into(),
                libc::SYS_fcntl => descriptors::fcntl(a as c_int, b as c_int, c).into(),
                libc::SYS_ioctl => descriptors::ioctl(a as c_int, b as _, c).into(),
                libc::SYS_close_range => {
                    descriptors::close_range(a as _, b as _, c as c_int).into()
                }
                libc::SYS_epoll_create1 => wait::epoll_create1(a as c_int).into(),
                libc::SYS_epoll_ctl => {
                    wait::epoll_ctl(a as c_int, b as c_int, c as c_int, d as _).into()
                }
                libc::SYS_epoll_wait => {
                    wait::epoll_wait(a as c_int, b as _, c as c_int, d as c_int).into()
                }
                libc::SYS_poll => wait::poll(a as _, b as _, c as c_int).into(),
                libc::SYS_select => {
                    wait::select(a as c_int, b as _, c as _, d as _, e as _).into()
                }
                libc::SYS_sendmmsg => {
                    io::sendmmsg(a as c_int, b as _, c as _, d as c_int).into()
                }
                libc::SYS_recvmmsg => {
                    io::recvmmsg(a as c_int, b as _, c as _, d as c_int, e as _).into()
                }
                libc::SYS_sendfile => {
                    transfer::sendfile(a as c_int, b as c_int, c as _, d) as c_long
                }
                libc::SYS_splice => {
                    transfer::splice(a as c_int, b as _, c as c_int, d as _, e, f as _) as c_long
                }
                libc::SYS_dup2 => descriptors::dup2(a as c_int, b as c_int).into(),
                libc::SYS_ppoll => ppoll(a, b, c, d, e),
                libc::SYS_pselect6 => pselect6(a, b, c, d, e, f),
                // The kernel's call takes the size of the mask; the C library's does not.
                libc::SYS_epoll_pwait => {
                    wait::epoll_pwait(a as c_int, b as _, c as c_int, d as c_int, e as _).into()
                }
                libc::SYS_epoll_pwait2 => {
                    wait::epoll_pwait2(a as c_int, b as _, c as c_int, d as _, e as _).into()
                }
                libc::SYS_epoll_create => wait::epoll_create(a as c_int).into(),
                libc::SYS_prctl => {
                    process::prctl(a as c_int, b, c, d, e).into()
                }
                libc::SYS_seccomp => {
                    core_process::before_confinement();
                    (real().syscall)(number, a, b, c, d, e, f)
                }
                libc::SYS_io_uring_setup if !gateway::allows_io_uring() => {
                    set_errno(libc::ENOSYS);
                    -1
                }
                libc::SYS_io_uring_setup => {
                    let fd = (real().syscall)(number, a, b, c, d, e, f);
                    if fd >= 0 {
                        uring::made(fd as c_int, &*(b as *const uring::Params));
                    }
                    fd
                }
                libc::SYS_io_uring_enter => uring::enter(a as c_int, b as u32, d as u32, || {
                    (real().syscall)(number, a, b, c, d, e, f)
                }),
                libc::SYS_io_uring_register => {
                    uring::before_register(b as u32, c, d as u32);
                    (real().syscall)(number, a, b, c, d, e, f)
                }
                libc::SYS_io_submit => {
                    match inside::before_io_submit(b as isize, c as _) {
                        Ok(()) => (real().syscall)(number, a, b, c, d, e, f),
                        Err(errno) => to_c(Err(errno)) as c_long,
                    }
                }
                libc::SYS_mlockall => memory::mlockall(a as c_int).into(),
                libc::SYS_munlockall => memory::munlockall().into(),
                libc::SYS_execveat => {
                    process::execveat(a as c_int, b as _, c as _, d as _, e as c_int).into()
                }
                libc::SYS_execve => process::execve(a as _, b as _, c as _).into(),
                _ => (real().syscall)(number, a, b, c, d, e, f),
            }
        }
    }
}

/// Bytes of the kernel's signal mask; the C library's is larger.
const KERNEL_MASK_BYTES: usize = 8;

/// The kernel's `ppoll` takes the size of the mask, the C library's does not; and the kernel's
/// writes what is left of the time.
///
/// # Safety
/// As ppoll(2).
unsafe fn ppoll(fds: usize, count: usize, time: usize, mask: usize, mask_bytes: usize) -> c_long {
    // SAFETY: the program's own arguments, as both calls take them.
    unsafe {
        if mask != 0 && mask_bytes != KERNEL_MASK_BYTES {
            return (real().syscall)(libc::SYS_ppoll, fds, count, time, mask, mask_bytes, 0);
        }
        let time = time as *mut libc::timespec;
        let before = poll_core::now_ns();
        let result = wait::ppoll(fds as _, count as _, time, mask as _);
        if let Some(time) = time.as_mut()
            && result >= 0
        {
            leave_rest(time, before);
        }
        result.into()
    }
}

/// What the last argument of the kernel's `pselect6` points to.
#[repr(C)]
struct SizedMask {
    mask: *const libc::sigset_t,
    bytes: usize,
}

/// The kernel's `pselect6` takes the mask with its size, by one pointer more than the C library's
/// `pselect`, and writes what is left of the time.
///
/// # Safety
/// As pselect(2).
unsafe fn pselect6(
    count: usize,
    read: usize,
    write: usize,
    except: usize,
    time: usize,
    mask: usize,
) -> c_long {
    let is_readable = |address: usize| address == 0 || address >= LOWEST_ADDRESS;
    // SAFETY: the program's own arguments, as both calls take them.
    unsafe {
        let kernel =
            || (real().syscall)(libc::SYS_pselect6, count, read, write, except, time, mask);
        if !is_readable(time) || !is_readable(mask) {
            return kernel();
        }
        let set = match (mask as *const SizedMask).as_ref() {
            Some(sized) if !sized.mask.is_null() && sized.bytes != KERNEL_MASK_BYTES => {
                return kernel();
            }
            Some(sized) => sized.mask,
            None => core::ptr::null(),
        };
        let time = time as *mut libc::timespec;
        let timeout = match time.as_ref() {
            None => Some(Timeout::Never),
            Some(time) => wait::timeout_of(time),
        };
        let sets = [read, write, except].map(|set| set as *mut libc::fd_set);
        let count = count as c_int;
        match timeout {
            Some(timeout)
                if poll_core::select_concerns(count, sets) && !this_process::is_vfork_child() =>
            {
                let before = poll_core::now_ns();
                let result = poll_core::select(count, sets, timeout, set);
                if let Some(time) = time.as_mut() {
                    leave_rest(time, before);
                }
                result.into()
            }
            _ => kernel(),
        }
    }
}

/// Linux leaves the time that was not slept. `before` is when the call began, nanoseconds.
fn leave_rest(time: &mut libc::timespec, before: u64) {
    if let Some(timeout) = wait::timeout_of(time)
        && let Timeout::Ns(left) = timeout.after(poll_core::now_ns() - before)
    {
        time.tv_sec = (left / 1_000_000_000) as i64;
        time.tv_nsec = (left % 1_000_000_000) as i64;
    }
}
