//! Programs of nodes that connect out: they say where to, and the gateway connects, if the node may.

use std::collections::{BTreeSet, HashMap};
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsFd, OwnedFd};
use std::time::{Duration, Instant};

use sluice_control::message::gateway::Ranges;
use sluice_control::preface::{
    Answer, Carrier, Key, Kind, NOWHERE, PREFACE_BYTES, Preface, claimed_exit,
};
use sluice_relay::{EventLoop, Interest, PairId, socket};
use sluice_sys::route::{self, Leads};

/// Above: numbers of exits, and of connections that are being made.
const KEY_EXIT: u64 = 0b01 << 58;
const KEY_OUTWARD: u64 = 0b10 << 58;

/// Connections of one node that have not said where to, at most: with one more the oldest is reset.
const SAYING_MAX: usize = 1_024;
/// Connections of one node that are being made, at most: more are refused.
const CONNECTING_MAX: usize = 4_096;
/// Somebody who may not connect out is worth a line in the log so often.
const STRANGER_SAID: Duration = Duration::from_secs(60);
/// How long a program may take to say where to.
const SAY_MAX: Duration = Duration::from_secs(3);
/// How long a destination may take to answer.
const CONNECT_MAX: Duration = Duration::from_secs(30);
/// Connections accepted from one exit before others have their turn.
const ACCEPTS_PER_TURN_MAX: usize = 64;

/// What holds for programs of one node.
#[derive(Clone, Copy, Debug)]
pub struct Rules {
    pub key: Key,
    /// Where they may go.
    pub allowed: Ranges,
    /// Where they come from.
    pub sources: Ranges,
}

#[derive(Debug)]
struct Exit {
    fd: OwnedFd,
    rules: Rules,
    /// Those that have not said where to, the oldest first.
    saying: BTreeSet<u64>,
    /// How many are being made.
    connecting: usize,
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
    stranger_said: Option<Instant>,
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
        event_loop: &mut EventLoop,
        exit: u32,
        address: IpAddr,
        rules: Rules,
    ) -> io::Result<u16> {
        self.shut(event_loop, exit);
        let fd = socket::listen(&SocketAddr::new(address, 0), 1024)?;
        let port = socket::local_address(fd.as_fd())?.port();
        event_loop.watch(fd.as_fd(), Interest::Readable, KEY_EXIT | u64::from(exit))?;
        let opened = Exit {
            fd,
            rules,
            saying: BTreeSet::new(),
            connecting: 0,
        };
        self.exits.insert(exit, opened);
        Ok(port)
    }

    /// Does not, any more.
    pub fn shut(&mut self, event_loop: &mut EventLoop, exit: u32) {
        if let Some(former) = self.exits.remove(&exit) {
            let _ = event_loop.unwatch(former.fd.as_fd(), KEY_EXIT | u64::from(exit));
            // Their key is worth nothing any more.
            for number in former.saying {
                self.forget(event_loop, number);
            }
        }
    }

    /// Listens for nobody.
    pub fn shut_all(&mut self, event_loop: &mut EventLoop) {
        let all: Vec<u32> = self.exits.keys().copied().collect();
        for exit in all {
            self.shut(event_loop, exit);
        }
    }

    /// Something is ready. A pair, if there is one now.
    pub fn ready(&mut self, event_loop: &mut EventLoop, key: u64, now: Instant) -> Option<PairId> {
        if key & KEY_OUTWARD == 0 {
            self.accept(event_loop, key as u32, now);
            return None;
        }
        let number = key & !KEY_OUTWARD;
        match self.pending.get(&number)?.stage {
            Stage::Saying(..) => {
                self.hear(event_loop, number, now);
                None
            }
            Stage::Connecting { .. } => self.connected(event_loop, number),
        }
    }

    /// Gives up what has taken too long.
    pub fn pass_time(&mut self, event_loop: &mut EventLoop, now: Instant) {
        while let Some((due, number)) = self.deadlines.first().copied() {
            if due > now {
                return;
            }
            self.deadlines.pop_first();
            self.refuse(event_loop, number, libc::ETIMEDOUT);
        }
    }

    /// Something is being made for an exit, until [`Outward::take`].
    fn put(&mut self, number: u64, pending: Pending) {
        if let Some(exit) = self.exits.get_mut(&pending.exit) {
            match pending.stage {
                Stage::Saying(..) => drop(exit.saying.insert(number)),
                Stage::Connecting { .. } => exit.connecting += 1,
            }
        }
        self.deadlines.insert((pending.due, number));
        self.pending.insert(number, pending);
    }

    fn take(&mut self, number: u64) -> Option<Pending> {
        let pending = self.pending.remove(&number)?;
        self.deadlines.remove(&(pending.due, number));
        if let Some(exit) = self.exits.get_mut(&pending.exit) {
            match pending.stage {
                Stage::Saying(..) => drop(exit.saying.remove(&number)),
                // An exit that was shut may have the same number.
                Stage::Connecting { .. } => exit.connecting = exit.connecting.saturating_sub(1),
            }
        }
        Some(pending)
    }

    fn accept(&mut self, event_loop: &mut EventLoop, exit: u32, now: Instant) {
        for _ in 0..ACCEPTS_PER_TURN_MAX {
            let Some(listener) = self.exits.get(&exit) else {
                return;
            };
            let (inside, from) = match socket::accept(listener.fd.as_fd()) {
                Ok(Some(accepted)) => accepted,
                Ok(None) => return,
                Err(error) => {
                    if event_loop.pause(KEY_EXIT | u64::from(exit)) {
                        tracing::warn!("no connection out is accepted for now: {error}");
                    }
                    return;
                }
            };
            let _ = socket::reset_on_close(inside.as_fd(), true);
            if !listener.rules.sources.contain(from.ip()) {
                self.say_stranger(from, now);
                continue;
            }
            let oldest = listener.saying.first().copied();
            if listener.saying.len() >= SAYING_MAX
                && let Some(oldest) = oldest
            {
                self.forget(event_loop, oldest);
            }
            let number = self.next;
            self.next = (self.next + 1) & (KEY_EXIT - 1);
            let key = KEY_OUTWARD | number;
            if event_loop
                .watch(inside.as_fd(), Interest::Readable, key)
                .is_err()
            {
                continue;
            }
            let due = now + SAY_MAX;
            let stage = Stage::Saying(Box::new([0; PREFACE_BYTES]), 0);
            let pending = Pending {
                inside,
                exit,
                stage,
                due,
            };
            self.put(number, pending);
        }
    }

    fn say_stranger(&mut self, from: SocketAddr, now: Instant) {
        let is_new = self
            .stranger_said
            .is_none_or(|at| now.saturating_duration_since(at) >= STRANGER_SAID);
        if is_new {
            self.stranger_said = Some(now);
            tracing::warn!("{from} may not be connected out, and wants to");
        }
    }

    fn hear(&mut self, event_loop: &mut EventLoop, number: u64, now: Instant) {
        let Some(pending) = self.pending.get_mut(&number) else {
            return;
        };
        let Stage::Saying(bytes, seen) = &mut pending.stage else {
            return;
        };
        match socket::read(pending.inside.as_fd(), &mut bytes[*seen..]) {
            Ok(0) => return self.forget(event_loop, number),
            Ok(count) => *seen += count,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return,
            Err(_) => return self.forget(event_loop, number),
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
            let is_its = claimed_exit(&bytes) == pending.exit;
            let preface = Preface::decode(&bytes, &exit.rules.key, &carrier).ok()?;
            (is_its && preface.kind != Kind::Client).then_some(preface)
        });
        let Some(preface) = preface else {
            if let Ok(from) = socket::remote_address(pending.inside.as_fd()) {
                self.say_stranger(from, now);
            }
            return self.forget(event_loop, number);
        };
        self.go(event_loop, number, preface, now);
    }

    /// Begins to connect.
    fn go(&mut self, event_loop: &mut EventLoop, number: u64, preface: Preface, now: Instant) {
        let Some(mut pending) = self.take(number) else {
            return;
        };
        let key = KEY_OUTWARD | number;
        let _ = event_loop.unwatch(pending.inside.as_fd(), key);
        let target = preface.client;
        let is_answered = preface.kind == Kind::Destination;
        let begun = self.may(pending.exit, target.ip()).and_then(|()| {
            let outside = socket::tcp(&target)?;
            socket::connect(outside.as_fd(), &target)?;
            event_loop.watch(outside.as_fd(), Interest::Writable, key)?;
            Ok(outside)
        });
        match begun {
            Ok(outside) => {
                pending.stage = Stage::Connecting {
                    outside,
                    is_answered,
                };
                pending.due = now + CONNECT_MAX;
                self.put(number, pending);
            }
            Err(error) => {
                let errno = error.raw_os_error().unwrap_or(libc::EIO);
                end(pending.inside, is_answered, errno);
            }
        }
    }

    /// Whether a connection there may be made for the exit now.
    fn may(&self, exit: u32, to: IpAddr) -> io::Result<()> {
        let errno = match self.exits.get(&exit) {
            Some(exit) if exit.connecting >= CONNECTING_MAX => libc::ENOBUFS,
            Some(exit) if may_go(to, &exit.rules.allowed) && leads_away(to) => return Ok(()),
            _ => libc::EACCES,
        };
        Err(io::Error::from_raw_os_error(errno))
    }

    fn connected(&mut self, event_loop: &mut EventLoop, number: u64) -> Option<PairId> {
        let pending = self.take(number)?;
        let Stage::Connecting {
            outside,
            is_answered,
        } = pending.stage
        else {
            return None;
        };
        let _ = event_loop.unwatch(outside.as_fd(), KEY_OUTWARD | number);
        let checked = socket::take_error(outside.as_fd()).and_then(|()| {
            let own = socket::local_address(outside.as_fd())?;
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
            Ok(()) => event_loop.pair(pending.inside, outside).ok(),
            Err(error) => {
                let errno = error.raw_os_error().unwrap_or(libc::EIO);
                end(pending.inside, is_answered, errno);
                None
            }
        }
    }

    fn refuse(&mut self, event_loop: &mut EventLoop, number: u64, errno: i32) {
        let Some(pending) = self.take(number) else {
            return;
        };
        let key = KEY_OUTWARD | number;
        match pending.stage {
            Stage::Saying(..) => {
                let _ = event_loop.unwatch(pending.inside.as_fd(), key);
            }
            Stage::Connecting {
                outside,
                is_answered,
            } => {
                let _ = event_loop.unwatch(outside.as_fd(), key);
                end(pending.inside, is_answered, errno);
            }
        }
    }

    /// Without a word, which is a reset.
    fn forget(&mut self, event_loop: &mut EventLoop, number: u64) {
        self.refuse(event_loop, number, libc::ECONNREFUSED);
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

/// Whether packets for the address leave this host. What serves it is not outside, and is not to see
/// that somebody tried.
fn leads_away(to: IpAddr) -> bool {
    match route::leads(to) {
        Ok(leads) => leads == Leads::Away,
        Err(error) => {
            tracing::warn!("where {to} is cannot be found out: {error}");
            let own = sluice_relay::host::addresses();
            own.is_ok_and(|own| !own.contains(&to.to_canonical()))
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
    use sluice_relay::Event;
    use std::io::Read;
    use std::net::TcpStream;

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

    fn everything() -> Ranges {
        Ranges::new([Range {
            first: "::".parse().unwrap(),
            prefix: 0,
        }])
    }

    fn open(event_loop: &mut EventLoop, outward: &mut Outward, exit: u32) -> SocketAddr {
        let ip = IpAddr::from([127, 0, 0, 1]);
        let rules = Rules {
            key: Key([1; 32]),
            allowed: everything(),
            sources: everything(),
        };
        let port = outward.open(event_loop, exit, ip, rules).unwrap();
        SocketAddr::new(ip, port)
    }

    /// Does what there is to do, at one moment.
    fn settle(event_loop: &mut EventLoop, outward: &mut Outward, now: Instant) {
        let mut events = Vec::new();
        loop {
            events.clear();
            event_loop.turn(Some(Duration::ZERO), &mut events).unwrap();
            if events.is_empty() {
                return;
            }
            for event in &events {
                if let Event::Ready { key, .. } = *event {
                    outward.ready(event_loop, key, now);
                }
            }
        }
    }

    #[test]
    fn who_says_nothing_gives_way_and_takes_no_room_of_another_node() {
        let now = Instant::now();
        let mut event_loop = EventLoop::new(sluice_relay::Options::default()).unwrap();
        let mut outward = Outward::default();
        let at = [1, 2].map(|exit| open(&mut event_loop, &mut outward, exit));
        let connect = |at: &SocketAddr| {
            let stream = TcpStream::connect(at).unwrap();
            stream.set_nonblocking(true).unwrap();
            stream
        };
        let other = connect(&at[1]);
        settle(&mut event_loop, &mut outward, now);
        let mut silent = Vec::new();
        for _ in 0..SAYING_MAX + 9 {
            silent.push(connect(&at[0]));
            settle(&mut event_loop, &mut outward, now);
        }
        let is_left = |mut stream: &TcpStream| match stream.read(&mut [0; 1]) {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => true,
            Err(error) if error.kind() == io::ErrorKind::ConnectionReset => false,
            other => panic!("{other:?}"),
        };
        assert!(is_left(&other));
        for (at, stream) in silent.iter().enumerate() {
            assert_eq!(is_left(stream), at >= 9, "{at}");
        }
        assert_eq!(outward.deadlines.len(), SAYING_MAX + 1);
        outward.pass_time(&mut event_loop, now + SAY_MAX);
        assert!(outward.is_idle() && outward.deadlines.is_empty());
    }

    #[test]
    fn one_node_cannot_have_very_many_made_at_a_time() {
        let mut event_loop = EventLoop::new(sluice_relay::Options::default()).unwrap();
        let mut outward = Outward::default();
        for exit in [1, 2] {
            open(&mut event_loop, &mut outward, exit);
        }
        let there = IpAddr::from([198, 51, 100, 7]);
        outward.exits.get_mut(&1).unwrap().connecting = CONNECTING_MAX;
        let error = outward.may(1, there).unwrap_err();
        assert_eq!(error.raw_os_error(), Some(libc::ENOBUFS));
        outward.may(2, there).unwrap();
        outward.shut(&mut event_loop, 2);
        let error = outward.may(2, there).unwrap_err();
        assert_eq!(error.raw_os_error(), Some(libc::EACCES));
    }
}
