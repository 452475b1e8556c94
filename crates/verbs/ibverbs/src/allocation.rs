//! Stand-ins for the C library's allocation functions, so that memory a program is likely to
//! register is memory that peers can map: what has page alignment and at least a page, and shared
//! anonymous mappings. Everything else goes on to the next definition.
//!
//! The dynamic linker finds these before the C library's when the program is linked with
//! libibverbs. When it is not (a plugin loads the library later), it finds the C library's for all
//! of them, so that no pointer from here meets a `free` that does not know it.
//!
//! These run in any thread at any time, before constructors and in forked children. They use
//! atomics and the arena's own lock only, no thread-local variables, and look the next definition
//! up on first use.

use std::ffi::{CStr, c_int, c_void};
use std::ptr;
use std::sync::atomic::{AtomicI32, AtomicU8, AtomicUsize, Ordering};

use sluice_transport_shm::arena::{self, PAGE_BYTES};
use sluice_verbs_calls::errno::{errno, set_errno};

/// The C library's definition of a function: the next one behind this library, as a rule.
struct Next {
    name: &'static CStr,
    /// 0: not looked up yet, or nowhere.
    address: AtomicUsize,
    /// The threads that look it up, by the kernel's numbers; 0: none.
    lookers: [AtomicI32; LOOKERS_MAX],
}

/// Threads that look one function up at a time. More wait for one of these.
const LOOKERS_MAX: usize = 8;

impl Next {
    const fn new(name: &'static CStr) -> Self {
        Self {
            name,
            address: AtomicUsize::new(0),
            lookers: [const { AtomicI32::new(0) }; LOOKERS_MAX],
        }
    }

    /// None where there is no other definition, and for a call that the look-up itself makes.
    fn get(&self) -> Option<*const c_void> {
        self.known().or_else(|| self.look_up())
    }

    fn known(&self) -> Option<*const c_void> {
        match self.address.load(Ordering::Acquire) {
            0 => None,
            address => Some(ptr::with_exposed_provenance(address)),
        }
    }

    /// Each thread looks by itself, and waits for no other one: that one may wait for the dynamic linker's lock, which this
    /// one has (dlopen(3)), or get no processor for long, and who has no answer has no memory.
    #[cold]
    fn look_up(&self) -> Option<*const c_void> {
        let saved = errno();
        let found = self.enter().and_then(|looker| {
            let found = self
                .known()
                .or_else(|| find_behind_us(self.name))
                .or_else(|| find_before_us(self.name));
            if let Some(found) = found {
                self.address
                    .store(found.expose_provenance(), Ordering::Release);
            }
            looker.store(0, Ordering::Release);
            found
        });
        set_errno(saved);
        found
    }

    /// Notes that this thread looks. None: it does already.
    fn enter(&self) -> Option<&AtomicI32> {
        let me = this_thread();
        let is = |looker: &AtomicI32, thread| looker.load(Ordering::Acquire) == thread;
        loop {
            if self.lookers.iter().any(|looker| is(looker, me)) {
                return None;
            }
            let free = self.lookers.iter().find(|looker| {
                looker
                    .compare_exchange(0, me, Ordering::AcqRel, Ordering::Relaxed)
                    .is_ok()
            });
            if free.is_some() {
                return free;
            }
            for looker in &self.lookers {
                let thread = looker.load(Ordering::Acquire);
                // Of the parent's, when another thread of it forked.
                if thread != 0 && is_gone(thread) {
                    let _ = looker.compare_exchange(thread, 0, Ordering::AcqRel, Ordering::Relaxed);
                }
            }
            std::thread::yield_now();
        }
    }
}

/// The kernel's number of this thread.
fn this_thread() -> i32 {
    // SAFETY: takes nothing and cannot fail.
    unsafe { libc::syscall(libc::SYS_gettid) as i32 }
}

/// Whether no thread of this process has that number.
fn is_gone(thread: i32) -> bool {
    // SAFETY: numbers go in; signal 0 is sent to nobody.
    unsafe { libc::syscall(libc::SYS_tgkill, libc::getpid(), thread, 0) != 0 }
}

fn find_behind_us(name: &CStr) -> Option<*const c_void> {
    // SAFETY: the name is a string.
    let found = unsafe { libc::dlsym(libc::RTLD_NEXT, name.as_ptr()) };
    (!found.is_null()).then_some(found.cast_const())
}

/// In a program that gets this library by way of another one, the C library may come before both:
/// there is nothing behind us then, and the first definition of all is the one.
fn find_before_us(name: &CStr) -> Option<*const c_void> {
    // SAFETY: the name is a string.
    let found = unsafe { libc::dlsym(libc::RTLD_DEFAULT, name.as_ptr()) }.cast_const();
    (!found.is_null() && file_of(found) != file_of(find_before_us as *const c_void))
        .then_some(found)
}

/// Where the file begins in memory that an address belongs to; null for an address of none.
fn file_of(address: *const c_void) -> *mut c_void {
    // SAFETY: all zeros is a valid value of the plain C structure, and dladdr writes only it.
    unsafe {
        let mut info: libc::Dl_info = std::mem::zeroed();
        match libc::dladdr(address, &mut info) {
            0 => ptr::null_mut(),
            _ => info.dli_fbase,
        }
    }
}

/// Calls the next definition, or answers with `otherwise`.
macro_rules! next {
    ($name:ident($($value:expr),*): fn($($type:ty),*) $(-> $ret:ty)?, $otherwise:expr) => {{
        static NEXT: Next = Next::new(
            match CStr::from_bytes_with_nul(concat!(stringify!($name), "\0").as_bytes()) {
                Ok(name) => name,
                Err(_) => panic!("a name without zero bytes"),
            },
        );
        match NEXT.get() {
            Some(address) => {
                // SAFETY: the symbol of this name is a C library's function of this type; the
                // arguments are the caller's.
                unsafe {
                    let function = std::mem::transmute::<
                        *const c_void,
                        unsafe extern "C" fn($($type),*) $(-> $ret)?,
                    >(address);
                    function($($value),*)
                }
            }
            None => $otherwise,
        }
    }};
}

fn no_memory() -> *mut c_void {
    set_errno(libc::ENOMEM);
    ptr::null_mut()
}

/// The variable that turns the stand-ins off, to compare.
const VARIABLE: &CStr = c"SLUICE_VERBS_ARENA";

fn enabled() -> bool {
    const UNKNOWN: u8 = 0;
    const ON: u8 = 1;
    const OFF: u8 = 2;
    static ENABLED: AtomicU8 = AtomicU8::new(UNKNOWN);
    match ENABLED.load(Ordering::Relaxed) {
        UNKNOWN => {
            // SAFETY: the name is a string; the answer is looked at before the program can change
            // its environment, or at the first allocation of this size.
            let value = unsafe { libc::getenv(VARIABLE.as_ptr()) };
            // SAFETY: getenv returns NULL or a string.
            let off = !value.is_null() && unsafe { CStr::from_ptr(value) } == c"off";
            ENABLED.store(if off { OFF } else { ON }, Ordering::Relaxed);
            !off
        }
        state => state == ON,
    }
}

/// Memory that peers can map, for requests that are worth a page; NULL for all others and when
/// there is no more.
fn shareable(align: usize, size: usize) -> *mut c_void {
    if align < PAGE_BYTES || size < PAGE_BYTES || !enabled() {
        return ptr::null_mut();
    }
    let saved = errno();
    let memory = arena::aligned_alloc(align, size);
    set_errno(saved);
    memory.cast()
}

/// # Safety
/// posix_memalign(3).
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn posix_memalign(out: *mut *mut c_void, align: usize, size: usize) -> c_int {
    let memory = shareable(align, size);
    if memory.is_null() {
        return next!(
            posix_memalign(out, align, size): fn(*mut *mut c_void, usize, usize) -> c_int,
            libc::ENOMEM
        );
    }
    // SAFETY: the caller's contract.
    unsafe { *out = memory };
    0
}

/// memalign(3).
#[cfg_attr(not(test), unsafe(no_mangle))]
pub extern "C" fn memalign(align: usize, size: usize) -> *mut c_void {
    let memory = shareable(align, size);
    if memory.is_null() {
        return next!(memalign(align, size): fn(usize, usize) -> *mut c_void, no_memory());
    }
    memory
}

/// aligned_alloc(3).
#[cfg_attr(not(test), unsafe(no_mangle))]
pub extern "C" fn aligned_alloc(align: usize, size: usize) -> *mut c_void {
    let memory = shareable(align, size);
    if memory.is_null() {
        return next!(aligned_alloc(align, size): fn(usize, usize) -> *mut c_void, no_memory());
    }
    memory
}

/// valloc(3).
#[cfg_attr(not(test), unsafe(no_mangle))]
pub extern "C" fn valloc(size: usize) -> *mut c_void {
    let memory = shareable(PAGE_BYTES, size);
    if memory.is_null() {
        return next!(valloc(size): fn(usize) -> *mut c_void, no_memory());
    }
    memory
}

/// pvalloc(3): the size is rounded up to pages.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub extern "C" fn pvalloc(size: usize) -> *mut c_void {
    // A size that cannot be rounded up is for the C library to refuse.
    let memory = size
        .max(1)
        .checked_next_multiple_of(PAGE_BYTES)
        .map_or(ptr::null_mut(), |bytes| shareable(PAGE_BYTES, bytes));
    if memory.is_null() {
        return next!(pvalloc(size): fn(usize) -> *mut c_void, no_memory());
    }
    memory
}

/// # Safety
/// free(3).
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn free(memory: *mut c_void) {
    if arena::is_ours(memory.cast()) {
        let saved = errno();
        arena::free(memory.cast());
        set_errno(saved);
        return;
    }
    // A block that cannot be freed now is lost, which is the least of evils.
    next!(free(memory): fn(*mut c_void), ());
}

/// # Safety
/// realloc(3).
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn realloc(memory: *mut c_void, size: usize) -> *mut c_void {
    if arena::is_ours(memory.cast()) {
        // SAFETY: the caller's contract.
        return unsafe { move_out(memory, size) };
    }
    next!(realloc(memory, size): fn(*mut c_void, usize) -> *mut c_void, no_memory())
}

/// # Safety
/// reallocarray(3).
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn reallocarray(
    memory: *mut c_void,
    count: usize,
    size: usize,
) -> *mut c_void {
    match count.checked_mul(size) {
        // SAFETY: the caller's contract.
        Some(bytes) => unsafe { realloc(memory, bytes) },
        None => no_memory(),
    }
}

/// realloc(3) of a block of the arena. The new block needs no alignment, so it is an ordinary one
/// unless the old one is large enough.
///
/// # Safety
/// `memory` is the start of a block of the arena.
unsafe fn move_out(memory: *mut c_void, size: usize) -> *mut c_void {
    let Some(present) = arena::usable_size(memory.cast()) else {
        return no_memory();
    };
    if size == 0 {
        arena::free(memory.cast());
        return ptr::null_mut();
    }
    if size <= present && size > present / 2 {
        return memory;
    }
    // SAFETY: malloc has no precondition.
    let moved = unsafe { libc::malloc(size) };
    if !moved.is_null() {
        // SAFETY: both blocks have so many bytes, and the new one is nobody else's.
        unsafe { ptr::copy_nonoverlapping(memory.cast::<u8>(), moved.cast(), present.min(size)) };
        arena::free(memory.cast());
    }
    moved
}

/// # Safety
/// malloc_usable_size(3).
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn malloc_usable_size(memory: *mut c_void) -> usize {
    if let Some(size) = arena::usable_size(memory.cast()) {
        return size;
    }
    next!(malloc_usable_size(memory): fn(*mut c_void) -> usize, 0)
}

/// # Safety
/// mmap(2).
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn mmap(
    address: *mut c_void,
    length: usize,
    protection: c_int,
    flags: c_int,
    fd: c_int,
    offset: i64,
) -> *mut c_void {
    let shared = shared_mapping(address, length, protection, flags);
    if !shared.is_null() {
        return shared;
    }
    next!(
        mmap(address, length, protection, flags, fd, offset):
            fn(*mut c_void, usize, c_int, c_int, c_int, i64) -> *mut c_void,
        {
            set_errno(libc::ENOMEM);
            libc::MAP_FAILED
        }
    )
}

/// # Safety
/// mmap(2), whose offset has 64 bits on this machine in any case.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn mmap64(
    address: *mut c_void,
    length: usize,
    protection: c_int,
    flags: c_int,
    fd: c_int,
    offset: i64,
) -> *mut c_void {
    // SAFETY: the caller's contract.
    unsafe { mmap(address, length, protection, flags, fd, offset) }
}

/// Shared anonymous memory at a place of the kernel's choice, and nothing more special than that.
fn shared_mapping(
    address: *mut c_void,
    length: usize,
    protection: c_int,
    flags: c_int,
) -> *mut c_void {
    const PLAIN: c_int = libc::MAP_SHARED | libc::MAP_ANONYMOUS;
    const HARMLESS: c_int = libc::MAP_NORESERVE;
    let wanted = address.is_null()
        && flags & !HARMLESS == PLAIN
        && protection == libc::PROT_READ | libc::PROT_WRITE
        && length >= PAGE_BYTES;
    if !wanted || !enabled() {
        return ptr::null_mut();
    }
    let saved = errno();
    let memory = arena::shared_mmap(length);
    set_errno(saved);
    memory.cast()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_thread_looks_by_itself_and_once_at_a_time() {
        let getpid = Next::new(c"getpid");
        let known = find_before_us(c"getpid");
        assert!(known.is_some());
        // Others look and get no processor.
        let elsewhere = AtomicI32::new(0);
        std::thread::scope(|scope| {
            let (say, said) = std::sync::mpsc::channel::<()>();
            let (end, ended) = std::sync::mpsc::channel::<()>();
            let elsewhere = &elsewhere;
            scope.spawn(move || {
                elsewhere.store(this_thread(), Ordering::Release);
                say.send(()).unwrap();
                let _ = ended.recv();
            });
            said.recv().unwrap();
            let busy = elsewhere.load(Ordering::Acquire);
            for looker in &getpid.lookers[1..] {
                looker.store(busy, Ordering::Release);
            }
            assert_eq!(getpid.get(), known);
            drop(end);
        });
        // This thread looks: its own call has no answer, once nothing is known.
        getpid.address.store(0, Ordering::Release);
        getpid.lookers[0].store(this_thread(), Ordering::Release);
        assert_eq!(getpid.get(), None);
        // All were threads of the parent.
        for looker in &getpid.lookers {
            looker.store(elsewhere.load(Ordering::Acquire), Ordering::Release);
        }
        assert_eq!(getpid.get(), known);
        assert_eq!(Next::new(c"no_such_function").get(), None);
    }

    #[test]
    fn pages_come_from_the_arena_and_everything_else_from_the_c_library() {
        let page = memalign(PAGE_BYTES, PAGE_BYTES);
        assert!(arena::is_ours(page.cast()));
        let small = memalign(64, 64);
        assert!(!small.is_null() && !arena::is_ours(small.cast()));
        let mut out = ptr::null_mut();
        // SAFETY: out is valid; each block is freed once.
        unsafe {
            assert_eq!(posix_memalign(&mut out, 2 * PAGE_BYTES, 10_000), 0);
            assert!(arena::is_ours(out.cast()) && out.addr() % (2 * PAGE_BYTES) == 0);
            assert_eq!(malloc_usable_size(out), 12_288);
            assert_eq!(posix_memalign(&mut out, 3, 10_000), libc::EINVAL);
            free(page);
            free(small);
        }
    }

    #[test]
    fn pvalloc_gives_whole_pages_and_valloc_does_not() {
        // SAFETY: each block is freed once.
        unsafe {
            for (size, pages) in [(0, 1), (1, 1), (PAGE_BYTES, 1), (PAGE_BYTES + 1, 2)] {
                let block = pvalloc(size);
                assert!(arena::is_ours(block.cast()), "{size}");
                assert_eq!(malloc_usable_size(block), pages * PAGE_BYTES, "{size}");
                free(block);
            }
            let block = valloc(1);
            assert!(!block.is_null() && !arena::is_ours(block.cast()));
            free(block);
            assert!(pvalloc(usize::MAX).is_null());
        }
    }

    #[test]
    fn a_block_that_grows_keeps_its_bytes() {
        let block = valloc(PAGE_BYTES).cast::<u8>();
        // SAFETY: the block has a page; each block is freed once.
        unsafe {
            block.write_bytes(7, PAGE_BYTES);
            assert_eq!(realloc(block.cast(), 4000).cast(), block);
            let grown = realloc(block.cast(), 3 * PAGE_BYTES).cast::<u8>();
            assert!(!arena::is_ours(grown));
            assert!((0..PAGE_BYTES).all(|index| *grown.add(index) == 7));
            assert!(reallocarray(grown.cast(), usize::MAX, 2).is_null());
            free(grown.cast());
        }
    }

    #[test]
    fn shared_anonymous_mappings_can_be_located() {
        let (read_write, shared) = (
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_SHARED | libc::MAP_ANONYMOUS,
        );
        // SAFETY: new mappings, unmapped once.
        unsafe {
            let memory = mmap(ptr::null_mut(), 10_000, read_write, shared, -1, 0);
            assert!(arena::locate(memory as u64, 10_000).is_some());
            libc::munmap(memory, 10_000);
            let private = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
            let memory = mmap(ptr::null_mut(), 10_000, read_write, private, -1, 0);
            assert!(arena::locate(memory as u64, 10_000).is_none());
            libc::munmap(memory, 10_000);
        }
    }
}
