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
    let mut status = 0;
    // SAFETY: waits for our child.
    unsafe { libc::waitpid(pid, &raw mut status, 0) };
    assert_eq!(status, 0);
    assert_eq!(byte(memory), 1, "the child wrote to its own copy");
    assert_eq!(byte(shared), 3, "what was asked to be shared is");
    assert!(free(memory));
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
