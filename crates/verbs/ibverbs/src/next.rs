//! The definitions of functions that this library has a stand-in for.

use std::ffi::{CStr, c_void};
use std::ptr;
use std::sync::atomic::{AtomicI32, AtomicUsize, Ordering};

use sluice_verbs_calls::errno::{errno, set_errno};

/// The C library's definition of a function: the next one behind this library, as a rule.
pub struct Next {
    name: &'static CStr,
    /// 0: not looked up yet, or nowhere.
    address: AtomicUsize,
    /// The threads that look it up, by the kernel's numbers; 0: none.
    lookers: [AtomicI32; LOOKERS_MAX],
}

/// Threads that look one function up at a time. More wait for one of these.
const LOOKERS_MAX: usize = 8;

impl Next {
    pub const fn new(name: &'static CStr) -> Self {
        Self {
            name,
            address: AtomicUsize::new(0),
            lookers: [const { AtomicI32::new(0) }; LOOKERS_MAX],
        }
    }

    /// None where there is no other definition, and for a call that the look-up itself makes.
    pub fn get(&self) -> Option<*const c_void> {
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
        static NEXT: $crate::next::Next = $crate::next::Next::new(
            match std::ffi::CStr::from_bytes_with_nul(concat!(stringify!($name), "\0").as_bytes()) {
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
                        *const std::ffi::c_void,
                        unsafe extern "C" fn($($type),*) $(-> $ret)?,
                    >(address);
                    function($($value),*)
                }
            }
            None => $otherwise,
        }
    }};
}
pub(crate) use next;

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
}
