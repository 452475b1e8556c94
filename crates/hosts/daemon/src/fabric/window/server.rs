//! The ivshmem server of a window (`sluice window serve`): whether it is there, and which memory it gives out.
//! It may be started anew at any time, and hang or lie. Nothing here waits for it: sluiced looks at the socket now
//! and then, as it beats in the window's memory.

use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use sluice_sys::unix::Fd;
use sluice_window::claim::BEAT_NS;
use sluice_window::ivshmem::{Greeted, Greeting, Presence};
use sluice_window::region::Source;

/// Time between two attempts to get a window, and the longest after some.
const PAUSE: Duration = Duration::from_millis(250);
const PAUSE_MAX: Duration = Duration::from_secs(8);
/// For how long a server is there before the next attempt comes soon again: one that comes and goes is another matter.
const STEADY: Duration = Duration::from_secs(10);
/// How long the server may take to say what it says at the beginning.
const GREETING: Duration = Duration::from_secs(5);
/// Time between two looks at a server: while there is something to hear, and the longest.
const LOOK: Duration = Duration::from_millis(5);
const LOOK_MAX: Duration = Duration::from_nanos(BEAT_NS);
/// What is heard of a server at one look.
const MESSAGES_MAX: usize = 512;

/// A server, or the device or file that lies where a server could.
#[derive(Debug)]
pub struct Server {
    path: PathBuf,
    state: State,
    /// Until the next attempt, once this one has failed.
    pause: Duration,
}

#[derive(Debug)]
enum State {
    Away {
        retry_at: Instant,
    },
    Greeting {
        greeting: Greeting,
        next: Look,
        until: Instant,
    },
    Here {
        presence: Presence,
        next: Look,
        since: Instant,
    },
    /// A device or a file: it is opened once, and nobody says when it goes.
    Opened,
}

/// When to look again.
#[derive(Clone, Copy, Debug)]
struct Look {
    due: Instant,
    pause: Duration,
}

/// What has become of a server.
#[derive(Debug)]
pub enum Event {
    /// It gives out this memory, which is not looked at yet.
    Memory(Fd, Origin),
    /// It was there and has gone; why.
    Gone(String),
    /// There is no memory; why.
    Failed(String),
}

/// Who has given memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Origin {
    Server,
    /// A file of this host, or a device that a guest has.
    Path,
}

impl Look {
    fn begin(now: Instant) -> Look {
        Look {
            due: now,
            pause: LOOK,
        }
    }

    fn after(self, now: Instant, has_heard: bool) -> Look {
        let pause = if has_heard { LOOK } else { self.pause };
        Look {
            due: now + pause,
            pause: (2 * pause).min(LOOK_MAX),
        }
    }
}

impl Server {
    /// Tries at once.
    pub fn new(path: &Path, now: Instant) -> Server {
        Server {
            path: path.to_owned(),
            state: State::Away { retry_at: now },
            pause: PAUSE,
        }
    }

    /// When [`Server::turn`] has something to do, at the latest.
    pub fn next_deadline(&self) -> Option<Instant> {
        let due = self.due()?;
        let is_quiet = matches!(&self.state, State::Here { next, .. } if next.pause == LOOK_MAX);
        // sluiced beats in the memory meanwhile: that need not wake it twice.
        Some(if is_quiet { due + LOOK_MAX } else { due })
    }

    fn due(&self) -> Option<Instant> {
        match &self.state {
            State::Away { retry_at } => Some(*retry_at),
            State::Greeting { next, until, .. } => Some(next.due.min(*until)),
            State::Here { next, .. } => Some(next.due),
            State::Opened => None,
        }
    }

    /// For people: how things stand with the memory that there is.
    pub fn state(&self) -> &'static str {
        match self.state {
            State::Here { .. } => "served",
            State::Away { .. } | State::Greeting { .. } => "no server",
            State::Opened => "device",
        }
    }

    /// What has come of it since the last time. Does not wait.
    pub fn turn(&mut self, now: Instant) -> Option<Event> {
        if self.due().is_none_or(|due| due > now) {
            return None;
        }
        // Whatever fails below is tried again then.
        let away = State::Away { retry_at: now };
        match std::mem::replace(&mut self.state, away) {
            State::Away { .. } => self.begin(now),
            State::Greeting {
                greeting,
                next,
                until,
            } => self.greet(greeting, next, until, now),
            State::Here {
                presence,
                next,
                since,
            } => match presence.check(MESSAGES_MAX) {
                Ok(count) => {
                    let next = next.after(now, count > 0);
                    self.state = State::Here {
                        presence,
                        next,
                        since,
                    };
                    None
                }
                Err(error) => {
                    if now >= since + STEADY {
                        self.pause = PAUSE;
                    }
                    self.try_later(now);
                    Some(Event::Gone(error.to_string()))
                }
            },
            State::Opened => None,
        }
    }

    /// The memory is none that this host can use, or has room for: asks for it again later.
    pub fn refuse(&mut self, now: Instant) {
        self.try_later(now);
    }

    fn try_later(&mut self, now: Instant) {
        self.state = State::Away {
            retry_at: now + self.pause,
        };
        self.pause = (2 * self.pause).min(PAUSE_MAX);
    }

    fn fail(&mut self, why: &dyn std::fmt::Display, now: Instant) -> Option<Event> {
        self.try_later(now);
        Some(Event::Failed(why.to_string()))
    }

    fn begin(&mut self, now: Instant) -> Option<Event> {
        let is_socket = std::fs::metadata(&self.path).map(|it| it.file_type().is_socket());
        match is_socket {
            Ok(true) => match Greeting::begin(&self.path) {
                Ok(greeting) => self.greet(greeting, Look::begin(now), now + GREETING, now),
                Err(error) => self.fail(&error, now),
            },
            Ok(false) => match open(&self.path) {
                Ok(memory) => {
                    self.state = State::Opened;
                    Some(Event::Memory(memory, Origin::Path))
                }
                Err(why) => self.fail(&why, now),
            },
            Err(error) => self.fail(&error, now),
        }
    }

    fn greet(
        &mut self,
        greeting: Greeting,
        next: Look,
        until: Instant,
        now: Instant,
    ) -> Option<Event> {
        match greeting.advance() {
            Ok(Greeted::Joined(client)) => {
                let (memory, presence) = client.into_memory();
                self.state = State::Here {
                    presence,
                    next: Look::begin(now),
                    since: now,
                };
                Some(Event::Memory(memory.into(), Origin::Server))
            }
            Ok(Greeted::Waits(_)) if now >= until => {
                self.fail(&"the ivshmem server says nothing", now)
            }
            Ok(Greeted::Waits(greeting)) => {
                self.state = State::Greeting {
                    greeting,
                    next: next.after(now, false),
                    until,
                };
                None
            }
            Err(error) => self.fail(&error, now),
        }
    }
}

fn open(path: &Path) -> Result<Fd, String> {
    let source = Source::open(path).map_err(|error| error.to_string())?;
    sluice_sys::unix::duplicate(source.fd()).map_err(|error| error.to_string())
}

#[cfg(test)]
mod tests;
