//! Whose a slot of a window is. A peer claims one by its session; any peer can claim any slot. It holds the slot when it
//! has proven that it reads and writes there: by a code over the generations of the link between the two slots, which
//! only hosts that have the window's memory know. The code is bound to the session, so that a peer that has not got
//! the memory cannot pass on what it heard from the host that has it. There is one link for each slot, whoever claims
//! it, and one holder at most.

use sluice_peering::config::window::WINDOWS_MAX;
use sluice_peering::{Binding, PROOF_BYTES};
use sluice_window::link::Link;

use super::{Seat, Shared, Window, Windows, call};
use crate::peer::PeerName;

/// Before what a code is of.
const LABEL: &[u8] = b"sluice slot of a window\0";

/// What a peer says to prove that a slot is its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SlotProof {
    /// Of the window.
    pub id: [u64; 2],
    /// The slot of the host that says it.
    pub slot: u32,
    pub code: [u8; PROOF_BYTES],
}

/// A session with a peer, and what the peer has said in it.
#[derive(Debug, Default)]
pub(super) struct Session {
    /// None with a daemon that proves nothing.
    binding: Option<Binding>,
    /// One for each window.
    claims: Vec<Claim>,
}

#[derive(Debug)]
struct Claim {
    seat: Seat,
    /// What the peer has said last to prove it.
    code: Option<[u8; PROOF_BYTES]>,
    /// The generations of which this host has said its own proof.
    told: Option<(u64, u64)>,
}

/// The link with whoever has a slot.
#[derive(Debug)]
pub(super) struct SlotLink {
    pub link: Link,
    /// Who has proven that the slot is its own, since the link is up.
    pub holder: Option<PeerName>,
}

/// What a code is of: the window, and slot and generation of who says it, then of who hears it.
fn statement(id: [u64; 2], from: (u32, u64), to: (u32, u64)) -> Vec<u8> {
    let mut said = LABEL.to_vec();
    said.extend(id.into_iter().flat_map(u64::to_be_bytes));
    for (slot, generation) in [from, to] {
        said.extend(slot.to_be_bytes());
        said.extend(generation.to_be_bytes());
    }
    said
}

impl Windows {
    /// A session with a peer begins; what it said in the one before counts no more. `binding`: None if its
    /// daemon proves nothing, and then it shares no window with this one.
    pub fn peer_up(&mut self, name: &PeerName, binding: Option<Binding>) {
        self.release(name, |_| true);
        let session = Session {
            binding,
            claims: Vec::new(),
        };
        self.sessions.insert(name.clone(), session);
    }

    /// The peer's daemon is another one than before: its claims are nobody's.
    pub(super) fn forget_claims(&mut self, name: &PeerName) {
        self.release(name, |_| true);
        if let Some(session) = self.sessions.get_mut(name) {
            session.claims.clear();
        }
    }

    /// The peer has been gone for long.
    pub fn forget(&mut self, name: &PeerName) {
        self.peer_lost(name);
        self.sessions.remove(name);
    }

    /// A peer says that a slot is its own.
    pub fn heard_seat(&mut self, name: &PeerName, seat: Seat) {
        let Some(session) = self.sessions.get_mut(name) else {
            return;
        };
        self.kernels.insert(name.clone(), seat.kernel);
        let known = session.claims.iter().find(|it| it.seat.id == seat.id);
        if known.is_none_or(|known| known.seat.slot != seat.slot) {
            session.claims.retain(|it| it.seat.id != seat.id);
            if session.claims.len() >= WINDOWS_MAX {
                return;
            }
            session.claims.push(Claim {
                seat,
                code: None,
                told: None,
            });
            self.release(name, |other| other.id == seat.id);
        }
        self.call_slot(seat);
        self.tell_and_check(name, seat.id);
    }

    /// A peer says what proves that a slot is its own.
    pub fn heard_proof(&mut self, name: &PeerName, proof: SlotProof) {
        let session = self.sessions.get_mut(name);
        let claim = session.and_then(|session| session.claim_mut(proof.id));
        if let Some(claim) = claim.filter(|it| it.seat.slot == proof.slot) {
            claim.code = Some(proof.code);
            self.tell_and_check(name, proof.id);
        }
    }

    /// What peers are to be told to prove this host's slots, since the last time.
    pub fn take_proofs(&mut self) -> Vec<(PeerName, SlotProof)> {
        std::mem::take(&mut self.proofs)
    }

    /// This host has a slot now: calls those of all who have said that they have one.
    pub(super) fn call_all(&mut self) {
        let sessions = self.sessions.values();
        let claims = sessions.flat_map(|session| &session.claims);
        for seat in claims.map(|it| it.seat).collect::<Vec<_>>() {
            self.call_slot(seat);
        }
    }

    /// The link with a slot is up: who claims it is told so, and may have proven it already.
    pub(super) fn met(&mut self, at: usize, slot: u32) {
        let shared = self.all.get(at).and_then(|window| window.shared.as_ref());
        let Some(id) = shared.map(|shared| shared.region.header().id) else {
            return;
        };
        let claims = |session: &Session| {
            let mut claims = session.claims.iter();
            claims.any(|it| (it.seat.id, it.seat.slot) == (id, slot))
        };
        let claimants = self.sessions.iter().filter(|(_, it)| claims(it));
        for name in claimants.map(|(name, _)| name.clone()).collect::<Vec<_>>() {
            self.tell_and_check(&name, id);
        }
    }

    /// Has a link with the slot that a peer claims.
    fn call_slot(&mut self, seat: Seat) {
        let Some(shared) = find(&mut self.all, seat.id).and_then(|it| it.shared.as_mut()) else {
            return;
        };
        let hosts = shared.region.header().geometry.hosts();
        let Some(held) = &mut shared.held else {
            return;
        };
        let me = held.hold.slot();
        let is_other = seat.slot < hosts && seat.slot != me;
        if !is_other || held.links.contains_key(&seat.slot) {
            return;
        }
        if let Some(link) = call(&shared.region, me, seat.slot) {
            let holder = None;
            held.links.insert(seat.slot, SlotLink { link, holder });
            shared.due = std::time::Instant::now();
        }
    }

    /// A peer holds no slot any more of windows like that.
    fn release(
        &mut self,
        name: &PeerName,
        is_its: impl Fn(&sluice_window::header::Header) -> bool,
    ) {
        let shared = self.all.iter_mut().filter_map(|it| it.shared.as_mut());
        for shared in shared.filter(|it| is_its(it.region.header())) {
            let links = shared.held.iter_mut().flat_map(|it| it.links.values_mut());
            for link in links.filter(|it| it.holder.as_ref() == Some(name)) {
                link.holder = None;
            }
        }
    }

    /// Says to a peer what proves this host's slot, if it has not heard that yet, and looks at what the peer has
    /// said of its own.
    fn tell_and_check(&mut self, name: &PeerName, id: [u64; 2]) {
        let Some(session) = self.sessions.get_mut(name) else {
            return;
        };
        let binding = session.binding.clone();
        let (Some(binding), Some(claim)) = (binding, session.claim_mut(id)) else {
            return;
        };
        let Some(window) = find(&mut self.all, id) else {
            return;
        };
        let Some(held) = window.shared.as_mut().and_then(|it| it.held.as_mut()) else {
            return;
        };
        let (me, slot) = (held.hold.slot(), claim.seat.slot);
        let Some(known) = held.links.get_mut(&slot) else {
            return;
        };
        let Some((ours, theirs)) = known.link.generations() else {
            return;
        };
        if claim.told != Some((ours, theirs)) {
            claim.told = Some((ours, theirs));
            let code = binding.code(&statement(id, (me, ours), (slot, theirs)));
            let proof = SlotProof { id, slot: me, code };
            self.proofs.push((name.clone(), proof));
        }
        let said = statement(id, (slot, theirs), (me, ours));
        if !claim.code.is_some_and(|code| binding.is_code(&said, &code)) {
            return;
        }
        let path = window.choice.path.display();
        match &known.holder {
            Some(holder) if holder == name => {}
            Some(holder) => {
                tracing::warn!(peer = %name, "{name} claims slot {slot} of {path}, which {holder} has");
                // Said once.
                claim.code = None;
            }
            None => {
                tracing::info!(peer = %name, "{name} shares the window {path}");
                known.holder = Some(name.clone());
            }
        }
    }
}

impl Session {
    fn claim_mut(&mut self, id: [u64; 2]) -> Option<&mut Claim> {
        self.claims.iter_mut().find(|it| it.seat.id == id)
    }
}

/// The window of that number.
fn find(all: &mut [Window], id: [u64; 2]) -> Option<&mut Window> {
    let is_it = |shared: &Shared| shared.region.header().id == id;
    all.iter_mut()
        .find(|window| window.shared.as_ref().is_some_and(is_it))
}

#[cfg(test)]
mod tests;
