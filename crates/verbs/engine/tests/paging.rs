//! Regions whose pages come on demand.
#![allow(unsafe_code)]

mod loopback;

use loopback::*;
use sluice_verbs::*;

/// Pages of a mapping that are in memory.
fn resident(start: *mut libc::c_void, pages: usize) -> usize {
    let mut residence = vec![0; pages];
    // SAFETY: a byte for each page of a mapping.
    let answer = unsafe { libc::mincore(start, pages * 4096, residence.as_mut_ptr()) };
    assert_eq!(answer, 0);
    residence.iter().filter(|page| **page & 1 == 1).count()
}

#[test]
fn pages_that_come_on_demand_are_not_brought_in() {
    const PAGES: usize = 5000;
    let world = world();
    // SAFETY: a new mapping.
    let start = unsafe {
        libc::mmap(
            core::ptr::null_mut(),
            PAGES * 4096,
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
            -1,
            0,
        )
    };
    assert_ne!(start, libc::MAP_FAILED);
    // SAFETY: advice about the mapping that was just made; a huge page would bring its neighbours in.
    unsafe { libc::madvise(start, PAGES * 4096, libc::MADV_NOHUGEPAGE) };
    let (addr, bytes) = (start as u64, (PAGES * 4096) as u64);
    let reg = |flags| {
        world
            .pd
            .reg_mr(addr, bytes, addr, access::LOCAL_WRITE | flags)
    };
    let region = reg(access::ON_DEMAND).expect("a region");
    assert_eq!(resident(start, PAGES), 2, "its ends, which were tried");
    region.destroy().unwrap();
    let region = reg(0).expect("a region");
    assert_eq!(resident(start, PAGES), PAGES);
    region.destroy().unwrap();
    // A hole in the middle, behind what one look takes in.
    // SAFETY: of the mapping, which nobody uses.
    unsafe { libc::munmap(start.byte_add(4500 * 4096), 4096) };
    assert_eq!(reg(access::ON_DEMAND).err(), Some(Error::BadAddress));
}
