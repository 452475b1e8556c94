//! By what a thread is woken that waits for descriptors, and what others know of its sleep.

use std::os::fd::RawFd;
use std::sync::Mutex;

use sluice_sys::errno::Errno;
use sluice_sys::local_fd::LocalFd;
use sluice_sys::wake::{Epoll, drain, eventfd, ring};

use super::announced::Announced;
use sluice_verbs::locks::lock;

/// Kinds of what wakes a thread, see [`token`]; a transport's own are from 3 on. [`Sleeper::wake`].
pub const KICK: u64 = 0;
/// Some of what it watches, too, while it sleeps ([`Sleeper::watch`]).
pub const WATCHED: u64 = 1;
/// What brings work ([`Sleeper::add_port`]).
pub const PORT: u64 = 2;

/// What says which thing of a kind has woken a thread.
pub fn token(kind: u64, id: u64) -> u64 {
    kind << 56 | (id & ((1 << 56) - 1))
}

/// The kind and the thing.
pub fn parse(token: u64) -> (u64, u64) {
    (token >> 56, token & ((1 << 56) - 1))
}

/// By what a thread is woken, and what others know of its sleep.
#[derive(Debug)]
pub struct Sleeper {
    /// What it waits for: everything, and what is left while others poll the ports.
    sleeping: Epoll,
    watching: Epoll,
    ports: Mutex<Ports>,
    kick: LocalFd,
    announced: Announced,
}

/// The ports' descriptors, with their tokens.
#[derive(Debug, Default)]
struct Ports {
    all: Vec<(RawFd, u64)>,
    /// They are among what a sleeping thread waits for. Only then, as the kernel looks at each
    /// packet whether somebody waits, and for longer if somebody could.
    heard: bool,
}

impl Sleeper {
    /// One that nothing wakes but [`Sleeper::wake`].
    pub fn new() -> Result<Self, Errno> {
        let (sleeping, watching) = (Epoll::new()?, Epoll::new()?);
        let kick = LocalFd::own(eventfd()?);
        watching.add(kick.raw(), token(KICK, 0))?;
        sleeping.add(watching.raw(), token(WATCHED, 0))?;
        Ok(Self {
            sleeping,
            watching,
            ports: Mutex::default(),
            kick,
            announced: Announced::default(),
        })
    }

    /// It is woken by a port unless a program polls. `kind` tells ports apart.
    pub fn add_port(&self, descriptor: RawFd, kind: u64) -> Result<(), Errno> {
        let port = (descriptor, token(PORT, kind));
        let mut ports = lock(&self.ports);
        ports.all.push(port);
        if ports.heard {
            self.sleeping.add(port.0, port.1)?;
        }
        Ok(())
    }

    /// It is woken by something else, always.
    pub fn watch(&self, descriptor: RawFd, token: u64) -> Result<(), Errno> {
        self.watching.add(descriptor, token)
    }

    /// No longer.
    pub fn forget(&self, descriptor: RawFd) {
        self.watching.remove(descriptor);
    }

    /// It looks around.
    pub fn wake(&self) {
        ring(self.kick.raw());
    }

    /// Somebody waits for packets without polling, and has said so where the thread looks.
    pub fn wake_to_hear(&self) {
        // It says that it is going to look before it does.
        if !self.announced.hears() {
            self.wake();
        }
    }

    /// Whether it sleeps, and for longer than a nap: until it is woken.
    pub fn is_asleep(&self) -> bool {
        self.announced.is_asleep()
    }

    /// Sees to it that it does not sleep for long while something is due.
    pub fn wake_for(&self, deadline: u64) {
        if self.announced.sleeps_past(deadline) {
            self.wake();
        }
    }
}

/// What the thread itself does.
impl Sleeper {
    /// It is awake. In front of its look at who waits.
    pub fn awakes(&self) {
        self.announced.awakes();
    }

    /// Whether packets wake it from now on.
    pub fn listens(&self, heard: bool) {
        self.hear(heard);
        self.announced.listens(heard);
    }

    /// Whether packets wake a sleeping thread from now on. Those that wait already do.
    fn hear(&self, heard: bool) {
        let mut ports = lock(&self.ports);
        if core::mem::replace(&mut ports.heard, heard) == heard {
            return;
        }
        for (descriptor, token) in &ports.all {
            if heard {
                // A port that cannot be waited for is found by the next deadline's look.
                let _ = self.sleeping.add(*descriptor, *token);
            } else {
                self.sleeping.remove(*descriptor);
            }
        }
    }

    /// Sleeps until then, or until it is woken.
    pub fn sleeps_until(&self, until: u64, now: u64) {
        self.announced.sleeps_until(until, now);
    }

    /// Waits for everything, or where `watching` for what is left while others poll the ports.
    /// The tokens of what is there.
    pub fn wait<'a>(
        &self,
        watching: bool,
        tokens: &'a mut [u64; 64],
        timeout_ns: Option<u64>,
    ) -> &'a [u64] {
        let epoll = if watching {
            &self.watching
        } else {
            &self.sleeping
        };
        epoll.wait(tokens, timeout_ns).unwrap_or(&[])
    }

    /// [`KICK`] has woken it.
    pub fn was_kicked(&self) {
        drain(self.kick.raw());
    }
}
