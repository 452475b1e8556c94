//! Brings the ends of connections between hosts together: which peers there are, which ends wait for
//! which of them, and how far each lane has come. It has no I/O: what is to be done comes back as
//! [`Action`]s.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use sluice_fabric::halves::Far;
use sluice_fabric::message::LaneNumber;
use sluice_fabric::wire::LinkId;
use sluice_sys::errno::Errno;

use super::carrier::{Command, Report};
use super::memory::{ForeignParkingTable, Memory, Taken};
use super::window::{DirectLane, Ended};
use super::words::{Life, Token, Word};
use crate::lanes::NoLane;
use crate::matching::{Announced, ClientId, EndKey, Tuple};
use crate::memory_limits::MemoryLimits;
use crate::namespace::Numbers;
use crate::peer::PeerName;

mod comparing;
mod direct;
mod foreign;
mod links;
mod peers;
mod questions;

pub use direct::{GivenDirect, Windowed};
use foreign::ForeignEnds;
use links::LinkNumbers;
use peers::Peer;
pub use peers::{Known, KnownPair, LinkState};
use questions::Question;

/// How long lanes wait for a peer's daemon that is gone before they are given up.
const ABSENCE_MAX: Duration = Duration::from_secs(60);

/// Something to do.
#[derive(Debug)]
pub enum Action {
    /// Say something on the control connection of a peer.
    Say(PeerName, Word),
    /// Find out whether there is a sluiced at this address, of the other end of the socket with
    /// this cookie.
    Seek { address: IpAddr, cookie: u64 },
    /// Tell this carrier.
    Carry(usize, Command),
    /// This end of a direct lane is over.
    EndDirect(DirectLane, Ended),
    /// The peer breaks the rules: end its control connection.
    Drop(PeerName, &'static str),
    /// The peer has been gone for long, and nothing is known of it any more.
    Forget(PeerName),
}

/// A lane of which the program is to be told.
#[derive(Clone, Debug)]
pub struct GivenLane {
    pub announced: Announced,
    pub taken: Taken,
}

#[derive(Debug)]
enum Progress {
    /// Waits for the other end.
    Waiting,
    /// This host's half is being opened. Where the other half is, if that is known.
    Opening {
        taken: Taken,
        theirs: Token,
        far: Option<Far>,
    },
    /// It is open, and the peer was told; the other half is not known yet.
    HalfOpen { taken: Taken, half: Far },
    /// The program has its lane, of which the peer may have said that it has none.
    Open {
        taken: Taken,
        half: Far,
        is_declined: bool,
    },
    /// A direct lane, or the talk about one.
    Direct(direct::Stage),
}

#[derive(Debug)]
struct End {
    announced: Announced,
    /// Where its streams begin; `None` if this daemon cannot tell, and believes its programs.
    numbers: Option<Numbers>,
    peer: Option<PeerName>,
    /// The peer has said that nobody there has the other end, or there is to be no lane.
    is_alone: bool,
    /// The peer was asked for its other end, and has not answered.
    is_asked_for: bool,
    progress: Progress,
}

/// A lane with which its program is done.
#[derive(Debug)]
struct Ending {
    client: ClientId,
    taken: Taken,
    /// Where the other half is, or was to be, if the program had the lane; and its number here.
    open: Option<(PeerName, LaneNumber)>,
}

/// The programs' memory, how to see them sleep, and their sockets; asked when a lane is made.
pub trait Programs: Windowed {
    /// The program's parking table.
    fn parking(&mut self, client: ClientId) -> Result<Arc<ForeignParkingTable>, Errno>;
    /// Whether the socket of this announcement is the established one with its addresses now, and these
    /// are its numbers if there are some, as the kernel says. A program may have closed it without a
    /// word, and its port may be somebody else's.
    fn is_here(&self, announced: &Announced, numbers: Option<Numbers>) -> bool;
}

/// All peers and all ends that could have a peer on another host.
#[derive(Debug)]
pub struct Introducer {
    life: Life,
    /// How many carriers there are, and queue pairs with each peer at most.
    carriers: usize,
    peers: HashMap<PeerName, Peer>,
    links: LinkNumbers,
    ends: HashMap<Token, End>,
    by_key: HashMap<EndKey, Token>,
    by_tuple: HashMap<Tuple, Token>,
    next_token: u64,
    /// Ends of peers.
    foreign: ForeignEnds,
    /// Lanes whose programs are done with them, until the carrier is, too.
    ending: HashMap<Token, Ending>,
    memory: Memory,
    questions: Vec<Question>,
    /// Ends of which is known now that they are alone.
    alone: Vec<Announced>,
    actions: Vec<Action>,
    given: Vec<GivenLane>,
    given_direct: Vec<GivenDirect>,
}

impl Introducer {
    /// Knows nobody yet. `life` is a random number.
    pub fn new(life: Life, memory: Memory, carriers: usize) -> Self {
        Self {
            life,
            carriers,
            peers: HashMap::new(),
            links: LinkNumbers::new(carriers),
            ends: HashMap::new(),
            by_key: HashMap::new(),
            by_tuple: HashMap::new(),
            next_token: 1,
            foreign: ForeignEnds::default(),
            ending: HashMap::new(),
            memory,
            questions: Vec::new(),
            alone: Vec::new(),
            actions: Vec::new(),
            given: Vec::new(),
            given_direct: Vec::new(),
        }
    }

    /// Heeds the limits of the groups that programs are in.
    pub fn heed(&mut self, limits: MemoryLimits) {
        self.memory.heed(limits);
    }

    /// What is to be done, in this order.
    pub fn take_actions(&mut self) -> Vec<Action> {
        std::mem::take(&mut self.actions)
    }

    /// Lanes of which programs are to be told, when the actions are done. Only what a peer or the
    /// carrier says makes any.
    pub fn take_given(&mut self) -> Vec<GivenLane> {
        std::mem::take(&mut self.given)
    }

    /// Whether the program has the descriptor of the lane's chunk.
    pub fn is_given(&mut self, lane: &GivenLane) -> bool {
        self.memory.is_given(lane.announced.key.client, &lane.taken)
    }

    /// It has it now.
    pub fn set_given(&mut self, lane: &GivenLane) {
        self.memory
            .set_given(lane.announced.key.client, &lane.taken);
    }

    /// Lanes in use, and how many there may be.
    pub fn lanes(&self) -> (u32, u32) {
        (self.memory.in_use(), self.memory.lanes_max())
    }

    /// The host where the other end of this one's lane is.
    pub fn peer_of_end(&self, key: EndKey) -> Option<&str> {
        let end = self.ends.get(self.by_key.get(&key)?)?;
        let is_open = matches!(
            end.progress,
            Progress::Open { .. } | Progress::Direct(direct::Stage::Open(_))
        );
        end.peer.as_deref().filter(|_| is_open)
    }

    /// When [`Introducer::pass_time`] has something to do.
    pub fn next_deadline(&self) -> Option<Instant> {
        let retries = self.peers.values().filter_map(Peer::next_retry);
        let absences = self.peers.values().filter_map(|peer| {
            peer.absent_since
                .filter(|_| peer.has_tried())
                .map(|since| since + ABSENCE_MAX)
        });
        retries.chain(absences).min()
    }

    /// Does what is due.
    pub fn pass_time(&mut self, now: Instant) {
        for peer in self.peers.values_mut() {
            self.actions.extend(peer.retry(now));
            if peer.has_tried()
                && peer
                    .absent_since
                    .is_some_and(|since| since + ABSENCE_MAX <= now)
            {
                self.actions.extend(peer.forget_life(&mut self.links));
            }
        }
    }

    // Programs.

    /// A program has announced an end for which there is none on this host. Its numbers, unless this
    /// daemon cannot tell and believes its programs.
    pub fn announced(
        &mut self,
        announced: Announced,
        numbers: Option<Numbers>,
        programs: &mut dyn Programs,
    ) {
        self.released(announced.key);
        let token = Token(self.next_token);
        self.next_token += 1;
        let address = announced.tuple.peer.ip();
        let peer = self.peer_at(address);
        self.by_key.insert(announced.key, token);
        self.by_tuple.insert(announced.tuple, token);
        self.ends.insert(
            token,
            End {
                announced,
                numbers,
                peer: peer.clone(),
                is_alone: false,
                is_asked_for: false,
                progress: Progress::Waiting,
            },
        );
        match peer {
            Some(name) => {
                self.say_end(&name, token);
                self.look_for_match(token, programs);
            }
            None => {
                let cookie = announced.cookie;
                self.actions.push(Action::Seek { address, cookie });
            }
        }
    }

    /// A program has closed a connection.
    pub fn released(&mut self, key: EndKey) {
        let Some(token) = self.by_key.remove(&key) else {
            return;
        };
        let Some(end) = self.ends.remove(&token) else {
            return;
        };
        if self.by_tuple.get(&end.announced.tuple) == Some(&token) {
            self.by_tuple.remove(&end.announced.tuple);
        }
        match end.progress {
            Progress::Waiting => {
                if let Some(peer) = &end.peer {
                    self.say(peer, Word::Gone { token });
                }
            }
            Progress::Opening { taken, theirs, .. } => {
                // The carrier is about to say its number.
                self.end_lane(token, key.client, taken, None);
                if let Some(peer) = &end.peer {
                    self.say(peer, Word::NoLane { yours: theirs });
                }
            }
            Progress::HalfOpen { taken, half } => {
                self.end_unused(taken.carrier, half);
                self.end_lane(token, key.client, taken, None);
            }
            Progress::Direct(stage) => self.end_direct(end.peer.as_ref(), token, stage),
            Progress::Open { taken, half, .. } => {
                let number = half.number;
                let open = end.peer.map(|peer| (peer, number));
                let gone = Action::Carry(taken.carrier, Command::ProgramGone { number });
                self.end_lane(token, key.client, taken, open);
                self.actions.push(gone);
            }
        }
    }

    fn end_lane(
        &mut self,
        token: Token,
        client: ClientId,
        taken: Taken,
        open: Option<(PeerName, LaneNumber)>,
    ) {
        let ending = Ending {
            client,
            taken,
            open,
        };
        self.ending.insert(token, ending);
    }

    /// A program is gone, with all its ends.
    pub fn program_gone(&mut self, client: ClientId) {
        let keys: Vec<EndKey> = self
            .by_key
            .keys()
            .filter(|key| key.client == client)
            .copied()
            .collect();
        for key in keys {
            self.released(key);
        }
        self.memory.program_gone(client);
    }

    /// Whether the other end of this one may still be announced, by a peer. If so, the peer is asked,
    /// and [`Introducer::take_alone`] has its answer if it is no.
    pub fn may_come(&mut self, key: EndKey) -> bool {
        let Some(token) = self.by_key.get(&key).copied() else {
            return false;
        };
        let Some(end) = self.ends.get(&token) else {
            return false;
        };
        let Progress::Waiting = end.progress else {
            return true;
        };
        if end.is_alone {
            return false;
        }
        let Some(name) = end.peer.clone() else {
            // A peer that has just come up is told of it soon.
            return self.peer_at(end.announced.tuple.peer.ip()).is_some();
        };
        let (tuple, numbers) = (end.announced.tuple, end.numbers);
        if !self.compares(&name, numbers) {
            return false;
        }
        let ask = Word::Ask {
            token,
            tuple,
            numbers,
        };
        if let Some(end) = self.ends.get_mut(&token) {
            end.is_asked_for = true;
        }
        self.say(&name, ask);
        true
    }

    /// Where the other end of this one is, if nobody is known there.
    pub fn unknown_host(&self, key: EndKey) -> Option<IpAddr> {
        let end = self.ends.get(self.by_key.get(&key)?)?;
        let address = end.announced.tuple.peer.ip();
        end.peer.is_none().then_some(address)
    }

    // Peers.

    /// A peer says something.
    pub fn heard(
        &mut self,
        name: &PeerName,
        message: &[u8],
        programs: &mut dyn Programs,
        now: Instant,
    ) {
        let Some(word) = Word::decode(message) else {
            self.drop_peer(name, "says something that makes no sense");
            return;
        };
        match word {
            Word::Hello { life } => self.hello(name, life, programs, now),
            Word::QueuePairs { count } => self.heard_queue_pairs(name, count),
            Word::Link {
                at,
                attempt,
                endpoint,
            } => self.heard_link(name, at, attempt, endpoint, now),
            Word::Broken { at, attempt } => self.heard_broken(name, at, attempt, now),
            Word::End {
                token,
                tuple,
                numbers,
            } => self.heard_end(name, token, (tuple, numbers), programs),
            Word::Gone { token } => self.foreign.gone(name, token),
            Word::Ask {
                token,
                tuple,
                numbers,
            } => self.heard_question(name, token, (tuple, numbers)),
            Word::Nobody { yours } => self.heard_nobody(name, yours),
            Word::Lane {
                yours,
                mine,
                at,
                far,
            } => self.heard_lane(name, (yours, mine), (at.into(), far), programs),
            Word::NoLane { yours } => self.heard_no_lane(name, yours),
            word => self.heard_direct(name, word, programs),
        }
    }

    /// This carrier says something.
    pub fn carried(&mut self, carrier: usize, report: Report, now: Instant) {
        match report {
            Report::LinkMade {
                link,
                attempt,
                endpoint,
            } => self.link_made((link, carrier), attempt, endpoint),
            Report::LinkProven { link } => self.link_proven((link, carrier)),
            Report::LinkForgotten { link } => self.links.forgotten(link),
            Report::LinkFailed { link, why } => self.link_failed((link, carrier), &why, now),
            Report::Violation { link, what } => {
                if let Some(name) = self.peer_of(link) {
                    if let Some(peer) = self.peers.get_mut(&name) {
                        // The other carriers trust it no more than this one.
                        self.actions.extend(peer.forget_life(&mut self.links));
                        // So that the peer gives up its half as well.
                        peer.own = Life(peer.own.0.wrapping_add(1));
                    }
                    self.drop_peer(&name, what);
                }
            }
            Report::LaneOpened { token, half } => self.lane_opened(carrier, token, half),
            Report::LaneRefused { token, why } => self.lane_refused(token, &why),
            Report::LaneOver { token } => {
                if let Some(Ending { client, taken, .. }) = self.ending.remove(&token) {
                    self.memory.give_back(client, &taken);
                    if !self.by_key.keys().any(|key| key.client == client) {
                        self.memory.program_gone(client);
                    }
                }
            }
            Report::DeviceGone { why } => {
                tracing::error!(reason = %why, "no lanes to other hosts any more: {why}");
            }
        }
    }

    fn say(&mut self, name: &PeerName, word: Word) {
        if self.peers.get(name).is_some_and(|peer| peer.is_up) {
            self.actions.push(Action::Say(name.clone(), word));
        }
    }

    fn drop_peer(&mut self, name: &PeerName, why: &'static str) {
        self.actions.push(Action::Drop(name.clone(), why));
    }

    fn peer_at(&self, address: IpAddr) -> Option<PeerName> {
        let mut up = self.peers.iter().filter(|(_, peer)| peer.is_up);
        up.find(|(_, peer)| peer.is_at(address))
            .map(|(name, _)| name.clone())
    }

    fn peer_of(&self, link: LinkId) -> Option<PeerName> {
        let mut all = self.peers.iter();
        all.find(|(_, peer)| peer.link == link)
            .map(|(name, _)| name.clone())
    }

    /// Opens this host's half of a lane. `far`: where the other one is, and by which queue pair it goes, if
    /// the peer has said so.
    fn open(
        &mut self,
        token: Token,
        name: &PeerName,
        theirs: Token,
        far: Option<(usize, Far)>,
        programs: &mut dyn Programs,
    ) {
        let (Some(end), Some(peer)) = (self.ends.get_mut(&token), self.peers.get(name)) else {
            return;
        };
        let client = end.announced.key.client;
        let carrier = match far {
            Some((at, _)) => at,
            None => peer.choose(|at| self.memory.in_use_by(at)),
        };
        let taken = self.memory.take(client, carrier).and_then(|taken| {
            let parking = programs.parking(client).map_err(NoLane::Memory)?;
            Ok((taken, parking))
        });
        let (taken, parking) = match taken {
            Ok(both) => both,
            Err(error) => {
                tracing::warn!(peer = %name, reason = %error, "no lane to {name}: {error}");
                end.is_alone = true;
                self.say(name, Word::NoLane { yours: theirs });
                return;
            }
        };
        end.peer = Some(name.clone());
        end.progress = Progress::Opening {
            taken: taken.clone(),
            theirs,
            far: far.map(|(_, far)| far),
        };
        let command = Command::OpenLane {
            link: peer.link,
            token,
            taken,
            parking,
        };
        self.actions.push(Action::Carry(carrier, command));
    }

    fn lane_opened(&mut self, carrier: usize, token: Token, half: Far) {
        let Some(end) = self.ends.get_mut(&token) else {
            // Closed meanwhile.
            self.end_unused(carrier, half);
            return;
        };
        let Progress::Opening { taken, theirs, far } = &end.progress else {
            return;
        };
        let (taken, theirs, far) = (taken.clone(), *theirs, *far);
        let Some(name) = end.peer.clone() else {
            return;
        };
        match far {
            Some(far) => self.join_halves(token, taken, half, far),
            None => end.progress = Progress::HalfOpen { taken, half },
        }
        self.say(
            &name,
            Word::Lane {
                yours: theirs,
                mine: token,
                at: carrier as u8,
                far: half,
            },
        );
    }

    /// Both halves of a lane are known: the program gets it.
    fn join_halves(&mut self, token: Token, taken: Taken, half: Far, far: Far) {
        let Some(end) = self.ends.get_mut(&token) else {
            return;
        };
        end.progress = Progress::Open {
            taken: taken.clone(),
            half,
            is_declined: false,
        };
        let announced = end.announced;
        let number = half.number;
        let connect = Command::ConnectLane { number, far };
        self.actions.push(Action::Carry(taken.carrier, connect));
        self.given.push(GivenLane { announced, taken });
    }

    fn lane_refused(&mut self, token: Token, why: &str) {
        let end = self.ends.get(&token);
        let name = end.and_then(|end| end.peer.as_deref()).unwrap_or_default();
        tracing::warn!(peer = name, reason = %why, "no lane to another host: {why}");
        if let Some(Ending { client, taken, .. }) = self.ending.remove(&token) {
            self.memory.give_back(client, &taken);
            return;
        }
        let Some(end) = self.ends.get_mut(&token) else {
            return;
        };
        let client = end.announced.key.client;
        let former = std::mem::replace(&mut end.progress, Progress::Waiting);
        end.is_alone = true;
        let name = end.peer.clone();
        if let Progress::Opening { taken, theirs, .. } = former {
            self.memory.give_back(client, &taken);
            if let Some(name) = name {
                self.say(&name, Word::NoLane { yours: theirs });
            }
        }
    }

    fn heard_lane(
        &mut self,
        name: &PeerName,
        (yours, mine): (Token, Token),
        (at, far): (usize, Far),
        programs: &mut dyn Programs,
    ) {
        if self.peers.get(name).is_some_and(|peer| at >= peer.agreed) {
            self.drop_peer(name, "gives a lane on a queue pair that there is not");
            return;
        }
        let end = self
            .ends
            .get(&yours)
            .filter(|end| self.is_end_of(end, name));
        let Some(end) = end else {
            self.say(name, Word::NoLane { yours: mine });
            return;
        };
        // The peer has looked at its end before it said this, and looks again when it hears the
        // answer. Between its two looks there is ours: both sockets were there at one instant.
        let is_asked = matches!(end.progress, Progress::Waiting | Progress::HalfOpen { .. });
        if is_asked && !programs.is_here(&end.announced, end.numbers) {
            self.forget(yours);
            self.say(name, Word::NoLane { yours: mine });
            return;
        }
        match &end.progress {
            Progress::Waiting => self.open(yours, name, mine, Some((at, far)), programs),
            Progress::HalfOpen { taken, half } if taken.carrier == at => {
                let (taken, half) = (taken.clone(), *half);
                self.join_halves(yours, taken, half, far);
            }
            Progress::HalfOpen { .. } => {
                self.drop_peer(name, "gives half a lane on another queue pair");
            }
            Progress::Opening { .. } | Progress::Open { .. } | Progress::Direct(_) => {
                self.drop_peer(name, "gives a second lane to one connection");
            }
        }
    }

    /// The socket of this end is gone.
    fn forget(&mut self, token: Token) {
        if let Some(key) = self.ends.get(&token).map(|end| end.announced.key) {
            self.released(key);
        }
    }

    /// The peer could not, or its program is gone. Ours stays on TCP.
    fn heard_no_lane(&mut self, name: &PeerName, yours: Token) {
        let Some(end) = self.ends.get_mut(&yours) else {
            // Nobody there will ever say that it is over.
            if let Some(ending) = self.ending.get_mut(&yours)
                && let Some((_, number)) = ending.open.take_if(|(peer, _)| peer == name)
            {
                let decline = Command::DeclineLane { number };
                self.actions
                    .push(Action::Carry(ending.taken.carrier, decline));
            }
            return;
        };
        if end.peer.as_ref() != Some(name) {
            return;
        }
        match &mut end.progress {
            Progress::HalfOpen { taken, half } => {
                let (taken, half) = (taken.clone(), *half);
                let (announced, numbers) = (end.announced, end.numbers);
                self.ends.remove(&yours);
                self.end_unused(taken.carrier, half);
                self.end_lane(yours, announced.key.client, taken, None);
                self.wait_again(yours, (announced, numbers), name);
            }
            Progress::Open {
                taken,
                half,
                is_declined,
            } => {
                if !std::mem::replace(is_declined, true) {
                    let number = half.number;
                    let decline = Command::DeclineLane { number };
                    self.actions.push(Action::Carry(taken.carrier, decline));
                }
            }
            Progress::Waiting => end.is_alone = true,
            Progress::Direct(direct::Stage::Asking { .. }) => {
                end.progress = Progress::Waiting;
                end.is_alone = true;
            }
            Progress::Opening { .. } | Progress::Direct(_) => {}
        }
    }

    /// What the peer announced was not the other end, or not any more. That one may come yet.
    fn wait_again(
        &mut self,
        former: Token,
        (announced, numbers): (Announced, Option<Numbers>),
        name: &PeerName,
    ) {
        let token = Token(self.next_token);
        self.next_token += 1;
        self.by_key.insert(announced.key, token);
        if self.by_tuple.get(&announced.tuple) == Some(&former) {
            self.by_tuple.insert(announced.tuple, token);
        }
        let end = End {
            announced,
            numbers,
            peer: Some(name.clone()),
            is_alone: true,
            is_asked_for: false,
            progress: Progress::Waiting,
        };
        self.ends.insert(token, end);
        self.say_end(name, token);
    }

    /// A lane of which neither program was told.
    fn end_unused(&mut self, carrier: usize, half: Far) {
        let number = half.number;
        for command in [
            Command::ProgramGone { number },
            Command::DeclineLane { number },
        ] {
            self.actions.push(Action::Carry(carrier, command));
        }
    }
}

#[cfg(test)]
mod tests;
