//! What this process is: its number, whether it is a child, and whether it is confined. Everybody asks that;
//! what a start, a fork and an exec do is told by [`crate::process`].
#![allow(unsafe_code)]

use core::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use sluice_sys::raw;

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

/// Remembers the number of the process that the tables are for from now on.
pub(crate) fn note_pid() {
    PID.store(current_pid(), Ordering::Relaxed);
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

/// A fork begins.
pub(crate) fn note_fork() {
    FORKS.fetch_add(1, Ordering::SeqCst);
    FORKER.store(current_pid(), Ordering::Relaxed);
}

/// In the child of a fork. Whether it has the same number in its parent's eyes as in its own.
pub(crate) fn become_child() -> bool {
    note_pid();
    IS_FORKED.store(true, Ordering::Relaxed);
    // SAFETY: getppid takes nothing and cannot fail. In a PID namespace of its own the child has
    // no parent.
    let parent = unsafe { raw::syscall0(libc::SYS_getppid) as u32 };
    let knows_number = parent == FORKER.load(Ordering::Relaxed);
    if !knows_number {
        KNOWS_OWNERS.store(false, Ordering::Relaxed);
    }
    VFORKS.store(0, Ordering::Relaxed);
    knows_number
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

/// Whether seccomp limits the process, so that a system call of ours could kill it.
pub fn is_confined() -> bool {
    CONFINED.load(Ordering::Relaxed)
}

/// Says whether seccomp limits the process.
pub(crate) fn set_confined(is_confined: bool) {
    CONFINED.store(is_confined, Ordering::Relaxed);
}

/// Whether the program confines itself, or has since it started: no system call of ours that
/// is not needed is safe then, not even at its end. A sandbox may be more than seccomp: sshd's
/// comes with a limit of 0 on file sizes, under which a line of the log kills.
pub fn is_sandboxed() -> bool {
    SANDBOXED.load(Ordering::Relaxed)
}

/// The program begins to confine itself.
pub(crate) fn note_sandbox() {
    SANDBOXED.store(true, Ordering::Relaxed);
}
