//! Reads where the streams of a connection begin, in the network namespace of the caller.
//!
//! A classifier that is attached nowhere is run on a made-up packet, which carries the addresses
//! in and the numbers out. The packet comes by the device that the socket is bound to, or by
//! loopback, as that decides which socket the kernel finds.
#![allow(unsafe_code)]

use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd, RawFd};

use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};
use sluice_sys::bpf::uninterrupted;
use sluice_sys::errno::Errno;
use sluice_sys::raw::{check, int, syscall3};
use sluice_sys::unix::Fd;

use super::numbers::Numbers;
use crate::matching::Tuple;

/// The loaded classifiers.
#[derive(Debug)]
pub struct Probe {
    v4: Fd,
    v6: Fd,
}

/// Layout of the packet: room for an Ethernet header, then the tuple, then the answer.
const TUPLE_AT: usize = 16;
const ANSWER_AT: usize = 64;
const PACKET_BYTES: usize = 96;
/// Words of the answer.
const STATE: usize = 0;
const INTERFACE: usize = 1;
const RECEIVED_TO: usize = 2;
const RECEIVED: usize = 3;
const ACKNOWLEDGED_TO: usize = 4;
const ACKNOWLEDGED: usize = 5;
/// `struct bpf_sock_tuple`: source address, destination address, source port, destination port.
const TUPLE_V4_BYTES: usize = 12;
const TUPLE_V6_BYTES: usize = 36;

/// `TCP_ESTABLISHED`; listening sockets are found too.
const ESTABLISHED: u32 = 1;

const SIOCGSKNS: usize = 0x894C;
/// ioctl_ns(2).
const NS_GET_USERNS: usize = 0xB701;
const BPF_PROG_LOAD: i32 = 5;
const BPF_PROG_TEST_RUN: i32 = 10;
const BPF_PROG_TYPE_SCHED_CLS: u32 = 3;

/// The network namespace that `socket` was made in; needs `CAP_NET_ADMIN` there.
pub fn namespace_of(socket: RawFd) -> Result<Fd, Errno> {
    // SAFETY: SIOCGSKNS takes no pointer and returns a new descriptor.
    let ret = unsafe { syscall3(libc::SYS_ioctl, int(socket), SIOCGSKNS, 0) };
    check(ret).map(|fd| Fd::own(fd as RawFd))
}

/// Whether a network namespace belongs to the user namespace of this process, and was not made by
/// somebody who is privileged only in one of his own. `EPERM` if it belongs to one further up.
pub fn belongs_here(namespace: &Fd) -> Result<bool, Errno> {
    // SAFETY: NS_GET_USERNS takes no pointer and returns a new descriptor.
    let ret = unsafe { syscall3(libc::SYS_ioctl, int(namespace.raw()), NS_GET_USERNS, 0) };
    let owner = check(ret).map(|fd| Fd::own(fd as RawFd))?;
    let owner = rustix::fs::fstat(owner.as_fd()).map_err(|e| Errno(e.raw_os_error()))?;
    let own = rustix::fs::stat("/proc/self/ns/user").map_err(|e| Errno(e.raw_os_error()))?;
    Ok((owner.st_dev, owner.st_ino) == (own.st_dev, own.st_ino))
}

impl Probe {
    /// Loads the classifiers; `EPERM` without privileges.
    pub fn load() -> Result<Probe, Errno> {
        Ok(Probe {
            v4: load(&classifier(TUPLE_V4_BYTES as i32))?,
            v6: load(&classifier(TUPLE_V6_BYTES as i32))?,
        })
    }

    /// Where the streams of the connection `tuple` begin, whose socket is bound to this interface (0:
    /// to none), in the namespace of the calling thread; `None` if that is not established.
    ///
    /// # Errors
    /// Those of `BPF_PROG_TEST_RUN`; `EINVAL` for an interface where the kernel is older than 5.9.
    pub fn numbers(&self, tuple: Tuple, interface: u32) -> Result<Option<Numbers>, Errno> {
        let mut packet = [0; PACKET_BYTES];
        let program = match (tuple.local, tuple.peer) {
            (SocketAddr::V4(local), SocketAddr::V4(peer)) => {
                packet[16..20].copy_from_slice(&peer.ip().octets());
                packet[20..24].copy_from_slice(&local.ip().octets());
                packet[24..26].copy_from_slice(&peer.port().to_be_bytes());
                packet[26..28].copy_from_slice(&local.port().to_be_bytes());
                &self.v4
            }
            (SocketAddr::V6(local), SocketAddr::V6(peer)) => {
                packet[16..32].copy_from_slice(&peer.ip().octets());
                packet[32..48].copy_from_slice(&local.ip().octets());
                packet[48..50].copy_from_slice(&peer.port().to_be_bytes());
                packet[50..52].copy_from_slice(&local.port().to_be_bytes());
                &self.v6
            }
            _ => return Ok(None),
        };
        if run(program.raw(), &mut packet, interface)? != 0 {
            return Ok(None);
        }
        let word = |index: usize| {
            let at = ANSWER_AT + 4 * index;
            u32::from_ne_bytes([packet[at], packet[at + 1], packet[at + 2], packet[at + 3]])
        };
        // By loopback a socket that is bound to that is found, too: it may be another one with
        // these addresses.
        let is_it = word(STATE) == ESTABLISHED && word(INTERFACE) == interface;
        Ok(is_it.then(|| Numbers {
            sent: word(ACKNOWLEDGED_TO).wrapping_sub(word(ACKNOWLEDGED)),
            received: word(RECEIVED_TO).wrapping_sub(word(RECEIVED)),
        }))
    }
}

/// Does something in another network namespace, and comes back to `home`.
///
/// # Errors
/// Those of setns(2); `EPERM` without `CAP_SYS_ADMIN`.
pub fn inside<T>(
    namespace: BorrowedFd<'_>,
    home: BorrowedFd<'_>,
    work: impl FnOnce() -> T,
) -> Result<T, Errno> {
    enter(namespace)?;
    let done = work();
    // Staying in a stranger's namespace would falsify everything that follows. Coming back has
    // worked at the start and needs nothing that can run out but memory.
    enter(home)?;
    Ok(done)
}

fn enter(namespace: BorrowedFd<'_>) -> Result<(), Errno> {
    move_into_link_name_space(namespace, Some(LinkNameSpaceType::Network))
        .map_err(|error| Errno(error.raw_os_error()))
}

/// One BPF instruction: opcode, destination and source register, offset, immediate.
const fn op(code: u8, dst: u8, src: u8, off: i16, imm: i32) -> u64 {
    code as u64
        | (dst as u64) << 8
        | (src as u64) << 12
        | (off as u16 as u64) << 16
        | (imm as u32 as u64) << 32
}

/// The classifier for tuples of this size. It returns 0 and fills the answer in, or 1.
///
/// Written out since it is too small to bring a compiler for. Opcodes, helper numbers and field
/// offsets are those of `include/uapi/linux/bpf.h`.
fn classifier(tuple_bytes: i32) -> Vec<u64> {
    const MOV: u8 = 0xbf;
    const MOV_IMM: u8 = 0xb7;
    const ADD_IMM: u8 = 0x07;
    const LOAD: u8 = 0x61;
    const LOAD_LONG: u8 = 0x79;
    const STORE: u8 = 0x63;
    const CALL: u8 = 0x85;
    const EXIT: u8 = 0x95;
    const JUMP_GREATER: u8 = 0x2d;
    const JUMP_ZERO: u8 = 0x15;
    const SK_LOOKUP_TCP: i32 = 84;
    const SK_RELEASE: i32 = 86;
    const TCP_SOCK: i32 = 96;
    const SKB_DATA: i16 = 76;
    const SKB_DATA_END: i16 = 80;
    const SOCK_BOUND_DEV_IF: i16 = 0;
    const SOCK_STATE: i16 = 72;
    const TCP_SOCK_RCV_NXT: i16 = 16;
    const TCP_SOCK_SND_UNA: i16 = 24;
    const TCP_SOCK_BYTES_RECEIVED: i16 = 80;
    const TCP_SOCK_BYTES_ACKED: i16 = 88;
    let store = |word: usize| op(STORE, 7, 1, (ANSWER_AT + 4 * word) as i16, 0);
    vec![
        // r6: context, r7: packet; the verifier wants its length checked.
        op(MOV, 6, 1, 0, 0),
        op(LOAD, 7, 6, SKB_DATA, 0),
        op(LOAD, 2, 6, SKB_DATA_END, 0),
        op(MOV, 3, 7, 0, 0),
        op(ADD_IMM, 3, 0, 0, PACKET_BYTES as i32),
        op(JUMP_GREATER, 3, 2, 32, 0),
        // r8: the socket with this tuple in the caller's namespace.
        op(MOV, 1, 6, 0, 0),
        op(MOV, 2, 7, 0, 0),
        op(ADD_IMM, 2, 0, 0, TUPLE_AT as i32),
        op(MOV_IMM, 3, 0, 0, tuple_bytes),
        op(MOV_IMM, 4, 0, 0, -1),
        op(MOV_IMM, 5, 0, 0, 0),
        op(CALL, 0, 0, 0, SK_LOOKUP_TCP),
        op(JUMP_ZERO, 0, 0, 24, 0),
        op(MOV, 8, 0, 0, 0),
        // What it is, and its numbers if it is a whole TCP socket. Of the counts the lower half is
        // enough.
        op(LOAD, 1, 8, SOCK_STATE, 0),
        store(STATE),
        op(LOAD, 1, 8, SOCK_BOUND_DEV_IF, 0),
        store(INTERFACE),
        op(MOV, 1, 8, 0, 0),
        op(CALL, 0, 0, 0, TCP_SOCK),
        op(JUMP_ZERO, 0, 0, 12, 0),
        op(LOAD, 1, 0, TCP_SOCK_RCV_NXT, 0),
        store(RECEIVED_TO),
        op(LOAD_LONG, 1, 0, TCP_SOCK_BYTES_RECEIVED, 0),
        store(RECEIVED),
        op(LOAD, 1, 0, TCP_SOCK_SND_UNA, 0),
        store(ACKNOWLEDGED_TO),
        op(LOAD_LONG, 1, 0, TCP_SOCK_BYTES_ACKED, 0),
        store(ACKNOWLEDGED),
        op(MOV, 1, 8, 0, 0),
        op(CALL, 0, 0, 0, SK_RELEASE),
        op(MOV_IMM, 0, 0, 0, 0),
        op(EXIT, 0, 0, 0, 0),
        // A socket without numbers.
        op(MOV, 1, 8, 0, 0),
        op(CALL, 0, 0, 0, SK_RELEASE),
        op(MOV_IMM, 0, 0, 0, 1),
        op(EXIT, 0, 0, 0, 0),
        // No socket.
        op(MOV_IMM, 0, 0, 0, 1),
        op(EXIT, 0, 0, 0, 0),
    ]
}

/// The part of the kernel's `union bpf_attr` for `BPF_PROG_LOAD` that is used here.
#[repr(C)]
struct LoadAttributes {
    prog_type: u32,
    insn_cnt: u32,
    insns: u64,
    license: u64,
    log_level: u32,
    log_size: u32,
    log_buf: u64,
    kern_version: u32,
    prog_flags: u32,
    prog_name: [u8; 16],
}

fn load(instructions: &[u64]) -> Result<Fd, Errno> {
    let attributes = LoadAttributes {
        prog_type: BPF_PROG_TYPE_SCHED_CLS,
        insn_cnt: instructions.len() as u32,
        insns: instructions.as_ptr() as u64,
        license: c"Apache-2.0".as_ptr() as u64,
        log_level: 0,
        log_size: 0,
        log_buf: 0,
        kern_version: 0,
        prog_flags: 0,
        prog_name: *b"sluice_seq\0\0\0\0\0\0",
    };
    uninterrupted(|| {
        // SAFETY: the kernel reads the attributes, `insn_cnt` instructions and the license string,
        // all alive through the call.
        let ret = unsafe {
            syscall3(
                libc::SYS_bpf,
                int(BPF_PROG_LOAD),
                &raw const attributes as usize,
                size_of::<LoadAttributes>(),
            )
        };
        check(ret).map(|fd| Fd::own(fd as RawFd))
    })
}

/// The part for `BPF_PROG_TEST_RUN`.
#[repr(C)]
struct RunAttributes {
    prog_fd: u32,
    retval: u32,
    data_size_in: u32,
    data_size_out: u32,
    data_in: u64,
    data_out: u64,
    repeat: u32,
    duration: u32,
    ctx_size_in: u32,
    ctx_size_out: u32,
    ctx_in: u64,
    ctx_out: u64,
    flags: u32,
    cpu: u32,
    batch_size: u32,
    _padding: u32,
}

/// The beginning of the kernel's `struct __sk_buff`: the packet's device, and before that what has to
/// be zero.
#[repr(C)]
struct Context {
    zero: [u32; 10],
    ifindex: u32,
}

/// Runs a classifier on `packet`, which comes by this interface (0: loopback), and returns its verdict.
fn run(program: RawFd, packet: &mut [u8; PACKET_BYTES], interface: u32) -> Result<u32, Errno> {
    let context = Context {
        zero: [0; 10],
        ifindex: interface,
    };
    let mut attributes = RunAttributes {
        prog_fd: program as u32,
        retval: 0,
        data_size_in: PACKET_BYTES as u32,
        data_size_out: PACKET_BYTES as u32,
        data_in: packet.as_ptr() as u64,
        data_out: packet.as_mut_ptr() as u64,
        repeat: 1,
        duration: 0,
        ctx_size_in: size_of::<Context>() as u32,
        ctx_size_out: 0,
        ctx_in: &raw const context as u64,
        ctx_out: 0,
        flags: 0,
        cpu: 0,
        batch_size: 0,
        _padding: 0,
    };
    // SAFETY: the kernel reads and writes the attributes, reads the context, and copies PACKET_BYTES
    // bytes from the packet before, and at most as many to it after the run; all are ours alone.
    let ret = unsafe {
        syscall3(
            libc::SYS_bpf,
            int(BPF_PROG_TEST_RUN),
            &raw mut attributes as usize,
            size_of::<RunAttributes>(),
        )
    };
    check(ret)?;
    Ok(attributes.retval)
}
