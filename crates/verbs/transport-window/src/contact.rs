//! How another host of the window is found, and how it is noticed that it is gone.
//!
//! A link (`sluice_window::link`) says who is there. Over its mailbox both lend each other the piece
//! of their heap that the other writes to, and say when they have made empty what they write there.
//! Then there is a channel.

use core::sync::atomic::Ordering;

use sluice_verbs::locks::lock;
use sluice_window::claim::{Table as _, Watch};
use sluice_window::layout::{PAGE_BYTES, Pair};
use sluice_window::link::{Ended, Event, Link, generation};
use sluice_window::mailbox::{MESSAGE_BYTES_MAX, Sent};
use sluice_window::{Broken, In, Out, View};

use crate::bell::Bell;
use crate::channel::{
    CONTROL_BYTES, Pieces, RING_BYTES_MAX, RING_BYTES_MIN, Receiving, Sending, reset,
};
use crate::host::Host;
use crate::lines::Lines;
use crate::management::Message;
use crate::peer::Peer;

/// Kinds of messages in a mailbox. 16 bytes: where the piece begins in the lender's slot, and how
/// long its ring is.
const LEND: u32 = 0x56_00_00_01;
/// 16 bytes: where the piece begins that was made usable, and whether the sender can ring.
const READY: u32 = 0x56_00_00_02;
/// A management datagram ([`crate::management`]).
const MANAGEMENT: u32 = 0x56_00_00_03;
/// Their upper half.
const PORT: u32 = 0x5600;

/// Events of one peer before the others have their turn. A host that is found has one, and one when it goes.
const EVENTS_PER_TURN: usize = 4;
/// Messages taken from one peer before the others have their turn.
const MESSAGES_PER_TURN: usize = 8;
/// How soon to look again while a channel is being made, and for how long.
pub const HURRY_NS: u64 = 1_000_000;
const HURRIED_NS: u64 = 1_000_000_000;
/// A peer that broke the rules is not looked at for so long.
const AFTER_BROKEN_NS: u64 = 1_000_000_000;
/// What waits for a host that holds its slot and does not answer fails so much later than a host is dead.
const UNANSWERED_MORE_NS: u64 = 1_000_000_000;

/// How another host has gone.
#[derive(Clone, Copy, Debug)]
pub enum Gone {
    /// In order.
    Left,
    /// Dead, silent, cut off, or another one now.
    Lost,
    Broke(Broken),
}

/// What is known of one other host.
#[derive(Debug, Default)]
pub struct Contact {
    link: Option<Link>,
    lent: Option<In>,
    told: bool,
    borrowed: Option<(Out, u64)>,
    told_ready: bool,
    is_ready: bool,
    /// It can wake this host.
    rings: bool,
    began: u64,
    not_before: u64,
    /// For how long somebody waits for it.
    waited: Option<Watch>,
    noticed: bool,
    /// What is said of it on standard error. Goes on with the next one in its slot.
    lines: Lines,
}

impl Contact {
    /// How the peer has gone, if it has.
    pub fn look(&mut self, peer: &Peer, now: u64) -> Result<Option<Gone>, Broken> {
        let host = &*peer.host;
        let view = host.region.view(host.slot);
        let knock = || {
            if let Some(bell) = Bell::of(&host.path, peer.slot) {
                bell.ring();
            }
        };
        let Some(link) = &mut self.link else {
            if now < self.not_before || !host.is_held(peer.slot) {
                return Ok(None);
            }
            let Ok(generation) = generation() else {
                return Ok(None);
            };
            self.link = Some(Link::new(
                Pair::new(host.slot, peer.slot),
                generation,
                &view,
            ));
            self.began = now;
            knock();
            return Ok(None);
        };
        link.beat(&view);
        let gone = take_events(link, &view, now, |event| {
            knock();
            match event {
                Event::Up { .. } => {
                    self.began = now;
                    self.lent = lock(&host.heap).lend(peer.slot, CONTROL_BYTES + host.ring_bytes);
                    if self.lent.is_none() && !self.noticed {
                        self.noticed = true;
                        let text = "the window has no room for one more host; make it larger \
                                    (sluice window create --size)";
                        self.lines.say(&host.notices, now, text);
                    }
                }
                Event::Down(Ended::Left) => return Some(Gone::Left),
                Event::Down(_) => return Some(Gone::Lost),
                Event::OtherVersion(version) => {
                    let text = format!(
                        "host {} of the window speaks version {version} of the protocol, and \
                         this program another",
                        peer.slot
                    );
                    self.lines.say(&host.notices, now, &text);
                }
            }
            None
        });
        if gone.is_some() {
            return Ok(gone);
        }
        let Some(lent) = self.lent.filter(|_| link.is_up()) else {
            return Ok(None);
        };
        if !self.told {
            let text = message([lent.0, host.ring_bytes]);
            self.told = link.sender.send(&view, LEND, &text)? == Sent::Yes;
            knock();
        }
        let mut mail = |message: &Message| {
            let sent = link.sender.send(&view, MANAGEMENT, message)?;
            Ok(sent == Sent::Yes)
        };
        if host.management.send(peer.slot, &mut mail)? {
            knock();
        }
        let mut buffer = [0; MESSAGE_BYTES_MAX];
        for _ in 0..MESSAGES_PER_TURN {
            let Some((kind, bytes)) = link.receiver.receive(&view, &mut buffer)? else {
                break;
            };
            // Said to others at that host: kernels tell of doorbells, and programs in guests talk.
            if kind >> 16 != PORT {
                continue;
            }
            if kind == MANAGEMENT {
                host.management.came(bytes, false)?;
                continue;
            }
            let Some([at, number]) = numbers(bytes) else {
                return Err(Broken("has sent a message of another length"));
            };
            match kind {
                LEND if self.borrowed.is_none() => {
                    let ring = check_piece(host, at, number)?;
                    let place = Out {
                        slot: peer.slot,
                        at,
                    };
                    self.borrowed = Some((place, ring));
                    let pieces = Pieces {
                        lent,
                        lent_ring: host.ring_bytes,
                        borrowed: place,
                        borrowed_ring: ring,
                    };
                    reset(&pieces, &view);
                }
                READY if at == lent.0 && !self.is_ready => {
                    self.is_ready = true;
                    self.rings = number == 1;
                }
                _ => return Err(Broken("has sent a message out of turn")),
            }
        }
        let Some((borrowed, borrowed_ring)) = self.borrowed else {
            return Ok(None);
        };
        if !self.told_ready {
            let bell = Bell::of(&host.path, peer.slot);
            let text = message([borrowed.at, u64::from(bell.is_some())]);
            self.told_ready = link.sender.send(&view, READY, &text)? == Sent::Yes;
            knock();
        }
        if self.told_ready && self.is_ready && !peer.is_up() {
            let pieces = Pieces {
                lent,
                lent_ring: host.ring_bytes,
                borrowed,
                borrowed_ring,
            };
            let bell = || Bell::of(&host.path, peer.slot);
            peer.begin(
                Sending::new(&pieces, bell()),
                Receiving::new(&pieces, bell()),
                pieces,
            );
        }
        Ok(None)
    }

    /// Whether a channel is being made, or messages wait for room, so that it is soon to be looked at again.
    pub fn hurries(&self, peer: &Peer, now: u64) -> bool {
        let is_new = !peer.is_up() && now.saturating_sub(self.began) < HURRIED_NS;
        self.link.is_some() && (is_new || peer.host.management.has_waiting(peer.slot))
    }

    /// Whether queue pairs have waited for long enough for a host that does not come.
    pub fn waits_in_vain(&mut self, peer: &Peer, now: u64) -> bool {
        if peer.is_up() || !peer.has_turns.load(Ordering::Acquire) {
            self.waited = None;
            return false;
        }
        let waited_ns = self.waited.get_or_insert(Watch::new(now)).look(now);
        let silence_ns = peer.host.region.silence_ns();
        let unanswered_ns = silence_ns.saturating_add(UNANSWERED_MORE_NS);
        let in_vain = !peer.host.is_held(peer.slot) || waited_ns >= unanswered_ns;
        if in_vain {
            self.waited = None;
        }
        in_vain
    }

    /// The host can wake this one.
    pub fn rings(&self) -> bool {
        self.rings
    }

    /// The host is gone, or is to be. What was lent to it comes back.
    pub fn end(&mut self, peer: &Peer, gone: Gone, now: u64) {
        let host = &*peer.host;
        let was = self.link.is_some();
        if peer.is_up() {
            let count = match gone {
                Gone::Left => &peer.counts.left,
                Gone::Lost => &peer.counts.lost,
                Gone::Broke(_) => &peer.counts.broken,
            };
            count.add(1);
        }
        self.leave(&host.region.view(host.slot));
        let lines = core::mem::take(&mut self.lines);
        *self = Contact {
            lines,
            ..Contact::default()
        };
        host.management.forget(peer.slot);
        if let Gone::Broke(broken) = gone {
            self.not_before = now + AFTER_BROKEN_NS;
            let text = format!("host {}: {broken}", peer.slot);
            self.lines.say(&host.notices, now, &text);
        }
        peer.end();
        if was {
            lock(&host.heap).take_all_back(peer.slot);
        }
    }

    /// Tells the peer that this host leaves.
    pub fn leave(&mut self, view: &impl View) {
        if let Some(link) = self.link.take() {
            link.leave(view);
        }
    }
}

/// Has `each` see what has happened, as long as it returns None. A host that is another one each time that it is looked
/// at has as many events as there are looks.
fn take_events<V: View>(
    link: &mut Link,
    view: &V,
    now: u64,
    mut each: impl FnMut(Event) -> Option<Gone>,
) -> Option<Gone> {
    for _ in 0..EVENTS_PER_TURN {
        let gone = each(link.poll(view, now)?);
        if gone.is_some() {
            return gone;
        }
    }
    None
}

/// Whether a peer may have lent this.
fn check_piece(host: &Host, at: u64, ring: u64) -> Result<u64, Broken> {
    let geometry = host.region.header().geometry;
    let (heap, heap_bytes) = geometry.heap();
    let sane = ring.is_power_of_two()
        && (RING_BYTES_MIN..=RING_BYTES_MAX).contains(&ring)
        && at.is_multiple_of(PAGE_BYTES)
        && at >= heap
        && at
            .checked_add(CONTROL_BYTES + ring)
            .is_some_and(|end| end <= heap + heap_bytes);
    sane.then_some(ring)
        .ok_or(Broken("has lent what is not its own"))
}

fn numbers(message: &[u8]) -> Option<[u64; 2]> {
    let message: &[u8; 16] = message.try_into().ok()?;
    let word = |at: usize| {
        let mut word = [0; 8];
        word.copy_from_slice(&message[at..at + 8]);
        u64::from_le_bytes(word)
    };
    Some([word(0), word(8)])
}

fn message(numbers: [u64; 2]) -> [u8; 16] {
    let mut bytes = [0; 16];
    bytes[..8].copy_from_slice(&numbers[0].to_le_bytes());
    bytes[8..].copy_from_slice(&numbers[1].to_le_bytes());
    bytes
}

#[cfg(test)]
mod tests;
