use super::*;

fn fill(address: *mut u8, len: usize, value: u8) {
    // SAFETY: tests pass allocations of theirs.
    unsafe { core::ptr::write_bytes(address, value, len) };
}

fn byte(address: *const u8) -> u8 {
    // SAFETY: tests pass an address inside an allocation of theirs.
    unsafe { address.read_volatile() }
}

#[test]
fn allocations_are_aligned_found_and_freed_once() {
    let a = aligned_alloc(4096, 10_000);
    let b = aligned_alloc(2 << 20, 4096);
    assert!(!a.is_null() && !b.is_null());
    assert_eq!((a.addr() % 4096, b.addr() % (2 << 20)), (0, 0));
    assert_eq!(usable_size(a), Some(12_288));
    fill(a, 12_288, 7);
    let (region_id, offset) = locate(a as u64 + 5, 100).unwrap();
    let (fd, bytes) = region(region_id).unwrap();
    let mut seen = [0; 1];
    sluice_sys::memfd::read_at(fd, &mut seen, offset).unwrap();
    assert_eq!(seen, [7]);
    assert!(bytes >= offset as usize + 100);
    assert!(is_ours(a) && !free(a.wrapping_add(4096)));
    assert!(free(a) && !free(a) && free(b));
    let mut local = 0u8;
    assert!(!is_ours(&raw const local) && !free(&raw mut local));
    assert_eq!(locate(&raw const local as u64, 1), None);
}

#[test]
fn a_child_has_a_copy_of_what_was_allocated() {
    let len = 1 << 20;
    let memory = aligned_alloc(4096, len);
    fill(memory, len, 1);
    let shared = shared_mmap(4096);
    fill(shared, 4096, 1);
    // SAFETY: the child makes system calls and touches memory only.
    let pid = unsafe { libc::fork() };
    if pid == 0 {
        let copied = byte(memory) == 1 && byte(memory.wrapping_add(len - 1)) == 1;
        fill(memory, len, 2);
        fill(shared, 4096, 3);
        let private = locate(memory as u64, 1).is_none() && locate(shared as u64, 1).is_some();
        let fresh = aligned_alloc(4096, 4096);
        let works = locate(fresh as u64, 1).is_some() && free(memory);
        // SAFETY: ends the child without running the test harness's handlers.
        unsafe { libc::_exit(i32::from(!(copied && private && works))) };
    }
    assert_eq!(wait_for(pid), 0);
    assert_eq!(byte(memory), 1, "the child wrote to its own copy");
    assert_eq!(byte(shared), 3, "what was asked to be shared is");
    assert!(free(memory));
}

/// A daemon closes all descriptors, the arena's too, and opens a file that gets its number.
#[test]
fn a_file_with_the_number_of_a_closed_one_is_left_alone() {
    const LEN: usize = 1 << 20;
    // In a child, which has a region of its own from its first allocation on: other tests need theirs.
    // SAFETY: the child makes system calls and uses memory, whose locks the C library takes across the fork.
    let pid = unsafe { libc::fork() };
    if pid == 0 {
        let status = i32::from(!a_closed_file_is_not_missed(LEN));
        // SAFETY: ends the child without running the test harness's handlers.
        unsafe { libc::_exit(status) };
    }
    assert_eq!(wait_for(pid), 0);
}

fn a_closed_file_is_not_missed(len: usize) -> bool {
    let memory = aligned_alloc(4096, len);
    fill(memory, len, 1);
    let Some((own, _)) = locate(memory as u64, 1).and_then(|(id, _)| region(id)) else {
        return false;
    };
    let Ok(theirs) = memfd::create(c"theirs") else {
        return false;
    };
    if memfd::write_at(theirs.raw(), &[7; 4096], 0).is_err() {
        return false;
    }
    // SAFETY: the number stays open, as another file's.
    if unsafe { libc::dup2(theirs.raw(), own) } != own {
        return false;
    }
    // SAFETY: the child touches memory and ends.
    let pid = unsafe { libc::fork() };
    if pid == 0 {
        let has_copy = byte(memory) == 1 && byte(memory.wrapping_add(len - 1)) == 1;
        // SAFETY: ends the child without running the test harness's handlers.
        unsafe { libc::_exit(i32::from(!has_copy)) };
    }
    let mut contents = [0; 4096];
    wait_for(pid) == 0
        && free(memory)
        && memfd::read_at(own, &mut contents, 0) == Ok(4096)
        && contents == [7; 4096]
}

fn wait_for(pid: i32) -> i32 {
    let mut status = -1;
    // SAFETY: waits for our child.
    unsafe { libc::waitpid(pid, &raw mut status, 0) };
    status
}

#[test]
fn an_unmapped_shared_mapping_is_not_taken_for_one() {
    let shared = shared_mmap(8192);
    assert!(locate(shared as u64, 8192).is_some());
    // SAFETY: unmaps our own mapping, and maps other memory in its place.
    unsafe {
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED;
        let place = shared.wrapping_add(4096).cast();
        libc::mmap(place, 4096, libc::PROT_READ, flags, -1, 0);
    }
    // What is left is found, and the next mapping, which looks for unmapped ones, changes nothing.
    for _ in 0..2 {
        assert!(locate(shared as u64, 4096).is_some());
        assert_eq!(locate(shared as u64, 8192), None);
        assert!(!shared_mmap(4096).is_null());
    }
}
