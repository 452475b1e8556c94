//! The daemon from outside: is it there, start it, stop it.

mod client;
mod running;
mod sockets;

use std::ffi::OsString;
use std::fmt;
use std::net::SocketAddr;
use std::os::fd::AsRawFd;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStderr, Command, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Signal, geteuid, getuid, pidfd_send_signal};
use sluice_control::files::DAEMON_EXIT_TAKEN;
use sluice_control::message::{Reason, VERSION};
use sluice_peering::Config;
use sluice_peering::config::{Device, Remark};
use sluice_sys::capability::{self, Capability};

use crate::args::{DownArgs, LogFormat, LogLevel, UpArgs};
use crate::error::Outcome;
use crate::error::{Failure, reason, start_hint, without_numbers};
use crate::exec::close_descriptors_on_exec;
use crate::terminal::print;
use crate::{elf, locate};

pub use client::{check_gateway, fetch_status, probe};
pub use sockets::{SYSTEM_SOCKET, Target, everywhere};

/// How long a daemon that works may take for an answer, on a machine that is loaded many times over, where a
/// process may get no processor for seconds: who gives up too early leaves a program's connections on TCP for
/// its whole life.
pub const ANSWER_TIMEOUT: Duration = Duration::from_secs(10);
/// How long it may take from its start until it listens.
const START_TIMEOUT: Duration = Duration::from_secs(15);
/// How long it may take to end.
const STOP_TIMEOUT: Duration = Duration::from_secs(15);
/// Time in which somebody else's daemon, that kept ours from starting, must serve, or hold the socket's lock,
/// as one does that is about to.
const RIVAL_TIMEOUT: Duration = Duration::from_millis(500);
/// Pause between two looks at a daemon that starts or ends.
const LOOK_AGAIN: Duration = Duration::from_millis(20);
/// A daemon that `sluice run` started goes away when nothing used it for so long.
const IDLE_EXIT_S: u32 = 60;

/// What answers on a control socket.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum State {
    /// A daemon that speaks our protocol.
    Running { pid: u32, uid: u32 },
    /// There is no socket.
    Absent,
    /// There is a socket and nobody listens: a daemon was killed.
    Stale,
    /// Somebody listens and does not answer in time: this process, if it can be seen from here.
    Hung(Option<u32>),
    /// The daemon is stopped, as by SIGSTOP.
    Stopped(u32),
    /// A daemon of another protocol version.
    OtherVersion { theirs: u16, pid: Option<u32> },
    /// A daemon that does not do what it was asked for.
    Refused { reason: Reason, pid: Option<u32> },
    /// No daemon at all.
    Strange(String),
    /// The socket or its directory belongs to somebody who must not be trusted.
    WrongOwner(String),
    /// The socket cannot be reached: the kernel's words.
    Unreachable(String),
}

impl fmt::Display for State {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Running { pid, uid } => write!(f, "running, pid {pid}, uid {uid}"),
            Self::Absent => f.write_str("no daemon runs"),
            Self::Stale => f.write_str("the socket is left over from a daemon that was killed"),
            Self::Hung(pid) => write!(
                f,
                "the daemon{} did not answer within {} ms",
                with_pid(*pid),
                ANSWER_TIMEOUT.as_millis()
            ),
            Self::Stopped(pid) => write!(f, "the daemon, pid {pid}, is stopped"),
            Self::OtherVersion { theirs, pid } => write!(
                f,
                "the daemon there{} speaks protocol version {theirs}, this sluice {VERSION}",
                with_pid(*pid)
            ),
            Self::Refused { reason, pid } => {
                let text = reason.to_string();
                // What to do about it is for the hint to say.
                let what = text.split("; ").next().unwrap_or(&text);
                write!(f, "the daemon{} refused: {what}", with_pid(*pid))
            }
            Self::Strange(what) | Self::WrongOwner(what) => f.write_str(what),
            Self::Unreachable(why) => write!(f, "the socket cannot be reached: {why}"),
        }
    }
}

/// `, pid 7,`.
fn with_pid(pid: Option<u32>) -> String {
    pid.map_or_else(String::new, |pid| format!(", pid {pid},"))
}

impl State {
    /// What to do about it; empty if nothing needs to be done.
    pub fn hint(&self) -> String {
        let hint = match self {
            Self::Running { .. } => "",
            Self::Absent | Self::Stale => "start one with 'sluice up', or run a program",
            Self::Hung(_) => "see what sluiced does, or end it with 'sluice down'",
            Self::Stopped(pid) => {
                return format!(
                    "continue it with 'kill -CONT {pid}', or end it with 'sluice down'"
                );
            }
            Self::OtherVersion { .. } => {
                "replace it with 'sluice up', or end it with 'sluice down': programs keep the lanes \
                 that they have"
            }
            Self::Refused { reason, .. } => {
                let text = reason.to_string();
                let hint = text.split_once("; ").map(|(_, hint)| hint);
                return hint.unwrap_or("use another --socket").to_owned();
            }
            Self::Strange(_) => {
                "end the daemon with the sluice that started it, or use another --socket"
            }
            Self::WrongOwner(_) => "remove the directory, or use another --socket",
            Self::Unreachable(_) => "check the path and its permissions",
        };
        hint.to_owned()
    }

    /// The process of a daemon that does not hear what is said to it.
    const fn deaf(&self) -> Option<u32> {
        match self {
            Self::Stopped(pid)
            | Self::Hung(Some(pid))
            | Self::OtherVersion { pid: Some(pid), .. }
            | Self::Refused {
                reason: Reason::Full,
                pid: Some(pid),
            } => Some(*pid),
            _ => None,
        }
    }

    /// The failure of a command that needed an answer from this socket.
    pub fn failure(&self, socket: &Path) -> Failure {
        Failure::new(format!("{} ({})", self, socket.display()), self.hint())
    }
}

/// The socket that a command uses: the flag's, made absolute, or the usual one.
pub fn socket_path(flag: Option<&Path>) -> Result<PathBuf, Failure> {
    match flag {
        Some(path) => absolute(path),
        None => client::usual_path(),
    }
}

/// The daemon and the program may have another working directory than this process.
fn absolute(path: &Path) -> Result<PathBuf, Failure> {
    std::path::absolute(path).map_err(|error| {
        Failure::new(
            format!("cannot use the path {}: {}", path.display(), reason(&error)),
            "give an absolute path",
        )
    })
}

/// How to start a daemon.
#[derive(Debug, Default, Clone)]
struct Settings {
    idle_exit_s: Option<u32>,
    ring_bytes: Option<u32>,
    max_lanes: Option<u32>,
    user_share: Option<u32>,
    allow_all_users: bool,
    log: Option<LogLevel>,
    log_format: Option<LogFormat>,
    log_file: Option<PathBuf>,
    metrics: Option<SocketAddr>,
    config: Option<PathBuf>,
}

impl Settings {
    fn arguments(&self, socket: &Path) -> Vec<OsString> {
        let mut arguments: Vec<OsString> = vec!["--socket".into(), socket.into()];
        let mut number = |flag: &str, value: Option<u32>| {
            if let Some(value) = value {
                arguments.extend([flag.into(), value.to_string().into()]);
            }
        };
        number("--idle-exit", self.idle_exit_s);
        number("--ring-bytes", self.ring_bytes);
        number("--max-lanes", self.max_lanes);
        number("--user-share", self.user_share);
        if self.allow_all_users {
            arguments.push("--allow-all-users".into());
        }
        if let Some(level) = self.log {
            arguments.extend(["--log".into(), level.name().into()]);
        }
        if let Some(format) = self.log_format {
            arguments.extend(["--log-format".into(), format.name().into()]);
        }
        if let Some(address) = self.metrics {
            arguments.extend(["--metrics".into(), address.to_string().into()]);
        }
        if let Some(path) = &self.log_file {
            arguments.extend(["--log-file".into(), path.into()]);
        }
        if let Some(path) = &self.config {
            arguments.extend(["--config".into(), path.into()]);
        }
        arguments
    }

    fn command(&self, socket: &Path) -> Result<Command, Failure> {
        let program = locate::daemon()?;
        if let Some(verdict) = elf::inspect(&program)
            && verdict.obstacle == Some(elf::Obstacle::Foreign)
        {
            return Err(Failure::new(
                format!("{} is for another machine", program.display()),
                "install the sluice of this machine",
            ));
        }
        let mut command = Command::new(program);
        command.args(self.arguments(socket));
        // The daemon must not carry its own clients' library.
        command.env_remove("LD_PRELOAD");
        command.env_remove("SLUICE_STATS_FILE");
        command.env_remove("SLUICE_PROBE_FD");
        Ok(command)
    }
}

/// Whether programs of this user use a daemon of that one: it is given their sockets. The library
/// decides so itself; root may look at others' daemons and not be served by them.
pub fn serves_us(uid: u32) -> bool {
    uid == 0 || uid == geteuid().as_raw()
}

/// What is wrong with a daemon that [`serves_us`] rules out.
pub fn third_users(uid: u32) -> State {
    State::WrongOwner(format!(
        "the daemon there belongs to uid {uid}, and programs use only their own user's or root's"
    ))
}

/// Whose daemon there is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ensured {
    /// One that was there.
    Found,
    /// One that this process has started, whose parent is process 1, or the nearest process that takes orphans.
    Started,
}

/// Why there is no daemon.
#[derive(Debug)]
pub enum NoDaemon {
    /// One is there and cannot be used.
    Unusable(Failure),
    /// None can be started.
    NotStarted(Failure),
}

impl NoDaemon {
    /// What a command says that needs one.
    pub fn into_failure(self) -> Failure {
        match self {
            Self::Unusable(failure) | Self::NotStarted(failure) => failure,
        }
    }
}

/// Makes sure that a daemon answers on `socket`, and starts one if there is none. Waits for a
/// few seconds at most. `log`: a level; from `info` on, what a starting daemon says is shown.
pub fn ensure(socket: &Path, log: Option<LogLevel>) -> Result<Ensured, NoDaemon> {
    let unusable = |state: State| Err(NoDaemon::Unusable(state.failure(socket)));
    match probe(socket) {
        State::Running { uid, .. } if !serves_us(uid) => unusable(third_users(uid)),
        State::Running { .. } => Ok(Ensured::Found),
        State::Absent | State::Stale => {
            let settings = Settings {
                idle_exit_s: Some(IDLE_EXIT_S),
                log,
                ..Settings::default()
            };
            // That another start was faster is no news below that level.
            let speaks = log.is_some_and(|level| level >= LogLevel::Info);
            match start(socket, &settings, speaks) {
                Ok(_) => Ok(Ensured::Started),
                Err(failure) => Err(NoDaemon::NotStarted(failure)),
            }
        }
        state => unusable(state),
    }
}

/// Starts a daemon that leaves the terminal, and waits until it answers. Somebody else's daemon
/// on the same socket, started in the same moment, is as good.
fn start(socket: &Path, settings: &Settings, speaks: bool) -> Result<State, Failure> {
    let deadline = Instant::now() + START_TIMEOUT;
    let mut command = settings.command(socket)?;
    command.arg("--daemonize").current_dir("/");
    command.stdin(Stdio::null()).stdout(Stdio::null());
    command.stderr(Stdio::piped());
    // What waits for the end of the caller's pipes must not wait for the daemon's.
    close_descriptors_on_exec(&mut command);
    let mut child = command.spawn().map_err(|error| {
        Failure::new(
            format!(
                "cannot start {}: {}",
                command.get_program().display(),
                reason(&error)
            ),
            start_hint(&error),
        )
    })?;
    let words = child.stderr.take();
    let started = reap(child, deadline);
    let words = words.map(said).unwrap_or_default();
    let has_started = started == Started::Yes;
    let start_deadline = deadline;
    let deadline = match started {
        Started::Yes => deadline,
        Started::IsTaken => Instant::now() + RIVAL_TIMEOUT,
        // It has said why, and nobody else is to blame.
        Started::No => Instant::now(),
    };
    loop {
        let state = probe(socket);
        if matches!(state, State::Running { .. }) {
            if has_started && speaks {
                // Nobody can be told if standard error is closed.
                let _ = std::io::Write::write_all(&mut std::io::stderr(), words.as_bytes());
            }
            return Ok(state);
        }
        let comes = started == Started::IsTaken
            && Instant::now() < start_deadline
            && client::is_locked(socket);
        if Instant::now() >= deadline && !comes {
            return Err(not_started(socket, &state, &words));
        }
        std::thread::sleep(LOOK_AGAIN);
    }
}

/// What was written to a pipe so far. A daemon in the background has closed its end.
fn said(mut pipe: ChildStderr) -> String {
    let mut words = Vec::new();
    if rustix::io::ioctl_fionbio(&pipe, true).is_ok() {
        // The end, or nothing more for now.
        let _ = std::io::Read::read_to_end(&mut pipe, &mut words);
    }
    String::from_utf8_lossy(&words).into_owned()
}

/// Its own words, where it has some: it knows best.
fn not_started(socket: &Path, state: &State, words: &str) -> Failure {
    let lines = words.lines().map(str::trim_end);
    let lines = lines.filter(|line| !line.is_empty() && !line.starts_with("For more information"));
    let lines: Vec<&str> = lines
        .map(|line| line.strip_prefix("sluiced: ").unwrap_or(line))
        .map(|line| line.strip_prefix("error: ").unwrap_or(line))
        .collect();
    if lines.is_empty() {
        return Failure::new(
            format!(
                "sluiced was started and does not serve {}: {state}",
                socket.display()
            ),
            "see what it says with 'sluice up --foreground --log debug'",
        );
    }
    let text = without_numbers(&lines.join("\n"));
    match text.rsplit_once("; ") {
        Some((what, hint)) => Failure::new(format!("sluiced cannot start: {what}"), hint),
        None => Failure::new(format!("sluiced cannot start: {text}"), ""),
    }
}

/// Whether a daemon has started.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Started {
    Yes,
    /// Another one kept it from that.
    IsTaken,
    No,
}

/// Waits for the starter process, which ends when the daemon listens. This process becomes
/// another program soon, which must not inherit a child that it knows nothing of.
fn reap(mut child: Child, deadline: Instant) -> Started {
    loop {
        match child.try_wait() {
            Ok(Some(status)) if status.success() => return Started::Yes,
            Ok(Some(status)) if status.code() == Some(i32::from(DAEMON_EXIT_TAKEN)) => {
                return Started::IsTaken;
            }
            Ok(Some(_)) => return Started::No,
            // The caller ignores SIGCHLD, so that the kernel reaps and tells nothing.
            Err(_) => return Started::Yes,
            Ok(None) if Instant::now() >= deadline => {
                // It may have ended by itself since.
                let _ = child.kill();
                let _ = child.wait();
                return Started::No;
            }
            Ok(None) => std::thread::sleep(Duration::from_millis(2)),
        }
    }
}

fn require_root() -> Result<(), Failure> {
    if geteuid().is_root() {
        return Ok(());
    }
    Err(Failure::new(
        "only root can serve all users",
        "use sudo, or leave --system out for a daemon of your own",
    ))
}

fn chosen_socket(system: bool, flag: Option<&Path>) -> Result<PathBuf, Failure> {
    if system {
        require_root()?;
        return Ok(PathBuf::from(SYSTEM_SOCKET));
    }
    socket_path(flag)
}

/// `sluice up --check`.
fn check(config: &Path) -> Outcome {
    let remarks = match Config::load(config) {
        Ok(config) => {
            let mut remarks = config.check();
            if let Some(Device::Hardware(name)) = &config.device
                && !Path::new("/sys/class/infiniband").join(name).exists()
            {
                remarks.push(Remark {
                    is_error: true,
                    text: format!(
                        "there is no RDMA device {name} on this machine: 'ibv_devices' shows those \
                         that there are"
                    ),
                });
            }
            let missing =
                capability::missing(&[Capability::Bpf, Capability::NetAdmin, Capability::Perfmon]);
            if config.captures() && !missing.is_empty() {
                remarks.push(Remark {
                    is_error: false,
                    text: format!(
                        "[capture] needs {}, which this user does not have: start sluiced as root",
                        missing.join(" and ")
                    ),
                });
            }
            remarks
        }
        Err(error) => {
            for line in error.to_string().lines() {
                print(&format!("error: {line}\n"))?;
            }
            return Ok(1);
        }
    };
    for remark in &remarks {
        let kind = if remark.is_error { "error" } else { "warning" };
        print(&format!("{kind}: {}\n", remark.text))?;
    }
    if remarks.iter().any(|remark| remark.is_error) {
        return Ok(1);
    }
    print(&format!("{} can be used\n", config.display()))?;
    Ok(0)
}

/// `sluice up`.
pub fn up(args: &UpArgs) -> Outcome {
    let config = args.config.as_deref().map(absolute).transpose()?;
    if let Some(config) = config.as_deref().filter(|_| args.check) {
        return check(config);
    }
    let socket = chosen_socket(args.system, args.socket.as_deref())?;
    let settings = Settings {
        ring_bytes: args.ring_bytes,
        max_lanes: args.max_lanes,
        user_share: args.user_share,
        allow_all_users: args.system,
        log: args.log,
        log_format: args.log_format,
        metrics: args.metrics,
        log_file: args.log_file.as_deref().map(absolute).transpose()?,
        config,
        ..Settings::default()
    };
    if let Some(pid) = running::make_way(&socket, &settings, args.foreground)? {
        print(&format!(
            "sluiced already runs, pid {pid}, on {}; 'sluice down' stops it\n",
            socket.display()
        ))?;
        return Ok(0);
    }
    if args.foreground {
        let mut command = settings.command(&socket)?;
        let error = command.arg("--foreground").exec();
        return Err(Failure::new(
            format!(
                "cannot run {}: {}",
                command.get_program().display(),
                reason(&error)
            ),
            "check its permissions",
        ));
    }
    start(&socket, &settings, true)?;
    // In the same moment 'sluice run' may have started one of its own.
    if let Some(pid) = running::make_way(&socket, &settings, false)? {
        print(&format!(
            "sluiced runs, pid {pid}, on {}\n",
            socket.display()
        ))?;
        return Ok(0);
    }
    if let State::Running { pid, .. } = start(&socket, &settings, true)? {
        print(&format!(
            "sluiced runs, pid {pid}, on {}\n",
            socket.display()
        ))?;
    }
    Ok(0)
}

/// Tells the daemon `pid` to end and waits until it does not serve `socket` any more.
fn end(socket: &Path, pid: u32) -> Result<(), Failure> {
    client::shut_down(socket)?;
    let deadline = Instant::now() + STOP_TIMEOUT;
    loop {
        match probe(socket) {
            State::Absent => return Ok(()),
            // It refuses connections before it has put away what it had.
            State::Stale if !client::is_locked(socket) => return Ok(()),
            // A program was started meanwhile, and a daemon for it.
            State::Running { pid: now, .. } if now != pid => return Ok(()),
            _ if Instant::now() >= deadline => {
                return Err(Failure::new(
                    format!("sluiced, pid {pid}, was told to end and still serves"),
                    format!("end it with 'kill {pid}'"),
                ));
            }
            _ => std::thread::sleep(LOOK_AGAIN),
        }
    }
}

/// Ends a daemon that does not hear what is said to it, by a signal, and waits until it has ended.
fn end_by_signal(socket: &Path, pid: u32, state: &State) -> Result<(), Failure> {
    let failure = |what: &str, error: &std::io::Error| {
        Failure::new(
            format!("{state}, and {what}: {}", reason(error)),
            format!("end it with 'kill -9 {pid}'"),
        )
    };
    let Some(process) = client::daemon_process(pid) else {
        return Err(state.failure(socket));
    };
    for signal in [Signal::TERM, Signal::CONT] {
        pidfd_send_signal(&process, signal)
            .map_err(|errno| failure("cannot be sent a signal", &errno.into()))?;
    }
    match sluice_sys::unix::wait_readable(process.as_raw_fd(), STOP_TIMEOUT.as_millis() as i32) {
        Ok(true) => Ok(()),
        _ => Err(Failure::new(
            format!("{state}, was told to end and still runs"),
            format!("end it with 'kill -9 {pid}'"),
        )),
    }
}

/// Ends the daemon on `socket`, whoever started it. `Ok` if there is none.
pub fn stop(socket: &Path) -> Result<(), Failure> {
    match probe(socket) {
        State::Running { pid, .. } => end(socket, pid),
        State::Absent | State::Stale => Ok(()),
        state => match state.deaf() {
            Some(pid) => end_by_signal(socket, pid, &state),
            None => Err(state.failure(socket)),
        },
    }
}

/// `sluice down`.
pub fn down(args: &DownArgs) -> Outcome {
    let socket = chosen_socket(args.system, args.socket.as_deref())?;
    let pid = match probe(&socket) {
        State::Running { pid, uid } => {
            let user = getuid();
            if !user.is_root() && user.as_raw() != uid {
                return Err(Failure::new(
                    format!("the daemon on {} belongs to uid {uid}", socket.display()),
                    "stop it as that user or as root",
                ));
            }
            pid
        }
        state @ (State::Absent | State::Stale) => {
            print(&format!("{state} ({})\n", socket.display()))?;
            return Ok(0);
        }
        state => {
            let Some(pid) = state.deaf() else {
                return Err(state.failure(&socket));
            };
            end_by_signal(&socket, pid, &state)?;
            print(&format!("sluiced, pid {pid}, has ended\n"))?;
            return Ok(0);
        }
    };
    end(&socket, pid)?;
    print(&format!("sluiced, pid {pid}, has ended\n"))?;
    Ok(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_become_the_daemons_flags() {
        let settings = Settings {
            idle_exit_s: Some(60),
            max_lanes: Some(7),
            user_share: Some(30),
            allow_all_users: true,
            log: Some(LogLevel::Info),
            config: Some("/c".into()),
            ..Settings::default()
        };
        assert_eq!(
            settings.arguments(Path::new("/s")),
            [
                "--socket",
                "/s",
                "--idle-exit",
                "60",
                "--max-lanes",
                "7",
                "--user-share",
                "30",
                "--allow-all-users",
                "--log",
                "info",
                "--config",
                "/c"
            ]
        );
    }

    #[test]
    fn every_state_that_is_no_success_says_what_to_do() {
        let states = [
            State::Absent,
            State::Stale,
            State::Hung(None),
            State::Stopped(7),
            State::OtherVersion {
                theirs: 1,
                pid: Some(7),
            },
            State::Refused {
                reason: Reason::Descriptors,
                pid: None,
            },
            State::Strange("x".to_owned()),
            State::WrongOwner("x".to_owned()),
            State::Unreachable("x".to_owned()),
        ];
        for state in states {
            assert!(!state.hint().is_empty(), "{state:?}");
            let text = state.failure(Path::new("/s")).to_string();
            assert!(text.contains("(/s); "), "{text}");
        }
    }
}
