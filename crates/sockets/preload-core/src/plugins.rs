//! Code that finds the C library's functions past this library: plugins that are loaded with `RTLD_DEEPBIND`, which
//! look into their own dependencies first (PHP and Apache load theirs so), functions that are asked for by a handle of
//! the C library (Python's ctypes, JNA), and code in another namespace of the dynamic linker (`dlmopen`).
//!
//! The first two get the hooks as all others do. What is in another namespace has a C library of its own, with
//! an `errno` of its own, so hooks would not do: the process's connections move to TCP.

#![allow(unsafe_code)]

use crate::memory::Scratch;
use crate::real::{self, errno, found_once, next, set_errno};
use crate::unseen;
use core::ffi::{CStr, c_char, c_int, c_long, c_void};
use core::ptr;
use core::sync::atomic::{AtomicUsize, Ordering};
use libc::{Dl_info, Elf64_Phdr, dl_phdr_info};
use sluice_lane::reason::Reason;
use sluice_sys::image::Image;

/// A function of the library that stands in for one of another.
#[repr(C)]
pub struct Hook {
    name: *const c_char,
    function: *const c_void,
}

// SAFETY: two addresses that never change, of a string and of a function.
unsafe impl Sync for Hook {}

impl Hook {
    /// The function, and the name of both, which has a zero at its end.
    ///
    /// # Panics
    /// In a constant: there is no zero.
    pub const fn new(name: &'static str, function: *const c_void) -> Self {
        assert!(matches!(name.as_bytes().last(), Some(0)));
        let name = name.as_ptr().cast();
        Self { name, function }
    }

    /// The name of both.
    fn name(&self) -> &CStr {
        // SAFETY: `new` has seen the zero.
        unsafe { CStr::from_ptr(self.name) }
    }

    fn address(&self) -> *mut c_void {
        self.function.cast_mut()
    }
}

type Hooks = &'static [Hook];

/// `LM_ID_BASE`: the namespace of the program and of this library (dlmopen(3)).
const BASE_NAMESPACE: c_long = 0;
/// `RTLD_NEXT` and `RTLD_DEFAULT`, which are no handles: what they mean depends on who asks.
const NEXT: usize = usize::MAX;
const DEFAULT: usize = 0;

/// What a trampoline is told: where to jump, or, if that is 0, what to return.
#[repr(C)]
pub struct Verdict {
    jump: usize,
    value: usize,
}

impl Verdict {
    fn jump(function: usize) -> Self {
        Self {
            jump: function,
            value: 0,
        }
    }

    fn done(value: *mut c_void) -> Self {
        Self {
            jump: 0,
            value: value as usize,
        }
    }
}

/// The functions behind those of this file.
struct Real {
    dlopen: AtomicUsize,
    dlmopen: AtomicUsize,
}

static REAL: Real = Real {
    dlopen: AtomicUsize::new(0),
    dlmopen: AtomicUsize::new(0),
};

/// The hook with this name.
fn hook(hooks: Hooks, name: &CStr) -> Option<&'static Hook> {
    hooks.iter().find(|hook| hook.name() == name)
}

/// Before `dlsym`; `caller` is an address in the code that asks.
///
/// # Safety
/// As dlsym(3).
pub unsafe fn before_dlsym(
    hooks: Hooks,
    handle: usize,
    name: *const c_char,
    caller: usize,
) -> Verdict {
    let real = real::dlsym();
    if handle == NEXT || handle == DEFAULT || name.is_null() {
        return Verdict::jump(real);
    }
    // SAFETY: the caller's promise: a string.
    let name = unsafe { CStr::from_ptr(name) };
    match hook(hooks, name) {
        // Another library that stands in for the same function asks for what is behind it.
        Some(hook) if !defines(caller, name) => {
            // SAFETY: the address is that of dlsym(3), and the arguments are the program's.
            let found = unsafe {
                type Dlsym = unsafe extern "C" fn(usize, *const c_char) -> *mut c_void;
                core::mem::transmute::<usize, Dlsym>(real)(handle, name.as_ptr())
            };
            let is_real = !found.is_null() && found as usize == next(name);
            Verdict::done(if is_real { hook.address() } else { found })
        }
        _ => Verdict::jump(real),
    }
}

/// Before `dlopen`, and in its place where there is something to do behind it.
///
/// # Safety
/// As dlopen(3).
pub unsafe fn before_dlopen(
    hooks: Hooks,
    file: *const c_char,
    flags: c_int,
    caller: usize,
) -> Verdict {
    let real = found_once(&REAL.dlopen, || next(c"dlopen"));
    if flags & libc::RTLD_DEEPBIND == 0 || file.is_null() {
        return Verdict::jump(real);
    }
    // SAFETY: the caller's promise: a string.
    let file = unsafe { CStr::from_ptr(file) };
    let Some(mut found) = Found::by(caller, file) else {
        unseen::go_blind(
            Reason::PastHooks,
            "a plugin is loaded by a name that cannot be followed",
        );
        return Verdict::jump(real);
    };
    // SAFETY: the address is that of dlopen(3), the path a string, and the flags the program's.
    let handle = unsafe {
        type Dlopen = unsafe extern "C" fn(*const c_char, c_int) -> *mut c_void;
        core::mem::transmute::<usize, Dlopen>(real)(found.path(file).as_ptr(), flags)
    };
    if !handle.is_null() {
        let before = errno();
        bind_all(hooks);
        set_errno(before);
    }
    Verdict::done(handle)
}

/// Before `dlmopen`.
pub fn before_dlmopen(namespace: c_long) -> Verdict {
    if namespace != BASE_NAMESPACE {
        unseen::go_blind(
            Reason::PastHooks,
            "a library is loaded into another namespace of the dynamic linker",
        );
    }
    Verdict::jump(found_once(&REAL.dlmopen, || next(c"dlmopen")))
}

/// Whether the code at `caller` belongs to an image that defines `name`.
fn defines(caller: usize, name: &CStr) -> bool {
    let mut asked = Asked {
        address: caller,
        image: None,
    };
    // SAFETY: the callback is called with `asked`, which lives until the call returns.
    unsafe { libc::dl_iterate_phdr(Some(around), (&raw mut asked).cast()) };
    asked
        .image
        .is_some_and(|image| image.symbol(name).is_some())
}

struct Asked {
    address: usize,
    image: Option<Image>,
}

/// # Safety
/// As dl_iterate_phdr(3) calls it.
unsafe fn headers<'a>(info: *const dl_phdr_info) -> (usize, &'a [Elf64_Phdr]) {
    // SAFETY: the caller's promise.
    unsafe {
        let count = usize::from((*info).dlpi_phnum);
        let headers = core::slice::from_raw_parts((*info).dlpi_phdr, count);
        ((*info).dlpi_addr as usize, headers)
    }
}

fn covers(bias: usize, header: &Elf64_Phdr, address: usize) -> bool {
    let start = bias.wrapping_add(header.p_vaddr as usize);
    address.wrapping_sub(start) < header.p_memsz as usize
}

/// Looks for the image around an address.
unsafe extern "C" fn around(info: *mut dl_phdr_info, _: usize, asked: *mut c_void) -> c_int {
    // SAFETY: the linker tells of an image; `asked` is what `dl_iterate_phdr` was given.
    unsafe {
        let (bias, headers) = headers(info);
        let asked = &mut *asked.cast::<Asked>();
        let is_it = headers
            .iter()
            .any(|one| one.p_type == libc::PT_LOAD && covers(bias, one, asked.address));
        if is_it {
            asked.image = Image::with(bias, headers);
        }
        c_int::from(is_it)
    }
}

/// What each hook stands in for, in the order of the hooks.
struct Functions<'a> {
    hooks: Hooks,
    real: &'a [usize],
}

impl Functions<'_> {
    /// What stands in for the function of this name that an image has found, if it is the one behind the hook.
    fn hook(&self, name: &CStr, is_found: impl FnOnce(usize) -> bool) -> Option<usize> {
        let (hook, real) = self
            .hooks
            .iter()
            .zip(self.real)
            .find(|(hook, _)| hook.name() == name)?;
        (*real != 0 && is_found(*real)).then(|| hook.address() as usize)
    }
}

/// Gives the hooks to all images that found the C library's functions instead, or would.
fn bind_all(hooks: Hooks) {
    let bound = Scratch::take(hooks.len() * size_of::<usize>()).is_some_and(|mut memory| {
        let functions = memory.fill(hooks.len(), 0);
        for (function, hook) in functions.iter_mut().zip(hooks) {
            *function = next(hook.name());
        }
        let functions = Functions {
            hooks,
            real: functions,
        };
        let functions = ptr::from_ref(&functions).cast_mut().cast();
        // SAFETY: the callback is called with `functions`, which lives until the call returns.
        let failed = unsafe { libc::dl_iterate_phdr(Some(bind), functions) };
        failed == 0
    });
    if !bound {
        unseen::go_blind(
            Reason::PastHooks,
            "the functions of a plugin cannot be replaced",
        );
    }
}

/// Gives one image the hooks. 0: it has them.
unsafe extern "C" fn bind(info: *mut dl_phdr_info, _: usize, functions: *mut c_void) -> c_int {
    // SAFETY: the linker tells of an image, which stays for the time of the call; `functions` is what
    // `dl_iterate_phdr` was given.
    unsafe {
        let (bias, headers) = headers(info);
        let functions = &*functions.cast::<Functions>();
        let is_within = |address| {
            let mut loaded = headers.iter().filter(|one| one.p_type == libc::PT_LOAD);
            loaded.any(|one| covers(bias, one, address))
        };
        let (here, read_only) = (bind as *const () as usize, libc::PT_GNU_RELRO);
        let Some(image) = Image::with(bias, headers) else {
            return 0;
        };
        // This library, and the C library with its linker, which find their own.
        if is_within(here)
            || image.symbol(c"dlsym").is_some()
            || image.symbol(c"_dl_find_object").is_some()
        {
            return 0;
        }
        let mut failed = 0;
        image.imports(&mut |name, place| {
            let current = *place;
            // A place within the image leads to the linker, which will look for the function at the first call.
            let hook = functions.hook(name, |real| current == real || is_within(current));
            if let Some(hook) = hook {
                let address = place as usize;
                let mut locked = headers.iter().filter(|one| one.p_type == read_only);
                let is_locked = locked.any(|one| covers(bias, one, address));
                if !store(place, hook, is_locked) {
                    failed = 1;
                }
            }
        });
        failed
    }
}

/// Stores an address in a place of the linker's, whose page may be read only since.
///
/// # Safety
/// A place of an image that is mapped.
unsafe fn store(place: *mut usize, value: usize, is_locked: bool) -> bool {
    // SAFETY: the caller's promise. Other threads read the place whole, before or after.
    unsafe {
        let page_bytes = libc::sysconf(libc::_SC_PAGESIZE) as usize;
        let page = (place as usize & !(page_bytes - 1)) as *mut c_void;
        let writable = libc::PROT_READ | libc::PROT_WRITE;
        if is_locked && libc::mprotect(page, page_bytes, writable) != 0 {
            return false;
        }
        AtomicUsize::from_ptr(place).store(value, Ordering::Relaxed);
        !is_locked || libc::mprotect(page, page_bytes, libc::PROT_READ) == 0
    }
}

/// Where a plugin is, for a caller that is not the program's own any more when dlopen(3) asks: a name without a slash is
/// looked for in folders that the caller's image names.
struct Found {
    /// A path that was written; none where the name is to be taken as it is.
    memory: Option<Scratch>,
}

/// `Dl_serinfo` and `Dl_serpath` of <dlfcn.h>.
#[repr(C)]
struct Folders {
    bytes: usize,
    count: u32,
    first: [Folder; 1],
}

#[repr(C)]
struct Folder {
    path: *const c_char,
    flags: u32,
}

impl Found {
    /// `None` for a name that only the linker itself understands.
    fn by(caller: usize, file: &CStr) -> Option<Self> {
        let name = file.to_bytes();
        if name.contains(&b'$') {
            return None;
        }
        if name.contains(&b'/') {
            return Some(Self { memory: None });
        }
        Some(Self {
            memory: Self::in_folders(caller, name),
        })
    }

    fn path<'a>(&'a mut self, file: &'a CStr) -> &'a CStr {
        match &mut self.memory {
            Some(memory) => CStr::from_bytes_until_nul(memory.bytes()).unwrap_or(file),
            None => file,
        }
    }

    fn in_folders(caller: usize, name: &[u8]) -> Option<Scratch> {
        const SERINFO: c_int = 4;
        const SERINFO_SIZE: c_int = 5;
        const LINK_MAP: c_int = 2;
        const IS_DEFAULT: u32 = 0x40;
        unsafe extern "C" {
            fn dladdr1(
                address: *const c_void,
                info: *mut Dl_info,
                more: *mut *mut c_void,
                kind: c_int,
            ) -> c_int;
            fn dlinfo(handle: *mut c_void, request: c_int, out: *mut c_void) -> c_int;
        }
        let mut image = ptr::null_mut();
        let mut info = core::mem::MaybeUninit::<Dl_info>::uninit();
        let mut size = Folders {
            bytes: 0,
            count: 0,
            first: [Folder {
                path: ptr::null(),
                flags: 0,
            }],
        };
        // SAFETY: each call writes what its page says, into memory of that size; a handle is the image's entry in
        // the linker's list.
        unsafe {
            let address = caller as *const c_void;
            if dladdr1(address, info.as_mut_ptr(), &raw mut image, LINK_MAP) == 0
                || dlinfo(image, SERINFO_SIZE, (&raw mut size).cast()) != 0
            {
                return None;
            }
            let mut list = Scratch::take(size.bytes)?;
            let folders = list.bytes().as_mut_ptr().cast::<Folders>();
            (*folders).bytes = size.bytes;
            (*folders).count = size.count;
            if dlinfo(image, SERINFO, folders.cast()) != 0 {
                return None;
            }
            let mut path = Scratch::take(libc::PATH_MAX as usize)?;
            let first = (&raw const (*folders).first).cast::<Folder>();
            for at in 0..size.count as usize {
                let folder = &*first.add(at);
                // These are the same for everybody, and known to the linker by its cache.
                if folder.flags & IS_DEFAULT != 0 {
                    break;
                }
                let parts = [CStr::from_ptr(folder.path).to_bytes(), b"/", name, b"\0"];
                if write(path.bytes(), &parts)
                    && libc::access(path.bytes().as_ptr().cast(), libc::R_OK) == 0
                {
                    return Some(path);
                }
            }
        }
        None
    }
}

fn write(mut to: &mut [u8], parts: &[&[u8]]) -> bool {
    parts.iter().all(|part| {
        let Some((place, rest)) = core::mem::take(&mut to).split_at_mut_checked(part.len()) else {
            return false;
        };
        place.copy_from_slice(part);
        to = rest;
        true
    })
}
