//! The keys of a process, where initiators look for them, and who uses one at the moment.

use core::sync::atomic::{Ordering, fence};
use std::collections::HashMap;
use std::sync::Arc;

use sluice_shmem::verbs::directory::{Directory, KeyEntry};
use sluice_verbs::keys::KeyInfo;

use super::Node;
use crate::arena;
use crate::link::Incoming;
use crate::os;
use sluice_verbs::locks::lock;

/// How long the withdrawal of a key waits for one initiator's copy before that link is ended.
const HAZARD_PATIENCE_NS: u64 = 5_000_000_000;

#[derive(Default)]
pub struct Keys {
    slots: HashMap<u32, u32>,
    by_key: HashMap<u32, u32>,
    regions: Vec<u32>,
}

impl Node {
    /// Publishes a key. One that finds no place is not published; its requests go to the owner.
    pub fn publish_key(&self, info: &KeyInfo) {
        let located = arena::locate(info.host, info.len);
        let mut keys = lock(&self.keys);
        let Some(slot) =
            Directory::choose_key_slot(info.key, |slot| !keys.slots.contains_key(slot))
        else {
            return;
        };
        let (region, region_offset) = located.unwrap_or((0, 0));
        if region != 0 {
            if !keys.regions.contains(&region) {
                keys.regions.push(region);
            }
            for incoming in &self.links().incoming {
                incoming.exported.pass(incoming.socket.raw(), region);
            }
        }
        keys.slots.insert(slot, info.key);
        keys.by_key.insert(info.key, slot);
        self.directory.set_key(
            slot,
            &KeyEntry {
                key: info.key,
                iova: info.iova,
                len: info.len,
                access: info.access,
                pd: info.pd,
                address: info.host,
                region,
                region_offset,
                qpn: info.qpn,
            },
        );
    }

    /// Passes all regions with keys to a new initiator.
    pub fn pass_regions(&self, incoming: &Incoming) {
        let keys = lock(&self.keys);
        for region in &keys.regions {
            incoming.exported.pass(incoming.socket.raw(), *region);
        }
    }

    /// Withdraws a key and waits until no initiator uses it. A link whose announcement stands
    /// still is ended after some seconds: its process is stopped, or lies.
    pub fn withdraw_key(&self, info: &KeyInfo) {
        let slot = {
            let mut keys = lock(&self.keys);
            let Some(slot) = keys.by_key.remove(&info.key) else {
                return;
            };
            // The place stays taken until its users are gone.
            slot
        };
        self.directory.clear_key(slot);
        wait_for_users(&self.links().incoming, slot);
        lock(&self.keys).slots.remove(&slot);
    }

    /// Waits for the operations that the process of the queue pair `peer_qpn` is carrying out in
    /// this process's memory by itself. What was made invisible before is used by none of them
    /// any more.
    pub fn wait_for_initiator(&self, peer_qpn: u32) {
        // Who announces from now on finds it invisible; who did before is found below.
        fence(Ordering::SeqCst);
        let links = self.links();
        let is_peer = |link: &&Arc<Incoming>| link.peer.directory.qp_slot(peer_qpn).is_some();
        let peers: Vec<Arc<Incoming>> = links.incoming.iter().filter(is_peer).cloned().collect();
        if peers.is_empty() {
            return;
        }
        let slots: Vec<u32> = lock(&self.keys).slots.keys().copied().collect();
        for slot in slots {
            wait_for_users(&peers, slot);
        }
    }
}

/// Waits for whoever uses the key at `slot` now.
fn wait_for_users(links: &[Arc<Incoming>], slot: u32) {
    for incoming in links {
        for (index, value) in incoming.hazards.users(slot) {
            let start = os::now_ns();
            while incoming
                .hazards
                .users(slot)
                .any(|user| user == (index, value))
                && !incoming.broken.load(Ordering::Relaxed)
                && !incoming.ended.load(Ordering::Relaxed)
            {
                if os::now_ns() - start > HAZARD_PATIENCE_NS {
                    incoming.broken.store(true, Ordering::Relaxed);
                    os::shutdown(incoming.socket.raw());
                }
                std::thread::yield_now();
            }
        }
    }
}
