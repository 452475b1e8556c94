//! Direct lanes (docs/decisions/0041): the two daemons agree on a piece of a window, and are out of
//! the way from then on.
//!
//! | who has the greater address | the other one |
//! |---|---|
//! | knows both ends, its own is there: *want* | |
//! | | its own end is there: lends a lane, *direct* |
//! | its own end is there still: gives its program the lane, *taken* | |
//! | | gives its program the lane |
//!
//! Between the first one's two looks at its socket is the other one's look: both were there at one
//! instant, and their addresses are each other's.

use super::{Action, Announced, End, Introducer, PeerName, Programs, Progress};
use crate::fabric::window::{DirectLane, Ended, Loan, Seat, SlotProof};
use crate::fabric::words::{Token, Word};
use crate::matching::ClientId;

/// How far a direct lane has come.
#[derive(Clone, Copy, Debug)]
pub(super) enum Stage {
    /// The peer was asked to lend one for its end.
    Asking { theirs: Token },
    /// It is lent, and the peer has not said yet that it takes it.
    Lent { lane: DirectLane },
    /// The program has it.
    Open(DirectLane),
}

/// A direct lane of which the program is to be told.
#[derive(Clone, Copy, Debug)]
pub struct GivenDirect {
    pub announced: Announced,
    pub lane: DirectLane,
}

/// Windows that this host shares with others; there may be none.
pub trait Windowed {
    /// This host's slots.
    fn seats(&self) -> Vec<Seat> {
        Vec::new()
    }
    /// A peer says that it has a slot.
    fn heard_seat(&mut self, _peer: &PeerName, _seat: Seat) {}
    /// A peer says what proves that.
    fn heard_proof(&mut self, _peer: &PeerName, _proof: SlotProof) {}
    /// Whether connections of this program with that peer can lie in a window.
    fn may_share(&self, _client: ClientId, _peer: &PeerName) -> bool {
        false
    }
    /// A lane for a program here and the peer's program of that number.
    fn lend(&mut self, _: ClientId, _: &PeerName, _theirs: u32) -> Option<(DirectLane, Loan)> {
        None
    }
    /// A lane that the peer lends; why it is none that it can loan, or `None` where there is no
    /// link with it now.
    fn borrow(
        &mut self,
        _: ClientId,
        _: &PeerName,
        _: &Loan,
    ) -> Result<DirectLane, Option<&'static str>> {
        Err(None)
    }
    /// What a peer says of lanes and pieces that are over.
    fn returned(&mut self, _: &PeerName, _piece: u32, _lane: u32) {}
    fn foreign_gone(&mut self, _: &PeerName, _theirs: u32) {}
    fn withdrawn(&mut self, _: &PeerName, _piece: u32) {}
    fn released(&mut self, _: &PeerName, _piece: u32) {}
    /// The peer's daemon is another one than before.
    fn peer_lost(&mut self, _: &PeerName) {}
}

impl End {
    /// The talk about a direct lane ends, as the peer is not to be heard any more.
    pub(super) fn give_up_direct(&mut self) -> Option<Action> {
        let Progress::Direct(stage) = self.progress else {
            return None;
        };
        let action = match stage {
            Stage::Asking { .. } => None,
            // The peer's program may have it: its end is never said to be over.
            Stage::Lent { lane } => Some(Action::EndDirect(lane, Ended::Ours)),
            Stage::Open(_) => return None,
        };
        self.progress = Progress::Waiting;
        action
    }
}

impl Introducer {
    /// Direct lanes of which programs are to be told.
    pub fn take_given_direct(&mut self) -> Vec<GivenDirect> {
        std::mem::take(&mut self.given_direct)
    }

    /// The direct lane of this end.
    pub fn direct_lane(&self, key: crate::matching::EndKey) -> Option<&DirectLane> {
        match &self.ends.get(self.by_key.get(&key)?)?.progress {
            Progress::Direct(Stage::Open(lane)) => Some(lane),
            _ => None,
        }
    }

    /// This host has another slot of a window than before: tells everybody.
    pub fn tell_seats(&mut self, seats: &[Seat]) {
        let names: Vec<PeerName> = self.peers.keys().cloned().collect();
        for name in names {
            for seat in seats {
                self.say(&name, Word::Seat(*seat));
            }
        }
    }

    /// Says a word of windows to a peer.
    pub fn tell(&mut self, name: &PeerName, word: Word) {
        self.say(name, word);
    }

    /// A lane for an end that is here, by a window if both hosts share one that the program may
    /// have, and otherwise by the fabric.
    pub(super) fn open_somehow(
        &mut self,
        token: Token,
        name: &PeerName,
        theirs: Token,
        programs: &mut dyn Programs,
    ) {
        let Some(end) = self.ends.get_mut(&token) else {
            return;
        };
        let client = end.announced.key.client;
        if !programs.may_share(client, name) {
            self.open(token, name, theirs, None, programs);
            return;
        }
        end.peer = Some(name.clone());
        end.progress = Progress::Direct(Stage::Asking { theirs });
        self.say(
            name,
            Word::Want {
                yours: theirs,
                mine: token,
                client,
            },
        );
    }

    pub(super) fn heard_direct(
        &mut self,
        name: &PeerName,
        word: Word,
        programs: &mut dyn Programs,
    ) {
        match word {
            Word::Seat(seat) => programs.heard_seat(name, seat),
            Word::Proof(proof) => programs.heard_proof(name, proof),
            Word::Want {
                yours,
                mine,
                client,
            } => self.heard_want(name, yours, mine, client, programs),
            Word::NoDirect { yours } => self.heard_no_direct(name, yours, programs),
            Word::Direct { yours, mine, loan } => {
                self.heard_loan(name, yours, mine, &loan, programs);
            }
            Word::Taken { yours } => self.heard_taken(name, yours),
            Word::Refused { yours } => self.heard_refused(name, yours),
            Word::Returned { piece, lane } => programs.returned(name, piece, lane),
            Word::ClientGone { client } => programs.foreign_gone(name, client),
            Word::Withdrawn { piece } => programs.withdrawn(name, piece),
            Word::Released { piece } => programs.released(name, piece),
            // Everything else was heard before.
            _ => {}
        }
    }

    fn heard_want(
        &mut self,
        name: &PeerName,
        yours: Token,
        mine: Token,
        theirs: u32,
        programs: &mut dyn Programs,
    ) {
        let end = self
            .ends
            .get(&yours)
            .filter(|end| self.is_end_of(end, name));
        let Some(end) = end.filter(|end| matches!(end.progress, Progress::Waiting)) else {
            self.say(name, Word::NoLane { yours: mine });
            return;
        };
        if !programs.is_here(&end.announced, end.numbers) {
            self.forget(yours);
            self.say(name, Word::NoLane { yours: mine });
            return;
        }
        let client = end.announced.key.client;
        let Some((lane, loan)) = programs.lend(client, name, theirs) else {
            self.say(name, Word::NoDirect { yours: mine });
            return;
        };
        if let Some(end) = self.ends.get_mut(&yours) {
            end.peer = Some(name.clone());
            end.progress = Progress::Direct(Stage::Lent { lane });
        }
        let (yours, mine) = (mine, yours);
        self.say(name, Word::Direct { yours, mine, loan });
    }

    fn heard_no_direct(&mut self, name: &PeerName, yours: Token, programs: &mut dyn Programs) {
        let Some(end) = self.ends.get_mut(&yours) else {
            return;
        };
        if end.peer.as_ref() != Some(name) {
            return;
        }
        if let Progress::Direct(Stage::Asking { theirs }) = end.progress {
            end.progress = Progress::Waiting;
            if programs.is_here(&end.announced, end.numbers) {
                self.open(yours, name, theirs, None, programs);
            } else {
                self.forget(yours);
            }
        }
    }

    fn heard_loan(
        &mut self,
        name: &PeerName,
        yours: Token,
        mine: Token,
        loan: &Loan,
        programs: &mut dyn Programs,
    ) {
        let (piece, lane) = (loan.piece, loan.lane);
        let end = self.ends.get(&yours).filter(|end| {
            let is_asked = match end.progress {
                Progress::Direct(Stage::Asking { theirs }) => theirs == mine,
                _ => false,
            };
            is_asked && end.peer.as_ref() == Some(name)
        });
        let Some((announced, numbers)) = end.map(|end| (end.announced, end.numbers)) else {
            // Closed meanwhile.
            self.refuse(name, mine, piece, lane);
            return;
        };
        if !programs.is_here(&announced, numbers) {
            self.forget(yours);
            self.refuse(name, mine, piece, lane);
            return;
        }
        let lane = match programs.borrow(announced.key.client, name, loan) {
            Ok(lane) => lane,
            Err(why) => {
                self.be_alone(yours);
                self.refuse(name, mine, piece, lane);
                if let Some(why) = why {
                    self.drop_peer(name, why);
                }
                return;
            }
        };
        if let Some(end) = self.ends.get_mut(&yours) {
            end.progress = Progress::Direct(Stage::Open(lane));
        }
        self.given_direct.push(GivenDirect { announced, lane });
        self.say(name, Word::Taken { yours: mine });
    }

    /// This end does not use the lane that was lent for it, by a peer whose own end may be over: then
    /// it knows the lane alone.
    fn refuse(&mut self, name: &PeerName, yours: Token, piece: u32, lane: u32) {
        self.say(name, Word::Returned { piece, lane });
        self.say(name, Word::Refused { yours });
    }

    fn be_alone(&mut self, token: Token) {
        if let Some(end) = self.ends.get_mut(&token) {
            end.progress = Progress::Waiting;
            end.is_alone = true;
        }
    }

    fn lent(&self, name: &PeerName, yours: Token) -> Option<(Announced, DirectLane)> {
        let end = self.ends.get(&yours)?;
        match end.progress {
            Progress::Direct(Stage::Lent { lane }) if end.peer.as_ref() == Some(name) => {
                Some((end.announced, lane))
            }
            _ => None,
        }
    }

    fn heard_taken(&mut self, name: &PeerName, yours: Token) {
        if let Some((announced, lane)) = self.lent(name, yours)
            && let Some(end) = self.ends.get_mut(&yours)
        {
            end.progress = Progress::Direct(Stage::Open(lane));
            self.given_direct.push(GivenDirect { announced, lane });
        }
    }

    fn heard_refused(&mut self, name: &PeerName, yours: Token) {
        if let Some((_, lane)) = self.lent(name, yours) {
            self.be_alone(yours);
            self.actions.push(Action::EndDirect(lane, Ended::Both));
        }
    }

    /// A program is done with an end.
    pub(super) fn end_direct(&mut self, peer: Option<&PeerName>, token: Token, stage: Stage) {
        match stage {
            Stage::Asking { .. } => {
                if let Some(peer) = peer {
                    self.say(peer, Word::Gone { token });
                }
            }
            Stage::Lent { lane } | Stage::Open(lane) => {
                self.actions.push(Action::EndDirect(lane, Ended::Ours));
            }
        }
    }
}
