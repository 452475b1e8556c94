//! What programs of this host publish at gateways.

use std::collections::HashSet;
use std::net::{IpAddr, SocketAddr};
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};
use sluice_control::message::gateway::{Ranges, Tell};
use sluice_control::preface::Key;

use super::words::{PublicationId, Word};
use super::{Action, Asker, PeerName};
use crate::matching::ClientId;
use crate::shares::Payer;

/// Publications at most.
const PUBLICATIONS_MAX: usize = 1_024;
/// Sockets that listen at the same address and port (`SO_REUSEPORT`), at most; more listen and
/// count no longer.
const SOCKETS_MAX: usize = 1_024;
/// A program that publishes waits so long for its gateway. Then it listens, and is published when
/// the gateway answers.
const ANSWER_MAX: Duration = Duration::from_secs(2);
/// How often it is looked whether somebody still listens.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// Time between two looks in any case: each is a list of all that listens here.
const LOOK_PAUSE: Duration = Duration::from_millis(100);
/// The file is written once in this time at most.
const WRITE_EVERY: Duration = Duration::from_millis(100);
/// When a gateway that has refused a running server is asked again.
const ASK_AGAIN: Duration = Duration::from_secs(5);

/// A listening socket that came to be published.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Listening {
    pub address: SocketAddr,
    pub only_v6: bool,
    pub cookie: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// The gateway's daemon is not there.
    Unsaid,
    Asked,
    Open,
    Refused {
        again_at: Instant,
    },
}

#[derive(Debug)]
pub(super) struct Publication {
    pub(super) id: PublicationId,
    pub(super) gateway: PeerName,
    pub(super) address: SocketAddr,
    pub(super) only_v6: bool,
    pub(super) key: Key,
    pub(super) cookies: Vec<u64>,
    /// Who had it published first, where that counts.
    pub(super) payer: Payer,
    /// Whose programs have the key; None where that is not known, and then no others get it.
    pub(super) user: Option<u32>,
    state: State,
    /// Programs that wait for the gateway's answer, and how long.
    waiting: Vec<(ClientId, Instant)>,
    /// The gateway has said yes, or nothing in time: the program serves.
    is_accepted: bool,
}

impl Publication {
    /// One that an earlier life of this daemon has made.
    pub(super) fn earlier(
        id: PublicationId,
        gateway: PeerName,
        listening: Listening,
        cookies: Vec<u64>,
        key: Key,
    ) -> Publication {
        Publication {
            id,
            gateway,
            address: listening.address,
            only_v6: listening.only_v6,
            key,
            cookies,
            payer: None,
            user: None,
            state: State::Unsaid,
            waiting: Vec::new(),
            is_accepted: true,
        }
    }

    /// Nobody listens there any more.
    fn end(&self, actions: &mut Vec<Action>) {
        tracing::info!("nobody listens at {} any more", self.address);
        if self.state != State::Unsaid {
            let word = Word::Withdraw { id: self.id };
            actions.push(Action::Say(self.gateway.clone(), word));
        }
        for (client, _) in &self.waiting {
            let nothing = (Key([0; 32]), Ranges::new([]));
            actions.push(answer(*client, libc::EINVAL, nothing.0, nothing.1));
        }
    }

    fn word(&self) -> Word {
        Word::Publish {
            id: self.id,
            listener: self.address,
            only_v6: self.only_v6,
            key: self.key,
        }
    }
}

/// All of them.
#[derive(Debug)]
pub struct Publications {
    pub(super) all: Vec<Publication>,
    /// How many one user may have, other than root and the daemon's own.
    share: usize,
    look_at: Option<Instant>,
    /// When that was done last.
    looked_at: Option<Instant>,
    /// They are not what the file has.
    pub(super) is_changed: bool,
    /// It is not written again before.
    write_at: Option<Instant>,
}

impl Publications {
    /// None. One user may have `share_percent` of what there may be.
    pub fn new(share_percent: u32) -> Publications {
        let share = PUBLICATIONS_MAX * share_percent.min(100) as usize / 100;
        Publications {
            all: Vec::new(),
            share: share.max(1),
            look_at: None,
            looked_at: None,
            is_changed: false,
            write_at: None,
        }
    }

    /// Whether the file is to be written now: what changes all the time is written now and then.
    pub(super) fn must_write(&mut self, now: Instant) -> bool {
        if !self.is_changed || self.write_at.is_some_and(|at| at > now) {
            return false;
        }
        self.is_changed = false;
        self.write_at = Some(now + WRITE_EVERY);
        true
    }

    /// When [`Publications::pass_time`] has something to do.
    pub fn next_deadline(&self) -> Option<Instant> {
        let waiting = self.all.iter().flat_map(|it| it.waiting.iter());
        let write = self.write_at.filter(|_| self.is_changed);
        let waiting = waiting.map(|(_, until)| *until);
        waiting.chain(self.look_at).chain(write).min()
    }

    /// A program publishes. `sources` is where the gateway connects from; `is_up`: its
    /// daemon is there.
    #[expect(clippy::too_many_arguments, reason = "what is known of one request")]
    pub fn publish(
        &mut self,
        asker: Asker,
        gateway: &PeerName,
        listening: Listening,
        sources: Ranges,
        is_up: bool,
        fresh: (PublicationId, Key),
        now: Instant,
        actions: &mut Vec<Action>,
    ) {
        let Asker {
            client,
            payer,
            user,
            ..
        } = asker;
        let is_it = |it: &Publication| {
            it.gateway == *gateway
                && it.address == listening.address
                && it.only_v6 == listening.only_v6
        };
        // Who knows the key can say who a client is. Only another socket of the same user can listen there too, so that
        // those of another one are gone.
        let is_others = |it: &Publication| {
            let is_users = it.user.is_some() && it.user == user;
            is_it(it) && !is_users && !it.cookies.contains(&listening.cookie)
        };
        if let Some(at) = self.all.iter().position(is_others) {
            let others = self.all.swap_remove(at);
            others.end(actions);
            self.is_changed = true;
        }
        let theirs = self.all.iter().filter(|it| it.payer == payer).count();
        let is_full =
            self.all.len() >= PUBLICATIONS_MAX || (payer.is_some() && theirs >= self.share);
        let publication = match self.all.iter_mut().find(|it| is_it(it)) {
            Some(found) => found,
            None if is_full => {
                actions.push(answer(client, libc::ENOBUFS, Key([0; 32]), Ranges::new([])));
                return;
            }
            None => {
                self.all.push(Publication {
                    is_accepted: false,
                    payer,
                    user,
                    ..Publication::earlier(fresh.0, gateway.clone(), listening, Vec::new(), fresh.1)
                });
                self.look_at.get_or_insert(now + LOOK_EVERY);
                let Some(last) = self.all.last_mut() else {
                    return;
                };
                last
            }
        };
        if !publication.cookies.contains(&listening.cookie)
            && publication.cookies.len() < SOCKETS_MAX
        {
            publication.cookies.push(listening.cookie);
            self.is_changed = true;
        }
        match publication.state {
            State::Open => {
                actions.push(answer(client, 0, publication.key, sources));
                return;
            }
            State::Asked => {}
            State::Unsaid if !is_up => {
                let name = &publication.gateway;
                tracing::warn!(
                    "{} is published when the gateway {name} is there",
                    publication.address
                );
                publication.is_accepted = true;
                actions.push(answer(client, 0, publication.key, sources));
                return;
            }
            State::Unsaid | State::Refused { .. } => {
                publication.state = State::Asked;
                actions.push(Action::Say(gateway.clone(), publication.word()));
            }
        }
        publication.waiting.push((client, now + ANSWER_MAX));
    }

    /// The gateway has answered. `errno`: None if it would connect from an address that is not one of
    /// its own.
    pub fn heard_published(
        &mut self,
        gateway: &PeerName,
        id: PublicationId,
        errno: Option<u16>,
        sources: Ranges,
        now: Instant,
        actions: &mut Vec<Action>,
    ) {
        let Some(at) = self.position(gateway, id) else {
            return;
        };
        let errno = if let Some(errno) = errno {
            i32::from(errno)
        } else {
            // A preface would come where nobody expects one.
            actions.push(Action::Say(gateway.clone(), Word::Withdraw { id }));
            tracing::error!(
                peer = %gateway,
                "{gateway} connects from an address that its [[peer]] does not have: write it in \
                 addresses"
            );
            libc::EADDRNOTAVAIL
        };
        let publication = &mut self.all[at];
        let address = publication.address;
        for (client, _) in publication.waiting.drain(..) {
            actions.push(answer(client, errno, publication.key, sources));
        }
        if errno == 0 {
            tracing::info!(peer = %gateway, "{address} is published at {gateway}");
            publication.state = State::Open;
            publication.is_accepted = true;
        } else if publication.is_accepted {
            let why = std::io::Error::from_raw_os_error(errno);
            tracing::warn!(peer = %gateway, "{address} is not published at {gateway}: {why}; asked again");
            publication.state = State::Refused {
                again_at: now + ASK_AGAIN,
            };
        } else {
            self.all.remove(at);
            self.is_changed = true;
        }
    }

    /// The gateway's daemon is there.
    pub fn gateway_up(&mut self, gateway: &PeerName, actions: &mut Vec<Action>) {
        for publication in self.all.iter_mut().filter(|it| it.gateway == *gateway) {
            publication.state = State::Asked;
            actions.push(Action::Say(gateway.clone(), publication.word()));
        }
    }

    /// It is gone.
    pub fn gateway_down(&mut self, gateway: &PeerName) {
        for publication in self.all.iter_mut().filter(|it| it.gateway == *gateway) {
            publication.state = State::Unsaid;
        }
    }

    /// A program that waited is gone.
    pub fn forget(&mut self, client: ClientId) {
        for publication in &mut self.all {
            publication
                .waiting
                .retain(|(waiting, _)| *waiting != client);
        }
    }

    /// Look at once whether everybody still listens, unless that was just done: programs come and go
    /// as they like.
    pub fn look_soon(&mut self, now: Instant) {
        if !self.all.is_empty() {
            let soonest = self.looked_at.map_or(now, |at| now.max(at + LOOK_PAUSE));
            let look_at = self.look_at.get_or_insert(soonest);
            *look_at = soonest.min(*look_at);
        }
    }

    /// Does what is due. `listening` says who listens now, if that can be found out; `sources` is
    /// asked where a gateway connects from.
    pub fn pass_time(
        &mut self,
        now: Instant,
        listening: impl FnOnce() -> Option<HashSet<u64>>,
        sources: impl Fn(&PeerName) -> Ranges,
        actions: &mut Vec<Action>,
    ) {
        for publication in &mut self.all {
            let key = publication.key;
            let late = publication
                .waiting
                .extract_if(.., |(_, until)| *until <= now);
            for (client, _) in late {
                publication.is_accepted = true;
                let sources = sources(&publication.gateway);
                actions.push(answer(client, 0, key, sources));
            }
            if let State::Refused { again_at } = publication.state
                && again_at <= now
            {
                publication.state = State::Asked;
                let word = publication.word();
                actions.push(Action::Say(publication.gateway.clone(), word));
            }
        }
        if self.look_at.is_some_and(|at| at <= now) {
            self.looked_at = Some(now);
            if let Some(listening) = listening() {
                self.keep(&listening, actions);
            }
            self.look_at = (!self.all.is_empty()).then(|| now + LOOK_EVERY);
        }
    }

    fn keep(&mut self, listening: &HashSet<u64>, actions: &mut Vec<Action>) {
        let is_changed = &mut self.is_changed;
        self.all.retain_mut(|it| {
            let before = it.cookies.len();
            it.cookies.retain(|cookie| listening.contains(cookie));
            *is_changed |= it.cookies.len() != before;
            if it.cookies.is_empty() {
                it.end(actions);
            }
            !it.cookies.is_empty()
        });
    }

    /// Whether the number is that of a publication at this gateway.
    pub fn has(&self, gateway: &PeerName, id: PublicationId) -> bool {
        self.position(gateway, id).is_some()
    }

    fn position(&self, gateway: &PeerName, id: PublicationId) -> Option<usize> {
        let is_it = |it: &Publication| it.id == id && it.gateway == *gateway;
        self.all.iter().position(is_it)
    }

    /// Begins with what an earlier life has left.
    pub(super) fn resume(&mut self, all: Vec<Publication>, now: Instant) {
        self.all = all;
        self.look_at = (!self.all.is_empty()).then_some(now);
    }
}

fn answer(client: ClientId, errno: i32, key: Key, sources: Ranges) -> Action {
    let tell = Tell::Published {
        errno: errno as u16,
        key,
        sources,
    };
    Action::Tell(client, tell)
}

/// Whether programs behind other hosts can reach the address at all.
pub fn is_reachable(address: IpAddr) -> bool {
    !address.to_canonical().is_loopback()
}
