//! A process's share: this host, the others, and its queue pairs.

use core::sync::atomic::{AtomicU32, Ordering};
use std::collections::HashMap;
use std::path::Path;
use std::sync::{Arc, Mutex, RwLock};

use sluice_sys::at_exit::AtExit;
use sluice_sys::process::random;
use sluice_sys::wake::ring;
use sluice_transport::tap::Management;
use sluice_verbs::locks::{lock, read, try_lock, write};
use sluice_verbs::transport::{Gsi, MAD_BYTES, MadPath, MadReceiver, ManagementTrace};
use sluice_verbs::{Aftermath, Gid, QpType, Result};
use sluice_window::region::RegionView;
use sluice_window::{Broken, View};

use crate::OpenError;
use crate::channel::Payload;
use crate::contact::Contact;
use crate::frame::{
    Frame, HEADER_BYTES, MULTICAST_QPN, NUMBER_BITS, PSN_MASK, What, flag, slot_of,
};
use crate::host::Host;
use crate::management;
use crate::part::Part;
use crate::peer::{Peer, Peers, Sent};
use crate::responder::{self, Place};

/// Frames taken from one peer before others have their turn, and sent to one.
const FRAMES_PER_TURN: usize = 64;
pub struct Node {
    pub host: Arc<Host>,
    pub peers: Arc<Peers>,
    contacts: Vec<Mutex<Contact>>,
    parts: RwLock<HashMap<u32, Arc<Part>>>,
    numbers: AtomicU32,
}

impl Node {
    pub fn open(path: &Path, silence_ns: u64) -> core::result::Result<Arc<Node>, OpenError> {
        let peers = Peers::new(Host::open(path, silence_ns)?);
        let [number, _] = random().map_err(OpenError::System)?;
        Ok(Arc::new(Node {
            host: peers.host.clone(),
            contacts: peers.iter().map(|_| Mutex::default()).collect(),
            peers: Arc::new(peers),
            parts: RwLock::default(),
            numbers: AtomicU32::new(number as u32),
        }))
    }

    pub fn contact(&self, peer: &Peer) -> &Mutex<Contact> {
        &self.contacts[peer.slot as usize]
    }

    /// A number for a queue pair or a shared receive queue. Not one of a few milliseconds ago.
    pub fn number(&self) -> u32 {
        loop {
            let next = self.numbers.fetch_add(1, Ordering::Relaxed);
            let number = self.host.slot << NUMBER_BITS | next & ((1 << NUMBER_BITS) - 1);
            if number > 1 && number != MULTICAST_QPN && !read(&self.parts).contains_key(&number) {
                return number;
            }
        }
    }

    pub fn new_part(&self, kind: QpType) -> Arc<Part> {
        let number = self.number();
        let part = Arc::new(Part::new(&self.peers, number, kind));
        write(&self.parts).insert(number, part.clone());
        part
    }

    pub fn remove(&self, qpn: u32) {
        write(&self.parts).remove(&qpn);
    }

    pub fn part(&self, qpn: u32) -> Option<Arc<Part>> {
        read(&self.parts).get(&qpn).cloned()
    }

    pub fn parts(&self) -> Vec<Arc<Part>> {
        read(&self.parts).values().cloned().collect()
    }

    /// Does what timers say.
    pub fn fire(&self, now: u64, after: &mut Aftermath) {
        while let Some(qpn) = self.host.timers.take_due(now) {
            if let Some(part) = self.part(qpn) {
                part.due(now, after);
            }
        }
    }

    /// Does what there is to do: how much it was. `surely`: waits for who is at it, because what comes
    /// while he leaves would be left.
    pub fn progress(&self, surely: bool, after: &mut Aftermath) -> usize {
        let mut found = 0;
        for peer in self.peers.iter() {
            if peer.is_up() {
                found += self.receive(peer, surely, after);
                if peer.has_turns.load(Ordering::Acquire) {
                    found += self.send(peer, after);
                }
            }
        }
        found
    }

    /// Gives queue pairs their turns.
    fn send(&self, peer: &Peer, after: &mut Aftermath) -> usize {
        let mut sent = 0;
        for _ in 0..FRAMES_PER_TURN {
            let Some(turn) = peer.next_turn() else { break };
            turn.leave();
            let Some(part) = self.part(turn.qpn) else {
                continue;
            };
            let answers = match part.qp() {
                Some(qp) => lock(&part.responder).send_next(&turn, &qp, &mut Place { peer, after }),
                None => Sent::Idle,
            };
            let requests = match answers {
                Sent::Full => Sent::Full,
                _ => part.send_next(peer, after),
            };
            match (answers, requests) {
                (Sent::Idle, Sent::Idle) => {}
                (_, Sent::Full) => {
                    peer.call_first(&turn);
                    return sent;
                }
                _ => {
                    sent += 1;
                    peer.call(&turn);
                }
            }
        }
        for turn in peer.waiting_datagrams() {
            if let Some(qp) = self.part(turn.qpn).and_then(|part| part.qp()) {
                qp.resume(after);
            }
        }
        sent
    }

    /// Takes what a peer that is gone has left, which is no more than its ring holds.
    pub fn drain(&self, peer: &Peer, after: &mut Aftermath) {
        let frames_max = self.host.ring_bytes as usize / HEADER_BYTES;
        for _ in 0..=frames_max / FRAMES_PER_TURN {
            if self.receive(peer, true, after) == 0 {
                return;
            }
        }
    }

    fn receive(&self, peer: &Peer, surely: bool, after: &mut Aftermath) -> usize {
        let incoming = match surely {
            true => Some(lock(&peer.incoming)),
            // Whoever is at it does everything.
            false => try_lock(&peer.incoming),
        };
        let Some(mut incoming) = incoming else {
            return 0;
        };
        let Some(receiving) = &mut *incoming else {
            return 0;
        };
        let view = peer.in_view();
        for found in 0..FRAMES_PER_TURN {
            let next = receiving.next(&view, |frame, payload| {
                peer.counts.frames_received.add(1);
                peer.counts.bytes_received.add(u64::from(frame.len));
                self.came(peer, frame, payload, after)
            });
            match next {
                Ok(Some(())) => {}
                Ok(None) => return found,
                Err(broken) => {
                    *incoming = None;
                    peer.breaks(broken);
                    return found;
                }
            }
        }
        FRAMES_PER_TURN
    }

    fn came(
        &self,
        peer: &Peer,
        frame: &Frame,
        payload: &Payload<'_, RegionView<'_>>,
        after: &mut Aftermath,
    ) -> core::result::Result<(), Broken> {
        let mut place = Place { peer, after };
        match frame.what {
            What::Request | What::More => {
                if slot_of(frame.from) != peer.slot {
                    return Err(Broken("has sent in another's name"));
                }
                if frame.to == MULTICAST_QPN {
                    self.to_group(frame, payload, &mut place);
                    return Ok(());
                }
                let Some(part) = self.part(frame.to) else {
                    if frame.what == What::Request {
                        responder::nobody(peer, frame);
                    }
                    return Ok(());
                };
                // It is looked up under the lock, and let go of behind it. A thread that destroys the queue pair
                // answers the requests that wait, under the same lock; a request that comes later is answered here.
                let qp;
                let mut responder = lock(&part.responder);
                qp = part.qp();
                match &qp {
                    Some(qp) if part.turn.kind == QpType::Ud => {
                        responder.datagram(&part.turn, qp, frame, payload, &mut place);
                    }
                    Some(qp) if part.turn.is_reliable() == frame.is(flag::RELIABLE) => {
                        responder.came(&part.turn, qp, frame, payload, &mut place);
                    }
                    _ if frame.what == What::Request => responder::nobody(peer, frame),
                    _ => {}
                }
            }
            what => {
                let Some(part) = self.part(frame.to & PSN_MASK) else {
                    return Ok(());
                };
                match what {
                    What::Answer => part.answered(peer, frame, place.after),
                    What::Data => part.brought(peer, frame, payload, place.after),
                    What::NotYet => part.refused(peer, frame, place.after),
                    _ => part.readied(peer, frame),
                }
            }
        }
        Ok(())
    }

    fn to_group<V: View>(&self, frame: &Frame, payload: &Payload<'_, V>, place: &mut Place<'_>) {
        let gid = u128::from(frame.words[1]) << 64 | u128::from(frame.words[0]);
        let gid = Gid(gid.to_le_bytes());
        for part in self.parts() {
            if part.turn.kind != QpType::Ud || !lock(&part.groups).contains(&gid) {
                continue;
            }
            let own = part.turn.qpn == frame.from & PSN_MASK;
            let Some(qp) = part.qp() else { continue };
            if !(own && qp.blocks_multicast_loopback()) {
                let mut responder = lock(&part.responder);
                responder.datagram(&part.turn, &qp, frame, payload, place);
            }
        }
    }

    pub fn stop(&self) {
        self.host.control.stop();
        self.depart();
        ring(self.host.kick.raw());
    }
}

/// Queue pair 1.
impl Gsi for Node {
    fn send(&self, path: &MadPath, mad: &[u8; MAD_BYTES]) -> Result<()> {
        Management.record(true, [path.source, path.destination], 0, mad);
        let message = management::message(path, mad);
        for peer in self.peers.others() {
            if self.host.is_held(peer.slot) {
                self.host.management.post(peer.slot, &message);
            }
        }
        self.host.wake();
        // A length that is right breaks no rule.
        let _ = self.host.management.came(&message, true);
        Ok(())
    }

    fn set_receiver(&self, receiver: Arc<dyn MadReceiver>) {
        self.host.management.set_receiver(receiver);
    }

    fn tag(&self) -> Result<u16> {
        Ok(self.host.management.tag)
    }

    /// Each has got its own.
    fn pass_on(&self, _tag: Option<u16>, _path: &MadPath, _mad: &[u8; MAD_BYTES]) {}
}

impl AtExit for Node {
    fn leave(&self) {
        self.host.control.stop();
        self.depart();
    }
}
