//! Whether the program is linked with libibverbs or librdmacm, itself or by a library that it started with.
//!
//! `sluice verbs` preloads this library into everything that it starts: shells and interpreters, too.

use std::ffi::{CStr, c_int, c_void};
use std::mem::size_of;
use std::ptr;
use std::sync::OnceLock;

static IS_LINKED: OnceLock<bool> = OnceLock::new();

/// None before this library's constructor has run, which runs before those of whoever needs the library.
pub fn is_linked() -> Option<bool> {
    match cfg!(test) {
        true => Some(true),
        false => IS_LINKED.get().copied(),
    }
}

/// Looks once, when the program starts and all that it is linked with is there.
#[cfg_attr(not(test), used, unsafe(link_section = ".init_array"))]
#[cfg_attr(test, allow(dead_code))]
static CONSTRUCTOR: extern "C" fn() = look;

extern "C" fn look() {
    let mut found = false;
    // SAFETY: `needs_us` is called for each object during this call, with this pointer.
    unsafe { libc::dl_iterate_phdr(Some(needs_us), (&raw mut found).cast()) };
    // Once: a library has one constructor.
    let _ = IS_LINKED.set(found);
}

/// # Safety
/// dl_iterate_phdr(3); `found` leads to a `bool`.
unsafe extern "C" fn needs_us(
    object: *mut libc::dl_phdr_info,
    _bytes: usize,
    found: *mut c_void,
) -> c_int {
    // SAFETY: the caller's contract.
    let needs_us = unsafe { needed(&*object) }.any(|name| {
        let names: [&[u8]; 2] = [b"libibverbs.", b"librdmacm."];
        names.iter().any(|own| name.to_bytes().starts_with(own))
    });
    if needs_us {
        // SAFETY: the caller's contract.
        unsafe { *found.cast::<bool>() = true };
    }
    c_int::from(needs_us)
}

/// The names of what an object needs (`DT_NEEDED`, elf(5)).
///
/// # Safety
/// The object is loaded as long as the names are used.
unsafe fn needed(object: &libc::dl_phdr_info) -> impl Iterator<Item = &CStr> {
    let base = object.dlpi_addr as usize;
    // SAFETY: the object's own list, by dl_iterate_phdr(3).
    let headers =
        unsafe { std::slice::from_raw_parts(object.dlpi_phdr, usize::from(object.dlpi_phnum)) };
    let section = headers
        .iter()
        .find(|header| header.p_type == libc::PT_DYNAMIC);
    let entries = section.map_or(&[][..], |header| {
        let start =
            ptr::with_exposed_provenance::<Dynamic>(base.wrapping_add(header.p_vaddr as usize));
        // SAFETY: the dynamic linker reads this section, too, which stays mapped.
        unsafe { std::slice::from_raw_parts(start, header.p_memsz as usize / size_of::<Dynamic>()) }
    });
    let entries = entries.iter().take_while(|entry| entry.tag != DT_NULL);
    let mut strings = entries.clone().filter(|entry| entry.tag == DT_STRTAB);
    let strings = strings.next().map(|entry| match entry.value {
        // Not relocated: the kernel's vdso.
        offset if offset < base => base + offset,
        address => address,
    });
    let names = entries.filter(|entry| entry.tag == DT_NEEDED);
    names.filter_map(move |entry| {
        let name = ptr::with_exposed_provenance(strings?.wrapping_add(entry.value));
        // SAFETY: a string of the object's table.
        Some(unsafe { CStr::from_ptr(name) })
    })
}

const DT_NULL: isize = 0;
const DT_NEEDED: isize = 1;
const DT_STRTAB: isize = 5;

/// `ElfW(Dyn)`.
#[repr(C)]
struct Dynamic {
    tag: isize,
    value: usize,
}

#[cfg(test)]
mod tests {
    use super::*;

    /// # Safety
    /// As [`needs_us`]; `found` leads to a counter.
    unsafe extern "C" fn needs_libc(
        object: *mut libc::dl_phdr_info,
        _bytes: usize,
        found: *mut c_void,
    ) -> c_int {
        // SAFETY: the caller's contract.
        unsafe {
            let names = needed(&*object).filter(|name| name.to_bytes().starts_with(b"libc.so"));
            *found.cast::<usize>() += names.count();
        }
        0
    }

    #[test]
    fn a_program_needs_the_c_library_and_this_one_not_ours() {
        let mut count = 0_usize;
        // SAFETY: the function is for such a counter.
        unsafe { libc::dl_iterate_phdr(Some(needs_libc), (&raw mut count).cast()) };
        assert!(count > 0);
        look();
        assert_eq!(IS_LINKED.get(), Some(&false));
    }
}
