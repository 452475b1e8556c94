//! Ends that peers have announced and that wait for an end of ours. Each peer has its own, by token and by
//! addresses, and an order of its own: no peer pushes the ends of another one out with fewer than it has itself.

use std::collections::{BTreeMap, HashMap};

use super::{Introducer, PeerName, Programs, Progress};
use crate::fabric::words::Token;
use crate::matching::Tuple;
use crate::namespace::Numbers;

/// Ends of one peer; its oldest goes.
pub(super) const ENDS_OF_PEER_MAX: usize = 65_536;
/// Ends of all peers; the oldest of the peer that has most goes.
pub(super) const ENDS_MAX: usize = 4 * ENDS_OF_PEER_MAX;

/// An end of a peer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct ForeignEnd {
    pub peer: PeerName,
    pub token: Token,
    pub numbers: Option<Numbers>,
}

/// All of them.
#[derive(Debug)]
pub(super) struct ForeignEnds {
    peers: HashMap<PeerName, Ends>,
    count: usize,
    of_peer_max: usize,
    max: usize,
}

/// Those of one peer.
#[derive(Debug, Default)]
struct Ends {
    /// In the order in which they were announced.
    all: BTreeMap<u64, End>,
    next: u64,
    by_token: HashMap<Token, u64>,
    /// As our end has the addresses.
    by_tuple: HashMap<Tuple, u64>,
}

#[derive(Debug)]
struct End {
    token: Token,
    tuple: Tuple,
    numbers: Option<Numbers>,
}

impl Default for ForeignEnds {
    fn default() -> Self {
        Self::with_limits(ENDS_OF_PEER_MAX, ENDS_MAX)
    }
}

impl ForeignEnds {
    fn with_limits(of_peer_max: usize, max: usize) -> Self {
        Self {
            peers: HashMap::new(),
            count: 0,
            of_peer_max,
            max,
        }
    }

    /// A peer announces an end. It takes the place of the peer's end with this token, and of the one with
    /// these addresses.
    pub fn insert(&mut self, end: ForeignEnd, tuple: Tuple) {
        let ForeignEnd {
            peer,
            token,
            numbers,
        } = end;
        let ends = self.peers.entry(peer).or_default();
        let before = ends.all.len();
        ends.remove(ends.by_token.get(&token).copied());
        ends.remove(ends.by_tuple.get(&tuple).copied());
        if ends.all.len() >= self.of_peer_max {
            ends.remove_oldest();
        }
        ends.push(End {
            token,
            tuple,
            numbers,
        });
        self.count = self.count + ends.all.len() - before;
        while self.count > self.max {
            let most = self.peers.values_mut().max_by_key(|it| it.all.len());
            if !most.is_some_and(Ends::remove_oldest) {
                return;
            }
            self.count -= 1;
        }
    }

    /// The peer says that its end is not to be matched any more.
    pub fn gone(&mut self, peer: &PeerName, token: Token) {
        if let Some(ends) = self.peers.get_mut(peer) {
            let place = ends.by_token.get(&token).copied();
            self.count -= usize::from(ends.remove(place));
        }
    }

    /// The end with these addresses that is taken for a lane.
    pub fn remove(&mut self, peer: &PeerName, tuple: &Tuple) {
        if let Some(ends) = self.peers.get_mut(peer) {
            let place = ends.by_tuple.get(tuple).copied();
            self.count -= usize::from(ends.remove(place));
        }
    }

    /// The session with the peer has ended.
    pub fn peer_down(&mut self, peer: &PeerName) {
        if let Some(ends) = self.peers.remove(peer) {
            self.count -= ends.all.len();
        }
    }

    /// Ends with these addresses, one of a peer at most.
    pub fn with_addresses(&self, tuple: &Tuple) -> impl Iterator<Item = ForeignEnd> {
        self.peers.iter().filter_map(move |(peer, ends)| {
            let end = ends.all.get(ends.by_tuple.get(tuple)?)?;
            Some(ForeignEnd {
                peer: peer.clone(),
                token: end.token,
                numbers: end.numbers,
            })
        })
    }
}

impl Ends {
    fn push(&mut self, end: End) {
        let place = self.next;
        self.next += 1;
        self.by_token.insert(end.token, place);
        self.by_tuple.insert(end.tuple, place);
        self.all.insert(place, end);
    }

    /// Whether there was one in this place.
    fn remove(&mut self, place: Option<u64>) -> bool {
        let Some(end) = place.and_then(|place| self.all.remove(&place)) else {
            return false;
        };
        self.by_token.remove(&end.token);
        self.by_tuple.remove(&end.tuple);
        true
    }

    fn remove_oldest(&mut self) -> bool {
        let oldest = self.all.keys().next().copied();
        self.remove(oldest)
    }
}

impl Introducer {
    pub(super) fn heard_end(
        &mut self,
        name: &PeerName,
        theirs: Token,
        (tuple, numbers): (Tuple, Option<Numbers>),
        programs: &mut dyn Programs,
    ) {
        let speaks_for = self
            .peers
            .get(name)
            .is_some_and(|peer| peer.is_at(tuple.local.ip()));
        if !speaks_for {
            tracing::warn!(peer = %name, "{name} announces {}, which is not its own", tuple.local);
            return;
        }
        let ours = tuple.mirrored();
        let end = ForeignEnd {
            peer: name.clone(),
            token: theirs,
            numbers,
        };
        self.foreign.insert(end, ours);
        if let Some(token) = self.by_tuple.get(&ours).copied() {
            if let Some(end) = self.ends.get_mut(&token) {
                end.is_alone = false;
            }
            self.look_for_match(token, programs);
        }
    }

    /// Begins a lane if both ends are known. Whose own address is the greater one begins; the other
    /// waits to hear of it.
    pub(super) fn look_for_match(&mut self, token: Token, programs: &mut dyn Programs) {
        let Some(end) = self.ends.get(&token) else {
            return;
        };
        let (announced, ours) = (end.announced, end.numbers);
        let tuple = announced.tuple;
        if !matches!(end.progress, Progress::Waiting) {
            return;
        }
        // Of several peers that are at this address one can say what is another one's.
        let all: Vec<ForeignEnd> = self.foreign.with_addresses(&tuple).collect();
        let mut all = all.into_iter();
        let is_its = |it: &ForeignEnd| self.finds_agreement(&it.peer, tuple, (ours, it.numbers));
        let Some(foreign) = all.find(is_its) else {
            return;
        };
        let begins = (tuple.local.ip(), tuple.local.port()) > (tuple.peer.ip(), tuple.peer.port());
        if !begins {
            return;
        }
        if programs.is_here(&announced, ours) {
            self.foreign.remove(&foreign.peer, &tuple);
            self.open_somehow(token, &foreign.peer, foreign.token, programs);
        } else {
            self.forget(token);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tuple(number: u16) -> Tuple {
        Tuple {
            local: ([10, 0, 0, 1], number).into(),
            peer: ([10, 0, 0, 2], 80).into(),
        }
    }

    fn end(peer: &str, token: u64) -> ForeignEnd {
        ForeignEnd {
            peer: peer.into(),
            token: Token(token),
            numbers: None,
        }
    }

    fn found(ends: &ForeignEnds, number: u16) -> Vec<(String, u64)> {
        let tuple = tuple(number);
        let found = ends.with_addresses(&tuple);
        let mut found: Vec<_> = found.map(|it| (it.peer.to_string(), it.token.0)).collect();
        found.sort();
        found
    }

    /// What the indexes say is what there is.
    fn check(ends: &ForeignEnds) {
        let count: usize = ends.peers.values().map(|it| it.all.len()).sum();
        assert_eq!(count, ends.count);
        for ends in ends.peers.values() {
            assert_eq!(ends.by_token.len(), ends.all.len());
            assert_eq!(ends.by_tuple.len(), ends.all.len());
        }
    }

    #[test]
    fn one_peer_pushes_out_its_own_oldest_end_and_no_other_ones() {
        let mut ends = ForeignEnds::with_limits(4, 10);
        ends.insert(end("b", 1), tuple(1));
        for number in 2..100 {
            ends.insert(end("m", number.into()), tuple(number));
            check(&ends);
        }
        assert_eq!(ends.count, 5);
        assert_eq!(found(&ends, 1), [("b".to_owned(), 1)]);
        assert!(found(&ends, 95).is_empty());
        assert_eq!(found(&ends, 96), [("m".to_owned(), 96)]);
    }

    #[test]
    fn where_there_are_too_many_in_all_the_peer_that_has_most_gives_way() {
        let mut ends = ForeignEnds::with_limits(8, 10);
        for number in 0..3 {
            ends.insert(end("b", number.into()), tuple(number));
        }
        for number in 10..100 {
            ends.insert(end("m", number.into()), tuple(number));
            check(&ends);
        }
        for number in 0..3 {
            assert_eq!(found(&ends, number).len(), 1, "{number}");
        }
        // A third peer has room, at the cost of the one that has most.
        for number in 200..203 {
            ends.insert(end("c", number.into()), tuple(number));
        }
        check(&ends);
        let counts = ["b", "m", "c"].map(|name| ends.peers[&PeerName::from(name)].all.len());
        assert_eq!(counts, [3, 4, 3]);
    }

    #[test]
    fn a_token_and_addresses_name_one_end_of_a_peer() {
        let mut ends = ForeignEnds::with_limits(4, 10);
        ends.insert(end("b", 1), tuple(1));
        ends.insert(end("b", 1), tuple(2));
        assert!(found(&ends, 1).is_empty());
        ends.insert(end("b", 2), tuple(2));
        check(&ends);
        ends.gone(&"b".into(), Token(1));
        assert_eq!(found(&ends, 2), [("b".to_owned(), 2)]);
        // Another peer's word, and a token that nobody has.
        ends.gone(&"m".into(), Token(2));
        ends.gone(&"b".into(), Token(u64::MAX));
        assert_eq!(found(&ends, 2).len(), 1);
        // Two peers may say that they have one end.
        ends.insert(end("m", 2), tuple(2));
        assert_eq!(found(&ends, 2).len(), 2);
        ends.remove(&"m".into(), &tuple(2));
        ends.peer_down(&"b".into());
        check(&ends);
        assert_eq!(ends.count, 0);
    }

    /// What comes and goes leaves nothing behind.
    #[test]
    fn ends_that_go_at_once_take_no_memory() {
        let mut ends = ForeignEnds::with_limits(4, 10);
        for token in 0..1000 {
            ends.insert(end("m", token), tuple(7));
            ends.gone(&"m".into(), Token(token));
            check(&ends);
        }
        assert_eq!(ends.count, 0);
    }
}
