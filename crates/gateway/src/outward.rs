//! Programs of nodes that connect out: they say where to, and the gateway connects, if the node may.

use std::collections::{BTreeSet, HashMap};
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsFd, OwnedFd};
use std::time::{Duration, Instant};

use sluice_control::message::gateway::Ranges;
use sluice_control::preface::{
    Answer, Carrier, Key, Kind, NOWHERE, PREFACE_BYTES, Preface, claimed_nonce,
};
use sluice_relay::{Engine, Interest, PairId, socket};

/// Above: numbers of exits, and of connections that are being made.
const KEY_EXIT: u64 = 0b01 << 58;
const KEY_OUTWARD: u64 = 0b10 << 58;

/// Connections that have not said where to, or are not there yet, at most.
const PENDING_MAX: usize = 16_384;
/// How long a program may take to say where to.
const SAY_MAX: Duration = Duration::from_secs(3);
/// How long a destination may take to answer.
const CONNECT_MAX: Duration = Duration::from_secs(30);
/// Connections accepted from one exit before others have their turn.
const ACCEPTS_PER_TURN_MAX: usize = 64;

#[derive(Debug)]
struct Exit {
    fd: OwnedFd,
    key: Key,
    allowed: Ranges,
}

#[derive(Debug)]
enum Stage {
    /// What it has said so far.
    Saying(Box<[u8; PREFACE_BYTES]>, usize),
    Connecting {
        outside: OwnedFd,
        is_answered: bool,
    },
}

#[derive(Debug)]
struct Pending {
    inside: OwnedFd,
    exit: u32,
    stage: Stage,
    due: Instant,
}

/// All of them.
#[derive(Debug, Default)]
pub struct Outward {
    exits: HashMap<u32, Exit>,
    pending: HashMap<u64, Pending>,
    deadlines: BTreeSet<(Instant, u64)>,
    next: u64,
}

/// Whether the key of an event is one of ours.
pub fn is_ours(key: u64) -> bool {
    (KEY_EXIT..KEY_EXIT << 2).contains(&key)
}

impl Outward {
    /// When [`Outward::pass_time`] has something to do.
    pub fn next_deadline(&self) -> Option<Instant> {
        self.deadlines.first().map(|(due, _)| *due)
    }

    /// No connection is being made.
    pub fn is_idle(&self) -> bool {
        self.pending.is_empty()
    }

    /// Listens for programs of a node. The port.
    pub fn open(
        &mut self,
        engine: &mut Engine,
        exit: u32,
        address: IpAddr,
        key: Key,
        allowed: Ranges,
    ) -> io::Result<u16> {
        self.shut(engine, exit);
        let fd = socket::listen(&SocketAddr::new(address, 0), 1024)?;
        let port = socket::local_address(fd.as_fd())?.port();
        engine.watch(fd.as_fd(), Interest::Readable, KEY_EXIT | u64::from(exit))?;
        self.exits.insert(exit, Exit { fd, key, allowed });
        Ok(port)
    }

    /// Does not, any more.
    pub fn shut(&mut self, engine: &mut Engine, exit: u32) {
        if let Some(former) = self.exits.remove(&exit) {
            let _ = engine.unwatch(former.fd.as_fd(), KEY_EXIT | u64::from(exit));
        }
    }

    /// Listens for nobody.
    pub fn shut_all(&mut self, engine: &mut Engine) {
        let all: Vec<u32> = self.exits.keys().copied().collect();
        for exit in all {
            self.shut(engine, exit);
        }
    }

    /// Something is ready. A pair, if there is one now.
    pub fn ready(&mut self, engine: &mut Engine, key: u64, now: Instant) -> Option<PairId> {
        if key & KEY_OUTWARD == 0 {
            self.accept(engine, key as u32, now);
            return None;
        }
        let number = key & !KEY_OUTWARD;
        match self.pending.get(&number)?.stage {
            Stage::Saying(..) => {
                self.hear(engine, number, now);
                None
            }
            Stage::Connecting { .. } => self.connected(engine, number),
        }
    }

    /// Gives up what has taken too long.
    pub fn pass_time(&mut self, engine: &mut Engine, now: Instant) {
        while let Some((due, number)) = self.deadlines.first().copied() {
            if due > now {
                return;
            }
            self.deadlines.pop_first();
            if self.pending.get(&number).is_some_and(|it| it.due <= now) {
                self.refuse(engine, number, libc::ETIMEDOUT);
            }
        }
    }

    fn accept(&mut self, engine: &mut Engine, exit: u32, now: Instant) {
        for _ in 0..ACCEPTS_PER_TURN_MAX {
            let Some(listener) = self.exits.get(&exit) else {
                return;
            };
            let inside = match socket::accept(listener.fd.as_fd()) {
                Ok(Some((inside, _))) => inside,
                Ok(None) => return,
                Err(error) => {
                    if engine.pause(KEY_EXIT | u64::from(exit)) {
                        tracing::warn!("no connection out is accepted for now: {error}");
                    }
                    return;
                }
            };
            let _ = socket::reset_on_close(inside.as_fd(), true);
            if self.pending.len() >= PENDING_MAX {
                continue;
            }
            let number = self.next;
            self.next = (self.next + 1) & (KEY_EXIT - 1);
            let key = KEY_OUTWARD | number;
            if engine
                .watch(inside.as_fd(), Interest::Readable, key)
                .is_err()
            {
                continue;
            }
            let due = now + SAY_MAX;
            let stage = Stage::Saying(Box::new([0; PREFACE_BYTES]), 0);
            self.pending.insert(
                number,
                Pending {
                    inside,
                    exit,
                    stage,
                    due,
                },
            );
            self.deadlines.insert((due, number));
        }
    }

    fn hear(&mut self, engine: &mut Engine, number: u64, now: Instant) {
        let Some(pending) = self.pending.get_mut(&number) else {
            return;
        };
        let Stage::Saying(bytes, seen) = &mut pending.stage else {
            return;
        };
        match socket::read(pending.inside.as_fd(), &mut bytes[*seen..]) {
            Ok(0) => return self.forget(engine, number),
            Ok(count) => *seen += count,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return,
            Err(_) => return self.forget(engine, number),
        }
        if *seen < PREFACE_BYTES {
            return;
        }
        let bytes = **bytes;
        let exit = self.exits.get(&pending.exit);
        let preface = exit.and_then(|exit| {
            let carrier = Carrier {
                from: socket::remote_address(pending.inside.as_fd()).ok()?,
                to: socket::local_address(pending.inside.as_fd()).ok()?,
            };
            let is_its = claimed_nonce(&bytes) == pending.exit;
            let preface = Preface::decode(&bytes, &exit.key, &carrier).ok()?;
            (is_its && preface.kind != Kind::Client).then_some((preface, exit.allowed))
        });
        let Some((preface, allowed)) = preface else {
            tracing::warn!("somebody who may not wants to be connected out");
            return self.forget(engine, number);
        };
        self.go(engine, number, preface, allowed, now);
    }

    /// Begins to connect.
    fn go(
        &mut self,
        engine: &mut Engine,
        number: u64,
        preface: Preface,
        allowed: Ranges,
        now: Instant,
    ) {
        let Some(mut pending) = self.pending.remove(&number) else {
            return;
        };
        let key = KEY_OUTWARD | number;
        let _ = engine.unwatch(pending.inside.as_fd(), key);
        let target = preface.client;
        let is_answered = preface.kind == Kind::Destination;
        let begun = if may_go(target.ip(), &allowed) {
            socket::tcp(&target).and_then(|outside| {
                socket::connect(outside.as_fd(), &target)?;
                engine.watch(outside.as_fd(), Interest::Writable, key)?;
                Ok(outside)
            })
        } else {
            Err(io::Error::from_raw_os_error(libc::EACCES))
        };
        match begun {
            Ok(outside) => {
                pending.stage = Stage::Connecting {
                    outside,
                    is_answered,
                };
                pending.due = now + CONNECT_MAX;
                self.pending.insert(number, pending);
                self.deadlines.insert((now + CONNECT_MAX, number));
            }
            Err(error) => {
                let errno = error.raw_os_error().unwrap_or(libc::EIO);
                end(pending.inside, is_answered, errno);
            }
        }
    }

    fn connected(&mut self, engine: &mut Engine, number: u64) -> Option<PairId> {
        let pending = self.pending.remove(&number)?;
        let Stage::Connecting {
            outside,
            is_answered,
        } = pending.stage
        else {
            return None;
        };
        let _ = engine.unwatch(outside.as_fd(), KEY_OUTWARD | number);
        let checked = socket::take_error(outside.as_fd()).and_then(|()| {
            let own = socket::local_address(outside.as_fd())?;
            if own.ip() == socket::remote_address(outside.as_fd())?.ip() {
                // This very host, under whichever address: what serves it is not outside.
                return Err(io::Error::from_raw_os_error(libc::EACCES));
            }
            if is_answered {
                let answer = Answer {
                    errno: 0,
                    outside: own,
                };
                socket::write(pending.inside.as_fd(), &answer.encode())?;
            }
            Ok(())
        });
        match checked {
            Ok(()) => engine.pair(pending.inside, outside).ok(),
            Err(error) => {
                let errno = error.raw_os_error().unwrap_or(libc::EIO);
                end(pending.inside, is_answered, errno);
                None
            }
        }
    }

    fn refuse(&mut self, engine: &mut Engine, number: u64, errno: i32) {
        let Some(pending) = self.pending.remove(&number) else {
            return;
        };
        let key = KEY_OUTWARD | number;
        match pending.stage {
            Stage::Saying(..) => {
                let _ = engine.unwatch(pending.inside.as_fd(), key);
            }
            Stage::Connecting {
                outside,
                is_answered,
            } => {
                let _ = engine.unwatch(outside.as_fd(), key);
                end(pending.inside, is_answered, errno);
            }
        }
    }

    /// Without a word, which is a reset.
    fn forget(&mut self, engine: &mut Engine, number: u64) {
        self.refuse(engine, number, libc::ECONNREFUSED);
    }
}

/// Tells a program that waits why it is not connected, and resets one that does not.
fn end(inside: OwnedFd, is_answered: bool, errno: i32) {
    if is_answered {
        let answer = Answer {
            errno: errno as u16,
            outside: NOWHERE,
        };
        if socket::write(inside.as_fd(), &answer.encode()).is_ok() {
            let _ = socket::reset_on_close(inside.as_fd(), false);
        }
    }
}

/// Whether programs of a node with these networks may connect there. Addresses that mean this host,
/// this link or everybody are nowhere outside, whatever the configuration says.
fn may_go(to: IpAddr, allowed: &Ranges) -> bool {
    let to = to.to_canonical();
    let is_special = match to {
        IpAddr::V4(ip) => ip.is_broadcast() || ip.is_link_local(),
        IpAddr::V6(ip) => ip.is_unicast_link_local(),
    };
    !is_special
        && !to.is_loopback()
        && !to.is_unspecified()
        && !to.is_multicast()
        && allowed.contain(to)
}

#[cfg(test)]
mod tests {
    use super::*;
    use sluice_control::message::gateway::Range;

    #[test]
    fn only_allowed_addresses_outside_are_connected_to() {
        let range = |first: &str, prefix| Range {
            first: first.parse().unwrap(),
            prefix,
        };
        let everything = Ranges::new([range("::", 0)]);
        let some = Ranges::new([range("::ffff:198.51.100.0", 120)]);
        for (to, of_everything, of_some) in [
            ("198.51.100.7", true, true),
            ("::ffff:198.51.100.7", true, true),
            ("198.51.101.7", true, false),
            ("2001:db8::1", true, false),
            ("127.0.0.1", false, false),
            ("::1", false, false),
            ("::ffff:127.0.0.1", false, false),
            ("0.0.0.0", false, false),
            ("::", false, false),
            ("224.0.0.1", false, false),
            ("ff02::1", false, false),
            ("169.254.169.254", false, false),
            ("fe80::1", false, false),
            ("255.255.255.255", false, false),
        ] {
            let to: IpAddr = to.parse().unwrap();
            assert_eq!(may_go(to, &everything), of_everything, "{to}");
            assert_eq!(may_go(to, &some), of_some, "{to}");
            assert!(!may_go(to, &Ranges::new([])), "{to}");
        }
    }
}
