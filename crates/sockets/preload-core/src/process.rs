//! The process as a whole: start, fork, exec, confinement, end.
#![allow(unsafe_code)]

use crate::carry::{self, Carry, Way};
use crate::descriptors::export_all;
use crate::fds;
use crate::reach::Target;
use crate::real::{errno, real, set_errno};
use crate::seccomp::{self, Standing};
use crate::{
    children, config, conn, descriptors, epoll, gateway, leave, link, lock, log, outward, policy,
    stats,
};
use core::ffi::{c_char, c_int};
use core::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use sluice_lane::confined;
use sluice_lane::end::State;
use sluice_lane::reason::Reason;
use sluice_sys::{raw, tcp};

static PID: AtomicU32 = AtomicU32::new(0);
static CONFINED: AtomicBool = AtomicBool::new(false);
/// This is a forked child: its end table is its parent's.
static IS_FORKED: AtomicBool = AtomicBool::new(false);
/// This process and all that share its end table know each other by the same numbers. Not so in
/// another PID namespace, and unknown when the parent ends at once.
static KNOWS_OWNERS: AtomicBool = AtomicBool::new(true);
/// Forks that have begun.
static FORKS: AtomicU32 = AtomicU32::new(0);
/// Who forked last, for the child.
static FORKER: AtomicU32 = AtomicU32::new(0);
static SANDBOXED: AtomicBool = AtomicBool::new(false);
/// Threads between vfork and the moment the parent is seen to run again.
static VFORKS: AtomicU32 = AtomicU32::new(0);

/// This process, without a system call.
pub fn pid() -> u32 {
    match PID.load(Ordering::Relaxed) {
        0 => current_pid(),
        pid => pid,
    }
}

pub(crate) fn current_pid() -> u32 {
    // SAFETY: getpid takes nothing and cannot fail.
    unsafe { raw::syscall0(libc::SYS_getpid) as u32 }
}

/// Whether the process is the one that the tables are for: not a child that was made without the
/// library's knowledge, by vfork or a bare system call.
pub fn is_itself() -> bool {
    current_pid() == pid()
}

/// Whether the process's end table is its parent's.
pub fn is_forked() -> bool {
    IS_FORKED.load(Ordering::Relaxed)
}

/// Whether this process may say which records it has alone, and judge who of the others is dead.
pub fn knows_owners() -> bool {
    KNOWS_OWNERS.load(Ordering::Relaxed) && !is_sandboxed()
}

/// How many forks of this process have begun.
pub fn forks() -> u32 {
    FORKS.load(Ordering::SeqCst)
}

/// Whether seccomp limits the process, so that a system call of ours could kill it.
pub fn is_confined() -> bool {
    CONFINED.load(Ordering::Relaxed)
}

/// The library is loaded: reads the settings, prepares the tables, takes up inherited sockets.
pub fn start() {
    let before = errno();
    PID.store(current_pid(), Ordering::Relaxed);
    config::load();
    log::load();
    policy::load();
    fds::init();
    let mut name = [0_u8; 32];
    // SAFETY: PR_GET_NAME writes 16 bytes.
    unsafe {
        raw::syscall5(
            libc::SYS_prctl,
            libc::PR_GET_NAME as usize,
            name.as_mut_ptr() as usize,
            0,
            0,
            0,
        );
    }
    link::init(config::variable(c"SLUICE_SOCKET"), &name);
    gateway::init();
    stats::init(&name);
    let probe_fd = config::number(c"SLUICE_PROBE_FD").map(|fd| fd as c_int);
    if let Some(fd) = probe_fd {
        probe(fd, format_args!("{}", env!("CARGO_PKG_VERSION")));
    }
    let standing = Standing::look(config::number(seccomp::FILTERS_VARIABLE));
    CONFINED.store(!standing.allows_lanes(), Ordering::Relaxed);
    if is_confined() {
        log!(Warn, "{standing}");
    }
    if let Some(fd) = probe_fd {
        probe(fd, format_args!("{standing}"));
    }
    // SAFETY: the handlers are functions of this library, which is never unloaded.
    unsafe {
        libc::pthread_atfork(
            Some(before_fork),
            Some(after_fork_parent),
            Some(after_fork_child),
        );
    }
    if !is_confined() {
        carry::take_up();
        take_inherited();
    }
    set_errno(before);
}

/// For `sluice doctor` and `sluice run`: says on a descriptor that the library was loaded, which
/// one, and in a second line what seccomp lets it do.
fn probe(fd: c_int, message: core::fmt::Arguments) {
    let mut line = log::Line::new();
    let _ = core::fmt::Write::write_fmt(&mut line, message);
    line.write_to(fd);
}

/// Numbers under which a program looks for sockets that came through exec: programs pass sockets
/// there.
const LOOKED_AT: usize = 16;

/// Sockets that came through exec.
fn take_inherited() {
    let mut cookies = [None; LOOKED_AT];
    for fd in 0..LOOKED_AT {
        let number = fd as c_int;
        if fds::is_known(number) {
            // Came with unread bytes.
            continue;
        }
        let cookie = tcp::cookie(number).ok();
        // inetd and its kin give one connection as several descriptors: it has one record.
        let first = cookies[..fd].iter().position(|known| *known == cookie);
        match first.filter(|_| cookie.is_some()) {
            Some(first) => descriptors::duplicated(first as c_int, number),
            None => {
                descriptors::adopted(number);
                cookies[fd] = cookie.filter(|_| conn::get(number).is_some());
            }
        }
    }
}

extern "C" fn before_fork() {
    FORKS.fetch_add(1, Ordering::SeqCst);
    FORKER.store(current_pid(), Ordering::Relaxed);
    children::before_fork();
    // Every descriptor of ours exists twice from now on.
    conn::for_each(c_int::MAX, |conn| {
        if conn.end.is_owner(pid()) {
            children::note_all(conn, conn.end.refs());
        }
        conn.end.add_ref();
        children::add(conn);
    });
    link::before_fork();
    epoll::before_fork();
    gateway::before_fork();
    outward::before_fork();
}

extern "C" fn after_fork_parent() {
    outward::release_after_fork();
    gateway::release_after_fork();
    epoll::release_after_fork();
    link::release_after_fork();
    lock::forget_held();
}

extern "C" fn after_fork_child() {
    let before = errno();
    PID.store(current_pid(), Ordering::Relaxed);
    IS_FORKED.store(true, Ordering::Relaxed);
    // SAFETY: getppid takes nothing and cannot fail. In a PID namespace of its own the child has
    // no parent.
    let parent = unsafe { raw::syscall0(libc::SYS_getppid) as u32 };
    let knows_number = parent == FORKER.load(Ordering::Relaxed);
    if !knows_number {
        KNOWS_OWNERS.store(false, Ordering::Relaxed);
    }
    children::after_fork_child(knows_number);
    VFORKS.store(0, Ordering::Relaxed);
    lock::forget_held();
    sluice_lane::lock::forget_thread();
    link::after_fork();
    gateway::release_after_fork();
    outward::release_after_fork();
    epoll::after_fork();
    stats::after_fork();
    set_errno(before);
}

/// Before vfork: the child will run hooks in this process's memory.
pub extern "C" fn before_vfork() {
    VFORKS.fetch_add(1, Ordering::SeqCst);
}

/// Whether this is the child of a vfork, which borrows its parent's memory and may change
/// nothing in it.
#[inline]
pub fn is_vfork_child() -> bool {
    VFORKS.load(Ordering::Relaxed) != 0 && is_vfork_child_slow()
}

#[cold]
fn is_vfork_child_slow() -> bool {
    if current_pid() != pid() {
        return true;
    }
    // The parent runs again. With several threads in vfork this counts one of them down too
    // early at worst when it is the parent that asks; the child's own answer needs the count to
    // be above zero only until its parent is seen.
    VFORKS.store(0, Ordering::SeqCst);
    false
}

/// Before this process executes another program. [`Carry::end`] is to be called when that
/// fails.
///
/// # Safety
/// `target` and `env` are the program's arguments of a function like execve(2).
pub unsafe fn before_exec(target: Target, env: *const *const c_char) -> Carry {
    let mut carry = give_away(Way::Exec(target, env));
    if !is_vfork_child() {
        stats::before_exec();
        carry.leave();
    }
    carry
}

/// Before another program gets copies of the descriptors; [`Carry::end`] when it has them.
pub fn before_spawn() -> Carry {
    give_away(Way::Spawn)
}

/// The other program knows nothing of the lanes of this one.
fn give_away(way: Way) -> Carry {
    let mut carry = Carry::new();
    let inherits = |fd| {
        // SAFETY: F_GETFD takes and returns numbers.
        let flags = unsafe { (real().fcntl)(fd, libc::F_GETFD, 0) };
        flags >= 0 && flags & libc::FD_CLOEXEC == 0
    };
    export_all(Reason::Shared, inherits, &mut |conn, unread| {
        if !is_confined() {
            carry.add(conn, unread, way);
        }
    });
    carry.seal(way);
    // The other program counts what it moves there. A vfork child has its parent's table.
    conn::for_each(LOOKED_AT as c_int - 1, |conn| {
        if !is_confined() && !is_sandboxed() && inherits(conn.fd) {
            conn.end.note_moved_elsewhere(conn.fd);
        }
    });
    carry
}

/// Before the program confines itself with seccomp: no system call that it does not expect
/// may come from us any more.
///
/// A connection that is on TCP needs no pin, since this process will not announce it. It may
/// still get a lane in another process that shares it now and has it alone later, as sshd does
/// with its sandboxed child.
pub fn before_confinement() {
    SANDBOXED.store(true, Ordering::Relaxed);
    export_all(
        Reason::Confined,
        |fd| conn::get(fd).is_some_and(|conn| conn.end.state() != State::Tracked),
        &mut |_, _| {},
    );
    CONFINED.store(true, Ordering::Relaxed);
    confined::refuse();
    link::leave();
}

/// Whether the program confines itself, or has since it started: no system call of ours that
/// is not needed is safe then, not even at its end. A sandbox may be more than seccomp: sshd's
/// comes with a limit of 0 on file sizes, under which a line of the log kills.
pub fn is_sandboxed() -> bool {
    SANDBOXED.load(Ordering::Relaxed)
}

/// The process ends in an orderly way.
pub fn end() {
    stats::finish();
}

/// Before `_exit`: descriptors that forks share are counted.
pub fn before_exit() {
    if is_vfork_child() {
        return;
    }
    end();
    leave::at_exit();
}
