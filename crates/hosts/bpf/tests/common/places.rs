//! What is attached to a cgroup, as the kernel says.

use std::fs::File;
use std::os::fd::AsRawFd;

use super::{Group, until};

/// bpf(2) with an attribute of 32-bit words.
pub fn bpf(command: i64, attribute: &mut [u32]) -> i64 {
    let (address, len) = (attribute.as_mut_ptr(), size_of_val(attribute));
    // SAFETY: the callers give attributes whose addresses are valid for their commands.
    unsafe { libc::syscall(libc::SYS_bpf, command, address, len) }
}

pub fn words(address: *const u8) -> [u32; 2] {
    [address as usize as u32, (address as usize >> 32) as u32]
}

pub const SOCKET_OPERATIONS: u32 = 3;
/// Every place of a cgroup that the programs of this crate are attached to, and how many there are.
pub const PLACES: [(u32, usize); 8] = [
    (SOCKET_OPERATIONS, 2),
    (10, 1),
    (11, 1),
    (29, 1),
    (30, 1),
    (31, 1),
    (32, 1),
    (34, 1),
];

/// Numbers of the programs that are attached at a place of a cgroup.
pub fn attached(group: &Group, place: u32) -> Vec<u32> {
    const PROG_QUERY: i64 = 16;
    let directory = File::open(group.path()).expect("there");
    let mut ids = [0u32; 64];
    let [low, high] = words(ids.as_mut_ptr().cast());
    let target = directory.as_raw_fd() as u32;
    let mut attribute = [target, place, 0, 0, low, high, 64, 0, 0, 0];
    let ret = bpf(PROG_QUERY, &mut attribute);
    assert_eq!(ret, 0, "{}", std::io::Error::last_os_error());
    ids[..attribute[6] as usize].to_vec()
}

pub fn all_attached(group: &Group) -> Vec<u32> {
    PLACES
        .iter()
        .flat_map(|(place, _)| attached(group, *place))
        .collect()
}

/// Drops what is attached there, and waits until it is not: a child that another test starts at this moment has the
/// descriptors too, until it executes its program.
pub fn detach<T>(group: &Group, held: T) {
    drop(held);
    until("nothing is attached", || all_attached(group).is_empty());
}
