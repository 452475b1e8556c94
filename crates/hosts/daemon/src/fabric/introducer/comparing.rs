//! Whether two ends at two hosts are one connection's, by their initial sequence numbers. The daemon that
//! begins a lane has compared what the other one said of its end with its own end's numbers; the
//! other one gives lanes to no daemon that does not compare (decision 0093).

use super::{End, Introducer, PeerName, Tuple};
use crate::fabric::words::{NUMBERS_VERSION, Token, Word};
use crate::namespace::Numbers;

/// Whether two ends with mirrored addresses are one connection's. Without the numbers of either the
/// addresses count, where both daemons believe their own programs; of a daemon that knows numbers
/// no other end will do.
pub(super) fn agree(ours: Option<Numbers>, theirs: Option<Numbers>) -> bool {
    match (ours, theirs) {
        (Some(ours), Some(theirs)) => ours.agree(theirs),
        (None, None) => true,
        _ => false,
    }
}

impl Introducer {
    /// Says that this end is here to a peer that can tell whether it has the other one.
    pub(super) fn say_end(&mut self, name: &PeerName, token: Token) {
        let Some(end) = self.ends.get(&token) else {
            return;
        };
        let (tuple, numbers) = (end.announced.tuple, end.numbers);
        // Who does not compare would take any end with these addresses for the other one.
        if !self.compares(name, numbers) {
            self.warn_of_age(name);
        } else {
            let word = Word::End {
                token,
                tuple,
                numbers,
            };
            self.say(name, word);
        }
    }

    /// Whether an end of ours and one of this peer's are one connection's; logs why they are not.
    pub(super) fn finds_agreement(
        &mut self,
        name: &PeerName,
        tuple: Tuple,
        (ours, theirs): (Option<Numbers>, Option<Numbers>),
    ) -> bool {
        if agree(ours, theirs) {
            return true;
        }
        if ours.is_some() && theirs.is_some() {
            let Tuple { local, peer } = tuple;
            tracing::debug!(
                peer = %name,
                "the ends of {local} and {peer} belong to two connections: their initial sequence numbers differ"
            );
        } else if let Some(peer) = self.peers.get_mut(name)
            && !std::mem::replace(&mut peer.is_known_as_unlike, true)
        {
            let blind = if ours.is_some() { &**name } else { "this host" };
            tracing::warn!(
                peer = %name,
                "connections with {name} stay on TCP: the sluiced of {blind} cannot read TCP sequence numbers, \
                 the other one can; give it CAP_BPF and CAP_NET_ADMIN"
            );
        }
        false
    }

    fn warn_of_age(&mut self, name: &PeerName) {
        let Some(peer) = self.peers.get_mut(name) else {
            return;
        };
        if !std::mem::replace(&mut peer.is_known_as_old, true) {
            tracing::warn!(
                peer = %name,
                "connections with {name} stay on TCP: its sluiced does not compare initial sequence numbers \
                 (version {NUMBERS_VERSION} of control connections); update it"
            );
        }
    }

    /// Whether this peer compares the numbers of such an end of ours with its end's, if it has some.
    pub(super) fn compares(&self, name: &PeerName, numbers: Option<Numbers>) -> bool {
        let peer = self.peers.get(name);
        numbers.is_none() || peer.is_some_and(|peer| peer.compares_numbers)
    }

    /// Whether the other end of this one can be that peer's, and the peer has found out that it is: it
    /// has compared what this daemon has said of the end.
    pub(super) fn is_end_of(&self, end: &End, name: &PeerName) -> bool {
        let peer = self.peers.get(name);
        let is_there = peer.is_some_and(|peer| peer.is_at(end.announced.tuple.peer.ip()));
        is_there && self.compares(name, end.numbers)
    }
}
