//! Becoming, starting and following another program, with nothing changed on the way.
//!
//! `std::process::Command` empties the signal mask and resets SIGPIPE in what it starts; a
//! wrapper that wants to be unnoticed must leave both as it found them.

#![allow(unsafe_code)]

use std::ffi::{CString, OsStr, OsString, c_char, c_int};
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::AsRawFd;
use std::os::unix::ffi::{OsStrExt, OsStringExt};

use crate::error::EXIT_OWN_FAILURE;

/// A program, its arguments and its environment in the form that execve(2) takes.
pub struct Image {
    program: CString,
    arguments: Vec<CString>,
    environment: Vec<CString>,
}

impl Image {
    /// `arguments` starts with the program's name, which is looked for in `PATH` unless it has a
    /// slash. Fails with `EINVAL` if there is none, or a NUL byte in any string.
    pub fn new(arguments: &[OsString], environment: &[(OsString, OsString)]) -> io::Result<Self> {
        let invalid = || io::Error::from_raw_os_error(libc::EINVAL);
        if arguments.is_empty() {
            return Err(invalid());
        }
        let c_string = |bytes: Vec<u8>| CString::new(bytes).map_err(|_| invalid());
        let arguments = arguments
            .iter()
            .map(|argument| c_string(argument.as_bytes().to_vec()))
            .collect::<io::Result<Vec<_>>>()?;
        let environment = environment
            .iter()
            .map(|(name, value)| {
                let mut entry = name.clone();
                entry.push(OsStr::new("="));
                entry.push(value);
                c_string(entry.into_vec())
            })
            .collect::<io::Result<_>>()?;
        Ok(Self {
            program: arguments[0].clone(),
            arguments,
            environment,
        })
    }

    /// The same program, which is told that it is called `name`.
    ///
    /// # Errors
    /// `EINVAL`: a NUL byte in it.
    pub fn called(mut self, name: &OsStr) -> io::Result<Self> {
        let name = CString::new(name.as_bytes());
        self.arguments[0] = name.map_err(|_| io::Error::from_raw_os_error(libc::EINVAL))?;
        Ok(self)
    }

    /// Replaces this process; returns only if that failed.
    pub fn exec(&self) -> io::Error {
        let pointers = |strings: &[CString]| -> Vec<*const c_char> {
            strings
                .iter()
                .map(|string| string.as_ptr())
                .chain([std::ptr::null()])
                .collect()
        };
        let arguments = pointers(&self.arguments);
        let environment = pointers(&self.environment);
        // SAFETY: both arrays end with a null pointer and point at NUL-terminated strings that
        // `self` owns; `new` made sure that there is a first argument.
        unsafe {
            libc::execvpe(
                self.program.as_ptr(),
                arguments.as_ptr(),
                environment.as_ptr(),
            );
        }
        io::Error::last_os_error()
    }
}

/// How a child ended or was interrupted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Change {
    /// It ended with this status.
    Exited(u8),
    /// This signal ended it.
    Killed(c_int),
    /// It is stopped, by job control or SIGSTOP.
    Stopped,
    /// It runs again.
    Continued,
}

/// A signal that arrived while [`Supervisor::wait`] waited.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Arrival {
    signal: c_int,
    /// Sent by a process with kill(2) or the like, not by the kernel (a terminal, a timer).
    from_process: bool,
}

/// Runs one child and passes on the signals that this process gets.
///
/// All signals are blocked meanwhile and taken with sigwaitinfo(2), so none is lost between a
/// look and a wait, and no handler runs.
pub struct Supervisor {
    child: libc::pid_t,
    blocked: libc::sigset_t,
}

/// Signals that report a fault of this process itself, or that job control must deliver at
/// once: these keep their ordinary effect.
const NOT_BLOCKED: [c_int; 8] = [
    libc::SIGSEGV,
    libc::SIGBUS,
    libc::SIGFPE,
    libc::SIGILL,
    libc::SIGABRT,
    libc::SIGTRAP,
    libc::SIGTTIN,
    libc::SIGTTOU,
];

impl Supervisor {
    /// Forks, and executes `image` in the child. If that fails, `on_exec_failure` decides the
    /// child's exit status.
    ///
    /// The process must have one thread only, as the command line tool has: the child may then
    /// do anything between fork and exec.
    pub fn start(image: &Image, on_exec_failure: impl Fn(io::Error) -> u8) -> io::Result<Self> {
        let mut blocked = MaybeUninit::<libc::sigset_t>::uninit();
        let mut before = MaybeUninit::<libc::sigset_t>::uninit();
        let mut child_default = MaybeUninit::<libc::sigaction>::zeroed();
        let mut child_before = MaybeUninit::<libc::sigaction>::zeroed();
        let is_subreaper = is_subreaper();
        // SAFETY: the sets are initialised by sigfillset and sigprocmask before they are read;
        // a zeroed sigaction is SIG_DFL with no flags.
        unsafe {
            libc::sigfillset(blocked.as_mut_ptr());
            for signal in NOT_BLOCKED {
                libc::sigdelset(blocked.as_mut_ptr(), signal);
            }
            libc::sigprocmask(libc::SIG_SETMASK, blocked.as_ptr(), before.as_mut_ptr());
            // A caller that ignores SIGCHLD would have the kernel drop the child's status.
            (*child_default.as_mut_ptr()).sa_sigaction = libc::SIG_DFL;
            libc::sigaction(
                libc::SIGCHLD,
                child_default.as_ptr(),
                child_before.as_mut_ptr(),
            );
            let front = libc::getpid();
            match libc::fork() {
                -1 => {
                    let error = io::Error::last_os_error();
                    libc::sigprocmask(libc::SIG_SETMASK, before.as_ptr(), std::ptr::null_mut());
                    Err(error)
                }
                0 => {
                    // Whoever kills the front with SIGKILL means the program. A front that has ended already
                    // sends no signal any more.
                    libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL);
                    if libc::getppid() != front {
                        libc::_exit(c_int::from(EXIT_OWN_FAILURE));
                    }
                    // It is this process's alone, and execve(2) would have kept it.
                    if is_subreaper {
                        libc::prctl(libc::PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0);
                    }
                    libc::sigaction(libc::SIGCHLD, child_before.as_ptr(), std::ptr::null_mut());
                    libc::sigprocmask(libc::SIG_SETMASK, before.as_ptr(), std::ptr::null_mut());
                    let status = on_exec_failure(image.exec());
                    libc::_exit(c_int::from(status))
                }
                child => Ok(Self {
                    child,
                    blocked: blocked.assume_init(),
                }),
            }
        }
    }

    /// Waits for the child's end and passes signals on. Stops with the child if whoever stopped it stopped this
    /// process, too, or if it is the job that an interactive shell waits for. A child that is stopped alone may be
    /// continued alone, and nobody would continue this process then.
    pub fn wait(&self) -> io::Result<Change> {
        let (mut is_child_stopped, mut is_asked_to_stop) = (false, false);
        loop {
            match self.poll_child()? {
                Some(Change::Stopped) => is_child_stopped = true,
                Some(Change::Continued) => (is_child_stopped, is_asked_to_stop) = (false, false),
                Some(change) => return Ok(change),
                None => {}
            }
            self.bury_orphans();
            if is_child_stopped && (is_asked_to_stop || is_foreground_job()) {
                stop_self();
                (is_child_stopped, is_asked_to_stop) = (false, false);
            }
            let Some(arrival) = self.next_signal() else {
                continue;
            };
            is_asked_to_stop |= arrival.signal == libc::SIGTSTP;
            // What a terminal sends goes to the whole foreground group, the child included; a
            // second copy from here would count as a second Ctrl-C.
            if arrival.signal != libc::SIGCHLD && arrival.from_process {
                // SAFETY: no memory is involved; `child` has not been waited for, so the number
                // is still its own.
                unsafe { libc::kill(self.child, arrival.signal) };
            }
        }
    }

    fn poll_child(&self) -> io::Result<Option<Change>> {
        let mut status = 0;
        // SAFETY: `status` is a valid place for an int.
        let result = unsafe {
            libc::waitpid(
                self.child,
                &mut status,
                libc::WNOHANG | libc::WUNTRACED | libc::WCONTINUED,
            )
        };
        match result {
            0 => Ok(None),
            -1 => match io::Error::last_os_error() {
                error if error.kind() == io::ErrorKind::Interrupted => Ok(None),
                error => Err(error),
            },
            _ if libc::WIFSTOPPED(status) => Ok(Some(Change::Stopped)),
            _ if libc::WIFCONTINUED(status) => Ok(Some(Change::Continued)),
            _ if libc::WIFSIGNALED(status) => Ok(Some(Change::Killed(libc::WTERMSIG(status)))),
            // An exit status has eight bits.
            _ => Ok(Some(Change::Exited(libc::WEXITSTATUS(status) as u8))),
        }
    }

    /// Other children are those that others have left behind, if this process takes orphans.
    fn bury_orphans(&self) {
        loop {
            let mut info = MaybeUninit::<libc::siginfo_t>::zeroed();
            // SAFETY: `info` is a valid place for a siginfo_t, which is plain data and stays zeroed if nobody has ended.
            let pid = unsafe {
                let flags = libc::WEXITED | libc::WNOHANG | libc::WNOWAIT;
                libc::waitid(libc::P_ALL, 0, info.as_mut_ptr(), flags);
                info.assume_init().si_pid()
            };
            // The child's own end is seen at the next look, which its SIGCHLD causes.
            if pid == 0 || pid == self.child {
                return;
            }
            // SAFETY: no memory is involved.
            unsafe { libc::waitpid(pid, std::ptr::null_mut(), libc::WNOHANG) };
        }
    }

    /// Blocks until a signal arrives. `None` if the wait was interrupted.
    fn next_signal(&self) -> Option<Arrival> {
        let mut info = MaybeUninit::<libc::siginfo_t>::zeroed();
        // SAFETY: the set is initialised, and `info` is a valid place for a siginfo_t, which is
        // plain data.
        let (signal, info) = unsafe {
            let signal = libc::sigwaitinfo(&self.blocked, info.as_mut_ptr());
            (signal, info.assume_init())
        };
        (signal > 0).then_some(Arrival {
            signal,
            from_process: info.si_code <= 0,
        })
    }
}

/// Whether processes whose parents have ended become this one's children: it is the first one of its PID namespace, or
/// PR_SET_CHILD_SUBREAPER of prctl(2) makes it take them.
pub fn takes_orphans() -> bool {
    std::process::id() == 1 || is_subreaper()
}

fn is_subreaper() -> bool {
    let mut is_set: c_int = 0;
    // SAFETY: the kernel writes an int.
    unsafe { libc::prctl(libc::PR_GET_CHILD_SUBREAPER, &raw mut is_set, 0, 0, 0) };
    is_set != 0
}

/// Whether this process leads the process group that its terminal's input goes to: an interactive shell made it
/// a job, and waits until the job ends or stops.
fn is_foreground_job() -> bool {
    let Ok(terminal) = std::fs::File::open("/dev/tty") else {
        return false;
    };
    // SAFETY: numbers go in and out.
    unsafe {
        libc::getpgrp() == libc::getpid()
            && libc::tcgetpgrp(terminal.as_raw_fd()) == libc::getpgrp()
    }
}

/// Stops this process as its child is stopped, so that a shell sees the whole job stopped.
/// Returns after SIGCONT.
fn stop_self() {
    // SAFETY: no memory is involved.
    unsafe { libc::kill(libc::getpid(), libc::SIGSTOP) };
}

/// Ends this process by `signal`, so that its parent sees what the child's would have seen.
/// Returns the status to exit with if the signal did not end it.
pub fn die_by(signal: c_int) -> u8 {
    let no_core = libc::rlimit {
        rlim_cur: 0,
        rlim_max: 0,
    };
    let mut set = MaybeUninit::<libc::sigset_t>::uninit();
    // SAFETY: the set is initialised by sigemptyset before it is used; `no_core` is a valid
    // rlimit. The child has left a core if one was wanted, this process must not replace it.
    unsafe {
        libc::setrlimit(libc::RLIMIT_CORE, &no_core);
        libc::signal(signal, libc::SIG_DFL);
        libc::kill(libc::getpid(), signal);
        libc::sigemptyset(set.as_mut_ptr());
        libc::sigaddset(set.as_mut_ptr(), signal);
        libc::sigprocmask(libc::SIG_UNBLOCK, set.as_ptr(), std::ptr::null_mut());
    }
    128_u8.wrapping_add(signal as u8)
}

/// Makes a write to a pipe without a reader an error instead of this process's end.
pub fn ignore_broken_pipes() {
    // SAFETY: SIG_IGN runs no code of ours.
    unsafe { libc::signal(libc::SIGPIPE, libc::SIG_IGN) };
}

/// Marks every descriptor above the standard three close-on-exec in the child that `command`
/// starts: a daemon must not keep its starter's pipes open.
pub fn close_descriptors_on_exec(command: &mut std::process::Command) {
    use std::os::unix::process::CommandExt;
    // SAFETY: the closure makes one system call and touches no memory.
    unsafe {
        command.pre_exec(|| {
            libc::syscall(
                libc::SYS_close_range,
                3_u32,
                u32::MAX,
                libc::CLOSE_RANGE_CLOEXEC,
            );
            // A kernel without close_range (before 5.11) leaves what it would have left.
            Ok(())
        });
    }
}
