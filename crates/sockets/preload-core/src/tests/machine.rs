//! The kernel that a case runs on, fake or real, with what is to go wrong in it and what happens while a call waits.
#![allow(unsafe_code)]

use super::calls::{reads, shortened, writes};
use super::fake::{Fake, Waits};
use super::trap::{Answer, Kernel, real};
use std::collections::{BTreeSet, VecDeque};
use std::net::{TcpListener, TcpStream};
use std::ops::Range;
use std::os::fd::AsRawFd;
use std::sync::{LazyLock, Mutex};

/// Descriptors of real sockets, which a program may have 1,024 of: far above those that the kernel gives out itself.
const NUMBERS: Range<i32> = 600..1000;
/// Which of them are in use. One that a case has closed is not another test's before the case has ended.
static IN_USE: Mutex<BTreeSet<i32>> = Mutex::new(BTreeSet::new());
/// Thousands of connections need no port each.
static LISTENER: LazyLock<Mutex<TcpListener>> =
    LazyLock::new(|| Mutex::new(TcpListener::bind("127.0.0.1:0").unwrap()));

/// What a call comes to instead.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// It fails, and has done nothing.
    Errno(i32),
    /// It moves one byte.
    Short,
}

/// Who answers.
enum Inner {
    Fake(Fake),
    Real,
}

/// A kernel.
pub struct Machine {
    inner: Inner,
    /// Calls that could fail so far.
    pub calls: usize,
    /// The call that is to fail, counted from 0, and how.
    pub fault: Option<(usize, Fault)>,
    /// Whether it has come to that.
    pub has_failed: bool,
    /// What happens when a call would wait, one after another.
    pub later: VecDeque<Box<dyn FnOnce()>>,
    /// A call waited, and nothing was to happen.
    pub is_stuck: bool,
    /// Each call that is counted, for the reports of cases that fail.
    pub log: Vec<(i64, isize)>,
    /// Of real sockets.
    numbers: Vec<i32>,
}

/// Which kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Which {
    Fake,
    Real,
}

impl Machine {
    pub fn new(which: Which) -> Self {
        let inner = match which {
            Which::Fake => Inner::Fake(Fake::default()),
            Which::Real => Inner::Real,
        };
        Self {
            inner,
            calls: 0,
            fault: None,
            has_failed: false,
            later: VecDeque::new(),
            is_stuck: false,
            log: Vec::new(),
            numbers: Vec::new(),
        }
    }

    /// A TCP connection: the end that connected, and the one that was accepted.
    pub fn sockets(&mut self) -> (i32, i32) {
        match &mut self.inner {
            Inner::Fake(fake) => fake.sockets(),
            Inner::Real => {
                let listener = LISTENER.lock().unwrap_or_else(|error| error.into_inner());
                let connected = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
                let accepted = listener.accept().unwrap().0;
                drop(listener);
                connected.set_nodelay(true).unwrap();
                accepted.set_nodelay(true).unwrap();
                (self.renamed(&connected), self.renamed(&accepted))
            }
        }
    }

    /// The socket by a number that nobody else gets while this machine is there.
    fn renamed(&mut self, socket: &impl AsRawFd) -> i32 {
        let mut in_use = IN_USE.lock().unwrap_or_else(|error| error.into_inner());
        let number = NUMBERS.into_iter().find(|number| in_use.insert(*number));
        let number = number.expect("few tests run at a time");
        self.numbers.push(number);
        // SAFETY: nobody has a descriptor of this number.
        let copy = unsafe { libc::dup3(socket.as_raw_fd(), number, libc::O_CLOEXEC) };
        assert_eq!(copy, number);
        number
    }

    /// A pipe: the end to read from, and the one to write to.
    pub fn pipe(&mut self) -> (i32, i32) {
        match &mut self.inner {
            Inner::Fake(fake) => fake.pipe(),
            Inner::Real => {
                let mut fds = [0; 2];
                // SAFETY: pipe2 writes two numbers.
                assert_eq!(unsafe { libc::pipe2(fds.as_mut_ptr(), libc::O_CLOEXEC) }, 0);
                (fds[0], fds[1])
            }
        }
    }

    fn answer(&mut self, number: i64, args: [usize; 6]) -> Result<isize, Waits> {
        match &mut self.inner {
            Inner::Fake(fake) => fake.call(number, args),
            Inner::Real if !self.later.is_empty() && would_wait(number, args) => Err(Waits),
            Inner::Real => Ok(real(number, args)),
        }
    }

    /// How the call that is now to fail does it, if it can fail so.
    fn due(&mut self, number: i64, args: [usize; 6]) -> Option<Fault> {
        if !is_counted(number, args) {
            return None;
        }
        self.calls += 1;
        let (at, fault) = self.fault?;
        if self.calls - 1 != at || !self.is_possible(number, args, fault) {
            return None;
        }
        self.has_failed = true;
        Some(fault)
    }

    fn is_possible(&mut self, number: i64, args: [usize; 6], fault: Fault) -> bool {
        let moves = reads(number, args).or_else(|| writes(number, args));
        let is_read = reads(number, args).is_some();
        let dontwait = match &moves {
            Some((_, flags)) => {
                let flags_of = [args[0], libc::F_GETFL as usize, 0, 0, 0, 0];
                let description = self.answer(libc::SYS_fcntl, flags_of).unwrap_or(0);
                flags & libc::MSG_DONTWAIT as usize != 0
                    || description & libc::O_NONBLOCK as isize != 0
            }
            None => false,
        };
        match (fault, moves.is_some()) {
            // Enough for the wait that has this flag is less than what was asked for.
            (Fault::Short, moves) => moves,
            (Fault::Errno(libc::EINTR), true) => !dontwait,
            (Fault::Errno(libc::EAGAIN), true) => dontwait,
            (Fault::Errno(libc::EPIPE), true) => !is_read,
            (Fault::Errno(_), true) => true,
            // epoll_wait(2) with a time of 0 does not look for signals.
            (Fault::Errno(libc::EINTR), false) => {
                !matches!(number, libc::SYS_epoll_wait | libc::SYS_epoll_pwait) || args[3] != 0
            }
            (Fault::Errno(number_of), false) => number_of == libc::ENOMEM,
        }
    }
}

impl Drop for Machine {
    fn drop(&mut self) {
        let mut in_use = IN_USE.lock().unwrap_or_else(|error| error.into_inner());
        for number in &self.numbers {
            in_use.remove(number);
        }
    }
}

/// Calls that can come to something else than usual: those that move bytes, and those that wait.
fn is_counted(number: i64, args: [usize; 6]) -> bool {
    let is_output = number == libc::SYS_write && args[0] <= 2;
    let moves = reads(number, args).is_some() || writes(number, args).is_some();
    let waits = match number {
        libc::SYS_poll | libc::SYS_ppoll => args[1] > 0,
        libc::SYS_epoll_wait | libc::SYS_epoll_pwait | libc::SYS_epoll_ctl => true,
        _ => false,
    };
    (moves || waits) && !is_output
}

/// Whether a call of the real kernel would wait.
fn would_wait(number: i64, args: [usize; 6]) -> bool {
    let is_ready = |events: i16| {
        let mut entry = libc::pollfd {
            fd: args[0] as i32,
            events,
            revents: 0,
        };
        real(libc::SYS_poll, [&raw mut entry as usize, 1, 0, 0, 0, 0]) > 0
    };
    let flags = real(
        libc::SYS_fcntl,
        [args[0], libc::F_GETFL as usize, 0, 0, 0, 0],
    );
    let dontwait = flags & libc::O_NONBLOCK as isize != 0;
    let is_asked = |flags: usize| flags & libc::MSG_DONTWAIT as usize != 0 || dontwait;
    if let Some((parts, flags)) = reads(number, args) {
        let wanted: usize = parts.iter().map(|(_, len)| len).sum();
        let is_enough = flags & libc::MSG_WAITALL as usize == 0
            || sluice_sys::tcp::unread_bytes(args[0] as i32).is_ok_and(|it| it as usize >= wanted);
        let is_over = is_ready(libc::POLLRDHUP);
        let has_something = is_over || is_enough && is_ready(libc::POLLIN);
        return !is_asked(flags) && !has_something;
    }
    if let Some((_, flags)) = writes(number, args) {
        return !is_asked(flags) && !is_ready(libc::POLLOUT);
    }
    match number {
        libc::SYS_poll if args[1] > 0 && args[2] != 0 => {
            real(number, [args[0], args[1], 0, 0, 0, 0]) == 0
        }
        libc::SYS_ppoll if args[1] > 0 => real(libc::SYS_poll, [args[0], args[1], 0, 0, 0, 0]) == 0,
        libc::SYS_epoll_wait | libc::SYS_epoll_pwait if args[3] as i32 != 0 => {
            !is_ready(libc::POLLIN)
        }
        _ => false,
    }
}

impl Kernel for Machine {
    fn call(&mut self, number: i64, args: [usize; 6]) -> Answer {
        let result = match self.due(number, args) {
            Some(Fault::Errno(number)) => Ok(-number as isize),
            Some(Fault::Short) => shortened(number, args, |args| self.answer(number, args)),
            None => self.answer(number, args),
        };
        let answer = match (result, self.later.pop_front()) {
            (Err(Waits), Some(meanwhile)) => return Answer::After(meanwhile),
            (Err(Waits), None) => {
                self.is_stuck = true;
                let is_wait = matches!(number, libc::SYS_poll | libc::SYS_ppoll);
                // The time of a wait is over; a call without one would stay here for ever.
                if is_wait { 0 } else { -libc::EDEADLK as isize }
            }
            (Ok(answer), meanwhile) => {
                if let Some(meanwhile) = meanwhile {
                    self.later.push_front(meanwhile);
                }
                answer
            }
        };
        if is_counted(number, args) {
            self.log.push((number, answer));
        }
        Answer::Is(answer)
    }
}
