//! All other hosts of the window: who is there, and what ends when one is not any more.

use core::sync::atomic::Ordering::SeqCst;

use sluice_sys::clock::now_ns;
use sluice_verbs::WcStatus;
use sluice_verbs::locks::lock;
use sluice_verbs::with_aftermath;
use sluice_waiting::limits::LIMITS;
use sluice_window::claim::BEAT_NS;

use crate::bell::Bell;
use crate::contact::{Gone, HURRY_NS};
use crate::node::Node;
use crate::peer::Peer;

impl Node {
    /// Looks at all other hosts, and says that this one lives. When to look again.
    pub fn contacts(&self, now: u64) -> u64 {
        let mut next = now + BEAT_NS;
        let beats = lock(&self.host.hold)
            .as_mut()
            .map(|hold| hold.beat(&self.host.region));
        if let Some(Err(_)) = beats {
            *lock(&self.host.hold) = None;
            self.host.notices
                .say("this program's slot of the window is somebody else's now, or the window is cut off");
            for peer in self.peers.others() {
                self.end(peer, Gone::Lost, now);
            }
        }
        let holds = lock(&self.host.hold).is_some();
        for peer in self.peers.others() {
            if let Some(broken) = peer.take_broken() {
                self.end(peer, Gone::Broke(broken), now);
            }
            let mut contact = lock(self.contact(peer));
            let over = match holds {
                true => contact.look(peer, now),
                false => Ok(None),
            };
            if contact.hurries(peer, now) {
                next = next.min(now + HURRY_NS);
            } else if peer.is_up() && !contact.rings() {
                next = next.min(now + LIMITS.unrung_contact_ns);
            }
            let in_vain = contact.waits_in_vain(peer, now);
            drop(contact);
            match over {
                Ok(None) => {}
                Ok(Some(gone)) => self.end(peer, gone, now),
                Err(broken) => self.end(peer, Gone::Broke(broken), now),
            }
            if in_vain {
                self.fail_those_of(peer, false);
            }
        }
        next
    }

    /// A peer is gone, or is to be: all its connections end.
    fn end(&self, peer: &Peer, gone: Gone, now: u64) {
        if !matches!(gone, Gone::Broke(_)) {
            // What it has sent as a whole before it went is there.
            with_aftermath(|after| self.drain(peer, after));
        }
        lock(self.contact(peer)).end(peer, gone, now);
        self.fail_those_of(peer, matches!(gone, Gone::Left));
    }

    /// All queue pairs that talk to this peer fail, and those that wait to do. `idle_stay`: but for those
    /// with nothing under way. The peer has left in order, and a queue pair hears of that when it
    /// sends, as with adapters: programs that have had their last message are not to be told of
    /// receives that nobody wants any more.
    fn fail_those_of(&self, peer: &Peer, idle_stay: bool) {
        if !peer.is_up() {
            peer.end();
        }
        for part in self.parts() {
            let (its, qp) = {
                let state = lock(&part.state);
                let its = state.peer.as_ref().is_none_or(|its| its.slot == peer.slot);
                let datagrams = state.peer.is_none();
                (its, state.qp.clone().map(|qp| (qp, datagrams)))
            };
            let stays = idle_stay && part.is_idle();
            let Some((qp, datagrams)) = qp.filter(|_| its && !stays) else {
                continue;
            };
            with_aftermath(|after| {
                if datagrams {
                    return qp.resume(after);
                }
                lock(&part.responder).lost(&qp, after);
                part.give_up(WcStatus::RetryExcErr, after);
            });
        }
    }

    /// Whether all that are there can wake this host.
    pub fn all_ring(&self) -> bool {
        let mut others = self.peers.others().filter(|peer| peer.is_up());
        others.all(|peer| lock(self.contact(peer)).rings())
    }

    /// Says at the end that this host leaves. Other threads may hold any lock for ever.
    pub fn depart(&self) {
        let view = self.host.region.view(self.host.slot);
        for peer in self.peers.iter() {
            peer.flush_at_exit();
            if let Ok(mut contact) = self.contact(peer).try_lock() {
                contact.leave(&view);
                if !peer.is_self()
                    && let Some(bell) = Bell::of(&self.host.path, peer.slot)
                {
                    bell.ring();
                }
            }
        }
        if let Ok(mut hold) = self.host.hold.try_lock()
            && let Some(hold) = hold.take()
        {
            hold.release(&self.host.region);
        }
    }

    /// The time now, if it is time to look at the other hosts.
    pub fn contacts_if_due(&self) {
        let now = now_ns();
        if self.host.contacts_due.load(SeqCst) > now {
            return;
        }
        // Somebody who wants it sooner says so behind this.
        self.host.contacts_due.store(u64::MAX, SeqCst);
        let next = self.contacts(now);
        self.host.contacts_due.fetch_min(next, SeqCst);
    }
}
