//! Functions of the C library that enter the kernel by themselves, with no call of ours in
//! between: formatted printing to a descriptor, and asynchronous I/O in threads of the library.

use core::ffi::{c_char, c_int, c_void};
use libc::aiocb;
use sluice_preload_core::memory::LOWEST_ADDRESS;
use sluice_preload_core::real::{next, real};
use sluice_preload_core::{Errno, Reason, conn, export, to_c};

/// The kernel is to carry this connection from here on. Whether it has all bytes that are unread: they stay in the ring
/// when the peer does not take them back, because it is stopped.
fn leave_lane(fd: c_int) -> bool {
    conn::get(fd).is_none_or(|conn| export::export_to_unseen(&conn, Reason::KernelCall))
}

/// The same before a read, which would miss what is in the ring: `EAGAIN` then, of which programs know that
/// it goes by (aio_read(3), io_submit(2)).
fn leave_lane_to_read(fd: c_int) -> Result<(), Errno> {
    match leave_lane(fd) {
        true => Ok(()),
        false => Err(Errno::AGAIN),
    }
}

/// # Safety
/// `request` is null or points to a control block, as the program's call demands.
unsafe fn leave_lane_of(request: *const aiocb) -> Result<(), Errno> {
    if request.is_null() {
        return Ok(());
    }
    // SAFETY: the caller's.
    let (fd, operation) = unsafe { ((*request).aio_fildes, (*request).aio_lio_opcode) };
    let left = leave_lane_to_read(fd);
    if operation == libc::LIO_READ {
        left
    } else {
        Ok(())
    }
}

/// The kernel's control block (`struct iocb`, linux/aio_abi.h).
#[repr(C)]
pub(super) struct Iocb {
    data: u64,
    key_and_flags: [u32; 2],
    opcode: u16,
    priority: i16,
    fildes: u32,
}

/// Before `io_submit(2)`: what the kernel reads, writes or waits for by itself is on TCP.
///
/// # Safety
/// `list` has `count` entries, each null or a control block, as the call demands.
pub(super) unsafe fn before_io_submit(count: isize, list: *const *const Iocb) -> Result<(), Errno> {
    /// `IOCB_CMD_PREAD`, `IOCB_CMD_POLL` and `IOCB_CMD_PREADV`.
    const READS: [u16; 3] = [0, 5, 7];
    if (list as usize) < LOWEST_ADDRESS {
        return Ok(());
    }
    for at in 0..usize::try_from(count).unwrap_or(0) {
        // SAFETY: the caller's promise.
        unsafe {
            let request = list.add(at).read_unaligned();
            if request as usize >= LOWEST_ADDRESS {
                let fd = (&raw const (*request).fildes).read_unaligned() as c_int;
                let operation = (&raw const (*request).opcode).read_unaligned();
                let left = leave_lane_to_read(fd);
                if READS.contains(&operation) {
                    left?;
                }
            }
        }
    }
    Ok(())
}

hooks! {
    // On this machine a `va_list` that is passed on is a pointer.
    fn vdprintf(fd: c_int, format: *const c_char, list: *mut c_void) -> c_int {
        leave_lane(fd);
        // SAFETY: the program's own arguments.
        unsafe { (real().vdprintf)(fd, format, list) }
    }

    fn __vdprintf_chk(fd: c_int, flag: c_int, format: *const c_char, list: *mut c_void) -> c_int {
        leave_lane(fd);
        // SAFETY: the program's own arguments.
        unsafe { (real().__vdprintf_chk)(fd, flag, format, list) }
    }

    fn aio_read(request: *mut aiocb) -> c_int {
        // SAFETY: the program's own control block, or null.
        unsafe {
            if !request.is_null() && let Err(errno) = leave_lane_to_read((*request).aio_fildes) {
                return to_c(Err(errno)) as c_int;
            }
            (real().aio_read)(request)
        }
    }

    fn aio_write(request: *mut aiocb) -> c_int {
        // SAFETY: the program's own control block, or null.
        unsafe {
            if !request.is_null() {
                leave_lane((*request).aio_fildes);
            }
            (real().aio_write)(request)
        }
    }

    fn lio_listio(mode: c_int, list: *const *mut aiocb, count: c_int, event: *mut c_void) -> c_int {
        // SAFETY: the program's own list, of `count` entries, each a control block or null.
        unsafe {
            for at in 0..usize::try_from(count).unwrap_or(0) {
                if let Err(errno) = leave_lane_of(*list.add(at)) {
                    return to_c(Err(errno)) as c_int;
                }
            }
            (real().lio_listio)(mode, list, count, event)
        }
    }
}

aliases! {
    fn aio_read64(request: *mut aiocb) -> c_int = aio_read;
    fn aio_write64(request: *mut aiocb) -> c_int = aio_write;
    fn lio_listio64(mode: c_int, list: *const *mut aiocb, count: c_int, event: *mut c_void) -> c_int = lio_listio;
}

/// Called by `dprintf` below with its first argument; returns the real one.
extern "C" fn sluice_before_dprintf(fd: usize) -> *const c_void {
    leave_lane(fd as c_int);
    next(c"dprintf") as *const c_void
}

/// The same for its fortified name.
extern "C" fn sluice_before_dprintf_chk(fd: usize) -> *const c_void {
    leave_lane(fd as c_int);
    next(c"__dprintf_chk") as *const c_void
}

// Variadic functions cannot be written in stable Rust: keep all argument registers, look, jump.
#[cfg(target_arch = "x86_64")]
macro_rules! variadic {
    ($name:ident, $before:ident) => {
        #[unsafe(no_mangle)]
        #[unsafe(naked)]
        pub unsafe extern "C" fn $name() {
            core::arch::naked_asm!(
                "push rdi",
                "push rsi",
                "push rdx",
                "push rcx",
                "push r8",
                "push r9",
                "push rax",
                "sub rsp, 128",
                "movups [rsp], xmm0",
                "movups [rsp + 16], xmm1",
                "movups [rsp + 32], xmm2",
                "movups [rsp + 48], xmm3",
                "movups [rsp + 64], xmm4",
                "movups [rsp + 80], xmm5",
                "movups [rsp + 96], xmm6",
                "movups [rsp + 112], xmm7",
                "call {before}",
                "mov r11, rax",
                "movups xmm0, [rsp]",
                "movups xmm1, [rsp + 16]",
                "movups xmm2, [rsp + 32]",
                "movups xmm3, [rsp + 48]",
                "movups xmm4, [rsp + 64]",
                "movups xmm5, [rsp + 80]",
                "movups xmm6, [rsp + 96]",
                "movups xmm7, [rsp + 112]",
                "add rsp, 128",
                "pop rax",
                "pop r9",
                "pop r8",
                "pop rcx",
                "pop rdx",
                "pop rsi",
                "pop rdi",
                "jmp r11",
                before = sym $before,
            )
        }
        register!($name);
    };
}

#[cfg(target_arch = "x86_64")]
variadic!(dprintf, sluice_before_dprintf);
#[cfg(target_arch = "x86_64")]
variadic!(__dprintf_chk, sluice_before_dprintf_chk);
