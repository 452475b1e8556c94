//! The process as a whole: start, fork, exec, confinement, end.
#![allow(unsafe_code)]

use crate::carry::{self, Carry, Way};
use crate::export::export_all;
use crate::fds;
use crate::reach::{self, Target};
use crate::real::{errno, real, set_errno};
use crate::seccomp::{self, Standing};
use crate::this_process::{is_confined, is_sandboxed, is_vfork_child, pid};
use crate::{
    children, config, conn, descriptors, epoll, gateway, leave, link, lock, log, messages, outward,
    policy, stats, this_process,
};
use core::ffi::{CStr, c_char, c_int};
use core::sync::atomic::{AtomicBool, Ordering};
use sluice_lane::confined;
use sluice_lane::end::State;
use sluice_lane::reason::Reason;
use sluice_sys::{locked, raw, tcp};

/// The number of the process that `sluice run` becomes.
const STARTED_VARIABLE: &CStr = c"SLUICE_RUN_PID";
/// This is that process.
static IS_STARTED: AtomicBool = AtomicBool::new(false);

/// The kernel keeps so many bytes of a process's name (`TASK_COMM_LEN`, less one).
const NAME_BYTES_MAX: usize = 15;

/// The library is loaded: reads the settings, prepares the tables, takes up inherited sockets.
pub fn start() {
    let before = errno();
    this_process::note_pid();
    config::load();
    log::load();
    policy::load();
    fds::init();
    let is_started = config::number(STARTED_VARIABLE) == Some(pid());
    IS_STARTED.store(is_started, Ordering::Relaxed);
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
    // What becomes a static program is called so later.
    let [named, child] = [c"SLUICE_STATIC", c"SLUICE_STATIC_CHILD"].map(config::variable);
    if let Some(path) = named.or(child) {
        let path = path.to_bytes();
        let after = path.iter().rposition(|byte| *byte == b'/');
        let base = &path[after.map_or(0, |at| at + 1)..];
        let length = base.len().min(NAME_BYTES_MAX);
        name = [0; 32];
        name[..length].copy_from_slice(&base[..length]);
    }
    sluice_lane::carrier::set_check(messages::check_daemon);
    link::init(config::variable(c"SLUICE_SOCKET"), &name);
    gateway::init();
    stats::init(&name);
    let probe_fd = config::number(c"SLUICE_PROBE_FD").map(|fd| fd as c_int);
    if let Some(fd) = probe_fd {
        probe(fd, format_args!("{}", env!("CARGO_PKG_VERSION")));
    }
    let standing = Standing::look(config::number(seccomp::FILTERS_VARIABLE));
    this_process::set_confined(!standing.allows_lanes());
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
            // It came with unread bytes, and is tracked already.
            continue;
        }
        let cookie = tcp::cookie(number).ok();
        // inetd and its kin give one connection as several descriptors: it has one record.
        let first = cookies[..fd].iter().position(|known| *known == cookie);
        match first.filter(|_| cookie.is_some()) {
            Some(first) => descriptors::duplicated(first as c_int, number),
            None => {
                descriptors::arrived(number);
                cookies[fd] = cookie.filter(|_| conn::get(number).is_some());
            }
        }
    }
}

extern "C" fn before_fork() {
    this_process::note_fork();
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
    children::release_after_fork();
    lock::forget_held();
}

extern "C" fn after_fork_child() {
    let before = errno();
    let knows_number = this_process::become_child();
    children::after_fork_child(knows_number);
    lock::forget_held();
    sluice_lane::lock::forget_thread();
    sluice_lane::end::forget_locks();
    link::after_fork();
    gateway::open_in_child();
    outward::open_in_child();
    epoll::after_fork();
    stats::after_fork();
    set_errno(before);
}

/// Before this process executes another program. [`Carry::end`] is to be called when that
/// fails.
///
/// # Safety
/// `target` and `env` are the program's arguments of a function like execve(2).
pub unsafe fn before_exec(target: Target, env: *const *const c_char) -> Carry {
    let mut carry = give_away(Way::Exec(target, env));
    if !is_vfork_child() {
        // SAFETY: the caller's promise.
        unsafe { warn_of_clean_environment(env) };
        stats::before_exec();
        carry.leave();
    }
    carry
}

/// Says that a wrapper (`env -i`) which the user has started under `sluice run` takes the library out of what it becomes:
/// the user meant that program.
///
/// # Safety
/// As of [`reach::is_preloaded`].
unsafe fn warn_of_clean_environment(env: *const *const c_char) {
    // One that has made or inherited a socket is a program, and knows what it does.
    let is_wrapper = IS_STARTED.load(Ordering::Relaxed) && fds::highest() == 0;
    // SAFETY: the caller's promise.
    if !is_wrapper || unsafe { reach::is_preloaded(env) } {
        return;
    }
    let mut line = log::Line::new();
    let what = "this program executes another one with an environment without LD_PRELOAD, so that one runs on plain TCP";
    let _ = core::fmt::Write::write_fmt(&mut line, format_args!("sluice: warning: {what}"));
    line.write_to_stderr();
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
    this_process::note_sandbox();
    export_all(
        Reason::Confined,
        |fd| conn::get(fd).is_some_and(|conn| conn.end.state() != State::Tracked),
        &mut |_, _| {},
    );
    this_process::set_confined(true);
    locked::leave_alone();
    confined::refuse();
    link::leave();
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
