//! What system calls read and write, for kernels that answer them or let them fail.
#![allow(unsafe_code)]

/// Buffers of a call: addresses and lengths.
pub type Parts = Vec<(usize, usize)>;

fn vector(address: usize, count: usize) -> Parts {
    // SAFETY: the call's own array, of so many parts.
    let parts = unsafe { core::slice::from_raw_parts(address as *const libc::iovec, count) };
    parts
        .iter()
        .map(|part| (part.iov_base as usize, part.iov_len))
        .collect()
}

fn message(address: usize) -> Parts {
    // SAFETY: the call's own message.
    let message = unsafe { &*(address as *const libc::msghdr) };
    vector(message.msg_iov as usize, message.msg_iovlen)
}

fn flags_of_vector(flags: usize) -> usize {
    if flags & libc::RWF_NOWAIT as usize != 0 {
        libc::MSG_DONTWAIT as usize
    } else {
        0
    }
}

/// The buffers and message flags of a call that reads a stream.
pub fn reads(number: i64, args: [usize; 6]) -> Option<(Parts, usize)> {
    match number {
        libc::SYS_read => Some((vec![(args[1], args[2])], 0)),
        libc::SYS_recvfrom => Some((vec![(args[1], args[2])], args[3])),
        libc::SYS_readv => Some((vector(args[1], args[2]), 0)),
        libc::SYS_preadv2 => Some((vector(args[1], args[2]), flags_of_vector(args[5]))),
        libc::SYS_recvmsg => Some((message(args[1]), args[2])),
        _ => None,
    }
}

/// The same of one that writes it.
pub fn writes(number: i64, args: [usize; 6]) -> Option<(Parts, usize)> {
    match number {
        libc::SYS_write => Some((vec![(args[1], args[2])], 0)),
        libc::SYS_sendto => Some((vec![(args[1], args[2])], args[3])),
        libc::SYS_writev => Some((vector(args[1], args[2]), 0)),
        libc::SYS_pwritev2 => Some((vector(args[1], args[2]), flags_of_vector(args[5]))),
        libc::SYS_sendmsg => Some((message(args[1]), args[2])),
        _ => None,
    }
}

/// Makes a call that reads or writes with one byte for its buffers, as the kernel may do at any time.
pub fn shortened<T>(number: i64, mut args: [usize; 6], call: impl FnOnce([usize; 6]) -> T) -> T {
    let Some((parts, _)) = reads(number, args).or_else(|| writes(number, args)) else {
        return call(args);
    };
    let Some((address, _)) = parts.into_iter().find(|(_, len)| *len > 0) else {
        return call(args);
    };
    let part = libc::iovec {
        iov_base: address as *mut core::ffi::c_void,
        iov_len: 1,
    };
    match number {
        libc::SYS_recvmsg | libc::SYS_sendmsg => {
            // SAFETY: the call's own message, of which this is a copy for the time of the call.
            let mut message = unsafe { (args[1] as *const libc::msghdr).read() };
            (message.msg_iov, message.msg_iovlen) = (&raw const part as *mut libc::iovec, 1);
            args[1] = &raw mut message as usize;
            call(args)
        }
        libc::SYS_readv | libc::SYS_writev | libc::SYS_preadv2 | libc::SYS_pwritev2 => {
            (args[1], args[2]) = (&raw const part as usize, 1);
            call(args)
        }
        _ => {
            (args[1], args[2]) = (address, 1);
            call(args)
        }
    }
}
