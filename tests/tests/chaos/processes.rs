//! The processes of a round, each held by a descriptor, so that a signal never meets a stranger with the same number.

use std::fs;
use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

use rustix::event::{PollFd, PollFlags, poll};
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
use rustix::time::Timespec;

use crate::state::{Process, State};

pub const CLIENT: u64 = 2;

/// One that has joined the round.
struct Held {
    pid: u64,
    /// Nothing, if it had ended before it could be opened.
    fd: Option<OwnedFd>,
}

pub struct Processes {
    program: PathBuf,
    held: Vec<Held>,
    /// What they say of themselves, by their places.
    pub all: Vec<Process>,
}

impl Processes {
    /// `program` is the executable file of all.
    pub fn new(program: &Path) -> Processes {
        Processes {
            program: program.to_owned(),
            held: Vec::new(),
            all: Vec::new(),
        }
    }

    /// Looks for new ones.
    pub fn look(&mut self, state: &State) -> io::Result<()> {
        self.all = state.processes()?;
        for process in self.all.iter().skip(self.held.len()) {
            self.held.push(Held {
                pid: process.pid,
                fd: open(process.pid, &self.program),
            });
        }
        Ok(())
    }

    pub fn is_alive(&self, place: usize) -> bool {
        self.held
            .get(place)
            .and_then(|held| held.fd.as_ref())
            .is_some_and(|fd| !has_ended(fd))
    }

    pub fn live(&self) -> Vec<usize> {
        (0..self.held.len())
            .filter(|&place| self.is_alive(place))
            .collect()
    }

    /// Those that can be hurt: they live, and do not end by themselves now.
    pub fn victims(&self) -> Vec<usize> {
        let mut live = self.live();
        live.retain(|&place| self.all.get(place).is_some_and(|it| !it.is_done));
        live
    }

    pub fn signal(&self, place: usize, signal: Signal) {
        if let Some(fd) = self.held.get(place).and_then(|held| held.fd.as_ref()) {
            // An error says that it has ended.
            let _ = pidfd_send_signal(fd, signal);
        }
    }

    pub fn is_killed(&self, pid: u64) -> bool {
        let mut all = self.all.iter();
        pid != 0 && all.any(|it| it.pid == pid && it.is_killed)
    }

    /// The server, or the client with that number, was killed.
    pub fn is_program_killed(&self, kind: u64, number: u64) -> bool {
        let mut all = self.all.iter();
        all.any(|it| (it.kind, it.number) == (kind, number) && it.is_killed)
    }

    /// One that runs the program and has not joined yet.
    pub fn is_unknown_and_lives(&self, pid: u64) -> bool {
        let is_known = self.held.iter().any(|held| held.pid == pid);
        pid != 0 && !is_known && open(pid, &self.program).is_some_and(|fd| !has_ended(&fd))
    }
}

fn has_ended(fd: &OwnedFd) -> bool {
    let mut fds = [PollFd::new(fd, PollFlags::IN)];
    let at_once = Timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    poll(&mut fds, Some(&at_once)).is_ok_and(|ready| ready > 0)
}

/// The process of that number if it runs the program.
fn open(pid: u64, program: &Path) -> Option<OwnedFd> {
    let number = Pid::from_raw(i32::try_from(pid).ok()?)?;
    let fd = pidfd_open(number, PidfdFlags::empty()).ok()?;
    // The descriptor is of whoever has the number now; the link is of the same one unless it has ended.
    let is_ours = fs::read_link(format!("/proc/{pid}/exe")).is_ok_and(|exe| exe == program);
    is_ours.then_some(fd)
}

/// What its threads wait for, for the report of a hang.
pub fn describe(pid: u64) -> String {
    let mut text = String::new();
    let tasks = fs::read_dir(format!("/proc/{pid}/task"));
    for task in tasks.into_iter().flatten().flatten() {
        let read = |name: &str| {
            let all = fs::read_to_string(task.path().join(name)).unwrap_or_default();
            all.trim().to_owned()
        };
        let stat = read("stat");
        let state = stat.rsplit_once(") ").map_or("?", |(_, rest)| &rest[..1]);
        text += &format!(
            "    thread {}: {state} in {}, system call {}\n",
            task.file_name().to_string_lossy(),
            read("wchan"),
            read("syscall"),
        );
    }
    text + &queues(pid)
}

/// Sockets of its network namespace in whose queues bytes are.
fn queues(pid: u64) -> String {
    let mut text = String::new();
    for table in ["tcp", "tcp6"] {
        let all = fs::read_to_string(format!("/proc/{pid}/net/{table}")).unwrap_or_default();
        for line in all.lines().skip(1) {
            let words: Vec<&str> = line.split_whitespace().collect();
            if let [_, local, remote, state, queued, ..] = words[..]
                && queued != "00000000:00000000"
            {
                text += &format!(
                    "    {local} to {remote}, state {state}: to send and unread {queued}\n"
                );
            }
        }
    }
    text
}
