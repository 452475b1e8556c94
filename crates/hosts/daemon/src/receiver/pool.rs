//! sluiced's side of the processes that receive for it: which of them reads which client.

use std::collections::{HashMap, HashSet, VecDeque};
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use rustix::event::epoll;
use rustix::net::{Shutdown, shutdown};
use sluice_sys::errno::Errno;
use sluice_sys::unix::{self, Fd, Received};

use super::{Brought, Order, Report, WORD_BYTES_MAX};
use crate::matching::ClientId;

/// The option of sluiced that makes it a receiving process.
pub const OPTION: &str = "--receive-for-sluiced";

/// Processes for one user at most: a user has one for each of the user's ids and each network namespace that the
/// programs connect from, so that root in one container does not stop root in another.
const RECEIVERS_PER_OWNER_MAX: usize = 32;
/// Processes in all, but for those of root and of sluiced's own user. Further users share.
const RECEIVERS_MAX: usize = 512;
/// Processes started before others get their turn: each start waits for the next process to run.
const STARTS_PER_TURN_MAX: u32 = 2;
/// One that has no clients for so long ends.
const IDLE: Duration = Duration::from_secs(30);
/// Processes without clients. If there are more, the user who has most of them loses the one that has been so for
/// longest.
const IDLE_MAX: usize = 32;
/// From the end of one that had clients to the start of the next for the same.
const RESTART_AFTER: Duration = Duration::from_secs(1);
/// How long sluiced waits to hear that everybody was heard; who stands still is not waited for the
/// next time.
const HEAR_PATIENCE: Duration = Duration::from_secs(1);
/// From the moment that a program has gone to the end of its connection here, where nobody reads what
/// it said before.
const GONE_PATIENCE: Duration = Duration::from_secs(5);
/// Sockets to be closed that wait as descriptors of sluiced, for each process.
const CLOSES_WAITING_MAX: usize = 64;
/// Processes that are about to end, at a time. One that stands still at a descriptor does not end, and no signal ends
/// it. With so many of them no other is told to end, and none is started to close something.
const ENDING_MAX: usize = 64;
/// The same for one user, whose further programs then go to processes that are there.
const ENDING_PER_OWNER_MAX: usize = 8;

/// Whose clients a process reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Origin {
    pub uid: u32,
    /// The user whose id that is ([`crate::owners`]).
    pub owner: u32,
    /// `SO_NETNS_COOKIE` of the client's socket.
    pub netns: u64,
}

/// What a client said, or did.
#[derive(Debug)]
pub enum Heard {
    Said {
        client: ClientId,
        message: Vec<u8>,
        brought: Brought,
        /// The user who has sent it, at that time.
        sender: Option<u32>,
        /// The connection of a client that it introduces; not to be closed here.
        newcomer: Option<Fd>,
        received: Received,
    },
    /// Its connection has ended.
    Ended(ClientId),
    /// It cannot be served any more.
    Failed(ClientId),
}

#[derive(Debug)]
struct Running {
    channel: Fd,
    process: Child,
}

/// A process that ends, or stands still.
#[derive(Debug)]
struct Ending {
    /// The user for whom it received; None: it closes something.
    owner: Option<u32>,
    running: Running,
}

/// An order that is to be sent, and what goes with it.
#[derive(Debug)]
enum Waiting {
    Read(ClientId),
    Close(Option<ClientId>, Fd),
    Hear(u64),
}

/// A process for some clients; it may have to be started.
#[derive(Debug)]
struct Receiver {
    origin: Origin,
    running: Option<Running>,
    start_at: Instant,
    clients: HashSet<ClientId>,
    waiting: VecDeque<Waiting>,
    /// Where sockets go for which there is no room in `waiting`; its other end is there.
    bundle: Option<Fd>,
    /// It has no room, until the kernel says so.
    is_full: bool,
    /// The last [`Order::Hear`] that it has answered.
    heard: u64,
    idle_since: Option<Instant>,
}

/// A client's socket, for what sluiced sends.
#[derive(Debug)]
struct Line {
    socket: Fd,
    receiver: u32,
}

/// All of them.
#[derive(Debug)]
pub struct Pool {
    /// What stands before the number of a receiver in the events of `poll`.
    token: u64,
    /// sluiced's user.
    own: u32,
    receivers: HashMap<u32, Receiver>,
    next: u32,
    lines: HashMap<ClientId, Line>,
    /// Programs that have gone, and until when what they said before may be read.
    gone: VecDeque<(Instant, ClientId)>,
    /// Clients that no process can be given.
    failed: Vec<ClientId>,
    /// Clients whose messages nobody reads, because no process could be started.
    unread: Vec<ClientId>,
    /// How many may still be started in this turn.
    starts_left: u32,
    /// Processes that end.
    ending: Vec<Ending>,
    /// Sockets that are too much for them, see [`Pool::close_by_another`].
    kept: Vec<Fd>,
    /// The number of the last question whether everybody was heard, until when it waits for an
    /// answer, and the last one that is answered.
    asked: u64,
    ask_until: Instant,
    answered: u64,
    ask_again: bool,
}

impl Pool {
    /// Its processes are watched with `token`, and a number of 32 bits in it, as data. `own` is sluiced's user.
    pub fn new(token: u64, own: u32, now: Instant) -> Pool {
        Pool {
            token,
            own,
            receivers: HashMap::new(),
            next: 0,
            lines: HashMap::new(),
            gone: VecDeque::new(),
            failed: Vec::new(),
            unread: Vec::new(),
            starts_left: STARTS_PER_TURN_MAX,
            ending: Vec::new(),
            kept: Vec::new(),
            asked: 0,
            ask_until: now,
            answered: 0,
            ask_again: false,
        }
    }

    /// Has a client read from now on.
    pub fn read(&mut self, poll: &OwnedFd, client: ClientId, origin: Origin, socket: Fd) {
        let receiver = self.receiver_for(origin);
        self.lines.insert(client, Line { socket, receiver });
        if let Some(it) = self.receivers.get_mut(&receiver) {
            it.clients.insert(client);
            it.idle_since = None;
            it.waiting.push_back(Waiting::Read(client));
        }
        self.send(poll, receiver);
    }

    /// The socket of a client.
    pub fn socket(&self, client: ClientId) -> Option<&Fd> {
        self.lines.get(&client).map(|line| &line.socket)
    }

    /// The origin whose process reads this client.
    pub fn origin(&self, client: ClientId) -> Option<Origin> {
        let line = self.lines.get(&client)?;
        self.receivers.get(&line.receiver).map(|it| it.origin)
    }

    /// Ends the connection of a client.
    pub fn end(&mut self, poll: &OwnedFd, client: ClientId) {
        let Some(line) = self.lines.remove(&client) else {
            return;
        };
        let _ = epoll::delete(poll, &line.socket);
        let _ = shutdown(&line.socket, Shutdown::Both);
        if let Some(it) = self.receivers.get_mut(&line.receiver) {
            it.clients.remove(&client);
            it.waiting
                .push_back(Waiting::Close(Some(client), line.socket));
        }
        self.send(poll, line.receiver);
    }

    /// Closes the socket of somebody who is not to be a client.
    pub fn close(&mut self, poll: &OwnedFd, origin: Origin, socket: Fd) {
        let _ = shutdown(&socket, Shutdown::Both);
        let receiver = self.receiver_for(origin);
        if let Some(it) = self.receivers.get_mut(&receiver) {
            it.close(socket);
        }
        self.send(poll, receiver);
    }

    /// A program has closed its end; what it said before may not be read yet.
    pub fn has_gone(&mut self, client: ClientId, now: Instant) {
        self.gone.push_back((now + GONE_PATIENCE, client));
    }

    /// Asks whether everybody was heard who has said something until now. It is so when
    /// [`Pool::heard_until`] has reached this number.
    pub fn hear_all(&mut self, poll: &OwnedFd, now: Instant) -> u64 {
        if self.asked > self.answered {
            self.ask_again = true;
            return self.asked + 1;
        }
        self.ask(poll, now);
        self.asked
    }

    /// See [`Pool::hear_all`].
    pub fn heard_until(&self) -> u64 {
        self.answered
    }

    /// The next thing that a process reports; `None` when there is no more for now.
    pub fn next(&mut self, receiver: u32) -> Option<Heard> {
        let mut buffer = [0; WORD_BYTES_MAX];
        loop {
            let it = self.receivers.get_mut(&receiver)?;
            let running = it.running.as_ref()?;
            let mut received = match unix::receive_with_fds(running.channel.raw(), &mut buffer) {
                Ok(received) if received.len > 0 => received,
                Err(Errno::AGAIN) => return None,
                _ => {
                    self.lose(receiver, Instant::now());
                    return None;
                }
            };
            match serde_json::from_slice(&buffer[..received.len]) {
                Ok(Report::Said {
                    client,
                    message,
                    brought,
                    sender,
                }) => {
                    let is_newcomer = brought == Brought::Client;
                    return Some(Heard::Said {
                        client,
                        message,
                        sender,
                        newcomer: is_newcomer.then(|| received.take_fd(0)).flatten(),
                        brought,
                        received,
                    });
                }
                Ok(Report::Ended { client }) => {
                    it.clients.remove(&client);
                    // Nothing is unread, and nothing can come, so that this close is short.
                    self.lines.remove(&client);
                    return Some(Heard::Ended(client));
                }
                Ok(Report::Failed { client }) => return Some(Heard::Failed(client)),
                Ok(Report::Heard { number }) => it.heard = number,
                Err(error) => tracing::error!("a receiving process says nonsense: {error}"),
            }
        }
    }

    /// A process has room again for what waits.
    pub fn has_room(&mut self, poll: &OwnedFd, receiver: u32) {
        if let Some(it) = self.receivers.get_mut(&receiver) {
            it.set_full(poll, self.token | u64::from(receiver), false);
        }
        self.send(poll, receiver);
    }

    /// When there is something to do for [`Pool::turn`].
    pub fn next_deadline(&self, now: Instant) -> Option<Instant> {
        let asking = (self.asked > self.answered).then_some(self.ask_until);
        let gone = self.gone.front().map(|(due, _)| *due);
        let starts = self.receivers.values().filter_map(|it| {
            let waits = it.running.is_none() && it.is_wanted();
            let idle = it.idle_since.map(|since| since + IDLE);
            let idle = idle.filter(|_| self.may_end(it.origin.owner));
            waits.then_some(it.start_at).or(idle)
        });
        let ending = (!self.ending.is_empty()).then_some(now + RESTART_AFTER);
        let failed = !(self.failed.is_empty() && self.unread.is_empty());
        let failed = failed.then_some(now);
        let all = [asking, gone, ending, failed].into_iter().flatten();
        all.chain(starts).min()
    }

    /// Does what is due. Returns the clients that cannot be served any more.
    pub fn turn(&mut self, poll: &OwnedFd, now: Instant) -> Vec<ClientId> {
        while let Some((_, client)) = self.gone.front().filter(|(due, _)| *due <= now) {
            self.failed.push(*client);
            self.gone.pop_front();
        }
        let numbers: Vec<u32> = self.receivers.keys().copied().collect();
        for number in numbers {
            self.send(poll, number);
            self.end_if_idle(poll, number, now);
        }
        while let Some(number) = self.surplus() {
            self.end_receiver(poll, number);
        }
        let waits_for = |it: &Receiver| {
            let can_answer = it.running.is_some() && it.heard + 1 >= self.asked;
            can_answer && it.heard < self.asked && !it.clients.is_empty()
        };
        if self.asked > self.answered
            && (now >= self.ask_until || !self.receivers.values().any(waits_for))
        {
            self.answered = self.asked;
            if std::mem::take(&mut self.ask_again) {
                self.ask(poll, now);
            }
        }
        self.ending
            .retain_mut(|it| !matches!(it.running.process.try_wait(), Ok(Some(_))));
        for socket in std::mem::take(&mut self.kept) {
            self.close_by_another(socket);
        }
        self.starts_left = STARTS_PER_TURN_MAX;
        std::mem::take(&mut self.failed)
    }

    /// The clients whose messages nobody reads, because no process could be started just now.
    pub fn take_unread(&mut self) -> Vec<ClientId> {
        std::mem::take(&mut self.unread)
    }

    /// Ends all connections. The processes that have copies of their sockets end with sluiced; for
    /// what none of them has there are others.
    pub fn end_all(&mut self) {
        let mut orphans = std::mem::take(&mut self.kept);
        for it in self.receivers.values_mut() {
            for waiting in it.waiting.drain(..) {
                match waiting {
                    Waiting::Close(_, socket) => orphans.push(socket),
                    Waiting::Read(client) => {
                        orphans.extend(self.lines.remove(&client).map(|line| line.socket));
                    }
                    Waiting::Hear(_) => {}
                }
            }
            if it.running.is_none() {
                let sockets = it.clients.iter().filter_map(|it| self.lines.remove(it));
                orphans.extend(sockets.map(|line| line.socket));
            }
        }
        for socket in &orphans {
            let _ = shutdown(socket, Shutdown::Both);
        }
        for line in std::mem::take(&mut self.lines).into_values() {
            let _ = shutdown(&line.socket, Shutdown::Both);
        }
        let order = serde_json::to_vec(&Order::Close { client: None }).unwrap_or_default();
        let mut orphans = orphans.into_iter().peekable();
        while orphans.peek().is_some() {
            let Ok(heir) = start(Stdio::null()) else {
                break;
            };
            let mut has_taken_one = false;
            while let Some(socket) = orphans.peek() {
                let sent = unix::send_with_fds(heir.channel.raw(), &order, &[socket.raw()]);
                has_taken_one |= sent.is_ok();
                if sent.is_err() && has_taken_one {
                    break;
                }
                let socket = orphans.next();
                if let (Some(socket), Err(_)) = (socket, sent) {
                    let _ = start(Stdio::from(OwnedFd::from(socket)));
                }
            }
        }
    }

    fn ask(&mut self, poll: &OwnedFd, now: Instant) {
        self.asked += 1;
        self.ask_until = now + HEAR_PATIENCE;
        let with_clients = self.receivers.iter_mut();
        let with_clients = with_clients.filter(|(_, it)| !it.clients.is_empty());
        let asked: Vec<u32> = with_clients
            .map(|(number, it)| {
                // One that has not got the last question does not need it any more.
                it.waiting.retain(|it| !matches!(it, Waiting::Hear(_)));
                it.waiting.push_back(Waiting::Hear(self.asked));
                *number
            })
            .collect();
        for number in asked {
            self.send(poll, number);
        }
    }

    fn receiver_for(&mut self, origin: Origin) -> u32 {
        let all = || self.receivers.iter();
        if let Some((number, _)) = all().find(|(_, it)| it.origin == origin) {
            return *number;
        }
        let of_owner = || all().filter(|(_, it)| it.origin.owner == origin.owner);
        let idlest = if of_owner().count() >= RECEIVERS_PER_OWNER_MAX {
            of_owner().min_by_key(|(_, it)| it.clients.len())
        } else if !is_exempt(self.own, origin.owner) {
            let strangers = || all().filter(|(_, it)| !is_exempt(self.own, it.origin.owner));
            let is_full = strangers().count() >= RECEIVERS_MAX;
            let idlest = strangers().min_by_key(|(_, it)| it.clients.len());
            idlest.filter(|_| is_full)
        } else {
            None
        };
        if let Some((number, _)) = idlest {
            return *number;
        }
        while self.receivers.contains_key(&self.next) {
            self.next = self.next.wrapping_add(1);
        }
        let number = self.next;
        self.next = self.next.wrapping_add(1);
        let now = Instant::now();
        let receiver = Receiver {
            origin,
            running: None,
            start_at: now,
            clients: HashSet::new(),
            waiting: VecDeque::new(),
            bundle: None,
            is_full: false,
            heard: self.asked,
            idle_since: Some(now),
        };
        self.receivers.insert(number, receiver);
        number
    }

    /// Whether one more process of this user may be told to end. Where those before it stand still, it would be one more
    /// that nothing ends.
    fn may_end(&self, owner: u32) -> bool {
        let of_owner = self.ending.iter().filter(|it| it.owner == Some(owner));
        self.ending.len() < ENDING_MAX && of_owner.count() < ENDING_PER_OWNER_MAX
    }

    /// A process to end because too many have no clients.
    fn surplus(&self) -> Option<u32> {
        let idle = || {
            let all = self.receivers.iter().filter(|(_, it)| !it.is_wanted());
            all.filter_map(|(number, it)| Some((it.idle_since?, *number, it.origin.owner)))
        };
        if idle().count() <= IDLE_MAX {
            return None;
        }
        let mut counts: HashMap<u32, usize> = HashMap::new();
        for (_, _, owner) in idle() {
            *counts.entry(owner).or_default() += 1;
        }
        let may_end = counts.into_iter().filter(|(owner, _)| self.may_end(*owner));
        let (_, most) = may_end.map(|(owner, count)| (count, owner)).max()?;
        let of_most = idle().filter(|(_, _, owner)| *owner == most);
        of_most.min().map(|(_, number, _)| number)
    }

    /// Sends what waits for a process, as far as it has room, and starts it if need be.
    fn send(&mut self, poll: &OwnedFd, number: u32) {
        let now = Instant::now();
        let own = self.own;
        let Some(it) = self.receivers.get_mut(&number) else {
            return;
        };
        let is_due = it.running.is_none() && it.is_wanted() && it.start_at <= now;
        let is_exempt = is_exempt(own, it.origin.owner);
        if is_due && (is_exempt || self.starts_left > 0) {
            self.starts_left = self.starts_left.saturating_sub(1);
            match start_watched(poll, self.token | u64::from(number)) {
                Ok(running) => {
                    it.running = Some(running);
                    it.is_full = false;
                    it.heard = self.asked;
                    // Those that a former one had.
                    it.waiting.retain(|it| !matches!(it, Waiting::Read(_)));
                    it.waiting
                        .extend(it.clients.iter().map(|it| Waiting::Read(*it)));
                }
                Err(error) => {
                    tracing::warn!(reason = %error, "no process to receive what programs send: {error}");
                    it.start_at = now + RESTART_AFTER;
                    self.unread.extend(&it.clients);
                }
            }
        }
        while !it.is_full && !it.waiting.is_empty() {
            match it.send_first(&self.lines) {
                Ok(()) => {}
                Err(Errno::AGAIN) => it.set_full(poll, self.token | u64::from(number), true),
                // Nested deeper than the kernel passes on, by somebody who wants that.
                Err(Errno(libc::ETOOMANYREFS)) => match it.waiting.pop_front() {
                    Some(Waiting::Read(client)) => self.failed.push(client),
                    Some(Waiting::Close(_, socket)) => self.kept.push(socket),
                    Some(Waiting::Hear(_)) | None => {}
                },
                // It has ended, which is seen at the channel, or there is none.
                Err(_) => break,
            }
        }
        if !it.is_wanted() {
            it.idle_since.get_or_insert(now);
        }
        for socket in std::mem::take(&mut self.kept) {
            self.close_by_another(socket);
        }
    }

    /// Has a process close a socket that it is given as it starts, as the kernel passes it on to none
    /// that runs.
    fn close_by_another(&mut self, socket: Fd) {
        if self.ending.len() >= ENDING_MAX {
            self.kept.push(socket);
            return;
        }
        let copy = unix::duplicate(socket.raw()).map_err(io::Error::from);
        match copy.and_then(|copy| start(Stdio::from(OwnedFd::from(copy)))) {
            Ok(running) => {
                let _ = shutdown(&running.channel, Shutdown::Write);
                let owner = None;
                self.ending.push(Ending { owner, running });
            }
            Err(_) => self.kept.push(socket),
        }
    }

    fn end_if_idle(&mut self, poll: &OwnedFd, number: u32, now: Instant) {
        let Some(it) = self.receivers.get_mut(&number) else {
            return;
        };
        let is_idle = !it.is_wanted() && it.idle_since.is_some_and(|since| since + IDLE <= now);
        let owner = it.origin.owner;
        if is_idle && self.may_end(owner) {
            self.end_receiver(poll, number);
        }
    }

    fn end_receiver(&mut self, poll: &OwnedFd, number: u32) {
        let Some(it) = self.receivers.remove(&number) else {
            return;
        };
        if let Some(running) = it.running {
            let _ = epoll::delete(poll, &running.channel);
            let _ = shutdown(&running.channel, Shutdown::Write);
            let owner = Some(it.origin.owner);
            self.ending.push(Ending { owner, running });
        }
    }

    /// A process has ended, which none does while sluiced wants it.
    fn lose(&mut self, number: u32, now: Instant) {
        let Some(it) = self.receivers.get_mut(&number) else {
            return;
        };
        it.start_at = now + RESTART_AFTER;
        it.bundle = None;
        if let Some(running) = it.running.take() {
            tracing::warn!(
                "the process that receives for user {} has ended",
                it.origin.uid
            );
            let owner = Some(it.origin.owner);
            self.ending.push(Ending { owner, running });
        }
    }
}

/// Root, and sluiced's own user, share with nobody and wait for nobody.
fn is_exempt(own: u32, owner: u32) -> bool {
    owner == 0 || owner == own
}

impl Receiver {
    fn is_wanted(&self) -> bool {
        !self.clients.is_empty() || !self.waiting.is_empty()
    }

    /// Sends the first order that waits, and gives away what goes with it. `EAGAIN` without room.
    fn send_first(&mut self, lines: &HashMap<ClientId, Line>) -> Result<(), Errno> {
        let (Some(first), Some(running)) = (self.waiting.front(), &self.running) else {
            return Err(Errno::NOTCONN);
        };
        let (order, fd) = match first {
            Waiting::Read(client) => match lines.get(client) {
                Some(line) => (Order::Read { client: *client }, Some(&line.socket)),
                None => {
                    self.waiting.pop_front();
                    return Ok(());
                }
            },
            Waiting::Close(client, socket) => (Order::Close { client: *client }, Some(socket)),
            Waiting::Hear(number) => (Order::Hear { number: *number }, None),
        };
        let bytes = serde_json::to_vec(&order).map_err(|_| Errno::PROTO)?;
        let fds: Vec<i32> = fd.into_iter().map(Fd::raw).collect();
        unix::send_with_fds(running.channel.raw(), &bytes, &fds)?;
        self.waiting.pop_front();
        Ok(())
    }

    fn set_full(&mut self, poll: &OwnedFd, token: u64, is_full: bool) {
        self.is_full = is_full;
        if let Some(running) = &self.running {
            let mut events = epoll::EventFlags::IN;
            events.set(epoll::EventFlags::OUT, is_full);
            let data = epoll::EventData::new_u64(token);
            let _ = epoll::modify(poll, &running.channel, data, events);
        }
    }

    /// Has a socket closed; of many that wait, most are in flight, which takes no descriptors: the
    /// kernel counts for the user who sent them what lies in their queues.
    fn close(&mut self, socket: Fd) {
        if self.waiting.len() < CLOSES_WAITING_MAX {
            self.waiting.push_back(Waiting::Close(None, socket));
            return;
        }
        let put = |into: &Fd| unix::send_with_fds(into.raw(), &[0], &[socket.raw()]).is_ok();
        if self.bundle.as_ref().is_some_and(put) {
            return;
        }
        match unix::seqpacket_pair() {
            Ok((ours, theirs)) if put(&ours) => {
                self.waiting.push_back(Waiting::Close(None, theirs));
                self.bundle = Some(ours);
            }
            _ => self.waiting.push_back(Waiting::Close(None, socket)),
        }
    }
}

fn start_watched(poll: &OwnedFd, token: u64) -> io::Result<Running> {
    let running = start(Stdio::null())?;
    let data = epoll::EventData::new_u64(token);
    epoll::add(poll, &running.channel, data, epoll::EventFlags::IN)?;
    Ok(running)
}

/// Starts a process, which holds `kept` until it ends.
fn start(kept: Stdio) -> io::Result<Running> {
    let (channel, theirs) = unix::seqpacket_pair()?;
    // The program that runs, even if another one has its name by now.
    let process = Command::new("/proc/self/exe")
        .arg0("sluiced")
        .arg(OPTION)
        .env_remove("LD_PRELOAD")
        .stdin(Stdio::from(OwnedFd::from(theirs)))
        .stdout(kept)
        .current_dir("/")
        .process_group(0)
        .spawn()?;
    Ok(Running { channel, process })
}

#[cfg(test)]
mod tests;
