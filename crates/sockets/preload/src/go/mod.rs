//! Programs of Go's that have a C library (cgo), under `sluice run --static` (decision 0073).
//!
//! Such a program loads the library as all dynamic ones do, and its threads are the C library's. But Go's runtime makes
//! its system calls itself: at one place, which is changed here before the program's first instruction, to a jump to
//! [`calls`]. What is not recognised stays as it is, on TCP.

mod calls;

use core::ffi::{CStr, c_int, c_void};
use core::slice;

use sluice_go::{Piece, Runtime, Unknown, jump};
use sluice_preload_core::log;

/// Set by `sluice run --static`.
const WANTED: &CStr = c"SLUICE_STATIC_LOADER";
/// Pieces of a program that are looked at. Go's have about six.
const SEGMENTS_MAX: usize = 16;
/// The C libraries of which one is needed where threads are the C library's.
const C_LIBRARIES: [&[u8]; 2] = [b"libc.so.", b"libpthread.so."];

const PAGE_BYTES: u64 = 4096;
/// Of a piece of code, when it is changed and when it is not.
const CHANGING: c_int = libc::PROT_READ | libc::PROT_WRITE;
const AS_IT_WAS: c_int = libc::PROT_READ | libc::PROT_EXEC;

/// The program's memory.
#[derive(Default)]
struct Program {
    code: Pieces,
    data: Pieces,
    has_c_library: bool,
}

#[derive(Default)]
struct Pieces {
    all: [Piece<'static>; SEGMENTS_MAX],
    count: usize,
}

impl Pieces {
    fn add(&mut self, piece: Piece<'static>) {
        if let Some(place) = self.all.get_mut(self.count) {
            *place = piece;
            self.count += 1;
        }
    }

    fn get(&self) -> &[Piece<'static>] {
        &self.all[..self.count]
    }
}

/// Looks whether the program is one of Go's, and has its runtime call the library if it is wanted. To be called before the
/// program runs.
pub fn start() {
    // SAFETY: no other thread runs yet that could change the environment.
    if unsafe { libc::getenv(WANTED.as_ptr()) }.is_null() {
        return;
    }
    let mut program = Program::default();
    // SAFETY: `look` takes what the dynamic linker passes, and `program` lives as long as the call.
    unsafe { libc::dl_iterate_phdr(Some(look), (&raw mut program).cast()) };
    if !program.has_c_library {
        return;
    }
    match Runtime::find(program.code.get(), program.data.get()) {
        Ok(runtime) if !change(&runtime) => {
            log!(
                Warn,
                "a program of Go's whose code cannot be changed: on TCP"
            );
        }
        Ok(_) | Err(Unknown::NotGo(_)) => {}
        Err(unknown) => log!(Warn, "a program of Go's on TCP: {unknown}"),
    }
}

/// Takes the first of all, the program.
unsafe extern "C" fn look(info: *mut libc::dl_phdr_info, _: usize, to: *mut c_void) -> c_int {
    // SAFETY: the dynamic linker's own structure, whose headers are in memory, and the caller's value.
    let (info, program) = unsafe { (&*info, &mut *to.cast::<Program>()) };
    // SAFETY: so many headers are there.
    let headers = unsafe { slice::from_raw_parts(info.dlpi_phdr, info.dlpi_phnum.into()) };
    for header in headers {
        let address = info.dlpi_addr + header.p_vaddr;
        match header.p_type {
            libc::PT_LOAD if header.p_flags & libc::PF_R != 0 && header.p_filesz > 0 => {
                // SAFETY: mapped, and readable, for the process's life. The code does not change before it runs
                // but by us, and what the build information is in is not changed by relocations.
                let bytes = unsafe {
                    slice::from_raw_parts(address as *const u8, header.p_filesz as usize)
                };
                if header.p_flags & libc::PF_X != 0 {
                    program.code.add((address, bytes));
                } else if header.p_flags & libc::PF_W != 0 {
                    program.data.add((address, bytes));
                }
            }
            libc::PT_DYNAMIC => {
                // SAFETY: the program's dynamic section, which the dynamic linker has read.
                program.has_c_library = unsafe { needs_c_library(address as *const Dynamic) };
            }
            _ => {}
        }
    }
    1
}

/// An entry of a dynamic section: its kind, and a value.
type Dynamic = (i64, u64);

/// Whether a program names a C library among those that it needs.
///
/// # Safety
/// `section` is that of a program that the dynamic linker has loaded, which ends with an entry of kind 0.
unsafe fn needs_c_library(section: *const Dynamic) -> bool {
    const NULL: i64 = 0;
    const NEEDED: i64 = 1;
    const STRINGS: i64 = 5;
    let entries = || {
        let mut next = section;
        core::iter::from_fn(move || {
            // SAFETY: the caller's promise; nothing behind the entry of kind 0 is read.
            unsafe {
                let entry = *next;
                next = next.add(1);
                (entry.0 != NULL).then_some(entry)
            }
        })
    };
    let Some((_, strings)) = entries().find(|(kind, _)| *kind == STRINGS) else {
        return false;
    };
    entries()
        .filter(|(kind, _)| *kind == NEEDED)
        .any(|(_, at)| {
            // SAFETY: the dynamic linker has made the strings' address one in memory, and found the library by this name.
            let name = unsafe { CStr::from_ptr((strings + at) as *const _) }.to_bytes();
            C_LIBRARIES.iter().any(|library| name.starts_with(library))
        })
}

/// Has the runtime jump to the library. False, and nothing is changed, where that cannot be.
fn change(runtime: &Runtime) -> bool {
    let Some(stubs) = calls::prepare(runtime) else {
        return false;
    };
    let changes = [
        Some((runtime.syscall6, stubs.syscall6)),
        Some((runtime.exit, stubs.exit)),
        runtime.vfork.map(|place| (place, stubs.vfork)),
    ];
    let changes = || changes.iter().flatten();
    let mut is_open = true;
    for (place, _) in changes() {
        is_open &= protect(*place, CHANGING);
    }
    for (place, target) in changes().filter(|_| is_open) {
        let bytes = jump(*target);
        // SAFETY: the function at this place is longer, its memory can be written, and nobody runs it yet.
        unsafe {
            core::ptr::copy_nonoverlapping(bytes.as_ptr(), *place as *mut u8, bytes.len());
        }
    }
    for (place, _) in changes() {
        protect(*place, AS_IT_WAS);
    }
    is_open
}

/// Gives the pages on which a jump at this place lies other rights. False if that failed.
fn protect(place: u64, rights: c_int) -> bool {
    let first = place / PAGE_BYTES * PAGE_BYTES;
    let bytes = (place + sluice_go::JUMP_BYTES as u64 - first).next_multiple_of(PAGE_BYTES);
    // SAFETY: the pages are the program's code.
    unsafe { libc::mprotect(first as *mut c_void, bytes as usize, rights) == 0 }
}
