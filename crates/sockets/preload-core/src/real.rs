//! The functions that the hooks stand in for: the next definition behind this library, as the
//! dynamic linker finds it; and small things that every operation asks them for.
#![allow(unsafe_code)]

use core::cell::UnsafeCell;
use core::ffi::{CStr, c_char, c_int, c_long, c_uint, c_ulong, c_void};
use core::mem::MaybeUninit;
use core::sync::atomic::{AtomicU32, AtomicUsize, Ordering};
use libc::{
    aiocb, epoll_event, fd_set, iovec, mmsghdr, msghdr, off_t, pid_t, pollfd, siginfo_t, sigset_t,
    size_t, sockaddr, socklen_t, ssize_t, timespec, timeval,
};

/// Sets `errno` of this thread.
pub fn set_errno(value: c_int) {
    // SAFETY: the address of this thread's errno is always valid.
    unsafe { *libc::__errno_location() = value }
}

/// `errno` of this thread.
pub fn errno() -> c_int {
    // SAFETY: the address of this thread's errno is always valid.
    unsafe { *libc::__errno_location() }
}

unsafe extern "C" fn missing() -> c_long {
    set_errno(libc::ENOSYS);
    -1
}

macro_rules! real {
    ($($name:ident($($arg:ty),*) -> $ret:ty;)*) => {
        /// One pointer for each function.
        #[allow(missing_docs)]
        pub struct Real { $(pub $name: unsafe extern "C" fn($($arg),*) -> $ret,)* }

        fn resolve() -> Real {
            Real { $($name: {
                let name = concat!(stringify!($name), "\0");
                // SAFETY: the name ends with a zero byte.
                let found = unsafe { libc::dlsym(libc::RTLD_NEXT, name.as_ptr().cast::<c_char>()) };
                let address = if found.is_null() { missing as *mut c_void } else { found };
                // SAFETY: the symbol is the C library's function with this signature; variadic
                // ones are called with their fixed arguments (docs/limitations.md). A missing
                // one is replaced by a function that fails, whose arguments are ignored.
                unsafe { core::mem::transmute::<*mut c_void, unsafe extern "C" fn($($arg),*) -> $ret>(address) }
            },)* }
        }
    };
}

real! {
    socket(c_int, c_int, c_int) -> c_int;
    connect(c_int, *const sockaddr, socklen_t) -> c_int;
    bind(c_int, *const sockaddr, socklen_t) -> c_int;
    listen(c_int, c_int) -> c_int;
    accept(c_int, *mut sockaddr, *mut socklen_t) -> c_int;
    accept4(c_int, *mut sockaddr, *mut socklen_t, c_int) -> c_int;
    read(c_int, *mut c_void, size_t) -> ssize_t;
    write(c_int, *const c_void, size_t) -> ssize_t;
    readv(c_int, *const iovec, c_int) -> ssize_t;
    writev(c_int, *const iovec, c_int) -> ssize_t;
    preadv2(c_int, *const iovec, c_int, off_t, c_int) -> ssize_t;
    pwritev2(c_int, *const iovec, c_int, off_t, c_int) -> ssize_t;
    recv(c_int, *mut c_void, size_t, c_int) -> ssize_t;
    send(c_int, *const c_void, size_t, c_int) -> ssize_t;
    recvfrom(c_int, *mut c_void, size_t, c_int, *mut sockaddr, *mut socklen_t) -> ssize_t;
    sendto(c_int, *const c_void, size_t, c_int, *const sockaddr, socklen_t) -> ssize_t;
    recvmsg(c_int, *mut msghdr, c_int) -> ssize_t;
    sendmsg(c_int, *const msghdr, c_int) -> ssize_t;
    recvmmsg(c_int, *mut mmsghdr, c_uint, c_int, *mut timespec) -> c_int;
    sendmmsg(c_int, *mut mmsghdr, c_uint, c_int) -> c_int;
    sendfile(c_int, c_int, *mut off_t, size_t) -> ssize_t;
    splice(c_int, *mut i64, c_int, *mut i64, size_t, c_uint) -> ssize_t;
    tee(c_int, c_int, size_t, c_uint) -> ssize_t;
    poll(*mut pollfd, c_ulong, c_int) -> c_int;
    ppoll(*mut pollfd, c_ulong, *const timespec, *const sigset_t) -> c_int;
    select(c_int, *mut fd_set, *mut fd_set, *mut fd_set, *mut timeval) -> c_int;
    pselect(c_int, *mut fd_set, *mut fd_set, *mut fd_set, *const timespec, *const sigset_t) -> c_int;
    epoll_create(c_int) -> c_int;
    epoll_create1(c_int) -> c_int;
    epoll_ctl(c_int, c_int, c_int, *mut epoll_event) -> c_int;
    epoll_wait(c_int, *mut epoll_event, c_int, c_int) -> c_int;
    epoll_pwait(c_int, *mut epoll_event, c_int, c_int, *const sigset_t) -> c_int;
    epoll_pwait2(c_int, *mut epoll_event, c_int, *const timespec, *const sigset_t) -> c_int;
    close(c_int) -> c_int;
    close_range(c_uint, c_uint, c_int) -> c_int;
    closefrom(c_int) -> ();
    shutdown(c_int, c_int) -> c_int;
    dup(c_int) -> c_int;
    dup2(c_int, c_int) -> c_int;
    dup3(c_int, c_int, c_int) -> c_int;
    fcntl(c_int, c_int, usize) -> c_int;
    ioctl(c_int, c_ulong, usize) -> c_int;
    getpeername(c_int, *mut sockaddr, *mut socklen_t) -> c_int;
    getsockname(c_int, *mut sockaddr, *mut socklen_t) -> c_int;
    getsockopt(c_int, c_int, c_int, *mut c_void, *mut socklen_t) -> c_int;
    setsockopt(c_int, c_int, c_int, *const c_void, socklen_t) -> c_int;
    fdopen(c_int, *const c_char) -> *mut c_void;
    vdprintf(c_int, *const c_char, *mut c_void) -> c_int;
    __vdprintf_chk(c_int, c_int, *const c_char, *mut c_void) -> c_int;
    aio_read(*mut aiocb) -> c_int;
    aio_write(*mut aiocb) -> c_int;
    lio_listio(c_int, *const *mut aiocb, c_int, *mut c_void) -> c_int;
    execve(*const c_char, *const *const c_char, *const *const c_char) -> c_int;
    execvpe(*const c_char, *const *const c_char, *const *const c_char) -> c_int;
    fexecve(c_int, *const *const c_char, *const *const c_char) -> c_int;
    execveat(c_int, *const c_char, *const *const c_char, *const *const c_char, c_int) -> c_int;
    posix_spawn(*mut pid_t, *const c_char, *const c_void, *const c_void, *const *const c_char, *const *const c_char) -> c_int;
    posix_spawnp(*mut pid_t, *const c_char, *const c_void, *const c_void, *const *const c_char, *const *const c_char) -> c_int;
    posix_spawn_file_actions_adddup2(*mut c_void, c_int, c_int) -> c_int;
    system(*const c_char) -> c_int;
    popen(*const c_char, *const c_char) -> *mut c_void;
    _exit(c_int) -> !;
    prctl(c_int, usize, usize, usize, usize) -> c_int;
    syscall(c_long, usize, usize, usize, usize, usize, usize) -> c_long;
    vfork() -> pid_t;
    fork() -> pid_t;
    forkpty(*mut c_int, *mut c_char, *const c_void, *const c_void) -> pid_t;
    daemon(c_int, c_int) -> c_int;
    wait(*mut c_int) -> pid_t;
    waitpid(pid_t, *mut c_int, c_int) -> pid_t;
    wait3(*mut c_int, c_int, *mut c_void) -> pid_t;
    wait4(pid_t, *mut c_int, c_int, *mut c_void) -> pid_t;
    waitid(c_uint, c_uint, *mut siginfo_t, c_int) -> c_int;
}

unsafe extern "C" {
    fn dlvsym(handle: *mut c_void, name: *const c_char, version: *const c_char) -> *mut c_void;
}

/// A `dlsym` cannot be found by itself; these versions have it, new C libraries first.
const VERSIONS: [&CStr; 2] = [c"GLIBC_2.34", c"GLIBC_2.2.5"];
static DLSYM: AtomicUsize = AtomicUsize::new(0);

/// The address of dlsym(3) behind this library.
pub fn dlsym() -> usize {
    found_once(&DLSYM, || {
        VERSIONS
            .iter()
            // SAFETY: both names are strings.
            .map(|version| unsafe {
                dlvsym(libc::RTLD_NEXT, c"dlsym".as_ptr(), version.as_ptr()) as usize
            })
            .find(|address| *address != 0)
            .unwrap_or(0)
    })
}

/// The definition of a function behind this library; 0 if there is none.
pub fn next(name: &CStr) -> usize {
    type Dlsym = unsafe extern "C" fn(*mut c_void, *const c_char) -> *mut c_void;
    // SAFETY: the address is that of dlsym(3), and the name a string.
    unsafe {
        core::mem::transmute::<usize, Dlsym>(dlsym())(libc::RTLD_NEXT, name.as_ptr()) as usize
    }
}

/// What `find` finds, which is asked once.
pub fn found_once(place: &AtomicUsize, find: impl FnOnce() -> usize) -> usize {
    match place.load(Ordering::Relaxed) {
        0 => {
            let address = find();
            place.store(address, Ordering::Relaxed);
            address
        }
        address => address,
    }
}

struct Cell(UnsafeCell<MaybeUninit<Real>>);

// SAFETY: written once, before `STATE` says so, then only read.
unsafe impl Sync for Cell {}

static REAL: Cell = Cell(UnsafeCell::new(MaybeUninit::uninit()));
static STATE: AtomicU32 = AtomicU32::new(EMPTY);
const EMPTY: u32 = 0;
const FILLING: u32 = 1;
const FULL: u32 = 2;

/// The real functions. The first call finds them; a hook may be called before this library's
/// own constructor.
#[inline]
pub fn real() -> &'static Real {
    if STATE.load(Ordering::Acquire) != FULL {
        fill();
    }
    // SAFETY: full, and never written again.
    unsafe { (*REAL.0.get()).assume_init_ref() }
}

#[cold]
fn fill() {
    let errno = errno();
    let found = resolve();
    if STATE
        .compare_exchange(EMPTY, FILLING, Ordering::AcqRel, Ordering::Acquire)
        .is_ok()
    {
        // SAFETY: only the one thread that moved the state from empty writes.
        unsafe { (*REAL.0.get()).write(found) };
        STATE.store(FULL, Ordering::Release);
    }
    while STATE.load(Ordering::Acquire) != FULL {
        sluice_lane::spin::yield_processor();
    }
    set_errno(errno);
}

unsafe extern "C" {
    /// Ends the thread if somebody has cancelled it.
    safe fn pthread_testcancel();
}

/// Most calls that can block are cancellation points, whether they block or not (pthreads(7)).
/// The C library's are, but rings answer without them.
#[inline]
pub(crate) fn cancellation_point() {
    pthread_testcancel();
}

/// Whether calls on the descriptor return when they would have to wait.
pub(crate) fn is_nonblocking(fd: c_int) -> bool {
    // SAFETY: F_GETFL takes and returns numbers.
    let flags = unsafe { (real().fcntl)(fd, libc::F_GETFL, 0) };
    flags >= 0 && flags & libc::O_NONBLOCK != 0
}
