//! Whose a slot of a window is. A peer claims one by its session; any peer can claim any slot. It holds the slot when it
//! has proven that it reads and writes there: by a code over the generations of the link between the two slots, which
//! only hosts that have the window's memory know. The code is bound to the session, so that a peer that has not got
//! the memory cannot pass on what it heard from the host that has it. There is one link for each slot, whoever claims
//! it, and one holder at most.

use std::path::Path;
use std::time::Instant;

use sluice_peering::config::window::WINDOWS_MAX;
use sluice_peering::{Binding, PROOF_BYTES};
use sluice_window::header::Header;

use super::apart::{Standing, Tell};
use super::pieces::WindowId;
use super::shared::Shared;
use super::succession::{self, MEMORIES_MAX, Window};
use super::{Seat, Windows};
use crate::peer::PeerName;

/// Slots that a peer can claim.
const CLAIMS_MAX: usize = WINDOWS_MAX * MEMORIES_MAX;

/// Before what a code is of.
const LABEL: &[u8] = b"sluice slot of a window\0";

/// What a peer says to prove that a slot is its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SlotProof {
    /// Of the window.
    pub id: WindowId,
    /// The slot of the host that says it.
    pub slot: u32,
    pub code: [u8; PROOF_BYTES],
}

/// A session with a peer, and what the peer has said in it.
#[derive(Debug, Default)]
pub(super) struct Session {
    /// None with a daemon that proves nothing.
    binding: Option<Binding>,
    /// One for each memory, the last one said last.
    claims: Vec<Claim>,
    /// It has ended, and the next one has not begun.
    is_over: bool,
}

#[derive(Debug)]
struct Claim {
    seat: Seat,
    /// What the peer has said last to prove it.
    code: Option<[u8; PROOF_BYTES]>,
    /// The generations of which this host has said its own proof.
    told: Option<(u64, u64)>,
}

/// What a code is of: the window, and slot and generation of who says it, then of who hears it.
fn statement(id: WindowId, from: (u32, u64), to: (u32, u64)) -> Vec<u8> {
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
            ..Session::default()
        };
        self.sessions.insert(name.clone(), session);
    }

    /// The session with a peer has ended. What it has said counts until the next one.
    pub fn peer_down(&mut self, name: &PeerName) {
        if let Some(session) = self.sessions.get_mut(name) {
            session.is_over = true;
        }
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
        self.apart.remove(name);
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
            if session.claims.len() >= CLAIMS_MAX {
                // Of memories that this host has not one is as good as the other: the peer has left the older ones.
                let is_ours = |id| self.all.iter().any(|window| window.memory(id).is_some());
                let mut claims = session.claims.iter();
                let Some(oldest) = claims.position(|it| !is_ours(it.seat.id)) else {
                    return;
                };
                session.claims.remove(oldest);
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
    pub(super) fn met(&mut self, id: WindowId, slot: u32) {
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
        if let Some((_, shared)) = find(&mut self.all, seat.id) {
            shared.call(seat.slot);
        }
    }

    /// A peer holds no slot any more of windows like that.
    fn release(&mut self, name: &PeerName, is_its: impl Fn(&Header) -> bool) {
        let shared = self.all.iter_mut().flat_map(Window::all_mut);
        for shared in shared.filter(|it| is_its(it.region.header())) {
            let links = shared.held.iter_mut().flat_map(|it| it.links.values_mut());
            for link in links.filter(|it| it.holder.as_ref() == Some(name)) {
                link.holder = None;
            }
        }
    }

    /// Tells people of peers that lie in other memory than this host.
    pub(super) fn look_for_strangers(&mut self, now: Instant) {
        let ours = || self.all.iter().flat_map(Window::all);
        let has_slot = |window: &&Window| window.all().any(|shared| shared.held.is_some());
        let Some(own) = self.all.iter().find(has_slot) else {
            return;
        };
        let is_alone = ours().all(|shared| shared.holders().next().is_none());
        for (name, session) in &self.sessions {
            let is_ours = |it: &Claim| ours().any(|shared| shared.id() == it.seat.id);
            let has_ours = session.claims.iter().any(is_ours);
            let strange = session.claims.last().filter(|_| !has_ours);
            let standing = if ours().any(|shared| shared.has(name)) {
                Standing::Together
            } else if strange.is_some() && !session.is_over {
                Standing::Apart
            } else {
                Standing::Unknown
            };
            let known = self.apart.entry(name.clone()).or_default();
            let (Some(tell), Some(strange)) = (known.look(standing, is_alone, now), strange) else {
                continue;
            };
            let ids = own.all().map(|shared| succession::text(shared.id()));
            let what = format!(
                "{name} is in a window's memory {}, and this host is not: its window {} has {}. Connections with \
                 {name} have no lanes there. If the two are to share a window, restart the sluiced that has been \
                 running since before `sluice window serve` was started anew",
                succession::text(strange.seat.id),
                own.choice.path.display(),
                ids.collect::<Vec<_>>().join(", "),
            );
            match tell {
                Tell::Warning => tracing::warn!(peer = %name, "{what}"),
                Tell::Remark => tracing::info!(peer = %name, "{what}"),
            }
        }
    }

    /// Says to a peer what proves this host's slot, if it has not heard that yet, and looks at what the peer has
    /// said of its own.
    fn tell_and_check(&mut self, name: &PeerName, id: WindowId) {
        let Some(session) = self.sessions.get_mut(name) else {
            return;
        };
        let binding = session.binding.clone();
        let (Some(binding), Some(claim)) = (binding, session.claim_mut(id)) else {
            return;
        };
        let Some((path, shared)) = find(&mut self.all, id) else {
            return;
        };
        let Some(held) = &mut shared.held else {
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
        let path = path.display();
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
    fn claim_mut(&mut self, id: WindowId) -> Option<&mut Claim> {
        self.claims.iter_mut().find(|it| it.seat.id == id)
    }
}

/// The memory of that number, and the path of its window.
fn find(all: &mut [Window], id: WindowId) -> Option<(&Path, &mut Shared)> {
    let window = all.iter_mut().find(|window| window.memory(id).is_some())?;
    window.memory_and_path(id)
}

#[cfg(test)]
mod tests;
