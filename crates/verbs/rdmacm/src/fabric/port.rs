//! A machine and the queue pair 1 that it works over.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use sluice_verbs::transport::{Gsi, MAD_BYTES, MadPath, MadReceiver};
use sluice_verbs::types::Gid;

use super::machine::{Incoming, Machine, Output};
use crate::Errno;
use crate::address::Address;
use crate::channel::Key;
use crate::connector::Happening;
use crate::message::Message;
use crate::poller::Level;

/// Datagrams that wait for the agent's thread. More are dropped, as a network would.
const INBOX_MAX: usize = 4096;

/// How long a process that ends waits for its peers' agreement: time for three repetitions.
const FAREWELL: Duration = Duration::from_secs(2);
const FAREWELL_STEP: Duration = Duration::from_millis(2);
/// What one of them counts for at most.
const FAREWELL_STEP_MAX: Duration = Duration::from_millis(50);

/// What the connection manager must know of a device whose peers are on other hosts.
#[derive(Clone, Copy)]
pub struct Config {
    pub gsi: &'static dyn Gsi,
    /// Host byte order.
    pub ca_guid: u64,
    /// `ibv_mtu` of the port.
    pub mtu: u8,
    /// There is another device for peers on this host.
    pub host_device: bool,
}

struct Datagram {
    path: MadPath,
    mad: [u8; MAD_BYTES],
    passed_on: bool,
}

/// Takes what comes, in a thread of the transport.
struct Inbox {
    queue: Mutex<VecDeque<Datagram>>,
    wake: Arc<Level>,
}

/// The connection manager's way to other hosts.
pub struct Fabric {
    config: Config,
    inbox: Arc<Inbox>,
    /// `None` until somebody needs it.
    machine: Mutex<Option<Machine>>,
    events: Mutex<VecDeque<(Key, Happening)>>,
    wake: Arc<Level>,
}

/// A connection over the fabric, as an endpoint holds it. Dropping it ends what has not ended.
pub struct WireLink {
    fabric: Arc<Fabric>,
    id: u32,
}

pub fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl MadReceiver for Inbox {
    fn received(&self, path: &MadPath, mad: &[u8; MAD_BYTES], passed_on: bool) {
        let mut queue = lock(&self.queue);
        if queue.len() < INBOX_MAX {
            queue.push_back(Datagram {
                path: *path,
                mad: *mad,
                passed_on,
            });
        }
        drop(queue);
        self.wake.raise();
    }
}

impl Fabric {
    /// `wake` is raised when there is a datagram, an event or something to do at another time.
    pub fn new(config: Config, wake: Arc<Level>) -> Arc<Fabric> {
        Arc::new(Fabric {
            config,
            inbox: Arc::new(Inbox {
                queue: Mutex::default(),
                wake: Arc::clone(&wake),
            }),
            machine: Mutex::new(None),
            events: Mutex::default(),
            wake,
        })
    }

    pub fn config(&self) -> &Config {
        &self.config
    }

    /// Begins to take datagrams. Fails where the device has no way to the network.
    pub fn start(&self) -> Result<(), Errno> {
        let mut machine = lock(&self.machine);
        if machine.is_none() {
            let config = &self.config;
            let tag = config.gsi.tag().map_err(|error| error.errno())?;
            let seed = crate::random();
            *machine = Some(Machine::new(tag, config.ca_guid, config.mtu, seed));
            let inbox = Arc::clone(&self.inbox);
            config.gsi.set_receiver(inbox);
        }
        Ok(())
    }

    /// A connection to be, from `source` to `destination`.
    pub fn open(
        self: &Arc<Self>,
        key: Key,
        source: &Address,
        destination: &Address,
    ) -> Result<WireLink, Errno> {
        self.start()?;
        let path = MadPath {
            source: Gid(source.gid()),
            destination: Gid(destination.gid()),
            interface: destination.scope.max(source.scope),
        };
        let id = self.with(|machine| machine.open(key, path)).flatten();
        let id = id.ok_or(Errno(libc::ENOMEM))?;
        Ok(WireLink {
            fabric: Arc::clone(self),
            id,
        })
    }

    /// Makes a connection of a request. `None`: there are too many.
    pub fn admit(self: &Arc<Self>, incoming: &Incoming, key: Key) -> Option<WireLink> {
        let id = self
            .with(|machine| machine.admit(incoming, key))
            .flatten()?;
        Some(WireLink {
            fabric: Arc::clone(self),
            id,
        })
    }

    pub fn turn_away(&self, incoming: &Incoming) {
        self.with(|machine| machine.turn_away(incoming));
    }

    pub fn pass_on(&self, incoming: Incoming) {
        self.with(|machine| machine.pass_on(incoming));
    }

    /// Does what is due.
    pub fn tick(&self, now: Instant) {
        self.with(|machine| machine.tick(now));
    }

    /// Takes one datagram that came: whether there was one, and the request that it may be.
    pub fn take_one(&self, now: Instant) -> (bool, Option<Incoming>) {
        let Some(datagram) = lock(&self.inbox.queue).pop_front() else {
            return (false, None);
        };
        let Datagram {
            path,
            mad,
            passed_on,
        } = &datagram;
        let incoming = self.with(|machine| machine.received(now, path, mad, *passed_on));
        (true, incoming.flatten())
    }

    pub fn next_event(&self) -> Option<(Key, Happening)> {
        lock(&self.events).pop_front()
    }

    /// When [`Fabric::tick`] is to be called.
    pub fn deadline(&self) -> Option<Instant> {
        lock(&self.machine).as_ref()?.deadline()
    }

    /// The process ends: tells all peers, and stays a moment for datagrams that get lost, since
    /// there is no kernel that would send them again. Never waits for a lock: who has it may be
    /// gone.
    pub fn leave(&self) {
        let (mut left, mut before) = (FAREWELL, Instant::now());
        let mut told = false;
        loop {
            if let Ok(mut machine) = self.machine.try_lock() {
                let Some(machine) = machine.as_mut() else {
                    return;
                };
                let now = Instant::now();
                if !told {
                    machine.release_all(now);
                    told = true;
                }
                machine.tick(now);
                self.flush(machine);
                if !machine.disconnecting() {
                    return;
                }
            }
            std::thread::sleep(FAREWELL_STEP);
            // Time in which this process stood still is no time for repetitions.
            let now = Instant::now();
            left = left.saturating_sub((now - before).min(FAREWELL_STEP_MAX));
            before = now;
            if left.is_zero() {
                return;
            }
        }
    }

    /// Does something and sends what comes of it. `None` before the start.
    fn with<T>(&self, act: impl FnOnce(&mut Machine) -> T) -> Option<T> {
        let mut guard = lock(&self.machine);
        let machine = guard.as_mut()?;
        let before = machine.deadline();
        let result = act(machine);
        self.flush(machine);
        // The thread sleeps until the deadline that it knows.
        if machine.deadline() != before {
            self.wake.raise();
        }
        Some(result)
    }

    fn flush(&self, machine: &mut Machine) {
        while let Some(output) = machine.poll() {
            match output {
                Output::Send(id, path, mad) => {
                    let sent = self.config.gsi.send(&path, &mad);
                    if let (Err(_), Some(id)) = (sent, id) {
                        machine.no_way(Instant::now(), id);
                    }
                }
                Output::PassOn(tag, path, mad) => self.config.gsi.pass_on(tag, &path, &mad),
                Output::Event(key, happening) => {
                    lock(&self.events).push_back((key, happening));
                    self.wake.raise();
                }
            }
        }
    }
}

impl WireLink {
    pub fn send(&self, message: &Message) {
        let now = Instant::now();
        self.fabric
            .with(|machine| machine.command(now, self.id, message));
    }

    pub fn communication_established(&self) {
        self.fabric
            .with(|machine| machine.communication_established(self.id));
    }

    /// The local ACK timeout of the path, 5 bits.
    pub fn ack_timeout(&self) -> Option<u8> {
        self.fabric
            .with(|machine| machine.ack_timeout(self.id))
            .flatten()
    }
}

impl Drop for WireLink {
    fn drop(&mut self) {
        let now = Instant::now();
        self.fabric.with(|machine| machine.release(now, self.id));
    }
}
